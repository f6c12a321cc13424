// Made-up routing has the statistics that were asked for. They are measured by code that is itself checked on examples worked
// by hand, by plain second implementations, and by the library's own predictors.
#include "trace/synthetic.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "engine/fixtures/refusal.hpp"
#include "ferry/predictor/cross_layer_gate.hpp"
#include "ferry/predictor/partial_hidden.hpp"
#include "support/errors.hpp"
#include "support/policies.hpp"
#include "support/shapes.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using ferry::test::says;

ModelFacts small_model(std::uint16_t layers, std::uint16_t experts, std::uint16_t k) {
  ModelFacts f;
  f.name = "small";
  f.model = test::model(layers, experts, k);
  f.model.renormalise = Renormalise::yes;
  f.work.resize(1);
  return f;
}

/// How many choices the calibration has seen.
double calibrated(const ModelShape& m) {
  return m.top_k * std::min(8192.0, 32768.0 / m.top_k);
}

/// Within two and a half standard errors of the calibration and of the trace together, and half a point: 1.2 to 1.5 points for
/// most shares here. `seen`: how many of what is counted the calibration has seen.
void near(const char* what, const Share& measured, double asked, double seen) {
  const std::string knob = what;
  const double square = asked * (1 - asked) * (1 / seen + 1 / static_cast<double>(measured.whole));
  const double tolerance = 0.005 + 2.5 * std::sqrt(square);
  CAPTURE(knob);
  CAPTURE(measured.whole);
  CAPTURE(measured.value());
  CAPTURE(asked);
  CHECK(measured.whole > 0);
  CHECK(std::abs(measured.value() - asked) <= tolerance);
}

/// Checks everything that was asked for, except knobs that follow from others.
void check_asked(const ModelFacts& facts, const SyntheticOptions& o) {
  const auto made = synthesize(facts, o);
  const SyntheticTargets t = synthetic_targets(facts, o);
  const RoutingStatistics s = measure(made->trace, o.alpha);
  CAPTURE(facts.name);
  const double all_seen = calibrated(facts.model), rows_seen = all_seen / facts.model.top_k;
  REQUIRE(s.layers.size() == facts.model.layers);
  const RoutingShares all = s.all(), shallow = s.of(0, o.shallow), deep = s.of(o.shallow, s.layers.size());
  near("reuse", all.reuse, t.reuse, all_seen);
  near("favourites", all.favourites, t.favourites, all_seen);
  near("popularity", all.popularity, t.popularity, all_seen);
  near("high_share", t.of_best_two ? all.best_two_high : all.high, t.high_share, all_seen);
  if (t.skip_share) near("skip_share", t.of_best_two ? all.best_two_skip : all.skip, *t.skip_share, all_seen);
  if (t.low_score) near("low_score", all.low_score, *t.low_score, all_seen);
  for (std::uint32_t d = 0; d < o.ahead; ++d) {
    CAPTURE(d);
    near("recall_top_k", all.recall_top_k[d], o.recall_top_k[d], all_seen);
    near("recall_top_k, deep", deep.recall_top_k[d], t.recall_top_k[d].deep, all_seen);
    if (o.shallow > d + 1) near("recall_top_k, shallow", shallow.recall_top_k[d], t.recall_top_k[d].shallow, all_seen);
    if (t.top_1[d]) near("top_1, deep", deep.top_1[d], t.top_1[d]->deep, rows_seen);
    if (t.top_1[d] && o.shallow > d + 1) near("top_1, shallow", shallow.top_1[d], t.top_1[d]->shallow, rows_seen);
    if (t.at_least) {
      CHECK(all.recall_prefill[d].value() >= t.recall_prefill - 0.003);
    } else {
      near("recall_prefill", all.recall_prefill[d], t.recall_prefill, all_seen);
    }
  }
  if (t.recall_percentile) {
    near("recall_percentile, deep", deep.recall_percentile[0], t.recall_percentile->deep, all_seen);
    if (o.shallow > 1) {
      near("recall_percentile, shallow", shallow.recall_percentile[0], t.recall_percentile->shallow, all_seen);
    }
    if (o.recall_percentile) near("recall_percentile", all.recall_percentile[0], *o.recall_percentile, all_seen);
  }
  near("partial_top_score", all.partial_top_score, t.partial_top_score, all_seen);
  near("partial_active", all.partial_active, t.partial_active,
       all_seen * (1 - t.low_score.value_or(0.3)) * (1 - t.partial_top_score));
}

