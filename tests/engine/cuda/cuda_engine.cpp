// The engine on the emulated GPU, held against the CPU device.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "cpu/cpu_model.hpp"
#include "cuda/cuda.hpp"
#include "emulated_cuda/emulated_cuda.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/shell.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "inference/batch_decoder.hpp"
#include "inference/generate.hpp"
#include "math/expert_kernel.hpp"
#include "support/bare_runner.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

/// The plan of a layer: its experts, and the rows that they are computed for.
struct Planned {
  std::vector<Route> routes;
  std::map<std::uint16_t, Precision> precision;  ///< by expert
  std::uint32_t most_rows = 0;                   ///< of an expert
  std::vector<bool> resident;                    ///< [routes]: was resident, and so is part of the partial state
  bool partial = false;                          ///< whether the partial state was asked for
};
using PlanLog = std::vector<Planned>;

/// Passes everything on to a device, and keeps its plans.
class Watched final : public ExpertDevice {
 public:
  /// `calls`, if any: counts calls of the link's `seen`.
  Watched(std::unique_ptr<ExpertDevice> device, PlanLog& log, std::atomic<std::uint64_t>* calls = nullptr)
      : device_(std::move(device)), log_(log), calls_(calls) {}

  void submit(const Copy& copy) noexcept override { device_->submit(copy); }
  void drop(Ticket ticket) noexcept override { device_->drop(ticket); }
  [[nodiscard]] Seen seen() noexcept override {
    if (calls_ != nullptr) ++*calls_;
    return device_->seen();
  }
  void fence(Fence fence) noexcept override { device_->fence(fence); }
  void wait(Ticket ticket) override { device_->wait(ticket); }
  void drain() override { device_->drain(); }
  [[nodiscard]] double peak_bytes_per_s() const override { return device_->peak_bytes_per_s(); }
  [[nodiscard]] std::vector<Span> link_spans() const override { return device_->link_spans(); }
  [[nodiscard]] std::uint64_t arena_bytes() const override { return device_->arena_bytes(); }
  void begin(const Plan& plan, const Matrix& input) override {
    Planned p;
    p.routes.assign(plan.routes.begin(), plan.routes.end());
    for (const View<const Task>& tasks : {plan.resident, plan.arriving, plan.host}) {
      for (const Task& t : tasks) {
        p.precision[t.what.id.expert] = t.what.precision;
        p.most_rows = std::max(p.most_rows, t.rows);
      }
    }
    p.resident.resize(p.routes.size());
    for (const Task& t : plan.resident) {
      for (std::uint32_t i = 0; i < t.rows; ++i) p.resident[plan.assignments[t.first + i]] = true;
    }
    log_.push_back(std::move(p));
    device_->begin(plan, input);
  }
  void compute(View<const Task> tasks) override { device_->compute(tasks); }
  void poison(std::uint32_t slot) override { device_->poison(slot); }
  [[nodiscard]] float* host_results() override { return device_->host_results(); }
  void partial(Matrix& out) const override {
    log_.back().partial = true;
    device_->partial(out);
  }
  void add_up(Matrix& out) override { device_->add_up(out); }
  void abandon() noexcept override { device_->abandon(); }
  [[nodiscard]] Nanoseconds expert_ns() const override { return device_->expert_ns(); }
  [[nodiscard]] bool waits_itself() const override { return device_->waits_itself(); }
  [[nodiscard]] Nanoseconds take_stall_ns() override { return device_->take_stall_ns(); }

 private:
  std::unique_ptr<ExpertDevice> device_;
  PlanLog& log_;
  std::atomic<std::uint64_t>* calls_;
};

/// Computes on the host what plans say, one row at a time.
class Following final : public BareRunner {
 public:
  Following(const ModelConfig& config, const ExpertStore& store, const PlanLog& log)
      : config_(config), store_(store), log_(log), kernel_(unweighted(store.layout())) {}

  void plan(std::uint16_t layer, const Matrix& input, const GateScores& /*scores*/, const Times& /*took*/) override {
    const Planned& p = log_.at(next_++);
    out_.setZero(input.rows(), input.cols());
    partial_.setZero(input.rows(), input.cols());
    Matrix x(1, input.cols()), y;
    const bool weighs_input = store_.layout().glu.weighs_input;
    for (std::uint32_t a = 0; a < p.routes.size(); ++a) {
      const Route& r = p.routes[a];
      if (r.expert == no_expert) continue;
      const auto row = static_cast<Eigen::Index>(a / config_.top_k);
      x = input.row(row) * (weighs_input ? r.weight : 1);  // gate and up are linear
      const HeldBytes bytes = store_.bytes({{layer, r.expert}, p.precision.at(r.expert)});
      kernel_.run(bytes.view.data, p.precision.at(r.expert), x, y);
      y *= weighs_input ? 1 : r.weight;
      out_.row(row) += y.row(0);
      if (p.resident[a]) partial_.row(row) += y.row(0);
    }
  }
  [[nodiscard]] bool wants_partial(std::uint16_t /*layer*/) const override { return log_[next_ - 1].partial; }
  void partial(Matrix& out) const override { out = partial_; }
  void run(std::uint16_t /*layer*/, const Matrix& /*input*/, Matrix& out) override { out = out_; }

 private:
  static ExpertLayout unweighted(ExpertLayout layout) {
    layout.glu.weighs_input = false;
    return layout;
  }

  const ModelConfig& config_;
  const ExpertStore& store_;
  const PlanLog& log_;
  ExpertKernel kernel_;
  std::size_t next_ = 0;
  Matrix out_, partial_;
};

/// Passes everything on, and keeps what gates say: of a layer, of later layers by its input, and of a partial hidden state.
class Listening final : public PassingRunner {
 public:
  /// `gates`: computes the rows of later layers, if the runner's device does not.
  explicit Listening(ExpertRunner& runner, GateBank* gates = nullptr) : PassingRunner(runner), gates_(gates) {}

