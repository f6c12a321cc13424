/// @file
/// What concepts.hpp asks of every CachePolicy. Engines try theirs with it, too: contracts/own_policy/main.cpp.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "ferry/concepts.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

namespace ferry::test {

TEST_CASE_TEMPLATE_DEFINE("CachePolicy", Cache, cache_policy_contract) {
  SUBCASE("both passes of reserve ask for the same") {
    for (const std::uint32_t slots : {0U, 1U, 7U}) CHECK(Placed<Cache>(PoolShape{slots, 0, 2, 8}).measured);
  }
  SUBCASE("a victim is a slot that is not barred, and asking changes nothing") {
    constexpr std::uint32_t slots = 6;
    Placed<Cache> cache(PoolShape{slots, 1, 2, 8}), twin(PoolShape{slots, 1, 2, 8});
    Random random(21);
    std::vector<Variant> holds(slots, full(0, no_expert));
    std::vector<std::uint32_t> empty{5, 4, 3, 2, 1, 0};
    std::uint32_t queued = no_slot;  // the slot of a queued prefetch that was not asked for
    for (int i = 0; i < 20000; ++i) {
      if (queued != no_slot && random.chance(15)) {  // it is taken back
        if constexpr (part::Forgets<Cache>) {
          cache->forget(queued);
          twin->forget(queued);
          REQUIRE(broken(*cache) == "");
        }
        holds[queued] = full(0, no_expert);
        empty.push_back(queued);
        queued = no_slot;
      }
      Variant v = full(static_cast<std::uint16_t>(random.between(1, 2)), static_cast<std::uint16_t>(random.below(8)));
      if (random.chance(20)) v.precision = Precision::int4;
      std::uint32_t at = no_slot;
      for (std::uint32_t s = 0; s < slots; ++s) at = holds[s] == v ? s : at;
      const bool demand = random.chance(70);
      if constexpr (part::ObservesScores<Cache>) {
        const auto layer = static_cast<std::uint16_t>(random.between(1, 2));
        const auto rows = random.scores(8, random.chance(30));
        cache->observe(scores(layer, rows));
        twin->observe(scores(layer, rows));
      }
      if constexpr (part::Resets<Cache>) {
        if (random.chance(2)) {
          cache->reset();
          twin->reset();
        }
      }
      if constexpr (part::BeginsStep<Cache>) {
        cache->begin_step(StepOf(Phase::decode, 1));
        twin->begin_step(StepOf(Phase::decode, 1));
      }
      if constexpr (part::SeesChoices<Cache>) {
        if (demand) {
          const Route route{v.id.expert, 1.0F, no_expert};
          cache->chosen(v.id.layer, {&route, 1}, {});
          twin->chosen(v.id.layer, {&route, 1}, {});
        }
      }
      if constexpr (part::SeesUse<Cache>) {
        if (demand) {
          cache->used(v);
          twin->used(v);
        }
      }
      if (demand) {
        cache->touch(v, at);
        twin->touch(v, at);
        if (at == queued) queued = no_slot;
      }
      if constexpr (part::CountsSavings<Cache>) {
        if (demand) {
          Request use;
          use.want = v;
          use.rows = random.between(1, 3);
          const Nanoseconds each = random.below(2000);
          cache->saved({&use, 1}, 3, each);
          twin->saved({&use, 1}, 3, each);
        }
      }
      if constexpr (part::SeesLoads<Cache>) {
        if (demand) {
          const std::uint32_t misses = random.below(4), loads = random.below(misses + 1);
          cache->loaded(v.id.layer, loads, misses);
          twin->loaded(v.id.layer, loads, misses);
        }
      }
      if constexpr (part::SeesLayersEnd<Cache>) {
        if (demand) {
          cache->finished(v.id.layer);
          twin->finished(v.id.layer);
        }
      }
      if constexpr (part::Wants<Cache>) {
        const ExpertId wanted = cache->wanted();
        CHECK(wanted == twin->wanted());
        CHECK(std::none_of(std::begin(holds), std::end(holds),
                           [&](const Variant& h) { return h.id == wanted && wanted.expert != no_expert; }));
      }
      REQUIRE(broken(*cache) == "");
      if (at != no_slot) continue;
      std::uint8_t flags[slots];
      std::uint32_t barred = 0;
      for (auto& f : flags) barred += (f = random.chance(40) ? 1 : 0);
      std::uint32_t to = no_slot;
      if (!part::caches<Cache>()) continue;
      if (!empty.empty()) {
        to = empty.back();
        empty.pop_back();
      } else {
        to = cache->victim(v, {flags, 1});  // the twin is not asked
        if (barred == slots) CHECK(to == no_slot);
        if (to == no_slot) continue;
        REQUIRE(to < slots);
        CHECK(flags[to] == 0);
        const std::uint8_t none[slots] = {};
        CHECK(cache->victim(v, {none, 1}) == twin->victim(v, {none, 1}));
      }
      holds[to] = v;
      cache->replace(to, v, demand);
      twin->replace(to, v, demand);
      REQUIRE(broken(*cache) == "");
      if (to == queued) queued = no_slot;
      if (!demand) queued = to;
    }
  }
  SUBCASE("the same calls give the same answers") {
    auto run = [] {
      Placed<Cache> cache(PoolShape{4, 0, 1, 16});
      Random random(5);
      std::uint64_t hash = 1;
      for (std::uint32_t s = 0; s < 4; ++s) cache->replace(s, full(0, static_cast<std::uint16_t>(s)), true);
      const std::uint8_t none[4] = {};
      for (int i = 0; i < 1000; ++i) {
        const Variant v = full(0, static_cast<std::uint16_t>(random.below(16)));
        cache->touch(v, no_slot);
        const std::uint32_t slot = cache->victim(v, {none, 1});
        hash = hash * 31 + slot;
        if (slot != no_slot) cache->replace(slot, v, true);
      }
      return hash;
    };
    CHECK(run() == run());
  }
}

}  // namespace ferry::test
