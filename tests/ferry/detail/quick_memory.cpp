#include "ferry/detail/quick_memory.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

constexpr std::uint32_t layers = 12, experts = 16, half_life = 128;

struct MemorySize {};
/// detail::QuickMemory is no policy; it is placed like one.
struct Quick : detail::QuickMemory {
  void reserve(Carver& carve, const MemorySize& /*size*/) {
    detail::QuickMemory::reserve(carve, layers, experts, half_life, "test");
  }
};

/// It and a slow count, together as in a policy, and both with real numbers.
struct Memory {
  Memory() { weight.set(half_life, "test"); }

  void begin(Phase phase = Phase::decode, std::uint32_t rows = 1) {
    const StepOf step(phase, rows);
    quick->begin_step(step);
    if (weight.begin_step(step)) {
      time >>= detail::GrowingWeight::shift;
      for (auto* counts : {&slow, &expected, &rank}) {
        for (std::int64_t& count : *counts) count >>= detail::GrowingWeight::shift;
      }
    }
    time += weight() * weight.steps();
    if (phase == Phase::prefill) return;
    for (double& n : exact_slow) n *= std::exp2(-1.0 / half_life);
    for (double& n : exact_quick) n *= std::exp2(-8.0 / half_life);
    slow_steps = slow_steps * std::exp2(-1.0 / half_life) + 1;
    quick_steps = quick_steps * std::exp2(-8.0 / half_life) + 1;
  }
  void use(std::uint32_t at, std::int64_t units = 1000) {
    slow[at] += weight() * units;
    const std::int64_t more = quick->saved(at, units, 1, 1, weight() * units);
    expected[at] += more;
    rank[at] += more;
    exact_slow[at] += static_cast<double>(units);
    exact_quick[at] += static_cast<double>(units);
  }
  void finish() {
    for (std::uint32_t l = 0; l < layers; ++l) {
      const std::size_t first = std::size_t{l} * experts;
      quick->finish(l, &slow[first], time, &expected[first], &rank[first]);
      mixed_by[l] = share();
    }
    REQUIRE(broken(*quick) == "");
  }
  /// Uses one of four experts in each layer, from expert `first` on.
  void step(Random& random, std::uint32_t first, std::int64_t units = 1000) {
    begin();
    for (std::uint32_t l = 0; l < layers; ++l) use(l * experts + first + random.below(4), units);
    finish();
  }
  [[nodiscard]] double share() { return quick->share() / 256.0; }

  Placed<Quick> quick{MemorySize{}};
  detail::GrowingWeight weight;
  std::vector<std::int64_t> slow = std::vector<std::int64_t>(layers * experts), expected = slow, rank = slow;
  std::int64_t time = 0;
  std::vector<double> exact_slow = std::vector<double>(layers * experts), exact_quick = exact_slow;
  double slow_steps = 0, quick_steps = 0;
  std::vector<double> mixed_by = std::vector<double>(layers);  ///< the share when the layer was finished
};

}  // namespace

TEST_CASE("where nothing changes the long run counts alone") {
  Memory memory;
  Random random(1);
  double sum = 0;
  for (int i = 0; i < 2000; ++i) {
    memory.step(random, 0);
    REQUIRE(memory.share() < 0.25);  // by chance it is not 0
    sum += memory.share();
  }
  CHECK(sum < 0.01 * 2000);
  // Nor does anything count as new if all uses become worth more.
  for (int i = 0; i < 100; ++i) {
    memory.step(random, 0, 5000);
    REQUIRE(memory.share() < 0.25);
  }
}

TEST_CASE("what was used in the last steps counts alone once the subject has changed, and then less and less") {
  Memory memory;
  Random random(2);
  for (int i = 0; i < 500; ++i) memory.step(random, 0);
  int late = 0;
  for (; memory.share() < 0.9; ++late) memory.step(random, 8);
  CHECK(late <= 3 * static_cast<int>(Quick::span));
  for (int i = 0; i < 8; ++i) memory.step(random, 8);
  CHECK(memory.quick->spread() > 4);
  std::int64_t before = 0, now = 0;
  for (std::uint32_t e = 0; e < 4; ++e) {
    before += memory.expected[e];
    now += memory.expected[8 + e];
  }
  CHECK(now > before);
  CHECK(memory.slow[8] < memory.slow[0]);
  for (int i = 0; i < 1000; ++i) memory.step(random, 8);
  CHECK(memory.share() < 0.25);
}

TEST_CASE("what is all but forgotten is expected no less than never") {
  Memory memory;
  Random random(5);
  for (int i = 0; i < 40; ++i) memory.step(random, 0, 1);
  for (int i = 0; i < 4000; ++i) {
    memory.step(random, i / 300 % 2 == 0 ? 4 : 8, 1);
    for (const std::int64_t expected : memory.expected) REQUIRE(expected >= 0);
  }
}

TEST_CASE("prompts between the steps keep nothing from being learned") {
  Memory memory;
  Random random(3);
  for (int i = 0; i < 300; ++i) memory.step(random, 0);
  for (int i = 0; i < 40; ++i) {
    memory.begin(Phase::prefill, 16);
    memory.finish();
    memory.step(random, 8);
  }
  CHECK(memory.share() > 0.9);
}

