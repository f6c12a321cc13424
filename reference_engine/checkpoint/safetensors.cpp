#include "checkpoint/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "support/checksum.hpp"
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
constexpr TypeInfo types[] = {{"BF16", DType::bf16, 2},  {"F16", DType::f16, 2},         {"F32", DType::f32, 4},
                              {"I32", DType::i32, 4},    {"F64", DType::other, 8},       {"I64", DType::other, 8},
                              {"U64", DType::other, 8},  {"U32", DType::other, 4},       {"I16", DType::other, 2},
                              {"U16", DType::other, 2},  {"I8", DType::other, 1},        {"U8", DType::u8, 1},
                              {"BOOL", DType::other, 1}, {"F8_E4M3", DType::f8_e4m3, 1}, {"F8_E5M2", DType::other, 1}};

}  // namespace

Safetensors::Safetensors(const std::filesystem::path& path, MappedFile::Hold hold) {
  path_ = path;
  file_ = std::make_unique<MappedFile>(path, hold);
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
        bad(fmt::format("{} holds {}, expected whole numbers from 0 to 2^64-1", field, json_text(value)));
      }
      return value.get<std::uint64_t>();
    };
    if (!entry["shape"].is_array()) bad("shape is not an array");
    std::uint64_t bytes = type->bytes;
    for (const Json& d : entry["shape"]) {
      const std::uint64_t n = whole(d, "shape");
      if (n != 0 && bytes > ~std::uint64_t{0} / n) bad(fmt::format("shape {} overflows", json_text(entry["shape"])));
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
      bad(fmt::format("shape {} of {} takes {} bytes but data_offsets span {}", json_text(entry["shape"]), t.dtype_name,
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
  std::string text = json_text(header);
  // Pads the header so that data begin at a multiple of 64.
  text.resize((text.size() + sizeof(std::uint64_t) + 63) / 64 * 64 - sizeof(std::uint64_t), ' ');
  const std::uint64_t length = text.size();
  std::string head = std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
  std::vector<std::string_view> parts;
  for (const Entry& e : tensors_) parts.push_back(e.bytes);
  seal(head, parts);
  parts.insert(parts.begin(), head);
  out.commit(parts);
}

}  // namespace ferry::engine
