// Keys and values: layers that attend to a window or chunk only keep recent positions, and models compute the same to the last
// bit. In 16 bits each value is the nearest one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "inference/batch_decoder.hpp"
#include "support/errors.hpp"
#include "support/quick.hpp"

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

/// The least room with which layers with a window of 16 can work.
CacheRoom tight(const ModelConfig& config, std::uint32_t positions, std::uint32_t rows) {
  CacheRoom room(config, positions, rows);
  room.recent = 16 + 2 * rows;
  return room;
}

/// Logits [tokens, vocabulary] of two texts. A step has `rows` tokens, alternately from either text.
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

/// Copies a checkpoint, with a context long enough that positions are dropped.
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
      for (const char* stack : {"lru", "importance-driven"}) {  // the second also attends from partial hidden states
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
  // 1503 tokens are cached: the decoder goes back by at most 512 and a step.
  CHECK(decoder.add_behind(0, request(1600, 927)) == 927);
  CHECK(finish(decoder) == anew(request(1600, 927)));
  CHECK(decoder.add_behind(0, request(1610, 600)) == 0);
  CHECK(finish(decoder) == anew(request(1610, 600)));
  // A text that goes on finds all of it cached.
  DecodeRequest longer = request(1610, 600);
  const std::vector<std::uint32_t> made = decoder.decoded(0).tokens;
  longer.tokens.insert(longer.tokens.end(), made.begin(), made.end());
  longer.tokens.push_back(some_token(1));
  CHECK(decoder.add_behind(0, longer) == 1613);
  const std::vector<float> got = finish(decoder), expected = anew(longer);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(std::abs(got[i] - expected[i]) < 1e-5F);  // the prompt was run in other steps
  // What a text of long ago has overwritten is not there again because the last one was short.
  BatchDecoder again(model, *runner, {1, 64, false});
  again.add(request(1500, 1500));
  finish(again);
  CHECK(again.add_behind(0, request(1010, 1000)) == 1000);
  CHECK(finish(again) == anew(request(1010, 1000)));
  CHECK(again.add_behind(0, request(510, 500)) == 0);
  CHECK(finish(again) == anew(request(510, 500)));
  CHECK(again.add_behind(0, request(400, 300)) == 300);  // all of it is still there
  CHECK(finish(again) == anew(request(400, 300)));
}

TEST_CASE("LongRoPE goes by the tokens that are run, which the last one that is made is not") {
  test::TinyCheckpoint checkpoint;
  checkpoint.config["rope_parameters"] = {{"rope_type", "longrope"},
                                          {"rope_theta", 10000.0},
                                          {"short_factor", {1.0, 2.0}},
                                          {"long_factor", {9.0, 30.0}},
                                          {"original_max_position_embeddings", 16}};
  const test::TemporaryFolder folder;
  checkpoint.write(folder.path());
  CpuModel model(folder.path());
  const auto runner = runner_with_half(model, "lru");
  const auto first_logits = [&](std::uint32_t made) {
    DecodeRequest r;
    for (std::uint32_t i = 0; i < 12; ++i) r.tokens.push_back(some_token(i));
    r.max_new_tokens = made;
    r.keep_logits = r.ignore_end = true;
    BatchDecoder decoder(model, *runner, {1, 64, false});
    decoder.add(r);
    while (decoder.prefilling() || decoder.decoding()) decoder.step();
    std::vector<float> logits = decoder.decoded(0).logits;
    logits.resize(model.config().vocabulary);
    return logits;
  };
  CHECK(first_logits(5) == first_logits(1));  // 16 tokens are run
  CHECK(first_logits(6) != first_logits(1));
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

namespace {

CpuModel with_halves(const std::filesystem::path& folder) {
  ModelFiles files(folder);
  files.config.cache_type = FloatType::f16;
  return CpuModel(std::move(files));
}

}  // namespace

TEST_CASE("keys and values of 16 bits: the nearest of what 32 have, in half the memory") {
  for (const char* family : {"mixtral_window", "qwen3_moe", "deepseek_v3", "gemma4", "granitemoehybrid"}) {
    CAPTURE(family);
    CpuModel floats(test::golden_file("zoo") / family), halves = with_halves(test::golden_file("zoo") / family);
    const CacheRoom room(floats.config(), 3, 0);
    std::vector<KvCache> caches[2];
    caches[0].push_back(floats.make_cache(room));
    caches[1].push_back(halves.make_cache(room));
    const std::vector<TokenRow> rows = {{0, some_token(0), 0}, {0, some_token(1), 1}, {0, some_token(2), 2}};
    for (CpuModel* model : {&floats, &halves}) {
      model->forward(Phase::prefill, rows, caches[model == &halves ? 1 : 0], *runner_with_half(*model, "lru"), 1);
    }
    std::uint32_t layer = 0;  // the first layer with attention, whose input only depends on layers without
    while (floats.config().layer[layer].linear) ++layer;
    const Matrix &own = caches[0][0].keys[layer], &made = caches[1][0].keys[layer];
    REQUIRE(made.size() * 2 == own.size());
    const auto* bits = reinterpret_cast<const std::uint16_t*>(made.data());
    for (Eigen::Index i = 0; i < own.size(); ++i) {
      CHECK(static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits[i])) ==
            static_cast<float>(Eigen::half(own.data()[i])));
    }
    std::size_t numbers = 0;
    for (const auto* part : {&caches[1][0].keys, &caches[1][0].values}) {
      for (const Matrix& m : *part) numbers += static_cast<std::size_t>(m.size());
    }
    CHECK(caches[1][0].bytes() == numbers * sizeof(float));
    CHECK(caches[1][0].bytes() < caches[0][0].bytes());
    CHECK(halves.rounds());
    CHECK(!floats.rounds());
    CHECK(caches[1][0].bytes() == cache_bytes(halves.config(), room));
  }
}

