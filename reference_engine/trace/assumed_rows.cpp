#include "trace/assumed_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "support/errors.hpp"
#include "support/memory.hpp"
#include "trace/synthetic_rows.hpp"

namespace ferry::engine {
namespace {

using synthetic::Draws;
using synthetic::ppm;
using synthetic::Stream;
using synthetic::to_ppm;

/// Chances that a needed expert is predicted, in millionths.
struct Chances {
  std::int64_t top_k, candidates;
};

Chances chances_ahead(const AssumedRecall& recall, std::uint32_t distance) {
  const Chances one{to_ppm(recall.top_k), to_ppm(recall.candidates)};
  Chances c = one;
  for (std::uint32_t d = 1; d < distance; ++d) {
    c = {c.top_k * one.top_k / ppm, c.candidates * one.candidates / ppm};
  }
  return c;
}

/// The weight, or the smallest normal float if it is not a usable number above 0: smaller ones must still fit below it.
float positive(float weight) {
  using Float = std::numeric_limits<float>;
  return weight >= Float::min() && weight <= Float::max() ? weight : Float::min();
}

bool recorded(const Trace& trace, std::uint32_t token, std::uint32_t layer) {
  return trace.expert(token, layer, 0) != no_expert;  // only whole rows are missing
}

std::size_t cells_of(const Trace& trace) {
  return std::size_t{trace.tokens} * trace.model.layers;
}

/// Draws predicted rows of one model.
class RowMaker {
 public:
  explicit RowMaker(const ModelShape& model) : model_(model) {}

  /// Sets out[0 .. the layer's experts): a row that predicts the experts of `token` in `layer` with the given chances.
  void draw(const Trace& trace, std::uint32_t token, std::uint32_t layer, Chances chances, Draws draws, float* out) {
    experts_ = model_.experts_of(layer);
    k_ = model_.top_k_of(layer);
    quarter_ = std::max(k_, experts_ - 1 - 75 * (experts_ - 1) / 100);
    height_.resize(k_);
    at_place_.assign(experts_, no_expert);
    needed_.assign(experts_, false);
    near_.clear();
    far_.clear();
    for (std::uint32_t i = 0; i < k_; ++i) {
      const std::uint16_t e = trace.expert(token, layer, i);
      needed_[e] = true;
      height_[i] = positive(trace.weight(token, layer, i));
      const std::int64_t drawn = draws.below(ppm);
      if (drawn < chances.top_k) {
        at_place_[i] = e;
      } else {
        (drawn < chances.candidates ? near_ : far_).push_back(e);
      }
    }
    settle(near_, k_, quarter_, draws);
    far_.insert(far_.end(), near_.begin(), near_.end());
    settle(far_, quarter_, experts_, draws);
    settle(far_, 0, experts_, draws);  // with few experts, places may have run out
    fill(draws);
    for (std::uint32_t place = 0; place < experts_; ++place) out[at_place_[place]] = value(place);
  }

 private:
  /// Puts experts at random free places of [first, last), until there are no more experts or places.
  void settle(std::vector<std::uint16_t>& experts, std::uint32_t first, std::uint32_t last, Draws& draws) {
    if (experts.empty()) return;
    free_.clear();
    for (std::uint32_t place = first; place < last; ++place) {
      if (at_place_[place] == no_expert) free_.push_back(place);
    }
    for (; !experts.empty() && !free_.empty(); experts.pop_back()) {
      at_place_[take(free_, draws)] = experts.back();
    }
  }

  /// Puts the experts that are not needed at the places that are left, and orders the heights of the k best.
  void fill(Draws& draws) {
    others_.clear();
    for (std::uint32_t e = 0; e < experts_; ++e) {
      if (!needed_[e]) others_.push_back(static_cast<std::uint16_t>(e));
    }
    for (std::uint16_t& e : at_place_) {
      if (e == no_expert) e = take(others_, draws);
    }
    std::sort(height_.begin(), height_.end(), std::greater<>());
    for (std::uint32_t i = k_ - 1; i-- > 0;) {  // else experts of equal weight would rank by their numbers
      height_[i] = std::max(height_[i], std::nextafter(height_[i + 1], std::numeric_limits<float>::infinity()));
    }
  }

