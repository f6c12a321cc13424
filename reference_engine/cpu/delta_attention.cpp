#include <algorithm>
#include <cmath>
#include <utility>

#include "cpu/cpu_attention.hpp"
#include "math/host_math.hpp"
#include "math/share_work.hpp"

namespace ferry::engine {
namespace {

/// What Qwen's code adds to squared lengths of queries and keys.
constexpr float length_epsilon = 1e-6F;

/// Gated delta rule (Gated DeltaNet, section 3.1): a head remembers a matrix S [key_dim, value_dim]. A token multiplies S by
/// a factor, moves what S has for the token's key towards its value by a rate, and reads S with its query. Queries, keys and
/// values pass a short convolution over the last tokens.
///
/// In a sequence's cache, `keys` holds the matrices of all heads [heads * key_dim, value_dim], and `values` the last tokens
/// for the convolution [kernel - 1, channels]. Position 0 starts with zeros.
class DeltaAttention final : public MemoryOfLayers {
 public:
  DeltaAttention(const ModelConfig& c, const Weights& weights, WorkerPool& workers, PackedProduct& product)
      : MemoryOfLayers(c), l_(c.linear), workers_(workers), product_(product) {
    for (std::uint32_t index = 0; index < c.layers; ++index) {
      Layer& layer = layers_.emplace_back();
      if (!c.layer[index].linear) continue;
      const auto name = [&](const char* rest) { return c.tensor(index, std::string("linear_attn.") + rest); };
      // GGUF files have the first projections apart, the second as the model's folder has them.
      const std::string split = name("in_proj_qkv.weight");
      if (l_.fused && !weights.has(split)) {
        load_fused(weights, name("in_proj_qkvz.weight"), layer);
      } else {
        layer.qkv = weights.matrix(split, l_.channels(), c.hidden);
        layer.z = weights.matrix(name("in_proj_z.weight"), value_width(), c.hidden);
      }
      if (l_.fused) {
        load_rates(weights, name("in_proj_ba.weight"), layer);
      } else {
        layer.rate = weights.matrix(name("in_proj_b.weight"), l_.value_heads, c.hidden);
        layer.fade = weights.matrix(name("in_proj_a.weight"), l_.value_heads, c.hidden);
      }
      layer.kernel = kernel_of(weights, name("conv1d.weight"), l_.channels());
      if (weights.has(name("A"))) {  // as GGUF has it
        layer.fade_scale = weights.vector(name("A"), l_.value_heads);
      } else {
        layer.fade_scale = -weights.vector(name("A_log"), l_.value_heads).array().exp();
      }
      layer.fade_bias = weights.vector(name("dt_bias"), l_.value_heads);
      layer.norm = weights.vector(name("norm.weight"), l_.value_dim);
      layer.out = weights.matrix(name("out_proj.weight"), c.hidden, value_width());
    }
  }

  void run(std::uint32_t index, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, const Matrix& normed,
           Matrix& out) override {
    const Layer& layer = layers_[index];
    product_.run(normed, {layer.qkv.times(qkv_), layer.z.times(z_), layer.rate.times(rate_), layer.fade.times(fade_)});
    resize(made_, normed.rows(), value_width());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto at = static_cast<Eigen::Index>(i);
      KvCache& cache = caches[rows[i].sequence];
      Matrix &state = cache.keys[index], &last = cache.values[index];
      if (rows[i].position == 0) {
        state.setZero();
        last.setZero();
      }
      convolve(layer.kernel, last, qkv_.row(at).data());
      for (float& x : qkv_.row(at)) x = silu(x);
      lengths(qkv_.row(at).data());
      step(layer, at, state);
    }
    layer.out.times(made_, product_, out);
  }

 private:
  struct Layer {
    StoredMatrix qkv, z, rate, fade, out;
    Matrix kernel;  ///< [kernel, channels]
    Vector fade_scale, fade_bias, norm;
  };

  [[nodiscard]] std::uint32_t value_width() const { return l_.value_heads * l_.value_dim; }

