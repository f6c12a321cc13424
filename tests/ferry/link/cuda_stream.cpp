// On the emulated CUDA, where chance decides what the streams do, and in which order.
#include "ferry/link/cuda_stream.hpp"

#include <doctest/doctest.h>

#include <array>
#include <optional>

#include "emulated_cuda/emulated_cuda.hpp"
#include "support/pinned.hpp"
#include "support/shapes.hpp"
#include "support/watchdog.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

constexpr std::uint64_t expert_bytes = 4096;
constexpr std::uint32_t seeds = 60;

emulated::Options seeded(std::uint64_t seed) {
  emulated::Options o;
  o.seed = seed;
  o.chunk_bytes = 512;
  return o;
}

/// Eight experts in one pinned block, expert e full of e; six slots.
struct StreamFixture {
  explicit StreamFixture(std::uint64_t seed = 1, CudaStream::Options options = {}, bool poison = true) {
    emulated::reset(seeded(seed));
    experts.emplace(8 * expert_bytes);
    for (std::size_t i = 0; i < experts->size(); ++i) (*experts)[i] = static_cast<std::byte>(i / expert_bytes);
    seen_bytes.emplace(4 * expert_bytes);
    compute.emplace();
    slots.emplace(
        one_pool(m, 6 * expert_bytes),
        [this](Variant v) {
          return View<const std::byte>{experts->data() + v.id.expert * expert_bytes,
                                       static_cast<std::uint32_t>(expert_bytes)};
        },
        CudaSlots::Options{.pinned = true, .poison = poison});
    link.emplace(*slots, *compute, options);
  }
  ~StreamFixture() {
    link.reset();
    slots.reset();
    compute.reset();
    seen_bytes.reset();
    experts.reset();
  }

  /// What the device's next work sees in a slot; all of it the same byte, or nothing.
  void read(std::uint32_t slot, std::size_t place = 0) {
    compute->read(*seen_bytes, place * expert_bytes, slots->slot(slot), expert_bytes);
  }
  std::optional<int> was_read(std::size_t place = 0) {
    compute->synchronize();
    const std::byte* all = seen_bytes->data() + place * expert_bytes;
    for (std::size_t i = 1; i < expert_bytes; ++i) {
      if (all[i] != all[0]) return {};
    }
    return std::to_integer<int>(all[0]);
  }

  ModelShape m = model(1, 8, 1, 1, expert_bytes);
  std::optional<Pinned> experts, seen_bytes;
  std::optional<Stream> compute;
  std::optional<CudaSlots> slots;
  std::optional<CudaStream> link;
  Watchdog watchdog;
};

Copy copy(std::uint64_t ticket, std::uint16_t expert, std::uint32_t slot, Fence after = Fence::none) {
  return {Ticket{ticket}, full(0, expert), slot, after, !is_prefetch(Ticket{ticket})};
}

}  // namespace

TEST_CASE("CUDA link: the computation sees what landed, whole, and only because it waits - emulated") {
  int right_without = 0;
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    StreamFixture f(seed);
    f.link->submit(copy(2, 5, 3));
    static_cast<void>(f.link->seen());
    f.read(3, 1);
    f.link->wait(Ticket{2});
    f.read(3);
    CHECK(f.was_read() == 5);
    right_without += f.was_read(1) == 5 ? 1 : 0;
    f.link->drain();
    CHECK(f.link->seen().demand_landed == Ticket{2});
    CHECK(f.link->bytes_copied() == expert_bytes);
  }
  CHECK(right_without < seeds / 2);  // without a wait the emulator lets it race
}

TEST_CASE(
    "CUDA link: not one byte before the slot's last reader, on the device, without a wait on the host - emulated") {
  int wrong_without = 0;
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    for (const bool waits : {true, false}) {
      CAPTURE(seed);
      StreamFixture f(seed);
      f.link->submit(copy(2, 1, 0));
      f.link->wait(Ticket{2});
      f.read(0);  // the last reader
      f.link->fence(Fence{1});
      f.link->submit(copy(4, 6, 0, waits ? Fence{1} : Fence::none));
      f.link->wait(Ticket{4});
      f.read(0, 1);
      CHECK(f.was_read(1) == 6);
      if (waits) {
        CHECK(f.was_read() == 1);
      } else {
        wrong_without += f.was_read() == 1 ? 0 : 1;
      }
    }
  }
  CHECK(wrong_without > 0);
}

