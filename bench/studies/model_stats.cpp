// What a model's own routing says, beside what the papers report of theirs. Statistics are computed here from gate inputs and
// scores in the plainest way, without the policies. Where the policies count the same things, both counts must be equal.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <numeric>
#include <optional>

#include "cpu/cpu_model.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"
#include "inference/expert_runner.hpp"
#include "profiles/machine.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "shared/text_file.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/progress.hpp"
#include "trace/routing_statistics.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::bench;
using Eigen::Index;

constexpr std::uint32_t window_tokens = 256;  // the begin token and 255 bytes
constexpr std::uint32_t prefill_tokens = 128;
constexpr std::size_t distances = 3;  // how many layers ahead predictions are measured
constexpr float alphas[] = {0.25F, 0.3F, 0.35F};
constexpr std::size_t counted_alpha = 1;  // the one that the core counts by, too
constexpr float t1 = 0.6F, t2 = 0.9F;

struct Arguments {
  std::vector<std::string> models, texts;
  std::uint32_t windows = ~0U, decode_windows = 8;
  std::string json;
};

/// Everything has landed.
constexpr Seen landed{Ticket{~0ULL}, Ticket{~0ULL}, Ticket{~0ULL}};

struct Mean {
  double sum = 0;
  std::uint64_t count = 0;

  void add(double x) {
    sum += x;
    ++count;
  }
  [[nodiscard]] double value() const { return count == 0 ? std::nan("") : sum / static_cast<double>(count); }
};

// Text and models

/// Whole windows only; the rest of a text at its end is not used.
std::vector<std::string> cut(const std::string& path, std::uint32_t most) {
  const std::string text = read_text(path);
  std::vector<std::string> windows;
  for (std::size_t at = 0; at + window_tokens <= text.size() && windows.size() < most; at += window_tokens) {
    windows.push_back(text.substr(at, window_tokens));
  }
  if (windows.empty()) throw InputError(fmt::format("--text {}: shorter than {} bytes", path, window_tokens));
  return windows;
}

/// The windows of all texts. The first ones of each text are also decoded.
struct Texts {
  std::vector<std::string> windows, to_decode;
};

Texts read_texts(const Arguments& a) {
  Texts all;
  for (const std::string& text : a.texts) {
    const std::vector<std::string> cuts = cut(text, a.windows);
    const std::size_t decoded = std::min<std::size_t>(cuts.size(), a.decode_windows);
    all.windows.insert(all.windows.end(), cuts.begin(), cuts.end());
    all.to_decode.insert(all.to_decode.end(), cuts.begin(), cuts.begin() + static_cast<Index>(decoded));
  }
  return all;
}

std::vector<TokenRow> token_rows(const CpuModel& model, const std::string& window) {
  std::vector<TokenRow> rows{{0, model.config().begin_token, 0}};
  for (std::uint32_t i = 1; i < window_tokens; ++i) rows.push_back({0, static_cast<unsigned char>(window[i - 1]), i});
  return rows;
}

/// One window of text as the resident model computed it.
struct Window {
  std::vector<Matrix> inputs;  ///< [layers] of [tokens, hidden]: gate inputs
  std::vector<Matrix> scores;  ///< [layers] of [tokens, experts]
};

class Recorder {
 public:
  explicit Recorder(CpuModel& model) : model_(model) {
    RunnerOptions o;
    o.stack = "resident";
    o.max_rows = prefill_tokens;
    runner_ = make_runner(model, o);
  }

  Window run(const std::string& text) {
    const ModelConfig& c = model_.config();
    Window w;
    w.inputs.assign(c.layers, Matrix(window_tokens, c.hidden));
    w.scores.assign(c.layers, Matrix(window_tokens, c.experts));
    const std::vector<TokenRow> tokens = token_rows(model_, text);
    std::vector<KvCache> caches;
    caches.push_back(model_.make_cache(window_tokens));
    for (std::uint32_t first = 0; first < window_tokens; first += prefill_tokens) {
      const std::vector<TokenRow> rows(tokens.begin() + first, tokens.begin() + first + prefill_tokens);
      model_.forward(Phase::prefill, rows, caches, *runner_, 1,
                     [&](std::uint32_t layer, const Matrix& input, const GateScores& said) {
                       const Matrix& scores = said.weight;
                       w.inputs[layer].middleRows(first, prefill_tokens) = input;
                       w.scores[layer].middleRows(first, prefill_tokens) = scores;
                     });
    }
    runner_->end_sequence(0);
    return w;
  }

 private:
  CpuModel& model_;
  std::unique_ptr<ExpertRunner> runner_;
};

/// `predicted[d - 1][l]`: scores of layer l from the gate input of layer l - d; empty where there is no such layer.
using Predictions = std::vector<std::vector<Matrix>>;

