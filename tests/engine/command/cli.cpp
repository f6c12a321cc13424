// The ferry command as a user meets it: output, files, exit status, and one clear line for each mistake.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>

#include "engine/fixtures/command.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/machine_file.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "support/bundled_files.hpp"

using namespace ferry::test;

TEST_CASE("of a device's memory experts get what weights, keys and values, and activations leave") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  const std::string command = "run --model tiny-mixtral --stack lru --prompt 'The sea ' --max-new-tokens 12 --json '" +
                              json + "' --device-memory ";
  const Outputs r = run_ferry(command + "8MiB");
  REQUIRE(r.status == 0);
  const Json j = Json::parse(read_file(json));
  const std::uint64_t all = 8 << 20, left = j["budget_asked_bytes"], dense = j["dense_bytes"], kv = j["kv_bytes"];
  CHECK(left < all - dense - kv);
  CHECK(left > all - dense - kv - (2 << 20));  // activations of 128 rows take less than that
  CHECK(j["budget_bytes"].get<std::uint64_t>() <= left);
  CHECK(r.error.find(std::to_string(left) + " bytes for experts") != std::string::npos);
  CHECK(r.error.find(std::to_string(dense) + " bytes of weights, " + std::to_string(kv) + " of keys and values") !=
        std::string::npos);
  for (const char* memory : {"1MiB", "0"}) {
    const Outputs refused = run_ferry(command + memory);
    CHECK(refused.status == 2);
    CHECK(refused.error.find("nothing is left for experts: expected more") != std::string::npos);
  }
  CHECK(run_ferry(command + "8MiB --budget 25%").status == 2);
  CHECK(run_ferry(command + "much").status == 2);
}

TEST_CASE("run streams text, prints a table, and writes JSON with the stable keys") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string(), timeline = (folder.path() / "t.json").string();
  const Outputs r = run_ferry(
      "run --model tiny-mixtral --stack cross-layer-lru --budget 25% --prompt 'The sea ' "
      "--prompt 'A b' --max-new-tokens 12 --json '" +
      json + "' --timeline '" + timeline + "'");
  REQUIRE(r.status == 0);
  const Json j = Json::parse(read_file(json));
  for (const char* key :
       {"ferry", "model", "stack", "machine", "device", "budget_bytes", "batch", "text", "ttft_s", "prefill", "decode",
        "prefetch", "bytes_by_precision", "stall_s", "host_compute_s", "decision_s", "decision_link_s", "bounds"}) {
    CHECK_MESSAGE(j.contains(key), key);
  }
  for (const char* phase : {"prefill", "decode"}) {
    for (const char* key : {"tokens", "time_s", "requests", "hits", "late_hits", "misses", "substituted", "skipped",
                            "host_computed", "bytes"}) {
      CHECK_MESSAGE(j[phase].contains(key), phase << " " << key);
    }
    const Json& p = j[phase];
    CHECK(p["hits"].get<int>() + p["late_hits"].get<int>() + p["misses"].get<int>() + p["substituted"].get<int>() +
              p["skipped"].get<int>() + p["host_computed"].get<int>() ==
          p["requests"].get<int>());
  }
  for (const char* key : {"issued", "used", "issued_bytes", "wasted_bytes", "recall", "precision", "top1"}) {
    CHECK_MESSAGE(j["prefetch"].contains(key), key);
  }
  CHECK(j["decode"].contains("tpot_s"));
  CHECK(j["bounds"].contains("all_resident_tpot_s"));
  CHECK(j["bounds"].contains("clairvoyant_tpot_s"));
  CHECK(j["stack"] == "cross-layer-lru");
  CHECK(j["model"] == "tiny-mixtral");
  CHECK(j["device"] == "cpu");
  CHECK(j["machine"].is_null());
  CHECK(j["batch"] == 2);
  REQUIRE(j["text"].size() == 2);
  CHECK(j["prefill"]["tokens"] == 8 + 1 + 3 + 1);
  CHECK(j["decode"]["tokens"] == 2 * 11);
  // 8 layers * 8 experts * 3 * 128 * 192 * 2 bytes, a quarter of it: 16 slots
  CHECK(j["budget_bytes"] == 16 * 3 * 128 * 192 * 2);
  CHECK(j["budget_asked_bytes"] == 16 * 3 * 128 * 192 * 2);
  CHECK(j["budget_asked_percent"] == 25);
  CHECK(r.out.rfind(j["text"][0].get<std::string>(), 0) == 0);
  CHECK(r.error.find("time per output token") != std::string::npos);

  const Json t = Json::parse(read_file(timeline));
  std::set<int> lanes;
  for (const Json& e : t["traceEvents"]) {
    if (e["ph"] == "X") {
      lanes.insert(e["tid"].get<int>());
      CHECK(e["dur"].get<double>() >= 0);
    }
  }
  CHECK(lanes.contains(0));  // device
  CHECK(lanes.contains(1));  // link
  CHECK(lanes.contains(2));  // host
}

