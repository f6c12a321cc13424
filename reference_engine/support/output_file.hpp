/// @file
/// Files that are whole or not there.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ferry::engine {

/// The file that writing to `path` would make or replace: behind all links, also one whose target is not there yet.
/// Throws InputError for links in a circle.
std::filesystem::path file_behind(const std::filesystem::path& path);

/// Refuses an output that is one of the inputs, or named twice. Throws InputError.
void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

/// What files of a kind have in common, so that others are not replaced by one.
struct FileKind {
  const char* name;    ///< "a trace of ferry"
  const char* begins;  ///< how each begins
  const char* has;     ///< and what stands somewhere in its first MiB
};

/// Throws InputError if a file is there that is neither empty nor of that kind.
void check_replaceable(const std::filesystem::path& path, const FileKind& kind);

/// A file that appears whole or not at all; a link stays a link. The name "-" is standard output: what a command says
/// to people then goes to standard error. The constructor throws InputError if it could not
/// be written, or is there and no regular file (a device, a pipe), or of another kind.
class OutputFile {
 public:
  /// What is written before it takes its place has no name, where the file system can have such files, or a random one.
  enum class Names { none, random };

  OutputFile(const std::filesystem::path& path, const FileKind& kind, Names names = Names::none);
  /// Replaces any regular file.
  explicit OutputFile(const std::filesystem::path& path, Names names = Names::none);

  /// Puts the file in place, these parts one after another. Throws InputError if the disk refuses.
  void commit(const std::vector<std::string_view>& parts);
  void commit(const std::string& content) { commit(std::vector<std::string_view>{content}); }

 private:
  std::string name_;
  std::filesystem::path path_;  ///< empty: standard output
  Names names_;
};

}  // namespace ferry::engine
