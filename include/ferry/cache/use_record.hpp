/// @file
/// When and how often each expert was used: HOBBIT's priority record.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry {

/// R, F and H of each expert, also of those that are absent, and the number T of steps that they were counted over.
///
/// Source: HOBBIT, section 3.4, Eq. 3 and Fig. 12 ("priority record"). Complexity: O(1), `reset` O(experts).
/// State: 24 bytes an expert; counts of 64 bits never run over.
class UseRecord {
 public:
  struct Use {
    std::uint64_t last = 0;  ///< R: the step of the last use, from 1; 0: never
    std::uint64_t all = 0;   ///< F: uses
    std::uint64_t high = 0;  ///< H: uses at high precision
  };

  void reserve(Carver& carve, std::uint32_t experts) {
    carve(uses_, experts);
    steps_ = 0;
  }

  FERRY_HD void begin_step() noexcept { ++steps_; }
  FERRY_HD void note(std::uint32_t expert, bool high) noexcept {
    Use& use = uses_[expert];
    use.last = steps_;
    ++use.all;
    if (high) ++use.high;
  }
  FERRY_HD void reset() noexcept {
    for (Use& use : uses_) use = {};
    steps_ = 0;
  }

  FERRY_HD const Use& operator[](std::uint32_t expert) const noexcept { return uses_[expert]; }
  FERRY_HD std::uint64_t steps() const noexcept { return steps_; }

 private:
  Array<Use> uses_;  ///< [layers, experts] of a pool
  std::uint64_t steps_ = 0;
};

}  // namespace ferry
