// Block formats against the packages of those who made them (tests/goldens/make_blocks.py), and products of stored blocks
// against products of what the blocks stand for.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "checkpoint/safetensors.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/product_paths.hpp"
#include "ferry/codec/blocks.hpp"
#include "math/packed_product.hpp"
#include "support/blocks.hpp"
#include "support/random.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using ferry::test::paths;

constexpr std::pair<const char*, BlockType> types[] = {
    {"q8_0", BlockType::q8_0},  {"q4_0", BlockType::q4_0}, {"q4_1", BlockType::q4_1},     {"q5_0", BlockType::q5_0},
    {"q5_1", BlockType::q5_1},  {"q2_k", BlockType::q2_k}, {"q3_k", BlockType::q3_k},     {"q4_k", BlockType::q4_k},
    {"q5_k", BlockType::q5_k},  {"q6_k", BlockType::q6_k}, {"iq4_nl", BlockType::iq4_nl}, {"iq4_xs", BlockType::iq4_xs},
    {"mxfp4", BlockType::mxfp4}};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// A matrix that repeats the golden's blocks.
std::vector<std::byte> matrix_of(const BlockLayout& m, const Tensor& blocks) {
  std::vector<std::byte> out(m.bytes());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = blocks.data[i % blocks.bytes];
  return out;
}

}  // namespace

TEST_CASE("blocks stand for the floats that the gguf package says, bit for bit") {
  const Safetensors golden(test::golden_file("blocks.safetensors"));
  for (const auto& [name, type] : types) {
    const std::string label = name;  // structured bindings cannot be captured
    INFO(label);
    const Tensor& blocks = golden.at(std::string(name) + ".blocks");
    const std::vector<float> weights = golden.at(std::string(name) + ".weights").to_floats();
    const auto count = static_cast<std::uint32_t>(blocks.shape[0]);
    REQUIRE(blocks.shape[1] == block_bytes(type));
    REQUIRE(weights.size() == std::size_t{count} * block_weights(type));
    const BlockLayout row{1, count * block_weights(type), type}, rows{count, block_weights(type), type};
    std::vector<float> one(weights.size()), each(weights.size());
    unpack_row(row, blocks.data, 0, one.data());
    CHECK(same_bits(one, weights));
    for (std::uint32_t r = 0; r < count; ++r) unpack_row(rows, blocks.data, r, &each[r * block_weights(type)]);
    CHECK(same_bits(each, weights));
    CHECK(std::bit_cast<std::uint32_t>(unpack_weight(row, blocks.data, 0, 37)) ==
          std::bit_cast<std::uint32_t>(weights[37]));
  }
}

TEST_CASE("every 8-bit float is what ml_dtypes says, times the scale of its block") {
  const Safetensors golden(test::golden_file("blocks.safetensors"));
  const std::vector<float> all = golden.at("fp8.weights").to_floats();
  for (std::uint32_t code = 0; code < 256; ++code) {
    std::vector<std::byte> block(block_bytes(BlockType::fp8), static_cast<std::byte>(code));
    const float scale = 0.375F;
    std::memcpy(block.data(), &scale, sizeof(scale));
    const float got = unpack_weight({1, 100, BlockType::fp8}, block.data(), 0, 99);
    if (std::isnan(all[code])) {
      CHECK(std::isnan(got));
    } else {
      CHECK(got == all[code] * scale);
      CHECK(std::signbit(got) == std::signbit(all[code]));
    }
  }
}

TEST_CASE("a product of blocks is the product of what they stand for, bit for bit") {
  const Safetensors golden(test::golden_file("blocks.safetensors"));
  test::Random random(11);
  std::vector<std::pair<std::string, BlockLayout>> all;
  for (const auto& [name, type] : types) {
    all.push_back({name, {37, 3 * block_weights(type), type}});    // of 32 weights the last stretch is half a one
    all.push_back({name, {5, 2048 + block_weights(type), type}});  // several chunks
  }
  for (const std::uint32_t columns : {100U, 128U, 300U, 640U, 1100U})
    all.push_back({"fp8", {37, columns, BlockType::fp8}});
  for (const auto& [name, layout] : all) {
    const std::string label = name;  // structured bindings cannot be captured
    const BlockLayout m = layout;
    std::vector<std::byte> blocks;
    if (m.type == BlockType::fp8) {
      blocks.resize(m.bytes());
      test::fill_blocks(m, blocks.data(), random);
    } else {
      blocks = matrix_of(m, golden.at(label + ".blocks"));
    }
    std::vector<float> floats(std::size_t{m.rows} * m.columns);
    for (std::uint32_t r = 0; r < m.rows; ++r) unpack_row(m, blocks.data(), r, &floats[std::size_t{r} * m.columns]);
    for (const std::uint32_t rows : {1U, 2U, 3U, 17U}) {
      Matrix x(rows, m.columns);
      for (float& v : x.reshaped()) v = random.unit() - 0.5F;
      for (const ProductPath path : paths()) {
        INFO(label << " with " << m.columns << " columns, " << rows << " rows, " << name_of(path));
        Matrix stored, plain;
        PackedProduct product(path, nullptr);
        product.run(m, blocks.data(), x, stored);
        product.run(PassThroughLayout{m.rows, m.columns, FloatType::f32},
                    reinterpret_cast<const std::byte*>(floats.data()), x, plain);
        CHECK(std::memcmp(stored.data(), plain.data(), static_cast<std::size_t>(plain.size()) * sizeof(float)) == 0);
      }
    }
  }
}
