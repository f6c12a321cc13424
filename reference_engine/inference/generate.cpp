#include "inference/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

/// Greedy at temperature 0 (ties to the lower token), otherwise by inverse distribution: one draw a token.
class Sampler {
 public:
  Sampler(double temperature, std::uint64_t seed) : temperature_(temperature), random_(seed) {}

  std::uint32_t operator()(const Eigen::Ref<const Eigen::RowVectorXf>& logits) {
    Eigen::Index best = 0;
    const double top = logits.maxCoeff(&best);
    if (temperature_ == 0) return static_cast<std::uint32_t>(best);
    double sum = 0;
    for (const float l : logits) sum += std::exp((l - top) / temperature_);
    double left = static_cast<double>(random_() >> 11U) * 0x1p-53 * sum;
    for (Eigen::Index i = 0; i < logits.size(); ++i) {
      left -= std::exp((logits[i] - top) / temperature_);
      if (left < 0) return static_cast<std::uint32_t>(i);
    }
    return static_cast<std::uint32_t>(best);
  }

 private:
  double temperature_;
  std::mt19937_64 random_;
};

struct Sequence {
  std::size_t prompt = 0;
  std::vector<std::uint32_t> tokens;
  Sampler sampler;
  std::uint32_t position = 0;  ///< of the next token to run
  std::uint32_t next = 0;      ///< that token, once it is sampled
  std::uint32_t produced = 0, limit = 0;
  Ended at_limit = Ended::max_new_tokens;  ///< what the limit is of
  bool ended = false;
};

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::vector<std::uint32_t> encoded(const Model& model, const std::string& text, bool whole) {
  std::vector<std::uint32_t> tokens = model.need_tokenizer().encode(text, whole);
  for (const std::uint32_t t : tokens) {
    if (t < model.config().vocabulary) continue;
    throw InputError(
        fmt::format("the tokenizer ({}) makes token {} of a text, and the model has tokens up to {}: they do "
                    "not belong together",
                    model.need_tokenizer().kind(), t, model.config().vocabulary - 1));
  }
  return tokens;
}

class Group {
 public:
  Group(Model& model, ExpertRunner& runner, const GenerateOptions& options, std::vector<Sequence> sequences,
        Generated& result)
      : model_(model), runner_(runner), options_(options), sequences_(std::move(sequences)), result_(result) {
    std::uint64_t bytes = 0;
    for (const Sequence& s : sequences_) {
      const auto positions = static_cast<std::uint32_t>(s.tokens.size()) + s.limit;
      caches_.push_back(model.make_cache(positions));
      bytes += caches_.back().bytes();
    }
    result.kv_bytes = std::max(result.kv_bytes, bytes);
  }

  void run(std::uint64_t& prefilled, std::uint64_t to_prefill) {
    const Nanoseconds begin = now();
    for (std::uint32_t s = 0; s < sequences_.size() && !stopped(); ++s) prefill(s, prefilled, to_prefill);
    const Nanoseconds first = now();
    result_.ttft_s += seconds(first - begin);
    result_.prefill_s += seconds(first - begin);
    while (!stopped() && decode()) {
    }
    result_.decode_s += seconds(now() - first);
    for (std::uint32_t s = 0; s < sequences_.size(); ++s) runner_.end_sequence(s);
  }

 private:
  [[nodiscard]] Nanoseconds now() const { return options_.clock ? options_.clock() : now_ns(); }

  bool stopped() {
    if (options_.stop != nullptr && options_.stop->load()) result_.interrupted = true;
    return result_.interrupted;
  }

  Matrix forward(Phase phase, const std::vector<TokenRow>& rows, std::uint32_t logit_rows) {
    try {
      Matrix logits = model_.forward(phase, rows, caches_, runner_, logit_rows);
      if (!logits.allFinite()) {
        throw InputError("the model computes values that are not finite: its weights or config.json are damaged");
      }
      return logits;
    } catch (...) {
      runner_.abandon();
      throw;
    }
  }

  void prefill(std::uint32_t index, std::uint64_t& done, std::uint64_t total) {
    Sequence& s = sequences_[index];
    Matrix logits;
    while (s.position < s.tokens.size()) {
      if (stopped()) return;
      std::vector<TokenRow> rows;
      while (rows.size() < options_.prefill_chunk && s.position < s.tokens.size()) {
        rows.push_back({index, s.tokens[s.position], s.position});
        ++s.position;
      }
      logits = forward(Phase::prefill, rows, 1);
      result_.prefill_tokens += rows.size();
      done += rows.size();
      if (options_.on_prefill) options_.on_prefill(done, total);
    }
    accept(s, logits.row(0));
  }

