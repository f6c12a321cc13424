// What mixed precision, skipping and substitution cost in quality: the papers' tables and figures on bundled models.
//
// The papers ask benchmarks for their accuracy; models of a few million parameters that read bytes cannot answer those.
// Here the loss is in how well the model predicts a text: bits a byte, the divergence from the resident model, and how
// often both put the same byte first (eval.hpp). Everything is computed for real, on the virtual clock of the paper's
// machine where what has arrived decides; so it repeats.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "cpu/cpu_device.hpp"
#include "cpu/cpu_model.hpp"
#include "ferry/detail/best.hpp"
#include "inference/eval.hpp"
#include "inference/generate.hpp"
#include "inference/pipeline_runner.hpp"
#include "profiles/machine.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "shared/markdown.hpp"
#include "stacks/stack_config.hpp"
#include "store/store_file.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/progress.hpp"
#include "support/text_file.hpp"
#include "sweep/simulated_run.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using bench::markdown;
using bench::Rows;

/// Set by a signal: end after the current step. And which one it was.
std::atomic<bool> stop = false;
std::atomic<int> stopped_by = 0;

constexpr const char* model_names[] = {"tiny-qwen-moe", "tiny-mixtral"};
constexpr std::uint32_t window = 256;

/// A paper's machine and model. In time, tiny experts count as large as the model's. The budget is nine tenths of the machine's
/// memory, less the weights that every token needs, as a share of the experts at `bits`.
struct Setting {
  const char *name, *machine, *shape;
  double gib;
  double bits = 16;
};
constexpr Setting high_end = {"high-end PC", "rtx3090-pcie3", "qwen1.5-moe-a2.7b", 24};
constexpr Setting low_end = {"low-end PC", "gtx1080ti-pcie1", "qwen1.5-moe-a2.7b", 11};
constexpr Setting rtx4090 = {"RTX 4090", "rtx4090-pcie4", "mixtral-8x7b", 24};
constexpr Setting orin = {"Jetson AGX Orin", "orin-nvme", "mixtral-8x7b", 32, 8};
constexpr Setting s1 = {"S1", "rtx3080ti-pcie4", "deepseek-moe-16b", 12};
constexpr Setting s2 = {"S2", "rtx4060ti-pcie4", "xverse-moe-a4.2b", 16};
constexpr Setting s3 = {"S3", "a6000-pcie4", "qwen2-57b-a14b", 48};

double expert_share(const Setting& s) {
  const ModelFacts facts = read_shape(s.shape, s.bits);
  double dense = 0;
  for (std::uint32_t l = 0; l < facts.model.layers; ++l) {
    dense += static_cast<double>(facts.work[facts.work.size() == 1 ? 0 : l].dense_bytes);
  }
  return (0.9 * s.gib * 1073741824.0 - dense) / static_cast<double>(facts.model.all_bytes());
}

/// The model and the text that stacks run on.
struct Place {
  CpuModel& model;
  const std::string& text;
  std::vector<float> unimportance = {};  ///< HOBBIT's s of every expert that the text's tokens ask for, largest first
};

/// Rows of experts, counted as they are asked for.
struct Load {
  std::uint64_t low = 0, all = 0;
};

using Runner = std::unique_ptr<ExpertRunner>;

/// One stack on one setting: a line of a table.
struct Case {
  std::vector<std::string> cells;
  Phase phase = Phase::decode;
  std::function<Runner(Place&, Load&)> make;
};

struct Result {
  Evaluated run;
  Load load;

  Result& operator+=(const Result& other) {
    run += other.run;
    load.low += other.load.low;
    load.all += other.load.all;
    return *this;
  }
};

// Stacks

