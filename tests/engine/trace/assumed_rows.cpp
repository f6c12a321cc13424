// Rows that a trace lacks: made-up rows are as good as was stated, and recorded ones stay.
#include "trace/assumed_rows.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "engine/fixtures/refusal.hpp"
#include "engine/trace/bare_trace.hpp"
#include "support/errors.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

constexpr std::uint32_t experts = 32, top_k = 4, quarter = 8;  // E - 1 - floor(75 (E - 1) / 100)
const RowNeeds all_rows{true, true, 3};

/// How many experts of a row score higher than this one.
std::uint32_t place(const float* row, std::uint32_t expert, std::uint32_t of = experts) {
  return static_cast<std::uint32_t>(std::count_if(row, row + of, [&](float x) { return x > row[expert]; }));
}

/// Calls `see(row, token, layer predicted, distance)` for each made-up row; distance 0: partial.
template <class See>
void each_row(const Trace& t, const See& see) {
  for (std::uint32_t token = 0; token < t.tokens; ++token) {
    for (std::uint32_t l = 0; l + 1 < t.model.layers; ++l) {
      see(t.partial_of(token, l), token, l + 1, 0U);
      for (std::uint32_t d = 1; d <= t.ahead && l + d < t.model.layers; ++d) {
        see(t.predicted_of(token, l, d), token, l + d, d);
      }
    }
  }
}