/// The gates, read from the checkpoint again.
class Gates {
 public:
  Gates(const std::filesystem::path& folder, const ModelConfig& c) {
    const Checkpoint checkpoint(folder);
    for (std::uint32_t l = 0; l < c.layers; ++l) {
      const std::vector<float> values = checkpoint.at(c.gate_name(l), {c.experts, c.hidden}).to_floats();
      gates_.emplace_back(Eigen::Map<const Matrix>(values.data(), c.experts, c.hidden));
    }
  }

  /// softmax(W x) for each row x.
  [[nodiscard]] Matrix scores(std::size_t layer, const Matrix& inputs) const {
    Matrix s = inputs * gates_[layer].transpose();
    for (Index i = 0; i < s.rows(); ++i) {
      s.row(i) = (s.row(i).array() - s.row(i).maxCoeff()).exp();
      s.row(i) /= s.row(i).sum();
    }
    return s;
  }

  [[nodiscard]] Predictions predictions(const Window& w) const {
    Predictions predicted(distances, std::vector<Matrix>(gates_.size()));
    for (std::size_t d = 1; d <= distances; ++d) {
      for (std::size_t l = d; l < gates_.size(); ++l) predicted[d - 1][l] = scores(l, w.inputs[l - d]);
    }
    return predicted;
  }

 private:
  std::vector<Matrix> gates_;
};

/// The largest deviation of the engine's own predicted scores from these.
double bank_deviation(CpuModel& model, const Window& w, const Predictions& predicted) {
  double furthest = 0;
  for (std::size_t d = 1; d <= distances; ++d) {
    for (std::size_t l = d; l < predicted[d - 1].size(); ++l) {
      const Scores bank = model.gates().scores(static_cast<std::uint16_t>(l), w.inputs[l - d]);
      for (std::uint32_t j = 0; j < bank.select.size; ++j) {
        furthest = std::max<double>(furthest, std::abs(bank.select[j] - predicted[d - 1][l].data()[j]));
      }
    }
  }
  return furthest;
}

/// A row's experts, best first.
using Ranking = std::vector<std::uint16_t>;

std::vector<Ranking> rank(const Matrix& scores) {
  std::vector<Ranking> all;
  for (Index i = 0; i < scores.rows(); ++i) {
    Ranking& r = all.emplace_back(scores.cols());
    std::iota(r.begin(), r.end(), std::uint16_t{0});
    std::stable_sort(r.begin(), r.end(), [&](auto a, auto b) { return scores(i, a) > scores(i, b); });
  }
  return all;
}

/// How many of the first `needed` experts of `real` are among the first `named` of `predicted`.
std::uint64_t common(const Ranking& real, std::size_t needed, const Ranking& predicted, std::size_t named) {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < needed; ++i) {
    n += static_cast<std::uint64_t>(
        std::count(predicted.begin(), predicted.begin() + static_cast<Index>(named), real[i]));
  }
  return n;
}

/// Of a row's first k, how many lie more than alpha above the best that was not chosen: those are top-score.
std::size_t top_scores(const Eigen::Ref<const Eigen::RowVectorXf>& scores, const Ranking& ranking, std::size_t k,
                       float alpha) {
  std::size_t n = 0;
  while (n < k && scores[ranking[n]] > (1.0F + alpha) * scores[ranking[k]]) ++n;
  return n;
}

// Statistics

struct LayerStats {
  // By distance: predictions from the gate input so many layers before this one.
  Mean cosine[distances];
  Share top_k[distances], percentile[distances], prefill[distances], top_1[distances];

  Share reused, reused_any;            ///< at the next token; any: at least one of the k
  std::vector<std::uint64_t> uses;     ///< [experts]
  std::vector<Share> reused_by_rank;   ///< [experts]: of the expert with the r-th best score, chosen or not
  std::uint64_t s[3] = {};             ///< uses with s <= T1, up to T2, above it
  Share top_score[std::size(alphas)];  ///< of the chosen
  Mean active;                         ///< experts in a prefill
  Share unpopular;                     ///< tokens that the least popular 30% of them get
};

/// Adds up windows.
class Statistics {
 public:
  Statistics(const ModelConfig& c, const CrossLayerGate& rule)
      : experts_(c.experts), k_(c.top_k), candidates_(rule.candidates(c.experts)), layers_(c.layers) {
    for (LayerStats& l : layers_) {
      l.uses.resize(experts_);
      l.reused_by_rank.resize(experts_);
    }
  }

