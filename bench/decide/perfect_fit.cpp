// Perfect fit: what the pipeline adds to a token when every expert is on the device.
//
// The same tokens, one at a time, go through the same layers in three ways, in turns:
//  - direct: ferry's TopK on the gate's scores, each chosen expert's kernel on its bytes, the weighted sum;
//  - pipeline: OffloadPipeline with a slot for every expert on the host thread link, which has nothing to copy: plan,
//    the same kernels on the same bytes, done, finish, the same sum;
//  - engine: the reference engine's runner for `resident`, which also reads clocks, notes what was used, counts
//    top-score experts, and copies each expert's rows in and out. Its experts are in memory of its own.
// Direct runs twice, which shows how far equals differ. Results must be the same, bit for bit.
//
// The first part runs layers of experts alone, of two tiny and two real sizes, with made-up weights; the second the bundled
// models as they are, attention and all.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>

#include "cpu/cpu_device.hpp"
#include "cpu/cpu_model.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "ferry/link/host_thread.hpp"
#include "layer.hpp"
#include "math/expert_kernel.hpp"
#include "math/host_math.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "support/bare_runner.hpp"
#include "support/bundled_files.hpp"
#include "support/clock.hpp"
#include "support/json.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

struct Arguments {
  std::vector<std::string> sizes = {"tiny-qwen-moe", "tiny-mixtral", "qwen1.5-moe", "mixtral-8x7b"};
  std::vector<std::string> models = {"tiny-qwen-moe", "tiny-mixtral"};
  std::uint32_t memory_mib = 4096;
  double seconds = 20;
  std::string json;
};

constexpr double aim_percent = 1;
constexpr std::uint32_t least_rounds = 5;

struct Size {
  const char* name;
  std::uint32_t hidden, width, experts, top_k, layers;  ///< layers of the whole model
};
constexpr Size sizes[] = {{"tiny-qwen-moe", 128, 64, 32, 4, 12},
                          {"tiny-mixtral", 128, 192, 8, 2, 8},
                          {"qwen1.5-moe", 2048, 1408, 60, 4, 24},
                          {"mixtral-8x7b", 4096, 14336, 8, 2, 32}};

Size size_of(const std::string& name) {
  for (const Size& s : sizes) {
    if (name == s.name) return s;
  }
  throw InputError("--sizes: unknown size: " + name +
                   " (expected tiny-qwen-moe, tiny-mixtral, qwen1.5-moe or mixtral-8x7b)");
}

/// Experts with different bytes in hardly more memory than one expert takes: each begins a little later in the same numbers.
class MadeUpExperts final : public ExpertStore {
 public:
  MadeUpExperts(const ExpertLayout& layout, std::uint32_t experts)
      : layout_(layout), experts_(experts), numbers_(layout.bytes() / 2 + std::size_t{0x10000} * shift) {
    std::uint32_t x = 1;
    for (std::uint16_t& n : numbers_) {  // bf16: either sign, 2^-7 to 2^-6
      x = x * 1664525U + 1013904223U;
      n = static_cast<std::uint16_t>((x >> 16U & 0x8000U) | 0x3c00U | (x >> 20U & 0x7fU));
    }
  }

  [[nodiscard]] const ExpertLayout& layout() const override { return layout_; }
  [[nodiscard]] std::uint8_t precisions() const override { return PrecisionSet(Precision::full).bits; }
  void add(Precision p) override {
    if (p != Precision::full) throw InputError("made-up experts have one precision");
  }
  [[nodiscard]] HeldBytes bytes(Variant v) const override {
    const std::size_t first = shift * (std::size_t{v.id.layer} * experts_ + v.id.expert);
    return View<const std::byte>{reinterpret_cast<const std::byte*>(&numbers_[first]),
                                 static_cast<std::uint32_t>(layout_.bytes())};
  }

 private:
  static constexpr std::size_t shift = 32;
  ExpertLayout layout_;
  std::uint32_t experts_;
  std::vector<std::uint16_t> numbers_;
};

/// Computes the experts of one token, one row, and adds them up. It leaves out what only other stacks and reports ask of a
/// runner.
class OneRow : public test::BareRunner {
 public:
  OneRow(const ExpertLayout& layout, std::uint32_t top_k) : kernel_(layout), results_(top_k) {}

