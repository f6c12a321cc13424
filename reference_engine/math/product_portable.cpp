// Products on any processor: vectors of four floats, which compilers make of what it has: SSE2, NEON.
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#define FERRY_LANES_TARGET
#include "math/int8_kernel.hpp"

namespace ferry::engine {
namespace {

struct PortableLanes {
  using Vector [[gnu::vector_size(16)]] = float;
  static constexpr std::uint32_t lanes = 4, most_rows = 3;

  static Vector zero() { return Vector{}; }
  static Vector all(float value) { return Vector{value, value, value, value}; }
  static Vector load(const float* at) { return load_any(reinterpret_cast<const std::byte*>(at)); }
  static Vector load_any(const std::byte* at) {
    Vector v;
    std::memcpy(&v, at, sizeof(v));
    return v;
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

  struct Bytes {
    std::uint8_t codes[stretch_columns / 2];
  };
  template <std::uint32_t bits, bool halves>
  static void unpack_bytes(Codes<bits, halves> /*format*/, const std::byte* at, Bytes (&to)[2]) {
    for (std::uint32_t i = 0; i < stretch_columns; ++i) {
      to[i / 32].codes[i % 32] = static_cast<std::uint8_t>(unpack_code(at, i, bits));
    }
  }
  template <std::uint32_t bits, bool halves>
  static Vector scales(Codes<bits, halves> /*format*/, const std::byte* group) {
    const float first = scale_of(group, 0), second = halves ? scale_of(group, 1) : first;
    return Vector{first, first, second, second};
  }
  template <class Format>
  static Vector dot(Format /*format*/, const Bytes (&weights)[2], const std::int8_t* x) {
    std::int32_t sums[lanes] = {};  // of 16 columns each
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      for (std::uint32_t i = lane * 16; i < lane * 16 + 16; ++i) sums[lane] += weights[i / 32].codes[i % 32] * x[i];
    }
    return Vector{static_cast<float>(sums[0]), static_cast<float>(sums[1]), static_cast<float>(sums[2]),
                  static_cast<float>(sums[3])};
  }

  template <class Layout>
  static ColumnOrder order(const Layout& /*w*/) {
    return natural_order();
  }
  static ColumnOrder order_int8(const PackedLayout& /*w*/) {
    return natural_order();
  }
};

}  // namespace

const part::ProductKernel part::portable_kernel = make_kernel<PortableLanes>();
const part::Int8Kernel part::portable_int8_kernel = make_int8_kernel<PortableLanes>();

}  // namespace ferry::engine
