#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/agreement.hpp"
#include "cuda/cuda.hpp"
#include "cuda/cuda_device.hpp"
#include "cuda/device_weights.hpp"
#include "cuda/workspace.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace cuda {
namespace {

View<const float> view_of(const Matrix& m) {
  return {m.data(), static_cast<std::uint32_t>(m.size())};
}

/// DeepSeek's code has this for the norms of latent vectors, whatever epsilon config.json has for the others.
constexpr float latent_epsilon = 1e-6F;

class CudaModel final : public Model {
 public:
  explicit CudaModel(ModelFiles&& files);
  ~CudaModel() override;

  void add_precisions(PrecisionSet set) override;
  using Model::make_cache;
  [[nodiscard]] KvCache make_cache(const CacheRoom& room) const override;
  Matrix forward(Phase phase, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches, ExpertRunner& runner,
                 std::uint32_t logit_rows, const GateObserver& gate_scores) override;
  [[nodiscard]] std::unique_ptr<ExpertDevice> make_device(const DeviceNeeds& needs,
                                                          const RunnerOptions& options) override;
  [[nodiscard]] std::string device() const override { return device_; }
  [[nodiscard]] std::vector<std::pair<std::string, std::uint64_t>> device_memory() const override {
    const Account& a = *work_.account;
    return {{"weights", a.most[0]}, {"experts", a.most[1]}, {"keys_and_values", a.most[2]}, {"activations", a.most[3]}};
  }
  [[nodiscard]] std::uint64_t fixed_bytes() const override { return fixed_bytes_; }
  [[nodiscard]] std::uint64_t link_bytes_per_s() const override { return link_bytes_per_s_; }
  [[nodiscard]] std::string warning() const override { return warning_; }

 private:
  /// Page-locks the memory that the store holds so far.
  void pin();
  void unlock();
  void measure_link();
  void norm(const float* x, const NormWeights& weights, std::uint32_t n, float* y) const;
  /// The input of attention or experts: `hidden` normed, or a copy of it if norms only come behind.
  void norm_before(const float* hidden, const NormWeights& weights, float* input);
  /// Adds a layer's attention to `hidden` [rows, hidden], then makes the input of its MLP or gate. Without `keep`, layers
  /// whose memory cannot go back do not remember these rows.
  void attend(std::uint32_t layer, float* hidden, float* input, bool keep = true);
  /// From the attention's input to `work_.qkv` and `work_.mixed`; of latent attention to `work_.made`.
  void mix(std::uint32_t layer, const float* input);
  void mix_latent(std::uint32_t layer, const float* input);
  /// The same for layers without keys and values.
  void mix_remembered(std::uint32_t layer, const float* input, bool keep);
  [[nodiscard]] DeltaShape delta_shape() const;
  [[nodiscard]] ConvolutionShape convolution_shape() const {
    return {config().hidden, config().linear.kernel, before_.back()};
  }
  [[nodiscard]] Preparation preparation(std::uint32_t layer) const;
  /// Computes what comes before a gate: dense layers, and the attention of its own layer. `moe_layer` counts layers with
  /// experts alone, here and below.
  void to_gate(std::uint32_t moe_layer, float* hidden, float* gate_input, bool keep = true);
  /// Computes a layer's MLP or its shared expert. Adds it to `hidden`, or leaves it in the workspace's `beside` if all experts
  /// are added up first.
  void run_mlp(std::uint32_t layer, const float* input, float* hidden);
  /// out = `last_scale` * (hidden + the workspace's `shared`). `shared` is normed first if norms come behind, then multiplied
  /// by the model's residual scale, and by the sigmoid of `factor` if there is one.
  void add_shared(const float* hidden, const NormWeights& behind, const float* factor, float* out,
                  float last_scale = 1);
  /// Ends a layer with experts if norms come behind them: out = hidden + norm(experts in `shared`, and `beside`).
  void add_experts(std::uint32_t layer, const float* hidden, float* out);
  /// Computes `count` gates from that of `moe_layer` on, for one gate input: scores [count, rows, experts], or logits if the
  /// host turns them into scores. The kernel writes them to host memory itself, from `place` on, since a copy could queue
  /// behind experts.
  void score(std::uint32_t moe_layer, std::uint32_t count, const float* gate_input, std::uint32_t place);
  /// Reads the scores at a place; logits become scores.
  void read_scores(std::uint32_t moe_layer, std::uint32_t place, Matrix& select, Matrix& weight) const;
  /// What `score` wrote to a place.
  [[nodiscard]] View<const float> scored(std::uint32_t place) const {
    const std::uint32_t size = work_.rows * config().experts;
    return {scores_host_.as<float>() + std::size_t{place} * size, size};
  }
  /// The logits of the last `rows` rows; returns once the stream has got there.
  Matrix logits(std::uint32_t rows, ExpertRunner& runner);
  /// Waits until the stream has reached `event`, and keeps the link going meanwhile.
  static void wait(const Event& event, ExpertRunner& runner);

