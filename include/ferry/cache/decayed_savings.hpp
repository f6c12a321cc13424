/// @file
/// What each expert's place saved of late, and who may take whose.
#pragma once
#include <cmath>
#include <string>

#include "ferry/detail/slot_experts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Ranks experts by the time that their place on the device saved, or would have saved, of which each step's counts half as
/// much after `half_life` steps, whether the expert is there or not. A newcomer takes a place only if it ranks above who has
/// it: what is not worth its place streams through, or is computed on the host. So neither a prompt, which uses nearly all
/// experts, nor an expert that is used once flushes the cache.
///
/// What a use saves the placement says (`saves`), layer by layer: where a second expert of a layer saves nothing beside a
/// first, it counts for nothing. Over a pool of all layers this also shares the slots among them, by what one more slot
/// brings each.
///
/// What few uses tell may be chance: of `more_saved`, what a newcomer saves more than who has the place, sqrt(uses) / 2 is
/// left out for the uses that both were counted, which is 0.7 standard deviations of uses that decay.
///
/// `wanted()` names the absent expert that ranks highest: what a scheduler that promotes brings next.
///
/// `keeps_recent`: for stacks that wait for every miss. What the layer's last step used counts more until its next one, by
/// what is learned on line: how much more often it is used again than its rank says, and the others less, times the steps
/// that ranks stand for. And a newcomer takes a place of another layer only where that is worth less than its own layer's
/// least by more than chance.
///
/// Source: ours, after LRFU (Lee et al., 2001, "LRFU: a spectrum of policies that subsumes the least recently used and
/// least frequently used policies"), whose F(x) = 2^(-lambda x) this is with lambda = 1 / half_life and steps for time;
/// LRFU itself admits everything, and counts uses.
///
/// Complexity: a use O(1); victim O(layers + experts of one); wanted O(layers + experts of each layer used since the last
/// call). State: 12 bytes an expert of the pool's layers, 50 a layer, 8 a slot; with `keeps_recent` 8 a layer more, and 16
/// for each 64 experts of one.
///
/// Ambiguities resolved. In decode a use counts once an expert and step, however many rows chose it. A prefill step counts
/// as one decode step a row, in each of which an expert is used as often as a row of the prompt chose it, and as no more
/// steps than an eighth of the half-life: all its rows are one text's. There a newcomer takes only a place of its own layer:
/// another layer's expert would be copied again in this very step or the next. Layers that this step has not reached yet
/// rank as if it had brought them what earlier ones did. A prefetch is no use. Savings do not end with a sequence. They are
/// integers, in units of 16 ns and at most a second a use, with a weight that grows by the factor 2^(1/half_life) each step;
/// all are divided by 16 when it has grown so much. What is learned of the last step's experts decays by a 256th each step,
/// and begins as if of 64 of them a quarter had been used again beyond their rank: as LRU.
class DecayedSavings {
 public:
  std::uint32_t half_life = 128;  ///< steps, 1 to 4096
  bool keeps_recent = false;

  void reserve(Carver& carve, const PoolShape& pool) {
    if (half_life == 0 || half_life > 4096) {
      throw ConfigError("DecayedSavings: half_life is " + std::to_string(half_life) + " steps, expected 1 to 4096");
    }
    first_layer_ = pool.first_layer;
    growth_ = growth();
    slots_.reserve(carve, pool);
    carve(saved_, slots_.size());
    carve(most_, pool.layers);
    carve(most_expert_, pool.layers);
    unknown_.reserve(carve, 1, pool.layers);
    const std::uint32_t learns = keeps_recent ? pool.layers : 0;
    recent_.reserve(carve, learns, pool.experts);
    before_.reserve(carve, learns, pool.experts);
    carve(extra_, learns);
    others_ = number_ * pool.experts;
  }

  FERRY_HD void begin_step(const Step& step) noexcept {
    prefill_ = step.phase == Phase::prefill;
    reached_ = 0;
    steps_ = 1;
    if (prefill_) {
      const std::uint32_t most = half_life > 8 ? half_life / 8 : 1;
      steps_ = step.sequence.size < most ? step.sequence.size : most;
    }
    const std::int64_t before = weight_;
    for (std::uint32_t i = 0; i < steps_; ++i) weight_ += (weight_ * growth_ + round) >> 24U;
    ahead_ = ((weight_ - before) << 16U) / before;
    time_ += weight_;
    excess_ -= excess_ >> 8U;
    number_ -= number_ >> 8U;
    others_ -= others_ >> 8U;
    if (weight_ >= one << 4U) divide();
  }

