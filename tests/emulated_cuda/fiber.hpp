/// @file
/// Fibers: stacks between which one OS thread jumps by Boost.Context, and what sanitizers must be told about that. For
/// blocks.cpp alone.
#pragma once
#include <sys/mman.h>

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "operation.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define EMULATED_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATED_ASAN
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define EMULATED_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EMULATED_TSAN
#endif
#endif
#if defined(EMULATED_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(EMULATED_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace ferry::test::emulated {

class Fiber {
 public:
  using Body = void (*)();  ///< never returns

  /// The caller's own stack.
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// A stack that is never freed; below it lies a guard page.
  Fiber(std::size_t number, Body body) {
    constexpr std::size_t bytes = 256 << 10U;  // of address space; most of it is never touched
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page_bytes, PROT_NONE) != 0) die("no memory for a thread's stack");
    // Stacks begin at different offsets in their pages: otherwise those of a warp would share a few sets of the cache.
    const std::size_t offset = number * 320 % page_bytes;
    stack_ = static_cast<char*>(memory) + page_bytes;
    stack_bytes_ = bytes - page_bytes - offset;
#if defined(EMULATED_TSAN)
    tsan_ = __tsan_create_fiber(0);
#endif
    start(body);
  }

  /// Before the first jump of a caller's own stack.
  void here() {
#if defined(EMULATED_TSAN)
    tsan_ = __tsan_get_current_fiber();
#endif
  }

  /// Leaves `from`, which runs, for `to`. Returns when something jumps to `from`.
  static inline __attribute__((always_inline)) void jump(Fiber& from, Fiber& to);

  /// To be called first in a body.
  static void begin() {
    arrived(nullptr);
  }

 private:
  static constexpr std::size_t page_bytes = 4096;

  [[nodiscard]] char* top() const {
    return stack_ + stack_bytes_;
  }

  static inline __attribute__((always_inline)) void arrived([[maybe_unused]] void* fake_stack) {
#if defined(EMULATED_ASAN)
    const void* stack = nullptr;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &left_->stack_bytes_);
    left_->stack_ = static_cast<char*>(const_cast<void*>(stack));
#endif
  }

  void start(Body body);

  static inline Fiber* left_ = nullptr;  ///< the fiber that the last jump left

  boost::context::fiber context_;  ///< while the fiber does not run
  char* stack_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  [[maybe_unused]] void* tsan_ = nullptr;
};

inline void Fiber::start(Body body) {
  struct Stack {
    boost::context::stack_context allocate() { return {}; }
    void deallocate(boost::context::stack_context&) {}
  };
  boost::context::stack_context stack;
  stack.sp = top();
  stack.size = stack_bytes_;
  context_ = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                   Stack{}, [body](boost::context::fiber&& from) noexcept -> boost::context::fiber {
                                     left_->context_ = std::move(from);
                                     body();
                                     return {};
                                   });
}

inline void Fiber::jump(Fiber& from, Fiber& to) {
  left_ = &from;
#if defined(EMULATED_ASAN)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_, to.stack_bytes_);
#endif
#if defined(EMULATED_TSAN)
  __tsan_switch_to_fiber(to.tsan_, 0);
#endif
  boost::context::fiber came = std::move(to.context_).resume();
  left_->context_ = std::move(came);
  // `from` lies in this frame, on the stack that the jump has come back to.
  arrived(from.fake_stack_);
}

}  // namespace ferry::test::emulated
