// Products straight from stored weights against naive ones in double, and every precision's logits against a float
// reference that dequantises first.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/product_paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "ferry/codec/round_to_nearest.hpp"
#include "inference/generate.hpp"
#include "math/expert_kernel.hpp"
#include "support/bare_runner.hpp"
#include "support/blocks.hpp"
#include "support/quick.hpp"
#include "support/random.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using ferry::test::paths;
using Doubles = Eigen::MatrixXd;

constexpr double tolerance = 1e-5;  // of an expert, relative to its norm
constexpr Eigen::Index most_rows = 20;

/// Between -1 and 1, but much smaller in some groups of 32.
std::vector<float> random_weights(test::Random& random, std::size_t count) {
  std::vector<float> weights(count);
  float factor = 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 32 == 0) factor = random.chance(30) ? 1e-3F : 1;
    weights[i] = factor * (2 * random.unit() - 1);
  }
  return weights;
}

std::size_t pack_weights(const PassThroughLayout& w, const float* weights, std::byte* to) {
  return pack(w, weights, to);
}
std::size_t pack_weights(const PlainLayout& w, const float* weights, std::byte* to) {
  return pack(std::get<PassThroughLayout>(w), weights, to);
}
std::size_t pack_weights(const PackedLayout& w, const float* weights, std::byte* to) {
  return pack(w, weights, to, RoundToNearest{});
}

std::size_t pack_weights(const BlockLayout& w, const float* /*weights*/, std::byte* to) {
  test::Random random(5);
  test::fill_blocks(w, to, random);
  return no_weight;
}

template <class Layout>
Doubles unpacked(const Layout& w, const std::byte* weights) {
  Doubles all(w.rows, w.columns);
  for (std::uint32_t r = 0; r < w.rows; ++r) {
    for (std::uint32_t c = 0; c < w.columns; ++c) all(r, c) = unpack_weight(w, weights, r, c);
  }
  return all;
}

Doubles unpacked(const PlainLayout& w, const std::byte* weights) {
  return unpacked(std::get<PassThroughLayout>(w), weights);
}

/// The largest error of a row relative to the row's norm.
double worst_error(const Matrix& y, const Doubles& expected) {
  return ((y.cast<double>() - expected).rowwise().norm().array() / expected.rowwise().norm().array()).maxCoeff();
}

/// Whether the last n rows give the same bits when they are computed without the others, for each n.
template <class Run>
bool rows_stand_alone(const Matrix& x, const Matrix& y, const Run& run) {
  Matrix some;
  for (Eigen::Index n = 1; n <= x.rows(); ++n) {
    run(Matrix(x.bottomRows(n)), some);
    if (some.rows() != n || some != y.bottomRows(n)) return false;
  }
  return true;
}

template <class Layout>
void check_product(const Layout& w, test::Random& random) {
  CAPTURE(w.columns);
  std::vector<std::byte> memory(1 + w.bytes());  // at an odd address, with nothing behind it
  std::byte* weights = memory.data() + 1;
  const std::vector<float> all = random_weights(random, std::size_t{w.rows} * w.columns);
  REQUIRE(pack_weights(w, all.data(), weights) == no_weight);
  Matrix x(most_rows, w.columns), y, plain_y;
  for (float& v : x.reshaped()) v = random.unit() * 4 - 2;
  const Doubles stored = unpacked(w, weights), expected = x.cast<double>() * stored.transpose();
  const Doubles terms = x.cast<double>().cwiseAbs() * stored.cwiseAbs().transpose();
  const Matrix floats = stored.cast<float>();
  for (const ProductPath path : paths()) {
    CAPTURE(static_cast<int>(path));
    PackedProduct product(path);
    auto run = [&](const Matrix& rows, Matrix& to) { product.run(w, weights, rows, to); };
    run(x, y);
    REQUIRE(y.rows() == most_rows);
    // Relative to the magnitudes of the terms, since these may cancel each other.
    CHECK(((y.cast<double>() - expected).rowwise().norm().array() / terms.rowwise().norm().array()).maxCoeff() < 2e-6);
    CHECK(rows_stand_alone(x, y, run));
    if constexpr (std::is_same_v<Layout, PassThroughLayout>) {
      const PassThroughLayout plain{w.rows, w.columns, FloatType::f32};
      product.run(plain, reinterpret_cast<const std::byte*>(floats.data()), x, plain_y);
      CHECK(plain_y == y);
    }
  }
}

