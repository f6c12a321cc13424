#include "ferry/sim/costs.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <random>

#include "support/shapes.hpp"

using namespace ferry;

TEST_CASE("durations are exact, and rounded up to whole nanoseconds") {
  CHECK(duration_ns(0, 5) == 0);
  CHECK(duration_ns(16, 16'000'000'000) == 1);
  CHECK(duration_ns(17, 16'000'000'000) == 2);  // 1.0625 ns
  CHECK(duration_ns(1, 3) == 333'333'334);
  CHECK(duration_ns(3, 1) == 3'000'000'000);
  CHECK(duration_ns(7, 0) == 0);  // never the limit
  CHECK(duration_ns(1, 1'000'000'000'000'000) == 1);
  // Against 128-bit arithmetic.
  std::mt19937_64 random(3);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t amount = random() >> 20U;
    const std::uint64_t per_s = random() % 1'000'000'000'000'000 + 50'000;
    __extension__ using Wide = unsigned __int128;
    const Wide exact = (Wide{amount} * 1'000'000'000 + per_s - 1) / per_s;
    CHECK(static_cast<std::uint64_t>(duration_ns(amount, per_s)) == static_cast<std::uint64_t>(exact));
  }
}

TEST_CASE("a processor takes what the slower of bytes and operations needs, and its start") {
  const Processor p{1'000'000'000, 2'000'000'000, 10};  // 1 byte or 2 operations a nanosecond
  CHECK(p(100, 100) == 110);
  CHECK(p(100, 300) == 160);
  CHECK(p(0, 0) == 10);
  const Processor free;
  CHECK(free(1000, 1000) == 0);
}

TEST_CASE("the costs of a layer by hand") {
  Costs c;
  c.device = {1'000'000'000, 4'000'000'000, 100};
  c.host = {500'000'000, 1'000'000'000, 7};
  c.link_bytes_per_s = 250'000'000;
  c.link_latency_ns = 30;
  c.layer_ns = 1000;
  c.work = {{2000, 3000, 400}, {1000, 8000, 800}};
  CHECK(c.dense(0, 1) == 1000 + 100 + 2000);
  CHECK(c.dense(0, 4) == 1000 + 100 + 3000);  // 4 * 3000 operations, 4 a nanosecond
  CHECK(c.dense(1, 1) == 1000 + 100 + 2000);
  CHECK(c.on_device(0, 500, 1) == 100 + 500);
  CHECK(c.on_device(1, 500, 4) == 100 + 800);
  CHECK(c.on_host(0, 500, 1) == 7 + 1000);
  CHECK(c.on_host(0, 500, 3) == 7 + 1200);
  CHECK(c.copy(500) == 30 + 2000);
  CHECK(c.host_time(0, 500, 1).beside == 7 + 1000);  // as alone
  c.host_bytes_per_s_beside_copies = 400'000'000;
  CHECK(c.host_time(0, 500, 1).alone == 7 + 1000);
  CHECK(c.host_time(0, 500, 1).beside == 7 + 1250);
  CHECK(c.host_time(0, 500, 4).beside == 7 + 1600);  // operations are the limit, either way
  CHECK(c.activations(0, 3) == 0);
  c.activations_latency_ns = 50;
  c.activations_bytes_per_s = 100'000'000;
  c.work[0].activation_bytes = 8;
  CHECK(c.activations(0, 3) == 50 + 240);
}

TEST_CASE("a share of an amount is exact where the product does not fit in 64 bits") {
  CHECK(share_of(7, 3, 2) == 10);
  CHECK(share_of(0, 5, 9) == 0);
  constexpr std::uint64_t most = (1ULL << 42) - 1;
  CHECK(share_of(most, most, most) == most);
  CHECK(share_of(most, most - 1, most) == most - 1);
  CHECK(share_of(most - 1, most - 1, most) == most - 2);  // (m - 1)^2 / m = m - 2 + 1 / m
  CHECK(share_of(3'000'000'000'000, 1'000'000'000'003, 2'000'000'000'000) == 1'500'000'000'004);
  CHECK(share_of(most, 1, 2) == most / 2);
}

TEST_CASE("costs that cannot be true are refused") {
  ModelShape model;
  model.layers = 3;
  model.experts = 4;
  model.top_k = 1;
  model.max_rows = 8;
  model.expert_bytes = {ExpertBytes{0, 0, 0, 0, 1000}};
  auto refusal = [&](const std::function<void(Costs&)>& change) -> std::string {
    Costs c;
    c.work = {{1000, 1000, 1000}};
    change(c);
    try {
      c.validate(model);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refusal([](Costs&) {}).empty());
  CHECK(refusal([](Costs& c) { c.work.resize(2); }) == "costs: work has 2 entries, expected 1 or 3 (layers)");
  CHECK(refusal([](Costs& c) { c.link_bytes_per_s = 0; }) == "costs: the link needs 1 to 10^15 bytes a second");
  CHECK(refusal([](Costs& c) { c.layer_ns = -1; }) == "costs: latencies must be 0 to 1000 s");
  CHECK(refusal([](Costs& c) { c.host.start_ns = -1; }) == "costs: a processor's start must be 0 to 1000 s");
  CHECK(refusal([](Costs& c) { c.device.flops = 20'000'000'000'000'000; }) ==
        "costs: a processor is faster than 10^16 a second");
  CHECK(refusal([](Costs& c) { c.link_bytes_per_s = 1; }) == "costs: copying an expert would take more than 1000 s");
  CHECK(refusal([](Costs& c) { c.device.bytes_per_s = 1; }) ==
        "costs: reading a layer's dense weights would take more than 1000 s");
  CHECK(refusal([](Costs& c) { c.host.bytes_per_s = 1; }) ==
        "costs: reading an expert on the host would take more than 1000 s");
  CHECK(refusal([](Costs& c) { c.host_bytes_per_s_beside_copies = 1; }) ==
        "costs: reading an expert on the host beside copies would take more than 1000 s");
  CHECK(refusal([](Costs& c) { c.activations_latency_ns = -1; }) == "costs: latencies must be 0 to 1000 s");
  CHECK(refusal([](Costs& c) {
          c.activations_bytes_per_s = 1;
          c.work[0].activation_bytes = 1000;
        }) == "costs: a layer's activations would take more than 1000 s");
  CHECK(refusal([](Costs& c) { c.device.flops = 8; }) == "costs: a layer's operations would take more than 1000 s");
  CHECK(refusal([](Costs& c) { c.work[0].expert_operations = ~0ULL / 4; }) ==
        "costs: a layer's operations do not fit in 64 bits");
}

TEST_CASE("what takes longer than there is time takes as long as can be") {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  CHECK(duration_ns(~std::uint64_t{0}, 1) == most);
  CHECK(duration_ns(9'223'372'036, 1) == 9'223'372'036'000'000'000);
  CHECK(duration_ns(~std::uint64_t{0}, 1'000'000'000'000'000) == 18'446'744'073'710);
  Costs c;
  c.device = {1, 1, most};
  c.layer_ns = c.link_latency_ns = c.activations_latency_ns = most;
  c.work = {{std::uint64_t{1} << 40U, 5, 5, 5}};
  c.activations_bytes_per_s = 1;
  CHECK(c.dense(0, 1) == most);
  CHECK(c.copy(1) == most);
  CHECK(c.activations(0, 1) == most);
  CHECK(layer_costs(c, test::model(1, 4, 1)).host_start_ns == most);
}
