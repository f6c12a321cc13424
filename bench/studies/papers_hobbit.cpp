// HOBBIT: Figures 3a, 5, 7, 10, 11, 14 to 18.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ferry/any_pipeline.hpp"
#include "ferry/cache/fld.hpp"
#include "ferry/cache/lhu.hpp"
#include "ferry/cache/random.hpp"
#include "papers.hpp"
#include "profiles/shape.hpp"
#include "sim/simulate.hpp"
#include "stacks/stack_config.hpp"
#include "sweep/simulated_run.hpp"

namespace ferry::bench {
namespace {

using engine::CostSource;
using engine::Machine;
using engine::measure;
using engine::read_machine;
using engine::RoutingShares;

constexpr const char* models[] = {"mixtral-8x7b", "phi-3.5-moe"};
constexpr Lengths four_lengths[] = {{16, 32, 8}, {16, 128, 8}, {128, 32, 8}, {128, 128, 8}};

/// The paper runs f16 models with INT4 replacements on the RTX 4090, and INT8 models with INT2 ones on the Orin.
struct Setup {
  const char* name;
  const char* machine;
  double gib, bits;
  std::uint32_t low_bits;
};
constexpr Setup orin = {"Jetson AGX Orin", "orin-nvme", 32, 8, 2};
constexpr Setup rtx4090 = {"RTX 4090", "rtx4090-pcie4", 24, 16, 4};

/// Speeds at what software reaches on the machine, and with loading and computing as the paper's Fig. 3a shares them.
constexpr CostSource sources[] = {CostSource::effective, CostSource::stated};

Cell cell(const Setup& setup, const std::string& model, const std::string& stack) {
  Cell c;
  c.stack = stack;
  c.share = expert_share(setup.gib, model, setup.bits);
  c.low_bits = setup.low_bits;
  return c;
}

/// Both models with made-up routing, and the bundled one with two of eight experts: names for tables, and their scenes.
std::vector<std::pair<std::string, Scene>> scenes_of(Scenes& scenes, const Lengths& lengths, double bits = 16) {
  std::vector<std::pair<std::string, Scene>> all;
  for (const char* model : models) {
    for (Scene& s : scenes.both(model, "tiny-mixtral", lengths, bits)) all.emplace_back(model, std::move(s));
  }
  return all;
}

/// Made-up routing of both models, and recorded routing of both bundled ones, for figures in which sizes do not matter.
std::vector<std::pair<std::string, Scene>> routings_of(Scenes& scenes) {
  const Lengths lengths{16, 240, 24};
  std::vector<std::pair<std::string, Scene>> all;
  for (const char* model : models) all.emplace_back(fmt::format("{}, made up", model), scenes.made_up(model, lengths));
  if (scenes.texts().empty()) return all;
  for (const char* tiny : {"tiny-mixtral", "tiny-qwen-moe"}) {
    all.emplace_back(tiny, scenes.recorded(tiny, models[0], lengths));
  }
  return all;
}

/// Loading on demand: the share of a step in which the device waits for copies.
std::vector<Table> figure_3(Scenes& scenes) {
  Table t({"setup", "costs", "loading", "computing"});
  for (const Setup& setup : {rtx4090, orin}) {
    for (const CostSource source : sources) {
      const Scene scene = scenes.made_up(models[0], four_lengths[3], setup.bits);
      const PhaseClock p = run(scene, read_machine(setup.machine), cell(setup, models[0], "on-demand"), source)
                               .run.phase[static_cast<unsigned>(Phase::decode)];
      const double loading = static_cast<double>(p.stall) / static_cast<double>(p.total);
      t.row({setup.name, engine::cost_source_name(source), percent(loading), percent(1 - loading)});
    }
  }
  return {t};
}

/// Eq. 2 with the paper's thresholds over one layer in the middle: how often each expert is used, and how often at high
/// precision.
std::vector<Table> figure_11(Scenes& scenes) {
  std::vector<Table> tables;
  for (const auto& [name, scene] : routings_of(scenes)) {
    const Trace& trace = scene.trace;
    if (trace.model.experts > 16) continue;
    const std::uint32_t layer = trace.model.layers / 2;
    std::vector<double> all(trace.model.experts), high(trace.model.experts);
    for (std::uint32_t t = 0; t < trace.tokens; ++t) {
      if (trace.phase_of(t) == Phase::prefill) continue;
      double sum = 0, above = 0;
      for (std::uint32_t i = 0; i < trace.model.top_k; ++i) sum += static_cast<double>(trace.weight(t, layer, i));
      for (std::uint32_t i = 0; i < trace.model.top_k; ++i) {
        const std::uint16_t e = trace.expert(t, layer, i);
        all[e] += 1;
        if (above / sum <= 0.6) high[e] += 1;
        above += static_cast<double>(trace.weight(t, layer, i));
      }
    }
    std::vector<std::string> head = {name}, uses = {"uses, %"}, important = {"of them at high precision, %"};
    const double uses_in_all = std::accumulate(all.begin(), all.end(), 0.0);
    for (std::uint32_t e = 0; e < trace.model.experts; ++e) {
      head.push_back(fmt::format("expert {}", e));
      uses.push_back(percent(all[e] / uses_in_all));
      important.push_back(percent(high[e] / all[e]));
    }
    tables.emplace_back(head);
    tables.back().row(uses);
    tables.back().row(important);
  }
  return tables;
}

std::vector<Table> figure_5(Scenes& scenes) {
  Table groups({"routing", "s <= 0.6: high", "up to 0.9: low", "above: skipped"});
  for (const auto& [name, scene] : routings_of(scenes)) {
    const RoutingShares s = measure(scene.trace).all();
    const double high = s.high.value(), skip = s.skip.value();
    groups.row({name, percent(high), percent(1 - high - skip), percent(skip)});
  }
  if (scenes.texts().empty()) return {groups};
  Table correlation({"model", "of |G| with |G E(x)|, mean of the layers", "least", "most"});
  for (const char* tiny : {"tiny-mixtral", "tiny-qwen-moe"}) {
    const std::vector<double> r = weight_output_correlation(tiny, scenes.texts());
    correlation.row({tiny, times(std::accumulate(r.begin(), r.end(), 0.0) / static_cast<double>(r.size())),
                     times(*std::min_element(r.begin(), r.end())), times(*std::max_element(r.begin(), r.end()))});
  }
  return {groups, correlation};
}

std::vector<Table> figure_7(Scenes& scenes) {
  Table t({"routing", "the best predicted is the best: next layer", "two ahead", "three ahead"});
  for (const auto& [name, scene] : routings_of(scenes)) {
    const RoutingShares s = measure(scene.trace).all();
    t.row({name, percent(s.top_1[0].value()), percent(s.top_1[1].value()), percent(s.top_1[2].value())});
  }
  return {t};
}

std::vector<Table> figure_10(Scenes& scenes) {
  Table t({"routing", "the best is used again", "by chance", "any of the k is", "by chance", "half a sequence later",
           "in another sequence"});
  for (const auto& [name, scene] : routings_of(scenes)) {
    const RoutingShares s = measure(scene.trace).all();
    const double e = scene.trace.model.experts, k = scene.trace.model.top_k;
    double none = 1;
    for (double i = 0; i < k; ++i) none *= (e - k - i) / (e - i);
    t.row({name, percent(s.reuse_best.value()), percent(k / e), percent(s.reuse_any.value()), percent(1 - none),
           percent(s.favourites.value()), percent(s.popularity.value())});
  }
  return {t};
}

/// Speeds over the four lengths, and HOBBIT's ratio to a baseline as the paper averages it.
std::vector<Table> compare(Scenes& scenes, const Setup& setup, const char* hobbit,
                           const std::vector<std::pair<const char*, const char*>>& baselines) {
  std::vector<std::string> head = {"model", "routing", "costs", "decode, tokens/s: HB"};
  for (const auto& [name, stack] : baselines) head.emplace_back(name);
  for (const auto& [name, stack] : baselines) head.push_back(fmt::format("HB / {}, mean", name));
  head.emplace_back("prefill, s: HB");
  for (const auto& [name, stack] : baselines) head.push_back(fmt::format("HB against {}, %", name));
  Table t(head);
  const Machine machine = read_machine(setup.machine);
  const std::size_t count = scenes_of(scenes, four_lengths[0], setup.bits).size();
  for (std::size_t i = 0; i < 2 * count; ++i) {
    const CostSource source = sources[i / count];
    std::vector<std::vector<double>> decode(baselines.size() + 1), first(baselines.size() + 1);
    std::vector<std::string> row;
    for (const Lengths& lengths : four_lengths) {
      const auto [model, scene] = scenes_of(scenes, lengths, setup.bits)[i % count];
      if (row.empty()) row = {model, scene.routing, engine::cost_source_name(source)};
      for (std::size_t b = 0; b <= baselines.size(); ++b) {
        const Measured m = run(scene, machine, cell(setup, model, b == 0 ? hobbit : baselines[b - 1].second), source);
        decode[b].push_back(m.decode_per_s());
        first[b].push_back(m.ttft_s());
      }
    }
    auto each = [](const std::vector<double>& values, int digits) {
      std::string text;
      for (const double v : values) text += fmt::format("{}{:.{}f}", text.empty() ? "" : " / ", v, digits);
      return text;
    };
    auto mean_ratio = [](const std::vector<double>& a, const std::vector<double>& b) {
      double sum = 0;
      for (std::size_t j = 0; j < a.size(); ++j) sum += a[j] / b[j];
      return sum / static_cast<double>(a.size());
    };
    for (const auto& speeds : decode) row.push_back(each(speeds, 2));
    for (std::size_t b = 1; b <= baselines.size(); ++b) row.push_back(times(mean_ratio(decode[0], decode[b])));
    row.push_back(each(first[0], 2));
    for (std::size_t b = 1; b <= baselines.size(); ++b) row.push_back(less(mean_ratio(first[0], first[b]), 1));
    t.row(row);
  }
  return {t};
}

std::vector<Table> figure_14(Scenes& scenes) {
  std::vector<Table> tables = compare(scenes, orin, "hobbit", {{"LL", "lru"}, {"MI", "moe-infinity"}});
  for (Table& t : compare(scenes, rtx4090, "hobbit",
                          {{"TF, DS", "layer-stream"}, {"MO", "mixtral-offloading"}, {"MI", "moe-infinity"}})) {
    tables.push_back(std::move(t));
  }
  return tables;
}

std::vector<Table> figure_15(Scenes& scenes) {
  return compare(scenes, rtx4090, "hobbit-cooperative", {{"LL, FD", "static-host"}});
}

std::vector<Table> figure_16(Scenes& scenes) {
  Table t({"setup", "model", "routing", "with dynamic loading / without", "at stated costs"});
  struct Row {
    const Setup& setup;
    const char* name;
    const char* stack;
  };
  for (const Row& r : {Row{orin, orin.name, "hobbit"}, Row{rtx4090, rtx4090.name, "hobbit"},
                       Row{rtx4090, "RTX 4090 + CPU", "hobbit-cooperative"}}) {
    const Machine machine = read_machine(r.setup.machine);
    for (std::size_t i = 0; i < scenes_of(scenes, four_lengths[0], r.setup.bits).size(); ++i) {
      std::vector<std::string> row;
      for (const CostSource source : sources) {
        double ratio = 0;
        for (const Lengths& lengths : four_lengths) {
          const auto [model, scene] = scenes_of(scenes, lengths, r.setup.bits)[i];
          if (row.empty()) row = {r.name, model, scene.routing};
          Cell c = cell(r.setup, model, r.stack);
          const double with = run(scene, machine, c, source).decode_per_s();
          c.t1 = c.t2 = 1.0F;
          ratio += with / run(scene, machine, c, source).decode_per_s() / std::size(four_lengths);
        }
        row.push_back(times(ratio));
      }
      t.row(row);
    }
  }
  return {t};
}

/// HOBBIT's caches without prefetch, under any cache policy.
template <class Cache>
Measured without_prefetch(const Scene& scene, const Setup& setup, double share, const Cache& cache, bool dynamic = true,
                          CostSource source = CostSource::effective) {
  using S = Stack<NoPrediction, Cache, ImportanceThresholds, stacks::LoadEverything, TopK>;
  CoreConfig<S> c;
  c.model = scene.trace.model;
  c.model.max_rows = std::max<std::uint32_t>(1, scene.prompt);
  c.precision.low = engine::precision_of_bits(setup.low_bits);
  if (!dynamic) c.precision.t1 = c.precision.t2 = 1.0F;
  c.cache = cache;
  stacks::HighAndLow::set_up(c, static_cast<std::uint64_t>(share * static_cast<double>(c.model.all_bytes())));
  engine::SimulateOptions o;
  o.prefill_chunk = c.model.max_rows;
  o.bounds = false;
  const Costs costs = read_machine(setup.machine).costs(scene.work, source);
  return {engine::simulate_config(*any_config(c), scene.trace, costs, o)};
}

std::vector<Table> figure_17(Scenes& scenes) {
  Table t({"model", "routing", "costs", "experts", "none predicted", "1 layer", "2", "3", "4",
           "prefill: 1 against none, %", "3 against none, %"});
  const Machine machine = read_machine(rtx4090.machine);
  for (const auto& [model, scene] : scenes_of(scenes, four_lengths[3])) {
    for (const CostSource source : sources) {
      for (const bool dynamic : {false, true}) {
        auto measured = [&, &scene = scene, &model = model](std::uint32_t depth) {
          Cell c = cell(rtx4090, model, "hobbit");
          if (depth == 0) return without_prefetch(scene, rtx4090, c.share, Multidimensional{}, dynamic, source);
          if (!dynamic) c.t1 = c.t2 = 1.0F;
          c.depth = depth;
          return run(scene, machine, c, source);
        };
        const Measured none = measured(0);
        std::vector<std::string> row = {model, scene.routing, engine::cost_source_name(source),
                                        dynamic ? "f16 + INT4" : "f16",
                                        fmt::format("{:.2f} tokens/s", none.decode_per_s())};
        for (std::uint32_t p = 1; p <= 4; ++p) row.push_back(times(measured(p).decode_per_s() / none.decode_per_s()));
        row.push_back(less(measured(1).ttft_s(), none.ttft_s()));
        row.push_back(less(measured(3).ttft_s(), none.ttft_s()));
        t.row(row);
      }
    }
  }
  return {t};
}

std::vector<Table> figure_18(Scenes& scenes) {
  Table penalty(
      {"setup", "model", "routing", "LRU", "LFU", "LHU", "FLD", "mixture", "mixture against LRU, %", "against LFU, %"});
  Table level({"setup", "model", "routing", "LFU by sequence, hits %", "LFU by model", "LRU", "mixture"});
  const Lengths lengths{16, 240, 12};
  for (const Setup& setup : {orin, rtx4090}) {
    for (const auto& [model, scene] : scenes_of(scenes, lengths, setup.bits)) {
      const double share = expert_share(setup.gib, model, setup.bits);
      const std::uint64_t high = scene.trace.model.bytes(0, Precision::full);
      auto of = [&, &scene = scene](const auto& cache) {
        return without_prefetch(scene, setup, share, cache).decode();
      };
      Lfu over_model;
      over_model.over = CountOver::model;
      const Outcomes lru = of(Lru{}), lfu = of(Lfu{}), mixture = of(Multidimensional{});
      const double random = of(RandomVictim{}).miss_penalty(high);
      auto ratio = [&](const Outcomes& o) { return fmt::format("{:.3f}", o.miss_penalty(high) / random); };
      penalty.row({setup.name, model, scene.routing, ratio(lru), ratio(lfu), ratio(of(Lhu{})), ratio(of(Fld{})),
                   ratio(mixture),
                   fmt::format("{:+.1f}", 100 * (mixture.miss_penalty(high) / lru.miss_penalty(high) - 1)),
                   fmt::format("{:+.1f}", 100 * (mixture.miss_penalty(high) / lfu.miss_penalty(high) - 1))});
      level.row({setup.name, model, scene.routing, percent(lfu.hit_rate()), percent(of(over_model).hit_rate()),
                 percent(lru.hit_rate()), percent(mixture.hit_rate())});
    }
  }
  return {penalty, level};
}

}  // namespace

std::vector<Figure> hobbit_figures() {
  return {{"hobbit-3", "HOBBIT, Figure 3a: time of a step that loads on demand, in percent", figure_3},
          {"hobbit-5", "HOBBIT, Figure 5: importance of experts, in percent", figure_5},
          {"hobbit-7", "HOBBIT, Figure 7b: the best expert predicted, in percent", figure_7},
          {"hobbit-10", "HOBBIT, Figure 10: experts used again, in percent", figure_10},
          {"hobbit-11", "HOBBIT, Figure 11a: uses of experts in one layer", figure_11},
          {"hobbit-14", "HOBBIT, Figure 14: speed, at [16, 32] / [16, 128] / [128, 32] / [128, 128] tokens", figure_14},
          {"hobbit-15", "HOBBIT, Figure 15: speed where the host computes what is missing", figure_15},
          {"hobbit-16", "HOBBIT, Figure 16: speedup of dynamic loading in decode", figure_16},
          {"hobbit-17", "HOBBIT, Figure 17b: decoding speed by layers predicted, as a multiple of none", figure_17},
          {"hobbit-18", "HOBBIT, Figure 18: miss penalty as a multiple of random eviction, and hit rates", figure_18}};
}

}  // namespace ferry::bench
