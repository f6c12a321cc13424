#include "ferry/placement/earliest_finish.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "ferry/link/virtual_clock.hpp"
#include "support/quick.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Requests = std::vector<Request>;

View<const Request> as_view(const Requests& r) {
  return {r.data(), static_cast<std::uint32_t>(r.size())};
}

Request one_request(std::uint16_t expert, std::uint32_t rows, Nanoseconds copy_ns) {
  Request r;
  r.want = {{0, expert}, Precision::full};
  r.rows = rows;
  r.copy_ns = copy_ns;
  return r;
}

/// A random layer of 16 experts: the machine, where the experts are, and their rows are random.
struct RandomLayer {
  /// `cut`: loads go ahead of a prefetch.
  explicit RandomLayer(Random& random, bool cut = false) {
    model_ = model(1, 16, 2, 8, 1'000'000);
    costs_.device = {random.between(100, 1000) * std::uint64_t{1'000'000'000}, 0, 1000};
    costs_.host = {random.between(10, 200) * std::uint64_t{1'000'000'000}, 0, 500};
    costs_.link_bytes_per_s = random.between(2, 100) * std::uint64_t{1'000'000'000};
    costs_.activations_latency_ns = random.below(10000);
    if (random.chance(50)) {
      const std::uint32_t slow = random.between(500, 1000);  // in thousandths
      costs_.link_bytes_per_s_beside_host = costs_.link_bytes_per_s / 1000 * slow;
      costs_.host_bytes_per_s_beside_copies = costs_.host.bytes_per_s / 1000 * slow;
    }
    costs_.work = {{1000, 0, 0, 0}};
    std::uint16_t expert = 0;
    const auto fill = [&](Requests& list, std::uint32_t most) {
      for (std::uint32_t n = random.below(most + 1); n > 0; --n)
        list.push_back(one_request(expert++, 1, costs_.copy(1'000'000)));
    };
    fill(present, 5);
    fill(misses, 5);
    fill(arriving, 1);
    other_on_link = arriving.empty() && random.chance(30);
    if (!arriving.empty() || other_on_link) since = random.below(static_cast<std::uint32_t>(costs_.copy(1'000'000)));
    if (cut) costs_.prefetch_chunk_bytes = random.between(20'000, 400'000);
  }

  [[nodiscard]] LayerCosts weighed() const {
    LayerCosts c = layer_costs(costs_, model_);
    if (arriving.empty() && !other_on_link) return c;
    c.link_ns = costs_.copy(1'000'000) - since;
    if (costs_.prefetch_chunk_bytes == 0) return c;
    const Nanoseconds chunk = costs_.copy(costs_.prefetch_chunk_bytes);
    const Nanoseconds end = std::max(chunk, (since + chunk - 1) / chunk * chunk) - since;
    c.chunk_ns = std::max<Nanoseconds>(1, std::min(c.link_ns, end));
    return c;
  }

  /// How long the layer takes on the clock.
  [[nodiscard]] Nanoseconds time(const Split& split) const {
    VirtualClock clock(model_, VirtualClock::options(costs_, false));
    const Ticket begun{1};
    if (!arriving.empty() || other_on_link) {
      clock.submit({begun, full(0, 15), 0, Fence::none, false});
      clock.device(since);
      clock.sync_device();
    }
    const Nanoseconds begin = clock.now();
    std::uint64_t ticket = 2;
    std::vector<Ticket> loads;
    for (std::uint32_t i = 0; i < split.loads; ++i, ticket += 2) {
      loads.push_back(Ticket{ticket});
      clock.submit({loads.back(), misses[i].want, 1 + i, Fence::none, true});
    }
    std::vector<Task> host;
    const auto on_host = [&](const Request& r) { host.push_back({r.want, no_slot, 0, r.rows}); };
    const auto on_device = [&](const Request& r) { clock.device(costs_.on_device(0, 1'000'000, r.rows)); };
    for (std::size_t i = present.size() - split.hosted; i < present.size(); ++i) on_host(present[i]);
    for (std::size_t i = split.loads; i < misses.size(); ++i) on_host(misses[i]);
    if (!split.waits) std::for_each(arriving.begin(), arriving.end(), on_host);
    clock.host({host.data(), static_cast<std::uint32_t>(host.size())}, costs_, 1);
    for (std::size_t i = 0; i < present.size() - split.hosted; ++i) on_device(present[i]);
    if (split.waits && !arriving.empty()) {
      clock.wait(begun);
      on_device(arriving[0]);
    }
    for (std::uint32_t i = 0; i < split.loads; ++i) {
      clock.wait(loads[i]);
      on_device(misses[i]);
    }
    clock.sync();
    return clock.now() - begin;
  }

  /// The shortest of all ways to do it.
  [[nodiscard]] Nanoseconds best() const {
    Nanoseconds least = time({0, 0, true});
    for (std::uint32_t loads = 0; loads <= misses.size(); ++loads) {
      for (std::uint32_t hosted = 0; hosted <= present.size(); ++hosted) {
        for (const bool waits : {false, true}) least = std::min(least, time({loads, hosted, waits}));
      }
    }
    return least;
  }

  Requests present, misses, arriving;
  bool other_on_link = false;  ///< a copy that this layer does not need
  Nanoseconds since = 0;       ///< how long what is on the link has been there

 private:
  ModelShape model_;
  Costs costs_;
};

LayerCosts known_costs(Nanoseconds device, Nanoseconds host, Nanoseconds link) {
  LayerCosts c;
  c.device_ns[static_cast<unsigned>(Precision::full)] = device;
  c.host_ns[static_cast<unsigned>(Precision::full)] = host;
  c.link_ns = link;
  return c;
}

}  // namespace

TEST_CASE("a layer is placed as it ends earliest on the clock") {
  Random random(3);
  double worst = 1, sum = 0;
  int layers = 0;
  while (layers < (quick() ? 1000 : 3000)) {
    const RandomLayer layer(random);
    if (layer.best() == 0) continue;
    ++layers;
    const Split split = EarliestFinish::split(Phase::decode, as_view(layer.present), as_view(layer.misses),
                                              as_view(layer.arriving), layer.weighed());
    REQUIRE(split.loads <= layer.misses.size());
    REQUIRE(split.hosted <= layer.present.size());
    const double ratio = static_cast<double>(layer.time(split)) / static_cast<double>(layer.best());
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  // When each copy lands is not weighed, and on a slowed link copies land later than its mean pace suggests.
  CHECK(worst < 1.15);
  CHECK(sum / layers < 1.002);
}

TEST_CASE("a layer is placed as it ends earliest where loads go ahead of what is on the link") {
  Random random(11);
  double worst = 1, sum = 0, as_if_whole = 0;
  int layers = 0;
  while (layers < (quick() ? 1000 : 3000)) {
    const RandomLayer layer(random, true);
    if (layer.best() == 0) continue;
    ++layers;
    LayerCosts costs = layer.weighed();
    const Split split = EarliestFinish::split(Phase::decode, as_view(layer.present), as_view(layer.misses),
                                              as_view(layer.arriving), costs);
    costs.chunk_ns = 0;
    const Split blind = EarliestFinish::split(Phase::decode, as_view(layer.present), as_view(layer.misses),
                                              as_view(layer.arriving), costs);
    const auto best = static_cast<double>(layer.best());
    const double ratio = static_cast<double>(layer.time(split)) / best;
    worst = std::max(worst, ratio);
    sum += ratio;
    as_if_whole += static_cast<double>(layer.time(blind)) / best;
  }
  CHECK(worst < 1.3);
  CHECK(sum / layers < 1.002);
  CHECK(as_if_whole / layers > 1.003);  // a placement that does not know about chunks pays for it
}

TEST_CASE("by hand: copies of 30, 20 on the host, 5 on the device") {
  const Requests two{one_request(0, 1, 30), one_request(1, 1, 30)}, one{one_request(2, 1, 30)};
  const auto split = [](const Requests& present, const Requests& misses, const Requests& arriving, Nanoseconds link) {
    return EarliestFinish::split(Phase::decode, as_view(present), as_view(misses), as_view(arriving),
                                 known_costs(5, 20, link));
  };
  CHECK(split({}, two, {}, 0).loads == 1);  // 35 and 20 beside it, not 40
  CHECK(split({}, two, {}, 6).loads == 0);  // 41 would be later
  CHECK(split({}, one, {}, 0).loads == 0);  // 20 < 35
  CHECK(split({}, {}, one, 10).waits);      // 15 < 20
  CHECK(!split({}, {}, one, 16).waits);     // 21 > 20
  CHECK(!split({}, {}, one, 0).waits);      // the link does not know, so 35, as if the copy had just begun
  CHECK(split({}, one, one, 16).waits);     // the host is at work until then anyway
  CHECK(split(Requests(5, one_request(3, 1, 30)), {}, {}, 0).hosted == 1);  // 20 and 20, not 25
  CHECK(split(Requests(4, one_request(3, 1, 30)), {}, {}, 0).hosted == 0);
}

TEST_CASE("by hand: a load begins behind a chunk of what another layer has on the link, not behind all of it") {
  const Requests misses{one_request(0, 1, 30), one_request(1, 1, 30)};
  LayerCosts costs = known_costs(5, 20, 25);
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(misses), {}, costs).loads == 0);  // 60 > 40
  costs.chunk_ns = 2;
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(misses), {}, costs).loads == 1);  // 37 and 20 beside it
}

TEST_CASE("by hand: copies that the host slows, and a host that copies slow, are told apart") {
  // Two misses: copies of 30, 20 on the host, 5 on the device. Both on the host take 40.
  const Requests misses{one_request(0, 1, 30), one_request(1, 1, 30)};
  LayerCosts costs = known_costs(5, 20, 0);
  costs.link_beside_host = 500;
  // One copied: it moves 10 in the host's 20, and 20 more behind that. It lands at 40 and is computed at 45.
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(misses), {}, costs).loads == 0);
  costs.link_beside_host = 1000;
  costs.host_beside_copies = 500;
  // It lands at 30, when the host has done 15 of its 20: both are done at 35.
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(misses), {}, costs).loads == 1);
}