TEST_CASE("on the virtual clock a run says the same each time, in that machine's time") {
  const std::string run =
      "compare --model tiny-mixtral --stacks lru,cross-layer-lru,hobbit-cooperative --prompt 'The sea ' "
      "--max-new-tokens 12 --machine rtx3090-pcie3 --clock virtual";
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  const Outputs first = run_ferry(run + " --json '" + json + "'"), second = run_ferry(run);
  CHECK(first.status == 0);
  CHECK(first.out == second.out);
  CHECK(first.error.find("measuring") == std::string::npos);
  for (const Json& j : Json::parse(read_file(json))) {
    CHECK(j["clock"] == "virtual");
    CHECK(j["decision_s"] == 0);
    CHECK(j["stall_s"].get<double>() > 0);
    CHECK(j["decode"]["tpot_s"].get<double>() >= j["bounds"]["clairvoyant_tpot_s"].get<double>());
  }
  refuses("run --clock virtual", {"--clock virtual", "--machine"});
  refuses("run --clock sundial --machine rtx3090-pcie3", {"--clock"});
}

TEST_CASE("invalid UTF-8 in generated text becomes U+FFFD in the JSON") {
  const TemporaryFolder folder;
  TinyCheckpoint().write(folder.path());  // random weights: random bytes
  const std::string json = (folder.path() / "r.json").string();
  const Outputs r = run_ferry("run --model '" + folder.path().string() +
                              "' --stack resident --budget 100% --temperature 5 "
                              "--prompt x --max-new-tokens 40 --json '" +
                              json + "'");
  REQUIRE(r.status == 0);
  CHECK(Json::parse(read_file(json))["text"][0].get<std::string>().find("\xef\xbf\xbd") != std::string::npos);
}

TEST_CASE("the same seed gives the same text, another seed another") {
  const std::string common = "run --model tiny-mixtral --temperature 1.5 --max-new-tokens 30 --prompt 'To be ' --seed ";
  const std::string a = run_ferry(common + "1").out;
  CHECK(a == run_ferry(common + "1").out);
  CHECK(a != run_ferry(common + "2").out);
}

TEST_CASE("a prompt in smaller steps asks for experts more often") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  const auto requests = [&](const std::string& chunk) {
    const Outputs r = run_ferry(
        "run --model tiny-mixtral --stack lru --prompt 'The sea is wide' --max-new-tokens 2 "
        "--prefill-chunk " +
        chunk + " --json '" + json + "'");
    REQUIRE(r.status == 0);
    return Json::parse(read_file(json))["prefill"]["requests"].get<std::uint64_t>();
  };
  CHECK(requests("1") == 16 * 8 * 2);  // tokens with the first mark, layers, top-k
  CHECK(requests("128") < 16 * 8 * 2);
}

TEST_CASE("activations of 8 bits are said in the JSON") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  const std::string run = "run --model tiny-qwen-moe --stack resident-int4 --prompt 'The sea ' --max-new-tokens 3";
  for (const std::string activations : {"float", "int8"}) {
    REQUIRE(run_ferry(run + " --activations " + activations + " --json '" + json + "'").status == 0);
    CHECK(Json::parse(read_file(json))["activations"] == activations);
  }
  refuses("run --activations int4", {"--activations", "int8"});
}

