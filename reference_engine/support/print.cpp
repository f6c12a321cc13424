#include "support/print.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "support/errors.hpp"

namespace ferry::engine {

namespace {

std::FILE* printed = nullptr;  // null: standard output
int failed = 0;                // errno

}  // namespace

void print_to_standard_error() {
  printed = stderr;
}

void print(std::string_view text) {
  if (failed != 0) return;
  std::FILE* file = printed == nullptr ? stdout : printed;
  if (std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0) return;
  if (errno != EPIPE) failed = errno;
}

void check_printed() {
  if (failed != 0) throw InputError(fmt::format("standard output: cannot be written: {}", std::strerror(failed)));
}

}  // namespace ferry::engine
