/// @file
/// Which layers an engine looks ahead to.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The one loop over the layers behind a plan, for every kind of pipeline: `Pipe` has `layer_ahead(source, distance)`
/// and `look_ahead(predicted)`.
template <class Pipe>
class LookAheadLoop {
 public:
  /// The look-aheads of the layer planned last from rows of one source: for the layers that follow, the nearest first,
  /// until the predictor's depth is reached or its limit has what it wants. Does nothing for a stack that does not read
  /// such rows in this phase. `scores_of(layer, distance)`: Scores of that layer, [rows, E]; not called for
  /// RowSource::none.
  template <class ScoresOf>
  void look_ahead(RowSource source, ScoresOf&& scores_of) {
    for (std::uint16_t distance = 1;; ++distance) {
      const std::uint16_t layer = self().layer_ahead(source, distance);
      if (layer == no_layer) return;
      self().look_ahead(source == RowSource::none ? Scores{layer, {}, {}} : scores_of(layer, distance));
    }
  }
  /// For a predictor that reads no rows in this phase; nothing for others.
  void look_ahead() {
    look_ahead(RowSource::none, [](std::uint16_t layer, std::uint16_t) { return Scores{layer, {}, {}}; });
  }
  /// For how many layers, from the next one on, `look_ahead` would now ask for rows of that source.
  [[nodiscard]] std::uint16_t rows_ahead(RowSource source) const noexcept {
    if (source == RowSource::none || self().layer_ahead(source, 1) == no_layer) return 0;
    std::uint16_t count = 1;
    while (self().layer_ahead(source, static_cast<std::uint16_t>(count + 1)) != no_layer) ++count;
    return count;
  }

 private:
  Pipe& self() noexcept { return static_cast<Pipe&>(*this); }
  const Pipe& self() const noexcept { return static_cast<const Pipe&>(*this); }
};

}  // namespace ferry::inline FERRY_ABI::detail
