#include "ferry/detail/slot_experts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// No policy; placed like one.
using Numbered = detail::SlotExperts;
constexpr PoolShape pool{4, 2, 3, 5};  // layers 2, 3, 4

}  // namespace

TEST_CASE("a pool's experts are numbered layer by layer from the pool's first") {
  Placed<Numbered> slots(pool);
  CHECK(slots->size() == 15);
  CHECK(slots->index({2, 0}) == 0);
  CHECK(slots->index({2, 4}) == 4);
  CHECK(slots->index({4, 3}) == 13);
  CHECK(slots->layer(4) == 2);
  CHECK(slots->layers() == 3);
  CHECK(slots->experts() == 5);
}

TEST_CASE("layers behind the present one come round at the end of the pool") {
  Placed<detail::Nearness> nearness(pool);
  // 3 - (other - now + 3) mod 3, by hand; rows: now = 2, 3, 4; columns: other = 2, 3, 4.
  const std::uint32_t expected[3][3] = {{3, 2, 1}, {1, 3, 2}, {2, 1, 3}};
  for (std::uint16_t now = 0; now < 3; ++now) {
    for (const std::int64_t each : {1, 7}) {
      for (std::uint32_t other = 0; other < 3; ++other) {
        CHECK((*nearness)(now, each)[other] == each * expected[now][other]);
      }
    }
  }
}

TEST_CASE("the least worth among the slots not barred, the lowest slot of equals") {
  Placed<Numbered> slots(pool);
  const std::uint16_t experts[4] = {3, 1, 4, 1};
  for (std::uint32_t s = 0; s < 4; ++s) slots->put(s, {2, experts[s]}, experts[s]);
  CHECK((*slots)[2] == ExpertId{2, 4});
  auto least = [&](std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
    const std::uint8_t flags[4] = {a, b, c, d};
    return slots->least({flags, 1}, [](std::size_t at) { return static_cast<std::int64_t>(at); });
  };
  CHECK(least(0, 0, 0, 0) == 1);
  CHECK(least(0, 1, 0, 0) == 3);
  CHECK(least(0, 1, 0, 1) == 0);
  CHECK(least(1, 1, 0, 1) == 2);
  CHECK(least(1, 1, 1, 1) == no_slot);
  CHECK(least(0, 2, 0, 0) == 1);  // a bar that does not count
}

TEST_CASE("layers that are worth nobody are left out") {
  Placed<Numbered> slots(pool);
  for (std::uint16_t l = 0; l < 3; ++l) slots->put(l, {static_cast<std::uint16_t>(2 + l), 0}, 5 * l);
  auto least = [&](std::uint32_t first_layer, std::uint8_t b) {
    const std::uint8_t flags[4] = {0, b, 0, 0};
    const auto key = [](std::size_t at) { return static_cast<std::int64_t>(at); };
    return slots->least({flags, 1}, key, [&](std::int64_t k, std::uint32_t layer) {
      return layer < first_layer ? Numbered::nobody : k;
    });
  };
  CHECK(least(0, 0) == 0);
  CHECK(least(1, 0) == 1);
  CHECK(least(1, 1) == 2);
  CHECK(least(3, 0) == no_slot);
}

TEST_CASE("a pool without slots has no least one") {
  Placed<Numbered> slots(PoolShape{0, 0, 1, 8});
  CHECK(slots->least({}, [](std::size_t at) { return static_cast<std::int64_t>(at); }) == no_slot);
}

namespace {
/// A pool of 5 layers, 20 slots, and keys at random. `shared`: an expert may have several slots.
void compare_with_a_look_at_every_slot(std::uint16_t experts, bool shared) {
  Random random(11);
  constexpr std::uint16_t layers = 5;
  constexpr std::uint32_t slots = 20;
  Placed<Numbered> policy(PoolShape{slots, 3, layers, experts});
  std::vector<std::int64_t> keys(layers * experts), ahead(layers);  // of an expert, and of its layer
  std::vector<ExpertId> holds(slots, ExpertId{0, no_expert});
  const auto key = [&](ExpertId id) { return keys[policy->index(id)]; };
  const auto key_at = [&](std::size_t at) { return keys[at]; };
  const auto worth = [&](std::int64_t k, std::uint32_t layer) { return k + ahead[layer]; };
  const auto of = [&](ExpertId id) { return worth(key(id), policy->layer(id.layer)); };
  const auto any = [&] {
    const auto layer = static_cast<std::uint16_t>(3 + random.between(0, layers - 1));
    return ExpertId{layer, static_cast<std::uint16_t>(random.between(0, experts - 1))};
  };
  for (int i = 0; i < 5000; ++i) {
    const ExpertId id = any();
    const std::uint32_t what = random.between(0, 9);
    if (what < 4) {
      const std::uint32_t slot = random.between(0, slots - 1);
      if (!shared && std::find(holds.begin(), holds.end(), id) != holds.end()) continue;
      policy->put(slot, id, key(id));  // if it has one, this is another precision of it
      holds[slot] = id;
    } else if (what < 8) {
      keys[policy->index(id)] += random.between(0, 3);
      policy->grew(id);
    } else if (what == 8) {
      for (std::uint16_t e = 0; e < experts; ++e) keys[policy->index({id.layer, e})] = random.between(0, 20);
      policy->changed(id.layer);
    } else if (random.between(0, 20) == 0) {
      for (std::int64_t& k : keys) k = random.between(0, 3);
      policy->changed();
    }
    for (std::int64_t& a : ahead) a = random.between(0, 6);
    std::uint8_t barred[slots];
    const std::uint32_t share = random.between(0, 4);
    for (std::uint8_t& b : barred) b = random.between(0, 3) < share ? 1 : 0;
    std::uint32_t expected = no_slot, of_layer = no_slot;
    for (std::uint32_t s = 0; s < slots; ++s) {
      if (holds[s].expert == no_expert || barred[s] != 0) continue;
      if (expected == no_slot || of(holds[s]) < of(holds[expected])) expected = s;
      if (holds[s].layer != id.layer) continue;
      if (of_layer == no_slot || key(holds[s]) < key(holds[of_layer])) of_layer = s;
    }
    const std::uint32_t l = policy->layer(id.layer);
    REQUIRE(policy->least_of(l, {barred, 1}, key_at) == of_layer);  // whether it knows the layer's least or not
    REQUIRE(policy->least({barred, 1}, key_at, worth) == expected);
    REQUIRE(policy->least_of(l, {barred, 1}, key_at) == of_layer);
  }
}
}  // namespace

TEST_CASE("the least worth of many layers, against a look at every slot") {
  for (const std::uint16_t experts : std::initializer_list<std::uint16_t>{7, 64, 130}) {
    for (const bool shared : {false, true}) {
      CAPTURE(experts);
      CAPTURE(shared);
      compare_with_a_look_at_every_slot(experts, shared);
    }
  }
}
