/// @file
/// The templates that models come with, which make one text of a conversation.
#pragma once
#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace ferry::engine {

namespace jinja {
struct Tree;
}

/// A chat template: the part of Jinja that such templates use, as transformers renders it with jinja2 (in its sandbox,
/// with trim_blocks, lstrip_blocks and loop controls). What is not supported is refused by name. Templates come from
/// strangers: depth, steps, memory and output have bounds.
///
/// `messages`, `tools`, `add_generation_prompt` and so on are the context's. Any number of threads may render at the
/// same time.
class JinjaTemplate {
 public:
  /// Throws InputError, "NAME: line N: what, expected what", for bad syntax and for what is not supported.
  JinjaTemplate(const std::string& source, std::string name);

  /// Throws InputError, with the line, for what fails while it renders, and with the message of raise_exception.
  [[nodiscard]] std::string render(const nlohmann::ordered_json& context) const;

  /// The time that strftime_now tells. Local time, unless set; not while another thread renders.
  void set_clock(std::function<std::tm()> now) { now_ = std::move(now); }

 private:
  std::string name_;
  std::shared_ptr<const jinja::Tree> tree_;
  std::function<std::tm()> now_;
};

}  // namespace ferry::engine
