// Searches for parameters against brute force, stack files, and the commands that make and take them.
#include "calibrate/calibrate_stack.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <map>
#include <numeric>
#include <set>

#include "engine/fixtures/command.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "engine/fixtures/shell.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "stacks/parameters.hpp"
#include "stacks/stack_config.hpp"
#include "stacks/stack_file.hpp"
#include "support/errors.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

/// A loss that falls, and bytes that rise, with T1 and T2: sums over quarters of the grid, with many equal values.
struct Surface {
  std::uint32_t steps;
  std::vector<std::vector<ChoiceCost>> at;  ///< [t1][t2]

  Surface(std::uint32_t n, Random& random) : steps(n), at(n + 1, std::vector<ChoiceCost>(n + 1)) {
    for (std::uint32_t a = 0; a <= n; ++a) {
      for (std::uint32_t b = 0; b <= n; ++b) {
        const bool adds_loss = random.below(3) == 0, adds_bytes = random.below(3) == 0;
        for (std::uint32_t i = 0; i <= n; ++i) {
          for (std::uint32_t j = 0; j <= n; ++j) {
            if (adds_loss && i < a && j < b) at[i][j].loss_percent += 0.1;
            if (adds_bytes && i >= a && j >= b) ++at[i][j].bytes;
          }
        }
      }
    }
  }
};

TEST_CASE("the thresholds that are found are the best of all, in no more measurements than said") {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    const std::uint32_t n = 1 + random.below(10);
    const Surface s(n, random);
    const double most = 0.1 * random.below(30) + 0.05;
    std::uint32_t promised = n + 1;
    const auto found = find_thresholds(n, most, [&](double t1, double t2, std::uint32_t left) {
      CHECK(left >= 1);
      CHECK(left <= promised);
      promised = left - 1;
      return s.at[static_cast<std::size_t>(t1 * n + 0.5)][static_cast<std::size_t>(t2 * n + 0.5)];
    });
    std::optional<std::uint64_t> least;
    for (std::uint32_t i = 0; i <= n; ++i) {
      for (std::uint32_t j = i; j <= n; ++j) {
        if (s.at[i][j].loss_percent <= most) least = std::min(least.value_or(~0ULL), s.at[i][j].bytes);
      }
    }
    REQUIRE(found.best.has_value() == least.has_value());
    if (!least) continue;
    const ThresholdChoice& best = found.tried[*found.best];
    CHECK(best.cost.bytes == *least);
    CHECK(best.cost.loss_percent <= most);
    CHECK(best.t1 <= best.t2);
  }
  // Only the neutral pair is good enough, so all other measurements are in vain.
  const auto neutral = find_thresholds(4, 1, [](double t1, double, std::uint32_t) {
    return ChoiceCost{t1 < 1 ? 2.0 : 0.0, 1};
  });
  REQUIRE(neutral.best);
  CHECK(neutral.tried[*neutral.best].t1 == 1);
  CHECK(neutral.tried.size() == 5);
}

TEST_CASE("the number that is found is the largest that loses no more, and was measured") {
  Random random(6);
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t last = random.below(101), good = random.below(last + 2);  // 0 to good - 1 are good enough
    std::uint32_t promised = static_cast<std::uint32_t>(std::bit_width(last + 1)), measured = 0;
    const auto found = find_largest(last, 1, [&](std::uint32_t step, std::uint32_t left) {
      CHECK(left >= 1);
      CHECK(left <= promised);
      promised = left - 1;
      ++measured;
      return ChoiceCost{step < good ? 1.0 : 1.1, 0};
    });
    CHECK(promised <= 1);  // how many were said to be left was right to within one
    CHECK(measured + 1 >= static_cast<std::uint32_t>(std::bit_width(last + 1)));
    REQUIRE(found.best.has_value() == (good > 0));
    if (found.best) CHECK(found.tried[*found.best].step == good - 1);
  }
}

