/// @file
/// What concepts.hpp asks of every Link. Engines try theirs with it, too: contracts/own_policy/main.cpp.
#pragma once
#include <doctest/doctest.h>

#include <utility>

#include "ferry/concepts.hpp"
#include "ferry/error.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"
#include "support/watchdog.hpp"

namespace ferry::test {

/// The size of the experts that links are tried with: 64 experts of one layer, of which ten have a slot.
inline constexpr std::uint32_t expert_bytes = 64;

/// Copies, drops and waits in any order. `rig.link` points to a new link, which copies expert e as bytes that are all e;
/// `rig.ends(slot)` is the first and the last byte that the device sees there; `rig.pass()` lets some time go by.
template <class Rig>
void link_contract_of(Rig& rig) {
  const Watchdog watchdog;
  Random random(13);
  std::uint64_t number = 0, fence = 0;
  Seen last;
  for (int i = 0; i < 3000; ++i) {
    const std::uint32_t slot = random.below(10);
    const auto expert = static_cast<std::uint16_t>(random.below(64));
    const bool demand = random.chance(60);
    const Ticket ticket{++number << 1U | (demand ? 0U : 1U)};
    rig.link->fence(Fence{++fence});
    rig.link->submit({ticket, full(0, expert), slot, Fence{fence}, demand});
    if (!demand && random.chance(30)) rig.pass();  // it may begin
    if (!demand && random.chance(50)) {
      rig.link->drop(ticket);
      // best effort: if it has begun, it lands
    } else {
      rig.link->wait(ticket);
      const auto [first, last_byte] = rig.ends(slot);
      CHECK(first == static_cast<std::byte>(expert));  // visible when wait returns
      CHECK(last_byte == static_cast<std::byte>(expert));
    }
    rig.pass();
    const Seen seen = rig.link->seen();
    CHECK(seen.demand_landed >= last.demand_landed);  // never goes back
    CHECK(seen.prefetch_begun >= last.prefetch_begun);
    CHECK(seen.prefetch_landed >= last.prefetch_landed);
    CHECK(seen.prefetch_begun >= seen.prefetch_landed);
    last = seen;
  }
  CHECK_THROWS_AS(rig.link->wait(Ticket{(number + 5) << 1U}), LinkError);
}

}  // namespace ferry::test
