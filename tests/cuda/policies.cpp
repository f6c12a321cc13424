// Policies and cores keep their state in one block without pointers. If the block is copied byte for byte, even in the middle
// of a load, it goes on in another place with the same answers. policies.cu runs the same load on a device.
#include "cuda/policies.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace ferry;
using namespace ferry::test::device;

namespace {

/// The load's digest over a block that moves before step `moves`; 0xff is written over the place that it leaves.
template <class Parameters>
std::uint64_t digest(const Parameters& parameters, std::uint32_t moves) {
  const std::size_t bytes = block_bytes(parameters);
  const Block here(bytes, 0), there(bytes, storage_alignment);
  Load load;
  drive(*create(here.data(), parameters), load, moves);
  std::memcpy(there.data(), here.data(), bytes);
  std::memset(here.data(), 0xff, bytes);
  drive(*reinterpret_cast<Subject<Parameters>*>(there.data()), load, load_steps - moves);
  return load.digest.value();
}

template <class Check>
void for_each_subject(const Check& check) {
  auto named = [&](const char* name, const auto& parameters) {
    const std::string subject = name;
    CAPTURE(subject);
    check(parameters);
  };
  for_each_policy(named);
  for_each_core(named);
}

/// A cache policy that satisfies the concept, but that a device could not use.
class WithPointer {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    carve(next_, 1);
    slots_ = pool.slots;
    if (!carve.measuring()) pointer_ = next_.data();
  }
  void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  std::uint32_t victim(Variant /*incoming*/, Barred /*barred*/) const noexcept { return *pointer_ % slots_; }
  void replace(std::uint32_t /*slot*/, Variant /*what*/, bool /*demand*/) noexcept { ++*pointer_; }

 private:
  Array<std::uint32_t> next_;
  std::uint32_t* pointer_ = nullptr;
  std::uint32_t slots_ = 0;
};
static_assert(CachePolicy<WithPointer>);

}  // namespace

TEST_CASE("policies and cores answer alike wherever their block lies") {
  for_each_subject([](const auto& parameters) { CHECK(digest(parameters, 0) == digest(parameters, load_steps)); });
}

TEST_CASE("policies and cores whose block moves in the middle of a load go on as before") {
  for_each_subject(
      [](const auto& parameters) { CHECK(digest(parameters, load_steps / 2) == digest(parameters, load_steps)); });
}

TEST_CASE("a policy that keeps a pointer in its block is found out") {
  CHECK(digest(WithPointer{}, 0) != digest(WithPointer{}, load_steps));
  CHECK(digest(WithPointer{}, load_steps / 2) != digest(WithPointer{}, load_steps));
}

TEST_CASE("the load for host and device reaches every outcome") {
  Outcomes all;
  for_each_core([&](const char* name, const auto& config) {
    const std::string stack = name;
    CAPTURE(stack);
    const Block block(block_bytes(config), 0);
    auto* core = create(block.data(), config);
    Load load;
    drive(*core, load, load_steps);
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      const Outcomes& o = core->counters().of(phase);
      CHECK(o.requests > 0);
      all.hits += o.hits;
      all.late_hits += o.late_hits;
      all.misses += o.misses;
      all.substituted += o.substituted;
      all.skipped += o.skipped;
      all.host_computed += o.host_computed;
    }
    const PrefetchCounts& prefetch = core->counters().prefetch;
    if (core->look_ahead_depth() == 0) return;
    CHECK(prefetch.used > 0);
    CHECK(prefetch.dropped > 0);
    CHECK(prefetch.wasted_bytes > 0);
  });
  CHECK(all.hits > 0);
  CHECK(all.late_hits > 0);
  CHECK(all.misses > 0);
  CHECK(all.substituted > 0);
  CHECK(all.skipped > 0);
  CHECK(all.host_computed > 0);
}
