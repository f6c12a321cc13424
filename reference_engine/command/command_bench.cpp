// ferry bench: how fast prompts are read and tokens come, by stack and budget.
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <random>

#include "command/command.hpp"
#include "command/model_flags.hpp"
#include "ferry/macros.hpp"
#include "inference/generate.hpp"
#include "inference/model.hpp"
#include "stacks/stack_options.hpp"
#include "support/bundled_files.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/progress.hpp"
#include "support/text_file.hpp"

namespace ferry::engine {
namespace {

struct BenchArguments {
  StackFlags flags;
  ModelFlags model;
  std::vector<std::string> stacks = {"ferry"}, budgets = {"25%"};
  std::vector<std::uint32_t> prompt_tokens = {512}, generated = {128};
  std::uint32_t context_tokens = 32, batch = 1, repeat = 5, prefill_chunk = 128;
  std::uint64_t seed = 0;
  std::string text, json;
};

/// What one row of results times: a prompt, or the tokens generated after it.
struct Test {
  std::string name;
  std::uint32_t prompt = 0, generated = 0;  ///< tokens; without any generated, the prompt is timed
};

struct BenchRow {
  std::string stack, budget;
  std::uint64_t budget_bytes = 0, arena_bytes = 0;
  Test test;
  std::vector<double> tokens_per_s;  ///< one a repetition
  Outcomes outcomes;                 ///< of the phase that is timed, in all repetitions
  double stall_shares = 0;           ///< of the time, their sum
  [[nodiscard]] double stall_share() const { return stall_shares / static_cast<double>(tokens_per_s.size()); }
  [[nodiscard]] double mean() const {
    double sum = 0;
    for (const double t : tokens_per_s) sum += t;
    return sum / static_cast<double>(tokens_per_s.size());
  }
  [[nodiscard]] double deviation() const {
    double sum = 0;
    for (const double t : tokens_per_s) sum += (t - mean()) * (t - mean());
    return tokens_per_s.size() < 2 ? 0 : std::sqrt(sum / static_cast<double>(tokens_per_s.size() - 1));
  }
  [[nodiscard]] double tokens() const {
    return static_cast<double>(tokens_per_s.size()) * (test.generated > 0 ? test.generated : test.prompt);
  }
};

class Bench {
 public:
  explicit Bench(const BenchArguments& a) : a_(a) {
    check_outputs({a.json}, a.model.inputs());
    if (!a.json.empty()) json_.emplace(a.json, report_json);
    for (const std::uint32_t n : a.prompt_tokens) {
      if (n > 0) tests_.push_back({fmt::format("pp{}", n), n, 0});
    }
    for (const std::uint32_t n : a.generated) {
      if (n > 0) tests_.push_back({fmt::format("tg{}", n), a.context_tokens, n});
    }
    if (tests_.empty()) throw InputError("--prompt-tokens and --generate: expected a number above 0 in one of them");
    std::vector<StackOptions> wanted(a.stacks.size());
    for (std::size_t i = 0; i < a.stacks.size(); ++i) a.flags.set(wanted[i], a.stacks[i]);
    model_ = a.model.open(wanted, {a.budgets, ""});
    shape_ = model_shape(model_->config(), model_->store(), std::max(a.prefill_chunk, a.batch));
    for (const Test& t : tests_) {
      if (t.prompt + t.generated > model_->config().context) {
        throw InputError(fmt::format("{}: has {} tokens, the model's context is {}", t.name, t.prompt + t.generated,
                                     model_->config().context));
      }
    }
    make_tokens();
    for (const std::string& b : a.budgets) {  // refused before minutes are spent on the others
      for (const std::string& s : a.stacks) static_cast<void>(runner(s, parse_budget(b, shape_.all_bytes()), false));
    }
  }

  int run() {
    const std::uint64_t all = a_.stacks.size() * a_.budgets.size() * tests_.size() * (a_.repeat + 1ULL);
    std::optional<ProgressLine> line("runs");
    std::uint64_t done = 0;
    for (const std::string& budget : a_.budgets) {
      for (const std::string& stack : a_.stacks) {
        if (stop) continue;
        const std::uint64_t bytes = parse_budget(budget, shape_.all_bytes());
        const auto runner = this->runner(stack, bytes, true);
        for (const Test& test : tests_) {
          BenchRow m{a_.flags.named(stack).label, budget, bytes, runner->statistics().arena_bytes, test, {}, {}, 0};
          for (std::uint32_t r = 0; r <= a_.repeat && !stop; ++r) {
            time(*runner, m, r > 0);  // the first warms up the processor's and the stack's caches
            line->show(++done, all);
          }
          if (!m.tokens_per_s.empty()) rows_.push_back(std::move(m));
        }
      }
    }
    line.reset();
    if (rows_.empty()) throw Interrupted();  // an existing file keeps its results
    print(table());
    if (stop) print("interrupted: these are the runs that were done\n");
    if (json_) json_->commit(json_text(as_json(), 2) + "\n");
    return stop ? 128 + stopped_by : 0;
  }

