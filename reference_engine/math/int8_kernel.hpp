// The kernel of PackedProduct for activations of 8 bits, written once for all instruction sets. Included as
// product_kernel.hpp is, with which it comes.
//
// Codes and activations of a stretch are multiplied and added as integers, exactly. Those sums of `lanes` outputs are a
// vector, which is multiplied with the scales, and stretches are added in their order. So there is one order of
// roundings, however the integers came about: for one row those of an output are made of its codes as they lie, and then
// put side by side; for several, the codes are first put side by side, so that each lane adds its own output's.
//
// Of `Lanes` this takes, besides floats: `Ints`, a vector of integers; `Bytes`, the codes of a stretch; `unpack_bytes`,
// which makes these; `dot`, their products with activations, some added up; `add_up`, which makes `lanes` of those two
// vectors, over half the columns each; `transpose`, which puts the codes of `lanes` outputs side by side, four columns of
// each at a time, and `transpose_ints`; and `dot_side_by_side`. Columns are in an order of its own.
#include <algorithm>
#include <cstring>
#include <limits>

#include "math/product_kernel.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t int8_stretches = Int8Rows::chunk_stretches;

/// Scales and minima of the groups of `lanes` outputs over a chunk.
template <class Lanes, class Format>
struct alignas(64) SideBySide {
  static constexpr std::uint32_t lanes = Lanes::lanes,
                                 together = lanes / 2;  // groups that are put side by side at once

  std::int32_t bits[int8_stretches * Format::groups * 2][lanes];  // floats: of each group scales, then minima

  [[FERRY_LANES_TARGET gnu::noinline]] void set(const PackedLayout& w, const WeightRow<Format> (&rows)[most_outputs],
                                                Stretches all) {
    shift = rows[0].group_shift;
    const std::uint32_t columns = w.columns - all.first * stretch_columns;
    const std::uint32_t count = std::min((columns + w.group - 1) / w.group,
                                         ((all.end - all.first) * Format::groups + (1U << shift) - 1) >> shift);
    for (std::uint32_t first = 0; first < count; first += together) {
      typename Lanes::Ints from[lanes];
      if (first + together <= count) {
        for (std::uint32_t o = 0; o < lanes; ++o) {
          from[o] = Lanes::load_any_ints(rows[o].group(all.first) + first * sizeof(PackedGroup));
        }
      } else {  // filled up with groups of nothing
        for (std::uint32_t o = 0; o < lanes; ++o) {
          PackedGroup some[together];
          std::memcpy(some, rows[o].group(all.first) + first * sizeof(PackedGroup),
                      (count - first) * sizeof(PackedGroup));
          from[o] = Lanes::load_any_ints(reinterpret_cast<const std::byte*>(some));
        }
      }
      Lanes::transpose_ints(from, bits[2 * first]);
    }
    if (Format::groups == 2 && count % 2 == 1)
      std::memset(bits[2 * count], 0, 2 * sizeof(bits[0]));  // of half a stretch
    if constexpr (Lanes::bias(Format{}) != 0) {
      for (std::uint32_t g = 0; g < count; ++g) {
        const typename Lanes::Vector bias = Lanes::all(Lanes::bias(Format{}));
        Lanes::store(Lanes::fma(bias, load(2 * g), load(2 * g + 1)), reinterpret_cast<float*>(bits[2 * g + 1]));
      }
    }
  }

  /// Of the first group of a stretch, or the second.
  [[FERRY_LANES_TARGET gnu::always_inline]] typename Lanes::Vector scales(std::uint32_t stretch,
                                                                          std::uint32_t part) const {
    return load(2 * at(stretch, part));
  }
  [[FERRY_LANES_TARGET gnu::always_inline]] typename Lanes::Vector minima(std::uint32_t stretch,
                                                                          std::uint32_t part) const {
    return load(2 * at(stretch, part) + 1);
  }

 private:
  [[nodiscard]] std::uint32_t at(std::uint32_t stretch, std::uint32_t part) const {
    return Format::groups == 2 ? 2 * stretch + part : stretch >> shift;
  }
  [[FERRY_LANES_TARGET gnu::always_inline]] typename Lanes::Vector load(std::uint32_t i) const {
    return Lanes::load(reinterpret_cast<const float*>(bits[i]));
  }

