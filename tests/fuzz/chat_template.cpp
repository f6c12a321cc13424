// Chat templates: a conversation with tools, and one without, through those that are accepted.
#include "fuzz/check_simulated.hpp"
#include "fuzz/fuzz.hpp"
#include "jinja/jinja.hpp"
#include "support/bundled_files.hpp"
#include "support/utf8.hpp"

namespace ferry::fuzz {
namespace {

using namespace engine;

const nlohmann::ordered_json& conversation(bool tools) {
  static const auto plain = nlohmann::ordered_json::parse(R"({"messages": [
    {"role": "system", "content": " Be brief. "}, {"role": "user", "content": "H\u00e9llo <b>"},
    {"role": "assistant", "content": "<think>x</think>Hi"}, {"role": "user", "content": "Why?\n"}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "tools": null, "documents": null})");
  static const auto with_tools = [] {
    auto c = plain;
    c["tools"] = nlohmann::ordered_json::parse(
        R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}])");
    c["messages"].push_back(nlohmann::ordered_json::parse(
        R"({"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1.5}}}]})"));
    c["messages"].push_back({{"role", "tool"}, {"content", "4"}});
    return c;
  }();
  return tools ? with_tools : plain;
}

}  // namespace

void read(const std::string& input) {
  const JinjaTemplate made(input, "in");
  for (const bool tools : {false, true}) {
    const std::string text = made.render(conversation(tools));
    if (valid_utf8(text) != text) throw Broken("a rendered text is no UTF-8");
  }
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t /*seed*/) {
  return mutate_bytes(input, most);
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const Json& c :
       parse_json(content_of(data_directory().parent_path() / "tests/goldens/jinja.json"), "jinja.json")) {
    all.push_back(c.at("template").get<std::string>());
  }
  return all;
}

}  // namespace ferry::fuzz