TEST_CASE(
    "CUDA link: prefetches go to the stream a bounded number of bytes ahead, the others can be dropped - emulated") {
  StreamFixture f(1, {.ahead_bytes = 2 * expert_bytes, .log = true});
  emulated::hold(*f.compute);
  f.link->fence(Fence{1});
  f.link->submit(copy(2, 0, 0, Fence{1}));  // blocks the copies' stream
  for (std::uint64_t t = 3; t <= 9; t += 2)
    f.link->submit(copy(t, static_cast<std::uint16_t>(t / 2), static_cast<std::uint32_t>(t / 2)));
  for (int i = 0; i < 100; ++i) {
    CHECK(f.link->seen().prefetch_begun == Ticket{6});  // 3 and 5
    CHECK(f.link->seen().prefetch_landed == Ticket{2});
  }
  CHECK(cudaGetLastError() == cudaSuccess);  // "not ready" is not kept as an error
  f.link->drop(Ticket{7});
  f.link->drop(Ticket{3});  // too late
  f.link->submit(copy(10, 7, 5));
  emulated::hold(*f.compute, false);
  f.link->drain();
  std::vector<std::uint64_t> order;
  for (const Span& s : f.link->spans()) order.push_back(static_cast<std::uint64_t>(s.ticket));
  CHECK(order == std::vector<std::uint64_t>{2, 3, 5, 10, 9});
  CHECK(f.link->seen().prefetch_landed == Ticket{9});
  f.read(4);
  CHECK(f.was_read() == 4);
  f.read(3);
  CHECK(f.was_read() == 0xff);  // dropped
}

TEST_CASE("CUDA link: prefetches that have landed make room for others on the stream") {
  StreamFixture f(1, {.ahead_bytes = expert_bytes});
  for (std::uint64_t t = 3; t <= 9; t += 2) {
    f.link->submit(copy(t, static_cast<std::uint16_t>(t / 2), static_cast<std::uint32_t>(t / 2)));
    CHECK(f.link->seen().prefetch_begun == Ticket{t});
    f.link->drain();
  }
}

TEST_CASE("CUDA link: a demand copy goes to the stream between two pieces of a prefetch - emulated") {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    StreamFixture f(seed, {.ahead_bytes = 1024, .prefetch_chunk_bytes = 1024, .log = true});
    emulated::hold(*f.compute);
    f.link->fence(Fence{1});
    f.link->submit(copy(2, 0, 0, Fence{1}));  // blocks the copies' stream
    f.link->submit(copy(3, 1, 1));
    f.link->submit(copy(5, 2, 2));
    CHECK(f.link->seen().prefetch_begun >= Ticket{3});
    CHECK(f.link->seen().prefetch_begun < Ticket{5});
    CHECK(f.link->seen().prefetch_landed < Ticket{3});
    f.link->submit(copy(4, 3, 3));
    CHECK(f.link->seen().chunk_ns > 0);
    emulated::hold(*f.compute, false);
    f.link->wait(Ticket{4});
    f.read(3);
    CHECK(f.was_read() == 3);
    CHECK(f.link->seen().prefetch_landed < Ticket{5});
    f.link->wait(Ticket{3});  // brings all of the rest
    f.read(1);
    CHECK(f.was_read() == 1);
    f.link->drain();
    f.read(2);
    CHECK(f.was_read() == 2);
    CHECK(f.link->seen().prefetch_landed == Ticket{5});
    CHECK(f.link->bytes_copied() == 4 * expert_bytes);
    std::vector<std::uint64_t> order;
    for (const Span& s : f.link->spans()) order.push_back(static_cast<std::uint64_t>(s.ticket));
    CHECK(order == std::vector<std::uint64_t>{2, 3, 4, 3, 3, 3, 5, 5, 5, 5});
  }
}

TEST_CASE(
    "CUDA link: what is left of a dropped prefetch does not go to the stream, and its slot can be used - emulated") {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    StreamFixture f(seed, {.ahead_bytes = 1024, .prefetch_chunk_bytes = 1024});
    emulated::hold(*f.compute);
    f.link->fence(Fence{1});
    f.link->submit(copy(2, 0, 0, Fence{1}));
    f.link->submit(copy(3, 1, 1));
    f.link->drop(Ticket{3});
    f.link->submit(copy(4, 5, 1));
    emulated::hold(*f.compute, false);
    f.link->wait(Ticket{4});
    f.read(1);
    CHECK(f.was_read() == 5);
    f.link->drain();
    CHECK(f.link->bytes_copied() == 2 * expert_bytes + 1024);
  }
}

