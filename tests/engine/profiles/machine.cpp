// Machine files: their costs, worked by hand, and what is refused in them.
#include "profiles/machine.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <utility>

#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "engine/fixtures/tiny_shape.hpp"
#include "support/json.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

Json speed(double value) {
  return {{"value", value}, {"source", "made up"}};
}

/// A machine of round numbers. `reference`: a shape file.
Json round_machine(const std::string& reference) {
  return {{"name", "round"},
          {"link",
           {{"peak_bytes_per_s", speed(2e9)},
            {"effective_bytes_per_s", speed(1e9)},
            {"latency_s", speed(3e-6)},
            {"beside_host", speed(0.25)}}},
          {"device_memory", {{"peak_bytes_per_s", speed(2e9)}, {"effective_bytes_per_s", speed(1e9)}}},
          {"device_compute", {{"peak_flops", speed(4e9)}, {"effective_flops", speed(1e9)}}},
          {"device_launch_s", speed(1e-5)},
          {"host_memory",
           {{"peak_bytes_per_s", speed(1e9)}, {"effective_bytes_per_s", speed(5e8)}, {"beside_copies", speed(0.5)}}},
          {"host_compute", {{"peak_flops", speed(2e8)}, {"effective_flops", speed(1e8)}}},
          {"host_launch_s", speed(2e-6)},
          {"activations", {{"latency_s", speed(4e-6)}, {"bytes_per_s", speed(1e8)}}},
          {"stated",
           {{"reference_model", reference},
            {"bits_per_weight", 16},
            {"expert_transfer_s", speed(0.0003)},
            {"layer_compute_s", speed(0.0005)}}}};
}

/// 15000 weights an expert, 30000 bytes; attention and gate are 9600 + 100 * 4 = 10000 weights, 20000 bytes.
Json round_shape() {
  return {{"name", "round-model"}, {"layers", 2},
          {"experts", 4},          {"top_k", 2},
          {"hidden", 100},         {"expert_width", 50},
          {"shared_width", 0},     {"attention_params", 9600},
          {"bits_per_weight", 16}, {"dense_bits_per_weight", 16}};
}

/// The round machine, with a change, if any, as read from a file.
Machine read_round(const std::function<void(Json&)>& change = [](Json&) {}) {
  const TemporaryFolder folder;
  write_file(folder.path() / "reference.json", round_shape().dump());
  Json machine = round_machine((folder.path() / "reference.json").string());
  change(machine);
  write_file(folder.path() / "round.json", machine.dump());
  return read_machine((folder.path() / "round.json").string());
}

std::string refused_machine(const std::function<void(Json&)>& change) {
  return refusal("round.json", [&] { read_round(change); });
}

}  // namespace

TEST_CASE("every machine that comes with ferry can be used") {
  const auto names = machine_names();
  REQUIRE(names.size() >= 8);
  const ModelFacts model = read_shape("mixtral-8x7b");
  std::size_t stated = 0;
  for (const std::string& name : names) {
    CAPTURE(name);
    const Machine m = read_machine(name);
    CHECK(m.name == name);
    for (const Machine::Speed& s : {m.link, m.device_memory, m.device_compute, m.host_memory, m.host_compute}) {
      CHECK(s.peak >= s.effective);
    }
    for (const CostSource source : {CostSource::effective, CostSource::peak}) {
      m.costs(model.work, source).validate(model.model);
    }
    CHECK(m.ratio() > 0);
    if (m.stated) {
      ++stated;
      m.costs(model.work, CostSource::stated).validate(model.model);
    } else {
      CHECK(says(refusal(name, [&] { static_cast<void>(m.costs(model.work, CostSource::stated)); }),
                 {"no \"stated\" times"}));
    }
  }
  CHECK(stated >= 4);
}

