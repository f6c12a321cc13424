// How texts are split into words: facts of the makers' tokenizers, by the names that llama.cpp and tiktoken have for them.
#include <map>

#include "text/bpe_tokenizer.hpp"
#include "text/tiktoken.hpp"

namespace ferry::engine {
namespace {

constexpr const char* endings = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";

/// Splits into words with one character before them, numbers of limited length, punctuation, line ends and blanks.
std::string common(const std::string& digits, const std::string& letters = R"(\p{L})",
                   const std::string& no_letters = R"(\s\p{L}\p{N})") {
  return std::string(endings) + R"(|[^\r\n\p{L}\p{N}]?)" + (letters == R"(\p{L})" ? letters : "[" + letters + "]") +
         R"(+|)" + digits + R"(| ?[^)" + no_letters + R"(]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

/// o200k's way: a word ends where its lower case letters end. `ends`: an expression for what may follow.
std::string by_case(const std::string& ends, const std::string& digits) {
  const std::string begin = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])",
                    small = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
  return begin + "*" + small + "+" + ends + "|" + begin + "+" + small + "*" + ends + "|" + digits +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::vector<std::string> deepseek_v3() {
  return {
      R"(\p{N}{1,3})", R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
}

/// Trinity's rules: numbers are split into groups of three digits from their end, and scripts without blanks stand apart.
/// (llama.cpp has U+8C48 instead of U+F900, which is the same character in normalized texts.)
std::vector<std::string> trinity() {
  std::vector<std::string> all = deepseek_v3();
  all[0] = R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";
  all[1] = R"([\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff}\x{ff65}-\x{ff9f})"
           R"(\x{2f00}-\x{2fdf}\x{e40}-\x{e7f}\x{e80}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f})"
           R"(\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+)";
  return all;
}

/// o200k's way, but Han characters form words of their own.
std::vector<std::string> kimi() {
  const std::string begin = R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))",
                    small = R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))", ends = std::string(endings) + "?";
  return {R"(\p{Han}+|)" + begin + "*" + small + "+" + ends + "|" + begin + "+" + small + "*" + ends +
          R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
}

std::map<std::string, WordRules> make_rules() {
  std::map<std::string, WordRules> all;
  const auto add = [&](std::initializer_list<const char*> names, const WordRules& rules) {
    for (const char* name : names) all[name] = rules;
  };
  const std::string optional = std::string(endings) + "?";
  add({"gpt-2", "gpt2", "phi-2", "exaone4", "gigachat"}, {{gpt2_words}});
  add({"r50k_base", "p50k_base"}, {{gpt2_words}});
  add({"olmo", "dbrx-olmo"}, {{gpt2_words}, false, false, "nfc"});
  add({"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"}, {{R"(\p{N})", gpt2_words}});
  add({"llama-bpe", "llama3", "llama-v3", "lfm2"}, {{common(R"(\p{N}{1,3})")}, true, true});
  add({"dbrx", "smaug-bpe", "cl100k_base", "chatglm-bpe"}, {{common(R"(\p{N}{1,3})")}});
  add({"glm4"}, {{common(R"(\p{N}{1,3})")}, true});
  add({"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2"},
      {{common(R"(\p{N})")}, false, false, "nfc"});
  all["grok-2"].form = all["stablelm2"].form = "";
  add({"qwen", "hy"}, {{common(R"(\p{N})")}, false, false, "nfc"});
  add({"qwen35", "qwen3_5", "qwen3_6"},
      {{common(R"(\p{N})", R"(\p{L}\p{M})", R"(\s\p{L}\p{M}\p{N})")}, false, false, "nfc"});
  add({"solar-open"}, {{common(R"(\p{N})")}});
  add({"gpt-4o", "llama4", "o200k_base", "o200k_harmony", "kanana2", "minimax-m2"},
      {{by_case(optional, R"(\p{N}{1,3})")}});
  all["minimax-m2"].form = "nfc";
  add({"tekken"}, {{by_case("", R"(\p{N})")}, true, true});
  add({"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {deepseek_v3()});
  add({"kimi-k2"}, {kimi()});
  add({"afmoe"}, {trinity()});
  add({"exaone-moe"}, {{std::string(endings) +
                        R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?)"
                        R"(|\s*[\r\n]|\s+(?!\S)|\s+)"}});
  add({"default"},
      {{R"([\p{P}\$\+<=>\^~\|]+)", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))",
        R"(\p{N}+)", R"([0-9][0-9][0-9])"}});
  add({"deepseek-llm"}, {{R"([\r\n])",
                          R"(\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})"
                          R"(\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a})"
                          R"(\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556})"
                          R"(\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf})"
                          R"(\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d})"
                          R"(\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-)"
                          R"(\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc})"
                          R"(\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc})"
                          R"(\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128})"
                          R"(\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e})"
                          R"(\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3})"
                          R"(\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e})"
                          R"(\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a})"
                          R"(\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-)"
                          R"(\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)",
                          R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)",
                          R"(\s+$)", R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)", R"(\p{N})"}});
  add({"deepseek-coder"}, {{R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                            R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)", R"(\p{N})"}});
  return all;
}

const std::map<std::string, WordRules>& rules() {
  static const std::map<std::string, WordRules> all = make_rules();
  return all;
}

}  // namespace

const WordRules* word_rules(const std::string& name) {
  const auto found = rules().find(name);
  return found == rules().end() ? nullptr : &found->second;
}

std::string known_word_rules() {
  std::string all;
  for (const auto& [name, rule] : rules()) all += (all.empty() ? "" : ", ") + name;
  return all;
}

}  // namespace ferry::engine