TEST_CASE("products with stored weights of every type and width, group and odd length are exact and rows stand alone") {
  test::Random random(3);
  for (const std::uint32_t columns : {1U, 7U, 32U, 33U, 95U, 128U, 511U, 512U, 600U, 1057U}) {
    for (const FloatType type : {FloatType::bf16, FloatType::f16, FloatType::f32}) {
      CAPTURE(static_cast<int>(type));
      check_product(PassThroughLayout{11, columns, type}, random);
    }
    for (const std::uint32_t bits : {8U, 4U, 2U}) {
      for (const std::uint32_t group : {32U, 64U, 128U}) {
        CAPTURE(bits);
        CAPTURE(group);
        check_product(PackedLayout{11, columns, bits, group}, random);
      }
    }
  }
  for (const std::uint32_t outputs : {1U, 2U, 4U, 8U}) check_product(PackedLayout{outputs, 70, 4, 32}, random);
  // Nothing pads the groups, and the last row ends in the middle of two.
  for (const std::uint32_t bits : {8U, 4U, 2U}) check_product(PackedLayout{8, 96, bits, 32}, random);
}

/// Rounds each 64 columns of a row to 255 values, so that the largest magnitude stays exact.
Doubles rounded_to_int8(const Matrix& x) {
  Doubles rounded(x.rows(), x.cols());
  for (Eigen::Index r = 0; r < x.rows(); ++r) {
    for (Eigen::Index first = 0; first < x.cols(); first += 64) {
      const auto own = x.row(r).segment(first, std::min<Eigen::Index>(64, x.cols() - first));
      const float step = own.cwiseAbs().maxCoeff() / 127;
      for (Eigen::Index c = 0; c < own.size(); ++c) {
        rounded(r, first + c) = step > 0 ? double{step} * std::nearbyint(own[c] * (1 / step)) : 0;
      }
    }
  }
  return rounded;
}

/// Checks a product with activations of 8 bits. Nothing follows `weights` in memory.
template <class Layout>
void check_int8_product(const Layout& w, const std::byte* weights, test::Random& random) {
  CAPTURE(w.columns);
  Matrix x(7, w.columns), y;
  for (float& v : x.reshaped()) v = random.unit() * 4 - 2;
  x.row(3).setZero();
  const Doubles stored = unpacked(w, weights), rounded = rounded_to_int8(x);
  const Doubles expected = rounded * stored.transpose();
  const Doubles terms = rounded.cwiseAbs() * stored.cwiseAbs().transpose();
  for (const ProductPath path : paths()) {
    CAPTURE(name_of(path));
    PackedProduct product(path, nullptr, Activations::int8);
    auto run = [&](const Matrix& rows, Matrix& to) { product.run(w, weights, rows, to); };
    run(x, y);
    CHECK(((y.cast<double>() - expected).array().abs() <= 2e-6 * terms.array() + 1e-30).all());
    CHECK(y.row(3).isZero(0));
    CHECK(rows_stand_alone(x, y, run));
  }
}

