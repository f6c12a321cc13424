// Whole models that decode, with their experts in the host's memory.
//
// The layers are those of real models. Weights and routing are made up (docs/synthetic.md), so that copies have the
// proportions that papers report. What the model computes does not influence that, but it is checked: lossless stacks must
// give the resident model's logits, bit for bit.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "cuda/cuda.hpp"
#include "ferry/error.hpp"
#include "gpu_model.hpp"
#include "shared/progress.hpp"
#include "stacks/budget.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"
#include "support/threads.hpp"
#include "trace/synthetic.hpp"

namespace ferry::bench {

using namespace engine;

namespace {

/// Host memory that this process may still use, at most a container's limit.
std::uint64_t free_host_bytes() {
  std::uint64_t bytes = ~std::uint64_t{0};
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) bytes = std::strtoull(line.c_str() + 13, nullptr, 10) * 1024;
  }
  for (const char* limit : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::uint64_t most = 0;
    if (std::ifstream(limit) >> most) bytes = std::min(bytes, most);  // or the word "max"
  }
  return bytes;
}

/// How long all threads together take to touch a GiB of fresh memory.
double seconds_a_gib() {
  constexpr std::uint64_t piece = std::uint64_t{64} << 20U;
  const Pages pages(16 * piece);
  const Nanoseconds begin = now_ns();
  on_threads(all_threads(), 16, [&](std::size_t i) { std::memset(pages.data() + i * piece, 1, piece); });
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

/// Passes everything on to a runner except the gates' scores: those come from a trace, with the predicted ones and those of
/// partial hidden states. Steps take the trace's tokens one after the other.
class MadeUpRouting final : public PassingRunner {
 public:
  MadeUpRouting(ExpertRunner& runner, const Trace& trace) : PassingRunner(runner), trace_(trace) {}

  void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) override {
    first_ = next_;
    rows_ = static_cast<std::uint32_t>(sequences.size());
    next_ += rows_;
    runner_.begin_step(phase, sequences);
  }
  void predicted(View<const Scores> scores) override {
    std::uint32_t count = 0;
    for (const Scores& s : scores) {
      const std::uint32_t distance = count + 1;
      if (distance > trace_.ahead) break;
      Matrix& rows = ahead_[count];
      made_up(rows, [&](std::uint32_t token) { return trace_.predicted_of(token, s.layer - distance, distance); });
      const View<const float> view{rows.data(), static_cast<std::uint32_t>(rows.size())};
      predicted_[count++] = {s.layer, view, view};
    }
    runner_.predicted({predicted_.data(), count});
  }
  void plan(std::uint16_t layer, const Matrix& input, const GateScores& /*scores*/, const Times& took) override {
    made_up(scores_, [&](std::uint32_t token) { return trace_.scores_of(token, layer); });
    runner_.plan(layer, input, scores_, took);
  }
  void look_ahead(std::uint16_t layer, const GateScores& /*scores*/) override {
    made_up(partial_, [&](std::uint32_t token) { return trace_.partial_of(token, layer - 1U); });
    runner_.look_ahead(layer, partial_);
  }

 private:
  template <class Row>
  void made_up(Matrix& to, const Row& row) const {
    to.resize(rows_, trace_.model.experts);
    for (std::uint32_t r = 0; r < rows_; ++r) {
      std::copy_n(row(first_ + r), trace_.model.experts, to.row(static_cast<Eigen::Index>(r)).data());
    }
  }

  const Trace& trace_;
  std::uint32_t first_ = 0, next_ = 0, rows_ = 0;
  Matrix scores_, partial_;
  std::array<Matrix, most_ahead> ahead_;
  std::array<Scores, most_ahead> predicted_;
};

/// One run of a stack, as measured after its warm-up.
struct Run {
  std::vector<double> tpot_s;
  double prefill_s = 0, stall_s = 0, host_wait_s = 0;  ///< the last two: a token
  Outcomes counted;                                    ///< of all measured tokens
  Matrix logits;                                       ///< the last token's
};

struct StackResult {
  std::string name, refused;
  Samples tpot_s;  ///< a round's median
  std::vector<Run> runs;
  bool lossless = false, same = true;

  [[nodiscard]] double mean(double Run::*value) const {
    double sum = 0;
    for (const Run& r : runs) sum += r.*value;
    return sum / static_cast<double>(runs.size());
  }
};