  std::uint32_t shift = 0;
};

/// Adds what a stretch gives. `parts`: the integers over half its columns each; over all in the first, where these are one
/// group.
template <class Lanes, class Format>
[[FERRY_LANES_TARGET gnu::always_inline]] inline typename Lanes::Vector add_int8_stretch(
    Format /*format*/, const typename Lanes::Ints (&parts)[2], const SideBySide<Lanes, Format>& groups,
    const Int8Rows::Chunk& x, std::uint32_t stretch, typename Lanes::Vector sum) {
  const typename Lanes::Vector scale = Lanes::all(x.scales[stretch]);
#pragma GCC unroll 2
  for (std::uint32_t part = 0; part < Format::groups; ++part) {
    const typename Lanes::Vector least =
        Lanes::multiply(groups.minima(stretch, part), Lanes::all(x.sums[stretch][part]));
    sum = Lanes::fma(Lanes::fma(Lanes::to_floats(parts[part]), groups.scales(stretch, part), least), scale, sum);
  }
  return sum;
}

/// Up to `lanes` outputs.
template <class Lanes>
[[FERRY_LANES_TARGET gnu::always_inline]] inline typename Lanes::Vector load_some(const float* y, std::uint32_t count) {
  alignas(64) float all[Lanes::lanes] = {};
  for (std::uint32_t o = 0; o < count; ++o) all[o] = y[o];
  return Lanes::load(all);
}
template <class Lanes>
[[FERRY_LANES_TARGET gnu::always_inline]] inline void store_some(typename Lanes::Vector v, float* y,
                                                                 std::uint32_t count) {
  alignas(64) float all[Lanes::lanes];
  Lanes::store(v, all);
  for (std::uint32_t o = 0; o < count; ++o) y[o] = all[o];
}

/// Codes that are read soon: of the next chunk of these outputs, or of those that follow. Harmless behind the last.
template <class Lanes, class Format>
struct NextCodes {
  const std::byte* codes[most_outputs];
  std::uint32_t bytes;  ///< of each output

  NextCodes(const PackedLayout& layout, const WeightRow<Format> (&w)[most_outputs], std::uint32_t next,
            std::uint32_t stretches) {
    const bool here = next < stretches;
    for (std::uint32_t o = 0; o < Lanes::lanes; ++o) {
      codes[o] = here ? w[o].at(next) : w[o].weights + Lanes::lanes * layout.row_bytes();
    }
    const std::uint32_t left = here ? stretches - next : stretches;
    bytes = std::min(left, int8_stretches) * Format::stretch_bytes;
  }

  /// Part `i` of `parts`.
  [[gnu::always_inline]] void prefetch(std::uint32_t i, std::uint32_t parts) const {
    for (std::uint32_t o = Lanes::lanes * i / parts; o < Lanes::lanes * (i + 1) / parts; ++o) {
      for (std::uint32_t at = 0; at < bytes; at += line) __builtin_prefetch(codes[o] + at);
    }
  }
};

/// The integers of one output over `lanes` stretches of a chunk, a lane each; over fewer if there are not so many.
template <class Lanes, class Format>
[[FERRY_LANES_TARGET gnu::always_inline]] inline void dot_stretches(Format format, const std::byte* codes,
                                                                    const Int8Rows::Chunk& x, std::uint32_t first,
                                                                    std::uint32_t count,
                                                                    typename Lanes::Ints (&parts)[2]) {
  typename Lanes::Ints products[Lanes::lanes];
  typename Lanes::Bytes bytes;
  if (count >= Lanes::lanes) {
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < Lanes::lanes; ++i) {
      Lanes::unpack_bytes(format, codes + std::size_t{i} * Format::stretch_bytes, bytes);
      products[i] = Lanes::dot(format, bytes, x.values[first + i]);
    }
  } else {
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < Lanes::lanes; ++i) {
      products[i] = Lanes::no_ints();
      if (i >= count) continue;
      Lanes::unpack_bytes(format, codes + std::size_t{i} * Format::stretch_bytes, bytes);
      products[i] = Lanes::dot(format, bytes, x.values[first + i]);
    }
  }
  Lanes::add_up(products, parts);
  if constexpr (Format::groups == 1) parts[0] = Lanes::add(parts[0], parts[1]);
}

