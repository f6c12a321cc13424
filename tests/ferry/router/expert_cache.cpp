#include "ferry/router/expert_cache.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "support/policies.hpp"
#include "support/quick.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Rows = std::vector<std::vector<float>>;
using ExpertList = std::vector<int>;
const float no_number = std::numeric_limits<float>::quiet_NaN();

std::vector<float> flat(const Rows& rows) {
  std::vector<float> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

std::vector<State> resident(std::uint16_t experts, const ExpertList& which) {
  std::vector<State> present(experts, State::absent);
  for (const int e : which) present[static_cast<std::size_t>(e)] = State::resident;
  return present;
}

template <class Router>
std::vector<Route> run(Placed<Router>& router, std::uint16_t k, Phase phase, const std::vector<float>& select,
                       const std::vector<float>& weight, const std::vector<State>& present) {
  const std::size_t rows = select.size() / present.size();
  std::vector<Route> memory(rows * k, Route{77, 7.0F, 7});  // what an earlier step left there
  Out<Route> out{memory.data(), static_cast<std::uint32_t>(memory.size()), 0};
  const auto n = static_cast<std::uint32_t>(select.size());
  router->route(phase, {0, {select.data(), n}, {weight.data(), n}}, {present.data(), std::uint32_t(present.size())},
                out);
  REQUIRE(out.size == memory.size());
  return memory;
}

struct Batch {
  std::uint16_t experts, k;
  float alpha;
  Rows rows;
  ExpertList there;
  bool renormalise = false;
  Phase phase = Phase::decode;

  std::vector<Route> routes() const { return routes(resident(experts, there)); }
  std::vector<Route> routes(const std::vector<State>& present) const {
    ExpertCacheRouter parameters;
    parameters.alpha = alpha;
    const Shape shape{1, experts, k, static_cast<std::uint32_t>(rows.size()), renormalise_if(renormalise)};
    Placed<ExpertCacheRouter> router(shape, parameters);
    REQUIRE(router.measured);
    return run(router, k, phase, flat(rows), flat(rows), present);
  }
};

ExpertList row_of(const std::vector<Route>& routes, std::uint16_t k, std::size_t row) {
  ExpertList e;
  for (std::size_t i = row * k; i < (row + 1) * k; ++i) e.push_back(routes[i].expert);
  return e;
}

bool same(const std::vector<Route>& a, const std::vector<Route>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Route& x, const Route& y) {
    return x.expert == y.expert && x.instead_of == y.instead_of &&
           std::bit_cast<std::uint32_t>(x.weight) == std::bit_cast<std::uint32_t>(y.weight);
  });
}

