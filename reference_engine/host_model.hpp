/// @file
/// The transformer around the experts, computed on the host device.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "disk_store.hpp"
#include "expert_runner.hpp"
#include "host_math.hpp"

namespace ferry::engine {

/// Keys and values of one sequence.
class KvCache {
 public:
  KvCache(const ModelConfig& config, std::uint32_t positions);

  std::vector<Matrix> keys, values;  ///< [layers] of [positions, kv_heads * head_dim]
  [[nodiscard]] std::uint64_t bytes() const;
};

/// One token of a forward pass.
struct TokenRow {
  std::uint32_t sequence = 0;  ///< index into the caches
  std::uint32_t token = 0, position = 0;
};

/// Sees a layer's gate input and its scores.
using GateObserver = std::function<void(std::uint32_t layer, const Matrix& input, const Matrix& scores)>;

/// A loaded model: everything that every token needs, in floats, and the store of routed experts.
class HostModel {
 public:
  /// With its experts in host memory, at low precision by `quantizer`. Throws InputError for anything that is missing,
  /// misshapen or not supported.
  explicit HostModel(const std::filesystem::path& folder, Quantizer quantizer = Quantizer::nearest);
  /// With its experts in a store of their own; the folder needs only the rest. Throws InputError also for a store that
  /// was made from another model.
  HostModel(const std::filesystem::path& folder, std::unique_ptr<DiskStore> store);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const ExpertStore& store() const { return *store_; }
  [[nodiscard]] GateBank& gates() { return gates_; }
  /// Has the experts at these precisions too. Throws InputError as ExpertStore::add does.
  void add_precisions(PrecisionSet set);
  [[nodiscard]] std::uint64_t dense_bytes() const { return dense_bytes_; }

  /// Runs the rows through all layers, and returns the logits [logit_rows, vocabulary] of the last
  /// `logit_rows`. Rows of one sequence come in ascending position, whose earlier keys and values are in its
  /// cache. `gate_scores`, if given, sees each layer's gate input [rows, hidden] and scores [rows, experts].
  Matrix forward(Phase phase, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, ExpertRunner& runner,
                 std::uint32_t logit_rows, const GateObserver& gate_scores = {});

 private:
  struct Layer {
    Vector input_norm, post_norm;
    Matrix q, k, v, o;  // [out, in]
    Vector q_bias, k_bias, v_bias;
    Matrix gate;                                 // [experts, hidden]
    Matrix shared_gate, shared_up, shared_down;  // the shared expert, if there is one
    Matrix shared_scale;                         // [1, hidden]
  };

  void load(const Checkpoint& checkpoint);
  /// Of normalised hidden states [rows, hidden]; writes their keys and values to the caches.
  void attention(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                 const Matrix& normed, Matrix& out);
  /// Scores [rows, experts] that the gate of `layer` gives to hidden states before that layer's attention.
  /// Its keys and values are tentative: the caches are left as they were.
  void foresee(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, Matrix& hidden,
               Matrix& scores);
  void shared_expert(const Layer& layer);
  void add_shared(Matrix& hidden) const;
  void rotate(Eigen::Ref<Eigen::RowVectorXf> heads, std::uint32_t position) const;

  ModelConfig config_;
  std::vector<Layer> layers_;
  Matrix embedding_, head_;  // [vocabulary, hidden]
  Vector norm_;
  Vector inverse_frequency_;  // [head_dim / 2]
  std::unique_ptr<ExpertStore> store_;
  GateBank gates_;
  std::uint64_t dense_bytes_ = 0;
  Nanoseconds shared_ns_ = 0;  ///< what the last shared expert took
  // scratch
  Matrix x_, normed_, q_, k_, v_, mixed_, projected_, scores_, routed_, shared_, shared_up_, shared_out_, factor_;
  Matrix partial_, ahead_normed_, ahead_scores_, saved_;
};

}  // namespace ferry::engine
