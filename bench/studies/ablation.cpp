// What each part of our own stacks is worth: the same traces and machines without it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <mutex>

#include "ferry/any_pipeline.hpp"
#include "ferry/stacks.hpp"
#include "profiles/machine.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "shared/markdown.hpp"
#include "sim/simulate.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/progress.hpp"
#include "support/threads.hpp"
#include "trace/trace_file.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::bench;

// EarliestFinish without one of its parts each.

/// Copies nothing that the layer does not wait for.
struct NothingBehind {
  static constexpr bool needs_ordered_batches = true;
  FERRY_HD static std::uint32_t split(Phase phase, View<const Request> misses) noexcept {
    return EarliestFinish::split(phase, misses);
  }
  FERRY_HD static Split split(Phase phase, View<const Request> resident, View<const Request> misses,
                              View<const Request> arriving, const LayerCosts& costs) noexcept {
    return EarliestFinish::split(phase, resident, misses, arriving, costs);
  }
  FERRY_HD static Savings saves(Phase phase, View<const Request> resident, View<const Request> misses,
                                View<const Request> arriving, const LayerCosts& costs) noexcept {
    return EarliestFinish::saves(phase, resident, misses, arriving, costs);
  }
};
static_assert(Placement<NothingBehind>);

/// Computes resident experts on the device and every miss on the host, and waits for no copy that is on its way.
struct MissesOnHost : NothingBehind {
  using NothingBehind::split;
  FERRY_HD static Split split(Phase phase, View<const Request> resident, View<const Request> misses,
                              View<const Request> arriving, const LayerCosts& costs) noexcept {
    return phase == Phase::prefill ? NothingBehind::split(phase, resident, misses, arriving, costs)
                                   : Split{0, 0, false};
  }
  FERRY_HD static bool promotes(const Request& r, Nanoseconds more_saved, const LayerCosts& costs) noexcept {
    return EarliestFinish::promotes(r, more_saved, costs);
  }
};
static_assert(Placement<MissesOnHost>);

/// Only weighs where a miss is computed; resident experts stay on the device.
struct ResidentsStay : MissesOnHost {
  using MissesOnHost::split;
  FERRY_HD static Split split(Phase phase, View<const Request> resident, View<const Request> misses,
                              View<const Request> arriving, const LayerCosts& costs) noexcept {
    Split s = EarliestFinish::split(phase, resident, misses, arriving, costs);
    s.hosted = 0;
    return s;
  }
};
static_assert(Placement<ResidentsStay>);

/// Counts every use alike: as the time of one copy, whatever it saves to have the expert resident.
struct CountsUses : ResidentsStay {
  using ResidentsStay::split;
  FERRY_HD static Split split(Phase phase, View<const Request> resident, View<const Request> misses,
                              View<const Request> arriving, const LayerCosts& costs) noexcept {
    return EarliestFinish::split(phase, resident, misses, arriving, costs);
  }
  FERRY_HD static Savings saves(Phase /*phase*/, View<const Request> resident, View<const Request> misses,
                                View<const Request> arriving, const LayerCosts& /*costs*/) noexcept {
    const View<const Request> any = resident.size > 0 ? resident : misses.size > 0 ? misses : arriving;
    const Nanoseconds copy = any.size > 0 && any[0].copy_ns > 0 ? any[0].copy_ns : 1;
    return {copy, copy};
  }
};
static_assert(Placement<CountsUses>);

/// Does not learn what comes next, as if no miss were ever loaded.
struct OfLate : ExpectedSavings {
  FERRY_HD void loaded(std::uint16_t layer, std::uint32_t /*loads*/, std::uint32_t /*misses*/) noexcept {
    ExpectedSavings::loaded(layer, 0, 1);
  }
};
static_assert(CachePolicy<OfLate>);

/// Lets the present layer alone decide whether a miss is loaded, and which.
struct NoGains : ExpectedSavings {
  FERRY_HD static Nanoseconds gain(const Request& /*miss*/) noexcept { return 0; }
};
static_assert(CachePolicy<NoGains>);

template <class Cache, class Schedules, class Router = TopK>
struct Preloaded : Stack<NoPrediction, Cache, FixedPrecision, Schedules, Router> {
  static constexpr bool preloads = true;
};
template <class PlacementOf>
using Ours = Preloaded<ExpectedSavings, Schedule<NoLimit, BatchSizeOrder, PlacementOf>>;
template <class Cache>
using Waits = Preloaded<Cache, stacks::LoadEverything>;
/// The same stack with slots that are empty at first.
template <class S>
struct Empty : S {
  static constexpr bool preloads = false;
};

