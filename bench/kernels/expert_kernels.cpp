// Experts straight from their stored form: each precision, and each type of a checkpoint's blocks, beside bf16, and beside
// what memory can deliver to as many threads, on each path of instructions.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "ferry/codec/round_to_nearest.hpp"
#include "math/expert_kernel.hpp"
#include "shared/google_benchmark.hpp"
#include "shared/median.hpp"
#include "support/threads.hpp"
#include "support/worker_pool.hpp"

namespace {

using ferry::bench::median;
using namespace ferry;
using namespace ferry::engine;
using Clock = std::chrono::steady_clock;

struct Size {
  const char* model;
  std::uint32_t hidden, width;
  std::size_t experts;  ///< of the whole model
};

constexpr Size sizes[] = {{"tiny-qwen-moe", 128, 64, std::size_t{12} * 32},
                          {"tiny-mixtral", 128, 192, std::size_t{8} * 8},
                          {"qwen1.5-moe", 2048, 1408, std::size_t{24} * 60},
                          {"mixtral-8x7b", 4096, 14336, std::size_t{32} * 8}};

/// As many copies of one expert as the model has experts, or as no cache holds. They run in turns.
class Experts {
 public:
  Experts(const ExpertLayout& layout, Precision p, std::size_t count) : bytes_(layout.bytes(p)) {
    constexpr std::size_t beyond_caches = std::size_t{128} << 20U;
    memory_.resize(std::min(count, beyond_caches / bytes_ + 1) * bytes_);
    for (int part = 0; part < 3; ++part) {
      std::byte* to = memory_.data() + layout.part_at(part, p);
      if (p == Precision::full && !layout.plain_numbers()) {
        std::memset(to, 0x3c, layout.part_bytes(part, p));  // a scale, or a part of one, that is neither huge nor tiny
      } else if (p == Precision::full) {
        const auto m = std::get<PassThroughLayout>(layout.plain(part));
        const PassThroughLayout row{1, m.columns, m.type};
        for (std::uint32_t r = 0; r < m.rows; ++r) pack_row(row, to + r * m.row_bytes());
      } else {
        const PackedLayout m = layout.packed(part, p), row{1, m.columns, m.bits, m.group};
        std::vector<std::byte> packed(row.bytes());
        pack_row(row, packed.data(), RoundToNearest{});
        for (std::uint32_t r = 0; r < m.rows; ++r) {
          std::memcpy(to + m.codes_at(r, 0), packed.data(), row.row_bytes());
          std::memcpy(to + m.group_at(r, 0), packed.data() + row.group_at(0, 0),
                      row.row_groups() * sizeof(PackedGroup));
        }
      }
    }
    for (std::size_t at = bytes_; at < memory_.size(); at += bytes_) {
      std::memcpy(&memory_[at], memory_.data(), bytes_);
    }
  }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  const std::byte* next() {
    at_ = at_ + bytes_ == memory_.size() ? 0 : at_ + bytes_;
    return &memory_[at_];
  }

 private:
  /// The same weights for every row: times do not depend on them.
  template <class Layout, class... Codec>
  static void pack_row(const Layout& row, std::byte* to, const Codec&... codec) {
    std::vector<float> weights(row.columns);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i * 7919 % 1013) / 500.0F - 1.0F;
    if (pack(row, weights.data(), to, codec...) != no_weight) std::abort();
  }

  std::size_t bytes_, at_ = 0;
  std::vector<std::byte> memory_;
};

