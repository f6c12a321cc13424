#include "checkpoint/gguf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "support/errors.hpp"
#include "support/reads.hpp"

namespace ferry::engine {
namespace {

constexpr char magic[] = {'G', 'G', 'U', 'F'};
constexpr std::uint64_t most_dimensions = 4, longest_text = 1U << 26U, most_entries = 1U << 20U;

/// GGML's types by number, with weights and bytes of a block. Types without a DType may be in a file but cannot be used.
struct GgmlType {
  std::uint32_t number;
  const char* name;
  DType type;
  std::uint32_t weights, bytes;
};
constexpr GgmlType ggml_types[] = {{0, "F32", DType::f32, 1, 4},           {1, "F16", DType::f16, 1, 2},
                                   {2, "Q4_0", DType::q4_0, 32, 18},       {3, "Q4_1", DType::q4_1, 32, 20},
                                   {6, "Q5_0", DType::q5_0, 32, 22},       {7, "Q5_1", DType::q5_1, 32, 24},
                                   {8, "Q8_0", DType::q8_0, 32, 34},       {10, "Q2_K", DType::q2_k, 256, 84},
                                   {11, "Q3_K", DType::q3_k, 256, 110},    {12, "Q4_K", DType::q4_k, 256, 144},
                                   {13, "Q5_K", DType::q5_k, 256, 176},    {14, "Q6_K", DType::q6_k, 256, 210},
                                   {16, "IQ2_XXS", DType::other, 256, 66}, {17, "IQ2_XS", DType::other, 256, 74},
                                   {18, "IQ3_XXS", DType::other, 256, 98}, {19, "IQ1_S", DType::other, 256, 50},
                                   {20, "IQ4_NL", DType::iq4_nl, 32, 18},  {21, "IQ3_S", DType::other, 256, 110},
                                   {22, "IQ2_S", DType::other, 256, 82},   {23, "IQ4_XS", DType::iq4_xs, 256, 136},
                                   {24, "I8", DType::other, 1, 1},         {25, "I16", DType::other, 1, 2},
                                   {26, "I32", DType::i32, 1, 4},          {27, "I64", DType::other, 1, 8},
                                   {28, "F64", DType::other, 1, 8},        {29, "IQ1_M", DType::other, 256, 56},
                                   {30, "BF16", DType::bf16, 1, 2},        {34, "TQ1_0", DType::other, 256, 54},
                                   {35, "TQ2_0", DType::other, 256, 66},   {39, "MXFP4", DType::mxfp4, 32, 17}};

/// Types of which only the name is known, for error messages.
constexpr std::pair<std::uint32_t, const char*> other_types[] = {
    {4, "Q4_2"},      {5, "Q4_3"},      {9, "Q8_1"},        {15, "Q8_K"},       {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
    {40, "NVFP4"},    {41, "Q1_0"},     {42, "Q2_0"}};

/// Reads numbers and texts one after another, never beyond the end.
class Cursor {
 public:
  Cursor(const std::byte* begin, std::uint64_t size, std::string where)
      : begin_(begin), size_(size), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(fmt::format("{}: not a usable GGUF file: {}", where_, what));
  }
  template <class T>
  T number(const char* what) {
    if (size_ - at_ < sizeof(T)) refuse(fmt::format("it ends within {}, at byte {}", what, size_));
    T value;
    std::memcpy(&value, begin_ + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string text(const char* what) {
    const auto length = number<std::uint64_t>(what);
    if (length > std::min(longest_text, size_ - at_)) {
      refuse(fmt::format("{} of {} bytes at byte {}, where {} are left", what, length, at_, size_ - at_));
    }
    std::string out(reinterpret_cast<const char*>(begin_ + at_), length);
    at_ += length;
    return out;
  }
  void skip(std::uint64_t bytes, const char* what) {
    if (bytes > size_ - at_)
      refuse(fmt::format("{} of {} bytes at byte {}, where {} are left", what, bytes, at_, size_ - at_));
    at_ += bytes;
  }
  [[nodiscard]] std::uint64_t at() const { return at_; }
  [[nodiscard]] std::uint64_t left() const { return size_ - at_; }

 private:
  const std::byte* begin_;
  std::uint64_t size_, at_ = 0;
  std::string where_;
};

enum Kind : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, flag, string, list, u64, i64, f64 };

std::uint64_t bytes_of(std::uint32_t kind) {
  switch (kind) {
    case u8:
    case i8:
    case flag:
      return 1;
    case u16:
    case i16:
      return 2;
    case u32:
    case i32:
    case f32:
      return 4;
    case u64:
    case i64:
    case f64:
      return 8;
    default:
      return 0;
  }
}

/// Non-negative whole numbers become unsigned, however the file stores them: readers check for that type.
Json whole(std::int64_t value) {
  return value < 0 ? Json(value) : Json(static_cast<std::uint64_t>(value));
}

Json read_value(Cursor& c, std::uint32_t kind, const std::string& key) {
  constexpr const char* what = "a value";
  switch (kind) {
    case u8:
      return c.number<std::uint8_t>(what);
    case i8:
      return whole(c.number<std::int8_t>(what));
    case u16:
      return c.number<std::uint16_t>(what);
    case i16:
      return whole(c.number<std::int16_t>(what));
    case u32:
      return c.number<std::uint32_t>(what);
    case i32:
      return whole(c.number<std::int32_t>(what));
    case f32:
      return c.number<float>(what);
    case flag:
      return c.number<std::uint8_t>(what) != 0;
    case string:
      return c.text(what);
    case u64:
      return c.number<std::uint64_t>(what);
    case i64:
      return whole(c.number<std::int64_t>(what));
    case f64:
      return c.number<double>(what);
    default:
      c.refuse(fmt::format("metadata \"{}\" is of type {}, which is not known", key, kind));
  }
}

Json read_list(Cursor& c, const std::string& key) {
  const auto kind = c.number<std::uint32_t>("a list");
  const auto count = c.number<std::uint64_t>("a list");
  if (kind == list || kind > f64)
    c.refuse(fmt::format("metadata \"{}\" is a list of type {}, which is not known", key, kind));
  if (count > c.left())
    c.refuse(fmt::format("metadata \"{}\" is a list of {}, where {} bytes are left", key, count, c.left()));
  if (count > Gguf::longest_list) {
    for (std::uint64_t i = 0; kind == string && i < count; ++i) c.skip(c.number<std::uint64_t>("a text"), "a text");
    if (kind != string) c.skip(count * bytes_of(kind), "a list");
    return {{"length", count}};
  }
  Json all = Json::array();
  for (std::uint64_t i = 0; i < count; ++i) all.push_back(read_value(c, kind, key));
  return all;
}

}  // namespace

namespace {

/// Length of a list that is to be read as a whole.
std::uint64_t length_of(Cursor& c, const std::string& name) {
  constexpr std::uint64_t most = 1U << 24U;
  const auto count = c.number<std::uint64_t>("a list");
  if (count > most) c.refuse(fmt::format("metadata \"{}\" is a list of {}, expected at most {}", name, count, most));
  return count;
}

}  // namespace

std::vector<std::string> Gguf::texts(const std::string& name) const {
  std::vector<std::string> all;
  const auto found = lists_.find(name);
  if (found == lists_.end()) return all;
  Cursor c(file_->data(), file_->size(), path_.string());
  c.skip(found->second, "a list");
  if (c.number<std::uint32_t>("a list") != string) c.refuse(fmt::format("metadata \"{}\" has no texts", name));
  all.resize(length_of(c, name));
  for (std::string& text : all) text = c.text("a text");
  return all;
}

std::vector<double> Gguf::numbers(const std::string& name) const {
  std::vector<double> all;
  const auto found = lists_.find(name);
  if (found == lists_.end()) return all;
  Cursor c(file_->data(), file_->size(), path_.string());
  c.skip(found->second, "a list");
  const auto kind = c.number<std::uint32_t>("a list");
  if (bytes_of(kind) == 0) c.refuse(fmt::format("metadata \"{}\" has no numbers", name));
  all.resize(length_of(c, name));
  for (double& n : all) {
    const Json value = read_value(c, kind, name);
    n = value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
  }
  return all;
}

bool is_gguf(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return false;
  char begin[sizeof(magic)] = {};
  const ReadUnderWay watched;
  std::ifstream(path, std::ios::binary).read(begin, sizeof(begin));
  return std::memcmp(begin, magic, sizeof(magic)) == 0;
}

Gguf::Gguf(const std::filesystem::path& path) {
  path_ = path;
  file_ = std::make_unique<MappedFile>(path);
  Cursor c(file_->data(), file_->size(), path.string());
  for (const char m : magic) {
    if (c.number<char>("its first 4 bytes") != m) c.refuse("it does not begin with \"GGUF\"");
  }
  const auto version = c.number<std::uint32_t>("its version");
  if (version != 2 && version != 3) c.refuse(fmt::format("version {}, expected 2 or 3, little-endian", version));
  const auto tensors = c.number<std::uint64_t>("the number of tensors"),
             entries = c.number<std::uint64_t>("the number of metadata");
  if (tensors > most_entries || entries > most_entries) {
    c.refuse(fmt::format("{} tensors and {} metadata, expected at most {} each", tensors, entries, most_entries));
  }
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::string key = c.text("the name of a value");
    const auto kind = c.number<std::uint32_t>("a value");
    if (metadata_.contains(key)) c.refuse(fmt::format("metadata \"{}\" stands twice", key));
    if (kind == list) lists_[key] = c.at();
    metadata_[key] = kind == list ? read_list(c, key) : read_value(c, kind, key);
  }
  std::vector<std::pair<std::uint64_t, Tensor*>> places;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const std::string name = c.text("the name of a tensor");
    if (tensors_.count(name) != 0) c.refuse(fmt::format("tensor \"{}\" stands twice", name));
    const auto dimensions = c.number<std::uint32_t>("a tensor");
    if (dimensions < 1 || dimensions > most_dimensions) {
      c.refuse(fmt::format("tensor \"{}\" has {} dimensions, expected 1 to {}", name, dimensions, most_dimensions));
    }
    Tensor t;
    std::uint64_t elements = 1;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      const auto n = c.number<std::uint64_t>("a tensor");
      if (n == 0 || n > (std::uint64_t{1} << 48U) / elements) {
        c.refuse(fmt::format("tensor \"{}\": dimension {} is {}, expected 1 to 2^48 elements in all", name, d, n));
      }
      elements *= n;
      t.shape.insert(t.shape.begin(), n);
    }
    // A matrix of one row, which some files store as a vector.
    if (dimensions == 1 && name.ends_with("ffn_gate_inp_shexp.weight")) t.shape.insert(t.shape.begin(), 1);
    const auto number = c.number<std::uint32_t>("a tensor");
    const auto* type = std::find_if(std::begin(ggml_types), std::end(ggml_types),
                                    [&](const GgmlType& g) { return g.number == number; });
    for (const auto& [other, called] : other_types) {
      if (other != number) continue;
      throw InputError(fmt::format("{}: tensor \"{}\" is {}, which is not supported", path_.string(), name, called));
    }
    if (type == std::end(ggml_types))
      c.refuse(fmt::format("tensor \"{}\" is of type {}, which is not known", name, number));
    if (t.columns() % type->weights != 0) {
      c.refuse(fmt::format("tensor \"{}\" is {} with {} columns, expected a multiple of {}", name, type->name,
                           t.columns(), type->weights));
    }
    t.dtype = type->type;
    t.dtype_name = type->name;
    t.bytes = elements / type->weights * type->bytes;
    const auto offset = c.number<std::uint64_t>("a tensor");
    places.emplace_back(offset, &tensors_.emplace(name, std::move(t)).first->second);
  }
  std::uint64_t alignment = 32;
  if (metadata_.contains("general.alignment")) {
    const Json& said = metadata_["general.alignment"];
    if (!said.is_number_unsigned() || said == 0 || said > 65536) {
      c.refuse(fmt::format("general.alignment is {}, expected 1 to 65536", json_text(said)));
    }
    alignment = said.get<std::uint64_t>();
  }
  const std::uint64_t data = (c.at() + alignment - 1) / alignment * alignment;
  const std::uint64_t size = data > file_->size() ? 0 : file_->size() - data;
  std::sort(places.begin(), places.end());
  std::uint64_t end = 0;
  for (auto& [offset, tensor] : places) {
    if (offset % alignment != 0 || offset < end || tensor->bytes > size || offset > size - tensor->bytes) {
      c.refuse(fmt::format(
          "a tensor of {} bytes lies at {} of {} bytes of data, expected a multiple of {} behind the tensor "
          "before it, which ends at {}",
          tensor->bytes, offset, size, alignment, end));
    }
    end = offset + tensor->bytes;
    tensor->data = file_->data() + data + offset;
  }
}

bool Gguf::part_rows(const std::string& name, const std::vector<std::pair<std::string, std::uint64_t>>& parts) {
  const Tensor whole = tensors_.at(name);
  std::uint64_t rows = 0;
  for (const auto& [part, count] : parts) {
    rows += count;
    if (count == 0 || tensors_.contains(part)) return false;
  }
  if (whole.shape.empty() || rows != whole.shape[0]) return false;
  const std::uint64_t bytes_each = whole.bytes / rows;
  const std::byte* at = whole.data;
  for (const auto& [part, count] : parts) {
    Tensor t = whole;
    t.shape[0] = count;
    t.data = at;
    t.bytes = count * bytes_each;
    at += t.bytes;
    tensors_.emplace(part, std::move(t));
  }
  tensors_.erase(name);
  return true;
}

}  // namespace ferry::engine
