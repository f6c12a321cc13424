// The engine against logits, gate scores and continuations that an independent implementation computed.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "checkpoint/safetensors.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "inference/generate.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

constexpr float logit_tolerance = 2e-3F, score_tolerance = 1e-4F;

Matrix matrix(const Tensor& t, Eigen::Index columns) {
  const std::vector<float> f = t.to_floats();
  return Eigen::Map<const Matrix>(f.data(), static_cast<Eigen::Index>(f.size()) / columns, columns);
}

std::vector<std::uint32_t> integers(const Tensor& t) {
  std::vector<std::uint32_t> out(t.elements());
  std::memcpy(out.data(), t.data, t.bytes);
  return out;
}

std::vector<Eigen::Index> best(const Eigen::Ref<const Eigen::RowVectorXf>& scores, std::uint32_t k) {
  std::vector<Eigen::Index> order(static_cast<std::size_t>(scores.size()));
  std::iota(order.begin(), order.end(), Eigen::Index{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
  order.resize(k);
  return order;
}

std::unique_ptr<ExpertRunner> resident(CpuModel& model) {
  RunnerOptions o;
  o.stack = "resident";
  o.max_rows = 256;
  o.poison = true;
  return make_runner(model, o);
}

void check_model(const std::string& name) {
  CpuModel model(test::model_folder(name));
  const Safetensors golden(test::golden_file(name + ".safetensors"));
  const ModelConfig& c = model.config();
  for (const std::string prompt : {"math", "code", "play", "short"}) {
    CAPTURE(prompt);
    const auto tokens = integers(golden.at(prompt + ".token_ids"));
    const Matrix logits = matrix(golden.at(prompt + ".logits"), c.vocabulary);
    const Matrix scores = matrix(golden.at(prompt + ".gate_scores"), c.experts);  // [n * layers, experts]
    const auto greedy = integers(golden.at(prompt + ".greedy"));
    const auto n = static_cast<std::uint32_t>(tokens.size());
    REQUIRE(tokenize(model, golden.metadata().at(prompt + ".prompt")) == tokens);

    for (const std::uint32_t chunk : {256U, 19U}) {  // in one piece, and in pieces that divide nothing
      CAPTURE(chunk);
      const auto runner = resident(model);
      std::vector<KvCache> caches;
      caches.emplace_back(c, CacheRoom(c, n));
      float worst = 0, worst_score = 0;
      std::uint64_t compared = 0, differing = 0;
      for (std::uint32_t first = 0; first < n; first += chunk) {
        const std::uint32_t rows = std::min(chunk, n - first);
        std::vector<TokenRow> batch;
        for (std::uint32_t i = 0; i < rows; ++i) batch.push_back({0, tokens[first + i], first + i});
        auto check_scores = [&](std::uint32_t layer, const Matrix& /*input*/, const GateScores& said) {
          const Matrix& ours = said.weight;
          for (std::uint32_t i = 0; i < rows; ++i) {
            const auto theirs = scores.row(static_cast<Eigen::Index>((first + i) * c.layers + layer));
            const auto right = best(theirs, c.top_k), found = best(ours.row(i), c.top_k);
            ++compared;
            REQUIRE(ours.row(i).allFinite());
            worst_score = std::max(worst_score, (ours.row(i) - theirs).cwiseAbs().maxCoeff());
            for (const Eigen::Index e : found) {
              if (std::find(right.begin(), right.end(), e) != right.end()) continue;
              if (theirs[right.back()] - theirs[e] > score_tolerance) ++differing;
            }
          }
        };
        const Matrix ours = model.forward(Phase::prefill, batch, caches, *runner, rows, check_scores);
        REQUIRE(ours.allFinite());
        worst = std::max(worst, (ours - logits.middleRows(first, rows)).cwiseAbs().maxCoeff());
      }
      CHECK(worst <= logit_tolerance);
      CHECK(worst_score <= score_tolerance);
      CHECK(compared == std::uint64_t{n} * c.layers);
      CHECK(differing == 0);
      MESSAGE(name << " " << prompt << " chunk " << chunk << ": largest error of a logit " << worst
                   << ", of a gate score " << worst_score);
    }

    const auto runner = resident(model);
    GenerateOptions g;
    g.prompts = {golden.metadata().at(prompt + ".prompt")};
    g.max_new_tokens = 64;
    std::vector<std::uint32_t> made;
    g.on_token = [&](std::size_t, std::uint32_t token, const std::string&) { made.push_back(token); };
    generate(model, *runner, g);
    // The golden's top-2 margin is everywhere above what both tolerances can move: compare to the end.
    REQUIRE(std::stof(golden.metadata().at(prompt + ".min_top2_margin")) > 2 * logit_tolerance);
    CHECK(made == greedy);
  }
}

TEST_CASE("tiny-qwen-moe matches the independent implementation") {
  check_model("tiny-qwen-moe");
}
TEST_CASE("tiny-mixtral matches the independent implementation") {
  check_model("tiny-mixtral");
}

}  // namespace
