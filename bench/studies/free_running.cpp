// The copy thread, running free, against the virtual clock: counts and times of every stack.
//
// The reference engine runs a text with a real, throttled copy thread (link/host_thread.hpp), and nobody tells the two
// threads when to do what. The routing of that run is recorded and replayed on the virtual clock, and the two are
// compared. Stacks whose decisions do not depend on arrival times must agree exactly; the others within 5% of the
// requests in every count, and all within 15% in time.
//
// A tiny model's expert computes in microseconds, no longer than a thread takes to wake up, so the machine is slowed
// down: the device's thread pauses until its work has taken what Costs says. A layer with every expert resident takes
// --layer-ms, each of the k experts in it a tenth of what the smallest copy of one takes, whatever its bytes and rows.
// The link's throttle follows from the layer and the machine's ratio, as in `ferry run --machine`. What is compared is
// real: the pipeline's decisions, copies and their bytes, the threads, and how they wait for each other.
//
// The device keeps its schedule. If the processor resumes its thread too late, what it does until then comes late, but the
// device is not late afterwards. An expert that waits for its copy computes at its real speed, and the rest of its time is
// made up at the end of the layer, after the waits as they happened. So a copy into its slot may begin early, by which a
// stack that keeps the link full gains: that is why experts take such a small share here.
//
// Two times are measured in the run itself: what the link took for a copy beyond its bytes (the median), and what an expert
// took on the host (the mean). Costs cannot say what waking up a thread takes, nor that a busy processor delays a copy. So
// runs are a little slower than their simulations, and where copies fill the time to the next plan to within such a wake-up,
// counts differ more.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "calibrate/calibrate.hpp"
#include "cpu/cpu_model.hpp"
#include "ferry/error.hpp"
#include "profiles/machine.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "shared/progress.hpp"
#include "shared/stack_options.hpp"
#include "shared/text_file.hpp"
#include "sim/simulate.hpp"
#include "stacks/budget.hpp"
#include "support/bundled_files.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "trace/record.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

struct Arguments {
  std::vector<std::string> models = {"tiny-qwen-moe", "tiny-mixtral"}, stacks;
  std::string text, budget = "25%", machine = "rtx3090-pcie3", json;
  double layer_ms = 3;
  std::uint32_t tokens = 80, window = 40, prompt = 16, repeat = 3;
};

/// Passes every call on to another runner, and pauses so that the device takes what `costs` says.
class Paced final : public PassingRunner {
 public:
  Paced(ExpertRunner& runner, const ModelShape& model, const Costs& costs)
      : PassingRunner(runner), model_(model), costs_(costs) {}