TEST_CASE("rows and columns beyond a block of them are those that are computed by themselves") {
  test::Random random(4);
  constexpr Eigen::Index rows = 259;
  const auto check = [&](const auto& w) {
    std::vector<std::byte> weights(w.bytes());
    REQUIRE(pack_weights(w, random_weights(random, std::size_t{w.rows} * w.columns).data(), weights.data()) ==
            no_weight);
    Matrix x(rows, w.columns), y, alone;
    for (float& v : x.reshaped()) v = random.unit() * 4 - 2;
    const Doubles expected = x.cast<double>() * unpacked(w, weights.data()).transpose();
    for (const ProductPath path : paths()) {
      CAPTURE(static_cast<int>(path));
      PackedProduct product(path);
      product.run(w, weights.data(), x, y);
      CHECK(worst_error(y, expected) < tolerance);
      for (Eigen::Index r = 0; r < rows; ++r) {
        product.run(w, weights.data(), x.row(r), alone);
        REQUIRE(alone == y.row(r));
      }
    }
  };
  check(PassThroughLayout{19, 1200, FloatType::bf16});
  check(PackedLayout{19, 1200, 4, 64});
  check(BlockLayout{19, 1280, BlockType::q4_k});
}

TEST_CASE("with activations of 8 bits a product is that of the rounded rows, and rows stand alone") {
  test::Random random(13);
  for (const std::uint32_t columns : {1U, 31U, 64U, 95U, 600U, 1024U, 1057U, 2100U}) {
    if (test::quick() && columns > 1057) continue;
    for (const std::uint32_t bits : {8U, 4U, 2U}) {
      for (const std::uint32_t group : {32U, 64U, 128U}) {
        CAPTURE(bits);
        CAPTURE(group);
        const PackedLayout w{11, columns, bits, group};
        std::vector<std::byte> memory(1 + w.bytes());
        std::byte* weights = memory.data() + 1;
        REQUIRE(pack_weights(w, random_weights(random, std::size_t{w.rows} * columns).data(), weights) == no_weight);
        check_int8_product(w, weights, random);
      }
    }
  }
  for (const BlockType type : test::block_types) {
    if (type == BlockType::fp8) continue;  // floats
    CAPTURE(static_cast<int>(type));
    const std::uint32_t each = block_weights(type);
    for (const std::uint32_t columns : {each, 3 * each, 1024 + each, 2048U}) {
      for (const std::uint32_t rows : {1U, 37U}) {
        const BlockLayout w{rows, columns, type};
        std::vector<std::byte> memory(1 + w.bytes());
        test::fill_blocks(w, memory.data() + 1, random);
        check_int8_product(w, memory.data() + 1, random);
      }
    }
  }
}

TEST_CASE("with activations of 8 bits, weights that are floats are multiplied with floats") {
  test::Random random(17);
  const BlockLayout fp8{5, 300, BlockType::fp8};
  std::vector<std::byte> memory(fp8.bytes());
  test::fill_blocks(fp8, memory.data(), random);
  Matrix x(3, 300), y, floats;
  for (float& v : x.reshaped()) v = random.unit() - 0.5F;
  PackedProduct(best_path(), nullptr, Activations::int8).run(fp8, memory.data(), x, y);
  PackedProduct(best_path()).run(fp8, memory.data(), x, floats);
  CHECK(y == floats);
}

bool has_second_half(BlockType type) {
  using enum BlockType;
  return type == q4_1 || type == q5_1 || type == q4_k || type == q5_k;
}

TEST_CASE("the largest codes and activations of 8 bits do not overflow") {
  for (const std::uint32_t bits : {8U, 4U, 2U}) {
    const PackedLayout w{2, 128, bits, 64};
    std::vector<std::byte> weights(w.bytes(), std::byte{0});
    for (std::uint32_t c = 0; c < 128; ++c) pack_code(weights.data(), c, bits, largest_code(bits));  // and a row of 0
    const float group[2] = {1, 0};
    for (std::uint32_t g = 0; g < 2; ++g) {
      std::memcpy(weights.data() + w.group_at(0, g), group, sizeof(group));
      std::memcpy(weights.data() + w.group_at(1, g), group, sizeof(group));
    }
    for (const float sign : {1.0F, -1.0F}) {
      for (const ProductPath path : paths()) {
        Matrix y;
        PackedProduct(path, nullptr, Activations::int8).run(w, weights.data(), Matrix::Constant(1, 128, 127 * sign), y);
        CHECK(y(0, 0) == sign * 128 * 127 * static_cast<float>(largest_code(bits)));
        CHECK(y(0, 1) == 0);
      }
    }
  }
}

