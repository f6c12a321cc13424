// The kernel of PackedProduct for activations of 8 bits, written once for all instruction sets. It is included in the same way
// as product_kernel.hpp, which it includes.
//
// Within a stretch, codes and activations are multiplied and added as integers, exactly. The sums of `lanes` outputs form a
// vector, which is multiplied with the scales; stretches are added in their order. So there is one order of roundings, however
// the integers were made: for one row of x those of each output are made from its codes as they lie, and then put side by side;
// for several rows the codes are put side by side first, so that each lane adds up its own output.
//
// Besides what it does with floats, `Lanes` has: `Ints`, a vector of integers; `Bytes`, the codes of a stretch; `unpack_bytes`,
// which makes these; `bias`, which added to a code gives the number that a scale belongs to; `dot`, the products of codes with
// activations, partly added up; `add_up`, which makes of `lanes` of those vectors one for each part of the columns, two or
// four; `transpose`, which puts the codes of `lanes` outputs side by side, four columns of each at a time; `transpose_ints`;
// `dot_side_by_side`; and for blocks `widen_halves`, and for blocks of 256 columns `set_scales`, which makes floats of the
// scales and minima of `lanes` of them. Columns are in an order of the vocabulary's own.
#include <algorithm>
#include <cstring>
#include <limits>

#include "math/product_kernel.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t int8_stretches = Int8Rows::chunk_stretches;

/// What is added to the numbers of a block so that they are not negative.
constexpr std::int32_t centre_of(BlockType type) {
  switch (type) {
    case BlockType::q8_0:
    case BlockType::iq4_nl:
    case BlockType::iq4_xs:
      return 128;
    case BlockType::q4_0:
      return 8;
    case BlockType::q5_0:
      return 16;
    case BlockType::q3_k:
      return 4;
    case BlockType::q6_k:
      return 32;
    case BlockType::mxfp4:
      return 12;
    default:
      return 0;
  }
}

/// Groups of a stretch.
template <class Format>
constexpr std::uint32_t int8_groups = Format::groups;
template <BlockType type>
constexpr std::uint32_t int8_groups<Blocks<type>> = stretch_columns / detail::group_weights(type);

/// The rows of `lanes` outputs; blocks that do not fill each one's last unit are copied, and filled up with nothing.
template <class Format, class Layout>
struct Int8Weights : WeightRows<Format, Layout> {
  using WeightRows<Format, Layout>::WeightRows;

  /// Where a stretch of an output is, or the unit that it is in.
  [[nodiscard]] const std::byte* at(std::uint32_t output, std::uint32_t stretch) const {
    return this->rows[output].at(stretch);
  }
  /// Stretches that lie in the matrix.
  [[nodiscard]] std::uint32_t whole(const Int8Rows& x) const { return x.stretches(); }
};

template <BlockType type>
struct Int8Weights<Blocks<type>, BlockLayout> : WeightRows<Blocks<type>, BlockLayout> {
  using Format = Blocks<type>;

  Int8Weights(const BlockLayout& layout, const std::byte* matrix, std::uint32_t first, std::uint32_t together,
              std::uint32_t count)
      : WeightRows<Format, BlockLayout>(layout, matrix, first, together, count),
        whole_(layout.columns / Format::columns * Format::stretches) {
    const std::uint64_t before = std::uint64_t{layout.columns / Format::columns} * Format::bytes;
    if (before == layout.row_bytes()) return;
    for (std::uint32_t o = 0; o < together; ++o) {
      std::memset(last_[o], 0, sizeof(last_[o]));
      std::memcpy(last_[o], this->rows[o].weights + before, layout.row_bytes() - before);
    }
  }

  [[nodiscard]] const std::byte* at(std::uint32_t output, std::uint32_t stretch) const {
    return stretch < whole_ ? this->rows[output].at(stretch) : last_[output];
  }
  [[nodiscard]] std::uint32_t whole(const Int8Rows& /*x*/) const { return whole_; }

 private:
  std::uint32_t whole_;
  std::byte last_[most_outputs][Format::bytes];
};

