// The table of parameters: which values it takes from files and flags, which it refuses, and where they are stored.
#include "stacks/parameters.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "support/errors.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

using Texts = std::vector<std::string>;

TEST_CASE("each parameter takes its values as a file and as the command line have them, and no others") {
  struct Case {
    std::vector<Texts> good;
    Texts as_json;  ///< of the good ones
    std::vector<Texts> bad;
    Texts bad_json;
  };
  const Case share = {{{"0"}, {"0.25"}, {"1"}, {"1e-1"}},
                      {"0.0", "0.25", "1.0", "0.1"},
                      {{"-0.1"}, {"1.01"}, {"nan"}, {"inf"}, {""}, {"half"}, {"0.5x"}, {"0.5", "0.6"}, {}},
                      {"-0.1", "1.01", "null", "\"0.5\"", "[0.5]", "{}", "true"}};
  const Case percentage = {{{"0"}, {"1%"}, {"0.5%"}, {"100"}},
                           {"0.0", "1.0", "0.5", "100.0"},
                           {{"-1%"}, {"101"}, {"nan"}, {"%"}, {"1%%"}, {"one%"}, {""}, {"1", "2"}},
                           {"-1", "101", "\"1%\"", "null", "[1]"}};
  const Case rate = {{{"0.001"}, {"150"}, {"1000000"}},
                     {"0.001", "150.0", "1000000.0"},
                     {{"0"}, {"-1"}, {"1000001"}, {"150%"}, {"nan"}, {""}},
                     {"0", "-1", "1000001", "\"150\"", "null"}};
  auto whole = [](std::uint32_t least, std::uint32_t most) {
    std::vector<Texts> bad = {{std::to_string(most + 1)}, {"-1"}, {"1.5"}, {"99999999999"}, {""}, {"many"}, {"2", "3"}};
    Texts bad_json = {std::to_string(most + 1), "-1", "1.5", "99999999999", "\"2\"", "[2]", "null"};
    if (least > 0) bad.push_back({std::to_string(least - 1)});
    return Case{{{std::to_string(least)}, {std::to_string(most)}},
                {std::to_string(least), std::to_string(most)},
                std::move(bad),
                std::move(bad_json)};
  };
  const Case bits = {
      {{"2"}, {"4"}, {"8"}}, {"2", "4", "8"}, {{"3"}, {"16"}, {"-2"}, {"4.0"}, {""}}, {"3", "16", "\"4\"", "4.5"}};
  const Case weights = {
      {{"700", "100", "100", "100"}, {"0", "0", "0", "1000"}},
      {"[700,100,100,100]", "[0,0,0,1000]"},
      {{"1000", "0", "0"}, {"1", "2", "3", "4"}, {"1001", "0", "0", "-1"}, {"1000"}, {"a", "b", "c", "d"}},
      {"[1000,0,0]", "[1000,0,0,0,0]", "[400,400,100,99]", "[1000,\"0\",0,0]", "[4294967295,1,1,1003]", "1000"}};
  const Case pools = {{{"stack"}, {"per-layer"}, {"one"}, {"shallow"}},
                      {"\"stack\"", "\"per-layer\"", "\"one\"", "\"shallow\""},
                      {{"two"}, {""}, {"1"}, {"One"}},
                      {"\"two\"", "1", "null", "[\"one\"]"}};
  const Case yes_or_no = {
      {{"yes"}, {"no"}}, {"\"yes\"", "\"no\""}, {{"true"}, {""}, {"1"}, {"yes", "no"}}, {"true", "1", "null"}};
  const Case placement = {{{"device"}, {"host"}, {"two-pointer"}, {"best-split"}},
                          {"\"device\"", "\"host\"", "\"two-pointer\"", "\"best-split\""},
                          {{"gpu"}, {""}, {"two_pointer"}},
                          {"\"best\"", "2", "null"}};
  const std::map<std::string, Case> cases = {{"pools", pools},
                                             {"low-pool", whole(0, 50)},
                                             {"low-on-miss", yes_or_no},
                                             {"transient-prefill-rows", whole(0, 1000000)},
                                             {"score-window", whole(1, 4096)},
                                             {"half-life", whole(1, 4096)},
                                             {"placement", placement},
                                             {"t1", share},
                                             {"t2", share},
                                             {"alpha", share},
                                             {"max-loss", percentage},
                                             {"loss-rate", rate},
                                             {"low-share", whole(0, 100)},
                                             {"low-bits", bits},
                                             {"high-bits", bits},
                                             {"cache-weights", weights},
                                             {"shallow-layers", whole(0, 65535)},
                                             {"percentile", whole(0, 100)},
                                             {"depth", whole(1, 4)}};
  CHECK(cases.size() == all_parameters().size());
  for (const Parameter& p : all_parameters()) {
    CAPTURE(p.name);
    REQUIRE(cases.contains(p.name));
    const Case& c = cases.at(p.name);
    for (std::size_t i = 0; i < c.good.size(); ++i) {
      CAPTURE(c.as_json[i]);
      const Json value = p.read(c.good[i]);
      CHECK(value.dump() == c.as_json[i]);
      StackOptions o;
      CHECK(p.set(o, value));
      CHECK_NOTHROW(set_parameters(o, {{p.name, Json::parse(c.as_json[i])}}, "here"));
      if (p.size() == 1) CHECK(p.read(value) == value);
      if (value.is_number()) CHECK(p.read(value.get<double>()) == value);
    }
    for (const Texts& bad : c.bad) {
      std::string said;
      try {
        static_cast<void>(p.read(bad));
      } catch (const InputError& e) {
        said = e.what();
      }
      std::string text;
      for (const std::string& word : bad) text += (text.empty() ? "" : ",") + word;
      CHECK(said == p.flag() + " " + text + ": expected " + p.expected());
    }
    for (const std::string& bad : c.bad_json) {
      CAPTURE(bad);
      StackOptions o;
      CHECK(!p.set(o, Json::parse(bad)));
      CHECK_THROWS_WITH_AS(
          set_parameters(o, {{p.name, Json::parse(bad)}}, "here"),
          doctest::Contains(("here: field \"" + p.name + "\": expected " + p.expected() + ", got ").c_str()),
          InputError);
    }
    CHECK_THROWS_AS(static_cast<void>(p.read(-1.0)), InputError);
    CHECK_THROWS_AS(static_cast<void>(p.read(1e10)), InputError);
    CHECK_THROWS_AS(static_cast<void>(p.read(std::nan(""))), InputError);
  }
}

