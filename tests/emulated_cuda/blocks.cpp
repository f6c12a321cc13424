#include "blocks.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "operation.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
const int warpSize = 32;

// Where __shared__ variables lie, if the compiler can gather them: see cuda_runtime.h.
extern "C" {
extern char __start_emulated_shared[] __attribute__((weak));
extern char __stop_emulated_shared[] __attribute__((weak));
}

namespace ferry::test::emulated {

std::uint32_t current_thread = 0;

namespace {

constexpr std::uint32_t most_threads = 1024, most_warps = most_threads / lanes;

struct Warp {
  std::uint32_t unstarted, ready, meeting, at_barrier, gone;  // lanes; gone: returned, or the block lacks them
  std::uint64_t key[lanes];                                   // of those who meet: meeting and mask
  void* data[lanes];
  Act act[lanes];
  Fiber* fiber[lanes];
};

std::uint64_t key_of(Meeting meeting, std::uint32_t mask) {
  return static_cast<std::uint64_t>(meeting) << 32U | mask;
}
Meeting meeting_of(std::uint64_t key) {
  return static_cast<Meeting>(key >> 32U);
}
std::uint32_t mask_of(std::uint64_t key) {
  return static_cast<std::uint32_t>(key);
}
bool needs_all(Meeting meeting) {
  return meeting == Meeting::shuffle || meeting == Meeting::reduction;
}
const char* name(Meeting meeting) {
  constexpr const char* names[] = {"__syncwarp", "vote", "shuffle", "reduction"};
  return names[static_cast<std::size_t>(meeting)];
}

std::string hex(std::uint32_t v) {
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[v >> shift & 15U];
  return text;
}
std::string text(const uint3& v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

/// The block that runs.
class Block {
 public:
  void run(const BoundKernel& kernel, const std::type_info& type, dim3 grid, dim3 block, uint3 index) {
    kernel_ = &kernel;
    type_ = &type;
    random_ = random_fibers();
    shape(block);
    gridDim = grid;
    blockIdx = index;
    returned_ = waiting_ = waited_ = 0;
    for (std::uint32_t w = 0; w < warps_; ++w) {
      const std::uint32_t left = threads_ - w * lanes;
      const std::uint32_t here = left >= lanes ? ~0U : (1U << left) - 1;
      warp_[w].unstarted = here;
      warp_[w].gone = ~here;
      warp_[w].ready = warp_[w].meeting = warp_[w].at_barrier = 0;
    }
    host_.here();
    running_ = &host_;
    current_ = &warp_[0];
    go_on();
  }

  void meet(Meeting meeting, std::uint32_t mask, void* data, Act act) {
    Warp& w = *current_;
    const std::uint32_t me = 1U << lane_;
    if ((mask & me) == 0) die_of_mask(meeting);
    w.key[lane_] = key_of(meeting, mask);
    w.data[lane_] = data;
    w.act[lane_] = act;
    w.fiber[lane_] = running_;
    w.meeting |= me;
    if (!met(w, lane_)) {
      go_on();
    } else if (random_) {
      go_on();
    } else {
      w.ready &= ~me;
    }
  }

  void barrier() {
    Warp& w = *current_;
    const std::uint32_t me = 1U << lane_;
    w.at_barrier |= me;
    w.fiber[lane_] = running_;
    ++waiting_;
    if (!open_barrier() || random_) {
      go_on();
    } else {
      w.ready &= ~me;
    }
  }

  void note_waited() { ++waited_; }
  void check_waited() const {
    if (waited_ >= threads_) return;
    die("a kernel that may begin early: " + std::to_string(threads_ - waited_) + " threads of " + place() +
        " do not wait for the one before");
  }

  [[nodiscard]] std::uint32_t lanes_here() const {
    const std::uint32_t left = threads_ - static_cast<std::uint32_t>(current_ - warp_) * lanes;
    return left >= lanes ? ~0U : (1U << left) - 1;
  }

  // Functions that are not on the path of every thread

  [[noreturn, gnu::cold, gnu::noinline]] void die_of_gone(Meeting meeting, std::uint32_t gone) const {
    die_here(std::string("a ") + name(meeting) + " names lanes " + hex(gone) + ", which have returned or do not exist");
  }
  [[noreturn, gnu::cold, gnu::noinline]] void die_of_difference(Meeting meeting) const {
    die_here(std::string("lanes of a ") + name(meeting) + " name different masks or operations");
  }
  [[noreturn, gnu::cold, gnu::noinline]] void die_of_mask(Meeting meeting) const {
    die_here(std::string("a thread is not in its own mask of a ") + name(meeting));
  }
  [[noreturn, gnu::cold, gnu::noinline]] void die_of_deadlock() const { die("deadlock in " + place() + waits()); }
  [[noreturn, gnu::cold, gnu::noinline]] void die_here(const std::string& sentence) const {
    die(sentence + ": thread " + text(threadIdx) + " of " + place());
  }

 private:
  void shape(dim3 block) {
    if (block.x == blockDim.x && block.y == blockDim.y && block.z == blockDim.z && threads_ != 0) return;
    blockDim = block;
    threads_ = block.x * block.y * block.z;
    warps_ = (threads_ + lanes - 1) / lanes;
    std::uint32_t t = 0;
    for (std::uint32_t z = 0; z < block.z; ++z) {
      for (std::uint32_t y = 0; y < block.y; ++y) {
        for (std::uint32_t x = 0; x < block.x; ++x) index_[t++] = {x, y, z};
      }
    }
  }

  /// Whether all lanes that this lane meets have come; then they become ready.
  bool met(Warp& w, std::uint32_t lane) {
    const std::uint64_t key = w.key[lane];
    const std::uint32_t mask = mask_of(key);
    const std::uint32_t missing = mask & ~w.meeting;
    if (missing != 0) {
      if ((missing & w.gone) != 0 && needs_all(meeting_of(key))) {
        die_of_gone(meeting_of(key), missing & w.gone);
      }
      if ((missing & ~w.gone) != 0) return false;
    }
    const std::uint32_t here = mask & w.meeting;
    std::uint64_t differs = 0;
    if (here == ~0U) {
      for (const std::uint64_t k : w.key) differs |= k ^ key;
    } else {
      for (std::uint32_t left = here; left != 0; left &= left - 1) differs |= w.key[__builtin_ctz(left)] ^ key;
    }
    if (differs != 0)
      die_here(std::string("lanes of a ") + name(meeting_of(key)) + " name different masks or operations");
    if (w.act[lane] != nullptr) w.act[lane](w.data, here);
    w.meeting &= ~here;
    w.ready |= here;
    return true;
  }

  bool open_barrier() {
    if (waiting_ + returned_ != threads_) return false;
    waiting_ = 0;
    for (std::uint32_t w = 0; w < warps_; ++w) {
      warp_[w].ready |= warp_[w].at_barrier;
      warp_[w].at_barrier = 0;
    }
    return true;
  }

  /// After the current thread has returned.
  void leave() {
    Warp& w = *current_;
    const std::uint32_t me = 1U << lane_;
    w.gone |= me;
    ++returned_;
    for (std::uint32_t left = w.meeting; left != 0; left &= left - 1) {
      const auto lane = static_cast<std::uint32_t>(__builtin_ctz(left));
      if ((w.meeting >> lane & 1U) != 0 && (mask_of(w.key[lane]) & me) != 0) met(w, lane);
    }
    if (waiting_ > 0) open_barrier();
  }

  /// Makes a thread that can run the current one, and returns its fiber; null: any free fiber will do.
  [[gnu::always_inline]] inline Fiber* choose() {
    Warp* w = current_;
    // Mostly stays with the warp even if threads are chosen at random, so that one warp may get far ahead of the others.
    if (random_ && ((w->ready | w->unstarted) == 0 || random_number() % 32 == 0)) w = &warp_[random_number() % warps_];
    if ((w->ready | w->unstarted) == 0) {
      const auto last = static_cast<std::uint32_t>(w - warp_);
      for (std::uint32_t i = 1; i < warps_; ++i) {
        w = &warp_[last + i < warps_ ? last + i : last + i - warps_];
        if ((w->ready | w->unstarted) != 0) break;
      }
    }
    const std::uint32_t can = w->ready | w->unstarted;
    if (can == 0) die_of_deadlock();
    lane_ = static_cast<std::uint32_t>(__builtin_ctz(can));
    if (random_) {
      const auto turn = static_cast<std::uint32_t>(random_number() % lanes);
      const std::uint32_t turned = turn == 0 ? can : can >> turn | can << (lanes - turn);
      lane_ = (static_cast<std::uint32_t>(__builtin_ctz(turned)) + turn) % lanes;
    }
    current_ = w;
    current_thread = static_cast<std::uint32_t>(w - warp_) * lanes + lane_;
    threadIdx = index_[current_thread];
    const std::uint32_t chosen = 1U << lane_;
    if ((w->ready & chosen) != 0) {
      w->ready &= ~chosen;
      return w->fiber[lane_];
    }
    w->unstarted &= ~chosen;
    return nullptr;
  }

  /// Lets others run until the caller is chosen again. The host is chosen when all threads have returned.
  void go_on() {
    Fiber* next = choose();
    if (next == nullptr) next = free_fiber();
    if (next != running_) switch_to(next);
  }

  /// A fiber runs one thread after another, as long as none of them waits.
  [[noreturn]] void work() {
    for (;;) {
      kernel_->run();
      leave();
      Fiber* next = returned_ == threads_ ? &host_ : choose();
      if (next == nullptr) continue;
      free_.push_back(running_);
      switch_to(next);
    }
  }

  Fiber* free_fiber() {
    if (!free_.empty()) {
      Fiber* fiber = free_.back();
      free_.pop_back();
      return fiber;
    }
    return &fibers_.emplace_back(fibers_.size(), &start);
  }

  static void start();

  void switch_to(Fiber* next) {
    Fiber* self = running_;
    running_ = next;
    Fiber::jump(*self, *next);
  }

  std::string place() const {
    int status = 0;
    char* type = abi::__cxa_demangle(type_->name(), nullptr, nullptr, &status);
    const std::string kernel = status == 0 ? type : type_->name();
    std::free(type);
    return "block " + text(blockIdx) + " of a kernel " + kernel;
  }

  std::string waits() const {
    std::string text;
    for (std::uint32_t i = 0; i < warps_; ++i) {
      const Warp& w = warp_[i];
      text += "\n  warp " + std::to_string(i) + ": lanes " + hex(w.gone) + " have returned or do not exist";
      if (w.at_barrier != 0) text += ", " + hex(w.at_barrier) + " are at __syncthreads";
      for (std::uint32_t l = 0; l < lanes; ++l) {
        if ((w.meeting >> l & 1U) == 0) continue;
        text += ", lane " + std::to_string(l) + " waits for " + hex(mask_of(w.key[l])) + " in a " +
                name(meeting_of(w.key[l]));
      }
    }
    return text;
  }

  const BoundKernel* kernel_ = nullptr;
  const std::type_info* type_ = nullptr;
  bool random_ = false;
  std::uint32_t threads_ = 0, warps_ = 0;
  std::uint32_t returned_ = 0, waiting_ = 0, waited_ = 0;  // threads; waiting at the barrier; note_waited
  Warp* current_ = nullptr;
  std::uint32_t lane_ = 0;
  Fiber* running_ = nullptr;
  Fiber host_;
  std::vector<Fiber*> free_;
  std::deque<Fiber> fibers_;
  Warp warp_[most_warps];
  uint3 index_[most_threads];
};

/// Never destroyed, since its fibers never end.
Block& the_block = *new Block;

void Block::start() {
  Fiber::begin();
  the_block.work();
}

class Launch : public Operation {
 public:
  Launch(const cudaLaunchConfig_t& config, const std::type_info& type, std::unique_ptr<BoundKernel> kernel)
      : Operation(launch_ns), grid_(config.gridDim), block_(config.blockDim), type_(type), kernel_(std::move(kernel)) {
    for (unsigned i = 0; i < config.numAttrs; ++i) {
      const cudaLaunchAttribute& a = config.attrs[i];
      early_ = early_ || (a.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                          a.val.programmaticStreamSerializationAllowed != 0);
    }
  }

  bool step(bool whole) override {
    const std::uint64_t total = std::uint64_t{grid_.x} * grid_.y * grid_.z;
    if (done_ == 0 && !whole) {
      at_ = random_number() % total;
      do {
        stride_ = 1 + random_number() % total;
      } while (std::gcd(stride_, total) != 1);
    }
    if (done_ == 0 || !whole) forget_shared();
    do {
      const std::uint64_t x = at_ % grid_.x, yz = at_ / grid_.x;
      the_block.run(
          *kernel_, type_, grid_, block_,
          {static_cast<unsigned>(x), static_cast<unsigned>(yz % grid_.y), static_cast<unsigned>(yz / grid_.y)});
      if (early_) the_block.check_waited();
      at_ = (at_ + stride_) % total;
      ++done_;
    } while (whole && done_ < total);
    return done_ == total;
  }
  [[nodiscard]] std::string text() const override {
    return "kernel of " + std::to_string(grid_.x) + " x " + std::to_string(grid_.y) + " x " + std::to_string(grid_.z) +
           " blocks, " + std::to_string(done_) + " done";
  }

 private:
  /// Overwrites shared memory, so that no block may rely on what earlier blocks left.
  static void forget_shared() {
    char* begin = __start_emulated_shared;
    if (begin != nullptr) std::memset(begin, 0xFF, static_cast<std::size_t>(__stop_emulated_shared - begin));
  }

  dim3 grid_, block_;
  const std::type_info& type_;
  std::unique_ptr<BoundKernel> kernel_;
  bool early_ = false;
  std::uint64_t at_ = 0, stride_ = 1, done_ = 0;
};

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel, const std::type_info& type,
                   std::unique_ptr<BoundKernel> bound) {
  if (config == nullptr) return cudaErrorInvalidValue;
  return submit_launch(*config, kernel, std::make_unique<Launch>(*config, type, std::move(bound)));
}

void meet_warp(Meeting meeting, std::uint32_t mask, void* data, Act act) {
  the_block.meet(meeting, mask, data, act);
}
void note_waited() {
  the_block.note_waited();
}
void meet_block() {
  the_block.barrier();
}
std::uint32_t lanes_of_warp() {
  return the_block.lanes_here();
}
void die_in_kernel(const char* sentence) {
  the_block.die_here(sentence);
}

std::uint32_t ballot(std::uint32_t mask, bool predicate) {
  struct Vote {
    bool predicate;
    std::uint32_t result;
  };
  Vote mine{predicate, 0};
  meet_warp(Meeting::vote, mask, &mine, [](void* const* data, std::uint32_t participants) {
    std::uint32_t result = 0;
    for (std::uint32_t left = participants; left != 0; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      if (static_cast<Vote*>(data[lane])->predicate) result |= 1U << lane;
    }
    for (std::uint32_t left = participants; left != 0; left &= left - 1) {
      static_cast<Vote*>(data[__builtin_ctz(left)])->result = result;
    }
  });
  return mine.result;
}

}  // namespace ferry::test::emulated