TEST_CASE("CUDA link: a prefetch in pieces lands before a later copy into its slot") {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    StreamFixture f(seed, {.ahead_bytes = 1024, .prefetch_chunk_bytes = 1024});
    f.link->fence(Fence{1});
    f.link->submit(copy(3, 1, 1));
    f.link->submit(copy(4, 5, 1));
    f.link->wait(Ticket{4});
    f.read(1);
    CHECK(f.was_read() == 5);
    f.link->drain();
    f.read(1);
    CHECK(f.was_read() == 5);
  }
}

TEST_CASE("CUDA link: a prefetch whose slot is still read holds no demand copy up - emulated") {
  StreamFixture f;
  emulated::hold(*f.compute);
  f.read(1);
  f.link->fence(Fence{1});
  f.link->submit(copy(3, 3, 1, Fence{1}));
  f.link->submit(copy(4, 4, 2));
  while (f.link->seen().demand_landed < Ticket{4}) {
  }
  CHECK(f.link->seen().prefetch_begun < Ticket{3});
  emulated::hold(*f.compute, false);
  while (f.link->seen().prefetch_landed < Ticket{3}) {
  }
  f.link->wait(Ticket{3});
  f.read(1);
  CHECK(f.was_read() == 3);
}

TEST_CASE("CUDA link: a wait for a queued prefetch brings it, whatever stands before it") {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    StreamFixture f(seed, {.ahead_bytes = 1});
    f.link->fence(Fence{1});
    for (std::uint64_t t = 3; t <= 9; t += 2)
      f.link->submit(copy(t, static_cast<std::uint16_t>(t / 2), static_cast<std::uint32_t>(t / 2), Fence{1}));
    f.link->wait(Ticket{9});
    f.read(4);
    CHECK(f.was_read() == 4);
  }
}

TEST_CASE("CUDA link: neighbours that are wanted together go as one copy") {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    StreamFixture f(seed, {.log = true});
    f.link->fence(Fence{1});
    f.link->submit(copy(2, 3, 1));
    f.link->submit(copy(4, 4, 2, Fence{1}));
    f.link->submit(copy(6, 5, 3));
    f.link->submit(copy(8, 7, 4));  // no neighbour in host memory
    f.link->submit(copy(10, 6, 5));
    for (std::uint32_t i = 0; i < 3; ++i) {
      f.link->wait(Ticket{2U + 2U * i});
      f.read(1 + i, i);
    }
    for (std::uint32_t i = 0; i < 3; ++i) CHECK(f.was_read(i) == static_cast<int>(3 + i));
    f.link->drain();
    CHECK(f.link->transfers() == 3);
    CHECK(f.link->spans().size() == 5);
    CHECK(f.link->bytes_copied() == 5 * expert_bytes);
    CHECK(f.link->seen().demand_landed == Ticket{10});
  }
}

TEST_CASE("CUDA link: large neighbours go one by one, so that the first is there first") {
  emulated::reset(seeded(1));
  constexpr std::uint64_t large = std::uint64_t{3} << 20U;
  const ModelShape m = model(1, 6, 1, 1, large);
  const Pinned experts(6 * large);
  const Stream compute;
  CudaSlots slots(
      one_pool(m, 6 * large),
      [&](Variant v) -> HeldBytes {
        return View<const std::byte>{experts.data() + v.id.expert * large, static_cast<std::uint32_t>(large)};
      },
      {});
  CudaStream link(slots, compute, {});
  for (std::uint16_t e = 0; e < 6; ++e) link.submit(copy(2U + 2U * e, e, e));
  link.drain();
  CHECK(link.transfers() == 3);  // two reach 4 MiB
}

TEST_CASE("CUDA link: one that may have a neighbour goes with the next call, whatever that is - emulated") {
  StreamFixture f;
  emulated::hold(*f.compute);
  const std::uint64_t before = emulated::calls("cudaMemcpyAsync");
  f.link->submit(copy(2, 3, 1));
  CHECK(emulated::calls("cudaMemcpyAsync") == before);
  SUBCASE("seen") {
    static_cast<void>(f.link->seen());
  }
  SUBCASE("fence") {
    f.link->fence(Fence{1});
  }
  SUBCASE("prefetch") {
    f.link->submit(copy(5, 1, 5));
  }
  SUBCASE("wait") {
    f.link->wait(Ticket{2});
  }
  CHECK(emulated::calls("cudaMemcpyAsync") > before);
  emulated::hold(*f.compute, false);
}

