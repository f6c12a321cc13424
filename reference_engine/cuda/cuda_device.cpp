#include "cuda/cuda_device.hpp"

#include <algorithm>
#include <deque>
#include <optional>

#include "ferry/link/cuda_stream.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine::cuda {
namespace {

class CudaDevice final : public ExpertDevice {
 public:
  CudaDevice(Workspace& work, const DeviceNeeds& needs, const RunnerOptions& o, bool pinned)
      : work_(work), top_k_(needs.model.top_k) {
    weighs_input_ = needs.layouts[0].glu.weighs_input;
    for (const ExpertLayout& l : needs.layouts) {
      shapes_.push_back({l.hidden,
                         l.width,
                         stored_type(l.type(0)),
                         l.group,
                         stored_type(l.type(2)),
                         l.biased,
                         {l.glu.clamped, l.glu.alpha, l.glu.limit, l.glu.gelu},
                         l.scaled});
    }
    work.reserve(needs.model.max_rows);
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const std::uint64_t arena = needs.allotment.offsets().back();
    if (arena + margin_bytes(total) > free) refuse(arena, Use::experts, *work.account);
    slots_.emplace(needs.allotment, needs.source, CudaSlots::Options{.pinned = pinned, .poison = o.poison});
    link_.emplace(*slots_, work.stream(),
                  CudaStream::Options{.prefetch_chunk_bytes = o.prefetch_chunk_bytes, .log = o.log});
    base_->end.record(work.stream());
    check(cudaEventSynchronize(base_->end), "cudaEventSynchronize");
    base_ns_ = now_ns();
    account_ = work.account;  // last: for what throws there is no destructor that takes it away again
    account_->add(Use::experts, arena);
  }
  ~CudaDevice() override {
    static_cast<void>(cudaStreamSynchronize(work_.stream()));
    account_->remove(Use::experts, slots_->bytes());
  }

  void submit(const Copy& copy) noexcept override { link_->submit(copy); }
  void drop(Ticket ticket) noexcept override { link_->drop(ticket); }
  [[nodiscard]] Seen seen() noexcept override { return link_->seen(); }
  void fence(Fence fence) noexcept override { link_->fence(fence); }
  void wait(Ticket ticket) override {
    Measured& m = measure("wait", nullptr);
    m.begin.record(work_.stream());
    link_->wait(ticket);
    m.end.record(work_.stream());
    m.stall = true;
  }
  void drain() override { link_->drain(); }
  [[nodiscard]] double peak_bytes_per_s() const override { return link_->peak_bytes_per_s(); }
  [[nodiscard]] std::vector<Span> link_spans() const override { return link_->spans(); }
  [[nodiscard]] std::uint64_t arena_bytes() const override { return slots_->bytes(); }

  void begin(const Plan& plan, const Matrix& /*input*/) override {
    static_cast<void>(link_->seen());  // makes the link start the last demand copy
    plan_ = plan;
    for (const View<const Task>& tasks : {plan.resident, plan.arriving}) {
      if (tasks.size > 0) layer_ = tasks[0].what.id.layer;
    }
    collect();
    describe();
  }
  void compute(View<const Task> tasks) override;
  void poison(std::uint32_t slot) override { slots_->poison(slot, work_.stream()); }
  [[nodiscard]] float* host_results() override {
    const std::uint64_t bytes = std::uint64_t{plan_.routes.size} * shape().hidden * sizeof(float);
    if (host_results_.bytes() < bytes) {
      check(cudaStreamSynchronize(work_.stream()), "cudaStreamSynchronize");  // it may still be read
      host_results_ = HostBlock(bytes);
    }
    return host_results_.as<float>();
  }
  /// If norms come behind the experts, writes only the sum of the experts' outputs, which the model norms and adds. The sum
  /// includes the shared experts unless these have a norm of their own.
  void partial(Matrix& /*out*/) const override {
    combine(state_at_ + plan_.routes.size, work_.norms_behind() ? work_.shared : work_.partial);
  }
  void add_up(Matrix& /*out*/) override { combine(state_at_, work_.norms_behind() ? work_.shared : work_.x); }
  void abandon() noexcept override {
    static_cast<void>(cudaStreamSynchronize(work_.stream()));
    measured_.clear();
  }
  [[nodiscard]] Nanoseconds expert_ns() const override { return expert_ns_; }
  [[nodiscard]] bool waits_itself() const override { return true; }
  [[nodiscard]] Nanoseconds take_stall_ns() override {
    collect();
    return std::exchange(stall_ns_, 0);
  }

