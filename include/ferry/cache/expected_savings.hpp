/// @file
/// What each expert's place saved of late and what it will save soon, and who may take whose.
#pragma once
#include <cmath>

#include "ferry/detail/duel.hpp"
#include "ferry/detail/growing_weight.hpp"
#include "ferry/detail/last_uses.hpp"
#include "ferry/detail/next_uses.hpp"
#include "ferry/detail/quick_memory.hpp"
#include "ferry/detail/slot_experts.hpp"

namespace ferry::inline FERRY_ABI {

/// Ranks experts by the time that their place on the device is expected to save. A newcomer takes a place only if it ranks
/// above who has it: what is not worth its place streams through, or is computed on the host. So neither a prompt, which uses
/// nearly all experts, nor an expert that is used once flushes the cache.
///
///     rank(e) = s(e) + 2 w^2 v(e) a
///
/// s: what its place saved a step of late, or would have saved while the expert was absent. What a step saved counts half as
/// much after `half_life` steps; or, as far as a shorter memory has told more of late, after an eighth of those steps
/// (detail::QuickMemory), so that the experts of one subject do not outlive it. The placement says what a use saves (`saves`),
/// layer by layer: where a second expert of a layer saves next to nothing beside a first, it counts for less. In a pool of all
/// layers this also shares the slots among them, by what one more slot brings to each.
///
/// v: how soon it will be used again, from 0 to 1, learned from what the last two tokens of each sequence chose
/// (detail::NextUses). a: what a use in its layer saved last, whichever was more: of experts that were there, or of the
/// others. Nothing is trained beforehand.
///
/// w: the share of misses that, of late, were loaded rather than computed on the host. To keep an expert that will be used soon
/// is free where it was loaded anyway, and where the expert that it replaces will be loaded when that is used again. An expert
/// that the host computed must first be copied, and then stay: so a newcomer that nobody waits for counts with s alone
/// (`wanted`, `more_saved`). A w below a quarter counts as 0, and nothing is learned.
///
/// Small counts are noisy. So `more_saved` subtracts sqrt(uses) (1/2 + w^2) from the difference, where `uses` counts those of
/// both experts: 0.7 standard deviations of uses that decay, more where the newcomer's next use would load it anyway, and more
/// where few steps tell (QuickMemory::spread). And unless shares are followed (below), an expert that is loaded takes a place
/// of another layer only if that place ranks below the least of its own layer by more than 3/2 w^2 sqrt(both); if all of its
/// own layer's are in use, below itself.
///
/// Where past savings tell nothing about what comes (QuickMemory::tells), what is there stays in decode: `victim` refuses, and
/// `gain` is 0. A newcomer would be no better, and where experts take turns it would evict the one that is used next. Free
/// slots are filled all the same. A pool of one layer whose misses are loaded (w of a quarter or more) has too few uses to
/// judge this, and goes on by rank. Following the last use (below) takes precedence.
///
/// The rank assumes that routing stays as it is. If keeping what was used last would have served more of the recent uses, even
/// after the copies that it takes, experts are kept by their last use until that stops being true (detail::LastUses), but
/// never in a prompt. Then, unless shares are followed, another layer's slot is taken only if its expert was used more than
/// one step earlier than the least of the newcomer's own layer (than the newcomer's own, where none of those can be taken).
///
/// In a pool of several layers, where nearly all misses are loaded (w of 15/16), these rules may take from a layer the experts
/// that it uses in turn. So another rule is watched beside them: equal shares. A layer that has its share of the slots, or
/// more, gives up its own least; one that has less takes the least of the layers that have more. The rule whose victims are
/// used later is followed (detail::Duel). Until one leads, that is the rules above while experts are kept by rank, and equal
/// shares while they are kept by their last use. The case that no slot of the newcomer's own layer can be taken is decided
/// separately. Prompts tell nothing about it. A share counts experts.
///
/// `wanted()` names the absent expert that saved most (while experts are kept by their last use, the one used last), which a
/// scheduler that promotes brings next. `gain` is how much more a place would save with the missing expert than with the one
/// that ranked least when a decode step last sought a victim, whichever it chose. In a prompt, when little may have been
/// counted yet, the difference is scaled to the number of steps of a full count.
///
/// Source: ours. s is after LRFU (Lee et al., 2001, "LRFU: a spectrum of policies that subsumes the least recently used and
/// least frequently used policies"), whose F(x) = 2^(-lambda x) this is with lambda = 1 / half_life and steps for time;
/// LRFU itself admits everything, and counts uses.
///
/// Complexity: a use O(1); victim O(layers + experts of three layers and of each whose least is barred); wanted O(layers +
/// experts of each layer used since the last call); after a layer, that of detail::QuickMemory and detail::LastUses, and where
/// w counts that of detail::NextUses. State: 28 bytes an expert of the pool's layers, 51 a layer, 8 a slot, and that of these
/// three and of detail::Duel.
///
/// Ambiguities resolved. In decode a use counts once an expert and step, however many rows chose it; prompts count as
/// detail::GrowingWeight says, and change no w. Before the first misses w is 1. In a prompt a newcomer takes only a place of
/// its own layer: another layer's expert would be copied again in this very step or the next. Layers that this step has not
/// come to yet rank as the last one left them. A prefetch is no use, and a use that saves nothing counts nowhere. For v what
/// the gate chose counts, whatever was run instead. Savings do not end with a sequence. They are integers, in units of 16 ns
/// and at most a second a use.
class ExpectedSavings {
 public:
  std::uint32_t half_life = 128;  ///< steps, 1 to 4096

