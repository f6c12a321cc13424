#include "cpu/cpu_model.hpp"

#include <fmt/format.h>

#include <cmath>

#include "checkpoint/agreement.hpp"
#include "cpu/cpu_device.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "math/host_math.hpp"
#include "math/share_work.hpp"
#include "store/disk_store.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine {

CpuModel::CpuModel(const std::filesystem::path& folder, std::unique_ptr<DiskStore> store)
    : CpuModel(ModelFiles(folder, std::move(store))) {}

CpuModel::CpuModel(ModelFiles&& files) : Model(files) {
  const ModelConfig& c = config();
  std::string before;  // its pages are dropped when the next tensor is read, so that little is held twice
  const Weights weights(
      [&](const std::string& name, const std::vector<std::uint64_t>& shape) -> const Tensor& {
        if (name != before) files.checkpoint->forget(before);
        before = name;
        return dense(*files.checkpoint, name, shape);
      },
      [&](const std::string& name) { return files.checkpoint->find(name) != nullptr; });
  embedding_ = weights.matrix(c.names.model + "embed_tokens.weight", c.vocabulary, c.hidden);
  head_ = c.tied_embeddings ? embedding_ : weights.matrix(c.names.head + "weight", c.vocabulary, c.hidden);
  if (c.head_bias) head_bias_ = weights.vector(c.names.head + "bias", c.vocabulary);
  norm_.weight = weights.vector(c.names.model + c.names.norm + ".weight", c.hidden);
  if (c.norm == Norm::mean) norm_.bias = weights.vector(c.names.model + c.names.norm + ".bias", c.hidden);
  if (c.norm == Norm::rms_plus_one) norm_.weight.array() += 1;
  if (!c.names.experts_norm.empty()) plain_.weight = Vector::Ones(c.hidden);
  attention_ = CpuAttention::make(c, weights, workers(), product_);
  for (std::uint32_t l = 0; l < c.layers; ++l) layers_.push_back(load_layer(weights, l));
  for (std::uint32_t m = 0; m < c.moe_layer_count(); ++m) layers_[c.moe_layers[m]].gate = gates().of(m);
  set_notes(check_agreement(*files.checkpoint, c));
}

CpuModel::Layer CpuModel::load_layer(const Weights& weights, std::uint32_t index) const {
  const ModelConfig& c = config();
  Layer layer;
  const auto norm = [&](const std::string& name) {
    NormWeights w;
    w.weight = weights.vector(c.tensor(index, name + ".weight"), c.hidden);
    if (c.norm == Norm::mean) w.bias = weights.vector(c.tensor(index, name + ".bias"), c.hidden);
    if (c.norm == Norm::rms_plus_one) w.weight.array() += 1;
    return w;
  };
  if (c.norm_place != NormPlace::behind) {
    layer.attention_norm = norm(c.names.attention_norm);
    layer.mlp_norm = norm(c.names.mlp_norm);
  }
  if (c.norm_place != NormPlace::before) {
    const bool both = c.norm_place == NormPlace::both;
    layer.attention_behind = norm(both ? c.names.attention_norm_behind : c.names.attention_norm);
    layer.mlp_behind = norm(both ? c.names.mlp_norm_behind : c.names.mlp_norm);
  }
  if (!c.names.experts_norm.empty()) {
    layer.experts_norm = norm(c.names.experts_norm);
    layer.experts_behind = norm(c.names.experts_norm_behind);
    layer.shared_behind = norm(c.names.shared_norm_behind);
  }
  if (!c.names.layer_scale.empty()) layer.scale = weights.vector(c.tensor(index, c.names.layer_scale), 1)[0];
  const bool moe = c.layer[index].moe;
  const std::uint32_t width = moe ? c.layer[index].shared_width : c.dense_width;
  if (width == 0) return layer;
  if (moe && !c.names.shared_fused[0].empty()) {
    const std::string both = c.tensor(index, c.names.shared_fused[0]);
    layer.mlp.gate = weights.rows_of(both, std::uint64_t{2} * width, c.hidden, 0, width);
    layer.mlp.up = weights.rows_of(both, std::uint64_t{2} * width, c.hidden, width, width);
    layer.mlp.down = weights.matrix(c.tensor(index, c.names.shared_fused[1]), c.hidden, width);
    return layer;
  }
  const std::string& at = moe ? c.names.shared : c.names.dense;
  const auto part = [&](std::size_t i) { return c.tensor(index, at + c.names.mlp_parts[i] + ".weight"); };
  layer.mlp.gate = weights.matrix(part(0), width, c.hidden);
  layer.mlp.up = weights.matrix(part(1), width, c.hidden);
  layer.mlp.down = weights.matrix(part(2), c.hidden, width);
  if (moe && !c.names.shared_scale.empty()) {
    layer.mlp.scale = weights.matrix(c.tensor(index, c.names.shared_scale), 1, c.hidden);
  }
  return layer;
}

