// Copies, gates and experts, each by itself.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ferry/link/cuda_stream.hpp"
#include "gpu.hpp"

namespace ferry::bench {

using namespace engine;
using cuda::check;
using cuda::Event;

namespace {

/// An order of the blocks in host memory in which no two neighbours follow each other: the link would join neighbours into
/// one copy, which experts hardly ever allow.
class Order {
 public:
  explicit Order(std::uint64_t blocks) : blocks_(blocks), stride_(blocks * 3 / 8) {
    while (stride_ < 2 || std::gcd(stride_, blocks_) != 1) ++stride_;
  }
  [[nodiscard]] std::uint64_t operator()(std::uint64_t i) const { return i % blocks_ * stride_ % blocks_; }

 private:
  std::uint64_t blocks_, stride_;
};

/// Carries experts of one size over a link as an engine does.
class Carrier {
 public:
  /// `from`: `blocks` of them, page-locked if `pinned`.
  Carrier(cudaStream_t compute, const std::byte* from, std::uint64_t blocks, std::uint64_t block_bytes,
          std::uint32_t slots, bool pinned)
      : compute_(compute),
        block_bytes_(block_bytes),
        order_(blocks),
        slots_({{}, slots, block_bytes},
               [=](Variant v) -> HeldBytes {
                 const std::uint64_t block = std::uint64_t{v.id.layer} << 16U | v.id.expert;
                 return View<const std::byte>{from + block * block_bytes, static_cast<std::uint32_t>(block_bytes)};
               },
               {.pinned = pinned, .poison = false}),
        link_(slots_, compute, {}),
        reader_(slots, Fence::none) {}

  [[nodiscard]] const CudaSlots& slots() const { return slots_; }

  /// Bytes a second, from the first request until the computation could use the last expert.
  double run(std::uint64_t copies, bool demand) {
    const std::uint64_t slots = slots_.slots(), first = tickets_;
    tickets_ += copies;
    auto ticket = [&](std::uint64_t i) { return static_cast<Ticket>(2 * (first + i + 1) + (demand ? 0 : 1)); };
    auto landed = [&] {
      const Seen seen = link_.seen();
      return demand ? seen.demand_landed : seen.prefetch_landed;
    };
    begin_.record(compute_);
    for (std::uint64_t i = 0; i < copies + slots; ++i) {
      const auto slot = static_cast<std::uint32_t>(i % slots);
      if (i >= slots && i - slots < copies) {
        const std::uint64_t done = i - slots;
        // The host waits until a prefetch has landed before it uses it. For a demand copy the device waits; the host is at
        // most `slots` copies ahead of it, since an engine asks its gate in between.
        const std::uint64_t there = demand ? done - std::min(done, slots) : done;
        while (landed() < ticket(there)) {
          if (!link_.failed().empty()) throw std::runtime_error(link_.failed());
        }
        link_.wait(ticket(done));
        check(cudaMemsetAsync(slots_.slot(slot), 0, 64, compute_), "cudaMemsetAsync");  // stands for its kernels
        reader_[slot] = static_cast<Fence>(++fences_);
        link_.fence(reader_[slot]);
      }
      if (i < copies) {
        const std::uint64_t block = order_(i);
        const Variant what{{static_cast<std::uint16_t>(block >> 16U), static_cast<std::uint16_t>(block & 0xffffU)}};
        link_.submit({ticket(i), what, slot, reader_[slot], demand});
      }
    }
    end_.record(compute_);
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    const double s = static_cast<double>(std::max<Nanoseconds>(1, end_.ns_since(begin_))) * 1e-9;
    link_.drain();
    return static_cast<double>(copies * block_bytes_) / s;
  }

