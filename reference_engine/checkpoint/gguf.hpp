/// @file
/// Reads GGUF files, which come from strangers: everything is checked before use.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/tensor.hpp"
#include "support/json.hpp"

namespace ferry::engine {

/// One GGUF file, of version 2 or 3, little-endian: its tensors by name, and its metadata.
///
/// Shapes are as elsewhere, the last dimension the one whose elements are adjacent (GGUF has it first). Metadata is an object of
/// numbers, flags, texts and lists; lists that are longer than `longest_list` (vocabularies) are there as their length alone.
///
/// Refused with an InputError that names the file and what is wrong: what is cut short, counts and lengths beyond the file,
/// names twice, types that are not known, shapes that overflow, data outside the file, misaligned or overlapping.
class Gguf final : public TensorFile {
 public:
  static constexpr std::uint64_t longest_list = 4096;

  explicit Gguf(const std::filesystem::path& path);

  [[nodiscard]] const Json& metadata() const { return metadata_; }
  /// A list of the metadata, however long; nothing if there is none of that name. Throws InputError if it holds anything else.
  [[nodiscard]] std::vector<std::string> texts(const std::string& name) const;
  [[nodiscard]] std::vector<double> numbers(const std::string& name) const;

  /// Puts tensors made of a matrix's rows, or a vector's elements, in its place, in the order of `parts`. False, and nothing is
  /// done, if it has another number of them, if a part has none, or if there is a tensor of one of these names.
  bool part_rows(const std::string& name, const std::vector<std::pair<std::string, std::uint64_t>>& parts);

 private:
  Json metadata_ = Json::object();
  std::map<std::string, std::uint64_t> lists_;  ///< byte at which each begins
};

/// Whether `path` is a file that begins as GGUF files do.
bool is_gguf(const std::filesystem::path& path);

}  // namespace ferry::engine
