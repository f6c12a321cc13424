/// @file
/// Expressions of tokenizers, in PCRE2's words.
#pragma once
#include <string>

namespace ferry::engine {

/// Who reads them: Oniguruma those of `tokenizer.json`, Rust (fancy-regex) those of tiktoken and of the `tokenizers` library
/// itself.
enum class Dialect { oniguruma, rust };

/// The same expression for PCRE2, with its flags UTF, UCP and MULTILINE. What differs, and is written otherwise: \s, \S, \w
/// and \W, which count other characters; names of scripts, which to PCRE2 have what others share with them; classes within
/// classes and what they have in common (&&). To Oniguruma a{2,3}+ repeats the repetition and does not hold on to it, a{2}?
/// may be absent, a{,3} is a{0,3}, and (?m) lets a dot be any character. Throws InputError, which `where` begins, for what
/// cannot be said.
std::string for_pcre2(const std::string& pattern, const std::string& where, Dialect dialect);

}  // namespace ferry::engine
