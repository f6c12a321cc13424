#include "calibrate/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

#include "ferry/link/host_thread.hpp"
#include "ferry/macros.hpp"
#include "inference/expert_runner.hpp"
#include "inference/generate.hpp"
#include "math/host_math.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

constexpr int repeats = 9;

struct Measured {
  double best = 0, median = 0;
};

Measured summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.back(), values[values.size() / 2]};
}

double seconds(Nanoseconds ns) {
  return static_cast<double>(std::max<Nanoseconds>(1, ns)) * 1e-9;
}

/// Copies of 16 MiB blocks through the link, from 256 MiB that no cache holds; and how long the smallest takes.
class LinkProbe {
 public:
  LinkProbe() : host_(std::size_t{blocks} * block), small_(64) {
    std::memset(host_.data(), 1, host_.size());
    std::memset(small_.data(), 1, small_.size());
    model_.layers = 1;
    model_.experts = blocks;
    model_.top_k = 1;
    model_.max_rows = 1;
    model_.renormalise = Renormalise::no;
    model_.expert_bytes = {ExpertBytes{0, 0, 0, small_.size(), block}};
    Allotment a;
    a.stream_slots = 2;
    a.stream_slot_bytes = block;
    memory_.emplace(a, [this](Variant v) -> View<const std::byte> {
      if (v.precision == Precision::int8) return {small_.data(), static_cast<std::uint32_t>(small_.size())};
      return {host_.data() + std::size_t{v.id.expert} * block, static_cast<std::uint32_t>(block)};
    });
    link_.emplace(*memory_, HostThread::Options{});
  }

  double bytes_per_s() {
    const Nanoseconds begin = now_ns();
    for (std::uint16_t i = 0; i < blocks; ++i) copy(i, Precision::full);
    return static_cast<double>(block) * blocks / seconds(now_ns() - begin);
  }
  double latency_s() {
    const Nanoseconds begin = now_ns();
    constexpr int times = 200;
    for (int i = 0; i < times; ++i) copy(0, Precision::int8);
    return seconds(now_ns() - begin) / times;
  }

 private:
  static constexpr std::uint16_t blocks = 16;
  static constexpr std::uint64_t block = std::uint64_t{16} << 20U;

  void copy(std::uint16_t expert, Precision p) {
    const Ticket t{ticket_ += 2};
    link_->submit({t, {{0, expert}, p}, 0, Fence::none, true});
    link_->wait(t);
  }

  std::vector<std::byte> host_, small_;
  ModelShape model_;
  std::optional<SlotMemory> memory_;
  std::optional<HostThread> link_;
  std::uint64_t ticket_ = 0;
};

std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "this processor";
}

Json number(double value, const std::string& source) {
  return {{"value", value}, {"source", source}};
}

}  // namespace

Json calibrate_machine(const std::string& name, const std::function<bool(std::uint64_t, std::uint64_t)>& progress) {
  constexpr std::uint64_t parts = 5;
  std::uint64_t done = 0;
  bool stopped = false;
  auto measure = [&](auto&& once) {
    std::vector<double> values;
    once();  // warms up
    for (int i = 0; i < repeats && !stopped; ++i) {
      values.push_back(once());
      stopped = !progress(++done, parts * repeats);
    }
    return values.empty() ? Measured{} : summary(values);
  };

  LinkProbe link;
  const Measured copies = measure([&] { return link.bytes_per_s(); });
  const Measured latency = measure([&] { return link.latency_s(); });
  // A row through a matrix of 64 MiB reads it once.
  constexpr Eigen::Index side = 4096;
  Matrix weights = Matrix::Constant(side, side, 0.5F), row = Matrix::Constant(1, side, 0.25F), out;
  const Measured read = measure([&] {
    const Nanoseconds begin = now_ns();
    linear(row, weights, out);
    return static_cast<double>(side) * side * sizeof(float) / seconds(now_ns() - begin);
  });
  Matrix few = Matrix::Constant(512, 1024, 0.25F), square = Matrix::Constant(1024, 1024, 0.5F);
  const Measured compute = measure([&] {
    const Nanoseconds begin = now_ns();
    linear(few, square, out);
    return 2.0 * 512 * 1024 * 1024 / seconds(now_ns() - begin);
  });
  Matrix tiny = Matrix::Constant(1, 8, 0.25F), tiny_weights = Matrix::Constant(8, 8, 0.5F);
  const Measured start = measure([&] {
    constexpr int times = 1000;
    const Nanoseconds begin = now_ns();
    for (int i = 0; i < times; ++i) linear(tiny, tiny_weights, out);
    return seconds(now_ns() - begin) / times;
  });
  if (stopped) return {};

  const std::string how =
      fmt::format("measured by ferry {} calibrate machine, the median of {}: ", FERRY_VERSION, repeats);
  const std::string best = fmt::format("the best of the same {}", repeats);
  auto speed = [&](const char* unit, const Measured& m, const std::string& what) {
    return Json{{std::string("peak_") + unit, number(m.best, best)},
                {std::string("effective_") + unit, number(m.median, how + what)}};
  };
  const std::string gemv = "one row through a float matrix of 64 MiB, one thread";
  const std::string gemm = "512 rows through a float matrix of 1024 x 1024, one thread";
  Json machine = {{"name", name},
                  {"device", processor() + ", one thread"},
                  {"host", processor() + ", one thread"},
                  {"link", speed("bytes_per_s", copies, "copies of 16 MiB by the copy thread, 256 MiB in turn")},
                  {"device_memory", speed("bytes_per_s", read, gemv)},
                  {"device_compute", speed("flops", compute, gemm)},
                  {"device_launch_s", number(start.median, how + "a product of 8 x 8")},
                  {"host_memory", speed("bytes_per_s", read, gemv)},
                  {"host_compute", speed("flops", compute, gemm)},
                  {"note", "Device and host are the same processor here, and the link is a thread that copies."}};
  machine["link"]["name"] = "memory to memory";
  machine["link"]["latency_s"] = number(latency.median, how + "copies of 64 bytes, one at a time");
  return machine;
}

double measure_decode_layer_s(Model& model) {
  RunnerOptions o;
  o.stack = "resident";
  const auto runner = make_runner(model, o);
  GenerateOptions g;
  g.prompts = {"The time that a layer takes"};
  g.max_new_tokens = 16;
  double least = 0;
  for (int i = 0; i < 4; ++i) {  // the first warms up; of the others the least disturbed counts
    const Generated r = generate(model, *runner, g);
    if (r.decode_steps == 0) continue;
    const double s = r.decode_s / static_cast<double>(r.decode_steps) / model.config().layers;
    if (i > 0 && (least == 0 || s < least)) least = s;
  }
  if (least == 0) throw InputError("the model ends its text at once, so no decode step can be measured");
  return least;
}

}  // namespace ferry::engine
