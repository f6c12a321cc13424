/// @file
/// A scheduler put together from three small functions.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

namespace part {
template <class O>
consteval bool orders_batches() {
  if constexpr (requires { O::orders_batches; }) return O::orders_batches;
  return false;
}
template <class P>
consteval bool needs_ordered_batches() {
  if constexpr (requires { P::needs_ordered_batches; }) return P::needs_ordered_batches;
  return false;
}
}  // namespace part

/// How many predictions to fetch, in which order copies go, and which misses the host computes.
/// Parameters are those of the three parts: `Schedule<TransferBudget, ArrivalOrder, DeviceOnly>{}.layer_ns`.
template <PrefetchLimit L, CopyOrder O, Placement P>
struct Schedule : L, O, P {
  static_assert(!part::needs_ordered_batches<P>() || part::orders_batches<O>(),
                "this placement splits misses that are sorted by rows: compose it with BatchSizeOrder");
};

}  // namespace ferry::inline FERRY_ABI
