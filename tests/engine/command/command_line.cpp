// What the command says to people and to other programs, and what it reads from them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "engine/fixtures/command.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/shell.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "profiles/machine.hpp"
#include "report/report.hpp"
#include "stacks/budget.hpp"
#include "stacks/stack_options.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/terminal.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

std::size_t widest(const std::string& text) {
  std::size_t most = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) most = std::max(most, line.size());
  return most;
}

const std::string quick_run = "run --model tiny-mixtral --stack resident --budget 100% --max-new-tokens 6 ";

}  // namespace

TEST_CASE("long lines are broken at spaces, below the text of a list") {
  CHECK(wrapped("", 20).empty());
  CHECK(wrapped("short\n\nlines\n", 20) == "short\n\nlines\n");
  CHECK(wrapped("exactly twenty chars", 20) == "exactly twenty chars");
  CHECK(wrapped("one two three four five six", 10) == "one two\nthree four\nfive six");
  CHECK(wrapped("  --x N  what it is for", 18) == "  --x N  what it\n         is for");
  CHECK(wrapped("    indented all the way", 14) == "    indented\n    all the\n    way");
  CHECK(wrapped("a-word-that-is-longer than all", 10) == "a-word-that-is-longer\nthan all");
  CHECK(wrapped("name  a-word-that-is-longer than", 14) == "name  a-word-that-is-longer\n      than");
  CHECK(wrapped("ends in spaces                 ", 20) == "ends in spaces");
}

TEST_CASE("columns that do not fit beside each other form blocks") {
  const std::vector<std::string> names = {"stack", "x"};
  const std::vector<std::vector<std::string>> cells = {{"aaaa", "bb", "cccccc", "d"}, {"1", "22", "3", "44"}};
  CHECK(in_columns(names, cells, 80) == "stack  aaaa  bb  cccccc   d\nx         1  22       3  44\n");
  CHECK(in_columns(names, cells, 15) ==
        "stack  aaaa  bb\nx         1  22\n\nstack  cccccc\nx           3\n\nstack   d\nx      44\n");
  CHECK(in_columns(names, cells, 1) ==
        "stack  aaaa\nx         1\n\nstack  bb\nx      22\n\nstack  cccccc\nx           3\n\nstack   d\nx      44\n");
  CHECK(in_columns(names, {{}, {}}, 80).empty());
}

