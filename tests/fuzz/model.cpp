// A model's folder: config.json, a zero byte, and model.safetensors. If it is accepted, some tokens are run.
#include "cpu/cpu_model.hpp"
#include "ferry/error.hpp"
#include "fuzz/fuzz.hpp"
#include "inference/generate.hpp"
#include "profiles/machine.hpp"

namespace ferry::fuzz {
namespace {

using namespace engine;

std::pair<std::string, std::string> parts(const std::string& input) {
  const std::size_t zero = std::min(input.find('\0'), input.size());
  return {input.substr(0, zero), input.substr(std::min(zero + 1, input.size()))};
}

std::string whole(const std::string& config, const std::string& weights) {
  return config + '\0' + weights;
}

}  // namespace

void read(const std::string& input) {
  const auto [config, weights] = parts(input);
  file("config.json", config);
  file("model.safetensors", weights);
  CpuModel model(folder());
  RunnerOptions o;
  o.stack = "cross-layer-lru";
  o.max_rows = 8;
  o.budget_bytes = model_shape(model.config(), model.store(), o.max_rows).all_bytes() / 2;
  static const Costs costs = read_machine("rtx3090-pcie3").costs({{1000, 1000, 1000}}, CostSource::effective);
  o.virtual_costs = costs;  // without a thread
  const auto runner = make_runner(model, o);
  GenerateOptions g;
  g.prompts = {"ab"};
  g.max_new_tokens = 2;
  g.prefill_chunk = 8;
  static_cast<void>(generate(model, *runner, g));
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t seed) {
  const auto [config, weights] = parts(input);
  if (config.size() + 1 + weights.size() > most) return input;
  if (seed % 2 == 0) return whole(mutate_json(config, most - 1 - weights.size(), seed / 2), weights);
  return whole(config, mutate_safetensors(weights, most - 1 - config.size(), seed / 2));
}

std::vector<std::string> seeds() {
  std::vector<std::string> made;
  for (const char* type : {"F16", "F32"}) {
    test::TinyCheckpoint c;
    c.config["num_hidden_layers"] = 1;
    c.config["tie_word_embeddings"] = true;
    const auto [header, data] = c.pack(
        type, [](const std::string& n) { return n.find("layers.1") == std::string::npos && n != "lm_head.weight"; });
    made.push_back(whole(c.config.dump(), test::safetensors_file(header.dump(), data)));
  }
  // The config.json of every family, without weights: it is read, and then refused for their absence.
  for (const auto& family : std::filesystem::directory_iterator(data_directory().parent_path() / "tests/goldens/zoo")) {
    made.push_back(whole(content_of(family.path() / "config.json"), ""));
  }
  return made;
}

}  // namespace ferry::fuzz
