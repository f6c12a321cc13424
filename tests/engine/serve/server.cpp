// The server as its clients see it, over HTTP: OpenAI's interface, its errors, many clients at a time.
#include "serve/server.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <thread>

#include "engine/fixtures/files.hpp"
#include "engine/fixtures/loaded_model.hpp"
#include "engine/fixtures/prompts.hpp"
#include "inference/generate.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"

using namespace ferry;
using namespace ferry::engine;

namespace {

RunnerOptions quarter_of_the_experts(Model& model) {
  RunnerOptions r;
  r.stack = "lru";
  r.max_rows = 64;
  r.budget_bytes = model_shape(model.config(), model.store(), r.max_rows).all_bytes() / 4;
  return r;
}

/// tiny-mixtral served at a port of this machine until the test ends.
class Served {
 public:
  explicit Served(ServerOptions o = {}, DecodeLoop::Options l = {4, 64, 64})
      : loop_(
            model_, [this] { return make_watched(); }, l) {
    o.port = 0;
    if (o.stack.empty()) o.stack = "lru";
    server_ = std::make_unique<Server>(loop_, api_, o);
    thread_ = std::thread([this] { server_->run(); });
    key_ = o.api_key;
  }
  ~Served() {
    server_->stop();
    thread_.join();
  }
  httplib::Client client() const {
    httplib::Client c("127.0.0.1", server_->port());
    c.set_read_timeout(60);
    return c;
  }
  httplib::Result post(const std::string& path, const std::string& body) const {
    return client().Post(path, body, "application/json");
  }
  Json ask(const std::string& path, const Json& body) const {
    const httplib::Result r = post(path, body.dump());
    REQUIRE(r);
    CHECK_MESSAGE(r->status == 200, r->body);
    return Json::parse(r->body);
  }
  Json get(const std::string& path) const {
    const httplib::Result r = client().Get(path);
    REQUIRE(r);
    return Json::parse(r->body);
  }
  /// The text that `ferry run` generates for a prompt.
  std::string alone(const std::string& prompt, std::uint32_t tokens) {
    const auto runner = make_runner(model_, quarter_of_the_experts(model_));
    GenerateOptions g;
    g.prompts = {prompt};
    g.max_new_tokens = tokens;
    g.prefill_chunk = 64;
    return generate(model_, *runner, g).text[0];
  }
  std::string template_text(const Json& messages) const { return chat_.render(messages); }
  unsigned begin() const { return model_.begin_tokens().at(0); }
  std::uint16_t port() const { return server_->port(); }
  void another(const ServerOptions& o) { const Server other(loop_, api_, o); }
  DecodeLoop& loop() { return loop_; }
  /// Does what `ferry serve` does after a signal.
  void end() {
    server_->refuse_requests();
    loop_.close();
  }
  bool has_requests() const { return server_->has_requests(); }

  std::atomic<bool> disk_fails{false}, none_can_be_made{false};
  std::atomic<int> made{0};

 private:
  /// After the first failure it fails for good, as a link does.
  class Watched final : public PassingRunner {
   public:
    Watched(std::unique_ptr<ExpertRunner> runner, const std::atomic<bool>& fails)
        : PassingRunner(*runner), own_(std::move(runner)), fails_(fails) {}
    void run(std::uint16_t layer, const Matrix& input, Matrix& out) override {
      failed_ = failed_ || fails_;
      if (failed_) throw LinkError("a copy failed: the disk");
      PassingRunner::run(layer, input, out);
    }

   private:
    std::unique_ptr<ExpertRunner> own_;
    const std::atomic<bool>& fails_;
    bool failed_ = false;
  };
  std::unique_ptr<ExpertRunner> make_watched() {
    ++made;
    if (none_can_be_made) throw InputError("no memory on the device");
    return std::make_unique<Watched>(make_runner(model_, quarter_of_the_experts(model_)), disk_fails);
  }
  CpuModel model_{test::model_folder("tiny-mixtral")};
  ChatTemplate chat_{test::model_folder("tiny-mixtral"), model_.need_tokenizer()};
  ApiModel api_{"tiny", model_, model_.need_tokenizer(), chat_, Sampling{}, 512};
  DecodeLoop loop_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::string key_;
};

/// The events of a stream; the last has to be [DONE].
std::vector<Json> events(const std::string& body) {
  std::vector<Json> all;
  std::size_t at = 0;
  bool done = false;
  for (std::size_t end; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string line = body.substr(at, end - at);
    REQUIRE(line.starts_with("data: "));
    CHECK(!done);
    if (line == "data: [DONE]") {
      done = true;
    } else {
      all.push_back(Json::parse(line.substr(6)));
    }
  }
  CHECK(done);
  CHECK(at == body.size());
  return all;
}

/// A request that takes a while.
DecodeRequest long_request() {
  DecodeRequest r;
  r.tokens = {97};
  r.max_new_tokens = 900;
  return r;
}

}  // namespace

