// A simulation of what the engine recorded is the engine's run on the virtual clock, span for span.
#include "sim/simulate.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/loaded_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "inference/generate.hpp"
#include "profiles/machine.hpp"
#include "profiles/shape.hpp"
#include "stacks/parameters.hpp"
#include "support/quick.hpp"
#include "trace/record.hpp"
#include "trace/synthetic.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using test::model;
using test::prompts;
using test::quick;

/// Costs that depend on everything that costs can: rows, precision, both processors, latency.
Costs varied_costs(std::uint64_t expert_bytes) {
  Costs c;
  c.device = {expert_bytes * 50'000, 3'000'000'000, 1'500};  // an expert: 20 us, or 0.1 ms for 10 rows
  c.host = {expert_bytes * 10'000, 1'000'000'000, 700};
  c.link_bytes_per_s = expert_bytes * 4'000;  // 0.25 ms
  c.link_bytes_per_s_beside_host = expert_bytes * 2'500;
  c.host_bytes_per_s_beside_copies = expert_bytes * 6'000;
  c.activations_latency_ns = 2'100;
  c.activations_bytes_per_s = 50'000'000;
  c.link_latency_ns = 1'234;
  c.layer_ns = 5'000;
  c.work = {{expert_bytes * 2, 60'000, 30'000, 512}};
  return c;
}

bool same(const Span& a, const Span& b) {
  return a.lane == b.lane && std::strcmp(a.name, b.name) == 0 && a.begin_ns == b.begin_ns && a.end_ns == b.end_ns &&
         a.has_expert == b.has_expert && a.what == b.what && a.ticket == b.ticket;
}

/// One stack on a model, run and recorded on the virtual clock, and the same in simulation from what was recorded.
/// 5 prompts in groups of 2: the last group has one.
void check_simulated(CpuModel& m, const std::string& name, const StackInfo& info, std::uint32_t batch) {
  CAPTURE(name);
  CAPTURE(info.name);
  CAPTURE(batch);
  m.add_precisions(info.precisions);
  const ModelShape shape = model_shape(m.config(), m.store(), 40);
  RunnerOptions o;
  o.stack = info.name;
  o.max_rows = 40;
  o.budget_bytes = shape.all_bytes() / 4;
  o.virtual_costs = varied_costs(m.store().layout().bytes());
  if (batch == 2) o.virtual_costs->prefetch_chunk_bytes = m.store().layout().bytes() / 3;
  o.log = true;
  const auto runner = make_runner(m, o);
  Recorder recorder(*runner, m, 3);
  GenerateOptions g;
  g.prompts = prompts();
  if (batch == 2) g.prompts.insert(g.prompts.end(), {"The ferry", "A"});
  g.batch = batch;
  g.max_new_tokens = 9;
  g.prefill_chunk = 40;
  const Generated made = generate(m, recorder, g);
  const auto trace = recorder.take(name);

  SimulateOptions s;
  static_cast<StackOptions&>(s) = o;
  s.batch = batch;
  s.prefill_chunk = 40;
  s.log = true;
  const Simulated simulated = simulate(trace->trace, *o.virtual_costs, s);
  CHECK(simulated.finished);
  const RunnerStatistics real = runner->statistics();
  CHECK(std::memcmp(&simulated.counters, &real.counters, sizeof(Counters)) == 0);
  CHECK(simulated.phase[1].tokens == made.decode_tokens);
  CHECK(simulated.phase[0].tokens == made.prefill_tokens);
  CHECK(simulated.arena_bytes == real.arena_bytes);
  const std::vector<Span> there = runner->link_spans();
  REQUIRE(simulated.spans.size() == there.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < there.size(); ++i) different += same(simulated.spans[i], there[i]) ? 0 : 1;
  CHECK(different == 0);
  for (std::uint16_t l = 0; l < shape.layers && !real.accuracy.empty(); ++l) {
    const Accuracy a = real.accuracy[0][l], b = simulated.accuracy[0][l];
    CHECK(a.predicted == b.predicted);
    CHECK(a.needed == b.needed);
  }
}

}  // namespace

