// Which stack is best, what would help, and why: worked by hand, and beside single simulations.
#include "sweep/recommend.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "engine/fixtures/files.hpp"
#include "engine/fixtures/machine_file.hpp"
#include "engine/fixtures/refusal.hpp"
#include "support/errors.hpp"
#include "trace/synthetic.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

/// The host draws 60 of its memory's 100, the link 40; together they get 80.
Machine contended() {
  Machine m;
  m.link = {50, 40};
  m.host_memory = {100, 60};
  m.host_compute = {20, 10};
  m.host_beside_copies = m.link_beside_host = 0.8;
  m.activations_bytes_per_s = 7;
  return m;
}

/// 10 steps of 1 ms, 100 requests.
RunReport run_of(std::uint64_t hits) {
  RunReport r;
  r.generated.decode_s = 0.01;
  r.generated.decode_steps = 10;
  Outcomes& o = r.counters.of(Phase::decode);
  o.requests = 100;
  o.hits = hits;
  o.misses = 100 - hits;
  o.bytes = 1000;
  return r;
}

PhaseTimes& decode_times(RunReport& r) {
  return r.times[static_cast<unsigned>(Phase::decode)];
}

std::string reason(const RunReport& r, const RunReport& best_cache, double copy_s = 0) {
  const std::string cache = "arc", fastest = "first";
  static const RunReport first = [] {
    RunReport f = run_of(100);
    f.generated.decode_s = 0.005;
    return f;
  }();
  return reason_for(r, {best_cache, cache}, {first, fastest}, copy_s);
}

}  // namespace

TEST_CASE("twice a resource, where host and link share one memory") {
  const Machine link = with_twice(contended(), Resource::link);
  CHECK(link.link.effective == 80);
  CHECK(link.link.peak == 100);
  CHECK(link.activations_bytes_per_s == 14);
  CHECK(link.host_beside_copies == doctest::Approx(80.0 / 140));  // of 60 + 80 the memory still gives 80
  CHECK(link.link_beside_host == doctest::Approx(80.0 / 140));

  const Machine cores = with_twice(contended(), Resource::host_cores);
  CHECK(cores.host_compute.effective == 20);
  CHECK(cores.host_memory.effective == 80);  // not 120
  CHECK(cores.host_memory.peak == 100);
  CHECK(cores.host_beside_copies == doctest::Approx(80.0 / 120));

  const Machine memory = with_twice(contended(), Resource::host_memory);
  CHECK(memory.host_memory.effective == 120);
  CHECK(memory.host_compute.effective == 10);
  CHECK(memory.host_beside_copies == 1);  // of 120 + 40 it gives 160

  Machine weak = contended();
  weak.host_memory.effective = 50;
  weak.link.effective = 10;
  weak.host_beside_copies = weak.link_beside_host = 1;
  CHECK(with_twice(weak, Resource::link).host_beside_copies == 1);  // 70 of 80
  const Machine more_cores = with_twice(weak, Resource::host_cores);
  CHECK(more_cores.host_memory.effective == 80);
  CHECK(more_cores.link_beside_host == doctest::Approx(80.0 / 90));

  for (const Resource r : {Resource::device_memory, Resource::bits}) {
    CHECK(with_twice(contended(), r).link.effective == 40);
    CHECK(with_twice(contended(), r).host_memory.effective == 60);
  }
}

TEST_CASE("a reason is made of the run's own numbers") {
  RunReport r = run_of(30);
  decode_times(r).stall = 6'000'000;
  CHECK(reason(r, r) == "waits for copies 60% of a token: 30% hits");
  CHECK(reason(r, run_of(32)) == "waits for copies 60% of a token: 30% hits");
  CHECK(reason(r, run_of(52)) == "waits for copies 60% of a token: 30% hits, where arc has 52%");

  Outcomes& o = r.counters.of(Phase::decode);
  o.misses = 10;
  o.host_computed = 40;
  o.late_hits = 20;
  decode_times(r).stall = 1'000'000;
  decode_times(r).host_wait = 4'000'000;
  decode_times(r).host = 5'000'000;
  CHECK(reason(r, r, 0.003) ==
        "waits for the host 40% of a token: 30% hits; 20% are still crossing when they are needed; 40% are computed on "
        "the host in 0.50 ms a token, copying them would take 12.00 ms");

  RunReport lossy = run_of(60);
  lossy.counters.of(Phase::decode).skipped = 25;
  lossy.counters.of(Phase::decode).substituted = 15;
  lossy.counters.prefetch.wasted_bytes = 470;
  decode_times(lossy).stall = 100'000;
  CHECK(reason(lossy, lossy) ==
        "waits for next to nothing, but its device computes 0.99 ms a token, that of first 0.50 ms: 60% hits; 15% are "
        "replaced by others; 25% are not run; 47% of what it copies leaves again unused");
  RunReport as_fast = run_of(100);
  as_fast.generated.decode_s = 0.005;
  CHECK(reason(as_fast, as_fast) == "waits for nothing: 100% hits");
}