TEST_CASE("a search that is stopped keeps what it has, and says so") {
  for (std::uint32_t runs = 0; runs < 6; ++runs) {
    CAPTURE(runs);
    std::uint32_t left = runs;
    auto stops = [&]() { return left-- == 0; };
    const auto pair = find_thresholds(8, 1, [&](double t1, double t2, std::uint32_t) -> std::optional<ChoiceCost> {
      if (stops()) return {};
      return ChoiceCost{0, static_cast<std::uint64_t>(100 * (2 - t1 - t2) + 100)};
    });
    CHECK(pair.stopped);
    CHECK(pair.tried.size() == runs);
    CHECK(pair.best.has_value() == (runs > 0));
    if (pair.best) CHECK(*pair.best == 0);  // T2 falls during the search, and here bytes grow
    left = std::min(runs, 3U);
    const auto number = find_largest(100, 1, [&](std::uint32_t step, std::uint32_t) -> std::optional<ChoiceCost> {
      if (stops()) return {};
      return ChoiceCost{step > 60 ? 2.0 : 0.0, 0};  // 50, 76, 63
    });
    CHECK(number.stopped);
    CHECK(number.tried.size() == std::min(runs, 3U));
    REQUIRE(number.best.has_value() == (runs > 0));
    if (number.best) CHECK(number.tried[*number.best].step == 50);
  }
  CHECK_FALSE(find_largest(3, 1, [](std::uint32_t, std::uint32_t) { return ChoiceCost{}; }).stopped);
  const auto some = measure_all(
      50, [](std::size_t i) -> std::optional<std::uint64_t> { return i < 20 ? std::optional(i) : std::nullopt; },
      [](std::uint64_t, std::uint64_t) {});
  for (std::size_t i = 0; i < 50; ++i) CHECK(some[i] == (i < 20 ? std::optional<std::uint64_t>(i) : std::nullopt));
}

TEST_CASE("mixtures of four weights are all there are, each once") {
  const std::vector<CacheWeights> all = weight_mixtures(100);
  CHECK(all.size() == 286);  // 13 choose 3
  CHECK(all.front() == CacheWeights{1000, 0, 0, 0});
  CHECK(std::set<CacheWeights>(all.begin(), all.end()).size() == all.size());
  for (const CacheWeights& w : all) CHECK(std::accumulate(w.begin(), w.end(), 0U) == 1000);
  CHECK(weight_mixtures(250).size() == 35);  // 7 choose 3
}

TEST_CASE("choices are measured each once, in whatever order, and what one throws ends them all") {
  constexpr std::size_t count = 100;
  std::uint64_t shown = 0;
  auto show = [&](std::uint64_t done, std::uint64_t total) {
    CHECK(done == ++shown);
    CHECK(total == count);
  };
  const auto costs = measure_all(
      count, [](std::size_t i) { return i * i; }, show);
  CHECK(shown == count);
  REQUIRE(costs.size() == count);
  for (std::size_t i = 0; i < count; ++i) CHECK(costs[i] == i * i);
  auto fails = [](std::size_t i) -> std::uint64_t { return i == 50 ? throw InputError("fifty") : i; };
  CHECK_THROWS_WITH_AS(measure_all(count, fails, [](std::uint64_t, std::uint64_t) {}), "fifty", InputError);
}

TEST_CASE("a stack file sets what it names, and nothing else") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "mine.json").string();
  write_file(file, R"({"stack": "hobbit", "parameters": {"t1": 0, "t2": 0.85, "high-bits": 8, "low-bits": 2,
    "depth": 2, "cache-weights": [500, 0, 300, 200], "pools": "per-layer"}, "calibrated": {"any": "thing"}})");
  const NamedStack stack = read_stack(file);
  CHECK(stack.label == "mine");
  CHECK(stack.policies == "hobbit");
  StackOptions o;
  set_parameters(o, stack.parameters, "");
  CHECK(o.t1 == 0.0F);
  CHECK(o.t2 == 0.85F);
  CHECK(o.high_bits == 8U);
  CHECK(o.low_bits == 2U);
  CHECK(o.depth == 2U);
  CHECK(*o.cache_weights == CacheWeights{500, 0, 300, 200});
  CHECK(o.pools == PoolChoice::per_layer);
  CHECK(!o.alpha);
  CHECK(!o.shallow_layers);
  o.stack = stack.policies;
  CHECK(precisions_for(o).bits == (Precision::int8 | Precision::int2).bits);

  const NamedStack plain = read_stack("fate");
  CHECK(plain.file.empty());
  CHECK(plain.label == "fate");
  CHECK(plain.parameters.empty());
  CHECK_NOTHROW(check_labels({plain, plain, stack}));
  CHECK_THROWS_AS(check_labels({stack, plain, stack}), InputError);
}