  void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) override {
    phase_ = phase;
    begin_ = device_free_ = now_ns();
    runner_.begin_step(phase, sequences);
  }
  void plan(std::uint16_t layer, const Matrix& input, const GateScores& scores, const Times& /*took*/) override {
    runner_.spans.clear();
    busy_until(device_free_ + costs_.dense(layer, 1));
    // The runner measures experts without the pauses. What k of them lack is added to the time of the dense part.
    runner_.plan(layer, input, scores, {costs_.dense(layer, 1) + model_.top_k * lacking_, 0, 0, 0});
  }
  void run_resident(std::uint16_t layer, const Matrix& input) override {
    runner_.run_resident(layer, input);
    catch_up();
  }
  void look_ahead(std::uint16_t layer, const GateScores& scores) override {
    busy_until(device_free_ + costs_.dense(layer, 1));
    runner_.look_ahead(layer, scores);
  }
  void run(std::uint16_t layer, const Matrix& input, Matrix& out) override {
    runner_.run(layer, input, out);
    catch_up();
    if (layer + 1U == model_.layers) total[static_cast<unsigned>(phase_)] += device_free_ - begin_;
  }

  /// By Phase: the time of all steps from their first layer to their last, and how much of it was spent waiting.
  Nanoseconds total[2] = {}, stall[2] = {}, host_wait[2] = {};

 private:
  /// Sleeps most of the time and spins the rest, as a timer alone is some 60 us late. A thread that comes late does not
  /// make the device late.
  void busy_until(Nanoseconds t) {
    constexpr Nanoseconds late = 100'000;
    device_free_ = t;
    const Nanoseconds left = t - now_ns();
    if (left > late) std::this_thread::sleep_for(std::chrono::nanoseconds(left - late));
    while (now_ns() < t) {
    }
  }

  /// Advances the device's time by what the runner has just done: waits end when they did, experts take their cost.
  void catch_up() {
    constexpr Nanoseconds no_wait = 20'000;  // less than a thread takes to wake up: the copy had landed before
    const auto phase = static_cast<unsigned>(phase_);
    Nanoseconds t = device_free_;
    for (const Span& s : runner_.spans) {
      if (s.lane != Lane::device) continue;
      if (s.has_expert) {
        const Nanoseconds cost = costs_.on_device(s.what.id.layer, model_.bytes(0, s.what.precision), 1);
        lacking_ = cost - (s.end_ns - s.begin_ns);
        t += cost;
      } else if (s.end_ns > t && s.end_ns - s.begin_ns > no_wait) {
        (std::strcmp(s.name, "wait") == 0 ? stall : host_wait)[phase] += s.end_ns - t;
        t = s.end_ns;
      }
    }
    runner_.spans.clear();
    busy_until(t);
  }

  const ModelShape model_;
  const Costs& costs_;
  Phase phase_ = Phase::prefill;
  Nanoseconds begin_ = 0, device_free_ = 0, lacking_ = 0;
};

/// The counts of one phase that are compared.
struct Counts {
  static constexpr std::array names = {"hits", "late_hits", "misses", "substituted", "skipped", "host_computed"};
  std::uint64_t requests = 0, bytes = 0;
  std::array<std::uint64_t, names.size()> outcomes{};

  explicit Counts(const Outcomes& o)
      : requests(o.requests), bytes(o.bytes), outcomes{o.hits,        o.late_hits, o.misses,
                                                       o.substituted, o.skipped,   o.host_computed} {}
  bool operator==(const Counts&) const = default;
};

/// The run, or its simulation.
struct Side {
  Counters counters;
  Nanoseconds total = 0, stall = 0, host_wait = 0;  ///< of decode

  [[nodiscard]] Counts of(Phase p) const { return Counts(counters.of(p)); }
};

struct Pair {
  Side run, simulated;
  Nanoseconds link_latency = 0, host_expert = 0;  ///< measured in the run
};

double percent(double part, double whole) {
  return whole == 0 ? 0 : 100 * part / whole;
}

double less(std::uint64_t a, std::uint64_t b) {
  return static_cast<double>(a) - static_cast<double>(b);
}

/// The simulation's differences from the run, in percent.
struct Differences {
  std::array<double, Counts::names.size()> outcomes{};  ///< of decode, of the requests
  double bytes = 0, prefill = 0;                        ///< prefill: the largest of its outcomes and bytes
  double total = 0, stall = 0;

  explicit Differences(const Pair& p) {
    auto compare = [](const Counts& a, const Counts& b, std::array<double, Counts::names.size()>& of_requests) {
      for (std::size_t i = 0; i < of_requests.size(); ++i) {
        of_requests[i] = percent(less(b.outcomes[i], a.outcomes[i]), static_cast<double>(a.requests));
      }
      return percent(less(b.bytes, a.bytes), static_cast<double>(a.bytes));
    };
    std::array<double, Counts::names.size()> of_prefill{};
    prefill = compare(p.run.of(Phase::prefill), p.simulated.of(Phase::prefill), of_prefill);
    for (const double d : of_prefill) prefill = std::abs(d) > std::abs(prefill) ? d : prefill;
    bytes = compare(p.run.of(Phase::decode), p.simulated.of(Phase::decode), outcomes);
    auto time = [](Nanoseconds a, Nanoseconds b) {
      return percent(static_cast<double>(b - a), static_cast<double>(a));
    };
    total = time(p.run.total, p.simulated.total);
    stall = time(p.run.stall, p.simulated.stall);
  }
};

