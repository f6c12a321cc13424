/// @file
/// A template as a tree, with a place for each variable.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/filters.hpp"
#include "jinja/operators.hpp"
#include "jinja/value.hpp"

namespace ferry::engine::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
using Expressions = std::vector<ExpressionPtr>;
struct Statement;
using Statements = std::vector<Statement>;

/// Where a variable lies: in the variables of this call, or of one that surrounds it in the template.
struct Place {
  std::uint32_t calls_up = 0, slot = 0;
};

struct Constant {
  Value value;
};
struct Variable {
  std::string name;
  Value name_text;  ///< for what is undefined
  Place place;
};
/// The text of the block that a filter stands at.
struct Captured {};
struct ListItems {
  Expressions items;
  bool tuple;
};
struct DictItems {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct Not {
  ExpressionPtr of;
};
struct Signed {
  ExpressionPtr of;
  bool minus;
};
struct Calculation {
  Arithmetic operation;
  ExpressionPtr left, right;
};
/// `and` and `or`.
struct Choice {
  bool both;
  ExpressionPtr left, right;
};
struct Comparison {
  ExpressionPtr first;
  std::vector<std::pair<Comparator, ExpressionPtr>> rest;
};
struct Concatenation {
  Expressions parts;
};
struct AttributeOf {
  ExpressionPtr of;
  Value name;
};
struct ItemOf {
  ExpressionPtr of, key;
};
struct SliceOf {
  ExpressionPtr of, start, stop, step;  ///< the last three may be none
};
struct Given {
  Expressions positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr all_positional, all_named;  ///< *list and **dict; may be none
};
struct CallOf {
  ExpressionPtr function;
  Given given;
};
struct Filtered {
  ExpressionPtr of;
  std::string name;
  Given given;
  Filter filter = nullptr;  ///< none of an unknown filter that is refused only when it is needed
};
struct Tested {
  ExpressionPtr of;
  std::string name;
  Given given;
  Test test = nullptr;
};
struct Conditional {
  ExpressionPtr test, then, otherwise;  ///< the last may be none
};

struct Expression {
  std::uint32_t line;
  std::uint32_t height;  ///< of the tree below, as everything that walks it recurses
  std::variant<Constant, Variable, Captured, ListItems, DictItems, Not, Signed, Calculation, Choice, Comparison,
               Concatenation, AttributeOf, ItemOf, SliceOf, CallOf, Filtered, Tested, Conditional>
      is;
};

/// What is assigned to: a name, an attribute of a namespace, or several such.
struct Target {
  std::uint32_t line;
  Variable variable;
  std::optional<Value> attribute;
  std::vector<Target> parts;
  bool is_tuple = false;
};

/// How a variable begins when its block is entered.
struct Entry {
  enum class Kind { unset, from_context, copied } kind;
  std::uint32_t slot;
  std::string name;
  Place from;
};
/// The variables that belong to a block: set there, they are gone behind it.
struct Scope {
  std::vector<Entry> entries;
  std::vector<std::uint32_t> slots;  ///< all of them
};

struct Data {
  std::string text;
};
struct Print {
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Statements>> branches;
  Statements otherwise;
};
struct For {
  Target target;
  ExpressionPtr items, test;  ///< the test may be none
  Statements body, otherwise;
  Scope scope, otherwise_scope, test_scope;
  Target test_target;                 ///< the same, in the variables of the test
  std::optional<std::uint32_t> loop;  ///< where `loop` is, if the body asks for it
};
struct Set {
  Target target;
  ExpressionPtr value;
};
/// A block whose text goes somewhere else than to the output: to a variable or through filters.
struct Capture {
  std::optional<Target> target;
  ExpressionPtr filter;  ///< may be none; its innermost operand is Captured
  Statements body;
  Scope scope;
};
/// `with` and `generation`.
struct Block {
  std::vector<std::pair<Target, ExpressionPtr>> variables;
  Statements body;
  Scope scope;
};
/// A macro, or the body of a call block.
struct MacroBody {
  std::string name;
  std::vector<Variable> parameters;
  Expressions defaults;  ///< of the last parameters
  Statements body;
  Scope scope;
  std::optional<std::uint32_t> caller, more_named, more_positional;  ///< where what was not declared is, if asked for
  std::uint32_t slots = 0;
  bool outlived = false;  ///< macros within may need its variables when it is over
};
struct Macro {
  Variable variable;
  MacroBody macro;
};
struct CallBlock {
  ExpressionPtr call;
  MacroBody macro;
};
struct Break {};
struct Continue {};

struct Statement {
  std::uint32_t line;
  std::variant<Data, Print, If, For, Set, Capture, Block, Macro, CallBlock, Break, Continue> is;
};

struct Tree {
  Statements body;
  Scope scope;
  std::uint32_t slots = 0;
};

}  // namespace ferry::engine::jinja
