#include "ferry/allotment.hpp"

#include <doctest/doctest.h>

#include "support/invariant_checker.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("one pool: two stream slots come off the budget, the rest caches") {
  const ModelShape m = model(3, 8, 2, 1, 100);  // slots of 128 bytes
  const Allotment a = one_pool(m, 10 * 128 + 127);
  REQUIRE(a.pools.size() == 1);
  CHECK(a.pools[0].slots == 8);
  CHECK(a.pools[0].slot_bytes == 128);
  CHECK(a.stream_slots == 2);
  CHECK(a.bytes() == 10 * 128);
  CHECK(a.offsets().size() == 11);
  CHECK(a.offsets().back() == 10 * 128);
}

TEST_CASE("one pool a layer: what does not divide goes to the shallowest layers") {
  const ModelShape m = model(3, 8, 2);
  const Allotment a = pool_per_layer(m, (2 + 7) * 64);
  CHECK(a.pools[0].slots == 3);
  CHECK(a.pools[1].slots == 2);
  CHECK(a.pools[2].slots == 2);
  CHECK(a.stream_slots == 2);
}

TEST_CASE("one pool a layer, too little for all layers: some have no slots") {
  const Allotment a = pool_per_layer(model(3, 8, 2), 3 * 64);
  CHECK(a.pools[0].slots == 1);
  CHECK(a.pools[1].slots == 0);
  CHECK(a.pools[2].slots == 0);
}

TEST_CASE("a budget for everything needs no stream slots") {
  const ModelShape m = model(3, 8, 2);
  for (const Allotment& a : {one_pool(m, m.all_bytes()), pool_per_layer(m, m.all_bytes()), everything(m)}) {
    CHECK(a.stream_slots == 0);
    CHECK(a.slots() == 24);
    CHECK(a.bytes() == m.all_bytes());
  }
  CHECK(one_pool(m, m.all_bytes() - 1).stream_slots == 2);
}

TEST_CASE("layers of unequal size: slots are as large as their pool's largest") {
  ModelShape m = model(2, 4, 1);
  m.expert_bytes = {ExpertBytes{0, 0, 0, 0, 64}, ExpertBytes{0, 0, 0, 0, 192}};
  CHECK(m.all_bytes() == 4 * 64 + 4 * 192);
  const Allotment each = pool_per_layer(m, 2 * 192 + 2 * (64 + 192) + 64);
  CHECK(each.pools[0].slots == 3);
  CHECK(each.pools[0].slot_bytes == 64);
  CHECK(each.pools[1].slots == 2);
  CHECK(each.pools[1].slot_bytes == 192);
  CHECK(each.stream_slot_bytes == 192);
  CHECK(one_pool(m, 5 * 192).pools[0].slots == 3);
}

TEST_CASE("shallow-favouring: below, at and above N = s E, as Fate's section 4.4 has it") {
  const ModelShape m = model(5, 8, 2);  // E = 8, L = 5, s = 2: s E = 16
  auto slots = [&](std::uint64_t n) {   // of each layer for N slots
    std::vector<std::uint32_t> each;
    for (const Pool& p : shallow_favouring(m, (n + 2) * 64, 2).pools) each.push_back(p.slots);
    return each;
  };
  using Slots = std::vector<std::uint32_t>;
  CHECK(slots(0) == Slots{0, 0, 0, 0, 0});
  CHECK(slots(5) == Slots{5, 0, 0, 0, 0});
  CHECK(slots(11) == Slots{8, 3, 0, 0, 0});
  CHECK(slots(15) == Slots{8, 7, 0, 0, 0});
  CHECK(slots(16) == Slots{8, 8, 0, 0, 0});
  CHECK(slots(17) == Slots{8, 8, 1, 0, 0});  // floor(1/3) = 0 each, one over
  CHECK(slots(19) == Slots{8, 8, 1, 1, 1});  // floor(3/3) = 1
  CHECK(slots(27) == Slots{8, 8, 4, 4, 3});  // floor(11/3) = 3, two over
  CHECK(slots(37) == Slots{8, 8, 7, 7, 7});  // floor(21/3) = 7; 40 slots hold everything and need no stream slots
  CHECK(shallow_favouring(m, 40 * 64, 2).stream_slots == 0);
  CHECK(shallow_favouring(m, 40 * 64 - 1, 2).stream_slots == 2);
  CHECK_THROWS_WITH_AS(shallow_favouring(m, 4000, 6),
                       "shallow-favouring allotment: 6 shallow layers, but the model has 5 in all", ConfigError);
}

