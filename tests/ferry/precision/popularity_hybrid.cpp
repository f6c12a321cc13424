#include "ferry/precision/popularity_hybrid.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/policies.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Share = PopularityHybrid::Share;

PopularityHybrid hybrid(std::uint32_t percent, Share share = Share::load, bool low_on_miss = false) {
  PopularityHybrid p;
  p.low_share_percent = percent;
  p.share = share;
  p.low_on_miss = low_on_miss;
  return p;
}

/// Requests in ascending expert index, of experts 0, 2, 4, ...
std::vector<Request> requests(const std::vector<std::uint32_t>& rows) {
  std::vector<Request> all(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    all[i].want.id.expert = static_cast<std::uint16_t>(2 * i);
    all[i].rows = rows[i];
  }
  return all;
}

/// Positions of the requests that are to cross in `low`.
std::vector<int> low_ones(const PopularityHybrid& parameters, std::vector<Request> r, Phase phase = Phase::prefill,
                          bool demand = false) {
  Placed<PopularityHybrid> selector(Shape{1, 64, 2, 8}, parameters);
  selector->select(phase, demand, {r.data(), static_cast<std::uint32_t>(r.size())});
  std::vector<int> low;
  for (std::size_t i = 0; i < r.size(); ++i) {
    const bool is_low = r[i].want.precision == parameters.low;
    REQUIRE((is_low || r[i].want.precision == parameters.high));
    if (is_low) low.push_back(static_cast<int>(i));
  }
  return low;
}

using Positions = std::vector<int>;

}  // namespace

TEST_CASE("prefill: the least popular experts with 30 percent of the load cross in low") {
  // 100 votes: 40 20 15 10 8 5 2. From the end 2, 7, 15, 25, and 40 would be more than 30.
  const auto r = requests({40, 20, 15, 10, 8, 5, 2});
  CHECK(low_ones(hybrid(30), r) == Positions{3, 4, 5, 6});
  CHECK(low_ones(hybrid(25), r) == Positions{3, 4, 5, 6});  // 25 of 100 is just within
  CHECK(low_ones(hybrid(24), r) == Positions{4, 5, 6});
  CHECK(low_ones(hybrid(1), r).empty());
  CHECK(low_ones(hybrid(0), r).empty());
  CHECK(low_ones(hybrid(100), r) == Positions{0, 1, 2, 3, 4, 5, 6});
  CHECK(low_ones(hybrid(30), {}).empty());
  // In any order: 2 8 40 5 20 15 10.
  CHECK(low_ones(hybrid(30), requests({2, 8, 40, 5, 20, 15, 10})) == Positions{0, 1, 3, 6});
}

TEST_CASE("prefill: or the least popular 30 percent of the experts") {
  // 7 experts: 2.1, so two.
  const auto r = requests({40, 20, 15, 10, 8, 5, 2});
  CHECK(low_ones(hybrid(30, Share::experts), r) == Positions{5, 6});
  CHECK(low_ones(hybrid(100, Share::experts), r) == Positions{0, 1, 2, 3, 4, 5, 6});
  CHECK(low_ones(hybrid(50, Share::experts), requests({1, 9, 3, 7})) == Positions{0, 2});
}

TEST_CASE("of equally popular experts the higher index goes first, whatever the order of the requests") {
  auto r = requests({5, 5, 5, 5});  // 20 votes, 30 percent are 6: one expert
  CHECK(low_ones(hybrid(30), r) == Positions{3});
  std::swap(r[0], r[3]);
  CHECK(low_ones(hybrid(30), r) == Positions{0});
  CHECK(low_ones(hybrid(50), r) == Positions{0, 2});
}

