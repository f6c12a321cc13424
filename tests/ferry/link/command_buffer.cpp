#include "ferry/link/command_buffer.hpp"

#include <doctest/doctest.h>

#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"
#include "support/command_worker.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

Copy copy(std::uint64_t ticket, std::uint32_t slot) {
  return {Ticket{ticket}, full(0, 3), slot, Fence{7}, ticket % 2 == 0};
}

/// What the other side carries out, in order: the commands, then the tasks that depend on them.
struct Group {
  std::vector<Command> commands;
  std::vector<Task> tasks;
};

/// Decides `steps` steps of an engine. `pass_on(group)` is called before anything that depends on the group.
template <class Stack, class PassOn>
Counters decide(const CoreConfig<Stack>& config, CommandBuffer& buffer, int steps, std::uint64_t seed,
                const PassOn& pass_on) {
  OffloadPipeline<Stack, CommandBuffer> pipe(config, buffer);
  Random random(seed);
  const ModelShape& m = config.model;
  for (int step = 0; step < steps; ++step) {
    const bool prefill = random.chance(20);
    const std::uint32_t rows = random.between(1, m.max_rows);
    pipe.begin_step(StepOf(prefill ? Phase::prefill : Phase::decode, rows));
    for (std::uint16_t l = 0; l < m.layers; ++l) {
      const auto of_layer = random.scores(std::size_t{rows} * m.experts), ahead = random.scores(of_layer.size());
      const auto run = [&](View<const Task> tasks) {
        Group group{{buffer.commands().begin(), buffer.commands().end()}, {tasks.begin(), tasks.end()}};
        buffer.clear();
        pass_on(group);
        pipe.done(tasks);
      };
      const Plan plan = pipe.plan(scores(l, of_layer));
      pipe.look_ahead(RowSource::gate_input, [&](std::uint16_t next, std::uint16_t) { return scores(next, ahead); });
      run(plan.resident);
      for (const Task& t : plan.arriving) {
        pipe.wait(t);
        run({&t, 1});
      }
      pipe.finish(l);
    }
  }
  return pipe.counters();
}

template <class Stack>
CoreConfig<Stack> config_of(std::uint64_t slots) {
  CoreConfig<Stack> c;
  c.model = model(4, 12, 2, 5, 64, 16);
  Stack::set_up(c, 64 * slots);
  return c;
}

template <class Stack>
void carries_out(std::uint64_t slots) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const CoreConfig<Stack> config = config_of<Stack>(slots);

    // The commands are carried out beside the computation, at their own pace.
    CommandBuffer buffer(CommandBuffer::Progress::reported);
    CommandWorker worker(config.allotment.slots());
    Random pace(seed + 100);
    std::uint64_t ran = 0, right = 0;
    Counters counters = decide(config, buffer, 30, seed, [&](const Group& group) {
      worker.take(group.commands);
      for (const Task& t : group.tasks) {
        ++ran;
        right += worker.slot(t.slot) == t.what ? 1U : 0U;
      }
      while (pace.chance(40) && worker.copy_one()) {
      }
      if (pace.chance(70)) buffer.report(worker.seen());
    });
    CHECK(right == ran);
    CHECK(ran == counters.of(Phase::prefill).requests + counters.of(Phase::decode).requests);

    // The commands are carried out in order, after everything has been decided.
    CommandBuffer in_order;
    std::vector<Group> log;
    counters = decide(config, in_order, 30, seed, [&](const Group& group) { log.push_back(group); });
    std::vector<Variant> device(config.allotment.slots());
    ran = right = 0;
    for (const Group& group : log) {
      for (const Command& c : group.commands) {
        CHECK(c.kind != Command::Kind::drop);
        if (c.kind == Command::Kind::copy) device[c.copy.slot] = c.copy.what;
      }
      for (const Task& t : group.tasks) {
        ++ran;
        right += device[t.slot] == t.what ? 1U : 0U;
      }
    }
    CHECK(right == ran);
    CHECK(ran == counters.of(Phase::prefill).requests + counters.of(Phase::decode).requests);
  }
}

}  // namespace

