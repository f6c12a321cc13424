#include "ferry/trace/trace.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <limits>

using namespace ferry;

namespace {

/// Two layers of four experts, top-2; three sequences: prompt of 3 and 2 tokens, 1 token of decode; decode only, of 1
/// token; a prompt of 2 and nothing more.
struct Small {
  std::vector<std::uint32_t> starts = {0, 5, 6};
  std::vector<std::uint8_t> phase = {0, 0, 0, 1, 1, 1, 0, 0};
  std::vector<std::uint8_t> experts;
  std::vector<float> weights, scores, choice_scores, predicted, partial;
  Trace trace;

  Small() {
    for (std::uint8_t token = 0; token < 8; ++token) {
      for (std::uint8_t layer = 0; layer < 2; ++layer) {
        experts.push_back(static_cast<std::uint8_t>((token + layer) % 4));
        experts.push_back(static_cast<std::uint8_t>((token + layer + 1) % 4));
      }
    }
    for (int i = 0; i < 32; ++i) weights.push_back(static_cast<float>(i));
    for (int i = 0; i < 64; ++i) scores.push_back(static_cast<float>(i));
    for (int i = 0; i < 128; ++i) predicted.push_back(static_cast<float>(i));
    for (int i = 0; i < 64; ++i) partial.push_back(static_cast<float>(-i));
    trace.name = "small";
    trace.model.layers = 2;
    trace.model.experts = 4;
    trace.model.top_k = 2;
    trace.model.renormalise = Renormalise::yes;
    trace.model.expert_bytes = {ExpertBytes{0, 0, 0, 0, 64}};
    trace.tokens = 8;
    view();
  }
  void view() {
    trace.sequence_start = starts;
    trace.phase = phase;
    trace.experts8 = experts;
    trace.weights = weights;
    trace.scores = scores;
    trace.choice_scores = choice_scores;
    trace.ahead = 2;
    trace.predicted = predicted;
    trace.partial = partial;
  }
  std::string refusal() {
    view();
    try {
      trace.validate();
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  }
};

struct Rows {
  Phase phase;
  std::vector<std::uint32_t> tokens, sequences;
  std::uint32_t ended;
  bool operator==(const Rows&) const = default;
};

std::vector<Rows> steps_of(const Trace& trace, std::uint32_t batch, std::uint32_t chunk) {
  std::vector<Rows> all;
  TraceSteps steps(trace, batch, chunk);
  while (steps.next()) {
    const auto tokens = steps.tokens(), sequences = steps.sequences();
    all.push_back({steps.phase(), {tokens.begin(), tokens.end()}, {sequences.begin(), sequences.end()}, steps.ended()});
  }
  return all;
}

constexpr Phase prefill = Phase::prefill, decode = Phase::decode;

}  // namespace

TEST_CASE("a trace finds its cells where the shapes say") {
  Small s;
  CHECK(s.refusal().empty());
  // Token 3, layer 1 is cell 7 of [tokens, layers]: experts at 14 and 15, scores from 28, predictions from (7 * 2) * 4.
  CHECK(s.trace.expert(3, 1, 0) == 0);
  CHECK(s.trace.expert(3, 1, 1) == 1);
  CHECK(s.trace.weight(3, 1, 1) == 15.0F);
  CHECK(s.trace.scores_of(3, 1)[2] == 30.0F);
  CHECK(s.trace.predicted_of(3, 1, 1)[0] == 56.0F);
  CHECK(s.trace.predicted_of(3, 1, 2)[3] == 63.0F);
  CHECK(s.trace.partial_of(3, 1)[0] == -28.0F);
  CHECK(s.trace.sequences() == 3);
  CHECK(s.trace.sequence_end(0) == 5);
  CHECK(s.trace.sequence_end(2) == 8);
  CHECK(s.trace.phase_of(2) == prefill);
  s.trace.phase = {};
  s.trace.weights = {};
  CHECK(s.trace.phase_of(2) == decode);
  CHECK(s.trace.weight(3, 1, 1) == 0.5F);
  // Wide indices say the same.
  const std::vector<std::uint16_t> wide(s.experts.begin(), s.experts.end());
  s.trace.experts8 = {};
  s.trace.experts16 = wide;
  CHECK(s.trace.expert(3, 1, 1) == 1);
}

TEST_CASE("an expert that was not recorded is no expert, narrow or wide") {
  Small s;
  s.experts[0] = s.experts[1] = 0xff;
  CHECK(s.refusal().empty());  // a whole row of a prompt
  CHECK(s.trace.expert(0, 0, 0) == no_expert);
  s.experts[1] = 0;
  CHECK(s.refusal() == "trace: token 0, layer 0: 1 of 2 experts are missing");
  s.experts[1] = 1;
  s.experts[0] = 0;
  s.experts[14] = s.experts[15] = 0xff;  // token 3 is decode
  CHECK(s.refusal() == "trace: token 3, layer 1: 2 of 2 experts are missing");
}

TEST_CASE("a layer with a smaller k has experts up to that, and no others") {
  Small s;
  s.trace.model.layer_top_k = {2, 1};
  s.trace.model.layer_experts = {4, 3};
  CHECK(s.refusal() == "trace: token 0, layer 1: more than its 1 experts");
  for (std::size_t i = 3; i < s.experts.size(); i += 4) s.experts[i] = 0xff;
  CHECK(s.refusal() == "trace: token 2, layer 1: expert 3 of 3");
  s.experts[10] = s.experts[26] = 0;
  CHECK(s.refusal().empty());
  s.trace.weights = {};
  CHECK(s.trace.weight(3, 0, 0) == 0.5F);
  CHECK(s.trace.weight(3, 1, 0) == 1.0F);
  s.experts[14] = 0xff;
  CHECK(s.refusal() == "trace: token 3, layer 1: 1 of 1 experts are missing");
}

TEST_CASE("what a replay could stumble over is refused with its place") {
  const std::vector<std::pair<std::string, std::function<void(Small&)>>> cases = {
      {"trace: no tokens are recorded", [](Small& s) { s.trace.tokens = 0; }},
      {"trace: experts has 30 elements, expected 32", [](Small& s) { s.experts.resize(30); }},
      {"trace: weights has 31 elements, expected 32", [](Small& s) { s.weights.pop_back(); }},
      {"trace: scores has 65 elements, expected 64", [](Small& s) { s.scores.push_back(0); }},
      {"trace: choice_scores has 63 elements, expected 64", [](Small& s) { s.choice_scores.resize(63); }},
      {"trace: choice_scores has 64 elements, expected 0",
       [](Small& s) {
         s.choice_scores = s.scores;
         s.scores.clear();
       }},
      {"trace: predicted has 127 elements, expected 128", [](Small& s) { s.predicted.pop_back(); }},
      {"trace: partial has 1 elements, expected 64", [](Small& s) { s.partial.resize(1); }},
      {"trace: phase has 7 elements, expected 8", [](Small& s) { s.phase.pop_back(); }},
      {"trace: phase of token 4 is 2, expected 0 or 1", [](Small& s) { s.phase[4] = 2; }},
      {"trace: prefill after decode at token 4", [](Small& s) { s.phase[4] = 0; }},
      {"trace: sequence_start must begin with token 0", [](Small& s) { s.starts[0] = 1; }},
      {"trace: sequence_start must begin with token 0", [](Small& s) { s.starts.clear(); }},
      {"trace: sequence_start[2] is 5 after 5: expected ascending tokens below 8", [](Small& s) { s.starts[2] = 5; }},
      {"trace: sequence_start[2] is 8 after 5: expected ascending tokens below 8", [](Small& s) { s.starts[2] = 8; }},
      {"trace: token 7, layer 1: expert 4 of 4", [](Small& s) { s.experts[31] = 4; }},
      {"trace: token 7, layer 0: expert 3 stands twice", [](Small& s) { s.experts[29] = 3; }},
      {"trace: experts are both U8 and U16, expected one of the two",
       [](Small& s) {
         static const std::uint16_t wide[] = {0, 1};
         s.trace.experts16 = {wide, 2};
       }},
  };
  for (const auto& [sentence, damage] : cases) {
    Small s;
    damage(s);
    CHECK(s.refusal() == sentence);
  }
  Small s;
  s.trace.model.top_k = 5;
  CHECK(s.refusal() == "model shape: top_k is 5, expected 1 to 4 (experts)");
}

TEST_CASE("more than 255 experts need wide indices") {
  Small s;
  s.trace.model.experts = 256;
  s.scores.clear();
  s.predicted.clear();
  s.partial.clear();
  s.view();
  s.trace.ahead = 0;
  CHECK_THROWS_WITH_AS(s.trace.validate(), "trace: experts are U8, but the model has 256", ConfigError);
}

TEST_CASE("steps of one sequence after another") {
  const Small s;
  CHECK(steps_of(s.trace, 1, 128) == std::vector<Rows>{{prefill, {0, 1, 2}, {0, 0, 0}, 0},
                                                       {decode, {3}, {0}, 0},
                                                       {decode, {4}, {0}, 0},
                                                       {decode, {5}, {0}, 1},
                                                       {prefill, {6, 7}, {0, 0}, 1}});
}

TEST_CASE("prompts in chunks") {
  const Small s;
  const auto steps = steps_of(s.trace, 1, 2);
  CHECK(steps[0] == Rows{prefill, {0, 1}, {0, 0}, 0});
  CHECK(steps[1] == Rows{prefill, {2}, {0}, 0});
  CHECK(steps[2] == Rows{decode, {3}, {0}, 0});
}

TEST_CASE("a batch: prompts first, then in lockstep until the last has ended, then the next group") {
  Small s;
  CHECK(steps_of(s.trace, 2, 128) == std::vector<Rows>{{prefill, {0, 1, 2}, {0, 0, 0}, 0},
                                                       {decode, {3, 5}, {0, 1}, 0},
                                                       {decode, {4}, {0}, 0},
                                                       {prefill, {6, 7}, {0, 0}, 2}});
  CHECK(steps_of(s.trace, 8, 128) == std::vector<Rows>{{prefill, {0, 1, 2}, {0, 0, 0}, 0},
                                                       {prefill, {6, 7}, {2, 2}, 0},
                                                       {decode, {3, 5}, {0, 1}, 0},
                                                       {decode, {4}, {0}, 0}});
  TraceSteps steps(s.trace, 2, 2);
  for (const bool left : {true, false, false, false, false}) {  // 2 of 3 rows of a prompt, its last, ...
    REQUIRE(steps.next());
    CHECK(steps.has_prompts() == left);
  }
  CHECK_FALSE(steps.next());
  CHECK(steps.ended() == 1);  // the last group had one
  CHECK(steps.groups() == 2);
}

TEST_CASE("a batch or a chunk of nothing is refused") {
  const Small s;
  CHECK_THROWS_AS(TraceSteps(s.trace, 0, 1), ConfigError);
  CHECK_THROWS_AS(TraceSteps(s.trace, 1, 0), ConfigError);
}
