// Tokenizers against the libraries that their files come from: tests/goldens/tokenizers/README.md.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "support/json.hpp"
#include "support/quick.hpp"
#include "text/tiktoken.hpp"
#include "text/tokenizer.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using Ids = std::vector<std::uint32_t>;

std::filesystem::path tokenizers() {
  return test::golden_file("tokenizers");
}

std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t held = 0, bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    held = held << 6U | static_cast<std::uint32_t>(digits.find(c));
    if ((bits += 6) < 8) continue;
    bits -= 8;
    out += static_cast<char>(held >> bits & 0xffU);
  }
  return out;
}

/// The texts that all tokenizers get, and those that should come back.
struct Corpus {
  std::vector<std::string> given, text;
  Corpus() {
    const Json all = read_json(tokenizers() / "corpus.json");
    for (const Json& t : all["texts"]) given.push_back(t), text.push_back(t);
    for (const Json& b : all["bytes"]) given.push_back(from_base64(b["base64"])), text.push_back(b["text"]);
  }
};

const Corpus& corpus() {
  static const Corpus one;
  return one;
}

std::string megabyte() {
  std::string text;
  for (std::uint64_t i = 0, state = 1; i < 1'000'000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += "etaoinsr"[state >> 61U];
  }
  return text;
}

std::string fnv1a(const Ids& ids) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const std::uint32_t id : ids) {
    for (unsigned byte = 0; byte < 4; ++byte) hash = (hash ^ (id >> 8 * byte & 0xffU)) * 1099511628211ULL;
  }
  return fmt::format("{:016x}", hash);
}

std::shared_ptr<const Tokenizer> open_kind(const Json& kind, const Json& expected) {
  const std::filesystem::path file = tokenizers() / kind["file"].get<std::string>();
  if (kind["format"] != "tiktoken") return open_tokenizer(file);
  std::vector<AddedToken> added;
  for (const auto& [name, id] : expected["special_tokens"].items()) added.push_back({name, "", id, true});
  const WordRules rules{{expected["pattern"]}, true, false, expected["nfc"] == true ? "nfc" : ""};
  return read_tiktoken(file, rules, added);
}

void check_kind(const Json& kind) {
  const std::string name = kind["kind"], format = kind["format"];
  CAPTURE(name);
  const Json expected = read_json(tokenizers() / kind["expected"].get<std::string>());
  if (expected.contains("refused")) {
    const std::string what = test::refusal("tokenizer.json", [&] { static_cast<void>(open_kind(kind, expected)); });
    CHECK(what.find(expected["refused"].get<std::string>()) != std::string::npos);
    return;
  }
  const auto tokenizer = open_kind(kind, expected);
  REQUIRE(tokenizer != nullptr);
  std::vector<std::string> given = corpus().given, text = corpus().text;
  for (const Json& own : expected["own"]) given.push_back(own), text.push_back(own);
  const auto or_empty = [](const Json& in, const char* field) {
    return in.contains(field) ? in[field].get<Ids>() : Ids();
  };
  Ids prefix = kind.contains("prefix") ? kind["prefix"].get<Ids>() : or_empty(expected, "prefix");
  Ids suffix = kind.contains("prefix") ? Ids() : or_empty(expected, "suffix");
  if (format == "tokenizer.json" && prefix.empty() && suffix.empty()) {  // tokenizer_config.json decides
    const auto config = (tokenizers() / kind["file"].get<std::string>()).parent_path() / "tokenizer_config.json";
    const std::string asked = std::filesystem::exists(config) ? read_json(config).value("tokenizer_class", "") : "";
    if (asked.starts_with("Llama") || asked.starts_with("Gemma")) {
      prefix = or_empty(expected, "config_prefix");
      suffix = or_empty(expected, "config_suffix");
    }
  }
  const bool sentence_pieces = format == "tokenizer.model" || name.find("llama\"") != std::string::npos ||
                               tokenizer->kind().find("SentencePiece") != std::string::npos;
  const bool nfc = expected.contains("nfc") && expected["nfc"] == true;
  std::size_t wrong = 0, wrong_text = 0, wrong_shown = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    CAPTURE(i);
    const std::string number = std::to_string(i);
    const Ids right = expected["ids"][i];
    // In a text, control tokens are plain text to the sentencepiece library. Here that has to be asked for.
    const Ids made = tokenizer->encode(given[i], false, !sentence_pieces);
    // Parts that are equally likely may come in either order, because versions of the library differ.
    const bool tied = name == "spm_unigram" &&
                      std::is_permutation(made.begin(), made.end(), right.begin(), right.end()) &&
                      tokenizer->decode(made, false) == tokenizer->decode(right, false);
    wrong += made == right || tied ? 0 : 1;
    if (made != right && !tied && wrong < 4) {
      MESSAGE(name << ", text " << i << " (" << Json(text[i]).dump() << "): " << Json(made).dump() << ", expected "
                   << Json(right).dump());
    }
    if (expected.contains("ordinary") && expected["ordinary"].contains(number)) {
      CHECK(tokenizer->encode(given[i], false, false) == expected["ordinary"][number].get<Ids>());
    }
    if (!sentence_pieces) {
      Ids whole = prefix;
      whole.insert(whole.end(), right.begin(), right.end());
      whole.insert(whole.end(), suffix.begin(), suffix.end());
      if (made == right) CHECK(tokenizer->encode(given[i], true) == whole);
    }
    if (nfc) continue;  // the text before normalization is not known
    const auto of = [&](const char* field) {
      return expected.contains(field) && expected[field].contains(number) ? expected[field][number].get<std::string>()
                                                                          : text[i];
    };
    const std::string decoded = tokenizer->decode(right, !sentence_pieces);
    wrong_text += decoded == of("decoded") ? 0 : 1;
    if (decoded != of("decoded") && wrong_text < 4) {
      MESSAGE(name << ", text " << i << ": " << Json(decoded).dump() << ", expected " << Json(of("decoded")).dump());
    }
    if (format == "tokenizer.json") wrong_shown += tokenizer->decode(right, false) == of("skipped") ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(wrong_text == 0);
  CHECK(wrong_shown == 0);
  if (expected.contains("sequences") && format != "gguf") {
    std::size_t wrong_sequences = 0;
    for (const Json& s : expected["sequences"]) {
      const Ids ids = s["ids"];
      if (s.contains("bytes")) {
        std::string bytes;
        for (const std::uint32_t id : ids) bytes += tokenizer->bytes(id);
        wrong_sequences += bytes == from_base64(s["bytes"]) ? 0 : 1;
      } else {
        const std::string decoded = tokenizer->decode(ids, !sentence_pieces);
        wrong_sequences += decoded == s["decoded"] ? 0 : 1;
        if (decoded != s["decoded"] && wrong_sequences < 3) {
          MESSAGE(name << ": " << Json(ids).dump() << " is " << Json(decoded).dump() << ", expected "
                       << s["decoded"].dump());
        }
        if (s.contains("skipped")) wrong_sequences += tokenizer->decode(ids, false) == s["skipped"] ? 0 : 1;
      }
    }
    CHECK(wrong_sequences == 0);
  }
}

}  // namespace

