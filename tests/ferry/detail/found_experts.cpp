#include "ferry/detail/found_experts.hpp"

#include <doctest/doctest.h>

#include <initializer_list>
#include <new>
#include <vector>

#include "ferry/stacks.hpp"
#include "support/policies.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using IntVector = std::vector<int>;

std::vector<int> ids(View<const Request> requests) {
  return test::ids(std::vector<Request>(requests.begin(), requests.end()));
}

/// A layer of 8 experts and 6 slots; 5 and 3 are resident, 4 and 1 on their way.
template <class Stack>
struct FoundFixture {
  FoundFixture() : costs(CoreSettings()) {
    const ModelShape m = model(1, 8, 1, 8);
    Carver carve(block + 8192);
    slots.reserve(carve, m, {{{0, 1, part::bit(Precision::full), 6, 64}}, 2, 64}, {}, 1, -1.0F);
    found.reserve(carve, 8);
    costs.reserve(carve, 1);
    LayerCosts weighed;
    costs.note(Phase::decode, 0, {0, 0, 11, 22}, {}, weighed);
    const std::uint32_t sequence = 0;
    slots.begin_step({Phase::decode, {&sequence, 1}}, false);
    Ticket landed = Ticket::none;
    for (const std::uint16_t e : std::initializer_list<std::uint16_t>{5, 3, 4, 1}) {
      std::uint16_t closed = Residency::no_pool;
      const std::uint32_t slot = slots.make_room(full(0, e), Residency::for_demand, closed);
      slots.admit(slot, full(0, e), true);
      if (e == 3) landed = slots.residency().slot(slot).ticket;
    }
    slots.begin_call({landed, Ticket::none, Ticket::none});
    for (std::uint16_t e = 0; e < 6; ++e) {
      requests.emplace_back().want = full(0, e);
      slots.find_best(requests.back());
    }
    requests[2].want.precision = Precision::skip;
    find();
  }
  void find(Phase phase = Phase::decode) {
    found.find(phase, requests, costs, slots, [&](const Request& r) { skipped.push_back(r.want.id.expert); });
  }
  [[nodiscard]] bool leased(std::uint16_t e) const {
    return slots.residency().is_leased(slots.residency().find(full(0, e)));
  }

  alignas(64) std::byte block[32768];
  detail::CachedSlots<Stack>& slots = *new (block) detail::CachedSlots<Stack>;
  detail::FoundExperts<Stack>& found = *new (block + 4096) detail::FoundExperts<Stack>;
  detail::MeasuredCosts costs;
  std::vector<Request> requests;
  std::vector<int> skipped;
};

}  // namespace

TEST_CASE("a layer's requests by where they are: there, missing, on their way, skipped") {
  FoundFixture<stacks::LruCache> f;
  CHECK(f.found.present() == 2);
  CHECK(ids(View<const Request>(f.requests).part(0, 2)) == IntVector{3, 5});
  CHECK(ids(f.found.misses()) == IntVector{0});
  CHECK(f.found.misses()[0].host_ns == 22);
  CHECK(ids(f.found.arriving()) == IntVector{4, 1});
  CHECK(f.skipped == IntVector{2});
  CHECK_FALSE(f.found.any_staged());
  for (const std::uint16_t e : std::initializer_list<std::uint16_t>{1, 3, 4, 5}) CHECK(f.leased(e));
  CHECK(f.requests.size() == 6);
}

TEST_CASE("a placement that weighs a layer knows what its experts cost, wherever they are") {
  FoundFixture<stacks::Ferry> f;
  CHECK(ids(View<const Request>(f.requests).part(0, f.found.present())) == IntVector{3, 5});
  for (const Request& r : f.found.arriving()) CHECK(r.host_ns == 22);
  for (std::uint32_t i = 0; i < 2; ++i) CHECK(f.requests[i].device_ns == 11);
}

TEST_CASE("a placement that weighs a layer knows what the place of a miss would gain, by the cache policy") {
  FoundFixture<stacks::Ferry> f;
  CHECK(f.found.misses()[0].gain_ns == 0);
  f.slots.saved(f.found.misses(), 1, 1600);
  f.find();
  CHECK(f.found.misses()[0].gain_ns == 3200);  // includes the present use
  f.found.misses()[0].gain_ns = 0;
  f.find(Phase::prefill);
  CHECK(f.found.misses()[0].gain_ns > 0);
  FoundFixture<stacks::FerryDevice> other;  // the same policy, and everything is loaded
  other.slots.saved(other.found.misses(), 1, 1600);
  other.find();
  CHECK(other.found.misses()[0].gain_ns == 0);
}
