#include "inference/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

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

/// Prompts that are decoded together.
class Group {
 public:
  Group(Model& model, ExpertRunner& runner, const GenerateOptions& options, Generated& result)
      : runner_(runner),
        options_(options),
        result_(result),
        decoder_(model, runner, {options.batch, options.prefill_chunk, false},
                 [this](std::uint32_t place, std::uint32_t token, const std::string& text) {
                   if (options_.on_token) options_.on_token(prompt_[place], token, text);
                 }) {}

  void add(std::size_t prompt, std::vector<std::uint32_t> tokens) {
    DecodeRequest request;
    request.tokens = std::move(tokens);
    request.max_new_tokens = options_.max_new_tokens;
    request.sampling = options_.sampling;
    request.sampling.seed += prompt;
    request.stops = options_.stops;
    request.probabilities = options_.probabilities;
    request.alternatives = options_.alternatives;
    request.keep_logits = options_.keep_logits;
    request.ignore_end = options_.ignore_end;
    prompt_.push_back(prompt);
    decoder_.add(request);
  }

  void run(std::uint64_t& prefilled, std::uint64_t to_prefill) {
    result_.kv_bytes = std::max(result_.kv_bytes, decoder_.cache_bytes());
    const Nanoseconds begin = now();
    while (!stopped() && decoder_.prefilling()) {
      const std::uint32_t rows = decoder_.step().rows;
      result_.prefill_tokens += rows;
      prefilled += rows;
      if (options_.on_prefill) options_.on_prefill(prefilled, to_prefill);
    }
    const Nanoseconds first = now();
    result_.ttft_s += seconds(first - begin);
    result_.prefill_s += seconds(first - begin);
    Nanoseconds aside = 0;
    while (!stopped() && decoder_.decoding()) {
      result_.decode_tokens += decoder_.step().rows;
      ++result_.decode_steps;
      const Nanoseconds done = now();
      runner_.end_long_logs();
      aside += now() - done;
    }
    result_.decode_s += seconds(now() - first - aside);
    for (std::uint32_t place = 0; place < prompt_.size(); ++place) {
      Decoded made = decoder_.release(place);
      const std::size_t i = prompt_[place];
      result_.text[i] = std::move(made.text);
      result_.token_ids[i] = std::move(made.tokens);
      result_.ended[i] = made.ended;
      result_.logits[i] = std::move(made.logits);
      result_.last_logits[i] = std::move(made.last_logits);
      result_.probabilities[i] = std::move(made.probabilities);
      result_.alternatives[i] = std::move(made.alternatives);
    }
  }

 private:
  [[nodiscard]] Nanoseconds now() const { return options_.clock ? options_.clock() : now_ns(); }

  bool stopped() {
    if (options_.stop != nullptr && options_.stop->load()) result_.interrupted = true;
    return result_.interrupted;
  }

  ExpertRunner& runner_;
  const GenerateOptions& options_;
  Generated& result_;
  std::vector<std::size_t> prompt_;  ///< the prompt's number, by place
  BatchDecoder decoder_;
};

}  // namespace

std::vector<std::uint32_t> tokenize(const Model& model, const std::string& text) {
  return encoded(model, text, true);
}

std::vector<std::uint32_t> without_begin(const Model& model, std::vector<std::uint32_t> tokens) {
  const std::vector<std::uint32_t> begin = model.begin_tokens();
  if (tokens.size() < begin.size() || !std::equal(begin.begin(), begin.end(), tokens.begin())) return tokens;
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(begin.size()));
  return tokens;
}

TokenizedText tokenized(const Model& model, const std::string& text) {
  TokenizedText made{encoded(model, text, false), {}};
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
  result.probabilities.resize(prompts.size());
  result.alternatives.resize(prompts.size());
  result.ended.resize(prompts.size(), Ended::interrupted);
  std::uint64_t to_prefill = 0, prefilled = 0;
  const std::uint32_t context = model.config().context;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    to_prefill += prompts[i].size();
    if (prompts[i].size() <= context) continue;
    throw InputError(fmt::format("prompt {} is {} tokens long with its begin token, the model's context is {}", i + 1,
                                 prompts[i].size(), context));
  }
  std::uint32_t groups = 0;
  for (std::size_t first = 0; first < prompts.size() && !result.interrupted; first += options.batch, ++groups) {
    Group group(model, runner, options, result);
    for (std::size_t i = first; i < std::min(prompts.size(), first + options.batch); ++i) {
      group.add(i, std::move(prompts[i]));
    }
    group.run(prefilled, to_prefill);
  }
  if (groups > 0) result.ttft_s /= groups;
  return result;
}

}  // namespace ferry::engine