TEST_CASE("every kind of tokenizer makes the ids and texts that its own library makes") {
  const Json kinds = read_json(tokenizers() / "kinds.json");
  CHECK(kinds.size() == 58);
  for (const Json& kind : kinds) check_kind(kind);
}

TEST_CASE("a megabyte without a space is split as the libraries split it, in time") {
  // tests/goldens/make_tokenizers.py's docstring describes the text and the hash.
  const std::string text = megabyte();
  const Json kinds = read_json(tokenizers() / "kinds.json");
  const std::size_t every = test::quick() ? 16 : 1;  // each takes seconds under a sanitizer
  for (std::size_t i = 0; i < kinds.size(); i += every) {
    const Json& kind = kinds[i];
    const Json expected = read_json(tokenizers() / kind["expected"].get<std::string>());
    // Versions of the library add up Unigram's floats in different orders.
    if (!expected.contains("long") || kind["kind"] == "spm_unigram") continue;
    CAPTURE(kind["kind"].get<std::string>());
    const Ids ids = open_kind(kind, expected)->encode(text, false);
    CHECK(ids.size() == expected["long"]["count"].get<std::size_t>());
    CHECK(fnv1a(ids) == expected["long"]["fnv1a"].get<std::string>());
  }
}

TEST_CASE("steps of a tokenizer that make a text longer and longer are refused, when it is read or a text is split") {
  const test::TemporaryFolder folder;
  const auto opened = [&](const std::string& normalizer, const std::string& splitter, const std::string& added = "") {
    const auto sequence = [](const char* list, const std::string& part) {
      std::string all;
      for (int i = 0; i < 40; ++i) all += (i == 0 ? "" : ",") + part;
      return part.empty() ? std::string("null") : fmt::format(R"({{"type":"Sequence","{}":[{}]}})", list, all);
    };
    test::write_file(folder.path() / "tokenizer.json",
                     fmt::format(R"({{"model":{{"type":"BPE","vocab":{{"a":0,"b":1}},"merges":[]}},"normalizer":{},)"
                                 R"("pre_tokenizer":{},"added_tokens":[{}]}})",
                                 sequence("normalizers", normalizer), sequence("pretokenizers", splitter), added));
    return open_tokenizer(folder.path() / "tokenizer.json");
  };
  const auto refused = [&](const std::string& normalizer, const std::string& splitter) {
    return test::refusal("a text cannot be split", [&] {
      static_cast<void>(opened(normalizer, splitter)->encode("a \xc3\xa9 a", false, false));
    });
  };
  const std::string doubles = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  const std::string longer = "the tokenizer's steps make it too long";
  CHECK(test::says(refused(doubles, ""), {longer}));
  CHECK(test::says(refused(R"({"type":"ByteLevel"})", ""), {longer}));
  CHECK(test::says(refused("", R"({"type":"ByteLevel","use_regex":false,"add_prefix_space":false})"), {longer}));
  CHECK(test::says(refused("", R"({"type":"Metaspace","replacement":"  ","split":false})"), {longer}));
  CHECK(test::says(test::refusal("a text cannot be split",
                                 [&] { opened(doubles, "", R"({"id":2,"content":"aaa","normalized":true})"); }),
                   {longer}));
  CHECK(opened(R"({"type":"Prepend","prepend":"b"})", "")->encode("a", false, false).size() == 41);
  const std::string at = (folder.path() / "tokenizer.json").string();
  const std::string much(33, 'x');
  for (const std::string& part : {R"({"type":"Prepend","prepend":")" + much + "\"}",
                                  R"({"type":"Replace","pattern":{"Regex":"."},"content":")" + much + "\"}"}) {
    CHECK(test::says(test::refusal(at, [&] { opened(part, ""); }), {"at most 32 bytes"}));
  }
  CHECK(test::says(test::refusal(at, [&] { opened("", R"({"type":"Metaspace","replacement":")" + much + "\"}"); }),
                   {"at most 32 bytes"}));
}

