// Shape files: those that come with ferry, and what is refused in them.
#include "profiles/shape.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "engine/fixtures/tiny_shape.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

std::string refused_shape(const std::function<void(Json&)>& change) {
  Json shape = tiny_shape();
  change(shape);
  return refusal("tiny.json", [&] { read_tiny(shape); });
}

}  // namespace

TEST_CASE("every shape that comes with ferry can be used") {
  const auto names = shape_names();
  REQUIRE(names.size() >= 10);
  for (const std::string& name : names) {
    CAPTURE(name);
    const ModelFacts m = read_shape(name);
    CHECK(m.name == name);
    m.model.validate();
    CHECK(m.work.size() == 1);
    CHECK(m.work[0].dense_bytes > 0);
    CHECK(m.work[0].expert_operations > 0);
  }
  // Mixtral-8x7B: 3 matrices of 4096 x 14336, 2 bytes a weight; attention 41943040 weights, gate 4096 * 8.
  const ModelFacts m = read_shape("mixtral-8x7b");
  CHECK(m.model.layers == 32);
  CHECK(m.model.experts == 8);
  CHECK(m.model.bytes(0, Precision::full) == 3ULL * 4096 * 14336 * 2);
  CHECK(m.work[0].dense_bytes == 2ULL * (41943040 + 4096 * 8));
  CHECK(m.work[0].dense_operations == 2ULL * (41943040 + 4096 * 8));
  CHECK(m.work[0].expert_operations == 6ULL * 4096 * 14336);
  // 4.25 bits a weight. With 8 bytes for each group of 64 weights, ferry's own 8, 4 and 2 bits are 9, 5 and 3: only the
  // last is smaller.
  const ModelFacts small = read_shape("gpt-oss-20b");
  CHECK(small.model.bytes(0, Precision::full) == 3ULL * 2880 * 2880 * 17 / 32);
  CHECK(small.model.bytes(0, Precision::int8) == 0);
  CHECK(small.model.bytes(0, Precision::int4) == 0);
  CHECK(small.model.bytes(0, Precision::int2) == 3ULL * 2880 * 2880 * 3 / 8);
}

TEST_CASE("a shape of the user's own is read by path, and a damaged one names the field") {
  const ModelFacts m = read_tiny();
  CHECK(m.name == "tiny");
  CHECK(m.model.renormalises());
  // 3 * 64 * 64 weights at 16 bits; 1000 + 64 * 4 dense ones.
  CHECK(m.model.expert_bytes == std::vector<ExpertBytes>{{0, 4608, 7680, 13824, 24576}});
  CHECK(m.work[0].dense_bytes == 2512);
  Json shape = tiny_shape();
  shape["shared_width"] = 10;  // three matrices of 64 x 10 more: 1920 weights
  shape["dense_bits_per_weight"] = 4.5;
  CHECK(read_tiny(shape).work[0].dense_bytes == 1787);  // (1256 + 1920) * 4.5 / 8 = 1786.5
  const Json whole = tiny_shape();
  for (const auto& entry : whole.items()) {
    const std::string name = entry.key();
    CHECK(says(refused_shape([&](Json& j) { j.erase(name); }), {"field \"" + name + "\" is missing"}));
    CHECK(
        says(refused_shape([&](Json& j) { j[name] = Json::array(); }), {"field \"" + name + "\": expected", "got []"}));
    CHECK(says(refused_shape([&](Json& j) { j[name] = -1; }), {"field \"" + name + "\": expected", "got -1"}));
  }
  CHECK(says(refused_shape([](Json& j) { j["layers"] = 0; }), {"\"layers\"", "from 1 to 65535"}));
  CHECK(says(refused_shape([](Json& j) { j["top_k"] = 5; }), {"\"top_k\"", "from 1 to 4"}));
  CHECK(
      says(refused_shape([](Json& j) { j["renormalize"] = false; }), {"\"renormalize\" is not known", "renormalise"}));
  CHECK(says(refused_shape([](Json& j) { j["bits_per_weight"] = 65; }), {"\"bits_per_weight\"", "at most 64"}));
  CHECK(says(refused_shape([](Json& j) { j["bits_per_weight"] = 0; }), {"\"bits_per_weight\"", "above 0"}));
  CHECK(says(refused_shape([](Json& j) { j["dense_bits_per_weight"] = 1e300; }), {"\"dense_bits_per_weight\""}));
  CHECK(says(refused_shape([](Json& j) { j["hidden"] = 1 << 21; }), {"\"hidden\"", "1048576"}));
  CHECK(says(refused_shape([](Json& j) { j["renormalise"] = 1; }), {"\"renormalise\"", "true or false"}));
  CHECK(says(refused_shape([](Json& j) { j = Json::array(); }), {"expected a JSON object"}));
  CHECK(says(refusal("model shape", [] { read_shape("mixtral-8x7"); }), {"did you mean \"mixtral-8x7b\"?"}));
  CHECK(says(refusal("/nowhere/m.json", [] { read_shape("/nowhere/m.json"); }), {"cannot open"}));
  const TemporaryFolder folder;
  write_file(folder.path() / "cut.json", tiny_shape().dump().substr(0, 50));
  CHECK(says(refusal("cut.json", [&] { read_shape((folder.path() / "cut.json").string()); }), {"parse error"}));
}

TEST_CASE("where layers differ, the mean expert is that of all experts") {
  ModelShape m;
  m.layers = 2;
  m.experts = 3;
  m.layer_experts = {3, 1};
  m.expert_bytes = {{0, 10, 0, 0, 100}, {0, 0, 0, 0, 200}};
  CHECK(mean_expert_bytes(m, Precision::full) == 125);
  CHECK(mean_expert_bytes(m, Precision::int2) == 0);
  m.layer_experts.clear();
  m.expert_bytes = {{0, 10, 0, 0, 100}};
  CHECK(mean_expert_bytes(m, Precision::full) == 100);
  CHECK(mean_expert_bytes(m, Precision::int2) == 10);
}