TEST_CASE("shallow-favouring leaves the deep layers room to prefetch to") {
  const ModelShape m = model(5, 8, 2);
  auto room = [&](std::uint64_t n) { return shallow_favouring(m, (n + 2) * 64, 2, Precision::full, 4).pools; };
  // N = 10: 6 for the shallow layers, 4 that the three deep layers share
  std::vector<Pool> pools = room(10);
  REQUIRE(pools.size() == 3);
  CHECK(pools[0].slots == 6);
  CHECK(pools[1].slots == 0);
  CHECK(pools[2].slots == 4);
  CHECK(pools[2].first_layer == 2);
  CHECK(pools[2].layers == 3);
  // N = 21: 16, and 5 to share. One for each layer would be less than a token's top-2.
  pools = room(21);
  REQUIRE(pools.size() == 3);
  CHECK(pools[1].slots == 8);
  CHECK(pools[2].slots == 5);
  // N = 23: floor(7 / 3) = 2 for each deep layer, one over
  pools = room(23);
  REQUIRE(pools.size() == 5);
  CHECK(pools[2].slots == 3);
  CHECK(pools[4].slots == 2);
  // N = 3: all slots are left to the deep layers' prefetches
  pools = room(3);
  CHECK(pools[0].slots == 0);
  CHECK(pools[2].slots == 3);
  // no more room than the deep layers have experts for
  ModelShape small_last = model(2, 8, 2);
  small_last.layer_experts = {8, 2};
  pools = shallow_favouring(small_last, 8 * 64, 1, Precision::full, 8).pools;
  CHECK(pools[0].slots == 4);
  CHECK(pools[1].slots == 2);
  // all layers are shallow, so no room is left for others
  CHECK(shallow_favouring(m, 12 * 64, 5, Precision::full, 4).pools[0].slots == 8);
}

TEST_CASE("shallow-favouring never takes more than the budget, nor leaves room for another slot") {
  Random random(3);
  for (int i = 0; i < 500; ++i) {
    const auto layers = static_cast<std::uint16_t>(random.between(1, 6));
    ModelShape m = model(layers, 8, 2);
    m.expert_bytes.clear();
    for (int l = 0; l < layers; ++l) m.expert_bytes.push_back({0, 0, 0, 0, std::uint64_t{64} * random.between(1, 5)});
    const std::uint64_t stream = 2 * ModelShape::slot_bytes(largest_bytes(m));
    const std::uint64_t budget = stream + random.below(static_cast<std::uint32_t>(m.all_bytes()));
    const std::uint32_t shallow = random.below(layers + 1U);
    const std::uint32_t prefetch = random.chance(50) ? 0 : random.below(12);
    const Allotment a = shallow_favouring(m, budget, shallow, Precision::full, prefetch);
    CHECK(a.bytes() <= budget);
    for (const Pool& p : a.pools) CHECK(p.slots <= 8U * p.layers);
    if (a.stream_slots == 0 || prefetch > 0) continue;
    bool room = false;  // in the first layer that is not full
    for (const Pool& p : a.pools) {
      if (p.slots == 8) continue;
      room = a.bytes() + p.slot_bytes <= budget && p.first_layer < shallow;
      break;
    }
    CHECK_FALSE(room);
  }
}

TEST_CASE("two pools by precision share the bytes, the low one its percentage") {
  ModelShape m = model(4, 8, 2, 1, 256, 64);
  const Allotment a = high_low_pools(m, 2 * 256 + 4000, Precision::full, Precision::int4, 20);
  REQUIRE(a.pools.size() == 2);
  CHECK(a.pools[1].slots == 14);  // floor(800 / 64) = 12, and two in what the high pool leaves
  CHECK(a.pools[0].slots == 12);  // floor((4000 - 768) / 256)
  CHECK(a.pools[0].precisions == part::bit(Precision::full));
  CHECK(a.pools[1].precisions == part::bit(Precision::int4));
  CHECK(a.stream_slots == 2);
  CHECK(a.stream_slot_bytes == 256);
  CHECK(high_low_pools(m, 32 * 320, Precision::full, Precision::int4).stream_slots == 0);
  CHECK(high_low_pools(m, 32 * 320 - 1, Precision::full, Precision::int4).stream_slots == 2);
  CHECK_THROWS_AS(high_low_pools(m, 5000, Precision::int4, Precision::full), ConfigError);
  CHECK_THROWS_AS(high_low_pools(m, 5000, Precision::full, Precision::int4, 51), ConfigError);
}

