// HOBBIT's cache weights on several sources of routing: chosen on the first half of each, reported on the second, beside
// other cache policies. (`ferry calibrate cache-weights` finds them for one model.)
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

#include "calibrate/calibrate_stack.hpp"
#include "cpu/cpu_model.hpp"
#include "ferry/any_pipeline.hpp"
#include "ferry/cache/lfu.hpp"
#include "ferry/cache/random.hpp"
#include "ferry/stacks.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "shared/text_file.hpp"
#include "sim/simulate.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/progress.hpp"
#include "trace/record.hpp"
#include "trace/trace_file.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::bench;

constexpr float t1 = 0.6F, t2 = 0.9F;
constexpr std::size_t shown = 10;  ///< of the best mixtures

struct Arguments {
  std::vector<std::string> models, texts, traces;
  std::uint32_t windows = ~0U, step = 100, budget = 25;
  std::string json;
};

/// Recorded routing in two halves, every token a decode step.
struct Source {
  std::string name;
  std::unique_ptr<TraceFile> half[2] = {std::make_unique<TraceFile>(), std::make_unique<TraceFile>()};

  [[nodiscard]] const ModelShape& model() const { return half[0]->trace.model; }

  /// Adds the first sequences of a trace to the first half, and the others to the second.
  void add(const Trace& t, std::uint32_t sequences_of_first) {
    if (sequences_of_first == 0 || sequences_of_first >= t.sequences()) {
      throw InputError(fmt::format("{}: one sequence cannot be halved, expected two or more", name));
    }
    for (std::uint32_t s = 0; s < t.sequences(); ++s) {
      TraceFile& to = *half[s < sequences_of_first ? 0 : 1];
      to.trace.name = t.name;
      to.trace.model = t.model;
      to.sequence_start.push_back(static_cast<std::uint32_t>(to.experts.size() / t.model.layers / t.model.top_k));
      for (std::uint32_t token = t.sequence_start[s]; token < t.sequence_end(s); ++token) {
        for (std::uint32_t l = 0; l < t.model.layers; ++l) {
          for (std::uint32_t k = 0; k < t.model.top_k; ++k) {
            to.experts.push_back(t.expert(token, l, k));
            to.weights.push_back(t.weight(token, l, k));
          }
        }
      }
    }
  }
  void view() {
    for (const auto& h : half) h->view();
  }
};

/// The first half of each text's windows, and the second.
Source run_model(const Arguments& a, const std::string& name) {
  CpuModel model(find_model(name));
  Source source;
  source.name = model_name(name);
  RecordOptions o;
  o.ahead = 0;
  o.tokens = a.windows > ~0U / o.window ? ~0U : a.windows * o.window;
  for (const std::string& text : a.texts) {
    ProgressLine progress(fmt::format("{}: windows of {}", source.name, text));
    o.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.show(done, total);
      return true;
    };
    const auto recorded = record_text(model, source.name, read_text(text), o);
    source.add(recorded->trace, recorded->trace.sequences() / 2);
  }
  source.view();
  return source;
}

/// The sequences that begin in the first half of a trace's tokens, and the others.
Source read_trace(const std::filesystem::path& path) {
  const TraceFile file(path);
  Trace t = file.trace;
  if (t.weights.empty()) throw InputError("--trace " + path.string() + ": has no weights of the chosen experts");
  t.model.expert_bytes = {{0, 0, 15360, 0, 49152}};  // only the ratio matters: INT4 in groups of 64 against 16 bits
  Source source;
  source.name = path.stem().string();
  source.add(
      t, static_cast<std::uint32_t>(std::count_if(t.sequence_start.begin(), t.sequence_start.end(),
                                                  [&](std::uint32_t s) { return 2 * std::uint64_t{s} < t.tokens; })));
  source.view();
  return source;
}

/// How a half's requests end under a cache policy, in HOBBIT's two caches.
template <class Cache>
Outcomes replay(const Source& source, int half, std::uint32_t budget_percent, const Cache& cache) {
  using S = Stack<NoPrediction, Cache, ImportanceThresholds, stacks::LoadEverything, TopK>;
  CoreConfig<S> config;
  config.model = source.model();
  config.model.max_rows = 1;
  config.cache = cache;
  config.precision.t1 = t1;
  config.precision.t2 = t2;
  stacks::HighAndLow::set_up(config, config.model.all_bytes() * budget_percent / 100);
  const auto any = any_config(config);
  SimulateOptions options;
  options.prefill_chunk = 1;
  options.bounds = false;
  Costs costs;  // with nothing predicted, no time decides anything
  costs.work.resize(1);
  return simulate_config(*any, source.half[half]->trace, costs, options).counters.of(Phase::decode);
}