TEST_CASE("CUDA link: waiting for what can never land is an error, not a hang") {
  StreamFixture f;
  f.link->submit(copy(5, 1, 0));
  CHECK_THROWS_AS(f.link->wait(Ticket{2}), LinkError);
  CHECK_THROWS_AS(f.link->wait(Ticket{7}), LinkError);
  f.link->submit(copy(2, 1, 1, Fence{9}));
  CHECK_THROWS_WITH_AS(f.link->wait(Ticket{2}), doctest::Contains("fence not named"), LinkError);
  CHECK_THROWS_WITH_AS(f.link->drain(), doctest::Contains("never named"), LinkError);
  f.link->fence(Fence{9});
  f.link->wait(Ticket{2});
  f.read(1);
  CHECK(f.was_read() == 1);
}

TEST_CASE("CUDA link: ends with copies still queued and on the stream") {
  StreamFixture f(1, {.ahead_bytes = expert_bytes});
  for (std::uint64_t t = 2; t < 200; ++t) f.link->submit(copy(t, 1, static_cast<std::uint32_t>(t % 6)));
}

TEST_CASE("CUDA link: times of the device's clock - emulated") {
  const Nanoseconds before = CudaStream::now();
  StreamFixture f(1, {.log = true}, false);
  for (std::uint64_t t = 2; t <= 8; t += 2)
    f.link->submit(copy(t, static_cast<std::uint16_t>(t % 7), static_cast<std::uint32_t>(t / 2)));
  f.link->drain();
  // The emulated copy takes 1 us and 1 ns a byte; CUDA's milliseconds are floats.
  CHECK(f.link->busy_ns() == doctest::Approx(4 * 5096).epsilon(0.1));
  CHECK(f.link->peak_bytes_per_s() == doctest::Approx(4096 / 5.096e-6).epsilon(0.1));
  CHECK(f.link->spans().front().begin_ns >= before);
}

TEST_CASE("CUDA link: of small copies the time is taken now and then, and stands for the others - emulated") {
  StreamFixture f(1, {}, false);
  const std::uint64_t timed = emulated::calls("cudaEventElapsedTime");
  constexpr std::uint64_t copies = 33;
  for (std::uint64_t i = 1; i <= copies; ++i) {
    f.link->submit(copy(2 * i, static_cast<std::uint16_t>(i * 3 % 8), static_cast<std::uint32_t>(i % 6)));
    f.link->drain();
  }
  CHECK(f.link->bytes_copied() == copies * expert_bytes);
  CHECK(f.link->transfers() == copies);
  CHECK(emulated::calls("cudaEventElapsedTime") - timed == 2 * copies / 11);  // when it began, and what it took
  CHECK(f.link->busy_ns() == doctest::Approx(copies * 5096).epsilon(0.1));
  CHECK(f.link->peak_bytes_per_s() == doctest::Approx(4096 / 5.096e-6).epsilon(0.1));
  CHECK(f.link->spans().empty());
}

TEST_CASE("CUDA link: once a copy has landed, what is left of the next is known while it is on the stream") {
  StreamFixture f;
  CHECK(f.link->seen().link_ns == 0);
  f.link->submit(copy(1, 0, 0));
  f.link->drain();
  CHECK(f.link->seen().link_ns == 0);  // nothing is on the stream
  f.link->fence(Fence{1});
  f.link->submit(copy(3, 1, 1, Fence{1}));
  bool known = false;
  while (f.link->seen().prefetch_landed != Ticket{3}) known = known || f.link->seen().link_ns > 0;
  CHECK(known);
  CHECK(f.link->seen().link_ns == 0);
}

TEST_CASE("CUDA link: bytes that cannot be had, or do not fit, fail the wait") {
  emulated::reset(seeded(1));
  const ModelShape m = model(1, 8, 1, 1, 64);
  const Stream compute;
  for (const bool pinned : {true, false}) {
    CAPTURE(pinned);
    {
      CudaSlots slots(one_pool(m, 4 * 64), [](Variant) -> HeldBytes { throw std::runtime_error("disk"); },
                      {.pinned = pinned});
      CudaStream link(slots, compute, {});
      link.submit(copy(2, 1, 0));
      link.submit(copy(4, 2, 1));
      CHECK_THROWS_WITH_AS(link.wait(Ticket{4}), "a copy failed: disk", LinkError);
      CHECK_THROWS_AS(link.drain(), LinkError);
      CHECK(link.failed() == "disk");
    }
    const Pinned large(65);
    CudaSlots slots(one_pool(m, 4 * 64),
                    [&](Variant) -> HeldBytes {
                      return View<const std::byte>{large.data(), 65};
                    },
                    {.pinned = pinned});
    CudaStream link(slots, compute, {});
    link.submit(copy(2, 1, 0));
    CHECK_THROWS_WITH_AS(link.wait(Ticket{2}), doctest::Contains("65 bytes for slot 0 of 64"), LinkError);
  }
}

