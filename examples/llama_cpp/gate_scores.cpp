#include "gate_scores.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "profiles/shape.hpp"
#include "support/errors.hpp"

namespace ferry::llama_cpp {
namespace {

using engine::InputError;
using Layers = std::vector<WatchedLayer>;

GateRule rule_of(const Layers& layers, const Session& session) {
  GateRule rule;
  rule.gating = layers[0].gating;
  rule.by_logit = layers[0].by_logit;
  for (const WatchedLayer& l : layers) {
    if (l.gating == rule.gating && l.grouped == layers[0].grouped && l.by_logit == rule.by_logit) continue;
    throw InputError(
        fmt::format("layer {}: its gate has another rule than that of layer {}", l.number, layers[0].number));
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

/// [layers, experts] of a bias that every layer has, or nothing.
GateBank::Matrix biases_of(const Layers& layers, const ggml_tensor* WatchedLayer::*bias, std::uint32_t experts) {
  GateBank::Matrix m;
  if (layers[0].*bias == nullptr) return m;
  m.resize(static_cast<Eigen::Index>(layers.size()), experts);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    m.row(static_cast<Eigen::Index>(l)) = matrix_of(layers[l].*bias, 1, experts);
  }
  return m;
}

std::uint32_t most_experts(const Layers& layers) {
  return std::max_element(layers.begin(), layers.end(), [](auto& a, auto& b) { return a.experts < b.experts; })
      ->experts;
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
    ExpertBytes& each = s.expert_bytes.emplace_back(engine::expert_bytes(
        hidden, width, 8.0 * static_cast<double>(bytes) / static_cast<double>(3 * hidden * width)));
    each[static_cast<unsigned>(Precision::full)] = bytes;
  }
  const auto alike = [](const auto& all) { return std::equal(all.begin() + 1, all.end(), all.begin()); };
  if (alike(s.layer_experts)) s.layer_experts.clear();
  if (alike(s.layer_top_k)) s.layer_top_k.clear();
  if (alike(s.expert_bytes)) s.expert_bytes.resize(1);
  return s;
}

}  // namespace

GateScores::GateScores(const Layers& layers, const Session& session)
    : layers_(layers),
      shape_(shape_of(layers)),
      rule_(rule_of(layers, session)),
      gates_(shape_.layers, shape_.experts, static_cast<std::uint32_t>(layers[0].gate->ne[0])),
      biases_(biases_of(layers, &WatchedLayer::gate_bias, shape_.experts)),
      choice_biases_(biases_of(layers, &WatchedLayer::choice_bias, shape_.experts)),
      separate_(rule_.separate(choice_biases_.size() > 0)) {
  for (std::uint32_t l = 0; l < shape_.layers; ++l) {
    gates_.set(l, matrix_of(layers[l].gate, shape_.experts, static_cast<std::uint32_t>(layers[l].gate->ne[0])));
  }
  gates_.set_rule(rule_, biases_, choice_biases_);
}

Scores GateScores::of(std::uint16_t layer, const GateRows& rows) {
  const std::uint32_t experts = layers_[layer].experts;
  const std::size_t size = std::size_t{rows.rows} * shape_.experts;
  logits_.resize(experts);
  weight_.assign(size, 0.0F);
  select_.assign(separate_ ? size : 0, 0.0F);
  for (std::uint32_t i = 0; i < rows.rows; ++i) {
    for (std::uint32_t e = 0; e < experts; ++e) {
      logits_[e] = rows.logits[std::size_t{i} * experts + e] + (biases_.size() > 0 ? biases_(layer, e) : 0.0F);
    }
    float* weight = &weight_[std::size_t{i} * shape_.experts];
    float* select = separate_ ? &select_[std::size_t{i} * shape_.experts] : weight;
    rule_.score({logits_.data(), experts}, choice_biases_.size() > 0 ? choice_biases_.row(layer).data() : nullptr,
                select, weight);
  }
  const View<const float> weight{weight_.data(), static_cast<std::uint32_t>(size)};
  return {layer, separate_ ? View<const float>{select_.data(), weight.size} : weight, weight};
}

View<const Scores> GateScores::predicted(std::uint16_t layer, std::uint16_t count, const GateRows& rows) {
  const Eigen::Map<const GateBank::Matrix> input(rows.input.data(), rows.rows, layers_[layer].gate->ne[0]);
  return gates_.scores(static_cast<std::uint16_t>(layer + 1), count, input);
}

}  // namespace ferry::llama_cpp
