// How many threads compute changes no bit: not of the device's share, nor of the host's beside it.
#include <doctest/doctest.h>

#include "engine/fixtures/loaded_model.hpp"
#include "engine/fixtures/prompts.hpp"
#include "inference/generate.hpp"

using namespace ferry;
using namespace ferry::engine;

namespace {

Generated generated(CpuModel& model, const std::string& stack, std::uint32_t threads) {
  model.set_threads(threads);
  model.add_precisions(find_stack(stack).precisions);
  RunnerOptions o;
  o.stack = stack;
  o.max_rows = 48;
  o.budget_bytes = model_shape(model.config(), model.store(), o.max_rows).all_bytes() / 4;
  const auto runner = make_runner(model, o);
  GenerateOptions g;
  g.prompts = test::prompts();
  g.batch = 3;
  g.max_new_tokens = 12;
  g.prefill_chunk = 48;
  g.keep_logits = true;
  return generate(model, *runner, g);
}

}  // namespace

TEST_CASE("the same logits on any number of threads, computed on the device, on the host, or on both" *
          doctest::test_suite("threads")) {
  for (const char* name : {"tiny-mixtral", "tiny-qwen-moe"}) {
    CAPTURE(name);
    CpuModel& model = test::model(name);
    for (const char* stack : {"resident", "static-host", "hybrimoe"}) {
      CAPTURE(stack);
      const Generated one = generated(model, stack, 1);
      REQUIRE(one.token_ids[0].size() == 12);
      for (const std::uint32_t threads : {2U, 5U}) {
        const Generated many = generated(model, stack, threads);
        CHECK(many.token_ids == one.token_ids);
        CHECK(many.logits == one.logits);
      }
    }
    model.set_threads(1);
  }
}
