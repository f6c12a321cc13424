/// @file
/// One policy in a block of its own, for tests that use it alone.
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "ferry/concepts.hpp"

namespace ferry::test {

template <class Policy>
class Placed {
 public:
  template <class ShapeT>
  explicit Placed(const ShapeT& shape, Policy policy = {}) {
    Carver measure;
    Policy probe = policy;
    probe.reserve(measure, shape);
    constexpr std::size_t head = (sizeof(Policy) + storage_alignment - 1) / storage_alignment * storage_alignment;
    memory_.resize(head + measure.bytes() + storage_alignment);
    void* at = memory_.data();
    std::size_t space = memory_.size();
    auto* block = static_cast<std::byte*>(std::align(storage_alignment, head + measure.bytes(), at, space));
    policy_ = new (block) Policy(policy);
    Carver carve(block + head);
    policy_->reserve(carve, shape);
    measured = measure.bytes() == carve.bytes();
  }
  Policy* operator->() { return policy_; }
  Policy& operator*() { return *policy_; }

  bool measured = false;  ///< both passes asked for the same

 private:
  std::vector<std::byte> memory_;
  Policy* policy_ = nullptr;
};

/// The first of a policy's invariants that it finds broken; empty if all hold, or if it has no `check`.
template <class Policy>
std::string broken(const Policy& policy) {
  if constexpr (part::Checks<Policy>) {
    if (const char* what = policy.check()) return what;
  }
  return {};
}

/// The experts of requests, in their order.
inline std::vector<int> ids(const std::vector<Request>& requests) {
  std::vector<int> experts;
  for (const Request& r : requests) experts.push_back(r.want.id.expert);
  return experts;
}

}  // namespace ferry::test
