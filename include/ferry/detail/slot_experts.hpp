/// @file
/// Which expert sits in which slot of a pool: what policies that rank experts share.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/expert_set.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The key of an expert in an array [layers, experts].
struct KeyIn {
  const std::int64_t* keys;
  FERRY_HD std::int64_t operator()(std::size_t at) const noexcept { return keys[at]; }
};

/// The experts of a pool by slot, where each expert of the pool's layers has its place in an array of
/// [layers, experts], and which of them is worth least. Keys and worths are below 2^62.
///
/// A slot that was freed keeps its last expert: a victim is asked for only when every slot is taken.
///
/// The least of each layer is remembered with its key, so that finding a victim takes one comparison a layer. A layer's
/// experts are looked at only if its least has left, its key grew, or it would win and is barred. So whoever changes a key
/// must say so by `grew` or `changed`; what `worth` makes of keys and layers may change at any time.
///
/// Complexity: O(1), `least` O(layers + experts of a changed layer), `changed()` O(layers).
/// State: 8 bytes a slot, 4 an expert, 32 a layer (of the next multiple of 8) and 8 for each 64 experts of one.
class SlotExperts {
 public:
  /// Above all keys: the worth of a layer that has no expert, or that `least` is to leave out.
  static constexpr std::int64_t nobody = std::int64_t{1} << 62U;

  void reserve(Carver& carve, const PoolShape& pool) {
    pool_ = pool;
    carve(experts_, pool.slots, ExpertId{pool.first_layer, no_expert});
    carve(next_, pool.slots, no_slot);
    carve(slot_of_, size(), no_slot);
    const std::uint32_t whole = (pool.layers + 7U) / 8U * 8U;  // vectors without a remainder
    carve(least_, whole, std::int64_t{no_slot});
    carve(key_, whole, nobody);
    carve(candidate_, whole, std::int64_t{no_slot});
    carve(worth_, whole, nobody);
    held_.reserve(carve, pool.layers, pool.experts);
    unknown_.reserve(carve, 1, pool.layers);
  }

  /// `key`: that of `id` at present.
  FERRY_HD void put(std::uint32_t slot, ExpertId id, std::int64_t key) noexcept {
    if (experts_[slot].expert != no_expert) take_out(slot);
    experts_[slot] = id;
    std::uint32_t& first = slot_of_[index(id)];
    shared_ = shared_ || first != no_slot;
    next_[slot] = first;
    first = slot;
    const std::uint32_t l = layer(id.layer);
    held_.add(l, id.expert);
    if (least_[l] == no_slot || key < key_[l] || (!(key_[l] < key) && slot < least_[l])) {  // if unknown, it stays so
      least_[l] = slot;
      key_[l] = key;
    }
  }
  FERRY_HD ExpertId operator[](std::uint32_t slot) const noexcept { return experts_[slot]; }

  /// The key of an expert of the pool may have grown.
  FERRY_HD void grew(ExpertId id) noexcept {
    const std::uint32_t l = layer(id.layer);
    if (least_[l] != no_slot && experts_[static_cast<std::uint32_t>(least_[l])].expert == id.expert)
      unknown_.add(0, static_cast<std::uint16_t>(l));
  }
  /// Keys of a layer may have changed in any way.
  FERRY_HD void changed(std::uint16_t of_model) noexcept {
    unknown_.add(0, static_cast<std::uint16_t>(layer(of_model)));
  }
  /// All keys may have.
  FERRY_HD void changed() noexcept {
    for (std::uint16_t l = 0; l < pool_.layers; ++l) unknown_.add(0, l);
  }

  /// Finds the least again where it is not known, ahead of whoever asks for it next.
  template <class KeyAt>
  FERRY_HD void resolve(const KeyAt& key) noexcept {
    unknown_.for_each(0, [&](std::uint16_t l) { least_[l] = least_among(l, {}, key, key_[l]); });
    unknown_.clear(0);
  }

  /// How many experts the pool's layers have together.
  FERRY_HD std::uint32_t size() const noexcept { return std::uint32_t{pool_.layers} * pool_.experts; }
  FERRY_HD std::uint32_t index(ExpertId id) const noexcept { return layer(id.layer) * pool_.experts + id.expert; }
  /// A layer of the model, counted from the pool's first.
  FERRY_HD std::uint32_t layer(std::uint16_t of_model) const noexcept {
    return std::uint32_t{of_model} - pool_.first_layer;
  }
  FERRY_HD std::uint32_t layers() const noexcept { return pool_.layers; }
  /// How many experts of a layer have a slot.
  FERRY_HD std::uint32_t held(std::uint32_t l) const noexcept { return held_.size(l); }
  /// Which have, one set a layer.
  FERRY_HD const ExpertSets& held() const noexcept { return held_; }
  FERRY_HD std::uint32_t experts() const noexcept { return pool_.experts; }

