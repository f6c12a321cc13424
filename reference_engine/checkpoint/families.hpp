/// @file
/// The families of models that the engine computes.
#pragma once
#include "checkpoint/model_config.hpp"
#include "support/json.hpp"

namespace ferry::engine {

/// Of any dimension; keeps products of two within 64 bits with ease.
inline constexpr std::uint32_t largest_dimension = 1U << 20U;

/// Fills in what is particular to the family that `config.architecture_name` names; what all have in common is there.
/// Throws InputError that names the field, or the part of a family that is not computed.
void read_family(const Fields& fields, ModelConfig& config);

}  // namespace ferry::engine
