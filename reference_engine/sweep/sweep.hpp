/// @file
/// Many simulations: a grid, split by index over threads and over ranks, resumable.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stacks/stack_file.hpp"
#include "support/json.hpp"
#include "sweep/simulated_run.hpp"

namespace ferry::engine {

/// One parameter, and its values to try: numbers or words. Stacks that do not take it have no cells for them.
struct SweptParameter {
  std::string name;          ///< of parameters.hpp: "t1"
  std::vector<Json> values;  ///< numbers or words
};

struct SweepGrid {
  std::vector<std::string> traces, machines, stacks, budgets;
  std::vector<std::uint32_t> batches = {1};
  std::vector<SweptParameter> parameters;
  CostSource costs = CostSource::effective;
  std::string as_shape, pools = "stack", prefetch_chunk = "0";
  BoundsChoice bounds = BoundsChoice::proven;
  std::uint64_t max_tokens = ~std::uint64_t{0};
  /// Stacks have what was calibrated for a trace's model where ferry has that, instead of the papers' values.
  bool calibrated = false;
  std::optional<AssumedRecall> assumed;  ///< what traces lack is made up, for the stacks that read it
};

/// One cell of the grid.
struct SweepCell {
  std::string trace, machine, stack, budget;  ///< stack: its label
  NamedStack named;
  std::uint32_t batch = 1;
  std::vector<std::pair<std::string, Json>> parameters;  ///< those that the stack takes
  std::string setting;                                   ///< the same of all cells: costs, sizes, pools, ...

  /// The same cell of another grid has the same key.
  [[nodiscard]] std::string key() const;
};

/// Every cell, in a fixed order: parameters vary fastest, traces slowest. What a list names twice counts once, where it
/// stands first. Throws InputError for an unknown stack, for a parameter or pools that none of them takes, for values
/// that the parameter does not have, for assumed shares that cannot be, or for two traces of one file name.
std::vector<SweepCell> cells_of(const SweepGrid& grid);

/// What all cells of one trace read of it beside experts and weights.
RowNeeds rows_read_by(const SweepGrid& grid, const std::string& path, const Trace& trace);

/// Which cells a rank of a launcher takes: those whose index modulo `ranks` is `rank`.
struct Ranks {
  std::uint32_t rank = 0, ranks = 1;
};

/// From the variables of Open MPI, of PMI (MPICH, srun), of a Slurm job array (SLURM_ARRAY_TASK_ID, _MIN, _MAX, _STEP
/// and _COUNT), or of the tasks of a step of Slurm (SLURM_PROCID, SLURM_STEP_NUM_TASKS): whichever is set, in that order; one
/// rank without. Throws InputError for values that are no numbers, a rank that is not below the number of ranks, or an array
/// whose ids are not evenly spaced.
Ranks ranks_of_environment();

/// "results.jsonl" of rank 3 of 16 is "results.3-of-16.jsonl"; of one rank alone it stays.
std::filesystem::path rank_file(const std::filesystem::path& out, Ranks ranks);

/// Throws InputError if results could not be written to that file; leaves it as it is.
void check_results(const std::filesystem::path& path);

struct SweepResult {
  std::uint64_t cells = 0, had = 0, done = 0;  ///< of this rank; those found in the file; run now
  std::uint64_t refused = 0;                   ///< of those found and those run
  bool interrupted = false;
};

/// Runs the cells of this rank that the file does not have yet, on `threads` threads, and appends a JSON line for each:
/// the run's, with "sweep": {"index", "cells", "key", "inputs", "xxh3"}: `inputs` is a hash of what trace, machine, shapes and
/// calibrated stack hold, `xxh3` the line's checksum with zeros in its place; or
/// for a cell that cannot be (a budget that is too small, a trace that lacks something) one with "refused": the reason. A
/// line that was cut off by an interruption is taken away first. `progress` is called after each cell, with the share of
/// all work that is done: cells of long traces weigh more. Throws InputError if the file holds another sweep's lines,
/// those of inputs that have changed since, or damaged ones; if an input changes meanwhile; or if another sweep writes the
/// file, or it cannot be written.
SweepResult run_sweep(const SweepGrid& grid, const std::filesystem::path& out, Ranks ranks, std::uint32_t threads,
                      const std::atomic<bool>& stop,
                      const std::function<void(std::uint64_t done, std::uint64_t total, double share)>& progress);

/// Puts the files of all ranks together, in the order of the grid: throws InputError, naming cell and file, if one is
/// missing, stands twice with different contents, or is of another sweep. Returns the number of lines.
std::uint64_t merge_sweep(const SweepGrid& grid, const std::filesystem::path& out, std::uint32_t ranks);

}  // namespace ferry::engine
