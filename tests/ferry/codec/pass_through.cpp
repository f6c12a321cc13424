// Compared with Eigen's bfloat16 and half.
#include "ferry/codec/pass_through.hpp"

#include <doctest/doctest.h>

#include <Eigen/Core>
#include <bit>
#include <limits>
#include <vector>

#include "support/random.hpp"

using namespace ferry;

namespace {

constexpr FloatType all_types[] = {FloatType::bf16, FloatType::f16, FloatType::f32};
constexpr float infinity = std::numeric_limits<float>::infinity();

float oracle(FloatType type, std::uint16_t bits) {
  if (type == FloatType::bf16) return static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(bits));
  return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits));
}

std::uint16_t oracle(FloatType type, float weight) {
  if (type == FloatType::bf16) return Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(weight));
  return Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(weight));
}

/// The bits that one weight is packed as, 0xffff if it is refused.
std::uint16_t packed(FloatType type, float weight) {
  std::uint16_t bits[2] = {};
  const std::size_t bad = pack({1, 1, type}, &weight, reinterpret_cast<std::byte*>(bits));
  return bad == no_weight ? bits[0] : std::uint16_t{0xffff};
}

}  // namespace

TEST_CASE("every pattern of 16 bits is read as others read it, and finite ones pass through unchanged") {
  for (const FloatType type : {FloatType::bf16, FloatType::f16}) {
    std::size_t different = 0, changed = 0, finite = 0;
    for (std::uint32_t n = 0; n < 65536; ++n) {
      const float ours = unpack_weight({1, 1, type}, reinterpret_cast<const std::byte*>(&n), 0, 0);
      const float theirs = oracle(type, static_cast<std::uint16_t>(n));
      if (std::isnan(theirs) ? !std::isnan(ours)
                             : std::bit_cast<std::uint32_t>(ours) != std::bit_cast<std::uint32_t>(theirs)) {
        ++different;
      }
      if (!std::isfinite(theirs)) continue;
      ++finite;
      if (packed(type, ours) != n) ++changed;
    }
    CHECK(different == 0);
    CHECK(changed == 0);
    CHECK(finite == (type == FloatType::bf16 ? 65536 - 2 * 128 : 65536 - 2 * 1024));
  }
}

TEST_CASE("weights are rounded to the nearest, ties to the even one, as others round them") {
  for (const FloatType type : {FloatType::bf16, FloatType::f16}) {
    std::size_t different = 0;
    auto compare = [&](float weight) {
      const std::uint16_t theirs = oracle(type, weight);
      if (packed(type, weight) != (std::isfinite(oracle(type, theirs)) ? theirs : 0xffff)) ++different;
    };
    // The middle between neighbours and the floats on both sides of it, from 0 to infinity, and the same below 0.
    const std::uint16_t last = type == FloatType::bf16 ? 0x7f7f : 0x7bff;
    for (std::uint16_t bits = 0; bits < last; ++bits) {
      const double low = oracle(type, bits), high = oracle(type, static_cast<std::uint16_t>(bits + 1));
      const auto middle = static_cast<float>((low + high) / 2);
      for (const float w : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, infinity)}) {
        compare(w);
        compare(-w);
      }
    }
    test::Random random(1);
    for (int n = 0; n < 200'000; ++n) {
      const std::uint32_t high = random.below(65536);
      const auto weight = std::bit_cast<float>(high << 16U | random.below(65536));
      if (std::isfinite(weight)) compare(weight);
    }
    CHECK(different == 0);
  }
  // By hand: 1 + 1/256 lies between the bf16 1 and 1 + 1/128, 1 + 3/256 between 1 + 1/128 and 1 + 1/64.
  CHECK(packed(FloatType::bf16, 1 + 1.0F / 256) == 0x3f80);
  CHECK(packed(FloatType::bf16, 1 + 3.0F / 256) == 0x3f82);
  CHECK(packed(FloatType::f16, 0x1p-25F) == 0);  // half of the smallest
  CHECK(packed(FloatType::f16, 0x3p-25F) == 2);
}

TEST_CASE("a weight that is not finite in its type is refused, and the first such weight is named") {
  std::vector<std::byte> to(4 * 7 * 3);
  for (const FloatType type : all_types) {
    for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t at : {0U, 6U, 7U, 20U}) {
        std::vector<float> weights(21, 1.0F);
        weights[at] = weights[20] = bad;
        CHECK(pack({3, 7, type}, weights.data(), to.data()) == at);
      }
    }
  }
  // The largest f16 is 65504; halfway to 65536 rounds up, which is infinite. So is bf16's, from 2^128 - 2^119 on.
  CHECK(packed(FloatType::f16, 65504) == 0x7bff);
  CHECK(packed(FloatType::f16, std::nextafter(65520.0F, 0.0F)) == 0x7bff);
  CHECK(packed(FloatType::f16, 65520) == 0xffff);
  CHECK(packed(FloatType::f16, -65520) == 0xffff);
  CHECK(packed(FloatType::bf16, 0x1.fefffep127F) == 0x7f7f);
  CHECK(packed(FloatType::bf16, 0x1.ffp127F) == 0xffff);
}

TEST_CASE("matrices of every type and odd length come back, from any address") {
  test::Random random(2);
  for (const FloatType type : all_types) {
    for (const std::uint32_t columns : {1U, 2U, 7U, 8U, 33U, 127U}) {
      CAPTURE(columns);
      const PassThroughLayout m{3, columns, type};
      CHECK(m.bytes() == std::size_t{3} * columns * (type == FloatType::f32 ? 4 : 2));
      std::vector<float> weights(std::size_t{3} * columns), read(weights.size()), some(columns);
      for (float& w : weights) w = static_cast<float>(random.below(256)) - 128;  // bf16 has 8 bits
      std::vector<std::byte> memory(m.bytes() + 2, std::byte{0xee});
      REQUIRE(pack(m, weights.data(), memory.data() + 1) == no_weight);
      CHECK(memory.front() == std::byte{0xee});
      CHECK(memory.back() == std::byte{0xee});
      for (std::uint32_t r = 0; r < 3; ++r) unpack_row(m, memory.data() + 1, r, read.data() + r * columns);
      CHECK(read == weights);
      CHECK(unpack_weight(m, memory.data() + 1, 2, columns - 1) == weights.back());
      unpack_columns(m, memory.data() + 1, 1, columns / 2, columns - columns / 2, some.data());
      CHECK(std::equal(some.begin(), some.end() - columns / 2, weights.begin() + columns + columns / 2));
    }
  }
}

TEST_CASE("malformed pass-through layouts are refused in a sentence") {
  CHECK_NOTHROW(PassThroughLayout{1U << 30U, 1U << 30U}.validate());
  CHECK_THROWS_WITH_AS((PassThroughLayout{0, 5}.validate()),
                       "PassThroughLayout: the matrix is 0 x 5, expected 1 to 2^60 weights", ConfigError);
  CHECK_THROWS_AS((PassThroughLayout{1U << 30U, (1U << 30U) + 1}.validate()), ConfigError);
  CHECK_THROWS_AS((void)pack(PassThroughLayout{5, 0}, nullptr, nullptr), ConfigError);
}
