#include "live_stacks.hpp"

#include "ferry/sim/simulation.hpp"
#include "sim/simulate.hpp"
#include "stacks/budget.hpp"
#include "stacks/parameters.hpp"
#include "stacks/stack_file.hpp"
#include "sweep/simulated_run.hpp"

namespace ferry::llama_cpp {

using namespace engine;

namespace {

Costs costs_of(const SimulatedSetting& setting, bool as_reference, const ModelShape& model) {
  if (!as_reference) return setting.machine_costs();
  const Machine& machine = setting.machine;
  const ModelFacts reference = read_shape(machine.reference_model());
  const CostSource source = machine.stated ? CostSource::stated : CostSource::effective;
  return as_if(machine.costs(reference.work, source), reference, model);
}

}  // namespace

LiveStack::LiveStack(const std::string& stack, const TraceFile& model, const LiveSettings& settings)
    : chunk_(settings.chunk) {
  SimulatedSetting setting;
  setting.machine = read_machine(settings.machine);
  setting.trace = &model;
  setting.costs = settings.costs;
  setting.as_shape = settings.as_shape;
  model_ = setting.model();
  model_.max_rows = settings.chunk;
  costs_ = costs_of(setting, settings.as_reference, model_);
  costs_.validate(model_);
  const NamedStack named = read_stack(stack);
  StackOptions options;
  options.stack = named.policies;
  options.budget_bytes = parse_budget(settings.budget, model_.all_bytes());
  options.max_rows = settings.chunk;
  set_parameters(options, named.parameters, stack);
  stack_ = configure_stack(model_, options, [&](std::uint64_t bytes) { return costs_.copy(bytes); });
  stack_.config->settings().costs = layer_costs(costs_, model_);
  clock_ = std::make_unique<VirtualClock>(model_, VirtualClock::options(costs_, false));
  pipe_ = stack_.config->start(*clock_);
  if (stack_.preloads) {
    pipe_->preload();
    clock_->drain();
  }
  facts_.model = model.trace.name;
  facts_.stack = named.policies;
  facts_.stack_file = is_stack_file(stack) ? named.label : "";
  facts_.machine = setting.machine.name;
  facts_.parameters = named.parameters;
  facts_.layers = model_.layers;
  facts_.budget_asked_bytes = options.budget_bytes;
  facts_.all_expert_bytes = model_.all_bytes();
  facts_.expert_bytes = engine::mean_expert_bytes(model_, Precision::full);
  for (std::uint32_t l = 0; l < model_.layers; ++l) facts_.dense_bytes += costs_.work_of(l).dense_bytes;
  facts_.throttle_bytes_per_s = costs_.link_bytes_per_s;
  SimulatedFacts& simulated = facts_.simulated.emplace();
  simulated.trace = "live";
  simulated.costs = cost_source_name(settings.costs);
  simulated.as_shape = settings.as_shape;
}

void LiveStack::pass(const Trace& step) {
  SimulationOptions options;
  options.prefill_chunk = chunk_;
  options.bounds = false;
  Replay<AnyPipeline> replay(*pipe_, *clock_, model_, step, costs_, options);
  replay.step();
  for (const Phase p : {Phase::prefill, Phase::decode}) {
    const PhaseClock& took = replay.clock(p);
    PhaseClock& sum = passed_[static_cast<unsigned>(p)];
    sum.total += took.total;
    sum.stall += took.stall;
    sum.host += took.host;
    sum.host_wait += took.host_wait;
    sum.link_busy += took.link_busy;
    sum.tokens += took.tokens;
    sum.steps += took.steps;
  }
}

RunReport LiveStack::report(bool finished) const {
  Simulated s;
  s.counters = pipe_->counters();
  for (const Phase p : {Phase::prefill, Phase::decode}) s.phase[static_cast<unsigned>(p)] = clock(p);
  s.prefilled = finished || clock(Phase::decode).steps > 0 ? 1 : 0;
  s.prefill = clock(Phase::prefill).total;
  s.arena_bytes = stack_.config->settings().allotment.bytes();
  s.finished = finished;
  for (std::uint16_t d = 1; d <= pipe_->look_ahead_depth(); ++d) {
    auto& layers = s.accuracy.emplace_back();
    for (std::uint16_t l = 0; l < model_.layers; ++l) layers.push_back(pipe_->prediction_accuracy(d, l));
  }
  return make_report(s, facts_);
}

}  // namespace ferry::llama_cpp
