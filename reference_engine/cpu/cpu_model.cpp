#include "cpu/cpu_model.hpp"

#include <fmt/format.h>

#include <cmath>

#include "checkpoint/agreement.hpp"
#include "cpu/cpu_device.hpp"
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
  check_agreement(files.checkpoint, c);
  auto matrix = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    return StoredMatrix(dense(files.checkpoint, name, {rows, columns}), name, rows, columns);
  };
  auto vector = [&](const std::string& name, std::uint64_t size) {
    const std::vector<float> values = dense(files.checkpoint, name, {size}).to_floats();
    return Vector(Eigen::Map<const Vector>(values.data(), static_cast<Eigen::Index>(size)));
  };

  const std::uint32_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  embedding_ = matrix("model.embed_tokens.weight", c.vocabulary, c.hidden);
  head_ = c.tied_embeddings ? embedding_ : matrix("lm_head.weight", c.vocabulary, c.hidden);
  norm_ = vector("model.norm.weight", c.hidden);
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    Layer layer;
    layer.input_norm = vector(at + "input_layernorm.weight", c.hidden);
    layer.post_norm = vector(at + "post_attention_layernorm.weight", c.hidden);
    layer.q = matrix(at + "self_attn.q_proj.weight", q_width, c.hidden);
    layer.k = matrix(at + "self_attn.k_proj.weight", kv_width, c.hidden);
    layer.v = matrix(at + "self_attn.v_proj.weight", kv_width, c.hidden);
    layer.o = matrix(at + "self_attn.o_proj.weight", c.hidden, q_width);
    if (c.qkv_bias) {
      layer.q_bias = vector(at + "self_attn.q_proj.bias", q_width);
      layer.k_bias = vector(at + "self_attn.k_proj.bias", kv_width);
      layer.v_bias = vector(at + "self_attn.v_proj.bias", kv_width);
    } else {
      layer.q_bias.setZero(q_width);
      layer.k_bias.setZero(kv_width);
      layer.v_bias.setZero(kv_width);
    }
    if (c.shared_width > 0) {
      layer.shared_gate = matrix(at + "mlp.shared_expert.gate_proj.weight", c.shared_width, c.hidden);
      layer.shared_up = matrix(at + "mlp.shared_expert.up_proj.weight", c.shared_width, c.hidden);
      layer.shared_down = matrix(at + "mlp.shared_expert.down_proj.weight", c.hidden, c.shared_width);
      layer.shared_scale = matrix(at + "mlp.shared_expert_gate.weight", 1, c.hidden);
    }
    const std::vector<float> gate =
        files.checkpoint.at(gate_name(c.architecture, l), {c.experts, c.hidden}).to_floats();
    layer.gate = Eigen::Map<const Matrix>(gate.data(), c.experts, c.hidden);
    layers_.push_back(std::move(layer));
  }
  inverse_frequency_.resize(c.head_dim / 2);
  for (std::uint32_t i = 0; i < c.head_dim / 2; ++i) {
    inverse_frequency_[i] = static_cast<float>(1.0 / std::pow(c.rope_theta, 2.0 * i / c.head_dim));
  }
}

/// Rotary embedding, the two halves of each head as the pairs (as the checkpoints are stored).
void CpuModel::rotate(Eigen::Ref<Eigen::RowVectorXf> heads, std::uint32_t position) const {
  const Eigen::Index half = inverse_frequency_.size();
  for (Eigen::Index i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inverse_frequency_[i];
    const float cosine = std::cos(angle), sine = std::sin(angle);
    for (Eigen::Index h = i; h < heads.size(); h += 2 * half) {
      const float a = heads[h], b = heads[h + half];
      heads[h] = a * cosine - b * sine;
      heads[h + half] = b * cosine + a * sine;
    }
  }
}

void CpuModel::attention(std::uint32_t index, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                         const Matrix& normed, Matrix& out) {
  const Layer& layer = layers_[index];
  product_.run(normed, {layer.q.times(q_), layer.k.times(k_), layer.v.times(v_)});
  seen_.clear();
  for (Eigen::Index i = 0; i < q_.rows(); ++i) {
    const TokenRow& row = rows[static_cast<std::size_t>(i)];
    q_.row(i) += layer.q_bias.transpose();
    k_.row(i) += layer.k_bias.transpose();
    v_.row(i) += layer.v_bias.transpose();
    rotate(q_.row(i), row.position);
    rotate(k_.row(i), row.position);
    KvCache& cache = caches[row.sequence];
    keep(cache, index, row.position, k_.row(i).data(), v_.row(i).data());
    seen_.push_back({cache.keys[index].data(), cache.values[index].data(), cache.positions, row.position + 1});
  }
  attention_.run(seen_, q_, mixed_);
  layer.o.times(mixed_, product_, out);
}

void CpuModel::keep(KvCache& cache, std::uint32_t layer, std::uint32_t position, const float* keys,
                    const float* values) const {
  for (std::uint32_t h = 0; h < config().kv_heads; ++h, keys += config().head_dim, values += config().head_dim) {
    const Eigen::Index at = Eigen::Index{h} * cache.positions + position;
    std::copy_n(keys, config().head_dim, cache.keys[layer].row(at).data());
    std::copy_n(values, config().head_dim, cache.values[layer].row(at).data());
  }
}

