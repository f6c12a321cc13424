/// @file
/// Expert activation paths: next-layer experts from counts of observed layer-to-layer transitions.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/best.hpp"

namespace ferry::inline FERRY_ABI {

/// Predicts the experts of the next layer that most often followed those which the rows have just chosen in this one.
///
/// Source: the EAP baseline of Fate (section 5.1: "predicted based on the token's expert choices in the previous block
/// and the corresponding statistical data"; the introduction names Lina and MoE-Infinity as such methods).
///  - `observe` counts, for each row, each pair of an expert chosen in layer l-1 and one chosen in layer l.
///  - `predict` for layer m, after layer m-1: a row's score of expert e is the sum of counts [f, e] over the experts f
///    that the row chose. The row's k best are named, if they were ever seen to follow.
/// Requests come by the sum of all rows' scores, which is also the confidence; `rows` are those that named the expert.
///
/// Reads no rows. Nothing is known of weights: importance and unimportance are 0.
/// Complexity: observe O(rows k^2); predict O(rows k E).
/// State: 4 (L-1) E^2 bytes (331 KB for Qwen1.5-MoE), 22 an expert, 2 a route, 4 a row and 2 for each of k.
///
/// Ambiguities resolved.
///  - Only the next layer of the same step is predicted. For layer 0, whose rows are other tokens, and for layers
///    further ahead nothing is.
///  - Several rows: the union of their k best.
///  - Counts are of the gate's own choices, so that substitutes, which depend on the cache, do not feed back. A count
///    stays at 2^32 - 1.
class ActivationPath {
 public:
  static constexpr RowSource prefill_rows = RowSource::none, decode_rows = RowSource::none;

  /// How long counts are kept.
  enum class Level : std::uint8_t {
    model,    ///< for good
    sequence  ///< until the first step after any sequence has ended: the sequences of a batch share them
  };
  Level level = Level::model;  ///< how long counts are kept

  void reserve(Carver& carve, const Shape& shape) {
    experts_ = shape.experts;
    top_k_ = shape.top_k;
    carve(counts_, std::size_t{shape.layers - 1U} * shape.experts * shape.experts);
    carve(latest_, std::size_t{shape.max_rows} * shape.top_k);
    carve(latest_row_, shape.max_rows);
    carve(row_score_, shape.experts);
    carve(score_, shape.experts);
    carve(votes_, shape.experts);
    carve(named_, shape.experts);
    carve(best_, shape.top_k);
  }

  FERRY_HD void begin_step(const Step& /*step*/) noexcept {
    latest_rows_ = 0;
    if (!forget_) return;
    for (std::uint32_t& n : counts_) n = 0;
    forget_ = false;
  }

  FERRY_HD void end_sequence(std::uint32_t /*sequence*/) noexcept { forget_ = level == Level::sequence; }

  FERRY_HD void observe(std::uint16_t layer, View<const Route> taken, View<const std::uint32_t> rows) noexcept {
    const std::uint32_t count = taken.size / top_k_;
    if (follows(layer)) {
      std::uint32_t before = 0;  // both layers' rows ascend
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t row = rows.size == 0 ? i : rows[i];
        while (before < latest_rows_ && latest_row_[before] < row) ++before;
        if (before == latest_rows_) break;
        if (latest_row_[before] != row) continue;
        for (const Route& r : taken.part(i * top_k_, top_k_))
          count_transitions(layer, chosen_by(before), gate_choice(r));
      }
    }
    latest_layer_ = layer;
    latest_rows_ = count;
    for (std::uint32_t i = 0; i < count; ++i) latest_row_[i] = rows.size == 0 ? i : rows[i];
    for (std::uint32_t i = 0; i < taken.size; ++i) latest_[i] = gate_choice(taken[i]);
  }