TEST_CASE("keys and values of 16 bits are said in the JSON, take half the memory, and are not lossless") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  const auto made = [&](const std::string& command, const std::string& type) {
    REQUIRE(run_ferry(command + " --kv-cache " + type + " --json '" + json + "'").status == 0);
    return Json::parse(read_file(json));
  };
  const std::string run = "run --model tiny-qwen-moe --stack lru --prompt 'The sea ' --max-new-tokens 3";
  const Json floats = made(run, "f32"), halves = made(run, "f16");
  CHECK(floats["kv_cache"] == "f32");
  CHECK(halves["kv_cache"] == "f16");
  CHECK(floats["kv_bytes"] == 2 * halves["kv_bytes"].get<std::uint64_t>());
  CHECK(floats["lossless"] == true);
  CHECK(halves["lossless"] == false);
  const std::string text = ferry::engine::bundled_text().string();
  CHECK(made("eval --model tiny-mixtral --text '" + text + "' --bytes 60 --stacks lru", "f16")["kv_cache"] == "f16");
  const std::string recommend =
      "recommend --model tiny-mixtral --machine rtx3090-pcie3 --tokens 200 --stacks lru,static-host";
  CHECK(made(recommend, "f16")["kv_cache"] == "f16");
  refuses(recommend + " --lossless --kv-cache f16", {"--lossless", "--kv-cache f16 rounds keys and values"});
  refuses("run --kv-cache bf16", {"--kv-cache", "f16"});
  refuses("run --kv-cache f16 --device cuda", {"--device cuda"});
}

TEST_CASE("compare prints stacks side by side and says that their text is the same") {
  const Outputs r = run_ferry(
      "compare --model tiny-mixtral --stacks resident,on-demand,lru,cross-layer-lru "
      "--machine rtx4090-pcie4 --max-new-tokens 8");
  CHECK(r.status == 0);
  CHECK(r.out.find("on-demand") != std::string::npos);
  CHECK(r.out.find("all stacks generated the same text") != std::string::npos);
  CHECK(r.error.find("throttled to") != std::string::npos);
}

TEST_CASE("inspect prints shape, bytes an expert, and what fits") {
  const Outputs r = run_ferry("inspect --model tiny-qwen-moe --budget 25%");
  CHECK(r.status == 0);
  CHECK(r.out.find("layers 12") != std::string::npos);
  CHECK(r.out.find("one expert 49152 bytes (bf16)") != std::string::npos);  // 3 * 128 * 64 * 2
  CHECK(r.out.find("7 to 8 of 32 experts a layer") != std::string::npos);   // (96 - 2) / 12 = 7, 10 left over
  CHECK(r.out.find("94 of 384 experts") != std::string::npos);
}

TEST_CASE("a run of each paper's stack writes its own numbers") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  const Outputs r = run_ferry(
      "compare --stacks fate,hobbit,importance-driven --t1 0.5 --alpha 0.4 --machine rtx3090-pcie3 --gate-worker "
      "--max-new-tokens 8 --json '" +
      json + "'");
  REQUIRE(r.status == 0);
  const Json j = Json::parse(read_file(json));
  REQUIRE(j.size() == 3);
  CHECK(j[0]["bytes_by_precision"]["int4"] > 0);
  CHECK(j[0]["gate_worker"]["busy_s"] > 0);
  CHECK(j[1]["decode"]["skipped"] > 0);
  CHECK(j[1]["decode"]["miss_penalty"] > 0);
  REQUIRE(j[1]["prefetch"]["by_distance"].size() == 3);
  REQUIRE(j[1]["prefetch"]["by_distance"][0]["recall_by_layer"].size() == 12);
  CHECK(j[1]["prefetch"]["by_distance"][0]["recall_by_layer"][0].is_null());
  CHECK(j[1]["prefetch"]["by_distance"][0]["recall_by_layer"][11] > 0.5);
  CHECK(j[2]["decode"]["substituted"] > 0);
  CHECK(j[2]["decode"]["top_score_requests"].get<int>() + j[2]["decode"]["low_score_requests"].get<int>() ==
        j[2]["decode"]["requests"].get<int>());
}

