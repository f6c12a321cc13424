#include <fmt/format.h>

#include <algorithm>

#include "jinja/access.hpp"
#include "jinja/format.hpp"
#include "jinja/interpreter.hpp"
#include "jinja/operators.hpp"

namespace ferry::engine::jinja {

/// Errors name the line of the operation that fails, not of its last operand.
Value Interpreter::value(const Expression& expression) {
  const Rendering::Deeper deeper(run_);
  run_.work();
  const std::uint32_t outside = run_.line();
  run_.at(expression.line);
  Value result = std::visit([this](const auto& is) { return value_of(is); }, expression.is);
  run_.at(outside);
  return result;
}

Value Interpreter::value_of(const Variable& is) {
  const Value& value = at(is.place);
  const auto* undefined = std::get_if<Undefined>(&value);
  if (undefined == nullptr || undefined->name) return value;
  return Undefined{std::get<Text>(is.name_text).data};
}

Value Interpreter::value_of(const Captured& /*is*/) {
  return captured_;
}

Value Interpreter::value_of(const ListItems& is) {
  Values items;
  items.reserve(is.items.size());
  for (const ExpressionPtr& item : is.items) items.push_back(value(*item));
  return is.tuple ? run_.tuple(std::move(items)) : run_.list(std::move(items));
}

Value Interpreter::value_of(const DictItems& is) {
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key, item] : is.entries) {
    Value name = value(*key);
    entries.emplace_back(std::move(name), value(*item));
  }
  return run_.dict(std::move(entries));
}

Value Interpreter::value_of(const Not& is) {
  return !truth(run_, value(*is.of));
}

Value Interpreter::value_of(const Signed& is) {
  const Value of = value(*is.of);
  return is.minus ? negated(run_, of) : affirmed(run_, of);
}

Value Interpreter::value_of(const Calculation& is) {
  const Value left = value(*is.left), right = value(*is.right);
  return calculate(run_, is.operation, left, right);
}

Value Interpreter::value_of(const Choice& is) {
  Value left = value(*is.left);
  return truth(run_, left) == is.both ? value(*is.right) : left;
}

/// a < b < c: each operand is computed once, and none behind a comparison that fails.
Value Interpreter::value_of(const Comparison& is) {
  Value left = value(*is.first);
  for (const auto& [comparator, operand] : is.rest) {
    Value right = value(*operand);
    if (!compare(run_, comparator, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::value_of(const Concatenation& is) {
  TextBuilder out(run_);
  for (const ExpressionPtr& part : is.parts) {
    const Value one = value(*part);
    const TextData* text = text_of(one);
    text != nullptr ? out.add(text->text) : out.add(printed(run_, one));
  }
  return run_.text(out.take());
}

Value Interpreter::value_of(const AttributeOf& is) {
  return attribute_of(run_, value(*is.of), is.name);
}

Value Interpreter::value_of(const ItemOf& is) {
  const Value of = value(*is.of), key = value(*is.key);
  return item_of(run_, of, key);
}

std::optional<std::int64_t> Interpreter::bound(const ExpressionPtr& expression) {
  if (!expression) return std::nullopt;
  const Value value = this->value(*expression);
  if (is_none(value)) return std::nullopt;
  const auto whole = whole_of(value);
  if (!whole) run_.fail(fmt::format("a slice by {}, expected whole numbers", a_type_of(value)));
  return whole;
}

Value Interpreter::value_of(const SliceOf& is) {
  const Value of = value(*is.of);
  const auto start = bound(is.start), stop = bound(is.stop), step = bound(is.step);
  return slice_of(run_, of, {start, stop, step});
}

Arguments Interpreter::arguments(const Given& given) {
  Arguments made;
  for (const ExpressionPtr& one : given.positional) made.positional.push_back(value(*one));
  for (const auto& [name, one] : given.named) made.named.emplace_back(name, value(*one));
  if (given.all_positional) {
    const Values more = collect(run_, value(*given.all_positional), "* before an argument");
    made.positional.insert(made.positional.end(), more.begin(), more.end());
  }
  if (!given.all_named) return made;
  const Value more = value(*given.all_named);
  if (dict_of(more) == nullptr) run_.fail(fmt::format("** before {}, expected a dict", a_type_of(more)));
  for (const auto& [key, item] : dict_of(more)->entries()) {
    const TextData* name = text_of(key);
    const bool twice = name != nullptr && std::any_of(made.named.begin(), made.named.end(),
                                                      [&](const auto& known) { return known.first == name->text; });
    if (name == nullptr || twice) run_.fail("** before a dict of other keys, expected names, each once");
    made.named.emplace_back(name->text, item);
  }
  return made;
}

Value Interpreter::value_of(const CallOf& is) {
  return call(is, Undefined{});
}

Value Interpreter::call(const CallOf& is, Value caller) {
  const Value function = value(*is.function);
  Arguments given = arguments(is.given);
  if (!is_undefined(caller)) given.named.emplace_back("caller", std::move(caller));
  return jinja::call(run_, function, given);
}

Value Interpreter::value_of(const Filtered& is) {
  const Value of = value(*is.of);
  const Arguments given = arguments(is.given);
  return is.filter != nullptr ? is.filter(run_, of, given) : apply_filter(run_, is.name, of, given);
}

Value Interpreter::value_of(const Tested& is) {
  const Value of = value(*is.of);
  const Arguments given = arguments(is.given);
  return is.test != nullptr ? is.test(run_, of, given) : apply_test(run_, is.name, of, given);
}

Value Interpreter::value_of(const Conditional& is) {
  if (truth(run_, value(*is.test))) return value(*is.then);
  if (is.otherwise) return value(*is.otherwise);
  return Undefined{std::get<Text>(run_.text("an `if` without `else`")).data};
}

}  // namespace ferry::engine::jinja
