/// @file
/// A number for each routed expert of a model.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ferry/model.hpp"

namespace ferry::engine {

/// Counts experts layer by layer, in ascending order of both.
class ExpertNumbers {
 public:
  ExpertNumbers() = default;
  /// `experts`: of each layer with experts.
  explicit ExpertNumbers(const std::vector<std::uint32_t>& experts) {
    for (const std::uint32_t n : experts) first_.push_back(first_.back() + n);
  }

  [[nodiscard]] std::uint64_t all() const { return first_.back(); }
  [[nodiscard]] std::uint32_t layers() const { return static_cast<std::uint32_t>(first_.size() - 1); }
  [[nodiscard]] std::uint32_t of_layer(std::uint32_t layer) const {
    return static_cast<std::uint32_t>(first_[layer + 1U] - first_[layer]);
  }
  [[nodiscard]] std::uint64_t number(ExpertId id) const { return first_[id.layer] + id.expert; }
  /// Of 0 to all() - 1.
  [[nodiscard]] ExpertId id(std::uint64_t number) const {
    const auto layer = std::upper_bound(first_.begin(), first_.end(), number) - first_.begin() - 1;
    return {static_cast<std::uint16_t>(layer),
            static_cast<std::uint16_t>(number - first_[static_cast<std::size_t>(layer)])};
  }

 private:
  std::vector<std::uint64_t> first_{0};  ///< [layers + 1] of each layer, and behind the last
};

}  // namespace ferry::engine
