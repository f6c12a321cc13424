#include "cuda/device_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "support/errors.hpp"

namespace ferry::engine::cuda {
namespace {

/// Reorders the first `turned` rows of each head, which are rotated in pairs: the first rows of all pairs, then the second.
/// So pairs (0, 1), (2, 3), ... become (0, half), (1, half + 1), ...
void part_neighbours(std::byte* matrix, std::uint64_t row_bytes, std::uint32_t rows, std::uint32_t heads,
                     std::uint32_t turned) {
  std::vector<std::byte> head(row_bytes * turned);
  for (std::uint32_t h = 0; h < heads; ++h, matrix += row_bytes * (rows / heads)) {
    std::memcpy(head.data(), matrix, head.size());
    for (std::uint32_t r = 0; r < turned; ++r) {
      std::memcpy(matrix + (r % 2 * (turned / 2) + r / 2) * row_bytes, head.data() + r * row_bytes, row_bytes);
    }
  }
}

/// Writes numbers that are exact in bf16.
void write_bf16(const std::vector<float>& numbers, std::byte* to) {
  for (const float& number : numbers) {
    std::uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    const auto upper = static_cast<std::uint16_t>(bits >> 16U);
    std::memcpy(to, &upper, sizeof(upper));
    to += sizeof(upper);
  }
}

/// The first `count` rows of each head [each, columns], transposed: [columns, count].
std::vector<float> turned_rows(const std::vector<float>& all, std::uint32_t heads, std::uint32_t each,
                               std::uint32_t count, std::uint32_t columns) {
  std::vector<float> turned;
  turned.reserve(std::size_t{heads} * count * columns);
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t column = 0; column < columns; ++column) {
      for (std::size_t row = 0; row < count; ++row) turned.push_back(all[(h * each + row) * columns + column]);
    }
  }
  return turned;
}

/// The rows of each head [each, columns] from `first` on.
std::vector<float> last_rows(const std::vector<float>& all, std::uint32_t heads, std::uint32_t each,
                             std::uint32_t first, std::uint32_t columns) {
  std::vector<float> last;
  last.reserve(std::size_t{heads} * (each - first) * columns);
  for (std::size_t h = 0; h < heads; ++h) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>((h * each + first) * columns);
    last.insert(last.end(), begin, begin + static_cast<std::ptrdiff_t>(std::size_t{each - first} * columns));
  }
  return last;
}

