/// @file
/// A predictor that knows the future: for bounds and tests.
#pragma once
#include <string>

#include "ferry/concepts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Predicts exactly the experts that the layer will ask for, from a list recorded before. No engine can have it: it
/// shows what the other policies could reach with perfect prediction.
///
/// Steps are counted by `begin_step`, abandoned ones too. A layer after the one observed last is taken as this step's, any
/// other as the next step's. Beyond the end of the list nothing is predicted.
///
/// Source: none; it is to predictors what Belady's MIN is to caches.
/// Reads no rows. Confidence 1, rows 1; importance and unimportance are 0.
/// Complexity: O(experts named). State: 4 bytes an expert use and 4 a layer of a step, copied in `reserve`.
class Oracle {
 public:
  static constexpr RowSource prefill_rows = RowSource::none, decode_rows = RowSource::none;

  /// The future: experts in order of use, none twice in a layer of a step. Host memory, read by `reserve` only.
  View<const ExpertId> asked;
  /// [steps * layers + 1] where in `asked` each layer of each step begins, and the end. Empty: nothing is known.
  View<const std::uint32_t> starts;
  /// How many layers ahead, up to all.
  std::uint32_t depth = 1;

  void reserve(Carver& carve, const Shape& shape) {
    validate(shape);
    layers_ = shape.layers;
    next_layer_ = shape.layers;
    carve(asked_, asked.size);
    carve(starts_, starts.size);
    if (carve.measuring()) return;
    for (std::uint32_t i = 0; i < asked.size; ++i) asked_[i] = asked[i];
    for (std::uint32_t i = 0; i < starts.size; ++i) starts_[i] = starts[i];
    asked = {};  // the block keeps no pointers
    starts = {};
  }

  FERRY_HD void begin_step(const Step& /*step*/) noexcept {
    ++steps_;
    next_layer_ = 0;
  }

  FERRY_HD void observe(std::uint16_t layer, View<const Route> /*taken*/, View<const std::uint32_t> /*rows*/) noexcept {
    next_layer_ = layer + 1U;
  }

  FERRY_HD void predict(Phase /*phase*/, const Scores& scores, Out<Request>& out) noexcept {
    const std::uint64_t step = scores.layer >= next_layer_ ? steps_ - 1 : steps_;
    const std::uint64_t at = step * layers_ + scores.layer;
    if (at + 1 >= starts_.size()) return;
    for (std::uint32_t i = starts_[at]; i < starts_[at + 1]; ++i) {
      Request* r = out.add();
      if (r == nullptr) return;
      r->want.id = asked_[i];
      r->rows = 1;
      r->confidence = 1.0F;
    }
  }

  [[nodiscard]] const char* check() const noexcept {
    return next_layer_ <= layers_ ? nullptr : "Oracle: the layer observed last is not one of the model";
  }

 private:
  void validate(const Shape& shape) const {
    auto refuse = [](const std::string& what) { detail::fail<ConfigError>("Oracle: " + what); };
    if (depth < 1 || depth > shape.layers) {
      refuse("depth is " + std::to_string(depth) + ", it must be 1 to the " + std::to_string(shape.layers) +
             " layers of the model");
    }
    if (starts.size == 0 && asked.size == 0) return;
    if (starts.size % shape.layers != 1 % shape.layers || starts.size == 0) {
      refuse("there are " + std::to_string(starts.size) + " starts, it must be one for each of the " +
             std::to_string(shape.layers) + " layers of each step, and one more");
    }
    if (starts[0] != 0 || starts[starts.size - 1] != asked.size) {
      refuse("starts run from " + std::to_string(starts[0]) + " to " + std::to_string(starts[starts.size - 1]) +
             ", they must run from 0 to the " + std::to_string(asked.size) + " experts of the list");
    }
    for (std::uint32_t s = 0; s + 1 < starts.size; ++s) {
      const std::string where =
          "layer " + std::to_string(s % shape.layers) + " of step " + std::to_string(s / shape.layers);
      if (starts[s] > starts[s + 1] || starts[s + 1] > asked.size) {
        refuse("starts go from " + std::to_string(starts[s]) + " to " + std::to_string(starts[s + 1]) + " in " + where +
               ", they must ascend");
      }
      for (std::uint32_t i = starts[s]; i < starts[s + 1]; ++i) {
        if (asked[i].layer != s % shape.layers || asked[i].expert >= shape.experts) {
          refuse("expert " + std::to_string(asked[i].expert) + " of layer " + std::to_string(asked[i].layer) +
                 " is listed in " + where + ", each layer must list its own, below " + std::to_string(shape.experts));
        }
        for (std::uint32_t j = starts[s]; j < i; ++j) {
          if (asked[j] == asked[i]) {
            refuse("expert " + std::to_string(asked[i].expert) + " is listed twice in " + where + ", list it once");
          }
        }
      }
    }
  }

  Array<ExpertId> asked_;
  Array<std::uint32_t> starts_;
  std::uint64_t steps_ = 0;       ///< begun so far
  std::uint32_t next_layer_ = 0;  ///< behind the one observed last; before the first step: `layers`
  std::uint32_t layers_ = 0;
};

static_assert(Predictor<Oracle>);

}  // namespace ferry::inline FERRY_ABI
