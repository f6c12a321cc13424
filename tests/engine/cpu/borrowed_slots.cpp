// Where the CPU computes experts from the store's own memory, every stack gives what it gives from slots of its own.
#include <doctest/doctest.h>

#include "engine/fixtures/fixed_costs.hpp"
#include "engine/fixtures/loaded_model.hpp"
#include "engine/fixtures/prompts.hpp"
#include "inference/generate.hpp"

using namespace ferry;
using namespace ferry::engine;

namespace {

Generated generated(CpuModel& model, RunnerOptions o, bool poison) {
  o.poison = poison;
  const auto runner = make_runner(model, o);
  GenerateOptions g;
  g.prompts = test::prompts();
  g.batch = 3;
  g.max_new_tokens = 6;
  g.prefill_chunk = 48;
  g.keep_logits = true;
  return generate(model, *runner, g);
}

}  // namespace

TEST_CASE("experts that stay in the store's memory give the same logits under every stack") {
  CpuModel& model = test::model("tiny-mixtral");
  for (const StackInfo& info : all_stacks()) {
    CAPTURE(info.name);
    model.add_precisions(info.precisions);
    RunnerOptions o;
    o.stack = info.name;
    o.max_rows = 48;
    const std::uint64_t all = model_shape(model.config(), model.store(), o.max_rows).all_bytes();
    o.budget_bytes = info.keeps_everything ? all : all / 4;
    // Where precisions or placements depend on time, time has to repeat.
    o.virtual_costs = test::fixed_costs(60'000, 20'000, 50'000, model.store().layout().bytes() * 10'000);
    const Generated slots = generated(model, o, true), borrowed = generated(model, o, false);
    REQUIRE(slots.token_ids[0].size() == 6);
    CHECK(borrowed.token_ids == slots.token_ids);
    CHECK(borrowed.logits == slots.logits);
    if (!info.keeps_every_bit()) continue;
    o.virtual_costs.reset();
    CHECK(generated(model, o, false).logits == slots.logits);
  }
}
