#include "trace/synthetic_targets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "ferry/predictor/cross_layer_gate.hpp"
#include "trace/synthetic_rows.hpp"

namespace ferry::engine {
namespace {

using namespace synthetic;

std::string indexed(const char* knob, std::size_t i) {
  return fmt::format("{}[{}]", knob, i);
}

/// An option's share, in ppm. Refuses values out of range.
std::int64_t share(const std::string& knob, double value, double low = 0, double high = 1) {
  if (!(value >= low && value <= high)) refuse(fmt::format("{} is {}, expected {} to {}", knob, value, low, high));
  return to_ppm(value);
}

/// Splits a mean so that shallow layers miss `times` as often as deep ones.
SyntheticTargets::ByDepth by_depth(const std::string& knob, double mean, std::uint32_t layers, std::uint32_t shallow,
                                   const char* times_knob, double times) {
  const std::int64_t misses = (ppm - share(knob, mean)) * layers, deep_layers = layers - shallow;
  const std::int64_t milli = shallow == 0 ? 1000 : std::llround(times * 1000);
  const std::int64_t deep = misses * 1000 / (1000 * deep_layers + milli * shallow), miss = deep * milli / 1000;
  if (miss > ppm || deep > ppm) {
    const double most = static_cast<double>(deep_layers) / (from_ppm(misses) - shallow);
    refuse(fmt::format("{} is {} with {} {}: {} layers would miss more than all; {}", knob, mean, times_knob, times,
                       miss > ppm ? "shallow" : "deep",
                       miss > ppm ? fmt::format("expected at most {:.2f}", most) : "expected more"));
  }
  return {from_ppm(ppm - miss), from_ppm(ppm - deep)};
}

}  // namespace

SyntheticTargets synthetic_targets(const ModelFacts& shape, const SyntheticOptions& o) {
  const ModelShape& m = shape.model;
  const std::uint32_t k = m.top_k, experts = m.experts, layers = m.layers;
  if (k >= experts) refuse(fmt::format("{} always chooses all of its {} experts", shape.name, experts));
  if (o.sequences == 0 || o.prompt + std::uint64_t{o.tokens} == 0) refuse("no tokens are asked for");
  if ((o.prompt + std::uint64_t{o.tokens}) * o.sequences > 0x7fffffffU) refuse("more than 2^31 tokens are asked for");
  if (o.ahead > most_ahead) refuse(fmt::format("ahead is {}, expected at most {}", o.ahead, most_ahead));
  if (o.shallow >= layers && o.shallow > 0 && layers > 1) {
    refuse(fmt::format("shallow is {} of {} layers, expected at most {}", o.shallow, layers, layers - 1));
  }
  share("alpha", o.alpha, 0.05, 1);
  SyntheticTargets t;

  // Reuse.
  const std::int64_t chance = ppm * k / experts;
  auto above_chance = [&](std::int64_t tenths_of_percent, std::int64_t upto) {
    return from_ppm(chance + (upto - chance) * tenths_of_percent / 1000);
  };
  t.reuse = o.reuse.value_or(above_chance(200, ppm));
  t.favourites = o.favourites.value_or(above_chance(600, to_ppm(t.reuse)));
  t.popularity = o.popularity.value_or(above_chance(400, to_ppm(t.favourites)));
  share("reuse", t.reuse, from_ppm(chance), 0.99);
  share("favourites", t.favourites, from_ppm(chance), t.reuse);
  share("popularity", t.popularity, from_ppm(chance), t.favourites);

  // Weights.
  if (k == 1 && (o.high_share || o.skip_share)) {
    refuse("high_share and skip_share: with k = 1 the only chosen expert is always important; leave them unset");
  }
  t.of_best_two = k == 1;
  const std::int64_t equal = ppm * (k * 3 / 5 + 1) / k;  // share of experts with s <= 0.6 if all weights are equal
  t.high_share = o.high_share.value_or(k > 2 ? from_ppm(equal * 3 / 4) : 0.67);
  t.skip_share = o.skip_share;
  if (!t.skip_share && k <= 2) t.skip_share = 0.03;
  share("high_share", t.high_share, t.of_best_two ? 0.5 : from_ppm(ppm / k));
  if (t.skip_share) share("skip_share", *t.skip_share, 0, 1 - t.high_share);
  t.low_score = o.low_score;
  if (t.low_score) share("low_score", *t.low_score);
  if (t.low_score && k == 1) refuse("low_score: with k = 1 it follows from the other weights");

  // Predictions.
  if (!(o.shallow_misses >= 0.01 && o.shallow_misses <= 100)) {
    refuse(fmt::format("shallow_misses is {}, expected 0.01 to 100", o.shallow_misses));
  }
  if (!(o.shallow_percentile_misses >= 0.01 && o.shallow_percentile_misses <= 100)) {
    refuse(fmt::format("shallow_percentile_misses is {}, expected 0.01 to 100", o.shallow_percentile_misses));
  }
  constexpr double best[most_ahead] = {0.96, 0.9, 0.9, 0.9};
  for (std::uint32_t d = 1; d <= o.ahead && d < layers; ++d) {
    const std::uint32_t shallow = o.shallow_predicted(d);
    t.recall_top_k[d - 1] = by_depth(indexed("recall_top_k", d - 1), o.recall_top_k[d - 1], layers - d, shallow,
                                     "shallow_misses", o.shallow_misses);
    if (o.top_1[d - 1] && k == 1) refuse(indexed("top_1", d - 1) + ": with k = 1 it is recall_top_k");
    if (k == 1) continue;
    t.top_1[d - 1] = by_depth(indexed("top_1", d - 1), o.top_1[d - 1].value_or(best[d - 1]), layers - d, shallow,
                              "shallow_misses", o.shallow_misses);
  }
  const std::uint32_t named = CrossLayerGate{}.candidates(m.experts);
  if (o.recall_percentile && named <= k) {
    refuse(
        fmt::format("recall_percentile {}: of {} experts {} lie above the 75th percentile, no more than k = {}, so "
                    "that it follows from recall_top_k; leave it unset",
                    *o.recall_percentile, experts, named, k));
  }
  if (named > k && o.ahead > 0 && layers > 1) {
    t.recall_percentile = by_depth("recall_percentile", o.recall_percentile.value_or(0.9715), layers - 1,
                                   o.shallow_predicted(1), "shallow_percentile_misses", o.shallow_percentile_misses);
    if (!o.recall_percentile) {
      auto half = [](double& percentile, double top_k) {
        percentile = std::max(percentile, from_ppm((ppm + to_ppm(top_k)) / 2));
      };
      half(t.recall_percentile->shallow, t.recall_top_k[0].shallow);
      half(t.recall_percentile->deep, t.recall_top_k[0].deep);
    }
  }
  t.recall_prefill = o.recall_prefill.value_or(0.998);
  t.at_least = !o.recall_prefill;
  share("recall_prefill", t.recall_prefill);
  t.partial_top_score = o.partial_top_score.value_or(0.82);
  t.partial_active = o.partial_active.value_or(0.95);
  share("partial_top_score", t.partial_top_score, 0.01);
  share("partial_active", t.partial_active);
  return t;
}

}  // namespace ferry::engine
