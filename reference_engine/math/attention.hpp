/// @file
/// Attention to the keys and values of earlier tokens.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "math/matrix.hpp"
#include "math/packed_product.hpp"

namespace ferry::engine {

/// How heads share keys and values: head h reads those of h / (heads / kv_heads).
struct AttentionShape {
  std::uint32_t heads = 0, kv_heads = 0;
  std::uint32_t head_dim = 0;   ///< of queries and keys
  std::uint32_t value_dim = 0;  ///< of values and of what is made
  std::uint32_t value_stride =
      0;            ///< numbers from one token's value to the next one's: more where values are parts of keys
  float scale = 1;  ///< of a query's product with a key
  FloatType type = FloatType::f32;  ///< of keys and values: f32 or f16
};

/// Rounds keys or values to the nearest f16; finite ones that are larger become the largest, so that no sum becomes infinite
/// by them. What is not finite stays so. to: [count].
void to_f16(const float* from, std::size_t count, std::byte* to);

/// Computes out = softmax(scale * q k^T) v, several rows and all heads at once.
///
/// A row's result depends neither on how many rows there are nor on its place, nor on how many threads share the work.
class AttentionKernel {
 public:
  AttentionKernel(const AttentionShape& shape, ProductPath path, WorkerPool* workers)
      : shape_(shape), workers_(workers), kernel_(part::kernel_of(path)), product_(kernel_, workers) {}

  /// What a row attends to: tokens `first` to `seen` - 1 of a cache, at least one.
  struct Row {
    const std::byte* keys;    ///< [kv_heads, capacity, head_dim]
    const std::byte* values;  ///< [kv_heads, capacity, value_stride]
    std::uint32_t capacity, first, seen;
  };
  /// q: [rows, heads * head_dim], out: [rows, heads * value_dim]. Rows of one cache are best adjacent, in ascending position.
  /// `sinks`: [heads], logits that take their share of a head's attention, and give nothing; null: there are none.
  void run(View<const Row> rows, const Matrix& q, Matrix& out, const float* sinks = nullptr);

 private:
  /// Rows of one cache, with one of its heads.
  struct Group {
    std::uint32_t first_row, rows;  ///< of q
    std::uint32_t kv_head;
    std::uint32_t first, count;  ///< tokens that any of them sees
    std::uint32_t first_which;   ///< where its heads of rows begin in `which_`
    std::size_t scores;          ///< where its scores begin
  };

  void run_together(View<const Row> rows, std::uint32_t first, std::uint32_t end, const Matrix& q, Matrix& out,
                    const float* sinks);
  /// Makes weights of the scores of one head of a row, in place, for all tokens that its group sees.
  void softmax(const Row& row, const Group& group, float* scores, const float* sink, Eigen::VectorXf& scratch) const;

  AttentionShape shape_;
  WorkerPool* workers_;
  const part::ProductKernel& kernel_;
  PackedProduct product_;
  // scratch, which never shrinks
  std::vector<Group> groups_;
  std::vector<std::uint32_t> which_;  // heads of rows, as rows of [rows * heads, head_dim]
  std::vector<part::Rows> queries_;   // a group's
  std::vector<float> scores_;
  std::vector<PackedProduct::Input> inputs_;
  std::vector<PackedProduct::Product> products_;
};

}  // namespace ferry::engine
