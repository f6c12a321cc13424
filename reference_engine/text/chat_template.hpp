/// @file
/// Conversations as the text that a model was trained on.
#pragma once
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.hpp"

namespace ferry::engine {

class JinjaTemplate;

/// A model's own template: chat_template.jinja or tokenizer_config.json in its folder, or a GGUF file's metadata; without one,
/// "ROLE: CONTENT" a line. A template that is named tool_use is taken for messages with which tools are offered.
class ChatTemplate {
 public:
  /// Throws InputError for a template that cannot be read.
  ChatTemplate(const std::filesystem::path& model, const Tokenizer& tokenizer);
  ~ChatTemplate();

  /// `messages`: a list of objects with `role` and `content`; `more`: what else the template may ask for, by name. The text
  /// ends where the model's answer begins. Throws InputError with the template's own message if it refuses them.
  [[nodiscard]] std::string render(const nlohmann::ordered_json& messages,
                                   const nlohmann::ordered_json& more = nlohmann::ordered_json::object()) const;
  /// Whether the template is the model's own. Its texts then have all special tokens; those of others begin as texts do.
  [[nodiscard]] bool own() const { return own_; }
  /// Texts that end an answer: a model without a template of its own knows no token that ends a turn, and would go on with the
  /// user's.
  [[nodiscard]] std::vector<std::string> stops() const {
    return own_ ? std::vector<std::string>{} : std::vector<std::string>{"\nuser:"};
  }
  /// Where it is from.
  [[nodiscard]] const std::string& source() const { return source_; }

 private:
  std::string source_;
  bool own_ = true;
  std::unique_ptr<JinjaTemplate> template_, with_tools_;               ///< the latter null: the same
  nlohmann::ordered_json special_ = nlohmann::ordered_json::object();  ///< bos_token, eos_token, ...
};

}  // namespace ferry::engine
