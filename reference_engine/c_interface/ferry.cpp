/// @file
/// The C interface: what AnyPipeline does, with C structures instead of C++ types and statuses instead of exceptions.
/// Structures that cross in large numbers (routes, tasks, copies) are the library's own under C names: nothing is copied.
#include "ferry/ferry.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ferry/any_pipeline.hpp"
#include "ferry/link/command_buffer.hpp"
#include "stacks/configured_stack.hpp"
#include "stacks/parameters.hpp"
#include "support/errors.hpp"

namespace {

using namespace ferry;

template <class Cpp, class C>
constexpr bool same_size = sizeof(Cpp) == sizeof(C) && alignof(Cpp) == alignof(C) && std::is_trivially_copyable_v<Cpp>;
#define FERRY_SAME(Cpp, cpp_member, C, c_member) \
  static_assert(offsetof(Cpp, cpp_member) == offsetof(C, c_member) && sizeof(Cpp::cpp_member) == sizeof(C::c_member))
static_assert(same_size<Variant, ferry_variant> && same_size<ExpertId, std::uint16_t[2]> &&
              offsetof(ferry_variant, expert) == 2);
FERRY_SAME(Variant, precision, ferry_variant, precision);
static_assert(same_size<Copy, ferry_copy>);
FERRY_SAME(Copy, ticket, ferry_copy, ticket);
FERRY_SAME(Copy, what, ferry_copy, what);
FERRY_SAME(Copy, slot, ferry_copy, slot);
FERRY_SAME(Copy, after, ferry_copy, after);
FERRY_SAME(Copy, demand, ferry_copy, demand);
static_assert(same_size<Seen, ferry_seen>);
FERRY_SAME(Seen, demand_landed, ferry_seen, demand_landed);
FERRY_SAME(Seen, prefetch_begun, ferry_seen, prefetch_begun);
FERRY_SAME(Seen, prefetch_landed, ferry_seen, prefetch_landed);
FERRY_SAME(Seen, link_ns, ferry_seen, link_ns);
FERRY_SAME(Seen, chunk_ns, ferry_seen, chunk_ns);
static_assert(same_size<Route, ferry_route>);
FERRY_SAME(Route, expert, ferry_route, expert);
FERRY_SAME(Route, weight, ferry_route, weight);
FERRY_SAME(Route, instead_of, ferry_route, instead_of);
static_assert(same_size<Task, ferry_task>);
FERRY_SAME(Task, what, ferry_task, what);
FERRY_SAME(Task, slot, ferry_task, slot);
FERRY_SAME(Task, first, ferry_task, first);
FERRY_SAME(Task, rows, ferry_task, rows);
FERRY_SAME(Task, freed_by, ferry_task, freed_by);
FERRY_SAME(Task, ready, ferry_task, ready);
FERRY_SAME(Task, transient, ferry_task, transient);
static_assert(same_size<Times, ferry_times>);
FERRY_SAME(Times, attention, ferry_times, attention_ns);
FERRY_SAME(Times, gate, ferry_times, gate_ns);
FERRY_SAME(Times, device, ferry_times, device_ns);
FERRY_SAME(Times, host, ferry_times, host_ns);
static_assert(same_size<Command, ferry_command>);
FERRY_SAME(Command, kind, ferry_command, kind);
FERRY_SAME(Command, copy, ferry_command, copy);
#undef FERRY_SAME
static_assert(FERRY_PRECISIONS == precision_count && FERRY_FULL == static_cast<int>(Precision::full) &&
              FERRY_RENORMALISE_YES == static_cast<int>(Renormalise::yes) &&
              FERRY_DECODE == static_cast<int>(Phase::decode) &&
              FERRY_ROWS_PARTIAL_HIDDEN == static_cast<int>(RowSource::partial_hidden) && FERRY_NO_SLOT == no_slot &&
              FERRY_COMMAND_WAIT == static_cast<int>(Command::Kind::wait) && FERRY_NO_TASK == no_task &&
              FERRY_NO_EXPERT == no_expert && FERRY_NO_LAYER == no_layer);

/// A link of the engine's own callbacks.
class CallbackLink final : public AnyLink {
 public:
  explicit CallbackLink(const ferry_link& calls) : calls_(calls) {}

