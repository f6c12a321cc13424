// ferry calibrate: what simulations need of a machine, and what stacks need of a model and its texts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>

#include "calibrate/calibrate.hpp"
#include "calibrate/calibrate_stack.hpp"
#include "calibrate/learned_gates.hpp"
#include "command/command.hpp"
#include "command/model_flags.hpp"
#include "cpu/cpu_model.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "ferry/macros.hpp"
#include "inference/eval.hpp"
#include "inference/gate_file.hpp"
#include "profiles/machine.hpp"
#include "sim/simulate.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/progress.hpp"
#include "support/text_file.hpp"
#include "support/threads.hpp"
#include "sweep/simulated_run.hpp"
#include "trace/record.hpp"

namespace ferry::engine {
namespace {

struct CalibrateArguments {
  StackFlags flags;
  ModelFlags model;
  std::string stack, machine = "rtx3090-pcie3", out, name = "this-machine", as_shape;
  std::vector<std::string> texts, traces;
  double loss_percent = 1;
  std::uint32_t window = 256, steps = 20, rates = 64, depth = 3;
  GateTraining training;
  std::uint64_t bytes = ~std::uint64_t{0};
};

/// Runs a search. Returns the exit status of an interrupted command if it was stopped, whether or not it had found
/// anything.
int unless_interrupted(const std::function<void()>& search) {
  try {
    search();
    return stop ? 128 + stopped_by : 0;
  } catch (const Interrupted&) {
    print("interrupted: nothing was written\n");
    return 128 + stopped_by;
  }
}

std::string listed(const CalibrateArguments& a, const std::vector<ParameterMember>& parameters) {
  std::vector<std::string> names;
  for (const StackInfo& s : all_stacks()) {
    const bool takes = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const ParameterMember& p) { return a.flags.takes(s.name, p); });
    if (takes) names.push_back(s.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Refuses stacks without the parameters that are sought, options that set these, and outputs that are inputs.
void check(const CalibrateArguments& a, const std::vector<ParameterMember>& sought) {
  a.flags.check({a.stack});
  const bool takes =
      std::any_of(sought.begin(), sought.end(), [&](const ParameterMember& p) { return a.flags.takes(a.stack, p); });
  std::vector<std::string> flags;
  for (const ParameterMember& p : sought) flags.push_back(parameter_of(p).flag());
  if (!takes) {
    throw InputError(fmt::format("--stack {}: {} has no {}; stacks that do: {}", a.stack,
                                 a.flags.named(a.stack).policies, fmt::join(flags, " and no "), listed(a, sought)));
  }
  for (const ParameterMember& p : sought) {
    if (!a.flags.given.contains(parameter_of(p).name)) continue;
    throw InputError(fmt::format("{}: is what this command finds", parameter_of(p).flag()));
  }
  std::vector<std::string> inputs = stack_files({a.stack});
  inputs.insert(inputs.end(), a.texts.begin(), a.texts.end());
  inputs.insert(inputs.end(), a.traces.begin(), a.traces.end());
  inputs.insert(inputs.end(), {a.machine, a.as_shape});
  for (const std::string& file : a.model.inputs()) inputs.push_back(file);
  check_outputs({a.out}, inputs);
}

std::vector<std::string> read_texts(const CalibrateArguments& a) {
  std::vector<std::string> texts;
  for (const std::string& file : a.texts) {
    texts.push_back(read_text("--text", file));
    if (texts.back().empty()) throw InputError(fmt::format("--text {}: the file is empty", file));
    texts.back().resize(std::min<std::uint64_t>(texts.back().size(), a.bytes));
  }
  return texts;
}

std::vector<std::string> file_names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& p : paths) names.push_back(std::filesystem::path(p).filename().string());
  return names;
}

CostSource source_of(const Machine& machine) {
  return machine.stated ? CostSource::stated : CostSource::effective;
}

/// What every stack file records about how it was made.
Json made_with(const CalibrateArguments& a, const char* what, const char* criterion) {
  Json json = {{"ferry", FERRY_VERSION},
               {"what", what},
               {"criterion", criterion},
               {"budget", a.flags.budget},
               {"machine", a.machine}};
  if (a.traces.empty()) {
    json["model"] = model_name(a.model.model);
    json["texts"] = file_names(a.texts);
    json["window"] = a.window;
    if (a.bytes != ~std::uint64_t{0}) json["bytes_of_each_text"] = a.bytes;
  } else {
    json["traces"] = file_names(a.traces);
  }
  json["costs"] = a.traces.empty() && read_machine(a.machine).stated ? "stated" : "effective";
  if (!a.as_shape.empty()) json["as_shape"] = a.as_shape;
  if (is_stack_file(a.stack)) {
    json["stack_file"] = a.flags.named(a.stack).label;
    const Json before = read_json(a.stack);
    if (before.contains("calibrated")) json["before"] = before["calibrated"];
  }
  return json;
}

/// The kind of file that a calibrated stack may replace.
constexpr FileKind stack_json = {"a stack file of ferry calibrate", "{", "\"calibrated\": {"};

/// Writes the given stack with the parameters that were found. `stopped`: not everything was tried.
void write(const CalibrateArguments& a, OutputFile& out, const Json& found, Json calibrated, bool stopped) {
  calibrated["interrupted"] = stopped;
  Json parameters = a.flags.taken_by(a.stack);
  parameters.update(found);
  const Json json = {
      {"stack", a.flags.named(a.stack).policies}, {"parameters", parameters}, {"calibrated", calibrated}};
  out.commit(json_text(json, 2) + "\n");
  std::vector<std::string> values;
  for (const auto& [name, value] : found.items()) values.push_back(fmt::format("{} {}", name, json_text(value)));
  print(fmt::format("{}{}: {} with {}\n", stopped ? "interrupted: the best so far is kept\n" : "", a.out,
                    a.flags.named(a.stack).policies, fmt::join(values, ", ")));
}

/// How the loss of a choice is measured.
enum class Judged {
  together,  ///< by how much the bits of all texts grow
  each       ///< of the worst text, the greater of bits and divergence: bits alone are noisy
};

/// Runs the texts through a stack, and through the resident model at its own precision.
class Loss {
 public:
  Loss(const CalibrateArguments& a, Phase phase, Judged judged = Judged::together)
      : a_(a), machine_(read_machine(a.machine)), judged_(judged) {
    const std::vector<std::string> texts = read_texts(a);
    line_.emplace("tokens");
    eval_.window = a.window;
    eval_.phase = phase;
    a.flags.set(options_, a.stack);
    StackOptions resident;
    resident.stack = "resident";
    model_ = a.model.open({resident, options_}, {});
    for (const std::string& t : texts) {
      texts_.push_back(tokenized(*model_, t));
      tokens_ += texts_.back().tokens.size();
    }
    eval_.check(model_->config());
    const ModelShape shape = model_shape(model_->config(), model_->store(), rows());
    options_.budget_bytes = parse_budget(a.flags.budget, shape.all_bytes());
    options_.max_rows = rows();
    const ModelFacts reference = read_shape(machine_.reference_model());
    options_.virtual_costs = as_if(machine_.costs(reference.work, source_of(machine_)), reference, shape);
    const std::uint32_t high =
        phase == Phase::decode ? std::bit_width(unsigned{precisions_for(options_).bits}) - 1U : precision_count - 1;
    const bool in_slots = !a.flags.takes(a.stack, &StackOptions::max_loss);  // these lose only by what does not fit
    if (in_slots && options_.budget_bytes >= everything(shape, static_cast<Precision>(high)).bytes()) {
      throw InputError(fmt::format(
          "--budget {}: holds every expert, so that nothing is shrunk or replaced: expected less", a.flags.budget));
    }
  }

