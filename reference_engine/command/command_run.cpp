// ferry run, compare, inspect: the reference engine itself.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <sstream>

#include "calibrate/calibrate.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/weight_checksums.hpp"
#include "command/command.hpp"
#include "command/device_memory.hpp"
#include "command/model_flags.hpp"
#include "command/sampling_flags.hpp"
#include "command/token_ids.hpp"
#include "cpu/cpu_model.hpp"
#include "inference/generate.hpp"
#include "profiles/machine.hpp"
#include "report/report.hpp"
#include "stacks/budget.hpp"
#include "stacks/stack_options.hpp"
#include "store/pack.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/memory.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/progress.hpp"
#include "support/terminal.hpp"
#include "support/text_file.hpp"

namespace ferry::engine {
namespace {

struct RunArguments {
  StackFlags flags;
  ModelFlags model;
  std::string stack = "lru", machine, clock = "real", prefetch_chunk = "0", json, timeline, device_memory, logits,
              checksums;
  std::vector<std::string> prompts, prompt_files, token_files, stacks = {"on-demand", "lru", "cross-layer-lru"};
  std::uint32_t max_new_tokens = 128, batch = 0, prefill_chunk = GenerateOptions{}.prefill_chunk;
  SamplingFlags sampling;
  std::uint32_t logprobs = 0;
  bool gate_worker = false, model_given = false;
};

/// Everything that `run` and `compare` share.
class Runs {
 public:
  Runs(const RunArguments& a, const std::vector<std::string>& stacks) : a_(a) {
    open_files(stacks);
    read_prompts();
    options_.max_new_tokens = a.max_new_tokens;
    options_.sampling = a.sampling.of(find_model(a.model.model));
    options_.stops = a.sampling.stops;
    options_.probabilities = a.logprobs > 0;
    options_.alternatives = a.logprobs;
    options_.prefill_chunk = a.prefill_chunk;
    options_.keep_logits = logits_.has_value();
    options_.stop = &stop;
    open_model(stacks);
    if (!options_.stops.empty()) static_cast<void>(model_->need_tokenizer());
    shape_ = model_shape(model_->config(), model_->store(), std::max(options_.prefill_chunk, options_.batch));
    prefetch_chunk_ = parse_chunk(a.prefetch_chunk, shape_.bytes(0, Precision::full));
    if (a.clock == "virtual") {
      const ModelFacts reference = read_shape(machine_->reference_model());
      const CostSource source = machine_->stated ? CostSource::stated : CostSource::effective;
      costs_ = as_if(machine_->costs(reference.work, source), reference, shape_);
      throttle_ = costs_->link_bytes_per_s;
      costs_->prefetch_chunk_bytes = prefetch_chunk_;
    }
    const std::vector<std::uint32_t> positions = check_prompts();
    budget_ = a.device_memory.empty() ? parse_budget(a.flags.budget, shape_.all_bytes()) : left_for(positions);
  }

  [[nodiscard]] const GenerateOptions& options() const { return options_; }
  [[nodiscard]] std::uint32_t threads() const { return model_->workers().threads(); }

  void calibrate() {
    if (!machine_ || throttle_ != 0) return;
    std::fprintf(stderr, "measuring this processor to imitate %s...\n", printable(machine_->name).c_str());
    const double layer_s = measure_decode_layer_s(*model_);
    throttle_ = throttle_bytes_per_s(*machine_, mean_expert_bytes(shape_, Precision::full), layer_s);
    std::fprintf(stderr,
                 "a decode layer takes %.1f us here; one expert crosses in %.2f of that on %s (%s), so "
                 "the link is "
                 "throttled to %.1f MB/s\n",
                 layer_s * 1e6, machine_->ratio(), printable(machine_->name).c_str(),
                 printable(machine_->reference_model()).c_str(), static_cast<double>(throttle_) * 1e-6);
  }

  /// Throws for a stack or budget that cannot work, without running anything.
  void check(const std::string& stack) const { static_cast<void>(make(stack, 0, false)); }