TEST_CASE("the choice is that of single simulations, whatever the threads") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "m.json").string();
  write_file(file, machine_file("m", "0.01", "0.01"));
  SyntheticOptions synthetic;
  synthetic.sequences = 2;
  synthetic.prompt = 6;
  synthetic.tokens = 40;
  synthetic.shallow = 1;
  ModelFacts shape = read_shape("mixtral-8x7b");
  shape.model.layers = 4;
  const auto trace = synthesize(shape, synthetic);

  RecommendOptions o;
  o.setting.trace = trace.get();
  o.setting.machine = read_machine(file);
  const ModelShape model = o.setting.model();
  const auto candidate = [&](const char* stack) {
    StackCandidate c;
    c.label = stack;
    c.options.stack = stack;
    c.options.budget_bytes = model.all_bytes() / 4;
    c.options.prefill_chunk = 8;
    return c;
  };
  for (const char* s : {"resident", "on-demand", "lru", "static-host", "ferry"}) o.candidates.push_back(candidate(s));
  for (const char* s : {"resident-int4", "lru-int4", "ferry-int4"}) o.in_int4.push_back(candidate(s));
  o.doubled_bytes = model.all_bytes() / 2;

  const Recommendation one = recommend(o);
  CHECK(one.done == one.runs);
  CHECK(one.runs == 5 + 4 * 5 + 3);
  REQUIRE(one.ranking.size() == 4);
  REQUIRE(one.left_out.size() == 1);
  CHECK(one.left_out[0].stack == "resident");
  CHECK(says(one.left_out[0].why, {std::to_string(model.all_bytes())}));

  // The same in another way: each stack by itself.
  const auto alone = [&](const StackCandidate& c, std::optional<Resource> more) {
    SimulatedSetting setting = o.setting;
    SimulateOptions options = c.options;
    if (more) setting.machine = with_twice(setting.machine, *more);
    if (more == Resource::device_memory) options.budget_bytes = o.doubled_bytes;
    return run_simulation(setting, options, Json::object());
  };
  for (const RankedStack& s : one.ranking) {
    const RunReport r = alone(s.candidate, {});
    CHECK(s.tpot_s() == r.tpot_s());
    CHECK(s.ttft_s() == r.generated.ttft_s);
    CHECK(s.run.simulated->clairvoyant_with_host_tpot_s == r.simulated->clairvoyant_with_host_tpot_s);
    CHECK(!s.reason.empty());
  }
  // A stack with fewer hits is compared with the one that has most.
  const auto hits = [](const RankedStack& s) { return s.run.counters.of(Phase::decode).hit_rate(); };
  const RankedStack& most = *std::max_element(one.ranking.begin(), one.ranking.end(),
                                              [&](const auto& a, const auto& b) { return hits(a) < hits(b); });
  REQUIRE(hits(most) > 0.03);
  for (const RankedStack& s : one.ranking) {
    const std::string where = fmt::format(", where {} has {:.0f}%", most.candidate.label, 100 * hits(most));
    CHECK((s.reason.find(where) != std::string::npos) == (hits(most) - hits(s) >= 0.03));
  }
  CHECK(std::is_sorted(one.ranking.begin(), one.ranking.end(),
                       [](const RankedStack& a, const RankedStack& b) { return a.tpot_s() < b.tpot_s(); }));
  REQUIRE(one.upgrades.size() == all_resources.size());
  for (std::size_t i = 0; i < one.upgrades.size(); ++i) {
    const Upgrade& u = one.upgrades[i];
    if (i > 0) CHECK(one.upgrades[i - 1].tpot_s <= u.tpot_s);
    double least = 1e9;
    for (const StackCandidate& c : u.resource == Resource::bits ? o.in_int4 : o.candidates) {
      if (c.options.stack.starts_with("resident")) continue;  // neither a quarter nor a half of the memory holds it
      least = std::min(least, alone(c, u.resource).tpot_s());
    }
    CHECK(u.tpot_s == least);
  }

  o.threads = 3;
  const Recommendation three = recommend(o);
  REQUIRE(three.ranking.size() == one.ranking.size());
  for (std::size_t i = 0; i < one.ranking.size(); ++i) {
    CHECK(three.ranking[i].candidate.label == one.ranking[i].candidate.label);
    CHECK(three.ranking[i].tpot_s() == one.ranking[i].tpot_s());
    CHECK(three.ranking[i].reason == one.ranking[i].reason);
  }
  for (std::size_t i = 0; i < one.upgrades.size(); ++i) CHECK(three.upgrades[i].tpot_s == one.upgrades[i].tpot_s);

  // With all of the memory the ranking also has `resident`, and in INT4 nothing waits, either.
  for (StackCandidate& c : o.candidates) c.options.budget_bytes = model.all_bytes();
  CHECK(recommend(o).left_out.empty());

  // Stopped before the last stack is done: returns what there is.
  o.threads = 1;
  o.progress = [](std::uint64_t done, std::uint64_t) { return done < 2; };
  const Recommendation stopped = recommend(o);
  CHECK(stopped.interrupted());
  CHECK(stopped.ranking.size() == 2);
  CHECK(stopped.upgrades.empty());

  o.progress = nullptr;
  o.candidates.resize(1);
  o.candidates[0].options.budget_bytes = 5;
  CHECK_THROWS_AS(recommend(o), InputError);
  o.candidates.clear();
  CHECK_THROWS_AS(recommend(o), InputError);
}
