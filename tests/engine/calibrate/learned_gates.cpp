// Gates that are trained: against regressions whose answer is known, and on a model.
#include "calibrate/learned_gates.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/loaded_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "inference/gate_file.hpp"
#include "inference/generate.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

Matrix random_values(test::Random& random, Eigen::Index rows, Eigen::Index columns) {
  Matrix m(rows, columns);
  for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = static_cast<float>(random.between(0, 2000)) / 1000 - 1;
  return m;
}

/// The softmax of each row, in double.
Matrix softmax_of(const Matrix& logits) {
  Matrix out(logits.rows(), logits.cols());
  for (Eigen::Index i = 0; i < logits.rows(); ++i) {
    double sum = 0;
    for (Eigen::Index e = 0; e < logits.cols(); ++e) sum += std::exp(static_cast<double>(logits(i, e)));
    for (Eigen::Index e = 0; e < logits.cols(); ++e) {
      out(i, e) = static_cast<float>(std::exp(static_cast<double>(logits(i, e))) / sum);
    }
  }
  return out;
}

TEST_CASE("a gate that made the targets is found, from another and whatever the order of samples") {
  test::Random random(3);
  const Matrix x = random_values(random, 2000, 6), truth = 2 * random_values(random, 5, 6);
  const Matrix targets = softmax_of(x * truth.transpose());
  for (const std::uint64_t seed : {1U, 2U}) {
    GateTraining training;
    training.epochs = 60;
    training.rate = 3e-2F;
    training.seed = seed;
    const Matrix begin = random_values(random, 5, 6);
    const Matrix found = train_gate(x, targets, begin, training);
    const GateQuality before = quality_of(begin, x, targets, 2), after = quality_of(found, x, targets, 2);
    CHECK(before.divergence > 0.1);
    CHECK(after.divergence < 1e-3);
    CHECK(after.recall > 0.97);
    CHECK(train_gate(x, targets, begin, training) == found);
    // A softmax ignores what all experts have in common. Apart from that, the gate is the one that made the targets.
    const Matrix off = (found - truth).rowwise() - (found - truth).colwise().mean();
    CHECK(off.cwiseAbs().maxCoeff() < 0.1);
  }
}

TEST_CASE("quality is what a count by hand says") {
  // One feature of 1: the logits are the gate. Expert 0 is predicted best, then 2, 1, 3.
  Matrix gate(4, 1), x = Matrix::Ones(2, 1), targets(2, 4);
  gate << std::log(4.0F), std::log(1.0F), std::log(2.0F), std::log(1.0F);
  targets << 0.5F, 0.25F, 0.25F, 0, 0, 0, 0, 1;
  const GateQuality one = quality_of(gate, x, targets, 1), two = quality_of(gate, x, targets, 2);
  // Row 0: 0.5 log2(0.5/0.5) + 0.25 log2(0.25/0.125) + 0.25 log2(0.25/0.25) = 0.25; row 1: log2(1/0.125) = 3.
  CHECK(one.divergence == doctest::Approx((0.25 + 3) / 2));
  CHECK(one.recall == doctest::Approx(0.5));        // 0 of {0}; 3 is not 0
  CHECK(one.recall_twice == doctest::Approx(0.5));  // among {0, 2}
  CHECK(two.recall ==
        doctest::Approx((1 + 1) / 4.0));  // row 0 wants 0 and 1 and gets 0; row 1 wants 3 and 0 and gets 0
  CHECK(two.recall_twice == doctest::Approx(1.0));
}

struct Scratch {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / ("ferry-gates-" + std::to_string(::getpid()));
  Scratch() { std::filesystem::create_directories(folder); }
  ~Scratch() { std::filesystem::remove_all(folder); }
};

