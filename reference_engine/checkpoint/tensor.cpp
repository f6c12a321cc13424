#include "checkpoint/tensor.hpp"

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint64_t scaled = 128;  // rows and columns of f8_e4m3 with one scale

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

/// Writes rows of f8_e4m3 with a scale before each 128 columns of a row. There are `matrices` matrices of `rows` rows each.
/// A matrix has one scale, or one for each block of 128 rows and 128 columns.
void interleave_scales(const std::byte* codes, const std::vector<float>& scales, std::uint64_t matrices,
                       std::uint64_t rows, std::uint64_t columns, std::byte* to) {
  const std::uint64_t blocks = (columns + scaled - 1) / scaled, block_rows = (rows + scaled - 1) / scaled;
  const bool one_each = scales.size() == matrices;
  for (std::uint64_t r = 0; r < matrices * rows; ++r) {
    const float* own = &scales[one_each ? r / rows : (r / rows * block_rows + r % rows / scaled) * blocks];
    for (std::uint64_t b = 0; b < blocks; ++b, to += block_bytes(BlockType::fp8)) {
      const std::uint64_t count = std::min(scaled, columns - b * scaled);
      std::memcpy(to, own + (one_each ? 0 : b), sizeof(float));
      std::memcpy(to + sizeof(float), codes + r * columns + b * scaled, count);
      std::memset(to + sizeof(float) + count, 0, scaled - count);
    }
  }
}

}  // namespace

const char* name_of(DType type) {
  static constexpr const char* names[] = {"bf16", "f16",  "f32",    "i32",    "f8_e4m3", "u8",   "q8_0",
                                          "q4_0", "q4_1", "q5_0",   "q5_1",   "q2_k",    "q3_k", "q4_k",
                                          "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",   "fp8",  "other"};
  return names[static_cast<int>(type)];
}

bool holds_weights(DType type) {
  switch (type) {
    case DType::i32:
    case DType::f8_e4m3:
    case DType::u8:
    case DType::other:
      return false;
    default:
      return true;
  }
}

PlainLayout plain_layout(DType type, std::uint32_t rows, std::uint32_t columns) {
  switch (type) {
    case DType::bf16:
      return PassThroughLayout{rows, columns, FloatType::bf16};
    case DType::f16:
      return PassThroughLayout{rows, columns, FloatType::f16};
    case DType::q8_0:
      return BlockLayout{rows, columns, BlockType::q8_0};
    case DType::q4_0:
      return BlockLayout{rows, columns, BlockType::q4_0};
    case DType::q4_1:
      return BlockLayout{rows, columns, BlockType::q4_1};
    case DType::q5_0:
      return BlockLayout{rows, columns, BlockType::q5_0};
    case DType::q5_1:
      return BlockLayout{rows, columns, BlockType::q5_1};
    case DType::q2_k:
      return BlockLayout{rows, columns, BlockType::q2_k};
    case DType::q3_k:
      return BlockLayout{rows, columns, BlockType::q3_k};
    case DType::iq4_nl:
      return BlockLayout{rows, columns, BlockType::iq4_nl};
    case DType::iq4_xs:
      return BlockLayout{rows, columns, BlockType::iq4_xs};
    case DType::q4_k:
      return BlockLayout{rows, columns, BlockType::q4_k};
    case DType::q5_k:
      return BlockLayout{rows, columns, BlockType::q5_k};
    case DType::q6_k:
      return BlockLayout{rows, columns, BlockType::q6_k};
    case DType::mxfp4:
      return BlockLayout{rows, columns, BlockType::mxfp4};
    case DType::fp8:
      return BlockLayout{rows, columns, BlockType::fp8};
    default:
      return PassThroughLayout{rows, columns, FloatType::f32};
  }
}

std::uint64_t bytes_of(const PlainLayout& layout) {
  return std::visit([](const auto& l) { return l.bytes(); }, layout);
}

std::uint64_t Tensor::elements() const {
  std::uint64_t n = 1;
  for (const std::uint64_t d : shape) n *= d;
  return n;
}

std::uint64_t Tensor::stored_bytes() const {
  if (dtype != DType::f8_e4m3) return bytes;
  return rows() * ((columns() + scaled - 1) / scaled) * block_bytes(BlockType::fp8);
}

void Tensor::copy_stored(std::byte* to) const {
  if (dtype != DType::f8_e4m3) {
    std::memcpy(to, data, bytes);
  } else {
    const std::uint64_t of_each = shape.size() < 2 ? 1 : shape[shape.size() - 2];
    const std::uint64_t matrices = rows() / of_each, count = scales->elements();
    const std::uint64_t blocks = ((of_each + scaled - 1) / scaled) * ((columns() + scaled - 1) / scaled);
    if (count != matrices && count != matrices * blocks)
      throw std::logic_error("scales that do not belong to a tensor");
    interleave_scales(data, scales->to_floats(), matrices, of_each, columns(), to);
  }
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
      break;
  }
  if (!holds_weights(stored()) || (dtype == DType::f8_e4m3 && scales == nullptr)) {
    throw InputError(fmt::format("a tensor of type {} cannot be read as weights", dtype_name));
  }
  std::vector<std::byte> own;
  const std::byte* from = data;
  if (dtype == DType::f8_e4m3) {
    own.resize(stored_bytes());
    copy_stored(own.data());
    from = own.data();
  }
  const auto m = std::get<BlockLayout>(
      plain_layout(stored(), static_cast<std::uint32_t>(rows()), static_cast<std::uint32_t>(columns())));
  std::vector<float> out(elements());
  for (std::uint32_t r = 0; r < m.rows; ++r) unpack_row(m, from, r, out.data() + std::size_t{r} * m.columns);
  return out;
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

void TensorFile::read(const Tensor& tensor, std::byte* to, const std::string& name) const {
  file_->read(tensor.data, tensor.bytes, to, fmt::format("{}: tensor \"{}\"", path_.string(), name));
}

const Tensor& TensorFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw InputError(fmt::format("{}: tensor \"{}\" is missing", path_.string(), name));
  return found->second;
}

}  // namespace ferry::engine
