/// @file
/// Device memory and its layout, as a user writes them.
#pragma once
#include <cstdint>
#include <string>

#include "stacks/stack_config.hpp"

namespace ferry::engine {

/// "25%" of `all_bytes`, "1000000", "64MiB" -> bytes. Throws InputError, which names the option.
std::uint64_t parse_budget(const std::string& text, std::uint64_t all_bytes, const std::string& option = "--budget");

/// "per-layer", "one", "shallow"; anything else is the stack's own.
PoolChoice pool_choice(const std::string& name);

}  // namespace ferry::engine
