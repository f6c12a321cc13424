// The kernel of PackedProduct, written once for all instruction sets. Each file that has one includes this, after it
// has defined FERRY_LANES_TARGET: the attribute `gnu::target(...),` of functions made of these instructions, or nothing.
// Only they are compiled for them: what a file shares with others, such as functions of the library, must run on any
// processor.
//
// `Lanes` is a vocabulary: a Vector of floats, what is done with it, and `unpack`, which makes a stretch of 64 columns
// floats, in an order of its own (ColumnOrder). Blocks come in units of one stretch or more: `prepare` makes what all of
// a unit's weights share, once, and `unpack` a stretch of it, in the order of columns.
#pragma once
// The attribute of the parts of kernels: inlined into the kernel, whatever a compiler thinks of its size. A file that does not
// need them to be fast, and compiles them without optimisation, may define this as no attribute.
#if !defined(FERRY_LANES_INLINE)
#define FERRY_LANES_INLINE gnu::always_inline
#endif
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "math/packed_product.hpp"

namespace ferry::engine {
namespace {

template <FloatType type>
struct Floats {
  static constexpr std::uint32_t groups = 0;
  static constexpr std::uint32_t stretch_bytes = stretch_columns * (type == FloatType::f32 ? 4 : 2);
};

/// The floats {scale, minimum} of the groups of packed weights. The next row's follow a row's own, so that reads behind its
/// last column find some, except at the matrix's end; they are multiplied with zeros.
struct Groups : Floats<FloatType::f32> {};

/// `halves`: a stretch has two groups, one for each half of its columns.
template <std::uint32_t bits, bool halves>
struct Codes {
  static constexpr std::uint32_t groups = halves ? 2 : 1;  // of a stretch
  static constexpr std::uint32_t stretch_bytes = stretch_columns * bits / 8;
};

/// A unit: as many of a checkpoint's blocks as fill whole stretches. They become the floats that they stand for.
template <BlockType block_type>
struct Blocks {
  static constexpr BlockType type = block_type;
  static constexpr std::uint32_t groups = 0;
  static constexpr std::uint32_t stretches = std::max(1U, block_weights(type) / stretch_columns);
  static constexpr std::uint32_t columns = stretches * stretch_columns;
  static constexpr std::uint32_t bytes = block_bytes(type) * (columns / block_weights(type));
  static constexpr std::uint32_t stretch_bytes = (bytes + stretches - 1) / stretches;  // for prefetching
  static_assert(chunk_columns % columns == 0);
};

template <BlockType type>
inline constexpr bool has_minima = detail::has_minima(type);

template <class Format>
inline constexpr bool has_groups = Format::groups != 0;
template <class Format>
inline constexpr bool is_blocks = false;
template <BlockType type>
inline constexpr bool is_blocks<Blocks<type>> = true;

// A sum is made in one order, whatever is computed together. Each lane adds the columns of a chunk one after another; where
// groups have scales, it adds what one group has in a stretch, and multiplies that sum once. At the end of a chunk the lanes
// are added in a tree, and the sums of chunks in their order. What the groups' minima give comes first.

constexpr std::uint32_t outputs = 4;        // together in registers
constexpr std::uint32_t few = 3;            // rows of x for which weights stay in registers
constexpr std::uint32_t tile_outputs = 8;   // whose weights become floats at once, for many rows
constexpr std::uint32_t most_outputs = 16;  // that any kernel computes at once
constexpr std::uint32_t chunk_stretches = chunk_columns / stretch_columns;
// How much of a row of x is multiplied with many outputs in turn. For codes it is read anew for each output, so that it has to
// stay in a usual L1 cache; otherwise it is read for several outputs at once, and weights are read in longer pieces for it.
template <class Format>
constexpr std::uint32_t block_stretches = (has_groups<Format> ? 8 : 32) * chunk_stretches;
constexpr std::uint32_t bytes_ahead = 1024;   // that codes of one output are prefetched
constexpr std::uint32_t blocks_ahead = 4096;  // and of blocks, at least
constexpr std::uint32_t line = 64;            // bytes that a cache reads at once

/// How many outputs' groups are multiplied before their codes: as many as are still in a cache when their scales are read.
inline std::uint32_t outputs_at_once(const PackedLayout& w) {
  constexpr std::uint64_t bytes = 16384;
  const std::uint64_t rows = bytes / (w.row_groups() * sizeof(PackedGroup)) / tile_outputs * tile_outputs;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(rows, tile_outputs));
}

/// One row of W.
template <class Format>
struct WeightRow {
  const std::byte* weights = nullptr;
  const std::byte* groups = nullptr;  // {scale, minimum} each
  std::uint64_t groups_ahead = 0;     // bytes to groups that are multiplied next
  std::uint32_t group_shift = 0;      // from a stretch's number to its group's, where it has one
  bool goes_on = false;               // whether a row that ends within a stretch can be read to the stretch's end

  WeightRow() = default;
  WeightRow(const PackedLayout& w, const std::byte* matrix, std::uint32_t row)
      : weights(matrix + w.codes_at(row, 0)),
        groups(matrix + w.group_at(row, 0)),
        groups_ahead(outputs_at_once(w) * w.row_groups() * sizeof(PackedGroup)),
        group_shift(w.group == 2 * stretch_columns ? 1 : 0) {}
  WeightRow(const PassThroughLayout& w, const std::byte* matrix, std::uint32_t row)
      : weights(matrix + row * w.row_bytes()) {
    if constexpr (std::is_same_v<Format, Groups>) {
      const std::uint64_t read = w.row_bytes() + Format::stretch_bytes - 1;
      goes_on = (w.rows - row) * w.row_bytes() >= read / Format::stretch_bytes * Format::stretch_bytes;
    }
  }

