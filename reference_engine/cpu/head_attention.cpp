#include <algorithm>
#include <optional>
#include <utility>

#include "cpu/cpu_attention.hpp"
#include "math/host_math.hpp"
#include "math/rotary.hpp"

namespace ferry::engine {
namespace {

/// Grouped-query attention: several heads of queries share a head of keys and values.
class HeadAttention final : public CpuAttention {
 public:
  HeadAttention(const ModelConfig& c, const Weights& weights, WorkerPool& workers, PackedProduct& product)
      : CpuAttention(c), product_(product), rotary_(c.rope) {
    if (c.window_rope) window_rotary_.emplace(*c.window_rope);
    for (std::uint32_t l = 0; l < c.layers; ++l) {
      Layer& layer = layers_.emplace_back();
      if (c.layer[l].linear) continue;
      const std::uint32_t dim = c.layer[l].head_dim, kv_heads = c.layer[l].kv_heads;
      const std::uint32_t q_width = c.heads * dim, kv_width = kv_heads * dim;
      layer.kernel = kernel_of(kv_heads, dim, workers);
      const auto matrix = [&](const char* name, std::uint32_t rows, std::uint32_t columns) {
        return weights.matrix(c.tensor(l, name), rows, columns);
      };
      const auto vector = [&](const std::string& name, std::uint32_t size) {
        return weights.vector(c.tensor(l, name), size);
      };
      const bool apart = !c.names.output_gate.empty();
      if (c.output_gate && !apart) {  // each head has its queries, then its gates
        const std::string both = c.tensor(l, "self_attn.q_proj.weight");
        std::vector<Weights::Rows> queries, gates;
        for (std::uint32_t h = 0; h < c.heads; ++h) {
          queries.push_back({2ULL * h * dim, dim});
          gates.push_back({(2ULL * h + 1) * dim, dim});
        }
        layer.q = weights.gathered(both, std::uint64_t{2} * q_width, c.hidden, queries);
        layer.gate = weights.gathered(both, std::uint64_t{2} * q_width, c.hidden, gates);
      } else {
        layer.q = matrix("self_attn.q_proj.weight", q_width, c.hidden);
        if (apart) layer.gate = weights.matrix(c.tensor(l, c.names.output_gate), q_width, c.hidden);
      }
      const bool own_values = !c.layer[l].keys_are_values;
      layer.k = matrix("self_attn.k_proj.weight", kv_width, c.hidden);
      if (own_values) layer.v = matrix("self_attn.v_proj.weight", kv_width, c.hidden);
      layer.o = weights.matrix(c.tensor(l, c.names.output + ".weight"), c.hidden, q_width);
      if (c.qkv_bias) {
        const bool together = c.output_gate && !apart;
        layer.q_bias = vector("self_attn.q_proj.bias", together ? 2 * q_width : q_width);
        if (together) part_biases(layer, dim);
        layer.k_bias = vector("self_attn.k_proj.bias", kv_width);
        if (own_values) layer.v_bias = vector("self_attn.v_proj.bias", kv_width);
      }
      if (c.output_bias) layer.o_bias = vector(c.names.output + ".bias", c.hidden);
      if (c.head_norm == HeadNorm::plain_behind_rope) {
        layer.q_norm = layer.k_norm = Vector::Ones(dim);
      } else if (c.head_norm != HeadNorm::none) {
        const bool all = c.head_norm == HeadNorm::all_before_rope;
        layer.q_norm = vector(c.names.q_norm, all ? q_width : dim);
        layer.k_norm = vector(c.names.k_norm, all ? kv_width : dim);
        if (c.norm == Norm::rms_plus_one) {
          layer.q_norm.array() += 1;
          layer.k_norm.array() += 1;
        }
      }
      if (c.value_norm) layer.v_norm = Vector::Ones(dim);
      if (c.sinks) layer.sinks = vector("self_attn.sinks", c.heads);
    }
  }

