#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cublas_v2.h"
#include "operation.hpp"

struct cublasContext {
  std::uint64_t magic;
  cudaStream_t stream = nullptr;
  bool results_on_device = false;
};

namespace ferry::test::emulated {

namespace {

constexpr std::uint64_t magic = 0x43554250414C4953;

float from_f16(std::uint16_t bits) {
  const int exponent = bits >> 10U & 31U;
  const auto mantissa = static_cast<float>(bits & 1023U);
  float v = std::ldexp(exponent == 0 ? mantissa : mantissa + 1024, std::max(exponent, 1) - 25);
  if (exponent == 31) v = mantissa == 0 ? INFINITY : NAN;
  return (bits & 0x8000U) != 0 ? -v : v;
}
float from_bf16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16U;
  float v = 0;
  std::memcpy(&v, &wide, sizeof v);
  return v;
}

std::uint64_t bytes_of(cudaDataType type) {
  return type == CUDA_R_32F ? 4 : 2;
}

/// A matrix as stored, column-major: [rows, columns], with `stride` elements from one column to the next.
struct Stored {
  const void* data;
  cudaDataType type;
  int rows, columns, stride;

  [[nodiscard]] float at(int row, int column) const {
    const auto i = static_cast<std::size_t>(column) * static_cast<std::size_t>(stride) + static_cast<std::size_t>(row);
    switch (type) {
      case CUDA_R_16F:
        return from_f16(static_cast<const std::uint16_t*>(data)[i]);
      case CUDA_R_16BF:
        return from_bf16(static_cast<const std::uint16_t*>(data)[i]);
      default:
        return static_cast<const float*>(data)[i];
    }
  }
  /// From the first to the last element.
  [[nodiscard]] std::uint64_t bytes() const {
    return (static_cast<std::uint64_t>(columns - 1) * static_cast<std::uint64_t>(stride) +
            static_cast<std::uint64_t>(rows)) *
           bytes_of(type);
  }
};

class Gemm : public Operation {
 public:
  Gemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, Stored a, Stored b, float beta, float* c,
       int ldc)
      : Operation(launch_ns),
        transpose_a_(transpose_a),
        transpose_b_(transpose_b),
        m_(m),
        n_(n),
        k_(k),
        alpha_(alpha),
        beta_(beta),
        a_(a),
        b_(b),
        c_(c),
        ldc_(ldc) {}

  bool step(bool /*whole*/) override {
    const auto k = static_cast<std::size_t>(k_);
    std::vector<float> rows(k * tile);                             // [k, tile] of op(A)
    std::vector<float> columns(k * static_cast<std::size_t>(n_));  // [n, k] of op(B)
    for (int j = 0; j < n_; ++j) {
      for (int l = 0; l < k_; ++l) {
        columns[static_cast<std::size_t>(j) * k + static_cast<std::size_t>(l)] =
            transpose_b_ ? b_.at(j, l) : b_.at(l, j);
      }
    }
    for (int i = 0; i < m_; i += tile) {
      const int here = std::min(tile, m_ - i);
      for (int r = 0; r < here; ++r) {
        for (int l = 0; l < k_; ++l) {
          rows[static_cast<std::size_t>(l * tile + r)] = transpose_a_ ? a_.at(l, i + r) : a_.at(i + r, l);
        }
      }
      for (int j = 0; j < n_; ++j) {
        float sums[tile] = {};
        const float* column = columns.data() + static_cast<std::size_t>(j) * k;
        for (std::size_t l = 0; l < k; ++l) {
          for (std::size_t r = 0; r < tile; ++r) sums[r] += rows[l * tile + r] * column[l];
        }
        float* c = c_ + static_cast<std::size_t>(j) * static_cast<std::size_t>(ldc_) + i;
        for (int r = 0; r < here; ++r) c[r] = alpha_ * sums[r] + (beta_ == 0 ? 0 : beta_ * c[r]);
      }
    }
    return true;
  }
  [[nodiscard]] std::string text() const override {
    return "matrix product of " + std::to_string(m_) + " x " + std::to_string(n_) + " x " + std::to_string(k_);
  }

 private:
  static constexpr int tile = 16;

  bool transpose_a_, transpose_b_;
  int m_, n_, k_;
  float alpha_, beta_;
  Stored a_, b_;
  float* c_;
  int ldc_;
};

class Sum : public Operation {
 public:
  Sum(int n, const float* x, int step, float* result) : Operation(launch_ns), n_(n), x_(x), step_(step), to_(result) {}

  bool step(bool /*whole*/) override {
    float sum = 0;
    for (int i = 0; i < n_; ++i) sum += std::fabs(x_[static_cast<std::size_t>(i) * static_cast<std::size_t>(step_)]);
    *to_ = sum;
    return true;
  }
  [[nodiscard]] std::string text() const override { return "sum of " + std::to_string(n_) + " magnitudes"; }

 private:
  int n_;
  const float* x_;
  int step_;
  float* to_;
};