  [[nodiscard]] const RunnerOptions& options() const { return options_; }

  /// What `o` costs; nothing if stopped. `left`: at most so many runs are still to come, this one included.
  std::optional<ChoiceCost> of(const RunnerOptions& o, std::uint32_t left) {
    RunnerOptions resident = options_;
    resident.stack = "resident";
    auto make = [&](const RunnerOptions& r) { return make_runner(*model_, r); };
    Evaluated all;
    double most = 0;
    for (const TokenizedText& text : texts_) {
      std::vector<std::unique_ptr<ExpertRunner>> runners;
      runners.push_back(make(o));
      EvalOptions eval = eval_;
      eval.progress = [&](std::uint64_t of_text, std::uint64_t) {
        line_->show(done_ + of_text, before_ + left * tokens_);
        return !stop;
      };
      const Evaluated one = evaluate(*model_, *make(resident), runners, text, eval)[0];
      if (stop) return {};
      all += one;
      most = std::max({most, one.quality.change_percent(),
                       100 * one.quality.kl_divergence() / one.quality.bits_per_byte_resident()});
      done_ += text.tokens.size();
    }
    before_ = done_;
    quality_ = all.quality;
    return ChoiceCost{judged_ == Judged::each ? most : all.quality.change_percent(),
                      all.phase[static_cast<unsigned>(eval_.phase)].bytes};
  }

