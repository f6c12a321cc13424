/// @file
/// What the CUDA device computes, as functions that launch kernels. All tensors are float32, row-major, in device
/// memory.
///
/// Everything is asynchronous on the caller's stream. Functions throw std::invalid_argument for sizes that they cannot
/// do, and std::runtime_error, with the kernel's or function's name, if CUDA or cuBLAS refuses the work.
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "ferry/codec/blocks.hpp"
#include "ferry/codec/packed.hpp"
#include "ferry/codec/pass_through.hpp"
#include "ferry/macros.hpp"
#include "ferry/model.hpp"

namespace ferry::engine::cuda {

/// Up to so many rows are multiplied straight from the stored weights: a row's result is then, bit for bit, what it
/// would be alone. More rows go through cuBLAS, which makes no such promise.
inline constexpr std::uint32_t few_rows = 8;
inline constexpr std::uint32_t most_experts = 512;      ///< of a gate
inline constexpr std::uint32_t most_head_dim = 512;     ///< of attention
inline constexpr std::uint32_t most_latent_dim = 640;   ///< of attention to latent vectors, with their turned part
inline constexpr std::uint32_t most_head_inputs = 640;  ///< of products by head
inline constexpr std::uint32_t most_delta_key = 256;    ///< of a head's keys by the delta rule
inline constexpr std::uint32_t most_delta_kernel = 8;   ///< tokens that its convolution sees

/// What launches share.
struct Context {
  cudaStream_t stream = nullptr;
  cublasHandle_t blas = nullptr;     ///< on that stream, in its default math and pointer modes
  float* scratch = nullptr;          ///< for weights on their way into cuBLAS as floats; 16-byte aligned
  std::uint64_t scratch_floats = 0;  ///< at least the longest row of a weight; the more, the fewer launches
};

/// What a checkpoint's weights are stored as: numbers, or blocks.
struct StoredType {
  constexpr StoredType(FloatType type = FloatType::bf16) : number(type) {}  // NOLINT: either is one
  constexpr StoredType(BlockType type) : blocks(true), block(type) {}       // NOLINT
  bool blocks = false;
  FloatType number = FloatType::bf16;
  BlockType block = BlockType::q8_0;
  friend constexpr bool operator==(const StoredType& a, const StoredType& b) {
    return a.blocks == b.blocks && (a.blocks ? a.block == b.block : a.number == b.number);
  }
};

/// A weight [rows, columns], or [out, in], that every token needs, as its checkpoint stores it.
struct DenseWeight {
  const std::byte* data = nullptr;  ///< 16-byte aligned
  StoredType type = FloatType::bf16;
  std::uint32_t rows = 0, columns = 0;
};

/// Numbers that come before some part of a cache, for each position.
struct CacheNumbers {
  std::uint64_t whole = 0;   ///< of layers that have all positions
  std::uint64_t recent = 0;  ///< of layers that have only the last positions
};

/// One row of a step, on the device.
struct RowPlace {
  /// Its sequence's: for each layer that has keys and values [2 (keys, values), positions, kv_heads * head_dim]; then what the
  /// other layers remember.
  float* cache = nullptr;
  std::uint32_t capacity = 0;  ///< positions of a layer that has all of them
  std::uint32_t position = 0;  ///< below capacity
  std::uint32_t token = 0;
  std::uint32_t recent = 0;  ///< positions of a layer that has only the last; each replaces the one so many before it