  /// Splits a matrix that has queries, keys, values and gates for each key head.
  void load_fused(const Weights& weights, const std::string& qkvz, Layer& layer) const {
    const std::uint64_t key = l_.key_dim, heads = l_.value_heads / l_.key_heads, value = heads * l_.value_dim;
    const std::uint64_t each = 2 * key + 2 * value, all = each * l_.key_heads;
    std::vector<Weights::Rows> queries, keys, values, gates;
    for (std::uint64_t h = 0; h < l_.key_heads; ++h) {
      queries.push_back({h * each, key});
      keys.push_back({h * each + key, key});
      values.push_back({h * each + 2 * key, value});
      gates.push_back({h * each + 2 * key + value, value});
    }
    queries.insert(queries.end(), keys.begin(), keys.end());
    queries.insert(queries.end(), values.begin(), values.end());
    layer.qkv = weights.gathered(qkvz, all, config_.hidden, queries);
    layer.z = weights.gathered(qkvz, all, config_.hidden, gates);
  }
  /// Splits a matrix that has, for each key head, the rates of its value heads, then their fading.
  void load_rates(const Weights& weights, const std::string& ba, Layer& layer) const {
    const std::uint64_t heads = l_.value_heads / l_.key_heads;
    std::vector<Weights::Rows> rates, fades;
    for (std::uint64_t h = 0; h < l_.key_heads; ++h) {
      rates.push_back({2 * h * heads, heads});
      fades.push_back({(2 * h + 1) * heads, heads});
    }
    layer.rate = weights.gathered(ba, 2ULL * l_.value_heads, config_.hidden, rates);
    layer.fade = weights.gathered(ba, 2ULL * l_.value_heads, config_.hidden, fades);
  }

  /// Scales queries and keys to length 1, then divides queries by the square root of their dimension.
  void lengths(float* x) const {
    const float scale = 1.0F / std::sqrt(static_cast<float>(l_.key_dim));
    for (std::uint32_t h = 0; h < 2 * l_.key_heads; ++h, x += l_.key_dim) {
      float squares = 0;
      for (std::uint32_t i = 0; i < l_.key_dim; ++i) squares += x[i] * x[i];
      const float by = 1.0F / std::sqrt(squares + length_epsilon) * (h < l_.key_heads ? scale : 1.0F);
      for (std::uint32_t i = 0; i < l_.key_dim; ++i) x[i] *= by;
    }
  }

  /// One token: updates the matrices of all heads, and reads them.
  void step(const Layer& layer, Eigen::Index row, Matrix& state) {
    const float *queries = qkv_.row(row).data(), *keys = queries + std::size_t{l_.key_heads} * l_.key_dim;
    const float* values = keys + std::size_t{l_.key_heads} * l_.key_dim;
    const std::uint64_t products = std::uint64_t{3} * l_.value_heads * l_.key_dim * l_.value_dim;
    share_work(&workers_, l_.value_heads, products, [&](std::uint32_t begin, std::uint32_t end) {
      Eigen::RowVectorXf change(l_.value_dim), given(l_.value_dim);
      for (std::uint32_t h = begin; h < end; ++h) {
        const std::size_t key_head = l_.tiled ? h % l_.key_heads : h / (l_.value_heads / l_.key_heads);
        const float *q = queries + key_head * l_.key_dim, *k = keys + key_head * l_.key_dim;
        const Eigen::Index first = Eigen::Index{h} * l_.key_dim;
        const float fade = std::exp(layer.fade_scale[h] * softplus(fade_(row, h) + layer.fade_bias[h])),
                    rate = sigmoid(rate_(row, h));
        change.setZero();
        for (std::uint32_t i = 0; i < l_.key_dim; ++i) {
          state.row(first + i) *= fade;
          change += k[i] * state.row(first + i);
        }
        change = (Eigen::Map<const Eigen::RowVectorXf>(values + std::size_t{h} * l_.value_dim, l_.value_dim) - change) *
                 rate;
        given.setZero();
        for (std::uint32_t i = 0; i < l_.key_dim; ++i) {
          state.row(first + i) += k[i] * change;
          given += q[i] * state.row(first + i);
        }
        rms_norm(given.data(), l_.value_dim, layer.norm, static_cast<float>(config_.norm_epsilon));
        float* to = made_.row(row).data() + std::size_t{h} * l_.value_dim;
        const float* gate = z_.row(row).data() + std::size_t{h} * l_.value_dim;
        for (std::uint32_t i = 0; i < l_.value_dim; ++i) to[i] = given[i] * silu(gate[i]);
      }
    });
  }

  const LinearAttention& l_;
  WorkerPool& workers_;
  PackedProduct& product_;
  std::vector<Layer> layers_;
  Matrix qkv_, z_, rate_, fade_, made_;  // scratch
};

}  // namespace

std::unique_ptr<CpuAttention> make_delta_attention(const ModelConfig& config, const Weights& weights,
                                                   WorkerPool& workers, PackedProduct& product) {
  return std::make_unique<DeltaAttention>(config, weights, workers, product);
}

}  // namespace ferry::engine