TEST_CASE(
    "where copies slow the host, a load may take longer by a tenth of what its place gains, or by what it would cost "
    "later") {
  // One miss: 20 on the host; a copy of 30 and 5 on the device end 15 later.
  Requests one{one_request(0, 1, 30)};
  LayerCosts costs = known_costs(5, 20, 0);
  const auto loads = [&](Nanoseconds gain) {
    one[0].gain_ns = gain;
    return EarliestFinish::split(Phase::decode, {}, as_view(one), {}, costs).loads;
  };
  costs.host_beside_copies = 400;  // a copy afterwards would slow the host by 18
  CHECK(loads(-1000) == 0);
  CHECK(loads(159) == 0);
  CHECK(loads(160) == 1);
  CHECK(EarliestFinish::split(Phase::prefill, {}, as_view(one), {}, costs).loads == 1);  // no less
  CHECK(loads(1'000'000) == 1);
  costs.host_beside_copies = 500;  // by 15: no sooner than now
  CHECK(loads(1'000'000) == 0);
  costs.host_beside_copies = 1000;
  CHECK(loads(1'000'000) == 0);
  // Two misses: both on the host take 40, one loaded slows the other to 47, both loaded are done at 65.
  Requests two{one_request(0, 1, 30), one_request(1, 1, 30)};
  costs.host_beside_copies = 100;  // behind, each would slow it by 27
  const auto loads_of_two = [&](Nanoseconds second) {
    two[0].gain_ns = 10;
    two[1].gain_ns = second;
    return EarliestFinish::split(Phase::decode, {}, as_view(two), {}, costs).loads;
  };
  CHECK(loads_of_two(240) == 0);
  CHECK(loads_of_two(250) == 2);         // 65 - 1 - 25
  two[0].copy_ns = two[1].copy_ns = 36;  // 77, and of the second at most 33
  CHECK(loads_of_two(1'000'000) == 0);
}