  void add(const Window& w, const Predictions& predicted) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const std::vector<Ranking> real = rank(w.scores[l]);
      for (std::size_t d = 1; d <= std::min(l, distances); ++d) {
        similarity(layers_[l].cosine[d - 1], w.inputs[l], w.inputs[l - d]);
        prediction(layers_[l], d - 1, real, rank(predicted[d - 1][l]));
      }
      reuse(layers_[l], real);
      importance(layers_[l], w.scores[l], real);
      for (std::size_t first = 0; first < window_tokens; first += prefill_tokens) {
        popularity(layers_[l], {real.begin() + static_cast<Index>(first),
                                real.begin() + static_cast<Index>(first + prefill_tokens)});
      }
    }
  }

  [[nodiscard]] const std::vector<LayerStats>& layers() const { return layers_; }

  /// The chance that an expert is used at the next token if tokens chose by the layer's popularity alone.
  [[nodiscard]] double by_popularity(const LayerStats& l) const {
    double sum = 0, squares = 0;
    for (const std::uint64_t n : l.uses) {
      sum += static_cast<double>(n);
      squares += static_cast<double>(n) * static_cast<double>(n);
    }
    return squares / sum / sum * static_cast<double>(k_);
  }

 private:
  static void similarity(Mean& mean, const Matrix& a, const Matrix& b) {
    for (Index i = 0; i < a.rows(); ++i) mean.add(a.row(i).dot(b.row(i)) / (a.row(i).norm() * b.row(i).norm()));
  }

  void prediction(LayerStats& l, std::size_t d, const std::vector<Ranking>& real,
                  const std::vector<Ranking>& predicted) const {
    for (std::size_t i = 0; i < real.size(); ++i) {
      l.top_k[d].part += common(real[i], k_, predicted[i], k_);
      l.top_k[d].whole += k_;
      l.percentile[d].part += common(real[i], k_, predicted[i], candidates_);
      l.percentile[d].whole += k_;
      l.top_1[d].count(real[i][0] == predicted[i][0]);
    }
    for (std::size_t first = 0; first < real.size(); first += prefill_tokens) {
      std::vector<bool> needed(experts_), named(experts_);
      for (std::size_t i = first; i < first + prefill_tokens; ++i) {
        for (std::size_t r = 0; r < k_; ++r) needed[real[i][r]] = named[predicted[i][r]] = true;
      }
      for (std::size_t e = 0; e < experts_; ++e) {
        if (needed[e]) l.prefill[d].count(named[e]);
      }
    }
  }

  void reuse(LayerStats& l, const std::vector<Ranking>& real) const {
    for (std::size_t i = 0; i < real.size(); ++i) {
      for (std::size_t r = 0; r < k_; ++r) ++l.uses[real[i][r]];
      if (i + 1 == real.size()) continue;
      const Ranking &now = real[i], &next = real[i + 1];
      std::uint64_t again = 0;
      for (std::size_t r = 0; r < experts_; ++r) {
        const bool used = std::find(next.begin(), next.begin() + static_cast<Index>(k_), now[r]) !=
                          next.begin() + static_cast<Index>(k_);
        l.reused_by_rank[r].count(used);
        if (r < k_) again += used ? 1 : 0;
      }
      l.reused.part += again;
      l.reused.whole += k_;
      l.reused_any.count(again > 0);
    }
  }

  /// HOBBIT's Eq. 2, in single precision as the policies have it, and the top-score experts.
  void importance(LayerStats& l, const Matrix& scores, const std::vector<Ranking>& real) const {
    for (std::size_t i = 0; i < real.size(); ++i) {
      const Eigen::RowVectorXf row = scores.row(static_cast<Index>(i));
      float sum = 0, above = 0;
      for (std::size_t r = 0; r < k_; ++r) sum += row[real[i][r]];
      for (std::size_t r = 0; r < k_; ++r) {
        const float s = above / sum;
        ++l.s[s <= t1 ? 0 : s <= t2 ? 1 : 2];
        above += row[real[i][r]];
      }
      for (std::size_t a = 0; a < std::size(alphas); ++a) {
        l.top_score[a].part += top_scores(row, real[i], k_, alphas[a]);
        l.top_score[a].whole += k_;
      }
    }
  }

  void popularity(LayerStats& l, const std::vector<Ranking>& prefill) const {
    std::vector<std::uint64_t> tokens(experts_);
    for (const Ranking& r : prefill) {
      for (std::size_t i = 0; i < k_; ++i) ++tokens[r[i]];
    }
    std::sort(tokens.begin(), tokens.end());
    const auto first = std::upper_bound(tokens.begin(), tokens.end(), std::uint64_t{0});
    const Index active = tokens.end() - first;
    l.active.add(static_cast<double>(active));
    l.unpopular.part += std::accumulate(first, first + active * 3 / 10, std::uint64_t{0});
    l.unpopular.whole += prefill.size() * k_;
  }

  std::size_t experts_, k_, candidates_;
  std::vector<LayerStats> layers_;
};

// The same counts, made by the policies

/// Drives a core with recorded scores.
template <class Stack>
class Drive {
 public:
  explicit Drive(const CoreConfig<Stack>& config) : core_(config), layers_(config.model.layers) {}

  void run(Phase phase, const Window& w, const Predictions& predicted) {
    const std::uint32_t rows = phase == Phase::prefill ? prefill_tokens : 1;
    const std::vector<std::uint32_t> sequence(rows, 0);
    for (std::uint32_t first = 0; first < window_tokens; first += rows) {
      core_->begin_step({phase, {sequence.data(), rows}});
      for (std::size_t l = 0; l < layers_; ++l) {
        core_->plan(scores(l, w.scores[l], first, rows), landed);
        for (std::uint16_t d = 1;; ++d) {
          const std::uint16_t ahead = core_->layer_ahead(RowSource::gate_input, d);
          if (ahead == no_layer) break;
          core_->look_ahead(scores(ahead, predicted[d - 1][ahead], first, rows), landed);
        }
        core_->finish(static_cast<std::uint16_t>(l), {}, landed);
      }
    }
    core_->end_sequence(0);
  }

