/// @file
/// Device memory, as a user writes it.
#pragma once
#include <cstdint>
#include <string>

namespace ferry::engine {

/// --prefetch-chunk: pieces of a prefetch, between which what the gate asks for goes ahead, as a share of an expert or a size.
/// A share is a byte at least; 0: a prefetch is not cut. Throws InputError.
std::uint64_t parse_chunk(const std::string& text, std::uint64_t expert_bytes);

/// "25%" of `all_bytes`, "1000000", "64MiB" -> bytes. Throws InputError, which names the option.
std::uint64_t parse_budget(const std::string& text, std::uint64_t all_bytes, const std::string& option = "--budget");

}  // namespace ferry::engine