/// Enough tokens for more than 16,000 rows of routing: statistics count rows, and each token has one in every layer.
SyntheticOptions sized(const std::string& name) {
  SyntheticOptions o;
  if (name == "mixtral-8x7b") o.sequences = 10;      // 1,920 tokens
  if (name == "qwen1.5-moe-a2.7b") o.sequences = 6;  // 1,152
  if (name == "qwen3-30b-a3b") {                     // 336
    o.sequences = 3;
    o.tokens = 48;
  }
  return o;
}

/// A row's experts, best first, by sorting.
std::vector<std::uint16_t> sorted(const float* row, std::uint32_t n) {
  std::vector<std::uint16_t> order(n);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return row[a] > row[b]; });
  return order;
}

std::set<std::uint16_t> first(const std::vector<std::uint16_t>& order, std::size_t k) {
  return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k)};
}

std::uint64_t common(const std::set<std::uint16_t>& a, const std::set<std::uint16_t>& b) {
  return static_cast<std::uint64_t>(std::count_if(a.begin(), a.end(), [&](auto e) { return b.contains(e); }));
}

/// The q-quantile as numpy defines it.
double quantile(std::vector<float> row, double q) {
  std::sort(row.begin(), row.end());
  const double at = q * static_cast<double>(row.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  return row[below] + (at - std::floor(at)) * (row[below + 1] - row[below]);
}

bool same(const Share& a, const Share& b) {
  return a.part == b.part && a.whole == b.whole;
}

/// Measures the same with sets, from scores alone.
void check_against_naive(const TraceFile& file) {
  const Trace& t = file.trace;
  const RoutingStatistics s = measure(t);
  const std::uint32_t n = t.model.experts, k = t.model.top_k;
  for (std::uint32_t l = 0; l < t.model.layers; ++l) {
    std::vector<std::vector<std::uint16_t>> order;
    for (std::uint32_t i = 0; i < t.tokens; ++i) order.push_back(sorted(t.scores_of(i, l), n));
    Share reuse, high, skip, top_k, percentile, prefill;
    for (std::uint32_t q = 0; q < t.sequences(); ++q) {
      std::set<std::uint16_t> needed, named;
      for (std::uint32_t i = t.sequence_start[q]; i < t.sequence_end(q); ++i) {
        const auto chosen = first(order[i], k);
        if (i + 1 < t.sequence_end(q)) reuse.add({common(chosen, first(order[i + 1], k)), k});
        float sum = 0, above = 0;
        for (std::uint32_t r = 0; r < k; ++r) sum += t.weight(i, l, r);
        CHECK(std::abs(sum - 1) < 1e-5F);  // both models here scale their weights
        for (std::uint32_t r = 0; r < k; ++r) {
          high.count(above / sum <= 0.6F);
          skip.count(above / sum > 0.9F);
          above += t.weight(i, l, r);
        }
        if (l == 0) continue;
        const float* row = t.predicted_of(i, l - 1, 1);
        const auto predicted = first(sorted(row, n), k);
        if (t.phase_of(i) == Phase::prefill) {
          needed.insert(chosen.begin(), chosen.end());
          named.insert(predicted.begin(), predicted.end());
          continue;
        }
        top_k.add({common(chosen, predicted), k});
        const double bar = quantile({row, row + n}, 0.75);
        for (const std::uint16_t e : chosen) percentile.count(row[e] > bar);
      }
      prefill.add({common(needed, named), needed.size()});
    }
    CAPTURE(l);
    CHECK(same(s.layers[l].reuse, reuse));
    CHECK(same(s.layers[l].high, high));
    CHECK(same(s.layers[l].skip, skip));
    CHECK(same(s.layers[l].recall_top_k[0], top_k));
    CHECK(same(s.layers[l].recall_percentile[0], percentile));
    CHECK(same(s.layers[l].recall_prefill[0], prefill));
  }
}

std::string refusal_of(const ModelFacts& facts, const SyntheticOptions& o) {
  try {
    synthesize(facts, o);
  } catch (const InputError& e) {
    return e.what();
  }
  return "not refused";
}

}  // namespace

