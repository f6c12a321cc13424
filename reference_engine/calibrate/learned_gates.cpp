#include "calibrate/learned_gates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <numbers>
#include <numeric>
#include <random>

#include "checkpoint/safetensors.hpp"
#include "ferry/macros.hpp"
#include "inference/gate_file.hpp"
#include "inference/generate.hpp"
#include "support/errors.hpp"
#include "support/threads.hpp"

namespace ferry::engine {
namespace {

constexpr Eigen::Index held_out_rows = 256;  ///< the last so many of each ten times as many are held out

/// Each row becomes its softmax.
void softmax(Matrix& logits) {
  for (Eigen::Index i = 0; i < logits.rows(); ++i) {
    logits.row(i).array() = (logits.row(i).array() - logits.row(i).maxCoeff()).exp();
    logits.row(i) /= logits.row(i).sum();
  }
}

/// The `count` highest of a row, the highest first; ties go to the lower index.
std::vector<Eigen::Index> highest(const Matrix::ConstRowXpr& row, std::uint32_t count) {
  std::vector<Eigen::Index> order(static_cast<std::size_t>(row.size()));
  std::iota(order.begin(), order.end(), Eigen::Index{0});
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](Eigen::Index a, Eigen::Index b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
  order.resize(count);
  return order;
}

void append_rows(Matrix& to, const std::vector<Matrix>& windows) {
  Eigen::Index at = to.rows(), rows = at;
  for (const Matrix& w : windows) rows += w.rows();
  to.conservativeResize(rows, windows[0].cols());
  for (const Matrix& w : windows) {
    to.middleRows(at, w.rows()) = w;
    at += w.rows();
  }
}

}  // namespace

bool add_samples(Model& model, const std::vector<std::uint32_t>& text, std::uint32_t window, GateSamples& samples,
                 const std::function<bool(std::uint64_t done)>& progress) {
  const ModelConfig& c = model.config();
  if (window < 2 || window > c.context) {
    throw InputError(fmt::format("--window {}: expected 2 to {}, the model's context", window, c.context));
  }
  const std::vector<std::uint32_t> begin = model.begin_tokens();
  if (begin.size() >= window) {
    throw InputError(fmt::format("--window {}: expected more, texts begin with {} tokens", window, begin.size()));
  }
  const std::size_t taken = window - begin.size();  // of the text, in each window
  std::vector<std::vector<Matrix>> inputs(c.moe_layer_count()), said(c.moe_layer_count());
  RunnerOptions resident;
  resident.stack = "resident";
  resident.max_rows = window;
  const auto runner = make_runner(model, resident);
  for (std::size_t at = 0; at < text.size(); at += taken) {
    const std::size_t end = std::min(text.size(), at + taken);
    std::vector<std::uint32_t> tokens = begin;
    for (std::size_t i = at; i < end; ++i) tokens.push_back(text[i]);
    std::vector<TokenRow> rows;
    for (std::uint32_t i = 0; i < tokens.size(); ++i) rows.push_back({0, tokens[i], i});
    std::vector<KvCache> caches;
    caches.push_back(model.make_cache(static_cast<std::uint32_t>(rows.size())));
    model.forward(Phase::prefill, rows, caches, *runner, 1,
                  [&](std::uint32_t layer, const Matrix& input, const GateScores& scores) {
                    inputs[layer].push_back(input);
                    said[layer].push_back(scores.weight);
                  });
    runner->end_sequence(0);
    runner->uses.clear();
    if (!progress(end)) return false;
  }
  if (text.empty()) return true;
  samples.inputs.resize(c.moe_layer_count());
  samples.scores.resize(c.moe_layer_count());
  for (std::uint32_t l = 0; l < c.moe_layer_count(); ++l) {
    append_rows(samples.inputs[l], inputs[l]);
    append_rows(samples.scores[l], said[l]);
  }
  return true;
}

void need_samples(std::uint64_t count) {
  if (count > 9 * held_out_rows) return;
  throw InputError(
      fmt::format("{} tokens are too few to train gates on, expected more than {}", count, 9 * held_out_rows));
}

Matrix train_gate(MatrixRef inputs, MatrixRef targets, const Matrix& initial, const GateTraining& training) {
  constexpr float fade_mean = 0.9F, fade_square = 0.999F, tiny = 1e-8F;  // Adam's defaults
  const auto n = static_cast<std::size_t>(inputs.rows());
  const std::size_t batches = (n + training.batch - 1) / training.batch;
  Matrix gate = initial, mean = Matrix::Zero(gate.rows(), gate.cols()), square = mean, slope;
  std::vector<Eigen::Index> order(n);
  std::iota(order.begin(), order.end(), Eigen::Index{0});
  std::mt19937_64 dice(training.seed);
  std::size_t step = 0;
  for (std::uint32_t epoch = 0; epoch < training.epochs; ++epoch) {
    for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[dice() % i]);  // std::shuffle differs by library
    for (std::size_t b = 0; b < batches; ++b) {
      const std::size_t first = b * training.batch, rows = std::min<std::size_t>(training.batch, n - first);
      const std::vector<Eigen::Index> taken(order.begin() + static_cast<std::ptrdiff_t>(first),
                                            order.begin() + static_cast<std::ptrdiff_t>(first + rows));
      const Matrix x = inputs(taken, Eigen::all);
      Matrix predicted = x * gate.transpose();
      softmax(predicted);
      slope.noalias() = (predicted - targets(taken, Eigen::all)).transpose() * x / static_cast<float>(rows);
      ++step;
      mean = fade_mean * mean + (1 - fade_mean) * slope;
      square.array() = fade_square * square.array() + (1 - fade_square) * slope.array().square();
      const auto t = static_cast<float>(step);
      const float done = t / static_cast<float>(batches * training.epochs);
      const float rate = training.rate * 0.5F * (1 + std::cos(std::numbers::pi_v<float> * done)) *
                         std::sqrt(1 - std::pow(fade_square, t)) / (1 - std::pow(fade_mean, t));
      gate.array() -= rate * mean.array() / (square.array().sqrt() + tiny);
    }
  }
  return gate;
}

