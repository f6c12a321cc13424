/// @file
/// Walks a tree and prints what it says.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "jinja/rendering.hpp"
#include "jinja/tree.hpp"

namespace ferry::engine::jinja {

/// The variables of one call: of the template, or of a macro.
struct Variables {
  Variables(Rendering& run, std::size_t count, Variables* around)
      : slots(count), outer(around), charge(run.account(), count * sizeof(Value)) {
    run.room_for(count, sizeof(Value));
    run.work(count / 16);
  }

  Values slots;  ///< an Undefined without a name: not set
  Variables* outer;
  Charge charge;
};

class Interpreter {
 public:
  Interpreter(Rendering& run, const Tree& tree, const DictData& context) : run_(run), tree_(tree), context_(context) {}

  std::string print();

  /// A macro's text. `around` are the variables of the call in which the macro stands.
  Value call_macro(const MacroBody& macro, Variables* around, const Arguments& given);

 private:
  enum class Flow { on, breaks, continues };
  class Frame;

  Flow run(const Statements& body);
  Flow run_one(const Data& is);
  Flow run_one(const Print& is);
  Flow run_one(const If& is);
  Flow run_one(const For& is);
  Flow run_one(const Set& is);
  Flow run_one(const Capture& is);
  Flow run_one(const Block& is);
  Flow run_one(const Macro& is);
  Flow run_one(const CallBlock& is);
  Flow run_one(const Break& /*is*/) { return Flow::breaks; }
  Flow run_one(const Continue& /*is*/) { return Flow::continues; }
  Flow run_within(const Statements& body, const Scope& scope);
  IteratorPtr passing(const For& is, IteratorPtr items);

  Value value(const Expression& expression);
  Value value_of(const Constant& is) { return is.value; }
  Value value_of(const Variable& is);
  Value value_of(const Captured& is);
  Value value_of(const ListItems& is);
  Value value_of(const DictItems& is);
  Value value_of(const Not& is);
  Value value_of(const Signed& is);
  Value value_of(const Calculation& is);
  Value value_of(const Choice& is);
  Value value_of(const Comparison& is);
  Value value_of(const Concatenation& is);
  Value value_of(const AttributeOf& is);
  Value value_of(const ItemOf& is);
  Value value_of(const SliceOf& is);
  Value value_of(const CallOf& is);
  Value value_of(const Filtered& is);
  Value value_of(const Tested& is);
  Value value_of(const Conditional& is);
  Value call(const CallOf& is, Value caller);
  Arguments arguments(const Given& given);
  std::optional<std::int64_t> bound(const ExpressionPtr& expression);

  Value& at(const Place& place);
  void enter(const Scope& scope);
  void leave(const Scope& scope);
  Value from_context(const std::string& name);
  void assign(const Target& target, const Value& value);
  Value joined(const Target& target);
  Namespace& namespace_of(const Target& target);
  void check_namespaces(const Target& target);
  void bind(const MacroBody& macro, const Arguments& given);
  void bind_more(const MacroBody& macro, std::vector<std::pair<std::string, Value>> named, const Values& positional);
  Value macro_value(const MacroBody& macro);

  Rendering& run_;
  const Tree& tree_;
  const DictData& context_;
  std::vector<std::unique_ptr<Variables>> kept_;  ///< those that macros may need yet
  Variables* variables_ = nullptr;
  TextBuilder* out_ = nullptr;
  Value captured_;
};

}  // namespace ferry::engine::jinja