 protected:
  void compute(std::uint32_t rank, const std::byte* expert, const Matrix& input) {
    kernel_.run(expert, Precision::full, input, results_[rank]);
  }
  void add_up(View<const Route> routes, const Matrix& input, Matrix& out) const {
    out.setZero(1, input.cols());
    for (std::uint32_t i = 0; i < routes.size; ++i) out.row(0) += routes[i].weight * results_[i].row(0);
  }

 private:
  ExpertKernel kernel_;
  std::vector<Matrix> results_;  ///< [k] of [1, hidden]
};

using ResidentStack = stacks::LruCache;
template <class LinkT>
using Pipe = OffloadPipeline<ResidentStack, LinkT>;

CoreConfig<ResidentStack> resident(const ModelConfig& model, const ExpertStore& store) {
  CoreConfig<ResidentStack> c;
  c.model = model_shape(model, store, 1);
  c.allotment = everything(c.model);
  c.model.renormalise = renormalise_if(model.renormalise);
  return c;
}

class Piped final : public OneRow {
 public:
  Piped(const ModelConfig& model, const ExpertStore& store) : Piped(resident(model, store), store) {}

  /// Where an expert lies.
  [[nodiscard]] const std::byte* expert(ExpertId id) const {
    return memory_.slot(pipe_.core().residency().find({id, Precision::full}));
  }

  void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) override {
    pipe_.begin_step({phase, {sequences.data(), static_cast<std::uint32_t>(sequences.size())}});
  }
  void plan(std::uint16_t layer, const Matrix& /*input*/, const GateScores& scores, const Times& /*took*/) override {
    const View<const float> v{scores.weight.data(), static_cast<std::uint32_t>(scores.weight.size())};
    plan_ = pipe_.plan({layer, v, v});
  }
  void run_resident(std::uint16_t /*layer*/, const Matrix& input) override {
    for (const Task& t : plan_.resident) compute(plan_.assignments[t.first], memory_.slot(t.slot), input);
    pipe_.done(plan_.resident);
  }
  void run(std::uint16_t /*layer*/, const Matrix& input, Matrix& out) override {
    for (const Task& t : plan_.arriving) {  // there are none
      pipe_.wait(t);
      compute(plan_.assignments[t.first], memory_.slot(t.slot), input);
      pipe_.done(t);
    }
    add_up(plan_.routes, input, out);
  }
  void finish(std::uint16_t layer) override { pipe_.finish(layer); }
  void end_sequence(std::uint32_t sequence) override { pipe_.end_sequence(sequence); }

  Pipe<HostThread>& pipe() { return pipe_; }

 private:
  Piped(const CoreConfig<ResidentStack>& c, const ExpertStore& store)
      : OneRow(store.layout(), c.model.top_k),
        memory_(c.allotment, [&store](Variant v) { return store.bytes(v); }),
        link_(memory_, {}),
        pipe_(c, link_) {
    pipe_.preload();
    link_.drain();
  }

  SlotMemory memory_;
  HostThread link_;
  Pipe<HostThread> pipe_;
  Plan plan_;
};

class Direct final : public OneRow {
 public:
  /// On the experts where `piped` has them.
  Direct(const ModelConfig& model, const ExpertStore& store, const Piped& piped)
      : OneRow(store.layout(), model.top_k), experts_(model.experts), routes_(model.top_k) {
    const ModelShape shape = model_shape(model, store, 1);
    Carver carve;
    router_.reserve(carve, shape);
    for (std::uint16_t l = 0; l < shape.layers; ++l) {
      for (std::uint16_t e = 0; e < shape.experts; ++e) blocks_.push_back(piped.expert({l, e}));
    }
  }

  void plan(std::uint16_t layer, const Matrix& /*input*/, const GateScores& scores, const Times& /*took*/) override {
    const View<const float> v{scores.weight.data(), static_cast<std::uint32_t>(scores.weight.size())};
    Out<Route> out{routes_.data(), static_cast<std::uint32_t>(routes_.size())};
    router_.route(Phase::decode, {layer, v, v}, {}, out);
  }
  void run_resident(std::uint16_t layer, const Matrix& input) override {
    for (std::uint32_t i = 0; i < routes_.size(); ++i) {
      compute(i, blocks_[std::size_t{layer} * experts_ + routes_[i].expert], input);
    }
  }
  void run(std::uint16_t /*layer*/, const Matrix& input, Matrix& out) override {
    add_up({routes_.data(), static_cast<std::uint32_t>(routes_.size())}, input, out);
  }

 private:
  std::uint32_t experts_;
  TopK router_;
  std::vector<Route> routes_;
  std::vector<const std::byte*> blocks_;  ///< [layers, experts]
};