TEST_CASE("keys and values of 16 bits: refused where there are no pairs, and where they are not computed") {
  ModelFiles odd(test::golden_file("zoo") / "deepseek_v3");
  odd.config.cache_type = FloatType::f16;
  odd.config.latent.rank += 1;
  CHECK_THROWS_AS(CpuModel{std::move(odd)}, InputError);
  ModelFiles other(test::golden_file("zoo") / "mixtral");
  other.config.cache_type = FloatType::bf16;
  CHECK_THROWS_AS(CpuModel{std::move(other)}, InputError);
  ModelFiles halves(test::golden_file("zoo") / "mixtral");
  CHECK(beyond_cuda(halves.config, halves.store->layouts()).empty());
  halves.config.cache_type = FloatType::f16;
  CHECK(beyond_cuda(halves.config, halves.store->layouts()) == "keys and values of 16 bits");
}

TEST_CASE("keys and values of 16 bits: logits are near those of 32, and every lossless stack's are the same") {
  for (const char* family : {"mixtral_window", "gpt_oss", "deepseek_v3", "gemma4", "qwen3_next", "tiny"}) {
    CAPTURE(family);
    const std::filesystem::path folder =
        std::string(family) == "tiny" ? test::model_folder("tiny-qwen-moe") : test::golden_file("zoo") / family;
    CpuModel floats(folder), halves = with_halves(folder);
    const std::uint32_t positions = 60;
    for (const std::uint32_t rows : {1U, 7U}) {
      if (test::quick() && rows == 1) continue;
      const CacheRoom all(floats.config(), positions, 0), few = tight(floats.config(), positions, rows);
      const Matrix expected = logits_of_two(floats, "lru", all, rows), got = logits_of_two(halves, "lru", all, rows);
      const float apart = (expected - got).cwiseAbs().maxCoeff() / expected.cwiseAbs().maxCoeff();
      CHECK(apart > 0);
      CHECK(apart < 1e-2F);
      const bool same = logits_of_two(halves, "importance-driven", few, rows) == got;
      CHECK(same);
      const bool others = logits_of_two(halves, "ferry", all, rows) == got;
      CHECK(others);
    }
  }
}

TEST_CASE("keys and values of 16 bits: what is too large for them is the largest, and no infinity") {
  const test::TemporaryFolder folder;
  std::filesystem::copy(test::golden_file("zoo") / "mixtral", folder.path() / "model");
  const std::filesystem::path file = folder.path() / "model" / "model.safetensors";
  std::string bytes = test::read_file(file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const Json header = Json::parse(bytes.substr(8, length));
  const Json& place = header.at("model.layers.0.self_attn.v_proj.weight");
  REQUIRE(place.at("dtype") == "BF16");
  for (std::uint64_t at = place["data_offsets"][0]; at < place["data_offsets"][1]; at += 2) {
    char* const weight = &bytes[8 + length + at];
    weight[0] = 0x6e;  // 10^9, with the sign that it has
    weight[1] = static_cast<char>((weight[1] & 0x80) | 0x4e);
  }
  test::write_file(file, bytes);
  CpuModel model = with_halves(folder.path() / "model");
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(CacheRoom(model.config(), 1, 0)));
  model.forward(Phase::prefill, {{0, some_token(0), 0}}, caches, *runner_with_half(model, "lru"), 1);
  const Matrix& values = caches[0].values[0];
  const auto* bits = reinterpret_cast<const std::uint16_t*>(values.data());
  for (Eigen::Index i = 0; i < 2 * values.size(); ++i) CHECK((bits[i] & 0x7fffU) == 0x7bffU);
}