TEST_CASE("synthetic routing: defaults come out in three large models") {
  for (const char* name : {"mixtral-8x7b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b"}) {
    check_asked(read_shape(name), sized(name));
  }
}

TEST_CASE(
    "synthetic routing: predicted rows have weights like real ones, and small prompts of few experts miss nothing") {
  SyntheticOptions o = sized("mixtral-8x7b");
  o.seed = 3;
  const auto made = synthesize(read_shape("mixtral-8x7b"), o);
  const Trace& t = made->trace;
  Share low, high;
  for (std::uint32_t i = 0; i < t.tokens; ++i) {
    for (std::uint32_t l = 0; l + 1 < t.model.layers; ++l) {
      std::vector<float> row(t.predicted_of(i, l, 1), t.predicted_of(i, l, 1) + 8);
      std::sort(row.begin(), row.end(), std::greater<>());
      for (std::size_t r = 0; r < 2; ++r) low.count(!(row[r] > 1.3F * row[2]));
      high.add({row[0] / (row[0] + row[1]) <= 0.6F ? 2U : 1U, 2});
    }
  }
  const RoutingShares all = measure(t).all();
  near("low_score", low, all.low_score.value(), calibrated(t.model));
  near("high_share", high, all.high.value(), calibrated(t.model));
  CHECK(all.recall_prefill[0].value() > 0.9988);  // 0.998 is the least that was asked for
}

TEST_CASE("synthetic routing: what recorded models had comes out in three large models") {
  for (const char* name : {"mixtral-8x7b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b"}) {
    // Much reuse and clear favourites. Predictions are as good as tiny-qwen-moe's: docs/results/predictions.md.
    SyntheticOptions o = sized(name);
    o.seed = 7;
    o.ahead = 1;
    o.reuse = 0.45;
    o.favourites = 0.36;
    o.popularity = 0.29;
    const std::uint32_t k = read_shape(name).model.top_k;
    o.high_share = k == 2 ? 0.58 : k == 4 ? 0.51 : 0.42;
    o.skip_share = k == 2 ? 0.16 : k == 4 ? 0.13 : 0.18;
    o.recall_top_k[0] = 0.683;
    o.top_1[0] = 0.613;
    o.shallow_misses = 1.5;
    o.partial_top_score = 0.95;
    o.partial_active = 0.6;
    check_asked(read_shape(name), o);
  }
}

TEST_CASE("synthetic routing: shares far above chance come out, or are refused") {
  SyntheticOptions o;
  o.sequences = 40;
  o.prompt = o.tokens = 64;
  o.ahead = 0;
  o.partial = false;
  const ModelFacts model = small_model(40, 32, 4);
  for (const auto& asked : {std::array{0.95, 0.93, 0.9}, std::array{0.7, 0.6, 0.5}}) {
    const double reuse = asked[0], favourites = asked[1], popularity = asked[2];
    CAPTURE(reuse);
    o.reuse = reuse;
    o.favourites = favourites;
    o.popularity = popularity;
    const RoutingShares all = measure(synthesize(model, o)->trace).all();
    // Half a point of the calibration's, and as much for 40 layers of popular experts.
    CHECK(std::abs(all.reuse.value() - reuse) < 0.01);
    CHECK(std::abs(all.favourites.value() - favourites) < 0.01);
    CHECK(std::abs(all.popularity.value() - popularity) < 0.01);
  }
  o.reuse = o.favourites = o.popularity = 0.99;
  CHECK(says(refusal_of(small_model(8, 8, 2), o), {"reuse 0.99 cannot be met", "the nearest is"}));
  o = {};
  o.sequences = 1U << 20U;
  CHECK(says(refusal_of(small_model(40, 128, 8), o), {"tokens would take", "--no-partial"}));
}

