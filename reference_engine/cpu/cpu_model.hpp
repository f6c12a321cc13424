/// @file
/// The transformer around the experts, computed on the CPU device.
#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "cpu/cpu_attention.hpp"
#include "inference/model.hpp"
#include "math/stored_matrix.hpp"

namespace ferry::engine {

/// A model on the CPU device: matrices that every token needs are in the type that they were stored in.
class CpuModel : public Model {
 public:
  /// As ModelFiles.
  explicit CpuModel(const std::filesystem::path& folder, Quantizer quantizer = Quantizer::nearest)
      : CpuModel(ModelFiles(folder, LoadOptions{.quantizer = quantizer})) {}
  CpuModel(const std::filesystem::path& folder, std::unique_ptr<DiskStore> store);
  explicit CpuModel(ModelFiles&& files);

  void set_activations(Activations activations) override {
    Model::set_activations(activations);
    product_.set_activations(activations);
  }
  using Model::make_cache;
  [[nodiscard]] KvCache make_cache(const CacheRoom& room) const override;
  Matrix forward(Phase phase, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, ExpertRunner& runner,
                 std::uint32_t logit_rows, const GateObserver& gate_scores = {}) override;
  [[nodiscard]] std::unique_ptr<ExpertDevice> make_device(const DeviceNeeds& needs,
                                                          const RunnerOptions& options) override;

 private:
  struct NormWeights {
    Vector weight, bias;
  };
  /// down (silu(gate x) * up x), or with GELU as experts have it
  struct Mlp {
    StoredMatrix gate, up, down;
    StoredMatrix scale;  ///< [1, hidden]: the sigmoid of its product weighs the whole, if there is one
  };
  struct Layer {
    NormWeights attention_norm, mlp_norm;  ///< before them, and behind; empty: none
    NormWeights attention_behind, mlp_behind;
    NormWeights experts_norm, experts_behind, shared_behind;  ///< of experts beside an MLP with norms of its own
    float scale = 1;                                          ///< of the hidden states behind it
    Matrix gate;                                              ///< [experts, hidden]
    Mlp mlp;  ///< the shared expert, if there is one; of a layer without experts all that it has
  };

  /// What the parts of a layer behind attention read of hidden states.
  struct Normed {
    Matrix mlp;            ///< by a shared expert, or an MLP
    Matrix experts, gate;  ///< where they read something else
    bool apart = false;    ///< they do
    [[nodiscard]] const Matrix& of_experts() const { return apart ? experts : mlp; }
    [[nodiscard]] const Matrix& of_gate() const { return apart ? gate : mlp; }
  };

  Layer load_layer(const Weights& weights, std::uint32_t index) const;
  /// What attention or experts read: normalised, if norms stand before them.
  void norm(const Matrix& x, const NormWeights& weights, Matrix& y) const;
  void norm_before(const Matrix& x, const NormWeights& weights, Matrix& y) const;
  /// Applies the norm `behind` to `given` in place, if there is one.
  void norm_behind(const NormWeights& behind, Matrix& given);
  /// x += what attention or experts gave, which is normalised first if norms stand behind them.
  void add(Matrix& x, const NormWeights& behind, Matrix& given);
  /// Adds attention's part to hidden states, and norms them for what follows.
  void attend(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, Matrix& x,
              Normed& normed);
  /// Into `mlp_out_`, and `factor_`.
  void run_mlp(const Mlp& mlp, std::uint32_t width, bool scaled, const Matrix& x);
  /// The scores of a layer with experts, of what its gate reads.
  void score(std::uint32_t moe_layer, const Matrix& input, Matrix& select, Matrix& weight) const;
  /// Adds the experts' part, and the shared expert's, and ends the layer.
  void add_experts(const Layer& layer, Matrix& x, Matrix& routed);
  /// Scores that the gate of `moe_layer` gives where `hidden` has what the last layer with experts before it gave: the layers
  /// in between are computed. Keys and values are tentative: the caches are left as they were.
  void predict_partial(std::uint32_t moe_layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                       Matrix& hidden);

  std::vector<Layer> layers_;
  StoredMatrix embedding_, head_;  // [vocabulary, hidden]
  Vector head_bias_;
  NormWeights norm_, plain_;   ///< the model's last; one whose weights are all 1
  Nanoseconds shared_ns_ = 0;  ///< what the last shared expert took
  PackedProduct product_{best_path(), &workers()};
  std::unique_ptr<CpuAttention> attention_;
  // scratch
  Normed normed_, ahead_;
  Matrix x_, attended_, select_, weight_, routed_, mlp_, mlp_up_, mlp_out_, factor_, given_;
  Matrix partial_, ahead_select_, ahead_weight_;
};

}  // namespace ferry::engine
