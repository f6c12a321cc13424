/// @file
/// Reads safetensors files, which come from strangers: everything is checked before use. And writes them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/codec/pass_through.hpp"
#include "ferry/model.hpp"
#include "support/mapped_file.hpp"
#include "support/output_file.hpp"

namespace ferry::engine {

enum class DType { bf16, f16, f32, i32, other };

/// One tensor inside a mapped file. `data` need not be aligned.
struct Tensor {
  DType dtype = DType::other;
  std::string dtype_name;
  std::vector<std::uint64_t> shape;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;

  [[nodiscard]] std::uint64_t elements() const;
  /// All elements as floats (bf16, f16, f32 only).
  [[nodiscard]] std::vector<float> to_floats() const;
};

/// Of bf16, f16 and f32. Throws InputError for others, naming the tensor.
FloatType float_type(const Tensor& tensor, const std::string& name);

/// One safetensors file: its tensors by name, and `__metadata__`.
///
/// Refused with an InputError that names the file and tensor: a header that is longer than the file, not JSON
/// or not UTF-8, has a name twice, offsets that are negative, outside, overlapping or leaving holes, a shape
/// that overflows or does not match its bytes.
class Safetensors {
 public:
  explicit Safetensors(const std::filesystem::path& path);

  [[nodiscard]] const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Copies the bytes of one of the tensors, as MappedFile::read does.
  void read(const Tensor& tensor, std::byte* to, const std::string& name) const;
  /// Throws InputError if there is none of that name.
  [[nodiscard]] const Tensor& at(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// The weights of a model folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder);

  /// The file with a tensor of that name; null if there is none.
  [[nodiscard]] const Safetensors* find(const std::string& name) const;
  /// The tensor of that name; null if there is none.
  [[nodiscard]] const Tensor* tensor(const std::string& name) const;
  /// Throws InputError, naming the tensor, if it is missing or its shape differs.
  [[nodiscard]] const Tensor& at(const std::string& name, const std::vector<std::uint64_t>& shape) const;
  /// Copies the bytes of a tensor, reading the file. Throws InputError, naming both.
  void read(const std::string& name, const std::vector<std::uint64_t>& shape, std::byte* to) const;
  /// Of them `bytes` from `first` on, which it has.
  void read(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint64_t first, std::uint64_t bytes,
            std::byte* to) const;
  /// The files that hold it.
  [[nodiscard]] std::vector<std::filesystem::path> files() const;
  /// Names of the tensors that nobody has asked for by `at` or `read`, in the order of the alphabet.
  [[nodiscard]] std::vector<std::string> unread() const;

 private:
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<Safetensors>> files_;
  std::map<std::string, const Safetensors*> where_;
  mutable std::set<std::string> read_;
};

/// Tensors on their way into a file, in the order in which they are added: those of the widest type first, so that each
/// begins at a multiple of its own. The bytes of each stay where they are until `commit`.
class SafetensorsWriter {
 public:
  void add(const std::string& name, const char* dtype, const std::vector<std::uint64_t>& shape, std::string_view bytes);
  /// Throws InputError if the disk refuses.
  void commit(OutputFile& out, const std::map<std::string, std::string>& metadata) const;

 private:
  struct Entry {
    std::string name;
    const char* dtype;
    std::vector<std::uint64_t> shape;
    std::string_view bytes;
  };

  std::vector<Entry> tensors_;
};

}  // namespace ferry::engine
