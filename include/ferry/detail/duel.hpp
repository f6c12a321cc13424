/// @file
/// Which of two ways to choose a victim is the better one.
#pragma once
#include "ferry/storage.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Where two ways to choose would have two experts leave, both are watched, whichever left: the one that is used first ought to
/// have stayed, so that its way was wrong. Each time makes all before it count less, by a factor of 1 - 1/256.
///
/// The first way is followed until the second one leads (`second_leads`): when it is ahead by two and an eighth of all that
/// count, and until it is ahead by less than a sixteenth of them. An expert is watched beside one other at a time, for `span`
/// steps at least unless one of them is used.
///
/// Source: ours. Who is used furthest in the future leaves: Belady (1966, "A study of replacement algorithms for a
/// virtual-storage computer"). To follow which of two policies proved right where they differed is what LeCaR does by regret
/// (Vietri et al., 2018, "Driving cache replacement with ML-based LeCaR").
///
/// Complexity: O(1). State: 8 bytes an expert.
class Duel {
 public:
  static constexpr std::uint32_t span = 32;

  void reserve(Carver& carve, std::uint32_t experts) {
    carve(rival_, experts, nobody);
    carve(begun_, experts);
  }

  FERRY_HD void begin_step() noexcept { ++step_; }
  [[nodiscard]] FERRY_HD bool second_leads() const noexcept { return second_leads_; }

  /// The first way would have `first` leave and the second way `second`, another.
  FERRY_HD void begin(std::uint32_t first, std::uint32_t second) noexcept {
    if (is_watched(first) || is_watched(second)) return;
    leave(first);
    leave(second);
    rival_[first] = 2 * second + 1;
    rival_[second] = 2 * first;
    begun_[first] = begun_[second] = step_;
  }

  FERRY_HD void used(std::uint32_t expert) noexcept {
    if (rival_[expert] == nobody) return;
    const bool second_was_right = rival_[expert] % 2 == 1;  // it is the first way's victim
    leave(expert);
    ahead_ += (second_was_right ? one : -one) - ahead_ / window;
    count_ += one - count_ / window;
    second_leads_ = second_leads_ ? ahead_ > count_ / 16 : ahead_ > 2 * one + count_ / 8;
  }

  [[nodiscard]] const char* check() const noexcept {
    for (std::uint32_t e = 0; e < rival_.size(); ++e) {
      if (rival_[e] == nobody) continue;
      if (rival_[e] / 2 >= rival_.size() || rival_[rival_[e] / 2] / 2 != e || rival_[rival_[e] / 2] == nobody)
        return "Duel: an expert is watched beside one that is not watched beside it";
    }
    if (count_ < 0 || ahead_ > count_ || -ahead_ > count_)
      return "Duel: one way was right more often than there were duels";
    return nullptr;
  }

 private:
  static constexpr std::uint32_t nobody = 0xffffffff;
  static constexpr std::int32_t one = 1 << 16, window = 256;

  FERRY_HD bool is_watched(std::uint32_t expert) const noexcept {
    return rival_[expert] != nobody && step_ - begun_[expert] < span;
  }
  FERRY_HD void leave(std::uint32_t expert) noexcept {
    if (rival_[expert] == nobody) return;
    rival_[rival_[expert] / 2] = nobody;
    rival_[expert] = nobody;
  }

  Array<std::uint32_t> rival_;  ///< [experts], twice the other's number, and 1 if this is the first way's victim
  Array<std::uint32_t> begun_;  ///< likewise: the step
  std::uint32_t step_ = 0;
  std::int32_t ahead_ = 0, count_ = 0;  ///< of late: what the second way was right more often than wrong; all
  bool second_leads_ = false;
};

}  // namespace ferry::inline FERRY_ABI::detail
