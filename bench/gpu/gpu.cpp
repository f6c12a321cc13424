// What the CUDA device reaches of what its GPU can do: copies, gates, experts, and whole models that decode.
//
// Every number stands beside a ceiling that was measured in the same run and, round by round, next to it.
#include "gpu.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <thread>

#include "cuda/cuda.hpp"
#include "inference/expert_runner.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "stacks/budget.hpp"

namespace ferry::bench {

using namespace engine;
using cuda::check;
using cuda::Event;

double Samples::median() const {
  std::vector<double> sorted = all;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}
double Samples::least() const {
  return *std::min_element(all.begin(), all.end());
}
double Samples::most() const {
  return *std::max_element(all.begin(), all.end());
}

double Comparison::ratio() const {
  Samples ratios;
  for (std::size_t i = 0; i < measured.all.size(); ++i) ratios.add(measured.all[i] / ceiling.all[i]);
  return ratios.median();
}

void print_heading(const std::string& title) {
  fmt::print("\n{}\n{:<46}{:>20} {:<5}{:>10}  {:<26}{:>7}  {}\n", title, "", "median (best)", "", "ceiling", "",
             "ratio", "goal");
}

Json to_json(const Samples& s) {
  return {{"median", s.median()}, {"least", s.least()}, {"most", s.most()}, {"all", s.all}};
}

Json print(const Comparison& c) {
  const double best = c.rate ? c.measured.most() : c.measured.least();
  std::string goal;
  if (c.goal) {
    goal = fmt::format("{} {:.2f}  {}", c.rate ? ">=" : "<=", *c.goal, c.reached() ? "reached" : "NOT reached");
  }
  fmt::print("{:<46}{:>20} {:<5}{:>10.3f}  {:<26}{:>7.3f}  {}\n", c.what,
             fmt::format("{:.3f} ({:.3f})", c.measured.median() * c.scale, best * c.scale), c.unit,
             c.ceiling.median() * c.scale, c.ceiling_is, c.ratio(), goal);
  std::fflush(stdout);
  Json json = {{"what", c.what},
               {c.rate ? "per_s" : "seconds", to_json(c.measured)},
               {"ceiling", to_json(c.ceiling)},
               {"ceiling_is", c.ceiling_is},
               {"ratio", c.ratio()}};
  if (c.goal) {
    json["goal"] = *c.goal;
    json["reached"] = c.reached();
  }
  return json;
}

std::string size_text(std::uint64_t bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, units[unit]);
}

void say_progress(const std::string& what) {
  fmt::print(stderr, "gpu: {}\n", what);
}

namespace {

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw LinkError(fmt::format("{}: {}", call, cublasGetStatusString(status)));
}

/// Keeps a stream from going on while the host still queues what is to be measured.
class Hold {
 public:
  explicit Hold(cudaStream_t stream) : stream_(stream) {
    check(cudaLaunchHostFunc(stream, wait, this), "cudaLaunchHostFunc");
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    release();
    static_cast<void>(cudaStreamSynchronize(stream_));  // it may still run
  }
  void release() { released_ = true; }

 private:
  static void CUDART_CB wait(void* hold) {
    // Waits for 200 ms at most: a driver that waits for this stream itself would otherwise never return.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (!static_cast<const Hold*>(hold)->released_ && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
  }
  cudaStream_t stream_;
  std::atomic<bool> released_{false};
};

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

Gpu::Gpu(bool quick) {
  int device = 0, l2 = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute");
  name_ = properties.name;
  l2_bytes_ = static_cast<std::uint64_t>(l2);
  check(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_.reset(context.stream);
  check_blas(cublasCreate(&context.blas), "cublasCreate");
  blas_.reset(context.blas);
  check_blas(cublasSetStream(context.blas, context.stream), "cublasSetStream");
  check_blas(cublasSetPointerMode(context.blas, CUBLAS_POINTER_MODE_DEVICE), "cublasSetPointerMode");
  constexpr std::uint64_t mib = std::uint64_t{1} << 20U;
  const std::uint64_t bytes = quick ? mib : std::clamp<std::uint64_t>(free_bytes() / 8 / mib, 1, 1024) * mib;
  swept_ = block(bytes);
  copied_ = block(bytes);
  sum_ = block(sizeof(float));
  check(cudaMemsetAsync(swept_.data(), 0x3c, bytes, stream()), "cudaMemsetAsync");
  check(cudaMemsetAsync(copied_.data(), 0, bytes, stream()), "cudaMemsetAsync");
  static_cast<void>(read_bytes_per_s());  // loads the kernels
}

std::uint64_t Gpu::free_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

Json Gpu::facts() const {
  int device = 0, driver = 0, runtime = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {{"gpu", name_},
          {"compute_capability", fmt::format("{}.{}", major, minor)},
          {"memory_bytes", total},
          {"l2_bytes", l2_bytes_},
          {"cuda_driver", version_text(driver)},
          {"cuda_runtime", version_text(runtime)},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))}};
}

