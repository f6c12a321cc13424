#include "jinja/parser.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "jinja/expression_parser.hpp"
#include "jinja/token_stream.hpp"

namespace ferry::engine::jinja {
namespace {

/// Tags that chat templates do not need, and tags of extensions that transformers does not load.
bool is_unsupported_tag(std::string_view name) {
  constexpr auto names = std::to_array<std::string_view>(
      {"block", "extends", "include", "import", "from", "autoescape", "do", "trans", "debug"});
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens), name), expressions_(tokens_) {}

  Tree tree() {
    Tree made;
    made.body = body({});
    return made;
  }

 private:
  using Ends = std::vector<std::string_view>;

  /// Parses up to a tag that begins with one of `ends`, whose name is then the next token; without any, to the end.
  Statements body(const Ends& ends) {
    const TokenStream::Deeper deeper(tokens_);
    Statements made;
    while (!tokens_.is(TokenKind::end)) {
      const Token token = tokens_.next();
      if (token.kind == TokenKind::data) {
        made.push_back({token.line, Data{token.text}});
      } else if (token.kind == TokenKind::print_begin) {
        made.push_back({token.line, Print{expressions_.tuple()}});
        tokens_.expect(TokenKind::print_end, "}}");
      } else {
        if (std::any_of(ends.begin(), ends.end(), [this](std::string_view end) { return tokens_.is_name(end); })) {
          return made;
        }
        statement(made);
        tokens_.expect(TokenKind::block_end, "%}");
      }
    }
    if (!ends.empty()) tokens_.fail_expecting(fmt::format("{{% {} %}}", fmt::join(ends, " %} or {% ")));
    return made;
  }

  /// Parses what a tag encloses, up to the name of its end tag.
  Statements enclosed(const Ends& ends) {
    tokens_.take_sign(":");
    tokens_.expect(TokenKind::block_end, "%}");
    return body(ends);
  }

  Statements enclosed_wholly(std::string_view end) {
    Statements made = enclosed({end});
    tokens_.next();
    return made;
  }

  void statement(Statements& into) {
    const Token tag = tokens_.expect(TokenKind::name, "the name of a tag");
    const std::string& name = tag.text;
    const auto add = [&](auto made) { into.push_back({tag.line, std::move(made)}); };
    if (name == "if") return add(condition());
    if (name == "for") return add(loop());
    if (name == "macro") return add(macro());
    if (name == "call") return add(call_block());
    if (name == "with") return add(with());
    if (name == "generation") return add(generation());
    if (name == "filter") return add(filter_block(tag.line));
    if (name == "set") return set(into, tag.line);
    if (name == "print") return print(into);
    if (name != "break" && name != "continue") refuse(tag);
    if (loops_ == 0) tokens_.fail_at(tag.line, fmt::format("{} outside of a loop, expected it within", name));
    name == "break" ? add(Break{}) : add(Continue{});
  }

  [[noreturn]] void refuse(const Token& tag) const {
    const bool known = is_unsupported_tag(tag.text);
    tokens_.fail_at(tag.line, known ? fmt::format("the tag {} is not supported", tag.text)
                                    : fmt::format("a tag {}, expected one that exists, or an end that fits", tag.text));
  }

  If condition() {
    If made;
    do {
      ExpressionPtr test = expressions_.tuple(false);
      made.branches.emplace_back(std::move(test), enclosed({"elif", "else", "endif"}));
    } while (tokens_.take_name("elif"));
    if (tokens_.take_name("else")) made.otherwise = enclosed({"endif"});
    tokens_.expect_name("endif");
    return made;
  }

  For loop() {
    For made;
    made.target = expressions_.target("in", false);
    made.test_target = made.target;
    tokens_.expect_name("in");
    made.items = expressions_.tuple(false, "recursive");
    if (tokens_.take_name("if")) made.test = expressions_.expression();
    if (tokens_.is_name("recursive")) tokens_.fail("a recursive loop is not supported");
    ++loops_;
    made.body = enclosed({"endfor", "else"});
    --loops_;
    if (tokens_.take_name("else")) made.otherwise = enclosed({"endfor"});
    tokens_.expect_name("endfor");
    return made;
  }

  void set(Statements& into, std::uint32_t line) {
    Target target = expressions_.target("", true);
    if (tokens_.take_sign("=")) {
      into.push_back({line, Set{std::move(target), expressions_.tuple()}});
      return;
    }
    Capture made;
    made.target = std::move(target);
    if (tokens_.is_sign("|")) made.filter = expressions_.filters(expressions_.captured(line), false);
    made.body = enclosed_wholly("endset");
    into.push_back({line, std::move(made)});
  }

  Capture filter_block(std::uint32_t line) {
    Capture made;
    made.filter = expressions_.filters(expressions_.captured(line), true);
    made.body = enclosed_wholly("endfilter");
    return made;
  }

  void print(Statements& into) {
    while (!tokens_.is(TokenKind::block_end)) {
      const std::uint32_t line = tokens_.line();
      into.push_back({line, Print{expressions_.expression()}});
      if (!tokens_.is(TokenKind::block_end)) tokens_.expect_sign(",");
    }
  }

  Block with() {
    Block made;
    while (!tokens_.is(TokenKind::block_end) && !tokens_.is_sign(":")) {
      if (!made.variables.empty()) tokens_.expect_sign(",");
      Target target = expressions_.target("", false);
      tokens_.expect_sign("=");
      made.variables.emplace_back(std::move(target), expressions_.expression());
    }
    made.body = enclosed_wholly("endwith");
    return made;
  }

  /// The same outside of any loop: break cannot leave a macro, or a block that jinja2 compiles as one.
  Statements apart(std::string_view end) {
    const std::uint32_t outside = std::exchange(loops_, 0);
    Statements made = enclosed_wholly(end);
    loops_ = outside;
    return made;
  }

  /// Marks for training what the model wrote. Otherwise its contents are just printed.
  Block generation() {
    Block made;
    made.body = apart("endgeneration");
    return made;
  }

  void signature(MacroBody& made) {
    tokens_.expect_sign("(");
    while (!tokens_.is_sign(")")) {
      if (!made.parameters.empty()) tokens_.expect_sign(",");
      Variable parameter = expressions_.name();
      const bool twice = std::any_of(made.parameters.begin(), made.parameters.end(),
                                     [&](const Variable& other) { return other.name == parameter.name; });
      if (twice) tokens_.fail(fmt::format("a parameter {} for the second time, expected it once", parameter.name));
      made.parameters.push_back(std::move(parameter));
      if (tokens_.take_sign("=")) {
        made.defaults.push_back(expressions_.expression());
      } else if (!made.defaults.empty()) {
        tokens_.fail("a parameter without a default behind one with it, expected a default");
      }
    }
    tokens_.expect_sign(")");
  }

  Macro macro() {
    Macro made;
    made.variable = expressions_.name();
    made.macro.name = made.variable.name;
    signature(made.macro);
    made.macro.body = apart("endmacro");
    return made;
  }

  CallBlock call_block() {
    CallBlock made;
    if (tokens_.is_sign("(")) signature(made.macro);
    const std::uint32_t line = tokens_.line();
    made.call = expressions_.expression();
    if (!std::holds_alternative<CallOf>(made.call->is)) {
      tokens_.fail_at(line, "a call block without a call, expected one");
    }
    made.macro.body = apart("endcall");
    return made;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  std::uint32_t loops_ = 0;
};

}  // namespace

Tree parse(std::vector<Token> tokens, const std::string& name) {
  return Parser(std::move(tokens), name).tree();
}

}  // namespace ferry::engine::jinja