TEST_CASE("CUDA link: a prefetch that failed never counts as landed") {
  for (const bool pinned : {true, false}) {
    CAPTURE(pinned);
    emulated::reset(seeded(1));
    const ModelShape m = model(1, 8, 1, 1, 64);
    const Stream compute;
    const Pinned bytes(64);
    CudaSlots slots(one_pool(m, 4 * 64),
                    [&](Variant v) -> HeldBytes {
                      if (v.id.expert == 3) throw std::runtime_error("disk");
                      return View<const std::byte>{bytes.data(), 64};
                    },
                    {.pinned = pinned});
    CudaStream link(slots, compute, {});
    link.submit(copy(3, 1, 0));
    link.drain();
    CHECK(link.seen().prefetch_landed >= Ticket{3});
    link.submit(copy(5, 3, 1));
    link.submit(copy(7, 4, 2));
    CHECK_THROWS_WITH_AS(link.drain(), "a copy failed: disk", LinkError);
    CHECK(link.seen().prefetch_landed < Ticket{5});
  }
}

TEST_CASE("CUDA link: an error of CUDA names the call, and stops the link - emulated") {
  for (const char* call : {"cudaMemcpyAsync", "cudaEventRecord", "cudaMemsetAsync", "cudaEventQuery",
                           "cudaEventCreateWithFlags", "cudaStreamWaitEvent"}) {
    INFO(std::string(call));
    StreamFixture f;
    f.link->fence(Fence{1});
    emulated::fail(call, 1, cudaErrorIllegalAddress);
    std::string why;
    try {
      for (std::uint64_t t = 2; t < 40; t += 2) {
        f.link->submit(copy(t, 1, static_cast<std::uint32_t>(t / 2 % 6), Fence{1}));
        f.link->wait(Ticket{t});
        f.link->fence(Fence{t});
      }
      f.link->drain();
    } catch (const LinkError& e) {
      why = e.what();
    }
    CHECK(why == std::string("a copy failed: ") + call + ": cudaErrorIllegalAddress (" +
                     cudaGetErrorString(cudaErrorIllegalAddress) + ")");
    CHECK_THROWS_AS(f.link->wait(Ticket{2}), LinkError);
  }
}

TEST_CASE("CUDA link: a device that is lost ends waits, and is no hang at the end - emulated") {
  for (std::uint32_t steps = 0; steps < 40; ++steps) {
    StreamFixture f(steps);
    emulated::lose_device(cudaErrorLaunchFailure, steps);
    bool thrown = false;
    try {
      for (std::uint64_t t = 2; t < 2000; t += 2) {
        f.link->submit(copy(t, 1, static_cast<std::uint32_t>(t / 2 % 6)));
        f.link->wait(Ticket{t});
      }
    } catch (const LinkError& e) {
      thrown = std::string(e.what()).find("cudaErrorLaunchFailure") != std::string::npos;
    }
    CHECK(thrown);
  }
}

TEST_CASE(
    "CUDA slots: a budget beyond the device says what is asked and what is free, and a smaller one may follow - "
    "emulated") {
  emulated::Options o = seeded(1);
  o.total_bytes = 1 << 20U;
  emulated::reset(o);
  const ModelShape m = model(1, 8, 1, 1, 1 << 20U);
  auto none = [](Variant) -> HeldBytes { return {}; };
  CHECK_THROWS_WITH_AS(CudaSlots(one_pool(m, 4U << 20U), none, {}),
                       "slots of 4194304 bytes do not fit the device: 1048576 of its 1048576 bytes are free",
                       LinkError);
  CHECK(cudaGetLastError() == cudaSuccess);
  const ModelShape small = model(1, 8, 1, 1, 64);
  const CudaSlots slots(one_pool(small, 4 * 64), none, {});
  CHECK(slots.bytes() == 256);
}

