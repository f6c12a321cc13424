// ferry eval: what stacks cost in quality.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command/command.hpp"
#include "command/model_flags.hpp"
#include "command/token_ids.hpp"
#include "ferry/macros.hpp"
#include "inference/eval.hpp"
#include "profiles/machine.hpp"
#include "report/report.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/progress.hpp"
#include "support/terminal.hpp"
#include "support/text_file.hpp"

namespace ferry::engine {
namespace {

struct EvalArguments {
  StackFlags flags;
  ModelFlags model;
  std::string machine = "rtx3090-pcie3", phase = "decode", json;
  std::vector<std::string> texts, token_files, stacks = {"fate", "hobbit", "importance-driven"};
  EvalOptions eval;
  std::uint64_t bytes = ~std::uint64_t{0};
};

struct Stack {
  std::string label;
  RunnerOptions options;
  std::uint64_t arena_bytes = 0;
  std::vector<Evaluated> texts;  ///< results, as far as the texts were run

  [[nodiscard]] Evaluated all() const {
    Evaluated sum;
    for (const Evaluated& e : texts) sum += e;
    return sum;
  }
};

Json outcomes(const Outcomes& o, std::uint64_t tokens) {
  Json json = to_json(o);
  json["tokens"] = o.requests == 0 ? 0 : tokens;
  return json;
}

Json by_precision(const std::uint64_t* n) {
  return {{"int2", n[1]}, {"int4", n[2]}, {"int8", n[3]}, {"full", n[4]}};
}

double per_byte(Nanoseconds ns, const Evaluated& e) {
  return e.quality.bytes == 0 ? 0 : static_cast<double>(ns) * 1e-9 / static_cast<double>(e.quality.bytes);
}

Json evaluated_json(const Evaluated& e) {
  return {{"bytes_scored", e.quality.bytes},
          {"tokens_scored", e.quality.tokens},
          {"bits_per_byte", e.quality.bits_per_byte()},
          {"bits_per_byte_resident", e.quality.bits_per_byte_resident()},
          {"change_percent", e.quality.change_percent()},
          {"kl_divergence", e.quality.kl_divergence()},
          {"top1_agreement", e.quality.top1_agreement()},
          {"prefill", outcomes(e.phase[0], e.quality.tokens)},
          {"decode", outcomes(e.phase[1], e.quality.tokens)},
          {"bytes_by_precision", by_precision(e.bytes_by_precision)},
          {"preload_bytes", e.preload_bytes},
          {"decode_computed_by_precision", by_precision(e.computed)},
          {"virtual_s_per_byte", per_byte(e.virtual_ns, e)},
          {"virtual_s_per_byte_resident", per_byte(e.resident_ns, e)}};
}

/// A block for each text, and one over all texts, with a column for each stack.
/// `unit`: "byte", or "token" if the bytes of tokens are unknown.
std::string eval_table(const std::vector<Stack>& stacks, const std::vector<std::string>& names, Phase phase,
                       const std::string& unit, const ModelShape& shape, std::size_t columns) {
  auto percent = [](std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? std::string("-")
                      : fmt::format("{:.1f}%", 100 * static_cast<double>(part) / static_cast<double>(whole));
  };
  const std::vector<std::string> rows = {
      "stack",       "bits a " + unit, "change",      "KL, bits a " + unit, "same top",   "hits",          "missed",
      "substituted", "skipped",        "on the host", "computed low",       "copied low", "time a " + unit};
  auto column = [&](const std::string& stack, const Evaluated& e) -> std::vector<std::string> {
    const Quality& q = e.quality;
    const Outcomes& o = e.phase[static_cast<unsigned>(phase)];
    std::uint64_t copies = 0, low_copies = 0, low = 0;
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      const std::uint64_t each = mean_expert_bytes(shape, static_cast<Precision>(p));
      const std::uint64_t n = each == 0 ? 0 : (e.bytes_by_precision[p] + each / 2) / each;
      copies += n;
      if (static_cast<Precision>(p) == Precision::full) continue;
      low_copies += n;
      low += e.computed[p];
    }
    return {stack,
            fmt::format("{:.4f}", q.bits_per_byte()),
            fmt::format("{:+.3f}%", q.change_percent()),
            fmt::format("{:.5f}", q.kl_divergence()),
            fmt::format("{:.2f}%", 100 * q.top1_agreement()),
            percent(o.hits, o.requests),
            percent(o.late_hits + o.misses, o.requests),
            percent(o.substituted, o.requests),
            percent(o.skipped, o.requests),
            percent(o.host_computed, o.requests),
            phase == Phase::decode ? percent(low, o.requests) : "-",
            percent(low_copies, copies),
            fmt::format("{:.3f} ms", 1e3 * per_byte(e.virtual_ns, e))};
  };
  std::string out;
  auto block = [&](const std::string& name, auto of) {
    const Quality& q = of(stacks[0]).quality;
    const std::string tokens = q.tokens == q.bytes ? "" : fmt::format(" in {} tokens", q.tokens);
    out +=
        wrapped(fmt::format("{}: {} {}s{}, resident {:.4f} bits and {:.3f} ms a {}\n", name, q.bytes, unit, tokens,
                            q.bits_per_byte_resident(), 1e3 * per_byte(of(stacks[0]).resident_ns, of(stacks[0])), unit),
                columns);
    std::vector<std::vector<std::string>> cells(rows.size());
    for (const Stack& s : stacks) {
      const std::vector<std::string> c = column(s.label, of(s));
      for (std::size_t i = 0; i < rows.size(); ++i) cells[i].push_back(c[i]);
    }
    out += in_columns(rows, cells, columns) + "\n";
  };
  for (std::size_t t = 0; t < stacks[0].texts.size(); ++t) {
    block(names[t], [t](const Stack& s) { return s.texts[t]; });
  }
  if (stacks[0].texts.size() > 1) block("all texts", [](const Stack& s) { return s.all(); });
  return out + wrapped(fmt::format(
                           "computed low: experts computed at less than full precision; copied low: copies of such, of "
                           "all copies; time: a {}'s, on the machine's clock\n",
                           unit),
                       columns);
}

/// What is evaluated: either texts or tokens.
struct Inputs {
  explicit Inputs(const EvalArguments& a) {
    for (const std::string& file : a.texts) {
      texts.push_back(read_text("--text", file));
      if (texts.back().empty()) throw InputError(fmt::format("--text {}: the file is empty", file));
      texts.back().resize(std::min<std::uint64_t>(texts.back().size(), a.bytes));
      names.push_back(std::filesystem::path(file).filename().string());
    }
    for (const std::string& file : a.token_files) {
      const std::string name = std::filesystem::path(file).filename().string();
      for (std::vector<std::uint32_t>& row : read_token_ids(file)) {
        tokens.push_back(std::move(row));
        names.push_back(fmt::format("{} {}", name, tokens.size()));
      }
    }
  }