TEST_CASE("a command buffer keeps what its pipeline wants done, in order, until it is cleared") {
  CommandBuffer buffer;
  CHECK(buffer.commands().size == 0);
  buffer.fence(Fence{7});
  buffer.submit(copy(4, 1));
  buffer.submit(copy(7, 2));
  buffer.drop(Ticket{7});
  buffer.wait(Ticket{4});
  const View<const Command> all = buffer.commands();
  REQUIRE(all.size == 5);
  CHECK(all[0].kind == Command::Kind::fence);
  CHECK(all[0].copy.after == Fence{7});
  CHECK(all[1].kind == Command::Kind::copy);
  CHECK(all[1].copy.ticket == Ticket{4});
  CHECK(all[1].copy.slot == 1);
  CHECK(all[1].copy.what == full(0, 3));
  CHECK(all[1].copy.after == Fence{7});
  CHECK(all[1].copy.demand);
  CHECK(all[2].copy.slot == 2);
  CHECK_FALSE(all[2].copy.demand);
  CHECK(all[3].kind == Command::Kind::drop);
  CHECK(all[3].copy.ticket == Ticket{7});
  CHECK(all[4].kind == Command::Kind::wait);
  CHECK(all[4].copy.ticket == Ticket{4});
  buffer.clear();
  CHECK(buffer.commands().size == 0);
  CHECK_THROWS_AS(buffer.wait(Ticket{6}), LinkError);
  CHECK(buffer.commands().size == 0);
  static_assert(std::is_trivially_copyable_v<Command>);
}

TEST_CASE("a command buffer that is carried out in order counts each copy as landed, another one what is reported") {
  CommandBuffer in_order;
  in_order.submit(copy(4, 1));
  CHECK(in_order.seen().demand_landed == Ticket{4});
  CHECK(in_order.seen().prefetch_landed == Ticket::none);
  in_order.submit(copy(9, 1));
  CHECK(in_order.seen().demand_landed == Ticket{4});
  CHECK(in_order.seen().prefetch_begun == Ticket{9});
  CHECK(in_order.seen().prefetch_landed == Ticket{9});

  CommandBuffer reported(CommandBuffer::Progress::reported);
  reported.submit(copy(2, 1));
  reported.submit(copy(4, 1));
  for (const std::uint64_t prefetch : {1U, 3U, 5U}) reported.submit(copy(prefetch, 1));
  CHECK(reported.seen().demand_landed == Ticket::none);
  reported.report({Ticket{4}, Ticket{3}, Ticket{1}, 50, 8});
  CHECK(reported.seen().demand_landed == Ticket{4});
  CHECK(reported.seen().prefetch_begun == Ticket{3});
  CHECK(reported.seen().prefetch_landed == Ticket{1});
  CHECK(reported.seen().link_ns == 50);
  CHECK(reported.seen().chunk_ns == 8);
  reported.report({Ticket{2}, Ticket{5}, Ticket::none, 0});  // overtaken by the one before
  CHECK(reported.seen().demand_landed == Ticket{4});
  CHECK(reported.seen().prefetch_begun == Ticket{5});
  CHECK(reported.seen().prefetch_landed == Ticket{1});
  CHECK(reported.seen().link_ns == 0);
  CHECK(reported.seen().chunk_ns == 0);
  for (const Seen& wrong : {Seen{Ticket{6}}, Seen{Ticket{4}, Ticket{7}}, Seen{Ticket{4}, Ticket{5}, Ticket{7}}}) {
    CHECK_THROWS_AS(reported.report(wrong), UsageError);
  }
  CHECK(reported.seen().demand_landed == Ticket{4});
  CHECK_THROWS_AS(in_order.report({Ticket{4}}), UsageError);
}

TEST_CASE("a command buffer serves one pipeline, and no copy of another's counts as landed") {
  for (const auto progress : {CommandBuffer::Progress::in_order, CommandBuffer::Progress::reported}) {
    CommandBuffer buffer(progress);
    buffer.submit(copy(4, 1));
    if (progress == CommandBuffer::Progress::reported) buffer.report({Ticket{4}});
    buffer.wait(Ticket{4});
    buffer.clear();
    buffer.submit(copy(2, 1));
    CHECK(buffer.seen().demand_landed == Ticket::none);
    CHECK(buffer.commands().size == 0);
    CHECK_THROWS_WITH_AS(buffer.wait(Ticket{2}), doctest::Contains("has served another pipeline"), LinkError);
    if (progress == CommandBuffer::Progress::reported) buffer.report({Ticket{2}});
    CHECK(buffer.seen().demand_landed == Ticket::none);
  }
}

TEST_CASE("whoever carries out a command buffer's commands has each expert in its slot when it runs") {
  carries_out<stacks::LruCache>(16);
  carries_out<stacks::CrossLayerLru>(20);
  carries_out<stacks::CrossLayerLru>(5);
  carries_out<stacks::FateCache>(24);
  carries_out<stacks::OnDemand>(3);
}
