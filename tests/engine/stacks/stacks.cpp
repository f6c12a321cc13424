// Every named stack on a real model: it runs, its numbers add up, and its parts have their effect.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/fixed_costs.hpp"
#include "engine/fixtures/loaded_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "ferry/error.hpp"
#include "inference/generate.hpp"
#include "support/errors.hpp"
#include "support/quick.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using test::model;
using test::prompts;

/// A quarter of the experts, on the virtual clock: an expert crosses in 1 ms, a layer takes 0.06 ms without it.
RunnerOptions options(const std::string& stack, std::uint64_t budget_bytes) {
  RunnerOptions o;
  o.stack = stack;
  o.max_rows = 48;
  o.budget_bytes = budget_bytes;
  o.poison = true;
  o.virtual_costs = test::fixed_costs(60'000, 20'000, 300'000, 49'152'000);
  return o;
}

struct Ran {
  Generated made;
  Counters counters;
  std::vector<Accuracy> nearest;  // by layer
  PhaseTimes decode;
};

Ran run(CpuModel& m, const RunnerOptions& o, std::size_t batch = 3, std::uint32_t tokens = 12) {
  m.add_precisions(precisions_for(o));
  const auto runner = make_runner(m, o);
  GenerateOptions g;
  g.prompts.assign(prompts().begin(), prompts().begin() + static_cast<std::ptrdiff_t>(batch));
  g.batch = static_cast<std::uint32_t>(batch);
  g.max_new_tokens = tokens;
  g.prefill_chunk = 48;
  Ran r;
  r.made = generate(m, *runner, g);
  const RunnerStatistics statistics = runner->statistics();
  r.counters = statistics.counters;
  if (!statistics.accuracy.empty()) r.nearest = statistics.accuracy[0];
  r.decode = runner->times[static_cast<unsigned>(Phase::decode)];
  return r;
}

TEST_CASE("every stack's six outcomes sum to what the gate asked for, in both phases") {
  for (const std::string name : {"tiny-qwen-moe", "tiny-mixtral"}) {
    if (test::quick() && name == "tiny-qwen-moe") continue;
    CpuModel& m = model(name);
    const std::uint64_t all = m.store().layout().bytes() * m.config().layers * m.config().experts;
    for (const StackInfo& info : all_stacks()) {
      CAPTURE(name);
      CAPTURE(info.name);
      const Ran r = run(m, options(info.name, all / 4));
      for (const Phase p : {Phase::prefill, Phase::decode}) {
        const Outcomes& o = r.counters.of(p);
        CHECK(o.requests > 0);
        CHECK(o.hits + o.late_hits + o.misses + o.substituted + o.skipped + o.host_computed == o.requests);
        CHECK(o.top_requests + o.low_requests == o.requests);
        CHECK(o.top_misses + o.low_misses == o.misses + o.host_computed);
        CHECK(o.miss_bytes <= o.bytes);
        CHECK(o.miss_penalty(m.store().layout().bytes()) <= static_cast<double>(o.misses));
      }
      const PrefetchCounts& p = r.counters.prefetch;
      CHECK(p.used <= p.issued);
      CHECK(p.accuracy.predicted <= p.accuracy.needed);
      if (info.keeps_everything) CHECK(r.counters.of(Phase::decode).hits == r.counters.of(Phase::decode).requests);
      if (info.lossless) CHECK(r.counters.of(Phase::decode).substituted + r.counters.of(Phase::decode).skipped == 0);
      CHECK(info.what[0] != '\0');
    }
  }
}

TEST_CASE("what each paper adds shows in its own counter") {
  CpuModel& m = model("tiny-qwen-moe");
  const std::uint64_t all = m.store().layout().bytes() * 12 * 32;
  auto decode = [&](const std::string& stack) { return run(m, options(stack, all / 4)).counters; };
  CHECK(decode("importance+ce").of(Phase::decode).substituted == 0);
  CHECK(decode("importance+er").of(Phase::decode).substituted > 0);
  CHECK(decode("importance+er").prefetch.accuracy.needed == 0);
  CHECK(decode("importance+pre").prefetch.accuracy.needed > 0);
  CHECK(decode("importance+pre").of(Phase::decode).host_computed == 0);
  const Counters balanced = decode("importance-driven");
  CHECK(balanced.of(Phase::decode).host_computed > 0);
  CHECK(balanced.of(Phase::decode).misses > 0);
  CHECK(balanced.of(Phase::prefill).host_computed == 0);  // decode only
  CHECK(balanced.of(Phase::prefill).substituted == 0);

  const Counters dynamic = decode("hobbit+dynamic");
  CHECK(dynamic.of(Phase::decode).skipped > 0);
  CHECK(dynamic.bytes_by_precision[static_cast<unsigned>(Precision::int4)] > 0);
  CHECK(dynamic.bytes_by_precision[static_cast<unsigned>(Precision::full)] > 0);
  CHECK(decode("hobbit-cooperative").of(Phase::decode).misses == 0);
  CHECK(decode("hobbit-cooperative").of(Phase::decode).host_computed > 0);

  const Counters fate = run(m, options("fate", all / 8)).counters;
  CHECK(fate.bytes_by_precision[static_cast<unsigned>(Precision::full)] == 0);
  CHECK(fate.bytes_by_precision[static_cast<unsigned>(Precision::int4)] > 0);
  CHECK(fate.bytes_by_precision[static_cast<unsigned>(Precision::int2)] > 0);
  const Counters roomy = run(m, options("fate", all)).counters;  // memory is sufficient: the model's own precision
  CHECK(roomy.bytes_by_precision[static_cast<unsigned>(Precision::int4)] == 0);

  CHECK(decode("static-host").of(Phase::decode).bytes == 0);
  CHECK(decode("layer-stream").prefetch.accuracy.recall() == 1.0);
}

TEST_CASE("HOBBIT's and Fate's low precision can be chosen: their other pairs") {
  CpuModel& m = model("tiny-mixtral");
  const std::uint64_t all = m.store().layout().bytes() * m.config().layers * m.config().experts;
  auto bytes = [&](const char* stack, std::optional<std::uint32_t> bits, Precision p) {
    RunnerOptions o = options(stack, all / 4);
    o.low_bits = bits;
    return run(m, o).counters.bytes_by_precision[static_cast<unsigned>(p)];
  };
  CHECK(bytes("hobbit", {}, Precision::int4) > 0);
  CHECK(bytes("hobbit", {}, Precision::int2) == 0);
  CHECK(bytes("hobbit", 2, Precision::int4) == 0);
  CHECK(bytes("hobbit", 2, Precision::int2) > 0);
  CHECK(bytes("hobbit", 8, Precision::int8) > 0);
  CHECK_THROWS_WITH_AS(bytes("hobbit", 3, Precision::int2), "--low-bits 3: expected 2, 4 or 8", InputError);
  CHECK_THROWS_AS(bytes("fate", 4, Precision::int4), ConfigError);  // low must be below its high
  CHECK(bytes("lru", 2, Precision::int2) == 0);
}

TEST_CASE("recall of the cross-layer gate: the deep layers are predicted better than the shallow ones") {
  CpuModel& m = model("tiny-qwen-moe");
  const Ran r = run(m, options("cross-layer-lru", 4'000'000), 1, 100);
  Accuracy shallow, deep;
  for (std::size_t l = 1; l < 12; ++l) (l < 4 ? shallow : deep) += r.nearest[l];
  CHECK(r.nearest[0].needed == 0);
  CHECK(deep.recall() > shallow.recall());
  CHECK(deep.recall() > 0.85);  // the model's card says 93 to 97%
}

TEST_CASE("the host computes from its own copy, at the precision asked for" * doctest::test_suite("threads")) {
  // Without a cache slot every request is a miss. So the same experts run at the same precision, in one stack on the device
  // through the stream slots, in the other on the host.
  CpuModel& m = model("tiny-qwen-moe");
  for (const auto& [on_device, on_host, bytes] :
       {std::tuple{"lru", "static-host", 49'152}, std::tuple{"lru-int4", "static-host-int4", 49'152 / 3}}) {
    RunnerOptions o = options(on_device, 2 * static_cast<std::uint64_t>(bytes));
    const Ran device = run(m, o);
    o.stack = on_host;
    const Ran host = run(m, o);
    CHECK(device.counters.of(Phase::decode).misses == device.counters.of(Phase::decode).requests);
    CHECK(host.counters.of(Phase::decode).host_computed == device.counters.of(Phase::decode).misses);
    CHECK(host.made.text == device.made.text);
    CHECK(host.made.last_logits == device.made.last_logits);
    CHECK(host.decode.host > 0);
  }

  // Spoiling the host's copy after loading changes what static-host makes: it does compute from there.
  CpuModel own(test::model_folder("tiny-mixtral"));
  RunnerOptions fixed = options("static-host", 4'000'000);
  const auto runner = make_runner(own, fixed);
  GenerateOptions g;
  g.prompts = {prompts()[0]};
  g.max_new_tokens = 4;
  g.prefill_chunk = 48;
  const Generated before = generate(own, *runner, g);
  CHECK(generate(own, *runner, g).last_logits == before.last_logits);
  for (std::uint16_t l = 0; l < own.config().layers; ++l) {
    const View<const std::byte> bytes = own.store().bytes({{l, 7}, Precision::full}).view;
    std::memset(const_cast<std::byte*>(bytes.data), 0, bytes.size);
  }
  CHECK_FALSE(generate(own, *runner, g).last_logits == before.last_logits);
}

TEST_CASE("the same lossy run gives the same text on the virtual clock") {
  CpuModel& m = model("tiny-mixtral");
  for (const std::string stack : {"fate", "hobbit", "importance-driven", "hybrimoe"}) {
    CAPTURE(stack);
    const RunnerOptions o = options(stack, 3'000'000);
    const Ran one = run(m, o), two = run(m, o);
    CHECK(one.made.text == two.made.text);
    CHECK(one.made.last_logits == two.made.last_logits);
    CHECK(one.counters.of(Phase::decode).hits == two.counters.of(Phase::decode).hits);
  }
}

TEST_CASE("unknown stacks are refused with the nearest name") {
  CHECK_THROWS_WITH_AS(find_stack("hobit"), doctest::Contains("hobbit"), std::exception);
}

/// Passes everything on, and looks at the caches around each partial look-ahead.
class Watched final : public PassingRunner {
 public:
  Watched(ExpertRunner& inner, const std::vector<KvCache>& caches) : PassingRunner(inner), caches_(caches) {}
  void partial(Matrix& out) const override {
    runner_.partial(out);
    before_ = caches_;
  }
  void look_ahead(std::uint16_t l, const GateScores& scores) override {
    for (std::size_t s = 0; s < caches_.size(); ++s) {
      for (std::size_t i = 0; i < caches_[s].keys.size(); ++i) {
        same = same && caches_[s].keys[i] == before_[s].keys[i] && caches_[s].values[i] == before_[s].values[i];
      }
    }
    ++looks;
    runner_.look_ahead(l, scores);
  }

  bool same = true;
  int looks = 0;

 private:
  const std::vector<KvCache>& caches_;
  mutable std::vector<KvCache> before_;
};

TEST_CASE("tentative keys and values of a partial hidden state are never committed") {
  CpuModel& m = model("tiny-qwen-moe");
  const auto inner = make_runner(m, options("importance+pre", 4'000'000));
  std::vector<KvCache> caches;
  for (int s = 0; s < 2; ++s) {
    caches.push_back(m.make_cache(8));
    for (auto* part : {&caches.back().keys, &caches.back().values}) {
      for (Matrix& matrix : *part) matrix.setConstant(0.25F);  // so that there is something to compare
    }
  }
  Watched runner(*inner, caches);
  for (std::uint32_t at = 0; at < 6; ++at) {
    m.forward(Phase::decode, {{0, 65 + at, at}, {1, 97 + at, at}}, caches, runner, 2);
  }
  CHECK(runner.looks == 6 * 11);
  CHECK(runner.same);
}

}  // namespace
