/// @file
/// When each expert was used last, and whether that tells more of what comes than another order does.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/expert_set.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Compares two orders of a layer's experts: by another rank, and by their last use. Each use tells which of the orders would
/// have kept its expert, had the layer kept as many experts as it has slots, the first in that order. By last use, that is
/// what LRU hits (Mattson's stack distance), without a second cache. The other order is followed until the last use leads.
/// Until then, what it kept is what is in the slots, which is less than the first in its order at the beginning, and where
/// not everything that is used is copied in.
///
/// What is learned goes on to the next pool (`goes_on`): where each layer has a pool, all of them learn together.
///
/// A use counts for the last use if that alone would have kept its expert, and against it if the other order alone would have.
/// Each expert that the last use would not have kept also costs `price`, because it loads whatever is used; the price is 0
/// where that is loaded anyway. The last use begins to lead (`leads`) when it is ahead by two uses and a sixteenth of those
/// that one of the two orders would have missed, and it leads until it is behind. Each such use makes all before it count
/// less, by a factor of 1 - 1/1024.
///
/// Source: ours. Stack distances: Mattson et al. (1970, "Evaluation techniques for storage hierarchies"). To follow the one of
/// two policies that would have done better of late is what adaptive caches do (Qureshi et al., 2007, "Adaptive insertion
/// policies for high performance caching").
///
/// Complexity: `used` O(1); `note` O(k + experts); `compare`, behind the plan, O(uses * experts), of `most_compared` uses of a
/// layer at most, of other rows in each step. State: 8 bytes an expert, 16 for each of one layer.
class LastUses {
 public:
  static constexpr std::int64_t one = 1 << 16;                  ///< a use
  static constexpr std::int64_t step = std::int64_t{1} << 24U;  ///< of keys: what lies between two steps
  static constexpr std::uint32_t most_compared = 8;

  void reserve(Carver& carve, std::uint32_t layers, std::uint32_t experts) {
    experts_ = experts;
    carve(last_, std::size_t{layers} * experts);
    carve(rank_before_, experts);
    carve(last_before_, experts);
    noted_.reserve(carve, 1, experts);
  }

  FERRY_HD void begin_step() noexcept {
    now_ = (now_ / step + 1) * step;
    uses_ = 0;
  }
  FERRY_HD void used(std::uint32_t at) noexcept { last_[at] = ++now_; }

  /// [layers, experts]: the later an expert was used last, the larger; 0: never.
  [[nodiscard]] FERRY_HD const std::int64_t* keys() const noexcept { return last_.data(); }
  [[nodiscard]] FERRY_HD bool leads() const noexcept { return leads_; }

  /// Ahead of `used`, in decode: a layer uses these routes [rows, k], and the other order ranks its experts like this
  /// [experts]. `held`: what has a slot, one set a layer.
  FERRY_HD void note(std::uint32_t layer, View<const Route> taken, std::uint32_t rows, const std::int64_t* rank,
                     const ExpertSets& held) noexcept {
    copy(rank, rank_before_);
    copy(last_.data() + std::size_t{layer} * experts_, last_before_);
    slots_ = held.size(layer);
    uses_ = 0;
    if (taken.size == 0 || rows == 0) return;
    auto i = static_cast<std::uint32_t>(now_ / step * (taken.size / rows) % taken.size);
    for (std::uint32_t n = 0; n < taken.size && uses_ < most_compared; ++n, i = i + 1 < taken.size ? i + 1 : 0) {
      const std::uint16_t e = taken[i].expert;
      if (e >= experts_ || noted_.has(0, e)) continue;
      noted_.add(0, e);
      there_[uses_] = held.has(layer, e);
      use_[uses_++] = e;
    }
    noted_.clear(0);
  }
  /// Compares what was noted of a layer, once, when nobody waits. `price`: of a use whose expert the order by last use would
  /// not have kept. True if `leads` has changed.
  FERRY_HD bool compare(std::int64_t price) noexcept {
    for (std::uint32_t i = 0; i < uses_; ++i) {
      // Once the last use leads, or where all that is used is brought, what the other would keep is not what is there.
      const bool by_rank = leads_ || price == 0 ? keeps(rank_before_.data(), use_[i]) : there_[i];
      const bool by_last = keeps(last_before_.data(), use_[i]);
      if (by_rank && by_last) continue;
      ahead_ += (by_last ? one : -price) - (by_rank ? one : 0) - ahead_ / window;
      missed_ += one - missed_ / window;
    }
    uses_ = 0;
    const bool led = leads_;
    leads_ = led ? ahead_ > 0 : ahead_ > missed_ / 16 + 2 * one;
    return leads_ != led;
  }

  /// Takes over what `before` has learned. True if `leads` has changed.
  FERRY_HD bool goes_on(const LastUses& before) noexcept {
    const bool led = leads_;
    ahead_ = before.ahead_;
    missed_ = before.missed_;
    leads_ = before.leads_;
    return leads_ != led;
  }

  [[nodiscard]] const char* check() const noexcept {
    for (const std::int64_t last : last_) {
      if (last < 0 || last > now_) return "LastUses: a use is yet to come";
    }
    if (uses_ > most_compared) return "LastUses: more uses than are compared";
    if (missed_ < 0 || missed_ > one * window) return "LastUses: too many uses were missed";
    return nullptr;
  }

 private:
  static constexpr std::int64_t window = 1024;  ///< uses

  /// A layer's.
  FERRY_HD static void copy(const std::int64_t* from, Array<std::int64_t>& to) noexcept {
    std::int64_t* const target = to.data();
    for (std::uint32_t e = 0, n = to.size(); e < n; ++e) target[e] = from[e];
  }

  /// Whether an expert is among the first `slots_` by these keys. Of those that tie, half count as before it.
  FERRY_HD FERRY_HOT bool keeps(const std::int64_t* keys, std::uint16_t e) const noexcept {
    const std::int64_t key = keys[e];
    const std::uint32_t experts = experts_;
    std::int64_t twice = -1;  // those above count twice, those that tie once
    for (std::uint32_t i = 0; i < experts; ++i) twice += std::int64_t{keys[i] > key} + std::int64_t{keys[i] >= key};
    return twice / 2 < std::int64_t{slots_};
  }

  Array<std::int64_t> last_;                       ///< [layers, experts]
  Array<std::int64_t> rank_before_, last_before_;  ///< [experts], of the layer that was noted
  ExpertSets noted_;                               ///< one
  std::uint16_t use_[most_compared] = {};
  bool there_[most_compared] = {};       ///< and whether it was
  std::uint32_t uses_ = 0, slots_ = 0;   ///< noted, of that layer
  std::int64_t now_ = 0;                 ///< steps, and the uses of this one
  std::int64_t ahead_ = 0, missed_ = 0;  ///< of late
  std::uint32_t experts_ = 0;
  bool leads_ = false;
};

}  // namespace ferry::inline FERRY_ABI::detail
