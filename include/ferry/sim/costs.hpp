/// @file
/// What work takes on a machine, in whole nanoseconds: the same on every machine that works it out.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ferry/allotment.hpp"
#include "ferry/detail/saturating.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// amount / per_s seconds in nanoseconds, rounded up, or the longest time there is; 0 if `per_s` is 0. `per_s`: at most 10^16.
constexpr Nanoseconds duration_ns(std::uint64_t amount, std::uint64_t per_s) noexcept {
  if (per_s == 0) return 0;
  // Long division, three decimals at a time: seconds, ms, us, ns; every product fits.
  std::uint64_t ns = amount / per_s, rest = amount % per_s;
  for (int i = 0; i < 3; ++i) {
    if (ns >= static_cast<std::uint64_t>(detail::longest) / 1000) return detail::longest;
    rest *= 1000;
    ns = ns * 1000 + rest / per_s;
    rest %= per_s;
  }
  return static_cast<Nanoseconds>(ns + (rest == 0 ? 0 : 1));
}

/// A processor: work takes what its bytes or its operations need, whichever is longer, and a start.
/// Source: Williams et al., "Roofline", CACM 52(4), 2009, and a fixed cost.
struct Processor {
  std::uint64_t bytes_per_s = 0;  ///< of its memory; 0: never the limit
  std::uint64_t flops = 0;        ///< operations a second; 0: never the limit
  Nanoseconds start_ns = 0;       ///< of each group of kernels: one expert, or what of a layer every token needs

  /// What such work takes.
  [[nodiscard]] constexpr Nanoseconds operator()(std::uint64_t bytes, std::uint64_t operations) const noexcept {
    return detail::sum(start_ns, std::max(duration_ns(bytes, bytes_per_s), duration_ns(operations, flops)));
  }
};

/// amount * by / of, rounded down. All below 2^42 (nanoseconds: more than an hour), `of` not 0, the result below 2^63.
constexpr std::uint64_t share_of(std::uint64_t amount, std::uint64_t by, std::uint64_t of) noexcept {
  constexpr unsigned half = 21;
  const std::uint64_t high = (amount >> half) * by, low = (amount & ((1U << half) - 1)) * by;
  return ((high / of) << half) + (((high % of) << half) + low) / of;
}

/// What a copy takes, or an expert on the host, both of which read the host's memory.
struct SharedTime {
  Nanoseconds alone = 0;   ///< without the other
  Nanoseconds beside = 0;  ///< with the other at it all along; no less
};

/// The work of one layer, beside the bytes of its experts, which ModelShape has.
struct LayerWork {
  std::uint64_t dense_bytes = 0;        ///< attention, gate and shared experts: what every token needs
  std::uint64_t dense_operations = 0;   ///< a row
  std::uint64_t expert_operations = 0;  ///< a row of one routed expert
  std::uint64_t activation_bytes = 0;   ///< a row's hidden state, as it crosses to the host and a result crosses back
  friend bool operator==(const LayerWork&, const LayerWork&) = default;
};

/// What a machine takes for a model's work.
///
/// Keys and values (so attention costs the same at every position), the embedding and the head are left out. An expert at
/// lower precision costs its fewer bytes and the same operations.
///
/// Beside its experts a layer's share of the host costs two crossings of its rows: to the host, and their results back.
/// They do not wait for copies, nor copies for them. While the host computes an expert and a copy is on the link, each
/// has fewer bytes a second of the host's memory.
struct Costs {
  /// What computes.
  Processor device, host;
  std::uint64_t host_bytes_per_s_beside_copies = 0;  ///< of its memory; 0: as without
  Nanoseconds activations_latency_ns = 0;            ///< of each way
  std::uint64_t activations_bytes_per_s = 0;         ///< 0: never the limit
  std::uint64_t link_bytes_per_s = 16'000'000'000;   ///< of the link
  std::uint64_t link_bytes_per_s_beside_host = 0;    ///< while the host computes an expert; 0: as without
  Nanoseconds link_latency_ns = 0;                   ///< added to each copy
  std::uint64_t prefetch_chunk_bytes = 0;  ///< after each so many, demand copies may overtake a prefetch; 0: never
  Nanoseconds layer_ns = 0;                ///< a layer's fixed overhead on the device: launches, framework
  std::vector<LayerWork> work;             ///< one for all layers, or one a layer

  /// The work of a layer.
  [[nodiscard]] const LayerWork& work_of(std::uint32_t layer) const { return work[work.size() == 1 ? 0 : layer]; }
  /// Attention, gate, shared experts.
  [[nodiscard]] Nanoseconds dense(std::uint32_t layer, std::uint32_t rows) const {
    const LayerWork& w = work_of(layer);
    return detail::sum(layer_ns, device(w.dense_bytes, w.dense_operations * rows));
  }
  /// One expert with so many rows, on the device.
  [[nodiscard]] Nanoseconds on_device(std::uint32_t layer, std::uint64_t expert_bytes, std::uint32_t rows) const {
    return device(expert_bytes, work_of(layer).expert_operations * rows);
  }
  /// The same on the host, alone.
  [[nodiscard]] Nanoseconds on_host(std::uint32_t layer, std::uint64_t expert_bytes, std::uint32_t rows) const {
    return host(expert_bytes, work_of(layer).expert_operations * rows);
  }
  /// The same on the host, alone and beside copies.
  [[nodiscard]] SharedTime host_time(std::uint32_t layer, std::uint64_t expert_bytes, std::uint32_t rows) const {
    const Nanoseconds alone = on_host(layer, expert_bytes, rows);
    if (host_bytes_per_s_beside_copies == 0) return {alone, alone};
    const Processor beside{host_bytes_per_s_beside_copies, host.flops, host.start_ns};
    return {alone, std::max(alone, beside(expert_bytes, work_of(layer).expert_operations * rows))};
  }
  /// The rows that the host computes, on their way there or back.
  [[nodiscard]] Nanoseconds activations(std::uint32_t layer, std::uint32_t rows) const {
    return detail::sum(activations_latency_ns,
                       duration_ns(work_of(layer).activation_bytes * rows, activations_bytes_per_s));
  }
  /// One copy of so many bytes, alone.
  [[nodiscard]] Nanoseconds copy(std::uint64_t bytes) const {
    return detail::sum(link_latency_ns, duration_ns(bytes, link_bytes_per_s));
  }

