#include "inference/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ferry/gate/gate_bank.hpp"
#include "math/host_math.hpp"
#include "store/checkpoint_store.hpp"
#include "store/disk_store.hpp"
#include "support/errors.hpp"

namespace ferry::engine {

KvCache::KvCache(const ModelConfig& c, std::uint32_t positions) : positions(positions) {
  if (c.latent.rank > 0) {
    keys.assign(c.layers, Matrix(positions, c.latent.rank + c.rope.width));
    return;
  }
  for (const LayerConfig& layer : c.layer) {
    if (layer.linear && c.linear.convolution) {
      keys.emplace_back(c.linear.kernel - 1, c.hidden);
      values.emplace_back();
    } else if (layer.linear) {
      keys.emplace_back(Eigen::Index{c.linear.value_heads} * c.linear.key_dim, c.linear.value_dim);
      values.emplace_back(c.linear.kernel - 1, c.linear.channels());
    } else {
      keys.emplace_back(Eigen::Index{layer.kv_heads} * positions, layer.head_dim);
      values.emplace_back(Eigen::Index{layer.kv_heads} * positions, layer.head_dim);
    }
  }
}

std::uint64_t KvCache::bytes() const {
  if (keys.empty()) return device_bytes_;
  Eigen::Index floats = 0;
  for (const Matrix& m : keys) floats += m.size();
  for (const Matrix& m : values) floats += m.size();
  return static_cast<std::uint64_t>(floats) * sizeof(float);
}

ModelFiles::ModelFiles(const std::filesystem::path& folder, const LoadOptions& o)
    : folder(folder), config(read_model_config(folder)), checkpoint(std::make_shared<const Checkpoint>(folder)) {
  take_names(*checkpoint, config);
  if (o.host_bytes) {
    auto files = std::make_unique<CheckpointStore>(checkpoint, config, folder.string(), o.quantizer, 0);
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      if ((o.precisions.bits >> p & 1U) != 0) files->add(static_cast<Precision>(p));
    }
    const std::vector<ExpertLayout> layouts = files->layouts();
    std::uint64_t stored = 0;
    for (std::uint32_t l = 0; l < config.moe_layer_count(); ++l) {
      stored += config.moe(l).experts * layouts[layouts.size() == 1 ? 0 : l].bytes();
    }
    const std::uint64_t weights = checkpoint->weight_bytes(), others = weights - std::min(weights, stored);
    const std::uint64_t all = files->added_bytes(), held = o.host_bytes(all, others);
    if (held < all) {
      files->set_host_bytes(held);
      store = std::move(files);
      return;
    }
  }
  store = std::make_unique<MemoryStore>(*checkpoint, config, o);
}

ModelFiles::ModelFiles(const std::filesystem::path& folder, std::unique_ptr<DiskStore> disk)
    : folder(folder), config(read_model_config(folder)), checkpoint(std::make_shared<const Checkpoint>(folder)) {
  take_names(*checkpoint, config);
  check_same_model(disk->facts(), disk->reads().file, *checkpoint, config, folder);
  store = std::move(disk);
}

Model::~Model() = default;

Model::Model(ModelFiles& files) : folder_(files.folder), config_(files.config), store_(std::move(files.store)) {
  const ModelConfig& c = config_;
  // Before memory is asked for: the file has what config.json says.
  const std::uint32_t layers = c.moe_layer_count();
  for (std::uint32_t l = 0; l < layers; ++l) {
    static_cast<void>(files.checkpoint->at(c.gate_name(l), {c.moe(l).experts, c.hidden}));
  }
  for (const ExpertLayout& layout : store_->layouts()) {
    for (int part = 0; part < 3; ++part) note_codes(layout.type(part));
  }
  gates_ = std::make_unique<GateBank>(layers, c.experts, c.hidden);
  for (std::uint32_t l = 0; l < layers; ++l) {
    const std::uint32_t experts = c.moe(l).experts;
    static_cast<void>(dense(*files.checkpoint, c.gate_name(l), {experts, c.hidden}));
    std::vector<float> gate = scaled_gate(*files.checkpoint, c, l);
    gate.resize(std::size_t{c.experts} * c.hidden);
    gates_->set(l, Eigen::Map<const Matrix>(gate.data(), c.experts, c.hidden));
  }
  gate_biases_ = gate_vectors(*files.checkpoint, c.names.gate_bias);
  choice_biases_ = gate_vectors(*files.checkpoint, c.names.choice_bias);
  if (c.experts_differ() && gate_biases_.size() == 0) gate_biases_ = Matrix::Zero(layers, c.experts);
  for (std::uint32_t l = 0; l < layers; ++l) {  // nothing may rank an expert high that the layer does not have
    const std::uint32_t experts = c.moe(l).experts;
    if (experts == c.experts) continue;
    constexpr float none = -std::numeric_limits<float>::infinity();
    gate_biases_.row(l).tail(c.experts - experts).setConstant(none);
    if (choice_biases_.size() > 0) choice_biases_.row(l).tail(c.experts - experts).setConstant(none);
  }
  gates_->set_rule(c.gate, gate_biases_, choice_biases_);
}

