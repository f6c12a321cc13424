/// @file
/// HOBBIT's multidimensional expert caching.
#pragma once
#include <string>

#include "ferry/detail/slot_experts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts the expert with the lowest weighted sum of LRU, LFU, LHU and FLD.
///
/// Source: HOBBIT, section 3.4, Eq. 3 and Fig. 12:
///   p = w_lru R/T + w_lfu F/T + w_lhu H/T + w_fld (1 - ((l_t - l_i + l_n) mod l_n) / l_n)
/// with T the current token, R the token of the expert's last use, F its uses and H its high-precision uses in this
/// sequence; l_t is its layer, l_i the present one, l_n the number of layers. A low-precision use does not
/// raise H. All three are counted also while the expert is absent, and are reset with the sequence.
///
/// Caches for high and low precision are two pools, each with an instance of this policy. There is one priority record
/// for both (Fig. 12): uses come through `used`, which every pool of the layer sees, so the instances' records agree.
///
/// Complexity: a use O(1), victim O(layers + experts of one), reset O(experts). State: 20 bytes an expert of the pool's
/// layers, 8 a slot, 48 a layer.
/// In integers: p * 1000 T l_n, below 2^61 for T l_n < 2^51 (2^35 steps of one sequence at 65535 layers).
///
/// Deviations. T counts steps, not tokens: a chunk of a prompt is one step, and so is one token of each sequence of a
/// batch; statistics are then those of the batch, and begin anew when no sequence is left.
/// Ambiguities resolved. Before the first step T = R = F = H = 0, and what is left of p is FLD. l_n is the number of
/// the pool's layers (HOBBIT's pools span all). A use is high if the variant that serves it is, as in Lhu. l_i is the
/// layer used last, as in Fld.
class Multidimensional {
 public:
  /// Weights in thousandths; they sum to 1000. HOBBIT prints none, but takes those with the least miss penalty on a
  /// calibration set. These were found likewise: the best compromise of four models' routing (docs/results/calibration.md).
  std::uint32_t lru = 700, lfu = 100, lhu = 100, fld = 100;
  Precision high = Precision::full;  ///< from this precision on a use is high

  void reserve(Carver& carve, const PoolShape& pool) {
    const std::uint64_t sum = std::uint64_t{lru} + lfu + lhu + fld;
    if (sum != 1000) {
      detail::fail<ConfigError>("Multidimensional: the weights " + std::to_string(lru) + " (lru), " +
                                std::to_string(lfu) + " (lfu), " + std::to_string(lhu) + " (lhu) and " +
                                std::to_string(fld) + " (fld) sum to " + std::to_string(sum) +
                                ", expected 1000 (thousandths)");
    }
    slots_.reserve(carve, pool);
    nearness_.reserve(carve, pool);
    carve(records_, slots_.size());
    steps_ = 0;
  }

  FERRY_HD void begin_step(const Step& /*step*/) noexcept { ++steps_; }
  FERRY_HD void used(Variant what) noexcept {
    Record& record = records_[slots_.index(what.id)];
    record.sum += (lru * (steps_ - record.last) + lfu + (what.precision >= high ? lhu : 0)) * slots_.layers();
    record.last = steps_;
    slots_.grew(what.id);
    here_ = what.id;
    any_used_ = true;
  }
  FERRY_HD void reset() noexcept {
    for (Record& record : records_) record = {};
    steps_ = 0;
    slots_.changed();
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) noexcept {
    const std::uint16_t now = any_used_ ? here_.layer : incoming.id.layer;
    const std::int64_t* const near = nearness_(slots_.layer(now), fld * (steps_ == 0 ? 1 : steps_));
    return slots_.least(barred, KeyIn{records_.data()},
                        [near](std::int64_t key, std::uint32_t layer) { return key + near[layer]; });
  }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    slots_.put(slot, what.id, records_[slots_.index(what.id)].sum);
  }
  FERRY_HD void finished(std::uint16_t /*layer*/) noexcept { slots_.resolve(KeyIn{records_.data()}); }

  /// R <= T and H <= F <= T, so that p <= 1.
  [[nodiscard]] const char* check() const noexcept {
    for (const Record& record : records_) {
      if (record.last < 0 || record.last > steps_) return "Multidimensional: R > T";
      const std::int64_t uses = record.sum - lru * record.last * slots_.layers();
      if (uses < 0) return "Multidimensional: F or H is negative";
      if (uses > (lfu + lhu) * steps_ * slots_.layers()) return "Multidimensional: F or H > T";
    }
    if (const char* broken = nearness_.check()) return broken;
    return slots_.check(KeyIn{records_.data()});
  }

 private:
  /// Of an expert, in this sequence.
  struct Record {
    std::int64_t sum = 0;   ///< (w_lru R + w_lfu F + w_lhu H) l_n
    std::int64_t last = 0;  ///< R: the step of the last use, from 1; 0: never
  };
  struct KeyIn {
    const Record* records;
    FERRY_HD std::int64_t operator()(std::size_t at) const noexcept { return records[at].sum; }
  };

  detail::SlotExperts slots_;
  detail::Nearness nearness_;
  Array<Record> records_;   ///< [layers, experts]
  std::int64_t steps_ = 0;  ///< T
  ExpertId here_;           ///< used last
  bool any_used_ = false;
};

static_assert(CachePolicy<Multidimensional>);

}  // namespace ferry::inline FERRY_ABI
