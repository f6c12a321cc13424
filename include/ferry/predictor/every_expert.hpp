/// @file
/// Layer streaming: all experts of the next layer.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Predicts every expert of the next layer, in index order: the next layer crosses while this one is computed.
///
/// Source: what DeepSpeed-Inference and Transformers do, as HOBBIT (section 5.2) and Importance-driven (section 6)
/// measure them: layers are loaded one after another, as in a dense model.
///
/// Reads no rows. All are equally sure: confidence 1, one row each. Nothing is known of weights: importance and
/// unimportance are 0, so that a selector shrinks or skips none.
/// Complexity: O(E). State: none.
class EveryExpert {
 public:
  static constexpr RowSource prefill_rows = RowSource::none, decode_rows = RowSource::none;

  void reserve(Carver& /*carve*/, const Shape& shape) { experts_ = shape.experts; }

  FERRY_HD static void observe(std::uint16_t /*layer*/, View<const Route> /*taken*/,
                               View<const std::uint32_t> /*rows*/) noexcept {}

  FERRY_HD void predict(Phase /*phase*/, const Scores& scores, Out<Request>& out) const noexcept {
    for (std::uint16_t e = 0; e < scores.experts_or(experts_); ++e) {
      Request* r = out.add();
      if (r == nullptr) return;
      r->want.id = {scores.layer, e};
      r->rows = 1;
      r->confidence = 1.0F;
    }
  }

 private:
  std::uint16_t experts_ = 0;
};

static_assert(Predictor<EveryExpert>);

}  // namespace ferry::inline FERRY_ABI
