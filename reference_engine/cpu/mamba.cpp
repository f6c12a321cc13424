#include <algorithm>
#include <cmath>
#include <utility>

#include "cpu/cpu_attention.hpp"
#include "math/host_math.hpp"
#include "math/share_work.hpp"

namespace ferry::engine {
namespace {

/// Mamba 2 (Dao and Gu, 2024, "Transformers are SSMs"), as Granite 4 has it: a head remembers a matrix S [key_dim, value_dim].
/// A token with values x multiplies S by exp(dt A), adds dt B x, and reads S with C; D x is added to what it reads. B, C and x
/// pass a short convolution over the last tokens. The heads of a group share B and C; dt is one number a head. The outputs of
/// a group's heads are gated, then normed together.
///
/// In a sequence's cache, `keys` holds the matrices of all heads [heads * key_dim, value_dim], and `values` the last tokens
/// for the convolution [kernel - 1, channels]. Position 0 starts with zeros.
class Mamba final : public MemoryOfLayers {
 public:
  Mamba(const ModelConfig& c, const Weights& weights, WorkerPool& workers, PackedProduct& product)
      : MemoryOfLayers(c), l_(c.linear), workers_(workers), product_(product) {
    const std::uint64_t width = value_width(), channels = l_.channels(), all = width + channels + l_.value_heads;
    for (std::uint32_t index = 0; index < c.layers; ++index) {
      Layer& layer = layers_.emplace_back();
      if (!c.layer[index].linear) continue;
      const auto name = [&](const char* rest) { return c.tensor(index, c.names.mamba + rest); };
      const std::string in = c.tensor(index, c.names.mamba_in + "weight");
      layer.gate = weights.rows_of(in, all, c.hidden, 0, width);
      layer.mixed = weights.rows_of(in, all, c.hidden, width, channels);
      layer.time = weights.rows_of(in, all, c.hidden, width + channels, l_.value_heads);
      layer.out = weights.matrix(name("out_proj.weight"), c.hidden, width);
      layer.time_bias = weights.vector(name("dt_bias"), l_.value_heads);
      if (l_.bias) {
        const Vector bias = weights.vector(c.tensor(index, c.names.mamba_in + "bias"), all);
        layer.gate_bias = bias.head(value_width());
        layer.mixed_bias = bias.segment(value_width(), l_.channels());
        layer.time_bias += bias.tail(l_.value_heads);
        layer.out_bias = weights.vector(name("out_proj.bias"), c.hidden);
      }
      layer.kernel = kernel_of(weights, name("conv1d.weight"), l_.channels());
      layer.kernel_bias = Vector::Zero(l_.channels());
      if (l_.kernel_bias) layer.kernel_bias = weights.vector(name("conv1d.bias"), channels);
      const std::uint64_t heads = l_.value_heads, groups = l_.key_heads;
      const bool of_gguf = weights.has(name("A"));  // which stores vectors as columns
      const auto column = [&](const char* what) {
        return of_gguf ? weights.floats(name(what), {heads, 1}, heads) : weights.vector(name(what), heads);
      };
      layer.skip = column("D");
      layer.fade = of_gguf ? column("A") : Vector(-column("A_log").array().exp());
      const Vector norm = of_gguf ? weights.floats(name("norm.weight"), {groups, width / groups}, width)
                                  : weights.vector(name("norm.weight"), width);
      const Eigen::Index size = value_width() / l_.key_heads;
      for (std::uint32_t g = 0; g < l_.key_heads; ++g) layer.norms.emplace_back(norm.segment(g * size, size));
    }
  }

  void run(std::uint32_t index, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, const Matrix& normed,
           Matrix& out) override {
    const Layer& layer = layers_[index];
    product_.run(normed, {layer.gate.times(gate_), layer.mixed.times(mixed_), layer.time.times(time_)});
    add_rows(gate_, layer.gate_bias);
    add_rows(mixed_, layer.mixed_bias);
    resize(made_, normed.rows(), value_width());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto at = static_cast<Eigen::Index>(i);
      KvCache& cache = caches[rows[i].sequence];
      Matrix &state = cache.keys[index], &last = cache.values[index];
      if (rows[i].position == 0) {
        state.setZero();
        last.setZero();
      }
      convolve(layer.kernel, last, mixed_.row(at).data());
      for (std::uint32_t x = 0; x < l_.channels(); ++x) mixed_(at, x) = silu(mixed_(at, x) + layer.kernel_bias[x]);
      step(layer, at, state);
    }
    layer.out.times(made_, product_, out);
    add_rows(out, layer.out_bias);
  }

 private:
  struct Layer {
    StoredMatrix gate, mixed, time, out;
    Vector gate_bias, mixed_bias, time_bias, out_bias, kernel_bias;
    Matrix kernel;              ///< [kernel, channels]
    Vector fade, skip;          ///< A and D, [heads]
    std::vector<Vector> norms;  ///< of each group
  };

  [[nodiscard]] std::uint32_t value_width() const { return l_.value_heads * l_.value_dim; }

  /// One token: updates the matrices of all heads, reads them, and norms the result group by group.
  void step(const Layer& layer, Eigen::Index row, Matrix& state) {
    const float* values = mixed_.row(row).data();
    const float *writes = values + value_width(), *reads = writes + std::size_t{l_.key_heads} * l_.key_dim;
    const std::uint32_t heads = l_.value_heads / l_.key_heads, size = heads * l_.value_dim;
    const std::uint64_t products = std::uint64_t{3} * l_.value_heads * l_.key_dim * l_.value_dim;
    float* const made = made_.row(row).data();
    share_work(&workers_, l_.value_heads, products, [&](std::uint32_t begin, std::uint32_t end) {
      Eigen::RowVectorXf given(l_.value_dim), brought(l_.value_dim);
      for (std::uint32_t h = begin; h < end; ++h) {
        const float *b = writes + std::size_t{h / heads} * l_.key_dim, *c = reads + std::size_t{h / heads} * l_.key_dim;
        const Eigen::Map<const Eigen::RowVectorXf> x(values + std::size_t{h} * l_.value_dim, l_.value_dim);
        const float time = softplus(time_(row, h) + layer.time_bias[h]), fade = std::exp(time * layer.fade[h]);
        brought = x * time;
        given = x * layer.skip[h];
        for (std::uint32_t i = 0; i < l_.key_dim; ++i) {
          auto remembered = state.row(Eigen::Index{h} * l_.key_dim + i);
          remembered = remembered * fade + brought * b[i];
          given += remembered * c[i];
        }
        const float* gate = gate_.row(row).data() + std::size_t{h} * l_.value_dim;
        float* to = made + std::size_t{h} * l_.value_dim;
        for (std::uint32_t i = 0; i < l_.value_dim; ++i) to[i] = given[i] * silu(gate[i]);
      }
    });
    for (std::uint32_t g = 0; g < l_.key_heads; ++g) {
      rms_norm(made + std::size_t{g} * size, size, layer.norms[g], static_cast<float>(config_.norm_epsilon));
    }
  }

  const LinearAttention& l_;
  WorkerPool& workers_;
  PackedProduct& product_;
  std::vector<Layer> layers_;
  Matrix gate_, mixed_, time_, made_;  // scratch
};

}  // namespace

std::unique_ptr<CpuAttention> make_mamba(const ModelConfig& config, const Weights& weights, WorkerPool& workers,
                                         PackedProduct& product) {
  return std::make_unique<Mamba>(config, weights, workers, product);
}

}  // namespace ferry::engine
