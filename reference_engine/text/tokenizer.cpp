#include "text/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/gguf.hpp"
#include "checkpoint/gguf_model.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/text_file.hpp"
#include "support/utf8.hpp"
#include "text/gguf_vocabulary.hpp"
#include "text/sentence_piece.hpp"
#include "text/tiktoken.hpp"
#include "text/tokenizer_json.hpp"

namespace ferry::engine {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(std::uint32_t begin) : begin_(begin) {}
  [[nodiscard]] std::string kind() const override { return "bytes"; }
  [[nodiscard]] std::uint32_t size() const override { return begin_ + 1; }
  [[nodiscard]] std::vector<std::uint32_t> encode(std::string_view text, bool whole, bool /*names*/) const override {
    std::vector<std::uint32_t> out;
    if (whole) out.push_back(begin_);
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }
  [[nodiscard]] std::vector<std::uint32_t> begin() const override { return {begin_}; }
  [[nodiscard]] std::string decode(std::span<const std::uint32_t> tokens, bool /*special*/) const override {
    std::string out;
    for (const std::uint32_t t : tokens) out += bytes(t);
    return valid_utf8(out);
  }
  [[nodiscard]] std::string bytes(std::uint32_t token) const override {
    return token < 256 ? std::string(1, static_cast<char>(token)) : std::string();
  }
  [[nodiscard]] bool is_special(std::uint32_t token) const override { return token >= 256; }
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token[0]);
  }

 private:
  std::uint32_t begin_;
};

/// What tokenizer_config.json says about files that do not say it themselves.
struct Neighbours {
  std::vector<AddedToken> added;
  bool begins = true, ends = false;
};

/// The begin and end token, if tokenizer_config.json asks for them beside a tokenizer.json. The classes of Llama and Gemma of
/// transformers 4 obey its flags, and DeepSeek's files say it nowhere else. transformers 5 forgets them, with which
/// DeepSeek's models see texts without the begin token that they were trained with.
AroundText around_text(const std::filesystem::path& folder) {
  AroundText around;
  const std::filesystem::path path = folder / "tokenizer_config.json";
  if (!is_there(path)) return around;
  const Json root = read_json(path);
  const Fields f(root, path.string());
  const std::string name = f.has("tokenizer_class") ? f.text("tokenizer_class") : "";
  if (!name.starts_with("Llama") && !name.starts_with("CodeLlama") && !name.starts_with("Gemma")) return around;
  const auto token = [&](const char* field) {
    const Json& said = f.at(field);
    return said.is_object() ? Fields(said, path.string() + ": " + field).text("content") : f.text(field);
  };
  if (f.flag("add_bos_token", false)) around.before.push_back(token("bos_token"));
  if (f.flag("add_eos_token", false)) around.behind.push_back(token("eos_token"));
  return around;
}

Neighbours read_neighbours(const std::filesystem::path& folder) {
  Neighbours n;
  const std::filesystem::path path = folder / "tokenizer_config.json";
  if (!is_there(path)) return n;
  const Json root = read_json(path);
  const Fields f(root, path.string());
  n.begins = f.flag("add_bos_token", true);
  n.ends = f.flag("add_eos_token", false);
  if (!f.has("added_tokens_decoder")) return n;
  const Json& all = f.at("added_tokens_decoder");
  if (!all.is_object()) f.refuse("added_tokens_decoder", "an object of tokens by their ids");
  for (const auto& [id, token] : all.items()) {
    const Fields t(token, fmt::format("{}: added_tokens_decoder: {}", path.string(), id));
    const bool number =
        !id.empty() && id.size() < 9 && std::all_of(id.begin(), id.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!number || std::stoul(id) >= most_tokens) {
      f.refuse("added_tokens_decoder", "ids from 0 to 2^22 - 1 as names");
    }
    AddedToken added;
    added.id = static_cast<std::uint32_t>(std::stoul(id));
    added.text = t.text("content");
    added.special = t.flag("special", false);
    added.single_word = t.flag("single_word", false);
    added.strips_left = t.flag("lstrip", false);
    added.strips_right = t.flag("rstrip", false);
    n.added.push_back(added);
  }
  return n;
}

/// Whether tokenizer_config.json names Moonshot's code for the tokenizer.
bool is_kimis(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  if (!is_there(path)) return false;
  const Json config = read_json(path);
  const std::string code = config.is_object() ? json_text(config.value("auto_map", Json())) : "";
  return code.find("tokenization_kimi") != std::string::npos || code.find("tokenization_moonshot") != std::string::npos;
}

std::filesystem::path ranks_in(const std::filesystem::path& folder) {
  std::filesystem::path found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() != ".tiktoken") continue;
    if (!found.empty()) {
      throw InputError(fmt::format("{}: has {} and {}, expected one file of ranks", folder.string(),
                                   found.filename().string(), entry.path().filename().string()));
    }
    found = entry.path();
  }
  return found;
}

std::shared_ptr<const Tokenizer> open_file(const std::filesystem::path& path) {
  const bool ranks = path.extension() == ".tiktoken";
  if (!ranks && path.extension() != ".model") return read_tokenizer_json(path, around_text(path.parent_path()));
  const Neighbours beside = read_neighbours(path.parent_path());
  if (ranks) return read_tiktoken(path, beside.added);
  SentencePieceOptions options;
  options.added = beside.added;
  options.begins = beside.begins;
  options.ends = beside.ends;
  return read_sentence_piece(path, options);
}

std::shared_ptr<const Tokenizer> open_in(const std::filesystem::path& folder) {
  const auto has = [&](const char* name) { return is_there(folder / name); };
  if (has("tokenizer.json")) return open_file(folder / "tokenizer.json");
  if (has("tiktoken.model") && is_kimis(folder)) {
    return read_tiktoken(folder / "tiktoken.model", *word_rules("kimi-k2"), read_neighbours(folder).added);
  }
  const std::filesystem::path model = has("tokenizer.model") ? folder / "tokenizer.model" : ranks_in(folder);
  return model.empty() ? nullptr : open_file(model);
}

}  // namespace

bool reads_bytes(const ModelConfig& config) {
  return config.vocabulary == 258 && config.begin_token == 256;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path) {
  if (is_gguf(path)) return read_gguf_vocabulary(*open_gguf(path)[0]);
  std::error_code none;
  if (std::filesystem::is_directory(path, none)) return open_in(path);
  return open_file(path);
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& model, const ModelConfig& config) {
  std::shared_ptr<const Tokenizer> found = open_tokenizer(model);
  if (found == nullptr && reads_bytes(config)) found = std::make_shared<ByteTokenizer>(config.begin_token);
  return found;
}

}  // namespace ferry::engine