  void predicted(View<const Scores> scores) override {
    ahead_.clear();
    for (const Scores& s : scores) ahead_.emplace_back(s.weight.begin(), s.weight.end());
    runner_.predicted(scores);
  }
  void plan(std::uint16_t layer, const Matrix& input, const GateScores& scores, const Times& took) override {
    said.push_back(
        {{scores.weight.data(), scores.weight.data() + scores.weight.size()}, std::exchange(ahead_, {}), {}});
    const std::size_t at = said.size() - 1;
    if (gates_ != nullptr && at < others.size() && !others[at].ahead.empty()) {
      const auto count = static_cast<std::uint16_t>(others[at].ahead.size());
      for (const Scores& s : gates_->scores(static_cast<std::uint16_t>(layer + 1), count, scores.gate_input(input))) {
        said.back().ahead.emplace_back(s.weight.begin(), s.weight.end());
      }
    }
    runner_.plan(layer, input, scores, took);
  }
  void look_ahead(std::uint16_t layer, const GateScores& scores) override {
    said.back().partial.assign(scores.weight.data(), scores.weight.data() + scores.weight.size());
    runner_.look_ahead(layer, scores);
  }

  struct Said {
    std::vector<float> own;
    std::vector<std::vector<float>> ahead;
    std::vector<float> partial;
  };
  std::vector<Said> said,
      others;  ///< by layer and step; `others` another runner's, which have rows ahead where these are to

 private:
  GateBank* gates_;
  std::vector<std::vector<float>> ahead_;
};

/// The largest difference of weights, which are probabilities or the like.
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
  return worst;
}

/// Checks that gates say on the GPU what they say on the CPU.
void check_said(const std::vector<Listening::Said>& a, const std::vector<Listening::Said>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max({worst, apart(a[i].own, b[i].own), apart(a[i].partial, b[i].partial)});
    REQUIRE(a[i].ahead.size() == b[i].ahead.size());
    for (std::size_t d = 0; d < a[i].ahead.size(); ++d) worst = std::max(worst, apart(a[i].ahead[d], b[i].ahead[d]));
  }
  CHECK(worst < 1e-4);
}

constexpr std::uint32_t decoded = 4;
constexpr std::uint32_t short_prompt = 20;

/// Whether to run all combinations, which takes some ten minutes, instead of a part of them in turn.
bool all_of_it() {
  return std::getenv("FERRY_TEST_ALL") != nullptr;
}

std::string folder(const std::string& name) {
  return name.starts_with("/") ? name : test::model_folder(name).string();
}

CpuModel& cpu_model(const std::string& name) {
  static std::map<std::string, CpuModel> loaded;
  const auto found = loaded.find(name);
  if (found != loaded.end()) return found->second;
  CpuModel& m = loaded.try_emplace(name, folder(name)).first->second;
  for (const StackInfo& s : all_stacks()) m.add_precisions(s.precisions);
  return m;
}

/// Logits of two sequences, one with its prompt in one step, the other in two, followed by tokens of both in a batch.
Matrix logits_of(Model& m, ExpertRunner& runner, std::uint32_t prompt) {
  std::vector<KvCache> caches;
  caches.push_back(m.make_cache(prompt + decoded));
  caches.push_back(m.make_cache(prompt + decoded));
  std::vector<TokenRow> rows;
  Matrix all(0, m.config().vocabulary);
  auto keep = [&](const Matrix& logits) {
    all.conservativeResize(all.rows() + logits.rows(), logits.cols());
    all.bottomRows(logits.rows()) = logits;
  };
  auto token = [](std::uint32_t s, std::uint32_t i) { return i == 0 ? 256 : 97 + (i * (7 + s)) % 26; };
  for (std::uint32_t s = 0; s < 2; ++s) {
    rows.clear();
    for (std::uint32_t i = 0; i < prompt; ++i) {
      rows.push_back({s, token(s, i), i});
      if (s == 1 && i == 8) {
        keep(m.forward(Phase::prefill, rows, caches, runner, 2));
        rows.clear();
      }
    }
    keep(m.forward(Phase::prefill, rows, caches, runner, 3));
  }
  for (std::uint32_t i = prompt; i < prompt + decoded; ++i) {
    keep(m.forward(Phase::decode, {{0, token(0, i), i}, {1, token(1, i), i}}, caches, runner, 2));
  }
  runner.end_sequence(0);
  runner.end_sequence(1);
  return all;
}

RunnerOptions options_for(const std::string& stack, std::uint64_t budget, std::uint32_t rows = short_prompt) {
  RunnerOptions o;
  o.stack = stack;
  o.budget_bytes = budget;
  o.max_rows = rows;
  o.poison = true;
  return o;
}

/// The largest difference in units of the largest logit.
double apart(const Matrix& a, const Matrix& b) {
  return (a - b).cwiseAbs().maxCoeff() / b.cwiseAbs().maxCoeff();
}

/// Checks that a's best token is b's wherever that leads by `margin` of the largest logit. Returns in how many rows it does.
int same_choices(const Matrix& a, const Matrix& b, double margin) {
  int led = 0;
  for (Eigen::Index i = 0; i < b.rows(); ++i) {
    Eigen::Index best = 0, ours = 0;
    const float top = b.row(i).maxCoeff(&best);
    a.row(i).maxCoeff(&ours);
    float second = -INFINITY;
    for (Eigen::Index j = 0; j < b.cols(); ++j) second = j == best ? second : std::max(second, b(i, j));
    if (top - second <= margin * b.cwiseAbs().maxCoeff()) continue;
    ++led;
    CHECK(ours == best);
  }
  return led;
}

std::uint64_t share(Model& m, double percent) {
  return static_cast<std::uint64_t>(static_cast<double>(model_shape(m.config(), m.store(), 1).all_bytes()) * percent /
                                    100);
}

}  // namespace

