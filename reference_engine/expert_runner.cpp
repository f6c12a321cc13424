#include "expert_runner.hpp"

#include "errors.hpp"
#include "ferry/link/host_thread.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"
#include "suggest.hpp"

namespace ferry::engine {
namespace {

View<const float> view(const Matrix& m) {
  return {m.data(), static_cast<std::uint32_t>(m.size())};
}

/// The one implementation: a pipeline of this stack on this link.
template <class Stack, class LinkT>
class PipelineRunner final : public ExpertRunner {
 public:
  PipelineRunner(const CoreConfig<Stack>& config, const ExpertStore& store, GateBank& gates,
                 const RunnerOptions& options)
      : options_(options),
        gates_(gates),
        kernel_(store.layout()),
        memory_(
            config.allotment, [&store](Variant v) { return store.bytes(v); }, options.poison),
        link_(make_link(config, options)),
        pipe_(config, *link_),
        slots_(config.allotment.slots()),
        top_k_(config.model.top_k),
        layers_(config.model.layers) {
    log = options.log;
    if (stack_needs_everything(options.stack)) {
      pipe_.preload();
      if constexpr (requires { link_->drain(); }) link_->drain();
    }
  }

  void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) override {
    phase_ = phase;
    if (phase == Phase::prefill) new_section_ = true;
    pipe_.begin_step({phase, {sequences.data(), static_cast<std::uint32_t>(sequences.size())}});
  }

  void plan(std::uint16_t layer, const Matrix& input, const Matrix& scores) override {
    if constexpr (virtual_time) {
      link_->device(options_.virtual_layer_ns, "attention, gate");
      link_->sync();  // the host reads the gate
    }
    const Nanoseconds begin = now_ns();
    plan_ = pipe_.plan({layer, view(scores), view(scores)});
    if constexpr (decltype(pipe_)::predicts) {
      if (layer + 1U < layers_) pipe_.look_ahead(gates_.scores(static_cast<std::uint16_t>(layer + 1U), input));
    }
    note(Lane::host, "decide", begin, &PhaseTimes::decision);
  }

  void run(std::uint16_t layer, const Matrix& input, Matrix& out) override {
    Times measured;
    results_.resize(static_cast<Eigen::Index>(plan_.routes.size), input.cols());
    for (const Task& t : plan_.resident) compute(t, input);
    if (plan_.resident.size > 0) pipe_.done(plan_.resident);
    for (const Task& t : plan_.arriving) {
      const Nanoseconds begin = now_ns();
      pipe_.wait(t);
      note(Lane::device, "wait", begin, &PhaseTimes::stall);
      measured.device = compute(t, input);
      if (t.transient) memory_.poison(t.slot);  // before `done`, which may start the next copy into it
      pipe_.done(t);
    }
    out.setZero(input.rows(), input.cols());
    for (std::uint32_t i = 0; i < plan_.routes.size; ++i) {  // by rank, never by arrival
      const Route& r = plan_.routes[i];
      if (r.expert == no_expert) continue;
      out.row(static_cast<Eigen::Index>(i / top_k_)) += r.weight * results_.row(static_cast<Eigen::Index>(i));
    }
    pipe_.finish(layer, measured);
    if (phase_ == Phase::decode) note_asked(layer);
  }

  void end_sequence(std::uint32_t sequence) override { pipe_.end_sequence(sequence); }
  void abandon() override { pipe_.abandon(); }

  [[nodiscard]] const Counters& counters() const override { return pipe_.counters(); }
  [[nodiscard]] double link_peak_bytes_per_s() const override { return link_->peak_bytes_per_s(); }
  [[nodiscard]] std::vector<Span> link_spans() const override { return link_->spans(); }
  [[nodiscard]] std::uint64_t arena_bytes() const override { return memory_.bytes(); }
  [[nodiscard]] std::uint32_t slots() const override { return slots_; }

 private:
  static_assert(std::is_base_of_v<DeviceOnly, typename Stack::scheduler>,
                "the engine computes no experts on the host: use a schedule with DeviceOnly");
  static constexpr bool virtual_time = std::is_same_v<LinkT, VirtualClock>;

  std::unique_ptr<LinkT> make_link(const CoreConfig<Stack>& config, const RunnerOptions& o) {
    if constexpr (virtual_time) {
      return std::make_unique<LinkT>(config.model, VirtualClock::Options{o.link_bytes_per_s, 0, o.log}, &memory_);
    } else {
      return std::make_unique<LinkT>(memory_, HostThread::Options{.bytes_per_s = o.link_bytes_per_s, .log = o.log});
    }
  }

  void note(Lane lane, const char* name, Nanoseconds begin, Nanoseconds PhaseTimes::*sum) {
    const Nanoseconds end = now_ns();
    times[static_cast<unsigned>(phase_)].*sum += end - begin;
    if (log) spans.push_back({lane, name, begin, end, {}, false, Ticket::none});
  }