TEST_CASE("the other pair of precisions and the weights reach the stack's own configuration") {
  ModelShape shape;
  shape.layers = 2;
  shape.experts = 8;
  shape.top_k = 2;
  shape.max_rows = 4;
  shape.renormalise = Renormalise::yes;
  shape.expert_bytes = {{0, 64, 128, 256, 512}};
  StackOptions o;
  o.budget_bytes = 1500;
  o.high_bits = 8;
  o.low_bits = 2;
  o.cache_weights = {100, 200, 300, 400};
  const auto config = ferry::engine::part::stack_config<stacks::Hobbit>(shape, o, [](std::uint64_t) { return 1; });
  CHECK(config.cache.lru == 100);
  CHECK(config.cache.lfu == 200);
  CHECK(config.cache.lhu == 300);
  CHECK(config.cache.fld == 400);
  CHECK(config.cache.high == Precision::int8);
  CHECK(config.precision.high == Precision::int8);
  CHECK(config.precision.low == Precision::int2);
  // Two stream slots of 256 leave 988 bytes, and a tenth of them is one slot of 64: three of 256, and 220 for low ones.
  REQUIRE(config.allotment.pools.size() == 2);
  CHECK(config.allotment.stream_slot_bytes == 256);
  CHECK(config.allotment.pools[0].slot_bytes == 256);
  CHECK(config.allotment.pools[0].slots == 3);
  CHECK(config.allotment.pools[1].slot_bytes == 64);
  CHECK(config.allotment.pools[1].slots == 3);
}

TEST_CASE("a bad stack file is refused by name and field") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "bad.json").string();
  const std::map<std::string, std::string> cases = {
      {"", "parse error"},
      {"[]", "expected a JSON object"},
      {"{}", "\"stack\" is missing"},
      {R"({"stack": 3})", "\"stack\": expected a string"},
      {R"({"stack": "hobit"})", "did you mean \"hobbit\"?"},
      {R"({"stack": "hobbit", "parameter": {}})", "did you mean \"parameters\"?"},
      {R"({"stack": "hobbit", "parameters": []})", "parameters: expected a JSON object"},
      {R"({"stack": "hobbit", "parameters": {"t3": 1}})", "unknown parameter \"t3\""},
      {R"({"stack": "hobbit", "parameters": {"t1": 0.5, "t1": 0.6}})", "stands twice"},
      {R"({"stack": "hobbit", "parameters": {"t1": "0.5"}})", "\"t1\": expected a number from 0 to 1"},
      {R"({"stack": "hobbit", "parameters": {"t1": null}})", "\"t1\": expected a number"},
      {R"({"stack": "hobbit", "parameters": {"t2": 1.01}})", "\"t2\": expected a number from 0 to 1"},
      {R"({"stack": "hobbit", "parameters": {"t1": 0.9, "t2": 0.5}})", "\"t1\": expected at most t2"},
      {R"({"stack": "hobbit", "parameters": {"alpha": 0.5}})", "\"alpha\": hobbit has no such parameter"},
      {R"({"stack": "hobbit", "parameters": {"shallow-layers": 2}})", "\"shallow-layers\": hobbit has no"},
      {R"({"stack": "resident", "parameters": {"pools": "one"}})", "\"pools\": resident has no"},
      {R"({"stack": "hobbit", "parameters": {"pools": "two"}})", "\"pools\": expected one of stack"},
      {R"({"stack": "hobbit", "parameters": {"depth": 5}})", "\"depth\": expected a whole number from 1 to 4"},
      {R"({"stack": "hobbit", "parameters": {"low-bits": 3}})", "\"low-bits\": expected 2, 4 or 8"},
      {R"({"stack": "hobbit", "parameters": {"low-bits": 4, "high-bits": 4}})", "fewer bits for low than for high"},
      {R"({"stack": "hobbit", "parameters": {"high-bits": 2}})", "fewer bits for low than for high"},
      {R"({"stack": "hobbit", "parameters": {"cache-weights": [1000, 0, 0]}})", "\"cache-weights\": expected four"},
      {R"({"stack": "hobbit", "parameters": {"cache-weights": [1000, "0", 0, 0]}})",
       "\"cache-weights\": expected four"},
      {R"({"stack": "hobbit", "parameters": {"cache-weights": [400, 400, 100, 99]}})", "sum to 1000"}};
  for (const auto& [content, part] : cases) {
    const std::string text = content;  // clang 14 captures no structured bindings
    CAPTURE(text);
    write_file(file, text);
    std::string said;
    try {
      read_stack(file);
    } catch (const InputError& e) {
      said = e.what();
    }
    CAPTURE(said);
    CHECK(said.rfind(file, 0) == 0);
    CHECK(said.find(part) != std::string::npos);
    CHECK(said.find('\n') == std::string::npos);
  }
  CHECK_THROWS_AS(read_stack((folder.path() / "none.json").string()), InputError);
}

