/// @file
/// The objects that templates meet: ranges, namespaces, functions, what loops and dicts give out.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "jinja/rendering.hpp"
#include "jinja/value.hpp"

namespace ferry::engine::jinja {

/// Numbers at the same distance; has at most as many as the sandbox allows.
class Range : public Object {
 public:
  Range(std::int64_t start, std::int64_t stop, std::int64_t step);

  [[nodiscard]] std::string type() const override { return "range"; }
  [[nodiscard]] std::string shown(Rendering& run) const override;
  std::optional<Value> attribute(Rendering& run, std::string_view name) override;
  std::optional<Value> item(Rendering& run, const Value& key) override;
  std::optional<std::size_t> length(Rendering& /*run*/) override { return size(); }
  [[nodiscard]] bool has_items() const override { return true; }
  IteratorPtr items(Rendering& run) override;
  [[nodiscard]] bool equals(Rendering& run, const Object& other) const override;

  /// Saturates: a range that is too long need not be exact.
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::int64_t at(std::size_t index) const { return start_ + static_cast<std::int64_t>(index) * step_; }
  [[nodiscard]] std::int64_t step() const { return step_; }

 private:
  std::int64_t start_, stop_, step_;
  std::size_t size_;
};

/// What set can give attributes to.
class Namespace : public Object {
 public:
  [[nodiscard]] std::string type() const override { return "Namespace"; }
  [[nodiscard]] std::string shown(Rendering& run) const override;
  std::optional<Value> attribute(Rendering& run, std::string_view name) override;

  /// Fails for names that begin with an underscore.
  void set(Rendering& run, const Value& name, Value value);
  /// Lets go of all values.
  void clear() { attributes_ = DictData(); }

 private:
  DictData attributes_;
};

/// A global function or a method with what it is a method of.
class Function : public Object {
 public:
  using Body = std::function<Value(Rendering&, const Arguments&)>;
  Function(std::string name, Body body) : name_(std::move(name)), body_(std::move(body)) {}

  [[nodiscard]] std::string type() const override { return "function"; }
  [[nodiscard]] bool callable() const override { return true; }
  Value call(Rendering& run, const Arguments& arguments) override { return body_(run, arguments); }

 private:
  std::string name_;
  Body body_;
};

/// What keys(), values() and items() give.
class DictView : public Object {
 public:
  enum class Part { keys, values, items };
  DictView(Dict dict, Part part) : dict_(std::move(dict)), part_(part) {}

  [[nodiscard]] std::string type() const override;
  [[nodiscard]] std::string shown(Rendering& run) const override;
  std::optional<std::size_t> length(Rendering& /*run*/) override { return dict_.data->size(); }
  IteratorPtr items(Rendering& run) override;
  std::optional<bool> contains(Rendering& run, const Value& value) override;
  [[nodiscard]] bool equals(Rendering& run, const Object& other) const override;

  [[nodiscard]] Value at(Rendering& run, std::size_t index) const;

 private:
  Dict dict_;
  Part part_;
};

/// cycler(...): gives its values in turn.
class Cycler : public Object {
 public:
  explicit Cycler(Values values) : values_(std::move(values)) {}

  [[nodiscard]] std::string type() const override { return "Cycler"; }
  std::optional<Value> attribute(Rendering& run, std::string_view name) override;

 private:
  Values values_;
  std::size_t at_ = 0;
};

/// joiner(...): nothing the first time that it is called, then the separator.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}

  [[nodiscard]] std::string type() const override { return "Joiner"; }
  [[nodiscard]] bool callable() const override { return true; }
  Value call(Rendering& run, const Arguments& arguments) override;

 private:
  Value separator_;
  bool used_ = false;
};

/// Gives what a function gives, until that is none.
class Generator : public Iterator {
 public:
  using Next = std::function<std::optional<Value>(Rendering&)>;
  explicit Generator(Next next) : next_(std::move(next)) {}

  std::optional<Value> next(Rendering& run) override;

 private:
  Next next_;
  bool running_ = false, ended_ = false;
};

/// `loop`. It looks ahead only when asked, as what a filter of the loop decides may depend on what its body did before.
class Loop : public Object {
 public:
  Loop(Value iterable, IteratorPtr items) : iterable_(std::move(iterable)), items_(std::move(items)) {}

  /// The next item, which becomes the current one.
  std::optional<Value> advance(Rendering& run);
  /// Lets go of all values. A template may keep a loop that is over, but not ask it for more.
  void end();

  [[nodiscard]] std::string type() const override { return "LoopContext"; }
  [[nodiscard]] std::string shown(Rendering& run) const override;
  std::optional<Value> attribute(Rendering& run, std::string_view name) override;
  std::optional<std::size_t> length(Rendering& run) override;
  [[nodiscard]] bool callable() const override { return true; }

 private:
  Value at(Rendering& run, bool exists, const Value& value, const char* name) const;
  bool look_ahead(Rendering& run);
  Value cycle(Rendering& run, const Arguments& arguments) const;
  Value changed(Rendering& run, const Arguments& arguments);
  std::size_t counted(Rendering& run);
  Value method(Rendering& run, Value (*body)(Rendering&, Loop&, const Arguments&), const char* name);

  Value iterable_;
  IteratorPtr items_;
  Value before_, current_;
  std::optional<Value> after_;
  std::optional<Value> last_changed_;
  std::optional<std::size_t> length_;
  std::size_t count_ = 0;  ///< items that came
  bool ended_ = false;
};

IteratorPtr iterate(Rendering& run, Values values);

/// The functions that every template has: range, namespace, dict, cycler, joiner, raise_exception, strftime_now.
std::optional<Value> global(Rendering& run, std::string_view name);
/// jinja2's own that are not supported, so that they can be refused by name.
bool is_unsupported_global(std::string_view name);

}  // namespace ferry::engine::jinja
