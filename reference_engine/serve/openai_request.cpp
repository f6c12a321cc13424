// Requests in OpenAI's interface: what they may contain, and the errors for everything else.
#include <fmt/format.h>

#include <cmath>
#include <random>
#include <set>
#include <utility>

#include "inference/generate.hpp"
#include "serve/openai.hpp"
#include "support/errors.hpp"
#include "support/utf8.hpp"

namespace ferry::engine {
namespace {

using OrderedJson = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& message, const std::string& param = "", const std::string& code = "") {
  ApiError e;
  e.message = printable(message);
  e.param = param;
  e.code = code;
  throw e;
}

const char* kind_of(const OrderedJson& value) {
  switch (value.type()) {
    case OrderedJson::value_t::null:
      return "null";
    case OrderedJson::value_t::boolean:
      return "a boolean";
    case OrderedJson::value_t::string:
      return "a string";
    case OrderedJson::value_t::array:
      return "an array";
    case OrderedJson::value_t::object:
      return "an object";
    default:
      return value.is_number_float() ? "a decimal" : "an integer";
  }
}

/// Fields of the body, each read once; what is left over is refused by name.
class Body {
 public:
  explicit Body(const OrderedJson& json) : json_(json) {}

  /// Null counts as absent.
  [[nodiscard]] const OrderedJson* find(const std::string& name) {
    read_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] static void wrong_type(const std::string& name, const char* expected, const OrderedJson& got) {
    refuse(fmt::format("Invalid type for '{}': expected {}, but got {} instead.", name, expected, kind_of(got)), name,
           "invalid_type");
  }
  [[noreturn]] static void wrong_value(const std::string& name, const std::string& expected) {
    refuse(fmt::format("Invalid '{}': expected {}.", name, expected), name, "invalid_value");
  }
  bool flag(const std::string& name, bool absent) {
    const OrderedJson* v = find(name);
    if (v != nullptr && !v->is_boolean()) wrong_type(name, "a boolean", *v);
    return v == nullptr ? absent : v->get<bool>();
  }
  void number(const std::string& name, double least, double most, double& value) {
    const OrderedJson* v = find(name);
    if (v == nullptr) return;
    if (!v->is_number()) wrong_type(name, "a number", *v);
    value = v->get<double>();
    if (!(value >= least && value <= most)) wrong_value(name, fmt::format("a number from {} to {}", least, most));
  }
  std::optional<std::uint64_t> whole(const std::string& name, std::uint64_t least, std::uint64_t most) {
    const OrderedJson* v = find(name);
    if (v == nullptr) return std::nullopt;
    if (!v->is_number_integer()) wrong_type(name, "an integer", *v);
    if (!v->is_number_unsigned() || v->get<std::uint64_t>() < least || v->get<std::uint64_t>() > most) {
      wrong_value(name, fmt::format("an integer from {} to {}", least, most));
    }
    return v->get<std::uint64_t>();
  }
  /// A text, or a list of texts, which counts for each choice.
  std::vector<std::string> texts(const std::string& name, std::size_t most) {
    constexpr std::size_t most_bytes = 4096;
    std::vector<std::string> all;
    const OrderedJson* v = find(name);
    if (v == nullptr) return all;
    for (const OrderedJson& one : v->is_array() ? *v : OrderedJson::array({*v})) {
      if (!one.is_string()) wrong_type(name, "a string or an array of strings", one);
      all.push_back(one.get<std::string>());
      if (all.back().empty()) wrong_value(name, "texts that are not empty");
    }
    std::size_t bytes = 0;
    for (const std::string& one : all) bytes += one.size();
    if (all.size() > most) wrong_value(name, fmt::format("at most {} texts", most));
    if (bytes > most_bytes) wrong_value(name, fmt::format("texts of at most {} bytes together", most_bytes));
    return all;
  }
  /// Accepts fields that have no meaning here, with any value.
  void ignore(std::initializer_list<const char*> names) {
    for (const char* name : names) read_.insert(name);
  }
  /// Refuses fields that would change the answer, unless their values ask for nothing.
  void must_be_off(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const OrderedJson* v = find(name);
      if (v == nullptr || *v == false || (v->is_structured() && v->empty()) || *v == "none" || *v == "") continue;
      refuse(fmt::format("'{}' is not supported.", name), name, "unsupported_parameter");
    }
  }
  void end() const {
    for (const auto& [name, value] : json_.items()) {
      if (read_.count(name) == 0) refuse(fmt::format("Unrecognized request argument supplied: {}", name), "", "");
    }
  }

 private:
  const OrderedJson& json_;
  std::set<std::string> read_;
};

