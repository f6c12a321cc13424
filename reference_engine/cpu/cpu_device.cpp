#include "cpu/cpu_device.hpp"

#include <algorithm>
#include <utility>

#include "ferry/link/host_thread.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "math/expert_kernel.hpp"
#include "support/clock.hpp"

namespace ferry::engine {
namespace {

/// Slots borrow the store's memory, so that nothing is copied. Real copies are made only if they have to take time, or if
/// freed slots are filled with NaN to reveal late reads.
SlotMemory slots_of(const DeviceNeeds& needs, const RunnerOptions& o) {
  const bool takes_time = o.link_bytes_per_s > 0 && !o.virtual_costs;
  if (o.poison || takes_time) return {needs.allotment, needs.source, o.poison};
  return SlotMemory::borrowing(needs.allotment, needs.source);
}

template <class LinkT>
class CpuDevice : public ExpertDevice {
 public:
  template <class... Arguments>
  CpuDevice(const DeviceNeeds& needs, const RunnerOptions& options, Arguments&&... link)
      : kernel_(needs.layouts, best_path(), options.workers, options.activations),
        memory_(slots_of(needs, options)),
        link_(make_link(std::forward<Arguments>(link)...)),
        top_k_(needs.model.top_k),
        weighs_input_(needs.layouts[0].glu.weighs_input) {}

  void submit(const Copy& copy) noexcept override { link_->submit(copy); }
  void drop(Ticket ticket) noexcept override { link_->drop(ticket); }
  [[nodiscard]] Seen seen() noexcept override { return link_->seen(); }
  void fence(Fence fence) noexcept override { link_->fence(fence); }
  void wait(Ticket ticket) override { link_->wait(ticket); }
  void drain() override {
    if constexpr (requires { link_->drain(); }) link_->drain();
  }
  [[nodiscard]] double peak_bytes_per_s() const override { return link_->peak_bytes_per_s(); }
  [[nodiscard]] std::vector<Span> link_spans() const override { return link_->spans(); }
  [[nodiscard]] std::uint64_t arena_bytes() const override { return memory_.bytes(); }

  void begin(const Plan& plan, const Matrix& input) override {
    plan_ = plan;
    input_ = &input;
    resize(results_, static_cast<Eigen::Index>(plan.routes.size), input.cols());
    expert_ns_ = 0;
  }
  void compute(View<const Task> tasks) override {
    if (tasks.size == 0) return;
    work_.clear();
    std::uint32_t rows = 0;
    for (const Task& t : tasks) {
      work_.push_back(work_of(plan_, t, memory_.slot(t.slot)));
      rows += t.rows;
    }
    const Nanoseconds begin = now_ns();
    kernel_.run(work_, top_k_, *input_, results_.data());
    const Nanoseconds took = now_ns() - begin;
    std::uint32_t done = 0;
    for (const Task& t : tasks) {  // computed together: each gets its rows' share of the time
      const Nanoseconds from = begin + took * done / rows, to = begin + took * (done + t.rows) / rows;
      done += t.rows;
      if (log != nullptr) log->push_back({Lane::device, "expert", from, to, t.what, true, Ticket::none});
      expert_ns_ = pass_expert(t, to - from);
    }
  }
  void poison(std::uint32_t slot) override { memory_.poison(slot); }
  [[nodiscard]] float* host_results() override { return results_.data(); }
  void partial(Matrix& out) const override {
    out.setZero(static_cast<Eigen::Index>(plan_.routes.size / top_k_), results_.cols());
    for (const Task& t : plan_.resident) {
      for (std::uint32_t i = 0; i < t.rows; ++i) add(plan_.assignments[t.first + i], out);
    }
  }
  void add_up(Matrix& out) override {
    out.setZero(input_->rows(), input_->cols());
    for (std::uint32_t a = 0; a < plan_.routes.size; ++a) {  // by rank: results must not depend on arrival
      if (plan_.routes[a].expert != no_expert) add(a, out);
    }
  }
  [[nodiscard]] Nanoseconds expert_ns() const override { return expert_ns_; }

 protected:
  /// Called for each task that was computed. Returns the time that it counts with.
  virtual Nanoseconds pass_expert(const Task& /*task*/, Nanoseconds measured) { return measured; }
  [[nodiscard]] LinkT& link() const { return *link_; }