  /// One token of every sequence that goes on; false when none does.
  bool decode() {
    std::vector<TokenRow> rows;
    for (std::uint32_t i = 0; i < sequences_.size(); ++i) {
      Sequence& s = sequences_[i];
      if (!s.ended) rows.push_back({i, s.next, s.position++});
    }
    if (rows.empty()) return false;
    const Matrix logits = forward(Phase::decode, rows, static_cast<std::uint32_t>(rows.size()));
    ++result_.decode_steps;
    result_.decode_tokens += rows.size();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      accept(sequences_[rows[i].sequence], logits.row(static_cast<Eigen::Index>(i)));
    }
    return true;
  }

  void accept(Sequence& s, const Eigen::Ref<const Eigen::RowVectorXf>& logits) {
    result_.last_logits[s.prompt].assign(logits.data(), logits.data() + logits.size());
    s.next = s.sampler(logits);
    result_.token_ids[s.prompt].push_back(s.next);
    if (options_.keep_logits) {
      result_.logits[s.prompt].insert(result_.logits[s.prompt].end(), logits.data(), logits.data() + logits.size());
    }
    if (model_.config().ends(s.next)) {
      s.ended = true;
      result_.ended[s.prompt] = Ended::end_token;
      return;
    }
    ++s.produced;
    if (const Tokenizer* t = model_.tokenizer(); t != nullptr && !t->is_special(s.next)) {
      result_.text[s.prompt] += t->bytes(s.next);
    }
    if (options_.on_token) options_.on_token(s.prompt, s.next);
    s.ended = s.produced == s.limit;
    if (s.ended) result_.ended[s.prompt] = s.at_limit;
  }

  Model& model_;
  ExpertRunner& runner_;
  const GenerateOptions& options_;
  std::vector<Sequence> sequences_;
  std::vector<KvCache> caches_;
  Generated& result_;
};

}  // namespace

const char* ended_name(Ended ended) {
  switch (ended) {
    case Ended::interrupted:
      return "interrupted";
    case Ended::max_new_tokens:
      return "max_new_tokens";
    case Ended::context:
      return "context";
    default:
      return "end_token";
  }
}

std::vector<std::uint32_t> tokenize(const Model& model, const std::string& text) {
  return encoded(model, text, true);
}

TokenText token_text(const Model& model, const std::string& text) {
  TokenText made{encoded(model, text, false), {}};
  for (const std::uint32_t t : made.tokens) {
    made.bytes.push_back(static_cast<std::uint32_t>(model.need_tokenizer().bytes(t).size()));
  }
  return made;
}

void check_tokens(const ModelConfig& config, const std::vector<std::vector<std::uint32_t>>& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) throw InputError(fmt::format("text {} has no tokens, expected one at least", i + 1));
    for (std::size_t at = 0; at < texts[i].size(); ++at) {
      if (texts[i][at] < config.vocabulary) continue;
      throw InputError(fmt::format("text {}: token {} is {}, expected 0 to {}, as many as the model has", i + 1, at + 1,
                                   texts[i][at], config.vocabulary - 1));
    }
  }
}

std::vector<std::vector<std::uint32_t>> tokens_of(const Model& model, const GenerateOptions& options) {
  std::vector<std::vector<std::uint32_t>> all = options.token_prompts;
  if (all.empty()) {
    for (const std::string& prompt : options.prompts) all.push_back(tokenize(model, prompt));
  }
  check_tokens(model.config(), all);
  return all;
}

Generated generate(Model& model, ExpertRunner& runner, const GenerateOptions& options) {
  Generated result;
  std::vector<std::vector<std::uint32_t>> prompts = tokens_of(model, options);
  result.text.resize(prompts.size());
  result.last_logits.resize(prompts.size());
  result.token_ids.resize(prompts.size());
  result.logits.resize(prompts.size());
  result.ended.resize(prompts.size(), Ended::interrupted);
  std::vector<Sequence> all;
  std::uint64_t to_prefill = 0, prefilled = 0;
  const std::uint32_t context = model.config().context;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Sequence s{i, std::move(prompts[i]), Sampler(options.temperature, options.seed + i)};
    if (s.tokens.size() > context) {
      throw InputError(fmt::format("prompt {} is {} tokens long with its begin token, the model's context is {}", i + 1,
                                   s.tokens.size(), context));
    }
    const std::uint32_t room = context - static_cast<std::uint32_t>(s.tokens.size()) + 1;
    s.limit = std::min(options.max_new_tokens, room);
    if (room < options.max_new_tokens) s.at_limit = Ended::context;
    to_prefill += s.tokens.size();
    all.push_back(std::move(s));
  }
  std::uint32_t groups = 0;
  for (std::size_t first = 0; first < all.size() && !result.interrupted; first += options.batch, ++groups) {
    const std::size_t last = std::min(all.size(), first + options.batch);
    std::vector<Sequence> members(std::make_move_iterator(all.begin() + static_cast<std::ptrdiff_t>(first)),
                                  std::make_move_iterator(all.begin() + static_cast<std::ptrdiff_t>(last)));
    Group(model, runner, options, std::move(members), result).run(prefilled, to_prefill);
  }
  if (groups > 0) result.ttft_s /= groups;
  return result;
}

}  // namespace ferry::engine
