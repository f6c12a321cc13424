/// @file
/// Expressions, by jinja2's grammar, which is almost Python's.
#pragma once
#include <initializer_list>
#include <string_view>

#include "jinja/token_stream.hpp"
#include "jinja/tree.hpp"

namespace ferry::engine::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  /// One expression; without `conditional` no `a if b else c`.
  ExpressionPtr expression(bool conditional = true);
  /// One expression or, with commas, a tuple; it ends where a tag or bracket does, or at the name `end`.
  ExpressionPtr tuple(bool conditional = true, std::string_view end = "", bool may_be_empty = false);
  /// |filter|filter behind `of`; the first without a | if `inline_first`.
  ExpressionPtr filters(ExpressionPtr of, bool inline_first);
  Target target(std::string_view end, bool with_namespace);
  Variable name();

  ExpressionPtr captured(std::uint32_t line);

 private:
  template <class T>
  ExpressionPtr make(std::uint32_t line, T is);

  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr inverse();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr of);
  ExpressionPtr subscript(ExpressionPtr of);
  ExpressionPtr slice(ExpressionPtr of, ExpressionPtr start, std::uint32_t line);
  ExpressionPtr postfix_filters(ExpressionPtr of);
  ExpressionPtr test(ExpressionPtr of);
  ExpressionPtr call(ExpressionPtr of);
  Given given();
  void argument(Given& given);
  std::string dotted_name();
  Target one_target(bool with_namespace);
  bool tuple_ends(std::string_view end) const;
  std::optional<Comparator> take_comparator();

  TokenStream& tokens_;
};

/// The height of the tallest, or 0.
std::uint32_t height_of(const Given& given);

}  // namespace ferry::engine::jinja
