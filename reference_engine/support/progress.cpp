#include "support/progress.hpp"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "support/clock.hpp"

namespace ferry::engine {

ProgressLine::ProgressLine(std::string what, Nanoseconds quiet)
    : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) != 0), begin_(now_ns()) {
  shown_ = begin_ + quiet - (terminal_ ? 100'000'000 : 2'000'000'000);
}

ProgressLine::~ProgressLine() {
  if (open_) std::fputc('\n', stderr);
}

void ProgressLine::show(std::uint64_t done, std::uint64_t total, double share) {
  const Nanoseconds now = now_ns();
  const bool last = done >= total;
  if (done == 0 || (last && !open_) || (!last && now - shown_ < (terminal_ ? 100'000'000 : 2'000'000'000))) return;
  shown_ = now;
  const double left = static_cast<double>(now - begin_) * 1e-9 * (1 - share) / share;
  std::fprintf(stderr, "%s%s: %llu of %llu, %.0f s left%s", terminal_ ? "\r\033[K" : "", what_.c_str(),
               static_cast<unsigned long long>(done), static_cast<unsigned long long>(total), left,
               terminal_ && !last ? "" : "\n");
  open_ = terminal_ && !last;
}

}  // namespace ferry::engine
