#include "ferry/detail/last_uses.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using UsedExperts = std::vector<std::uint16_t>;

struct LastUsesSize {
  std::uint32_t layers, experts;
};
/// detail::LastUses is no policy; it is placed like one.
struct PlacedUses : detail::LastUses {
  void reserve(Carver& carve, const LastUsesSize& s) { detail::LastUses::reserve(carve, s.layers, s.experts); }
};
using PlacedLast = Placed<PlacedUses>;
struct HeldExperts : detail::ExpertSets {
  void reserve(Carver& carve, const LastUsesSize& s) { detail::ExpertSets::reserve(carve, s.layers, s.experts); }
};

std::vector<Route> all_routes(const std::vector<UsedExperts>& rows) {
  std::vector<Route> routes;
  for (const UsedExperts& row : rows) {
    for (const std::uint16_t e : row) routes.push_back({e, 1.0F, no_expert});
  }
  return routes;
}

/// The experts of highest rank, as many as there are slots.
UsedExperts highest(const std::vector<std::int64_t>& rank, std::uint32_t slots) {
  UsedExperts all;
  for (std::uint16_t e = 0; e < rank.size(); ++e) all.push_back(e);
  std::stable_sort(all.begin(), all.end(), [&](std::uint16_t a, std::uint16_t b) { return rank[a] > rank[b]; });
  all.resize(slots);
  return all;
}

/// One layer of a step that holds these experts: what rows choose, and then use. True if it leads another way now.
bool use_layer(PlacedLast& uses, std::uint32_t l, std::uint32_t experts, const std::vector<UsedExperts>& rows,
               const std::vector<std::int64_t>& rank, const UsedExperts& held, std::int64_t price) {
  Placed<HeldExperts> sets(LastUsesSize{l + 1, experts});
  for (const std::uint16_t e : held) sets->add(l, e);
  const std::vector<Route> routes = all_routes(rows);
  uses->note(l, {routes.data(), static_cast<std::uint32_t>(routes.size())}, static_cast<std::uint32_t>(rows.size()),
             rank.data(), *sets);
  std::vector<bool> seen(experts);
  for (const Route& r : routes) {
    if (!seen[r.expert]) uses->used(l * experts + r.expert);
    seen[r.expert] = true;
  }
  const bool changed = uses->compare(price);
  REQUIRE(broken(*uses) == "");
  return changed;
}

/// After how many steps last uses lead in a layer of 8 experts with two slots that is used like this, or 0.
template <class Of>
int leads_after(int steps, std::int64_t price, const std::vector<std::int64_t>& rank, const Of& of) {
  PlacedLast uses(LastUsesSize{1, 8});
  for (int i = 0; i < steps; ++i) {
    uses->begin_step();
    use_layer(uses, 0, 8, {of(i)}, rank, highest(rank, 2), price);
    if (uses->leads()) return i + 1;
  }
  return 0;
}

}  // namespace

TEST_CASE("last uses lead where they would have kept what another order would not, and no longer once that turns") {
  const std::vector<std::int64_t> rank = {90, 80, 0, 0, 0, 0, 0, 0};  // two old favourites
  const auto favourite = [](std::uint16_t e) { return [e](int) { return UsedExperts{e}; }; };
  // Both orders miss the first use. The third use that only last uses keep is more than two and a sixteenth of four.
  CHECK(leads_after(50, 0, rank, favourite(5)) == 4);
  // Each use that neither order would have kept costs its price.
  CHECK(leads_after(50, PlacedUses::one, rank, favourite(5)) == 5);
  CHECK(leads_after(50, 0, rank, favourite(0)) == 0);
  const auto loop = [](int i) { return UsedExperts{static_cast<std::uint16_t>(2 + i % 3)}; };  // longer than the slots
  CHECK(leads_after(500, 0, rank, loop) == 0);
  const auto bursts = [](int i) { return UsedExperts{static_cast<std::uint16_t>(2 + i / 4 % 6)}; };
  CHECK(leads_after(50, PlacedUses::one, rank, bursts) > 0);
  CHECK(leads_after(500, 4 * PlacedUses::one, rank, bursts) == 0);  // bringing each expert costs more than it saves

  PlacedLast uses(LastUsesSize{1, 8});
  int turned = 0;
  for (int i = 0; i < 60; ++i) {
    uses->begin_step();
    // A burst, and then favourites that alternate with others.
    const int at = i - 10;
    const UsedExperts now{static_cast<std::uint16_t>(i < 10 ? 5 : at % 3 == 0 ? 0 : at % 3 == 1 ? 1 : 2 + i % 6)};
    turned += use_layer(uses, 0, 8, {now}, rank, highest(rank, 2), 0) ? 1 : 0;
  }
  CHECK(turned == 2);
  CHECK_FALSE(uses->leads());
}

TEST_CASE("what was used later has the larger key, and a step lies between those of two steps") {
  const std::vector<std::int64_t> rank(32, 0);
  PlacedLast uses(LastUsesSize{1, 32});
  uses->begin_step();
  use_layer(uses, 0, 32, {{1, 2, 3}, {3, 4, 5}}, rank, highest(rank, 16), 0);
  uses->begin_step();
  use_layer(uses, 0, 32, {{2, 7}}, rank, highest(rank, 16), 0);
  const std::int64_t* const keys = uses->keys();
  CHECK(keys[31] == 0);
  for (const auto& [earlier, later] : std::vector<std::pair<int, int>>{{1, 3}, {3, 4}, {4, 5}, {5, 2}, {2, 7}}) {
    CHECK(keys[earlier] < keys[later]);
  }
  CHECK(keys[1] + PlacedUses::step > keys[5]);
  CHECK(keys[1] + PlacedUses::step <= keys[2]);
}

