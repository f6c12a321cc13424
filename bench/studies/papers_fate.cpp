// Fate: Table 1 and Figures 4, 7 to 9, 11 to 14.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ferry/error.hpp"
#include "papers.hpp"
#include "sweep/simulated_run.hpp"

namespace ferry::bench {
namespace {

using engine::CostSource;
using engine::Machine;
using engine::measure;
using engine::read_machine;
using engine::RoutingShares;

constexpr const char* models[] = {"qwen1.5-moe-a2.7b", "deepseek-moe-16b"};

struct Pc {
  const char* name;
  const char* machine;
  double gib;
};
constexpr Pc pcs[] = {{"high-end", "rtx3090-pcie3", 24}, {"low-end", "gtx1080ti-pcie1", 11}};

/// Fate's two models with made-up routing, and the bundled one that has as many active experts.
std::vector<std::pair<std::string, Scene>> scenes_of(Scenes& scenes, const Lengths& lengths) {
  std::vector<std::pair<std::string, Scene>> all;
  for (const char* model : models) {
    for (Scene& s : scenes.both(model, "tiny-qwen-moe", lengths)) all.emplace_back(model, std::move(s));
  }
  return all;
}

Cell cell(const char* stack, double share) {
  Cell c;
  c.stack = stack;
  c.share = share;
  return c;
}

std::vector<Table> table_1(Scenes& scenes) {
  Table t({"", "prompt", "next layer, top k", "75th percentile", "two ahead, top k", "prefill"});
  for (const std::uint32_t prompt : {128U, 256U, 512U}) {
    const Lengths lengths{prompt, 128, 6};
    std::vector<Scene> all = {scenes.made_up(models[0], lengths), scenes.made_up(models[1], lengths)};
    std::vector<std::string> names = {fmt::format("{}, made up", models[0]), fmt::format("{}, made up", models[1])};
    if (!scenes.texts().empty()) {
      for (const char* tiny : {"tiny-qwen-moe", "tiny-mixtral"}) {
        all.push_back(scenes.recorded(tiny, models[0], lengths));
        names.emplace_back(tiny);
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      const RoutingShares s = measure(all[i].trace).all();
      t.row({names[i], std::to_string(prompt), percent(s.recall_top_k[0].value()),
             percent(s.recall_percentile[0].value()), percent(s.recall_top_k[1].value()),
             percent(s.recall_prefill[0].value())});
    }
  }
  return {t};
}

std::vector<Table> figure_7(Scenes& scenes) {
  std::vector<Table> tables;
  for (const auto& [model, scene] : scenes_of(scenes, {})) {
    if (scene.routing != "made up" && model != models[0]) continue;  // recorded routing is the same for both models
    const auto layers = measure(scene.trace).layers;
    std::vector<std::string> head = {scene.routing == "made up" ? model + ", made up" : scene.routing};
    std::vector<std::string> top = {"top k"}, most = {"75th percentile"};
    for (std::size_t l = 1; l < layers.size(); ++l) {
      head.push_back(std::to_string(l));
      top.push_back(fmt::format("{:.0f}", 100 * layers[l].recall_top_k[0].value()));
      most.push_back(fmt::format("{:.0f}", 100 * layers[l].recall_percentile[0].value()));
    }
    tables.emplace_back(head);
    tables.back().row(top);
    tables.back().row(most);
  }
  return tables;
}

std::vector<Table> figure_8(Scenes& scenes) {
  Table t({"", "layers", "rank 1", "2", "3", "4", "5", "6", "8", "12", "entropy / that of equal weights"});
  for (const auto& [model, scene] : scenes_of(scenes, {})) {
    if (scene.routing != "made up" && model != models[0]) continue;
    const std::uint32_t layers = scene.trace.model.layers;
    for (const auto& [first, end] : {std::pair{0U, 4U}, std::pair{4U, layers}}) {
      const WeightsByRank w = weights_by_rank(scene.trace, first, end);
      std::vector<std::string> row = {scene.routing == "made up" ? model + ", made up" : scene.routing,
                                      fmt::format("{} to {}", first, end - 1)};
      for (const std::size_t rank : {1, 2, 3, 4, 5, 6, 8, 12}) row.push_back(fmt::format("{:.3f}", w.mean[rank - 1]));
      row.push_back(times(w.entropy));
      t.row(row);
    }
  }
  return {t};
}

/// Section 4.2: how much alike the gate inputs of adjacent layers are.
std::vector<Table> figure_4(Scenes& scenes) {
  Table t({"model", "next layer: least of the layers", "mean", "most", "two ahead, mean", "three ahead, mean"});
  if (scenes.texts().empty()) return {};
  for (const char* tiny : {"tiny-qwen-moe", "tiny-mixtral"}) {
    const auto cosine = gate_input_similarity(tiny, scenes.texts());
    auto mean = [&](std::size_t d) {
      return times(std::accumulate(cosine[d].begin(), cosine[d].end(), 0.0) / static_cast<double>(cosine[d].size()));
    };
    const auto [least, most] = std::minmax_element(cosine[0].begin(), cosine[0].end());
    t.row({tiny, times(*least), mean(0), times(*most), mean(1), mean(2)});
  }
  return {t};
}

/// Section 4.5: of the experts that a prompt activates in a layer, the share of its tokens that go to the least popular.
std::vector<Table> figure_9(Scenes& scenes) {
  Table t({"routing", "experts", "activated by a prompt", "tokens of the least popular 10%", "20%", "30%", "40%", "50%",
           "30% in the layer where they have fewest"});
  for (const auto& [model, scene] : scenes_of(scenes, {256, 8, 6})) {
    if (scene.routing != "made up" && model != models[0]) continue;
    const Trace& trace = scene.trace;
    constexpr int shares[] = {10, 20, 30, 40, 50};
    double covered[std::size(shares)] = {}, activated = 0, prompts = 0;
    std::vector<double> thirty(trace.model.layers);
    for (std::uint32_t s = 0; s < trace.sequences(); ++s, ++prompts) {
      for (std::uint32_t l = 0; l < trace.model.layers; ++l) {
        std::vector<double> tokens(trace.model.experts);
        for (std::uint32_t at = trace.sequence_start[s]; at < trace.sequence_end(s); ++at) {
          if (trace.phase_of(at) == Phase::decode) continue;
          for (std::uint32_t i = 0; i < trace.model.top_k; ++i) tokens[trace.expert(at, l, i)] += 1;
        }
        std::sort(tokens.begin(), tokens.end());
        tokens.erase(tokens.begin(), std::upper_bound(tokens.begin(), tokens.end(), 0.0));
        const double all = std::accumulate(tokens.begin(), tokens.end(), 0.0);
        activated += static_cast<double>(tokens.size());
        for (std::size_t i = 0; i < std::size(shares); ++i) {
          const auto few = static_cast<std::ptrdiff_t>(tokens.size() * static_cast<std::size_t>(shares[i]) / 100);
          const double part = std::accumulate(tokens.begin(), tokens.begin() + few, 0.0) / all;
          covered[i] += part;
          if (shares[i] == 30) thirty[l] += part;
        }
      }
    }
    const double cells = prompts * trace.model.layers;
    std::vector<std::string> row = {scene.routing == "made up" ? model + ", made up" : scene.routing,
                                    std::to_string(trace.model.experts), fmt::format("{:.1f}", activated / cells)};
    for (const double c : covered) row.push_back(percent(c / cells));
    row.push_back(percent(*std::min_element(thirty.begin(), thirty.end()) / prompts));
    t.row(row);
  }
  return {t};
}

/// Speeds are worked out twice: at what software reaches on the machine, and at the times that the paper states.
constexpr CostSource sources[] = {CostSource::effective, CostSource::stated};

std::vector<Table> figure_11(Scenes& scenes) {
  Table t({"PC", "model", "routing", "costs", "128: Fate, tokens/s", "/ LoD", "/ EAP", "/ EAP, own precision",
           "256: Fate", "/ LoD", "/ EAP", "/ EAP, own precision", "512: Fate", "/ LoD", "/ EAP",
           "/ EAP, own precision"});
  for (const Pc& pc : pcs) {
    const Machine machine = read_machine(pc.machine);
    for (std::size_t i = 0; i < scenes_of(scenes, {128, 8, 6}).size(); ++i) {
      for (const CostSource source : sources) {
        std::vector<std::string> row;
        for (const std::uint32_t prompt : {128U, 256U, 512U}) {
          const auto [model, scene] = scenes_of(scenes, {prompt, 8, 6})[i];
          if (row.empty()) row = {pc.name, model, scene.routing, engine::cost_source_name(source)};
          auto speed = [&, &scene = scene, share = expert_share(pc.gib, model)](const char* stack) {
            return run(scene, machine, cell(stack, share), source).prefill_per_s();
          };
          const double fate = speed("fate");
          row.push_back(fmt::format("{:.0f}", fate));
          row.push_back(times(fate / speed("on-demand")));
          row.push_back(times(fate / speed("activation-path")));
          row.push_back(times(fate / speed("activation-path-full")));
        }
        t.row(row);
      }
    }
  }
  return {t};
}

std::vector<Table> figure_12(Scenes& scenes) {
  Table t({"PC", "model", "routing", "costs", "LoD, tokens/s", "EAP", "Fate", "Fate / LoD", "Fate / EAP",
           "Fate / EAP, own precision", "Fate / LRU in INT4", "Fate's hits, %"});
  for (const Pc& pc : pcs) {
    const Machine machine = read_machine(pc.machine);
    for (const auto& [model, scene] : scenes_of(scenes, {})) {
      for (const CostSource source : sources) {
        const double share = expert_share(pc.gib, model);
        const double on_demand = run(scene, machine, cell("on-demand", share), source).decode_per_s();
        const double path = run(scene, machine, cell("activation-path", share), source).decode_per_s();
        const Measured fate = run(scene, machine, cell("fate", share), source);
        t.row({pc.name, model, scene.routing, engine::cost_source_name(source), fmt::format("{:.1f}", on_demand),
               fmt::format("{:.1f}", path), fmt::format("{:.1f}", fate.decode_per_s()),
               times(fate.decode_per_s() / on_demand), times(fate.decode_per_s() / path),
               times(fate.decode_per_s() /
                     run(scene, machine, cell("activation-path-full", share), source).decode_per_s()),
               times(fate.decode_per_s() / run(scene, machine, cell("lru-int4", share), source).decode_per_s()),
               percent(fate.decode().hit_rate())});
      }
    }
  }
  return {t};
}

std::vector<Table> figure_13(Scenes& scenes) {
  std::vector<std::string> head = {"model", "routing", "costs", "stack"};
  constexpr double budgets[] = {7, 8, 10, 12, 16, 20, 24};
  for (const double gib : budgets) head.push_back(fmt::format("{:g} GB", gib));
  Table t(head);
  const Machine machine = read_machine(pcs[0].machine);
  for (const auto& [model, scene] : scenes_of(scenes, {})) {
    if (scene.routing != "made up" && model != models[0]) continue;  // nearly the same again
    for (const CostSource source : sources) {
      for (const char* stack :
           {"on-demand", "activation-path-full", "fate+cache", "activation-path", "lru-int4", "fate"}) {
        std::vector<std::string> row = {model, scene.routing, engine::cost_source_name(source), stack};
        for (const double gib : budgets) {
          const Measured m = run(scene, machine, cell(stack, expert_share(gib, model)), source);
          row.push_back(fmt::format("{:.1f}", m.decode_per_s()));
        }
        t.row(row);
      }
    }
  }
  return {t};
}

std::vector<Table> figure_14(Scenes& scenes) {
  Table t({"PC", "model", "routing", "costs", "LoD, tokens/s", "+ prefetch", "+ cache", "+ quantization",
           "+ cache: there, %", "on its way, %"});
  for (const Pc& pc : pcs) {
    const Machine machine = read_machine(pc.machine);
    for (const auto& [model, scene] : scenes_of(scenes, {})) {
      for (const CostSource source : sources) {
        auto of = [&, &scene = scene, share = expert_share(pc.gib, model)](const char* stack) {
          return run(scene, machine, cell(stack, share), source);
        };
        const double on_demand = of("on-demand").decode_per_s();
        const Measured cache = of("fate+cache");
        t.row({pc.name, model, scene.routing, engine::cost_source_name(source), fmt::format("{:.1f}", on_demand),
               times(of("fate+prefetch").decode_per_s() / on_demand), times(cache.decode_per_s() / on_demand),
               times(of("fate").decode_per_s() / on_demand), percent(cache.decode().hit_rate()),
               percent(static_cast<double>(cache.decode().late_hits) / static_cast<double>(cache.decode().requests))});
      }
    }
  }
  return {t};
}

}  // namespace

std::vector<Figure> fate_figures() {
  return {{"fate-table-1", "Fate, Table 1: experts predicted, in percent", table_1},
          {"fate-4", "Fate, section 4.2 and Figure 4: cosine of the gate inputs of layers, bundled models", figure_4},
          {"fate-7", "Fate, Figure 7: experts predicted by layer, in percent", figure_7},
          {"fate-8", "Fate, Figure 8: routing weights in shallow and in deep layers, mean by rank", figure_8},
          {"fate-9", "Fate, Figure 9: tokens of unpopular experts in prefill, in percent", figure_9},
          {"fate-11", "Fate, Figure 11: prefill speed", figure_11},
          {"fate-12", "Fate, Figure 12: decoding speed", figure_12},
          {"fate-13", "Fate, Figure 13: decoding speed by memory, tokens/s", figure_13},
          {"fate-14", "Fate, Figure 14: decoding speed step by step, as a multiple of LoD", figure_14}};
}

}  // namespace ferry::bench