  RunReport run(const std::string& stack, bool stream) {
    calibrate();
    const auto runner = make(stack, throttle_);
    const StoreReads before = model_->store().reads();  // reads count from the first step on
    GenerateOptions g = options_;
    if (costs_) g.clock = [&runner] { return runner->statistics().virtual_ns; };
    ProgressLine progress("prefill, tokens", 0);
    g.on_prefill = [&](std::uint64_t done, std::uint64_t total) {
      if (total > 2 * g.prefill_chunk) progress.show(done, total);
    };
    if (stream) {
      const bool reads = model_->tokenizer() != nullptr;
      if (!reads && !model_->why_no_tokenizer().empty()) {
        std::fprintf(stderr, "ferry: tokens are shown as numbers: %s\n", model_->why_no_tokenizer().c_str());
      }
      g.on_token = [as_text = reads](std::size_t prompt, std::uint32_t token, const std::string& text) {
        if (prompt == 0) print(as_text ? text : fmt::format("{} ", token));
      };
    }
    Generated made = generate(*model_, *runner, g);
    if (stream) {
      print("\n");
      for (std::size_t i = 1; i < made.text.size(); ++i) {
        print(fmt::format("[{}] {}\n", i + 1, shown_text(made, i)));
      }
    }
    if (timeline_) {
      std::vector<Span> spans;  // with a virtual clock, the link's spans have all lanes
      if (!costs_) spans = runner->spans;
      const std::vector<Span> link = runner->link_spans();
      spans.insert(spans.end(), link.begin(), link.end());
      std::ostringstream text;
      text.exceptions(std::ios::badbit);  // a stream would hide a lack of memory
      write_trace_events(text, spans);
      timeline_->commit(text.str());
    }
    if (logits_) write_logits(made);
    RunReport facts;
    facts.model = model_name(a_.model.model);
    facts.store = model_->store().reads().since(before);
    facts.stack = a_.flags.named(stack).policies;
    if (is_stack_file(stack)) facts.stack_file = a_.flags.named(stack).label;
    facts.parameters = a_.flags.taken_by(stack);
    facts.machine = machine_ ? machine_->name : "";
    facts.budget_asked_bytes = budget_;
    facts.all_expert_bytes = shape_.all_bytes();
    facts.expert_bytes = mean_expert_bytes(shape_, Precision::full);
    facts.dense_bytes = model_->dense_bytes();
    facts.clock = a_.clock;
    facts.device = model_->device();
    facts.device_memory = model_->device_memory();
    facts.batch = options_.batch;
    facts.rounded = model_->rounds();
    facts.layers = shape_.layers;
    facts.throttle_bytes_per_s = throttle_;
    facts.prefetch_chunk_bytes = prefetch_chunk_;
    return make_report(*runner, std::move(made), facts);
  }

  /// What was generated for a prompt: text, or tokens if their texts are unknown.
  [[nodiscard]] std::string shown_text(const Generated& made, std::size_t prompt) const {
    if (model_->tokenizer() != nullptr) return made.text[prompt];
    return fmt::format("{}", fmt::join(made.token_ids[prompt], " "));
  }

  void write_json(const Json& json) {
    if (json_) json_->commit(json_text(json, 2) + "\n");
  }

 private:
  /// Opens the outputs. Refuses those that are also inputs, or that cannot be written.
  void open_files(const std::vector<std::string>& stacks) {
    std::vector<std::string> inputs;
    std::copy_if(a_.prompt_files.begin(), a_.prompt_files.end(), std::back_inserter(inputs),
                 [](const std::string& file) { return file != "-"; });
    inputs.insert(inputs.end(), a_.token_files.begin(), a_.token_files.end());
    inputs.push_back(a_.machine);
    for (const std::string& file : a_.model.inputs()) inputs.push_back(file);
    for (const std::string& file : stack_files(stacks)) inputs.push_back(file);
    check_outputs({a_.json, a_.timeline, a_.logits}, inputs);
    if (!a_.json.empty()) json_.emplace(a_.json, report_json);
    if (!a_.timeline.empty()) timeline_.emplace(a_.timeline, timeline_json);
    if (!a_.logits.empty()) logits_.emplace(a_.logits, FileKind{"a file of logits", "", "\"logits.0\""});
    if (!a_.machine.empty()) machine_ = read_machine(a_.machine);
  }