TEST_CASE("random uses: what stacks of experts say, kept one by one, of eight a layer and step, each expert once") {
  Random random(11);
  for (int round = 0; round < 20; ++round) {
    const std::uint32_t layers = 1 + random.below(3), experts = 4 + random.below(20), k = 1 + random.below(3);
    const std::int64_t price = random.below(3) * PlacedUses::one / 4;
    PlacedLast uses(LastUsesSize{layers, experts});
    std::vector<UsedExperts> stack(layers);  // the latest first
    std::int64_t ahead = 0, missed = 0;
    bool leads = false;
    for (int s = 0; s < 200; ++s) {
      uses->begin_step();
      for (std::uint32_t l = 0; l < layers; ++l) {
        std::vector<std::int64_t> rank;
        for (std::uint32_t e = 0; e < experts; ++e) rank.push_back(random.below(6));
        std::vector<UsedExperts> rows(1 + random.below(5));
        UsedExperts together;
        for (UsedExperts& row : rows) {
          while (row.size() < k) {
            const auto e = static_cast<std::uint16_t>(random.chance(60)
                                                          ? (static_cast<std::uint32_t>(s) / 10 + row.size()) % experts
                                                          : random.below(experts));
            if (std::find(row.begin(), row.end(), e) == row.end()) row.push_back(e);
          }
          together.insert(together.end(), row.begin(), row.end());
        }
        const std::uint32_t slots = random.below(experts);
        std::vector<std::int64_t> there;  // resident experts, whatever the ranks say
        for (std::uint32_t e = 0; e < experts; ++e) there.push_back(random.below(1000));
        const UsedExperts held = highest(there, slots);
        UsedExperts& of = stack[l];
        const bool led = leads;
        // Begins with another row in each step.
        const std::size_t first = (static_cast<std::size_t>(s) + 1) * k % together.size();
        UsedExperts asked;
        for (std::size_t n = 0; n < together.size() && asked.size() < 8; ++n) {
          const std::uint16_t e = together[(first + n) % together.size()];
          if (std::find(asked.begin(), asked.end(), e) == asked.end()) asked.push_back(e);
        }
        for (const std::uint16_t e : asked) {
          std::int64_t above = 0, ties = 0;
          for (std::uint32_t i = 0; i < experts; ++i) {
            above += rank[i] > rank[e] ? 1 : 0;
            ties += i != e && rank[i] == rank[e] ? 1 : 0;
          }
          const bool ranked = above + ties / 2 < slots, is_held = std::find(held.begin(), held.end(), e) != held.end();
          const bool by_rank = led || price == 0 ? ranked : is_held;
          const auto found = std::find(of.begin(), of.end(), e);
          const auto before = found - of.begin();
          const auto never = static_cast<std::int64_t>(experts - of.size());
          const bool by_last = found != of.end() ? before < slots : before + (never - 1) / 2 < slots;
          if (by_rank && by_last) continue;
          std::int64_t more = by_last ? PlacedUses::one : -price;
          if (by_rank) more -= PlacedUses::one;
          ahead += more - ahead / 1024;
          missed += PlacedUses::one - missed / 1024;
        }
        leads = led ? ahead > 0 : ahead > missed / 16 + 2 * PlacedUses::one;
        REQUIRE(use_layer(uses, l, experts, rows, rank, held, price) == (led != leads));
        REQUIRE(uses->leads() == leads);
        std::set<std::uint16_t> used;
        for (const std::uint16_t e : together) {  // in the order of their first use
          if (!used.insert(e).second) continue;
          std::erase(of, e);
          of.insert(of.begin(), e);
        }
      }
    }
  }
}

TEST_CASE("what was learned goes on") {
  const std::vector<std::int64_t> rank = {90, 80, 0, 0, 0, 0, 0, 0};
  PlacedLast first(LastUsesSize{1, 8}), second(LastUsesSize{1, 8});
  for (int i = 0; i < 20; ++i) {
    first->begin_step();
    use_layer(first, 0, 8, {{5}}, rank, highest(rank, 2), 0);
  }
  REQUIRE(first->leads());
  CHECK(second->goes_on(*first));
  CHECK(second->leads());
  CHECK_FALSE(second->goes_on(*first));
  // The copy goes on from there, not from its beginning: as many uses end the lead as in the first.
  int kept = 0;
  for (PlacedLast* one : {&first, &second}) {
    int uses = 0;
    for (; (*one)->leads(); ++uses) {
      (*one)->begin_step();
      const int turn = uses % 3;  // favourites that come one by one between others
      use_layer(*one, 0, 8, {{static_cast<std::uint16_t>(turn < 2 ? turn : 2 + uses % 6)}}, rank, {0, 1}, 0);
      REQUIRE(uses < 1000);
    }
    CHECK(uses > 10);
    if (one == &second) CHECK(uses == kept);
    kept = uses;
  }
}

TEST_CASE("what is there counts where not all that is used is brought, what ranks first where it is") {
  const std::vector<std::int64_t> rank = {90, 80, 0, 0, 0, 0, 0, 0};
  for (const std::int64_t price : {std::int64_t{0}, PlacedUses::one / 4}) {
    PlacedLast uses(LastUsesSize{1, 8});
    for (int i = 0; i < 40; ++i) {  // uses the highest ranks, which are not resident
      uses->begin_step();
      use_layer(uses, 0, 8, {{0}}, rank, {6, 7}, price);
    }
    CHECK(uses->leads() == (price > 0));
  }
}
