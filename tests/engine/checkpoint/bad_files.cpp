// Files from strangers: each false statement gets one line that names the file, the field and what was expected.
#include <doctest/doctest.h>

#include <limits>

#include "checkpoint/safetensors.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/machine_file.hpp"
#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "inference/generate.hpp"
#include "profiles/machine.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

bool names(const std::string& message, const std::string& part) {
  return says(message, {part});
}

std::string refused_file(const std::string& content) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "bad.safetensors";
  write_file(path, content);
  return refusal("bad.safetensors", [&] { Safetensors file(path); });
}

std::string with(const std::string& entry, std::size_t data_bytes = 16) {
  return safetensors_file("{\"a\":" + entry + "}", std::string(data_bytes, 'x'));
}

std::string refused_config(const std::function<void(Json&)>& change) {
  const TemporaryFolder folder;
  TinyCheckpoint c;
  change(c.config);
  c.write(folder.path());
  return refusal("config.json", [&] { CpuModel model(folder.path()); });
}

std::string refused_checkpoint(const std::function<void(TinyCheckpoint&)>& change) {
  const TemporaryFolder folder;
  TinyCheckpoint c;
  change(c);
  c.write(folder.path());
  return refusal("ferry-test-", [&] { CpuModel model(folder.path()); });
}

}  // namespace

