/// @file
/// Independent pieces of work on several threads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace ferry::engine {

/// One a processor.
std::uint32_t all_threads();

/// work(0) to work(count - 1), each at most once and all of them unless one throws, on up to `threads` threads, of which
/// the caller's is one. What the first to fail threw ends them all, and is passed on.
void on_threads(std::uint32_t threads, std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace ferry::engine
