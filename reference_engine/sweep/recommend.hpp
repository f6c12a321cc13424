/// @file
/// Which stack for this routing, this machine and this memory: all that may be chosen, simulated and ranked, with the
/// reasons; and what would help.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "report/report.hpp"
#include "sweep/simulated_run.hpp"

namespace ferry::engine {

/// A stack that may be chosen.
struct StackCandidate {
  std::string label;  ///< what reports call it
  SimulateOptions options;
  Json parameters = Json::object();    ///< that it was given, for reports
  std::optional<double> loss_percent;  ///< of bits, against the model as its checkpoint has it; none: it loses nothing
};

struct RankedStack {
  StackCandidate candidate;
  RunReport run;
  std::string reason;  ///< why it takes as long as it does, one sentence of the run's own numbers

  [[nodiscard]] double tpot_s() const { return run.tpot_s(); }
  [[nodiscard]] double ttft_s() const { return run.generated.ttft_s; }
};

/// What could be had more of, each by itself.
enum class Resource {
  device_memory,  ///< twice as much
  link,           ///< twice as fast
  host_cores,     ///< twice as many, behind the same memory
  host_memory,    ///< twice as fast, behind the same cores
  bits            ///< experts in INT4, which loses a little
};
inline constexpr std::array all_resources = {Resource::device_memory, Resource::link, Resource::host_cores,
                                             Resource::host_memory, Resource::bits};
/// "twice the device memory".
const char* resource_name(Resource resource);
/// "device-memory", as JSON has it.
const char* resource_key(Resource resource);

/// The best stack that there would be with more of something.
struct Upgrade {
  Resource resource;
  std::string stack;
  double tpot_s = 0, ttft_s = 0;
  std::uint64_t budget_bytes = 0;
};

struct LeftOut {
  std::string stack, why;
};

struct RecommendOptions {
  SimulatedSetting setting;
  std::vector<StackCandidate> candidates;  ///< budgets and batches are theirs
  std::vector<StackCandidate> in_int4;     ///< further ones, with experts in INT4: what fewer bits would bring
  std::uint64_t doubled_bytes = 0;         ///< the budget that twice the device's memory would leave for experts
  std::uint32_t threads = 1;
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress;  ///< runs; false: stop
};

struct Recommendation {
  std::vector<RankedStack> ranking;  ///< the least time for a token first; of equal ones that for the first token
  std::vector<LeftOut> left_out;
  std::vector<Upgrade> upgrades;  ///< the most help first; without what no stack can use
  std::uint64_t runs = 0, done = 0;
  [[nodiscard]] bool interrupted() const { return done < runs; }
};

/// Simulates every candidate as it is, and then the choice among them again with more of each resource. The same
/// arguments give the same result, whatever the threads. Stopped, it has what was done. Throws InputError, if no token is
/// decoded or no candidate can run.
Recommendation recommend(const RecommendOptions& options);

/// The machine with twice as much of a resource. Host and link share the speed of the host's memory: as the machine's shares of
/// speed beside each other say or, where these are whole, 80% of its peak, or what both ask for now. The cores draw no more
/// from their memory than that, either. What no machine file has (memory, bits) changes nothing.
Machine with_twice(Machine machine, Resource resource);

/// A run, and what reports call it.
struct NamedRun {
  const RunReport& run;
  const std::string& label;
};
/// Why a run takes as long as it does: where the time of a token goes, and what of that is due to what was kept,
/// prefetched, computed on the host or left out. `best_cache`: the run with the highest hit rate among those that it is
/// ranked with at the same precision, itself included. `fastest`: the first of the ranking. `copy_s`: what a copy of one
/// expert at the run's precision takes.
std::string reason_for(const RunReport& run, const NamedRun& best_cache, const NamedRun& fastest, double copy_s);

}  // namespace ferry::engine
