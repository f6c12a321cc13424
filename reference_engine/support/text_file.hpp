/// @file
/// Texts that a user names.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>

namespace ferry::engine {

inline constexpr std::uint64_t largest_text = 1U << 26U;  // no context is as long

/// Whether something is there, be it a link to nothing: that does not count as a file left out, but is read, and so refused.
bool is_there(const std::filesystem::path& path);

/// A whole file. Throws InputError with its path and the reason.
std::string read_whole(const std::filesystem::path& path, std::uint64_t most_bytes = largest_text);
/// The same; `option` names it in the InputError.
std::string read_text(const std::string& option, const std::string& path);

/// Whether standard input is a pipe or a file: no terminal, and not /dev/null.
bool standard_input_has_text();
/// All of it, or what came before `stop` was set. `option` names it in the InputError.
std::string read_standard_input(const std::string& option, const std::atomic<bool>& stop);

}  // namespace ferry::engine
