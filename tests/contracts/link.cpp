// What concepts.hpp asks of every Link. A new link is registered in the list at the end.
#include <doctest/doctest.h>

#include "ferry/link/host_thread.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

template <class L>
std::unique_ptr<L> make(const ModelShape& m, SlotMemory& memory) {
  if constexpr (std::is_same_v<L, VirtualClock>) {
    return std::make_unique<L>(m, VirtualClock::Options{64'000'000, 0, true}, &memory);
  } else {
    return std::make_unique<L>(memory, HostThread::Options{.bytes_per_s = 64'000'000, .log = true});
  }
}

/// Lets some time go by on the link.
template <class L>
void pass(L& link) {
  if constexpr (std::is_same_v<L, VirtualClock>) {
    link.device(500);
    link.sync();
  } else {
    std::this_thread::yield();
  }
}

}  // namespace

TEST_CASE_TEMPLATE_DEFINE("Link", L, link_contract) {
  const ModelShape m = model(1, 64, 1);
  std::vector<std::vector<std::byte>> experts;
  for (int e = 0; e < 64; ++e) experts.emplace_back(64, static_cast<std::byte>(e));
  const Allotment slots = one_pool(m, 10 * 64);
  SlotMemory memory(
      slots,
      [&](Variant v) {
        return View<const std::byte>{experts[v.id.expert].data(), 64};
      },
      true);
  const auto link = make<L>(m, memory);
  Random random(13);
  std::uint64_t number = 0, fence = 0;
  Seen last;
  for (int i = 0; i < 3000; ++i) {
    const std::uint32_t slot = random.below(10);
    const auto expert = static_cast<std::uint16_t>(random.below(64));
    const bool demand = random.chance(60);
    const Ticket ticket{++number << 1U | (demand ? 0U : 1U)};
    link->fence(Fence{++fence});
    link->submit({ticket, full(0, expert), slot, Fence{fence}, demand});
    if (!demand && random.chance(50)) {
      link->drop(ticket);
      // best effort: if it has begun, it lands
    } else {
      link->wait(ticket);
      CHECK(memory.slot(slot)[0] == static_cast<std::byte>(expert));  // visible when wait returns
      CHECK(memory.slot(slot)[63] == static_cast<std::byte>(expert));
    }
    pass(*link);
    const Seen seen = link->seen();
    CHECK(seen.demand_landed >= last.demand_landed);  // never goes back
    CHECK(seen.prefetch_begun >= last.prefetch_begun);
    CHECK(seen.prefetch_landed >= last.prefetch_landed);
    CHECK(seen.prefetch_begun >= seen.prefetch_landed);
    last = seen;
  }
  CHECK_THROWS_AS(link->wait(Ticket{(number + 5) << 1U}), LinkError);
}

TEST_CASE_TEMPLATE_INVOKE(link_contract, VirtualClock, HostThread);
