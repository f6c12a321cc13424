#include "jinja/interpreter.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/access.hpp"
#include "jinja/format.hpp"
#include "jinja/objects.hpp"
#include "jinja/operators.hpp"

namespace ferry::engine::jinja {
namespace {

class MacroValue : public Object {
 public:
  MacroValue(Interpreter& interpreter, const MacroBody& macro, Variables* around)
      : interpreter_(interpreter), macro_(macro), around_(around) {}

  [[nodiscard]] std::string type() const override { return "Macro"; }
  [[nodiscard]] std::string shown(Rendering& run) const override {
    return macro_.name.empty() ? "<Macro anonymous>"
                               : fmt::format("<Macro {}>", represented(run, run.text(macro_.name)));
  }
  std::optional<Value> attribute(Rendering& run, std::string_view name) override {
    return name == "name" ? std::optional(run.text(macro_.name)) : std::nullopt;
  }
  [[nodiscard]] bool callable() const override { return true; }
  Value call(Rendering& /*run*/, const Arguments& given) override {
    return interpreter_.call_macro(macro_, around_, given);
  }

 private:
  Interpreter& interpreter_;
  const MacroBody& macro_;
  Variables* around_;
};

template <class Leave>
class AtEnd {
 public:
  explicit AtEnd(Leave leave) : leave_(std::move(leave)) {}
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  ~AtEnd() { leave_(); }

 private:
  Leave leave_;
};

}  // namespace

/// Switches to other variables and to another output, and back in its destructor.
class Interpreter::Frame {
 public:
  Frame(Interpreter& of, Variables* variables, TextBuilder* out)
      : of_(of), variables_(std::exchange(of.variables_, variables)), out_(std::exchange(of.out_, out)) {}
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  ~Frame() {
    of_.variables_ = variables_;
    of_.out_ = out_;
  }

