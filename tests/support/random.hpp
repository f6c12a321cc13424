/// @file
/// Seeded randomness that gives the same numbers everywhere (std::distributions do not).
#pragma once
#include <cstdint>
#include <random>
#include <vector>

namespace ferry::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// 0 to n - 1.
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(engine_() % n); }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) { return low + below(high - low + 1); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }
  /// 0 <= x < 1, a multiple of 2^-16: many ties on purpose if `coarse`.
  float unit(bool coarse = false) {
    return coarse ? static_cast<float>(below(8)) / 8.0F : static_cast<float>(below(65536)) / 65536.0F;
  }
  std::vector<float> scores(std::size_t n, bool coarse = false) {
    std::vector<float> s(n);
    for (float& x : s) x = unit(coarse);
    return s;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace ferry::test
