// ferry recommend as users meet it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/fixtures/command.hpp"
#include "support/bundled_files.hpp"
#include "support/json.hpp"
#include "support/quick.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

/// A folder with a trace of a bundled model's routing over a short text.
struct Fixture {
  TemporaryFolder folder;
  Fixture() {
    const std::string tokens = quick() ? "60 --window 30" : "300 --window 100";
    REQUIRE(run_ferry("trace record --model tiny-mixtral --prompt-tokens 20 --tokens " + tokens + " --text '" +
                      bundled_text().string() + "' --out " + at("t.safetensors"))
                .status == 0);
  }
  [[nodiscard]] std::string at(const std::string& name) const { return "'" + (folder.path() / name).string() + "'"; }

  Json recommended(const std::string& arguments) const {
    const Outputs r = run_ferry("recommend " + arguments + " --json " + at("r.json"));
    CAPTURE(r.error);
    REQUIRE(r.status == 0);
    Json json = read_json(folder.path() / "r.json");
    json.erase("command_line");
    return json;
  }
  /// A number of a simulation of that stack alone.
  [[nodiscard]] double simulated(const std::string& stack, const std::string& arguments,
                                 const char* number = "tpot_s") const {
    const Outputs r =
        run_ferry("simulate --defaults calibrated --stack " + stack + " " + arguments + " --json " + at("s.json"));
    CAPTURE(r.error);
    REQUIRE(r.status == 0);
    const Json json = read_json(folder.path() / "s.json");
    return number == std::string("tpot_s") ? json["decode"]["tpot_s"].get<double>() : json[number].get<double>();
  }
};

const Json& named(const Json& list, const char* key, const std::string& name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Json& j) { return j[key] == name; });
  REQUIRE(found != list.end());
  return *found;
}

}  // namespace

TEST_CASE("the ranking is that of simulations, and so is what would help") {
  const Fixture f;
  const std::string as = "--trace " + f.at("t.safetensors") + " --as mixtral-8x7b ";
  const Json r = f.recommended(as + "--machine rtx3090-pcie3 --budget 40%");
  CHECK(r["interrupted"] == false);
  double before = 0;
  for (const Json& row : r["ranking"]) {
    const std::string stack = row["stack"];
    CAPTURE(stack);
    CHECK(row["tpot_s"] == f.simulated(stack, as + "--machine rtx3090-pcie3 --budget 40%"));
    CHECK(row["ttft_s"] == f.simulated(stack, as + "--machine rtx3090-pcie3 --budget 40%", "ttft_s"));
    CHECK(row["tpot_s"] >= before);
    CHECK(row["loss_percent"].is_null());
    CHECK(row["run"]["lossless"] == true);
    before = row["tpot_s"];
  }
  CHECK(r["ranking"].size() + r["left_out"].size() == 16);
  CHECK(named(r["left_out"], "stack", "resident")["why"].get<std::string>().find("every expert fits") !=
        std::string::npos);
  CHECK(r["bound_tpot_s"] == r["ranking"][0]["run"]["bounds"]["clairvoyant_with_host_tpot_s"]);
  CHECK(r["bound_tpot_s"] <= r["ranking"][0]["tpot_s"]);

  // Twice the device memory means twice the budget.
  const Json& memory = named(r["upgrades"], "what", "device-memory");
  CHECK(memory["tpot_s"] == f.simulated(memory["stack"], as + "--machine rtx3090-pcie3 --budget 80%"));
  const Json more = f.recommended(as + "--machine rtx3090-pcie3 --budget 80%");
  CHECK(more["ranking"][0]["tpot_s"] == memory["tpot_s"]);
  CHECK(more["ranking"][0]["stack"] == memory["stack"]);
  const Json& int4 = named(r["upgrades"], "what", "int4");
  for (const char* stack : {"lru-int4", "static-host-int4", "ferry-int4", "activation-path"}) {
    CHECK(int4["tpot_s"] <= f.simulated(stack, as + "--machine rtx3090-pcie3 --budget 40%"));
  }
  CHECK(int4["tpot_s"] == f.simulated(int4["stack"], as + "--machine rtx3090-pcie3 --budget 40%"));

  // The same machine as a file, with its link twice as fast. Then both ask for 68 and 24.8 GB/s of the 68.2 that there are.
  Json machine = read_json(data_file("machines", "machine", "rtx3090-pcie3"));
  for (Json* speed : {&machine["link"]["peak_bytes_per_s"], &machine["link"]["effective_bytes_per_s"],
                      &machine["activations"]["bytes_per_s"]}) {
    (*speed)["value"] = 2 * (*speed)["value"].get<double>();
  }
  machine["link"]["beside_host"]["value"] = machine["host_memory"]["beside_copies"]["value"] =
      0.849 * (68e9 + 12.4e9) / (68e9 + 24.8e9);
  write_file(f.folder.path() / "twice.json", machine.dump());
  const Json& link = named(r["upgrades"], "what", "link");
  CHECK(link["tpot_s"] == f.recommended(as + "--budget 40% --machine " + f.at("twice.json"))["ranking"][0]["tpot_s"]);
}

