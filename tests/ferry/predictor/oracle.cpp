#include "ferry/predictor/oracle.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "support/policies.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// Two layers, three steps; the second layer of the second step asks for nothing.
const std::vector<ExpertId> asked = {{0, 3}, {0, 1}, {1, 2}, {0, 0}, {0, 2}, {1, 5}, {1, 4}};
const std::vector<std::uint32_t> starts = {0, 2, 3, 4, 4, 5, 7};

Oracle knowing(const std::vector<ExpertId>& experts, const std::vector<std::uint32_t>& at) {
  Oracle o;
  o.asked = {experts.data(), static_cast<std::uint32_t>(experts.size())};
  o.starts = {at.data(), static_cast<std::uint32_t>(at.size())};
  return o;
}

std::vector<int> predict(Placed<Oracle>& p, std::uint16_t layer) {
  Request memory[8];
  Out<Request> out{memory, 8, 0};
  p->predict(Phase::decode, {layer, {}, {}}, out);
  std::vector<int> e;
  for (const Request& r : out.view()) {
    CHECK(r.want.id.layer == layer);
    CHECK(r.confidence == 1.0F);
    CHECK(r.rows == 1);
    e.push_back(r.want.id.expert);
  }
  return e;
}

const char* refusal(const std::vector<ExpertId>& experts, const std::vector<std::uint32_t>& at) {
  static std::string text;
  text.clear();
  try {
    Placed<Oracle> p(Shape{2, 6, 2, 1}, knowing(experts, at));
  } catch (const ConfigError& e) {
    text = e.what();
  }
  return text.c_str();
}

using List = std::vector<int>;

}  // namespace

TEST_CASE("the oracle names what the layer will ask for: in this step if it is still to come, else in the next") {
  static_assert(part::rows_of<Oracle>(Phase::prefill) == RowSource::none);
  Placed<Oracle> p(Shape{2, 6, 2, 1}, knowing(asked, starts));
  CHECK(predict(p, 0) == List{3, 1});  // before the first step
  p->begin_step(StepOf(Phase::decode, 1));
  CHECK(predict(p, 0) == List{3, 1});
  CHECK(predict(p, 1) == List{2});
  p->observe(0, {}, {});
  CHECK(predict(p, 1) == List{2});
  CHECK(predict(p, 0) == List{0});  // two layers ahead, which is in the next step
  p->observe(1, {}, {});
  CHECK(predict(p, 0) == List{0});
  CHECK(predict(p, 1) == List{});
  p->begin_step(StepOf(Phase::decode, 1));
  p->observe(0, {}, {});
  CHECK(predict(p, 1) == List{});
  CHECK(predict(p, 0) == List{2});
  p->begin_step(StepOf(Phase::decode, 1));
  p->observe(0, {}, {});
  CHECK(predict(p, 1) == List{5, 4});
  p->observe(1, {}, {});
  CHECK(predict(p, 0) == List{});  // the end of the list
  CHECK(predict(p, 1) == List{});
  p->begin_step(StepOf(Phase::decode, 1));
  CHECK(predict(p, 0) == List{});
}

TEST_CASE("behind the last step the oracle does not read what lies behind its list") {
  // In memory full of ones, where an offset beyond the last would be the end of a very long list.
  const Oracle told = knowing(asked, starts);
  alignas(storage_alignment) static std::byte memory[4096];
  std::memset(memory, 0xff, sizeof(memory));
  auto* p = new (memory) Oracle(told);
  Carver carve(memory + (sizeof(Oracle) + storage_alignment - 1) / storage_alignment * storage_alignment);
  p->reserve(carve, Shape{2, 6, 2, 1});
  for (int step = 0; step < 4; ++step) p->begin_step(StepOf(Phase::decode, 1));
  Request named[8];
  Out<Request> out{named, 8, 0};
  p->predict(Phase::decode, {0, {}, {}}, out);
  p->predict(Phase::decode, {1, {}, {}}, out);
  CHECK(out.size == 0);
}

TEST_CASE("the oracle keeps no pointer to the list that it was given") {
  std::vector<ExpertId> list = asked;
  std::vector<std::uint32_t> at = starts;
  Placed<Oracle> p(Shape{2, 6, 2, 1}, knowing(list, at));
  list.assign(list.size(), {9, 9});
  at.assign(at.size(), 0);
  CHECK(p->asked.data == nullptr);
  CHECK(p->starts.data == nullptr);
  CHECK(predict(p, 0) == List{3, 1});
}

TEST_CASE("an oracle without a future predicts nothing") {
  Placed<Oracle> p(Shape{2, 6, 2, 1});
  CHECK(predict(p, 0) == List{});
  p->begin_step(StepOf(Phase::decode, 1));
  CHECK(predict(p, 1) == List{});
}

TEST_CASE("a future that is none is refused, with the place") {
  CHECK(refusal(asked, starts) == std::string());
  CHECK(refusal(asked, {0, 2, 7, 7}) ==
        std::string("Oracle: there are 4 starts, it must be one for each of the 2 layers of each step, and one more"));
  CHECK(refusal(asked, {}) ==
        std::string("Oracle: there are 0 starts, it must be one for each of the 2 layers of each step, and one more"));
  CHECK(refusal(asked, {0, 2, 6}) ==
        std::string("Oracle: starts run from 0 to 6, they must run from 0 to the 7 experts of the list"));
  CHECK(refusal(asked, {1, 2, 7}) ==
        std::string("Oracle: starts run from 1 to 7, they must run from 0 to the 7 experts of the list"));
  CHECK(refusal(asked, {0, 2, 3, 2, 7}) ==
        std::string("Oracle: starts go from 3 to 2 in layer 0 of step 1, they must ascend"));
  CHECK(refusal(asked, {0, 9, 7}) ==
        std::string("Oracle: starts go from 0 to 9 in layer 0 of step 0, they must ascend"));
  CHECK(
      refusal({{0, 1}, {0, 2}}, {0, 1, 2}) ==
      std::string("Oracle: expert 2 of layer 0 is listed in layer 1 of step 0, each layer must list its own, below 6"));
  CHECK(
      refusal({{0, 6}}, {0, 1, 1}) ==
      std::string("Oracle: expert 6 of layer 0 is listed in layer 0 of step 0, each layer must list its own, below 6"));
  CHECK(refusal({{0, 1}, {1, 4}, {1, 3}, {1, 4}}, {0, 1, 4}) ==
        std::string("Oracle: expert 4 is listed twice in layer 1 of step 0, list it once"));
  CHECK_THROWS_AS((Placed<Oracle>(Shape{1, 6, 2, 1}, knowing(asked, {}))), ConfigError);
  Oracle deep = knowing(asked, starts);
  deep.depth = 3;
  CHECK_THROWS_WITH_AS((Placed<Oracle>(Shape{2, 6, 2, 1}, deep)),
                       "Oracle: depth is 3, it must be 1 to the 2 layers of the model", ConfigError);
}