void CpuModel::recall(const KvCache& cache, std::uint32_t layer, std::uint32_t position, float* keys,
                      float* values) const {
  for (std::uint32_t h = 0; h < config().kv_heads; ++h, keys += config().head_dim, values += config().head_dim) {
    const Eigen::Index at = Eigen::Index{h} * cache.positions + position;
    std::copy_n(cache.keys[layer].row(at).data(), config().head_dim, keys);
    std::copy_n(cache.values[layer].row(at).data(), config().head_dim, values);
  }
}

void CpuModel::predict_partial(std::uint32_t index, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                               Matrix& hidden, Matrix& scores) {
  const auto epsilon = static_cast<float>(config().norm_epsilon);
  const auto count = static_cast<Eigen::Index>(rows.size());
  saved_.resize(2 * count, Eigen::Index{config().kv_heads} * config().head_dim);
  for (Eigen::Index i = 0; i < count; ++i) {
    const TokenRow& row = rows[static_cast<std::size_t>(i)];
    recall(caches[row.sequence], index, row.position, saved_.row(2 * i).data(), saved_.row(2 * i + 1).data());
  }
  rms_norm(hidden, layers_[index].input_norm, epsilon, ahead_normed_);
  attention(index, rows, caches, ahead_normed_, projected_);
  hidden += projected_;
  for (Eigen::Index i = 0; i < count; ++i) {
    const TokenRow& row = rows[static_cast<std::size_t>(i)];
    keep(caches[row.sequence], index, row.position, saved_.row(2 * i).data(), saved_.row(2 * i + 1).data());
  }
  rms_norm(hidden, layers_[index].post_norm, epsilon, ahead_normed_);
  linear(ahead_normed_, layers_[index].gate, scores);
  softmax_rows(scores);
}

void CpuModel::shared_expert(const Layer& layer) {
  product_.run(normed_, {layer.shared_gate.times(shared_), layer.shared_up.times(shared_up_),
                         layer.shared_scale.times(factor_)});
  swiglu(shared_, shared_up_);
  layer.shared_down.times(shared_, product_, shared_out_);
}

void CpuModel::add_shared(Matrix& hidden) const {
  for (Eigen::Index i = 0; config().shared_width > 0 && i < hidden.rows(); ++i) {
    hidden.row(i) += shared_out_.row(i) / (1.0F + std::exp(-factor_(i, 0)));
  }
}

KvCache CpuModel::make_cache(std::uint32_t positions) const {
  try {
    return {config(), positions};
  } catch (const std::bad_alloc&) {
    throw InputError(
        fmt::format("out of memory for the keys and values of {} tokens: lower --max-new-tokens", positions));
  }
}

std::unique_ptr<ExpertDevice> CpuModel::make_device(const DeviceNeeds& needs, const RunnerOptions& options) {
  return make_cpu_device(needs, options);
}

Matrix CpuModel::forward(Phase phase, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                         ExpertRunner& runner, std::uint32_t logit_rows, const GateObserver& gate_scores) {
  const auto epsilon = static_cast<float>(config().norm_epsilon);
  std::vector<std::uint32_t> sequences;
  x_.resize(static_cast<Eigen::Index>(rows.size()), config().hidden);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    embedding_.row(rows[i].token, x_.row(static_cast<Eigen::Index>(i)).data());
    sequences.push_back(rows[i].sequence);
  }
  auto span = [&](const char* name, Nanoseconds begin) {
    const Nanoseconds end = now_ns();
    if (runner.log) runner.spans.push_back({Lane::device, name, begin, end, {}, false, Ticket::none});
    return end;
  };
  runner.begin_step(phase, sequences);
  for (std::uint32_t l = 0; l < config().layers; ++l) {
    const Layer& layer = layers_[l];
    const auto index = static_cast<std::uint16_t>(l);
    const Nanoseconds begin = now_ns();
    rms_norm(x_, layer.input_norm, epsilon, normed_);
    attention(l, rows, caches, normed_, projected_);
    x_ += projected_;
    rms_norm(x_, layer.post_norm, epsilon, normed_);
    const Nanoseconds gate = span("attention", begin);
    linear(normed_, layer.gate, scores_);
    softmax_rows(scores_);
    const Nanoseconds end = span("gate", gate);
    if (gate_scores) gate_scores(l, normed_, scores_);
    runner.plan(index, normed_, scores_, {gate - begin + shared_ns_, end - gate, 0, 0});
    if (config().shared_width > 0) {  // while the copies are on their way
      const Nanoseconds t = now_ns();
      shared_expert(layer);
      shared_ns_ = span("shared expert", t) - t;
    }
    runner.run_resident(index, normed_);
    if (runner.wants_partial(index)) {
      const Nanoseconds t = now_ns();
      runner.partial(partial_);
      partial_ += x_;
      add_shared(partial_);
      predict_partial(l + 1, rows, caches, partial_, ahead_scores_);
      runner.times[static_cast<unsigned>(phase)].decision += span("partial hidden state", t) - t;
      runner.look_ahead(static_cast<std::uint16_t>(l + 1), ahead_scores_);
    }
    runner.run(index, normed_, routed_);
    runner.finish(index);
    x_ += routed_;
    add_shared(x_);
  }
  x_ = x_.bottomRows(logit_rows).eval();
  rms_norm(x_, norm_, epsilon, normed_);
  Matrix logits;
  head_.times(normed_, product_, logits);
  return logits;
}

}  // namespace ferry::engine
