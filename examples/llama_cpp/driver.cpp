#include "driver.hpp"

#include <algorithm>

#include "stacks/budget.hpp"
#include "stacks/parameters.hpp"
#include "stacks/stack_file.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::llama_cpp {
namespace {

using namespace engine;

ConfiguredStack configured(const DriverOptions& o, ModelShape model) {
  model.max_rows = o.max_rows;
  for (ExpertBytes& b : model.expert_bytes) {  // the file has no others
    std::fill(b.begin(), b.begin() + static_cast<int>(Precision::full), std::uint64_t{0});
  }
  const NamedStack named = read_stack(o.stack);
  StackOptions options;
  options.stack = named.policies;
  options.budget_bytes = parse_budget(o.budget, model.all_bytes());
  options.max_rows = o.max_rows;
  set_parameters(options, named.parameters, o.stack);
  // Only the ratios of a disk's times matter to the stacks: what copies take, with all else at zero.
  ConfiguredStack stack =
      configure_stack(model, options, [](std::uint64_t bytes) { return static_cast<Nanoseconds>(bytes); });
  const StackTraits t = stack.config->traits();
  const char* beyond = t.computes_on_host ? "leaves experts to the host"
                       : t.substitutes    ? "runs other experts than the gate chose"
                       : t.skips          ? "leaves experts out"
                       : t.rows[0] == RowSource::partial_hidden || t.rows[1] == RowSource::partial_hidden
                           ? "reads partial hidden states"
                           : nullptr;
  if (beyond != nullptr) {
    throw InputError("stack " + o.stack + " " + beyond +
                     ", which llama.cpp does not: expected one that only copies, as lru");
  }
  return stack;
}

}  // namespace

Driver::Driver(const GateWatcher& watcher, const Session& session, const DriverOptions& o)
    : scores_(watcher.layers(), session), pages_(watcher.layers()), stack_(configured(o, scores_.shape())) {
  link_ = std::make_unique<PageLink>(
      pages_, PageLink::Options{stack_.config->settings().allotment.slots(), o.threads, o.releases});
  pipe_ = stack_.config->start(*link_);
  const CoreSettings& settings = stack_.config->settings();
  const bool all_fit = slots_for(settings.allotment, settings.model, Precision::full) >= settings.model.all_experts();
  if (o.releases && !all_fit) pages_.release_all();
  if (!stack_.config->traits().caches) return;
  const Nanoseconds begin = now_ns();
  pipe_->preload();  // loading has only left the file's end in memory; an even share of all layers is worth more
  link_->drain();
  filled_ = now_ns() - begin;
}

void Driver::begin_step(const PassedStep& step) {
  step_ = step;
  sequences_.assign(step.rows, 0);
  pipe_->begin_step({step.phase, {sequences_.data(), step.rows}});
  begun_ = now_ns();
}

void Driver::at_gate(std::uint16_t layer, const GateRows& rows) {
  finish();
  if (rows.rows == 0) return;
  Scores scores = scores_.of(layer, rows);
  if (rows.rows < step_.rows) scores.rows = {step_.outputs.data(), rows.rows};
  plan_ = pipe_->plan(scores);
  open_ = layer;
  for (const Task& t : plan_.arriving) {
    if (t.freed_by != no_task) pages_.request(t.what.id);  // no slot before the layer is over: the kernel's
  }
  look_ahead(layer, rows);
  const Nanoseconds begin = now_ns();
  for (const Task& t : plan_.arriving) {
    if (t.freed_by == no_task) pipe_->wait(t);
  }
  begun_ = now_ns();
  waited_ += begun_ - begin;
}

void Driver::look_ahead(std::uint16_t layer, const GateRows& rows) {
  pipe_->look_ahead();
  const std::uint16_t count = pipe_->rows_ahead(RowSource::gate_input);
  if (count == 0) return;
  const View<const Scores> predicted = scores_.predicted(layer, count, rows);
  pipe_->look_ahead(RowSource::gate_input, [&](std::uint16_t next, std::uint16_t distance) {
    return distance <= predicted.size ? predicted[distance - 1U] : Scores{next, {}, {}};
  });
}

void Driver::finish() {
  if (open_ == no_layer) return;
  link_->set_computed(true);
  pipe_->done(plan_.resident);
  for (const Task& t : plan_.arriving) pipe_->done(t);
  link_->set_computed(false);
  Times took;
  took.attention = now_ns() - begun_;  // includes the experts: what a layer takes without waiting
  pipe_->finish(open_, took);
  open_ = no_layer;
}

}  // namespace ferry::llama_cpp
