// Every Link of the library, tried by its contract. A new link is registered in the list at the end.
#include "contracts/link.hpp"

#include <optional>

#include "emulated_cuda/emulated_cuda.hpp"
#include "ferry/link/command_buffer.hpp"
#include "ferry/link/cuda_stream.hpp"
#include "ferry/link/host_thread.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "support/command_worker.hpp"
#include "support/pinned.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// A link over ten slots, and the device's view of them. Expert e consists of bytes that are all e.
template <class L>
class Rig {
 public:
  /// `chunk`: the bytes of a prefetch after which demand copies may go ahead; 0: they never may.
  Rig(const ModelShape& m, const Allotment& slots, std::uint32_t chunk)
      : memory_(
            slots,
            [this](Variant v) {
              return View<const std::byte>{experts_[v.id.expert].data(), expert_bytes};
            },
            true) {
    for (int e = 0; e < 64; ++e) experts_.emplace_back(expert_bytes, static_cast<std::byte>(e));
    if constexpr (std::is_same_v<L, VirtualClock>) {
      link.emplace(m, VirtualClock::Options{64'000'000, 0, true, 0, chunk}, &memory_);
    } else {
      link.emplace(memory_, HostThread::Options{.bytes_per_s = 64'000'000, .log = true, .prefetch_chunk_bytes = chunk});
    }
  }
  [[nodiscard]] std::pair<std::byte, std::byte> ends(std::uint32_t slot) const {
    return {memory_.slot(slot)[0], memory_.slot(slot)[expert_bytes - 1]};
  }
  /// Lets some time go by on the link.
  void pass() {
    if constexpr (std::is_same_v<L, VirtualClock>) {
      link->device(500);
      link->sync();
    } else {
      std::this_thread::yield();
    }
  }

 private:
  std::vector<std::vector<std::byte>> experts_;
  SlotMemory memory_;

 public:
  std::optional<L> link;
};

/// The device sees what its stream sees, at the point that the caller has reached.
template <>
class Rig<CudaStream> {
 public:
  Rig(const ModelShape& /*m*/, const Allotment& slots, std::uint32_t chunk)
      : experts_(64 * expert_bytes),
        seen_(expert_bytes),
        memory_(slots,
                [this](Variant v) -> HeldBytes {
                  return View<const std::byte>{experts_.data() + v.id.expert * expert_bytes, expert_bytes};
                },
                {.pinned = true, .poison = true}) {
    for (std::size_t i = 0; i < experts_.size(); ++i) experts_[i] = static_cast<std::byte>(i / expert_bytes);
    link.emplace(memory_, compute_,
                 CudaStream::Options{
                     .ahead_bytes = chunk == 0 ? 4 * expert_bytes : chunk,
                     .prefetch_chunk_bytes = chunk,
                     .log = true,
                 });
  }
  [[nodiscard]] std::pair<std::byte, std::byte> ends(std::uint32_t slot) const {
    compute_.read(seen_, 0, memory_.slot(slot), expert_bytes);
    compute_.synchronize();
    return {seen_[0], seen_[expert_bytes - 1]};
  }
  void pass() { static_cast<void>(cudaStreamQuery(compute_)); }

 private:
  Stream compute_;
  Pinned experts_, seen_;
  CudaSlots memory_;

 public:
  std::optional<CudaStream> link;
};

/// The device is whoever carries the commands out.
template <>
class Rig<CommandBuffer> {
 public:
  Rig(const ModelShape& /*m*/, const Allotment& slots, std::uint32_t /*chunk*/) : worker_(slots.slots()) {
    link.emplace(CommandBuffer::Progress::reported);
  }
  [[nodiscard]] std::pair<std::byte, std::byte> ends(std::uint32_t slot) {
    pass_on();
    const auto expert = static_cast<std::byte>(worker_.slot(slot).id.expert);
    return {expert, expert};
  }
  void pass() {
    pass_on();
    worker_.copy_one();
    link->report(worker_.seen());
  }

 private:
  void pass_on() {
    worker_.take(link->commands());
    link->clear();
  }
  CommandWorker worker_;

 public:
  std::optional<CommandBuffer> link;
};

}  // namespace

template <class L>
void link_contract_of_rig(std::uint32_t chunk) {
  const ModelShape m = model(1, 64, 1);
  Rig<L> rig(m, one_pool(m, 10 * expert_bytes), chunk);
  link_contract_of(rig);
}

TEST_CASE_TEMPLATE_DEFINE("Link", L, link_contract) {
  link_contract_of_rig<L>(0);
  link_contract_of_rig<L>(24);
}

TEST_CASE_TEMPLATE_INVOKE(link_contract, VirtualClock, HostThread, CommandBuffer);

TEST_CASE("Link: CUDA, in many orders of its streams") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    test::emulated::Options options;
    options.seed = seed;
    options.chunk_bytes = 16;
    test::emulated::reset(options);
    link_contract_of_rig<CudaStream>(seed % 2 == 0 ? 0 : 24);
  }
}
