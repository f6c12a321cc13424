/// @file
/// How soon each expert is used again: learned while it runs.
#pragma once
#include "ferry/detail/choice_regression.hpp"
#include "ferry/detail/token_history.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// For each expert of a layer v = 1 - prod(1 - V) over the sequences, where V = sum over i >= 1 of 2^-i u(i), and u(i) is 1 if
/// the sequence's token i steps ahead uses it. Learned as V = (u(1) + V of the next token) / 2 (temporal differences), by a
/// logistic regression an expert (ChoiceRegression) whose inputs are the experts that the token and the one before it chose in
/// this layer. For an expert that they chose themselves, these weights are 1 and 1/2 at first: before anything is learned, what
/// was used last comes first.
///
/// Only the last 64 rows of a step teach. What is learned outlives sequences; what tokens chose is forgotten once the last live
/// sequence has ended (`forget`).
///
/// Source: V is the successor representation of Dayan (1993, "Improving generalization for temporal difference learning"), at a
/// discount of 1/2, learned by TD(0) (Sutton, 1988).
///
/// Complexity: at batch 1 `ask` some 2 k E additions and `learn` 6 k E, O(rows k E) both; `note` O(rows k). State, for each
/// layer: 2 (2 E + 1) E bytes (4 KB for 32 experts, 66 KB for 128), and 1,536 for each 64 experts.
class NextUses {
 public:
  static constexpr std::int32_t one = ChoiceRegression::one;  ///< a probability, and a v

  void reserve(Carver& carve, std::uint32_t layers, std::uint32_t experts) {
    experts_ = experts;
    history_.reserve(carve, 3, layers, experts);
    learned_.reserve(carve, layers, 2U * experts, experts);
    carve(soon_, experts);
    carve(error_, experts);
    if (carve.measuring()) return;
    for (std::uint32_t l = 0; l < layers; ++l) {
      for (std::uint32_t e = 0; e < experts; ++e) {
        learned_.set(l, e, e, ChoiceRegression::weight_of_1);
        learned_.set(l, experts + e, e, ChoiceRegression::weight_of_1 / 2);
      }
    }
  }

  FERRY_HD void begin_step(const Step& step) noexcept { history_.begin_step(step); }
  /// Sequences that come now are others, whatever their numbers.
  FERRY_HD void forget() noexcept { history_.forget(); }
  /// What the rows of a layer chose, [rows, k], as TokenHistory::note has it.
  FERRY_HD void note(std::uint32_t layer, View<const Route> taken, View<const std::uint32_t> rows) noexcept {
    history_.note(layer, taken, rows);
  }
  /// Behind `note` of this layer: v of each of its experts [experts], until the next call.
  FERRY_HD const std::int32_t* ask(std::uint32_t layer) noexcept {
    if (const std::uint32_t token = history_.first(); history_.rows() == 1 && history_.is_known(token, layer)) {
      return ask(layer, token);  // what follows would give the same
    }
    std::int32_t* const soon = soon_.data();
    const std::uint32_t experts = experts_;
    for (std::uint32_t e = 0; e < experts; ++e) soon[e] = one;  // at first the products of 1 - V
    for_each_token(layer, [&](std::uint32_t token) {
      if (!history_.is_last(token)) return;  // of its sequence
      const std::int32_t* const value = ask(layer, token);
      for (std::uint32_t e = 0; e < experts; ++e) soon[e] = soon[e] * (one - value[e]) >> 14U;
    });
    for (std::uint32_t e = 0; e < experts; ++e) soon[e] = one - soon[e];
    return soon;
  }
  /// Behind `note` of this layer, once a step: each token teaches what should have been said of the one before it.
  FERRY_HD void learn(std::uint32_t layer) noexcept {
    std::int32_t* const error = error_.data();
    const std::uint32_t experts = experts_;
    for_each_token(layer, [&](std::uint32_t token) {
      const std::uint32_t before = history_.before(token, layer);
      if (before == TokenHistory::none) return;
      const std::int32_t* value = ask(layer, token);
      for (std::uint32_t e = 0; e < experts; ++e) error[e] = value[e] / 2;
      history_.for_each(token, layer, [error](std::uint16_t e) { error[e] += one / 2; });
      value = ask(layer, before);
      for (std::uint32_t e = 0; e < experts; ++e) error[e] -= value[e];
      learned_.learn(layer, error);
    });
  }

  [[nodiscard]] const char* check() const noexcept { return learned_.check(); }

 private:
  /// Calls `f(token)` for each token of this step for which this layer was computed.
  template <class F>
  FERRY_HD void for_each_token(std::uint32_t layer, const F& f) noexcept {
    for (std::uint32_t token = history_.first(), end = token + history_.rows(); token < end; ++token) {
      if (history_.is_known(token, layer)) f(token);
    }
  }
  /// V behind a token, of each expert, by what this one and the one before it chose.
  FERRY_HD const std::int32_t* ask(std::uint32_t layer, std::uint32_t token) noexcept {
    learned_.clear();
    history_.for_each(token, layer, [this](std::uint16_t e) { learned_.add(e); });
    history_.for_each(history_.before(token, layer), layer, [this](std::uint16_t e) { learned_.add(experts_ + e); });
    return learned_.ask(layer);
  }

  TokenHistory history_;
  ChoiceRegression learned_;
  Array<std::int32_t> soon_;   ///< [experts]
  Array<std::int32_t> error_;  ///< [experts]
  std::uint32_t experts_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
