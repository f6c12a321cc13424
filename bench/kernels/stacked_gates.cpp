// One product for the gates of p layers against p products, on the host: HOBBIT's stacking (section 3.3).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "ferry/gate/gate_bank.hpp"
#include "shared/google_benchmark.hpp"
#include "shared/median.hpp"

namespace {

using ferry::GateBank;
using ferry::bench::median;
using Clock = std::chrono::steady_clock;

/// The time is that of the one product. `ratio`: the median of p products over that of one, measured in turns in the same
/// run, so that noise meets both; which goes first changes from turn to turn, so that both find the caches alike.
void stacked_gates(benchmark::State& state) {
  const auto p = static_cast<std::uint32_t>(state.range(0)), experts = static_cast<std::uint32_t>(state.range(1));
  const auto hidden = static_cast<std::uint32_t>(state.range(2));
  GateBank gates(p, experts, hidden);
  for (std::uint32_t l = 0; l < p; ++l) gates.set(l, GateBank::Matrix::Random(experts, hidden));
  const GateBank::Matrix input = GateBank::Matrix::Random(state.range(3), hidden);

  // Several calls a turn where one is too short for the clock.
  const std::int64_t work = std::int64_t{p} * experts * hidden * state.range(3);
  const std::int64_t calls = std::clamp<std::int64_t>((1 << 19) / work, 1, 64);
  auto timed = [&](auto&& product) {
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < calls; ++i) product();
    return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls);
  };
  auto one = [&] { benchmark::DoNotOptimize(gates.scores(0, p, input)); };
  auto each = [&] {
    for (std::uint16_t l = 0; l < p; ++l) benchmark::DoNotOptimize(gates.scores(l, input));
  };
  std::vector<double> stacked, single;
  for (bool first = true; auto _ : state) {
    if (first) stacked.push_back(timed(one));
    single.push_back(timed(each));
    if (!first) stacked.push_back(timed(one));
    first = !first;
    state.SetIterationTime(stacked.back());
  }
  const double product = median(stacked), products = median(single);
  state.counters["one_us"] = product * 1e6;
  state.counters["each_us"] = products * 1e6;
  state.counters["ratio"] = products / product;
}

BENCHMARK(stacked_gates)
    ->ArgNames({"p", "E", "d", "rows"})
    ->ArgsProduct({{1, 2, 3, 4}, {8, 32, 64, 128}, {128, 512, 2048, 4096}, {1, 4}})
    ->UseManualTime()
    ->Iterations(200);  // turns

}  // namespace

int main(int argc, char** argv) {
  if (!ferry::bench::read_arguments("stacked-gates", argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
