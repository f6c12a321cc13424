// Attention beside its formula in double, row by row.
#include "math/attention.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "engine/fixtures/product_paths.hpp"
#include "support/random.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using ferry::test::paths;

/// Keys and values of the same width, and the usual scale.
AttentionShape usual(std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t dim, FloatType type = FloatType::f32) {
  return {heads, kv_heads, dim, dim, dim, 1 / std::sqrt(static_cast<float>(dim)), type};
}

/// Keys and values of some sequences.
struct Sequences {
  AttentionShape shape;
  std::uint32_t capacity = 0;
  std::vector<std::vector<float>> keys, values;  // [kv_heads, capacity, head_dim], [kv_heads, capacity, value_stride]
  std::vector<std::vector<std::uint16_t>> halves_of_keys, halves_of_values;  // the same, where they are f16

  Sequences(const AttentionShape& s, std::uint32_t positions, std::size_t count, test::Random& random)
      : shape(s), capacity(positions) {
    for (auto* all : {&keys, &values}) {
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<float> own(std::size_t{s.kv_heads} * positions * (all == &keys ? s.head_dim : s.value_stride));
        std::vector<std::uint16_t> halves;
        for (float& v : own) {
          v = random.unit() * 4 - 2;
          if (s.type == FloatType::f32) continue;
          halves.push_back(Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(v)));
          v = static_cast<float>(Eigen::half(v));
        }
        all->push_back(own);
        (all == &keys ? halves_of_keys : halves_of_values).push_back(halves);
      }
    }
  }
  [[nodiscard]] AttentionKernel::Row row(std::size_t sequence, std::uint32_t seen, std::uint32_t first = 0) const {
    const auto bytes = [&](const auto& floats, const auto& halves) {
      return shape.type == FloatType::f32 ? reinterpret_cast<const std::byte*>(floats[sequence].data())
                                          : reinterpret_cast<const std::byte*>(halves[sequence].data());
    };
    return {bytes(keys, halves_of_keys), bytes(values, halves_of_values), capacity, first, seen};
  }
};

Matrix random_rows(std::size_t rows, const AttentionShape& shape, test::Random& random) {
  Matrix q(static_cast<Eigen::Index>(rows), Eigen::Index{shape.heads} * shape.head_dim);
  for (float& v : q.reshaped()) v = random.unit() * 4 - 2;
  return q;
}

/// The largest error relative to the largest value.
double worst_error(const Sequences& s, const std::vector<AttentionKernel::Row>& rows, const Matrix& q,
                   const Matrix& out, const std::vector<float>& sinks = {}) {
  const auto is_of = [&](std::size_t sequence, std::size_t r) { return s.row(sequence, 1).keys == rows[r].keys; };
  const std::uint32_t dim = s.shape.head_dim, share = s.shape.heads / s.shape.kv_heads, made = s.shape.value_dim;
  double worst = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::size_t sequence = is_of(0, r) ? 0 : 1;
    const std::vector<float>&keys = s.keys[sequence], &values = s.values[sequence];
    for (std::uint32_t h = 0; h < s.shape.heads; ++h) {
      const std::size_t head = std::size_t{h / share} * s.capacity;
      const float* own = q.row(static_cast<Eigen::Index>(r)).data() + std::size_t{h} * dim;
      std::vector<double> weights;
      double sum = sinks.empty() ? 0 : std::exp(double{sinks[h]});
      for (std::uint32_t p = 0; p < rows[r].seen; ++p) {
        double score = 0;
        for (std::uint32_t d = 0; d < dim; ++d) score += double{own[d]} * keys[(head + p) * dim + d];
        weights.push_back(p < rows[r].first ? 0 : std::exp(score * s.shape.scale));
        sum += weights.back();
      }
      for (std::uint32_t d = 0; d < made; ++d) {
        double expected = 0;
        for (std::uint32_t p = 0; p < rows[r].seen; ++p) {
          expected += weights[p] / sum * values[(head + p) * s.shape.value_stride + d];
        }
        worst = std::max(worst, std::abs(expected - out(static_cast<Eigen::Index>(r), Eigen::Index{h} * made + d)));
      }
    }
  }
  return worst / 2;
}

