#include "jinja/methods.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "jinja/access.hpp"
#include "jinja/format.hpp"
#include "jinja/objects.hpp"
#include "jinja/operators.hpp"
#include "jinja/text_methods.hpp"

namespace ferry::engine::jinja {
namespace {

struct NamedMethod {
  std::string_view name;
  Method body;
};

Value list_index_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "index", given, {"value", "start", "stop"}, 1);
  const Values& items = list_of(self)->items;
  const auto size = static_cast<std::int64_t>(items.size());
  const auto bound = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size); };
  for (std::int64_t i = bound(got.whole_or(1, 0)); i < bound(got.whole_or(2, size)); ++i) {
    if (equals(run, items[static_cast<std::size_t>(i)], got.at(0))) return i;
  }
  run.fail("index: the value is not in the list, expected one that is");
}

Value list_count_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "count", given, {"value"}, 1);
  const Values& items = list_of(self)->items;
  return static_cast<std::int64_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& item) { return equals(run, item, got.at(0)); }));
}

/// Lists and dicts are immutable here, so that a copy can be the same object.
Value copy_method(Rendering& run, const Value& self, const Arguments& given) {
  static_cast<void>(Parameters(run, "copy", given, {}, 0));
  return self;
}

Value dict_get_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "get", given, {"key", "default"}, 1);
  if (text_of(got.at(0)) == nullptr && !hash_key(got.at(0))) {
    run.fail(fmt::format("get of {}, expected what can be a key", a_type_of(got.at(0))));
  }
  const Value* found = dict_of(self)->find(got.at(0));
  return found != nullptr ? *found : got.value_or(1, None{});
}

template <DictView::Part part>
Value dict_view_method(Rendering& run, const Value& self, const Arguments& given) {
  static_cast<void>(Parameters(run, "a view of a dict", given, {}, 0));
  return run.make<DictView>(depth_of(self) + 1, std::get<Dict>(self), part);
}

constexpr std::array<NamedMethod, 3> list_methods{
    {{"index", list_index_method}, {"count", list_count_method}, {"copy", copy_method}}};

constexpr std::array<NamedMethod, 5> dict_methods{{{"get", dict_get_method},
                                                   {"items", dict_view_method<DictView::Part::items>},
                                                   {"keys", dict_view_method<DictView::Part::keys>},
                                                   {"values", dict_view_method<DictView::Part::values>},
                                                   {"copy", copy_method}}};

template <std::size_t N>
Method find(const std::array<NamedMethod, N>& methods, std::string_view name) {
  const auto* found =
      std::find_if(methods.begin(), methods.end(), [&](const NamedMethod& m) { return m.name == name; });
  return found == methods.end() ? nullptr : found->body;
}

}  // namespace

Method method_of(const Value& self, std::string_view name) {
  if (text_of(self) != nullptr) return text_method(name);
  if (dict_of(self) != nullptr) return find(dict_methods, name);
  if (list_of(self) == nullptr) return nullptr;
  return std::holds_alternative<Tuple>(self) && name == "copy" ? nullptr : find(list_methods, name);
}

bool is_unsupported_method(const Value& self, std::string_view name) {
  if (dict_of(self) != nullptr) return name == "fromkeys";
  constexpr std::array<std::string_view, 8> of_texts{"encode",      "expandtabs", "format_map", "isidentifier",
                                                     "isprintable", "maketrans",  "translate",  "istitle"};
  return text_of(self) != nullptr && std::find(of_texts.begin(), of_texts.end(), name) != of_texts.end();
}

}  // namespace ferry::engine::jinja
