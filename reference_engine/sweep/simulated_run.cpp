#include "sweep/simulated_run.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "ferry/error.hpp"
#include "stacks/budget.hpp"
#include "stacks/configured_stack.hpp"
#include "stacks/parameters.hpp"

namespace ferry::engine {
namespace {

/// Flags for bits at which the stack would work, with as few changes as possible. Empty: no bits help, or the stack has no
/// such parameters.
std::string bits_that_work(const ModelShape& model, const StackOptions& options) {
  using Bits = std::optional<std::uint32_t>;
  constexpr auto low = &StackOptions::low_bits, high = &StackOptions::high_bits;
  if (!takes_parameter(options.stack, low, options.pools)) return "";
  for (const Bits h : {options.high_bits, Bits(8), Bits(4)}) {
    for (const Bits l : {options.low_bits, Bits(8), Bits(4), Bits(2)}) {
      StackOptions o = options;
      o.low_bits = l;
      o.high_bits = h;
      try {
        const auto stack = configure_stack(model, o, [](std::uint64_t) { return Nanoseconds{0}; });
        static_cast<void>(stack.config->storage_bytes());  // throws for what pools alone allow
      } catch (const ConfigError&) {
        continue;
      }
      std::string flags;
      if (h != options.high_bits) flags += fmt::format(" {} {}", parameter_of(high).flag(), *h);
      if (l != options.low_bits) flags += fmt::format(" {} {}", parameter_of(low).flag(), *l);
      return flags;
    }
  }
  return "";
}

/// What a user could do about a refusal, to append to it: the library does not know options.
std::string remedy(const std::string& refusal, const SimulatedSetting& setting, const ModelShape& model,
                   const StackOptions& options) {
  if (!setting.remedies) return "";
  if (refusal.starts_with("the trace of ") && setting.assumed == nullptr) {
    return "; --assume-recall 0.79,0.97 makes up what is missing";
  }
  const bool of_precision = refusal.find("for which slots were asked") != std::string::npos ||
                            refusal.starts_with("the precision selector asks for ");
  if (!of_precision) return "";
  const std::string flags = bits_that_work(model, options);
  return flags.empty() ? "" : fmt::format(";{} works", flags);
}

}  // namespace

const char* cost_source_name(CostSource source) {
  switch (source) {
    case CostSource::effective:
      return "effective";
    case CostSource::peak:
      return "peak";
    default:
      return "stated";
  }
}

ModelShape counted_as(ModelShape model, const std::string& as_shape) {
  if (!as_shape.empty()) model.expert_bytes = read_shape(as_shape).model.expert_bytes;
  return model;
}

ModelShape SimulatedSetting::model() const {
  return counted_as(trace->trace.model, as_shape);
}

Costs SimulatedSetting::machine_costs() const {
  Costs c = machine.costs(as_shape.empty() ? trace->work : read_shape(as_shape).work, costs);
  c.prefetch_chunk_bytes = parse_chunk(prefetch_chunk, model().bytes(0, Precision::full));
  try {
    c.validate(model());
  } catch (const ConfigError& e) {
    throw ConfigError(fmt::format("machine {}: {}", machine.name, e.what()));
  }
  return c;
}

RunReport run_simulation(const SimulatedSetting& setting, const SimulateOptions& options, Json parameters,
                         std::vector<Span>* spans) {
  const ModelShape model = setting.model();
  const Costs costs = setting.machine_costs();
  AssumedRows::Completed completed{setting.trace->trace, {}};
  if (setting.assumed != nullptr) completed = setting.assumed->complete(rows_read_by(options, model));
  Trace& trace = completed.trace;
  trace.model = model;
  // With all bounds the trace is replayed up to five times, with one progress over all.
  const std::uint64_t replays = setting.bounds == BoundsChoice::all ? 5 : 1;
  std::uint64_t behind = 0;
  auto progress = [&](std::uint64_t done, std::uint64_t total) {
    return !options.progress || options.progress(behind * total + done, replays * total);
  };
  SimulateOptions o = options;
  o.progress = progress;
  o.bounds = setting.bounds != BoundsChoice::none;
  o.log = spans != nullptr;
  Simulated simulated;
  try {
    simulated = simulate(trace, costs, o);
  } catch (const ConfigError& e) {
    throw ConfigError(e.what() + remedy(e.what(), setting, model, options));
  }
  if (spans != nullptr) *spans = std::move(simulated.spans);

  RunReport facts;
  facts.model = trace.name;
  facts.stack = options.stack;
  facts.machine = setting.machine.name;
  facts.batch = options.batch;
  facts.layers = model.layers;
  facts.budget_asked_bytes = options.budget_bytes;
  facts.all_expert_bytes = model.all_bytes();
  facts.expert_bytes = mean_expert_bytes(model, Precision::full);
  for (std::uint32_t l = 0; l < model.layers; ++l) facts.dense_bytes += costs.work_of(l).dense_bytes;
  facts.throttle_bytes_per_s = costs.link_bytes_per_s;
  facts.prefetch_chunk_bytes = costs.prefetch_chunk_bytes;
  SimulatedFacts& s = facts.simulated.emplace();
  s.trace = setting.trace_name;
  s.costs = cost_source_name(setting.costs);
  s.as_shape = setting.as_shape;
  if (!completed.made.empty()) {
    const AssumedRecall& recall = setting.assumed->recall();
    s.assumed = {recall.top_k, recall.candidates, recall.seed, std::move(completed.made)};
  }
  facts.parameters = std::move(parameters);

  auto other = [&](Clairvoyance knows) -> std::optional<SimulatedFacts::Other> {
    ++behind;
    SimulateOptions c = o;
    c.knows = knows;
    c.bounds = c.log = false;
    try {
      const Simulated r = simulate(trace, costs, c);
      const PhaseClock& decode = r.phase[static_cast<unsigned>(Phase::decode)];
      if (decode.steps == 0 || !r.finished) return {};
      return SimulatedFacts::Other{static_cast<double>(decode.total) * 1e-9 / static_cast<double>(decode.steps),
                                   r.counters.of(Phase::decode).hit_rate()};
    } catch (const NoFuture&) {  // this stack has no such variant
      return {};
    }
  };
  if (setting.bounds == BoundsChoice::all && simulated.finished) {
    s.perfect_prediction = other(Clairvoyance::prediction);
    s.belady_cache = other(Clairvoyance::cache);
    s.prediction_and_cache = other(Clairvoyance::both);
    s.belady_demand = other(Clairvoyance::demand);
  }
  setting.trace->check_unchanged();  // else results would mix two files
  return make_report(simulated, std::move(facts));
}

}  // namespace ferry::engine
