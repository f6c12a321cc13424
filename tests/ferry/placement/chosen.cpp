#include "ferry/placement/chosen.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("a chosen placement splits as the policy that it names") {
  static_assert(ChosenPlacement<PlacementRule::best_split>{}.rule == PlacementRule::best_split);
  Random random(71);
  std::set<std::uint32_t> answers[4];
  for (int i = 0; i < 200; ++i) {
    std::vector<Request> misses(6);
    for (Request& r : misses) {
      r.rows = random.between(1, 4);
      r.copy_ns = random.between(1, 100);
      r.host_ns = random.between(1, 12);
    }
    std::sort(misses.begin(), misses.end(), [](const Request& a, const Request& b) { return a.rows > b.rows; });
    const View<const Request> all = misses;
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      const std::uint32_t expected[] = {DeviceOnly::split(phase, all), HostInDecode::split(phase, all),
                                        TwoPointer::split(phase, all), BestSplit::split(phase, all)};
      for (const PlacementRule rule :
           {PlacementRule::device, PlacementRule::host, PlacementRule::two_pointer, PlacementRule::best_split}) {
        ChosenPlacement<PlacementRule::two_pointer> chosen;
        chosen.rule = rule;
        CHECK(chosen.split(phase, all) == expected[static_cast<unsigned>(rule)]);
        if (phase == Phase::decode) answers[static_cast<unsigned>(rule)].insert(chosen.split(phase, all));
      }
    }
  }
  CHECK(answers[0] == std::set<std::uint32_t>{6});
  CHECK(answers[1] == std::set<std::uint32_t>{0});
  CHECK(answers[2].size() > 2);
  CHECK(answers[3].size() > 2);
  CHECK(answers[2].count(0) == 0);  // Algorithm 2 always loads the first
  CHECK(answers[3].count(0) == 1);
}
