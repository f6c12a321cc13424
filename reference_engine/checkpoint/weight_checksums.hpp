/// @file
/// Checksums of a model's weight files, in a list that others' tools write and check, too.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/checkpoint.hpp"

namespace ferry::engine {

/// Progress in bytes. Returns false to stop: a list that was to be made is then empty, and a check is not finished.
using ByteProgress = std::function<bool(std::uint64_t done, std::uint64_t all)>;

/// A line a file, as xxh128sum writes it: XXH3 of 128 bits, two spaces, the name without its folder. Reads all of them.
/// Throws InputError for what cannot be read.
std::string weight_checksums(const Checkpoint& checkpoint, const ByteProgress& progress);

/// Reads the list, and all weight files. Throws InputError, naming the file, for one that differs or is not in the list,
/// and for a list that is none.
void check_weight_checksums(const Checkpoint& checkpoint, const std::filesystem::path& list,
                            const ByteProgress& progress);

}  // namespace ferry::engine
