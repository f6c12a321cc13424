/// @file
/// What the report needs to know of runs, read from JSON that nobody vouches for.
#pragma once
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/json.hpp"

namespace ferry::engine::html {

using Number = std::optional<double>;

/// What is no sensible amount (negative, not finite, absurd) is unknown.
Number amount(double v);
Number over(Number part, Number whole);
Number times(Number a, Number b);
inline double or_zero(Number n) {
  return n.value_or(0);
}

bool any_known(const auto& numbers) {
  return std::any_of(numbers.begin(), numbers.end(), [](const Number& n) { return n.has_value(); });
}

/// An object of which every field may be missing; one of the wrong kind is refused.
class Lenient {
 public:
  Lenient(const Json& object, const std::string& where) : object_(object), where_(where), fields_(object, where) {}

  [[nodiscard]] Number number(const char* name) const;
  [[nodiscard]] std::string text(const char* name) const { return fields_.has(name) ? fields_.text(name) : ""; }
  [[nodiscard]] Lenient object(const char* name) const;
  [[nodiscard]] const Json& list(const char* name) const;
  [[nodiscard]] std::vector<Number> numbers(const char* name, std::size_t most) const;
  /// For what may not be missing.
  [[nodiscard]] const Fields& strict() const { return fields_; }
  [[nodiscard]] Number needed_number(const char* name) const;

 private:
  const Json& object_;
  std::string where_;
  Fields fields_;
};

inline constexpr std::size_t most_layers = 256, most_distances = 8;

struct Run {
  struct Split {  ///< of time
    Number total, stall, host_wait, decision, link_busy;
    double tokens = 0;
  };
  std::string ferry, model, trace, stack, machine, device, clock, costs, as_shape, assumed, parameters;
  std::string refused;  ///< why a sweep's cell could not be; there is nothing else then
  double batch = 1, built_bytes = 0;
  double budget_bytes = 0;  ///< as asked; at least what was built, and at most all experts if that is enough
  bool interrupted = false;
  Number budget_percent, ttft, tpot, tokens_per_s, tokens, requests, bytes;  ///< these of decode
  Number all_tokens, recall, stalled;                                        ///< stalled: share of time
  std::array<Number, 6> outcomes;    ///< hits, late hits, misses, substituted, skipped, on the host
  std::array<Number, 4> precisions;  ///< bytes: int2, int4, int8, full
  // TPOT: proven bounds, and with policies that know the future.
  Number all_resident, clairvoyant, clairvoyant_with_host;
  Number perfect_prediction, belady_cache, prediction_and_cache;
  std::optional<Split> decode_time, whole_time;  ///< the latter, of both phases, where the former is not known
  std::vector<Number> hit_rate_by_layer;
  std::vector<std::pair<double, std::vector<Number>>> recall_by_layer;  ///< by distance
  std::string series;                                                   ///< what a line or row is called
  std::size_t index = 0;                                                ///< of the series, for its colour
  std::size_t rank = 0;    ///< of the series in its group, by its speed with the largest budget: the fastest first
  std::size_t column = 0;  ///< of its group's

  /// Nothing was copied below the model's own precision.
  [[nodiscard]] bool full_precision() const {
    return or_zero(precisions[0]) + or_zero(precisions[1]) + or_zero(precisions[2]) == 0;
  }
  /// The clairvoyant bound that holds for this run: if the host computed, the one that lets it.
  [[nodiscard]] Number clairvoyant_bound() const {
    return or_zero(outcomes[5]) > 0 && clairvoyant_with_host ? clairvoyant_with_host : clairvoyant;
  }
  /// Tokens per second, were a token to take as long as the bound says.
  [[nodiscard]] Number speed_of(Number bound) const { return times(tokens_per_s, over(tpot, bound)); }
  [[nodiscard]] std::string budget() const;
  [[nodiscard]] std::string name() const;  ///< series @ budget
};

/// Throws InputError for what is no run.
Run parse_run(const Json& json, const std::string& where);

/// Runs that one chart compares: they differ in stack, budget and parameters alone.
struct Group {
  std::string name;
  std::vector<Run*> runs;            ///< by budget
  std::vector<std::string> columns;  ///< budgets: where only what was built is known, that differs a little
  bool percent = true;               ///< every run's share of all experts is known
  bool one_budget = true;            ///< no series has two

  [[nodiscard]] double budget(const Run& r) const { return percent ? *r.budget_percent : r.budget_bytes / (1 << 20); }
};

inline constexpr std::size_t most_series = 40;

/// Groups, and gives every run its series: a stack, with its parameters if several were tried. Where that makes too
/// many for one chart, a group has one set of parameters.
std::vector<Group> group_runs(std::vector<Run>& runs);

}  // namespace ferry::engine::html