  void read_prompts() {
    options_.prompts = a_.prompts;
    if (std::count(a_.prompt_files.begin(), a_.prompt_files.end(), "-") > 1) {
      throw InputError("--prompt-file -: standard input is one prompt, expected it once");
    }
    for (const std::string& file : a_.prompt_files) options_.prompts.push_back(prompt_of(file));
    for (const std::string& file : a_.token_files) {
      for (std::vector<std::uint32_t>& prompt : read_token_ids(file))
        options_.token_prompts.push_back(std::move(prompt));
    }
    const bool by_tokens = !options_.token_prompts.empty();
    if (!by_tokens && options_.prompts.empty() && standard_input_has_text()) {
      options_.prompts = {prompt_of("-")};
      if (options_.prompts[0].empty()) options_.prompts.clear();
    }
    if (!by_tokens && options_.prompts.empty()) {
      options_.prompts = {"Question: A ferry carries 8 cars on each crossing. "};
    }
    // A batch larger than the number of prompts repeats them in turn.
    const std::size_t count = by_tokens ? options_.token_prompts.size() : options_.prompts.size();
    options_.batch = a_.batch == 0 ? std::min<std::uint32_t>(8, static_cast<std::uint32_t>(count)) : a_.batch;
    for (std::size_t i = 0; count + i < options_.batch; ++i) {
      if (by_tokens) options_.token_prompts.push_back(options_.token_prompts[i]);
      if (!by_tokens) options_.prompts.push_back(options_.prompts[i]);
    }
  }

  void open_model(const std::vector<std::string>& stacks) {
    std::vector<StackOptions> wanted(stacks.size());
    for (std::size_t i = 0; i < stacks.size(); ++i) a_.flags.set(wanted[i], stacks[i]);
    ModelFlags where = a_.model;
    if (machine_) {
      if (where.device == "cuda") {
        throw InputError("--machine: imitates a link on the CPU device: leave it out, or name --device cpu");
      }
      where.device = "cpu";
    } else if (a_.clock == "virtual") {
      throw InputError("--clock virtual: needs a machine whose costs it counts, expected --machine NAME|FILE");
    }
    if (machine_ && a_.clock == "real") {  // the link is throttled by a layer's time here, which `resident` measures
      StackOptions measured;
      measured.stack = "resident";
      wanted.push_back(measured);
    }
    model_ = where.open(wanted, a_.device_memory.empty() ? ModelFlags::Budgets{{a_.flags.budget}, ""}
                                                         : ModelFlags::Budgets{{}, a_.device_memory});
  }

  /// The positions of each prompt, with those of what it may generate but for the last token, which is not run. Refuses
  /// prompts that are too long before minutes are spent on the others.
  [[nodiscard]] std::vector<std::uint32_t> check_prompts() const {
    const bool by_tokens = !options_.token_prompts.empty();
    std::vector<std::uint32_t> positions;
    const auto all_tokens = tokens_of(*model_, options_);
    for (std::size_t i = 0; i < all_tokens.size(); ++i) {
      const std::size_t tokens = all_tokens[i].size();
      const std::uint64_t wanted = tokens + std::max<std::uint64_t>(options_.max_new_tokens, 1) - 1;
      positions.push_back(static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, model_->config().context)));
      if (tokens <= model_->config().context) continue;
      if (by_tokens) {
        throw InputError(fmt::format("--token-ids: prompt {} is {} tokens long, the model's context is {}", i + 1,
                                     tokens, model_->config().context));
      }
      const std::size_t file = i - std::min(i, a_.prompts.size());
      throw InputError(fmt::format("{} is {} tokens long with its begin token, the model's context is {}",
                                   i >= a_.prompts.size() && file < a_.prompt_files.size()
                                       ? "--prompt-file " + a_.prompt_files[file]
                                       : "--prompt " + std::to_string(i + 1),
                                   tokens, model_->config().context));
    }
    return positions;
  }

  static std::string prompt_of(const std::string& file) {
    if (file != "-") return read_text("--prompt-file", file);
    std::string text = read_standard_input("--prompt-file", stop);
    if (stop) throw Interrupted();
    return text;
  }

  /// Writes a tensor "logits.i" [generated tokens, vocabulary] for each prompt i.
  void write_logits(const Generated& made) {
    SafetensorsWriter file;
    for (std::size_t i = 0; i < made.logits.size(); ++i) {
      const std::vector<float>& l = made.logits[i];
      file.add(fmt::format("logits.{}", i), "F32", {made.token_ids[i].size(), model_->config().vocabulary},
               {reinterpret_cast<const char*>(l.data()), l.size() * sizeof(float)});
    }
    file.commit(*logits_, {{"model", model_name(a_.model.model)}});
  }