  void run(std::uint32_t index, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, const Matrix& normed,
           Matrix& out) override {
    const Layer& layer = layers_[index];
    const LayerConfig& l = config_.layer[index];
    if (l.keys_are_values) {
      product_.run(normed, {layer.q.times(q_), layer.k.times(k_)});
    } else if (config_.output_gate) {
      product_.run(normed, {layer.q.times(q_), layer.k.times(k_), layer.v.times(v_), layer.gate.times(gate_)});
    } else {
      product_.run(normed, {layer.q.times(q_), layer.k.times(k_), layer.v.times(v_)});
    }
    add_rows(q_, layer.q_bias);
    add_rows(k_, layer.k_bias);
    if (l.keys_are_values) {
      v_ = k_;
    } else {
      add_rows(v_, layer.v_bias);
    }
    if (config_.output_gate) add_rows(gate_, layer.gate_bias);
    for (Eigen::Index i = 0; i < q_.rows(); ++i) {
      const TokenRow& row = rows[static_cast<std::size_t>(i)];
      KvCache& cache = caches[row.sequence];
      Rotary* const rotary = !l.turns ? nullptr : l.window > 0 && window_rotary_ ? &*window_rotary_ : &rotary_;
      if (rotary != nullptr) rotary->set(row.position, cache.room.positions);
      finish(q_.row(i).data(), config_.heads, l.head_dim, layer.q_norm, rotary);
      finish(k_.row(i).data(), l.kv_heads, l.head_dim, layer.k_norm, rotary);
      if (config_.tuning.is_in(l.turns)) q_.row(i) *= config_.tuning.at(row.position);
      if (config_.clip > 0) clip(v_.row(i).data(), l.kv_heads * l.head_dim);
      for (std::uint32_t h = 0; config_.value_norm && h < l.kv_heads; ++h) {
        rms_norm(v_.row(i).data() + std::size_t{h} * l.head_dim, l.head_dim, layer.v_norm, epsilon());
      }
      const std::uint32_t place = cache.place(index, row.position), capacity = cache.capacity(index);
      keep(cache.keys[index], capacity, place, k_.row(i).data());
      keep(cache.values[index], capacity, place, v_.row(i).data());
    }
    const float* const sinks = config_.sinks ? layer.sinks.data() : nullptr;
    kernels_[layer.kernel].second.run(seen(index, rows, caches), q_, mixed_, sinks);
    if (config_.output_gate) {
      change_rows(gate_, [](auto&& row, Eigen::Index) { row = 1.0F + (-row).exp(); });
      mixed_.array() /= gate_.array();
    }
    layer.o.times(mixed_, product_, out);
    add_rows(out, layer.o_bias);
  }

 private:
  struct Layer {
    StoredMatrix q, k, v, o, gate;                     // [out, in]
    Vector q_bias, k_bias, v_bias, o_bias, gate_bias;  // empty: none
    Vector q_norm, k_norm, v_norm, sinks;
    std::size_t kernel = 0;  // index of the kernel for its shape
  };

  /// Index of the kernel for heads of this shape. Models have few shapes.
  std::size_t kernel_of(std::uint32_t kv_heads, std::uint32_t dim, WorkerPool& workers) {
    const std::pair<std::uint32_t, std::uint32_t> shape{kv_heads, dim};
    const auto found = std::find_if(kernels_.begin(), kernels_.end(), [&](const auto& k) { return k.first == shape; });
    if (found != kernels_.end()) return static_cast<std::size_t>(found - kernels_.begin());
    const auto scale = static_cast<float>(config_.attention_scale);
    kernels_.emplace_back(shape, AttentionKernel({config_.heads, kv_heads, dim, dim, dim, scale, config_.cache_type},
                                                 best_path(), &workers));
    return kernels_.size() - 1;
  }

  [[nodiscard]] float epsilon() const { return static_cast<float>(config_.norm_epsilon); }

  /// Splits biases in the way of the matrices: each head has those of its queries, then those of its gates.
  void part_biases(Layer& layer, Eigen::Index dim) const {
    const Vector both = layer.q_bias;
    layer.q_bias.resize(both.size() / 2);
    layer.gate_bias.resize(both.size() / 2);
    for (Eigen::Index h = 0; h < config_.heads; ++h) {
      layer.q_bias.segment(h * dim, dim) = both.segment(2 * h * dim, dim);
      layer.gate_bias.segment(h * dim, dim) = both.segment((2 * h + 1) * dim, dim);
    }
  }

  /// Norms, clips and rotates one token's queries or keys; `rotary` is null in layers without rotary positions.
  void finish(float* x, std::uint32_t heads, std::uint32_t dim, const Vector& norm, const Rotary* rotary) const {
    if (config_.head_norm == HeadNorm::all_before_rope) rms_norm(x, heads * dim, norm, epsilon());
    if (config_.clip > 0) clip(x, heads * dim);
    for (std::uint32_t h = 0; h < heads; ++h, x += dim) {
      if (config_.head_norm == HeadNorm::heads_before_rope) rms_norm(x, dim, norm, epsilon());
      if (rotary != nullptr) rotary->turn(x);
      const bool plain = config_.head_norm == HeadNorm::plain_behind_rope && rotary != nullptr;
      if (plain || config_.head_norm == HeadNorm::heads_behind_rope) rms_norm(x, dim, norm, epsilon());
    }
  }

  void clip(float* x, std::uint32_t size) const {
    const auto most = static_cast<float>(config_.clip);
    for (std::uint32_t i = 0; i < size; ++i) x[i] = std::min(std::max(x[i], -most), most);
  }

  std::vector<std::pair<std::pair<std::uint32_t, std::uint32_t>, AttentionKernel>>
      kernels_;  // by kv_heads and head_dim
  PackedProduct& product_;
  Rotary rotary_;
  std::optional<Rotary> window_rotary_;  // if layers with a window have their own
  std::vector<Layer> layers_;
  Matrix mixed_, q_, k_, v_, gate_;  // scratch
};

}  // namespace

std::unique_ptr<CpuAttention> make_head_attention(const ModelConfig& config, const Weights& weights,
                                                  WorkerPool& workers, PackedProduct& product) {
  return std::make_unique<HeadAttention>(config, weights, workers, product);
}

}  // namespace ferry::engine