/// Collects all parts with their sizes first, then allocates one block on the device and fills it part by part.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config) : checkpoint_(checkpoint), c_(config) {}

  DeviceWeights load(const std::shared_ptr<Account>& account) {
    check_sizes();
    want_around_layers();
    want_gates();
    w_.layers.resize(c_.layers);
    for (std::uint32_t l = 0; l < c_.layers; ++l) want_layer(l, w_.layers[l]);
    w_.block = DeviceBlock(size_, Use::weights, account);
    fill();
    if (c_.tied_embeddings) w_.head = w_.embedding;
    return std::move(w_);
  }

 private:
  struct Source {  // a tensor of the checkpoint
    std::string name;
    std::vector<std::uint64_t> shape;
  };
  struct Piece {
    std::uint32_t first, count;
  };
  struct Rows {  // part of a matrix that is put together from several tensors
    std::string name;
    std::uint32_t rows;
    std::uint32_t heads = 0;  ///< heads whose rows `part_neighbours` reorders; 0: none
    std::uint32_t all = 0;    ///< rows of the tensor if only `pieces` of it are taken; 0: all of them are
    std::vector<Piece> pieces{};
    [[nodiscard]] std::vector<std::uint64_t> shape(std::uint32_t columns) const {
      return {all > 0 ? all : rows, columns};
    }
  };
  /// `count` rows from `first` on, in each of the `heads` blocks of `each` rows that the tensor consists of.
  static Rows some_of(const std::string& name, std::uint32_t heads, std::uint32_t each, std::uint32_t first,
                      std::uint32_t count) {
    Rows made{name, heads * count, 0, heads * each};
    for (std::uint32_t h = 0; h < heads; ++h) made.pieces.push_back({h * each + first, count});
    return made;
  }
  struct Part {
    std::uint64_t at, bytes;
    std::function<void(std::byte*)> write;
    std::function<void(const std::byte*)> set;  ///< stores its device address
  };

  /// Reserves room for so many bytes, aligned to 256.
  void want(std::uint64_t bytes, std::function<void(std::byte*)> write, std::function<void(const std::byte*)> set) {
    parts_.push_back({size_, bytes, std::move(write), std::move(set)});
    size_ += (bytes + 255) / 256 * 256;
  }

  void fill() {
    std::vector<std::byte> staged;
    for (const Part& p : parts_) {
      staged.resize(p.bytes);
      p.write(staged.data());
      check(cudaMemcpy(w_.block.data() + p.at, staged.data(), p.bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
      p.set(w_.block.data() + p.at);
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // cudaMemcpy may return before all has landed
  }

  const Tensor& dense(const std::string& name, const std::vector<std::uint64_t>& shape) {
    const Tensor& t = checkpoint_.at(name, shape);
    w_.dense_bytes += t.bytes;
    w_.dense_weights += t.elements();
    return t;
  }
  /// Adds what weights take on the device beyond their `in_files` bytes in the file.
  void count_more(std::uint64_t bytes, std::uint64_t in_files) { w_.dense_bytes += bytes - std::min(bytes, in_files); }

  void want_floats(std::vector<float> values, const float*& to) {
    const std::uint64_t bytes = values.size() * sizeof(float);
    want(
        bytes, [values = std::move(values), bytes](std::byte* p) { std::memcpy(p, values.data(), bytes); },
        [&to](const std::byte* p) { to = reinterpret_cast<const float*>(p); });
  }
  void want_vector(const std::string& name, std::uint32_t size, const float*& to) {
    want_floats(dense(name, {size}).to_floats(), to);
  }
  /// Stacks matrices, so that one product computes them all. If their types differ, all become floats.
  void want_matrix(const std::vector<Rows>& parts, std::uint32_t columns, DenseWeight& to) {
    std::uint64_t bytes = 0;
    bool same = true;
    to = {nullptr, FloatType::f32, 0, columns};
    for (const Rows& part : parts) {
      const std::vector<std::uint64_t> shape = part.shape(columns);
      const Tensor& t = checkpoint_.at(part.name, shape);
      w_.dense_bytes += t.bytes / shape[0] * part.rows;
      w_.dense_weights += t.columns() * part.rows;
      const StoredType type = stored_type(t.stored());
      if (bytes == 0) to.type = type;
      same = same && type == to.type;
      bytes += t.stored_bytes() / shape[0] * part.rows;
      to.rows += part.rows;
    }
    if (!same) {
      const std::uint64_t in_files = bytes;
      to.type = FloatType::f32;
      bytes = std::uint64_t{to.rows} * columns * sizeof(float);
      count_more(bytes, in_files);
    }
    want(
        bytes, [this, parts, columns, same](std::byte* p) { write_rows(parts, columns, same, p); },
        [&to](const std::byte* p) { to.data = p; });
  }
  void want_matrix(const std::string& name, std::uint32_t rows, std::uint32_t columns, DenseWeight& to) {
    want_matrix({{name, rows}}, columns, to);
  }
  void write_rows(const std::vector<Rows>& parts, std::uint32_t columns, bool as_stored, std::byte* p) const {
    std::vector<std::byte> whole;
    for (const Rows& part : parts) {
      const std::vector<std::uint64_t> shape = part.shape(columns);
      const Tensor& t = checkpoint_.at(part.name, shape);
      const std::uint64_t bytes = as_stored ? t.stored_bytes() : t.elements() * sizeof(float), row = bytes / shape[0];
      std::byte* to = p;
      if (!part.pieces.empty()) {
        whole.resize(bytes);
        to = whole.data();
      }
      if (as_stored) {
        checkpoint_.read(part.name, shape, to);
      } else {
        const std::vector<float> values = t.to_floats();
        std::memcpy(to, values.data(), bytes);
      }
      std::byte* piece_at = p;
      for (const Piece& piece : part.pieces) {
        std::memcpy(piece_at, whole.data() + row * piece.first, row * piece.count);
        piece_at += row * piece.count;
      }
      if (part.heads > 0) part_neighbours(p, row, part.rows, part.heads, c_.rope.width);
      p += row * part.rows;
    }
  }

  std::vector<float> norm_weights(const std::string& name, std::uint32_t size) {
    std::vector<float> values = dense(name, {size}).to_floats();
    for (float& v : values) v += c_.norm == Norm::rms_plus_one ? 1.0F : 0.0F;
    return values;
  }
  void want_norm(const std::string& name, NormWeights& to) {
    want_floats(norm_weights(name + "weight", c_.hidden), to.weight);
    if (c_.norm == Norm::mean) want_vector(name + "bias", c_.hidden, to.bias);
  }
  /// A vector reordered like `part_neighbours` does; `heads` of 0: left as it is.
  [[nodiscard]] std::vector<float> parted(std::vector<float> values, std::uint32_t heads) const {
    if (heads > 0 && c_.rope.neighbours) {
      part_neighbours(reinterpret_cast<std::byte*>(values.data()), sizeof(float),
                      static_cast<std::uint32_t>(values.size()), heads, c_.rope.width);
    }
    return values;
  }

  void check_sizes() const {
    const bool wide = c_.latent.rank + c_.rope.width > most_latent_dim || (c_.latent.rank + c_.rope.width) % 2 != 0;
    if (c_.latent.rank > 0 && (wide || c_.latent.plain_dim > most_head_inputs)) {
      throw InputError(
          fmt::format("latent vectors of {} and {} numbers: the CUDA device computes an even number up to {}; "
                      "--device cpu computes them",
                      c_.latent.rank, c_.rope.width, most_latent_dim));
    }
    const bool linear = std::any_of(c_.layer.begin(), c_.layer.end(), [](const LayerConfig& l) { return l.linear; });
    if (linear && (c_.linear.kernel > most_delta_kernel || c_.linear.key_dim > most_delta_key)) {
      throw InputError(fmt::format(
          "layers whose convolution sees {} tokens{}: the CUDA device computes at most {} tokens, and keys of {} "
          "numbers; --device cpu computes them",
          c_.linear.kernel,
          c_.linear.rule == LinearRule::convolution ? "" : fmt::format(", and keys of {} numbers", c_.linear.key_dim),
          most_delta_kernel, most_delta_key));
    }
    const LayerConfig& widest =
        *std::max_element(c_.layer.begin(), c_.layer.end(),
                          [](const LayerConfig& a, const LayerConfig& b) { return a.head_dim < b.head_dim; });
    const bool heads = c_.latent.rank == 0 && (widest.head_dim > most_head_dim || widest.head_dim % 2 != 0);
    if (c_.experts > most_experts || heads) {
      throw InputError(
          fmt::format("{} experts a layer and heads of {}: the CUDA device computes at most {}, and an even "
                      "number up to {}; --device cpu computes them",
                      c_.experts, widest.head_dim, most_experts, most_head_dim));
    }
  }

  void want_around_layers() {
    want_matrix(c_.names.model + "embed_tokens.weight", c_.vocabulary, c_.hidden, w_.embedding);
    if (!c_.tied_embeddings) want_matrix(c_.names.head + "weight", c_.vocabulary, c_.hidden, w_.head);
    if (c_.head_bias) want_vector(c_.names.head + "bias", c_.vocabulary, w_.head_bias);
    want_norm(c_.names.model + c_.names.norm + ".", w_.norm);
    if (!c_.names.experts_norm.empty()) want_floats(std::vector<float>(c_.hidden, 1.0F), w_.plain.weight);
    want_frequencies(c_.rope, w_.frequency);
    if (c_.window_rope) want_frequencies(*c_.window_rope, w_.window_frequency);
  }
  void want_frequencies(const Rope& rope, Frequencies& to) {
    want_floats({rope.frequency.begin(), rope.frequency.end()}, to.usual);
    if (rope.long_from > 0) want_floats({rope.long_frequency.begin(), rope.long_frequency.end()}, to.of_long);
  }

  /// The gates of all layers in one block. `Model` has already counted their stored bytes.
  void want_gates() {
    w_.gates = {nullptr, FloatType::bf16, c_.moe_layer_count() * c_.experts, c_.hidden};
    if (!c_.names.gate_scale.empty()) return want_scaled_gates();
    for (std::uint32_t m = 0; m < c_.moe_layer_count(); ++m) {
      const std::string name = c_.gate_name(m);
      const Tensor& t = checkpoint_.at(name, {c_.experts, c_.hidden});
      const StoredType type = float_type(t, name);
      if (m == 0) w_.gates.type = type;
      if (!(type == w_.gates.type)) {
        throw InputError(
            fmt::format("tensor \"{}\" is {}, expected the type of the first layer's gate; --device cpu computes it",
                        name, t.dtype_name));
      }
      w_.gate_bytes = t.bytes;
    }
    if (w_.gate_bytes % 16 != 0) {
      throw InputError(
          fmt::format("{} experts of hidden size {}: the CUDA device needs gates of a multiple of 16 bytes, "
                      "these have {}; --device cpu computes them",
                      c_.experts, c_.hidden, w_.gate_bytes));
    }
    want(
        w_.gate_bytes * c_.moe_layer_count(),
        [this](std::byte* p) {
          for (std::uint32_t m = 0; m < c_.moe_layer_count(); ++m, p += w_.gate_bytes) {
            checkpoint_.read(c_.gate_name(m), {c_.experts, c_.hidden}, p);
          }
        },
        [this](const std::byte* p) { w_.gates.data = p; });
  }

  /// Gates as floats with their columns scaled, so that any gate can read any layer's input.
  void want_scaled_gates() {
    w_.gates.type = FloatType::f32;
    w_.gate_bytes = std::uint64_t{c_.experts} * c_.hidden * sizeof(float);
    for (std::uint32_t m = 0; m < c_.moe_layer_count(); ++m) {
      count_more(w_.gate_bytes, checkpoint_.at(c_.gate_name(m), {c_.experts, c_.hidden}).bytes);
    }
    want(
        w_.gate_bytes * c_.moe_layer_count(),
        [this](std::byte* p) {
          for (std::uint32_t m = 0; m < c_.moe_layer_count(); ++m, p += w_.gate_bytes) {
            const std::vector<float> gate = scaled_gate(checkpoint_, c_, m);
            std::memcpy(p, gate.data(), w_.gate_bytes);
          }
        },
        [this](const std::byte* p) { w_.gates.data = p; });
  }

  void want_layer(std::uint32_t l, LayerWeights& layer) {
    const bool both = c_.norm_place == NormPlace::both, behind = c_.norm_place == NormPlace::behind;
    want_norm(c_.tensor(l, c_.names.attention_norm + "."), behind ? layer.attention_behind : layer.attention_norm);
    want_norm(c_.tensor(l, c_.names.mlp_norm + "."), behind ? layer.mlp_behind : layer.mlp_norm);
    if (both) {
      want_norm(c_.tensor(l, c_.names.attention_norm_behind + "."), layer.attention_behind);
      want_norm(c_.tensor(l, c_.names.mlp_norm_behind + "."), layer.mlp_behind);
    }
    if (!c_.names.experts_norm.empty()) {
      want_norm(c_.tensor(l, c_.names.experts_norm + "."), layer.experts_norm);
      want_norm(c_.tensor(l, c_.names.experts_norm_behind + "."), layer.experts_behind);
      want_norm(c_.tensor(l, c_.names.shared_norm_behind + "."), layer.shared_behind);
    }
    if (!c_.names.layer_scale.empty()) {
      layer.scale = dense(c_.tensor(l, c_.names.layer_scale), {1}).to_floats()[0];
    }
    want_mlp(l, layer);
    if (c_.layer[l].linear)
      return c_.linear.rule == LinearRule::convolution ? want_convolution(l, layer) : want_delta(l, layer);
    if (c_.latent.rank > 0) {
      want_latent(l, layer);
    } else {
      want_heads(l, layer);
    }
    const std::uint32_t mixed = c_.heads * (c_.latent.rank > 0 ? c_.value_dim : c_.layer[l].head_dim);
    want_matrix(c_.tensor(l, c_.names.output + ".weight"), c_.hidden, mixed, layer.o);
    if (c_.output_bias || c_.latent.bias) want_vector(c_.tensor(l, c_.names.output + ".bias"), c_.hidden, layer.o_bias);
    if (c_.sinks) want_vector(c_.tensor(l, "self_attn.sinks"), c_.heads, layer.sinks);
  }

  /// Queries, keys and values of attention that is not latent.
  void want_heads(std::uint32_t l, LayerWeights& layer) {
    const auto at = [&](const std::string& name) { return c_.tensor(l, name); };
    const std::uint32_t dim = c_.layer[l].head_dim, kv_heads = c_.layer[l].kv_heads;
    const std::uint32_t q_width = c_.heads * dim, kv_width = kv_heads * dim;
    const bool neighbours = c_.rope.neighbours;
    const std::string values_of = c_.layer[l].keys_are_values ? "k" : "v";  // the same before norms
    const bool gated = c_.output_gate && c_.names.output_gate.empty();      // heads: queries, then gates
    Rows queries{at("self_attn.q_proj.weight"), q_width};
    if (gated) {
      queries = some_of(queries.name, c_.heads, 2 * dim, 0, dim);
      want_matrix({some_of(queries.name, c_.heads, 2 * dim, dim, dim)}, c_.hidden, layer.output_gate);
    } else if (c_.output_gate) {
      want_matrix(at(c_.names.output_gate), q_width, c_.hidden, layer.output_gate);
    }
    queries.heads = neighbours ? c_.heads : 0;
    want_matrix({queries,
                 {at("self_attn.k_proj.weight"), kv_width, neighbours ? kv_heads : 0},
                 {at("self_attn." + values_of + "_proj.weight"), kv_width}},
                c_.hidden, layer.qkv);
    if (c_.qkv_bias) {
      std::vector<float> bias;
      for (const Rows& part :
           {Rows{"q", q_width, c_.heads}, Rows{"k", kv_width, kv_heads}, Rows{values_of, kv_width}}) {
        const std::string name = at(fmt::format("self_attn.{}_proj.bias", part.name));
        const bool both = gated && part.name == "q";
        std::vector<float> values = dense(name, {both ? 2 * q_width : part.rows}).to_floats();
        if (both) values = take_gates(values, dim, layer);
        values = parted(std::move(values), part.heads);
        bias.insert(bias.end(), values.begin(), values.end());
      }
      want_floats(std::move(bias), layer.qkv_bias);
    }
    if (c_.head_norm == HeadNorm::plain_behind_rope) {
      want_floats(std::vector<float>(dim, 1.0F), layer.q_norm);
      want_floats(std::vector<float>(dim, 1.0F), layer.k_norm);
    } else if (c_.head_norm != HeadNorm::none) {
      const bool all = c_.head_norm == HeadNorm::all_before_rope;
      want_floats(parted(norm_weights(at(c_.names.q_norm), all ? q_width : dim), all ? c_.heads : 1), layer.q_norm);
      want_floats(parted(norm_weights(at(c_.names.k_norm), all ? kv_width : dim), all ? kv_heads : 1), layer.k_norm);
    }
  }

  /// Splits biases, of which each head has those of its queries, then those of its gates. Returns those of queries.
  std::vector<float> take_gates(const std::vector<float>& both, std::uint32_t dim, LayerWeights& layer) {
    std::vector<float> queries, gates;
    for (std::uint32_t i = 0; i < both.size(); ++i) {
      (i / dim % 2 == 0 ? queries : gates).push_back(both[i]);
    }
    want_floats(std::move(gates), layer.output_gate_bias);
    return queries;
  }

  void want_kernel(const std::string& name, std::uint32_t channels, LayerWeights& layer) {
    std::vector<std::uint64_t> shape{channels, c_.linear.kernel};
    if (!c_.linear.flat) shape.insert(shape.begin() + 1, 1);
    want_floats(turned_rows(dense(name, shape).to_floats(), 1, channels, channels, c_.linear.kernel),
                layer.delta.kernel);
  }
  void want_convolution(std::uint32_t l, LayerWeights& layer) {
    const auto at = [&](const char* name) { return c_.tensor(l, std::string("conv.") + name); };
    want_matrix(at("in_proj.weight"), 3 * c_.hidden, c_.hidden, layer.qkv);
    want_matrix(at("out_proj.weight"), c_.hidden, c_.hidden, layer.o);
    want_kernel(at("conv.weight"), c_.hidden, layer);
  }

  /// What the gated delta rule needs, read in the same way as by the CPU's `DeltaAttention`.
  void want_delta(std::uint32_t l, LayerWeights& layer) {
    const LinearAttention& d = c_.linear;
    const auto at = [&](const char* name) { return c_.tensor(l, std::string("linear_attn.") + name); };
    const std::uint32_t width = d.value_heads * d.value_dim, heads = d.value_heads / d.key_heads;
    const std::uint32_t key = d.key_dim, value = heads * d.value_dim, each = 2 * key + 2 * value;
    const std::string split = at("in_proj_qkv.weight");
    if (d.fused && checkpoint_.find(split) == nullptr) {  // each key head has queries, keys, values and gates
      const auto part = [&](std::uint32_t first, std::uint32_t count) {
        return some_of(at("in_proj_qkvz.weight"), d.key_heads, each, first, count);
      };
      want_matrix({part(0, key), part(key, key), part(2 * key, value)}, c_.hidden, layer.qkv);
      want_matrix({part(2 * key + value, value)}, c_.hidden, layer.output_gate);
    } else {
      want_matrix(split, d.channels(), c_.hidden, layer.qkv);
      want_matrix(at("in_proj_z.weight"), width, c_.hidden, layer.output_gate);
    }
    if (d.fused) {  // each key head has its value heads' rates, then their fading
      want_matrix({some_of(at("in_proj_ba.weight"), d.key_heads, 2 * heads, 0, heads),
                   some_of(at("in_proj_ba.weight"), d.key_heads, 2 * heads, heads, heads)},
                  c_.hidden, layer.rates);
    } else {
      want_matrix({{at("in_proj_b.weight"), d.value_heads}, {at("in_proj_a.weight"), d.value_heads}}, c_.hidden,
                  layer.rates);
    }
    want_matrix(at("out_proj.weight"), c_.hidden, width, layer.o);
    want_kernel(at("conv1d.weight"), d.channels(), layer);
    const bool flat = checkpoint_.find(at("A")) != nullptr;  // as GGUF has it
    std::vector<float> scale = dense(at(flat ? "A" : "A_log"), {d.value_heads}).to_floats();
    for (float& v : scale) v = flat ? v : -std::exp(v);
    want_floats(std::move(scale), layer.delta.fade_scale);
    want_vector(at("dt_bias"), d.value_heads, layer.delta.fade_bias);
    want_vector(at("norm.weight"), d.value_dim, layer.delta.norm);
    layer.delta.epsilon = static_cast<float>(c_.norm_epsilon);
  }

  /// The projections to latent vectors, and each head's projections from them.
  void want_latent(std::uint32_t l, LayerWeights& layer) {
    const auto at = [&](const std::string& name) { return c_.tensor(l, "self_attn." + name); };
    const std::uint32_t rank = c_.latent.rank, width = rank + c_.rope.width, q_width = c_.heads * c_.head_dim;
    if (c_.latent.query_rank > 0) {
      want_matrix(at("q_a_proj.weight"), c_.latent.query_rank, c_.hidden, layer.q_down);
      want_vector(at("q_a_layernorm.weight"), c_.latent.query_rank, layer.q_down_norm);
      if (c_.latent.bias) want_vector(at("q_a_proj.bias"), c_.latent.query_rank, layer.q_down_bias);
      want_matrix(at("q_b_proj.weight"), q_width, c_.latent.query_rank, layer.q);
    } else {
      want_matrix(at("q_proj.weight"), q_width, c_.hidden, layer.q);
    }
    want_matrix(at("kv_a_proj_with_mqa.weight"), width, c_.hidden, layer.kv_down);
    want_vector(at("kv_a_layernorm.weight"), rank, layer.kv_norm);
    if (c_.latent.bias) want_vector(at("kv_a_proj_with_mqa.bias"), width, layer.kv_bias);
    want_latent_heads(l, layer);
  }
  /// The heads' projections, in bf16 if that is exact, else as floats.
  void want_latent_heads(std::uint32_t l, LayerWeights& layer) {
    const auto at = [&](const std::string& name) { return c_.tensor(l, "self_attn." + name); };
    const std::uint32_t rank = c_.latent.rank, plain = c_.latent.plain_dim, each = plain + c_.value_dim;
    const bool apart = checkpoint_.find(at("k_b_proj.weight")) != nullptr;  // as newer GGUF files have them
    const Source up{at("kv_b_proj.weight"), {std::uint64_t{c_.heads} * each, rank}};
    const Source keys = apart ? Source{at("k_b_proj.weight"), {c_.heads, rank, plain}} : up;
    const Source values = apart ? Source{at("v_b_proj.weight"), {c_.heads, c_.value_dim, rank}} : up;
    bool bf16 = true;
    std::uint64_t in_files = 0;
    for (const Source* source : {&keys, &values}) {
      if (source == &values && !apart) break;
      const Tensor& t = dense(source->name, source->shape);
      bf16 = bf16 && stored_type(t.stored()) == StoredType(FloatType::bf16);
      in_files += t.stored_bytes();
    }
    layer.heads_type = bf16 ? FloatType::bf16 : FloatType::f32;
    const std::uint64_t row_bytes = std::uint64_t{bf16 ? 2U : 4U} * c_.heads * rank;  // of all heads
    count_more(row_bytes * each, in_files);
    const auto put = [bf16](const std::vector<float>& numbers, std::byte* to) {
      if (bf16) return write_bf16(numbers, to);
      std::memcpy(to, numbers.data(), numbers.size() * sizeof(float));
    };
    want(
        row_bytes * plain,
        [=, this](std::byte* p) {
          const std::vector<float> of = checkpoint_.at(keys.name, keys.shape).to_floats();
          put(apart ? of : turned_rows(of, c_.heads, each, plain, rank), p);
        },
        [&layer](const std::byte* p) { layer.keys = p; });
    want(
        row_bytes * c_.value_dim,
        [=, this](std::byte* p) {
          const std::vector<float> of = checkpoint_.at(values.name, values.shape).to_floats();
          put(apart ? of : last_rows(of, c_.heads, each, plain, rank), p);
        },
        [&layer](const std::byte* p) { layer.values = p; });
  }

  /// A layer's MLP, or its shared expert, if it has one.
  void want_mlp(std::uint32_t l, LayerWeights& layer) {
    const auto at = [&](const std::string& name) { return c_.tensor(l, name); };
    const bool moe = c_.layer[l].moe;
    const std::uint32_t width = moe ? c_.shared_width : c_.dense_width;
    if (width == 0) return;
    if (moe && !c_.names.shared_scale.empty()) want_matrix(at(c_.names.shared_scale), 1, c_.hidden, layer.shared_scale);
    std::vector<Source> matrices;
    if (moe && !c_.names.shared_fused[0].empty()) {  // gate above up
      matrices = {{at(c_.names.shared_fused[0]), {2ULL * width, c_.hidden}},
                  {at(c_.names.shared_fused[1]), {c_.hidden, width}}};
    } else {
      const std::string& prefix = moe ? c_.names.shared : c_.names.dense;
      const auto part = [&](std::size_t i) { return at(prefix + c_.names.mlp_parts[i] + ".weight"); };
      matrices = {{part(0), {width, c_.hidden}}, {part(1), {width, c_.hidden}}, {part(2), {c_.hidden, width}}};
    }
    std::uint64_t bytes = 0;
    std::vector<StoredType> types;
    for (const Source& m : matrices) {
      const Tensor& t = dense(m.name, m.shape);
      types.push_back(stored_type(t.stored()));
      if (types.size() == 2 && matrices.size() == 3 && !(types[1] == types[0])) {
        throw InputError(
            fmt::format("tensor \"{}\" is {}, expected the type of the same expert's gate; --device cpu computes it",
                        m.name, t.dtype_name));
      }
      bytes += t.stored_bytes();
    }
    layer.mlp_shape = {c_.hidden, width, types.front(), 64, types.back()};
    layer.mlp_shape.activation.gelu = c_.glu.gelu;
    want(
        bytes,
        [this, matrices](std::byte* p) {
          for (const Source& m : matrices) {
            checkpoint_.read(m.name, m.shape, p);
            p += checkpoint_.at(m.name, m.shape).stored_bytes();
          }
        },
        [&layer](const std::byte* p) { layer.mlp = p; });
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& c_;
  DeviceWeights w_;
  std::vector<Part> parts_;
  std::uint64_t size_ = 0;
};

}  // namespace

DeviceWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                           const std::shared_ptr<Account>& account) {
  return Loader(checkpoint, config).load(account);
}

}  // namespace ferry::engine::cuda
