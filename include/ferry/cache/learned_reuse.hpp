/// @file
/// Keeps what is used again soonest, as it learns from what tokens choose one after another.
#pragma once
#include <cmath>

#include "ferry/detail/choice_regression.hpp"
#include "ferry/detail/growing_weight.hpp"
#include "ferry/detail/slot_experts.hpp"
#include "ferry/detail/token_history.hpp"

namespace ferry::inline FERRY_ABI {

/// Ranks an expert by how often it was used of late, and how soon it will be used again by what the last two tokens of each
/// sequence chose in its layer. For stacks that wait for every miss. Nothing is trained before.
///
///     rank(e) = f(e) + 2 v(e)
///
/// f: the share of steps that used it, of which each counts half as much after `half_life` steps. v = 1 - prod(1 - V(e)) over
/// the sequences, and V = sum over i >= 1 of 2^-i u(i), where u(i) is 1 if the sequence's token i steps ahead uses it:
/// learned as V = (u(1) + V of the next token) / 2 (temporal differences) by a logistic regression an expert
/// (detail::ChoiceRegression) whose inputs are the experts that the token and the one before it chose in this layer. What
/// these chose themselves has the weights 1 and 1/2 at first: before it has learned anything it keeps what was used last.
///
/// A newcomer takes a place only if it ranks above who has it, and one of another layer only if that ranks below the least of
/// its own layer by more than chance: by 3/2 sqrt(both), with ranks as numbers of uses.
///
/// Source: ours. V is the successor representation of Dayan (1993, "Improving generalization for temporal difference
/// learning"), at a discount of 1/2, learned by TD(0) (Sutton, 1988).
///
/// Complexity: a layer O(rows k E), at batch 1 some 6 k E additions; victim O(layers + experts of two). State, for each layer
/// of the pool: 2 (2 E + 1) E bytes (4 KB for 32 experts, 66 KB for 128), 20 E, 1,536 for each 64 experts; 8 a slot.
///
/// Ambiguities resolved. What the gate chose counts, whatever was run instead. In decode an expert is used once a step,
/// however many rows chose it; prompts count as detail::GrowingWeight says, and of a step's rows the last 64 teach. In a
/// prompt a newcomer takes only a place of its own layer. Layers that this step has not reached yet rank as if it had
/// brought them what earlier ones did. What is learned does not end with a sequence; what its tokens chose does, with the
/// last one that lives.
class LearnedReuse {
 public:
  std::uint32_t half_life = 64;  ///< steps, 1 to 4096

  void reserve(Carver& carve, const PoolShape& pool) {
    weight_.set(half_life, "LearnedReuse");
    slots_.reserve(carve, pool);
    history_.reserve(carve, 3, pool.layers, pool.experts);
    learned_.reserve(carve, pool.layers, 2U * pool.experts, pool.experts);
    carve(uses_, slots_.size());
    carve(rank_, slots_.size());
    carve(rows_, pool.experts);
    carve(not_used_, pool.experts);
    carve(error_, pool.experts);
    if (carve.measuring()) return;
    for (std::uint32_t l = 0; l < pool.layers; ++l) {
      for (std::uint32_t e = 0; e < pool.experts; ++e) {
        learned_.set(l, e, e, Regression::weight_of_1);
        learned_.set(l, pool.experts + e, e, Regression::weight_of_1 / 2);
      }
    }
  }

  FERRY_HD void begin_step(const Step& step) noexcept {
    prefill_ = step.phase == Phase::prefill;
    reached_ = 0;
    history_.begin_step(step);
    const bool divide = weight_.begin_step(step);
    if (divide) {
      constexpr unsigned shift = detail::GrowingWeight::shift;
      time_ >>= shift;
      for (std::int64_t& uses : uses_) uses >>= shift;
      for (std::int64_t& rank : rank_) rank >>= shift;
      slots_.changed();
    }
    time_ += weight_() * weight_.steps();
  }

  FERRY_HD void reset() noexcept { history_.forget(); }

  FERRY_HD void chosen(std::uint16_t layer, View<const Route> taken, View<const std::uint32_t> rows) noexcept {
    const std::uint32_t l = slots_.layer(layer), experts = slots_.experts();
    reached_ = l + 1;
    history_.note(l, taken, rows);
    count(l, taken, rows);
    for (std::int32_t& q : not_used_) q = Regression::one;
    for (std::uint32_t token = history_.first(), end = token + history_.rows(); token < end; ++token) learn(l, token);
    const std::int64_t each = time_ >> 13U;  // of probabilities that count 2^-14, twice
    const std::int64_t* const uses = uses_.data() + std::size_t{l} * experts;
    std::int64_t* const rank = rank_.data() + std::size_t{l} * experts;
    const std::int32_t* const not_used = not_used_.data();
    for (std::uint32_t e = 0; e < experts; ++e) rank[e] = uses[e] + each * (Regression::one - not_used[e]);
    slots_.changed(layer);
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) noexcept {
    const std::int64_t* const ranks = rank_.data();
    const auto key = [ranks](std::size_t at) { return ranks[at]; };
    std::uint32_t slot = slots_.least_of(slots_.layer(incoming.id.layer), barred, key);
    if (!prefill_ && slots_.layers() > 1) {
      const std::uint32_t any =
          slots_.least(barred, key, [this](std::int64_t k, std::uint32_t l) { return rank(k, l); });
      if (slot == no_slot || is_far_below(rank(slots_[any]), rank(slots_[slot]))) slot = any;
    }
    if (slot == no_slot) return no_slot;
    return rank(incoming.id) > rank(slots_[slot]) ? slot : no_slot;
  }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    slots_.put(slot, what.id, rank_[slots_.index(what.id)]);
  }