  /// Ends the progress line, and records what was measured on the texts.
  void end(Json& calibrated) {
    line_.reset();
    calibrated["bytes_scored"] = quality_.bytes;
    calibrated["bits_per_byte_resident"] = quality_.bits_per_byte_resident();
    if (a_.model.store.empty()) calibrated["quantizer"] = a_.model.quantizer;
    if (!a_.model.gates.empty()) calibrated["gates"] = file_names({a_.model.gates})[0];
    if (!a_.model.store.empty()) calibrated["store"] = file_names({a_.model.store})[0];
    calibrated["phase"] = eval_.phase == Phase::decode ? "decode" : "prefill";
    calibrated["budget_bytes"] = options_.budget_bytes;
    calibrated["most_loss_percent"] = a_.loss_percent;
  }

 private:
  [[nodiscard]] std::uint32_t rows() const { return eval_.max_rows(model_->begin_tokens().size()); }

  const CalibrateArguments& a_;
  std::vector<TokenizedText> texts_;
  Machine machine_;
  std::unique_ptr<Model> model_;
  EvalOptions eval_;
  RunnerOptions options_;
  std::uint64_t tokens_ = 0, done_ = 0, before_ = 0;  ///< of all texts; run so far; run before this one
  Judged judged_;
  Quality quality_;
  std::optional<ProgressLine> line_;
};

Json cost_json(const ChoiceCost& c, const char* bytes) {
  return {{"loss_percent", c.loss_percent}, {bytes, c.bytes}};
}

std::string table_line(const std::string& choice, const ChoiceCost& c, bool best) {
  return fmt::format("  {:<14}  {:>+8.3f}%  {:>12}{}\n", choice, c.loss_percent, c.bytes, best ? "  <-" : "");
}

std::string table_head(const std::string& what) {
  return fmt::format("  {:<14}  {:>9}  {:>12}\n", what, "loss", "bytes copied");
}

const std::string& name_of(const ParameterMember& parameter) {
  return parameter_of(parameter).name;
}

/// The thresholds, as stack files write them.
Json thresholds_at(double t1, double t2) {
  return {{name_of(&StackOptions::t1), t1}, {name_of(&StackOptions::t2), t2}};
}

void thresholds(const CalibrateArguments& a, OutputFile& out) {
  Loss loss(a, Phase::decode);
  const auto found = find_thresholds(a.steps, a.loss_percent, [&](double t1, double t2, std::uint32_t left) {
    RunnerOptions o = loss.options();
    set_parameters(o, thresholds_at(t1, t2), "calibration");
    return loss.of(o, left);
  });
  if (found.stopped && !found.best) throw Interrupted();
  std::string table = table_head("T1    T2");
  Json calibrated = made_with(a, "precision",
                              "least bytes copied in decode, of T1 and T2 that lose at most so much against the "
                              "resident model at its own precision");
  loss.end(calibrated);
  for (std::size_t i = 0; i < found.tried.size(); ++i) {
    const ThresholdChoice& c = found.tried[i];
    table += table_line(fmt::format("{:<4}  {:<4}", c.t1, c.t2), c.cost, i == found.best);
    Json tried = cost_json(c.cost, "decode_bytes");
    tried.update(thresholds_at(c.t1, c.t2));
    if (i == found.best) calibrated["found"] = tried;
    calibrated["tried"].push_back(tried);
  }
  print(table);
  if (!found.best) print(fmt::format("nothing loses at most {}%: 1 and 1 shrink and skip nothing\n", a.loss_percent));
  const ThresholdChoice best = found.best ? found.tried[*found.best] : ThresholdChoice{};
  write(a, out, thresholds_at(best.t1, best.t2), calibrated, found.stopped);
}

/// Finds the largest step within the allowed loss, which grows with the step. `value(step)`: the parameter; `beside`: others.
void find_number(const CalibrateArguments& a, OutputFile& out, Loss& loss, const Parameter& parameter,
                 std::uint32_t last, const char* bytes, const std::function<double(std::uint32_t)>& value,
                 Json calibrated, const Json& beside = Json::object()) {
  auto at = [&](std::uint32_t step) {
    Json parameters = beside;
    parameters[parameter.name] = parameter.read(value(step));
    return parameters;
  };
  const auto found = find_largest(last, a.loss_percent, [&](std::uint32_t step, std::uint32_t left) {
    RunnerOptions o = loss.options();
    set_parameters(o, at(step), "calibration");
    return loss.of(o, left);
  });
  if (found.stopped && !found.best) throw Interrupted();
  loss.end(calibrated);
  std::string table = table_head(parameter.name);
  for (std::size_t i = 0; i < found.tried.size(); ++i) {
    const StepChoice& c = found.tried[i];
    table += table_line(json_text(at(c.step)[parameter.name]), c.cost, i == found.best);
    Json tried = cost_json(c.cost, bytes);
    tried.update(at(c.step));
    if (i == found.best) calibrated["found"] = tried;
    calibrated["tried"].push_back(tried);
  }
  print(table);
  if (!found.best)
    print(fmt::format("nothing loses at most {}%: {} is the least there is\n", a.loss_percent,
                      json_text(at(0)[parameter.name])));
  write(a, out, at(found.best ? found.tried[*found.best].step : 0), calibrated, found.stopped);
}

void low_share(const CalibrateArguments& a, OutputFile& out) {
  Loss loss(a, Phase::prefill);
  const Parameter& share = parameter_of(&StackOptions::low_share_percent);
  find_number(
      a, out, loss, share, std::get<Parameter::Whole>(share.values).most, "prefill_bytes",
      [](std::uint32_t percent) { return percent; },
      made_with(a, "precision",
                "largest share of a prefill's load in low precision that loses at most so much in prefill against the "
                "resident model at its own precision"));
}

int precision(const CalibrateArguments& a) {
  check(a, {&StackOptions::t1, &StackOptions::t2, &StackOptions::low_share_percent});
  if (!(a.loss_percent >= 0)) throw InputError("--loss: expected a number from 0 to 1000");  // nan passes ranges
  const bool has_thresholds = a.flags.takes(a.stack, &StackOptions::t1);
  if (!has_thresholds && a.steps != CalibrateArguments().steps) {
    throw InputError(
        fmt::format("--steps: is for thresholds, which {} has not: its share is found in whole percents", a.stack));
  }
  OutputFile out(a.out, stack_json);
  return unless_interrupted([&] { has_thresholds ? thresholds(a, out) : low_share(a, out); });
}

int substitution(const CalibrateArguments& a) {
  check(a, {&StackOptions::alpha});
  if (!(a.loss_percent >= 0)) throw InputError("--loss: expected a number from 0 to 1000");  // nan passes ranges
  OutputFile out(a.out, stack_json);
  return unless_interrupted([&] {
    Loss loss(a, Phase::decode);
    find_number(
        a, out, loss, parameter_of(&StackOptions::alpha), a.steps, "decode_bytes",
        [&](std::uint32_t step) { return step / static_cast<double>(a.steps); },
        made_with(
            a, "substitution",
            "largest alpha that loses at most so much in decode against the resident model at its own precision"));
  });
}

/// Finds how much `ExpertSkipping` may leave out.
int skipping(const CalibrateArguments& a) {
  check(a, {&StackOptions::loss_rate});
  if (!(a.loss_percent > 0 && a.loss_percent <= 100)) throw InputError("--loss: expected more than 0 and at most 100");
  const std::string& max_loss = name_of(&StackOptions::max_loss);
  if (a.flags.given.contains(max_loss)) throw InputError(fmt::format("--{}: expected --loss here", max_loss));
  OutputFile out(a.out, stack_json);
  return unless_interrupted([&] {
    Loss loss(a, Phase::decode, Judged::each);
    find_number(
        a, out, loss, parameter_of(&StackOptions::loss_rate), a.rates - 1, "decode_bytes",
        [&](std::uint32_t step) {
          return std::round(10'000 * std::pow(0.01, step / std::max(1.0, a.rates - 1.0))) / 10;
        },
        made_with(
            a, "skipping",
            "least loss-rate at which each text loses at most so much in decode against the resident model at its "
            "own precision, by its bits and by its divergence"),
        {{max_loss, a.loss_percent}});
  });
}

/// Traces to replay, recorded from texts if need be, and what work costs for each.
class Replays {
 public:
  explicit Replays(const CalibrateArguments& a) : a_(a) {
    const Machine machine = read_machine(a.machine);
    if (a.traces.empty() && a.texts.empty()) throw InputError("--text or --trace: one of them is needed");
    if (a.traces.empty()) {
      record(machine);
      return;
    }
    for (const std::string& file : a.traces) {
      traces_.push_back(std::make_unique<TraceFile>(std::filesystem::path(file)));
      const TraceFile& t = *traces_.back();
      if (a.as_shape.empty()) {
        costs_.push_back(machine.costs(t.work, CostSource::effective));
      } else {
        const ModelFacts reference = read_shape(a.as_shape);
        costs_.push_back(as_if(machine.costs(reference.work, CostSource::effective), reference, t.trace.model));
      }
    }
  }

  [[nodiscard]] std::uint32_t layers() const {
    std::uint32_t most = 0;
    for (const auto& t : traces_) most = std::max<std::uint32_t>(most, t->trace.model.layers);
    return most;
  }

  /// Replays each trace once. Empty if stopped.
  [[nodiscard]] std::vector<Simulated> run(const std::function<void(SimulateOptions&)>& set) const {
    std::vector<Simulated> results;
    for (std::size_t i = 0; i < traces_.size(); ++i) {
      SimulateOptions o;
      a_.flags.set(o, a_.stack);
      set(o);
      o.budget_bytes = parse_budget(a_.flags.budget, traces_[i]->trace.model.all_bytes());
      o.bounds = false;
      o.progress = [](std::uint64_t, std::uint64_t) { return !stop; };
      if (a_.traces.empty() && rows_read_by(o, traces_[i]->trace.model).partial) {
        throw ConfigError(
            fmt::format("--text: stack {} reads scores of partial hidden states, which a resident model "
                        "does not have; record the text with `ferry trace record --stack "
                        "importance+pre` and name that with --trace instead",
                        o.stack));
      }
      results.push_back(simulate(traces_[i]->trace, costs_[i], o));
      if (stop) return {};
    }
    return results;
  }

 private:
  void record(const Machine& machine) {
    CpuModel model(find_model(a_.model.model));
    model.set_threads(0);
    const ModelFacts reference = read_shape(a_.as_shape.empty() ? machine.reference_model() : a_.as_shape);
    ProgressLine line("windows of a text");
    for (const std::string& text : read_texts(a_)) {
      RecordOptions r;
      r.window = a_.window;
      r.prompt = std::max(1U, a_.window / 4);
      r.progress = [&line](std::uint64_t done, std::uint64_t total) {
        line.show(done, total);
        return !stop;
      };
      traces_.push_back(record_text(model, model_name(a_.model.model), text, r));
      if (stop) throw Interrupted();
      costs_.push_back(
          as_if(machine.costs(reference.work, source_of(machine)), reference, traces_.back()->trace.model));
    }
  }

  const CalibrateArguments& a_;
  std::vector<std::unique_ptr<TraceFile>> traces_;
  std::vector<Costs> costs_;
};

using Measured = std::vector<std::optional<std::uint64_t>>;

/// Measures with a progress line. Throws Interrupted if it is stopped before anything was measured.
Measured measure_with_progress(const char* what, std::size_t count,
                               const std::function<std::optional<std::uint64_t>(std::size_t)>& measure) {
  ProgressLine line(what);
  Measured all = measure_all(count, measure, [&](std::uint64_t done, std::uint64_t total) { line.show(done, total); });
  if (std::none_of(all.begin(), all.end(), [](const auto& m) { return m.has_value(); })) throw Interrupted();
  return all;
}

bool complete(const Measured& measured) {
  return std::all_of(measured.begin(), measured.end(), [](const auto& m) { return m.has_value(); });
}

std::size_t least(const Measured& values) {
  auto less = [](const auto& a, const auto& b) { return a && (!b || *a < *b); };
  return static_cast<std::size_t>(std::min_element(values.begin(), values.end(), less) - values.begin());
}

/// Refuses replays of prompts alone, of which each choice is as good as any. `decoded`: what each decoded.
void need_decode(const std::vector<std::uint64_t>& decoded) {
  if (stop || std::any_of(decoded.begin(), decoded.end(), [](std::uint64_t n) { return n > 0; })) return;
  throw InputError("no token is decoded: the traces or texts are prompts alone, expected longer ones");
}

int cache_weights(const CalibrateArguments& a) {
  check(a, {&StackOptions::cache_weights});
  OutputFile out(a.out, stack_json);
  return unless_interrupted([&] {
    const Replays replays(a);
    const std::vector<CacheWeights> mixtures = weight_mixtures(100);
    std::vector<std::uint64_t> requests(mixtures.size());
    const auto penalties =
        measure_with_progress("mixtures", mixtures.size(), [&](std::size_t i) -> std::optional<std::uint64_t> {
          const auto runs = replays.run([&](SimulateOptions& o) { o.cache_weights = mixtures[i]; });
          if (runs.empty()) return {};
          std::uint64_t bytes = 0;
          for (const Simulated& s : runs) {
            bytes += s.counters.of(Phase::decode).miss_bytes;
            requests[i] += s.counters.of(Phase::decode).requests;
          }
          return bytes;
        });
    need_decode(requests);
    // The default stays unless something is better: if the host computes all misses, every mixture has the same penalty.
    const auto usual = static_cast<std::size_t>(
        std::find(mixtures.begin(), mixtures.end(), CacheWeights{700, 100, 100, 100}) - mixtures.begin());
    const std::size_t best = penalties[usual] == penalties[least(penalties)] ? usual : least(penalties);
    Json calibrated = made_with(a, "cache-weights", "least miss penalty in decode (bytes that misses load)");
    std::string table = fmt::format("  {:<26}  {:>14}\n", "LRU, LFU, LHU, FLD", "miss bytes");
    auto row = [&](const char* name, const CacheWeights& weights) {
      const auto at = static_cast<std::size_t>(std::find(mixtures.begin(), mixtures.end(), weights) - mixtures.begin());
      if (!penalties[at]) return;
      const auto bytes = static_cast<double>(*penalties[at]),
                 least_bytes = static_cast<double>(std::max<std::uint64_t>(*penalties[best], 1));
      table += fmt::format("  {:<26}  {:>14}  {:>+7.2f}%  {}\n", fmt::format("{}", fmt::join(weights, ", ")),
                           *penalties[at], 100 * (bytes / least_bytes - 1), name);
      calibrated["miss_bytes"][name] = *penalties[at];
    };
    row("best", mixtures[best]);
    row("default", {700, 100, 100, 100});
    row("LRU alone", {1000, 0, 0, 0});
    row("LFU alone", {0, 1000, 0, 0});
    row("LHU alone", {0, 0, 1000, 0});
    row("FLD alone", {0, 0, 0, 1000});
    calibrated["tried"] =
        std::count_if(penalties.begin(), penalties.end(), [](const auto& p) { return p.has_value(); });
    print(table);
    write(a, out, {{name_of(&StackOptions::cache_weights), mixtures[best]}}, calibrated, !complete(penalties));
  });
}

/// Finds the whole number with the shortest replays. `values_of`: those to try, in the order in which they are shown.
int by_time(const CalibrateArguments& a, const ParameterMember& member, const char* what, bool prefill_too,
            const std::function<std::vector<std::uint32_t>(const Replays&)>& values_of) {
  check(a, {member});
  OutputFile out(a.out, stack_json);
  return unless_interrupted([&] {
    const Replays replays(a);
    const std::string& name = name_of(member);
    const std::vector<std::uint32_t> values = values_of(replays);
    std::vector<Outcomes> outcomes(values.size());
    std::vector<std::uint64_t> steps(values.size());
    const auto times =
        measure_with_progress("values", values.size(), [&](std::size_t i) -> std::optional<std::uint64_t> {
          const auto runs = replays.run([&](SimulateOptions& o) {
            o.*std::get<std::optional<std::uint32_t> StackOptions::*>(member) = values[i];
          });
          if (runs.empty()) return {};
          std::uint64_t ns = 0;
          for (const Simulated& s : runs) {
            const PhaseClock& decode = s.phase[static_cast<unsigned>(Phase::decode)];
            ns += static_cast<std::uint64_t>(decode.total);
            if (prefill_too) ns += static_cast<std::uint64_t>(s.phase[static_cast<unsigned>(Phase::prefill)].total);
            steps[i] += decode.steps;
            outcomes[i].requests += s.counters.of(Phase::decode).requests;
            outcomes[i].hits += s.counters.of(Phase::decode).hits;
          }
          return ns;
        });
    need_decode(steps);
    Json calibrated = made_with(a, what,
                                prefill_too ? "least simulated time, prefill and decode; of equal ones the first tried"
                                            : "least simulated decode time; of equal ones the smallest");
    std::string table = fmt::format("  {:<22}  {:>12}  {:>7}\n", name, "ms a step", "hits");
    const std::size_t best = least(times);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!times[i]) continue;
      const double tpot_s =
          static_cast<double>(*times[i]) * 1e-9 / static_cast<double>(std::max<std::uint64_t>(steps[i], 1));
      table += fmt::format("  {:<22}  {:>12.4f}  {:>6.2f}%{}\n", values[i], 1e3 * tpot_s, 100 * outcomes[i].hit_rate(),
                           i == best ? "  <-" : "");
      const Json tried = {{name, values[i]},
                          {prefill_too ? "s_a_decode_step" : "tpot_s", tpot_s},
                          {"hit_rate", outcomes[i].hit_rate()}};
      if (i == best) calibrated["found"] = tried;
      calibrated["tried"].push_back(tried);
    }
    print(table);
    write(a, out, {{name, values[best]}}, calibrated, !complete(times));
  });
}

