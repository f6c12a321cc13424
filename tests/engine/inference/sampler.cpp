// Which token comes next: against what transformers leaves of the same logits (tests/goldens/make_sampling.py).
#include "inference/sampler.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/fixtures/paths.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"

using namespace ferry::engine;

namespace {

Eigen::RowVectorXf row(const std::vector<float>& values) {
  return Eigen::Map<const Eigen::RowVectorXf>(values.data(), static_cast<Eigen::Index>(values.size()));
}

}  // namespace

TEST_CASE("what may be drawn, and how likely, is what transformers makes of the logits") {
  const Json cases = read_json(ferry::test::golden_file("sampling.json"));
  CHECK(cases.size() == 120);
  for (const Json& c : cases) {
    CAPTURE(c.dump());
    Sampling s;
    s.temperature = c["temperature"];
    s.top_k = c["top_k"];
    s.top_p = c["top_p"];
    s.min_p = c["min_p"];
    s.repeat_penalty = c["repeat_penalty"];
    const auto text = c["text"].get<std::vector<std::uint32_t>>();
    const Sampler sampler(s, text);
    std::vector<double> made(c["logits"].size(), 0.0);
    for (const Sampler::Candidate& one : sampler.candidates(row(c["logits"].get<std::vector<float>>()))) {
      made[one.token] = one.probability;
    }
    double worst = 0;
    for (std::size_t i = 0; i < made.size(); ++i) {
      worst = std::max(worst, std::abs(made[i] - c["probabilities"][i].get<double>()));
    }
    CHECK(worst < 1e-12);
  }
}

TEST_CASE("draws come as often as they are likely, and again with the same seed") {
  Sampling s;
  s.temperature = 1;
  s.seed = 7;
  const Eigen::RowVectorXf logits = row({std::log(1.0F), std::log(2.0F), std::log(5.0F)});
  Sampler sampler(s, {}), again(s, {});
  std::vector<int> count(3);
  for (int i = 0; i < 8000; ++i) {
    const std::uint32_t t = sampler(logits);
    CHECK(again(logits) == t);
    ++count[t];
  }
  CHECK(count[0] == doctest::Approx(1000).epsilon(0.1));
  CHECK(count[1] == doctest::Approx(2000).epsilon(0.1));
  CHECK(count[2] == doctest::Approx(5000).epsilon(0.05));
}

TEST_CASE("penalties: what was generated, once or as often as it was, and the prompt counts for repetition alone") {
  Sampling s;
  s.presence_penalty = 1.5;
  const std::vector<std::uint32_t> prompt{0};
  Sampler once(s, prompt);
  const Eigen::RowVectorXf logits = row({2, 1.8F, 0});
  CHECK(once(logits) == 0);
  CHECK(once(logits) == 1);  // 0.5 beside 1.8
  CHECK(once(logits) == 0);  // 0.5 beside 0.3
  CHECK(once(logits) == 0);  // and no less for having come twice
  s.presence_penalty = 0;
  s.frequency_penalty = 0.7;
  Sampler often(s, prompt);
  CHECK(often(logits) == 0);
  CHECK(often(logits) == 1);  // 1.3 beside 1.8
  CHECK(often(logits) == 0);  // 1.3 beside 1.1
  CHECK(often(logits) == 1);  // 0.6 beside 1.1
  s.frequency_penalty = 0;
  s.repeat_penalty = 2;
  Sampler repeated(s, prompt);
  CHECK(repeated(logits) == 1);  // 1 beside 1.8
  s.presence_penalty = 1.5;
  Sampler both(s, prompt);
  CHECK(both(row({4, 1.8F, 0})) == 0);  // 2 beside 1.8
}

TEST_CASE("the likeliest tokens and their logarithms, and ties to the lower token") {
  const Eigen::RowVectorXf logits = row({1, 3, 3, 0});
  const double sum = std::log(std::exp(1.0) + 2 * std::exp(3.0) + 1);
  const auto best = likeliest(logits, 3);
  REQUIRE(best.size() == 3);
  CHECK(best[0].token == 1);
  CHECK(best[1].token == 2);
  CHECK(best[2].token == 0);
  CHECK(best[2].log_probability == doctest::Approx(1 - sum));
  CHECK(log_probability(logits, 3) == doctest::Approx(-sum));
  CHECK(likeliest(logits, 9).size() == 4);
}

TEST_CASE("values that cannot be are refused by the option") {
  const auto refused = [](auto set) {
    Sampling s;
    set(s);
    try {
      s.check();
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused([](Sampling& s) { s.temperature = -1; }) == "--temperature: expected a number from 0 to 100, got -1");
  CHECK(refused([](Sampling& s) { s.temperature = std::nan(""); }).starts_with("--temperature"));
  CHECK(refused([](Sampling& s) { s.top_p = 0; }).starts_with("--top-p"));
  CHECK(refused([](Sampling& s) { s.min_p = 1.1; }).starts_with("--min-p"));
  CHECK(refused([](Sampling& s) { s.repeat_penalty = 0; }).starts_with("--repeat-penalty"));
  CHECK(refused([](Sampling& s) { s.repeat_penalty = 5e-324; }).starts_with("--repeat-penalty"));
  CHECK(refused([](Sampling&) {}).empty());
}

TEST_CASE("a temperature next to nothing draws what none does") {
  const Eigen::RowVectorXf logits = row({1, 30, -3e38F});
  const std::uint32_t seen[] = {2};
  for (const double temperature : {1e-310, 1e-300, 1e-9, 1e-6, 1e-5}) {
    Sampling s;
    s.temperature = temperature;
    s.repeat_penalty = 1e-6;
    s.check();
    Sampler sampler(s, seen);
    for (int i = 0; i < 5; ++i) CHECK(sampler(logits) == 1);
  }
}