TEST_CASE("a completion is what the model makes of the prompt by itself") {
  Served s;
  const std::string prompt = test::prompts()[0];
  const Json a = s.ask("/v1/completions", {{"model", "tiny"}, {"prompt", prompt}, {"max_tokens", 24}, {"ferry", true}});
  CHECK(a["object"] == "text_completion");
  CHECK(a["model"] == "tiny");
  CHECK(a["choices"].size() == 1);
  CHECK(a["choices"][0]["text"] == s.alone(prompt, 24));
  CHECK(a["choices"][0]["finish_reason"] == "length");
  CHECK(a["usage"]["prompt_tokens"] == prompt.size() + 1);  // a byte each, behind the one that a text begins with
  CHECK(a["usage"]["completion_tokens"] == 24);
  CHECK(a["usage"]["total_tokens"] == prompt.size() + 25);
  const Json& d = a["ferry"]["decode"];
  CHECK(d["requests"] > 0);
  CHECK(d["requests"] == d["hits"].get<int>() + d["late_hits"].get<int>() + d["misses"].get<int>() +
                             d["host_computed"].get<int>() + d["substituted"].get<int>() + d["skipped"].get<int>());

  SUBCASE("echo puts the prompt before it") {
    const Json e = s.ask("/v1/completions", {{"prompt", prompt}, {"max_tokens", 24}, {"echo", true}});
    CHECK(e["choices"][0]["text"] == prompt + s.alone(prompt, 24));
  }
  SUBCASE("a stop string ends it and is not shown") {
    const std::string whole = s.alone(prompt, 24), stop = whole.substr(6, 3);
    const Json e = s.ask("/v1/completions", {{"prompt", prompt}, {"max_tokens", 24}, {"stop", stop}});
    CHECK(e["choices"][0]["text"] == whole.substr(0, whole.find(stop)));
    CHECK(e["choices"][0]["finish_reason"] == "stop");
  }
  SUBCASE("several prompts, as texts or tokens, and several choices") {
    const Json e = s.ask("/v1/completions", {{"prompt", {prompt, test::prompts()[1]}}, {"max_tokens", 8}, {"n", 2}});
    REQUIRE(e["choices"].size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(e["choices"][i]["index"] == i);
      CHECK(e["choices"][i]["text"] == s.alone(test::prompts()[i / 2], 8));
    }
    std::vector<unsigned> tokens = {s.begin()};
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    CHECK(s.ask("/v1/completions", {{"prompt", tokens}, {"max_tokens", 8}})["choices"][0]["text"] ==
          e["choices"][0]["text"]);
  }
  SUBCASE("a seed makes it again, whatever is decoded beside it") {
    const Json q = {{"prompt", prompt}, {"max_tokens", 24}, {"temperature", 1.0}, {"seed", 5}};
    const Json first = s.ask("/v1/completions", q);
    Json again;
    std::thread beside([&] { s.ask("/v1/completions", {{"prompt", test::prompts()[2]}, {"max_tokens", 40}}); });
    again = s.ask("/v1/completions", q);
    beside.join();
    CHECK(first["choices"] == again["choices"]);
  }
  SUBCASE("log-probabilities, as completions have them") {
    const Json e = s.ask("/v1/completions", {{"prompt", prompt}, {"max_tokens", 5}, {"logprobs", 2}});
    const Json& l = e["choices"][0]["logprobs"];
    REQUIRE(l["tokens"].size() == 5);
    CHECK(l["token_logprobs"].size() == 5);
    CHECK(l["top_logprobs"].size() == 5);
    CHECK(l["text_offset"] == Json{0, 1, 2, 3, 4});
    for (const Json& p : l["token_logprobs"]) CHECK(p <= 0.0);
    for (const Json& p : l["top_logprobs"]) CHECK(p.size() == 2);  // greedy: the drawn one is the likeliest
  }
  SUBCASE("the drawn token stands among the likeliest with its own probability, and each byte has a name") {
    int beyond = 0, bytes = 0;
    for (int seed = 0; seed < 6; ++seed) {
      const Json e =
          s.ask("/v1/completions",
                {{"prompt", prompt}, {"max_tokens", 80}, {"logprobs", 1}, {"temperature", 2}, {"seed", seed}});
      const Json& l = e["choices"][0]["logprobs"];
      for (std::size_t i = 0; i < l["tokens"].size(); ++i) {
        const std::string token = l["tokens"][i];
        const Json& top = l["top_logprobs"][i];
        CHECK(top[token] == l["token_logprobs"][i]);
        REQUIRE(top.size() <= 2);
        beyond += top.size() == 2 ? 1 : 0;
        bytes += token.starts_with("bytes:\\x") ? 1 : 0;
        for (const auto& [name, p] : top.items()) CHECK(p >= l["token_logprobs"][i]);
      }
    }
    CHECK(beyond > 0);
    CHECK(bytes > 0);
  }
  SUBCASE("an offset is where the token's character stands, also behind bytes that are none") {
    int odd = 0;
    for (int seed = 0; seed < 12; ++seed) {
      const Json e =
          s.ask("/v1/completions",
                {{"prompt", prompt}, {"max_tokens", 80}, {"logprobs", 0}, {"temperature", 2}, {"seed", seed}});
      const std::string text = e["choices"][0]["text"];
      const Json& l = e["choices"][0]["logprobs"];
      std::vector<std::string> characters;
      for (const char c : text) {
        if ((c & 0xC0) == 0x80) {
          characters.back() += c;
        } else {
          characters.emplace_back(1, c);
        }
      }
      for (std::size_t i = 0; i < l["tokens"].size(); ++i) {
        const std::string token = l["tokens"][i];
        if (token.size() != 1) {
          ++odd;  // a byte of a longer character, or of none
          continue;
        }
        REQUIRE(l["text_offset"][i] < characters.size());
        CHECK(characters[l["text_offset"][i].get<std::size_t>()] == token);
      }
    }
    CHECK(odd > 0);
  }
}

