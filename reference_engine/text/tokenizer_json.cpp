#include "text/tokenizer_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "support/errors.hpp"
#include "support/json.hpp"
#include "text/bpe_tokenizer.hpp"

namespace ferry::engine {
namespace {

/// One object of the file, with the place where it stands.
class Part {
 public:
  Part(const Json& json, std::string where) : fields_(json, std::move(where)) {}
  [[nodiscard]] const Fields& fields() const { return fields_; }
  [[nodiscard]] std::string type() const { return fields_.text("type"); }
  [[nodiscard]] const std::string& where() const { return fields_.where(); }
  [[nodiscard]] bool flag(const char* name, bool absent) const { return fields_.flag(name, absent); }
  [[noreturn]] void refuse_type(const char* expected) const { fields_.refuse("type", expected); }

 private:
  Fields fields_;
};

constexpr std::size_t most_parts = 100;  // in all nested Sequences, since a text passes each of them

/// Calls `each` for an object, or for each member of a Sequence. `seen`: parts so far.
template <class Call>
void for_each_part(const Json& json, const std::string& where, const char* list, const Call& each, std::size_t& seen) {
  if (json.is_null()) return;
  const Part part(json, where);
  if (part.type() != "Sequence") {
    each(part);
    return;
  }
  const Json& all = part.fields().at(list);
  if (!all.is_array() || all.size() > most_parts - seen) {
    part.fields().refuse(list, fmt::format("a list, and at most {} parts in all of them", most_parts));
  }
  seen += all.size();
  for (std::size_t i = 0; i < all.size(); ++i)
    for_each_part(all[i], fmt::format("{}: {}[{}]", where, list, i), list, each, seen);
}
template <class Call>
void for_each_part(const Json& json, const std::string& where, const char* list, const Call& each) {
  std::size_t seen = 0;
  for_each_part(json, where, list, each, seen);
}

/// A "pattern": {"String": ...} or {"Regex": ...}.
std::shared_ptr<const Regex> pattern_of(const Part& part) {
  const Fields pattern(part.fields().at("pattern"), part.where() + ": pattern");
  const bool literal = pattern.has("String");
  return std::make_shared<Regex>(literal ? literally(pattern.text("String")) : pattern.text("Regex"), part.where());
}

/// A short text that a part inserts into texts.
std::string put_in(const Part& part, const char* name) {
  constexpr std::size_t longest = 32;
  std::string text = part.fields().text(name);
  if (text.size() > longest) part.fields().refuse(name, fmt::format("at most {} bytes", longest));
  return text;
}

SplitBehavior behavior_of(const Part& part) {
  constexpr std::pair<const char*, SplitBehavior> known[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const std::string said = part.fields().text("behavior");
  for (const auto& [name, behavior] : known) {
    if (said == name) return behavior;
  }
  part.fields().refuse("behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void add_normalizer(const Part& part, std::vector<Normalizer>& all) {
  const std::string type = part.type();
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    std::string name = type;
    for (char& c : name) c = static_cast<char>(c - 'A' + 'a');
    all.push_back(unicode_form(name));
  } else if (type == "Prepend") {
    all.push_back([with = put_in(part, "prepend")](std::string text) { return text.empty() ? text : with + text; });
  } else if (type == "Replace") {
    all.push_back(replaced(pattern_of(part), put_in(part, "content")));
  } else if (type == "ByteLevel") {
    all.push_back([](const std::string& text) { return byte_characters(text); });
  } else {
    part.refuse_type("NFC, NFD, NFKC, NFKD, Prepend, Replace, ByteLevel or a Sequence of them");
  }
}

/// Replaces blanks by another character, which also goes in front of texts.
Splitter metaspace(const Part& part) {
  const std::string blank = put_in(part, "replacement");
  if (blank.empty()) part.fields().refuse("replacement", "a character");
  const bool old = part.flag("add_prefix_space", true);
  const std::string scheme = part.fields().has("prepend_scheme") ? part.fields().text("prepend_scheme")
                             : old                               ? "always"
                                                                 : "never";
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    part.fields().refuse("prepend_scheme", "always, first or never");
  }
  const bool splits = part.flag("split", true);
  const auto regex = std::make_shared<Regex>(literally(blank), part.where());
  const Splitter by_blank = split_by(regex, SplitBehavior::merged_with_next, false);
  return [=](const TextPiece& piece, std::vector<TextPiece>& out) {
    TextPiece made{"", piece.first};
    for (const char c : piece.text) c == ' ' ? made.text += blank : made.text += c;
    const bool begins = scheme == "always" || (scheme == "first" && piece.first);
    if (begins && !made.text.starts_with(blank)) made.text = blank + made.text;
    splits ? by_blank(made, out) : out.push_back(made);
  };
}

Splitter simple_split(const char* expression, SplitBehavior behavior, const Part& part, bool invert = false) {
  return split_by(std::make_shared<Regex>(expression, part.where(), Dialect::rust), behavior, invert);
}

void add_splitter(const Part& part, std::vector<Splitter>& all) {
  const std::string type = part.type();
  if (type == "ByteLevel") {
    const bool blank = part.flag("add_prefix_space", true);
    if (!part.flag("use_regex", true)) {
      all.push_back(to_byte_characters(blank));
      return;
    }
    if (blank) {
      all.push_back([](const TextPiece& piece, std::vector<TextPiece>& out) {
        out.push_back({piece.text.starts_with(' ') ? piece.text : " " + piece.text, piece.first});
      });
    }
    all.push_back(simple_split(gpt2_words, SplitBehavior::isolated, part));
    all.push_back(to_byte_characters(false));
  } else if (type == "Split") {
    all.push_back(split_by(pattern_of(part), behavior_of(part), part.flag("invert", false)));
  } else if (type == "Digits") {
    const bool each = part.flag("individual_digits", false);
    all.push_back(simple_split(R"(\p{N})", each ? SplitBehavior::isolated : SplitBehavior::contiguous, part));
  } else if (type == "Punctuation") {
    const auto behavior = part.fields().has("behavior") ? behavior_of(part) : SplitBehavior::isolated;
    all.push_back(simple_split(R"([!-\/:-@\[-`{-~]|\p{P})", behavior, part));
  } else if (type == "Metaspace") {
    all.push_back(metaspace(part));
  } else if (type == "Whitespace") {
    all.push_back(simple_split(R"(\w+|[^\w\s]+)", SplitBehavior::removed, part, true));
  } else if (type == "WhitespaceSplit") {
    all.push_back(simple_split(R"(\s)", SplitBehavior::removed, part));
  } else {
    part.refuse_type(
        "ByteLevel, Split, Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit or a Sequence of them");
  }
}

/// Reads the decoders that are supported, which undo step by step what the encoder did.
void read_decoder(const Part& part, TokenText& text) {
  const std::string type = part.type();
  if (type == "ByteLevel") {
    text.byte_characters = true;
  } else if (type == "ByteFallback") {
    text.byte_names = true;
  } else if (type == "Replace") {
    const Fields pattern(part.fields().at("pattern"), part.where() + ": pattern");
    text.blank = pattern.text("String");
    if (part.fields().text("content") != " " || text.blank.empty())
      part.fields().refuse("content", "a blank for a character");
  } else if (type == "Strip") {
    if (part.fields().text("content") != " " || part.fields().whole("start", 0, 1U << 20U) > 1 ||
        part.fields().whole("stop", 0, 1U << 20U) > 0) {
      part.fields().refuse("content", "one blank at the beginning");
    }
    text.begins_with_blank = part.fields().at("start") == 1;
  } else if (type == "Metaspace") {
    text.blank = part.fields().text("replacement");
    const bool old = part.flag("add_prefix_space", true);
    text.begins_with_blanks = text.begins_with_blank =
        part.fields().has("prepend_scheme") ? part.fields().text("prepend_scheme") != "never" : old;
  } else if (type != "Fuse") {
    part.refuse_type("ByteLevel, ByteFallback, Replace, Strip, Metaspace, Fuse or a Sequence of them");
  }
}

/// The tokens around a single text.
void read_processor(const Part& part, std::vector<std::uint32_t>& before, std::vector<std::uint32_t>& behind) {
  const std::string type = part.type();
  if (type == "ByteLevel") return;  // it only changes offsets
  if (type != "TemplateProcessing") part.refuse_type("ByteLevel, TemplateProcessing or a Sequence of them");
  const Json &single = part.fields().at("single"), &tokens = part.fields().at("special_tokens");
  const auto refuse = [&] { part.fields().refuse("single", "the sequence A among special tokens that have ids"); };
  if (!single.is_array() || !tokens.is_object()) refuse();
  bool seen = false;
  for (const Json& item : single) {
    if (item.is_object() && item.contains("Sequence")) {
      if (std::exchange(seen, true)) refuse();
      continue;
    }
    if (!item.is_object() || !item.contains("SpecialToken")) refuse();
    const Json& name =
        item["SpecialToken"].is_object() ? item["SpecialToken"].value("id", Json()) : item["SpecialToken"];
    const auto found = name.is_string() ? tokens.find(name.get<std::string>()) : tokens.end();
    if (found == tokens.end() || !found->is_object() || !found->contains("ids") || !(*found)["ids"].is_array())
      refuse();
    for (const Json& id : (*found)["ids"]) {
      if (!id.is_number_unsigned() || id >= most_tokens) refuse();
      (seen ? behind : before).push_back(id.get<std::uint32_t>());
    }
  }
  if (!seen) refuse();
}

/// The text that has each number, for a vocabulary or for added tokens. An added token may override one of the vocabulary.
using Owners = std::unordered_map<std::uint32_t, std::string_view>;

/// Refuses a number that another text has: one of the two would be decoded as the other. `text` must outlive `whose`.
void take(Owners& whose, std::string_view text, std::uint32_t id, const std::string& where) {
  const auto [owner, is_new] = whose.emplace(id, text);
  if (is_new || owner->second == text) return;
  throw InputError(fmt::format("{}: token {} is {:.80} and {:.80}, expected a number of its own for each", where, id,
                               json_text(Json(owner->second)), json_text(Json(text))));
}

Bpe read_model(const Part& model) {
  const Fields& f = model.fields();
  Owners whose;
  if (f.has("type") && model.type() != "BPE") model.refuse_type("BPE");
  const Json& vocab = f.at("vocab");
  if (!vocab.is_object() || vocab.size() > most_tokens)
    f.refuse("vocab", "an object of at most 2^22 tokens, each with its id");
  std::unordered_map<std::string, std::uint32_t> tokens;
  tokens.reserve(vocab.size());
  for (const auto& [text, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id >= most_tokens) f.refuse("vocab", "ids from 0 to 2^22 - 1");
    const auto token = tokens.emplace(text, id.get<std::uint32_t>()).first;
    take(whose, token->first, token->second, f.where() + ": vocab");
  }
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (f.has(name) && f.at(name) != "" && f.at(name) != 0.0) f.refuse(name, "null, it is not supported");
  }
  Bpe::Options options;
  options.whole_words = f.flag("ignore_merges", false);
  options.byte_fallback = f.flag("byte_fallback", false);
  options.fuse_unknown = f.flag("fuse_unk", false);
  if (f.has("unk_token")) {
    const auto found = tokens.find(f.text("unk_token"));
    if (found != tokens.end()) options.unknown = found->second;
  }
  const Json& list = f.at("merges");
  if (!list.is_array() || list.size() > most_tokens) f.refuse("merges", "a list of at most 2^22");
  std::vector<Bpe::Merge> merges;
  merges.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string left, right;
    const Json& item = list[i];
    if (item.is_string()) {  // older files
      const auto& both = item.get_ref<const std::string&>();
      const std::size_t blank = both.find(' ');
      if (blank != std::string::npos) left = both.substr(0, blank), right = both.substr(blank + 1);
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      left = item[0].get<std::string>(), right = item[1].get<std::string>();
    }
    const auto l = tokens.find(left), r = tokens.find(right), made = tokens.find(left + right);
    if (left.empty() || right.empty() || l == tokens.end() || r == tokens.end() || made == tokens.end()) {
      throw InputError(fmt::format("{}: merges[{}] is {:.80}, expected two tokens that make a third", f.where(), i,
                                   json_text(item)));
    }
    merges.push_back({l->second, r->second, static_cast<std::uint32_t>(i), made->second});
  }
  return {std::move(tokens), merges, options};
}