  [[nodiscard]] const std::byte* at(std::uint32_t stretch) const { return behind(weights, stretch); }
  /// The stretch that is `stretches` behind the one at `at`.
  static const std::byte* behind(const std::byte* at, std::uint32_t stretches) {
    return at + std::size_t{stretches} * Format::stretch_bytes;
  }
  /// The first group of a stretch; null where there are none.
  [[nodiscard]] const std::byte* group(std::uint32_t stretch) const {
    if constexpr (!has_groups<Format>) return nullptr;
    const std::size_t number = Format::groups == 2 ? std::size_t{2} * stretch : stretch >> group_shift;
    return groups + number * sizeof(PackedGroup);
  }
};

template <BlockType type>
struct WeightRow<Blocks<type>> {
  const std::byte* weights = nullptr;

  WeightRow() = default;
  WeightRow(const BlockLayout& w, const std::byte* matrix, std::uint32_t row) : weights(matrix + row * w.row_bytes()) {}

  /// The unit that a stretch is in.
  [[nodiscard]] const std::byte* at(std::uint32_t stretch) const { return behind(weights, stretch); }
  /// The unit of the stretch that is `stretches` behind the first one of the unit at `at`.
  static const std::byte* behind(const std::byte* at, std::uint32_t stretches) {
    using Format = Blocks<type>;
    return at + std::size_t{stretches / Format::stretches} * Format::bytes;
  }
};

/// The scale of the group that is `behind` groups behind `group`.
inline float scale_of(const std::byte* group, std::uint32_t behind) {
  float scale;
  std::memcpy(&scale, group + behind * sizeof(PackedGroup), sizeof(scale));
  return scale;
}

/// The last stretch of a row that ends within it, filled up with zeros, as is its second group where the row has none.
template <class Format>
struct LastStretch {
  alignas(64) std::byte bytes[Format::stretch_bytes] = {};
  std::byte groups[std::max(1U, Format::groups) * sizeof(PackedGroup)] = {};

  template <class Layout>
  LastStretch(const Layout& w, const WeightRow<Format>& row) {
    const std::uint32_t whole = w.columns / stretch_columns;
    const std::uint64_t before = std::uint64_t{whole} * Format::stretch_bytes;
    std::memcpy(bytes, row.weights + before, w.row_bytes() - before);
    if constexpr (has_groups<Format>) {
      const auto first = static_cast<std::uint64_t>(row.group(whole) - row.groups);
      const std::uint64_t left = w.row_groups() * sizeof(PackedGroup) - first;
      std::memcpy(groups, row.group(whole), std::min<std::uint64_t>(left, sizeof(groups)));
    }
  }
};

template <class Lanes>
constexpr std::uint32_t vectors = stretch_columns / Lanes::lanes;  // of a stretch

/// Where a vector of a row lies in a panel (ChunkedRows).
template <class Lanes, std::uint32_t rows>
constexpr std::size_t place(std::uint32_t row, std::uint32_t vector) {
  return (std::size_t{vector} * rows + row) * Lanes::lanes;
}

/// Adds up the lanes of a chunk's sums, and adds the results to up to four outputs.
template <class Lanes>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void add_to(float* y, const typename Lanes::Vector (&sums)[outputs],
                                                             std::uint32_t count) {
  float sum[outputs];
  Lanes::add_lanes(sums, sum);
  if (count >= outputs) {
#pragma GCC unroll 4
    for (std::uint32_t o = 0; o < outputs; ++o) y[o] += sum[o];
    return;
  }
  for (std::uint32_t o = 0; o < count; ++o) y[o] += sum[o];
}

/// Adds a stretch to the sums of `rows` rows of x.
template <class Lanes, std::uint32_t rows, class Format>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void add_stretch(Format format, const std::byte* at,
                                                                  const std::byte* group, const float* x,
                                                                  typename Lanes::Vector (&sums)[rows]) {
  using Vector = typename Lanes::Vector;
  constexpr std::uint32_t all = vectors<Lanes>;
  Vector weights[all];
  Lanes::unpack(format, at, weights);
  if constexpr (has_groups<Format>) {
    constexpr std::uint32_t each = all / Format::groups;
#pragma GCC unroll 2
    for (std::uint32_t part = 0; part < Format::groups; ++part) {
      const Vector scale = Lanes::all(scale_of(group, part));
#pragma GCC unroll 3
      for (std::uint32_t r = 0; r < rows; ++r) {
        Vector own = Lanes::multiply(weights[part * each], Lanes::load(x + place<Lanes, rows>(r, part * each)));
#pragma GCC unroll 16
        for (std::uint32_t v = part * each + 1; v < (part + 1) * each; ++v) {
          own = Lanes::fma(weights[v], Lanes::load(x + place<Lanes, rows>(r, v)), own);
        }
        sums[r] = Lanes::fma(own, scale, sums[r]);
      }
    }
  } else {
#pragma GCC unroll 16
    for (std::uint32_t v = 0; v < all; ++v) {
#pragma GCC unroll 3
      for (std::uint32_t r = 0; r < rows; ++r) {
        sums[r] = Lanes::fma(weights[v], Lanes::load(x + place<Lanes, rows>(r, v)), sums[r]);
      }
    }
  }
}

struct Stretches {
  std::uint32_t first, end;
};

/// What is left of a row behind its last whole unit, as floats, filled up with zeros.
template <class Format>
struct LastUnit {
  alignas(64) float weights[Format::columns] = {};