TEST_CASE("a stack file does what its flags do, and the command line wins over it") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "text", prompts()[0]);
  write_file(folder.path() / "mine.json",
             R"({"stack": "hobbit", "parameters": {"t1": 0.2, "t2": 0.7, "high-bits": 8, "low-bits": 2}})");
  auto eval = [&](const std::string& arguments) {
    const Shell r = ferry_command("eval --model tiny-mixtral --bytes 100 --text " + at + "/text --json " + at +
                                  "/r.json " + arguments);
    CAPTURE(r.out);
    REQUIRE(r.status == 0);
    CHECK((arguments.find("mine.json") == std::string::npos || r.out.find("  mine\n") != std::string::npos));
    Json json = read_json(folder.path() / "r.json");
    json.erase("command_line");
    return json;
  };
  Json from_file = eval("--stack " + at + "/mine.json");
  CHECK(from_file["stack"] == "hobbit");
  CHECK(from_file["stack_file"] == "mine");
  CHECK(from_file["bytes_by_precision"]["int8"] > 0);
  CHECK(from_file["bytes_by_precision"]["int2"] > 0);
  CHECK(from_file["bytes_by_precision"]["int4"] == 0);
  CHECK(from_file["bytes_by_precision"]["full"] == 0);
  from_file.erase("stack_file");
  CHECK(from_file == eval("--stack hobbit --t1 0.2 --t2 0.7 --high-bits 8 --low-bits 2 --defaults paper"));
  const Json over = eval("--stack " + at + "/mine.json --t2 0.9 --cache-weights 0,0,0,1000");
  CHECK(over["parameters"] ==
        Json{{"t1", 0.2}, {"t2", 0.9}, {"high-bits", 8}, {"low-bits", 2}, {"cache-weights", {0, 0, 0, 1000}}});
  CHECK(over["decode"]["skipped"] < from_file["decode"]["skipped"]);
}

