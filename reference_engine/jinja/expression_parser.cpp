#include "jinja/expression_parser.hpp"

#include <algorithm>
#include <array>

namespace ferry::engine::jinja {
namespace {

std::uint32_t height_of(const ExpressionPtr& expression) {
  return expression ? expression->height : 0;
}

std::uint32_t height_of(const Expressions& all) {
  std::uint32_t height = 0;
  for (const ExpressionPtr& one : all) height = std::max(height, height_of(one));
  return height;
}

/// The greatest height of the nodes directly below a node.
struct HeightBelow {
  std::uint32_t operator()(const Constant& /*is*/) const { return 0; }
  std::uint32_t operator()(const Variable& /*is*/) const { return 0; }
  std::uint32_t operator()(const Captured& /*is*/) const { return 0; }
  std::uint32_t operator()(const ListItems& is) const { return height_of(is.items); }
  std::uint32_t operator()(const DictItems& is) const {
    std::uint32_t height = 0;
    for (const auto& [key, value] : is.entries) height = std::max({height, height_of(key), height_of(value)});
    return height;
  }
  std::uint32_t operator()(const Not& is) const { return height_of(is.of); }
  std::uint32_t operator()(const Signed& is) const { return height_of(is.of); }
  std::uint32_t operator()(const Calculation& is) const { return std::max(height_of(is.left), height_of(is.right)); }
  std::uint32_t operator()(const Choice& is) const { return std::max(height_of(is.left), height_of(is.right)); }
  std::uint32_t operator()(const Comparison& is) const {
    std::uint32_t height = height_of(is.first);
    for (const auto& [comparator, operand] : is.rest) height = std::max(height, height_of(operand));
    return height;
  }
  std::uint32_t operator()(const Concatenation& is) const { return height_of(is.parts); }
  std::uint32_t operator()(const AttributeOf& is) const { return height_of(is.of); }
  std::uint32_t operator()(const ItemOf& is) const { return std::max(height_of(is.of), height_of(is.key)); }
  std::uint32_t operator()(const SliceOf& is) const {
    return std::max({height_of(is.of), height_of(is.start), height_of(is.stop), height_of(is.step)});
  }
  std::uint32_t operator()(const CallOf& is) const {
    return std::max(height_of(is.function), jinja::height_of(is.given));
  }
  std::uint32_t operator()(const Filtered& is) const { return std::max(height_of(is.of), jinja::height_of(is.given)); }
  std::uint32_t operator()(const Tested& is) const { return std::max(height_of(is.of), jinja::height_of(is.given)); }
  std::uint32_t operator()(const Conditional& is) const {
    return std::max({height_of(is.test), height_of(is.then), height_of(is.otherwise)});
  }
};

bool is_literal_name(std::string_view name) {
  constexpr auto names = std::to_array<std::string_view>({"true", "True", "false", "False", "none", "None"});
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::uint32_t height_of(const Given& given) {
  std::uint32_t height =
      std::max({height_of(given.positional), height_of(given.all_positional), height_of(given.all_named)});
  for (const auto& [name, value] : given.named) height = std::max(height, height_of(value));
  return height;
}

template <class T>
ExpressionPtr ExpressionParser::make(std::uint32_t line, T is) {
  const std::uint32_t height = HeightBelow()(is) + 1;
  if (height > deepest_tree) {
    tokens_.fail_at(line, fmt::format("an expression is more than {} operations deep, expected fewer", deepest_tree));
  }
  return std::make_unique<Expression>(Expression{line, height, std::move(is)});
}

ExpressionPtr ExpressionParser::captured(std::uint32_t line) {
  return make(line, Captured{});
}

ExpressionPtr ExpressionParser::expression(bool conditional) {
  const TokenStream::Deeper deeper(tokens_);
  std::uint32_t line = tokens_.line();
  ExpressionPtr value = either();
  while (conditional && tokens_.take_name("if")) {
    ExpressionPtr test = either(), otherwise;
    if (tokens_.take_name("else")) otherwise = expression();
    value = make(line, Conditional{std::move(test), std::move(value), std::move(otherwise)});
    line = tokens_.line();
  }
  return value;
}

bool ExpressionParser::tuple_ends(std::string_view end) const {
  return tokens_.is(TokenKind::print_end) || tokens_.is(TokenKind::block_end) || tokens_.is_sign(")") ||
         (!end.empty() && tokens_.is_name(end));
}

ExpressionPtr ExpressionParser::tuple(bool conditional, std::string_view end, bool may_be_empty) {
  const std::uint32_t line = tokens_.line();
  Expressions items;
  bool is_tuple = false;
  while (!tuple_ends(end)) {
    items.push_back(expression(conditional));
    if (!tokens_.take_sign(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && items.size() == 1) return std::move(items[0]);
  if (!is_tuple && !may_be_empty) tokens_.fail_expecting("an expression");
  return make(line, ListItems{std::move(items), true});
}

ExpressionPtr ExpressionParser::either() {
  const std::uint32_t line = tokens_.line();
  ExpressionPtr left = both();
  while (tokens_.take_name("or")) left = make(line, Choice{false, std::move(left), both()});
  return left;
}

ExpressionPtr ExpressionParser::both() {
  const std::uint32_t line = tokens_.line();
  ExpressionPtr left = inverse();
  while (tokens_.take_name("and")) left = make(line, Choice{true, std::move(left), inverse()});
  return left;
}

ExpressionPtr ExpressionParser::inverse() {
  const std::uint32_t line = tokens_.line();
  if (!tokens_.take_name("not")) return comparison();
  const TokenStream::Deeper deeper(tokens_);
  return make(line, Not{inverse()});
}

std::optional<Comparator> ExpressionParser::take_comparator() {
  constexpr auto signs = std::to_array<std::pair<std::string_view, Comparator>>({{"==", Comparator::equal},
                                                                                 {"!=", Comparator::unequal},
                                                                                 {"<", Comparator::less},
                                                                                 {"<=", Comparator::less_equal},
                                                                                 {">", Comparator::greater},
                                                                                 {">=", Comparator::greater_equal}});
  for (const auto& [sign, comparator] : signs) {
    if (tokens_.take_sign(sign)) return comparator;
  }
  if (tokens_.take_name("in")) return Comparator::in;
  const Token& second = tokens_.peek(1);
  if (!tokens_.is_name("not") || second.kind != TokenKind::name || second.text != "in") return std::nullopt;
  tokens_.next();
  tokens_.next();
  return Comparator::not_in;
}

ExpressionPtr ExpressionParser::comparison() {
  const std::uint32_t line = tokens_.line();
  Comparison made{sum(), {}};
  while (const auto comparator = take_comparator()) made.rest.emplace_back(*comparator, sum());
  return made.rest.empty() ? std::move(made.first) : make(line, std::move(made));
}

ExpressionPtr ExpressionParser::sum() {
  const std::uint32_t line = tokens_.line();
  ExpressionPtr left = concatenation();
  while (tokens_.is_sign("+") || tokens_.is_sign("-")) {
    const Arithmetic operation = tokens_.next().text == "+" ? Arithmetic::add : Arithmetic::subtract;
    left = make(line, Calculation{operation, std::move(left), concatenation()});
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  const std::uint32_t line = tokens_.line();
  Concatenation made;
  made.parts.push_back(product());
  while (tokens_.take_sign("~")) made.parts.push_back(product());
  return made.parts.size() == 1 ? std::move(made.parts[0]) : make(line, std::move(made));
}

ExpressionPtr ExpressionParser::product() {
  constexpr auto signs = std::to_array<std::pair<std::string_view, Arithmetic>>({{"*", Arithmetic::multiply},
                                                                                 {"/", Arithmetic::divide},
                                                                                 {"//", Arithmetic::floor_divide},
                                                                                 {"%", Arithmetic::modulo}});
  const std::uint32_t line = tokens_.line();
  ExpressionPtr left = power();
  while (true) {
    const auto* found =
        std::find_if(signs.begin(), signs.end(), [this](const auto& sign) { return tokens_.is_sign(sign.first); });
    if (found == signs.end()) return left;
    tokens_.next();
    left = make(line, Calculation{found->second, std::move(left), power()});
  }
}

/// Unlike in Python, the power operator of jinja2 is left-associative and binds less tightly than a sign.
ExpressionPtr ExpressionParser::power() {
  const std::uint32_t line = tokens_.line();
  ExpressionPtr left = unary();
  while (tokens_.take_sign("**")) left = make(line, Calculation{Arithmetic::power, std::move(left), unary()});
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const TokenStream::Deeper deeper(tokens_);
  const std::uint32_t line = tokens_.line();
  const bool has_sign = tokens_.is_sign("-") || tokens_.is_sign("+");
  ExpressionPtr value;
  if (has_sign) {
    const bool minus = tokens_.next().text == "-";
    value = make(line, Signed{unary(false), minus});
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? postfix_filters(std::move(value)) : std::move(value);
}

Variable ExpressionParser::name() {
  const Token token = tokens_.expect(TokenKind::name, "a name");
  if (is_literal_name(token.text)) tokens_.fail_at(token.line, fmt::format("{}, expected a name", token.text));
  return {token.text, constant_text(token.text), {}};
}

ExpressionPtr ExpressionParser::name_or_constant() {
  const Token token = tokens_.next();
  if (token.text == "true" || token.text == "True") return make(token.line, Constant{true});
  if (token.text == "false" || token.text == "False") return make(token.line, Constant{false});
  if (token.text == "none" || token.text == "None") return make(token.line, Constant{None{}});
  return make(token.line, Variable{token.text, constant_text(token.text), {}});
}

ExpressionPtr ExpressionParser::primary() {
  const std::uint32_t line = tokens_.line();
  switch (tokens_.peek().kind) {
    case TokenKind::name:
      return name_or_constant();
    case TokenKind::whole:
      return make(line, Constant{tokens_.next().whole});
    case TokenKind::real:
      return make(line, Constant{tokens_.next().real});
    case TokenKind::text: {
      std::string text;
      while (tokens_.is(TokenKind::text)) text += tokens_.next().text;
      return make(line, Constant{constant_text(std::move(text))});
    }
    default:
      break;
  }
  if (tokens_.is_sign("[")) return list();
  if (tokens_.is_sign("{")) return dict();
  if (!tokens_.take_sign("(")) tokens_.fail_expecting("an expression");
  ExpressionPtr inside = tuple(true, "", true);
  tokens_.expect_sign(")");
  return inside;
}

ExpressionPtr ExpressionParser::list() {
  const std::uint32_t line = tokens_.next().line;
  ListItems made{{}, false};
  while (!tokens_.is_sign("]")) {
    made.items.push_back(expression());
    if (!tokens_.take_sign(",")) break;
  }
  tokens_.expect_sign("]");
  return make(line, std::move(made));
}

ExpressionPtr ExpressionParser::dict() {
  const std::uint32_t line = tokens_.next().line;
  DictItems made;
  while (!tokens_.is_sign("}")) {
    ExpressionPtr key = expression();
    tokens_.expect_sign(":");
    made.entries.emplace_back(std::move(key), expression());
    if (!tokens_.take_sign(",")) break;
  }
  tokens_.expect_sign("}");
  return make(line, std::move(made));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr of) {
  while (tokens_.is_sign(".") || tokens_.is_sign("[") || tokens_.is_sign("(")) {
    of = tokens_.is_sign("(") ? call(std::move(of)) : subscript(std::move(of));
  }
  return of;
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr of) {
  const Token token = tokens_.next();
  if (token.text == ".") {
    const Token attribute = tokens_.next();
    if (attribute.kind == TokenKind::name) {
      return make(token.line, AttributeOf{std::move(of), constant_text(attribute.text)});
    }
    if (attribute.kind != TokenKind::whole) {
      tokens_.fail_at(attribute.line, "no attribute behind ., expected a name or number");
    }
    return make(token.line, ItemOf{std::move(of), make(attribute.line, Constant{attribute.whole})});
  }
  ExpressionPtr key;
  if (!tokens_.is_sign(":")) key = expression();
  if (tokens_.is_sign(":")) {
    ExpressionPtr made = slice(std::move(of), std::move(key), token.line);
    tokens_.expect_sign("]");
    return made;
  }
  if (tokens_.is_sign(",")) {
    ListItems keys{{}, true};
    keys.items.push_back(std::move(key));
    while (tokens_.take_sign(",")) keys.items.push_back(expression());
    key = make(token.line, std::move(keys));
  }
  tokens_.expect_sign("]");
  return make(token.line, ItemOf{std::move(of), std::move(key)});
}

ExpressionPtr ExpressionParser::slice(ExpressionPtr of, ExpressionPtr start, std::uint32_t line) {
  SliceOf made{std::move(of), std::move(start), {}, {}};
  tokens_.expect_sign(":");
  if (!tokens_.is_sign(":") && !tokens_.is_sign("]")) made.stop = expression();
  if (tokens_.take_sign(":") && !tokens_.is_sign("]")) made.step = expression();
  return make(line, std::move(made));
}

ExpressionPtr ExpressionParser::postfix_filters(ExpressionPtr of) {
  while (true) {
    if (tokens_.is_sign("|")) {
      of = filters(std::move(of), false);
    } else if (tokens_.is_name("is")) {
      of = test(std::move(of));
    } else if (tokens_.is_sign("(")) {
      of = call(std::move(of));
    } else {
      return of;
    }
  }
}

std::string ExpressionParser::dotted_name() {
  std::string name = tokens_.expect(TokenKind::name, "a name").text;
  while (tokens_.take_sign(".")) name += "." + tokens_.expect(TokenKind::name, "a name").text;
  return name;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr of, bool inline_first) {
  while (std::exchange(inline_first, false) || tokens_.take_sign("|")) {
    const std::uint32_t line = tokens_.line();
    std::string name = dotted_name();
    Given arguments;
    if (tokens_.is_sign("(")) arguments = given();
    const Filter filter = find_filter(name);
    if (filter == nullptr && is_unsupported_filter(name)) {
      tokens_.fail_at(line, fmt::format("the filter {} is not supported", name));
    }
    of = make(line, Filtered{std::move(of), std::move(name), std::move(arguments), filter});
  }
  return of;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr of) {
  const std::uint32_t line = tokens_.next().line;
  const bool negated = tokens_.take_name("not");
  std::string name = dotted_name();
  Given arguments;
  if (tokens_.is_sign("(")) {
    arguments = given();
  } else {
    const TokenKind kind = tokens_.peek().kind;
    const bool value = kind == TokenKind::text || kind == TokenKind::whole || kind == TokenKind::real ||
                       tokens_.is_sign("[") || tokens_.is_sign("{");
    const bool named =
        kind == TokenKind::name && !tokens_.is_name("else") && !tokens_.is_name("or") && !tokens_.is_name("and");
    if (tokens_.is_name("is")) tokens_.fail("a second `is`, expected `and` between tests");
    if (value || named) arguments.positional.push_back(postfix(primary()));
  }
  const Test body = find_test(name);
  ExpressionPtr made = make(line, Tested{std::move(of), std::move(name), std::move(arguments), body});
  return negated ? make(line, Not{std::move(made)}) : std::move(made);
}

ExpressionPtr ExpressionParser::call(ExpressionPtr of) {
  const std::uint32_t line = tokens_.line();
  return make(line, CallOf{std::move(of), given()});
}

Given ExpressionParser::given() {
  Given made;
  tokens_.expect_sign("(");
  while (!tokens_.is_sign(")")) {
    argument(made);
    if (!tokens_.take_sign(",")) break;
  }
  tokens_.expect_sign(")");
  return made;
}

void ExpressionParser::argument(Given& given) {
  const auto expect = [this](bool fits) {
    if (!fits) tokens_.fail("arguments in another order, expected values, names, *list, **dict");
  };
  if (tokens_.take_sign("*")) {
    expect(!given.all_positional && !given.all_named);
    given.all_positional = expression();
  } else if (tokens_.take_sign("**")) {
    expect(!given.all_named);
    given.all_named = expression();
  } else if (tokens_.is(TokenKind::name) && tokens_.peek(1).kind == TokenKind::sign && tokens_.peek(1).text == "=") {
    expect(!given.all_named);
    std::string name = tokens_.next().text;
    tokens_.next();
    const bool twice =
        std::any_of(given.named.begin(), given.named.end(), [&](const auto& n) { return n.first == name; });
    if (twice) tokens_.fail(fmt::format("an argument {} for the second time, expected it once", name));
    given.named.emplace_back(std::move(name), expression());
  } else {
    expect(!given.all_positional && !given.all_named && given.named.empty());
    given.positional.push_back(expression());
  }
}

Target ExpressionParser::target(std::string_view end, bool with_namespace) {
  const std::uint32_t line = tokens_.line();
  std::vector<Target> parts;
  bool is_tuple = false;
  while (!tuple_ends(end)) {
    parts.push_back(one_target(with_namespace));
    if (!tokens_.take_sign(",")) break;
    is_tuple = true;
  }
  if (parts.empty()) tokens_.fail_expecting("a name");
  if (!is_tuple) return std::move(parts[0]);
  return {line, {}, std::nullopt, std::move(parts), true};
}

Target ExpressionParser::one_target(bool with_namespace) {
  const TokenStream::Deeper deeper(tokens_);
  const std::uint32_t line = tokens_.line();
  if (tokens_.take_sign("(")) {
    Target inside = target("", false);
    tokens_.expect_sign(")");
    return inside;
  }
  Target made{line, name(), std::nullopt, {}, false};
  if (with_namespace && tokens_.take_sign(".")) {
    made.attribute = constant_text(tokens_.expect(TokenKind::name, "a name").text);
  }
  return made;
}

}  // namespace ferry::engine::jinja
