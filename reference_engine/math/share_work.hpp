/// @file
/// Arithmetic cut into parts for a pool of threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "support/worker_pool.hpp"

namespace ferry::engine {

/// Computes items 0 to `items` - 1: work(first, end) for stretches of them, each once, on as many threads as pay. A
/// stretch begins at a multiple of `together` items. `products`: multiplications that all of them take. `workers` may
/// be null.
template <class Work>
void share_work(WorkerPool* workers, std::uint32_t items, std::uint32_t together, std::uint64_t products,
                const Work& work) {
  // What a part takes at least: some 10 us, since waking a thread takes as long.
  constexpr std::uint64_t worth_a_thread = std::uint64_t{1} << 17U;
  // More parts than threads: a core that does something else, too, takes fewer.
  constexpr std::uint32_t parts_a_thread = 4;
  const std::uint32_t threads = workers == nullptr ? 1 : workers->threads();
  const auto parts = static_cast<std::uint32_t>(
      std::min({products / worth_a_thread, std::uint64_t{threads} * parts_a_thread, std::uint64_t{items / together}}));
  if (threads == 1 || parts <= 1) {
    work(0U, items);
    return;
  }
  const std::uint32_t each = (items / parts + together - 1) / together * together;
  workers->run((items + each - 1) / each,
               [&](std::uint32_t part) { work(part * each, std::min(items, (part + 1) * each)); });
}

}  // namespace ferry::engine