/// The median over several runs, of each number by itself.
template <class Value>
double median(const std::vector<Pair>& pairs, const Value& value) {
  std::vector<double> all;
  for (const Pair& p : pairs) all.push_back(value(p));
  std::sort(all.begin(), all.end());
  const std::size_t n = all.size();
  return n % 2 == 1 ? all[n / 2] : (all[n / 2 - 1] + all[n / 2]) / 2;
}

/// A model, and the machine that its runs are held to.
class Bench {
 public:
  Bench(const Arguments& a, const std::string& name, std::string text)
      : a_(a), name_(name), text_(std::move(text)), model_(find_model(name)) {
    shape_ = model_shape(model_.config(), model_.store(), a.prompt);
    budget_ = parse_budget(a.budget, shape_.all_bytes());
    const Machine machine = read_machine(a.machine);

    const double real_s = measure_decode_layer_s(model_), layer_s = a.layer_ms * 1e-3;
    if (layer_s < 4 * real_s) {
      throw InputError(
          fmt::format("--layer-ms {}: a layer really takes {:.3f} ms here, expected at least four times that",
                      a.layer_ms, real_s * 1e3));
    }
    costs_.link_bytes_per_s = throttle_bytes_per_s(machine, shape_.bytes(0, Precision::full), layer_s);
    const Nanoseconds layer = std::llround(layer_s * 1e9);
    const Nanoseconds expert =
        std::min(layer / (1 + shape_.top_k), costs_.copy(model_.store().layout().bytes(Precision::int2)) / 10);
    costs_.device.start_ns = expert;
    costs_.layer_ns = layer - (1 + shape_.top_k) * expert;
    costs_.work = {{}};
  }

  /// One run of a stack, and its replay.
  Pair run(const std::string& stack) {
    model_.add_precisions(find_stack(stack).precisions);
    shape_ = model_shape(model_.config(), model_.store(), a_.prompt);
    Pair pair;
    std::unique_ptr<TraceFile> trace;
    Costs costs = costs_;
    RunnerOptions o = options(stack);
    o.link_bytes_per_s = costs_.link_bytes_per_s;
    {
      const auto runner = make_runner(model_, o);
      Paced paced(*runner, shape_, costs_);
      trace = record(paced);
      pair.run = {paced.statistics().counters, paced.total[1], paced.stall[1], paced.host_wait[1]};
      std::vector<Nanoseconds> late;
      for (const Span& s : paced.link_spans()) {
        late.push_back(s.end_ns - s.begin_ns - costs_.copy(shape_.bytes(0, s.what.precision)));
      }
      std::sort(late.begin(), late.end());
      if (!late.empty()) costs.link_latency_ns = std::max<Nanoseconds>(0, late[late.size() / 2]);
      const std::uint64_t hosted = paced.statistics().counters.of(Phase::decode).host_computed;
      costs.host.start_ns =
          hosted > 0 ? runner->times[static_cast<unsigned>(Phase::decode)].host / static_cast<Nanoseconds>(hosted) : 0;
    }
    pair.link_latency = costs.link_latency_ns;
    pair.host_expert = costs.host.start_ns;
    SimulateOptions s;
    static_cast<StackOptions&>(s) = o;
    s.prefill_chunk = a_.prompt;
    s.bounds = false;
    const Simulated simulated = simulate(trace->trace, costs, s);
    const PhaseClock& decode = simulated.phase[static_cast<unsigned>(Phase::decode)];
    pair.simulated = {simulated.counters, decode.total, decode.stall, decode.host_wait};
    return pair;
  }