  [[nodiscard]] const Core<Stack>& core() const { return *core_; }

 private:
  static Scores scores(std::size_t layer, const Matrix& all, std::uint32_t first, std::uint32_t rows) {
    const auto columns = static_cast<std::uint32_t>(all.cols());
    const View<const float> v{all.data() + std::size_t{first} * columns, rows * columns};
    return {static_cast<std::uint16_t>(layer), v, v};
  }

  OwnedCore<Stack> core_;
  std::size_t layers_;
};

struct Check {
  std::string what;
  std::uint64_t compared = 0, differ = 0;

  void compare(std::uint64_t a, std::uint64_t b) {
    ++compared;
    differ += a != b ? 1 : 0;
  }
  void compare(const Share& naive, std::uint64_t part, std::uint64_t whole) {
    compare(naive.part, part);
    compare(naive.whole, whole);
  }
};

/// Cores that count the same as the statistics, each with room for every expert.
class Cores {
 public:
  using CrossLayer = stacks::CrossLayerLru;
  using Stacked = Stack<StackedGates, Lru, FixedPrecision, stacks::LoadEverything, TopK>;
  using Mixed = Stack<NoPrediction, LoadOnDemand, ImportanceThresholds, stacks::LoadEverything, TopK>;

  explicit Cores(const ModelShape& shape)
      : cross_(config<CrossLayer>(shape, 1)),
        cross_prefill_(config<CrossLayer>(shape, prefill_tokens)),
        stacked_(config<Stacked>(shape, 1)),
        stacked_prefill_(config<Stacked>(shape, prefill_tokens)),
        mixed_(config<Mixed>(shape, 1)),
        shape_(shape) {}

  void add(const Window& w, const Predictions& predicted) {
    cross_.run(Phase::decode, w, predicted);
    cross_prefill_.run(Phase::prefill, w, predicted);
    stacked_.run(Phase::decode, w, predicted);
    stacked_prefill_.run(Phase::prefill, w, predicted);
    mixed_.run(Phase::decode, w, predicted);
  }

  [[nodiscard]] std::vector<Check> compare(const std::vector<LayerStats>& layers) const {
    Check percentile{"recall above the percentile, and top-1: CrossLayerGate in decode"};
    Check votes{"recall in prefill, and top-1: CrossLayerGate"};
    Check top_k{"recall with top-k, and top-1: StackedGates in decode, distances 1 to 3"};
    Check stacked{"recall in prefill, and top-1: StackedGates, distances 1 to 3"};
    Check top{fmt::format("top-score experts at alpha {}: the core's requests", alphas[counted_alpha])};
    Check eq2{"shares of Eq. 2: ImportanceThresholds"};
    std::uint64_t uses[3] = {}, top_score = 0;
    for (std::uint16_t l = 0; l < layers.size(); ++l) {
      const LayerStats& s = layers[l];
      for (std::uint16_t d = 1; d <= std::min<std::size_t>(distances, l); ++d) {
        compare(top_k, s.top_k[d - 1], s.top_1[d - 1], stacked_.core().prediction_accuracy(d, l));
        compare(stacked, s.prefill[d - 1], s.top_1[d - 1], stacked_prefill_.core().prediction_accuracy(d, l));
      }
      if (l > 0) {
        compare(percentile, s.percentile[0], s.top_1[0], cross_.core().prediction_accuracy(1, l));
        compare(votes, s.prefill[0], s.top_1[0], cross_prefill_.core().prediction_accuracy(1, l));
      }
      for (std::size_t i = 0; i < 3; ++i) uses[i] += s.s[i];
      top_score += s.top_score[counted_alpha].part;
    }
    top.compare(top_score, cross_.core().counters().of(Phase::decode).top_requests);
    const Counters& mixed = mixed_.core().counters();
    auto copies = [&](Precision p) { return mixed.bytes_by_precision[static_cast<unsigned>(p)] / shape_.bytes(0, p); };
    eq2.compare(uses[0], copies(Precision::full));
    eq2.compare(uses[1], copies(Precision::int4));
    eq2.compare(uses[2], mixed.of(Phase::decode).skipped);
    return {percentile, votes, top_k, stacked, top, eq2};
  }

 private:
  template <class Stack>
  static CoreConfig<Stack> config(ModelShape shape, std::uint32_t max_rows) {
    CoreConfig<Stack> c;
    shape.max_rows = max_rows;
    c.model = shape;
    c.allotment = everything(shape);
    if constexpr (std::is_same_v<Stack, Mixed>) {
      c.precision.t1 = t1;
      c.precision.t2 = t2;
      c.allotment = stream_only(shape, shape.all_bytes());
    }
    c.top_score_alpha = alphas[counted_alpha];
    return c;
  }