TEST_CASE("a simulated stack does what the engine does on the virtual clock, to the nanosecond") {
  for (const std::string name : {"tiny-qwen-moe", "tiny-mixtral"}) {
    if (quick() && name == "tiny-mixtral") continue;
    std::uint32_t number = 0;
    for (const StackInfo& info : all_stacks()) {
      if (quick() && number++ % 3 != 0) continue;
      for (const std::uint32_t batch : {1U, 2U}) {
        if (quick() && batch == 1) continue;
        check_simulated(model(name), name, info, batch);
      }
    }
  }
}

TEST_CASE("the same where experts are chosen by other scores than weigh them, and where layers differ") {
  for (const std::string family : {"deepseek_v2", "deepseek_v3", "glm4_moe", "phimoe", "hunyuan_layers"}) {
    CpuModel m(test::golden_file("zoo") / family);
    for (const StackInfo& info : all_stacks()) {
      if (!quick() || info.keeps_every_bit()) check_simulated(m, family, info, 2);
    }
  }
}

TEST_CASE("stacks whose decisions do not depend on arrival times do the same on the host thread as in virtual time" *
          doctest::test_suite("threads")) {
  CpuModel& m = model("tiny-qwen-moe");
  const std::uint64_t expert = m.store().layout().bytes(), all = expert * m.config().layers * m.config().experts;
  for (const std::string stack : {"resident-int4", "on-demand", "lru", "static-host", "importance+ce", "importance+er",
                                  "hobbit+dynamic"}) {  // no prefetch, no measured costs
    if (quick() && stack != "lru" && stack != "static-host" && stack != "hobbit+dynamic") continue;
    for (const std::uint32_t batch : {1U, 3U}) {
      if (quick() && batch == 1) continue;
      CAPTURE(stack);
      CAPTURE(batch);
      m.add_precisions(find_stack(stack).precisions);
      RunnerOptions o;
      o.stack = stack;
      o.max_rows = 48;
      o.budget_bytes = all / 4;
      o.link_bytes_per_s = expert * 20'000;
      Counters counters[2];
      std::vector<std::string> text[2];
      for (int thread = 0; thread < 2; ++thread) {
        o.virtual_costs.reset();
        if (thread == 0) o.virtual_costs = varied_costs(expert);
        const auto runner = make_runner(m, o);
        GenerateOptions g;
        g.prompts = prompts();
        g.batch = batch;
        g.max_new_tokens = quick() ? 4 : 16;
        g.prefill_chunk = 48;
        text[thread] = generate(m, *runner, g).text;
        counters[thread] = runner->statistics().counters;
      }
      CHECK(text[0] == text[1]);
      CHECK(std::memcmp(&counters[0], &counters[1], sizeof(Counters)) == 0);
    }
  }
}

TEST_CASE("clairvoyance: perfect prediction names what is asked for, Belady is no worse than LRU") {
  CpuModel& m = model("tiny-qwen-moe");
  const std::uint64_t expert = m.store().layout().bytes(), all = expert * m.config().layers * m.config().experts;
  RunnerOptions o;
  o.stack = "resident";
  const auto runner = make_runner(m, o);
  RecordOptions r;
  r.window = 64;
  r.prompt = 8;
  const auto trace = record_text(m, *runner, "tiny-qwen-moe", prompts()[0] + prompts()[1] + prompts()[2], r);
  CHECK(trace->trace.sequences() > 3);
  CHECK(trace->token_ids.size() == trace->trace.tokens);
  const Costs costs = varied_costs(expert);
  SimulateOptions s;
  s.stack = "lru";
  s.budget_bytes = all / 4;
  const Simulated lru = simulate(trace->trace, costs, s);
  s.knows = Clairvoyance::demand;
  const Simulated belady = simulate(trace->trace, costs, s);
  s.knows = Clairvoyance::prediction;
  const Simulated predicted = simulate(trace->trace, costs, s);
  const auto decode = static_cast<unsigned>(Phase::decode);
  CHECK(belady.counters.phase[decode].hits > lru.counters.phase[decode].hits);
  CHECK(predicted.counters.prefetch.accuracy.recall() == 1.0);
  CHECK(predicted.phase[decode].total < lru.phase[decode].total);
  s.knows = Clairvoyance::both;
  const Simulated knowing = simulate(trace->trace, costs, s);
  CHECK(knowing.counters.prefetch.accuracy.recall() == 1.0);
  CHECK(knowing.phase[decode].total < predicted.phase[decode].total);
  CHECK(knowing.phase[decode].total < belady.phase[decode].total);
  // A stack that predicts keeps what is not clairvoyant: its predictor, or its cache.
  s.stack = "cross-layer-lru";
  s.knows = Clairvoyance::cache;
  CHECK(simulate(trace->trace, costs, s).counters.prefetch.accuracy.needed > 0);
  for (const char* stack : {"hobbit", "fate", "importance-driven"}) {
    s.stack = stack;
    CHECK_THROWS_AS(simulate(trace->trace, costs, s), NoFuture);
  }
  s.stack = "on-demand";
  CHECK_THROWS_AS(simulate(trace->trace, costs, s), NoFuture);
  s.stack = "lru";
  s.knows = Clairvoyance::none;
  s.max_tokens = 20;
  const Simulated cut = simulate(trace->trace, costs, s);
  CHECK(cut.finished);
  CHECK(cut.phase[0].tokens + cut.phase[1].tokens == 20);
}