  LastUnit(const BlockLayout& w, const WeightRow<Format>& row) {
    const std::uint32_t first = w.columns / Format::columns * Format::columns;
    unpack_columns({1, w.columns, w.type}, row.weights, 0, first, w.columns - first, weights);
  }
};

/// Adds a unit of four outputs to the sums of `rows` rows of x: a stretch of one output after that of another, so that no
/// sum waits for itself.
template <class Lanes, std::uint32_t rows, class Format>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void add_units(Format format, const std::byte* const (&at)[outputs],
                                                                const float* x,
                                                                typename Lanes::Vector (&sums)[outputs][rows]) {
  typename Lanes::Unit units[outputs];
#pragma GCC unroll 4
  for (std::uint32_t o = 0; o < outputs; ++o) Lanes::prepare(format, at[o], units[o]);
#pragma GCC unroll 4
  for (std::uint32_t s = 0; s < Format::stretches; ++s, x += rows * stretch_columns) {
#pragma GCC unroll 4
    for (std::uint32_t o = 0; o < outputs; ++o) {
      typename Lanes::Vector weights[vectors<Lanes>];
      Lanes::unpack(format, at[o], units[o], s, weights);
#pragma GCC unroll 16
      for (std::uint32_t v = 0; v < vectors<Lanes>; ++v) {
#pragma GCC unroll 3
        for (std::uint32_t r = 0; r < rows; ++r) {
          sums[o][r] = Lanes::fma(weights[v], Lanes::load(x + place<Lanes, rows>(r, v)), sums[o][r]);
        }
      }
    }
  }
}

/// Groups that are multiplied next. Harmless behind the last row.
template <class Format>
[[FERRY_LANES_INLINE]] inline void prefetch_groups(const WeightRow<Format>& w, std::uint32_t stretch) {
  for (std::uint32_t i = 0; i < chunk_stretches * sizeof(PackedGroup) * Format::groups; i += line) {
    __builtin_prefetch(w.group(stretch) + w.groups_ahead + i);
  }
}

/// Codes that are read soon: further on, or of the next row where those of this one end. Harmless behind the last row.
template <class Format>
[[FERRY_LANES_INLINE]] inline void prefetch_codes(const WeightRow<Format>& w, std::uint32_t stretch, Stretches all,
                                                  std::uint64_t row_bytes) {
  constexpr std::uint32_t stretches_ahead = bytes_ahead / Format::stretch_bytes;
  std::uint64_t ahead = std::uint64_t{stretch + stretches_ahead} * Format::stretch_bytes;
  if (stretch + stretches_ahead >= all.end) ahead += row_bytes - (all.end - all.first) * Format::stretch_bytes;
  const std::byte* codes = w.weights + ahead;
  for (std::uint32_t i = 0; i < chunk_stretches * Format::stretch_bytes; i += line) __builtin_prefetch(codes + i);
}

/// Prefetches what is read in one stream to the second-level cache, some KB before it is used: by itself a processor looks less
/// far ahead than computing needs. Walks over the same columns of one row of weights after another.
template <class Format>
class Stream {
 public:
  Stream(const std::byte* begin, std::uint32_t stretches, std::uint64_t row_bytes, std::int64_t ahead = 8192)
      : bytes_(stretches * Format::stretch_bytes), gap_(static_cast<std::int64_t>(row_bytes) - bytes_) {
    at_ = begin + ahead / bytes_ * static_cast<std::int64_t>(row_bytes) + ahead % bytes_;
    left_ = bytes_ - ahead % bytes_;
  }

  /// Says that so many stretches are read now; best as many as fill whole lines of the cache.
  [[FERRY_LANES_INLINE]] void read(std::uint32_t stretches) { read_bytes(stretches * Format::stretch_bytes); }
  [[FERRY_LANES_INLINE]] void read_bytes(std::uint32_t bytes) {
#pragma GCC unroll 16
    for (std::uint32_t i = 0; i < bytes; i += line) __builtin_prefetch(at_ + i, 0, 2);  // harmless wherever it is
    at_ += bytes;
    left_ -= bytes;
    if (left_ <= 0) {
      at_ += gap_;
      left_ += bytes_;
    }
  }

