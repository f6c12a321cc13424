#include "trace/synthetic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ferry/predictor/cross_layer_gate.hpp"
#include "support/memory.hpp"
#include "trace/synthetic_calibration.hpp"

namespace ferry::engine {
namespace {

using namespace synthetic;

class PredictionMaker {
 public:
  explicit PredictionMaker(const ModelShape& m)
      : experts_(m.experts), k_(m.top_k), named_(CrossLayerGate{}.candidates(m.experts)) {}

  /// `order`: the k + 1 best of `out`.
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
      std::uint32_t e = events.below(experts_);  // it swaps with the first fitting expert from here on
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
    f.trace.ahead = o_.ahead;
    f.work = shape_.work;
    f.source = fmt::format("synthetic, seed {}", o_.seed);
    const std::size_t each = o_.prompt + std::size_t{o_.tokens}, cells = o_.sequences * each * model_.layers;
    need_memory(cells);
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
      for (std::uint32_t l = 0; l < model_.layers; ++l) {
        const std::uint64_t layers = model_.layers;
        if (o_.progress && !o_.progress(s * layers + l, o_.sequences * layers)) return nullptr;
        layer(s, l);
      }
    }
    f.view();
    return std::move(made_);
  }

 private:
  /// Refuses what the system would end the process for.
  void need_memory(std::size_t cells) const {
    const double floats = model_.top_k * 1.5 + model_.experts * (1.0 + o_.ahead + (o_.partial ? 1 : 0));
    const double bytes = static_cast<double>(cells) * floats * sizeof(float);
    const double most = static_cast<double>(physical_memory()) * 0.8;
    if (bytes <= most) return;
    refuse(fmt::format(
        "{} tokens would take {:.0f} GB, expected at most {:.0f} (80% of this machine's memory): ask for fewer "
        "sequences or tokens, or leave out predictions (--ahead 0, --no-partial)",
        cells / model_.layers, bytes / 1e9, most / 1e9));
  }
  [[nodiscard]] Latent* row(std::vector<Latent>& rows, std::uint32_t token) {
    return rows.data() + std::size_t{token} * model_.experts;
  }
  [[nodiscard]] std::uint16_t* best(std::uint32_t token) {
    return best_.data() + token * (model_.top_k + std::size_t{1});
  }
  [[nodiscard]] std::uint16_t* named(std::uint32_t token) {
    return named_.data() + token * (model_.top_k + std::size_t{1});
  }
  /// Index of a token and layer in the trace.
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
    detail::best_of(scores, model_.experts, k, routes_.data());  // differs from `best(t)` only where floats tie
    float sum = 0;
    for (const Route& r : routes_) sum += scores[r.expert];
    for (std::uint32_t i = 0; i < k; ++i) {
      const std::uint16_t e = routes_[i].expert;
      best(t)[i] = made_->experts[at * k + i] = e;
      made_->weights[at * k + i] = shape_.model.renormalises() ? scores[e] / sum : scores[e];
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

  /// Draws how many of the experts that a prompt needs are to be predicted by none of its rows. If more are missed, predicts
  /// those needed most often; if fewer are, no longer predicts those predicted least often.
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

  /// Predicts the expert in a row that needs it, instead of one that other rows also predict or that no row needs.
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

  /// Stops all rows from predicting the last of these experts: the best expert that is not among them takes its place.
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

  /// Sets the heights of the k best of a row. `order`: its k + 1 best.
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

}  // namespace

std::unique_ptr<TraceFile> synthesize(const ModelFacts& shape, const SyntheticOptions& options) {
  return Maker(shape, options).make();
}

}  // namespace ferry::engine
