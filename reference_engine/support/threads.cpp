#include "support/threads.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ferry::engine {

std::uint32_t all_threads() {
  return std::max(1U, std::thread::hardware_concurrency());
}

void on_threads(std::uint32_t threads, std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failed;
  auto serve = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failed) failed = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (std::size_t t = 1; t < std::min<std::size_t>(threads, count); ++t) others.emplace_back(serve);
    } catch (...) {
      next = count;  // ends the threads that were started
      throw;
    }
    serve();
  }
  if (failed) std::rethrow_exception(failed);
}

}  // namespace ferry::engine