 private:
  /// A part of the stream's work whose time is measured.
  struct Measured {
    Event begin, end;
    const char* name = "";
    std::optional<Variant> what;
    std::uint32_t experts = 0;
    bool stall = false;
  };

  /// Sends the plan's descriptors to the device in one copy.
  void describe();
  /// Computes tasks_[first .. first + count), sorted like resident tasks: by precision, those for cuBLAS last.
  void launch(std::uint32_t first, std::uint32_t count);
  void combine(std::uint64_t state_at, float* out) const;
  Measured& measure(const char* name, const Task* task) {
    if (spare_.empty()) {
      measured_.push_back(std::make_unique<Measured>());
    } else {
      measured_.push_back(std::move(spare_.back()));
      spare_.pop_back();
    }
    Measured& m = *measured_.back();
    m.name = name;
    m.what = task != nullptr ? std::optional(task->what) : std::nullopt;
    m.experts = 0;
    m.stall = false;
    return m;
  }
  /// Records the times of the work that the stream has finished.
  void collect();

  Workspace& work_;
  /// Of the plan's layer.
  [[nodiscard]] const ExpertShape& shape() const { return shapes_[shapes_.size() == 1 ? 0 : layer_]; }

  std::vector<ExpertShape> shapes_;  ///< one for all layers, or one a layer
  std::uint16_t layer_ = 0;          ///< of the plan
  std::uint32_t top_k_;
  bool weighs_input_ = false;  ///< experts' outputs are already weighted
  std::shared_ptr<Account> account_;
  std::optional<CudaSlots> slots_;
  std::optional<CudaStream> link_;
  HostBlock host_results_;
  Plan plan_;
  // The plan in the device's form: assignments, weights, states, states for `partial`, tasks
  std::vector<std::byte> described_;
  std::uint64_t weights_at_ = 0, state_at_ = 0, tasks_at_ = 0;
  std::vector<ExpertTask> tasks_;     ///< resident, by precision, those for cuBLAS last; then arriving
  std::vector<Precision> precision_;  ///< of each task
  // Times, known once the stream has got there
  std::deque<std::unique_ptr<Measured>> measured_;
  std::vector<std::unique_ptr<Measured>> spare_;
  std::uint64_t computed_ = 0;
  std::unique_ptr<Measured> base_ = std::make_unique<Measured>();  ///< times count from its end, at base_ns_
  Nanoseconds base_ns_ = 0, expert_ns_ = 0, stall_ns_ = 0;
};

void CudaDevice::describe() {
  const std::uint32_t routes = plan_.routes.size;
  tasks_.clear();
  precision_.clear();
  auto add = [&](const Task& t) {
    tasks_.push_back({slots_->slot(t.slot), t.first, t.rows});
    precision_.push_back(t.what.precision);
  };
  for (const bool by_blas : {false, true}) {
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      for (const Task& t : plan_.resident) {
        if (t.what.precision == static_cast<Precision>(p) && (t.rows > blas_rows) == by_blas) add(t);
      }
    }
  }
  for (const Task& t : plan_.arriving) add(t);

  auto filled = [](std::uint64_t bytes) { return (bytes + 63) / 64 * 64; };
  weights_at_ = filled(std::uint64_t{plan_.assignments.size} * 4);
  state_at_ = weights_at_ + filled(std::uint64_t{routes} * 4);
  tasks_at_ = state_at_ + filled(std::uint64_t{routes} * 2);
  described_.assign(tasks_at_ + tasks_.size() * sizeof(ExpertTask), std::byte{0});
  if (described_.size() > work_.plan_bytes) throw LinkError("a plan is larger than its step can be");
  std::memcpy(described_.data(), plan_.assignments.data, std::size_t{plan_.assignments.size} * 4);
  for (std::uint32_t a = 0; a < routes; ++a) {
    std::memcpy(described_.data() + weights_at_ + std::size_t{a} * 4, &plan_.routes[a].weight, 4);
  }
  auto mark = [&](View<const Task> tasks, std::uint64_t at, std::uint8_t state) {
    for (const Task& t : tasks) {
      for (std::uint32_t i = 0; i < t.rows; ++i) {
        described_[at + plan_.assignments[t.first + i]] = static_cast<std::byte>(state);
      }
    }
  };
  mark(plan_.resident, state_at_, on_device);
  mark(plan_.arriving, state_at_, on_device);
  mark(plan_.host, state_at_, on_host);
  mark(plan_.resident, state_at_ + routes, on_device);
  if (!tasks_.empty()) {
    std::memcpy(described_.data() + tasks_at_, tasks_.data(), tasks_.size() * sizeof(ExpertTask));
  }
  put(work_.stream(), work_.plan, described_.data(), described_.size());
}

