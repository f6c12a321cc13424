// ferry chat, serve, bench and tokenize, and where models are found by name.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>

#include "engine/fixtures/command.hpp"
#include "support/json.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

/// Lines into `ferry chat`, as from a pipe.
Shell chat(const std::string& lines, const std::string& arguments = "") {
  const TemporaryFolder folder;
  write_file(folder.path() / "lines", lines);
  return shell("<'" + (folder.path() / "lines").string() + "' " + ferry_program() +
               " chat --model tiny-mixtral --stack lru --max-new-tokens 12 " + arguments);
}

}  // namespace

TEST_CASE("a chat answers each line, and knows what was said before") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "conversation.json").string();
  const Shell s = chat("Hello\nAnd then?\n/save " + file + "\n/stats\n", "--system 'Be brief.'");
  CHECK(s.status == 0);
  CHECK(says(s.out, {"decode: ", " hits", "of them kept", "keys and values; "}));
  const Json saved = read_json(file);
  CHECK(saved["model"] == "tiny-mixtral");
  REQUIRE(saved["messages"].size() == 5);
  CHECK(saved["messages"][0] == Json{{"role", "system"}, {"content", "Be brief."}});
  CHECK(saved["messages"][3] == Json{{"role", "user"}, {"content", "And then?"}});

  // The second answer is that to the whole conversation, although only its new part was run.
  const std::string text = "system: Be brief.\nuser: Hello\nassistant: " + saved["messages"][2].value("content", "") +
                           "\nuser: And then?\nassistant:";
  write_file(folder.path() / "prompt", text);
  const Outputs alone =
      run_ferry("run --model tiny-mixtral --stack lru --max-new-tokens 12 --stop '\nuser:' --prompt-file '" +
                (folder.path() / "prompt").string() + "'");
  CHECK(alone.status == 0);
  CHECK(alone.out == saved["messages"][4].value("content", "") + "\n");
}

TEST_CASE("a chat's commands, and mistakes after which it goes on") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "c.json").string();
  const Shell s =
      chat("One\n/stack nosuch\n/stack hobbit\nTwo\n/reset\nThree\n/save " + file + "\n/save\n/nothing\n/exit\nFour\n");
  CHECK(s.status == 0);
  CHECK(says(s.out, {"unknown stack \"nosuch\"", "tiny-mixtral under hobbit", "a new conversation", "written to",
                     "/reset       begin a new conversation"}));
  const Json saved = read_json(file);
  REQUIRE(saved["messages"].size() == 2);
  CHECK(saved["messages"][0]["content"] == "Three");
  const Shell full = chat(std::string(300, 'x') + "\nHi\n", "--context 200");
  CHECK(full.status == 0);
  CHECK(says(full.out, {"the context 200", "/reset begins a new one", "12 tokens"}));
  refuses("chat --model tiny-mixtral --stack nosuch", {"unknown stack"});
  refuses("chat --model nosuch", {"--model nosuch"});
  refuses("chat --model tiny-mixtral --temperature -1", {"--temperature"});
  for (const char* option :
       {"--temperature", "--top-p", "--min-p", "--repeat-penalty", "--presence-penalty", "--frequency-penalty"}) {
    refuses(std::string("chat --model tiny-mixtral ") + option + " ''", {option, "must not be empty"});
  }
}

TEST_CASE("a server that cannot start says why") {
  refuses("serve --model tiny-mixtral --port 99999", {"--port"});
  refuses("serve --model tiny-mixtral --host no.such.host.invalid", {"--host no.such.host.invalid", "cannot listen"});
  refuses("serve --model tiny-mixtral --api-key-file /nonexistent", {"--api-key-file", "/nonexistent"});
  refuses("serve --model tiny-mixtral --api-key a --api-key-file b", {"--api-key"});
  const TemporaryFolder folder;
  write_file(folder.path() / "key", "a\r\nb\n");
  refuses("serve --model tiny-mixtral --api-key-file '" + (folder.path() / "key").string() + "'",
          {"--api-key-file", "expected one line"});
  refuses("serve --model tiny-mixtral --api-key 'a\nb'", {"--api-key: expected one line"});
}