TEST_CASE("halves hold what is too large for them as their largest, and what is not finite as it is") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float from[] = {1.5F, 70000.0F, -3e38F, infinity, -infinity, std::nanf("")};
  std::byte to[sizeof(from) / 2];
  to_f16(from, std::size(from), to);
  float back[std::size(from)];
  for (std::size_t i = 0; i < std::size(from); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, to + 2 * i, sizeof(bits));
    back[i] = ferry::detail::widen_f16(bits);
  }
  CHECK(back[0] == 1.5F);
  CHECK(back[1] == 65504);
  CHECK(back[2] == -65504);
  CHECK(back[3] == infinity);
  CHECK(back[4] == -infinity);
  CHECK_FALSE(std::isfinite(back[5]));
}

TEST_CASE("attention is what its formula says, and a row's result does not depend on its company") {
  test::Random random(5);
  for (const AttentionShape& shape :
       {usual(4, 4, 32), usual(6, 2, 128), usual(4, 1, 80), usual(2, 2, 10), usual(3, 3, 4),
        usual(6, 2, 128, FloatType::f16), usual(4, 1, 80, FloatType::f16), usual(2, 2, 10, FloatType::f16)}) {
    CAPTURE(shape.head_dim);
    const Sequences s(shape, 150, 2, random);
    // A chunk of a prompt, longer than what is computed at once; a step of another sequence; and the first token of one.
    std::vector<AttentionKernel::Row> rows;
    for (std::uint32_t seen = 90; seen <= 130; ++seen) rows.push_back(s.row(0, seen));
    rows.push_back(s.row(1, 149));
    rows.push_back(s.row(1, 1));
    const auto count = static_cast<std::uint32_t>(rows.size());
    const Matrix q = random_rows(rows.size(), shape, random);
    for (const ProductPath path : paths()) {
      CAPTURE(static_cast<int>(path));
      AttentionKernel attention(shape, path, nullptr);
      Matrix out, some;
      attention.run({rows.data(), count}, q, out);
      CHECK(worst_error(s, rows, q, out) < 2e-6);
      for (const std::uint32_t first : {1U, 7U, 30U, count - 2, count - 1}) {
        attention.run({rows.data() + first, count - first}, Matrix(q.bottomRows(count - first)), some);
        CHECK(some == out.bottomRows(count - first));
      }
    }
  }
}

TEST_CASE("attention to a window, with sinks, and to values that are parts of keys") {
  test::Random random(7);
  for (const AttentionShape& shape :
       {AttentionShape{4, 2, 16, 16, 16, 0.3F}, AttentionShape{3, 1, 24, 10, 24, 0.1F},
        AttentionShape{2, 2, 8, 70, 71, 0.5F}, AttentionShape{3, 1, 24, 10, 24, 0.1F, FloatType::f16}}) {
    const Sequences s(shape, 90, 2, random);
    std::vector<float> sinks(shape.heads);
    for (float& v : sinks) v = random.unit() * 4 - 2;
    std::vector<AttentionKernel::Row> rows;
    for (std::uint32_t seen = 1; seen <= 60; ++seen) rows.push_back(s.row(0, seen, seen > 16 ? seen - 16 : 0));
    rows.push_back(s.row(1, 90, 89));
    const auto count = static_cast<std::uint32_t>(rows.size());
    const Matrix q = random_rows(rows.size(), shape, random);
    for (const ProductPath path : paths()) {
      AttentionKernel attention(shape, path, nullptr);
      Matrix out, some;
      attention.run(rows, q, out);
      CHECK(worst_error(s, rows, q, out) < 2e-6);
      attention.run(rows, q, out, sinks.data());
      CHECK(worst_error(s, rows, q, out, sinks) < 2e-6);
      for (const std::uint32_t first : {1U, 25U, count - 1}) {  // nor on who is seen beside what it sees
        attention.run({rows.data() + first, count - first}, Matrix(q.bottomRows(count - first)), some, sinks.data());
        CHECK(some == out.bottomRows(count - first));
      }
    }
  }
}

TEST_CASE("threads that share attention change no bit of it" * doctest::test_suite("threads")) {
  test::Random random(6);
  const AttentionShape shape = usual(8, 4, 64);
  const Sequences s(shape, 700, 2, random);
  WorkerPool three(3);
  for (const std::uint32_t count : {1U, 2U, 40U}) {
    std::vector<AttentionKernel::Row> rows;
    for (std::uint32_t i = 0; i < count; ++i) rows.push_back(s.row(i % 2, 600 + i));
    const Matrix q = random_rows(count, shape, random);
    for (const ProductPath path : paths()) {
      Matrix alone, shared;
      AttentionKernel(shape, path, nullptr).run({rows.data(), count}, q, alone);
      AttentionKernel(shape, path, &three).run({rows.data(), count}, q, shared);
      CHECK(alone == shared);
    }
  }
}

}  // namespace