 private:
  cudaStream_t compute_;
  std::uint64_t block_bytes_;
  Order order_;
  CudaSlots slots_;
  CudaStream link_;
  Event begin_, end_;
  std::vector<Fence> reader_;  ///< of each slot's last expert
  std::uint64_t tickets_ = 0, fences_ = 0;
};

/// The same copies without a link.
double plain_copies(cudaStream_t stream, const std::byte* from, std::uint64_t blocks, std::uint64_t block_bytes,
                    const CudaSlots& slots, std::uint64_t copies) {
  const Order order(blocks);
  const Event begin, end;
  begin.record(stream);
  for (std::uint64_t i = 0; i < copies; ++i) {
    check(cudaMemcpyAsync(slots.slot(static_cast<std::uint32_t>(i % slots.slots())), from + order(i) * block_bytes,
                          block_bytes, cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
  }
  end.record(stream);
  check(cudaEventSynchronize(end), "cudaEventSynchronize");
  return static_cast<double>(copies * block_bytes) * 1e9 /
         static_cast<double>(std::max<Nanoseconds>(1, end.ns_since(begin)));
}

/// Weights of which every 16 bits are a small number.
void fill(const Gpu& gpu, const cuda::DeviceBlock& block) {
  check(cudaMemsetAsync(block.data(), 0x3c, block.bytes(), gpu.stream()), "cudaMemsetAsync");
}

struct GateShape {
  const char* name;
  std::uint32_t layers, experts, hidden;
  std::optional<double> goal;
};

}  // namespace

Json gpu_copy(const Gpu& gpu, const GpuArguments& a) {
  constexpr std::uint64_t kib = 1024, mib = 1024 * kib;
  std::vector<std::uint64_t> sizes = {256 * kib, mib, 4 * mib, 16 * mib, 64 * mib, 350 * mib};
  if (a.quick) sizes = {16 * kib, 64 * kib, 256 * kib};
  constexpr std::uint64_t least_blocks = 8;
  const std::uint64_t bytes = least_blocks * sizes.back();
  const int rounds = a.quick ? 2 : 3;
  say_progress("copy: " + size_text(2 * bytes) + " of host memory to copy from");
  const cuda::HostBlock pinned(bytes);
  std::memset(pinned.as<std::byte>(), 1, bytes);
  const std::vector<std::byte> pageable(bytes, std::byte{1});

  print_heading("copy: experts from host memory, GB/s; the link's ceiling are plain copies of the same blocks");
  Json json = Json::array();
  for (const std::uint64_t size : sizes) {
    say_progress("copy: " + size_text(size));
    const std::uint64_t blocks = bytes / size;
    const std::uint32_t slots = size > 64 * mib ? 4 : 8;
    if (Gpu::free_bytes() < 2 * slots * size + 64 * mib) {
      fmt::print("{:<46}left out: two links of {} slots do not fit the device\n", size_text(size), slots);
      continue;
    }
    Carrier link(gpu.stream(), pinned.as<std::byte>(), blocks, size, slots, true);
    Carrier staging(gpu.stream(), pageable.data(), blocks, size, slots, false);
    auto plain = [&](std::uint64_t copies) {
      return plain_copies(gpu.stream(), pinned.as<std::byte>(), blocks, size, link.slots(), copies);
    };
    // As many copies as take 0.2 s, and at least `least_blocks`.
    static_cast<void>(plain(least_blocks));
    auto enough = [&](double bytes_per_s) {
      const double s = a.quick ? 0.001 : 0.2;
      return std::max(least_blocks, static_cast<std::uint64_t>(s * bytes_per_s / static_cast<double>(size)));
    };
    const std::uint64_t copies = enough(plain(least_blocks));
    const std::uint64_t staged = enough(staging.run(least_blocks, true));
    static_cast<void>(link.run(least_blocks, true));
    Samples ceiling, demand, prefetch, unpinned;
    for (int round = 0; round < rounds; ++round) {
      ceiling.add(plain(copies));
      demand.add(link.run(copies, true));
      prefetch.add(link.run(copies, false));
      unpinned.add(staging.run(staged, true));
    }
    auto line = [&](const char* what, const Samples& measured, std::optional<double> goal) {
      json.push_back(print({fmt::format("{}, {}", size_text(size), what), "GB/s", 1e-9, measured, ceiling,
                            "GB/s by cudaMemcpyAsync", goal}));
      json.back()["bytes"] = size;
    };
    line("on demand", demand, 0.9);
    line("prefetched", prefetch, {});
    line("on demand, from unpinned memory", unpinned, {});
  }
  return json;
}

Json gpu_gates(const Gpu& gpu, const GpuArguments& a) {
  std::vector<GateShape> shapes = {{"E = 64, d = 2048", 27, 64, 2048, 1.25}, {"E = 8, d = 4096", 32, 8, 4096, {}}};
  if (a.quick) shapes = {{"E = 64, d = 128", 6, 64, 128, 1.25}, {"E = 8, d = 256", 6, 8, 256, {}}};
  constexpr std::uint32_t most = 4;
  const std::uint32_t calls = a.quick ? 4 : 192;
  const int rounds = a.quick ? 2 : 9;
  print_heading("gates: several layers' at once, one row, us a launch; the ceiling is one layer's gate alone");
  Json json = Json::array();
  for (const GateShape& shape : shapes) {
    const std::uint64_t gate_bytes = std::uint64_t{2} * shape.experts * shape.hidden;
    // First the gates of one model, which the device's cache may hold; then more than it can hold, as if all of a model's
    // weights passed through it between two tokens.
    const auto cold = static_cast<std::uint32_t>(
        std::max<std::uint64_t>(std::uint64_t{most} * calls + most, 4 * gpu.l2_bytes() / gate_bytes));
    for (const std::uint32_t gates : {shape.layers, cold}) {
      const cuda::DeviceBlock weights = gpu.block(gate_bytes * gates), x = gpu.block(shape.hidden * sizeof(float));
      const cuda::DeviceBlock scores = gpu.block(std::uint64_t{most} * shape.experts * sizeof(float));
      const cuda::DeviceBlock counter = gpu.block(sizeof(unsigned));
      fill(gpu, weights);
      fill(gpu, x);
      check(cudaMemsetAsync(counter.data(), 0, counter.bytes(), gpu.stream()), "cudaMemsetAsync");
      std::uint64_t next = 0;
      auto pass = [&](std::uint32_t count) {
        for (std::uint32_t i = 0; i < calls; ++i, next += gates == cold ? most : 1) {
          const std::uint64_t first = next % (gates - most + 1);
          const cuda::DenseWeight w{weights.data() + first * gate_bytes, FloatType::bf16, count * shape.experts,
                                    shape.hidden};
          cuda::gate(gpu.context, x.as<float>(), 1, w, count, scores.as<float>(), scores.as<float>(),
                     counter.as<unsigned>(), 0, nullptr);
        }
      };
      Samples seconds[most];
      for (std::uint32_t count = 1; count <= most; ++count) pass(count);
      for (int round = 0; round < rounds; ++round) {
        for (std::uint32_t count = 1; count <= most; ++count) {
          seconds[count - 1].add(gpu.seconds([&] { pass(count); }) / calls);
        }
      }
      for (std::uint32_t count = 2; count <= most; ++count) {
        json.push_back(print({fmt::format("{}, {} at once, {}", shape.name, count,
                                          gates == cold ? "none cached" : fmt::format("of {} layers", gates)),
                              "us", 1e6, seconds[count - 1], seconds[0], "us for one", shape.goal, false}));
        json.back().update({{"experts", shape.experts}, {"hidden", shape.hidden}, {"gates", gates}, {"count", count}});
      }
    }
  }
  return json;
}

Json gpu_experts(const Gpu& gpu, const GpuArguments& a) {
  struct Shape {
    const char* name;
    std::uint32_t hidden, width, together;
  };
  std::vector<Shape> shapes = {{"mixtral-8x7b", 4096, 14336, 2}, {"qwen1.5-moe-a2.7b", 2048, 1408, 4}};
  if (a.quick) shapes = {{"small mixtral", 64, 224, 2}, {"small qwen", 64, 96, 4}};
  const int rounds = a.quick ? 2 : 5;
  print_heading("experts: bytes of weights a second, GB/s; the ceiling is what the device reads");
  Json json = Json::array();
  for (const Shape& shape : shapes) {
    say_progress(fmt::format("experts: {}", shape.name));
    const ExpertLayout layout{shape.hidden, shape.width, DType::bf16};
    const ExpertBytesMaker maker(layout);
    for (const Precision p : {Precision::full, Precision::int8, Precision::int4, Precision::int2}) {
      const std::uint64_t bytes = layout.bytes(p), room = (bytes + 255) / 256 * 256;
      // Enough experts for four launches, and four times what the device's cache holds.
      const std::uint64_t launches = std::max<std::uint64_t>(4, 4 * gpu.l2_bytes() / (bytes * shape.together) + 1);
      const std::uint64_t experts = launches * shape.together;
      const cuda::DeviceBlock weights = gpu.block(experts * room);
      std::vector<std::byte> one(room);
      maker.make(0, p, one.data());
      check(cudaMemcpyAsync(weights.data(), one.data(), room, cudaMemcpyHostToDevice, gpu.stream()), "cudaMemcpyAsync");
      for (std::uint64_t e = 1; e < experts; ++e) {
        check(cudaMemcpyAsync(weights.data() + e * room, weights.data(), room, cudaMemcpyDeviceToDevice, gpu.stream()),
              "cudaMemcpyAsync");
      }
      for (const std::uint32_t rows : {1U, cuda::few_rows}) {
        // Every row wants all of a launch's experts.
        const std::uint32_t together = shape.together, routed = rows * together;
        std::vector<std::uint32_t> assignments;
        std::vector<cuda::ExpertTask> tasks;
        for (std::uint32_t i = 0; i < together; ++i) {
          for (std::uint32_t r = 0; r < rows; ++r) assignments.push_back(r * together + i);
        }
        for (std::uint64_t e = 0; e < experts; ++e) {
          tasks.push_back({weights.data() + e * room, static_cast<std::uint32_t>(e % together) * rows, rows});
        }
        const cuda::DeviceBlock on_device = gpu.block(tasks.size() * sizeof(tasks[0]));
        const cuda::DeviceBlock assigned = gpu.block(assignments.size() * sizeof(assignments[0]));
        const cuda::DeviceBlock x = gpu.block(std::uint64_t{rows} * shape.hidden * sizeof(float));
        const cuda::DeviceBlock activated = gpu.block(std::uint64_t{routed} * shape.width * sizeof(float));
        const cuda::DeviceBlock results = gpu.block(std::uint64_t{routed} * shape.hidden * sizeof(float));
        cuda::put(gpu.stream(), on_device.data(), tasks.data(), on_device.bytes());
        cuda::put(gpu.stream(), assigned.data(), assignments.data(), assigned.bytes());
        const cuda::DeviceBlock progress = gpu.block((2 + together) * sizeof(unsigned));
        check(cudaMemsetAsync(progress.data(), 0, progress.bytes(), gpu.stream()), "cudaMemsetAsync");
        fill(gpu, x);
        // Long enough for the clock, and short enough to be queued before it begins.
        const std::uint64_t calls = a.quick ? launches : std::clamp<std::uint64_t>(launches, 64, 128);
        std::uint64_t next = 0;
        auto pass = [&] {
          for (std::uint64_t i = 0; i < calls; ++i, ++next) {
            cuda::ExpertGroup group;
            group.tasks = on_device.as<cuda::ExpertTask>() + next % launches * together;
            group.counts[static_cast<std::size_t>(p)] = together;
            group.assignments = assigned.as<std::uint32_t>();
            group.top_k = together;
            group.most_rows = rows;
            group.progress = progress.as<unsigned>();
            cuda::experts(gpu.context, {shape.hidden, shape.width, FloatType::bf16, layout.group}, group, x.as<float>(),
                          activated.as<float>(), results.as<float>());
          }
        };
        pass();
        Samples rate, ceiling;
        for (int round = 0; round < rounds; ++round) {
          ceiling.add(gpu.read_bytes_per_s());
          rate.add(static_cast<double>(calls * together * bytes) / gpu.seconds(pass));
        }
        const bool judged = rows == 1 && (p == Precision::full || p == Precision::int4);
        json.push_back(
            print({fmt::format("{}, {}, {} row{}", shape.name, layout.name(p), rows, rows == 1 ? "" : "s"), "GB/s",
                   1e-9, rate, ceiling, "GB/s read by the device", judged ? std::optional(0.7) : std::nullopt}));
        json.back().update({{"hidden", shape.hidden},
                            {"width", shape.width},
                            {"precision", layout.name(p)},
                            {"rows", rows},
                            {"experts_a_launch", together},
                            {"bytes_a_launch", together * bytes}});
      }
    }
  }
  return json;
}

}  // namespace ferry::bench
