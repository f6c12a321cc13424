/// @file
/// Which of two ways to choose a victim is the better one.
#pragma once
#include "ferry/storage.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Two ways to choose may name different victims. Then both experts are watched, whichever of them leaves. The one that is used
/// first should have stayed, so the way that named it was wrong. Each decided pair makes all earlier ones count less, by a
/// factor of 1 - 1/256.
///
/// The first way is followed until the second one leads (`second_leads`). It begins to lead when it is ahead by more than two
/// and an eighth of all that count, and leads until it is ahead by a sixteenth of them or less. Questions that should not be
/// mixed have a score each (`kinds`). An expert is watched beside one other at a time; a pair that is not decided within `span`
/// steps may be replaced.
///
/// Source: ours. Who is used furthest in the future leaves: Belady (1966, "A study of replacement algorithms for a
/// virtual-storage computer"). To follow which of two policies proved right where they differed is what LeCaR does by regret
/// (Vietri et al., 2018, "Driving cache replacement with ML-based LeCaR").
///
/// Complexity: O(1). State: 8 bytes an expert.
class Duel {
 public:
  static constexpr std::uint32_t span = 32, kinds = 4;

  /// `experts`: fewer than 2^29.
  void reserve(Carver& carve, std::uint32_t experts) {
    carve(rival_, experts, nobody);
    carve(begun_, experts);
  }

  FERRY_HD void begin_step() noexcept { ++step_; }
  [[nodiscard]] FERRY_HD bool second_leads(std::uint32_t kind) const noexcept { return told_[kind].second_leads; }

  /// The first way would have `first` leave and the second way `second`. Without a question if they are one, as where an expert
  /// has slots at two precisions.
  FERRY_HD void begin(std::uint32_t kind, std::uint32_t first, std::uint32_t second) noexcept {
    if (first == second || is_watched(first) || is_watched(second)) return;
    leave(first);
    leave(second);
    rival_[first] = (second * kinds + kind) * 2 + 1;
    rival_[second] = (first * kinds + kind) * 2;
    begun_[first] = begun_[second] = step_;
  }

  FERRY_HD void used(std::uint32_t expert) noexcept {
    const std::uint32_t rival = rival_[expert];
    if (rival == nobody) return;
    leave(expert);
    const bool second_was_right = rival % 2 == 1;  // it is the first way's victim
    Told& told = told_[rival / 2 % kinds];
    told.ahead += (second_was_right ? one : -one) - told.ahead / window;
    told.count += one - told.count / window;
    told.second_leads = told.second_leads ? told.ahead > told.count / 16 : told.ahead > 2 * one + told.count / 8;
  }

  [[nodiscard]] const char* check() const noexcept {
    for (std::uint32_t e = 0; e < rival_.size(); ++e) {
      if (rival_[e] == nobody) continue;
      const std::uint32_t other = rival_of(e);
      if (other >= rival_.size() || other == e ||
          rival_[other] != (e * kinds + rival_[e] / 2 % kinds) * 2 + 1 - rival_[e] % 2)
        return "Duel: an expert is watched beside one that is not watched beside it";
    }
    for (const Told& t : told_) {
      if (t.count < 0 || t.ahead > t.count || -t.ahead > t.count)
        return "Duel: one way was right more often than there were duels";
    }
    return nullptr;
  }

 private:
  static constexpr std::uint32_t nobody = 0xffffffff;
  static constexpr std::int32_t one = 1 << 16, window = 256;

  FERRY_HD bool is_watched(std::uint32_t expert) const noexcept {
    return rival_[expert] != nobody && step_ - begun_[expert] < span;
  }
  FERRY_HD std::uint32_t rival_of(std::uint32_t expert) const noexcept { return rival_[expert] / 2 / kinds; }
  FERRY_HD void leave(std::uint32_t expert) noexcept {
    if (rival_[expert] == nobody) return;
    rival_[rival_of(expert)] = nobody;
    rival_[expert] = nobody;
  }

  struct Told {
    std::int32_t ahead = 0;  ///< times of late that the second way was right, less those that it was wrong
    std::int32_t count = 0;  ///< both together
    bool second_leads = false;
  };

  /// [experts], (rival * kinds + kind) * 2, and 1 more of the first way's victim
  Array<std::uint32_t> rival_;
  Array<std::uint32_t> begun_;  ///< [experts], the step
  Told told_[kinds];
  std::uint32_t step_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
