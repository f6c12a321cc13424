#include "stacks/budget.hpp"

#include <fmt/format.h>

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
  const std::string unit = text.substr(end);
  const std::pair<const char*, double> units[] = {{"%", static_cast<double>(all_bytes) / 100},
                                                  {"", 1},
                                                  {"KiB", 1024.0},
                                                  {"MiB", 1024.0 * 1024},
                                                  {"GiB", 1024.0 * 1024 * 1024}};
  for (const auto& [name, factor] : units) {
    const double bytes = value * factor;
    if (unit == name && bytes >= 0 && bytes < 9e18 && end > 0) return static_cast<std::uint64_t>(bytes);
  }
  throw InputError(fmt::format("{} {}: expected a share such as 25% or a size such as 8000000 or 64MiB", option, text));
}

}  // namespace ferry::engine
