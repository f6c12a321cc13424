// ferry trace: recorded routing.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "command/command.hpp"
#include "command/model_flags.hpp"
#include "command/token_ids.hpp"
#include "profiles/machine.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/progress.hpp"
#include "support/terminal.hpp"
#include "support/text_file.hpp"
#include "trace/record.hpp"
#include "trace/routing_statistics.hpp"
#include "trace/synthetic.hpp"
#include "trace/trace_file.hpp"

namespace ferry::engine {
namespace {

struct TraceArguments {
  StackFlags flags;
  ModelFlags model;
  std::string text, token_ids, out, stack = "resident", machine = "rtx3090-pcie3", in, shape;
  RecordOptions record;
  SyntheticOptions synthetic;
  std::vector<double> recall, top_1;
  std::optional<std::uint32_t> prompt;
  bool no_partial = false;
};

std::string layers(std::uint32_t count) {
  return fmt::format("{} layer{}", count, count == 1 ? "" : "s");
}

int record(const TraceArguments& a) {
  a.flags.check({a.stack});
  std::vector<std::string> inputs = stack_files({a.stack});
  if (a.text.empty() == a.token_ids.empty()) {
    throw InputError("trace record reads a text: expected --text FILE, or --token-ids FILE for what is tokens already");
  }
  const std::string source = a.text.empty() ? a.token_ids : a.text;
  inputs.push_back(source);
  for (const std::string& file : a.model.inputs()) inputs.push_back(file);
  check_outputs({a.out}, inputs);
  OutputFile out(a.out, trace_kind);
  const std::string text = a.text.empty() ? "" : read_text("--text", a.text);
  if (text.empty() && !a.text.empty()) throw InputError(fmt::format("--text {}: the file is empty", a.text));
  const auto tokens = a.text.empty() ? read_token_ids(a.token_ids) : std::vector<std::vector<std::uint32_t>>{};
  RunnerOptions o;
  a.flags.set(o, a.stack);
  const std::unique_ptr<Model> opened = a.model.open({o}, {{a.flags.budget}, ""});
  Model& model = *opened;
  o.max_rows = std::max<std::uint32_t>(a.record.window, 1);
  const ModelShape shape = model_shape(model.config(), model.store(), o.max_rows);
  o.budget_bytes = parse_budget(a.flags.budget, shape.all_bytes());
  // Partial hidden states depend on when copies land: the virtual clock makes that repeatable.
  const Machine machine = read_machine(a.machine);
  const ModelFacts reference = read_shape(machine.reference_model());
  o.virtual_costs = as_if(machine.costs(reference.work, machine.stated ? CostSource::stated : CostSource::effective),
                          reference, shape);
  const auto runner = make_runner(model, o);
  RecordOptions r = a.record;
  r.prompt = a.prompt.value_or(std::clamp(r.window / 4, 1U, r.prompt));
  ProgressLine line("windows");
  r.progress = [&line](std::uint64_t done, std::uint64_t total) {
    line.show(done, total);
    return !stop;
  };
  const std::string name = model_name(a.model.model);
  const auto made =
      a.text.empty() ? record_tokens(model, *runner, name, tokens, r) : record_text(model, *runner, name, text, r);
  made->source = fmt::format("{} over {}", name, std::filesystem::path(source).filename().string());
  if (!made->trace.partial.empty()) {
    made->residency = fmt::format("{}, {} bytes of experts on {}", a.flags.named(a.stack).label,
                                  runner->statistics().arena_bytes, machine.name);
  }
  made->write(out);
  print(fmt::format("{}: {} tokens in {} sequences{}\n", a.out, made->trace.tokens, made->trace.sequences(),
                    stop ? " (interrupted)" : ""));
  return stop ? 128 + stopped_by : 0;
}

int import(const TraceArguments& a) {
  check_outputs({a.out}, {a.in, a.shape});
  OutputFile out(a.out, trace_kind);
  const auto made = import_trace(a.in, read_shape(a.shape));
  made->write(out);
  print(fmt::format("{}: {} tokens in {} sequences\n", a.out, made->trace.tokens, made->trace.sequences()));
  return 0;
}

int generate_trace(const TraceArguments& a) {
  check_outputs({a.out}, {a.shape});
  OutputFile out(a.out, trace_kind);
  SyntheticOptions o = a.synthetic;
  o.partial = !a.no_partial;
  for (const auto& [option, values] : {std::pair("--recall", &a.recall), std::pair("--top-1", &a.top_1)}) {
    if (values->size() <= o.ahead) continue;
    throw InputError(fmt::format("{}: {} values for {} that {} predicted, expected at most as many (see --ahead)",
                                 option, values->size(), layers(o.ahead), o.ahead == 1 ? "is" : "are"));
  }
  std::copy(a.recall.begin(), a.recall.end(), std::begin(o.recall_top_k));
  std::copy(a.top_1.begin(), a.top_1.end(), std::begin(o.top_1));
  ProgressLine line("layers");
  o.progress = [&line](std::uint64_t done, std::uint64_t all) {
    line.show(done, all);
    return !stop;
  };
  const auto made = synthesize(read_shape(a.shape), o);
  if (!made) throw Interrupted{};
  made->write(out);
  print(fmt::format("{}: {} tokens in {} sequences\n", a.out, made->trace.tokens, made->trace.sequences()));
  return 0;
}

/// Statistics of the routing, as far as the trace has what they need.
std::string statistics(const Trace& trace) {
  const RoutingShares all = measure(trace).all();
  std::string text;
  auto row = [&](const std::string& what, const Share& s) {
    if (s.whole > 0) text += fmt::format("  {:<58} {:5.1f}%\n", what, 100 * s.value());
  };
  row("chosen experts chosen again by the next token", all.reuse);
  row("and half a sequence later", all.favourites);
  row("and in another sequence", all.popularity);
  row("important (s <= 0.6; HOBBIT's Eq. 2)", all.high);
  row("skipped (s > 0.9)", all.skip);
  row("low-score (alpha 0.3)", all.low_score);
  for (std::uint32_t d = 0; d < most_ahead; ++d) {
    row(fmt::format("among the k best predicted {} ahead, decode", layers(d + 1)), all.recall_top_k[d]);
    if (d == 0) row("above the 75th percentile of them", all.recall_percentile[d]);
    row(fmt::format("best predicted {} ahead", layers(d + 1)), all.top_1[d]);
    if (d == 0) row("named by the rows of a prompt together", all.recall_prefill[d]);
  }
  row("predicted as top-score by partial states, and right", all.partial_top_score);
  row("of the others, at least chosen", all.partial_active);
  return text;
}

int show(const TraceArguments& a) {
  const TraceFile file{std::filesystem::path(a.in)};
  const Trace& t = file.trace;
  std::uint32_t prefill = 0;
  for (const std::uint8_t p : t.phase) prefill += p == 0 ? 1 : 0;
  std::vector<std::string> has{"experts"};
  if (!t.weights.empty()) has.emplace_back("weights");
  if (!t.scores.empty()) has.emplace_back("scores of all experts");
  if (t.ahead > 0) has.push_back(fmt::format("scores predicted {} ahead", layers(t.ahead)));
  if (!t.partial.empty()) {
    const std::string under = file.residency.empty() ? "" : fmt::format(" ({})", printable(file.residency));
    has.push_back("scores of partial hidden states" + under);
  }
  std::vector<std::uint32_t> experts, top_k;
  std::vector<std::uint64_t> bytes;
  for (std::uint32_t l = 0; l < t.model.layers; ++l) {
    experts.push_back(t.model.experts_of(l));
    top_k.push_back(t.model.top_k_of(l));
    bytes.push_back(t.model.bytes(l, Precision::full));
  }
  std::string text = fmt::format(
      "{}: {}\n"
      "  {} layers of {} experts, top-{}; an expert has {} bytes\n"
      "  {} tokens in {} sequences, {} of prompts\n"
      "  has {}\n",
      a.in, printable(t.name), t.model.layers, range_of(experts), range_of(top_k), range_of(bytes), t.tokens,
      t.sequences(), prefill, fmt::join(has, ", "));
  if (!file.source.empty()) text += fmt::format("  from {}\n", printable(file.source));
  print(wrapped(text, terminal_columns()));
  print(statistics(t));
  return 0;
}

void add_record(CLI::App* c, TraceArguments& a) {
  a.model.add_model(c);
  a.model.add_experts(c);
  add_named(c, "--text", a.text, "FILE", "the text");
  add_named(c, "--token-ids", a.token_ids, "FILE",
            "instead, texts as the model's tokens, one on a line, as ferry run has them")
      ->excludes("--text");
  add_named(c, "--out", a.out, "FILE", "the trace (safetensors)")->required();
  add_count(c, "--ahead", a.record.ahead, 0, 4, "layers ahead to predict from each gate input");
  add_count(c, "--window", a.record.window, 2, 1 << 20, "tokens of a sequence; the text is cut into such");
  c->add_option("--prompt-tokens", a.prompt,
                "of those, how many are prompt; the rest runs token by token (default: a fourth, 64 at most)")
      ->type_name("N")
      ->check(in_range(1, 1 << 20));
  c->add_option("--tokens", a.record.tokens, "stop after about so many")->type_name("N")->check(in_range(1U, ~0U));
  add_named(c, "--stack", a.stack, "NAME|FILE",
            "run under this stack; importance+pre also gives the scores of partial hidden states")
      ->capture_default_str();
  add_named(c, "--machine", a.machine, "NAME|FILE", "whose times decide what is resident then: a name or a file")
      ->capture_default_str();
  a.flags.add_budget(c);
  a.flags.add_parameters(c);
}

std::string shapes_help() {
  std::string shapes = "Shapes:";
  for (const std::string& s : shape_names()) shapes += " " + s;
  return shapes;
}

void add_import(CLI::App* c, TraceArguments& a) {
  add_named(c, "in", a.in, "FILE",
            "safetensors with experts [tokens, layers, k] and sequence_start, or a route trace (.csv)")
      ->required();
  add_named(c, "--out", a.out, "FILE", "the trace (safetensors)")->required();
  add_named(c, "--shape", a.shape, "NAME|FILE", "the model: a name or a file of its shape")->required();
  c->footer(shapes_help());
}

void add_generate(CLI::App* c, TraceArguments& a) {
  SyntheticOptions& y = a.synthetic;
  add_named(c, "--shape", a.shape, "NAME|FILE", "the model: a name or a file of its shape")->required();
  add_named(c, "--out", a.out, "FILE", "the trace (safetensors)")->required();
  add_count(c, "--seed", y.seed, std::uint64_t{0}, ~std::uint64_t{0} >> 1U, "the same seed gives the same bytes");
  add_count(c, "--sequences", y.sequences, 1U, 1U << 20U, "how many");
  add_count(c, "--prompt-tokens", y.prompt, 0U, 1U << 20U, "of each sequence");
  add_count(c, "--tokens", y.tokens, 0U, 1U << 20U, "of decode, behind each prompt");
  add_count(c, "--ahead", y.ahead, std::uint16_t{0}, std::uint16_t{4}, "layers to predict");
  CLI::Option* no_partial = c->add_flag("--no-partial", a.no_partial, "without scores of partial hidden states");
  auto share = [&](const char* name, auto& value, const char* help) {
    return c->add_option(name, value, help)->type_name("SHARE")->check(CLI::Range(0.0, 1.0) & not_nan);
  };
  share("--reuse", y.reuse, "a chosen expert is chosen at the next token");
  share("--favourites", y.favourites, "and half a sequence later");
  share("--popularity", y.popularity, "and in another sequence");
  share("--high-share", y.high_share, "important ones (HOBBIT)");
  share("--skip-share", y.skip_share, "those to skip (HOBBIT)");
  share("--low-score", y.low_score, "low-score ones (Importance-driven)");
  c->add_option("--recall", a.recall, "by top k, 1, 2, ... layers ahead")
      ->delimiter(',')
      ->transform(without_spaces)
      ->check(CLI::Range(0.0, 1.0) & not_nan);
  c->add_option("--top-1", a.top_1, "the best is predicted, 1, 2, ... layers ahead")
      ->delimiter(',')
      ->transform(without_spaces)
      ->check(CLI::Range(0.0, 1.0) & not_nan);
  share("--recall-percentile", y.recall_percentile, "above the 75th percentile, one layer ahead (Fate)");
  share("--recall-prefill", y.recall_prefill, "of a prompt's experts (Fate)");
  add_count(c, "--shallow", y.shallow, std::uint16_t{0}, std::uint16_t{65535}, "layers that are predicted worse");
  share("--partial-top-score", y.partial_top_score, "predicted as top-score by partial states, and right")
      ->excludes(no_partial);
  share("--partial-active", y.partial_active, "of the others, at least chosen")->excludes(no_partial);
  c->footer(shapes_help() + "\nWhat is left out takes the papers' values: docs/synthetic.md.");
}

}  // namespace

void add_trace_commands(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<TraceArguments>();
  CLI::App* trace = app.add_subcommand("trace", "record, import and inspect routing traces");
  trace->require_subcommand(1);
  auto add = [&](const char* name, const char* help, int (*run)(const TraceArguments&)) {
    CLI::App* c = trace->add_subcommand(name, help);
    c->callback([a, run, &chosen] { chosen = [a, run] { return run(*a); }; });
    return c;
  };
  add_record(add("record", "run a text through a model and write down what its gates say", record), *a);
  add_import(add("import", "make a trace of routing that another program recorded", import), *a);
  add_generate(add("generate", "make up routing with the statistics that papers publish", generate_trace), *a);
  add_named(add("inspect", "print what a trace holds", show), "trace", a->in, "FILE", "the trace")->required();
}

}  // namespace ferry::engine