  std::unique_ptr<ExpertRunner> make(const std::string& stack, std::uint64_t throttle, bool preload = true) const {
    RunnerOptions o;
    a_.flags.set(o, stack);
    o.gate_worker = a_.gate_worker;
    o.budget_bytes = budget_;
    o.max_rows = shape_.max_rows;
    o.link_bytes_per_s = throttle;
    o.prefetch_chunk_bytes = prefetch_chunk_;
    o.linger_ns = usual_linger_ns();
    o.virtual_costs = costs_;
    o.log = timeline_.has_value();
    o.preload = preload;
    return make_runner(*model_, o);
  }

  /// The device memory that is left for experts beside the largest batch, if texts have so many positions each.
  std::uint64_t left_for(const std::vector<std::uint32_t>& positions) const {
    return left_for_experts(a_.device_memory,
                            beside_experts(*model_, positions, options_.batch, options_.prefill_chunk),
                            shape_.all_bytes());
  }

  const RunArguments& a_;
  std::optional<OutputFile> json_, timeline_, logits_;
  std::optional<Machine> machine_;
  std::optional<Costs> costs_;  ///< of the virtual clock, if it is asked for
  std::unique_ptr<Model> model_;
  GenerateOptions options_;
  ModelShape shape_;
  std::uint64_t budget_ = 0, throttle_ = 0, prefetch_chunk_ = 0;
};

/// For each prompt and generated token, its log probability, and the likeliest alternatives.
Json probabilities_json(const Generated& made) {
  const auto one = [](const TokenProbability& p) { return Json{{"token", p.token}, {"logprob", p.log_probability}}; };
  Json all = Json::array();
  for (std::size_t i = 0; i < made.probabilities.size(); ++i) {
    Json& prompt = all.emplace_back(Json::array());
    for (std::size_t t = 0; t < made.probabilities[i].size(); ++t) {
      Json token = one(made.probabilities[i][t]);
      for (const TokenProbability& p : made.alternatives[i][t]) token["top"].push_back(one(p));
      prompt.push_back(std::move(token));
    }
  }
  return all;
}

/// The numbers of a run, and what is needed to repeat it.
Json run_json(const RunArguments& a, const Runs& runs, const std::string& stack, const RunReport& report) {
  Json json = to_json(report);
  json["command_line"] = command_line;
  json["prompts"] = runs.options().prompts;
  if (!runs.options().token_prompts.empty()) json["prompt_token_ids"] = runs.options().token_prompts;
  json["max_new_tokens"] = a.max_new_tokens;
  json["sampling"] = a.sampling.report(find_model(a.model.model));
  json["temperature"] = json["sampling"]["temperature"];
  json["seed"] = json["sampling"]["seed"];
  if (a.logprobs > 0) json["logprobs"] = probabilities_json(report.generated);
  json["threads"] = runs.threads();
  json["activations"] = a.model.activations;
  json["kv_cache"] = a.model.kv_cache;
  if (a.model.store.empty()) json["quantizer"] = a.model.quantizer;
  if (const std::string& file = a.flags.named(stack).calibrated; !file.empty()) json["calibrated"] = file;
  return json;
}

int run(const RunArguments& a) {
  a.flags.check({a.stack});  // before the model is read
  Runs runs(a, {a.stack});
  runs.check(a.stack);
  if (find_stack(a.flags.named(a.stack).policies).keeps_everything) {
    std::cerr << "note: " << a.stack << " keeps every expert, whatever the budget\n";
  }
  const RunReport report = runs.run(a.stack, true);
  std::cerr << '\n' << to_table({report}, terminal_columns()) << a.flags.calibrated_note({a.stack});
  runs.write_json(run_json(a, runs, a.stack, report));
  return report.generated.interrupted ? 128 + stopped_by : 0;
}

