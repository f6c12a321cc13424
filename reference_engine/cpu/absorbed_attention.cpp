#include <algorithm>
#include <utility>

#include "cpu/cpu_attention.hpp"
#include "math/host_math.hpp"
#include "math/rotary.hpp"

namespace ferry::engine {
namespace {

/// DeepSeek's code has this for the norms of latent vectors, whatever epsilon config.json has for the others.
constexpr float latent_epsilon = 1e-6F;

/// The cache holds one latent vector a token, which stands for the keys and values of all heads, and a rotated key that all
/// heads share. Keys and values are never made: queries are multiplied by the matrix that would make keys, and the weighted
/// sums of latent vectors by the one that would make values. (DeepSeek-V2, section 2.1.2: "absorbed".)
class AbsorbedAttention final : public CpuAttention {
 public:
  AbsorbedAttention(const ModelConfig& c, const Weights& weights, WorkerPool& workers, PackedProduct& product)
      : CpuAttention(c),
        kernel_({c.heads, 1, c.latent.rank + c.rope.width, c.latent.rank, c.latent.rank + c.rope.width,
                 static_cast<float>(c.attention_scale), c.cache_type},
                best_path(), &workers),
        product_(product),
        rotary_(c.rope) {
    const std::uint32_t rank = c.latent.rank, plain = c.latent.plain_dim, each = plain + c.value_dim;
    for (std::uint32_t l = 0; l < c.layers; ++l) {
      Layer layer;
      const auto matrix = [&](const char* name, std::uint32_t rows, std::uint32_t columns) {
        return weights.matrix(c.tensor(l, name), rows, columns);
      };
      const std::uint32_t q_width = c.heads * c.head_dim;
      if (c.latent.query_rank > 0) {
        layer.q_down = matrix("self_attn.q_a_proj.weight", c.latent.query_rank, c.hidden);
        layer.q_norm = weights.vector(c.tensor(l, "self_attn.q_a_layernorm.weight"), c.latent.query_rank);
        layer.q = matrix("self_attn.q_b_proj.weight", q_width, c.latent.query_rank);
      } else {
        layer.q = matrix("self_attn.q_proj.weight", q_width, c.hidden);
      }
      layer.kv_down = matrix("self_attn.kv_a_proj_with_mqa.weight", rank + c.rope.width, c.hidden);
      layer.kv_norm = weights.vector(c.tensor(l, "self_attn.kv_a_layernorm.weight"), rank);
      layer.o = matrix("self_attn.o_proj.weight", c.hidden, c.heads * c.value_dim);
      if (c.latent.bias) {
        const auto vector = [&](const char* name, std::uint32_t size) {
          return weights.vector(c.tensor(l, name), size);
        };
        if (c.latent.query_rank > 0) layer.q_bias = vector("self_attn.q_a_proj.bias", c.latent.query_rank);
        layer.kv_bias = vector("self_attn.kv_a_proj_with_mqa.bias", rank + c.rope.width);
        layer.o_bias = vector("self_attn.o_proj.bias", c.hidden);
      }
      const std::string up = c.tensor(l, "self_attn.kv_b_proj.weight");
      const std::string keys = c.tensor(l, "self_attn.k_b_proj.weight"),
                        values = c.tensor(l, "self_attn.v_b_proj.weight");
      const bool apart = weights.has(keys);  // as newer GGUF files have them
      for (std::uint32_t h = 0; h < c.heads; ++h) {
        if (apart) {
          layer.keys.push_back(weights.matrix_of(keys, c.heads, rank, plain, h));
          layer.values.push_back(weights.matrix_of(values, c.heads, c.value_dim, rank, h));
          continue;
        }
        const std::uint64_t all = std::uint64_t{c.heads} * each, first = std::uint64_t{h} * each;
        layer.keys.push_back(weights.columns_of(up, all, rank, first, plain));
        layer.values.push_back(weights.rows_of(up, all, rank, first + plain, c.value_dim));
      }
      layers_.push_back(std::move(layer));
    }
  }

