/// @file
/// Reads safetensors files, which come from strangers: everything is checked before use. And writes them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor.hpp"
#include "support/output_file.hpp"

namespace ferry::engine {

/// One safetensors file: its tensors by name, and `__metadata__`.
///
/// Refused with an InputError that names the file and tensor: a header that is longer than the file, not JSON
/// or not UTF-8, has a name twice, offsets that are negative, outside, overlapping or leaving holes, a shape
/// that overflows or does not match its bytes.
class Safetensors final : public TensorFile {
 public:
  explicit Safetensors(const std::filesystem::path& path, MappedFile::Hold hold = MappedFile::Hold::mapped);

  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::map<std::string, std::string> metadata_;
};

/// Tensors on their way into a file, in the order in which they are added: those of the widest type first, so that each
/// begins at a multiple of its own. The bytes of each stay where they are until `commit`.
class SafetensorsWriter {
 public:
  void add(const std::string& name, const char* dtype, const std::vector<std::uint64_t>& shape, std::string_view bytes);
  /// A value `unsealed` of "xxh3" becomes the checksum of the file. Throws InputError if the disk refuses.
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
