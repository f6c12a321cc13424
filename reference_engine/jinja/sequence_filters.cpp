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

std::uint32_t depth_of_all(const Value& value, const Arguments& given) {
  std::uint32_t depth = depth_of(value);
  for (const Value& one : given.positional) depth = std::max(depth, depth_of(one));
  for (const auto& [name, one] : given.named) depth = std::max(depth, depth_of(one));
  return depth;
}

/// A generator that does nothing before its first item is asked for, as in Python.
template <class Start>
Value lazily(Rendering& run, std::uint32_t depth, Start start) {
  return run.make<Generator>(depth + 1,
                             [start = std::move(start), next = Generator::Next()](Rendering& running) mutable {
                               if (!next) next = start(running);
                               return next(running);
                             });
}

/// The items of a value; none if it counts as false.
IteratorPtr items_if_any(Rendering& run, const Value& value, std::string_view who) {
  return truth(run, value) ? items_of(run, value, who) : iterate(run, {});
}

/// The attribute of an item that a filter works on, as "function.name" or "0".
class Path {
 public:
  Path() = default;
  Path(Rendering& run, const Value& attribute) {
    const TextData* text = text_of(attribute);
    if (text == nullptr) {
      if (!is_none(attribute)) parts_.push_back(attribute);
      return;
    }
    for (std::size_t begin = 0; begin <= text->text.size();) {
      const std::size_t end = std::min(text->text.find('.', begin), text->text.size());
      parts_.push_back(part(run, text->text.substr(begin, end - begin)));
      begin = end + 1;
    }
  }

  [[nodiscard]] Value follow(Rendering& run, Value item, const Value* instead = nullptr) const {
    for (const Value& part : parts_) {
      item = item_of(run, item, part);
      if (instead != nullptr && is_undefined(item)) item = *instead;
    }
    return item;
  }

 private:
  static Value part(Rendering& run, const std::string& text) {
    std::int64_t number = 0;
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && text.size() < 18;
    if (!digits) return run.text(text);
    for (const char c : text) number = number * 10 + (c - '0');
    return number;
  }

  Values parts_;
};

/// The key of an item that is compared: its attribute. Texts are lowered unless case matters.
class SortKey {
 public:
  SortKey(Rendering& run, const Parameters& got, std::size_t case_sensitive, std::size_t attribute)
      : keeps_case_(got.flag_or(case_sensitive, false)),
        path_(got.has(attribute) ? Path(run, got.at(attribute)) : Path()) {}
  SortKey(bool keeps_case, Path path) : keeps_case_(keeps_case), path_(std::move(path)) {}

  [[nodiscard]] Value of(Rendering& run, const Value& item) const {
    const Value found = path_.follow(run, item);
    return keeps_case_ || text_of(found) == nullptr ? found : method_of(found, "lower")(run, found, {});
  }

 private:
  bool keeps_case_;
  Path path_;
};

/// A stable merge sort. Comparisons may throw and need not be consistent, which the standard library's sort does not allow.
class Sorter {
 public:
  Sorter(Rendering& run, const Values& keys, bool reverse) : run_(run), keys_(keys), reverse_(reverse) {}

  std::vector<std::size_t> order() {
    std::vector<std::size_t> order(keys_.size()), other(keys_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (std::size_t width = 1; width < order.size(); width *= 2) {
      for (std::size_t begin = 0; begin < order.size(); begin += 2 * width) merge(order, other, begin, width);
      order.swap(other);
    }
    return order;
  }

 private:
  void merge(const std::vector<std::size_t>& from, std::vector<std::size_t>& to, std::size_t begin, std::size_t width) {
    const std::size_t middle = std::min(begin + width, from.size()), end = std::min(begin + 2 * width, from.size());
    std::size_t left = begin, right = middle;
    for (std::size_t at = begin; at < end; ++at) {
      const bool takes_right = left == middle || (right < end && before(from[right], from[left]));
      to[at] = takes_right ? from[right++] : from[left++];
    }
  }

  bool before(std::size_t left, std::size_t right) {
    run_.work();
    return compare(run_, reverse_ ? Comparator::greater : Comparator::less, keys_[left], keys_[right]);
  }

  Rendering& run_;
  const Values& keys_;
  bool reverse_;
};

Value sorted(Rendering& run, const Values& items, const Values& keys, bool reverse) {
  Values all;
  for (const std::size_t i : Sorter(run, keys, reverse).order()) all.push_back(items[i]);
  return run.list(std::move(all));
}

Value first_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "first", given, {}, 0));
  auto item = items_of(run, value, "first")->next(run);
  return item ? *std::move(item) : Value(Undefined{std::get<Text>(run.text("the first item of nothing")).data});
}

