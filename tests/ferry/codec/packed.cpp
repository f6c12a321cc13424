#include "ferry/codec/packed.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/random.hpp"

using namespace ferry;

namespace {

float float_at(const std::byte* at) {
  float f = 0;
  std::memcpy(&f, at, sizeof(f));
  return f;
}

/// The documented layout, bit by bit. Returns the bytes of the matrix.
std::size_t naive(const PackedLayout& m, const std::vector<std::byte>& from, std::vector<float>& out) {
  const std::size_t rows = m.rows, columns = m.columns, row_bytes = (columns * m.bits + 7) / 8;
  const std::size_t row_groups = (columns + m.group - 1) / m.group, groups_at = (rows * row_bytes + 63) / 64 * 64;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      unsigned q = 0;
      for (std::size_t b = 0; b < m.bits; ++b) {
        const std::size_t bit = c * m.bits + b;
        q += (std::to_integer<unsigned>(from[r * row_bytes + bit / 8]) >> bit % 8 & 1U) << b;
      }
      const std::byte* group = from.data() + groups_at + (r * row_groups + c / m.group) * 8;
      out.push_back(static_cast<float>(double{float_at(group + 4)} + q * double{float_at(group)}));
    }
  }
  return groups_at + (rows * row_groups * 8 + 63) / 64 * 64;
}

}  // namespace

TEST_CASE("packed layouts: bytes and places worked by hand") {
  CHECK(PackedLayout{64, 128, 8}.bytes() == 8192 + 1024);  // 64 * 128 codes; 64 * 2 groups of 8 bytes
  CHECK(PackedLayout{64, 128, 4}.bytes() == 4096 + 1024);
  CHECK(PackedLayout{64, 128, 2, 32}.bytes() == 2048 + 2048);
  // 70 columns: 3 * 70 = 210 bytes fill 256; 3 rows of 2 groups of 8 bytes fill 64, and so do 3 of 1; 3 of 3 fill 128.
  CHECK(PackedLayout{3, 70, 8}.bytes() == 256 + 64);
  CHECK(PackedLayout{3, 70, 4}.bytes() == 128 + 64);  // 3 * 35 = 105
  CHECK(PackedLayout{3, 70, 2}.bytes() == 64 + 64);   // 70 * 2 = 140 bits are 18 bytes, 3 * 18 = 54
  CHECK(PackedLayout{3, 70, 8, 128}.bytes() == 256 + 64);
  CHECK(PackedLayout{3, 70, 8, 32}.bytes() == 256 + 128);
  constexpr PackedLayout m{3, 70, 4, 32};
  CHECK(m.codes_at(2, 1) == 2 * 35 + 16);
  CHECK(m.group_at(2, 1) == 128 + (2 * 3 + 1) * 8);
  CHECK(m.group_size(1) == 32);
  CHECK(m.group_size(2) == 6);
  // The largest there may be: nothing overflows.
  CHECK(PackedLayout{1U << 30U, 1U << 30U, 8, 32}.bytes() == (std::uint64_t{1} << 60U) + (std::uint64_t{1} << 58U));
  CHECK(code_bits(Precision::int8) == 8);
  CHECK(code_bits(Precision::int4) == 4);
  CHECK(code_bits(Precision::int2) == 2);
}

TEST_CASE("malformed packed layouts are refused in a sentence") {
  CHECK_NOTHROW(PackedLayout{1U << 30U, 1U << 30U, 2, 128}.validate());
  CHECK_THROWS_WITH_AS((PackedLayout{0, 5}.validate()), "PackedLayout: the matrix is 0 x 5, expected 1 to 2^60 weights",
                       ConfigError);
  CHECK_THROWS_AS((PackedLayout{5, 0}.validate()), ConfigError);
  CHECK_THROWS_AS((PackedLayout{1U << 30U, (1U << 30U) + 1}.validate()), ConfigError);
  CHECK_THROWS_WITH_AS((PackedLayout{1, 1, 3}.validate()), "PackedLayout: bits is 3, expected 8, 4 or 2", ConfigError);
  CHECK_THROWS_WITH_AS((PackedLayout{1, 1, 8, 0}.validate()), "PackedLayout: group is 0, expected 32, 64 or 128",
                       ConfigError);
}