Sampling read_sampling(Body& b, const ApiModel& m) {
  Sampling s = m.sampling;
  b.number("temperature", 0, 2, s.temperature);
  b.number("top_p", 0, 1, s.top_p);
  if (s.top_p == 0) s.top_p = 1e-9;  // OpenAI's 0 means the likeliest token
  b.number("min_p", 0, 1, s.min_p);
  if (const auto k = b.whole("top_k", 0, 1U << 24U)) s.top_k = static_cast<std::uint32_t>(*k);
  b.number("repetition_penalty", 0.01, 100, s.repeat_penalty);
  const double repetition = s.repeat_penalty;
  b.number("repeat_penalty", 0.01, 100, s.repeat_penalty);  // another name for the same
  if (b.find("repetition_penalty") != nullptr && s.repeat_penalty != repetition) {
    Body::wrong_value("repeat_penalty", "what 'repetition_penalty' says");
  }
  b.number("presence_penalty", -2, 2, s.presence_penalty);
  b.number("frequency_penalty", -2, 2, s.frequency_penalty);
  if (m.draws_seeds) {
    std::random_device random;
    s.seed = std::uint64_t{random()} << 32U | random();
  }
  if (const OrderedJson* seed = b.find("seed")) {
    if (!seed->is_number_integer()) Body::wrong_type("seed", "an integer", *seed);
    s.seed =
        seed->is_number_unsigned() ? seed->get<std::uint64_t>() : static_cast<std::uint64_t>(seed->get<std::int64_t>());
  }
  return s;
}

/// An error's text without the model's folder, which clients need not know.
std::string without_folder(std::string text, const ApiModel& m) {
  const std::string folder = m.folder + "/";
  for (std::size_t at; !m.folder.empty() && (at = text.find(folder)) != std::string::npos;)
    text.erase(at, folder.size());
  return text;
}

/// Turns a message's content into one string. It may be an array of parts if all are text.
void read_content(OrderedJson& message, const std::string& where) {
  const std::string at = where + ".content";
  if (!message.contains("content") || message["content"].is_null()) {
    refuse(fmt::format("Missing required parameter: '{}'.", at), at, "missing_required_parameter");
  }
  OrderedJson& content = message["content"];
  if (content.is_string()) return;
  if (!content.is_array()) Body::wrong_type(at, "a string or an array of parts", content);
  std::string text;
  for (const OrderedJson& part : content) {
    if (!part.is_object() || !part.contains("type") || part["type"] != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      refuse(fmt::format("Invalid '{}': parts of text alone are supported.", at), at, "invalid_value");
    }
    text += part["text"].get<std::string>();
  }
  content = text;
}

std::string read_messages(Body& b, const ApiModel& m) {
  const OrderedJson* list = b.find("messages");
  if (list == nullptr) refuse("Missing required parameter: 'messages'.", "messages", "missing_required_parameter");
  if (!list->is_array()) Body::wrong_type("messages", "an array of objects", *list);
  if (list->empty()) refuse("Invalid 'messages': expected one message at least.", "messages", "empty_array");
  OrderedJson messages = *list;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    if (!messages[i].is_object()) Body::wrong_type(where, "an object", messages[i]);
    if (!messages[i].contains("role")) {
      refuse(fmt::format("Missing required parameter: '{}.role'.", where), where + ".role",
             "missing_required_parameter");
    }
    const OrderedJson& role = messages[i]["role"];
    if (!role.is_string()) Body::wrong_type(where + ".role", "a string", role);
    if (role != "system" && role != "user" && role != "assistant" && role != "developer") {
      refuse(
          fmt::format("Invalid value: '{:.40}'. Supported values are: 'system', 'developer', 'user' and 'assistant'.",
                      role.get<std::string>()),
          where + ".role", "invalid_value");
    }
    for (const char* name : {"tool_calls", "function_call"}) {
      if (messages[i].contains(name) && !messages[i][name].empty()) {
        refuse(fmt::format("'{}.{}' is not supported.", where, name), where + "." + name, "unsupported_parameter");
      }
    }
    read_content(messages[i], where);
    if (role == "developer") messages[i]["role"] = "system";  // open models' templates know it as system
  }
  OrderedJson more = OrderedJson::object();
  if (const OrderedJson* arguments = b.find("chat_template_kwargs")) {
    if (!arguments->is_object()) Body::wrong_type("chat_template_kwargs", "an object", *arguments);
    more = *arguments;
  }
  if (const OrderedJson* effort = b.find("reasoning_effort")) {
    if (!effort->is_string()) Body::wrong_type("reasoning_effort", "a string", *effort);
    if (!more.contains("reasoning_effort")) more["reasoning_effort"] = *effort;  // for templates that read it
  }
  try {
    return m.chat.render(messages, more);
  } catch (const InputError& e) {  // templates refuse what their model does not support
    refuse(without_folder(e.what(), m), "messages", "invalid_value");
  }
}

