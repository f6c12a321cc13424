// Blocks whose weights are worked by hand; the packages of their makers are asked in tests/engine/math/blocks.cpp.
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

TEST_CASE("rows begin where the one before ends, and columns at a block") {
  std::vector<std::byte> two = bytes({0x00, 0x3c, 7}, 34);  // 1.0; 7
  const std::vector<std::byte> second = bytes({0x00, 0x3c, 9}, 34);
  two.insert(two.end(), second.begin(), second.end());
  CHECK(unpack_weight({2, 32, BlockType::q8_0}, two.data(), 1, 0) == 9.0F);
  float columns[32];
  unpack_columns(BlockLayout{1, 64, BlockType::q8_0}, two.data(), 0, 32, 32, columns);
  CHECK(columns[0] == 9.0F);
}
