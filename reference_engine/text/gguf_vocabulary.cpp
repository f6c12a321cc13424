#include "text/gguf_vocabulary.hpp"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "support/errors.hpp"
#include "text/bpe_tokenizer.hpp"
#include "text/sentence_piece.hpp"
#include "text/tiktoken.hpp"

namespace ferry::engine {
namespace {

enum TokenType : std::uint32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

/// The lists and numbers that begin with "tokenizer.ggml.".
struct Vocabulary {
  std::string where;
  Fields fields;
  std::vector<std::string> texts;
  std::vector<double> scores;
  std::vector<std::uint32_t> types;
  std::vector<AddedToken> added;  ///< tokens that are matched before a text is split

  explicit Vocabulary(const Gguf& file)
      : where(file.path().string() + ": metadata"),
        fields(file.metadata(), where),
        texts(file.texts("tokenizer.ggml.tokens")),
        scores(file.numbers("tokenizer.ggml.scores")) {
    for (const double t : file.numbers("tokenizer.ggml.token_type")) {
      const bool known = t >= 1 && t <= 6;
      types.push_back(known ? static_cast<std::uint32_t>(t) : std::uint32_t{normal});
    }
    if (texts.empty()) fields.refuse("tokenizer.ggml.tokens", "the texts of all tokens");
    if (!types.empty() && types.size() != texts.size()) {
      fields.refuse("tokenizer.ggml.token_type", fmt::format("one for each of {} tokens", texts.size()));
    }
    if (!scores.empty() && scores.size() != texts.size()) {
      fields.refuse("tokenizer.ggml.scores", fmt::format("one for each of {} tokens", texts.size()));
    }
    // Phi's added tokens take the white space behind them, with these exceptions. A GGUF file cannot say that.
    const bool strips = file.metadata().value("general.architecture", Json()) == "phimoe";
    for (std::uint32_t id = 0; id < types.size(); ++id) {
      if (types[id] == normal || types[id] == unused || types[id] == byte) continue;
      AddedToken t{texts[id], "", id, types[id] != user_defined};
      const bool may = (t.special || t.text == "</s>") && t.text != "<unk>" && t.text != "<s>";
      t.strips_right = strips && may && t.text != "<|endoftext|>";
      added.push_back(std::move(t));
    }
  }

