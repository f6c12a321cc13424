#include "trace/synthetic_calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ferry/predictor/cross_layer_gate.hpp"

namespace ferry::engine::synthetic {
namespace {

/// What rows with so much noise would predict, in counts.
struct Recalled {
  std::int64_t first = 0;  ///< rows whose best is predicted as the best
  std::int64_t found = 0;  ///< of the chosen, those among the k best predicted
  std::int64_t gain = 0;   ///< by how much `found` grows if every best is made the best predicted
};

/// Choices to calibrate on: rows as they are made, and noise to mix into them.
class Sample {
 public:
  std::uint32_t experts, k, rows;
  std::vector<Latent> latents, noise;  ///< [rows, experts]
  std::vector<std::uint16_t> order;    ///< [rows, k + 1]
  std::vector<Latent> gap;             ///< [rows, k]

  Sample(const ModelShape& shape, const Mixture& m)
      : experts(shape.experts), k(shape.top_k), rows(std::clamp(32768U / k, 1U, 8192U)) {
    Draws draws(0, Stream::calibration, 1, 0);
    latents.resize(std::size_t{rows} * experts);
    noise.resize(latents.size());
    order.resize(std::size_t{rows} * (k + 1U));
    const Dealer dealer(experts);
    for (std::uint32_t r = 0; r < rows; ++r) {
      const std::vector<std::int64_t> model = dealer.deal(draws), own = dealer.deal(draws);
      for (std::uint32_t e = 0; e < experts; ++e) {
        const std::int64_t token = draws.normal();
        const std::size_t at = std::size_t{r} * experts + e;
        latents[at] = static_cast<Latent>((m.model * model[e] + m.sequence * own[e] + m.token * token) >> q15_bits);
        noise[at] = draws.normal();
      }
    }
    gap.resize(std::size_t{rows} * k);
    for (std::uint32_t r = 0; r < rows; ++r) {
      rank(row(r), experts, k + 1U, order.data() + std::size_t{r} * (k + 1U));
      gaps(row(r), best(r), k, gap.data() + std::size_t{r} * k);
    }
  }

  [[nodiscard]] const Latent* row(std::uint32_t r) const { return latents.data() + std::size_t{r} * experts; }
  [[nodiscard]] const Latent* noise_of(std::uint32_t r) const { return noise.data() + std::size_t{r} * experts; }
  [[nodiscard]] const std::uint16_t* best(std::uint32_t r) const { return order.data() + std::size_t{r} * (k + 1U); }
  [[nodiscard]] const Latent* gaps_of(std::uint32_t r) const { return gap.data() + std::size_t{r} * k; }
  [[nodiscard]] std::int64_t choices() const { return std::int64_t{rows} * k; }

  /// The rows with so much noise, ranked: calls `each(r, mixed row, its k + 1 best)`.
  template <class Each>
  void mixed(std::int64_t with, const Each& each) const {
    std::vector<Latent> out(experts);
    std::vector<std::uint16_t> found(k + 1U);
    const std::int64_t keep = other_part(with);
    for (std::uint32_t r = 0; r < rows; ++r) {
      mix(row(r), keep, noise_of(r), with, experts, out.data());
      rank(out.data(), experts, k + 1U, found.data());
      each(r, out.data(), found.data());
    }
  }

  const Recalled& recalled(std::int64_t with) const {
    const auto [at, is_new] = known_.try_emplace(with);
    Recalled& n = at->second;
    if (!is_new) return n;
    mixed(with, [&](std::uint32_t r, const Latent*, const std::uint16_t* found_best) {
      for (std::uint32_t i = 0; i < k; ++i) n.found += has(best(r), k, found_best[i]) ? 1 : 0;
      n.first += found_best[0] == best(r)[0] ? 1 : 0;
      n.gain += !has(found_best, k, best(r)[0]) && !has(best(r), k, found_best[k - 1]) ? 1 : 0;
    });
    return n;
  }

