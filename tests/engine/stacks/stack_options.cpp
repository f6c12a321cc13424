// What is said of stacks, against what their types are; and which parameters they take.
#include "stacks/stack_options.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <set>

#include "ferry/error.hpp"
#include "ferry/stack_traits.hpp"
#include "stacks/parameters.hpp"
#include "stacks/stack_config.hpp"
#include "stacks/stack_table.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

/// Whether what a stack lays out in a budget is within it.
struct Budgets {
  test::Random random{3};
  std::uint32_t laid_out = 0;

  template <class Stack>
  void stack(const char* name) {
    CAPTURE(name);
    for (int turn = 0; turn < 60; ++turn) {
      const auto layers = static_cast<std::uint16_t>(random.between(1, 3));
      const auto experts = static_cast<std::uint16_t>(random.between(1, 20));
      const auto top_k = static_cast<std::uint16_t>(random.between(1, std::min<std::uint32_t>(experts, 4)));
      CoreConfig<Stack> config;
      config.model = test::model(layers, experts, top_k, 4, 256, 128);
      config.model.expert_bytes[0][static_cast<unsigned>(Precision::int2)] = 64;
      const std::uint64_t budget = config.model.all_bytes() * random.between(1, 110) / 100;
      try {
        Stack::set_up(config, budget);
        config.validate();
      } catch (const ConfigError&) {
        continue;  // too small
      }
      ++laid_out;
      CAPTURE(layers);
      CAPTURE(experts);
      CHECK(config.allotment.bytes() <= budget);
    }
  }
  template <Precision p>
  void resident(const char* /*name*/) {}
};

/// All of StackInfo that can be derived from a type, which is everything but its description.
struct TypeTable {
  std::vector<StackInfo> rows;

  template <class Stack>
  void stack(const char* name) {
    StackInfo info;
    info.name = name;
    CoreConfig<Stack> config;
    config.model = test::model(4, 8, 2, 4, 256, 128);
    config.model.expert_bytes[0][static_cast<unsigned>(Precision::int2)] = 64;
    Stack::set_up(config, config.model.all_bytes() / 2);
    info.precisions = stacks::held_precisions(config);
    constexpr ferry::StackTraits traits = ferry::traits_of<Stack>();
    info.lossless = std::has_single_bit(info.precisions.bits) && !traits.substitutes && !traits.skips;
    if (ferry::part::caches<typename Stack::cache>()) info.parameters.emplace_back(&StackOptions::pools);
    auto add = [&all = info.parameters](auto member, auto& /*to*/) {
      const ParameterMember p = member;  // a router and a predictor may share one
      if (std::find(all.begin(), all.end(), p) == all.end()) all.push_back(p);
    };
    engine::part::each_parameter(config, add);
    if constexpr (requires { typename Stack::Layout; }) {
      typename Stack::Layout layout;
      engine::part::each_layout_parameter(layout, add);
    }
    rows.push_back(std::move(info));
  }
  template <Precision p>
  void resident(const char* name) {
    StackInfo info;
    info.name = name;
    info.keeps_everything = info.lossless = true;
    info.precisions = p;
    rows.push_back(std::move(info));
  }
};

std::string in_words(Precision p) {
  return p == Precision::full ? "the model's own" : std::to_string(1U << static_cast<unsigned>(p));
}
std::string in_words(bool yes) {
  return yes ? "yes" : "no";
}
std::string in_words(std::uint32_t number) {
  return number == 0xffffffffU ? "no limit" : std::to_string(number);
}
std::string in_words(float number) {
  return fmt::format("{}", number);
}
std::string in_words(PlacementRule /*rule*/) {
  return "the stack's";
}
template <class Weights>
requires requires(Weights w) {
  w.fld;
}
std::string in_words(const Weights& w) {
  return fmt::format("{},{},{},{}", w.lru, w.lfu, w.lhu, w.fld);
}

/// Checks that help says which value each stack takes where a parameter is not given.
struct Unset {
  template <class Stack>
  void stack(const char* name) {
    CAPTURE(name);
    CoreConfig<Stack> config;
    config.model = test::model(4, 8, 2, 4, 256, 128);
    config.model.expert_bytes[0][static_cast<unsigned>(Precision::int2)] = 64;
    Stack::set_up(config, config.model.all_bytes() / 2);
    const auto check = [&](auto member, const auto& value) {
      const Parameter& p = parameter_of(member);
      CAPTURE(p.name);
      // "3, for moe-infinity 1"
      const std::string own = fmt::format(", for {} ", name);
      const std::size_t at = p.unset.find(own);
      std::string said =
          at == std::string::npos ? p.unset.substr(0, p.unset.find(", for ")) : p.unset.substr(at + own.size());
      if (said.ends_with('%')) said.pop_back();
      CHECK(said == in_words(value));
    };
    engine::part::each_parameter(config, check);
    if constexpr (requires { typename Stack::Layout; }) {
      typename Stack::Layout layout;
      engine::part::each_layout_parameter(layout, check);
    }
  }
  template <Precision p>
  void resident(const char* /*name*/) {}
};

std::string names(const std::vector<ParameterMember>& parameters) {
  std::vector<std::string> all;
  for (const ParameterMember& p : parameters) all.push_back(parameter_of(p).name);
  std::sort(all.begin(), all.end());
  return fmt::format("{}", fmt::join(all, ", "));
}

