#include "checkpoint/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "checkpoint/gguf_model.hpp"
#include "checkpoint/model_config.hpp"
#include "checkpoint/safetensors.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"

namespace ferry::engine {

std::string Checkpoint::scales_of(const std::string& name) {
  return name + "_scale_inv";
}

namespace {

/// Name of the scale by which the makers' kernels divide activations before rounding them to 8 bits.
std::string activation_scale_of(const std::string& name) {
  const std::string end = "weight";
  return name.ends_with("." + end) ? name.substr(0, name.size() - end.size()) + "activation_scale"
                                   : name + "_activation_scale";
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& model) : path_(model) {
  if (!is_gguf(model)) {
    open_folder();
    pair_scales();
    return;
  }
  auto files = open_gguf(model);
  const bool norms_behind = has_norms_behind(files);
  for (auto& file : files) {
    for (const auto& [name, tensor] : file->tensors()) {
      if (where_.emplace(folder_name(name, norms_behind), Place{file.get(), name}).second) continue;
      throw InputError(fmt::format("{}: tensor \"{}\" is in more than one of its files, or under two names",
                                   file->path().string(), name));
    }
    files_.push_back(std::move(file));
  }
}

void Checkpoint::open_folder() {
  const auto single = path_ / "model.safetensors", index = path_ / "model.safetensors.index.json";
  std::error_code none;  // on an error, opening the file says what is wrong
  if (std::filesystem::exists(single, none) || none) {
    files_.push_back(std::make_unique<Safetensors>(single));
    for (const auto& [name, tensor] : files_[0]->tensors()) where_[name] = {files_[0].get(), name};
    return;
  }
  if (!std::filesystem::exists(index, none)) {
    throw InputError(path_.string() + ": neither model.safetensors nor model.safetensors.index.json is there");
  }
  const Json root = read_json(index);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    throw InputError(index.string() + ": field \"weight_map\": expected an object of tensor name to file name");
  }
  std::map<std::string, TensorFile*> shards;
  for (const auto& [name, file] : root["weight_map"].items()) {
    if (!file.is_string()) throw InputError(fmt::format("{}: weight_map \"{}\" is not a string", index.string(), name));
    const std::string shard = file.get<std::string>();
    if (shard.empty() || shard.find_first_of(std::string_view("/\0", 2)) != std::string::npos || shard == "..") {
      throw InputError(fmt::format("{}: weight_map \"{}\" names \"{}\", expected a file beside the index",
                                   index.string(), name, shard));
    }
    TensorFile*& open = shards[shard];
    if (open == nullptr) {
      files_.push_back(std::make_unique<Safetensors>(path_ / shard));
      open = files_.back().get();
    }
    static_cast<void>(open->at(name));
    where_[name] = {open, name};
  }
  // Other engines read all that the files hold, whatever the index says.
  for (const auto& file : files_) {
    for (const auto& [name, tensor] : file->tensors()) {
      const auto [at, fresh] = where_.emplace(name, Place{file.get(), name});
      if (fresh || at->second.file == file.get()) continue;
      throw InputError(fmt::format("{}: tensor \"{}\" is in {}, too, which {} names for it: expected one of them",
                                   file->path().string(), name, at->second.file->path().filename().string(),
                                   index.filename().string()));
    }
  }
}

void Checkpoint::pair_scales() {
  for (const auto& [name, place] : where_) {
    if (place.file->at(place.name).dtype != DType::f8_e4m3) continue;
    const auto scales = where_.find(scales_of(name));
    if (scales != where_.end()) place.file->set_scales(place.name, scales->second.file->at(scales->second.name));
  }
}

const TensorFile* Checkpoint::find(const std::string& name) const {
  const auto found = where_.find(name);
  return found == where_.end() ? nullptr : found->second.file;
}

const Tensor* Checkpoint::tensor(const std::string& name) const {
  const auto found = where_.find(name);
  return found == where_.end() ? nullptr : &found->second.file->at(found->second.name);
}

const Tensor& Checkpoint::raw(const std::string& name, const std::vector<std::uint64_t>& shape) const {
  const Tensor* t = tensor(name);
  if (t == nullptr) throw InputError(fmt::format("{}: tensor \"{}\" is missing", path_.string(), name));
  read_.insert(name);
  if (t->shape != shape) {
    throw InputError(fmt::format("{}: tensor \"{}\" has shape [{}], expected [{}] by config.json",
                                 find(name)->path().string(), name, fmt::join(t->shape, ", "), fmt::join(shape, ", ")));
  }
  return *t;
}

const Tensor& Checkpoint::at(const std::string& name, const std::vector<std::uint64_t>& shape, bool may_halve) const {
  const Tensor& t = raw(name, shape);
  const std::string where = find(name)->path().string();
  if (!holds_weights(t.stored())) {
    throw InputError(
        fmt::format("{}: tensor \"{}\" is {}, which is not supported: expected BF16, F16, F32, or in a GGUF file a "
                    "type of Q2_K to Q8_0, IQ4_NL, IQ4_XS or MXFP4",
                    where, name, t.dtype_name));
  }
  if (t.dtype != DType::f8_e4m3) return t;
  const std::string scales = scales_of(name);
  if (t.scales == nullptr || shape.size() < 2) {
    throw InputError(fmt::format("{}: tensor \"{}\" is {} without a \"{}\" beside it, expected one, and matrices",
                                 where, name, t.dtype_name, scales));
  }
  std::vector<std::uint64_t> blocks = shape;  // each matrix has blocks of its own
  for (std::size_t i = shape.size() - 2; i < shape.size(); ++i) blocks[i] = (shape[i] + 127) / 128;
  const std::vector<std::uint64_t>& of = t.scales->shape;
  const std::uint64_t count = t.scales->elements();
  const bool one = shape.size() == 2 ? of.size() < 2 && count == 1
                                     : !of.empty() && of[0] == shape[0] &&
                                           (count == shape[0] || (may_halve && count == 2 * shape[0]));
  if ((of != blocks && !one) || !(t.scales->dtype == DType::f32 || t.scales->dtype == DType::bf16)) {
    throw InputError(
        fmt::format("{}: tensor \"{}\" is {} [{}], expected F32 [{}]: a scale for 128 rows and columns, or "
                    "one for each matrix",
                    where, scales, t.scales->dtype_name, fmt::join(of, ", "), fmt::join(blocks, ", ")));
  }
  read_.insert(scales);
  read_.insert(activation_scale_of(name));  // activations stay floats
  return t;
}

void Checkpoint::read(const std::string& name, const std::vector<std::uint64_t>& shape, std::byte* to) const {
  const Tensor& tensor = at(name, shape);
  const Place& place = where_.at(name);
  if (tensor.dtype != DType::f8_e4m3) return place.file->read(tensor, to, name);
  std::vector<std::byte> codes(tensor.bytes);
  place.file->read(tensor, codes.data(), name);
  Tensor own = tensor;
  own.data = codes.data();
  Tensor scales = *tensor.scales;
  std::vector<std::byte> read_scales(scales.bytes);
  const std::string scale_name = scales_of(name);
  where_.at(scale_name).file->read(scales, read_scales.data(), scale_name);
  scales.data = read_scales.data();
  own.scales = &scales;
  own.copy_stored(to);
}

void Checkpoint::read(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint64_t first,
                      std::uint64_t bytes, std::byte* to) const {
  const Tensor& tensor = at(name, shape);
  if (first == 0 && bytes == tensor.stored_bytes()) return read(name, shape, to);
  read_raw(name, shape, first, bytes, to);
}

void Checkpoint::read_raw(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint64_t first,
                          std::uint64_t bytes, std::byte* to) const {
  Tensor part = raw(name, shape);
  part.data += first;
  part.bytes = bytes;
  where_.at(name).file->read(part, to, name);
}

void Checkpoint::forget(const std::string& name) const noexcept {
  const auto found = where_.find(name);
  if (found != where_.end()) found->second.file->forget(found->second.file->tensors().at(found->second.name));
}

std::uint64_t Checkpoint::weight_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, place] : where_) {
    const Tensor& t = place.file->at(place.name);
    if (holds_weights(t.stored())) bytes += t.stored_bytes();
  }
  return bytes;
}