/// One row of x, `count` outputs. The codes of an output are read as they lie, some chunks of them; then the integers of
/// all outputs are put side by side.
template <class Lanes, class Format>
[[FERRY_LANES_TARGET gnu::noinline]] void add_int8_row(const PackedLayout& layout,
                                                       const WeightRow<Format> (&w)[most_outputs], const Int8Rows& x,
                                                       float* y, std::uint32_t count) {
  using Ints = typename Lanes::Ints;
  constexpr std::uint32_t lanes = Lanes::lanes, block = 16 * int8_stretches;
  Ints ints[block / lanes][Format::groups][lanes];
  SideBySide<Lanes, Format> groups;
  typename Lanes::Vector sum = Lanes::zero();
  for (std::uint32_t begin = 0; begin < x.stretches(); begin += block) {
    const std::uint32_t end = std::min(begin + block, x.stretches());
    for (std::uint32_t o = 0; o < lanes; ++o) {
      const std::byte* next_groups = w[o].group(begin) + lanes * layout.row_groups() * sizeof(PackedGroup);
      for (std::uint32_t i = 0; i < (end - begin) * Format::groups * sizeof(PackedGroup); i += line) {
        __builtin_prefetch(next_groups + i);
      }
      Stream<Format> stream(w[o].at(begin), end - begin, layout.row_bytes());
      for (std::uint32_t at = begin; at < end; at += lanes) {
        Ints parts[2];
        stream.read(std::min(lanes, end - at));
        dot_stretches<Lanes>(Format{}, w[o].at(at), *x.at(at, 0), at % int8_stretches, end - at, parts);
#pragma GCC unroll 2
        for (std::uint32_t part = 0; part < Format::groups; ++part) ints[(at - begin) / lanes][part][o] = parts[part];
      }
    }
    for (std::uint32_t at = begin; at < end; at += lanes) {
      if (at % int8_stretches == 0) groups.set(layout, w, {at, std::min(at + int8_stretches, end)});
      alignas(64) std::int32_t own[Format::groups][lanes][lanes];  // [stretches, outputs]
#pragma GCC unroll 2
      for (std::uint32_t part = 0; part < Format::groups; ++part) {
        Lanes::transpose_ints(ints[(at - begin) / lanes][part], own[part][0]);
      }
      for (std::uint32_t i = 0; i < std::min(lanes, end - at); ++i) {
        Ints parts[2] = {Lanes::load_ints(own[0][i]), Lanes::no_ints()};
        if constexpr (Format::groups == 2) parts[1] = Lanes::load_ints(own[1][i]);
        sum = add_int8_stretch<Lanes>(Format{}, parts, groups, *x.at(at, 0), at % int8_stretches + i, sum);
      }
    }
  }
  store_some<Lanes>(sum, y, count);
}

/// The codes of `lanes` outputs over a chunk, side by side.
template <class Lanes, class Format>
struct alignas(64) Int8Tile {
  SideBySide<Lanes, Format> groups;
  std::byte codes[int8_stretches][stretch_columns * Lanes::lanes];
};

template <class Lanes, class Format>
[[FERRY_LANES_TARGET gnu::noinline]] void fill_int8(Int8Tile<Lanes, Format>& tile, const PackedLayout& layout,
                                                    const WeightRow<Format> (&w)[most_outputs], Stretches all) {
  tile.groups.set(layout, w, all);
  for (std::uint32_t stretch = all.first; stretch < all.end; ++stretch) {
    typename Lanes::Bytes bytes[Lanes::lanes];
#pragma GCC unroll 16
    for (std::uint32_t o = 0; o < Lanes::lanes; ++o) Lanes::unpack_bytes(Format{}, w[o].at(stretch), bytes[o]);
    Lanes::transpose(bytes, tile.codes[stretch - all.first]);
  }
}

