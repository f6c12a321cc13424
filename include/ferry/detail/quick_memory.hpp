/// @file
/// What was used in the last few steps, beside what was used in the long run, and how much the former tells.
#pragma once
#include <cmath>

#include "ferry/detail/growing_weight.hpp"
#include "ferry/storage.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// A second count of what experts saved, that forgets eight times as fast as the first one, and the share that it gets of
/// what is expected. Where routing stays as it is the long run tells what comes, and a short memory adds nothing but chance;
/// where the subject has changed, or each sequence has its favourites, the long run is of something else.
///
///     expected(e) = (1 - m) slow(e) + m quick(e),   both a step
///
/// m is what would have fitted best of late, by least squares: with s, q and f the experts' shares of what their layer saved,
/// by the slow count, by the quick one, and in the `span` decode steps that followed,
///
///     A = sum (f - s) (q - s),   B = sum (q - s)^2,   m = A / B
///
/// over all layers, where each span counts 7/8 of the next one; at first B is what chance alone would make it, of a few uses
/// a step. Where nothing changes A is below 0: the slow count is nearer to what comes than the quick one is. An m below 1/8
/// may be chance and counts as 0; what is above is spread over 0 to 1.
///
/// Likewise it is learned whether the past tells anything (`tells`): with x the shares expected, of E experts,
///
///     r = sum (f - 1/E) (x - 1/E) / sum (x - 1/E)^2
///
/// tells which part of the expected differences from a layer's mean comes true: 0 where uses are drawn evenly, below 0 where
/// what was used last comes last. (Experts that a layer lacks count as foretold.) An r of up to 1/16 is taken for chance. It
/// begins at 1, with both sums at a quarter of the first B.
///
/// Source: ours; weights of forecasts by regression are after Bates and Granger (1969, "The combination of forecasts").
///
/// Complexity: a use O(1), `finish` O(experts of a layer). State: 20 bytes an expert, 4 a layer. Integers, but for `spread`.
class QuickMemory {
 public:
  static constexpr std::uint32_t span = 8;  ///< steps

  void reserve(Carver& carve, std::uint32_t layers, std::uint32_t experts, std::uint32_t half_life, const char* whose) {
    weight_.set(half_life > 8 ? half_life / 8 : 1, whose);
    layers_ = layers;
    experts_ = experts;
    carve(quick_, std::size_t{layers} * experts);
    carve(window_, std::size_t{layers} * experts);
    carve(slow_share_, std::size_t{layers} * experts);
    carve(lead_, std::size_t{layers} * experts);
    carve(begun_, layers);
    squares_ = layers * (one * one / 32);
    came_true_ = expected_ = squares_ / 4;
  }

  FERRY_HD void begin_step(const Step& step) noexcept {
    decode_ = step.phase == Phase::decode;
    if (weight_.begin_step(step)) {
      time_ >>= GrowingWeight::shift;
      for (std::int64_t& quick : quick_) quick >>= GrowingWeight::shift;
    }
    time_ += weight_() * weight_.steps();
    step_ += decode_ ? 1 : 0;
  }

  /// An expert saved `units`, in a step of `rows` rows of which `chose` chose it; `slow` is the same in units of the slow
  /// count. Returns by how much its expected savings grow, in those units.
  FERRY_HD std::int64_t saved(std::uint32_t at, std::int64_t units, std::uint32_t rows, std::uint32_t chose,
                              std::int64_t slow) noexcept {
    const std::int64_t worth = weight_() * units;
    const std::int64_t quick = decode_ ? worth : worth / rows * (chose < rows ? chose : rows) * weight_.steps();
    quick_[at] += quick;
    constexpr std::int32_t most = 1 << 30;  // where layers are planned and never finished
    if (decode_) window_[at] = units < most - window_[at] ? window_[at] + static_cast<std::int32_t>(units) : most;
    return mixed(slow, quick);
  }

  /// m, in units of 2^-8.
  [[nodiscard]] FERRY_HD std::int32_t share() const noexcept { return share_; }
  /// Whether experts that are expected to save more do save more.
  [[nodiscard]] FERRY_HD bool tells() const noexcept { return came_true_ > expected_ / 16; }
  /// The standard deviation of what is expected, divided by that of the slow count. The quick count has seen an eighth of the
  /// uses, so that chance moves it further; its deviation counts twice, because the best of many experts is taken.
  [[nodiscard]] FERRY_HD float spread() const noexcept {
    if (share_ == 0) return 1;
    const float m = static_cast<float>(share_) / whole;
    return std::sqrt((1 - m) * (1 - m) + 4 * 8 * m * m);
  }

