/// @file
/// What a layer's work took last, and what the host takes.
#pragma once
#include "ferry/core_config.hpp"
#include "ferry/detail/host_costs.hpp"
#include "ferry/detail/saturating.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The times that an engine feeds back, by phase and layer, and what they make a request cost. All calls O(1).
/// State: 64 bytes a layer, and HostCosts'. Times below 0 count as not measured, and layers that do not exist are ignored:
/// Core checks nothing.
class MeasuredCosts {
 public:
  explicit MeasuredCosts(const CoreSettings& c) : host_(c.costs) {
    for (std::uint32_t p = 0; p < precision_count; ++p) copy_ns_[p] = c.copy_ns[p];
  }
  void reserve(Carver& carve, std::uint16_t layers) {
    layers_ = layers;
    carve(times_, std::size_t{2} * layers);
  }

  FERRY_HD const Times& of(Phase phase, std::uint16_t layer) const noexcept { return times_[index(phase, layer)]; }
  /// What a layer takes without waiting, with so many experts on the device; 0 while unknown.
  FERRY_HD Nanoseconds layer_ns(Phase phase, std::uint16_t layer, std::uint32_t experts) const noexcept {
    const Times& last = of(phase, layer);
    return sum(sum(last.attention, last.gate), product(last.device, experts));
  }
  /// Times of 0 were not measured, and leave the last ones as they are. `host`: the tasks that the host computed in that time.
  /// What is learned from them goes into `weighed`, unless the host's times were given.
  FERRY_HD void note(Phase phase, std::uint16_t layer, const Times& times, View<const Task> host,
                     LayerCosts& weighed) noexcept {
    if (layer >= layers_) return;
    host_.note(host, times.host);
    host_.tell(weighed);
    Times& last = times_[index(phase, layer)];
    if (times.attention > 0) last.attention = times.attention;
    if (times.gate > 0) last.gate = times.gate;
    if (times.device > 0) last.device = times.device;
    if (times.host > 0) last.host = times.host;
  }

  FERRY_HD void set(Phase phase, Request& r) const noexcept {
    const Times& last = of(phase, r.want.id.layer);
    r.copy_ns = copy_ns_[static_cast<unsigned>(r.want.precision)];
    r.device_ns = last.device;
    r.host_ns = last.host;
  }

 private:
  FERRY_HD std::size_t index(Phase phase, std::uint16_t layer) const noexcept {
    return static_cast<std::size_t>(phase) * layers_ + layer;
  }

  HostCosts host_;
  Array<Times> times_;  ///< [phases, layers]
  Nanoseconds copy_ns_[precision_count] = {};
  std::uint16_t layers_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