  [[nodiscard]] const char* check() const noexcept {
    if (!weight_.is_valid()) return "LearnedReuse: the weight of a use is out of range";
    for (const std::int64_t rank : rank_) {
      if (rank < 0 || rank >= std::int64_t{1} << 62U) return "LearnedReuse: an expert's rank is out of range";
    }
    if (const char* broken = learned_.check()) return broken;
    return slots_.check([this](std::size_t at) { return rank_[at]; });
  }

 private:
  using Regression = detail::ChoiceRegression;

  FERRY_HD void count(std::uint32_t l, View<const Route> taken, View<const std::uint32_t> rows) noexcept {
    for (std::uint32_t& n : rows_) n = 0;
    for (const Route& r : taken) {
      if (gate_choice(r) != no_expert) ++rows_[gate_choice(r)];
    }
    const std::uint32_t of = rows.size == 0 ? history_.all_rows() : rows.size;
    std::int64_t* const uses = uses_.data() + std::size_t{l} * slots_.experts();
    for (std::uint32_t e = 0; e < slots_.experts(); ++e) {
      if (rows_[e] > 0) uses[e] += prefill_ ? weight_() * weight_.steps() * rows_[e] / of : weight_();
    }
  }

  /// What tells how soon experts are used behind a token.
  FERRY_HD void give_inputs(std::uint32_t l, std::uint32_t token) noexcept {
    learned_.clear();
    history_.for_each(token, l, [this](std::uint16_t e) { learned_.add(e); });
    history_.for_each(history_.before(token, l), l, [this](std::uint16_t e) { learned_.add(slots_.experts() + e); });
  }

  /// The token teaches what should have been said of the one before it; and if it is the last of its sequence, what is to be
  /// said now goes to `not_used_`.
  FERRY_HD void learn(std::uint32_t l, std::uint32_t token) noexcept {
    if (!history_.is_known(token, l)) return;
    const std::uint32_t before = history_.before(token, l), experts = slots_.experts();
    const bool last = history_.is_last(token), teaches = before != detail::TokenHistory::none;
    if (!last && !teaches) return;
    give_inputs(l, token);
    const std::int32_t* value = learned_.ask(l);
    std::int32_t *const not_used = not_used_.data(), *const error = error_.data();
    if (last) {
      for (std::uint32_t e = 0; e < experts; ++e) not_used[e] = not_used[e] * (Regression::one - value[e]) >> 14U;
    }
    if (!teaches) return;
    for (std::uint32_t e = 0; e < experts; ++e) error[e] = value[e] / 2;
    history_.for_each(token, l, [error](std::uint16_t e) { error[e] += Regression::one / 2; });
    give_inputs(l, before);
    value = learned_.ask(l);
    for (std::uint32_t e = 0; e < experts; ++e) error[e] -= value[e];
    learned_.learn(l, error);
  }

  FERRY_HD std::int64_t rank(std::int64_t rank, std::uint32_t l) const noexcept {
    return l < reached_ ? rank : weight_.ahead(rank);
  }
  FERRY_HD std::int64_t rank(ExpertId id) const noexcept {
    return rank(rank_[slots_.index(id)], slots_.layer(id.layer));
  }
  FERRY_HD bool is_far_below(std::int64_t a, std::int64_t b) const noexcept {
    const float weight = static_cast<float>(weight_());
    const float both = (static_cast<float>(a) + static_cast<float>(b)) / weight;
    return static_cast<float>(b - a) / weight > 1.5F * std::sqrt(both);
  }

  detail::SlotExperts slots_;
  detail::TokenHistory history_;
  detail::ChoiceRegression learned_;
  detail::GrowingWeight weight_;
  Array<std::int64_t> uses_;      ///< [layers, experts], weighted
  Array<std::int64_t> rank_;      ///< [layers, experts], as numbers of uses, weighted
  Array<std::uint32_t> rows_;     ///< [experts], of this layer
  Array<std::int32_t> not_used_;  ///< [experts], the probability that no sequence uses it soon
  Array<std::int32_t> error_;     ///< [experts]
  std::int64_t time_ = 0;         ///< steps, weighted
  std::uint32_t reached_ = 0;     ///< layers of the pool, in this step
  bool prefill_ = false;
};

static_assert(CachePolicy<LearnedReuse>);

}  // namespace ferry::inline FERRY_ABI
