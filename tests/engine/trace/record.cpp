// Recording a text's routing.
#include "trace/record.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/command.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/shell.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "trace/trace_file.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

TEST_CASE("windows that are all prompt have partial hidden states of zeros, wherever they stand") {
  const TemporaryFolder folder;
  const std::string text = (folder.path() / "text").string(), out = (folder.path() / "out.safetensors").string();
  for (const unsigned bytes : {3U, 32U, 36U, 62U}) {  // of windows of 31 bytes and a begin token; 8 tokens are prompt
    CAPTURE(bytes);
    write_file(text, std::string(bytes, 'a'));
    REQUIRE(
        ferry_command("trace record --model tiny-mixtral --window 32 --prompt-tokens 8 --stack importance+pre --text " +
                      text + " --out " + "'" + out + "'")
            .status == 0);
    const TraceFile file{std::filesystem::path(out)};
    const Trace& t = file.trace;
    CHECK(t.tokens == bytes + (bytes + 30) / 31);
    CHECK(t.sequences() == (bytes + 30) / 31);
    std::uint32_t begin = 0, rows = 0;
    for (std::uint32_t token = 0; token < t.tokens; ++token) {
      for (std::uint32_t s = 0; s < t.sequences(); ++s) {
        if (t.sequence_start[s] == token) begin = token;
      }
      if (t.partial.empty()) continue;
      const float* row = t.partial_of(token, 0);
      const bool zeros = std::all_of(row, row + t.model.experts, [](float x) { return x == 0; });
      CHECK(zeros == (token - begin < 8));
      ++rows;
    }
    CHECK((rows > 0) == (bytes > 7));
  }
}

TEST_CASE("texts as tokens are recorded as the texts are, each by itself, and of any model") {
  const TemporaryFolder folder;
  const std::string at = "'" + folder.path().string();
  write_file(folder.path() / "text", "Many ferries");
  std::string line;
  for (const char c : std::string("Many ferries")) line += std::to_string(static_cast<int>(c)) + " ";
  write_file(folder.path() / "ids", line + "\n\n" + line + "\n");
  const std::string record = "trace record --model tiny-mixtral --window 8 --prompt-tokens 3 --ahead 1 ";
  REQUIRE(ferry_command(record + "--text " + at + "/text' --out " + at + "/a'").status == 0);
  REQUIRE(ferry_command(record + "--token-ids " + at + "/ids' --out " + at + "/b'").status == 0);
  const TraceFile once(folder.path() / "a"), twice(folder.path() / "b");
  CHECK(once.trace.sequences() == 2);
  REQUIRE(twice.trace.sequences() == 4);
  std::vector<float> scores = once.scores;
  scores.insert(scores.end(), once.scores.begin(), once.scores.end());
  CHECK(twice.scores == scores);

  write_file(folder.path() / "other", "0 1 2 3 4 5 6 7 8 9");  // of a model that begins its texts with a token, too
  const std::string zoo = "'" + (golden_file("zoo") / "deepseek_v3").string() + "'";
  REQUIRE(ferry_command("trace record --window 6 --prompt-tokens 2 --model " + zoo + " --token-ids " + at +
                        "/other' --out " + at + "/c'")
              .status == 0);
  CHECK(TraceFile(folder.path() / "c").trace.tokens == 12);
  write_file(folder.path() / "list", " [1, 2, 3],\r\n4 5\n");
  CHECK(ferry_command(record + "--token-ids " + at + "/list' --out " + at + "/e'").status == 0);
  const char* const broken[] = {"[1,2", "1]2[3", "1 [2]", "[[1],[2]]", "1, 2]"};
  for (std::size_t i = 0; i < std::size(broken); ++i) {
    write_file(folder.path() / ("broken" + std::to_string(i)), "7 8\n" + std::string(broken[i]) + "\n");
  }
  const std::string brackets = "line 2: expected one prompt on each line, as numbers, with [ ] around all";
  for (const auto& [more, part] : {std::pair{std::string(), std::string("expected --text FILE, or --token-ids FILE")},
                                   {" --text x --token-ids y", "--text excludes --token-ids"},
                                   {" --token-ids " + at + "/text'", "line 1 has \"Many\""},
                                   {" --token-ids " + at + "/broken0'", brackets},
                                   {" --token-ids " + at + "/broken1'", brackets},
                                   {" --token-ids " + at + "/broken2'", brackets},
                                   {" --token-ids " + at + "/broken3'", brackets},
                                   {" --token-ids " + at + "/broken4'", brackets}}) {
    const Shell r = ferry_command(record + "--out " + at + "/d'" + more);
    CHECK(r.status == 2);
    CHECK(r.out.find(part) != std::string::npos);
  }
}