TEST_CASE("synthetic routing: another setting comes out in three large models") {
  for (const char* name : {"mixtral-8x7b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b"}) {
    // Hardly any reuse, sure predictions of all but the best, a poor prefill, many low-score experts.
    SyntheticOptions o = sized(name);
    o.seed = 8;
    o.ahead = 1;
    const ModelShape m = read_shape(name).model;
    o.reuse = static_cast<double>(m.top_k) / m.experts + 0.05;
    o.recall_top_k[0] = 0.9;
    o.top_1[0] = 0.6;
    if (m.experts > 8) o.recall_percentile = 0.95;
    o.recall_prefill = 0.8;
    o.shallow = 2;
    o.shallow_misses = 1.2;
    o.shallow_percentile_misses = 2;
    o.low_score = 0.4;
    o.alpha = 0.35;
    o.partial_top_score = 0.7;
    o.partial_active = 0.9;
    check_asked(read_shape(name), o);
  }
}

TEST_CASE("synthetic routing: one expert a token, where the best is all there is") {
  const ModelFacts facts = small_model(6, 16, 1);
  SyntheticOptions o;
  o.sequences = 40;
  o.ahead = 1;
  check_asked(facts, o);
  const RoutingShares all = measure(synthesize(facts, o)->trace).all();
  CHECK(same(all.top_1[0], all.recall_top_k[0]));
  CHECK(same(all.reuse_best, all.reuse));
}

TEST_CASE("synthetic routing: measured reuse, importance and recall agree with plain second implementations") {
  SyntheticOptions o;
  o.sequences = 3;
  o.prompt = 20;
  o.tokens = 21;
  o.ahead = 1;
  check_against_naive(*synthesize(read_shape("mixtral-8x7b"), o));
  o.prompt = 3;  // too few to name every expert
  o.recall_prefill = 0.7;
  check_against_naive(*synthesize(small_model(5, 33, 6), o));
}

TEST_CASE("synthetic routing: measured predictions agree with CrossLayerGate and PartialHidden") {
  SyntheticOptions o;
  o.sequences = 2;
  o.prompt = 0;
  o.tokens = 40;
  o.ahead = 1;
  const auto made = synthesize(read_shape("qwen1.5-moe-a2.7b"), o);
  const Trace& t = made->trace;
  const std::uint16_t n = t.model.experts, k = t.model.top_k;
  const Shape shape{t.model.layers, n, k, 1};
  test::Placed<CrossLayerGate> gate(shape);
  test::Placed<PartialHidden> partial(shape);
  auto named = [&](auto& predictor, const float* row) {
    std::vector<Request> memory(n);
    Out<Request> out{memory.data(), n, 0};
    predictor->predict(Phase::decode, {1, {row, n}, {row, n}}, out);
    std::set<std::uint16_t> experts;
    for (const Request& r : out.view()) experts.insert(r.want.id.expert);
    return experts;
  };
  Share percentile, top, active;
  for (std::uint32_t i = 0; i < t.tokens; ++i) {
    for (std::uint32_t l = 1; l < t.model.layers; ++l) {
      const auto candidates = named(gate, t.predicted_of(i, l - 1, 1)),
                 predicted = named(partial, t.partial_of(i, l - 1));
      const auto real = named(partial, t.scores_of(i, l));  // the same rule names the gate's own
      std::set<std::uint16_t> chosen;
      for (std::uint32_t r = 0; r < k; ++r) chosen.insert(t.expert(i, l, r));
      percentile.add({common(chosen, candidates), k});
      for (const std::uint16_t e : predicted) {
        top.count(real.contains(e));
        if (!real.contains(e)) active.count(chosen.contains(e));
      }
    }
  }
  const RoutingShares all = measure(t).all();
  CHECK(same(all.recall_percentile[0], percentile));
  CHECK(same(all.partial_top_score, top));
  CHECK(same(all.partial_active, active));
}

