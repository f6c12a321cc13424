#include "inference/model.hpp"

#include <fmt/format.h>

#include "ferry/gate/gate_bank.hpp"
#include "store/disk_store.hpp"
#include "support/errors.hpp"

namespace ferry::engine {

KvCache::KvCache(const ModelConfig& c, std::uint32_t positions)
    : positions(positions),
      keys(c.layers, Matrix(Eigen::Index{c.kv_heads} * positions, c.head_dim)),
      values(c.layers, Matrix(Eigen::Index{c.kv_heads} * positions, c.head_dim)) {}

std::uint64_t KvCache::bytes() const {
  if (keys.empty()) return device_bytes_;
  return 2 * keys.size() * static_cast<std::uint64_t>(keys[0].size()) * sizeof(float);
}

ModelFiles::ModelFiles(const std::filesystem::path& folder, Quantizer quantizer)
    : config(read_model_config(folder)), checkpoint(folder) {
  store = std::make_unique<MemoryStore>(checkpoint, config, quantizer);
}

ModelFiles::ModelFiles(const std::filesystem::path& folder, std::unique_ptr<DiskStore> disk)
    : config(read_model_config(folder)), checkpoint(folder) {
  const StoreFacts& s = disk->facts();
  if (s.layers != config.layers || s.experts != config.experts || s.layout.hidden != config.hidden ||
      s.layout.width != config.expert_width || s.weights != weights_checksum(checkpoint, config)) {
    throw InputError(fmt::format("{}: was packed from another model ({}), not from {}", disk->reads().file, s.model,
                                 folder.string()));
  }
  store = std::move(disk);
}

Model::~Model() = default;

Model::Model(ModelFiles& files) : config_(files.config), store_(std::move(files.store)) {
  const ModelConfig& c = config_;
  // Before memory is asked for: the file has what config.json says.
  for (std::uint32_t l = 0; l < c.layers; ++l)
    static_cast<void>(files.checkpoint.at(gate_name(c.architecture, l), {c.experts, c.hidden}));
  gates_ = std::make_unique<GateBank>(c.layers, c.experts, c.hidden);
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    const std::vector<float> gate =
        dense(files.checkpoint, gate_name(c.architecture, l), {c.experts, c.hidden}).to_floats();
    gates_->set(l, Eigen::Map<const Matrix>(gate.data(), c.experts, c.hidden));
  }
}

const Tensor& Model::dense(const Checkpoint& checkpoint, const std::string& name,
                           const std::vector<std::uint64_t>& shape) {
  const Tensor& t = checkpoint.at(name, shape);
  dense_bytes_ += t.bytes;
  return t;
}

void Model::add_precisions(PrecisionSet set) {
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    if ((set.bits >> p & 1U) != 0) store_->add(static_cast<Precision>(p));
  }
}

std::unique_ptr<ExpertRunner> make_runner(Model& model, const RunnerOptions& options) {
  RunnerOptions o = options;
  if (o.link_bytes_per_s == 0) o.link_bytes_per_s = model.link_bytes_per_s();
  if (o.workers == nullptr) o.workers = &model.workers();
  o.activations = model.activations();
  if (!o.make_device) {
    o.make_device = [&](const DeviceNeeds& needs, const RunnerOptions& given) {
      return model.make_device(needs, given);
    };
  }
  return make_runner(model.config(), model.store(), model.gates(), o);
}

}  // namespace ferry::engine