  void submit(const Copy& copy) noexcept override {
    calls_.submit(calls_.context, reinterpret_cast<const ferry_copy*>(&copy));
  }
  void drop(Ticket ticket) noexcept override {
    if (calls_.drop != nullptr) calls_.drop(calls_.context, static_cast<std::uint64_t>(ticket));
  }
  [[nodiscard]] Seen seen() noexcept override {
    Seen seen;
    calls_.seen(calls_.context, reinterpret_cast<ferry_seen*>(&seen));
    return seen;
  }
  void fence(Fence fence) noexcept override {
    if (calls_.fence != nullptr) calls_.fence(calls_.context, static_cast<std::uint64_t>(fence));
  }
  void wait(Ticket ticket) override {
    if (calls_.wait(calls_.context, static_cast<std::uint64_t>(ticket)) == 0) return;
    throw LinkError("the link says that copy " + std::to_string(static_cast<std::uint64_t>(ticket)) +
                    " can never land");
  }

 private:
  ferry_link calls_;
};

thread_local char last_error[2048] = "";

ferry_status refused(ferry_status status, const char* what) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", what);
  return status;
}

/// Runs a call, and turns what it throws into a status and a message.
template <class Call>
ferry_status guarded(const Call& call) noexcept {
  try {
    call();
    last_error[0] = '\0';
    return FERRY_OK;
  } catch (const UsageError& e) {
    return refused(FERRY_USAGE_ERROR, e.what());
  } catch (const LinkError& e) {
    return refused(FERRY_LINK_ERROR, e.what());
  } catch (const std::bad_alloc&) {
    return refused(FERRY_MEMORY_ERROR, "out of memory");
  } catch (const std::exception& e) {  // ConfigError, and InputError of names and parameters
    return refused(FERRY_CONFIG_ERROR, e.what());
  }
}

void need(const void* pointer, const char* call, const char* name) {
  if (pointer == nullptr) throw UsageError(std::string(call) + ": " + name + " is NULL, expected one");
}

/// A caller's text in a message: of any length, and with any bytes.
std::string quoted(const std::string& text) {
  constexpr std::size_t shown = 100;
  return "\"" + engine::printable(text.size() > shown ? text.substr(0, shown) + "..." : text) + "\"";
}

/// Tasks that have been with the caller: C++ knows no `transient` of 2.
const Task* tasks_of(const ferry_task* tasks, std::uint32_t count, const char* call) {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (tasks[i].transient <= 1) continue;
    throw UsageError(std::string(call) + ": a task's transient is " + std::to_string(tasks[i].transient) +
                     ", expected 0 or 1, as the plan has it");
  }
  return reinterpret_cast<const Task*>(tasks);
}

/// A structure of a caller that may be older or newer than this library. What an older one lacks is 0; a newer one is
/// refused only if it asks for something that is not known here.
template <class T>
T read_sized(const T* from, std::size_t first_size, const char* name) {
  std::size_t size = 0;
  std::memcpy(&size, from, sizeof size);
  if (size < first_size || size > std::size_t{1} << 20U) {
    throw ConfigError(std::string(name) + ".size is " + std::to_string(size) + ", expected sizeof(" + name + "), " +
                      std::to_string(sizeof(T)));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] == 0) continue;
    throw ConfigError(std::string(name) + " sets a member that this library, version " FERRY_VERSION ", does not know");
  }
  T known{};
  std::memcpy(&known, from, std::min(size, sizeof(T)));
  return known;
}

/// Fills a caller's structure as far as both sides know it.
template <class T>
void write_sized(T* to, T value, std::size_t first_size, const char* name) {
  const std::size_t size = read_sized(to, first_size, name).size;
  value.size = size;
  std::memcpy(to, &value, std::min(size, sizeof(T)));
}