/// The codes of a stretch.
template <class Lanes, class Format>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void unpack_codes(Format format, const std::byte* at,
                                                                   std::uint32_t stretch, typename Lanes::Bytes& to) {
  if constexpr (is_blocks<Format>) {
    Lanes::unpack_bytes(format, at, stretch % Format::stretches, to);
  } else {
    Lanes::unpack_bytes(format, at, to);
  }
}

/// Scales and minima of the groups of `lanes` outputs over a chunk.
template <class Lanes, class Format>
struct alignas(64) SideBySide {
  static constexpr std::uint32_t lanes = Lanes::lanes, groups = int8_groups<Format>,
                                 together = lanes / 2;  // groups that are put side by side at once

  std::int32_t bits[int8_stretches * groups * 2][lanes];  // floats: of each group scales, then minima

  /// `meanwhile` is called `lanes` times for a whole chunk.
  template <class Meanwhile>
  [[FERRY_LANES_TARGET gnu::noinline]] void set(const PackedLayout& w, const Int8Weights<Format, PackedLayout>& weights,
                                                Stretches all, const Meanwhile& meanwhile) {
    const WeightRow<Format>(&rows)[most_outputs] = weights.rows;
    shift = rows[0].group_shift;
    const std::uint32_t columns = w.columns - all.first * stretch_columns;
    const std::uint32_t count =
        std::min((columns + w.group - 1) / w.group, ((all.end - all.first) * groups + (1U << shift) - 1) >> shift);
    for (std::uint32_t first = 0; first < count; first += together) {
      typename Lanes::Ints from[lanes];
      if (first == 0) {
        for (std::uint32_t o = 0; o < lanes; ++o) meanwhile();
      }
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
    if (groups == 2 && count % 2 == 1) std::memset(bits[2 * count], 0, 2 * sizeof(bits[0]));  // of half a stretch
    add_bias(count);
  }
  template <class Meanwhile>
  [[FERRY_LANES_TARGET gnu::noinline]] void set(const BlockLayout& /*w*/,
                                                const Int8Weights<Format, BlockLayout>& weights, Stretches all,
                                                const Meanwhile& meanwhile) {
    if constexpr (Format::stretches == 1) {
      set_small(weights, all, meanwhile);
    } else {
      set_units(weights, all, meanwhile);
    }
    add_bias((all.end - all.first) * groups);
  }

  /// Of one part of a stretch.
  [[FERRY_LANES_TARGET FERRY_LANES_INLINE]] typename Lanes::Vector scales(std::uint32_t stretch,
                                                                          std::uint32_t part) const {
    return load(2 * at(stretch, part));
  }
  [[FERRY_LANES_TARGET FERRY_LANES_INLINE]] typename Lanes::Vector minima(std::uint32_t stretch,
                                                                          std::uint32_t part) const {
    return load(2 * at(stretch, part) + 1);
  }

 private:
  /// Blocks of 32 weights have a scale, and some a minimum, each of which is a number.
  template <class Meanwhile>
  [[FERRY_LANES_TARGET FERRY_LANES_INLINE]] void set_small(const Int8Weights<Format, BlockLayout>& weights,
                                                           Stretches all, const Meanwhile& meanwhile) {
    constexpr bool minima = has_minima<Format::type>;
    std::uint16_t halves[int8_stretches * 2][minima ? 2 : 1][lanes];  // of a block, of each output
    for (std::uint32_t o = 0; o < lanes; ++o) {
      meanwhile();
      for (std::uint32_t s = all.first; s < all.end; ++s) {
        const std::byte* at = weights.at(o, s);
#pragma GCC unroll 2
        for (std::uint32_t b = 0; b < 2; ++b, at += block_bytes(Format::type)) {
          const std::uint32_t g = 2 * (s - all.first) + b;
          std::memcpy(&halves[g][0][o], at, sizeof(halves[0][0][0]));
          if constexpr (minima) std::memcpy(&halves[g][1][o], at + 2, sizeof(halves[0][0][0]));
        }
      }
    }
    for (std::uint32_t g = 0; g < 2 * (all.end - all.first); ++g) {
      if constexpr (Format::type == BlockType::mxfp4) {  // an exponent, and behind it codes
        for (std::uint32_t o = 0; o < lanes; ++o) {
          bits[2 * g][o] = __builtin_bit_cast(std::int32_t, detail::half_power(halves[g][0][o] & 0xffU));
        }
      } else {
        store(Lanes::widen_halves(halves[g][0]), 2 * g);
      }
      store(minima ? Lanes::widen_halves(halves[g][minima ? 1 : 0]) : Lanes::zero(), 2 * g + 1);
    }
  }

  template <class Meanwhile>
  [[FERRY_LANES_TARGET FERRY_LANES_INLINE]] void set_units(const Int8Weights<Format, BlockLayout>& weights,
                                                           Stretches all, const Meanwhile& meanwhile) {
    for (std::uint32_t s = all.first; s < all.end; s += Format::stretches) {
      const std::byte* units[lanes];
      for (std::uint32_t o = 0; o < lanes; ++o) units[o] = weights.at(o, s);
      for (std::uint32_t i = 0; i < lanes / (int8_stretches / Format::stretches); ++i) meanwhile();
      Lanes::set_scales(Format{}, units, bits + 2 * (s - all.first) * groups);
    }
  }

  [[nodiscard]] std::uint32_t at(std::uint32_t stretch, std::uint32_t part) const {
    return groups == 1 ? stretch >> shift : groups * stretch + part;
  }
  [[FERRY_LANES_TARGET FERRY_LANES_INLINE]] typename Lanes::Vector load(std::uint32_t i) const {
    return Lanes::load(reinterpret_cast<const float*>(bits[i]));
  }
  [[FERRY_LANES_TARGET FERRY_LANES_INLINE]] void store(typename Lanes::Vector v, std::uint32_t i) {
    Lanes::store(v, reinterpret_cast<float*>(bits[i]));
  }
  [[FERRY_LANES_TARGET FERRY_LANES_INLINE]] void add_bias(std::uint32_t count) {
    if constexpr (Lanes::bias(Format{}) != 0) {
      for (std::uint32_t g = 0; g < count; ++g) {
        const typename Lanes::Vector bias = Lanes::all(Lanes::bias(Format{}));
        store(Lanes::fma(bias, load(2 * g), load(2 * g + 1)), 2 * g + 1);
      }
    }
  }

  std::uint32_t shift = 0;
};

/// The sum of x over one part of a stretch.
template <class Format>
[[FERRY_LANES_INLINE]] inline float sum_of(const Int8Rows::Chunk& x, std::uint32_t stretch, std::uint32_t part) {
  if constexpr (int8_groups<Format> == 1) return x.sums[stretch];
  if constexpr (int8_groups<Format> == 2) return x.halves[stretch][part];
  if constexpr (int8_groups<Format> == 4) return x.quarters[stretch][part];
}

/// Adds what one part of a stretch gives, of which `ints` are the integers.
template <class Lanes, class Format>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline typename Lanes::Vector add_int8_part(
    Format /*format*/, typename Lanes::Ints ints, const SideBySide<Lanes, Format>& groups, const Int8Rows::Chunk& x,
    std::uint32_t stretch, std::uint32_t part, typename Lanes::Vector sum) {
  const typename Lanes::Vector scale = Lanes::all(x.scales[stretch]);
  const typename Lanes::Vector least =
      Lanes::multiply(groups.minima(stretch, part), Lanes::all(sum_of<Format>(x, stretch, part)));
  return Lanes::fma(Lanes::fma(Lanes::to_floats(ints), groups.scales(stretch, part), least), scale, sum);
}

/// Up to `lanes` outputs.
template <class Lanes>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline typename Lanes::Vector load_some(const float* y, std::uint32_t count) {
  alignas(64) float all[Lanes::lanes] = {};
  for (std::uint32_t o = 0; o < count; ++o) all[o] = y[o];
  return Lanes::load(all);
}
template <class Lanes>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void store_some(typename Lanes::Vector v, float* y,
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

  template <class Layout>
  NextCodes(const Layout& layout, const WeightRow<Format> (&w)[most_outputs], std::uint32_t next,
            std::uint32_t stretches) {
    const bool here = next < stretches;
    for (std::uint32_t o = 0; o < Lanes::lanes; ++o) {
      codes[o] = here ? w[o].at(next) : w[o].weights + Lanes::lanes * layout.row_bytes();
    }
    const std::uint32_t left = here ? stretches - next : stretches;
    bytes = std::min(left, int8_stretches) * Format::stretch_bytes;
  }

  /// Part `i` of `parts`.
  [[FERRY_LANES_INLINE]] void prefetch(std::uint32_t i, std::uint32_t parts) const {
    for (std::uint32_t o = Lanes::lanes * i / parts; o < Lanes::lanes * (i + 1) / parts; ++o) {
      for (std::uint32_t at = 0; at < bytes; at += line) __builtin_prefetch(codes[o] + at);
    }
  }
};

/// The integers of one output over each of `lanes` stretches of a chunk from `at` on, one lane for a stretch, or over as many
/// as there are. Where a stretch is one group, the first of `parts` has the sums over all its columns.
template <class Lanes, class Format, class Layout>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void dot_stretches(
    Format format, const Int8Weights<Format, Layout>& w, std::uint32_t output, const Int8Rows& x, std::uint32_t at,
    std::uint32_t end, typename Lanes::Ints (&parts)[std::max(2U, int8_groups<Format>)]) {
  using Dots = decltype(Lanes::dot(format, typename Lanes::Bytes{}, nullptr));
  static_assert(Lanes::lanes % 4 == 0);
  Dots products[Lanes::lanes];
  typename Lanes::Bytes bytes;
  const Int8Rows::Chunk& chunk = *x.at(at, 0);
  const std::uint32_t first = at % int8_stretches;
  if (at + Lanes::lanes <= std::min(end, w.whole(x))) {
    const std::byte* from = w.rows[output].at(at);  // `lanes` stretches are units
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < Lanes::lanes; ++i) {
      unpack_codes<Lanes>(format, WeightRow<Format>::behind(from, i), i, bytes);
      products[i] = Lanes::dot(format, bytes, chunk.values[first + i]);
    }
  } else {
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < Lanes::lanes; ++i) {
      products[i] = Dots{};
      if (at + i >= end) continue;
      unpack_codes<Lanes>(format, w.at(output, at + i), i, bytes);
      products[i] = Lanes::dot(format, bytes, chunk.values[first + i]);
    }
  }
  Lanes::add_up(products, parts);
  if constexpr (int8_groups<Format> == 1) parts[0] = Lanes::add(parts[0], parts[1]);
}