RunnerOptions options_on(const Place& place, const Setting& s, CostSource source, Phase phase, const char* stack) {
  RunnerOptions o;
  o.stack = stack;
  o.max_rows = phase == Phase::decode ? 1 : window;
  o.make_device = make_cpu_device;
  const ModelShape tiny = model_shape(place.model.config(), place.model.store(), o.max_rows);
  const std::uint64_t all = s.bits == 8 ? everything(tiny, Precision::int8).bytes() : tiny.all_bytes();
  o.budget_bytes = static_cast<std::uint64_t>(expert_share(s) * static_cast<double>(all));
  ModelFacts reference = read_shape(s.shape, 16);  // a bf16 expert counts as an f16 one, and packed ones as packed ones
  reference.work = read_shape(s.shape, s.bits).work;
  o.virtual_costs = as_if(read_machine(s.machine).costs(reference.work, source), reference, tiny);
  return o;
}

Runner named(Place& place, const RunnerOptions& o) {
  return make_runner(place.model, o);
}

/// Makes a stack that has no name, or one with a parameter that no option sets. `configure` sets its policies and allotment.
template <class Stack, class Configure>
Runner composed(Place& place, const RunnerOptions& o, const Configure& configure) {
  const ModelConfig& model = place.model.config();
  const ExpertStore& store = place.model.store();
  auto c = engine::part::basic_config<Stack>(model_shape(model, store, o.max_rows), o,
                                             [&](std::uint64_t bytes) { return copy_cost(o, store, bytes); });
  configure(c);
  return std::make_unique<PipelineRunner>(*any_config(c), traits_of<Stack>().preloads, store, place.model.gates(), o);
}

Case named_case(std::vector<std::string> cells, const Setting& s, CostSource source, Phase phase, const char* stack,
                const std::function<void(RunnerOptions&)>& set = {}) {
  return {std::move(cells), phase, [=](Place& place, Load&) {
            RunnerOptions o = options_on(place, s, source, phase, stack);
            if (set) set(o);
            return named(place, o);
          }};
}

Case fate_with_low_on_miss(std::vector<std::string> cells, const Setting& s, CostSource source, Phase phase) {
  return {std::move(cells), phase, [=](Place& place, Load&) {
            const RunnerOptions o = options_on(place, s, source, phase, "fate");
            return composed<stacks::Fate>(place, o, [&](auto& c) {
              c.precision.low_on_miss = true;
              stacks::Fate::set_up(c, o.budget_bytes);
            });
          }};
}

Case lru_case(std::vector<std::string> cells, const Setting& s, CostSource source) {
  if (s.bits == 16) return named_case(std::move(cells), s, source, Phase::decode, "lru");
  return {std::move(cells), Phase::decode, [=](Place& place, Load&) {
            const RunnerOptions o = options_on(place, s, source, Phase::decode, "lru");
            return composed<stacks::LruCache>(place, o, [&](auto& c) {
              c.precision.precision = Precision::int8;
              c.allotment = pool_per_layer(c.model, o.budget_bytes, Precision::int8);
            });
          }};
}

/// HOBBIT's pair of precisions on a setting; `dynamic`: the paper's thresholds, otherwise everything in the higher one.
Case hobbit_case(std::vector<std::string> cells, const Setting& s, CostSource source, Phase phase, bool dynamic) {
  return named_case(std::move(cells), s, source, phase, "hobbit", [=](RunnerOptions& o) {
    if (s.bits == 8) {
      o.high_bits = 8;
      o.low_bits = 2;
    }
    if (!dynamic) o.t1 = o.t2 = 1.0F;
  });
}

std::vector<Case> resident_cases(std::size_t more_cells) {
  std::vector<Case> cases;
  for (const char* stack : {"resident-int8", "resident-int4", "resident-int2"}) {
    std::vector<std::string> cells(1 + more_cells, "–");
    cells[0] = stack;
    cases.push_back(named_case(cells, high_end, CostSource::stated, Phase::prefill, stack));
  }
  return cases;
}

/// Every request misses, so the selector alone decides what runs at low precision or is skipped.
template <class Selector>
struct AlwaysMissing : Stack<NoPrediction, LoadOnDemand, Selector, stacks::LoadEverything, TopK> {};