  std::string device_;
  Workspace work_;
  DeviceWeights weights_;
  std::vector<std::uint32_t> among_;  ///< a layer's number among those of its kind: with keys and values, or without
  std::vector<CacheNumbers> before_;  ///< [layers + 1], where each layer's cache begins, and where the last one ends
  bool pinned_ = false;
  std::string warning_;
  std::vector<std::pair<const std::byte*, std::size_t>> locked_;
  std::uint64_t link_bytes_per_s_ = 0, fixed_bytes_ = 0;
  std::uint32_t logits_rows_ = 0;
  DeviceBlock logits_;  ///< of as many rows as were ever asked for at once
  // On the host
  HostBlock scores_host_, input_host_, logits_host_;
  Matrix input_, gate_read_, unused_;
  /// Scores of a layer, of the next from a partial hidden state, and of those ahead.
  Matrix select_, weight_, partial_select_, partial_weight_, ahead_select_[Workspace::most_ahead],
      ahead_weight_[Workspace::most_ahead];
  Event step_begin_, layer_begin_, gate_begin_, gate_end_;
  Event shared_begin_[2], shared_end_[2];  ///< of even and odd layers
  Event read_{cudaEventDisableTiming}, partial_scored_{cudaEventDisableTiming};
  Times took_[2];                ///< a layer of the last step that was measured, by phase
  std::uint64_t steps_[2] = {};  ///< by phase
  std::vector<RowPlace> places_;
  std::vector<Scores> predicted_;
  std::vector<ExpertTask> mlp_tasks_;
};

CudaModel::CudaModel(ModelFiles&& files) : Model(files), work_(config()) {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  fixed_bytes_ = work_.account->bytes[static_cast<std::size_t>(Use::activations)] + margin_bytes(total);
  if (const std::string part = beyond_cuda(config(), store().layouts()); !part.empty()) {
    throw InputError(fmt::format("{} has {}, which the CUDA device does not compute yet; --device cpu computes it",
                                 config().architecture_name, part));
  }
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  device_ = properties.name;
  before_.emplace_back();
  std::uint32_t keyless = 0;  // layers without keys and values
  for (const LayerConfig& layer : config().layer) {
    const auto passed = static_cast<std::uint32_t>(among_.size());
    among_.push_back(layer.linear ? keyless++ : passed - keyless);
    const std::uint64_t own = config().latent.rank > 0 ? std::uint64_t{config().latent.rank} + config().rope.width
                                                       : std::uint64_t{2} * layer.kv_heads * layer.head_dim;
    before_.push_back(before_.back());
    if (!layer.linear) (layer.reach() > 0 ? before_.back().recent : before_.back().whole) += own;
  }
  weights_ = load_weights(*files.checkpoint, config(), work_.account);
  count_dense(weights_.dense_bytes, weights_.dense_weights);
  set_notes(check_agreement(*files.checkpoint, config()));
  measure_link();
  pin();  // last: what throws after it would leave memory locked
}

CudaModel::~CudaModel() {
  static_cast<void>(cudaStreamSynchronize(work_.stream()));
  unlock();
}

void CudaModel::pin() {
  const auto memory = store().fixed_memory();
  pinned_ = !memory.empty();
  warning_.clear();
  for (const auto& block : memory) {
    if (std::find(locked_.begin(), locked_.end(), block) != locked_.end()) continue;
    const cudaError_t error =
        cudaHostRegister(const_cast<std::byte*>(block.first), block.second, cudaHostRegisterDefault);
    if (error == cudaSuccess) {
      locked_.push_back(block);
      continue;
    }
    static_cast<void>(cudaGetLastError());
    warning_ = fmt::format("{} bytes of experts could not be page-locked ({}): all go through buffers that are, slower",
                           block.second, ferry::part::cuda_failure(error, "cudaHostRegister"));
    pinned_ = false;
    return unlock();  // page-locking only some would not help
  }
}

void CudaModel::unlock() {
  for (const auto& [at, bytes] : locked_) static_cast<void>(cudaHostUnregister(const_cast<std::byte*>(at)));
  locked_.clear();
}

void CudaModel::add_precisions(PrecisionSet set) {
  Model::add_precisions(set);
  pin();
}

/// Measures the link for policies that need its speed: prefetch windows and the load balancer.
void CudaModel::measure_link() {
  const std::uint64_t bytes = work_.context.scratch_floats * sizeof(float);  // 16 MiB or more
  const HostBlock from(bytes);
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    layer_begin_.record(work_.stream());
    check(cudaMemcpyAsync(work_.context.scratch, from.as<std::byte>(), bytes, cudaMemcpyHostToDevice, work_.stream()),
          "cudaMemcpyAsync");
    gate_end_.record(work_.stream());
    check(cudaEventSynchronize(gate_end_), "cudaEventSynchronize");
    best = std::max(best, static_cast<double>(bytes) * 1e9 /
                              static_cast<double>(std::max<Nanoseconds>(1, gate_end_.ns_since(layer_begin_))));
  }
  link_bytes_per_s_ = static_cast<std::uint64_t>(best);
}