/// A stack, or one of ours without a part.
struct Variant {
  std::string of, without;
  bool knows_costs;
  std::unique_ptr<AnyConfig> (*configure)(const ModelShape&, std::uint64_t budget, const Costs&);
};

template <class S, class SetUp>
std::unique_ptr<AnyConfig> configured(const ModelShape& model, std::uint64_t budget, const Costs& costs,
                                      const SetUp& set_up) {
  CoreConfig<S> config;
  config.model = model;
  set_up(config, Budget(budget));
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    config.copy_ns[p] = costs.copy(model.bytes(0, static_cast<Precision>(p)));
  }
  return any_config(std::move(config));
}
/// Stack S, laid out and set up as `Named` is.
template <class S, class Named>
Variant variant(const char* of, const char* without, bool knows_costs = true) {
  return {of, without, knows_costs, [](const ModelShape& m, std::uint64_t budget, const Costs& costs) {
            return configured<S>(m, budget, costs, [](auto& c, Budget b) { Named::set_up(c, b); });
          }};
}

std::vector<Variant> variants() {
  using namespace stacks;
  using Whole = stacks::Ferry;
  return {
      variant<Whole, Whole>("ferry", ""),
      variant<Ours<NothingBehind>, Whole>("ferry", "promotions: nothing is copied behind"),
      variant<Ours<MissesOnHost>, Whole>("ferry", "weighing: the host has every miss, nothing is waited for"),
      variant<Ours<ResidentsStay>, Whole>("ferry", "residents on the host"),
      variant<Ours<DeviceOnly>, Whole>("ferry", "the host: every miss is waited for"),
      variant<Preloaded<OfLate, Schedule<NoLimit, BatchSizeOrder, EarliestFinish>>, Whole>("ferry", "learning"),
      variant<Preloaded<NoGains, Schedule<NoLimit, BatchSizeOrder, EarliestFinish>>, Whole>("ferry", "gains"),
      variant<Ours<CountsUses>, Whole>("ferry", "savings: uses are counted"),
      variant<Whole, PerLayer>("ferry", "one pool: one a layer"),
      variant<Empty<Whole>, Whole>("ferry", "preloading"),
      variant<Whole, Whole>("ferry", "calibrated costs: measured while it runs", false),
      variant<FerryDevice, FerryDevice>("ferry-device", ""),
      variant<Waits<OfLate>, FerryDevice>("ferry-device", "learning: savings decay"),
      variant<Waits<Lru>, FerryDevice>("ferry-device", "learning: least recently used"),
      variant<FerryDevice, PerLayer>("ferry-device", "one pool"),
      variant<Empty<FerryDevice>, FerryDevice>("ferry-device", "preloading"),
      variant<FerryLossy, FerryLossy>("ferry-lossy", ""),
      variant<FerryInt4, FerryInt4>("ferry-lossy", "skipping"),
      variant<Preloaded<ExpectedSavings, Schedule<NoLimit, BatchSizeOrder, EarliestFinish>, ExpertSkipping>, Whole>(
          "ferry-lossy", "INT4"),
  };
}

struct Arguments {
  std::vector<std::string> traces;
  std::string as_shape, json, stack;
  std::uint64_t tokens = ~std::uint64_t{0};
};

constexpr double budgets[] = {0.125, 0.25, 0.5, 0.75};
constexpr std::uint32_t batches[] = {1, 3};

using Traces = std::vector<std::unique_ptr<TraceFile>>;

/// Removes the stacks that cannot replay one of the traces, and says so.
void leave_out(std::vector<Variant>& all, const Traces& traces) {
  for (const auto& t : traces) {
    for (std::size_t v = 0; v < all.size(); ++v) {
      try {
        ModelShape model = t->trace.model;
        model.max_rows = 1;
        const auto config = all[v].configure(model, model.all_bytes() / 2, {});
        static_cast<void>(config->storage_bytes());
        if (config->traits().skips && t->trace.weights.empty() && t->trace.scores.empty()) {
          throw ConfigError("the trace has no weights");
        }
      } catch (const ConfigError& e) {
        const std::string of = all[v].of;
        fmt::print(stderr, "{} is left out: {}: {}\n", of, t->trace.name, e.what());
        std::erase_if(all, [&](const Variant& other) { return other.of == of; });
        v = ~std::size_t{0};
      }
    }
  }
}

/// Nanoseconds a decoded token, [variant][cell].
using Times = std::vector<std::vector<double>>;