TEST_CASE("the same arguments give the same recommendation, in words and numbers") {
  const Fixture f;
  const std::string arguments = "recommend --model tiny-mixtral --tokens 200 --machine rtx4090-pcie4 --budget 30%";
  const Outputs once = run_ferry(arguments), again = run_ferry(arguments);
  CHECK(once.status == 0);
  CHECK(once.out == again.out);
  CHECK(says(once.out, {"tiny-mixtral, 2", "mixed.txt", "rtx4090-pcie4", "TPOT", "TTFT", " 1  ",
                        "of a token: ", "% hits", "proven bound", "What would help most", "experts in INT4",
                        "a link twice as fast", "Left out:", "resident: needs"}));
  CHECK(once.out.find("ferry-int4  ") == std::string::npos);  // nothing may be lost

  // The model's routing over the text, recorded by itself.
  const std::string all = read_file(bundled_text());
  write_file(f.folder.path() / "text", all.substr(0, 200));
  REQUIRE(run_ferry("trace record --model tiny-mixtral --text " + f.at("text") + " --out " + f.at("own")).status == 0);
  Json of_model = f.recommended("--model tiny-mixtral --tokens 200 --machine rtx4090-pcie4 --budget 30%");
  Json of_trace = f.recommended("--trace " + f.at("own") + " --machine rtx4090-pcie4 --budget 30%");
  for (Json* r : {&of_model, &of_trace}) {
    r->erase("trace");
    for (Json& row : (*r)["ranking"]) row["run"].erase("trace");
  }
  CHECK(of_model == of_trace);
}