bool same(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

TEST_CASE("made-up predictions: certain shares put each needed expert where they say") {
  const auto file = bare_trace(40);
  struct Case {
    AssumedRecall recall;
    std::uint32_t first, last;  ///< places
  };
  for (const Case& k : {Case{{1, 1}, 0, top_k}, Case{{0, 1}, top_k, quarter}, Case{{0, 0}, quarter, experts}}) {
    const AssumedRows rows(file->trace, k.recall, all_rows);
    const AssumedRows::Completed c = rows.complete(all_rows);
    CHECK(c.made == std::vector<std::string>{"scores", "predicted", "partial"});
    CHECK(c.trace.ahead == 3);
    std::uint32_t wrong = 0, seen = 0;
    each_row(c.trace, [&](const float* row, std::uint32_t t, std::uint32_t l, std::uint32_t) {
      ++seen;
      for (std::uint32_t i = 0; i < top_k; ++i) {
        const std::uint32_t e = file->trace.expert(t, l, i), at = place(row, e);
        wrong += at < k.first || at >= k.last ? 1 : 0;
        // Among the k best, an expert has its own place, and each place its rank's weight.
        if (k.last == top_k) wrong += at != i || row[e] != file->trace.weight(t, l, i) ? 1 : 0;
      }
      wrong += std::set<float>(row, row + experts).size() != experts ? 1 : 0;
      wrong += *std::min_element(row, row + experts) > 0 ? 0 : 1;
      // A wrong expert gets the weight of its place. Weights after the k best are at most half the least of those.
      std::vector<float> sorted(row, row + experts);
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (std::uint32_t i = 0; i < top_k; ++i) wrong += sorted[i] != file->trace.weight(t, l, i) ? 1 : 0;
      wrong += sorted[top_k] > file->trace.weight(t, l, top_k - 1) / 2 ? 1 : 0;
    });
    CHECK(seen == 40 * (3 + 3 + 2 + 1));
    CHECK(wrong == 0);
  }
}

TEST_CASE("made-up predictions are as good as was stated, and less so further ahead") {
  const auto file = bare_trace(3000);
  const AssumedRecall recall{0.79, 0.97, 4};
  const AssumedRows rows(file->trace, recall, all_rows);
  const AssumedRows::Completed c = rows.complete(all_rows);
  double best[4] = {}, near[4] = {}, needed[4] = {};
  each_row(c.trace, [&](const float* row, std::uint32_t t, std::uint32_t l, std::uint32_t d) {
    for (std::uint32_t i = 0; i < top_k; ++i) {
      const std::uint32_t at = place(row, file->trace.expert(t, l, i));
      best[d] += at < top_k ? 1 : 0;
      near[d] += at < quarter ? 1 : 0;
      ++needed[d];
    }
  });
  for (std::uint32_t d = 0; d <= 3; ++d) {
    CAPTURE(d);
    const double power = std::max(1U, d);  // partial rows: as one layer ahead
    CHECK(best[d] / needed[d] == doctest::Approx(std::pow(0.79, power)).epsilon(0.012));
    CHECK(near[d] / needed[d] == doctest::Approx(std::pow(0.97, power)).epsilon(0.006));
  }
  // Predicted and partial rows are drawn separately.
  CHECK_FALSE(std::equal(c.trace.partial_of(0, 0), c.trace.partial_of(0, 0) + experts, c.trace.predicted_of(0, 0, 1)));
}

TEST_CASE("made-up rows depend on the seed, the token, the layer and the distance alone") {
  const auto whole = bare_trace(60), part = bare_trace(30);
  const AssumedRecall recall{0.5, 0.8, 9};
  const AssumedRows a(whole->trace, recall, all_rows), b(part->trace, recall, all_rows);
  const Trace first = b.complete(all_rows).trace, all = a.complete(all_rows).trace;
  CHECK(same(first.predicted, all.predicted.first(first.predicted.size())));
  CHECK(same(first.partial, all.partial.first(first.partial.size())));
  // A row is the same for however many layers it is made.
  const AssumedRows shallow(part->trace, recall, {false, false, 1});
  const AssumedRows::Completed c = shallow.complete({false, false, 1});
  CHECK(c.made == std::vector<std::string>{"predicted"});
  CHECK(c.trace.scores.empty());
  CHECK(c.trace.partial.empty());
  for (std::uint32_t t = 0; t < 30; ++t) {
    CHECK(std::equal(c.trace.predicted_of(t, 1, 1), c.trace.predicted_of(t, 1, 1) + experts,
                     first.predicted_of(t, 1, 1)));
  }
  const AssumedRows other(part->trace, {0.5, 0.8, 10}, all_rows);
  CHECK_FALSE(same(other.complete(all_rows).trace.predicted, first.predicted));
}

TEST_CASE("made-up scores are the weights of the chosen, and rank them before all others") {
  const auto file = bare_trace(20);
  // Recorded weights may be odd.
  const float odd[] = {0.0F, -1.0F, std::nanf(""), std::numeric_limits<float>::infinity()};
  std::copy(std::begin(odd), std::end(odd), file->weights.begin() + top_k);
  const AssumedRows rows(file->trace, {1, 1}, all_rows);
  const Trace t = rows.complete(all_rows).trace;
  for (std::uint32_t token = 0; token < 20; ++token) {
    for (std::uint32_t l = 0; l < 4; ++l) {
      const float* row = t.scores_of(token, l);
      CHECK(std::count(row, row + experts, 0.0F) == experts - top_k);
      for (std::uint32_t i = 0; i < top_k; ++i) {
        const float score = row[t.expert(token, l, i)];
        const bool was_odd = token == 0 && l == 1;
        CHECK(score == (was_odd ? std::numeric_limits<float>::min() : t.weight(token, l, i)));
      }
    }
  }
  // Predictions of such rows still have an order.
  const float* row = t.predicted_of(0, 0, 1);
  CHECK(std::set<float>(row, row + experts).size() == experts);
  CHECK(place(row, t.expert(0, 1, 0)) == 0);
}

TEST_CASE("what a trace has stays, and only what a stack reads is made") {
  const auto file = bare_trace(20);
  file->trace.ahead = 1;
  for (std::size_t i = 0; i < std::size_t{20} * 4 * experts; ++i) {
    file->predicted.push_back(static_cast<float>(i));
    file->scores.push_back(static_cast<float>(2 * i));
  }
  file->view();
  const AssumedRows rows(file->trace, {1, 1}, all_rows);
  const AssumedRows::Completed shallow = rows.complete({true, false, 1});
  CHECK(shallow.made.empty());
  CHECK(shallow.trace.predicted.data() == file->trace.predicted.data());
  CHECK(shallow.trace.scores.data() == file->trace.scores.data());
  const AssumedRows::Completed deep = rows.complete({true, true, 3});
  CHECK(deep.made == std::vector<std::string>{"predicted", "partial"});
  CHECK(deep.trace.scores.data() == file->trace.scores.data());
  CHECK(deep.trace.ahead == 3);
  deep.trace.validate();
  for (std::uint32_t t = 0; t < 20; ++t) {
    CHECK(std::equal(deep.trace.predicted_of(t, 0, 1), deep.trace.predicted_of(t, 0, 1) + experts,
                     file->trace.predicted_of(t, 0, 1)));
    CHECK(place(deep.trace.predicted_of(t, 0, 2), file->trace.expert(t, 2, 0)) == 0);
  }
  CHECK(assumed_bytes(file->trace, {true, true, 3}) == std::uint64_t{20} * 4 * experts * (3 + 1) * 4);
  CHECK(assumed_bytes(file->trace, {true, false, 1}) == 0);
}

TEST_CASE("recorded predictions that choose by other rows keep them, and made-up ones choose by themselves") {
  const auto file = bare_trace(10);
  file->trace.ahead = 1;
  for (std::size_t i = 0; i < std::size_t{10} * 4 * experts; ++i) {
    file->predicted.push_back(static_cast<float>(i));
    file->scores.push_back(static_cast<float>(2 * i));
    file->choice_scores.push_back(static_cast<float>(3 * i));
    file->choice_predicted.push_back(static_cast<float>(4 * i));
  }
  file->view();
  const RowNeeds needs{true, false, 3};
  const AssumedRows rows(file->trace, {1, 1}, needs);
  const Trace made = rows.complete(needs).trace;
  made.validate();
  for (std::uint32_t t = 0; t < 10; ++t) {
    CHECK(std::equal(made.choice_predicted_of(t, 1, 1), made.choice_predicted_of(t, 1, 1) + experts,
                     file->trace.choice_predicted_of(t, 1, 1)));
    CHECK(std::equal(made.choice_predicted_of(t, 1, 2), made.choice_predicted_of(t, 1, 2) + experts,
                     made.predicted_of(t, 1, 2)));
    CHECK(place(made.choice_predicted_of(t, 1, 2), file->trace.expert(t, 3, 0)) == 0);
  }
  CHECK(assumed_bytes(file->trace, needs) == std::uint64_t{10} * 4 * experts * 2 * 3 * 4);
}

TEST_CASE("rows of a prompt that were not recorded count as the nearest later one, once scores are made") {
  const auto file = bare_trace(45);  // the third sequence has 5 tokens
  auto leave_out = [&](std::uint32_t token, std::uint32_t layer) {
    const auto row = file->experts.begin() + (token * 4 + layer) * top_k;
    std::fill(row, row + top_k, no_expert);
  };
  for (const std::uint32_t token : {0U, 1U, 3U, 20U, 40U, 41U}) leave_out(token, 2);
  file->view();
  const Trace& t = file->trace;
  const AssumedRows rows(t, {1, 1}, all_rows);
  const AssumedRows::Completed c = rows.complete({true, false, 1});
  CHECK(c.made == std::vector<std::string>{"experts", "scores", "predicted"});
  c.trace.validate();
  const std::pair<std::uint32_t, std::uint32_t> sources[] = {{0, 2}, {1, 2}, {3, 4}, {20, 21}, {40, 42}, {41, 42}};
  for (const auto& [token, from] : sources) {
    for (std::uint32_t i = 0; i < top_k; ++i) {
      CHECK(c.trace.expert(token, 2, i) == t.expert(from, 2, i));
      CHECK(c.trace.scores_of(token, 2)[t.expert(from, 2, i)] == t.weight(from, 2, i));
      CHECK(place(c.trace.predicted_of(token, 1, 1), t.expert(from, 2, i)) == i);
    }
  }
  CHECK(c.trace.expert(5, 2, 0) == t.expert(5, 2, 0));
  // A stack that reads no scores gets the routes as recorded.
  const AssumedRows::Completed routes = rows.complete({false, false, 1});
  CHECK(routes.made == std::vector<std::string>{"predicted"});
  CHECK(routes.trace.expert(0, 2, 0) == no_expert);

  // In prompts alone the last rows have none later, and one layer has no rows at all.
  const auto prompts = bare_trace(4);
  for (std::uint32_t token = 0; token < 4; ++token) {
    const auto row = prompts->experts.begin() + token * 4 * top_k;
    if (token > 1) std::fill(row, row + top_k, no_expert);
    std::fill(row + top_k, row + 2 * top_k, no_expert);
  }
  prompts->view();
  const AssumedRows made(prompts->trace, {1, 1}, all_rows);
  const Trace filled = made.complete(all_rows).trace;
  filled.validate();
  CHECK(filled.expert(3, 0, 1) == prompts->trace.expert(1, 0, 1));
  CHECK(filled.expert(3, 1, 1) == 1);
}

TEST_CASE("made-up rows of models that have hardly any experts beside the chosen ones") {
  for (const std::uint16_t all : {std::uint16_t{2}, std::uint16_t{3}, std::uint16_t{5}}) {
    TraceFile f;
    f.trace.name = "small";
    f.trace.model.layers = 2;
    f.trace.model.experts = all;
    f.trace.model.top_k = 2;
    f.trace.model.renormalise = Renormalise::no;
    f.trace.model.expert_bytes = {{0, 0, 0, 0, 5}};
    f.work = {{1, 1, 1}};
    for (std::uint32_t i = 0; i < 50; ++i) f.experts.insert(f.experts.end(), {1, 0, 0, 1});
    f.sequence_start = {0};
    f.view();
    for (const AssumedRecall& recall : {AssumedRecall{0, 0}, AssumedRecall{0, 1}, AssumedRecall{1, 1}}) {
      const AssumedRows rows(f.trace, recall, all_rows);
      const Trace t = rows.complete(all_rows).trace;
      t.validate();
      for (std::uint32_t token = 0; token < 50; ++token) {
        const float* row = t.predicted_of(token, 0, 1);
        std::set<std::uint32_t> places;
        for (std::uint32_t e = 0; e < all; ++e) places.insert(place(row, e, all));
        CHECK(places.size() == all);
        if (recall.top_k == 1.0) CHECK(place(row, 0, all) == 0);
        if (recall.top_k == 0.0 && all == 5) CHECK(place(row, 0, all) >= 2);
      }
    }
  }
}

TEST_CASE("shares that cannot be, and rows that no machine holds, are refused") {
  const auto file = bare_trace(1);
  auto refused = [&](const AssumedRecall& recall) {
    return refusal("--assume-recall", [&] { const AssumedRows rows(file->trace, recall, all_rows); });
  };
  CHECK(says(refused({0.9, 0.5}), {"--assume-recall 0.9,0.5", "no smaller than the first"}));
  CHECK(says(refused({-0.1, 0.5}), {"from 0 to 1"}));
  CHECK(says(refused({0.1, 1.5}), {"from 0 to 1"}));
  CHECK(says(refused({std::nan(""), 1}), {"from 0 to 1"}));
  CHECK(says(refused({0.5, std::nan("")}), {"from 0 to 1"}));
  CHECK(says(refusal("--assume-recall", [] { check_assumed_bytes(~std::uint64_t{0}); }),
             {"60% of this machine's memory", "--depth"}));
  check_assumed_bytes(1U << 20U);
}
