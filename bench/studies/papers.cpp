// The papers' tables and figures: generated and recorded routing on the papers' machines, simulated.
#include "papers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <numeric>

#include "cpu/cpu_model.hpp"
#include "ferry/detail/best.hpp"
#include "ferry/error.hpp"
#include "inference/generate.hpp"
#include "math/expert_kernel.hpp"
#include "profiles/shape.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "shared/text_file.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "trace/record.hpp"

namespace ferry::bench {

using namespace engine;

namespace {

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// With the scores of partial hidden states, as `ferry trace record --stack importance+pre --alpha 0` records them.
std::unique_ptr<TraceFile> record_scene(const std::string& name, const std::vector<std::string>& texts,
                                        const Lengths& lengths) {
  const std::uint32_t window = lengths.prompt + lengths.output, bytes = window - 1;  // behind the begin token
  std::string text;
  for (std::uint32_t s = 0; s < lengths.sequences; ++s) {
    const std::string& from = texts[s % texts.size()];
    const std::size_t at = s / texts.size() * bytes;
    if (at + bytes > from.size()) {
      throw InputError(fmt::format("a text has {} bytes, {} are needed for {} sequences of {} tokens", from.size(),
                                   at + bytes, lengths.sequences, window));
    }
    text += from.substr(at, bytes);
  }
  CpuModel model(data_directory() / "models" / name);
  RunnerOptions o;
  o.stack = "importance+pre";
  o.alpha = 0.0F;
  o.max_rows = window;
  const ModelShape shape = model_shape(model.config(), model.store(), o.max_rows);
  o.budget_bytes = shape.all_bytes() / 4;
  const Machine machine = read_machine("rtx3090-pcie3");
  const ModelFacts reference = read_shape(machine.reference_model());
  o.virtual_costs = as_if(machine.costs(reference.work, CostSource::stated), reference, shape);
  const auto runner = make_runner(model, o);
  RecordOptions r;
  r.window = window;
  r.prompt = lengths.prompt;
  r.ahead = most_ahead;
  return record_text(model, *runner, name, text, r);
}

}  // namespace

double Measured::decode_per_s() const {
  const PhaseClock& p = run.phase[static_cast<unsigned>(Phase::decode)];
  return static_cast<double>(p.tokens) / seconds(p.total);
}
double Measured::prefill_per_s() const {
  const PhaseClock& p = run.phase[static_cast<unsigned>(Phase::prefill)];
  return static_cast<double>(p.tokens) / seconds(p.total);
}
double Measured::ttft_s() const {
  return run.prefilled == 0 ? 0 : seconds(run.prefill) / run.prefilled;
}
double Measured::tpot_s() const {
  const PhaseClock& p = run.phase[static_cast<unsigned>(Phase::decode)];
  return seconds(p.total) / static_cast<double>(p.steps);
}

Scene Scenes::made_up(const std::string& shape, const Lengths& lengths, double bits) {
  const ModelFacts facts = read_shape(shape, bits);
  auto& file = traces_[fmt::format("{} {} {} {}", shape, lengths.prompt, lengths.output, lengths.sequences)];
  if (!file) {
    SyntheticOptions o;
    o.sequences = lengths.sequences;
    o.prompt = lengths.prompt;
    o.tokens = lengths.output;
    o.ahead = most_ahead;
    file = synthesize(facts, o);
  }
  Scene scene{"made up", file->trace, facts.work, lengths.prompt};
  scene.trace.model.expert_bytes = facts.model.expert_bytes;
  return scene;
}

Scene Scenes::recorded(const std::string& model, const std::string& shape, const Lengths& lengths, double bits,
                       std::size_t text) {
  const ModelFacts facts = read_shape(shape, bits);
  auto& file = traces_[fmt::format("{} {} {} {} {}", model, lengths.prompt, lengths.output, lengths.sequences, text)];
  if (!file) {
    file = record_scene(model, text == all_texts ? texts_ : std::vector<std::string>{texts_.at(text)}, lengths);
  }
  Scene scene{model, file->trace, facts.work, lengths.prompt};
  scene.trace.model.expert_bytes = facts.model.expert_bytes;
  return scene;
}

std::vector<Scene> Scenes::both(const std::string& shape, const std::string& model, const Lengths& lengths,
                                double bits) {
  std::vector<Scene> scenes = {made_up(shape, lengths, bits)};
  if (!texts_.empty()) scenes.push_back(recorded(model, shape, lengths, bits));
  return scenes;
}

Measured run(const Scene& scene, const Machine& machine, const Cell& cell, CostSource source) {
  SimulateOptions o;
  static_cast<StackOptions&>(o) = cell;
  o.budget_bytes = static_cast<std::uint64_t>(cell.share * static_cast<double>(scene.trace.model.all_bytes()));
  o.batch = cell.batch;
  o.prefill_chunk = std::max<std::uint32_t>(1, scene.prompt);
  o.bounds = false;
  return {simulate(scene.trace, machine.costs(scene.work, source), o)};
}

double expert_share(double gib, const std::string& shape, double bits) {
  const ModelFacts facts = read_shape(shape, bits);
  double dense = 0;
  for (std::uint32_t l = 0; l < facts.model.layers; ++l) {
    dense += static_cast<double>(facts.work[facts.work.size() == 1 ? 0 : l].dense_bytes);
  }
  return (0.9 * gib * 1073741824.0 - dense) / static_cast<double>(facts.model.all_bytes());
}

WeightsByRank weights_by_rank(const Trace& trace, std::uint32_t first_layer, std::uint32_t end_layer) {
  WeightsByRank result;
  result.mean.resize(trace.model.experts);
  std::vector<float> row(trace.model.experts);
  double rows = 0;
  for (std::uint32_t t = 0; t < trace.tokens; ++t) {
    if (trace.phase_of(t) == Phase::prefill) continue;
    for (std::uint32_t l = first_layer; l < end_layer; ++l, ++rows) {
      std::copy_n(trace.scores_of(t, l), row.size(), row.begin());
      std::sort(row.begin(), row.end(), std::greater<>());
      const double sum = std::accumulate(row.begin(), row.end(), 0.0);
      for (std::size_t e = 0; e < row.size(); ++e) {
        const double p = row[e] / sum;
        result.mean[e] += p;
        if (p > 0) result.entropy -= p * std::log(p);
      }
    }
  }
  for (double& m : result.mean) m /= rows;
  result.entropy /= rows * std::log(static_cast<double>(row.size()));
  return result;
}

std::vector<double> weight_output_correlation(const std::string& name, const std::vector<std::string>& texts) {
  constexpr std::uint32_t length = 512;
  CpuModel model(data_directory() / "models" / name);
  const ModelConfig& c = model.config();
  RunnerOptions o;
  o.stack = "resident";
  o.max_rows = length;
  const auto runner = make_runner(model, o);
  struct Sums {
    double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  };
  std::vector<Sums> sums(c.layers);
  ExpertKernel kernel(model.store().layout());
  std::vector<Route> best(c.top_k);
  Matrix row, out;
  auto observe = [&](std::uint32_t layer, const Matrix& input, const GateScores& said) {
    const Matrix& scores = said.weight;
    for (Eigen::Index i = 0; i < scores.rows(); ++i) {
      detail::best_of(scores.row(i).data(), static_cast<std::uint16_t>(c.experts), static_cast<std::uint16_t>(c.top_k),
                      best.data());
      double whole = 0;
      for (const Route& r : best) whole += scores(i, r.expert);
      for (const Route& r : best) {
        const Variant v{{static_cast<std::uint16_t>(layer), r.expert}, Precision::full};
        row = input.row(i);
        out.resize(1, input.cols());
        kernel.run(model.store().bytes(v).view.data, Precision::full, row, out);
        const double x = scores(i, r.expert) / (c.renormalise ? whole : 1), y = x * out.norm();
        Sums& s = sums[layer];
        s.n += 1;
        s.x += x;
        s.y += y;
        s.xx += x * x;
        s.yy += y * y;
        s.xy += x * y;
      }
    }
  };
  for (const std::string& text : texts) {
    const std::vector<std::uint32_t> tokens = tokenize(model, text.substr(0, length - 1));
    std::vector<TokenRow> rows;
    for (const std::uint32_t t : tokens) rows.push_back({0, t, static_cast<std::uint32_t>(rows.size())});
    std::vector<KvCache> caches;
    caches.emplace_back(c, CacheRoom(c, static_cast<std::uint32_t>(rows.size())));
    model.forward(Phase::prefill, rows, caches, *runner, 1, observe);
    runner->end_sequence(0);
  }
  std::vector<double> r;
  for (const Sums& s : sums) {
    r.push_back((s.n * s.xy - s.x * s.y) / std::sqrt((s.n * s.xx - s.x * s.x) * (s.n * s.yy - s.y * s.y)));
  }
  return r;
}

std::vector<std::vector<double>> gate_input_similarity(const std::string& name, const std::vector<std::string>& texts) {
  constexpr std::uint32_t length = 512;
  CpuModel model(data_directory() / "models" / name);
  const ModelConfig& c = model.config();
  RunnerOptions o;
  o.stack = "resident";
  o.max_rows = length;
  const auto runner = make_runner(model, o);
  std::vector<std::vector<double>> sums(most_ahead, std::vector<double>(c.layers));
  std::vector<Matrix> inputs(c.layers);
  double rows_seen = 0;
  auto observe = [&](std::uint32_t layer, const Matrix& input, const GateScores& /*scores*/) {
    inputs[layer] = input;
    for (std::uint32_t d = 1; d <= std::min<std::uint32_t>(most_ahead, layer); ++d) {
      const Matrix& before = inputs[layer - d];
      for (Eigen::Index i = 0; i < input.rows(); ++i) {
        sums[d - 1][layer - d] += before.row(i).dot(input.row(i)) / (before.row(i).norm() * input.row(i).norm());
      }
    }
  };
  for (const std::string& text : texts) {
    const std::vector<std::uint32_t> tokens = tokenize(model, text.substr(0, length - 1));
    std::vector<TokenRow> rows;
    for (const std::uint32_t t : tokens) rows.push_back({0, t, static_cast<std::uint32_t>(rows.size())});
    std::vector<KvCache> caches;
    caches.emplace_back(c, CacheRoom(c, static_cast<std::uint32_t>(rows.size())));
    model.forward(Phase::prefill, rows, caches, *runner, 1, observe);
    runner->end_sequence(0);
    rows_seen += static_cast<double>(rows.size());
  }
  for (std::uint32_t d = 1; d <= most_ahead; ++d) {
    sums[d - 1].resize(c.layers - std::min(c.layers, d));
    for (double& s : sums[d - 1]) s /= rows_seen;
  }
  return sums;
}

std::string percent(double share) {
  return std::isnan(share) ? "–" : fmt::format("{:.1f}", 100 * share);
}
std::string times(double ratio) {
  return fmt::format("{:.2f}", ratio);
}
std::string less(double ours, double base) {
  return fmt::format("{:+.0f}", 100 * (ours / base - 1));
}

Json Table::json() const {
  Json rows = Json::array();
  for (std::size_t r = 1; r < rows_.size(); ++r) {
    Json cells = Json::object();
    for (std::size_t i = 0; i < rows_[r].size(); ++i) cells[rows_[0][i]] = rows_[r][i];
    rows.push_back(std::move(cells));
  }
  return rows;
}

}  // namespace ferry::bench

