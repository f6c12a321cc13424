/// @file
/// The weights of a model.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/tensor.hpp"

namespace ferry::engine {

struct ModelConfig;

/// The weights of a model folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names. Or of a GGUF
/// file and the shards beside it, by the names that a folder would have.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& model);

  /// The file with a tensor of that name; null if there is none.
  [[nodiscard]] const TensorFile* find(const std::string& name) const;
  /// The tensor of that name; null if there is none.
  [[nodiscard]] const Tensor* tensor(const std::string& name) const;
  /// Throws InputError, naming the tensor, if it is missing, its shape differs or it holds no weights. `may_halve`: if its
  /// matrices are of FP8, the two halves of each may have a scale of their own.
  [[nodiscard]] const Tensor& at(const std::string& name, const std::vector<std::uint64_t>& shape,
                                 bool may_halve = false) const;
  /// The same of any type.
  [[nodiscard]] const Tensor& raw(const std::string& name, const std::vector<std::uint64_t>& shape) const;
  /// Name of the tensor with the scales of one of f8_e4m3.
  static std::string scales_of(const std::string& name);
  /// Copies a tensor as it lies in memory (Tensor::stored), reading the file. Throws InputError, naming both.
  void read(const std::string& name, const std::vector<std::uint64_t>& shape, std::byte* to) const;
  /// The same for `bytes` of it from `first` on, which it must have. Not for f8_e4m3.
  void read(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint64_t first, std::uint64_t bytes,
            std::byte* to) const;
  /// Bytes of a tensor of any type, as they lie in the file.
  void read_raw(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint64_t first,
                std::uint64_t bytes, std::byte* to) const;
  /// Lets go of a tensor's memory, until somebody looks at it again. A name that is not there is nothing.
  void forget(const std::string& name) const noexcept;
  /// Throws InputError, naming the file, if one of them was written to since it was opened, or replaced.
  void check_unchanged() const;
  /// The files that hold it, as they were when they were opened.
  [[nodiscard]] std::vector<std::pair<std::filesystem::path, FileIdentity>> files() const;
  /// Bytes in memory of all tensors that hold weights.
  [[nodiscard]] std::uint64_t weight_bytes() const;
  /// Names of the tensors that nobody has asked for by `at` or `read`, in the order of the alphabet.
  [[nodiscard]] std::vector<std::string> unread() const;

 private:
  void open_folder();
  void pair_scales();

  std::filesystem::path path_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  struct Place {
    TensorFile* file;
    std::string name;  ///< in the file
  };
  std::map<std::string, Place> where_;
  mutable std::set<std::string> read_;
};

/// Makes the config use the names inside transformers, if the checkpoint does and lacks the family's own.
void take_names(const Checkpoint& checkpoint, ModelConfig& config);

/// The gate's matrix [experts, hidden] of a layer with experts; where it has scales, each column is multiplied by its own, and
/// divided by sqrt(hidden).
std::vector<float> scaled_gate(const Checkpoint& checkpoint, const ModelConfig& config, std::uint32_t moe_layer);

}  // namespace ferry::engine