Multidimensional weighted(const CacheWeights& weights) {
  Multidimensional m;
  m.lru = weights[0];
  m.lfu = weights[1];
  m.lhu = weights[2];
  m.fld = weights[3];
  return m;
}

std::string named(const CacheWeights& w) {
  return fmt::format("lru {:>4}, lfu {:>4}, lhu {:>4}, fld {:>4}", w[0], w[1], w[2], w[3]);
}

/// Indices in ascending order of their values.
std::vector<std::size_t> ascending(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto x, auto y) { return values[x] < values[y]; });
  return order;
}

/// What mixtures cost on one source: a miss at high precision counts 1, one at low precision its share of those bytes.
class Penalties {
 public:
  Penalties(Source source, const Arguments& a, const std::vector<CacheWeights>& grid)
      : source_(std::move(source)), budget_(a.budget), grid_(grid) {
    ProgressLine progress(source_.name + ": mixtures");
    const auto bytes = measure_all(
        grid.size(), [&](std::size_t g) { return replay(source_, 0, budget_, weighted(grid[g])).miss_bytes; },
        [&](std::uint64_t done, std::uint64_t total) { progress.show(done, total); });
    const auto whole = static_cast<double>(source_.model().bytes(0, Precision::full));
    for (const auto& b : bytes) first_.push_back(static_cast<double>(b.value()) / whole);
    best_ = ascending(first_);
    lru_ = penalty(1, Lru{});
    lfu_ = penalty(1, weighted({0, 1000, 0, 0}));
  }

  [[nodiscard]] double above_best(std::size_t g) const { return first_[g] / first_[best_[0]] - 1; }
  [[nodiscard]] double second(std::size_t g) const { return penalty(1, weighted(grid_[g])); }
  [[nodiscard]] std::string against_lru_and_lfu(double second) const {
    return fmt::format("{:+.2f}%, {:+.2f}%", 100 * (second / lru_ - 1), 100 * (second / lfu_ - 1));
  }

  [[nodiscard]] Json report() const {
    const ModelShape& model = source_.model();
    const std::uint32_t tokens[] = {source_.half[0]->trace.tokens, source_.half[1]->trace.tokens};
    const Outcomes o = replay(source_, 1, budget_, Lru{});
    fmt::print(
        "{}: {} layers, {} experts, top-{}; {} tokens to choose by, {} to report\n"
        "(second half under policy Lru: {} requests, {:.1f}% hits, {:.1f}% skipped)\n",
        source_.name, model.layers, model.experts, model.top_k, tokens[0], tokens[1], o.requests, 100 * o.hit_rate(),
        100 * static_cast<double>(o.skipped) / static_cast<double>(o.requests));
    fmt::print("{:<44}{:>12}{:>12}  {}\n", "miss penalty", "first half", "second", "second against Lru, lfu alone");
    Json lines = Json::array();
    auto line = [&](const std::string& name, double first, double second) {
      fmt::print("{:<44}{:>12.1f}{:>12.1f}  {}\n", name, first, second, against_lru_and_lfu(second));
      lines.push_back({{"policy", name}, {"first_half", first}, {"second_half", second}});
    };
    auto policy = [&](const char* name, const auto& cache) { line(name, penalty(0, cache), penalty(1, cache)); };
    Lfu over_model;
    over_model.over = CountOver::model;
    policy("policy RandomVictim", RandomVictim{});
    policy("policy Lru", Lru{});
    policy("policy Lfu over the model", over_model);
    policy("lru alone", weighted({1000, 0, 0, 0}));
    policy("lfu alone", weighted({0, 1000, 0, 0}));
    policy("lhu alone", weighted({0, 0, 1000, 0}));
    policy("fld alone", weighted({0, 0, 0, 1000}));
    policy("equal weights", weighted({250, 250, 250, 250}));
    for (std::size_t i = 0; i < std::min(shown, best_.size()); ++i) {
      line(named(grid_[best_[i]]), first_[best_[i]], second(best_[i]));
    }
    fmt::print("\n");
    return {{"name", source_.name}, {"tokens", tokens}, {"miss_penalty", lines}};
  }

