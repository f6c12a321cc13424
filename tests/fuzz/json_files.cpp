// JSON files of users: machines, shapes, runs and timelines for a page, lines of a sweep. The first letter says which.
#include <cstring>
#include <sstream>

#include "ferry/timeline.hpp"
#include "fuzz/fuzz.hpp"
#include "profiles/machine.hpp"
#include "report/html_report.hpp"
#include "support/checksum.hpp"
#include "support/errors.hpp"
#include "sweep/simulated_run.hpp"
#include "sweep/sweep.hpp"

namespace ferry::fuzz {
namespace {

using namespace engine;

void use_machine(const std::string& text) {
  const Machine machine = read_machine(file("in.json", text).string());
  static_cast<void>(machine.ratio());
  static const ModelFacts large = read_shape("mixtral-8x7b");
  for (const CostSource source : {CostSource::effective, CostSource::peak, CostSource::stated}) {
    const Costs costs = machine.costs(large.work, source);
    costs.validate(large.model);
    as_if(costs, large, small_model().model).validate(small_model().model);
    if (!machine.stated) break;
  }
}

void use_shape(const std::string& text) {
  const ModelFacts shape = read_shape(file("in.json", text).string());
  static const Machine machine = read_machine("rtx3090-pcie3");
  as_if(machine.costs(shape.work, CostSource::effective), shape, small_model().model).validate(small_model().model);
}

void use_runs(const std::string& text) {
  std::vector<Json> runs;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) runs.push_back(parse_json(line, "in"));
  static_cast<void>(html_report(runs, {}, "title"));
}

const std::string& runs() {
  static const std::string lines = [] {
    const auto trace = small_trace(true, 2, 2, 4);
    SimulatedSetting setting;
    setting.trace = trace.get();
    setting.trace_name = "small";
    setting.machine = read_machine("rtx3090-pcie3");
    std::string text;
    for (const char* stack : {"lru", "hobbit"}) {
      SimulateOptions o;
      o.stack = stack;
      o.budget_bytes = trace->trace.model.all_bytes() / 2;
      text += to_json(run_simulation(setting, o, {{"t1", 0.5}})).dump() + '\n';
    }
    return text + R"({"refused":"too small","stack":"lru"})";
  }();
  return lines;
}

std::string timeline() {
  SimulateOptions o;
  o.stack = "lru";
  const auto trace = small_trace(true, 1, 1, 2);
  o.budget_bytes = trace->trace.model.all_bytes();
  o.log = true;
  std::ostringstream text;
  write_trace_events(text, simulate(trace->trace, read_machine("rtx3090-pcie3").costs(trace->work, {}), o).spans);
  return text.str();
}

SweepGrid grid() {
  SweepGrid g;
  g.traces = {"t.safetensors"};
  g.machines = {"m"};
  g.stacks = {"lru", "fate"};
  g.budgets = {"25%"};
  return g;
}

std::string sweep_lines() {
  std::string text;
  const auto cells = cells_of(grid());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += Json{{"stack", "lru"},
                 {"sweep", {{"index", i}, {"cells", 2}, {"key", cells[i].key()}, {"inputs", ""}, {"xxh3", unsealed}}}}
                .dump() +
            '\n';
  }
  return text;
}

/// Gives each changed line its new checksum: otherwise the checksum alone would refuse every change.
std::string sealed(const std::string& text) {
  const std::string field = "\"xxh3\":\"";
  std::istringstream in(text);
  std::string all;
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.rfind(field), digits = std::strlen(unsealed);
    if (at != std::string::npos && line.size() - at >= field.size() + digits) {
      line.replace(at + field.size(), digits, unsealed);
      seal(line);
    }
    all += line + '\n';
  }
  return all;
}

}  // namespace

void read(const std::string& input) {
  const std::string text = input.substr(std::min<std::size_t>(1, input.size()));
  switch (input.empty() ? '?' : input[0]) {
    case 'm':
      return use_machine(text);
    case 's':
      return use_shape(text);
    case 'r':
      return use_runs(text);
    case 't': {
      static const Json run = parse_json(runs().substr(0, runs().find('\n')), "run");
      return static_cast<void>(html_report({run}, {{"name", parse_json(text, "in")}}, "title"));
    }
    case 'w':
      return static_cast<void>(merge_sweep(grid(), file("in.jsonl", sealed(text)), 1));
    default:
      return;
  }
}

/// Mutates one of the lines, if there are several.
std::string mutate(const std::string& input, std::size_t most, std::uint64_t seed) {
  if (input.size() < 2 || input.size() > most || seed % 4 == 0) return mutate_bytes(input, most);
  const std::size_t aim = 1 + seed / 4 % (input.size() - 1), before = input.rfind('\n', aim - 1);
  const bool lines = input[0] == 'r' || input[0] == 'w';
  const std::size_t begin = !lines || before == std::string::npos ? 1 : before + 1;
  const std::size_t end = lines ? std::min(input.find('\n', begin), input.size()) : input.size();
  const std::size_t others = input.size() - (end - begin);
  return input.substr(0, begin) + mutate_json(input.substr(begin, end - begin), most - others, seed) +
         input.substr(end);
}

std::vector<std::string> seeds() {
  const auto data = data_directory();
  return {"m" + content_of(data / "machines" / "rtx3090-pcie3.json"),
          "m" + content_of(data / "machines" / "orin-nvme.json"),
          "s" + content_of(data / "shapes" / "qwen1.5-moe-a2.7b.json"),
          "r" + runs(),
          "t" + timeline(),
          "w" + sweep_lines()};
}

}  // namespace ferry::fuzz