  static void compare(Check& check, const Share& recall, const Share& top_1, const Accuracy& a) {
    check.compare(recall, a.predicted, a.needed);
    check.compare(top_1, a.rows_top1, a.rows);
  }

  Drive<CrossLayer> cross_, cross_prefill_;
  Drive<Stacked> stacked_, stacked_prefill_;
  Drive<Mixed> mixed_;
  ModelShape shape_;
};

// Partial hidden states

/// Stands before the runner of `importance+pre` and compares the scores of each partial hidden state with the real
/// ones that follow.
class PartialWatch final : public PassingRunner {
 public:
  PartialWatch(std::unique_ptr<ExpertRunner> inner, const ModelConfig& c, float alpha)
      : PassingRunner(*inner), inner_(std::move(inner)), k_(c.top_k), alpha_(alpha), pending_(c.layers) {}

  // Of the experts that were predicted as top-score; and of those among them that were absent and whose copy had begun before
  // the real gate spoke.
  struct Counts {
    Share top_score;   ///< those that are top-score
    Share active;      ///< those of the others that the gate chose
    Share active_all;  ///< those of all that the gate chose
  };
  Counts predicted, prefetched;
  Share recall;      ///< of the k experts that the gate chose, those that were predicted
  Share recall_top;  ///< of its top-score experts
  Share top_1;
  std::uint64_t strays = 0;  ///< copies that were not predicted: there must be none

  void plan(std::uint16_t layer, const Matrix& input, const GateScores& scores, const Times& took) override {
    const std::uint64_t dropped = statistics().counters.prefetch.dropped;
    runner_.plan(layer, input, scores, took);
    if (!pending_[layer]) return;
    Predicted f = *std::exchange(pending_[layer], std::nullopt);
    f.begun -= statistics().counters.prefetch.dropped - dropped;  // its layer is the only one with prefetches queued
    const Ranking real = rank(scores.select)[0];
    const std::size_t top = top_scores(scores.weight.row(0), real, k_, alpha_);
    f.active.assign(real.begin(), real.begin() + static_cast<Index>(k_));
    f.top_score.assign(real.begin(), real.begin() + static_cast<Index>(top));
    for (const std::uint16_t e : f.named) count(predicted, f, e);
    for (const std::uint16_t e : f.active) recall.count(has(f.named, e));
    for (const std::uint16_t e : f.top_score) recall_top.count(has(f.named, e));
    top_1.count(f.best == real[0]);
    past_.push_back(std::move(f));
  }

  void look_ahead(std::uint16_t layer, const GateScores& scores) override {
    const Ranking ranking = rank(scores.select)[0];
    Predicted f{layer, ranking[0], ranking, {}, {}, 0};
    f.named.resize(top_scores(scores.weight.row(0), ranking, k_, alpha_));
    const std::uint64_t before = submitted();
    runner_.look_ahead(layer, scores);
    f.begun = submitted() - before;
    pending_[layer] = std::move(f);
  }

  /// At the end, finds by the link's log which experts were copied. The link carries a layer's prefetches in order.
  void match_copies() {
    std::vector<std::vector<std::uint16_t>> copies(pending_.size());
    for (const Span& s : runner_.link_spans()) {
      if (std::strcmp(s.name, "prefetch") == 0) copies[s.what.id.layer].push_back(s.what.id.expert);
    }
    std::vector<std::size_t> next(pending_.size());
    for (const Predicted& f : past_) {
      for (std::uint64_t i = 0; i < f.begun; ++i) {
        if (next[f.layer] == copies[f.layer].size()) {
          ++strays;
          continue;
        }
        const std::uint16_t e = copies[f.layer][next[f.layer]++];
        strays += has(f.named, e) ? 0 : 1;
        count(prefetched, f, e);
      }
    }
    for (std::size_t l = 0; l < copies.size(); ++l) strays += copies[l].size() - next[l];
  }

  /// After `match_copies`: the same counts by the runner and by the link's log.
  [[nodiscard]] std::vector<Check> compare() const {
    const PrefetchCounts prefetch = statistics().counters.prefetch;
    Check by_runner{"recall of partial hidden states: the runner of importance+pre"};
    by_runner.compare(recall, prefetch.accuracy.predicted, prefetch.accuracy.needed);
    by_runner.compare(top_1, prefetch.accuracy.rows_top1, prefetch.accuracy.rows);
    Check by_link{"its copies in the link's log"};
    by_link.compare(strays, 0);
    by_link.compare(prefetched.top_score.whole, prefetch.issued);
    return {by_runner, by_link};
  }

 private:
  struct Predicted {
    std::uint16_t layer, best;
    Ranking named, active, top_score;
    std::uint64_t begun;
  };

