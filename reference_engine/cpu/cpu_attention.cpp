#include "cpu/cpu_attention.hpp"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace ferry::engine {
namespace {

/// For models in which some layers have attention with heads and the others linear attention.
class MixedAttention final : public CpuAttention {
 public:
  MixedAttention(const ModelConfig& c, std::unique_ptr<CpuAttention> heads, std::unique_ptr<CpuAttention> linear)
      : CpuAttention(c), heads_(std::move(heads)), linear_(std::move(linear)) {}

  void run(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, const Matrix& normed,
           Matrix& out) override {
    of(layer).run(layer, rows, caches, normed, out);
  }
  void save(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches) override {
    of(layer).save(layer, rows, caches);
  }
  void restore(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches) const override {
    of(layer).restore(layer, rows, caches);
  }

 private:
  [[nodiscard]] CpuAttention& of(std::uint32_t layer) const { return config_.layer[layer].linear ? *linear_ : *heads_; }

  std::unique_ptr<CpuAttention> heads_, linear_;
};

}  // namespace

std::unique_ptr<CpuAttention> CpuAttention::make(const ModelConfig& config, const Weights& weights, WorkerPool& workers,
                                                 PackedProduct& product) {
  if (config.latent.rank > 0) return make_absorbed_attention(config, weights, workers, product);
  auto heads = make_head_attention(config, weights, workers, product);
  if (config.linear.kernel == 0) return heads;
  auto others = config.linear.rule == LinearRule::convolution ? make_short_convolution(config, weights, product)
                : config.linear.rule == LinearRule::mamba     ? make_mamba(config, weights, workers, product)
                                                              : make_delta_attention(config, weights, workers, product);
  return std::make_unique<MixedAttention>(config, std::move(heads), std::move(others));
}

namespace {

/// Writes a token's rows, one for each head, to their place in a cache.
void put(Matrix& to, std::uint32_t capacity, std::uint32_t place, const float* from) {
  for (Eigen::Index at = place; at < to.rows(); at += capacity, from += to.cols()) {
    std::copy_n(from, to.cols(), to.row(at).data());
  }
}

}  // namespace

void CpuAttention::keep(Matrix& to, std::uint32_t capacity, std::uint32_t place, const float* from) {
  if (config_.cache_type == FloatType::f32) return put(to, capacity, place, from);
  halves_.resize(static_cast<std::size_t>(to.rows() / capacity * to.cols()));
  to_f16(from, 2 * halves_.size(), reinterpret_cast<std::byte*>(halves_.data()));
  put(to, capacity, place, halves_.data());
}

const std::vector<AttentionKernel::Row>& CpuAttention::seen(std::uint32_t layer, const std::vector<TokenRow>& rows,
                                                            const std::vector<KvCache>& caches) {
  const LayerConfig& l = config_.layer[layer];
  seen_.clear();
  for (const TokenRow& row : rows) {
    const KvCache& cache = caches[row.sequence];
    const std::uint32_t seen = row.position + 1, there = cache.first(layer);
    std::uint32_t first = l.window > 0 && seen > l.window ? seen - l.window : 0;
    if (l.chunk > 0) first = row.position - row.position % l.chunk;
    if (first < there) throw std::logic_error("a step has more tokens of a sequence than its cache was made for");
    const auto* keys = reinterpret_cast<const std::byte*>(cache.keys[layer].data());
    const auto* values = cache.values.empty() ? keys : reinterpret_cast<const std::byte*>(cache.values[layer].data());
    seen_.push_back({keys, values, cache.capacity(layer), first - there, seen - there});
  }
  return seen_;
}

void CpuAttention::save(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches) {
  saved_.clear();
  for (const TokenRow& row : rows) {
    KvCache& cache = caches[row.sequence];
    const std::uint32_t place = cache.place(layer, row.position);
    for (const std::vector<Matrix>* of : {&cache.keys, &cache.values}) {
      if (of->empty()) continue;
      const Matrix& m = (*of)[layer];
      for (Eigen::Index at = place; at < m.rows(); at += cache.capacity(layer)) {
        saved_.insert(saved_.end(), m.row(at).data(), m.row(at).data() + m.cols());
      }
    }
  }
}

void CpuAttention::restore(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches) const {
  const float* from = saved_.data();
  for (const TokenRow& row : rows) {
    KvCache& cache = caches[row.sequence];
    const std::uint32_t place = cache.place(layer, row.position), capacity = cache.capacity(layer);
    for (std::vector<Matrix>* of : {&cache.keys, &cache.values}) {
      if (of->empty()) continue;
      Matrix& m = (*of)[layer];
      put(m, capacity, place, from);
      from += m.rows() / capacity * m.cols();
    }
  }
}

void MemoryOfLayers::save(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches) {
  saved_.clear();
  for (const TokenRow& row : rows) {
    saved_.emplace_back(caches[row.sequence].keys[layer], caches[row.sequence].values[layer]);
  }
}

void MemoryOfLayers::restore(std::uint32_t layer, const std::vector<TokenRow>& rows,
                             std::vector<KvCache>& caches) const {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    KvCache& cache = caches[rows[i].sequence];
    std::tie(cache.keys[layer], cache.values[layer]) = saved_[i];
  }
}

Matrix MemoryOfLayers::kernel_of(const Weights& weights, const std::string& name, std::uint32_t channels) const {
  const LinearAttention& l = config_.linear;
  std::vector<std::uint64_t> shape{channels, l.kernel};
  if (!l.flat) shape.insert(shape.begin() + 1, 1);
  const Vector kernel = weights.floats(name, shape, std::uint64_t{channels} * l.kernel);
  return Eigen::Map<const Matrix>(kernel.data(), channels, l.kernel).transpose();
}

void MemoryOfLayers::convolve(const Matrix& kernel, Matrix& last, float* x) {
  const Eigen::Index before = kernel.rows() - 1;
  now_ = Eigen::Map<const Eigen::RowVectorXf>(x, kernel.cols());
  sum_ = now_.cwiseProduct(kernel.row(before));
  for (Eigen::Index t = 0; t < before; ++t) sum_ += last.row(t).cwiseProduct(kernel.row(t));
  for (Eigen::Index t = 0; t + 1 < before; ++t) last.row(t) = last.row(t + 1);
  if (before > 0) last.row(before - 1) = now_;
  Eigen::Map<Eigen::RowVectorXf>(x, kernel.cols()) = sum_;
}

}  // namespace ferry::engine