TEST_CASE("help lists every stack with what it is") {
  for (const char* command : {"run", "compare"}) {
    const std::string help = run_ferry(std::string(command) + " --help").out;
    for (const char* stack : {"resident-int4", "layer-stream", "moe-infinity", "fate+prefetch", "hobbit-cooperative",
                              "importance+er", "importance-driven"}) {
      CHECK_MESSAGE(help.find(stack) != std::string::npos, stack);
    }
  }
}

TEST_CASE("help and version are no mistakes") {
  CHECK(run_ferry("--help").status == 0);
  CHECK(run_ferry("run --help").out.find("--budget") != std::string::npos);
  CHECK(run_ferry("--version").out == "ferry 0.1.0\n");
}

TEST_CASE("mistakes get one line and exit status 2") {
  refuses("", {"ferry: expected a command: run, compare"});
  refuses("trace", {"ferry trace: expected a command: record, import"});
  refuses("trace reord", {"ferry trace: unknown command \"reord\": did you mean \"record\"?"});
  refuses("help walk", {"unknown command \"walk\""});
  refuses("help trace recrod", {"ferry trace: unknown command \"recrod\": did you mean \"record\"?"});
  refuses("help run lru", {"help: ferry run has no commands of its own, so no \"lru\""});
  CHECK(run_ferry("help trace record").status == 0);
  refuses("run --stak lru", {"ferry run: unknown option \"--stak\": did you mean \"--stack\"?"});
  refuses("run --stak=lru", {"did you mean \"--stack\"?"});
  refuses("run --budget 4 GiB", {"ferry run: nothing takes \"GiB\""});
  refuses("compare --stacks lru,,fate", {"--stacks: an empty entry in \"lru,,fate\""});
  refuses("sweep --traces x --stacks lru --machines , --budgets 25%", {"--machines: an empty entry in \",\""});
  refuses("bench --budgets=25%,", {"--budgets: an empty entry in \"25%,\""});
  refuses("simulate --trace x --assume-recall ''", {"--assume-recall: must not be empty"});
  refuses("sweep --traces x --stacks lru --machines m --budgets 25% --out x --ranks 3", {"--ranks requires --rank"});
  refuses("run --model tiny-mixtral --prompt x --device-memory 50%", {"--device-memory: 50%: expected a size"});
  refuses("bench --text x --seed 1", {"--text excludes --seed"});
  refuses("pack --model tiny-mixtral --precisions full --group 64 --out x", {"--group: is for low precision", "int4"});
  refuses("run --logprobs 2", {"--logprobs requires --json"});
  refuses("eval --text x --window 1",
          {"--window: expected a whole number from 2 to ", "got \"1\""});  // where nothing would follow a token
  refuses("run --prompt-file - --prompt-file -", {"--prompt-file -: standard input is one prompt"});
  refuses("list ferries", {"ferries", "stacks", "(see ferry list --help)"});
  refuses("run --seed 18446744073709551616", {"--seed", "a whole number from 0 to 18446744073709551615"});
  refuses("run --seed 1.5", {"--seed"});
  refuses("run --max-new-tokens 1e2", {"--max-new-tokens: expected a whole number from 1 to 268435456, got \"1e2\""});
  refuses("trace generate --shape mixtral-8x7b --out x --ahead 1 --recall 0.8,0.7",
          {"--recall: 2 values for 1 layer that is predicted"});
  refuses("trace generate --shape mixtral-8x7b --out x --no-partial --partial-active 0.9",
          {"--no-partial excludes --partial-active"});
  refuses("pack --model tiny-mixtral --out -", {"--out", "expected a file"});
  refuses("sweep --traces x --machines rtx3090-pcie3 --stacks lru --out -", {"--out", "expected a file"});
  refuses("run --prompt-file - --json - --timeline -", {"-: named for two outputs"});
  refuses("walk", {"unknown command \"walk\"", "run, compare, inspect"});
  refuses("comprae", {"did you mean \"compare\"?"});
  refuses("run --modle x", {"--modle"});
  refuses("run --stack lur", {"unknown stack \"lur\": did you mean \"lru\"?", "on-demand"});
  refuses("compare --stacks lru,fats", {"unknown stack \"fats\""});
  refuses("run --machine rtx3090-pcie", {"unknown machine \"rtx3090-pcie\": did you mean \"rtx3090-pcie3\"?"});
  refuses("run --machine /nowhere/m.json", {"/nowhere/m.json", "cannot open"});
  refuses("run --model /nowhere", {"--model /nowhere", "tiny-qwen-moe"});
  refuses("run --model tiny-quen", {"tiny-quen", "tiny-qwen-moe"});
  refuses("run --budget lots", {"--budget lots", "25%"});
  refuses("run --budget -5%", {"--budget"});
  refuses("run --budget 25%%", {"--budget 25%%"});
  refuses("run --budget 5", {"budget of 5 bytes is too small: at least 98304 bytes"});
  refuses("run --budget 0%", {"too small"});
  refuses("run --stack lru --t1 0.5", {"--t1: lru has no such parameter", "hobbit"});
  refuses("compare --stacks lru,fate --alpha 0.5", {"--alpha: lru, fate has no such parameter", "importance-driven"});
  refuses("run --stack hobbit --t1 0.9 --t2 0.5", {"t1", "0.9", "0.5"});
  refuses("run --stack hobbit --t1 nan", {"t1"});
  refuses("run --stack hobbit --t1 2", {"--t1"});
  refuses("run --stack hobbit --depth 5", {"--depth"});
  refuses("run --stack importance-driven --alpha nan", {"alpha"});
  refuses("run --stack fate --low-share 101", {"--low-share"});
  refuses("run --pools two", {"--pools two", "one of stack, per-layer, one, shallow"});
  refuses("run --stack resident --pools one", {"--pools: resident has no such parameter", "lru"});
  refuses("run --stack hobbit --depth 1.5", {"--depth 1.5", "a whole number from 1 to 4"});
  refuses("run --stack hobbit --t1 ''", {"--t1"});
  refuses("run --stack hobbit --t1 0.5 --t1 0.6", {"--t1"});
  refuses("run --stack hobbit --low-bits 3", {"--low-bits 3", "2, 4 or 8"});
  refuses("run --stack hobbit --cache-weights 1000,0,0", {"--cache-weights"});
  refuses("run --batch 9", {"--batch"});
  refuses("run --max-new-tokens 0", {"--max-new-tokens"});
  refuses("run --max-new-tokens many", {"--max-new-tokens"});
  refuses("run --temperature -1", {"--temperature"});
  refuses("run --temperature nan", {"--temperature"});
  refuses("run --temperature 1,5", {"--temperature = 1,5: expected a number (see ferry run --help)"});
  refuses("run --pin-threads=maybe", {"--pin-threads = maybe: expected no value, or true or false"});
  refuses("serve --timeout nan", {"--timeout", "expected a number"});
  refuses("trace generate --shape mixtral-8x7b --out x --reuse nan", {"--reuse", "expected a number"});
  refuses("run --seed -1", {"--seed"});
  const TemporaryFolder own;
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::create_symlink(model_folder("tiny-mixtral") / name, own.path() / name);
  }
  write_file(own.path() / "generation_config.json", R"({"do_sample":true,"repetition_penalty":1e-300})");
  const std::string model = " --model " + own.path().string();
  refuses("run" + model, {"generation_config.json: --repeat-penalty: expected a number from 1e-6", "give the option"});
  refuses("run" + model + " --repeat-penalty 0", {"--repeat-penalty: expected a number from 1e-6 to 100, got 0"});
  Json machine = Json::parse(std::ifstream(ferry::engine::data_directory() / "machines" / "rtx3090-pcie3.json"));
  machine["name"] = "a\nb\x1b[31m";
  write_file(own.path() / "machine.json", machine.dump());
  const Outputs ran =
      run_ferry("run --prompt hi --max-new-tokens 1 --machine '" + (own.path() / "machine.json").string() + "'");
  CHECK(ran.status == 0);
  CHECK(ran.error.find("imitate a?b?[31m") != std::string::npos);
  CHECK(ran.error.find('\x1b') == std::string::npos);
  refuses("run --model ''", {"--model", "must not be empty"});
  refuses("run --json ''", {"--json", "must not be empty"});
  refuses("run --budget 0x10", {"--budget 0x10"});
  refuses("run --prompt-file /nowhere/p.txt", {"--prompt-file /nowhere/p.txt", "cannot be read"});
  refuses("run --prompt-file /", {"--prompt-file /", "cannot be read"});
  refuses("run --json /nowhere/r.json", {"/nowhere/r.json", "cannot be written"});
  refuses("run --timeline /", {"cannot be written"});
  refuses("run --json x.json --timeline x.json", {"x.json: named for two outputs"});
  refuses("run --json x.json --timeline ./x.json", {"x.json: named for two outputs"});
  refuses("run --stack on-demand --pools shallow --shallow-layers 2", {"on-demand has no such parameter", "lru"});
  refuses("run --prompt \"$(printf 'x%.0s' $(seq 1100))\"", {"1101 tokens", "context is 1024"});
}