  static bool has(const Ranking& experts, std::uint16_t e) {
    return std::find(experts.begin(), experts.end(), e) != experts.end();
  }
  static void count(Counts& c, const Predicted& f, std::uint16_t e) {
    const bool top = has(f.top_score, e), active = has(f.active, e);
    c.top_score.count(top);
    c.active_all.count(active);
    if (!top) c.active.count(active);
  }
  [[nodiscard]] std::uint64_t submitted() const {
    const Counters c = statistics().counters;
    return c.prefetch.issued + c.prefetch.dropped;  // `issued` does not include what was dropped
  }

  std::unique_ptr<ExpertRunner> inner_;
  std::size_t k_;
  float alpha_;
  std::vector<std::optional<Predicted>> pending_;  ///< by layer
  std::vector<Predicted> past_;
};

/// Decodes windows of text token by token, whatever the model itself would have said, under `importance+pre`, with a quarter
/// of the experts on the device, on a virtual clock with the ratio of an RTX 3090 on PCIe 3.
PartialWatch watch_partial(CpuModel& model, const std::vector<std::string>& windows) {
  const ModelConfig& c = model.config();
  const ModelShape shape = model_shape(c, model.store(), 1);
  constexpr Nanoseconds layer_ns = 1'000'000;  // half attention and gate, half experts; only ratios matter
  RunnerOptions o;
  o.stack = "importance+pre";
  o.budget_bytes = shape.all_bytes() / 4;
  o.max_rows = 1;
  o.alpha = alphas[counted_alpha];
  const double copy_s = read_machine("rtx3090-pcie3").ratio() * layer_ns * 1e-9;
  Costs& costs = o.virtual_costs.emplace();
  costs.device.start_ns = layer_ns / 2 / c.top_k;
  costs.layer_ns = layer_ns / 2 - costs.device.start_ns;
  costs.work.resize(1);
  costs.link_bytes_per_s = static_cast<std::uint64_t>(static_cast<double>(shape.bytes(0, Precision::full)) / copy_s);
  o.log = true;
  PartialWatch watch(make_runner(model, o), c, *o.alpha);
  ProgressLine progress("decoding windows");
  for (std::size_t i = 0; i < windows.size(); ++i) {
    std::vector<KvCache> caches;
    caches.push_back(model.make_cache(window_tokens));
    for (const TokenRow& token : token_rows(model, windows[i])) {
      model.forward(Phase::decode, {token}, caches, watch, 1);
    }
    watch.end_sequence(0);
    progress.show(i + 1, windows.size());
  }
  watch.match_copies();
  return watch;
}

// Report

/// One figure by layer.
struct Figure {
  std::string key, title;
  std::vector<double> by_layer;  ///< NaN where there is none
  enum Unit { plain, percent, count } unit = percent;

  [[nodiscard]] double mean() const {
    Mean m;
    for (const double x : by_layer) {
      if (!std::isnan(x)) m.add(x);
    }
    return m.value();
  }
  [[nodiscard]] std::string cell(double x) const {
    if (std::isnan(x)) return "-";
    return unit == percent ? fmt::format("{:.1f}", 100 * x) : fmt::format("{:.{}f}", x, unit == plain ? 3 : 1);
  }
};

template <class Get>
Figure figure(const std::string& key, const std::string& title, const std::vector<LayerStats>& layers, Get get,
              Figure::Unit unit = Figure::percent) {
  Figure f{key, title, {}, unit};
  for (const LayerStats& l : layers) f.by_layer.push_back(get(l));
  return f;
}

std::vector<Figure> figures(const Statistics& statistics, std::uint32_t candidates, std::uint32_t k) {
  const std::vector<LayerStats>& layers = statistics.layers();
  std::vector<Figure> all;
  auto by_distance = [&](const std::string& key, const std::string& title, auto member, Figure::Unit unit) {
    for (std::size_t d = 0; d < distances; ++d) {
      all.push_back(figure(
          fmt::format("{}_{}", key, d + 1), fmt::format("{} {} layer{} before", title, d + 1, d == 0 ? "" : "s"),
          layers, [&](const LayerStats& l) { return (l.*member)[d].value(); }, unit));
    }
  };
  by_distance("cosine", "cosine to the gate input of", &LayerStats::cosine, Figure::plain);
  by_distance("recall_top_k", fmt::format("top-{} recall from", k), &LayerStats::top_k, Figure::percent);
  by_distance("recall_percentile", fmt::format("75th percentile recall (best {}) from", candidates),
              &LayerStats::percentile, Figure::percent);
  by_distance("recall_prefill", fmt::format("recall in a prefill of {} from", prefill_tokens), &LayerStats::prefill,
              Figure::percent);
  by_distance("top_1", "top-1 accuracy from", &LayerStats::top_1, Figure::percent);
  auto add = [&](const char* key, const std::string& title, auto get, Figure::Unit unit = Figure::percent) {
    all.push_back(figure(key, title, layers, get, unit));
  };
  using L = const LayerStats&;
  add("reused", "used again at the next token", [](L l) { return l.reused.value(); });
  add("reused_by_popularity", "  if popularity were all", [&](L l) { return statistics.by_popularity(l); });
  add("reused_top_1", "best used again at the next token", [](L l) { return l.reused_by_rank[0].value(); });
  add("reused_any", fmt::format("any of {} used again at the next token", k), [](L l) { return l.reused_any.value(); });
  const char* groups[] = {"s <= 0.6", "0.6 < s <= 0.9", "s > 0.9"};
  const char* keys[] = {"s_to_0.6", "s_to_0.9", "s_above_0.9"};
  for (std::size_t i = 0; i < 3; ++i) {
    add(keys[i], fmt::format("Eq. 2: {}", groups[i]),
        [i](L l) { return static_cast<double>(l.s[i]) / static_cast<double>(l.s[0] + l.s[1] + l.s[2]); });
  }
  for (std::size_t a = 0; a < std::size(alphas); ++a) {
    add(a == 0   ? "top_score_0.25"
        : a == 1 ? "top_score_0.3"
                 : "top_score_0.35",
        fmt::format("top-score at alpha {}", alphas[a]), [a](L l) { return l.top_score[a].value(); });
  }
  add(
      "active", fmt::format("experts active in a prefill of {}", prefill_tokens), [](L l) { return l.active.value(); },
      Figure::count);
  add("unpopular", "tokens of the least popular 30% of them", [](L l) { return l.unpopular.value(); });
  return all;
}

