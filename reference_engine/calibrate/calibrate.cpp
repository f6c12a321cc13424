#include "calibrate/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

#include "ferry/detail/worker.hpp"
#include "ferry/link/host_thread.hpp"
#include "ferry/macros.hpp"
#include "inference/expert_runner.hpp"
#include "inference/generate.hpp"
#include "math/expert_kernel.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

constexpr int repeats = 9;

struct Measured {
  double best = 0, median = 0;
};

Measured summary(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values.back(), values[values.size() / 2]};
}

double seconds(Nanoseconds ns) {
  return static_cast<double>(std::max<Nanoseconds>(1, ns)) * 1e-9;
}

/// Copies 16 MiB blocks through the link, from 256 MiB that no cache holds. Also measures the latency of a tiny copy.
class LinkProbe {
 public:
  /// `bytes_per_s`: the throttle; 0: none.
  explicit LinkProbe(const std::vector<std::byte>& host, std::uint64_t bytes_per_s = 0) : host_(host), small_(64) {
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
    link_.emplace(*memory_, HostThread::Options{.bytes_per_s = bytes_per_s, .log = true});
  }

  double bytes_per_s() {
    for (std::uint16_t i = 0; i < blocks; ++i) submit(i, Precision::full);
    return speed();
  }
  double latency_s() {
    const Nanoseconds begin = now_ns();
    constexpr int times = 200;
    for (int i = 0; i < times; ++i) {
      submit(0, Precision::int8);
      link_->wait(last_);
    }
    return seconds(now_ns() - begin) / times;
  }

  struct AtOnce {
    double link_bytes_per_s = 0, works_per_s = 0;
  };
  /// Copies with `work` beside them, again and again until the copies have landed.
  template <class Work>
  AtOnce beside(const Work& work) {
    for (std::uint16_t i = 0; i < blocks; ++i) submit(i, Precision::full);
    const Nanoseconds begin = now_ns();
    Nanoseconds end = begin;
    int works = 0;
    do {
      work();
      ++works;
      end = now_ns();
    } while (link_->seen().demand_landed < last_);
    return {speed(), works / seconds(end - begin)};
  }

  static constexpr std::uint16_t blocks = 16;
  static constexpr std::uint64_t block = std::uint64_t{16} << 20U;

 private:
  void submit(std::uint16_t expert, Precision p) {
    last_ = Ticket{static_cast<std::uint64_t>(last_) + 2};
    link_->submit({last_, {{0, expert}, p}, expert % 2U, Fence::none, true});
  }
  /// The speed of the last copy of all blocks, for which it waits.
  double speed() {
    link_->wait(last_);
    const std::vector<Span> spans = link_->spans();
    return static_cast<double>(block) * blocks / seconds(spans.back().end_ns - spans[spans.size() - blocks].begin_ns);
  }

  const std::vector<std::byte>& host_;
  std::vector<std::byte> small_;
  ModelShape model_;
  std::optional<SlotMemory> memory_;
  std::optional<HostThread> link_;
  Ticket last_ = Ticket::none;
};

/// Experts of Qwen1.5-MoE's size in bf16, more than any cache holds, computed on all threads of a pool.
class ExpertProbe {
 public:
  explicit ExpertProbe(WorkerPool& workers)
      : workers_(workers),
        kernel_(layout, best_path(), &workers),
        small_kernel_(small, best_path(), &workers),
        // 0x3B80 is about 0.004: not zeros, whose pages could all be one, and too small for results to overflow
        weights_(count * layout.bytes() / 2, 0x3B80),
        one_(Matrix::Constant(1, layout.hidden, 0.25F)),
        many_(Matrix::Constant(96, layout.hidden, 0.25F)),
        short_(Matrix::Constant(1, small.hidden, 0.25F)) {}

  static double bytes() { return static_cast<double>(layout.bytes()); }
  static double operations(Eigen::Index rows) {
    return bytes() * static_cast<double>(rows);
  }  // two operations for each weight, which has 2 bytes

  void row() { run(one_); }
  double row_s() {
    return timed([this] {
             for (std::size_t i = 0; i < count; ++i) row();
           }) /
           count;
  }
  double rows_s() {
    return timed([this] { run(many_); });
  }
  Eigen::Index rows() const { return many_.rows(); }
  /// What an expert costs besides its weights: the calls, and handing its two rounds of products to all threads.
  double start_s() {
    constexpr int times = 500;
    return timed([this] {
             for (int i = 0; i < times; ++i) {
               small_kernel_.run(bytes_of(0), Precision::full, short_, y_);
               for (int round = 0; round < 2; ++round) workers_.run(workers_.threads(), [](std::uint32_t) {});
             }
           }) /
           times;
  }

 private:
  static constexpr ExpertLayout layout{2048, 1408, DType::bf16}, small{8, 8, DType::bf16};
  static constexpr std::size_t count = 8;

  template <class Call>
  static double timed(const Call& call) {
    const Nanoseconds begin = now_ns();
    call();
    return seconds(now_ns() - begin);
  }
  const std::byte* bytes_of(std::size_t expert) const {
    return reinterpret_cast<const std::byte*>(weights_.data()) + expert * layout.bytes();
  }
  void run(const Matrix& x) { kernel_.run(bytes_of(next_++ % count), Precision::full, x, y_); }

  WorkerPool& workers_;
  ExpertKernel kernel_, small_kernel_;
  std::vector<std::uint16_t> weights_;
  Matrix one_, many_, short_, y_;
  std::size_t next_ = 0;
};