  [[nodiscard]] std::string heading() const {
    auto ms = [](Nanoseconds ns) { return static_cast<double>(ns) * 1e-6; };
    const std::uint64_t bytes = shape_.bytes(0, Precision::full);
    return fmt::format(
        "{}, {} of its experts' memory, at the ratio of {}: dense work {:.3f} ms a layer, an expert {:.3f} ms, its "
        "copy {:.3f} ms\n",
        name_, a_.budget, a_.machine, ms(costs_.dense(0, 1)), ms(costs_.on_device(0, bytes, 1)),
        ms(costs_.copy(bytes)));
  }
  [[nodiscard]] Json facts() const {
    const std::uint64_t bytes = shape_.bytes(0, Precision::full);
    return {{"model", name_},
            {"machine", a_.machine},
            {"budget_bytes", budget_},
            {"dense_ns", costs_.dense(0, 1)},
            {"expert_ns", costs_.on_device(0, bytes, 1)},
            {"link_bytes_per_s", costs_.link_bytes_per_s}};
  }

 private:
  RunnerOptions options(const std::string& stack) const {
    RunnerOptions o;
    o.stack = stack;
    o.budget_bytes = budget_;
    o.max_rows = a_.prompt;
    o.log = true;
    return o;
  }
  std::unique_ptr<TraceFile> record(ExpertRunner& runner) {
    RecordOptions r;
    r.window = a_.window;
    r.prompt = a_.prompt;
    r.tokens = a_.tokens;
    return record_text(model_, runner, name_, text_, r);
  }

  const Arguments& a_;
  std::string name_, text_;
  CpuModel model_;
  ModelShape shape_;
  std::uint64_t budget_ = 0;
  Costs costs_;
};

Json to_json(const Side& s) {
  Json json;
  for (const Phase p : {Phase::prefill, Phase::decode}) {
    const Counts c = s.of(p);
    Json& of = json[p == Phase::prefill ? "prefill" : "decode"];
    of = {{"requests", c.requests}, {"bytes", c.bytes}};
    for (std::size_t i = 0; i < c.outcomes.size(); ++i) of[Counts::names[i]] = c.outcomes[i];
  }
  json["decode"]["ns"] = s.total;
  json["decode"]["stall_ns"] = s.stall;
  json["decode"]["host_wait_ns"] = s.host_wait;
  return json;
}

/// A line of the table; its numbers go to `json`.
std::string line(const std::string& stack, const std::vector<Pair>& pairs, Json& json) {
  constexpr double counts_within = 5, times_within = 15;
  bool exact = true;
  Json runs = Json::array();
  for (const Pair& p : pairs) {
    for (const Phase phase : {Phase::prefill, Phase::decode}) exact = exact && p.run.of(phase) == p.simulated.of(phase);
    runs.push_back({{"run", to_json(p.run)},
                    {"simulated", to_json(p.simulated)},
                    {"link_latency_ns", p.link_latency},
                    {"host_expert_ns", p.host_expert}});
  }
  auto difference = [&](auto&& of) { return median(pairs, [&](const Pair& p) { return of(Differences(p)); }); };
  std::string out = fmt::format("{:<19}", stack);
  double most = 0;
  Json differences;
  auto count = [&](const char* name, double d) {
    most = std::max(most, std::abs(d));
    differences[name] = d;
    out += fmt::format("{:>7.2f}", d);
  };
  for (std::size_t i = 0; i < Counts::names.size(); ++i) {
    count(Counts::names[i], difference([i](const Differences& d) { return d.outcomes[i]; }));
  }
  count("bytes", difference([](const Differences& d) { return d.bytes; }));
  count("prefill", difference([](const Differences& d) { return d.prefill; }));

  auto ms = [&](Nanoseconds Side::*time) {
    return median(pairs, [&](const Pair& p) { return static_cast<double>(p.run.*time); }) * 1e-6;
  };
  const double total = difference([](const Differences& d) { return d.total; });
  const double stall = difference([](const Differences& d) { return d.stall; });
  const bool stalls = ms(&Side::stall) >= 0.05 * ms(&Side::total);  // a few short waits tell of threads, not of links
  differences["decode_time"] = total;
  differences["stall"] = stall;
  const bool in_time = std::abs(total) <= times_within, stall_in_time = !stalls || std::abs(stall) <= times_within;
  out += fmt::format(" |{:>9.1f}{:>7.2f}{:>9.1f}{:>7}  {:<10}{}\n", ms(&Side::total), total, ms(&Side::stall),
                     stalls ? fmt::format("{:.2f}", stall) : "-",
                     exact                   ? "exact"
                     : most <= counts_within ? "within 5%"
                                             : "apart",
                     !in_time        ? "apart"
                     : stall_in_time ? "within 15%"
                                     : "within 15%, stall apart");
  json.push_back({{"stack", stack},
                  {"runs", runs},
                  {"difference_percent", differences},
                  {"counts_exact", exact},
                  {"counts_within_5_percent", most <= counts_within},
                  {"time_within_15_percent", in_time},
                  {"stall_within_15_percent", stall_in_time}});
  return out;
}