 private:
  std::unique_ptr<ExpertRunner> runner(const std::string& stack, std::uint64_t budget, bool preload) const {
    RunnerOptions o;
    a_.flags.set(o, stack);
    o.budget_bytes = budget;
    o.max_rows = shape_.max_rows;
    o.linger_ns = usual_linger_ns();
    o.preload = preload;
    return make_runner(*model_, o);
  }

  /// As many tokens as the longest prompts of a batch need, from the user's text or drawn at random.
  void make_tokens() {
    std::uint32_t longest = 0;
    for (const Test& t : tests_) longest = std::max(longest, t.prompt);
    const std::uint64_t needed = std::uint64_t{longest} * a_.batch;
    if (!a_.text.empty()) {
      tokens_ = tokenize(*model_, read_text("--text", a_.text));
      if (tokens_.size() < needed) {
        throw InputError(fmt::format("--text {}: has {} tokens, the prompts need {}", a_.text, tokens_.size(), needed));
      }
      check_tokens(model_->config(), {tokens_});
      return;
    }
    std::mt19937_64 random(a_.seed);
    for (std::uint64_t i = 0; i < needed; ++i) {
      tokens_.push_back(static_cast<std::uint32_t>(random() % model_->config().vocabulary));
    }
  }

  void time(ExpertRunner& runner, BenchRow& m, bool counts) const {
    GenerateOptions g;
    g.batch = a_.batch;
    g.prefill_chunk = a_.prefill_chunk;
    g.max_new_tokens = m.test.generated + 1;  // the prompt gives the first
    g.ignore_end = true;
    g.stop = &stop;
    for (std::uint32_t row = 0; row < a_.batch; ++row) {
      const auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(std::uint64_t{row} * m.test.prompt);
      g.token_prompts.emplace_back(begin, begin + m.test.prompt);
    }
    const Phase phase = m.test.generated > 0 ? Phase::decode : Phase::prefill;
    const Outcomes before = runner.statistics().counters.of(phase);
    const Nanoseconds stalled = runner.times[static_cast<unsigned>(phase)].stall;
    const Generated made = generate(*model_, runner, g);
    runner.uses.clear();  // kept for bounds, which nobody asks for here
    if (!counts || made.interrupted) return;
    const double s = phase == Phase::decode ? made.decode_s : made.prefill_s;
    const double tokens = static_cast<double>(phase == Phase::decode ? made.decode_tokens : made.prefill_tokens);
    const auto stall_s = static_cast<double>(runner.times[static_cast<unsigned>(phase)].stall - stalled) * 1e-9;
    m.tokens_per_s.push_back(tokens / s);
    m.stall_shares += stall_s / s;
    const Outcomes after = runner.statistics().counters.of(phase);
    for (const auto member : {&Outcomes::requests, &Outcomes::hits, &Outcomes::late_hits, &Outcomes::misses,
                              &Outcomes::substituted, &Outcomes::skipped, &Outcomes::host_computed, &Outcomes::bytes}) {
      m.outcomes.*member += after.*member - before.*member;
    }
  }

  static double share(std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }

  [[nodiscard]] std::string table() const {
    std::string text = fmt::format("{} on {}, {} threads, batch {}\n\n", model_name(a_.model.model), model_->device(),
                                   model_->workers().threads(), a_.batch);
    text += fmt::format("| {:<20} | {:>8} | {:>8} | {:>19} | {:>6} | {:>8} | {:>7} |\n", "stack", "budget", "test",
                        "tokens/s", "hits", "MB/token", "stalled");
    text += fmt::format("| {:-<20} | {:->7}: | {:->7}: | {:->18}: | {:->5}: | {:->7}: | {:->6}: |\n", "", "", "", "",
                        "", "", "");
    for (const BenchRow& m : rows_) {
      text += fmt::format(
          "| {:<20} | {:>8} | {:>8} | {:>19} | {:>5.1f}% | {:>8.3f} | {:>6.1f}% |\n", m.stack, m.budget, m.test.name,
          fmt::format("{:.2f} ± {:.2f}", m.mean(), m.deviation()), 100 * share(m.outcomes.hits, m.outcomes.requests),
          static_cast<double>(m.outcomes.bytes) * 1e-6 / (m.tokens() * a_.batch), 100 * m.stall_share());
    }
    return text;
  }