/// Prints each text once, under the names of the stacks that generated it. True if all generated the same.
bool print_texts(const RunArguments& a, const Runs& runs, const std::vector<RunReport>& reports) {
  std::vector<bool> printed(reports.size(), false);
  bool same = true;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    if (printed[i]) continue;
    std::vector<std::string> names;
    for (std::size_t j = i; j < reports.size(); ++j) {
      if (reports[j].generated.token_ids != reports[i].generated.token_ids) continue;
      printed[j] = true;
      names.push_back(
          fmt::format("{} ({})", a.flags.named(a.stacks[j]).label, reports[j].lossless() ? "lossless" : "lossy"));
    }
    same = same && names.size() == reports.size();
    print(wrapped(fmt::format("{}:\n", fmt::join(names, ", ")), terminal_columns()));
    for (std::size_t t = 0; t < reports[i].generated.text.size(); ++t) {
      print(fmt::format("  \"{}\"\n", runs.shown_text(reports[i].generated, t)));
    }
  }
  return same;
}

int compare(const RunArguments& a) {
  a.flags.check(a.stacks);
  Runs runs(a, a.stacks);
  for (const std::string& s : a.stacks) runs.check(s);
  std::vector<RunReport> reports;
  Json json = Json::array();
  for (const std::string& s : a.stacks) {
    std::fprintf(stderr, "running %s (%zu of %zu)...\n", s.c_str(), reports.size() + 1, a.stacks.size());
    reports.push_back(runs.run(s, false));
    json.push_back(run_json(a, runs, s, reports.back()));
    if (reports.back().generated.interrupted) break;
  }
  const bool same = print_texts(a, runs, reports);
  print("\n" + to_table(reports, terminal_columns()) + a.flags.calibrated_note(a.stacks));
  print(reports.back().generated.interrupted ? "interrupted: the last column covers only what was generated\n"
        : same                               ? "all stacks generated the same text\n"
                                             : "the stacks generated different texts\n");
  runs.write_json(json);
  return reports.back().generated.interrupted ? 128 + stopped_by : 0;
}

/// Reads the store, and the model if one is named, and reports each expert that has changed.
int scrub(const StoreFacts& f, const RunArguments& a) {
  const std::string& file = a.model.store;
  std::optional<ProgressLine> line;
  const char* what = "reading, bytes";
  const ScrubOptions o = {[&](std::uint64_t done, std::uint64_t all) {
                            if (!line) line.emplace(what);
                            line->show(done, all);
                            return !stop;
                          },
                          [&](const std::string& damage) {
                            line.reset();
                            std::fprintf(stderr, "ferry: %s\n", printable(damage).c_str());
                          }};
  const Scrubbed s = scrub_store(file, o);
  line.reset();
  if (stop) {
    print(fmt::format("interrupted: {} of {} bytes were read, {} blocks are damaged\n", s.done, f.file_bytes(),
                      s.damaged));
    return 128 + stopped_by;
  }
  if (s.damaged > 0) {
    throw InputError(
        fmt::format("{}: {} of {} blocks are damaged: pack it again, or copy it anew", file, s.damaged, f.blocks()));
  }
  print("every expert is as it was written\n");
  if (!a.model_given) return 0;
  what = "comparing, experts";
  const Scrubbed m = compare_with_store(find_model(a.model.model), file, o);
  line.reset();
  if (stop) {
    print(fmt::format("interrupted: {} of {} experts of the model were compared, {} differ\n", m.done, f.numbers.all(),
                      m.damaged));
    return 128 + stopped_by;
  }
  if (m.damaged > 0) {
    throw InputError(
        fmt::format("{}: {} of {} experts are not those that {} was made from: pack it again, or put the "
                    "model back",
                    a.model.model, m.damaged, f.numbers.all(), file));
  }
  print("and every expert of the model is what it was made from\n");
  return 0;
}

int inspect_store(const RunArguments& a) {
  const std::string& file = a.model.store;
  const auto blocks = open_blocks(file);
  const StoreFacts f = read_store(*blocks, file).facts;
  std::string precisions;
  std::vector<std::uint32_t> experts, widths;
  for (std::uint32_t l = 0; l < f.numbers.layers(); ++l) {
    experts.push_back(f.numbers.of_layer(l));
    widths.push_back(f.layout_of(l).width);
  }
  for (const Precision p : f.stored()) {
    std::uint64_t all = 0;
    std::vector<std::uint64_t> each;
    for (std::uint32_t l = 0; l < f.numbers.layers(); ++l) {
      each.push_back(f.layout_of(l).bytes(p));
      all += std::uint64_t{f.numbers.of_layer(l)} * each.back();
    }
    precisions += fmt::format("  {:<5} {} bytes an expert, {} in all\n", f.layout.name(p), range_of(each), all);
  }
  print(fmt::format(
      "{}: experts of {}\n"
      "  {} layers of {} experts, hidden {}, width {}, {} bytes in all\n"
      "  low precision by {}, groups of {}\n{}",
      file, f.model, f.numbers.layers(), range_of(experts), f.layout.hidden, range_of(widths), f.file_bytes(),
      f.quantizer == Quantizer::hqq ? "HQQ" : "rounding to the nearest", f.layout.group, precisions));
  return scrub(f, a);
}