cuda::DeviceBlock Gpu::block(std::uint64_t bytes) const {
  if (bytes > free_bytes()) {
    throw InputError(fmt::format("{} do not fit the device: {} are free", size_text(bytes), size_text(free_bytes())));
  }
  return {bytes, cuda::Use::activations, account_};
}

double Gpu::seconds(const std::function<void()>& work) const {
  const Event begin, end;
  {
    Hold hold(stream());
    begin.record(stream());
    work();
    end.record(stream());
  }
  check(cudaEventSynchronize(end), "cudaEventSynchronize");
  return static_cast<double>(std::max<Nanoseconds>(1, end.ns_since(begin))) * 1e-9;
}

double Gpu::read_bytes_per_s() const {
  const std::uint64_t bytes = swept_.bytes();
  double least = 0;
  for (int i = 0; i < 3; ++i) {
    const double summed = seconds([&] {
      check_blas(
          cublasSasum(context.blas, static_cast<int>(bytes / sizeof(float)), swept_.as<float>(), 1, sum_.as<float>()),
          "cublasSasum");
    });
    const double copied = seconds([&] {
      check(cudaMemcpyAsync(copied_.data(), swept_.data(), bytes, cudaMemcpyDeviceToDevice, stream()),
            "cudaMemcpyAsync");
    });
    const double faster = std::min(summed, copied / 2);
    least = i == 0 ? faster : std::min(least, faster);
  }
  return static_cast<double>(bytes) / least;
}

PlainCopies::PlainCopies(const Gpu& gpu, std::uint64_t bytes, std::uint64_t block_bytes)
    : gpu_(gpu),
      block_bytes_(block_bytes),
      own_(std::max<std::uint64_t>(2, bytes / block_bytes) * block_bytes),
      to_(gpu.block(2 * block_bytes)) {
  std::memset(own_.as<std::byte>(), 1, own_.bytes());
  for (std::uint64_t at = 0; at < own_.bytes(); at += block_bytes) from_.push_back(own_.as<std::byte>() + at);
}

PlainCopies::PlainCopies(const Gpu& gpu, const std::vector<std::pair<const std::byte*, std::size_t>>& memory,
                         std::uint64_t bytes, std::uint64_t block_bytes)
    : gpu_(gpu), block_bytes_(block_bytes), to_(gpu.block(2 * block_bytes)) {
  for (const auto& [begin, size] : memory) {
    for (std::uint64_t at = 0; at + block_bytes <= size; at += block_bytes) {
      if (from_.size() >= 2 && from_.size() * block_bytes >= bytes) return;
      from_.push_back(begin + at);
    }
  }
}

double PlainCopies::bytes_per_s() {
  const Event begin, end;
  const std::uint64_t bytes = from_.size() * block_bytes_;
  // The best of at least three passes and 0.2 s: right after a run a device may still be busy with the memory it got back.
  double best = 0, passed = 0;
  for (int i = 0; i < 3 || passed < 0.2; ++i) {
    begin.record(gpu_.stream());
    for (std::size_t k = 0; k < from_.size(); ++k) {
      check(cudaMemcpyAsync(to_.data() + k % 2 * block_bytes_, from_[k], block_bytes_, cudaMemcpyHostToDevice,
                            gpu_.stream()),
            "cudaMemcpyAsync");
    }
    end.record(gpu_.stream());
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    const double s = static_cast<double>(std::max<Nanoseconds>(1, end.ns_since(begin))) * 1e-9;
    best = std::max(best, static_cast<double>(bytes) / s);
    passed += s;
  }
  return best;
}

ExpertBytesMaker::ExpertBytesMaker(const ExpertLayout& layout) : layout_(layout), weights_(std::size_t{1} << 20U) {
  std::mt19937_64 random(1);
  for (std::uint16_t& w : weights_) {
    // A random bf16: either sign, an exponent from 2^-14 to 2^-7, and 7 bits of fraction.
    const auto bits = static_cast<std::uint32_t>(random());
    w = static_cast<std::uint16_t>((bits & 0x8000U) | (113U + (bits >> 8U & 7U)) << 7U | (bits & 0x7fU));
  }
}

