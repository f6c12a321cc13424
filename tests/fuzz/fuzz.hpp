/// @file
/// What every fuzz target defines, and what it may use. driver.cpp has libFuzzer's entry points.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/fixtures/tiny_checkpoint.hpp"
#include "trace/trace_file.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace ferry::fuzz {

using engine::Json;

// A target defines these three.

/// Reads these bytes as a stranger's file. InputError and ConfigError are refusals; anything else is a finding.
void read(const std::string& input);
/// Inputs to begin with.
std::vector<std::string> seeds();
/// A mutation of an input, if possible of at most `most` bytes.
std::string mutate(const std::string& input, std::size_t most, std::uint64_t seed);

/// libFuzzer's own mutation.
std::string mutate_bytes(std::string bytes, std::size_t most);
/// A mutation that keeps most of a safetensors file whole: of its header, of its data, of one number, or of a tensor's
/// shape or type with everything laid out anew.
std::string mutate_safetensors(const std::string& file, std::size_t most, std::uint64_t seed);

/// A mutation that mostly leaves valid JSON: one value becomes odd, or another's, or a little larger or smaller, or is removed.
std::string mutate_json(const std::string& text, std::size_t most, std::uint64_t seed);

/// A place for files, gone at the end.
const std::filesystem::path& folder();
/// Writes a file there.
std::filesystem::path file(const std::string& name, const std::string& content);
std::string content_of(const std::filesystem::path& path);

/// A model of 2 layers, 4 experts, top-2.
engine::ModelFacts small_model();
/// A trace of that model with every tensor there is, or with no more than an import needs.
std::unique_ptr<engine::TraceFile> small_trace(bool every_tensor, std::uint32_t sequences, std::uint32_t prompt,
                                               std::uint32_t tokens);
/// Uses an accepted trace as the commands do. Walks every step, writes it and reads it again, and measures its statistics; if
/// it is small, also replays some tokens under lru and one more stack, which `choice` picks.
void use(const engine::TraceFile& trace, std::uint32_t choice);

}  // namespace ferry::fuzz
