#include "jinja/operators.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "jinja/access.hpp"
#include "jinja/format.hpp"

namespace ferry::engine::jinja {
namespace {

const char* sign_of(Arithmetic operation) {
  switch (operation) {
    case Arithmetic::add:
      return "+";
    case Arithmetic::subtract:
      return "-";
    case Arithmetic::multiply:
      return "*";
    case Arithmetic::divide:
      return "/";
    case Arithmetic::floor_divide:
      return "//";
    case Arithmetic::modulo:
      return "%";
    case Arithmetic::power:
      return "**";
  }
  return "?";
}

[[noreturn]] void mismatch(Rendering& run, std::string_view sign, const Value& left, const Value& right) {
  if (is_undefined(left)) run.fail_undefined(left);
  if (is_undefined(right)) run.fail_undefined(right);
  run.fail(fmt::format("{} {} {}, expected operands that fit each other", type_of(left), sign, type_of(right)));
}

[[noreturn]] void overflow(Rendering& run) {
  run.fail("a whole number needs more than 64 bits, expected a smaller one");
}

/// A number for comparisons: `long double` holds every whole number and every double exactly.
long double exact(const Value& value) {
  const auto whole = whole_of(value);
  return whole ? static_cast<long double>(*whole) : static_cast<long double>(*number_of(value));
}

bool equal_lists(Rendering& run, const ListData& left, const ListData& right) {
  if (&left == &right) return true;
  if (left.items.size() != right.items.size()) return false;
  for (std::size_t i = 0; i < left.items.size(); ++i) {
    if (!equals(run, left.items[i], right.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Rendering& run, const DictData& left, const DictData& right) {
  if (&left == &right) return true;
  if (left.size() != right.size()) return false;
  for (const auto& [key, value] : left.entries()) {
    const Value* other = right.find(key);
    if (other == nullptr || !equals(run, value, *other)) return false;
  }
  return true;
}

template <class T>
bool by(Comparator comparator, const T& left, const T& right) {
  switch (comparator) {
    case Comparator::less:
      return left < right;
    case Comparator::less_equal:
      return left <= right;
    case Comparator::greater:
      return left > right;
    default:
      return left >= right;
  }
}

const char* sign_of(Comparator comparator) {
  switch (comparator) {
    case Comparator::less:
      return "<";
    case Comparator::less_equal:
      return "<=";
    case Comparator::greater:
      return ">";
    default:
      return ">=";
  }
}

/// Compares the first items that differ, or else the lengths.
bool ordered_lists(Rendering& run, Comparator comparator, const ListData& left, const ListData& right) {
  const std::size_t both = std::min(left.items.size(), right.items.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (!equals(run, left.items[i], right.items[i])) return compare(run, comparator, left.items[i], right.items[i]);
  }
  return by(comparator, left.items.size(), right.items.size());
}

bool ordered(Rendering& run, Comparator comparator, const Value& left, const Value& right) {
  if (number_of(left) && number_of(right)) return by(comparator, exact(left), exact(right));
  const TextData *text = text_of(left), *other = text_of(right);
  if (text != nullptr && other != nullptr) {
    run.work_on_text(std::min(text->text.size(), other->text.size()));
    return by(comparator, text->text, other->text);
  }
  if (list_of(left) != nullptr && list_of(right) != nullptr && left.index() == right.index()) {
    return ordered_lists(run, comparator, *list_of(left), *list_of(right));
  }
  mismatch(run, sign_of(comparator), left, right);
}

Value whole_power(Rendering& run, std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow(run);
    exponent >>= 1U;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow(run);
  }
  return result;
}

Value real_power(Rendering& run, double base, double exponent) {
  if (base == 0 && exponent < 0) run.fail("0 to a negative power, expected another base");
  const double result = std::pow(base, exponent);
  if (std::isnan(result) && !std::isnan(base) && !std::isnan(exponent)) {
    run.fail(fmt::format("{} ** {} is a complex number, expected a real one", base, exponent));
  }
  if (std::isinf(result) && !std::isinf(base) && !std::isinf(exponent)) {
    run.fail(fmt::format("{} ** {} is larger than a float, expected a smaller one", base, exponent));
  }
  return result;
}

/// Quotient and remainder as in Python: rounded towards minus infinity, and with the divisor's sign.
std::pair<double, double> divide_real(double left, double right) {
  double remainder = std::fmod(left, right);
  double quotient = (left - remainder) / right;
  if (remainder != 0 && (right < 0) != (remainder < 0)) {
    remainder += right;
    quotient -= 1;
  } else if (remainder == 0) {
    remainder = std::copysign(0.0, right);
  }
  double floored = quotient == 0 ? std::copysign(0.0, left / right) : std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1;
  return {floored, remainder};
}

/// The same for whole numbers. Callers handle a divisor of -1, since dividing the least number by it overflows.
std::pair<std::int64_t, std::int64_t> divide_whole(std::int64_t left, std::int64_t right) {
  std::int64_t quotient = left / right, remainder = left % right;
  if (remainder != 0 && (right < 0) != (remainder < 0)) {
    remainder += right;
    --quotient;
  }
  return {quotient, remainder};
}

Value calculate_whole(Rendering& run, Arithmetic operation, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  switch (operation) {
    case Arithmetic::add:
      if (__builtin_add_overflow(left, right, &result)) overflow(run);
      return result;
    case Arithmetic::subtract:
      if (__builtin_sub_overflow(left, right, &result)) overflow(run);
      return result;
    case Arithmetic::multiply:
      if (__builtin_mul_overflow(left, right, &result)) overflow(run);
      return result;
    case Arithmetic::divide:
      return static_cast<double>(static_cast<long double>(left) / static_cast<long double>(right));
    case Arithmetic::floor_divide:
      return right == -1 ? calculate_whole(run, Arithmetic::subtract, 0, left) : divide_whole(left, right).first;
    case Arithmetic::modulo:
      return right == -1 ? 0 : divide_whole(left, right).second;
    case Arithmetic::power:
      return right < 0 ? real_power(run, static_cast<double>(left), static_cast<double>(right))
                       : whole_power(run, left, right);
  }
  return result;
}

Value calculate_real(Rendering& run, Arithmetic operation, double left, double right) {
  switch (operation) {
    case Arithmetic::add:
      return left + right;
    case Arithmetic::subtract:
      return left - right;
    case Arithmetic::multiply:
      return left * right;
    case Arithmetic::divide:
      return left / right;
    case Arithmetic::floor_divide:
      return divide_real(left, right).first;
    case Arithmetic::modulo:
      return divide_real(left, right).second;
    case Arithmetic::power:
      break;
  }
  return real_power(run, left, right);
}

Value calculate_numbers(Rendering& run, Arithmetic operation, const Value& left, const Value& right) {
  const auto whole_left = whole_of(left), whole_right = whole_of(right);
  const bool divides =
      operation == Arithmetic::divide || operation == Arithmetic::floor_divide || operation == Arithmetic::modulo;
  if (divides && *number_of(right) == 0) run.fail("a division by 0, expected another divisor");
  if (whole_left && whole_right) return calculate_whole(run, operation, *whole_left, *whole_right);
  return calculate_real(run, operation, *number_of(left), *number_of(right));
}

Value add_texts(Rendering& run, const TextData& left, const TextData& right) {
  TextBuilder sum(run);
  const bool safe = left.safe || right.safe;
  sum.add(safe && !left.safe ? escaped(run, left.text) : left.text);
  sum.add(safe && !right.safe ? escaped(run, right.text) : right.text);
  return run.text(sum.take(), safe);
}

Values joined(Rendering& run, const ListData& left, const ListData& right) {
  run.room_for(left.items.size() + right.items.size(), sizeof(Value));
  Values all(left.items);
  all.insert(all.end(), right.items.begin(), right.items.end());
  return all;
}

Value repeated(Rendering& run, const Value& value, std::int64_t times) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  if (const TextData* text = text_of(value)) {
    TextBuilder all(run);
    if (text->text.empty()) return value;
    for (std::size_t i = 0; i < count; ++i) {
      run.work();
      all.add(text->text);
    }
    return run.text(all.take(), text->safe);
  }
  const ListData& list = *list_of(value);
  Values all;
  if (!list.items.empty()) {
    run.room_for(count, sizeof(Value) * list.items.size());
    all.reserve(count * list.items.size());
    for (std::size_t i = 0; i < count; ++i) all.insert(all.end(), list.items.begin(), list.items.end());
  }
  return std::holds_alternative<List>(value) ? run.list(std::move(all)) : run.tuple(std::move(all));
}

bool repeats(const Value& value) {
  return text_of(value) != nullptr || list_of(value) != nullptr;
}

}  // namespace

bool truth(Rendering& run, const Value& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth;
  if (const auto number = number_of(value)) return *number != 0;
  if (const TextData* text = text_of(value)) return !text->text.empty();
  if (const ListData* list = list_of(value)) return !list->items.empty();
  if (const DictData* dict = dict_of(value)) return dict->size() != 0;
  const auto* object = std::get_if<ObjectPtr>(&value);
  return object != nullptr && (*object)->length(run).value_or(1) != 0;
}

bool equals(Rendering& run, const Value& left, const Value& right) {
  run.work();
  if (number_of(left) && number_of(right)) return exact(left) == exact(right);
  if (left.index() != right.index()) return false;
  if (const TextData* text = text_of(left)) {
    if (text->text.size() == text_of(right)->text.size()) run.work_on_text(text->text.size());
    return text->text == text_of(right)->text;
  }
  if (const ListData* list = list_of(left)) return equal_lists(run, *list, *list_of(right));
  if (const DictData* dict = dict_of(left)) return equal_dicts(run, *dict, *dict_of(right));
  const auto* object = std::get_if<ObjectPtr>(&left);
  return object == nullptr || (*object)->equals(run, *std::get<ObjectPtr>(right));
}

bool compare(Rendering& run, Comparator comparator, const Value& left, const Value& right) {
  switch (comparator) {
    case Comparator::equal:
      return equals(run, left, right);
    case Comparator::unequal:
      return !equals(run, left, right);
    case Comparator::in:
      return contains(run, right, left);
    case Comparator::not_in:
      return !contains(run, right, left);
    default:
      return ordered(run, comparator, left, right);
  }
}

bool contains(Rendering& run, const Value& container, const Value& value) {
  if (const TextData* text = text_of(container)) {
    const TextData* part = text_of(value);
    if (part == nullptr) mismatch(run, "in", value, container);
    return find_text(run, text->text, part->text) != std::string_view::npos;
  }
  if (const DictData* dict = dict_of(container)) {
    if (text_of(value) == nullptr && !hash_key(value)) mismatch(run, "in", value, container);
    return dict->find(value) != nullptr;
  }
  if (const auto* object = std::get_if<ObjectPtr>(&container)) {
    if (const auto answer = (*object)->contains(run, value)) return *answer;
  }
  const IteratorPtr items = try_items_of(run, container);
  if (items == nullptr) mismatch(run, "in", value, container);
  while (const auto item = items->next(run)) {
    if (equals(run, *item, value)) return true;
  }
  return false;
}

Value calculate(Rendering& run, Arithmetic operation, const Value& left, const Value& right) {
  if (number_of(left) && number_of(right)) return calculate_numbers(run, operation, left, right);
  const TextData *text = text_of(left), *other = text_of(right);
  if (operation == Arithmetic::modulo && text != nullptr) return format_percent(run, *text, right);
  if (operation == Arithmetic::add && text != nullptr && other != nullptr) return add_texts(run, *text, *other);
  if (operation == Arithmetic::add && list_of(left) != nullptr && left.index() == right.index()) {
    Values all = joined(run, *list_of(left), *list_of(right));
    return std::holds_alternative<List>(left) ? run.list(std::move(all)) : run.tuple(std::move(all));
  }
  if (operation == Arithmetic::multiply && repeats(left) && whole_of(right)) {
    return repeated(run, left, *whole_of(right));
  }
  if (operation == Arithmetic::multiply && repeats(right) && whole_of(left)) {
    return repeated(run, right, *whole_of(left));
  }
  mismatch(run, sign_of(operation), left, right);
}

Value negated(Rendering& run, const Value& value) {
  if (const auto* real = std::get_if<double>(&value)) return -*real;
  if (is_undefined(value)) run.fail_undefined(value);
  const auto whole = whole_of(value);
  if (!whole) run.fail(fmt::format("the negative of {}, expected a number", a_type_of(value)));
  if (*whole == INT64_MIN) overflow(run);
  return -*whole;
}

Value affirmed(Rendering& run, const Value& value) {
  if (std::holds_alternative<double>(value)) return value;
  if (is_undefined(value)) run.fail_undefined(value);
  const auto whole = whole_of(value);
  if (!whole) run.fail(fmt::format("the positive of {}, expected a number", a_type_of(value)));
  return *whole;
}

std::string escaped(Rendering& run, std::string_view text) {
  TextBuilder out(run);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view entity = text[at] == '&'    ? "&amp;"
                                    : text[at] == '<'  ? "&lt;"
                                    : text[at] == '>'  ? "&gt;"
                                    : text[at] == '\'' ? "&#39;"
                                    : text[at] == '"'  ? "&#34;"
                                                       : "";
    if (entity.empty()) continue;
    out.add(text.substr(begin, at - begin));
    out.add(entity);
    begin = at + 1;
  }
  out.add(text.substr(begin));
  return out.take();
}

std::size_t find_text(Rendering& run, std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());  // never quadratic
  const std::size_t at = found == nullptr ? std::string_view::npos
                                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  run.work_on_text((found == nullptr ? text.size() : at) - from + part.size());
  return at;
}

std::size_t find_last_text(Rendering& run, std::string_view text, std::string_view part, std::size_t to) {
  if (part.size() > to) return std::string_view::npos;
  run.work_on_text(2 * to);
  const std::string backward(text.rend() - static_cast<std::ptrdiff_t>(to), text.rend());
  const std::string backward_part(part.rbegin(), part.rend());
  const std::size_t found = find_text(run, backward, backward_part);
  return found == std::string_view::npos ? found : to - found - part.size();
}

}  // namespace ferry::engine::jinja
