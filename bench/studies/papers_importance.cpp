// Importance-driven expert scheduling: Figures 4, 6, 8, 12 to 16, 18, 19.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "papers.hpp"

namespace ferry::bench {
namespace {

using engine::Machine;
using engine::measure;
using engine::read_machine;

/// Table 1 of the paper, and the alpha of section 6.2.
struct Setting {
  const char* name;
  const char* shape;
  const char* machine;
  double gib;
  float alpha;
};
constexpr Setting settings[] = {{"S1", "deepseek-moe-16b", "rtx3080ti-pcie4", 12, 0.35F},
                                {"S2", "xverse-moe-a4.2b", "rtx4060ti-pcie4", 16, 0.3F},
                                {"S3", "qwen2-57b-a14b", "a6000-pcie4", 48, 0.25F}};
constexpr Lengths usual = {64, 160, 6};

/// The systems that the paper compares with, as stacks of the library.
constexpr std::pair<const char*, const char*> baselines[] = {{"MoE-Infinity", "moe-infinity"},
                                                             {"llama.cpp", "static-host"},
                                                             {"DeepSpeed", "layer-stream"},
                                                             {"HybriMoE", "hybrimoe"}};
/// The paper's system, and the same with the best split of the balancer's list.
constexpr const char* ours[] = {"importance-driven", "importance-balanced"};
/// The steps of section 6.3, and the best split.
constexpr std::pair<const char*, const char*> steps[] = {
    {"baseline", "static-host"}, {"+CE", "importance+ce"},     {"+ER", "importance+er"},
    {"+Pre", "importance+pre"},  {"+BA", "importance-driven"}, {"+BA, best split", "importance-balanced"}};

std::vector<Scene> scenes_of(Scenes& scenes, const Setting& s, const Lengths& lengths = usual) {
  return scenes.both(s.shape, "tiny-qwen-moe", lengths);
}

Measured measured(const Scene& scene, const Setting& s, const char* stack, std::uint32_t batch = 1) {
  Cell c;
  c.stack = stack;
  c.share = expert_share(s.gib, s.shape);
  c.alpha = s.alpha;
  c.batch = batch;
  return run(scene, read_machine(s.machine), c);
}

double share(std::uint64_t part, std::uint64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// The share of requests whose expert is on the device when it is asked for, which the paper calls cache ratio. A replacement
/// counts as there. A copy that is on its way does not, and is counted apart.
double there(const Measured& m) {
  return share(m.decode().hits + m.decode().substituted, m.decode().requests);
}
double on_its_way(const Measured& m) {
  return share(m.decode().late_hits, m.decode().requests);
}

std::string ms(double seconds) {
  return fmt::format("{:.2f}", 1000 * seconds);
}

/// A line of the paper's figures 12 to 14: the baselines, ours, and ours against the best baseline.
void compare(Table& t, std::vector<std::string> row, const std::function<double(const char*)>& of, bool least) {
  double best = least ? std::numeric_limits<double>::max() : 0;
  for (const auto& [name, stack] : baselines) {
    const double value = of(stack);
    best = least ? std::min(best, value) : std::max(best, value);
    row.push_back(least ? ms(value) : percent(value));
  }
  for (const char* stack : ours) {
    const double value = of(stack);
    row.push_back(least ? ms(value) : percent(value));
    row.push_back(less(value, best));
  }
  t.row(std::move(row));
}

std::vector<std::string> head_of(std::vector<std::string> head) {
  for (const auto& [name, stack] : baselines) head.emplace_back(name);
  for (const char* stack : ours) {
    head.emplace_back(stack);
    head.emplace_back("against the best, %");
  }
  return head;
}

std::vector<std::string> with_steps(std::vector<std::string> head) {
  for (const auto& [name, stack] : steps) head.emplace_back(name);
  return head;
}

std::vector<Table> figure_4(Scenes& scenes) {
  Table t({"setting", "routing", "k", "rank 1", "2", "3", "4", "5", "6", "7", "8", "10", "12"});
  for (const Setting& s : settings) {
    for (const Scene& scene : scenes_of(scenes, s)) {
      const WeightsByRank w = weights_by_rank(scene.trace, 0, scene.trace.model.layers);
      std::vector<std::string> row = {s.name, scene.routing, std::to_string(scene.trace.model.top_k)};
      for (const std::size_t rank : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12})
        row.push_back(fmt::format("{:.3f}", w.mean[rank - 1]));
      t.row(row);
    }
  }
  return {t};
}

/// The machine files' numbers, at the speeds that software reaches.
std::vector<Table> figure_6(Scenes& scenes) {
  Table t({"setting", "one expert and token, ms: GPU", "CPU", "loading over PCIe"});
  for (const Setting& s : settings) {
    const Scene scene = scenes.made_up(s.shape, usual);
    const Costs c = read_machine(s.machine).costs(scene.work, engine::CostSource::effective);
    const std::uint64_t bytes = scene.trace.model.bytes(0, Precision::full);
    auto cell = [](Nanoseconds ns) { return fmt::format("{:.3f}", static_cast<double>(ns) * 1e-6); };
    t.row({s.name, cell(c.on_device(0, bytes, 1)), cell(c.on_host(0, bytes, 1)), cell(c.copy(bytes))});
  }
  return {t};
}

std::vector<Table> figure_8(Scenes& scenes) {
  Table t({"setting", "one expert, ms", "1 token", "4", "16", "64", "256"});
  for (const Setting& s : settings) {
    const Scene scene = scenes.made_up(s.shape, usual);
    const Costs c = read_machine(s.machine).costs(scene.work, engine::CostSource::effective);
    const std::uint64_t bytes = scene.trace.model.bytes(0, Precision::full);
    std::vector<std::string> gpu = {s.name, "GPU"}, cpu = {s.name, "CPU"};
    for (const std::uint32_t rows : {1U, 4U, 16U, 64U, 256U}) {
      gpu.push_back(fmt::format("{:.3f}", static_cast<double>(c.on_device(0, bytes, rows)) * 1e-6));
      cpu.push_back(fmt::format("{:.3f}", static_cast<double>(c.on_host(0, bytes, rows)) * 1e-6));
    }
    t.row(gpu);
    t.row(cpu);
  }
  return {t};
}

std::vector<Table> figure_12(Scenes& scenes) {
  Table t(head_of({"setting", "batch", "routing"}));
  for (const Setting& s : settings) {
    for (const std::uint32_t batch : {1U, 3U}) {
      std::vector<Scene> all = {scenes.made_up(s.shape, usual)};
      for (std::size_t text = 0; text < scenes.texts().size(); ++text) {
        all.push_back(scenes.recorded("tiny-qwen-moe", s.shape, usual, 16, text));
        all.back().routing += fmt::format(", text {}", text + 1);
      }
      for (const Scene& scene : all) {
        compare(
            t, {s.name, std::to_string(batch), scene.routing},
            [&](const char* stack) { return measured(scene, s, stack, batch).tpot_s(); }, true);
      }
    }
  }
  return {t};
}

std::vector<Table> figure_13(Scenes& scenes) {
  Table t(head_of({"setting", "batch", "routing", "on the device"}));
  for (const Setting& s : settings) {
    for (const std::uint32_t batch : {1U, 3U}) {
      for (const Scene& scene : scenes_of(scenes, s)) {
        compare(
            t, {s.name, std::to_string(batch), scene.routing, "there"},
            [&](const char* stack) { return there(measured(scene, s, stack, batch)); }, false);
        std::vector<std::string> late = {s.name, std::to_string(batch), scene.routing, "on its way"};
        auto add = [&](const char* stack) { late.push_back(percent(on_its_way(measured(scene, s, stack, batch)))); };
        for (const auto& [name, stack] : baselines) add(stack);
        for (const char* stack : ours) {
          add(stack);
          late.emplace_back();
        }
        t.row(late);
      }
    }
  }
  return {t};
}

std::vector<Table> figure_14(Scenes& scenes) {
  Table t(head_of({"setting", "prompt", "routing"}));
  for (const Setting& s : settings) {
    for (const std::uint32_t prompt : {64U, 256U}) {
      for (const Scene& scene : scenes_of(scenes, s, {prompt, 8, 6})) {
        compare(
            t, {s.name, std::to_string(prompt), scene.routing},
            [&](const char* stack) { return measured(scene, s, stack).ttft_s(); }, true);
      }
    }
  }
  return {t};
}

std::vector<Table> figure_15(Scenes& scenes) {
  Table t(with_steps({"setting", "routing", "experts"}));
  for (const Setting& s : settings) {
    for (const Scene& scene : scenes_of(scenes, s)) {
      std::vector<std::string> top = {s.name, scene.routing, "top-score, absent"};
      std::vector<std::string> top_late = {s.name, scene.routing, "top-score, on its way"};
      std::vector<std::string> low = {s.name, scene.routing, "low-score, absent"};
      std::vector<std::string> low_late = {s.name, scene.routing, "low-score, on its way"};
      for (const auto& [name, stack] : steps) {
        const Outcomes o = measured(scene, s, stack).decode();
        top.push_back(percent(share(o.top_misses, o.top_requests)));
        top_late.push_back(percent(share(o.top_late_hits, o.top_requests)));
        low.push_back(percent(share(o.low_misses, o.low_requests)));
        low_late.push_back(percent(share(o.low_late_hits, o.low_requests)));
      }
      for (auto* row : {&top, &top_late, &low, &low_late}) t.row(*row);
    }
  }
  return {t};
}

std::vector<Table> figure_16(Scenes& scenes) {
  Table t(with_steps({"setting", "routing", ""}));
  for (const Setting& s : settings) {
    for (const Scene& scene : scenes_of(scenes, s)) {
      std::vector<std::string> tpot = {s.name, scene.routing, "TPOT, ms"};
      std::vector<std::string> found = {s.name, scene.routing, "there, %"};
      std::vector<std::string> late = {s.name, scene.routing, "on its way, %"};
      for (const auto& [name, stack] : steps) {
        const Measured m = measured(scene, s, stack);
        tpot.push_back(ms(m.tpot_s()));
        found.push_back(percent(there(m)));
        late.push_back(percent(on_its_way(m)));
      }
      for (auto* row : {&tpot, &found, &late}) t.row(*row);
    }
  }
  return {t};
}

std::vector<Table> figure_18(Scenes& scenes) {
  Table t({"setting", "routing", "predicted as top-score: are top-score", "of the others: active"});
  for (const Setting& s : settings) {
    for (const Scene& scene : scenes_of(scenes, s)) {
      const engine::RoutingShares shares = measure(scene.trace, s.alpha).all();
      t.row({s.name, scene.routing, percent(shares.partial_top_score.value()), percent(shares.partial_active.value())});
    }
  }
  return {t};
}

std::vector<Table> figure_19(Scenes& scenes) {
  Table t(with_steps({"setting", "routing", "ms a token"}));
  for (const Setting& s : settings) {
    for (const Scene& scene : scenes_of(scenes, s)) {
      std::vector<std::string> link = {s.name, scene.routing, "link busy"}, host = {s.name, scene.routing, "host"},
                               all = {s.name, scene.routing, "TPOT"};
      for (const auto& [name, stack] : steps) {
        const Measured m = measured(scene, s, stack);
        const PhaseClock& p = m.run.phase[static_cast<unsigned>(Phase::decode)];
        const double steps_done = static_cast<double>(p.steps) * 1e9;
        link.push_back(ms(static_cast<double>(p.link_busy) / steps_done));
        host.push_back(ms(static_cast<double>(p.host) / steps_done));
        all.push_back(ms(m.tpot_s()));
      }
      t.row(link);
      t.row(host);
      t.row(all);
    }
  }
  return {t};
}

}  // namespace

std::vector<Figure> importance_figures() {
  return {{"importance-4", "Importance-driven, Figure 4: mean score by rank", figure_4},
          {"importance-6", "Importance-driven, Figure 6: computing against loading, as the machine files have it",
           figure_6},
          {"importance-8", "Importance-driven, Figure 8: GPU against CPU, as the machine files have it", figure_8},
          {"importance-12", "Importance-driven, Figure 12: TPOT, ms", figure_12},
          {"importance-13", "Importance-driven, Figure 13: experts found on the device, in percent", figure_13},
          {"importance-14", "Importance-driven, Figure 14: prefill, ms", figure_14},
          {"importance-15", "Importance-driven, Figure 15: active experts that are not there, in percent", figure_15},
          {"importance-16", "Importance-driven, Figure 16: step by step, batch 1", figure_16},
          {"importance-18", "Importance-driven, Figure 18: prefetching accuracy, in percent", figure_18},
          {"importance-19", "Importance-driven, Figure 19: where the time goes", figure_19}};
}

}  // namespace ferry::bench