namespace {

using namespace ferry;
using namespace ferry::bench;
using engine::InputError;
using engine::Json;

int make(const std::vector<std::string>& names, const std::vector<std::string>& texts, const std::string& json_path) {
  std::vector<Figure> figures;
  for (auto* of : {fate_figures, hobbit_figures, importance_figures}) {
    for (Figure& f : of()) figures.push_back(std::move(f));
  }
  for (const std::string& name : names) {
    if (std::none_of(figures.begin(), figures.end(), [&](const Figure& f) { return f.name == name; })) {
      throw InputError(fmt::format("no figure \"{}\" (see --help)", name));
    }
  }
  ferry::bench::JsonFile file(json_path);
  std::vector<std::string> contents;
  contents.reserve(texts.size());
  for (const std::string& path : texts) contents.push_back(read_text(path));
  Scenes scenes(std::move(contents));
  Json all = Json::object();
  for (const Figure& f : figures) {
    if (!names.empty() && std::find(names.begin(), names.end(), f.name) == names.end()) continue;
    std::fprintf(stderr, "papers: %s\n", f.name);
    std::fputs(fmt::format("**{}** (`{}`)\n\n", f.what, f.name).c_str(), stdout);
    for (const Table& t : f.make(scenes)) {
      std::fputs((t.markdown() + "\n").c_str(), stdout);
      all[f.name].push_back(t.json());
    }
    std::fflush(stdout);
  }
  file.commit(all);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> names, texts;
  std::string json;
  CLI::App app("The papers' tables and figures, on generated and recorded routing and on simulated machines.",
               "papers");
  app.add_option("FIGURE", names, "which (default: all)");
  app.add_option("--text", texts, "what the bundled models read; without, made-up routing only")->type_name("FILE");
  ferry::bench::add_json_option(app, json, "all tables");
  std::string help = "Figures:\n";
  for (auto* of : {fate_figures, hobbit_figures, importance_figures}) {
    for (const Figure& f : of()) help += fmt::format("  {:<20} {}\n", f.name, f.what);
  }
  app.footer(help);
  return ferry::bench::parse_and_run(app, argc, argv, [&] { return make(names, texts, json); });
}