TEST_CASE("sizes are what people write") {
  const std::pair<const char*, std::uint64_t> sizes[] = {{"0", 0},
                                                         {"5", 5},
                                                         {"5B", 5},
                                                         {"5 kB", 5000},
                                                         {"5MB", 5'000'000},
                                                         {"1.5 GB", 1'500'000'000},
                                                         {"2TB", 2'000'000'000'000},
                                                         {"4 KiB", 4096},
                                                         {"4kib", 4096},
                                                         {"4MiB", 4194304},
                                                         {"4 GiB", 4294967296},
                                                         {"1TiB", 1099511627776},
                                                         {"25%", 200},
                                                         {"25 %", 200}};
  for (const auto& size : sizes) {
    CAPTURE(size.first);
    CHECK(parse_budget(size.first, 800) == size.second);
  }
  for (const char* text :
       {"", " ", "MB", "5M", "5 G", "-1 MB", "1e400", "0x10", "5 MBs", "5MB 3", "nan", "inf", "% 5"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_budget(text, 800), InputError);
  }
}

TEST_CASE("a chunk of a prefetch is a share of an expert, a byte at least, or a size, and 0 is none") {
  const std::pair<const char*, std::uint64_t> chunks[] = {{"0", 0},     {"0%", 0},     {"0e5", 0},     {"0 MiB", 0},
                                                          {"25%", 200}, {"0.001%", 1}, {"4KiB", 4096}, {"7", 7}};
  for (const auto& chunk : chunks) {
    CAPTURE(chunk.first);
    CHECK(parse_chunk(chunk.first, 800) == chunk.second);
  }
  CHECK_THROWS_WITH_AS(parse_chunk("-1%", 800), doctest::Contains("--prefetch-chunk -1%"), InputError);
}

TEST_CASE("help and tables fit 80 columns") {
  for (const char* command : {"", "run", "compare", "inspect", "trace", "trace record", "trace import",
                              "trace generate", "trace inspect", "simulate", "sweep", "report", "recommend", "eval",
                              "pack", "calibrate", "calibrate precision", "calibrate machine", "list"}) {
    CAPTURE(command);
    const Shell help = ferry_command("help " + std::string(command));
    CHECK(help.status == 0);
    CHECK(widest(help.out) <= 80);
    CHECK(help.out == ferry_command(std::string(command) + " --help").out);
  }
  for (const char* command :
       {"compare --model tiny-mixtral --stacks lru,fate,hobbit,importance-driven --max-new-tokens 6 --prompt x "
        "--machine rtx4090-pcie4 --clock virtual",
        "inspect", "list", "inspect --model tiny-mixtral --budget 100%"}) {
    CAPTURE(command);
    const Shell r = ferry_command(command);
    CHECK(r.status == 0);
    CHECK(widest(r.out) <= 80);
  }
  const TemporaryFolder folder;
  const std::string text = (folder.path() / "text").string();
  write_file(text, "The ferry carries eight cars on each crossing.");
  const Shell eval =
      ferry_command("eval --model tiny-mixtral --stacks 'fate, hobbit, importance-driven, lru' --text " + text);
  CHECK(eval.status == 0);
  CHECK(widest(eval.out) <= 80);
  CHECK(eval.out.find("importance-driven") != std::string::npos);
}

TEST_CASE("list prints all that has a name") {
  const std::string all = ferry_command("list").out;
  auto listed = [&](const char* what, const std::vector<std::string>& names) {
    const Shell part = ferry_command(std::string("list ") + what);
    CHECK(part.status == 0);
    CHECK(all.find(part.out) != std::string::npos);
    for (const std::string& n : names) CHECK_MESSAGE(part.out.find("\n  " + n + " ") != std::string::npos, n);
  };
  std::vector<std::string> stacks;
  for (const StackInfo& s : all_stacks()) stacks.push_back(s.name);
  listed("stacks", stacks);
  listed("machines", machine_names());
  listed("shapes", shape_names());
  listed("models", {"tiny-mixtral", "tiny-qwen-moe"});
}

TEST_CASE("a folder that only has a bundled model's name does not hide it") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "tiny-mixtral");
  const std::string in = "cd '" + folder.path().string() + "' && ";
  CHECK(shell(in + ferry_program() + " inspect --model tiny-mixtral").status == 0);
  std::filesystem::copy(find_model("tiny-qwen-moe"), folder.path() / "tiny-mixtral");
  CHECK(shell(in + ferry_program() + " inspect --model tiny-mixtral").out.find("Qwen2Moe") != std::string::npos);
}

TEST_CASE("lists may have spaces") {
  const std::string simulate = "compare --model tiny-mixtral --max-new-tokens 2 --prompt x --stacks ";
  for (const char* stacks : {"'lru, fate'", "' lru ,fate '", "lru, fate", "lru fate", "lru , fate"}) {
    CAPTURE(stacks);
    const Shell r = ferry_command(simulate + stacks);
    CHECK(r.status == 0);
    CHECK(r.out.find("running fate (2 of 2)") != std::string::npos);
  }
  CHECK(ferry_command("run --stack hobbit --cache-weights '700, 100, 100, 100' --max-new-tokens 2 --prompt x").status ==
        0);
}

