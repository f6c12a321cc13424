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
}

TEST_CASE("random budgets: never more bytes than allowed, or refused (invariants 1 and 7)") {
  Random random(1);
  for (int i = 0; i < 5000; ++i) {
    ModelShape m =
        model(static_cast<std::uint16_t>(random.between(1, 9)), static_cast<std::uint16_t>(random.between(1, 9)), 1);
    m.expert_bytes.clear();
    for (int l = 0; l < m.layers; ++l) m.expert_bytes.push_back({0, 0, 0, 0, random.between(1, 300)});
    const std::uint64_t budget = random.below(30000);
    const std::uint64_t stream = 2 * ModelShape::slot_bytes(m.largest_bytes());
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

TEST_CASE("shapes that cannot be are refused by the field") {
  ModelShape m = model(2, 4, 5);
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: top_k is 5, expected 1 to 4 (experts)", ConfigError);
  m = model(0, 4, 1);
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: layers and experts must be at least 1", ConfigError);
  m = model(2, 4, 1);
  m.expert_bytes.push_back(m.expert_bytes[0]);
  m.expert_bytes.push_back(m.expert_bytes[0]);
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: expert_bytes has 3 entries, expected 1 or 2 (layers)", ConfigError);
  m = model(2, 4, 1, 1, 0);
  CHECK_THROWS_WITH_AS(m.validate(), "model shape: layer 0 has no bytes at full precision", ConfigError);
}
