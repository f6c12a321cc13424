// An engine that keeps its tensors: three banks (gate, up, down) in ggml's layout, of which only slots are on the device.
// Slot s is slice s of each bank, so a product with indirect experts (ggml's MUL_MAT_ID) runs from slots: it takes slots
// instead of experts as ids, and nb[2] is a slot's stride.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint16_t layers = 4, experts = 16, top_k = 2;
constexpr std::uint32_t dim = 24, inner = 40, rows = 3;
using Floats = std::vector<float>;
using Ids = std::vector<std::uint32_t>;

/// Made-up numbers between -1 and 1 for weights and activations. Slots begin with other such numbers, which no expert has.
Floats random(std::size_t count) {
  static std::mt19937 draw(1);
  Floats all(count);
  for (float& v : all) v = static_cast<float>(draw() % 2001) / 1000 - 1;
  return all;
}

/// A stack of matrices: ne[0] columns, ne[1] rows, ne[2] slices, and their strides nb in bytes.
struct Tensor {
  std::size_t ne[3], nb[3];
  Floats data;
  Tensor(std::size_t c, std::size_t r, std::size_t s) : ne{c, r, s}, nb{4, 4 * c, 4 * c * r}, data(random(c * r * s)) {}
  const float* row(std::size_t slice, std::size_t r) const { return &data[(slice * nb[2] + r * nb[1]) / 4]; }
};
struct Bank {
  Tensor gate, up, down;
  explicit Bank(std::size_t n) : gate(dim, inner, n), up(dim, inner, n), down(inner, dim, n) {}
};

/// y[i] = w[ids[i]] x[i / share], as MUL_MAT_ID computes it.
Floats mul_mat_id(const Tensor& w, const Floats& x, const Ids& ids, std::size_t share) {
  Floats y(ids.size() * w.ne[1]);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const float *weight = w.row(ids[i / w.ne[1]], i % w.ne[1]), *value = &x[i / w.ne[1] / share * w.ne[0]];
    for (std::size_t c = 0; c < w.ne[0]; ++c) y[i] += weight[c] * value[c];
  }
  return y;
}

/// A layer's routed experts, SwiGLU: [rows, dim]. One id a route.
Floats run_experts(const Bank& bank, const Floats& x, const Ids& ids, ferry::View<const ferry::Route> routes) {
  Floats gate = mul_mat_id(bank.gate, x, ids, top_k), y(x.size());
  const Floats up = mul_mat_id(bank.up, x, ids, top_k);
  for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
  const Floats out = mul_mat_id(bank.down, gate, ids, 1);
  for (std::uint32_t i = 0; i < out.size(); ++i) y[i / dim / top_k * dim + i % dim] += routes[i / dim].weight * out[i];
  return y;
}

/// Copies three slices an expert. An engine on a GPU starts three asynchronous copies here, and answers `seen`, `fence`
/// and `wait` by its events; concepts.hpp (Link) says what each has to keep.
struct BankLink {
  const std::vector<Bank>& host;
  Bank device;
  ferry::Seen done = {};
  void submit(const ferry::Copy& c) noexcept {
    for (const auto part : {&Bank::gate, &Bank::up, &Bank::down}) {
      Tensor& to = device.*part;
      std::memcpy(&to.data[c.slot * to.nb[2] / 4], (host[c.what.id.layer].*part).row(c.what.id.expert, 0), to.nb[2]);
    }
    (c.demand ? done.demand_landed : done.prefetch_landed) = c.ticket;
    done.prefetch_begun = done.prefetch_landed;
  }
  void drop(ferry::Ticket) noexcept {}
  ferry::Seen seen() noexcept { return done; }
  void fence(ferry::Fence) noexcept {}
  void wait(ferry::Ticket) {}
};

}  // namespace

int main() {
  std::vector<Bank> host;
  for (int l = 0; l < layers; ++l) host.emplace_back(experts);
  const Tensor gates(dim, experts, layers);
  using Stack = ferry::stacks::CrossLayerLru;
  ferry::CoreConfig<Stack> config;
  config.model = {{layers, experts, top_k, rows, ferry::Renormalise::yes}, {{0, 0, 0, 0, 3 * host[0].gate.nb[2]}}};
  // A product over all ids runs after all copies of its layer, so no copy may wait for the `done` of a task.
  Stack::set_up(config, {config.model.all_bytes() / 2, ferry::unwaited_stream_slots(config.model)});
  BankLink link{host, Bank(config.allotment.slots())};
  ferry::OffloadPipeline<Stack, BankLink> pipe(config, link);

  Floats x, scores, ahead;
  auto gate = [&](Floats& to, std::uint16_t layer) {  // [rows, experts]
    to = mul_mat_id(gates, x, Ids(rows, layer), 1);
    for (float& s : to) s = std::exp(s / 4);  // softmax without its sum, by which renormalising divides
    return ferry::Scores{layer, to, to};
  };
  for (int token = 0; token < 50; ++token) {
    x = random(rows * dim);
    pipe.begin_step({ferry::Phase::decode, Ids{0, 1, 2}});
    for (std::uint16_t l = 0; l < layers; ++l) {
      const ferry::Plan plan = pipe.plan(gate(scores, l));
      pipe.look_ahead(ferry::RowSource::gate_input, [&](auto next, auto /*distance*/) { return gate(ahead, next); });
      Ids slots(plan.routes.size), chosen;
      for (const auto& tasks : {plan.resident, plan.arriving})
        for (const ferry::Task& task : tasks) {
          pipe.wait(task);
          for (std::uint32_t i = 0; i < task.rows; ++i) slots[plan.assignments[task.first + i]] = task.slot;
        }
      const Floats y = run_experts(link.device, x, slots, plan.routes);
      pipe.finish(l);
      for (const ferry::Route& r : plan.routes) chosen.push_back(r.expert);
      if (y != run_experts(host[l], x, chosen, plan.routes)) return std::puts("wrong numbers!"), 1;
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i] / 50;
    }
  }
  std::printf("%.1f%% hits, right numbers\n", 100 * pipe.counters().of(ferry::Phase::decode).hit_rate());
}