std::vector<std::string> Checkpoint::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : where_) {
    if (read_.count(name) == 0) names.push_back(name);
  }
  return names;
}

void Checkpoint::check_unchanged() const {
  for (const auto& file : files_) file->check_unchanged();
}

std::vector<std::pair<std::filesystem::path, FileIdentity>> Checkpoint::files() const {
  std::vector<std::pair<std::filesystem::path, FileIdentity>> all;
  for (const auto& file : files_) all.emplace_back(file->path(), file->identity());
  return all;
}

std::vector<float> scaled_gate(const Checkpoint& checkpoint, const ModelConfig& c, std::uint32_t moe_layer) {
  std::vector<float> gate = checkpoint.at(c.gate_name(moe_layer), {c.moe(moe_layer).experts, c.hidden}).to_floats();
  if (c.names.gate_scale.empty()) return gate;
  const std::string name = c.tensor(c.moe_layers[moe_layer], c.names.gate_scale);
  std::vector<float> scale = checkpoint.at(name, {c.hidden}).to_floats();
  for (float& s : scale) s /= std::sqrt(static_cast<float>(c.hidden));
  for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= scale[i % c.hidden];
  return gate;
}

void take_names(const Checkpoint& checkpoint, ModelConfig& c) {
  const auto has = [&](const TensorNames& names) {
    const auto at = [&](const std::string& name) {
      return name.empty() ||
             checkpoint.find(fmt::format("{}layers.{}.{}", names.model, c.moe_layers[0], name)) != nullptr;
    };
    return at(names.gate) && at(names.choice_bias);
  };
  if (c.inner_names && !has(c.names) && has(*c.inner_names)) c.names = *c.inner_names;
}

}  // namespace ferry::engine