void read_added(const Json& list, const std::string& where, BpeParts& parts) {
  if (list.is_null()) return;
  if (!list.is_array() || list.size() > most_tokens) throw InputError(where + ": added_tokens: expected a list");
  Owners whose;
  std::unordered_map<std::string, std::uint32_t> added;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Fields f(list[i], fmt::format("{}: added_tokens[{}]", where, i));
    AddedToken t;
    t.text = f.text("content");
    t.id = f.whole("id", 0, most_tokens - 1);
    const auto known = added.emplace(t.text, parts.bpe.find(t.text).value_or(t.id)).first;
    take(whose, known->first, t.id, f.where());
    if (known->second != t.id) f.refuse("id", fmt::format("{}, as the same text has it elsewhere", known->second));
    t.special = f.flag("special", false);
    t.single_word = f.flag("single_word", false);
    t.strips_left = f.flag("lstrip", false);
    t.strips_right = f.flag("rstrip", false);
    t.normalized = f.flag("normalized", !t.special);
    if (t.normalized) {  // it is searched for in normalized text
      t.pattern = normalized(t.text, parts.normalizers);
    }
    parts.added.add(t);
  }
}

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(const std::filesystem::path& path, const AroundText& around) {
  const std::string where = path.string();
  const Json root = read_json(path);
  const Part whole(root, where);
  const Fields& f = whole.fields();
  const auto part = [&](const char* name) -> Json { return f.has(name) ? f.at(name) : Json(nullptr); };
  BpeParts parts;
  parts.kind = "tokenizer.json, BPE";
  parts.bpe = read_model(Part(f.at("model"), where + ": model"));
  for_each_part(part("normalizer"), where + ": normalizer", "normalizers",
                [&](const Part& p) { add_normalizer(p, parts.normalizers); });
  for_each_part(part("pre_tokenizer"), where + ": pre_tokenizer", "pretokenizers",
                [&](const Part& p) { add_splitter(p, parts.splitters); });
  for_each_part(part("decoder"), where + ": decoder", "decoders", [&](const Part& p) { read_decoder(p, parts.text); });
  for_each_part(part("post_processor"), where + ": post_processor", "processors",
                [&](const Part& p) { read_processor(p, parts.before, parts.behind); });
  read_added(part("added_tokens"), where, parts);
  if (parts.before.empty() && parts.behind.empty()) {
    const Json& added = part("added_tokens");
    const auto id_of = [&](const std::string& text) -> std::uint32_t {
      for (const Json& token : added) {
        if (token["content"] == text) return token["id"];
      }
      throw InputError(fmt::format("{}: added_tokens: \"{}\" is missing, which tokenizer_config.json puts around texts",
                                   where, text));
    };
    for (const std::string& text : around.before) parts.before.push_back(id_of(text));
    for (const std::string& text : around.behind) parts.behind.push_back(id_of(text));
  }
  std::unique_ptr<Tokenizer> made = make_bpe_tokenizer(std::move(parts));
  for (const std::uint32_t token : made->encode("", true)) {  // the tokens that the post-processor adds
    if (token < made->size()) continue;
    throw InputError(
        fmt::format("{}: post_processor: single: token {} is none of the {} that it has", where, token, made->size()));
  }
  return made;
}

}  // namespace ferry::engine
