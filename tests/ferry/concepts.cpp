// The smallest types that model each concept, and what happens when one requirement is missing.
#include "ferry/concepts.hpp"

#include <doctest/doctest.h>

using namespace ferry;

namespace {

struct SmallestRouter {
  void reserve(Carver&, const Shape&) {}
  void route(Phase, const Scores&, View<const State>, Out<Route>&) const noexcept {}
};
struct SmallestPredictor {
  void reserve(Carver&, const Shape&) {}
  void observe(std::uint16_t, View<const Route>, View<const std::uint32_t>) noexcept {}
  void predict(Phase, const Scores&, Out<Request>&) noexcept {}
};
struct SmallestSelector {
  void select(Phase, bool, View<Request>) const noexcept {}
  std::uint8_t precisions() const noexcept { return 0; }
};
struct SmallestCache {
  void reserve(Carver&, const PoolShape&) {}
  void touch(Variant, std::uint32_t) noexcept {}
  std::uint32_t victim(Variant, Barred) noexcept { return no_slot; }
  void replace(std::uint32_t, Variant, bool) noexcept {}
};
struct SmallestScheduler {
  bool further(const PrefetchWindow&) const noexcept { return true; }
  std::uint32_t take(const PrefetchWindow&, View<const Request>) const noexcept { return 0; }
  void order(Phase, bool, View<Request>) const noexcept {}
  std::uint32_t split(Phase, View<const Request>) const noexcept { return 0; }
};
struct SmallestLink {
  void submit(const Copy&) noexcept {}
  void drop(Ticket) noexcept {}
  Seen seen() noexcept { return {}; }
  void fence(Fence) noexcept {}
  void wait(Ticket) {}
};

static_assert(ExpertRouter<SmallestRouter> && Predictor<SmallestPredictor> && QuantSelector<SmallestSelector> &&
              CachePolicy<SmallestCache> && Scheduler<SmallestScheduler> && Link<SmallestLink>);

struct MayThrow : SmallestCache {
  void touch(Variant, std::uint32_t) {}
};
struct WrongAnswer : SmallestCache {
  int victim(Variant, Barred) noexcept { return 0; }
};
struct NotCopyable : SmallestCache {
  NotCopyable(const NotCopyable&) {}
};
struct CannotWait : SmallestLink {
 private:
  using SmallestLink::wait;
};
static_assert(!CachePolicy<MayThrow> && !part::Touches<MayThrow>);
static_assert(!CachePolicy<WrongAnswer> && !part::ChoosesVictim<WrongAnswer>);
static_assert(!CachePolicy<NotCopyable> && !part::State<NotCopyable>);
static_assert(!Link<CannotWait> && !part::Waits<CannotWait>);

struct Checked : SmallestCache {
  const char* check() const noexcept { return nullptr; }
};
struct AnswersYesOrNo : SmallestCache {
  bool check() const noexcept { return true; }
};
static_assert(part::Checks<Checked> && !part::Checks<SmallestCache> && !part::Checks<AnswersYesOrNo>);

}  // namespace

TEST_CASE("bars are flags, and only those named count") {
  const std::uint8_t flags[] = {0, 1, 2, 3};
  const Barred two{flags, 2};
  CHECK_FALSE(two[0]);
  CHECK_FALSE(two[1]);
  CHECK(two[2]);
  CHECK(two[3]);
}
