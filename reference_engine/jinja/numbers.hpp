/// @file
/// Numbers from texts, and rounded ones, as Python has them.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "jinja/rendering.hpp"
#include "jinja/value.hpp"

namespace ferry::engine::jinja {

/// int(text, base); none if the text is no such number. Fails if it needs more than 64 bits.
std::optional<std::int64_t> parse_whole(Rendering& run, std::string_view text, std::int64_t base);
/// float(text); none if the text is no number.
std::optional<double> parse_real(std::string_view text);
/// int(number); fails if it needs more than 64 bits.
std::int64_t truncated(Rendering& run, double number);
/// round(value, digits): to the even neighbour where both are as near.
Value rounded(Rendering& run, const Value& value, std::int64_t digits);

}  // namespace ferry::engine::jinja
