// ferry tokenize: a text as a model's tokens, and back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "checkpoint/gguf.hpp"
#include "command/command.hpp"
#include "command/model_flags.hpp"
#include "command/token_ids.hpp"
#include "inference/model.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/text_file.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace ferry::engine {
namespace {

struct TokenizeArguments {
  std::string model = "tiny-qwen-moe", text, chat, token_ids, json;
  std::vector<std::string> files;
  bool bare = false, plain = false, pieces = false, rendered = false;
};

std::vector<std::string> texts_of(const TokenizeArguments& a) {
  std::vector<std::string> all;
  for (const std::string& file : a.files) {
    all.push_back(file == "-" ? read_standard_input("--file", stop) : read_text("--file", file));
  }
  if (!all.empty()) return all;
  if (!a.text.empty() || !standard_input_has_text()) return {a.text};
  return {read_standard_input("--file", stop)};
}

/// Renders a conversation with the model's template. The input is a list of messages, or an object with `messages` and any
/// other variables of the template, like those that /v1/chat/completions takes in `chat_template_kwargs`.
std::string rendered(const TokenizeArguments& a, const ChatTemplate& chat) {
  const std::string file = a.chat == "-" ? read_standard_input("--chat", stop) : read_text("--chat", a.chat);
  const auto json = parse_ordered_json(file, "--chat " + a.chat);
  const bool is_list = json.is_array();
  if (!is_list && !(json.is_object() && json.contains("messages"))) {
    throw InputError(fmt::format("--chat {}: expected a list of messages, or an object with \"messages\"", a.chat));
  }
  auto more = is_list ? nlohmann::ordered_json::object() : json;
  if (!is_list) more.erase("messages");
  return chat.render(is_list ? json : json["messages"], more);
}

int tokenize_command(const TokenizeArguments& a) {
  std::vector<std::string> inputs = {a.chat, a.token_ids};
  std::copy_if(a.files.begin(), a.files.end(), std::back_inserter(inputs), [](const auto& f) { return f != "-"; });
  check_outputs({a.json}, inputs);
  std::optional<OutputFile> json_file;
  if (!a.json.empty()) json_file.emplace(a.json, FileKind{"JSON of ferry tokenize", "{", "\"tokenizer\""});
  std::error_code none;
  const std::filesystem::path given = a.model;
  // A tokenizer needs no model.
  const bool alone =
      std::filesystem::exists(given, none) && (!std::filesystem::exists(given / "config.json", none) || is_gguf(given));
  const std::filesystem::path model = alone ? given : find_model(a.model);
  const auto tokenizer = alone ? open_tokenizer(model) : open_tokenizer(model, read_model_config(model));
  if (tokenizer == nullptr) {
    throw InputError(
        fmt::format("{}: has no tokenizer: expected tokenizer.json, tokenizer.model or NAME.tiktoken", model.string()));
  }
  Json json = {
      {"tokenizer", tokenizer->kind()}, {"tokens", tokenizer->size()}, {"ids", Json::array()}, {"text", Json::array()}};
  std::vector<std::vector<std::uint32_t>> all;
  if (!a.token_ids.empty()) {
    all = read_token_ids(a.token_ids);
    for (const std::vector<std::uint32_t>& ids : all) {
      const auto beyond =
          std::find_if(ids.begin(), ids.end(), [&](std::uint32_t id) { return id >= tokenizer->size(); });
      if (beyond == ids.end()) continue;
      throw InputError(fmt::format("--token-ids {}: has the token {}, expected 0 to {}, those of the tokenizer",
                                   a.token_ids, *beyond, tokenizer->size() - 1));
    }
  } else if (!a.chat.empty()) {
    const ChatTemplate chat(model, *tokenizer);
    const std::string text = rendered(a, chat);
    json["template"] = chat.source();
    json["rendered"] = text;
    if (a.rendered && a.json != "-") print(text);
    if (a.rendered && a.json.empty()) return 0;  // its tokens are not asked for
    all.push_back(tokenizer->encode(text, !chat.own()));
  } else {
    for (const std::string& text : texts_of(a)) all.push_back(tokenizer->encode(text, !a.bare, !a.plain));
  }
  for (const std::vector<std::uint32_t>& ids : all) {
    const std::string text = tokenizer->decode(ids, true);
    json["ids"].push_back(ids);
    json["text"].push_back(text);
    if (a.rendered || a.json == "-") continue;
    if (a.pieces) {
      for (const std::uint32_t id : ids) {
        print(fmt::format("{:>8}  {}\n", id, json_text(Json(tokenizer->decode({&id, 1}, true)))));
      }
    } else {
      print(a.token_ids.empty() ? fmt::format("{}\n", fmt::join(ids, " ")) : text + "\n");
    }
  }
  if (json_file) json_file->commit(json_text(json, 2) + "\n");
  return 0;
}

}  // namespace

void add_tokenize_command(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<TokenizeArguments>();
  CLI::App* c = app.add_subcommand("tokenize", "a text as a model's tokens, and back");
  add_named(c, "--model", a->model, "FOLDER|FILE",
            "a model's folder, a GGUF file, a tokenizer's file or folder, or a bundled model's name")
      ->capture_default_str();
  CLI::Option* text = c->add_option("--text", a->text, "the text (default: standard input)")->type_name("TEXT");
  CLI::Option* file =
      add_named(c, "--file", a->files, "FILE", "a file with it; several, each a text; -: standard input")
          ->allow_extra_args(false);
  CLI::Option* chat = add_named(c, "--chat", a->chat, "FILE",
                                "a JSON file with a conversation, for the model's chat template; -: standard input")
                          ->excludes(text)
                          ->excludes(file);
  c->add_flag("--rendered", a->rendered, "the conversation's text, not its tokens")->needs(chat);
  add_named(c, "--token-ids", a->token_ids, "FILE", "back: tokens, each line a text")
      ->excludes(text)
      ->excludes(file)
      ->excludes(chat);
  c->add_flag("--bare", a->bare, "without the tokens that a text begins and ends with");
  c->add_flag("--plain", a->plain, "names of special tokens in the text are text");
  c->add_flag("--pieces", a->pieces, "a token a line, with its text");
  add_named(c, "--json", a->json, "FILE", "write all of it to this file; - for standard output");
  text->excludes(file);
  c->callback([a, &chosen] { chosen = [a] { return tokenize_command(*a); }; });
}

}  // namespace ferry::engine