TEST_CASE("the largest numbers of blocks do not overflow with activations of 8 bits") {
  for (const BlockType type : test::block_types) {
    if (type == BlockType::fp8) continue;
    CAPTURE(static_cast<int>(type));
    const BlockLayout w{3, 1024, type};
    std::vector<std::byte> weights(w.bytes());
    for (const std::uint32_t all : {0x00U, 0x7fU, 0x80U, 0xffU}) {  // every bit of every code and scale
      test::Random random(1);
      test::fill_blocks(w, weights.data(), random);
      std::vector<std::byte> scales = weights;
      for (std::byte& b : weights) b = static_cast<std::byte>(all);
      const std::uint32_t bytes = block_bytes(type);
      for (std::size_t at = 0; at < weights.size(); at += bytes) {  // halves stay numbers
        using enum BlockType;
        const std::size_t half = type == q6_k ? 208 : type == q3_k ? 108 : type == q2_k ? 80 : 0;
        const std::size_t count = type == mxfp4 ? 1 : type == q2_k || has_second_half(type) ? 4 : 2;
        std::copy_n(&scales[at + half], count, &weights[at + half]);
      }
      const Doubles stored = unpacked(w, weights.data());
      for (const float sign : {1.0F, -1.0F}) {
        const Matrix x = Matrix::Constant(3, 1024, 127 * sign);
        const Doubles expected = x.cast<double>() * stored.transpose();
        for (const ProductPath path : paths()) {
          CAPTURE(name_of(path));
          Matrix y;
          PackedProduct(path, nullptr, Activations::int8).run(w, weights.data(), x, y);
          const double most = 127 * stored.cwiseAbs().rowwise().sum().maxCoeff();
          CHECK((y.cast<double>() - expected).cwiseAbs().maxCoeff() <= 2e-5 * most + 1e-30);
        }
      }
    }
  }
}

TEST_CASE("an expert whose gate and up are of two kinds is computed with activations of 8 bits, whatever was before") {
  test::Random random(29);
  for (const auto& [gate, up] :
       {std::pair{DType::bf16, DType::q4_k}, {DType::q8_0, DType::f32}, {DType::q6_k, DType::fp8}}) {
    ExpertLayout mixed{256, 256, gate};
    mixed.up_type = up;
    mixed.down_type = DType::q8_0;
    std::vector<std::byte> expert(mixed.bytes());
    for (int part = 0; part < 3; ++part) {
      std::byte* to = expert.data() + mixed.part_at(part, Precision::full);
      const PlainLayout plain = mixed.plain(part);
      if (const auto* blocks = std::get_if<BlockLayout>(&plain)) {
        test::fill_blocks(*blocks, to, random);
      } else {
        REQUIRE(pack_weights(plain, random_weights(random, 256 * 256).data(), to) == no_weight);
      }
    }
    const ExpertLayout codes{256, 256, DType::q8_0};
    std::vector<std::byte> before(codes.bytes());
    for (int part = 0; part < 3; ++part) {
      test::fill_blocks(std::get<BlockLayout>(codes.plain(part)), &before[codes.part_at(part, Precision::full)],
                        random);
    }
    std::vector<ExpertLayout> layouts{codes, mixed};
    ExpertKernel floats(layouts, best_path()), rounded(layouts, best_path(), nullptr, Activations::int8);
    Matrix many(9, 256), x(2, 256), expected, y, other;
    for (float& v : many.reshaped()) v = random.unit() - 0.5F;
    x = many.topRows(2);
    const std::uint32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    const auto run = [&](ExpertKernel& kernel, const Matrix& rows, const std::vector<std::byte>& weights,
                         std::uint16_t layer, Matrix& to) {
      to = Matrix::Zero(rows.rows(), 256);
      ExpertKernel::Work work{weights.data(), Precision::full, {all, static_cast<std::uint32_t>(rows.rows())}};
      work.layer = layer;
      kernel.run({&work, 1}, 1, rows, to.data());
    };
    run(floats, x, expert, 1, expected);
    run(rounded, many, before, 0, other);
    run(rounded, x, expert, 1, y);
    CHECK((y - expected).norm() < 0.05F * expected.norm());
    CHECK((y - expected).norm() > 1e-4F * expected.norm());
  }
}