int shallow_boundary(const CalibrateArguments& a) {
  return by_time(a, &StackOptions::shallow_layers, "shallow-boundary", false, [](const Replays& replays) {
    std::vector<std::uint32_t> all(replays.layers() + 1U);
    std::iota(all.begin(), all.end(), 0U);
    return all;
  });
}

int low_pool(const CalibrateArguments& a) {
  return by_time(a, &StackOptions::low_pool_percent, "low-pool", false, [](const Replays&) {
    return std::vector<std::uint32_t>{0, 2, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50};
  });
}

/// Finds how long a prefill that evicts may be. The largest value stands for no limit.
int transient_prefill(const CalibrateArguments& a) {
  return by_time(a, &StackOptions::transient_prefill_rows, "transient-prefill", true,
                 [](const Replays&) { return std::vector<std::uint32_t>{1000000, 0, 1, 2, 4, 8, 16, 32, 64, 128}; });
}

/// The gates of a model, trained to predict those of later layers.
int gates(const CalibrateArguments& a) {
  std::vector<std::string> inputs = a.model.inputs();
  inputs.insert(inputs.end(), a.texts.begin(), a.texts.end());
  check_outputs({a.out}, inputs);
  OutputFile out(a.out, {"a file of gates", "", fmt::format("\"{}\"", gate_format).c_str()});
  return unless_interrupted([&] {
    const std::vector<std::string> texts = read_texts(a);
    CpuModel model(find_model(a.model.model));
    model.set_threads(0);
    const ModelConfig& c = model.config();
    if (c.moe_layer_count() < 2)
      throw InputError(fmt::format("--model {}: one layer has none behind it to predict", a.model.model));
    if (!model.plain_gates()) {
      throw InputError(
          fmt::format("--model {}: its experts are not chosen by the softmax of a matrix alone (biases, groups, "
                      "sigmoids), which is all that trained gates can be; without --gates, predictions follow its own "
                      "rule",
                      a.model.model));
    }
    GateSamples samples;
    {
      std::uint64_t all = 0, done = 0;
      std::vector<std::vector<std::uint32_t>> tokens;
      for (const std::string& t : texts) {
        tokens.push_back(tokenized(model, t).tokens);
        all += tokens.back().size();
      }
      // Each window begins with tokens of its own, too.
      const std::uint64_t begin = model.begin_tokens().size(), taken = a.window > begin ? a.window - begin : 1;
      need_samples(all + begin * std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0},
                                                 [&](std::uint64_t n, const auto& t) {
                                                   return n + (t.size() + taken - 1) / taken;
                                                 }));
      ProgressLine line("tokens");
      for (const std::vector<std::uint32_t>& t : tokens) {
        const auto progress = [&](std::uint64_t of_text) {
          line.show(done + of_text, all);
          return !stop;
        };
        if (!add_samples(model, t, a.window, samples, progress)) throw Interrupted();
        done += t.size();
      }
    }
    std::vector<Matrix> own;
    for (std::uint32_t l = 0; l < c.moe_layer_count(); ++l) own.push_back(model.gates().of(l));
    std::optional<LearnedGates> learned;
    {
      ProgressLine line("gates");
      learned = train_gates(samples, own, a.depth, c.top_k, a.training, [&](std::uint64_t done, std::uint64_t all) {
        line.show(done, all);
        return !stop;
      });
    }
    if (!learned) throw Interrupted();
    learned->write(out, model_name(a.model.model));
    std::string table = fmt::format(
        "  {:>5}  {:>8}  {:>15}  {:>15}  {:>17}\n", "layer", "distance", fmt::format("top {} in {}", c.top_k, c.top_k),
        fmt::format("in {}", std::min<std::uint32_t>(2U * c.top_k, c.experts)), "bits diverged");
    const auto row = [&](const std::string& layer, std::uint32_t distance, const GateQuality& before,
                         const GateQuality& after) {
      return fmt::format("  {:>5}  {:>8}  {:>5.1f} -> {:>5.1f}%  {:>5.1f} -> {:>5.1f}%  {:>7.3f} -> {:>6.3f}\n", layer,
                         distance, 100 * before.recall, 100 * after.recall, 100 * before.recall_twice,
                         100 * after.recall_twice, before.divergence, after.divergence);
    };
    for (std::uint32_t d = 1; d <= a.depth; ++d) {
      GateQuality before, after;
      std::uint32_t count = 0;
      for (const LearnedGates::Gate& g : learned->gates) {
        if (g.distance != d) continue;
        table += row(fmt::format("{}", g.layer), d, g.before, g.after);
        before += g.before;
        after += g.after;
        ++count;
      }
      if (count > 0) table += row("all", d, before / count, after / count);
    }
    print(table);
    print(fmt::format("{}: gates that predict {} layers ahead, measured over a tenth of the texts\n", a.out,
                      std::min(a.depth, c.moe_layer_count() - 1U)));
  });
}