TEST_CASE("stacks that lose something are ranked if it is within what may be lost") {
  const Fixture f;
  write_file(f.folder.path() / "text", read_file(bundled_text()).substr(0, quick() ? 80 : 300));
  const std::string budget = " --machine rtx3090-pcie3 --budget 40% ";
  const Json r = f.recommended("--model tiny-mixtral --max-loss 1% --text " + f.at("text") + budget);
  REQUIRE(run_ferry("eval --model tiny-mixtral --stacks resident-int4,resident-int2 --text " + f.at("text") +
                    " --json " + f.at("e.json"))
              .status == 0);
  const Json eval = read_json(f.folder.path() / "e.json");
  const auto loss = [](const Json& e) {
    return std::max(e["change_percent"].get<double>(),
                    100 * e["kl_divergence"].get<double>() / e["bits_per_byte_resident"].get<double>());
  };
  for (const char* stack : {"lru-int4", "static-host-int4", "ferry-int4", "activation-path"}) {
    CAPTURE(stack);
    const Json& row = named(r["ranking"], "stack", stack);
    CHECK(row["loss_percent"].get<double>() == doctest::Approx(loss(eval[0])));
    CHECK(row["loss_measured"] == true);
  }
  CHECK(loss(eval[1]) > 1);
  CHECK(named(r["left_out"], "stack", "resident-int2")["why"] ==
        fmt::format("loses {:.2f}% on this text", loss(eval[1])));
  std::size_t lossy = 0;
  for (const Json& row : r["ranking"]) {
    if (row["loss_percent"].is_null()) continue;
    CHECK(row["loss_percent"] <= 1);
    ++lossy;
  }
  CHECK(lossy > 8);
  CHECK(r["ranking"][0]["loss_percent"].is_number());
  for (const Json& u : r["upgrades"]) CHECK(u["what"] != "int4");  // the best has it
  named(r["ranking"], "stack", "importance-driven");               // it is ranked, and needs partial hidden states

  // Recording partial hidden states for those stacks does not change the routing.
  const Json exact = f.recommended("--model tiny-mixtral --text " + f.at("text") + budget);
  for (const Json& row : exact["ranking"]) CHECK(named(r["ranking"], "stack", row["stack"])["tpot_s"] == row["tpot_s"]);

  // A trace does not tell what a stack loses, but ferry-lossy keeps to its limit.
  const Json t = f.recommended("--trace " + f.at("t.safetensors") + " --max-loss 1" + budget);
  CHECK(named(t["ranking"], "stack", "ferry-lossy")["loss_percent"] == 1);
  CHECK(named(t["ranking"], "stack", "ferry-lossy")["loss_measured"] == false);
  CHECK(named(t["left_out"], "stack", "ferry-int4")["why"].get<std::string>().find("--model") != std::string::npos);
  CHECK(named(t["upgrades"], "what", "device-memory")["tpot_s"] > 0);
}