/// 1 - C(E - k, k) / C(E, k): k experts drawn blindly twice have one in common.
double any_by_chance(std::uint32_t experts, std::uint32_t k) {
  double none = 1;
  for (std::uint32_t i = 0; i < k; ++i) none *= static_cast<double>(experts - k - i) / static_cast<double>(experts - i);
  return 1 - none;
}

std::vector<double> reuse_by_rank(const std::vector<LayerStats>& layers) {
  std::vector<double> by_rank(layers[0].reused_by_rank.size());
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    for (const LayerStats& l : layers) by_rank[r] += l.reused_by_rank[r].value() / static_cast<double>(layers.size());
  }
  return by_rank;
}

void print_figures(const std::vector<Figure>& all, std::uint32_t layers) {
  fmt::print("{:<52}", "layer");
  for (std::uint32_t l = 0; l < layers; ++l) fmt::print("{:>6}", l);
  fmt::print("{:>7}\n", "mean");
  for (const Figure& f : all) {
    fmt::print("{:<52}", f.title);
    for (const double x : f.by_layer) fmt::print("{:>6}", f.cell(x));
    fmt::print("{:>7}\n", f.cell(f.mean()));
  }
}

void print_reuse(const std::vector<double>& by_rank) {
  fmt::print("used at the next token, by the rank of its score now (all layers):\n");
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    fmt::print("{:>6}{}", fmt::format("{:.1f}", 100 * by_rank[r]), r % 16 == 15 || r + 1 == by_rank.size() ? "\n" : "");
  }
}

void print_partial(const PartialWatch& partial, std::size_t windows) {
  auto line = [](const char* what, const PartialWatch::Counts& n) {
    fmt::print("  {:<26} {:>8}: {:.1f}% are top-score, {:.1f}% of the others active, {:.1f}% active in all\n", what,
               n.top_score.whole, 100 * n.top_score.value(), 100 * n.active.value(), 100 * n.active_all.value());
  };
  fmt::print("\npartial hidden states, alpha {}, a quarter of the experts on the device, {} windows decoded:\n",
             alphas[counted_alpha], windows);
  line("predicted as top-score", partial.predicted);
  line("of those, copied", partial.prefetched);
  fmt::print("  {:.1f}% of the gate's top-score experts were predicted, {:.1f}% of all its experts; {:.1f}% top-1\n",
             100 * partial.recall_top.value(), 100 * partial.recall.value(), 100 * partial.top_1.value());
  const Outcomes o = partial.statistics().counters.of(Phase::decode);
  auto share = [&](std::uint64_t n) { return 100 * Accuracy::ratio(n, o.requests); };
  fmt::print(
      "  of what the gate asked for, {:.1f}% was there, {:.1f}% on its way, {:.1f}% replaced, {:.1f}% missing\n\n",
      share(o.hits), share(o.late_hits), share(o.substituted), share(o.misses));
}

void print_checks(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    fmt::print("{:<70} {} ({} numbers)\n", check.what,
               check.differ == 0 ? "agrees" : fmt::format("DISAGREES in {}", check.differ), check.compared);
  }
}

/// NaN is no JSON.
Json number(double x) {
  return std::isnan(x) ? Json() : Json(x);
}

Json figures_json(const std::vector<Figure>& all) {
  Json json = Json::object();
  for (const Figure& f : all) {
    Json by_layer = Json::array();
    for (const double x : f.by_layer) by_layer.push_back(number(x));
    json[f.key] = {{"mean", number(f.mean())}, {"by_layer", by_layer}};
  }
  return json;
}