TEST_CASE("each parameter goes to its own member") {
  StackOptions o;
  set_parameters(o, Json::parse(R"({"pools": "one", "t1": 0.1, "t2": 0.2, "alpha": 0.3, "low-share": 4, "low-bits": 2,
                                 "high-bits": 8, "cache-weights": [1, 2, 3, 994], "shallow-layers": 5,
                                 "percentile": 6, "depth": 3, "low-pool": 7, "low-on-miss": "yes",
                                 "transient-prefill-rows": 8, "score-window": 9, "max-loss": 2, "loss-rate": 70,
                                 "placement": "best-split"})"),
                 "here");
  CHECK(o.pools == PoolChoice::one);
  CHECK(o.t1 == 0.1F);
  CHECK(o.t2 == 0.2F);
  CHECK(o.alpha == 0.3F);
  CHECK(o.low_share_percent == 4U);
  CHECK(o.low_bits == 2U);
  CHECK(o.high_bits == 8U);
  CHECK(o.cache_weights == CacheWeights{1, 2, 3, 994});
  CHECK(o.shallow_layers == 5U);
  CHECK(o.percentile == 6U);
  CHECK(o.depth == 3U);
  CHECK(o.low_pool_percent == 7U);
  CHECK(o.low_on_miss == true);
  CHECK(o.transient_prefill_rows == 8U);
  CHECK(o.window == 9U);
  CHECK(o.max_loss == 2.0F);
  CHECK(o.loss_rate == 70.0F);
  CHECK(o.placement == PlacementChoice::best_split);
}

TEST_CASE("unknown parameters are refused with the nearest name") {
  StackOptions o;
  CHECK_THROWS_WITH_AS(set_parameters(o, {{"percentil", 75}}, "here"),
                       doctest::Contains("here: unknown parameter \"percentil\": did you mean \"percentile\"?"),
                       InputError);
  CHECK_THROWS_AS(set_parameters(o, Json::array(), "here"), InputError);
}

}  // namespace
