#include "text/chat_template.hpp"

#include <fmt/format.h>

#include "checkpoint/gguf.hpp"
#include "checkpoint/gguf_model.hpp"
#include "jinja/jinja.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/text_file.hpp"

namespace ferry::engine {
namespace {

constexpr const char* plain_template =
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:";

/// transformers' name for a template that is used if tools are offered.
const std::string tools_name = "tool_use";

/// The text of a field, which may be an object with the text as its content.
std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_object() && value.contains("content") && value["content"].is_string()
             ? value["content"].get<std::string>()
             : "";
}

/// What was found in a folder or file.
struct Found {
  std::string source, text;
  std::string tools_source, tools;  ///< the template for tools, if there is one
  nlohmann::ordered_json special = nlohmann::ordered_json::object();
};

/// Collects fields such as "bos_token".
void take_special(const Json& from, nlohmann::ordered_json& special) {
  if (!from.is_object()) return;
  for (const auto& [name, value] : from.items()) {
    if (name.ends_with("_token") && !text_of(value).empty()) special[name] = text_of(value);
  }
}

Found find_in_folder(const std::filesystem::path& folder) {
  Found found;
  const std::filesystem::path own = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  const std::filesystem::path map = folder / "special_tokens_map.json";  // older; tokenizer_config.json overrides it
  if (is_there(map)) take_special(read_json(map), found.special);
  if (is_there(config)) {
    const Json root = read_json(config);
    take_special(root, found.special);
    if (root.contains("extra_special_tokens")) take_special(root["extra_special_tokens"], found.special);
    if (root.contains("chat_template") && root["chat_template"].is_string()) {
      found.source = "tokenizer_config.json";
      found.text = root["chat_template"].get<std::string>();
    } else if (root.contains("chat_template") && root["chat_template"].is_array()) {  // several templates, by name
      std::string others;
      for (const Json& one : root["chat_template"]) {
        if (!one.is_object() || !one.contains("name") || !one.contains("template")) continue;
        if (one["name"] != "default") others += (others.empty() ? "" : ", ") + text_of(one["name"]);
        if (one["name"] == "default") {
          found.source = "tokenizer_config.json";
          found.text = text_of(one["template"]);
        } else if (one["name"] == tools_name) {
          found.tools_source = "tokenizer_config.json";
          found.tools = text_of(one["template"]);
        }
      }
      if (found.text.empty() && !others.empty() && !is_there(own)) {
        throw InputError(
            fmt::format("{}: has chat templates named {}, expected one named default", config.string(), others));
      }
    }
  }
  if (is_there(own)) {  // overrides those of the configuration
    found.source = "chat_template.jinja";
    found.text = read_whole(own);
    found.tools.clear();
  }
  const std::filesystem::path tools = std::filesystem::path("additional_chat_templates") / (tools_name + ".jinja");
  if (is_there(folder / tools)) {
    found.tools_source = tools.string();
    found.tools = read_whole(folder / tools);
  }
  return found;
}

Found find_in_gguf(const std::filesystem::path& path, const Tokenizer& tokenizer) {
  Found found;
  const auto files = open_gguf(path);
  const Json& metadata = files[0]->metadata();
  const auto text = [&](const std::string& name) {
    return metadata.contains(name) && metadata[name].is_string() ? metadata[name].get<std::string>() : "";
  };
  found.source = found.tools_source = path.filename().string();
  found.text = text("tokenizer.chat_template");
  found.tools = text("tokenizer.chat_template." + tools_name);
  for (const char* name : {"bos", "eos", "unk", "pad"}) {
    const auto id = metadata.find(fmt::format("tokenizer.ggml.{}_token_id", name == std::string("unk")   ? "unknown"
                                                                            : name == std::string("pad") ? "padding"
                                                                                                         : name));
    if (id == metadata.end() || !id->is_number_unsigned() || id->get<std::uint64_t>() >= tokenizer.size()) continue;
    const std::uint32_t token = id->get<std::uint32_t>();
    found.special[fmt::format("{}_token", name)] = tokenizer.decode({&token, 1}, true);
  }
  return found;
}

/// Messages in the form that templates expect. As in transformers, null fields are dropped. A model's reasoning comes under
/// one of three names; templates read "reasoning_content" or "thinking", so that a message gets both.
nlohmann::ordered_json as_templates_read(const nlohmann::ordered_json& given) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const nlohmann::ordered_json& one : given) {
    if (!one.is_object()) {
      messages.push_back(one);
      continue;
    }
    nlohmann::ordered_json& message = messages.emplace_back(nlohmann::ordered_json::object());
    for (const auto& [name, value] : one.items()) {
      if (!value.is_null()) message[name] = value;
    }
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (!message.contains(name)) continue;
      const nlohmann::ordered_json reasoning = message[name];
      if (!message.contains("thinking")) message["thinking"] = reasoning;
      message["reasoning_content"] = reasoning;
      break;
    }
  }
  return messages;
}

}  // namespace

ChatTemplate::ChatTemplate(const std::filesystem::path& model, const Tokenizer& tokenizer) {
  Found found = is_gguf(model) ? find_in_gguf(model, tokenizer) : find_in_folder(model);
  if (found.text.empty()) {
    found.source = "none of the model's own: ROLE: CONTENT a line";
    found.text = plain_template;
    own_ = false;
  }
  source_ = found.source;
  special_ = std::move(found.special);
  template_ = std::make_unique<JinjaTemplate>(found.text, own_ ? (model / source_).string() : "the plain template");
  if (own_ && !found.tools.empty()) {
    with_tools_ = std::make_unique<JinjaTemplate>(found.tools, (model / found.tools_source).string());
  }
}
ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& more) const {
  nlohmann::ordered_json context = special_;
  for (const auto& [name, value] : more.items()) context[name] = value;
  context["messages"] = as_templates_read(messages);
  context["add_generation_prompt"] = true;
  for (const char* name : {"tools", "documents"}) {
    if (!context.contains(name)) context[name] = nullptr;
  }
  return (with_tools_ != nullptr && !context["tools"].is_null() ? with_tools_ : template_)->render(context);
}

}  // namespace ferry::engine
