/// @file
/// The attention of all layers of a model, computed on the CPU.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "cpu/weights.hpp"
#include "inference/model.hpp"
#include "math/attention.hpp"

namespace ferry::engine {

/// Attention of the rows of a step to their own sequences.
class CpuAttention {
 public:
  /// Makes the kind that the model has. `product` computes its products, and must outlive it.
  static std::unique_ptr<CpuAttention> make(const ModelConfig& config, const Weights& weights, WorkerPool& workers,
                                            PackedProduct& product);
  virtual ~CpuAttention() = default;
  CpuAttention(const CpuAttention&) = delete;
  CpuAttention& operator=(const CpuAttention&) = delete;

  /// Of normalised hidden states [rows, hidden]; writes their keys and values to the caches.
  virtual void run(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                   const Matrix& normed, Matrix& out) = 0;

  /// Saves what caches have of these rows, one of each sequence, for `restore` to put back: keys and values may be tentative.
  virtual void save(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches);
  virtual void restore(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches) const;

 protected:
  explicit CpuAttention(const ModelConfig& config) : config_(config) {}

  /// Puts keys, or values, [kv_heads * head_dim], in their place of `capacity` in a cache, in the form that it has.
  void keep(Matrix& to, std::uint32_t capacity, std::uint32_t place, const float* from);
  /// What the rows attend to in a layer, whose keys and values are in their caches by now.
  const std::vector<AttentionKernel::Row>& seen(std::uint32_t layer, const std::vector<TokenRow>& rows,
                                                const std::vector<KvCache>& caches);

  const ModelConfig& config_;

 private:
  std::vector<AttentionKernel::Row> seen_;  // scratch
  std::vector<float> saved_, halves_;       // as caches have them; two numbers each
};

/// Layers whose memory does not grow (LinearAttention): any token changes all of it, and so all of it is put back.
class MemoryOfLayers : public CpuAttention {
 public:
  void save(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches) final;
  void restore(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches) const final;

 protected:
  using CpuAttention::CpuAttention;

  /// A convolution's tensor, as [tokens, channels].
  [[nodiscard]] Matrix kernel_of(const Weights& weights, const std::string& name, std::uint32_t channels) const;
  /// Replaces a token's channels `x` by what a convolution by `kernel` [tokens, channels] makes of them and of those of the
  /// tokens before it, which are `last` [tokens - 1, channels]; these then end with the token.
  void convolve(const Matrix& kernel, Matrix& last, float* x);

 private:
  std::vector<std::pair<Matrix, Matrix>> saved_;  ///< of each row's sequence
  Eigen::RowVectorXf now_, sum_;                  // scratch
};

/// Heads of queries share heads of keys and values.
std::unique_ptr<CpuAttention> make_head_attention(const ModelConfig& config, const Weights& weights,
                                                  WorkerPool& workers, PackedProduct& product);
/// LatentAttention.
std::unique_ptr<CpuAttention> make_absorbed_attention(const ModelConfig& config, const Weights& weights,
                                                      WorkerPool& workers, PackedProduct& product);
/// LinearAttention, by each rule.
std::unique_ptr<CpuAttention> make_short_convolution(const ModelConfig& config, const Weights& weights,
                                                     PackedProduct& product);
std::unique_ptr<CpuAttention> make_delta_attention(const ModelConfig& config, const Weights& weights,
                                                   WorkerPool& workers, PackedProduct& product);
std::unique_ptr<CpuAttention> make_mamba(const ModelConfig& config, const Weights& weights, WorkerPool& workers,
                                         PackedProduct& product);

}  // namespace ferry::engine
