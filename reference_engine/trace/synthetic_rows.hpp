/// @file
/// The arithmetic of made-up routing: random rows, their ranks, and scores of them. Everything up to a row's scores is
/// integer arithmetic, so that no compiler and no processor rounds it otherwise.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ferry::engine::synthetic {

inline constexpr std::int64_t ppm = 1'000'000;  ///< shares, once they are read
inline constexpr int q15_bits = 15;
inline constexpr std::int64_t q15 = 1 << q15_bits;  ///< weights of mixtures, with squares that sum to q15 * q15
inline constexpr std::int64_t q16 = 1 << 16;        ///< factors
inline constexpr std::int64_t nat = 1 << 16;        ///< of a logit

using Latent = std::int32_t;                      ///< what ranks experts; about normal
inline constexpr std::int64_t sigma = 37837;      ///< its standard deviation
inline constexpr std::int64_t widest = 64 * nat;  ///< gap between neighbouring logits

std::int64_t to_ppm(double share);
double from_ppm(std::int64_t share);

/// Throws InputError.
[[noreturn]] void refuse(const std::string& what);

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

std::int64_t root(std::int64_t square);

/// The weight, in q15, that goes with `part` so that both together have the variance of one.
std::int64_t other_part(std::int64_t part);

// Random numbers

enum class Stream : std::uint64_t { model, sequence, token, calibration, partial, prefill, distance, assumed };

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

/// Deals out what lasts (popularity, favourites): in every row the same values, which only fall on other experts, for few rows
/// are drawn of it, and each counts for many tokens. The values are those of as many normal numbers in order, on average.
class Dealer {
 public:
  explicit Dealer(std::uint32_t experts);

  [[nodiscard]] std::vector<std::int64_t> deal(Draws& draws) const;

 private:
  std::vector<std::int64_t> values_;
};

// Ranks

/// Sets `order` to the `count` best of a row, best first, ties to the lower index.
void rank(const Latent* row, std::uint32_t n, std::uint32_t count, std::uint16_t* order);

inline bool has(const std::uint16_t* order, std::uint32_t count, std::uint32_t e) {
  return std::find(order, order + count, e) != order + count;
}

/// How many of a row are ranked above e.
std::uint32_t rank_of(const Latent* row, std::uint32_t n, std::uint32_t e);

void mix(const Latent* a, std::int64_t weight_a, const Latent* b, std::int64_t weight_b, std::uint32_t n, Latent* out);

/// Puts an expert before all: each of the k best that were before it moves back by one, the last to where it was.
/// `order` has the k + 1 best, before and after.
void promote(std::uint16_t expert, std::uint32_t k, Latent* row, std::uint16_t* order);

// Scores

inline constexpr int exp_bits = 43;  ///< exp(0) is 1 << 43: 65536 of them fit

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
inline constexpr std::array<std::uint64_t, 257> powers = make_powers();

/// e^-x of x >= 0 in 1/65536, as a multiple of 2^-43. Its error is below 2^-19 of it, and 2^-43.
inline std::uint64_t exp_minus(std::int64_t x) {
  const std::uint64_t t = static_cast<std::uint64_t>(std::min(x, widest / 2)) * 6196328019U >> 16;  // x / ln 2 in 2^-32
  const std::uint64_t i = t >> 24 & 0xff, fraction = t & 0xffffff;
  return (powers[i] - ((powers[i] - powers[i + 1]) * fraction >> 24)) >> (t >> 32);
}

/// The largest x with e^x <= 1 + alpha.
std::int64_t log_bar(double alpha);

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
void gaps(const Latent* row, const std::uint16_t* order, std::uint32_t k, Latent* out);

/// How many of a row's chosen are top-score, by the heights of the k best.
std::uint32_t top_scores(const std::int64_t* heights, std::uint32_t k, std::int64_t bar);

}  // namespace ferry::engine::synthetic
