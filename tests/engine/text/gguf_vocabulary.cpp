// Vocabularies of GGUF files: what their metadata cannot say, and what ends a text.
#include "text/gguf_vocabulary.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "checkpoint/generation_config.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "text/regex.hpp"
#include "text/tiktoken.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

template <class T>
std::string number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
std::string text(const std::string& s) {
  return number<std::uint64_t>(s.size()) + s;
}

constexpr std::uint32_t normal = 1, unknown = 2, control = 3;

struct Token {
  std::string text;
  std::uint32_t type = normal;
};

/// A file of nothing but a vocabulary; tokens in the order of their numbers.
std::filesystem::path vocabulary(const TemporaryFolder& folder, const std::string& arch, const std::string& model,
                                 const std::string& pre, const std::vector<Token>& tokens, std::uint32_t end,
                                 const std::vector<std::string>& merges = {}, bool with_merges = true) {
  constexpr std::uint32_t u32 = 4, i32 = 5, f32 = 6, string = 8, list = 9;
  std::string metadata;
  std::uint64_t entries = 0;
  const auto add = [&](const std::string& name, std::uint32_t type, const std::string& value) {
    metadata += text(name) + number(type) + value;
    ++entries;
  };
  const auto all = [&](std::uint32_t type, const auto& one) {
    std::string out = number(type) + number<std::uint64_t>(tokens.size());
    for (const Token& t : tokens) out += one(t);
    return out;
  };
  add("general.architecture", string, text(arch));
  add("tokenizer.ggml.model", string, text(model));
  if (!pre.empty()) add("tokenizer.ggml.pre", string, text(pre));
  add("tokenizer.ggml.tokens", list, all(string, [](const Token& t) { return text(t.text); }));
  add("tokenizer.ggml.token_type", list, all(i32, [](const Token& t) { return number(t.type); }));
  float score = 0;
  add("tokenizer.ggml.scores", list, all(f32, [&](const Token&) { return number(score -= 1); }));
  std::string pairs = number(string) + number<std::uint64_t>(merges.size());
  for (const std::string& both : merges) pairs += text(both);
  if (with_merges) add("tokenizer.ggml.merges", list, pairs);
  if (!merges.empty()) add("tokenizer.ggml.bos_token_id", u32, number<std::uint32_t>(2));
  if (!merges.empty()) add("tokenizer.ggml.add_bos_token", 7, std::string(1, '\0'));
  for (std::uint32_t id = 0; !merges.empty() && id < tokens.size(); ++id) {
    if (tokens[id].type == unknown) add("tokenizer.ggml.unknown_token_id", u32, number(id));
  }
  add("tokenizer.ggml.eos_token_id", u32, number(end));
  const std::filesystem::path path = folder.path() / "v.gguf";
  write_file(path, "GGUF" + number<std::uint32_t>(3) + number<std::uint64_t>(0) + number(entries) + metadata +
                       std::string(64, '\0'));
  return path;
}

std::vector<std::uint32_t> ids(const std::filesystem::path& path, const std::string& text) {
  const auto tokenizer = read_gguf_vocabulary(Gguf(path));
  REQUIRE(tokenizer != nullptr);
  return tokenizer->encode(text, false);
}

using Ids = std::vector<std::uint32_t>;
const std::string blank = "\xe2\x96\x81";
const std::vector<Token> pieces = {{"<unk>", unknown},   {"<s>", control}, {"</s>", control}, {"a"},        {"b"},
                                   {"<|end|>", control}, {"\n"},           {blank},           {blank + "a"}};

}  // namespace

TEST_CASE("an unknown token is found in texts by its name, as other control tokens are") {
  const TemporaryFolder folder;
  CHECK(ids(vocabulary(folder, "llama", "llama", "", pieces, 2), "a<unk>b") == Ids{8, 0, 7, 4});
}

