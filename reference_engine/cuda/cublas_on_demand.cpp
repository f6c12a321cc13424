// The functions of cuBLAS that the engine calls. The library is loaded when the first one is called, so when a CUDA device is
// made: linked as usual, its 600 MB were mapped and relocated by every command, which then took four times as long to begin.
#include <cublas_v2.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "support/errors.hpp"

namespace {

/// As the system finds it, or else where it was when this was compiled. Throws InputError.
void* load() {
  const std::string name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
  for (const std::string& file : {name, std::string(FERRY_CUBLAS)}) {
    if (void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  const char* const why = ::dlerror();
  throw ferry::engine::InputError(fmt::format("{}: cannot be loaded: {}; expected cuBLAS of CUDA {}, or --device cpu",
                                              name, why == nullptr ? "no reason is known" : why, CUBLAS_VER_MAJOR));
}

template <class Function>
Function* find(const char* name) {
  static void* const library = load();
  void* const found = ::dlsym(library, name);
  if (found == nullptr) throw ferry::engine::InputError(fmt::format("cuBLAS has no function {}", name));
  return reinterpret_cast<Function*>(found);
}

}  // namespace

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  static auto* const real = find<decltype(cublasCreate_v2)>("cublasCreate_v2");
  return real(handle);
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  static auto* const real = find<decltype(cublasDestroy_v2)>("cublasDestroy_v2");
  return real(handle);
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  static auto* const real = find<decltype(cublasSetStream_v2)>("cublasSetStream_v2");
  return real(handle, stream);
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  static auto* const real = find<decltype(cublasSetWorkspace_v2)>("cublasSetWorkspace_v2");
  return real(handle, workspace, bytes);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                              int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                              const float* beta, float* c, int ldc) {
  static auto* const real = find<decltype(cublasSgemm_v2)>("cublasSgemm_v2");
  return real(handle, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

const char* cublasGetStatusString(cublasStatus_t status) {
  static auto* const real = find<decltype(cublasGetStatusString)>("cublasGetStatusString");
  return real(status);
}