/// [layers, experts] of the vectors that end so, or nothing for no name.
Matrix Model::gate_vectors(const Checkpoint& checkpoint, const std::string& name) {
  Matrix all;
  if (name.empty()) return all;
  const std::uint32_t layers = config_.moe_layer_count();
  all = Matrix::Zero(layers, config_.experts);
  for (std::uint32_t l = 0; l < layers; ++l) {
    const std::string whole = config_.tensor(config_.moe_layers[l], name);
    const Tensor* found = checkpoint.tensor(whole);
    // ERNIE's files have it as a matrix of one row.
    const bool row = found != nullptr && found->shape.size() == 2;
    const std::uint64_t experts = config_.moe(l).experts;
    const std::vector<std::uint64_t> shape = row ? std::vector{std::uint64_t{1}, experts} : std::vector{experts};
    const std::vector<float> values = dense(checkpoint, whole, shape).to_floats();
    all.row(l).head(static_cast<Eigen::Index>(experts)) =
        Eigen::Map<const Eigen::RowVectorXf>(values.data(), static_cast<Eigen::Index>(experts));
  }
  return all;
}

void Model::note_codes(DType type) {
  std::visit([&](const auto& layout) { codes_ = codes_ || has_codes(layout); }, plain_layout(type, 1, 1));
}

const Tensor& Model::dense(const Checkpoint& checkpoint, const std::string& name,
                           const std::vector<std::uint64_t>& shape) {
  const Tensor& t = checkpoint.at(name, shape);
  dense_bytes_ += t.bytes;
  note_codes(t.stored());
  return t;
}

const Tokenizer* Model::tokenizer() const {
  std::call_once(tokenizer_asked_, [&] {
    try {
      tokenizer_ = open_tokenizer(folder_, config_);
    } catch (const InputError& e) {  // which concerns only whoever needs one
      why_no_tokenizer_ = e.what();
    }
  });
  return tokenizer_.get();
}

const Tokenizer& Model::need_tokenizer() const {
  if (const Tokenizer* found = tokenizer()) return *found;
  if (!why_no_tokenizer_.empty()) throw InputError(why_no_tokenizer_);
  throw InputError(fmt::format(
      "{}: has no tokenizer, and so no text can be read: expected tokenizer.json, tokenizer.model or a file "
      "NAME.tiktoken beside config.json; --token-ids FILE gives it tokens",
      folder_.string()));
}

std::vector<std::uint32_t> Model::begin_tokens() const {
  if (const Tokenizer* found = tokenizer()) return found->begin();
  if (!why_no_tokenizer_.empty()) throw InputError(why_no_tokenizer_);  // it would say what texts begin with
  if (config_.begin_token == no_token) return {};
  return {config_.begin_token};
}

void Model::add_precisions(PrecisionSet set) {
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    if ((set.bits >> p & 1U) != 0) store_->add(static_cast<Precision>(p));
  }
}

void Model::apply_gate_rule(std::uint32_t moe_layer, Matrix& select, Matrix& weight) const {
  if (gate_biases_.size() > 0) weight.rowwise() += gate_biases_.row(moe_layer);
  const bool separate = separate_scores();
  if (config_.gate.gating == Gating::softmax && !separate) {
    softmax_rows(weight);
    return;
  }
  if (separate) resize(select, weight.rows(), weight.cols());
  const float* bias = choice_biases_.size() > 0 ? choice_biases_.row(moe_layer).data() : nullptr;
  std::vector<float> logits;
  for (Eigen::Index i = 0; i < weight.rows(); ++i) {
    logits.assign(weight.row(i).begin(), weight.row(i).end());
    config_.gate.score(logits, bias, separate ? select.row(i).data() : weight.row(i).data(), weight.row(i).data());
  }
}

void Model::scale_logits(Matrix& logits) const {
  if (config_.logit_scale != 1) logits *= static_cast<float>(config_.logit_scale);
  if (config_.logit_cap == 0) return;
  const auto cap = static_cast<float>(config_.logit_cap);
  logits = logits.unaryExpr([cap](float logit) { return cap * std::tanh(logit / cap); });
}

std::string beyond_cuda(const ModelConfig& c, const std::vector<ExpertLayout>& layouts) {
  if (c.experts_differ()) return "layers that differ in their experts";
  for (const std::uint32_t width : c.of_moe_layers(&LayerConfig::shared_width)) {
    if (width != c.shared_width) return "shared experts of several widths";
  }
  if (c.latent.rank == 0 && c.value_dim != c.head_dim) return "its attention";
  for (const ExpertLayout& l : layouts) {
    if (l.type(0) != l.type(1)) return "experts whose gate and up are of two types";
  }
  return "";
}

std::unique_ptr<ExpertRunner> make_runner(Model& model, const RunnerOptions& options) {
  RunnerOptions o = options;
  if (o.link_bytes_per_s == 0) o.link_bytes_per_s = model.link_bytes_per_s();
  if (o.workers == nullptr) o.workers = &model.workers();
  o.activations = model.activations();
  const ModelShape shape = model_shape(model.config(), model.store(), 1);
  const PrecisionSet needed = precisions_for(o, everything(shape).bytes());
  if ((needed.bits & ~model.store().precisions()) != 0) model.add_precisions(needed);
  if (!o.make_device) {
    o.make_device = [&](const DeviceNeeds& needs, const RunnerOptions& given) {
      return model.make_device(needs, given);
    };
  }
  return make_runner(model.config(), model.store(), model.gates(), o);
}

}  // namespace ferry::engine