TEST_CASE("Phi's tokens take the white space behind them along") {
  const TemporaryFolder folder;
  const std::string turn = "b<|end|> \n a<s> b</s>\nb";
  const Ids phi = ids(vocabulary(folder, "phimoe", "llama", "", pieces, 2), turn);
  CHECK(std::count(phi.begin(), phi.end(), 6U) == 0);  // no line end is left
  const Ids other = ids(vocabulary(folder, "llama", "llama", "", pieces, 2), turn);
  CHECK(std::count(other.begin(), other.end(), 6U) == 2);
  CHECK(other.size() == phi.size() + 4);  // " ", "\n" and " " behind <|end|>, "\n" behind </s>, and none behind <s>
}

TEST_CASE("Kimi's words: Han by itself, and small letters end one") {
  // As the package `regex` splits them by the expression in the makers' code.
  const std::vector<std::pair<std::string, std::vector<std::string>>> texts = {
      {"Hello\u4f60\u597d\u4e16\u754cfooBar don't12345 \n\n  x",
       {"Hello", "\u4f60\u597d\u4e16\u754c", "foo", "Bar", " don't", "123", "45", " \n\n", " ", " x"}},
      {"x \u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a\u30fc\u3005\u3007 ABCdef'LL!?\r\n\t- 3.14",
       {"x", " ", "\u6f22\u5b57", "\u304b\u306a", "\u4ea4", "\u3058\u308a\u30fc", "\u3005\u3007", " ABCdef'LL",
        "!?\r\n", "\t", "-", " ", "3", ".", "14"}},
      {"\ud55c\uad6d\uc5b4 text  ", {"\ud55c\uad6d\uc5b4", " text", "  "}}};
  const WordRules* rules = word_rules("kimi-k2");
  REQUIRE(rules != nullptr);
  REQUIRE(rules->expressions.size() == 1);
  const Regex words(rules->expressions[0], "kimi-k2", Dialect::rust);
  for (const auto& [whole, expected] : texts) {
    std::vector<std::string> made;
    for (const Stretch& s : words.split(whole)) made.push_back(whole.substr(s.begin, s.end - s.begin));
    CHECK(made == expected);
  }
}

TEST_CASE("Trinity's numbers are split from their end, and scripts without blanks stand by themselves") {
  const WordRules* rules = word_rules("afmoe");
  REQUIRE(rules != nullptr);
  REQUIRE(rules->expressions.size() == 3);
  const std::vector<std::vector<std::pair<std::string, std::vector<std::string>>>> texts = {
      {{"12345678", {"12", "345", "678"}},
       {"a1234b 99,1000000", {"a", "1", "234", "b ", "99", ",", "1", "000", "000"}},
       {"no number", {"no number"}}},
      {{"ab\u4f60\u597dcd\u304b\u30ab\ud55c.", {"ab", "\u4f60\u597d", "cd", "\u304b\u30ab\ud55c", "."}}},
      {{"Hello world's  x!\n", {"Hello", " world", "'s", " ", " x", "!\n"}}}};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Regex words(rules->expressions[i], "afmoe", Dialect::rust);
    for (const auto& [whole, expected] : texts[i]) {
      std::vector<std::string> made;
      for (const Stretch& s : words.split(whole)) made.push_back(whole.substr(s.begin, s.end - s.begin));
      CHECK(made == expected);
    }
  }
}

TEST_CASE("Gemma's pairs are of characters, and what is unknown becomes bytes") {
  const TemporaryFolder folder;
  const std::vector<Token> tokens = {
      {"<unk>", unknown}, {"<turn|>", control}, {"a"},         {"b"},       {blank}, {"\n"}, {blank + "a"}, {"ab"},
      {"\n\n"},           {"<0xC3>", 6},        {"<0xA9>", 6}, {"<div>", 4}};
  const std::vector<std::string> merges = {blank + " a", "a b", "\n \n"};
  const auto path = vocabulary(folder, "gemma4", "gemma4", "", tokens, 1, merges);
  // By hand: blanks become a character, the pair of lowest rank is joined first, and words are not separate.
  CHECK(ids(path, "ab ab") == Ids{7, 6, 3});
  CHECK(ids(path, " a\n\n\nb") == Ids{6, 8, 5, 3});
  CHECK(ids(path, "\u00e9a") == Ids{9, 10, 2});
  CHECK(ids(path, "a<div>b<turn|>xy") == Ids{2, 11, 3, 1, 0});  // two adjacent unknown characters make one token
  const auto tokenizer = read_gguf_vocabulary(Gguf(path));
  CHECK(tokenizer->encode("b", true) == Ids{2, 3});  // the begin token comes first, whatever the file says
  CHECK(says(refusal("v.gguf", [&] { ids(vocabulary(folder, "gemma4", "gemma4", "", tokens, 1, {}, false), ""); }),
             {"\"tokenizer.ggml.merges\": expected the pairs of tokens that make a third"}));
  CHECK(tokenizer->decode(Ids{7, 6, 3, 9, 10, 8}, false) == "ab ab\u00e9\n\n");
  CHECK(says(refusal("v.gguf", [&] { ids(vocabulary(folder, "gemma4", "gemma4", "", tokens, 1, {"a x"}), ""); }),
             {"tokenizer.ggml.merges[0] is \"a x\", expected two tokens that make a third"}));
}