int machine(const CalibrateArguments& a) {
  OutputFile out(a.out, machine_json);
  ProgressLine line("measurements", 0);
  const Json measured = calibrate_machine(a.name, [&line](std::uint64_t done, std::uint64_t total) {
    line.show(done, total);
    return !stop;
  });
  if (measured.is_null()) throw Interrupted();
  out.commit(json_text(measured, 2) + "\n");
  auto value = [&](const char* part, const char* field) { return measured[part][field]["value"].get<double>(); };
  print(fmt::format("{}: link {:.1f} GB/s and {:.1f} us, memory {:.1f} GB/s, {:.1f} Gflop/s\n", a.out,
                    value("link", "effective_bytes_per_s") * 1e-9, value("link", "latency_s") * 1e6,
                    value("device_memory", "effective_bytes_per_s") * 1e-9,
                    value("device_compute", "effective_flops") * 1e-9));
  return 0;
}

void add_gates(CLI::App* c, CalibrateArguments& a) {
  a.model.add_model(c);
  add_named(c, "--text", a.texts, "FILES", "to train on")->required();
  add_named(c, "--out", a.out, "FILE", "the gates (.safetensors)")->required();
  c->add_option("--bytes", a.bytes, "at most so many of each text")->type_name("N")->check(in_range(1ULL, 1ULL << 40U));
  add_count(c, "--window", a.window, 2, 1 << 20, "tokens; a text is cut into such, each a sequence of its own");
  add_count(c, "--depth", a.depth, 1, 4, "how many layers ahead");
  add_count(c, "--epochs", a.training.epochs, 1, 10000, "times that the texts are gone through");
}

