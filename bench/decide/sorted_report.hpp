/// @file
/// Runs what is registered with Google Benchmark, and prints it sorted by cost.
#pragma once
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "shared/json_file.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"

namespace ferry::bench {

namespace part {

inline double nanoseconds(const benchmark::BenchmarkReporter::Run& run) {
  return run.GetAdjustedCPUTime() / benchmark::GetTimeUnitMultiplier(run.time_unit) * 1e9;
}

/// Keeps the fastest repetition of each benchmark, since disturbances only slow down. Shows the progress.
class Keep : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& /*context*/) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.error_occurred) {
        std::fprintf(stderr, "%s: %s\n", run.benchmark_name().c_str(), run.error_message.c_str());
        failed = true;
        continue;
      }
      if (run.run_type != Run::RT_Iteration) continue;
      if (run.repetition_index > 0 && nanoseconds(run) >= nanoseconds(this->runs.back())) continue;
      if (run.repetition_index > 0) this->runs.pop_back();
      this->runs.push_back(run);
      if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r%-100.100s", run.benchmark_name().c_str());
    }
  }
  void Finalize() override {
    if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r%-100s\r", "");
  }

  std::vector<Run> runs;
  bool failed = false;
};

}  // namespace part

/// `--json FILE` and Google Benchmark's own arguments; a short pass unless `--benchmark_min_time` says otherwise.
inline int run_and_report(const char* name, int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  std::string json;
  bool lists = false, timed = false, repeated = false;
  for (std::size_t i = 1; i < arguments.size();) {
    const std::string a = arguments[i];
    if (a == "--help" || a == "-h") {
      std::printf(
          "%s [--json FILE] [--benchmark_filter=REGEX] [--benchmark_min_time=SECONDS] [--benchmark_list_tests]\n"
          "and what else Google Benchmark takes. Processor time of one operation, the fastest of 7 short repetitions,\n"
          "the cheapest first.\n",
          name);
      return 0;
    }
    if (a == "--json" || a.rfind("--json=", 0) == 0) {
      const bool next = a == "--json";
      if (next && i + 1 == arguments.size()) {
        std::fprintf(stderr, "%s: --json needs a file\n", name);
        return 2;
      }
      json = next ? arguments[i + 1] : a.substr(7);
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                      arguments.begin() + static_cast<std::ptrdiff_t>(i + (next ? 2 : 1)));
      continue;
    }
    lists = lists || a.rfind("--benchmark_list_tests", 0) == 0;
    timed = timed || a.rfind("--benchmark_min_time", 0) == 0;
    repeated = repeated || a.rfind("--benchmark_repetitions", 0) == 0;
    ++i;
  }
  if (!timed) arguments.emplace_back("--benchmark_min_time=0.005");
  if (!repeated) arguments.emplace_back("--benchmark_repetitions=7");
  std::vector<char*> pointers;
  for (std::string& a : arguments) pointers.push_back(a.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (count > 1) {
    std::fprintf(stderr, "%s: unknown argument: %s (see --help)\n", name, pointers[1]);
    return 2;
  }
  try {
    JsonFile file(json);
    if (lists) {
      benchmark::RunSpecifiedBenchmarks();
      return 0;
    }
    part::Keep keep;
    if (benchmark::RunSpecifiedBenchmarks(&keep) == 0) {
      std::fprintf(stderr, "%s: no benchmark has such a name (see --benchmark_list_tests)\n", name);
      return 2;
    }
    std::stable_sort(keep.runs.begin(), keep.runs.end(),
                     [](const auto& a, const auto& b) { return part::nanoseconds(a) < part::nanoseconds(b); });
    std::size_t width = 0;
    for (const auto& run : keep.runs) width = std::max(width, run.benchmark_name().size());
    engine::Json results = engine::Json::array();
    for (const auto& run : keep.runs) {
      std::string line = fmt::format("{:<{}} {:>11.1f} ns", run.benchmark_name(), width, part::nanoseconds(run));
      engine::Json result = {
          {"name", run.benchmark_name()}, {"cpu_ns", part::nanoseconds(run)}, {"iterations", run.iterations}};
      for (const auto& [counter, value] : run.counters) {
        line += fmt::format("  {}={:.3g}", counter, value.value);
        result[counter] = value.value;
      }
      std::printf("%s\n", line.c_str());
      results.push_back(std::move(result));
    }
    file.commit(engine::Json{{"benchmarks", results}});
    return keep.failed ? 1 : 0;
  } catch (const engine::InputError& e) {
    std::fprintf(stderr, "%s: %s\n", name, e.what());
    return 2;
  }
}

}  // namespace ferry::bench