/// How long it takes to hand work to another thread, or to hear from it that the work is done.
double hand_over_s(detail::Worker& worker) {
  constexpr int times = 200;
  const Nanoseconds begin = now_ns();
  for (int i = 0; i < times; ++i) {
    worker.start([] {});
    worker.wait();
  }
  return seconds(now_ns() - begin) / times / 2;
}

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
  constexpr double link_shares[] = {0.25, 0.5, 1};
  constexpr std::uint64_t parts = 6 + std::size(link_shares);
  std::uint64_t done = 0;
  bool stopped = false;
  auto measure = [&](auto&& once) {
    std::vector<double> values;
    if (!stopped) once();  // warms up
    for (int i = 0; i < repeats && !stopped; ++i) {
      values.push_back(once());
      stopped = !progress(++done, parts * repeats);
    }
    return summary(std::move(values));
  };

  WorkerPool workers(0);
  ExpertProbe experts(workers);
  const std::vector<std::byte> host(LinkProbe::blocks * LinkProbe::block, std::byte{1});
  std::optional<LinkProbe> link(host);
  const Measured copies = measure([&] { return link->bytes_per_s(); });
  const Measured latency = measure([&] { return link->latency_s(); });
  const Measured read = measure([&] { return ExpertProbe::bytes() / experts.row_s(); });
  const Measured compute = measure([&] { return ExpertProbe::operations(experts.rows()) / experts.rows_s(); });
  const Measured start = measure([&] { return experts.start_s(); });
  detail::Worker worker;
  const Measured hand_over = measure([&] { return hand_over_s(worker); });
  // Host and link at the same time, each compared with itself alone a moment before.
  std::string at_once;
  double host_keeps = 1, link_keeps = 1;
  for (const double share : link_shares) {
    link.emplace(host, share < 1 ? static_cast<std::uint64_t>(share * copies.median) : 0);
    std::vector<double> of_link;
    host_keeps = measure([&] {
                   const double link_alone = link->bytes_per_s(), host_alone = 1 / experts.row_s();
                   const LinkProbe::AtOnce both = link->beside([&] { experts.row(); });
                   of_link.push_back(both.link_bytes_per_s / link_alone);
                   return both.works_per_s / host_alone;
                 }).median;
    link_keeps = summary(std::move(of_link)).median;
    at_once +=
        fmt::format("{}with copies at {:.0f}% of the link's speed experts keep {:.2f} of theirs, the copies {:.2f}",
                    at_once.empty() ? "" : "; ", share * 100, host_keeps, link_keeps);
  }
  if (stopped) return {};

  const std::string how =
      fmt::format("measured by ferry {} calibrate machine, the median of {}: ", FERRY_VERSION, repeats);
  const std::string best = fmt::format("the best of the same {}", repeats);
  auto speed = [&](const char* unit, const Measured& m, const std::string& what) {
    return Json{{std::string("peak_") + unit, number(m.best, best)},
                {std::string("effective_") + unit, number(m.median, how + what)}};
  };
  const std::string threads = fmt::format("{} thread{}", workers.threads(), workers.threads() == 1 ? "" : "s");
  const std::string gemv = "one row through experts of 2048 x 1408 in bf16, " + threads;
  const std::string gemm = fmt::format("{} rows through the same", experts.rows());
  const std::string launch = how + "an expert of 8 x 8, and handing work to all threads twice";
  Json machine = {
      {"name", name},
      {"device", processor() + ", " + threads},
      {"host", processor() + ", " + threads},
      {"link", speed("bytes_per_s", copies, "copies of 16 MiB by the copy thread, 256 MiB in turn")},
      {"device_memory", speed("bytes_per_s", read, gemv)},
      {"device_compute", speed("flops", compute, gemm)},
      {"device_launch_s", number(start.median, launch)},
      {"host_memory", speed("bytes_per_s", read, gemv)},
      {"host_compute", speed("flops", compute, gemm)},
      {"host_launch_s", number(start.median, launch)},
      {"activations",
       {{"latency_s", number(hand_over.median, how + "waking a thread, and waiting for it, each way the half")},
        {"bytes_per_s", number(read.median, "they are read where they are")}}},
      {"note",
       "Device and host are the same processor here, whose threads they share, and the link is a thread that copies: a "
       "simulation of both at work at once is faster than they are."}};
  machine["link"]["name"] = "memory to memory";
  machine["link"]["latency_s"] = number(latency.median, how + "copies of 64 bytes, one at a time");
  auto kept = [](double share) { return std::clamp(share, 0.01, 1.0); };
  machine["link"]["beside_host"] = number(kept(link_keeps), "as host_memory.beside_copies");
  machine["host_memory"]["beside_copies"] = number(kept(host_keeps), how + "both at once: " + at_once);
  return machine;
}

double measure_decode_layer_s(Model& model) {
  RunnerOptions o;
  o.stack = "resident";
  const auto runner = make_runner(model, o);
  GenerateOptions g;
  if (reads_bytes(model.config())) {
    g.prompts = {"The time that a layer takes"};
  } else {
    g.token_prompts = {std::vector<std::uint32_t>(16, 1)};
  }
  g.max_new_tokens = 16;
  double least = 0;
  for (int i = 0; i < 4; ++i) {  // the first warms up; the fastest of the others counts
    const Generated r = generate(model, *runner, g);
    if (r.decode_steps == 0) continue;
    const double s = r.decode_s / static_cast<double>(r.decode_steps) / model.config().layers;
    if (i > 0 && (least == 0 || s < least)) least = s;
  }
  if (least == 0) throw InputError("the model ends its text at once, so no decode step can be measured");
  return least;
}

}  // namespace ferry::engine
