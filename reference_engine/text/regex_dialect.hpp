/// @file
/// Expressions of tokenizers, in PCRE2's words.
#pragma once
#include <string>

namespace ferry::engine {

/// Which engine an expression is written for: Oniguruma in `tokenizer.json`; Rust (fancy-regex) in tiktoken and in the
/// `tokenizers` library itself.
enum class Dialect { oniguruma, rust };

/// The same expression for PCRE2, with its flags UTF, UCP and MULTILINE. What differs is rewritten: \s, \S, \w and \W, which
/// count other characters; names of scripts, by which PCRE2 also means what they share with others; classes within classes, and
/// what they have in common (&&). In Oniguruma a{2,3}+ repeats the repetition and is not possessive, a{2}? may be absent, a{,3}
/// is a{0,3}, and (?m) lets a dot be any character. Throws InputError, whose message `where` begins, for what PCRE2 cannot
/// express.
std::string for_pcre2(const std::string& pattern, const std::string& where, Dialect dialect);

}  // namespace ferry::engine