 private:
  template <class Cache>
  [[nodiscard]] double penalty(int half, const Cache& cache) const {
    return replay(source_, half, budget_, cache).miss_penalty(source_.model().bytes(0, Precision::full));
  }

  Source source_;
  std::uint32_t budget_;
  const std::vector<CacheWeights>& grid_;
  std::vector<double> first_;      ///< [grid], first half
  std::vector<std::size_t> best_;  ///< [grid] by it, the least first
  double lru_ = 0, lfu_ = 0;       ///< second half
};

/// The mixtures that cost least, averaged over the sources, compared with each source's own best.
void report_compromises(const std::vector<Penalties>& sources, const std::vector<CacheWeights>& grid, Json& json) {
  std::vector<double> above(grid.size());
  for (std::size_t g = 0; g < grid.size(); ++g) {
    for (const Penalties& s : sources) above[g] += s.above_best(g) / static_cast<double>(sources.size());
  }
  const std::vector<std::size_t> order = ascending(above);
  fmt::print(
      "mixtures for all of them, by how far they are above the best of each source, in the mean of first halves:\n");
  for (std::size_t i = 0; i < std::min(shown, order.size()); ++i) {
    fmt::print("{:<44}{:>+8.2f}%; second half against Lru, lfu alone:", named(grid[order[i]]), 100 * above[order[i]]);
    Json seconds = Json::array();
    for (std::size_t s = 0; s < sources.size(); ++s) {
      seconds.push_back(sources[s].second(order[i]));
      fmt::print(" {}{}", sources[s].against_lru_and_lfu(seconds.back()), s + 1 < sources.size() ? ";" : "\n");
    }
    json["compromises"].push_back(
        {{"weights", grid[order[i]]}, {"above_best_first_half", above[order[i]]}, {"second_half", seconds}});
  }
  for (std::size_t g = 0; g < grid.size(); ++g) {
    json["grid"].push_back({{"weights", grid[g]}, {"above_best_first_half", above[g]}});
  }
}

int run(const Arguments& a) {
  if (a.models.empty() && a.traces.empty()) throw InputError("--model or --trace: one of them is needed");
  if (!a.models.empty() && a.texts.empty()) throw InputError("--text: give at least one text to run a model on");
  if (a.models.empty() && !a.texts.empty()) throw InputError("--text: give a model to run it with");
  if (1000 % a.step != 0) throw InputError(fmt::format("--step {}: must divide 1000", a.step));
  JsonFile file(a.json);
  const std::vector<CacheWeights> grid = weight_mixtures(a.step);
  Json json = {{"step", a.step}, {"budget_percent", a.budget}, {"sources", Json::array()}};
  std::vector<Penalties> sources;
  auto add = [&](Source source) {
    sources.emplace_back(std::move(source), a, grid);
    json["sources"].push_back(sources.back().report());
  };
  for (const std::string& m : a.models) add(run_model(a, m));
  for (const std::string& t : a.traces) add(read_trace(t));
  report_compromises(sources, grid, json);
  file.commit(json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("The miss penalty of mixtures of LRU, LFU, LHU and FLD on the routing of models and traces.",
               "cache_weights");
  app.add_option("--model", a.models, "folder, or a bundled model's name; may be given several times")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_option("--text", a.texts, "text that the models were not trained on; may be given several times")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_option("--windows", a.windows, "at most so many windows of 256 tokens of each text")
      ->type_name("N")
      ->check(CLI::Range(2, 1 << 30));
  app.add_option("--trace", a.traces, "a trace (`ferry trace import`); may be given several times")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_option("--step", a.step, "of the mixtures' weights, in thousandths")
      ->type_name("N")
      ->check(CLI::Range(1, 500))
      ->capture_default_str();
  app.add_option("--budget", a.budget, "percent of the bytes of all experts")
      ->type_name("PERCENT")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  add_json_option(app, a.json);
  return parse_and_run(app, argc, argv, [&] { return run(a); });
}