TEST_CASE("routing statistics: a trace counted by hand") {
  // Two layers of four experts, two a token. Sequence A: a prompt of one token, then three; sequence B: one token.
  TraceFile f;
  Trace& t = f.trace;
  t.name = "by hand";
  t.model = test::model(2, 4, 2);
  t.ahead = 1;
  f.sequence_start = {0, 4};
  f.phase = {0, 1, 1, 1, 1};
  // Layer 0 chooses {0,1} {0,2} {2,0} {1,3} | {0,1}; layer 1 {0,1} {0,1} {1,2} {3,2} | {2,3}.
  f.experts = {0, 1, 0, 1, 0, 2, 0, 1, 2, 0, 1, 2, 1, 3, 3, 2, 0, 1, 2, 3};
  // Of layer 0 the shares of the best are 0.5, 0.7, 0.95, 0.6 (exactly T1 in floats: 3 / 5), 0.8; of layer 1 all 0.5.
  f.weights = {1, 1, 1, 1, 7, 3, 1, 1, 19, 1, 1, 1, 3, 2, 1, 1, 4, 1, 1, 1};
  // Layer 1's scores, with the same ranks; beta and the bar of 1.3 beta: 1, 1.3 | 2, 2.6 | 1, 1.3 | 3, 3.9 | 1, 1.3.
  const std::vector<float> flat{4, 3, 2, 1};
  const std::vector<std::vector<float>> second = {
      {4, 2, 1, 0}, {3, 2.5F, 2, 0}, {0, 4, 2, 1}, {0, 3, 4, 5}, {0, 1, 4, 2}};
  // Predicted for it: {0,1} (a prompt), {1,0}, {1,0}, {3,1}, {2,3}.
  const std::vector<std::vector<float>> predicted = {
      {4, 3, 0, 0}, {3, 4, 0, 0}, {3, 4, 0, 0}, {0, 3, 0, 4}, {0, 0, 4, 3}};
  // By partial hidden states, of which the first two were not recorded: top-score are {1,0}, {2}, {2,3}.
  const std::vector<std::vector<float>> partial = {
      {0, 0, 0, 0}, {0, 0, 0, 0}, {3, 4, 2, 0}, {0, 2.5F, 4, 2}, {0, 1, 4, 3}};
  const std::vector<float> none(4, 0);
  for (std::size_t i = 0; i < 5; ++i) {
    for (const auto* row : {&flat, &second[i]}) f.scores.insert(f.scores.end(), row->begin(), row->end());
    for (const auto* row : {&predicted[i], &none}) f.predicted.insert(f.predicted.end(), row->begin(), row->end());
    for (const auto* row : {&partial[i], &none}) f.partial.insert(f.partial.end(), row->begin(), row->end());
  }
  f.view();
  const RoutingStatistics s = measure(t);
  const RoutingShares &a = s.layers[0], &b = s.layers[1];
  CHECK(same(a.reuse, {1 + 2 + 0, 6}));
  CHECK(same(a.reuse_best, {2, 3}));  // 0 by {0,2}, 0 by {2,0}, 2 not by {1,3}
  CHECK(same(a.reuse_any, {2, 3}));
  CHECK(same(a.favourites, {1 + 0, 4}));  // two tokens later: {0,1} by {2,0}, {0,2} by {1,3}; B is too short
  CHECK(same(b.favourites, {1 + 0, 4}));  // {0,1} by {1,2}, {0,1} by {3,2}
  // A uses 0 three times, 1 and 2 twice, 3 once; B 0 and 1 once. Ordered pairs: 2 (3 + 2) of 2 * 4 * 1 * 2.
  CHECK(same(a.popularity, {10, 16}));
  CHECK(same(b.popularity, {2 * (2 + 1), 16}));
  CHECK(same(a.high, {5 + 2, 10}));  // all the best; of the others those behind 0.5 and 0.6
  CHECK(same(a.skip, {1, 10}));      // behind 0.95
  CHECK(same(b.high, {10, 10}));
  CHECK(same(b.best_two_high, {5 + 2, 10}));  // of scores: behind 4/6, 3/5.5, 4/6, 5/9, 4/6
  CHECK(same(b.best_two_skip, {0, 10}));
  CHECK(same(b.low_score, {1, 10}));  // 2.5 below 2.6; 4 is above 3.9, and 2 above 1.3
  CHECK(same(a.recall_top_k[0], {0, 0}));
  CHECK(same(b.recall_top_k[0], {2 + 1 + 1 + 2, 8}));
  CHECK(same(b.recall_percentile[0], {1 + 1 + 1 + 1, 8}));  // of four experts one is above the 75th percentile
  CHECK(same(b.top_1[0], {3, 4}));
  CHECK(same(b.recall_prefill[0], {2, 2}));
  // {1,0} against top-score {1,2}: 1 is, 0 is not even chosen. {2} against {3,2}. {2,3} against {2,3}.
  CHECK(same(b.partial_top_score, {1 + 1 + 2, 5}));
  CHECK(same(b.partial_active, {0, 1}));
  CHECK(same(measure(t, 0.01).layers[1].low_score, {0, 10}));
  CHECK(same(s.all().reuse, {a.reuse.part + b.reuse.part, 12}));

  // Where one set of scores chooses experts and another weighs them, all counts but the shares of weights are of the former.
  f.choice_scores = std::exchange(f.scores, std::vector<float>(f.scores.size(), 1));
  f.choice_predicted = std::exchange(f.predicted, std::vector<float>(f.predicted.size(), 1));
  f.choice_partial = std::exchange(f.partial, std::vector<float>(f.partial.size(), 1));
  f.view();
  const RoutingShares apart = measure(t).layers[1];
  CHECK(same(apart.low_score, {1, 10}));
  CHECK(same(apart.recall_top_k[0], {2 + 1 + 1 + 2, 8}));
  CHECK(same(apart.recall_prefill[0], {2, 2}));
  CHECK(same(apart.partial_top_score, {1 + 1 + 2, 5}));
  CHECK(same(apart.partial_active, {0, 1}));
  CHECK(same(apart.best_two_high, {10, 10}));
}

