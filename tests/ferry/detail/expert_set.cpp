#include "ferry/detail/expert_set.hpp"

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "support/policies.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

struct Size {
  std::uint32_t sets, experts;
};
/// detail::ExpertSets is no policy; it is placed like one.
struct Sets : detail::ExpertSets {
  void reserve(Carver& carve, const Size& size) { detail::ExpertSets::reserve(carve, size.sets, size.experts); }
};

}  // namespace

TEST_CASE("sets of experts against std::set") {
  Random random(3);
  for (const std::uint32_t experts : {1U, 63U, 64U, 65U, 200U}) {
    Placed<Sets> sets(Size{3, experts});
    std::vector<std::set<std::uint16_t>> expected(3);
    for (int i = 0; i < 500; ++i) {
      const std::uint32_t set = random.between(0, 2);
      const auto e = static_cast<std::uint16_t>(random.between(0, experts - 1));
      const std::uint32_t what = random.between(0, 40);
      if (what == 0) {
        sets->clear(set);
        expected[set].clear();
      } else if (what < 15) {
        sets->remove(set, e);
        expected[set].erase(e);
      } else {
        sets->add(set, e);
        expected[set].insert(e);
      }
      CHECK(sets->has(set, e) == (expected[set].count(e) > 0));
      std::vector<std::uint16_t> walked;
      sets->for_each(set, [&](std::uint16_t x) { walked.push_back(x); });
      CHECK(walked == std::vector<std::uint16_t>(expected[set].begin(), expected[set].end()));
      CHECK(sets->size(set) == expected[set].size());
      std::uint32_t common = 0;
      for (const std::uint16_t x : expected[set]) common += expected[2].count(x) > 0 ? 1 : 0;
      CHECK(sets->common(set, *sets, 2) == common);
    }
  }
}
