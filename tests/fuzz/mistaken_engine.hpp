/// @file
/// An engine that makes every possible mistake, as the input decides, and knows which of its calls have to be refused.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "ferry/pipeline.hpp"
#include "fuzz/any_legal_link.hpp"
#include "support/policies.hpp"
#include "support/random_load.hpp"

namespace ferry::fuzz {

/// Calls one pipeline under an observer that shares no code with it. Right calls are accepted; wrong ones throw UsageError
/// and leave the core as it was, to the last bit; whatever was called, the invariants hold.
template <class S>
class MistakenEngine {
 public:
  MistakenEngine(const CoreConfig<S>& config, Choices& choices)
      : model_(config.model),
        config_(config),
        choices_(choices),
        link_(config.allotment.slots(), choices),
        pipe_(config, link_),
        checker_(config.model, config.allotment, config.transient_prefill_rows) {}

  void run() {
    for (std::uint32_t calls = 0; choices_.left() && calls < 200; ++calls) {
      call();
      take();
      check();
    }
  }

 private:
  using Pipe = OffloadPipeline<S, AnyLegalLink>;
  static constexpr bool takes_routes = !Pipe::traits().router_needs_scores && !Pipe::traits().cache_needs_scores;

  void call() {
    switch (choices_.below(20)) {
      case 0:
      case 1:
      case 2:
        return whole_layer();
      case 3:
      case 4:
        return begin_step(false);
      case 5:
        return begin_step(true);
      case 6:
        return plan_scores(next_layer());
      case 7:
        return plan_scores(any_layer());
      case 8:
        return plan_routes(choices_.rarely(64) ? any_layer() : next_layer());
      case 9:
        return predicted_loop();
      case 10:
        return look_ahead();
      case 11:
        return run_resident();
      case 12:
      case 13:
        return run_arriving();
      case 14:
        return done_with_any();
      case 15:
        return finish(choices_.rarely(64) ? any_layer() : open_);
      case 16:
        return abandon();
      case 17:
        return wait_for_any();
      case 18:
        return ask();
      default:
        return mishap();
    }
  }

  // The engine's calls, and what they must lead to

  /// Checks that a right call succeeds, and that a wrong one is refused and changes nothing.
  template <class Call>
  bool expect(bool right, const char* name, const Call& call) {
    const auto* core = reinterpret_cast<const std::byte*>(&pipe_.core());
    if (!right) before_.assign(core, core + core_bytes_);
    try {
      call();
    } catch (const UsageError& e) {
      if (right) throw std::logic_error(std::string(name) + " was right and is refused: " + e.what());
      if (std::memcmp(core, before_.data(), core_bytes_) != 0) {
        throw std::logic_error(std::string(name) + " was refused and has changed something");
      }
      return false;
    }
    if (!right) throw std::logic_error(std::string(name) + " was wrong and is accepted");
    return true;
  }

  void begin_step(bool wrong) {
    static const std::vector<std::uint32_t> numbers{0, 1, 2, 3, 0xffffffffU};
    std::uint32_t rows = choices_.between(1, model_.max_rows);
    Phase phase = choices_.rarely(80) ? Phase::prefill : Phase::decode;
    if (wrong) {
      if (choices_.rarely(128)) {
        rows = choices_.rarely(128) ? model_.max_rows + 1 : 0;
      } else {
        phase = static_cast<Phase>(choices_.between(2, 255));
      }
    }
    std::vector<std::uint32_t> sequences(rows);
    const std::uint32_t first = choices_.of(numbers);
    for (std::uint32_t i = 0; i < rows; ++i) {
      sequences[i] = phase == Phase::prefill ? first : choices_.rarely(32) ? choices_.of(numbers) : first + i;
    }
    const Fence fence = pipe_.core().next_fence();
    const bool unfinished = open_ != no_layer;
    if (!expect(!wrong, "begin_step", [&] { pipe_.begin_step({phase, sequences}); })) return;
    if (unfinished) {
      ++unfinished_;
      finished(fence);
    }
    rows_ = rows;
    next_ = 0;
    checker_.begin_step(phase, rows);
  }

