#include "jinja/places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "jinja/errors.hpp"
#include "jinja/names.hpp"

namespace ferry::engine::jinja {
namespace {

/// What is called as a whole and has its own variables: the template, or a macro.
struct Call {
  std::uint32_t slots = 0;
  bool outlived = false;
};

/// The names of one block.
class Frame {
 public:
  Frame(Frame* outer, Call& call, Scope& scope) : outer_(outer), call_(call), scope_(scope) {}

  [[nodiscard]] Call& call() const { return call_; }

  [[nodiscard]] std::optional<Place> find(const std::string& name) const {
    if (const auto own = own_.find(name); own != own_.end()) return Place{0, own->second};
    std::optional<Place> place = outer_ == nullptr ? std::nullopt : outer_->find(name);
    if (place && &outer_->call_ != &call_) ++place->calls_up;
    return place;
  }

  std::uint32_t parameter(const std::string& name) {
    const auto [own, fresh] = own_.try_emplace(name, call_.slots);
    if (fresh) scope_.slots.push_back(call_.slots++);
    return own->second;
  }

  void read(const std::string& name) {
    if (!find(name)) own(name, Entry::Kind::from_context, {});
  }

  void set(const std::string& name, bool within_if) {
    if (own_.count(name) != 0) return;
    if (const auto outside = find(name)) {
      own(name, Entry::Kind::copied, *outside);
    } else {
      own(name, within_if ? Entry::Kind::from_context : Entry::Kind::unset, {});
    }
  }

 private:
  void own(const std::string& name, Entry::Kind kind, Place from) {
    scope_.entries.push_back({kind, parameter(name), name, from});
  }

  Frame* outer_;
  Call& call_;
  Scope& scope_;
  std::map<std::string, std::uint32_t> own_;
};

/// Collects the names that belong to a block. Those in inner blocks do not, except in expressions that are evaluated before
/// the inner block is entered.
class Collector {
 public:
  explicit Collector(Frame& frame) : frame_(frame) {}

  void body(Statements& body) {
    for (Statement& statement : body) std::visit([this](auto& is) { this->statement(is); }, statement.is);
  }

  void read(const ExpressionPtr& expression) {
    if (expression) read(*expression);
  }

  void parameters(const Target& target) {
    for (const Target& part : target.parts) parameters(part);
    if (!target.is_tuple) frame_.parameter(target.variable.name);
  }

 private:
  void read(Expression& expression) {
    if (const auto* variable = std::get_if<Variable>(&expression.is)) frame_.read(variable->name);
    for_each_below(expression, [this](Expression& below) { read(below); });
  }

  void set(const Target& target) {
    for (const Target& part : target.parts) set(part);
    if (target.is_tuple) return;
    if (target.attribute) {
      frame_.read(target.variable.name);
    } else {
      frame_.set(target.variable.name, ifs_ > 0);
    }
  }

  void statement(Data& /*is*/) {}
  void statement(Break& /*is*/) {}
  void statement(Continue& /*is*/) {}
  void statement(Print& is) { read(is.value); }
  void statement(If& is) {
    read(is.branches[0].first);
    ++ifs_;
    for (auto& [test, branch] : is.branches) {
      read(test);
      body(branch);
    }
    body(is.otherwise);
    --ifs_;
  }
  void statement(For& is) { read(is.items); }
  void statement(Set& is) {
    read(is.value);
    set(is.target);
  }
  void statement(Capture& is) {
    if (is.target) {
      set(*is.target);
    } else {
      read(is.filter);
    }
  }
  void statement(Block& is) {
    for (const auto& [target, value] : is.variables) read(value);
  }
  void statement(Macro& is) { frame_.set(is.variable.name, ifs_ > 0); }
  void statement(CallBlock& is) { read(is.call); }

  Frame& frame_;
  std::uint32_t ifs_ = 0;
};

class PlaceFinder {
 public:
  PlaceFinder(Tree& tree, const std::string& name) : tree_(tree), name_(name) {}

  void run() {
    Call call;
    Frame frame(nullptr, call, tree_.scope);
    Collector(frame).body(tree_.body);
    body(tree_.body, frame, false);
    tree_.slots = call.slots;
  }

 private:
  [[noreturn]] void fail(std::uint32_t line, const std::string& what) const { fail_at(name_, line, what); }

  /// `soft`: the body may never run, so that unknown filters and tests in it are refused only when it does.
  void body(Statements& body, Frame& frame, bool soft) {
    for (Statement& each : body) {
      line_ = each.line;
      std::visit([&](auto& is) { this->statement(is, frame, soft); }, each.is);
    }
  }

  void expression(const ExpressionPtr& expression, Frame& frame, bool soft) {
    if (expression) this->expression(*expression, frame, soft);
  }

  void expression(Expression& expression, Frame& frame, bool soft) {
    if (auto* variable = std::get_if<Variable>(&expression.is)) {
      if (variable->name == "self") fail(expression.line, "self is not supported");
      variable->place = *frame.find(variable->name);
    }
    const auto* filtered = std::get_if<Filtered>(&expression.is);
    if (filtered != nullptr && filtered->filter == nullptr && !soft) {
      fail(expression.line, fmt::format("a filter {}, expected one that exists", filtered->name));
    }
    const auto* tested = std::get_if<Tested>(&expression.is);
    if (tested != nullptr && tested->test == nullptr && !soft) {
      fail(expression.line, fmt::format("a test {}, expected one that exists", tested->name));
    }
    const bool below_soft = soft || std::holds_alternative<Conditional>(expression.is);
    for_each_below(expression, [&](Expression& below) { this->expression(below, frame, below_soft); });
  }

