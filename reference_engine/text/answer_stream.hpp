/// @file
/// Generated tokens as text that can be shown: whole characters, and nothing of what ends the answer.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "support/utf8.hpp"

namespace ferry::engine {

/// Takes the bytes of one token after another, and gives out text as soon as it cannot be part of a stop string any more.
class AnswerStream {
 public:
  /// `stops`: texts that end the answer, and are not shown; none of them is empty.
  explicit AnswerStream(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  /// What can be shown now.
  std::string push(std::string_view bytes);
  /// What is left, once no more tokens come.
  std::string finish();
  /// Whether a stop string has come: what follows is not shown.
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  std::string release();

  std::vector<std::string> stops_;
  CharacterStream characters_;
  std::string held_;  ///< may begin a stop string
  bool stopped_ = false;
};

}  // namespace ferry::engine
