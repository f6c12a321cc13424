/// @file
/// Which expert sits in which slot of a pool: what policies that rank experts share.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/expert_set.hpp"

namespace ferry {

/// The experts of a pool by slot, where each expert of the pool's layers has its place in an array of
/// [layers, experts], and which of them is worth least.
///
/// A slot that was freed keeps its last expert: a victim is asked for only when every slot is taken.
///
/// The least of each layer is remembered with its key, so that a victim costs one comparison a layer. Only where it has
/// left or its key grew, or where it is barred and would win, the layer's experts are looked at one by one. For that,
/// the keys of a layer may change only as `grew` and `changed` say; what is made of keys, layer by layer, may at any
/// time.
///
/// Complexity: O(1), `least` O(layers + experts of a changed layer), `changed()` O(layers).
/// State: 8 bytes a slot, 4 an expert, 8 and a key a layer and 8 for each 64 experts of it.
template <class Key>
class SlotExperts {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    pool_ = pool;
    carve(experts_, pool.slots, ExpertId{pool.first_layer, no_expert});
    carve(next_, pool.slots, no_slot);
    carve(slot_of_, size(), no_slot);
    carve(least_, pool.layers, no_slot);
    carve(key_, pool.layers);
    held_.reserve(carve, pool.layers, pool.experts);
  }

  /// `key`: that of `id` at present.
  FERRY_HD void put(std::uint32_t slot, ExpertId id, const Key& key) noexcept {
    if (experts_[slot].expert != no_expert) take_out(slot);
    experts_[slot] = id;
    std::uint32_t& first = slot_of_[index(id)];
    next_[slot] = first;
    first = slot;
    const std::uint32_t l = layer(id.layer);
    held_.add(l, id.expert);
    std::uint32_t& least = least_[l];
    if (least == unknown) return;
    if (least == no_slot || key < key_[l] || (!(key_[l] < key) && slot < least)) {
      least = slot;
      key_[l] = key;
    }
  }
  FERRY_HD ExpertId operator[](std::uint32_t slot) const noexcept { return experts_[slot]; }

  /// The key of an expert of the pool may have grown.
  FERRY_HD void grew(ExpertId id) noexcept {
    std::uint32_t& slot = least_[layer(id.layer)];
    if (slot < pool_.slots && experts_[slot].expert == id.expert) slot = unknown;
  }
  /// Keys of a layer may have changed in any way.
  FERRY_HD void changed(std::uint16_t of_model) noexcept { least_[layer(of_model)] = unknown; }
  /// All keys may have.
  FERRY_HD void changed() noexcept {
    for (std::uint32_t& slot : least_) slot = unknown;
  }

  /// How many experts the pool's layers have together.
  FERRY_HD std::uint32_t size() const noexcept { return std::uint32_t{pool_.layers} * pool_.experts; }
  FERRY_HD std::uint32_t index(ExpertId id) const noexcept { return layer(id.layer) * pool_.experts + id.expert; }
  /// A layer of the model, counted from the pool's first.
  FERRY_HD std::uint32_t layer(std::uint16_t of_model) const noexcept {
    return std::uint32_t{of_model} - pool_.first_layer;
  }
  FERRY_HD std::uint32_t layers() const noexcept { return pool_.layers; }
  FERRY_HD std::uint32_t experts() const noexcept { return pool_.experts; }

