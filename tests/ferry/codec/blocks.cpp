// Blocks with weights worked by hand. tests/engine/math/blocks.cpp compares with the packages of the formats' makers.
#include "ferry/codec/blocks.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace ferry;

namespace {

std::vector<std::byte> bytes(std::initializer_list<int> first, std::size_t size) {
  std::vector<std::byte> all;
  for (const int b : first) all.push_back(static_cast<std::byte>(b));
  all.resize(size);
  return all;
}

}  // namespace

TEST_CASE("sizes: rows are their blocks, and a last one of 8-bit floats is there as a whole") {
  CHECK(BlockLayout{3, 64, BlockType::q8_0}.bytes() == 3 * 2 * 34);
  CHECK(BlockLayout{3, 512, BlockType::q4_k}.bytes() == 3 * 2 * 144);
  CHECK(BlockLayout{2, 512, BlockType::q6_k}.bytes() == 2 * 2 * 210);
  CHECK(BlockLayout{2, 130, BlockType::fp8}.bytes() == 2 * 2 * 132);
  CHECK_NOTHROW(BlockLayout{1, 130, BlockType::fp8}.validate());
  CHECK_THROWS_WITH_AS((BlockLayout{1, 130, BlockType::q8_0}.validate()), doctest::Contains("a multiple of 32"),
                       ConfigError);
  CHECK_THROWS_AS((BlockLayout{0, 32, BlockType::q8_0}.validate()), ConfigError);
}

TEST_CASE("q8_0 and q4_0: a half times whole numbers") {
  const std::vector<std::byte> q8 = bytes({0x00, 0x38, 2, 0xff}, 34);  // 0.5; 2, -1, 0, ...
  CHECK(unpack_weight({1, 32, BlockType::q8_0}, q8.data(), 0, 0) == 1.0F);
  CHECK(unpack_weight({1, 32, BlockType::q8_0}, q8.data(), 0, 1) == -0.5F);
  const std::vector<std::byte> q4 = bytes({0x00, 0x38, 0xf9}, 18);  // 0.5; 9 in front, 15 in the second half
  CHECK(unpack_weight({1, 32, BlockType::q4_0}, q4.data(), 0, 0) == 0.5F);
  CHECK(unpack_weight({1, 32, BlockType::q4_0}, q4.data(), 0, 16) == 3.5F);
  CHECK(unpack_weight({1, 32, BlockType::q4_0}, q4.data(), 0, 1) == -4.0F);
}

TEST_CASE("mxfp4: a power of two times 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives") {
  const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  std::vector<std::byte> block = bytes({128}, 17);  // 2^1
  for (int i = 0; i < 8; ++i) block[static_cast<std::size_t>(i) + 1] = static_cast<std::byte>(i | (i + 8) << 4);
  for (std::uint32_t i = 0; i < 8; ++i) {
    CHECK(unpack_weight({1, 32, BlockType::mxfp4}, block.data(), 0, i) == 2 * values[i]);
    CHECK(unpack_weight({1, 32, BlockType::mxfp4}, block.data(), 0, i + 16) == -2 * values[i]);
  }
}

TEST_CASE("q4_1, q5_0, q5_1 and iq4_nl: 32 codes of a half, with a minimum, a fifth bit or a table") {
  const auto weight = [](BlockType type, const std::vector<std::byte>& block, std::uint32_t i) {
    return unpack_weight({1, 32, type}, block.data(), 0, i);
  };
  const auto q4_1 = bytes({0x00, 0x38, 0x00, 0xbc, 0xf3}, 20);  // 0.5, -1; 3 and in the second half 15
  CHECK(weight(BlockType::q4_1, q4_1, 0) == 0.5F);
  CHECK(weight(BlockType::q4_1, q4_1, 16) == 6.5F);
  CHECK(weight(BlockType::q4_1, q4_1, 1) == -1.0F);
  const auto q5_0 = bytes({0x00, 0x3c, 0x01, 0, 0x01, 0, 0x52, 0x11}, 22);  // 1; fifth bits of 0 and 16
  CHECK(weight(BlockType::q5_0, q5_0, 0) == 2.0F);
  CHECK(weight(BlockType::q5_0, q5_0, 16) == 5.0F);
  CHECK(weight(BlockType::q5_0, q5_0, 1) == -15.0F);
  CHECK(weight(BlockType::q5_0, q5_0, 17) == -15.0F);
  const auto q5_1 = bytes({0x00, 0x3c, 0x00, 0x40, 0x01, 0, 0x01, 0, 0x52, 0x11}, 24);  // 1, 2
  CHECK(weight(BlockType::q5_1, q5_1, 0) == 20.0F);
  CHECK(weight(BlockType::q5_1, q5_1, 16) == 23.0F);
  CHECK(weight(BlockType::q5_1, q5_1, 1) == 3.0F);
  const auto iq4_nl = bytes({0x00, 0x38, 0xf0}, 18);
  CHECK(weight(BlockType::iq4_nl, iq4_nl, 0) == -63.5F);
  CHECK(weight(BlockType::iq4_nl, iq4_nl, 16) == 56.5F);
}

