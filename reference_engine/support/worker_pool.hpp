/// @file
/// Threads that share the arithmetic of a step.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ferry::engine {

/// Threads beside the callers'. They sleep while there is nothing to do, and a pool of one thread has none at all. After
/// a job they look for the next one a while before they sleep, since waking one takes longer than many a job: but not
/// where they are more than processors.
///
/// Any thread may call `run`, several at a time: each caller works on its own job until that is done, the pool's threads
/// on whichever has parts left, the oldest first. Callers take the places of the pool's threads, which stop behind the
/// part that they are at: so a host thread and a device that is a CPU share the cores, and no more threads than `threads`
/// are at work for longer than a part. Where more call than that, only callers work.
class WorkerPool {
 public:
  /// `threads`: the caller's among them. 0: one a processor.
  explicit WorkerPool(std::uint32_t threads = 1);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] std::uint32_t threads() const { return all_; }
  /// Ends the threads there are, and makes so many. While nobody is in `run`. `pinned`: each but the callers' stays on a
  /// processor of its own among those that this process may use, or shares one where there are fewer. Throws InputError
  /// if the system does not let it.
  void set_threads(std::uint32_t threads, bool pinned = false);

  /// work(0) to work(parts - 1), each once, in any order and on any of the threads; returns when all are done. What was
  /// written before is seen by the parts, and what they wrote by the caller. `work` does not call `run`. If one
  /// part throws, no more are begun, and `run` throws that once those that were begun are done. Allocates nothing.
  template <class Work>
  void run(std::uint32_t parts, const Work& work) {
    if (parts <= 1 || threads_.empty()) {
      for (std::uint32_t i = 0; i < parts; ++i) work(i);
      return;
    }
    Job job{[](const void* w, std::uint32_t part) { (*static_cast<const Work*>(w))(part); }, &work, parts};
    share(job);
  }

  /// Another thread is at work, without `run`, until `leave`: it takes the place of one of the pool's.
  void enter() { ++at_work_; }
  void leave();

 private:
  struct Job {
    void (*call)(const void* work, std::uint32_t part);
    const void* work;
    std::uint32_t parts;
    std::atomic<std::uint32_t> next{0};     ///< the first part that nobody has taken
    std::atomic<std::uint32_t> helpers{0};  ///< threads of the pool that are at it; raised under the lock
    Job* behind = nullptr;                  ///< the job that came after it
    std::exception_ptr failed = nullptr;    ///< what the first part that failed threw; under the lock

    void work_on();
    /// The same for a thread of the pool, while it has a place.
    void help(const WorkerPool& pool);
    /// Nobody begins another part.
    void fail(std::exception_ptr why);
  };

  void end_threads();
  /// Looks until `done` is true, for a while at most.
  template <class Done>
  void linger(const Done& done) const;
  void share(Job& job);
  void serve();
  /// Whether a thread of the pool may work; `self`: it does, and may go on.
  [[nodiscard]] bool has_place(bool self) const { return at_work_ < threads() + (self ? 1U : 0U); }
  /// The oldest job that has parts left; null if there is none, or no place to work on it. Under the lock.
  [[nodiscard]] Job* open_job() const;

  std::mutex mutex_;
  std::condition_variable changed_;        ///< there is a job, or the end
  std::condition_variable left_;           ///< a helper has left a job
  Job* first_ = nullptr;                   ///< those of all callers, the oldest first
  std::atomic<std::uint32_t> calls_{0};    ///< jobs so far, places that were left, and the end
  std::atomic<std::uint32_t> at_work_{0};  ///< callers, threads of the pool, and who else has entered
  std::uint32_t asleep_ = 0;               ///< threads that wait for `changed_`
  bool stop_ = false, lingers_ = false;
  std::uint32_t all_ = 1;  ///< threads, the caller's among them; not changed while there are others
  std::vector<std::thread> threads_;
};

}  // namespace ferry::engine
