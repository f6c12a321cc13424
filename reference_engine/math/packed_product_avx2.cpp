// Products on processors with AVX2, FMA and F16C. Only functions that say so are made of these instructions: the file
// is compiled for any x86, and what it shares with others, such as functions of the library, must run on all of them.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "math/packed_product.hpp"

namespace ferry::engine {
namespace {

// Each sum is made in 8 lanes: lane j adds columns j, j + 8, j + 16, ... of a chunk one after another; the lanes are
// added in a tree, and the chunks' sums in their order, what does not fill a block last. Whatever is computed together,
// this order stays.

constexpr std::uint32_t vectors = Block::columns / 8;  // of a block
constexpr std::uint32_t outputs = 4;                   // together in registers
constexpr std::uint32_t most_rows = 3;  // with them: 12 sums, 3 vectors of x and one of weights are 16 registers
constexpr std::uint32_t tile_outputs = 8;

template <class T>
[[gnu::always_inline]] inline T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Readers: the weights of one row of a matrix, 8 at a time. `group` prepares what the vectors of a block share.

template <FloatType type>
struct FloatReader {
  struct Group {};

  const std::byte* row;

  FloatReader() = default;
  explicit FloatReader(const std::byte* at) : row(at) {}
  FloatReader(const PassThroughLayout& w, const std::byte* weights, std::uint32_t r)
      : row(weights + r * w.row_bytes()) {}

  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] Group group(std::uint32_t /*block*/) const { return {}; }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] __m256 load(std::uint32_t block, std::uint32_t vector,
                                                                   const Group& /*group*/) const {
    const std::size_t first = std::size_t{block} * Block::columns + vector * 8;
    if constexpr (type == FloatType::f32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(row + first * 4));
    } else {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + first * 2));
      if constexpr (type == FloatType::f16) return _mm256_cvtph_ps(halves);
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
  }
};

template <std::uint32_t bits>
struct CodeReader {
  struct Group {
    __m256 scale, minimum;
    __m256 values;  // of the four codes of 2 bits, twice
  };

  const std::byte* codes;
  const std::byte* groups;
  std::uint64_t codes_ahead, groups_ahead;  // to the row that this reader's place has next
  std::uint32_t shift;                      // from a block's number to its group's

  CodeReader() = default;
  CodeReader(const PackedLayout& w, const std::byte* weights, std::uint32_t r)
      : codes(weights + w.codes_at(r, 0)),
        groups(weights + w.group_at(r, 0)),
        codes_ahead(outputs * w.row_bytes()),
        groups_ahead(outputs * w.row_groups() * sizeof(PackedGroup)),
        shift(static_cast<std::uint32_t>(std::countr_zero(w.group / Block::columns))) {}

  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] Group group(std::uint32_t block) const {
    const std::byte* at = groups + std::size_t{block >> shift} * sizeof(PackedGroup);
    // Four rows of short codes are too short for the processor to see where they go on. Harmless behind the last row.
    _mm_prefetch(codes + std::size_t{block} * (Block::columns * bits / 8) + codes_ahead, _MM_HINT_T0);
    _mm_prefetch(at + groups_ahead, _MM_HINT_T0);
    Group g;
    g.scale = _mm256_set1_ps(read<float>(at));
    g.minimum = _mm256_set1_ps(read<float>(at + sizeof(float)));
    if constexpr (bits == 2) g.values = _mm256_fmadd_ps(_mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3), g.scale, g.minimum);
    return g;
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] __m256 load(std::uint32_t block, std::uint32_t vector,
                                                                   const Group& g) const {
    const std::byte* at = codes + std::size_t{block} * (Block::columns * bits / 8);
    if constexpr (bits == 2) {
      const __m256i sixteen = _mm256_set1_epi32(read<std::int32_t>(at + vector / 2 * 4));
      const __m256i low = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
      const __m256i high = _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30);
      return _mm256_permutevar_ps(g.values, _mm256_srlv_epi32(sixteen, vector % 2 == 0 ? low : high));
    } else {
      __m256i code;
      if constexpr (bits == 8) {
        code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + vector * 8)));
      } else {
        const __m256i eight = _mm256_set1_epi32(read<std::int32_t>(at + vector * 4));
        code = _mm256_and_si256(_mm256_srlv_epi32(eight, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
                                _mm256_set1_epi32(15));
      }
      return _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), g.scale, g.minimum);
    }
  }
};

