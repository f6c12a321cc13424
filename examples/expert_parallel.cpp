// Expert parallelism: rank r owns the experts e with e % ranks == r, and keeps some of them on its device. Every rank gets
// the routes of the whole layer; those to experts of other ranks become `no_expert`, which asks for nothing. The engine's
// own top-k decides, and what the ranks computed is added up in the order of the routes.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>

#include "ferry/link/host_thread.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint32_t layers = 4, experts = 32, top_k = 4, ranks = 4, rows = 6, dim = 16;
using Floats = std::vector<float>;

/// Stands for an expert: y = weights [dim] times x [dim], number by number.
void run_expert(const float* weights, const float* x, float* y) {
  for (std::uint32_t i = 0; i < dim; ++i) y[i] = weights[i] * x[i];
}

/// One rank, whose model has only the experts that it owns, numbered from 0: expert e is e / ranks on rank e % ranks.
class Rank {
  using Stack = ferry::stacks::LruCache;

 public:
  Rank(std::uint32_t rank, const Floats& host)
      : rank_(rank),
        config_(configure()),
        memory_(config_.allotment,
                [&host, rank](ferry::Variant v) -> ferry::HeldBytes {
                  const float* weights = &host[(v.id.layer * experts + v.id.expert * ranks + rank) * dim];
                  return ferry::View<const std::byte>{reinterpret_cast<const std::byte*>(weights), dim * sizeof(float)};
                }),
        link_(memory_, {}),
        pipe_(config_, link_) {}

  void begin_step(ferry::View<const std::uint32_t> sequences) { pipe_.begin_step({ferry::Phase::decode, sequences}); }

  /// Writes what the rank's own experts compute from x [rows, dim] to their places in y [rows * top_k, dim].
  void layer(std::uint16_t l, std::vector<ferry::Route> routes, const Floats& x, Floats& y) {
    for (ferry::Route& r : routes) {
      const bool own = r.expert % ranks == rank_;
      r.expert = own ? static_cast<std::uint16_t>(r.expert / ranks) : ferry::no_expert;
    }
    const ferry::Plan plan = pipe_.plan(l, routes);
    auto compute = [&](const ferry::Task& task) {
      const float* weights = reinterpret_cast<const float*>(memory_.slot(task.slot));
      for (std::uint32_t i = 0; i < task.rows; ++i) {
        const std::uint32_t a = plan.assignments[task.first + i];
        run_expert(weights, &x[a / top_k * dim], &y[a * dim]);
      }
    };
    for (const ferry::Task& task : plan.resident) compute(task);
    pipe_.done(plan.resident);
    for (const ferry::Task& task : plan.arriving) {
      pipe_.wait(task);
      compute(task);
      pipe_.done(task);
    }
    pipe_.finish(l);
  }
  const ferry::Outcomes& outcomes() const { return pipe_.counters().of(ferry::Phase::decode); }

 private:
  static ferry::CoreConfig<Stack> configure() {
    ferry::CoreConfig<Stack> config;
    config.model = {{layers, experts / ranks, top_k, rows, ferry::Renormalise::yes},
                    {{0, 0, 0, 0, dim * sizeof(float)}}};
    Stack::set_up(config, config.model.all_bytes() / 2);
    return config;
  }

  std::uint32_t rank_;
  ferry::CoreConfig<Stack> config_;
  ferry::SlotMemory memory_;
  ferry::HostThread link_;
  ferry::OffloadPipeline<Stack, ferry::HostThread> pipe_;
};

}  // namespace

int main() {
  std::mt19937 random(1);
  auto number = [&] { return static_cast<float>(random() % 1000) / 1000; };
  Floats host(layers * experts * dim), taste(layers * rows * experts), x(rows * dim);
  for (float& w : host) w = number() - 0.5F;
  std::vector<std::unique_ptr<Rank>> all;  // in a real engine one a process, or a thread
  for (std::uint32_t r = 0; r < ranks; ++r) all.push_back(std::make_unique<Rank>(r, host));

  const std::uint32_t sequences[rows] = {0, 1, 2, 3, 4, 5};
  for (int step = 0; step < 100; ++step) {
    for (float& t : taste) t = 0.9F * t + 0.1F * number();
    for (float& v : x) v = number();
    for (const auto& rank : all) rank->begin_step(sequences);
    for (std::uint16_t l = 0; l < layers; ++l) {
      std::vector<ferry::Route> routes;  // [rows, top_k], best first
      for (std::uint32_t row = 0; row < rows; ++row) {
        const float* liked = &taste[(l * rows + row) * experts];
        std::vector<std::uint16_t> order(experts);
        std::iota(order.begin(), order.end(), std::uint16_t{0});
        std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                          [&](std::uint16_t a, std::uint16_t b) { return liked[a] > liked[b]; });
        for (std::uint32_t k = 0; k < top_k; ++k) routes.push_back({order[k], liked[order[k]]});
      }
      Floats y(rows * top_k * dim, 1e30F), expected(y.size());
      for (const auto& rank : all) rank->layer(l, routes, x, y);  // in a real engine: dispatch and combine
      for (std::uint32_t a = 0; a < routes.size(); ++a) {
        run_expert(&host[(l * experts + routes[a].expert) * dim], &x[a / top_k * dim], &expected[a * dim]);
      }
      if (y != expected) return std::puts("wrong numbers!"), 1;
    }
  }
  for (const auto& rank : all) std::printf("%.1f%% hits\n", 100 * rank->outcomes().hit_rate());
}
