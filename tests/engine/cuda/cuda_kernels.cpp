// The CUDA device's kernels against naive references in double. The tests use nothing but CUDA's own API, so the same file runs
// on the emulated device and on a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels.hpp"
#include "emulated_cuda/emulated_cuda.hpp"
#include "ferry/codec/round_to_nearest.hpp"
#include "support/blocks.hpp"
#include "support/quick.hpp"
#include "support/random.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine::cuda;

constexpr double tolerance = 1e-5;  // of a row of results, relative to its norm

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// Device memory for exactly so many numbers.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t size) : size_(size) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, std::max<std::size_t>(1, size) * sizeof(T)));
    data_ = static_cast<T*>(memory);
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());  // it may return before all has landed, and other streams do not wait for it
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { static_cast<void>(cudaFree(data_)); }

  operator T*() const { return data_; }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(size_);
    check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A stream with all that kernels need.
class Device {
 public:
  explicit Device(std::uint64_t scratch_floats = 1U << 16U) : scratch_(scratch_floats) {
    check(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking));
    if (cublasCreate(&context.blas) != CUBLAS_STATUS_SUCCESS ||
        cublasSetStream(context.blas, context.stream) != CUBLAS_STATUS_SUCCESS) {
      throw std::runtime_error("no cuBLAS");
    }
    context.scratch = scratch_;
    context.scratch_floats = scratch_floats;
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    static_cast<void>(cudaStreamSynchronize(context.stream));
    static_cast<void>(cublasDestroy(context.blas));
    static_cast<void>(cudaStreamDestroy(context.stream));
  }

  template <class T>
  std::vector<T> read(const Buffer<T>& buffer) const {
    check(cudaStreamSynchronize(context.stream));
    return buffer.read();
  }

  Context context;

 private:
  Buffer<float> scratch_;
};

/// A matrix of doubles, or of floats that are stored in them exactly.
struct Doubles {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;

  Doubles(std::size_t r, std::size_t c) : rows(r), columns(c), values(r * c) {}
  Doubles(std::size_t r, std::size_t c, const std::vector<float>& from)
      : rows(r), columns(c), values(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(r * c)) {}
  double& operator()(std::size_t r, std::size_t c) { return values[r * columns + c]; }
  double operator()(std::size_t r, std::size_t c) const { return values[r * columns + c]; }
};

/// x W^T.
Doubles product(const Doubles& x, const Doubles& w) {
  Doubles y(x.rows, w.rows);
  for (std::size_t i = 0; i < x.rows; ++i) {
    for (std::size_t o = 0; o < w.rows; ++o) {
      for (std::size_t c = 0; c < x.columns; ++c) y(i, o) += x(i, c) * w(o, c);
    }
  }
  return y;
}

/// The largest error of a row relative to the row's norm.
double worst_error(const std::vector<float>& y, const Doubles& expected) {
  REQUIRE(y.size() == expected.values.size());
  double worst = 0;
  for (std::size_t i = 0; i < expected.rows; ++i) {
    double error = 0, norm = 0;
    for (std::size_t c = 0; c < expected.columns; ++c) {
      const double e = expected(i, c), d = double{y[i * expected.columns + c]} - e;
      error += d * d;
      norm += e * e;
    }
    if (!(error <= worst * worst * norm)) worst = std::sqrt(error / norm);
  }
  return worst;
}

/// The largest error of a sum relative to the sum of its terms' magnitudes.
double worst_of_terms(const std::vector<float>& y, const Doubles& expected, const Doubles& magnitudes) {
  REQUIRE(y.size() == expected.values.size());
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double error = std::abs(double{y[i]} - expected.values[i]) / magnitudes.values[i];
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

Doubles magnitudes_of(Doubles x) {
  for (double& v : x.values) v = std::abs(v);
  return x;
}

bool same_bits(const float* a, const float* b, std::size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

std::vector<float> random_numbers(test::Random& random, std::size_t count, float most = 1) {
  std::vector<float> numbers(count);
  for (float& x : numbers) x = most * (2 * random.unit() - 1);
  return numbers;
}

std::string name_of(const StoredType& type) {
  if (type.blocks) return "blocks " + std::to_string(static_cast<int>(type.block));
  return type.number == FloatType::bf16 ? "bf16" : type.number == FloatType::f16 ? "f16" : "f32";
}

std::size_t pack_weights(const PassThroughLayout& w, const float* weights, std::byte* to) {
  return pack(w, weights, to);
}
std::size_t pack_weights(const PackedLayout& w, const float* weights, std::byte* to) {
  return pack(w, weights, to, RoundToNearest{});
}

/// Writes random weights to `to`, and returns the values that they are stored as.
template <class Layout>
Doubles make_weights(const Layout& w, std::byte* to, test::Random& random) {
  if constexpr (std::is_same_v<Layout, BlockLayout>) {
    test::fill_blocks(w, to, random);
  } else {
    const std::vector<float> weights = random_numbers(random, std::size_t{w.rows} * w.columns, 0.5F);
    REQUIRE(pack_weights(w, weights.data(), to) == no_weight);
  }
  std::vector<float> stored(std::size_t{w.rows} * w.columns);
  for (std::uint32_t r = 0; r < w.rows; ++r) unpack_row(w, to, r, stored.data() + std::size_t{r} * w.columns);
  return {w.rows, w.columns, stored};
}

/// A weight on the device, and the values that it is stored as.
struct Weight {
  Weight(FloatType type, std::uint32_t rows, std::uint32_t columns, test::Random& random)
      : Weight(PassThroughLayout{rows, columns, type}, random) {}
  Weight(BlockType type, std::uint32_t rows, std::uint32_t columns, test::Random& random)
      : Weight(BlockLayout{rows, columns, type}, random) {}

  Doubles values;
  Buffer<std::byte> memory;
  DenseWeight dense;

 private:
  template <class Layout>
  Weight(const Layout& layout, test::Random& random) : Weight(layout, std::vector<std::byte>(layout.bytes()), random) {}
  template <class Layout>
  Weight(const Layout& layout, std::vector<std::byte> bytes, test::Random& random)
      : values(make_weights(layout, bytes.data(), random)),
        memory(bytes),
        dense{memory, layout.type, layout.rows, layout.columns} {}
};

constexpr FloatType float_types[] = {FloatType::bf16, FloatType::f16, FloatType::f32};

}  // namespace

TEST_CASE("cuda kernels - descriptors of every size and alignment arrive, and nothing beside them changes") {
  const Device device;
  for (const std::size_t bytes : {0U, 1U, 3U, 4U, 511U, 512U, 513U, 3000U, 3584U, 3585U, 20000U}) {
    for (const std::size_t at : {0U, 1U, 16U}) {
      CAPTURE(bytes);
      CAPTURE(at);
      std::vector<std::byte> source(bytes), expected(at + bytes + 8, std::byte{0xaa});
      for (std::size_t i = 0; i < bytes; ++i) expected[at + i] = source[i] = static_cast<std::byte>(i * 7 + i / 256);
      const Buffer<std::byte> target(std::vector<std::byte>(expected.size(), std::byte{0xaa}));
      put(device.context.stream, target + at, source.data(), bytes);
      std::fill(source.begin(), source.end(), std::byte{0});  // `put` may not read it any more
      CHECK(device.read(target) == expected);
    }
  }
}

TEST_CASE("cuda kernels - embeddings are the stored rows") {
  const Device device;
  test::Random random(1);
  for (const FloatType type : float_types) {
    const Weight table(type, 11, 300, random);
    const std::uint32_t tokens[] = {10, 0, 3, 3};
    std::vector<RowPlace> rows(4);
    for (std::size_t i = 0; i < 4; ++i) rows[i].token = tokens[i];
    const Buffer<RowPlace> places(rows);
    const Buffer<float> x(4 * 300);
    embed(device.context.stream, table.dense, places, 4, 1, x);
    const std::vector<float> got = device.read(x);
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t c = 0; c < 300; ++c) REQUIRE(double{got[i * 300 + c]} == table.values(tokens[i], c));
    }
  }
  for (const BlockType type : test::block_types) {
    const std::uint32_t columns = type == BlockType::fp8 ? 300 : 2 * block_weights(type);
    const Weight table(type, 11, columns, random);
    std::vector<RowPlace> rows(1);
    rows[0].token = 7;
    const Buffer<RowPlace> places(rows);
    const Buffer<float> x(columns);
    embed(device.context.stream, table.dense, places, 1, 1, x);
    const std::vector<float> got = device.read(x);
    for (std::size_t c = 0; c < columns; ++c) {
      REQUIRE(double{got[c]} == doctest::Approx(table.values(7, c)).epsilon(1e-6));
    }
  }
}

TEST_CASE("cuda kernels - norms of odd sizes, also in place") {
  const Device device;
  test::Random random(2);
  for (const std::uint32_t hidden : {1U, 96U, 130U, 512U, 513U, 1027U, 4096U, 8191U, 10240U}) {
    CAPTURE(hidden);
    constexpr std::uint32_t n = 3;
    const std::vector<float> x = random_numbers(random, std::size_t{n} * hidden, 3);
    const std::vector<float> weight = random_numbers(random, hidden, 2);
    constexpr float epsilon = 1e-2F;
    Doubles expected(n, hidden);
    for (std::size_t i = 0; i < n; ++i) {
      double squares = 0;
      for (std::size_t c = 0; c < hidden; ++c) squares += double{x[i * hidden + c]} * x[i * hidden + c];
      for (std::size_t c = 0; c < hidden; ++c) {
        expected(i, c) = x[i * hidden + c] / std::sqrt(squares / hidden + double{epsilon}) * weight[c];
      }
    }
    const Buffer<float> input(x), scale(weight), y(x.size());
    rms_norm(device.context.stream, input, scale, epsilon, n, hidden, hidden, y);
    const std::vector<float> got = device.read(y);
    CHECK(worst_error(got, expected) < 1e-6);
    rms_norm(device.context.stream, input, scale, epsilon, n, hidden, hidden, input);
    CHECK(device.read(input) == got);
  }
}