Json counts_json(const PartialWatch::Counts& c) {
  return {{"experts", c.top_score.whole},
          {"top_score", number(c.top_score.value())},
          {"others_active", number(c.active.value())},
          {"active", number(c.active_all.value())}};
}

Json partial_json(const PartialWatch& partial, std::size_t windows) {
  const Outcomes o = partial.statistics().counters.of(Phase::decode);
  return {{"windows", windows},
          {"alpha", std::round(100.0 * alphas[counted_alpha]) / 100},
          {"predicted", counts_json(partial.predicted)},
          {"copied", counts_json(partial.prefetched)},
          {"recall", number(partial.recall.value())},
          {"recall_top_score", number(partial.recall_top.value())},
          {"top_1", number(partial.top_1.value())},
          {"requests", o.requests},
          {"hits", o.hits},
          {"late_hits", o.late_hits},
          {"substituted", o.substituted},
          {"misses", o.misses}};
}

Json checks_json(const std::vector<Check>& checks) {
  Json json = Json::array();
  for (const Check& check : checks) {
    json.push_back({{"what", check.what}, {"compared", check.compared}, {"differ", check.differ}});
  }
  return json;
}

/// The statistics of one model. False if a check failed.
bool measure(const Arguments& a, const std::string& name, Json& json) {
  const std::filesystem::path folder = find_model(name);
  CpuModel model(folder);
  const ModelConfig& c = model.config();
  if (c.top_k >= c.experts) throw InputError(fmt::format("--model {}: every expert is always active", name));
  ModelShape shape = model_shape(c, model.store(), 1);
  shape.expert_bytes[0][static_cast<unsigned>(Precision::int4)] = model.store().layout().bytes(Precision::int4);
  const CrossLayerGate rule;
  const Texts texts = read_texts(a);

  const Gates gates(folder, c);
  Recorder recorder(model);
  Statistics statistics(c, rule);
  Cores cores(shape);
  double furthest = 0;
  ProgressLine progress(name + ": windows");
  for (std::size_t i = 0; i < texts.windows.size(); ++i) {
    const Window w = recorder.run(texts.windows[i]);
    const Predictions predicted = gates.predictions(w);
    furthest = std::max(furthest, bank_deviation(model, w, predicted));
    statistics.add(w, predicted);
    cores.add(w, predicted);
    progress.show(i + 1, texts.windows.size());
  }
  const PartialWatch partial = watch_partial(model, texts.to_decode);
  std::vector<Check> checks = cores.compare(statistics.layers());
  for (const Check& check : partial.compare()) checks.push_back(check);

  const std::vector<Figure> by_layer = figures(statistics, rule.candidates(c.experts), c.top_k);
  const std::vector<double> by_rank = reuse_by_rank(statistics.layers());
  const double one = static_cast<double>(c.top_k) / c.experts, any = any_by_chance(c.experts, c.top_k);
  fmt::print("{}: {} layers, {} experts, top-{}; {} windows of {} tokens from {} text{}\n\n", name, c.layers, c.experts,
             c.top_k, texts.windows.size(), window_tokens, a.texts.size(), a.texts.size() == 1 ? "" : "s");
  print_figures(by_layer, c.layers);
  fmt::print("(by chance: one expert {:.1f}, any of {} {:.1f})\n\n", 100 * one, c.top_k, 100 * any);
  print_reuse(by_rank);
  print_partial(partial, texts.to_decode.size());
  print_checks(checks);
  fmt::print("GateBank's scores are within {:.1e} of those above\n\n", furthest);

  json.push_back({{"model", name},
                  {"windows", texts.windows.size()},
                  {"window_tokens", window_tokens},
                  {"figures", figures_json(by_layer)},
                  {"chance", {{"reused", one}, {"reused_any", any}}},
                  {"reused_by_rank", by_rank},
                  {"partial_hidden", partial_json(partial, texts.to_decode.size())},
                  {"checks", checks_json(checks)}});
  return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.differ == 0; });
}

int run(Arguments& a) {
  if (a.models.empty()) a.models = {"tiny-qwen-moe"};
  if (a.texts.empty()) throw InputError("--text: give at least one text to run a model on");
  JsonFile file(a.json);
  Json json = Json::array();
  bool good = true;
  for (const std::string& m : a.models) good = measure(a, m, json) && good;
  file.commit(json);
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("Measures a model's routing on text as the papers do.", "model_stats");
  const CLI::Range some(1, 1 << 30);
  app.add_option("--model", a.models, "folder, or a bundled model's name; may be given several times")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_option("--text", a.texts, "text that the model was not trained on; may be given several times")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_option("--windows", a.windows, "at most so many windows of 256 bytes of each text")
      ->type_name("N")
      ->check(some);
  app.add_option("--decode-windows", a.decode_windows,
                 "windows of each text that are decoded for partial hidden states")
      ->type_name("N")
      ->check(some)
      ->capture_default_str();
  add_json_option(app, a.json);
  return parse_and_run(app, argc, argv, [&] { return run(a); });
}