TEST_CASE("CUDA link: memory that is not pinned is staged, and held no longer than that") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    emulated::reset(seeded(seed));
    const ModelShape m = model(1, 8, 1, 1, expert_bytes);
    {
      const Stream compute;
      const Pinned read(6 * expert_bytes);
      std::atomic<int> held = 0;
      CudaSlots slots(one_pool(m, 6 * expert_bytes),
                      [&](Variant v) -> HeldBytes {
                        ++held;
                        auto owner = std::shared_ptr<std::byte[]>(new std::byte[expert_bytes], [&](std::byte* p) {
                          std::memset(p, 0x77, expert_bytes);
                          delete[] p;
                          --held;
                        });
                        std::memset(owner.get(), v.id.expert, expert_bytes);
                        return {{owner.get(), static_cast<std::uint32_t>(expert_bytes)}, owner};
                      },
                      {.pinned = false, .poison = true});
      CudaStream link(slots, compute, {.ahead_bytes = 2 * expert_bytes, .staging_buffers = 2});
      for (std::uint64_t i = 1; i <= 60; ++i) {
        const auto slot = static_cast<std::uint32_t>(i % 6);
        link.fence(Fence{i});
        link.submit(copy(2 * i + (i % 3 == 0 ? 1 : 0), static_cast<std::uint16_t>(i % 8), slot, Fence{i}));
        if (i % 3 == 0 && i % 2 == 0) {
          link.drop(Ticket{2 * i + 1});
        } else {
          link.wait(Ticket{2 * i + (i % 3 == 0 ? 1 : 0)});
          compute.read(read, slot * expert_bytes, slots.slot(slot), expert_bytes);
          compute.synchronize();
          CHECK(std::to_integer<std::uint64_t>(read[slot * expert_bytes]) == i % 8);
          CHECK(std::to_integer<std::uint64_t>(read[(slot + 1) * expert_bytes - 1]) == i % 8);
        }
      }
      link.drain();
      CHECK(held == 0);
      link.submit(copy(200, 1, 0));  // one left at the end
    }
  }
}

TEST_CASE("CUDA link: copies of another pipeline, numbered from anew, stop the link, and none counts as landed") {
  StreamFixture f;
  f.link->submit(copy(4, 1, 0));
  f.link->wait(Ticket{4});
  f.link->drain();
  CHECK(f.link->seen().demand_landed == Ticket{4});
  f.link->submit(copy(2, 2, 1));
  CHECK(f.link->seen().demand_landed == Ticket::none);  // or the other's experts would seem to be there
  CHECK_THROWS_WITH_AS(f.link->wait(Ticket{2}), doctest::Contains("has served another pipeline"), LinkError);
}

TEST_CASE("CUDA link: it serves its own device, whichever is current at a call - emulated") {
  for (const bool poison : {false, true}) {
    emulated::Options o = seeded(1);
    o.devices = 2;
    emulated::reset(o);
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    {
      const ModelShape m = model(1, 8, 1, 1, 64);
      Pinned experts(std::size_t{8} * 64), seen_bytes(64);
      for (std::size_t i = 0; i < experts.size(); ++i) experts[i] = static_cast<std::byte>(i / 64);
      Stream compute;
      CudaSlots slots(
          one_pool(m, 6 * 64),
          [&](Variant v) {
            return View<const std::byte>{experts.data() + v.id.expert * 64U, 64};
          },
          CudaSlots::Options{.pinned = true, .poison = poison});
      CudaStream link(slots, compute, {});
      REQUIRE(cudaSetDevice(0) == cudaSuccess);
      for (std::uint64_t t = 2; t < 20; t += 2) {
        link.submit(copy(t, static_cast<std::uint16_t>(t % 8), 0, Fence{t - 2}));
        link.wait(Ticket{t});
        link.fence(Fence{t});
        int current = -1;
        CHECK(cudaGetDevice(&current) == cudaSuccess);
        CHECK(current == 0);
      }
      REQUIRE(cudaSetDevice(1) == cudaSuccess);
      compute.read(seen_bytes, 0, slots.slot(0), 64);
      compute.synchronize();
      CHECK(std::to_integer<int>(seen_bytes.data()[0]) == 18 % 8);
    }
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
  }
}

TEST_CASE("CUDA link: what keeps it from being made is named - emulated") {
  StreamFixture f;
  emulated::fail("cudaEventCreateWithFlags", 1, cudaErrorMemoryAllocation);
  CHECK_THROWS_WITH_AS(CudaStream(*f.slots, *f.compute, {}), doctest::Contains("cudaEventCreateWithFlags"), LinkError);
}