ModelShape shape_of(const ferry_options& o) {
  ModelShape m;
  m.layers = o.layers;
  m.experts = o.experts;
  m.top_k = o.top_k;
  m.max_rows = o.max_rows;
  if (o.renormalise > FERRY_RENORMALISE_YES) {
    throw ConfigError("ferry_options.renormalise is " + std::to_string(o.renormalise) +
                      ", expected FERRY_RENORMALISE_NO or FERRY_RENORMALISE_YES");
  }
  m.renormalise = static_cast<Renormalise>(o.renormalise);
  if (!(o.scale >= 0) || std::isinf(o.scale))
    throw ConfigError("ferry_options.scale is negative, infinite or no number, expected more than 0, or 0 for 1");
  m.scale = o.scale == 0 ? 1.0F : o.scale;
  if (!(o.least_sum >= 0) || std::isinf(o.least_sum))
    throw ConfigError("ferry_options.least_sum is negative, infinite or no number, expected 0 or more");
  if (!(o.added_to_sum >= 0) || std::isinf(o.added_to_sum))
    throw ConfigError("ferry_options.added_to_sum is negative, infinite or no number, expected 0 or more");
  m.least_sum = o.least_sum;
  m.added_to_sum = o.added_to_sum;
  if (o.expert_bytes == nullptr || (o.expert_byte_rows != 1 && o.expert_byte_rows != o.layers)) {
    throw ConfigError("ferry_options.expert_bytes has " +
                      std::to_string(o.expert_bytes == nullptr ? 0 : o.expert_byte_rows) +
                      " rows (expert_byte_rows), expected 1 or " + std::to_string(o.layers) + " (layers)");
  }
  m.expert_bytes.resize(o.expert_byte_rows);
  for (std::size_t l = 0; l < o.expert_byte_rows; ++l) {
    std::copy_n(o.expert_bytes + l * FERRY_PRECISIONS, FERRY_PRECISIONS, m.expert_bytes[l].begin());
  }
  if (o.layer_experts != nullptr) m.layer_experts.assign(o.layer_experts, o.layer_experts + o.layers);
  if (o.layer_top_k != nullptr) m.layer_top_k.assign(o.layer_top_k, o.layer_top_k + o.layers);
  return m;
}

engine::StackOptions stack_options(const ferry_options& o) {
  engine::StackOptions options;
  if (o.stack == nullptr) throw ConfigError("ferry_options.stack is NULL, expected the name of a stack");
  options.stack = o.stack;
  options.budget_bytes = o.budget_bytes;
  options.stream_slots = o.stream_slots == 0 ? least_stream_slots : o.stream_slots;
  options.max_rows = o.max_rows;
  std::vector<const engine::Parameter*> given;
  for (std::size_t i = 0; i < o.parameter_count; ++i) {
    const std::string text = o.parameters == nullptr || o.parameters[i] == nullptr ? "" : o.parameters[i];
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) {
      throw ConfigError("ferry_options.parameters[" + std::to_string(i) + "] is " + quoted(text) +
                        ", expected \"name=value\"");
    }
    const engine::Parameter& p = engine::find_parameter(text.substr(0, equals), "ferry_options.parameters");
    if (std::find(given.begin(), given.end(), &p) != given.end()) {
      throw ConfigError("ferry_options.parameters[" + std::to_string(i) + "] is " + quoted(text) + ", and " + p.name +
                        " stands before it, expected each parameter once");
    }
    given.push_back(&p);
    std::vector<std::string> words{""};
    for (const char c : text.substr(equals + 1)) {
      if (c == ',') {
        words.emplace_back();
      } else {
        words.back() += c;
      }
    }
    try {
      static_cast<void>(p.set(options, p.read(words)));  // read has checked it
    } catch (const engine::InputError&) {
      throw ConfigError("ferry_options.parameters[" + std::to_string(i) + "] is " + quoted(text) + ", expected \"" +
                        p.name + "=\" and " + p.expected());
    }
  }
  for (const engine::Parameter* p : given) {  // last, since `pools` decides which others a stack takes
    if (engine::takes_parameter(options.stack, p->member(), options.pools)) continue;
    throw ConfigError("ferry_options.parameters: stack " + options.stack + " has no parameter " + p->name);
  }
  return options;
}

