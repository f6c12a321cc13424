/// @file
/// The papers' tables and figures on simulated machines: what their functions share.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "profiles/machine.hpp"
#include "shared/markdown.hpp"
#include "sim/simulate.hpp"
#include "support/json.hpp"
#include "trace/synthetic.hpp"
#include "trace/trace_file.hpp"

namespace ferry::bench {

/// Tokens of each sequence.
struct Lengths {
  std::uint32_t prompt = 64, output = 192, sequences = 6;
};

/// Routing to run on. Its experts have the size, and its layers the work, of the paper's model.
struct Scene {
  std::string routing;  ///< "made up", or the bundled model that it was recorded from
  Trace trace;
  std::vector<LayerWork> work;
  std::uint32_t prompt = 0;
};

/// A stack, with its parameters; the budget is a share of all experts' bytes at the model's own precision.
struct Cell : engine::StackOptions {
  double share = 0.25;
  std::uint32_t batch = 1;
};

/// The numbers of a run that the figures show.
struct Measured {
  engine::Simulated run;

  [[nodiscard]] double decode_per_s() const;   ///< tokens
  [[nodiscard]] double prefill_per_s() const;  ///< tokens
  [[nodiscard]] double ttft_s() const;         ///< of a sequence, batch 1
  [[nodiscard]] double tpot_s() const;
  [[nodiscard]] const Outcomes& decode() const { return run.counters.of(Phase::decode); }
};

/// Makes scenes, and keeps their traces.
class Scenes {
 public:
  /// Texts for the bundled models to read; without any there are made-up scenes only.
  explicit Scenes(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  /// Made-up routing of a shape, with the papers' statistics (docs/synthetic.md).
  Scene made_up(const std::string& shape, const Lengths& lengths, double bits = 16);
  /// Routing of a bundled model, its experts as large as the shape's. All texts in turn, or only one.
  Scene recorded(const std::string& model, const std::string& shape, const Lengths& lengths, double bits = 16,
                 std::size_t text = all_texts);
  /// Both of these; the recorded one only if there is a text.
  std::vector<Scene> both(const std::string& shape, const std::string& model, const Lengths& lengths, double bits = 16);

  [[nodiscard]] const std::vector<std::string>& texts() const { return texts_; }
  static constexpr std::size_t all_texts = ~std::size_t{0};

 private:
  std::vector<std::string> texts_;
  std::map<std::string, std::unique_ptr<engine::TraceFile>> traces_;
};

Measured run(const Scene& scene, const engine::Machine& machine, const Cell& cell,
             engine::CostSource costs = engine::CostSource::effective);

/// The share of all experts for which a device's memory has room: nine tenths of it, less the weights that every token needs.
/// The papers do not say how much they use; here a tenth is for keys, values, activations and the framework.
double expert_share(double gib, const std::string& shape, double bits = 16);

/// A table in Markdown, and the same as JSON.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : rows_{std::move(head)} {}
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  [[nodiscard]] std::string markdown() const { return bench::markdown(rows_); }
  [[nodiscard]] engine::Json json() const;

 private:
  Rows rows_;
};

struct Figure {
  const char* name;  ///< as the command spells it
  const char* what;  ///< paper, number, what it shows
  std::function<std::vector<Table>(Scenes&)> make;
};

std::vector<Figure> fate_figures();
std::vector<Figure> hobbit_figures();
std::vector<Figure> importance_figures();

/// One layer's scores in decode: the mean weight by rank, and their entropy as a share of that of equal weights.
struct WeightsByRank {
  std::vector<double> mean;
  double entropy = 0;
};
WeightsByRank weights_by_rank(const Trace& trace, std::uint32_t first_layer, std::uint32_t end_layer);

/// Pearson's correlation of a chosen expert's weight G with the norm of its weighted output, |G E(x)|, by layer, over 512
/// tokens of each text.
std::vector<double> weight_output_correlation(const std::string& model, const std::vector<std::string>& texts);

/// Cosine of a layer's gate input with that of the layer `distance` behind it, mean over the tokens of each text: by
/// distance from 1 to 3, by layer.
std::vector<std::vector<double>> gate_input_similarity(const std::string& model, const std::vector<std::string>& texts);

std::string percent(double share);           ///< "87.1"
std::string times(double ratio);             ///< "1.27"
std::string less(double ours, double base);  ///< "-23": ours against base, in percent

}  // namespace ferry::bench