/// A second implementation of the definition, with sets, that shares nothing with the header.
class Plain {
 public:
  Plain(const Rows& scores, const std::set<int>& there, std::size_t k, float alpha, bool sharing)
      : scores_(scores), there_(there), k_(k), alpha_(alpha) {
    for (std::size_t t = 0; t < scores.size(); ++t) {
      ExpertList order(scores[t].size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        const float x = at(t, a), y = at(t, b);
        return x > y || (y != y && x == x);
      });
      ranked.push_back(order);
      const bool has_rival = k < order.size() && at(t, order[k]) == at(t, order[k]);
      beta.push_back(has_rival ? at(t, order[k]) : -std::numeric_limits<float>::infinity());
      chosen.emplace_back();
      for (std::size_t i = 0; i < k; ++i) {
        chosen[t].push_back({order[i], -1});
        if (top(t, order[i])) c.insert(order[i]);
      }
    }
    kept_ = c;
    for (std::size_t t = 0; t < scores.size(); ++t) choose(t, false);
    for (std::size_t t = 0; sharing && t < scores.size(); ++t) choose(t, true);
    for (std::size_t t = 0; t < scores.size(); ++t) {
      std::sort(chosen[t].begin(), chosen[t].end(),
                [&](const auto& a, const auto& b) { return rank(t, a.first) < rank(t, b.first); });
    }
  }

  bool top(std::size_t t, int e) const { return at(t, e) > (1.0F + alpha_) * beta[t]; }
  std::size_t rank(std::size_t t, int e) const {
    return static_cast<std::size_t>(std::find(ranked[t].begin(), ranked[t].end(), e) - ranked[t].begin());
  }
  bool has(std::size_t t, int e) const {
    return std::any_of(chosen[t].begin(), chosen[t].end(), [&](const auto& x) { return x.first == e; });
  }
  std::set<int> fetched() const {
    std::set<int> all;
    for (const auto& row : chosen) {
      for (const auto& [e, stands_for] : row) {
        if (!there_.contains(e)) all.insert(e);
      }
    }
    return all;
  }

  std::vector<ExpertList> ranked;
  std::vector<float> beta;
  std::set<int> c;
  std::vector<std::vector<std::pair<int, int>>> chosen;  ///< a row: expert, and the gate's choice it stands for or -1

 private:
  float at(std::size_t t, int e) const { return scores_[t][static_cast<std::size_t>(e)]; }

  int others(std::size_t t, int e) const {
    int n = 0;
    for (std::size_t u = 0; u < chosen.size(); ++u) n += u != t && has(u, e) ? 1 : 0;
    return n;
  }

  void choose(std::size_t t, bool sharing) {
    ExpertList stay, misses, a;
    for (std::size_t i = 0; i < k_; ++i) {
      const int e = ranked[t][i];
      (top(t, e) || there_.contains(e) || kept_.contains(e) ? stay : misses).push_back(e);
    }
    for (std::size_t i = k_; i < ranked[t].size(); ++i) {
      const int e = ranked[t][i];
      const bool free = there_.contains(e) || kept_.contains(e) || (sharing && others(t, e) > 0);
      if (free && at(t, e) >= (1.0F - alpha_) * beta[t]) a.push_back(e);
    }
    std::stable_sort(a.begin(), a.end(), [&](int x, int y) { return others(t, x) > others(t, y); });
    a.resize(std::min(a.size(), misses.size()));
    chosen[t].clear();
    for (const int e : stay) chosen[t].push_back({e, -1});
    const std::size_t unserved = misses.size() - a.size();
    for (std::size_t i = 0; i < misses.size(); ++i) {
      if (i < unserved) {
        chosen[t].push_back({misses[i], -1});
      } else {
        chosen[t].push_back({a[i - unserved], misses[i]});
        kept_.insert(a[i - unserved]);
      }
    }
  }

  const Rows& scores_;
  std::set<int> there_, kept_;
  std::size_t k_;
  float alpha_;
};

/// Rows that resemble each other, so that they want each other's experts.
Rows similar_rows(Random& random, std::uint32_t rows, std::uint32_t experts, bool coarse) {
  const auto base = random.scores(experts, coarse);
  Rows all;
  for (std::uint32_t t = 0; t < rows; ++t) {
    auto row = base;
    for (float& s : row) {
      const float other = random.unit(coarse);
      s = coarse ? other : s + 0.5F * other;
    }
    if (random.chance(3)) row[random.below(experts)] = no_number;
    all.push_back(row);
  }
  return all;
}

}  // namespace

