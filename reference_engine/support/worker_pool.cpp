#include "support/worker_pool.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "support/errors.hpp"
#include "support/threads.hpp"

namespace ferry::engine {
namespace {

/// The processors that this process may use.
std::vector<int> processors() {
  cpu_set_t set;
  std::vector<int> all;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    throw InputError(fmt::format("cannot see which processors there are for pinned threads: {}", std::strerror(errno)));
  }
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) all.push_back(i);
  }
  return all;
}

void pin(std::thread& thread, int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  const int error = pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
  if (error == 0) return;
  throw InputError(fmt::format("cannot pin a thread to processor {}: {}", processor, std::strerror(error)));
}

}  // namespace

WorkerPool::WorkerPool(std::uint32_t threads) {
  set_threads(threads);
}

WorkerPool::~WorkerPool() {
  end_threads();
}

void WorkerPool::set_threads(std::uint32_t threads, bool pinned) {
  end_threads();
  stop_ = false;
  const std::uint32_t all = threads == 0 ? all_threads() : threads;
  lingers_ = all <= all_threads();
  const std::vector<int> places = pinned ? processors() : std::vector<int>{};
  threads_.reserve(all - 1);
  all_ = all;
  try {
    for (std::uint32_t i = 1; i < all; ++i) {
      threads_.emplace_back([this] { serve(); });
      if (pinned) pin(threads_.back(), places[i % places.size()]);
    }
  } catch (...) {
    end_threads();
    throw;
  }
}

void WorkerPool::end_threads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    ++calls_;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  all_ = 1;
}

void WorkerPool::Job::work_on() {
  // Relaxed: the lock orders the data that parts read and write; this only hands out numbers.
  for (std::uint32_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) call(work, part);
}

void WorkerPool::Job::help(const WorkerPool& pool) {
  while (pool.has_place(true)) {
    const std::uint32_t part = next.fetch_add(1, std::memory_order_relaxed);
    if (part >= parts) return;
    call(work, part);
  }
}

void WorkerPool::Job::fail(std::exception_ptr why) {
  if (!failed) failed = std::move(why);
  next = parts;
}

WorkerPool::Job* WorkerPool::open_job() const {
  Job* job = has_place(false) ? first_ : nullptr;
  while (job != nullptr && job->next.load(std::memory_order_relaxed) >= job->parts) job = job->behind;
  return job;
}

template <class Done>
void WorkerPool::linger(const Done& done) const {
  if (!lingers_) return;
  constexpr std::chrono::microseconds most(200);
  const auto until = std::chrono::steady_clock::now() + most;
  while (!done() && std::chrono::steady_clock::now() < until) std::this_thread::yield();  // others may need the core
}

void WorkerPool::share(Job& job) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    Job** end = &first_;
    while (*end != nullptr) end = &(*end)->behind;
    *end = &job;
    ++calls_;
    ++at_work_;
    wake = asleep_ > 0;
  }
  if (wake) changed_.notify_all();
  std::exception_ptr failed;
  try {
    job.work_on();
  } catch (...) {
    failed = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    if (failed) job.fail(failed);
    Job** at = &first_;
    while (*at != &job) at = &(*at)->behind;
    *at = job.behind;
  }
  leave();
  linger([&] { return job.helpers == 0; });
  std::unique_lock lock(mutex_);  // the last helper may still use `job` under this lock
  left_.wait(lock, [&] { return job.helpers == 0; });
  if (job.failed) std::rethrow_exception(job.failed);
}

void WorkerPool::leave() {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    --at_work_;
    if (open_job() != nullptr) {  // another caller's job, which had to wait for a place
      ++calls_;
      wake = asleep_ > 0;
    }
  }
  if (wake) changed_.notify_all();
}

void WorkerPool::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    Job* job = open_job();
    if (job == nullptr && !stop_) {
      const std::uint32_t seen = calls_;
      lock.unlock();
      linger([&] { return calls_ != seen; });
      lock.lock();
      ++asleep_;
      changed_.wait(lock, [&] { return stop_ || (job = open_job()) != nullptr; });
      --asleep_;
    }
    if (stop_) return;
    ++job->helpers;
    ++at_work_;
    lock.unlock();
    std::exception_ptr failed;
    try {
      job->help(*this);
    } catch (...) {
      failed = std::current_exception();
    }
    lock.lock();
    if (failed) job->fail(failed);
    --at_work_;
    if (--job->helpers == 0) left_.notify_all();
  }
}

}  // namespace ferry::engine