TEST_CASE("a prompt comes from a pipe or a file on standard input, as from --prompt-file") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string(), text = (folder.path() / "text").string();
  write_file(text, "Once upon a time\n");
  const std::string ferry = ferry_program() + " " + quick_run + "--json " + json;
  auto prompts = [&](const std::string& command) {
    const Shell r = shell(command);
    CAPTURE(r.out);
    CHECK(r.status == 0);
    return read_json(json)["prompts"];
  };
  const Json expected = {"Once upon a time\n"};
  CHECK(prompts(ferry + " --prompt-file " + text) == expected);
  CHECK(prompts(ferry + " --prompt-file - <" + text) == expected);
  CHECK(prompts(ferry + " <" + text) == expected);
  CHECK(prompts("cat " + text + " | " + ferry) == expected);
  CHECK(prompts("(sleep 1.2; cat " + text + ") | " + ferry) == expected);
  CHECK(prompts("cat " + text + " | " + ferry + " --prompt A --prompt-file -") == Json{"A", "Once upon a time\n"});
  // An option wins over standard input.
  CHECK(prompts("cat " + text + " | " + ferry + " --prompt A") == Json{"A"});
  // Without either there is the default prompt.
  const Json usual = prompts(ferry + " </dev/null");
  CHECK(usual.size() == 1);
  CHECK(prompts("true | " + ferry) == usual);
  // Stops it while it waits for a pipe that nobody writes to, once it has said that it waits.
  const std::string pipe = (folder.path() / "pipe").string(), said = (folder.path() / "said").string();
  const Shell stopped = shell("mkfifo " + pipe + "; sleep 600 >" + pipe + " & s=$!; " + ferry + " <" + pipe + " 2>" +
                              said + " & p=$!; while kill -0 $p && ! grep -q reading " + said +
                              "; do sleep 0.1; done; kill -INT $p; wait $p; r=$?; kill $s; cat " + said + "; exit $r");
  CHECK(stopped.status == 130);
  CHECK(stopped.out.find("reading the prompt from standard input") != std::string::npos);
}

TEST_CASE("--json - writes to standard output, and people read the rest on standard error") {
  const TemporaryFolder folder;
  const std::string error = (folder.path() / "error").string();
  for (const std::string& command :
       {quick_run, std::string("compare --model tiny-mixtral --stacks lru,fate --max-new-tokens 4 ")}) {
    const Shell r = ferry_command(command + "--prompt 'A b' --json - 2>" + error + " | cat");
    REQUIRE(Json::accept(r.out));
    const Shell shown = shell("cat " + error);
    CHECK(shown.out.find("time per output token") != std::string::npos);
  }
  // A reader that closes its end early is no error; a full disk is.
  CHECK(shell("((" + ferry_program() + " " + quick_run + "--prompt x --json - 2>" + error + "; echo $? >&2) | true)")
            .out == "0\n");
  CHECK(ferry_command(quick_run + "--prompt x --json - 2>" + error + " >/dev/full").status == 2);
}

TEST_CASE("a number with zeros before it is the decimal one") {
  const Shell r =
      ferry_command("run --model tiny-mixtral --prompt x --max-new-tokens 010 --seed 08 --json - 2>/dev/null | cat");
  REQUIRE(Json::accept(r.out));
  const Json json = Json::parse(r.out);
  CHECK(json["max_new_tokens"] == 10);
  CHECK(json["seed"] == 8);
}