TEST_CASE("three tokens of a batch, worked in full") {
  // alpha = 0.25, k = 3, experts 0 and 5 are resident.
  // Token 1: gate {1, 2, 3}, beta = 8 (expert 0). Top-score > 10: 1, 2. Low: 3, absent. Alternatives >= 6.
  // Token 2: gate {4, 6, 0}, beta = 8 (expert 3). Top-score > 10: 4, 6. Low: 0, resident, stays.
  // Token 3: gate {2, 7, 5}, beta = 10 (expert 1). Top-score > 12.5: 2. Low: 7, absent; 5, resident, stays.
  //          Alternatives >= 7.5.
  // C = {1, 2, 4, 6}.
  // First round. Token 1: A = {0 (8, resident), 5 (7, resident), 4 (6, in C)}, each used by one other token: 0 has the
  // highest score. Token 3: A = {1 (10, in C), 6 (10, in C), 4 (9, in C), 0 (8, resident)}; by now 0 is used by
  // tokens 1 and 2, the others by one: 0. Second round: 0 is used by two others for both. Nothing changes.
  Batch b{8,
          3,
          0.25F,
          {{8, 40, 24, 9, 6, 7, 3, 3},  //
           {9, 6, 5, 8, 44, 4, 22, 2},  //
           {8, 10, 35, 5, 9, 11, 10, 12}},
          {0, 5}};
  const auto r = b.routes();
  CHECK(row_of(r, 3, 0) == ExpertList{1, 2, 0});
  CHECK(row_of(r, 3, 1) == ExpertList{4, 6, 0});
  CHECK(row_of(r, 3, 2) == ExpertList{2, 5, 0});
  CHECK(r[2].instead_of == 3);
  CHECK(r[5].instead_of == no_expert);
  CHECK(r[8].instead_of == 7);
  CHECK(r[2].weight == 8.0F);  // its own in each row
  CHECK(r[5].weight == 9.0F);
  b.renormalise = true;
  CHECK(b.routes()[0].weight == doctest::Approx(40.0 / 72));
  CHECK(b.routes()[2].weight == doctest::Approx(8.0 / 72));
}

TEST_CASE("an absent alternative serves if it is another token's top-score expert") {
  // Token 1: gate {0, 1}, beta = 10 (expert 2), low: 1 (12 <= 13). A needs >= 7: 2 (10) and 3 (8), both absent.
  // Token 2: gate {3, 4}, beta = 1: both top-score. C = {0, 3, 4}.
  const Batch b{6, 2, 0.3F, {{50, 12, 10, 8, 1, 1}, {1, 1, 1, 50, 12, 1}}, {}};
  const auto r = b.routes();
  CHECK(row_of(r, 2, 0) == ExpertList{0, 3});
  CHECK(r[1].instead_of == 1);
  CHECK(row_of(r, 2, 1) == ExpertList{3, 4});
}

TEST_CASE("with fewer alternatives than misses the best misses stay") {
  // Gate {0, 1, 2, 3}, beta = 10 (expert 4). Low-score (<= 13): 1, 2, 3, all absent. A = {5 (9)}: replaces the worst.
  Batch b{8, 4, 0.3F, {{50, 13, 12, 11, 10, 9, 8, 7.5F}}, {5}};
  CHECK(row_of(b.routes(), 4, 0) == ExpertList{0, 1, 2, 5});
  CHECK(b.routes()[3].instead_of == 3);
  // With two (7 has 7.5 >= 7), the better alternative replaces the better of the misses that go.
  b.there = {5, 7};
  const auto r = b.routes();
  CHECK(row_of(r, 4, 0) == ExpertList{0, 1, 5, 7});
  CHECK(r[2].instead_of == 2);
  CHECK(r[3].instead_of == 3);
  // All three, and one more than needed.
  b.there = {4, 5, 6, 7};
  CHECK(row_of(b.routes(), 4, 0) == ExpertList{0, 4, 5, 6});
}

TEST_CASE("a low-score expert stays if it is resident, in flight, or in C, but not if it is only queued") {
  const Batch b{4, 2, 0.3F, {{50, 12, 10, 9}}, {}};
  auto present = resident(4, {2, 3});
  for (const State s : {State::resident, State::in_flight}) {
    present[1] = s;
    CHECK(row_of(b.routes(present), 2, 0) == ExpertList{0, 1});
  }
  present[1] = State::queued;
  CHECK(row_of(b.routes(present), 2, 0) == ExpertList{0, 2});
  present[2] = State::queued;  // a queued expert is no alternative, either
  CHECK(row_of(b.routes(present), 2, 0) == ExpertList{0, 3});
  // In C: expert 1 is token 2's top-score expert, so token 1 keeps it although 2 and 3 are there.
  const Batch two{4, 2, 0.3F, {{50, 12, 10, 9}, {12, 50, 1, 1}}, {2, 3}};
  CHECK(row_of(two.routes(), 2, 0) == ExpertList{0, 1});
}