  /// The part of its cache behind these numbers.
  [[nodiscard]] FERRY_HD float* behind(const CacheNumbers& before) const {
    return cache + before.whole * capacity + before.recent * recent;
  }
};

struct AttentionShape {
  std::uint32_t heads = 0, kv_heads = 0;  ///< heads is a multiple of kv_heads
  std::uint32_t head_dim = 0;             ///< of queries and keys: even, at most most_head_dim, or most_latent_dim
  float scale = 0;                        ///< of a query's product with a key; 0: 1 / sqrt(head_dim)
  std::uint32_t window = 0;               ///< positions that one attends to, its own the last; 0: all up to it
  const float* sinks =
      nullptr;              ///< [heads]: a score of each that takes a share of the attention and gives nothing; or null
  std::uint32_t chunk = 0;  ///< positions of a chunk, which attend to each other up to their own; 0: all are one
  bool recent =
      false;  ///< caches have the last positions alone: these at least that are attended to, with all of a step
  /// The values are the first so many columns of the keys, which are all that a cache holds; 0: they lie behind the keys.
  std::uint32_t latent = 0;
};

/// Multiplies by log(1 + floor((position + first) / floor)) * by + 1 at a position; with a `by` of 0 not at all.
struct Growth {
  float by = 0, floor = 1, first = 0;
};

/// What is done to each head of queries and keys before they meet, in this order: bounds, which apply to values, too; a norm
/// and the rotary embedding, in this order or, with `norm_behind`, the other way round.
struct Preparation {
  const float* frequency = nullptr;  ///< [turned / 2], radians a position
  std::uint32_t turned = 0;          ///< columns from a head's first on, of which the two halves are the pairs; even
  float factor = 1;                  ///< of turned columns
  /// Sequences that have room for more positions than that use the numbers below; 0: none do.
  std::uint32_t long_from = 0;
  const float* long_frequency = nullptr;
  float long_factor = 1;
  const float *q_norm = nullptr, *k_norm = nullptr;  ///< [head_dim]; null: no norm
  bool norm_behind = false;                          ///< the rotary embedding
  bool value_norm = false;                           ///< values have one, too, without weights
  float epsilon = 0;                                 ///< of norms
  float clip = 0;                                    ///< everything is kept within -clip and clip; 0: nothing is
  Growth growth{};                                   ///< of queries
};

/// Whether this build has code that the current device can run; if not, what CUDA says.
cudaError_t has_code();

/// Copies `bytes` from any host memory, which may be used again on return. They go as arguments of kernels and not through a
/// copy engine, where they would queue behind experts. For descriptors: about 3.5 KiB a launch.
void put(cudaStream_t stream, void* to, const void* from, std::size_t bytes);

/// x [n, hidden]: the row of `table` [vocabulary, hidden] for each row's token, times `scale`.
void embed(cudaStream_t stream, const DenseWeight& table, const RowPlace* rows, std::uint32_t n, float scale, float* x);

/// y = x / rms(x) * weight, row by row. x, y: [n, hidden], may be the same, with rows `stride` numbers apart; weight:
/// [hidden]; all 16-byte aligned.
void rms_norm(cudaStream_t stream, const float* x, const float* weight, float epsilon, std::uint32_t n,
              std::uint32_t hidden, std::uint64_t stride, float* y);

/// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, row by row. x, y: [n, hidden], may be the same; weight,
/// bias: [hidden].
void layer_norm(cudaStream_t stream, const float* x, const float* weight, const float* bias, float epsilon,
                std::uint32_t n, std::uint32_t hidden, float* y);

/// y = x W^T + bias, or with `add` y += that. x: [n, columns], y: [n, rows], bias: [rows] or null.
void linear(const Context& context, const float* x, std::uint32_t n, const DenseWeight& w, const float* bias, bool add,
            float* y);

/// What an expert makes of its gate and up: silu(gate) * up.
struct Activation {
  /// Instead: gate * sigmoid(alpha * gate) * (up + 1), both within `limit`, gate only from above.
  bool clamped = false;
  float alpha = 1, limit = 0;
  bool gelu = false;  ///< or by its approximation with a tanh: gelu(gate) * up
};

/// What is added to an expert's gate and up, and what then multiplies both.
struct Before {
  const std::byte* biases = nullptr;  ///< [2 * width] float32 at any address, or null
  const float* weights = nullptr;     ///< by assignment, or null
};

/// gate := activation(gate, up), both [n, width], with `before` applied first; row i belongs to assignments[i].
void activate(cudaStream_t stream, float* gate, const float* up, std::uint32_t n, std::uint32_t width,
              const Activation& activation, const Before& before, const std::uint32_t* assignments);

/// Prepares queries and keys at their rows' positions; then keys and values go to the rows' caches. qkv:
/// [n, (heads + 2 * kv_heads) * head_dim], queries, keys and values of a row one behind the other. `before`: what is in a cache
/// before this layer.
void prepare_and_store(cudaStream_t stream, float* qkv, const Preparation& preparation, const RowPlace* rows,
                       std::uint32_t n, const CacheNumbers& before, const AttentionShape& shape);

/// Attention of each row over the positions of its own sequence up to its own, as far as windows and chunks reach. qkv: as
/// above, of which the queries are read; out: [n, heads * head_dim], of latent vectors [n, heads * latent]. A row's result does
/// not depend on the other rows.
void attention(cudaStream_t stream, const float* qkv, const RowPlace* rows, std::uint32_t n, const CacheNumbers& before,
               const AttentionShape& shape, float* out);

/// Attention to one latent vector a token (DeepSeek-V2, section 2.1.2). It has `rank` numbers, and then those that turn, which
/// are the key of all heads; a head of queries has `plain` columns, and then those that turn.
struct LatentShape {
  std::uint32_t heads = 0, rank = 0, plain = 0;
  bool neighbours = false;  ///< columns 2i and 2i + 1 turn together; else the two halves
};

/// Turns queries q [n, heads, plain + turned] and latent vectors [n, rank + turned] at their rows' positions. The vectors go to
/// the caches. The turned columns of q go to `queries` [n, heads, rank + turned], behind `rank` columns that are left alone.
/// Where queries grow, the plain columns of q grow, too.
void place_latent(cudaStream_t stream, float* q, const float* latent, const Preparation& preparation,
                  const RowPlace* rows, std::uint32_t n, std::uint32_t layer, const LatentShape& shape, float* queries);

/// Products of each head of rows with the head's own matrix.
struct HeadProducts {
  const std::byte* weights = nullptr;  ///< [heads, outputs, inputs]
  FloatType type = FloatType::bf16;    ///< or f32
  std::uint32_t heads = 0, outputs = 0, inputs = 0;
  const float* x = nullptr;
  float* y = nullptr;
  std::uint64_t x_row = 0, x_head = 0, y_row = 0, y_head = 0;  ///< numbers from one row or head to the next
};
void multiply_heads(cudaStream_t stream, const HeadProducts& products, std::uint32_t n);

/// The gated delta rule (Gated DeltaNet, section 3.1): a head remembers a matrix. At each token the matrix fades, is corrected,
/// and is read at the token's query. Queries, keys and values come through a short convolution.
struct DeltaShape {
  static constexpr float length_epsilon = 1e-6F;  ///< Qwen's code adds it to squared lengths of queries and keys
  std::uint32_t key_heads = 0, value_heads = 0;   ///< value_heads is a multiple of key_heads
  std::uint32_t key_dim = 0, value_dim = 0;       ///< of a head; key_dim at most most_delta_key
  std::uint32_t kernel = 0;                       ///< tokens that the convolution sees, at most most_delta_kernel
  bool tiled = false;        ///< value head v has key head v modulo their number; else neighbours share
  CacheNumbers before = {};  ///< what is remembered
  /// Of queries, of keys, and of values.
  [[nodiscard]] FERRY_HD constexpr std::uint32_t channels() const {
    return 2 * key_heads * key_dim + value_heads * value_dim;
  }
  [[nodiscard]] FERRY_HD constexpr std::uint32_t value_width() const { return value_heads * value_dim; }
  /// Of a layer and sequence: [value_heads, value_dim, key_dim], and the last tokens' channels, [kernel - 1, channels].
  [[nodiscard]] FERRY_HD constexpr std::uint64_t memory_numbers() const {
    return std::uint64_t{value_width()} * key_dim + std::uint64_t{kernel - 1} * channels();
  }
};

struct DeltaWeights {
  const float* kernel = nullptr;                            ///< [kernel, channels]
  const float *fade_scale = nullptr, *fade_bias = nullptr;  ///< [value_heads]
  const float* norm = nullptr;                              ///< [value_dim]
  float epsilon = 0;
};

/// What `layer`, counted among those that remember, makes of rows: out [n, value_width]. x: [n, channels], is changed; gates:
/// [n, value_width]; rates: [n, 2, value_heads], of corrections, and of what is let go. Rows of a sequence come one behind the
/// other. Without `keep` nothing is remembered afterwards. A row's result does not depend on other sequences' rows.
void delta(cudaStream_t stream, float* x, const float* gates, const float* rates, const DeltaWeights& weights,
           const RowPlace* rows, std::uint32_t n, std::uint32_t layer, const DeltaShape& shape, bool keep, float* out);

/// A convolution over the last tokens, channel by channel, of gated values (LFM2).
struct ConvolutionShape {
  std::uint32_t channels = 0;
  std::uint32_t kernel = 0;  ///< tokens that it sees, at most most_delta_kernel
  CacheNumbers before = {};  ///< what is remembered
  /// Of a layer and sequence: [kernel - 1, channels].
  [[nodiscard]] FERRY_HD constexpr std::uint64_t memory_numbers() const { return std::uint64_t{kernel - 1} * channels; }
};

/// out = b * convolution(a * v) of rows x [n, 3 (a, b, v), channels]. kernel: [kernel, channels]; out: [n, channels]; the rest
/// as of `delta`.
void short_convolution(cudaStream_t stream, const float* x, const float* kernel, const RowPlace* rows, std::uint32_t n,
                       std::uint32_t layer, const ConvolutionShape& shape, bool keep, float* out);

/// x *= sigmoid(gates), of so many numbers.
void weigh(cudaStream_t stream, const float* gates, std::uint64_t count, float* x);

/// Scores of `count` adjacent layers' gates: softmax(x W^T) of each. x: [n, hidden]; gates: [count * E, hidden], numbers, E at
/// most most_experts; scores, and scratch `logits`: [count, n, E], may be the same, and scores host memory that is
/// mapped. `best`, if not null: [n, k], each row's k experts of the first gate, best
/// first, of equal ones the lower; NaN ranks last. For few rows it is one launch. `counter`: one number, 0 before and
/// after, not for two streams at once; if it is null, the scores are the logits, and there is no `best`.
void gate(const Context& context, const float* x, std::uint32_t n, const DenseWeight& gates, std::uint32_t count,
          float* logits, float* scores, unsigned* counter, std::uint32_t k, std::uint16_t* best);

/// Of every routed expert.
struct ExpertShape {
  std::uint32_t hidden = 0, width = 0;
  StoredType type = FloatType::bf16;  ///< of gate and up at Precision::full
  std::uint32_t group = 64;           ///< weights with one scale and minimum, at the others: 32, 64 or 128
  StoredType down = type;             ///< of down at Precision::full
  bool biased =
      false;  ///< behind an expert's matrices, at any address, are [width], [width] and [hidden] float32 to add
  Activation activation{};
  bool scaled = false;  ///< last of all there is a float32 that multiplies its output
};

/// One expert and the rows that want it.
struct ExpertTask {
  const std::byte* weights =
      nullptr;  ///< gate [width, hidden], up [width, hidden], down [hidden, width]; 16-byte aligned
  std::uint32_t first = 0, rows = 0;  ///< assignments[first .. first + rows)
};

/// Experts that are computed together. Assignment row * top_k + rank is the row's expert of that rank: it reads input row
/// `row`, and writes the output row of its own number.
struct ExpertGroup {
  const ExpertTask* tasks = nullptr;                    ///< on the device, in the order of their precisions
  std::array<std::uint32_t, precision_count> counts{};  ///< of tasks, by precision; none to skip
  const std::uint32_t* assignments = nullptr;           ///< on the device
  std::uint32_t top_k = 0;
  std::uint32_t most_rows = 0;     ///< of a task
  unsigned* progress = nullptr;    ///< [2 + tasks] on the device, zeros before and after; not for two streams at once
  const float* weights = nullptr;  ///< [n * top_k] on the device: multiply gate and up of each assignment; or null
};

/// Computes a group's experts straight from their stored form: in one launch or, where an expert has several rows, in one
/// for each precision. x: [n, hidden]; scratch `activated`: [n * top_k, width]; results: [n * top_k, hidden], of which
/// the group's assignments are written. A result depends neither on how many rows its expert has nor on the rest of the
/// group, bit for bit. Weights are read once for every 8 rows.
void experts(const Context& context, const ExpertShape& shape, const ExpertGroup& group, const float* x,
             float* activated, float* results);

/// Scratch of expert_by_blas for the most rows that it is called with.
struct ExpertScratch {
  float* gathered = nullptr;             ///< [rows, hidden]
  float *gate = nullptr, *up = nullptr;  ///< [rows, width] each
};

/// Computes one expert for many rows by cuBLAS. `task` is the host's; the rest as `experts`.
void expert_by_blas(const Context& context, const ExpertShape& shape, Precision precision, const ExpertTask& task,
                    const std::uint32_t* assignments, std::uint32_t top_k, const float* weights, const float* x,
                    const ExpertScratch& scratch, float* results);

/// Where an assignment's result is.
enum : std::uint8_t { left_out = 0, on_device = 1, on_host = 2 };

/// What `combine` adds up.
struct Combined {
  std::uint32_t n = 0, top_k = 0, hidden = 0;
  const float* weights = nullptr;        ///< [n * top_k]; null: ones
  const std::uint8_t* state = nullptr;   ///< [n * top_k]: left_out, on_device or on_host
  const float* results = nullptr;        ///< [n * top_k, hidden]
  const float* host_results = nullptr;   ///< the same in host memory that is mapped; may be null if nothing is there
  const float* residual = nullptr;       ///< [n, hidden]; null: zeros
  const float* shared = nullptr;         ///< [n, hidden], or null
  const float* shared_factor = nullptr;  ///< [n], before the sigmoid; null: ones
  float scale = 1;                       ///< of what is added to the residual
  float last_scale = 1;                  ///< of the result
};

/// out = last_scale * (residual + scale * (sum over ranks, in their order, of weight * result) + scale * shared *
/// sigmoid(shared_factor)), added from left to right. out: [n, hidden], may be the residual.
void combine(cudaStream_t stream, const Combined& c, float* out);

}  // namespace ferry::engine::cuda