/// Adds the options that all searches for parameters have. Returns --text.
CLI::Option* add_stack_arguments(CLI::App* c, CalibrateArguments& a) {
  a.model.add_model(c);
  add_named(c, "--stack", a.stack, "NAME|FILE", "from the list below, or a file; what else it says is kept")
      ->required();
  add_named(c, "--out", a.out, "FILE", "the stack file (.json)")->required();
  c->add_option("--bytes", a.bytes, "at most so many of each text")->type_name("N")->check(in_range(1ULL, 1ULL << 40U));
  add_count(c, "--window", a.window, 2, 1 << 20, "tokens; a text is cut into such, each a sequence of its own");
  add_named(c, "--machine", a.machine, "NAME|FILE", "whose times decide, on the virtual clock: a name or a file")
      ->capture_default_str();
  a.flags.add_budget(c);
  a.flags.add_parameters(c);
  c->footer(stacks_help());
  return add_named(c, "--text", a.texts, "FILES", "calibration texts");
}

void add_by_loss(CLI::App* c, CalibrateArguments& a, std::uint32_t& steps, const char* of) {
  add_stack_arguments(c, a)->required();
  a.model.add_experts(c);
  c->add_option("--loss", a.loss_percent, "bits a byte may grow by so much against the resident model")
      ->type_name("PERCENT")
      ->check(CLI::Range(0.0, 1000.0) & not_nan)
      ->capture_default_str();
  add_count(c, "--steps", steps, 1, 1000, of);
}

