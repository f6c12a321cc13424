/// @file
/// One layer's decision, as an engine makes it: what the benchmarks of whole stacks run.
#pragma once
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"
#include "profiles/shape.hpp"
#include "trace/synthetic.hpp"

namespace ferry::bench {

/// Carries nothing: whatever is submitted has landed by the next call.
struct InstantLink {
  void submit(const Copy& c) noexcept {
    (c.demand ? seen_.demand_landed : seen_.prefetch_landed) = c.ticket;
    if (!c.demand) seen_.prefetch_begun = c.ticket;
  }
  void drop(Ticket) noexcept {}
  [[nodiscard]] Seen seen() const noexcept { return seen_; }
  void fence(Fence) noexcept {}
  void wait(Ticket) {}

 private:
  Seen seen_;
};
static_assert(Link<InstantLink>);

/// Of one benchmark. The model has 32 layers.
struct LayerShape {
  std::uint16_t experts = 64, top_k = 6;
  std::uint32_t batch = 1;
  friend auto operator<=>(const LayerShape&, const LayerShape&) = default;
};

/// Gate scores of decode steps, `batch` sequences at a time: made up, with the statistics of real routing
/// (docs/synthetic.md). All that belongs to one layer of one step is adjacent, as an engine would just have made it.
class Routing {
 public:
  static constexpr std::uint16_t layers = 32, ahead = 3;
  static constexpr std::uint32_t steps = 64;

  /// Made once a shape.
  static const Routing& of(const LayerShape& shape) {
    static std::map<LayerShape, Routing> made;
    const auto found = made.find(shape);
    return found != made.end() ? found->second : made.emplace(shape, Routing(shape)).first->second;
  }

  [[nodiscard]] const ModelShape& model() const { return model_; }
  [[nodiscard]] View<const std::uint32_t> sequences() const {
    return {sequences_.data(), static_cast<std::uint32_t>(sequences_.size())};
  }
  [[nodiscard]] Scores scores(std::uint32_t step, std::uint16_t layer) const { return rows(step, layer, layer, 0); }
  /// Predicted from the gate input of `layer` for the layer that is `distance` (1 to `ahead`) after it.
  [[nodiscard]] Scores predicted(std::uint32_t step, std::uint16_t layer, std::uint16_t distance) const {
    return rows(step, layer, static_cast<std::uint16_t>(layer + distance), distance);
  }
  [[nodiscard]] Scores partial(std::uint32_t step, std::uint16_t layer) const {
    return rows(step, layer, static_cast<std::uint16_t>(layer + 1), ahead + 1U);
  }

  /// Prefetches the rows of the next layer into the caches. `kind`: 0 scores, 1 to `ahead` predicted, after these partial.
  void fetch_next(std::uint32_t step, std::uint16_t layer, std::uint32_t kind) const {
    const std::uint32_t next = (step * layers + layer + 1U) % (steps * layers);
    const auto size = static_cast<std::uint32_t>(sequences_.size() * model_.experts);
    const float* first = rows_.data() + (std::size_t{next} * kinds + kind) * size;
    for (std::uint32_t i = 0; i < size; i += 16) __builtin_prefetch(first + i);
  }

 private:
  static constexpr std::uint32_t kinds = 1 + ahead + 1;

  explicit Routing(const LayerShape& shape) : sequences_(shape.batch) {
    engine::ModelFacts facts = engine::read_shape("deepseek-moe-16b");
    facts.model.layers = layers;
    facts.model.experts = shape.experts;
    facts.model.top_k = shape.top_k;
    facts.model.max_rows = shape.batch;
    engine::SyntheticOptions wanted;
    wanted.sequences = shape.batch;
    wanted.prompt = 0;
    wanted.tokens = steps;
    wanted.ahead = ahead;
    const auto made = engine::synthesize(facts, wanted);
    const Trace& t = made->trace;
    model_ = facts.model;
    for (std::uint32_t s = 0; s < shape.batch; ++s) sequences_[s] = s;
    for (std::uint32_t step = 0; step < steps; ++step) {
      for (std::uint16_t l = 0; l < layers; ++l) {
        for (std::uint32_t kind = 0; kind < kinds; ++kind) {
          for (std::uint32_t s = 0; s < shape.batch; ++s) {
            const std::uint32_t token = t.sequence_start[s] + step;
            const float* row = kind == 0       ? t.scores_of(token, l)
                               : kind <= ahead ? t.predicted_of(token, l, kind)
                                               : t.partial_of(token, l);
            rows_.insert(rows_.end(), row, row + shape.experts);
          }
        }
      }
    }
  }

