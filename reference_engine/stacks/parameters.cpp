#include "stacks/parameters.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "support/errors.hpp"
#include "support/suggest.hpp"

namespace ferry::engine {
namespace {

using O = StackOptions;
using Number = Parameter::Number;
using Whole = Parameter::Whole;
using OneOf = Parameter::OneOf;
using Thousandths = Parameter::Thousandths;
using Words = Parameter::Words;

template <class... Calls>
struct Either : Calls... {
  using Calls::operator()...;
};
template <class... Calls>
Either(Calls...) -> Either<Calls...>;

std::vector<Parameter> make_parameters() {
  const std::vector<std::uint32_t> packed = {2, 4, 8};
  const Words pools = {&O::pools,
                       {{"stack", PoolChoice::stack},
                        {"per-layer", PoolChoice::per_layer},
                        {"one", PoolChoice::one},
                        {"shallow", PoolChoice::shallow}}};
  const Words placement = {&O::placement,
                           {{"device", PlacementChoice::device},
                            {"host", PlacementChoice::host},
                            {"two-pointer", PlacementChoice::two_pointer},
                            {"best-split", PlacementChoice::best_split}}};
  return {
      {"pools", pools, "stack",
       "slots: as the stack's paper has them, a pool for each layer, one over all layers, or the shallow layers whole"},
      {"t1", Number{&O::t1}, "0.6", "HOBBIT: full precision up to this unimportance"},
      {"t2", Number{&O::t2}, "0.9", "HOBBIT: low precision up to this unimportance, skip above it"},
      {"alpha", Number{&O::alpha}, "0.3", "importance-driven: how far scores may be apart and still stand in"},
      {"low-share", Whole{&O::low_share_percent, 0, 100}, "30", "Fate: percent of a prefill's load that may be INT2"},
      {"low-bits", OneOf{&O::low_bits, packed}, "4, for fate 2", "HOBBIT, Fate: what unimportant experts shrink to"},
      {"high-bits", OneOf{&O::high_bits, packed}, "the model's own, for fate 4",
       "HOBBIT, Fate: what important experts have"},
      {"low-pool", Whole{&O::low_pool_percent, 0, 50}, "10", "HOBBIT: percent of the budget for low precision"},
      {"low-on-miss", Words{&O::low_on_miss, {{"yes", true}, {"no", false}}}, "no",
       "Fate: in decode, what was not predicted crosses in low precision"},
      {"transient-prefill-rows", Whole{&O::transient_prefill_rows, 0, 1000000}, "no limit, for llama-cache 32",
       "a step of a prompt with more rows than this evicts nothing"},
      {"score-window", Whole{&O::window, 1, 4096}, "16", "importance-driven: steps over which scores are averaged"},
      {"half-life", Whole{&O::half_life, 1, 4096}, "128",
       "ferry: steps after which what an expert saved counts half as much"},
      {"max-loss", Number{&O::max_loss, 0, 100, true}, "1%", "ferry-lossy: how many more bits may be needed"},
      {"loss-rate", Number{&O::loss_rate, 0.001, 1000000}, "150",
       "ferry-lossy: percent lost for a squared weight of 1 left out; ferry calibrate skipping finds it"},
      {"placement", placement, "the stack's",
       "who gets the misses of a decode step: the device, the host, or both by Algorithm 2 or by the best split"},
      {"cache-weights", Thousandths{&O::cache_weights}, "700,100,100,100",
       "HOBBIT: LRU,LFU,LHU,FLD in thousandths, 1000 in all"},
      {"shallow-layers", Whole{&O::shallow_layers, 0, 65535}, "4", "Fate: layers that are cached whole first"},
      {"percentile", Whole{&O::percentile, 0, 100}, "75", "Fate: prefetch experts above this percentile"},
      {"depth", Whole{&O::depth, 1, 4}, "3, for moe-infinity 1", "how many layers ahead to look"},
  };
}

template <class N>
Json read_number(const std::string& text) {
  N value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? Json(value) : Json(text);
}

std::optional<std::uint32_t> whole(const Json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > 0xffffffffU) return {};
  return value.get<std::uint32_t>();
}

template <class T>
std::vector<std::string> names_of(const std::vector<T>& rows) {
  std::vector<std::string> names;
  for (const T& row : rows) names.push_back(row.name);
  return names;
}

void assign(StackOptions& o, const ParameterMember& member, PoolChoice choice) {
  o.*std::get<PoolChoice O::*>(member) = choice;
}
template <class Choice>
void assign(StackOptions& o, const ParameterMember& member, Choice choice) {
  o.*std::get<std::optional<Choice> O::*>(member) = choice;
}

std::vector<std::string> words_of(const Words& w) {
  std::vector<std::string> words;
  for (const auto& [word, value] : w.values) words.push_back(word);
  return words;
}

}  // namespace

ParameterMember Parameter::member() const {
  return std::visit([](const auto& v) { return ParameterMember(v.member); }, values);
}

std::size_t Parameter::size() const {
  return std::holds_alternative<Thousandths>(values) ? CacheWeights{}.size() : 1;
}

