/// @file
/// Properties that hold for every simulation.
#pragma once
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

#include "sim/simulate.hpp"

namespace ferry::fuzz {

/// A finding.
struct Broken : std::logic_error {
  using std::logic_error::logic_error;
};

inline void expect(bool good, const char* broken) {
  if (!good) throw Broken(broken);
}

/// Outcomes and bytes add up, lanes do one thing at a time, clocks sum the spans up, and no bound is beaten.
/// `s`: of a run with a log.
inline void check(const engine::Simulated& s, const Trace& trace) {
  const Counters& c = s.counters;
  std::uint64_t bytes = c.preload_bytes, by_precision = 0, tokens = 0;
  for (const Phase p : {Phase::prefill, Phase::decode}) {
    const Outcomes& o = c.of(p);
    const PhaseClock& t = s.phase[static_cast<unsigned>(p)];
    expect(o.hits + o.late_hits + o.misses + o.substituted + o.skipped + o.host_computed == o.requests,
           "outcomes do not add up to requests");
    expect(c.steps[static_cast<unsigned>(p)] == t.steps, "the core and the clock count different steps");
    bytes += o.bytes;
    tokens += t.tokens;
  }
  for (const std::uint64_t b : c.bytes_by_precision) by_precision += b;
  expect(bytes == by_precision, "bytes submitted are not the sum by precision");
  expect(tokens <= trace.tokens, "more tokens than the trace has");
  expect(c.prefetch.used <= c.prefetch.issued + c.prefetch.dropped, "more prefetches were used than submitted");

  std::uint64_t hits = 0, requests = 0;
  for (const auto& [h, r] : s.layer_hits) {
    hits += h;
    requests += r;
  }
  const Outcomes& decode = c.of(Phase::decode);
  expect(hits == decode.hits && requests == decode.requests, "hits by layer do not add up");

  std::array<Nanoseconds, 3> end{}, busy{};
  Nanoseconds stall = 0;
  std::uint64_t carried = 0;
  for (const Span& x : s.spans) {
    const auto lane = static_cast<std::size_t>(x.lane);
    expect(x.begin_ns >= end[lane], "a lane does two things at once");
    end[lane] = x.end_ns;
    if (x.lane != Lane::host || x.has_expert) busy[lane] += x.end_ns - x.begin_ns;  // or activations cross
    stall += std::strcmp(x.name, "wait") == 0 ? x.end_ns - x.begin_ns : 0;
    if (x.lane == Lane::link) carried += trace.model.bytes(x.what.id.layer, x.what.precision);
  }
  const PhaseClock &a = s.phase[0], &b = s.phase[1];
  expect(a.total + b.total == busy[0] + a.host_wait + b.host_wait, "times are not the sum of the device's spans");
  expect(a.stall + b.stall == stall, "stalls are not the sum of the waits");
  expect(a.host + b.host == busy[2], "the host's time is not the sum of its experts");
  if (c.prefetch.issued == 0 && c.prefetch.dropped == 0) expect(carried == bytes, "other bytes crossed than submitted");

  if (!s.decode_work) return;
  expect(b.total >= clairvoyant_with_host_ns(*s.decode_work), "the bound with a host is beaten");
  if (decode.host_computed == 0) expect(b.total >= clairvoyant_ns(*s.decode_work), "the clairvoyant bound is beaten");
}

}  // namespace ferry::fuzz
