/// @file
/// Which expert sits in which slot of a pool: what policies that rank experts share.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/expert_set.hpp"

namespace ferry {

/// The experts of a pool by slot, where each expert of the pool's layers has its place in an array of
/// [layers, experts], and which of them is worth least. Keys and worths are below 2^62.
///
/// A slot that was freed keeps its last expert: a victim is asked for only when every slot is taken.
///
/// The least of each layer is remembered with its key, so that a victim costs one comparison a layer. Only where it has
/// left or its key grew, or where it is barred and would win, the layer's experts are looked at one by one. For that,
/// the keys of a layer may change only as `grew` and `changed` say; what is made of keys, layer by layer, may at any
/// time.
///
/// Complexity: O(1), `least` O(layers + experts of a changed layer), `changed()` O(layers).
/// State: 8 bytes a slot, 4 an expert, 32 a layer and 8 for each 64 experts of one.
class SlotExperts {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    pool_ = pool;
    carve(experts_, pool.slots, ExpertId{pool.first_layer, no_expert});
    carve(next_, pool.slots, no_slot);
    carve(slot_of_, size(), no_slot);
    carve(least_, pool.layers, std::int64_t{no_slot});
    carve(key_, pool.layers, nobody);
    carve(candidate_, pool.layers);
    carve(worth_, pool.layers);
    held_.reserve(carve, pool.layers, pool.experts);
    unknown_.reserve(carve, 1, pool.layers);
  }

  /// `key`: that of `id` at present.
  FERRY_HD void put(std::uint32_t slot, ExpertId id, std::int64_t key) noexcept {
    if (experts_[slot].expert != no_expert) take_out(slot);
    experts_[slot] = id;
    std::uint32_t& first = slot_of_[index(id)];
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

  /// How many experts the pool's layers have together.
  FERRY_HD std::uint32_t size() const noexcept { return std::uint32_t{pool_.layers} * pool_.experts; }
  FERRY_HD std::uint32_t index(ExpertId id) const noexcept { return layer(id.layer) * pool_.experts + id.expert; }
  /// A layer of the model, counted from the pool's first.
  FERRY_HD std::uint32_t layer(std::uint16_t of_model) const noexcept {
    return std::uint32_t{of_model} - pool_.first_layer;
  }
  FERRY_HD std::uint32_t layers() const noexcept { return pool_.layers; }
  FERRY_HD std::uint32_t experts() const noexcept { return pool_.experts; }

  /// The slot whose expert has the least `worth(key(index, layer), layer)`, the lowest of those that tie, among those
  /// not barred; `no_slot` if all are, or empty. Layers are the pool's; `worth` keeps the order of a layer's keys.
  template <class KeyAt, class Worth>
  FERRY_HD std::uint32_t least(Barred barred, const KeyAt& key, const Worth& worth) noexcept {
    std::int64_t* const least = least_.data();
    std::int64_t* const keys = key_.data();
    unknown_.for_each(0, [&](std::uint16_t l) { least[l] = least_among(l, {}, key, keys[l]); });
    unknown_.clear(0);
    const std::uint32_t layers = pool_.layers;
    std::int64_t* const candidate = candidate_.data();
    std::int64_t* const worths = worth_.data();
    for (std::uint32_t l = 0; l < layers; ++l) candidate[l] = least[l];
    for (std::uint32_t l = 0; l < layers; ++l) worths[l] = least[l] == no_slot ? nobody : worth(keys[l], l);
    while (true) {
      const std::uint32_t slot = first_of_least();
      if (slot == no_slot || !barred[slot]) return slot;
      const std::uint32_t l = layer(experts_[slot].layer);
      std::int64_t k = nobody;  // what else the layer has is worth no less
      candidate[l] = least_among(l, barred, key, k);
      worths[l] = candidate[l] == no_slot ? nobody : worth(k, l);
    }
  }
  template <class KeyAt>
  FERRY_HD std::uint32_t least(Barred barred, const KeyAt& key) noexcept {
    return least(barred, key, [](std::int64_t k, std::uint32_t /*layer*/) { return k; });
  }

 private:
  static constexpr std::int64_t nobody = std::int64_t{1} << 62;  ///< of a layer without an expert: above all

  /// The lowest of the candidates with the least worth. Two loops that compilers make vectors of.
  FERRY_HD std::uint32_t first_of_least() const noexcept {
    const std::int64_t* const worths = worth_.data();
    const std::int64_t* const candidate = candidate_.data();
    const std::uint32_t layers = pool_.layers;
    std::int64_t low = nobody;
    for (std::uint32_t l = 0; l < layers; ++l) low = worths[l] < low ? worths[l] : low;
    std::int64_t first = no_slot;
    for (std::uint32_t l = 0; l < layers; ++l) {
      const std::int64_t slot = worths[l] <= low ? candidate[l] : no_slot;
      first = slot < first ? slot : first;
    }
    return static_cast<std::uint32_t>(first);
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
    const std::uint32_t first = l * pool_.experts;
    const std::uint32_t* const slot_of = slot_of_.data() + first;
    const std::uint32_t* const next = next_.data();
    std::int64_t low = nobody;
    std::uint32_t found = no_slot;
    held_.for_each(l, [&](std::uint16_t e) {
      const std::int64_t k = key(first + e, l);
      if (low < k) return;
      for (std::uint32_t slot = slot_of[e]; slot != no_slot; slot = next[slot]) {
        if (barred.flags != nullptr && barred[slot]) continue;
        if (!(k < low) && found < slot) continue;
        found = slot;
        low = k;
      }
    });
    lowest = low;
    return found;
  }

  Array<ExpertId> experts_;        ///< [slots]; no_expert: nothing was put there yet
  Array<std::uint32_t> next_;      ///< [slots] another slot with the same expert, at another precision
  Array<std::uint32_t> slot_of_;   ///< [layers, experts] the first of them
  Array<std::int64_t> least_;      ///< [layers] the slot of the least, whatever is barred; unless unknown
  Array<std::int64_t> key_;        ///< [layers] its key
  Array<std::int64_t> candidate_;  ///< [layers] slots, while a victim is sought
  Array<std::int64_t> worth_;      ///< [layers] of each
  ExpertSets held_;                ///< by layer
  ExpertSets unknown_;             ///< one, of layers
  PoolShape pool_;
};

/// What each layer of a pool is worth for being near the present one: `each` times as many as the pool has layers, less
/// the distance, which is 0 for the present one itself. Layers behind it come round in the next step: HOBBIT's
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

 private:
  Array<std::int64_t> worth_;
  std::int64_t each_ = 0;
  std::uint32_t now_ = no_slot;
};

}  // namespace ferry