constexpr std::size_t most_prompts = 64;  // counted once for each of their choices

/// A prompt as text or tokens, or a list of one of these.
struct Prompt {
  std::string text;
  std::vector<std::uint32_t> tokens;
};

Prompt read_tokens(const OrderedJson& list, const ApiModel& m) {
  Prompt p;
  for (const OrderedJson& token : list) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() >= m.model.config().vocabulary) {
      Body::wrong_value("prompt", fmt::format("tokens from 0 to {}", m.model.config().vocabulary - 1));
    }
    p.tokens.push_back(token.get<std::uint32_t>());
  }
  p.text = m.tokenizer.decode(p.tokens, true);
  return p;
}

std::vector<Prompt> read_prompts(Body& b, const ApiModel& m) {
  const OrderedJson* v = b.find("prompt");
  std::vector<Prompt> all;
  if (v == nullptr) refuse("Missing required parameter: 'prompt'.", "prompt", "missing_required_parameter");
  const auto from_text = [&](const std::string& text) { all.push_back({text, tokenize(m.model, text)}); };
  if (v->is_array() && v->empty()) Body::wrong_value("prompt", "one prompt at least");
  if (v->is_array() && !(*v)[0].is_number() && v->size() > most_prompts) {  // before any of them is read
    Body::wrong_value("prompt", fmt::format("at most {} prompts", most_prompts));
  }
  if (v->is_string()) {
    from_text(v->get<std::string>());
  } else if (v->is_array() && !v->empty() && (*v)[0].is_number()) {
    all.push_back(read_tokens(*v, m));
  } else if (v->is_array() && !v->empty()) {
    for (const OrderedJson& one : *v) {
      if (one.is_string()) {
        from_text(one.get<std::string>());
      } else if (one.is_array()) {
        all.push_back(read_tokens(one, m));
      } else {
        Body::wrong_type("prompt", "a string, tokens, or an array of either", one);
      }
    }
  } else {
    Body::wrong_type("prompt", "a string, tokens, or an array of either", *v);
  }
  return all;
}

OrderedJson read_body(const std::string& body) {
  if (valid_utf8(body) != body) refuse("The body is not UTF-8.");
  OrderedJson json;
  try {
    json = parse_ordered_json(body, "The body as JSON");
  } catch (const InputError& e) {
    refuse(e.what());
  }
  if (!json.is_object()) refuse(fmt::format("The body is {}, expected a JSON object.", kind_of(json)));
  return json;
}

void read_stream(Body& b, ApiRequest& r) {
  r.stream = b.flag("stream", false);
  const OrderedJson* options = b.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) Body::wrong_type("stream_options", "an object", *options);
  if (!r.stream) Body::wrong_value("stream_options", "it beside 'stream': true alone");
  const OrderedJson usage = options->value("include_usage", OrderedJson(nullptr));
  if (!usage.is_null() && !usage.is_boolean()) {
    Body::wrong_type("stream_options.include_usage", "a boolean", usage);
  }
  r.include_usage = usage == true;
}

/// What a request asks for, before its choices are made from it.
struct Asked {
  std::vector<Prompt> prompts;
  std::uint32_t n = 1;                ///< choices of each prompt
  std::optional<std::uint64_t> most;  ///< tokens of each choice
  DecodeRequest choice;               ///< what all choices share
};

