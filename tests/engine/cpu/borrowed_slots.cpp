// Where the CPU computes experts from the store's own memory, every stack gives what it gives from slots of its own.
#include <doctest/doctest.h>

#include "engine/fixtures/fixed_costs.hpp"
#include "engine/fixtures/generated.hpp"
#include "engine/fixtures/loaded_model.hpp"
#include "support/quick.hpp"

using namespace ferry;
using namespace ferry::engine;

TEST_CASE("experts that stay in the store's memory give the same logits under every stack") {
  CpuModel& model = test::model("tiny-mixtral");
  const bool quick = test::quick();  // every fourth
  std::size_t number = 0;
  for (const StackInfo& info : all_stacks()) {
    CAPTURE(info.name);
    if (quick && number++ % 4 != 0) continue;
    RunnerOptions o = test::quarter_of(model, info);
    // Where precisions or placements depend on time, time has to repeat.
    o.virtual_costs = test::fixed_costs(60'000, 20'000, 50'000, model.store().layout().bytes() * 10'000);
    o.poison = true;
    const Generated slots = test::generated(model, o);
    o.poison = false;
    const Generated borrowed = test::generated(model, o);
    REQUIRE(slots.token_ids[0].size() == 8);
    CHECK(borrowed.token_ids == slots.token_ids);
    CHECK(borrowed.logits == slots.logits);
    if (!info.keeps_every_bit()) continue;
    o.virtual_costs.reset();
    CHECK(test::generated(model, o).logits == slots.logits);
  }
}
