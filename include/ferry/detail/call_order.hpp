/// @file
/// Whether the calls of an engine fit together.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "ferry/error.hpp"
#include "ferry/residency.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Checks sizes, layers and order of a pipeline's calls, on the host. O(1) a call, but for routes, named rows and tasks,
/// which are looked at one by one. Each check throws UsageError, ahead of any change. What is inline is a few comparisons;
/// what they do not let pass is looked at again, and put into words, out of line.
class CallOrder {
 public:
  /// While it lives no other call may begin: not of another thread, nor from inside this one. Calls that meet in the same
  /// few instructions may both pass, which costs nothing and cannot refuse a right one.
  class Turn {
   public:
    FERRY_HOT Turn(CallOrder& calls, const char* call) : busy_(calls.busy_.on) {
      if (busy_.load(std::memory_order_relaxed)) [[unlikely]]
        refuse_turn(call);
      busy_.store(true, std::memory_order_relaxed);
    }
    FERRY_HOT ~Turn() { busy_.store(false, std::memory_order_relaxed); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    std::atomic<bool>& busy_;
  };

  explicit CallOrder(const ModelShape& shape)
      : shape_(shape), next_(shape.layers), layer_experts_(shape.layer_experts) {}

  /// Whether there is such an expert.
  [[nodiscard]] bool has(std::uint16_t layer, std::uint16_t expert) const noexcept {
    return expert < experts_of(layer);
  }

  void preload() const {
    if (rows_ != 0) [[unlikely]]
      refuse("preload", "came after begin_step, expected ahead of the first step");
  }

  /// True if a layer of the step before is unfinished.
  bool begin_step(const Step& step) {
    const std::uint32_t rows = step.sequence.size;
    if (rows == 0 || rows > shape_.max_rows) [[unlikely]] {
      refuse("begin_step", count(rows) + " rows, expected 1 to " + count(shape_.max_rows) + " (max_rows)");
    }
    if (step.phase > Phase::decode) [[unlikely]] {
      refuse("begin_step",
             "a phase of " + count(static_cast<std::uint32_t>(step.phase)) + ", expected prefill or decode");
    }
    rows_ = rows;
    step_scores_ = rows * shape_.experts;
    next_ = 0;
    const bool unfinished = open_ != no_layer;
    open_ = no_layer;
    return unfinished;
  }

  FERRY_HOT void plan(const Scores& s) {
    const bool all_rows = s.rows.size == 0 && s.select.size == step_scores_ && s.weight.size == step_scores_;
    if (s.layer < next_ || s.layer >= shape_.layers || !all_rows) [[unlikely]]
      check_plan(s);
    open(s.layer);
  }
  void plan(std::uint16_t layer, View<const Route> routes, View<const std::uint32_t> rows) {
    check_plan(layer, routes, rows);
    open(layer);
  }

  FERRY_HOT void look_ahead(const Scores& predicted) const {
    const std::uint32_t size = predicted.select.size;
    const bool whole = (size == 0 || size == step_scores_) && predicted.weight.size == size;
    if (open_ == no_layer || predicted.layer >= shape_.layers || !whole) [[unlikely]]
      check_look_ahead(predicted);
  }

  /// Tasks of the layer under way. Those that were done before may be named again.
  FERRY_HOT void done(View<const Task> tasks, const Residency& there) const {
    if (open_ == no_layer) [[unlikely]]
      refuse_done();
    for (const Task& t : tasks) {
      if (!is_planned(t, there)) [[unlikely]]
        refuse_task(t);
    }
  }
  FERRY_HOT void finish(std::uint16_t layer, const Times& times) {
    if (layer != open_ || layer == no_layer) [[unlikely]]
      refuse_finish(layer);
    if ((times.attention | times.gate | times.device | times.host) < 0) [[unlikely]]
      refuse_times(layer, times);
    next_ = layer + 1U;
    open_ = no_layer;
  }
  void abandon() noexcept {
    open_ = no_layer;
    next_ = shape_.layers;  // what is left of the step is not to be planned
  }

 private:
  /// Whether a call is under way. A pipeline that is moved begins with none.
  struct Busy {
    Busy() = default;
    Busy(const Busy& /*other*/) noexcept {}
    Busy& operator=(const Busy& /*other*/) noexcept { return *this; }
    std::atomic<bool> on{false};
  };

  /// False for a task of another layer, for a slot that does not exist or is of the other kind (pool or stream), and for one
  /// that another variant's task reads now. A task of the host's passes, and so does one whose slot nobody reads.
  FERRY_HOT bool is_planned(const Task& t, const Residency& there) const noexcept {
    if (t.what.id.layer != open_) return false;
    if (t.slot == no_slot) return true;
    if (t.slot >= there.slots() || there.is_stream(t.slot) != t.transient) return false;
    return t.transient || !there.is_leased(t.slot) || there.slot(t.slot).what == t.what;
  }

  /// Opens a layer: no other may be planned until it is finished.
  FERRY_HOT void open(std::uint16_t layer) noexcept {
    open_ = layer;
    next_ = shape_.layers;
  }

