// Constant costs for the virtual clock.
#pragma once
#include "ferry/sim/costs.hpp"

namespace ferry::test {

/// A layer's attention and gate, an expert on the device, a row of an expert on the host, in nanoseconds, whatever the
/// number of rows (but for the host's); and the link's bytes a second.
inline Costs fixed_costs(Nanoseconds layer, Nanoseconds expert, Nanoseconds host_row, std::uint64_t link_bytes_per_s) {
  Costs c;
  c.device.start_ns = expert;
  c.layer_ns = layer - expert;
  c.host.flops = 1'000'000'000;
  c.work = {{0, 0, static_cast<std::uint64_t>(host_row)}};
  c.link_bytes_per_s = link_bytes_per_s;
  return c;
}

}  // namespace ferry::test