namespace {

struct Ran {
  Matrix logits;
  std::uint32_t most_rows = 0;  ///< of an expert in a step
  Counters counters;
  PlanLog plans;
  std::vector<Listening::Said> said;
};

/// Runs on the emulated GPU without resetting it.
Ran run_on_gpu(const std::string& name, const std::string& stack, double percent, std::uint32_t prompt = short_prompt) {
  Ran ran;
  const auto model = make_cuda_model(ModelFiles(folder(name)));
  RunnerOptions o = options_for(stack, share(*model, percent), prompt);
  model->add_precisions(precisions_for(o));
  o.make_device = [&](const DeviceNeeds& needs, const RunnerOptions& given) -> std::unique_ptr<ExpertDevice> {
    return std::make_unique<Watched>(model->make_device(needs, given), ran.plans);
  };
  const auto runner = make_runner(model->config(), model->store(), model->gates(), o);
  Listening listening(*runner);
  ran.logits = logits_of(*model, listening, prompt);
  ran.said = std::move(listening.said);
  ran.counters = runner->statistics().counters;
  for (const Planned& p : ran.plans) ran.most_rows = std::max(ran.most_rows, p.most_rows);
  return ran;
}

/// A model's first layers, as a folder.
class FirstLayers {
 public:
  FirstLayers(const std::filesystem::path& model, int layers) {
    for (const auto& entry : std::filesystem::directory_iterator(model)) {
      std::filesystem::create_symlink(entry.path(), folder_.path() / entry.path().filename());
    }
    Json config = Json::parse(read_file(model / "config.json"));
    config["num_hidden_layers"] = layers;
    std::filesystem::remove(folder_.path() / "config.json");
    write_file(folder_.path() / "config.json", config.dump());
  }
  [[nodiscard]] std::string path() const { return folder_.path().string(); }

 private:
  TemporaryFolder folder_;
};

/// Runs a quarter of the stacks, so that test cases can run side by side. Budgets take turns, and the model has four layers: a
/// first one, a last one, and one from which three can be looked ahead. FERRY_TEST_ALL: four budgets, and all layers.
void every_stack_is_right(const std::string& model, std::size_t quarter) {
  static std::map<std::string, FirstLayers> shallow;
  const std::string name =
      all_of_it() ? model : shallow.try_emplace(model, test::model_folder(model), 4).first->second.path();
  CpuModel& reference = cpu_model(name);
  double worst = 0;
  std::size_t turn = 0;
  for (std::size_t i = quarter; i < all_stacks().size(); i += 4) {
    const StackInfo& info = all_stacks()[i];
    std::vector<double> percents{++turn % 2 == 0 ? 12.5 : 50};
    if (all_of_it()) percents = {12.5, 25, 50, 100};
    for (const double percent : percents) {
      INFO(model << ", " << info.name << " at " << percent << "%");
      emulated::reset({.eager = true});
      const Ran ran = run_on_gpu(name, info.name, percent);
      REQUIRE(ran.logits.allFinite());
      Following following(reference.config(), reference.store(), ran.plans);
      const Matrix expected = logits_of(reference, following, short_prompt);
      CHECK(apart(ran.logits, expected) < 1e-5);  // 1e-2 would do; both are floats
      CHECK(same_choices(ran.logits, expected, 1e-5) > 0);
      worst = std::max(worst, apart(ran.logits, expected));
    }
  }
  MESSAGE(model << ": at most " << worst << " apart");
}

}  // namespace

TEST_CASE("CUDA: every stack computes what the CPU computes from the same plans, tiny-qwen-moe, first quarter" *
          doctest::test_suite("whole-models")) {
  every_stack_is_right("tiny-qwen-moe", 0);
}
TEST_CASE("CUDA: every stack computes what the CPU computes from the same plans, tiny-qwen-moe, second quarter" *
          doctest::test_suite("whole-models")) {
  every_stack_is_right("tiny-qwen-moe", 1);
}
TEST_CASE("CUDA: every stack computes what the CPU computes from the same plans, tiny-qwen-moe, third quarter" *
          doctest::test_suite("whole-models")) {
  every_stack_is_right("tiny-qwen-moe", 2);
}
TEST_CASE("CUDA: every stack computes what the CPU computes from the same plans, tiny-qwen-moe, fourth quarter" *
          doctest::test_suite("whole-models")) {
  every_stack_is_right("tiny-qwen-moe", 3);
}
TEST_CASE("CUDA: every stack computes what the CPU computes from the same plans, tiny-mixtral" *
          doctest::test_suite("whole-models")) {
  for (std::size_t quarter = 0; quarter < 4; ++quarter) every_stack_is_right("tiny-mixtral", quarter);
}

namespace {

/// Writes layers of a real model's size with made-up weights, which take some gigabytes.
void write_layers(const std::filesystem::path& folder, const Json& config) {
  write_file(folder / "config.json", config.dump());
  const auto number = [&](const char* field) { return config[field].get<std::uint64_t>(); };
  const bool shared = config.contains("shared_expert_intermediate_size");
  const std::uint64_t hidden = number("hidden_size"), vocabulary = number("vocab_size"),
                      kv = hidden / number("num_attention_heads") * number("num_key_value_heads");
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> tensors = {
      {"model.embed_tokens.weight", {vocabulary, hidden}},
      {"lm_head.weight", {vocabulary, hidden}},
      {"model.norm.weight", {hidden}}};
  auto feed_forward = [&](const std::string& at, std::array<const char*, 3> names, std::uint64_t width) {
    tensors.push_back({at + names[0] + ".weight", {width, hidden}});
    tensors.push_back({at + names[1] + ".weight", {width, hidden}});
    tensors.push_back({at + names[2] + ".weight", {hidden, width}});
  };
  for (std::uint64_t l = 0; l < number("num_hidden_layers"); ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".", attention = at + "self_attn.";
    tensors.push_back({at + "input_layernorm.weight", {hidden}});
    tensors.push_back({at + "post_attention_layernorm.weight", {hidden}});
    for (const auto& [part, rows] : {std::pair("q", hidden), {"k", kv}, {"v", kv}}) {
      tensors.push_back({attention + part + "_proj.weight", {rows, hidden}});
      if (shared) tensors.push_back({attention + part + "_proj.bias", {rows}});
    }
    tensors.push_back({attention + "o_proj.weight", {hidden, hidden}});
    const std::uint64_t experts = number(shared ? "num_experts" : "num_local_experts");
    const std::string block = at + (shared ? "mlp." : "block_sparse_moe.");
    const Json dense = config.value("mlp_only_layers", Json::array());
    if (std::find(dense.begin(), dense.end(), l) != dense.end()) {
      feed_forward(block, {"gate_proj", "up_proj", "down_proj"}, number("intermediate_size"));
      continue;
    }
    tensors.push_back({block + "gate.weight", {experts, hidden}});
    for (std::uint64_t e = 0; e < experts; ++e) {
      const std::string expert = block + "experts." + std::to_string(e) + ".";
      if (shared) {
        feed_forward(expert, {"gate_proj", "up_proj", "down_proj"}, number("moe_intermediate_size"));
      } else {
        feed_forward(expert, {"w1", "w3", "w2"}, number("intermediate_size"));
      }
    }
    if (!shared) continue;
    tensors.push_back({block + "shared_expert_gate.weight", {1, hidden}});
    feed_forward(block + "shared_expert.", {"gate_proj", "up_proj", "down_proj"},
                 number("shared_expert_intermediate_size"));
  }
  Json header = Json::object();
  std::uint64_t end = 0;
  for (const auto& [name, shape] : tensors) {
    const std::uint64_t begin = end, columns = shape.size() == 2 ? shape[1] : 1;
    end += shape[0] * columns * 2;
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, end}}};
  }
  std::ofstream file(folder / "model.safetensors", std::ios::binary);
  file << safetensors_file(header.dump(), "");
  Random random(5);
  std::vector<float> units(1'000'003);  // repeated, from another place in every row
  for (float& u : units) u = random.unit() * 2 - 1;
  std::size_t next = 0;
  std::vector<Eigen::bfloat16> values;
  for (const auto& [name, shape] : tensors) {
    const bool norm = name.find("norm") != std::string::npos;
    values.resize(shape[0] * (shape.size() == 2 ? shape[1] : 1));
    // Uniform, so that a product is about as large as its input. Larger in gates, so that they tell experts apart.
    float most = name.find("bias") != std::string::npos ? 0.1F : std::sqrt(3.0F / static_cast<float>(shape.back()));
    if (name.ends_with(".gate.weight")) most *= 3;
    for (Eigen::bfloat16& v : values) {
      v = Eigen::bfloat16(norm ? 1.0F : units[next] * most);
      next = next + 1 == units.size() ? 0 : next + 1;
    }
    file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 2));
  }
}

}  // namespace

