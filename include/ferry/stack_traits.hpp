/// @file
/// What a stack is like, for code that does not know its type.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// What is known of a stack's type, whatever its parameters.
struct StackTraits {
  bool predicts = false;             ///< look-aheads are of use to it
  bool caches = false;               ///< keeps experts in slots
  bool substitutes = false;          ///< may run other experts than the gate chose
  bool skips = false;                ///< may leave out what the gate chose, by its weight, or bring it with fewer bits
  bool preloads = false;             ///< its slots are to be filled before the first step
  bool computes_on_host = false;     ///< may leave misses to the host
  bool router_needs_scores = false;  ///< `plan` takes the scores of all experts, not routes
  bool cache_needs_scores = false;   ///< likewise
  RowSource rows[2] = {};            ///< by Phase, what makes the rows that `look_ahead` takes
};
/// What a stack's type says of itself.
template <class Stack>
constexpr StackTraits traits_of() {
  using P = typename Stack::predictor;
  StackTraits t;
  t.predicts = part::predicts<P>();
  t.caches = part::caches<typename Stack::cache>();
  t.substitutes = part::substitutes<typename Stack::router>();
  t.skips = part::skips<typename Stack::router>() || part::needs_unimportance<typename Stack::precision>();
  if constexpr (requires { Stack::preloads; }) t.preloads = Stack::preloads;
  t.computes_on_host = part::computes_on_host<typename Stack::scheduler>();
  t.router_needs_scores = part::needs_full_scores<typename Stack::router>();
  t.cache_needs_scores = part::needs_full_scores<typename Stack::cache>();
  t.rows[0] = part::rows_of<P>(Phase::prefill);
  t.rows[1] = part::rows_of<P>(Phase::decode);
  return t;
}

}  // namespace ferry::inline FERRY_ABI