void ExpertBytesMaker::make(std::uint64_t number, Precision p, std::byte* to) const {
  // Each expert begins at its own place in the numbers.
  const auto* all = reinterpret_cast<const std::byte*>(weights_.data());
  const std::uint64_t size = weights_.size() * sizeof(weights_[0]), first = number * 4098 % size;
  auto fill = [&](std::byte* at, std::uint64_t bytes) {
    for (std::uint64_t done = 0, from = first; done < bytes; from = 0) {
      const std::uint64_t part = std::min(bytes - done, size - from);
      std::memcpy(at + done, all + from, part);
      done += part;
    }
  };
  if (p == Precision::full) return fill(to, layout_.bytes(p));
  for (int part = 0; part < 3; ++part) {
    const PackedLayout packed = layout_.packed(part, p);
    std::byte* at = to + layout_.part_at(part, p);
    const std::uint64_t groups = packed.group_at(0, 0);
    fill(at, groups);
    const PackedGroup group{0x1p-6F / static_cast<float>(largest_code(packed.bits)), -0x1p-7F};
    for (std::uint64_t i = groups; i < packed.bytes(); i += sizeof(group)) std::memcpy(at + i, &group, sizeof(group));
  }
}

namespace {

int run(const GpuArguments& a) {
  for (const std::string& s : a.stacks) static_cast<void>(find_stack(s));
  static_cast<void>(parse_budget(a.budget, std::uint64_t{1} << 40U));
  if (const std::string why = no_cuda(); !why.empty()) {
    throw InputError(why.rfind("there is no GPU", 0) == 0 ? why + " to be measured"
                                                          : "there is no GPU to be measured: " + why);
  }
  ferry::bench::JsonFile file(a.json);
  const Gpu gpu(a.quick);
  Json json = gpu.facts();
  json["arguments"] = {{"quick", a.quick}, {"shape", a.shape}, {"tokens", a.tokens}, {"budget", a.budget}};
  fmt::print("{}, CUDA {} (driver {}), {}{}\n", gpu.name(), json["cuda_runtime"].get<std::string>(),
             json["cuda_driver"].get<std::string>(), json["date"].get<std::string>(),
             a.quick ? ", quick: numbers mean little" : "");
  auto wanted = [&](const char* part) {
    return a.only.empty() || std::find(a.only.begin(), a.only.end(), part) != a.only.end();
  };
  bool wrong = false;
  if (wanted("copy")) json["copy"] = gpu_copy(gpu, a);
  if (wanted("gates")) json["gates"] = gpu_gates(gpu, a);
  if (wanted("experts")) json["experts"] = gpu_experts(gpu, a);
  if (wanted("decode")) json["decode"] = gpu_decode(gpu, a, wrong);
  file.commit(json);
  if (wrong) throw std::runtime_error("a stack that loses nothing did not compute what the resident model computes");
  return 0;
}

}  // namespace

}  // namespace ferry::bench

int main(int argc, char** argv) {
  ferry::bench::GpuArguments a;
  CLI::App app("What the CUDA device reaches of what its GPU can do.", "gpu");
  app.footer(
      "Each number is the median over rounds, beside a ceiling measured in the same rounds. copy: the link against "
      "plain\n"
      "copies from page-locked memory. gates: those of several layers at once against one. experts: the bytes that "
      "the\n"
      "kernels read against the device's read bandwidth. decode: models of random weights and made-up routing\n"
      "(docs/synthetic.md) against what their bytes take at those bandwidths; with every layer that fits.");
  app.add_option("--only", a.only, "comma-separated: copy, gates, experts, decode (default: all)")
      ->delimiter(',')
      ->type_name("PARTS")
      ->check(CLI::IsMember({"copy", "gates", "experts", "decode"}));
  app.add_option("--shape", a.shape, "whose layers decode has: mixtral-8x7b, qwen1.5-moe-a2.7b or both")
      ->check(CLI::IsMember({"mixtral-8x7b", "qwen1.5-moe-a2.7b", "both"}))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--layers", a.layers,
                 "of decode (default: the shape's, or as many as fit into 60% of the host's free memory, what of it "
                 "can be filled in 40 s, and 80% of the GPU's; and no more than are copied in 120 s)")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  app.add_option("--tokens", a.tokens, "that decode measures of each stack and round")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--stacks", a.stacks, "for decode, beside those that it always has; comma-separated")
      ->delimiter(',')
      ->type_name("NAMES");
  app.add_option("--budget", a.budget, "of decode, for the experts: a share (25%) or a size (64MiB)")
      ->capture_default_str();
  app.add_flag("--quick", a.quick, "sizes that mean nothing, to see that everything works");
  ferry::bench::add_json_option(app, a.json);
  return ferry::bench::parse_and_run(app, argc, argv, [&] { return ferry::bench::run(a); });
}
