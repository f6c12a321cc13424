/// @file
/// What each expert's place saved of late, and who may take whose.
#pragma once
#include <cmath>

#include "ferry/detail/growing_weight.hpp"
#include "ferry/detail/slot_experts.hpp"

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
/// Source: ours, after LRFU (Lee et al., 2001, "LRFU: a spectrum of policies that subsumes the least recently used and
/// least frequently used policies"), whose F(x) = 2^(-lambda x) this is with lambda = 1 / half_life and steps for time;
/// LRFU itself admits everything, and counts uses.
///
/// Complexity: a use O(1); victim O(layers + experts of one); wanted O(layers + experts of each layer used since the last
/// call). State: 12 bytes an expert of the pool's layers, 50 a layer, 8 a slot.
///
/// Ambiguities resolved. In decode a use counts once an expert and step, however many rows chose it; prompts count as
/// detail::GrowingWeight says. In a prompt a newcomer takes only a place of its own layer: another layer's expert would be
/// copied again in this very step or the next. Layers that this step has not reached yet rank as if it had brought them what
/// earlier ones did. A prefetch is no use. Savings do not end with a sequence. They are integers, in units of 16 ns and at
/// most a second a use.
class DecayedSavings {
 public:
  std::uint32_t half_life = 128;  ///< steps, 1 to 4096

  void reserve(Carver& carve, const PoolShape& pool) {
    weight_.set(half_life, "DecayedSavings");
    first_layer_ = pool.first_layer;
    slots_.reserve(carve, pool);
    carve(saved_, slots_.size());
    carve(most_, pool.layers);
    carve(most_expert_, pool.layers);
    unknown_.reserve(carve, 1, pool.layers);
  }

  FERRY_HD void begin_step(const Step& step) noexcept {
    prefill_ = step.phase == Phase::prefill;
    reached_ = 0;
    if (!weight_.begin_step(step)) return;
    for (std::int64_t& saved : saved_) saved >>= detail::GrowingWeight::shift;
    slots_.changed();
    for (std::uint32_t l = 0; l < slots_.layers(); ++l) unknown_.add(0, static_cast<std::uint16_t>(l));
  }

  FERRY_HD void saved(View<const Request> uses, std::uint32_t rows, Nanoseconds each) noexcept {
    const std::uint32_t l = slots_.layer(uses[0].want.id.layer);
    reached_ = l + 1;
    const std::int64_t units = each <= 0 ? 0 : ((each < second ? each : second) + 15) >> 4U;
    if (units == 0) return;
    last_ = units;
    unknown_.add(0, static_cast<std::uint16_t>(l));
    const std::int64_t worth = weight_() * units;
    for (const Request& r : uses) {
      saved_[slots_.index(r.want.id)] +=
          prefill_ ? worth / rows * (r.rows < rows ? r.rows : rows) * weight_.steps() : worth;
      slots_.grew(r.want.id);
    }
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) noexcept {
    const std::int64_t* const saved = saved_.data();
    const auto key = [saved](std::size_t at) { return saved[at]; };
    const std::uint32_t slot =
        prefill_ ? slots_.least_of(slots_.layer(incoming.id.layer), barred, key)
                 : slots_.least(barred, key, [this](std::int64_t k, std::uint32_t l) { return worth(k, l); });
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
    const std::int64_t newcomer = worth(id), there = slot == no_slot ? 0 : worth(slots_[slot]);
    const float both = (static_cast<float>(newcomer) + static_cast<float>(there)) / static_cast<float>(weight_());
    const auto chance = static_cast<std::int64_t>(0.5F * std::sqrt(both * static_cast<float>(last_)));
    return ((newcomer - there) / weight_() - chance) * 16;
  }

  [[nodiscard]] const char* check() const noexcept {
    if (!weight_.is_valid()) return "DecayedSavings: the weight of a use is out of range";
    for (const std::int64_t worth : saved_) {
      if (worth < 0 || worth >= std::int64_t{1} << 62U) return "DecayedSavings: what an expert saved is out of range";
    }
    return slots_.check([this](std::size_t at) { return saved_[at]; });
  }

 private:
  static constexpr Nanoseconds second = 1'000'000'000;

  /// Of a layer of the pool.
  FERRY_HD std::int64_t worth(std::int64_t saved, std::uint32_t l) const noexcept {
    return l < reached_ ? saved : weight_.ahead(saved);
  }
  FERRY_HD std::int64_t worth(ExpertId id) const noexcept {
    return worth(saved_[slots_.index(id)], slots_.layer(id.layer));
  }

  detail::SlotExperts slots_;
  detail::GrowingWeight weight_;
  Array<std::int64_t> saved_;         ///< [layers, experts], weighted
  Array<std::int64_t> most_;          ///< [layers], of those that are absent, unless unknown
  Array<std::uint16_t> most_expert_;  ///< [layers], whose that is
  detail::ExpertSets unknown_;        ///< one, of layers
  std::int64_t last_ = 1;             ///< what a use saved last
  std::uint32_t reached_ = 0;         ///< layers of the pool, in this step
  std::uint16_t first_layer_ = 0;
  bool prefill_ = false;
};

static_assert(CachePolicy<DecayedSavings>);

}  // namespace ferry::inline FERRY_ABI
