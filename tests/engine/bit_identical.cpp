// Invariant 5: whatever the stack, budget, pools, link and its speed, the text and the logits are those of
// the fully resident model, bit for bit.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "engine/prompts.hpp"
#include "generate.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using test::prompts;

bool quick() {
  return std::getenv("FERRY_TEST_QUICK") != nullptr;
}

HostModel& model(const std::string& name) {
  static std::map<std::string, HostModel> loaded;
  return loaded.try_emplace(name, std::filesystem::path(FERRY_MODELS) / name).first->second;  // or an absolute path
}

Generated run(const std::string& name, const std::vector<std::string>& texts, const RunnerOptions& options,
              Counters* counters = nullptr) {
  HostModel& m = model(name);
  const auto runner = make_runner(m.config(), m.store(), m.gates(), options);
  GenerateOptions g;
  g.prompts = texts;
  g.batch = static_cast<std::uint32_t>(texts.size());
  g.max_new_tokens = quick() ? 4 : 16;
  g.prefill_chunk = 48;
  Generated made = generate(m, *runner, g);
  if (counters != nullptr) *counters = runner->counters();
  return made;
}

bool same(const Generated& a, const Generated& b) {
  if (a.text != b.text || a.last_logits.size() != b.last_logits.size()) return false;
  for (std::size_t i = 0; i < a.last_logits.size(); ++i) {
    const auto &x = a.last_logits[i], &y = b.last_logits[i];
    if (x.size() != y.size() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

void all_of(const std::string& name, bool virtual_clock, std::size_t batch) {
  std::vector<std::vector<std::string>> batches;
  if (batch == 1) {
    for (const std::string& p : prompts()) batches.push_back({p});
    if (quick()) batches.resize(1);
  } else {
    batches.push_back(prompts());
  }
  const std::uint64_t expert = model(name).store().layout().bytes();
  const std::uint64_t all = expert * model(name).config().layers * model(name).config().experts;
  // Two orders of magnitude: an expert takes about 1 ms, 0.1 ms, 0.01 ms to cross.
  std::vector<std::uint64_t> speeds = {expert * 1'000, expert * 10'000, expert * 100'000};
  if (quick()) speeds.erase(speeds.begin());
  for (const auto& texts : batches) {
    CAPTURE(texts.size());
    RunnerOptions o;
    o.stack = "resident";
    o.max_rows = 48;
    o.poison = true;
    const Generated right = run(name, texts, o);
    REQUIRE(right.text[0].size() >= (quick() ? 4 : 16));
    o.virtual_clock = virtual_clock;
    o.virtual_layer_ns = 60'000;
    o.virtual_expert_ns = 20'000;
    for (const std::string stack : {"resident", "on-demand", "lru", "cross-layer-lru"}) {
      for (const std::uint64_t eighths : {1U, 2U, 4U, 8U}) {
        for (const PoolChoice pools : {PoolChoice::per_layer, PoolChoice::one}) {
          if (quick() && (eighths % 4 != 1 || stack == "resident")) continue;
          if (stack == "resident" && (eighths < 8 || pools == PoolChoice::one)) continue;  // takes no budget
          for (const std::uint64_t speed : speeds) {
            o.stack = stack;
            o.budget_bytes = all * eighths / 8;
            o.pools = pools;
            o.link_bytes_per_s = speed;
            CAPTURE(stack);
            CAPTURE(eighths);
            CAPTURE(speed);
            CAPTURE(static_cast<int>(pools));
            Counters counters;
            CHECK(same(run(name, texts, o, &counters), right));
            const bool fits = stack == "resident" || (stack != "on-demand" && eighths == 8);
            CHECK((counters.of(Phase::decode).bytes == 0) <= fits);
          }
        }
      }
    }
  }
}

TEST_CASE("tiny-qwen-moe on the virtual clock, batch 1, is bit-identical to resident") {
  all_of("tiny-qwen-moe", true, 1);
}
TEST_CASE("tiny-qwen-moe on the virtual clock, batch 3, is bit-identical to resident") {
  all_of("tiny-qwen-moe", true, 3);
}
TEST_CASE("tiny-mixtral on the virtual clock, batch 1, is bit-identical to resident") {
  all_of("tiny-mixtral", true, 1);
}
TEST_CASE("tiny-mixtral on the virtual clock, batch 3, is bit-identical to resident") {
  all_of("tiny-mixtral", true, 3);
}
TEST_CASE("tiny-qwen-moe on the host thread, batch 1, is bit-identical to resident") {
  all_of("tiny-qwen-moe", false, 1);
}
TEST_CASE("tiny-qwen-moe on the host thread, batch 3, is bit-identical to resident") {
  all_of("tiny-qwen-moe", false, 3);
}
TEST_CASE("tiny-mixtral on the host thread, batch 1, is bit-identical to resident") {
  all_of("tiny-mixtral", false, 1);
}
TEST_CASE("tiny-mixtral on the host thread, batch 3, is bit-identical to resident") {
  all_of("tiny-mixtral", false, 3);
}

TEST_CASE("a batch gives each prompt the text that it gets alone") {
  RunnerOptions o;
  o.stack = "lru";
  o.max_rows = 48;
  o.budget_bytes = 4'000'000;
  std::vector<std::string> eight = prompts();
  for (std::size_t i = 0; eight.size() < 8; ++i) eight.push_back(prompts()[i % 3].substr(0, 20 + 7 * i));
  for (const std::size_t batch : {1U, 2U, 3U, 5U, 8U}) {
    const std::vector<std::string> texts(eight.begin(), eight.begin() + static_cast<std::ptrdiff_t>(batch));
    const Generated together = run("tiny-qwen-moe", texts, o);
    for (std::size_t i = 0; i < batch; ++i) {
      const Generated alone = run("tiny-qwen-moe", {texts[i]}, o);
      CHECK(together.text[i] == alone.text[0]);
      CHECK(together.last_logits[i] == alone.last_logits[0]);
    }
  }
}

TEST_CASE("the comparison can fail: one bit of one expert changes the logits") {
  // A copy of the model in which a single bit of expert 0 of layer 0 differs; all tokens of a prompt go by it.
  const auto folder = std::filesystem::temp_directory_path() / ("ferry-bit-" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  std::filesystem::copy(std::string(FERRY_MODELS) + "/tiny-mixtral", folder);
  const Safetensors whole(std::string(FERRY_MODELS) + "/tiny-mixtral/model.safetensors");
  const Tensor& t = whole.at("model.layers.0.block_sparse_moe.experts.0.w2.weight");
  const auto at = t.data - whole.at("model.embed_tokens.weight").data;
  const auto header = std::filesystem::file_size(folder / "model.safetensors") - [&] {
    std::uint64_t all = 0;
    for (const auto& [name, tensor] : whole.tensors()) all += tensor.bytes;
    return all;
  }();
  {
    std::fstream file(folder / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(header) + at);
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(header) + at);
    file.put(static_cast<char>(byte ^ 1));
  }
  RunnerOptions o;
  o.stack = "resident";
  o.max_rows = 48;
  const Generated right = run("tiny-mixtral", prompts(), o);
  CHECK(same(right, run("tiny-mixtral", prompts(), o)));
  CHECK_FALSE(same(right, run(folder.string(), prompts(), o)));
  std::filesystem::remove_all(folder);
}

TEST_CASE("the device computes only from slots: spoiling the host's copy after loading changes nothing there") {
  HostModel own(std::filesystem::path(FERRY_MODELS) / "tiny-mixtral");
  GenerateOptions g;
  g.prompts = {prompts()[0]};
  g.max_new_tokens = 4;
  RunnerOptions o;
  o.stack = "resident";
  const auto resident = make_runner(own.config(), own.store(), own.gates(), o);  // its copies have landed
  o.stack = "on-demand";
  o.budget_bytes = 1'000'000;
  const auto on_demand = make_runner(own.config(), own.store(), own.gates(), o);
  const Generated before = generate(own, *resident, g);
  for (std::uint16_t l = 0; l < own.config().layers; ++l) {
    for (std::uint16_t e = 0; e < own.config().experts; ++e) {
      const View<const std::byte> bytes = own.store().bytes({{l, e}, Precision::full});
      std::memset(const_cast<std::byte*>(bytes.data), 0, bytes.size);
    }
  }
  CHECK(same(generate(own, *resident, g), before));
  CHECK_FALSE(same(generate(own, *on_demand, g), before));
}

TEST_CASE("everything fits: no copies after warm-up (invariant 6)") {
  const std::uint64_t all = 12ULL * 32 * model("tiny-qwen-moe").store().layout().bytes();
  for (const std::string stack : {"lru", "cross-layer-lru"}) {
    RunnerOptions o;
    o.stack = stack;
    o.budget_bytes = all;
    HostModel& m = model("tiny-qwen-moe");
    const auto runner = make_runner(m.config(), m.store(), m.gates(), o);
    GenerateOptions g;
    g.prompts = {prompts()[0]};
    g.max_new_tokens = 8;
    generate(m, *runner, g);
    const Counters first = runner->counters();
    CHECK(first.of(Phase::prefill).bytes > 0);
    generate(m, *runner, g);  // the same again: all of it is there
    const Counters second = runner->counters();
    CHECK(second.of(Phase::prefill).bytes == first.of(Phase::prefill).bytes);
    CHECK(second.of(Phase::decode).bytes == first.of(Phase::decode).bytes);
  }
}

}  // namespace