  void run(std::uint32_t index, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, const Matrix& normed,
           Matrix& out) override {
    const Layer& layer = layers_[index];
    const std::uint32_t rank = config_.latent.rank, plain = config_.latent.plain_dim, turned = config_.rope.width;
    const std::uint32_t heads = config_.heads, width = rank + turned;
    if (config_.latent.query_rank > 0) {
      product_.run(normed, {layer.q_down.times(down_), layer.kv_down.times(latent_)});
      add_rows(down_, layer.q_bias);
      rms_norm(down_, layer.q_norm, latent_epsilon, down_normed_);
      layer.q.times(down_normed_, product_, q_);
    } else {
      product_.run(normed, {layer.q.times(q_), layer.kv_down.times(latent_)});
    }
    add_rows(latent_, layer.kv_bias);
    const Eigen::Index count = q_.rows();
    resize(plain_, count * heads, plain);
    resize(queries_, count, Eigen::Index{heads} * width);
    for (Eigen::Index i = 0; i < count; ++i) {
      const TokenRow& row = rows[static_cast<std::size_t>(i)];
      KvCache& cache = caches[row.sequence];
      rotary_.set(row.position, cache.room.positions);
      float* latent = latent_.row(i).data();
      rms_norm(latent, rank, layer.kv_norm, latent_epsilon);
      rotary_.turn(latent + rank);
      keep(cache.keys[index], cache.capacity(index), cache.place(index, row.position), latent);
      if (config_.tuning.is_in(true)) q_.row(i) *= config_.tuning.at(row.position);  // its rotated part, too
      for (std::uint32_t h = 0; h < heads; ++h) {
        float* own = q_.row(i).data() + std::size_t{h} * (plain + turned);
        rotary_.turn(own + plain);
        std::copy_n(own, plain, plain_.row(i * heads + h).data());
        std::copy_n(own + plain, turned, queries_.row(i).data() + std::size_t{h} * width + rank);
      }
    }
    each_head(layer.keys, plain_, by_head_);
    for (Eigen::Index i = 0; i < count; ++i) {
      for (std::uint32_t h = 0; h < heads; ++h) {
        std::copy_n(by_head_.row(h * count + i).data(), rank, queries_.row(i).data() + std::size_t{h} * width);
      }
    }
    kernel_.run(seen(index, rows, caches), queries_, mixed_);
    resize(of_heads_, count * heads, rank);
    of_heads_ = Eigen::Map<const Matrix>(mixed_.data(), count * heads, rank);
    each_head(layer.values, of_heads_, by_head_);
    resize(made_, count, Eigen::Index{heads} * config_.value_dim);
    for (Eigen::Index i = 0; i < count; ++i) {
      for (std::uint32_t h = 0; h < heads; ++h) {
        std::copy_n(by_head_.row(h * count + i).data(), config_.value_dim,
                    made_.row(i).data() + std::size_t{h} * config_.value_dim);
      }
    }
    layer.o.times(made_, product_, out);
    add_rows(out, layer.o_bias);
  }

 private:
  struct Layer {
    StoredMatrix q_down, q, kv_down, o;
    Vector q_norm, kv_norm;
    Vector q_bias, kv_bias, o_bias;          // empty: none; of q_down, kv_down and o
    std::vector<StoredMatrix> keys, values;  // [heads] of [rank, plain], of [value_dim, rank]
  };

  /// x: [rows * heads, in], a row's heads adjacent; y: [heads * rows, out], a head's rows adjacent.
  void each_head(const std::vector<StoredMatrix>& w, const Matrix& x, Matrix& y) {
    const auto heads = static_cast<std::uint32_t>(w.size());
    const auto rows = static_cast<std::uint32_t>(x.rows() / heads);
    resize(y, x.rows(), w[0].rows());
    which_.resize(std::size_t{heads} * rows);
    inputs_of_heads_.resize(heads);
    inputs_.clear();
    products_.clear();
    for (std::uint32_t h = 0; h < heads; ++h) {
      for (std::uint32_t r = 0; r < rows; ++r) which_[std::size_t{h} * rows + r] = r * heads + h;
      inputs_.push_back({.w = w[h].layout(),
                         .x = x.data(),
                         .rows = rows,
                         .which = &which_[std::size_t{h} * rows],
                         .to = &inputs_of_heads_[h]});
      products_.push_back({w[h].layout(), w[h].bytes(), &inputs_of_heads_[h], y.row(Eigen::Index{h} * rows).data()});
    }
    product_.prepare(inputs_);
    product_.multiply(products_);
  }

  AttentionKernel kernel_;
  PackedProduct& product_;
  Rotary rotary_;
  std::vector<Layer> layers_;
  Matrix mixed_;
  // scratch
  Matrix q_, down_, down_normed_, latent_, plain_, queries_, by_head_, of_heads_, made_;
  std::vector<std::uint32_t> which_;
  std::vector<part::Rows> inputs_of_heads_;
  std::vector<PackedProduct::Input> inputs_;
  std::vector<PackedProduct::Product> products_;
};

}  // namespace

std::unique_ptr<CpuAttention> make_absorbed_attention(const ModelConfig& config, const Weights& weights,
                                                      WorkerPool& workers, PackedProduct& product) {
  return std::make_unique<AbsorbedAttention>(config, weights, workers, product);
}

}  // namespace ferry::engine
