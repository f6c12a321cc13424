// Products of float matrices by PackedProduct beside those of OpenBLAS and oneDNN, and whether a row's results depend on
// the rows that are computed with it.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "math/packed_product.hpp"
#include "shared/google_benchmark.hpp"
#include "shared/median.hpp"

namespace {

using namespace ferry;
using engine::Matrix;
using Clock = std::chrono::steady_clock;

/// y = x W^T, x [rows, columns], W [outputs, columns].
using Product = void (*)(const Matrix& x, const Matrix& w, Matrix& y);

void open_blas(const Matrix& x, const Matrix& w, Matrix& y) {
  const auto m = static_cast<int>(x.rows()), n = static_cast<int>(w.rows()), k = static_cast<int>(x.cols());
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, x.data(), k, w.data(), k, 0, y.data(), n);
}
void one_dnn(const Matrix& x, const Matrix& w, Matrix& y) {
  const dnnl_dim_t m = x.rows(), n = w.rows(), k = x.cols();
  if (dnnl_sgemm('N', 'T', m, n, k, 1, x.data(), k, w.data(), k, 0, y.data(), n) != dnnl_success) {
    throw std::runtime_error("oneDNN refuses a product");
  }
}

/// How many of the outputs of the first row differ in their bits.
double differing(const Matrix& a, const Matrix& b) {
  int count = 0;
  for (Eigen::Index i = 0; i < a.cols(); ++i) count += std::memcmp(&a(0, i), &b(0, i), sizeof(float)) != 0 ? 1 : 0;
  return count;
}

/// `ratio`: the median of the library's times over that of ours, measured in turns. `beside_others` and `threads`: how many
/// outputs of the first row have other bits if it is computed alone, and if one thread computes it.
void beside(benchmark::State& state, Product library) {
  const Eigen::Index rows = state.range(0), columns = state.range(1), outputs = state.range(2);
  engine::WorkerPool workers(static_cast<std::uint32_t>(state.range(3)));
  const auto use_threads = [](int threads) {
    openblas_set_num_threads(threads);
    omp_set_num_threads(threads);
  };
  const auto threads = static_cast<int>(workers.threads());
  use_threads(threads);
  const Matrix x = Matrix::Random(rows, columns), w = Matrix::Random(outputs, columns);
  Matrix ours(rows, outputs), theirs(rows, outputs), alone(1, outputs), one_thread(rows, outputs);
  engine::PackedProduct product(engine::best_path(), &workers);
  const PassThroughLayout layout{static_cast<std::uint32_t>(outputs), static_cast<std::uint32_t>(columns),
                                 FloatType::f32};
  const auto timed = [](auto&& call) {
    const auto begin = Clock::now();
    call();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto by_us = [&] { product.run(layout, reinterpret_cast<const std::byte*>(w.data()), x, ours); };
  const auto by_library = [&] { library(x, w, theirs); };
  by_us();  // allocates its buffers
  by_library();
  std::vector<double> us, them;
  for (bool first = true; auto _ : state) {
    if (first) us.push_back(timed(by_us));
    them.push_back(timed(by_library));
    if (!first) us.push_back(timed(by_us));
    first = !first;
    state.SetIterationTime(us.back());
  }
  if ((ours - theirs).cwiseAbs().maxCoeff() > 1e-3F) state.SkipWithError("they differ");
  library(x.topRows(1), w, alone);
  use_threads(1);
  library(x, w, one_thread);
  // On a processor that it does not know OpenBLAS uses an old one's kernels; OPENBLAS_CORETYPE selects others.
  if (library == open_blas) state.SetLabel(openblas_get_corename());
  state.counters["ratio"] = bench::median(them) / bench::median(us);
  state.counters["beside_others"] = differing(theirs, alone);
  state.counters["threads"] = differing(theirs, one_thread);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "columns", "outputs", "threads"})->UseManualTime()->Iterations(30);
  for (const int threads : {1, 0}) {
    for (const int rows : {1, 4, 34, 512}) b->Args({rows, 2048, 1408, threads});
  }
}
BENCHMARK_CAPTURE(beside, openblas, open_blas)->Apply(shapes);
BENCHMARK_CAPTURE(beside, onednn, one_dnn)->Apply(shapes);

}  // namespace

int main(int argc, char** argv) {
  if (!ferry::bench::read_arguments("gemm-libraries", argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
