/// @file
/// Input that cannot be used: one line for the user, exit status 2.
#pragma once
#include <stdexcept>
#include <string>

namespace ferry::engine {

/// Names the file or option, the field, and what was expected. Names and values come from strangers: control
/// characters become question marks, and what is too long to read is cut.
struct InputError : std::runtime_error {
  explicit InputError(const std::string& what) : std::runtime_error(printable(what)) {}

 private:
  static std::string printable(std::string text) {
    constexpr std::size_t longest = 600;
    if (text.size() > longest) text = text.substr(0, longest) + "...";
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return text;
  }
};

}  // namespace ferry::engine