TEST_CASE("CUDA: every family of the zoo computes what the CPU computes, or is refused by what it lacks" *
          doctest::test_suite("whole-models")) {
  std::vector<std::string> names, refused;
  for (const auto& entry : std::filesystem::directory_iterator(test::golden_file("zoo"))) {
    names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  double worst = 0;
  std::size_t turn = 0;
  for (const std::string& name : names) {
    CAPTURE(name);
    const ModelFiles files(name);
    if (!beyond_cuda(files.config, files.store->layouts()).empty()) {
      refused.push_back(std::filesystem::path(name).filename());
      CHECK_THROWS_AS(make_cuda_model(ModelFiles(name)), InputError);
      continue;
    }
    const char* stacks[] = {"importance-driven", "fate", "lru", "hobbit"};
    for (std::size_t i = 0; i < (all_of_it() ? std::size(stacks) : 2); ++i) {
      // No stack with partial hidden states: layers with a memory must not remember them, and gates may have their own norms.
      const bool partial = files.config.linear.kernel > 0 || !files.config.names.experts_norm.empty();
      const std::string stack = stacks[all_of_it() ? i : partial ? 2 * i : (turn++ % 4)];
      const std::uint32_t prompt = i % 2 == 0 ? short_prompt : 150;  // some of the longer prompt go through cuBLAS
      CAPTURE(stack);
      emulated::reset({.eager = true});
      const Ran ran = run_on_gpu(name, stack, 50, prompt);
      REQUIRE(ran.logits.allFinite());
      CHECK((ran.most_rows > 32) == (prompt > short_prompt));
      CpuModel& reference = cpu_model(name);
      Following following(reference.config(), reference.store(), ran.plans);
      Listening listening(following, &reference.gates());
      listening.others = ran.said;
      const Matrix expected = logits_of(reference, listening, prompt);
      check_said(ran.said, listening.said);
      CHECK(apart(ran.logits, expected) < 1e-5);
      CHECK(same_choices(ran.logits, expected, 1e-5) > 0);
      worst = std::max(worst, apart(ran.logits, expected));
    }
  }
  MESSAGE("at most " << worst << " apart");
  CHECK(refused == std::vector<std::string>{"granitemoehybrid", "granitemoehybrid_rope", "hunyuan_layers"});
}

TEST_CASE("CUDA: GGUF files, in blocks too, compute what the CPU computes from them" *
          doctest::test_suite("whole-models")) {
  for (const char* file :
       {"mixtral-bf16",         "mixtral-q8_0",          "qwen2_moe-bf16",     "qwen2_moe-q8_0",
        "deepseek_moe-bf16",    "deepseek_v2_lite-bf16", "deepseek_v3-f16",    "dots1-bf16",
        "ernie4_5_moe-bf16",    "glm4_moe-bf16",         "gpt_oss-bf16",       "granitemoeshared-bf16-00001-of-00002",
        "hunyuan_v1_moe-bf16",  "llama4_as_gguf-bf16",   "minimax_m2-bf16",    "olmoe_as_gguf-bf16",
        "phimoe-bf16",          "qwen3_moe-q8_0",        "glm4_moe_lite-bf16", "exaone_moe-bf16",
        "hy_v3-bf16",           "qwen3_vl_moe-bf16",     "solar_open-bf16",    "afmoe_as_gguf-bf16",
        "qwen3_5_moe-bf16",     "qwen3_next-bf16",       "lfm2_moe-bf16",      "gemma4-bf16",
        "mistral4_as_gguf-bf16"}) {
    CAPTURE(file);
    const std::string path = (test::golden_file("gguf") / (std::string(file) + ".gguf")).string();
    for (const char* stack : {"lru", "hobbit"}) {
      INFO(file << ", " << stack);
      emulated::reset({.eager = true});
      const Ran ran = run_on_gpu(path, stack, 50);
      CpuModel& reference = cpu_model(path);
      Following following(reference.config(), reference.store(), ran.plans);
      Listening listening(following, &reference.gates());
      listening.others = ran.said;
      const Matrix expected = logits_of(reference, listening, short_prompt);
      check_said(ran.said, listening.said);
      CHECK(apart(ran.logits, expected) < 1e-5);
      CHECK(same_choices(ran.logits, expected, 1e-5) > 0);
    }
  }
}

TEST_CASE("CUDA: layers without experts stand before, between and behind those with them" *
          doctest::test_suite("whole-models")) {
  Json config = {{"architectures", {"Qwen2MoeForCausalLM"}},
                 {"num_hidden_layers", 7},
                 {"mlp_only_layers", {0, 2, 3, 5, 6}},
                 {"hidden_size", 64},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"num_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"intermediate_size", 96},
                 {"moe_intermediate_size", 32},
                 {"shared_expert_intermediate_size", 48},
                 {"vocab_size", 258},
                 {"max_position_embeddings", 256},
                 {"rope_theta", 1e4},
                 {"rms_norm_eps", 1e-5},
                 {"tie_word_embeddings", false},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2},
                 {"hidden_act", "silu"},
                 {"norm_topk_prob", false}};
  const TemporaryFolder folder;
  write_layers(folder.path(), config);
  for (const std::string stack : {"importance-driven", "fate", "lru"}) {
    for (const std::uint32_t prompt : {short_prompt, 150U}) {
      CAPTURE(stack);
      CAPTURE(prompt);
      emulated::reset({.eager = true});
      const Ran ran = run_on_gpu(folder.path(), stack, 50, prompt);
      CpuModel reference(folder.path());
      reference.add_precisions(find_stack(stack).precisions);
      Following following(reference.config(), reference.store(), ran.plans);
      const Matrix expected = logits_of(reference, following, prompt);
      CHECK(apart(ran.logits, expected) < 1e-5);
      CHECK(same_choices(ran.logits, expected, 1e-5) > 0);
    }
  }
}