TEST_CASE("calibrated thresholds lose what the file says, and their file runs") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "text", prompts()[0] + prompts()[1] + prompts()[2]);
  const std::string common = " --model tiny-mixtral --bytes 200 --text " + at + "/text ";
  const Shell r = ferry_command("calibrate precision --stack hobbit --depth 1 --steps 4 --loss 2" + common + "--out " +
                                at + "/found.json");
  CAPTURE(r.out);
  REQUIRE(r.status == 0);
  CHECK(r.out.find("found.json: hobbit with t1 ") != std::string::npos);
  const Json found = read_json(folder.path() / "found.json");
  CHECK(found["parameters"]["depth"] == 1);
  CHECK(found["calibrated"]["texts"] == Json{"text"});
  CHECK(found["calibrated"]["bytes_scored"] == 200);
  const Json& best = found["calibrated"]["found"];
  CHECK(best["loss_percent"] <= 2);
  for (const Json& tried : found["calibrated"]["tried"]) {
    CHECK((tried["loss_percent"] > 2 || tried["decode_bytes"] >= best["decode_bytes"]));
  }
  REQUIRE(ferry_command("eval --stack " + at + "/found.json --json " + at + "/r.json" + common).status == 0);
  const Json eval = read_json(folder.path() / "r.json");
  CHECK(eval["change_percent"] == best["loss_percent"]);
  CHECK(eval["decode"]["bytes"] == best["decode_bytes"]);

  // INT4 alone loses something, so no share of INT2 is good enough.
  const Shell none = ferry_command("calibrate precision --stack fate --loss 0 --model tiny-mixtral --text " + at +
                                   "/text --out " + at + "/none.json");
  CAPTURE(none.out);
  REQUIRE(none.status == 0);
  CHECK(none.out.find("nothing loses at most 0%") != std::string::npos);
  const Json neutral = read_json(folder.path() / "none.json");
  CHECK(neutral["parameters"] == Json{{"low-share", 0}});
  CHECK(!neutral["calibrated"].contains("found"));
}

namespace {

/// Records 100 tokens of tiny-mixtral into the folder: the flag that names them.
std::string recorded_trace(const TemporaryFolder& folder) {
  const std::string at = folder.path().string();
  write_file(folder.path() / "text", prompts()[0] + prompts()[1]);
  REQUIRE(ferry_command("trace record --model tiny-mixtral --window 100 --prompt-tokens 20 --tokens 100 --text " + at +
                        "/text --out " + at + "/t.safetensors")
              .status == 0);
  return " --trace " + at + "/t.safetensors ";
}

}  // namespace

TEST_CASE("calibrated weights and boundaries cost what a simulation says, and no other costs less") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string(), trace = recorded_trace(folder);
  auto simulate = [&](const std::string& arguments) {
    const Shell r = ferry_command("simulate" + trace + "--bounds none --json " + at + "/r.json --stack " + arguments);
    CAPTURE(r.out);
    REQUIRE(r.status == 0);
    return read_json(folder.path() / "r.json");
  };
  Shell r = ferry_command("calibrate cache-weights --stack hobbit" + trace + "--out " + at + "/w.json");
  CAPTURE(r.out);
  REQUIRE(r.status == 0);
  const Json miss = read_json(folder.path() / "w.json")["calibrated"]["miss_bytes"];
  const double expert = 3 * 128 * 192 * 2;  // bytes at full precision
  CHECK(simulate(at + "/w.json")["decode"]["miss_penalty"] == doctest::Approx(miss["best"].get<double>() / expert));
  CHECK(simulate("hobbit")["decode"]["miss_penalty"] == doctest::Approx(miss["default"].get<double>() / expert));
  CHECK(simulate("hobbit --cache-weights 0,1000,0,0")["decode"]["miss_penalty"] ==
        doctest::Approx(miss["LFU alone"].get<double>() / expert));
  for (const auto& [name, bytes] : miss.items()) CHECK(bytes >= miss["best"]);
  CHECK(miss["best"] < miss["FLD alone"]);

  r = ferry_command("calibrate shallow-boundary --stack fate+cache" + trace + "--out " + at + "/s.json");
  CAPTURE(r.out);
  REQUIRE(r.status == 0);
  const Json file = read_json(folder.path() / "s.json");
  const Json& tried = file["calibrated"]["tried"];
  REQUIRE(tried.size() == 9);
  for (std::size_t s = 0; s < tried.size(); ++s) {
    CHECK(tried[s]["tpot_s"] >= file["calibrated"]["found"]["tpot_s"]);
    CHECK((tried[s]["tpot_s"] > file["calibrated"]["found"]["tpot_s"] || s >= file["parameters"]["shallow-layers"]));
  }
  CHECK(simulate("fate+cache --shallow-layers 3")["decode"]["tpot_s"] == tried[3]["tpot_s"]);

  // If the host computes all misses, nothing is loaded, and no weights are better than the default.
  r = ferry_command("calibrate cache-weights --stack hobbit-cooperative" + trace + "--out " + at + "/c.json");
  REQUIRE(r.status == 0);
  CHECK(read_json(folder.path() / "c.json")["parameters"]["cache-weights"] == Json({700, 100, 100, 100}));
}