TEST_CASE("a bench times what it is asked for") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "bench.json").string();
  const Outputs r = run_ferry(
      "bench --model tiny-mixtral --stacks lru,resident --budgets 25%,100% --prompt-tokens 20 --generate 6 --batch 2 "
      "--repeat 2 --json '" +
      file + "'");
  CHECK(r.status == 0);
  CHECK(says(r.out, {"| lru ", "| resident ", "pp20", "tg6"}));
  const Json rows = read_json(file);
  REQUIRE(rows.size() == 8);
  for (const Json& row : rows) {
    CHECK(row["tokens_per_s"].size() == 2);
    CHECK(row["mean_tokens_per_s"] > 0);
    CHECK(row["requests"] == row["hits"].get<int>() + row["late_hits"].get<int>() + row["misses"].get<int>() +
                                 row["substituted"].get<int>() + row["skipped"].get<int>() +
                                 row["host_computed"].get<int>());
    if (row["stack"] == "resident") CHECK(row["hits"] == row["requests"]);
  }
  CHECK(rows[0]["test"] == "pp20");
  CHECK(rows[1]["test"] == "tg6");
  CHECK(rows[1]["generated_tokens"] == 6);
  refuses("bench --model tiny-mixtral --prompt-tokens 0 --generate 0", {"expected a number above 0"});
  refuses("bench --model tiny-mixtral --prompt-tokens 5000", {"pp5000", "context is 1024"});
  refuses("bench --model tiny-mixtral --budgets 0.1%", {"budget"});
  write_file(folder.path() / "short", "too short");
  refuses("bench --model tiny-mixtral --text '" + (folder.path() / "short").string() + "'", {"the prompts need 512"});
}

TEST_CASE("a bench that is interrupted tells of the runs that were done, and says so") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "bench.json").string();
  const std::string command =
      "bench --model tiny-mixtral --stacks on-demand --budgets 25% --prompt-tokens 0 --generate 30 --json '" + file +
      "' --repeat ";
  REQUIRE(run_ferry(command + "2").status == 0);
  const double whole = read_json(file)[0]["stall_share"];
  const auto begun = std::chrono::steady_clock::now();
  const Outputs r =
      run_ferry(command + "1000", [&] { return std::chrono::steady_clock::now() - begun > std::chrono::seconds(4); });
  CHECK(r.status == 130);
  CHECK(says(r.out, {"| on-demand ", "interrupted: these are the runs that were done"}));
  const Json row = read_json(file)[0];
  CHECK(row["tokens_per_s"].size() < 500);
  CHECK(row["stall_share"] > whole / 4);  // divided by the runs that were asked for, it would be next to nothing
}

TEST_CASE("tokenize: texts, back, and conversations") {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return "'" + (folder.path() / name).string() + "'"; };
  const std::string model = "tokenize --model '" + golden_file("tokenizers/qwen3").string() + "' ";
  const Outputs ids = run_ferry(model + "--text 'for i in range(10):'");
  CHECK(ids.status == 0);
  write_file(folder.path() / "ids", ids.out);
  CHECK(run_ferry(model + "--token-ids " + path("ids")).out == "for i in range(10):\n");

  write_file(folder.path() / "a", "one");
  write_file(folder.path() / "b", "two");
  const Json both = Json::parse(run_ferry(model + "--json - --file " + path("a") + " --file " + path("b")).out);
  CHECK(both["text"] == Json{"one", "two"});

  write_file(folder.path() / "chat", R"([{"role": "user", "content": "Hi"}])");
  CHECK(run_ferry(model + "--rendered --chat " + path("chat")).out == "user: Hi\nassistant:");
  write_file(folder.path() / "chat", R"({"content": "Hi"})");
  refuses(model + "--chat " + path("chat"), {"--chat", "expected a list of messages"});
  write_file(folder.path() / "chat", "[");
  refuses(model + "--chat " + path("chat"), {"--chat", "parse error"});
  refuses(model + "--rendered", {"--rendered"});
}

TEST_CASE("models have names in the folder that the environment says") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "maker");
  std::filesystem::create_directory_symlink(model_folder("tiny-mixtral"), folder.path() / "maker" / "small");
  const std::string with = "FERRY_MODELS='" + folder.path().string() + "' ";
  const std::string run =
      ferry_program() + " run --prompt a --stack resident --budget 100% --max-new-tokens 2 --model ";
  CHECK(shell(with + run + "maker/small </dev/null").status == 0);
  CHECK(shell(with + run + "tiny-mixtral </dev/null").status == 0);
  const Shell wrong = shell(with + run + "maker/smal </dev/null");
  CHECK(wrong.status == 2);
  CHECK(says(wrong.out, {folder.path().string(), "did you mean \"maker/small\"?"}));
  CHECK(says(shell(with + ferry_program() + " list models").out, {"maker/small", "tiny-mixtral"}));
}

TEST_CASE("the environment says which instructions products are made of") {
  const auto run_with = [](const std::string& name) {
    return shell("FERRY_INSTRUCTIONS=" + name + " " + ferry_program() +
                 " run --prompt a --stack resident --budget 100% --max-new-tokens 2 --model tiny-mixtral </dev/null");
  };
  CHECK(run_with("''").status == 0);
  CHECK(run_with("portable").status == 0);
  const Shell wrong = run_with("mmx");
  CHECK(wrong.status == 2);
  CHECK(says(wrong.out, {"FERRY_INSTRUCTIONS", "\"mmx\"", "this processor has portable"}));
}
