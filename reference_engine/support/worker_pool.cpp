#include "support/worker_pool.hpp"

#include "support/threads.hpp"

namespace ferry::engine {

WorkerPool::WorkerPool(std::uint32_t threads) {
  set_threads(threads);
}

WorkerPool::~WorkerPool() {
  end_threads();
}

void WorkerPool::set_threads(std::uint32_t threads) {
  end_threads();
  stop_ = false;
  const std::uint32_t all = threads == 0 ? all_threads() : threads;
  threads_.reserve(all - 1);
  for (std::uint32_t i = 1; i < all; ++i) threads_.emplace_back([this] { serve(); });
}

void WorkerPool::end_threads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

void WorkerPool::Job::work_on() {
  // Relaxed: the lock orders what parts read and write; here only the number counts.
  for (std::uint32_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) call(work, part);
}

WorkerPool::Job* WorkerPool::open_job() const {
  Job* job = first_;
  while (job != nullptr && job->next.load(std::memory_order_relaxed) >= job->parts) job = job->behind;
  return job;
}

void WorkerPool::share(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    Job** end = &first_;
    while (*end != nullptr) end = &(*end)->behind;
    *end = &job;
  }
  changed_.notify_all();
  job.work_on();
  std::unique_lock lock(mutex_);
  Job** at = &first_;
  while (*at != &job) at = &(*at)->behind;
  *at = job.behind;
  left_.wait(lock, [&] { return job.helpers == 0; });
}

void WorkerPool::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    Job* job = nullptr;
    changed_.wait(lock, [&] { return stop_ || (job = open_job()) != nullptr; });
    if (stop_) return;
    ++job->helpers;
    lock.unlock();
    job->work_on();
    lock.lock();
    if (--job->helpers == 0) left_.notify_all();
  }
}

}  // namespace ferry::engine
