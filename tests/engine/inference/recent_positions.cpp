// Layers that attend to a window or chunk keep recent positions alone: what models compute is the same to the last bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "inference/batch_decoder.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

std::unique_ptr<ExpertRunner> runner_with_half(CpuModel& model, const std::string& stack) {
  RunnerOptions o;
  o.stack = stack;
  o.max_rows = 64;
  o.alpha = 0;  // no expert stands in for another
  o.budget_bytes = model_shape(model.config(), model.store(), 1).all_bytes() / 2;
  return make_runner(model, o);
}

std::uint32_t some_token(std::uint32_t at) {
  return 97 + (at * at + 7 * at) % 26;
}

/// The least room that layers with a window of 16 can do with.
CacheRoom tight(const ModelConfig& config, std::uint32_t positions, std::uint32_t rows) {
  CacheRoom room(config, positions, rows);
  room.recent = 16 + 2 * rows;
  return room;
}

/// Logits [tokens, vocabulary] of two texts, of which a step has so many tokens together, by turns from either's.
Matrix logits_of_two(CpuModel& model, const std::string& stack, const CacheRoom& room, std::uint32_t rows) {
  const auto runner = runner_with_half(model, stack);
  std::vector<KvCache> caches;
  for (int s = 0; s < 2; ++s) caches.push_back(model.make_cache(room));
  Matrix all(2 * room.positions, model.config().vocabulary);
  for (std::uint32_t first = 0; first < room.positions; first += rows) {
    std::vector<TokenRow> step;
    for (std::uint32_t at = first; at < std::min(first + rows, room.positions); ++at) {
      for (const std::uint32_t s : {0U, 1U}) step.push_back({s, some_token(at + 5 * s), at});
    }
    const Phase phase = rows == 1 ? Phase::decode : Phase::prefill;
    all.middleRows(2 * first, std::ssize(step)) =
        model.forward(phase, step, caches, *runner, static_cast<std::uint32_t>(step.size()));
  }
  return all;
}

/// A checkpoint whose context is long enough to let go of something.
std::filesystem::path with_long_context(const std::string& family, const std::filesystem::path& folder) {
  std::filesystem::copy(test::golden_file("zoo") / family, folder, std::filesystem::copy_options::recursive);
  std::ifstream in(folder / "config.json");
  Json config = Json::parse(in);
  config["max_position_embeddings"] = 4096;
  std::ofstream(folder / "config.json") << config;
  return folder;
}

}  // namespace

TEST_CASE("caches of recent positions: logits are those of caches with all positions, to the bit") {
  for (const char* family : {"afmoe", "exaone_moe", "gemma4", "gpt_oss", "llama4", "mixtral_window", "afmoe_as_gguf"}) {
    CAPTURE(std::string(family));
    CpuModel model(test::golden_file("zoo") / family);
    const std::uint32_t positions = 120;
    for (const std::uint32_t rows : {1U, 7U}) {
      CAPTURE(rows);
      const CacheRoom all(model.config(), positions, 0), few = tight(model.config(), positions, rows);
      CHECK(model.make_cache(few).bytes() < model.make_cache(all).bytes());
      for (const char* stack : {"lru", "importance-driven"}) {  // which attends from partial hidden states, too
        const bool same = logits_of_two(model, stack, few, rows) == logits_of_two(model, stack, all, rows);
        CHECK(same);
      }
    }
  }
}

TEST_CASE("caches of recent positions: as large as they say, and less where windows are short") {
  for (const char* family :
       {"gemma4", "mixtral_window", "deepseek_v2", "qwen3_next", "lfm2_moe", "granitemoehybrid", "mixtral"}) {
    CAPTURE(family);
    CpuModel model(test::golden_file("zoo") / family);
    for (const std::uint32_t positions : {1U, 100U, 20'000U}) {
      const CacheRoom room(model.config(), positions, 128);
      const KvCache cache = model.make_cache(room);
      Eigen::Index numbers = 0;
      for (const auto* part : {&cache.keys, &cache.values}) {
        for (const Matrix& m : *part) numbers += m.size();
      }
      CHECK(cache.bytes() == static_cast<std::uint64_t>(numbers) * sizeof(float));
      CHECK(cache.bytes() == cache_bytes(model.config(), room));
      const bool windows = std::string(family) == "gemma4" || std::string(family) == "mixtral_window";
      CHECK(room.recent == (windows && positions == 20'000 ? 16 + 2 * 128 + 512 : positions));
    }
  }
}

TEST_CASE("caches of recent positions: a text goes back as far as they remember, or begins anew") {
  const test::TemporaryFolder folder;
  CpuModel model(with_long_context("gpt_oss", folder.path() / "model"));
  const auto runner = runner_with_half(model, "lru");
  const auto request = [](std::uint32_t count, std::uint32_t other_from) {
    DecodeRequest r;
    for (std::uint32_t at = 0; at < count; ++at) r.tokens.push_back(some_token(at < other_from ? at : at + 3));
    r.max_new_tokens = 4;
    r.ignore_end = r.keep_logits = true;
    r.positions = 2400;
    return r;
  };
  const auto finish = [](BatchDecoder& decoder) {
    while (decoder.prefilling() || decoder.decoding()) decoder.step();
    return decoder.decoded(0).logits;
  };
  const auto anew = [&](const DecodeRequest& r) {
    BatchDecoder decoder(model, *runner, {1, 64, false});
    decoder.add(r);
    return finish(decoder);
  };
  BatchDecoder decoder(model, *runner, {1, 64, false});
  decoder.add(request(1500, 1500));
  CHECK(finish(decoder) == anew(request(1500, 1500)));
  CHECK(decoder.cache_bytes() < cache_bytes(model.config(), CacheRoom(model.config(), 2400, 0)));
  // 1503 tokens are there: it goes back by 512 and a step at most.
  CHECK(decoder.add_behind(0, request(1600, 927)) == 927);
  CHECK(finish(decoder) == anew(request(1600, 927)));
  CHECK(decoder.add_behind(0, request(1610, 600)) == 0);
  CHECK(finish(decoder) == anew(request(1610, 600)));
  // The whole of it is there for a text that goes on.
  DecodeRequest longer = request(1610, 600);
  const std::vector<std::uint32_t> made = decoder.decoded(0).tokens;
  longer.tokens.insert(longer.tokens.end(), made.begin(), made.end());
  longer.tokens.push_back(some_token(1));
  CHECK(decoder.add_behind(0, longer) == 1613);
  const std::vector<float> got = finish(decoder), expected = anew(longer);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(std::abs(got[i] - expected[i]) < 1e-5F);  // other steps of a prompt
}

TEST_CASE("caches of recent positions: a step larger than they were made for is refused, not computed wrong") {
  CpuModel model(test::golden_file("zoo") / "mixtral_window");
  const auto runner = runner_with_half(model, "lru");
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(tight(model.config(), 120, 2)));
  std::vector<TokenRow> rows;
  for (std::uint32_t at = 0; at < 40; ++at) rows.push_back({0, some_token(at), at});
  CHECK_THROWS_AS(model.forward(Phase::prefill, rows, caches, *runner, 1), std::logic_error);
  runner->abandon();
  CHECK_THROWS_AS(model.forward(Phase::decode, {{0, 97, 3}}, caches, *runner, 1), std::logic_error);
  runner->abandon();
}