  /// Scores as gates give them, or broken ones.
  std::vector<float> draw_scores(std::size_t n) {
    constexpr float infinite = std::numeric_limits<float>::infinity(), none = std::numeric_limits<float>::quiet_NaN();
    static const std::vector<float> broken{none, infinite, -infinite, -1, 0, 3e38F, 1e-45F, 1};
    std::vector<float> scores(n);
    const bool each = choices_.rarely(64), some_broken = choices_.rarely(48);
    std::uint32_t state = choices_.byte() * 2654435761U + 1;
    for (float& s : scores) {
      state = state * 1664525U + 1013904223U;
      const std::uint32_t value = each ? choices_.byte() : state >> 24U;
      s = some_broken && value % 4 == 0 ? broken[value / 4 % broken.size()] : static_cast<float>(value) / 256.0F;
    }
    return scores;
  }
  /// The rows of the step that a layer has, or rows that it cannot have; empty: all.
  std::vector<std::uint32_t> draw_rows(bool& right) {
    std::vector<std::uint32_t> rows;
    if (!choices_.rarely(48)) return rows;
    for (std::uint32_t r = 0; r < rows_; ++r) {
      if (choices_.rarely(128)) rows.push_back(r);
    }
    if (!rows.empty() && choices_.rarely(64)) {
      right = false;
      rows.push_back(choices_.rarely(128) ? rows.back() : rows_ + choices_.byte());
    }
    return rows;
  }
  [[nodiscard]] bool may_plan(std::uint32_t layer) const {
    return layer < model_.layers && open_ == no_layer && layer >= next_;
  }

  void plan_scores(std::uint16_t layer) {
    bool right = may_plan(layer);
    const std::vector<std::uint32_t> rows = draw_rows(right);
    std::size_t n = (rows.empty() ? rows_ : rows.size()) * model_.experts;
    const std::vector<float> select = draw_scores(n), other = choices_.rarely(64) ? draw_scores(n) : select;
    Scores scores{layer, select, other, rows};
    if (n > 0 && choices_.rarely(16)) {
      right = false;
      (choices_.rarely(128) ? scores.select : scores.weight).size -= 1;
    }
    Plan plan;
    if (expect(right, "plan", [&] { plan = pipe_.plan(scores); })) planned(layer, plan);
  }

  void plan_routes(std::uint16_t layer) {
    if constexpr (takes_routes) {
      bool right = may_plan(layer);
      const std::vector<std::uint32_t> rows = draw_rows(right);
      const std::size_t n = (rows.empty() ? rows_ : rows.size()) * model_.top_k;
      std::vector<Route> routes(n);
      for (std::size_t i = 0; i < n; ++i) {
        if (layer >= model_.layers || i % model_.top_k >= model_.top_k_of(layer) || choices_.rarely(24)) continue;
        routes[i].expert = static_cast<std::uint16_t>(choices_.below(model_.experts_of(layer)));
        if (choices_.rarely(16))
          routes[i].instead_of = static_cast<std::uint16_t>(choices_.below(model_.experts_of(layer)));
      }
      const std::vector<float> weights = draw_scores(n);
      for (std::size_t i = 0; i < n; ++i) routes[i].weight = weights[i];
      if (n > 0 && choices_.rarely(24)) {
        right = false;
        const std::uint32_t beyond = layer < model_.layers ? model_.experts_of(layer) : 0;
        Route& r = routes[choices_.below(static_cast<std::uint32_t>(n))];
        if (choices_.rarely(80)) {
          routes.pop_back();
        } else {
          (choices_.rarely(128) ? r.expert : r.instead_of) =
              static_cast<std::uint16_t>(beyond + choices_.below(no_expert - beyond));
        }
      }
      Plan plan;
      if (expect(right, "plan", [&] { plan = pipe_.plan(layer, routes, rows); })) planned(layer, plan);
    }
  }

  void planned(std::uint16_t layer, const Plan& plan) {
    open_ = layer;
    next_ = layer + 1U;
    stale_.insert(stale_.end(), tasks_.begin(), tasks_.end());
    if (stale_.size() > 40) stale_.erase(stale_.begin(), stale_.end() - 40);
    tasks_.clear();
    resident_.assign(plan.resident.begin(), plan.resident.end());
    arriving_.assign(plan.arriving.begin(), plan.arriving.end());
    for (const View<const Task>& part : {plan.resident, plan.arriving, plan.host}) {
      tasks_.insert(tasks_.end(), part.begin(), part.end());
    }
    done_.clear();
    next_arriving_ = 0;
    checker_.plan(layer, plan, commands());
  }

  void predicted_loop() {
    if (open_ == no_layer) return;
    pipe_.look_ahead();
    checker_.look_ahead(commands());
    take();
    std::vector<float> predicted;
    for (const RowSource source : {RowSource::gate_input, RowSource::partial_hidden}) {
      for (std::uint16_t distance = 1; distance <= pipe_.look_ahead_depth(); ++distance) {
        const std::uint16_t layer = pipe_.layer_ahead(source, distance);
        if (layer == no_layer) break;
        predicted = draw_scores(std::size_t{rows_} * model_.experts);
        pipe_.look_ahead(test::scores(layer, predicted));
        checker_.look_ahead(commands());
        take();
      }
    }
  }
  void look_ahead() {
    const std::uint16_t layer = any_layer();
    const std::uint32_t rows = choices_.below(model_.max_rows + 2);
    bool right = open_ != no_layer && layer < model_.layers && rows <= model_.max_rows;
    const std::vector<float> predicted = draw_scores(std::size_t{rows} * model_.experts);
    Scores scores = test::scores(layer, predicted);
    if (rows > 0 && choices_.rarely(24)) {
      right = false;
      scores.weight.size -= 1;
    }
    if (expect(right, "look_ahead", [&] { pipe_.look_ahead(scores); })) checker_.look_ahead(commands());
  }

