// What a runner is made of, and what it says of itself.
#include "inference/expert_runner.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "cpu/cpu_device.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/fixed_costs.hpp"
#include "engine/fixtures/loaded_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "ferry/error.hpp"
#include "inference/batch_decoder.hpp"
#include "inference/generate.hpp"
#include "support/errors.hpp"

using namespace ferry;
using namespace ferry::engine;

namespace {

RunnerOptions quarter(const char* stack) {
  RunnerOptions o;
  o.stack = stack;
  o.max_rows = 16;
  o.budget_bytes =
      model_shape(test::model("tiny-qwen-moe").config(), test::model("tiny-qwen-moe").store(), 16).all_bytes() / 4;
  return o;
}

void run(ExpertRunner& runner, std::uint32_t tokens = 4) {
  GenerateOptions g;
  g.prompts = {"Few"};
  g.max_new_tokens = tokens;
  g.prefill_chunk = 16;
  generate(test::model("tiny-qwen-moe"), runner, g);
}

}  // namespace

TEST_CASE("a runner has no device of its own: a model gives its, or the options make one") {
  RunnerOptions o = quarter("lru");
  CHECK_THROWS_WITH_AS(make_runner(test::model("tiny-qwen-moe").config(), test::model("tiny-qwen-moe").store(),
                                   test::model("tiny-qwen-moe").gates(), o),
                       "a runner was asked for without RunnerOptions::make_device: make it by make_runner(model, "
                       "options), or set it",
                       ConfigError);
  CHECK(make_runner(test::model("tiny-qwen-moe"), o) != nullptr);
  int made = 0;
  o.make_device = [&](const DeviceNeeds& needs, const RunnerOptions& given) {
    ++made;
    return make_cpu_device(needs, given);
  };
  CHECK(make_runner(test::model("tiny-qwen-moe").config(), test::model("tiny-qwen-moe").store(),
                    test::model("tiny-qwen-moe").gates(), o) != nullptr);
  CHECK(make_runner(test::model("tiny-qwen-moe"), o) != nullptr);
  CHECK(made == 2);
}

TEST_CASE("a runner's statistics are those of its pipeline and device, also through one that passes calls on") {
  RunnerOptions o = quarter("cross-layer-lru");
  o.link_bytes_per_s = 3'000'000'000;
  CpuModel model(test::model_folder("tiny-qwen-moe"));  // not the shared one: in this no other test has shrunk experts
  const auto runner = make_runner(model, o);
  const PassingRunner passing(*runner);
  const RunnerStatistics before = passing.statistics();
  const std::uint64_t expert = model.store().layout().bytes();
  CHECK(before.counters.of(Phase::decode).requests == 0);
  CHECK(before.arena_bytes <= o.budget_bytes);
  CHECK(before.arena_bytes > o.budget_bytes - 2 * expert);
  CHECK(before.slots[static_cast<unsigned>(Precision::full)] > 0);
  CHECK(before.slots[static_cast<unsigned>(Precision::full)] * expert <= before.arena_bytes);
  CHECK(before.slots[static_cast<unsigned>(Precision::int4)] == 0);
  CHECK(before.copy_bytes[static_cast<unsigned>(Precision::full)] == expert);
  CHECK(before.link_peak_bytes_per_s == 3e9);
  CHECK(before.virtual_ns == 0);
  CHECK(before.gate_worker_busy == 0);
  REQUIRE(before.accuracy.size() == 1);
  REQUIRE(before.accuracy[0].size() == model.config().layers);
  run(*runner);
  const RunnerStatistics after = passing.statistics();
  CHECK(after.counters.of(Phase::decode).requests > 0);
  CHECK(after.accuracy[0][1].needed > 0);
  CHECK(after.arena_bytes == before.arena_bytes);
}