TEST_CASE("a calibrated pool and prefill take what a simulation says, and no other value takes less") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string(), trace = recorded_trace(folder);
  for (const std::string name : {"low-pool", "transient-prefill"}) {
    const std::string parameter = name == "low-pool" ? name : name + "-rows";
    const Shell r = ferry_command("calibrate " + name + " --stack hobbit" + trace + "--out " + at + "/p.json");
    CAPTURE(r.out);
    REQUIRE(r.status == 0);
    const Json file = read_json(folder.path() / "p.json");
    const char* time = name == "low-pool" ? "tpot_s" : "s_a_decode_step";
    std::set<double> seen;
    for (const Json& tried : file["calibrated"]["tried"]) {
      CHECK(tried[time] >= file["calibrated"]["found"][time]);
      seen.insert(tried[time].get<double>());
      REQUIRE(ferry_command("simulate" + trace + "--bounds none --json " + at + "/r.json --stack hobbit --" +
                            parameter + " " + tried[parameter].dump())
                  .status == 0);
      const Json run = read_json(folder.path() / "r.json");
      const double steps = run["decode"]["time_s"].get<double>() / run["decode"]["tpot_s"].get<double>();
      const double prefill = name == "low-pool" ? 0 : run["prefill"]["time_s"].get<double>();
      CHECK(tried[time].get<double>() ==
            doctest::Approx((run["decode"]["time_s"].get<double>() + prefill) / steps).epsilon(1e-9));
    }
    CHECK(seen.size() > 1);
    CHECK(file["parameters"][parameter] == file["calibrated"]["found"][parameter]);
  }
}

TEST_CASE("a calibrated alpha is the largest of the grid that loses no more") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "text", prompts()[1]);
  const Shell r = ferry_command(
      "calibrate substitution --model tiny-mixtral --stack importance+er --steps 5 --loss 0.1 "
      "--bytes 100 --text " +
      at + "/text --out " + at + "/a.json");
  CAPTURE(r.out);
  REQUIRE(r.status == 0);
  const Json file = read_json(folder.path() / "a.json");
  for (const Json& tried : file["calibrated"]["tried"]) {
    CHECK((tried["loss_percent"] > 0.1) == (tried["alpha"] > file["parameters"]["alpha"]));
  }
}

TEST_CASE("a calibrated loss-rate is the least at which no text loses more, and runs take it from the file") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "sum", prompts()[0]);
  write_file(folder.path() / "program", prompts()[1]);
  const Shell r = ferry_command(
      "calibrate skipping --model tiny-mixtral --stack ferry-lossy --steps 6 --loss 2 --budget 100% --bytes 100 "
      "--text " +
      at + "/sum " + at + "/program --out " + at + "/s.json");
  CAPTURE(r.out);
  REQUIRE(r.status == 0);
  const Json file = read_json(folder.path() / "s.json");
  CHECK(file["parameters"]["max-loss"] == 2.0);
  for (const Json& tried : file["calibrated"]["tried"]) {
    CHECK((tried["loss_percent"] > 2.0) == (tried["loss-rate"] < file["parameters"]["loss-rate"]));
  }
  // The text that loses more decides, by its bits or by its divergence.
  double most = 0;
  for (const std::string text : {"sum", "program"}) {
    REQUIRE(ferry_command("eval --model tiny-mixtral --bytes 100 --budget 100% --stacks " + at + "/s.json --text " +
                          at + "/" + text + " --json " + at + "/e.json")
                .status == 0);
    const Json all = read_json(folder.path() / "e.json");
    most = std::max({most, all["change_percent"].get<double>(),
                     100 * all["kl_divergence"].get<double>() / all["bits_per_byte_resident"].get<double>()});
  }
  CHECK(file["calibrated"]["found"]["loss_percent"].get<double>() == doctest::Approx(most));
}

