/// @file
/// HQQ: half-quadratic quantisation, which moves a group's zero point to where most weights lose little.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "ferry/codec/packed.hpp"
#include "ferry/codec/round_to_nearest.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// A fit for `pack`: the scale of RoundToNearest, and a minimum that makes sum |w - w'|^p small, p < 1: a few outliers
/// may lose more so that the others lose less.
///
/// Source: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", Mobius Labs, 2023: the
/// l_p problem is split in two, which take turns, beta growing by kappa each time (W: weights, W_q: their codes,
/// W_r = minimum + W_q * scale: what is read back, W_e: the error granted to the outliers):
///
///   W_e     = shrink(W - W_r), shrink(x) = sign(x) max(0, |x| - |x|^(p - 1) / beta)
///   minimum = mean(W - W_e - W_q * scale)    (their zero point is -minimum / scale = mean(W_q - (W - W_e) / scale))
///
/// Groups that are far smaller than 1 stay below the shrinkage, as beta is an absolute number: there W_e is 0, and the
/// minimum is that of least squares. So it is in the authors' code, whose defaults are the ones here.
///
/// Guarantee: in mean absolute error over what is read back, no group is worse than with RoundToNearest.
/// O(weights * iterations), no state. No weight is moved by more than the code's own half step, unless it lies outside
/// the values from minimum to minimum + (2^bits - 1) * scale, which the first and the last code then stand for.
///
/// Deviations from the authors' code (package hqq, its optimize_weights_proximal):
/// - stops for each group by itself, as soon as its mean absolute error does not fall, not for the whole matrix;
/// - keeps the best minimum seen, of which the first is RoundToNearest's, not the last;
/// - works in double and judges minima that are rounded to float32, as stored;
/// - does not limit scales to 1/20000 and more, nor call groups narrower than 0.0001 equal: both are for float16.
struct Hqq {
  double p = 0.7;                 ///< above 0, at most 1
  double beta = 10;               ///< above 0
  double kappa = 1.01;            ///< 1 or more
  std::uint32_t iterations = 20;  ///< at most; 0: RoundToNearest

  /// Throws ConfigError for parameters outside these ranges.
  void validate() const {
    if (p > 0 && p <= 1 && beta > 0 && std::isfinite(beta) && kappa >= 1 && std::isfinite(kappa)) return;
    detail::fail<ConfigError>("Hqq: p is " + std::to_string(p) + ", beta " + std::to_string(beta) + ", kappa " +
                              std::to_string(kappa) +
                              ", expected p above 0 and at most 1, beta above 0, kappa 1 or more");
  }

  /// weights: 1 or more, finite. bits: 8, 4 or 2.
  [[nodiscard]] PackedGroup operator()(View<const float> weights, std::uint32_t bits) const noexcept {
    PackedGroup group = RoundToNearest{}(weights, bits), best = group;
    double least = std::numeric_limits<double>::infinity(), b = beta;
    for (std::uint32_t i = 0; i <= iterations; ++i, b *= kappa) {
      const double all_shrunk = std::pow(b, -1 / (2 - p));  // the |x| at which shrink(x) reaches 0
      double error = 0, sum = 0;
      for (std::uint32_t at = 0; at < weights.size; at += part) {
        const View<const float> some = weights.part(at, std::min(part, weights.size - at));
        add(group, some, bits, all_shrunk, b, error, sum);
      }
      if (!(error < least)) break;  // also of a minimum that no float holds
      least = error;
      best = group;
      group.minimum = static_cast<float>(sum / weights.size);
    }
    return best;
  }

 private:
  static constexpr std::uint32_t part = 128, lanes = 8;

  /// Adds what these weights, at most `part`, have to both sums. In lanes, so that a compiler makes vectors of it.
  void add(const PackedGroup& group, View<const float> weights, std::uint32_t bits, double all_shrunk, double b,
           double& error, double& sum) const noexcept {
    std::uint8_t codes[part] = {};
    double off[part] = {}, errors[lanes] = {}, sums[lanes] = {};
    detail::codes_of(group, weights, bits, codes);
    const double minimum = static_cast<double>(group.minimum), scale = static_cast<double>(group.scale);
    for (std::uint32_t i = 0; i < weights.size; ++i) {
      off[i] = static_cast<double>(weights[i]) - static_cast<double>(static_cast<float>(minimum + codes[i] * scale));
    }
    double most = 0;
    for (std::uint32_t i = 0; i < weights.size; ++i) {
      const double size = std::abs(off[i]);
      errors[i % lanes] += size;
      sums[i % lanes] += static_cast<double>(weights[i]) - codes[i] * scale;
      most = size > most ? size : most;
    }
    for (std::uint32_t i = 0; most > all_shrunk && i < weights.size; ++i) {
      const double size = std::abs(off[i]);
      if (size > all_shrunk) sums[i % lanes] -= off[i] - std::copysign(std::pow(size, p - 1) / b, off[i]);
    }
    for (std::uint32_t j = 0; j < lanes; ++j) {
      error += errors[j];
      sum += sums[j];
    }
  }
};

}  // namespace ferry::inline FERRY_ABI