TEST_CASE("an activation that is no number shows in the result, also with 8 bits") {
  const PackedLayout w{1, 64, 4, 64};
  std::vector<std::byte> weights(w.bytes());
  const std::vector<float> ones(64, 1);
  REQUIRE(pack_weights(w, ones.data(), weights.data()) == no_weight);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const ProductPath path : paths()) {
      Matrix x = Matrix::Ones(1, 64), y;
      x(0, 7) = bad;
      PackedProduct(path, nullptr, Activations::int8).run(w, weights.data(), x, y);
      CHECK_FALSE(std::isfinite(y(0, 0)));
    }
  }
}

TEST_CASE("threads that share a product change no bit of it" * doctest::test_suite("threads")) {
  test::Random random(11);
  WorkerPool three(3);
  auto check = [&](const auto& w) {
    std::vector<std::byte> weights(w.bytes());
    const std::vector<float> all = random_weights(random, std::size_t{w.rows} * w.columns);
    REQUIRE(pack_weights(w, all.data(), weights.data()) == no_weight);
    for (const Eigen::Index rows : {1, 2, 5}) {
      Matrix x(rows, w.columns), alone, shared;
      for (float& v : x.reshaped()) v = random.unit() * 4 - 2;
      for (const ProductPath path : paths()) {
        PackedProduct(path).run(w, weights.data(), x, alone);
        PackedProduct(path, &three).run(w, weights.data(), x, shared);
        CHECK(alone == shared);
        // Two products at once, of the same weights.
        Matrix first, second;
        PackedProduct(path, &three).run(x, {{w, weights.data(), &first}, {w, weights.data(), &second}});
        CHECK(alone == first);
        CHECK(alone == second);
      }
    }
  };
  // Odd numbers of outputs that do not divide into parts, and weights too few to share.
  for (const auto& size : {std::pair{1203U, 500U}, {517U, 1057U}, {9U, 40'000U}, {30U, 30U}}) {
    const std::uint32_t rows = size.first, columns = size.second;
    CAPTURE(rows);
    for (const FloatType type : {FloatType::bf16, FloatType::f16, FloatType::f32}) {
      check(PassThroughLayout{rows, columns, type});
    }
    for (const std::uint32_t bits : {8U, 4U, 2U}) check(PackedLayout{rows, columns, bits, 64});
  }
}

TEST_CASE("the path that is chosen is one that runs here, and without rows there is nothing to compute") {
  CHECK(runs_here(ProductPath::portable));
  CHECK(runs_here(best_path()));
  for (const ProductPath path : paths()) {
    Matrix y(3, 3);
    PackedProduct(path).run(PassThroughLayout{2, 5, FloatType::f32}, nullptr, Matrix(0, 5), y);
    CHECK(y.rows() == 0);
    CHECK(y.cols() == 2);
  }
}

TEST_CASE("what an earlier product left behind stays out of the next one") {
  const std::vector<float> weights(64, 1);
  const auto* bytes = reinterpret_cast<const std::byte*>(weights.data());
  for (const ProductPath path : paths()) {
    PackedProduct product(path);
    Matrix y;
    product.run(PassThroughLayout{1, 64, FloatType::f32}, bytes, Matrix::Constant(5, 64, NAN), y);
    product.run(PassThroughLayout{1, 33, FloatType::f32}, bytes, Matrix::Ones(5, 33), y);
    CHECK(y == Matrix::Constant(5, 1, 33));
  }
}

/// y = down (silu(gate x) * up x) in double.
Doubles naive_expert(const ExpertLayout& l, Precision p, const std::byte* expert, const Doubles& x) {
  Doubles w[3];
  for (int part = 0; part < 3; ++part) {
    const std::byte* at = expert + l.part_at(part, p);
    w[part] = p == Precision::full ? unpacked(l.plain(part), at) : unpacked(l.packed(part, p), at);
  }
  const Doubles gate = x * w[0].transpose(), up = x * w[1].transpose();
  const Doubles activated = (gate.array() / (1 + (-gate.array()).exp()) * up.array()).matrix();
  return activated * w[2].transpose();
}

TEST_CASE("experts of every type, precision and odd size run as in double, and rows stand alone") {
  test::Random random(5);
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    for (const Precision p : {Precision::full, Precision::int8, Precision::int4, Precision::int2}) {
      const ExpertLayout l{67, 45, type};
      CAPTURE(l.name(p));
      std::vector<std::byte> expert(l.bytes(p));
      const std::vector<float> weights = random_weights(random, std::size_t{l.hidden} * l.width);
      for (int part = 0; part < 3; ++part) {
        std::byte* at = expert.data() + l.part_at(part, p);
        REQUIRE((p == Precision::full ? pack_weights(l.plain(part), weights.data(), at)
                                      : pack_weights(l.packed(part, p), weights.data(), at)) == no_weight);
      }
      Matrix x(most_rows, l.hidden), y;
      for (float& v : x.reshaped()) v = random.unit() * 2 - 1;
      const Doubles expected = naive_expert(l, p, expert.data(), x.cast<double>());
      for (const ProductPath path : paths()) {
        ExpertKernel kernel(l, path);
        auto run = [&](const Matrix& rows, Matrix& to) { kernel.run(expert.data(), p, rows, to); };
        run(x, y);
        CHECK(worst_error(y, expected) < tolerance);
        CHECK(rows_stand_alone(x, y, run));
      }
    }
  }
}

/// The model's own routing, with experts that are converted to doubles first, weight by weight.
class NaiveRunner final : public test::BareRunner {
 public:
  NaiveRunner(const ModelConfig& config, const ExpertStore& store, Precision p)
      : config_(config), store_(store), precision_(p) {}

  /// The least distance between the score of a chosen expert and the best that was not chosen.
  double least_margin = std::numeric_limits<double>::infinity();

  void plan(std::uint16_t layer, const Matrix& input, const GateScores& said, const Times& /*took*/) override {
    const Matrix& scores = said.weight;
    struct Use {
      Eigen::Index row;
      double weight;
    };
    std::map<std::uint16_t, std::vector<Use>> uses_of;
    for (Eigen::Index row = 0; row < scores.rows(); ++row) {
      std::vector<std::pair<double, std::uint16_t>> best;
      for (Eigen::Index e = 0; e < scores.cols(); ++e) best.emplace_back(scores(row, e), e);
      std::sort(best.rbegin(), best.rend());
      least_margin = std::min(least_margin, best[config_.top_k - 1].first - best[config_.top_k].first);
      double sum = 0;
      for (std::uint32_t i = 0; i < config_.top_k; ++i) sum += best[i].first;
      for (std::uint32_t i = 0; i < config_.top_k; ++i) {
        uses_of[best[i].second].push_back({row, config_.renormalise ? best[i].first / sum : best[i].first});
      }
    }
    out_ = Doubles::Zero(input.rows(), input.cols());
    for (const auto& [expert, rows] : uses_of) {
      Doubles x(static_cast<Eigen::Index>(rows.size()), input.cols());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        x.row(static_cast<Eigen::Index>(i)) = input.row(rows[i].row).cast<double>();
      }
      const HeldBytes bytes = store_.bytes({{layer, expert}, precision_});
      const Doubles y = naive_expert(store_.layout(), precision_, bytes.view.data, x);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        out_.row(rows[i].row) += rows[i].weight * y.row(static_cast<Eigen::Index>(i));
      }
    }
  }
  void run(std::uint16_t /*layer*/, const Matrix& /*input*/, Matrix& out) override { out = out_.cast<float>(); }

 private:
  const ModelConfig& config_;
  const ExpertStore& store_;
  Precision precision_;
  Doubles out_;
};