TEST_CASE("prefill demand: what is held in low or better is used as it is, the rest goes by its real popularity") {
  auto r = requests({40, 30, 20, 8, 2});
  CHECK(low_ones(hybrid(30), r, Phase::prefill, true) == Positions{2, 3, 4});
  r[0].held = Precision::int2;  // predicted as unpopular
  r[1].held = Precision::int4;
  CHECK(low_ones(hybrid(30), r, Phase::prefill, true) == Positions{0, 1, 2, 3, 4});
  CHECK(low_ones(hybrid(30), r, Phase::prefill, false) == Positions{2, 3, 4});  // a prediction is decided by its votes
  CHECK(low_ones(hybrid(0), r, Phase::prefill, true).empty());
  // An expert that is held worse than in low is decided by its popularity.
  PopularityHybrid p = hybrid(30);
  p.high = Precision::full;
  p.low = Precision::int4;
  CHECK(low_ones(p, r, Phase::prefill, true) == Positions{1, 2, 3, 4});
}

TEST_CASE("prefill demand: a copy in high that has not begun is kept, and is not taken back for one in low") {
  auto r = requests({40, 30, 20, 8, 2});
  r[3].held = r[4].held = Precision::int4;
  r[3].state = State::queued;    // on its way in high, and wanting low would take it back
  r[4].state = State::resident;  // there: it satisfies a want of low, too
  CHECK(low_ones(hybrid(30), r, Phase::prefill, true) == Positions{2, 4});
  r[3].held = Precision::int2;  // on its way in low: used as it comes
  CHECK(low_ones(hybrid(30), r, Phase::prefill, true) == Positions{2, 3, 4});
}

TEST_CASE("decode: always high, but what was not predicted may cross in low") {
  auto r = requests({1, 1, 1, 1});
  r[1].state = State::queued;
  r[2].state = State::in_flight;
  r[3].state = State::resident;
  CHECK(low_ones(hybrid(100), r, Phase::decode, true).empty());
  CHECK(low_ones(hybrid(100), r, Phase::decode, false).empty());
  CHECK(low_ones(hybrid(30, Share::load, true), r, Phase::decode, true) == Positions{0});
  CHECK(low_ones(hybrid(30, Share::load, true), r, Phase::decode, false).empty());
}

TEST_CASE("names low only if it may set it") {
  const unsigned high = 1U << static_cast<unsigned>(Precision::int4),
                 low = 1U << static_cast<unsigned>(Precision::int2);
  CHECK(hybrid(30).precisions() == (high | low));
  CHECK(hybrid(100).precisions() == (high | low));  // decode wants high
  CHECK(hybrid(0).precisions() == high);
  CHECK(hybrid(0, Share::load, true).precisions() == (high | low));
}

TEST_CASE("random popularity: as many of a sorted list as fit the share") {
  Random random(31);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::uint32_t> rows(random.below(20));
    for (auto& n : rows) n = random.between(1, 9);
    const std::uint32_t percent = random.below(101);
    const Share share = random.chance(50) ? Share::load : Share::experts;
    std::vector<std::pair<std::uint32_t, int>> tail;  // rows, and minus the position
    std::uint32_t all = 0;
    for (std::size_t e = 0; e < rows.size(); ++e) {
      tail.push_back({rows[e], -static_cast<int>(e)});
      all += share == Share::load ? rows[e] : 1;
    }
    std::sort(tail.begin(), tail.end());
    Positions expected;
    double used = 0;
    for (const auto& [n, minus] : tail) {
      used += share == Share::load ? n : 1;
      if (used > all * percent / 100.0) break;
      expected.push_back(-minus);
    }
    std::sort(expected.begin(), expected.end());
    CHECK(low_ones(hybrid(percent, share), requests(rows)) == expected);
  }
}

TEST_CASE("a share above 100 percent and precisions that do not descend are refused") {
  const Shape shape{1, 8, 2, 1};
  CHECK_THROWS_WITH_AS((Placed<PopularityHybrid>(shape, hybrid(101))),
                       "PopularityHybrid: low_share_percent is 101, expected 0 to 100", ConfigError);
  PopularityHybrid bad;
  bad.low = Precision::int8;
  CHECK_THROWS_WITH_AS((Placed<PopularityHybrid>(shape, bad)),
                       "PopularityHybrid: low is precision number 3 and high is 2, expected int2 (1) or better for "
                       "low, and better than low for high",
                       ConfigError);
  bad.low = Precision::skip;
  CHECK_THROWS_AS((Placed<PopularityHybrid>(shape, bad)), ConfigError);
}