TEST_CASE("a damaged model gets one line, too") {
  const TemporaryFolder folder;
  TinyCheckpoint().write(folder.path());
  const auto weights = folder.path() / "model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 1);
  for (const std::string command : {"run", "compare", "inspect"}) {
    refuses(command + " --model '" + folder.path().string() + "'",
            {"model.safetensors", "not a usable safetensors file"});
  }
}

TEST_CASE("a report may lie in the model's own folder, again and again, and the model's files are left alone") {
  const TemporaryFolder folder;
  const std::filesystem::path model = folder.path() / "model";
  std::filesystem::create_directory(model);
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(model_folder("tiny-mixtral") / file, model / file);
  }
  const std::string run = "run --model '" + model.string() + "' --prompt To --max-new-tokens 2 --json '";
  for (int times = 0; times < 2; ++times) CHECK(run_ferry(run + (model / "run.json").string() + "'").status == 0);
  CHECK(Json::parse(read_file((model / "run.json").string())).contains("text"));
  const std::string logits = "run --model '" + model.string() + "' --prompt To --max-new-tokens 2 --logits '";
  for (int times = 0; times < 2; ++times) {
    CHECK(run_ferry(logits + (model / "logits.safetensors").string() + "'").status == 0);
  }
  refuses(logits + (model / "model.safetensors").string() + "'", {"model.safetensors", "is read by this run"});
  refuses(run + (model / "config.json").string() + "'", {"config.json", "is read by this run"});
}

