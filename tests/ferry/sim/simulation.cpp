// Timelines worked out by hand, then bounds under random traces. The hand-made machine, in microseconds: attention and
// gate 10, an expert on the device 4 and 1 a row, on the host 6 and 1 a row, a copy 20.
#include "ferry/sim/simulation.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ferry/stacks.hpp"
#include "support/quick.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

constexpr Nanoseconds us = 1000;

using Experts = std::vector<std::uint16_t>;
using Token = std::vector<Experts>;  // of each layer, best first

/// A trace to fill in.
struct SmallTrace {
  SmallTrace() = default;
  /// The tokens say how many layers, and experts a token, there are. Experts have 64 bytes.
  SmallTrace(std::uint16_t experts_a_layer, const std::vector<Token>& tokens)
      : shape(model(static_cast<std::uint16_t>(tokens[0].size()), experts_a_layer,
                    static_cast<std::uint16_t>(tokens[0][0].size()), 16)) {
    for (const Token& t : tokens) add(t);
  }

  void add(const Token& token) {
    for (const Experts& layer : token) {
      for (const std::uint16_t e : layer) experts.push_back(static_cast<std::uint8_t>(e));
    }
    phase.push_back(1);
  }
  /// The first `tokens` of every sequence are its prompt.
  void prompts(std::uint32_t tokens) {
    for (const std::uint32_t start : starts) {
      for (std::size_t t = start; t < std::min<std::size_t>(start + tokens, phase.size()); ++t) phase[t] = 0;
    }
  }
  /// Which experts the gate of layer + distance prefers, given this layer's gate input.
  void predict(std::size_t token, std::size_t layer, std::uint32_t distance, const Experts& best) {
    put(predicted, (token * shape.layers + layer) * ahead + distance - 1, ahead, best);
  }
  /// The same for the next layer, given this layer's partial hidden state.
  void predict_partial(std::size_t token, std::size_t layer, const Experts& best) {
    put(partial, token * shape.layers + layer, 1, best);
  }
  /// Writes into a row of [tokens, layers, rows, experts].
  void put(std::vector<float>& to, std::size_t row, std::size_t rows, const Experts& best) const {
    to.resize(phase.size() * shape.layers * rows * shape.experts);
    const std::vector<float> s = favour(shape.experts, best);
    std::copy(s.begin(), s.end(), to.begin() + static_cast<std::ptrdiff_t>(row * shape.experts));
  }

  /// The trace as filled in so far.
  const Trace& view() {
    trace.name = "small";
    trace.model = shape;
    trace.tokens = static_cast<std::uint32_t>(phase.size());
    trace.sequence_start = starts;
    trace.phase = phase;
    trace.experts8 = experts;
    trace.weights = weights;
    trace.scores = scores;
    trace.choice_scores = choice_scores;
    trace.ahead = predicted.empty() ? std::uint16_t{0} : ahead;
    trace.predicted = predicted;
    trace.partial = partial;
    trace.validate();
    return trace;
  }

  ModelShape shape;
  std::vector<std::uint8_t> experts, phase;
  std::vector<std::uint32_t> starts{0};
  std::uint16_t ahead = 3;
  std::vector<float> weights, scores, choice_scores, predicted, partial;

 private:
  Trace trace;
};

/// The machine of the hand-made timelines.
const Costs& hand() {
  static const Costs costs = [] {
    Costs c;
    c.device = {0, 1'000'000'000, 4 * us};  // an operation takes 1 ns
    c.host = {0, 1'000'000'000, 6 * us};
    c.link_bytes_per_s = 3'200'000;  // 64 bytes in 20 us
    c.layer_ns = 6 * us;
    c.work = {{0, 0, 1000}};
    return c;
  }();
  return costs;
}

/// Room for so many experts, laid out as the stack does if it has a layout of its own, and otherwise with a pool a layer. Two
/// of the slots are stream slots, unless everything fits.
template <class S>
CoreConfig<S> with_slots(const SmallTrace& t, std::uint64_t slots) {
  CoreConfig<S> c;
  c.model = t.shape;
  const std::uint64_t budget = slots * ModelShape::slot_bytes(largest_bytes(c.model));
  if constexpr (requires { S::set_up(c, budget); }) {
    S::set_up(c, budget);
  } else {
    c.allotment = pool_per_layer(c.model, budget);
  }
  for (Nanoseconds& ns : c.copy_ns) ns = 20 * us;
  return c;
}

SimulationOptions logged(std::uint32_t batch = 1, std::uint32_t chunk = 16, bool preload = false) {
  return {batch, chunk, preload, true, true};
}

template <class S>
Nanoseconds time_of(const Simulation<S>& s) {
  return s.clock(Phase::prefill).total + s.clock(Phase::decode).total;
}

/// Runs one step; how long it took.
template <class S>
Nanoseconds step(Simulation<S>& s) {
  const Nanoseconds before = time_of(s);
  REQUIRE(s.step());
  return time_of(s) - before;
}

template <class S>
void run(Simulation<S>& s) {
  while (s.step()) {
  }
}

/// A lane's spans in microseconds: `layer/expert begin-end`, prefetches with a `~`, other work by its first word.
std::string lane(const std::vector<Span>& spans, Lane which) {
  std::string text;
  auto number = [](Nanoseconds ns) { return ns % us == 0 ? std::to_string(ns / us) : std::to_string(ns) + "ns"; };
  for (const Span& s : spans) {
    if (s.lane != which) continue;
    const std::string name = s.name;
    text += text.empty() ? "" : "  ";
    text += name == "prefetch" ? "~" : "";
    text += s.has_expert ? std::to_string(s.what.id.layer) + "/" + std::to_string(s.what.id.expert)
                         : name.substr(0, name.find_first_of(", "));
    text += " " + number(s.begin_ns) + "-" + number(s.end_ns);
  }
  return text;
}

template <class Limit, class Order, class Where, class P = NoPrediction>
using LruWith = Stack<P, Lru, FixedPrecision, Schedule<Limit, Order, Where>, TopK>;
using LookAhead = LruWith<NoLimit, ArrivalOrder, DeviceOnly, StackedGates>;
using Partial = LruWith<NoLimit, ArrivalOrder, DeviceOnly, PartialHidden>;

}  // namespace

TEST_CASE("timeline: copies of one layer go back to back, and each is awaited by its own expert only") {
  // Nothing is kept: both tokens load both experts, in index order.
  SmallTrace t(4, {{{3, 1}}, {{1, 3}}});
  Simulation<stacks::OnDemand> s(with_slots<stacks::OnDemand>(t, 4), t.view(), hand(), logged());
  CHECK(step(s) == 55 * us);
  CHECK(step(s) == 55 * us);
  CHECK_FALSE(s.step());
  CHECK(lane(s.spans(), Lane::device) ==
        "attention 0-10  wait 10-30  0/1 30-35  wait 35-50  0/3 50-55  "
        "attention 55-65  wait 65-85  0/1 85-90  wait 90-105  0/3 105-110");
  CHECK(lane(s.spans(), Lane::link) == "0/1 10-30  0/3 30-50  0/1 65-85  0/3 85-105");
  const PhaseClock& c = s.clock(Phase::decode);
  CHECK(c.stall == 70 * us);
  CHECK(c.link_busy == 80 * us);
  CHECK(c.host == 0);
  CHECK(c.tokens == 2);
  CHECK(c.steps == 2);
  CHECK(s.counters().of(Phase::decode).misses == 4);
  CHECK(s.clock(Phase::prefill).total == 0);
}

TEST_CASE("timeline: with everything there the time is the computation's, and the bound is met exactly") {
  // A layer: 10 + 5 + 5 = 20; two layers a step; three steps. The preload, 8 copies, ends before the first step.
  SmallTrace t(4, {{{0, 1}, {2, 3}}, {{3, 2}, {1, 0}}, {{0, 2}, {0, 1}}});
  auto config = with_slots<stacks::LruCache>(t, 8);
  config.allotment = everything(config.model);
  Simulation<stacks::LruCache> s(config, t.view(), hand(), logged(1, 16, true));
  for (int i = 0; i < 3; ++i) CHECK(step(s) == 40 * us);
  CHECK(s.clock(Phase::decode).stall == 0);
  CHECK(s.clock(Phase::decode).link_busy == 0);
  CHECK(s.counters().of(Phase::decode).hits == 12);
  CHECK(s.counters().preload_bytes == 8 * 64);
  const auto first = std::find_if(s.spans().begin(), s.spans().end(), [](auto& x) { return x.lane == Lane::device; });
  CHECK(first->begin_ns == 160 * us);
  CHECK(s.layer_hits() == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{6, 6}, {6, 6}});
  const WorkDone w = s.decode_work([](Precision p) { return p == Precision::full ? 8U : 0U; });
  CHECK(w.compute == 120 * us);
  CHECK(w.copies == 0);
  CHECK(clairvoyant_ns(w) == 120 * us);
}

