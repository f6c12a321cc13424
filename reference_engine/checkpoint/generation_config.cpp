#include "checkpoint/generation_config.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/gguf.hpp"
#include "checkpoint/gguf_model.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/text_file.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t most_tokens = 1U << 24U;

std::optional<double> number(const Fields& f, const std::string& name, double least, double most) {
  if (!f.has(name)) return std::nullopt;
  const Json& value = f.at(name);
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most)) {
    f.refuse(name, "a number from " + json_text(Json(least)) + " to " + json_text(Json(most)));
  }
  return value.get<double>();
}

/// A penalty; 0 means that none is set.
std::optional<double> penalty(const Fields& f, const std::string& name) {
  const std::optional<double> said = number(f, name, 0, 100);
  return said == 0 ? std::nullopt : said;
}

void read_common(const Fields& f, const std::string& prefix, const char* temperature, const char* repeat,
                 GenerationConfig& c) {
  c.temperature = number(f, prefix + temperature, 0, 100);
  c.top_p = number(f, prefix + "top_p", 0, 1);
  c.min_p = number(f, prefix + "min_p", 0, 1);
  c.repeat_penalty = penalty(f, prefix + repeat);
  if (f.has(prefix + "top_k")) c.top_k = f.whole(prefix + "top_k", 0, most_tokens);
  if (c.top_p == 0) c.top_p.reset();  // 0 would leave no token, so none is meant
}

void add_tokens(const Fields& f, const std::string& name, std::vector<std::uint32_t>& all) {
  if (!f.has(name)) return;
  const Json& field = f.at(name);
  for (const Json& token : field.is_array() ? field : Json::array({field})) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() >= most_tokens)
      f.refuse(name, "a token, or a list of some");
    all.push_back(token.get<std::uint32_t>());
  }
}

/// A model's folder lists all end tokens in generation_config.json. Converters to GGUF keep only one or two of them, so
/// llama.cpp finds the others by name, whatever type the file gives them (many ChatML files say user-defined). These are
/// its names, without those that only unsupported families have.
void add_named_ends(const Gguf& file, std::vector<std::uint32_t>& all) {
  static const std::set<std::string> ends = {"<|eot_id|>",
                                             "<|im_end|>",
                                             "<|end|>",
                                             "<|return|>",
                                             "<|call|>",
                                             "<|flush|>",
                                             "<|calls|>",
                                             "<end_of_turn>",
                                             "<eos>",
                                             "<turn|>",
                                             "<|tool_response>",
                                             "<|endoftext|>",
                                             "<|eom_id|>",
                                             "<EOT>",
                                             "[EOT]",
                                             "[EOS]",
                                             "<|end_of_text|>",
                                             "<\xef\xbd\x9c"
                                             "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
                                             "[e~["};
  if (!file.metadata().contains("tokenizer.ggml.tokens")) return;
  const std::vector<std::string> texts = file.texts("tokenizer.ggml.tokens");
  std::map<std::string, std::uint32_t> found;
  for (std::size_t id = 0; id < texts.size(); ++id) {
    if (ends.contains(texts[id])) found[texts[id]] = static_cast<std::uint32_t>(id);
  }
  // Where other tokens end a turn, <|end|> ends only a part of it.
  const bool parts = (found.contains("<|return|>") && found.contains("<|call|>")) ||
                     (found.contains("<|flush|>") && (found.contains("<|call|>") || found.contains("<|calls|>")));
  if (parts) found.erase("<|end|>");
  for (const auto& [text, id] : found) all.push_back(id);
}

/// Fields that change what transformers generates, and the value with which they do not; null never does.
std::vector<std::string> not_done(const Json& root) {
  static const std::map<std::string, Json> neutral = {
      {"bad_words_ids", Json::array()},
      {"begin_suppress_tokens", Json::array()},
      {"diversity_penalty", 0},
      {"encoder_no_repeat_ngram_size", 0},
      {"encoder_repetition_penalty", 1},
      {"epsilon_cutoff", 0},
      {"eta_cutoff", 0},
      {"exponential_decay_length_penalty", nullptr},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"guidance_scale", 1},
      {"min_length", 0},
      {"min_new_tokens", 0},
      {"no_repeat_ngram_size", 0},
      {"num_beams", 1},
      {"penalty_alpha", 0},
      {"sequence_bias", Json::array()},
      {"suppress_tokens", Json::array()},
      {"top_h", nullptr},
      {"typical_p", 1},
  };
  std::vector<std::string> all;
  for (const auto& [name, none] : neutral) {
    if (root.contains(name) && !root[name].is_null() && root[name] != none) all.push_back(name);
  }
  return all;
}

}  // namespace

GenerationConfig read_generation_config(const std::filesystem::path& model) {
  GenerationConfig c;
  if (is_gguf(model)) {
    const auto files = open_gguf(model);
    const Fields f(files[0]->metadata(), model.string() + ": metadata");
    for (const char* name : {"eot", "eom"})
      add_tokens(f, std::string("tokenizer.ggml.") + name + "_token_id", c.end_tokens);
    try {
      add_named_ends(*files[0], c.end_tokens);
    } catch (const InputError&) {  // reading the tokenizer reports what is wrong
    }
    const std::string prefix = "general.sampling.";
    if (f.has(prefix + "temp") || f.has(prefix + "top_p") || f.has(prefix + "top_k")) {
      c.file = model.filename().string();
      read_common(f, prefix, "temp", "penalty_repeat", c);
      if (!c.temperature) c.temperature = 1;
    }
    return c;
  }
  const std::filesystem::path path = model / "generation_config.json";
  if (!is_there(path)) return c;
  const Json root = read_json(path);
  const Fields f(root, path.string());
  c.file = "generation_config.json";
  c.not_done = not_done(root);
  add_tokens(f, "eos_token_id", c.end_tokens);
  if (!f.flag("do_sample", false)) {  // greedy, but repetition is still penalised
    c.repeat_penalty = penalty(f, "repetition_penalty");
    return c;
  }
  read_common(f, "", "temperature", "repetition_penalty", c);
  if (!c.temperature) c.temperature = 1;
  return c;
}

}  // namespace ferry::engine