TEST_CASE("routing statistics: what a trace does not have is counted nought of nought times") {
  TraceFile f;
  f.trace.name = "bare";
  f.trace.model = test::model(1, 4, 2);
  f.sequence_start = {0};
  f.experts = {0, 1, no_expert, no_expert, 1, 0, 2, 3};
  f.phase = {0, 0, 0, 1};
  f.view();
  const RoutingShares all = measure(f.trace).all();
  CHECK(same(all.reuse, {0, 2}));  // the second token was not recorded, so only the third has one to follow it
  for (const Share& s : {all.high, all.low_score, all.recall_top_k[0], all.partial_top_score, all.popularity}) {
    CHECK(same(s, {0, 0}));
    CHECK(std::isnan(s.value()));
  }
  CHECK(same(all.favourites, {2, 2}));  // the first by the third; the second and what follows it were not recorded
  f.sequence_start = {0, 1};            // three tokens and fewer have no half
  f.view();
  CHECK(same(measure(f.trace).all().favourites, {0, 0}));
}

TEST_CASE("synthetic routing: the chosen are the best of the scores, and rows are where a recording has them") {
  for (const bool steep : {false, true}) {
    const bool renormalise = steep;
    ModelFacts facts = small_model(6, 20, 3);
    facts.model.renormalise = renormalise_if(renormalise);
    SyntheticOptions o;
    o.sequences = 3;
    o.prompt = 5;
    o.tokens = 7;
    if (steep) {  // weights that fall so fast that floats tie behind the first
      o.high_share = 0.34;
      o.skip_share = 0.65;
      o.partial_top_score = 0.95;
      o.partial_active = 0.5;
    }
    const auto made = synthesize(facts, o);
    const Trace& t = made->trace;
    CHECK_NOTHROW(t.validate());
    CHECK(t.tokens == 36);
    CHECK(t.model.renormalises() == renormalise);
    CHECK(made->sequence_start == std::vector<std::uint32_t>{0, 12, 24});
    auto row_is_zero = [&](const float* row) { return std::all_of(row, row + 20, [](float x) { return x == 0; }); };
    for (std::uint32_t i = 0; i < t.tokens; ++i) {
      CHECK(t.phase_of(i) == (i % 12 < 5 ? Phase::prefill : Phase::decode));
      for (std::uint32_t l = 0; l < 6; ++l) {
        const float* row = t.scores_of(i, l);
        const std::vector<std::uint16_t> order = sorted(row, 20);
        float chosen = 0;
        for (std::uint32_t r = 0; r < 3; ++r) chosen += row[order[r]];
        for (std::uint32_t r = 0; r < 3; ++r) {
          CHECK(t.expert(i, l, r) == order[r]);
          CHECK(t.weight(i, l, r) == (renormalise ? row[order[r]] / chosen : row[order[r]]));
        }
        CHECK(std::abs(std::accumulate(row, row + 20, 0.0) - 1) < 1e-5);
        for (std::uint32_t d = 1; d <= 3; ++d) CHECK(row_is_zero(t.predicted_of(i, l, d)) == (l + d >= 6));
        CHECK(row_is_zero(t.partial_of(i, l)) == (l == 5 || t.phase_of(i) == Phase::prefill));
      }
    }
  }
}

