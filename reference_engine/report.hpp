/// @file
/// The numbers of a run, as a table and as JSON.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "expert_runner.hpp"
#include "generate.hpp"
#include "json.hpp"

namespace ferry::engine {

struct RunReport {
  std::string model, stack, machine;  ///< machine empty: this one, not throttled
  std::uint64_t budget_bytes = 0, all_expert_bytes = 0, expert_bytes = 0, dense_bytes = 0;
  std::uint32_t batch = 1;
  std::uint16_t layers = 0;
  std::uint64_t throttle_bytes_per_s = 0;
  Generated generated;
  Counters counters;
  PhaseTimes times[2];
  double all_resident_tpot_s = 0, clairvoyant_tpot_s = 0;
  std::vector<std::vector<Accuracy>> accuracy;  ///< of predictions: [distance - 1][layer]
  Nanoseconds gate_worker_busy = 0, gate_worker_waited = 0;

  [[nodiscard]] double tpot_s() const;
};

/// Collects what runner and generator know, and works out both bounds:
/// all-resident is the measured decode time less stalls, waits for the host and decisions; clairvoyant is the larger of that and
/// the time that the fewest possible copies (sim/bounds.hpp) take at the link's bandwidth.
RunReport make_report(const ExpertRunner& runner, Generated generated, RunReport facts);

/// The stable JSON of one run.
Json to_json(const RunReport& report);

/// One column a run.
std::string to_table(const std::vector<RunReport>& reports);

/// A file that appears whole or not at all; a link stays a link. The constructor throws InputError if it could not
/// be written, or is there and no regular file (a device, a pipe).
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);

  /// Puts the file in place. Throws InputError if the disk refuses.
  void commit(const std::string& content);

 private:
  std::string name_;
  std::filesystem::path path_, temporary_;
};

}  // namespace ferry::engine
