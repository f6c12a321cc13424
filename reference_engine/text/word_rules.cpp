// How texts are split into words: facts of the makers' tokenizers, by the names that llama.cpp and tiktoken have for them.
#include <map>

#include "text/bpe_tokenizer.hpp"
#include "text/tiktoken.hpp"

namespace ferry::engine {
namespace {

constexpr const char* endings = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";

/// A word with what stands before it, numbers of up to so many digits, punctuation, and blanks apart from line ends.
std::string common(const std::string& digits, const std::string& letters = R"(\p{L})",
                   const std::string& no_letters = R"(\s\p{L}\p{N})") {
  return std::string(endings) + R"(|[^\r\n\p{L}\p{N}]?)" + (letters == R"(\p{L})" ? letters : "[" + letters + "]") +
         R"(+|)" + digits + R"(| ?[^)" + no_letters + R"(]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

/// Words end where small letters do, o200k's way. `ends`: an expression of what may follow.
std::string by_case(const std::string& ends, const std::string& digits) {
  const std::string begin = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])",
                    small = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
  return begin + "*" + small + "+" + ends + "|" + begin + "+" + small + "*" + ends + "|" + digits +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::vector<std::string> deepseek_v3() {
  return {
      R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
}

std::map<std::string, WordRules> make_rules() {
  std::map<std::string, WordRules> all;
  const auto add = [&](std::initializer_list<const char*> names, const WordRules& rules) {
    for (const char* name : names) all[name] = rules;
  };
  const std::string optional = std::string(endings) + "?";
  add({"gpt-2", "gpt2", "phi-2", "exaone4"}, {{gpt2_words}});
  add({"r50k_base", "p50k_base"}, {{gpt2_words}});
  add({"olmo", "dbrx-olmo"}, {{gpt2_words}, false, false, "nfc"});
  add({"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"}, {{R"(\p{N})", gpt2_words}});
  add({"llama-bpe", "llama3", "llama-v3"}, {{common(R"(\p{N}{1,3})")}, true, true});
  add({"dbrx", "smaug-bpe", "cl100k_base", "chatglm-bpe"}, {{common(R"(\p{N}{1,3})")}});
  add({"glm4"}, {{common(R"(\p{N}{1,3})")}, true});
  add({"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2"},
      {{common(R"(\p{N})")}, false, false, "nfc"});
  all["hunyuan"].form = all["grok-2"].form = all["stablelm2"].form = "";
  add({"qwen"}, {{common(R"(\p{N})")}});
  add({"qwen35"}, {{common(R"(\p{N})", R"(\p{L}\p{M})", R"(\s\p{L}\p{M}\p{N})")}, false, false, "nfc"});
  add({"gpt-4o", "llama4", "o200k_base", "o200k_harmony", "minimax-m2"}, {{by_case(optional, R"(\p{N}{1,3})")}});
  add({"tekken"}, {{by_case("", R"(\p{N})")}, true, true});
  add({"deepseek-v3", "hunyuan-dense"}, {deepseek_v3()});
  add({"deepseek-llm"},
      {{R"([\r\n])",
        R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)",
        R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(\s+$)", R"([一-龥ࠀ-一가-퟿]+)", R"(\p{N})"}});
  add({"deepseek-coder"}, {{R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", R"([一-龥ࠀ-一가-퟿]+)", R"(\p{N})"}});
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