  /// The slot whose expert has the least `worth(key(index), layer)`, the lowest of those that tie, among slots that are not
  /// barred; `no_slot` if each is barred, empty, or of a layer that is worth `nobody`. Layers are counted from the pool's
  /// first; `worth` keeps the order of a layer's keys.
  template <class KeyAt, class Worth>
  FERRY_HD std::uint32_t least(Barred barred, const KeyAt& key, const Worth& worth) noexcept {
    resolve(key);
    const std::int64_t *const least = least_.data(), *const keys = key_.data();
    std::int64_t* const worths = worth_.data();
    for (std::uint32_t l = 0; l < pool_.layers; ++l) worths[l] = least[l] == no_slot ? nobody : worth(keys[l], l);
    const std::uint32_t slot = first_of_least(worths, least);
    return slot == no_slot || !barred[slot] ? slot : least_not_barred(slot, barred, key, worth);
  }
  /// The same where an expert is worth its key.
  template <class KeyAt>
  FERRY_HD std::uint32_t least(Barred barred, const KeyAt& key) noexcept {
    resolve(key);
    if (pool_.layers == 1) {
      const auto slot = static_cast<std::uint32_t>(least_[0]);
      std::int64_t lowest = nobody;
      return slot == no_slot || !barred[slot] ? slot : least_among(0, barred, key, lowest);
    }
    const std::uint32_t slot = first_of_least(key_.data(), least_.data());
    if (slot == no_slot || !barred[slot]) return slot;
    copy(key_, worth_);
    return least_not_barred(slot, barred, key, [](std::int64_t k, std::uint32_t /*layer*/) { return k; });
  }

  /// The same of the experts of one layer of the pool.
  template <class KeyAt>
  FERRY_HD std::uint32_t least_of(std::uint32_t l, Barred barred, const KeyAt& key) const noexcept {
    if (!unknown_.has(0, static_cast<std::uint16_t>(l))) {
      const auto slot = static_cast<std::uint32_t>(least_[l]);
      if (slot == no_slot || !barred[slot]) return slot;
    }
    std::int64_t lowest = nobody;
    return least_among(l, barred, key, lowest);
  }

  /// Of a layer of the pool, the lowest of the experts without a slot that have the largest of `keys` [layers, experts];
  /// `no_expert` and 0 if none of those is above 0.
  FERRY_HD std::uint16_t most_absent(std::uint32_t l, const std::int64_t* keys, std::int64_t& most) const noexcept {
    std::uint16_t found = no_expert;
    most = 0;
    const std::int64_t* const of_layer = keys + std::size_t{l} * pool_.experts;
    for (std::uint32_t e = 0; e < pool_.experts; e += 64) {
      const std::uint64_t n = pool_.experts - e < 64 ? pool_.experts - e : 64, held = held_.word(l, e / 64);
      std::int64_t absent[64], high = 0;
      for (std::uint64_t i = 0; i < n; ++i) {
        const auto here = static_cast<std::int64_t>((held >> i & 1U) - 1U);
        absent[i] = of_layer[e + i] & here;
      }
      for (std::uint64_t i = 0; i < n; ++i) high = absent[i] > high ? absent[i] : high;
      if (high <= most) continue;
      most = high;
      std::uint64_t first = 0;
      while (absent[first] != high) ++first;
      found = static_cast<std::uint16_t>(e + first);
    }
    return found;
  }

  /// The first invariant that does not hold, or nullptr. Every key is looked at anew.
  template <class KeyAt>
  [[nodiscard]] const char* check(const KeyAt& key) const noexcept {
    if (const char* broken = check_slots()) return broken;
    for (std::uint32_t l = 0; l < least_.size(); ++l) {
      if (l < pool_.layers && unknown_.has(0, static_cast<std::uint16_t>(l))) continue;
      std::int64_t low = nobody, found = no_slot;
      for (std::uint32_t slot = 0; slot < experts_.size(); ++slot) {
        const ExpertId id = experts_[slot];
        if (id.expert == no_expert || layer(id.layer) != l || key(index(id)) >= low) continue;
        low = key(index(id));
        found = slot;
      }
      if (least_[l] != found) return "SlotExperts: the least that a layer remembers is another";
      if (key_[l] != low) return "SlotExperts: the least that a layer remembers has another key";
    }
    return nullptr;
  }