TEST_CASE("a template that asks how hard to think is told") {
  const test::TemporaryFolder folder;
  test::write_file(folder.path() / "chat_template.jinja", "effort: {{ reasoning_effort | default('none said') }}");
  const CpuModel model(test::model_folder("tiny-mixtral"));
  const ChatTemplate chat(folder.path(), model.need_tokenizer());
  const ApiModel api{"tiny", model, model.need_tokenizer(), chat, Sampling{}, 512};
  const auto prompt = [&](const Json& more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}, {"max_tokens", 1}};
    body.update(more);
    return model.need_tokenizer().decode(read_request(body.dump(), true, api).choices.at(0).tokens, false);
  };
  CHECK(prompt(Json::object()) == "effort: none said");
  CHECK(prompt({{"reasoning_effort", "high"}}) == "effort: high");
  CHECK(prompt({{"reasoning_effort", nullptr}}) == "effort: none said");
  CHECK(prompt({{"reasoning_effort", "high"}, {"chat_template_kwargs", {{"reasoning_effort", "low"}}}}) ==
        "effort: low");
  try {
    prompt({{"reasoning_effort", 3}});
    FAIL("a number was taken");
  } catch (const ApiError& e) {
    CHECK(e.param == "reasoning_effort");
  }
}

TEST_CASE("a conversation goes through the template, at once or in a stream") {
  Served s;
  const Json messages = {{{"role", "system"}, {"content", "Be brief."}},
                         {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Hello"}}}}}};
  const Json plain = {{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Hello"}}};
  const std::string expected = s.alone(s.template_text(plain), 20);
  Json q = {{"messages", messages}, {"max_completion_tokens", 20}};
  const Json a = s.ask("/v1/chat/completions", q);
  CHECK(a["object"] == "chat.completion");
  CHECK(a["choices"][0]["message"]["role"] == "assistant");
  CHECK(a["choices"][0]["message"]["content"] == expected);

  q["stream"] = true;
  q["stream_options"] = {{"include_usage", true}};
  q["logprobs"] = true;
  q["top_logprobs"] = 3;
  const httplib::Result r = s.post("/v1/chat/completions", q.dump());
  REQUIRE(r);
  CHECK(r->get_header_value("Content-Type") == "text/event-stream");
  std::string text;
  std::size_t tokens = 0;
  const std::vector<Json> all = events(r->body);
  REQUIRE(all.size() > 3);
  CHECK(all.front()["choices"][0]["delta"]["role"] == "assistant");
  for (const Json& e : all) {
    CHECK(e["object"] == "chat.completion.chunk");
    CHECK(e["id"] == all.front()["id"]);
    for (const Json& c : e["choices"]) {
      text += c["delta"].value("content", "");
      if (c["logprobs"].is_null()) continue;
      ++tokens;
      CHECK(c["logprobs"]["content"][0]["top_logprobs"].size() == 3);
    }
  }
  CHECK(text == expected);
  CHECK(tokens == 20);
  CHECK(all.back()["choices"].empty());
  CHECK(all.back()["usage"]["completion_tokens"] == 20);
  CHECK(all[all.size() - 2]["choices"][0]["finish_reason"] == "length");
}

TEST_CASE("what cannot be served is told as OpenAI tells it, and the server goes on") {
  Served s;
  struct Case {
    const char *path, *body;
    int status;
    const char *param, *code, *message;
  };
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const std::string deep_body = R"({"prompt":)" + deep + "}";
  std::string many_names = R"({"prompt":"a","metadata":{"n":0)";
  for (int i = 0; i < 1024; ++i) many_names += ",\"n" + std::to_string(i) + "\":0";
  many_names += "}}";
  const std::string long_body = R"({"max_tokens":1,"prompt":")" + std::string(600, 'x') + "\"}";
  const Case cases[] = {
      {"/v1/completions", "no json", 400, "", "", "as JSON: parse error"},
      {"/v1/completions", "", 400, "", "", "as JSON"},
      {"/v1/completions", "[1]", 400, "", "", "expected a JSON object"},
      {"/v1/completions", "{\"prompt\":\"\xff\"}", 400, "", "", "UTF-8"},
      {"/v1/completions", deep_body.c_str(), 400, "", "", "nested"},
      {"/v1/completions", R"({"prompt":"a","prompt":"b"})", 400, "", "", "stands twice"},
      {"/v1/completions", many_names.c_str(), 400, "", "", "more than 1024 names"},
      {"/v1/completions", "{}", 400, "prompt", "missing_required_parameter", "prompt"},
      {"/v1/completions", R"({"prompt":5})", 400, "prompt", "invalid_type", "integer"},
      {"/v1/completions", R"({"prompt":[[1],{}]})", 400, "prompt", "invalid_type", "prompt"},
      {"/v1/completions", R"({"prompt":[1,-2]})", 400, "prompt", "invalid_value", "tokens"},
      {"/v1/completions", R"({"prompt":[1,999999]})", 400, "prompt", "invalid_value", "tokens"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":"3"})", 400, "max_tokens", "invalid_type", "integer"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":0})", 400, "max_tokens", "invalid_value", "1"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":-1})", 400, "max_tokens", "invalid_value", "1"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":1e99})", 400, "max_tokens", "invalid_type", "decimal"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":600})", 400, "prompt", "context_length_exceeded", "512"},
      {"/v1/completions", long_body.c_str(), 400, "prompt", "context_length_exceeded", "601"},
      {"/v1/completions", R"({"prompt":"a","temperature":3})", 400, "temperature", "invalid_value", "2"},
      {"/v1/completions", R"({"prompt":"a","temperature":null,"top_p":"x"})", 400, "top_p", "invalid_type", "number"},
      {"/v1/completions", R"({"prompt":"a","repetition_penalty":2,"repeat_penalty":3})", 400, "repeat_penalty",
       "invalid_value", "repetition_penalty"},
      {"/v1/completions", R"({"prompt":"a","n":100})", 400, "n", "invalid_value", "n"},
      {"/v1/completions", R"({"prompt":"a","stop":[1]})", 400, "stop", "invalid_type", "string"},
      {"/v1/completions", R"({"prompt":"a","stream":1})", 400, "stream", "invalid_type", "boolean"},
      {"/v1/completions", R"({"prompt":"a","suffix":"b"})", 400, "suffix", "unsupported_parameter", "suffix"},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"1":2}})", 400, "logit_bias", "unsupported_parameter", ""},
      {"/v1/completions", R"({"prompt":"a","colour":1})", 400, "", "", "colour"},
      {"/v1/completions", R"({"prompt":"a","model":"gpt-5"})", 404, "model", "model_not_found", "tiny"},
      {"/v1/chat/completions", R"({"prompt":"a"})", 400, "messages", "missing_required_parameter", "messages"},
      {"/v1/chat/completions", R"({"max_tokens":1,"max_completion_tokens":2,"messages":[]})", 400, "max_tokens",
       "invalid_value", "the same as 'max_completion_tokens'"},
      {"/v1/completions", R"({"prompt":"a","stream":true,"stream_options":{"include_usage":1}})", 400,
       "stream_options.include_usage", "invalid_type", "boolean"},
      {"/v1/chat/completions", R"({"messages":[]})", 400, "messages", "empty_array", "one"},
      {"/v1/chat/completions", R"({"messages":{}})", 400, "messages", "invalid_type", "array"},
      {"/v1/chat/completions", R"({"messages":[1]})", 400, "messages[0]", "invalid_type", "object"},
      {"/v1/chat/completions", R"({"messages":[{"content":"a"}]})", 400, "messages[0].role",
       "missing_required_parameter", "role"},
      {"/v1/chat/completions", R"({"messages":[{"role":"king","content":"a"}]})", 400, "messages[0].role",
       "invalid_value", "king"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user"}]})", 400, "messages[0].content",
       "missing_required_parameter", "content"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", 400,
       "messages[0].content", "invalid_value", "text"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"tools":[{}]})", 400, "tools",
       "unsupported_parameter", "tools"},
      {"/v1/nothing", "{}", 404, "", "unknown_url", "/v1/nothing"},
  };
  for (const Case& c : cases) {
    const std::string body = std::string(c.body).substr(0, 80);
    CAPTURE(body);
    const httplib::Result r = s.post(c.path, c.body);
    REQUIRE(r);
    CHECK(r->status == c.status);
    const Json error = Json::parse(r->body).at("error");
    const std::string message = error["message"];
    CHECK_MESSAGE(message.find(c.message) != std::string::npos, message);
    CHECK(error["type"] == "invalid_request_error");
    CHECK(error["param"] == (*c.param != 0 ? Json(c.param) : Json()));
    CHECK(error["code"] == (*c.code != 0 ? Json(c.code) : Json()));
  }
  CHECK(s.get("/health")["status"] == "ok");
  for (const std::string& path :
       {"/v1/models/" + std::string(8000, 'a'), "http://" + std::string(8000, 'a') + "/health"}) {
    CHECK(s.client().Get(path)->status == 414);
  }
  CHECK(s.get("/v1/models")["data"][0]["id"] == "tiny");
  CHECK(s.get("HTTP://here:1/v1/models/tiny")["id"] == "tiny");  // as proxies are asked
  CHECK(
      s.ask("/v1/completions", {{"prompt", "a"}, {"repeat_penalty", 2}, {"repetition_penalty", 2}})["choices"].size() ==
      1);
  CHECK(s.ask("http://here/v1/completions", {{"prompt", "a"}, {"max_tokens", 2}})["usage"]["completion_tokens"] == 2);
}