using TileReader = FloatReader<FloatType::f32>;

/// The sums over the lanes of four outputs.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m128 over_lanes(const __m256 (&s)[outputs]) {
  // Lanes 0 + 2 and 1 + 3 of two outputs side by side; then these, of all four; then the halves of the registers.
  const __m256 a = _mm256_add_ps(_mm256_blend_ps(s[0], s[1], 0b11001100), _mm256_shuffle_ps(s[0], s[1], 0b01001110));
  const __m256 b = _mm256_add_ps(_mm256_blend_ps(s[2], s[3], 0b11001100), _mm256_shuffle_ps(s[2], s[3], 0b01001110));
  const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0b10001000), _mm256_shuffle_ps(a, b, 0b11011101));
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

/// Adds the products of `rows` rows of x, over `blocks` blocks from the weights' block `first` on, with up to four
/// outputs. x: [rows, x_stride] blocks, y: [rows, y_stride].
template <std::uint32_t rows, class Reader>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void add_sums(const Reader* w, std::uint32_t first,
                                                                          std::uint32_t blocks, const Block* x,
                                                                          std::uint32_t x_stride, float* y,
                                                                          std::size_t y_stride, std::uint32_t count) {
  __m256 sums[rows][outputs] = {};
  for (std::uint32_t b = 0; b < blocks; ++b) {
    typename Reader::Group groups[outputs];
#pragma GCC unroll 4
    for (std::uint32_t o = 0; o < outputs; ++o) groups[o] = w[o].group(first + b);
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < vectors; ++v) {
      __m256 at[rows];
#pragma GCC unroll 3
      for (std::uint32_t r = 0; r < rows; ++r) {
        at[r] = _mm256_load_ps(x[r * x_stride + b].weights + v * 8);
        asm("" : "+x"(at[r]));  // in a register, not loaded again for each output
      }
#pragma GCC unroll 4
      for (std::uint32_t o = 0; o < outputs; ++o) {
        const __m256 weights = w[o].load(first + b, v, groups[o]);
#pragma GCC unroll 3
        for (std::uint32_t r = 0; r < rows; ++r) sums[r][o] = _mm256_fmadd_ps(weights, at[r], sums[r][o]);
      }
    }
  }
#pragma GCC unroll 3
  for (std::uint32_t r = 0; r < rows; ++r) {
    float* to = y + r * y_stride;
    const __m128 all = over_lanes(sums[r]);
    if (count >= outputs) {
      _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), all));
    } else {
      alignas(16) float each[outputs];
      _mm_store_ps(each, all);
      for (std::uint32_t o = 0; o < count; ++o) to[o] += each[o];
    }
  }
}

/// The same for any number of rows and outputs. `w` has one reader for each output, up to a multiple of four.
template <class Reader>
[[gnu::target("avx2,fma,f16c"), gnu::noinline]] void add_rows(const Reader* w, std::uint32_t first,
                                                              std::uint32_t blocks, const Block* x,
                                                              std::uint32_t x_stride, std::uint32_t rows, float* y,
                                                              std::size_t y_stride, std::uint32_t count) {
  for (; rows >= most_rows; rows -= most_rows, x += most_rows * x_stride, y += most_rows * y_stride) {
    for (std::uint32_t o = 0; o < count; o += outputs) {
      add_sums<most_rows>(w + o, first, blocks, x, x_stride, y + o, y_stride, count - o);
    }
  }
  for (std::uint32_t o = 0; rows == 2 && o < count; o += outputs) {
    add_sums<2>(w + o, first, blocks, x, x_stride, y + o, y_stride, count - o);
  }
  for (std::uint32_t o = 0; rows == 1 && o < count; o += outputs) {
    add_sums<1>(w + o, first, blocks, x, x_stride, y + o, y_stride, count - o);
  }
}