  FERRY_HD void saved(View<const Request> uses, std::uint32_t rows, Nanoseconds each) noexcept {
    const auto l = static_cast<std::uint16_t>(slots_.layer(uses[0].want.id.layer));
    if (keeps_recent && reached_ <= l) forget_recent(l);
    reached_ = l + 1U;
    const std::int64_t units = each <= 0 ? 0 : ((each < second ? each : second) + 15) >> 4U;
    if (units == 0) return;
    last_ = units;
    unknown_.add(0, l);
    for (const Request& r : uses) {
      const std::int64_t worth = prefill_ ? weight_ * units / rows * r.rows * steps_ : weight_ * units;
      saved_[slots_.index(r.want.id)] += worth;
      if (keeps_recent && !prefill_) count_as_recent(r.want.id, l, units);
      slots_.grew(r.want.id);
    }
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) noexcept {
    const std::int64_t* const saved = saved_.data();
    const auto key = [saved](std::size_t at) { return saved[at]; };
    const std::uint32_t own =
        prefill_ || keeps_recent ? slots_.least_of(slots_.layer(incoming.id.layer), barred, key) : no_slot;
    std::uint32_t slot = own;
    if (!prefill_) {
      slot = slots_.least(barred, key, [this](std::int64_t k, std::uint32_t l) { return worth(k, l); });
      if (own != no_slot && difference(worth(slots_[own]), worth(slots_[slot])) <= 0) slot = own;
    }
    if (slot == no_slot) return no_slot;
    return worth(incoming.id) > worth(slots_[slot]) ? slot : no_slot;
  }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    const ExpertId before = slots_[slot];
    if (before.expert != no_expert) unknown_.add(0, static_cast<std::uint16_t>(slots_.layer(before.layer)));
    unknown_.add(0, static_cast<std::uint16_t>(slots_.layer(what.id.layer)));
    slots_.put(slot, what.id, saved_[slots_.index(what.id)]);
  }

  /// The absent expert that ranks highest, the lowest of those that tie; `no_expert` if none was ever used.
  FERRY_HD ExpertId wanted() noexcept {
    unknown_.for_each(0, [&](std::uint16_t l) { most_expert_[l] = slots_.most_absent(l, saved_.data(), most_[l]); });
    unknown_.clear(0);
    ExpertId best{0, no_expert};
    std::int64_t most = 0;
    for (std::uint32_t l = 0; l < slots_.layers(); ++l) {
      const std::int64_t here = worth(most_[l], l);
      if (here <= most) continue;
      most = here;
      best = {static_cast<std::uint16_t>(first_layer_ + l), most_expert_[l]};
    }
    return best;
  }

  FERRY_HD Nanoseconds more_saved(ExpertId id, std::uint32_t slot) const noexcept {
    return difference(worth(id), slot == no_slot ? 0 : worth(slots_[slot])) * 16;
  }

  [[nodiscard]] const char* check() const noexcept {
    if (weight_ < one || weight_ >= one << 4U) return "DecayedSavings: the weight of a use is out of range";
    for (const std::int64_t worth : saved_) {
      if (worth < 0 || worth >= std::int64_t{1} << 62U) return "DecayedSavings: what an expert saved is out of range";
    }
    return slots_.check([this](std::size_t at) { return saved_[at]; });
  }

 private:
  static constexpr std::int64_t one = 1 << 16, round = 1 << 23, most_more = 64 << 8;
  static constexpr Nanoseconds second = 1'000'000'000;

  /// 2^(1/half_life) - 1 in units of 2^-24, by its series: x = ln 2 / half_life, x + x^2/2 + x^3/6 + ...
  std::int64_t growth() const {
    const std::int64_t x = (std::int64_t{11629080} + half_life / 2) / half_life;  // ln 2 = 11629080 / 2^24
    std::int64_t term = x, sum = 0;
    for (std::int64_t n = 2; term > 0; ++n) {
      sum += term;
      term = (term * x >> 24U) / n;
    }
    return sum;
  }

  FERRY_HD void divide() noexcept {
    weight_ >>= 4U;
    time_ >>= 4U;
    for (std::int64_t& saved : saved_) saved >>= 4U;
    for (std::int64_t& extra : extra_) extra >>= 4U;
    slots_.changed();
    for (std::uint32_t l = 0; l < slots_.layers(); ++l) unknown_.add(0, static_cast<std::uint16_t>(l));
  }

  /// How much more `a` is than `b` beyond what may be chance.
  FERRY_HD std::int64_t difference(std::int64_t a, std::int64_t b) const noexcept {
    const float both = (static_cast<float>(a) + static_cast<float>(b)) / static_cast<float>(weight_);
    return (a - b) / weight_ - static_cast<std::int64_t>(0.5F * std::sqrt(both * static_cast<float>(last_)));
  }

  /// The layer's next step has come: what it used in its last one counts as the others do.
  FERRY_HD void forget_recent(std::uint16_t l) noexcept {
    std::int64_t n = 0, without = 0;  // in units of 2^6
    before_.clear(l);
    recent_.for_each(l, [&](std::uint16_t e) {
      std::int64_t& saved = saved_[l * slots_.experts() + e];
      saved -= extra_[l];
      without += saved >> 6U;
      before_.add(l, e);
      ++n;
    });
    if (n == 0) return;
    recent_.clear(l);
    extra_[l] = 0;
    slots_.changed(static_cast<std::uint16_t>(first_layer_ + l));
    unknown_.add(0, l);
    if (prefill_ || n == slots_.experts()) return;
    excess_ -= (without / last_ << 22U) / time_;  // as often as their rank says
    number_ += n << 16U;
    others_ += (slots_.experts() - n) << 16U;
  }
  /// All of a layer count the same, what the first of this step did.
  FERRY_HD void count_as_recent(ExpertId id, std::uint16_t l, std::int64_t units) noexcept {
    if (before_.has(l, id.expert)) excess_ += 1 << 16U;
    if (extra_[l] == 0) {
      const std::int64_t excess = excess_ > 0 ? excess_ << 8U : 0, steps = time_ / (weight_ >> 8U);
      const std::int64_t more = (excess / number_ + excess / others_) * steps >> 8U;  // uses, in units of 2^-8
      extra_[l] = 1 + (weight_ * units >> 8U) * (more < most_more ? more : most_more);
    }
    recent_.add(l, id.expert);
    saved_[slots_.index(id)] += extra_[l];
  }

  /// Of a layer of the pool. What was saved by the step before decays no more in those that this step has not reached.
  FERRY_HD std::int64_t worth(std::int64_t saved, std::uint32_t l) const noexcept {
    return l < reached_ ? saved : saved + (saved >> 16U) * ahead_;
  }
  FERRY_HD std::int64_t worth(ExpertId id) const noexcept {
    return worth(saved_[slots_.index(id)], slots_.layer(id.layer));
  }

  detail::SlotExperts slots_;
  Array<std::int64_t> saved_;         ///< [layers, experts], weighted
  Array<std::int64_t> most_;          ///< [layers], of those that are absent, unless unknown
  Array<std::uint16_t> most_expert_;  ///< [layers], whose that is
  detail::ExpertSets unknown_;        ///< one, of layers
  detail::ExpertSets recent_;         ///< by layer, what its last step used
  detail::ExpertSets before_;         ///< by layer, and the one before that
  Array<std::int64_t> extra_;         ///< [layers], what each of the recent counts more
  std::int64_t growth_ = 0;           ///< of the weight, a step
  std::int64_t weight_ = one;         ///< of a use in this step
  std::int64_t time_ = one;           ///< steps, weighted
  std::int64_t number_ = 64 << 16;    ///< of recent experts that a step found, in units of 2^-16 as the next two
  std::int64_t others_ = 0;           ///< of other experts of those layers
  std::int64_t excess_ = 16 << 16;    ///< uses of recent ones beyond what their rank says
  std::int64_t ahead_ = 0;            ///< by how much it grew for this step, in units of 2^-16
  std::int64_t last_ = 1;             ///< what a use saved last
  std::uint32_t reached_ = 0;         ///< layers of the pool, in this step
  std::uint32_t steps_ = 1;           ///< that this one counts as
  std::uint16_t first_layer_ = 0;
  bool prefill_ = false;
};

/// With the parameters for stacks that wait for every miss.
struct RecentSavings : DecayedSavings {
  RecentSavings() noexcept {
    half_life = 64;
    keeps_recent = true;
  }
};

static_assert(CachePolicy<DecayedSavings> && CachePolicy<RecentSavings>);

}  // namespace ferry::inline FERRY_ABI