Times measure(const Arguments& a, const std::vector<Variant>& all, const Traces& traces) {
  const std::vector<std::string> machines = machine_names();
  const std::size_t of_trace = machines.size() * std::size(budgets) * std::size(batches);
  Times times(all.size(), std::vector<double>(traces.size() * of_trace));
  ProgressLine progress("runs");
  std::mutex mutex;
  std::uint64_t done = 0;
  on_threads(all_threads(), all.size() * traces.size() * of_trace, [&](std::size_t i) {
    const std::size_t v = i % all.size(), cell = i / all.size();
    const TraceFile& t = *traces[cell / of_trace];
    const Machine machine = read_machine(machines[cell / (std::size(budgets) * std::size(batches)) % machines.size()]);
    Costs costs = machine.costs(t.work, CostSource::effective);
    if (!a.as_shape.empty()) {
      const ModelFacts reference = read_shape(a.as_shape);
      costs = as_if(machine.costs(reference.work, CostSource::effective), reference, t.trace.model);
    }
    SimulateOptions o;
    o.batch = batches[cell % std::size(batches)];
    o.bounds = false;
    o.max_tokens = a.tokens;
    ModelShape model = t.trace.model;
    model.max_rows = std::max(o.batch, o.prefill_chunk);
    const double share = budgets[cell / std::size(batches) % std::size(budgets)];
    const auto budget = static_cast<std::uint64_t>(share * static_cast<double>(model.all_bytes()));
    const auto config = all[v].configure(model, budget, costs);
    if (all[v].knows_costs) config->settings().costs = layer_costs(costs, model);
    const Simulated s = simulate_config(*config, t.trace, costs, o);
    const PhaseClock& decode = s.phase[static_cast<unsigned>(Phase::decode)];
    times[v][cell] = static_cast<double>(decode.total) / static_cast<double>(std::max<std::uint64_t>(decode.steps, 1));
    const std::lock_guard lock(mutex);
    progress.show(++done, all.size() * traces.size() * of_trace);
  });
  return times;
}

int run(const Arguments& a) {
  JsonFile file(a.json);
  std::vector<Variant> all = variants();
  if (!a.stack.empty()) std::erase_if(all, [&](const Variant& v) { return v.of != a.stack; });
  Traces traces;
  for (const std::string& t : a.traces) traces.push_back(std::make_unique<TraceFile>(std::filesystem::path(t)));
  leave_out(all, traces);
  const Times times = measure(a, all, traces);
  Rows rows = {{"stack", "without", "takes, times as long", "least", "most", "cells in which that is faster"}};
  Json json = Json::array();
  std::size_t whole = 0;
  for (std::size_t v = 0; v < all.size(); ++v) {
    if (all[v].without.empty()) {
      whole = v;
      continue;
    }
    double sum = 0, least = 1e300, most = 0;
    std::size_t faster = 0;
    Json cells = Json::array();
    for (std::size_t c = 0; c < times[v].size(); ++c) {
      const double ratio = times[v][c] / times[whole][c];
      sum += std::log(ratio);
      least = std::min(least, ratio);
      most = std::max(most, ratio);
      faster += ratio < 0.995 ? 1 : 0;
      cells.push_back(ratio);
    }
    const double mean = std::exp(sum / static_cast<double>(times[v].size()));
    rows.push_back({all[v].of, all[v].without, fmt::format("{:.3f}", mean), fmt::format("{:.3f}", least),
                    fmt::format("{:.3f}", most), fmt::format("{} of {}", faster, times[v].size())});
    json.push_back({{"stack", all[v].of}, {"without", all[v].without}, {"geometric_mean", mean}, {"cells", cells}});
  }
  fmt::print("{}", markdown(rows));
  file.commit(json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app(
      "What each part of our own stacks is worth: the time of a decoded token without it, over all machines, budgets "
      "of "
      "12.5 to 75% and batches of 1 and 3.",
      "ablation");
  app.add_option("--traces", a.traces, "of `ferry trace import` or `ferry trace record`")
      ->type_name("FILES")
      ->required();
  app.add_option("--as", a.as_shape,
                 "count each expert as large as this model's: a shape's name or file (default: its own)")
      ->type_name("NAME|FILE");
  app.add_option("--tokens", a.tokens, "of each trace, at most")->type_name("N")->check(CLI::Range(1ULL, 1ULL << 40U));
  app.add_option("--stack", a.stack, "only this one: ferry, ferry-device or ferry-lossy")
      ->check(CLI::IsMember({"ferry", "ferry-device", "ferry-lossy"}));
  add_json_option(app, a.json, "every cell");
  return parse_and_run(app, argc, argv, [&] { return run(a); });
}