 private:
  const std::byte* at_;
  std::int64_t bytes_, gap_, left_;
};

/// Adds the products of a few rows of x with up to four outputs over some columns: weights pass through registers alone.
/// Where memory delivers more in several streams, floats of four outputs are read at once; codes of one after another,
/// since unpacking needs the registers.
template <class Lanes, std::uint32_t rows, class Format, class Layout>
[[FERRY_LANES_TARGET gnu::noinline]] void add_few(const Layout& layout, const WeightRow<Format>* w, Stretches all,
                                                  const ChunkedRows& x, float* y, std::uint32_t count) {
  using Vector = typename Lanes::Vector;
  constexpr std::uint32_t together = has_groups<Format> || Lanes::one_stream ? 1 : outputs;
  const std::uint32_t whole = layout.columns / stretch_columns;
  for (std::uint32_t first = 0; first < count; first += together) {
    Stream<Format> stream(w[first].at(all.first), all.end - all.first, layout.row_bytes());
    for (std::uint32_t begin = all.first; begin < all.end; begin += chunk_stretches) {
      if constexpr (has_groups<Format>) {
        prefetch_groups(w[first], begin);
        if constexpr (!Lanes::one_stream) prefetch_codes(w[first], begin, all, layout.row_bytes());
      }
      const float* at = x.at(begin, 0);
      Vector sums[together][rows];
#pragma GCC unroll 4
      for (std::uint32_t o = 0; o < together; ++o) {
#pragma GCC unroll 3
        for (std::uint32_t r = 0; r < rows; ++r) sums[o][r] = Lanes::zero();
      }
      const std::uint32_t end = std::min(begin + chunk_stretches, all.end);
      const std::uint32_t end_whole = w[first + together - 1].goes_on ? end : std::min(end, whole);
      const std::byte* weights[together];
#pragma GCC unroll 4
      for (std::uint32_t o = 0; o < together; ++o) weights[o] = w[first + o].at(begin);
#pragma GCC unroll 1
      for (std::uint32_t stretch = begin; stretch < end_whole; ++stretch, at += rows * stretch_columns) {
#pragma GCC unroll 4
        for (std::uint32_t o = 0; o < together; ++o) {
          if constexpr (Lanes::one_stream) {
            constexpr std::uint32_t fill_lines = std::max(1U, line / Format::stretch_bytes);
            if (fill_lines == 1 || stretch % fill_lines == 0) stream.read(fill_lines);
          }
          add_stretch<Lanes>(Format{}, weights[o], w[first + o].group(stretch), at, sums[o]);
          weights[o] += Format::stretch_bytes;
        }
      }
      if (end_whole < end) {
        for (std::uint32_t o = 0; o < together; ++o) {
          const LastStretch<Format> last(layout, w[first + o]);
          add_stretch<Lanes>(Format{}, last.bytes, last.groups, at, sums[o]);
        }
      }
#pragma GCC unroll 3
      for (std::uint32_t r = 0; r < rows; ++r) {
        if constexpr (together == 1) {
          y[std::size_t{r} * layout.rows + first] += Lanes::add_lanes(sums[0][r]);
        } else {
          const Vector each[outputs] = {sums[0][r], sums[1][r], sums[2][r], sums[3][r]};
          add_to<Lanes>(y + std::size_t{r} * layout.rows, each, count);
        }
      }
    }
  }
}

/// The same for blocks, and for outputs that are `apart` from each other: four rows of weights are read at once, each as a
/// stream of its own, so that memory delivers long streams.
template <class Lanes, std::uint32_t rows, class Format>
[[FERRY_LANES_TARGET gnu::noinline]] void add_few_blocks(const BlockLayout& layout, const WeightRow<Format>* w,
                                                         Stretches all, const ChunkedRows& x, float* y,
                                                         std::uint32_t apart, std::uint32_t count) {
  using Vector = typename Lanes::Vector;
  const std::uint32_t whole = layout.columns / Format::columns * Format::stretches;
  // Bytes to what is read some KB later; harmless behind the last row.
  const std::uint64_t ahead = (blocks_ahead + layout.row_bytes() - 1) / layout.row_bytes() * layout.row_bytes();
  for (std::uint32_t begin = all.first; begin < all.end; begin += chunk_stretches) {
    const float* at = x.at(begin, 0);
    Vector sums[outputs][rows];
#pragma GCC unroll 4
    for (std::uint32_t o = 0; o < outputs; ++o) {
#pragma GCC unroll 3
      for (std::uint32_t r = 0; r < rows; ++r) sums[o][r] = Lanes::zero();
    }
    const std::uint32_t end = std::min(begin + chunk_stretches, all.end), end_whole = std::min(end, whole);
#pragma GCC unroll 1
    for (std::uint32_t s = begin; s < end_whole; s += Format::stretches, at += rows * Format::columns) {
      const std::byte* const weights[outputs] = {w[0].at(s), w[1].at(s), w[2].at(s), w[3].at(s)};
#pragma GCC unroll 4
      for (std::uint32_t o = 0; o < outputs; ++o) {
        for (std::uint32_t i = 0; i < Format::bytes; i += line) __builtin_prefetch(weights[o] + ahead + i, 0, 2);
      }
      add_units<Lanes>(Format{}, weights, at, sums);
    }
    if (end_whole < end) {
      for (std::uint32_t o = 0; o < outputs; ++o) {
        const LastUnit<Format> last(layout, w[o]);
        for (std::uint32_t s = 0; s < end - end_whole; ++s) {
          const auto* weights = reinterpret_cast<const std::byte*>(last.weights + std::size_t{s} * stretch_columns);
          add_stretch<Lanes>(Floats<FloatType::f32>{}, weights, nullptr, at + rows * s * stretch_columns, sums[o]);
        }
      }
    }
#pragma GCC unroll 3
    for (std::uint32_t r = 0; r < rows; ++r) {
      const Vector each[outputs] = {sums[0][r], sums[1][r], sums[2][r], sums[3][r]};
      float sum[outputs];
      Lanes::add_lanes(each, sum);
      for (std::uint32_t o = 0; o < count; ++o) y[std::size_t{r} * layout.rows + std::size_t{o} * apart] += sum[o];
    }
  }
}

/// The weights of some outputs over a chunk of columns, as floats; every `outputs` of them form a panel, as rows of x do.
struct alignas(64) Tile {
  float weights[tile_outputs / outputs][outputs * chunk_columns];
  float scales[tile_outputs][chunk_stretches][2];
};

template <class Lanes, class Format>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void fill_stretch(Format format, const std::byte* at,
                                                                   const std::byte* group, Tile& tile,
                                                                   std::uint32_t output, std::uint32_t stretch) {
  typename Lanes::Vector weights[vectors<Lanes>];
  Lanes::unpack(format, at, weights);
  store_stretch<Lanes>(weights, tile, output, stretch);
  for (std::uint32_t part = 0; part < Format::groups; ++part) {
    tile.scales[output][stretch][part] = scale_of(group, part);
  }
}

template <class Lanes, class Format, class Layout>
[[FERRY_LANES_TARGET gnu::noinline]] void fill(Tile& tile, const Layout& layout, const WeightRow<Format>* w,
                                               std::uint32_t first, std::uint32_t stretches) {
  for (std::uint32_t o = 0; o < tile_outputs; ++o) {
    for (std::uint32_t s = 0; s < stretches; ++s) {
      const std::uint32_t stretch = first + s;
      if ((stretch + 1) * stretch_columns <= layout.columns) {
        fill_stretch<Lanes>(Format{}, w[o].at(stretch), w[o].group(stretch), tile, o, s);
      } else {
        const LastStretch<Format> last(layout, w[o]);
        fill_stretch<Lanes>(Format{}, last.bytes, last.groups, tile, o, s);
      }
    }
  }
}

/// Adds the products of a vector of each row of a panel with some outputs of a tile to their sums; or sets these.
template <class Lanes, std::uint32_t rows, std::uint32_t count>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void add_vector(const float* weights, const float* x, bool set,
                                                                 typename Lanes::Vector (&sums)[rows][count]) {
  using Vector = typename Lanes::Vector;
  Vector at[rows];
#pragma GCC unroll 6
  for (std::uint32_t r = 0; r < rows; ++r) at[r] = Lanes::load(x + r * Lanes::lanes);
#pragma GCC unroll 4
  for (std::uint32_t o = 0; o < count; ++o) {
    const Vector weight = Lanes::load(weights + o * Lanes::lanes);
#pragma GCC unroll 6
    for (std::uint32_t r = 0; r < rows; ++r) {
      sums[r][o] = set ? Lanes::multiply(weight, at[r]) : Lanes::fma(weight, at[r], sums[r][o]);
    }
  }
}

template <class Lanes>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void store_stretch(
    const typename Lanes::Vector (&weights)[vectors<Lanes>], Tile& tile, std::uint32_t output, std::uint32_t stretch) {
  float* to = tile.weights[output / outputs] + place<Lanes, outputs>(output % outputs, stretch * vectors<Lanes>);
#pragma GCC unroll 16
  for (std::uint32_t v = 0; v < vectors<Lanes>; ++v) Lanes::store(weights[v], to + place<Lanes, outputs>(0, v));
}

template <class Lanes, class Format>
[[FERRY_LANES_TARGET gnu::noinline]] void fill_blocks(Tile& tile, const BlockLayout& layout, const WeightRow<Format>* w,
                                                      std::uint32_t first, std::uint32_t stretches) {
  typename Lanes::Vector weights[vectors<Lanes>];
  for (std::uint32_t o = 0; o < tile_outputs; ++o) {
    std::uint32_t s = 0;
    for (; (first + s + Format::stretches) * stretch_columns <= layout.columns && s < stretches;
         s += Format::stretches) {
      typename Lanes::Unit unit;
      Lanes::prepare(Format{}, w[o].at(first + s), unit);
#pragma GCC unroll 4
      for (std::uint32_t i = 0; i < Format::stretches; ++i) {
        Lanes::unpack(Format{}, w[o].at(first + s), unit, i, weights);
        store_stretch<Lanes>(weights, tile, o, s + i);
      }
    }
    if (s >= stretches) continue;
    const LastUnit<Format> last(layout, w[o]);
    for (std::uint32_t i = 0; s < stretches; ++s, ++i) {
      const auto* at = reinterpret_cast<const std::byte*>(last.weights + std::size_t{i} * stretch_columns);
      Lanes::unpack(Floats<FloatType::f32>{}, at, weights);
      store_stretch<Lanes>(weights, tile, o, s);
    }
  }
}

/// The sums of a panel of x with `count` outputs of a tile, from `first` on, four of which lie side by side.
template <class Lanes, std::uint32_t rows, std::uint32_t count, class Format>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void sum_tile(const Tile& tile, std::uint32_t first,
                                                               std::uint32_t stretches, const float* x,
                                                               typename Lanes::Vector (&sums)[rows][count]) {
  using Vector = typename Lanes::Vector;
  // Vectors that have one scale.
  constexpr std::uint32_t each = vectors<Lanes> / std::max(1U, Format::groups);
  const float* weights = tile.weights[first / outputs] + place<Lanes, outputs>(first % outputs, 0);
#pragma GCC unroll 6
  for (std::uint32_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (std::uint32_t o = 0; o < count; ++o) sums[r][o] = Lanes::zero();
  }
#pragma GCC unroll 1
  for (std::uint32_t part = 0; part < vectors<Lanes> / each * stretches; ++part) {
    Vector own[rows][count];
#pragma GCC unroll 16
    for (std::uint32_t v = 0; v < each; ++v) {
      add_vector<Lanes>(weights + place<Lanes, outputs>(0, v), x + place<Lanes, rows>(0, v),
                        has_groups<Format> && v == 0, has_groups<Format> ? own : sums);
    }
    weights += place<Lanes, outputs>(0, each);
    x += place<Lanes, rows>(0, each);
    if constexpr (has_groups<Format>) {
#pragma GCC unroll 4
      for (std::uint32_t o = 0; o < count; ++o) {
        const Vector scale = Lanes::all(tile.scales[first + o][part / Format::groups][part % Format::groups]);
#pragma GCC unroll 6
        for (std::uint32_t r = 0; r < rows; ++r) sums[r][o] = Lanes::fma(own[r][o], scale, sums[r][o]);
      }
    }
  }
}

/// Adds the products of four outputs of a tile, from `first` on, with a panel of x to y [rows, y_stride].
template <class Lanes, std::uint32_t rows, class Format>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void add_tile(const Tile& tile, std::uint32_t first,
                                                               std::uint32_t stretches, const float* x, float* y,
                                                               std::size_t y_stride, std::uint32_t count) {
  using Vector = typename Lanes::Vector;
  if constexpr (!has_groups<Format> || Lanes::scaled_outputs == outputs) {
    Vector sums[rows][outputs];
    sum_tile<Lanes, rows, outputs, Format>(tile, first, stretches, x, sums);
#pragma GCC unroll 6
    for (std::uint32_t r = 0; r < rows; ++r) add_to<Lanes>(y + r * y_stride, sums[r], count);
  } else {  // half of them, since sums of a group and of all before it are two
    static_assert(Lanes::scaled_outputs == 2);
    for (std::uint32_t o = 0; o < std::min(outputs, count); o += 2) {
      Vector sums[rows][2];
      sum_tile<Lanes, rows, 2, Format>(tile, first + o, stretches, x, sums);
#pragma GCC unroll 3
      for (std::uint32_t r = 0; r < rows; r += 2) {
        const std::uint32_t second = std::min(r + 1, rows - 1);  // of an odd number, the last again
        const Vector four[outputs] = {sums[r][0], sums[r][1], sums[second][0], sums[second][1]};
        float sum[outputs];
        Lanes::add_lanes(four, sum);
        for (std::uint32_t i = 0; i < 2 * (second - r + 1); ++i) {
          if (o + i % 2 < count) y[(r + i / 2) * y_stride + o + i % 2] += sum[i];
        }
      }
    }
  }
}

/// A panel of `rows` rows.
template <class Lanes, std::uint32_t rows, class Format>
[[FERRY_LANES_TARGET gnu::noinline]] void add_panel(const Tile& tile, std::uint32_t stretches, const float* x, float* y,
                                                    std::size_t y_stride, std::uint32_t count) {
  for (std::uint32_t o = 0; o < count; o += outputs) {
    add_tile<Lanes, rows, Format>(tile, o, stretches, x, y + o, y_stride, count - o);
  }
}

/// What the next tile is made of: it arrives while this one is used, some lines of the cache with every panel.
template <class Format>
struct NextTile {
  static constexpr std::uint32_t lines = chunk_stretches * Format::stretch_bytes / line;  // of an output
  const std::byte* weights[tile_outputs];  // harmless where there are none
  std::uint32_t asked = 0;