int run(Arguments a) {
  if (a.stacks.empty()) {
    for (const StackInfo& s : all_stacks()) a.stacks.push_back(s.name);
  }
  for (const std::string& s : a.stacks) static_cast<void>(find_stack(s));
  if (a.prompt >= a.window) {
    throw InputError(fmt::format("--prompt-tokens {}: expected less than the window, {}", a.prompt, a.window));
  }
  const std::string text = ferry::bench::read_text(a.text);
  ferry::bench::JsonFile file(a.json);
  Json json = Json::array();
  const ferry::bench::Moment begin = ferry::bench::now();
  std::size_t done = 0;
  const std::size_t all = a.models.size() * a.stacks.size();
  for (const std::string& name : a.models) {
    Bench bench(a, name, text);
    std::string table =
        bench.heading() + fmt::format("{:<19}{:>56} |{:>32}\n{:<19}", "", "simulated less run, % of requests; bytes, %",
                                      "decode, ms and difference, %", "");
    for (const char* column : {"hits", "late", "misses", "subst.", "skip", "host", "bytes", "prefill"}) {
      table += fmt::format("{:>7}", column);
    }
    table += fmt::format(" |{:>9}{:>7}{:>9}{:>7}  {:<10}{}\n", "time", "%", "stall", "%", "counts", "times");
    Json results = Json::array();
    for (const std::string& stack : a.stacks) {
      std::vector<Pair> pairs;
      for (std::uint32_t i = 0; i < a.repeat; ++i) pairs.push_back(bench.run(stack));
      table += line(stack, pairs, results);
      ++done;
      fmt::print(stderr, "{}, {}: {}\n", name, stack, ferry::bench::how_far(begin, done, all));
    }
    std::fputs((table + "\n").c_str(), stdout);
    std::fflush(stdout);
    json.push_back(bench.facts());
    json.back()["results"] = results;
  }
  file.commit(json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("The copy thread, running free, against the virtual clock: counts and times of every stack.",
               "free-running");
  app.footer(
      "Differences are medians over the repeats, each run against the simulation of its own routing. \"exact\": every\n"
      "count of every repeat is the same, prefill and bytes included. Stalls below 5% of the time are not judged.");
  app.add_option("--text", a.text, "what the models read")->type_name("FILE")->required();
  app.add_option("--models", a.models, "bundled ones' names, or folders (default: tiny-qwen-moe,tiny-mixtral)")
      ->delimiter(',')
      ->type_name("NAMES");
  ferry::bench::add_stacks_option(app, a.stacks);
  ferry::bench::add_budget_option(app, a.budget);
  app.add_option("--machine", a.machine, "whose ratio of expert transfer to compute: a name or a file")
      ->type_name("NAME|FILE")
      ->capture_default_str();
  app.add_option("--layer-ms", a.layer_ms, "what a layer is made to take with every expert resident")
      ->check(CLI::Range(0.1, 1000.0))
      ->capture_default_str();
  app.add_option("--tokens", a.tokens, "at most, rounded up to whole windows")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--window", a.window, "tokens of a sequence")->check(CLI::Range(2, 1 << 20))->capture_default_str();
  app.add_option("--prompt-tokens", a.prompt, "of those, how many are the prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--repeat", a.repeat, "runs of each stack")->check(CLI::Range(1, 100))->capture_default_str();
  ferry::bench::add_json_option(app, a.json);
  return ferry::bench::parse_and_run(app, argc, argv, [&] { return run(a); });
}
