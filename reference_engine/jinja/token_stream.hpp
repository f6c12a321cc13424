/// @file
/// Tokens, one after the other, and how deep the parser is.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/errors.hpp"
#include "jinja/lexer.hpp"
#include "jinja/parser.hpp"

namespace ferry::engine::jinja {

class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  [[nodiscard]] const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  [[nodiscard]] std::uint32_t line() const { return peek().line; }
  Token next() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_.back(); }

  [[nodiscard]] bool is(TokenKind kind) const { return peek().kind == kind; }
  [[nodiscard]] bool is_sign(std::string_view sign) const { return is(TokenKind::sign) && peek().text == sign; }
  [[nodiscard]] bool is_name(std::string_view name) const { return is(TokenKind::name) && peek().text == name; }

  bool take_sign(std::string_view sign) { return is_sign(sign) && (next(), true); }
  bool take_name(std::string_view name) { return is_name(name) && (next(), true); }

  Token expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) fail_expecting(what);
    return next();
  }
  void expect_sign(std::string_view sign) {
    if (!take_sign(sign)) fail_expecting(sign);
  }
  void expect_name(std::string_view name) {
    if (!take_name(name)) fail_expecting(name);
  }

  [[noreturn]] void fail_expecting(std::string_view what) const { fail(fmt::format("{}, expected {}", shown(), what)); }
  [[noreturn]] void fail(const std::string& what) const { fail_at(line(), what); }
  [[noreturn]] void fail_at(std::uint32_t line, const std::string& what) const { jinja::fail_at(name_, line, what); }

  /// Counts how deep the parser recurses.
  class Deeper {
   public:
    explicit Deeper(TokenStream& tokens) : tokens_(tokens) {
      if (tokens_.depth_ >= deepest_tree) {
        tokens_.fail(fmt::format("nested more than {} deep, expected less", deepest_tree));
      }
      ++tokens_.depth_;
    }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ~Deeper() { --tokens_.depth_; }

   private:
    TokenStream& tokens_;
  };

 private:
  [[nodiscard]] std::string shown() const {
    switch (peek().kind) {
      case TokenKind::end:
        return "the end of the template";
      case TokenKind::data:
        return "plain text";
      case TokenKind::print_begin:
        return "{{";
      case TokenKind::print_end:
        return "}}";
      case TokenKind::block_begin:
        return "{%";
      case TokenKind::block_end:
        return "%}";
      case TokenKind::text:
        return fmt::format("\"{}\"", shortened(peek().text));
      default:
        return shortened(peek().text);
    }
  }

  std::vector<Token> tokens_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::uint32_t depth_ = 0;
};

}  // namespace ferry::engine::jinja
