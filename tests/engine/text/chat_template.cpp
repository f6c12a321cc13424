// Where a model's chat template comes from, and what it gets besides the messages.
#include "text/chat_template.hpp"

#include <doctest/doctest.h>

#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "support/errors.hpp"

using namespace ferry;
using namespace ferry::engine;

namespace {

using OrderedJson = nlohmann::ordered_json;

/// A folder with a tokenizer, and what a test writes beside it.
class Folder {
 public:
  Folder() {
    std::filesystem::copy_file(std::filesystem::path(test::golden_file("tokenizers")) / "qwen3" / "tokenizer.json",
                               folder_.path() / "tokenizer.json");
    tokenizer_ = open_tokenizer(folder_.path());
  }
  Folder& has(const char* name, const std::string& content) {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    test::write_file(folder_.path() / name, content);
    return *this;
  }
  void links(const char* name, const char* to) { std::filesystem::create_symlink(to, folder_.path() / name); }
  [[nodiscard]] ChatTemplate open() const { return {folder_.path(), *tokenizer_}; }

 private:
  test::TemporaryFolder folder_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

OrderedJson messages() {
  return OrderedJson::parse(R"([{"role": "user", "content": "Hi"}])");
}

}  // namespace

TEST_CASE("a template is found where models have it") {
  Folder f;
  ChatTemplate plain = f.open();
  CHECK(!plain.own());
  CHECK(plain.render(messages()) == "user: Hi\nassistant:");
  CHECK(plain.stops() == std::vector<std::string>{"\nuser:"});

  f.has("tokenizer_config.json", R"({"chat_template": "config {{ messages[0].content }}", "eos_token": "</s>"})");
  CHECK(f.open().own());
  CHECK(f.open().source() == "tokenizer_config.json");
  CHECK(f.open().render(messages()) == "config Hi");
  CHECK(f.open().stops().empty());

  SUBCASE("a link to nothing is refused, for what it was to bring may be what the model needs") {
    f.links("chat_template.jinja", "/nowhere/blob");
    CHECK_THROWS_WITH_AS(static_cast<void>(f.open()), doctest::Contains("chat_template.jinja: cannot be read"),
                         InputError);
  }
  SUBCASE("a file of its own comes before the one in tokenizer_config.json") {
    f.has("chat_template.jinja", "file {{ messages[0].content }}{{ eos_token }}");
    CHECK(f.open().source() == "chat_template.jinja");
    CHECK(f.open().render(messages()) == "file Hi</s>");
  }
  SUBCASE("of several by name it is the default one") {
    f.has("tokenizer_config.json",
          R"({"chat_template": [{"name": "rag", "template": "rag"}, {"name": "default", "template": "default"}]})");
    CHECK(f.open().render(messages()) == "default");
    f.has(
        "tokenizer_config.json",
        R"({"chat_template": [{"name": 5, "template": "x"}, {"name": null}, {}, 7, {"name": "default", "template": "y"}]})");
    CHECK(f.open().render(messages()) == "y");
  }
  SUBCASE("of several none of which is the default one none is guessed") {
    const char* two =
        R"({"chat_template": [{"name": "rag", "template": "rag"}, {"name": "tool_use", "template": "t"}]})";
    f.has("tokenizer_config.json", two);
    CHECK(test::says(test::refusal("tokenizer_config.json", [&] { static_cast<void>(f.open()); }),
                     {"templates named rag, tool_use, expected one named default"}));
    f.has("chat_template.jinja", "file");
    CHECK(f.open().render(messages()) == "file");
  }
  SUBCASE("messages beside which tools are offered have a template of their own, where there is one") {
    const OrderedJson tools = OrderedJson::parse(R"({"tools": [{"type": "function"}]})");
    f.has("tokenizer_config.json",
          R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
    CHECK(f.open().render(messages()) == "d");
    CHECK(f.open().render(messages(), {{"tools", nullptr}}) == "d");
    CHECK(f.open().render(messages(), tools) == "t");
    f.has("chat_template.jinja", "file");  // replaces all templates of the configuration
    CHECK(f.open().render(messages(), tools) == "file");
    f.has("additional_chat_templates/tool_use.jinja", "beside {{ tools | length }}");
    CHECK(f.open().render(messages()) == "file");
    CHECK(f.open().render(messages(), tools) == "beside 1");
    f.has("additional_chat_templates/tool_use.jinja", "line\n{% if %}");
    CHECK(test::says(test::refusal("", [&] { static_cast<void>(f.open()); }), {"tool_use.jinja", "line 2"}));
  }
  SUBCASE("a damaged one is refused with its file and line") {
    f.has("chat_template.jinja", "line\n{% if %}");
    CHECK(test::says(test::refusal("chat_template.jinja", [&] { static_cast<void>(f.open()); }), {"line 2"}));
  }
}

TEST_CASE("a template sees special tokens, whether an answer begins, and what a request adds") {
  Folder f;
  f.has("tokenizer_config.json",
        R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null, "model_max_length": 10})");
  f.has("chat_template.jinja",
        "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ add_generation_prompt }}|{{ tools is none }}|"
        "{{ enable_thinking | default('unset') }}");
  CHECK(f.open().render(messages()) == "<s>|</s>|False|True|True|unset");
  CHECK(f.open().render(messages(), {{"enable_thinking", false}}) == "<s>|</s>|False|True|True|False");
  CHECK(f.open().render(messages(), {{"add_generation_prompt", false}, {"messages", 5}}) ==
        "<s>|</s>|False|True|True|unset");  // a request cannot override these
}

TEST_CASE("special tokens come from all three places, the newest first") {
  Folder f;
  f.has("special_tokens_map.json", R"({"bos_token": "<old>", "eos_token": {"content": "</s>"}, "more": ["x"]})");
  f.has("chat_template.jinja", "{{ bos_token }}|{{ eos_token }}|{{ image_token }}|{{ more }}");
  CHECK(f.open().render(messages()) == "<old>|</s>||");
  f.has("tokenizer_config.json", R"({"bos_token": "<s>", "extra_special_tokens": {"image_token": "<img>"}})");
  CHECK(f.open().render(messages()) == "<s>|</s>|<img>|");
}

TEST_CASE("what is null in a message is not there, as in transformers") {
  Folder f;
  f.has("chat_template.jinja", "{% for m in messages %}{{ m.items() | list }}{{ m.content is defined }};{% endfor %}");
  const auto all =
      OrderedJson::parse(R"([{"role": "assistant", "content": null, "tool_calls": null}, {"content": [null]}])");
  CHECK(f.open().render(all) == "[('role', 'assistant')]False;[('content', [None])]True;");
}

TEST_CASE("what a model thought has the names that templates read, as in transformers") {
  Folder f;
  f.has("chat_template.jinja",
        "{% for m in messages %}{{ m.reasoning_content | default('-') }},{{ m.thinking | default('-') }};{% endfor %}");
  const auto all = OrderedJson::parse(R"([{"role": "user"}, {"role": "assistant", "reasoning": "a"},
      {"role": "assistant", "thinking": "b"}, {"role": "assistant", "reasoning_content": "c", "thinking": "d"},
      {"role": "assistant", "reasoning_content": null, "reasoning": "e"}])");
  CHECK(f.open().render(all) == "-,-;a,a;b,b;c,d;e,e;");
}

TEST_CASE("a template's own refusal is told") {
  Folder f;
  f.has("chat_template.jinja", "{{ raise_exception('Roles must alternate') }}");
  const ChatTemplate t = f.open();
  CHECK(test::says(test::refusal("chat_template.jinja", [&] { static_cast<void>(t.render(messages())); }),
                   {"Roles must alternate"}));
}
