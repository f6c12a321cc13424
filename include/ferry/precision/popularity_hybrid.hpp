/// @file
/// Fate's precision by popularity.
#pragma once
#include <string>

#include "ferry/concepts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// In prefill the least popular experts cross with fewer bits: together they serve few tokens. In decode every expert
/// chosen is equally important, and crosses in `high`.
///
/// Source: Fate, section 4.5, "Quantization for I/O", and 5.3 for `low_on_miss`. Popularity is the number of rows that
/// chose an expert, or voted for it. The paper finds the share by a search for a loss within 1%.
///  - Share::load (as in Fate's released code): the least popular experts, as many as together have at most
///    `low_share_percent` of the rows.
///  - Share::experts: at most that share of the requested experts.
///  - `low_on_miss`: in decode, what was not predicted crosses in `low` (the paper's low-end PC). The next use wants
///    `high` again and loads it beside: the paper keeps such copies for the one use only.
///
/// Deviation. The paper's low precisions are made by HQQ, `Hqq` here. The codec is the engine's choice: the reference engine
/// rounds to the nearest unless told otherwise (`--quantizer hqq`), since with HQQ a model takes many times as long to load.
/// On the bundled models HQQ's INT2 diverges 7 and 9% less, and its INT4 3 and 8% less (docs/results/quality.md).
///
/// Complexity: O(n) for n requests in order of popularity, as predictions come, O(n^2) moves of 2 bytes at worst.
/// State: 2 bytes an expert.
///
/// Ambiguities resolved.
///  - Of equally popular experts the one with the higher index is the less popular.
///  - An expert that the real gate of a prefill asks for, and that a prediction has brought or is bringing, is used as it
///    comes: it wants `low` if it is held in `low` or better. Any other goes by its real popularity, among all that the
///    layer asks for.
///  - 0 percent: never low in prefill, whatever is held.
class PopularityHybrid {
 public:
  /// What `low_share_percent` is a share of.
  enum class Share : std::uint8_t {
    load,    ///< the rows that chose an expert
    experts  ///< the requested experts
  };

  std::uint32_t low_share_percent = 30;  ///< how much is unpopular, in percent
  Share share = Share::load;             ///< of what
  /// What popular experts cross at, and what the unpopular tail does.
  Precision high = Precision::int4, low = Precision::int2;
  bool low_on_miss = false;  ///< in decode, too: whatever is missing crosses at `low`

  void reserve(Carver& carve, const Shape& shape) {
    if (low_share_percent > 100) {
      detail::fail<ConfigError>("PopularityHybrid: low_share_percent is " + std::to_string(low_share_percent) +
                                ", expected 0 to 100");
    }
    if (low >= high || low == Precision::skip) {
      detail::fail<ConfigError>("PopularityHybrid: low is precision number " +
                                std::to_string(static_cast<unsigned>(low)) + " and high is " +
                                std::to_string(static_cast<unsigned>(high)) +
                                ", expected int2 (1) or better for low, and better than low for high");
    }
    carve(order_, shape.experts);
  }

  FERRY_HD void select(Phase phase, bool demand, View<Request> requests) noexcept {
    for (Request& r : requests) {
      const bool miss = demand && r.state == State::absent;
      r.want.precision = phase == Phase::decode && low_on_miss && miss ? low : high;
    }
    if (phase == Phase::decode || low_share_percent == 0) return;
    lower_tail(requests);
    if (!demand) return;
    for (Request& r : requests) {
      if (r.held >= low) r.want.precision = r.state == State::queued && r.held >= high ? high : low;
    }
  }

  FERRY_HD std::uint8_t precisions() const noexcept {
    std::uint32_t may = 1U << static_cast<unsigned>(high);
    if (low_share_percent > 0 || low_on_miss) may |= 1U << static_cast<unsigned>(low);
    return static_cast<std::uint8_t>(may);
  }

 private:
  FERRY_HD static bool less_popular(const Request& a, const Request& b) noexcept {
    return a.rows != b.rows ? a.rows < b.rows : a.want.id.expert > b.want.id.expert;
  }

  /// Sets the least popular to `low`.
  FERRY_HD void lower_tail(View<Request> requests) noexcept {
    std::uint64_t all = 0, tail = 0;
    for (std::uint32_t i = 0; i < requests.size; ++i) {
      const Request& r = requests[requests.size - 1 - i];  // from the back: predictions come most popular first
      std::uint32_t at = i;
      for (; at > 0 && less_popular(r, requests[order_[at - 1]]); --at) order_[at] = order_[at - 1];
      order_[at] = static_cast<std::uint16_t>(requests.size - 1 - i);
      all += weight(r);
    }
    for (std::uint32_t i = 0; i < requests.size; ++i) {
      Request& r = requests[order_[i]];
      tail += weight(r);
      if (tail * 100 > all * low_share_percent) return;
      r.want.precision = low;
    }
  }

  /// What one expert takes of the share.
  FERRY_HD std::uint64_t weight(const Request& r) const noexcept { return share == Share::load ? r.rows : 1; }

  Array<std::uint16_t> order_;  ///< [experts] requests, least popular first
};

static_assert(QuantSelector<PopularityHybrid>);

}  // namespace ferry::inline FERRY_ABI