  void note_asked(std::uint16_t layer) {
    if (asked.empty() || new_section_) asked.emplace_back();
    new_section_ = false;
    AskedFor a{layer, {}};
    for (const View<const Task>& tasks : {plan_.resident, plan_.arriving}) {
      for (const Task& t : tasks) a.experts.push_back(t.what.id.expert);
    }
    asked.back().push_back(std::move(a));
  }

  /// One expert over its rows, from its slot. Returns what it took.
  Nanoseconds compute(const Task& task, const Matrix& input) {
    const Nanoseconds begin = now_ns();
    rows_in_.resize(task.rows, input.cols());
    for (std::uint32_t i = 0; i < task.rows; ++i) {
      rows_in_.row(i) = input.row(static_cast<Eigen::Index>(plan_.assignments[task.first + i] / top_k_));
    }
    kernel_.run(memory_.slot(task.slot), rows_in_, rows_out_);
    for (std::uint32_t i = 0; i < task.rows; ++i) {
      results_.row(static_cast<Eigen::Index>(plan_.assignments[task.first + i])) = rows_out_.row(i);
    }
    const Nanoseconds end = now_ns();
    if (log) spans.push_back({Lane::device, "expert", begin, end, task.what, true, Ticket::none});
    if constexpr (virtual_time) {
      link_->device(options_.virtual_expert_ns, "expert");
      return options_.virtual_expert_ns;
    }
    return end - begin;
  }

  const RunnerOptions options_;
  GateBank& gates_;
  ExpertKernel kernel_;
  SlotMemory memory_;
  std::unique_ptr<LinkT> link_;
  OffloadPipeline<Stack, LinkT> pipe_;
  std::uint32_t slots_, top_k_, layers_;
  Phase phase_ = Phase::prefill;
  bool new_section_ = true;
  Plan plan_;
  Matrix rows_in_, rows_out_;
  Matrix results_;  // [rows * k, hidden]: every assignment's output, weighed and summed at the end
};

template <class Stack>
std::unique_ptr<ExpertRunner> build(const ModelConfig& config, const ExpertStore& store, GateBank& gates,
                                    const RunnerOptions& o) {
  CoreConfig<Stack> c;
  c.model = model_shape(config, store.layout(), o.max_rows);
  c.router.renormalise = config.renormalise;
  if (stack_needs_everything(o.stack)) {
    c.allotment = everything(c.model);
  } else if constexpr (!part::caches<typename Stack::cache>()) {
    c.allotment = stream_only(c.model, o.budget_bytes);
  } else {
    c.allotment =
        o.pools == PoolChoice::one ? one_pool(c.model, o.budget_bytes) : pool_per_layer(c.model, o.budget_bytes);
  }
  if (o.virtual_clock) return std::make_unique<PipelineRunner<Stack, VirtualClock>>(c, store, gates, o);
  return std::make_unique<PipelineRunner<Stack, HostThread>>(c, store, gates, o);
}

struct StackEntry {
  const char* name;
  bool needs_everything;
  std::unique_ptr<ExpertRunner> (*build)(const ModelConfig&, const ExpertStore&, GateBank&, const RunnerOptions&);
};

constexpr StackEntry all_stacks[] = {
    {"resident", true, build<stacks::LruCache>},
    {"on-demand", false, build<stacks::OnDemand>},
    {"lru", false, build<stacks::LruCache>},
    {"cross-layer-lru", false, build<stacks::CrossLayerLru>},
};

const StackEntry& entry(const std::string& name) {
  for (const StackEntry& s : all_stacks) {
    if (name == s.name) return s;
  }
  throw InputError(unknown_name("stack", name, stack_names()));
}

}  // namespace

std::vector<std::string> stack_names() {
  std::vector<std::string> names;
  for (const StackEntry& s : all_stacks) names.emplace_back(s.name);
  return names;
}

bool stack_needs_everything(const std::string& name) {
  return entry(name).needs_everything;
}

ModelShape model_shape(const ModelConfig& config, const ExpertLayout& layout, std::uint32_t max_rows) {
  ModelShape m;
  m.layers = static_cast<std::uint16_t>(config.layers);
  m.experts = static_cast<std::uint16_t>(config.experts);
  m.top_k = static_cast<std::uint16_t>(config.top_k);
  m.max_rows = max_rows;
  m.expert_bytes = {ExpertBytes{0, 0, 0, 0, layout.bytes()}};
  return m;
}

std::unique_ptr<ExpertRunner> make_runner(const ModelConfig& config, const ExpertStore& store, GateBank& gates,
                                          const RunnerOptions& options) {
  return entry(options.stack).build(config, store, gates, options);
}

}  // namespace ferry::engine