/// One row of x, `count` outputs. The codes of an output are read as they lie, some chunks of them; then the integers of
/// all outputs are put side by side.
template <class Lanes, class Format, class Layout>
[[FERRY_LANES_TARGET gnu::noinline]] void add_int8_row(const Layout& layout, const Int8Weights<Format, Layout>& w,
                                                       const Int8Rows& x, float* y, std::uint32_t count) {
  using Ints = typename Lanes::Ints;
  constexpr std::uint32_t lanes = Lanes::lanes, groups = int8_groups<Format>;
  constexpr std::uint32_t block = (groups == 4 ? 8 : 16) * int8_stretches;  // whose integers stay in a usual L1 cache
  Ints ints[block / lanes][groups][lanes];
  // Lines of a cache that `lanes` stretches take. Memory is asked for some of them while codes are multiplied, for some while
  // scales are put side by side, and for the rest while scales are multiplied: otherwise it would be idle then.
  constexpr std::uint32_t lines = (lanes * Format::stretch_bytes + line - 1) / line;
  constexpr std::uint32_t first_lines = lines * 5 / 8, then_lines = (lines - first_lines + 1) / 2;
  SideBySide<Lanes, Format> scales;
  typename Lanes::Vector sum = Lanes::zero();
  for (std::uint32_t begin = 0; begin < x.stretches(); begin += block) {
    const std::uint32_t end = std::min(begin + block, x.stretches());
    const std::int64_t all = std::int64_t{lanes} * (end - begin) * Format::stretch_bytes;
    Stream<Format> stream(w.rows[0].at(begin), end - begin, layout.row_bytes(),
                          all * (lines - first_lines) / lines + 8192);
    for (std::uint32_t o = 0; o < lanes; ++o) {
      if constexpr (!is_blocks<Format>) {
        const std::byte* next_groups = w.rows[o].group(begin) + lanes * layout.row_groups() * sizeof(PackedGroup);
        for (std::uint32_t i = 0; i < (end - begin) * groups * sizeof(PackedGroup); i += line) {
          __builtin_prefetch(next_groups + i);
        }
      }
      for (std::uint32_t at = begin; at < end; at += lanes) {
        Ints parts[std::max(2U, groups)];
        if (end - at >= lanes) {
          stream.read_bytes(first_lines * line);
        } else {
          stream.read_bytes((end - at) * first_lines / lanes * line);
        }
        dot_stretches<Lanes>(Format{}, w, o, x, at, end, parts);
#pragma GCC unroll 4
        for (std::uint32_t part = 0; part < groups; ++part) ints[(at - begin) / lanes][part][o] = parts[part];
      }
    }
    for (std::uint32_t at = begin; at < end; at += lanes) {
      if (at % int8_stretches == 0) {
        scales.set(layout, w, {at, std::min(at + int8_stretches, end)},
                   [&] { stream.read_bytes(int8_stretches / lanes * then_lines * line); });
      }
      alignas(64) std::int32_t own[groups][lanes][lanes];  // [stretches, outputs]
#pragma GCC unroll 4
      for (std::uint32_t part = 0; part < groups; ++part) {
        Lanes::transpose_ints(ints[(at - begin) / lanes][part], own[part][0]);
      }
      for (std::uint32_t i = 0; i < std::min(lanes, end - at); ++i) {
        stream.read_bytes((lines - first_lines - then_lines) * line);
#pragma GCC unroll 4
        for (std::uint32_t part = 0; part < groups; ++part) {
          sum = add_int8_part<Lanes>(Format{}, Lanes::load_ints(own[part][i]), scales, *x.at(at, 0),
                                     at % int8_stretches + i, part, sum);
        }
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

template <class Lanes, class Format, class Layout>
[[FERRY_LANES_TARGET gnu::noinline]] void fill_int8(Int8Tile<Lanes, Format>& tile, const Layout& layout,
                                                    const Int8Weights<Format, Layout>& w, Stretches all) {
  constexpr std::uint32_t together = is_blocks<Format> ? 4 : 1;  // stretches: a unit, or several
  tile.groups.set(layout, w, all, [] {});
  for (std::uint32_t first = all.first; first < all.end; first += together) {
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < together; ++i) {
      if (first + i >= all.end) break;
      typename Lanes::Bytes bytes[Lanes::lanes];
#pragma GCC unroll 16
      for (std::uint32_t o = 0; o < Lanes::lanes; ++o) {
        unpack_codes<Lanes>(Format{}, w.at(o, first + i), i, bytes[o]);
      }
      Lanes::transpose(bytes, tile.codes[first + i - all.first]);
    }
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
    constexpr std::uint32_t groups = int8_groups<Format>;
#pragma GCC unroll 4
    for (std::uint32_t part = 0; part < groups; ++part) {
      Ints own[rows];
#pragma GCC unroll 8
      for (std::uint32_t r = 0; r < rows; ++r) own[r] = Lanes::no_ints();
      Lanes::dot_side_by_side(Format{}, tile.codes[s], part * 4 / groups, (part + 1) * 4 / groups, x, s, own);
#pragma GCC unroll 8
      for (std::uint32_t r = 0; r < rows; ++r) {
        sums[r] = add_int8_part<Lanes>(Format{}, own[r], tile.groups, x[r], s, part, sums[r]);
      }
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
template <class Lanes, class Format, class Layout>
void add_int8_tiles(Int8Tile<Lanes, Format>& tile, const Layout& layout, const Int8Weights<Format, Layout>& w,
                    const Int8Rows& x, float* y, std::uint32_t count) {
  constexpr std::uint32_t most = Lanes::int8_rows;
  for (std::uint32_t first = 0; first < x.stretches(); first += int8_stretches) {
    const Stretches all{first, std::min(first + int8_stretches, x.stretches())};
    fill_int8(tile, layout, w, all);
    const NextCodes<Lanes, Format> next(layout, w.rows, all.end, x.stretches());
    const std::uint32_t panels = (x.rows() + most - 1) / most;
    for (std::uint32_t panel = 0; panel < panels; ++panel) {
      next.prefetch(panel, panels);
      const std::uint32_t row = panel * most;
      add_int8_panel<Lanes, most, Format>(tile, all.end - all.first, x.at(first, row), std::min(most, x.rows() - row),
                                          y + row * std::size_t{layout.rows}, layout.rows, count);
    }
  }
}

template <class Lanes, class Format, class Layout>
void multiply_int8(const Layout& layout, const std::byte* weights, part::Outputs range, const part::Rows& x, float* y) {
  static_assert(Lanes::lanes <= most_outputs);
  const std::uint32_t rows = x.int8.rows();
  for (std::uint32_t r = 0; r < rows; ++r) {
    std::fill(y + std::size_t{r} * layout.rows + range.first, y + std::size_t{r} * layout.rows + range.end, 0.0F);
  }
  Int8Tile<Lanes, Format> tile;
  for (std::uint32_t out = range.first; out < range.end; out += Lanes::lanes) {
    const std::uint32_t count = std::min(Lanes::lanes, range.end - out);
    const Int8Weights<Format, Layout> w(layout, weights, out, Lanes::lanes, count);
    if (rows == 1) {
      add_int8_row<Lanes>(layout, w, x.int8, y + out, count);
    } else {
      add_int8_tiles<Lanes>(tile, layout, w, x.int8, y + out, count);
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

/// Not of fp8, whose codes are no whole numbers.
template <class Lanes>
void multiply_int8(const BlockLayout& w, const std::byte* weights, part::Outputs range, const part::Rows& x, float* y) {
  with_blocks(w.type, [&](auto format) {
    if constexpr (!std::is_same_v<decltype(format), Blocks<BlockType::fp8>>) {
      multiply_int8<Lanes, decltype(format)>(w, weights, range, x, y);
    }
  });
}

/// Rounds a row. Compilers make vectors of loops that have a known length and arrays of their own.
template <class Lanes>
[[FERRY_LANES_TARGET gnu::noinline]] void set_int8(Int8Rows& rows, std::uint32_t row, const float* from) {
  constexpr std::uint32_t lanes = 16;
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
    // NaN or infinity makes the scale NaN; numbers so small that the inverse would be infinite make it 0.
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
    std::int32_t sums[4] = {};
    for (std::uint32_t part = 0; part < 4; ++part) {
      for (std::uint32_t i = 0; i < stretch_columns / 4; ++i) sums[part] += values[part * (stretch_columns / 4) + i];
    }

    Int8Rows::Chunk& to = *rows.at(stretch, row);
    const std::uint32_t at = stretch % int8_stretches;
    for (std::uint32_t i = 0; i < stretch_columns; ++i) to.values[at][i] = bytes[rows.order().column[i]];
    to.scales[at] = none ? std::numeric_limits<float>::quiet_NaN() : zero ? 0 : step;
    for (std::uint32_t part = 0; part < 4; ++part) to.quarters[at][part] = static_cast<float>(sums[part]);
    for (std::uint32_t part = 0; part < 2; ++part) {
      to.halves[at][part] = static_cast<float>(sums[2 * part] + sums[2 * part + 1]);
    }
    to.sums[at] = to.halves[at][0] + to.halves[at][1];
  }
}

template <class Lanes>
constexpr part::Int8Kernel make_int8_kernel() {
  return {Lanes::order_int8, Lanes::order_int8, set_int8<Lanes>, multiply_int8<Lanes>, multiply_int8<Lanes>};
}

}  // namespace
}  // namespace ferry::engine
