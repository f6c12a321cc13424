// ferry simulate, sweep, report: stacks on recorded traces, without the model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "command/command.hpp"
#include "report/html_report.hpp"
#include "support/checksum.hpp"
#include "support/errors.hpp"
#include "support/mapped_file.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/progress.hpp"
#include "support/terminal.hpp"
#include "sweep/simulated_run.hpp"
#include "sweep/sweep.hpp"

namespace ferry::engine {
namespace {

const std::map<std::string, CostSource> cost_sources = {
    {"effective", CostSource::effective}, {"peak", CostSource::peak}, {"stated", CostSource::stated}};
const std::map<std::string, BoundsChoice> bound_choices = {
    {"none", BoundsChoice::none}, {"proven", BoundsChoice::proven}, {"all", BoundsChoice::all}};

struct SimulateArguments {
  StackFlags flags;
  std::string trace, machine = "rtx3090-pcie3", costs = "effective", as_shape, bounds = "proven", json, timeline, out;
  std::string prefetch_chunk = "0";
  std::vector<std::string> stacks = {"lru"}, traces, machines, budgets = {"25%"}, inputs;
  std::vector<std::uint32_t> batches = {1};
  std::vector<std::pair<std::string, std::vector<std::string>>> parameters;  ///< of a sweep: name, values
  std::uint32_t batch = 1, chunk = 128, threads = 0, rank = 0, ranks = 0, merge = 0;
  std::uint64_t tokens = ~std::uint64_t{0}, seed = AssumedRecall().seed;
  std::vector<double> recall;  ///< empty: nothing is made up
  std::string title = "Ferry: expert offloading, compared";
};

/// What --assume-recall says; one share counts for both.
std::optional<AssumedRecall> assumed_recall(const SimulateArguments& a) {
  if (a.recall.empty()) return {};
  if (a.recall.size() > 2) {
    throw InputError(
        fmt::format("--assume-recall {}: {} shares, expected one or two", fmt::join(a.recall, ","), a.recall.size()));
  }
  const AssumedRecall recall{a.recall.front(), a.recall.back(), a.seed};
  recall.validate();
  return recall;
}

int simulate_command(SimulateArguments& a) {
  a.flags.check(a.stacks);
  const std::optional<AssumedRecall> recall = assumed_recall(a);
  std::vector<std::string> inputs = stack_files(a.stacks);
  inputs.insert(inputs.end(), {a.trace, a.machine, a.as_shape});
  check_outputs({a.json, a.timeline}, inputs);
  if (!a.timeline.empty() && a.stacks.size() > 1) {
    throw InputError(fmt::format("--timeline: of one stack, but {} are named", a.stacks.size()));
  }
  std::optional<OutputFile> json_file, timeline_file;
  if (!a.json.empty()) json_file.emplace(a.json, report_json);
  if (!a.timeline.empty()) timeline_file.emplace(a.timeline, timeline_json);
  SimulatedSetting setting;
  setting.machine = read_machine(a.machine);
  const TraceFile trace{std::filesystem::path(a.trace)};
  setting.trace = &trace;
  setting.trace_name = std::filesystem::path(a.trace).filename().string();
  setting.costs = cost_sources.at(a.costs);
  setting.as_shape = a.as_shape;
  setting.bounds = bound_choices.at(a.bounds);
  setting.prefetch_chunk = a.prefetch_chunk;
  static_cast<void>(setting.machine_costs());  // refused before anything is replayed
  SimulateOptions o;
  o.batch = a.batch;
  o.prefill_chunk = a.chunk;
  o.max_tokens = a.tokens;
  const ModelShape model = setting.model();
  a.flags.use_model(trace.trace.name);
  a.flags.check(a.stacks);
  o.budget_bytes = parse_budget(a.flags.budget, model.all_bytes());
  std::optional<AssumedRows> rows;
  bool assumes_nothing = false;
  if (recall) {
    RowNeeds needs;
    for (const std::string& s : a.stacks) {
      a.flags.set(o, s);
      needs.add(rows_read_by(o, model));
    }
    const std::uint64_t bytes = assumed_bytes(trace.trace, needs);
    check_assumed_bytes(bytes);
    assumes_nothing = bytes == 0;
    setting.assumed = &rows.emplace(trace.trace, *recall, needs);
  }
  std::vector<RunReport> reports;
  Json all = Json::array();
  for (const std::string& s : a.stacks) {
    a.flags.set(o, s);
    ProgressLine line(a.flags.named(s).label + ", tokens");
    o.progress = [&line](std::uint64_t done, std::uint64_t total) {
      if (done % 64 == 0) line.show(done, total);
      return !stop;
    };
    std::vector<Span> spans;
    try {
      reports.push_back(run_simulation(setting, o, a.flags.taken_by(s), timeline_file ? &spans : nullptr));
    } catch (const ConfigError& e) {
      if (a.stacks.size() == 1) throw;
      throw ConfigError(fmt::format("{}: {}", a.flags.named(s).label, e.what()));
    }
    if (is_stack_file(s)) reports.back().stack_file = a.flags.named(s).label;
    all.push_back(to_json(reports.back()));
    all.back()["command_line"] = command_line;
    if (const std::string& file = a.flags.named(s).calibrated; !file.empty()) all.back()["calibrated"] = file;
    if (stop) all.back()["interrupted"] = true;  // bounds may be missing, if nothing else
    if (timeline_file) {
      std::ostringstream text;
      text.exceptions(std::ios::badbit);  // a stream would hide a lack of memory
      write_trace_events(text, spans);
      timeline_file->commit(text.str());
    }
    if (stop) break;
  }
  print(to_table(reports, terminal_columns()) + a.flags.calibrated_note(a.stacks));
  warn_of_batch(trace.trace, a.batch);
  if (assumes_nothing) {
    std::cerr << "note: no stack reads rows that the trace lacks: --assume-recall changes nothing\n";
  }
  if (stop) print("interrupted: the last column covers only what was replayed\n");
  if (json_file) json_file->commit(json_text(all.size() == 1 ? all[0] : all, 2) + "\n");
  return stop ? 128 + stopped_by : 0;
}

int sweep_command(const SimulateArguments& a) {
  SweepGrid grid;
  grid.traces = a.traces;
  grid.machines = a.machines;
  grid.stacks = a.stacks;
  grid.budgets = a.budgets;
  grid.batches = a.batches;
  for (const auto& [name, words] : a.parameters) {
    if (words.empty()) continue;
    SweptParameter& swept = grid.parameters.emplace_back(SweptParameter{name, {}});
    for (const std::string& word : words) {
      swept.values.push_back(find_parameter(name, "a sweep").read(std::vector<std::string>{word}));
    }
  }
  grid.costs = cost_sources.at(a.costs);
  grid.as_shape = a.as_shape;
  grid.pools = a.flags.given.value(parameter_of(&StackOptions::pools).name, grid.pools);
  grid.bounds = bound_choices.at(a.bounds);
  grid.prefetch_chunk = a.prefetch_chunk;
  grid.max_tokens = a.tokens;
  grid.assumed = assumed_recall(a);
  grid.calibrated = a.flags.defaults == "calibrated";
  static_cast<void>(cells_of(grid));  // refuses what does not fit, before anything large is read
  if (a.merge > 0) {
    print(fmt::format("{}: {} runs\n", a.out, merge_sweep(grid, a.out, a.merge)));
    return 0;
  }
  std::vector<std::string> inputs = stack_files(grid.stacks);
  inputs.insert(inputs.end(), grid.traces.begin(), grid.traces.end());
  inputs.insert(inputs.end(), grid.machines.begin(), grid.machines.end());
  inputs.push_back(grid.as_shape);
  check_outputs({a.out}, inputs);
  const Ranks ranks = a.ranks > 0 ? Ranks{a.rank, a.ranks} : ranks_of_environment();
  if (ranks.rank >= ranks.ranks)
    throw InputError(fmt::format("--rank {}: expected 0 to {}", ranks.rank, ranks.ranks - 1));
  check_results(rank_file(a.out, ranks));
  for (const std::string& m : grid.machines) static_cast<void>(read_machine(m));
  std::uint64_t made_up_bytes = 0;
  for (const std::string& t : std::set<std::string>(grid.traces.begin(), grid.traces.end())) {
    const TraceFile file{std::filesystem::path(t)};  // refused before hours are spent on the others
    const ModelShape model = counted_as(file.trace.model, grid.as_shape);
    warn_of_batch(file.trace, *std::max_element(grid.batches.begin(), grid.batches.end()));
    for (const std::string& b : grid.budgets) static_cast<void>(parse_budget(b, model.all_bytes(), "--budgets"));
    if (grid.assumed) made_up_bytes += assumed_bytes(file.trace, rows_read_by(grid, t, file.trace));
  }
  check_assumed_bytes(made_up_bytes);
  const std::uint32_t cores = std::max(1U, std::thread::hardware_concurrency());
  ProgressLine line("runs");
  const SweepResult r =
      run_sweep(grid, a.out, ranks, a.threads == 0 ? cores : a.threads, stop,
                [&line](std::uint64_t done, std::uint64_t total, double share) { line.show(done, total, share); });
  // With several ranks, one rank's runs may all be refused while others work: it must not fail, which could end those.
  if (ranks.ranks == 1 && !r.interrupted && r.refused > 0 && r.refused == r.cells) {
    throw InputError(fmt::format("{}: every run is refused: its lines say why", rank_file(a.out, ranks).string()));
  }
  print(fmt::format("{}: {} of {} runs{}{}\n", rank_file(a.out, ranks).string(), r.had + r.done, r.cells,
                    r.refused > 0 ? fmt::format(", {} of them refused", r.refused) : "",
                    r.interrupted ? ": interrupted; the same command goes on" : ""));
  return r.interrupted ? 128 + stopped_by : 0;
}

/// A file of run objects: one, an array, or one a line. `places`: what messages call each.
void read_runs(const std::string& path, std::vector<Json>& runs, std::vector<std::string>& places) {
  const MappedFile file(path, MappedFile::Hold::copied);
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (std::filesystem::path(path).extension() == ".jsonl") {
    std::size_t number = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      const std::string where = fmt::format("{}: line {}", path, ++number);
      if (seal_of(text.substr(at, end - at)) == Seal::wrong) {
        throw InputError(where + ": is damaged: its checksum differs: take the line away, and run the sweep again");
      }
      runs.push_back(parse_json(text.substr(at, end - at), where));
      places.push_back(where + ": run");
      at = end + 1;
    }
    return;
  }
  Json json = parse_json(text, path);
  if (!json.is_array()) {
    runs.push_back(std::move(json));
    places.push_back(path + ": run");
    return;
  }
  for (std::size_t i = 0; i < json.size(); ++i) {
    runs.push_back(std::move(json[i]));
    places.push_back(fmt::format("{}: runs[{}]", path, i));
  }
}

int report_command(const SimulateArguments& a) {
  std::vector<std::string> inputs = a.inputs;
  inputs.push_back(a.timeline);
  check_outputs({a.out}, inputs);
  OutputFile out(a.out, {"a report of ferry", "<!DOCTYPE html>", ""});
  std::vector<Json> runs;
  std::vector<std::string> places;
  for (const std::string& in : a.inputs) read_runs(in, runs, places);
  if (runs.empty()) throw InputError(fmt::format("{}: no run is in there", fmt::join(a.inputs, ", ")));
  std::vector<std::pair<std::string, Json>> timelines;
  if (!a.timeline.empty()) {
    timelines.emplace_back(std::filesystem::path(a.timeline).filename().string(), read_json(a.timeline));
  }
  const std::string page = html_report(runs, timelines, a.title, places);
  out.commit(page);
  print(fmt::format("{}: {} runs, {} KiB\n", a.out, runs.size(), (page.size() + 1023) / 1024));
  return 0;
}

void add_common(CLI::App* c, SimulateArguments& a) {
  std::vector<std::string> sources, bounds;
  for (const auto& [name, value] : cost_sources) sources.push_back(name);
  for (const auto& [name, value] : bound_choices) bounds.push_back(name);
  c->add_option("--costs", a.costs,
                "the machine's effective speeds, its data sheet's peaks, or what a paper states of it")
      ->check(CLI::IsMember(sources))
      ->capture_default_str();
  add_named(c, "--as", a.as_shape, "NAME|FILE",
            "count each expert as large as this model's: a shape's name or file (tiny models' traces)");
  add_named(c, "--prefetch-chunk", a.prefetch_chunk, "SHARE|BYTES", prefetch_chunk_help)->capture_default_str();
  c->add_option("--bounds", a.bounds,
                "proven lower bounds, and with `all` the stack with perfect prediction and Belady's cache")
      ->check(CLI::IsMember(bounds))
      ->capture_default_str();
  c->add_option("--tokens", a.tokens, "stop after so many")->type_name("N")->check(in_range(1ULL, 1ULL << 40U));
  auto* recall = c->add_option("--assume-recall", a.recall,
                               "make up what the trace lacks: of the experts that a layer needs, the share that is "
                               "predicted among the k best, and among the best quarter (Fate's: 0.79,0.97)")
                     ->type_name("TOP_K,CANDIDATES")
                     ->delimiter(',')
                     ->check(not_empty)
                     ->transform(without_spaces);
  c->add_option("--assume-seed", a.seed, "of what is made up")
      ->type_name("N")
      ->check(whole_number)
      ->capture_default_str()
      ->needs(recall);
}

}  // namespace