/// Logits of a prefill of 20 tokens, and of 4 that follow one by one.
Matrix logits_of(CpuModel& model, ExpertRunner& runner, const std::vector<std::uint32_t>& tokens) {
  constexpr std::uint32_t prefill = 20, all = 24;
  REQUIRE(tokens.size() >= all);
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(all));
  std::vector<TokenRow> rows;
  for (std::uint32_t i = 0; i < prefill; ++i) rows.push_back({0, tokens[i], i});
  Matrix logits(all, model.config().vocabulary);
  logits.topRows(prefill) = model.forward(Phase::prefill, rows, caches, runner, prefill);
  for (std::uint32_t i = prefill; i < all; ++i) {
    logits.row(i) = model.forward(Phase::decode, {{0, tokens[i], i}}, caches, runner, 1);
  }
  return logits;
}

void check_logits(const std::string& name) {
  CpuModel model(test::model_folder(name));
  const std::vector<std::uint32_t> tokens = tokenize(model, test::prompts()[2].substr(36));
  const std::pair<std::string, Precision> stacks[] = {{"resident", Precision::full},
                                                      {"resident-int8", Precision::int8},
                                                      {"resident-int4", Precision::int4},
                                                      {"resident-int2", Precision::int2}};
  for (const auto& [label, p] : stacks) {
    const std::string& stack = label;
    CAPTURE(stack);
    RunnerOptions o;
    o.stack = stack;
    model.add_precisions(precisions_for(o));
    NaiveRunner naive(model.config(), model.store(), p);
    const Doubles expected = logits_of(model, naive, tokens).cast<double>();
    const auto runner = make_runner(model, o);
    const double error = worst_error(logits_of(model, *runner, tokens), expected);
    // The text has no near tie between experts, which rounding, some 1e-7 of a score, could turn by itself.
    CHECK(naive.least_margin > 5e-6);
    CHECK(error < 1e-4);
    MESSAGE(name << " " << stack << ": error of logits " << error << ", least margin of a gate " << naive.least_margin);
  }
}

