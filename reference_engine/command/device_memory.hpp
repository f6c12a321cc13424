/// @file
/// What `--device-memory` leaves for experts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "inference/model.hpp"

namespace ferry::engine {

/// What a device holds beside experts, in bytes.
struct BesideExperts {
  std::uint64_t weights = 0;          ///< that every token needs
  std::uint64_t keys_and_values = 0;  ///< of all positions
  std::uint64_t activations = 0;      ///< of the largest step
};

/// What the largest batch needs of texts that have so many positions each and come in this order; prompts come in chunks.
BesideExperts beside_experts(const Model& model, const std::vector<std::uint32_t>& positions, std::uint32_t batch,
                             std::uint32_t prefill_chunk);

/// What those leave of the device's memory, as the user gave it (Fate, section 4.4, calls it M_total - M_dense). Says what goes
/// where, and throws InputError if nothing is left. `all_experts`: their bytes.
std::uint64_t left_for_experts(const std::string& device_memory, const BesideExperts& beside,
                               std::uint64_t all_experts);

}  // namespace ferry::engine