TEST_CASE("what ends a text beside the end token is told by the names of tokens, whatever the file says they are") {
  const TemporaryFolder folder;
  const auto ends = [&](const std::vector<Token>& tokens) {
    return read_generation_config(vocabulary(folder, "qwen3moe", "gpt2", "qwen2", tokens, 0)).end_tokens;
  };
  CHECK(ends({{"<|im_end|>", control}, {"<|endoftext|>", control}, {"<|im_start|>", control}, {"[EOS]"}}) ==
        Ids{1, 0, 3});
  CHECK(ends({{"</s>", control}, {"<|end|>", control}, {"a"}}) == Ids{1});
  CHECK(ends({{"<|return|>", control}, {"<|call|>", control}, {"<|end|>", control}}) ==
        Ids{1, 0});  // a turn has several
  CHECK(ends({{"<turn|>", control}, {"<|tool_response>", 4}, {"<eos>", control}, {"<|end|>", 4}}) == Ids{2, 0, 3, 1});
  CHECK(ends({{"a"}}).empty());
}

TEST_CASE("a vocabulary that nobody here can read leaves the numbers of tokens") {
  const TemporaryFolder folder;
  const std::filesystem::path path = vocabulary(folder, "qwen3moe", "gpt2", "nobodys", {{"a"}, {"b"}}, 0);
  CHECK(says(refusal("v.gguf", [&] { static_cast<void>(read_gguf_vocabulary(Gguf(path))); }),
             {"\"tokenizer.ggml.pre\": expected another than \"nobodys\": one of afmoe, "}));
}

TEST_CASE("a file that does not say how texts are split is refused, but for Qwen's, whose way is known") {
  const TemporaryFolder folder;
  const auto kind = [&](const std::string& arch, const std::string& pre) {
    return read_gguf_vocabulary(Gguf(vocabulary(folder, arch, "gpt2", pre, {{"a"}, {"b"}}, 0)))->kind();
  };
  CHECK(kind("qwen2moe", "") == "GGUF, BPE as qwen2");
  CHECK(kind("qwen2moe", "default") == "GGUF, BPE as qwen2");
  CHECK(kind("llama", "default") == "GGUF, BPE as default");
  CHECK(says(refusal("v.gguf", [&] { static_cast<void>(kind("llama", "")); }), {"tokenizer.ggml.pre"}));
}

TEST_CASE("Kimi's ranks have a name that others' files could have, and are known by the code beside them") {
  const TemporaryFolder folder;
  write_file(folder.path() / "tiktoken.model", "YQ== 0\nYg== 1\nYWI= 2\nIA== 3\n");
  CHECK(open_tokenizer(folder.path()) == nullptr);
  const Json config = {{"auto_map", {{"AutoTokenizer", {"tokenization_kimi.TikTokenTokenizer", nullptr}}}},
                       {"added_tokens_decoder", {{"4", {{"content", "[EOS]"}, {"special", true}}}}}};
  write_file(folder.path() / "tokenizer_config.json", config.dump());
  const auto tokenizer = open_tokenizer(folder.path());
  REQUIRE(tokenizer != nullptr);
  CHECK(tokenizer->encode("ab a[EOS]b", false) == Ids{2, 3, 0, 4, 1});
}
