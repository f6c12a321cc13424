/// @file
/// Input that cannot be used: one line for the user, exit status 2.
#pragma once
#include <stdexcept>
#include <string>

namespace ferry::engine {

/// Text from strangers as it may go to a terminal: what would command it, change the order of what stands there, or is
/// no character, becomes a question mark.
std::string printable(const std::string& text);

/// Names the file or option, the field, and what was expected. Names and values come from strangers: control
/// characters become question marks, and what is too long to read is cut.
struct InputError : std::runtime_error {
  explicit InputError(const std::string& what) : std::runtime_error(printable(cut(what))) {}

 private:
  static std::string cut(const std::string& text) {
    constexpr std::size_t longest = 600;
    return text.size() > longest ? text.substr(0, longest) + "..." : text;
  }
};

}  // namespace ferry::engine