class DecodeBench {
 public:
  DecodeBench(const Gpu& gpu, const GpuArguments& a, const DecodeShape& shape);
  Json run(bool& wrong);

 private:
  [[nodiscard]] std::uint32_t choose_layers() const;
  void load();
  Run run_once(const std::string& stack);
  [[nodiscard]] const StackResult& of(const std::string& stack) const {
    return *std::find_if(results_.begin(), results_.end(), [&](const StackResult& r) { return r.name == stack; });
  }
  Json print_ceilings() const;
  Json print_table() const;

  static constexpr std::uint64_t rounds = 2;
  const Gpu& gpu_;
  const GpuArguments& a_;
  const DecodeShape shape_;
  std::uint32_t prompt_, warm_up_;
  std::uint32_t layers_ = 0;
  PrecisionSet precisions_{Precision::full};
  std::vector<StackResult> results_;
  std::unique_ptr<TraceFile> trace_;
  std::unique_ptr<Model> model_;
  bool pinned_ = false;
  Samples read_bytes_per_s_, copied_bytes_per_s_;  ///< by round
};

DecodeBench::DecodeBench(const Gpu& gpu, const GpuArguments& a, const DecodeShape& shape)
    : gpu_(gpu), a_(a), shape_(shape), prompt_(a.quick ? 4 : 16), warm_up_(a.quick ? 1 : 8) {
  std::vector<std::string> names = {"resident", "on-demand",         "lru",         "activation-path", "fate",
                                    "hobbit",   "importance-driven", "static-host", "ferry",           "ferry-device"};
  for (const std::string& s : a.stacks) {
    if (std::find(names.begin(), names.end(), s) == names.end()) names.push_back(s);
  }
  for (const std::string& name : names) {
    const StackInfo& info = find_stack(name);
    precisions_ = precisions_ | info.precisions;
    results_.emplace_back();
    results_.back().name = name;
    results_.back().lossless = info.lossless && (info.precisions.bits & ~PrecisionSet(Precision::full).bits) == 0;
  }
  layers_ = choose_layers();
}

std::uint32_t DecodeBench::choose_layers() const {
  const ExpertLayout layout = shape_.layout();
  std::uint64_t on_host = 0;
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    if ((precisions_.bits >> p & 1U) != 0) on_host += shape_.experts() * layout.bytes(static_cast<Precision>(p));
  }
  auto on_device = [&](std::uint32_t layers) {
    return layers * shape_.experts() * layout.bytes() + shape_.dense_bytes(layers);
  };
  auto host = static_cast<std::uint64_t>(0.6 * static_cast<double>(free_host_bytes()));
  const auto device = static_cast<std::uint64_t>(0.8 * static_cast<double>(Gpu::free_bytes()));
  auto fits = [&](std::uint32_t layers) { return layers * on_host <= host && on_device(layers) <= device; };
  if (a_.layers) {
    if (fits(*a_.layers)) return *a_.layers;
    throw InputError(
        fmt::format("--layers {}: {} needs {} of host memory and {} of the GPU's for them; {} and {} are 60 and 80% of "
                    "what is free",
                    *a_.layers, shape_.name, size_text(*a_.layers * on_host), size_text(on_device(*a_.layers)),
                    size_text(host), size_text(device)));
  }
  std::uint32_t layers = shape_.layers();
  if (!a_.quick) {
    // Fresh memory can be slow to get, above all in virtual machines, so getting it may take 40 s. Copies may take 120 s, even
    // if no stack has a hit.
    host = std::min(host, static_cast<std::uint64_t>(40 / seconds_a_gib() * 0x1p30));
    const std::uint64_t uses =
        shape_.experts() + std::uint64_t{warm_up_ + a_.tokens} * shape_.number("num_experts_per_tok");
    const auto bytes = static_cast<double>(rounds * results_.size() * uses * layout.bytes());
    const double layer_s = bytes / PlainCopies(gpu_, std::uint64_t{1} << 29U, layout.bytes()).bytes_per_s();
    layers = std::clamp(static_cast<std::uint32_t>(120 / layer_s), 1U, layers);
  }
  while (layers > 1 && !fits(layers)) --layers;
  if (fits(layers)) return layers;
  throw InputError(fmt::format(
      "not one layer of {} fits: it needs {} of host memory and {} of the GPU's, of which {} and {} may be used",
      shape_.name, size_text(on_host), size_text(on_device(1)), size_text(host), size_text(device)));
}

