#include "ferry/codec/round_to_nearest.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/random.hpp"

using namespace ferry;

namespace {

constexpr float most = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();

std::vector<std::byte> packed(const PackedLayout& m, const std::vector<float>& weights) {
  std::vector<std::byte> out(m.bytes());
  REQUIRE(pack(m, weights.data(), out.data(), RoundToNearest{}) == no_weight);
  return out;
}

/// One row, there and back.
std::vector<float> round_trip(const std::vector<float>& weights, std::uint32_t bits, std::uint32_t group = 64) {
  const PackedLayout m{1, static_cast<std::uint32_t>(weights.size()), bits, group};
  std::vector<float> out(weights.size());
  unpack_row(m, packed(m, weights).data(), 0, out.data());
  return out;
}

/// How many weights of a group break |w - w'| <= step / 2, with the exact step, beyond what float itself rounds.
std::size_t beyond(const float* w, const float* read, std::size_t count, std::uint32_t bits) {
  const double low = *std::min_element(w, w + count), high = *std::max_element(w, w + count);
  const double step = (high - low) / largest_code(bits);
  // The scale is off by 2^-24 of itself, or half the smallest float, as often as the code says; so is the result, once.
  const double rounding =
      (high - low) * 0x1p-23 + largest_code(bits) * 0x1p-149 + std::max(std::abs(low), std::abs(high)) * 0x1p-23;
  std::size_t n = 0;
  for (std::size_t i = 0; i < count; ++i)
    n += std::abs(double{w[i]} - double{read[i]}) <= step / 2 + rounding ? 0U : 1U;
  return n;
}

}  // namespace

TEST_CASE("round-to-nearest groups worked by hand: codes, scale, minimum") {
  struct Known {
    std::uint32_t bits;
    std::vector<float> weights;
    float scale, minimum;
    std::vector<unsigned> codes;  // bytes
    std::vector<float> read;
  };
  const Known all[] = {
      {2, {0, 1, 2, 3}, 1, 0, {0b11'10'01'00}, {0, 1, 2, 3}},
      {2, {3, 2, 1, 0, 3}, 1, 0, {0b00'01'10'11, 0b11}, {3, 2, 1, 0, 3}},
      // (0.5 + 1) / 1 = 1.5 is half way and goes up; (0.25 + 1) / 1 = 1.25 goes down.
      {2, {-1, 0.5, 2, 0.25}, 1, -1, {0b01'11'10'00}, {-1, 1, 2, 0}},
      {2, {-0.75, -0.5, 0.75}, 0.5, -0.75, {0b11'01'00}, {-0.75, -0.25, 0.75}},
      {4, {-8, 7, 0.25}, 1, -8, {0xf0, 0x08}, {-8, 7, 0}},
      {4, {30, 0, 13}, 2, 0, {0x0f, 0x07}, {30, 0, 14}},  // 13 / 2 = 6.5 goes up
      {8, {0, 255, 100.25, 100.5}, 1, 0, {0, 255, 100, 101}, {0, 255, 100, 101}},
      {8, {-2, 125.5, 3}, 0.5, -2, {0, 255, 10}, {-2, 125.5, 3}},
  };
  for (const Known& k : all) {
    CAPTURE(k.bits);
    CAPTURE(k.weights[0]);
    const PackedLayout m{1, static_cast<std::uint32_t>(k.weights.size()), k.bits};
    const auto bytes = packed(m, k.weights);
    for (std::size_t i = 0; i < 64; ++i) {
      CHECK(std::to_integer<unsigned>(bytes[i]) == (i < k.codes.size() ? k.codes[i] : 0));
    }
    CHECK(read_group(m, bytes.data(), 0, 0).scale == k.scale);
    CHECK(read_group(m, bytes.data(), 0, 0).minimum == k.minimum);
    CHECK(round_trip(k.weights, k.bits) == k.read);
  }
}

TEST_CASE("round-to-nearest moves no weight by more than half a step, in random groups of any magnitude") {
  test::Random random(5);
  for (int n = 0; n < 3000; ++n) {
    const std::uint32_t bits = 1U << random.between(1, 3), group = 32U << random.below(3);
    std::vector<float> weights(random.between(1, 300));
    const int exponent = static_cast<int>(random.below(278)) - 149;  // down to the smallest floats
    const float offset = random.chance(50) ? 0.0F : random.unit() * 100;
    for (float& w : weights) w = std::ldexp(random.unit() - 0.5F + offset, exponent - 8);
    const auto read = round_trip(weights, bits, group);
    for (std::size_t first = 0; first < weights.size(); first += group) {
      const std::size_t count = std::min<std::size_t>(group, weights.size() - first);
      REQUIRE(beyond(weights.data() + first, read.data() + first, count, bits) == 0);
    }
  }
}

TEST_CASE("equal weights are exact, and so are the largest floats, the smallest are no trouble") {
  for (const std::uint32_t bits : {8U, 4U, 2U}) {
    CAPTURE(bits);
    for (const float w : {0.1F, -3.7F, 0.0F, most, -most, least}) {
      const std::vector<float> weights(64, w);
      CHECK(round_trip(weights, bits) == weights);
    }
    const std::vector<float> ends{-most, most, -most};  // float cannot represent their distance
    CHECK(round_trip(ends, bits) == ends);
    // Float cannot represent the step between these, so every code is 0.
    CHECK(round_trip({0, least}, bits) == std::vector<float>{0, 0});
  }
  // A step of 4/3 becomes 1, the nearest float: 4 is then beyond the last code.
  CHECK(round_trip({0, 4 * least, 0}, 2) == std::vector<float>{0, 3 * least, 0});
}

TEST_CASE("a scale that float rounds up takes no code beyond the largest float") {
  test::Random random(6);
  for (int n = 0; n < 1000; ++n) {
    const std::uint32_t bits = 1U << random.between(1, 3);
    const std::vector<float> weights{-most * random.unit(), most};
    const auto read = round_trip(weights, bits);
    REQUIRE(std::isfinite(read[1]));
    REQUIRE(beyond(weights.data(), read.data(), 2, bits) == 0);
  }
}
