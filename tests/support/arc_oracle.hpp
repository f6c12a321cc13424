/// @file
/// The ARC replacement algorithm, line by line as it was published. Slow, and shares nothing with the library.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <stdexcept>

namespace ferry::test {

/// Source: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, Figure 4.
/// T1 and T2 are the cache (seen once, seen more often), B1 and B2 remember whom those two evicted last.
///
/// The paper's p is a real number that grows by |B2|/|B1| and shrinks by |B1|/|B2|, and REPLACE asks whether |T1| = p.
/// In a double, thirds and sevenths rarely add up to a whole again, which sooner or later changes a victim. So p counts in
/// parts of 1/lcm(1..36) here, which is exact: there are at most c ghosts, so the divisor is at most c/2.
class ArcOracle {
 public:
  using Keys = std::list<std::uint64_t>;  ///< the most recently used in front

  static constexpr std::size_t most = 73;  ///< the largest c for which p is exact

  explicit ArcOracle(std::size_t c) : c_(c) {
    if (c == 0 || c > most) throw std::invalid_argument("ArcOracle: c must be from 1 to 73");
  }

  /// Requests `key` (x in the paper). True on a hit.
  bool access(std::uint64_t key) {
    evicted_.reset();
    const auto known = where_.find(key);
    const Keys* list = known == where_.end() ? nullptr : known->second.list;

    if (list == &t1_ || list == &t2_) {  // Case I
      move(key, t2_);
      return true;
    }
    if (list == &b1_) {  // Case II
      const std::uint64_t delta1 = b1_.size() >= b2_.size() ? one : one / b1_.size() * b2_.size();
      p_ = std::min(p_ + delta1, c_ * one);
      replace(false);
      move(key, t2_);
      return false;
    }
    if (list == &b2_) {  // Case III
      const std::uint64_t delta2 = b2_.size() >= b1_.size() ? one : one / b2_.size() * b1_.size();
      p_ -= std::min(p_, delta2);  // max(p - delta2, 0)
      replace(true);
      move(key, t2_);
      return false;
    }
    const std::size_t l1 = t1_.size() + b1_.size(), l2 = t2_.size() + b2_.size();
    if (l1 == c_) {  // Case IV A
      if (t1_.size() < c_) {
        drop_last(b1_);
        replace(false);
      } else {
        evicted_ = t1_.back();
        drop_last(t1_);
      }
    } else if (l1 + l2 >= c_) {  // Case IV B, where l1 < c
      if (l1 + l2 == 2 * c_) drop_last(b2_);
      replace(false);
    }
    move(key, t1_);
    return false;
  }

  /// Who left the cache in the last access.
  std::optional<std::uint64_t> evicted() const { return evicted_; }

  const Keys& t1() const { return t1_; }
  const Keys& t2() const { return t2_; }
  const Keys& b1() const { return b1_; }
  const Keys& b2() const { return b2_; }
  double p() const { return static_cast<double>(p_) / static_cast<double>(one); }

 private:
  struct Place {
    Keys* list;
    Keys::iterator at;
  };

  /// The subroutine REPLACE(x, p): demotes the last of T1 or of T2. `in_b2`: x is in B2.
  void replace(bool in_b2) {
    const std::uint64_t t1 = t1_.size() * one;
    const bool from_t1 = !t1_.empty() && ((in_b2 && t1 == p_) || t1 > p_);
    evicted_ = from_t1 ? t1_.back() : t2_.back();
    move(*evicted_, from_t1 ? b1_ : b2_);
  }

  /// To the front of `list`, from wherever it was.
  void move(std::uint64_t key, Keys& list) {
    const auto known = where_.find(key);
    if (known != where_.end()) known->second.list->erase(known->second.at);
    list.push_front(key);
    where_[key] = {&list, list.begin()};
  }

  void drop_last(Keys& list) {
    where_.erase(list.back());
    list.pop_back();
  }

  static constexpr std::uint64_t one = 144403552893600;  ///< lcm(1..36)

  std::size_t c_;
  std::uint64_t p_ = 0;  ///< the size that T1 should have, times `one`
  Keys t1_, t2_, b1_, b2_;
  std::map<std::uint64_t, Place> where_;
  std::optional<std::uint64_t> evicted_;
};

}  // namespace ferry::test