void DecodeBench::load() {
  ModelFacts facts = read_shape(shape_.name);
  facts.model.layers = static_cast<std::uint16_t>(layers_);
  SyntheticOptions o;
  o.sequences = 1;
  o.prompt = prompt_;
  o.tokens = warm_up_ + a_.tokens;
  o.ahead = most_ahead;
  o.shallow = static_cast<std::uint16_t>(std::min(4U, layers_ - 1));
  trace_ = synthesize(facts, o);

  model_ = make_cuda_model(make_files(shape_, layers_));
  model_->add_precisions(precisions_);
  pinned_ = true;
  for (const auto& [at, bytes] : model_->store().fixed_memory()) {
    cudaPointerAttributes attributes{};
    pinned_ =
        pinned_ && cudaPointerGetAttributes(&attributes, at) == cudaSuccess && attributes.type == cudaMemoryTypeHost;
  }
  if (!pinned_) say_progress("the system did not page-lock all experts: copies are slower than they could be");
}

Run DecodeBench::run_once(const std::string& stack) {
  RunnerOptions o;
  o.stack = stack;
  o.max_rows = prompt_;
  o.budget_bytes = parse_budget(a_.budget, model_shape(model_->config(), model_->store(), prompt_).all_bytes());
  const auto runner = make_runner(*model_, o);
  MadeUpRouting routed(*runner, trace_->trace);
  const std::uint32_t end = prompt_ + warm_up_ + a_.tokens;
  std::vector<KvCache> caches;
  caches.push_back(model_->make_cache(end));
  auto row = [](std::uint32_t position) { return TokenRow{0, position * 7 % tokens_used, position}; };
  std::vector<TokenRow> rows;
  for (std::uint32_t i = 0; i < prompt_; ++i) rows.push_back(row(i));
  Run r;
  auto step = [&](Phase phase) {
    const Nanoseconds begin = now_ns();
    try {
      r.logits = model_->forward(phase, rows, caches, routed, 1);
    } catch (...) {
      routed.abandon();
      throw;
    }
    return static_cast<double>(now_ns() - begin) * 1e-9;
  };
  r.prefill_s = step(Phase::prefill);
  Outcomes before;
  PhaseTimes times_before;
  const auto decode = static_cast<unsigned>(Phase::decode);
  for (std::uint32_t position = prompt_; position < end; ++position) {
    if (position == prompt_ + warm_up_) {
      before = runner->statistics().counters.of(Phase::decode);
      times_before = runner->times[decode];
    }
    rows = {row(position)};
    const double s = step(Phase::decode);
    if (position >= prompt_ + warm_up_) r.tpot_s.push_back(s);
  }
  if (!r.logits.allFinite()) throw std::runtime_error(stack + " computes values that are not finite");
  const Outcomes after = runner->statistics().counters.of(Phase::decode);
  r.counted.requests = after.requests - before.requests;
  r.counted.hits = after.hits - before.hits;
  r.counted.late_hits = after.late_hits - before.late_hits;
  r.counted.host_computed = after.host_computed - before.host_computed;
  r.counted.bytes = after.bytes - before.bytes;
  auto a_token = [&](Nanoseconds PhaseTimes::*value) {
    return static_cast<double>(runner->times[decode].*value - times_before.*value) * 1e-9 / a_.tokens;
  };
  r.stall_s = a_token(&PhaseTimes::stall);
  r.host_wait_s = a_token(&PhaseTimes::host_wait);
  routed.end_sequence(0);
  return r;
}