  void reserve(Carver& carve, const PoolShape& pool) {
    weight_.set(half_life, "ExpectedSavings");
    first_layer_ = pool.first_layer;
    slots_.reserve(carve, pool);
    next_uses_.reserve(carve, pool.layers, pool.experts);
    last_uses_.reserve(carve, pool.layers, pool.experts);
    quick_.reserve(carve, pool.layers, pool.experts, half_life, "ExpectedSavings");
    duel_.reserve(carve, slots_.size());
    share_ = pool.slots / pool.layers;
    carve(counted_saved_, slots_.size());
    carve(saved_, slots_.size());
    carve(rank_, slots_.size());
    carve(each_, pool.layers);
    carve(most_, pool.layers);
    carve(most_expert_, pool.layers);
    unknown_.reserve(carve, 1, pool.layers);
    learned_.reserve(carve, 1, pool.layers);
  }

  FERRY_HD void begin_step(const Step& step) noexcept {
    const bool by_last_use = follows_last_use();
    prefill_ = step.phase == Phase::prefill;
    if (by_last_use != follows_last_use()) all_changed();
    rows_ = layer_rows_ = step.sequence.size;
    present_ = no_layer;
    next_uses_.begin_step(step);
    last_uses_.begin_step();
    duel_.begin_step();
    quick_.begin_step(step);
    const bool divide = weight_.begin_step(step);
    if (divide) {
      constexpr unsigned shift = detail::GrowingWeight::shift;
      time_ >>= shift;
      least_ >>= shift;
      for (std::int64_t& saved : saved_) saved >>= shift;
      for (std::int64_t& rank : rank_) rank >>= shift;
      for (std::int64_t& counted : counted_saved_) counted >>= shift;
      all_changed();
    }
    time_ += weight_() * weight_.steps();
  }

  FERRY_HD void reset() noexcept { next_uses_.forget(); }

  FERRY_HD void chosen(std::uint16_t layer, View<const Route> taken, View<const std::uint32_t> rows) noexcept {
    layer_rows_ = rows.size > 0 ? rows.size : rows_;
    const std::uint32_t l = slots_.layer(layer);
    next_uses_.note(l, taken, rows);
    const std::int64_t* const rank = rank_.data() + std::size_t{l} * slots_.experts();
    if (!prefill_) last_uses_.note(l, taken, layer_rows_, rank, slots_.held());
  }

  FERRY_HD void saved(View<const Request> uses, std::uint32_t rows, Nanoseconds each) noexcept {
    const std::uint32_t l = slots_.layer(uses[0].want.id.layer);
    if (present_ != l) each_[l] = 0;
    present_ = l;
    const std::int64_t units = each <= 0 ? 0 : ((each < second ? each : second) + 15) >> 4U;
    if (units == 0) return;
    last_ = units;
    copy_ = uses[0].copy_ns / 16;
    each_[l] = units > each_[l] ? units : each_[l];
    unknown_.add(0, static_cast<std::uint16_t>(l));
    const std::int64_t worth = weight_() * units;
    for (const Request& r : uses) {
      const std::int64_t counted = prefill_ ? of_rows(worth, rows, r.rows) : worth;
      const std::uint32_t at = slots_.index(r.want.id);
      const std::int64_t more = quick_.saved(at, units, rows, r.rows, counted);
      counted_saved_[at] += counted;
      saved_[at] += more;
      rank_[at] += more;
      last_uses_.used(at);
      if (!prefill_) duel_.used(at);
      slots_.grew(r.want.id);
    }
  }

