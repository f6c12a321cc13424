// Invariants 1 to 4, 7 and 8 under random load, on both links, with the bytes checked at every computation.
#include "support/random_load.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

namespace {

using namespace ferry;
using namespace ferry::test;

/// At least 100,000 steps for each link by default; FERRY_TEST_STEPS changes it (sanitizers run fewer).
std::uint32_t steps_in_all() {
  const char* wanted = std::getenv("FERRY_TEST_STEPS");
  return wanted != nullptr ? static_cast<std::uint32_t>(std::strtoul(wanted, nullptr, 10)) : 104'000;
}

constexpr std::uint32_t steps_each = 40;

struct Contents {
  explicit Contents(const ModelShape& m) : model(m) {
    for (std::uint16_t l = 0; l < m.layers; ++l) {
      for (std::uint16_t e = 0; e < m.experts; ++e) {
        for (const Precision p : {Precision::int2, Precision::int4, Precision::full}) {
          bytes.push_back(expert_content({{l, e}, p}, m.bytes(l, p)));
        }
      }
    }
  }
  View<const std::byte> of(Variant v) const {
    const std::size_t column = v.precision == Precision::full ? 2 : v.precision == Precision::int4 ? 1 : 0;
    const auto& b = bytes[(std::size_t{v.id.layer} * model.experts + v.id.expert) * 3 + column];
    return {b.data(), static_cast<std::uint32_t>(b.size())};
  }
  ModelShape model;
  std::vector<std::vector<std::byte>> bytes;
};

std::uint64_t copies_checked = 0, tasks_checked = 0;

void check_bytes(const SlotMemory& memory, const Contents& contents, const Task& t) {
  if (t.slot == no_slot) return;
  const View<const std::byte> right = contents.of(t.what);
  ++tasks_checked;
  if (std::memcmp(memory.slot(t.slot), right.data, right.size) != 0) {
    throw Violation(3, "a task computes from the wrong bytes");
  }
}

template <class StackT>
Log virtual_run(std::uint64_t seed) {
  Scenario<StackT> s(seed);
  const Contents contents(s.config.model);
  SlotMemory memory(
      s.config.allotment, [&](Variant v) { return contents.of(v); }, true);
  VirtualClock clock(s.config.model, {1'000'000'000, 20, true}, &memory);
  Recorded link(clock);
  OffloadPipeline<StackT, Recorded<VirtualClock>> pipe(s.config, link);
  InvariantChecker checker(s.config.model, s.config.allotment, s.config.transient_prefill_rows);
  drive(
      s, pipe, steps_each, &checker,
      [&](const Task& t) {
        check_bytes(memory, contents, t);
        clock.device(60);
        if (t.slot != no_slot && pipe.core().residency().is_stream(t.slot)) memory.poison(t.slot);
      },
      [&](std::uint32_t ns) {
        clock.device(ns);
        clock.sync();
      });
  InvariantChecker::service_order(clock.spans(), link.begun);
  copies_checked += clock.spans().size();
  return link.log;
}

template <class StackT>
Log thread_run(std::uint64_t seed) {
  Scenario<StackT> s(seed);
  const Contents contents(s.config.model);
  SlotMemory memory(
      s.config.allotment, [&](Variant v) { return contents.of(v); }, true);
  HostThread::Options options;
  options.log = true;
  options.chunk_bytes = 64;
  if (s.random.chance(10)) options.bytes_per_s = 20'000'000;  // ~10 us a copy
  HostThread thread(memory, options);
  Recorded link(thread);
  OffloadPipeline<StackT, Recorded<HostThread>> pipe(s.config, link);
  InvariantChecker checker(s.config.model, s.config.allotment, s.config.transient_prefill_rows);
  drive(
      s, pipe, steps_each, &checker,
      [&](const Task& t) {
        check_bytes(memory, contents, t);
        if (t.slot != no_slot && pipe.core().residency().is_stream(t.slot)) memory.poison(t.slot);
      },
      [](std::uint32_t ns) {
        if (ns > 380) std::this_thread::yield();
      });
  thread.drain();
  InvariantChecker::service_order(thread.spans(), link.begun);
  return link.log;
}

/// The same core with what that link reported: same commands, to the last bit.
template <class StackT>
bool replays(std::uint64_t seed, const Log& log, bool thread) {
  Scenario<StackT> s(seed);
  if (thread) s.random.chance(10);  // thread_run draws one number more
  Replayed link(log.seen);
  OffloadPipeline<StackT, Replayed> pipe(s.config, link);
  drive(
      s, pipe, steps_each, nullptr, [](const Task&) {}, [](std::uint32_t) {});
  return link.log.commands == log.commands;
}

template <class StackT>
void many(bool thread) {
  const std::uint32_t runs = steps_in_all() / steps_each / 9;  // nine stacks share the steps
  for (std::uint32_t seed = 0; seed < runs; ++seed) {
    CAPTURE(seed);
    const Log log = thread ? thread_run<StackT>(seed) : virtual_run<StackT>(seed);
    if (!replays<StackT>(seed, log, thread)) FAIL("replay gave other commands");
  }
}

TEST_CASE("virtual clock: invariants hold and replays agree under random load") {
  SUBCASE("on-demand") {
    many<stacks::OnDemand>(false);
  }
  SUBCASE("lru") {
    many<stacks::LruCache>(false);
  }
  SUBCASE("cross-layer-lru") {
    many<stacks::CrossLayerLru>(false);
  }
  SUBCASE("mixed precision, skipping, host placement") {
    many<LossyStack>(false);
  }
  SUBCASE("fate") {
    many<stacks::Fate>(false);
  }
  SUBCASE("hobbit") {
    many<stacks::Hobbit>(false);
  }
  SUBCASE("hobbit-cooperative") {
    many<stacks::HobbitCooperative>(false);
  }
  SUBCASE("importance-driven") {
    many<stacks::ImportanceDriven>(false);
  }
  SUBCASE("layer-stream") {
    many<stacks::LayerStream>(false);
  }
  CHECK(copies_checked > 0);
  CHECK(tasks_checked > 0);
}

TEST_CASE("host thread: invariants hold and replays agree under random load") {
  SUBCASE("on-demand") {
    many<stacks::OnDemand>(true);
  }
  SUBCASE("lru") {
    many<stacks::LruCache>(true);
  }
  SUBCASE("cross-layer-lru") {
    many<stacks::CrossLayerLru>(true);
  }
  SUBCASE("mixed precision, skipping, host placement") {
    many<LossyStack>(true);
  }
  SUBCASE("fate") {
    many<stacks::Fate>(true);
  }
  SUBCASE("hobbit") {
    many<stacks::Hobbit>(true);
  }
  SUBCASE("hobbit-cooperative") {
    many<stacks::HobbitCooperative>(true);
  }
  SUBCASE("importance-driven") {
    many<stacks::ImportanceDriven>(true);
  }
  SUBCASE("layer-stream") {
    many<stacks::LayerStream>(true);
  }
  CHECK(tasks_checked > 0);
}

}  // namespace