  void prefetch(std::uint32_t count) {
    for (const std::uint32_t end = std::min(asked + count, tile_outputs * lines); asked < end; ++asked) {
      __builtin_prefetch(weights[asked / lines] + asked % lines * line);
    }
  }
};

/// Some rows of x.
struct RowRange {
  std::uint32_t first, end;
};

/// Adds the products of a tile with some rows of a chunk, which begin with a panel.
template <class Lanes, class Format>
void add_tiles(const Tile& tile, std::uint32_t stretch, std::uint32_t stretches, const ChunkedRows& x, RowRange rows,
               float* y, std::size_t y_stride, std::uint32_t count, NextTile<Format> next) {
  using Add = decltype(&add_panel<Lanes, 1, Format>);
  constexpr auto adds = []<std::size_t... i>(std::index_sequence<i...>) {
    return std::array<Add, sizeof...(i)>{&add_panel<Lanes, i + 1, Format>...};
  }
  (std::make_index_sequence<Lanes::most_rows>());
  const std::uint32_t lines_each = tile_outputs * next.lines * Lanes::most_rows / (rows.end - rows.first) + 1;
  for (std::uint32_t row = rows.first; row < rows.end; row += Lanes::most_rows) {
    next.prefetch(lines_each);
    adds[x.panel(row) - 1](tile, stretches, x.at(stretch, row), y + row * y_stride, y_stride, count);
  }
}

/// Rows `first` to `first + together - 1` of a matrix; where only `count` are left, the last one again.
template <class Format, class Layout>
struct WeightRows {
  WeightRow<Format> rows[most_outputs];

