#include "inference/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "ferry/gate/gate_bank.hpp"
#include "math/host_math.hpp"
#include "store/checkpoint_store.hpp"
#include "store/disk_store.hpp"
#include "support/errors.hpp"

namespace ferry::engine {

namespace {

/// How far a sequence can always go back, as when the next prompt has the last answer without its reasoning.
constexpr std::uint64_t spare_positions = 512;

}  // namespace

CacheRoom::CacheRoom(const ModelConfig& c, std::uint32_t positions, std::uint32_t rows)
    : positions(positions), recent(positions), step(rows == 0 ? positions : std::min(rows, positions)) {
  std::uint64_t reach = 0;
  for (const LayerConfig& layer : c.layer) reach = std::max<std::uint64_t>(reach, layer.reach());
  // One step more, so that the last rows of a step do not overwrite what its first rows attend to.
  const std::uint64_t wanted = reach + 2 * std::uint64_t{step} + spare_positions;
  if (reach > 0 && wanted < positions) {
    recent = static_cast<std::uint32_t>(wanted);
    back = static_cast<std::uint32_t>(spare_positions) + step;
  }
}

namespace {

/// The floats that take the room of so many numbers of a key or value.
std::uint32_t cache_columns(const ModelConfig& c, std::uint32_t numbers) {
  return c.cache_type == FloatType::f32 ? numbers : numbers / 2;
}

}  // namespace

void check_cache_type(const ModelConfig& c) {
  if (c.cache_type == FloatType::bf16) throw InputError("keys and values: expected f32 or f16");
  const std::uint32_t latent = c.latent.rank == 0 ? 0 : c.latent.rank + c.rope.width;
  if (c.cache_type == FloatType::f16 && latent % 2 != 0) {
    throw InputError(
        fmt::format("--kv-cache f16: this model's latent vectors have {} numbers, expected an even number", latent));
  }
}

std::uint64_t cache_bytes(const ModelConfig& c, const CacheRoom& room) {
  std::uint64_t floats = 0;
  for (const LayerConfig& layer : c.layer) {
    if (layer.linear) {
      const LinearAttention& l = c.linear;
      floats += l.rule == LinearRule::convolution ? std::uint64_t{l.kernel - 1} * c.hidden
                                                  : std::uint64_t{l.value_heads} * l.key_dim * l.value_dim +
                                                        std::uint64_t{l.kernel - 1} * l.channels();
    } else if (c.latent.rank > 0) {
      floats += std::uint64_t{room.of(layer)} * cache_columns(c, c.latent.rank + c.rope.width);
    } else {
      floats += std::uint64_t{2} * room.of(layer) * layer.kv_heads * cache_columns(c, layer.head_dim);
    }
  }
  return floats * sizeof(float);
}

KvCache::KvCache(const ModelConfig& c, const CacheRoom& room) : room(room), bytes_(cache_bytes(c, room)) {
  for (const LayerConfig& layer : c.layer) {
    const std::uint32_t positions = room.of(layer);
    layers_.push_back({0, positions});
    if (c.latent.rank > 0) {
      keys.emplace_back(positions, cache_columns(c, c.latent.rank + c.rope.width));
      continue;
    }
    if (layer.linear && c.linear.rule == LinearRule::convolution) {
      keys.emplace_back(c.linear.kernel - 1, c.hidden);
      values.emplace_back();
    } else if (layer.linear) {
      keys.emplace_back(Eigen::Index{c.linear.value_heads} * c.linear.key_dim, c.linear.value_dim);
      values.emplace_back(c.linear.kernel - 1, c.linear.channels());
    } else {
      const std::uint32_t columns = cache_columns(c, layer.head_dim);
      keys.emplace_back(Eigen::Index{layer.kv_heads} * positions, columns);
      values.emplace_back(Eigen::Index{layer.kv_heads} * positions, columns);
    }
  }
}

std::uint32_t KvCache::place(std::uint32_t layer, std::uint32_t position) {
  Layer& l = layers_[layer];
  if (position == 0) l.first = 0;  // another text
  if (position < l.first) throw std::logic_error("a sequence returned further than its cache remembers");
  if (position - l.first < l.capacity) return position - l.first;
  const std::uint32_t kept = l.capacity - room.step, passed = position - l.first - kept;
  for (Matrix* m : {&keys[layer], &values[layer]}) {
    for (Eigen::Index head = 0; head < m->rows(); head += l.capacity) {
      std::copy_n(m->row(head + passed).data(), kept * m->cols(), m->row(head).data());
    }
  }
  l.first += passed;
  return kept;
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
  check_cache_type(c);
  // Before memory is allocated, checks that the file has what config.json says.
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
  for (std::uint32_t l = 0; l < layers; ++l) {  // experts that the layer lacks must rank last
    const std::uint32_t experts = c.moe(l).experts;
    if (experts == c.experts) continue;
    constexpr float none = -std::numeric_limits<float>::infinity();
    gate_biases_.row(l).tail(c.experts - experts).setConstant(none);
    if (choice_biases_.size() > 0) choice_biases_.row(l).tail(c.experts - experts).setConstant(none);
  }
  gates_->set_rule(c.gate, gate_biases_, choice_biases_);
}

/// The layers' vectors of this name as [layers, experts]; empty if the name is empty.
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
  count_dense(t.bytes, t.elements());
  note_codes(t.stored());
  return t;
}

const Tokenizer* Model::tokenizer() const {
  std::call_once(tokenizer_asked_, [&] {
    try {
      tokenizer_ = open_tokenizer(folder_, config_);
    } catch (const InputError& e) {  // an error only for those who need a tokenizer
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
  if (!why_no_tokenizer_.empty()) throw InputError(why_no_tokenizer_);  // the tokenizer would say what texts begin with
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
  if (c.cache_type != FloatType::f32) return "keys and values of 16 bits";
  for (const std::uint32_t width : c.of_moe_layers(&LayerConfig::shared_width)) {
    if (width != c.shared_width) return "shared experts of several widths";
  }
  if (c.linear.kernel > 0 && c.linear.rule == LinearRule::mamba) return "Mamba layers";
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
