#include "checkpoint/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "support/errors.hpp"
#include "support/json.hpp"

namespace ferry::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr std::uint64_t largest_header = 100'000'000;  // the format's own limit

struct TypeInfo {
  const char* name;
  DType type;
  std::uint64_t bytes;
};
constexpr TypeInfo types[] = {{"BF16", DType::bf16, 2},  {"F16", DType::f16, 2},       {"F32", DType::f32, 4},
                              {"I32", DType::i32, 4},    {"F64", DType::other, 8},     {"I64", DType::other, 8},
                              {"U64", DType::other, 8},  {"U32", DType::other, 4},     {"I16", DType::other, 2},
                              {"U16", DType::other, 2},  {"I8", DType::other, 1},      {"U8", DType::other, 1},
                              {"BOOL", DType::other, 1}, {"F8_E4M3", DType::other, 1}, {"F8_E5M2", DType::other, 1}};

template <class T>
std::vector<float> widen(const std::byte* data, std::uint64_t count) {
  std::vector<float> out(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(value);
  }
  return out;
}

}  // namespace

std::uint64_t Tensor::elements() const {
  std::uint64_t n = 1;
  for (const std::uint64_t d : shape) n *= d;
  return n;
}

std::vector<float> Tensor::to_floats() const {
  switch (dtype) {
    case DType::bf16:
      return widen<Eigen::bfloat16>(data, elements());
    case DType::f16:
      return widen<Eigen::half>(data, elements());
    case DType::f32:
      return widen<float>(data, elements());
    default:
      throw InputError(fmt::format("a tensor of type {} cannot be read as weights", dtype_name));
  }
}

FloatType float_type(const Tensor& tensor, const std::string& name) {
  switch (tensor.dtype) {
    case DType::bf16:
      return FloatType::bf16;
    case DType::f16:
      return FloatType::f16;
    case DType::f32:
      return FloatType::f32;
    default:
      throw InputError(fmt::format("tensor \"{}\" is {}, expected BF16, F16 or F32", name, tensor.dtype_name));
  }
}

Safetensors::Safetensors(const std::filesystem::path& path) : path_(path), file_(std::make_unique<MappedFile>(path)) {
  const std::string where = path.string();
  auto refuse = [&](const std::string& what) { throw InputError(where + ": not a usable safetensors file: " + what); };
  if (file_->size() < 8) refuse(fmt::format("{} bytes, expected at least 8 for the header's length", file_->size()));
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file_->data(), 8);
  if (header_bytes > largest_header) {
    refuse(fmt::format("header length is {}, expected at most {}", header_bytes, largest_header));
  }
  if (header_bytes > file_->size() - 8) {
    refuse(fmt::format("header length is {} but only {} bytes follow it: the file is truncated", header_bytes,
                       file_->size() - 8));
  }
  const auto* text = reinterpret_cast<const char*>(file_->data() + 8);
  const Json header = parse_json({text, header_bytes}, where + ": header");
  if (!header.is_object()) refuse("the header is not a JSON object");

  const std::byte* data = file_->data() + 8 + header_bytes;
  const std::uint64_t data_bytes = file_->size() - 8 - header_bytes;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) refuse("__metadata__ is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) refuse(fmt::format("__metadata__ \"{}\" is not a string", key));
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    auto bad = [&, &name = name](const std::string& what) { refuse(fmt::format("tensor \"{}\": {}", name, what)); };
    if (!entry.is_object()) bad("expected an object with dtype, shape and data_offsets");
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!entry.contains(field)) bad(fmt::format("\"{}\" is missing", field));
    }
    Tensor t;
    if (!entry["dtype"].is_string()) bad("dtype is not a string");
    t.dtype_name = entry["dtype"].get<std::string>();
    const auto* type =
        std::find_if(std::begin(types), std::end(types), [&](auto& i) { return t.dtype_name == i.name; });
    if (type == std::end(types)) bad(fmt::format("dtype is \"{}\", which is not known", t.dtype_name));
    t.dtype = type->type;
    auto whole = [&](const Json& value, const char* field) {
      if (!value.is_number_unsigned()) {
        bad(fmt::format("{} holds {}, expected whole numbers from 0 to 2^64-1", field, value.dump()));
      }
      return value.get<std::uint64_t>();
    };
    if (!entry["shape"].is_array()) bad("shape is not an array");
    std::uint64_t bytes = type->bytes;
    for (const Json& d : entry["shape"]) {
      const std::uint64_t n = whole(d, "shape");
      if (n != 0 && bytes > ~std::uint64_t{0} / n) bad(fmt::format("shape {} overflows", entry["shape"].dump()));
      bytes *= n;
      t.shape.push_back(n);
    }
    const Json& offsets = entry["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2) bad("data_offsets is not an array of two numbers");
    const std::uint64_t begin = whole(offsets[0], "data_offsets"), end = whole(offsets[1], "data_offsets");
    if (begin > end) bad(fmt::format("data_offsets [{}, {}] run backwards", begin, end));
    if (end > data_bytes) {
      bad(fmt::format("data_offsets end at {} but the file holds {} bytes of data", end, data_bytes));
    }
    if (end - begin != bytes) {
      bad(fmt::format("shape {} of {} takes {} bytes but data_offsets span {}", entry["shape"].dump(), t.dtype_name,
                      bytes, end - begin));
    }
    t.data = data + begin;
    t.bytes = bytes;
    ranges.emplace_back(begin, end);
    tensors_.emplace(name, std::move(t));
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin < covered) refuse(fmt::format("two tensors overlap at data offset {}", begin));
    if (begin > covered) refuse(fmt::format("no tensor covers data offsets {} to {}", covered, begin));
    covered = end;
  }
  if (covered != data_bytes) {
    refuse(fmt::format("tensors cover {} bytes but the file holds {} bytes of data", covered, data_bytes));
  }
}