Json DecodeBench::run(bool& wrong) {
  const Nanoseconds set_up = now_ns();
  load();
  say_progress(fmt::format("decode, {}: {} layers, made in {:.0f} s", shape_.name, layers_,
                           static_cast<double>(now_ns() - set_up) * 1e-9));
  const std::uint64_t expert_bytes = model_->store().layout().bytes();
  const std::uint64_t several = a_.quick ? 4 * expert_bytes : std::uint64_t{1} << 30U;
  const auto memory = model_->store().fixed_memory();
  PlainCopies copies =
      pinned_ ? PlainCopies(gpu_, memory, several, expert_bytes) : PlainCopies(gpu_, several, expert_bytes);
  static_cast<void>(copies.bytes_per_s());
  const Moment begin = now();
  std::size_t done = 0;
  const std::size_t all = rounds * results_.size();
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Samples read, copied;
    for (StackResult& result : results_) {
      if (result.refused.empty()) {
        read.add(gpu_.read_bytes_per_s());
        copied.add(copies.bytes_per_s());
        try {
          result.runs.push_back(run_once(result.name));
        } catch (const ConfigError& e) {  // the others go on
          if (result.name == "resident" || result.name == "on-demand") throw;
          result.refused = e.what();
        }
      }
      ++done;
      say_progress(fmt::format("decode, {}: {}, {}", shape_.name, result.name, how_far(begin, done, all)));
      if (!result.refused.empty()) continue;
      result.tpot_s.add(Samples{result.runs.back().tpot_s}.median());
      if (!result.lossless || result.runs.back().counted.host_computed > 0) continue;
      result.same = result.same && result.runs.back().logits == of("resident").runs.front().logits;
      wrong = wrong || !result.same;
    }
    read_bytes_per_s_.add(read.median());
    copied_bytes_per_s_.add(copied.median());
  }
  const ModelConfig& c = model_->config();
  print_heading(fmt::format("decode: {}, {} of {} layers, {} for experts, one sequence, ms a token; {}", shape_.name,
                            layers_, shape_.layers(), a_.budget,
                            pinned_ ? "experts page-locked on the host" : "experts NOT all page-locked on the host"));
  Json json = {{"shape", shape_.name},
               {"layers", layers_},
               {"budget", a_.budget},
               {"pinned", pinned_},
               {"expert_bytes", expert_bytes},
               {"experts", c.experts},
               {"top_k", c.top_k},
               {"dense_bytes", model_->dense_bytes()},
               {"prompt", prompt_},
               {"warm_up", warm_up_},
               {"tokens", a_.tokens},
               {"read_bytes_per_s", to_json(read_bytes_per_s_)},
               {"copied_bytes_per_s", to_json(copied_bytes_per_s_)}};
  json["ceilings"] = print_ceilings();
  json["stacks"] = print_table();
  return json;
}

Json DecodeBench::print_ceilings() const {
  const ModelConfig& c = model_->config();
  const std::uint64_t row_bytes = std::uint64_t{2} * c.hidden;
  // Keys and values in float32, of all positions up to the middle token.
  const double positions = prompt_ + warm_up_ + (a_.tokens + 1) / 2.0;
  const double kv_bytes = positions * 2.0 * c.layers * c.kv_heads * c.head_dim * sizeof(float);
  const auto expert_bytes = static_cast<double>(model_->store().layout().bytes());
  const double bytes = static_cast<double>(model_->dense_bytes() - c.vocabulary * row_bytes + row_bytes) + kv_bytes +
                       double{1} * c.layers * c.top_k * expert_bytes;
  const StackResult &resident = of("resident"), &on_demand = of("on-demand");
  Comparison a{"resident", "ms", 1e3, resident.tpot_s, {}, "ms to read its bytes", {}, false};
  if (shape_.experts() == 8) a.goal = 1.3;  // Mixtral's: of smaller experts, launches and the host's answer are more
  // A perfect schedule needs less than the sum, since experts can compute under copies, and more than the copies alone.
  Comparison sum{"on-demand", "ms", 1e3, on_demand.tpot_s, {}, "ms of copies + resident", 1.1, false};
  Comparison alone{"on-demand", "ms", 1e3, on_demand.tpot_s, {}, "ms of copies alone", {}, false};
  for (std::size_t i = 0; i < resident.runs.size(); ++i) {
    const double copied = static_cast<double>(on_demand.runs[i].counted.bytes) / a_.tokens / copied_bytes_per_s_.all[i];
    a.ceiling.add(bytes / read_bytes_per_s_.all[i]);
    sum.ceiling.add(copied + resident.tpot_s.all[i]);
    alone.ceiling.add(copied);
  }
  Json json = Json::array();
  for (const Comparison* line : {&a, &sum, &alone}) json.push_back(print(*line));
  json[0]["bytes_a_token"] = bytes;
  return json;
}

