/// @file
/// Tensors of files: their types, and what becomes of them in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ferry/codec/blocks.hpp"
#include "ferry/codec/pass_through.hpp"
#include "support/mapped_file.hpp"

namespace ferry::engine {

/// Types of numbers, and of blocks of them. `f8_e4m3` and `u8` are only in files: weights of the first become `fp8`, with the
/// scales that stand beside them.
enum class DType {
  bf16,
  f16,
  f32,
  i32,
  f8_e4m3,
  u8,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  mxfp4,
  fp8,
  other
};

/// "bf16", "q4_k", ...
const char* name_of(DType type);
/// Whether weights lie so in memory.
bool holds_weights(DType type);

/// How a matrix at a checkpoint's own precision lies in memory.
using PlainLayout = std::variant<PassThroughLayout, BlockLayout>;
/// Of a type that holds weights.
PlainLayout plain_layout(DType type, std::uint32_t rows, std::uint32_t columns);
std::uint64_t bytes_of(const PlainLayout& layout);

/// One tensor inside a mapped file. `data` need not be aligned.
struct Tensor {
  DType dtype = DType::other;
  std::string dtype_name;
  std::vector<std::uint64_t> shape;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;  ///< in the file
  const Tensor* scales =
      nullptr;  ///< of f8_e4m3: one for each 128 rows and 128 columns of a matrix, or one for all of it

  [[nodiscard]] std::uint64_t elements() const;
  /// As a matrix: the last dimension is columns, all before it are rows.
  [[nodiscard]] std::uint64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  [[nodiscard]] std::uint64_t rows() const { return columns() == 0 ? 0 : elements() / columns(); }
  /// The type in memory: of f8_e4m3 fp8, of others their own.
  [[nodiscard]] DType stored() const { return dtype == DType::f8_e4m3 ? DType::fp8 : dtype; }
  /// Bytes in memory, of a type that holds weights there.
  [[nodiscard]] std::uint64_t stored_bytes() const;
  /// Writes `stored_bytes()`.
  void copy_stored(std::byte* to) const;
  /// All elements as floats. Throws InputError for types that hold no weights.
  [[nodiscard]] std::vector<float> to_floats() const;
};

/// Of bf16, f16 and f32. Throws InputError for others, naming the tensor.
FloatType float_type(const Tensor& tensor, const std::string& name);

/// A file with tensors.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  TensorFile() = default;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  [[nodiscard]] const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Copies bytes of one of the tensors, as MappedFile::read does.
  void read(const Tensor& tensor, std::byte* to, const std::string& name) const;
  /// As MappedFile::forget does.
  void forget(const Tensor& tensor) const noexcept { file_->forget(tensor.data, tensor.bytes); }
  /// As MappedFile's.
  void check_unchanged() const { file_->check_unchanged(); }
  [[nodiscard]] const FileIdentity& identity() const { return file_->identity(); }
  /// All that it holds, tensors and what stands before them.
  [[nodiscard]] std::span<const std::byte> content() const { return {file_->data(), file_->size()}; }
  /// Throws InputError if there is none of that name.
  [[nodiscard]] const Tensor& at(const std::string& name) const;
  /// Says of a tensor where its scales are.
  void set_scales(const std::string& name, const Tensor& scales) { tensors_.at(name).scales = &scales; }

 protected:
  std::filesystem::path path_;
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace ferry::engine
