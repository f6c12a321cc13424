/// @file
/// Which sequences are under way.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// A small set of sequence numbers, so that policies can begin anew once the last one has ended. They do so at the next step,
/// since an engine may end a sequence in the middle of one. There is room for `Shape::max_rows` sequences at a time; beyond
/// that it only knows that there are more. `note` O(rows * live), `end` O(live).
class LiveSequences {
 public:
  void reserve(Carver& carve, const Shape& shape) { carve(live_, shape.max_rows); }

  /// Those of a step. True if all that were live before have ended.
  FERRY_HD bool note(View<const std::uint32_t> sequences) noexcept {
    const bool anew = ended_ && count_ == 0;
    ended_ = false;
    if (anew) more_ = false;
    for (const std::uint32_t s : sequences) {
      if (count_ > 0 && live_[count_ - 1] == s) continue;  // the rows of a prompt
      std::uint32_t at = 0;
      while (at < count_ && live_[at] != s) ++at;
      if (at < count_) continue;
      if (count_ < live_.size()) {
        live_[count_++] = s;
      } else {
        more_ = true;
      }
    }
    return anew;
  }

  /// Takes a sequence out. Returns whether it may have been live.
  FERRY_HD bool end(std::uint32_t sequence) noexcept {
    for (std::uint32_t i = 0; i < count_; ++i) {
      if (live_[i] != sequence) continue;
      live_[i] = live_[--count_];
      ended_ = true;
      return true;
    }
    return more_;
  }

 private:
  Array<std::uint32_t> live_;
  std::uint32_t count_ = 0;
  bool ended_ = false;  ///< a sequence has ended since the last step began
  bool more_ = false;   ///< there were more sequences than there is room for; which of them live is not known
};

}  // namespace ferry::inline FERRY_ABI::detail