using Tile = Block[tile_outputs][ChunkedRows::chunk];

/// Blocks of `count` outputs as floats.
template <class Reader>
[[gnu::target("avx2,fma,f16c")]] void fill(Tile& tile, const Reader* w, std::uint32_t first, std::uint32_t blocks,
                                           std::uint32_t count) {
  for (std::uint32_t o = 0; o < count; ++o) {
    for (std::uint32_t b = 0; b < blocks; ++b) {
      const auto group = w[o].group(first + b);
#pragma GCC unroll 4
      for (std::uint32_t v = 0; v < vectors; ++v) {
        _mm256_store_ps(tile[o][b].weights + v * 8, w[o].load(first + b, v, group));
      }
    }
  }
}

/// The last columns, too few for a block, filled up with zeros.
template <class Layout>
Block last_block(const Layout& w, const std::byte* weights, std::uint32_t row) {
  Block block{};
  const std::uint32_t first = w.columns / Block::columns * Block::columns;
  for (std::uint32_t c = first; c < w.columns; ++c) block.weights[c - first] = unpack_weight(w, weights, row, c);
  return block;
}

template <class Reader, class Layout>
void add_product(const Layout& w, const std::byte* weights, part::Outputs range, const ChunkedRows& x, float* y) {
  const bool few =
      x.rows() <= most_rows;  // weights pass through registers alone; otherwise they are a tile for all rows
  const std::uint32_t together = few ? outputs : tile_outputs, whole = w.columns / Block::columns;
  Tile tile;
  TileReader tiles[tile_outputs];
  for (std::uint32_t o = 0; o < tile_outputs; ++o) tiles[o] = TileReader(reinterpret_cast<const std::byte*>(tile[o]));
  y += range.first;
  for (std::uint32_t out = range.first; out < range.end; out += together, y += together) {
    const std::uint32_t count = std::min(together, range.end - out);
    // Where fewer outputs are left, the last is computed more than once.
    const auto row = [&](std::uint32_t o) { return out + std::min(o, count - 1); };
    Reader readers[tile_outputs];
    for (std::uint32_t o = 0; o < together; ++o) readers[o] = Reader(w, weights, row(o));
    for (std::uint32_t c = 0; c < x.chunks(); ++c) {
      const std::uint32_t first = c * ChunkedRows::chunk, blocks = x.blocks(c), here = std::min(blocks, whole - first);
      if (few) {
        add_rows(readers, first, here, x.at(c, 0), blocks, x.rows(), y, w.rows, count);
      } else {
        fill(tile, readers, first, here, together);
        add_rows(tiles, 0, here, x.at(c, 0), blocks, x.rows(), y, w.rows, count);
      }
      if (here == blocks) continue;
      for (std::uint32_t o = 0; o < together; ++o) tile[o][0] = last_block(w, weights, row(o));
      add_rows(tiles, 0, 1, x.at(c, 0) + here, blocks, x.rows(), y, w.rows, count);
    }
  }
}

}  // namespace

namespace part {

void add_product_avx2(const PackedLayout& w, const std::byte* weights, Outputs outputs, const ChunkedRows& x,
                      float* y) {
  if (w.bits == 8) return add_product<CodeReader<8>>(w, weights, outputs, x, y);
  if (w.bits == 4) return add_product<CodeReader<4>>(w, weights, outputs, x, y);
  add_product<CodeReader<2>>(w, weights, outputs, x, y);
}

void add_product_avx2(const PassThroughLayout& w, const std::byte* weights, Outputs outputs, const ChunkedRows& x,
                      float* y) {
  if (w.type == FloatType::bf16) return add_product<FloatReader<FloatType::bf16>>(w, weights, outputs, x, y);
  if (w.type == FloatType::f16) return add_product<FloatReader<FloatType::f16>>(w, weights, outputs, x, y);
  add_product<FloatReader<FloatType::f32>>(w, weights, outputs, x, y);
}

}  // namespace part

}  // namespace ferry::engine
#endif
