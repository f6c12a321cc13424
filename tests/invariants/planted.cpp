// Shows that the checker can fail: each violation, planted by hand, is caught under its own number.
#include <doctest/doctest.h>

#include <future>

#include "ferry/link/host_thread.hpp"
#include "support/invariant_checker.hpp"
#include "support/shapes.hpp"
#include "support/watchdog.hpp"

namespace {

using namespace ferry;
using namespace ferry::test;

template <class F>
int caught(F&& f) {
  try {
    f();
  } catch (const Violation& v) {
    return v.invariant;
  }
  return 0;
}

/// 2 layers, 4 experts, top-1, one pool of 2 slots and 2 stream slots (number 2 and 3).
struct Bench {
  ModelShape m = model(2, 4, 1, 4);
  Allotment a = one_pool(m, 4 * 64);
  InvariantChecker checker{m, a, 2};
  Route route{0, 1.0F};
  std::uint32_t assignment = 0;

  Plan plan_of(const Task& t, bool arriving) {
    route.expert = t.what.id.expert;
    Plan p;
    p.routes = {&route, 1};
    p.assignments = {&assignment, 1};
    (arriving ? p.arriving : p.resident) = {&t, 1};
    return p;
  }
  static Commands submitting(const Copy& c) { return {{}, {&c, 1}}; }