  /// False if the link says that the task's copy can never land.
  bool waits(const Task& t) {
    try {
      pipe_.wait(t);
    } catch (const LinkError&) {
      return false;
    }
    return true;
  }
  void run_resident() {
    if (open_ == no_layer) return;
    for (const Task& t : resident_) {
      if (!is_done(t)) link_.read(t);
    }
    done(resident_);
  }
  void run_arriving() {
    if (open_ == no_layer || next_arriving_ == arriving_.size()) return;
    const Task t = arriving_[next_arriving_++];
    if (!is_done(t) && waits(t)) link_.read(t);
    if (!choices_.rarely(16)) done({t});
  }

  /// Calls `done` for any tasks in any order: of this plan, of earlier ones, or made up.
  void done_with_any() {
    std::vector<Task> some;
    for (std::uint32_t n = choices_.below(4); n > 0; --n) {
      const std::vector<Task>& from = choices_.rarely(128) && !stale_.empty() ? stale_ : tasks_;
      if (from.empty()) break;
      Task t = choices_.of(from);
      if (choices_.rarely(32)) t.slot = choices_.rarely(128) ? choices_.byte() : 0xfffffffeU - choices_.byte();
      if (choices_.rarely(24)) t.what.id.layer = any_layer();
      if (choices_.rarely(16)) t.transient = !t.transient;
      if (choices_.rarely(16)) t.ready = Ticket{std::uint64_t{1} << 50U | choices_.byte()};
      if (t.freed_by != no_task) {  // whose copy may begin in this very call, if it names the one before it, too
        some = {t};
        break;
      }
      some.push_back(t);
    }
    done(some);
  }

  /// Ends tasks that the plan has and that are not done, identified by slot, expert and, in a stream slot, copy.
  void done(const std::vector<Task>& tasks) {
    std::vector<Task> ended;
    for (const Task& t : tasks) {
      for (const Task& own : tasks_) {
        if (own.slot == no_slot || own.slot != t.slot || own.what != t.what || is_done(own)) continue;
        if (own.transient != t.transient || (own.transient && own.ready != t.ready)) continue;
        if (own.transient && !link_.is_submitted(own.ready)) continue;  // its slot still belongs to another task
        done_.push_back(own);
        ended.push_back(own);
      }
    }
    const Fence fence = pipe_.core().next_fence();
    const bool unplanned =
        open_ == no_layer || std::any_of(tasks.begin(), tasks.end(), [&](const Task& t) {
          return t.what.id.layer != open_ || (t.slot != no_slot && t.slot >= config_.allotment.slots());
        });
    const std::vector<std::uint8_t> leased = leases();
    const auto* core = reinterpret_cast<const std::byte*>(&pipe_.core());
    const bool right = ended.size() == tasks.size() && !unplanned;
    if (!right) before_.assign(core, core + core_bytes_);
    try {
      pipe_.done(tasks);
    } catch (const UsageError&) {  // one of the tasks has no place in this layer
      if (right) throw std::logic_error("done was right and is refused");
      if (std::memcmp(core, before_.data(), core_bytes_) != 0) {
        throw std::logic_error("a refused done has changed something");
      }
      done_.resize(done_.size() - ended.size());
      return;
    }
    if (unplanned) throw std::logic_error("done with a task of another layer is accepted");
    std::vector<std::uint8_t> expected = leased;
    for (const Task& t : ended) expected[t.slot] = 0;
    for (const Copy& c : link_.submitted) expected[c.slot] = c.demand ? 1 : expected[c.slot];
    if (expected != leases()) throw test::Violation(2, "done ended a lease that is not of its tasks");
    checker_.done(ended, fence, commands());
  }
  [[nodiscard]] bool is_done(const Task& t) const {
    return std::any_of(done_.begin(), done_.end(),
                       [&](const Task& d) { return d.slot == t.slot && d.what == t.what && d.ready == t.ready; });
  }
  [[nodiscard]] std::vector<std::uint8_t> leases() const {
    std::vector<std::uint8_t> leased(config_.allotment.slots());
    for (std::uint32_t s = 0; s < leased.size(); ++s) leased[s] = pipe_.core().residency().is_leased(s) ? 1 : 0;
    return leased;
  }