  [[nodiscard]] float value(std::uint32_t place) const {
    if (place < k_) return height_[place];
    return height_.back() * (static_cast<float>(experts_ - place) / static_cast<float>(2 * experts_));
  }

  template <class T>
  static T take(std::vector<T>& from, Draws& draws) {
    T& place = from[draws.below(static_cast<std::uint32_t>(from.size()))];
    const T taken = place;
    place = from.back();
    from.pop_back();
    return taken;
  }

  const ModelShape& model_;
  std::uint32_t experts_ = 0, k_ = 0, quarter_ = 0;  ///< of the layer at hand
  std::vector<std::uint16_t> at_place_;              ///< [experts] best first
  std::vector<bool> needed_;                         ///< [experts]
  std::vector<float> height_;                        ///< [k]
  std::vector<std::uint16_t> near_, far_, others_;
  std::vector<std::uint32_t> free_;
};

}  // namespace

void AssumedRecall::validate() const {
  if (top_k >= 0 && candidates >= top_k && candidates <= 1) return;  // nan is neither
  throw InputError(
      fmt::format("--assume-recall {},{}: expected shares from 0 to 1, of which the second, among the best "
                  "quarter, counts the k best and so is no smaller than the first",
                  top_k, candidates));
}

void RowNeeds::add(const RowNeeds& other) {
  scores = scores || other.scores;
  partial = partial || other.partial;
  ahead = std::max(ahead, other.ahead);
}

AssumedRows::AssumedRows(const Trace& trace, const AssumedRecall& recall, const RowNeeds& needs)
    : trace_(trace), whole_(trace), recall_(recall) {
  recall_.validate();
  fill_gaps();
  if (needs.scores && trace.scores.empty()) make_scores();
  if (needs.ahead > trace.ahead) make_predicted(needs.ahead);
  if (needs.partial && trace.partial.empty()) make_partial();
}

AssumedRows::Completed AssumedRows::complete(const RowNeeds& needs) const {
  Completed c{trace_, {}};
  if (needs.scores && trace_.scores.empty()) {
    if (!experts_.empty()) c.made.emplace_back("experts");
    c.made.emplace_back("scores");
    c.trace.experts8 = whole_.experts8;
    c.trace.experts16 = whole_.experts16;
    c.trace.weights = whole_.weights;
    c.trace.scores = scores_;
  }
  if (needs.ahead > trace_.ahead) {
    c.made.emplace_back("predicted");
    c.trace.ahead = ahead_;
    c.trace.predicted = predicted_;
    c.trace.choice_predicted = choice_predicted_;
  }
  if (needs.partial && trace_.partial.empty()) {
    c.made.emplace_back("partial");
    c.trace.partial = partial_;
  }
  return c;
}

void AssumedRows::fill_gaps() {
  const std::uint32_t tokens = trace_.tokens, layers = trace_.model.layers, k = trace_.model.top_k;
  bool gaps = false;
  for (std::uint32_t t = 0; t < tokens && !gaps; ++t) {
    for (std::uint32_t l = 0; l < layers; ++l) gaps = gaps || !recorded(trace_, t, l);
  }
  if (!gaps) return;
  experts_.resize(cells_of(trace_) * k);
  weights_.resize(trace_.weights.size());
  for (std::uint32_t l = 0; l < layers; ++l) {
    std::uint32_t last = tokens;  // behind the last recorded row; 0 if none is recorded
    while (last > 0 && !recorded(trace_, last - 1, l)) --last;
    std::uint32_t from = last > 0 ? last - 1 : tokens;
    for (std::uint32_t t = tokens; t-- > 0;) {
      if (recorded(trace_, t, l)) from = t;
      const std::size_t row = (std::size_t{t} * layers + l) * k;
      for (std::uint32_t i = 0; i < k; ++i) {
        if (i >= trace_.model.top_k_of(l)) {
          experts_[row + i] = no_expert;
          continue;
        }
        experts_[row + i] = from < tokens ? trace_.expert(from, l, i) : static_cast<std::uint16_t>(i);
        if (!weights_.empty()) weights_[row + i] = trace_.weight(from < tokens ? from : t, l, i);
      }
    }
  }
  whole_.experts8 = {};
  whole_.experts16 = experts_;
  whole_.weights = weights_;
}

void AssumedRows::make_scores() {
  const std::size_t experts = trace_.model.experts;
  scores_.resize(cells_of(trace_) * experts);
  for (std::uint32_t t = 0; t < trace_.tokens; ++t) {
    for (std::uint32_t l = 0; l < trace_.model.layers; ++l) {
      float* row = scores_.data() + (std::size_t{t} * trace_.model.layers + l) * experts;
      for (std::uint32_t i = 0; i < trace_.model.top_k_of(l); ++i) {
        row[whole_.expert(t, l, i)] = positive(whole_.weight(t, l, i));
      }
    }
  }
}

void AssumedRows::make_predicted(std::uint16_t ahead) {
  const std::size_t experts = trace_.model.experts;
  const std::uint32_t layers = trace_.model.layers;
  ahead_ = ahead;
  predicted_.resize(cells_of(trace_) * ahead * experts);
  // Made-up rows choose by what they weigh; the trace's own may choose by other rows.
  const bool chooses_otherwise = !trace_.choice_predicted.empty();
  if (chooses_otherwise) choice_predicted_.resize(predicted_.size());
  RowMaker maker(trace_.model);
  for (std::uint32_t d = 1; d <= ahead; ++d) {
    const Chances chances = chances_ahead(recall_, d);
    for (std::uint32_t t = 0; t < trace_.tokens; ++t) {
      for (std::uint32_t l = 0; l + d < layers; ++l) {
        const std::size_t at = ((std::size_t{t} * layers + l) * ahead + d - 1) * experts;
        float* row = predicted_.data() + at;
        if (d <= trace_.ahead) {
          const float* own = trace_.predicted_of(t, l, d);
          std::copy(own, own + experts, row);
        } else {
          maker.draw(whole_, t, l + d, chances, Draws(recall_.seed, Stream::assumed, t, l, d), row);
        }
        if (chooses_otherwise) {
          const float* chosen_by = d <= trace_.ahead ? trace_.choice_predicted_of(t, l, d) : row;
          std::copy(chosen_by, chosen_by + experts, choice_predicted_.data() + at);
        }
      }
    }
  }
}

void AssumedRows::make_partial() {
  const std::size_t experts = trace_.model.experts;
  const std::uint32_t layers = trace_.model.layers;
  partial_.resize(cells_of(trace_) * experts);
  RowMaker maker(trace_.model);
  const Chances chances = chances_ahead(recall_, 1);
  for (std::uint32_t t = 0; t < trace_.tokens; ++t) {
    for (std::uint32_t l = 0; l + 1 < layers; ++l) {
      float* row = partial_.data() + (std::size_t{t} * layers + l) * experts;
      maker.draw(whole_, t, l + 1, chances, Draws(recall_.seed, Stream::assumed, t, l), row);
    }
  }
}

std::uint64_t assumed_bytes(const Trace& trace, const RowNeeds& needs) {
  std::uint64_t rows = 0;  // for each token and layer
  if (needs.scores && trace.scores.empty()) ++rows;
  if (needs.ahead > trace.ahead) rows += trace.choice_predicted.empty() ? needs.ahead : 2 * needs.ahead;
  if (needs.partial && trace.partial.empty()) ++rows;
  return cells_of(trace) * rows * trace.model.experts * sizeof(float);
}

void check_assumed_bytes(std::uint64_t bytes) {
  const std::uint64_t most = physical_memory() / 5 * 3;
  if (bytes <= most) return;
  throw InputError(
      fmt::format("--assume-recall: the rows that these stacks read would take {} bytes, expected at most {} "
                  "(60% of this machine's memory): name fewer stacks or traces, or a smaller --depth",
                  bytes, most));
}

}  // namespace ferry::engine
