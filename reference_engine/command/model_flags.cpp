#include "command/model_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/weight_checksums.hpp"
#include "command/command.hpp"
#include "cpu/cpu_model.hpp"
#include "cuda/cuda.hpp"
#include "inference/gate_file.hpp"
#include "stacks/budget.hpp"
#include "store/disk_store.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/memory.hpp"
#include "support/progress.hpp"
#include "support/text_file.hpp"

namespace ferry::engine {

void ModelFlags::add_model(CLI::App* c) {
  add_named(
      c, "--model", model, "FOLDER|FILE",
      "folder with config.json and safetensors, a GGUF file, or the name of a bundled model or of one in the folder "
      "FERRY_MODELS")
      ->capture_default_str();
}

void ModelFlags::add_verify(CLI::App* c) {
  add_named(c, "--verify", verify, "FILE",
            "first read all weight files and hold them against these checksums, of ferry inspect --write-checksums "
            "or xxh128sum");
}

void ModelFlags::check(const Checkpoint& checkpoint) const {
  if (verify.empty()) return;
  ProgressLine line("verifying, bytes");
  check_weight_checksums(checkpoint, verify, [&line](std::uint64_t done, std::uint64_t all) {
    line.show(done, all);
    return !stop;
  });
  if (stop) throw Interrupted();
}

void ModelFlags::add_device(CLI::App* c) {
  device = "auto";
  c->add_option("--device", device, "where to compute: cuda (a GPU), cpu, or auto: a GPU if there is one")
      ->check(CLI::IsMember({"auto", "cuda", "cpu"}))
      ->capture_default_str();
}

void ModelFlags::add_experts(CLI::App* c) {
  add_verify(c);
  auto* file = add_named(c, "--store", store, "FILE", "read the experts from this file, which ferry pack made");
  add_named(c, "--host-memory", host_memory, "SHARE|BYTES",
            "of the experts, how many host memory holds, the others are read when they are needed: a share or a size "
            "(default: all if they fit beside the other weights; else, and of a store at most, half of this machine's "
            "memory)");
  add_named(c, "--gates", gates, "FILE", "predict later layers with these, which ferry calibrate gates made");
  c->add_option("--quantizer", quantizer, "how weights become low precision, without a store")
      ->check(CLI::IsMember({"nearest", "hqq"}))
      ->capture_default_str()
      ->excludes(file);
  c->add_option(
       "--activations", activations,
       "what weights of codes, experts at INT8, INT4 and INT2 and matrices in blocks as GGUF files and MXFP4 have "
       "them, "
       "are multiplied with: float, or int8 (on the CPU only): 64 values at a time rounded to 8 bits, for many rows "
       "faster and a little less exact")
      ->check(CLI::IsMember({"float", "int8"}))
      ->capture_default_str();
  c->add_option("--kv-cache", kv_cache,
                "keys and values of earlier tokens as these floats; f16 (on the CPU only) takes half the memory, as in "
                "llama.cpp; what is beyond 65504 becomes that")
      ->check(CLI::IsMember({"f32", "f16"}))
      ->capture_default_str();
  c->add_option("--threads", threads, "that compute on the CPU; results do not depend on it (default: one a processor)")
      ->type_name("N")
      ->check(in_range(1, 1024));
  c->add_flag("--pin-threads", pin_threads, "keep each of them but the first on a processor of its own");
}

std::uint64_t ModelFlags::host_bytes(std::uint64_t all, std::uint64_t others) const {
  const std::uint64_t physical = physical_memory();
  if (host_memory.empty()) {
    const bool fits = store.empty() ? fits_in_memory(all + others) : all <= physical / 2;
    return fits ? all : std::min(all, physical / 2);
  }
  const std::uint64_t asked = parse_budget(host_memory, all, "--host-memory");
  if (asked <= physical) return asked;
  throw InputError(fmt::format("--host-memory {}: {} bytes, this machine has {}", host_memory, asked, physical));
}

std::vector<std::string> ModelFlags::inputs() const {
  std::vector<std::string> files = {store, gates, verify};
  const std::filesystem::path found = find_model(model);
  if (!std::filesystem::is_directory(found)) {
    files.push_back(found.string());
    return files;
  }
  // Only the files of a folder that a model may consist of: others, such as reports, may be written.
  static const std::set<std::string> names = {"config.json", "generation_config.json", "model.safetensors.index.json",
                                              "tokenizer.json", "tokenizer_config.json"};
  static const std::set<std::string> kinds = {".model", ".tiktoken", ".jinja", ".gguf"};
  const std::filesystem::path index = found / "model.safetensors.index.json";
  std::error_code none;
  const std::string shards = std::filesystem::is_regular_file(index, none) ? read_text("--model", index.string()) : "";
  for (const auto& file : std::filesystem::directory_iterator(found)) {
    const std::filesystem::path& path = file.path();
    const std::string name = path.filename().string();
    const bool weights = name == "model.safetensors" ||
                         (name.ends_with(".safetensors") && shards.find('"' + name + '"') != std::string::npos);
    if (weights || names.contains(name) || kinds.contains(path.extension().string())) {
      files.push_back(path.string());
    }
  }
  return files;
}

namespace {

/// The precisions that a stack copies with these budgets ("25%" or bytes). Reads headers alone, and only if budgets matter.
std::uint8_t precisions_with(const std::filesystem::path& folder, StackOptions o, const ModelFlags::Budgets& budgets) {
  if (!find_stack(o.stack).full_where_all_fits || (budgets.each.empty() && budgets.device_memory.empty())) {
    return precisions_for(o).bits;
  }
  ModelConfig config = read_model_config(folder);
  const Checkpoint checkpoint(folder);
  take_names(checkpoint, config);
  const std::vector<ExpertLayout> layouts = ExpertReader(checkpoint, config).layouts();
  const ModelShape shape = model_shape(config, layouts, PrecisionSet(Precision::full).bits, 1);
  const std::uint64_t all = everything(shape).bytes();
  std::uint8_t bits = 0;
  for (const std::string& budget : budgets.each) {
    o.budget_bytes = parse_budget(budget, shape.all_bytes());
    bits |= precisions_for(o, all).bits;
  }
  if (!budgets.device_memory.empty()) {  // the experts' part of it is not known yet
    o.budget_bytes = parse_budget(budgets.device_memory, shape.all_bytes(), "--device-memory");
    bits |= precisions_for(o).bits;
    bits |= precisions_for(o, all).bits;
  }
  return bits;
}

}  // namespace

std::unique_ptr<Model> ModelFlags::open(const std::vector<StackOptions>& stacks, const Budgets& budgets) const {
  const std::filesystem::path folder = find_model(model);
  const std::string lacking = device == "cpu" ? "" : no_cuda();
  if (device == "cuda" && !lacking.empty()) throw InputError("--device cuda: " + lacking);
  const bool gpu = device != "cpu" && lacking.empty();
  if (kv_cache == "f16") {
    if (gpu) throw InputError("--kv-cache f16: only the CPU has it: leave it out, or take --device cpu");
    ModelConfig config = read_model_config(folder);  // refused before minutes are spent on the experts
    config.cache_type = FloatType::f16;
    check_cache_type(config);
  }
  auto make = [&](ModelFiles&& files) -> std::unique_ptr<Model> {
    if (kv_cache == "f16") files.config.cache_type = FloatType::f16;
    if (gpu) return make_cuda_model(std::move(files));
    return std::make_unique<CpuModel>(std::move(files));
  };
  PrecisionSet precisions{std::uint8_t{0}};
  for (const StackOptions& o : stacks) precisions.bits |= precisions_with(folder, o, budgets);
  std::vector<std::pair<std::filesystem::path, FileIdentity>> verified;
  if (!verify.empty()) {
    const Checkpoint files(folder);
    check(files);
    verified = files.files();
  }
  std::unique_ptr<Model> made;
  std::shared_ptr<const Checkpoint> checkpoint;
  DiskStore* disk = nullptr;
  if (store.empty()) {
    LoadOptions load;
    load.quantizer = quantizer_of(quantizer, "--quantizer");
    load.precisions = precisions;
    load.host_bytes = [&](std::uint64_t all, std::uint64_t others) { return host_bytes(all, others); };
    ProgressLine line("loading experts", 5'000'000'000);  // small models load in silence, on slow machines too
    load.progress = [&](std::uint64_t done, std::uint64_t total) {
      line.show(done, total);
      return !stop;
    };
    ModelFiles files(folder, load);
    if (stop) throw Interrupted();
    checkpoint = files.checkpoint;
    made = make(std::move(files));
  } else {
    auto opened = std::make_unique<DiskStore>(open_blocks(store), store, 0);
    disk = opened.get();
    ModelFiles files(folder, std::move(opened));
    checkpoint = files.checkpoint;
    made = make(std::move(files));
  }
  checkpoint->check_unchanged();  // what is read later is checked when it is read
  if (!verified.empty() && checkpoint->files() != verified) {
    throw InputError(fmt::format("{}: has changed since it was verified: run this again", folder.string()));
  }
  if (!gates.empty()) {
    if (gpu) throw InputError("--gates: only the CPU predicts with them: leave it out, or take --device cpu");
    read_gates(gates, made->config(), made->gates());
  }
  if (activations == "int8") {
    if (gpu) throw InputError("--activations int8: only the CPU has such kernels: leave it out, or take --device cpu");
    made->set_activations(Activations::int8);
  }
  made->set_threads(threads, pin_threads);
  made->add_precisions(precisions);
  if (const std::string w = made->warning(); !w.empty()) std::fprintf(stderr, "ferry: %s\n", w.c_str());
  for (const std::string& note : made->notes()) std::fprintf(stderr, "ferry: %s\n", printable(note).c_str());
  if (disk == nullptr) return made;
  disk->set_host_bytes(host_bytes(disk->added_bytes(), 0));
  ProgressLine line("from disk to host memory, bytes");
  disk->preload([&](std::uint64_t done, std::uint64_t total) {
    line.show(done, total);
    return !stop;
  });
  if (stop) throw Interrupted();
  return made;
}

}  // namespace ferry::engine
