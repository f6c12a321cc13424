// Sweeps and simulations as users meet them: grids, threads, ranks, interruptions, results files, and the command.
#include "sweep/sweep.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "engine/fixtures/command.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/machine_file.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "ferry/error.hpp"
#include "ferry/macros.hpp"
#include "profiles/shape.hpp"
#include "stacks/stack_options.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

using Path = std::filesystem::path;
using Lines = std::vector<std::string>;

/// What a simulation wrote, without its command line, which names its own output.
Json result(const Path& path) {
  Json json = Json::parse(read_file(path));
  json.erase("command_line");
  return json;
}

/// 4 layers of 8 experts, top-2, 1000 bytes each. Sequences of 40 tokens, 6 of them prompt. `rows`: with the scores of
/// all experts, and what is predicted 3 layers ahead and of partial hidden states.
void write_trace(const Path& path, std::uint32_t tokens, bool rows, std::uint64_t seed) {
  constexpr std::uint16_t layers = 4, experts = 8, top_k = 2;
  Random random(seed);
  TraceFile f;
  f.trace.name = "made-up";
  f.trace.model.layers = layers;
  f.trace.model.experts = experts;
  f.trace.model.top_k = top_k;
  f.trace.model.renormalise = Renormalise::yes;
  f.trace.model.expert_bytes = {{0, 250'000, 400'000, 700'000, 1'000'000}};
  f.trace.ahead = rows ? 3 : 0;
  f.work = {{1'000'000, 500'000, 400'000}};
  f.source = "a test";
  for (std::uint32_t t = 0; t < tokens; ++t) {
    if (t % 40 == 0) f.sequence_start.push_back(t);
    f.phase.push_back(t % 40 < 6 ? 0 : 1);
    for (std::uint16_t l = 0; l < layers; ++l) {
      std::vector<float> scores = random.scores(experts);
      scores[(t / 7 + l) % experts] += 0.7F;  // these experts are asked for again and again
      std::vector<std::uint16_t> best(experts);
      std::iota(best.begin(), best.end(), std::uint16_t{0});
      std::stable_sort(best.begin(), best.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
      f.experts.insert(f.experts.end(), {best[0], best[1]});
      f.weights.insert(f.weights.end(), {0.75F, 0.25F});
      if (!rows) continue;
      f.scores.insert(f.scores.end(), scores.begin(), scores.end());
      for (std::vector<float>* predicted : {&f.predicted, &f.predicted, &f.predicted, &f.partial}) {
        const std::vector<float> noise = random.scores(experts);
        for (std::uint16_t e = 0; e < experts; ++e)
          predicted->push_back(noise[e] + (e == (t / 7 + l + 1U) % experts ? 0.7F : 0));
      }
    }
  }
  f.view();
  f.write(path);
}

/// A folder with the traces a, b (with rows) and bare (without).
struct SweepFixture {
  TemporaryFolder folder;
  SweepFixture() {
    write_trace(at("a.safetensors"), 90, true, 1);
    write_trace(at("b.safetensors"), 50, true, 2);
    write_trace(at("bare.safetensors"), 90, false, 3);
  }
  [[nodiscard]] std::string at(const std::string& name) const { return (folder.path() / name).string(); }

  /// 12 cells: for each trace and budget lru, hobbit with two t1, and importance-driven with three alpha.
  [[nodiscard]] SweepGrid grid() const {
    SweepGrid g;
    g.traces = {at("a.safetensors")};
    g.machines = {"rtx3090-pcie3"};
    g.stacks = {"lru", "hobbit", "importance-driven"};
    g.budgets = {"50%", "80%"};
    g.parameters = {{"t1", {0.5, 0.6}}, {"alpha", {0.1, 0.2, 0.3}}};
    return g;
  }
};

const std::atomic<bool> never = false;

SweepResult run(const SweepGrid& grid, const Path& out, Ranks ranks = {}, std::uint32_t threads = 1,
                const std::atomic<bool>& stop = never) {
  return run_sweep(grid, out, ranks, threads, stop, nullptr);
}

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The lines of a results file; checks that all of them are whole.
Lines whole_lines(const Path& path) {
  const std::string text = read_file(path);
  CHECK((text.empty() || text.back() == '\n'));
  Lines lines = lines_of(text);
  for (const std::string& line : lines) {
    CHECK(Json::accept(line));
    CHECK(Json::parse(line).contains("sweep"));
  }
  return lines;
}

Lines sorted(Lines lines) {
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// A line with this content, and the checksum that it would have been written with.
std::string sealed(Json line) {
  const std::string zeros(16, '0');
  line["sweep"]["xxh3"] = zeros;
  std::string text = line.dump();
  const std::uint64_t sum = XXH3_64bits(text.data(), text.size());
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(sum));
  return text.replace(text.rfind(zeros), zeros.size(), digits);
}

/// By index, each with its line end.
std::string in_order(Lines lines) {
  std::sort(lines.begin(), lines.end(), [](const std::string& a, const std::string& b) {
    return Json::parse(a)["sweep"]["index"] < Json::parse(b)["sweep"]["index"];
  });
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

/// Clears the variables that launchers set, and restores them at the end.
class Environment {
 public:
  Environment() {
    for (const char* name : names) {
      const char* value = std::getenv(name);
      old_.emplace_back(value == nullptr ? std::optional<std::string>() : value);
    }
    clear();
  }
  ~Environment() {
    clear();
    for (std::size_t i = 0; i < std::size(names); ++i) {
      if (old_[i]) ::setenv(names[i], old_[i]->c_str(), 1);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  static void clear() {
    for (const char* name : names) ::unsetenv(name);
  }
  /// Sets these variables and no others.
  static void set(const std::vector<std::pair<const char*, const char*>>& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
  }

 private:
  static constexpr const char* names[] = {"OMPI_COMM_WORLD_RANK",
                                          "OMPI_COMM_WORLD_SIZE",
                                          "PMI_RANK",
                                          "PMI_SIZE",
                                          "SLURM_PROCID",
                                          "SLURM_STEP_NUM_TASKS",
                                          "SLURM_ARRAY_TASK_ID",
                                          "SLURM_ARRAY_TASK_COUNT",
                                          "SLURM_ARRAY_TASK_MIN",
                                          "SLURM_ARRAY_TASK_MAX",
                                          "SLURM_ARRAY_TASK_STEP"};
  std::vector<std::optional<std::string>> old_;
};

std::string quoted(const std::string& text) {
  return "'" + text + "'";
}

}  // namespace

TEST_CASE("a grid has each combination once, in a fixed order") {
  SweepGrid g;
  g.traces = {"/x/a.safetensors", "/x/b.safetensors"};
  g.machines = {"m", "n"};
  g.stacks = {"lru", "hobbit", "importance-driven"};
  g.budgets = {"10%", "20%"};
  g.batches = {1, 2};
  g.parameters = {{"t1", {0.5, 0.6}}, {"alpha", {0.1, 0.2, 0.3}}};
  const std::vector<SweepCell> cells = cells_of(g);
  // 2 traces * 2 machines * 2 batches * 2 budgets * (lru 1 + hobbit 2 + importance-driven 3)
  REQUIRE(cells.size() == 96);
  const std::pair<std::size_t, const char*> places[] = {
      {0, "a.safetensors m lru 10% batch=1"},
      {1, "a.safetensors m hobbit 10% batch=1 t1=0.5"},
      {2, "a.safetensors m hobbit 10% batch=1 t1=0.6"},
      {3, "a.safetensors m importance-driven 10% batch=1 alpha=0.1"},
      {5, "a.safetensors m importance-driven 10% batch=1 alpha=0.3"},
      {6, "a.safetensors m lru 20% batch=1"},
      {12, "a.safetensors m lru 10% batch=2"},
      {24, "a.safetensors n lru 10% batch=1"},
      {48, "b.safetensors m lru 10% batch=1"},
      {95, "b.safetensors n importance-driven 20% batch=2 alpha=0.3"}};
  for (const auto& place : places) {
    const std::string key = cells[place.first].key();
    CAPTURE(key);
    // The parts of a key stand in this order, but others may follow.
    std::istringstream parts(place.second);
    std::size_t from = 0;
    for (std::string part; parts >> part;) {
      const std::size_t found = key.find(part, from);
      CHECK_MESSAGE(found != std::string::npos, "has no " << part);
      from = found == std::string::npos ? from : found;
    }
  }
  std::set<std::string> keys;
  for (const SweepCell& c : cells) {
    keys.insert(c.key());
    CHECK(c.parameters.size() == (c.stack == "lru" ? 0 : 1));
  }
  CHECK(keys.size() == cells.size());

  // Two parameters of one stack: the last varies fastest.
  g.stacks = {"hobbit"};
  g.parameters = {{"t1", {0.5, 0.6}}, {"t2", {0.8, 0.9}}};
  const std::vector<SweepCell> both = cells_of(g);
  REQUIRE(both.size() == 16 * 4);
  using Set = std::vector<std::pair<std::string, Json>>;
  CHECK(both[0].parameters == Set{{"t1", 0.5}, {"t2", 0.8}});
  CHECK(both[1].parameters == Set{{"t1", 0.5}, {"t2", 0.9}});
  CHECK(both[2].parameters == Set{{"t1", 0.6}, {"t2", 0.8}});
}

TEST_CASE("what a sweep's lists name twice is one cell, where it stands first" * doctest::test_suite("threads")) {
  SweepGrid g;
  g.traces = {"a", "a"};
  g.machines = {"m", "m"};
  g.stacks = {"hobbit", "lru", "hobbit"};
  g.budgets = {"25%", "1MiB", "25.0%", "1048576"};
  g.batches = {2, 1, 2};
  g.parameters = {{"t1", {0.5, 0.6, 0.5}}};
  auto keys = [&] {
    Lines all;
    for (const SweepCell& c : cells_of(g)) all.push_back(c.key());
    return all;
  };
  const Lines with_repeats = keys();
  g.traces = {"a"};
  g.machines = {"m"};
  g.stacks = {"hobbit", "lru"};
  g.budgets = {"25%", "1MiB"};
  g.batches = {2, 1};
  g.parameters = {{"t1", {0.5, 0.6}}};
  CHECK(with_repeats == keys());
  CHECK(with_repeats.size() == 2 * 2 * 3);
}

TEST_CASE("with shallow pools every stack that caches takes --shallow-layers, in a simulation and in a sweep" *
          doctest::test_suite("threads")) {
  SweepGrid g;
  g.traces = {"a"};
  g.machines = {"m"};
  g.budgets = {"25%"};
  g.stacks = {"lru", "layer-stream", "fate", "on-demand", "resident"};
  g.parameters = {{"shallow-layers", {1, 2}}};
  g.pools = "shallow";
  CHECK(cells_of(g).size() == 2 + 2 + 2 + 1 + 1);
  g.pools = "stack";
  CHECK(cells_of(g).size() == 1 + 1 + 2 + 1 + 1);
  for (const char* stack : {"lru", "fate", "on-demand"}) {
    for (const char* pools : {"stack", "shallow"}) {
      CAPTURE(stack);
      CAPTURE(pools);
      g.stacks = {stack};
      g.pools = pools;
      const bool swept = refusal("", [&] { cells_of(g); }).empty();
      const std::string why =
          run_ferry("simulate --trace nowhere --shallow-layers 1 --pools " + g.pools + " --stack " + stack).error;
      CHECK(says(why, {swept ? "nowhere" : "no such parameter"}));
    }
  }
}

TEST_CASE("a grid with unknown stacks, or parameters that nobody takes, is refused") {
  SweepGrid g;
  g.traces = {"a"};
  g.machines = {"m"};
  g.budgets = {"10%"};
  g.stacks = {"lru", "fats"};
  CHECK(says(refusal("", [&] { cells_of(g); }), {"unknown stack \"fats\"", "did you mean \"fate\"?"}));
  g.stacks = {"lru", "fate"};
  g.parameters = {{"t1", {0.5}}};
  CHECK(says(refusal("", [&] { cells_of(g); }), {"--t1", "lru, fate"}));
  g.stacks = {"lru", "hobbit"};
  CHECK(cells_of(g).size() == 2);
}

TEST_CASE("a grid with pools that nobody takes, or values that a parameter does not have, is refused") {
  SweepGrid g;
  g.traces = {"a"};
  g.machines = {"m"};
  g.budgets = {"10%"};
  g.stacks = {"resident", "on-demand"};
  g.pools = "one";
  CHECK(says(refusal("", [&] { cells_of(g); }), {"--pools", "resident, on-demand"}));
  g.stacks.emplace_back("lru");
  CHECK(cells_of(g).size() == 3);
  g.pools = "two";
  CHECK(says(refusal("", [&] { cells_of(g); }), {"--pools two", "one of stack, per-layer, one, shallow"}));
  g.pools = "one";
  g.stacks = {"fate"};  // its own layout has shallow layers, this one has none
  g.parameters = {{"shallow-layers", {1, 2}}};
  CHECK(says(refusal("", [&] { cells_of(g); }), {"--shallow-layers", "fate"}));
  g.pools = "stack";
  g.stacks = {"hobbit"};
  const std::vector<std::pair<SweptParameter, std::string>> cases = {
      {{"t3", {0.5}}, "unknown parameter \"t3\""},
      {{"t1", {0.5, 1.5}}, "--t1 1.5: expected a number from 0 to 1"},
      {{"t1", {std::nan("")}}, "--t1 nan: expected a number from 0 to 1"},
      {{"depth", {1, 17}}, "--depth 17: expected a whole number from 1 to 4"},
      {{"depth", {1.5}}, "--depth 1.5: expected a whole number from 1 to 4"},
      {{"low-bits", {2, 3}}, "--low-bits 3: expected 2, 4 or 8"},
      {{"cache-weights", {1000}}, "--cache-weights 1000: expected four thousandths"}};
  for (const auto& [parameter, why] : cases) {
    g.parameters = {parameter};
    CHECK(says(refusal("", [&] { cells_of(g); }), {why}));
  }
}

TEST_CASE("a sweep's runs say what a simulation with the same flags says, pools and whole numbers too") {
  const SweepFixture f;
  SweepGrid grid = f.grid();
  grid.stacks = {"on-demand", "hobbit+prefetch"};
  grid.budgets = {"60%"};
  grid.pools = "one";
  grid.prefetch_chunk = "10%";
  grid.parameters = {{"depth", {2}}};
  const Path out = f.at("pools.jsonl");
  CHECK(run(grid, out).refused == 0);
  for (const std::string& line : whole_lines(out)) {
    const Json json = Json::parse(line);
    const bool takes = json["stack"] == "hobbit+prefetch";
    CHECK(json["parameters"].dump() == (takes ? R"({"depth":2,"pools":"one"})" : "{}"));
    if (!takes) continue;
    CHECK(
        run_ferry("simulate --stack hobbit+prefetch --depth 2 --pools one --prefetch-chunk 10% --budget 60% --trace " +
                  quoted(f.at("a.safetensors")) + " --json " + quoted(f.at("r.json")))
            .status == 0);
    Json alone = result(f.at("r.json")), swept = json;
    swept.erase("sweep");
    CHECK(alone == swept);
    CHECK(alone["prefetch_chunk_bytes"] == 100'000);
    CHECK(run_ferry("simulate --stack hobbit+prefetch --depth 2 --pools one --budget 60% --trace " +
                    quoted(f.at("a.safetensors")) + " --json " + quoted(f.at("whole.json")))
              .status == 0);
    const Json whole = result(f.at("whole.json"));
    CHECK(whole["prefetch_chunk_bytes"] == 0);
    CHECK(whole["decode"]["tpot_s"] != alone["decode"]["tpot_s"]);
  }
}

TEST_CASE("the same cells, whatever the threads, and what single simulations give" * doctest::test_suite("threads")) {
  const SweepFixture f;
  SweepGrid grid = f.grid();
  grid.traces.push_back(f.at("b.safetensors"));
  grid.batches = {1, 2};
  grid.bounds = BoundsChoice::all;
  const Path one = f.at("one.jsonl"), four = f.at("four.jsonl");
  const SweepResult r = run(grid, one, {}, 1), s = run(grid, four, {}, 4);
  CHECK(r.cells == 48);  // 12 * 2 traces * 2 batches
  CHECK(r.had == 0);
  CHECK(r.done == 48);
  CHECK(r.refused == 0);
  CHECK_FALSE(r.interrupted);
  CHECK(s.done == 48);
  const Lines lines = whole_lines(one);
  REQUIRE(lines.size() == 48);
  CHECK(sorted(lines) == sorted(whole_lines(four)));

  const std::vector<SweepCell> cells = cells_of(grid);
  for (const std::string& line : lines) {
    Json json = Json::parse(line);
    const std::size_t index = json["sweep"]["index"];
    CAPTURE(index);
    REQUIRE(index < cells.size());
    const SweepCell& cell = cells[index];
    CHECK(json["sweep"]["cells"] == 48);
    CHECK(json["sweep"]["key"] == cell.key());
    json.erase("sweep");
    const TraceFile trace{Path(cell.trace)};
    SimulatedSetting setting;
    setting.trace = &trace;
    setting.trace_name = Path(cell.trace).filename().string();
    setting.machine = read_machine("rtx3090-pcie3");
    setting.bounds = BoundsChoice::all;
    SimulateOptions o;
    o.stack = cell.stack;
    o.batch = cell.batch;
    o.budget_bytes = trace.trace.model.all_bytes() * (cell.budget == "50%" ? 50 : 80) / 100;
    Json parameters = Json::object();
    for (const auto& [name, value] : cell.parameters) {
      parameters[name] = value;
      if (name == "t1") o.t1 = static_cast<float>(value);
      if (name == "alpha") o.alpha = static_cast<float>(value);
    }
    CHECK(json == Json::parse(to_json(run_simulation(setting, o, parameters)).dump()));
  }
}

TEST_CASE("every parameter of the command reaches its policy") {
  const SweepFixture f;
  struct Swept {
    std::string stack, name;
    double low, high;
  };
  const std::vector<Swept> swept = {{"hobbit+dynamic", "t1", 0.1, 0.8},        {"hobbit+dynamic", "t2", 0.65, 0.95},
                                    {"importance-driven", "alpha", 0.01, 0.9}, {"fate", "low-share", 0, 90},
                                    {"fate+cache", "shallow-layers", 0, 2},    {"fate", "percentile", 10, 90},
                                    {"hobbit+prefetch", "depth", 1, 3}};
  for (const Swept& s : swept) {
    CAPTURE(s.stack);
    CAPTURE(s.name);
    SweepGrid grid = f.grid();
    grid.stacks = {s.stack};
    grid.budgets = {"60%"};
    grid.parameters = {{s.name, {s.low, s.high}}};
    const Path out = f.at(s.stack + s.name + ".jsonl");
    const SweepResult r = run(grid, out);
    CHECK(r.refused == 0);
    const Lines lines = whole_lines(out);
    REQUIRE(lines.size() == 2);
    std::vector<Json> runs;
    for (const std::string& line : lines) {
      runs.push_back(Json::parse(line));
      runs.back().erase("sweep");
      CHECK(runs.back()["parameters"].contains(s.name));
      runs.back().erase("parameters");
    }
    CHECK(runs[0] != runs[1]);
  }
}

TEST_CASE("a sweep that was cut off anywhere goes on, and ends as if nothing had happened" *
          doctest::test_suite("threads")) {
  const SweepFixture f;
  const SweepGrid grid = f.grid();
  const Path whole = f.at("whole.jsonl"), cut = f.at("cut.jsonl");
  run(grid, whole);
  const std::string text = read_file(whole);
  const Lines lines = whole_lines(whole);
  REQUIRE(lines.size() == 12);
  std::size_t fifth = 0;
  for (std::size_t i = 0; i < 5; ++i) fifth += lines[i].size() + 1;
  const std::pair<std::size_t, std::uint64_t> cuts[] = {{0, 0},
                                                        {1, 0},
                                                        {lines[0].size(), 0},
                                                        {fifth, 5},
                                                        {fifth + 1, 5},
                                                        {fifth + lines[5].size() / 2, 5},
                                                        {text.size() - 1, 11},
                                                        {text.size(), 12}};
  for (const auto& c : cuts) {
    const std::uint64_t bytes = c.first, had = c.second;
    CAPTURE(bytes);
    for (const std::uint32_t threads : {1U, 3U}) {
      write_file(cut, text.substr(0, bytes));
      const SweepResult r = run(grid, cut, {}, threads);
      CHECK(r.cells == 12);
      CHECK(r.had == had);
      CHECK(r.done == 12 - had);
      CHECK(sorted(whole_lines(cut)) == sorted(lines));
    }
  }
}

TEST_CASE("results of a trace that was replaced do not stand as those of the new one" *
          doctest::test_suite("threads")) {
  const SweepFixture f;
  SweepGrid grid = f.grid();
  grid.traces = {f.at("a.safetensors")};
  const Path out = f.at("out.jsonl");
  const std::uint64_t cells = run(grid, out).cells;
  CHECK(run(grid, out).had == cells);
  const std::string text = read_file(out), trace = read_file(grid.traces[0]);
  write_file(grid.traces[0], read_file(f.at("b.safetensors")));
  CHECK(says(refusal("", [&] { run(grid, out); }), {out.string(), "line 1", "other contents", "another --out"}));
  CHECK(read_file(out) == text);
  write_file(grid.traces[0], trace);
  CHECK(run(grid, out).had == cells);

  // A machine of the user's own, too.
  Json machine = read_json(data_file("machines", "machine", grid.machines[0]));
  machine["name"] = "mine";
  grid.machines = {f.at("mine.json")};
  write_file(grid.machines[0], machine.dump());
  const Path other = f.at("other.jsonl");
  run(grid, other);
  write_file(grid.machines[0], machine.dump() + "\n");
  CHECK(says(refusal("", [&] { run(grid, other); }), {"other.jsonl: line 1", "other contents"}));
}

TEST_CASE("two sweeps of one file at once lose nothing" * doctest::test_suite("threads")) {
  const SweepFixture f;
  const SweepGrid grid = f.grid();
  for (int times = 0; times < 10; ++times) {
    const Path out = f.at("both" + std::to_string(times) + ".jsonl");
    std::atomic<int> done = 0;
    const auto sweep = [&] {
      for (;;) {
        try {
          run(grid, out);
          ++done;
          return;
        } catch (const InputError& e) {  // the other has the file: try again
          if (std::string(e.what()).find("another sweep is writing it") == std::string::npos) return;
        }
      }
    };
    std::thread first(sweep), second(sweep);
    first.join();
    second.join();
    CHECK(done == 2);
    CHECK(whole_lines(out).size() == 12);
  }
}

TEST_CASE("lines of another sweep are refused, and stay" * doctest::test_suite("threads")) {
  const SweepFixture f;
  const SweepGrid grid = f.grid();
  const Path out = f.at("out.jsonl");
  run(grid, out);
  const std::string text = read_file(out);
  auto message = [&](const SweepGrid& g) {
    const std::string what = refusal("", [&] { run(g, out); });
    CHECK(says(what, {out.string(), "line 1"}));
    CHECK(read_file(out) == text);
    return what;
  };
  SweepGrid other = grid;
  other.budgets = {"60%", "80%"};
  CHECK(says(message(other), {"another --out"}));
  other = grid;
  other.machines = {"h200-pcie5"};
  message(other);
  other = grid;
  other.traces = {f.at("b.safetensors")};
  message(other);
  other = grid;
  other.batches = {2};
  message(other);

  Json older = Json::parse(lines_of(text)[0]);
  CHECK(older["sweep"]["ferry"] == FERRY_VERSION);
  older["sweep"]["ferry"] = "0.0.1";
  write_file(out, sealed(older) + "\n");
  CHECK(says(refusal("", [&] { run(grid, out); }), {"line 1", "was run by ferry 0.0.1", "another --out"}));
  write_file(out, text);
  CHECK(sealed(Json::parse(lines_of(text)[0])) == lines_of(text)[0]);
  auto damaged = [&](const std::function<void(Json&)>& change, const Lines& parts) {
    Json line = Json::parse(lines_of(text)[0]);
    change(line);
    const bool whole = line.is_object() && line.contains("sweep") && line["sweep"].contains("xxh3");
    const std::string all = (whole ? sealed(line) : line.dump()) + "\n" + text.substr(text.find('\n') + 1);
    write_file(out, all);
    CHECK(says(refusal("", [&] { run(grid, out); }), {out.string(), "line 1"}));
    CHECK(says(refusal("", [&] { run(grid, out); }), parts));
    CHECK(read_file(out) == all);
  };
  damaged([](Json& j) { j = 5; }, {"its checksum is missing", "another --out"});
  damaged([](Json& j) { j.erase("sweep"); }, {"its checksum is missing"});
  damaged([](Json& j) { j["sweep"].erase("xxh3"); }, {"damaged, or of an older ferry", "its checksum is missing"});
  damaged([](Json& j) { j["sweep"].erase("key"); }, {"\"key\" is missing"});
  damaged([](Json& j) { j["sweep"]["index"] = 12; }, {"not in this sweep at its place"});
  damaged([](Json& j) { j["sweep"]["index"] = -1; }, {"\"index\""});
  damaged([](Json& j) { j["sweep"]["index"] = 1; }, {"not in this sweep at its place"});
  for (const char* line : {"", "hello", "{", "{\"text\": \"\xff\"}"}) {
    write_file(out, line + ("\n" + text));
    CHECK(says(refusal("", [&] { run(grid, out); }), {out.string(), "line 1"}));
  }
  // A repeated line is accepted if it is the same, and refused if it contradicts the first.
  write_file(out, text + lines_of(text)[3] + "\n");
  CHECK(run(grid, out).had == 12);
  Json twice = Json::parse(lines_of(text)[3]);
  twice["batch"] = 77;
  write_file(out, text + sealed(twice) + "\n");
  CHECK(says(refusal("", [&] { run(grid, out); }), {out.string(), "stands twice"}));
}

TEST_CASE("a flipped bit anywhere in a sweep's results is found, or its cell runs again" *
          doctest::test_suite("threads")) {
  const SweepFixture f;
  const SweepGrid grid = f.grid();
  const Path whole = f.at("whole.jsonl"), out = f.at("out.jsonl");
  run(grid, whole);
  const std::string text = read_file(whole);
  std::uint32_t refused = 0, again = 0;
  for (std::size_t at = 0; at < text.size(); at += text.size() / 40) {
    CAPTURE(at);
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
    write_file(out, damaged);
    const std::string what = refusal("out.jsonl", [&] { run(grid, out); });
    refused += what.empty() ? 0 : 1;
    again += what.empty() ? 1 : 0;
    CHECK(read_file(out) == (what.empty() ? text : damaged));
  }
  CHECK(refused >= 40);
  // With the last line end changed, the file seems to end in half a line.
  write_file(out, text.substr(0, text.size() - 1) + "\v");
  CHECK(run(grid, out).had == 11);
  CHECK(sorted(whole_lines(out)) == sorted(whole_lines(whole)));
  CHECK(again == 0);
  std::string damaged = text;
  char& byte = damaged[damaged.size() / 2];
  byte = static_cast<char>(byte ^ 1);
  write_file(out, damaged);
  refuses("report " + quoted(out.string()) + " --out " + quoted(f.at("report.html")),
          {"line ", "its checksum differs"});
}

TEST_CASE("a trace that is overwritten while a sweep runs changes none of its cells" * doctest::test_suite("threads")) {
  const SweepFixture f;
  const SweepGrid grid = f.grid();
  const Path trace = grid.traces[0], whole = f.at("whole.jsonl"), out = f.at("out.jsonl");
  run(grid, whole);
  const auto size = static_cast<std::size_t>(std::filesystem::file_size(trace));
  run_sweep(grid, out, {}, 1, never, [&](std::uint64_t done, std::uint64_t, double) {
    std::fstream file(trace, std::ios::binary | std::ios::in | std::ios::out);
    if (done == 1) file << std::string(size, '\xff');  // neither valid scores nor existing experts
    if (done == 6) std::filesystem::resize_file(trace, 0);
  });
  CHECK(read_file(out) == read_file(whole));
}

TEST_CASE("a machine that changes while a sweep runs ends it, and no line is of the other" *
          doctest::test_suite("threads")) {
  const SweepFixture f;
  SweepGrid grid = f.grid();
  const Path out = f.at("out.jsonl");
  Json machine = read_json(data_file("machines", "machine", grid.machines[0]));
  machine["name"] = "mine";
  grid.machines = {f.at("mine.json")};
  write_file(grid.machines[0], machine.dump());
  const std::string what = refusal("mine.json", [&] {
    run_sweep(grid, out, {}, 1, never, [&](std::uint64_t done, std::uint64_t, double) {
      if (done == 2) write_file(grid.machines[0], machine.dump() + "\n");
    });
  });
  CHECK(says(what, {"has changed since the sweep began", "put it back"}));
  CHECK(whole_lines(out).size() == 2);
  write_file(grid.machines[0], machine.dump());
  CHECK(run(grid, out).had == 2);
}

TEST_CASE("a reference model or calibrated stack that has changed is not resumed with") {
  const SweepFixture f;
  // The machine names a shape of the user's own, by which its stated costs are worked out.
  Json machine = Json::parse(machine_file("mine", "0.01", "0.001"));
  machine["stated"]["reference_model"] = f.at("own.json");
  write_file(f.at("mine.json"), machine.dump());
  Json shape = read_json(data_file("shapes", "model shape", "mixtral-8x7b"));
  write_file(f.at("own.json"), shape.dump());
  SweepGrid grid = f.grid();
  grid.machines = {f.at("mine.json")};
  grid.costs = CostSource::stated;
  const Path out = f.at("stated.jsonl");
  REQUIRE(run(grid, out).refused == 0);
  CHECK(run(grid, out).had == 12);
  write_file(f.at("own.json"), shape.dump() + "\n");
  CHECK(says(refusal("", [&] { run(grid, out); }), {"stated.jsonl: line 1", "have changed since"}));
  grid.costs = CostSource::effective;  // for which nobody reads it
  REQUIRE(run(grid, f.at("effective.jsonl")).done == 12);
  write_file(f.at("own.json"), shape.dump());
  CHECK(run(grid, f.at("effective.jsonl")).had == 12);

  // An installation of the test's own, whose calibrated stack changes.
  const Path installed = Path(f.at("installed")) / "share" / "ferry",
             program = Path(f.at("installed")) / "bin" / "ferry";
  std::filesystem::create_directories(program.parent_path());
  std::filesystem::create_directories(installed);
  const std::string to = quoted(program.string());
  REQUIRE(shell("ln " + ferry_program() + " " + to + " || cp " + ferry_program() + " " + to).status == 0);
  for (const char* part : {"machines", "shapes", "calibrated"}) {
    std::filesystem::copy(data_directory() / part, installed / part, std::filesystem::copy_options::recursive);
  }
  TraceFile named{Path(f.at("a.safetensors"))};
  named.trace.name = "tiny-mixtral";
  named.write(f.at("named.safetensors"));
  const std::string sweep = quoted(program.string()) +
                            " sweep --defaults calibrated --machines rtx3090-pcie3 --stacks " +
                            "lru,hobbit --budgets 50% --traces " + quoted(f.at("named.safetensors")) +
                            " --threads 1 --out " + quoted(f.at("c.jsonl"));
  REQUIRE(shell(sweep).status == 0);
  CHECK(shell(sweep).status == 0);
  std::ofstream(installed / "calibrated" / "tiny-mixtral" / "hobbit.json", std::ios::app) << "\n";
  const Shell r = shell(sweep);
  CHECK(r.status == 2);
  CHECK(says(r.out, {"c.jsonl: line 2", "calibrated stack", "have changed since"}));
}

TEST_CASE("a sweep over a trace whose name is not UTF-8 goes on") {
  const SweepFixture f;
  SweepGrid grid = f.grid();
  grid.traces = {f.at("bad\xffname.safetensors")};
  std::filesystem::copy_file(f.at("a.safetensors"), grid.traces[0]);
  REQUIRE(run(grid, f.at("out.jsonl")).done == 12);
  CHECK(run(grid, f.at("out.jsonl")).had == 12);
}

TEST_CASE("results under other costs, sizes, pools, bounds or lengths are another sweep's" *
          doctest::test_suite("threads")) {
  const SweepFixture f;
  const SweepGrid grid = f.grid();
  const Path out = f.at("out.jsonl");
  run(grid, out);
  const std::vector<std::function<void(SweepGrid&)>> changes = {[](SweepGrid& g) { g.costs = CostSource::peak; },
                                                                [](SweepGrid& g) { g.as_shape = "mixtral-8x7b"; },
                                                                [](SweepGrid& g) { g.pools = "one"; },
                                                                [](SweepGrid& g) { g.bounds = BoundsChoice::all; },
                                                                [](SweepGrid& g) { g.max_tokens = 20; },
                                                                [](SweepGrid& g) { g.prefetch_chunk = "1MiB"; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    SweepGrid other = grid;
    changes[i](other);
    CHECK(says(refusal("", [&] { run(other, out); }), {out.string()}));
  }
}

TEST_CASE("traces of one name in two folders are told apart, or refused") {
  const SweepFixture f;
  SweepGrid grid = f.grid();
  grid.traces = {f.at("x/t.safetensors"), f.at("y/t.safetensors")};
  std::set<std::string> keys;
  const std::string message = refusal("", [&] {
    for (const SweepCell& c : cells_of(grid)) keys.insert(c.key());
  });
  if (!message.empty()) {
    CHECK(says(message, {"t.safetensors"}));
  } else {
    CHECK(keys.size() == 24);
  }
}

TEST_CASE("a sweep that is told to stop leaves whole lines, and goes on" * doctest::test_suite("threads")) {
  const SweepFixture f;
  const SweepGrid grid = f.grid();
  const Path whole = f.at("whole.jsonl");
  run(grid, whole);
  for (const std::uint32_t threads : {1U, 4U}) {
    CAPTURE(threads);
    const Path out = f.at("stopped-" + std::to_string(threads) + ".jsonl");
    std::atomic<bool> stop = false;
    std::vector<std::uint64_t> seen;
    const SweepResult r = run_sweep(grid, out, {}, threads, stop, [&](std::uint64_t done, std::uint64_t total, double) {
      CHECK(total == 12);
      seen.push_back(done);
      if (done == 3) stop = true;
    });
    CHECK(r.interrupted);
    CHECK(r.done >= 3);
    CHECK(r.done < 12);
    if (threads == 1) CHECK(r.done == 3);
    REQUIRE(seen.size() == r.done);
    for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == i + 1);
    CHECK(whole_lines(out).size() == r.done);
    const SweepResult rest = run(grid, out, {}, threads);
    CHECK(rest.had == r.done);
    CHECK(rest.done == 12 - r.done);
    CHECK_FALSE(rest.interrupted);
    CHECK(sorted(whole_lines(out)) == sorted(whole_lines(whole)));
  }
  // Before the first cell.
  const std::atomic<bool> at_once = true;
  const SweepResult none = run(grid, f.at("none.jsonl"), {}, 2, at_once);
  CHECK(none.done == 0);
  CHECK(none.interrupted);
  CHECK(whole_lines(f.at("none.jsonl")).empty());
}

TEST_CASE("cells that cannot be become lines with the reason, the others run") {
  const SweepFixture f;
  SweepGrid grid = f.grid();
  grid.traces = {f.at("a.safetensors"), f.at("bare.safetensors")};
  grid.stacks = {"lru", "importance-driven", "cross-layer-lru"};
  grid.budgets = {"1", "50%"};
  grid.parameters.clear();
  const Path out = f.at("out.jsonl");
  const SweepResult r = run(grid, out, {}, 3);
  CHECK(r.done == 12);
  // Trace a refuses three stacks in 1 byte. Trace bare refuses those, too, and with 50% the two whose rows it lacks.
  CHECK(r.refused == 3 + 3 + 2);
  for (const std::string& line : whole_lines(out)) {
    const Json json = Json::parse(line);
    const std::string key = json["sweep"]["key"];
    CAPTURE(key);
    const bool small = key.find(" 1 ") != std::string::npos, bare = key.find("bare") != std::string::npos;
    CHECK(json.contains("refused") == (small || (bare && json["stack"] != "lru")));
    if (!json.contains("refused")) {
      CHECK(json["decode"]["tokens"].get<int>() > 50);
      continue;
    }
    const std::string why = json["refused"];
    if (small && !bare) CHECK(says(why, {"too small"}));
    if (!small && json["stack"] == "importance-driven") CHECK(says(why, {"made-up", "scores"}));
    if (!small && json["stack"] == "cross-layer-lru") CHECK(says(why, {"made-up", "predicted"}));
  }
  CHECK(run(grid, out).had == 12);  // they are not tried again
}

TEST_CASE("the files of three ranks, put together, are the file of one") {
  const SweepFixture f;
  const SweepGrid grid = f.grid();
  const Path one = f.at("one.jsonl"), out = f.at("all.jsonl");
  run(grid, one);
  std::uint64_t done = 0;
  for (std::uint32_t r = 0; r < 3; ++r) {
    const SweepResult result = run(grid, out, {r, 3}, 2);
    CHECK(result.cells == 4);
    done += result.done;
    for (const std::string& line : whole_lines(rank_file(out, {r, 3}))) {
      CHECK(Json::parse(line)["sweep"]["index"].get<std::uint32_t>() % 3 == r);
    }
  }
  CHECK(done == 12);
  CHECK_FALSE(std::filesystem::exists(out));
  CHECK(merge_sweep(grid, out, 3) == 12);
  CHECK(read_file(out) == in_order(whole_lines(one)));
  CHECK(merge_sweep(grid, out, 3) == 12);
  CHECK(merge_sweep(grid, one, 1) == 12);  // one rank's own file is put in order
  CHECK(read_file(one) == read_file(out));
  // More ranks than cells: some have nothing to do.
  for (std::uint32_t r = 0; r < 13; ++r) run(grid, f.at("many.jsonl"), {r, 13});
  CHECK(merge_sweep(grid, f.at("many.jsonl"), 13) == 12);
  CHECK(read_file(f.at("many.jsonl")) == read_file(out));
}

TEST_CASE("files of ranks that do not fit together are refused by name") {
  const SweepFixture f;
  const SweepGrid grid = f.grid();
  const Path out = f.at("all.jsonl");
  for (std::uint32_t r = 0; r < 3; ++r) run(grid, out, {r, 3});
  const std::string old = R"({"sweep":{"index":0}})";
  write_file(out, old);
  const Path second = rank_file(out, {1, 3});
  const std::string text = read_file(second);
  auto merged = [&] {
    const std::string message = refusal("", [&] { merge_sweep(grid, out, 3); });
    CHECK(read_file(out) == old);
    return message;
  };
  std::filesystem::remove(second);
  CHECK(says(merged(), {"all.1-of-3.jsonl: is missing"}));
  write_file(second, text.substr(0, text.size() - 1));  // the last line is cut off: that of cell 10
  CHECK(says(merged(), {"cell 10 of 12", cells_of(grid)[10].key(), "all.1-of-3.jsonl"}));
  write_file(second, text.substr(text.find('\n') + 1));
  CHECK(says(merged(), {"cell 1 of 12", cells_of(grid)[1].key(), "all.1-of-3.jsonl"}));
  write_file(second, text + "hello\n");
  CHECK(says(merged(), {"all.1-of-3.jsonl: line 5"}));
  Json other = Json::parse(lines_of(text)[0]);
  other["batch"] = 9;
  write_file(second, text + sealed(other) + "\n");
  CHECK(says(merged(), {"all.1-of-3.jsonl", "cell 1", "stands twice"}));
  write_file(second, text);
  const Path third = rank_file(out, {2, 3});
  write_file(third, read_file(third) + sealed(other) + "\n");
  CHECK(says(merged(), {"all.2-of-3.jsonl", "cell 1", "another rank's file"}));
  SweepGrid bigger = grid;
  bigger.batches = {1, 2};
  run(grid, third);
  CHECK_FALSE(refusal("", [&] { merge_sweep(bigger, out, 3); }).empty());
}

TEST_CASE("files of ranks that ran with different traces or machines do not go together") {
  const SweepFixture f;
  SweepGrid grid = f.grid();
  grid.stacks = {"lru", "on-demand"};  // so that each rank has another stack
  grid.parameters.clear();
  const Path out = f.at("all.jsonl");
  run(grid, out, {0, 2});
  write_trace(f.at("a.safetensors"), 90, true, 9);
  run(grid, out, {1, 2});
  CHECK(says(refusal("", [&] { merge_sweep(grid, out, 2); }),
             {"all.0-of-2.jsonl", "all.1-of-2.jsonl", "different contents of", "a.safetensors"}));
  CHECK_FALSE(std::filesystem::exists(out));
  std::filesystem::remove(rank_file(out, {0, 2}));
  run(grid, out, {0, 2});
  CHECK(merge_sweep(grid, out, 2) == 4);
}

TEST_CASE("files of ranks have the rank before the extension") {
  CHECK(rank_file("results.jsonl", {3, 16}) == "results.3-of-16.jsonl");
  CHECK(rank_file("results.jsonl", {0, 1}) == "results.jsonl");
  CHECK(rank_file("/a/b.c/results", {0, 2}) == "/a/b.c/results.0-of-2");
  CHECK(rank_file("../x.tar.jsonl", {1, 2}) == "../x.tar.1-of-2.jsonl");
}

TEST_CASE("ranks come from the launcher's variables") {
  const Environment environment;
  auto are = [](std::uint32_t rank, std::uint32_t ranks) {
    const Ranks r = ranks_of_environment();
    CHECK(r.rank == rank);
    CHECK(r.ranks == ranks);
  };
  are(0, 1);
  Environment::set({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "16"}});
  are(3, 16);
  Environment::set({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}});
  are(0, 4);
  Environment::set({{"SLURM_PROCID", "7"}, {"SLURM_STEP_NUM_TASKS", "8"}});
  are(7, 8);
  Environment::set({{"SLURM_ARRAY_TASK_ID", "7"}, {"SLURM_ARRAY_TASK_COUNT", "4"}, {"SLURM_ARRAY_TASK_MIN", "5"}});
  are(2, 4);
  Environment::set({{"SLURM_ARRAY_TASK_ID", "3"}, {"SLURM_ARRAY_TASK_COUNT", "4"}});
  are(3, 4);
  // In a job array, every task is also a job of one process.
  Environment::set({{"SLURM_PROCID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "1"},
                    {"SLURM_ARRAY_TASK_ID", "6"},
                    {"SLURM_ARRAY_TASK_COUNT", "4"},
                    {"SLURM_ARRAY_TASK_MIN", "5"}});
  are(1, 4);
  // mpirun inside a Slurm job.
  Environment::set({{"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "2"},
                    {"SLURM_PROCID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "1"}});
  are(1, 2);
  // Half of a pair counts for nothing, and so does an empty pair.
  Environment::set({{"PMI_RANK", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}});
  are(0, 1);
  Environment::set({{"PMI_RANK", ""}, {"PMI_SIZE", ""}});
  are(0, 1);

  Environment::set({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "0"}});
  CHECK(says(refusal("", [] { ranks_of_environment(); }), {"SLURM_STEP_NUM_TASKS is 0, expected 1 or more"}));
  for (const char* nonsense : {"x", "-1", "3x", " 3", "1.0", "4294967296", "0x1"}) {
    CAPTURE(nonsense);
    Environment::set({{"OMPI_COMM_WORLD_RANK", nonsense}, {"OMPI_COMM_WORLD_SIZE", "16"}});
    CHECK(says(refusal("", [] { ranks_of_environment(); }), {"OMPI_COMM_WORLD_RANK", nonsense, "whole number"}));
    Environment::set({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", nonsense}});
    CHECK(says(refusal("", [] { ranks_of_environment(); }), {"SLURM_STEP_NUM_TASKS", nonsense, "whole number"}));
    Environment::set(
        {{"SLURM_ARRAY_TASK_ID", "1"}, {"SLURM_ARRAY_TASK_COUNT", "2"}, {"SLURM_ARRAY_TASK_MIN", nonsense}});
    CHECK(says(refusal("", [] { ranks_of_environment(); }), {"SLURM_ARRAY_TASK_MIN", nonsense, "whole number"}));
  }
  Environment::set({{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}});
  CHECK(says(refusal("", [] { ranks_of_environment(); }), {"PMI_RANK is 4", "0 to 3", "PMI_SIZE"}));
  Environment::set({{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}});
  CHECK(says(refusal("", [] { ranks_of_environment(); }), {"PMI_SIZE"}));
  Environment::set({{"SLURM_ARRAY_TASK_ID", "4"}, {"SLURM_ARRAY_TASK_COUNT", "4"}, {"SLURM_ARRAY_TASK_MIN", "5"}});
  CHECK(says(refusal("", [] { ranks_of_environment(); }), {"SLURM_ARRAY_TASK_ID is 4", "5 to 8"}));
  Environment::set({{"SLURM_ARRAY_TASK_ID", "9"}, {"SLURM_ARRAY_TASK_COUNT", "4"}, {"SLURM_ARRAY_TASK_MIN", "5"}});
  CHECK(says(refusal("", [] { ranks_of_environment(); }), {"SLURM_ARRAY_TASK_ID is 9", "5 to 8"}));
}

TEST_CASE("a job array may have steps, and ids that are not evenly spaced are refused") {
  const Environment environment;
  auto array = [](const char* id, const char* first, const char* last, const char* step, const char* count) {
    Environment::set({{"SLURM_ARRAY_TASK_ID", id},
                      {"SLURM_ARRAY_TASK_MIN", first},
                      {"SLURM_ARRAY_TASK_MAX", last},
                      {"SLURM_ARRAY_TASK_STEP", step},
                      {"SLURM_ARRAY_TASK_COUNT", count}});
    std::string ranks;
    const std::string refused = refusal("", [&] {
      const Ranks r = ranks_of_environment();
      ranks = std::to_string(r.rank) + " of " + std::to_string(r.ranks);
    });
    return refused.empty() ? ranks : refused;
  };
  CHECK(array("14", "0", "14", "2", "8") == "7 of 8");  // --array=0-15:2
  CHECK(array("6", "0", "15", "2", "8") == "3 of 8");
  CHECK(array("9", "1", "9", "4", "3") == "2 of 3");  // --array=1,5,9
  CHECK(array("3", "3", "3", "1", "1") == "0 of 1");
  const Lines parts = {"SLURM_ARRAY_TASK_ID", "--rank and --ranks"};
  CHECK(says(array("5", "1", "9", "1", "3"), parts));   // from a Slurm that does not report the steps
  CHECK(says(array("2", "1", "7", "1", "3"), parts));   // --array=1,2,7
  CHECK(says(array("3", "0", "14", "2", "8"), parts));  // an id that the array does not have
  CHECK(says(array("16", "0", "14", "2", "8"), parts));
  CHECK(says(array("5", "1", "9", "0", "3"), parts));
  CHECK(says(array("5", "9", "1", "1", "3"), parts));
  CHECK(says(array("0", "0", "4294967295", "1", "4294967295"), parts));
  CHECK(says(array("0", "0", "4294967295", "1", "0"), parts));
}

TEST_CASE("the sweep command runs, splits, merges and says so" * doctest::test_suite("threads")) {
  const Environment environment;
  const SweepFixture f;
  const std::string common = "sweep --traces " + quoted(f.at("a.safetensors")) + "," +
                             quoted(f.at("bare.safetensors")) +
                             " --machines rtx3090-pcie3,h200-pcie5 --stacks lru,hobbit --budgets 50%,80% --t1 0.5,0.6";
  // For each trace, machine and budget: lru, and hobbit twice, which needs the predictions that bare lacks.
  const Outputs r = run_ferry(common + " --out " + quoted(f.at("one.jsonl")) + " --threads 2");
  CHECK(r.status == 0);
  CHECK(says(r.out, {"one.jsonl", "24 of 24 runs", "8 of them refused"}));
  CHECK(r.error.find("ferry: ") == std::string::npos);  // a busy machine shows how far it is
  REQUIRE(whole_lines(f.at("one.jsonl")).size() == 24);
  for (int run = 0; run < 2; ++run) {  // the second finds the first one's line
    refuses("sweep --traces " + quoted(f.at("a.safetensors")) +
                " --machines h200-pcie5 --stacks lru --budgets 0 --out " + quoted(f.at("none.jsonl")),
            {"none.jsonl: every run is refused"});
  }
  CHECK(run_ferry("sweep --traces " + quoted(f.at("a.safetensors")) +
                  " --machines h200-pcie5 --stacks lru --budgets 0 --out " + quoted(f.at("share.jsonl")) +
                  " --rank 0 --ranks 2")
            .status == 0);
  const std::string out = " --out " + quoted(f.at("all.jsonl"));
  refuses(common + out + " --merge 3", {"all.0-of-3.jsonl", "is missing"});
  Environment::set({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "3"}});
  CHECK(says(run_ferry(common + out).out, {"all.0-of-3.jsonl", "8 of 8 runs"}));
  CHECK(says(run_ferry(common + out + " --rank 1 --ranks 3").out, {"all.1-of-3.jsonl", "8 of 8 runs"}));  // options win
  Environment::clear();
  CHECK(run_ferry(common + out + " --rank 2 --ranks 3 --threads 1").status == 0);
  const Outputs merged = run_ferry(common + out + " --merge 3");
  CHECK(merged.status == 0);
  CHECK(says(merged.out, {"all.jsonl", "24 runs"}));
  CHECK(read_file(f.at("all.jsonl")) == in_order(whole_lines(f.at("one.jsonl"))));
  // Nothing is left to do.
  const std::string before = read_file(f.at("one.jsonl"));
  const Outputs again = run_ferry(common + " --out " + quoted(f.at("one.jsonl")));
  CHECK(again.status == 0);
  CHECK(says(again.out, {"8 of them refused"}));
  CHECK(read_file(f.at("one.jsonl")) == before);

  refuses(common + out + " --rank 3 --ranks 3", {"--rank 3", "0 to 2"});
  refuses(common + out + " --rank 1", {"--ranks"});
  Environment::set({{"PMI_RANK", "many"}, {"PMI_SIZE", "3"}});
  refuses(common + out, {"PMI_RANK", "many"});
  Environment::clear();
  refuses(common + " --out " + quoted(f.at("one.jsonl")) + " --batches 2", {"one.jsonl: line 1", "not in this sweep"});
  CHECK(read_file(f.at("one.jsonl")) == before);
}

TEST_CASE("each mistake in a sweep gets one line, before any cell runs" * doctest::test_suite("threads")) {
  const Environment environment;
  const SweepFixture f;
  const std::string trace = " --traces " + quoted(f.at("a.safetensors")), out = " --out " + quoted(f.at("out.jsonl"));
  auto sweep = [&](const std::string& rest) { return "sweep" + trace + out + " --machines rtx3090-pcie3 " + rest; };
  refuses("sweep --stacks lru" + trace + out, {"--machines is required"});
  refuses(sweep(""), {"--stacks is required"});
  refuses("sweep" + trace + " --machines rtx3090-pcie3 --stacks lru", {"--out is required"});
  refuses(sweep("--stacks lru,fats"), {"unknown stack \"fats\"", "did you mean \"fate\"?"});
  refuses(sweep("--stacks lru --t1 0.5"), {"--t1", "lru"});
  refuses(sweep("--stacks hobbit --t1 2"), {"--t1 2", "a number from 0 to 1"});
  refuses(sweep("--stacks resident,on-demand --pools one"), {"--pools", "resident, on-demand"});
  refuses(sweep("--stacks fate --pools one --shallow-layers 2"), {"--shallow-layers", "fate"});
  refuses(sweep("--stacks hobbit --low-bits 3"), {"--low-bits 3", "2, 4 or 8"});
  refuses(sweep("--stacks lru --budgets 50%,lots"), {"--budgets lots", "25%"});
  refuses(sweep("--stacks lru --batches 0"), {"--batches"});
  refuses(sweep("--stacks lru --prefetch-chunk some"), {"--prefetch-chunk some", "25%"});
  refuses(sweep("--stacks lru --threads 0"), {"--threads"});
  refuses(sweep("--stacks lru --costs guessed"), {"--costs"});
  refuses("sweep" + trace + out + " --stacks lru --machines rtx3090-pcie3,rtx3090",
          {"unknown machine \"rtx3090\"", "rtx3090-pcie3"});
  refuses("sweep" + out + " --stacks lru --machines rtx3090-pcie3 --traces " + quoted(f.at("a.safetensors")) + "," +
              quoted(f.at("nowhere")),
          {"nowhere", "cannot open"});
  CHECK_FALSE(std::filesystem::exists(f.at("out.jsonl")));
  refuses("sweep --stacks lru --machines rtx3090-pcie3 --out /nowhere/x.jsonl" + trace,
          {"/nowhere/x.jsonl", "cannot be written"});
}

TEST_CASE("what is wrong for all cells is said before any runs, and leaves no file") {
  const Environment environment;
  const SweepFixture f;
  // Results tell machines apart by the names that stand in their files.
  Json machine = read_json(data_file("machines", "machine", "rtx3090-pcie3"));
  write_file(f.at("other.json"), machine.dump());
  refuses(
      "sweep --stacks lru --traces " + quoted(f.at("a.safetensors")) + " --out " + quoted(f.at("out.jsonl")) +
          " --machines rtx3090-pcie3," + quoted(f.at("other.json")),
      {"--machines: rtx3090-pcie3 and ", "other.json have one name, \"" + machine["name"].get<std::string>() + "\""});
  CHECK_FALSE(std::filesystem::exists(f.at("out.jsonl")));
  const std::string sweep =
      "sweep --stacks lru --traces " + quoted(f.at("a.safetensors")) + " --out " + quoted(f.at("out.jsonl"));
  refuses(sweep + " --machines rtx3090-pcie3 --as mixtral", {"did you mean \"mixtral-8x7b\"?"});
  CHECK_FALSE(std::filesystem::exists(f.at("out.jsonl")));
}

TEST_CASE("a machine that states nothing does not end a sweep over stated costs" * doctest::test_suite("threads")) {
  const SweepFixture f;
  SweepGrid grid = f.grid();
  grid.stacks = {"lru"};
  grid.parameters.clear();
  grid.machines = {"a6000-pcie4", "rtx3090-pcie3"};
  grid.costs = CostSource::stated;
  std::string message;
  SweepResult r;
  message = refusal("", [&] { r = run(grid, f.at("out.jsonl")); });
  CHECK(says(message, {}));
  CHECK(message.empty());
  CHECK(r.done == 4);
  CHECK(r.refused == 2);
}

TEST_CASE("a sweep's results never replace what is no results file" * doctest::test_suite("threads")) {
  const Environment environment;
  const SweepFixture f;
  auto sweep = [&](const std::string& out, const std::string& trace) {
    return "sweep --machines rtx3090-pcie3 --stacks lru --budgets 50% --traces " + quoted(f.at(trace)) + " --out " +
           quoted(f.at(out));
  };
  // The file has no line end: it must not pass for one line that was cut off.
  write_file(f.at("precious.json"), "{\"mine\": 1}");
  refuses(sweep("precious.json", "a.safetensors"), {"precious.json"});
  write_file(f.at("lines.json"), "{\"mine\": 1}\n{\"mine\": 2}\n");
  refuses(sweep("lines.json", "a.safetensors"), {"lines.json: holds no results of a sweep", "another --out"});
  CHECK(read_file(f.at("precious.json")) == "{\"mine\": 1}");
  const std::string trace = read_file(f.at("a.safetensors"));
  refuses(sweep("a.safetensors", "a.safetensors"), {"a.safetensors"});
  CHECK(read_file(f.at("a.safetensors")) == trace);
  std::filesystem::create_directory(f.at("folder"));
  refuses(sweep("folder", "a.safetensors"), {"folder"});
}

TEST_CASE("a pipe where a sweep's results should go does not hang" * doctest::test_suite("threads")) {
  const Environment environment;
  const SweepFixture f;
  ::mkfifo(f.at("pipe").c_str(), 0600);
  refuses("sweep --machines rtx3090-pcie3 --stacks lru --traces " + quoted(f.at("a.safetensors")) + " --out " +
              quoted(f.at("pipe")),
          {"pipe", "not a regular file"});
}

TEST_CASE("Ctrl-C ends a sweep with whole lines and exit status 130, and the same command goes on" *
          doctest::test_suite("threads")) {
  const Environment environment;
  const SweepFixture f;
  write_trace(f.at("long.safetensors"), 3000, false, 4);
  // More cells than anybody would wait for.
  std::string budgets = "30";
  for (int b = 31; b < 90; ++b) budgets += "%," + std::to_string(b);
  const std::string command =
      "sweep --traces " + quoted(f.at("long.safetensors")) +
      " --machines rtx3090-pcie3,h200-pcie5,a6000-pcie4,orin-nvme --stacks lru,mixtral-offloading,on-demand"
      " --batches 1,2,3,4 --threads 2 --out " +
      quoted(f.at("out.jsonl")) + " --budgets " + budgets + "%";
  auto lines_there = [&] {
    const std::string text = read_file(f.at("out.jsonl"));
    return std::count(text.begin(), text.end(), '\n');
  };
  std::ptrdiff_t had = 0;
  std::string before;
  for (int i = 0; i < 2; ++i) {
    const Outputs r = run_ferry(command, [&] { return lines_there() > had + 2; });
    CHECK(r.status == 130);
    CHECK(says(r.out, {"of 2880 runs", "interrupted", "goes on"}));
    const std::string text = read_file(f.at("out.jsonl"));
    const auto lines = static_cast<std::ptrdiff_t>(whole_lines(f.at("out.jsonl")).size());
    CHECK(lines > had);
    CHECK(lines < 2880);
    CHECK(text.starts_with(before));
    CHECK(says(r.out, {": " + std::to_string(lines) + " of"}));
    had = lines;
    before = text;
  }
}

TEST_CASE("simulate writes JSON with the stable keys, the same every time") {
  const SweepFixture f;
  const std::string json = f.at("r.json"), again = f.at("s.json");
  const std::string command = "simulate --trace " + quoted(f.at("a.safetensors")) +
                              " --stack cross-layer-lru --budget 50% --batch 2 --bounds all --json ";
  const Outputs r = run_ferry(command + quoted(json));
  REQUIRE(r.status == 0);
  CHECK(r.error.empty());
  CHECK(says(r.out, {"cross-layer-lru", "time per output token", "clairvoyant bound", "Belady"}));
  const Json j = Json::parse(read_file(json));
  for (const char* key : {"ferry",
                          "model",
                          "stack",
                          "machine",
                          "device",
                          "trace",
                          "costs",
                          "as_shape",
                          "parameters",
                          "budget_asked_bytes",
                          "budget_asked_percent",
                          "budget_bytes",
                          "budget_percent",
                          "all_expert_bytes",
                          "dense_bytes",
                          "batch",
                          "link_bytes_per_s",
                          "ttft_s",
                          "prefill",
                          "decode",
                          "prefetch",
                          "bytes_by_precision",
                          "hit_rate_by_layer",
                          "time",
                          "stall_s",
                          "bounds",
                          "interrupted"}) {
    CHECK_MESSAGE(j.contains(key), key);
  }
  for (const char* phase : {"prefill", "decode"}) {
    for (const char* key : {"tokens", "time_s", "requests", "hits", "late_hits", "misses", "substituted", "skipped",
                            "host_computed", "bytes"}) {
      CHECK_MESSAGE(j[phase].contains(key), phase << " " << key);
    }
    for (const char* key : {"total_s", "stall_s", "host_s", "host_wait_s", "link_busy_s"}) {
      CHECK_MESSAGE(j["time"][phase].contains(key), phase << " " << key);
    }
    const Json& p = j[phase];
    CHECK(p["hits"].get<int>() + p["late_hits"].get<int>() + p["misses"].get<int>() == p["requests"].get<int>());
    CHECK(p["time_s"] == j["time"][phase]["total_s"]);
  }
  CHECK(j["device"] == "virtual clock");
  CHECK(j["model"] == "made-up");
  CHECK(j["machine"] == "rtx3090-pcie3");
  CHECK(j["trace"] == "a.safetensors");
  CHECK(j["costs"] == "effective");
  CHECK(j["as_shape"].is_null());
  CHECK(j["batch"] == 2);
  CHECK(j["interrupted"] == false);
  CHECK(j["hit_rate_by_layer"].size() == 4);
  // Sequences of 40, 40 and 10 tokens, 6 of each prompt.
  CHECK(j["prefill"]["tokens"] == 18);
  CHECK(j["decode"]["tokens"] == 72);
  CHECK(j["all_expert_bytes"] == 32 * 1'000'000);
  CHECK(j["budget_asked_bytes"] == 16 * 1'000'000);
  CHECK(j["budget_asked_percent"] == 50);
  CHECK(j["link_bytes_per_s"] == 12'400'000'000);
  const double tpot = j["decode"]["tpot_s"], resident = j["bounds"]["all_resident_tpot_s"],
               least = j["bounds"]["clairvoyant_tpot_s"];
  CHECK(resident > 0);
  CHECK(resident <= least);
  CHECK(least <= tpot);
  CHECK(j["bounds"]["clairvoyant_with_host_tpot_s"].get<double>() <= least);
  for (const char* key : {"perfect_prediction", "belady_cache", "prediction_and_cache"}) {
    CHECK_MESSAGE(j["bounds"][key].contains("tpot_s"), key);
    CHECK_MESSAGE(j["bounds"][key].contains("hit_rate"), key);
    CHECK(j["bounds"][key]["tpot_s"].get<double>() >= least);
  }
  CHECK(j["bounds"]["belady_hit_rate"].get<double>() > 0);
  CHECK(run_ferry(command + quoted(again)).status == 0);
  CHECK(result(json) == result(again));
  CHECK(j["command_line"][1] == "simulate");

  // Several stacks: an array. Without bounds: none.
  CHECK(run_ferry("simulate --bounds none --trace " + quoted(f.at("a.safetensors")) +
                  " --stacks lru,hobbit --t1 0.6 --budget 60% --json " + quoted(json))
            .status == 0);
  const Json both = Json::parse(read_file(json));
  REQUIRE(both.size() == 2);
  CHECK(both[0]["stack"] == "lru");
  CHECK(both[1]["stack"] == "hobbit");
  CHECK(both[0]["parameters"] == Json::object());  // lru takes none
  CHECK(both[1]["parameters"] == Json({{"t1", 0.6}}));
  CHECK(both[1]["bounds"]["clairvoyant_tpot_s"] == 0);
}

TEST_CASE("the time to the first token is that of prompts that a simulation got through") {
  const SweepFixture f;
  const std::string simulate = "simulate --stack lru --budget 50% --prefill-chunk 2 --trace " +
                               quoted(f.at("a.safetensors")) + " --json " + quoted(f.at("r.json")) + " --tokens ";
  const auto first_token = [&](int tokens) {
    REQUIRE(run_ferry(simulate + std::to_string(tokens)).status == 0);
    return result(f.at("r.json"))["ttft_s"].get<double>();
  };
  // Sequences of 40 tokens, 6 of them prompt, in steps of two.
  CHECK(first_token(4) == 0);
  const double one = first_token(6);
  CHECK(one > 0);
  for (const int tokens : {7, 40, 42, 44}) CHECK(first_token(tokens) == one);
  const double two = first_token(46);
  CHECK(two != one);
  CHECK(first_token(80) == two);
}

TEST_CASE("simulate stops after so many tokens, and draws a timeline") {
  const SweepFixture f;
  const std::string json = f.at("r.json"), timeline = f.at("t.json");
  const Outputs r =
      run_ferry("simulate --tokens 20 --trace " + quoted(f.at("a.safetensors")) +
                " --stack importance-driven --budget 50% --json " + quoted(json) + " --timeline " + quoted(timeline));
  REQUIRE(r.status == 0);
  const Json j = Json::parse(read_file(json));
  CHECK(j["prefill"]["tokens"] == 6);
  CHECK(j["decode"]["tokens"] == 14);
  const Json t = Json::parse(read_file(timeline));
  std::set<int> lanes;
  for (const Json& e : t["traceEvents"]) {
    if (e["ph"] != "X") continue;
    lanes.insert(e["tid"].get<int>());
    CHECK(e["dur"].get<double>() >= 0);
  }
  CHECK(lanes.contains(0));  // device
  CHECK(lanes.contains(1));  // link
}

TEST_CASE("a machine of the user's own and another model's sizes can be simulated") {
  const SweepFixture f;
  std::filesystem::copy_file(data_file("machines", "machine", "h200-pcie5"), f.at("mine.json"));
  const std::string common =
      "simulate --trace " + quoted(f.at("a.safetensors")) + " --budget 50% --json " + quoted(f.at("r.json"));
  auto tpot = [&](const std::string& rest) {
    CHECK(run_ferry(common + rest).status == 0);
    return Json::parse(read_file(f.at("r.json")))["decode"]["tpot_s"].get<double>();
  };
  const double mine = tpot(" --machine " + quoted(f.at("mine.json")));
  CHECK(mine == tpot(" --machine h200-pcie5"));
  CHECK(mine < tpot(" --machine rtx3090-pcie3"));
  CHECK(mine > tpot(" --machine h200-pcie5 --costs peak"));
  CHECK(mine < tpot(" --machine h200-pcie5 --as mixtral-8x7b"));
  CHECK(Json::parse(read_file(f.at("r.json")))["as_shape"] == "mixtral-8x7b");
}

TEST_CASE("a sweep has lists of words, too") {
  const SweepFixture f;
  const std::string common = "--budgets 60% --machines rtx3090-pcie3 --traces " + quoted(f.at("a.safetensors"));
  const Outputs r = run_ferry(
      "sweep --stacks 'importance-driven, fate' --placement device,best-split,two-pointer "
      "--low-on-miss 'yes, no' --out " +
      quoted(f.at("w.jsonl")) + " " + common);
  CHECK(r.status == 0);
  std::set<std::string> keys, placements;
  for (const std::string& line : whole_lines(f.at("w.jsonl"))) {
    const Json j = Json::parse(line);
    REQUIRE_FALSE(j.contains("refused"));
    keys.insert(j["sweep"]["key"].get<std::string>());
    if (j["stack"] != "importance-driven") continue;
    placements.insert(j["parameters"]["placement"].get<std::string>());
    CHECK(run_ferry("simulate --stack importance-driven --budget 60% --machine rtx3090-pcie3 --placement " +
                    j["parameters"]["placement"].get<std::string>() + " --trace " + quoted(f.at("a.safetensors")) +
                    " --json " + quoted(f.at("one.json")))
              .status == 0);
    Json alone = j;
    alone.erase("sweep");
    CHECK(alone == result(f.at("one.json")));
  }
  CHECK(keys.size() == 3 + 2);
  CHECK(placements == std::set<std::string>{"device", "best-split", "two-pointer"});
  refuses("sweep --stacks importance-driven --placement device,everywhere --out x.jsonl " + common,
          {"--placement everywhere", "one of device, host"});
}

TEST_CASE("simulations take what was calibrated for a trace's model where that is asked for") {
  const SweepFixture f;
  TraceFile named{Path(f.at("a.safetensors"))};
  named.trace.name = "tiny-mixtral";
  named.write(f.at("named.safetensors"));
  const Json shipped = read_json(data_directory() / "calibrated" / "tiny-mixtral" / "hobbit.json")["parameters"];
  REQUIRE_FALSE(shipped.empty());
  const std::string simulate = "simulate --stack hobbit --budget 60% --json " + quoted(f.at("r.json")) + " --trace ";
  auto simulated = [&](const std::string& rest) {
    const Outputs r = run_ferry(simulate + rest);
    CHECK(r.status == 0);
    return std::pair(result(f.at("r.json")), r.out);
  };
  const auto [found, said] = simulated(quoted(f.at("named.safetensors")) + " --defaults calibrated");
  CHECK(found["parameters"] == shipped);
  CHECK(found["calibrated"] == "calibrated/tiny-mixtral/hobbit.json");
  CHECK(said.find("hobbit: calibrated for tiny-mixtral") != std::string::npos);
  for (const std::string& rest :
       {quoted(f.at("named.safetensors")), quoted(f.at("a.safetensors")) + " --defaults calibrated"}) {
    const auto [paper, nothing] = simulated(rest);
    CHECK(paper["parameters"].empty());
    CHECK_FALSE(paper.contains("calibrated"));
    CHECK(nothing.find("calibrated") == std::string::npos);
  }
  SweepGrid grid;
  grid.traces = {f.at("named.safetensors"), f.at("a.safetensors")};
  grid.machines = {"rtx3090-pcie3"};
  grid.stacks = {"hobbit"};
  grid.budgets = {"60%"};
  grid.calibrated = true;
  CHECK(run(grid, f.at("c.jsonl")).refused == 0);
  for (const std::string& line : whole_lines(f.at("c.jsonl"))) {
    Json j = Json::parse(line);
    CHECK(says(j["sweep"]["key"], {"defaults=calibrated"}));
    CHECK(j.contains("calibrated") == (j["trace"] == "named.safetensors"));
    j.erase("sweep");
    if (j.contains("calibrated"))
      CHECK(j == simulated(quoted(f.at("named.safetensors")) + " --defaults calibrated").first);
  }
}

TEST_CASE("a budget in bytes is of the model that is counted, and so is all that is reported") {
  const SweepFixture f;
  // The oracle is the same routing, recorded from a model whose experts have the other model's sizes.
  const ModelFacts mixtral = read_shape("mixtral-8x7b");
  TraceFile a{Path(f.at("a.safetensors"))}, large;
  auto values = [](auto& to, const auto& from) { to.assign(from.begin(), from.end()); };
  large.trace.name = a.trace.name;
  large.trace.model = a.trace.model;
  large.trace.model.expert_bytes = mixtral.model.expert_bytes;
  large.trace.ahead = a.trace.ahead;
  large.work = mixtral.work;
  values(large.experts, a.trace.experts8);
  values(large.weights, a.trace.weights);
  values(large.scores, a.trace.scores);
  values(large.predicted, a.trace.predicted);
  values(large.partial, a.trace.partial);
  values(large.phase, a.trace.phase);
  values(large.sequence_start, a.trace.sequence_start);
  large.view();
  large.write(f.at("large.safetensors"));
  const std::uint64_t expert = mixtral.model.bytes(0, Precision::full), all = 32 * expert;
  for (const std::string stack : {"lru", "fate", "hobbit", "importance-driven"}) {
    CAPTURE(stack);
    auto simulated = [&](const std::string& rest) {
      const std::string json = f.at("as.json");
      CHECK(run_ferry("simulate --machine rtx3090-pcie3 --stack " + stack + " --budget " + std::to_string(all / 2) +
                      " --json " + quoted(json) + " --trace " + rest)
                .status == 0);
      Json j = result(json);
      for (const char* key : {"as_shape", "trace"}) j.erase(key);
      return j;
    };
    const Json as = simulated(quoted(f.at("a.safetensors")) + " --as mixtral-8x7b");
    CHECK(as == simulated(quoted(f.at("large.safetensors"))));
    CHECK(as["all_expert_bytes"] == all);
    CHECK(as["budget_asked_percent"].get<double>() == doctest::Approx(50));
    CHECK(as["decode"]["bytes"].get<std::uint64_t>() >= expert / 8);
  }
}

TEST_CASE("every stack runs on routing without scores, once somebody says how well it is predicted") {
  const SweepFixture f;
  const std::string bare = "simulate --budget 60% --trace " + quoted(f.at("bare.safetensors")),
                    json = " --json " + quoted(f.at("r.json"));
  refuses(bare + " --stack importance-driven", {"\"scores\"", "--assume-recall 0.79,0.97"});
  refuses(bare + " --stack fate", {"\"predicted\"", "--assume-recall 0.79,0.97"});
  refuses(bare + " --stacks lru,fate", {"fate: the trace of made-up"});
  refuses(bare + " --stack fate --assume-recall 0.9,0.5", {"--assume-recall 0.9,0.5", "no smaller than the first"});
  refuses(bare + " --stack fate --assume-recall 0.5,0.6,0.7", {"--assume-recall 0.5,0.6,0.7", "one or two"});
  refuses(bare + " --stack fate --assume-seed 3", {"--assume-seed", "--assume-recall"});

  for (const StackInfo& s : all_stacks()) {
    CAPTURE(s.name);
    const Outputs r =
        run_ferry(bare + json + " --assume-recall 0.79,0.97 --assume-seed 3 --stack " + std::string(s.name));
    CHECK(r.status == 0);
    const Json j = Json::parse(read_file(f.at("r.json")));
    const bool reads_more = run_ferry(bare + " --stack " + std::string(s.name)).status != 0;
    CHECK(j.contains("assumed") == reads_more);
    CHECK((r.out.find("made up, not recorded (--assume-recall") != std::string::npos) == reads_more);
    if (!reads_more) continue;
    CHECK(j["assumed"]["recall_top_k"] == 0.79);
    CHECK(j["assumed"]["recall_candidates"] == 0.97);
    CHECK(j["assumed"]["seed"] == 3);
    CHECK_FALSE(j["assumed"]["what"].empty());
  }

  // Rows that a trace has are read as they are.
  const std::string whole = "simulate --budget 60% --stack hobbit --trace " + quoted(f.at("a.safetensors")) + json;
  CHECK(run_ferry(whole).status == 0);
  const Json recorded = result(f.at("r.json"));
  CHECK(run_ferry(whole + " --assume-recall 0.1,0.2").status == 0);
  CHECK(result(f.at("r.json")) == recorded);

  // Predictions that are always right hide what those that are always wrong do not.
  auto tpot = [&](const std::string& recall) {
    CHECK(run_ferry(bare + json + " --stack fate --assume-recall " + recall).status == 0);
    return Json::parse(read_file(f.at("r.json")))["decode"]["tpot_s"].get<double>();
  };
  CHECK(tpot("1") < tpot("0"));
}

TEST_CASE("a sweep makes up the same rows as a simulation, and its results say so") {
  const SweepFixture f;
  SweepGrid grid;
  grid.traces = {f.at("bare.safetensors")};
  grid.machines = {"rtx3090-pcie3"};
  grid.stacks = {"lru", "fate", "importance-driven", "hobbit"};
  grid.budgets = {"60%"};
  CHECK(run(grid, f.at("plain.jsonl")).refused == 3);
  grid.assumed = AssumedRecall{0.79, 0.97, 3};
  CHECK(run(grid, f.at("r.jsonl")).refused == 0);
  for (const std::string& line : whole_lines(f.at("r.jsonl"))) {
    Json j = Json::parse(line);
    CHECK(says(j["sweep"]["key"], {"assume-recall=0.79,0.97", "assume-seed=3"}));
    CHECK(run_ferry("simulate --budget 60% --assume-recall 0.79,0.97 --assume-seed 3 --trace " +
                    quoted(f.at("bare.safetensors")) + " --json " + quoted(f.at("one.json")) + " --stack " +
                    j["stack"].get<std::string>())
              .status == 0);
    j.erase("sweep");
    CHECK(j == result(f.at("one.json")));
  }
  // With another seed of the assumed predictions it is another sweep.
  grid.assumed->seed = 4;
  CHECK(says(refusal("", [&] { run(grid, f.at("r.jsonl")); }), {"r.jsonl"}));
  refuses("sweep --traces " + quoted(f.at("bare.safetensors")) +
              " --machines rtx3090-pcie3 --stacks fate --budgets 50%" + " --assume-recall 2 --out " +
              quoted(f.at("never.jsonl")),
          {"--assume-recall 2,2"});
  CHECK_FALSE(std::filesystem::exists(f.at("never.jsonl")));
}

TEST_CASE("a model that is not stored at a stack's precision is refused with one that works") {
  const SweepFixture f;
  TraceFile t;
  t.trace.name = "bits-2-only";
  t.trace.model.layers = 2;
  t.trace.model.experts = 4;
  t.trace.model.top_k = 1;
  t.trace.model.renormalise = Renormalise::yes;
  t.trace.model.expert_bytes = {{0, 250, 0, 0, 1000}};
  t.work = {{1, 1, 1}};
  t.sequence_start = {0};
  for (std::uint32_t i = 0; i < 20; ++i) {
    t.experts.insert(t.experts.end(), {static_cast<std::uint16_t>(i % 4), static_cast<std::uint16_t>(i % 3)});
  }
  t.weights.assign(t.experts.size(), 1);
  t.view();
  t.write(f.at("t.safetensors"));
  const std::string command =
      "simulate --stack hobbit --budget 3000 --assume-recall 0.8 --trace " + quoted(f.at("t.safetensors"));
  refuses(command, {"INT4", "--low-bits 2 works"});
  CHECK(run_ferry(command + " --low-bits 2").status == 0);
}

TEST_CASE("each mistake in a simulation gets one line and leaves no file") {
  const SweepFixture f;
  const std::string trace = " --trace " + quoted(f.at("a.safetensors")),
                    bare = " --trace " + quoted(f.at("bare.safetensors"));
  const std::string x = quoted(f.at("x.json")), y = quoted(f.at("y.json"));
  refuses("simulate", {"--trace is required"});
  refuses("simulate --trace ''", {"--trace", "must not be empty"});
  refuses("simulate --trace /nowhere/t --json " + x, {"/nowhere/t", "cannot open"});
  refuses("simulate --machine rtx4090-pcie3 --json " + x + trace,
          {"unknown machine \"rtx4090-pcie3\": did you mean \"rtx"});
  refuses("simulate --machine rtx3090-pcie --json " + x + trace, {"did you mean \"rtx3090-pcie3\"?"});
  refuses("simulate --stacks lru,on-demand --json " + y + " --timeline " + x + trace, {"--timeline", "2 are named"});
  refuses("simulate --stack lur --json " + x + trace, {"unknown stack \"lur\": did you mean \"lru\"?"});
  refuses("simulate --stack lru --t1 0.5 --json " + x + trace, {"--t1: lru has no such parameter", "hobbit"});
  refuses("simulate --budget 5 --json " + x + trace, {"budget of 5 bytes is too small"});
  refuses("simulate --budget lots --json " + x + trace, {"--budget lots"});
  refuses("simulate --prefetch-chunk 1M --json " + x + trace, {"--prefetch-chunk 1M", "64MiB"});
  refuses("simulate --batch 0 --json " + x + trace, {"--batch"});
  refuses("simulate --prefill-chunk 0 --json " + x + trace, {"--prefill-chunk"});
  refuses("simulate --tokens 0 --json " + x + trace, {"--tokens"});
  refuses("simulate --costs stated --machine h200-pcie5 --json " + x + trace, {"h200-pcie5", "no \"stated\" times"});
  refuses("simulate --as mixtral --json " + x + trace, {"unknown model shape \"mixtral\"", "mixtral-8x7b"});
  refuses("simulate --stack importance-driven --json " + x + bare, {"made-up", "scores"});
  refuses("simulate --stack cross-layer-lru --json " + x + bare, {"made-up", "\"predicted\""});
  refuses("simulate --stack hobbit --t1 0.9 --t2 0.5 --json " + x + trace, {"t1", "0.9", "0.5"});
  refuses("simulate --stack hobbit --t1 nan --json " + x + trace, {"t1"});
  refuses("simulate --stacks resident,on-demand --pools one --json " + x + trace,
          {"--pools: resident, on-demand has no such parameter", "lru"});
  refuses("simulate --stack fate --pools one --shallow-layers 2 --json " + x + trace,
          {"--shallow-layers: fate has no such parameter", "with these pools"});
  refuses("simulate --json " + x + " --timeline " + x + trace, {"named for two outputs"});
  refuses("simulate --json " + quoted(f.at("a.safetensors")) + trace, {"a.safetensors", "is read by this run"});
  refuses("simulate --json /nowhere/x.json" + trace, {"/nowhere/x.json", "cannot be written"});
  CHECK_FALSE(std::filesystem::exists(f.at("x.json")));
  CHECK_FALSE(std::filesystem::exists(f.at("y.json")));
}

TEST_CASE("traces are imported and inspected, and strangers' names do not reach the terminal as commands") {
  const SweepFixture f;
  write_file(f.at("shape.json"),
             R"({"name":"tiny","layers":1,"experts":4,"top_k":1,"hidden":64,"expert_width":64,)"
             R"("shared_width":0,"attention_params":1000,"bits_per_weight":16,"dense_bits_per_weight":16})");
  write_file(f.at("r.csv"),
             "# n_layer=1 n_expert=4 n_expert_used=1\n# layer=0 expert_bytes=900 dense_bytes=10\n"
             "turn,phase,step,layer,slot,expert,weight\n0,0,0,0,0,3,1\n0,1,1,0,0,2,1\n");
  const std::string import = "trace import --shape " + quoted(f.at("shape.json")) + " ";
  const Outputs made = run_ferry(import + quoted(f.at("r.csv")) + " --out " + quoted(f.at("t.safetensors")));
  CHECK(made.status == 0);
  CHECK(says(made.out, {"t.safetensors: 2 tokens in 1 sequences"}));
  const Outputs shown = run_ferry("trace inspect " + quoted(f.at("t.safetensors")));
  CHECK(shown.status == 0);
  CHECK(says(shown.out,
             {"tiny", "1 layers of 4 experts, top-1", "900 bytes", "1 of prompts", "experts, weights", "r.csv"}));
  CHECK(run_ferry("simulate --stack on-demand --budget 100% --trace " + quoted(f.at("t.safetensors"))).status == 0);
  refuses(import + quoted(f.at("r.csv")) + " --out " + quoted(f.at("r.csv")), {"r.csv", "is read by this run"});
  refuses(import + quoted(f.at("a.safetensors")) + " --out " + quoted(f.at("u.safetensors")),
          {"a.safetensors", "4 layers", "tiny has 1"});
  refuses("trace inspect " + quoted(f.at("r.csv")), {"r.csv", "not a usable safetensors file"});
  refuses("trace import " + quoted(f.at("r.csv")) + " --out x", {"--shape is required"});
  CHECK_FALSE(std::filesystem::exists(f.at("u.safetensors")));

  TraceFile odd;
  odd.trace.name = "a\x1b[31m\nb";
  odd.trace.model.layers = odd.trace.model.experts = odd.trace.model.top_k = 1;
  odd.trace.model.renormalise = Renormalise::yes;
  odd.trace.model.expert_bytes = {{0, 0, 0, 0, 5}};
  odd.source = odd.residency = "c\x1b]0;d\x07";
  odd.work = {{1, 1, 1}};
  odd.experts = {0};
  odd.partial = {1.0F};
  odd.sequence_start = {0};
  odd.view();
  odd.write(f.at("odd.safetensors"));
  const Outputs odd_shown = run_ferry("trace inspect " + quoted(f.at("odd.safetensors")));
  CHECK(odd_shown.status == 0);
  CHECK(odd_shown.out.find('\x1b') == std::string::npos);
  CHECK(odd_shown.out.find('\x07') == std::string::npos);
}

TEST_CASE("a model whose tables no machine holds is refused before they are made") {
  const SweepFixture f;
  auto write = [&](const char* name, std::uint16_t layers) {
    TraceFile huge;
    huge.trace.name = "huge";
    huge.trace.model.layers = layers;
    huge.trace.model.experts = 65534;
    huge.trace.model.top_k = 1;
    huge.trace.model.renormalise = Renormalise::yes;
    huge.trace.model.expert_bytes = {{0, 0, 0, 0, 1000}};
    huge.work = {{1, 1, 1}};
    huge.experts.assign(layers, 0);
    huge.sequence_start = {0};
    huge.view();
    huge.write(f.at(name));
    return quoted(f.at(name));
  };
  refuses("simulate --trace " + write("most.safetensors", 257),
          {"257 layers of 65534 experts", "expected at most 16777216"});
  // Activation paths count pairs of experts in adjacent layers: 256 * 65534^2 counters of 4 bytes.
  refuses("simulate --stack activation-path-full --trace " + write("huge.safetensors", 256),
          {"activation-path-full needs 4", "256 layers of 65534 experts", "80% of this machine's memory"});
}

TEST_CASE("endless nesting in a file is a damaged file, not a crash") {
  const SweepFixture f;
  const std::string nested = std::string(500'000, '[') + std::string(500'000, ']');
  write_file(f.at("deep.json"), "{\"name\":" + nested + "}");
  const Json metadata = {{"format", "ferry-trace 1"}, {"model", "{\"name\":\"m\",\"layers\":" + nested + "}"}};
  write_file(f.at("deep.safetensors"), safetensors_file(Json({{"__metadata__", metadata}}).dump(), ""));
  write_file(f.at("shape.safetensors"),
             safetensors_file(R"({"a":{"dtype":"F32","shape":[)" + nested + R"(],"data_offsets":[0,0]}})", ""));
  const std::string trace = quoted(f.at("a.safetensors"));
  refuses("simulate --trace " + trace + " --machine " + quoted(f.at("deep.json")), {"deep.json"});
  refuses("simulate --trace " + trace + " --as " + quoted(f.at("deep.json")), {"deep.json"});
  refuses("trace inspect " + quoted(f.at("deep.safetensors")), {"deep.safetensors"});
  refuses("trace inspect " + quoted(f.at("shape.safetensors")), {"shape.safetensors"});
}