TEST_CASE("with activations of 8 bits a GGUF file's logits are nearly those of floats, on any number of threads" *
          doctest::test_suite("threads")) {
  test::Random random(23);
  for (const std::string name : {"mixtral-q8_0", "qwen2_moe-q8_0", "types-q4_k_m-96", "types-q4_1-96", "types-q2_k",
                                 "types-q3_k_m", "types-q5_k_m-96", "types-iq4_xs"}) {
    CAPTURE(name);
    CpuModel model(test::golden_file("gguf/" + name + ".gguf"));
    std::vector<std::uint32_t> tokens(24);
    for (std::uint32_t& t : tokens) t = static_cast<std::uint32_t>(random.below(model.config().vocabulary));
    const auto logits = [&] {
      RunnerOptions o;
      o.stack = "resident";
      return logits_of(model, *make_runner(model, o), tokens);
    };
    const Matrix floats = logits();
    model.set_activations(Activations::int8);
    const Matrix rounded = logits();
    const double error = (rounded - floats).norm() / floats.norm();
    CHECK(error > 1e-3);  // products round each column by up to 1 in 254
    CHECK(error < 0.1);   // now and then another expert is chosen
    model.set_threads(3);
    CHECK((logits() == rounded) == true);
    model.set_activations(Activations::floats);
    CHECK((logits() == floats) == true);
    MESSAGE(name << ": error of logits " << error);
  }
}

TEST_CASE("tiny-qwen-moe: logits at every precision are those of experts that become floats first") {
  check_logits("tiny-qwen-moe");
}
TEST_CASE("tiny-mixtral: logits at every precision are those of experts that become floats first" *
          doctest::test_suite("whole-models")) {
  check_logits("tiny-mixtral");
}

}  // namespace