  WeightRows(const Layout& layout, const std::byte* matrix, std::uint32_t first, std::uint32_t together,
             std::uint32_t count) {
    for (std::uint32_t o = 0; o < together; ++o) rows[o] = {layout, matrix, first + std::min(o, count - 1)};
  }
};

/// Adds a few rows of x to some outputs.
template <class Lanes, std::uint32_t rows, class Format, class Layout>
void add_few_rows(const Layout& layout, const std::byte* weights, part::Outputs range, const ChunkedRows& x, float* y) {
  for (std::uint32_t first = 0; first < x.stretches(); first += block_stretches<Format>) {
    const Stretches all{first, std::min(first + block_stretches<Format>, x.stretches())};
    if constexpr (is_blocks<Format>) {
      const std::uint32_t apart = (range.end - range.first + outputs - 1) / outputs;
      for (std::uint32_t out = range.first; out < range.first + apart; ++out) {
        WeightRow<Format> w[outputs];
        std::uint32_t count = 0;
        for (std::uint32_t o = 0; o < outputs; ++o) {
          const std::uint32_t row = out + o * apart;
          w[o] = {layout, weights, std::min(row, range.end - 1)};
          count += row < range.end ? 1 : 0;
        }
        add_few_blocks<Lanes, rows, Format>(layout, w, all, x, y + out, apart, count);
      }
    } else {
      for (std::uint32_t out = range.first; out < range.end; out += outputs) {
        const std::uint32_t count = std::min(outputs, range.end - out);
        const WeightRows<Format, Layout> w(layout, weights, out, outputs, count);
        add_few<Lanes, rows, Format, Layout>(layout, w.rows, all, x, y + out, count);
      }
    }
  }
}

/// Adds to some outputs, columns of y.
template <class Lanes, class Format, class Layout>
void add_product(const Layout& layout, const std::byte* weights, part::Outputs range, const ChunkedRows& x, float* y) {
  if (x.rows() <= few) {
    const auto add = x.rows() == 1   ? add_few_rows<Lanes, 1, Format, Layout>
                     : x.rows() == 2 ? add_few_rows<Lanes, 2, Format, Layout>
                                     : add_few_rows<Lanes, few, Format, Layout>;
    return add(layout, weights, range, x, y);
  }
  // Many rows: a tile of weights becomes floats, and then serves a block of rows. All tiles read that block in turn, so that it
  // has to stay in a usual L2 cache.
  constexpr std::uint32_t most_block_rows = 128, block_floats = 1U << 17U, panel = Lanes::most_rows;
  const std::uint32_t blocks = (x.rows() + most_block_rows - 1) / most_block_rows;
  const std::uint32_t block_rows = ((x.rows() + blocks - 1) / blocks + panel - 1) / panel * panel;  // much alike
  Tile tile;
  for (RowRange rows{0, 0}; rows.first < x.rows(); rows.first = rows.end) {
    rows.end = std::min(rows.first + block_rows, x.rows());
    const std::uint32_t chunks = std::max(1U, block_floats / chunk_columns / (rows.end - rows.first));
    for (Stretches block{0, 0}; block.first < x.stretches(); block.first = block.end) {
      block.end = std::min(block.first + chunks * chunk_stretches, x.stretches());
      for (std::uint32_t out = range.first; out < range.end; out += tile_outputs) {
        const std::uint32_t count = std::min(tile_outputs, range.end - out);
        const WeightRows<Format, Layout> w(layout, weights, out, tile_outputs, count);
        for (std::uint32_t first = block.first; first < block.end; first += chunk_stretches) {
          const std::uint32_t stretches = std::min(chunk_stretches, block.end - first);
          if constexpr (is_blocks<Format>) {
            fill_blocks<Lanes>(tile, layout, w.rows, first, stretches);
          } else {
            fill<Lanes>(tile, layout, w.rows, first, stretches);
          }
          NextTile<Format> next;
          const bool last = first + stretches == block.end;
          for (std::uint32_t o = 0; o < tile_outputs; ++o) {
            const WeightRow<Format>& row = w.rows[o];
            next.weights[o] =
                last ? row.at(block.first) + tile_outputs * layout.row_bytes() : row.at(first + stretches);
          }
          add_tiles<Lanes>(tile, first, stretches, x, rows, y + out, layout.rows, count, next);
        }
      }
    }
  }
}

template <class Lanes, class Format, class Layout>
void multiply(const Layout& layout, const std::byte* weights, part::Outputs range, const part::Rows& x, float* y) {
  for (std::uint32_t r = 0; r < x.values.rows(); ++r) {
    std::fill(y + std::size_t{r} * layout.rows + range.first, y + std::size_t{r} * layout.rows + range.end, 0.0F);
  }
  if constexpr (has_groups<Format>) {
    const std::uint32_t together = outputs_at_once(layout);
    const PassThroughLayout groups{layout.rows, x.group_sums.columns(), FloatType::f32};
    for (std::uint32_t out = range.first; out < range.end; out += together) {
      const part::Outputs own{out, std::min(out + together, range.end)};
      add_product<Lanes, Groups>(groups, weights + layout.group_at(0, 0), own, x.group_sums, y);
      add_product<Lanes, Format>(layout, weights, own, x.values, y);
    }
  } else {
    add_product<Lanes, Format>(layout, weights, range, x.values, y);
  }
}

template <class Lanes>
void multiply(const PassThroughLayout& w, const std::byte* weights, part::Outputs range, const part::Rows& x,
              float* y) {
  if (w.type == FloatType::bf16) return multiply<Lanes, Floats<FloatType::bf16>>(w, weights, range, x, y);
  if (w.type == FloatType::f16) return multiply<Lanes, Floats<FloatType::f16>>(w, weights, range, x, y);
  multiply<Lanes, Floats<FloatType::f32>>(w, weights, range, x, y);
}

/// Calls with the format of such blocks.
template <class Call>
void with_blocks(BlockType type, const Call& call) {
  switch (type) {
    case BlockType::q8_0:
      return call(Blocks<BlockType::q8_0>{});
    case BlockType::q4_0:
      return call(Blocks<BlockType::q4_0>{});
    case BlockType::q4_1:
      return call(Blocks<BlockType::q4_1>{});
    case BlockType::q5_0:
      return call(Blocks<BlockType::q5_0>{});
    case BlockType::q5_1:
      return call(Blocks<BlockType::q5_1>{});
    case BlockType::q2_k:
      return call(Blocks<BlockType::q2_k>{});
    case BlockType::q3_k:
      return call(Blocks<BlockType::q3_k>{});
    case BlockType::q4_k:
      return call(Blocks<BlockType::q4_k>{});
    case BlockType::q5_k:
      return call(Blocks<BlockType::q5_k>{});
    case BlockType::q6_k:
      return call(Blocks<BlockType::q6_k>{});
    case BlockType::iq4_nl:
      return call(Blocks<BlockType::iq4_nl>{});
    case BlockType::iq4_xs:
      return call(Blocks<BlockType::iq4_xs>{});
    case BlockType::mxfp4:
      return call(Blocks<BlockType::mxfp4>{});
    default:
      return call(Blocks<BlockType::fp8>{});
  }
}

template <class Lanes>
void multiply(const BlockLayout& w, const std::byte* weights, part::Outputs range, const part::Rows& x, float* y) {
  with_blocks(w.type, [&](auto format) { multiply<Lanes, decltype(format)>(w, weights, range, x, y); });
}

template <class Lanes, std::uint32_t bits>
void multiply_codes(const PackedLayout& w, const std::byte* weights, part::Outputs range, const part::Rows& x,
                    float* y) {
  if (w.group < stretch_columns) return multiply<Lanes, Codes<bits, true>>(w, weights, range, x, y);
  multiply<Lanes, Codes<bits, false>>(w, weights, range, x, y);
}

template <class Lanes>
void multiply(const PackedLayout& w, const std::byte* weights, part::Outputs range, const part::Rows& x, float* y) {
  if (w.bits == 8) return multiply_codes<Lanes, 8>(w, weights, range, x, y);
  if (w.bits == 4) return multiply_codes<Lanes, 4>(w, weights, range, x, y);
  multiply_codes<Lanes, 2>(w, weights, range, x, y);
}

template <FloatType type>
inline constexpr std::size_t bytes_of = Floats<type>::stretch_bytes / stretch_columns;

/// `vectors` vectors of columns, from `values` on, whose rows are `row_bytes` apart.
template <class Lanes, FloatType type, std::uint32_t rows, std::uint32_t vectors>
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline void mix_columns(const float* weights, std::size_t stride,
                                                                  std::uint32_t count, const std::byte* values,
                                                                  std::size_t row_bytes, std::uint32_t columns,
                                                                  const std::uint32_t* which, float* y) {
  using Vector = typename Lanes::Vector;
  Vector sums[rows][vectors];
#pragma GCC unroll 6
  for (std::uint32_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < vectors; ++v) sums[r][v] = Lanes::zero();
  }
#pragma GCC unroll 1
  for (std::uint32_t i = 0; i < count; ++i, values += row_bytes) {
    Vector own[vectors];
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < vectors; ++v) {
      const std::byte* at = values + v * Lanes::lanes * bytes_of<type>;
      if constexpr (type == FloatType::f32) {
        own[v] = Lanes::load_any(at);
      } else {
        own[v] = Lanes::load_halves(at);
      }
    }
#pragma GCC unroll 6
    for (std::uint32_t r = 0; r < rows; ++r) {
      const Vector weight = Lanes::all(weights[r * stride + i]);
#pragma GCC unroll 4
      for (std::uint32_t v = 0; v < vectors; ++v) sums[r][v] = Lanes::fma(own[v], weight, sums[r][v]);
    }
  }
