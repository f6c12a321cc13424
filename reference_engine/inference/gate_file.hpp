/// @file
/// Files of gates that were trained to predict (`ferry calibrate gates`).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/model_config.hpp"
#include "ferry/gate/gate_bank.hpp"

namespace ferry::engine {

inline constexpr const char* gate_format = "ferry-gates 1";

/// The name of the tensor [experts, hidden] that predicts `layer` from the gate input `distance` layers before it.
std::string gate_tensor(std::uint32_t layer, std::uint32_t distance);

/// Makes the bank predict with the gates of a file. Throws InputError for a file of another kind or of another model's shape,
/// or with a value that is not finite.
void read_gates(const std::filesystem::path& path, const ModelConfig& config, GateBank& bank);

}  // namespace ferry::engine
