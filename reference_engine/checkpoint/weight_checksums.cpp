#include "checkpoint/weight_checksums.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "support/checksum.hpp"
#include "support/errors.hpp"
#include "support/mapped_file.hpp"

namespace ferry::engine {
namespace {

/// Checksums of all files, in order; fewer if `progress` stops it.
std::vector<std::string> checksums_of(const Checkpoint& checkpoint, const ByteProgress& progress) {
  constexpr std::uint64_t piece = 4U << 20U;
  std::uint64_t all = 0, done = 0;
  for (const auto& [path, was] : checkpoint.files()) all += was.bytes;
  std::vector<std::string> sums;
  std::vector<std::byte> bytes(piece);
  for (const auto& [path, was] : checkpoint.files()) {
    const MappedFile file(path);
    if (!(file.identity() == was)) throw InputError(fmt::format("{}: has changed meanwhile", path.string()));
    WideChecksum sum;
    for (std::uint64_t at = 0; at < file.size();) {
      if (!progress(done, all)) return sums;
      const std::uint64_t n = std::min(piece, file.size() - at);
      file.read(file.data() + at, n, bytes.data(), path.string());
      sum.add(bytes.data(), n);
      at += n;
      done += n;
    }
    sums.push_back(sum.digits());
  }
  progress(done, all);
  return sums;
}

/// The list's entries: checksums by file name.
std::map<std::string, std::string> listed(const std::filesystem::path& list) {
  const MappedFile file(list, MappedFile::Hold::copied);
  std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  std::map<std::string, std::string> all;
  constexpr std::size_t digits = 32;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool good = line.size() > digits + 2 && line.find_first_not_of("0123456789abcdef") == digits &&
                      line[digits] == ' ' && (line[digits + 1] == ' ' || line[digits + 1] == '*');
    if (!good) {
      throw InputError(
          fmt::format("{}: line {}: expected 32 digits, two spaces and a file's name, as xxh128sum writes "
                      "them",
                      list.string(), number));
    }
    const std::string name = std::filesystem::path(line.substr(digits + 2)).filename().string();
    const auto [found, fresh] = all.try_emplace(name, line.substr(0, digits));
    if (!fresh && found->second != line.substr(0, digits)) {
      throw InputError(fmt::format("{}: line {}: {} stands twice", list.string(), number, name));
    }
  }
  return all;
}

}  // namespace

std::string weight_checksums(const Checkpoint& checkpoint, const ByteProgress& progress) {
  const std::vector<std::string> sums = checksums_of(checkpoint, progress);
  const auto files = checkpoint.files();
  if (sums.size() < files.size()) return "";
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    text += fmt::format("{}  {}\n", sums[i], files[i].first.filename().string());
  }
  return text;
}

void check_weight_checksums(const Checkpoint& checkpoint, const std::filesystem::path& list,
                            const ByteProgress& progress) {
  const std::map<std::string, std::string> expected = listed(list);
  const auto files = checkpoint.files();
  for (const auto& [path, was] : files) {  // before anything large is read
    if (expected.contains(path.filename().string())) continue;
    throw InputError(fmt::format("{}: has no line for {}: expected one for each of the model's {} weight files",
                                 list.string(), path.filename().string(), files.size()));
  }
  const std::vector<std::string> sums = checksums_of(checkpoint, progress);
  std::vector<std::string> damaged;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i] != expected.at(files[i].first.filename().string())) damaged.push_back(files[i].first.string());
  }
  if (damaged.empty()) return;
  throw InputError(fmt::format("{}: {} not what {} says: copy or download {} anew", fmt::join(damaged, ", "),
                               damaged.size() == 1 ? "is" : "are", list.string(), damaged.size() == 1 ? "it" : "them"));
}

}  // namespace ferry::engine
