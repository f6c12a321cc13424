/// @file
/// How often an expert was used of late, and who may take whose place.
#pragma once
#include <string>

#include "ferry/detail/slot_experts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Ranks experts by their uses, of which each counts half as much after `half_life` steps, whether the expert is there or
/// not. A newcomer takes a place only if it ranks above who has it: what is not worth its place streams through, or is
/// computed on the host. So neither a prompt, which uses nearly all experts once, nor an expert that is used once flushes
/// the cache.
///
/// Over a pool of all layers this also shares the slots among them, by what one more slot brings each.
///
/// `wanted()` names the absent expert that ranks highest: what a scheduler that promotes brings next.
///
/// Source: ours, after LRFU (Lee et al., 2001, "LRFU: a spectrum of policies that subsumes the least recently used and
/// least frequently used policies"), whose F(x) = 2^(-lambda x) this is with lambda = 1 / half_life and steps for time;
/// LRFU itself admits everything.
///
/// Complexity: a use O(1); victim O(layers + experts of one); wanted O(layers + experts of each layer used since the last
/// call). State: 12 bytes an expert of the pool's layers, 54 a layer, 8 a slot.
///
/// Ambiguities resolved. A use is counted once an expert and step, however many rows chose it, in prefill too. A prefetch
/// is no use. Counts do not end with a sequence. They are integers: a use adds a weight that grows by the factor
/// 2^(1/half_life) each step, all are divided by 2^16 when it reaches 2^36, and what is lost by then is below 2^-20 of a
/// use.
class DecayedFrequency {
 public:
  std::uint32_t half_life = 128;      ///< steps, 1 to 4096
  std::uint32_t margin_percent = 10;  ///< by how much a newcomer must have been used more

  void reserve(Carver& carve, const PoolShape& pool) {
    if (half_life == 0 || half_life > 4096) {
      throw ConfigError("DecayedFrequency: half_life is " + std::to_string(half_life) + " steps, expected 1 to 4096");
    }
    first_layer_ = pool.first_layer;
    slots_.reserve(carve, pool);
    carve(counts_, slots_.size());
    carve(most_, pool.layers);
    carve(most_expert_, pool.layers);
    unknown_.reserve(carve, 1, pool.layers);
  }

  FERRY_HD void begin_step(const Step& /*step*/) noexcept {
    weight_ += weight_ * growth() >> 24U;
    if (weight_ < one << 16U) return;
    weight_ >>= 16U;
    for (std::int64_t& count : counts_) count >>= 16U;
    slots_.changed();
    for (std::uint32_t l = 0; l < slots_.layers(); ++l) unknown_.add(0, static_cast<std::uint16_t>(l));
  }
  FERRY_HD void used(Variant what) noexcept {
    counts_[slots_.index(what.id)] += weight_;
    slots_.grew(what.id);
    unknown_.add(0, static_cast<std::uint16_t>(slots_.layer(what.id.layer)));
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) noexcept {
    const std::int64_t* const counts = counts_.data();
    const std::uint32_t slot = slots_.least(barred, [counts](std::size_t at) { return counts[at]; });
    if (slot == no_slot) return no_slot;
    const std::int64_t there = counts[slots_.index(slots_[slot])];
    return counts[slots_.index(incoming.id)] > there + there * margin_percent / 100 ? slot : no_slot;
  }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    const ExpertId before = slots_[slot];
    if (before.expert != no_expert) unknown_.add(0, static_cast<std::uint16_t>(slots_.layer(before.layer)));
    unknown_.add(0, static_cast<std::uint16_t>(slots_.layer(what.id.layer)));
    slots_.put(slot, what.id, counts_[slots_.index(what.id)]);
  }

  /// The absent expert that was used most, the lowest of those that tie; `no_expert` if none was ever used.
  FERRY_HD ExpertId wanted() noexcept {
    unknown_.for_each(0, [&](std::uint16_t l) { most_expert_[l] = slots_.most_absent(l, counts_.data(), most_[l]); });
    unknown_.clear(0);
    ExpertId best{0, no_expert};
    std::int64_t most = 0;
    for (std::uint32_t l = 0; l < slots_.layers(); ++l) {
      if (most_[l] <= most) continue;
      most = most_[l];
      best = {static_cast<std::uint16_t>(first_layer_ + l), most_expert_[l]};
    }
    return best;
  }

  FERRY_HD std::int64_t more_uses(ExpertId id, std::uint32_t slot) const noexcept {
    const std::int64_t there = slot == no_slot ? 0 : counts_[slots_.index(slots_[slot])];
    return (counts_[slots_.index(id)] - there) / (weight_ >> 10U) << 10U;
  }

  [[nodiscard]] const char* check() const noexcept {
    if (weight_ < one || weight_ >= one << 16U) return "DecayedFrequency: the weight of a use is out of range";
    for (const std::int64_t count : counts_) {
      if (count < 0 || count >= std::int64_t{1} << 62U) return "DecayedFrequency: a count is out of range";
    }
    return slots_.check([this](std::size_t at) { return counts_[at]; });
  }

 private:
  static constexpr std::int64_t one = 1 << 20;

  /// 2^(1/half_life) - 1 in units of 2^-24, by its series: x = ln 2 / half_life, x + x^2/2 + x^3/6 + ...
  FERRY_HD std::int64_t growth() const noexcept {
    const std::int64_t x = (std::int64_t{11629080} + half_life / 2) / half_life;  // ln 2 = 11629080 / 2^24
    std::int64_t term = x, sum = 0;
    for (std::int64_t n = 2; term > 0; ++n) {
      sum += term;
      term = (term * x >> 24U) / n;
    }
    return sum;
  }

  detail::SlotExperts slots_;
  Array<std::int64_t> counts_;        ///< [layers, experts], weighted
  Array<std::int64_t> most_;          ///< [layers], of those that are absent, unless unknown
  Array<std::uint16_t> most_expert_;  ///< [layers], whose that is
  detail::ExpertSets unknown_;        ///< one, of layers
  std::int64_t weight_ = one;         ///< of a use in this step
  std::uint16_t first_layer_ = 0;
};

static_assert(CachePolicy<DecayedFrequency>);

}  // namespace ferry::inline FERRY_ABI
