/// @file
/// From a checkpoint to an expert store.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "store/store_file.hpp"

namespace ferry::engine {

struct PackOptions {
  std::vector<std::string> precisions = {"full", "int8", "int4", "int2"};  ///< or bf16, f16, f32 in place of full
  Quantizer quantizer = Quantizer::nearest;
  std::uint32_t group = 64;   ///< 32, 64 or 128
  std::uint32_t threads = 0;  ///< 0: one a processor
  /// Of the model's files, before anything is made of them.
  std::function<void(const Checkpoint&)> check = {};
  /// In experts; `checking`: what an earlier, unfinished pack has written. False: stop.
  std::function<bool(bool checking, std::uint64_t done, std::uint64_t all)> progress = {};
};

struct Packed {
  StoreFacts facts;
  std::uint64_t resumed = 0;  ///< experts that were there already
  std::uint64_t done = 0;     ///< experts that are there now: fewer than all if it was stopped
};

/// Writes every routed expert of the model at each of the precisions to `out`, which appears when all is there. Holds
/// one expert in memory, in all its precisions. Stopped or killed, it leaves OUT.part, with which the next one goes on.
/// Throws InputError for a model that cannot be read, weights that a precision cannot hold, or a disk that refuses.
Packed pack_store(const std::filesystem::path& folder, const std::filesystem::path& out, const PackOptions& options);

struct ScrubOptions {
  std::function<bool(std::uint64_t done, std::uint64_t all)> progress;  ///< false: stop
  std::function<void(const std::string& line)> damage;                  ///< what is wrong, and where
};

struct Scrubbed {
  std::uint64_t done = 0;  ///< in the unit of `progress`
  std::uint64_t damaged = 0;
};

/// Reads every block of a store and holds it against its checksum; progress in bytes. Throws InputError for a store whose
/// header is damaged.
Scrubbed scrub_store(const std::filesystem::path& store, const ScrubOptions& options);

/// Reads every expert of a model and holds it against the checksum of what the store was made from; progress in experts.
/// Throws InputError for a model that cannot be read, or whose shape is another.
Scrubbed compare_with_store(const std::filesystem::path& folder, const std::filesystem::path& store,
                            const ScrubOptions& options);

}  // namespace ferry::engine
