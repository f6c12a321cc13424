#include "ferry/precision/importance_thresholds.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

using namespace ferry;

namespace {

std::vector<Precision> chosen(const ImportanceThresholds& selector, const std::vector<float>& unimportance,
                              Phase phase = Phase::decode, bool demand = true) {
  std::vector<Request> requests(unimportance.size());
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].unimportance = unimportance[i];
  selector.select(phase, demand, {requests.data(), static_cast<std::uint32_t>(requests.size())});
  std::vector<Precision> p;
  for (const Request& r : requests) p.push_back(r.want.precision);
  return p;
}

/// Eq. 2 for descending weights: the share of the row that goes to the experts before each one.
std::vector<float> shares(const std::vector<float>& weights) {
  float sum = 0, above = 0;
  for (const float w : weights) sum += w;
  std::vector<float> s;
  for (const float w : weights) {
    s.push_back(above / sum);
    above += w;
  }
  return s;
}

std::uint8_t bits(std::initializer_list<Precision> which) {
  unsigned b = 0;
  for (const Precision p : which) b |= 1U << static_cast<unsigned>(p);
  return static_cast<std::uint8_t>(b);
}

constexpr Precision skip = Precision::skip, low = Precision::int4, high = Precision::full;
using Chosen = std::vector<Precision>;

}  // namespace

TEST_CASE("Eq. 2 on a row of gate weights") {
  // Weights 8, 3, 2, 2, 1 of 16: s = 0, 8/16 = 0.5, 11/16 = 0.6875, 13/16 = 0.8125, 15/16 = 0.9375.
  CHECK(chosen({}, shares({8, 3, 2, 2, 1})) == Chosen{high, high, low, low, skip});
  // Two experts as in Mixtral: the second's s is the first's share.
  CHECK(chosen({}, shares({.55F, .45F})) == Chosen{high, high});
  CHECK(chosen({}, shares({.7F, .3F})) == Chosen{high, low});
  CHECK(chosen({}, shares({.95F, .05F})) == Chosen{high, skip});
}

TEST_CASE("both thresholds are inclusive, the first expert is always high, NaN is high") {
  const ImportanceThresholds halves{.5F, .75F};
  CHECK(chosen(halves, {.5F, .5000001F, .75F, .7500001F}) == Chosen{high, low, low, skip});
  CHECK(chosen({0, 0}, {0, .0001F}) == Chosen{high, skip});
  CHECK(chosen({}, {std::numeric_limits<float>::quiet_NaN()}) == Chosen{high});
}

TEST_CASE("real and predicted experts, decode and prefill: all the same, whatever is resident") {
  for (const bool demand : {false, true}) {
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      CHECK(chosen({}, {.5F, .7F, .95F}, phase, demand) == Chosen{high, low, skip});
    }
  }
  Request r;
  r.unimportance = .95F;
  r.state = State::resident;
  ImportanceThresholds{}.select(Phase::decode, true, {&r, 1});
  CHECK(r.want.precision == skip);
}

TEST_CASE("of several rows the one that needs the expert most decides") {
  // Expert A: s = 0.7 in one row and 0.95 in another, so low. B: 0.95 and 0, so high.
  const auto least = [](float a, float b) { return a < b ? a : b; };
  CHECK(chosen({}, {least(.7F, .95F), least(.95F, 0)}) == Chosen{low, high});
}

TEST_CASE("T1 = T2 = 1 is neutral, also for a sum that was rounded to more than 1") {
  const ImportanceThresholds neutral{1, 1};
  CHECK(chosen(neutral, {0, .999F, 1, 1.0000001F}) == Chosen{high, high, high, high});
  CHECK(neutral.precisions() == bits({high}));
}

TEST_CASE("names exactly the precisions that its thresholds allow") {
  CHECK(ImportanceThresholds{}.precisions() == bits({high, low, skip}));
  CHECK(ImportanceThresholds{.6F, 1}.precisions() == bits({high, low}));
  CHECK(ImportanceThresholds{.6F, .6F}.precisions() == bits({high, skip}));
  CHECK(ImportanceThresholds{.6F, .9F, Precision::int8, Precision::int2}.precisions() ==
        bits({Precision::int8, Precision::int2, skip}));
  // And no others are selected.
  for (int t1 = 0; t1 <= 8; ++t1) {
    for (int t2 = t1; t2 <= 8; ++t2) {
      const ImportanceThresholds t{static_cast<float>(t1) / 8, static_cast<float>(t2) / 8};
      unsigned seen = 0;
      for (int s = 0; s <= 16; ++s) {
        seen |= 1U << static_cast<unsigned>(chosen(t, {static_cast<float>(s) / 16})[0]);
      }
      CHECK(seen == t.precisions());
    }
  }
}

TEST_CASE("thresholds out of order or range, and precisions that do not descend, are refused") {
  Carver carve;
  const Shape shape{1, 8, 2, 1};
  const auto reserve = [&](const ImportanceThresholds& t) { t.reserve(carve, shape); };
  CHECK_NOTHROW(reserve({}));
  CHECK_NOTHROW(reserve({0, 0}));
  CHECK_NOTHROW(reserve({1, 1}));
  CHECK(carve.bytes() == 0);
  CHECK_THROWS_WITH_AS(reserve({.75F, .5F}),
                       "ImportanceThresholds: t1 is 0.750000 and t2 is 0.500000, expected 0 <= t1 <= t2 <= 1",
                       ConfigError);
  CHECK_THROWS_AS(reserve({-.1F, .5F}), ConfigError);
  CHECK_THROWS_AS(reserve({.5F, 1.1F}), ConfigError);
  CHECK_THROWS_AS(reserve({std::numeric_limits<float>::quiet_NaN(), 1}), ConfigError);
  CHECK_THROWS_WITH_AS(reserve({.6F, .9F, Precision::int4, Precision::int4}),
                       "ImportanceThresholds: low is precision number 2 and high is 2, expected int2 (1) or better for "
                       "low, and better than low for high",
                       ConfigError);
  CHECK_THROWS_AS(reserve({.6F, .9F, Precision::int4, skip}), ConfigError);
}