LayerCosts costs_of(const ferry_options& o) {
  const auto ns = [](std::uint64_t of) {
    return static_cast<Nanoseconds>(std::min<std::uint64_t>(of, std::uint64_t{1} << 50U));
  };
  LayerCosts c;
  for (unsigned p = 0; p < precision_count; ++p) {
    c.device_ns[p] = ns(o.device_ns[p]);
    c.host_ns[p] = ns(o.host_ns[p]);
  }
  c.host_row_ns = ns(o.host_row_ns);
  c.host_start_ns = ns(o.host_start_ns);
  if (o.link_beside_host != 0) c.link_beside_host = std::min(o.link_beside_host, 1000U);
  if (o.host_beside_copies != 0) c.host_beside_copies = std::min(o.host_beside_copies, 1000U);
  return c;
}

engine::ConfiguredStack configured(const ferry_options& o) {
  if (!(o.copy_bytes_per_s >= 0) || std::isinf(o.copy_bytes_per_s)) {
    throw ConfigError(
        "ferry_options.copy_bytes_per_s is negative, infinite or no number, expected a rate, or 0 if unknown");
  }
  const auto copy_cost = [&o](std::uint64_t bytes) {
    if (o.copy_bytes_per_s == 0 || bytes == 0) return Nanoseconds{0};
    const double ns = static_cast<double>(o.copy_start_ns) + static_cast<double>(bytes) * 1e9 / o.copy_bytes_per_s;
    return static_cast<Nanoseconds>(std::min(ns, 1e15));
  };
  engine::ConfiguredStack stack = engine::configure_stack(shape_of(o), stack_options(o), copy_cost);
  stack.config->settings().costs = costs_of(o);
  return stack;
}

View<const std::uint32_t> rows_of(const std::uint32_t* rows, std::uint32_t count) {
  return {rows, rows == nullptr ? 0 : count};
}

Scores scores_of(const ferry_scores& s) {
  const float* weight = s.weight == nullptr ? s.select : s.weight;
  const std::uint32_t count = s.select == nullptr ? 0 : s.count;
  return {s.layer, {s.select, count}, {weight, count}, rows_of(s.rows, s.row_count)};
}

template <class C, class Cpp>
void give(View<const Cpp> of, const C*& data, std::uint32_t& count) {
  data = reinterpret_cast<const C*>(of.data);
  count = of.size;
}

void give(const Plan& p, ferry_plan& out) {
  give(p.routes, out.routes, out.route_count);
  out.assignments = p.assignments.data;
  out.assignment_count = p.assignments.size;
  give(p.resident, out.resident, out.resident_count);
  give(p.arriving, out.arriving, out.arriving_count);
  give(p.host, out.host, out.host_count);
}

}  // namespace

/// An open pipeline. Each part needs those declared before it.
struct ferry_pipeline {
  engine::ConfiguredStack stack;
  std::vector<std::uint64_t> offsets;
  std::unique_ptr<CommandBuffer> buffer;  ///< behind the link, if commands are data
  std::unique_ptr<AnyLink> link;
  std::vector<Command> taken;
  std::unique_ptr<AnyPipeline> pipe;

  ferry_pipeline(const ferry_options& options, const ferry_link* calls) : stack(configured(options)) {
    offsets = stack.config->settings().allotment.offsets();
    if (calls != nullptr) {
      link = std::make_unique<CallbackLink>(*calls);
    } else {
      using Progress = CommandBuffer::Progress;
      buffer = std::make_unique<CommandBuffer>(options.in_order != 0 ? Progress::in_order : Progress::reported);
      link = std::make_unique<AdaptedLink<CommandBuffer>>(*buffer);
    }
    pipe = stack.config->start(*link);
  }
};

namespace {

/// A call of an open pipeline.
template <class Call>
ferry_status on(ferry_pipeline* pipe, const char* name, const Call& call) noexcept {
  return guarded([&] {
    need(pipe, name, "the pipeline");
    call(*pipe->pipe);
  });
}

// The sizes of the structures in the version that introduced them. A structure that grows later is larger.
constexpr std::size_t first_options = 224, first_link = 56, first_traits = 24, first_counters = 224;
static_assert(sizeof(ferry_options) == first_options && sizeof(ferry_link) == first_link &&
              sizeof(ferry_traits) == first_traits && sizeof(ferry_counters) == first_counters);

}  // namespace

const char* ferry_version(void) {
  return FERRY_VERSION;
}
const char* ferry_last_error(void) {
  return last_error;
}