TEST_CASE("a run with rounded activations is lossless only where they are multiplied with floats") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string(), ids = (folder.path() / "ids").string();
  write_file(ids, "1 2 3");
  const auto lossless = [&](const std::string& model, const std::string& activations) {
    REQUIRE(ferry_command("run --model " + model + " --token-ids " + ids +
                          " --stack resident --max-new-tokens 2 --json " + json + " --activations " + activations)
                .status == 0);
    return read_json(json)["lossless"].get<bool>();
  };
  const std::string blocks = test::golden_file("gguf/types-q4_k_m-96.gguf").string();
  CHECK(lossless(blocks, "float"));
  CHECK_FALSE(lossless(blocks, "int8"));
  CHECK(lossless("tiny-qwen-moe", "int8"));

  std::string many;
  for (int i = 1; i < 60; ++i) many += std::to_string(i) + " ";
  write_file(ids, many);
  const std::string recommend = "recommend --model " + blocks + " --token-ids " + ids +
                                " --machine rtx3090-pcie3 --budget 70% --stacks lru,ferry --json " + json;
  for (const bool rounded : {false, true}) {
    CAPTURE(rounded);
    REQUIRE(ferry_command(recommend + (rounded ? " --activations int8" : "")).status == 0);
    const Json ranking = read_json(json)["ranking"];
    REQUIRE(ranking.size() == 2);
    for (const Json& row : ranking) CHECK(row["run"]["lossless"] != rounded);
  }
  const Shell refused = ferry_command(recommend + " --activations int8 --lossless 2>&1");
  CHECK(refused.status == 2);
  CHECK(refused.out.find("--lossless: --activations int8 rounds") != std::string::npos);
}

TEST_CASE("JSON has what repeats a run, and what was generated") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string(), logits = (folder.path() / "l.safetensors").string();
  const std::string command =
      "run --model tiny-mixtral --stack hobbit --t1 0.5 --prompt 'The sea ' --prompt 'A b' --max-new-tokens 9 --batch "
      "2 "
      "--temperature 0 --seed 18446744073709551615 --clock virtual --machine rtx4090-pcie4 --json " +
      json + " --logits " + logits;
  REQUIRE(ferry_command(command).status == 0);
  const Json j = read_json(json);
  CHECK(j["prompts"] == Json{"The sea ", "A b"});
  CHECK(j["max_new_tokens"] == 9);
  CHECK(j["temperature"] == 0);
  CHECK(j["seed"] == 18446744073709551615ULL);
  CHECK(j["quantizer"] == "nearest");
  CHECK(j["parameters"]["t1"] == 0.5);
  CHECK(j["lossless"] == false);
  CHECK(j["interrupted"] == false);
  CHECK(j["ended_by"] == Json{"max_new_tokens", "max_new_tokens"});
  CHECK(j["command_line"][1] == "run");
  CHECK(j["command_line"].back() == logits);
  // Greedy: each token is the best of its logits, and the text is the tokens' bytes.
  const Safetensors file{std::filesystem::path(logits)};
  for (std::size_t i = 0; i < 2; ++i) {
    const auto ids = j["token_ids"][i].get<std::vector<std::uint32_t>>();
    REQUIRE(ids.size() == 9);
    const Tensor& t = file.at("logits." + std::to_string(i));
    REQUIRE(t.shape == std::vector<std::uint64_t>{9, 258});
    std::vector<float> values(9 * 258);
    std::memcpy(values.data(), t.data, values.size() * sizeof(float));
    std::string text;
    for (std::size_t row = 0; row < 9; ++row) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * 258);
      CHECK(std::max_element(begin, begin + 258) - begin == ids[row]);
      text.push_back(static_cast<char>(ids[row]));
    }
    CHECK(j["text"][i] == text);
  }
  // The command line in the JSON repeats it.
  std::string again;
  for (const Json& word : j["command_line"]) again += "'" + word.get<std::string>() + "' ";
  REQUIRE(shell(again + "</dev/null").status == 0);
  CHECK(read_json(json) == j);
}

TEST_CASE("the context's end is named where a run ends there") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string(), text = (folder.path() / "text").string();
  write_file(text, std::string(1020, 'a'));  // 1021 of 1024 positions with the begin token
  const Shell r =
      ferry_command("run --model tiny-mixtral --stack resident --budget 100% --max-new-tokens 20 --prompt-file " +
                    text + " --prompt b --json " + json);
  CHECK(r.status == 0);
  CHECK(read_json(json)["ended_by"] == Json{"max_new_tokens", "context"});  // prompts before files
  CHECK(read_json(json)["token_ids"][1].size() == 4);
  CHECK(r.out.find("1 context, 1 max_new_tokens") != std::string::npos);
}