  /// Layer 0 loads `expert` into `slot`.
  void load(std::uint16_t expert, std::uint32_t slot, std::uint64_t ticket) {
    checker.begin_step(Phase::decode, 1);
    const Copy c{Ticket{ticket}, full(0, expert), slot, Fence::none, true};
    const Task t{full(0, expert), slot, 0, 1, no_task, Ticket{ticket}, false};
    checker.plan(0, plan_of(t, true), submitting(c));
  }
};

TEST_CASE("the checker accepts what is right") {
  Bench b;
  CHECK(caught([&] {
          b.load(0, 0, 2);
          b.checker.finish(Fence{1}, {});
          const Copy prefetch{Ticket{5}, full(1, 3), 1, Fence::none, false};
          b.checker.look_ahead(Bench::submitting(prefetch));
        }) == 0);
}

TEST_CASE("planted violations of invariant 1 are caught") {
  Bench b;
  b.load(0, 0, 2);
  SUBCASE("one expert in two slots") {
    b.checker.finish(Fence{1}, {});
    CHECK(caught([&] { b.load(0, 1, 4); }) == 1);
  }
  SUBCASE("two tasks in one slot") {
    const Task two[] = {{full(0, 0), 0, 0, 1, no_task, Ticket::none, false},
                        {full(0, 1), 0, 1, 1, no_task, Ticket::none, false}};
    Plan p;
    p.resident = {two, 2};
    CHECK(caught([&] { b.checker.plan(0, p, {}); }) == 1);
  }
  SUBCASE("a resident task whose slot holds another expert") {
    b.checker.finish(Fence{1}, {});
    const Task t{full(0, 1), 0, 0, 1, no_task, Ticket::none, false};
    CHECK(caught([&] { b.checker.plan(0, b.plan_of(t, false), {}); }) == 1);
  }
  SUBCASE("more slots than the budget holds") {
    CHECK(caught([&] { check_budget(4 * 64 - 1, b.a); }) == 1);
  }
  SUBCASE("an expert larger than its slot") {
    ModelShape large = b.m;
    large.expert_bytes[0][4] = 65;
    InvariantChecker checker(large, b.a);
    const Copy c{Ticket{3}, full(0, 0), 0, Fence::none, false};
    CHECK(caught([&] { checker.look_ahead(Bench::submitting(c)); }) == 1);
  }
}

TEST_CASE("planted violations of invariant 2 are caught") {
  Bench b;
  b.load(0, 0, 2);
  SUBCASE("a prefetch evicts what the step still computes") {
    const Copy c{Ticket{5}, full(1, 1), 0, Fence{9}, false};
    CHECK(caught([&] { b.checker.look_ahead(Bench::submitting(c)); }) == 2);
  }
  SUBCASE("a demand copy of the same layer evicts a hit") {
    const Task hit{full(0, 0), 0, 0, 1, no_task, Ticket::none, false};
    const Copy c{Ticket{4}, full(0, 1), 0, Fence{9}, true};
    CHECK(caught([&] { b.checker.plan(0, b.plan_of(hit, false), Bench::submitting(c)); }) == 2);
  }
  SUBCASE("an assignment that nobody computes") {
    b.checker.finish(Fence{1}, {});
    Plan p = b.plan_of({full(0, 0), 0, 0, 1, no_task, Ticket::none, false}, false);
    p.resident = {};
    CHECK(caught([&] { b.checker.plan(0, p, {}); }) == 2);
  }
  SUBCASE("a wave's copy that starts before its slot is done") {
    const Copy c{Ticket{4}, full(0, 1), 2, Fence{9}, true};
    CHECK(caught([&] { b.checker.done({}, Fence{9}, Bench::submitting(c)); }) == 2);
  }
}

TEST_CASE("a planted violation of invariant 3 is caught: a copy that does not wait for the last reader") {
  Bench b;
  b.load(0, 0, 2);
  b.checker.finish(Fence{7}, {});
  const Copy early{Ticket{5}, full(1, 1), 0, Fence{6}, false};
  CHECK(caught([&] { b.checker.look_ahead(Bench::submitting(early)); }) == 3);
  const Copy right{Ticket{5}, full(1, 1), 0, Fence{7}, false};
  CHECK(caught([&] { b.checker.look_ahead(Bench::submitting(right)); }) == 0);
}

TEST_CASE("planted violations of invariant 4 are caught") {
  Bench b;
  auto copied = [](std::uint64_t ticket) { return Span{Lane::link, "copy", 0, 1, {}, true, Ticket{ticket}}; };
  SUBCASE("a prefetch ahead of a demand copy that was known") {
    CHECK(caught([&] { InvariantChecker::service_order({copied(3), copied(4)}, {{Ticket{4}, Ticket{2}}}); }) == 4);
    CHECK(caught([&] { InvariantChecker::service_order({copied(3), copied(4)}, {{Ticket{4}, Ticket{3}}}); }) == 0);
  }
  SUBCASE("a prefetch that was overtaken goes on behind a later one") {
    CHECK(caught([&] { InvariantChecker::service_order({copied(3), copied(4), copied(3)}, {}); }) == 0);
    CHECK(caught([&] { InvariantChecker::service_order({copied(3), copied(4), copied(5), copied(3)}, {}); }) == 4);
  }
  SUBCASE("demand copies out of order") {
    CHECK(caught([&] { InvariantChecker::service_order({copied(4), copied(2)}, {}); }) == 4);
  }
  SUBCASE("a late hit that waits for another copy") {
    const Copy c{Ticket{5}, full(0, 1), 1, Fence::none, false};
    b.checker.look_ahead(Bench::submitting(c));
    const Task t{full(0, 1), 1, 0, 1, no_task, Ticket{4}, false};
    CHECK(caught([&] { b.checker.plan(0, b.plan_of(t, true), {}); }) == 4);
  }
  SUBCASE("a prefetch ahead of a demand copy that waits for its slot") {
    const Task two[] = {{full(0, 1), 2, 0, 1, no_task, Ticket{4}, true}, {full(0, 2), 2, 1, 1, 0, Ticket{6}, true}};
    const Route routes[] = {{1, 1.0F}, {2, 1.0F}};
    const std::uint32_t assignments[] = {0, 1};
    const Copy c{Ticket{4}, full(0, 1), 2, Fence::none, true};
    Plan p;
    p.routes = {routes, 2};
    p.assignments = {assignments, 2};
    p.arriving = {two, 2};
    b.checker.finish(Fence{1}, {});
    b.checker.plan(0, p, Bench::submitting(c));
    const Copy early{Ticket{9}, full(1, 1), 1, Fence::none, false};
    CHECK(caught([&] { b.checker.look_ahead(Bench::submitting(early)); }) == 4);
  }
  SUBCASE("a demand copy that is dropped") {
    const Ticket demand{2};
    CHECK(caught([&] { b.checker.look_ahead({{&demand, 1}, {}}); }) == 4);
  }
}

TEST_CASE("a planted violation of invariant 7 is caught: no stream slots though not everything fits") {
  Bench b;
  b.a.stream_slots = 1;
  b.a.pools[0].slots = 0;
  CHECK(caught([&] { check_budget(4 * 64, b.a); }) == 7);
}

TEST_CASE("a planted violation of invariant 8 is caught: a long prefill evicts") {
  Bench b;
  b.load(0, 0, 2);
  b.checker.finish(Fence{1}, {});
  b.checker.begin_step(Phase::prefill, 3);
  const Copy c{Ticket{4}, full(0, 1), 0, Fence{1}, true};
  const Task t{full(0, 1), 0, 0, 1, no_task, Ticket{4}, false};
  CHECK(caught([&] { b.checker.plan(0, b.plan_of(t, true), Bench::submitting(c)); }) == 8);
}

TEST_CASE("a planted hang is found: a source that gives no bytes") {
  const ModelShape m = model(1, 4, 1);
  std::promise<void> found;
  const std::shared_future<void> until_found = found.get_future().share();
  SlotMemory memory(
      one_pool(m, 4 * 64),
      [&](Variant) -> View<const std::byte> {
        until_found.wait();
        throw std::runtime_error("it hung");
      },
      true);
  HostThread link(memory, {});
  const Watchdog watchdog(std::chrono::milliseconds(20), [&] { found.set_value(); });
  link.submit({Ticket{2}, full(0, 1), 0, Fence::none, true});
  CHECK_THROWS_WITH_AS(link.wait(Ticket{2}), "a copy failed: it hung", LinkError);
}

}  // namespace
