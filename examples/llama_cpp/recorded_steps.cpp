#include "recorded_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <span>

#include "ferry/router/top_k.hpp"
#include "profiles/shape.hpp"
#include "support/errors.hpp"

namespace ferry::llama_cpp {
namespace {

using engine::InputError;
using engine::TraceFile;
using Layers = std::vector<WatchedLayer>;

GateRule rule_of(const Layers& layers, const Session& session) {
  GateRule rule;
  rule.gating = layers[0].gating;
  for (const WatchedLayer& l : layers) {
    if (l.gating == rule.gating && l.grouped == layers[0].grouped) continue;
    throw InputError(fmt::format("layer {}: its gate has another rule than that of layer {}", l.number, layers[0].number));
  }
  if (layers[0].grouped) {  // llama.cpp adds up the best two of each group
    rule.groups = static_cast<std::uint16_t>(session.number("expert_group_count"));
    rule.kept_groups = static_cast<std::uint16_t>(session.number("expert_group_used_count"));
    rule.group_votes = 2;
  }
  return rule;
}

/// Gates and biases as rows of one matrix, layers of fewer experts padded with zeros.
GateBank::Matrix matrix_of(const ggml_tensor* tensor, std::uint32_t rows, std::uint32_t columns) {
  GateBank::Matrix m = GateBank::Matrix::Zero(rows, columns);
  if (tensor == nullptr) return m;
  const std::vector<float> values = floats_of(*tensor);
  std::copy(values.begin(), values.end(), m.data());
  return m;
}

GateBank bank_of(const Layers& layers, const GateRule& rule, std::uint32_t experts) {
  const auto count = static_cast<std::uint32_t>(layers.size()), hidden = static_cast<std::uint32_t>(layers[0].gate->ne[0]);
  GateBank bank(count, experts, hidden);
  GateBank::Matrix biases, choice_biases;
  const bool biased = layers[0].gate_bias != nullptr, choice_biased = layers[0].choice_bias != nullptr;
  if (biased) biases.resize(count, experts);
  if (choice_biased) choice_biases.resize(count, experts);
  for (std::uint32_t l = 0; l < count; ++l) {
    bank.set(l, matrix_of(layers[l].gate, experts, hidden));
    if (biased) biases.row(l) = matrix_of(layers[l].gate_bias, 1, experts);
    if (choice_biased) choice_biases.row(l) = matrix_of(layers[l].choice_bias, 1, experts);
  }
  bank.set_rule(rule, biases, choice_biases);
  return bank;
}

std::uint32_t most_experts(const Layers& layers) {
  return std::max_element(layers.begin(), layers.end(), [](auto& a, auto& b) { return a.experts < b.experts; })->experts;
}

ModelShape shape_of(const Layers& layers) {
  ModelShape s;
  s.layers = static_cast<std::uint16_t>(layers.size());
  s.experts = static_cast<std::uint16_t>(most_experts(layers));
  s.renormalise = layers[0].renormalise;
  s.scale = layers[0].scale;
  s.max_rows = 1;
  for (const WatchedLayer& l : layers) {
    s.top_k = std::max(s.top_k, static_cast<std::uint16_t>(l.top_k));
    s.layer_experts.push_back(static_cast<std::uint16_t>(l.experts));
    s.layer_top_k.push_back(static_cast<std::uint16_t>(l.top_k));
    const ggml_tensor& first = *l.matrices.front();
    const auto hidden = static_cast<std::uint64_t>(first.ne[0]);
    const auto width = static_cast<std::uint64_t>(l.matrices.back()->ne[0]);
    const std::uint64_t bytes = l.expert_bytes();
    ExpertBytes& each = s.expert_bytes.emplace_back(engine::expert_bytes(hidden, width, 8.0 * static_cast<double>(bytes) /
                                                                         static_cast<double>(3 * hidden * width)));
    each[static_cast<unsigned>(Precision::full)] = bytes;
  }
  const auto alike = [](const auto& all) { return std::equal(all.begin() + 1, all.end(), all.begin()); };
  if (alike(s.layer_experts)) s.layer_experts.clear();
  if (alike(s.layer_top_k)) s.layer_top_k.clear();
  if (alike(s.expert_bytes)) s.expert_bytes.resize(1);
  return s;
}

std::vector<LayerWork> work_of(const Layers& layers) {
  std::vector<LayerWork> all;
  for (const WatchedLayer& l : layers) {
    LayerWork& w = all.emplace_back();
    for (const ggml_tensor* m : l.dense) {
      w.dense_bytes += ggml_nbytes(m);
      w.dense_operations += 2 * static_cast<std::uint64_t>(ggml_nelements(m));
    }
    for (const ggml_tensor* m : l.matrices) w.expert_operations += 2 * static_cast<std::uint64_t>(m->ne[0] * m->ne[1]);
    w.activation_bytes = static_cast<std::uint64_t>(l.gate->ne[0]) * sizeof(float);
  }
  if (std::equal(all.begin() + 1, all.end(), all.begin())) all.resize(1);
  return all;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Whether the k highest scores are those of the experts that were chosen.
bool same_choice(const float* select, std::uint32_t experts, std::span<const std::uint16_t> chosen) {
  std::vector<std::uint16_t> best(experts), sorted(chosen.begin(), chosen.end());
  std::iota(best.begin(), best.end(), std::uint16_t{0});
  std::stable_sort(best.begin(), best.end(), [&](auto a, auto b) { return select[a] > select[b]; });
  best.resize(chosen.size());
  std::sort(best.begin(), best.end());
  std::sort(sorted.begin(), sorted.end());
  return best == sorted;
}

}  // namespace

RecordedSteps::RecordedSteps(const GateWatcher& watcher, const Session& session, std::uint16_t ahead)
    : watcher_(watcher),
      rule_(rule_of(watcher.layers(), session)),
      gates_(bank_of(watcher.layers(), rule_, most_experts(watcher.layers()))),
      ahead_(ahead),
      separate_(rule_.separate(watcher.layers()[0].choice_bias != nullptr)),
      shape_(shape_of(watcher.layers())) {
  step_.trace.name = session.name();
  step_.trace.model = shape_;
  step_.trace.ahead = ahead;
  step_.work = work_of(watcher.layers());
}

const TraceFile& RecordedSteps::take(const PassedStep& step) {
  const std::size_t cells = std::size_t{step.rows} * shape_.layers, all = cells * shape_.experts;
  step_.trace.tokens = step.rows;
  step_.sequence_start = {0};
  step_.phase.assign(step.rows, static_cast<std::uint8_t>(step.phase));
  step_.experts.assign(cells * shape_.top_k, no_expert);
  step_.weights.assign(cells * shape_.top_k, 0.0F);
  step_.scores.assign(all, 0.0F);
  step_.predicted.assign(all * ahead_, 0.0F);
  step_.choice_scores.assign(separate_ ? all : 0, 0.0F);
  step_.choice_predicted.assign(separate_ ? all * ahead_ : 0, 0.0F);
  for (std::uint16_t l = 0; l < shape_.layers; ++l) take_layer(l, step);
  step_.view();
  if (kept_) {
    append(kept_->experts, step_.experts);
    append(kept_->weights, step_.weights);
    append(kept_->scores, step_.scores);
    append(kept_->predicted, step_.predicted);
    append(kept_->choice_scores, step_.choice_scores);
    append(kept_->choice_predicted, step_.choice_predicted);
    append(kept_->phase, step_.phase);
  }
  return step_;
}

void RecordedSteps::take_layer(std::uint16_t layer, const PassedStep& step) {
  const GateRows& seen = watcher_.rows()[layer];
  const WatchedLayer& watched = watcher_.layers()[layer];
  const std::uint32_t experts = shape_.experts, k = watched.top_k;
  const bool whole = seen.rows == step.rows;
  if (!whole && seen.rows != step.outputs.size()) {
    throw InputError(fmt::format("layer {}: {} rows of {} are there, but outputs were asked for {}", watched.number,
                                 seen.rows, step.rows, step.outputs.size()));
  }
  if (seen.rows == 0) return;
  const auto later = static_cast<std::uint16_t>(std::min<std::uint32_t>(ahead_, shape_.layers - layer - 1U));
  const Eigen::Map<const GateBank::Matrix> input(seen.input.data(), seen.rows, watched.gate->ne[0]);
  View<const Scores> predicted;
  if (later > 0) predicted = gates_.scores(static_cast<std::uint16_t>(layer + 1), later, input);
  const Weighing weighing(shape_);
  std::vector<Route> routes(k);
  std::vector<float> logits(watched.experts);
  const std::vector<float> bias = watched.gate_bias != nullptr ? floats_of(*watched.gate_bias) : std::vector<float>();
  const std::vector<float> choice_bias =
      watched.choice_bias != nullptr ? floats_of(*watched.choice_bias) : std::vector<float>();
  for (std::uint32_t i = 0; i < seen.rows; ++i) {
    const std::size_t cell = std::size_t{whole ? i : step.outputs[i]} * shape_.layers + layer;
    for (std::uint32_t e = 0; e < watched.experts; ++e) {
      logits[e] = seen.logits[std::size_t{i} * watched.experts + e] + (bias.empty() ? 0.0F : bias[e]);
    }
    float* weight = &step_.scores[cell * experts];
    float* select = separate_ ? &step_.choice_scores[cell * experts] : weight;
    rule_.score({logits.data(), watched.experts}, choice_bias.empty() ? nullptr : choice_bias.data(), select, weight);
    std::uint16_t* chosen = &step_.experts[cell * shape_.top_k];
    for (std::uint32_t c = 0; c < k; ++c) {
      chosen[c] = static_cast<std::uint16_t>(seen.choices[std::size_t{i} * k + c]);
      routes[c].expert = chosen[c];
    }
    weighing.weigh(weight, k, routes.data());
    for (std::uint32_t c = 0; c < k; ++c) step_.weights[cell * shape_.top_k + c] = routes[c].weight;
    ++rows;
    other_choices += same_choice(select, watched.experts, {chosen, k}) ? 0 : 1;
    for (std::uint32_t d = 0; d < later; ++d) {
      const std::size_t from = std::size_t{i} * experts, to = (cell * ahead_ + d) * experts;
      std::copy_n(predicted[d].weight.data + from, experts, &step_.predicted[to]);
      if (separate_) std::copy_n(predicted[d].select.data + from, experts, &step_.choice_predicted[to]);
    }
  }
}

const TraceFile& RecordedSteps::kept() {
  if (!kept_ || kept_->phase.empty()) throw InputError("no token was recorded");
  kept_->sequence_start = {0};
  kept_->trace = {};
  kept_->trace.name = step_.trace.name;
  kept_->trace.model = shape_;
  kept_->trace.ahead = ahead_;
  kept_->work = step_.work;
  kept_->source = "llama.cpp";
  kept_->view();
  return *kept_;
}

}  // namespace ferry::llama_cpp