namespace {

/// A linear layer with 1 to 20 rows, with and without bias, added and not.
template <class Type>
void check_linear(Type type, std::uint32_t rows, std::uint32_t columns, std::uint32_t most, test::Random& random) {
  const std::string type_name = name_of(type);
  CAPTURE(type_name);
  CAPTURE(rows);
  CAPTURE(columns);
  const Device device(std::uint64_t{columns} * 10 + 3);  // ten rows of weights at a time
  const Weight w(type, rows, columns, random);
  const std::vector<float> x = random_numbers(random, std::size_t{most} * columns);
  const std::vector<float> bias = random_numbers(random, rows),
                           before = random_numbers(random, std::size_t{most} * rows);
  const Buffer<float> device_bias(bias);
  const Doubles products = product(Doubles(most, columns, x), w.values);
  const Doubles sizes = product(magnitudes_of(Doubles(most, columns, x)), magnitudes_of(w.values));
  std::vector<float> alone;  // the first rows' results when each is computed alone
  for (const std::uint32_t n : {1U, 2U, 3U, 4U, 5U, 7U, 8U, 9U, 20U}) {
    if (n > most) continue;
    CAPTURE(n);
    for (const bool with_bias : {false, true}) {
      for (const bool add : {false, true}) {
        if (n > 1 && n < 8 && with_bias != add) continue;  // the other combinations are enough
        const std::vector<float> inputs(x.begin(), x.begin() + n * columns);
        const Buffer<float> input(inputs), y(std::vector<float>(before.begin(), before.begin() + n * rows));
        linear(device.context, input, n, w.dense, with_bias ? static_cast<float*>(device_bias) : nullptr, add, y);
        Doubles expected(n, rows), magnitudes(n, rows);
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t o = 0; o < rows; ++o) {
            const double extra = with_bias ? bias[o] : 0, old = add ? before[i * rows + o] : 0;
            expected(i, o) = products(i, o) + extra + old;
            magnitudes(i, o) = sizes(i, o) + std::abs(extra) + std::abs(old);
          }
        }
        const std::vector<float> got = device.read(y);
        CHECK(worst_of_terms(got, expected, magnitudes) < 1e-6);
        if (with_bias || add || n > few_rows) continue;
        if (n == 1) alone.clear();
        for (std::uint32_t i = static_cast<std::uint32_t>(alone.size() / rows); i < n; ++i) {
          const Buffer<float> one(std::vector<float>(x.begin() + i * columns, x.begin() + (i + 1) * columns)), to(rows);
          linear(device.context, one, 1, w.dense, nullptr, false, to);
          const std::vector<float> result = device.read(to);
          alone.insert(alone.end(), result.begin(), result.end());
        }
        CHECK(same_bits(got.data(), alone.data(), got.size()));
      }
    }
  }
}

}  // namespace

TEST_CASE("cuda kernels - linear layers of every type and odd size, and few rows stand alone") {
  test::Random random(3);
  for (const FloatType type : float_types) {
    for (const auto& [rows, columns] : {std::pair{1U, 96U}, {72U, 130U}, {33U, 31U}, {45U, 1U}}) {
      check_linear(type, rows, columns, 20, random);
    }
  }
  // Columns beyond what shared memory holds for one row, for two, four and eight.
  check_linear(FloatType::bf16, 21, 8520, 8, random);
  check_linear(FloatType::f16, 9, 4100, 4, random);
  check_linear(FloatType::f32, 17, 2052, 8, random);
}

TEST_CASE("cuda kernels - linear layers of blocks") {
  test::Random random(31);
  for (const BlockType type : test::block_types) {
    for (const std::uint32_t rows : {1U, 45U}) check_linear(type, rows, 3 * block_weights(type), 20, random);
  }
  check_linear(BlockType::q4_k, 9, 8448, 8, random);
  check_linear(BlockType::fp8, 9, 300, 8, random);
}

TEST_CASE("cuda kernels - linear layers of many features, of which a block has several tiles") {
  test::Random random(4);
  check_linear(FloatType::bf16, 8200, 16, 2, random);
  check_linear(FloatType::f32, 33000, 8, 1, random);
}

TEST_CASE("cuda kernels - halves of every kind are widened as the codec does") {
  const Device device;
  // A column of all 65536 bit patterns: a product with 1 is the weight itself.
  constexpr std::uint32_t rows = 65536 / 8, columns = 8;
  for (const FloatType type : {FloatType::bf16, FloatType::f16}) {
    std::vector<std::byte> bytes(65536 * 2);
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      std::memcpy(bytes.data() + std::size_t{2} * i, &bits, 2);
    }
    const Buffer<std::byte> memory(bytes);
    const PassThroughLayout layout{rows, columns, type};
    for (std::uint32_t c = 0; c < columns; ++c) {
      std::vector<float> one(columns, 0);
      one[c] = 1;
      const Buffer<float> x(one), y(rows);
      linear(device.context, x, 1, {memory, type, rows, columns}, nullptr, false, y);
      const std::vector<float> got = device.read(y);
      std::uint32_t wrong = 0;
      for (std::uint32_t r = 0; r < rows; ++r) {
        float weights[columns];
        unpack_row(layout, bytes.data(), r, weights);
        // A weight that is infinite or NaN makes its whole row NaN or infinite, since times 0 it is NaN.
        const bool finite = std::all_of(weights, weights + columns, [](float w) { return std::isfinite(w); });
        wrong += finite ? got[r] != weights[c] : std::isfinite(got[r]);
      }
      CHECK(wrong == 0);
    }
  }
}

namespace {

/// GELU by tanh: Hendrycks and Gimpel 2016, section 2.
double of_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

}  // namespace

TEST_CASE("cuda kernels - silu or gelu times up") {
  const Device device;
  test::Random random(5);
  constexpr std::uint32_t n = 4, width = 250;
  const std::vector<float> gate = random_numbers(random, n * width, 20), up = random_numbers(random, n * width, 9);
  const std::vector<float> biases = random_numbers(random, 2 * width, 3);
  const std::vector<std::uint32_t> rows = {5, 0, 2, 7};  // assignments
  const std::vector<float> weights = random_numbers(random, 8);
  const Buffer<std::uint32_t> device_rows(rows);
  const Buffer<float> device_weights(weights);
  for (const std::uint32_t way : {0U, 1U, 2U}) {
    const bool clamped = way == 1, gelu = way == 2;
    for (const std::size_t from : {std::size_t{0}, std::size_t{4}, std::size_t{7}}) {  // bytes; 0: no biases
      CAPTURE(clamped);
      CAPTURE(from);
      std::vector<std::byte> bytes(from + biases.size() * sizeof(float));
      std::memcpy(bytes.data() + from, biases.data(), biases.size() * sizeof(float));
      const Buffer<float> g(gate), u(up);
      const Buffer<std::byte> b(bytes);
      activate(device.context.stream, g, u, n, width, {clamped, 1.7F, 6.5F, gelu},
               {from == 0 ? nullptr : static_cast<const std::byte*>(b) + from,
                from == 7 ? static_cast<const float*>(device_weights) : nullptr},
               device_rows);
      const std::vector<float> got = device.read(g);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        double x = gate[i], y = up[i];
        if (from > 0) x += biases[i % width], y += biases[width + i % width];
        if (from == 7) x *= weights[rows[i / width]], y *= weights[rows[i / width]];
        if (clamped) x = std::min(x, 6.5), y = std::min(std::max(y, -6.5), 6.5) + 1;
        double expected = x / (1 + std::exp(clamped ? -double{1.7F} * x : -x)) * y;
        if (gelu) expected = of_gelu(x) * y;
        REQUIRE(got[i] == doctest::Approx(expected).epsilon(2e-6));
      }
    }
  }
}

namespace {

/// Sequences with their own lengths and capacities, and rows of a step over them.
struct Sequences {
  std::vector<Buffer<float>*> caches;
  std::vector<std::uint32_t> capacities;
  std::vector<RowPlace> rows;
  std::vector<std::size_t> sequence;  ///< of each row

  Sequences() = default;
  Sequences(const Sequences&) = delete;
  Sequences& operator=(const Sequences&) = delete;
  ~Sequences() {
    for (Buffer<float>* c : caches) delete c;
  }