cublasStatus_t status_of(cudaError_t error) {
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

bool lives(cublasHandle_t handle) {
  return handle != nullptr && handle->magic == magic;
}

bool known(cudaDataType type) {
  return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

/// Dies if bytes lie outside of device memory. cuBLAS does not check that: there the device would be lost.
void check_reach(const char* call, const char* which, const void* data, std::uint64_t bytes) {
  if (device_reaches(data, bytes)) return;
  die(std::string(call) + ": the " + std::to_string(bytes) + " bytes of " + which + " are not all in device memory");
}

cublasStatus_t gemm(const char* call, cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                    int n, int k, const float* alpha, Stored a, Stored b, const float* beta, float* c, int ldc) {
  if (!lives(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  a.rows = op_a == CUBLAS_OP_N ? m : k;
  a.columns = op_a == CUBLAS_OP_N ? k : m;
  b.rows = op_b == CUBLAS_OP_N ? k : n;
  b.columns = op_b == CUBLAS_OP_N ? n : k;
  if (a.stride < std::max(a.rows, 1) || b.stride < std::max(b.rows, 1) || ldc < std::max(m, 1)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (m == 0 || n == 0) return status_of(touch(call));
  if (k > 0) {
    check_reach(call, "A", a.data, a.bytes());
    check_reach(call, "B", b.data, b.bytes());
  }
  check_reach(call, "C", c, Stored{c, CUDA_R_32F, m, n, ldc}.bytes());
  return status_of(
      submit(call, handle->stream,
             std::make_unique<Gemm>(op_a != CUBLAS_OP_N, op_b != CUBLAS_OP_N, m, n, k, *alpha, a, b, *beta, c, ldc)));
}

struct StatusText {
  cublasStatus_t status;
  const char* name;
  const char* text;
};
constexpr StatusText status_texts[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "invalid argument"},
    {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH", "the device lacks a feature"},
    {CUBLAS_STATUS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR", "memory was not accessible"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the program failed on the device"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "not supported"},
    {CUBLAS_STATUS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR", "a license is missing"},
};
const StatusText* find_text(cublasStatus_t status) {
  for (const StatusText& t : status_texts) {
    if (t.status == status) return &t;
  }
  return nullptr;
}

}  // namespace

}  // namespace ferry::test::emulated

using namespace ferry::test::emulated;

const char* cublasGetStatusName(cublasStatus_t status) {
  const StatusText* text = find_text(status);
  return text == nullptr ? "unknown status" : text->name;
}
const char* cublasGetStatusString(cublasStatus_t status) {
  const StatusText* text = find_text(status);
  return text == nullptr ? "unknown status" : text->text;
}

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = nullptr;
  if (touch("cublasCreate") != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext{magic};
  note_blas_handle(*handle, true);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  if (!lives(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  const cublasStatus_t status = status_of(touch("cublasDestroy"));
  note_blas_handle(handle, false);
  delete handle;
  return status;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (!lives(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  return status_of(touch("cublasSetStream"));
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  if (!lives(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes > 0) check_reach("cublasSetWorkspace", "the workspace", workspace, bytes);
  return status_of(touch("cublasSetWorkspace"));
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t /*mode*/) {
  if (!lives(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  return status_of(touch("cublasSetMathMode"));
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
  if (!lives(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->results_on_device = mode == CUBLAS_POINTER_MODE_DEVICE;
  return status_of(touch("cublasSetPointerMode"));
}

cublasStatus_t cublasSasum(cublasHandle_t handle, int n, const float* x, int step, float* result) {
  if (!lives(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!handle->results_on_device) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  check_reach("cublasSasum", "the result", result, sizeof(float));
  const bool any = n > 0 && step > 0;
  if (any) check_reach("cublasSasum", "x", x, Stored{x, CUDA_R_32F, 1, n, step}.bytes());
  return status_of(submit("cublasSasum", handle->stream, std::make_unique<Sum>(any ? n : 0, x, step, result)));
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                           const float* alpha, const float* a, int lda, const float* b, int ldb, const float* beta,
                           float* c, int ldc) {
  return gemm("cublasSgemm", handle, op_a, op_b, m, n, k, alpha, {a, CUDA_R_32F, 0, 0, lda}, {b, CUDA_R_32F, 0, 0, ldb},
              beta, c, ldc);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType type_a, int lda, const void* b,
                            cudaDataType type_b, int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t /*algorithm*/) {
  if (!lives(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool f32 = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                   compute == CUBLAS_COMPUTE_32F_FAST_16F || compute == CUBLAS_COMPUTE_32F_FAST_16BF ||
                   compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (!f32 || !known(type_a) || type_a != type_b || type_c != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return gemm("cublasGemmEx", handle, op_a, op_b, m, n, k, static_cast<const float*>(alpha), {a, type_a, 0, 0, lda},
              {b, type_b, 0, 0, ldb}, static_cast<const float*>(beta), static_cast<float*>(c), ldc);
}