  /// Throws ConfigError for work or speeds that cannot be true: what one layer's part takes, in a step of max_rows
  /// rows, must stay below 1000 s.
  void validate(const ModelShape& model) const {
    auto refuse = [](const std::string& what) { detail::fail<ConfigError>("costs: " + what); };
    constexpr std::uint64_t fastest = 10'000'000'000'000'000;
    constexpr Nanoseconds longest = 1'000'000'000'000;
    if (work.size() != 1 && work.size() != model.layers) {
      refuse("work has " + std::to_string(work.size()) + " entries, expected 1 or " + std::to_string(model.layers) +
             " (layers)");
    }
    if (link_bytes_per_s_beside_host > fastest / 10) refuse("link_bytes_per_s_beside_host must be at most 10^15");
    if (host_bytes_per_s_beside_copies > fastest || activations_bytes_per_s > fastest / 10) {
      refuse("host_bytes_per_s_beside_copies and activations_bytes_per_s must be at most 10^16 and 10^15");
    }
    for (const Processor& p : {device, host}) {
      if (p.bytes_per_s > fastest || p.flops > fastest) refuse("a processor is faster than 10^16 a second");
      if (p.start_ns < 0 || p.start_ns > longest) refuse("a processor's start must be 0 to 1000 s");
    }
    if (link_bytes_per_s == 0 || link_bytes_per_s > fastest / 10) refuse("the link needs 1 to 10^15 bytes a second");
    for (const Nanoseconds ns : {link_latency_ns, layer_ns, activations_latency_ns}) {
      if (ns < 0 || ns > longest) refuse("latencies must be 0 to 1000 s");
    }
    auto short_enough = [&](std::uint64_t amount, std::uint64_t per_s, const char* what) {
      if (per_s != 0 && amount / per_s >= 1000) refuse(std::string(what) + " would take more than 1000 s");
    };
    for (std::uint32_t l = 0; l < model.layers; ++l) {
      const LayerWork& w = work_of(l);
      short_enough(w.dense_bytes, device.bytes_per_s, "reading a layer's dense weights");
      for (const std::uint64_t operations : {w.dense_operations, w.expert_operations}) {
        if (operations > ~std::uint64_t{0} / model.max_rows) refuse("a layer's operations do not fit in 64 bits");
        short_enough(operations * model.max_rows, device.flops, "a layer's operations");
        short_enough(operations * model.max_rows, host.flops, "a layer's operations on the host");
      }
      if (w.activation_bytes > fastest / model.max_rows) refuse("a layer's activations are more than 10^16 bytes");
      short_enough(w.activation_bytes * model.max_rows, activations_bytes_per_s, "a layer's activations");
      for (std::uint32_t p = 1; p < precision_count; ++p) {
        const std::uint64_t bytes = model.bytes(l, static_cast<Precision>(p));
        short_enough(bytes, device.bytes_per_s, "reading an expert");
        short_enough(bytes, host.bytes_per_s, "reading an expert on the host");
        short_enough(bytes, host_bytes_per_s_beside_copies, "reading an expert on the host beside copies");
        short_enough(bytes, link_bytes_per_s, "copying an expert");
        short_enough(bytes, link_bytes_per_s_beside_host, "copying an expert beside the host");
      }
    }
  }
};

/// What a Placement weighs of these costs, those of the first layer.
inline LayerCosts layer_costs(const Costs& costs, const ModelShape& model) {
  LayerCosts c;
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    const std::uint64_t bytes = model.bytes(0, static_cast<Precision>(p));
    if (bytes == 0) continue;
    c.device_ns[p] = costs.on_device(0, bytes, 1);
    c.host_ns[p] = costs.on_host(0, bytes, 1);
  }
  c.host_row_ns = duration_ns(costs.work_of(0).expert_operations, costs.host.flops);
  c.host_start_ns = detail::product(costs.activations(0, 1), 2);
  const auto thousandths = [](std::uint64_t beside, std::uint64_t alone) {
    return beside == 0 || alone == 0 || beside >= alone ? 1000U : static_cast<std::uint32_t>(beside * 1000 / alone);
  };
  c.link_beside_host = thousandths(costs.link_bytes_per_s_beside_host, costs.link_bytes_per_s);
  c.host_beside_copies = thousandths(costs.host_bytes_per_s_beside_copies, costs.host.bytes_per_s);
  return c;
}

/// Time of one phase, all in nanoseconds of the device's lane.
struct PhaseClock {
  Nanoseconds total = 0;      ///< of the steps of this phase
  Nanoseconds stall = 0;      ///< the device waited for a copy
  Nanoseconds host = 0;       ///< the host computed experts
  Nanoseconds host_wait = 0;  ///< the device waited for it
  Nanoseconds link_busy = 0;  ///< a copy counts whole when it is put on the link, even if it lands in the next phase
  /// How many rows and how many steps.
  std::uint64_t tokens = 0, steps = 0;
};

}  // namespace ferry::inline FERRY_ABI