/// The memory that a sequence takes in addition to the weights.
std::string cache_of(const ModelConfig& c) {
  CacheRoom room;
  const std::uint64_t remembered = cache_bytes(c, room);
  room.positions = 1;
  const std::uint64_t each = cache_bytes(c, room) - remembered;
  room.recent = 1;
  const std::uint64_t with_recent = cache_bytes(c, room) - remembered;
  std::string text = fmt::format("keys and values {} bytes a token (on the CPU half with --kv-cache f16)", with_recent);
  if (with_recent > each) {
    const std::uint32_t recent = CacheRoom(c, c.context, GenerateOptions{}.prefill_chunk).recent;
    text += fmt::format(", {} of them of the last {} alone", with_recent - each, recent);
  }
  if (remembered > 0) text += fmt::format(", and {} a sequence that its other layers remember", remembered);
  return text;
}

/// What a model needs at each precision, what this machine has, and which command would run the model.
std::string needs_of(const ModelConfig& c, const std::vector<ExpertLayout>& layouts, std::uint64_t dense,
                     std::uint64_t all, const std::string& tokenizer) {
  const std::uint64_t memory = physical_memory();
  std::string text = fmt::format("{}; this machine's memory {} bytes\n", cache_of(c), memory);
  for (const Precision p : {Precision::full, Precision::int8, Precision::int4, Precision::int2}) {
    std::uint64_t bytes = 0;
    for (std::uint32_t l = 0; l < c.moe_layer_count(); ++l) {
      bytes += c.moe(l).experts * layouts[layouts.size() == 1 ? 0 : l].bytes(p);
    }
    const std::uint64_t needed = bytes + dense;
    text += fmt::format("  {:<5} experts {} bytes, with everything else {}: {}\n", layouts[0].name(p), bytes, needed,
                        fits_in_memory(needed) ? "fits in memory here" : "is read from the disk as it is needed");
  }
  // Without a GPU the slots are in host memory, too, in addition to all experts.
  const std::uint64_t left = memory > dense + all ? memory - dense - all : 0;
  text += left == 0 ? "largest budget here, with all experts in memory: none\n"
                    : fmt::format("largest budget here, with all experts in memory: {} bytes ({:.0f}%)\n",
                                  std::min(left, all),
                                  100.0 * static_cast<double>(std::min(left, all)) / static_cast<double>(all));
  const std::string lacking = beyond_cuda(c, layouts);
  text += fmt::format("tokenizer: {}\n", tokenizer);
  text += fmt::format("devices: cpu{}\n",
                      lacking.empty() ? ", cuda" : fmt::format(" (cuda does not compute {} yet)", lacking));
  const bool everything = dense + 2 * all <= memory;
  text += fmt::format("stacks: all {} of `ferry list` apply; recommended is {}\n", all_stacks().size(),
                      everything ? "resident at a budget of 100%, ferry below"
                                 : "ferry, which is lossless and computes on the host what is not there; ferry "
                                   "recommend says it for a machine and a text");
  return text;
}

/// What --verify and --write-checksums ask for.
void checksums(const Checkpoint& checkpoint, const RunArguments& a) {
  if (!a.model.verify.empty()) {
    a.model.check(checkpoint);
    print(fmt::format("{} weight files are what {} says\n", checkpoint.files().size(), a.model.verify));
  }
  if (a.checksums.empty()) return;
  check_outputs({a.checksums}, a.model.inputs());
  const std::string line_end = fmt::format("  {}\n", checkpoint.files()[0].first.filename().string());
  OutputFile out(a.checksums, {"a list of this model's checksums", "", line_end.c_str()});
  ProgressLine line("reading, bytes");
  const std::string list = weight_checksums(checkpoint, [&line](std::uint64_t done, std::uint64_t all) {
    line.show(done, all);
    return !stop;
  });
  if (list.empty()) throw Interrupted();
  checkpoint.check_unchanged();
  out.commit(list);
}

