#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "jinja/access.hpp"
#include "jinja/filters.hpp"
#include "jinja/format.hpp"
#include "jinja/methods.hpp"
#include "jinja/objects.hpp"
#include "jinja/operators.hpp"

namespace ferry::engine::jinja {
namespace {

void no_arguments(Rendering& run, const Arguments& given) {
  static_cast<void>(Parameters(run, "a test", given, {}, 0));
}

template <bool (*holds)(const Value&)>
bool is(Rendering& run, const Value& value, const Arguments& given) {
  no_arguments(run, given);
  return holds(value);
}

bool is_defined(const Value& value) {
  return !is_undefined(value);
}

bool is_boolean(const Value& value) {
  return std::holds_alternative<bool>(value);
}

bool is_true(const Value& value) {
  return is_boolean(value) && std::get<bool>(value);
}

bool is_false(const Value& value) {
  return is_boolean(value) && !std::get<bool>(value);
}

bool is_integer(const Value& value) {
  return std::holds_alternative<std::int64_t>(value);
}

bool is_float(const Value& value) {
  return std::holds_alternative<double>(value);
}

bool is_number(const Value& value) {
  return number_of(value).has_value();
}

bool is_string(const Value& value) {
  return text_of(value) != nullptr;
}

bool is_mapping(const Value& value) {
  return dict_of(value) != nullptr;
}

bool is_escaped(const Value& value) {
  return is_string(value) && text_of(value)->safe;
}

bool is_callable(const Value& value) {
  const auto* object = std::get_if<ObjectPtr>(&value);
  return is_undefined(value) || (object != nullptr && (*object)->callable());  // jinja2's Undefined has a __call__
}

bool is_sequence(const Value& value) {
  const auto* object = std::get_if<ObjectPtr>(&value);
  return is_undefined(value) || is_string(value) || list_of(value) != nullptr || is_mapping(value) ||
         (object != nullptr && (*object)->has_items());
}

bool iterable(Rendering& run, const Value& value, const Arguments& given) {
  no_arguments(run, given);
  return object_of<Loop>(value) != nullptr || try_items_of(run, value) != nullptr;
}

bool equal_to(Rendering& run, const Value& value, const Arguments& given, Comparator comparator) {
  const Parameters got(run, "a comparison", given, {"other"}, 1);
  return compare(run, comparator, value, got.at(0));
}

template <Comparator comparator>
bool compares(Rendering& run, const Value& value, const Arguments& given) {
  return equal_to(run, value, given, comparator);
}

bool has_remainder(Rendering& run, const Value& value, const Value& divisor, std::int64_t remainder) {
  return equals(run, calculate(run, Arithmetic::modulo, value, divisor), remainder);
}

bool odd(Rendering& run, const Value& value, const Arguments& given) {
  no_arguments(run, given);
  return has_remainder(run, value, std::int64_t{2}, 1);
}

bool even(Rendering& run, const Value& value, const Arguments& given) {
  no_arguments(run, given);
  return has_remainder(run, value, std::int64_t{2}, 0);
}

bool divisible(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "divisibleby", given, {"num"}, 1);
  return has_remainder(run, value, got.at(0), 0);
}

bool cased(Rendering& run, const Value& value, const Arguments& given, const char* method) {
  no_arguments(run, given);
  const Value text = run.text(printed(run, value));
  return std::get<bool>(method_of(text, method)(run, text, {}));
}

bool lower_test(Rendering& run, const Value& value, const Arguments& given) {
  return cased(run, value, given, "islower");
}

bool upper_test(Rendering& run, const Value& value, const Arguments& given) {
  return cased(run, value, given, "isupper");
}

/// Python compares identities. Equal texts or numbers may or may not be one object there, so that this fails for them.
bool same_as(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "sameas", given, {"other"}, 1);
  const Value& other = got.at(0);
  if (value.index() != other.index()) return false;
  if (is_boolean(value) || is_none(value)) return value.index() == other.index() && equals(run, value, other);
  const auto* object = std::get_if<ObjectPtr>(&value);
  if (object == nullptr) run.fail(fmt::format("sameas of {} is not supported", a_type_of(value)));
  return *object == std::get<ObjectPtr>(other);
}

bool in(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "in", given, {"seq"}, 1);
  return contains(run, got.at(0), value);
}

bool filter_exists(Rendering& run, const Value& value, const Arguments& given) {
  no_arguments(run, given);
  const TextData* name = text_of(value);
  return name != nullptr && (find_filter(name->text) != nullptr || is_unsupported_filter(name->text));
}

bool test_exists(Rendering& run, const Value& value, const Arguments& given) {
  no_arguments(run, given);
  const TextData* name = text_of(value);
  return name != nullptr && find_test(name->text) != nullptr;
}

struct Named {
  std::string_view name;
  Test body;
};

constexpr auto tests = std::to_array<Named>({{"defined", is<is_defined>},
                                             {"undefined", is<is_undefined>},
                                             {"none", is<is_none>},
                                             {"boolean", is<is_boolean>},
                                             {"true", is<is_true>},
                                             {"false", is<is_false>},
                                             {"integer", is<is_integer>},
                                             {"float", is<is_float>},
                                             {"number", is<is_number>},
                                             {"string", is<is_string>},
                                             {"mapping", is<is_mapping>},
                                             {"sequence", is<is_sequence>},
                                             {"iterable", iterable},
                                             {"callable", is<is_callable>},
                                             {"escaped", is<is_escaped>},
                                             {"sameas", same_as},
                                             {"odd", odd},
                                             {"even", even},
                                             {"divisibleby", divisible},
                                             {"lower", lower_test},
                                             {"upper", upper_test},
                                             {"in", in},
                                             {"filter", filter_exists},
                                             {"test", test_exists},
                                             {"==", compares<Comparator::equal>},
                                             {"eq", compares<Comparator::equal>},
                                             {"equalto", compares<Comparator::equal>},
                                             {"!=", compares<Comparator::unequal>},
                                             {"ne", compares<Comparator::unequal>},
                                             {">", compares<Comparator::greater>},
                                             {"gt", compares<Comparator::greater>},
                                             {"greaterthan", compares<Comparator::greater>},
                                             {">=", compares<Comparator::greater_equal>},
                                             {"ge", compares<Comparator::greater_equal>},
                                             {"<", compares<Comparator::less>},
                                             {"lt", compares<Comparator::less>},
                                             {"lessthan", compares<Comparator::less>},
                                             {"<=", compares<Comparator::less_equal>},
                                             {"le", compares<Comparator::less_equal>}});

}  // namespace

Test find_test(std::string_view name) {
  const auto* found = std::find_if(tests.begin(), tests.end(), [&](const Named& t) { return t.name == name; });
  return found == tests.end() ? nullptr : found->body;
}

}  // namespace ferry::engine::jinja