  FERRY_HD void loaded(std::uint16_t layer, std::uint32_t loads, std::uint32_t misses) noexcept {
    if (!prefill_ && misses > 0) {
      counted_ += counted_ < 512 ? 1 : 0;
      const auto share = static_cast<std::int32_t>(std::uint64_t{loads} * all / misses);
      loaded_ += (share - loaded_) / counted_;
    }
    const auto l = static_cast<std::uint16_t>(slots_.layer(layer));
    const std::uint32_t experts = slots_.experts();
    const std::size_t first = std::size_t{l} * experts;
    const std::int64_t* const saved = saved_.data() + first;
    std::int64_t* const rank = rank_.data() + first;
    if (learns()) {
      const std::int32_t* const soon = next_uses_.ask(l);
      // Twice the steps that s counts, what a use saves, and w^2; by a v that counts 2^-14.
      const std::int64_t each = ((time_ >> 13U) * each_[l] >> 8U) * square();
      for (std::uint32_t e = 0; e < experts; ++e) rank[e] = saved[e] + each * soon[e];
      learned_.add(0, l);
    } else if (learned_.has(0, l)) {
      for (std::uint32_t e = 0; e < experts; ++e) rank[e] = saved[e];
      learned_.remove(0, l);
    } else {
      return;
    }
    slots_.changed(layer);
  }

  FERRY_HD void finished(std::uint16_t layer) noexcept {
    const std::uint32_t l = slots_.layer(layer);
    if (learns()) next_uses_.learn(l);
    if (last_uses_.compare(price())) all_changed();
    const std::size_t first = std::size_t{l} * slots_.experts();
    if (quick_.finish(l, counted_saved_.data() + first, time_, saved_.data() + first, rank_.data() + first)) {
      unknown_.add(0, static_cast<std::uint16_t>(l));
      slots_.changed(layer);
    }
    slots_.resolve(detail::KeyIn{keys()});  // nobody waits for it here, and the next plan need not do it
  }

  FERRY_HD void goes_on(const ExpectedSavings& before) noexcept {
    if (last_uses_.goes_on(before.last_uses_)) all_changed();
  }

  FERRY_HD Nanoseconds gain(const Request& miss) const noexcept {
    // This use is not counted yet.
    const std::int64_t each = each_[slots_.layer(miss.want.id.layer)];
    if (follows_last_use()) return soon();
    if (!prefill_ && !tells()) return 0;
    if (!prefill_) return (rank(miss.want.id) + weight_() * each - least_) / weight_() * 16;
    const std::int64_t now = of_rows(weight_() * (each > 0 ? each : last_), layer_rows_, miss.rows);
    const float steps = 1.442695F * static_cast<float>(half_life) / static_cast<float>(time_);  // that count, of all
    return static_cast<Nanoseconds>(static_cast<float>(rank(miss.want.id) + now - least_) * steps * 16);
  }

