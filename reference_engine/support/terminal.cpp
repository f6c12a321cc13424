#include "support/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace ferry::engine {
namespace {

/// The column where continuation lines begin.
std::size_t indent_of(std::string_view line, std::size_t columns) {
  const std::size_t begin = line.find_first_not_of(' '), gap = line.find("  ", begin);
  if (gap == std::string_view::npos) return begin;
  const std::size_t text = line.find_first_not_of(' ', gap);
  return text == std::string_view::npos || text > columns / 2 ? begin : text;
}

void append_wrapped(std::string& out, std::string_view line, std::size_t columns) {
  if (line.size() <= columns) {
    out += line;
    return;
  }
  const std::size_t indent = indent_of(line, columns);
  for (std::size_t before = 0;;) {  // columns that the indentation takes
    const std::size_t room = columns - before, least = before == 0 ? indent : 0;
    std::size_t at = line.size() <= room ? std::string_view::npos : line.rfind(' ', room);
    if (line.size() > room && (at == std::string_view::npos || at <= least)) at = line.find(' ', least + 1);
    out += line.substr(0, line.find_last_not_of(' ', at) + 1);
    if (at == std::string_view::npos) return;
    line.remove_prefix(std::min(line.find_first_not_of(' ', at), line.size()));
    if (line.empty()) return;
    out += '\n';
    out.append(indent, ' ');
    before = indent;
  }
}

}  // namespace

std::size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return std::max<std::size_t>(size.ws_col, 40);
}

std::string wrapped(const std::string& text, std::size_t columns) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    append_wrapped(out, std::string_view(text).substr(at, end - at), columns);
    if (end < text.size()) out += '\n';
    at = end + 1;
  }
  return out;
}

}  // namespace ferry::engine
