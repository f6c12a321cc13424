/// @file
/// Attributes, items, slices and iteration, by the rules of jinja2's immutable sandbox.
#pragma once
#include <optional>
#include <string_view>

#include "jinja/rendering.hpp"
#include "jinja/value.hpp"

namespace ferry::engine::jinja {

/// `value.name`: the attribute, or else the item, or else undefined. Fails for what is undefined itself.
Value attribute_of(Rendering& run, const Value& value, const Value& name);
/// `value[key]`: the item, or else the attribute, or else undefined.
Value item_of(Rendering& run, const Value& value, const Value& key);

/// The bounds of a slice; none where nothing stood.
struct Slice {
  std::optional<std::int64_t> start, stop, step;
};
Value slice_of(Rendering& run, const Value& value, const Slice& slice);

/// None where the value has no length.
std::optional<std::size_t> length_of(Rendering& run, const Value& value);
/// None if the value cannot be iterated.
IteratorPtr try_items_of(Rendering& run, const Value& value);
/// Fails if the value cannot be iterated; `who` begins the message.
IteratorPtr items_of(Rendering& run, const Value& value, std::string_view who);
Values collect(Rendering& run, const Value& value, std::string_view who);
/// The items from the last to the first; none for what has no order.
std::optional<Values> reversed(Rendering& run, const Value& value);

Value call(Rendering& run, const Value& function, const Arguments& arguments);

/// Methods that the sandbox keeps from templates.
bool changes_lists(std::string_view name);
bool changes_dicts(std::string_view name);

}  // namespace ferry::engine::jinja