TEST_CASE(
    "on a bundled model trained gates predict better than its own over text that was held out, and come back from a "
    "file") {
  CpuModel model(test::model_folder("tiny-mixtral"));
  const ModelConfig& c = model.config();
  std::string text;
  while (text.size() < 4000) {
    for (const std::string& p : test::prompts()) text += p + '\n';
  }
  GateSamples samples;
  std::uint64_t last = 0;
  REQUIRE(add_samples(model, tokenized(model, text).tokens, 256, samples, [&](std::uint64_t done) {
    CHECK(done > last);
    last = done;
    return true;
  }));
  CHECK(last == text.size());
  const std::size_t windows = (text.size() + 254) / 255;  // each begins with a token of its own
  CHECK(std::cmp_equal(samples.tokens(), text.size() + windows));
  REQUIRE(samples.inputs.size() == c.layers);
  CHECK(samples.inputs[0].cols() == c.hidden);
  CHECK(samples.scores[0].cols() == c.experts);
  CHECK(samples.scores[c.layers - 1U].rows() == samples.tokens());
  std::vector<Matrix> own;
  for (std::uint32_t l = 0; l < c.layers; ++l) own.push_back(model.gates().of(l));
  GateTraining training;
  training.epochs = 2;
  const auto learned =
      train_gates(samples, own, 2, c.top_k, training, [](std::uint64_t, std::uint64_t) { return true; });
  REQUIRE(learned);
  REQUIRE(learned->gates.size() == 2U * (c.layers - 1U) - 1U);
  for (const LearnedGates::Gate& g : learned->gates) {
    CHECK(g.distance <= g.layer);
    CHECK(g.after.divergence < g.before.divergence);
  }
  CHECK_FALSE(train_gates(samples, own, 2, c.top_k, training, [](std::uint64_t, std::uint64_t) { return false; }));

  const Scratch scratch;
  const std::filesystem::path path = scratch.folder / "gates.safetensors";
  {
    OutputFile out(path.string());
    learned->write(out, "tiny-mixtral");
  }
  read_gates(path, c, model.gates());
  const Matrix input = samples.inputs[1].topRows(1);
  const View<const Scores> predicted = model.gates().scores(2, 2, input);
  for (std::uint32_t d = 1; d <= 2; ++d) {
    const auto found = std::find_if(learned->gates.begin(), learned->gates.end(),
                                    [&](const LearnedGates::Gate& g) { return g.layer == 1 + d && g.distance == d; });
    const Matrix right = softmax_of(input * found->matrix.transpose());
    for (std::uint32_t e = 0; e < c.experts; ++e) {
      CHECK(predicted[d - 1].select[e] == doctest::Approx(right(0, e)).epsilon(1e-4));
    }
  }
  CHECK_THROWS_WITH_AS(read_gates(test::model_folder("tiny-mixtral") / "model.safetensors", c, model.gates()),
                       doctest::Contains("expected a file of `ferry calibrate gates`"), InputError);
  CHECK_THROWS_WITH_AS(read_gates(path, test::model("tiny-qwen-moe").config(), test::model("tiny-qwen-moe").gates()),
                       doctest::Contains("tensor \"layers.1.from.0\": expected F32 [32, "), InputError);
}

TEST_CASE("too little text is refused, and so is a window beyond the context") {
  CpuModel model(test::model_folder("tiny-mixtral"));
  GateSamples samples;
  const auto on = [](std::uint64_t) { return true; };
  CHECK_THROWS_WITH_AS(add_samples(model, tokenized(model, "text").tokens, 4096, samples, on),
                       doctest::Contains("--window 4096: expected 2 to "), InputError);
  REQUIRE(add_samples(model, tokenized(model, "text").tokens, 2, samples, on));
  CHECK(samples.tokens() == 8);  // four windows of a token and the one that each begins with
  std::vector<Matrix> own;
  for (std::uint32_t l = 0; l < model.config().layers; ++l) own.push_back(model.gates().of(l));
  CHECK_THROWS_WITH_AS(train_gates(samples, own, 1, 2, {}, [](std::uint64_t, std::uint64_t) { return true; }),
                       doctest::Contains("tokens are too few to train gates on, expected more than 2304"), InputError);
}

}  // namespace
