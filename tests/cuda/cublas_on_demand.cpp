// cuBLAS itself, on machines with or without a GPU.
#include <cublas_v2.h>
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace {

bool is_loaded() {
  std::ifstream maps("/proc/self/maps");
  const std::string all{std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>()};
  REQUIRE(all.find("libc.so") != std::string::npos);
  return all.find("libcublas") != std::string::npos;
}

}  // namespace

TEST_CASE("cuBLAS is loaded by the first call, and not before") {
  REQUIRE(!is_loaded());
  CHECK(std::string(cublasGetStatusString(CUBLAS_STATUS_INVALID_VALUE)).find("parameter") != std::string::npos);
  CHECK(is_loaded());
  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return;  // no GPU
  const float a[] = {1, 2}, one = 1;
  CHECK(cublasSetStream(handle, nullptr) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, -1, 1, 1, &one, a, 1, a, 1, &one, nullptr, 1) ==
        CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
}

TEST_CASE("functions of cuBLAS reach those of the same name") {
  // Without a handle each says so, in its own way, and none crashes.
  CHECK(cublasCreate(nullptr) != CUBLAS_STATUS_SUCCESS);
  CHECK(cublasSetStream(nullptr, nullptr) == CUBLAS_STATUS_NOT_INITIALIZED);
  CHECK(cublasSetWorkspace(nullptr, nullptr, 0) == CUBLAS_STATUS_NOT_INITIALIZED);
  CHECK(cublasSgemm(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, nullptr, nullptr, 1, nullptr, 1, nullptr, nullptr, 1) ==
        CUBLAS_STATUS_NOT_INITIALIZED);
  CHECK(cublasDestroy(nullptr) == CUBLAS_STATUS_NOT_INITIALIZED);
}