TEST_CASE("a body that is too large, a key that is missing") {
  ServerOptions o;
  o.limits.most_bytes = 2000;
  o.api_key = "sesame";
  Served s(o);
  const httplib::Headers right = {{"Authorization", "Bearer sesame"}};
  httplib::Client c = s.client();
  CHECK(c.Get("/health")->status == 200);
  CHECK(c.Get("/")->status == 200);
  CHECK(c.Get("http://here/health")->status == 200);
  for (const char* path : {"/v1/models", "/metrics", "/stats", "http://here/stats"}) {
    CHECK(c.Get(path)->status == 401);
    CHECK(c.Get(path, right)->status == 200);
  }
  CHECK(c.Get("/stats?/health")->status == 401);
  CHECK(c.Get("/health/../stats")->status == 401);
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  CHECK(c.Post("/v1/completions", body, "application/json")->status == 401);
  CHECK(c.Post("/v1/completions", {{"Authorization", "Bearer sesam"}}, body, "application/json")->status == 401);
  CHECK(c.Post("/v1/completions", {{"Authorization", "sesame"}}, body, "application/json")->status == 401);
  CHECK(c.Post("/v1/completions", right, body, "application/json")->status == 200);
  const httplib::Result large = c.Post("/v1/completions", right, std::string(3000, ' ') + body, "application/json");
  REQUIRE(large);
  CHECK(large->status == 413);
  CHECK(Json::parse(large->body)["error"]["message"] ==
        "The body is larger than the 2000 bytes that this server takes.");
}