namespace {

/// A tokenizer of two letters, with `more` in its file.
std::shared_ptr<const Tokenizer> two_letters(const std::filesystem::path& path, const std::string& more) {
  test::write_file(path, R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]},)" + more + "}");
  return open_tokenizer(path);
}

}  // namespace

TEST_CASE("tokenizers that would take hours for a text are refused") {
  if (test::quick()) return;  // a minute under sanitizers
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "tokenizer.json";
  const std::string many(400'000, 'a');
  const auto long_token = two_letters(path, R"("added_tokens":[{"id":2,"content":")" + many + R"(b","special":true}])");
  CHECK(test::says(
      test::refusal("the tokenizer's added tokens", [&] { static_cast<void>(long_token->encode(many + many, false)); }),
      {"of 800000 bytes"}));
  CHECK(long_token->encode(many + "b", false) == Ids{2});
  const auto slow =
      two_letters(path, R"x("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a(?!.*b)"},"behavior":"Isolated"})x");
  CHECK(test::says(test::refusal(path.string(), [&] { static_cast<void>(slow->encode(many, false)); }),
                   {"takes too long to split a text of 400000 bytes"}));
}

TEST_CASE("tokenizers that would take all memory are refused") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "tokenizer.json";
  const std::string digits = R"({"type":"Digits"})", four = digits + "," + digits + "," + digits + "," + digits;
  const auto sequence = [](const std::string& parts) {
    return R"({"type":"Sequence","pretokenizers":[)" + parts + "]}";
  };
  std::string nested = sequence(four);
  for (int i = 0; i < 23; ++i) nested += "," + sequence(four);  // 96 parts in 24 lists
  CHECK(test::says(test::refusal(path.string(), [&] { two_letters(path, R"("pre_tokenizer":)" + sequence(nested)); }),
                   {"pretokenizers", "at most 100 parts in all of them"}));
  CHECK(test::says(
      test::refusal(path.string(), [&] { two_letters(path, R"("added_tokens":[{"id":4194304,"content":"c"}])"); }),
      {"id", "4194303"}));
  std::filesystem::remove(path);
  test::write_file(folder.path() / "gpt2.tiktoken", "YQ== 0\nYg== 1\n");
  const std::filesystem::path beside = folder.path() / "tokenizer_config.json";
  test::write_file(beside, R"({"added_tokens_decoder":{"99999999":{"content":"zz"}}})");
  CHECK(test::says(test::refusal(beside.string(), [&] { open_tokenizer(folder.path()); }), {"ids from 0 to 2^22 - 1"}));
}

TEST_CASE("a link to nothing is no file that is left out") {
  const test::TemporaryFolder folder;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"}) {
    CAPTURE(std::string(name));
    const std::filesystem::path link = folder.path() / name;
    test::write_file(folder.path() / "gpt2.tiktoken", "YQ== 0\nYg== 1\n");
    std::filesystem::create_symlink("/nowhere/blob", link);
    CHECK(test::says(test::refusal(link.string(), [&] { open_tokenizer(folder.path()); }), {"No such file"}));
    std::filesystem::remove(link);
    std::filesystem::create_symlink(name, link);  // a link to itself
    CHECK(test::says(test::refusal(link.string(), [&] { open_tokenizer(folder.path()); }), {"symbolic links"}));
    std::filesystem::remove(link);
  }
}

