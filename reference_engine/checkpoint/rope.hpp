/// @file
/// Rotary position embeddings, as config.json describes them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "support/json.hpp"

namespace ferry::engine {

/// A head's first `width` columns (of latent attention those behind the plain ones) are pairs, each turned by an angle that
/// grows with the position.
struct Rope {
  std::uint32_t width = 0;
  bool neighbours = false;        ///< pairs are columns 2i and 2i + 1; else i and i + width / 2
  bool within_context = false;    ///< "dynamic": other frequencies belong to texts longer than max_position_embeddings
  double theta = 0;               ///< as the file says
  std::vector<double> frequency;  ///< [width / 2], radians a position, as single precision makes them
  double scale = 1;               ///< of the turned columns
  /// Where a sequence may be longer than this many tokens, these instead (LongRoPE); 0: there are none. Such models were
  /// trained on whole texts of one kind or the other: what counts is how long a text may become, and not where a token is.
  std::uint32_t long_from = 0;
  std::vector<double> long_frequency;
  double long_scale = 1;
  double mscale_all_dim = 0, factor = 1;  ///< of YaRN: DeepSeek's attention depends on them
  double tuning = 0, tuning_floor = 1;    ///< of Mistral 4: `Tuning`'s
  double stretched_context = 0;           ///< of YaRN: tokens that it stretches to, where the file says from how many
};

/// What a family's rope is beside what its config.json says.
struct RopeNeeds {
  std::uint32_t head_dim = 0;   ///< columns that `partial_rotary_factor` is a share of
  double theta = 0;             ///< where the file has none; 0: it must
  double partial = 1;           ///< share of the head, likewise
  bool may_be_partial = false;  ///< whether the family reads `partial_rotary_factor`
  bool neighbours = false;
  bool mscales = false;              ///< LongRoPE's `short_mscale` and `long_mscale`: Phi-MoE
  bool alpha = false;                ///< a "dynamic" rope may have a fixed stretch of its base: Hunyuan
  bool sections = false;             ///< whether it may say how images turn columns
  bool tuning = false;               ///< it may say how queries grow with their position, too: Mistral 4
  std::uint32_t context = 0;         ///< max_position_embeddings
  const Json* absent = nullptr;      ///< what rope_parameters are where the file has none
  const char* layer_type = nullptr;  ///< whose part of rope_parameters it is, where layers' types have one each
};

/// From rope_parameters, where transformers 5 writes it, or from rope_scaling and the top level, where it was before. Throws
/// InputError that names the field.
Rope read_rope(const Fields& config, const RopeNeeds& needs);

}  // namespace ferry::engine
