#include "support/reads.hpp"

#include <atomic>

namespace ferry::engine {
namespace {

std::atomic<int> under_way = 0;
std::atomic<Nanoseconds> last_came = 0;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<Nanoseconds>::is_always_lock_free);

}  // namespace

ReadUnderWay::ReadUnderWay() noexcept {
  came();
  ++under_way;
}

ReadUnderWay::~ReadUnderWay() {
  --under_way;
  came();
}

void ReadUnderWay::came() noexcept {
  last_came = now_ns();
}

bool reads_hang(Nanoseconds so_long) noexcept {
  return under_way > 0 && now_ns() - last_came >= so_long;
}

}  // namespace ferry::engine