  /// The slot whose expert has the least `worth(key(id), layer of the pool)`, the lowest of those that tie, among those
  /// not barred; `no_slot` if all are, or empty. `worth` keeps the order of keys.
  template <class KeyOf, class Worth>
  FERRY_HD std::uint32_t least(Barred barred, const KeyOf& key, const Worth& worth) noexcept {
    const std::uint32_t slots = pool_.slots, layers = pool_.layers;
    std::uint32_t* const leasts = least_.data();
    Key* const keys = key_.data();
    std::uint32_t found = no_slot;
    decltype(worth(Key{}, 0U)) lowest{};
    const auto consider = [&](std::uint32_t slot, const Key& k, std::uint32_t l) {
      const auto w = worth(k, l);
      const bool better = w < lowest || (!(lowest < w) && slot < found) || found == no_slot;
      lowest = better ? w : lowest;
      found = better ? slot : found;
    };
    bool some_barred = false;
    for (std::uint32_t l = 0; l < layers; ++l) {
      if (leasts[l] == unknown) leasts[l] = least_among(l, {}, key, keys[l]);
      const std::uint32_t slot = leasts[l];
      if (slot == no_slot) continue;
      if (barred[slot]) {
        some_barred = true;
      } else {
        consider(slot, keys[l], l);
      }
    }
    for (std::uint32_t l = 0; some_barred && l < layers; ++l) {
      // What else the layer has is worth no less.
      if (leasts[l] >= slots || !barred[leasts[l]] || (found != no_slot && lowest < worth(keys[l], l))) continue;
      Key k = keys[l];
      const std::uint32_t slot = least_among(l, barred, key, k);
      if (slot != no_slot) consider(slot, k, l);
    }
    return found;
  }
  template <class KeyOf>
  FERRY_HD std::uint32_t least(Barred barred, const KeyOf& key) noexcept {
    return least(barred, key, [](const Key& k, std::uint32_t /*layer*/) { return k; });
  }

 private:
  static constexpr std::uint32_t unknown = no_slot - 1;

  FERRY_HD void take_out(std::uint32_t slot) noexcept {
    const ExpertId id = experts_[slot];
    const std::uint32_t l = layer(id.layer);
    std::uint32_t* at = &slot_of_[index(id)];
    if (*at == slot && next_[slot] == no_slot) held_.remove(l, id.expert);
    while (*at != slot) at = &next_[*at];
    *at = next_[slot];
    if (least_[l] == slot) least_[l] = unknown;
  }

  /// Sets `lowest` to its key.
  template <class KeyOf>
  FERRY_HD std::uint32_t least_among(std::uint32_t l, Barred barred, const KeyOf& key, Key& lowest) const noexcept {
    std::uint32_t found = no_slot;
    held_.for_each(l, [&](std::uint16_t e) {
      const ExpertId id{static_cast<std::uint16_t>(pool_.first_layer + l), e};
      const Key k = key(id);
      if (found != no_slot && lowest < k) return;
      for (std::uint32_t slot = slot_of_[index(id)]; slot != no_slot; slot = next_[slot]) {
        if (barred.flags != nullptr && barred[slot]) continue;
        if (found != no_slot && !(k < lowest) && found < slot) continue;
        found = slot;
        lowest = k;
      }
    });
    return found;
  }

  Array<ExpertId> experts_;       ///< [slots]; no_expert: nothing was put there yet
  Array<std::uint32_t> next_;     ///< [slots] another slot with the same expert, at another precision
  Array<std::uint32_t> slot_of_;  ///< [layers, experts] the first of them
  Array<std::uint32_t> least_;    ///< [layers] the slot of the least, whatever is barred; `unknown`, or none
  Array<Key> key_;                ///< [layers] its key
  ExpertSets held_;               ///< by layer
  PoolShape pool_;
};

/// How near the layers of a pool are to the present one: as many as the pool has layers, less the distance, which is 0
/// for the present one itself. Layers behind it come round in the next step: HOBBIT's l_n - (l_t - l_i + l_n) mod l_n.
class Nearness {
 public:
  template <class Key>
  FERRY_HD Nearness(const SlotExperts<Key>& slots, ExpertId now) noexcept
      : layers_(slots.layers()), now_(slots.layer(now.layer)) {}

  /// `layer` is counted from the pool's first.
  FERRY_HD std::uint32_t operator()(std::uint32_t layer) const noexcept {
    return layer >= now_ ? layers_ + now_ - layer : now_ - layer;
  }

 private:
  std::uint32_t layers_, now_;
};

}  // namespace ferry