KvCache CudaModel::make_cache(const CacheRoom& room) const {
  const std::uint64_t bytes = cache_bytes(config(), room);
  return {room, std::make_shared<DeviceBlock>(bytes, Use::cache, work_.account), bytes};
}

std::unique_ptr<ExpertDevice> CudaModel::make_device(const DeviceNeeds& needs, const RunnerOptions& options) {
  if (options.virtual_costs)
    throw InputError("--machine: imitates a link on the CPU device: leave it out, or name --device cpu");
  return make_cuda_device(work_, needs, options, pinned_);
}

void CudaModel::norm(const float* x, const NormWeights& weights, std::uint32_t n, float* y) const {
  const auto epsilon = static_cast<float>(config().norm_epsilon);
  const std::uint32_t hidden = config().hidden;
  if (config().norm == Norm::mean) {
    layer_norm(work_.stream(), x, weights.weight, weights.bias, epsilon, n, hidden, y);
  } else {
    rms_norm(work_.stream(), x, weights.weight, epsilon, n, hidden, hidden, y);
  }
}

Preparation CudaModel::preparation(std::uint32_t l) const {
  const ModelConfig& c = config();
  const Rope& rope = c.rope_of(c.layer[l]);
  const Frequencies& frequency = &rope == &c.rope ? weights_.frequency : weights_.window_frequency;
  Preparation p;
  p.frequency = frequency.usual;
  p.turned = rope.width;
  p.factor = static_cast<float>(rope.scale);
  p.long_from = rope.long_from;
  p.long_frequency = frequency.of_long;
  p.long_factor = static_cast<float>(rope.long_scale);
  p.value_norm = c.value_norm;
  p.epsilon = static_cast<float>(c.norm_epsilon);
  p.clip = static_cast<float>(c.clip);
  if (c.tuning.is_in(c.layer[l].turns)) {
    p.growth = {static_cast<float>(c.tuning.by), static_cast<float>(c.tuning.floor),
                static_cast<float>(c.tuning.first)};
  }
  return p;
}