TEST_CASE("CUDA: layers of Mixtral-8x7B's and Qwen1.5-MoE's size") {
  if (!all_of_it()) return;
  const Json common = {{"vocab_size", 512},    {"max_position_embeddings", 512}, {"rope_theta", 1e6},
                       {"rms_norm_eps", 1e-5}, {"tie_word_embeddings", false},   {"bos_token_id", 1},
                       {"eos_token_id", 2},    {"hidden_act", "silu"},           {"norm_topk_prob", false}};
  Json mixtral = {{"architectures", {"MixtralForCausalLM"}},
                  {"num_hidden_layers", 1},
                  {"hidden_size", 4096},
                  {"num_attention_heads", 32},
                  {"num_key_value_heads", 8},
                  {"num_local_experts", 8},
                  {"num_experts_per_tok", 2},
                  {"intermediate_size", 14336}};
  Json qwen = {{"architectures", {"Qwen2MoeForCausalLM"}},
               {"num_hidden_layers", 2},
               {"hidden_size", 2048},
               {"num_attention_heads", 16},
               {"num_key_value_heads", 16},
               {"num_experts", 60},
               {"num_experts_per_tok", 4},
               {"moe_intermediate_size", 1408},
               {"shared_expert_intermediate_size", 5632}};
  for (Json* config : {&mixtral, &qwen}) {
    config->update(common);
    const TemporaryFolder folder;
    write_layers(folder.path(), *config);
    for (const std::string stack : {"lru", "hobbit"}) {
      INFO((*config)["architectures"][0] << ", " << stack);
      emulated::reset({.eager = true, .chunk_bytes = 1U << 26U, .total_bytes = std::uint64_t{8} << 30U});
      constexpr std::uint32_t prompt = 12;
      const Ran ran = run_on_gpu(folder.path(), stack, 50, prompt);
      REQUIRE(ran.logits.allFinite());
      CpuModel reference(folder.path());
      reference.add_precisions(find_stack(stack).precisions);
      Following following(reference.config(), reference.store(), ran.plans);
      const Matrix expected = logits_of(reference, following, prompt);
      const double worst = apart(ran.logits, expected);
      CHECK(worst < 1e-5);
      CHECK(same_choices(ran.logits, expected, 1e-5) > 0);
      MESSAGE((*config)["architectures"][0] << ", " << stack << ": at most " << worst << " apart");
    }
  }
}

TEST_CASE("CUDA: prompts so long that experts go through cuBLAS" * doctest::test_suite("whole-models")) {
  for (const std::string name : {"tiny-mixtral", "tiny-qwen-moe"}) {
    for (const std::string stack : {"lru", "hobbit"}) {
      // Of tiny-mixtral's 8 experts, some get more rows than the kernels take straight from the weights.
      if ((stack == "lru") != (name == "tiny-mixtral")) continue;
      INFO(name << ", " << stack);
      constexpr std::uint32_t prompt = 150;
      emulated::reset({.eager = true});
      const Ran ran = run_on_gpu(name, stack, 25, prompt);
      CpuModel& reference = cpu_model(name);
      Following following(reference.config(), reference.store(), ran.plans);
      CHECK(apart(ran.logits, logits_of(reference, following, prompt)) < 1e-5);
      CHECK((ran.most_rows > 40 || name == "tiny-qwen-moe"));
    }
  }
}

TEST_CASE("CUDA: lossless stacks without host compute give the resident model's bits, whatever the order of streams" *
          doctest::test_suite("whole-models")) {
  const std::string zoo = test::golden_file("zoo").string();
  std::uint64_t first = 0;
  for (const std::string& name : {std::string("tiny-mixtral"), std::string("tiny-qwen-moe"), zoo + "/qwen3_next",
                                  zoo + "/qwen3_5_moe", zoo + "/afmoe", zoo + "/lfm2_moe", zoo + "/gemma4"}) {
    emulated::reset({.eager = true});
    const Matrix resident = run_on_gpu(name, "resident", 100).logits;
    std::uint64_t seed = first++, copies = 0;
    for (const StackInfo& info : all_stacks()) {
      if (!info.lossless || info.keeps_everything || info.precisions.bits != PrecisionSet(Precision::full).bits)
        continue;
      if (info.name == "static-host") continue;       // computes on the host
      if (++seed % 2 == 0 && !all_of_it()) continue;  // the next model runs the others
      const double percent = std::array{12.5, 25.0, 50.0, 100.0}[seed / 2 % 4];
      emulated::Options o;
      o.seed = seed;
      emulated::reset(o);
      INFO(name << ", " << info.name << " at " << percent << "%, seed " << seed);
      const Ran ran = run_on_gpu(name, info.name, percent);
      const Outcomes& o1 = ran.counters.of(Phase::prefill);
      const Outcomes& o2 = ran.counters.of(Phase::decode);
      if (o1.host_computed + o2.host_computed > 0) {  // sums on the host have another order
        CHECK(apart(ran.logits, resident) < 1e-5);
        continue;
      }
      CHECK(ran.logits == resident);
      copies += o2.misses;
    }
    CHECK(copies > 0);
  }
}