TEST_CASE("effective and peak costs of a machine, worked by hand") {
  const Machine m = read_round();
  CHECK(m.name == "round");
  const ModelFacts model = read_tiny(round_shape());
  const Costs e = m.costs(model.work, CostSource::effective);
  CHECK(e.layer_ns == 0);
  // 20000 bytes at 10^9 a second are 20000 ns, and so are 2 * 10000 operations; a start takes 10000.
  CHECK(e.dense(0, 1) == 30'000);
  CHECK(e.dense(1, 3) == 70'000);  // 60000 operations
  // An expert: 30000 bytes, and 6 * 100 * 50 = 30000 operations a row.
  CHECK(e.on_device(0, 30'000, 1) == 40'000);
  CHECK(e.on_device(0, 30'000, 2) == 70'000);
  CHECK(e.on_host(0, 30'000, 1) == 302'000);  // a start; 30000 operations at 10^8; 60000 ns of bytes at 5 * 10^8
  CHECK(e.host_time(0, 30'000, 1).beside == 302'000);
  CHECK(e.host_time(0, 200'000, 1).alone == 402'000);
  CHECK(e.host_time(0, 200'000, 1).beside == 802'000);  // half the bytes a second
  CHECK(e.activations(0, 1) == 8'000);                  // 4000 of latency, 100 floats at 10^8 bytes a second
  CHECK(e.activations(0, 3) == 16'000);
  CHECK(e.link_bytes_per_s_beside_host == 250'000'000);
  CHECK(e.copy(30'000) == 33'000);                        // 3000 of latency
  const Costs p = m.costs(model.work, CostSource::peak);  // nothing but the data sheets' speeds
  CHECK(p.dense(0, 1) == 10'000);                         // 20000 bytes at 2 * 10^9; 5000 ns of operations at 4 * 10^9
  CHECK(p.dense(0, 3) == 15'000);                         // 60000 operations
  CHECK(p.on_device(0, 30'000, 1) == 15'000);
  CHECK(p.on_host(0, 30'000, 1) == 150'000);
  CHECK(p.host_time(0, 200'000, 1).alone == 200'000);
  CHECK(p.host_time(0, 200'000, 1).beside == 400'000);
  CHECK(p.activations(0, 1) == 4'000);
  CHECK(p.copy(30'000) == 15'000);
  CHECK(p.layer_ns == 0);
}

TEST_CASE("stated costs: the paper's times come out for its model") {
  const Machine m = read_round();
  const ModelFacts model = read_tiny(round_shape());
  const Costs s = m.costs(model.work, CostSource::stated);
  CHECK(s.copy(30'000) == 300'000);  // expert_transfer_s; 10^8 bytes a second, no latency on top
  CHECK(s.link_bytes_per_s == 100'000'000);
  CHECK(s.link_bytes_per_s_beside_host == 25'000'000);
  // Effective: 30000 + 2 experts of 40000 = 110000 of the stated 500000; the rest goes to three starts, 130000 each.
  CHECK(s.device.start_ns == 140'000);
  CHECK(s.host.start_ns == 132'000);
  CHECK(m.costs({{1, 2, 3}}, CostSource::stated).device.start_ns == 140'000);  // whatever runs on it
  CHECK(s.dense(0, 1) + 2 * s.on_device(0, 30'000, 1) == 500'000);
  CHECK(m.reference_model() == "round-model");
  CHECK(m.ratio() == doctest::Approx(0.6));  // 0.3 ms : 0.5 ms
  // Stated for 8 bits: an expert of 15000 bytes took 0.3 ms.
  const Machine eight = read_round([](Json& j) { j["stated"]["bits_per_weight"] = 8; });
  CHECK(eight.costs(model.work, CostSource::stated).link_bytes_per_s == 50'000'000);
  // If a layer is stated to be faster than its parts, nothing is left for starts.
  const Machine fast = read_round([](Json& j) { j["stated"]["layer_compute_s"] = speed(0.0001); });
  CHECK(fast.costs(model.work, CostSource::stated).device.start_ns == 10'000);
  // Nothing stated: the ratio is that of Mixtral-8x7B. An expert has 352321536 bytes, as many operations a row, and the
  // dense part 2 * 41975808 of both; all at 10^9 a second.
  const Machine silent = read_round([](Json& j) { j.erase("stated"); });
  CHECK_FALSE(silent.stated);
  CHECK(silent.reference_model() == "mixtral-8x7b");
  CHECK(silent.ratio() == doctest::Approx((352'321'536.0 + 3'000) / (83'951'616.0 + 2 * 352'321'536.0 + 3 * 10'000)));
  CHECK(says(refusal("round", [&] { static_cast<void>(silent.costs(model.work, CostSource::stated)); }),
             {"no \"stated\" times"}));
}

TEST_CASE("small experts that count as large ones take the same times") {
  const Machine m = read_round();
  const ModelFacts reference = read_tiny(round_shape());
  ModelShape small;
  small.layers = 7;
  small.experts = 3;
  small.top_k = 1;
  small.expert_bytes = {{0, 0, 0, 0, 3'000}};  // a tenth
  Costs full = m.costs(reference.work, CostSource::effective);
  full.prefetch_chunk_bytes = 5'000;
  const Costs c = as_if(full, reference, small);
  CHECK(c.prefetch_chunk_bytes == 500);
  CHECK(c.link_bytes_per_s == 100'000'000);
  CHECK(c.link_bytes_per_s_beside_host == 25'000'000);
  CHECK(c.device.bytes_per_s == 100'000'000);
  CHECK(c.host.bytes_per_s == 50'000'000);
  CHECK(c.device.flops == full.device.flops);
  CHECK(c.host.flops == full.host.flops);
  REQUIRE(c.work.size() == 1);
  CHECK(c.work[0].dense_bytes == 2'000);
  CHECK(c.work[0].dense_operations == 20'000);
  CHECK(c.work[0].expert_operations == 30'000);
  CHECK(c.copy(3'000) == full.copy(30'000));
  for (const std::uint32_t rows : {1U, 3U}) {
    CHECK(c.on_device(0, 3'000, rows) == full.on_device(0, 30'000, rows));
    CHECK(c.on_host(0, 3'000, rows) == full.on_host(0, 30'000, rows));
    CHECK(c.host_time(0, 20'000, rows).beside == full.host_time(0, 200'000, rows).beside);
    CHECK(c.activations(0, rows) == full.activations(0, rows));
    CHECK(c.dense(0, rows) == full.dense(0, rows));
  }
  // A cost that is not zero stays above zero: 10000 bytes would become 1 / 3.
  small.expert_bytes = {{0, 0, 0, 0, 1}};
  ModelFacts thin = reference;
  thin.work[0].dense_bytes = 10'000;
  CHECK(as_if(full, thin, small).work[0].dense_bytes == 1);
}

TEST_CASE("a field of a machine that nobody knows is refused: misspelt, it would be without effect") {
  CHECK(says(refused_machine([](Json& j) { j["latensy_s"] = 1; }), {"field \"latensy_s\" is not known", "link"}));
  for (const char* object : {"link", "device_memory", "host_compute", "activations", "stated"}) {
    CHECK(says(refused_machine([&](Json& j) { j[object]["bytes_per_sec"] = 1; }),
               {object, "\"bytes_per_sec\" is not known"}));
  }
  CHECK(says(refused_machine([](Json& j) { j["link"]["latency_s"]["valu"] = 1; }),
             {"latency_s", "\"valu\" is not known"}));
  CHECK(refused_machine([](Json& j) {
          j["note"] = j["link"]["note"] = j["link"]["latency_s"]["note"] = "mine";
        }).empty());
}

TEST_CASE("a GPU of today is a machine") {  // a B200: 2.25e15 operations a second in bf16
  CHECK(refused_machine([](Json& j) { j["device_compute"]["peak_flops"]["value"] = 2.25e15; }).empty());
  CHECK(says(refused_machine([](Json& j) { j["device_compute"]["peak_flops"]["value"] = 1.1e16; }),
             {"device_compute: peak_flops", "from 1 to 1e+16"}));
  CHECK(says(refused_machine([](Json& j) { j["link"]["peak_bytes_per_s"]["value"] = 2.25e15; }),
             {"link: peak_bytes_per_s", "from 1 to 1e+15"}));
}

TEST_CASE("a damaged machine names the field") {
  const std::pair<const char*, std::vector<const char*>> objects[] = {
      {"link", {"peak_bytes_per_s", "effective_bytes_per_s", "latency_s", "beside_host"}},
      {"device_memory", {"peak_bytes_per_s", "effective_bytes_per_s"}},
      {"device_compute", {"peak_flops", "effective_flops"}},
      {"host_memory", {"peak_bytes_per_s", "effective_bytes_per_s", "beside_copies"}},
      {"host_compute", {"peak_flops", "effective_flops"}},
      {"activations", {"latency_s", "bytes_per_s"}},
      {"stated", {"expert_transfer_s", "layer_compute_s"}}};
  for (const auto& entry : objects) {
    const std::string object = entry.first;
    CAPTURE(object);
    CHECK(says(refused_machine([&](Json& j) { j[object] = 5; }), {object, "expected a JSON object"}));
    if (object != "stated") {
      CHECK(says(refused_machine([&](Json& j) { j.erase(object); }), {"field \"" + object + "\" is missing"}));
    }
    for (const std::string field : entry.second) {
      CAPTURE(field);
      auto damaged = [&](const std::function<void(Json&)>& damage) {
        const std::string message = refused_machine([&](Json& j) { damage(j[object][field]); });
        CHECK(says(message, {object, field}));
        return message;
      };
      CHECK(says(refused_machine([&](Json& j) { j[object].erase(field); }), {object, field + "\" is missing"}));
      damaged([](Json& j) { j = 1e9; });
      CHECK(says(damaged([](Json& j) { j.erase("source"); }), {"\"source\" is missing"}));
      CHECK(says(damaged([](Json& j) { j.erase("value"); }), {"\"value\" is missing"}));
      CHECK(says(damaged([](Json& j) { j["value"] = "fast"; }), {"\"value\": expected", "fast"}));
      CHECK(says(damaged([](Json& j) { j["value"] = -1; }), {"\"value\": expected", "-1"}));
      CHECK(says(damaged([](Json& j) { j["value"] = 1e300; }), {"\"value\": expected", "1e+300"}));
      if (field != "latency_s") {
        const std::string refused = damaged([](Json& j) { j["value"] = 0; });
        CHECK(says(refused, {"\"value\": expected a number from ", ", got 0"}));
        CHECK_FALSE(says(refused, {"from 0 to"}));
      }
    }
  }
  CHECK(says(refused_machine([](Json& j) { j["host"] = 5; }), {"\"host\": expected a string"}));
  CHECK(says(refused_machine([](Json& j) { j["device"] = {1}; }), {"\"device\": expected a string"}));
  CHECK(says(refused_machine([](Json& j) {
               j["device_memory"]["bytes"] = {{"value", "24 GB"}, {"source", "x"}};
             }),
             {"device_memory: bytes", "24 GB"}));
  CHECK(says(refused_machine([](Json& j) { j.erase("device_launch_s"); }), {"\"device_launch_s\" is missing"}));
  CHECK(says(refused_machine([](Json& j) { j["device_launch_s"]["value"] = -1; }), {"device_launch_s", "from 0"}));
  CHECK(says(refused_machine([](Json& j) { j.erase("name"); }), {"\"name\" is missing"}));
  CHECK(says(refused_machine([](Json& j) { j["stated"].erase("reference_model"); }),
             {"stated", "\"reference_model\" is missing"}));
  CHECK(
      says(refused_machine([](Json& j) { j["stated"].erase("bits_per_weight"); }), {"stated", "\"bits_per_weight\""}));
  CHECK(says(refused_machine([](Json& j) { j["stated"]["bits_per_weight"] = 0; }), {"stated", "\"bits_per_weight\""}));
  CHECK(says(refusal("model shape", [] { read_round([](Json& j) { j["stated"]["reference_model"] = "mixtral"; }); }),
             {"did you mean \"mixtral-8x7b\"?"}));
  CHECK(says(refusal("machine", [] { read_machine("rtx3090"); }), {"unknown machine \"rtx3090\"", "rtx3090-pcie3"}));
  CHECK(says(refusal("/nowhere/m.json", [] { read_machine("/nowhere/m.json"); }), {"cannot open"}));
}

TEST_CASE("a machine's times and widths that cannot be true are refused when it is read") {
  // A start of 9 * 10^15 s is no number of nanoseconds; 10^30 bits a weight no number of bytes.
  CHECK(says(refused_machine([](Json& j) { j["device_launch_s"]["value"] = 9e15; }), {"device_launch_s"}));
  CHECK(says(refused_machine([](Json& j) { j["link"]["latency_s"]["value"] = 9e15; }), {"latency_s"}));
  CHECK(says(refused_machine([](Json& j) { j["stated"]["bits_per_weight"] = 1e30; }), {"bits_per_weight"}));
}
