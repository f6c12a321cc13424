// Tokenizers' files: tokenizer.json, SentencePiece's models, files of ranks, GGUF vocabularies; and texts through those that are
// accepted. The first letter says which.
#include "text/tokenizer.hpp"

#include "fuzz/check_simulated.hpp"
#include "fuzz/fuzz.hpp"
#include "support/bundled_files.hpp"
#include "support/utf8.hpp"

namespace ferry::fuzz {
namespace {

using namespace engine;

const char* name_of(char kind) {
  switch (kind) {
    case 'j':
      return "tokenizer.json";
    case 's':
      return "tokenizer.model";
    case 't':
      return "qwen.tiktoken";
    case 'g':
      return "vocabulary.gguf";
    default:
      return nullptr;
  }
}

void use(const Tokenizer& t, const std::string& text) {
  for (const bool names : {true, false}) {
    const std::vector<std::uint32_t> ids = t.encode(text, true, names);
    std::string pieces;
    for (const std::uint32_t id : ids) {
      if (id >= t.size()) throw Broken("a token that the tokenizer does not have");
      pieces += t.bytes(id);
      static_cast<void>(t.is_special(id));
    }
    for (const bool special : {true, false}) {
      const std::string decoded = t.decode(ids, special);
      if (valid_utf8(decoded) != decoded) throw Broken("a decoded text is no UTF-8");
    }
  }
}

/// Keeps only some pieces, and those that the first merges need: small files are tried several times as often.
std::string few_pieces(const std::string& text) {
  constexpr std::size_t most = 48;
  Json json = Json::parse(text);
  Json& vocabulary = json["model"]["vocab"];
  if (json["model"]["type"] != "BPE" || vocabulary.size() < 2 * most) return text;
  std::map<std::size_t, std::string> by_id;
  for (const auto& [piece, id] : vocabulary.items()) by_id[id] = piece;
  std::vector<std::string> pieces;
  for (const auto& [id, piece] : by_id) pieces.push_back(piece);
  std::map<std::string, std::size_t> kept;
  const auto keep = [&](const std::string& piece) { kept.emplace(piece, kept.size()); };
  for (std::size_t i = 0; i < most; ++i) keep(pieces[pieces.size() / 4 + i]);
  Json merges = Json::array();
  for (const Json& merge : json["model"]["merges"]) {
    const std::string both = merge.is_string() ? merge.get<std::string>() : "";
    const std::size_t blank = both.find(' ', 1);
    const std::string left = merge.is_string() ? both.substr(0, blank) : merge[0].get<std::string>();
    const std::string right = merge.is_string() ? both.substr(blank + 1) : merge[1].get<std::string>();
    if (merges.size() == 8) break;
    for (const std::string& piece : {left, right, left + right}) keep(piece);
    merges.push_back(merge);
  }
  for (Json& added : json["added_tokens"]) {
    const std::string name = added["content"];
    keep(name);
    added["id"] = kept.at(name);
  }
  const auto number = [&](Json& processor) {
    if (!processor.contains("special_tokens")) return;
    for (auto& [name, token] : processor["special_tokens"].items()) token["ids"] = {kept.at(name)};
  };
  if (Json& processor = json["post_processor"]; processor.contains("processors")) {
    for (Json& one : processor["processors"]) number(one);
  } else {
    number(processor);
  }
  vocabulary = kept;
  json["model"]["merges"] = merges;
  return json.dump();
}

}  // namespace

void read(const std::string& input) {
  const char* name = input.empty() ? nullptr : name_of(input[0]);
  if (name == nullptr) return;
  const auto tokenizer = open_tokenizer(file(name, input.substr(1)));
  if (tokenizer == nullptr) return;
  use(*tokenizer, "");
  use(*tokenizer,
      "Hello, world!  It's 12345 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80\xff\xc3 <|endoftext|>\n\n\tdef f(x):");
  use(*tokenizer, std::string(300, 'a') + input.substr(input.size() / 2, 200));
  static_cast<void>(tokenizer->find("a"));
  static_cast<void>(tokenizer->bytes(~0U));
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t seed) {
  if (input.empty() || input[0] != 'j' || seed % 4 == 0) return mutate_bytes(input, most);
  return input[0] + mutate_json(input.substr(1), most - 1, seed);
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(data_directory().parent_path() / "tests/goldens/tokenizers")) {
    const std::string kind = entry.path().extension() == ".gguf"           ? "g"
                             : entry.path().extension() == ".tiktoken"     ? "t"
                             : entry.path().extension() == ".model"        ? "s"
                             : entry.path().filename() == "tokenizer.json" ? "j"
                                                                           : "";
    if (kind.empty() || entry.file_size() > 20'000) continue;
    all.push_back(kind + (kind == "j" ? few_pieces(content_of(entry.path())) : content_of(entry.path())));
  }
  all.push_back(
      R"(j{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"added_tokens":[{"id":3,"content":"<s>","special":true}],"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},"decoder":{"type":"ByteLevel"}})");
  return all;
}

}  // namespace ferry::fuzz
