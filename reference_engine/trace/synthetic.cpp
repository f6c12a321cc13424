#include "trace/synthetic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "ferry/predictor/cross_layer_gate.hpp"
#include "support/errors.hpp"

// Everything up to a row's scores is integer arithmetic, so that no compiler and no processor rounds it otherwise.

namespace ferry::engine {
namespace {

constexpr std::int64_t ppm = 1'000'000;  ///< shares, once they are read
constexpr int q15_bits = 15;
constexpr std::int64_t q15 = 1 << q15_bits;  ///< weights of mixtures, with squares that sum to q15 * q15
constexpr std::int64_t q16 = 1 << 16;        ///< factors
constexpr std::int64_t nat = 1 << 16;        ///< of a logit

using Latent = std::int32_t;               ///< what ranks experts; about normal
constexpr std::int64_t sigma = 37837;      ///< its standard deviation
constexpr std::int64_t widest = 64 * nat;  ///< gap between neighbouring logits

std::int64_t to_ppm(double share) {
  return std::llround(share * 1e6);
}
double from_ppm(std::int64_t share) {
  return static_cast<double>(share) / 1e6;
}

[[noreturn]] void refuse(const std::string& what) {
  throw InputError("synthetic routing: " + what);
}

std::string indexed(const char* knob, std::size_t i) {
  return fmt::format("{}[{}]", knob, i);
}

/// The largest x of [low, high] that `good` holds for, given that it holds up to some point; low if for none.
template <class Good>
std::int64_t largest(std::int64_t low, std::int64_t high, const Good& good) {
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (good(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

std::int64_t root(std::int64_t square) {
  return largest(0, std::int64_t{1} << 31, [&](std::int64_t x) { return x * x <= square; });
}

/// What goes with a part of q15, if both are to have the variance of one.
std::int64_t other_part(std::int64_t part) {
  return root(q15 * q15 - part * part);
}

// Random numbers

enum class Stream : std::uint64_t { model, sequence, token, calibration, partial, prefill, distance };

/// SplitMix64 (Steele, Lea and Flood, 2014), begun at a place of its own for each purpose, sequence and layer: what is
/// drawn for one does not depend on how much was drawn for another.
class Draws {
 public:
  Draws(std::uint64_t seed, Stream stream, std::uint64_t sequence, std::uint64_t layer, std::uint64_t distance = 0)
      : state_(seed) {
    for (const std::uint64_t part : {static_cast<std::uint64_t>(stream), sequence, layer, distance}) {
      state_ = next() ^ part;
    }
  }

  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
  }

  /// About normal: the sum of four uniform numbers.
  Latent normal() {
    const std::uint64_t x = next();
    return static_cast<Latent>((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48)) - 2 * 0xffff;
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>((next() >> 32) * n >> 32); }
  bool happens(std::int64_t chance_ppm) { return below(ppm) < chance_ppm; }

 private:
  std::uint64_t state_;
};

/// What lasts has the same spread in every row, and only falls on other experts: few rows are drawn of it, and each
/// counts for many tokens. The spread is that of as many normal numbers in order, on average.
class Dealer {
 public:
  explicit Dealer(std::uint32_t experts) {
    constexpr std::uint32_t each = 64;
    Draws draws(0, Stream::calibration, 0, 0);
    std::vector<std::int64_t> all(std::size_t{each} * experts);
    for (std::int64_t& x : all) {
      for (int i = 0; i < 4; ++i) x += draws.normal();  // more nearly normal
    }
    std::sort(all.begin(), all.end());
    const std::int64_t mean = std::accumulate(all.begin(), all.end(), std::int64_t{0}) / std::ssize(all);
    std::int64_t squares = 0;
    for (std::uint32_t e = 0; e < experts; ++e) {
      const auto first = all.begin() + std::ptrdiff_t{each} * e;
      values_.push_back(std::accumulate(first, first + each, std::int64_t{0}) / each - mean);
      squares += values_.back() * values_.back();
    }
    for (std::int64_t& x : values_) x = x * sigma / root(squares / (experts - 1));
  }

  [[nodiscard]] std::vector<std::int64_t> deal(Draws& draws) const {
    std::vector<std::int64_t> row = values_;
    for (std::uint32_t left = static_cast<std::uint32_t>(row.size()); left > 1; --left) {
      std::swap(row[left - 1], row[draws.below(left)]);
    }
    return row;
  }

 private:
  std::vector<std::int64_t> values_;
};

// Ranks

/// Sets `order` to the `count` best of a row, best first, ties to the lower index.
void rank(const Latent* row, std::uint32_t n, std::uint32_t count, std::uint16_t* order) {
  // The best of `count` parts: so many are no worse than the least of them, and what is worse need not be looked at.
  Latent least = std::numeric_limits<Latent>::max();
  for (std::uint32_t part = 0, size = n / count; part < count; ++part) {
    Latent most = row[part * size];
    for (std::uint32_t e = part * size + 1; e < (part + 1) * size; ++e) most = std::max(most, row[e]);
    least = std::min(least, most);
  }
  std::uint32_t found = 0;
  for (std::uint32_t e = 0; e < n; ++e) {
    if (row[e] < least || (found == count && row[e] == least)) continue;
    std::uint32_t at = found < count ? found++ : count - 1;
    for (; at > 0 && row[e] > row[order[at - 1]]; --at) order[at] = order[at - 1];
    order[at] = static_cast<std::uint16_t>(e);
    if (found == count) least = row[order[count - 1]];
  }
}

bool has(const std::uint16_t* order, std::uint32_t count, std::uint32_t e) {
  return std::find(order, order + count, e) != order + count;
}

/// How many of a row are ranked above e.
std::uint32_t rank_of(const Latent* row, std::uint32_t n, std::uint32_t e) {
  std::uint32_t above = 0;
  for (std::uint32_t i = 0; i < n; ++i) above += row[i] > row[e] || (row[i] == row[e] && i < e) ? 1 : 0;
  return above;
}

void mix(const Latent* a, std::int64_t weight_a, const Latent* b, std::int64_t weight_b, std::uint32_t n, Latent* out) {
  for (std::uint32_t e = 0; e < n; ++e) out[e] = static_cast<Latent>((a[e] * weight_a + b[e] * weight_b) >> q15_bits);
}

// Scores

constexpr int exp_bits = 43;  ///< exp(0) is 1 << 43: 65536 of them fit

/// 2^(-i/256), from the series of exp.
constexpr std::array<std::uint64_t, 257> make_powers() {
  std::array<std::uint64_t, 257> powers{};
  for (std::uint64_t i = 0; i <= 256; ++i) {
    const std::uint64_t x = i * 744261118U >> 8;  // i / 256 ln 2; 1 is 1 << 30
    std::uint64_t sum = 0, term = std::uint64_t{1} << 30;
    for (std::uint64_t j = 1; j < 20; ++j) {  // e^x: all terms are positive
      sum += term;
      term = (term * x >> 30) / j;
    }
    powers[i] = (std::uint64_t{1} << 62) / sum << (exp_bits - 32);
  }
  return powers;
}
constexpr std::array<std::uint64_t, 257> powers = make_powers();

/// e^-x of x >= 0 in 1/65536, as a multiple of 2^-43. Its error is below 2^-19 of it, and 2^-43.
inline std::uint64_t exp_minus(std::int64_t x) {
  const std::uint64_t t = static_cast<std::uint64_t>(std::min(x, widest / 2)) * 6196328019U >> 16;  // x / ln 2 in 2^-32
  const std::uint64_t i = t >> 24 & 0xff, fraction = t & 0xffffff;
  return (powers[i] - ((powers[i] - powers[i + 1]) * fraction >> 24)) >> (t >> 32);
}

/// The largest x with e^x <= 1 + alpha.
std::int64_t log_bar(double alpha) {
  const std::uint64_t whole = std::uint64_t{ppm} << 20;
  const auto more = static_cast<std::uint64_t>(ppm + to_ppm(alpha));
  return largest(0, nat, [&](std::int64_t x) { return (exp_minus(x) >> (exp_bits - 20)) * more >= whole; });
}

/// Latents to logits: gaps between the k + 1 best are stretched, then bent (which changes how many are large beside how
/// many are small), and the last of them stretched once more; those behind are stretched alone. Ranks stay.
struct ScoreMap {
  std::int64_t sharpness = q16;  ///< nats of a standard deviation
  std::int64_t bend = 0;         ///< q16 a nat; negative: large gaps become less large
  std::int64_t last = q16;

  [[nodiscard]] std::int64_t stretch(std::int64_t latents) const {
    return std::min(latents * (sharpness * q16 / sigma) / q16, widest);
  }
  [[nodiscard]] std::int64_t gap(std::int64_t latents) const {
    const std::int64_t u = stretch(latents);
    if (bend == 0) return std::max<std::int64_t>(u, 1);
    const std::int64_t bent = bend > 0 ? u + (u * u / nat) * bend / nat : u * q16 / (q16 - bend * u / nat);
    return std::clamp<std::int64_t>(bent, 1, widest);
  }

  /// By rank: how far the k best are above the (k+1)-th. `latents`: how far each of them is above the next.
  void heights(const Latent* latents, std::uint32_t k, std::int64_t* out) const {
    std::int64_t height = std::clamp<std::int64_t>(gap(latents[k - 1]) * last / q16, 1, widest);
    out[k - 1] = height;
    for (std::uint32_t i = k - 1; i-- > 0;) out[i] = height += gap(latents[i]);
  }
};

/// How far each of the k best is above the next. `order` has k + 1.
void gaps(const Latent* row, const std::uint16_t* order, std::uint32_t k, Latent* out) {
  for (std::uint32_t i = 0; i < k; ++i) out[i] = row[order[i]] - row[order[i + 1]];
}

// Calibration

/// Weights of what a row of latents is made of, in q15.
struct Mixture {
  std::int64_t model, sequence, token;  ///< popularity, a sequence's favourites, what changes from token to token
  std::int64_t keep, fresh;             ///< of the last, at the next token
};

/// What rows with so much noise would predict, in counts.
struct Recalled {
  std::int64_t first = 0;  ///< rows whose best is predicted as the best
  std::int64_t found = 0;  ///< of the chosen, those among the k best predicted
  std::int64_t gain = 0;   ///< of that, if every best were made the best predicted
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
  mutable std::map<std::int64_t, Recalled> known_;  ///< by noise: knobs of like values ask for the same
};

/// The noise, in q15, with which `excess` falls through 0: found among 64 amounts, the same for all knobs, then between
/// two of them on straight lines. Amounts are even in the noise while it is the lesser part, then in what is kept.
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
  // Above chance, of the way to all: so that it does not matter how many this sample has by chance.
  const std::int64_t chance = ppm * sample.k / sample.experts, by_chance = sample.recalled(q15).found;
  return other_part(noise_at_zero([&](std::int64_t noise) {
    return (sample.recalled(noise).found - by_chance) * (ppm - chance) -
           (to_ppm(share) - chance) * (sample.choices() - by_chance);
  }));
}

/// Two tokens of different sequences, half a sequence apart, and next to each other shall correlate as asked.
Mixture mixture(const Sample& sample, const SyntheticTargets& t, std::uint32_t tokens) {
  const std::int64_t next = correlation(sample, t.reuse), far = correlation(sample, t.favourites);
  const std::int64_t others = correlation(sample, t.popularity);
  const std::uint32_t half = tokens / 2;
  auto left = [&](std::int64_t keep) {  // of keep, half a sequence later
    std::int64_t product = half < 2 ? 0 : q15 * q15;
    for (std::uint32_t i = 0; i < half && product > 0; ++i) product = product * keep / q15;
    return product / q15;
  };
  // lasting + (1 - lasting) keep = next, lasting + (1 - lasting) keep^half = far
  const std::int64_t keep =
      largest(0, q15 - 1, [&](std::int64_t x) { return (q15 - x) * (q15 - far) >= (q15 - next) * (q15 - left(x)); });
  const std::int64_t lasting = (far - left(keep)) * q15 / (q15 - left(keep));
  if (keep == q15 - 1 || lasting + q15 / 100 < others) {
    refuse(
        fmt::format("reuse {} fades too slowly for favourites {} half a sequence of {} tokens later: ask for longer "
                    "sequences, less reuse, or more favourites",
                    t.reuse, t.favourites, tokens));
  }
  const std::int64_t own = std::max<std::int64_t>(0, lasting - others);
  return {root(others * q15), root(own * q15), root((q15 - others - own) * q15), keep, other_part(keep)};
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

/// Refuses what the calibration has missed by more than half a point.
void need(const std::string& knob, double asked, std::int64_t part, std::int64_t whole, const std::string& with) {
  const double met = from_ppm(part * ppm / whole);
  if (std::abs(met - asked) <= 0.005) return;
  refuse(fmt::format("{} {} cannot be met{}: the nearest is {:.3f}", knob, asked, with, met));
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

/// How a row is predicted: with noise, and then put right or wrong so often that the statistics come out. Chances in
/// ppm.
struct PredictionModel {
  std::int64_t keep = q15, noise = 0;
  std::int64_t promote = 0;  ///< if the best is not predicted as the best, that it becomes so
  std::int64_t demote = 0;   ///< if it is, that it changes places with the second
  std::int64_t inside = 0;   ///< if a chosen expert is beyond the candidates, that it changes places with one of them
  std::int64_t outside = 0;  ///< the other way round, for one that is no more than a candidate
};

/// Puts an expert before all: each of the k best that were before it moves back by one, the last to where it was.
/// `order` has the k + 1 best, before and after.
void promote(std::uint16_t expert, std::uint32_t k, Latent* row, std::uint16_t* order) {
  const Latent freed = row[expert];
  std::uint32_t from = 0;
  while (from < k && order[from] != expert) ++from;
  row[expert] = row[order[0]];
  for (std::uint32_t i = 0; i + 1 < from; ++i) row[order[i]] = row[order[i + 1]];
  row[order[from - 1]] = freed;
  if (from == k && order[k] == expert) order[k] = order[k - 1];
  for (std::uint32_t i = std::min(from, k - 1); i > 0; --i) order[i] = order[i - 1];
  order[0] = expert;
}

class PredictionMaker {
 public:
  explicit PredictionMaker(const ModelShape& m)
      : experts_(m.experts), k_(m.top_k), named_(CrossLayerGate{}.candidates(m.experts)) {}

  /// `order`: the k + 1 best of what comes out.
  void operator()(const PredictionModel& f, const Latent* row, const std::uint16_t* best, const Latent* noise,
                  Draws& events, Latent* out, std::uint16_t* order) const {
    mix(row, f.keep, noise, f.noise, experts_, out);
    rank(out, experts_, k_ + 1U, order);
    if (order[0] != best[0]) {
      if (events.happens(f.promote)) promote(best[0], k_, out, order);
    } else if (events.happens(f.demote)) {
      std::swap(out[order[0]], out[order[1]]);
      std::swap(order[0], order[1]);
    }
    if (f.inside == 0 && f.outside == 0) return;
    for (std::uint32_t i = 0; i < k_; ++i) {
      if (has(order, k_, best[i])) continue;
      const bool near = rank_of(out, experts_, best[i]) < named_;
      if (!events.happens(near ? f.outside : f.inside)) continue;
      const std::uint32_t first = near ? named_ : k_, last = near ? experts_ : named_;
      std::uint32_t e = events.below(experts_);  // the first that fits, from here on, changes places with it
      for (std::uint32_t tries = 0; tries < experts_; ++tries, e = e + 1 == experts_ ? 0 : e + 1) {
        const std::uint32_t at = rank_of(out, experts_, e);
        if (at < first || at >= last || has(best, k_, e)) continue;
        std::swap(out[best[i]], out[e]);
        if (order[k_] == best[i]) {
          order[k_] = static_cast<std::uint16_t>(e);
        } else if (order[k_] == e) {
          order[k_] = best[i];
        }
        break;
      }
    }
  }

 private:
  std::uint32_t experts_, k_, named_;
};

/// Of the chosen that are not among the k best predicted: those that are candidates, and those that are not; each counts
/// a million.
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
  // Chance of putting the best right so that top 1 comes out, if noise alone does not suffice.
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

/// How a partial hidden state predicts: with noise, and then with more or fewer of the chosen above the bar. In ppm:
struct PartialPrediction {
  std::int64_t keep = q15, noise = 0;
  std::int64_t raise = 0;      ///< that a low-score expert among the k best is raised above the bar
  std::int64_t lower = 0;      ///< that one above it is lowered
  std::int64_t lower_top = 0;  ///< that a top-score expert above it is lowered
};

/// How many of a row's chosen are top-score, by the heights of the k best.
std::uint32_t top_scores(const std::int64_t* heights, std::uint32_t k, std::int64_t bar) {
  return static_cast<std::uint32_t>(std::find_if(heights, heights + k, [&](auto h) { return h <= bar; }) - heights);
}

PartialPrediction partial_prediction(const Sample& sample, const ScoreMap& map, const SyntheticOptions& o,
                                     const SyntheticTargets& t) {
  const std::int64_t bar = log_bar(o.alpha), top = to_ppm(t.partial_top_score), active = to_ppm(t.partial_active);
  // Experts predicted as top-score: that are, that are only chosen, that are not; and the chosen at or below the bar.
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
  // Where low-score experts are too few beside the top-score ones, some of these have to go.
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

struct Calibration {
  Mixture mixture;
  ScoreMap map;
  std::array<PredictionModel, most_ahead> shallow, deep;
  PartialPrediction partial;
};

std::uint32_t shallow_predicted(const SyntheticOptions& o, std::uint32_t distance) {
  return o.shallow > distance ? o.shallow - distance : 0U;
}

Calibration calibrate(const ModelFacts& shape, const SyntheticOptions& o, const SyntheticTargets& t) {
  const ModelShape& m = shape.model;
  const std::int64_t third = root(q15 * q15 / 3);
  Calibration c;
  c.mixture = mixture(Sample(m, {third, third, third, 0, q15}), t, o.prompt + o.tokens);
  const Sample sample(m, c.mixture);
  c.map = score_map(sample, t, o.alpha);
  const std::uint32_t named = CrossLayerGate{}.candidates(m.experts);
  for (std::uint32_t d = 1; d <= o.ahead && d < m.layers; ++d) {
    auto make = [&](double SyntheticTargets::ByDepth::*depth, const char* where) {
      const auto& top_1 = t.top_1[d - 1];
      const auto percentile = d == 1 ? t.recall_percentile : std::nullopt;
      return prediction_model(sample, named, t.recall_top_k[d - 1].*depth,
                              top_1 ? std::optional(*top_1.*depth) : std::nullopt,
                              percentile ? std::optional(*percentile.*depth) : std::nullopt,
                              fmt::format(" {} layer{} ahead{}", d, d == 1 ? "" : "s", where));
    };
    c.deep[d - 1] = make(&SyntheticTargets::ByDepth::deep, "");
    if (shallow_predicted(o, d) > 0) {
      c.shallow[d - 1] = make(&SyntheticTargets::ByDepth::shallow, fmt::format(" in the first {}", o.shallow).c_str());
    }
  }
  if (o.partial && m.layers > 1) c.partial = partial_prediction(sample, c.map, o, t);
  return c;
}

// Traces

/// Makes one sequence after another, layer by layer.
class Maker {
 public:
  Maker(const ModelFacts& shape, const SyntheticOptions& o)
      : shape_(shape),
        model_(shape.model),
        o_(o),
        targets_(synthetic_targets(shape, o)),
        calibration_(calibrate(shape, o, targets_)),
        bar_(log_bar(o.alpha)),
        predict_(shape.model),
        dealer_(shape.model.experts) {}

  std::unique_ptr<TraceFile> make() {
    made_ = std::make_unique<TraceFile>();
    TraceFile& f = *made_;
    f.trace.name = shape_.name;
    f.trace.model = model_;
    f.trace.model.max_rows = 1;
    f.trace.renormalise = shape_.renormalise;
    f.trace.ahead = o_.ahead;
    f.work = shape_.work;
    f.source = fmt::format("synthetic, seed {}", o_.seed);
    const std::size_t each = o_.prompt + std::size_t{o_.tokens}, cells = o_.sequences * each * model_.layers;
    f.experts.resize(cells * model_.top_k);
    f.weights.resize(cells * model_.top_k);
    f.scores.resize(cells * model_.experts);
    f.predicted.resize(cells * o_.ahead * model_.experts);
    if (o_.partial) f.partial.resize(cells * model_.experts);
    tokens_ = static_cast<std::uint32_t>(each);
    rows_.resize(each * model_.experts);
    predicted_.resize(rows_.size());
    best_.resize(each * (model_.top_k + 1U));
    named_.resize(best_.size());
    gaps_.resize(model_.top_k);
    heights_.resize(model_.top_k);
    powers_.resize(model_.experts);
    routes_.resize(model_.top_k);
    for (std::uint32_t s = 0; s < o_.sequences; ++s) {
      f.sequence_start.push_back(s * tokens_);
      f.phase.insert(f.phase.end(), o_.prompt, static_cast<std::uint8_t>(Phase::prefill));
      f.phase.insert(f.phase.end(), o_.tokens, static_cast<std::uint8_t>(Phase::decode));
      for (std::uint32_t l = 0; l < model_.layers; ++l) layer(s, l);
    }
    f.view();
    return std::move(made_);
  }

 private:
  [[nodiscard]] Latent* row(std::vector<Latent>& rows, std::uint32_t token) {
    return rows.data() + std::size_t{token} * model_.experts;
  }
  [[nodiscard]] std::uint16_t* best(std::uint32_t token) {
    return best_.data() + token * (model_.top_k + std::size_t{1});
  }
  [[nodiscard]] std::uint16_t* named(std::uint32_t token) {
    return named_.data() + token * (model_.top_k + std::size_t{1});
  }
  /// Of a token and layer in the trace.
  [[nodiscard]] std::size_t cell(std::uint32_t sequence, std::uint32_t token, std::uint32_t layer) const {
    return (std::size_t{sequence} * tokens_ + token) * model_.layers + layer;
  }

  void layer(std::uint32_t sequence, std::uint32_t l) {
    make_rows(sequence, l);
    for (std::uint32_t t = 0; t < tokens_; ++t) choose(t, cell(sequence, t, l));
    for (std::uint32_t d = 1; d <= std::min<std::uint32_t>(o_.ahead, l); ++d) predict(sequence, l, d);
    if (o_.partial && l > 0) predict_partial(sequence, l);
  }

  void make_rows(std::uint32_t sequence, std::uint32_t l) {
    const Mixture& m = calibration_.mixture;
    const std::uint32_t n = model_.experts;
    Draws model(o_.seed, Stream::model, 0, l), own(o_.seed, Stream::sequence, sequence, l);
    Draws token(o_.seed, Stream::token, sequence, l);
    const std::vector<std::int64_t> popular = dealer_.deal(model), favourite = dealer_.deal(own);
    std::vector<std::int64_t> lasting(n), changing(n);
    for (std::uint32_t e = 0; e < n; ++e) {
      lasting[e] = m.model * popular[e] + m.sequence * favourite[e];
      changing[e] = token.normal();
    }
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      Latent* out = row(rows_, t);
      for (std::uint32_t e = 0; e < n; ++e) {
        if (t > 0) changing[e] = (m.keep * changing[e] + m.fresh * token.normal()) >> q15_bits;
        out[e] = static_cast<Latent>((lasting[e] + m.token * changing[e]) >> q15_bits);
      }
    }
  }

  void choose(std::uint32_t t, std::size_t at) {
    const std::uint32_t k = model_.top_k;
    float* scores = made_->scores.data() + at * model_.experts;
    rank(row(rows_, t), model_.experts, k + 1U, best(t));
    set_heights(row(rows_, t), best(t));
    write_scores(row(rows_, t), best(t), scores);
    detail::best_of(scores, model_.experts, k, routes_.data());  // as made, but where floats tie
    float sum = 0;
    for (const Route& r : routes_) sum += scores[r.expert];
    for (std::uint32_t i = 0; i < k; ++i) {
      const std::uint16_t e = routes_[i].expert;
      best(t)[i] = made_->experts[at * k + i] = e;
      made_->weights[at * k + i] = shape_.renormalise ? scores[e] / sum : scores[e];
    }
  }

  void predict(std::uint32_t sequence, std::uint32_t l, std::uint32_t distance) {
    const auto& f = (l < o_.shallow ? calibration_.shallow : calibration_.deep)[distance - 1];
    Draws draws(o_.seed, Stream::distance, sequence, l, distance);
    std::vector<Latent> noise(model_.experts);
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      for (Latent& n : noise) n = draws.normal();
      predict_(f, row(rows_, t), best(t), noise.data(), draws, row(predicted_, t), named(t));
    }
    correct_prompt(sequence, l, distance);
    for (std::uint32_t t = 0; t < tokens_; ++t) {
      const std::size_t at = cell(sequence, t, l - distance) * o_.ahead + distance - 1;
      set_heights(row(predicted_, t), named(t));
      write_scores(row(predicted_, t), named(t), made_->predicted.data() + at * model_.experts);
    }
  }

  /// Draws how many of the experts that a prompt needs its rows shall fail to name; then names those needed most often
  /// of what is too many, or no longer names those named least often of what is too few.
  void correct_prompt(std::uint32_t sequence, std::uint32_t l, std::uint32_t distance) {
    const std::uint32_t n = model_.experts, k = model_.top_k;
    needs_.assign(n, 0);
    votes_.assign(n, 0);
    std::vector<std::uint16_t> missed, others;
    for (std::uint32_t t = 0; t < o_.prompt; ++t) {
      for (std::uint32_t i = 0; i < k; ++i) {
        ++needs_[best(t)[i]];
        ++votes_[named(t)[i]];
      }
    }
    Draws draws(o_.seed, Stream::prefill, sequence, l, distance);
    std::size_t misses = 0;
    for (std::uint32_t e = 0; e < n; ++e) {
      if (needs_[e] == 0) continue;
      misses += draws.happens(ppm - to_ppm(targets_.recall_prefill)) ? 1 : 0;
      (votes_[e] > 0 ? others : missed).push_back(static_cast<std::uint16_t>(e));
    }
    auto by = [](const std::vector<std::uint32_t>& counts) {
      return [&](std::uint16_t a, std::uint16_t b) { return counts[a] < counts[b]; };
    };
    std::stable_sort(missed.begin(), missed.end(), by(needs_));
    while (missed.size() > misses && name(missed.back())) missed.pop_back();
    if (targets_.at_least) return;
    std::stable_sort(others.begin(), others.end(), by(votes_));
    for (std::size_t i = 0; i < others.size() && missed.size() < misses; ++i) {
      missed.push_back(others[i]);
      hide(missed);
    }
  }

  /// In one of the rows that need the expert it takes the place of one that others name as well, or that none needs.
  bool name(std::uint16_t expert) {
    for (std::uint32_t t = 0; t < o_.prompt; ++t) {
      if (!has(best(t), model_.top_k, expert)) continue;
      for (std::uint32_t i = model_.top_k; i-- > 0;) {
        const std::uint16_t other = named(t)[i];
        if (votes_[other] < 2 && needs_[other] > 0) continue;
        change_places(t, expert, other);
        --votes_[other];
        ++votes_[expert];
        return true;
      }
    }
    return false;
  }

  /// No row names the last of these any more, but the best in its place that is none of them.
  void hide(const std::vector<std::uint16_t>& missed) {
    std::vector<std::uint16_t> order(model_.experts);
    for (std::uint32_t t = 0; t < o_.prompt; ++t) {
      if (!has(named(t), model_.top_k, missed.back())) continue;
      rank(row(predicted_, t), model_.experts, model_.experts, order.data());
      for (std::uint32_t i = model_.top_k; i < model_.experts; ++i) {
        if (std::find(missed.begin(), missed.end(), order[i]) != missed.end()) continue;
        change_places(t, missed.back(), order[i]);
        break;
      }
    }
  }

  void change_places(std::uint32_t t, std::uint16_t a, std::uint16_t b) {
    Latent* r = row(predicted_, t);
    std::swap(r[a], r[b]);
    rank(r, model_.experts, model_.top_k + 1U, named(t));
  }

  void predict_partial(std::uint32_t sequence, std::uint32_t l) {
    const std::uint32_t n = model_.experts, k = model_.top_k;
    const PartialPrediction& f = calibration_.partial;
    Draws draws(o_.seed, Stream::partial, sequence, l);
    std::vector<Latent> noise(n), mixed(n);
    std::vector<std::uint16_t> order(k + 1U);
    for (std::uint32_t t = o_.prompt; t < tokens_; ++t) {
      for (Latent& x : noise) x = draws.normal();
      mix(row(rows_, t), f.keep, noise.data(), f.noise, n, mixed.data());
      rank(mixed.data(), n, k + 1U, order.data());
      set_heights(row(rows_, t), best(t));
      const std::uint32_t tops = top_scores(heights_.data(), k, bar_);
      set_heights(mixed.data(), order.data());
      for (std::uint32_t i = 0; i < k; ++i) {
        if (!has(best(t), k, order[i])) continue;
        const std::int64_t step = draws.below(nat / 16) + 16;  // 16 is what floats can tell apart
        const bool above = heights_[i] > bar_, top = has(best(t), tops, order[i]);
        if (!above && !top && draws.happens(f.raise)) heights_[i] = bar_ + step;
        if (above && draws.happens(top ? f.lower_top : f.lower)) heights_[i] = std::max<std::int64_t>(1, bar_ - step);
      }
      write_scores(mixed.data(), order.data(), made_->partial.data() + cell(sequence, t, l - 1) * n);
    }
  }

  /// Of the k best of a row, `order` being its k + 1 best.
  void set_heights(const Latent* latents, const std::uint16_t* order) {
    gaps(latents, order, model_.top_k, gaps_.data());
    calibration_.map.heights(gaps_.data(), model_.top_k, heights_.data());
  }

  /// Softmax: the k best by `heights_`, the others by how far they are below the (k+1)-th.
  void write_scores(const Latent* latents, const std::uint16_t* order, float* out) {
    const std::uint32_t n = model_.experts, k = model_.top_k;
    const std::int64_t highest = *std::max_element(heights_.begin(), heights_.end());
    const std::int64_t base = latents[order[k]];
    const ScoreMap map = calibration_.map;  // a copy, which powers_ cannot alias
    for (std::uint32_t e = 0; e < n; ++e) {
      powers_[e] = exp_minus(highest + map.stretch(std::max<std::int64_t>(0, base - latents[e])));
    }
    for (std::uint32_t i = 0; i < k; ++i) powers_[order[i]] = exp_minus(highest - heights_[i]);
    std::uint64_t sum = 0;
    for (const std::uint64_t p : powers_) sum += p;
    const auto whole = static_cast<double>(static_cast<std::int64_t>(sum));
    for (std::uint32_t e = 0; e < n; ++e) {
      out[e] = static_cast<float>(static_cast<double>(static_cast<std::int64_t>(powers_[e])) / whole);
    }
  }

  const ModelFacts& shape_;
  const ModelShape& model_;
  const SyntheticOptions& o_;
  const SyntheticTargets targets_;
  const Calibration calibration_;
  const std::int64_t bar_;  ///< height above which a chosen expert is top-score
  const PredictionMaker predict_;
  const Dealer dealer_;
  std::unique_ptr<TraceFile> made_;
  std::uint32_t tokens_ = 0;                  ///< of a sequence
  std::vector<Latent> rows_, predicted_;      ///< [tokens_, experts] of one layer
  std::vector<std::uint16_t> best_, named_;   ///< [tokens_, top_k + 1] the best of them
  std::vector<std::uint32_t> needs_, votes_;  ///< of the prompt at hand: tokens that need each expert, that name it
  // Of the row at hand.
  std::vector<Latent> gaps_;           ///< between its k + 1 best
  std::vector<std::int64_t> heights_;  ///< of the k best above the last of these
  std::vector<std::uint64_t> powers_;
  std::vector<Route> routes_;
};

/// A share that an option gives, in ppm.
std::int64_t share(const std::string& knob, double value, double low = 0, double high = 1) {
  if (!(value >= low && value <= high)) refuse(fmt::format("{} is {}, expected {} to {}", knob, value, low, high));
  return to_ppm(value);
}

/// Shallow layers miss `times` as often as the others; all `layers` together as asked.
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
  const std::int64_t equal = ppm * (k * 3 / 5 + 1) / k;  // the first so many have s <= 0.6
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
    const std::uint32_t shallow = shallow_predicted(o, d);
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
                                   shallow_predicted(o, 1), "shallow_percentile_misses", o.shallow_percentile_misses);
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

std::unique_ptr<TraceFile> synthesize(const ModelFacts& shape, const SyntheticOptions& options) {
  return Maker(shape, options).make();
}

// Measuring

void RoutingShares::add(const RoutingShares& o) {
  for (const auto member :
       {&RoutingShares::reuse, &RoutingShares::reuse_best, &RoutingShares::reuse_any, &RoutingShares::favourites,
        &RoutingShares::popularity, &RoutingShares::high, &RoutingShares::skip, &RoutingShares::best_two_high,
        &RoutingShares::best_two_skip, &RoutingShares::low_score, &RoutingShares::partial_top_score,
        &RoutingShares::partial_active}) {
    (this->*member).add(o.*member);
  }
  for (const auto member : {&RoutingShares::recall_top_k, &RoutingShares::recall_percentile, &RoutingShares::top_1,
                            &RoutingShares::recall_prefill}) {
    for (std::size_t d = 0; d < most_ahead; ++d) (this->*member)[d].add((o.*member)[d]);
  }
}

RoutingShares RoutingStatistics::of(std::size_t first, std::size_t last) const {
  RoutingShares sum;
  for (std::size_t l = first; l < last; ++l) sum.add(layers[l]);
  return sum;
}

namespace {

/// Counts in a trace, from its floats alone.
class Measurer {
 public:
  Measurer(const Trace& trace, double alpha)
      : t_(trace),
        k_(trace.model.top_k),
        experts_(trace.model.experts),
        above_(1.0F + static_cast<float>(alpha)),
        candidates_(CrossLayerGate{}.candidates(trace.model.experts)),
        order_(trace.model.experts) {}

  RoutingShares layer(std::uint32_t l) {
    shares_ = {};
    std::vector<std::uint64_t> uses(experts_), own(experts_);
    std::uint64_t tokens = 0, same = 0, same_whole = 0;
    for (std::uint32_t s = 0; s < t_.sequences(); ++s) {
      std::fill(own.begin(), own.end(), 0);
      std::uint64_t of_sequence = 0;
      const std::uint32_t first = t_.sequence_start[s], end = t_.sequence_end(s), half = (end - first) / 2;
      for (std::uint32_t t = first; t < end; ++t) {
        if (t_.expert(t, l, 0) == no_expert) continue;
        ++of_sequence;
        for (std::uint32_t i = 0; i < k_; ++i) ++own[t_.expert(t, l, i)];
        if (t + 1 < end && t_.expert(t + 1, l, 0) != no_expert) reuse(t, l);
        if (half >= 2 && t + half < end && t_.expert(t + half, l, 0) != no_expert) {
          shares_.favourites.add({common(t, t + half, l), k_});
        }
        weights(t, l);
        if (t_.phase_of(t) == Phase::decode) predicted(t, l);
      }
      prompt(first, end, l);
      for (std::uint32_t e = 0; e < experts_; ++e) {
        uses[e] += own[e];
        same += own[e] * own[e];
      }
      tokens += of_sequence;
      same_whole += of_sequence * of_sequence;
    }
    for (const std::uint64_t n : uses) shares_.popularity.part += n * n;
    shares_.popularity.part -= same;
    shares_.popularity.whole = (tokens * tokens - same_whole) * k_;
    return shares_;
  }

 private:
  [[nodiscard]] bool chosen(std::uint32_t t, std::uint32_t l, std::uint32_t e) const {
    for (std::uint32_t i = 0; i < k_; ++i) {
      if (t_.expert(t, l, i) == e) return true;
    }
    return false;
  }
  [[nodiscard]] std::uint64_t common(std::uint32_t t, std::uint32_t other, std::uint32_t l) const {
    std::uint64_t n = 0;
    for (std::uint32_t i = 0; i < k_; ++i) n += chosen(other, l, t_.expert(t, l, i)) ? 1 : 0;
    return n;
  }
  /// The best of a row, into `order_`.
  void rank(const float* scores, std::uint32_t count) { detail::best_of(scores, experts_, count, order_.data()); }
  [[nodiscard]] bool ranked(std::uint32_t e, std::uint32_t count) const {
    for (std::uint32_t i = 0; i < count; ++i) {
      if (order_[i].expert == e) return true;
    }
    return false;
  }

  void reuse(std::uint32_t t, std::uint32_t l) {
    const std::uint64_t again = common(t, t + 1, l);
    shares_.reuse.add({again, k_});
    shares_.reuse_best.count(chosen(t + 1, l, t_.expert(t, l, 0)));
    shares_.reuse_any.count(again > 0);
  }

  void weights(std::uint32_t t, std::uint32_t l) {
    if (!t_.weights.empty()) {
      float sum = 0, above = 0;
      for (std::uint32_t i = 0; i < k_; ++i) sum += t_.weight(t, l, i);
      for (std::uint32_t i = 0; i < k_; ++i) {
        const float s = above / sum;
        shares_.high.count(s <= 0.6F);
        shares_.skip.count(s > 0.9F);
        above += t_.weight(t, l, i);
      }
    }
    if (t_.scores.empty() || k_ >= experts_) return;
    const float* scores = t_.scores_of(t, l);
    rank(scores, k_ + 1);
    best_two(scores[order_[0].expert], scores[order_[1].expert]);
    for (std::uint32_t i = 0; i < k_; ++i) {
      shares_.low_score.count(!(scores[order_[i].expert] > above_ * scores[order_[k_].expert]));
    }
  }

  void best_two(float first, float second) {
    const float s = first / (first + second);
    shares_.best_two_high.add({s <= 0.6F ? 2U : 1U, 2});
    shares_.best_two_skip.add({s > 0.9F ? 1U : 0U, 2});
  }

  void predicted(std::uint32_t t, std::uint32_t l) {
    for (std::uint32_t d = 1; d <= std::min<std::uint32_t>(t_.ahead, l); ++d) {
      rank(t_.predicted_of(t, l - d, d), std::max(k_, candidates_));
      shares_.top_1[d - 1].count(order_[0].expert == t_.expert(t, l, 0));
      for (std::uint32_t i = 0; i < k_; ++i) {
        shares_.recall_top_k[d - 1].count(ranked(t_.expert(t, l, i), k_));
        shares_.recall_percentile[d - 1].count(ranked(t_.expert(t, l, i), candidates_));
      }
    }
    if (l == 0 || t_.partial.empty() || t_.scores.empty() || k_ >= experts_) return;
    const float* partial = t_.partial_of(t, l - 1);
    const float* scores = t_.scores_of(t, l);
    rank(scores, k_ + 1);
    const float bar = above_ * scores[order_[k_].expert];
    rank(partial, k_ + 1);
    const float predicted_bar = above_ * partial[order_[k_].expert];
    for (std::uint32_t i = 0; i < k_; ++i) {
      const std::uint16_t e = order_[i].expert;
      if (!(partial[e] > predicted_bar)) break;  // always, in a row that was not recorded
      const bool active = chosen(t, l, e), top = active && scores[e] > bar;
      shares_.partial_top_score.count(top);
      if (!top) shares_.partial_active.count(active);
    }
  }

  void prompt(std::uint32_t first, std::uint32_t end, std::uint32_t l) {
    for (std::uint32_t d = 1; d <= std::min<std::uint32_t>(t_.ahead, l); ++d) {
      std::vector<bool> needed(experts_), named(experts_);
      for (std::uint32_t t = first; t < end && t_.phase_of(t) == Phase::prefill; ++t) {
        if (t_.expert(t, l, 0) == no_expert) continue;
        rank(t_.predicted_of(t, l - d, d), k_);
        for (std::uint32_t i = 0; i < k_; ++i) needed[t_.expert(t, l, i)] = named[order_[i].expert] = true;
      }
      for (std::uint32_t e = 0; e < experts_; ++e) {
        if (needed[e]) shares_.recall_prefill[d - 1].count(named[e]);
      }
    }
  }

  const Trace& t_;
  const std::uint32_t k_, experts_;
  const float above_;
  const std::uint32_t candidates_;
  std::vector<Route> order_;
  RoutingShares shares_;
};

}  // namespace

RoutingStatistics measure(const Trace& trace, double alpha) {
  Measurer measurer(trace, alpha);
  RoutingStatistics s;
  for (std::uint32_t l = 0; l < trace.model.layers; ++l) s.layers.push_back(measurer.layer(l));
  return s;
}

}  // namespace ferry::engine
