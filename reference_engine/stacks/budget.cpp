#include "stacks/budget.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "support/errors.hpp"

namespace ferry::engine {

std::uint64_t parse_budget(const std::string& text, std::uint64_t all_bytes, const std::string& option) {
  std::size_t end = 0;
  double value = -1;
  try {
    if (!text.empty() && text.find_first_of("xX") == std::string::npos) value = std::stod(text, &end);
  } catch (const std::exception&) {
  }
  std::string unit = text.substr(std::min(text.find_first_not_of(' ', end), text.size()));
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::pair<const char*, double> units[] = {
      {"%", static_cast<double>(all_bytes) / 100},
      {"", 1},
      {"b", 1},
      {"kb", 1e3},
      {"mb", 1e6},
      {"gb", 1e9},
      {"tb", 1e12},
      {"kib", 0x1p10},
      {"mib", 0x1p20},
      {"gib", 0x1p30},
      {"tib", 0x1p40},
  };
  if (unit == "%" && value == 100) return all_bytes;  // to the byte
  for (const auto& [name, factor] : units) {
    const double bytes = value * factor;
    if (unit == name && bytes >= 0 && bytes < 9e18 && end > 0) return static_cast<std::uint64_t>(bytes);
  }
  throw InputError(
      fmt::format("{} {}: expected a share such as 25% or a size such as 8000000, 64MiB or 5 GB", option, text));
}

std::uint64_t parse_chunk(const std::string& text, std::uint64_t expert_bytes) {
  constexpr std::uint64_t large = 1'000'000'000'000'000;  // so large that only 0% of it is 0
  const bool is_none = parse_budget(text, large, "--prefetch-chunk") == 0;
  return is_none ? 0 : std::max<std::uint64_t>(parse_budget(text, expert_bytes), 1);
}

}  // namespace ferry::engine
