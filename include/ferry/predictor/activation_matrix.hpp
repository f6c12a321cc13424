/// @file
/// Request-level expert activation matrices, matched by cosine.
#pragma once
#include <string>

#include "ferry/concepts.hpp"
#include "ferry/detail/best.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Counts what each sequence activates, [layers, experts], and predicts what the past sequence most like the present
/// one activated.
///
/// Source: MoE-Infinity (Xue et al. 2024) as the papers describe it: HOBBIT sections 1 and 5.1 ("prioritizing expert
/// activation ratios", "tracks request-level processes"), Importance-driven sections 6.1 and 7 ("request-level expert
/// activation matrix").
///  - The matrices of the last `history` ended sequences are kept; a new one takes the place of the oldest.
///  - The nearest is the one with the largest cosine to the present matrix over the layers seen so far.
///  - Layer m: the nearest one's experts by activation ratio, those above 0. The ratio is the confidence.
///
/// Reads no rows. Nothing is known of weights or rows: importance and unimportance are 0, rows 1.
/// Complexity: observe O(rows k history); predict O(history + E); end_sequence O(L E).
/// State: (history + 1) L E + 4 history (L + 1) bytes and 10 an expert: 51 KB for Qwen1.5-MoE.
///
/// Deviations. One cosine over the whole matrix instead of the mean over layers of each layer's: integers then compare
/// exactly. The past matrices are the latest ones, not a selection by clustering. Counts are of 8 bits: one that would
/// pass 255 halves its layer first, which keeps the layer's ratios but for rounding. A batch has one present matrix, not
/// one a sequence: above batch 1 it predicts what its sequences do together.
///
/// Ambiguities resolved.
///  - Without a past matrix that has anything in common with the present one, the present one predicts.
///  - The present matrix of a batch becomes a past one when any of its sequences ends.
///  - At most `breadth` times as many experts are named as the latest layer had routes: what is named is also masked
///    from eviction.
///  - Counts are of the gate's own choices, so that substitutes, which depend on the cache, do not feed back.
class ActivationMatrix {
 public:
  static constexpr RowSource prefill_rows = RowSource::none, decode_rows = RowSource::none;

  /// How many past matrices are kept.
  std::uint32_t history = 32;
  /// At most so many experts are named for each route of the latest layer.
  std::uint32_t breadth = 2;
  /// How many layers ahead.
  std::uint32_t depth = 1;

  void reserve(Carver& carve, const Shape& shape) {
    if (history == 0 || breadth == 0 || depth == 0) {
      detail::fail<ConfigError>("ActivationMatrix: history, breadth and depth are " + std::to_string(history) + ", " +
                                std::to_string(breadth) + " and " + std::to_string(depth) +
                                ", each must be at least 1");
    }
    const std::uint32_t cells = std::uint32_t{shape.layers} * shape.experts;
    if (cells > max_cells) {
      detail::fail<ConfigError>("ActivationMatrix: the model has " + std::to_string(cells) + " experts, at most " +
                                std::to_string(max_cells) + " can be compared exactly");
    }
    layers_ = shape.layers;
    experts_ = shape.experts;
    carve(present_, cells);
    carve(past_, std::size_t{cells} * history);
    carve(norms_, std::size_t{history} * shape.layers);
    carve(dots_, history);
    carve(counts_, shape.experts);
    carve(named_, shape.experts);
  }

  FERRY_HD void observe(std::uint16_t layer, View<const Route> taken, View<const std::uint32_t> /*rows*/) noexcept {
    std::uint32_t* const dots = dots_.data();
    for (const Route& r : taken) {
      const std::uint16_t expert = gate_choice(r);
      if (expert == no_expert) continue;
      const std::uint32_t cell = std::uint32_t{layer} * experts_ + expert;
      if (present_[cell] == 255) halve(layer);
      ++present_[cell];
      const std::uint8_t* const past = past_.data() + std::size_t{cell} * history;  // 0 of a matrix not there yet
      for (std::uint32_t h = 0, n = history; h < n; ++h) dots[h] += past[h];
    }
    routes_ = taken.size;
    if (layer >= seen_layers_) seen_layers_ = static_cast<std::uint16_t>(layer + 1);
  }