TEST_CASE("CUDA: with the streams in any order, stacks that lose something never compute from the wrong bytes" *
          doctest::test_suite("whole-models")) {
  CpuModel& reference = cpu_model("tiny-qwen-moe");
  for (const std::string stack : {"hobbit", "hobbit-cooperative", "importance-driven", "fate", "hybrimoe"}) {
    for (std::uint64_t seed = 1; seed <= (all_of_it() ? 2 : 1); ++seed) {
      INFO(stack << ", seed " << seed);
      emulated::Options o;
      o.seed = seed;
      o.chunk_bytes = 1024;
      o.random_fibers = stack == "fate" || seed == 2;
      emulated::reset(o);
      const Ran ran = run_on_gpu("tiny-qwen-moe", stack, 12.5);
      REQUIRE(ran.logits.allFinite());  // slots are poisoned
      Following following(reference.config(), reference.store(), ran.plans);
      CHECK(apart(ran.logits, logits_of(reference, following, short_prompt)) < 1e-5);
    }
  }
}

/// Counts the launches between a partial hidden state and the host's look at its scores.
class BetweenPartialAndLook final : public PassingRunner {
 public:
  using PassingRunner::PassingRunner;
  void partial(Matrix& out) const override {
    before_ = emulated::counters().launches;
    runner_.partial(out);
  }
  void look_ahead(std::uint16_t layer, const GateScores& scores) override {
    launches[waits() ? 1 : 0].insert(emulated::counters().launches - before_);
    runner_.look_ahead(layer, scores);
  }
  std::set<std::uint64_t> launches[2];  ///< by whether the plan waits for something

 private:
  mutable std::uint64_t before_ = 0;
};

TEST_CASE(
    "CUDA: the device has the next layer's gate to do while the host looks ahead, if it waits for nothing - emulated" *
    doctest::test_suite("whole-models")) {
  emulated::reset({.eager = true});
  const auto model = make_cuda_model(ModelFiles(folder("tiny-qwen-moe")));
  RunnerOptions o = options_for("importance+pre", share(*model, 50));
  o.poison = false;  // poisoning takes launches, too
  model->add_precisions(precisions_for(o));
  o.make_device = [&](const DeviceNeeds& needs, const RunnerOptions& given) {
    return model->make_device(needs, given);
  };
  const auto runner = make_runner(model->config(), model->store(), model->gates(), o);
  BetweenPartialAndLook watch(*runner);
  logits_of(*model, watch, short_prompt);
  // A plan that waits launches a sum, attention and the gate. One that does not launches them again on the whole hidden state,
  // and the shared expert: its products, the factor, and their sum.
  REQUIRE(watch.launches[1].size() == 1);
  REQUIRE(watch.launches[0].size() == 1);
  CHECK(*watch.launches[0].begin() == 2 * *watch.launches[1].begin() + 3);
}

