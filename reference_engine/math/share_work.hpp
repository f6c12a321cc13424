/// @file
/// Arithmetic cut into parts for a pool of threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "support/worker_pool.hpp"

namespace ferry::engine {

/// How many parts `products` multiplications are cut into: as many as pay.
inline std::uint32_t parts_of(const WorkerPool* workers, std::uint64_t products) {
  // What a part takes at least: some 10 us, since waking a thread takes as long.
  constexpr std::uint64_t worth_a_thread = std::uint64_t{1} << 17U;
  // More parts than threads: a core that does something else, too, takes fewer.
  constexpr std::uint32_t parts_a_thread = 4;
  if (workers == nullptr || workers->threads() == 1) return 1;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(products / worth_a_thread, 1, std::uint64_t{workers->threads()} * parts_a_thread));
}

/// Computes items 0 to `items` - 1: work(first, end) for stretches of them, each once, on as many threads as pay.
/// `products`: multiplications that all of them take. `workers` may be null.
template <class Work, class Count>
void share_work(WorkerPool* workers, Count items, std::uint64_t products, const Work& work) {
  const std::uint64_t parts = std::min<std::uint64_t>(parts_of(workers, products), items);
  if (parts <= 1) {
    work(Count{0}, items);
    return;
  }
  workers->run(static_cast<std::uint32_t>(parts), [&](std::uint32_t part) {
    work(static_cast<Count>(items * std::uint64_t{part} / parts),
         static_cast<Count>(items * std::uint64_t{part + 1} / parts));
  });
}

}  // namespace ferry::engine