TEST_CASE("timeline: a preload takes no time of the first step") {
  // A slot a layer holds expert 0 of it: 40 us of copies before the first step, which then takes 15 a layer.
  SmallTrace t(3, {{{0}, {0}}, {{1}, {0}}});
  Simulation<stacks::LruCache> s(with_slots<stacks::LruCache>(t, 4), t.view(), hand(), logged(1, 16, true));
  CHECK(step(s) == 30 * us);
  CHECK(step(s) == 50 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 0-20  1/0 20-40  0/1 80-100");
  CHECK(lane(s.spans(), Lane::device) ==
        "attention 40-50  0/0 50-55  attention 55-65  1/0 65-70  "
        "attention 70-80  wait 80-100  0/1 100-105  attention 105-115  1/0 115-120");
  CHECK(s.clock(Phase::decode).link_busy == 20 * us);
}

TEST_CASE("timeline: LRU hits and misses") {
  // Two slots. 0 miss, 1 miss, 0 hit, 2 miss for 1, 1 miss for 0. A hit takes 10 + 5, a miss 20 more.
  SmallTrace t(5, {{{0}}, {{1}}, {{0}}, {{2}}, {{1}}});
  Simulation<stacks::LruCache> s(with_slots<stacks::LruCache>(t, 4), t.view(), hand(), logged());
  for (const Nanoseconds ns : {35, 35, 15, 35, 35}) CHECK(step(s) == ns * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  0/1 45-65  0/2 95-115  0/1 130-150");
  CHECK(s.layer_hits() == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{1, 5}});
  // The bounds. Computation: 5 * 15. With one slot and any start: 0 there, 1 copied and not kept, 0 still there, 2
  // copied, 1 copied: 3 copies, 60 us. A host that takes two of the five, at 7 each, leaves the device 65, and takes 14
  // beside the 50 of attention; with three it is 60 and 71.
  const WorkDone w = s.decode_work([](Precision) { return 1U; });
  CHECK(w.compute == 75 * us);
  CHECK(w.copies == 60 * us);
  CHECK(w.uses == 5);
  CHECK(w.most_device == 5 * us);
  CHECK(w.longest_copy == 20 * us);
  CHECK(w.least_host == 7 * us);
  CHECK(clairvoyant_ns(w) == 75 * us);
  CHECK(w.dense == 50 * us);
  CHECK(clairvoyant_with_host_ns(w) == 65 * us);
}

TEST_CASE("timeline: a computation hides the copy of the next expert, in whole or in part") {
  SmallTrace t(4, {{{1, 2}}, {{1, 3}}});
  Costs costs = hand();
  SUBCASE("in part: an expert of 15, copies of 20") {
    // device  |att|  wait  |  1  |w|  2  |       second token: copy 75-95, expert 1 beside it 75-90, expert 3 95-110
    // link        |   1    |   2   |
    //         0  10       30    45 50   65
    costs.work[0].expert_operations = 11'000;
    Simulation<stacks::LruCache> s(with_slots<stacks::LruCache>(t, 6), t.view(), costs, logged());
    CHECK(step(s) == 65 * us);
    CHECK(s.clock(Phase::decode).stall == 25 * us);
    CHECK(step(s) == 45 * us);
    CHECK(s.clock(Phase::decode).stall == 30 * us);
  }
  SUBCASE("in whole: an expert of 25, copies of 20") {
    // device  |att|  wait  |    1    |    2    |att|    1    |    3    |
    // link        |   1    |   2   |               |   3   |
    //         0  10       30      50 55       80  90     110 115      140
    costs.work[0].expert_operations = 21'000;
    Simulation<stacks::LruCache> s(with_slots<stacks::LruCache>(t, 6), t.view(), costs, logged());
    CHECK(step(s) == 80 * us);
    CHECK(s.clock(Phase::decode).stall == 20 * us);
    CHECK(step(s) == 60 * us);
    CHECK(s.clock(Phase::decode).stall == 20 * us);
    CHECK(lane(s.spans(), Lane::link) == "0/1 10-30  0/2 30-50  0/3 90-110");
  }
}

TEST_CASE("timeline: a late hit waits only for the rest of its prefetch") {
  // Layer 1 asks at 45 for what has been crossing since 30.
  SmallTrace t(4, {{{0}, {1}}});
  t.predict(0, 0, 1, {1});
  Simulation<stacks::MixtralOffloading> s(with_slots<stacks::MixtralOffloading>(t, 6), t.view(), hand(), logged());
  CHECK(step(s) == 55 * us);
  CHECK(lane(s.spans(), Lane::device) ==
        "attention 0-10  wait 10-30  0/0 30-35  attention 35-45  wait 45-50  1/1 50-55");
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  ~1/1 30-50");
  CHECK(s.clock(Phase::decode).stall == 25 * us);
  CHECK(s.counters().of(Phase::decode).misses == 1);
  CHECK(s.counters().of(Phase::decode).late_hits == 1);
  CHECK(s.counters().prefetch.used == 1);
  CHECK(s.prediction_accuracy(1, 1).needed == 1);
  CHECK(s.prediction_accuracy(1, 1).predicted == 1);
}

TEST_CASE("timeline: an expedited prefetch goes before the others, and is a miss") {
  // Layer 0 predicts 1/1, wrongly 2/3, and 3/0; layer 1 predicts 2/2, which queues last. At 65 layer 2 wants it: 2/3
  // has begun at 50 and lands first; 3/0, queued before it, goes after it.
  SmallTrace t(4, {{{0}, {1}, {2}, {0}}});
  t.predict(0, 0, 1, {1});
  t.predict(0, 0, 2, {3});
  t.predict(0, 0, 3, {0});
  t.predict(0, 1, 1, {2});
  t.predict(0, 1, 2, {0});
  t.predict(0, 2, 1, {0});
  Simulation<LookAhead> s(with_slots<LookAhead>(t, 10), t.view(), hand(), logged());
  CHECK(step(s) == 115 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  ~1/1 30-50  ~2/3 50-70  2/2 70-90  ~3/0 90-110");
  CHECK(lane(s.spans(), Lane::device) ==
        "attention 0-10  wait 10-30  0/0 30-35  attention 35-45  wait 45-50  1/1 50-55  "
        "attention 55-65  wait 65-90  2/2 90-95  attention 95-105  wait 105-110  3/0 110-115");
  const Counters& c = s.counters();
  CHECK(c.of(Phase::decode).misses == 2);
  CHECK(c.of(Phase::decode).late_hits == 2);
  CHECK(c.prefetch.issued == 3);
  CHECK(c.prefetch.used == 2);
  CHECK(c.prefetch.dropped == 1);
}

TEST_CASE("timeline: a demand copy waits for the wrong prefetch that has begun") {
  // At 45 layer 1 wants 0; 2 has been crossing since 30 and is not interrupted.
  SmallTrace t(4, {{{0}, {0}}});
  t.predict(0, 0, 1, {2});
  Simulation<stacks::MixtralOffloading> s(with_slots<stacks::MixtralOffloading>(t, 6), t.view(), hand(), logged());
  CHECK(step(s) == 75 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  ~1/2 30-50  1/0 50-70");
  CHECK(s.clock(Phase::decode).stall == 45 * us);
  CHECK(s.counters().of(Phase::decode).misses == 2);
}

TEST_CASE("timeline: a prefetch that turned out wrong before it began never crosses") {
  // Predicted are 2 and 3, wanted 0 and 1. At 65, 2 is on its way (50-70), and 3 is taken back. The second token finds
  // all.
  SmallTrace t(4, {{{0, 1}, {0, 1}}, {{0, 1}, {0, 1}}});
  t.predict(0, 0, 1, {2, 3});
  t.predict(1, 0, 1, {0, 1});
  Simulation<stacks::MixtralOffloading> s(with_slots<stacks::MixtralOffloading>(t, 10), t.view(), hand(), logged());
  CHECK(step(s) == 115 * us);
  CHECK(step(s) == 40 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  0/1 30-50  ~1/2 50-70  1/0 70-90  1/1 90-110");
  CHECK(s.clock(Phase::decode).link_busy == 100 * us);
  CHECK(s.counters().prefetch.dropped == 1);
  CHECK(s.counters().prefetch.issued == 1);
  CHECK(s.counters().of(Phase::decode).bytes == 5 * 64);
}

TEST_CASE("timeline: at the instant at which a prefetch could begin, demand goes first") {
  // A device that takes no time. Token 0: 0/0 crosses 0-20; at 20 layer 1 wants 0, not 1: the prefetch of 1, which
  // could begin now, is taken back. Token 1: 0/1 at 40-60; at 60 layer 1 wants 1 as predicted: expedited, 60-80.
  SmallTrace t(4, {{{0}, {0}}, {{1}, {1}}});
  t.predict(0, 0, 1, {1});
  t.predict(1, 0, 1, {1});
  Costs costs = hand();
  costs.device = {};
  costs.layer_ns = 0;
  Simulation<stacks::MixtralOffloading> s(with_slots<stacks::MixtralOffloading>(t, 6), t.view(), costs, logged());
  CHECK(step(s) == 40 * us);
  CHECK(step(s) == 40 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 0-20  1/0 20-40  0/1 40-60  1/1 60-80");
  CHECK(s.counters().of(Phase::decode).misses == 4);
  CHECK(s.counters().prefetch.dropped == 2);
  CHECK(s.counters().prefetch.issued == 0);
}

TEST_CASE("timeline: the host computes beside the device, and a layer ends with the later of them") {
  // 0 and 1 stay on the device. {0, 1, 2}: device 10-20, host 10-17. {0, 2, 3}: device 10-15, host 10-17-24.
  SmallTrace t(5, {{{0, 1, 2}}, {{0, 2, 3}}});
  Simulation<stacks::StaticHost> s(with_slots<stacks::StaticHost>(t, 4), t.view(), hand(), logged(1, 16, true));
  CHECK(step(s) == 20 * us);
  CHECK(s.clock(Phase::decode).host_wait == 0);
  CHECK(step(s) == 24 * us);
  CHECK(s.clock(Phase::decode).host_wait == 9 * us);
  CHECK(s.clock(Phase::decode).host == 21 * us);
  CHECK(s.clock(Phase::decode).stall == 0);
  CHECK(lane(s.spans(), Lane::host) == "0/2 50-57  0/2 70-77  0/3 77-84");  // behind 40 us of preload
  CHECK(s.counters().of(Phase::decode).host_computed == 3);
  CHECK(s.counters().of(Phase::decode).hits == 3);
}

TEST_CASE("timeline: two pointers split the misses between link and host") {
  // Token 0: host costs are unknown: one is loaded (10-30, computed to 35), four take the host 28, to 38.
  // Token 1, 7 a row known: load 20 > 0, host 7, 14, 21 >= 20, load 40: two loaded, three on the host.
  //   device  |att|      wait      | 5 | wait | 6 |      38, 48, 68-73, 88-93
  //   host        | 7 | 8 | 9 |                          48-69
  SmallTrace t(10, {{{0, 1, 2, 3, 4}}, {{5, 6, 7, 8, 9}}});
  using Balanced = LruWith<NoLimit, BatchSizeOrder, TwoPointer>;
  Simulation<Balanced> s(with_slots<Balanced>(t, 8), t.view(), hand(), logged());
  CHECK(step(s) == 38 * us);
  CHECK(s.clock(Phase::decode).host_wait == 3 * us);
  CHECK(step(s) == 55 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  0/5 48-68  0/6 68-88");
  CHECK(lane(s.spans(), Lane::host) == "0/1 10-17  0/2 17-24  0/3 24-31  0/4 31-38  0/7 48-55  0/8 55-62  0/9 62-69");
  CHECK(s.clock(Phase::decode).host_wait == 3 * us);
}

TEST_CASE("timeline: the best prefix splits the misses between link and host") {
  // Token 0: host costs are unknown, the host takes all: 10-45. Token 1: max(20 n, 7 (5 - n)) is 35, 28, 40 for n = 0,
  // 1, 2: one is loaded, at 55-75 and computed to 80, the host ends at 55 + 28 = 83.
  SmallTrace t(10, {{{0, 1, 2, 3, 4}}, {{5, 6, 7, 8, 9}}});
  using Balanced = LruWith<NoLimit, BatchSizeOrder, BestSplit>;
  Simulation<Balanced> s(with_slots<Balanced>(t, 8), t.view(), hand(), logged());
  CHECK(step(s) == 45 * us);
  CHECK(step(s) == 38 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/5 55-75");
  CHECK(s.clock(Phase::decode).host == 63 * us);
  CHECK(s.clock(Phase::decode).host_wait == 38 * us);
  CHECK(s.counters().of(Phase::decode).host_computed == 9);
}

TEST_CASE("timeline: the host's time is fed back by the row") {
  // Two sequences want one expert: 6 + 2 = 8 on the host for two rows, so 4 a row. The next expert costs 4 * 2 there,
  // less than a copy that the policy believes to take 9; at 8 a row the host would lose.
  SmallTrace t(4, {{{0}}, {{1}}, {{0}}, {{1}}});
  t.starts = {0, 2};
  using Balanced = LruWith<NoLimit, BatchSizeOrder, BestSplit>;
  auto config = with_slots<Balanced>(t, 4);
  for (Nanoseconds& ns : config.copy_ns) ns = 9 * us;
  Simulation<Balanced> s(config, t.view(), hand(), logged(2));
  CHECK(step(s) == 18 * us);
  CHECK(step(s) == 18 * us);
  CHECK(lane(s.spans(), Lane::host) == "0/0 10-18  0/1 28-36");
}

TEST_CASE("timeline: the layer's own time is fed back, and limits Fate's prefetches") {
  // Token 0: nothing is known, layer 1's expert is prefetched: 55, as for the late hit. Token 1: a layer takes 10 + 5 =
  // 15, a copy of 15 fits into it (55 again), one of 15.001 does not (two misses, 35 + 35).
  SmallTrace t(4, {{{0}, {0}}, {{1}, {1}}});
  t.predict(0, 0, 1, {0});
  t.predict(1, 0, 1, {1});
  using Limited = LruWith<TransferBudget, ArrivalOrder, DeviceOnly, CrossLayerGate>;
  for (const Nanoseconds more : {0, 1}) {
    auto config = with_slots<Limited>(t, 6);
    config.predictor.plain_top_k = true;
    for (Nanoseconds& ns : config.copy_ns) ns = 15 * us + more;
    Simulation<Limited> s(config, t.view(), hand(), logged());
    CHECK(step(s) == 55 * us);
    CHECK(step(s) == (more == 0 ? 55 : 70) * us);
  }
}

TEST_CASE("timeline: in prefill, popular experts first finish earlier than index order") {
  // 10 rows, 5 us each on the device: experts 0 and 1 have one, 2 has eight (40 us).
  //   index order  |att| wait | 0 | wait | 1 | wait |       2       |   0/0 at 30-35, 0/1 at 50-55, 0/2 at 70-110
  //   popularity   |att| wait |       2       | 0 | 1 |                 0/2 at 30-70, 0/0 at 70-75, 0/1 at 75-80
  SmallTrace t(3, {{{0}}, {{1}}, {{2}}, {{2}}, {{2}}, {{2}}, {{2}}, {{2}}, {{2}}, {{2}}});
  t.prompts(10);
  Costs costs = hand();
  costs.device.start_ns = 0;
  costs.layer_ns = 10 * us;
  costs.work[0].expert_operations = 5000;
  Simulation<stacks::LruCache> fifo(with_slots<stacks::LruCache>(t, 3), t.view(), costs, logged());
  CHECK(step(fifo) == 110 * us);
  using ByPopularity = LruWith<NoLimit, PopularityOrder, DeviceOnly>;
  Simulation<ByPopularity> popular(with_slots<ByPopularity>(t, 3), t.view(), costs, logged());
  CHECK(step(popular) == 80 * us);
  CHECK(lane(popular.spans(), Lane::link) == "0/2 10-30  0/0 30-50  0/1 50-70");
  CHECK(popular.clock(Phase::prefill).total == 80 * us);
  CHECK(popular.clock(Phase::prefill).tokens == 10);
  CHECK(popular.clock(Phase::prefill).steps == 1);
  CHECK(popular.clock(Phase::decode).total == 0);
}

TEST_CASE("a prompt that is cut off does not count as prefilled, nor does a group without one") {
  // The first group has no prompt, the second one of two steps, the third one of three steps.
  SmallTrace t(5, {{{0}}, {{1}}, {{0}}, {{0}}, {{1}}, {{1}}, {{0}}});
  t.starts = {0, 1, 4};
  t.prompts(3);
  t.phase[0] = 1;
  t.phase[3] = 1;
  SimulationOptions o = logged(1);
  o.prefill_chunk = 1;
  using S = stacks::LruCache;
  Simulation<S> s(with_slots<S>(t, 4), t.view(), hand(), o);
  CHECK(s.prefilled().groups == 0);
  step(s);
  CHECK(s.prefilled().groups == 0);
  const Nanoseconds first = step(s);
  CHECK(s.prefilled().groups == 0);
  const Nanoseconds both = first + step(s);
  for (int more = 0; more < 3; ++more) {
    CHECK(s.prefilled().groups == 1);
    CHECK(s.prefilled().total == both);
    if (more < 2) step(s);
  }
  CHECK(s.clock(Phase::prefill).total > both);
  step(s);
  CHECK(s.prefilled().groups == 1);
  step(s);
  CHECK(s.prefilled().groups == 2);
  CHECK(s.prefilled().total == s.clock(Phase::prefill).total);
  CHECK_FALSE(s.step());
}

TEST_CASE("timeline: sequences of unequal length in lockstep") {
  // Attention takes 10 and 1 a row here. A: 0 0 1, B: 0, then C: 2 1, which begins when A and B have ended. Two slots,
  // LFU. A0 B0: 12 + copy 20 + two rows 6; A1: 11 + 5; A2: 11 + 20 + 5; C0: 11 + 20 + 5, for 0, the first of equals
  // since the uses of A and B are forgotten; C1: 11 + 5.
  using Frequent = Stack<NoPrediction, Lfu, FixedPrecision, stacks::LoadEverything, TopK>;
  SmallTrace t(5, {{{0}}, {{0}}, {{1}}, {{0}}, {{2}}, {{1}}});
  t.starts = {0, 3, 4};
  Costs costs = hand();
  costs.work[0].dense_operations = 1000;
  Simulation<Frequent> s(with_slots<Frequent>(t, 4), t.view(), costs, logged(2));
  for (const Nanoseconds ns : {38, 16, 36}) CHECK(step(s) == ns * us);
  for (const Nanoseconds ns : {36, 16}) CHECK(step(s) == ns * us);
  CHECK_FALSE(s.step());
  CHECK(s.clock(Phase::decode).total == 142 * us);
  CHECK(s.clock(Phase::decode).tokens == 6);
  CHECK(s.clock(Phase::decode).steps == 5);
  CHECK(s.counters().of(Phase::decode).requests == 5);
  const WorkDone w = s.decode_work([](Precision) { return 2U; });
  CHECK(w.compute == (12 + 6 + 4 * (11 + 5)) * us);
  CHECK(w.uses == 5);
  CHECK(w.most_device == 6 * us);  // two rows
  CHECK(w.least_host == 7 * us);   // one
}

TEST_CASE("timeline: each sequence of a batch brings its own scores and predictions") {
  // Both run 0/0, 4 + 2 * 16 = 36 on the device; then one wants 1/1, the other 1/2, as predicted: both have landed by
  // 76, and take 20 each.
  SmallTrace t(4, {{{0}, {1}}, {{0}, {2}}});
  t.starts = {0, 1};
  for (std::uint16_t sequence = 0; sequence < 2; ++sequence) {
    const Experts wants = {static_cast<std::uint16_t>(1 + sequence)};
    t.put(t.scores, sequence * 2U, 1, {0});
    t.put(t.scores, sequence * 2U + 1, 1, wants);
    t.predict(sequence, 0, 1, wants);
  }
  Costs costs = hand();
  costs.work[0].expert_operations = 16'000;
  Simulation<stacks::MixtralOffloading> s(with_slots<stacks::MixtralOffloading>(t, 6), t.view(), costs, logged(2));
  CHECK(step(s) == 116 * us);
  CHECK(lane(s.spans(), Lane::device) ==
        "attention 0-10  wait 10-30  0/0 30-66  attention 66-76  1/1 76-96  1/2 96-116");
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  ~1/1 30-50  ~1/2 50-70");
  CHECK(s.counters().of(Phase::decode).hits == 2);
}

TEST_CASE("timeline: predicted weights are those of the prediction, and decide in which precision a prefetch crosses") {
  // Layer 1 is predicted to give expert 1 eight tenths and expert 2 the rest, which is within HOBBIT's low range.
  SmallTrace t(16, {{{0, 3}, {1, 2}}});
  t.shape.expert_bytes = {ExpertBytes{0, 0, 16, 0, 64}};
  t.predict(0, 0, 1, {1, 2});
  t.predicted[1] = 0.8F;
  t.predicted[2] = 0.2F;
  t.weights = {0.5F, 0.5F, 0.5F, 0.5F};
  Costs costs = hand();
  costs.work[0].expert_operations = 100'000;  // so that both have landed when they are asked for
  Simulation<stacks::HobbitPrefetch> s(with_slots<stacks::HobbitPrefetch>(t, 20), t.view(), costs, logged());
  REQUIRE(s.step());
  CHECK(s.counters().prefetch.issued == 2);
  CHECK(s.counters().prefetch.issued_bytes == 64 + 16);
}

TEST_CASE("timeline: experts are chosen by the choice scores, where a trace has them") {
  // Scores name 0/0 and 1/3; the bias for the choice makes that 0/1 and 1/2, each a copy of 20 us and a product of 5.
  SmallTrace t(4, {{{1}, {2}}, {{1}, {2}}});
  for (std::size_t row = 0; row < 2; ++row) {
    t.put(t.scores, 2 * row, 1, {0});
    t.put(t.scores, 2 * row + 1, 1, {3});
    t.put(t.choice_scores, 2 * row, 1, {1});
    t.put(t.choice_scores, 2 * row + 1, 1, {2});
  }
  Simulation<stacks::LruCache> s(with_slots<stacks::LruCache>(t, 6), t.view(), hand(), logged(2));
  CHECK(s.step());
  CHECK(lane(s.spans(), Lane::link).find("0/1") != std::string::npos);
  CHECK(lane(s.spans(), Lane::link).find("1/2") != std::string::npos);
  CHECK(lane(s.spans(), Lane::link).find("0/0") == std::string::npos);
  CHECK(lane(s.spans(), Lane::link).find("1/3") == std::string::npos);
}

TEST_CASE("timeline: a layer computes those rows of a prompt that the trace has") {
  // The last layer leaves out the first token, whose scores there (they would name 1/3) nobody reads. Together: attention
  // 10, copies 10-30-50, 0/1 done at 55; attention 55-65, copy 65-85, 1/2 done at 90. One by one: the first token has no
  // second layer but its attention, 10 + 20 + 5 + 10; the second takes 10 + 20 + 5 twice.
  SmallTrace t(4, {{{0}, {0xff}}, {{1}, {2}}});
  t.prompts(2);
  t.put(t.scores, 0, 1, {0});
  t.put(t.scores, 1, 1, {3});
  t.put(t.scores, 2, 1, {1});
  t.put(t.scores, 3, 1, {2});
  Simulation<stacks::LruCache> s(with_slots<stacks::LruCache>(t, 6), t.view(), hand(), logged());
  CHECK(step(s) == 90 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  0/1 30-50  1/2 65-85");
  CHECK(s.counters().of(Phase::prefill).requests == 3);
  Simulation<stacks::LruCache> single(with_slots<stacks::LruCache>(t, 6), t.view(), hand(), logged(1, 1));
  for (const Nanoseconds ns : {45, 70}) CHECK(step(single) == ns * us);
  CHECK(single.counters().of(Phase::prefill).requests == 3);
}

TEST_CASE("timeline: a prompt in chunks, then decode, each on its own clock") {
  // Five tokens of prompt by twos: {0, 1}: 10, copies 10-30-50, computed 50-55. {1, 1}: 10 + 6. {2}: 10 + 20 + 5.
  // Then a token that finds its expert: 15.
  SmallTrace t(4, {{{0}}, {{1}}, {{1}}, {{1}}, {{2}}, {{2}}});
  t.prompts(5);
  Simulation<stacks::LruCache> s(with_slots<stacks::LruCache>(t, 6), t.view(), hand(), logged(1, 2));
  for (const Nanoseconds ns : {55, 16, 35, 15}) CHECK(step(s) == ns * us);
  CHECK_FALSE(s.step());
  CHECK(s.clock(Phase::prefill).total == 106 * us);
  CHECK(s.clock(Phase::prefill).tokens == 5);
  CHECK(s.clock(Phase::prefill).steps == 3);
  CHECK(s.clock(Phase::prefill).link_busy == 60 * us);
  CHECK(s.clock(Phase::decode).total == 15 * us);
  CHECK(s.decode_work([](Precision) { return 4U; }).compute == 15 * us);
}

TEST_CASE("timeline: a partial hidden state costs the next layer's attention once more") {
  // Attention takes 10 in layer 0 and 12 in layer 1. Token 0: the partial state is ready at 22, its prefetch follows
  // the demand copy. Token 1 finds everything: 10 + 5 + 12 + 12 + 5.
  SmallTrace t(4, {{{0}, {1}}, {{0}, {1}}});
  t.predict_partial(0, 0, {1});
  t.predict_partial(1, 0, {1});
  Costs costs = hand();
  costs.work = {{0, 0, 1000}, {0, 2000, 1000}};
  Simulation<Partial> s(with_slots<Partial>(t, 6), t.view(), costs, logged());
  CHECK(step(s) == 55 * us);
  CHECK(step(s) == 44 * us);
  CHECK(lane(s.spans(), Lane::device) ==
        "attention 0-10  partial 10-22  wait 22-30  0/0 30-35  attention 35-47  wait 47-50  1/1 50-55  "
        "attention 55-65  0/0 65-70  partial 70-82  attention 82-94  1/1 94-99");
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  ~1/1 30-50");
}

TEST_CASE("timeline: a prefetch from a partial hidden state begins when that state is there") {
  // Token 0 is as the late hit: its partial state hides behind the first copy. Token 1, from 55: attention to 65, layer
  // 0's expert to 70, the partial state to 80; only then the idle link begins. Attention to 90, the copy lands at 100.
  SmallTrace t(4, {{{0}, {0}}, {{0}, {1}}});
  t.predict_partial(0, 0, {0});
  t.predict_partial(1, 0, {1});
  Simulation<Partial> s(with_slots<Partial>(t, 6), t.view(), hand(), logged());
  CHECK(step(s) == 55 * us);
  CHECK(step(s) == 50 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  ~1/0 30-50  ~1/1 80-100");
  CHECK(s.clock(Phase::decode).stall == 25 * us);  // 20 - 30, 45 - 50, 90 - 100
}

TEST_CASE("timeline: the next step's first layer, for a predictor that reads no rows") {
  // One layer of two experts, all of which are predicted for the next step. 0 demanded 10-30, 1 prefetched 30-50: the
  // second step asks at 45 and waits to 50; the third finds 0.
  SmallTrace t(2, {{{0}}, {{1}}, {{0}}});
  Simulation<stacks::LayerStream> s(with_slots<stacks::LayerStream>(t, 2), t.view(), hand(), logged());
  for (const Nanoseconds ns : {35, 20, 15}) CHECK(step(s) == ns * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  ~0/1 30-50");
}

TEST_CASE("timeline: latencies, starts, and times rounded up") {
  // Copy: 10 + 65 bytes at 64 a us = 10 + ceil(1015.625) = 1026. Attention: 2 + 1 + ceil(100 / 3) = 37. Expert:
  // 1 + ceil(65 / 3) = 23. Two misses: 37 + 1026 + 1026 + 23.
  SmallTrace t(4, {{{0, 1}}});
  t.shape.expert_bytes[0].back() = 65;
  Costs costs;
  costs.device = {3'000'000'000, 0, 1};
  costs.link_bytes_per_s = 64'000'000;
  costs.link_latency_ns = 10;
  costs.layer_ns = 2;
  costs.work = {{100, 0, 0}};
  Simulation<stacks::OnDemand> s(with_slots<stacks::OnDemand>(t, 4), t.view(), costs, logged());
  CHECK(step(s) == 2112);
  CHECK(lane(s.spans(), Lane::link) == "0/0 37ns-1063ns  0/1 1063ns-2089ns");
}

TEST_CASE("timeline: overflow streams through two slots, each filled again when its reader is done") {
  // 8 rows, 5 us each: expert 0 has five (25 us), the others one. Two slots.
  //   device  |att| wait |     0     | 1 | wait | 2 | wait | 3 |
  //   link        |  0   |   1   |   |   2      |    3     |        2 follows 0's end at 55, 3 follows 1's at 60
  //           0  10     30      50   55  60     75  80     95  100
  SmallTrace t(4, {{{0}}, {{0}}, {{0}}, {{0}}, {{0}}, {{1}}, {{2}}, {{3}}});
  t.prompts(8);
  Costs costs = hand();
  costs.device.start_ns = 0;
  costs.layer_ns = 10 * us;
  costs.work[0].expert_operations = 5000;
  Simulation<stacks::OnDemand> s(with_slots<stacks::OnDemand>(t, 2), t.view(), costs, logged());
  CHECK(step(s) == 100 * us);
  CHECK(lane(s.spans(), Lane::link) == "0/0 10-30  0/1 30-50  0/2 55-75  0/3 75-95");
  CHECK(lane(s.spans(), Lane::device) ==
        "attention 0-10  wait 10-30  0/0 30-55  0/1 55-60  wait 60-75  0/2 75-80  wait 80-95  0/3 95-100");
}

TEST_CASE("where the link is all that counts, time is near the bound") {
  // Three tokens, 20 new experts each, two slots: 10 + 20 * 20 + 5 a token. All but two of the 60 must be copied.
  std::vector<Token> tokens(3, Token(1));
  for (std::uint16_t e = 0; e < 60; ++e) tokens[e / 20][0].push_back(e);
  SmallTrace t(60, tokens);
  Simulation<stacks::OnDemand> s(with_slots<stacks::OnDemand>(t, 2), t.view(), hand(), logged());
  run(s);
  CHECK(s.clock(Phase::decode).total == 1245 * us);
  CHECK(clairvoyant_ns(s.decode_work([](Precision) { return 2U; })) == 1160 * us);
}

TEST_CASE("the bound takes each stretch of decode alone, and what a prompt left for free") {
  // Two prompts of one token; after each, decode asks for two experts. One slot holds either at the start: a copy a
  // stretch. As one stretch it would be {1} {0} {2} {3}: three.
  SmallTrace t(5, {{{0}}, {{1}}, {{0}}, {{4}}, {{2}}, {{3}}});
  t.starts = {0, 3};
  t.prompts(1);
  Simulation<stacks::LruCache> s(with_slots<stacks::LruCache>(t, 3), t.view(), hand(), logged());
  run(s);
  const WorkDone w = s.decode_work([](Precision) { return 1U; });
  CHECK(w.copies == 40 * us);
  CHECK(w.uses == 4);
  CHECK(w.compute == 60 * us);
}

namespace {

/// The message with which this stack refuses the trace; empty if it does not.
template <class S>
std::string refusal(SmallTrace& t, const CoreConfig<S>& config) {
  try {
    const Simulation<S> s(config, t.view(), hand(), {});
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}
template <class S>
std::string refusal(SmallTrace& t) {
  return refusal(t, with_slots<S>(t, 6));
}

}  // namespace

TEST_CASE("a trace of another model, or whose arrays do not fit, is refused before the first step") {
  using S = stacks::LruCache;
  SmallTrace t(8, {{{0, 1}, {2, 3}}});
  const auto refused = [&](const std::function<void(CoreConfig<S>&, Trace&)>& change) -> std::string {
    auto config = with_slots<S>(t, 6);
    Trace trace = t.view();
    change(config, trace);
    try {
      const Simulation<S> s(config, trace, hand(), {});
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refused([](auto&, Trace&) {}).empty());
  CHECK(refused([](auto& c, Trace&) { c.model.experts = 9; }).find("is of another model") != std::string::npos);
  CHECK(refused([](auto& c, Trace&) {
          c.model.layer_top_k = {2, 1};
        }).find("is of another model") != std::string::npos);
  CHECK(refused([](auto&, Trace& trace) { trace.sequence_start = {}; }).find("sequence_start must begin") !=
        std::string::npos);
  CHECK(refused([](auto&, Trace& trace) { trace.experts8 = trace.experts8.first(1); }).find("experts has 1 elements") !=
        std::string::npos);
}

TEST_CASE("a trace that lacks what a stack reads is refused, with the tensor's name") {
  using WithRouter = Stack<NoPrediction, Lru, FixedPrecision, stacks::LoadEverything, ExpertCacheRouter>;
  using Skips = Stack<NoPrediction, Lru, FixedPrecision, stacks::LoadEverything, ExpertSkipping>;
  SmallTrace t(8, {{{0, 1}, {2, 3}}});
  CHECK(refusal<stacks::LruCache>(t).empty());
  CHECK(refusal<Skips>(t) ==
        "the trace of small has no weights (tensor \"weights\"), by which this stack leaves out experts or brings them "
        "with "
        "fewer bits");
  SmallTrace in_two = t;
  in_two.shape.expert_bytes = {ExpertBytes{0, 0, 16, 0, 64}};
  CHECK(refusal<stacks::Hobbit>(in_two) == refusal<Skips>(t));
  CHECK(refusal<stacks::MixtralOffloading>(t) ==
        "the trace of small predicts 0 layers ahead (tensor \"predicted\"), but this stack reads 1");
  t.ahead = 2;
  t.predict(0, 0, 1, {2, 3});
  CHECK(refusal<stacks::MixtralOffloading>(t).empty());
  auto deep = with_slots<LookAhead>(t, 6);
  CHECK(refusal(t, deep) ==
        "the trace of small predicts 2 layers ahead (tensor \"predicted\"), but this stack reads 3");
  deep.predictor.depth = 2;
  CHECK(refusal(t, deep).empty());

  CHECK(refusal<stacks::ImportanceDriven>(t) ==
        "the trace of small has no gate scores of all experts (tensor \"scores\"), which this stack's cache policy "
        "reads");
  CHECK(refusal<WithRouter>(t) ==
        "the trace of small has no gate scores of all experts (tensor \"scores\"), which this stack's router reads");
  t.scores.resize(2 * 8);
  CHECK(refusal<WithRouter>(t).empty());
  CHECK(refusal<stacks::ImportanceDriven>(t) ==
        "the trace of small has no scores of partial hidden states (tensor \"partial\"), which this stack's predictor "
        "reads");
  t.predict_partial(0, 0, {2, 3});
  CHECK(refusal<stacks::ImportanceDriven>(t).empty());
}

namespace {

/// One random trace and machine.
struct RandomCase {
  explicit RandomCase(std::uint64_t seed) : random(seed) {
    draw_shape();
    draw_trace();
    draw_costs();
    options = {random.between(1, 3), 1, false, true, true};
    options.prefill_chunk = random.between(1, 8);
  }

  Random random;
  SmallTrace trace;
  Costs costs;
  SimulationOptions options;

 private:
  void draw_shape() {
    ModelShape& m = trace.shape;
    m.layers = static_cast<std::uint16_t>(random.between(2, 4));
    m.experts = static_cast<std::uint16_t>(random.between(3, 8));
    m.top_k = static_cast<std::uint16_t>(random.between(1, 3));
    m.max_rows = 8;
    m.renormalise = Renormalise::yes;
    const std::uint32_t unit = random.between(1, 4) * 64, sizes = random.chance(30) ? m.layers : 1U;
    for (std::uint32_t l = 0; l < sizes; ++l) {
      const std::uint64_t bytes = unit * random.between(1, 2);
      m.expert_bytes.push_back({0, bytes / 8, bytes / 4 + 1, 0, bytes});
    }
  }

  /// Scores of a row that sum to 1; some experts are popular.
  std::vector<float> row(const std::vector<float>& popular) {
    std::vector<float> s = popular;
    float sum = 0.0F;
    for (float& x : s) x += random.unit();
    for (const float x : s) sum += x;
    for (float& x : s) x /= sum;
    return s;
  }

  static Experts best(const std::vector<float>& s, std::uint32_t k) {
    Experts order(s.size());
    for (std::uint16_t e = 0; e < order.size(); ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return s[a] > s[b]; });
    order.resize(k);
    return order;
  }

  void draw_trace() {
    const std::uint32_t layers = trace.shape.layers, tokens = random.between(1, 20);
    std::vector<std::vector<float>> popular, rows(layers);
    for (std::uint32_t l = 0; l < layers; ++l) popular.push_back(random.scores(trace.shape.experts, true));
    auto append = [](std::vector<float>& to, const std::vector<float>& s) { to.insert(to.end(), s.begin(), s.end()); };
    trace.ahead = 4;
    for (std::uint32_t t = 0; t < tokens; ++t) {
      Token chosen;
      for (std::uint32_t l = 0; l < layers; ++l) {
        rows[l] = row(popular[l]);
        chosen.push_back(best(rows[l], trace.shape.top_k));
        append(trace.scores, rows[l]);
      }
      trace.add(chosen);
      for (std::uint32_t l = 0; l < layers; ++l) {
        for (std::uint32_t ahead = l + 1; ahead <= l + 4; ++ahead) {
          const bool right = ahead < layers && random.chance(70);
          const std::vector<float> p = right ? rows[ahead] : row(popular[ahead % layers]);
          append(trace.predicted, p);
          if (ahead == l + 1) append(trace.partial, p);
        }
      }
      if (t > 0 && random.chance(15)) trace.starts.push_back(t);
    }
    if (random.chance(50)) trace.prompts(random.between(1, 6));
  }

  /// 1 to 10^decades, spread over them.
  std::uint64_t spread(std::uint32_t decades) {
    std::uint64_t n = 1;
    for (std::uint32_t i = random.below(decades); i > 0; --i) n *= 10;
    return n * random.between(1, 10);
  }

  void draw_costs() {
    costs.device.bytes_per_s = random.chance(50) ? 1'000'000 * spread(4) : 0;
    costs.device.flops = 1'000'000'000;
    costs.device.start_ns = random.below(5000);
    costs.host.flops = 100'000'000 * spread(2);
    costs.host.start_ns = random.below(5000);
    costs.host.bytes_per_s = random.chance(50) ? 10'000'000 * spread(3) : 0;
    if (random.chance(50)) costs.link_bytes_per_s_beside_host = 1'000'000 * spread(4);
    if (random.chance(50)) costs.host_bytes_per_s_beside_copies = 1'000'000 * spread(3);
    costs.activations_latency_ns = random.chance(50) ? random.below(3000) : 0;
    costs.activations_bytes_per_s = random.chance(50) ? 1'000'000 * spread(4) : 0;
    costs.link_bytes_per_s = 1'000'000 * spread(4);  // an expert of 100 bytes: 10 ns to 100 us
    costs.link_latency_ns = random.chance(50) ? random.below(3000) : 0;
    costs.layer_ns = random.below(5000);
    costs.work.resize(random.chance(50) ? 1 : trace.shape.layers);
    for (LayerWork& w : costs.work) {
      w.dense_bytes = random.below(1000);
      w.dense_operations = random.below(3000);
      w.expert_operations = random.below(3000);
      w.activation_bytes = random.below(100);
    }
  }
};

/// Totals of the random runs, which show that they test something.
struct Tally {
  std::uint64_t runs = 0, tight = 0, link_bound = 0, near_link = 0, below = 0;
};

/// A budget between the smallest that the stack accepts and a little more than everything.
template <class S>
CoreConfig<S> random_config(RandomCase& c) {
  CoreConfig<S> config;
  config.model = c.trace.shape;
  std::uint64_t largest = 0;
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    if ((config.precision.precisions() >> p & 1U) == 0) continue;
    for (std::uint32_t l = 0; l < config.model.layers; ++l) {
      largest = std::max(largest, config.model.bytes(l, static_cast<Precision>(p)));
    }
    config.copy_ns[p] = c.costs.copy(config.model.bytes(0, static_cast<Precision>(p)));
  }
  const std::uint64_t least = 2 * ModelShape::slot_bytes(largest);
  const auto more = static_cast<std::uint32_t>(config.model.all_bytes() + 64);
  const std::uint64_t budget = c.random.chance(20) ? least : least + c.random.below(more);
  S::set_up(config, budget);
  return config;
}

/// Equal to the last digit.
template <class S>
bool same(const Simulation<S>& a, const Simulation<S>& b) {
  static_assert(std::has_unique_object_representations_v<Counters> &&
                std::has_unique_object_representations_v<PhaseClock>);
  auto equal = [](const auto& x, const auto& y) { return std::memcmp(&x, &y, sizeof(x)) == 0; };
  return equal(a.counters(), b.counters()) && equal(a.clock(Phase::prefill), b.clock(Phase::prefill)) &&
         equal(a.clock(Phase::decode), b.clock(Phase::decode)) && a.layer_hits() == b.layer_hits();
}
bool same(const Span& a, const Span& b) {
  return a.lane == b.lane && std::strcmp(a.name, b.name) == 0 && a.begin_ns == b.begin_ns && a.end_ns == b.end_ns &&
         a.what == b.what && a.ticket == b.ticket;
}

/// Checks that the spans are consistent: a lane does one thing at a time, an expert runs on the device after a copy of it has
/// landed, and the clocks are the sums of the spans.
template <class S>
void check_spans(const Simulation<S>& s) {
  std::array<Nanoseconds, 3> end{};
  std::map<std::array<std::uint32_t, 3>, Nanoseconds> landed;
  auto key = [](const Variant& v) {
    return std::array<std::uint32_t, 3>{v.id.layer, v.id.expert, static_cast<std::uint32_t>(v.precision)};
  };
  for (const Span& x : s.spans()) {
    Nanoseconds& free = end[static_cast<std::size_t>(x.lane)];
    if (x.begin_ns < free) FAIL("a lane does two things at once");
    free = x.end_ns;
    if (x.lane == Lane::link) landed.emplace(key(x.what), x.end_ns);
  }
  Nanoseconds device = 0, stall = 0, host = 0;
  for (const Span& x : s.spans()) {
    const Nanoseconds ns = x.end_ns - x.begin_ns;
    if (x.lane == Lane::host && x.has_expert) host += ns;
    if (x.lane != Lane::device) continue;
    device += ns;
    stall += std::strcmp(x.name, "wait") == 0 ? ns : 0;
    if (!x.has_expert) continue;
    const auto copy = landed.find(key(x.what));
    if (copy == landed.end() || copy->second > x.begin_ns) FAIL("an expert ran that had not landed");
  }
  const PhaseClock &a = s.clock(Phase::prefill), &b = s.clock(Phase::decode);
  CHECK(a.total + b.total == device + a.host_wait + b.host_wait);
  CHECK(a.stall + b.stall == stall);
  CHECK(a.host + b.host == host);
}

template <class S>
void check_run(RandomCase& c, Tally& tally) {
  const CoreConfig<S> config = random_config<S>(c);
  SimulationOptions options = c.options;
  options.preload = traits_of<S>().preloads;
  Simulation<S> s(config, c.trace.view(), c.costs, options);
  auto slots = [&](Precision p) { return slots_for(config.allotment, config.model, p); };
  WorkDone work;
  Nanoseconds time = 0;
  for (bool goes_on = true; goes_on;) {  // the bounds hold after any step
    goes_on = s.step();
    work = s.decode_work(slots);
    time = s.clock(Phase::decode).total;
    CHECK(time >= clairvoyant_with_host_ns(work));
    if (!traits_of<S>().computes_on_host) CHECK(time >= clairvoyant_ns(work));
  }
  const Nanoseconds bound = clairvoyant_ns(work);
  if (bound > 0) {
    ++tally.runs;
    tally.tight += time >= bound && time * 20 < bound * 21 ? 1 : 0;
    tally.link_bound += bound > work.compute ? 1 : 0;
    tally.near_link += bound > work.compute && time >= bound && time * 2 < bound * 3 ? 1 : 0;
    tally.below += time < bound ? 1 : 0;
  }
  check_spans(s);
  Simulation<S> again(config, c.trace.view(), c.costs, options);
  run(again);
  CHECK(same(s, again));
  CHECK(std::equal(s.spans().begin(), s.spans().end(), again.spans().begin(), again.spans().end(),
                   [](const Span& a, const Span& b) { return same(a, b); }));
  options.log = options.bounds = false;
  Simulation<S> bare(config, c.trace.view(), c.costs, options);
  run(bare);
  CHECK(same(s, bare));
  CHECK(bare.spans().empty());
}

template <class... Stacks>
void check_runs(RandomCase& c, Tally& tally) {
  (check_run<Stacks>(c, tally), ...);
}

}  // namespace

TEST_CASE("no random run beats the bounds, its spans are consistent, and a second run is the same") {
  Tally tally;
  const std::uint64_t parts = quick() ? 1 : 4;  // of what is tried
  for (std::uint64_t seed = 0; seed < 100 * parts; ++seed) {
    CAPTURE(seed);
    RandomCase c(seed);
    check_runs<stacks::OnDemand, stacks::LayerStream, stacks::LruCache, stacks::MixtralOffloading, stacks::MoeInfinity,
               stacks::StaticHost, stacks::Ferry, stacks::HybriMoe, stacks::Fate, stacks::Hobbit,
               stacks::HobbitCooperative, stacks::ImportancePrefetch, stacks::ImportanceDriven>(c, tally);
  }
  CHECK(tally.tight * 5 > tally.runs);  // the bounds are often nearly reached
  CHECK(tally.link_bound > 50 * parts);
  CHECK(tally.near_link > 5 * parts);
  CHECK(tally.below > 25 * parts);  // a host needs a bound of its own
}

TEST_CASE("the bound with a host is the least over every number of uses that it may take") {
  Random random(3);
  std::uint64_t inner = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    WorkDone w;
    auto some = [&](std::uint32_t most) { return random.chance(20) ? 0 : Nanoseconds{random.below(most)}; };
    w.uses = random.below(60);
    w.compute = some(5000);
    w.copies = some(5000);
    w.most_device = some(200);
    w.longest_copy = some(200);
    w.least_host = some(200);
    w.dense = w.compute > 0 ? random.below(static_cast<std::uint32_t>(w.compute)) : 0;
    w.link_beside_host = random.between(20, 100) / 100.0;
    w.host_beside_copies = random.between(20, 100) / 100.0;
    // For every number of uses, tries the time in which both are at work in small steps.
    double least = static_cast<double>(std::max(w.compute, w.copies)), step = 0;
    std::uint64_t at = 0;
    for (std::uint64_t h = 1; h <= w.uses; ++h) {
      const auto n = static_cast<Nanoseconds>(h);
      const auto host = static_cast<double>(n * w.least_host);
      const auto link = static_cast<double>(std::max<Nanoseconds>(w.copies - n * w.longest_copy, 0));
      const auto device = static_cast<double>(w.compute - n * w.most_device);
      const double most = std::min(host / w.host_beside_copies, link / w.link_beside_host);
      for (int i = 0; i <= 200; ++i) {
        const double x = most * i / 200, host_alone = host - w.host_beside_copies * x,
                     link_alone = link - w.link_beside_host * x;
        const double rest = host > 0 ? std::max(static_cast<double>(w.dense), link_alone) : link_alone;
        const double t = std::max(device, x + host_alone + rest);
        if (t < least) at = h;
        least = std::min(least, t);
      }
      step = std::max(step, most / 200);
    }
    CHECK(static_cast<double>(clairvoyant_with_host_ns(w)) <= least + 1e-6);
    CHECK(static_cast<double>(clairvoyant_with_host_ns(w)) >= least - step - 1);
    CHECK(clairvoyant_with_host_ns(w) <= clairvoyant_ns(w));
    inner += at > 0 && at < w.uses ? 1 : 0;
  }
  CHECK(inner > 300);
}
