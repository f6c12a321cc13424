/// @file
/// Whether the calls of an engine fit together.
#pragma once
#include <string>

#include "ferry/concepts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Checks sizes, layers and order of a pipeline's calls, on the host. O(1) a call, but for routes and named rows, which
/// are looked at one by one. Each check throws UsageError, ahead of any change.
class CallOrder {
 public:
  explicit CallOrder(const Shape& shape) : shape_(shape), next_(shape.layers) {}

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
    rows_ = rows;
    next_ = 0;
    const bool unfinished = open_;
    open_ = false;
    return unfinished;
  }

  void plan(const Scores& scores) {
    const std::uint32_t rows = rows_of("plan", scores.layer, scores.rows);
    if (scores.select.size != rows * shape_.experts || scores.weight.size != scores.select.size) [[unlikely]] {
      refuse("plan", scores.layer, sizes(scores) + ", expected both " + by_experts(rows));
    }
    begin(scores.layer);
  }
  void plan(std::uint16_t layer, View<const Route> routes, View<const std::uint32_t> rows) {
    const std::uint32_t expected = rows_of("plan", layer, rows);
    if (routes.size != expected * shape_.top_k) [[unlikely]] {
      refuse(
          "plan", layer,
          count(routes.size) + " routes, expected " + count(expected) + " rows * " + count(shape_.top_k) + " (top_k)");
    }
    for (const Route& r : routes) {
      if (r.expert < shape_.experts || r.expert == no_expert) continue;
      refuse(
          "plan", layer,
          "a route to expert " + count(r.expert) + ", expected less than " + count(shape_.experts) + ", or no_expert");
    }
    begin(layer);
  }

  void look_ahead(const Scores& predicted) const {
    if (!open_) [[unlikely]]
      refuse("look_ahead", predicted.layer, "no layer is under way, expected it behind a plan");
    if (predicted.layer >= shape_.layers) [[unlikely]]
      refuse_layer("look_ahead", predicted.layer);
    const std::uint32_t size = predicted.select.size;
    if (size != predicted.weight.size || (size != rows_ * shape_.experts && !fits(size))) [[unlikely]] {
      refuse("look_ahead", predicted.layer,
             sizes(predicted) + ", expected both rows * " + count(shape_.experts) + " (experts) of at most " +
                 count(shape_.max_rows) + " rows");
    }
  }

  void done() const {
    if (!open_) [[unlikely]]
      refuse("done", "no layer is under way, expected it between plan and finish");
  }
  void finish(std::uint16_t layer) {
    if (!open_ || layer + 1U != next_) [[unlikely]] {
      refuse("finish", layer,
             open_ ? "the layer under way is " + count(next_ - 1U) : std::string("no layer is under way"));
    }
    open_ = false;
  }
  void abandon() noexcept {
    open_ = false;
    next_ = shape_.layers;  // what is left of the step is not to be planned
  }

 private:
  /// How many rows a layer has.
  std::uint32_t rows_of(const char* call, std::uint16_t layer, View<const std::uint32_t> rows) const {
    if (layer >= shape_.layers) [[unlikely]]
      refuse_layer(call, layer);
    if (open_ || layer < next_) [[unlikely]]
      refuse_order(call, layer);
    if (rows.size == 0) return rows_;
    for (std::uint32_t i = 0; i < rows.size; ++i) {
      if (rows[i] < rows_ && (i == 0 || rows[i] > rows[i - 1])) continue;
      refuse(call, layer,
             "row " + count(rows[i]) + " in place " + count(i) + ", expected rows of the step, ascending, below " +
                 count(rows_));
    }
    return rows.size;
  }
  void begin(std::uint16_t layer) noexcept {
    next_ = layer + 1U;
    open_ = true;
  }
  [[nodiscard]] bool fits(std::uint32_t size) const noexcept {
    return size % shape_.experts == 0 && size / shape_.experts <= shape_.max_rows;
  }

  // What is wrong is put into words behind the checks, where it costs them nothing.

  static std::string count(std::uint32_t n) { return std::to_string(n); }
  static std::string sizes(const Scores& s) {
    return count(s.select.size) + " scores to select by and " + count(s.weight.size) + " weights";
  }
  [[nodiscard]] std::string by_experts(std::uint32_t rows) const {
    return count(rows) + " rows * " + count(shape_.experts) + " (experts) = " + count(rows * shape_.experts);
  }
  [[noreturn, gnu::cold]] static void refuse(const char* call, const std::string& what) {
    throw UsageError(std::string(call) + ": " + what);
  }
  [[noreturn, gnu::cold]] static void refuse(const char* call, std::uint32_t layer, const std::string& what) {
    throw UsageError(std::string(call) + ", layer " + count(layer) + ": " + what);
  }
  [[noreturn, gnu::cold]] void refuse_layer(const char* call, std::uint32_t layer) const {
    refuse(call, layer, "expected a layer below " + count(shape_.layers) + " (MoE layers, from 0)");
  }
  [[noreturn, gnu::cold]] void refuse_order(const char* call, std::uint32_t layer) const {
    if (rows_ == 0) refuse(call, layer, "no step has begun, expected begin_step first");
    const std::string last = "layer " + count(next_ - 1U);
    if (open_ && layer + 1U == next_) refuse(call, layer, "was planned already, expected finish or abandon first");
    if (open_) refuse(call, layer, last + " is not finished, expected finish(" + count(next_ - 1U) + ") first");
    refuse(call, layer,
           "this step is past it, expected " +
               (next_ < shape_.layers ? "a layer from " + count(next_) + " on, or begin_step" : "begin_step"));
  }

  Shape shape_;
  std::uint32_t rows_ = 0;  ///< of the step; 0: none has begun
  std::uint32_t next_;      ///< the first layer of the step that may be planned
  bool open_ = false;       ///< the layer before it is planned and not finished
};

}  // namespace ferry::inline FERRY_ABI::detail