void add_by_replay(CLI::App* c, CalibrateArguments& a) {
  CLI::Option* text = add_stack_arguments(c, a);
  CLI::Option* trace =
      add_named(c, "--trace", a.traces, "FILES", "instead of texts: traces of `ferry trace`")->excludes(text);
  for (const char* of_texts : {"--model", "--bytes", "--window"}) trace->excludes(c->get_option(of_texts));
  add_named(c, "--as", a.as_shape, "NAME|FILE",
            "count each expert as large as this model's: a shape's name or file (default: for texts the "
            "machine's reference model, for a trace its own)");
}

}  // namespace

void add_calibrate_commands(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<CalibrateArguments>();
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "measure this machine, or find a stack's parameters on calibration texts");
  calibrate->require_subcommand(1);
  auto add = [&](const char* name, const char* help, int (*run)(const CalibrateArguments&)) {
    CLI::App* c = calibrate->add_subcommand(name, help);
    c->callback([a, run, &chosen] { chosen = [a, run] { return run(*a); }; });
    return c;
  };
  CLI::App* m = add("machine", "measure this machine, and write a machine file for --machine", machine);
  add_named(m, "--out", a->out, "FILE", "the machine file (.json)")->required();
  add_named(m, "--name", a->name, "NAME", "its name in reports")->capture_default_str();
  add_gates(add("gates", "train gates that predict the experts of later layers, for --gates", gates), *a);
  const char* grid = "of the grid from 0 to 1";
  add_by_loss(
      add("precision",
          "find HOBBIT's T1 and T2 (least bytes copied in decode), or Fate's share of INT2 (the largest), within a "
          "loss",
          precision),
      *a, a->steps, grid);
  add_by_loss(add("substitution", "find the largest alpha of Importance-driven's router within a loss", substitution),
              *a, a->steps, grid);
  add_by_loss(add("skipping", "find how much ferry-lossy may leave out within a loss", skipping), *a, a->rates,
              "loss-rates to choose from, 1000 to 10, each by the same factor less than the one before, to a tenth");
  add_by_replay(add("cache-weights", "find the weights of HOBBIT's cache with the least miss penalty", cache_weights),
                *a);
  add_by_replay(add("shallow-boundary", "find the number of shallow layers with the least simulated decode time",
                    shallow_boundary),
                *a);
  add_by_replay(
      add("low-pool", "find HOBBIT's share of slots for low precision with the least simulated decode time", low_pool),
      *a);
  add_by_replay(add("transient-prefill",
                    "find the rows of a prefill step above which it evicts nothing, by the least simulated time in all",
                    transient_prefill),
                *a);
}

}  // namespace ferry::engine