size_t ferry_stack_count(void) {
  return engine::all_stacks().size();
}
const char* ferry_stack_name(size_t index) {
  return index < engine::all_stacks().size() ? engine::all_stacks()[index].name.c_str() : nullptr;
}
const char* ferry_stack_summary(size_t index) {
  return index < engine::all_stacks().size() ? engine::all_stacks()[index].what : nullptr;
}

ferry_status ferry_open(const ferry_options* options, const ferry_link* link, ferry_pipeline** pipe) {
  return guarded([&] {
    need(options, "open", "options");
    need(pipe, "open", "the place for the pipeline");
    const ferry_options known = read_sized(options, first_options, "ferry_options");
    std::optional<ferry_link> calls;
    if (link != nullptr) {
      calls = read_sized(link, first_link, "ferry_link");
      if (calls->submit == nullptr || calls->seen == nullptr || calls->wait == nullptr) {
        throw ConfigError("ferry_link: submit, seen or wait is NULL, expected all three");
      }
    }
    *pipe = new ferry_pipeline(known, calls ? &*calls : nullptr);
  });
}
void ferry_close(ferry_pipeline* pipe) {
  delete pipe;
}

uint32_t ferry_slot_count(const ferry_pipeline* pipe) {
  return pipe == nullptr ? 0 : static_cast<uint32_t>(pipe->offsets.size() - 1);
}
const uint64_t* ferry_slot_offsets(const ferry_pipeline* pipe) {
  return pipe == nullptr ? nullptr : pipe->offsets.data();
}

ferry_status ferry_get_traits(const ferry_pipeline* pipe, ferry_traits* traits) {
  return guarded([&] {
    need(pipe, "get_traits", "the pipeline");
    need(traits, "get_traits", "the place for the traits");
    const StackTraits t = pipe->pipe->traits();
    ferry_traits out{};
    out.predicts = t.predicts;
    out.caches = t.caches;
    out.substitutes = t.substitutes;
    out.skips = t.skips;
    out.preloads = pipe->stack.preloads;
    out.computes_on_host = t.computes_on_host;
    out.needs_scores = t.router_needs_scores || t.cache_needs_scores;
    out.rows[0] = static_cast<std::uint8_t>(t.rows[0]);
    out.rows[1] = static_cast<std::uint8_t>(t.rows[1]);
    out.look_ahead_depth = pipe->pipe->look_ahead_depth();
    write_sized(traits, out, first_traits, "ferry_traits");
  });
}

ferry_status ferry_get_counters(const ferry_pipeline* pipe, ferry_counters* counters) {
  return guarded([&] {
    need(pipe, "get_counters", "the pipeline");
    need(counters, "get_counters", "the place for the counters");
    const Counters& c = pipe->pipe->counters();
    ferry_counters out{};
    for (unsigned p = 0; p < 2; ++p) {
      const Outcomes& o = c.phase[p];
      out.phase[p] = {c.steps[p],    o.requests, o.hits,          o.late_hits, o.misses,
                      o.substituted, o.skipped,  o.host_computed, o.bytes};
    }
    out.prefetches = c.prefetch.issued;
    out.prefetches_used = c.prefetch.used;
    out.prefetches_dropped = c.prefetch.dropped;
    out.promoted = c.prefetch.promoted;
    out.prefetched_bytes = c.prefetch.issued_bytes;
    out.wasted_bytes = c.prefetch.wasted_bytes;
    out.preload_bytes = c.preload_bytes;
    out.layers_not_asked = c.prefetch.layers_not_asked;
    out.unfinished_steps = c.unfinished_steps;
    write_sized(counters, out, first_counters, "ferry_counters");
  });
}

