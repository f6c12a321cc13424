// Matrices to their stored form and back: each codec beside a memcpy of the same packed bytes.
//
// Packing reads a matrix of floats from memory and writes its packed form. Unpacking reads the packed form from memory and
// writes floats over the same row again and again, which stays in the cache, as a product uses them.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ferry/codec/hqq.hpp"
#include "ferry/codec/packed.hpp"
#include "ferry/codec/pass_through.hpp"
#include "ferry/codec/round_to_nearest.hpp"
#include "shared/google_benchmark.hpp"
#include "shared/median.hpp"

namespace {

using ferry::bench::median;
using namespace ferry;
using Clock = std::chrono::steady_clock;

/// Of an expert's first matrix.
struct Size {
  const char* model;
  std::uint32_t rows, columns;
};
constexpr Size sizes[] = {{"qwen1.5-moe", 1408, 2048}, {"mixtral-8x7b", 14336, 4096}};

/// So many copies of an array that no cache holds them all. They are used in turns.
template <class T>
class Copies {
 public:
  explicit Copies(const std::vector<T>& one) : size_(one.size()) {
    constexpr std::size_t beyond_caches = std::size_t{128} << 20U;
    const std::size_t count = beyond_caches / (size_ * sizeof(T)) + 1;
    all_.reserve(count * size_);
    for (std::size_t i = 0; i < count; ++i) all_.insert(all_.end(), one.begin(), one.end());
  }
  const T* next() {
    at_ = at_ + size_ == all_.size() ? 0 : at_ + size_;
    return &all_[at_];
  }

 private:
  std::size_t size_, at_ = 0;
  std::vector<T> all_;
};

/// About normal, as trained weights are: the sum of four uniform numbers; standard deviation 0.02.
std::vector<float> some_weights(const Size& size) {
  std::vector<float> weights(std::size_t{size.rows} * size.columns);
  std::uint64_t state = 1;
  for (float& w : weights) {
    int sum = -2 * 0xffff;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      sum += static_cast<int>(state >> 48U);
    }
    w = static_cast<float>(sum) * (0.02F / 37837);
  }
  return weights;
}

/// Time: of one matrix. `work(turn)` and a copy of the packed bytes are measured in turns, so that noise meets both;
/// which goes first changes from turn to turn. The ratio is that of the medians.
template <class Work>
void beside_memcpy(benchmark::State& state, const std::vector<std::byte>& packed, std::size_t weights,
                   const Work& work) {
  Copies<std::byte> copied(packed);
  std::vector<std::byte> copy(packed.size());
  const auto timed = [](const auto& call) {
    const auto begin = Clock::now();
    call();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto copies = [&] {
    std::memcpy(copy.data(), copied.next(), copy.size());
    benchmark::DoNotOptimize(copy.data());
    benchmark::ClobberMemory();
  };
  work();
  copies();
  std::vector<double> own, copying;
  for (bool first = false; auto _ : state) {
    first = !first;
    if (first) own.push_back(timed(work));
    copying.push_back(timed(copies));
    if (!first) own.push_back(timed(work));
    state.SetIterationTime(own.back());
  }
  const double own_s = median(own), copying_s = median(copying);
  state.counters["packed_GB/s"] = static_cast<double>(packed.size()) / own_s * 1e-9;
  state.counters["float_GB/s"] = static_cast<double>(weights * sizeof(float)) / own_s * 1e-9;
  state.counters["to_memcpy"] = copying_s / own_s;
  state.counters["memcpy_GB/s"] = static_cast<double>(packed.size()) / copying_s * 1e-9;
}

template <class Layout, class... Fit>
void pack_matrix(benchmark::State& state, const Size& size, const Layout& m, const Fit&... fit) {
  const std::vector<float> weights = some_weights(size);
  Copies<float> from(weights);
  std::vector<std::byte> packed(m.bytes());
  beside_memcpy(state, packed, weights.size(), [&] {
    if (pack(m, from.next(), packed.data(), fit...) != no_weight) std::abort();
    benchmark::DoNotOptimize(packed.data());
    benchmark::ClobberMemory();
  });
}

template <class Layout, class... Fit>
void unpack_matrix(benchmark::State& state, const Size& size, const Layout& m, const Fit&... fit) {
  std::vector<std::byte> packed(m.bytes());
  if (pack(m, some_weights(size).data(), packed.data(), fit...) != no_weight) std::abort();
  Copies<std::byte> from(packed);
  std::vector<float> row(m.columns);
  beside_memcpy(state, packed, std::size_t{m.rows} * m.columns, [&] {
    const std::byte* matrix = from.next();
    for (std::uint32_t r = 0; r < m.rows; ++r) {
      unpack_row(m, matrix, r, row.data());
      benchmark::DoNotOptimize(row.data());
      benchmark::ClobberMemory();
    }
  });
}

/// `ns_a_weight`: a rough time, which decides how many turns are run.
template <class Work>
void add(const std::string& name, const Size& size, double ns_a_weight, const Work& work) {
  const double seconds = 1e-9 * ns_a_weight * size.rows * size.columns;
  benchmark::RegisterBenchmark(fmt::format("{}/{}/{}x{}", name, size.model, size.rows, size.columns).c_str(), work)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(static_cast<benchmark::IterationCount>(std::clamp(1.0 / seconds, 3.0, 101.0)));
}

void add_all(const Size& size) {
  for (const auto& [name, type] : {std::pair{"bf16", FloatType::bf16}, std::pair{"f16", FloatType::f16}}) {
    const PassThroughLayout m{size.rows, size.columns, type};
    add(fmt::format("pack/{}", name), size, 2, [=](benchmark::State& s) { pack_matrix(s, size, m); });
    add(fmt::format("unpack/{}", name), size, 0.5, [=](benchmark::State& s) { unpack_matrix(s, size, m); });
  }
  for (const std::uint32_t bits : {8U, 4U, 2U}) {
    const PackedLayout m{size.rows, size.columns, bits};
    const std::string name = fmt::format("int{}", bits);
    add("pack/" + name + "/round-to-nearest", size, 2,
        [=](benchmark::State& s) { pack_matrix(s, size, m, RoundToNearest{}); });
    add("pack/" + name + "/hqq", size, 20, [=](benchmark::State& s) { pack_matrix(s, size, m, Hqq{}); });
    add("unpack/" + name, size, 1, [=](benchmark::State& s) { unpack_matrix(s, size, m, RoundToNearest{}); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!ferry::bench::read_arguments("codecs", argc, argv)) return 2;
  for (const Size& size : sizes) add_all(size);
  benchmark::RunSpecifiedBenchmarks();
}