TEST_CASE("a right file is read") {
  CHECK(refused_file(with(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})")).empty());
  CHECK(refused_file(safetensors_file("{}", "")).empty());
  CHECK(refused_file(with(R"({"dtype":"F32","shape":[0,4],"data_offsets":[0,0]})", 0)).empty());
}

TEST_CASE("lying safetensors headers") {
  CHECK(names(refused_file(""), "0 bytes, expected at least 8"));
  CHECK(names(refused_file("1234567"), "7 bytes, expected at least 8"));
  CHECK(names(refused_file(std::string("\x40\0\0\0\0\0\0\0{}", 10)), "only 2 bytes follow it: the file is truncated"));
  CHECK(names(refused_file(std::string("\x11\0\0\0\0\0\0\0{}", 10) + std::string(14, ' ')),
              "header length is 17 but only 16 bytes follow it"));
  CHECK(names(refused_file(std::string(8, '\xff') + "{}"), "header length is 18446744073709551615, expected at most"));
  CHECK(names(refused_file(std::string("\0\0\0\0\0\0\0\x80{}", 10)), "header length is 9223372036854775808"));
  CHECK(names(refused_file(safetensors_file("{", "")), "header: parse error"));
  CHECK(names(refused_file(safetensors_file("[]", "")), "not a JSON object"));
  CHECK(names(refused_file(safetensors_file("", "")), "parse error"));
  CHECK(names(refused_file(safetensors_file("{\"\xff\":1}", "")), "header: parse error"));  // not UTF-8
  CHECK(names(refused_file(safetensors_file(std::string(100000, '['), "")), "nested more than 100 deep"));
  const std::string good = R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})";
  CHECK(names(refused_file(safetensors_file("{\"a\":" + good + ",\"a\":" + good + "}", std::string(16, 'x'))),
              "\"a\" stands twice"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]})")),
              "\"dtype\" stands twice"));
  CHECK(names(refused_file(with("7")), "tensor \"a\": expected an object"));
  CHECK(names(refused_file(with(R"({"shape":[4],"data_offsets":[0,16]})")), "\"dtype\" is missing"));
  CHECK(names(refused_file(with(R"({"dtype":3,"shape":[4],"data_offsets":[0,16]})")), "dtype is not a string"));
  CHECK(
      names(refused_file(with(R"({"dtype":"F99","shape":[4],"data_offsets":[0,16]})")), "\"F99\", which is not known"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":4,"data_offsets":[0,16]})")), "shape is not an array"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})")), "shape holds -4"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})")), "shape holds 4.0"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[9223372036854775808,2],"data_offsets":[0,16]})")),
              "overflows"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})")),
              "overflows"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[4],"data_offsets":[0]})")), "array of two numbers"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[4],"data_offsets":[-1,15]})")), "data_offsets holds -1"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})")), "run backwards"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[5],"data_offsets":[0,20]})")),
              "end at 20 but the file holds 16"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[5],"data_offsets":[0,16]})")),
              "takes 20 bytes but data_offsets span 16"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[3],"data_offsets":[4,16]})")),
              "no tensor covers data offsets 0 to 4"));
  CHECK(names(refused_file(with(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})")), "tensors cover 12 bytes"));
  CHECK(names(refused_file(safetensors_file(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
                                            R"("b":{"dtype":"F32","shape":[3],"data_offsets":[8,20]}})",
                                            std::string(20, 'x'))),
              "two tensors overlap at data offset 8"));
  CHECK(names(refused_file(safetensors_file(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"  // by one byte
                                            R"("b":{"dtype":"U8","shape":[5],"data_offsets":[7,12]}})",
                                            std::string(12, 'x'))),
              "two tensors overlap at data offset 7"));
  CHECK(names(refused_file(safetensors_file(R"({"__metadata__":[]})", "")), "__metadata__ is not an object"));
  CHECK(names(refused_file(safetensors_file(R"({"__metadata__":{"a":1}})", "")), "__metadata__ \"a\" is not a string"));
}

TEST_CASE("names from strangers cannot write to the terminal or fill it") {
  const std::string message = refused_file(safetensors_file(R"({"a\nb\u001b[31m":7})", ""));
  CHECK(names(message, "a?b?[31m"));
  std::string shape = "1";
  for (int i = 0; i < 5000; ++i) shape += ",1";
  CHECK(refused_file(with(R"({"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,16]})")).size() < 700);
}

TEST_CASE("weights that make nonsense are refused when they do") {
  const TemporaryFolder folder;
  TinyCheckpoint c;
  c.values["model.norm.weight"][0] = std::numeric_limits<float>::infinity();
  c.write(folder.path());
  CpuModel model(folder.path());
  RunnerOptions o;
  o.stack = "resident";
  const auto runner = make_runner(model, o);
  GenerateOptions g;
  g.prompts = {"a"};
  CHECK(names(refusal("not finite", [&] { generate(model, *runner, g); }),
              "the model computes values that are not finite"));
}

TEST_CASE("a checkpoint cut at any length, or with any byte of its header changed, never crashes") {
  const TemporaryFolder folder;
  TinyCheckpoint c;
  c.config["num_hidden_layers"] = 1;
  const auto [header, data] =
      c.pack("BF16", [](const std::string& n) { return n.find("layers.1") == std::string::npos; });
  const std::string whole = safetensors_file(header.dump(), data);
  const auto path = folder.path() / "cut.safetensors";
  for (std::size_t n = 0; n < whole.size(); n += 1 + whole.size() / 300) {
    write_file(path, whole.substr(0, n));
    CHECK_FALSE(refusal("cut.safetensors", [&] { Safetensors file(path); }).empty());
  }
  Random random(3);
  std::uint64_t refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string changed = whole;
    const std::size_t end = 8 + header.dump().size();
    for (std::uint32_t n = random.between(1, 3); n > 0; --n) {
      changed[random.below(static_cast<std::uint32_t>(end))] = static_cast<char>(random.below(256));
    }
    write_file(path, changed);
    refused += refusal("cut.safetensors", [&] { Safetensors file(path); }).empty() ? 0 : 1;
  }
  CHECK(refused > 1000);
}

TEST_CASE("config.json: each field is named with what was expected") {
  CHECK(refused_config([](Json&) {}).empty());
  CHECK(names(refused_config([](Json& c) { c.erase("hidden_size"); }), "field \"hidden_size\" is missing"));
  CHECK(names(refused_config([](Json& c) { c["hidden_size"] = "8"; }),
              "field \"hidden_size\": expected a whole number from 1 to 1048576, got \"8\""));
  CHECK(names(refused_config([](Json& c) { c["hidden_size"] = -8; }), "got -8"));
  CHECK(names(refused_config([](Json& c) { c["hidden_size"] = 8.5; }), "got 8.5"));
  CHECK(names(refused_config([](Json& c) { c["num_hidden_layers"] = 0; }), "field \"num_hidden_layers\""));
  CHECK(names(refused_config([](Json& c) { c["num_hidden_layers"] = 18446744073709551615ULL; }), "from 1 to 4096"));
  CHECK(names(refused_config([](Json& c) { c["num_key_value_heads"] = 3; }), "a divisor of 2 heads"));
  CHECK(names(refused_config([](Json& c) {
                c.erase("head_dim");
                c["num_attention_heads"] = c["num_key_value_heads"] = 3;
              }),
              "field \"hidden_size\": expected a multiple of 3 heads, got 8"));
  CHECK(names(refused_config([](Json& c) { c["num_experts_per_tok"] = 5; }), "at most the number of experts, 4"));
  CHECK(names(refused_config([](Json& c) { c["rms_norm_eps"] = 0; }), "a number above 0"));
  CHECK(names(refused_config([](Json& c) { c["rope_theta"] = "much"; }), "field \"rope_theta\""));
  CHECK(names(refused_config([](Json& c) { c["hidden_act"] = "gelu"; }), "expected \"silu\", got \"gelu\""));
  CHECK(names(refused_config([](Json& c) { c["is_causal"] = false; }), "\"is_causal\": expected true, got false"));
  CHECK(names(refused_config([](Json& c) { c["is_causal"] = nullptr; }), "\"is_causal\": expected true, got null"));
  CHECK(names(refused_config([](Json& c) {
                c["rope_scaling"] = {{"type", "axial"}};
              }),
              "or \"llama3\", got \"axial\""));
  CHECK(names(refused_config([](Json& c) {
                c["quantization_config"] = {{"bits", 4}};
              }),
              "quantization_config: field \"quant_method\" is missing"));
  CHECK(names(refused_config([](Json& c) { c["attention_bias"] = true; }), "field \"attention_bias\": expected false"));
  CHECK(names(refused_config([](Json& c) {
                c["per_layer_config"] = {{"0", {{"intermediate_size", 8}}}};
              }),
              "field \"per_layer_config\": expected none, this family's layers are not described one by one"));
  CHECK(names(refused_config([](Json& c) { c["rms_norm_eps"] = 1e300; }), "that a float can hold"));
  CHECK(names(refused_config([](Json& c) { c["sliding_window"] = 0; }), "field \"sliding_window\""));
  CHECK(
      names(refused_config([](Json& c) { c["head_dim"] = 3; }), "field \"head_dim\": expected an even number, got 3"));
  CHECK(names(refused_config([](Json& c) { c["tie_word_embeddings"] = 1; }), "expected true or false, got 1"));
  CHECK(names(refused_config([](Json& c) { c["bos_token_id"] = -1; }), "field \"bos_token_id\""));
  CHECK(names(refused_config([](Json& c) { c["architectures"] = {"LlamaForCausalLM"}; }), "Mixtral, Olmoe, "));
  CHECK(names(refused_config([](Json& c) { c["architectures"] = "MixtralForCausalLM"; }), "one name in a list"));
  CHECK(names(refused_config([](Json& c) { c = Json::array(); }), "expected a JSON object"));
}

TEST_CASE("checkpoints: missing, misshapen and mistyped tensors are named") {
  CHECK(refused_checkpoint([](TinyCheckpoint&) {}).empty());
  CHECK(names(refused_checkpoint([](TinyCheckpoint& c) { c.values.erase("model.norm.weight"); }),
              "tensor \"model.norm.weight\" is missing"));
  CHECK(names(refused_checkpoint(
                  [](TinyCheckpoint& c) { c.values.erase("model.layers.1.block_sparse_moe.experts.3.w2.weight"); }),
              "tensor \"model.layers.1.block_sparse_moe.experts.3.w2.weight\" is missing"));
  CHECK(names(refused_checkpoint([](TinyCheckpoint& c) {
                c.shapes["lm_head.weight"] = {8, 258};
              }),
              "has shape [8, 258], expected [258, 8] by config.json"));
  const TemporaryFolder empty;
  CHECK(names(refusal("config.json", [&] { CpuModel model(empty.path()); }), "not found"));
  TinyCheckpoint().write(empty.path());
  std::filesystem::remove(empty.path() / "model.safetensors");
  CHECK(names(refusal("ferry-test-", [&] { CpuModel model(empty.path()); }),
              "neither model.safetensors nor model.safetensors.index.json"));
}

TEST_CASE("one file or shards, f32, f16 or bf16: the same model") {
  auto logits = [](const std::filesystem::path& folder) {
    CpuModel model(folder);
    RunnerOptions o;
    o.stack = "on-demand";
    o.budget_bytes = 4096;
    const auto runner = make_runner(model, o);
    GenerateOptions g;
    g.prompts = {"ab"};
    g.max_new_tokens = 4;
    return generate(model, *runner, g).last_logits[0];
  };
  const TinyCheckpoint c;
  const TemporaryFolder whole, sharded, half, brain;
  c.write(whole.path());
  c.write_sharded(sharded.path());
  CHECK(logits(whole.path()) == logits(sharded.path()));
  // Storing weights narrowly gives the same as rounding them first and storing them wide.
  for (const std::string type : {"F16", "BF16"}) {
    const TemporaryFolder narrow, wide;
    TinyCheckpoint rounded = c;
    for (auto& [name, v] : rounded.values) {
      for (float& f : v)
        f = type == "F16" ? static_cast<float>(Eigen::half(f)) : static_cast<float>(Eigen::bfloat16(f));
    }
    c.write(narrow.path(), type);
    rounded.write(wide.path());
    CHECK(logits(narrow.path()) == logits(wide.path()));
  }
}

TEST_CASE("bad shard indices") {
  auto refused = [](const std::function<void(Json&)>& change) {
    const TemporaryFolder folder;
    TinyCheckpoint().write_sharded(folder.path());
    const auto path = folder.path() / "model.safetensors.index.json";
    Json index = read_json(path);
    change(index);
    write_file(path, index.dump());
    return refusal("ferry-test-", [&] { CpuModel model(folder.path()); });
  };
  CHECK(refused([](Json&) {}).empty());
  CHECK(names(refused([](Json& i) { i.erase("weight_map"); }), "field \"weight_map\""));
  CHECK(names(refused([](Json& i) { i["weight_map"]["lm_head.weight"] = 5; }), "\"lm_head.weight\" is not a string"));
  CHECK(names(refused([](Json& i) { i["weight_map"]["lm_head.weight"] = "../../etc/passwd"; }),
              "expected a file beside the index"));
  CHECK(names(refused([](Json& i) {
                i["weight_map"]["lm_head.weight"] = std::string("model-00001-of-00002.safetensors\0x", 34);
              }),
              "expected a file beside the index"));
  CHECK(names(refused([](Json& i) { i["weight_map"]["lm_head.weight"] = "none.safetensors"; }), "cannot open"));
  CHECK(names(refused([](Json& i) { i["weight_map"]["lm_head.weight"] = "model-00002-of-00002.safetensors"; }),
              "tensor \"lm_head.weight\" is missing"));
}

TEST_CASE("machine files say what they lack") {
  auto refused = [](const std::string& text) {
    const TemporaryFolder folder;
    const auto path = folder.path() / "mine.json";
    write_file(path, text);
    return refusal("mine.json", [&] { read_machine(path.string()); });
  };
  const std::string good = machine_file("mine", "0.5", "0.25");
  CHECK(refused(good).empty());
  auto without = [&](const std::string& a, const std::string& b) {
    std::string s = good;
    s.replace(s.find(a), a.size(), b);
    return refused(s);
  };
  CHECK(names(without("\"name\"", "\"game\""), "field \"name\" is missing"));
  CHECK(names(without("0.5", "0"),
              "stated: expert_transfer_s: field \"value\": expected a number from 1e-09 to 1000, got 0"));
  CHECK(names(without("0.5", "\"x\""), "stated: expert_transfer_s: field \"value\""));
  CHECK(names(without("\"source\":\"test\"", "\"sauce\":1"), "field \"source\" is missing"));
  CHECK(names(without("mixtral-8x7b", "mixtral-8x7c"), "did you mean \"mixtral-8x7b\""));
  CHECK(names(without("\"host_memory\"", "\"memory\""), "field \"host_memory\" is missing"));
  CHECK(names(without("2e9", "1e300"), "link: peak_bytes_per_s: field \"value\": expected a number from 1 to 1e+15"));
  CHECK(
      names(without("\"value\":0,", "\"value\":-1,"), "latency_s: field \"value\": expected a number from 0 to 1000"));
  CHECK(names(refused("{"), "parse error"));
  for (const std::string& name : machine_names()) CHECK(read_machine(name).name == name);
  CHECK(machine_names().size() >= 3);
  CHECK(read_machine("rtx3090-pcie3").ratio() == doctest::Approx(6.0 / 13));
  // HOBBIT: two loads are 85.5% of a layer, computation the other 14.5%
  CHECK(2 * read_machine("rtx4090-pcie4").ratio() == doctest::Approx(85.5 / 14.5).epsilon(0.001));
}

TEST_CASE("an output file appears whole or not at all") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "out.json";
  {
    OutputFile file(path);
    CHECK_FALSE(std::filesystem::exists(path));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
  {
    OutputFile file(path);
    file.commit("done");
  }
  CHECK(std::filesystem::file_size(path) == 4);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  CHECK(
      names(refusal("nowhere", [&] { OutputFile file(folder.path() / "nowhere" / "out.json"); }), "cannot be written"));
  CHECK(names(refusal("ferry-test-", [&] { OutputFile file(folder.path()); }),
              "cannot be written: it exists and is not a regular file"));
}