Value last_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "last", given, {}, 0));
  if (const ListData* list = list_of(value); list != nullptr && !list->items.empty()) return list->items.back();
  const auto items = reversed(run, value);
  if (!items) run.fail(fmt::format("last of {}, expected a list (of a generator, its list)", a_type_of(value)));
  if (items->empty()) return Undefined{std::get<Text>(run.text("the last item of nothing")).data};
  return items->front();
}

Value join_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "join", given, {"d", "attribute"}, 0);
  const std::string separator = got.has(0) ? printed(run, got.at(0)) : "";
  const Path path = got.has(1) ? Path(run, got.at(1)) : Path();
  const IteratorPtr items = items_of(run, value, "join");
  TextBuilder out(run);
  for (bool is_first = true; const auto item = items->next(run); is_first = false) {
    if (!is_first) out.add(separator);
    out.add(printed(run, path.follow(run, *item)));
  }
  return run.text(out.take());
}

Value list_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "list", given, {}, 0));
  return run.list(collect(run, value, "the list"));
}

Value items_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "items", given, {}, 0));
  return lazily(run, depth_of(value) + 1, [value](Rendering& starting) -> Generator::Next {
    if (!is_undefined(value) && dict_of(value) == nullptr) {
      starting.fail(fmt::format("items of {}, expected a dict", a_type_of(value)));
    }
    const IteratorPtr items =
        is_undefined(value)
            ? iterate(starting, {})
            : starting.make<DictView>(depth_of(value) + 1, std::get<Dict>(value), DictView::Part::items)
                  ->items(starting);
    return [items](Rendering& running) { return items->next(running); };
  });
}

Value dictsort_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "dictsort", given, {"case_sensitive", "by", "reverse"}, 0);
  const std::string by = got.has(1) ? got.text(1).text : "key";
  if (by != "key" && by != "value") run.fail(fmt::format("dictsort by {}, expected key or value", by));
  const DictData* dict = dict_of(value);
  if (dict == nullptr) run.fail(fmt::format("dictsort of {}, expected a dict", a_type_of(value)));
  const SortKey key(got.flag_or(0, false), Path());
  Values pairs, keys;
  for (const auto& [name, item] : dict->entries()) {
    pairs.push_back(run.tuple({name, item}));
    keys.push_back(key.of(run, by == "key" ? name : item));
  }
  return sorted(run, pairs, keys, got.whole_or(2, 0) != 0);
}

/// With several attributes, as "age,name", an item's key is a list.
Value sort_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "sort", given, {"reverse", "case_sensitive", "attribute"}, 0);
  std::vector<SortKey> parts;
  const TextData* attributes = got.has(2) ? text_of(got.at(2)) : nullptr;
  for (std::size_t begin = 0; attributes != nullptr && begin <= attributes->text.size();) {
    const std::size_t end = std::min(attributes->text.find(',', begin), attributes->text.size());
    const Value attribute = run.text(attributes->text.substr(begin, end - begin));
    parts.emplace_back(got.flag_or(1, false), Path(run, attribute));
    begin = end + 1;
  }
  if (attributes == nullptr) parts.emplace_back(run, got, 1, 2);
  const Values items = collect(run, value, "sort");
  Values keys;
  for (const Value& item : items) {
    Values key;
    for (const SortKey& part : parts) key.push_back(part.of(run, item));
    keys.push_back(run.list(std::move(key)));
  }
  return sorted(run, items, keys, got.whole_or(0, 0) != 0);
}

Value reverse_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "reverse", given, {}, 0));
  if (text_of(value) != nullptr) return slice_of(run, value, {std::nullopt, std::nullopt, -1});
  if (auto items = reversed(run, value)) return iterate(run, *std::move(items));
  Values items = collect(run, value, "reverse");
  std::reverse(items.begin(), items.end());
  return run.list(std::move(items));
}

