/// @file
/// Tokens that are found in a text before all else: those with a meaning of their own, and those that were added later.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ferry::engine {

struct AddedToken {
  std::string text;
  std::string pattern;  ///< what it is found as; empty: its text
  std::uint32_t id = 0;
  bool special = false;                            ///< left out of a text that is shown
  bool normalized = false;                         ///< looked for after a text is normalized, and not before
  bool single_word = false;                        ///< only where no letter or digit touches it
  bool strips_left = false, strips_right = false;  ///< takes the white space on that side with it

  /// Bytes that it is found by.
  [[nodiscard]] std::size_t size() const { return pattern.empty() ? text.size() : pattern.size(); }
};

/// Finds tokens in texts: the leftmost first, the longest of those that begin there.
///
/// Source: Hugging Face's tokenizers, AddedVocabulary. O(bytes * the longest token), and refused where that is far more than
/// tokens of people's files take.
class AddedTokens {
 public:
  AddedTokens();
  void add(const AddedToken& token);

  struct Part {
    std::string_view text;
    std::optional<std::uint32_t> token;  ///< what it is; none: text
  };
  /// `wanted`: which are looked for. Throws InputError for a text and tokens that would take too long.
  [[nodiscard]] std::vector<Part> split(std::string_view text,
                                        const std::function<bool(const AddedToken&)>& wanted) const;
  [[nodiscard]] const std::vector<AddedToken>& all() const { return tokens_; }
  [[nodiscard]] const AddedToken* find(std::uint32_t id) const;
  [[nodiscard]] const AddedToken* find(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> next;  ///< by byte, ascending
    std::int64_t token = -1;
  };
  [[nodiscard]] std::uint32_t step(std::uint32_t node, unsigned char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
};

}  // namespace ferry::engine