void CudaModel::mix(std::uint32_t l, const float* input) {
  const ModelConfig& c = config();
  const LayerWeights& layer = weights_.layers[l];
  const std::uint32_t dim = c.layer[l].head_dim, kv_heads = c.layer[l].kv_heads;
  const std::uint32_t n = work_.rows, q_width = c.heads * dim, kv_width = kv_heads * dim;
  AttentionShape shape{c.heads, kv_heads, dim, static_cast<float>(c.attention_scale), c.layer[l].window};
  shape.sinks = layer.sinks;
  shape.chunk = c.layer[l].chunk;
  shape.recent = c.layer[l].reach() > 0;
  Preparation p = preparation(l);
  if (!c.layer[l].turns) p.turned = 0;
  linear(work_.context, input, n, layer.qkv, layer.qkv_bias, false, work_.qkv);
  if (c.head_norm == HeadNorm::all_before_rope) {
    const std::uint64_t stride = q_width + 2ULL * kv_width;
    rms_norm(work_.stream(), work_.qkv, layer.q_norm, p.epsilon, n, q_width, stride, work_.qkv);
    rms_norm(work_.stream(), work_.qkv + q_width, layer.k_norm, p.epsilon, n, kv_width, stride, work_.qkv + q_width);
  } else if (c.head_norm != HeadNorm::none && (c.head_norm != HeadNorm::plain_behind_rope || c.layer[l].turns)) {
    p.q_norm = layer.q_norm;
    p.k_norm = layer.k_norm;
    p.norm_behind = c.head_norm != HeadNorm::heads_before_rope;
  }
  prepare_and_store(work_.stream(), work_.qkv, p, work_.places, n, before_[l], shape);
  attention(work_.stream(), work_.qkv, work_.places, n, before_[l], shape, work_.mixed);
  if (!c.output_gate) return;
  linear(work_.context, input, n, layer.output_gate, layer.output_gate_bias, false, work_.output_gates);
  weigh(work_.stream(), work_.output_gates, std::uint64_t{n} * q_width, work_.mixed);
}

DeltaShape CudaModel::delta_shape() const {
  const LinearAttention& d = config().linear;
  return {d.key_heads, d.value_heads, d.key_dim, d.value_dim, d.kernel, d.tiled, before_.back()};
}

void CudaModel::mix_remembered(std::uint32_t l, const float* input, bool keep) {
  const LayerWeights& layer = weights_.layers[l];
  const std::uint32_t n = work_.rows;
  linear(work_.context, input, n, layer.qkv, nullptr, false, work_.qkv);
  if (config().linear.rule == LinearRule::convolution) {
    return short_convolution(work_.stream(), work_.qkv, layer.delta.kernel, work_.places, n, among_[l],
                             convolution_shape(), keep, work_.mixed);
  }
  linear(work_.context, input, n, layer.output_gate, nullptr, false, work_.output_gates);
  linear(work_.context, input, n, layer.rates, nullptr, false, work_.rates);
  delta(work_.stream(), work_.qkv, work_.output_gates, work_.rates, layer.delta, work_.places, n, among_[l],
        delta_shape(), keep, work_.mixed);
}

void CudaModel::mix_latent(std::uint32_t l, const float* input) {
  const ModelConfig& c = config();
  const LayerWeights& layer = weights_.layers[l];
  const std::uint32_t n = work_.rows, rank = c.latent.rank, width = rank + c.rope.width;
  if (c.latent.query_rank > 0) {
    linear(work_.context, input, n, layer.q_down, layer.q_down_bias, false, work_.down);
    rms_norm(work_.stream(), work_.down, layer.q_down_norm, latent_epsilon, n, c.latent.query_rank, c.latent.query_rank,
             work_.down);
    linear(work_.context, work_.down, n, layer.q, nullptr, false, work_.qkv);
  } else {
    linear(work_.context, input, n, layer.q, nullptr, false, work_.qkv);
  }
  linear(work_.context, input, n, layer.kv_down, layer.kv_bias, false, work_.latent);
  rms_norm(work_.stream(), work_.latent, layer.kv_norm, latent_epsilon, n, rank, width, work_.latent);
  place_latent(work_.stream(), work_.qkv, work_.latent, preparation(l), work_.places, n, among_[l],
               {c.heads, rank, c.latent.plain_dim, c.rope.neighbours}, work_.queries);
  HeadProducts h;
  h.type = layer.heads_type;
  h.heads = c.heads;
  h.weights = layer.keys;
  h.outputs = rank;
  h.inputs = c.latent.plain_dim;
  h.x = work_.qkv;
  h.x_head = c.head_dim;
  h.x_row = std::uint64_t{c.heads} * h.x_head;
  h.y = work_.queries;
  h.y_head = width;
  h.y_row = std::uint64_t{c.heads} * h.y_head;
  multiply_heads(work_.stream(), h, n);
  AttentionShape shape{c.heads, 1, width, static_cast<float>(c.attention_scale)};
  shape.latent = rank;
  attention(work_.stream(), work_.queries, work_.places, n, before_[l], shape, work_.mixed);
  h.weights = layer.values;
  h.outputs = c.value_dim;
  h.inputs = rank;
  h.x = work_.mixed;
  h.x_head = rank;
  h.x_row = std::uint64_t{c.heads} * rank;
  h.y = work_.made;
  h.y_head = c.value_dim;
  h.y_row = std::uint64_t{c.heads} * c.value_dim;
  multiply_heads(work_.stream(), h, n);
}

