#include "support/suggest.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

/// Levenshtein distance.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(const std::string& kind, const std::string& name, const std::vector<std::string>& known) {
  const std::string shown = name.substr(0, 60);
  const std::string* nearest = nullptr;
  std::size_t best = 0;
  for (const std::string& k : known) {
    const std::size_t d = distance(shown, k);
    if (d > 2 && 2 * d > std::max(shown.size(), k.size()) && (shown.empty() || k.find(shown) == std::string::npos))
      continue;
    if (nearest != nullptr && d >= best) continue;
    nearest = &k;
    best = d;
  }
  const std::string unknown = fmt::format("unknown {} \"{}\"", kind, shown);
  return nearest == nullptr ? unknown : fmt::format("{}: did you mean \"{}\"?", unknown, *nearest);
}

std::string unknown_name(const std::string& kind, const std::string& name, const std::vector<std::string>& known) {
  return fmt::format("{} ({})", nearest_name(kind, name, known), fmt::join(known, ", "));
}

void refuse_file_as_name(const std::string& kind, const std::string& name) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(name, none)) return;
  throw InputError(fmt::format("unknown {} \"{}\": to name the file that is here, write ./{}", kind, name, name));
}

}  // namespace ferry::engine