TEST_CASE("a runner's time on the virtual clock passes with what its device is given") {
  RunnerOptions o = quarter("lru");
  o.virtual_costs = test::fixed_costs(6000, 1000, 1000, 1'000'000'000);
  const auto runner = make_runner(test::model("tiny-qwen-moe"), o);
  CHECK(runner->statistics().virtual_ns == 0);
  run(*runner);
  const std::uint64_t decoded = 3;  // the prompt gives the first of four tokens
  CHECK(runner->statistics().virtual_ns >
        static_cast<Nanoseconds>(decoded * test::model("tiny-qwen-moe").config().layers * 6000));
}

TEST_CASE("on the virtual clock a step that was abandoned leaves nothing in what the next one's host took") {
  CpuModel& model = test::model("tiny-qwen-moe");
  RunnerOptions o = quarter("static-host");
  o.virtual_costs = test::fixed_costs(6000, 1000, 5000, 1'000'000'000);
  const Matrix input = Matrix::Constant(1, model.config().hidden, 0.25F);
  const Matrix scores = Eigen::RowVectorXf::LinSpaced(model.config().experts, 0.01F, 0.2F);  // the last ones
  const auto plan = [&](ExpertRunner& runner) {
    runner.begin_step(Phase::decode, {0});
    runner.plan(0, input, scores, {});
  };
  const auto host_took = [&](bool abandoned) {
    const auto runner = make_runner(model, o);
    if (abandoned) {
      plan(*runner);
      runner->abandon();
    }
    plan(*runner);
    Matrix out = Matrix::Zero(1, model.config().hidden);
    runner->run_resident(0, input);
    runner->run(0, input, out);
    runner->finish(0);
    runner->abandon();
    return runner->times[static_cast<unsigned>(Phase::decode)].host;
  };
  CHECK(host_took(false) > 0);
  CHECK(host_took(true) == host_took(false));
}

TEST_CASE("a text goes on from nothing that a step which failed has left") {
  /// Fails once, in a later layer than the first.
  class FailsOnce final : public PassingRunner {
   public:
    FailsOnce(ExpertRunner& runner, int call) : PassingRunner(runner), left_(call) {}
    void run(std::uint16_t layer, const Matrix& input, Matrix& out) override {
      if (left_-- == 0) throw InputError("the disk");
      PassingRunner::run(layer, input, out);
    }

   private:
    int left_;
  };
  CpuModel& model = test::model("tiny-qwen-moe");
  const auto layers = static_cast<int>(model.config().moe_layer_count());
  DecodeRequest request;
  for (std::uint32_t i = 0; i < 24; ++i) request.tokens.push_back(5 + 7 * i % 200);
  request.max_new_tokens = 8;
  request.positions = 64;
  const auto finish = [](BatchDecoder& decoder) {
    while (decoder.prefilling() || decoder.decoding()) decoder.step();
    return decoder.decoded(0).tokens;
  };
  const auto sound = make_runner(model, quarter("lru"));
  BatchDecoder alone(model, *sound, {1, 16, false});
  alone.add(request);
  const std::vector<std::uint32_t> right = finish(alone);
  // In the first piece of the prompt, in the second, and at the third token.
  for (const int call : {2, layers + 3, 4 * layers + 1}) {
    CAPTURE(call);
    const auto runner = make_runner(model, quarter("lru"));
    FailsOnce failing(*runner, call);
    BatchDecoder decoder(model, failing, {1, 16, false});
    decoder.add(request);
    CHECK_THROWS_AS(finish(decoder), InputError);
    CHECK(decoder.is_over(0));
    CHECK(decoder.add_behind(0, request) == 0);
    CHECK(finish(decoder) == right);
  }
}

TEST_CASE("a place for whose text there is no memory is free, and nothing of its last text goes on") {
  class NoMemory final : public CpuModel {
   public:
    using CpuModel::CpuModel;
    KvCache make_cache(const CacheRoom& room) const override {
      return fails ? throw std::bad_alloc() : CpuModel::make_cache(room);
    }
    bool fails = false;
  };
  class CountsEnds final : public PassingRunner {
   public:
    using PassingRunner::PassingRunner;
    void end_sequence(std::uint32_t sequence) override {
      ++ends;
      PassingRunner::end_sequence(sequence);
    }
    int ends = 0;
  };
  NoMemory model(test::model_folder("tiny-qwen-moe"));
  const auto sound = make_runner(model, quarter("lru"));
  CountsEnds runner(*sound);
  BatchDecoder decoder(model, runner, {1, 16, false});
  DecodeRequest request;
  request.tokens = {1, 2, 3};
  request.max_new_tokens = 2;
  decoder.add(request);
  while (decoder.prefilling() || decoder.decoding()) decoder.step();
  model.fails = true;
  request.positions = 64;
  CHECK_THROWS_AS(decoder.add_behind(0, request), std::bad_alloc);
  CHECK(decoder.has_room());
  CHECK(runner.ends == 1);
}

TEST_CASE("the gate's worker is measured where there is one") {
  RunnerOptions o = quarter("cross-layer-lru");
  o.gate_worker = true;
  const auto runner = make_runner(test::model("tiny-qwen-moe"), o);
  run(*runner);
  CHECK(runner->statistics().gate_worker_busy > 0);
}

TEST_CASE(
    "logs of uses that become long are not kept: what their parts need is added up, and no more than the whole needs") {
  const auto runner = make_runner(test::model("tiny-qwen-moe"), quarter("lru"));
  run(*runner, 96);
  REQUIRE(runner->uses.size() == 1);
  const UseLog whole = runner->uses[0];
  const std::uint64_t slots = runner->statistics().slots[static_cast<unsigned>(Precision::full)];
  UseLog parts[2];
  for (std::size_t layer = 0, at = 0; layer < whole.ends.size(); ++layer) {
    UseLog& part = parts[2 * layer < whole.ends.size() ? 0 : 1];
    for (; at < whole.ends[layer]; ++at) part.add(whole.uses[at]);
    part.end_layer();
  }
  std::uint64_t copies = 0;
  for (const UseLog& part : parts) copies += fewest_copies(part, Precision::full, slots);
  CHECK(copies > 0);
  CHECK(copies <= fewest_copies(whole, Precision::full, slots));
  for (const UseLog& part : parts) {
    runner->uses = {part};
    runner->end_long_logs(part.uses.size() + 1);
    CHECK(runner->uses.size() == 1);
    runner->end_long_logs(part.uses.size());
    CHECK(runner->uses.empty());
  }
  CHECK(runner->fewest[static_cast<unsigned>(Precision::full)] == copies);
}
