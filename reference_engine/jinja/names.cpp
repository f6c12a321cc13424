#include "jinja/names.hpp"

namespace ferry::engine::jinja {
namespace {

/// Calls a function with the expressions directly below a node.
template <class Visit>
struct Below {
  const Visit& visit;

  void one(const ExpressionPtr& expression) const {
    if (expression) visit(*expression);
  }
  void all(const Expressions& expressions) const {
    for (const ExpressionPtr& each : expressions) one(each);
  }
  void given(const Given& given) const {
    all(given.positional);
    for (const auto& [name, value] : given.named) one(value);
    one(given.all_positional);
    one(given.all_named);
  }

  void operator()(const Constant& /*is*/) const {}
  void operator()(const Variable& /*is*/) const {}
  void operator()(const Captured& /*is*/) const {}
  void operator()(const ListItems& is) const { all(is.items); }
  void operator()(const DictItems& is) const {
    for (const auto& [key, value] : is.entries) {
      one(key);
      one(value);
    }
  }
  void operator()(const Not& is) const { one(is.of); }
  void operator()(const Signed& is) const { one(is.of); }
  void operator()(const Calculation& is) const {
    one(is.left);
    one(is.right);
  }
  void operator()(const Choice& is) const {
    one(is.left);
    one(is.right);
  }
  void operator()(const Comparison& is) const {
    one(is.first);
    for (const auto& [comparator, operand] : is.rest) one(operand);
  }
  void operator()(const Concatenation& is) const { all(is.parts); }
  void operator()(const AttributeOf& is) const { one(is.of); }
  void operator()(const ItemOf& is) const {
    one(is.of);
    one(is.key);
  }
  void operator()(const SliceOf& is) const {
    one(is.of);
    one(is.start);
    one(is.stop);
    one(is.step);
  }
  void operator()(const CallOf& is) const {
    one(is.function);
    given(is.given);
  }
  void operator()(const Filtered& is) const {
    one(is.of);
    given(is.given);
  }
  void operator()(const Tested& is) const {
    one(is.of);
    given(is.given);
  }
  void operator()(const Conditional& is) const {
    one(is.test);
    one(is.then);
    one(is.otherwise);
  }
};

/// Looks for one name, until its first use is found.
class FirstUse {
 public:
  explicit FirstUse(std::string_view name) : name_(name) {}

  void in(const Statements& body) {
    for (const Statement& statement : body) {
      if (read_) return;
      std::visit([this](const auto& is) { this->statement(is); }, statement.is);
    }
  }

  [[nodiscard]] bool read() const { return read_ && *read_; }

 private:
  void found(bool read) {
    if (!read_) read_ = read;
  }

  void in(const ExpressionPtr& expression) {
    if (expression) in(*expression);
  }
  void in(const Expression& expression) {
    const auto* variable = std::get_if<Variable>(&expression.is);
    if (variable != nullptr && variable->name == name_) found(true);
    for_each_below(expression, [this](const Expression& below) { in(below); });
  }

  void set(const Target& target) {
    for (const Target& part : target.parts) set(part);
    if (!target.is_tuple && !target.attribute && target.variable.name == name_) found(false);
  }

  void macro(const MacroBody& macro) {
    for (const Variable& parameter : macro.parameters) {
      if (parameter.name == name_) found(false);
    }
    for (const ExpressionPtr& each : macro.defaults) in(each);
    in(macro.body);
  }

  void statement(const Data& /*is*/) {}
  void statement(const Break& /*is*/) {}
  void statement(const Continue& /*is*/) {}
  void statement(const Print& is) { in(is.value); }
  void statement(const If& is) {
    for (const auto& [test, body] : is.branches) {
      in(test);
      in(body);
    }
    in(is.otherwise);
  }
  void statement(const For& is) {
    set(is.target);
    in(is.items);
    in(is.body);
    in(is.otherwise);
    in(is.test);
  }
  void statement(const Set& is) {
    set(is.target);
    in(is.value);
  }
  void statement(const Capture& is) {
    if (is.target) {
      set(*is.target);
      in(is.filter);
    }
    in(is.body);
    in(is.filter);
  }
  void statement(const Block& is) {
    for (const auto& [target, value] : is.variables) set(target);
    for (const auto& [target, value] : is.variables) in(value);
    in(is.body);
  }
  void statement(const Macro& is) { macro(is.macro); }
  void statement(const CallBlock& is) {
    in(is.call);
    macro(is.macro);
  }

  std::string_view name_;
  std::optional<bool> read_;
};

}  // namespace

void for_each_below(Expression& expression, const std::function<void(Expression&)>& visit) {
  std::visit(Below<std::function<void(Expression&)>>{visit}, expression.is);
}

void for_each_below(const Expression& expression, const std::function<void(const Expression&)>& visit) {
  std::visit(Below<std::function<void(const Expression&)>>{visit}, expression.is);
}

bool reads_first(const Statements& body, std::string_view name) {
  FirstUse use(name);
  use.in(body);
  return use.read();
}

}  // namespace ferry::engine::jinja