GateQuality quality_of(const Matrix& gate, const Matrix& inputs, const Matrix& targets, std::uint32_t k) {
  Matrix predicted = inputs * gate.transpose();
  softmax(predicted);
  const std::uint32_t twice = std::min(2 * k, static_cast<std::uint32_t>(gate.rows()));
  const Matrix& said = predicted;
  GateQuality q;
  for (Eigen::Index i = 0; i < predicted.rows(); ++i) {
    const std::vector<Eigen::Index> wanted = highest(targets.row(i), k), named = highest(said.row(i), twice);
    for (const Eigen::Index w : wanted) {
      q.recall += std::count(named.begin(), named.begin() + k, w) > 0 ? 1 : 0;
      q.recall_twice += std::count(named.begin(), named.end(), w) > 0 ? 1 : 0;
    }
    for (Eigen::Index e = 0; e < predicted.cols(); ++e) {
      const double p = targets(i, e), other = std::max(predicted(i, e), std::numeric_limits<float>::min());
      if (p > 0) q.divergence += p * std::log2(p / other);
    }
  }
  const auto n = static_cast<double>(std::max<Eigen::Index>(predicted.rows(), 1));
  q.recall /= n * k;
  q.recall_twice /= n * k;
  q.divergence /= n;
  return q;
}

void LearnedGates::write(OutputFile& out, const std::string& model) const {
  SafetensorsWriter file;
  for (const Gate& g : gates) {
    file.add(
        gate_tensor(g.layer, g.distance), "F32",
        {static_cast<std::uint64_t>(g.matrix.rows()), static_cast<std::uint64_t>(g.matrix.cols())},
        {reinterpret_cast<const char*>(g.matrix.data()), static_cast<std::size_t>(g.matrix.size()) * sizeof(float)});
  }
  file.commit(out, {{"format", gate_format}, {"ferry", FERRY_VERSION}, {"model", model}});
}

std::optional<LearnedGates> train_gates(const GateSamples& samples, const std::vector<Matrix>& own_gates,
                                        std::uint32_t depth, std::uint32_t k, const GateTraining& training,
                                        const std::function<bool(std::uint64_t done, std::uint64_t all)>& progress) {
  const auto layers = static_cast<std::uint32_t>(own_gates.size());
  std::vector<Eigen::Index> seen, held_out;
  for (Eigen::Index i = 0; i < samples.tokens(); ++i) (i / held_out_rows % 10 == 9 ? held_out : seen).push_back(i);
  need_samples(static_cast<std::uint64_t>(samples.tokens()));
  LearnedGates all;
  for (std::uint32_t layer = 1; layer < layers; ++layer) {
    for (std::uint32_t distance = 1; distance <= std::min(depth, layer); ++distance)
      all.gates.push_back({layer, distance, {}, {}, {}});
  }
  std::mutex mutex;
  std::uint64_t done = 0;
  std::atomic<bool> stopped = false;
  on_threads(all_threads(), all.gates.size(), [&](std::size_t i) {
    if (stopped) return;
    LearnedGates::Gate& g = all.gates[i];
    const Matrix &inputs = samples.inputs[g.layer - g.distance], &scores = samples.scores[g.layer];
    const Matrix& own = own_gates[g.layer];
    g.matrix = train_gate(inputs(seen, Eigen::all), scores(seen, Eigen::all), own, training);
    const Matrix held_inputs = inputs(held_out, Eigen::all), held_scores = scores(held_out, Eigen::all);
    g.before = quality_of(own, held_inputs, held_scores, k);
    g.after = quality_of(g.matrix, held_inputs, held_scores, k);
    if (!(g.after.divergence <= g.before.divergence)) {
      g.matrix = own;
      g.after = g.before;
    }
    const std::lock_guard lock(mutex);
    if (!progress(++done, all.gates.size())) stopped = true;
  });
  if (stopped) return {};
  return all;
}

}  // namespace ferry::engine