 private:
  /// Of all layers.
  FERRY_HD static void copy(const Array<std::int64_t>& from, Array<std::int64_t>& to) noexcept {
    const std::int64_t* const source = from.data();
    std::int64_t* const target = to.data();
    for (std::uint32_t l = 0, n = from.size(); l < n; ++l) target[l] = source[l];
  }

  /// The lowest of the slots, one a layer, with the least worth. Two loops that compilers make vectors of.
  FERRY_HD std::uint32_t first_of_least(const std::int64_t* worths, const std::int64_t* slots) const noexcept {
    const std::uint32_t n = worth_.size();
    std::int64_t low = nobody;
    for (std::uint32_t l = 0; l < n; ++l) low = worths[l] < low ? worths[l] : low;
    if (low >= nobody) return no_slot;
    std::int64_t first = no_slot;
    for (std::uint32_t l = 0; l < n; ++l) {
      const std::int64_t slot = worths[l] <= low ? slots[l] : no_slot;
      first = slot < first ? slot : first;
    }
    return static_cast<std::uint32_t>(first);
  }

  /// `slot` has the least of `worth_`, and is barred: tries the next least of its layer, which is worth no less, and so on.
  template <class KeyAt, class Worth>
  FERRY_HD std::uint32_t least_not_barred(std::uint32_t slot, Barred barred, const KeyAt& key,
                                          const Worth& worth) noexcept {
    std::int64_t* const candidate = candidate_.data();
    copy(least_, candidate_);
    while (slot != no_slot && barred[slot]) {
      const std::uint32_t l = layer(experts_[slot].layer);
      std::int64_t k = nobody;
      candidate[l] = least_among(l, barred, key, k);
      worth_[l] = candidate[l] == no_slot ? nobody : worth(k, l);
      slot = first_of_least(worth_.data(), candidate);
    }
    return slot;
  }

  /// Slots and experts name each other.
  const char* check_slots() const noexcept {
    std::uint32_t filled = 0, named = 0;
    for (const ExpertId id : experts_) filled += id.expert != no_expert ? 1 : 0;
    for (std::uint32_t at = 0; at < size(); ++at) {
      const auto l = static_cast<std::uint16_t>(at / pool_.experts), e = static_cast<std::uint16_t>(at % pool_.experts);
      if (held_.has(l, e) != (slot_of_[at] != no_slot)) return "SlotExperts: a set and the slots disagree on an expert";
      for (std::uint32_t slot = slot_of_[at]; slot != no_slot; slot = next_[slot]) {
        if (slot >= experts_.size() || experts_[slot].expert == no_expert || index(experts_[slot]) != at)
          return "SlotExperts: an expert names a slot that holds another";
        if (slot != slot_of_[at] && !shared_) return "SlotExperts: the second slot of an expert would be overlooked";
        if (++named > filled) return "SlotExperts: an expert names a slot twice";
      }
    }
    return named == filled ? nullptr : "SlotExperts: an expert does not name its slot";
  }

  FERRY_HD void take_out(std::uint32_t slot) noexcept {
    const ExpertId id = experts_[slot];
    const std::uint32_t l = layer(id.layer);
    std::uint32_t* at = &slot_of_[index(id)];
    if (*at == slot && next_[slot] == no_slot) held_.remove(l, id.expert);
    while (*at != slot) at = &next_[*at];
    *at = next_[slot];
    if (least_[l] == slot) unknown_.add(0, static_cast<std::uint16_t>(l));
  }

  /// Sets `lowest` to its key; to `nobody` if there is none.
  template <class KeyAt>
  FERRY_HD std::uint32_t least_among(std::uint32_t l, Barred barred, const KeyAt& key,
                                     std::int64_t& lowest) const noexcept {
    if (shared_) return least_among_shared(l, barred, key, lowest);
    Least least;
    for (std::uint32_t e = 0; e < pool_.experts; e += 64) {
      const std::size_t at = std::size_t{l} * pool_.experts + e;
      const std::uint64_t open = open_among(at, held_.word(l, e / 64), barred);
      if (pool_.experts - e < 64) {
        least_of_word(at, pool_.experts - e, open, key, least);
      } else if (open != 0) {
        least_of_word(at, 64, open, key, least);  // a loop of known length is a few vectors
      }
    }
    lowest = least.key;
    return static_cast<std::uint32_t>(least.slot);
  }

  struct Least {
    std::int64_t key = nobody, slot = no_slot;
  };

  /// Of 64 experts from the one at `at`, of which `held` have a slot: those whose slot is not barred.
  FERRY_HD std::uint64_t open_among(std::size_t at, std::uint64_t held, Barred barred) const noexcept {
    if (barred.flags == nullptr) return held;
    std::uint64_t open = held;
    for (std::uint64_t left = held; left != 0; left &= left - 1) {
      const std::uint32_t bit = lowest_bit(left);
      open ^= std::uint64_t{barred[slot_of_[at + bit]]} << bit;
    }
    return open;
  }