  [[nodiscard]] std::optional<std::uint32_t> token(const char* name) const {
    const std::string field = std::string("tokenizer.ggml.") + name;
    if (!fields.has(field)) return std::nullopt;
    return fields.whole(field, 0, static_cast<std::uint32_t>(texts.size() - 1));
  }
  [[nodiscard]] bool flag(const char* name, bool absent) const {
    return fields.flag(std::string("tokenizer.ggml.") + name, absent);
  }
  /// The tokens around a text.
  void around(bool begins, std::vector<std::uint32_t>& before, std::vector<std::uint32_t>& behind) const {
    const auto begin = token("bos_token_id"), end = token("eos_token_id");
    if (flag("add_bos_token", begins) && begin) before.push_back(*begin);
    if (flag("add_eos_token", false) && end) behind.push_back(*end);
  }
};

/// The vocabulary, and the pairs of tokens that merge into a third.
Bpe merges_of(const Vocabulary& v, const Gguf& file, const Bpe::Options& options) {
  std::unordered_map<std::string, std::uint32_t> tokens;
  for (std::uint32_t id = 0; id < v.texts.size(); ++id) tokens.try_emplace(v.texts[id], id);
  std::vector<Bpe::Merge> merges;
  if (!file.metadata().contains("tokenizer.ggml.merges")) {
    v.fields.refuse("tokenizer.ggml.merges", "the pairs of tokens that make a third");
  }
  for (const std::string& both : file.texts("tokenizer.ggml.merges")) {
    const std::size_t blank = both.find(' ', 1);  // the first token may itself begin with a blank
    const auto find = [&](const std::string& text) { return tokens.find(text); };
    const std::string left = both.substr(0, blank), right = blank == std::string::npos ? "" : both.substr(blank + 1);
    const auto l = find(left), r = find(right), made = find(left + right);
    if (right.empty() || l == tokens.end() || r == tokens.end() || made == tokens.end()) {
      throw InputError(fmt::format("{}: tokenizer.ggml.merges[{}] is \"{:.60}\", expected two tokens that make a third",
                                   v.where, merges.size(), both));
    }
    merges.push_back({l->second, r->second, static_cast<std::uint32_t>(merges.size()), made->second});
  }
  return {std::move(tokens), merges, options};
}

/// BPE over characters without splitting into words. Blanks become U+2581, and unknown characters become byte tokens.
std::unique_ptr<Tokenizer> character_pairs(const Vocabulary& v, const Gguf& file) {
  const std::string blank = "\u2581";
  BpeParts parts;
  parts.kind = "GGUF, BPE as gemma4";
  Bpe::Options options;
  options.byte_fallback = options.fuse_unknown = true;
  options.unknown = v.token("unknown_token_id");
  parts.bpe = merges_of(v, file, options);
  parts.normalizers.push_back(replaced(std::make_shared<Regex>(literally(" "), v.where), blank));
  parts.text.byte_names = true;
  parts.text.blank = blank;
  for (const AddedToken& t : v.added) parts.added.add(t);
  v.around(true, parts.before, parts.behind);
  // Adds the begin token even if the file says no: early converters wrote that by mistake.
  if (const auto begin = v.token("bos_token_id"); begin && parts.before.empty()) parts.before.push_back(*begin);
  return make_bpe_tokenizer(std::move(parts));
}

std::unique_ptr<Tokenizer> byte_pairs(const Vocabulary& v, const Gguf& file) {
  // Files from before May 2024 do not name their rules. llama.cpp's default differs from Qwen's own tokenizer.
  std::string pre = v.fields.has("tokenizer.ggml.pre") ? v.fields.text("tokenizer.ggml.pre") : "";
  const bool old_qwen = file.metadata().value("general.architecture", Json()) == "qwen2moe";
  if (old_qwen && (pre.empty() || pre == "default")) pre = "qwen2";
  const WordRules* rules = word_rules(pre);
  if (rules == nullptr) {  // the found name comes first, since the list is long
    v.fields.refuse("tokenizer.ggml.pre",
                    fmt::format("another than {:.40}: one of {}", json_text(Json(pre)), known_word_rules()));
  }
  BpeParts parts;
  parts.kind = "GGUF, BPE as " + pre;
  Bpe::Options options;
  options.whole_words = rules->whole_words;
  parts.bpe = merges_of(v, file, options);
  if (!rules->form.empty()) parts.normalizers.push_back(unicode_form(rules->form));
  for (const std::string& e : rules->expressions) {
    parts.splitters.push_back(
        split_by(std::make_shared<Regex>(e, v.where, Dialect::rust), SplitBehavior::isolated, false));
  }
  // Like llama.cpp, for which converters write these files, ignores "add_space_prefix": no blank goes in front.
  parts.splitters.push_back(to_byte_characters(false));
  parts.text.byte_characters = true;
  for (const AddedToken& t : v.added) parts.added.add(t);
  v.around(rules->begins, parts.before, parts.behind);
  return make_bpe_tokenizer(std::move(parts));
}

std::unique_ptr<Tokenizer> pieces(const Vocabulary& v) {
  PieceTable table{v.texts, v.scores, v.types};
  table.unknown = v.token("unknown_token_id");
  table.blank_before = v.flag("add_space_prefix", true);
  SentencePieceOptions options;
  options.added = v.added;  // found before the library, which adds no blank after one
  options.begins = false;
  v.around(true, options.before, options.behind);
  constexpr std::uint32_t usual_begin = 1;  // where the file does not say it
  if (v.flag("add_bos_token", true) && !v.token("bos_token_id") && usual_begin < v.texts.size()) {
    options.before.push_back(usual_begin);
  }
  return sentence_piece_of(table, v.where, options);
}

}  // namespace

std::unique_ptr<Tokenizer> read_gguf_vocabulary(const Gguf& file) {
  if (!file.metadata().contains("tokenizer.ggml.model") || !file.metadata().contains("tokenizer.ggml.tokens")) {
    return nullptr;
  }
  const Vocabulary v(file);
  const std::string model = v.fields.text("tokenizer.ggml.model");
  if (model == "gpt2") return byte_pairs(v, file);
  if (model == "gemma4") return character_pairs(v, file);
  if (model == "llama") return pieces(v);
  v.fields.refuse("tokenizer.ggml.model", "\"gpt2\", \"gemma4\" or \"llama\"");
}

}  // namespace ferry::engine
