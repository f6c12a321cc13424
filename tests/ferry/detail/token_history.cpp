#include "ferry/detail/token_history.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "support/policies.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

struct HistorySize {
  std::uint32_t steps, layers, experts;
};
/// detail::TokenHistory is no policy; it is placed like one.
struct History : detail::TokenHistory {
  void reserve(Carver& carve, const HistorySize& s) {
    detail::TokenHistory::reserve(carve, s.steps, s.layers, s.experts);
  }
  std::vector<int> chosen(std::uint32_t token, std::uint32_t layer) const {
    std::vector<int> experts;
    for_each(token, layer, [&](std::uint16_t e) { experts.push_back(e); });
    return experts;
  }
};
using Chosen = std::vector<int>;

void begin_step(Placed<History>& history, Phase phase, const std::vector<std::uint32_t>& sequences) {
  history->begin_step(Step{phase, {sequences.data(), static_cast<std::uint32_t>(sequences.size())}});
}
void note_choices(Placed<History>& history, std::uint32_t layer, const std::vector<std::uint16_t>& experts,
                  const std::vector<std::uint32_t>& rows = {}) {
  std::vector<Route> routes;
  for (const std::uint16_t e : experts) routes.push_back({e, 0.5F, no_expert});
  history->note(layer, {routes.data(), static_cast<std::uint32_t>(routes.size())},
                {rows.data(), static_cast<std::uint32_t>(rows.size())});
}

}  // namespace

TEST_CASE("the token before one is its own sequence's, in the step or in the last one") {
  Placed<History> history(HistorySize{3, 2, 8});
  begin_step(history, Phase::prefill, {7, 7, 9});
  note_choices(history, 1, {0, 1, 2, 3, 4, 5});
  const std::uint32_t a = history->first();
  CHECK(history->rows() == 3);
  CHECK(history->before(a, 1) == detail::TokenHistory::none);
  CHECK(history->before(a + 1, 1) == a);
  CHECK(history->before(a + 2, 1) == detail::TokenHistory::none);
  CHECK_FALSE(history->is_last(a));
  CHECK(history->is_last(a + 1));
  CHECK(history->is_last(a + 2));
  CHECK(history->chosen(a + 1, 1) == Chosen{2, 3});
  CHECK(history->chosen(a + 1, 0).empty());
  CHECK_FALSE(history->is_known(a, 0));

  begin_step(history, Phase::decode, {9, 8, 7});
  note_choices(history, 1, {6, 7, 6, 5, 0, 7});
  const std::uint32_t b = history->first();
  CHECK(history->chosen(history->before(b, 1), 1) == Chosen{4, 5});
  CHECK(history->before(b + 1, 1) == detail::TokenHistory::none);
  CHECK(history->chosen(history->before(b + 2, 1), 1) == Chosen{2, 3});
  CHECK(history->chosen(history->before(history->before(b + 2, 1), 1), 1) == Chosen{0, 1});
  CHECK(history->before(b, 0) == detail::TokenHistory::none);  // nobody computed layer 0
}

TEST_CASE("a row that a layer leaves out is not known there") {
  Placed<History> history(HistorySize{2, 1, 8});
  begin_step(history, Phase::decode, {0, 1, 2});
  note_choices(history, 0, {3, 4}, {0, 2});
  CHECK(history->chosen(history->first(), 0) == Chosen{3});
  CHECK_FALSE(history->is_known(history->first() + 1, 0));
  CHECK(history->chosen(history->first() + 2, 0) == Chosen{4});
}

TEST_CASE("of a long step the last 64 rows are kept") {
  Placed<History> history(HistorySize{2, 1, 128});
  begin_step(history, Phase::prefill, std::vector<std::uint32_t>(100, 5));
  std::vector<std::uint16_t> experts(100);
  for (std::uint16_t i = 0; i < 100; ++i) experts[i] = i;
  note_choices(history, 0, experts);
  CHECK(history->rows() == 64);
  CHECK(history->all_rows() == 100);
  CHECK(history->chosen(history->first(), 0) == Chosen{36});
  CHECK(history->before(history->first(), 0) == detail::TokenHistory::none);
  CHECK(history->chosen(history->first() + 63, 0) == Chosen{99});
  begin_step(history, Phase::decode, {5});
  note_choices(history, 0, {1});
  CHECK(history->chosen(history->before(history->first(), 0), 0) == Chosen{99});
}

TEST_CASE("behind a forget nothing follows from what was before") {
  Placed<History> history(HistorySize{3, 1, 8});
  begin_step(history, Phase::decode, {0});
  note_choices(history, 0, {3});
  history->forget();
  begin_step(history, Phase::decode, {0});
  note_choices(history, 0, {4});
  CHECK(history->before(history->first(), 0) == detail::TokenHistory::none);
  begin_step(history, Phase::decode, {0});
  CHECK(history->chosen(history->before(history->first(), 0), 0) == Chosen{4});
}

TEST_CASE("what the gate chose is noted, and what was skipped is not") {
  Placed<History> history(HistorySize{2, 1, 8});
  begin_step(history, Phase::decode, {0});
  const Route routes[] = {{5, 0.5F, 2}, {no_expert, 0.5F, no_expert}};
  history->note(0, {routes, 2}, {});
  CHECK(history->chosen(history->first(), 0) == Chosen{2});
}

TEST_CASE("sequences come and go, against a list of all tokens") {
  constexpr std::uint32_t steps = 3;
  Random random(8);
  Placed<History> history(HistorySize{steps, 1, 200});
  struct Token {
    std::uint32_t step, row, chose;
    bool kept;
  };
  std::map<std::uint32_t, std::vector<Token>> sequences;
  std::uint32_t chains = 0;
  for (std::uint32_t step = 0; step < 2000; ++step) {
    std::vector<std::uint32_t> rows;
    const bool prefill = random.chance(10);
    for (std::uint32_t s = 0; s < 6; ++s) {
      const std::uint32_t n = prefill ? random.below(25) : random.below(4) == 0 ? 0 : 1;
      for (std::uint32_t i = 0; i < n; ++i) rows.push_back(s);
    }
    begin_step(history, prefill ? Phase::prefill : Phase::decode, rows);
    std::vector<std::uint16_t> experts;
    for (std::uint32_t i = 0; i < rows.size(); ++i) {
      experts.push_back(static_cast<std::uint16_t>(random.below(200)));
      sequences[rows[i]].push_back({step, i, experts.back(), i + 64 >= rows.size()});
    }
    note_choices(history, 0, experts);
    REQUIRE(history->rows() == std::min<std::size_t>(rows.size(), 64));
    for (auto& [sequence, tokens] : sequences) {
      // From the last token of this step backwards, as long as each follows from the other.
      std::size_t at = tokens.size() - 1;
      if (tokens[at].step != step) continue;
      const std::size_t left_out = rows.size() - history->rows();
      if (!tokens[at].kept) continue;
      std::uint32_t token = history->first() + tokens[at].row - static_cast<std::uint32_t>(left_out);
      REQUIRE(history->is_last(token));
      for (;; --at) {
        REQUIRE(history->chosen(token, 0) == Chosen{static_cast<int>(tokens[at].chose)});
        token = history->before(token, 0);
        const bool follows = at > 0 && tokens[at - 1].kept && tokens[at - 1].step + 1 >= tokens[at].step &&
                             tokens[at - 1].step + steps > step;
        REQUIRE((token != detail::TokenHistory::none) == follows);
        if (!follows) break;
        ++chains;
      }
    }
  }
  CHECK(chains > 10000);
}
