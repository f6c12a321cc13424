/// @file
/// How likely each expert is, by which others were chosen: learned while it runs.
#pragma once
#include "ferry/storage.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Logistic regressions, one for each expert, in a table for each layer, on inputs that are 0 or 1 and mostly 0:
/// p(e) = s(b[e] + sum of w[i, e] over the inputs i that are 1), learned by stochastic gradient descent at the rate 0.1.
///
/// Instead of the logistic function, s(x) is 1/2 + x / 4 - sign(x) x^2 / 32, and 0 below -4 and 1 above 4. It needs only
/// integers, so that all machines learn the same, and where it is certain and right nothing more is learned. Weights are in
/// units of 2^-11, from -8 to 8. Those of the constant are -2 at first (p = 1/8), the others 0.
///
/// Complexity: O(inputs that are 1 * experts). State: 2 bytes a weight, 4 an expert and an input.
class ChoiceRegression {
 public:
  static constexpr std::int32_t one = 1 << 14;          ///< a probability
  static constexpr std::int32_t weight_of_1 = 1 << 11;  ///< the weight 1

  void reserve(Carver& carve, std::uint32_t tables, std::uint32_t inputs, std::uint32_t experts) {
    inputs_ = inputs;
    experts_ = experts;
    carve(weights_, std::size_t{tables} * (inputs + 1U) * experts);
    carve(known_, inputs + 1U);
    carve(sum_, experts);
    if (carve.measuring()) return;
    for (std::uint32_t t = 0; t < tables; ++t) {
      for (std::uint32_t e = 0; e < experts; ++e) set(t, inputs, e, -2 * weight_of_1);
    }
  }
  /// A weight to begin with.
  void set(std::uint32_t table, std::uint32_t input, std::uint32_t expert, std::int32_t weight) noexcept {
    of(table, input)[expert] = static_cast<std::int16_t>(weight);
  }

  /// Begins anew the inputs that are 1 for `ask` and `learn`: only the constant is.
  FERRY_HD void clear() noexcept {
    known_[0] = inputs_;
    count_ = 1;
  }
  /// Each once.
  FERRY_HD void add(std::uint32_t input) noexcept { known_[count_++] = input; }

  /// The probabilities [experts], each 0 to `one`, until the next call.
  FERRY_HD FERRY_HOT std::int32_t* ask(std::uint32_t table) noexcept {
    std::uint32_t e = 0;
    for (; e + block <= experts_; e += block) ask(table, e, block);
    if (e < experts_) ask(table, e, experts_ - e);
    return sum_.data();
  }

  /// `error`: [experts], what would have been right less what `ask` said; it is overwritten.
  FERRY_HD FERRY_HOT void learn(std::uint32_t table, std::int32_t* error) noexcept {
    constexpr std::int32_t rate = (one + 5) / 10, most = 8 * weight_of_1;
    const std::uint32_t experts = experts_, count = count_;
    // A probability counts 2^-14 and a weight 2^-11.
    for (std::uint32_t e = 0; e < experts; ++e) error[e] = (error[e] * (rate / 8) + one / 2) >> 14U;
    for (std::uint32_t i = 0; i < count; ++i) {
      std::int16_t* const weights = of(table, known_[i]);
      for (std::uint32_t e = 0; e < experts; ++e) {
        std::int32_t to = weights[e] + error[e];
        to = to < most ? to : most;
        weights[e] = static_cast<std::int16_t>(to > -most ? to : -most);
      }
    }
  }

  [[nodiscard]] const char* check() const noexcept {
    for (const std::int16_t w : weights_) {
      if (w > 8 * weight_of_1 || w < -8 * weight_of_1) return "ChoiceRegression: a weight is out of range";
    }
    return nullptr;
  }

 private:
  static constexpr std::uint32_t block = 32;  ///< experts whose sums stay in registers

  /// Of `n` experts from the first on, at most `block`.
  FERRY_HD FERRY_HOT void ask(std::uint32_t table, std::uint32_t first, std::uint32_t n) noexcept {
    std::int32_t sum[block] = {};
    for (std::uint32_t i = 0, count = count_; i < count; ++i) {
      const std::int16_t* const weights = of(table, known_[i]) + first;
      for (std::uint32_t e = 0; e < n; ++e) sum[e] += weights[e];
    }
    std::int32_t* const to = sum_.data() + first;
    for (std::uint32_t e = 0; e < n; ++e) to[e] = probability(sum[e]);
  }
  FERRY_HD std::int16_t* of(std::uint32_t table, std::uint32_t input) noexcept {
    return weights_.data() + (std::size_t{table} * (inputs_ + 1U) + input) * experts_;
  }
  FERRY_HD static std::int32_t probability(std::int32_t x) noexcept {
    constexpr std::int32_t four = 4 * weight_of_1;
    x = x < four ? x : four;
    x = x > -four ? x : -four;
    const std::int32_t square = x * x >> 13U;
    return one / 2 + 2 * x - (x < 0 ? -square : square);
  }

  Array<std::int16_t> weights_;  ///< [tables, inputs + 1, experts]
  Array<std::uint32_t> known_;   ///< the inputs that are 1
  Array<std::int32_t> sum_;      ///< [experts]
  std::uint32_t count_ = 0, inputs_ = 0, experts_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