  /// By rank, all misses of a layer count on the slot of the expert that ranks least, and only one gets it. By last use, each
  /// gets a slot.
  FERRY_HD bool each_gains() const noexcept { return prefill_ || follows_last_use(); }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) noexcept {
    const std::uint32_t l = slots_.layer(incoming.id.layer);
    const detail::KeyIn key{keys()};
    if (prefill_) return outranked(incoming.id, slots_.least_of(l, barred, key));
    const std::uint32_t least = slots_.least(barred, key);
    if (least != no_slot) least_ = rank(slots_[least]);
    const bool by_last_use = follows_last_use();
    if (!by_last_use && !tells()) return no_slot;
    if (!by_last_use && !learns()) return outranked(incoming.id, least);
    const std::uint32_t own = slots_.least_of(l, barred, key);
    const std::uint32_t any = outranked(incoming.id, least_or_own(incoming.id, least, own));
    if (loaded_ < all / 16 * 15 || slots_.layers() == 1) return any;
    const std::uint32_t equal = outranked(incoming.id, of_equal_shares(l, least, own, barred));
    // Where none of its layer's can be taken, equal shares keep the newcomer out: another question.
    const std::uint32_t kind = (by_last_use ? 2U : 0U) + (own == no_slot ? 1U : 0U);
    const std::uint32_t usual = by_last_use ? equal : any, other = by_last_use ? any : equal;
    if (usual != other) duel_.begin(kind, leaving(incoming.id, usual), leaving(incoming.id, other));
    return duel_.second_leads(kind) ? other : usual;
  }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    const ExpertId before = slots_[slot];
    if (before.expert != no_expert) unknown_.add(0, static_cast<std::uint16_t>(slots_.layer(before.layer)));
    unknown_.add(0, static_cast<std::uint16_t>(slots_.layer(what.id.layer)));
    slots_.put(slot, what.id, key_of(what.id));
  }

  /// The absent expert that saved most, or was used last while that order is followed; of those that tie the lowest.
  /// `no_expert` if none was ever used.
  FERRY_HD ExpertId wanted() noexcept {
    const std::int64_t* const most = follows_last_use() ? keys() : saved_.data();
    unknown_.for_each(0, [&](std::uint16_t l) { most_expert_[l] = slots_.most_absent(l, most, most_[l]); });
    unknown_.clear(0);
    ExpertId best{0, no_expert};
    std::int64_t highest = 0;
    for (std::uint32_t l = 0; l < slots_.layers(); ++l) {
      if (most_[l] <= highest) continue;
      highest = most_[l];
      best = {static_cast<std::uint16_t>(first_layer_ + l), most_expert_[l]};
    }
    return best;
  }

  FERRY_HD Nanoseconds more_saved(ExpertId id, std::uint32_t slot) const noexcept {
    if (follows_last_use()) return soon();
    const std::int64_t newcomer = saved_[slots_.index(id)];
    const std::int64_t there = slot == no_slot ? 0 : rank(slots_[slot]);
    if (slot != no_slot && !tells()) return 0;
    const float both = (static_cast<float>(newcomer) + static_cast<float>(there)) / static_cast<float>(weight_());
    const float most = 0.5F * quick_.spread() + (learns() ? static_cast<float>(square()) / 256 : 0);
    const auto chance = static_cast<std::int64_t>(most * std::sqrt(both * static_cast<float>(last_)));
    return ((newcomer - there) / weight_() - chance) * 16;
  }

  [[nodiscard]] const char* check() const noexcept {
    if (!weight_.is_valid()) return "ExpectedSavings: the weight of a use is out of range";
    for (std::uint32_t at = 0; at < slots_.size(); ++at) {
      if (saved_[at] < 0 || saved_[at] > rank_[at]) return "ExpectedSavings: what an expert saved is out of range";
      if (rank_[at] >= detail::SlotExperts::nobody) return "ExpectedSavings: an expert's rank is out of range";
    }
    if (loaded_ < 0 || loaded_ > all) return "ExpectedSavings: the share of misses that are loaded is out of range";
    if (const char* broken = next_uses_.check()) return broken;
    if (const char* broken = quick_.check()) return broken;
    if (const char* broken = last_uses_.check()) return broken;
    if (const char* broken = duel_.check()) return broken;
    return slots_.check(detail::KeyIn{keys()});
  }

 private:
  static constexpr Nanoseconds second = 1'000'000'000;
  static constexpr std::int32_t all = 1 << 24;  ///< of the misses

  FERRY_HD bool learns() const noexcept { return loaded_ >= all / 4; }
  /// Whether ranks tell what comes. One layer has too few uses to say that they do not, where each wrong "no" costs a copy.
  FERRY_HD bool tells() const noexcept { return (learns() && slots_.layers() == 1) || quick_.tells(); }
  /// w^2, in units of 2^-8.
  FERRY_HD std::int32_t square() const noexcept { return (loaded_ >> 16U) * (loaded_ >> 16U) >> 8U; }
  /// What a prompt's step counts of an expert that so many of its rows chose.
  FERRY_HD std::int64_t of_rows(std::int64_t worth, std::uint32_t rows, std::uint32_t chose) const noexcept {
    return worth / rows * (chose < rows ? chose : rows) * weight_.steps();
  }
  FERRY_HD bool follows_last_use() const noexcept { return last_uses_.leads() && !prefill_; }
  /// What experts are kept by.
  FERRY_HD const std::int64_t* keys() const noexcept { return follows_last_use() ? last_uses_.keys() : rank_.data(); }
  FERRY_HD std::int64_t key_of(ExpertId id) const noexcept { return keys()[slots_.index(id)]; }
  FERRY_HD void all_changed() noexcept {
    slots_.changed();
    for (std::uint32_t l = 0; l < slots_.layers(); ++l) unknown_.add(0, static_cast<std::uint16_t>(l));
  }
  /// What bringing an expert costs that the host would compute, in uses: a quarter of its copy, for which the link has time.
  FERRY_HD std::int64_t price() const noexcept {
    constexpr std::int64_t most = 64;
    const std::int64_t copies =
        copy_ < most * last_ ? copy_ * detail::LastUses::one / last_ : most * detail::LastUses::one;
    return copies / 4 * (256 - (loaded_ >> 16U)) / 256;
  }
  /// What an expert that is used now will soon save, while the last use leads: as much as QuickMemory::span uses.
  FERRY_HD Nanoseconds soon() const noexcept { return last_ * 16 * detail::QuickMemory::span; }
  /// The slot with the least of all. Where that is another layer's and not far enough below the least of the own layer, the
  /// latter.
  FERRY_HD std::uint32_t least_or_own(ExpertId incoming, std::uint32_t least, std::uint32_t own) const noexcept {
    const bool by_last_use = follows_last_use();
    if (least == no_slot || (!by_last_use && slots_[least].layer == incoming.layer)) return least;
    const std::int64_t there = key_of(slots_[least]), here = key_of(own != no_slot ? slots_[own] : incoming);
    // As long ago as within its own layer, to a step: that layer's slots stay with it.
    const bool takes = by_last_use ? there + detail::LastUses::step < here : is_far_below(there, here);
    return takes ? least : own;
  }
  /// The least of the own layer, if that has its share of the slots, otherwise of those layers that have more than theirs; of
  /// the own again if there is none.
  FERRY_HD std::uint32_t of_equal_shares(std::uint32_t l, std::uint32_t least, std::uint32_t own,
                                         Barred barred) noexcept {
    if (slots_.held(l) >= share_) return own;
    const auto has_more = [this](std::uint32_t of) { return slots_.held(of) > share_; };
    if (least == no_slot || has_more(slots_.layer(slots_[least].layer))) return least;
    const std::uint32_t slot = slots_.least(
        barred, detail::KeyIn{keys()},
        [&has_more](std::int64_t key, std::uint32_t of) { return has_more(of) ? key : detail::SlotExperts::nobody; });
    return slot != no_slot ? slot : own;
  }
  /// The slot, if the newcomer ranks above who has it.
  FERRY_HD std::uint32_t outranked(ExpertId newcomer, std::uint32_t slot) const noexcept {
    return slot != no_slot && key_of(newcomer) > key_of(slots_[slot]) ? slot : no_slot;
  }
  /// Who has the slot; the newcomer itself where there is none for it.
  FERRY_HD std::uint32_t leaving(ExpertId newcomer, std::uint32_t slot) const noexcept {
    return slots_.index(slot != no_slot ? slots_[slot] : newcomer);
  }
  FERRY_HD std::int64_t rank(ExpertId id) const noexcept { return rank_[slots_.index(id)]; }
  /// With ranks as numbers of uses.
  FERRY_HD bool is_far_below(std::int64_t a, std::int64_t b) const noexcept {
    const float use = static_cast<float>(weight_()) * static_cast<float>(last_);
    const float both = (static_cast<float>(a) + static_cast<float>(b)) / use;
    return static_cast<float>(b - a) / use > 1.5F / 256 * static_cast<float>(square()) * std::sqrt(both);
  }

  detail::SlotExperts slots_;
  detail::NextUses next_uses_;
  detail::LastUses last_uses_;
  detail::QuickMemory quick_;
  detail::Duel duel_;  ///< of the least anywhere, and of equal shares
  detail::GrowingWeight weight_;
  Array<std::int64_t> counted_saved_;  ///< [layers, experts], weighted
  Array<std::int64_t> saved_;          ///< [layers, experts], what of that and of `quick_` is expected, in its units
  Array<std::int64_t> rank_;           ///< [layers, experts], the same with what is to be saved soon
  Array<std::int64_t> each_;           ///< [layers], the most that a use saved last
  Array<std::int64_t> most_;           ///< [layers], of `saved_` of those that are absent, unless unknown
  Array<std::uint16_t> most_expert_;   ///< [layers], whose that is
  detail::ExpertSets unknown_;         ///< one, of layers
  detail::ExpertSets learned_;         ///< one, of layers whose ranks are not what was saved alone
  std::int64_t time_ = 0;              ///< steps, weighted
  std::int64_t last_ = 1;              ///< what a use saved last
  std::int64_t copy_ = 0;              ///< what its copy took, in the same units
  std::int64_t least_ = 0;             ///< rank of who had the least when a place was sought last
  std::int32_t loaded_ = all;          ///< of the misses of late
  std::int32_t counted_ = 0;           ///< layers with misses, at most as many as `loaded_` is the mean of
  std::uint32_t present_ = no_layer;   ///< the layer of the pool that this step has come to
  std::uint32_t share_ = 0;            ///< slots of a layer, if all have as many; 0 where there are fewer than layers
  std::uint16_t first_layer_ = 0;
  bool prefill_ = false;
  std::uint32_t rows_ = 0, layer_rows_ = 0;  ///< of the step, and those of them that its layer has
};

static_assert(CachePolicy<ExpectedSavings>);

}  // namespace ferry::inline FERRY_ABI
