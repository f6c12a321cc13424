#include "ferry/any_link.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace ferry;

namespace {

struct Spy {
  void submit(const Copy& c) noexcept { last = "submit " + std::to_string(c.slot); }
  void drop(Ticket t) noexcept { last = "drop " + std::to_string(static_cast<std::uint64_t>(t)); }
  Seen seen() noexcept { return {Ticket{2}, Ticket{3}, Ticket{5}}; }
  void fence(Fence f) noexcept { last = "fence " + std::to_string(static_cast<std::uint64_t>(f)); }
  void wait(Ticket t) { last = "wait " + std::to_string(static_cast<std::uint64_t>(t)); }
  std::string last;
};

}  // namespace

TEST_CASE("an adapted link is told what the other is told, and tells what it knows") {
  Spy spy;
  AdaptedLink<Spy> adapted(spy);
  AnyLink& link = adapted;
  Copy c;
  c.slot = 7;
  link.submit(c);
  CHECK(spy.last == "submit 7");
  link.drop(Ticket{9});
  CHECK(spy.last == "drop 9");
  link.fence(Fence{4});
  CHECK(spy.last == "fence 4");
  link.wait(Ticket{6});
  CHECK(spy.last == "wait 6");
  CHECK(link.seen().prefetch_landed == Ticket{5});
}
