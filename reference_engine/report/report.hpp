/// @file
/// The numbers of a run, as a table and as JSON.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inference/expert_runner.hpp"
#include "inference/generate.hpp"
#include "support/json.hpp"

namespace ferry::engine {

/// What only a simulation knows of a run.
struct SimulatedFacts {
  std::string trace, costs;  ///< the file's name; whose numbers
  std::string as_shape;      ///< the model whose sizes were taken instead; empty: its own
  std::vector<std::pair<std::uint64_t, std::uint64_t>> layer_hits;  ///< of decode: hits, requests
  Nanoseconds link_busy[2] = {};                                    ///< by Phase
  double clairvoyant_with_host_tpot_s = 0;
  struct Other {
    double tpot_s = 0, hit_rate = 0;
  };
  std::optional<Other> perfect_prediction, belady_cache, prediction_and_cache, belady_demand;
  /// What the trace lacks and this run read, made up.
  struct Assumed {
    double recall_top_k = 0, recall_candidates = 0;
    std::uint64_t seed = 0;
    std::vector<std::string> what;  ///< the trace's tensors
  };
  std::optional<Assumed> assumed;
};

struct RunReport {
  std::string model, stack, machine;                       ///< machine empty: this one, not throttled
  std::string stack_file;                                  ///< the label of a stack file, or empty
  Json parameters = Json::object();                        ///< those that were given, and that the stack takes
  std::uint64_t budget_asked_bytes = 0, budget_bytes = 0;  ///< what the user gave; what the slots take
  std::uint64_t all_expert_bytes = 0, expert_bytes = 0, dense_bytes = 0;  ///< of all, of the mean one, beside them
  std::uint32_t batch = 1;
  bool rounded = false;  ///< Model::rounds
  std::uint16_t layers = 0;
  std::uint64_t throttle_bytes_per_s = 0;
  std::uint64_t prefetch_chunk_bytes = 0;
  Generated generated;
  Counters counters;
  PhaseTimes times[2];
  double all_resident_tpot_s = 0, clairvoyant_tpot_s = 0;
  std::vector<std::vector<Accuracy>> accuracy;  ///< of predictions: [distance - 1][layer]
  Nanoseconds gate_worker_busy = 0, gate_worker_waited = 0;
  std::string clock = "real";  ///< or "virtual": of the machine whose costs were counted
  std::string device = "cpu";  ///< or a GPU's name
  std::vector<std::pair<std::string, std::uint64_t>> device_memory;  ///< most bytes by use, of a GPU
  StoreReads store;                                                  ///< with a file if experts came from one
  std::optional<SimulatedFacts> simulated;

  [[nodiscard]] double tpot_s() const;
  /// Whether it computed what the model at its own precision computes, bit for bit.
  [[nodiscard]] bool lossless() const;
};

struct Simulated;
/// A simulated run as a report. Bounds are those of the virtual clock, in whole nanoseconds.
RunReport make_report(const Simulated& simulated, RunReport facts);

/// Collects what runner and generator know, and works out both bounds: all-resident is the measured decode time less
/// stalls, waits for the host and decisions, with what the host computed as the device would have taken it; clairvoyant
/// is the larger of that, without what the host computed, and the time that the fewest possible copies
/// (sim/bounds.hpp) take at the link's bandwidth.
RunReport make_report(const ExpertRunner& runner, Generated generated, RunReport facts);

/// The stable JSON of a phase's outcomes, and of one run.
Json to_json(const Outcomes& outcomes);
Json to_json(const RunReport& report);

/// A line for each name, with a cell for each column; columns that do not fit beside each other go into a block of their
/// own, below. `cells`: [row][column].
std::string in_columns(const std::vector<std::string>& names, const std::vector<std::vector<std::string>>& cells,
                       std::size_t columns);

/// One column a run; no line is longer than `columns`, but for what does not fit alone.
std::string to_table(const std::vector<RunReport>& reports, std::size_t columns);

}  // namespace ferry::engine
