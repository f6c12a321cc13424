#include "jinja/jinja.hpp"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "jinja/interpreter.hpp"
#include "jinja/lexer.hpp"
#include "jinja/parser.hpp"
#include "jinja/places.hpp"
#include "jinja/rendering.hpp"
#include "support/errors.hpp"
#include "support/utf8.hpp"

namespace ferry::engine {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t longest_template = 1U << 20U;

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

/// The context as values.
class Importer {
 public:
  explicit Importer(jinja::Rendering& run) : run_(run) {}

  jinja::Value value(const ordered_json& json) {
    const jinja::Rendering::Deeper deeper(run_);
    run_.work();
    switch (json.type()) {
      case ordered_json::value_t::null:
        return jinja::None{};
      case ordered_json::value_t::boolean:
        return json.get<bool>();
      case ordered_json::value_t::number_integer:
        return json.get<std::int64_t>();
      case ordered_json::value_t::number_unsigned:
        return whole(json.get<std::uint64_t>());
      case ordered_json::value_t::number_float:
        return json.get<double>();
      case ordered_json::value_t::string:
        return text(json.get_ref<const std::string&>());
      case ordered_json::value_t::array:
        return list(json);
      case ordered_json::value_t::object:
        return dict(json);
      default:
        run_.fail("the context holds bytes, expected values that JSON has");
    }
  }

 private:
  jinja::Value whole(std::uint64_t number) {
    if (number > INT64_MAX) run_.fail(fmt::format("the context holds {}, expected numbers of 64 bits", number));
    return static_cast<std::int64_t>(number);
  }

  jinja::Value text(const std::string& text) {
    run_.room_for_text(text.size());
    if (valid_utf8(text) != text) run_.fail("the context holds a text that is no UTF-8, expected UTF-8");
    return run_.text(text);
  }

  jinja::Value list(const ordered_json& json) {
    run_.room_for(json.size(), sizeof(jinja::Value));
    jinja::Values items;
    for (const ordered_json& item : json) items.push_back(value(item));
    return run_.list(std::move(items));
  }

  jinja::Value dict(const ordered_json& json) {
    std::vector<std::pair<jinja::Value, jinja::Value>> entries;
    for (const auto& [key, item] : json.items()) {
      jinja::Value name = text(key);
      entries.emplace_back(std::move(name), value(item));
    }
    return run_.dict(std::move(entries));
  }

  jinja::Rendering& run_;
};

std::shared_ptr<const jinja::Tree> tree_of(const std::string& source, const std::string& name) {
  if (source.size() > longest_template) {
    throw InputError(
        fmt::format("{}: line 1: a template of {} bytes, expected {} at most", name, source.size(), longest_template));
  }
  if (valid_utf8(source) != source) throw InputError(name + ": line 1: a template that is no UTF-8, expected UTF-8");
  auto tree = std::make_shared<jinja::Tree>(jinja::parse(jinja::tokens_of(source, name), name));
  jinja::find_places(*tree, name);
  return tree;
}

}  // namespace

JinjaTemplate::JinjaTemplate(const std::string& source, std::string name)
    : name_(std::move(name)), tree_(tree_of(source, name_)), now_(local_time) {}

std::string JinjaTemplate::render(const ordered_json& context) const {
  if (!context.is_object()) throw InputError(name_ + ": line 1: a context that is no object, expected one");
  try {
    jinja::Rendering run(name_, now_);
    const jinja::Value values = Importer(run).value(context);
    return jinja::Interpreter(run, *tree_, *jinja::dict_of(values)).print();
  } catch (const std::bad_alloc&) {
    throw InputError(name_ + ": not enough memory to render it, expected a smaller context");
  }
}

}  // namespace ferry::engine
