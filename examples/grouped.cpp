// An engine that computes a layer's experts in one grouped kernel, which runs after all copies of its layer. The budget
// therefore includes a stream slot for each expert that a layer can ask for: with fewer, a copy may wait for a task's `done`.
#include <array>
#include <cstdio>
#include <numeric>
#include <random>

#include "ferry/link/host_thread.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint32_t layers = 4, experts = 32, top_k = 3;
constexpr std::uint32_t dim = 16, rows = 8;
using Floats = std::vector<float>;

/// One problem of a grouped kernel: where the weights [dim, dim] are, and which part of the list of rows they apply to.
struct Group {
  const float* weights;
  std::uint32_t first, rows;
};

void multiply(const float* weights, const float* x, float* y) {
  for (std::uint32_t o = 0; o < dim; ++o) {
    y[o] = 0;
    for (std::uint32_t i = 0; i < dim; ++i) y[o] += weights[o * dim + i] * x[i];
  }
}

/// The kernel. Entry a of the list is row a / top_k of x [rows, dim], and row a of y [rows * top_k, dim].
void grouped_product(const std::vector<Group>& groups, ferry::View<const std::uint32_t> list, const Floats& x,
                     Floats& y) {
  for (const Group& g : groups) {
    for (const std::uint32_t a : list.part(g.first, g.rows)) multiply(g.weights, &x[a / top_k * dim], &y[a * dim]);
  }
}

/// The sum over each row's experts, always in the order of their ranks, whatever group was computed first.
Floats combine(ferry::View<const ferry::Route> routes, const Floats& y) {
  Floats sum(rows * dim);
  for (std::uint32_t i = 0; i < routes.size * dim; ++i) {
    sum[i / dim / top_k * dim + i % dim] += routes[i / dim].weight * y[i];
  }
  return sum;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  auto number = [&] { return static_cast<float>(random() % 1000) / 1000; };
  Floats host(std::size_t{layers} * experts * dim * dim);
  for (float& w : host) w = number() - 0.5F;
  auto weights_of = [&](ferry::ExpertId id) { return &host[(id.layer * experts + id.expert) * dim * dim]; };

  using Stack = ferry::stacks::CrossLayerLru;
  ferry::CoreConfig<Stack> config;
  constexpr std::uint32_t bytes = dim * dim * sizeof(float);
  config.model = {{layers, experts, top_k, rows, ferry::Renormalise::yes}, {{0, 0, 0, 0, bytes}}};
  Stack::set_up(config, {config.model.all_bytes() / 2, ferry::unwaited_stream_slots(config.model)});
  ferry::SlotMemory memory(config.allotment, [&](ferry::Variant v) -> ferry::HeldBytes {
    return ferry::View<const std::byte>{reinterpret_cast<const std::byte*>(weights_of(v.id)), bytes};
  });
  ferry::HostThread link(memory, {});
  ferry::OffloadPipeline<Stack, ferry::HostThread> pipe(config, link);

  Floats taste(layers * rows * experts), x(rows * dim);  // taste: of each row, which experts it likes, drifting
  auto scores = [&](std::uint16_t layer) {
    const ferry::View<const float> all(&taste[layer * rows * experts], rows * experts);
    return ferry::Scores{layer, all, all};
  };
  std::array<std::uint32_t, rows> sequences;
  std::iota(sequences.begin(), sequences.end(), 0U);
  std::uint32_t launches = 0, groups_run = 0;
  for (int step = 0; step < 50; ++step) {
    for (float& t : taste) t = 0.95F * t + 0.05F * number();
    for (float& v : x) v = number();
    pipe.begin_step({ferry::Phase::decode, sequences});
    for (std::uint16_t l = 0; l < layers; ++l) {
      const ferry::Plan plan = pipe.plan(scores(l));
      pipe.look_ahead(ferry::RowSource::gate_input, [&](auto next, auto /*distance*/) { return scores(next); });
      std::vector<Group> groups;
      auto add = [&](const ferry::Task& task) {
        groups.push_back({reinterpret_cast<const float*>(memory.slot(task.slot)), task.first, task.rows});
      };
      for (const ferry::Task& task : plan.resident) add(task);
      for (const ferry::Task& task : plan.arriving) {
        if (task.freed_by != ferry::no_task) return std::puts("a copy waits for a task"), 1;
        pipe.wait(task);  // on a GPU the stream waits, and this thread goes on
        add(task);
      }
      Floats y(rows * top_k * dim), expected(rows * top_k * dim);
      grouped_product(groups, plan.assignments, x, y);
      ++launches;
      groups_run += static_cast<std::uint32_t>(groups.size());
      pipe.finish(l);  // ends all tasks, so `done` is left out

      for (std::uint32_t a = 0; a < plan.routes.size; ++a) {
        multiply(weights_of({l, plan.routes[a].expert}), &x[a / top_k * dim], &expected[a * dim]);
      }
      if (combine(plan.routes, y) != combine(plan.routes, expected)) return std::puts("wrong numbers!"), 1;
    }
  }
  const ferry::Outcomes& o = pipe.counters().of(ferry::Phase::decode);
  std::printf("%u launches for %u experts, %.1f%% hits\n", launches, groups_run, 100 * o.hit_rate());
  return o.requests == groups_run ? 0 : 1;
}