TEST_CASE("synthetic routing: scores are a softmax of whole logits") {
  // Each is e^y / sum with y a multiple of 2^-16: so are the differences of their logarithms.
  SyntheticOptions o;
  o.sequences = 1;
  o.tokens = 20;
  o.shallow = 1;
  const auto made = synthesize(small_model(3, 9, 2), o);
  for (const float* row :
       {made->trace.scores_of(70, 1), made->trace.predicted_of(70, 1, 1), made->trace.partial_of(70, 1)}) {
    for (std::uint32_t e = 1; e < 9; ++e) {
      const double steps = std::log(static_cast<double>(row[e]) / row[0]) * 65536;
      CHECK(std::abs(steps - std::round(steps)) < 0.2);
    }
  }
}

TEST_CASE("synthetic routing: the same seed gives the same bytes, another seed others, more sequences the same first") {
  const ModelFacts facts = small_model(8, 12, 2);
  SyntheticOptions o;
  o.sequences = 2;
  o.prompt = 9;
  o.tokens = 15;
  o.ahead = 2;
  const auto a = synthesize(facts, o), b = synthesize(facts, o);
  CHECK(a->experts == b->experts);
  CHECK(a->weights == b->weights);
  CHECK(a->scores == b->scores);
  CHECK(a->predicted == b->predicted);
  CHECK(a->partial == b->partial);

  SyntheticOptions other = o;
  other.seed = 1;
  const auto c = synthesize(facts, other);
  CHECK(c->experts != a->experts);
  CHECK(c->predicted != a->predicted);
  CHECK(c->source == "synthetic, seed 1");

  // Without popularity and favourites, only the tokens' own draws are left.
  other = o;
  other.reuse = 0.166667;
  SyntheticOptions another = other;
  another.seed = 1;
  CHECK(synthesize(facts, other)->experts != synthesize(facts, another)->experts);

  // Neither the quality of predictions nor the number of sequences changes what is chosen.
  other = o;
  other.sequences = 3;
  other.ahead = 1;
  other.recall_top_k[0] = 0.9;
  other.partial = false;
  const auto d = synthesize(facts, other);
  CHECK(std::equal(a->experts.begin(), a->experts.end(), d->experts.begin()));
  CHECK(std::equal(a->scores.begin(), a->scores.end(), d->scores.begin()));
  CHECK(d->partial.empty());
  CHECK_FALSE(std::equal(a->experts.begin(), a->experts.begin() + a->experts.size() / 2,
                         a->experts.begin() + a->experts.size() / 2));  // sequences differ
}

TEST_CASE("synthetic routing: prompts alone, decode alone, nothing predicted") {
  const ModelFacts facts = small_model(6, 12, 2);
  SyntheticOptions o;
  o.sequences = 30;
  o.tokens = 0;
  o.ahead = 2;
  RoutingShares all = measure(synthesize(facts, o)->trace).all();
  CHECK(all.recall_top_k[0].whole == 0);
  CHECK(all.recall_prefill[1].whole > 0);
  o = {};
  o.ahead = 0;
  o.prompt = 0;
  const auto made = synthesize(facts, o);
  CHECK(made->trace.ahead == 0);
  CHECK(made->predicted.empty());
  CHECK(made->phase == std::vector<std::uint8_t>(8 * 128, 1));
  CHECK(measure(made->trace).all().partial_top_score.whole > 0);
  // Prompts of one token: wrong experts in a row are replaced by needed ones, in all but two of a thousand.
  o = {};
  o.ahead = 1;
  o.sequences = 1000;
  o.prompt = 1;
  o.tokens = 1;
  CHECK(measure(synthesize(facts, o)->trace).all().recall_prefill[0].value() > 0.993);
  // One layer has nothing to predict.
  o = {};
  o.shallow = 0;
  CHECK(measure(synthesize(small_model(1, 12, 2), o)->trace).all().recall_top_k[0].whole == 0);
}