  void target(Target& target, Frame& frame) const {
    for (Target& part : target.parts) this->target(part, frame);
    if (target.is_tuple) return;
    if (loops_ > 0 && target.variable.name == "loop" && !target.attribute) {
      fail(target.line, "loop is set within a loop, expected another name");
    }
    target.variable.place = *frame.find(target.variable.name);
  }

  void statement(Data& /*is*/, Frame& /*frame*/, bool /*soft*/) {}
  void statement(Break& /*is*/, Frame& /*frame*/, bool /*soft*/) {}
  void statement(Continue& /*is*/, Frame& /*frame*/, bool /*soft*/) {}
  void statement(Print& is, Frame& frame, bool soft) { expression(is.value, frame, soft); }

  void statement(If& is, Frame& frame, bool /*soft*/) {
    for (auto& [test, branch] : is.branches) {
      expression(test, frame, true);
      body(branch, frame, true);
    }
    body(is.otherwise, frame, true);
  }

  void statement(For& is, Frame& outside, bool soft) {
    expression(is.items, outside, soft);
    ++loops_;
    Frame frame(&outside, outside.call(), is.scope);
    if (reads_first(is.body, "loop")) is.loop = frame.parameter("loop");
    Collector names(frame);
    names.parameters(is.target);
    names.body(is.body);
    target(is.target, frame);
    body(is.body, frame, false);
    Frame test_frame(&outside, outside.call(), is.test_scope);
    Collector test_names(test_frame);
    test_names.parameters(is.test_target);
    test_names.read(is.test);
    target(is.test_target, test_frame);
    expression(is.test, test_frame, false);
    block(is.otherwise, outside, is.otherwise_scope);
    --loops_;
  }

  void block(Statements& inside, Frame& outside, Scope& scope) {
    Frame frame(&outside, outside.call(), scope);
    Collector(frame).body(inside);
    body(inside, frame, false);
  }

  void statement(Set& is, Frame& frame, bool soft) {
    expression(is.value, frame, soft);
    target(is.target, frame);
  }

  void statement(Capture& is, Frame& outside, bool /*soft*/) {
    if (is.target) target(*is.target, outside);
    Frame frame(&outside, outside.call(), is.scope);
    Collector names(frame);
    names.body(is.body);
    names.read(is.filter);
    body(is.body, frame, false);
    expression(is.filter, frame, false);
  }

  void statement(Block& is, Frame& outside, bool soft) {
    for (auto& [target, value] : is.variables) expression(value, outside, soft);
    Frame frame(&outside, outside.call(), is.scope);
    Collector names(frame);
    for (auto& [target, value] : is.variables) names.parameters(target);
    names.body(is.body);
    for (auto& [target, value] : is.variables) with_target(target, frame);
    body(is.body, frame, false);
  }

  /// Unlike `set`, `with` may set `loop`.
  static void with_target(Target& target, Frame& frame) {
    for (Target& part : target.parts) with_target(part, frame);
    if (!target.is_tuple) target.variable.place = *frame.find(target.variable.name);
  }

  void statement(Macro& is, Frame& outside, bool /*soft*/) {
    is.variable.place = *outside.find(is.variable.name);
    macro(is.macro, outside);
  }

  void statement(CallBlock& is, Frame& outside, bool soft) {
    expression(is.call, outside, soft);
    macro(is.macro, outside);
  }

  void macro(MacroBody& macro, Frame& outside) {
    outside.call().outlived = true;
    Call call;
    Frame frame(&outside, call, macro.scope);
    Collector names(frame);
    for (Variable& parameter : macro.parameters) parameter.place = {0, frame.parameter(parameter.name)};
    const auto declares = [&](std::string_view name) {
      return std::any_of(macro.parameters.begin(), macro.parameters.end(),
                         [&](const auto& p) { return p.name == name; });
    };
    const std::size_t without_default = macro.parameters.size() - macro.defaults.size();
    for (std::size_t i = 0; i < without_default; ++i) {
      if (macro.parameters[i].name == "caller" && reads_first(macro.body, "caller")) {
        fail(line_, "a parameter caller without a default, expected none or one with it");
      }
    }
    const auto special = [&](const char* name) {
      return !declares(name) && reads_first(macro.body, name) ? std::optional(frame.parameter(name)) : std::nullopt;
    };
    macro.caller = special("caller");
    macro.more_named = special("kwargs");
    macro.more_positional = special("varargs");
    for (const ExpressionPtr& each : macro.defaults) names.read(each);
    names.body(macro.body);
    for (const ExpressionPtr& each : macro.defaults) expression(each, frame, false);
    body(macro.body, frame, false);
    macro.slots = call.slots;
    macro.outlived = call.outlived;
  }

  Tree& tree_;
  const std::string& name_;
  std::uint32_t line_ = 1, loops_ = 0;
};

}  // namespace

void find_places(Tree& tree, const std::string& name) {
  PlaceFinder(tree, name).run();
}

}  // namespace ferry::engine::jinja