/// The median of some numbers, and their first and third quartile.
struct Quartiles {
  double low = 0, median = 0, high = 0;

  explicit Quartiles(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    low = v[v.size() / 4];
    median = v[v.size() / 2];
    high = v[v.size() - 1 - v.size() / 4];
  }
};

enum Way : std::size_t { direct, direct_again, pipeline, whole_engine, ways };

struct Measured {
  std::array<std::vector<double>, ways> ns;  ///< a token's, by round

  [[nodiscard]] double median_ns(Way w) const { return Quartiles(ns[w]).median; }
  /// What a way adds to direct calls, in percent, round by round: noise lasts longer than a round, and so cancels out.
  [[nodiscard]] Quartiles added(Way w) const {
    std::vector<double> percent;
    for (std::size_t r = 0; r < ns[w].size(); ++r) percent.push_back((ns[w][r] / ns[direct][r] - 1) * 100);
    return Quartiles(percent);
  }
};

/// Runs all ways for `seconds`, in a new random order each round. `turn(runner, results)` runs `tokens`. Each turn runs twice,
/// and the second time counts, so that nobody gains by what the way before has left in the caches. Throws if results differ.
template <class Turn>
Measured in_turns(const std::array<ExpertRunner*, ways>& runners, double seconds, std::uint32_t tokens,
                  const Turn& turn) {
  Measured times;
  std::array<std::vector<Matrix>, ways> results;
  std::array<std::size_t, ways> order{direct, direct_again, pipeline, whole_engine};
  std::mt19937 random(1);
  const Nanoseconds start = now_ns();
  const auto goes_on = [&] { return static_cast<double>(now_ns() - start) < seconds * 1e9; };
  for (std::uint32_t round = 0; round < least_rounds || goes_on(); ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t w : order) {
      turn(*runners[w], results[w]);
      const Nanoseconds begin = now_ns();
      turn(*runners[w], results[w]);
      const Nanoseconds end = now_ns();
      times.ns[w].push_back(static_cast<double>(end - begin) / tokens);
    }
    for (std::size_t w = 1; w < ways; ++w) {
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        const Matrix &a = results[0][i], &b = results[w][i];
        const std::size_t bytes = static_cast<std::size_t>(a.size()) * sizeof(float);
        if (a.size() == b.size() && std::memcmp(a.data(), b.data(), bytes) == 0) continue;
        throw std::runtime_error("results differ from those of direct calls");
      }
    }
  }
  return times;
}

/// The three runners of a model, and direct calls twice.
struct Runners {
  Runners(const ModelConfig& model, const ExpertStore& store, GateBank& gates)
      : piped(model, store), direct_calls(model, store, piped), engine(make_runner(model, store, gates, options())) {}

  [[nodiscard]] std::array<ExpertRunner*, ways> all() { return {&direct_calls, &direct_calls, &piped, engine.get()}; }

  static RunnerOptions options() {
    RunnerOptions o;
    o.stack = "resident";
    o.max_rows = 1;
    o.make_device = make_cpu_device;
    return o;
  }

  Piped piped;
  Direct direct_calls;
  std::unique_ptr<ExpertRunner> engine;
};

/// One token's gate: scores [1, experts] and the input [1, hidden], by layer.
struct MadeUpToken {
  std::vector<Matrix> scores, inputs;
};

std::vector<MadeUpToken> made_up_tokens(const ModelConfig& m, std::uint32_t count) {
  std::mt19937 random(1);
  const auto drawn = [&](std::uint32_t columns, float scale) {
    Matrix row(1, columns);
    for (float& x : row.reshaped()) x = scale * (static_cast<float>(random() >> 8U) * 0x1p-23F - 1.0F);
    return row;
  };
  std::vector<MadeUpToken> tokens(count);
  for (MadeUpToken& t : tokens) {
    for (std::uint32_t l = 0; l < m.layers; ++l) {
      t.scores.push_back(drawn(m.experts, 3.0F));
      softmax_rows(t.scores.back());
      t.inputs.push_back(drawn(m.hidden, 1.0F));
    }
  }
  return tokens;
}