  /// Behind a layer of each step, once what it saved is counted: `slow` [experts] are its counts, over so much time. Sets
  /// `expected` [experts], in their units, and adds what changed to `rank` [experts]. False: nothing did.
  FERRY_HD bool finish(std::uint32_t layer, const std::int64_t* slow, std::int64_t time, std::int64_t* expected,
                       std::int64_t* rank) noexcept {
    ratio_ = static_cast<std::int32_t>(time / (time_ / ratio_one + 1));
    if (decode_) learn(layer, slow);
    if (share_ == 0 && !was_mixed_) return false;
    was_mixed_ = true;
    const std::int64_t* const quick = quick_.data() + std::size_t{layer} * experts_;
    for (std::uint32_t e = 0; e < experts_; ++e) {
      const std::int64_t more = mixed(slow[e], quick[e]) - expected[e];
      expected[e] += more;
      rank[e] += more;
    }
    return true;
  }

  [[nodiscard]] const char* check() const noexcept {
    if (!weight_.is_valid()) return "QuickMemory: the weight of a use is out of range";
    if (share_ < 0 || share_ > whole) return "QuickMemory: a share is out of range";
    if (expected_ < 0) return "QuickMemory: a sum of squares is out of range";
    for (const std::int64_t quick : quick_) {
      if (quick < 0) return "QuickMemory: a count is out of range";
    }
    return nullptr;
  }

 private:
  static constexpr std::int32_t whole = 256;      ///< all that is expected
  static constexpr std::int64_t ratio_one = 256;  ///< in units of the slow count's
  static constexpr std::int64_t one = 1 << 20;    ///< all of what a layer saved

  FERRY_HD std::int64_t mixed(std::int64_t slow, std::int64_t quick) const noexcept {
    const std::int64_t both = slow + (((quick >> 8U) * ratio_ - slow) >> 8U) * share_;
    return both > 0 ? both : 0;  // what was all but forgotten is less than what rounding takes
  }
  FERRY_HD void learn(std::uint32_t layer, const std::int64_t* slow) noexcept {
    if (begun_[layer] != 0 && step_ - begun_[layer] < span) return;
    const std::size_t first = std::size_t{layer} * experts_;
    const std::int64_t* const quick = quick_.data() + first;
    std::int32_t *const slow_share = slow_share_.data() + first, *const lead = lead_.data() + first,
                        *const window = window_.data() + first;
    std::int64_t all_slow = 0, all_quick = 0, all_window = 0;
    for (std::uint32_t e = 0; e < experts_; ++e) {
      all_slow += slow[e];
      all_quick += quick[e];
      all_window += window[e];
    }
    if (begun_[layer] != 0 && all_window > 0) {
      const std::int64_t least = one / experts_ / 256;
      std::int64_t a = 0, b = experts_ * least * least, came_true = 0, expected = 0;
      for (std::uint32_t e = 0; e < experts_; ++e) {
        const std::int64_t share = window[e] * one / all_window;
        a += (share - slow_share[e]) * lead[e];
        b += std::int64_t{lead[e]} * lead[e];
        const std::int64_t more = slow_share[e] + std::int64_t{lead[e]} * share_ / whole - one / experts_;
        came_true += (share - one / experts_) * more;
        expected += more * more;
      }
      came_true_ += came_true - came_true_ / (8 * std::int64_t{layers_});
      expected_ += expected - expected_ / (8 * std::int64_t{layers_});
      fits_ += a - fits_ / (8 * std::int64_t{layers_});
      squares_ += b - squares_ / (8 * std::int64_t{layers_});
      const std::int64_t m = fits_ / (squares_ / whole + 1);
      constexpr std::int64_t chance = whole / 8;
      share_ = m <= chance  ? 0
               : m >= whole ? whole
                            : static_cast<std::int32_t>((m - chance) * whole / (whole - chance));
    }
    begun_[layer] = all_slow > 0 ? step_ : 0;  // where nothing has been counted, nothing is expected
    for (std::uint32_t e = 0; e < experts_; ++e) {
      slow_share[e] = static_cast<std::int32_t>(slow[e] / (all_slow / one + 1));
      lead[e] = static_cast<std::int32_t>(quick[e] / (all_quick / one + 1)) - slow_share[e];
      window[e] = 0;
    }
  }

  GrowingWeight weight_;
  Array<std::int64_t> quick_;                  ///< [layers, experts], weighted
  Array<std::int32_t> window_;                 ///< likewise, saved since the layer's span began
  Array<std::int32_t> slow_share_;             ///< likewise, when it began
  Array<std::int32_t> lead_;                   ///< likewise: what the quick rate was more
  Array<std::uint32_t> begun_;                 ///< [layers], in which step; 0: in none
  std::int64_t time_ = 0;                      ///< steps, weighted
  std::int64_t fits_ = 0, squares_ = 0;        ///< A and B
  std::int64_t came_true_ = 0, expected_ = 0;  ///< the two sums of r
  std::int32_t share_ = 0, ratio_ = ratio_one;
  std::uint32_t step_ = 0, layers_ = 0, experts_ = 0;
  bool decode_ = true, was_mixed_ = false;
};

}  // namespace ferry::inline FERRY_ABI::detail
