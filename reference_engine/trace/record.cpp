#include "trace/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "ferry/gate/gate_bank.hpp"
#include "inference/generate.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Grows an array to `rows` rows of this size, and sets row `at`.
void put(std::vector<float>& to, std::size_t rows, std::size_t at, std::span<const float> row) {
  to.resize(rows * row.size());
  std::copy(row.begin(), row.end(), to.begin() + static_cast<std::ptrdiff_t>(at * row.size()));
}

std::span<const float> row_of(const Matrix& m, std::size_t i) {
  const auto size = static_cast<std::size_t>(m.cols());
  return {m.data() + i * size, size};
}

/// Whether a gate chooses experts by other scores than it weighs them by.
bool separate(const GateScores& scores) {
  return scores.select.data() != scores.weight.data();
}

}  // namespace

Recorder::Recorder(ExpertRunner& runner, Model& model, std::uint16_t ahead)
    : PassingRunner(runner), model_(model), ahead_(ahead), weighing_(model_shape(model.config(), model.store(), 1)) {}

void Recorder::begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) {
  phase_ = phase;
  rows_ = sequences;
  for (const std::uint32_t s : sequences) {
    if (open_.size() <= s) open_.resize(s + 1U);
    open_[s].phase.push_back(static_cast<std::uint8_t>(phase));
  }
  runner_.begin_step(phase, sequences);
}

void Recorder::plan(std::uint16_t layer, const Matrix& input, const GateScores& scores, const Times& took) {
  const ModelConfig& c = model_.config();
  const std::size_t experts = c.experts;
  std::vector<Route> best(experts);
  const auto later = static_cast<std::uint16_t>(std::min<std::uint32_t>(ahead_, c.moe_layer_count() - layer - 1U));
  View<const Scores> predicted;
  if (later > 0)
    predicted = model_.gates().scores(static_cast<std::uint16_t>(layer + 1), later, scores.gate_input(input));
  // Arrays are [tokens, layers], but a step with several tokens of a sequence comes layer by layer: each row's place has to
  // be computed.
  std::vector<std::uint32_t> seen(open_.size(), 0), of_step(open_.size(), 0);
  for (const std::uint32_t s : rows_) ++of_step[s];
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    Sequence& s = open_[rows_[i]];
    const std::size_t token = s.phase.size() - of_step[rows_[i]] + seen[rows_[i]]++;
    const std::size_t cell = token * c.moe_layer_count() + layer, cells = s.phase.size() * c.moe_layer_count();
    s.experts.resize(cells * c.top_k, no_expert);
    s.weights.resize(cells * c.top_k);
    s.predicted.resize(cells * ahead_ * experts);
    const std::span<const float> row = row_of(scores.weight, i), choice = row_of(scores.select, i);
    put(s.scores, cells, cell, row);
    if (separate(scores)) {
      put(s.choice_scores, cells, cell, choice);
      s.choice_predicted.resize(cells * ahead_ * experts);
    }
    const std::uint32_t chosen = c.moe(layer).top_k;
    detail::best_of(choice.data(), c.experts, chosen, best.data());
    weighing_.weigh(row.data(), chosen, best.data());
    for (std::uint32_t k = 0; k < chosen; ++k) {
      s.experts[cell * c.top_k + k] = best[k].expert;
      s.weights[cell * c.top_k + k] = best[k].weight;
    }
    for (std::uint32_t d = 0; d < predicted.size; ++d) {
      const std::size_t at = cell * ahead_ + d;
      put(s.predicted, cells * ahead_, at, {predicted[d].weight.data + i * experts, experts});
      if (separate(scores)) {
        put(s.choice_predicted, cells * ahead_, at, {predicted[d].select.data + i * experts, experts});
      }
    }
  }
  runner_.plan(layer, input, scores, took);
}

void Recorder::look_ahead(std::uint16_t layer, const GateScores& scores) {
  const ModelConfig& c = model_.config();
  std::vector<std::uint32_t> seen(open_.size(), 0), of_step(open_.size(), 0);
  for (const std::uint32_t s : rows_) ++of_step[s];
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    Sequence& s = open_[rows_[i]];
    const std::size_t token = s.phase.size() - of_step[rows_[i]] + seen[rows_[i]]++;
    const std::size_t cell = token * c.moe_layer_count() + layer - 1U, cells = s.phase.size() * c.moe_layer_count();
    put(s.partial, cells, cell, row_of(scores.weight, i));
    if (separate(scores)) put(s.choice_partial, cells, cell, row_of(scores.select, i));
  }
  runner_.look_ahead(layer, scores);
}

void Recorder::end_sequence(std::uint32_t sequence) {
  runner_.end_sequence(sequence);
  if (sequence >= open_.size() || open_[sequence].phase.empty()) return;
  if (made_ == nullptr) made_ = std::make_unique<TraceFile>();
  Sequence& s = open_[sequence];
  made_->sequence_start.push_back(static_cast<std::uint32_t>(made_->phase.size()));
  append(made_->experts, s.experts);
  append(made_->weights, s.weights);
  append(made_->scores, s.scores);
  append(made_->predicted, s.predicted);
  append(made_->choice_scores, s.choice_scores);
  append(made_->choice_predicted, s.choice_predicted);
  if (!s.partial.empty()) {
    fill_partial();
    append(made_->partial, s.partial);
    append(made_->choice_partial, s.choice_partial);
  }
  append(made_->phase, s.phase);
  s = {};
}