TEST_CASE("outputs never destroy what they should not") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  ::mkfifo((at + "/pipe").c_str(), 0600);
  write_file(at + "/prompt.txt", "Once ");
  write_file(at + "/target.json", R"({"command_line": []})");
  std::filesystem::create_symlink("target.json", at + "/link.json");
  refuses("run --json '" + at + "/pipe'", {"pipe", "not a regular file"});
  CHECK(std::filesystem::is_fifo(at + "/pipe"));
  refuses("run --prompt-file '" + at + "/prompt.txt' --json '" + at + "/prompt.txt'",
          {"prompt.txt", "is read by this run"});
  CHECK(read_file(at + "/prompt.txt") == "Once ");
  CHECK(run_ferry("run --max-new-tokens 2 --json '" + at + "/link.json'").status == 0);
  CHECK(std::filesystem::is_symlink(at + "/link.json"));
  CHECK(Json::parse(read_file(at + "/target.json")).contains("text"));
  // The file there is of another kind.
  std::filesystem::copy_file(model_folder("tiny-mixtral") / "config.json", at + "/config.json");
  const std::string config = read_file(at + "/config.json");
  for (const char* command :
       {"run --json '", "run --timeline '", "run --logits '", "eval --text /dev/null --json '",
        "simulate --trace t --json '", "recommend --model tiny-mixtral --machine rtx3090-pcie3 --json '",
        "trace record --text /dev/null --out '", "trace generate --shape mixtral-8x7b --out '",
        "calibrate machine --name m --out '", "pack --out '", "report /dev/null --out '",
        "tokenize --text a --json '"}) {
    refuses(command + at + "/config.json'", {"is there, and is not ", "name another file"});
  }
  refuses("compare --json '" + at + "/prompt.txt'", {"is there, and is not ", "name another file"});
  CHECK(read_file(at + "/config.json") == config);
  CHECK(read_file(at + "/prompt.txt") == "Once ");
  // Two links that lead to a file which does not exist yet.
  std::filesystem::create_directory(at + "/sub");
  std::filesystem::create_symlink("sub/second.json", at + "/first.json");
  std::filesystem::create_symlink("../new.json", at + "/sub/second.json");
  refuses("run --json '" + at + "/first.json' --timeline '" + at + "/new.json'", {"named for two outputs"});
  CHECK(run_ferry("run --max-new-tokens 2 --json '" + at + "/first.json'").status == 0);
  CHECK(std::filesystem::is_symlink(at + "/first.json"));
  CHECK(std::filesystem::is_symlink(at + "/sub/second.json"));
  CHECK(Json::parse(read_file(at + "/new.json")).contains("text"));
  std::filesystem::create_symlink("loop.json", at + "/loop.json");
  refuses("run --json '" + at + "/loop.json'", {"loop.json: cannot be written", "symbolic links"});
  std::filesystem::create_symlink("nowhere/x.json", at + "/astray.json");
  refuses("run --json '" + at + "/astray.json'", {"astray.json: cannot be written"});
}