TEST_CASE("compare shows each text once, and whose it is") {
  const Shell r = ferry_command(
      "compare --model tiny-mixtral --stacks lru,resident,resident-int2,static-host --prompt 'To be ' --temperature 1 "
      "--max-new-tokens 60");
  CHECK(r.status == 0);
  CHECK(r.out.find("lru (lossless), resident (lossless), static-host (lossless):\n  \"") != std::string::npos);
  CHECK(r.out.find("resident-int2 (lossy):\n  \"") != std::string::npos);
  CHECK(r.out.find("the stacks generated different texts") != std::string::npos);
}

TEST_CASE("stacks that turn to the model's own precision run where everything fits") {
  for (const std::string stack : {"fate", "activation-path"}) {
    const Outputs ran =
        run_ferry("run --model tiny-mixtral --prompt hi --max-new-tokens 2 --budget 100% --json - --stack " + stack);
    CAPTURE(ran.error);
    REQUIRE(ran.status == 0);
    const Json copied = parse_json(ran.out, "out").at("bytes_by_precision");
    CHECK(copied.at("int4") == 0);
    CHECK(copied.at("full") != 0);
  }
  const Outputs given = run_ferry(
      "run --model tiny-mixtral --prompt hi --max-new-tokens 2 --budget 100% --json - --stack fate --defaults paper "
      "--high-bits 8");
  REQUIRE(given.status == 0);
  CHECK(parse_json(given.out, "out").at("bytes_by_precision").at("full") == 0);
}

TEST_CASE("tokens that begin as texts of the model do are scored as the text is") {
  const TemporaryFolder folder;
  const auto file = [&](const char* name) { return (folder.path() / name).string(); };
  write_file(file("text"), "Once upon a time there was a text.");
  write_file(file("ids"), run_ferry("tokenize --model tiny-mixtral --file " + file("text")).out);
  write_file(file("bare"), run_ferry("tokenize --model tiny-mixtral --bare --file " + file("text")).out);
  CHECK(read_file(file("ids")).starts_with("256 "));
  const auto scored = [&](const std::string& from) {
    const Outputs r = run_ferry("eval --model tiny-mixtral --stacks lru --json - " + from);
    CAPTURE(r.error);
    REQUIRE(r.status == 0);
    return parse_json(r.out, "out");
  };
  const Json text = scored("--text " + file("text"));
  CHECK(text.at("bytes_scored") == 34);
  for (const char* name : {"ids", "bare"}) {
    const Json ids = scored("--token-ids " + file(name));
    CHECK(ids.at("bytes_scored") == 34);
    CHECK(ids.at("bits_per_byte") == text.at("bits_per_byte"));
  }
}

TEST_CASE("a tokenizer that cannot be read leaves the numbers of tokens to run, and nothing to who needs its begin") {
  const TemporaryFolder folder;
  TinyCheckpoint tiny;
  tiny.config["vocab_size"] = 260;  // a vocabulary of bytes would need no file
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    tiny.shapes[name][0] = 260;
    tiny.values[name].resize(260 * tiny.shapes[name][1]);
  }
  tiny.write(folder.path());
  write_file(folder.path() / "tokenizer.json", "{}");
  const std::string model = " --model " + folder.path().string() + " ", ids = (folder.path() / "ids").string();
  write_file(ids, "256 1 2 3");
  const Outputs ran = run_ferry("run --stack lru --budget 50% --max-new-tokens 3 --token-ids " + ids + model);
  CHECK(ran.status == 0);
  CHECK(ran.error.find("tokens are shown as numbers: ") != std::string::npos);
  CHECK(run_ferry("inspect" + model).out.find("none, which leaves") != std::string::npos);
  for (const char* needs :
       {"run --stop x --token-ids ", "eval --window 32 --stacks lru --token-ids ", "run --prompt-file "}) {
    refuses(needs + ids + model, {"tokenizer.json"});
  }
}
