// How many tokens a second each stack simulates, on one core.
//
// Made-up routing in decode, a sequence at a time, for a model of 32 layers with 64 experts, top-6. Each stack replays
// it twice: as a trace of experts alone, if the stack needs no more, and with all scores: the gates', the predicted ones
// and those of partial hidden states. Both run with and without what the bounds need. The floor is what no simulation can
// undercut: walking the steps of the same trace and reading the k experts of every layer.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>

#include "ferry/error.hpp"
#include "profiles/machine.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "shared/stack_options.hpp"
#include "sim/simulate.hpp"
#include "stacks/budget.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "trace/synthetic.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

constexpr double expected_of_lru = 20'000;  ///< tokens a second

struct Arguments {
  std::vector<std::string> stacks;
  std::string machine = "rtx3090-pcie3", budget = "25%", json;
  std::uint32_t tokens = 2000, repeat = 3;
};

/// DeepSeek-MoE-16B's layers, 32 of them.
ModelFacts facts() {
  ModelFacts m = read_shape("deepseek-moe-16b");
  m.name = "32 layers, 64 experts, top-6";
  m.model.layers = 32;
  return m;
}

/// Processor time of the fastest of several runs, in seconds, since disturbances only slow down.
template <class Work>
double fastest_s(std::uint32_t repeat, const Work& work) {
  std::clock_t least = 0;
  for (std::uint32_t i = 0; i < repeat; ++i) {
    const std::clock_t begin = std::clock();
    work();
    const std::clock_t took = std::max<std::clock_t>(1, std::clock() - begin);
    if (i == 0 || took < least) least = took;
  }
  return static_cast<double>(least) / CLOCKS_PER_SEC;
}

/// Reads every expert of every step.
std::uint64_t walk(const Trace& trace) {
  std::uint64_t sum = 0;
  TraceSteps steps(trace, 1, 1);
  while (steps.next()) {
    for (std::uint32_t l = 0; l < trace.model.layers; ++l) {
      for (const std::uint32_t t : steps.tokens()) {
        for (std::uint32_t i = 0; i < trace.model.top_k; ++i) sum += trace.expert(t, l, i);
      }
    }
  }
  return sum;
}

int run(Arguments a) {
  if (a.stacks.empty()) {
    for (const StackInfo& s : all_stacks()) a.stacks.push_back(s.name);
  }
  for (const std::string& s : a.stacks) static_cast<void>(find_stack(s));
  ferry::bench::JsonFile file(a.json);
  const ModelFacts model = facts();
  const Costs costs = read_machine(a.machine).costs(model.work, CostSource::effective);

  SyntheticOptions wanted;
  wanted.prompt = 0;
  wanted.tokens = (a.tokens + wanted.sequences - 1) / wanted.sequences;
  std::fprintf(stderr, "making the routing...\n");
  const auto full = synthesize(model, wanted);
  TraceFile ids;
  ids.trace.name = full->trace.name;
  ids.trace.model = full->trace.model;
  ids.experts = full->experts;
  ids.sequence_start = full->sequence_start;
  ids.view();

  std::uint64_t sum = walk(ids.trace);  // warms up; kept, so that the walks are not optimised away
  const double floor_s = fastest_s(a.repeat, [&] { sum += walk(ids.trace); });
  const double tokens = ids.trace.tokens;
  const double layers = tokens * model.model.layers;
  std::string table = fmt::format(
      "decode of one sequence at a time, {} tokens; {}; {} of the experts' memory, {}; one core, its time, the best of "
      "{}\n"
      "the floor, walking the trace: {:.0f} tokens/s, {:.1f} ns a layer\n\n{:<19}",
      ids.trace.tokens, model.name, a.budget, a.machine, a.repeat, tokens / floor_s, floor_s * 1e9 / layers, "");
  for (const char* column : {"experts alone", "with bounds", "all rows", "with bounds"}) {
    table += fmt::format(" |{:>28}", column);
  }
  table += fmt::format("\n{:<19}", "");
  for (int i = 0; i < 4; ++i) table += fmt::format(" |{:>10}{:>10}{:>8}", "tokens/s", "ns/layer", "x floor");
  table += '\n';

  Json results = Json::array();
  SimulateOptions o;
  o.budget_bytes = parse_budget(a.budget, model.model.all_bytes());
  o.prefill_chunk = 1;
  for (const std::string& stack : a.stacks) {
    std::fprintf(stderr, "%s\n", stack.c_str());
    o.stack = stack;
    // `simulate` refuses what cannot be, before it replays anything.
    auto speed = [&](const Trace& trace, bool bounds, std::string& cells) -> Json {
      o.bounds = bounds;
      const double s = fastest_s(a.repeat, [&] { static_cast<void>(simulate(trace, costs, o)); });
      cells += fmt::format(" |{:>10.0f}{:>10.1f}{:>8.1f}", tokens / s, s * 1e9 / layers, s / floor_s);
      return {{"tokens_per_s", tokens / s}, {"ns_per_layer", s * 1e9 / layers}, {"times_floor", s / floor_s}};
    };
    std::string of_ids, of_full;
    Json& result = results.emplace_back(Json{{"stack", stack}});
    for (const bool bounds : {false, true}) {
      result["all_rows"][bounds ? "bounds" : "plain"] = speed(full->trace, bounds, of_full);
    }
    try {
      for (const bool bounds : {false, true}) {
        result["experts_alone"][bounds ? "bounds" : "plain"] = speed(ids.trace, bounds, of_ids);
      }
    } catch (const ConfigError&) {  // all rows were enough, so what it lacks here is rows
      result["experts_alone"] = nullptr;
      of_ids = fmt::format(" |{:>10}{:>10}{:>8} |{:>10}{:>10}{:>8}", "-", "-", "-", "-", "-", "-");
    }
    table += fmt::format("{:<19}{}{}\n", stack, of_ids, of_full);
  }
  for (const Json& r : results) {
    if (r["stack"] != "lru") continue;
    const double ids_alone = r["experts_alone"]["plain"]["tokens_per_s"], rows = r["all_rows"]["plain"]["tokens_per_s"];
    table += fmt::format(
        "\nlru: at least {:.0f} tokens/s are expected; with experts alone {:.0f}: {}; with all rows {:.0f}\n",
        expected_of_lru, ids_alone, ids_alone >= expected_of_lru ? "met" : "not met", rows);
  }
  std::fputs(table.c_str(), stdout);
  const Json json = {{"model", model.name},
                     {"machine", a.machine},
                     {"budget_bytes", o.budget_bytes},
                     {"tokens", ids.trace.tokens},
                     {"floor", {{"tokens_per_s", tokens / floor_s}, {"experts_sum", sum}}},
                     {"results", results}};
  file.commit(json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("How many tokens a second each stack simulates, on one core.", "simulation-speed");
  app.footer("\"-\": the stack reads what a trace of experts alone does not have.");
  ferry::bench::add_stacks_option(app, a.stacks);
  app.add_option("--machine", a.machine, "a name or a file")->type_name("NAME|FILE")->capture_default_str();
  ferry::bench::add_budget_option(app, a.budget);
  app.add_option("--tokens", a.tokens, "of the trace, rounded up to 8 sequences; each takes 40 KiB")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--repeat", a.repeat, "replays, of which the best counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  ferry::bench::add_json_option(app, a.json);
  return ferry::bench::parse_and_run(app, argc, argv, [&] { return run(a); });
}
