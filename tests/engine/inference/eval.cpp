// What stacks cost in quality: bits a byte, divergence and agreement, and the command that reports them.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/fixed_costs.hpp"
#include "engine/fixtures/loaded_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "engine/fixtures/shell.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "inference/eval.hpp"
#include "inference/generate.hpp"
#include "support/errors.hpp"
#include "trace/record.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

/// A runner with a quarter of the experts' memory, on the virtual clock.
std::unique_ptr<ExpertRunner> runner(const std::string& stack, std::uint32_t max_rows) {
  RunnerOptions o;
  o.stack = stack;
  o.max_rows = max_rows;
  model("tiny-mixtral").add_precisions(precisions_for(o));
  o.budget_bytes = model_shape(model("tiny-mixtral").config(), model("tiny-mixtral").store(), max_rows).all_bytes() / 4;
  o.virtual_costs = fixed_costs(60'000, 20'000, 50'000, 1'000'000'000);
  return make_runner(model("tiny-mixtral"), o);
}

Evaluated evaluate_one(const std::string& stack, const std::string& text, const EvalOptions& o) {
  std::vector<std::unique_ptr<ExpertRunner>> stacks;
  stacks.push_back(runner(stack, o.max_rows()));
  return evaluate(model("tiny-mixtral"), *runner("resident", o.max_rows()), stacks,
                  tokenized(model("tiny-mixtral"), text), o)[0];
}

const std::string ferry_eval = test::ferry_program() + " eval --model tiny-mixtral ";

TEST_CASE("a byte's score is what its logits say") {
  // The resident model's probabilities are 1/4 and 3/4. The stack's are 1/2 each, and its tie goes to the first token.
  Eigen::RowVectorXf resident(2), stack(2);
  resident << 1, 1 + std::log(3.0F);
  stack << 7, 7;
  Quality q;
  q.score(resident, stack, 0);
  CHECK(q.bits_per_byte_resident() == doctest::Approx(2));
  CHECK(q.bits_per_byte() == doctest::Approx(1));
  CHECK(q.change_percent() == doctest::Approx(-50));
  CHECK(q.kl_divergence() == doctest::Approx(0.25 * std::log2(0.5) + 0.75 * std::log2(1.5)));
  CHECK(q.top1_agreement() == 0);
  q.score(resident, resident, 1);
  CHECK(q.bits_per_byte_resident() == doctest::Approx((2 + std::log2(4.0 / 3)) / 2));
  CHECK(q.bits_per_byte() == doctest::Approx((1 + std::log2(4.0 / 3)) / 2));
  CHECK(q.top1_agreement() == 0.5);
}

TEST_CASE("bits a byte are those of windows that each begin anew, each byte scored once") {
  const std::string text = prompts()[2] + prompts()[1];
  const auto resident = runner("resident", 64);
  double bits = 0;
  for (std::size_t at = 0; at < text.size(); at += 50) {
    const std::vector<std::uint32_t> tokens = tokenize(model("tiny-mixtral"), text.substr(at, 50));
    std::vector<KvCache> caches;
    caches.push_back(model("tiny-mixtral").make_cache(static_cast<std::uint32_t>(tokens.size())));
    std::vector<TokenRow> rows;
    for (std::uint32_t i = 0; i < tokens.size(); ++i) rows.push_back({0, tokens[i], i});
    const auto count = static_cast<std::uint32_t>(rows.size());
    const Matrix logits = model("tiny-mixtral").forward(Phase::prefill, rows, caches, *resident, count);
    resident->end_sequence(0);
    for (Eigen::Index i = 0; i + 1 < logits.rows(); ++i) {
      double sum = 0;
      for (const float l : logits.row(i)) sum += std::exp(static_cast<double>(l));
      bits += std::log2(sum) - logits(i, tokens[static_cast<std::size_t>(i) + 1]) / std::log(2.0);
    }
  }
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    for (const std::uint32_t batch : {1U, 3U}) {
      const Quality q = evaluate_one("resident", text, {50, batch, phase, {}}).quality;
      CHECK(q.bytes == text.size());
      CHECK(q.bits_per_byte() == doctest::Approx(bits / static_cast<double>(text.size())).epsilon(1e-5));
    }
  }
}

TEST_CASE("a lossless stack costs nothing") {
  for (const std::string stack : {"resident", "lru"}) {
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      const Evaluated e = evaluate_one(stack, prompts()[0], {40, 2, phase, {}});
      CHECK(e.quality.bits == e.quality.resident_bits);
      CHECK(e.quality.change_percent() == 0);
      CHECK(e.quality.kl_bits == 0);
      CHECK(e.quality.top1_agreement() == 1);
      const Outcomes& o = e.phase[static_cast<unsigned>(phase)];
      CHECK(o.requests > 0);
      CHECK(o.hits + o.late_hits + o.misses == o.requests);
      CHECK((o.misses == 0) == (stack == "resident"));
      CHECK(e.bytes_by_precision[static_cast<unsigned>(Precision::full)] == e.preload_bytes + o.bytes);
      CHECK(e.computed[static_cast<unsigned>(Precision::full)] == (phase == Phase::decode ? o.requests : 0));
    }
  }
}

