#include "trace/synthetic_rows.hpp"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "support/errors.hpp"

namespace ferry::engine::synthetic {

std::int64_t to_ppm(double share) {
  return std::llround(share * 1e6);
}
double from_ppm(std::int64_t share) {
  return static_cast<double>(share) / 1e6;
}

void refuse(const std::string& what) {
  throw InputError("synthetic routing: " + what);
}

std::int64_t root(std::int64_t square) {
  return largest(0, std::int64_t{1} << 31, [&](std::int64_t x) { return x * x <= square; });
}

std::int64_t other_part(std::int64_t part) {
  return root(q15 * q15 - part * part);
}

Dealer::Dealer(std::uint32_t experts) {
  constexpr std::uint32_t each = 64;
  Draws draws(0, Stream::calibration, 0, 0);
  std::vector<std::int64_t> all(std::size_t{each} * experts);
  for (std::int64_t& x : all) {
    for (int i = 0; i < 4; ++i) x += draws.normal();  // sums are closer to normal
  }
  std::sort(all.begin(), all.end());
  const std::int64_t mean = std::accumulate(all.begin(), all.end(), std::int64_t{0}) / std::ssize(all);
  std::int64_t squares = 0;
  for (std::uint32_t e = 0; e < experts; ++e) {
    const auto first = all.begin() + std::ptrdiff_t{each} * e;
    values_.push_back(std::accumulate(first, first + each, std::int64_t{0}) / each - mean);
    squares += values_.back() * values_.back();
  }
  for (std::int64_t& x : values_) x = x * sigma / root(squares / (experts - 1));
}

std::vector<std::int64_t> Dealer::deal(Draws& draws) const {
  std::vector<std::int64_t> row = values_;
  for (std::uint32_t left = static_cast<std::uint32_t>(row.size()); left > 1; --left) {
    std::swap(row[left - 1], row[draws.below(left)]);
  }
  return row;
}

void rank(const Latent* row, std::uint32_t n, std::uint32_t count, std::uint16_t* order) {
  // The least of the `count` parts' best bounds the result from below: experts worse than that can be skipped.
  Latent least = std::numeric_limits<Latent>::max();
  for (std::uint32_t part = 0, size = n / count; part < count; ++part) {
    Latent most = row[part * size];
    for (std::uint32_t e = part * size + 1; e < (part + 1) * size; ++e) most = std::max(most, row[e]);
    least = std::min(least, most);
  }
  std::uint32_t found = 0;
  for (std::uint32_t e = 0; e < n; ++e) {
    if (row[e] < least || (found == count && row[e] == least)) continue;
    std::uint32_t at = found < count ? found++ : count - 1;
    for (; at > 0 && row[e] > row[order[at - 1]]; --at) order[at] = order[at - 1];
    order[at] = static_cast<std::uint16_t>(e);
    if (found == count) least = row[order[count - 1]];
  }
}

std::uint32_t rank_of(const Latent* row, std::uint32_t n, std::uint32_t e) {
  std::uint32_t above = 0;
  for (std::uint32_t i = 0; i < n; ++i) above += row[i] > row[e] || (row[i] == row[e] && i < e) ? 1 : 0;
  return above;
}

void mix(const Latent* a, std::int64_t weight_a, const Latent* b, std::int64_t weight_b, std::uint32_t n, Latent* out) {
  for (std::uint32_t e = 0; e < n; ++e) out[e] = static_cast<Latent>((a[e] * weight_a + b[e] * weight_b) >> q15_bits);
}

void promote(std::uint16_t expert, std::uint32_t k, Latent* row, std::uint16_t* order) {
  const Latent freed = row[expert];
  std::uint32_t from = 0;
  while (from < k && order[from] != expert) ++from;
  row[expert] = row[order[0]];
  for (std::uint32_t i = 0; i + 1 < from; ++i) row[order[i]] = row[order[i + 1]];
  row[order[from - 1]] = freed;
  if (from == k && order[k] == expert) order[k] = order[k - 1];
  for (std::uint32_t i = std::min(from, k - 1); i > 0; --i) order[i] = order[i - 1];
  order[0] = expert;
}

std::int64_t log_bar(double alpha) {
  const std::uint64_t whole = std::uint64_t{ppm} << 20;
  const auto more = static_cast<std::uint64_t>(ppm + to_ppm(alpha));
  return largest(0, nat, [&](std::int64_t x) { return (exp_minus(x) >> (exp_bits - 20)) * more >= whole; });
}

void gaps(const Latent* row, const std::uint16_t* order, std::uint32_t k, Latent* out) {
  for (std::uint32_t i = 0; i < k; ++i) out[i] = row[order[i]] - row[order[i + 1]];
}

std::uint32_t top_scores(const std::int64_t* heights, std::uint32_t k, std::int64_t bar) {
  return static_cast<std::uint32_t>(std::find_if(heights, heights + k, [&](auto h) { return h <= bar; }) - heights);
}

}  // namespace ferry::engine::synthetic
