// Mistakes that an engine can make with a pipeline. Each is refused in words, in every build, and changes nothing.
#include "ferry/detail/call_order.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "ferry/link/virtual_clock.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// A pipeline of 3 layers of 4 experts, top-2, at most 2 rows, in which everything fits.
struct CheckedCalls {
  static CoreConfig<stacks::CrossLayerLru> config_of() {
    CoreConfig<stacks::CrossLayerLru> c;
    c.model = model(3, 4, 2, 2);
    c.allotment = everything(c.model);
    return c;
  }

  void begin(std::uint32_t rows = 1) { pipe.begin_step(StepOf(Phase::decode, rows)); }
  Plan plan(std::uint16_t layer, std::uint32_t rows = 1) { return pipe.plan(of(layer, rows)); }
  /// Scores in which the first experts win, of so many rows.
  Scores of(std::uint16_t layer, std::uint32_t rows) {
    memory.clear();
    for (std::uint32_t r = 0; r < rows; ++r) memory.insert(memory.end(), {.4F, .3F, .2F, .1F});
    return scores(layer, memory);
  }
  /// The message that refuses a call. Checks that the call has changed nothing.
  template <class Call>
  std::string refused(const Call& call) {
    const Counters before = pipe.counters();
    try {
      call();
    } catch (const UsageError& e) {
      const Counters& after = pipe.counters();
      CHECK(after.of(Phase::decode).requests == before.of(Phase::decode).requests);
      CHECK(after.steps[1] == before.steps[1]);
      CHECK(after.prefetch.issued == before.prefetch.issued);
      return e.what();
    }
    return "accepted";
  }

  const CoreConfig<stacks::CrossLayerLru> config = config_of();
  VirtualClock clock{config.model, {1'000'000'000, 0, false}};
  OffloadPipeline<stacks::CrossLayerLru, VirtualClock> pipe{config, clock};
  std::vector<float> memory;
};

}  // namespace

TEST_CASE("misuse: a layer planned twice") {
  CheckedCalls f;
  f.begin();
  f.plan(0);
  CHECK(f.refused([&] { f.plan(0); }) == "plan, layer 0: was planned already, expected finish or abandon first");
  f.pipe.finish(0);
  CHECK(f.refused([&] { f.plan(0); }) ==
        "plan, layer 0: this step is past it, expected a layer from 1 on, or begin_step");
  f.plan(2);  // layers may be left out
  f.pipe.finish(2);
  CHECK(f.refused([&] { f.plan(1); }) == "plan, layer 1: this step is past it, expected begin_step");
}

TEST_CASE("misuse: a layer that is never finished") {
  CheckedCalls f;
  f.begin();
  f.plan(0);
  CHECK(f.refused([&] { f.plan(1); }) == "plan, layer 1: layer 0 is not finished, expected finish(0) first");
  CHECK(f.refused([&] { f.pipe.finish(1); }) == "finish, layer 1: the layer under way is 0");
  f.pipe.finish(0);
  CHECK(f.refused([&] { f.pipe.finish(0); }) == "finish, layer 0: no layer is under way");
  CHECK(f.refused([&] { f.pipe.done(View<const Task>{}); }) ==
        "done: no layer is under way, expected it between plan and finish");
}

TEST_CASE("a step that is left in the middle of a layer is abandoned by the next one, and counted") {
  CheckedCalls f;
  f.begin();
  f.plan(0);
  f.begin();
  CHECK(f.pipe.counters().unfinished_steps == 1);
  for (std::uint32_t s = 0; s < f.pipe.core().residency().slots(); ++s) {
    CHECK_FALSE(f.pipe.core().residency().is_leased(s));
  }
  f.plan(0);
  f.pipe.finish(0);
  f.begin();  // a step may end after any layer
  CHECK(f.pipe.counters().unfinished_steps == 1);
}

TEST_CASE("misuse: no step, and what is left of an abandoned one") {
  CheckedCalls f;
  CHECK(f.refused([&] { f.plan(0); }) == "plan, layer 0: no step has begun, expected begin_step first");
  f.begin();
  CHECK(f.refused([&] { f.pipe.preload(); }) == "preload: came after begin_step, expected ahead of the first step");
  f.plan(0);
  f.pipe.abandon();
  CHECK(f.refused([&] { f.plan(1); }) == "plan, layer 1: this step is past it, expected begin_step");
}

TEST_CASE("misuse: arrays that do not fit the step") {
  CheckedCalls f;
  const std::uint32_t sequences[3] = {};
  CHECK(f.refused([&] {
    f.pipe.begin_step({Phase::decode, sequences});
  }) == "begin_step: 3 rows, expected 1 to 2 (max_rows)");
  CHECK(f.refused([&] { f.pipe.begin_step({Phase::decode, {}}); }) == "begin_step: 0 rows, expected 1 to 2 (max_rows)");
  f.begin(2);
  CHECK(f.refused([&] { f.plan(0, 1); }) ==
        "plan, layer 0: 4 scores to select by and 4 weights, expected both 2 rows * 4 (experts) = 8");
  Scores halved = f.of(0, 2);
  halved.weight.size = 4;
  CHECK(f.refused([&] { f.pipe.plan(halved); }) ==
        "plan, layer 0: 8 scores to select by and 4 weights, expected both 2 rows * 4 (experts) = 8");
  const std::vector<Route> routes(3, Route{0, 1.0F});
  CHECK(f.refused([&] { f.pipe.plan(0, routes); }) == "plan, layer 0: 3 routes, expected 2 rows * 2 (top_k)");
  std::vector<Route> beyond(4, Route{no_expert, 0.0F});
  beyond[3].expert = 4;
  CHECK(f.refused([&] { f.pipe.plan(0, beyond); }) ==
        "plan, layer 0: a route to expert 4, expected less than 4, or no_expert");
  f.plan(0, 2);
  CHECK(f.refused([&] {
    f.pipe.look_ahead(Scores{1, f.of(1, 2).select, {}});
  }) == "look_ahead, layer 1: 8 scores to select by and 0 weights, expected both rows * 4 (experts) of at most 2 rows");
  CHECK(
      f.refused([&] { f.pipe.look_ahead(f.of(1, 3)); }) ==
      "look_ahead, layer 1: 12 scores to select by and 12 weights, expected both rows * 4 (experts) of at most 2 rows");
}

TEST_CASE("misuse: layers out of range") {
  CheckedCalls f;
  f.begin();
  CHECK(f.refused([&] { f.plan(3); }) == "plan, layer 3: expected a layer below 3 (MoE layers, from 0)");
  CHECK(f.refused([&] { f.pipe.look_ahead(f.of(1, 1)); }) ==
        "look_ahead, layer 1: no layer is under way, expected it behind a plan");
  f.plan(2);
  CHECK(f.refused([&] { f.pipe.look_ahead(f.of(3, 1)); }) ==
        "look_ahead, layer 3: expected a layer below 3 (MoE layers, from 0)");
}

TEST_CASE("misuse: rows that are not the step's") {
  CheckedCalls f;
  f.begin(2);
  Scores s = f.of(0, 1);
  const std::uint32_t third[] = {2}, twice[] = {1, 1}, last[] = {1};
  s.rows = third;
  CHECK(f.refused([&] { f.pipe.plan(s); }) ==
        "plan, layer 0: row 2 in place 0, expected rows of the step, ascending, below 2");
  s.rows = twice;
  CHECK(f.refused([&] { f.pipe.plan(s); }) ==
        "plan, layer 0: row 1 in place 1, expected rows of the step, ascending, below 2");
  s.rows = last;
  CHECK(f.pipe.plan(s).routes.size == 2);
}