  void finish(std::uint16_t layer) {
    static const std::vector<Nanoseconds> times{0, 1, 70, 5000, detail::longest / 2, detail::longest};
    Times took{choices_.of(times), choices_.of(times), choices_.of(times), choices_.of(times)};
    const bool negative = choices_.rarely(16);
    if (negative) (choices_.rarely(128) ? took.device : took.attention) = -1 - choices_.of(times);
    const Fence fence = pipe_.core().next_fence();
    const bool right = layer == open_ && layer != no_layer && !negative;
    if (expect(right, "finish", [&] { pipe_.finish(layer, took); })) finished(fence);
  }
  void finished(Fence fence) {
    open_ = no_layer;
    checker_.finish(fence, commands());
  }
  void abandon() {
    const Fence fence = pipe_.core().next_fence();
    pipe_.abandon();
    next_ = model_.layers;
    finished(fence);
  }

  void wait_for_any() {
    Task t;
    if (!tasks_.empty()) t = choices_.of(choices_.rarely(128) && !stale_.empty() ? stale_ : tasks_);
    if (choices_.rarely(64)) t.ready = Ticket{std::uint64_t{choices_.byte()} << choices_.below(48)};
    waits(t);
  }
  /// Asks questions that change nothing, including ones without an answer.
  void ask() {
    static const std::vector<std::uint16_t> some{0, 1, 2, 3, 5, 100, no_layer};
    const std::uint16_t distance = choices_.of(some), layer = choices_.of(some);
    static_cast<void>(pipe_.prediction_accuracy(distance, layer));
    const std::uint16_t ahead = pipe_.layer_ahead(static_cast<RowSource>(choices_.below(3)), distance);
    if (ahead != no_layer && ahead >= model_.layers) throw std::logic_error("a look-ahead for no layer is of use");
  }
  void mishap() {
    switch (choices_.below(6)) {
      case 0:
        return pipe_.end_sequence(choices_.below(6));
      case 1:
        if (expect(rows_ == 0, "preload", [&] { pipe_.preload(); })) checker_.preload(link_.submitted);
        return;
      case 2:
        return link_.fail_once();
      case 3:
        return choices_.rarely(16) ? link_.fail_for_good() : link_.fail_once();
      default:
        static_cast<void>(link_.seen());  // lets time go by
    }
  }

  /// Runs a layer without mistakes, and begins a step if there is none.
  void whole_layer() {
    if (open_ != no_layer) finish(open_);
    take();
    if (rows_ == 0 || next_ >= model_.layers) begin_step(false);
    take();
    plan_scores(static_cast<std::uint16_t>(next_));
    take();
    predicted_loop();
    run_resident();
    take();
    while (open_ != no_layer && next_arriving_ < arriving_.size()) {
      run_arriving();
      take();
    }
    finish(open_);
  }

  std::uint16_t next_layer() { return static_cast<std::uint16_t>(next_); }
  std::uint16_t any_layer() {
    const std::uint32_t l = choices_.below(model_.layers + 3U);
    return l == model_.layers + 2U ? no_layer : static_cast<std::uint16_t>(l);
  }

  // What must hold after every call

  Commands commands() const { return {link_.dropped, link_.submitted}; }
  void take() {
    link_.submitted.clear();
    link_.dropped.clear();
  }
  void check() {
    link_.check();
    const Counters& c = pipe_.counters();
    test::check_counts(c, model_);
    if (c.unfinished_steps != unfinished_) throw std::logic_error("unfinished steps are not counted");
    const Residency& there = pipe_.core().residency();
    for (std::uint32_t s = 0; s < there.cache_slots(); ++s) {
      if (there.slot(s).state == State::resident && link_.content(s) != there.slot(s).what) {
        throw test::Violation(3, "what counts as resident is not there");
      }
      if (open_ == no_layer && there.is_leased(s)) throw test::Violation(2, "a lease outlives its layer");
    }
    if (open_ != no_layer) return;  // the remaining checks take long
    for (std::uint16_t pool = 0; pool < config_.allotment.pools.size(); ++pool) {
      if (const std::string what = test::broken(pipe_.core().cache(pool)); !what.empty()) throw std::logic_error(what);
    }
  }

  const ModelShape model_;
  const CoreConfig<S> config_;
  Choices& choices_;
  AnyLegalLink link_;
  Pipe pipe_;
  test::InvariantChecker checker_;
  const std::size_t core_bytes_ = Core<S>::storage_bytes(config_);
  std::vector<std::byte> before_;
  std::uint32_t rows_ = 0, next_ = 0xffffU;
  std::uint16_t open_ = no_layer;
  std::vector<Task> tasks_, resident_, arriving_, done_, stale_;  ///< of the plan; of those, done; of earlier plans
  std::size_t next_arriving_ = 0;
  std::uint64_t unfinished_ = 0;
};

}  // namespace ferry::fuzz