TEST_CASE("many clients at a time: each has what it would have alone, and none is lost") {
  Served s;
  std::vector<std::string> alone;
  for (const std::string& p : test::prompts()) alone.push_back(s.alone(p, 12));
  const Json before = s.get("/stats");
  constexpr std::size_t clients = 8, each = 6;
  std::vector<std::size_t> right(clients);
  std::vector<std::thread> threads;
  for (std::size_t c = 0; c < clients; ++c) {
    threads.emplace_back([&, c] {
      httplib::Client client = s.client();
      for (std::size_t i = 0; i < each; ++i) {
        const std::size_t which = (c + i) % alone.size();
        const Json q = {{"prompt", test::prompts()[which]}, {"max_tokens", 12}};
        const httplib::Result r = client.Post("/v1/completions", q.dump(), "application/json");
        if (r && r->status == 200 && Json::parse(r->body)["choices"][0]["text"] == alone[which]) ++right[c];
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::size_t r : right) CHECK(r == each);
  const Json after = s.get("/stats");
  CHECK(after["requests"].get<std::size_t>() - before["requests"].get<std::size_t>() == clients * each);
  CHECK(after["active"] == 0);
  CHECK(after["cache_bytes"] == 0);
  std::uint64_t prompt_tokens = 0;
  for (std::size_t i = 0; i < clients * each; ++i) {
    prompt_tokens += test::prompts()[(i / each + i % each) % alone.size()].size() + 1;
  }
  CHECK(after["prefill"]["tokens"].get<std::uint64_t>() - before["prefill"]["tokens"].get<std::uint64_t>() ==
        prompt_tokens);
  CHECK(after["decode"]["tokens"].get<std::size_t>() - before["decode"]["tokens"].get<std::size_t>() ==
        clients * each * 11);
  for (const char* phase : {"prefill", "decode"}) {
    const Json& p = after[phase];
    CHECK(p["requests"] == p["hits"].get<int>() + p["late_hits"].get<int>() + p["misses"].get<int>() +
                               p["host_computed"].get<int>() + p["substituted"].get<int>() + p["skipped"].get<int>());
  }
}

TEST_CASE("a server that is stopped at once ends") {
  for (int i = 0; i < 20; ++i) {
    const Served s;
  }
}

TEST_CASE("a port has one server") {
  ServerOptions o;
  Served s;
  o.port = s.port();
  CHECK_THROWS_WITH_AS(s.another(o), doctest::Contains("cannot listen there"), InputError);
}

TEST_CASE("a full queue says so") {
  DecodeLoop::Options l;
  l.places = 1;
  l.most_waiting = 1;
  Served s({}, l);
  const DecodeRequest long_one = long_request();
  const auto decoded = s.loop().submit({long_one});
  while (s.loop().statistics().active == 0) std::this_thread::yield();
  const auto waits = s.loop().submit({long_one});
  const httplib::Result refused = s.post("/v1/completions", R"({"prompt":"a","max_tokens":1})");
  REQUIRE(refused);
  CHECK(refused->status == 429);
  CHECK(Json::parse(refused->body)["error"]["code"] == "rate_limit_exceeded");
  CHECK(refused->get_header_value("Retry-After") == "1");
  CHECK(s.loop().statistics().refused == 1);
  decoded[0]->cancel();
  waits[0]->cancel();
  while (!s.loop().is_idle()) std::this_thread::yield();
  CHECK(s.ask("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}})["usage"]["completion_tokens"] == 1);
}

TEST_CASE("a client that goes leaves the queue to others, and what no queue has room for is told") {
  DecodeLoop::Options l;
  l.places = 1;
  l.most_waiting = 2;
  Served s({}, l);
  const DecodeRequest long_one = long_request();
  const auto decoded = s.loop().submit({long_one});
  while (s.loop().statistics().active == 0) std::this_thread::yield();
  const auto waits = s.loop().submit({long_one, long_one});
  REQUIRE(waits.size() == 2);
  CHECK(s.loop().submit({long_one}).empty());
  for (const auto& one : waits) one->cancel();
  while (s.loop().statistics().waiting > 0) std::this_thread::yield();
  CHECK(s.loop().statistics().ended[static_cast<unsigned>(Ended::interrupted)] == 2);
  CHECK(waits[0]->is_over());
  const auto later = s.loop().submit({long_one});
  CHECK(later.size() == 1);
  later[0]->cancel();
  decoded[0]->cancel();
  while (!s.loop().is_idle()) std::this_thread::yield();
  // One place and two that wait: three choices are accepted, four never are.
  CHECK(s.ask("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}, {"n", 3}})["choices"].size() == 3);
  const httplib::Result refused = s.post("/v1/completions", R"({"prompt":"a","max_tokens":1,"n":4})");
  REQUIRE(refused);
  CHECK(refused->status == 400);
  CHECK(Json::parse(refused->body)["error"]["message"] ==
        "4 choices are more than the 3 that this server has room for.");
}

TEST_CASE("a server that is to end takes nothing more, says so, and hands out what it has") {
  Served s;
  httplib::Client c = s.client();
  httplib::Request q;
  q.method = "POST";
  q.path = "/v1/completions";
  q.set_header("Content-Type", "application/json");
  q.body = Json{{"prompt", "a"}, {"max_tokens", 200}, {"stream", true}, {"n", 2}, {"temperature", 0}}.dump();
  std::string said;
  q.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    if (said.empty()) {
      s.end();
      while (!s.loop().is_idle()) std::this_thread::yield();  // all is decoded, and not all handed out
      CHECK(s.client().Get("/health")->status == 503);
      CHECK(s.post("/v1/completions", R"({"prompt":"a","max_tokens":1})")->status == 503);
    }
    said.append(data, size);
    return true;
  };
  httplib::Response r;
  httplib::Error e = httplib::Error::Success;
  CHECK(c.send(q, r, e));
  std::string text;
  for (const Json& event : events(said)) text += event["choices"][0]["index"] == 0 ? event["choices"][0]["text"] : "";
  CHECK(text == s.alone("a", 200));
  while (s.has_requests()) std::this_thread::yield();
}

TEST_CASE("a model has an address of its own, and what each choice gets has a bound") {
  const Served s;
  CHECK(s.get("/v1/models/tiny") == s.get("/v1/models")["data"][0]);
  const httplib::Result other = s.client().Get("/v1/models/other");
  REQUIRE(other);
  CHECK(other->status == 404);
  CHECK(Json::parse(other->body)["error"]["code"] == "model_not_found");
  const auto status = [&](const Json& q) { return s.post("/v1/completions", q.dump())->status; };
  const std::vector<std::string> many(65, "a");
  CHECK(status({{"prompt", "a"}, {"max_tokens", 1}, {"stop", std::string(4096, 'z')}}) == 200);
  CHECK(status({{"prompt", "a"}, {"max_tokens", 1}, {"stop", std::string(4097, 'z')}}) == 400);
  CHECK(status({{"prompt", many}, {"max_tokens", 1}}) == 400);
  CHECK(status({{"prompt", Json::array()}, {"max_tokens", 1}}) == 400);
  CHECK(s.post("/v1/chat/completions",
               R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1,"modalities":["text"]})")
            ->status == 200);
  CHECK(s.post("/v1/chat/completions",
               R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1,"modalities":["audio"]})")
            ->status == 400);
}

TEST_CASE(
    "after a failure, as of a disk, the experts' cache is made anew, and a server that does not recover says so") {
  Served s;
  const Json q = {{"prompt", "a"}, {"max_tokens", 8}, {"temperature", 0}};
  const auto ask = [&] { return s.post("/v1/completions", q.dump()); };
  const auto health = [&] { return s.client().Get("/health"); };
  const std::string right = s.ask("/v1/completions", q)["choices"][0]["text"];
  CHECK(s.made == 1);
  for (const std::atomic<bool>* way : {&s.disk_fails, &s.none_can_be_made}) {
    s.disk_fails = true;
    s.none_can_be_made = way == &s.none_can_be_made;
    const std::string what = s.none_can_be_made ? "no memory on the device" : "a copy failed: the disk";
    CHECK(ask()->status == 500);
    CHECK(health()->status == 200);
    const httplib::Result second = ask(), third = ask();
    CHECK(third->status == 500);
    CHECK(Json::parse(third->body)["error"]["message"] == what);
    CHECK(health()->status == 503);
    CHECK(Json::parse(health()->body) == Json{{"status", "failing"}, {"error", what}});
    s.disk_fails = s.none_can_be_made = false;
    // What was made while it still failed may have failed, too.
    CHECK(s.ask("/v1/completions", q)["choices"][0]["text"] == right);
    CHECK(s.get("/health")["status"] == "ok");
  }
  CHECK(s.get("/stats")["failed"] == 6);
}

TEST_CASE("a client that goes is not decoded for") {
  Served s;
  httplib::Client c = s.client();
  httplib::Request q;
  q.method = "POST";
  q.path = "/v1/completions";
  q.set_header("Content-Type", "application/json");
  q.body = Json{{"prompt", "a"}, {"max_tokens", 500}, {"stream", true}}.dump();
  q.content_receiver = [](const char*, std::size_t, std::uint64_t, std::uint64_t) { return false; };
  httplib::Response r;
  httplib::Error e = httplib::Error::Success;
  CHECK(!c.send(q, r, e));
  while (!s.loop().is_idle()) std::this_thread::yield();
  LoopStatistics after = s.loop().statistics();
  CHECK(after.ended[static_cast<unsigned>(Ended::interrupted)] == 1);
  CHECK(after.cache_bytes == 0);

  // The same for a client that waits for a whole answer, while another client's long text keeps its place.
  httplib::Client impatient = s.client();
  const std::string body = Json{{"prompt", "a"}, {"max_tokens", 500}, {"n", 4}}.dump();
  std::thread waits([&] { CHECK(!impatient.Post("/v1/completions", body, "application/json")); });
  while (s.loop().statistics().active < 4) std::this_thread::yield();
  impatient.stop();
  waits.join();
  while (!s.loop().is_idle()) std::this_thread::yield();
  after = s.loop().statistics();
  CHECK(after.ended[static_cast<unsigned>(Ended::interrupted)] == 5);
  CHECK(after.cache_bytes == 0);
}

TEST_CASE("a stream ends when its time is over, also while tokens come quickly") {
  ServerOptions o;
  o.most_seconds = 0.02;
  const Served s(o);
  for (const int n : {1, 3}) {
    CAPTURE(n);
    httplib::Client c = s.client();
    httplib::Request q;
    q.method = "POST";
    q.path = "/v1/completions";
    q.set_header("Content-Type", "application/json");
    q.body = Json{{"prompt", "a"}, {"max_tokens", 500}, {"stream", true}, {"n", n}}.dump();
    std::string said;
    q.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
      said.append(data, size);
      return true;
    };
    httplib::Response r;
    httplib::Error e = httplib::Error::Success;
    static_cast<void>(c.send(q, r, e));  // the stream is cut off
    CHECK(said.find("\"code\":\"timeout\"") != std::string::npos);
    CHECK(said.find("[DONE]") == std::string::npos);
  }
}

TEST_CASE("a client that closes its own end is told so, and gets no empty answer") {
  const Served s;
  for (const bool streams : {false, true}) {
    CAPTURE(streams);
    const std::string body = Json{{"prompt", "a"}, {"max_tokens", 300}, {"stream", streams}}.dump();
    const std::string request =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
    const int to = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(s.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(to, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(::send(to, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()));
    REQUIRE(::shutdown(to, SHUT_WR) == 0);
    std::string said;
    char part[4096];
    for (ssize_t n; (n = ::recv(to, part, sizeof(part), 0)) > 0;) said.append(part, static_cast<std::size_t>(n));
    ::close(to);
    CHECK(said.starts_with(streams ? "HTTP/1.1 200" : "HTTP/1.1 499"));
    const bool told = said.find("closed its end of the connection") != std::string::npos;
    CHECK(told != (said.find("data: [DONE]") != std::string::npos));  // a stream that was quicker is whole
  }
}

TEST_CASE("metrics are what Prometheus reads, and the same numbers as /stats") {
  Served s;
  s.ask("/v1/completions", {{"prompt", test::prompts()[0]}, {"max_tokens", 9}});
  const Json stats = s.get("/stats");
  const std::string text = s.client().Get("/metrics")->body;
  std::map<std::string, double> samples;
  std::istringstream lines(text);
  std::string typed;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) typed = line.substr(7, line.find(' ', 7) - 7);
    if (line.starts_with('#')) continue;
    CHECK_MESSAGE(line.starts_with(typed), line);  // each below its own type
    const std::size_t blank = line.rfind(' ');
    CHECK_MESSAGE(samples.emplace(line.substr(0, blank), std::stod(line.substr(blank + 1))).second, line);
  }
  CHECK(samples.at("ferry_requests_total{stack=\"lru\",ended=\"max_new_tokens\"}") == 1);
  CHECK(samples.at("ferry_tokens_total{stack=\"lru\",phase=\"decode\"}") == 8);
  CHECK(samples.at("ferry_tokens_total{stack=\"lru\",phase=\"prefill\"}") == stats["prefill"]["tokens"]);
  CHECK(samples.at("ferry_expert_requests_total{stack=\"lru\",phase=\"decode\",outcome=\"hit\"}") ==
        stats["decode"]["hits"]);
  CHECK(samples.at("ferry_expert_requests_total{stack=\"lru\",phase=\"decode\",outcome=\"miss\"}") ==
        stats["decode"]["misses"]);

  ServerOptions odd;
  odd.stack = "a\"b\\c";  // the name of a stack's file may be anything
  const Served named(odd);
  CHECK(named.client().Get("/metrics")->body.find("{stack=\"a\\\"b\\\\c\"}") != std::string::npos);
}