TEST_CASE("where gates read something else than experts, what is recorded as predicted is made of what gates read") {
  CpuModel model(golden_file("zoo") / "gemma4");
  RunnerOptions o;
  o.stack = "resident";
  o.max_rows = 1;
  o.budget_bytes = model_shape(model.config(), model.store(), 1).all_bytes();
  const auto runner = make_runner(model, o);
  Recorder recorder(*runner, model, 2);
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(16));
  const std::string tokens = "The ferry ";
  const std::uint32_t layers = model.config().moe_layer_count();
  std::vector<Matrix> inputs;  // [tokens * layers]
  for (std::uint32_t t = 0; t < tokens.size(); ++t) {
    const std::vector<TokenRow> rows = {{0, static_cast<std::uint32_t>(tokens[t]), t}};
    static_cast<void>(model.forward(Phase::decode, rows, caches, recorder, 1,
                                    [&](std::uint32_t, const Matrix& input, const auto&) { inputs.push_back(input); }));
  }
  recorder.end_sequence(0);
  const auto file = recorder.take("t");
  REQUIRE(file->trace.tokens == tokens.size());
  float worst = 0;
  for (std::uint32_t at = 0; at < inputs.size(); ++at) {
    for (std::uint32_t d = 1, l = at % layers; d <= 2 && l + d < layers; ++d) {
      Matrix scores = inputs[at] * model.gates().of(l + d).transpose();
      scores = (scores.array() - scores.maxCoeff()).exp();
      scores /= scores.sum();
      const float* recorded =
          file->trace.predicted_of(at / layers, static_cast<std::uint16_t>(l), static_cast<std::uint16_t>(d));
      for (Eigen::Index e = 0; e < scores.cols(); ++e) worst = std::max(worst, std::abs(recorded[e] - scores(0, e)));
    }
  }
  CHECK(worst < 1e-5F);
}

TEST_CASE("a short window is a fourth prompt, unless something else is said") {
  const TemporaryFolder folder;
  const std::string out = (folder.path() / "out.safetensors").string();
  write_file(folder.path() / "text", std::string(31, 'a'));
  const std::string command = "trace record --model tiny-mixtral --window 32 --text '" +
                              (folder.path() / "text").string() + "' --out '" + out + "'";
  for (const auto& [more, prompt] : {std::pair<std::string, std::ptrdiff_t>{"", 8}, {" --prompt-tokens 32", 32}}) {
    REQUIRE(ferry_command(command + more).status == 0);
    const TraceFile file{std::filesystem::path(out)};
    REQUIRE(file.trace.tokens == 32);
    CHECK(std::count(file.trace.phase.begin(), file.trace.phase.end(), 0) == prompt);
  }
}

TEST_CASE("an output that cannot be is refused before the work") {
  const TemporaryFolder folder;
  const std::string text = (folder.path() / "text").string();
  write_file(text, "some text");
  const std::string out = " --out " + (folder.path() / "nowhere" / "x").string();
  for (const std::string& command :
       {std::string("trace record --model tiny-mixtral --window 2 --prompt-tokens 3 --text ") + text,
        std::string("trace import /no/in --shape /no/shape"), std::string("trace generate --shape /no/shape"),
        std::string("sweep --traces /no/trace --machines rtx3090-pcie3 --stacks lru --budgets 50%")}) {
    CAPTURE(command);
    const Shell r = ferry_command(command + out);
    CHECK(r.status == 2);
    CHECK(r.out.find("nowhere/x: cannot be written") != std::string::npos);
  }
}

TEST_CASE("every token's weights count as they are stored") {
  for (const bool codes : {false, true}) {
    const CpuModel m{ModelFiles((golden_file("gguf") / (codes ? "mixtral-q8_0.gguf" : "mixtral-bf16.gguf")).string())};
    const double bits = codes ? 8.5 : 16;
    CHECK(m.dense_bits() > bits);
    CHECK(m.dense_bits() < bits + 1);  // norms are floats
    const std::vector<LayerWork> work = model_work(m.config(), m.dense_bits());
    REQUIRE(work.size() == 1);
    const std::uint64_t weights = work[0].dense_operations / 2;
    CHECK(std::abs(static_cast<double>(work[0].dense_bytes) - static_cast<double>(weights) * m.dense_bits() / 8) <= 1);
  }
}