TEST_CASE("each window is a sequence of its own") {
  const std::string text = prompts()[2];
  const auto inside = runner("lru", 2);
  std::vector<std::unique_ptr<ExpertRunner>> stacks;
  stacks.push_back(std::make_unique<Recorder>(*inside, model("tiny-mixtral"), std::uint16_t{0}));
  evaluate(model("tiny-mixtral"), *runner("resident", 2), stacks, tokenized(model("tiny-mixtral"), text),
           {20, 2, Phase::decode, {}});
  const auto made = static_cast<Recorder&>(*stacks[0]).take("");
  CHECK(made->trace.sequences() == (text.size() + 19) / 20);
  CHECK(made->trace.tokens == text.size());
}

TEST_CASE("fewer bits cost more, and results repeat") {
  const std::string text = prompts()[0] + prompts()[2];
  const EvalOptions o{64, 1, Phase::decode, {}};
  const Evaluated int4 = evaluate_one("resident-int4", text, o), int2 = evaluate_one("resident-int2", text, o);
  CHECK(int2.quality.bits_per_byte() > int4.quality.bits_per_byte());
  CHECK(int2.quality.kl_divergence() > 2 * int4.quality.kl_divergence());
  CHECK(int2.quality.top1_agreement() < int4.quality.top1_agreement());
  CHECK(int4.computed[static_cast<unsigned>(Precision::int4)] == int4.phase[1].requests);

  const Evaluated once = evaluate_one("hobbit", prompts()[2], o), again = evaluate_one("hobbit", prompts()[2], o);
  CHECK(once.quality.kl_bits > 0);
  CHECK(once.quality.kl_bits == again.quality.kl_bits);
  CHECK(once.phase[1].skipped > 0);
  CHECK(once.phase[1].bytes == again.phase[1].bytes);
}

TEST_CASE("eval prints a table and writes JSON, and the whole is the sum of the texts") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "a", prompts()[0]);
  write_file(folder.path() / "b", prompts()[1]);
  const Shell r = shell(ferry_eval + "--text " + at + "/a " + at +
                        "/b --stacks lru,hobbit --t1 0.5 --bytes 60 --json " + at + "/r.json");
  CAPTURE(r.out);
  REQUIRE(r.status == 0);
  CHECK(r.out.find("all texts: 120 bytes, resident ") != std::string::npos);
  const Json runs = read_json(folder.path() / "r.json");
  REQUIRE(runs.size() == 2);
  for (const Json& j : runs) {
    for (const char* key : {"ferry", "model", "machine", "device", "budget_bytes", "bits_per_byte",
                            "bits_per_byte_resident", "kl_divergence", "top1_agreement", "bytes_by_precision"}) {
      CHECK_MESSAGE(j.contains(key), key);
    }
    CHECK(j["bytes_scored"] == 120);
    CHECK(j["interrupted"] == false);
    CHECK(j["texts"][0]["name"] == "a");
    CHECK(j["bits_per_byte"].get<double>() ==
          doctest::Approx(
              (j["texts"][0]["bits_per_byte"].get<double>() + j["texts"][1]["bits_per_byte"].get<double>()) / 2));
    CHECK(j["decode"]["requests"] == 120 * 8 * 2);  // layers, experts of a token
    CHECK(j["prefill"]["requests"] == 0);
  }
  CHECK(runs[0]["change_percent"] == 0);
  CHECK(runs[1]["parameters"]["t1"] == 0.5);
  CHECK(runs[1]["kl_divergence"].get<double>() > 0);
}

TEST_CASE("what eval cannot use is refused in one line") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "text", prompts()[0]);
  write_file(folder.path() / "empty", "");
  const std::map<std::string, std::string> cases = {
      {"--text " + at + "/text --window 1025", "--window 1025: expected 1 to 1024, the model's context"},
      {"--text " + at + "/empty", "empty: the file is empty"},
      {"--text " + at + "/none", "none: cannot be read"},
      {"--text " + at + "/text --json " + at + "/text", "is read by this run"},
      {"--text " + at + "/text --stacks lru,hobit", "hobbit"},
      {"--text " + at + "/text --stack lru --alpha 0.3", "--alpha"},
      {"--text " + at + "/text --budget 1", "budget"}};
  for (const auto& [arguments, part] : cases) {
    const Shell r = shell(ferry_eval + arguments);
    CAPTURE(r.out);
    CHECK(r.status == 2);
    CHECK(r.out.rfind("ferry: ", 0) == 0);
    CHECK(r.out.find('\n') == r.out.size() - 1);
    CHECK(r.out.find(part) != std::string::npos);
  }
  CHECK_THROWS_AS(evaluate_one("resident", "", {}), InputError);
}

TEST_CASE("eval ends after the current window when it is interrupted") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  write_file(folder.path() / "text", std::string(1'000'000, 'a'));
  const Shell r = shell("timeout --foreground --preserve-status -s INT 1 " + ferry_eval +
                        "--window 32 --stack lru --text " + at + "/text --json " + at + "/r.json");
  CAPTURE(r.out);
  CHECK(r.status == 130);
  CHECK(r.out.find("interrupted") != std::string::npos);
  const Json j = read_json(folder.path() / "r.json");
  CHECK(j["interrupted"] == true);
  CHECK(j["bytes_scored"].get<int>() % 32 == 0);
}

}  // namespace
