/// @file
/// How the errors of templates read.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ferry::engine::jinja {

/// Throws InputError: "NAME: line N: what". What is too long to read is cut, between two characters.
[[noreturn]] void fail_at(const std::string& name, std::uint32_t line, std::string_view what);

/// The begin of a text, for a message.
std::string shortened(std::string_view text);

}  // namespace ferry::engine::jinja