TEST_CASE("ties: the gate's lower index ranks higher, of equal alternatives the lower index serves") {
  // ExpertList 1, 2, 3 and 4 tie; the gate takes 0 and 1, beta is the same score.
  Batch b{6, 2, 0.3F, {{50, 10, 10, 10, 10, 1}}, {3, 4}};
  CHECK(row_of(b.routes(), 2, 0) == ExpertList{0, 3});
  b.there = {4};
  CHECK(row_of(b.routes(), 2, 0) == ExpertList{0, 4});
  // A score of exactly (1 + alpha) beta is low, one of exactly (1 - alpha) beta is an alternative.
  const Batch edge{4, 2, 0.5F, {{50, 12, 8, 4}}, {3}};
  CHECK(row_of(edge.routes(), 2, 0) == ExpertList{0, 3});
  const Batch beyond{4, 2, 0.5F, {{50, 12.5F, 8, 4}}, {3}};
  CHECK(row_of(beyond.routes(), 2, 0) == ExpertList{0, 1});
  const Batch below{4, 2, 0.5F, {{50, 12, 8, 3.5F}}, {3}};
  CHECK(row_of(below.routes(), 2, 0) == ExpertList{0, 1});
}

TEST_CASE("section 5.4: {2, 6, 7} becomes {2, 4, 7} as expert 4 serves others, though neither 4 nor 6 is resident") {
  // alpha = 0.3. Tokens 1 and 2: expert 4 is low-score (12 <= 13) and has no alternative: 0 (10) is used by nobody.
  // Token 3: expert 6 is low-score (12 <= 13), and 4 (10 = beta) is rank 4.
  const std::vector<float> first{10, 40, 30, 2, 12, 2, 2, 2}, second{10, 40, 2, 2, 12, 30, 2, 2},
      third{2, 2, 40, 2, 10, 2, 12, 30};
  std::vector<int> order{0, 1, 2};
  do {  // in whatever order they come
    const Rows all{first, second, third};
    Batch b{8, 3, 0.3F, {}, {}};
    for (const int t : order) b.rows.push_back(all[static_cast<std::size_t>(t)]);
    const auto r = b.routes();
    for (std::size_t row = 0; row < 3; ++row) {
      const ExpertList expected[] = {{1, 2, 4}, {1, 5, 4}, {2, 7, 4}};
      CHECK(row_of(r, 3, row) == expected[order[row]]);
      CHECK(r[row * 3 + 2].instead_of == (order[row] == 2 ? 6 : no_expert));
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("two rows that want each other's miss meet at one of them") {
  // Token 1 misses 2 and could take 3; token 2 misses 3 and could take 2.
  const Batch b{6, 2, 0.3F, {{40, 1, 12, 10, 1, 1}, {1, 40, 10, 12, 1, 1}}, {}};
  CHECK(row_of(b.routes(), 2, 0) == ExpertList{0, 3});
  CHECK(row_of(b.routes(), 2, 1) == ExpertList{1, 3});
}

TEST_CASE("a miss that its own row gives up lures no other row") {
  // Token 2's gate wants 3, which is used more than 5 at first, but it will take the resident 4 instead.
  const Batch b{6, 2, 0.3F, {{40, 1, 12, 10, 1, 9}, {1, 40, 1, 12, 10, 1}}, {4, 5}};
  CHECK(row_of(b.routes(), 2, 0) == ExpertList{0, 5});
  CHECK(row_of(b.routes(), 2, 1) == ExpertList{1, 4});
}

TEST_CASE("what one row has taken over, its owner no longer gives up") {
  // Misses: 3 (token 1), 4 (token 2), 5 (token 3). Token 1 takes 4; token 2 could take 5, but keeps 4.
  const Batch b{6, 2, 0.3F, {{40, 1, 1, 12, 10, 1}, {1, 40, 1, 1, 12, 10}, {1, 1, 40, 10, 1, 12}}, {}};
  CHECK(row_of(b.routes(), 2, 0) == ExpertList{0, 4});
  CHECK(row_of(b.routes(), 2, 1) == ExpertList{1, 4});
  CHECK(row_of(b.routes(), 2, 2) == ExpertList{2, 5});  // its alternative, 3, is not used by anybody any more
}

TEST_CASE("prefill is plain top-k") {
  Batch b{4, 2, 0.3F, {{50, 12, 10, 9}}, {2, 3}};
  b.phase = Phase::prefill;
  CHECK(row_of(b.routes(), 2, 0) == ExpertList{0, 1});
}

TEST_CASE("nothing is replaced if all experts are chosen, the next score is NaN, or beta is negative") {
  CHECK(row_of(Batch{3, 3, 1.0F, {{3, 2, 1}}, {0}}.routes(), 3, 0) == ExpertList{0, 1, 2});
  CHECK(row_of(Batch{4, 2, 1.0F, {{3, 2, no_number, no_number}}, {2, 3}}.routes(), 2, 0) == ExpertList{0, 1});
  CHECK(row_of(Batch{4, 2, 0.5F, {{no_number, no_number, no_number, no_number}}, {2, 3}}.routes(), 2, 0) ==
        ExpertList{0, 1});
  CHECK(row_of(Batch{4, 2, 0.3F, {{-1, -2, -2, -2}}, {2, 3}}.routes(), 2, 0) == ExpertList{0, 1});
  // A NaN is passed over: 3 serves.
  CHECK(row_of(Batch{5, 2, 1.0F, {{50, 12, no_number, 9, 10}}, {2, 3}}.routes(), 2, 0) == ExpertList{0, 3});
}

TEST_CASE("alpha = 0 is plain top-k, bit for bit") {
  Random random(21);
  for (int i = 0; i < 3000; ++i) {
    const auto experts = static_cast<std::uint16_t>(random.between(1, 12));
    const auto k = static_cast<std::uint16_t>(random.between(1, experts));
    const std::uint32_t rows = random.between(1, 4);
    const Shape shape{1, experts, k, rows, renormalise_if(random.chance(50))};
    ExpertCacheRouter parameters;
    parameters.alpha = 0;
    Placed<ExpertCacheRouter> router(shape, parameters);
    Placed<TopK> top_k(shape, TopK{});
    auto select = random.scores(std::size_t{rows} * experts, random.chance(50));
    const auto weight = random.scores(std::size_t{rows} * experts);
    if (random.chance(20)) select[random.below(experts)] = no_number;
    std::vector<State> present(experts);
    for (State& s : present) s = static_cast<State>(random.below(4));
    CHECK(same(run(router, k, Phase::decode, select, weight, present),
               run(top_k, k, Phase::decode, select, weight, present)));
  }
}

TEST_CASE("random batches: the definition written a second time, and what must always hold") {
  Random random(22);
  int substituted = 0, shared = 0, fewer_fetched = 0;
  const int batches = quick() ? 2000 : 10000;
  for (int i = 0; i < batches; ++i) {
    // Around 64, from where on a single row is chosen for as several are, few times.
    const bool many = i % 10 == 0;
    const auto experts = static_cast<std::uint16_t>(many ? random.between(62, 66) : random.between(2, 12));
    const auto k = static_cast<std::uint16_t>(random.between(1, experts < 5 ? experts : 5));
    const std::uint32_t rows = random.between(1, 5);
    const float alphas[] = {0.1F, 0.25F, 0.3F, 0.5F, 1.0F};
    ExpertCacheRouter parameters;
    parameters.alpha = alphas[random.below(5)];
    const Shape shape{1, experts, k, 5, renormalise_if(random.chance(50))};
    Placed<ExpertCacheRouter> router(shape, parameters);
    run(router, k, Phase::decode, random.scores(experts), random.scores(experts),
        std::vector<State>(experts, State::absent));  // what one step leaves behind does not matter to the next
    const Rows scores = similar_rows(random, rows, experts, random.chance(30));
    const auto weight = random.scores(std::size_t{rows} * experts);
    std::vector<State> present(experts);
    std::set<int> there;
    for (std::uint16_t e = 0; e < experts; ++e) {
      present[e] = static_cast<State>(random.below(4));
      if (random.chance(40)) present[e] = State::absent;
      if (present[e] == State::resident || present[e] == State::in_flight) there.insert(e);
    }

    const auto routes = run(router, k, Phase::decode, flat(scores), weight, present);
    const Plain plain(scores, there, k, parameters.alpha, true);
    const Plain algorithm1(scores, there, k, parameters.alpha, false);

    bool equal = true, distinct = true, top_kept = true, justified = true, near = true, named_once = true;
    for (std::size_t t = 0; t < rows; ++t) {
      std::vector<Route> expected;
      for (const auto& [e, stands_for] : plain.chosen[t]) {
        expected.push_back({static_cast<std::uint16_t>(e), weight[t * experts + static_cast<std::size_t>(e)],
                            stands_for < 0 ? no_expert : static_cast<std::uint16_t>(stands_for)});
      }
      float sum = 0;
      for (const Route& r : expected) sum += r.weight;
      if (shape.renormalise == Renormalise::yes) {
        for (Route& r : expected) r.weight /= sum;
      }
      const std::vector<Route> row(routes.begin() + static_cast<std::ptrdiff_t>(t * k),
                                   routes.begin() + static_cast<std::ptrdiff_t>((t + 1) * k));
      equal = equal && same(row, expected);

      std::set<int> chosen, gate(plain.ranked[t].begin(), plain.ranked[t].begin() + k), stands_for;
      for (const Route& r : row) chosen.insert(r.expert);
      distinct = distinct && chosen.size() == k;
      for (const int e : gate) top_kept = top_kept && (!plain.top(t, e) || chosen.contains(e));
      for (const Route& r : row) {
        if (r.instead_of == no_expert) {
          justified = justified && gate.contains(r.expert);
          continue;
        }
        ++substituted;
        named_once = named_once && gate.contains(r.instead_of) && !chosen.contains(r.instead_of) &&
                     stands_for.insert(r.instead_of).second;
        near = near && scores[t][r.expert] >= (1.0F - parameters.alpha) * plain.beta[t];
        if (there.contains(r.expert) || plain.c.contains(r.expert)) continue;
        ++shared;
        bool owned = false;
        for (std::size_t i2 = 0; i2 < routes.size(); ++i2) {
          owned = owned || (i2 / k != t && routes[i2].expert == r.expert && routes[i2].instead_of == no_expert);
        }
        justified = justified && owned;
      }
    }
    CHECK(equal);
    CHECK(distinct);
    CHECK(top_kept);
    CHECK(justified);
    CHECK(near);
    CHECK(named_once);
    // Section 5.4 never fetches an expert that section 5.1 alone would not.
    const auto with = plain.fetched(), without = algorithm1.fetched();
    CHECK(std::includes(without.begin(), without.end(), with.begin(), with.end()));
    fewer_fetched += with.size() < without.size() ? 1 : 0;
  }
  MESSAGE(substituted << " substitutes, " << shared << " of them shared misses; in " << fewer_fetched << " of "
                      << batches << " batches section 5.4 saves a fetch");
  CHECK(substituted > batches / 10);
  CHECK(shared > batches / 10);
  CHECK(fewer_fetched > batches / 100);
}

TEST_CASE("ExpertCacheRouter refuses an alpha that is no share") {
  const Shape shape{1, 4, 2, 1};
  ExpertCacheRouter bad;
  bad.alpha = 1.5F;
  CHECK_THROWS_WITH_AS((Placed<ExpertCacheRouter>(shape, bad)), "ExpertCacheRouter: alpha is 1.500000, expected 0 to 1",
                       ConfigError);
  bad.alpha = no_number;
  CHECK_THROWS_AS((Placed<ExpertCacheRouter>(shape, bad)), ConfigError);
  bad.alpha = -0.1F;
  CHECK_THROWS_AS((Placed<ExpertCacheRouter>(shape, bad)), ConfigError);
}