TEST_CASE("slots that several precisions share are as large as the largest of them") {
  ModelShape m = model(2, 4, 1, 1, 256, 64);
  m.expert_bytes[0][static_cast<unsigned>(Precision::int2)] = 32;
  const Allotment a = pool_per_layer(m, (2 + 6) * 64, Precision::int4 | Precision::int2);
  CHECK(a.pools[0].slots == 3);
  CHECK(a.pools[0].slot_bytes == 64);
  CHECK(a.pools[0].precisions == (part::bit(Precision::int4) | part::bit(Precision::int2)));
  CHECK(a.stream_slot_bytes == 64);
  // A layer is whole with a slot for each expert, even if two precisions share the slots: N = s E = 4 fills layer 0.
  const auto whole = [&](std::uint64_t n) {
    return shallow_favouring(m, (2 + n) * 64, 1, Precision::int4 | Precision::int2);
  };
  CHECK(whole(4).pools[0].slots == 4);
  CHECK(whole(4).pools[1].slots == 0);
  CHECK(whole(6).pools[0].slots == 4);
  CHECK(whole(6).pools[1].slots == 2);
  CHECK(whole(11).pools[0].slots == 6);  // every expert has one, three are left for second variants
  CHECK(whole(11).pools[1].slots == 5);
  // both variants of each expert have a place
  CHECK(pool_per_layer(m, 16 * 64, Precision::int4 | Precision::int2).stream_slots == 0);
  CHECK(pool_per_layer(m, 16 * 64 - 1, Precision::int4 | Precision::int2).stream_slots == 2);
}

TEST_CASE("a stack that keeps nothing gets as many stream slots as a layer can use") {
  const ModelShape m = model(3, 8, 2);
  CHECK(stream_only(m, 5 * 64).stream_slots == 5);
  CHECK(stream_only(m, 100 * 64).stream_slots == 8);
  CHECK(stream_only(m, 100 * 64).pools.empty());
}

TEST_CASE("invariant 7: a budget below the stream pool is refused, naming the bytes that it needs") {
  const ModelShape m = model(3, 8, 2, 1, 100);
  const char* sentence =
      "budget of 255 bytes is too small: at least 256 bytes are needed, 2 slots of the largest expert (all "
      "experts "
      "together: 3072 bytes)";
  CHECK_THROWS_WITH_AS(one_pool(m, 255), sentence, ConfigError);
  CHECK_THROWS_WITH_AS(pool_per_layer(m, 255), sentence, ConfigError);
  CHECK_THROWS_WITH_AS(stream_only(m, 255), sentence, ConfigError);
  CHECK_NOTHROW(one_pool(m, 256));
  const ModelShape huge = model(3, 8, 2, 1, std::uint64_t{1} << 40U);
  CHECK_THROWS_AS(one_pool(huge, {std::uint64_t{1} << 39U, 1U << 25U}), ConfigError);  // 2^65 bytes of stream slots
}

TEST_CASE("what all experts take is not known before their bytes are") {
  ModelShape m = model(3, 8, 2, 1, 100);
  CHECK(m.all_bytes() == 3 * 8 * 128);
  for (const std::size_t entries : {0U, 2U, 4U}) {
    m.expert_bytes.resize(entries);
    CHECK_THROWS_WITH_AS(static_cast<void>(m.all_bytes()), doctest::Contains("expected 1 or 3 (layers)"), ConfigError);
  }
}

TEST_CASE("random budgets: never more bytes than allowed, or refused (invariants 1 and 7)") {
  Random random(1);
  for (int i = 0; i < 5000; ++i) {
    ModelShape m =
        model(static_cast<std::uint16_t>(random.between(1, 9)), static_cast<std::uint16_t>(random.between(1, 9)), 1);
    m.expert_bytes.clear();
    for (int l = 0; l < m.layers; ++l) m.expert_bytes.push_back({0, 0, 0, 0, random.between(1, 300)});
    const std::uint64_t budget = random.below(30000);
    const std::uint64_t stream = 2 * ModelShape::slot_bytes(largest_bytes(m));
    for (int kind = 0; kind < 3; ++kind) {
      Allotment a;
      try {
        a = kind == 0 ? one_pool(m, budget) : kind == 1 ? pool_per_layer(m, budget) : stream_only(m, budget);
      } catch (const ConfigError&) {
        CHECK(budget < stream);
        continue;
      }
      CHECK_NOTHROW(check_budget(budget, a));
      CHECK(a.offsets().back() == a.bytes());
    }
  }
}

