// The number of threads changes no bit, neither of the device's share nor of the host's beside it.
#include <doctest/doctest.h>

#include "engine/fixtures/generated.hpp"
#include "engine/fixtures/loaded_model.hpp"

using namespace ferry;
using namespace ferry::engine;

namespace {

Generated generated(CpuModel& model, const std::string& stack, std::uint32_t threads) {
  model.set_threads(threads);
  return test::generated(model, test::quarter_of(model, find_stack(stack)));
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
      REQUIRE(one.token_ids[0].size() == 8);
      for (const std::uint32_t threads : {2U, 5U}) {
        const Generated many = generated(model, stack, threads);
        CHECK(many.token_ids == one.token_ids);
        CHECK(many.logits == one.logits);
      }
    }
    model.set_threads(1);
  }
}

TEST_CASE("with activations of 8 bits, too, and only codes are multiplied with them" * doctest::test_suite("threads")) {
  CpuModel& model = test::model("tiny-qwen-moe");
  const auto of = [&](const std::string& stack, Activations activations, std::uint32_t threads) {
    model.set_activations(activations);
    return generated(model, stack, threads).logits;
  };
  const auto int4 = of("resident-int4", Activations::int8, 1);
  CHECK(of("resident-int4", Activations::int8, 3) == int4);
  CHECK(of("static-host-int4", Activations::int8, 1) == int4);  // where they are computed makes no difference
  CHECK(of("static-host-int4", Activations::int8, 3) == int4);
  CHECK(of("resident-int4", Activations::floats, 1) != int4);
  const auto full = of("resident", Activations::floats, 1);
  CHECK(of("resident", Activations::int8, 1) == full);
  model.set_activations(Activations::floats);
  model.set_threads(1);
}