TEST_CASE("synthetic routing: what cannot be is refused by name, with what would work") {
  const ModelFacts mixtral = small_model(10, 8, 2), fine = small_model(10, 24, 3);
  SyntheticOptions o;
  auto with = [](auto set) {
    SyntheticOptions options;
    set(options);
    return options;
  };
  using O = SyntheticOptions&;
  CHECK(says(refusal_of(small_model(4, 2, 2), o), {"always chooses all of its 2 experts"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.sequences = 0; })), {"no tokens"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.ahead = 5; })), {"ahead is 5", "at most 4"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.shallow = 10; })), {"shallow is 10 of 10 layers", "at most 9"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.reuse = 0.2; })), {"reuse is 0.2", "0.25 to 0.99"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.favourites = 0.5; })), {"favourites is 0.5", "0.25 to 0.4"}));
  CHECK(
      says(refusal_of(mixtral, with([](O x) { x.popularity = std::nan(""); })), {"popularity is nan", "0.25 to 0.34"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.reuse = 0.95, x.favourites = 0.3; })),
             {"reuse 0.95 fades too slowly for favourites 0.3", "192 tokens", "longer sequences"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.recall_percentile = 0.97; })),
             {"recall_percentile 0.97", "of 8 experts 2", "k = 2", "leave it unset"}));
  CHECK(says(refusal_of(fine, with([](O x) { x.recall_percentile = 0.7; })),
             {"recall_percentile 1 layer ahead", "with recall_top_k", "the nearest is"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.recall_top_k[0] = 0.5; })), {"recall_top_k 1 layer ahead", "top_1"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.recall_top_k[1] = 1.5; })), {"recall_top_k[1] is 1.5", "0 to 1"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.top_1[2] = 0.1, x.shallow_misses = 9; })),
             {"[2] is", "shallow_misses 9", "shallow layers would miss more than all", "expected at most"}));
  CHECK(says(refusal_of(mixtral, with([](O x) { x.high_share = 0.9, x.skip_share = 0.09; })),
             {"skip_share 0.09 cannot be met with k = 2 and high_share 0.9", "the nearest is"}));
  CHECK(says(refusal_of(fine, with([](O x) { x.high_share = 0.8; })), {"high_share 0.8", "k = 3", "nearest is 0.667"}));
  CHECK(says(refusal_of(fine, with([](O x) { x.low_score = 0.9; })), {"low_score 0.9", "the nearest is"}));
  CHECK(says(refusal_of(fine, with([](O x) { x.alpha = 0; })), {"alpha is 0", "0.05 to 1"}));
  CHECK(says(refusal_of(fine, with([](O x) { x.shallow_misses = 0; })), {"shallow_misses is 0", "0.01 to 100"}));
  CHECK(says(refusal_of(fine, with([](O x) { x.recall_prefill = -0.5; })), {"recall_prefill is -0.5"}));
  const ModelFacts one = small_model(10, 16, 1);
  CHECK(says(refusal_of(one, with([](O x) { x.top_1[0] = 0.9; })), {"top_1[0]", "k = 1", "recall_top_k"}));
  CHECK(says(refusal_of(one, with([](O x) { x.high_share = 0.9; })), {"high_share", "k = 1", "leave them unset"}));
  CHECK(says(refusal_of(one, with([](O x) { x.low_score = 0.1; })), {"low_score", "k = 1"}));
}

TEST_CASE("who is told to stop makes no routing, from before the first row on") {
  SyntheticOptions o;
  o.sequences = 2;
  o.prompt = o.tokens = 4;
  o.shallow = 1;
  std::uint64_t asked = 0, first_layer = 0;
  o.progress = [&](std::uint64_t done, std::uint64_t /*all*/) {
    ++asked;
    first_layer += done == 0 ? 1 : 0;
    return true;
  };
  REQUIRE(synthesize(small_model(3, 9, 2), o) != nullptr);
  CHECK(first_layer > 3);  // also asked while the distribution is fitted
  for (std::uint64_t stop = 1, end = asked; stop <= end; ++stop) {
    asked = 0;
    o.progress = [&](std::uint64_t /*done*/, std::uint64_t /*all*/) { return ++asked < stop; };
    CHECK(synthesize(small_model(3, 9, 2), o) == nullptr);
    CHECK(asked <= stop + 1);  // asked once more where rows begin
  }
}