TEST_CASE("a device's memory becomes what it leaves for experts") {
  const Fixture f;
  // As `ferry run` computes it for a prompt and an answer of 256 positions.
  const Shell run = ferry_command(
      "run --model tiny-mixtral --stack lru --device-memory 8MiB --max-new-tokens 2 --prefill-chunk 128 --prompt '" +
      std::string(254, 'x') + "'");
  REQUIRE(run.status == 0);
  const std::size_t at = run.out.find(" leave ") + 7;
  const Json r = f.recommended(
      "--model tiny-mixtral --tokens 120 --stacks lru --machine rtx3090-pcie3 --device-memory 8MiB --context 256");
  CHECK(r["budget_bytes"].get<std::uint64_t>() == std::stoull(run.out.substr(at)));
  CHECK(named(r["upgrades"], "what", "device-memory")["budget_bytes"] ==
        r["budget_bytes"].get<std::uint64_t>() + (8U << 20U));
  // For a shape the dense weights of all layers: 8 of (42,336,256 + 8 * 4096) weights at 2 bytes.
  const Json as = f.recommended("--trace " + f.at("t.safetensors") +
                                " --as mixtral-8x7b --stacks lru --machine rtx3090-pcie3 --device-memory 8GB");
  const Json shape = read_json(data_file("shapes", "model shape", "mixtral-8x7b"));
  const std::uint64_t weights = shape["attention_params"].get<std::uint64_t>() + 4096 * 8;
  CHECK(as["budget_bytes"] == 8'000'000'000 - 8 * 2 * weights);
}

TEST_CASE("what a recommendation cannot do as asked, it says") {
  const Fixture f;
  const std::string of = "recommend --trace " + f.at("t.safetensors") + " --machine rtx3080ti-pcie4 --as mixtral-8x7b ";
  const Outputs r = run_ferry(of + "--stacks lru,fate --batch 64 --budget 40%");
  CHECK(r.status == 0);
  CHECK(r.out.find("fate: changes what the model computes") != std::string::npos);
  CHECK(r.error.find("note: batch 64: the routing has ") != std::string::npos);
  // All experts of eight of Mixtral's layers are 22.5 GB, and the GPU has 12.
  CHECK(r.out.find("Note:") == std::string::npos);
  const Outputs most = run_ferry(of + "--stacks lru --budget 60%");
  CHECK(most.status == 0);
  CHECK(most.out.find("Note: that and ") != std::string::npos);
}

TEST_CASE("this machine is measured, and what was measured is kept") {
  const Fixture f;
  const std::string of = "--trace " + f.at("t.safetensors") + " --stacks lru,ferry --budget 40% ";
  const Json now = f.recommended(of + "--machine this --machine-out " + f.at("this.json"));
  CHECK(now["machine"] == "this-machine");
  const Json later = f.recommended(of + "--machine " + f.at("this.json"));
  CHECK(now == later);
}

TEST_CASE("each mistake in a recommendation gets one line") {
  const Fixture f;
  const std::string of = "recommend --trace " + f.at("t.safetensors") + " --machine rtx3090-pcie3 ";
  refuses("recommend --machine rtx3090-pcie3", {"--model", "--trace"});
  refuses("recommend --trace " + f.at("t.safetensors"), {"--machine"});
  refuses("recommend --model tiny-mixtral --machine rtx3090", {"unknown machine", "did you mean"});
  refuses("recommend --model tiny-mixtrel --machine rtx3090-pcie3", {"--model tiny-mixtrel"});
  refuses("recommend --model tiny-mixtral --machine rtx3090-pcie3 --text /nonexistent", {"--text", "/nonexistent"});
  refuses("recommend --trace /nonexistent --machine rtx3090-pcie3", {"/nonexistent"});
  refuses(of + "--model tiny-mixtral", {"--model", "--trace"});
  refuses(of + "--text x", {"--text", "--model"});
  for (const char* option : {"--verify x", "--store x", "--gates x", "--host-memory 50%", "--quantizer hqq",
                             "--activations int8", "--kv-cache f16", "--threads 2", "--pin-threads"}) {
    refuses(of + option, {std::string(option).substr(0, std::string(option).find(' ')).c_str(), "--trace"});
  }
  refuses(of + "--as nosuch", {"unknown model shape"});
  refuses(of + "--budget 0.01%", {"no stack can run"});
  refuses(of + "--budget x", {"--budget x"});
  refuses(of + "--budget 1% --device-memory 1GB", {"--budget", "--device-memory"});
  refuses(of + "--device-memory 10", {"nothing is left for experts"});
  refuses(of + "--device-memory 1GB --context 5", {"--context"});
  refuses(of + "--max-loss 1% --lossless", {"--lossless", "--max-loss"});
  refuses(of + "--max-loss 101%", {"--max-loss"});
  refuses(of + "--stacks lru,nosuch", {"unknown stack"});
  refuses(of + "--stacks hobbit", {"no stack may be chosen; hobbit: changes what the model computes: --max-loss"});
  refuses(of + "--stacks ferry-lossy --max-loss 0.5%",
          {"ferry-lossy: promises its loss, with that of INT4, from 1% on"});
  refuses(of + "--tokens 20", {"all tokens that were simulated are prompts", "--tokens"});
  refuses(of + "--machine-out x.json", {"--machine this"});
  refuses(of + "--json " + f.at("t.safetensors"), {"t.safetensors"});
  refuses("recommend --model tiny-mixtral --machine rtx3090-pcie3 --device-memory 1GB --context 2000",
          {"--context 2000", "at most 1024"});
  CHECK(!std::filesystem::exists(f.folder.path() / "r.json"));
}

TEST_CASE("Ctrl-C ends a recommendation with what there is") {
  const Fixture f;
  REQUIRE(run_ferry("trace generate --shape mixtral-8x7b --tokens 20000 --prompt-tokens 0 --sequences 1 --ahead 0 "
                    "--no-partial --out " +
                    f.at("long"))
              .status == 0);
  int asked = 0;  // every two milliseconds
  const Outputs r = run_ferry("recommend --tokens 20000 --machine rtx3090-pcie3 --trace " + f.at("long"),
                              [&] { return ++asked > 500; });
  CAPTURE(r.error);
  CHECK(r.status == 130);
  if (!r.out.empty()) CHECK(says(r.out, {"interrupted: only what was simulated is ranked", "TPOT"}));
}