TEST_CASE("a prompt is placed in the same way, by the rows that the host has to compute") {
  // Two misses of 8 rows: copies of 30, 20 on the host, 5 on the device.
  const Requests two{one_request(0, 8, 30), one_request(1, 8, 30)};
  LayerCosts costs = known_costs(5, 20, 0);
  const auto loads = [&] { return EarliestFinish::split(Phase::prefill, {}, as_view(two), {}, costs).loads; };
  CHECK(loads() == 1);
  costs.host_row_ns = 5;  // 40 a miss
  CHECK(loads() == 1);
  costs.host_row_ns = 10;  // 80 a miss: both are loaded by 65
  CHECK(loads() == 2);
}

TEST_CASE("while costs are unknown the host computes what is not there, and nothing else") {
  Requests one{one_request(0, 1, 30)};
  const Split unknown = EarliestFinish::split(Phase::decode, as_view(one), as_view(one), as_view(one), {});
  CHECK(unknown.loads == 0);
  CHECK(unknown.hosted == 0);
  CHECK(!unknown.waits);
  one[0].host_ns = 1000;  // as measured
  one[0].device_ns = 10;
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(one), {}, {}).loads == 1);
  one[0].copy_ns = 0;
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(one), {}, {}).loads == 0);
}

TEST_CASE(
    "while the host's time is unknown in a prompt one miss of several measures it, and unknown copies count as none") {
  Requests three{one_request(0, 9, 0), one_request(1, 5, 0), one_request(2, 1, 0)};
  const Split unknown = EarliestFinish::split(Phase::prefill, as_view(three), as_view(three), as_view(three), {});
  CHECK(unknown.loads == 2);
  CHECK(unknown.hosted == 0);
  CHECK(unknown.waits);
  CHECK(EarliestFinish::split(Phase::prefill, {}, {}, as_view(three), {}).waits);
  CHECK(EarliestFinish::split(Phase::prefill, {}, {three.data(), 1}, {}, {}).loads == 1);
  for (Request& r : three) r.host_ns = 1000;
  CHECK(EarliestFinish::split(Phase::prefill, {}, as_view(three), {}, {}).loads == 3);
}

