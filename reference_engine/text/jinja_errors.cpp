#include "text/jinja_errors.hpp"

#include <fmt/format.h>

#include "support/errors.hpp"
#include "text/jinja_unicode.hpp"
#include "text/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

constexpr std::size_t longest_name = 40, longest_message = 400;  // in characters

}  // namespace

void fail_at(const std::string& name, std::uint32_t line, std::string_view what) {
  throw InputError(
      fmt::format("{}: line {}: {}", name, line, valid_utf8(what.substr(0, byte_of(what, longest_message)))));
}

std::string shortened(std::string_view text) {
  return std::string(text.substr(0, byte_of(text, longest_name)));
}

}  // namespace ferry::engine::jinja