 private:
  std::unique_ptr<LinkT> make_link(const HostThread::Options& o) { return std::make_unique<LinkT>(memory_, o); }
  std::unique_ptr<LinkT> make_link(const ModelShape& model, const VirtualClock::Options& o) {
    return std::make_unique<LinkT>(model, o, &memory_);
  }

  /// Adds the weighted result of assignment `a` to its row.
  void add(std::uint32_t a, Matrix& out) const {
    const float weight = weighs_input_ ? 1.0F : plan_.routes[a].weight;  // weighed inputs: it is in the result
    out.row(static_cast<Eigen::Index>(a / top_k_)) += weight * results_.row(static_cast<Eigen::Index>(a));
  }

  ExpertKernel kernel_;
  SlotMemory memory_;
  std::unique_ptr<LinkT> link_;
  std::uint32_t top_k_;
  bool weighs_input_;
  Plan plan_;
  const Matrix* input_ = nullptr;
  std::vector<ExpertKernel::Work> work_;
  Matrix results_;  // [rows * k, hidden]: every assignment's output, weighed and summed at the end
  Nanoseconds expert_ns_ = 0;
};

class VirtualDevice final : public CpuDevice<VirtualClock>, private VirtualTime {
 public:
  VirtualDevice(const DeviceNeeds& needs, const RunnerOptions& o)
      : CpuDevice(needs, o, needs.model, VirtualClock::options(*o.virtual_costs, o.log)),
        costs_(*o.virtual_costs),
        model_(needs.model) {
    costs_.validate(model_);
  }

  [[nodiscard]] VirtualTime* virtual_time() override { return this; }
  [[nodiscard]] bool waits_itself() const override { return true; }
  [[nodiscard]] Nanoseconds take_stall_ns() override {
    return link().stall_ns() - std::exchange(stall_taken_, link().stall_ns());
  }

 private:
  Nanoseconds pass_gate(std::uint16_t layer, std::uint32_t rows) override {
    const Nanoseconds ns = costs_.dense(layer, rows);
    link().device(ns, "attention, gate");
    link().sync();  // the host reads the gate
    return ns;
  }
  void pass_partial(std::uint16_t layer, std::uint32_t rows) override {
    link().device(costs_.dense(layer, rows), "partial hidden state");
    link().sync_device();  // the host reads the scores
  }
  Nanoseconds pass_on_host(View<const Task> tasks, std::uint32_t rows) override {
    host_before_ = link().host_ns();  // read anew: the last step may have been abandoned
    link().host(tasks, costs_, rows);
    Nanoseconds on_device = 0;
    for (const Task& t : tasks) on_device += costs_.on_device(t.what.id.layer, bytes(t), t.rows);
    return on_device;
  }
  Joined pass_join() override {
    const Nanoseconds waited = link().sync();
    return {link().host_ns() - host_before_, waited};
  }
  [[nodiscard]] Nanoseconds device_done() const override { return std::max(link().device_free(), link().now()); }

  Nanoseconds pass_expert(const Task& task, Nanoseconds /*measured*/) override {
    const Nanoseconds ns = costs_.on_device(task.what.id.layer, bytes(task), task.rows);
    link().device(ns, "expert", &task.what);
    return ns;
  }
  [[nodiscard]] std::uint64_t bytes(const Task& task) const {
    return model_.bytes(task.what.id.layer, task.what.precision);
  }

  Costs costs_;
  ModelShape model_;
  Nanoseconds stall_taken_ = 0, host_before_ = 0;
};

}  // namespace

std::unique_ptr<ExpertDevice> make_cpu_device(const DeviceNeeds& needs, const RunnerOptions& o) {
  if (o.virtual_costs) return std::make_unique<VirtualDevice>(needs, o);
  return std::make_unique<CpuDevice<HostThread>>(needs, o,
                                                 HostThread::Options{
                                                     .bytes_per_s = o.link_bytes_per_s,
                                                     .log = o.log,
                                                     .linger_ns = o.linger_ns,
                                                     .prefetch_chunk_bytes = static_cast<std::uint32_t>(
                                                         std::min<std::uint64_t>(o.prefetch_chunk_bytes, 1U << 31U)),
                                                 });
}

}  // namespace ferry::engine
