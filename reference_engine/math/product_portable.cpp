// Products on any processor, in vectors of four floats that compilers map to SSE2 or NEON.
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#define FERRY_LANES_TARGET
#include "math/int8_kernel.hpp"

namespace ferry::engine {
namespace {

struct PortableLanes {
  using Vector [[gnu::vector_size(16)]] = float;
  static constexpr std::uint32_t lanes = 4, most_rows = 3, scaled_outputs = outputs;
  static constexpr bool one_stream = false;

  static Vector zero() { return Vector{}; }
  static Vector all(float value) { return Vector{value, value, value, value}; }
  static Vector load(const float* at) { return load_any(reinterpret_cast<const std::byte*>(at)); }
  static Vector load_any(const std::byte* at) {
    Vector v;
    std::memcpy(&v, at, sizeof(v));
    return v;
  }
  static Vector load_halves(const std::byte* at) {
    float v[lanes];
    detail::widen<FloatType::f16>(at, lanes, v);
    return load(v);
  }
  static void store(Vector v, float* at) { std::memcpy(at, &v, sizeof(v)); }
  static Vector multiply(Vector a, Vector b) { return a * b; }
  static Vector fma(Vector a, Vector b, Vector c) {
#if defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;  // in two roundings
#endif
  }
  static void add_lanes(const Vector (&s)[outputs], float (&sum)[outputs]) {
    for (std::uint32_t o = 0; o < outputs; ++o) sum[o] = add_lanes(s[o]);
  }
  static float add_lanes(Vector s) {
    return (s[0] + s[2]) + (s[1] + s[3]);
  }

  template <FloatType type>
  static void unpack(Floats<type> /*format*/, const std::byte* at, Vector (&to)[vectors<PortableLanes>]) {
    float weights[stretch_columns];
    detail::widen<type>(at, stretch_columns, weights);
    std::memcpy(to, weights, sizeof(weights));
  }
  template <std::uint32_t bits, bool halves>
  static void unpack(Codes<bits, halves> /*format*/, const std::byte* at, Vector (&to)[vectors<PortableLanes>]) {
    float codes[stretch_columns];
    for (std::uint32_t i = 0; i < stretch_columns; ++i) codes[i] = static_cast<float>(unpack_code(at, i, bits));
    std::memcpy(to, codes, sizeof(codes));
  }

  struct Unit {
    float weights[256];
  };
  template <BlockType type>
  static void prepare(Blocks<type> /*format*/, const std::byte* at, Unit& unit) {
    for (std::uint32_t i = 0; i < Blocks<type>::columns; i += block_weights(type), at += block_bytes(type)) {
      unpack_block(type, at, unit.weights + i);
    }
  }
  template <BlockType type>
  static void unpack(Blocks<type> /*format*/, const std::byte* /*at*/, const Unit& unit, std::uint32_t stretch,
                     Vector (&to)[vectors<PortableLanes>]) {
    std::memcpy(to, unit.weights + std::size_t{stretch} * stretch_columns, sizeof(to));
  }

  template <class Layout>
  static ColumnOrder order(const Layout& /*w*/) {
    return natural_order();
  }
};

struct PortableInt8Lanes : PortableLanes {
  struct Ints {
    std::int32_t lane[lanes];
  };
  struct Bytes {
    std::uint8_t codes[stretch_columns];
  };
  static constexpr std::uint32_t int8_rows = 4;

