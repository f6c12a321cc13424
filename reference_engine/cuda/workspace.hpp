/// @file
/// What the model and its experts' device share on a GPU.
#pragma once
#include <cublas_v2.h>

#include <memory>
#include <type_traits>
#include <variant>

#include "checkpoint/model_config.hpp"
#include "checkpoint/tensor.hpp"
#include "cuda/kernels.hpp"
#include "cuda/memory.hpp"

namespace ferry::engine::cuda {

/// Above so many rows of one expert, expanding its weights for cuBLAS costs less than reading them again for every few
/// rows.
inline constexpr std::uint32_t blas_rows = 4 * few_rows;

/// As kernels call a type that holds weights.
inline StoredType stored_type(DType type) {
  const PlainLayout layout = plain_layout(type, 1, 1);
  if (const auto* blocks = std::get_if<BlockLayout>(&layout)) return blocks->type;
  return std::get<PassThroughLayout>(layout).type;
}

struct Destroy {
  void operator()(cudaStream_t s) const {
    static_cast<void>(cudaStreamSynchronize(s));
    static_cast<void>(cudaStreamDestroy(s));
  }
  void operator()(cublasHandle_t b) const { static_cast<void>(cublasDestroy(b)); }
};
using StreamOwner = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy>;
using BlasOwner = std::unique_ptr<std::remove_pointer_t<cublasHandle_t>, Destroy>;

/// A stream for all computation, and the step's hidden states.
class Workspace {
 public:
  /// On the current device.
  explicit Workspace(const ModelConfig& config);
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// Has room for steps of so many rows. Throws InputError if the device has not.
  void reserve(std::uint32_t rows);

  [[nodiscard]] cudaStream_t stream() const { return context.stream; }
  [[nodiscard]] bool norms_behind() const { return config_.norm_place != NormPlace::before; }
  /// Whether gates, experts and the MLP beside them read hidden states by norms of their own.
  [[nodiscard]] bool reads_apart() const { return !config_.names.experts_norm.empty(); }
  [[nodiscard]] const float* of_experts() const { return reads_apart() ? expert_input : normed; }
  [[nodiscard]] const float* of_gate() const { return reads_apart() ? gate_input : normed; }
  /// Of what layers add to the hidden states.
  [[nodiscard]] float residual_scale() const { return static_cast<float>(config_.residual_scale); }

  Context context;
  std::shared_ptr<Account> account = std::make_shared<Account>();
  std::uint32_t rows = 0;  ///< of the step

  // On the device, in floats
  float *x = nullptr, *normed = nullptr;                 ///< [rows, hidden]: hidden states, and what is read of them
  float *expert_input = nullptr, *gate_input = nullptr;  ///< likewise, where these read something else
  float *partial = nullptr, *ahead = nullptr;            ///< [rows, hidden]: the same of a partial hidden state
  /// Of attention: [rows, (heads + 2 kv_heads) head_dim], [rows, heads head_dim]; of latent attention the queries alone, and
  /// [rows, heads rank]; of the delta rule [rows, channels], [rows, value_heads value_dim]; of
  /// convolutions [rows, 3 hidden], [rows, hidden].
  float *qkv = nullptr, *mixed = nullptr;
  float *shared = nullptr, *shared_factor = nullptr;  ///< [rows, hidden], [rows]; of dense MLPs and attention, too
  /// [rows, hidden] and [rows] or null: the shared expert's, where a norm comes behind the sum of all. Else null.
  float* beside = nullptr;
  const float* beside_factor = nullptr;
  /// Gates of what attention or the delta rule gives: [rows, heads head_dim or value_heads value_dim]; [rows, 2 value_heads].
  float *output_gates = nullptr, *rates = nullptr;
  /// Of latent attention: [rows, query_rank], [rows, rank + turned], [rows, heads (rank + turned)], [rows, heads value_dim].
  float *down = nullptr, *latent = nullptr, *queries = nullptr, *made = nullptr;
  float* activated = nullptr;    ///< [rows * top_k, widest routed expert], [rows, widest of the others]
  float* results = nullptr;      ///< [rows * top_k, hidden]
  float* gate_logits = nullptr;  ///< [1 + most_ahead, rows, experts]
  RowPlace* places = nullptr;    ///< [rows]
  std::byte* plan = nullptr;     ///< descriptors of a layer's tasks
  std::uint64_t plan_bytes = 0;
  std::uint32_t* numbers = nullptr;  ///< [rows]: 0, 1, 2, ...
  ExpertTask* mlp_tasks = nullptr;   ///< [layers], of shared experts and dense MLPs
  unsigned* counter = nullptr;       ///< of gates
  unsigned* progress = nullptr;      ///< [2 + experts], of groups of experts
  ExpertScratch expert_scratch;

  static constexpr std::uint32_t most_ahead = 4;  ///< layers whose gates are asked with one layer's input

 private:
  /// The most that any layer has.
  [[nodiscard]] std::uint32_t most_of(std::uint32_t LayerConfig::*what) const;

  const ModelConfig config_;
  StreamOwner stream_;
  BlasOwner blas_;
  std::uint32_t capacity_ = 0;
  DeviceBlock block_, scratch_, blas_memory_;
};

}  // namespace ferry::engine::cuda
