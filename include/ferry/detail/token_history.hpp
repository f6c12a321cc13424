/// @file
/// What the latest tokens of each sequence chose.
#pragma once
#include "ferry/detail/expert_set.hpp"
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The choices of the rows of this step and of a few steps before it, by layer; and for each row, its sequence's token before
/// it. Of a step of more than 64 rows the last 64 are kept. Tokens have numbers, which hold until a new step takes the place
/// of theirs.
///
/// Complexity: begin_step O(rows * (rows + layers * experts / 64)). State, for each of the 64 tokens of a step: 8 bytes, and 8
/// for each layer and 64 experts of one.
class TokenHistory {
 public:
  static constexpr std::uint32_t most_rows = 64, none = 0xffffffffU;

  /// `steps`: this one and those before it, at least 2.
  void reserve(Carver& carve, std::uint32_t steps, std::uint32_t layers, std::uint32_t experts) {
    steps_ = steps;
    layers_ = layers;
    carve(sequence_, std::size_t{steps} * most_rows);
    carve(before_, std::size_t{steps} * most_rows, none);
    carve(rows_, steps);
    chosen_.reserve(carve, steps * most_rows * layers, experts);
  }

  FERRY_HD void begin_step(const Step& step) noexcept {
    const std::uint32_t last = now_;
    now_ = now_ + 1 == steps_ ? 0 : now_ + 1;
    all_rows_ = step.sequence.size;
    rows_[now_] = all_rows_ < most_rows ? all_rows_ : most_rows;
    const std::uint32_t left_out = all_rows_ - rows_[now_];
    for (std::uint32_t r = 0; r < rows_[now_]; ++r) {
      const std::uint32_t token = first() + r, row = left_out + r;
      sequence_[token] = step.sequence[row];
      if (row > 0 && step.sequence[row - 1] == step.sequence[row]) {
        before_[token] = r > 0 ? token - 1 : none;
      } else {
        before_[token] = latest_of(step.sequence[row], last);
      }
      for (std::uint32_t l = 0; l < layers_; ++l) chosen_.clear(token * layers_ + l);
    }
  }

  /// Sequences that come now are others, whatever their numbers.
  FERRY_HD void forget() noexcept {
    for (std::uint32_t& rows : rows_) rows = 0;
  }

  /// What a layer's rows chose, [rows, k]. `rows`: which of the step these are, ascending; empty: all of them.
  FERRY_HD void note(std::uint32_t layer, View<const Route> taken, View<const std::uint32_t> rows) noexcept {
    const std::uint32_t count = rows.size == 0 ? all_rows_ : rows.size;
    const std::uint32_t k = count == 0 ? 0 : taken.size / count, left_out = all_rows_ - rows_[now_];
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t row = rows.size == 0 ? i : rows[i];
      if (row < left_out) continue;
      for (const Route& r : taken.part(i * k, k)) {
        if (gate_choice(r) != no_expert) chosen_.add((first() + row - left_out) * layers_ + layer, gate_choice(r));
      }
    }
  }

  /// The tokens of this step that are kept have the numbers `first()` and following.
  FERRY_HD std::uint32_t first() const noexcept { return now_ * most_rows; }
  FERRY_HD std::uint32_t rows() const noexcept { return rows_[now_]; }
  /// With those that are not kept.
  FERRY_HD std::uint32_t all_rows() const noexcept { return all_rows_; }
  /// Whether it is its sequence's last one in this step.
  FERRY_HD bool is_last(std::uint32_t token) const noexcept {
    return token + 1 == first() + rows() || sequence_[token + 1] != sequence_[token];
  }
  /// The token before one; `none` if it is not kept, or was not computed in this layer.
  FERRY_HD std::uint32_t before(std::uint32_t token, std::uint32_t layer) const noexcept {
    if (token == none || before_[token] == none) return none;
    const std::uint32_t step = token / most_rows, oldest = now_ + 1 == steps_ ? 0 : now_ + 1;
    if (step == oldest && before_[token] / most_rows != step) return none;  // another's place by now
    return is_known(before_[token], layer) ? before_[token] : none;
  }
  FERRY_HD bool is_known(std::uint32_t token, std::uint32_t layer) const noexcept {
    return chosen_.size(token * layers_ + layer) > 0;
  }
  /// Calls `f(expert)` for what a token chose in a layer, in ascending order; not at all for `none`.
  template <class F>
  FERRY_HD void for_each(std::uint32_t token, std::uint32_t layer, const F& f) const noexcept {
    if (token != none) chosen_.for_each(token * layers_ + layer, f);
  }

 private:
  FERRY_HD std::uint32_t latest_of(std::uint32_t sequence, std::uint32_t step) const noexcept {
    for (std::uint32_t r = rows_[step]; r > 0; --r) {
      if (sequence_[step * most_rows + r - 1] == sequence) return step * most_rows + r - 1;
    }
    return none;
  }

  Array<std::uint32_t> sequence_;  ///< [steps, rows]
  Array<std::uint32_t> before_;    ///< [steps, rows]
  Array<std::uint32_t> rows_;      ///< [steps]
  ExpertSets chosen_;              ///< [steps, rows, layers]
  std::uint32_t steps_ = 0, layers_ = 0, now_ = 0, all_rows_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
