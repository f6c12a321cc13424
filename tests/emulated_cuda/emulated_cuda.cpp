// The runtime: memory, streams, events, errors. Threads of blocks are in blocks.cpp.
#include "emulated_cuda.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "operation.hpp"

namespace ferry::test::emulated {

namespace {

constexpr std::uint64_t call_ns = 200, copy_ns = 1000, function_ns = 2000;
constexpr auto function_grace = std::chrono::milliseconds(50);
constexpr std::size_t allocation_alignment = 256;

/// What CUDA keeps for each host thread.
struct Caller {
  std::uint64_t epoch = 0;
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  bool in_host_function = false;
};
thread_local Caller this_caller;

enum class MemoryKind : std::uint8_t { device, pinned, registered };

struct Memory {
  std::size_t bytes;
  MemoryKind kind;
  int device;
};

/// Where bytes lie; `torn`: only partly inside an allocation.
enum class Place : std::uint8_t { device, pinned, pageable, torn };

/// One recording of an event.
struct Record {
  bool done = false;
  std::uint64_t time_ns = 0;
};

struct Event {
  std::uint64_t number;
  int device;
  bool timing;
  std::shared_ptr<Record> record;
};

struct Stream {
  std::uint64_t number;
  int device;
  bool destroyed = false, held = false;
  std::deque<std::unique_ptr<Operation>> queue;
  std::uint64_t submitted = 0, completed = 0;
  std::uint64_t time_ns = 0;
};

std::string count(std::uint64_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

class Machine {
 public:
  static Machine& get() {
    static auto* machine = new Machine;  // outlives every static object that still frees
    return *machine;
  }

  enum class Touches : std::uint8_t { nothing, device, freeing };

  /// Frames every call: f acts under the lock, unless the call fails before.
  template <class F>
  cudaError_t call(const char* name, Touches touches, F&& f) {
    const std::lock_guard lock(mutex_);
    Caller& me = caller();
    const cudaError_t error = guarded(me, name, touches, std::forward<F>(f));
    if (error != cudaSuccess) me.last_error = error;
    return error;
  }

  template <class F>
  auto locked(F&& f) {
    const std::lock_guard lock(mutex_);
    return f();
  }

  cudaError_t last_error(bool clear) {
    const std::lock_guard lock(mutex_);
    Caller& me = caller();
    const cudaError_t error = lost_ != cudaSuccess ? lost_ : me.last_error;
    if (clear) me.last_error = cudaSuccess;
    return error;
  }

  // All below under the lock

  Caller& caller() {
    if (this_caller.epoch != epoch_) {
      this_caller = {epoch_, 0, cudaSuccess, this_caller.in_host_function};
    }
    return this_caller;
  }

  std::string reset(const Options& options) {
    const std::string left = complaints();
    for (const auto& [base, memory] : memory_) {
      if (memory.kind != MemoryKind::registered) std::free(reinterpret_cast<void*>(base));
    }
    memory_.clear();
    streams_.clear();
    stream_of_.clear();
    default_streams_.clear();
    events_.clear();
    failures_.clear();
    calls_.clear();
    launches_.clear();
    function_.reset();
    favourite_.reset();
    options_ = options;
    dice_ = Dice(options.seed);
    fiber_dice_ = Dice(~options.seed);
    counters_ = {};
    host_ns_ = 0;
    lost_ = cudaSuccess;
    losing_ = cudaSuccess;
    blas_handles_.clear();
    pending_ = 0;
    last_number_ = 0;
    ++epoch_;
    used_.assign(static_cast<std::size_t>(std::max(options.devices, 0)), 0);
    for (int d = 0; d < options.devices; ++d) default_streams_.push_back(add_stream(d, 0));
    return left;
  }

  // Streams

  std::shared_ptr<Stream> add_stream(int device, std::uint64_t number) {
    auto stream = std::make_shared<Stream>();
    stream->number = number;
    stream->device = device;
    streams_.push_back(stream);
    return stream;
  }

  cudaStream_t new_stream() {
    const auto handle = reinterpret_cast<cudaStream_t>(new_handle());
    stream_of_[handle] = add_stream(caller().device, ++last_number_);
    return handle;
  }

  std::shared_ptr<Stream> find(cudaStream_t handle) {
    if (handle == nullptr) return default_streams_[static_cast<std::size_t>(caller().device)];
    const auto it = stream_of_.find(handle);
    return it == stream_of_.end() ? nullptr : it->second;
  }

  void destroy(cudaStream_t handle) {
    const std::shared_ptr<Stream> stream = find(handle);
    stream_of_.erase(handle);
    stream->destroyed = true;
    drop_if_over(stream);
  }

  void queue(const std::shared_ptr<Stream>& stream, std::unique_ptr<Operation> operation) {
    operation->submitted_ns = host_ns_;
    stream->queue.push_back(std::move(operation));
    ++stream->submitted;
    ++pending_;
    if (options_.eager) run_ready();
  }

  /// Steps until all that the stream has now is done.
  cudaError_t finish(const std::shared_ptr<Stream>& stream) {
    const std::uint64_t target = stream->submitted;
    run_until([&] { return stream->completed >= target; });
    host_ns_ = std::max(host_ns_, stream->time_ns);
    return lost_;
  }

  cudaError_t finish_device() {
    const std::vector<std::shared_ptr<Stream>> all = streams_;
    for (const auto& stream : all) {
      if (stream->device == caller().device) finish(stream);
    }
    return lost_;
  }

  void run_ready() {
    while (pending_ > 0 && step()) continue;
  }

  void advance(std::uint64_t steps) {
    for (; steps > 0 && pending_ > 0 && step(); --steps) continue;
  }

  template <class Done>
  void run_until(const Done& done) {
    while (lost_ == cudaSuccess && !done()) {
      if (!step()) wait_for_function();
    }
  }

  // Events

  cudaEvent_t new_event(bool timing) {
    const auto handle = reinterpret_cast<cudaEvent_t>(new_handle());
    events_[handle] = Event{++last_number_, caller().device, timing, nullptr};
    return handle;
  }

  Event* find(cudaEvent_t handle) {
    const auto it = events_.find(handle);
    return it == events_.end() ? nullptr : &it->second;
  }

  void forget(cudaEvent_t handle) { events_.erase(handle); }

  void seen(const Record& record) { host_ns_ = std::max(host_ns_, record.time_ns); }

  // Memory

  cudaError_t allocate(void** pointer, std::size_t bytes, MemoryKind kind) {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    const int device = caller().device;
    std::uint64_t& used = used_[static_cast<std::size_t>(device)];
    if (kind == MemoryKind::device && bytes > options_.total_bytes - used) return cudaErrorMemoryAllocation;
    void* memory = nullptr;
    if (posix_memalign(&memory, allocation_alignment, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(memory, 0xFF, bytes);  // NaNs: nothing is promised of fresh memory
    *pointer = memory;
    if (kind == MemoryKind::device) used += bytes;
    add_memory(memory, {bytes, kind, device});
    return cudaSuccess;
  }

  void add_memory(void* p, const Memory& memory) {
    memory_[reinterpret_cast<std::uintptr_t>(p)] = memory;
    const bool device = memory.kind == MemoryKind::device;
    std::uint64_t& now = device ? counters_.device_bytes : counters_.pinned_bytes;
    std::uint64_t& peak = device ? counters_.device_bytes_peak : counters_.pinned_bytes_peak;
    now += memory.bytes;
    peak = std::max(peak, now);
  }

  /// Frees memory that begins at p.
  bool release(void* p, MemoryKind kind) {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    if (!begins(address, kind)) return false;
    for (const auto& stream : std::vector(streams_)) finish(stream);
    if (!begins(address, kind)) return false;  // another thread has freed it meanwhile
    const Memory memory = memory_.at(address);
    (kind == MemoryKind::device ? counters_.device_bytes : counters_.pinned_bytes) -= memory.bytes;
    if (kind == MemoryKind::device) used_[static_cast<std::size_t>(memory.device)] -= memory.bytes;
    memory_.erase(address);
    if (kind != MemoryKind::registered) std::free(p);
    return true;
  }
  [[nodiscard]] bool begins(std::uintptr_t address, MemoryKind kind) const {
    const auto it = memory_.find(address);
    return it != memory_.end() && it->second.kind == kind;
  }

  /// The allocation that holds this address, or null.
  const Memory* holder(const void* p, std::uintptr_t* base = nullptr) const {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    auto it = memory_.upper_bound(address);
    if (it == memory_.begin()) return nullptr;
    --it;
    if (base != nullptr) *base = it->first;
    return address - it->first < it->second.bytes ? &it->second : nullptr;
  }

  Place place(const void* p, std::size_t bytes) const {
    std::uintptr_t base = 0;
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    if (const Memory* memory = holder(p, &base)) {
      if (bytes > memory->bytes - (address - base)) return Place::torn;
      return memory->kind == MemoryKind::device ? Place::device : Place::pinned;
    }
    const auto next = memory_.lower_bound(address);
    return next != memory_.end() && next->first - address < bytes ? Place::torn : Place::pageable;
  }

  [[nodiscard]] std::uint64_t used(int device) const { return used_[static_cast<std::size_t>(device)]; }
  [[nodiscard]] bool has(int device) const { return device >= 0 && device < options_.devices; }

  // Loss

  void lose(cudaError_t error) {
    lost_ = error;
    for (const auto& stream : std::vector(streams_)) {
      stream->queue.clear();
      stream->completed = stream->submitted;
      drop_if_over(stream);
    }
    pending_ = 0;
  }

  // A host function runs on its own thread, since it may wait for what the calling thread holds.

  struct Function {
    bool done = false;
    std::uint64_t stream = 0;
  };
  [[nodiscard]] bool function_runs() const { return function_ != nullptr && !function_->done; }
  std::thread start(const std::shared_ptr<Function>& function, cudaHostFn_t f, void* user) {
    function_ = function;
    return std::thread([this, function, f, user] {
      this_caller.in_host_function = true;
      f(user);
      {
        const std::lock_guard lock(mutex_);
        function->done = true;
      }
      function_done_.notify_all();
    });
  }
  /// Releases the lock while it waits, so the machine's state may have changed afterwards.
  template <class Duration>
  bool wait_for(const std::shared_ptr<Function>& function, Duration duration) {
    std::unique_lock lock(mutex_, std::adopt_lock);
    const bool done = function_done_.wait_for(lock, duration, [&] { return function->done; });
    lock.release();
    return done;
  }

  void fail(const char* call, unsigned nth, cudaError_t error) { failures_.push_back({call, nth, error}); }

  Options options_;
  Counters counters_;
  std::map<std::string, std::uint64_t, std::less<>> calls_;
  std::map<const void*, std::uint64_t> launches_;
  std::uint64_t host_ns_ = 0;
  cudaError_t lost_ = cudaSuccess, losing_ = cudaSuccess;
  std::uint64_t lose_after_ = 0;
  std::set<const void*> blas_handles_;
  Dice dice_{1}, fiber_dice_{1};

 private:
  Machine() { reset({}); }

  struct Failure {
    std::string call;
    unsigned in;
    cudaError_t error;
  };

  template <class F>
  cudaError_t guarded(const Caller& me, const char* name, Touches touches, F&& f) {
    if (me.in_host_function) return cudaErrorNotPermitted;
    const auto it = calls_.find(std::string_view(name));
    ++(it != calls_.end() ? it->second : calls_[name]);
    host_ns_ += call_ns;
    if (const cudaError_t error = asked_failure(name); error != cudaSuccess) return error;
    if (options_.devices <= 0) return cudaErrorNoDevice;
    if (touches == Touches::nothing) return f();
    if (lost_ == cudaSuccess) {
      if (options_.eager) {
        run_ready();
      } else {
        advance(dice_.below(4));
      }
    }
    if (lost_ != cudaSuccess && touches == Touches::device) return lost_;
    const cudaError_t error = f();
    return lost_ != cudaSuccess ? lost_ : error;
  }

  cudaError_t asked_failure(std::string_view call) {
    cudaError_t error = cudaSuccess;
    for (auto it = failures_.begin(); it != failures_.end();) {
      if (it->call == call && --it->in == 0) {
        error = it->error;
        it = failures_.erase(it);
      } else {
        ++it;
      }
    }
    return error;
  }

  /// Handles are never reused, so that a stale one is noticed. They cannot be dereferenced.
  std::uintptr_t new_handle() {
    next_handle_ += 16;
    return next_handle_;
  }

  void drop_if_over(const std::shared_ptr<Stream>& stream) {
    if (stream->destroyed && stream->queue.empty()) std::erase(streams_, stream);
  }

  static bool can_step(const Stream& stream) {
    return !stream.queue.empty() && !stream.held && stream.queue.front()->ready();
  }

  /// Makes one step of a random stream. False if no stream can step.
  bool step() {
    runnable_.clear();
    for (const auto& stream : streams_) {
      if (can_step(*stream)) runnable_.push_back(stream);
    }
    if (runnable_.empty()) return false;
    std::shared_ptr<Stream> stream = runnable_.front();
    if (!options_.eager && runnable_.size() > 1) stream = draw();
    runnable_.clear();
    step(stream);
    return true;
  }

  /// Streams advance in bursts: if all went at one pace, a short one would hardly ever be the last.
  std::shared_ptr<Stream> draw() {
    if (dice_.below(4) != 0 && std::find(runnable_.begin(), runnable_.end(), favourite_) != runnable_.end()) {
      return favourite_;
    }
    std::shared_ptr<Stream> stream = runnable_[dice_.below(runnable_.size())];
    if (dice_.below(4) == 0) favourite_ = stream;
    return stream;
  }

  void step(const std::shared_ptr<Stream>& stream) {
    if (losing_ != cudaSuccess && lose_after_-- == 0) {
      lose(std::exchange(losing_, cudaSuccess));
      return;
    }
    ++counters_.steps;
    counters_.order = (counters_.order ^ (stream->number + 1)) * 0x100000001B3U;
    Operation& operation = *stream->queue.front();
    if (!operation.step(options_.eager)) return;
    stream->time_ns = std::max(stream->time_ns, operation.submitted_ns) + operation.cost_ns;
    operation.end(stream->time_ns);
    stream->queue.pop_front();
    ++stream->completed;
    --pending_;
    ++counters_.operations;
    drop_if_over(stream);
  }

  void wait_for_function() {
    if (!function_runs()) die("deadlock: no stream can advance" + heads());
    const std::shared_ptr<Function> function = function_;
    if (!wait_for(function, std::chrono::milliseconds(options_.deadlock_after_ms))) {
      die("deadlock: a host function did not return for " + std::to_string(options_.deadlock_after_ms) + " ms" +
          heads());
    }
  }

  std::string heads() const {
    std::string text;
    for (const auto& stream : streams_) {
      if (stream->queue.empty()) continue;
      text += "\n  stream " + std::to_string(stream->number) + (stream->held ? " (held)" : "") + ": " +
              count(stream->queue.size(), "operation") + ", first: " + stream->queue.front()->text();
    }
    return text;
  }

  std::string complaints() const {
    std::string text;
    const auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
    for (const auto& stream : streams_) {
      if (stream->queue.empty()) continue;
      add("stream " + std::to_string(stream->number) + " has " + count(stream->queue.size(), "unfinished operation") +
          ", first: " + stream->queue.front()->text());
    }
    for (const auto& [handle, stream] : stream_of_)
      add("stream " + std::to_string(stream->number) + " was not destroyed");
    for (const auto& [handle, event] : events_) add("event " + std::to_string(event.number) + " was not destroyed");
    for (const auto& [base, memory] : memory_) {
      const char* what = memory.kind == MemoryKind::device   ? " bytes of device memory were not freed"
                         : memory.kind == MemoryKind::pinned ? " bytes of pinned memory were not freed"
                                                             : " bytes of host memory are still registered";
      add(std::to_string(memory.bytes) + what);
    }
    if (!blas_handles_.empty()) add(count(blas_handles_.size(), "cuBLAS handle") + " not destroyed");
    return text;
  }

  std::mutex mutex_;
  std::condition_variable function_done_;
  std::uint64_t epoch_ = 0;
  std::uintptr_t next_handle_ = 0x10000;
  std::uint64_t last_number_ = 0;
  std::uint64_t pending_ = 0;
  std::vector<std::shared_ptr<Stream>> streams_;  // in order of creation, until destroyed and over
  std::map<cudaStream_t, std::shared_ptr<Stream>> stream_of_;
  std::vector<std::shared_ptr<Stream>> default_streams_;  // [devices]
  std::map<cudaEvent_t, Event> events_;
  std::map<std::uintptr_t, Memory> memory_;
  std::vector<std::uint64_t> used_;  // [devices] bytes
  std::vector<Failure> failures_;
  std::shared_ptr<Function> function_;
  std::vector<std::shared_ptr<Stream>> runnable_;
  std::shared_ptr<Stream> favourite_;
};

using Touches = Machine::Touches;

Machine& machine() {
  return Machine::get();
}

const char* name(Place place) {
  return place == Place::device ? "device" : "host";
}

class Copy : public Operation {
 public:
  Copy(void* to, const void* from, std::size_t bytes, std::string what)
      : Operation(copy_ns + bytes), to_(to), from_(from), bytes_(bytes), what_(std::move(what)) {}

  /// Copies from a snapshot of the source as it is now.
  void stage() {
    const auto* bytes = static_cast<const std::byte*>(from_);
    staged_.assign(bytes, bytes + bytes_);
    from_ = staged_.data();
  }

  bool step(bool whole) override {
    const std::size_t n = whole ? bytes_ - at_ : std::min<std::size_t>(bytes_ - at_, machine().options_.chunk_bytes);
    std::memmove(static_cast<std::byte*>(to_) + at_, static_cast<const std::byte*>(from_) + at_, n);
    at_ += n;
    return at_ == bytes_;
  }
  [[nodiscard]] std::string text() const override {
    return "copy of " + std::to_string(bytes_) + " bytes from " + what_ + ", " + std::to_string(at_) + " landed";
  }

 private:
  void* to_;
  const void* from_;
  std::size_t bytes_, at_ = 0;
  std::string what_;
  std::vector<std::byte> staged_;
};

class Fill : public Operation {
 public:
  Fill(void* to, int value, std::size_t bytes) : Operation(copy_ns + bytes), to_(to), bytes_(bytes), value_(value) {}

  bool step(bool whole) override {
    const std::size_t n = whole ? bytes_ - at_ : std::min<std::size_t>(bytes_ - at_, machine().options_.chunk_bytes);
    std::memset(static_cast<std::byte*>(to_) + at_, value_, n);
    at_ += n;
    return at_ == bytes_;
  }
  [[nodiscard]] std::string text() const override { return "memset of " + std::to_string(bytes_) + " bytes"; }

 private:
  void* to_;
  std::size_t bytes_, at_ = 0;
  int value_;
};

class RecordEvent : public Operation {
 public:
  RecordEvent(std::shared_ptr<Record> record, std::uint64_t event)
      : Operation(0), record_(std::move(record)), event_(event) {}

  bool step(bool /*whole*/) override { return true; }
  void end(std::uint64_t& stream_ns) override { *record_ = {true, stream_ns}; }
  [[nodiscard]] std::string text() const override { return "record of event " + std::to_string(event_); }

 private:
  std::shared_ptr<Record> record_;
  std::uint64_t event_;
};

class WaitEvent : public Operation {
 public:
  WaitEvent(std::shared_ptr<const Record> record, std::uint64_t event)
      : Operation(0), record_(std::move(record)), event_(event) {}

  [[nodiscard]] bool ready() const override { return record_->done; }
  bool step(bool /*whole*/) override { return true; }
  void end(std::uint64_t& stream_ns) override { stream_ns = std::max(stream_ns, record_->time_ns); }
  [[nodiscard]] std::string text() const override { return "wait for event " + std::to_string(event_); }

 private:
  std::shared_ptr<const Record> record_;
  std::uint64_t event_;
};

class CallHost : public Operation {
 public:
  CallHost(cudaHostFn_t function, void* user) : Operation(function_ns), function_(function), user_(user) {}
  ~CallHost() override {
    if (thread_.joinable()) thread_.detach();  // dropped while it runs
  }

  [[nodiscard]] bool ready() const override {
    return running_ != nullptr ? running_->done : !machine().function_runs();
  }
  bool step(bool /*whole*/) override {
    if (running_ != nullptr) {
      thread_.join();
      return true;
    }
    running_ = std::make_shared<Machine::Function>();
    thread_ = machine().start(running_, function_, user_);
    // Mostly the function is over at once, and the run depends on the seed alone. A copy, since this may be dropped meanwhile.
    const std::shared_ptr<Machine::Function> running = running_;
    machine().wait_for(running, function_grace);
    return false;
  }
  [[nodiscard]] std::string text() const override {
    return running_ != nullptr ? "running host function" : "host function";
  }

 private:
  cudaHostFn_t function_;
  void* user_;
  std::shared_ptr<Machine::Function> running_;
  std::thread thread_;
};

}  // namespace

void die(const std::string& sentence) {
  std::fflush(stdout);
  std::fprintf(stderr, "emulated CUDA: %s\n", sentence.c_str());
  std::abort();
}

cudaError_t submit(const char* call, cudaStream_t stream, std::unique_ptr<Operation> operation) {
  Machine& m = machine();
  return m.call(call, Touches::device, [&] {
    const std::shared_ptr<Stream> s = m.find(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    m.queue(s, std::move(operation));
    return cudaSuccess;
  });
}

cudaError_t submit_launch(const cudaLaunchConfig_t& config, const void* kernel, std::unique_ptr<Operation> operation) {
  Machine& m = machine();
  return m.call("cudaLaunchKernelEx", Touches::device, [&] {
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    const auto [gx, gy, gz] = config.gridDim;
    const auto [bx, by, bz] = config.blockDim;
    const std::uint64_t threads = std::uint64_t{bx} * by * bz;
    if (gx == 0 || gx > 0x7FFFFFFFU || gy == 0 || gy > 65535 || gz == 0 || gz > 65535) {
      return cudaErrorInvalidConfiguration;
    }
    if (bx > 1024 || by > 1024 || bz > 64 || threads == 0 || threads > 1024) return cudaErrorInvalidConfiguration;
    if (config.dynamicSmemBytes != 0 || (config.numAttrs != 0 && config.attrs == nullptr)) return cudaErrorInvalidValue;
    for (unsigned i = 0; i < config.numAttrs; ++i) {
      if (config.attrs[i].id != cudaLaunchAttributeProgrammaticStreamSerialization) return cudaErrorInvalidValue;
    }
    const std::shared_ptr<Stream> s = m.find(config.stream);
    if (s == nullptr || s->device != m.caller().device) return cudaErrorInvalidResourceHandle;
    ++m.counters_.launches;
    ++m.launches_[kernel];
    m.queue(s, std::move(operation));
    return cudaSuccess;
  });
}

cudaError_t touch(const char* call) {
  return machine().call(call, Touches::device, [] { return cudaSuccess; });
}

bool device_reaches(const void* p, std::uint64_t bytes) {
  return machine().locked([&] {
    const Place place = machine().place(p, bytes);
    return place == Place::device || place == Place::pinned;
  });
}

void note_blas_handle(const void* handle, bool lives) {
  machine().locked([&] {
    if (lives) {
      machine().blas_handles_.insert(handle);
    } else {
      machine().blas_handles_.erase(handle);
    }
  });
}

bool random_fibers() {
  return machine().options_.random_fibers;
}
std::uint64_t random_number() {
  return machine().fiber_dice_.next();
}

// Control

void reset(const Options& options) {
  const std::string left = machine().locked([&] { return machine().reset(options); });
  if (!left.empty()) throw std::logic_error("emulated CUDA: " + left);
}

void fail(const char* call, unsigned nth, cudaError_t error) {
  if (nth == 0) throw std::logic_error("emulated CUDA: calls to fail count from 1");
  machine().locked([&] { machine().fail(call, nth, error); });
}

void lose_device(cudaError_t error, std::uint64_t after_steps) {
  Machine& m = machine();
  m.locked([&] {
    if (after_steps == 0) return m.lose(error);
    m.losing_ = error;
    m.lose_after_ = after_steps;
  });
}

void hold(cudaStream_t stream, bool held) {
  Machine& m = machine();
  m.locked([&] {
    const std::shared_ptr<Stream> s = m.find(stream);
    if (s == nullptr) throw std::logic_error("emulated CUDA: no such stream to hold");
    s->held = held;
    if (m.options_.eager) m.run_ready();
  });
}

void advance(unsigned steps) {
  machine().locked([&] { machine().advance(steps); });
}

Counters counters() {
  return machine().locked([] { return machine().counters_; });
}

std::uint64_t calls(const char* call) {
  return machine().locked([&] {
    const auto it = machine().calls_.find(std::string_view(call));
    return it == machine().calls_.end() ? 0 : it->second;
  });
}

std::uint64_t launches_of(const void* kernel) {
  return machine().locked([&] {
    const auto it = machine().launches_.find(kernel);
    return it == machine().launches_.end() ? 0 : it->second;
  });
}

std::uint64_t clock_ns() {
  return machine().locked([] { return machine().host_ns_; });
}

namespace {

/// Queues a copy. *wait is set if the call may only return once the copy has landed.
cudaError_t queue_copy(const std::shared_ptr<Stream>& stream, void* to, const void* from, std::size_t bytes,
                       cudaMemcpyKind kind, bool* wait) {
  Machine& m = machine();
  *wait = false;
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  const Place target = m.place(to, bytes), source = m.place(from, bytes);
  if (target == Place::torn || source == Place::torn) return cudaErrorInvalidValue;
  if (kind != cudaMemcpyDefault) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to_device != (target == Place::device) || from_device != (source == Place::device)) {
      return cudaErrorInvalidValue;
    }
  }
  auto copy = std::make_unique<Copy>(to, from, bytes, std::string(name(source)) + " to " + name(target));
  // Pageable memory: CUDA reads the source before the call returns, and waits until the target is written.
  if (source == Place::pageable) copy->stage();
  *wait = target == Place::pageable;
  m.queue(stream, std::move(copy));
  return cudaSuccess;
}

cudaError_t query(bool done) {
  return done ? cudaSuccess : cudaErrorNotReady;
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid launch configuration"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid direction of a copy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "the driver is older than the runtime"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "the devices are busy or unavailable"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA device"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device number"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel was compiled for this device"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion", "a kernel was compiled by a newer toolkit"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable memory error"},
    {cudaErrorOperatingSystem, "cudaErrorOperatingSystem", "a call of the operating system failed"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid handle of a stream or event"},
    {cudaErrorNotReady, "cudaErrorNotReady", "not finished yet"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "a kernel accessed an illegal address"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources asked for by a launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "a kernel ran too long"},
    {cudaErrorContextIsDestroyed, "cudaErrorContextIsDestroyed", "the context is destroyed"},
    {cudaErrorAssert, "cudaErrorAssert", "an assertion of a kernel failed"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered", "memory is registered already"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered", "memory is not registered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "a kernel failed"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "the system is not ready"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};
const ErrorText* find_text(cudaError_t error) {
  const auto* it = std::find_if(std::begin(error_texts), std::end(error_texts),
                                [&](const ErrorText& t) { return t.error == error; });
  return it == std::end(error_texts) ? nullptr : it;
}

}  // namespace

}  // namespace ferry::test::emulated

// CUDA's own names, as its headers declare them

using namespace ferry::test::emulated;

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* text = find_text(error);
  return text == nullptr ? "unrecognized error code" : text->name;
}
const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* text = find_text(error);
  return text == nullptr ? "unrecognized error code" : text->text;
}
cudaError_t cudaGetLastError() {
  return machine().last_error(true);
}
cudaError_t cudaPeekAtLastError() {
  return machine().last_error(false);
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  return cudaRuntimeGetVersion(version);
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return cudaErrorInvalidValue;
  *count = machine().locked([] { return std::max(machine().options_.devices, 0); });
  return machine().call("cudaGetDeviceCount", Touches::nothing, [] { return cudaSuccess; });
}

cudaError_t cudaGetDevice(int* device) {
  return machine().call("cudaGetDevice", Touches::nothing, [&] {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = machine().caller().device;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return machine().call("cudaSetDevice", Touches::nothing, [&] {
    if (!machine().has(device)) return cudaErrorInvalidDevice;
    machine().caller().device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return machine().call("cudaDeviceGetAttribute", Touches::nothing, [&] {
    if (!machine().has(device)) return cudaErrorInvalidDevice;
    if (value == nullptr) return cudaErrorInvalidValue;
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlock:
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 48 << 10;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      case cudaDevAttrL2CacheSize:
        *value = 64 << 10;
        return cudaSuccess;
      case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
      case cudaDevAttrIntegrated:
      case cudaDevAttrPageableMemoryAccess:
        *value = 0;
        return cudaSuccess;
      case cudaDevAttrCanMapHostMemory:
      case cudaDevAttrConcurrentKernels:
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrCanUseHostPointerForRegisteredMem:
      case cudaDevAttrHostRegisterSupported:
        *value = 1;
        return cudaSuccess;
      case cudaDevAttrAsyncEngineCount:
        *value = 2;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = 6;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return machine().call("cudaGetDeviceProperties", Touches::nothing, [&] {
    if (!machine().has(device)) return cudaErrorInvalidDevice;
    if (properties == nullptr) return cudaErrorInvalidValue;
    *properties = {"Emulated device", machine().options_.total_bytes, 48 << 10, 32, 1024, 6, 0, 4, 0, 1, 1, 2, 1};
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return machine().call("cudaDeviceGetStreamPriorityRange", Touches::nothing, [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return machine().call("cudaDeviceSynchronize", Touches::device, [] { return machine().finish_device(); });
}

// Memory. Whatever frees or unregisters waits for the device first, as CUDA's drivers do.

namespace {

cudaError_t allocate(const char* call, void** pointer, std::size_t bytes, MemoryKind kind) {
  return machine().call(call, Touches::device, [&] {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    return machine().allocate(pointer, bytes, kind);
  });
}

cudaError_t release(const char* call, void* pointer, MemoryKind kind, cudaError_t refusal) {
  return machine().call(call, Touches::freeing, [&] {
    if (pointer == nullptr && kind != MemoryKind::registered) return cudaSuccess;
    return machine().release(pointer, kind) ? cudaSuccess : refusal;
  });
}

}  // namespace

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return allocate("cudaMalloc", pointer, bytes, MemoryKind::device);
}
cudaError_t cudaFree(void* pointer) {
  return release("cudaFree", pointer, MemoryKind::device, cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  return allocate("cudaMallocHost", pointer, bytes, MemoryKind::pinned);
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  if (flags > 7) pointer = nullptr;
  return allocate("cudaHostAlloc", pointer, bytes, MemoryKind::pinned);
}
cudaError_t cudaFreeHost(void* pointer) {
  return release("cudaFreeHost", pointer, MemoryKind::pinned, cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
  return machine().call("cudaHostRegister", Touches::device, [&] {
    Machine& m = machine();
    if (pointer == nullptr || bytes == 0 || flags > 15) return cudaErrorInvalidValue;
    if (m.place(pointer, bytes) != Place::pageable) return cudaErrorHostMemoryAlreadyRegistered;
    m.add_memory(pointer, {bytes, MemoryKind::registered, m.caller().device});
    return cudaSuccess;
  });
}
cudaError_t cudaHostUnregister(void* pointer) {
  return release("cudaHostUnregister", pointer, MemoryKind::registered, cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return machine().call("cudaFuncGetAttributes", Touches::device, [&] {
    if (attributes == nullptr || kernel == nullptr) return cudaErrorInvalidValue;
    attributes->maxThreadsPerBlock = 1024;
    attributes->ptxVersion = 90;
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return machine().call("cudaHostGetDevicePointer", Touches::device, [&] {
    if (device == nullptr || flags != 0) return cudaErrorInvalidValue;
    const Memory* memory = machine().holder(host);
    if (memory == nullptr || memory->kind == MemoryKind::device) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return machine().call("cudaPointerGetAttributes", Touches::device, [&] {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    void* p = const_cast<void*>(pointer);
    const Memory* memory = machine().holder(p);
    if (memory == nullptr) {
      *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, nullptr};
    } else if (memory->kind == MemoryKind::device) {
      *attributes = {cudaMemoryTypeDevice, memory->device, p, nullptr};
    } else {
      *attributes = {cudaMemoryTypeHost, memory->device, p, p};
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return machine().call("cudaMemGetInfo", Touches::device, [&] {
    if (free == nullptr || total == nullptr) return cudaErrorInvalidValue;
    *total = machine().options_.total_bytes;
    *free = *total - machine().used(machine().caller().device);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return machine().call("cudaMemcpy", Touches::device, [&] {
    const std::shared_ptr<Stream> stream = machine().find(cudaStream_t{});
    bool wait = false;
    const cudaError_t error = queue_copy(stream, to, from, bytes, kind, &wait);
    return error == cudaSuccess ? machine().finish(stream) : error;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return machine().call("cudaMemcpyAsync", Touches::device, [&] {
    const std::shared_ptr<Stream> s = machine().find(stream);
    bool wait = false;
    const cudaError_t error = queue_copy(s, to, from, bytes, kind, &wait);
    return error == cudaSuccess && wait ? machine().finish(s) : error;
  });
}

namespace {

cudaError_t fill(void* to, int value, std::size_t bytes, const std::shared_ptr<Stream>& stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const Place place = machine().place(to, bytes);
  if (place != Place::device && place != Place::pinned) return cudaErrorInvalidValue;
  machine().queue(stream, std::make_unique<Fill>(to, value, bytes));
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return machine().call("cudaMemset", Touches::device, [&] {
    const std::shared_ptr<Stream> stream = machine().find(cudaStream_t{});
    const cudaError_t error = fill(to, value, bytes, stream);
    return error == cudaSuccess ? machine().finish(stream) : error;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return machine().call("cudaMemsetAsync", Touches::device,
                        [&] { return fill(to, value, bytes, machine().find(stream)); });
}

// Streams

namespace {

cudaError_t create(const char* call, cudaStream_t* stream, unsigned flags) {
  return machine().call(call, Touches::device, [&] {
    if (stream == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *stream = machine().new_stream();
    return cudaSuccess;
  });
}

}  // namespace

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return create("cudaStreamCreate", stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create("cudaStreamCreateWithFlags", stream, flags);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return create("cudaStreamCreateWithPriority", stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return machine().call("cudaStreamDestroy", Touches::freeing, [&] {
    if (stream == nullptr || machine().find(stream) == nullptr) return cudaErrorInvalidResourceHandle;
    machine().destroy(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return machine().call("cudaStreamSynchronize", Touches::device, [&] {
    const std::shared_ptr<Stream> s = machine().find(stream);
    return s == nullptr ? cudaErrorInvalidResourceHandle : machine().finish(s);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return machine().call("cudaStreamQuery", Touches::device, [&] {
    const std::shared_ptr<Stream> s = machine().find(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (!s->queue.empty()) return cudaErrorNotReady;
    return machine().finish(s);
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return machine().call("cudaStreamWaitEvent", Touches::device, [&] {
    const std::shared_ptr<Stream> s = machine().find(stream);
    const Event* e = machine().find(event);
    if (s == nullptr || e == nullptr) return cudaErrorInvalidResourceHandle;
    if (flags != 0) return cudaErrorInvalidValue;
    if (e->record != nullptr) machine().queue(s, std::make_unique<WaitEvent>(e->record, e->number));
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user) {
  return machine().call("cudaLaunchHostFunc", Touches::device, [&] {
    const std::shared_ptr<Stream> s = machine().find(stream);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (function == nullptr) return cudaErrorInvalidValue;
    machine().queue(s, std::make_unique<CallHost>(function, user));
    return cudaSuccess;
  });
}

// Events

namespace {

cudaError_t create(const char* call, cudaEvent_t* event, unsigned flags) {
  return machine().call(call, Touches::device, [&] {
    if (event == nullptr || flags > 3) return cudaErrorInvalidValue;
    *event = machine().new_event((flags & cudaEventDisableTiming) == 0);
    return cudaSuccess;
  });
}

}  // namespace

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return create("cudaEventCreate", event, cudaEventDefault);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return create("cudaEventCreateWithFlags", event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return machine().call("cudaEventDestroy", Touches::freeing, [&] {
    if (machine().find(event) == nullptr) return cudaErrorInvalidResourceHandle;
    machine().forget(event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return machine().call("cudaEventRecord", Touches::device, [&] {
    const std::shared_ptr<Stream> s = machine().find(stream);
    Event* e = machine().find(event);
    if (s == nullptr || e == nullptr || s->device != e->device) return cudaErrorInvalidResourceHandle;
    e->record = std::make_shared<Record>();
    machine().queue(s, std::make_unique<RecordEvent>(e->record, e->number));
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return machine().call("cudaEventQuery", Touches::device, [&] {
    const Event* e = machine().find(event);
    if (e == nullptr) return cudaErrorInvalidResourceHandle;
    if (e->record == nullptr) return cudaSuccess;
    if (e->record->done) machine().seen(*e->record);
    return query(e->record->done);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return machine().call("cudaEventSynchronize", Touches::device, [&] {
    const Event* e = machine().find(event);
    if (e == nullptr) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<Record> record = e->record;
    if (record == nullptr) return cudaSuccess;
    machine().run_until([&] { return record->done; });
    machine().seen(*record);
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return machine().call("cudaEventElapsedTime", Touches::device, [&] {
    if (milliseconds == nullptr) return cudaErrorInvalidValue;
    const Event* b = machine().find(begin);
    const Event* e = machine().find(end);
    if (b == nullptr || e == nullptr || !b->timing || !e->timing) return cudaErrorInvalidResourceHandle;
    if (b->record == nullptr || e->record == nullptr) return cudaErrorInvalidResourceHandle;
    if (!b->record->done || !e->record->done) return cudaErrorNotReady;
    *milliseconds =
        static_cast<float>((static_cast<double>(e->record->time_ns) - static_cast<double>(b->record->time_ns)) * 1e-6);
    return cudaSuccess;
  });
}