int inspect(const RunArguments& a) {
  if (!a.model.store.empty()) return inspect_store(a);
  const std::filesystem::path path = find_model(a.model.model);
  ModelConfig c = read_model_config(path);
  const Checkpoint checkpoint(path);
  take_names(checkpoint, c);
  checksums(checkpoint, a);
  const ExpertReader reader(checkpoint, c);
  const std::vector<ExpertLayout>& layouts = reader.layouts();
  const ModelShape shape = model_shape(c, layouts, 0, 1);  // without reading the experts
  std::uint64_t experts = 0;                               // bytes
  for (std::uint32_t l = 0; l < c.moe_layer_count(); ++l) {
    experts += c.moe(l).experts * layouts[layouts.size() == 1 ? 0 : l].bytes();
  }
  const std::uint64_t dense = checkpoint.weight_bytes() > experts ? checkpoint.weight_bytes() - experts : 0;
  const std::uint64_t all = shape.all_bytes();
  std::vector<std::uint64_t> expert;
  for (const ExpertLayout& l : layouts) expert.push_back(l.bytes());
  const std::uint64_t budget = parse_budget(a.flags.budget, all);
  const Allotment per_layer = pool_per_layer(shape, budget), one = one_pool(shape, budget);
  print(wrapped(
      fmt::format("{} ({})\n"
                  "  layers {}{}, hidden {}, heads {} ({} for keys and values), vocabulary {}, context {}\n"
                  "  experts {} a layer, top-{}, width {}{}\n"
                  "  one expert {} bytes ({}), all {} experts {} bytes, everything else {} bytes\n"
                  "budget {} = {} bytes ({:.1f}% of all experts)\n",
                  a.model.model, c.architecture_name, c.layers,
                  c.moe_layer_count() == c.layers ? "" : fmt::format(" ({} with experts)", c.moe_layer_count()),
                  c.hidden, c.heads, range_of(c.of_moe_layers(&LayerConfig::kv_heads)), c.vocabulary, c.context,
                  range_of(c.of_moe_layers(&LayerConfig::experts)), range_of(c.of_moe_layers(&LayerConfig::top_k)),
                  range_of(c.of_moe_layers(&LayerConfig::expert_width)),
                  c.shared_width > 0 ? fmt::format(", shared expert of width {}",
                                                   range_of(c.of_moe_layers(&LayerConfig::shared_width)))
                                     : "",
                  range_of(expert), layouts[0].name(Precision::full), c.routed_experts(), all, dense, a.flags.budget,
                  budget, 100.0 * static_cast<double>(budget) / static_cast<double>(all)),
      terminal_columns()));
  std::string reads = "none, which leaves --token-ids";
  try {
    if (const auto tokenizer = open_tokenizer(path, c)) {
      reads = fmt::format("{}, {} tokens", tokenizer->kind(), tokenizer->size());
    }
  } catch (const InputError& e) {
    reads += fmt::format(" ({})", e.what());
  }
  const std::string needs = wrapped(needs_of(c, layouts, dense, all, reads), terminal_columns());
  if (per_layer.stream_slots == 0) {
    print("  every expert fits\n" + needs);
    return 0;
  }
  print(fmt::format("  a pool for each layer: {} to {} of {} experts a layer, and {} stream slots\n"
                    "  one pool: {} of {} experts, and {} stream slots\n",
                    per_layer.pools.back().slots, per_layer.pools.front().slots, c.experts, per_layer.stream_slots,
                    one.pools[0].slots, c.routed_experts(), one.stream_slots) +
        needs);
  return 0;
}

void add_prompts(CLI::App* c, RunArguments& a) {
  c->add_option("--prompt", a.prompts, "text to continue; several make a batch")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  add_named(c, "--prompt-file", a.prompt_files, "FILE",
            "file with one prompt, - for standard input; several make a batch")
      ->allow_extra_args(false);
  add_named(c, "--token-ids", a.token_files, "FILE",
            "file of prompts as tokens, one on a line: numbers between blanks or commas, or a JSON list")
      ->excludes("--prompt")
      ->excludes("--prompt-file")
      ->allow_extra_args(false);
  add_count(c, "--max-new-tokens", a.max_new_tokens, 1, 1 << 28, "tokens to generate for each prompt");
  c->add_option("--batch", a.batch, "prompts decoded together (default: all, at most 8); prompts repeat to fill it")
      ->type_name("N")
      ->check(in_range(1, 8));
  add_count(c, "--prefill-chunk", a.prefill_chunk, 1, 65536, "tokens of a prompt in one step");
}