namespace {

/// The two extremes that a parameter allows, and a value in between.
std::vector<Json> far_apart(const Parameter& p) {
  if (const auto* number = std::get_if<Parameter::Number>(&p.values)) {
    return {number->least, (number->least + number->most) / 2, number->most};
  }
  if (const auto* whole = std::get_if<Parameter::Whole>(&p.values)) {
    return {whole->least, std::min(whole->most, 8U), whole->most};
  }
  if (const auto* one = std::get_if<Parameter::OneOf>(&p.values)) return {one->values.begin(), one->values.end()};
  if (std::holds_alternative<Parameter::Thousandths>(p.values))
    return {Json::array({1000U, 0U, 0U, 0U}), Json::array({0U, 1000U, 0U, 0U})};
  std::vector<Json> words;
  for (const auto& [word, value] : std::get<Parameter::Words>(p.values).values) words.emplace_back(word);
  return words;
}

/// What a stack did and how long it took.
std::string done(const Simulated& s) {
  std::string all;
  for (const unsigned phase : {0U, 1U}) {
    const Outcomes& o = s.counters.phase[phase];
    all += fmt::format("{} {} {} {} {} {} {} {} ", o.hits, o.late_hits, o.misses, o.substituted, o.skipped,
                       o.host_computed, o.bytes, s.phase[phase].total);
  }
  return all;
}

}  // namespace

TEST_CASE("every parameter that a stack takes changes what the stack does") {
  ModelFacts facts = read_shape("qwen1.5-moe-a2.7b");
  facts.model.layers = 6;
  facts.model.experts = 32;
  facts.model.top_k = 4;
  SyntheticOptions wanted;
  wanted.sequences = 3;
  wanted.prompt = wanted.tokens = 48;
  wanted.ahead = 4;
  const auto trace = synthesize(facts, wanted);
  // A layer hides some copies on this link.
  const Costs costs = read_machine("rtx3090-pcie3").costs(trace->work, CostSource::effective);
  for (const StackInfo& stack : all_stacks()) {
    CAPTURE(stack.name);
    for (const Parameter& p : all_parameters()) {
      if (!takes_parameter(stack.name, p.member(), PoolChoice::stack)) continue;
      CAPTURE(p.name);
      std::set<std::string> different;
      for (const std::uint32_t percent : {30U, 60U, 95U}) {
        for (const Json& value : far_apart(p)) {
          SimulateOptions o;
          o.stack = stack.name;
          o.budget_bytes = trace->trace.model.all_bytes() * percent / 100;
          o.batch = 2;
          o.bounds = false;
          if (p.name == "low-bits") o.high_bits = 8;
          if (p.name == "high-bits") o.low_bits = 2;
          if (p.name == "t1") o.t2 = 1.0F;
          if (p.name == "t2") o.t1 = 0.0F;
          REQUIRE(p.set(o, value));
          try {
            different.insert(done(simulate(trace->trace, costs, o)));
          } catch (const ConfigError&) {  // two values that do not go together
          }
        }
        if (different.size() > 1) break;
        different.clear();
      }
      CHECK(different.size() > 1);
    }
  }
}