  [[nodiscard]] Json as_json() const {
    Json rows = Json::array();
    for (const BenchRow& m : rows_) {
      const Outcomes& o = m.outcomes;
      rows.push_back({{"model", model_name(a_.model.model)},
                      {"device", model_->device()},
                      {"threads", model_->workers().threads()},
                      {"stack", m.stack},
                      {"parameters", a_.flags.taken_by(m.stack)},
                      {"budget", m.budget},
                      {"budget_bytes", m.budget_bytes},
                      {"arena_bytes", m.arena_bytes},
                      {"all_expert_bytes", shape_.all_bytes()},
                      {"test", m.test.name},
                      {"prompt_tokens", m.test.prompt},
                      {"generated_tokens", m.test.generated},
                      {"batch", a_.batch},
                      {"prefill_chunk", a_.prefill_chunk},
                      {"text", a_.text.empty() ? fmt::format("drawn with seed {}", a_.seed) : a_.text},
                      {"tokens_per_s", m.tokens_per_s},
                      {"mean_tokens_per_s", m.mean()},
                      {"deviation_tokens_per_s", m.deviation()},
                      {"requests", o.requests},
                      {"hits", o.hits},
                      {"late_hits", o.late_hits},
                      {"misses", o.misses},
                      {"substituted", o.substituted},
                      {"skipped", o.skipped},
                      {"host_computed", o.host_computed},
                      {"bytes", o.bytes},
                      {"stall_share", m.stall_share()},
                      {"ferry", FERRY_VERSION},
                      {"command_line", command_line}});
    }
    return rows;
  }

  const BenchArguments& a_;
  std::optional<OutputFile> json_;
  std::unique_ptr<Model> model_;
  ModelShape shape_;
  std::vector<Test> tests_;
  std::vector<std::uint32_t> tokens_;
  std::vector<BenchRow> rows_;
};

}  // namespace

void add_bench_command(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<BenchArguments>();
  CLI::App* c = app.add_subcommand("bench", "time prompts and generation, by stack and budget");
  a->model.add_model(c);
  a->model.add_experts(c);
  a->model.add_device(c);
  const auto list = [&](const char* name, auto& value, const char* type, const char* help) {
    return c->add_option(name, value, help)->type_name(type)->delimiter(',')->capture_default_str();
  };
  list("--stacks", a->stacks, "NAMES|FILES", "comma-separated, from the list below, or files")
      ->transform(without_spaces);
  list("--budgets", a->budgets, "BUDGETS", "device memory for experts: shares (25%) or sizes (64MiB)")
      ->transform(without_spaces);
  list("--prompt-tokens", a->prompt_tokens, "N,...", "lengths of prompts to time; 0: none")
      ->check(in_range(0U, 1U << 24U));
  list("--generate", a->generated, "N,...", "numbers of tokens to generate and time; 0: none")
      ->check(in_range(0U, 1U << 24U));
  const auto count = [&](const char* name, std::uint32_t& value, const char* help, std::uint32_t most) {
    add_count(c, name, value, 1U, most, help);
  };
  count("--context-tokens", a->context_tokens, "tokens before those that are generated", 1U << 24U);
  count("--batch", a->batch, "texts at a time", 256);
  count("--repeat", a->repeat, "timed runs of each, behind one to warm up", 1000);
  count("--prefill-chunk", a->prefill_chunk, "tokens of a prompt in one step", 65536);
  add_named(c, "--text", a->text, "FILE",
            "take prompts from this text: what experts are asked for depends on it (default: tokens drawn at random)");
  c->add_option("--seed", a->seed, "of the draw")->check(whole_number)->capture_default_str()->excludes("--text");
  add_named(c, "--json", a->json, "FILE", "write all numbers to this file; - for standard output");
  a->flags.add_parameters(c);
  a->flags.add_defaults(c);
  c->footer(stacks_help());
  c->callback([a, &chosen] {
    chosen = [a] {
      a->flags.use_model(model_name(a->model.model));
      a->flags.check(a->stacks);  // before the model is read
      return Bench(*a).run();
    };
  });
}

}  // namespace ferry::engine