  template <std::uint32_t bits, bool halves>
  static constexpr float bias(Codes<bits, halves> /*format*/) {
    return 0;
  }
  template <BlockType type>
  static constexpr float bias(Blocks<type> /*format*/) {
    return static_cast<float>(-centre_of(type));
  }
  static Ints no_ints() { return {}; }
  static Ints add(Ints a, const Ints& b) {
    for (std::uint32_t i = 0; i < lanes; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static Vector to_floats(const Ints& v) {
    return Vector{static_cast<float>(v.lane[0]), static_cast<float>(v.lane[1]), static_cast<float>(v.lane[2]),
                  static_cast<float>(v.lane[3])};
  }
  static void store_any(Vector v, float* at) { store(v, at); }

  template <std::uint32_t bits, bool halves>
  static void unpack_bytes(Codes<bits, halves> /*format*/, const std::byte* at, Bytes& to) {
    for (std::uint32_t i = 0; i < stretch_columns; ++i)
      to.codes[i] = static_cast<std::uint8_t>(unpack_code(at, i, bits));
  }
  static ColumnOrder order_int8(const PackedLayout& /*w*/) { return natural_order(); }
  static ColumnOrder order_int8() { return natural_order(); }
  template <BlockType type>
  static void unpack_bytes(Blocks<type> /*format*/, const std::byte* at, std::uint32_t stretch, Bytes& to) {
    std::int8_t numbers[Blocks<type>::columns];
    for (std::uint32_t i = 0; i < Blocks<type>::columns; i += block_weights(type), at += block_bytes(type)) {
      detail::block_numbers(type, at, numbers + i);
    }
    for (std::uint32_t i = 0; i < stretch_columns; ++i) {
      to.codes[i] = static_cast<std::uint8_t>(numbers[stretch * stretch_columns + i] + centre_of(type));
    }
  }
  static Vector widen_halves(const std::uint16_t (&from)[lanes]) {
    float to[lanes];
    detail::widen<FloatType::f16>(reinterpret_cast<const std::byte*>(from), lanes, to);
    return load_any(reinterpret_cast<const std::byte*>(to));
  }
  template <BlockType type>
  static void set_scales(Blocks<type> /*format*/, const std::byte* const (&units)[lanes], std::int32_t (*to)[lanes]) {
    constexpr std::uint32_t groups = block_weights(type) / detail::group_weights(type);
    float scales[groups], minima[groups];
    for (std::uint32_t o = 0; o < lanes; ++o) {
      detail::block_scales(type, units[o], scales, minima);
      for (std::uint32_t g = 0; g < groups; ++g) {
        to[2 * g][o] = __builtin_bit_cast(std::int32_t, scales[g]);
        to[2 * g + 1][o] = __builtin_bit_cast(std::int32_t, -minima[g]);
      }
    }
  }

  template <class Format>
  static Ints dot(Format /*format*/, const Bytes& w, const std::int8_t* x) {
    Ints sums = {};  // of 16 columns each
    for (std::uint32_t i = 0; i < stretch_columns; ++i) sums.lane[i / 16] += w.codes[i] * x[i];
    return sums;
  }
  static void add_up(const Ints (&s)[lanes], Ints (&parts)[2]) {
    for (std::uint32_t o = 0; o < lanes; ++o) {
      parts[0].lane[o] = s[o].lane[0] + s[o].lane[1];
      parts[1].lane[o] = s[o].lane[2] + s[o].lane[3];
    }
  }
  static void add_up(const Ints (&s)[lanes], Ints (&parts)[4]) {
    for (std::uint32_t i = 0; i < lanes * lanes; ++i) parts[i % 4].lane[i / 4] = s[i / 4].lane[i % 4];
  }
  static void transpose(const Bytes (&from)[lanes], std::byte* to) {
    for (std::uint32_t four = 0; four < stretch_columns; four += 4) {
      for (std::uint32_t o = 0; o < lanes; ++o, to += 4) std::memcpy(to, from[o].codes + four, 4);
    }
  }
  static void transpose_ints(const Ints (&from)[lanes], std::int32_t* to) {
    for (std::uint32_t i = 0; i < lanes * lanes; ++i) to[i] = from[i % lanes].lane[i / lanes];
  }
  static Ints load_any_ints(const std::byte* at) {
    Ints ints;
    std::memcpy(&ints, at, sizeof(ints));
    return ints;
  }
  static Ints load_ints(const std::int32_t* at) { return {{at[0], at[1], at[2], at[3]}}; }

  template <class Format, std::uint32_t rows>
  static void dot_side_by_side(Format /*format*/, const std::byte* codes, std::uint32_t first, std::uint32_t end,
                               const Int8Rows::Chunk* x, std::uint32_t stretch, Ints (&sums)[rows]) {
    for (std::uint32_t i = first * 16; i < end * 16; ++i) {  // quarters
      for (std::uint32_t o = 0; o < lanes; ++o) {
        const auto code = static_cast<std::int32_t>(codes[i / 4 * 16 + o * 4 + i % 4]);
        for (std::uint32_t r = 0; r < rows; ++r) sums[r].lane[o] += code * x[r].values[stretch][i];
      }
    }
  }
};

}  // namespace

const part::ProductKernel part::portable_kernel = make_kernel<PortableLanes>();
const part::Int8Kernel part::portable_int8_kernel = make_int8_kernel<PortableInt8Lanes>();

}  // namespace ferry::engine