/// Fate's selector, or its opposite, which loads the most popular experts at low precision. Counts rows.
struct ByPopularity {
  PopularityHybrid hybrid;
  bool popular_first = false;
  Load* load = nullptr;

  void reserve(Carver& carve, const Shape& shape) { hybrid.reserve(carve, shape); }
  void select(Phase phase, bool demand, View<Request> requests) noexcept {
    hybrid.select(phase, demand, requests);
    for (Request& r : requests) {
      bool low = r.want.precision == hybrid.low;
      if (popular_first) {  // `hybrid` selects 100 - share percent in ascending order: invert that
        low = !low;
        r.want.precision = low ? hybrid.low : hybrid.high;
      }
      load->all += r.rows;
      load->low += low ? r.rows : 0;
    }
  }
  [[nodiscard]] std::uint8_t precisions() const noexcept { return (hybrid.high | hybrid.low).bits; }
};
static_assert(QuantSelector<ByPopularity>);

/// The threshold s of HOBBIT's Eq. 2 that `share` of the experts exceed, among those that the text's tokens ask the resident
/// model for.
float threshold_for(Place& place, double share) {
  std::vector<float>& all = place.unimportance;
  if (all.empty()) {
    const ModelConfig& c = place.model.config();
    const Runner resident = named(place, options_on(place, high_end, CostSource::stated, Phase::prefill, "resident"));
    std::vector<Route> best(c.top_k);
    auto observe = [&](std::uint32_t, const Matrix&, const GateScores& said) {
      const Matrix& scores = said.weight;
      for (Eigen::Index i = 0; i < scores.rows(); ++i) {
        detail::best_of(scores.row(i).data(), c.experts, c.top_k, best.data());
        float sum = 0, above = 0;
        for (const Route& r : best) sum += scores(i, r.expert);
        for (const Route& r : best) {
          all.push_back(above / sum);
          above += scores(i, r.expert);
        }
      }
    };
    for (std::size_t at = 0; at < place.text.size(); at += window) {
      const std::vector<std::uint32_t> tokens = tokenize(place.model, place.text.substr(at, window - 1));
      std::vector<TokenRow> rows;
      for (const std::uint32_t t : tokens) rows.push_back({0, t, static_cast<std::uint32_t>(rows.size())});
      std::vector<KvCache> caches;
      caches.emplace_back(c, CacheRoom(c, static_cast<std::uint32_t>(rows.size())));
      place.model.forward(Phase::prefill, rows, caches, *resident, 1, observe);
      resident->end_sequence(0);
    }
    std::sort(all.begin(), all.end(), std::greater<>());
  }
  return all[std::min(all.size() - 1, static_cast<std::size_t>(share * static_cast<double>(all.size())))];
}

// Tables

std::string percent(double part, double whole) {
  return whole == 0 ? "–" : fmt::format("{:.1f}", 100 * part / whole);
}
std::string percent(std::uint64_t part, std::uint64_t whole) {
  return percent(static_cast<double>(part), static_cast<double>(whole));
}

/// The share that was computed at low precision in decode; prefill does not count it.
std::string computed_low(const Result& r) {
  const Outcomes& o = r.run.phase[static_cast<unsigned>(Phase::decode)];
  return percent(r.run.computed[1] + r.run.computed[2], o.requests);
}
std::string computed_int2(const Result& r) {
  return percent(r.run.computed[1], r.run.phase[static_cast<unsigned>(Phase::decode)].requests);
}
std::string skipped(const Result& r) {
  return percent(r.run.phase[0].skipped + r.run.phase[1].skipped, r.run.phase[0].requests + r.run.phase[1].requests);
}
std::string substituted(const Result& r) {
  return percent(r.run.phase[1].substituted, r.run.phase[1].requests);
}
std::string low_load(const Result& r) {
  return percent(r.load.low, r.load.all);
}
/// Computed at low precision, or not at all.
std::string replaced(const Result& r) {
  const Outcomes& o = r.run.phase[static_cast<unsigned>(Phase::decode)];
  return percent(r.run.computed[1] + r.run.computed[2] + o.skipped, o.requests);
}