void CudaModel::norm_before(const float* hidden, const NormWeights& weights, float* input) {
  if (weights.weight != nullptr) return norm(hidden, weights, work_.rows, input);
  Combined c;  // a plain copy
  c.n = work_.rows;
  c.hidden = config().hidden;
  c.residual = hidden;
  combine(work_.stream(), c, input);
}

void CudaModel::attend(std::uint32_t l, float* hidden, float* input, bool keep) {
  const LayerWeights& layer = weights_.layers[l];
  const bool latent = config().latent.rank > 0;
  norm_before(hidden, layer.attention_norm, input);
  if (config().layer[l].linear) {
    mix_remembered(l, input, keep);
  } else if (latent) {
    mix_latent(l, input);
  } else {
    mix(l, input);
  }
  const float* mixed = latent ? work_.made : work_.mixed;
  if (config().residual_scale == 1 && !work_.norms_behind()) {
    linear(work_.context, mixed, work_.rows, layer.o, layer.o_bias, true, hidden);
  } else {
    linear(work_.context, mixed, work_.rows, layer.o, layer.o_bias, false, work_.shared);
    add_shared(hidden, layer.attention_behind, nullptr, hidden);
  }
  norm_before(hidden, layer.mlp_norm, input);
}

void CudaModel::to_gate(std::uint32_t moe_layer, float* hidden, float* gate_input, bool keep) {
  const std::uint32_t own = config().moe_layers[moe_layer];
  for (std::uint32_t l = moe_layer == 0 ? 0 : config().moe_layers[moe_layer - 1] + 1; l < own; ++l) {
    attend(l, hidden, gate_input, keep);
    run_mlp(l, gate_input, hidden);
  }
  attend(own, hidden, gate_input, keep);
}

void CudaModel::run_mlp(std::uint32_t l, const float* input, float* hidden) {
  const LayerWeights& layer = weights_.layers[l];
  const std::uint32_t n = work_.rows;
  const bool with_others = config().layer[l].moe && work_.norms_behind();
  float* out = with_others ? work_.beside : work_.shared;
  if (n > blas_rows) {
    expert_by_blas(work_.context, layer.mlp_shape, Precision::full, mlp_tasks_[l], work_.numbers, 1, nullptr, input,
                   work_.expert_scratch, out);
  } else {
    ExpertGroup one;
    one.tasks = work_.mlp_tasks + l;
    one.counts[static_cast<std::size_t>(Precision::full)] = 1;
    one.assignments = work_.numbers;
    one.top_k = 1;
    one.most_rows = n;
    one.progress = work_.progress;
    experts(work_.context, layer.mlp_shape, one, input, work_.activated, out);
  }
  const bool scaled = layer.shared_scale.rows > 0;
  if (scaled) linear(work_.context, input, n, layer.shared_scale, nullptr, false, work_.shared_factor);
  const float* factor = scaled ? work_.shared_factor : nullptr;
  if (with_others) {
    work_.beside_factor = factor;
    if (layer.shared_behind.weight != nullptr) norm(work_.beside, layer.shared_behind, n, work_.beside);
  } else {
    add_shared(hidden, layer.mlp_behind, factor, hidden);
  }
}

