#include "jinja/errors.hpp"

#include <fmt/format.h>

#include "support/errors.hpp"
#include "support/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

constexpr std::size_t longest_name = 100, longest_message = 400;

/// The longest beginning of a text that has whole characters and at most so many bytes.
std::string_view cut(std::string_view text, std::size_t bytes) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size() && at <= bytes; next_character(text, at)) end = at;
  return text.size() <= bytes ? text : text.substr(0, end);
}

}  // namespace

void fail_at(const std::string& name, std::uint32_t line, std::string_view what) {
  throw InputError(fmt::format("{}: line {}: {}", name, line, valid_utf8(cut(what, longest_message))));
}

std::string shortened(std::string_view text) {
  return std::string(cut(text, longest_name));
}

}  // namespace ferry::engine::jinja
