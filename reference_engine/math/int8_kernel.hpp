// The kernel of PackedProduct for activations of 8 bits, written once for all instruction sets. Included as
// product_kernel.hpp is, with which it comes.
//
// Codes and activations of a stretch are multiplied and added as integers, exactly; that sum is multiplied with both
// scales. Of `Lanes` this takes `Bytes`, 32 of them, `unpack_bytes`, which makes a stretch two of these, and `dot`, whose
// sums lie in lanes of floats: those of a stretch's groups in lanes that `scales` has for them.
#include "math/product_kernel.hpp"

namespace ferry::engine {
namespace {

/// Adds a stretch to the sums of `rows` rows of x.
template <class Lanes, std::uint32_t rows, class Format>
[[FERRY_LANES_TARGET gnu::always_inline]] inline void add_int8_stretch(Format format, const std::byte* codes,
                                                                       const std::byte* group, const Int8Rows::Chunk* x,
                                                                       std::uint32_t stretch,
                                                                       typename Lanes::Vector (&sums)[rows]) {
  typename Lanes::Bytes weights[2];
  Lanes::unpack_bytes(format, codes, weights);
  const typename Lanes::Vector scale = Lanes::scales(format, group);
#pragma GCC unroll 4
  for (std::uint32_t r = 0; r < rows; ++r) {
    const typename Lanes::Vector product = Lanes::dot(format, weights, x[r].values[stretch]);
    sums[r] = Lanes::fma(product, Lanes::multiply(scale, Lanes::all(x[r].scales[stretch])), sums[r]);
  }
}

/// Adds the products of `rows` rows of x with `together` outputs over a chunk.
template <class Lanes, std::uint32_t rows, std::uint32_t together, class Format>
[[FERRY_LANES_TARGET gnu::always_inline]] inline void add_int8_chunk(const PackedLayout& layout,
                                                                     const WeightRow<Format>* w, Stretches all,
                                                                     const Int8Rows& x, std::uint32_t first_row,
                                                                     float* y, std::uint32_t count) {
  using Vector = typename Lanes::Vector;
  Vector sums[together][rows];
#pragma GCC unroll 2
  for (std::uint32_t o = 0; o < together; ++o) {
#pragma GCC unroll 4
    for (std::uint32_t r = 0; r < rows; ++r) sums[o][r] = Lanes::zero();
  }
  const Int8Rows::Chunk* chunk = x.at(all.first, first_row);
  const std::uint32_t whole = std::min(all.end, layout.columns / stretch_columns);
#pragma GCC unroll 1
  for (std::uint32_t stretch = all.first; stretch < whole; ++stretch) {
#pragma GCC unroll 2
    for (std::uint32_t o = 0; o < together; ++o) {
      add_int8_stretch<Lanes>(Format{}, w[o].at(stretch), w[o].group(stretch), chunk, stretch - all.first, sums[o]);
    }
  }
  if (whole < all.end) {
    for (std::uint32_t o = 0; o < together; ++o) {
      const LastStretch<Format> last(layout, w[o]);
      add_int8_stretch<Lanes>(Format{}, last.bytes, last.groups, chunk, whole - all.first, sums[o]);
    }
  }
  for (std::uint32_t o = 0; o < std::min(together, count); ++o) {
    for (std::uint32_t r = 0; r < rows; ++r) y[std::size_t{r} * layout.rows + o] += Lanes::add_lanes(sums[o][r]);
  }
}

/// Codes that are read soon, which lie one row behind the other, and groups that are multiplied next. Harmless behind the
/// last row.
template <class Format>
[[gnu::always_inline]] inline void prefetch_int8(const WeightRow<Format>& w, Stretches all) {
  constexpr std::uint32_t line = 64, ahead = 2048;
  const std::byte *codes = w.at(all.first) + ahead, *groups = w.group(all.first) + w.groups_ahead;
  const std::uint32_t stretches = all.end - all.first;
  for (std::uint32_t i = 0; i < stretches * Format::stretch_bytes; i += line) __builtin_prefetch(codes + i);
  for (std::uint32_t i = 0; i < stretches * sizeof(PackedGroup) * Format::groups; i += line) {
    __builtin_prefetch(groups + i);
  }
}

template <class Lanes, class Format>
[[FERRY_LANES_TARGET gnu::noinline]] void add_int8(const PackedLayout& layout, const std::byte* matrix,
                                                   part::Outputs range, const Int8Rows& x, float* y) {
  constexpr std::uint32_t pair = 2, rows = 4, chunk = Int8Rows::chunk_stretches;
  for (std::uint32_t out = range.first; out < range.end; out += tile_outputs) {
    const std::uint32_t count = std::min(tile_outputs, range.end - out);
    const WeightRows<Format, PackedLayout> w(layout, matrix, out, tile_outputs, count);
    if (x.rows() == 1) {  // a row of weights after another, as they lie in memory
      for (std::uint32_t o = 0; o < count; o += pair) {
        for (std::uint32_t first = 0; first < x.stretches(); first += chunk) {
          const Stretches all{first, std::min(first + chunk, x.stretches())};
          for (std::uint32_t p = 0; p < pair; ++p) prefetch_int8(w.rows[o + p], all);
          add_int8_chunk<Lanes, 1, pair>(layout, w.rows + o, all, x, 0, y + out + o, count - o);
        }
      }
      continue;
    }
    for (std::uint32_t first = 0; first < x.stretches(); first += chunk) {
      const Stretches all{first, std::min(first + chunk, x.stretches())};
      std::uint32_t row = 0;
      for (; row + rows <= x.rows(); row += rows) {
        for (std::uint32_t o = 0; o < count; ++o) {
          add_int8_chunk<Lanes, rows, 1>(layout, w.rows + o, all, x, row, y + row * std::size_t{layout.rows} + out + o,
                                         1);
        }
      }
      for (; row < x.rows(); ++row) {
        for (std::uint32_t o = 0; o < count; o += pair) {
          add_int8_chunk<Lanes, 1, pair>(layout, w.rows + o, all, x, row, y + row * std::size_t{layout.rows} + out + o,
                                         count - o);
        }
      }
    }
  }
}

template <class Lanes, class Format>
void multiply_int8(const PackedLayout& layout, const std::byte* weights, part::Outputs range, const part::Rows& x,
                   float* y) {
  for (std::uint32_t r = 0; r < x.int8.rows(); ++r) {
    std::fill(y + std::size_t{r} * layout.rows + range.first, y + std::size_t{r} * layout.rows + range.end, 0.0F);
  }
  const std::uint32_t together = outputs_at_once(layout);
  const PassThroughLayout groups{layout.rows, x.group_sums.columns(), FloatType::f32};
  for (std::uint32_t out = range.first; out < range.end; out += together) {
    const part::Outputs own{out, std::min(out + together, range.end)};
    add_product<Lanes, Groups>(groups, weights + layout.group_at(0, 0), own, x.group_sums, y);
    add_int8<Lanes, Format>(layout, weights, own, x.int8, y);
  }
}

template <class Lanes, std::uint32_t bits>
void multiply_int8(const PackedLayout& w, const std::byte* weights, part::Outputs range, const part::Rows& x,
                   float* y) {
  if (w.group < stretch_columns) return multiply_int8<Lanes, Codes<bits, true>>(w, weights, range, x, y);
  multiply_int8<Lanes, Codes<bits, false>>(w, weights, range, x, y);
}

template <class Lanes>
void multiply_int8(const PackedLayout& w, const std::byte* weights, part::Outputs range, const part::Rows& x,
                   float* y) {
  if (w.bits == 8) return multiply_int8<Lanes, 8>(w, weights, range, x, y);
  if (w.bits == 4) return multiply_int8<Lanes, 4>(w, weights, range, x, y);
  multiply_int8<Lanes, 2>(w, weights, range, x, y);
}

template <class Lanes>
constexpr part::Int8Kernel make_int8_kernel() {
  return {Lanes::most_rows, Lanes::lanes, Lanes::order_int8, multiply_int8<Lanes>};
}

}  // namespace
}  // namespace ferry::engine
