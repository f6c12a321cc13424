#include "jinja/objects.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "jinja/access.hpp"
#include "jinja/format.hpp"
#include "jinja/operators.hpp"

namespace ferry::engine::jinja {
namespace {

constexpr std::size_t longest_range = 100'000;  // the sandbox's MAX_RANGE

std::size_t range_size(std::int64_t start, std::int64_t stop, std::int64_t step) {
  const auto distance = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const auto stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  if (distance <= 0) return 0;
  return static_cast<std::size_t>(std::min<__int128>((distance - 1) / stride + 1, INT64_MAX));
}

Value make_range(Rendering& run, const Arguments& given) {
  if (given.positional.empty() || given.positional.size() > 3 || !given.named.empty()) {
    run.fail("range got other arguments, expected one to three numbers");
  }
  std::array<std::int64_t, 3> numbers{0, 0, 1};
  const bool only_stop = given.positional.size() == 1;
  for (std::size_t i = 0; i < given.positional.size(); ++i) {
    const auto whole = whole_of(given.positional[i]);
    if (!whole) run.fail(fmt::format("range of {}, expected whole numbers", a_type_of(given.positional[i])));
    numbers[only_stop ? 1 : i] = *whole;
  }
  if (numbers[2] == 0) run.fail("range with a step of 0, expected another");
  auto made = run.make<Range>(1, numbers[0], numbers[1], numbers[2]);
  if (made->size() > longest_range) {
    run.fail(fmt::format("a range of more than {} numbers, expected fewer", longest_range));
  }
  return made;
}

/// The entries that dict(...) and namespace(...) get: those of another dict or of pairs first, then the named ones.
std::vector<std::pair<Value, Value>> entries_of(Rendering& run, const Arguments& given, const char* who) {
  std::vector<std::pair<Value, Value>> entries;
  if (given.positional.size() > 1) run.fail(fmt::format("{} got several values, expected one at most", who));
  if (!given.positional.empty()) {
    const Value& from = given.positional[0];
    if (is_undefined(from)) run.fail_undefined(from);
    if (const DictData* dict = dict_of(from)) {
      entries = dict->entries();
    } else {
      for (const Value& pair : collect(run, from, who)) {
        const Values both = collect(run, pair, who);
        if (both.size() != 2) run.fail(fmt::format("{} of something else, expected pairs", who));
        entries.emplace_back(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : given.named) entries.emplace_back(run.text(name), value);
  return entries;
}

Value make_dict(Rendering& run, const Arguments& given) {
  return run.dict(entries_of(run, given, "dict"));
}

Value make_namespace(Rendering& run, const Arguments& given) {
  auto made = run.make<Namespace>(1);
  run.keep(made);
  for (auto& [name, value] : entries_of(run, given, "namespace")) made->set(run, name, std::move(value));
  return made;
}

std::uint32_t depth_of_all(const Values& values) {
  std::uint32_t depth = 0;
  for (const Value& value : values) depth = std::max(depth, depth_of(value));
  return depth;
}

Value make_cycler(Rendering& run, const Arguments& given) {
  if (given.positional.empty() || !given.named.empty()) run.fail("cycler got no values, expected some");
  return run.make<Cycler>(depth_of_all(given.positional) + 1, given.positional);
}

Value make_joiner(Rendering& run, const Arguments& given) {
  const Parameters got(run, "joiner", given, {"sep"}, 0);
  Value separator = got.has(0) ? got.at(0) : run.text(", ");
  const std::uint32_t depth = depth_of(separator) + 1;
  return run.make<Joiner>(depth, std::move(separator));
}

Value raise_exception(Rendering& run, const Arguments& given) {
  const Parameters got(run, "raise_exception", given, {"message"}, 1);
  run.fail(printed(run, got.at(0)));
}

/// One conversion of strftime, with its flag or 0. Dates have no time zone here.
std::string formatted_time(Rendering& run, const std::tm& time, char flag, char conversion) {
  constexpr std::string_view known = "aAbBcCdDeFgGhHIjmMnprRStTuUVwWxXyY%";
  if (conversion == 'z' || conversion == 'Z') return "";
  if (known.find(conversion) == std::string_view::npos) {
    run.fail(fmt::format("strftime_now: %{} is not supported", conversion));
  }
  const std::string format = flag == '\0' ? std::string{'%', conversion} : std::string{'%', flag, conversion};
  std::array<char, 128> out{};
  return {out.data(), std::strftime(out.data(), out.size(), format.c_str(), &time)};
}

Value strftime_now(Rendering& run, const Arguments& given) {
  const Parameters got(run, "strftime_now", given, {"format"}, 1);
  const std::string& format = got.text(0).text;
  const std::tm time = run.now();
  TextBuilder out(run);
  for (std::size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out.add(1, format[at]);
    } else {
      const std::size_t conversion = format.find_first_not_of("-_0^#", ++at);
      if (conversion == std::string::npos || conversion > at + 1) {
        run.fail("strftime_now: a % without a letter behind it, expected one and one flag at most");
      }
      out.add(formatted_time(run, time, conversion > at ? format[at] : '\0', format[conversion]));
      at = conversion;
    }
  }
  return run.text(out.take());
}

}  // namespace

Range::Range(std::int64_t start, std::int64_t stop, std::int64_t step)
    : start_(start), stop_(stop), step_(step), size_(range_size(start, stop, step)) {}

std::string Range::shown(Rendering& /*run*/) const {
  return step_ == 1 ? fmt::format("range({}, {})", start_, stop_)
                    : fmt::format("range({}, {}, {})", start_, stop_, step_);
}

std::optional<Value> Range::attribute(Rendering& /*run*/, std::string_view name) {
  if (name == "start") return start_;
  if (name == "stop") return stop_;
  return name == "step" ? std::optional<Value>(step_) : std::nullopt;
}

std::optional<Value> Range::item(Rendering& /*run*/, const Value& key) {
  const auto index = whole_of(key);
  if (!index) return std::nullopt;
  const auto length = static_cast<std::int64_t>(size_);
  const std::int64_t place = *index < 0 ? *index + length : *index;
  return place < 0 || place >= length ? std::nullopt : std::optional<Value>(at(static_cast<std::size_t>(place)));
}

IteratorPtr Range::items(Rendering& run) {
  const auto self = std::static_pointer_cast<Range>(shared_from_this());
  return run.make<Generator>(1, [self, index = std::size_t{0}](Rendering&) mutable {
    return index < self->size() ? std::optional<Value>(self->at(index++)) : std::nullopt;
  });
}

bool Range::equals(Rendering& /*run*/, const Object& other) const {
  const auto* range = dynamic_cast<const Range*>(&other);
  if (range == nullptr || range->size_ != size_) return false;
  return size_ == 0 || (range->start_ == start_ && (size_ == 1 || range->step_ == step_));
}

std::string Namespace::shown(Rendering& run) const {
  return "<Namespace " + shown_dict(run, attributes_) + ">";
}

std::optional<Value> Namespace::attribute(Rendering& /*run*/, std::string_view name) {
  const Value* found = attributes_.find(name);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

void Namespace::set(Rendering& run, const Value& name, Value value) {
  const TextData* text = text_of(name);
  if (text != nullptr && text->text.starts_with("_")) {
    run.fail(fmt::format("an attribute {} of a namespace, expected a name that begins with a letter", text->text));
  }
  constexpr std::size_t bytes_an_attribute = 2 * sizeof(Value) + 64;
  const std::size_t before = attributes_.size();
  run.work();
  run.room_for(1, bytes_an_attribute);
  if (!attributes_.set(name, std::move(value))) run.fail("an attribute that is no text, expected a name");
  if (attributes_.size() > before) charge.grow(bytes_an_attribute);
}

std::string DictView::type() const {
  return part_ == Part::keys ? "dict_keys" : part_ == Part::values ? "dict_values" : "dict_items";
}

std::string DictView::shown(Rendering& run) const {
  Values all;
  for (std::size_t i = 0; i < dict_.data->size(); ++i) all.push_back(at(run, i));
  return type() + "(" + represented(run, run.list(std::move(all))) + ")";
}

Value DictView::at(Rendering& run, std::size_t index) const {
  const auto& [key, value] = dict_.data->entries()[index];
  return part_ == Part::keys ? key : part_ == Part::values ? value : run.tuple({key, value});
}

IteratorPtr DictView::items(Rendering& run) {
  const auto self = std::static_pointer_cast<DictView>(shared_from_this());
  return run.make<Generator>(depth + 1, [self, index = std::size_t{0}](Rendering& running) mutable {
    return index < self->dict_.data->size() ? std::optional(self->at(running, index++)) : std::nullopt;
  });
}

std::optional<bool> DictView::contains(Rendering& run, const Value& value) {
  if (part_ == Part::values) return std::nullopt;  // the caller compares them one by one
  if (part_ == Part::keys) return dict_.data->find(value) != nullptr;
  const ListData* pair = std::holds_alternative<Tuple>(value) ? list_of(value) : nullptr;
  if (pair == nullptr || pair->items.size() != 2) return false;
  const Value* found = dict_.data->find(pair->items[0]);
  return found != nullptr && jinja::equals(run, *found, pair->items[1]);
}

/// Keys and items compare as sets.
bool DictView::equals(Rendering& run, const Object& other) const {
  const auto* view = dynamic_cast<const DictView*>(&other);
  if (view == nullptr || view->part_ != part_ || part_ == Part::values) return this == &other;
  if (view->dict_.data->size() != dict_.data->size()) return false;
  for (const auto& [key, value] : dict_.data->entries()) {
    const Value* found = view->dict_.data->find(key);
    if (found == nullptr || (part_ == Part::items && !jinja::equals(run, *found, value))) return false;
  }
  return true;
}

std::optional<Value> Cycler::attribute(Rendering& run, std::string_view name) {
  if (name == "current") return values_[at_];
  if (name != "next" && name != "reset") return std::nullopt;
  const auto self = std::static_pointer_cast<Cycler>(shared_from_this());
  const bool resets = name == "reset";
  return run.make<Function>(depth + 1, std::string(name), [self, resets](Rendering&, const Arguments&) -> Value {
    const std::size_t was = self->at_;
    self->at_ = resets ? 0 : (was + 1) % self->values_.size();
    return resets ? Value(None{}) : self->values_[was];
  });
}

Value Joiner::call(Rendering& run, const Arguments& /*arguments*/) {
  return std::exchange(used_, true) ? separator_ : run.text("");
}

std::optional<Value> Generator::next(Rendering& run) {
  if (ended_) return std::nullopt;
  if (running_) run.fail("a generator is asked for an item while it makes one, expected it to have it first");
  const Rendering::Deeper deeper(run);
  run.work();
  running_ = true;  // stays set if `next_` throws: then nothing is evaluated any more
  auto value = next_(run);
  running_ = false;
  ended_ = !value;
  return value;
}

IteratorPtr iterate(Rendering& run, Values values) {
  const std::uint32_t depth = depth_of_all(values) + 1;
  const std::size_t bytes = values.size() * sizeof(Value);
  run.room_for(bytes, 1);
  auto made = run.make<Generator>(depth, [values = std::move(values), at = std::size_t{0}](Rendering&) mutable {
    return at < values.size() ? std::optional(values[at++]) : std::nullopt;
  });
  made->charge.grow(bytes);
  return made;
}

std::optional<Value> global(Rendering& run, std::string_view name) {
  using Maker = Value (*)(Rendering&, const Arguments&);
  constexpr std::array<std::pair<std::string_view, Maker>, 7> all{{{"range", make_range},
                                                                   {"namespace", make_namespace},
                                                                   {"dict", make_dict},
                                                                   {"cycler", make_cycler},
                                                                   {"joiner", make_joiner},
                                                                   {"raise_exception", raise_exception},
                                                                   {"strftime_now", strftime_now}}};
  for (const auto& [known, maker] : all) {
    if (known == name) return run.make<Function>(1, std::string(name), maker);
  }
  return std::nullopt;
}

bool is_unsupported_global(std::string_view name) {
  return name == "lipsum";
}

}  // namespace ferry::engine::jinja