Json DecodeBench::print_table() const {
  struct Claim {
    const char *stack, *claim;
  };
  // What the papers claim for their own machines and models.
  constexpr Claim claims[] = {
      {"fate", "up to 4.1 x on-demand, 2.2 x activation-path"},
      {"hobbit", "3.92 x moe-infinity on an RTX 4090"},
      {"importance-driven", "at best TPOT less 34% (batch 1), 48% (3) than the best baseline"},
  };
  fmt::print("\n{:<20}{:>16}{:>8}{:>8}{:>11}{:>9}{:>8}{:>7} {:>7} {:>7}  {:<6}{}\n", "", "TPOT ms (best)", "hits %",
             "late %", "MB a token", "stall ms", "host ms", "/od", "/lru", "/eap", "bits", "the paper");
  Json json = Json::array();
  for (const StackResult& r : results_) {
    if (!r.refused.empty()) {
      fmt::print("{:<20}not run: {}\n", r.name, r.refused);
      json.push_back({{"stack", r.name}, {"refused", r.refused}});
      continue;
    }
    Outcomes o;
    Json runs = Json::array();
    for (const Run& run : r.runs) {
      o.requests += run.counted.requests;
      o.hits += run.counted.hits;
      o.late_hits += run.counted.late_hits;
      o.host_computed += run.counted.host_computed;
      o.bytes += run.counted.bytes;
      runs.push_back({{"tpot_s", run.tpot_s},
                      {"prefill_s", run.prefill_s},
                      {"stall_s", run.stall_s},
                      {"host_wait_s", run.host_wait_s},
                      {"requests", run.counted.requests},
                      {"hits", run.counted.hits},
                      {"late_hits", run.counted.late_hits},
                      {"host_computed", run.counted.host_computed},
                      {"bytes", run.counted.bytes}});
    }
    const auto requests = static_cast<double>(o.requests);
    const double late = static_cast<double>(o.late_hits) / requests;
    const double bytes = static_cast<double>(o.bytes) / a_.tokens / static_cast<double>(r.runs.size());
    const double ms = r.tpot_s.median() * 1e3;
    auto faster = [&](const char* than) {
      const StackResult& other = of(than);
      return other.refused.empty() ? other.tpot_s.median() * 1e3 / ms : 0.0;
    };
    const char* claim = "";
    for (const Claim& c : claims) claim = r.name == c.stack ? c.claim : claim;
    const bool judged = r.lossless && o.host_computed == 0;
    const char* bits = !r.lossless ? "lossy" : !judged ? "host" : r.same ? "same" : "WRONG";
    fmt::print("{:<20}{:>16}{:>8.1f}{:>8.1f}{:>11.2f}{:>9.3f}{:>8.3f}{:>7.2f} {:>7.2f} {:>7.2f}  {:<6}{}\n", r.name,
               fmt::format("{:.3f} ({:.3f})", ms, r.tpot_s.least() * 1e3), 100 * o.hit_rate(), 100 * late, bytes * 1e-6,
               r.mean(&Run::stall_s) * 1e3, r.mean(&Run::host_wait_s) * 1e3, faster("on-demand"), faster("lru"),
               faster("activation-path"), bits, claim);
    json.push_back({{"stack", r.name},
                    {"tpot_s", to_json(r.tpot_s)},
                    {"hit_rate", o.hit_rate()},
                    {"late_share", late},
                    {"bytes_a_token", bytes},
                    {"stall_s", r.mean(&Run::stall_s)},
                    {"host_wait_s", r.mean(&Run::host_wait_s)},
                    {"over_on_demand", faster("on-demand")},
                    {"over_lru", faster("lru")},
                    {"over_activation_path", faster("activation-path")},
                    {"claimed", claim},
                    {"runs", runs}});
    if (judged) json.back()["same_as_resident"] = r.same;
  }
  fmt::print(
      "/od, /lru, /eap: how many times as fast as on-demand, lru and activation-path. bits: of the last logits, beside "
      "resident.\n");
  std::fflush(stdout);
  return json;
}

}  // namespace

Json gpu_decode(const Gpu& gpu, const GpuArguments& a, bool& wrong) {
  Json json = Json::array();
  for (const DecodeShape& shape : {mixtral_shape(a.quick), qwen_shape(a.quick)}) {
    if (a.shape == "both" || a.shape == shape.name) json.push_back(DecodeBench(gpu, a, shape).run(wrong));
  }
  return json;
}

}  // namespace ferry::bench
