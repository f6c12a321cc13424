// Invariant 5: whatever the stack, budget, pools, link and its speed, the text and the logits are those of
// the fully resident model, bit for bit.
#include <doctest/doctest.h>
#include <unistd.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "checkpoint/safetensors.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/fixed_costs.hpp"
#include "engine/fixtures/loaded_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "inference/generate.hpp"
#include "support/quick.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using test::fixed_costs;
using test::model;
using test::prompts;
using test::quick;

bool all_of_it() {
  return std::getenv("FERRY_TEST_ALL") != nullptr;
}

Generated run(const std::string& name, const std::vector<std::string>& texts, const RunnerOptions& options,
              Counters* counters = nullptr) {
  CpuModel& m = model(name);
  m.add_precisions(find_stack(options.stack).precisions);
  const auto runner = make_runner(m, options);
  GenerateOptions g;
  g.prompts = texts;
  g.batch = static_cast<std::uint32_t>(texts.size());
  g.max_new_tokens = quick() ? 4 : 16;
  g.prefill_chunk = 48;
  Generated made = generate(m, *runner, g);
  if (counters != nullptr) *counters = runner->statistics().counters;
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
    o.max_rows = 48;
    o.poison = true;
    o.stack = "resident-int4";
    const Generated right_int4 = run(name, texts, o);
    o.stack = "resident";
    const Generated right_full = run(name, texts, o);
    for (const Generated* right : {&right_full, &right_int4}) REQUIRE(right->text[0].size() >= (quick() ? 4 : 16));
    REQUIRE(!same(right_full, right_int4));
    std::size_t number = 0;
    for (const StackInfo& info : all_stacks()) {
      const std::string& stack = info.name;
      ++number;
      if (!info.lossless || (info.keeps_everything && stack != "resident")) continue;
      // The first stacks run in both layouts; the others in their papers' layout, and on the first prompt only.
      const bool first = stack == "on-demand" || stack == "lru" || stack == "cross-layer-lru";
      if (!first && &texts != &batches[0]) continue;
      for (const std::uint64_t eighths : {1U, 2U, 4U, 8U}) {
        // EAP only shrinks experts if the budget does not hold them all.
        const bool shrunk =
            info.precisions.bits == PrecisionSet(Precision::int4).bits && (stack != "activation-path" || eighths < 8);
        for (const PoolChoice pools : {PoolChoice::stack, PoolChoice::per_layer, PoolChoice::one}) {
          if (first == (pools == PoolChoice::stack)) continue;
          if (quick() && (eighths % 4 != 1 || stack == "resident")) continue;
          if (stack == "resident" && eighths < 8) continue;  // takes no budget
          // In real time two of a stack's four budgets take turns. FERRY_TEST_ALL: all four.
          const bool in_turn = (eighths <= 2) == (number % 2 == 1);
          const bool every_budget = virtual_clock || first || stack == "resident" || quick() || all_of_it();
          if (!every_budget && !in_turn) continue;
          for (const std::uint64_t speed : speeds) {
            // The first stacks try every speed in one layout at the smallest budget. Otherwise speeds take turns, and where
            // real time passes only `resident` tries the slowest. FERRY_TEST_ALL: without turns.
            const bool few = !first || eighths > 1 || pools == PoolChoice::one;
            const auto turn = static_cast<std::size_t>(number + std::bit_width(eighths));
            if (!virtual_clock && speed == expert * 1'000 && few && stack != "resident") continue;
            const bool fastest = speed == speeds.back();
            if (!virtual_clock && few && !all_of_it() && fastest != (turn % 2 == 0)) continue;
            if (virtual_clock && few && !all_of_it() && speed != speeds[turn % speeds.size()]) continue;
            o.stack = stack;
            o.budget_bytes = all * eighths / 8;
            o.pools = pools;
            o.link_bytes_per_s = speed;
            // Tests share the cores, so most copy threads sleep when they have nothing to do.
            o.linger_ns = stack == "cross-layer-lru" ? usual_linger_ns() : 0;
            o.prefetch_chunk_bytes = number % 2 == 0 ? expert / 3 : 0;
            if (virtual_clock) {
              o.virtual_costs = fixed_costs(60'000, 20'000, 50'000, speed);
              o.virtual_costs->prefetch_chunk_bytes = o.prefetch_chunk_bytes;
            }
            CAPTURE(stack);
            CAPTURE(eighths);
            CAPTURE(speed);
            CAPTURE(static_cast<int>(pools));
            Counters counters;
            CHECK(same(run(name, texts, o, &counters), shrunk ? right_int4 : right_full));
            const Outcomes& decode = counters.of(Phase::decode);
            CHECK(decode.hits + decode.late_hits + decode.misses + decode.host_computed == decode.requests);
            const bool fits = stack != "on-demand" && (eighths == 8 || (shrunk && eighths == 4));
            if (!fits) CHECK(decode.bytes + decode.host_computed > 0);
          }
        }
      }
    }
  }
}

TEST_CASE("tiny-qwen-moe on the virtual clock, batch 1, is bit-identical to resident") {
  all_of("tiny-qwen-moe", true, 1);
}
TEST_CASE("tiny-qwen-moe on the virtual clock, batch 3, is bit-identical to resident" *
          doctest::test_suite("whole-models")) {
  all_of("tiny-qwen-moe", true, 3);
}
TEST_CASE("tiny-mixtral on the virtual clock, batch 1, is bit-identical to resident") {
  all_of("tiny-mixtral", true, 1);
}
TEST_CASE("tiny-mixtral on the virtual clock, batch 3, is bit-identical to resident" *
          doctest::test_suite("whole-models")) {
  all_of("tiny-mixtral", true, 3);
}
TEST_CASE("tiny-qwen-moe on the host thread, batch 1, is bit-identical to resident" *
          doctest::test_suite("whole-models-on-threads")) {
  all_of("tiny-qwen-moe", false, 1);
}
TEST_CASE("tiny-qwen-moe on the host thread, batch 3, is bit-identical to resident" *
          doctest::test_suite("whole-models-on-threads")) {
  all_of("tiny-qwen-moe", false, 3);
}
TEST_CASE("tiny-mixtral on the host thread, batch 1, is bit-identical to resident" *
          doctest::test_suite("whole-models-on-threads")) {
  all_of("tiny-mixtral", false, 1);
}
TEST_CASE("tiny-mixtral on the host thread, batch 3, is bit-identical to resident" * doctest::test_suite("threads")) {
  all_of("tiny-mixtral", false, 3);
}

/// A stack whose lossy part has the neutral setting gives what the resident model gives. With a harsher one it does not, so
/// the comparison can fail.
void neutral(const std::string& name, const std::string& stack, const std::string& reference,
             void (*set)(RunnerOptions&, bool neutral)) {
  const bool whole = stack == "ferry-lossy" || stack == "hobbit" || stack == "importance-driven" ||
                     stack == "fate";  // the others are steps of an ablation
  for (const std::size_t batch : {1U, 3U}) {
    if (batch > 1 && !whole) continue;
    const std::vector<std::string> texts(prompts().begin(), prompts().begin() + static_cast<std::ptrdiff_t>(batch));
    RunnerOptions o;
    o.stack = reference;
    o.max_rows = 48;
    o.poison = true;
    const Generated right = run(name, texts, o);
    o.stack = stack;
    const std::uint64_t expert = model(name).store().layout().bytes();
    const std::uint64_t all = expert * model(name).config().layers * model(name).config().experts;
    for (const bool virtual_clock : {true, false}) {
      for (const std::uint64_t eighths : {1U, 2U, 4U}) {
        for (const std::uint64_t speed : {expert * 1'000, expert * 100'000}) {
          if (!virtual_clock && speed == expert * 1'000) continue;  // real time passes
          CAPTURE(stack);
          CAPTURE(eighths);
          CAPTURE(speed);
          o.budget_bytes = all * eighths / 8;
          o.link_bytes_per_s = speed;
          o.virtual_costs.reset();
          if (virtual_clock) o.virtual_costs = fixed_costs(60'000, 20'000, 50'000, speed);
          set(o, true);
          Counters counters;
          CHECK(same(run(name, texts, o, &counters), right));
          const Outcomes& decode = counters.of(Phase::decode);
          CHECK(decode.substituted + decode.skipped == 0);
        }
      }
    }
    o.virtual_costs = fixed_costs(60'000, 20'000, 50'000, expert * 100'000);
    o.budget_bytes = all / 8;
    set(o, false);
    CHECK_FALSE(same(run(name, texts, o), right));
  }
}

TEST_CASE("HOBBIT with T1 = T2 = 1 is bit-identical to resident" * doctest::test_suite("whole-models")) {
  for (const std::string stack : {"hobbit+dynamic", "hobbit+prefetch", "hobbit", "hobbit-cooperative"}) {
    for (const std::string name : {"tiny-qwen-moe", "tiny-mixtral"}) {
      if (quick() && (stack != "hobbit" || name == "tiny-mixtral")) continue;
      neutral(name, stack, "resident", [](RunnerOptions& o, bool neutral) {
        o.t1 = neutral ? 1.0F : 0.2F;
        o.t2 = neutral ? 1.0F : 0.4F;
      });
    }
  }
}

TEST_CASE("importance-driven with a = 0 is bit-identical to resident" *
          doctest::test_suite("whole-models-on-threads")) {
  for (const std::string stack : {"importance+er", "importance+pre", "importance-driven"}) {
    for (const std::string name : {"tiny-qwen-moe", "tiny-mixtral"}) {
      if (quick() && (stack != "importance-driven" || name == "tiny-mixtral")) continue;
      neutral(name, stack, "resident", [](RunnerOptions& o, bool neutral) { o.alpha = neutral ? 0.0F : 0.9F; });
    }
  }
}

TEST_CASE("partial hidden states change nothing that layers remember") {
  for (const char* name : {"lfm2_moe", "qwen3_next", "qwen3_5_moe", "granitemoehybrid"}) {
    CAPTURE(name);
    const std::string path = test::golden_file("zoo").string() + "/" + name;
    const std::vector<std::string> texts(prompts().begin(), prompts().begin() + 2);
    RunnerOptions o;
    o.max_rows = 48;
    o.stack = "resident";
    const Generated right = run(path, texts, o);
    o.stack = "importance-driven";
    o.alpha = 0;  // no expert replaces another
    o.budget_bytes = model(path).store().layout().bytes() * model(path).config().moe_layer_count() *
                     model(path).config().experts / 2;
    Counters counters;
    CHECK(same(run(path, texts, o, &counters), right));
    CHECK(counters.of(Phase::decode).misses > 0);
  }
}

TEST_CASE("ferry-lossy within a loss of 0 is bit-identical to the resident INT4 model" *
          doctest::test_suite("whole-models-on-threads")) {
  for (const std::string name : {"tiny-qwen-moe", "tiny-mixtral"}) {
    if (quick() && name == "tiny-mixtral") continue;
    neutral(name, "ferry-lossy", "resident-int4",
            [](RunnerOptions& o, bool neutral) { o.max_loss = neutral ? 0.0F : 50.0F; });
  }
}

TEST_CASE("what ferry-lossy leaves out depends neither on the budget nor on the machine" *
          doctest::test_suite("whole-models-on-threads")) {
  RunnerOptions o;
  o.stack = "ferry-lossy";
  o.max_rows = 48;
  o.max_loss = 5;
  std::vector<Generated> made;
  for (const std::uint64_t megabytes : {1U, 3U, 100U}) {
    for (const std::uint64_t speed : {0ULL, 20'000'000ULL, 2'000'000'000ULL}) {
      o.budget_bytes = megabytes * 1'000'000;
      o.virtual_costs.reset();
      if (speed > 0) o.virtual_costs = fixed_costs(60'000, 20'000, 50'000, speed);
      Counters counters;
      made.push_back(run("tiny-qwen-moe", prompts(), o, &counters));
      CHECK(same(made.back(), made.front()));
      CHECK(counters.of(Phase::decode).skipped > 0);
    }
  }
}

TEST_CASE("Fate with an INT2 share of 0 is bit-identical to the resident INT4 model" *
          doctest::test_suite("whole-models")) {
  for (const std::string name : {"tiny-qwen-moe", "tiny-mixtral"}) {
    if (quick() && name == "tiny-mixtral") continue;
    neutral(name, "fate", "resident-int4",
            [](RunnerOptions& o, bool neutral) { o.low_share_percent = neutral ? 0 : 60; });
  }
}

TEST_CASE("a thread that makes the predicted rows changes nothing that is predicted, and nothing from run to run" *
          doctest::test_suite("threads")) {
  for (const std::string stack : {"cross-layer-lru", "hobbit", "fate"}) {
    RunnerOptions o;
    o.stack = stack;
    o.max_rows = 48;
    o.budget_bytes = 3'000'000;
    o.virtual_costs = fixed_costs(60'000, 20'000, 0, 500'000'000);
    Counters inside, beside, again;
    o.gate_worker = false;
    const Generated one = run("tiny-qwen-moe", prompts(), o, &inside);
    o.gate_worker = true;
    const Generated two = run("tiny-qwen-moe", prompts(), o, &beside);
    const Generated three = run("tiny-qwen-moe", prompts(), o, &again);
    // The worker's rows reach the core after the resident experts ran, not before. That may make other prefetches late, but
    // what is predicted is the same each time, except where the depth depends on what is resident, or routing on the cache.
    if (stack == "cross-layer-lru") CHECK(inside.prefetch.accuracy.predicted == beside.prefetch.accuracy.predicted);
    CHECK(same(two, three));
    CHECK(beside.of(Phase::decode).bytes == again.of(Phase::decode).bytes);
    CHECK(beside.of(Phase::decode).hits == again.of(Phase::decode).hits);
    if (find_stack(stack).lossless) CHECK(same(one, two));
  }
}

TEST_CASE("a batch gives each prompt the text that it gets alone" * doctest::test_suite("threads")) {
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
  std::filesystem::copy(test::model_folder("tiny-mixtral"), folder);
  const Safetensors whole(test::model_folder("tiny-mixtral") / "model.safetensors");
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
  CpuModel own(test::model_folder("tiny-mixtral"));
  GenerateOptions g;
  g.prompts = {prompts()[0]};
  g.max_new_tokens = 4;
  RunnerOptions o;
  o.stack = "resident";
  const auto resident = make_runner(own, o);  // the copies of its preload have landed
  o.stack = "on-demand";
  o.budget_bytes = 1'000'000;
  const auto on_demand = make_runner(own, o);
  const Generated before = generate(own, *resident, g);
  for (std::uint16_t l = 0; l < own.config().layers; ++l) {
    for (std::uint16_t e = 0; e < own.config().experts; ++e) {
      const View<const std::byte> bytes = own.store().bytes({{l, e}, Precision::full}).view;
      std::memset(const_cast<std::byte*>(bytes.data), 0, bytes.size);
    }
  }
  CHECK(same(generate(own, *resident, g), before));
  CHECK_FALSE(same(generate(own, *on_demand, g), before));
}

TEST_CASE("everything fits: no copies after warm-up (invariant 6)" * doctest::test_suite("whole-models")) {
  const std::uint64_t all = 12ULL * 32 * model("tiny-qwen-moe").store().layout().bytes();
  for (const StackInfo& info : all_stacks()) {
    if (info.keeps_everything || info.name == "on-demand" || info.name == "fate+prefetch") continue;  // keep nothing
    CAPTURE(info.name);
    RunnerOptions o;
    o.stack = info.name;
    o.budget_bytes = all;
    CpuModel& m = model("tiny-qwen-moe");
    m.add_precisions(info.precisions);
    const auto runner = make_runner(m, o);
    GenerateOptions g;
    g.prompts = {prompts()[0]};
    g.max_new_tokens = 8;
    generate(m, *runner, g);
    const Counters first = runner->statistics().counters;
    CHECK(first.of(Phase::prefill).bytes + first.preload_bytes > 0);
    generate(m, *runner, g);  // the same again: all of it is there
    const Counters second = runner->statistics().counters;
    if (info.name == "layer-stream" || info.name == "moe-infinity") {  // they prefetch also what no one asked for yet
      CHECK(second.of(Phase::decode).misses == first.of(Phase::decode).misses);
      continue;
    }
    CHECK(second.of(Phase::prefill).misses == first.of(Phase::prefill).misses);
    CHECK(second.of(Phase::decode).misses == first.of(Phase::decode).misses);
  }
}

}  // namespace