TEST_CASE("gates are trained by a command, and predictions are better with them") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  std::string text;
  while (text.size() < 6000) {
    for (const std::string& p : prompts()) text += p + "\n";
  }
  write_file(folder.path() / "text", text);
  const Shell r = ferry_command("calibrate gates --model tiny-mixtral --epochs 2 --depth 1 --text " + at +
                                "/text --out " + at + "/gates.safetensors");
  CAPTURE(r.out);
  REQUIRE(r.status == 0);
  double recall[2] = {};
  for (const bool learned : {false, true}) {
    const std::string gates = learned ? " --gates " + at + "/gates.safetensors" : "";
    REQUIRE(ferry_command("run --model tiny-mixtral --stack mixtral-offloading --machine rtx3090-pcie3 --clock virtual "
                          "--max-new-tokens 24 --prompt FIRST" +
                          gates + " --json " + at + "/r.json")
                .status == 0);
    recall[learned ? 1 : 0] = read_json(folder.path() / "r.json")["prefetch"]["recall"].get<double>();
  }
  CHECK(recall[1] > recall[0]);
}

TEST_CASE("what cannot be calibrated is refused in one line") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "text", prompts()[0]);
  write_file(folder.path() / "empty", "");
  write_file(folder.path() / "short", "Hi");
  write_file(folder.path() / "hobbit.json", R"({"stack": "hobbit"})");
  const std::string text = " --text " + at + "/text ", out = " --out " + at + "/out.json";
  const std::map<std::string, std::string> cases = {
      {"calibrate precision --stack lru" + text + out, "lru has no --t1"},
      {"calibrate low-pool --stack hobbit --text " + at + "/short" + out, "no token is decoded"},
      {"calibrate cache-weights --stack hobbit --text " + at + "/short" + out, "no token is decoded"},
      {"calibrate substitution --stack hobbit" + text + out, "importance+er"},
      {"calibrate cache-weights --stack fate" + text + out, "stacks that do: hobbit"},
      {"calibrate shallow-boundary --stack lru" + text + out, "lru has no --shallow-layers"},
      {"calibrate precision --stack fate --steps 1000" + text + out, "--steps: is for thresholds, which fate has not"},
      {"calibrate skipping --stack fate" + text + out, "fate has no --loss-rate"},
      {"calibrate skipping --stack ferry-lossy --max-loss 2" + text + out, "--max-loss: expected --loss here"},
      {"calibrate skipping --stack ferry-lossy --loss 0" + text + out, "--loss: expected more than 0"},
      {"calibrate gates --text " + at + "/text --out " + at + "/out.json", "tokens are too few to train gates on"},
      {"calibrate gates --model '" + golden_file("zoo/deepseek_v3").string() + "' --text " + at + "/text --out " + at +
           "/out.json",
       "not chosen by the softmax of a matrix alone"},
      {"run --model tiny-mixtral --gates " + at + "/text", at + "/text"},
      {"calibrate transient-prefill --stack importance-driven" + text + out,
       "ferry trace record --stack importance+pre"},
      {"calibrate precision --stack hobbit --t1 0.5" + text + out, "--t1: is what this command finds"},
      {"calibrate precision --stack hobbit --loss nan" + text + out, "--loss"},
      {"calibrate precision --stack hobbit --budget 100%" + text + out, "holds every expert"},
      {"calibrate precision --stack hobbit --text " + at + "/empty" + out, "the file is empty"},
      {"calibrate precision --stack hobbit" + text + "--out " + at + "/text", "is read by this run"},
      {"calibrate cache-weights --stack " + at + "/hobbit.json" + text + "--out " + at + "/hobbit.json", "is read by"},
      {"calibrate cache-weights --stack hobbit" + out, "--text or --trace"},
      {"compare --stacks hobbit," + at + "/hobbit.json", "reports would call both hobbit"},
      {"run --stack " + at + "/none.json", "none.json"},
      {"run --stack hobbit --cache-weights 1,2,3,4", "sum to 1000"},
      {"run --stack lru --high-bits 8", "--high-bits: lru has no such parameter"},
      {"run --stack lru --low-bits 8", "--low-bits: lru has no such parameter"},  // which would not fit Fate's INT4
      {"run --stack hobbit --low-bits 8 --high-bits 4", "fewer bits for low than for high"}};
  for (const auto& [arguments, part] : cases) {
    const Shell r = ferry_command(arguments);
    CAPTURE(r.out);
    CHECK(r.status == 2);
    CHECK(r.out.rfind("ferry: ", 0) == 0);
    CHECK(r.out.find('\n') == r.out.size() - 1);
    CHECK(r.out.find(part) != std::string::npos);
  }
  CHECK(!std::filesystem::exists(folder.path() / "out.json"));
}

