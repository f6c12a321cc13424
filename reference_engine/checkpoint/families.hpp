/// @file
/// The families of models that the engine computes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/model_config.hpp"
#include "support/json.hpp"

namespace ferry::engine {

/// The most that any dimension may have; keeps products of two within 64 bits with ease.
inline constexpr std::uint32_t largest_dimension = 1U << 20U;

/// What its makers' code takes where a file does not say.
struct FamilyDefaults {
  double norm_epsilon = 0;
  std::optional<std::uint32_t> end_token;
  bool latent = false;  ///< it has latent attention, whose heads have widths of their own
  /// Where files of models that also see say whether embeddings are tied.
  enum class Tied : std::uint8_t { root_or_text, root, text, either } tied = Tied::root_or_text;
};

/// The defaults of a family, which are needed before any field is read, since families spell fields in different ways. Throws
/// InputError, with the family's name and the part that is missing, if the engine does not compute it.
FamilyDefaults family_defaults(const Fields& fields, const std::string& architecture);

/// Fills in what is particular to the family that `config.architecture_name` names; what all have in common is there.
/// `family_defaults` has not refused it. Throws InputError that names the field.
void read_family(const Fields& fields, ModelConfig& config);

}  // namespace ferry::engine