/// Nanoseconds that a layer's decisions take with nothing computed in between, so that their state stays in the caches.
template <class LinkT>
double decision_ns(Pipe<LinkT>& pipe, const std::vector<MadeUpToken>& tokens) {
  const std::uint32_t sequence[] = {0};
  std::vector<double> ns;
  for (std::uint32_t round = 0; round < 51; ++round) {
    std::size_t layers = 0;
    const Nanoseconds begin = now_ns();
    while (layers < 2000) {
      for (const MadeUpToken& t : tokens) {
        pipe.begin_step({Phase::decode, {sequence, 1}});
        for (std::uint16_t l = 0; l < t.scores.size(); ++l, ++layers) {
          const View<const float> v{t.scores[l].data(), static_cast<std::uint32_t>(t.scores[l].size())};
          const Plan plan = pipe.plan({l, v, v});
          pipe.done(plan.resident);
          pipe.finish(l);
        }
      }
    }
    ns.push_back(static_cast<double>(now_ns() - begin) / static_cast<double>(layers));
  }
  return Quartiles(ns).median;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}
std::string adds(const Quartiles& q) {
  return fmt::format("{:>28}", fmt::format("{:+.2f} ({:+.2f}..{:+.2f})", q.median, q.low, q.high));
}
std::string verdict(const Measured& t) {
  const double over = t.added(pipeline).median - aim_percent;
  return over < 0 ? "reached" : fmt::format("{:.2f} over", over);
}
Json to_json(const Quartiles& q) {
  return {{"median", q.median}, {"quarter", q.low}, {"three_quarters", q.high}};
}
Json to_json(const Measured& t) {
  Json json = {{"rounds", t.ns[direct].size()}};
  constexpr const char* names[] = {"direct", "direct_again", "pipeline", "engine"};
  for (std::size_t w = 0; w < ways; ++w) {
    json[names[w]] = {{"ns_a_token", to_json(Quartiles(t.ns[w]))}};
    if (w != direct) json[names[w]]["added_percent"] = to_json(t.added(static_cast<Way>(w)));
  }
  json["below_1_percent"] = t.added(pipeline).median < aim_percent;
  return json;
}

Json layers_alone(const Size& s, const Arguments& a) {
  const ExpertLayout layout{s.hidden, s.width, DType::bf16};
  const std::uint64_t layer_bytes = ModelShape::slot_bytes(layout.bytes()) * s.experts;
  const std::uint64_t fit = (std::uint64_t{a.memory_mib} << 20U) / layer_bytes;
  if (fit == 0) {
    throw InputError(fmt::format("--memory {}: expected at least {} MiB for a layer of {}", a.memory_mib,
                                 (layer_bytes >> 20U) + 1, s.name));
  }
  ModelConfig m;
  m.layers = static_cast<std::uint32_t>(std::min<std::uint64_t>(fit, s.layers));
  for (std::uint32_t l = 0; l < m.layers; ++l) m.moe_layers.push_back(l);
  m.hidden = s.hidden;
  m.expert_width = s.width;
  m.experts = s.experts;
  m.top_k = s.top_k;
  m.renormalise = true;
  const MadeUpExperts store(layout, s.experts);
  GateBank gates(0, 0, 0);
  Runners runners(m, store, gates);

  // A turn takes a millisecond: much longer than the clock's grain, shorter than most noise.
  const double weights = 3.0 * s.hidden * s.width * s.top_k * m.layers;
  const auto count = static_cast<std::uint32_t>(std::clamp(6e6 / weights, 1.0, 64.0));
  const std::vector<MadeUpToken> tokens = made_up_tokens(m, count);
  const std::vector<std::uint32_t> sequence{0};
  const Measured times = in_turns(runners.all(), a.seconds, count, [&](ExpertRunner& runner, std::vector<Matrix>& out) {
    out.resize(std::size_t{count} * m.layers);
    Matrix* next = out.data();
    for (const MadeUpToken& t : tokens) {
      runner.begin_step(Phase::decode, sequence);
      for (std::uint16_t l = 0; l < m.layers; ++l) {
        runner.plan(l, t.inputs[l], t.scores[l], {});
        runner.run_resident(l, t.inputs[l]);
        runner.run(l, t.inputs[l], *next++);
        runner.finish(l);
      }
    }
  });
  const double on_thread = decision_ns(runners.piped.pipe(), tokens);
  bench::InstantLink instant;
  Pipe<bench::InstantLink> without_link(resident(m, store), instant);
  without_link.preload();
  const double alone = decision_ns(without_link, tokens);
  const double token = times.median_ns(direct);
  const auto share = [&](double ns) { return ns * m.layers / token * 100; };
  print(fmt::format("{:<14}{:>3} of {:<2}{:>8}{:>10.1f}{}{}{}  {:<12}{:>8.0f}{:>10.2f}{:>8.3f}{:>9.0f}{:>7.3f}\n",
                    s.name, m.layers, s.layers, times.ns[direct].size(), token * 1e-3, adds(times.added(direct_again)),
                    adds(times.added(pipeline)), adds(times.added(whole_engine)), verdict(times), alone,
                    alone * m.layers * 1e-3, share(alone), on_thread, share(on_thread)));
  Json json = to_json(times);
  json["size"] = s.name;
  json["layers"] = m.layers;
  json["tokens_a_turn"] = count;
  json["decision_alone"] = {{"ns_a_layer", alone}, {"percent", share(alone)}};
  json["decision_and_link"] = {{"ns_a_layer", on_thread}, {"percent", share(on_thread)}};
  return json;
}

