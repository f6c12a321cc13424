/// @file
/// Device memory, as a user writes it.
#pragma once
#include <cstdint>
#include <string>

namespace ferry::engine {

/// "25%" of `all_bytes`, "1000000", "64MiB" -> bytes. Throws InputError, which names the option.
std::uint64_t parse_budget(const std::string& text, std::uint64_t all_bytes, const std::string& option = "--budget");

}  // namespace ferry::engine