#pragma GCC unroll 6
  for (std::uint32_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < vectors; ++v) {
      alignas(64) float all[Lanes::lanes];
      Lanes::store(sums[r][v], all);
      std::memcpy(y + std::size_t{which[r]} * columns + std::size_t{v} * Lanes::lanes, all, sizeof(all));
    }
  }
}

template <class Lanes, FloatType type, std::uint32_t rows>
[[FERRY_LANES_TARGET gnu::noinline]] void mix_rows(const float* weights, std::size_t stride, std::uint32_t count,
                                                   const std::byte* values, std::size_t row_bytes,
                                                   std::uint32_t columns, const std::uint32_t* which, float* y) {
  constexpr std::uint32_t together = 4;  // vectors
  const auto column = [&](std::uint32_t c) { return values + c * bytes_of<type>; };
  std::uint32_t c = 0;
  for (; c + together * Lanes::lanes <= columns; c += together * Lanes::lanes) {
    mix_columns<Lanes, type, rows, together>(weights, stride, count, column(c), row_bytes, columns, which, y + c);
  }
  for (; c + Lanes::lanes <= columns; c += Lanes::lanes) {
    mix_columns<Lanes, type, rows, 1>(weights, stride, count, column(c), row_bytes, columns, which, y + c);
  }
  for (; c < columns; ++c) {
    for (std::uint32_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (std::uint32_t i = 0; i < count; ++i) {
        sum += weights[r * stride + i] * detail::widen<type>(column(c) + i * row_bytes);
      }
      y[std::size_t{which[r]} * columns + c] = sum;
    }
  }
}