void CpuModel::norm(const Matrix& x, const NormWeights& weights, Matrix& y) const {
  const auto epsilon = static_cast<float>(config().norm_epsilon);
  if (config().norm == Norm::mean) {
    layer_norm(x, weights.weight, weights.bias, epsilon, y);
  } else {
    rms_norm(x, weights.weight, epsilon, y);
  }
}

void CpuModel::norm_before(const Matrix& x, const NormWeights& weights, Matrix& y) const {
  if (weights.weight.size() > 0) {
    norm(x, weights, y);
  } else {
    y = x;
  }
}

void CpuModel::norm_behind(const NormWeights& behind, Matrix& given) {
  if (behind.weight.size() == 0) return;
  norm(given, behind, given_);
  given.swap(given_);
}

void CpuModel::add(Matrix& x, const NormWeights& behind, Matrix& given) {
  norm_behind(behind, given);
  if (config().residual_scale == 1) {
    x += given;
  } else {
    x += given * static_cast<float>(config().residual_scale);
  }
}

void CpuModel::attend(std::uint32_t layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, Matrix& x,
                      Normed& normed) {
  norm_before(x, layers_[layer].attention_norm, normed.mlp);
  attention_->run(layer, rows, caches, normed.mlp, attended_);
  add(x, layers_[layer].attention_behind, attended_);
  norm_before(x, layers_[layer].mlp_norm, normed.mlp);
  normed.apart = layers_[layer].experts_norm.weight.size() > 0;
  if (!normed.apart) return;
  norm(x, layers_[layer].experts_norm, normed.experts);
  norm(x, plain_, normed.gate);
}

void CpuModel::run_mlp(const Mlp& mlp, std::uint32_t width, bool scaled, const Matrix& x) {
  if (width == 0) return;
  if (scaled) {
    product_.run(x, {mlp.gate.times(mlp_), mlp.up.times(mlp_up_), mlp.scale.times(factor_)});
  } else {
    product_.run(x, {mlp.gate.times(mlp_), mlp.up.times(mlp_up_)});
  }
  if (config().glu.gelu) {
    geglu(mlp_, mlp_up_);
  } else {
    swiglu(mlp_, mlp_up_);
  }
  mlp.down.times(mlp_, product_, mlp_out_);
  for (Eigen::Index i = 0; scaled && i < mlp_out_.rows(); ++i) mlp_out_.row(i) /= 1.0F + std::exp(-factor_(i, 0));
}

void CpuModel::score(std::uint32_t moe_layer, const Matrix& input, Matrix& select, Matrix& weight) const {
  linear(input, layers_[config().moe_layers[moe_layer]].gate, weight);
  apply_gate_rule(moe_layer, select, weight);
}

void CpuModel::add_experts(const Layer& layer, Matrix& x, Matrix& routed) {
  const bool together = config().norm_place != NormPlace::before;
  norm_behind(layer.experts_behind, routed);
  norm_behind(layer.shared_behind, mlp_out_);
  if (together && config().shared_width > 0) routed += mlp_out_;
  add(x, layer.mlp_behind, routed);
  if (!together && config().shared_width > 0) add(x, layer.mlp_behind, mlp_out_);
  if (layer.scale != 1) x *= layer.scale;
}