void Recorder::fill_partial() {
  const ModelConfig& c = model_.config();
  made_->partial.resize(made_->phase.size() * c.moe_layer_count() * c.experts);
  if (!made_->choice_scores.empty()) made_->choice_partial.resize(made_->partial.size());
}

std::unique_ptr<TraceFile> Recorder::take(const std::string& name) {
  if (made_ == nullptr) throw InputError("no token was recorded");
  if (!made_->partial.empty()) fill_partial();
  const ModelConfig& c = model_.config();
  Trace& t = made_->trace;
  t.name = name;
  t.model = model_shape(c, model_.store(), 1);
  const std::vector<ExpertLayout> layouts = model_.store().layouts();
  for (std::size_t l = 0; l < layouts.size(); ++l) {
    for (std::uint32_t p = 1; p < precision_count; ++p) {  // all that a store could hold
      t.model.expert_bytes[l][p] = layouts[l].bytes(static_cast<Precision>(p));
    }
  }
  t.ahead = ahead_;
  made_->work = model_work(c, model_.dense_bits());
  made_->view();
  return std::move(made_);
}

std::unique_ptr<TraceFile> record_text(Model& model, ExpertRunner& runner, const std::string& name,
                                       const std::string& text, const RecordOptions& options) {
  if (text.empty()) throw InputError("the text is empty");
  const std::vector<std::uint32_t> tokens =
      model.need_tokenizer().encode(text, false);  // each window gets its own begin
  return record_tokens(model, runner, name, {tokens}, options);
}

std::unique_ptr<TraceFile> record_tokens(Model& model, ExpertRunner& runner, const std::string& name,
                                         const std::vector<std::vector<std::uint32_t>>& texts, const RecordOptions& o) {
  const ModelConfig& c = model.config();
  check_tokens(c, texts);
  if (o.window < 2 || o.window > c.context) {
    throw InputError(fmt::format("--window {}: expected 2 to {}, the model's context", o.window, c.context));
  }
  if (o.prompt < 1 || o.prompt > o.window) {
    throw InputError(fmt::format("--prompt-tokens {}: expected 1 to {}, the window", o.prompt, o.window));
  }
  Recorder recorder(runner, model, o.ahead);
  const std::vector<std::uint32_t> begin = model.begin_tokens();
  if (begin.size() >= o.window) {
    throw InputError(fmt::format("--window {}: expected more, texts begin with {} tokens", o.window, begin.size()));
  }
  std::uint64_t gathered = 0;
  std::vector<std::vector<std::uint32_t>> windows;
  for (const std::vector<std::uint32_t>& text : texts) {
    for (std::ptrdiff_t at = 0; at < std::ssize(text) && gathered < o.tokens; gathered += windows.back().size()) {
      std::vector<std::uint32_t>& window = windows.emplace_back();
      // A text that is given as tokens may already have its begin tokens.
      const bool begins =
          std::ssize(text) - at >= std::ssize(begin) && std::equal(begin.begin(), begin.end(), text.begin() + at);
      if (!begins) window = begin;
      while (window.size() < o.window && at < std::ssize(text)) window.push_back(text[static_cast<std::size_t>(at++)]);
    }
  }
  std::vector<std::uint32_t> said;
  for (std::uint64_t w = 0; w < windows.size(); ++w) {
    const std::vector<std::uint32_t>& tokens = windows[w];
    std::vector<KvCache> caches;
    caches.push_back(model.make_cache(static_cast<std::uint32_t>(tokens.size())));
    for (std::uint32_t at = 0; at < tokens.size();) {
      const Phase phase = at < o.prompt ? Phase::prefill : Phase::decode;
      const auto end = phase == Phase::decode
                           ? at + 1
                           : std::min<std::uint32_t>(o.prompt, static_cast<std::uint32_t>(tokens.size()));
      std::vector<TokenRow> rows;
      for (; at < end; ++at) rows.push_back({0, tokens[at], at});
      model.forward(phase, rows, caches, recorder, 1);
    }
    recorder.end_sequence(0);
    append(said, tokens);
    if (o.progress && !o.progress(w + 1, windows.size())) break;
  }
  auto made = recorder.take(name);
  made->token_ids = std::move(said);
  return made;
}

std::unique_ptr<TraceFile> record_text(Model& model, const std::string& name, const std::string& text,
                                       const RecordOptions& options) {
  RunnerOptions resident;
  resident.stack = "resident";
  resident.max_rows = std::max<std::uint32_t>(options.window, 1);
  resident.budget_bytes = model_shape(model.config(), model.store(), resident.max_rows).all_bytes();
  const auto runner = make_runner(model, resident);
  return record_text(model, *runner, name, text, options);
}

std::vector<LayerWork> model_work(const ModelConfig& c, double dense_bits) {
  const std::uint64_t hidden = c.hidden;
  std::vector<LayerWork> all;
  for (const std::uint32_t number : c.moe_layers) {
    const LayerConfig& l = c.layer[number];
    const std::uint64_t heads = std::uint64_t{c.heads} * l.head_dim, kv = std::uint64_t{l.kv_heads} * l.head_dim;
    all.push_back(layer_work(c.hidden, l.experts, 2 * hidden * heads + 2 * hidden * kv, l.shared_width, l.expert_width,
                             dense_bits));
  }
  if (std::all_of(all.begin(), all.end(), [&](const LayerWork& w) { return w == all[0]; })) all.resize(1);
  return all;
}

}  // namespace ferry::engine
