// The AVX-512 path, instruction by instruction in software, because not every machine has it.
#include "engine/math/avx512_emulated.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "ferry/codec/round_to_nearest.hpp"
#include "math/int8_lanes_avx512.hpp"
#include "support/blocks.hpp"
#include "support/random.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

std::size_t pack_weights(const PassThroughLayout& w, const float* weights, std::byte* to) {
  return pack(w, weights, to);
}
std::size_t pack_weights(const PackedLayout& w, const float* weights, std::byte* to) {
  return pack(w, weights, to, RoundToNearest{});
}

template <class Layout>
void check(const Layout& w, test::Random& random, bool int8 = false) {
  CAPTURE(w.columns);
  std::vector<float> all(std::size_t{w.rows} * w.columns);
  for (float& v : all) v = 2 * random.unit() - 1;
  std::vector<std::byte> weights(w.bytes());
  if constexpr (std::is_same_v<Layout, BlockLayout>) {
    test::fill_blocks(w, weights.data(), random);
  } else {
    REQUIRE(pack_weights(w, all.data(), weights.data()) == no_weight);
  }
  std::vector<float> row(w.columns);
  for (const Eigen::Index rows : {1, 2, 3, 17}) {
    CAPTURE(rows);
    Matrix x(rows, w.columns), y;
    // Rounding such activations to 8 bits loses nothing, since one of each 64 is 127.
    for (Eigen::Index r = 0; r < rows; ++r) {
      for (std::uint32_t c = 0; c < w.columns; ++c) {
        x(r, c) = c % 64 == 0 ? 127 : static_cast<float>(random.below(255)) - 127;
      }
    }
    static constexpr part::Int8Kernel int8_kernel = make_int8_kernel<Avx512Int8Lanes>();
    PackedProduct(make_kernel<Avx512Lanes>(), nullptr, int8 ? &int8_kernel : nullptr).run(w, weights.data(), x, y);
    for (std::uint32_t o = 0; o < w.rows; ++o) {
      unpack_row(w, weights.data(), o, row.data());
      for (Eigen::Index r = 0; r < rows; ++r) {
        double sum = 0, terms = 0;
        for (std::uint32_t c = 0; c < w.columns; ++c) {
          sum += double{row[c]} * double{x(r, c)};
          terms += std::abs(double{row[c]} * double{x(r, c)});
        }
        CHECK(std::abs(double{y(r, o)} - sum) <= 4e-6 * terms);
      }
    }
  }
}

TEST_CASE("the AVX-512 path computes products of every stored form") {
  test::Random random(7);
  for (const std::uint32_t columns : {1U, 95U, 256U, 700U}) {
    for (const FloatType type : {FloatType::bf16, FloatType::f16, FloatType::f32}) {
      CAPTURE(static_cast<int>(type));
      check(PassThroughLayout{11, columns, type}, random);
    }
    for (const std::uint32_t bits : {8U, 4U, 2U}) {
      for (const std::uint32_t group : {32U, 64U, 128U}) {
        CAPTURE(bits);
        CAPTURE(group);
        check(PackedLayout{11, columns, bits, group}, random);
        check(PackedLayout{19, columns, bits, group}, random, true);
      }
    }
  }
  for (const BlockType type : test::block_types) {
    CAPTURE(static_cast<int>(type));
    for (const std::uint32_t blocks : {1U, 3U, 17U}) {
      check(BlockLayout{11, blocks * block_weights(type), type}, random);
      if (type != BlockType::fp8) check(BlockLayout{19, blocks * block_weights(type), type}, random, true);
    }
  }
  check(BlockLayout{11, 300, BlockType::fp8}, random);
}

}  // namespace