TEST_CASE("rows that the host computes cost more only where operations do") {
  const Requests many{one_request(0, 8, 60)};
  LayerCosts c = known_costs(5, 20, 0);
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(many), {}, c).loads == 0);  // the host reads its weights once
  c.host_row_ns = 10;
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(many), {}, c).loads == 1);  // 80 on the host, 65 loaded
}

TEST_CASE(
    "a use saves what the layer is shorter by, and its share: 20 on the host, 15 on the device, copies too long") {
  const auto saves = [](std::size_t there, std::size_t absent, std::size_t arriving, const LayerCosts& c) {
    const Request r = one_request(0, 1, 1000);
    return EarliestFinish::saves(Phase::decode, as_view(Requests(there, r)), as_view(Requests(absent, r)),
                                 as_view(Requests(arriving, r)), c);
  };
  LayerCosts c = known_costs(15, 20, 0);
  // With none resident of two the layer takes 40, with one 20 (15 beside it), and with two also 20 (the host takes one of
  // them). So each of two has a share of 10.
  CHECK(saves(0, 2, 0, c).absent == (20 + 10) / 2);
  CHECK(saves(1, 1, 0, c).there == (20 + 10) / 2);
  CHECK(saves(1, 1, 0, c).absent == (0 + 10) / 2);
  CHECK(saves(1, 0, 1, c).absent == (0 + 10) / 2);
  CHECK(saves(2, 0, 0, c).there == (0 + 10) / 2);
  CHECK(saves(2, 0, 0, c).absent == 0);
  c = known_costs(1, 20, 0);
  CHECK(saves(1, 1, 0, c).absent == (18 + 19) / 2);  // two on the device
  CHECK(saves(2, 0, 0, c).there == (18 + 19) / 2);
  CHECK(saves(0, 3, 0, c).absent == (20 + 19) / 2);
  CHECK(saves(0, 0, 0, c).there == 0);
}