  /// The inputs as the model's tokens, in the order of `names`.
  [[nodiscard]] std::vector<TokenizedText> tokenized_by(const Model& model) const {
    std::vector<TokenizedText> all;
    for (const std::vector<std::uint32_t>& row : tokens) all.push_back({without_begin(model, row), {}});
    for (const std::string& text : texts) all.push_back(tokenized(model, text));
    for (const TokenizedText& text : all) check_tokens(model.config(), {text.tokens});
    return all;
  }

  std::vector<std::string> texts, names;
  std::vector<std::vector<std::uint32_t>> tokens;
};

/// A stack's results, text by text.
Json json_of(const Stack& s, const std::vector<std::string>& names) {
  Json json = evaluated_json(s.all());
  json["ferry"] = FERRY_VERSION;
  json["stack"] = s.options.stack;
  for (std::size_t t = 0; t < s.texts.size(); ++t) {
    json["texts"].push_back(evaluated_json(s.texts[t]));
    json["texts"].back()["name"] = names[t];
  }
  return json;
}

/// Everything that is refused before a model is read.
void check(const EvalArguments& a) {
  a.flags.check(a.stacks);
  if (a.texts.empty() == a.token_files.empty()) {
    throw InputError("eval reads texts: expected --text FILES, or --token-ids FILES for what is tokens already");
  }
  std::vector<std::string> inputs = a.texts;
  inputs.insert(inputs.end(), a.token_files.begin(), a.token_files.end());
  inputs.push_back(a.machine);
  for (const std::string& file : a.model.inputs()) inputs.push_back(file);
  for (const std::string& file : stack_files(a.stacks)) inputs.push_back(file);
  check_outputs({a.json}, inputs);
}

std::vector<Stack> named_stacks(const EvalArguments& a) {
  std::vector<Stack> stacks(a.stacks.size());
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    stacks[i].label = a.flags.named(a.stacks[i]).label;
    a.flags.set(stacks[i].options, a.stacks[i]);
  }
  return stacks;
}

/// Runs every text under all stacks, and under `resident`, until a signal comes. Each text gets newly built stacks, so that its
/// result does not depend on which other texts were named.
void run(Model& model, const std::vector<TokenizedText>& texts, EvalOptions options, const RunnerOptions& resident,
         std::vector<Stack>& stacks) {
  std::uint64_t to_do = 0, done = 0;
  for (const TokenizedText& text : texts) to_do += text.tokens.size();
  ProgressLine line("tokens");
  for (const TokenizedText& text : texts) {
    std::vector<std::unique_ptr<ExpertRunner>> runners;
    for (const Stack& s : stacks) runners.push_back(make_runner(model, s.options));
    options.progress = [&](std::uint64_t of_text, std::uint64_t) {
      line.show(done + of_text, to_do);
      return !stop;
    };
    const std::vector<Evaluated> results = evaluate(model, *make_runner(model, resident), runners, text, options);
    for (std::size_t i = 0; i < stacks.size(); ++i) {
      stacks[i].texts.push_back(results[i]);
      stacks[i].arena_bytes = runners[i]->statistics().arena_bytes;
    }
    done += text.tokens.size();
    if (stop) break;
  }
}