TEST_CASE("an interrupted calibration writes the best so far, and how it was found") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "text", std::string(1'000, 'a') + std::string(1'000, 'b'));
  REQUIRE(ferry_command("trace record --model tiny-mixtral --window 100 --text " + at + "/text --out " + at + "/t.st")
              .status == 0);
  // Interrupts it once it says that some of the 286 mixtures are measured.
  const std::string calibrate = "calibrate cache-weights --trace " + at + "/t.st --stack ", err = at + "/err";
  const Shell r = shell("touch " + err + "; " + test::ferry_program() + " " + calibrate + "hobbit --out " + at +
                        "/out.json 2>" + err + " & p=$!; while kill -0 $p && ! grep -q mixtures: " + err +
                        "; do sleep 0.1; done; kill -INT $p; wait $p");
  CAPTURE(r.out);
  CHECK(r.status == 130);
  CHECK(r.out.find("interrupted: the best so far is kept") != std::string::npos);
  const Json found = read_json(folder.path() / "out.json");
  CHECK(found["calibrated"]["interrupted"] == true);
  CHECK(found["calibrated"]["tried"] > 0);
  CHECK(found["calibrated"]["tried"] < 286);
  CHECK(read_stack(at + "/out.json").parameters["cache-weights"].size() == 4);
  // What is found next stands with what was found before.
  REQUIRE(
      ferry_command("calibrate low-pool --trace " + at + "/t.st --stack " + at + "/out.json --out " + at + "/two.json")
          .status == 0);
  const Json two = read_json(folder.path() / "two.json");
  CHECK(two["parameters"]["cache-weights"] == found["parameters"]["cache-weights"]);
  CHECK(two["calibrated"]["interrupted"] == false);
  CHECK(two["calibrated"]["before"] == found["calibrated"]);
}

TEST_CASE("an interrupted calibration that has found nothing writes nothing") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "text", std::string(1'000'000, 'a'));
  for (const std::string what : {"substitution --stack importance+er", "shallow-boundary --stack fate"}) {
    const Shell r = shell("timeout --foreground --preserve-status -s INT 1 " + ferry_program() + " calibrate " + what +
                          " --text " + at + "/text --out " + at + "/out.json");
    CAPTURE(r.out);
    CHECK(r.status == 130);
    CHECK(r.out.find("interrupted: nothing was written") != std::string::npos);
    CHECK(!std::filesystem::exists(folder.path() / "out.json"));
  }
}

}  // namespace