struct Column {
  const char* name;
  std::string (*of)(const Result&);
};

struct TableSpec {
  const char *name, *what;
  std::vector<std::string> head;  ///< of Case::cells
  std::vector<Column> columns;
  std::function<std::vector<Case>(const ModelConfig&)> cases;
};

constexpr CostSource stated = CostSource::stated, effective = CostSource::effective;

std::vector<Case> hobbit_table_3(const ModelConfig&) {
  std::vector<Case> cases = resident_cases(2);
  for (const Setting& s : {rtx4090, orin}) {
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      cases.push_back(hobbit_case(
          {"hobbit", s.bits == 16 ? "full + INT4" : "INT8 + INT2", phase == Phase::prefill ? "prefill" : "decode"}, s,
          stated, phase, true));
    }
  }
  return cases;
}

std::vector<Case> hobbit_figure_3b(const ModelConfig& model) {
  std::vector<Case> cases;
  for (const auto& [how, low] : {std::pair{"INT4", Precision::int4}, std::pair{"INT2", Precision::int2},
                                 std::pair{"skipped", Precision::skip}}) {
    // The best of the k experts is never replaced.
    for (std::uint32_t share = 10; share <= 60 && share * model.top_k <= 100 * (model.top_k - 1); share += 10) {
      cases.push_back({{how, std::to_string(share)}, Phase::decode, [=, low = low](Place& place, Load&) {
                         const RunnerOptions o = options_on(place, high_end, stated, Phase::decode, "on-demand");
                         const float threshold = threshold_for(place, share / 100.0);
                         return composed<AlwaysMissing<ImportanceThresholds>>(place, o, [&](auto& c) {
                           c.precision.t1 = threshold;
                           c.precision.t2 = low == Precision::skip ? threshold : 1.0F;
                           if (low != Precision::skip) c.precision.low = low;
                           c.allotment = stream_only(c.model, c.model.all_bytes());
                         });
                       }});
    }
  }
  return cases;
}

std::vector<Case> fate_table_2(const ModelConfig&) {
  return resident_cases(0);
}

std::vector<Case> fate_figure_10(const ModelConfig&) {
  std::vector<Case> cases;
  for (const bool popular_first : {false, true}) {
    for (const std::uint32_t share : {0U, 10U, 20U, 30U, 50U, 70U, 100U}) {
      if (popular_first && (share == 0 || share == 100)) continue;  // the same as the least popular
      cases.push_back({{popular_first ? "most popular" : "least popular", std::to_string(share)},
                       Phase::prefill,
                       [=](Place& place, Load& load) {
                         const RunnerOptions o = options_on(place, high_end, stated, Phase::prefill, "on-demand");
                         return composed<AlwaysMissing<ByPopularity>>(place, o, [&](auto& c) {
                           c.precision.hybrid.low_share_percent = popular_first ? 100 - share : share;
                           c.precision.popular_first = popular_first;
                           c.precision.load = &load;
                           c.allotment = stream_only(c.model, c.model.all_bytes());
                         });
                       }});
    }
  }
  return cases;
}

std::vector<Case> fate_table_3(const ModelConfig&) {
  std::vector<Case> cases;
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const char* name = phase == Phase::prefill ? "prefill" : "decode";
    cases.push_back(named_case({high_end.name, name}, high_end, stated, phase, "fate"));
    cases.push_back(named_case({low_end.name, name}, low_end, stated, phase, "fate"));
    if (phase == Phase::prefill) continue;  // INT2 on misses is for decode
    cases.push_back(fate_with_low_on_miss({"low-end PC, misses in INT2", name}, low_end, stated, phase));
  }
  return cases;
}

