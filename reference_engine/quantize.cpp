#include "quantize.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace ferry::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "groups are stored little-endian");

struct Group {
  float scale = 0, minimum = 0;
};

Group fit(const float* weights, std::uint32_t count, std::uint32_t largest_code) {
  float low = weights[0], high = weights[0];
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!std::isfinite(weights[i])) return {0, std::numeric_limits<float>::quiet_NaN()};
    low = std::min(low, weights[i]);
    high = std::max(high, weights[i]);
  }
  // In double: the distance of two floats may be too large for a float.
  return {static_cast<float>((double{high} - double{low}) / largest_code), low};
}

std::uint32_t nearest(float weight, const Group& g, std::uint32_t largest_code) {
  if (g.scale == 0) return 0;
  const double steps = (double{weight} - double{g.minimum}) / double{g.scale};
  return steps < largest_code ? static_cast<std::uint32_t>(steps + 0.5) : largest_code;
}

// The number of bits is known to the compiler here: this is the part that runs once an expert and step.
template <std::uint32_t bits>
void widen(const Group& g, const std::byte* codes, std::uint32_t count, float* weights) {
  constexpr std::uint32_t per_byte = 8 / bits, mask = (1U << bits) - 1;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t q = static_cast<std::uint32_t>(codes[i / per_byte]) >> (i % per_byte * bits) & mask;
    weights[i] = static_cast<float>(double{g.minimum} + q * double{g.scale});
  }
}

/// Calls each(group, codes, first weight, count) for every group of the matrix, in order.
template <class Bytes, class Each>
void for_each_group(const QuantizedLayout& m, Bytes* at, Each each) {
  Bytes* group = at + m.groups_at();
  for (std::uint64_t row = 0; row < m.rows; ++row) {
    for (std::uint32_t column = 0; column < m.columns; column += QuantizedLayout::group) {
      Bytes* codes = at + row * m.row_bytes() + column * m.bits / 8;
      each(group, codes, row * m.columns + column, std::min(QuantizedLayout::group, m.columns - column));
      group += sizeof(Group);
    }
  }
}

}  // namespace

void quantize(const QuantizedLayout& m, const float* weights, std::byte* to) {
  const std::uint32_t largest_code = (1U << m.bits) - 1;
  std::memset(to, 0, m.bytes());
  for_each_group(m, to, [&](std::byte* group, std::byte* codes, std::uint64_t first, std::uint32_t count) {
    const Group g = fit(weights + first, count, largest_code);
    std::memcpy(group, &g, sizeof(g));
    for (std::uint32_t i = 0; i < count; ++i) {
      codes[i * m.bits / 8] |= static_cast<std::byte>(nearest(weights[first + i], g, largest_code) << (i * m.bits % 8));
    }
  });
}

void dequantize(const QuantizedLayout& m, const std::byte* from, float* weights) {
  const auto widen_codes = m.bits == 8 ? widen<8> : m.bits == 4 ? widen<4> : widen<2>;
  for_each_group(m, from,
                 [&](const std::byte* group, const std::byte* codes, std::uint64_t first, std::uint32_t count) {
                   Group g;
                   std::memcpy(&g, group, sizeof(g));
                   widen_codes(g, codes, count, weights + first);
                 });
}

}  // namespace ferry::engine