  /// The least of the `n` experts from the one at `at` that are `open`, if it is less than `least`. The others are looked
  /// at all the same: compilers make vectors of these loops.
  template <class KeyAt>
  FERRY_HD FERRY_HOT void least_of_word(std::size_t at, std::uint64_t n, std::uint64_t open, const KeyAt& key,
                                        Least& least) const noexcept {
    const std::uint32_t* const slot_of = slot_of_.data() + at;
    std::int64_t keys[64], low = nobody, slot = no_slot;
    for (std::uint64_t i = 0; i < n; ++i) {
      const auto barred = static_cast<std::int64_t>((open >> i & 1U) - 1U);
      keys[i] = key(at + i) | (barred & nobody);
    }
    for (std::uint64_t i = 0; i < n; ++i) low = keys[i] < low ? keys[i] : low;
    if (low > least.key || low >= nobody) return;
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::int64_t s = keys[i] == low ? std::int64_t{slot_of[i]} : std::int64_t{no_slot};
      slot = s < slot ? s : slot;
    }
    if (low < least.key || slot < least.slot) least = {low, slot};
  }

  /// The same where an expert may have several slots.
  template <class KeyAt>
  FERRY_HD std::uint32_t least_among_shared(std::uint32_t l, Barred barred, const KeyAt& key,
                                            std::int64_t& lowest) const noexcept {
    Least least;
    held_.for_each(l, [&](std::uint16_t e) {
      const std::int64_t k = key(std::size_t{l} * pool_.experts + e);
      for (std::uint32_t s = slot_of_[l * pool_.experts + e]; s != no_slot; s = next_[s]) {
        const bool open = barred.flags == nullptr || !barred[s];
        if (open && (k < least.key || (k == least.key && s < least.slot))) least = {k, s};
      }
    });
    lowest = least.key;
    return static_cast<std::uint32_t>(least.slot);
  }

  Array<ExpertId> experts_;       ///< [slots]; no_expert: nothing was put there yet
  Array<std::uint32_t> next_;     ///< [slots] another slot with the same expert, at another precision
  Array<std::uint32_t> slot_of_;  ///< [layers, experts] the first of them
  Array<std::int64_t> least_;  ///< [layers, to whole vectors] the slot of the least, whatever is barred; unless unknown
  Array<std::int64_t> key_;    ///< likewise, its key
  Array<std::int64_t> candidate_;  ///< likewise slots, while a victim is sought
  Array<std::int64_t> worth_;      ///< likewise, of each
  ExpertSets held_;                ///< by layer
  ExpertSets unknown_;             ///< one, of layers
  PoolShape pool_;
  bool shared_ = false;  ///< some expert had two slots once
};

/// What each layer of a pool is worth for being near the present one: `each` times the number of the pool's layers less the
/// distance, which is 0 for the present one itself. Earlier layers come round in the next step: HOBBIT's
/// l_n - (l_t - l_i + l_n) mod l_n. Complexity: O(1), O(layers) for another present layer. State: 8 bytes a layer.
class Nearness {
 public:
  void reserve(Carver& carve, const PoolShape& pool) { carve(worth_, pool.layers); }

  /// [layers], from the pool's first; so is `now`, the present one.
  FERRY_HD const std::int64_t* operator()(std::uint32_t now, std::int64_t each) noexcept {
    if (now == now_ && each == each_) return worth_.data();
    now_ = now;
    each_ = each;
    const std::uint32_t layers = worth_.size();
    std::int64_t* const worth = worth_.data();
    std::int64_t behind = each * now, ahead = each * layers;
    for (std::uint32_t l = 0; l < now; ++l, behind -= each) worth[l] = behind;
    for (std::uint32_t l = now; l < layers; ++l, ahead -= each) worth[l] = ahead;
    return worth;
  }

  /// The formula itself, for every layer.
  [[nodiscard]] const char* check() const noexcept {
    if (now_ == no_slot) return nullptr;
    const std::uint32_t layers = worth_.size();
    for (std::uint32_t l = 0; l < layers; ++l) {
      if (worth_[l] != each_ * (layers - (l + layers - now_) % layers)) return "Nearness: a layer's worth is wrong";
    }
    return nullptr;
  }

 private:
  Array<std::int64_t> worth_;
  std::int64_t each_ = 0;
  std::uint32_t now_ = no_slot;
};

}  // namespace ferry::inline FERRY_ABI::detail
