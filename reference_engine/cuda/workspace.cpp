#include "cuda/workspace.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "ferry/error.hpp"
#include "support/errors.hpp"

namespace ferry::engine::cuda {
namespace {

/// Places arrays one after another, each aligned to 256 bytes.
class Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}

  template <class T>
  T* next(std::uint64_t count) {
    const std::uint64_t at = size;
    size += (count * sizeof(T) + 255) / 256 * 256;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  std::uint64_t size = 0;

 private:
  std::byte* base_;
};

constexpr std::size_t blas_bytes = std::size_t{8} << 20U;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw LinkError(std::string(call) + ": " + cublasGetStatusString(status));
}

}  // namespace

Workspace::Workspace(const ModelConfig& config) : config_(config) {
  check(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_.reset(context.stream);
  check(cublasCreate(&context.blas), "cublasCreate");
  blas_.reset(context.blas);
  check(cublasSetStream(context.blas, context.stream), "cublasSetStream");
  blas_memory_ = DeviceBlock(blas_bytes, Use::activations, account);  // else cuBLAS allocates uncounted memory
  check(cublasSetWorkspace(context.blas, blas_memory_.data(), blas_bytes), "cublasSetWorkspace");
  // A tile of 4 Mi weights keeps cuBLAS busy, and is small compared with any model that needs a GPU.
  const std::uint64_t longest =
      std::max({config.hidden, config.expert_width, config.shared_width, config.dense_width,
                config.heads * std::max(most_of(&LayerConfig::head_dim), config.value_dim), config.latent.query_rank,
                config.linear.value_heads * config.linear.value_dim});
  context.scratch_floats = std::max<std::uint64_t>(longest, std::uint64_t{1} << 22U);
  scratch_ = DeviceBlock(context.scratch_floats * sizeof(float), Use::activations, account);
  context.scratch = scratch_.as<float>();
}

std::uint32_t Workspace::most_of(std::uint32_t LayerConfig::*what) const {
  std::uint32_t most = 0;
  for (const LayerConfig& l : config_.layer) most = std::max(most, l.*what);
  return most;
}

void Workspace::reserve(std::uint32_t most) {
  if (most <= capacity_) return;
  const ModelConfig& c = config_;
  const std::uint64_t n = most, routed = n * c.top_k;
  const std::uint32_t mlp_width = std::max({c.expert_width, c.shared_width, c.dense_width});
  const std::uint64_t widest = std::max<std::uint64_t>(routed * c.expert_width, n * mlp_width);
  auto lay = [&](std::byte* base) {
    Layout next(base);
    x = next.next<float>(n * c.hidden);
    normed = next.next<float>(n * c.hidden);
    partial = next.next<float>(n * c.hidden);
    ahead = next.next<float>(n * c.hidden);
    const bool absorbed = c.latent.rank > 0;
    const LinearAttention& d = c.linear;
    const std::uint32_t remembered = d.rule == LinearRule::convolution ? c.hidden : d.value_heads * d.value_dim;
    const std::uint32_t heads = c.heads * most_of(&LayerConfig::head_dim);
    const std::uint32_t channels = d.rule == LinearRule::convolution ? 3 * c.hidden : d.channels();
    std::uint32_t qkv_width = channels;
    for (const LayerConfig& l : c.layer) {
      qkv_width = std::max(qkv_width, (c.heads + (absorbed ? 0 : 2 * l.kv_heads)) * l.head_dim);
    }
    qkv = next.next<float>(n * qkv_width);
    mixed = next.next<float>(n * (absorbed ? c.heads * c.latent.rank : std::max(heads, remembered)));
    output_gates =
        next.next<float>(n * std::max(c.output_gate ? heads : 0, d.rule == LinearRule::convolution ? 0 : remembered));
    rates = next.next<float>(n * 2 * d.value_heads);
    if (norms_behind() && c.shared_width > 0) beside = next.next<float>(n * c.hidden);
    if (reads_apart()) {
      expert_input = next.next<float>(n * c.hidden);
      gate_input = next.next<float>(n * c.hidden);
    }
    if (absorbed) {
      const std::uint64_t width = c.latent.rank + c.rope.width;
      down = next.next<float>(n * c.latent.query_rank);
      latent = next.next<float>(n * width);
      queries = next.next<float>(n * c.heads * width);
      made = next.next<float>(n * c.heads * c.value_dim);
    }
    shared = next.next<float>(n * c.hidden);
    shared_factor = next.next<float>(n);
    activated = next.next<float>(widest);
    results = next.next<float>(routed * c.hidden);
    gate_logits = next.next<float>((1 + most_ahead) * n * c.experts);
    places = next.next<RowPlace>(n);
    // The number, weight and two states of each assignment, and the tasks.
    plan_bytes = routed * 10 + c.experts * sizeof(ExpertTask) + 5 * 64;
    plan = next.next<std::byte>(plan_bytes);
    numbers = next.next<std::uint32_t>(n);
    mlp_tasks = next.next<ExpertTask>(c.layers);
    counter = next.next<unsigned>(1);
    progress = next.next<unsigned>(2 + c.experts);
    expert_scratch.gathered = next.next<float>(n * c.hidden);
    expert_scratch.gate = next.next<float>(n * mlp_width);
    expert_scratch.up = next.next<float>(n * mlp_width);
    return next.size;
  };
  block_ = {};
  capacity_ = 0;
  block_ = DeviceBlock(lay(nullptr), Use::activations, account);
  lay(block_.data());
  check(cudaMemsetAsync(counter, 0, sizeof(*counter), stream()), "cudaMemsetAsync");
  check(cudaMemsetAsync(progress, 0, (2 + c.experts) * sizeof(*progress), stream()), "cudaMemsetAsync");
  std::vector<std::uint32_t> counted(most);
  std::iota(counted.begin(), counted.end(), 0U);
  put(stream(), numbers, counted.data(), counted.size() * sizeof(counted[0]));
  capacity_ = most;
}

}  // namespace ferry::engine::cuda
