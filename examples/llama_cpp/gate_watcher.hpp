/// @file
/// What llama.cpp's gates say, read from outside through its evaluation callback, which names every tensor of a graph.
#pragma once
#include <ggml.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ferry/gate/gate_rule.hpp"

namespace ferry::llama_cpp {

/// An MoE layer, as its graph shows it. Tensors are the model's weights and outlive it.
struct WatchedLayer {
  int number = 0;  ///< llama.cpp's, which counts dense layers too
  std::uint32_t experts = 0, top_k = 0;
  Gating gating = Gating::softmax;
  bool grouped = false, by_logit = false;
  Renormalise renormalise = Renormalise::no;
  float scale = 1.0F;
  const ggml_tensor* gate = nullptr;         ///< [experts, hidden]
  const ggml_tensor* gate_bias = nullptr;    ///< [experts], or null
  const ggml_tensor* choice_bias = nullptr;  ///< [experts], or null
  /// The matrices of all experts: gate, up and down, or gate with up, and down. An expert's are a slice of each.
  std::vector<const ggml_tensor*> matrices;
  std::vector<const ggml_tensor*> dense;  ///< the other matrices that each token is multiplied with

  /// Of one expert.
  [[nodiscard]] std::uint64_t expert_bytes() const;
};

/// What a layer's gate said in the forward pass that runs.
struct GateRows {
  std::uint32_t rows = 0;             ///< fewer than the step has if the last layer only computes rows with outputs
  std::vector<float> logits;          ///< [rows, experts], without the gate's bias
  std::vector<float> input;           ///< [rows, hidden]
  std::vector<std::int32_t> choices;  ///< [rows, top_k], llama.cpp's own, best first; empty if not asked for
};

/// Learns a model's MoE layers from the first graph, and reads the gates' outputs from every graph. A callback of a context:
/// `params.cb_eval = GateWatcher::callback; params.cb_eval_user_data = &watcher;`
///
/// Names are those of llama.cpp's `build_moe_ffn`: a tensor and its layer, as in "ffn_moe_logits-3". A tensor that only has
/// another shape, "ffn_moe_logits-3 (reshaped)", is ignored. llama.cpp computes a graph piece by piece up to each tensor that
/// is read, so only the needed ones are read: a gate's logits and, if wanted, llama.cpp's choices.
class GateWatcher {
 public:
  explicit GateWatcher(bool wants_choices) : wants_choices_(wants_choices) {}
  GateWatcher(const GateWatcher&) = delete;
  GateWatcher& operator=(const GateWatcher&) = delete;

  static bool callback(ggml_tensor* tensor, bool ask, void* watcher);

  /// Called when a layer's logits are there, before its experts are chosen and run. What it throws ends the forward pass.
  std::function<void(std::uint16_t layer, const GateRows& rows)> on_gate;

  /// In the order of the graph. Complete after the first forward pass.
  [[nodiscard]] const std::vector<WatchedLayer>& layers() const { return layers_; }
  /// Of the last forward pass, by layer.
  [[nodiscard]] const std::vector<GateRows>& rows() const { return rows_; }

  /// Throws what went wrong in a forward pass, since exceptions cannot pass through llama.cpp's frames.
  void check();
  /// To be called after one that did not fail. The same, and std::runtime_error for gates that are not understood.
  void end_step();

 private:
  void look_at(const ggml_tensor& tensor);
  void learn(const ggml_tensor& tensor, const std::string& what, WatchedLayer& layer);
  void read(const ggml_tensor& tensor);
  std::uint16_t place_of(int number);

  bool wants_choices_, learned_ = false;
  std::vector<WatchedLayer> layers_;
  std::vector<GateRows> rows_;
  std::map<int, std::uint16_t> places_;                   ///< by llama.cpp's number
  std::map<int, std::vector<const ggml_tensor*>> dense_;  ///< likewise, also of layers without experts
  const ggml_tensor* awaited_ = nullptr;                  ///< is to be read once it is computed
  std::uint16_t awaited_layer_ = 0;
  bool awaits_choices_ = false;
  std::exception_ptr failed_;
};

/// Row-major floats of a matrix or vector of weights, whatever its type.
std::vector<float> floats_of(const ggml_tensor& weights);

}  // namespace ferry::llama_cpp