 private:
  mutable std::map<std::int64_t, Recalled> known_;  ///< by noise, since knobs with equal values need the same
};

/// The noise, in q15, at which `excess` falls through 0. Searches among 64 amounts, which are the same for all knobs, then
/// interpolates between two of them. Amounts are evenly spaced in the noise up to the middle, then in what is kept.
template <class Excess>
std::int64_t noise_at_zero(const Excess& excess) {
  const std::int64_t middle = root(q15 * q15 / 2), step = middle / 32;
  auto noise = [&](std::int64_t x) { return x <= middle ? x : other_part(std::max<std::int64_t>(0, 2 * middle - x)); };
  std::int64_t low = largest(0, 64, [&](std::int64_t i) { return excess(noise(i * step)) >= 0; }) * step;
  std::int64_t high = low + step, here = excess(noise(low)), there = excess(noise(high));
  for (int line = 0; line < 2 && here > 0 && there < 0; ++line) {
    const std::int64_t x = low + (high - low) * here / (here - there), value = excess(noise(x));
    (value < 0 ? high : low) = x;
    (value < 0 ? there : here) = value;
  }
  return noise(-there < here ? high : low);
}

/// The correlation of two rows, in q15, that share so many of their k best.
std::int64_t correlation(const Sample& sample, double share) {
  // Counts relative to chance, so that it does not matter how many this sample happens to share by chance.
  const std::int64_t chance = ppm * sample.k / sample.experts, by_chance = sample.recalled(q15).found;
  return other_part(noise_at_zero([&](std::int64_t noise) {
    return (sample.recalled(noise).found - by_chance) * (ppm - chance) -
           (to_ppm(share) - chance) * (sample.choices() - by_chance);
  }));
}

/// Whether a knob is met: to half a point.
bool is_near(double met, double asked) {
  return std::abs(met - asked) <= 0.005;
}

/// Refuses what the calibration has missed.
void need(const std::string& knob, double asked, double met, const std::string& with) {
  if (is_near(met, asked)) return;
  refuse(fmt::format("{} {} cannot be met{}: the nearest is {:.3f}", knob, asked, with, met));
}
void need(const std::string& knob, double asked, std::int64_t part, std::int64_t whole, const std::string& with) {
  need(knob, asked, from_ppm(part * ppm / whole), with);
}

/// Shares of a token's k best that are also another token's: of the next one, of one half a sequence later, and of one of
/// another sequence.
struct Shares {
  double next, later, others;
};

/// The correlation that is left of what changes from token to token, half a sequence later.
std::int64_t left_of(std::int64_t keep, std::uint32_t tokens) {
  const std::uint32_t half = tokens / 2;
  std::int64_t product = half < 2 ? 0 : q15 * q15;
  for (std::uint32_t i = 0; i < half && product > 0; ++i) product = product * keep / q15;
  return product / q15;
}

/// Two tokens of different sequences, half a sequence apart, and next to each other shall correlate as `aim` says. `t`: what
/// is asked for, for messages.
Mixture mixture_for(const Sample& sample, const Shares& aim, const SyntheticTargets& t, std::uint32_t tokens) {
  const std::int64_t next = correlation(sample, aim.next), far = correlation(sample, aim.later);
  const std::int64_t others = correlation(sample, aim.others);
  // lasting + (1 - lasting) keep = next, lasting + (1 - lasting) keep^half = far
  const std::int64_t keep = largest(
      0, q15 - 1, [&](std::int64_t x) { return (q15 - x) * (q15 - far) >= (q15 - next) * (q15 - left_of(x, tokens)); });
  const std::int64_t left = left_of(keep, tokens);
  const std::int64_t lasting = (far - left) * q15 / (q15 - left);
  if (keep == q15 - 1 || lasting + q15 / 100 < others) {
    refuse(
        fmt::format("reuse {} fades too slowly for favourites {} half a sequence of {} tokens later: ask for longer "
                    "sequences, less reuse, or more favourites",
                    t.reuse, t.favourites, tokens));
  }
  const std::int64_t own = std::max<std::int64_t>(0, lasting - others);
  return {root(others * q15), root(own * q15), root((q15 - others - own) * q15), keep, other_part(keep)};
}

/// The shares that rows of such a mixture have, counted. What lasts is dealt, not drawn, so that they are not quite those of
/// normal rows with the same correlations: the more popular experts are, the more.
Shares shares_of(const ModelShape& shape, const Mixture& m, std::uint32_t tokens) {
  const std::uint32_t n = shape.experts, k = shape.top_k, pairs = std::clamp(131072U / k, 1U, 32768U);
  const std::int64_t kept = left_of(m.keep, tokens), fresh = other_part(kept);
  const Dealer dealer(n);
  Draws draws(0, Stream::calibration, 2, 0);
  std::vector<std::int64_t> here(n), next(n), later(n), elsewhere(n);
  std::vector<Latent> row(n);
  std::vector<std::uint16_t> best(k), other(k);
  const auto make = [&](const auto& model, const auto& own, const auto& token, std::vector<std::uint16_t>& found) {
    for (std::uint32_t e = 0; e < n; ++e) {
      row[e] = static_cast<Latent>((m.model * model[e] + m.sequence * own[e] + m.token * token[e]) >> q15_bits);
    }
    rank(row.data(), n, k, found.data());
  };
  std::int64_t found[3] = {};
  for (std::uint32_t p = 0; p < pairs; ++p) {
    const std::vector<std::int64_t> model = dealer.deal(draws), own = dealer.deal(draws), others = dealer.deal(draws);
    for (std::uint32_t e = 0; e < n; ++e) {
      here[e] = draws.normal();
      next[e] = (m.keep * here[e] + m.fresh * draws.normal()) >> q15_bits;
      later[e] = (kept * here[e] + fresh * draws.normal()) >> q15_bits;
      elsewhere[e] = draws.normal();
    }
    make(model, own, here, best);
    const auto count = [&](std::int64_t& shared) {
      for (const std::uint16_t e : other) shared += has(best.data(), k, e) ? 1 : 0;
    };
    make(model, own, next, other);
    count(found[0]);
    make(model, own, later, other);
    count(found[1]);
    make(model, others, elsewhere, other);
    count(found[2]);
  }
  const auto share = [&](std::int64_t shared) { return from_ppm(shared * ppm / (std::int64_t{pairs} * k)); };
  return {share(found[0]), share(found[1]), share(found[2])};
}

/// The mixture that has the shares which are asked for: where a first one misses them, another aims beside them by as much.
Mixture mixture(const ModelShape& shape, const Sample& sample, const SyntheticTargets& t, std::uint32_t tokens) {
  Shares aim{t.reuse, t.favourites, t.popularity};
  for (std::uint32_t again = 0;; ++again) {
    const Mixture m = mixture_for(sample, aim, t, tokens);
    const Shares met = shares_of(shape, m, tokens);
    const bool all =
        is_near(met.next, t.reuse) && is_near(met.later, t.favourites) && is_near(met.others, t.popularity);
    if (!all && again < 8) {
      const auto nearer = [&](double& value, double asked, double found) {
        value = std::clamp(value + asked - found, from_ppm(ppm * shape.top_k / shape.experts), 0.999);
      };
      nearer(aim.next, t.reuse, met.next);
      nearer(aim.later, t.favourites, met.later);
      nearer(aim.others, t.popularity, met.others);
      // A token is never less like the next one than like those far away.
      aim.later = std::min(aim.later, aim.next);
      aim.others = std::min(aim.others, aim.later);
      continue;
    }
    need("reuse", t.reuse, met.next, "");
    need("favourites", t.favourites, met.later, fmt::format(" with reuse {}", t.reuse));
    need("popularity", t.popularity, met.others, fmt::format(" with favourites {}", t.favourites));
    return m;
  }
}

struct Groups {
  std::int64_t high = 0, skip = 0, whole = 0;
};

/// HOBBIT's groups of the sample: by all k, or by the best two scores.
Groups groups(const Sample& sample, const ScoreMap& map, bool of_best_two) {
  const std::uint32_t k = sample.k, count = of_best_two ? 2 : k;
  Groups g;
  std::vector<std::int64_t> heights(k + 1U, 0);
  std::vector<std::uint64_t> weights(count);
  for (std::uint32_t r = 0; r < sample.rows; ++r) {
    map.heights(sample.gaps_of(r), k, heights.data());
    std::uint64_t sum = 0, above = 0;
    for (std::uint32_t i = 0; i < count; ++i) sum += weights[i] = exp_minus(heights[0] - heights[i]);
    for (std::uint32_t i = 0; i < count; ++i) {
      g.high += above * 5 <= sum * 3 ? 1 : 0;
      g.skip += above * 10 > sum * 9 ? 1 : 0;
      above += weights[i];
    }
    g.whole += count;
  }
  return g;
}

std::int64_t low_scores(const Sample& sample, const ScoreMap& map, std::int64_t bar) {
  std::vector<std::int64_t> heights(sample.k);
  std::int64_t low = 0;
  for (std::uint32_t r = 0; r < sample.rows; ++r) {
    map.heights(sample.gaps_of(r), sample.k, heights.data());
    low += std::count_if(heights.begin(), heights.end(), [&](std::int64_t h) { return h <= bar; });
  }
  return low;
}

ScoreMap score_map(const Sample& sample, const SyntheticTargets& t, double alpha) {
  // Sharpness to a 500th of a nat, and up to 32; bend to a 128th, and up to 16 either way.
  constexpr std::int64_t fine = nat / 512, coarse = q16 / 128;
  auto sharpened = [&](std::int64_t bend) {
    ScoreMap m;
    m.bend = bend * coarse;
    m.sharpness = fine * largest(1, 32 * nat / fine, [&](std::int64_t x) {
                    m.sharpness = x * fine;
                    const Groups g = groups(sample, m, t.of_best_two);
                    return g.high * ppm >= to_ppm(t.high_share) * g.whole;
                  });
    return m;
  };
  ScoreMap map = sharpened(0);
  if (t.skip_share) {
    map = sharpened(largest(-16 * q16 / coarse, 16 * q16 / coarse, [&](std::int64_t bend) {
      const Groups g = groups(sample, sharpened(bend), t.of_best_two);
      return g.skip * ppm <= to_ppm(*t.skip_share) * g.whole;
    }));
  }
  const Groups g = groups(sample, map, t.of_best_two);
  const std::string with = fmt::format(" with k = {}", sample.k);
  need("high_share", t.high_share, g.high, g.whole, with);
  if (t.skip_share) {
    need("skip_share", *t.skip_share, g.skip, g.whole, fmt::format("{} and high_share {}", with, t.high_share));
  }
  if (t.low_score) {
    const std::int64_t bar = log_bar(alpha);
    map.last = largest(0, 64 * q16, [&](std::int64_t x) {
      ScoreMap m = map;
      m.last = x;
      return low_scores(sample, m, bar) * ppm >= to_ppm(*t.low_score) * sample.choices();
    });
    need("low_score", *t.low_score, low_scores(sample, map, bar), sample.choices(), " with these importance groups");
  }
  return map;
}

/// The chosen experts that are not among the k best predicted: those that are candidates, and the others. Each counts a
/// million.
std::pair<std::int64_t, std::int64_t> missed(const Sample& sample, const PredictionModel& f, std::uint32_t named) {
  std::int64_t near = 0, far = 0;
  sample.mixed(f.noise, [&](std::uint32_t r, Latent* row, std::uint16_t* found) {
    const std::uint16_t* best = sample.best(r);
    auto count = [&](std::int64_t chance) {
      for (std::uint32_t i = 0; i < sample.k; ++i) {
        const std::uint32_t at = rank_of(row, sample.experts, best[i]);
        if (at >= sample.k) (at < named ? near : far) += chance;
      }
    };
    const std::int64_t promoted = found[0] == best[0] ? 0 : f.promote;
    count(ppm - promoted);
    if (promoted == 0) return;
    promote(best[0], sample.k, row, found);
    count(promoted);
  });
  return {near, far};
}

/// `place`: which of the knobs' values, for messages.
PredictionModel prediction_model(const Sample& sample, std::uint32_t named, double top_k, std::optional<double> top_1,
                                 std::optional<double> percentile, const std::string& place) {
  // Chance of correcting the best, so that top 1 is met where noise alone misses it.
  auto chance = [&](const Recalled& n) {
    if (!top_1 || n.first == sample.rows) return std::int64_t{0};
    return std::max<std::int64_t>(0, (to_ppm(*top_1) * sample.rows - n.first * ppm) / (sample.rows - n.first));
  };
  PredictionModel f;
  f.noise = noise_at_zero([&](std::int64_t noise) {
    const Recalled& n = sample.recalled(noise);
    return n.found * ppm + n.gain * chance(n) - to_ppm(top_k) * sample.choices();
  });
  f.keep = other_part(f.noise);
  const Recalled& n = sample.recalled(f.noise);
  f.promote = chance(n);
  if (top_1 && n.first * ppm > to_ppm(*top_1) * sample.rows) {
    f.demote = (n.first * ppm - to_ppm(*top_1) * sample.rows) / n.first;
  }
  need("recall_top_k" + place, top_k, n.found + n.gain * f.promote / ppm, sample.choices(),
       top_1 ? fmt::format(" with top_1 {}", *top_1) : "");
  if (!percentile) return f;

  const auto [near, far] = missed(sample, f, named);
  const std::int64_t allowed = (ppm - to_ppm(*percentile)) * sample.choices();
  if (far > allowed) f.inside = (far - allowed) / (far / ppm);
  if (far < allowed && near > ppm) f.outside = std::min(ppm, (allowed - far) / (near / ppm));
  need("recall_percentile" + place, *percentile,
       sample.choices() - (far - far / ppm * f.inside + near / ppm * f.outside) / ppm, sample.choices(),
       fmt::format(" with recall_top_k {}", top_k));
  return f;
}

PartialPrediction partial_prediction(const Sample& sample, const ScoreMap& map, const SyntheticOptions& o,
                                     const SyntheticTargets& t) {
  const std::int64_t bar = log_bar(o.alpha), top = to_ppm(t.partial_top_score), active = to_ppm(t.partial_active);
  // Experts predicted as top-score that are top-score, low-score or not chosen; and low-score ones not above the bar.
  struct Counts {
    std::int64_t top = 0, low = 0, none = 0, low_below = 0;
  };
  std::vector<std::uint32_t> tops;
  std::vector<std::int64_t> heights(sample.k);
  std::vector<Latent> gap(sample.k);
  for (std::uint32_t r = 0; r < sample.rows; ++r) {
    map.heights(sample.gaps_of(r), sample.k, heights.data());
    tops.push_back(top_scores(heights.data(), sample.k, bar));
  }
  auto count = [&](std::int64_t noise) {
    Counts n;
    sample.mixed(noise, [&](std::uint32_t r, const Latent* row, const std::uint16_t* found) {
      gaps(row, found, sample.k, gap.data());
      map.heights(gap.data(), sample.k, heights.data());
      for (std::uint32_t i = 0; i < sample.k; ++i) {
        const std::uint16_t* best = sample.best(r);
        const bool above = heights[i] > bar, is_top = has(best, tops[r], found[i]);
        const bool is_low = !is_top && has(best, sample.k, found[i]);
        n.top += above && is_top ? 1 : 0;
        n.low += above && is_low ? 1 : 0;
        n.none += above && !is_top && !is_low ? 1 : 0;
        n.low_below += !above && is_low ? 1 : 0;
      }
    });
    return n;
  };
  // If there are too few low-score experts for the top-score ones, some of the latter are lowered.
  auto top_kept = [&](const Counts& n) {
    if (top == ppm || active == 0) return n.top;
    return std::min(n.top, (n.low + n.low_below) * top * ppm / ((ppm - top) * active));
  };
  PartialPrediction f;
  f.noise = noise_at_zero([&](std::int64_t noise) {
    const Counts n = count(noise);
    return top_kept(n) * (ppm - top) / ppm * (ppm - active) - n.none * top;
  });
  f.keep = other_part(f.noise);
  const Counts n = count(f.noise);
  const std::int64_t tops_kept = top_kept(n), low = tops_kept * (ppm - top) / top * active / ppm;
  if (n.top > 0) f.lower_top = (n.top - tops_kept) * ppm / n.top;
  if (low > n.low && n.low_below > 0) f.raise = std::min(ppm, (low - n.low) * ppm / n.low_below);
  if (low < n.low) f.lower = (n.low - low) * ppm / n.low;
  const std::int64_t others = low + n.none;
  need("partial_top_score", t.partial_top_score, tops_kept, std::max<std::int64_t>(1, tops_kept + others),
       fmt::format(" with alpha {} and partial_active {}", o.alpha, t.partial_active));
  if (others > sample.choices() / 100) {
    need("partial_active", t.partial_active, low, others,
         fmt::format(" with alpha {} and partial_top_score {}", o.alpha, t.partial_top_score));
  }
  return f;
}

}  // namespace

Calibration calibrate(const ModelFacts& shape, const SyntheticOptions& o, const SyntheticTargets& t) {
  const ModelShape& m = shape.model;
  const std::int64_t third = root(q15 * q15 / 3);
  // If it is stopped, the incomplete result is never used: whoever makes the rows asks `progress`, too.
  const auto is_stopped = [&] { return o.progress && !o.progress(0, std::uint64_t{o.sequences} * m.layers); };
  Calibration c;
  c.mixture = mixture(m, Sample(m, {third, third, third, 0, q15}), t, o.prompt + o.tokens);
  if (is_stopped()) return c;
  const Sample sample(m, c.mixture);
  c.map = score_map(sample, t, o.alpha);
  const std::uint32_t named = CrossLayerGate{}.candidates(m.experts);
  for (std::uint32_t d = 1; d <= o.ahead && d < m.layers; ++d) {
    if (is_stopped()) return c;
    auto make = [&](double SyntheticTargets::ByDepth::*depth, const char* where) {
      const auto& top_1 = t.top_1[d - 1];
      const auto percentile = d == 1 ? t.recall_percentile : std::nullopt;
      return prediction_model(sample, named, t.recall_top_k[d - 1].*depth,
                              top_1 ? std::optional(*top_1.*depth) : std::nullopt,
                              percentile ? std::optional(*percentile.*depth) : std::nullopt,
                              fmt::format(" {} layer{} ahead{}", d, d == 1 ? "" : "s", where));
    };
    c.deep[d - 1] = make(&SyntheticTargets::ByDepth::deep, "");
    if (o.shallow_predicted(d) > 0) {
      c.shallow[d - 1] = make(&SyntheticTargets::ByDepth::shallow, fmt::format(" in the first {}", o.shallow).c_str());
    }
  }
  if (o.partial && m.layers > 1 && !is_stopped()) c.partial = partial_prediction(sample, c.map, o, t);
  return c;
}

}  // namespace ferry::engine::synthetic