 private:
  Interpreter& of_;
  Variables* variables_;
  TextBuilder* out_;
};

std::string Interpreter::print() {
  Variables variables(run_, tree_.slots, nullptr);
  TextBuilder out(run_);
  const Frame frame(*this, &variables, &out);
  enter(tree_.scope);
  run(tree_.body);
  return out.take();
}

Interpreter::Flow Interpreter::run(const Statements& body) {
  const Rendering::Deeper deeper(run_);
  for (const Statement& statement : body) {
    run_.work();
    run_.at(statement.line);
    const Flow flow = std::visit([this](const auto& is) { return run_one(is); }, statement.is);
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_one(const Data& is) {
  out_->add(is.text);
  return Flow::on;
}

Interpreter::Flow Interpreter::run_one(const Print& is) {
  const Value printing = value(*is.value);
  const TextData* text = text_of(printing);
  text != nullptr ? out_->add(text->text) : out_->add(printed(run_, printing));
  return Flow::on;
}

Interpreter::Flow Interpreter::run_one(const If& is) {
  for (const auto& [test, body] : is.branches) {
    if (truth(run_, value(*test))) return run(body);
  }
  return run(is.otherwise);
}

Interpreter::Flow Interpreter::run_within(const Statements& body, const Scope& scope) {
  enter(scope);
  const Flow flow = run(body);
  leave(scope);
  return flow;
}

/// The items of a loop that pass its test. Each is tested only when the loop gets to it. As in jinja2, where the test is a
/// generator's, several names make a tuple of an item, whatever it was.
IteratorPtr Interpreter::passing(const For& is, IteratorPtr items) {
  const std::uint32_t depth = items->depth + 1;
  Variables* const variables = variables_;
  return run_.make<Generator>(depth, [this, &is, items = std::move(items), variables](Rendering& running) {
    while (auto item = items->next(running)) {
      const Frame frame(*this, variables, out_);
      assign(is.test_target, *item);
      enter(is.test_scope);
      if (truth(running, value(*is.test))) return is.test_target.is_tuple ? joined(is.test_target) : item;
    }
    return std::optional<Value>();
  });
}

/// As in jinja2, the `else` branch runs if no turn reached the end of the body: there was none, or all ended by break or
/// continue.
Interpreter::Flow Interpreter::run_one(const For& is) {
  const Value iterable = value(*is.items);
  IteratorPtr items = items_of(run_, iterable, "a loop");
  if (is.test) items = passing(is, std::move(items));
  const std::uint32_t depth = std::max(items->depth, depth_of(iterable)) + 1;
  const auto loop = run_.make<Loop>(depth, is.test ? Value(items) : iterable, items);
  bool finished = false;
  {
    const AtEnd end([&] {
      loop->end();
      leave(is.scope);
    });
    while (const auto item = loop->advance(run_)) {
      run_.work();
      assign(is.target, *item);
      if (is.loop) variables_->slots[*is.loop] = loop;
      enter(is.scope);
      const Flow flow = run(is.body);
      if (flow == Flow::breaks) break;
      finished = finished || flow == Flow::on;
    }
  }
  return finished || is.otherwise.empty() ? Flow::on : run_within(is.otherwise, is.otherwise_scope);
}

Interpreter::Flow Interpreter::run_one(const Set& is) {
  check_namespaces(is.target);
  assign(is.target, value(*is.value));
  return Flow::on;
}

Interpreter::Flow Interpreter::run_one(const Capture& is) {
  const std::uint32_t line = run_.line();
  TextBuilder inside(run_);
  Value result;
  enter(is.scope);
  {
    const Frame frame(*this, variables_, &inside);
    if (const Flow flow = run(is.body); flow != Flow::on) return flow;
  }
  run_.at(line);
  result = run_.text(inside.take());
  if (is.filter) {
    const Value outside = std::exchange(captured_, std::move(result));
    result = value(*is.filter);
    captured_ = outside;
  }
  leave(is.scope);
  if (is.target) {
    check_namespaces(*is.target);
    assign(*is.target, result);
  } else {
    out_->add(printed(run_, result));
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run_one(const Block& is) {
  Values values;
  for (const auto& [target, variable] : is.variables) values.push_back(value(*variable));
  for (std::size_t i = 0; i < values.size(); ++i) assign(is.variables[i].first, values[i]);
  return run_within(is.body, is.scope);
}

Interpreter::Flow Interpreter::run_one(const Macro& is) {
  at(is.variable.place) = macro_value(is.macro);
  return Flow::on;
}

Interpreter::Flow Interpreter::run_one(const CallBlock& is) {
  const Value result = call(std::get<CallOf>(is.call->is), macro_value(is.macro));
  out_->add(printed(run_, result));
  return Flow::on;
}

Value Interpreter::macro_value(const MacroBody& macro) {
  return run_.make<MacroValue>(1, *this, macro, variables_);
}

Value Interpreter::call_macro(const MacroBody& macro, Variables* around, const Arguments& given) {
  const Rendering::Deeper deeper(run_);
  const std::uint32_t line = run_.line();
  Variables variables(run_, macro.slots, around);
  Variables* used = &variables;
  if (macro.outlived) {
    if (kept_.size() >= most_kept) {
      run_.fail(fmt::format("more than {} calls of macros within macros, expected fewer", most_kept));
    }
    kept_.push_back(std::make_unique<Variables>(std::move(variables)));
    used = kept_.back().get();
  }
  TextBuilder out(run_);
  {
    const Frame frame(*this, used, &out);
    enter(macro.scope);
    bind(macro, given);
    run(macro.body);
  }
  run_.at(line);
  return run_.text(out.take());
}

void Interpreter::bind(const MacroBody& macro, const Arguments& given) {
  auto named = given.named;
  const std::size_t positional = std::min(given.positional.size(), macro.parameters.size());
  std::vector<bool> missing(macro.parameters.size(), false);
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto found = std::find_if(named.begin(), named.end(),
                                    [&](const auto& argument) { return argument.first == macro.parameters[i].name; });
    Value& slot = at(macro.parameters[i].place);
    if (i < positional) {
      slot = given.positional[i];
    } else if (found != named.end()) {
      slot = std::move(found->second);
      named.erase(found);
    } else {
      missing[i] = true;
    }
  }
  bind_more(macro, std::move(named),
            {given.positional.begin() + static_cast<std::ptrdiff_t>(positional), given.positional.end()});
  const std::size_t without_default = macro.parameters.size() - macro.defaults.size();
  for (std::size_t i = without_default; i < macro.parameters.size(); ++i) {
    if (missing[i]) at(macro.parameters[i].place) = value(*macro.defaults[i - without_default]);
  }
}

/// Binds the arguments that no parameter takes.
void Interpreter::bind_more(const MacroBody& macro, std::vector<std::pair<std::string, Value>> named,
                            const Values& positional) {
  if (macro.caller) {
    const auto caller = std::find_if(named.begin(), named.end(), [](const auto& n) { return n.first == "caller"; });
    if (caller != named.end()) {
      variables_->slots[*macro.caller] = std::move(caller->second);
      named.erase(caller);
    }
  }
  if (macro.more_named) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : named) entries.emplace_back(run_.text(name), std::move(value));
    variables_->slots[*macro.more_named] = run_.dict(std::move(entries));
  } else if (!named.empty()) {
    run_.fail(fmt::format("the macro {} got an argument {}, expected its parameters", macro.name, named[0].first));
  }
  if (macro.more_positional) {
    variables_->slots[*macro.more_positional] = run_.tuple(positional);
  } else if (!positional.empty()) {
    run_.fail(fmt::format("the macro {} got {} arguments, expected {} at most", macro.name,
                          macro.parameters.size() + positional.size(), macro.parameters.size()));
  }
}

Value& Interpreter::at(const Place& place) {
  Variables* variables = variables_;
  for (std::uint32_t i = 0; i < place.calls_up; ++i) variables = variables->outer;
  return variables->slots[place.slot];
}

void Interpreter::enter(const Scope& scope) {
  for (const Entry& entry : scope.entries) {
    Value& slot = variables_->slots[entry.slot];
    switch (entry.kind) {
      case Entry::Kind::unset:
        slot = Undefined{};
        break;
      case Entry::Kind::from_context:
        slot = from_context(entry.name);
        break;
      case Entry::Kind::copied:
        slot = at(entry.from);
        break;
    }
  }
}

void Interpreter::leave(const Scope& scope) {
  for (const std::uint32_t slot : scope.slots) variables_->slots[slot] = Undefined{};
}

Value Interpreter::from_context(const std::string& name) {
  run_.work();
  if (const Value* found = context_.find(name)) return *found;
  if (is_unsupported_global(name)) run_.fail(fmt::format("the function {} is not supported", name));
  return global(run_, name).value_or(Undefined{});
}

Namespace& Interpreter::namespace_of(const Target& target) {
  const Value& holder = at(target.variable.place);
  const auto found = object_of<Namespace>(holder);
  if (found == nullptr) {
    run_.fail(
        fmt::format("{} is {}, expected a namespace to set an attribute of", target.variable.name, a_type_of(holder)));
  }
  return *found;
}

/// Fails for assignments that cannot be made, before the value is computed.
void Interpreter::check_namespaces(const Target& target) {
  for (const Target& part : target.parts) check_namespaces(part);
  if (target.attribute) namespace_of(target);
}

/// What `assign` has taken apart, as tuples.
Value Interpreter::joined(const Target& target) {
  if (!target.is_tuple) return at(target.variable.place);
  Values parts;
  for (const Target& part : target.parts) parts.push_back(joined(part));
  return run_.tuple(std::move(parts));
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.attribute) {
    namespace_of(target).set(run_, *target.attribute, value);
  } else if (!target.is_tuple) {
    at(target.variable.place) = value;
  } else {
    const Values parts = collect(run_, value, "unpacking");
    if (parts.size() != target.parts.size()) {
      run_.fail(fmt::format("{} values for {} names, expected as many", parts.size(), target.parts.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i]);
  }
}

}  // namespace ferry::engine::jinja
