#include <fmt/format.h>

#include "jinja/access.hpp"
#include "jinja/objects.hpp"
#include "jinja/operators.hpp"

namespace ferry::engine::jinja {

std::optional<Value> Loop::advance(Rendering& run) {
  const IteratorPtr items = items_;  // a copy: asking for the length may replace `items_` meanwhile
  std::optional<Value> item = after_ ? std::exchange(after_, std::nullopt) : items->next(run);
  if (!item) return std::nullopt;
  ++count_;
  before_ = std::exchange(current_, *item);
  return item;
}

void Loop::end() {
  iterable_ = before_ = current_ = Value();
  after_.reset();
  last_changed_.reset();
  items_.reset();
  ended_ = true;
}

bool Loop::look_ahead(Rendering& run) {
  const IteratorPtr items = items_;
  if (!after_) after_ = items->next(run);
  return after_.has_value();
}

/// The number of items. Without a known length, the rest is listed.
std::size_t Loop::counted(Rendering& run) {
  if (!length_) length_ = length_of(run, iterable_);
  if (!length_) {
    const IteratorPtr items = items_;
    Values rest;
    while (auto item = items->next(run)) rest.push_back(*std::move(item));
    length_ = rest.size() + count_ + (after_ ? 1 : 0);
    items_ = iterate(run, std::move(rest));
  }
  return *length_;
}

std::optional<std::size_t> Loop::length(Rendering& run) {
  if (ended_) run.fail("a loop is asked for its length behind its end, expected that within it");
  return counted(run);
}

std::string Loop::shown(Rendering& run) const {
  run.fail("a loop as text, expected one of its attributes");
}

Value Loop::at(Rendering& run, bool exists, const Value& value, const char* name) const {
  return exists ? value : Value(Undefined{std::get<Text>(run.text(name)).data});
}

Value Loop::method(Rendering& run, Value (*body)(Rendering&, Loop&, const Arguments&), const char* name) {
  const auto self = std::static_pointer_cast<Loop>(shared_from_this());
  return run.make<Function>(depth + 1, name, [self, body](Rendering& running, const Arguments& arguments) {
    return body(running, *self, arguments);
  });
}

Value Loop::cycle(Rendering& run, const Arguments& arguments) const {
  const Values& all = arguments.positional;
  if (all.empty() || !arguments.named.empty()) run.fail("loop.cycle got no values, expected some");
  return all[(count_ == 0 ? 0 : count_ - 1) % all.size()];
}

Value Loop::changed(Rendering& run, const Arguments& arguments) {
  if (ended_) run.fail("loop.changed behind the end of the loop, expected it within");
  Value now = run.tuple(arguments.positional);
  if (last_changed_ && jinja::equals(run, *last_changed_, now)) return false;
  last_changed_ = std::move(now);
  return true;
}

std::optional<Value> Loop::attribute(Rendering& run, std::string_view name) {
  if (ended_) run.fail(fmt::format("loop.{} behind the end of the loop, expected it within", name));
  const auto count = static_cast<std::int64_t>(count_);
  const auto left = [&] { return static_cast<std::int64_t>(counted(run)) - count; };
  if (name == "index") return count;
  if (name == "index0") return count - 1;
  if (name == "first") return count == 1;
  if (name == "last") return !look_ahead(run);
  if (name == "length") return static_cast<std::int64_t>(counted(run));
  if (name == "revindex") return left() + 1;
  if (name == "revindex0") return left();
  if (name == "depth") return std::int64_t{1};
  if (name == "depth0") return std::int64_t{0};
  if (name == "previtem") return at(run, count > 1, before_, "the item before the first");
  if (name == "nextitem") {
    const bool exists = look_ahead(run);
    return at(run, exists, exists ? *after_ : Value(), "the item behind the last");
  }
  if (name == "cycle") {
    return method(
        run, [](Rendering& r, Loop& self, const Arguments& a) { return self.cycle(r, a); }, "cycle");
  }
  if (name == "changed") {
    return method(
        run, [](Rendering& r, Loop& self, const Arguments& a) { return self.changed(r, a); }, "changed");
  }
  return std::nullopt;
}

}  // namespace ferry::engine::jinja