ferry_status ferry_preload(ferry_pipeline* pipe) {
  return on(pipe, "preload", [](AnyPipeline& p) { p.preload(); });
}
ferry_status ferry_begin_step(ferry_pipeline* pipe, ferry_phase phase, const uint32_t* sequence, uint32_t rows) {
  return on(pipe, "begin_step", [&](AnyPipeline& p) {
    need(sequence, "begin_step", "sequence");
    std::uint32_t number = 0;  // C has enumerations of any value, C++ has not
    static_assert(sizeof number == sizeof phase);
    std::memcpy(&number, &phase, sizeof number);
    if (number > FERRY_DECODE) {
      throw UsageError("begin_step: phase is " + std::to_string(number) + ", expected FERRY_PREFILL or FERRY_DECODE");
    }
    p.begin_step({static_cast<Phase>(number), {sequence, rows}});
  });
}
ferry_status ferry_plan_scores(ferry_pipeline* pipe, const ferry_scores* scores, ferry_plan* plan) {
  return on(pipe, "plan_scores", [&](AnyPipeline& p) {
    need(scores, "plan_scores", "scores");
    need(plan, "plan_scores", "the place for the plan");
    give(p.plan(scores_of(*scores)), *plan);
  });
}
ferry_status ferry_plan_routes(ferry_pipeline* pipe, uint16_t layer, const ferry_route* routes, uint32_t route_count,
                               const uint32_t* rows, uint32_t row_count, ferry_plan* plan) {
  return on(pipe, "plan_routes", [&](AnyPipeline& p) {
    need(routes, "plan_routes", "routes");
    need(plan, "plan_routes", "the place for the plan");
    give(p.plan(layer, {reinterpret_cast<const Route*>(routes), route_count}, rows_of(rows, row_count)), *plan);
  });
}
uint16_t ferry_layer_ahead(const ferry_pipeline* pipe, uint8_t rows_from, uint16_t distance) {
  if (pipe == nullptr || rows_from > FERRY_ROWS_PARTIAL_HIDDEN || distance == 0) return FERRY_NO_LAYER;
  return pipe->pipe->layer_ahead(static_cast<RowSource>(rows_from), distance);
}
ferry_status ferry_look_ahead(ferry_pipeline* pipe, const ferry_scores* predicted) {
  return on(pipe, "look_ahead", [&](AnyPipeline& p) {
    need(predicted, "look_ahead", "the predicted scores");
    p.look_ahead(scores_of(*predicted));
  });
}
ferry_status ferry_wait(ferry_pipeline* pipe, const ferry_task* task) {
  return on(pipe, "wait", [&](AnyPipeline& p) {
    need(task, "wait", "the task");
    p.wait(*tasks_of(task, 1, "wait"));
  });
}
ferry_status ferry_done(ferry_pipeline* pipe, const ferry_task* tasks, uint32_t count) {
  return on(pipe, "done", [&](AnyPipeline& p) {
    if (count > 0) need(tasks, "done", "the tasks");
    p.done({tasks_of(tasks, count, "done"), count});
  });
}
ferry_status ferry_finish(ferry_pipeline* pipe, uint16_t layer, const ferry_times* times) {
  return on(pipe, "finish", [&](AnyPipeline& p) {
    p.finish(layer, times == nullptr ? Times{} : *reinterpret_cast<const Times*>(times));
  });
}
void ferry_abandon(ferry_pipeline* pipe) {
  if (pipe != nullptr) pipe->pipe->abandon();
}
void ferry_end_sequence(ferry_pipeline* pipe, uint32_t sequence) {
  if (pipe != nullptr) pipe->pipe->end_sequence(sequence);
}

ferry_status ferry_take_commands(ferry_pipeline* pipe, const ferry_command** commands, uint32_t* count) {
  return on(pipe, "take_commands", [&](AnyPipeline&) {
    need(commands, "take_commands", "the place for the commands");
    need(count, "take_commands", "the place for their number");
    if (pipe->buffer == nullptr) {
      throw UsageError("take_commands: this pipeline has a link, expected one that was opened without");
    }
    const View<const Command> all = pipe->buffer->commands();
    pipe->taken.assign(all.begin(), all.end());
    pipe->buffer->clear();
    *commands = reinterpret_cast<const ferry_command*>(pipe->taken.data());
    *count = all.size;
  });
}
ferry_status ferry_report(ferry_pipeline* pipe, const ferry_seen* seen) {
  return on(pipe, "report", [&](AnyPipeline&) {
    need(seen, "report", "what was seen");
    if (pipe->buffer == nullptr) {
      throw UsageError("report: this pipeline has a link, expected one that was opened without");
    }
    pipe->buffer->report(*reinterpret_cast<const Seen*>(seen));
  });
}