  FERRY_HD void predict(Phase /*phase*/, const Scores& scores, Out<Request>& out) noexcept {
    if (!follows(scores.layer)) return;
    for (std::uint64_t& n : score_) n = 0;
    for (std::uint32_t& n : votes_) n = 0;
    std::uint32_t named = 0;
    for (std::uint32_t row = 0; row < latest_rows_; ++row) {
      score_row(scores.layer, chosen_by(row));
      const std::uint32_t found = detail::most_of(row_score_.data(), experts_, top_k_, best_.data());
      for (std::uint32_t e = 0; e < experts_; ++e) score_[e] += row_score_[e];
      for (std::uint32_t i = 0; i < found; ++i) {
        if (votes_[best_[i]]++ == 0) named_[named++] = best_[i];
      }
    }
    if (latest_rows_ > 1) {  // one names them in order
      for (std::uint32_t e = 0; e < experts_; ++e) score_[e] = votes_[e] == 0 ? 0 : score_[e];
      detail::most_of(score_.data(), experts_, named, named_.data());
    }
    for (std::uint32_t i = 0; i < named; ++i) {
      Request* r = out.add();
      if (r == nullptr) return;
      r->want.id = {scores.layer, named_[i]};
      r->rows = votes_[named_[i]];
      r->confidence = static_cast<float>(score_[named_[i]]);
    }
  }

  [[nodiscard]] const char* check() const noexcept {
    if (latest_rows_ > latest_row_.size()) return "ActivationPath: more rows were observed than a step has";
    for (std::uint32_t row = 1; row < latest_rows_; ++row) {
      if (latest_row_[row - 1] >= latest_row_[row]) return "ActivationPath: the latest rows do not ascend";
    }
    for (std::uint32_t i = 0; i < latest_rows_ * top_k_; ++i) {
      if (latest_[i] >= experts_ && latest_[i] != no_expert) return "ActivationPath: a row chose what is no expert";
    }
    return nullptr;
  }

 private:
  /// Whether the layer before was the last one observed in this step.
  FERRY_HD bool follows(std::uint16_t layer) const noexcept { return latest_rows_ > 0 && layer == latest_layer_ + 1; }

  /// What a row of the layer observed last chose there.
  FERRY_HD View<const std::uint16_t> chosen_by(std::uint32_t row) const noexcept {
    return {latest_.data() + row * top_k_, top_k_};
  }

  FERRY_HD void count_transitions(std::uint16_t layer, View<const std::uint16_t> chosen, std::uint16_t to) noexcept {
    if (to == no_expert) return;
    for (const std::uint16_t from : chosen) {
      if (from == no_expert) continue;
      std::uint32_t& n = following(layer, from)[to];
      if (n != 0xffffffffU) ++n;
    }
  }

  /// How often each expert of `layer` followed `from`: [experts].
  FERRY_HD std::uint32_t* following(std::uint16_t layer, std::uint16_t from) noexcept {
    return counts_.data() + ((layer - std::size_t{1}) * experts_ + from) * experts_;
  }

  FERRY_HD void score_row(std::uint16_t layer, View<const std::uint16_t> chosen) noexcept {
    for (std::uint64_t& s : row_score_) s = 0;
    for (const std::uint16_t from : chosen) {
      if (from == no_expert) continue;
      const std::uint32_t* n = following(layer, from);
      for (std::uint32_t e = 0; e < experts_; ++e) row_score_[e] += n[e];
    }
  }

  Array<std::uint32_t> counts_;      ///< [layers - 1, experts, experts]: from, to
  Array<std::uint16_t> latest_;      ///< [rows, k], of the layer observed last
  Array<std::uint32_t> latest_row_;  ///< [rows] of it, which rows of the step
  Array<std::uint64_t> row_score_;   ///< [experts]
  Array<std::uint64_t> score_;       ///< [experts] over all rows
  Array<std::uint32_t> votes_;       ///< [experts] rows that named it
  Array<std::uint16_t> named_;       ///< [experts]
  Array<std::uint16_t> best_;        ///< [k]
  std::uint32_t latest_rows_ = 0;    ///< 0: nothing was observed in this step
  std::uint16_t latest_layer_ = 0, experts_ = 0, top_k_ = 0;
  bool forget_ = false;
};

static_assert(Predictor<ActivationPath>);

}  // namespace ferry::inline FERRY_ABI