void CpuModel::predict_partial(std::uint32_t moe_layer, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                               Matrix& hidden) {
  for (std::uint32_t l = config().moe_layers[moe_layer - 1] + 1;; ++l) {
    attention_->save(l, rows, caches);
    attend(l, rows, caches, hidden, ahead_);
    attention_->restore(l, rows, caches);
    if (config().layer[l].moe) break;
    run_mlp(layers_[l].mlp, config().dense_width, false, ahead_.mlp);
    add(hidden, layers_[l].mlp_behind, mlp_out_);
  }
  score(moe_layer, ahead_.of_gate(), ahead_select_, ahead_weight_);
}

KvCache CpuModel::make_cache(const CacheRoom& room) const {
  try {
    return {config(), room};
  } catch (const std::bad_alloc&) {
    throw InputError(
        fmt::format("out of memory for the keys and values of {} tokens: lower --max-new-tokens", room.positions));
  }
}

std::unique_ptr<ExpertDevice> CpuModel::make_device(const DeviceNeeds& needs, const RunnerOptions& options) {
  return make_cpu_device(needs, options);
}

Matrix CpuModel::forward(Phase phase, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                         ExpertRunner& runner, std::uint32_t logit_rows, const GateObserver& gate_scores) {
  const ModelConfig& c = config();
  const bool scaled = !c.names.shared_scale.empty();
  std::vector<std::uint32_t> sequences;
  x_.resize(static_cast<Eigen::Index>(rows.size()), c.hidden);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    embedding_.row(rows[i].token, x_.row(static_cast<Eigen::Index>(i)).data());
    sequences.push_back(rows[i].sequence);
  }
  if (c.embedding_scale != 1) x_ *= static_cast<float>(c.embedding_scale);
  auto span = [&](const char* name, Nanoseconds begin) {
    const Nanoseconds end = now_ns();
    if (runner.log) runner.spans.push_back({Lane::device, name, begin, end, {}, false, Ticket::none});
    return end;
  };
  runner.begin_step(phase, sequences);
  std::uint16_t index = 0;       // of layers with experts
  Nanoseconds begin = now_ns();  // of the dense work before the next such layer
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    const Layer& layer = layers_[l];
    attend(l, rows, caches, x_, normed_);
    if (!c.layer[l].moe) {
      run_mlp(layer.mlp, c.dense_width, false, normed_.mlp);
      add(x_, layer.mlp_behind, mlp_out_);
      continue;
    }
    const Nanoseconds gate = span("attention", begin);
    score(index, normed_.of_gate(), select_, weight_);
    const Nanoseconds end = span("gate", gate);
    GateScores said = scores(select_, weight_);
    if (normed_.apart) said.read = &normed_.gate;
    if (gate_scores) gate_scores(index, normed_.of_gate(), said);
    runner.plan(index, normed_.of_experts(), said, {gate - begin + shared_ns_, end - gate, 0, 0});
    if (c.shared_width > 0) {  // while the copies are on their way
      const Nanoseconds t = now_ns();
      run_mlp(layer.mlp, c.shared_width, scaled, normed_.mlp);
      shared_ns_ = span("shared expert", t) - t;
    }
    runner.run_resident(index, normed_.of_experts());
    if (runner.wants_partial(index)) {
      const Nanoseconds t = now_ns();
      runner.partial(routed_);
      partial_ = x_;
      Matrix shared = mlp_out_;  // dense layers before the next gate overwrite `mlp_out_`
      add_experts(layer, partial_, routed_);
      predict_partial(index + 1U, rows, caches, partial_);
      mlp_out_.swap(shared);
      runner.times[static_cast<unsigned>(phase)].decision += span("partial hidden state", t) - t;
      runner.look_ahead(static_cast<std::uint16_t>(index + 1), scores(ahead_select_, ahead_weight_));
    }
    runner.run(index, normed_.of_experts(), routed_);
    runner.finish(index);
    add_experts(layer, x_, routed_);
    ++index;
    begin = now_ns();
  }
  // The time of dense layers behind the last layer with experts is not counted: no later layer of this step could have it.
  x_ = x_.bottomRows(logit_rows).eval();
  norm(x_, norm_, normed_.mlp);
  Matrix logits;
  head_.times(normed_.mlp, product_, logits);
  if (c.head_bias) logits.rowwise() += head_bias_.transpose();
  scale_logits(logits);
  return logits;
}

}  // namespace ferry::engine