Json whole_model(const std::string& name, const Arguments& a) {
  CpuModel model(data_directory() / "models" / name);
  const ModelConfig& m = model.config();
  Runners runners(m, model.store(), model.gates());
  constexpr std::uint32_t count = 4;
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(count));
  const Measured times = in_turns(runners.all(), a.seconds, count, [&](ExpertRunner& runner, std::vector<Matrix>& out) {
    out.resize(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::vector<TokenRow> row{{0, static_cast<std::uint32_t>("ferry"[i]), i}};
      out[i] = model.forward(Phase::decode, row, caches, runner, 1);
    }
  });
  std::string line = fmt::format("{:<14}{:>8}", name, times.ns[direct].size());
  Json json = to_json(times);
  json["model"] = name;
  for (const Way w : {direct, pipeline, whole_engine}) line += fmt::format("{:>10.1f}", 1e9 / times.median_ns(w));
  for (const Way w : {direct_again, pipeline, whole_engine}) line += adds(times.added(w));
  print(line + "  " + verdict(times) + "\n");
  return json;
}

int run(const Arguments& a) {
  std::vector<Size> chosen;
  for (const std::string& name : a.sizes) chosen.push_back(size_of(name));
  for (const std::string& name : a.models) {
    if (name != "tiny-qwen-moe" && name != "tiny-mixtral") {
      throw InputError("--models: unknown model: " + name + " (expected tiny-qwen-moe or tiny-mixtral)");
    }
  }
  ferry::bench::JsonFile file(a.json);
  Json layers = Json::array(), models = Json::array();
  print(
      "Layers of experts alone, batch 1, bf16. Added to a token of direct calls, %: median (quartiles) of the "
      "rounds\n" +
      fmt::format("{:<14}{:>9}{:>8}{:>10}{:>28}{:>28}{:>28}  {:<12}{:>8}{:>10}{:>8}{:>9}{:>7}\n", "", "layers",
                  "rounds", "us/token", "direct again", "pipeline", "engine", "pipeline<1%", "decision", "us/token",
                  "%", "+ link", "%"));
  for (const Size& s : chosen) layers.push_back(layers_alone(s, a));
  print("\nWhole models, batch 1. Tokens a second, and added to a token of direct calls, %\n" +
        fmt::format("{:<14}{:>8}{:>10}{:>10}{:>10}{:>28}{:>28}{:>28}  {}\n", "", "rounds", "direct", "pipeline",
                    "engine", "direct again", "pipeline", "engine", "pipeline<1%"));
  for (const std::string& name : a.models) models.push_back(whole_model(name, a));
  file.commit(Json{{"layers_alone", layers}, {"whole_models", models}});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("What the pipeline adds to a token when every expert is on the device.", "perfect-fit");
  app.footer(
      "Direct calls, the pipeline and the engine's runner compute the same tokens in turns; their results must be "
      "equal.\n"
      "\"direct again\" is what noise adds. \"decisions alone\": a layer's plan, done and finish with nothing computed "
      "in\n"
      "between, without a link and on the link of a copy thread, and their share of a token of direct calls.");
  app.add_option("--sizes", a.sizes, "of layers alone (default: all)")->delimiter(',')->type_name("NAMES");
  app.add_option("--models", a.models, "bundled ones (default: both)")->delimiter(',')->type_name("NAMES");
  app.add_option("--memory", a.memory_mib, "for the layers of a size; twice that is used")
      ->type_name("MIB")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--seconds", a.seconds, "for each size and each model; at least 5 rounds are run")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  ferry::bench::add_json_option(app, a.json);
  return ferry::bench::parse_and_run(app, argc, argv, [&] { return run(a); });
}