const Tensor& Safetensors::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw InputError(fmt::format("{}: tensor \"{}\" is missing", path_.string(), name));
  return found->second;
}

void Safetensors::read(const Tensor& tensor, std::byte* to, const std::string& name) const {
  file_->read(tensor.data, tensor.bytes, to, fmt::format("{}: tensor \"{}\"", path_.string(), name));
}

Checkpoint::Checkpoint(const std::filesystem::path& folder) : folder_(folder) {
  const auto single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  std::error_code none;  // what cannot be looked at is opened, and refused with the reason
  if (std::filesystem::exists(single, none) || none) {
    files_.push_back(std::make_unique<Safetensors>(single));
    for (const auto& [name, tensor] : files_[0]->tensors()) where_[name] = files_[0].get();
    return;
  }
  if (!std::filesystem::exists(index, none)) {
    throw InputError(folder.string() + ": neither model.safetensors nor model.safetensors.index.json is there");
  }
  const Json root = read_json(index);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    throw InputError(index.string() + ": field \"weight_map\": expected an object of tensor name to file name");
  }
  std::map<std::string, Safetensors*> shards;
  for (const auto& [name, file] : root["weight_map"].items()) {
    if (!file.is_string()) throw InputError(fmt::format("{}: weight_map \"{}\" is not a string", index.string(), name));
    const std::string shard = file.get<std::string>();
    if (shard.empty() || shard.find('/') != std::string::npos || shard == "..") {
      throw InputError(fmt::format("{}: weight_map \"{}\" names \"{}\", expected a file beside the index",
                                   index.string(), name, shard));
    }
    Safetensors*& open = shards[shard];
    if (open == nullptr) {
      files_.push_back(std::make_unique<Safetensors>(folder / shard));
      open = files_.back().get();
    }
    static_cast<void>(open->at(name));
    where_[name] = open;
  }
}

const Safetensors* Checkpoint::find(const std::string& name) const {
  const auto found = where_.find(name);
  return found == where_.end() ? nullptr : found->second;
}

const Tensor* Checkpoint::tensor(const std::string& name) const {
  const Safetensors* file = find(name);
  return file == nullptr ? nullptr : &file->at(name);
}

const Tensor& Checkpoint::at(const std::string& name, const std::vector<std::uint64_t>& shape) const {
  const Safetensors* file = find(name);
  if (file == nullptr) throw InputError(fmt::format("{}: tensor \"{}\" is missing", folder_.string(), name));
  read_.insert(name);
  const Tensor& t = file->at(name);
  if (t.shape != shape) {
    throw InputError(fmt::format("{}: tensor \"{}\" has shape [{}], expected [{}] by config.json",
                                 file->path().string(), name, fmt::join(t.shape, ", "), fmt::join(shape, ", ")));
  }
  if (t.dtype != DType::bf16 && t.dtype != DType::f16 && t.dtype != DType::f32) {
    throw InputError(
        fmt::format("{}: tensor \"{}\" is {}, expected BF16, F16 or F32", file->path().string(), name, t.dtype_name));
  }
  return t;
}

void Checkpoint::read(const std::string& name, const std::vector<std::uint64_t>& shape, std::byte* to) const {
  const Tensor& tensor = at(name, shape);
  where_.at(name)->read(tensor, to, name);
}

void Checkpoint::read(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint64_t first,
                      std::uint64_t bytes, std::byte* to) const {
  Tensor part = at(name, shape);
  part.data += first;
  part.bytes = bytes;
  where_.at(name)->read(part, to, name);
}

std::vector<std::string> Checkpoint::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : where_) {
    if (read_.count(name) == 0) names.push_back(name);
  }
  return names;
}

std::vector<std::filesystem::path> Checkpoint::files() const {
  std::vector<std::filesystem::path> all;
  for (const auto& file : files_) all.push_back(file->path());
  return all;
}

void SafetensorsWriter::add(const std::string& name, const char* dtype, const std::vector<std::uint64_t>& shape,
                            std::string_view bytes) {
  tensors_.push_back({name, dtype, shape, bytes});
}

void SafetensorsWriter::commit(OutputFile& out, const std::map<std::string, std::string>& metadata) const {
  Json header = {{"__metadata__", metadata}};
  std::uint64_t at = 0;
  for (const Entry& e : tensors_) {
    header[e.name] = {{"dtype", e.dtype}, {"shape", e.shape}, {"data_offsets", {at, at + e.bytes.size()}}};
    at += e.bytes.size();
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  // Behind the header's length and the header, data begin at a multiple of 64.
  text.resize((text.size() + sizeof(std::uint64_t) + 63) / 64 * 64 - sizeof(std::uint64_t), ' ');
  const std::uint64_t length = text.size();
  const std::string head = std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
  std::vector<std::string_view> parts{head};
  for (const Entry& e : tensors_) parts.push_back(e.bytes);
  out.commit(parts);
}

}  // namespace ferry::engine
