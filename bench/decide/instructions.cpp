// One stack's decisions in a function of their own, for a tool that counts its instructions (bench/decide/instructions).
// With FERRY_PLAN_APART `plan` is in its own function, too. That is a separate program, because it slows decisions down.
#include <fmt/format.h>

#include "layer.hpp"
#include "shared/bench_command.hpp"
#include "stacks/stack_table.hpp"

namespace {

using namespace ferry;
using namespace ferry::bench;

constexpr std::uint32_t counted = 2048;

#if defined(FERRY_PLAN_APART)
constexpr PlanCall plan_call = PlanCall::apart;
#else
constexpr PlanCall plan_call = PlanCall::plain;
#endif

template <class Decision>
[[gnu::noinline]] void counted_decisions(Decision& decision) {
  for (std::uint32_t i = 0; i < counted; ++i) decision.template next<plan_call>();
}

/// Takes the rows of stack_table.hpp.
struct Runs {
  std::string wanted;  ///< empty: lists the names
  LayerShape shape;
  bool found = false;

  template <class Stack>
  void stack(const char* name) {
    if (wanted.empty()) fmt::print("{}\n", name);
    if (wanted != name) return;
    found = true;
    const Routing& routing = Routing::of(shape);
    CoreConfig<Stack> config;
    config.model = routing.model();
    for (Nanoseconds& ns : config.copy_ns) ns = copy_cost;
    Stack::set_up(config, config.model.all_bytes() / 4);
    LayerDecision<Stack> decision(config, routing, traits_of<Stack>().preloads);
    counted_decisions(decision);
    fmt::print("{} decisions\n", counted);
  }
  template <Precision p>
  void resident(const char* /*name*/) {}  // lru, when everything is there
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Decides, to be counted", "instructions");
  Runs runs;
  app.add_option("--stack", runs.wanted, "lists the names if there is none");
  app.add_option("--batch", runs.shape.batch)->check(CLI::Range(1, 1024));
  return parse_and_run(app, argc, argv, [&] {
    engine::each_baseline_stack(runs);
    engine::each_fate_stack(runs);
    engine::each_hobbit_stack(runs);
    engine::each_importance_stack(runs);
    engine::each_own_stack(runs);
    if (!runs.wanted.empty() && !runs.found) {
      throw engine::InputError("--stack " + runs.wanted + ": unknown; without --stack the names are listed");
    }
    return 0;
  });
}