void CudaModel::add_experts(std::uint32_t l, const float* hidden, float* out) {
  const LayerWeights& layer = weights_.layers[l];
  if (work_.reads_apart()) {
    norm(work_.shared, layer.experts_behind, work_.rows, work_.shared);
    Combined both;
    both.n = work_.rows;
    both.hidden = config().hidden;
    both.residual = work_.beside;
    both.shared = work_.shared;
    combine(work_.stream(), both, work_.shared);
  }
  add_shared(hidden, layer.mlp_behind, nullptr, out, layer.scale);
}

void CudaModel::add_shared(const float* hidden, const NormWeights& behind, const float* factor, float* out,
                           float last_scale) {
  if (work_.norms_behind()) norm(work_.shared, behind, work_.rows, work_.shared);
  Combined c;
  c.n = work_.rows;
  c.hidden = config().hidden;
  c.residual = hidden;
  c.shared = work_.shared;
  c.shared_factor = factor;
  c.scale = static_cast<float>(config().residual_scale);
  c.last_scale = last_scale;
  combine(work_.stream(), c, out);
}

void CudaModel::score(std::uint32_t moe_layer, std::uint32_t count, const float* gate_input, std::uint32_t place) {
  const ModelConfig& c = config();
  DenseWeight gates = weights_.gates;
  gates.rows = count * c.experts;
  gates.data += moe_layer * weights_.gate_bytes;
  gate(work_.context, gate_input, work_.rows, gates, count, work_.gate_logits,
       scores_host_.on_device<float>() + std::size_t{place} * work_.rows * c.experts,
       plain_gates() ? work_.counter : nullptr, 0, nullptr);
}

void CudaModel::read_scores(std::uint32_t moe_layer, std::uint32_t place, Matrix& select, Matrix& weight) const {
  weight = Eigen::Map<const Matrix>(scored(place).data, work_.rows, config().experts);
  if (!plain_gates()) apply_gate_rule(moe_layer, select, weight);
}

void CudaModel::wait(const Event& event, ExpertRunner& runner) {
  while (!event.done()) runner.poll();
}

Matrix CudaModel::logits(std::uint32_t rows, ExpertRunner& runner) {
  const ModelConfig& c = config();
  const float* last = work_.x + std::size_t{work_.rows - rows} * c.hidden;
  norm(last, weights_.norm, rows, work_.normed);
  const std::uint64_t bytes = std::uint64_t{rows} * c.vocabulary * sizeof(float);
  if (logits_rows_ < rows) {
    logits_rows_ = 0;
    logits_ = {};
    logits_ = DeviceBlock(bytes, Use::activations, work_.account);
    logits_host_ = HostBlock(bytes);
    logits_rows_ = rows;
  }
  linear(work_.context, work_.normed, rows, weights_.head, weights_.head_bias, false, logits_.as<float>());
  check(cudaMemcpyAsync(logits_host_.as<float>(), logits_.data(), bytes, cudaMemcpyDeviceToHost, work_.stream()),
        "cudaMemcpyAsync");
  read_.record(work_.stream());
  wait(read_, runner);
  Matrix made = Eigen::Map<const Matrix>(logits_host_.as<float>(), rows, c.vocabulary);
  scale_logits(made);
  return made;
}

