// Answers in OpenAI's interface.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "ferry/macros.hpp"
#include "report/report.hpp"
#include "serve/openai.hpp"
#include "support/utf8.hpp"

namespace ferry::engine {
namespace {

const char* reason_of(Ended ended) {
  switch (ended) {
    case Ended::end_token:
    case Ended::stop_string:
      return "stop";
    case Ended::interrupted:
      return "cancelled";
    default:
      return "length";
  }
}

}  // namespace

ApiAnswer::ApiAnswer(const ApiRequest& request, const ApiModel& model, std::int64_t created, std::string id)
    : request_(request), model_(model), created_(created), id_(std::move(id)) {}

Json ApiAnswer::frame(const char* object) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_.name},
          {"system_fingerprint", std::string("ferry-") + FERRY_VERSION},
          {"choices", Json::array()}};
}

std::string ApiAnswer::text_of(std::uint32_t token) const {
  return model_.tokenizer.is_special(token) ? model_.tokenizer.decode({&token, 1}, true)
                                            : valid_utf8(model_.tokenizer.bytes(token));
}

std::string ApiAnswer::name_of(std::uint32_t token) const {
  const std::string bytes = model_.tokenizer.bytes(token);
  if (model_.tokenizer.is_special(token) || valid_utf8(bytes) == bytes) return text_of(token);
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

Json ApiAnswer::probabilities(const std::vector<TokenProbability>& tokens,
                              const std::vector<std::vector<TokenProbability>>& alternatives) const {
  if (!request_.probabilities) return nullptr;
  if (!request_.chat) {
    Json made = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
    std::size_t characters = 0;  // complete ones so far
    std::string begun;           // bytes of the next one so far
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      made["text_offset"].push_back(characters + (begun.empty() ? 0 : 1));
      if (!model_.tokenizer.is_special(tokens[i].token)) begun += model_.tokenizer.bytes(tokens[i].token);
      const std::size_t over = begun.size() - unfinished_bytes(begun);
      characters += count_characters(std::string_view(begun).substr(0, over));
      begun.erase(0, over);
      made["tokens"].push_back(name_of(tokens[i].token));
      made["token_logprobs"].push_back(tokens[i].log_probability);
      Json best = Json::object();
      for (const TokenProbability& p : alternatives[i])
        best.emplace(name_of(p.token), p.log_probability);  // likeliest first
      best[name_of(tokens[i].token)] = tokens[i].log_probability;
      made["top_logprobs"].push_back(std::move(best));
    }
    return made;
  }
  const auto one = [&](const TokenProbability& p) {
    Json bytes = Json::array();
    for (const char c : model_.tokenizer.bytes(p.token)) bytes.push_back(static_cast<unsigned char>(c));
    return Json{{"token", text_of(p.token)}, {"logprob", p.log_probability}, {"bytes", std::move(bytes)}};
  };
  Json content = Json::array();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    Json token = one(tokens[i]);
    token["top_logprobs"] = Json::array();
    for (const TokenProbability& p : alternatives[i]) token["top_logprobs"].push_back(one(p));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

Json ApiAnswer::usage(const std::vector<std::shared_ptr<Answer>>& answers) const {
  std::uint64_t made = 0;
  for (const auto& a : answers) made += a->decoded().tokens.size();
  return {{"prompt_tokens", request_.prompt_tokens},
          {"completion_tokens", made},
          {"total_tokens", request_.prompt_tokens + made}};
}

Json ApiAnswer::whole(const std::vector<std::shared_ptr<Answer>>& answers) const {
  Json json = frame(request_.chat ? "chat.completion" : "text_completion");
  for (std::uint32_t i = 0; i < answers.size(); ++i) {
    const Decoded& d = answers[i]->decoded();
    Json choice = {{"index", i},
                   {"finish_reason", reason_of(d.ended)},
                   {"logprobs", probabilities(d.probabilities, d.alternatives)}};
    if (request_.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", d.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = request_.echo ? valid_utf8(request_.prompts[i]) + d.text : d.text;
    }
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = usage(answers);
  if (request_.reports_stack) {
    json["ferry"] = counters_between(answers.front()->before(), answers.back()->after());
    json["ferry"]["first_token_s"] = answers.front()->first_token_s();
    json["ferry"]["whole_s"] = answers.back()->whole_s();
  }
  return json;
}

Json ApiAnswer::first_chunk(std::uint32_t index) const {
  Json json = frame(request_.chat ? "chat.completion.chunk" : "text_completion");
  Json choice = {{"index", index}, {"finish_reason", nullptr}, {"logprobs", nullptr}};
  if (request_.chat) {
    choice["delta"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    choice["text"] = request_.echo ? valid_utf8(request_.prompts[index]) : "";
  }
  json["choices"].push_back(std::move(choice));
  if (request_.include_usage) json["usage"] = nullptr;
  return json;
}

Json ApiAnswer::chunk(std::uint32_t index, const Answer::Piece& piece) const {
  Json json = first_chunk(index);
  Json& choice = json["choices"][0];
  if (request_.chat) {
    choice["delta"] = {{"content", piece.text}};
  } else {
    choice["text"] = piece.text;
  }
  if (piece.probability) choice["logprobs"] = probabilities({*piece.probability}, {piece.alternatives});
  if (!request_.chat && piece.probability) choice["logprobs"].erase("text_offset");  // offsets would be the chunk's own
  return json;
}

Json ApiAnswer::last_chunk(std::uint32_t index, const Answer& answer) const {
  Json json = first_chunk(index);
  Json& choice = json["choices"][0];
  if (request_.chat) {
    choice["delta"] = Json::object();
  } else {
    choice["text"] = "";
  }
  choice["finish_reason"] = reason_of(answer.decoded().ended);
  if (request_.reports_stack) {
    json["ferry"] = counters_between(answer.before(), answer.after());
    json["ferry"]["first_token_s"] = answer.first_token_s();
    json["ferry"]["whole_s"] = answer.whole_s();
  }
  return json;
}

Json ApiAnswer::usage_chunk(const std::vector<std::shared_ptr<Answer>>& answers) const {
  Json json = frame(request_.chat ? "chat.completion.chunk" : "text_completion");
  json["usage"] = usage(answers);
  return json;
}

Json model_answer(const ApiModel& model, std::int64_t created) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "ferry"},
          {"context_length", model.context},
          {"vocabulary", model.model.config().vocabulary},
          {"tokenizer", model.tokenizer.kind()},
          {"chat_template", model.chat.source()}};
}

Json models_answer(const ApiModel& model, std::int64_t created) {
  return {{"object", "list"}, {"data", Json::array({model_answer(model, created)})}};
}

Json counters_between(const Counters& before, const Counters& after) {
  Json json = Json::object();
  constexpr std::pair<const char*, std::uint64_t Outcomes::*> members[] = {
      {"requests", &Outcomes::requests},           {"hits", &Outcomes::hits},
      {"late_hits", &Outcomes::late_hits},         {"misses", &Outcomes::misses},
      {"substituted", &Outcomes::substituted},     {"skipped", &Outcomes::skipped},
      {"host_computed", &Outcomes::host_computed}, {"bytes", &Outcomes::bytes}};
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    Json& of = json[phase == Phase::prefill ? "prefill" : "decode"];
    for (const auto& [name, member] : members) of[name] = after.of(phase).*member - before.of(phase).*member;
  }
  return json;
}

}  // namespace ferry::engine