  [[gnu::noinline]] void check_plan(const Scores& s) const {
    const std::uint32_t rows = rows_of(s.layer, s.rows);
    if (s.select.size == rows * shape_.experts && s.weight.size == s.select.size) return;
    refuse("plan", s.layer, sizes(s) + ", expected both " + by_experts(rows));
  }
  [[gnu::noinline]] void check_plan(std::uint16_t layer, View<const Route> routes,
                                    View<const std::uint32_t> rows) const {
    const std::uint32_t expected = rows_of(layer, rows);
    if (routes.size != expected * shape_.top_k) {
      refuse(
          "plan", layer,
          count(routes.size) + " routes, expected " + count(expected) + " rows * " + count(shape_.top_k) + " (top_k)");
    }
    const std::uint32_t experts = experts_of(layer);
    for (const Route& r : routes) {
      const auto is_one = [&](std::uint16_t e) { return e < experts || e == no_expert; };
      if (is_one(r.expert) && is_one(r.instead_of)) continue;
      refuse("plan", layer,
             "a route " +
                 (is_one(r.expert) ? "instead of expert " + count(r.instead_of) : "to expert " + count(r.expert)) +
                 ", expected less than " + count(experts) + ", or no_expert");
    }
  }
  [[gnu::noinline]] void check_look_ahead(const Scores& predicted) const {
    if (open_ == no_layer) {
      refuse("look_ahead", predicted.layer, "no layer is under way, expected it behind a plan");
    }
    if (predicted.layer >= shape_.layers) refuse_layer("look_ahead", predicted.layer);
    const std::uint32_t size = predicted.select.size;
    if (size == predicted.weight.size && size % shape_.experts == 0 && size / shape_.experts <= shape_.max_rows) return;
    refuse("look_ahead", predicted.layer,
           sizes(predicted) + ", expected both rows * " + count(shape_.experts) + " (experts) of at most " +
               count(shape_.max_rows) + " rows");
  }

  /// How many rows the layer to be planned has.
  std::uint32_t rows_of(std::uint16_t layer, View<const std::uint32_t> rows) const {
    if (layer >= shape_.layers) refuse_layer("plan", layer);
    if (layer < next_) refuse_order(layer);
    if (rows.size == 0) return rows_;
    for (std::uint32_t i = 0; i < rows.size; ++i) {
      if (rows[i] < rows_ && (i == 0 || rows[i] > rows[i - 1])) continue;
      refuse("plan", layer,
             "row " + count(rows[i]) + " in place " + count(i) + ", expected rows of the step, ascending, below " +
                 count(rows_));
    }
    return rows.size;
  }

  static std::string count(std::uint32_t n) { return std::to_string(n); }
  static std::string sizes(const Scores& s) {
    return count(s.select.size) + " scores to select by and " + count(s.weight.size) + " weights";
  }
  [[nodiscard]] std::string by_experts(std::uint32_t rows) const {
    return count(rows) + " rows * " + count(shape_.experts) + " (experts) = " + count(rows * shape_.experts);
  }
  [[noreturn, gnu::cold]] static void refuse(const char* call, const std::string& what) {
    detail::fail<UsageError>(std::string(call) + ": " + what);
  }
  [[noreturn, gnu::cold]] static void refuse(const char* call, std::uint32_t layer, const std::string& what) {
    detail::fail<UsageError>(std::string(call) + ", layer " + count(layer) + ": " + what);
  }
  [[noreturn, gnu::cold]] void refuse_layer(const char* call, std::uint32_t layer) const {
    refuse(call, layer, "expected a layer below " + count(shape_.layers) + " (MoE layers, from 0)");
  }
  [[noreturn, gnu::cold, gnu::noinline]] static void refuse_done() {
    refuse("done", "no layer is under way, expected it between plan and finish");
  }
  [[noreturn, gnu::cold, gnu::noinline]] void refuse_task(const Task& t) const {
    refuse("done", open_,
           "a task of expert " + count(t.what.id.expert) + " of layer " + count(t.what.id.layer) +
               (t.slot == no_slot ? " on the host" : " in slot " + count(t.slot)) +
               ", expected those of the plan of the layer under way");
  }
  [[noreturn, gnu::cold, gnu::noinline]] static void refuse_times(std::uint16_t layer, const Times& t) {
    refuse("finish", layer,
           "times of " + std::to_string(t.attention) + ", " + std::to_string(t.gate) + ", " + std::to_string(t.device) +
               " and " + std::to_string(t.host) + " ns, expected none below 0");
  }
  [[noreturn, gnu::cold, gnu::noinline]] static void refuse_turn(const char* call) {
    refuse(call, "another call of this pipeline is under way, expected one at a time");
  }
  [[noreturn, gnu::cold, gnu::noinline]] void refuse_finish(std::uint16_t layer) const {
    refuse("finish", layer,
           open_ == no_layer ? "no layer is under way" : "the layer under way is " + count(std::uint32_t{open_}));
  }
  [[noreturn, gnu::cold]] void refuse_order(std::uint16_t layer) const {
    if (rows_ == 0) refuse("plan", layer, "no step has begun, expected begin_step first");
    if (open_ == layer) refuse("plan", layer, "was planned already, expected finish or abandon first");
    const std::string under_way = count(std::uint32_t{open_});
    if (open_ != no_layer) {
      refuse("plan", layer, "layer " + under_way + " is not finished, expected finish(" + under_way + ") first");
    }
    refuse("plan", layer,
           "this step is past it, expected " +
               (next_ < shape_.layers ? "a layer from " + count(next_) + " on, or begin_step" : "begin_step"));
  }

  [[nodiscard]] std::uint32_t experts_of(std::uint16_t layer) const noexcept {
    return layer_experts_.empty() ? shape_.experts : layer_experts_[layer];
  }

  Shape shape_;
  Busy busy_;
  std::uint32_t rows_ = 0, step_scores_ = 0;  ///< of the step; 0: none has begun
  std::uint32_t next_;                        ///< the first layer that may be planned now
  std::uint16_t open_ = no_layer;             ///< the layer that is planned and not finished
  std::vector<std::uint16_t> layer_experts_;  ///< [layers] where layers differ
};

}  // namespace ferry::inline FERRY_ABI::detail