TEST_CASE("q2_k, q3_k and iq4_xs: 256 codes with scales of 16 or 32") {
  const auto weight = [](BlockType type, const std::vector<std::byte>& block, std::uint32_t i) {
    return unpack_weight({1, 256, type}, block.data(), 0, i);
  };
  const auto put = [](std::vector<std::byte>& block, std::size_t at, std::initializer_list<int> values) {
    for (const int v : values) block[at++] = static_cast<std::byte>(v);
  };
  auto q2_k = bytes({0x32, 0, 0x01, 0, 0, 0, 0x14}, 84);  // scales 2, 1, 4 and minima 3, 0, 1 of 0, 32 and 96
  put(q2_k, 16, {0xe4});                                  // 0, 1, 2, 3 of 0, 32, 64 and 96
  put(q2_k, 80, {0x00, 0x38, 0x00, 0x3c});                // 0.5, 1
  CHECK(weight(BlockType::q2_k, q2_k, 0) == -3.0F);
  CHECK(weight(BlockType::q2_k, q2_k, 32) == 0.5F);
  CHECK(weight(BlockType::q2_k, q2_k, 96) == 5.0F);
  CHECK(weight(BlockType::q2_k, q2_k, 128) == 0.0F);
  auto q3_k = bytes({0x11}, 110);  // third bits of 0 and 128
  put(q3_k, 32, {3, 3});           // of 0 and 1
  put(q3_k, 64, {1});              // of 128
  put(q3_k, 96, {0x05});           // the first scale's low bits; the ninth's are 0
  put(q3_k, 104, {0x02});          // and its high bits: 37
  put(q3_k, 108, {0x00, 0x3c});    // 1
  CHECK(weight(BlockType::q3_k, q3_k, 0) == 15.0F);
  CHECK(weight(BlockType::q3_k, q3_k, 1) == -5.0F);
  CHECK(weight(BlockType::q3_k, q3_k, 128) == -32.0F);
  auto iq4_xs = bytes({0x00, 0x38, 0x02, 0x80, 0x03}, 136);  // 0.5; scales 35 and, of the eighth, 32
  put(iq4_xs, 8, {0xf0});
  put(iq4_xs, 7, {0x10});  // with this 33
  put(iq4_xs, 120, {0x0f});
  CHECK(weight(BlockType::iq4_xs, iq4_xs, 0) == -190.5F);
  CHECK(weight(BlockType::iq4_xs, iq4_xs, 16) == 169.5F);
  CHECK(weight(BlockType::iq4_xs, iq4_xs, 224) == 56.5F);
}

TEST_CASE("rows begin where the one before ends, and columns at a block") {
  std::vector<std::byte> two = bytes({0x00, 0x3c, 7}, 34);  // 1.0; 7
  const std::vector<std::byte> second = bytes({0x00, 0x3c, 9}, 34);
  two.insert(two.end(), second.begin(), second.end());
  CHECK(unpack_weight({2, 32, BlockType::q8_0}, two.data(), 1, 0) == 9.0F);
  float columns[32];
  unpack_columns(BlockLayout{1, 64, BlockType::q8_0}, two.data(), 0, 32, 32, columns);
  CHECK(columns[0] == 9.0F);
}
