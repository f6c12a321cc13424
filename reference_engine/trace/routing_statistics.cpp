#include "trace/routing_statistics.hpp"

#include <algorithm>

#include "ferry/predictor/cross_layer_gate.hpp"

namespace ferry::engine {

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
        experts_(trace.model.experts),
        above_(1.0F + static_cast<float>(alpha)),
        order_(trace.model.experts) {}

  RoutingShares layer(std::uint32_t l) {
    shares_ = {};
    k_ = t_.model.top_k_of(l);
    there_ = t_.model.experts_of(l);
    candidates_ = CrossLayerGate{}.candidates(there_);
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
  /// Puts the best experts of a row into `order_`.
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
    if (t_.scores.empty() || k_ >= there_) return;
    const float *scores = t_.scores_of(t, l), *choice = t_.choice_scores_of(t, l);
    rank(choice, k_ + 1);
    best_two(scores[order_[0].expert], scores[order_[1].expert]);
    for (std::uint32_t i = 0; i < k_; ++i) {
      shares_.low_score.count(!(choice[order_[i].expert] > above_ * choice[order_[k_].expert]));
    }
  }

  void best_two(float first, float second) {
    const float s = first / (first + second);
    shares_.best_two_high.add({s <= 0.6F ? 2U : 1U, 2});
    shares_.best_two_skip.add({s > 0.9F ? 1U : 0U, 2});
  }

  void predicted(std::uint32_t t, std::uint32_t l) {
    for (std::uint32_t d = 1; d <= std::min<std::uint32_t>(t_.ahead, l); ++d) {
      rank(t_.choice_predicted_of(t, l - d, d), std::max(k_, candidates_));
      shares_.top_1[d - 1].count(order_[0].expert == t_.expert(t, l, 0));
      for (std::uint32_t i = 0; i < k_; ++i) {
        shares_.recall_top_k[d - 1].count(ranked(t_.expert(t, l, i), k_));
        shares_.recall_percentile[d - 1].count(ranked(t_.expert(t, l, i), candidates_));
      }
    }
    if (l == 0 || t_.partial.empty() || t_.scores.empty() || k_ >= there_) return;
    const float* partial = t_.choice_partial_of(t, l - 1);
    const float* scores = t_.choice_scores_of(t, l);
    rank(scores, k_ + 1);
    const float bar = above_ * scores[order_[k_].expert];
    rank(partial, k_ + 1);
    const float predicted_bar = above_ * partial[order_[k_].expert];
    for (std::uint32_t i = 0; i < k_; ++i) {
      const std::uint16_t e = order_[i].expert;
      if (!(partial[e] > predicted_bar)) break;  // always true for a row that was not recorded
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
        rank(t_.choice_predicted_of(t, l - d, d), k_);
        for (std::uint32_t i = 0; i < k_; ++i) needed[t_.expert(t, l, i)] = named[order_[i].expert] = true;
      }
      for (std::uint32_t e = 0; e < experts_; ++e) {
        if (needed[e]) shares_.recall_prefill[d - 1].count(named[e]);
      }
    }
  }

  const Trace& t_;
  const std::uint32_t experts_;  ///< columns of a row
  const float above_;
  std::uint32_t k_ = 0, there_ = 0, candidates_ = 0;  ///< of the layer at hand, with the experts that it has
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