  [[nodiscard]] Scores rows(std::uint32_t step, std::uint16_t from, std::uint16_t about, std::uint32_t kind) const {
    const auto size = static_cast<std::uint32_t>(sequences_.size() * model_.experts);
    const View<const float> v{rows_.data() + ((std::size_t{step} * layers + from) * kinds + kind) * size, size};
    return {about, v, v};
  }

  ModelShape model_;
  std::vector<std::uint32_t> sequences_;
  std::vector<float> rows_;  ///< [steps, layers, kinds, batch, experts]
};

/// Times that leave every policy something to decide: a layer hides six copies, the host is half as fast as the link.
inline constexpr Nanoseconds copy_cost = 1000;
inline constexpr Times layer_times{2500, 500, 500, 2000};

/// How a decision calls `plan`: directly, in a function of its own (for a tool that counts its instructions), or timed.
enum class PlanCall { plain, apart, timed };

/// A stack in its warm state, and the next layer that it decides.
template <class Stack>
class LayerDecision {
 public:
  using Pipe = OffloadPipeline<Stack, InstantLink>;

  LayerDecision(const CoreConfig<Stack>& config, const Routing& routing, bool preload)
      : routing_(routing), pipe_(config, link_) {
    if (preload) pipe_.preload();
    for (std::uint32_t i = 0; i < Routing::steps * Routing::layers; ++i) next();
  }

  /// plan, look_ahead, done, finish.
  template <PlanCall call = PlanCall::plain>
  void next() {
    // In an engine the gate has just written the scores. Here they come from memory, so the next layer's are prefetched.
    routing_.fetch_next(step_, layer_, 0);
    if constexpr (rows == RowSource::gate_input) {
      for (std::uint32_t d = 1; d <= pipe_.look_ahead_depth(); ++d) routing_.fetch_next(step_, layer_, d);
    }
    if constexpr (rows == RowSource::partial_hidden) routing_.fetch_next(step_, layer_, Routing::ahead + 1U);
    if (layer_ == 0) pipe_.begin_step({Phase::decode, routing_.sequences()});
    Plan plan;
    if constexpr (call == PlanCall::apart) {
      plan = counted_plan(routing_.scores(step_, layer_));
    } else if constexpr (call == PlanCall::timed) {
      const auto begin = std::chrono::steady_clock::now();
      plan = pipe_.plan(routing_.scores(step_, layer_));
      plan_times_.push_back(std::chrono::steady_clock::now() - begin);
    } else {
      plan = pipe_.plan(routing_.scores(step_, layer_));
    }
    pipe_.look_ahead();
    pipe_.look_ahead(RowSource::gate_input, [&](std::uint16_t /*layer*/, std::uint16_t distance) {
      return routing_.predicted(step_, layer_, distance);
    });
    pipe_.done(plan.resident);
    pipe_.look_ahead(RowSource::partial_hidden, [&](std::uint16_t /*layer*/, std::uint16_t /*distance*/) {
      return routing_.partial(step_, layer_);
    });
    for (const Task& t : plan.arriving) {
      pipe_.wait(t);
      pipe_.done(t);
    }
    pipe_.finish(layer_, layer_times);
    if (++layer_ < Routing::layers) return;
    layer_ = 0;
    if (++step_ < Routing::steps) return;
    step_ = 0;
    for (const std::uint32_t s : routing_.sequences()) pipe_.end_sequence(s);
  }

  [[nodiscard]] const Counters& counters() const { return pipe_.counters(); }

  /// The median time of `plan` alone over some calls, in nanoseconds, less what reading the clock takes.
  [[nodiscard]] double plan_ns() {
    constexpr std::uint32_t times = 2048;
    std::vector<Ticks> nothing;
    for (std::uint32_t i = 0; i < times; ++i) {
      next<PlanCall::timed>();
      const auto begin = std::chrono::steady_clock::now();
      nothing.push_back(std::chrono::steady_clock::now() - begin);
    }
    const double ns = median(plan_times_) - median(nothing);
    plan_times_.clear();
    return ns;
  }

 private:
  using Ticks = std::chrono::steady_clock::duration;

  static double median(std::vector<Ticks>& times) {
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return std::chrono::duration<double, std::nano>(times[times.size() / 2]).count();
  }

  [[gnu::noinline]] Plan counted_plan(const Scores& scores) { return pipe_.plan(scores); }

  static constexpr RowSource rows = Pipe::look_ahead_rows(Phase::decode);

  const Routing& routing_;
  InstantLink link_;
  Pipe pipe_;
  std::uint32_t step_ = 0;
  std::uint16_t layer_ = 0;
  std::vector<Ticks> plan_times_;
};

}  // namespace ferry::bench