  void add_sequence(std::uint32_t capacity, std::uint32_t layers, std::uint32_t kv_width, test::Random& random) {
    capacities.push_back(capacity);
    caches.push_back(new Buffer<float>(random_numbers(random, std::size_t{layers} * 2 * capacity * kv_width)));
  }
  void add_row(std::size_t of, std::uint32_t position) {
    rows.push_back({*caches[of], capacities[of], position, 0});
    sequence.push_back(of);
  }
};

/// The columns from `from` to `to` of rows [n, all], and the inverse.
std::vector<float> columns_of(const std::vector<float>& x, std::size_t all, std::size_t from, std::size_t to) {
  std::vector<float> part;
  for (std::size_t at = 0; at < x.size(); at += all) {
    part.insert(part.end(), x.begin() + static_cast<std::ptrdiff_t>(at + from),
                x.begin() + static_cast<std::ptrdiff_t>(at + to));
  }
  return part;
}

std::vector<float> joined(std::size_t n, const std::vector<std::vector<float>>& parts) {
  std::vector<float> all;
  for (std::size_t i = 0; i < n; ++i) {
    for (const std::vector<float>& part : parts) {
      const auto size = static_cast<std::ptrdiff_t>(part.size() / n), at = static_cast<std::ptrdiff_t>(i) * size;
      all.insert(all.end(), part.begin() + at, part.begin() + at + size);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("cuda kernels - queries and keys are bounded, normed and turned, and keys and values in their places only") {
  const Device device;
  test::Random random(6);
  constexpr std::uint32_t layers = 3, layer = 1;
  constexpr double epsilon = 1e-3;
  struct Case {
    AttentionShape shape;
    std::uint32_t turned;
    double factor = 1;
    int norm = 0;  ///< 1: before, 2: behind
    double clip = 0;
    std::uint32_t long_from = 0;
    bool value_norm = false;
  };
  const Case cases[] = {{{4, 2, 16}, 16},           {{3, 1, 6}, 6},
                        {{6, 3, 128}, 128},         {{4, 2, 16}, 8, 0.7},
                        {{4, 2, 18}, 6, 1, 1, 0.8}, {{2, 2, 64}, 64, 1.2, 2, 0, 1000},
                        {{9, 1, 256}, 0, 1, 1},     {{2, 2, 512}, 512, 1, 1, 0, 0, true}};
  for (const Case& t : cases) {
    const AttentionShape shape = t.shape;
    const std::uint32_t dim = shape.head_dim, half = t.turned / 2, width = shape.heads * dim,
                        kv_width = shape.kv_heads * dim;
    CAPTURE(dim);
    CAPTURE(t.turned);
    Sequences s;
    s.add_sequence(5, layers, kv_width, random);
    s.add_sequence(4000, layers, kv_width, random);
    s.add_sequence(1, layers, kv_width, random);
    s.add_row(0, 2);
    s.add_row(0, 3);
    s.add_row(1, 7);
    s.add_row(1, 3999);
    s.add_row(2, 0);
    const std::size_t n = s.rows.size();
    std::vector<float> frequency(half), far(half);
    for (std::uint32_t i = 0; i < half; ++i) {
      frequency[i] = static_cast<float>(std::pow(10000.0, -2.0 * i / t.turned));
      far[i] = frequency[i] / 3;
    }
    const std::vector<float> q = random_numbers(random, n * width), k = random_numbers(random, n * kv_width);
    const std::vector<float> v = random_numbers(random, n * kv_width);
    const std::vector<float> q_norm = random_numbers(random, dim, 2), k_norm = random_numbers(random, dim, 2);
    auto bounded = [&](double x) { return t.clip > 0 ? std::min(std::max(x, -t.clip), t.clip) : x; };
    auto prepared = [&](const std::vector<float>& x, std::uint32_t columns, const std::vector<float>& weight) {
      Doubles y(n, columns);
      for (std::size_t i = 0; i < n; ++i) {
        const bool is_long = t.long_from > 0 && s.rows[i].capacity > t.long_from;
        for (std::size_t first = 0; first < columns; first += dim) {
          std::vector<double> head(dim);
          for (std::size_t c = 0; c < dim; ++c) head[c] = bounded(x[i * columns + first + c]);
          auto norm = [&] {
            double squares = 0;
            for (const double h : head) squares += h * h;
            for (std::size_t c = 0; c < dim; ++c) head[c] *= weight[c] / std::sqrt(squares / dim + epsilon);
          };
          if (t.norm == 1) norm();
          for (std::size_t pair = 0; pair < half; ++pair) {
            // The kernel computes this product in float.
            const float angle = static_cast<float>(s.rows[i].position) * (is_long ? far : frequency)[pair];
            const double factor = is_long ? 0.5 : t.factor;
            const double cosine = factor * std::cos(double{angle}), sine = factor * std::sin(double{angle});
            const double a = head[pair], b = head[pair + half];
            head[pair] = a * cosine - b * sine;
            head[pair + half] = b * cosine + a * sine;
          }
          if (t.norm == 2) norm();
          for (std::size_t c = 0; c < dim; ++c) y(i, first + c) = head[c];
        }
      }
      return y;
    };
    std::vector<std::vector<float>> caches;
    for (const Buffer<float>* c : s.caches) caches.push_back(c->read());
    const Buffer<float> qkv(joined(n, {q, k, v})),
        device_frequency(frequency.empty() ? std::vector<float>{0} : frequency);
    const Buffer<float> device_far(far.empty() ? std::vector<float>{0} : far), of_q(q_norm), of_k(k_norm);
    const Buffer<RowPlace> places(s.rows);
    Preparation p;
    p.frequency = device_frequency;
    p.turned = t.turned;
    p.factor = static_cast<float>(t.factor);
    p.long_from = t.long_from;
    p.long_frequency = device_far;
    p.long_factor = 0.5F;
    if (t.norm != 0) p.q_norm = of_q, p.k_norm = of_k;
    p.norm_behind = t.norm == 2;
    p.epsilon = static_cast<float>(epsilon);
    p.clip = static_cast<float>(t.clip);
    p.value_norm = t.value_norm;
    prepare_and_store(device.context.stream, qkv, p, places, static_cast<std::uint32_t>(n), {layer * 2 * kv_width},
                      shape);
    const std::vector<float> got = device.read(qkv);
    CHECK(worst_error(columns_of(got, width + 2 * kv_width, 0, width), prepared(q, width, q_norm)) < 2e-6);
    std::vector<float> keys, values;
    Doubles expected_values(n, kv_width);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t h = 0; h < kv_width; h += dim) {
        double squares = 0;
        for (std::size_t c = h; c < h + dim; ++c) squares += std::pow(bounded(v[i * kv_width + c]), 2);
        const double divisor = t.value_norm ? std::sqrt(squares / dim + epsilon) : 1;
        for (std::size_t c = h; c < h + dim; ++c) expected_values(i, c) = bounded(v[i * kv_width + c]) / divisor;
      }
      const std::size_t capacity = s.rows[i].capacity, first = (layer * 2 * capacity + s.rows[i].position) * kv_width;
      std::vector<float>& cache = caches[s.sequence[i]];
      const std::vector<float> there = s.caches[s.sequence[i]]->read();
      for (std::size_t c = 0; c < kv_width; ++c) keys.push_back(cache[first + c] = there[first + c]);
      for (std::size_t c = 0; c < kv_width; ++c) {
        const std::size_t at = first + capacity * kv_width + c;
        values.push_back(there[at]);
        cache[at] = t.value_norm ? there[at] : static_cast<float>(bounded(v[i * kv_width + c]));
      }
    }
    CHECK(worst_error(keys, prepared(k, kv_width, k_norm)) < 2e-6);
    CHECK(worst_error(values, expected_values) < 2e-6);
    if (t.clip == 0) {
      for (std::size_t c = 0; c < caches.size(); ++c) CHECK(s.caches[c]->read() == caches[c]);
    }
  }
}

TEST_CASE("cuda kernels - norms with a mean, also in place, and norms of a part of each row") {
  const Device device;
  test::Random random(12);
  constexpr std::uint32_t n = 3;
  constexpr float epsilon = 1e-2F;
  for (const std::uint32_t hidden : {1U, 96U, 130U, 512U, 513U, 1027U, 4096U}) {
    CAPTURE(hidden);
    const std::vector<float> x = random_numbers(random, std::size_t{n} * hidden, 3);
    const std::vector<float> weight = random_numbers(random, hidden, 2), bias = random_numbers(random, hidden, 2);
    Doubles expected(n, hidden);
    for (std::size_t i = 0; i < n; ++i) {
      double mean = 0, squares = 0;
      for (std::size_t c = 0; c < hidden; ++c) mean += double{x[i * hidden + c]} / hidden;
      for (std::size_t c = 0; c < hidden; ++c) squares += std::pow(x[i * hidden + c] - mean, 2);
      for (std::size_t c = 0; c < hidden; ++c) {
        expected(i, c) =
            (x[i * hidden + c] - mean) / std::sqrt(squares / hidden + double{epsilon}) * weight[c] + bias[c];
      }
    }
    const Buffer<float> input(x), scale(weight), shift(bias), y(x.size());
    layer_norm(device.context.stream, input, scale, shift, epsilon, n, hidden, y);
    const std::vector<float> got = device.read(y);
    CHECK(worst_error(got, expected) < 1e-5);
    layer_norm(device.context.stream, input, scale, shift, epsilon, n, hidden, input);
    CHECK(device.read(input) == got);
  }
  for (const std::uint32_t stride : {40U, 42U}) {  // of 42 not every row begins at 16 bytes
    CAPTURE(stride);
    constexpr std::uint32_t from = 8, some = 24;
    const std::vector<float> x = random_numbers(random, std::size_t{n} * stride, 3),
                             weight = random_numbers(random, some, 2);
    const Buffer<float> rows(x), scale(weight);
    rms_norm(device.context.stream, rows + from, scale, epsilon, n, some, stride, rows + from);
    const std::vector<float> got = device.read(rows);
    for (std::size_t i = 0; i < n; ++i) {
      double squares = 0;
      for (std::size_t c = 0; c < some; ++c) squares += std::pow(x[i * stride + from + c], 2);
      for (std::size_t c = 0; c < stride; ++c) {
        const double before = x[i * stride + c];
        const bool in = c >= from && c < from + some;
        CHECK(got[i * stride + c] ==
              doctest::Approx(in ? before / std::sqrt(squares / some + double{epsilon}) * weight[c - from] : before)
                  .epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("cuda kernels - attention over several sequences, heads that share keys and values, and rows stand alone") {
  const Device device;
  test::Random random(7);
  constexpr std::uint32_t layers = 2, layer = 1;
  const AttentionShape shapes[] = {
      {4, 2, 16},  {3, 3, 6},   {2, 1, 64},          {4, 1, 98},        {2, 1, 128},
      {2, 2, 256}, {2, 1, 512}, {4, 2, 16, 0.5F, 1}, {2, 1, 64, 0, 33}, {2, 1, 64, 0.03F, 300}};
  for (const AttentionShape& shape : shapes) {
    const std::uint32_t dim = shape.head_dim, width = shape.heads * dim, kv_width = shape.kv_heads * dim;
    CAPTURE(dim);
    Sequences s;
    s.add_sequence(600, layers, kv_width, random);
    s.add_sequence(40, layers, kv_width, random);
    for (const std::uint32_t position : {0U, 1U, 30U, 31U, 32U, 63U, 255U, 256U, 257U, 599U}) s.add_row(0, position);
    for (const std::uint32_t position : {7U, 39U}) s.add_row(1, position);
    const auto n = static_cast<std::uint32_t>(s.rows.size());
    const std::vector<float> q = random_numbers(random, std::size_t{n} * width, 4);  // some scores stand out
    Doubles expected(n, width);
    for (std::size_t i = 0; i < n; ++i) {
      const std::vector<float> cache = s.caches[s.sequence[i]]->read();
      const std::size_t capacity = s.rows[i].capacity, keys = layer * 2 * capacity * kv_width;
      const std::size_t values = keys + capacity * kv_width;
      for (std::size_t h = 0; h < shape.heads; ++h) {
        const std::size_t kv = h / (shape.heads / shape.kv_heads) * dim;
        const std::size_t seen = s.rows[i].position + 1,
                          begin = shape.window > 0 && seen > shape.window ? seen - shape.window : 0;
        std::vector<double> weights(seen);
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (std::size_t p = begin; p < weights.size(); ++p) {
          for (std::size_t e = 0; e < dim; ++e) {
            weights[p] += double{q[i * width + h * dim + e]} * cache[keys + p * kv_width + kv + e];
          }
          weights[p] *= shape.scale > 0 ? double{shape.scale} : 1 / std::sqrt(static_cast<double>(dim));
          largest = std::max(largest, weights[p]);
        }
        for (std::size_t p = begin; p < seen; ++p) sum += weights[p] = std::exp(weights[p] - largest);
        for (std::size_t p = begin; p < seen; ++p) {
          for (std::size_t e = 0; e < dim; ++e) {
            expected(i, h * dim + e) += weights[p] / sum * cache[values + p * kv_width + kv + e];
          }
        }
      }
    }
    const std::vector<float> others(std::size_t{n} * kv_width, std::numeric_limits<float>::quiet_NaN());
    const Buffer<float> qkv(joined(n, {q, others, others})), out(q.size());
    const std::size_t all = width + 2 * kv_width;
    const Buffer<RowPlace> places(s.rows);
    attention(device.context.stream, qkv, places, n, {layer * 2 * kv_width}, shape, out);
    const std::vector<float> got = device.read(out);
    CHECK(worst_error(got, expected) < tolerance);
    for (const std::uint32_t i : {4U, n - 1}) {
      const Buffer<float> alone(width);
      attention(device.context.stream, qkv + i * all, places + i, 1, {layer * 2 * kv_width}, shape, alone);
      CHECK(same_bits(device.read(alone).data(), got.data() + i * width, width));
    }
  }
}

TEST_CASE("cuda kernels - of recent positions alone, keys and values are kept and attended to as of all") {
  const Device device;
  const cudaStream_t stream = device.context.stream;
  test::Random random(23);
  constexpr std::uint32_t capacity = 90, heads = 4, kv_heads = 2, kv_width_of_others = 12;
  struct Case {
    std::uint32_t dim, window, chunk, recent, rows;
  };
  for (const Case& t : {Case{16, 9, 0, 11, 3}, {70, 1, 0, 1, 1}, {128, 33, 0, 50, 17}, {6, 0, 20, 24, 5}}) {
    CAPTURE(t.dim);
    const std::uint32_t kv_width = kv_heads * t.dim, width = heads * t.dim, all = width + 2 * kv_width;
    AttentionShape shape{heads, kv_heads, t.dim, 0, t.window};
    shape.chunk = t.chunk;
    // Before this layer comes one with all positions, and one with recent ones.
    const CacheNumbers before{2 * kv_width_of_others, 2 * kv_width};
    const std::vector<float> qkv = random_numbers(random, std::size_t{capacity} * all, 2);
    const std::size_t at = std::size_t{before.whole} * capacity + before.recent * t.recent;
    const std::vector<float> first = random_numbers(random, at + std::size_t{2} * t.recent * kv_width + 40);
    const Buffer<float> few(first), whole(random_numbers(random, std::size_t{2} * capacity * kv_width));
    Preparation p;
    p.turned = 0;
    for (std::uint32_t begin = 0; begin < capacity; begin += t.rows) {
      const std::uint32_t n = std::min(t.rows, capacity - begin);
      std::vector<RowPlace> in_few, in_whole;
      for (std::uint32_t i = 0; i < n; ++i) {
        in_few.push_back({few, capacity, begin + i, 0, t.recent});
        in_whole.push_back({whole, capacity, begin + i, 0, t.recent});
      }
      const Buffer<RowPlace> few_places(in_few), whole_places(in_whole);
      const std::vector<float> step(qkv.begin() + std::ptrdiff_t{begin} * all,
                                    qkv.begin() + std::ptrdiff_t{begin + n} * all);
      const Buffer<float> one(step), other(step), made(std::size_t{n} * width), expected(std::size_t{n} * width);
      shape.recent = true;
      prepare_and_store(stream, one, p, few_places, n, before, shape);
      attention(stream, one, few_places, n, before, shape, made);
      shape.recent = false;
      prepare_and_store(stream, other, p, whole_places, n, {}, shape);
      attention(stream, other, whole_places, n, {}, shape, expected);
      const std::vector<float> got = device.read(made);
      CHECK(same_bits(got.data(), device.read(expected).data(), got.size()));
    }
    const std::vector<float> after = device.read(few);  // what belongs to other layers is unchanged
    CHECK(same_bits(after.data(), first.data(), at));
    CHECK(same_bits(after.data() + after.size() - 40, first.data() + first.size() - 40, 40));
  }
}

TEST_CASE(
    "cuda kernels - latent vectors are turned and kept, heads multiplied one by one, and attended to as keys and "
    "values") {
  const Device device;
  test::Random random(13);
  constexpr std::uint32_t layers = 2, layer = 1, n = 6;
  struct Case {
    std::uint32_t heads, rank, plain, turned, value_dim;
    bool neighbours;
    FloatType type;
    float growth;
  };
  for (const Case& t :
       {Case{3, 24, 10, 8, 7, true, FloatType::bf16, 0}, Case{3, 24, 10, 8, 7, true, FloatType::bf16, 0.7F},
        Case{9, 512, 128, 64, 128, false, FloatType::f32, 0}}) {
    CAPTURE(t.rank);
    const std::uint32_t width = t.rank + t.turned, head_dim = t.plain + t.turned;
    const std::uint32_t capacity = 50;
    const std::vector<float> before = random_numbers(random, std::size_t{layers} * capacity * width);
    const Buffer<float> cache(before);
    std::vector<RowPlace> rows;
    for (std::uint32_t i = 0; i < n; ++i) rows.push_back({cache, capacity, 40 + i, 0});
    const Buffer<RowPlace> places(rows);
    std::vector<float> frequency(t.turned / 2);
    for (std::size_t i = 0; i < frequency.size(); ++i) frequency[i] = static_cast<float>(1.0 / (1.0 + double(i)));
    const Buffer<float> device_frequency(frequency);
    Preparation p;
    p.frequency = device_frequency;
    p.turned = t.turned;
    p.factor = 0.9F;
    p.growth = {t.growth, 6, 0};
    const auto grown = [&](std::size_t row) {  // positions from 40 on
      return std::log(1 + std::floor(double(40 + row) / 6)) * double{t.growth} + 1;
    };
    const std::vector<float> q = random_numbers(random, std::size_t{n} * t.heads * head_dim),
                             latent = random_numbers(random, std::size_t{n} * width);
    auto turned = [&](const float* from, std::uint32_t position) {
      std::vector<double> to(t.turned);
      for (std::uint32_t i = 0; i < t.turned / 2; ++i) {
        const std::uint32_t first = t.neighbours ? 2 * i : i, second = t.neighbours ? 2 * i + 1 : i + t.turned / 2;
        const float angle = static_cast<float>(position) * frequency[i];
        const double cosine = double{0.9F} * std::cos(double{angle}), sine = double{0.9F} * std::sin(double{angle});
        to[first] = from[first] * cosine - from[second] * sine;
        to[second] = from[second] * cosine + from[first] * sine;
      }
      return to;
    };
    const Buffer<float> device_q(q), device_latent(latent), queries(std::size_t{n} * t.heads * width);
    place_latent(device.context.stream, device_q, device_latent, p, places, n, layer,
                 {t.heads, t.rank, t.plain, t.neighbours}, queries);
    // The cache: the rows' vectors in their places, and nothing else.
    const std::vector<float> kept = device.read(cache);
    double worst = 0;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const std::size_t row = i / width, column = i % width, position = row % capacity;
      double expected = before[i];
      if (row / capacity == layer && position >= 40 && position < 40 + n) {
        const float* own = latent.data() + (position - 40) * width;
        expected =
            column < t.rank ? own[column] : turned(own + t.rank, static_cast<std::uint32_t>(position))[column - t.rank];
      }
      worst = std::max(worst, std::abs(kept[i] - expected));
    }
    CHECK(worst < 2e-6);

    const std::uint32_t outputs = t.rank, inputs = t.plain;
    const Weight w(t.type, t.heads * outputs, inputs, random);
    HeadProducts h;
    h.weights = w.dense.data;
    h.type = t.type;
    h.heads = t.heads;
    h.outputs = outputs;
    h.inputs = inputs;
    h.x = device_q;
    h.x_head = head_dim;
    h.x_row = std::uint64_t{t.heads} * head_dim;
    h.y = queries;
    h.y_head = width;
    h.y_row = std::uint64_t{t.heads} * width;
    multiply_heads(device.context.stream, h, n);
    const std::vector<float> made = device.read(queries);
    Doubles whole(n, std::size_t{t.heads} * width);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t head = 0; head < t.heads; ++head) {
        const float* own = q.data() + (r * t.heads + head) * head_dim;
        for (std::size_t o = 0; o < outputs; ++o) {
          double sum = 0;
          for (std::size_t i = 0; i < inputs; ++i) sum += w.values(head * outputs + o, i) * own[i];
          whole(r, head * width + o) = sum * grown(r);
        }
        const std::vector<double> tail = turned(own + t.plain, static_cast<std::uint32_t>(40 + r));
        for (std::size_t i = 0; i < t.turned; ++i) whole(r, head * width + t.rank + i) = tail[i] * grown(r);
      }
    }
    CHECK(worst_error(made, whole) < 1e-5);

    AttentionShape shape{t.heads, 1, width, 0.2F};
    shape.latent = t.rank;
    const Buffer<float> out(std::size_t{n} * t.heads * t.rank);
    attention(device.context.stream, queries, places, n, {layer * width}, shape, out);
    Doubles expected(n, std::size_t{t.heads} * t.rank);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t head = 0; head < t.heads; ++head) {
        std::vector<double> score(41 + r);
        double largest = -1e300, sum = 0;
        for (std::size_t position = 0; position < score.size(); ++position) {
          const float* key = kept.data() + (layer * capacity + position) * width;
          for (std::size_t i = 0; i < width; ++i)
            score[position] += double{made[(r * t.heads + head) * width + i]} * key[i];
          score[position] *= double{0.2F};
          largest = std::max(largest, score[position]);
        }
        for (double& s : score) sum += s = std::exp(s - largest);
        for (std::size_t position = 0; position < score.size(); ++position) {
          const float* key = kept.data() + (layer * capacity + position) * width;
          for (std::size_t i = 0; i < t.rank; ++i) expected(r, head * t.rank + i) += score[position] / sum * key[i];
        }
      }
    }
    CHECK(worst_error(device.read(out), expected) < tolerance);
  }
}

namespace {

/// One layer's delta rule over the rows of one sequence, as it is defined. `memory` is updated.
Doubles by_delta_rule(const DeltaShape& s, const DeltaWeights& w, const std::vector<float>& kernel,
                      const std::vector<float>& scale, const std::vector<float>& bias, const std::vector<float>& norm,
                      const Doubles& x, const Doubles& gates, const Doubles& rates, std::vector<double>& memory) {
  const std::size_t channels = s.channels(), width = s.value_width(), keys = std::size_t{s.key_heads} * s.key_dim;
  const std::size_t before = s.kernel - 1, last = width * s.key_dim;  // where the last tokens are in memory
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  Doubles out(x.rows, width);
  for (std::size_t r = 0; r < x.rows; ++r) {
    std::vector<double> mixed(channels);
    for (std::size_t c = 0; c < channels; ++c) {
      double sum = x(r, c) * kernel[before * channels + c];
      for (std::size_t t = 0; t < before; ++t) sum += memory[last + t * channels + c] * kernel[t * channels + c];
      mixed[c] = silu(sum);
      for (std::size_t t = 0; t < before; ++t) {
        memory[last + t * channels + c] = t + 1 < before ? memory[last + (t + 1) * channels + c] : x(r, c);
      }
    }
    for (std::size_t h = 0; h < 2 * s.key_heads; ++h) {
      double squares = 0;
      for (std::size_t i = 0; i < s.key_dim; ++i) squares += std::pow(mixed[h * s.key_dim + i], 2);
      for (std::size_t i = 0; i < s.key_dim; ++i) {
        mixed[h * s.key_dim + i] /= std::sqrt(squares + 1e-6) * (h < s.key_heads ? std::sqrt(1.0 * s.key_dim) : 1);
      }
    }
    for (std::size_t h = 0; h < s.value_heads; ++h) {
      const std::size_t key_head = s.tiled ? h % s.key_heads : h * s.key_heads / s.value_heads;
      const double *query = mixed.data() + key_head * s.key_dim, *key = query + keys;
      const double rate = 1 / (1 + std::exp(-rates(r, h)));
      const double fade = std::exp(scale[h] * std::log1p(std::exp(rates(r, s.value_heads + h) + bias[h])));
      double squares = 0;
      for (std::size_t j = 0; j < s.value_dim; ++j) {
        double* column = memory.data() + (h * s.value_dim + j) * s.key_dim;
        double known = 0, given = 0;
        for (std::size_t i = 0; i < s.key_dim; ++i) known += key[i] * (column[i] *= fade);
        const double change = (mixed[2 * keys + h * s.value_dim + j] - known) * rate;
        for (std::size_t i = 0; i < s.key_dim; ++i) given += query[i] * (column[i] += key[i] * change);
        out(r, h * s.value_dim + j) = given;
        squares += given * given;
      }
      for (std::size_t j = 0; j < s.value_dim; ++j) {
        const std::size_t at = h * s.value_dim + j;
        out(r, at) *= norm[j] / std::sqrt(squares / s.value_dim + double{w.epsilon}) * silu(gates(r, at));
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("cuda kernels - the delta rule takes each sequence on from what it remembers of it, and rows stand alone") {
  const Device device;
  const cudaStream_t stream = device.context.stream;
  test::Random random(17);
  constexpr std::uint32_t layers = 2, layer = 1, capacity = 7;
  const DeltaShape shapes[] = {{2, 4, 16, 16, 4, false, {6}},  {2, 4, 40, 9, 2, true, {0}},
                               {1, 1, 7, 3, 1, false, {10}},   {3, 6, 70, 5, 8, true, {2}},
                               {1, 2, 128, 32, 4, false, {4}}, {1, 3, 256, 8, 4, true, {4}}};
  for (const DeltaShape& s : shapes) {
    CAPTURE(s.key_dim);
    CAPTURE(s.kernel);
    const std::size_t channels = s.channels(), width = s.value_width(), memory = s.memory_numbers();
    const std::vector<float> kernel = random_numbers(random, s.kernel * channels),
                             bias = random_numbers(random, s.value_heads, 2),
                             norm = random_numbers(random, s.value_dim);
    std::vector<float> scale = random_numbers(random, s.value_heads);
    for (float& v : scale) v = -std::abs(v);
    const Buffer<float> device_kernel(kernel), device_scale(scale), device_bias(bias), device_norm(norm);
    DeltaWeights w{device_kernel, device_scale, device_bias, device_norm, 1e-5F};
    // Three rows of one sequence from position 5, four of another from its start, and one of a third.
    const std::uint32_t counts[] = {3, 4, 1}, firsts[] = {5, 0, 6};
    const std::size_t begin = s.before.whole * capacity + layer * memory;
    const std::size_t all = s.before.whole * capacity + layers * memory;
    std::vector<std::vector<float>> before;
    std::vector<std::unique_ptr<Buffer<float>>> caches;
    std::vector<RowPlace> rows;
    for (std::size_t i = 0; i < 3; ++i) {
      before.push_back(random_numbers(random, all));
      if (firsts[i] == 0) {  // what an earlier sequence has left must not matter
        std::fill_n(before[i].begin() + static_cast<std::ptrdiff_t>(begin), memory,
                    std::numeric_limits<float>::quiet_NaN());
      }
      caches.push_back(std::make_unique<Buffer<float>>(before[i]));
      for (std::uint32_t r = 0; r < counts[i]; ++r) rows.push_back({*caches[i], capacity, firsts[i] + r, 0});
    }
    const auto n = static_cast<std::uint32_t>(rows.size());
    const std::vector<float> x = random_numbers(random, n * channels, 2), gates = random_numbers(random, n * width, 3),
                             rates = random_numbers(random, std::size_t{n} * 2 * s.value_heads, 30);
    const Buffer<RowPlace> places(rows);
    const Buffer<float> device_gates(gates), device_rates(rates);
    const auto run = [&](std::uint32_t from, std::uint32_t count, bool keep) {
      const Buffer<float> changed(
          std::vector<float>(x.begin() + static_cast<std::ptrdiff_t>(from * channels), x.end())),
          out(count * width);
      delta(stream, changed, device_gates + from * width, device_rates + std::size_t{from} * 2 * s.value_heads, w,
            places + from, count, layer, s, keep, out);
      return device.read(out);
    };
    const auto same = [&](std::size_t i, const std::vector<float>& as) {
      return same_bits(device.read(*caches[i]).data(), as.data(), all);
    };
    const std::vector<float> passing = run(0, n, false);
    for (std::size_t i = 0; i < 3; ++i) CHECK(same(i, before[i]));
    const std::vector<float> got = run(0, n, true);
    CHECK(same_bits(passing.data(), got.data(), got.size()));

    std::size_t row = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      const auto rows_of = [&](const std::vector<float>& of, std::size_t columns) {
        const auto at = of.begin() + static_cast<std::ptrdiff_t>(row * columns);
        return Doubles(counts[i], columns, {at, at + static_cast<std::ptrdiff_t>(counts[i] * columns)});
      };
      std::vector<double> remembered(memory);
      for (std::size_t m = 0; firsts[i] > 0 && m < memory; ++m) remembered[m] = before[i][begin + m];
      const Doubles expected =
          by_delta_rule(s, w, kernel, scale, bias, norm, rows_of(x, channels), rows_of(gates, width),
                        rows_of(rates, std::size_t{2} * s.value_heads), remembered);
      const auto at = got.begin() + static_cast<std::ptrdiff_t>(row * width);
      CHECK(worst_error({at, at + static_cast<std::ptrdiff_t>(counts[i] * width)}, expected) < tolerance);
      const std::vector<float> after = device.read(*caches[i]);
      double worst = 0, largest = 1;
      for (std::size_t m = 0; m < memory; ++m) {
        worst = std::max(worst, std::abs(after[begin + m] - remembered[m]));
        largest = std::max(largest, std::abs(remembered[m]));
      }
      CHECK(worst < tolerance * largest);
      CHECK(same_bits(after.data(), before[i].data(), begin));
      row += counts[i];
    }

    // The same rows in two steps, from the start: each row and the memory are equal, to the bit.
    const std::vector<float> first = device.read(*caches[0]);
    check(cudaMemcpy(*caches[0], before[0].data(), all * sizeof(float), cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());
    CHECK(same_bits(run(0, 1, true).data(), got.data(), width));
    CHECK(same_bits(run(1, 2, true).data(), got.data() + width, 2 * width));
    CHECK(same(0, first));
  }
}

TEST_CASE("cuda kernels - short convolutions take each sequence on from its last tokens, between two gates") {
  const Device device;
  test::Random random(18);
  constexpr std::uint32_t layers = 2, layer = 1, capacity = 9, n = 6;
  for (const ConvolutionShape& s : {ConvolutionShape{48, 3, {4}}, {300, 1, {6}}, {7, 8, {0}}, {33, 2, {3}}}) {
    CAPTURE(s.kernel);
    const std::size_t channels = s.channels, before = s.kernel - 1, memory = s.memory_numbers();
    const std::size_t begin = s.before.whole * capacity + layer * memory;
    const std::vector<float> kernel = random_numbers(random, s.kernel * channels),
                             x = random_numbers(random, n * 3 * channels, 2);
    const Buffer<float> device_kernel(kernel), device_x(x), out(n * channels);
    // Four rows of one sequence from position 3, and two of another from its start.
    std::vector<float> kept[2];
    std::vector<std::unique_ptr<Buffer<float>>> caches;
    std::vector<RowPlace> rows;
    for (std::size_t i = 0; i < 2; ++i) {
      kept[i] = random_numbers(random, s.before.whole * capacity + layers * memory);
      caches.push_back(std::make_unique<Buffer<float>>(kept[i]));
      for (std::uint32_t r = 0; r < (i == 0 ? 4U : 2U); ++r)
        rows.push_back({*caches[i], capacity, i == 0 ? 3 + r : r, 0});
    }
    const Buffer<RowPlace> places(rows);
    short_convolution(device.context.stream, device_x, device_kernel, places, n, layer, s, false, out);
    const std::vector<float> passing = device.read(out);
    for (std::size_t i = 0; i < 2; ++i) CHECK(device.read(*caches[i]) == kept[i]);
    Doubles expected(n, channels);
    for (std::size_t r = 0; r < n; ++r) {
      std::vector<float>& own = kept[r < 4 ? 0 : 1];
      const float* row = x.data() + r * 3 * channels;
      for (std::size_t c = 0; c < channels; ++c) {
        float* last = own.data() + begin + c;
        const float now = row[c] * row[2 * channels + c];
        double sum = double{now} * kernel[before * channels + c];
        for (std::size_t t = 0; t < before; ++t) {
          if (r == 4) last[t * channels] = 0;  // the first row of the second sequence
          sum += double{last[t * channels]} * kernel[t * channels + c];
        }
        for (std::size_t t = 0; t < before; ++t) last[t * channels] = t + 1 < before ? last[(t + 1) * channels] : now;
        expected(r, c) = row[channels + c] * sum;
      }
    }
    CHECK(worst_error(passing, expected) < tolerance);
    short_convolution(device.context.stream, device_x, device_kernel, places, 3, layer, s, true, out);
    short_convolution(device.context.stream, device_x + 9 * channels, device_kernel, places + 3, 3, layer, s, true,
                      out + 3 * channels);
    CHECK(device.read(out) == passing);
    for (std::size_t i = 0; i < 2; ++i) CHECK(device.read(*caches[i]) == kept[i]);
  }
}

TEST_CASE("cuda kernels - what attention gives is weighed by sigmoids") {
  const Device device;
  test::Random random(19);
  for (const std::size_t count : {1U, 255U, 1000U}) {
    const std::vector<float> x = random_numbers(random, count, 3), gates = random_numbers(random, count, 9);
    const Buffer<float> y(x), device_gates(gates);
    weigh(device.context.stream, device_gates, count, y);
    const std::vector<float> got = device.read(y);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(got[i] == doctest::Approx(x[i] / (1 + std::exp(-double{gates[i]}))).epsilon(1e-5));
    }
  }
}

TEST_CASE("cuda kernels - scores far apart neither overflow nor vanish") {
  const Device device;
  constexpr std::uint32_t dim = 4, capacity = 70;
  for (const bool early : {true, false}) {  // the first warp sees a high score, too, or only a later one does
    CAPTURE(early);
    std::vector<float> cache(std::size_t{2} * capacity * dim);
    for (std::uint32_t p = 0; p < capacity; ++p) {
      cache[p * dim] = (p == 3 && early) || p == 66 ? 1000.0F : -1000.0F;
      cache[(capacity + p) * dim] = static_cast<float>(p);
    }
    const Buffer<float> memory(cache), q(std::vector<float>{2, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9}), out(dim);
    const Buffer<RowPlace> places(std::vector<RowPlace>{{memory, capacity, capacity - 1, 0}});
    attention(device.context.stream, q, places, 1, {}, {1, 1, dim}, out);
    CHECK(device.read(out) == std::vector<float>{early ? 34.5F : 66.0F, 0, 0, 0});
  }
}

namespace {

void check_gate(FloatType type, std::uint32_t experts, std::uint32_t hidden, std::uint32_t count, std::uint32_t k,
                const std::vector<std::uint32_t>& sizes, test::Random& random) {
  const std::string type_name = name_of(type);
  CAPTURE(type_name);
  CAPTURE(experts);
  CAPTURE(hidden);
  CAPTURE(count);
  const Device device(std::uint64_t{hidden} * 7);
  const Weight w(type, count * experts, hidden, random);
  const std::uint32_t most = *std::max_element(sizes.begin(), sizes.end());
  const std::vector<float> x = random_numbers(random, std::size_t{most} * hidden);
  const Doubles logits = product(Doubles(most, hidden, x), w.values);
  const Buffer<float> input(x);
  const Buffer<unsigned> counter(std::vector<unsigned>{0});
  std::vector<float> alone;
  for (const std::uint32_t n : sizes) {
    CAPTURE(n);
    const Buffer<float> scores(std::size_t{count} * n * experts);
    const Buffer<std::uint16_t> best(std::size_t{n} * k);
    gate(device.context, input, n, w.dense, count, scores, scores, counter, k, best);
    const std::vector<float> got = device.read(scores);
    Doubles expected(std::size_t{count} * n, experts);
    for (std::size_t g = 0; g < count; ++g) {
      for (std::size_t i = 0; i < n; ++i) {
        double sum = 0;
        for (std::size_t e = 0; e < experts; ++e) {
          sum += expected(g * n + i, e) = std::exp(logits(i, g * experts + e));
        }
        for (std::size_t e = 0; e < experts; ++e) expected(g * n + i, e) /= sum;
      }
    }
    CHECK(worst_error(got, expected) < tolerance);
    const std::vector<std::uint16_t> chosen = device.read(best);
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<std::uint16_t> order(experts);
      std::iota(order.begin(), order.end(), std::uint16_t{0});
      const float* row = got.data() + i * experts;
      std::stable_sort(order.begin(), order.end(), [row](std::uint16_t a, std::uint16_t b) { return row[a] > row[b]; });
      for (std::size_t rank = 0; rank < k; ++rank) REQUIRE(chosen[i * k + rank] == order[rank]);
    }
    CHECK(device.read(counter) == std::vector<unsigned>{0});
    if (n == 1) alone.assign(got.begin(), got.begin() + experts);
    if (n <= few_rows && !alone.empty()) CHECK(same_bits(got.data(), alone.data(), experts));
  }
}

}  // namespace

TEST_CASE("cuda kernels - gates of every type, several at once, and the best experts of the first") {
  test::Random random(8);
  for (const FloatType type : float_types) {
    check_gate(type, 8, 96, 1, 2, {1, 2, 8, 20}, random);
    check_gate(type, 60, 130, 3, 4, {1, 3, 9}, random);
  }
  check_gate(FloatType::bf16, 1, 32, 2, 1, {1, 2}, random);
  check_gate(FloatType::bf16, 300, 40, 1, 300, {1, 5}, random);
  check_gate(FloatType::f32, 512, 8, 2, 10, {1, 8, 12}, random);
  check_gate(FloatType::bf16, 16, 4104, 1, 8, {1, 6}, random);
}

TEST_CASE("cuda kernels - equal scores go to the lower expert, and rows that are no numbers to the first ones") {
  const Device device;
  constexpr std::uint32_t experts = 70, n = 4, k = 6;
  std::vector<float> weights(experts, 1.0F);  // [experts, 1]
  for (const std::uint32_t e : {65U, 34U, 2U}) weights[e] = 2;
  weights[40] = 3;
  const Buffer<float> memory(weights), scores(std::size_t{n} * experts);
  // In the second row all scores are equal, in the third they are reversed, and in the last they are NaN.
  const Buffer<float> x(std::vector<float>{1, 0, -1, std::numeric_limits<float>::quiet_NaN()});
  const Buffer<unsigned> counter(std::vector<unsigned>{0});
  const DenseWeight gates{reinterpret_cast<const std::byte*>(static_cast<float*>(memory)), FloatType::f32, experts, 1};
  const std::vector<std::uint16_t> expected{40, 2, 34, 65, 0, 1, 0, 1, 2, 3, 4, 5, 0, 1, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5};
  const Buffer<std::uint16_t> best(std::size_t{n} * k);
  gate(device.context, x, n, gates, 1, scores, scores, counter, k, best);
  CHECK(device.read(best) == expected);
  gate(device.context, x, n, gates, 1, scores, scores, counter, k, nullptr);
  const std::vector<float> got = device.read(scores);
  CHECK(got[experts] == doctest::Approx(1.0 / experts));
  CHECK(std::isnan(got.back()));
}

namespace {

/// Experts on the device, and the values that they are stored as.
struct Experts {
  Experts(const ExpertShape& s, Precision p, std::uint32_t count, test::Random& random) : shape(s), precision(p) {
    for (std::uint32_t e = 0; e < count; ++e) {
      std::vector<std::byte> bytes;
      for (int part = 0; part < 3; ++part) {
        const std::uint32_t rows = part == 2 ? s.hidden : s.width, columns = part == 2 ? s.width : s.hidden;
        auto append = [&](const auto& layout) {
          bytes.resize(bytes.size() + layout.bytes());
          weights.push_back(make_weights(layout, bytes.data() + bytes.size() - layout.bytes(), random));
        };
        if (p == Precision::full && (part == 2 ? s.down.blocks : s.type.blocks)) {
          append(BlockLayout{rows, columns, part == 2 ? s.down.block : s.type.block});
        } else if (p == Precision::full) {
          append(PassThroughLayout{rows, columns, part == 2 ? s.down.number : s.type.number});
        } else {
          append(PackedLayout{rows, columns, code_bits(p), s.group});
        }
      }
      if (s.scaled) {
        scales.push_back(1.0F + static_cast<float>(e));
        bytes.resize(bytes.size() + sizeof(float));
        std::memcpy(bytes.data() + bytes.size() - sizeof(float), &scales.back(), sizeof(float));
      }
      memory.push_back(new Buffer<std::byte>(bytes));
    }
  }
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;
  ~Experts() {
    for (Buffer<std::byte>* m : memory) delete m;
  }

  /// What expert `e` computes from x [rows, hidden].
  [[nodiscard]] Doubles run(std::size_t e, const Doubles& x) const {
    Doubles gate = product(x, weights[3 * e]);
    const Doubles up = product(x, weights[3 * e + 1]);
    for (std::size_t i = 0; i < gate.values.size(); ++i) {
      const double x = gate.values[i];
      gate.values[i] = (shape.activation.gelu ? of_gelu(x) : x / (1 + std::exp(-x))) * up.values[i];
    }
    Doubles made = product(gate, weights[3 * e + 2]);
    for (double& m : made.values) m *= shape.scaled ? double{scales[e]} : 1;
    return made;
  }

  ExpertShape shape;
  Precision precision;
  std::vector<Doubles> weights;  ///< [experts, 3]
  std::vector<float> scales;     ///< [experts], or none
  std::vector<Buffer<std::byte>*> memory;
};

/// Which assignments each expert has, as the descriptors that the engine makes.
struct Routes {
  std::vector<std::uint32_t> assignments;
  std::vector<ExpertTask> tasks;
  std::array<std::uint32_t, precision_count> counts{};
  std::uint32_t most_rows = 0;

  void add(const Experts& of, std::size_t e, const std::vector<std::uint32_t>& wanted) {
    tasks.push_back(
        {*of.memory[e], static_cast<std::uint32_t>(assignments.size()), static_cast<std::uint32_t>(wanted.size())});
    ++counts[static_cast<std::size_t>(of.precision)];
    assignments.insert(assignments.end(), wanted.begin(), wanted.end());
    most_rows = std::max(most_rows, tasks.back().rows);
  }
};

/// Results [n * top_k, hidden]; places without an assignment stay 7.
std::vector<float> run_experts(const Device& device, const ExpertShape& s, const Routes& routes, std::uint32_t top_k,
                               const Buffer<float>& x, std::uint32_t all) {
  const Buffer<std::uint32_t> assignments(routes.assignments);
  const Buffer<ExpertTask> tasks(routes.tasks);
  const Buffer<float> activated(std::size_t{all} * s.width);
  const Buffer<float> results(std::vector<float>(std::size_t{all} * s.hidden, 7.0F));
  const std::vector<unsigned> zeros(2 + routes.tasks.size());
  const Buffer<unsigned> progress(zeros);
  const ExpertGroup group{tasks, routes.counts, assignments, top_k, routes.most_rows, progress};
  experts(device.context, s, group, x, activated, results);
  CHECK(device.read(progress) == zeros);
  return device.read(results);
}

/// A group of experts with 20, 1, 3, 0 and 8 rows, compared with the same experts and rows by themselves.
void check_experts(const ExpertShape& s, Precision p, test::Random& random) {
  const std::string type_name = name_of(s.type);
  CAPTURE(type_name);
  CAPTURE(static_cast<int>(p));
  CAPTURE(s.group);
  CAPTURE(s.hidden);
  constexpr std::uint32_t n = 20, top_k = 2, all = n * top_k;
  const Device device(std::uint64_t{s.hidden} * 5 + s.width);
  const Experts e(s, p, 5, random);
  const std::vector<float> x = random_numbers(random, std::size_t{n} * s.hidden);
  const Buffer<float> input(x);
  std::vector<std::vector<std::uint32_t>> wanted(5);
  for (std::uint32_t row = 0; row < n; ++row) wanted[0].push_back(row * top_k + row % 2);
  wanted[1] = {3 * top_k};
  wanted[2] = {top_k * 19, 5 * top_k, 1 * top_k};
  for (std::uint32_t row = 6; row < 14; ++row) wanted[4].push_back(row * top_k + 1 - row % 2);
  Routes together;
  for (std::size_t i = 0; i < 5; ++i) together.add(e, i, wanted[i]);
  const std::vector<float> got = run_experts(device, s, together, top_k, input, all);
  std::vector<bool> used(all);
  for (std::size_t i = 0; i < 5; ++i) {
    CAPTURE(i);
    if (wanted[i].empty()) continue;
    Doubles rows(wanted[i].size(), s.hidden);
    std::vector<float> results;
    for (std::size_t r = 0; r < rows.rows; ++r) {
      const std::uint32_t a = wanted[i][r];
      for (std::size_t c = 0; c < s.hidden; ++c) rows(r, c) = x[a / top_k * s.hidden + c];
      results.insert(results.end(), got.begin() + a * s.hidden, got.begin() + (a + 1) * s.hidden);
      used[a] = true;
    }
    const Doubles expected = e.run(i, rows);
    CHECK(worst_error(results, expected) < tolerance);

    Routes all_alone;  // each expert as its own group, and each row alone in one
    all_alone.add(e, i, wanted[i]);
    const std::vector<float> again = run_experts(device, s, all_alone, top_k, input, all);
    for (std::size_t r = 0; r < wanted[i].size(); ++r) {
      const std::size_t at = std::size_t{wanted[i][r]} * s.hidden;
      CHECK(same_bits(again.data() + at, got.data() + at, s.hidden));
      if (r % (test::quick() ? 20 : 5) != 0) continue;
      Routes one;
      one.add(e, i, {wanted[i][r]});
      CHECK(same_bits(run_experts(device, s, one, top_k, input, all).data() + at, got.data() + at, s.hidden));
    }

    const std::size_t size = wanted[i].size();
    const Buffer<float> gathered(size * s.hidden), gate(size * s.width), up(size * s.width);
    const Buffer<float> by_blas(std::vector<float>(std::size_t{all} * s.hidden, 7.0F));
    const Buffer<std::uint32_t> assignments(together.assignments);
    expert_by_blas(device.context, s, p, together.tasks[i], assignments, top_k, nullptr, input, {gathered, gate, up},
                   by_blas);
    const std::vector<float> blas_results = device.read(by_blas);
    std::vector<float> of_rows;
    for (const std::uint32_t a : wanted[i]) {
      of_rows.insert(of_rows.end(), blas_results.begin() + a * s.hidden, blas_results.begin() + (a + 1) * s.hidden);
    }
    CHECK(worst_error(of_rows, expected) < tolerance);
    CHECK(static_cast<std::size_t>(std::count(blas_results.begin(), blas_results.end(), 7.0F)) ==
          (all - size) * s.hidden);
  }
  for (std::size_t a = 0; a < all; ++a) {
    if (used[a]) continue;
    CHECK(std::count(got.begin() + static_cast<std::ptrdiff_t>(a * s.hidden),
                     got.begin() + static_cast<std::ptrdiff_t>((a + 1) * s.hidden), 7.0F) == s.hidden);
  }
}

}  // namespace

TEST_CASE("cuda kernels - experts of every type and precision, and a result does not depend on its company") {
  test::Random random(9);
  for (const FloatType type : float_types) {
    check_experts({96, 72, type, 64}, Precision::full, random);
    check_experts({130, 33, type, 64}, Precision::full, random);
  }
  for (const Precision p : {Precision::int8, Precision::int4, Precision::int2}) {
    for (const std::uint32_t group : {32U, 64U, 128U}) {
      check_experts({130, 33, FloatType::bf16, group}, p, random);
      if (test::quick()) continue;
      check_experts({96, 72, FloatType::bf16, group}, p, random);
      check_experts({256, 128, FloatType::bf16, group}, p, random);
    }
  }
}

TEST_CASE("cuda kernels - experts with GELU and a scale each") {
  test::Random random(41);
  for (ExpertShape s : {ExpertShape{96, 72, FloatType::bf16, 64}, ExpertShape{130, 33, FloatType::f32, 64},
                        ExpertShape{256, 256, BlockType::q4_k, 64, BlockType::q6_k}}) {
    s.activation.gelu = s.scaled = true;
    check_experts(s, Precision::full, random);
  }
  ExpertShape s{130, 33, FloatType::bf16, 64};
  s.activation.gelu = s.scaled = true;
  for (const Precision p : {Precision::int8, Precision::int4, Precision::int2}) check_experts(s, p, random);
}

TEST_CASE("cuda kernels - experts of blocks, also where down is of another type") {
  test::Random random(37);
  for (const BlockType type : test::block_types) {
    const std::uint32_t size = (test::quick() ? 1 : 2) * block_weights(type);
    check_experts({size, size, type, 64}, Precision::full, random);
  }
  check_experts({512, 96, BlockType::q4_k, 64, BlockType::q8_0}, Precision::full, random);
  check_experts({256, 256, BlockType::q4_k, 64, BlockType::q6_k}, Precision::full, random);
  check_experts({96, 72, BlockType::q8_0, 64, FloatType::f16}, Precision::full, random);
  check_experts({96, 64, FloatType::bf16, 64, BlockType::mxfp4}, Precision::full, random);
}

TEST_CASE("cuda kernels - experts of all precisions in one launch") {
  test::Random random(17);
  // At 33 columns no row begins where a unit of weights could be read at once.
  for (const ExpertShape& s : {ExpertShape{128, 64, FloatType::f16, 32}, ExpertShape{128, 33, FloatType::f16, 32},
                               ExpertShape{128, 64, BlockType::q8_0, 32}}) {
    CAPTURE(s.width);
    constexpr std::uint32_t n = 10;
    const Device device(1024);
    const std::vector<float> x = random_numbers(random, std::size_t{n} * s.hidden);
    const Buffer<float> input(x);
    for (const std::uint32_t rows : {1U, 10U}) {
      CAPTURE(rows);
      std::vector<std::unique_ptr<Experts>> all;
      Routes together;
      for (std::uint32_t i = 0; i < 8; ++i) {
        all.push_back(std::make_unique<Experts>(s, static_cast<Precision>(1 + i / 2), 1, random));
        std::vector<std::uint32_t> wanted;
        for (std::uint32_t row = 0; row < rows; ++row) wanted.push_back((i + row) % n * 8 + i);
        together.add(*all[i], 0, wanted);
      }
      const std::vector<float> got = run_experts(device, s, together, 8, input, n * 8);
      for (std::uint32_t i = 0; i < 8; ++i) {
        CAPTURE(i);
        Doubles inputs(rows, s.hidden);
        std::vector<float> results;
        for (std::uint32_t r = 0; r < rows; ++r) {
          const std::size_t a = together.assignments[together.tasks[i].first + r];
          for (std::size_t c = 0; c < s.hidden; ++c) inputs(r, c) = x[a / 8 * s.hidden + c];
          results.insert(results.end(), got.begin() + static_cast<std::ptrdiff_t>(a * s.hidden),
                         got.begin() + static_cast<std::ptrdiff_t>((a + 1) * s.hidden));
        }
        CHECK(worst_error(results, all[i]->run(0, inputs)) < tolerance);
      }
    }
  }
}

TEST_CASE("cuda kernels - launches are accounted for: one for any group of experts - emulated") {
  test::Random random(18);
  const Device device;
  const ExpertShape s{64, 32, FloatType::bf16, 32};
  const Experts full(s, Precision::full, 1, random), small(s, Precision::int4, 1, random);
  const Buffer<float> input(random_numbers(random, s.hidden * 3));
  Routes routes;
  routes.add(small, 0, {1});
  routes.add(full, 0, {0});
  const std::uint64_t launches = test::emulated::counters().launches;
  run_experts(device, s, routes, 2, input, 6);
  CHECK(test::emulated::counters().launches == launches + 1);
}

TEST_CASE("cuda kernels - experts that are longer than shared memory, and many at once") {
  test::Random random(10);
  const Device device;
  struct Long {
    Precision precision;
    std::uint32_t hidden, width;
  };
  for (const Long& l : {Long{Precision::full, 4224, 8},
                        {Precision::int8, 40, 4160},
                        {Precision::int4, 4160, 32},
                        {Precision::int2, 32, 8320},
                        {Precision::int4, 64, 2208}}) {
    const std::uint32_t hidden = l.hidden;
    CAPTURE(hidden);
    CAPTURE(l.width);
    const ExpertShape s{hidden, l.width, FloatType::bf16, 64};
    const Experts e(s, l.precision, 1, random);
    constexpr std::uint32_t n = 11;
    const std::vector<float> x = random_numbers(random, std::size_t{n} * hidden);
    const Buffer<float> input(x);
    const Doubles expected = e.run(0, Doubles(n, hidden, x));
    std::vector<float> got;
    for (const std::uint32_t rows : {11U, 1U, 2U, 3U, 6U}) {
      if (test::quick() && rows != n && rows != 3) continue;
      Routes routes;
      routes.add(e, 0, std::vector<std::uint32_t>{10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
      routes.tasks[0].rows = routes.most_rows = rows;
      const std::vector<float> results = run_experts(device, s, routes, 1, input, n);
      if (rows == n) {
        got = results;
        CHECK(worst_error(got, expected) < tolerance);
      }
      for (std::uint32_t i = 0; i < rows; ++i) {
        const std::size_t at = std::size_t{routes.assignments[i]} * hidden;
        CHECK(same_bits(results.data() + at, got.data() + at, hidden));
      }
    }
  }
  // 40 experts for one row make so many blocks that a warp takes twice as many features. The results stay the same.
  const ExpertShape s{1024, 64, FloatType::bf16, 32};
  const Experts e(s, Precision::int4, 1, random);
  const std::vector<float> x = random_numbers(random, s.hidden);
  const Buffer<float> input(x);
  Routes one, many;
  one.add(e, 0, {0});
  for (std::uint32_t a = 0; a < 40; ++a) many.add(e, 0, {a});
  const std::vector<float> got = run_experts(device, s, many, 40, input, 40);
  const std::vector<float> alone = run_experts(device, s, one, 40, input, 40);
  CHECK(worst_error({alone.begin(), alone.begin() + s.hidden}, e.run(0, Doubles(1, s.hidden, x))) < tolerance);
  for (std::size_t a = 0; a < 40; ++a) CHECK(same_bits(got.data() + a * s.hidden, alone.data(), s.hidden));
}

TEST_CASE("cuda kernels - groups of equal weights, and of the widest range") {
  const Device device;
  const PackedLayout wide{32, 64, 4, 32}, narrow{64, 32, 4, 32};
  std::vector<std::byte> bytes(2 * wide.bytes() + narrow.bytes());
  std::vector<float> weights(std::size_t{32} * 64, 0.25F);
  REQUIRE(pack(wide, weights.data(), bytes.data(), RoundToNearest{}) == no_weight);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = i % 2 == 0 ? 1000.0F : -1000.0F;
  REQUIRE(pack(wide, weights.data(), bytes.data() + wide.bytes(), RoundToNearest{}) == no_weight);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = i / 32 == 5 ? 1.0F : 0.0F;
  REQUIRE(pack(narrow, weights.data(), bytes.data() + 2 * wide.bytes(), RoundToNearest{}) == no_weight);
  std::vector<float> x(64, 0);
  x[0] = 4;  // gate 1, up 4000
  const Buffer<std::byte> memory(bytes);
  const Buffer<float> input(x), activated(32), results(64);
  const Buffer<std::uint32_t> assignments(std::vector<std::uint32_t>{0});
  const Buffer<ExpertTask> tasks(std::vector<ExpertTask>{{memory, 0, 1}});
  const Buffer<unsigned> progress(std::vector<unsigned>(3));
  experts(device.context, {64, 32, FloatType::bf16, 32}, {tasks, {0, 0, 1, 0, 0}, assignments, 1, 1, progress}, input,
          activated, results);
  const std::vector<float> got = device.read(results);
  const double silu = 1 / (1 + std::exp(-1.0));
  for (std::size_t i = 0; i < 64; ++i) {
    CHECK(got[i] == doctest::Approx(i == 5 ? 32 * 4000 * silu : 0).epsilon(1e-5));
  }
}

TEST_CASE("cuda kernels - sums over ranks with what is left out and what the host computed") {
  const Device device;
  test::Random random(11);
  for (const std::uint32_t hidden : {1U, 130U, 600U}) {
    for (const bool with_shared : {false, true}) {
      constexpr std::uint32_t n = 3, k = 4;
      const std::vector<float> weights = random_numbers(random, n * k),
                               results = random_numbers(random, n * k * hidden);
      const std::vector<float> of_host = random_numbers(random, n * k * hidden),
                               residual = random_numbers(random, n * hidden);
      const std::vector<float> shared = random_numbers(random, n * hidden), factor = random_numbers(random, n, 5);
      const std::vector<std::uint8_t> state{on_device, on_host,  left_out, on_device, left_out, left_out,
                                            left_out,  left_out, on_host,  on_host,   on_host,  on_device};
      Doubles expected(n, hidden), magnitudes(n, hidden);
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t c = 0; c < hidden; ++c) {
          double sum = residual[i * hidden + c], magnitude = std::abs(sum);
          auto add = [&](double term) {
            sum += term;
            magnitude += std::abs(term);
          };
          for (std::size_t a = i * k; a < (i + 1) * k; ++a) {
            if (state[a] != left_out) {
              add(double{weights[a]} * (state[a] == on_host ? of_host : results)[a * hidden + c]);
            }
          }
          if (with_shared) add(shared[i * hidden + c] / (1 + std::exp(-double{factor[i]})));
          expected(i, c) = (with_shared ? 0.75 : 1) * sum;
          magnitudes(i, c) = magnitude;
        }
      }
      // Values of the other side must not be read, so they are NaN.
      std::vector<float> on_card = results;
      void* mapped = nullptr;
      check(cudaHostAlloc(&mapped, of_host.size() * sizeof(float), cudaHostAllocMapped | cudaHostAllocPortable));
      auto* host = static_cast<float*>(mapped);
      for (std::size_t i = 0; i < of_host.size(); ++i) {
        const float none = std::numeric_limits<float>::quiet_NaN();
        const std::uint8_t s = state[i / hidden];
        if (s != on_device) on_card[i] = none;
        host[i] = s == on_host ? of_host[i] : none;
      }
      void* seen = nullptr;
      check(cudaHostGetDevicePointer(&seen, mapped, 0));
      const Buffer<float> w(weights), r(on_card), x(residual), y(shared), f(factor), out(n * hidden);
      const Buffer<std::uint8_t> states(state);
      Combined c{n, k, hidden};
      c.weights = w;
      c.state = states;
      c.results = r;
      c.host_results = static_cast<const float*>(seen);
      c.residual = x;
      if (with_shared) {
        c.shared = y;
        c.shared_factor = f;
        c.last_scale = 0.75F;
      }
      combine(device.context.stream, c, out);
      const std::vector<float> got = device.read(out);
      CHECK(worst_of_terms(got, expected, magnitudes) < 1e-6);
      combine(device.context.stream, c, x);
      CHECK(device.read(x) == got);
      check(cudaFreeHost(mapped));
    }
  }
}

namespace {

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("cuda kernels - sizes that they cannot do are refused with numbers") {
  const Device device(10);
  const cudaStream_t stream = device.context.stream;
  const Buffer<float> x(1000);
  const Buffer<std::byte> weights(4000);
  const Buffer<unsigned> counter(std::vector<unsigned>{0});
  auto says = [](const std::string& message, const std::string& numbers) {
    CAPTURE(message);
    CHECK(message.find(numbers) != std::string::npos);
  };
  const DenseWeight many{weights, FloatType::bf16, 513, 1}, some{weights, FloatType::bf16, 8, 20};
  says(refusal([&] { gate(device.context, x, 1, many, 1, x, x, counter, 2, nullptr); }),
       "513 experts, expected at most 512");
  says(refusal([&] { gate(device.context, x, 1, some, 3, x, x, counter, 2, nullptr); }),
       "8 rows of weights are not 3 gates");
  const Buffer<std::uint16_t> best(100);
  says(refusal([&] { gate(device.context, x, 1, some, 2, x, x, counter, 5, best); }), "best 5 of 4");
  says(refusal([&] { linear(device.context, x, 9, some, nullptr, false, x); }), "scratch memory is 10 floats");
  says(refusal([&] { attention(stream, x, nullptr, 1, {}, {1, 1, 514}, x); }), "heads of 514 numbers");
  says(refusal([&] { attention(stream, x, nullptr, 1, {}, {1, 1, 0}, x); }), "heads of 0 numbers");
  says(refusal([&] { prepare_and_store(stream, x, {x, 6}, nullptr, 1, {}, {1, 1, 7}); }), "heads of 7 numbers");
  says(refusal([&] { prepare_and_store(stream, x, {x, 3}, nullptr, 1, {}, {1, 1, 8}); }), "3 columns that turn");
  says(refusal([&] { prepare_and_store(stream, x, {x, 10}, nullptr, 1, {}, {1, 1, 8}); }), "10 columns that turn");
  says(refusal([&] { attention(stream, x, nullptr, 1, {}, {5, 2, 8}, x); }), "5 heads cannot share 2");
  const auto by_rule = [&](const DeltaShape& s) { delta(stream, x, x, x, {}, nullptr, 1, 0, s, true, x); };
  says(refusal([&] { by_rule({2, 3, 8, 8, 4}); }), "3 heads of values cannot share 2");
  says(refusal([&] { by_rule({2, 4, 257, 8, 4}); }), "heads of 257 numbers");
  says(refusal([&] { by_rule({2, 4, 8, 8, 9}); }), "over 9 tokens, expected at most 8");
  says(refusal([&] { short_convolution(stream, x, x, nullptr, 1, 0, {8, 0}, true, x); }), "over 0 tokens");
  says(refusal([&] { experts(device.context, {8, 8, FloatType::bf16, 48}, {}, x, x, x); }), "groups of 48");
  says(refusal([&] {
         experts(device.context, {8, 8, FloatType::bf16, 32}, {nullptr, {1, 0, 0, 0, 0}, nullptr, 1, 1, nullptr}, x, x,
                 x);
       }),
       "skipped");
  says(refusal([&] { experts(device.context, {8, 0, FloatType::bf16, 32}, {}, x, x, x); }), "width 0");
  check(cudaStreamSynchronize(stream));
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("cuda kernels - nothing to do is nothing done") {
  const Device device;
  const Context& c = device.context;
  const Buffer<float> y(std::vector<float>(16, 7.0F));
  put(c.stream, y, nullptr, 0);
  embed(c.stream, {}, nullptr, 0, 1, y);
  rms_norm(c.stream, nullptr, nullptr, 0, 0, 16, 16, y);
  layer_norm(c.stream, nullptr, nullptr, nullptr, 0, 0, 16, y);
  linear(c, nullptr, 0, {nullptr, FloatType::bf16, 16, 16}, nullptr, false, y);
  activate(c.stream, y, nullptr, 0, 16, {}, {}, nullptr);
  prepare_and_store(c.stream, y, {y, 16}, nullptr, 0, {}, {1, 1, 16});
  attention(c.stream, y, nullptr, 0, {}, {1, 1, 16}, y);
  delta(c.stream, y, nullptr, nullptr, {}, nullptr, 0, 0, {1, 1, 16, 16, 4}, true, y);
  short_convolution(c.stream, nullptr, nullptr, nullptr, 0, 0, {16, 3}, true, y);
  weigh(c.stream, nullptr, 0, y);
  gate(c, nullptr, 0, {nullptr, FloatType::bf16, 16, 16}, 1, y, y, nullptr, 2, nullptr);
  experts(c, {16, 16, FloatType::bf16, 64}, {}, nullptr, y, y);
  expert_by_blas(c, {16, 16, FloatType::bf16, 64}, Precision::full, {}, nullptr, 1, nullptr, nullptr, {}, y);
  combine(c.stream, {}, y);
  CHECK(device.read(y) == std::vector<float>(16, 7.0F));
}