/// What /v1/chat/completions alone has.
void read_chat(Body& b, const ApiModel& m, Asked& asked) {
  if (const auto newer = b.whole("max_completion_tokens", 1, 1U << 28U)) {
    if (asked.most && *asked.most != *newer) {
      Body::wrong_value("max_tokens", "the same as 'max_completion_tokens', or one of both");
    }
    asked.most = newer;
  }
  asked.choice.probabilities = b.flag("logprobs", false);
  const auto top = b.whole("top_logprobs", 0, 20);
  if (top && !asked.choice.probabilities) Body::wrong_value("top_logprobs", "it beside 'logprobs': true alone");
  asked.choice.alternatives = static_cast<std::uint32_t>(top.value_or(0));
  const std::string text = read_messages(b, m);
  asked.prompts.push_back({text, m.tokenizer.encode(text, !m.chat.own())});
  for (const std::string& end : m.chat.stops()) asked.choice.stops.push_back(end);
  b.must_be_off({"tools", "tool_choice", "functions", "function_call", "audio", "prediction", "web_search_options"});
  const OrderedJson* modalities = b.find("modalities");
  if (modalities != nullptr && *modalities != OrderedJson::array({"text"})) {
    Body::wrong_value("modalities", "[\"text\"]");
  }
  if (const OrderedJson* format = b.find("response_format")) {
    if (!format->is_object() || !format->contains("type") || (*format)["type"] != "text") {
      Body::wrong_value("response_format", "{\"type\": \"text\"}");
    }
  }
  b.ignore({"parallel_tool_calls", "verbosity", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"});
}

/// What /v1/completions alone has; returns whether the prompt is echoed.
bool read_completion(Body& b, const ApiModel& m, Asked& asked) {
  if (const auto top = b.whole("logprobs", 0, 20)) {
    asked.choice.probabilities = true;
    asked.choice.alternatives = static_cast<std::uint32_t>(*top);
  }
  const bool echo = b.flag("echo", false);
  if (echo && asked.choice.probabilities) Body::wrong_value("echo", "it without 'logprobs'");
  asked.prompts = read_prompts(b, m);
  b.must_be_off({"suffix"});
  if (b.whole("best_of", 1, m.most_choices).value_or(asked.n) != asked.n) {
    Body::wrong_value("best_of", "as many as 'n'");
  }
  return echo;
}

/// Appends a prompt's choices, if it has room in the context.
void add_choices(ApiRequest& r, const Prompt& p, const Asked& asked, const ApiModel& m) {
  const char* const param = r.chat ? "messages" : "prompt";
  if (p.tokens.empty()) Body::wrong_value(param, "a prompt of one token at least");
  for (const std::uint32_t t : p.tokens) {
    if (t >= m.model.config().vocabulary) refuse("The model's tokenizer makes tokens that the model does not have.");
  }
  if (p.tokens.size() + asked.most.value_or(1) > m.context) {
    refuse(fmt::format("This model's maximum context length is {} tokens; the prompt has {}{}.", m.context,
                       p.tokens.size(), asked.most ? fmt::format(", and {} were asked for", *asked.most) : ""),
           param, "context_length_exceeded");
  }
  const std::uint64_t room = m.context - p.tokens.size();
  const std::uint64_t wanted = asked.most.value_or(r.chat ? room : 16);
  r.prompt_tokens += p.tokens.size();
  for (std::uint32_t i = 0; i < asked.n; ++i) {
    DecodeRequest one = asked.choice;
    one.tokens = p.tokens;
    one.max_new_tokens = static_cast<std::uint32_t>(std::min(wanted, room));
    one.sampling.seed += r.choices.size() * 0x9e3779b97f4a7c15;  // not + 1, which would be the next seed's first choice
    r.choices.push_back(std::move(one));
    r.prompts.push_back(p.text);
  }
}

}  // namespace

std::string ApiError::body() const {
  const auto or_null = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
  const Json error = {{"message", message}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}};
  return json_text(Json{{"error", error}});
}

ApiError no_such_model(const std::string& name, const ApiModel& m) {
  ApiError e;
  e.status = 404;
  e.message = printable(fmt::format("The model '{:.80}' does not exist; this server has '{}'.", name, m.name));
  e.param = "model";
  e.code = "model_not_found";
  return e;
}

ApiRequest read_request(const std::string& body, bool chat, const ApiModel& m) {
  const OrderedJson json = read_body(body);
  Body b(json);
  if (const OrderedJson* name = b.find("model")) {
    if (!name->is_string()) Body::wrong_type("model", "a string", *name);
    if (*name != m.name) {
      throw no_such_model(name->get<std::string>(), m);
    }
  }
  ApiRequest r;
  r.chat = chat;
  read_stream(b, r);
  r.reports_stack = b.flag("ferry", false);
  Asked asked;
  asked.choice.sampling = read_sampling(b, m);
  asked.choice.stops = b.texts("stop", 16);
  asked.n = static_cast<std::uint32_t>(b.whole("n", 1, m.most_choices).value_or(1));
  asked.most = b.whole("max_tokens", 1, 1U << 28U);
  if (chat) {
    read_chat(b, m, asked);
  } else {
    r.echo = read_completion(b, m, asked);
  }
  b.must_be_off({"logit_bias"});
  b.ignore({"user", "store", "metadata", "service_tier"});
  b.end();
  if (asked.prompts.size() * asked.n > most_prompts) {
    Body::wrong_value("n", fmt::format("{} choices of all prompts together at most", most_prompts));
  }
  r.probabilities = asked.choice.probabilities;
  for (const Prompt& p : asked.prompts) add_choices(r, p, asked, m);
  return r;
}

}  // namespace ferry::engine