TEST_CASE("what a layer saves, against placing it with one more or one less on the clock") {
  Random random(5);
  for (int i = 0; i < 500; ++i) {
    RandomLayer layer(random);
    layer.arriving.clear();
    layer.other_on_link = false;
    if (layer.present.empty() && layer.misses.empty()) continue;
    const Savings saves =
        EarliestFinish::saves(Phase::decode, as_view(layer.present), as_view(layer.misses), {}, layer.weighed());
    const auto near = [&](Nanoseconds is, Nanoseconds should) {
      return std::abs(static_cast<double>(is - should)) < 0.15 * static_cast<double>(layer.best()) + 10;
    };
    const Nanoseconds now = layer.best();
    RandomLayer less = layer, more = layer, none = layer, whole = layer;
    none.misses.insert(none.misses.end(), none.present.begin(), none.present.end());
    none.present.clear();
    whole.present.insert(whole.present.end(), whole.misses.begin(), whole.misses.end());
    whole.misses.clear();
    const Nanoseconds share = (none.best() - whole.best()) / static_cast<Nanoseconds>(whole.present.size());
    if (!layer.present.empty()) {
      less.misses.push_back(less.present.back());
      less.present.pop_back();
      REQUIRE(near(saves.there, (less.best() - now + share) / 2));
    }
    if (layer.misses.empty()) continue;
    more.present.push_back(more.misses.back());
    more.misses.pop_back();
    REQUIRE(near(saves.absent, (now - more.best() + share) / 2));
  }
}

TEST_CASE("in prefill a use saves what it would alone, but no more than a copy, as while the host's time is unknown") {
  const Requests one{one_request(0, 7, 300)};
  LayerCosts c = known_costs(5, 20, 0);
  CHECK(EarliestFinish::saves(Phase::prefill, as_view(one), as_view(one), {}, c).there == 15);
  c.host_row_ns = 10;  // of one row, not of seven
  CHECK(EarliestFinish::saves(Phase::prefill, {}, as_view(one), {}, c).absent == 15);
  for (Nanoseconds& ns : c.host_ns) ns = 900;  // on such a host nobody would leave a row
  CHECK(EarliestFinish::saves(Phase::prefill, as_view(one), {}, {}, c).there == 300);
  const Requests unknown{one_request(0, 7, 0)};
  CHECK(EarliestFinish::saves(Phase::prefill, as_view(unknown), {}, {}, c).there == 895);
  for (Nanoseconds& ns : c.host_ns) ns = 20;
  CHECK(EarliestFinish::saves(Phase::decode, {}, as_view(one), {}, c).absent == 65);
  CHECK(EarliestFinish::saves(Phase::decode, {}, as_view(one), {}, {}).absent == 300);
}

TEST_CASE("a promotion pays if it saves more than it slows") {
  const Request r = one_request(0, 1, 100);
  LayerCosts c = known_costs(5, 25, 0);
  CHECK(EarliestFinish::promotes(r, 1, c));
  CHECK(!EarliestFinish::promotes(r, 0, c));
  CHECK(!EarliestFinish::promotes(r, -100, c));
  c.link_beside_host = 500;    // the copy takes 200 beside the host,
  c.host_beside_copies = 800;  // which loses 40 meanwhile
  CHECK(!EarliestFinish::promotes(r, 40, c));
  CHECK(EarliestFinish::promotes(r, 41, c));
  c.link_beside_host = c.host_beside_copies = 0;  // unknown
  CHECK(EarliestFinish::promotes(r, 1, c));
  c.link_beside_host = c.host_beside_copies = 2000;  // cannot be
  CHECK(EarliestFinish::promotes(r, 1, c));
}

TEST_CASE("times near the longest: who takes as long as can be is left alone") {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  LayerCosts costs;
  for (Nanoseconds& ns : costs.device_ns) ns = 10;
  const Requests misses{one_request(0, 1, 1000), one_request(1, 1, 1000)};
  for (Nanoseconds& ns : costs.host_ns) ns = most / 2 + 1;  // of both the sum does not fit
  costs.host_start_ns = most;
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(misses), {}, costs).loads == 2);
  for (Nanoseconds& ns : costs.host_ns) ns = 100;
  costs.host_start_ns = 0;
  const Requests far{one_request(0, 1, most), one_request(1, 1, most)};
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(far), {}, costs).loads == 0);
  costs.host_beside_copies = costs.link_beside_host = 600;  // slower, both
  CHECK(EarliestFinish::split(Phase::decode, {}, as_view(far), {}, costs).loads == 0);
  CHECK_FALSE(EarliestFinish::promotes(far[0], 1'000'000, costs));
}
