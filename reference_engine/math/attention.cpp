#include "math/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "math/share_work.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t rows_at_once = 32;                      // enough to share the reading of keys and values
constexpr std::size_t scores_together = std::size_t{4} << 20U;  // floats, little beside a usual cache

}  // namespace

void to_f16(const float* from, std::size_t count, std::byte* to) {
  constexpr float largest = 65504;
  for (std::size_t i = 0; i < count; ++i) {
    // Infinity and NaN stay, so that the check of the logits finds them.
    const float held = std::isinf(from[i]) ? from[i] : std::clamp(from[i], -largest, largest);
    const std::uint16_t bits = detail::narrow_f16(held);
    std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
  }
}

void AttentionKernel::run(View<const Row> rows, const Matrix& q, Matrix& out, const float* sinks) {
  resize(out, q.rows(), Eigen::Index{shape_.heads} * shape_.value_dim);
  for (std::uint32_t first = 0, end; first < rows.size; first = end) {
    std::size_t most = rows[first].seen - rows[first].first;
    for (end = first + 1; end < rows.size && end - first < rows_at_once; ++end) {
      most = std::max<std::size_t>(most, rows[end].seen - rows[end].first);
      if (most * shape_.heads * (end + 1 - first) > scores_together) break;
    }
    run_together(rows, first, end, q, out, sinks);
  }
}

void AttentionKernel::run_together(View<const Row> rows, std::uint32_t first, std::uint32_t end, const Matrix& q,
                                   Matrix& out, const float* sinks) {
  const std::uint32_t dim = shape_.head_dim, share = shape_.heads / shape_.kv_heads;
  groups_.clear();
  which_.clear();
  std::size_t scores = 0;
  for (std::uint32_t row = first, next; row < end; row = next) {
    std::uint32_t begin = rows[row].first, seen = 0;
    for (next = row; next < end && rows[next].keys == rows[row].keys; ++next) {
      begin = std::min(begin, rows[next].first);
      seen = std::max(seen, rows[next].seen);
    }
    for (std::uint32_t kv = 0; kv < shape_.kv_heads; ++kv) {
      groups_.push_back({row, next - row, kv, begin, seen - begin, static_cast<std::uint32_t>(which_.size()), scores});
      scores += std::size_t{next - row} * share * (seen - begin);
      for (std::uint32_t r = row; r < next; ++r) {
        for (std::uint32_t h = 0; h < share; ++h) which_.push_back(r * shape_.heads + kv * share + h);
      }
    }
  }
  if (queries_.size() < groups_.size()) queries_.resize(groups_.size());
  if (scores_.size() < scores) scores_.resize(scores);

  inputs_.clear();
  products_.clear();
  std::uint64_t products = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& g = groups_[i];
    const PassThroughLayout keys{g.count, dim, shape_.type};
    inputs_.push_back(
        {.w = keys, .x = q.data(), .rows = g.rows * share, .which = &which_[g.first_which], .to = &queries_[i]});
    const Row& source = rows[g.first_row];
    const std::byte* of_head = source.keys + (std::size_t{g.kv_head} * source.capacity + g.first) * keys.row_bytes();
    products_.push_back({keys, of_head, &queries_[i], &scores_[g.scores]});
    products += std::uint64_t{g.rows} * share * g.count * dim;
  }
  product_.prepare(inputs_);
  product_.multiply(products_);

  const auto heads_of_rows = static_cast<std::uint32_t>(which_.size());
  auto group_at = [&](std::uint32_t at) {  // the group that a head of a row belongs to
    const auto behind = std::upper_bound(groups_.begin(), groups_.end(), at,
                                         [](std::uint32_t n, const Group& g) { return n < g.first_which; });
    return behind - 1;
  };
  constexpr std::uint64_t products_of_a_weight = 20;  // products that take as long as one softmax weight
  share_work(workers_, heads_of_rows, products / dim * products_of_a_weight,
             [&](std::uint32_t begin, std::uint32_t stop) {
               Eigen::VectorXf scratch;
               auto g = group_at(begin);
               for (std::uint32_t at = begin; at < stop; ++at) {
                 if (at == g->first_which + g->rows * share) ++g;
                 softmax(rows[which_[at] / shape_.heads], *g,
                         &scores_[g->scores + std::size_t{at - g->first_which} * g->count],
                         sinks == nullptr ? nullptr : sinks + which_[at] % shape_.heads, scratch);
               }
             });

  // A few rows at a time, for which the values are read only once.
  const std::uint32_t panel = kernel_.panel_rows;
  std::uint32_t panels = 0;
  for (const Group& g : groups_) panels += (g.rows * share + panel - 1) / panel;
  share_work(workers_, panels, products, [&](std::uint32_t begin, std::uint32_t stop) {
    std::uint32_t number = 0;
    for (const Group& g : groups_) {
      const std::uint32_t all = g.rows * share;
      for (std::uint32_t row = 0; row < all; row += panel, ++number) {
        if (number < begin || number >= stop) continue;
        const Row& source = rows[g.first_row];
        const std::uint32_t count = std::min(panel, all - row), at = g.first_which + row;
        const PassThroughLayout all_values{g.count, shape_.value_stride, shape_.type};
        const std::byte* values =
            source.values + (std::size_t{g.kv_head} * source.capacity + g.first) * all_values.row_bytes();
        std::uint32_t seen = 0;
        for (std::uint32_t i = at; i < at + count; ++i) seen = std::max(seen, rows[which_[i] / shape_.heads].seen);
        kernel_.mix(&scores_[g.scores + std::size_t{row} * g.count], g.count, count, seen - g.first, values, all_values,
                    shape_.value_dim, &which_[at], out.data());
      }
    }
  });
}

void AttentionKernel::softmax(const Row& row, const Group& group, float* scores, const float* sink,
                              Eigen::VectorXf& scratch) const {
  const std::uint32_t before = row.first - group.first, count = row.seen - row.first;
  // Copied first: where the scores lie must not decide which of them share a vector register, since that changes the sums.
  resize(scratch, count, 1);
  scratch = Eigen::Map<const Eigen::VectorXf>(scores + before, count) * shape_.scale;
  float most = scratch.maxCoeff();
  if (sink != nullptr) most = std::max(most, *sink);
  scratch = (scratch.array() - most).exp();
  scratch /= scratch.sum() + (sink != nullptr ? std::exp(*sink - most) : 0.0F);
  std::fill(scores, scores + before, 0.0F);  // positions that only other rows see
  std::copy_n(scratch.data(), count, scores + before);
  std::fill(scores + before + count, scores + group.count, 0.0F);
}

}  // namespace ferry::engine