int eval(const EvalArguments& a) {
  check(a);
  std::optional<OutputFile> json_file;
  if (!a.json.empty()) json_file.emplace(a.json, report_json);
  const Inputs read(a);
  std::vector<Stack> stacks = named_stacks(a);
  RunnerOptions resident;
  resident.stack = "resident";
  std::vector<StackOptions> wanted = {resident};
  for (const Stack& s : stacks) wanted.push_back(s.options);
  const std::unique_ptr<Model> model = a.model.open(wanted, {});

  EvalOptions options = a.eval;
  options.phase = a.phase == "decode" ? Phase::decode : Phase::prefill;
  options.check(model->config());
  const std::vector<TokenizedText> texts = read.tokenized_by(*model);
  const std::uint32_t max_rows = options.max_rows(model->begin_tokens().size());
  const ModelShape shape = model_shape(model->config(), model->store(), max_rows);
  const std::uint64_t budget = parse_budget(a.flags.budget, shape.all_bytes());
  const Machine machine = read_machine(a.machine);
  const ModelFacts reference = read_shape(machine.reference_model());
  const CostSource source = machine.stated ? CostSource::stated : CostSource::effective;
  auto complete = [&](RunnerOptions& o) {
    o.budget_bytes = budget;
    o.max_rows = max_rows;
    o.virtual_costs = as_if(machine.costs(reference.work, source), reference, shape);
  };
  complete(resident);
  for (Stack& s : stacks) complete(s.options);
  run(*model, texts, options, resident, stacks);

  const std::string unit = a.texts.empty() ? "token" : "byte";
  print(eval_table(stacks, read.names, options.phase, unit, model_shape(model->config(), model->store(), 1),
                   terminal_columns()));
  print(a.flags.calibrated_note(a.stacks));
  if (stop) print("interrupted: the last text only as far as it was run\n");
  Json all = Json::array();
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    Json json = json_of(stacks[i], read.names);
    json["model"] = model_name(a.model.model);
    if (is_stack_file(a.stacks[i])) json["stack_file"] = stacks[i].label;
    json["machine"] = machine.name;
    json["device"] = "virtual clock";
    json["parameters"] = a.flags.taken_by(a.stacks[i]);
    if (const std::string& file = a.flags.named(a.stacks[i]).calibrated; !file.empty()) json["calibrated"] = file;
    json["pools"] = json["parameters"].value("pools", "stack");
    json["budget_asked_bytes"] = budget;
    json["budget_bytes"] = stacks[i].arena_bytes;
    json["activations"] = a.model.activations;
    json["kv_cache"] = a.model.kv_cache;
    json["command_line"] = command_line;
    json["phase"] = a.phase;
    json["unit"] = unit;
    json["window"] = options.window;
    json["batch"] = options.batch;
    json["interrupted"] = stop.load();
    all.push_back(std::move(json));
  }
  if (json_file) json_file->commit(json_text(all.size() == 1 ? all[0] : all, 2) + "\n");
  return stop ? 128 + stopped_by : 0;
}

}  // namespace

void add_eval_commands(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<EvalArguments>();
  CLI::App* c =
      app.add_subcommand("eval", "measure what stacks cost in quality: bits a byte, beside the resident model");
  a->model.add_model(c);
  a->model.add_experts(c);
  add_named(c, "--text", a->texts, "FILES", "texts to predict");
  add_named(c, "--token-ids", a->token_files, "FILES",
            "instead: tokens, each line a text of its own, for models without a tokenizer");
  c->add_option("--stack,--stacks", a->stacks, "comma-separated, from the list below, or files")
      ->type_name("NAMES|FILES")
      ->delimiter(',')
      ->transform(without_spaces)
      ->capture_default_str();
  a->flags.add_budget(c);
  a->flags.add_parameters(c);
  a->flags.add_defaults(c);
  add_count(c, "--window", a->eval.window, 2, 1 << 20, "tokens; a text is cut into such, each a sequence of its own");
  c->add_option("--bytes", a->bytes, "at most so many of each text")
      ->type_name("N")
      ->check(in_range(1ULL, 1ULL << 40U));
  c->add_option("--phase", a->phase, "run windows token by token, or each in one step, as a prompt")
      ->check(CLI::IsMember({"decode", "prefill"}))
      ->capture_default_str();
  add_count(c, "--batch", a->eval.batch, 1, 8, "windows run together");
  add_named(c, "--machine", a->machine, "NAME|FILE",
            "whose times decide, on the virtual clock, what has arrived: a name or a file")
      ->capture_default_str();
  add_named(c, "--json", a->json, "FILE", "write all numbers to this file");
  c->footer(
      stacks_help() +
      "Lossy stacks decide by what has arrived: runs are on the virtual clock of --machine, so that they repeat.");
  c->callback([a, &chosen] {
    chosen = [a] {
      a->flags.use_model(model_name(a->model.model));
      return eval(*a);
    };
  });
}

}  // namespace ferry::engine
