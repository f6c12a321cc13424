/// @file
/// The named stacks, what is known of them, and what a user may set. No policy is included: whatever needs only a name
/// or an option compiles without them.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ferry/allotment.hpp"
#include "ferry/model.hpp"

namespace ferry::engine {

/// How the slots of a budget are laid out.
enum class PoolChoice {
  stack,      ///< as the stack's own paper has it
  per_layer,  ///< a pool for each layer
  one,        ///< one pool over all layers
  shallow     ///< a pool for each layer, the shallow ones whole
};

/// Who gets the misses of a decode step: ferry::PlacementRule.
enum class PlacementChoice { device, host, two_pointer, best_split };

/// Multidimensional: LRU, LFU, LHU, FLD, in thousandths.
using CacheWeights = std::array<std::uint32_t, 4>;

/// Which stack, with how much memory, and what a user may set of it.
struct StackOptions {
  std::string stack = "lru";
  std::uint64_t budget_bytes = 0;  ///< ignored by stacks that keep everything
  std::uint32_t stream_slots = least_stream_slots;
  std::uint32_t max_rows = 128;  ///< largest prefill chunk or batch

  // Parameters, for the stacks that have them; parameters.hpp says how users name them. Unset: the paper's.
  PoolChoice pools = PoolChoice::stack;
  std::optional<float> t1, t2;               ///< ImportanceThresholds
  std::optional<float> alpha;                ///< ExpertCacheRouter and PartialHidden
  std::optional<float> max_loss, loss_rate;  ///< ExpertSkipping
  std::optional<std::uint32_t> low_share_percent, shallow_layers, percentile, depth;
  /// 2, 4 or 8: what ImportanceThresholds and PopularityHybrid shrink to, and what they leave important experts in.
  std::optional<std::uint32_t> low_bits, high_bits;
  std::optional<std::uint32_t> low_pool_percent;        ///< of the budget, HOBBIT's slots for low precision
  std::optional<bool> low_on_miss;                      ///< PopularityHybrid
  std::optional<std::uint32_t> transient_prefill_rows;  ///< every stack that caches
  std::optional<std::uint32_t> window;                  ///< ScoreWindow
  std::optional<std::uint32_t> half_life;               ///< ExpectedSavings
  std::optional<CacheWeights> cache_weights;
  std::optional<PlacementChoice> placement;  ///< ChosenPlacement
};

/// Which parameter: the member of StackOptions that it sets.
using ParameterMember =
    std::variant<PoolChoice StackOptions::*, std::optional<float> StackOptions::*,
                 std::optional<std::uint32_t> StackOptions::*, std::optional<CacheWeights> StackOptions::*,
                 std::optional<PlacementChoice> StackOptions::*, std::optional<bool> StackOptions::*>;

/// What is known of a stack without building it.
struct StackInfo {
  std::string name;
  const char* what = "";          ///< one line for help
  bool lossless = false;          ///< computes what the resident model of the same precision computes, bit for bit
  bool keeps_everything = false;  ///< needs every expert in its budget
  PrecisionSet precisions = Precision::full;  ///< of experts that it copies, with the options' defaults
  std::vector<ParameterMember> parameters;    ///< that it takes
  bool full_where_all_fits = false;  ///< copies the model's own precision alone where the budget holds all experts so

  /// Whether it computes what the checkpoint's own weights do, bit for bit.
  [[nodiscard]] bool keeps_every_bit() const {
    return lossless && precisions.bits == PrecisionSet(Precision::full).bits;
  }
};

/// All stacks, in the order in which help lists them.
const std::vector<StackInfo>& all_stacks();

/// Throws InputError for an unknown name, and suggests the nearest.
const StackInfo& find_stack(const std::string& name);

/// Whether a stack takes a parameter with these pools. Throws InputError for an unknown stack.
bool takes_parameter(const std::string& stack, const ParameterMember& parameter, PoolChoice pools);

/// Throws ConfigError for parameters that do not fit each other, InputError for bits that are not 2, 4 or 8 and for an
/// unknown stack.
void check_parameters(const StackOptions& options);

/// Throws InputError, which names the parameter, for other numbers than 2, 4 and 8.
Precision precision_of_bits(std::uint32_t bits,
                            std::optional<std::uint32_t> StackOptions::*parameter = &StackOptions::low_bits);

/// The precisions at which a model must have its experts for a stack with these options. Throws what check_parameters throws.
PrecisionSet precisions_for(const StackOptions& options);
/// The same with this budget, where all experts take `all_bytes` at the model's own precision.
PrecisionSet precisions_for(const StackOptions& options, std::uint64_t all_bytes);
/// Whether the options say which precisions a stack with two of them takes, and for which experts.
bool chooses_precisions(const StackOptions& options);

}  // namespace ferry::engine