/// Reads bytes and does next to nothing with them, as fast as memory delivers. It reads as many streams as the kernels do,
/// since a processor looks ahead in each.
std::uint64_t read_bytes(const std::byte* bytes, std::size_t count) {
  constexpr std::size_t streams = 4, words = 16;  // two lines of the cache
  const std::size_t each = count / streams / sizeof(std::uint64_t[words]) * sizeof(std::uint64_t[words]);
  std::uint64_t sums[words] = {};
  for (std::size_t at = 0; at < each; at += sizeof(sums)) {
    for (std::size_t s = 0; s < streams; ++s) {
      std::uint64_t read[words];
      std::memcpy(read, bytes + s * each + at, sizeof(read));
      for (std::size_t i = 0; i < words; ++i) sums[i] ^= read[i];
    }
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum ^= s;
  return sum;
}

/// The same on all threads of a pool, each with its part of the bytes.
void read_shared(WorkerPool& workers, const std::byte* bytes, std::size_t count) {
  const std::uint32_t parts = workers.threads();
  workers.run(parts, [&](std::uint32_t part) {
    const std::size_t first = count / parts * part;
    benchmark::DoNotOptimize(read_bytes(bytes + first, count / parts));
  });
}

/// Time: of one expert. bf16, the precision, and a copy and a reading of its bytes are measured in turns, so that noise
/// meets all; which goes first changes from turn to turn. Ratios are those of the medians.
void expert_kernels(benchmark::State& state, const Size& size, Eigen::Index rows, ProductPath path,
                    std::uint32_t threads, DType type, Precision p, Activations activations) {
  const ExpertLayout bf16_layout{size.hidden, size.width, DType::bf16}, layout{size.hidden, size.width, type};
  // Each of the four has its own memory, so that none finds in a cache what another has read.
  Experts plain(bf16_layout, Precision::full, size.experts), experts(layout, p, size.experts), copied = experts,
                                                                                               read = experts;
  std::vector<std::byte> copy(experts.bytes());
  WorkerPool workers(threads);
  ExpertKernel plain_kernel(bf16_layout, path, &workers, activations), kernel(layout, path, &workers, activations);
  const Matrix x = Matrix::Random(rows, size.hidden);
  Matrix y;
  const double weights = 3.0 * size.hidden * size.width;

  // Several calls a turn where one is too short for the clock.
  const auto calls = static_cast<int>(std::clamp(2e6 / weights / static_cast<double>(rows), 1.0, 32.0));
  const auto timed = [&](const auto& call) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
  };
  std::vector<double> seconds[4];
  for (int turn = 0; auto _ : state) {
    for (int i = 0; i < 4; ++i) {
      const int what = (turn + i) % 4;
      seconds[what].push_back(timed([&] {
        if (what == 0) plain_kernel.run(plain.next(), Precision::full, x, y);
        if (what == 1) kernel.run(experts.next(), p, x, y);
        if (what == 2) std::memcpy(copy.data(), copied.next(), copy.size());
        if (what == 3) read_shared(workers, read.next(), read.bytes());
        benchmark::DoNotOptimize(y.data());
        benchmark::DoNotOptimize(copy.data());
      }));
    }
    state.SetIterationTime(seconds[1].back());
    ++turn;
  }
  const double bf16 = median(seconds[0]), own = median(seconds[1]), copying = median(seconds[2]),
               reading = median(seconds[3]);
  state.counters["Gweights/s"] = weights / own * 1e-9;
  state.counters["to_bf16"] = bf16 / own;
  state.counters["GB/s"] = static_cast<double>(experts.bytes()) / own * 1e-9;
  state.counters["to_memcpy"] = copying / own;
  state.counters["to_reading"] = reading / own;
}

}  // namespace

int main(int argc, char** argv) {
  if (!ferry::bench::read_arguments("expert-kernels", argc, argv)) return 2;
  for (const ProductPath path : product_paths) {
    if (!runs_here(path)) continue;
    for (const Size& size : sizes) {
      const double work = 1.0 * size.hidden * size.width;
      const auto turns = static_cast<benchmark::IterationCount>(std::clamp(5e8 / work, 11.0, 1000.0));
      std::vector<std::uint32_t> numbers_of_threads{1};
      if (all_threads() > 1 && size.hidden > 1000)
        numbers_of_threads.push_back(all_threads());  // the tiny ones are too small to share
      for (const std::uint32_t threads : numbers_of_threads) {
        for (const Eigen::Index rows : {1, 16}) {
          const auto add = [&](DType type, Precision p, Activations a) {
            const std::string name =
                fmt::format("{}/rows:{}/threads:{}/{}/{}{}", size.model, rows, threads, name_of(path),
                            ExpertLayout{0, 0, type}.name(p), a == Activations::int8 ? "/int8-activations" : "");
            benchmark::RegisterBenchmark(name.c_str(), expert_kernels, size, rows, path, threads, type, p, a)
                ->UseManualTime()
                ->Unit(benchmark::kMicrosecond)
                ->Iterations(turns);
          };
          add(DType::bf16, Precision::full, Activations::floats);
          for (const Precision p : {Precision::int8, Precision::int4, Precision::int2}) {
            add(DType::bf16, p, Activations::floats);
            add(DType::bf16, p, Activations::int8);
          }
          if (size.hidden % 256 != 0 || size.width % 256 != 0) continue;  // every type of block fills these rows
          for (int type = 0; type <= static_cast<int>(DType::other); ++type) {
            const auto layout = plain_layout(static_cast<DType>(type), 1, 256);
            const auto* blocks = std::get_if<BlockLayout>(&layout);
            if (blocks == nullptr) continue;
            add(static_cast<DType>(type), Precision::full, Activations::floats);
            if (has_codes(*blocks)) add(static_cast<DType>(type), Precision::full, Activations::int8);
          }
        }
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