std::vector<Case> importance_table_3(const ModelConfig&) {
  std::vector<Case> cases;
  for (const char* stack : {"importance+er", "importance-driven"}) {
    for (int tenths = 0; tenths <= 6; ++tenths) {
      const float alpha = static_cast<float>(tenths) / 10.0F;
      cases.push_back(named_case({stack, fmt::format("{:.1f}", alpha)}, s2, effective, Phase::decode, stack,
                                 [alpha](RunnerOptions& o) { o.alpha = alpha; }));
    }
  }
  return cases;
}

/// For each machine plain LRU, the paper's stack without its lossy part, and the same stack with it.
std::vector<Case> speed_and_quality(const ModelConfig&) {
  std::vector<Case> cases;
  for (const CostSource source : {effective, stated}) {
    auto cells = [source](const char* stack, const Setting& s, const char* role) {
      return std::vector<std::string>{stack, s.name, cost_source_name(source), role};
    };
    for (const Setting& s : {high_end, low_end}) {
      cases.push_back(lru_case(cells("", s, "lru"), s, source));
      cases.push_back(named_case(cells("", s, "without"), s, source, Phase::decode, "fate+cache"));
      cases.push_back(named_case(cells("fate", s, "with"), s, source, Phase::decode, "fate"));
    }
    cases.push_back(
        fate_with_low_on_miss(cells("fate, misses in INT2", low_end, "with"), low_end, source, Phase::decode));
    for (const Setting& s : {rtx4090, orin}) {
      const char* name = s.bits == 16 ? "hobbit, full + INT4" : "hobbit, INT8 + INT2";
      cases.push_back(lru_case(cells("", s, "lru"), s, source));
      cases.push_back(hobbit_case(cells("", s, "without"), s, source, Phase::decode, false));
      cases.push_back(hobbit_case(cells(name, s, "with"), s, source, Phase::decode, true));
    }
    if (source == stated) continue;  // the third paper states no times
    for (const auto& [s, alpha] : {std::pair{s1, 0.35F}, std::pair{s2, 0.3F}, std::pair{s3, 0.25F}}) {
      auto driven = [&, &s = s](const std::string& name, const char* role, float a) {
        cases.push_back(named_case(cells(name.c_str(), s, role), s, source, Phase::decode, "importance-driven",
                                   [a](RunnerOptions& o) { o.alpha = a; }));
      };
      cases.push_back(lru_case(cells("", s, "lru"), s, source));
      driven("", "without", 0);
      driven(fmt::format("importance-driven, alpha {}", alpha), "with", alpha);
    }
  }
  return cases;
}

const std::vector<TableSpec>& all_tables() {
  static const std::vector<TableSpec> tables = {
      {"hobbit-table3",
       "HOBBIT, Table 3: two pairs of precisions",
       {"stack", "experts", "phase"},
       {{"low, %", computed_low}, {"skipped, %", skipped}},
       hobbit_table_3},
      {"hobbit-fig3b",
       "HOBBIT, Figure 3b: loss by the share of experts replaced, least important first",
       {"replaced", "share, %"},
       {{"reached, %", replaced}},
       hobbit_figure_3b},
      {"fate-table2", "Fate, Table 2: all experts at low precision", {"stack"}, {}, fate_table_2},
      {"fate-fig10",
       "Fate, Figure 10: prefill with a share of the tokens' experts in INT2, the rest in INT4",
       {"in INT2 first", "share, %"},
       {{"reached, %", low_load}},
       fate_figure_10},
      {"fate-table3",
       "Fate, Table 3: the whole stack on two PCs",
       {"PC", "phase"},
       {{"in INT2, %", computed_int2}},
       fate_table_3},
      {"importance-table3",
       "Importance-driven, Table 3: substitution by alpha",
       {"stack", "alpha"},
       {{"substituted, %", substituted}},
       importance_table_3},
      {"speed-quality",
       "Speed and quality: each paper's lossy stack beside itself without what loses",
       {"stack", "machine", "costs", "role"},
       {},
       speed_and_quality}};
  return tables;
}