Value unique_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "unique", given, {"case_sensitive", "attribute"}, 0);
  const SortKey key(run, got, 0, 1);
  return lazily(run, depth_of_all(value, given), [value, key](Rendering& starting) -> Generator::Next {
    const IteratorPtr items = items_of(starting, value, "unique");
    const auto seen = std::make_shared<DictData>();
    seen->charge = Charge(starting.account(), 0);
    return [items, seen, key](Rendering& running) {
      while (auto item = items->next(running)) {
        const Value by = key.of(running, *item);
        if (seen->find(by) != nullptr) continue;
        if (!seen->set(by, None{})) running.fail(fmt::format("unique of {}, expected texts or numbers", a_type_of(by)));
        seen->charge.grow(2 * sizeof(Value) + 64);
        return item;
      }
      return std::optional<Value>();
    };
  });
}

Value least(Rendering& run, const Value& value, const Arguments& given, Comparator comparator, const char* who) {
  const Parameters got(run, who, given, {"case_sensitive", "attribute"}, 0);
  const SortKey key(run, got, 0, 1);
  const IteratorPtr items = items_of(run, value, who);
  std::optional<Value> best = items->next(run);
  if (!best) return Undefined{std::get<Text>(run.text("the least or greatest item of nothing")).data};
  Value best_key = key.of(run, *best);
  while (auto item = items->next(run)) {
    Value item_key = key.of(run, *item);
    if (!compare(run, comparator, item_key, best_key)) continue;
    best = std::move(item);
    best_key = std::move(item_key);
  }
  return *std::move(best);
}

Value min_filter(Rendering& run, const Value& value, const Arguments& given) {
  return least(run, value, given, Comparator::less, "min");
}

Value max_filter(Rendering& run, const Value& value, const Arguments& given) {
  return least(run, value, given, Comparator::greater, "max");
}

Value sum_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "sum", given, {"attribute", "start"}, 0);
  const Path path = got.has(0) ? Path(run, got.at(0)) : Path();
  Value total = got.value_or(1, std::int64_t{0});
  if (text_of(total) != nullptr) run.fail("sum of texts, expected join");
  const IteratorPtr items = items_of(run, value, "sum");
  while (const auto item = items->next(run)) total = calculate(run, Arithmetic::add, total, path.follow(run, *item));
  return total;
}

/// What map does to each item.
Value mapped_filter(Rendering& run, const Value& item, const Arguments& given) {
  if (given.positional.empty()) run.fail("map got no filter, expected one or an attribute");
  const TextData* name = text_of(given.positional[0]);
  if (name == nullptr) {
    run.fail(fmt::format("map of {}, expected the name of a filter", a_type_of(given.positional[0])));
  }
  const Arguments rest{{given.positional.begin() + 1, given.positional.end()}, given.named};
  return apply_filter(run, name->text, item, rest);
}

Value map_filter(Rendering& run, const Value& value, const Arguments& given) {
  return lazily(run, depth_of_all(value, given), [value, given](Rendering& starting) -> Generator::Next {
    const IteratorPtr items = items_if_any(starting, value, "map");
    const bool by_attribute =
        given.positional.empty() &&
        std::any_of(given.named.begin(), given.named.end(), [](const auto& n) { return n.first == "attribute"; });
    if (!by_attribute) {
      return [items, given](Rendering& running) {
        const auto item = items->next(running);
        return item ? std::optional(mapped_filter(running, *item, given)) : std::nullopt;
      };
    }
    const Parameters got(starting, "map", given, {"attribute", "default"}, 1);
    const Path path(starting, got.at(0));
    const Value instead = got.value_or(1, None{});
    return [items, path, instead](Rendering& running) {
      const auto item = items->next(running);
      return item ? std::optional(path.follow(running, *item, is_none(instead) ? nullptr : &instead)) : std::nullopt;
    };
  });
}

struct Selection {
  Path path;
  std::optional<std::string> test;  ///< none: items that count as true pass
  Arguments arguments;

  [[nodiscard]] bool takes(Rendering& run, const Value& item) const {
    const Value found = path.follow(run, item);
    return test ? apply_test(run, *test, found, arguments) : truth(run, found);
  }
};

Selection selection_of(Rendering& run, const Arguments& given, bool by_attribute) {
  Selection selection;
  std::size_t used = 0;
  if (by_attribute) {
    if (given.positional.empty()) run.fail("selectattr or rejectattr got no attribute, expected one");
    selection.path = Path(run, given.positional[used++]);
  }
  if (used == given.positional.size()) return selection;
  const TextData* name = text_of(given.positional[used]);
  if (name == nullptr) {
    run.fail(fmt::format("select by {}, expected the name of a test", a_type_of(given.positional[used])));
  }
  selection.test = name->text;
  const auto rest = given.positional.begin() + static_cast<std::ptrdiff_t>(used) + 1;
  selection.arguments = {{rest, given.positional.end()}, given.named};
  return selection;
}