TEST_CASE("pipes and folders where a model should be do not hang") {
  const TemporaryFolder folder;
  TinyCheckpoint().write(folder.path());
  std::filesystem::remove(folder.path() / "model.safetensors");
  ::mkfifo((folder.path() / "model.safetensors").c_str(), 0600);
  refuses("run --model '" + folder.path().string() + "'", {"model.safetensors", "not a regular file"});
  const TemporaryFolder loop;
  std::filesystem::create_symlink("config.json", loop.path() / "config.json");
  refuses("run --model '" + loop.path().string() + "'", {"config.json"});
}

TEST_CASE(
    "standard output: a reader that leaves is no error, a full disk is, and so is a closed one, which writes into no "
    "file") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  const std::string run = ferry_program() + " run --max-new-tokens 40 --json '" + json + "' 2>/dev/null";
  CHECK(std::system((run + " | head -c 1 >/dev/null").c_str()) == 0);
  CHECK(Json::parse(read_file(json)).contains("text"));
  CHECK(WEXITSTATUS(std::system((run + " >/dev/full").c_str())) == 2);
  CHECK(WEXITSTATUS(std::system((run + " >&-").c_str())) == 2);
  const std::string kept = (folder.path() / "kept.json").string();  // what was computed is not lost with it
  const std::string again = ferry_program() + " run --max-new-tokens 4 --json '" + kept + "' 2>/dev/null >/dev/full";
  CHECK(WEXITSTATUS(std::system(again.c_str())) == 2);
  CHECK(Json::parse(read_file(kept)).contains("text"));
  std::filesystem::remove(kept);
  CHECK(WEXITSTATUS(std::system((ferry_program() + " list stacks >&- 2>/dev/null").c_str())) == 2);
  CHECK(WEXITSTATUS(std::system((ferry_program() + " --version >&- 2>/dev/null").c_str())) == 2);
  CHECK(Json::parse(read_file(json)).contains("text"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a refused run leaves no file behind") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  refuses("run --budget 5 --json '" + json + "'", {"too small"});
  refuses("run --model /nowhere --json '" + json + "'", {"/nowhere"});
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("Ctrl-C ends after the current step, with the numbers so far and exit status 130") {
  const TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  const std::string machine = (folder.path() / "slow.json").string();
  write_file(machine, machine_file("slow", "30", "1"));
  const auto begin = std::chrono::steady_clock::now();
  const Outputs r =
      run_ferry("run --stack on-demand --max-new-tokens 900 --machine '" + machine + "' --json '" + json + "'",
                [&] { return std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(1500); });
  CHECK(r.status == 130);
  const Json j = Json::parse(read_file(json));
  CHECK(j["interrupted"] == true);
  CHECK(j["decode"]["tokens"].get<int>() < 899);
}