/// Adds the products of a chunk of `rows` rows of x, which begin at `x`, to y [rows, y_stride].
template <class Lanes, std::uint32_t rows, class Format>
[[FERRY_LANES_TARGET gnu::noinline]] void add_int8_rows(const Int8Tile<Lanes, Format>& tile, std::uint32_t stretches,
                                                        const Int8Rows::Chunk* x, float* y, std::size_t y_stride,
                                                        std::uint32_t count) {
  using Ints = typename Lanes::Ints;
  typename Lanes::Vector sums[rows];
  const bool whole = count == Lanes::lanes;
#pragma GCC unroll 8
  for (std::uint32_t r = 0; r < rows; ++r) {
    sums[r] = whole ? Lanes::load_any(reinterpret_cast<const std::byte*>(y + r * y_stride))
                    : load_some<Lanes>(y + r * y_stride, count);
  }
#pragma GCC unroll 1
  for (std::uint32_t s = 0; s < stretches; ++s) {
    Ints low[rows], high[rows];
#pragma GCC unroll 8
    for (std::uint32_t r = 0; r < rows; ++r) low[r] = high[r] = Lanes::no_ints();
    if constexpr (Format::groups == 2) {
      Lanes::dot_side_by_side(Format{}, tile.codes[s], 0, 1, x, s, low);
      Lanes::dot_side_by_side(Format{}, tile.codes[s], 1, 2, x, s, high);
    } else {
      Lanes::dot_side_by_side(Format{}, tile.codes[s], 0, 2, x, s, low);
    }
#pragma GCC unroll 8
    for (std::uint32_t r = 0; r < rows; ++r) {
      const Ints parts[2] = {low[r], high[r]};
      sums[r] = add_int8_stretch<Lanes>(Format{}, parts, tile.groups, x[r], s, sums[r]);
    }
  }
#pragma GCC unroll 8
  for (std::uint32_t r = 0; r < rows; ++r) {
    if (whole) {
      Lanes::store_any(sums[r], y + r * y_stride);
    } else {
      store_some<Lanes>(sums[r], y + r * y_stride, count);
    }
  }
}

/// Rows that are computed together: as many as registers hold, then half as many, and so on.
template <class Lanes, std::uint32_t rows, class Format>
void add_int8_panel(const Int8Tile<Lanes, Format>& tile, std::uint32_t stretches, const Int8Rows::Chunk* x,
                    std::uint32_t count, float* y, std::size_t y_stride, std::uint32_t outputs_count) {
  if (count >= rows) {
    add_int8_rows<Lanes, rows, Format>(tile, stretches, x, y, y_stride, outputs_count);
    x += rows, y += rows * y_stride, count -= rows;
  }
  if constexpr (rows > 1) {
    if (count > 0) add_int8_panel<Lanes, rows / 2, Format>(tile, stretches, x, count, y, y_stride, outputs_count);
  }
}

/// Several rows of x, `count` outputs.
template <class Lanes, class Format>
void add_int8_tiles(Int8Tile<Lanes, Format>& tile, const PackedLayout& layout,
                    const WeightRow<Format> (&w)[most_outputs], const Int8Rows& x, float* y, std::uint32_t count) {
  constexpr std::uint32_t most = Lanes::int8_rows;
  for (std::uint32_t first = 0; first < x.stretches(); first += int8_stretches) {
    const Stretches all{first, std::min(first + int8_stretches, x.stretches())};
    fill_int8(tile, layout, w, all);
    const NextCodes<Lanes, Format> next(layout, w, all.end, x.stretches());
    const std::uint32_t panels = (x.rows() + most - 1) / most;
    for (std::uint32_t panel = 0; panel < panels; ++panel) {
      next.prefetch(panel, panels);
      const std::uint32_t row = panel * most;
      add_int8_panel<Lanes, most, Format>(tile, all.end - all.first, x.at(first, row), std::min(most, x.rows() - row),
                                          y + row * std::size_t{layout.rows}, layout.rows, count);
    }
  }
}