template <bool takes, bool by_attribute>
Value select_filter(Rendering& run, const Value& value, const Arguments& given) {
  return lazily(run, depth_of_all(value, given), [value, given](Rendering& starting) -> Generator::Next {
    const IteratorPtr items = items_if_any(starting, value, "select");
    const Selection selection = selection_of(starting, given, by_attribute);
    return [items, selection](Rendering& running) {
      while (auto item = items->next(running)) {
        if (selection.takes(running, *item) == takes) return item;
      }
      return std::optional<Value>();
    };
  });
}

std::size_t count_of(Rendering& run, const Parameters& got, const char* who) {
  constexpr std::int64_t most = 1'000'000;
  const std::int64_t count = got.whole(0);
  if (count < 1 || count > most) run.fail(fmt::format("{} of {}, expected 1 to {}", who, count, most));
  return static_cast<std::size_t>(count);
}

Value batch_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "batch", given, {"linecount", "fill_with"}, 1));
  return lazily(run, depth_of_all(value, given) + 1, [value, given](Rendering& starting) -> Generator::Next {
    const Parameters got(starting, "batch", given, {"linecount", "fill_with"}, 1);
    const IteratorPtr items = items_of(starting, value, "batch");
    return [items, count = count_of(starting, got, "batch"), fill = got.value_or(1, None{})](Rendering& running) {
      Values line;
      while (line.size() < count) {
        auto item = items->next(running);
        if (!item) break;
        line.push_back(*std::move(item));
      }
      if (line.empty()) return std::optional<Value>();
      if (!is_none(fill)) line.resize(count, fill);
      return std::optional(running.list(std::move(line)));
    };
  });
}

/// One of `count` slices. If the items do not divide evenly, the first slices have one more.
Value part_of(Rendering& run, const Values& all, std::size_t number, std::size_t count, const Value& fill) {
  const std::size_t each = all.size() / count, larger = all.size() % count;
  const std::size_t begin = number * each + std::min(number, larger), size = each + (number < larger ? 1 : 0);
  const auto from = all.begin() + static_cast<std::ptrdiff_t>(begin);
  Values part(from, from + static_cast<std::ptrdiff_t>(size));
  if (!is_none(fill) && number >= larger) part.push_back(fill);
  return run.list(std::move(part));
}

Value slice_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "slice", given, {"slices", "fill_with"}, 1));
  return lazily(run, depth_of_all(value, given) + 1, [value, given](Rendering& starting) -> Generator::Next {
    const Parameters got(starting, "slice", given, {"slices", "fill_with"}, 1);
    const Value items = starting.list(collect(starting, value, "slice"));
    const std::size_t count = count_of(starting, got, "slice");
    return [items, count, fill = got.value_or(1, None{}), number = std::size_t{0}](Rendering& running) mutable {
      if (number == count) return std::optional<Value>();
      return std::optional(part_of(running, list_of(items)->items, number++, count, fill));
    };
  });
}

struct NamedSequenceFilter {
  std::string_view name;
  Filter body;
};

constexpr auto sequence_filters = std::to_array<NamedSequenceFilter>({{"batch", batch_filter},
                                                                      {"dictsort", dictsort_filter},
                                                                      {"first", first_filter},
                                                                      {"items", items_filter},
                                                                      {"join", join_filter},
                                                                      {"last", last_filter},
                                                                      {"list", list_filter},
                                                                      {"map", map_filter},
                                                                      {"max", max_filter},
                                                                      {"min", min_filter},
                                                                      {"reject", select_filter<false, false>},
                                                                      {"rejectattr", select_filter<false, true>},
                                                                      {"reverse", reverse_filter},
                                                                      {"select", select_filter<true, false>},
                                                                      {"selectattr", select_filter<true, true>},
                                                                      {"slice", slice_filter},
                                                                      {"sort", sort_filter},
                                                                      {"sum", sum_filter},
                                                                      {"unique", unique_filter}});

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  const auto* found = std::find_if(sequence_filters.begin(), sequence_filters.end(),
                                   [&](const NamedSequenceFilter& f) { return f.name == name; });
  return found == sequence_filters.end() ? nullptr : found->body;
}

}  // namespace ferry::engine::jinja