template <class Lanes, FloatType type>
constexpr auto mixes_of() {
  using Mix = decltype(&mix_rows<Lanes, type, 1>);
  return []<std::size_t... i>(std::index_sequence<i...>) {
    return std::array<Mix, sizeof...(i)>{&mix_rows<Lanes, type, i + 1>...};
  }
  (std::make_index_sequence<Lanes::most_rows>());
}

template <class Lanes>
void mix(const float* weights, std::size_t stride, std::uint32_t rows, std::uint32_t count, const std::byte* values,
         const PassThroughLayout& layout, std::uint32_t columns, const std::uint32_t* which, float* y) {
  constexpr auto floats = mixes_of<Lanes, FloatType::f32>(), halves = mixes_of<Lanes, FloatType::f16>();
  const auto run = layout.type == FloatType::f32 ? floats[rows - 1] : halves[rows - 1];
  run(weights, stride, count, values, layout.row_bytes(), columns, which, y);
}

inline ColumnOrder natural_order() {
  ColumnOrder order;
  for (std::uint32_t i = 0; i < stretch_columns; ++i) order.column[i] = static_cast<std::uint8_t>(i);
  return order;
}

template <class Lanes>
constexpr part::ProductKernel make_kernel() {
  static_assert(Lanes::most_rows >= few);
  return {Lanes::most_rows, Lanes::lanes,    Lanes::order,    Lanes::order,
          multiply<Lanes>,  multiply<Lanes>, multiply<Lanes>, mix<Lanes>};
}

}  // namespace
}  // namespace ferry::engine