TEST_CASE("layers with different numbers of experts: each has slots for its own, and all bytes are theirs") {
  ModelShape m = model(3, 8, 2);  // slots of 64 bytes
  m.layer_experts = {2, 8, 4};
  CHECK(m.all_bytes() == 14 * 64);
  CHECK(m.experts_in(1, 2) == 12);
  for (const Allotment& a : {one_pool(m, 14 * 64), pool_per_layer(m, 14 * 64), everything(m)}) {
    CHECK(a.stream_slots == 0);
    CHECK(a.slots() == 14);
  }
  // 2 + 10 slots: two for each layer, which fills the first; then one each for the others, twice.
  const Allotment each = pool_per_layer(m, 12 * 64);
  CHECK(each.pools[0].slots == 2);
  CHECK(each.pools[1].slots == 4);
  CHECK(each.pools[2].slots == 4);
  // One more slot goes to the layer that is not full.
  CHECK(pool_per_layer(m, 13 * 64).pools[1].slots == 5);
  // The first layer whole, and then the second.
  const Allotment shallow = shallow_favouring(m, 9 * 64, 2);
  CHECK(shallow.pools[0].slots == 2);
  CHECK(shallow.pools[1].slots == 5);
  CHECK(shallow.pools[2].slots == 0);
  // Two variants of each expert share their slots: each layer has up to twice its experts.
  m.expert_bytes = {ExpertBytes{0, 32, 64, 0, 256}};
  const Allotment both = pool_per_layer(m, 20 * 64, Precision::int4 | Precision::int2);
  CHECK(both.pools[0].slots == 4);
  CHECK(both.pools[1].slots == 7);
  CHECK(both.pools[2].slots == 7);
}

TEST_CASE("what is left over goes past a layer that has a slot for each of its experts") {
  ModelShape m = model(3, 4, 1);  // slots of 64 bytes
  m.layer_experts = {1, 4, 4};
  // 2 + 4 slots: one for each layer, more than which the first cannot use. Then there is not one for each of the others.
  const Allotment a = pool_per_layer(m, 6 * 64);
  CHECK(a.pools[0].slots == 1);
  CHECK(a.pools[1].slots == 2);
  CHECK(a.pools[2].slots == 1);
}

TEST_CASE("shapes that cannot be are refused by the field") {
  ModelShape m = model(2, 4, 5);
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: top_k is 5, expected 1 to 4 (experts)", ConfigError);
  m = model(0, 4, 1);
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: layers and experts must be at least 1", ConfigError);
  m = model(2, 4, 1);
  m.expert_bytes.push_back(m.expert_bytes[0]);
  m.expert_bytes.push_back(m.expert_bytes[0]);
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: expert_bytes has 3 entries, expected 1 or 2 (layers)", ConfigError);
  m = model(2, 4, 2);
  m.layer_experts = {4};
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: layer_experts has 1 entries, expected none or 2 (layers)",
                       ConfigError);
  m.layer_experts = {4, 5};
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: layer_experts[1] is 5, expected 1 to 4, the largest", ConfigError);
  m.layer_experts = {4, 1};
  CHECK_THROWS_WITH_AS(m.validate(),
                       "model shape: layer 1 has a top_k of 2, expected 1 to 1, its experts: give each layer its own",
                       ConfigError);
  m.layer_top_k = {2, 0};
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: layer_top_k[1] is 0, expected 1 to 2, the largest", ConfigError);
  m = model(2, 4, 1, 1, 0);
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: layer 0 has no bytes at full precision", ConfigError);
}

TEST_CASE("bytes and experts of a shape whose layers are not told are refused, not read from beyond its end") {
  ModelShape m = model(40, 8, 2);
  m.layer_experts = {8, 4};
  const char* expected = "model shape: layer_experts has 2 entries, expected none or 40 (layers)";
  CHECK_THROWS_WITH_AS(static_cast<void>(m.all_bytes()), expected, ConfigError);
  CHECK_THROWS_WITH_AS(static_cast<void>(m.all_experts()), expected, ConfigError);
}

TEST_CASE("slots for a precision that no expert is stored at are refused by name") {
  ModelShape m = model(2, 4, 1);
  m.expert_bytes = {{0, 0, 0, 100, 200}};  // INT8 and full
  CHECK_THROWS_WITH_AS(
      high_low_pools(m, 1000, Precision::full, Precision::int4),
      "layer 0 has no experts in INT4, for which slots were asked: expected a precision that the model "
      "is stored in",
      ConfigError);
  CHECK_THROWS_AS(pool_per_layer(m, 1000, Precision::int2 | Precision::int4), ConfigError);
  CHECK_THROWS_AS(shallow_favouring(m, 1000, 1, Precision::int4, 2), ConfigError);
  CHECK(high_low_pools(m, 100'000, Precision::full, Precision::int8).pools.size() == 2);
}
