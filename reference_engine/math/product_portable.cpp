// Products on any processor: vectors of four floats, which compilers make of what it has: SSE2, NEON.
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#define FERRY_LANES_TARGET
#include "math/product_kernel.hpp"

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
  static void keep(Vector& /*v*/) {}
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

  template <class Layout>
  static ColumnOrder order(const Layout& /*w*/) {
    return natural_order();
  }
};

}  // namespace

const part::ProductKernel part::portable_kernel = make_kernel<PortableLanes>();

}  // namespace ferry::engine
