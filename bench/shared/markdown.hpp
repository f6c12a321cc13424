/// @file
/// Tables in Markdown.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

namespace ferry::bench {

/// Rows of cells; the first is the header.
using Rows = std::vector<std::vector<std::string>>;

inline std::string markdown(const Rows& rows) {
  std::string out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out += fmt::format("| {} |\n", fmt::join(rows[i], " | "));
    if (i > 0) continue;
    for (std::size_t c = 0; c < rows[0].size(); ++c) out += "| --- ";
    out += "|\n";
  }
  return out;
}

}  // namespace ferry::bench