// Running them

struct Text {
  std::string name, bytes;
};

/// A table on one model and one text.
struct Job {
  const TableSpec* table;
  std::size_t model, text;
  std::vector<Case> cases;
  std::vector<Result> results = {};  ///< by case; none: not run, or not to the end
};

struct Arguments {
  std::vector<std::string> tables, texts;
  std::string quantizer = "nearest", json;
  std::uint64_t bytes = 16384;
  std::uint32_t threads = std::max(1U, std::thread::hardware_concurrency());
};

std::unique_ptr<CpuModel> open(const char* name, const std::string& quantizer) {
  auto model = std::make_unique<CpuModel>(data_directory() / "models" / name, quantizer_of(quantizer, "--quantizer"));
  model->add_precisions(Precision::int8 | Precision::int4 | Precision::int2);
  return model;
}

/// `done(bytes)` is called when so many more bytes were run, of one case.
void run(Job& job, CpuModel& model, const Text& text, const std::function<void(std::uint64_t)>& done) {
  Place place{model, text.bytes};
  std::vector<Result> results(job.cases.size());
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    std::vector<Runner> runners;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < job.cases.size(); ++i) {
      if (job.cases[i].phase != phase) continue;
      runners.push_back(job.cases[i].make(place, results[i].load));
      which.push_back(i);
    }
    if (runners.empty()) continue;
    EvalOptions o;
    o.window = window;
    o.phase = phase;
    std::uint64_t before = 0;
    o.progress = [&](std::uint64_t bytes, std::uint64_t) {
      done((bytes - before) * runners.size());
      before = bytes;
      return !stop;
    };
    const Runner resident = named(place, options_on(place, high_end, stated, phase, "resident"));
    const std::vector<Evaluated> evaluated = evaluate(model, *resident, runners, tokenized(model, text.bytes), o);
    if (stop) return;
    for (std::size_t i = 0; i < which.size(); ++i) results[which[i]].run = evaluated[i];
  }
  job.results = std::move(results);
}

