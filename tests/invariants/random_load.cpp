// Invariants 1 to 4, 7 and 8 under random load, on every link, with the bytes checked at every computation.
#include "support/random_load.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include "emulated_cuda/emulated_cuda.hpp"
#include "ferry/link/cuda_stream.hpp"
#include "support/pinned.hpp"
#include "support/watchdog.hpp"

namespace {

using namespace ferry;
using namespace ferry::test;

/// At least 100,000 steps for each link by default; FERRY_TEST_STEPS changes it (sanitizers run fewer).
std::uint32_t steps_in_all() {
  const char* wanted = std::getenv("FERRY_TEST_STEPS");
  return wanted != nullptr ? static_cast<std::uint32_t>(std::strtoul(wanted, nullptr, 10)) : 104'000;
}

constexpr std::uint32_t steps_each = 40;

/// The host computes residents, and misses are loaded, so that a layer's own residents become victims of its misses.
struct HostsResidents {
  static std::uint32_t split(Phase, View<const Request> misses) noexcept { return misses.size; }
  static Split split(Phase phase, View<const Request> resident, View<const Request> misses, View<const Request>,
                     const LayerCosts&) noexcept {
    return {misses.size, phase == Phase::decode ? resident.size : 0, true};
  }
};
using SwappingStack =
    Stack<NoPrediction, FifoCache, FixedPrecision, Schedule<NoLimit, ArrivalOrder, HostsResidents>, TopK>;

enum class Kind : std::uint8_t { clock, thread, cuda };

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

/// Lets demand copies overtake prefetches in every second run.
std::uint32_t chunk_of(std::uint64_t seed) {
  return seed % 2 == 0 ? 0 : 48;
}
std::uint64_t overtaken = 0;
void count_overtaken(const std::vector<Span>& spans) {
  std::map<Ticket, std::size_t> last;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].lane != Lane::link || !is_prefetch(spans[i].ticket)) continue;
    const auto before = last.find(spans[i].ticket);
    if (before != last.end() && before->second + 1 < i) ++overtaken;
    last[spans[i].ticket] = i;
  }
}

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
  VirtualClock clock(s.config.model, {1'000'000'000, 20, true, 0, chunk_of(seed)}, &memory);
  Recorded link(clock);
  OffloadPipeline<StackT, Recorded<VirtualClock>> pipe(s.config, link);
  InvariantChecker checker(s.config.model, s.config.allotment, s.config.transient_prefill_rows);
  drive(
      s, pipe, steps_each, &checker,
      [&](const Task& t) {
        check_bytes(memory, contents, t);
        clock.device(60);
        if (t.slot != no_slot && t.slot >= pipe.core().residency().cache_slots()) memory.poison(t.slot);
      },
      [&](std::uint32_t ns) {
        clock.device(ns);
        clock.sync();
      });
  InvariantChecker::service_order(clock.spans(), link.begun);
  copies_checked += clock.spans().size();
  count_overtaken(clock.spans());
  return link.log;
}

/// The experts' bytes, until one expert's cannot be had.
class FailingSource {
 public:
  explicit FailingSource(const Contents& contents) : contents_(contents) {}
  /// The nth request from now fails, and so do all after it.
  void fail(std::uint64_t nth) { left_ = nth; }
  View<const std::byte> operator()(Variant v) {
    if (left_ > 0 && --left_ > 0) return contents_.of(v);
    throw std::runtime_error("disk");
  }

 private:
  const Contents& contents_;
  std::uint64_t left_ = ~std::uint64_t{0};
};

/// A pipeline whose link is a thread.
template <class StackT>
class OnThread {
 public:
  explicit OnThread(std::uint64_t seed)
      : scenario(seed),
        contents_(scenario.config.model),
        source(contents_),
        memory_(
            scenario.config.allotment, [this](Variant v) { return source(v); }, true),
        link(memory_, options(scenario.random, seed)),
        recorded(link),
        pipe(scenario.config, recorded),
        checker(scenario.config.model, scenario.config.allotment, scenario.config.transient_prefill_rows) {}

  void run(InvariantChecker* under) {
    drive(
        scenario, pipe, steps_each, under,
        [&](const Task& t) {
          check_bytes(memory_, contents_, t);
          if (t.slot != no_slot && t.slot >= pipe.core().residency().cache_slots()) memory_.poison(t.slot);
        },
        [](std::uint32_t ns) {
          if (ns > 380) std::this_thread::yield();
        });
    link.drain();
  }

 private:
  static HostThread::Options options(Random& random, std::uint64_t seed) {
    HostThread::Options o;
    o.log = true;
    o.chunk_bytes = 64;
    o.prefetch_chunk_bytes = chunk_of(seed);
    if (random.chance(10)) o.bytes_per_s = 20'000'000;  // ~10 us a copy
    return o;
  }

  Watchdog watchdog_;

 public:
  Scenario<StackT> scenario;

 private:
  Contents contents_;

 public:
  FailingSource source;

 private:
  SlotMemory memory_;

 public:
  HostThread link;
  Recorded<HostThread> recorded;
  OffloadPipeline<StackT, Recorded<HostThread>> pipe;
  InvariantChecker checker;
};

template <class StackT>
Log thread_run(std::uint64_t seed) {
  OnThread<StackT> on(seed);
  on.run(&on.checker);
  InvariantChecker::service_order(on.link.spans(), on.recorded.begun);
  count_overtaken(on.link.spans());
  return on.recorded.log;
}

/// Compares what the device's stream saw in slots, when it got there, with the right bytes.
class StreamReads {
 public:
  StreamReads(const Stream& stream, const CudaSlots& slots, const Contents& contents)
      : stream_(stream), slots_(slots), contents_(contents), memory_(std::size_t{1} << 16U) {}

  void read(const Task& t) {
    if (t.slot == no_slot) return;
    const View<const std::byte> right = contents_.of(t.what);
    if (used_ + right.size > memory_.size()) check();
    stream_.read(memory_, used_, slots_.slot(t.slot), right.size);
    reads_.push_back({used_, right});
    used_ += right.size;
  }
  void check() {
    stream_.synchronize();
    for (const auto& [at, right] : reads_) {
      ++tasks_checked;
      if (std::memcmp(memory_.data() + at, right.data, right.size) != 0) {
        throw Violation(3, "a task computes from the wrong bytes");
      }
    }
    reads_.clear();
    used_ = 0;
  }

 private:
  const Stream& stream_;
  const CudaSlots& slots_;
  const Contents& contents_;
  Pinned memory_;
  std::size_t used_ = 0;
  std::vector<std::pair<std::size_t, View<const std::byte>>> reads_;
};

/// A pipeline whose link is a stream of the emulated CUDA.
template <class StackT>
class OnCuda {
 public:
  explicit OnCuda(std::uint64_t seed)
      : fresh_(seed),
        scenario(seed),
        contents_(scenario.config.model),
        source(contents_),
        pinned_(!scenario.random.chance(10)),
        held_(contents_),
        slots_(scenario.config.allotment,
               [this](Variant v) -> HeldBytes {
                 const View<const std::byte> b = source(v);
                 return pinned_ ? held_.of(b) : b;
               },
               {.pinned = pinned_, .poison = true}),
        link(slots_, compute_,
             {.ahead_bytes = chunk_of(seed) > 0 ? 48U : 256U, .prefetch_chunk_bytes = chunk_of(seed), .log = true}),
        recorded(link),
        pipe(scenario.config, recorded),
        checker(scenario.config.model, scenario.config.allotment, scenario.config.transient_prefill_rows),
        reads_(compute_, slots_, contents_) {}

  void run(InvariantChecker* under) {
    drive(
        scenario, pipe, steps_each, under,
        [&](const Task& t) {
          reads_.read(t);
          if (t.slot != no_slot && t.slot >= pipe.core().residency().cache_slots()) slots_.poison(t.slot, compute_);
        },
        [](std::uint32_t ns) { emulated::advance(ns / 16); });
    check();
    link.drain();
  }
  /// Checks what the device has read so far.
  void check() { reads_.check(); }

 private:
  struct Fresh {
    explicit Fresh(std::uint64_t seed) {
      emulated::Options o;
      o.seed = seed;
      o.chunk_bytes = 64;
      emulated::reset(o);
    }
  };
  /// The experts' bytes in page-locked memory.
  class Held {
   public:
    explicit Held(const Contents& contents) : memory_(size_of(contents) + 1) {
      std::size_t at = 0;
      for (const auto& b : contents.bytes) {
        if (b.empty()) continue;  // not stored at that precision
        std::memcpy(memory_.data() + at, b.data(), b.size());
        places_[b.data()] = memory_.data() + at;
        at += b.size();
      }
    }
    [[nodiscard]] View<const std::byte> of(View<const std::byte> bytes) const {
      return {places_.at(bytes.data), bytes.size};
    }

   private:
    static std::size_t size_of(const Contents& contents) {
      std::size_t bytes = 0;
      for (const auto& b : contents.bytes) bytes += b.size();
      return bytes;
    }
    Pinned memory_;
    std::map<const std::byte*, const std::byte*> places_;
  };

  Watchdog watchdog_;
  Fresh fresh_;

 public:
  Scenario<StackT> scenario;

 private:
  Contents contents_;

 public:
  FailingSource source;

 private:
  bool pinned_;
  Held held_;
  Stream compute_;
  CudaSlots slots_;

 public:
  CudaStream link;
  Recorded<CudaStream> recorded;
  OffloadPipeline<StackT, Recorded<CudaStream>> pipe;
  InvariantChecker checker;

 private:
  StreamReads reads_;
};

template <class StackT>
Log cuda_run(std::uint64_t seed) {
  OnCuda<StackT> on(seed);
  on.run(&on.checker);
  InvariantChecker::service_order(on.link.spans(), on.recorded.begun);
  copies_checked += on.link.spans().size();
  count_overtaken(on.link.spans());
  return on.recorded.log;
}

/// Whether the same core, given what that link reported, gives the same commands, to the last bit.
template <class StackT>
bool replays(std::uint64_t seed, const Log& log, Kind kind) {
  Scenario<StackT> s(seed);
  if (kind != Kind::clock) s.random.chance(10);  // the other kinds draw one number more
  Replayed link(log.seen);
  OffloadPipeline<StackT, Replayed> pipe(s.config, link);
  drive(
      s, pipe, steps_each, nullptr, [](const Task&) {}, [](std::uint32_t) {});
  return link.log.commands == log.commands;
}

template <class StackT>
void many(Kind kind) {
  const std::uint32_t runs = steps_in_all() / steps_each / 9;  // at least nine stacks share the steps
  for (std::uint32_t seed = 0; seed < runs; ++seed) {
    CAPTURE(seed);
    const Log log = kind == Kind::clock    ? virtual_run<StackT>(seed)
                    : kind == Kind::thread ? thread_run<StackT>(seed)
                                           : cuda_run<StackT>(seed);
    if (!replays<StackT>(seed, log, kind)) FAIL("replay gave other commands");
  }
}

TEST_CASE("virtual clock: invariants hold and replays agree under random load" * doctest::test_suite("no-threads")) {
  SUBCASE("on-demand") {
    many<stacks::OnDemand>(Kind::clock);
  }
  SUBCASE("lru") {
    many<stacks::LruCache>(Kind::clock);
  }
  SUBCASE("cross-layer-lru") {
    overtaken = 0;
    many<stacks::CrossLayerLru>(Kind::clock);
    CHECK(overtaken > 0);
  }
  SUBCASE("mixed precision, skipping, host placement") {
    many<LossyStack>(Kind::clock);
  }
  SUBCASE("fate") {
    many<stacks::Fate>(Kind::clock);
  }
  SUBCASE("hobbit") {
    many<stacks::Hobbit>(Kind::clock);
  }
  SUBCASE("hobbit-cooperative") {
    many<stacks::HobbitCooperative>(Kind::clock);
  }
  SUBCASE("ferry") {
    many<stacks::Ferry>(Kind::clock);
  }
  SUBCASE("ferry-device") {
    many<stacks::FerryDevice>(Kind::clock);
  }
  SUBCASE("ferry-lossy") {
    many<stacks::FerryLossy>(Kind::clock);
  }
  SUBCASE("what is there on the host, what is not on the device") {
    many<SwappingStack>(Kind::clock);
  }
  SUBCASE("importance-driven") {
    many<stacks::ImportanceDriven>(Kind::clock);
  }
  SUBCASE("layer-stream") {
    many<stacks::LayerStream>(Kind::clock);
  }
  CHECK(copies_checked > 0);
  CHECK(tasks_checked > 0);
}

TEST_CASE("host thread: invariants hold and replays agree under random load") {
  SUBCASE("on-demand") {
    many<stacks::OnDemand>(Kind::thread);
  }
  SUBCASE("lru") {
    many<stacks::LruCache>(Kind::thread);
  }
  SUBCASE("cross-layer-lru") {
    many<stacks::CrossLayerLru>(Kind::thread);
  }
  SUBCASE("mixed precision, skipping, host placement") {
    many<LossyStack>(Kind::thread);
  }
  SUBCASE("fate") {
    many<stacks::Fate>(Kind::thread);
  }
  SUBCASE("hobbit") {
    many<stacks::Hobbit>(Kind::thread);
  }
  SUBCASE("hobbit-cooperative") {
    many<stacks::HobbitCooperative>(Kind::thread);
  }
  SUBCASE("ferry") {
    many<stacks::Ferry>(Kind::thread);
  }
  SUBCASE("importance-driven") {
    many<stacks::ImportanceDriven>(Kind::thread);
  }
  SUBCASE("layer-stream") {
    many<stacks::LayerStream>(Kind::thread);
  }
  CHECK(tasks_checked > 0);
}

TEST_CASE("CUDA: invariants hold and replays agree under random load") {
  SUBCASE("on-demand") {
    many<stacks::OnDemand>(Kind::cuda);
  }
  SUBCASE("lru") {
    many<stacks::LruCache>(Kind::cuda);
  }
  SUBCASE("cross-layer-lru") {
    overtaken = 0;
    many<stacks::CrossLayerLru>(Kind::cuda);
    CHECK(overtaken > 0);
  }
  SUBCASE("mixed precision, skipping, host placement") {
    many<LossyStack>(Kind::cuda);
  }
  SUBCASE("fate") {
    many<stacks::Fate>(Kind::cuda);
  }
  SUBCASE("hobbit") {
    many<stacks::Hobbit>(Kind::cuda);
  }
  SUBCASE("hobbit-cooperative") {
    many<stacks::HobbitCooperative>(Kind::cuda);
  }
  SUBCASE("ferry") {
    many<stacks::Ferry>(Kind::cuda);
  }
  SUBCASE("importance-driven") {
    many<stacks::ImportanceDriven>(Kind::cuda);
  }
  SUBCASE("layer-stream") {
    many<stacks::LayerStream>(Kind::cuda);
  }
  CHECK(copies_checked > 0);
  CHECK(tasks_checked > 0);
}

/// What breaks in the middle of a run.
enum class Broken : std::uint8_t { source, call, device };

template <class LinkT>
bool has_stopped(LinkT& link) {
  if constexpr (requires { link.failed(); }) {
    return !link.failed().empty();
  } else {
    try {
      link.drain();
    } catch (const LinkError&) {
      return true;
    }
    return false;
  }
}

/// Breaks something in the middle of a run: waits report it, nobody computes from wrong bytes, and nothing hangs.
/// `calls_at_most`: the call that breaks is among so many; fewer for a stack that copies less.
template <class Rig>
void broken_in_the_middle(Broken what, std::uint32_t calls_at_most = 80) {
  constexpr std::uint32_t runs = 40;
  std::uint32_t told = 0;
  for (std::uint32_t seed = 0; seed < runs; ++seed) {
    CAPTURE(seed);
    Rig on(seed);
    Random random(seed + 1);
    const std::uint32_t nth = random.between(1, calls_at_most);
    if (what == Broken::source) {
      on.source.fail(nth);
    } else if (what == Broken::call) {
      static const char* const calls[] = {"cudaMemcpyAsync", "cudaEventRecord", "cudaEventQuery", "cudaMemsetAsync"};
      emulated::fail(calls[seed % 4], nth, cudaErrorIllegalAddress);
    } else {
      emulated::lose_device(cudaErrorLaunchFailure, nth * 16);
    }
    bool failed = false;
    const auto run = [&](InvariantChecker* checker) {
      try {
        on.run(checker);
      } catch (const std::runtime_error&) {  // of the link, or of what the test itself asked of the device
        failed = true;
      }
    };
    run(&on.checker);
    if (!failed || !has_stopped(on.link)) continue;  // it would have broken later, or in the test's own call
    ++told;
    if constexpr (requires { on.check(); }) {
      if (what != Broken::device) on.check();
    }
    CHECK_THROWS_AS(on.link.drain(), LinkError);
    on.pipe.abandon();
    on.scenario.preload = false;
    run(nullptr);
  }
  CHECK(told > runs / 4);  // usually more than half, but on a busy machine fewer prefetches begin, and so fewer fail
}

TEST_CASE("host thread: bytes that cannot be had in the middle of random load are no hang, and no wrong bytes") {
  broken_in_the_middle<OnThread<stacks::LruCache>>(Broken::source);
  broken_in_the_middle<OnThread<stacks::CrossLayerLru>>(Broken::source);
  broken_in_the_middle<OnThread<stacks::Ferry>>(Broken::source, 10);
  broken_in_the_middle<OnThread<LossyStack>>(Broken::source);
}

TEST_CASE("CUDA: what breaks in the middle of random load is no hang, and no wrong bytes") {
  for (const Broken what : {Broken::source, Broken::call, Broken::device}) {
    broken_in_the_middle<OnCuda<stacks::LruCache>>(what);
    broken_in_the_middle<OnCuda<stacks::CrossLayerLru>>(what);
    broken_in_the_middle<OnCuda<stacks::Ferry>>(what, 20);
    broken_in_the_middle<OnCuda<LossyStack>>(what);
  }
}

}  // namespace