/// Adds the options for the link and the clock that runs imitate.
void add_machine(CLI::App* c, RunArguments& a) {
  add_named(c, "--machine", a.machine, "NAME|FILE",
            "imitate this machine's ratio of expert transfer to compute: a name or a file");
  add_named(c, "--prefetch-chunk", a.prefetch_chunk, "SHARE|BYTES", prefetch_chunk_help)->capture_default_str();
  c->add_option("--clock", a.clock,
                "real: this machine's time, the link throttled in its ratio to compute; virtual: time as that "
                "machine's costs say, however busy this one is")
      ->check(CLI::IsMember({"real", "virtual"}))
      ->capture_default_str();
}

/// Adds the options that `run` and `compare` share.
void add_generation(CLI::App* c, RunArguments& a) {
  a.model.add_model(c);
  a.flags.add_budget(c);
  a.model.add_experts(c);
  a.model.add_device(c);
  c->add_option("--device-memory", a.device_memory,
                "the device's whole memory, of which experts get what weights, keys and values, and activations leave")
      ->type_name("BYTES")
      ->check(a_size)
      ->excludes("--budget");
  a.flags.add_parameters(c);
  a.flags.add_defaults(c);
  add_prompts(c, a);
  a.sampling.add(c);
  CLI::Option* logprobs = c->add_option("--logprobs", a.logprobs,
                                        "with --json: the logarithm of each token's probability, and so many likeliest")
                              ->type_name("N")
                              ->check(in_range(1, 100));
  add_machine(c, a);
  c->add_flag("--gate-worker", a.gate_worker, "make predicted gate scores on a thread of their own");
  logprobs->needs(add_named(c, "--json", a.json, "FILE", "write all numbers to this file; - for standard output"));
  c->footer(stacks_help());
}

CLI::App* add_run(CLI::App& app, RunArguments& a) {
  CLI::App* c = app.add_subcommand("run", "generate text under one policy stack");
  add_generation(c, a);
  add_stack(c, a.stack);
  add_named(c, "--logits", a.logits, "FILE", "write the logits of each generated token to this file (safetensors)");
  add_named(c, "--timeline", a.timeline, "FILE", "write a Chrome/Perfetto timeline to this file");
  return c;
}

CLI::App* add_compare(CLI::App& app, RunArguments& a) {
  CLI::App* c = app.add_subcommand("compare", "run several stacks on the same prompts, side by side");
  add_generation(c, a);
  c->add_option("--stacks", a.stacks, "comma-separated, from the list below, or files")
      ->type_name("NAMES|FILES")
      ->delimiter(',')
      ->transform(without_spaces)
      ->capture_default_str();
  return c;
}

CLI::App* add_inspect(CLI::App& app, RunArguments& a) {
  CLI::App* c = app.add_subcommand("inspect", "print a model's shape and what fits in a budget; or check a store");
  a.model.add_model(c);
  a.flags.add_budget(c);
  add_named(c, "--store", a.model.store, "FILE",
            "print what this file has, and read all of it; with --model that model's experts, too")
      ->excludes("--budget");
  a.model.add_verify(c);
  c->get_option("--verify")->excludes("--store");
  c->add_option("--write-checksums", a.checksums, "write those of all weight files to this file, for --verify")
      ->excludes("--store")
      ->type_name("FILE")
      ->check(not_empty);
  return c;
}

}  // namespace

void add_run_commands(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<RunArguments>();
  auto with_model = [a, &chosen](int (*command)(const RunArguments&)) {
    chosen = [a, command] {
      a->flags.use_model(model_name(a->model.model));
      return command(*a);
    };
  };
  add_run(app, *a)->callback([with_model] { with_model(run); });
  add_compare(app, *a)->callback([with_model] { with_model(compare); });
  CLI::App* c = add_inspect(app, *a);
  c->callback([a, c, &chosen] {
    a->model_given = c->count("--model") > 0;
    chosen = [a] { return inspect(*a); };
  });
}

}  // namespace ferry::engine