TEST_CASE("the table of stacks has a row for each type, and says of it what it is") {
  TypeTable types;
  each_baseline_stack(types);
  each_own_stack(types);
  each_fate_stack(types);
  each_hobbit_stack(types);
  each_importance_stack(types);
  REQUIRE(types.rows.size() == all_stacks().size());
  for (std::size_t i = 0; i < types.rows.size(); ++i) {
    const StackInfo &type = types.rows[i], &said = all_stacks()[i];
    CAPTURE(type.name);
    CHECK(said.name == type.name);
    CHECK(said.lossless == type.lossless);
    CHECK(said.keeps_everything == type.keeps_everything);
    CHECK(said.precisions.bits == type.precisions.bits);
    CHECK(names(said.parameters) == names(type.parameters));
    CHECK(said.what[0] != '\0');
  }
}

TEST_CASE("every stack stays within its budget, of the smallest models, too") {
  Budgets budgets;
  each_baseline_stack(budgets);
  each_own_stack(budgets);
  each_fate_stack(budgets);
  each_hobbit_stack(budgets);
  each_importance_stack(budgets);
  CHECK(budgets.laid_out > 500);
}

TEST_CASE("every parameter has one row, one member and stacks that take it") {
  std::set<std::string> seen;
  for (const Parameter& p : all_parameters()) {
    CAPTURE(p.name);
    CHECK(seen.insert(p.name).second);
    CHECK(&parameter_of(p.member()) == &p);
    CHECK(&find_parameter(p.name, "") == &p);
    CHECK(p.flag() == "--" + p.name);
    for (const std::string& text : {p.unset, p.what, p.expected(), p.range()}) CHECK(!text.empty());
    CHECK(std::any_of(all_stacks().begin(), all_stacks().end(),
                      [&](const StackInfo& s) { return takes_parameter(s.name, p.member(), PoolChoice::stack); }));
  }
}

TEST_CASE("help says what each stack takes where a parameter is not given") {
  Unset unset;
  each_baseline_stack(unset);
  each_own_stack(unset);
  each_fate_stack(unset);
  each_hobbit_stack(unset);
  each_importance_stack(unset);
}

TEST_CASE("pools of a user's choice take a stack's own shallow layers away, and bring their own") {
  const ParameterMember shallow = &StackOptions::shallow_layers;
  for (const PoolChoice pools : {PoolChoice::stack, PoolChoice::per_layer, PoolChoice::one, PoolChoice::shallow}) {
    const bool own = pools == PoolChoice::stack, chosen = pools == PoolChoice::shallow;
    CHECK(takes_parameter("fate", shallow, pools) == (own || chosen));
    CHECK(takes_parameter("lru", shallow, pools) == chosen);
    CHECK(!takes_parameter("on-demand", shallow, pools));
    CHECK(!takes_parameter("resident", shallow, pools));
    CHECK(takes_parameter("hobbit", &StackOptions::low_pool_percent, pools) == own);
    CHECK(takes_parameter("fate", &StackOptions::percentile, pools));
    CHECK(!takes_parameter("fate", &StackOptions::t1, pools));
  }
  CHECK_THROWS_AS(takes_parameter("fats", shallow, PoolChoice::stack), InputError);
}

TEST_CASE("parameters that do not fit each other are refused") {
  StackOptions o;
  o.stack = "hobbit";
  o.t1 = 0.5F;
  CHECK_NOTHROW(check_parameters(o));
  o.t2 = 0.5F;
  CHECK_NOTHROW(check_parameters(o));
  o.t1 = 0.6F;
  CHECK_THROWS_WITH_AS(check_parameters(o), "parameter \"t1\": expected at most t2, 0.5, got 0.6", ConfigError);
  o.t1 = 0.4F;
  o.low_bits = 8;
  CHECK_NOTHROW(check_parameters(o));
  o.high_bits = 8;
  CHECK_THROWS_WITH_AS(check_parameters(o), doctest::Contains("fewer bits for low than for high"), ConfigError);
  o.low_bits.reset();  // INT4
  CHECK(precisions_for(o).bits == (Precision::int8 | Precision::int4).bits);
  o.high_bits = 4;
  CHECK_THROWS_AS(precisions_for(o), ConfigError);
  o.high_bits = 5;
  CHECK_THROWS_WITH_AS(precisions_for(o), "--high-bits 5: expected 2, 4 or 8", InputError);
  o.stack = "lru";  // has no pair
  CHECK(precisions_for(o).bits == PrecisionSet(Precision::full).bits);
}

TEST_CASE("a stack that copies the model's own precision where all fits keeps what it is given") {
  const std::uint64_t all = 1000;
  for (const char* name : {"fate", "activation-path", "lru-int4"}) {
    CAPTURE(name);
    StackOptions o;
    o.stack = name;
    o.budget_bytes = all - 1;
    CHECK(precisions_for(o, all).bits == precisions_for(o).bits);
    o.budget_bytes = all;
    const bool turns = o.stack != "lru-int4";
    CHECK(precisions_for(o, all).bits == (turns ? PrecisionSet(Precision::full) : precisions_for(o)).bits);
    CHECK(precisions_for(o, 0).bits == precisions_for(o).bits);  // nobody knows
  }
  StackOptions o;
  o.stack = "fate";
  o.budget_bytes = 2 * all;
  o.high_bits = 8;
  CHECK(chooses_precisions(o));
  CHECK(precisions_for(o, all).bits == (Precision::int8 | Precision::int2).bits);
}

TEST_CASE("bits have their precision") {
  CHECK(precision_of_bits(2) == Precision::int2);
  CHECK(precision_of_bits(4) == Precision::int4);
  CHECK(precision_of_bits(8) == Precision::int8);
  for (const std::uint32_t bits : {0U, 1U, 3U, 16U}) CHECK_THROWS_AS(precision_of_bits(bits), InputError);
}

}  // namespace