TEST_CASE("what is expected is the mixture of both, a step, in the units of the slow one") {
  Memory memory;
  Random random(4);
  int mixed = 0;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    memory.step(random, i / 200 % 2 * 4);  // the halves overlap, so neither count is right
    mixed += memory.share() > 0.2 && memory.share() < 0.8 ? 1 : 0;
    for (std::uint32_t at = 0; at < layers * experts; ++at) {
      const double m = memory.mixed_by[at / experts];
      const double rate =
          (1 - m) * memory.exact_slow[at] / memory.slow_steps + m * memory.exact_quick[at] / memory.quick_steps;
      const double made = static_cast<double>(memory.expected[at]) / static_cast<double>(memory.time);
      REQUIRE(made == doctest::Approx(rate).epsilon(0.03).scale(100));
      REQUIRE(memory.rank[at] == memory.expected[at]);
    }
  }
  CHECK(mixed > 100);
}

namespace {

/// How much of what was expected more of one expert came true, from real numbers and by its definition.
struct CameTrue {
  void begin(const Memory& memory, std::uint32_t l) {
    double slow = 0, quick = 0;
    for (std::uint32_t e = 0; e < experts; ++e) {
      slow += memory.exact_slow[l * experts + e];
      quick += memory.exact_quick[l * experts + e];
    }
    for (std::uint32_t e = 0; e < experts; ++e) {
      slow_share[l][e] = memory.exact_slow[l * experts + e] / slow;
      quick_share[l][e] = memory.exact_quick[l * experts + e] / quick;
      used[l][e] = 0;
    }
  }
  void end(std::uint32_t l, double m) {
    double all = 0, came = 0, squares = 0;
    for (const double n : used[l]) all += n;
    for (std::uint32_t e = 0; e < experts; ++e) {
      const double more = (1 - m) * slow_share[l][e] + m * quick_share[l][e] - 1.0 / experts;
      came += (used[l][e] / all - 1.0 / experts) * more;
      squares += more * more;
    }
    // A span of all layers counts 7/8 of the next one.
    came_true += came - came_true / (8 * layers);
    expected += squares - expected / (8 * layers);
  }

  double slow_share[layers][experts] = {}, quick_share[layers][experts] = {}, used[layers][experts] = {};
  double came_true = layers / 128.0, expected = came_true;
};

}  // namespace

TEST_CASE("whether what is expected comes true is told by the uses that followed") {
  // Some of the time the uses are drawn evenly, in turn, or from some experts alone.
  Memory memory;
  CameTrue exact;
  Random random(6);
  int told[3] = {}, not_told[3] = {};
  CHECK(memory.quick->tells());
  for (std::uint32_t i = 0; i < 6000; ++i) {
    const std::uint32_t kind = i / 1000 % 3;
    memory.begin();
    std::vector<std::uint32_t> chosen(layers);
    for (std::uint32_t l = 0; l < layers; ++l) {
      chosen[l] = kind == 0 ? random.below(experts) : kind == 1 ? i % experts : random.below(experts / 2);
      memory.use(l * experts + chosen[l]);
      exact.used[l][chosen[l]] += 1;
    }
    for (std::uint32_t l = 0; l < layers; ++l) {
      const double m = memory.share();
      const std::size_t first = std::size_t{l} * experts;
      memory.quick->finish(l, &memory.slow[first], memory.time, &memory.expected[first], &memory.rank[first]);
      if (i % Quick::span != 0) continue;
      if (i > 0) exact.end(l, m);
      exact.begin(memory, l);
    }
    const double r = exact.came_true / exact.expected;
    if (std::abs(r - 1.0 / 16) > 0.01) REQUIRE(memory.quick->tells() == (r > 1.0 / 16));
    if (i % 1000 >= 500) ++(memory.quick->tells() ? told : not_told)[kind];  // what was before is forgotten
  }
  CHECK(not_told[0] > 400);  // twelve uses a step are few: chance decides
  CHECK(not_told[1] == 1000);
  CHECK(told[2] == 1000);
}

namespace {

struct Few : detail::QuickMemory {
  void reserve(Carver& carve, const MemorySize& /*size*/) {
    detail::QuickMemory::reserve(carve, 1, 4, half_life, "test");
  }
};

}  // namespace

TEST_CASE("steps that save nothing tell nothing") {
  // Nothing is expected after them, which is no wrong guess. Then one of four experts is used.
  Placed<Few> few{MemorySize{}};
  detail::GrowingWeight weight;
  weight.set(half_life, "test");
  std::vector<std::int64_t> slow(4), expected(4), rank(4);
  std::int64_t time = 0;
  for (int i = 0; i < 40; ++i) {
    const StepOf step(Phase::decode, 1);
    few->begin_step(step);
    weight.begin_step(step);
    time += weight();
    if (i >= 5) {
      slow[0] += weight() * 1000;
      few->saved(0, 1000, 1, 1, weight() * 1000);
    }
    few->finish(0, slow.data(), time, expected.data(), rank.data());
    REQUIRE(few->tells());
  }
}