  FERRY_HD void end_sequence(std::uint32_t /*sequence*/) noexcept {
    if (seen_layers_ == 0) return;  // another sequence of the batch has ended just now
    std::uint32_t norm = 0;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      for (std::uint32_t cell = l * experts_; cell < (l + 1) * experts_; ++cell) {
        const std::uint32_t n = present_[cell];
        norm += n * n;
        past_[std::size_t{cell} * history + oldest_] = static_cast<std::uint8_t>(n);
        present_[cell] = 0;
      }
      norms_[oldest_ * layers_ + l] = norm;
    }
    if (kept_ < history) ++kept_;
    oldest_ = oldest_ + 1 == history ? 0 : oldest_ + 1;
    for (std::uint32_t& d : dots_) d = 0;
    seen_layers_ = 0;
  }

  FERRY_HD void predict(Phase /*phase*/, const Scores& scores, Out<Request>& out) noexcept {
    const std::uint32_t source = nearest();
    std::uint64_t sum = 0;
    for (std::uint16_t e = 0; e < experts_; ++e) sum += counts_[e] = count(source, scores.layer, e);
    const std::uint64_t most = std::uint64_t{breadth} * routes_;
    const std::uint32_t named = detail::most_of(
        counts_.data(), experts_, most < experts_ ? static_cast<std::uint32_t>(most) : experts_, named_.data());
    for (std::uint32_t i = 0; i < named; ++i) {
      Request* r = out.add();
      if (r == nullptr) return;
      r->want.id = {scores.layer, named_[i]};
      r->rows = 1;
      r->confidence = static_cast<float>(counts_[named_[i]]) / static_cast<float>(sum);
    }
  }

  /// Norms and dot products are made anew.
  [[nodiscard]] const char* check() const noexcept {
    if (kept_ > history || oldest_ >= history || (kept_ < history && oldest_ != kept_))
      return "ActivationMatrix: past matrices are not replaced in turn";
    if (seen_layers_ > layers_) return "ActivationMatrix: more layers were seen than there are";
    for (std::size_t cell = std::size_t{seen_layers_} * experts_; cell < present_.size(); ++cell) {
      if (present_[cell] != 0) return "ActivationMatrix: something was counted in a layer not seen";
    }
    for (std::uint32_t h = 0; h < history; ++h) {
      std::uint64_t norm = 0, dot = 0;
      for (std::uint32_t l = 0; l < layers_; ++l) {
        for (std::size_t cell = std::size_t{l} * experts_; cell < (l + std::size_t{1}) * experts_; ++cell) {
          const std::uint64_t n = past_[cell * history + h];
          norm += n * n;
          dot += n * present_[cell];
        }
        if (norms_[h * layers_ + l] != norm) return "ActivationMatrix: the norm of a past matrix is wrong";
      }
      if (dots_[h] != dot) return "ActivationMatrix: the dot product with a past matrix is wrong";
    }
    return nullptr;
  }

 private:
  static constexpr std::uint32_t max_cells = 0xffffffffU / (255 * 255);  ///< so that a dot product has 32 bits
  static constexpr std::uint32_t present = 0xffffffffU;                  ///< not a past matrix

  /// dot^2 * other_norm, 96 bits: what is compared instead of dot^2 / norm.
  struct Product {
    std::uint64_t high;
    std::uint32_t low;
  };
  FERRY_HD static Product product(std::uint32_t dot, std::uint32_t norm) noexcept {
    const std::uint64_t square = std::uint64_t{dot} * dot;
    const std::uint64_t low = (square & 0xffffffffU) * norm;
    return {(square >> 32U) * norm + (low >> 32U), static_cast<std::uint32_t>(low)};
  }

  /// The past matrix with the largest cosine (all share the present one's norm), or `present`.
  FERRY_HD std::uint32_t nearest() const noexcept {
    std::uint32_t best = present;
    for (std::uint32_t h = 0; h < kept_; ++h) {
      if (dots_[h] == 0) continue;
      if (best == present) {
        best = h;
        continue;
      }
      const Product mine = product(dots_[h], norm(best)), other = product(dots_[best], norm(h));
      if (mine.high != other.high ? mine.high > other.high : mine.low > other.low) best = h;
    }
    return best;
  }

  /// Squared norm of a past matrix over the layers seen so far.
  FERRY_HD std::uint32_t norm(std::uint32_t h) const noexcept { return norms_[h * layers_ + seen_layers_ - 1U]; }

  FERRY_HD std::uint32_t count(std::uint32_t source, std::uint16_t layer, std::uint16_t expert) const noexcept {
    const std::size_t cell = std::size_t{layer} * experts_ + expert;
    return source == present ? present_[cell] : past_[cell * history + source];
  }

  FERRY_HD void halve(std::uint16_t layer) noexcept {
    for (std::uint32_t cell = std::uint32_t{layer} * experts_; cell < (layer + 1U) * experts_; ++cell) {
      const std::uint32_t lost = (present_[cell] + 1U) / 2;
      present_[cell] /= 2;
      for (std::uint32_t h = 0; h < kept_; ++h) dots_[h] -= lost * past_[std::size_t{cell} * history + h];
    }
  }

  Array<std::uint8_t> present_;  ///< [layers, experts]
  Array<std::uint8_t> past_;     ///< [layers, experts, history]: what one route adds to all dots is adjacent
  Array<std::uint32_t> norms_;   ///< [history, layers]: squared, of all layers up to this one
  Array<std::uint32_t> dots_;    ///< [history]: with the present one
  Array<std::uint64_t> counts_;  ///< [experts], of one layer
  Array<std::uint16_t> named_;   ///< [experts]
  std::uint32_t kept_ = 0, oldest_ = 0, routes_ = 0;
  std::uint16_t layers_ = 0, experts_ = 0, seen_layers_ = 0;
};

static_assert(Predictor<ActivationMatrix>);

}  // namespace ferry::inline FERRY_ABI
