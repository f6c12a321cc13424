#include "ferry/core_config.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "ferry/stacks.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("a precision that is not stored is refused with the fix") {
  CoreConfig<stacks::LruCache> c;
  c.model = model(2, 4, 1);
  c.allotment = everything(c.model);
  CHECK_NOTHROW(c.validate());
  c.precision.precision = Precision::int4;
  CHECK_THROWS_WITH_AS(c.validate(),
                       "the precision selector asks for INT4 but layer 0 is not stored at it: store it, or choose "
                       "another selector",
                       ConfigError);
}

TEST_CASE("too few stream slots are refused unless everything has a slot") {
  CoreConfig<stacks::LruCache> c;
  c.model = model(2, 4, 1);
  c.allotment = everything(c.model);
  c.allotment.pools[1].slots = 3;
  CHECK_THROWS_WITH_AS(c.validate(),
                       "the allotment has 0 stream slots, expected at least 2 unless every expert of every layer has "
                       "a slot",
                       ConfigError);
  c.allotment.stream_slots = 2;
  c.allotment.stream_slot_bytes = 64;
  CHECK_NOTHROW(c.validate());
}

TEST_CASE("allotments that would run past their slots are refused") {
  CoreConfig<stacks::LruCache> c;
  c.model = model(2, 4, 1, 1, 1000, 320);
  auto refused = [&](const std::string& part) {
    try {
      c.validate();
    } catch (const ConfigError& e) {
      if (std::string(e.what()).find(part) != std::string::npos) return true;
      MESSAGE(e.what());
    }
    return false;
  };
  c.allotment = everything(c.model, Precision::int4);  // for a selector that wants full
  CHECK(refused("asks for full but no pool holds it"));
  c.allotment = one_pool(c.model, 5000);
  c.allotment.stream_slot_bytes = 320;
  CHECK(refused("stream slots have 320 bytes, expected at least 1000"));
  c.allotment = one_pool(c.model, 5000);
  CHECK_NOTHROW(c.validate());
  c.allotment.pools[0].first_layer = 1;
  CHECK(refused("the pool from layer 1 has 2 layers, but the model has 2 in all"));
  c.allotment = one_pool(c.model, 5000);
  c.allotment.pools[0].slot_bytes = 999;
  CHECK(refused("slots of 999 bytes, but an expert of layer 0 takes 1000"));
  c.allotment = everything(c.model);
  c.allotment.pools[1] = {0, 1, part::bit(Precision::int4), 4, 320};  // layer 0 twice, layer 1 not at all
  CHECK(refused("0 stream slots"));
  c.allotment = everything(c.model);
  c.allotment.pools.push_back({1, 1, part::bit(Precision::full), 1, 1024});  // the last would win, and 1 has too few
  CHECK(refused("pools 1 and 2 both have slots for layer 1 at one precision"));
  c.allotment.pools[2].precisions = part::bit(Precision::int4);
  CHECK_NOTHROW(c.validate());

  CoreConfig<stacks::OnDemand> none;
  none.model = c.model;
  none.allotment = one_pool(c.model, 5000);
  CHECK_THROWS_AS(none.validate(), ConfigError);
}

TEST_CASE("times below 0 are refused by name") {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  CoreConfig<stacks::LruCache> c;
  c.model = model(2, 4, 1);
  c.allotment = everything(c.model);
  for (Nanoseconds& ns : c.copy_ns) ns = most;
  for (Nanoseconds& ns : c.costs.host_ns) ns = most;
  c.costs.host_start_ns = most;
  CHECK_NOTHROW(c.validate());
  auto refused = [&](Nanoseconds& ns, const std::string& name) {
    const Nanoseconds before = ns;
    ns = -5;
    CHECK_THROWS_WITH_AS(c.validate(), (name + " is -5 ns, expected a time, or 0 if it is not known").c_str(),
                         ConfigError);
    ns = before;
  };
  refused(c.copy_ns[4], "copy_ns");
  refused(c.costs.device_ns[2], "costs.device_ns");
  refused(c.costs.host_ns[4], "costs.host_ns");
  refused(c.costs.host_row_ns, "costs.host_row_ns");
  refused(c.costs.host_start_ns, "costs.host_start_ns");
}