void run_all(std::vector<Job>& jobs, const std::vector<Text>& texts, const Arguments& a) {
  std::uint64_t to_do = 0, done = 0;
  for (const Job& j : jobs) to_do += j.cases.size() * texts[j.text].bytes.size();
  ProgressLine line("quality, bytes of all stacks");
  std::mutex mutex;
  std::exception_ptr failure;
  std::atomic<std::size_t> next = 0;
  auto work = [&] {
    try {
      std::map<std::size_t, std::unique_ptr<CpuModel>> models;  // a thread's own: models have scratch
      for (std::size_t i = next++; i < jobs.size() && !stop; i = next++) {
        auto& model = models[jobs[i].model];
        if (!model) model = open(model_names[jobs[i].model], a.quantizer);
        run(jobs[i], *model, texts[jobs[i].text], [&](std::uint64_t bytes) {
          const std::lock_guard lock(mutex);
          line.show(done += bytes, to_do);
        });
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      stop = true;
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < std::min<std::size_t>(a.threads, jobs.size()); ++t) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  if (failure) std::rethrow_exception(failure);
}

// Reports

/// A case on one model: over all texts, and over each.
struct Line {
  std::string model;
  const Case* of;
  Result all;
  std::vector<const Result*> texts;
};

/// The lines of one table, by model; lines with a missing text are left out.
std::vector<Line> lines_of(const std::vector<Job>& jobs, const TableSpec& table) {
  std::vector<Line> lines;
  for (std::size_t m = 0; m < std::size(model_names); ++m) {
    const std::size_t first = lines.size();
    for (const Job& j : jobs) {
      if (j.table != &table || j.model != m) continue;
      if (j.results.empty()) return {};
      for (std::size_t c = 0; c < j.cases.size(); ++c) {
        if (lines.size() == first + c) lines.push_back({model_names[m], &j.cases[c], {}, {}});
        lines[first + c].all += j.results[c];
        lines[first + c].texts.push_back(&j.results[c]);
      }
    }
  }
  return lines;
}

std::vector<std::string> quality_cells(const Quality& q) {
  return {fmt::format("{:+.3f}", q.change_percent()), fmt::format("{:.5f}", q.kl_divergence()),
          fmt::format("{:.2f}", 100 * q.top1_agreement())};
}

void append(std::vector<std::string>& to, const std::vector<std::string>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

Rows quality_rows(const TableSpec& table, const std::vector<Line>& lines, const std::vector<Text>& texts) {
  Rows rows = {{"model"}};
  append(rows[0], table.head);
  for (const Column& c : table.columns) rows[0].emplace_back(c.name);
  append(rows[0], {"bits, %", "KL, bits", "same first, %"});
  for (std::size_t t = 0; t < texts.size() && texts.size() > 1; ++t) rows[0].push_back(texts[t].name);
  for (const Line& l : lines) {
    std::vector<std::string> row = {l.model};
    append(row, l.of->cells);
    for (const Column& c : table.columns) row.push_back(c.of(l.all));
    append(row, quality_cells(l.all.run.quality));
    for (std::size_t t = 0; t < l.texts.size() && texts.size() > 1; ++t) {
      row.push_back(fmt::format("{}", fmt::join(quality_cells(l.texts[t]->run.quality), " / ")));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

double ms_a_byte(const Evaluated& e) {
  return static_cast<double>(e.virtual_ns) * 1e-6 / static_cast<double>(e.quality.bytes);
}

/// `lines` as speed_and_quality has its cases.
Rows speed_rows(const std::vector<Line>& lines) {
  Rows rows = {{"model", "stack", "machine", "costs", "lru, ms a byte", "without", "with", "speed-up over without",
                "over lru", "without: bits, %", "bits, %", "KL, bits", "same first, %"}};
  Evaluated lru, without;
  for (const Line& l : lines) {
    const Evaluated& run = l.all.run;
    const std::vector<std::string>& cells = l.of->cells;
    if (cells[3] == "lru") lru = run;
    if (cells[3] == "without") without = run;
    if (cells[3] != "with") continue;
    std::vector<std::string> row = {l.model, cells[0], cells[1], cells[2]};
    for (const double ms : {ms_a_byte(lru), ms_a_byte(without), ms_a_byte(run)})
      row.push_back(fmt::format("{:.2f}", ms));
    row.push_back(fmt::format("{:.2f}", ms_a_byte(without) / ms_a_byte(run)));
    row.push_back(fmt::format("{:.2f}", ms_a_byte(lru) / ms_a_byte(run)));
    row.push_back(quality_cells(without.quality)[0]);
    append(row, quality_cells(run.quality));
    rows.push_back(std::move(row));
  }
  return rows;
}

Json to_json(const Result& r) {
  const Outcomes &p = r.run.phase[0], &d = r.run.phase[1];
  return {{"bytes_scored", r.run.quality.bytes},
          {"bits_per_byte", r.run.quality.bits_per_byte()},
          {"bits_per_byte_resident", r.run.quality.bits_per_byte_resident()},
          {"change_percent", r.run.quality.change_percent()},
          {"kl_divergence", r.run.quality.kl_divergence()},
          {"top1_agreement", r.run.quality.top1_agreement()},
          {"requests", p.requests + d.requests},
          {"substituted", p.substituted + d.substituted},
          {"skipped", p.skipped + d.skipped},
          {"decode_computed_int2", r.run.computed[1]},
          {"decode_computed_int4", r.run.computed[2]},
          {"virtual_ms_per_byte", ms_a_byte(r.run)}};
}

Json to_json(const TableSpec& table, const std::vector<Line>& lines, const std::vector<Text>& texts) {
  Json out = Json::array();
  for (const Line& l : lines) {
    Json line = to_json(l.all);
    line["model"] = l.model;
    for (std::size_t c = 0; c < table.head.size(); ++c) line[table.head[c]] = l.of->cells[c];
    line["phase"] = l.of->phase == Phase::decode ? "decode" : "prefill";
    if (l.all.load.all > 0) {
      line["low_load"] = static_cast<double>(l.all.load.low) / static_cast<double>(l.all.load.all);
    }
    for (std::size_t t = 0; t < l.texts.size(); ++t) {
      line["texts"].push_back(to_json(*l.texts[t]));
      line["texts"].back()["name"] = texts[t].name;
    }
    out.push_back(std::move(line));
  }
  return out;
}

/// A second signal ends at once.
void on_interrupt(int signal) {
  stopped_by = signal;
  stop = true;
  std::signal(signal, SIG_DFL);
}

int quality(const Arguments& a) {
  for (const std::string& name : a.tables) {
    if (std::none_of(all_tables().begin(), all_tables().end(), [&](const TableSpec& t) { return t.name == name; })) {
      throw InputError(fmt::format("no table \"{}\" (see --help)", name));
    }
  }
  check_outputs({a.json}, a.texts);
  std::vector<Text> texts;
  for (const std::string& path : a.texts) {
    std::string text = read_text("--text", path);
    if (text.empty()) throw InputError(fmt::format("--text {}: the file is empty", path));
    text.resize(std::min<std::uint64_t>(text.size(), a.bytes));
    texts.push_back({std::filesystem::path(path).stem().string(), std::move(text)});
  }
  ferry::bench::JsonFile json_file(a.json);

  std::vector<Job> jobs;
  for (const TableSpec& table : all_tables()) {
    if (!a.tables.empty() && std::find(a.tables.begin(), a.tables.end(), table.name) == a.tables.end()) continue;
    for (std::size_t m = 0; m < std::size(model_names); ++m) {
      const ModelConfig config = read_model_config(data_directory() / "models" / model_names[m]);
      for (std::size_t t = 0; t < texts.size(); ++t) jobs.push_back({&table, m, t, table.cases(config)});
    }
  }
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  run_all(jobs, texts, a);

  Json all = Json::object();
  for (const TableSpec& table : all_tables()) {
    const std::vector<Line> lines = lines_of(jobs, table);
    if (lines.empty()) continue;
    const bool speed = table.name == std::string("speed-quality");
    print(fmt::format("**{}** (`{}`)\n\n{}\n", table.what, table.name,
                      markdown(speed ? speed_rows(lines) : quality_rows(table, lines, texts))));
    all[table.name] = to_json(table, lines, texts);
  }
  if (stop) print("interrupted: tables that were not finished are left out\n");
  json_file.commit(all);
  return stop ? 128 + stopped_by : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("The papers' tables and figures on what mixed precision, skipping and substitution cost in quality.",
               "quality");
  app.add_option("TABLE", a.tables, "which (default: all)");
  app.add_option("--text", a.texts, "texts for both bundled models to predict")->type_name("FILE")->required();
  app.add_option("--bytes", a.bytes, "at most so many of each text")
      ->type_name("N")
      ->check(CLI::Range(1ULL, 1ULL << 40U))
      ->capture_default_str();
  app.add_option("--quantizer", a.quantizer, "how weights become low precision")
      ->check(CLI::IsMember({"nearest", "hqq"}))
      ->capture_default_str();
  app.add_option("--threads", a.threads, "run so many texts and models at a time")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  ferry::bench::add_json_option(app, a.json, "all tables");
  std::string help = "Tables:\n";
  for (const TableSpec& t : all_tables()) help += fmt::format("  {:<20} {}\n", t.name, t.what);
  app.footer(help);
  return ferry::bench::parse_and_run(app, argc, argv, [&] { return quality(a); });
}