void CudaDevice::compute(View<const Task> tasks) {
  if (tasks.size == 0) return;
  // Events cost time: without a log, measuring an expert now and then is enough.
  Measured* measured = nullptr;
  if (log != nullptr || computed_++ % 8 == 0) {
    measured = &measure(tasks.size == 1 ? "expert" : "experts", tasks.size == 1 ? tasks.begin() : nullptr);
    measured->begin.record(work_.stream());
  }
  if (tasks.data == plan_.resident.data) {
    launch(0, tasks.size);
  } else {
    const auto at = plan_.resident.size + static_cast<std::uint32_t>(tasks.data - plan_.arriving.data);
    for (std::uint32_t i = 0; i < tasks.size; ++i) launch(at + i, 1);
  }
  if (measured == nullptr) return;
  measured->end.record(work_.stream());
  measured->experts = tasks.size;
}

void CudaDevice::launch(std::uint32_t first, std::uint32_t count) {
  ExpertGroup group;
  group.tasks = reinterpret_cast<const ExpertTask*>(work_.plan + tasks_at_) + first;
  group.assignments = reinterpret_cast<const std::uint32_t*>(work_.plan);
  group.top_k = top_k_;
  group.progress = work_.progress;
  const auto* weights = reinterpret_cast<const float*>(work_.plan + weights_at_);
  group.weights = weighs_input_ ? weights : nullptr;
  std::uint32_t next = first;
  for (; next < first + count && tasks_[next].rows <= blas_rows; ++next) {
    ++group.counts[static_cast<std::size_t>(precision_[next])];
    group.most_rows = std::max(group.most_rows, tasks_[next].rows);
  }
  experts(work_.context, shape(), group, work_.of_experts(), work_.activated, work_.results);
  for (; next < first + count; ++next) {
    expert_by_blas(work_.context, shape(), precision_[next], tasks_[next], group.assignments, top_k_, group.weights,
                   work_.of_experts(), work_.expert_scratch, work_.results);
  }
}

void CudaDevice::combine(std::uint64_t state_at, float* out) const {
  Combined c;
  c.n = plan_.routes.size / top_k_;
  c.top_k = top_k_;
  c.hidden = shape().hidden;
  c.weights = weighs_input_ ? nullptr : reinterpret_cast<const float*>(work_.plan + weights_at_);
  c.state = reinterpret_cast<const std::uint8_t*>(work_.plan + state_at);
  c.results = work_.results;
  c.host_results = host_results_.on_device<float>();
  c.residual = work_.norms_behind() ? nullptr : work_.x;
  if (!work_.reads_apart()) {
    c.shared = work_.beside;
    c.shared_factor = work_.beside_factor;
  }
  c.scale = work_.norms_behind() ? 1 : work_.residual_scale();
  cuda::combine(work_.stream(), c, out);
}

void CudaDevice::collect() {
  while (!measured_.empty() && measured_.front()->end.done()) {
    Measured& m = *measured_.front();
    const Nanoseconds took = m.end.ns_since(m.begin);
    if (m.stall) stall_ns_ += took;
    if (m.experts > 0) expert_ns_ = took / m.experts;
    if (log != nullptr) {
      const Nanoseconds passed = m.begin.ns_since(base_->end), begin = base_ns_ + passed;
      log->push_back(
          {Lane::device, m.name, begin, begin + took, m.what.value_or(Variant{}), m.what.has_value(), Ticket::none});
      if (passed > 1'000'000'000) {  // times are floats of milliseconds, exact only near the base
        std::swap(base_, measured_.front());
        base_ns_ = begin + took;
      }
    }
    spare_.push_back(std::move(measured_.front()));
    measured_.pop_front();
  }
}

}  // namespace

std::unique_ptr<ExpertDevice> make_cuda_device(Workspace& work, const DeviceNeeds& needs, const RunnerOptions& options,
                                               bool pinned) {
  return std::make_unique<CudaDevice>(work, needs, options, pinned);
}

}  // namespace ferry::engine::cuda