TEST_CASE("codes of any width are set without touching their neighbours") {
  test::Random random(1);
  for (const std::uint32_t bits : {8U, 4U, 2U}) {
    CAPTURE(bits);
    std::vector<std::byte> packed(24, std::byte{0xff});
    std::vector<std::uint32_t> codes(24 * 8 / bits, largest_code(bits));
    for (int n = 0; n < 500; ++n) {
      const std::uint32_t i = random.below(static_cast<std::uint32_t>(codes.size()));
      codes[i] = random.below(largest_code(bits) + 1);
      pack_code(packed.data(), i, bits, codes[i]);
    }
    for (std::uint32_t i = 0; i < codes.size(); ++i) CHECK(unpack_code(packed.data(), i, bits) == codes[i]);
  }
}

TEST_CASE("a group's codes stand for minimum + code * scale, and the nearest is found, halves up") {
  const PackedGroup g{0.5F, -1};
  CHECK(g.weight(0) == -1);
  CHECK(g.weight(3) == 0.5F);
  CHECK(g.code(-0.75F, 2) == 1);  // (-0.75 + 1) / 0.5 = 0.5
  CHECK(g.code(-0.76F, 2) == 0);
  CHECK(g.code(-100, 8) == 0);
  CHECK(g.code(100, 2) == 3);
  CHECK(g.code(100, 4) == 15);
  CHECK(PackedGroup{0, 1}.code(2, 8) == 0);
  CHECK(g.code(std::numeric_limits<float>::quiet_NaN(), 8) == 0);
}

TEST_CASE("every width, group size and odd length comes back, and as a naive reader has it") {
  test::Random random(2);
  for (const std::uint32_t bits : {8U, 4U, 2U}) {
    for (const std::uint32_t group : {32U, 64U, 128U}) {
      for (const std::uint32_t columns : {1U, 3U, 31U, 33U, 64U, 65U, 127U, 129U, 200U, 257U}) {
        CAPTURE(bits);
        CAPTURE(group);
        CAPTURE(columns);
        // The n-th group has minimum n, and only weights that its codes represent exactly.
        const PackedLayout m{3, columns, bits, group};
        std::vector<float> weights;
        for (std::uint32_t row = 0; row < 3; ++row) {
          for (std::uint32_t c = 0; c < columns; ++c) {
            const auto n = static_cast<float>(row * m.row_groups() + c / group);
            weights.push_back(n + 0.25F * static_cast<float>(random.below(1U << bits)));
          }
        }
        float n = -1;
        auto fit = [&](View<const float>, std::uint32_t) { return PackedGroup{0.25F, n += 1}; };
        std::vector<std::byte> packed(m.bytes(), std::byte{0xee});
        REQUIRE(pack(m, weights.data(), packed.data(), fit) == no_weight);
        std::vector<float> read, rows(weights.size());
        CHECK(naive(m, packed, read) == packed.size());
        CHECK(read == weights);
        for (std::uint32_t row = 0; row < 3; ++row) unpack_row(m, packed.data(), row, rows.data() + row * columns);
        CHECK(rows == weights);
        CHECK(unpack_weight(m, packed.data(), 2, columns - 1) == weights.back());
        std::vector<float> last(m.group_size(static_cast<std::uint32_t>(m.row_groups()) - 1));
        unpack_group(m, packed.data(), 2, static_cast<std::uint32_t>(m.row_groups()) - 1, last.data());
        CHECK(std::equal(last.begin(), last.end(), weights.end() - static_cast<std::ptrdiff_t>(last.size())));
        // Padding is 0.
        for (std::size_t i = 3 * m.row_bytes(); i < m.group_at(0, 0); ++i) CHECK(packed[i] == std::byte{0});
        for (std::size_t i = m.group_at(2, 0) + m.row_groups() * 8; i < m.bytes(); ++i)
          CHECK(packed[i] == std::byte{0});
      }
    }
  }
}

TEST_CASE("a matrix with a weight that is not finite is not packed, and the first such weight is named") {
  auto fit = [](View<const float> w, std::uint32_t) { return PackedGroup{1, w[0]}; };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const PackedLayout m{2, 65, 4, 32};
  std::vector<std::byte> packed(m.bytes());
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0U, 31U, 64U, 65U, 128U, 129U}) {
      std::vector<float> weights(130, 1.0F);
      weights[at] = weights[129] = bad;
      CHECK(pack(m, weights.data(), packed.data(), fit) == at);
    }
  }
  const PackedLayout malformed{1, 1, 5};
  CHECK_THROWS_AS((void)pack(malformed, nullptr, packed.data(), fit), ConfigError);
}

TEST_CASE("bytes that no one packed are read without harm") {
  const PackedLayout m{1, 70, 4};
  const std::vector<std::byte> poison(m.bytes(), std::byte{0xff});
  std::vector<float> row(70);
  unpack_row(m, poison.data(), 0, row.data());
  for (const float w : row) CHECK(std::isnan(w));
}