/// Gives experts to other threads than its maker's only after the link has been called 50 more times.
class SlowStore final : public ExpertStore {
 public:
  SlowStore(const ExpertStore& inner, const std::atomic<std::uint64_t>& calls) : inner_(inner), calls_(calls) {}
  [[nodiscard]] const ExpertLayout& layout() const override { return inner_.layout(); }
  [[nodiscard]] std::uint8_t precisions() const override { return inner_.precisions(); }
  void add(Precision /*p*/) override {}
  [[nodiscard]] HeldBytes bytes(Variant v) const override {
    if (std::this_thread::get_id() != owner_) {
      ++given;
      const std::uint64_t until = calls_ + 50;
      for (int ms = 0; calls_ < until; ++ms) {
        if (ms == 10'000) throw InputError("nobody has called the link");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return inner_.bytes(v);
  }
  [[nodiscard]] std::vector<std::pair<const std::byte*, std::size_t>> fixed_memory() const override {
    return inner_.fixed_memory();
  }
  mutable std::uint32_t given = 0;

 private:
  const ExpertStore& inner_;
  const std::atomic<std::uint64_t>& calls_;
  std::thread::id owner_ = std::this_thread::get_id();
};

TEST_CASE("CUDA: while the host computes experts, copies are moved on" * doctest::test_suite("whole-models")) {
  emulated::reset({.eager = true});
  const auto model = make_cuda_model(ModelFiles(folder("tiny-mixtral")));
  PlanLog plans;
  std::atomic<std::uint64_t> calls = 0;
  RunnerOptions o = options_for("static-host", share(*model, 50));
  o.make_device = [&](const DeviceNeeds& needs, const RunnerOptions& given) -> std::unique_ptr<ExpertDevice> {
    return std::make_unique<Watched>(model->make_device(needs, given), plans, &calls);
  };
  const SlowStore store(model->store(), calls);
  const auto runner = make_runner(model->config(), store, model->gates(), o);
  std::vector<KvCache> caches;
  caches.push_back(model->make_cache(2));
  model->forward(Phase::decode, {{0, 256, 0}}, caches, *runner, 1);
  CHECK(store.given > 0);
}

TEST_CASE("CUDA: caches of recent positions give the bits of those with all positions" *
          doctest::test_suite("whole-models")) {
  for (const std::string family : {"gemma4", "gpt_oss", "llama4"}) {
    CAPTURE(family);
    const auto logits = [&](bool all, const std::string& stack) {
      emulated::reset({.eager = true});
      const auto model = make_cuda_model(ModelFiles(test::golden_file("zoo") / family));
      const std::uint32_t positions = 60, rows = 5;
      CacheRoom room(model->config(), positions, rows);
      if (!all) room.recent = 16 + 2 * rows;  // they have a window or chunk of 16
      RunnerOptions o = options_for(stack, share(*model, 50));
      o.alpha = 0;  // no expert stands in for another
      const auto runner = make_runner(*model, o);
      std::vector<KvCache> caches;
      for (int s = 0; s < 2; ++s) caches.push_back(model->make_cache(room));
      Matrix made(2 * positions, model->config().vocabulary);
      for (std::uint32_t first = 0, count; first < positions; first += count) {
        count = first < positions / 2 ? rows : 1;
        std::vector<TokenRow> step;
        for (const std::uint32_t s : {0U, 1U}) {
          for (std::uint32_t i = first; i < first + count; ++i) step.push_back({s, 97 + (i * i + s) % 26, i});
        }
        made.middleRows(2 * first, std::ssize(step)) =
            model->forward(count == 1 ? Phase::decode : Phase::prefill, step, caches, *runner,
                           static_cast<std::uint32_t>(step.size()));
      }
      return made;
    };
    // The second also attends from partial hidden states. Neither computes on the host, where sums have another order.
    for (const std::string stack : {"lru", "importance+pre"}) {
      CAPTURE(stack);
      const Matrix few = logits(false, stack), all = logits(true, stack);
      CHECK((few - all).cwiseAbs().maxCoeff() == 0);
    }
  }
}

TEST_CASE(
    "CUDA: what does not fit the device is refused, with what is asked, what is free and a budget that fits - "
    "emulated" *
    doctest::test_suite("whole-models")) {
  const auto run = [](std::uint64_t device_bytes, const std::string& stack, double percent) -> std::string {
    emulated::Options o;
    o.eager = true;
    o.total_bytes = device_bytes;
    emulated::reset(o);
    try {
      static_cast<void>(run_on_gpu("tiny-mixtral", stack, percent));
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(run(std::uint64_t{256} << 20U, "lru", 50).empty());
  CHECK(run(1 << 20U, "lru", 50).find("bytes for activations do not fit the device: ") != std::string::npos);
  const std::string slots = run(std::uint64_t{32} << 20U, "lru", 100);
  CHECK(slots.find("bytes for the experts' slots do not fit the device: ") != std::string::npos);
  const std::size_t at = slots.find("--budget ");
  REQUIRE(at != std::string::npos);
  const double budget = std::stod(slots.substr(at + 9));
  const double all = static_cast<double>(share(cpu_model("tiny-mixtral"), 100));
  CHECK(run(std::uint64_t{32} << 20U, "lru", budget / all * 100).empty());
}

TEST_CASE("CUDA: a GPU that this build has no code for is none, with what to configure - emulated") {
  emulated::reset({.eager = true});
  CHECK(no_cuda().empty());
  emulated::fail("cudaFuncGetAttributes", 1, cudaErrorNoKernelImageForDevice);
  const std::string why = no_cuda();
  CHECK(why.starts_with("this build has no code for "));
  CHECK(why.find("-DCMAKE_CUDA_ARCHITECTURES=") != std::string::npos);
  CHECK(no_cuda().empty());  // no error stays behind
}

TEST_CASE("CUDA: experts that are not page-locked go through buffers, with a warning, to the same bits - emulated" *
          doctest::test_suite("whole-models")) {
  const auto run = [](bool refused) {
    emulated::reset({.eager = true});
    const auto model = make_cuda_model(ModelFiles(folder("tiny-mixtral")));
    CHECK(model->warning().empty());
    const std::uint64_t locked = emulated::counters().pinned_bytes;
    if (refused) emulated::fail("cudaHostRegister", 1, cudaErrorMemoryAllocation);
    model->add_precisions(find_stack("hobbit").precisions);
    if (refused) {  // registering all of it failed, so nothing is page-locked
      CHECK(model->warning().find("cudaHostRegister: cudaErrorMemoryAllocation") != std::string::npos);
      CHECK(emulated::counters().pinned_bytes < locked);
    } else {
      CHECK(model->warning().empty());
      CHECK(emulated::counters().pinned_bytes > locked);
    }
    const auto runner = make_runner(*model, options_for("lru", share(*model, 25)));
    return logits_of(*model, *runner, short_prompt);
  };
  const Matrix locked = run(false);
  CHECK(run(true) == locked);
}

TEST_CASE("CUDA: all device memory is accounted for, to the byte, and given back - emulated" *
          doctest::test_suite("whole-models")) {
  emulated::reset({.eager = true});
  {
    const auto model = make_cuda_model(ModelFiles(folder("tiny-mixtral")));
    const auto runner = make_runner(*model, options_for("lru", share(*model, 25)));
    static_cast<void>(logits_of(*model, *runner, short_prompt));
    std::uint64_t sum = 0;
    for (const auto& [use, bytes] : model->device_memory()) sum += bytes;
    // By now keys and values are gone, and so is the buffer with which the link was measured.
    CHECK(sum + 1 == emulated::counters().device_bytes_peak);  // an arena has a byte more than its slots
    CHECK(runner->statistics().arena_bytes <= share(*model, 25));
  }
  CHECK(emulated::counters().device_bytes == 0);
  CHECK(emulated::counters().pinned_bytes == 0);
}

TEST_CASE("CUDA: a lost device or a failing call ends a run with the call's name, and nothing hangs - emulated") {
  for (std::uint64_t steps : {0U, 10U, 1000U, 8000U}) {
    CAPTURE(steps);
    emulated::reset({});
    std::string why;
    try {
      const auto model = make_cuda_model(ModelFiles(folder("tiny-mixtral")));
      const auto runner = make_runner(*model, options_for("cross-layer-lru", share(*model, 25)));
      emulated::lose_device(cudaErrorLaunchFailure, steps);
      static_cast<void>(logits_of(*model, *runner, short_prompt));
    } catch (const std::exception& e) {
      why = e.what();
    }
    INFO(why);
    const bool of_blas = why.starts_with("cublas");  // cuBLAS errors have their own wording
    CHECK((of_blas || why.find("cudaErrorLaunchFailure") != std::string::npos));
  }
  for (const std::string call :
       {"cudaLaunchKernelEx", "cudaMemcpyAsync", "cudaEventRecord", "cudaEventQuery", "cublasSgemm"}) {
    emulated::reset({.eager = true});
    std::string why;
    try {
      const auto model = make_cuda_model(ModelFiles(folder("tiny-mixtral")));
      const auto runner = make_runner(*model, options_for("lru", share(*model, 25)));
      emulated::fail(call.c_str(), 3, cudaErrorLaunchOutOfResources);
      static_cast<void>(logits_of(*model, *runner, short_prompt));
    } catch (const std::exception& e) {
      why = e.what();
    }
    INFO(call << ": " << why);
    CHECK(!why.empty());
    CHECK((call == "cudaLaunchKernelEx" || why.find(call) != std::string::npos));
  }
}

TEST_CASE("CUDA: a device that is lost between two steps does not keep texts from ending - emulated") {
  emulated::reset({.eager = true});
  const auto model = make_cuda_model(ModelFiles(folder("tiny-mixtral")));
  const auto runner = make_runner(*model, options_for("lru", share(*model, 25)));
  std::string why;
  try {
    BatchDecoder decoder(*model, *runner, {.places = 2, .prefill_chunk = 16});
    for (const std::uint32_t tokens : {3U, 9U}) {
      DecodeRequest request;
      request.tokens = {256, 100, 101};
      request.ignore_end = true;
      request.max_new_tokens = tokens;
      decoder.add(request);
    }
    while (!decoder.is_over(0)) decoder.step();
    emulated::lose_device(cudaErrorLaunchFailure, 0);
    decoder.release(0);  // and its destructor releases the other
    decoder.step();
  } catch (const std::exception& e) {
    why = e.what();
  }
  INFO(why);
  CHECK(why.find("cudaErrorLaunchFailure") != std::string::npos);
}

TEST_CASE("CUDA: slots are not counted where the device could not be made - emulated") {
  emulated::reset({.eager = true});
  const auto model = make_cuda_model(ModelFiles(folder("tiny-mixtral")));
  const RunnerOptions o = options_for("lru", share(*model, 25));
  const auto experts = [&] { return model->device_memory()[1].second; };
  // Nothing has run: all that activations have so far is what they always take.
  CHECK(model->device_memory()[3].second > 0);
  CHECK(model->fixed_bytes() > model->device_memory()[3].second);
  for (const std::string call : {"cudaEventCreateWithFlags", "cudaStreamCreateWithFlags", "cudaEventSynchronize"}) {
    CAPTURE(call);
    emulated::fail(call.c_str(), 1, cudaErrorMemoryAllocation);
    CHECK_THROWS(make_runner(*model, o));
    CHECK(experts() == 0);
  }
  const auto runner = make_runner(*model, o);
  CHECK(experts() > 0);
  CHECK(experts() <= share(*model, 25));
}

TEST_CASE("CUDA: what is no number stays none where a model clamps, so that damage shows - emulated") {
  const std::map<std::string, std::string> clamped = {{"gpt_oss", "gate_up_proj_bias"},
                                                      {"olmoe_clip", "self_attn.v_proj.weight"}};
  for (const auto& entry : clamped) {
    const std::string name = entry.first, tensor = entry.second;
    const TemporaryFolder damaged;
    const std::filesystem::path whole = test::golden_file("zoo") / name;
    std::filesystem::copy_file(whole / "config.json", damaged.path() / "config.json");
    std::string file = read_file(whole / "model.safetensors");
    std::uint64_t size = 0;
    std::memcpy(&size, file.data(), sizeof(size));
    const Json header = Json::parse(file.substr(8, size));
    bool found = false;
    for (const auto& [key, facts] : header.items()) {
      if (key.find(tensor) == key.npos) continue;
      const std::uint64_t from = facts["data_offsets"][0], to = facts["data_offsets"][1];
      std::fill(file.begin() + static_cast<std::ptrdiff_t>(8 + size + from),
                file.begin() + static_cast<std::ptrdiff_t>(8 + size + to), '\xff');  // NaN in each type of float
      found = true;
    }
    REQUIRE(found);
    write_file(damaged.path() / "model.safetensors", file);
    INFO(name << ", " << tensor);
    emulated::reset({.eager = true});
    CHECK(run_on_gpu(damaged.path(), "lru", 50).logits.array().isNaN().all());
  }
}

TEST_CASE("CUDA: the command computes there, reports it, and reads experts from a disk on the way" *
          doctest::test_suite("whole-models")) {
  const TemporaryFolder folder;
  const std::string ferry = test::ferry_program() + " ", at = "'" + folder.path().string() + "/";
  const std::string run = ferry + "run --model tiny-mixtral --max-new-tokens 12 --prompt 'To be' --stack ";
  auto text_of = [](const Shell& r) { return r.out.substr(0, r.out.find("\n\nstack")); };

  const Shell cpu = shell(run + "lru --device cpu");
  REQUIRE(cpu.status == 0);
  const Shell gpu =
      shell(run + "lru --json " + at + "gpu.json' --timeline " + at + "gpu.trace'");  // there is one: auto
  CHECK(gpu.status == 0);
  CHECK(text_of(gpu) == text_of(cpu));
  const Json report = Json::parse(std::ifstream(folder.path() / "gpu.json"));
  CHECK(report["device"] != "cpu");
  CHECK(report["device_memory_bytes"]["experts"] == report["budget_bytes"]);
  CHECK(report["device_memory_bytes"]["keys_and_values"] == report["kv_bytes"]);
  CHECK(report["device_memory_bytes"]["weights"].get<std::uint64_t>() > 100'000);
  CHECK(report["decode"]["misses"].get<std::uint64_t>() > 0);
  CHECK(report["stall_s"].get<double>() > 0);
  const Json timeline = Json::parse(std::ifstream(folder.path() / "gpu.trace"));
  std::set<std::string> names;
  for (const Json& e : timeline["traceEvents"]) {
    if (e.contains("name")) names.insert(e["name"].get<std::string>());
  }
  CHECK(std::any_of(names.begin(), names.end(), [](const std::string& n) { return n.starts_with("demand"); }));
  for (const char* name : {"attention", "gate", "wait"}) CHECK(names.contains(name));
  CHECK(std::any_of(names.begin(), names.end(), [](const std::string& n) { return n.starts_with("expert"); }));

  REQUIRE(shell(ferry + "pack --model tiny-mixtral --out " + at + "store'").status == 0);
  const Shell disk = shell(run + "lru --device cuda --host-memory 25% --store " + at + "store'");
  CHECK(disk.status == 0);
  CHECK(text_of(disk) == text_of(cpu));

  const Shell machine = shell(run + "lru --device cuda --machine rtx3090-pcie3");
  CHECK(machine.status == 2);
  CHECK(machine.out == "ferry: --machine: imitates a link on the CPU device: leave it out, or name --device cpu\n");
  const Shell imitated = shell(run + "lru --machine rtx3090-pcie3");
  CHECK(imitated.status == 0);
  CHECK(text_of(imitated).find(text_of(cpu)) != std::string::npos);
  const Shell budget = shell(run + "lru --device cuda --budget 1000");
  CHECK(budget.status == 2);
}
