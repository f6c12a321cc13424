/// @file
/// The transformer around the experts, computed on the CPU device.
#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "inference/model.hpp"
#include "math/attention.hpp"
#include "math/stored_matrix.hpp"

namespace ferry::engine {

/// A model on the CPU device: matrices that every token needs are in the type that they were stored in.
class CpuModel final : public Model {
 public:
  /// As ModelFiles.
  explicit CpuModel(const std::filesystem::path& folder, Quantizer quantizer = Quantizer::nearest)
      : CpuModel(ModelFiles(folder, quantizer)) {}
  CpuModel(const std::filesystem::path& folder, std::unique_ptr<DiskStore> store);
  explicit CpuModel(ModelFiles&& files);

  [[nodiscard]] KvCache make_cache(std::uint32_t positions) const override;
  Matrix forward(Phase phase, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, ExpertRunner& runner,
                 std::uint32_t logit_rows, const GateObserver& gate_scores = {}) override;
  [[nodiscard]] std::unique_ptr<ExpertDevice> make_device(const DeviceNeeds& needs,
                                                          const RunnerOptions& options) override;

 private:
  struct Layer {
    Vector input_norm, post_norm;
    StoredMatrix q, k, v, o;  // [out, in]
    Vector q_bias, k_bias, v_bias;
    Matrix gate;                                       // [experts, hidden]
    StoredMatrix shared_gate, shared_up, shared_down;  // the shared expert, if there is one
    StoredMatrix shared_scale;                         // [1, hidden]
  };

  /// Of normalised hidden states [rows, hidden]; writes their keys and values to the caches.
  void attention(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                 const Matrix& normed, Matrix& out);
  /// Scores [rows, experts] that the gate of `layer` gives to hidden states before that layer's attention.
  /// Its keys and values are tentative: the caches are left as they were.
  void predict_partial(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                       Matrix& hidden, Matrix& scores);
  /// Keys and values of a layer and token, [2, kv_heads * head_dim], to its cache and from there.
  void keep(KvCache& cache, std::uint32_t layer, std::uint32_t position, const float* keys, const float* values) const;
  void recall(const KvCache& cache, std::uint32_t layer, std::uint32_t position, float* keys, float* values) const;
  void shared_expert(const Layer& layer);
  void add_shared(Matrix& hidden) const;
  void rotate(Eigen::Ref<Eigen::RowVectorXf> heads, std::uint32_t position) const;

  std::vector<Layer> layers_;
  StoredMatrix embedding_, head_;  // [vocabulary, hidden]
  Vector norm_;
  Vector inverse_frequency_;   // [head_dim / 2]
  Nanoseconds shared_ns_ = 0;  ///< what the last shared expert took
  PackedProduct product_{best_path(), &workers()};
  AttentionKernel attention_{{config().heads, config().kv_heads, config().head_dim}, best_path(), &workers()};
  // scratch
  Matrix x_, normed_, q_, k_, v_, mixed_, projected_, scores_, routed_, shared_, shared_up_, shared_out_, factor_;
  Matrix partial_, ahead_normed_, ahead_scores_, saved_;
  std::vector<AttentionKernel::Row> seen_;
};

}  // namespace ferry::engine