Matrix CudaModel::forward(Phase phase, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                          ExpertRunner& runner, std::uint32_t logit_rows, const GateObserver& gate_scores) {
  const ModelConfig& c = config();
  const auto n = static_cast<std::uint32_t>(rows.size());
  std::vector<std::uint32_t> sequences;
  places_.clear();
  for (const TokenRow& row : rows) {
    sequences.push_back(row.sequence);
    const KvCache& cache = caches[row.sequence];
    const auto& block = *static_cast<const DeviceBlock*>(cache.device.get());
    places_.push_back({block.as<float>(), cache.room.positions, row.position, row.token, cache.room.recent});
  }
  runner.begin_step(phase, sequences);
  work_.reserve(n);
  work_.rows = n;
  constexpr std::uint32_t partial_place = 1 + Workspace::most_ahead;  // the place of a partial hidden state's scores
  const std::uint64_t score_bytes = std::uint64_t{partial_place + 1} * n * c.experts * sizeof(float);
  if (scores_host_.bytes() < score_bytes) scores_host_ = HostBlock(score_bytes);
  put(work_.stream(), work_.places, places_.data(), places_.size() * sizeof(RowPlace));
  if (c.shared_width > 0 || c.moe_layer_count() < c.layers) {  // dense MLPs and shared experts are tasks with all rows
    mlp_tasks_.clear();
    for (const LayerWeights& layer : weights_.layers) mlp_tasks_.push_back({layer.mlp, 0, n});
    put(work_.stream(), work_.mlp_tasks, mlp_tasks_.data(), mlp_tasks_.size() * sizeof(ExpertTask));
  }
  embed(work_.stream(), weights_.embedding, work_.places, n, static_cast<float>(c.embedding_scale), work_.x);

  // Events cost time: most steps reuse the times of an earlier step of the same phase.
  Times& took = took_[static_cast<unsigned>(phase)];
  const bool measured = runner.log || steps_[static_cast<unsigned>(phase)]++ % 8 == 0;
  if (runner.log) step_begin_.record(work_.stream());  // the stream is idle, so this happens now
  const Nanoseconds origin = now_ns();
  auto span = [&](const char* name, const Event& begin, const Event& end) {
    if (!runner.log) return;
    const Nanoseconds from = origin + begin.ns_since(step_begin_);
    runner.spans.push_back({Lane::device, name, from, from + end.ns_since(begin), {}, false, Ticket::none});
  };
  bool input_wanted = false;
  const bool apart = work_.reads_apart();
  const std::uint64_t input_bytes = std::uint64_t{n} * c.hidden * sizeof(float);
  std::uint32_t count = 0;  ///< of gates
  auto queue_gate = [&](std::uint32_t l) {
    const GateWants wants = runner.gate_wants(static_cast<std::uint16_t>(l));
    input_wanted = wants.input || gate_scores;
    count = 1 + std::min<std::uint32_t>(wants.layers_ahead, Workspace::most_ahead);
    if (measured) layer_begin_.record(work_.stream());
    to_gate(l, work_.x, work_.normed);
    if (apart) {
      norm(work_.x, weights_.layers[c.moe_layers[l]].experts_norm, n, work_.expert_input);
      norm(work_.x, weights_.plain, n, work_.gate_input);
    }
    if (measured) gate_begin_.record(work_.stream());
    score(l, count, work_.of_gate(), 0);
    if (measured) gate_end_.record(work_.stream());
    if (input_wanted) {
      const std::uint64_t wanted = (apart ? 2 : 1) * input_bytes;
      if (input_host_.bytes() < wanted) input_host_ = HostBlock(wanted);
      auto bring = [&](const float* from, float* to) {
        check(cudaMemcpyAsync(to, from, input_bytes, cudaMemcpyDeviceToHost, work_.stream()), "cudaMemcpyAsync");
      };
      bring(work_.of_experts(), input_host_.as<float>());
      if (apart) bring(work_.gate_input, input_host_.as<float>() + std::size_t{n} * c.hidden);
    }
    read_.record(work_.stream());
    if (c.shared_width == 0) return;
    // The shared expert needs no plan: it keeps the device busy while the host reads the scores and decides.
    if (measured) shared_begin_[l % 2].record(work_.stream());
    run_mlp(c.moe_layers[l], work_.normed, work_.x);
    if (measured) shared_end_[l % 2].record(work_.stream());
  };
  auto look_ahead = [&](std::uint32_t l) {
    wait(partial_scored_, runner);
    read_scores(l, partial_place, partial_select_, partial_weight_);
    runner.look_ahead(static_cast<std::uint16_t>(l), scores(partial_select_, partial_weight_));
  };

  queue_gate(0);
  for (std::uint32_t l = 0; l < c.moe_layer_count(); ++l) {  // layers with experts
    const auto index = static_cast<std::uint16_t>(l);
    wait(read_, runner);  // the host needs each layer's scores to plan
    read_scores(l, 0, select_, weight_);
    GateScores said = scores(select_, weight_);
    if (input_wanted) {
      const float* input = input_host_.as<float>();
      input_ = Eigen::Map<const Matrix>(input, n, c.hidden);
      if (apart) {
        gate_read_ = Eigen::Map<const Matrix>(input + std::size_t{n} * c.hidden, n, c.hidden);
        said.read = &gate_read_;
      }
    }
    if (gate_scores) gate_scores(l, apart ? gate_read_ : input_, said);
    predicted_.clear();
    for (std::uint32_t i = 1; i < count; ++i) {
      if (plain_gates()) {  // no copy is needed
        predicted_.push_back({static_cast<std::uint16_t>(l + i), scored(i), scored(i)});
        continue;
      }
      Matrix &select = ahead_select_[i - 1], &weight = ahead_weight_[i - 1];
      read_scores(l + i, i, select, weight);
      const GateScores ahead = scores(select, weight);
      predicted_.push_back({static_cast<std::uint16_t>(l + i), view_of(ahead.select), view_of(ahead.weight)});
    }
    runner.predicted({predicted_.data(), static_cast<std::uint32_t>(predicted_.size())});
    if (measured) {
      Nanoseconds shared = 0;
      if (l > 0 && c.shared_width > 0) {  // that of this layer may still be running
        const unsigned before = (l - 1) % 2;
        shared = shared_end_[before].ns_since(shared_begin_[before]);
        span("shared expert", shared_begin_[before], shared_end_[before]);
      }
      took = {gate_begin_.ns_since(layer_begin_) + shared, gate_end_.ns_since(gate_begin_), 0, 0};
      span("attention", layer_begin_, gate_begin_);
      span("gate", gate_begin_, gate_end_);
    }
    runner.plan(index, input_, said, took);
    runner.run_resident(index, input_);
    const bool reads_partial = runner.wants_partial(index);
    if (reads_partial) {
      runner.partial(unused_);
      if (work_.norms_behind()) add_experts(c.moe_layers[l], work_.x, work_.partial);
      to_gate(l + 1, work_.partial, work_.ahead, false);  // its keys and values are overwritten by the real ones
      if (apart) norm(work_.partial, weights_.plain, n, work_.ahead);
      score(l + 1, 1, work_.ahead, partial_place);
      partial_scored_.record(work_.stream());
    }
    // If this layer waits for copies, the host looks ahead meanwhile. Otherwise it first queues the next layer's gate, so that
    // the device works while the host looks ahead.
    const bool looks_first = reads_partial && runner.waits();
    if (looks_first) look_ahead(l + 1);
    runner.run(index, input_, unused_);
    if (work_.norms_behind()) add_experts(c.moe_layers[l], work_.x, work_.x);
    if (l + 1 < c.moe_layer_count()) queue_gate(l + 1);
    if (reads_partial && !looks_first) look_ahead(l + 1);
    runner.finish(index);
  }
  for (std::uint32_t l = c.moe_layers.back() + 1; l < c.layers; ++l) {
    attend(l, work_.x, work_.normed);
    run_mlp(l, work_.normed, work_.x);
  }
  Matrix made = logits(logit_rows, runner);
  if (c.shared_width > 0) {
    const unsigned last = (c.moe_layer_count() - 1) % 2;
    span("shared expert", shared_begin_[last], shared_end_[last]);
  }
  return made;
}

}  // namespace
}  // namespace cuda

std::string no_cuda() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (error != cudaSuccess) return std::string("no GPU can be used: ") + cudaGetErrorString(error);
  if (count == 0) return "there is no GPU";
  const cudaError_t code = cuda::has_code();
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction ||
      code == cudaErrorUnsupportedPtxVersion) {
    int device = 0;
    cudaDeviceProp properties;
    cuda::check(cudaGetDevice(&device), "cudaGetDevice");
    cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    return fmt::format(
        "this build has no code for {} ({}): configure with -DCMAKE_CUDA_ARCHITECTURES={}{}, and a toolkit that still "
        "compiles for it",
        properties.name, cudaGetErrorString(code), properties.major, properties.minor);
  }
  return code == cudaSuccess ? "" : std::string("the GPU cannot be used: ") + cudaGetErrorString(code);
}

std::unique_ptr<Model> make_cuda_model(ModelFiles&& files) {
  return std::make_unique<cuda::CudaModel>(std::move(files));
}

}  // namespace ferry::engine