TEST_CASE("a token of ranks is no longer than anybody's") {
  const test::TemporaryFolder folder;
  const auto ranks = [&](std::size_t bytes) {
    std::string lines = "YQ== 0\nYg== 1\n";
    for (std::size_t i = 0; i < bytes / 3; ++i) lines += "YWFh";  // "aaa"
    test::write_file(folder.path() / "gpt2.tiktoken", lines + " 2\n");
    static_cast<void>(open_tokenizer(folder.path() / "gpt2.tiktoken"));
  };
  CHECK(test::says(test::refusal((folder.path() / "gpt2.tiktoken").string(), [&] { ranks(4098); }),
                   {"line 3", "of 4096 bytes at most"}));
}

TEST_CASE("a tokenizer puts no token around a text that it does not have") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "tokenizer.json";
  const auto around = [&](int id) {
    test::write_file(path, fmt::format(R"({{"model":{{"type":"BPE","vocab":{{"a":0,"b":1}},"merges":[]}},)"
                                       R"("added_tokens":[{{"id":4,"content":"<s>","special":true}}],"post_processor":)"
                                       R"({{"type":"TemplateProcessing","single":[{{"SpecialToken":{{"id":"<s>"}}}},)"
                                       R"({{"Sequence":{{"id":"A"}}}}],"special_tokens":{{"<s>":{{"ids":[{}]}}}}}}}})",
                                       id));
    return open_tokenizer(path)->encode("a", true);
  };
  CHECK(around(4) == Ids{4, 0});
  CHECK(test::says(test::refusal(path.string(), [&] { around(5); }),
                   {"post_processor", "token 5 is none of the 5 that it has"}));
}

TEST_CASE("no two tokens have one number, and no text has two") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "tokenizer.json";
  const auto refused = [&](const std::string& vocabulary, const std::string& added) {
    test::write_file(
        path, R"({"model":{"type":"BPE","merges":[],"vocab":{)" + vocabulary + R"(}},"added_tokens":[)" + added + "]}");
    return test::refusal(path.string(), [&] { open_tokenizer(path); });
  };
  const std::string ab = R"("a":0,"b":1)";
  CHECK(refused(ab, R"({"id":2,"content":"<s>"},{"id":1,"content":"b"},{"id":2,"content":"<s>"})").empty());
  CHECK(test::says(refused(R"("a":0,"b":0)", ""), {"model: vocab: token 0 is \"a\" and \"b\", expected a number"}));
  CHECK(refused(ab, R"({"id":1,"content":"<s>"})").empty());  // the library accepts this
  CHECK(test::says(refused(ab, R"({"id":2,"content":"<s>"},{"id":2,"content":"</s>"})"),
                   {"added_tokens[1]: token 2 is \"<s>\" and \"</s>\""}));
  CHECK(test::says(refused(ab, R"({"id":2,"content":"<s>"},{"id":3,"content":"<s>"})"),
                   {"added_tokens[1]", "\"id\": expected 2, as the same text has it elsewhere"}));
  CHECK(test::says(refused(ab, R"({"id":2,"content":"b"})"), {"\"id\": expected 1, as the same text has it"}));
}

TEST_CASE("letters newer than the expressions' Unicode are not letters that a tokenizer's expression lists by itself") {
  // Ids by the library tokenizers: DeepSeek-LLM's expression lists the letters that it means.
  const auto tokenizer = open_tokenizer(tokenizers() / "deepseek_llm" / "tokenizer.json");
  CHECK(tokenizer->encode("?  \u1c89", false) == Ids{30, 243, 155, 110, 218});
  CHECK(tokenizer->encode("?  \U00010d50 \ua7cb", false) == Ids{30, 243, 170, 225, 113, 225, 207, 164, 240, 220});
}

TEST_CASE("beside a tokenizer.model the flags of tokenizer_config.json say what stands around a text") {
  const test::TemporaryFolder folder;
  std::filesystem::copy_file(tokenizers() / "spm_bpe" / "tokenizer.model", folder.path() / "tokenizer.model");
  const auto around = [&](const std::string& config) {
    test::write_file(folder.path() / "tokenizer_config.json", config);
    return open_tokenizer(folder.path())->encode("", true).size();
  };
  CHECK(around("{}") == 1);  // the begin token
  CHECK(around(R"({"add_eos_token":true})") == 2);
  CHECK(around(R"({"add_bos_token":false,"add_eos_token":true})") == 1);
  CHECK(around(R"({"add_bos_token":false})") == 0);
}