std::string Parameter::expected() const {
  return std::visit(
      Either{[](const Number& v) {
               return fmt::format("a {} from {} to {}", v.percent ? "percentage" : "number", v.least, v.most);
             },
             [](const Whole& v) { return fmt::format("a whole number from {} to {}", v.least, v.most); },
             [](const OneOf& v) {
               const std::vector<std::uint32_t> but_last(v.values.begin(), v.values.end() - 1);
               return fmt::format("{} or {}", fmt::join(but_last, ", "), v.values.back());
             },
             [](const Thousandths&) -> std::string { return "four thousandths (LRU, LFU, LHU, FLD) that sum to 1000"; },
             [](const Words& v) { return fmt::format("one of {}", fmt::join(words_of(v), ", ")); }},
      values);
}

std::string Parameter::range() const {
  return std::visit(
      Either{[](const Number& v) { return fmt::format("{}..{}{}", v.least, v.most, v.percent ? "%" : ""); },
             [](const Whole& v) { return fmt::format("{}..{}", v.least, v.most); },
             [](const OneOf& v) { return fmt::format("{}", fmt::join(v.values, "|")); },
             [](const Thousandths&) -> std::string { return "W,W,W,W"; },
             [](const Words& v) { return fmt::format("{}", fmt::join(words_of(v), "|")); }},
      values);
}

bool Parameter::set(StackOptions& o, const Json& value) const {
  return std::visit(Either{[&](const Number& v) {
                             const double number = value.is_number() ? value.get<double>() : v.least - 1;
                             if (!(number >= v.least && number <= v.most)) return false;  // nan is neither
                             o.*v.member = static_cast<float>(number);
                             return true;
                           },
                           [&](const Whole& v) {
                             const auto number = whole(value);
                             if (!number || *number < v.least || *number > v.most) return false;
                             o.*v.member = number;
                             return true;
                           },
                           [&](const OneOf& v) {
                             const auto number = whole(value);
                             if (std::find(v.values.begin(), v.values.end(), number) == v.values.end()) return false;
                             o.*v.member = number;
                             return true;
                           },
                           [&](const Thousandths& v) {
                             CacheWeights weights{};
                             if (!value.is_array() || value.size() != weights.size()) return false;
                             std::uint64_t sum = 0;
                             for (std::size_t i = 0; i < weights.size(); ++i) {
                               const auto weight = whole(value[i]);
                               if (!weight) return false;
                               sum += weights[i] = *weight;
                             }
                             if (sum != 1000) return false;
                             o.*v.member = weights;
                             return true;
                           },
                           [&](const Words& v) {
                             for (const auto& [word, choice] : v.values) {
                               if (value != word) continue;
                               std::visit([&](auto c) { assign(o, v.member, c); }, choice);
                               return true;
                             }
                             return false;
                           }},
                    values);
}

Json Parameter::checked(Json value, const std::string& text) const {
  StackOptions o;
  if (!set(o, value)) throw InputError(fmt::format("{} {}: expected {}", flag(), text, expected()));
  return value;
}

Json Parameter::read(const std::vector<std::string>& words) const {
  Json each = Json::array();
  const Number* number = std::get_if<Number>(&values);
  for (const std::string& word : words) {
    const bool sign = number != nullptr && number->percent && word.ends_with('%');
    each.push_back(std::holds_alternative<Words>(values) ? Json(word)
                   : number != nullptr ? read_number<double>(word.substr(0, word.size() - (sign ? 1 : 0)))
                                       : read_number<std::uint32_t>(word));
  }
  return checked(size() == 1 && each.size() == 1 ? each[0] : each, fmt::format("{}", fmt::join(words, ",")));
}

Json Parameter::read(const Json& value) const {
  if (!value.is_number()) return checked(value, value.is_string() ? value.get<std::string>() : json_text(value));
  const auto number = value.get<double>();
  const bool is_whole = number >= 0 && number <= 0xffffffffU && number == std::floor(number);
  const bool as_whole = is_whole && !std::holds_alternative<Number>(values);
  return checked(as_whole ? Json(static_cast<std::uint32_t>(number)) : Json(number), fmt::format("{}", number));
}

const std::vector<Parameter>& all_parameters() {
  static const std::vector<Parameter> all = make_parameters();
  return all;
}

const Parameter& find_parameter(const std::string& name, const std::string& where) {
  for (const Parameter& p : all_parameters()) {
    if (p.name == name) return p;
  }
  throw InputError(fmt::format("{}: {}", where, unknown_name("parameter", name, names_of(all_parameters()))));
}

const Parameter& parameter_of(const ParameterMember& member) {
  return *std::find_if(all_parameters().begin(), all_parameters().end(),
                       [&](const Parameter& p) { return p.member() == member; });
}

void set_parameters(StackOptions& o, const Json& parameters, const std::string& where) {
  const Fields fields(parameters, where);
  for (const auto& [name, value] : parameters.items()) {
    const Parameter& p = find_parameter(name, where);
    if (!p.set(o, value)) fields.refuse(name, p.expected());
  }
}

}  // namespace ferry::engine