void add_simulate_commands(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<SimulateArguments>();
  std::string machines = "Machines:";
  for (const std::string& m : machine_names()) machines += " " + m;

  CLI::App* s = app.add_subcommand("simulate", "replay a trace under policy stacks on a simulated machine");
  add_named(s, "--trace", a->trace, "FILE", "a trace of `ferry trace`")->required();
  add_named(s, "--machine", a->machine, "NAME|FILE", "a name from the list below, or a file")->capture_default_str();
  s->add_option("--stack,--stacks", a->stacks, "comma-separated, from the list below, or files")
      ->type_name("NAMES|FILES")
      ->delimiter(',')
      ->transform(without_spaces)
      ->capture_default_str();
  a->flags.add_budget(s);
  a->flags.add_parameters(s);
  a->flags.add_defaults(s, "paper");
  add_count(s, "--batch", a->batch, 1, 4096, "sequences decoded together");
  add_count(s, "--prefill-chunk", a->chunk, 1, 65536, "tokens of a prompt in one step");
  add_common(s, *a);
  add_named(s, "--json", a->json, "FILE", "write all numbers to this file");
  add_named(s, "--timeline", a->timeline, "FILE", "write a Chrome/Perfetto timeline to this file (with --tokens)");
  s->footer(stacks_help() + machines);
  s->callback([a, &chosen] { chosen = [a] { return simulate_command(*a); }; });

  CLI::App* w =
      app.add_subcommand("sweep", "simulate a grid of stacks, budgets, machines and parameters, on all cores");
  auto list = [&](const std::string& name, auto& values, const char* help) {
    return w->add_option(name, values, help)->delimiter(',')->transform(without_spaces)->type_name("LIST");
  };
  list("--traces", a->traces, "traces of `ferry trace`")->required();
  list("--machines", a->machines, "names from the list below, or files")->required();
  list("--stacks", a->stacks, "from the list below, or files")->required();
  list("--budgets", a->budgets, "shares (25%) or sizes (64MiB)")->capture_default_str();
  list("--batches", a->batches, "sequences decoded together")->check(in_range(1, 4096))->capture_default_str();
  const Parameter& pools = parameter_of(&StackOptions::pools);
  a->flags.add_parameter(w, pools);
  for (const Parameter& p : all_parameters()) {
    if (p.size() == 1 && p.name != pools.name) a->parameters.push_back({p.name, {}});
  }
  for (auto& [name, words] : a->parameters) {
    const Parameter& p = find_parameter(name, "a sweep");
    list(p.flag(), words, "values of this parameter, for the stacks that take it")->type_name(p.range() + ",...");
  }
  add_common(w, *a);
  a->flags.add_defaults(w, "paper");
  w->add_option("--out", a->out, "results, a JSON line a run; what is there already is not run again")
      ->type_name("FILE")
      ->check(a_file)
      ->required();
  w->add_option("--threads", a->threads, "default: all cores")->type_name("N")->check(in_range(1, 1024));
  auto* rank =
      w->add_option("--rank", a->rank, "this process's share of the grid (default: from MPI's or Slurm's variables)")
          ->type_name("R")
          ->check(CLI::NonNegativeNumber);
  auto* ranks = w->add_option("--ranks", a->ranks, "of how many")->type_name("N")->check(in_range(1, 65536));
  rank->needs("--ranks");
  ranks->needs("--rank");
  w->add_option("--merge", a->merge, "instead: put the files of so many ranks together in --out")
      ->type_name("N")
      ->check(in_range(1, 65536))
      ->excludes(rank)
      ->excludes("--ranks");
  w->footer(stacks_help() + machines);
  w->callback([a, &chosen] { chosen = [a] { return sweep_command(*a); }; });

  CLI::App* r = app.add_subcommand("report", "draw runs as one self-contained HTML page");
  add_named(r, "runs", a->inputs, "FILES", "what --json of run, compare and simulate, or a sweep wrote")->required();
  add_named(r, "--out", a->out, "FILE", "the page")->required();
  add_named(r, "--timeline", a->timeline, "FILE", "a timeline to draw, too");
  r->add_option("--title", a->title, "of the page")->type_name("TEXT")->capture_default_str();
  r->callback([a, &chosen] { chosen = [a] { return report_command(*a); }; });
}

}  // namespace ferry::engine