template <class Lanes, class Format>
void multiply_int8(const PackedLayout& layout, const std::byte* weights, part::Outputs range, const part::Rows& x,
                   float* y) {
  static_assert(Lanes::lanes <= most_outputs);
  const std::uint32_t rows = x.int8.rows();
  for (std::uint32_t r = 0; r < rows; ++r) {
    std::fill(y + std::size_t{r} * layout.rows + range.first, y + std::size_t{r} * layout.rows + range.end, 0.0F);
  }
  Int8Tile<Lanes, Format> tile;
  for (std::uint32_t out = range.first; out < range.end; out += Lanes::lanes) {
    const std::uint32_t count = std::min(Lanes::lanes, range.end - out);
    const WeightRows<Format, PackedLayout> w(layout, weights, out, Lanes::lanes, count);
    if (rows == 1) {
      add_int8_row<Lanes>(layout, w.rows, x.int8, y + out, count);
    } else {
      add_int8_tiles<Lanes>(tile, layout, w.rows, x.int8, y + out, count);
    }
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

/// Loops of known length over arrays of their own become vectors.
template <class Lanes>
[[FERRY_LANES_TARGET gnu::noinline]] void set_int8(Int8Rows& rows, std::uint32_t row, const float* from) {
  constexpr std::uint32_t half = stretch_columns / 2, lanes = 16;
  constexpr std::int32_t infinity = 0x7f800000;
  constexpr float whole = 1.5F * (1U << 23U);  // floats of this size are whole numbers: adding it rounds to the nearest
  for (std::uint32_t stretch = 0; stretch < rows.stretches(); ++stretch, from += stretch_columns) {
    alignas(64) float x[stretch_columns] = {};
    std::memcpy(x, from, std::min(stretch_columns, rows.columns() - stretch * stretch_columns) * sizeof(float));
    std::int32_t most[lanes] = {}, largest = 0;  // bits of a magnitude, which ascend as it does
    for (std::uint32_t i = 0; i < stretch_columns; i += lanes) {
      for (std::uint32_t lane = 0; lane < lanes; ++lane) {
        const std::int32_t bits = __builtin_bit_cast(std::int32_t, x[i + lane]) & 0x7fffffff;
        most[lane] = bits > most[lane] ? bits : most[lane];
      }
    }
    for (const std::int32_t bits : most) largest = bits > largest ? bits : largest;
    // What is no number, or infinite, makes the scale none; what is so small that an inverse would be infinite, 0.
    const float step = __builtin_bit_cast(float, largest) / 127;
    const bool none = largest >= infinity, zero = none || step < 0x1p-126F;
    const float inverse = zero ? 0 : 1 / step;
    if (zero) std::memset(x, 0, sizeof(x));
    std::int32_t values[stretch_columns];
    for (std::uint32_t i = 0; i < stretch_columns; ++i) {
      const float rounded = x[i] * inverse + whole;
      values[i] = __builtin_bit_cast(std::int32_t, rounded) - __builtin_bit_cast(std::int32_t, whole);
    }
    std::int8_t bytes[stretch_columns];
    for (std::uint32_t i = 0; i < stretch_columns; ++i) bytes[i] = static_cast<std::int8_t>(values[i]);
    std::int32_t sums[2] = {};
    for (std::uint32_t i = 0; i < half; ++i) sums[0] += values[i];
    for (std::uint32_t i = half; i < stretch_columns; ++i) sums[1] += values[i];

    Int8Rows::Chunk& to = *rows.at(stretch, row);
    const std::uint32_t at = stretch % int8_stretches;
    for (std::uint32_t i = 0; i < stretch_columns; ++i) to.values[at][i] = bytes[rows.order().column[i]];
    to.scales[at] = none ? std::numeric_limits<float>::quiet_NaN() : zero ? 0 : step;
    to.sums[at][0] = static_cast<float>(rows.group() < stretch_columns ? sums[0] : sums[0] + sums[1]);
    to.sums[at][1] = static_cast<float>(sums[1]);
  }
}

template <class Lanes>
constexpr part::Int8Kernel make_int8_kernel() {
  return {Lanes::order_int8, set_int8<Lanes>, multiply_int8<Lanes>};
}

}  // namespace
}  // namespace ferry::engine
