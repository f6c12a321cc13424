// ferry recommend: which stack for this model's routing, on this machine, with this memory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "calibrate/calibrate.hpp"
#include "command/command.hpp"
#include "command/device_memory.hpp"
#include "command/model_flags.hpp"
#include "command/token_ids.hpp"
#include "ferry/macros.hpp"
#include "ferry/router/expert_skipping.hpp"
#include "inference/eval.hpp"
#include "report/report.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/progress.hpp"
#include "support/terminal.hpp"
#include "support/text_file.hpp"
#include "support/threads.hpp"
#include "sweep/recommend.hpp"
#include "trace/record.hpp"

namespace ferry::engine {
namespace {

const std::string this_machine = "this";

struct RecommendArguments {
  StackFlags flags;
  ModelFlags model;
  std::string trace, machine, as_shape, text, token_ids, device_memory, json, machine_out;
  std::vector<std::string> stacks;           ///< empty: all
  std::vector<const CLI::Option*> of_model;  ///< the options that say which model, and how it is read
  bool lossless = false, every_stack = false;
  std::uint32_t batch = 1, chunk = 128, tokens = 0, context = 0;  ///< 0: as help says
};

/// Stacks by what they do to the model.
enum class Kind {
  exact,     ///< computes with the checkpoint's own weights
  promised,  ///< keeps within a given loss
  lossy      ///< its loss has to be measured
};

/// `all_bytes`: of all experts at the model's own precision; 0: not known yet.
Kind kind_of(const StackOptions& o, std::uint64_t all_bytes = 0) {
  const StackInfo& info = find_stack(o.stack);
  if (info.keeps_every_bit()) return Kind::exact;
  if (info.full_where_all_fits && precisions_for(o, all_bytes).bits == PrecisionSet(Precision::full).bits)
    return Kind::exact;
  return takes_parameter(o.stack, &StackOptions::max_loss, o.pools) ? Kind::promised : Kind::lossy;
}

bool only_int4(const StackOptions& o) {
  const StackInfo& info = find_stack(o.stack);
  return info.lossless && info.precisions.bits == PrecisionSet(Precision::int4).bits;
}

std::string ms(double s) {
  return s < 1 ? fmt::format("{:.2f} ms", 1e3 * s) : fmt::format("{:.2f} s", s);
}

std::string gigabytes(std::uint64_t bytes) {
  const auto b = static_cast<double>(bytes);
  return b < 1e9 ? fmt::format("{:.1f} MB", b / 1e6) : fmt::format("{:.2f} GB", b / 1e9);
}

class RecommendCommand {
 public:
  explicit RecommendCommand(RecommendArguments& a) : a_(a), options_() {}

  int run() {
    check();
    find_machine();
    if (a_.trace.empty()) {
      open_model();
    } else {
      open_trace();
    }
    setting().as_shape = a_.as_shape;
    budget();
    if (a_.trace.empty()) record();
    choose();
    if (model_) measure_losses();
    if (options_.candidates.empty() && !left_out_.empty()) {
      throw InputError(fmt::format("no stack may be chosen; {}: {}", left_out_[0].stack, left_out_[0].why));
    }
    options_.threads = all_threads();
    {
      ProgressLine line("simulations");
      options_.progress = [&line](std::uint64_t done, std::uint64_t total) {
        line.show(done, total);
        return !stop;
      };
      result_ = recommend(options_);
    }
    warn_of_batch(trace_->trace, a_.batch);
    for (RankedStack& s : result_.ranking) s.run.rounded = model_ && model_->rounds();
    if (result_.ranking.empty()) throw Interrupted();
    report();
    return stop ? 128 + stopped_by : 0;
  }

 private:
  SimulatedSetting& setting() { return options_.setting; }
  [[nodiscard]] bool may_lose() const { return a_.flags.given.contains(max_loss()); }
  static const std::string& max_loss() { return parameter_of(&StackOptions::max_loss).name; }
  [[nodiscard]] double most_loss() const { return a_.flags.given.at(max_loss()).get<double>(); }

  /// Refuses arguments that are wrong in themselves, and opens the outputs.
  void check() {
    const bool of_model = a_.trace.empty();
    if (of_model && a_.model.model.empty()) {
      throw InputError("recommend needs routing: expected --model, whose routing is recorded, or --trace FILE");
    }
    for (const CLI::Option* o : a_.of_model) {
      if (!of_model && o->count() > 0) {
        throw InputError(fmt::format("{}: goes with a model: with --trace no model is read", o->get_name()));
      }
    }
    if (!of_model && (!a_.text.empty() || !a_.token_ids.empty())) {
      throw InputError("--text and --token-ids go with --model: a trace has its routing already");
    }
    if (a_.context > 0 && (!of_model || !a_.as_shape.empty() || a_.device_memory.empty())) {
      throw InputError(
          "--context: is for --device-memory with --model and without --as, whose keys and values are known");
    }
    if (!a_.machine_out.empty() && a_.machine != this_machine) {
      throw InputError("--machine-out: is for --machine this, which is measured");
    }
    if (a_.every_stack = a_.stacks.empty(); a_.every_stack) {
      for (const StackInfo& s : all_stacks()) a_.stacks.push_back(s.name);
    } else {
      StackFlags unparameterised = a_.flags;
      unparameterised.given = Json::object();
      unparameterised.check(a_.stacks);
    }
    std::vector<std::string> inputs = stack_files(a_.stacks);
    inputs.insert(inputs.end(), {a_.trace, a_.as_shape, a_.text, a_.token_ids});
    if (a_.machine != this_machine) inputs.push_back(a_.machine);
    if (of_model) {
      for (const std::string& file : a_.model.inputs()) inputs.push_back(file);
    }
    check_outputs({a_.json, a_.machine_out}, inputs);
    if (!a_.json.empty()) json_.emplace(a_.json, report_json);
    if (!a_.machine_out.empty()) machine_out_.emplace(a_.machine_out, machine_json);
    if (!a_.as_shape.empty()) static_cast<void>(read_shape(a_.as_shape));
  }

  void find_machine() {
    if (a_.machine != this_machine) {
      setting().machine = read_machine(a_.machine);
      return;
    }
    ProgressLine line("measurements of this machine", 0);
    const Json measured = calibrate_machine("this-machine", [&line](std::uint64_t done, std::uint64_t total) {
      line.show(done, total);
      return !stop;
    });
    if (measured.is_null()) throw Interrupted();
    setting().machine = read_machine(measured, "--machine this");
    if (machine_out_) machine_out_->commit(json_text(measured, 2) + "\n");
  }

  void open_trace() {
    trace_ = std::make_unique<TraceFile>(std::filesystem::path(a_.trace));
    a_.flags.use_model(trace_->trace.name);
    setting().trace = trace_.get();
    setting().trace_name = std::filesystem::path(a_.trace).filename().string();
  }

  void open_model() {
    a_.flags.use_model(model_name(a_.model.model));
    const std::string source = !a_.text.empty()        ? a_.text
                               : !a_.token_ids.empty() ? a_.token_ids
                                                       : bundled_text().string();
    std::vector<StackOptions> wanted(1);
    wanted[0].stack = "resident";
    for (const std::string& s : a_.stacks) {
      StackOptions o;
      a_.flags.set(o, s);
      if (may_lose() || kind_of(o) == Kind::exact) wanted.push_back(o);
    }
    model_ = a_.model.open(wanted, {});
    if (a_.lossless && model_->config().cache_type != FloatType::f32) {
      throw InputError("--lossless: --kv-cache f16 rounds keys and values: leave one of them out");
    }
    if (a_.lossless && model_->rounds()) {
      throw InputError(
          "--lossless: --activations int8 rounds what this model's own weights are multiplied with: leave "
          "one of them out");
    }
    const std::uint32_t most = a_.tokens > 0 ? a_.tokens : 1024;
    if (a_.token_ids.empty()) {
      text_ = tokenized(*model_, read_text("--text", source));
    } else {
      for (const std::vector<std::uint32_t>& all : read_token_ids(source)) {
        const std::vector<std::uint32_t> t = without_begin(*model_, all);
        text_.tokens.insert(text_.tokens.end(), t.begin(), t.end());
      }
    }
    if (text_.tokens.empty()) throw InputError(fmt::format("{}: the text is empty", source));
    check_tokens(model_->config(), {text_.tokens});
    text_.tokens.resize(std::min<std::size_t>(text_.tokens.size(), most));
    text_.bytes.resize(std::min<std::size_t>(text_.bytes.size(), most));
    // So many windows that a batch is full, if they do not become all too short.
    const auto each = static_cast<std::uint32_t>(model_->begin_tokens().size() + text_.tokens.size() / a_.batch);
    window_ = std::min(a_.batch == 1 ? 256U : std::clamp(each, 32U, 256U), model_->config().context);
    setting().trace_name = std::filesystem::path(source).filename().string();
  }

  /// The device memory for experts, each counted with the size that it has in the simulation.
  void budget() {
    ModelShape shape;
    BesideExperts beside;
    if (model_) {
      shape = counted_as(model_shape(model_->config(), model_->store(), 1), a_.as_shape);
      const std::uint32_t context =
          a_.context > 0 ? a_.context : std::min<std::uint32_t>(4096, model_->config().context);
      if (context > model_->config().context) {
        throw InputError(
            fmt::format("--context {}: expected at most {}, the model's", context, model_->config().context));
      }
      beside = beside_experts(*model_, std::vector<std::uint32_t>(a_.batch, context), a_.batch, a_.chunk);
    } else {
      shape = setting().model();
    }
    if (!model_ || !a_.as_shape.empty()) {  // shapes tell the size of weights alone
      const std::vector<LayerWork> work = a_.as_shape.empty() ? trace_->work : read_shape(a_.as_shape).work;
      beside = {};
      for (std::uint32_t l = 0; l < shape.layers; ++l) beside.weights += work[work.size() == 1 ? 0 : l].dense_bytes;
    }
    all_bytes_ = shape.all_bytes();
    weights_bytes_ = beside.weights;
    if (a_.device_memory.empty()) {
      budget_bytes_ = parse_budget(a_.flags.budget, all_bytes_);
      options_.doubled_bytes = 2 * budget_bytes_;
    } else {
      budget_bytes_ = left_for_experts(a_.device_memory, beside, all_bytes_);
      options_.doubled_bytes = budget_bytes_ + parse_budget(a_.device_memory, 0, "--device-memory");
    }
  }

  /// The same share of the model's own experts, for what is run and not simulated.
  [[nodiscard]] std::uint64_t own_budget(const ModelShape& own) const {
    const double share = static_cast<double>(budget_bytes_) / static_cast<double>(all_bytes_);
    return all_bytes_ == own.all_bytes() ? budget_bytes_
                                         : static_cast<std::uint64_t>(share * static_cast<double>(own.all_bytes()));
  }

  /// What the model's work costs on the machine, for runs on the virtual clock.
  [[nodiscard]] Costs run_costs(const ModelShape& own) {
    if (a_.as_shape.empty())
      return setting().machine.costs(model_work(model_->config(), model_->dense_bits()), CostSource::effective);
    const ModelFacts as = read_shape(a_.as_shape);
    return as_if(setting().machine.costs(as.work, CostSource::effective), as, own);
  }

  void record() {
    RunnerOptions o;
    o.stack = "resident";
    o.max_rows = window_;
    const ModelShape own = model_shape(model_->config(), model_->store(), window_);
    o.budget_bytes = own_budget(own);
    o.virtual_costs = run_costs(own);
    std::unique_ptr<ExpertRunner> runner;
    if (may_lose()) {  // some of these read partial hidden states, which depend on what is resident
      o.stack = "importance+pre";
      o.alpha = 0.0F;  // it replaces nothing: the routing is the model's own
      try {
        runner = make_runner(*model_, o);
      } catch (const ConfigError&) {  // then those stacks cannot run, either
        o.stack = "resident";
      }
    }
    if (!runner) runner = make_runner(*model_, o);
    RecordOptions r;
    r.window = window_;
    const auto tokens = static_cast<std::uint32_t>(model_->begin_tokens().size() + text_.tokens.size());
    r.prompt = std::max(1U, (tokens > window_ / 4 ? window_ : tokens) / 4);
    ProgressLine line("windows of the text");
    r.progress = [&line](std::uint64_t done, std::uint64_t total) {
      line.show(done, total);
      return !stop;
    };
    trace_ = record_tokens(*model_, *runner, model_name(a_.model.model), {text_.tokens}, r);
    if (stop) throw Interrupted();
    setting().trace = trace_.get();
  }

  /// Which stacks are in question.
  void choose() {
    for (const std::string& name : a_.stacks) {
      StackCandidate c;
      c.label = a_.flags.named(name).label;
      a_.flags.set(c.options, name);
      c.options.budget_bytes = budget_bytes_;
      c.options.batch = a_.batch;
      c.options.prefill_chunk = a_.chunk;
      c.options.max_tokens = model_ ? ~std::uint64_t{0} : a_.tokens > 0 ? a_.tokens : 4096;
      c.parameters = a_.flags.taken_by(name);
      const Kind kind = kind_of(c.options, all_bytes_);
      if (kind != Kind::exact && only_int4(c.options)) options_.in_int4.push_back(c);
      // What a promise was calibrated for covers what the experts' own bits lose; less does not.
      const double promised_from = ExpertSkipping().max_loss;
      if (kind == Kind::exact) {
        options_.candidates.push_back(c);
      } else if (may_lose() && !model_ && kind == Kind::promised && most_loss() < promised_from) {
        left_out_.push_back(
            {c.label,
             fmt::format("promises its loss, with that of INT4, from {:g}% on; --model measures it", promised_from)});
      } else if (may_lose() && (model_ || kind == Kind::promised)) {
        if (!model_) c.loss_percent = most_loss();
        options_.candidates.push_back(c);
      } else if (may_lose()) {
        unmeasured_.push_back(c.label);
      } else if (!a_.every_stack) {
        left_out_.push_back({c.label, "changes what the model computes: --max-loss 1% allows some of that"});
      }
      names_[c.label] = name;
    }
  }

  /// Measures on the text what each lossy stack loses. Leaves out stacks that lose too much.
  void measure_losses() {
    EvalOptions eval;
    eval.window = window_;
    const std::uint32_t rows = eval.max_rows(model_->begin_tokens().size());
    const ModelShape own = model_shape(model_->config(), model_->store(), rows);
    auto complete = [&](StackOptions o) {
      RunnerOptions r;
      static_cast<StackOptions&>(r) = o;
      r.budget_bytes = own_budget(own);
      r.max_rows = rows;
      r.virtual_costs = run_costs(own);
      return r;
    };
    // Stacks that only store fewer bits compute what the resident model at those bits computes: one run serves all.
    const std::pair<Precision, const char*> packed[] = {
        {Precision::int8, "resident-int8"}, {Precision::int4, "resident-int4"}, {Precision::int2, "resident-int2"}};
    auto stands_for = [&](const StackCandidate& c) -> std::optional<StackOptions> {
      if (kind_of(c.options, all_bytes_) == Kind::exact) return {};
      StackOptions o = c.options;
      if (!find_stack(o.stack).lossless) return o;
      for (const auto& [precision, resident] : packed) {
        if (find_stack(o.stack).precisions.bits != PrecisionSet(precision).bits) continue;
        o = StackOptions();
        o.stack = resident;
      }
      return o;
    };
    std::vector<std::string> keys;
    std::vector<std::unique_ptr<ExpertRunner>> runners;
    std::vector<std::size_t> run_of(options_.candidates.size(), ~std::size_t{0});
    std::vector<std::string> refused(options_.candidates.size());
    for (std::size_t i = 0; i < options_.candidates.size(); ++i) {
      const auto o = stands_for(options_.candidates[i]);
      if (!o) continue;
      const std::string key = find_stack(o->stack).keeps_everything ? o->stack : options_.candidates[i].label;
      const auto found = std::find(keys.begin(), keys.end(), key);
      run_of[i] = static_cast<std::size_t>(found - keys.begin());
      if (found != keys.end()) continue;
      try {
        runners.push_back(make_runner(*model_, complete(*o)));
        keys.push_back(key);
      } catch (const ConfigError& e) {  // a simulation would refuse it for the same reason
        refused[i] = e.what();
      }
    }
    if (runners.empty()) return;
    ProgressLine line("tokens, to measure losses");
    eval.progress = [&](std::uint64_t done, std::uint64_t total) {
      line.show(done, total);
      return !stop;
    };
    StackOptions resident;
    resident.stack = "resident";
    const std::vector<Evaluated> measured =
        evaluate(*model_, *make_runner(*model_, complete(resident)), runners, text_, eval);
    if (stop) throw Interrupted();
    std::vector<StackCandidate> kept;
    for (std::size_t i = 0; i < options_.candidates.size(); ++i) {
      StackCandidate c = options_.candidates[i];
      if (!refused[i].empty()) {
        left_out_.push_back({c.label, refused[i]});
        continue;
      }
      if (run_of[i] < measured.size()) {
        const Quality& q = measured[run_of[i]].quality;
        // The greater of bits and divergence: bits alone are noisy on short texts.
        c.loss_percent = std::max(q.change_percent(), 100 * q.kl_divergence() / q.bits_per_byte_resident());
        if (*c.loss_percent > most_loss()) {
          left_out_.push_back({c.label, fmt::format("loses {:.2f}% on this text", *c.loss_percent)});
          continue;
        }
      }
      kept.push_back(c);
    }
    options_.candidates = kept;
  }

  [[nodiscard]] const RankedStack& best() const { return result_.ranking[0]; }
  [[nodiscard]] double bound_s() const { return best().run.simulated->clairvoyant_with_host_tpot_s; }
  [[nodiscard]] double share() const { return static_cast<double>(budget_bytes_) / static_cast<double>(all_bytes_); }

  void report() {
    const std::size_t columns = terminal_columns();
    const Trace& t = trace_->trace;
    std::uint64_t tokens = best().run.generated.prefill_tokens + best().run.generated.decode_tokens;
    std::string text =
        wrapped(printable(fmt::format("{}{}, {} tokens of {}, on {}: {} for experts ({:.1f}% of all), batch {}", t.name,
                                      a_.as_shape.empty() ? "" : " as " + read_shape(a_.as_shape).name, tokens,
                                      setting().trace_name, setting().machine.name, gigabytes(budget_bytes_),
                                      100 * share(), a_.batch)) +
                    "\n\n",
                columns);
    const double device = setting().machine.device_bytes, needed = static_cast<double>(budget_bytes_ + weights_bytes_);
    if (device > 0 && a_.device_memory.empty() && needed > device) {
      text += wrapped(printable(fmt::format("Note: that and {} of other weights are more than the {} that {} has.\n\n",
                                            gigabytes(weights_bytes_), gigabytes(static_cast<std::uint64_t>(device)),
                                            setting().machine.name)),
                      columns);
    }
    std::size_t width = 5;
    for (const RankedStack& s : result_.ranking) width = std::max(width, s.candidate.label.size());
    text += fmt::format("    {:<{}}  {:>11}  {:>6}  {:>11}{}\n", "stack", width, "TPOT", "ratio", "TTFT",
                        may_lose() ? "    loss" : "");
    for (std::size_t i = 0; i < result_.ranking.size(); ++i) {
      const RankedStack& s = result_.ranking[i];
      text += fmt::format("{:>2}  {:<{}}  {:>11}  {:>6}  {:>11}", i + 1, s.candidate.label, width, ms(s.tpot_s()),
                          fmt::format("{:.2f}", s.tpot_s() / best().tpot_s()), ttft(s));
      if (may_lose()) text += fmt::format("  {:>6}", loss(s.candidate));
      text += "\n" + wrapped("    " + s.reason + "\n", columns);
    }
    text += "\n" + wrapped(in_short(), columns);
    print(text + wrapped(what_helps() + not_ranked() + of_parameters(), columns) +
          a_.flags.calibrated_note({names_.at(best().candidate.label)}));
    if (stop) {
      print(fmt::format("interrupted: only what was simulated is ranked, {} of {} simulations\n", result_.done,
                        result_.runs));
    }
    if (json_) json_->commit(json_text(to_json(), 2) + "\n");
  }

  // 0: the trace has no prompts, or ends within the first.
  static std::string ttft(const RankedStack& s) { return s.ttft_s() == 0 ? "-" : ms(s.ttft_s()); }
  [[nodiscard]] std::string loss(const StackCandidate& c) const {
    if (!c.loss_percent) return "none";
    return model_ ? fmt::format("{:.2f}%", *c.loss_percent) : fmt::format("<= {:g}%", *c.loss_percent);
  }

  /// The best stack, the bound, and a stack whose first token comes sooner.
  std::string in_short() const {
    std::string text = fmt::format("{}: {} a token", best().candidate.label, ms(best().tpot_s()));
    if (bound_s() > 0) {
      text += fmt::format(
          ", {:.2f} times the proven bound of {}: no policy computes {} in less with as many slots, this link and this "
          "host",
          best().tpot_s() / bound_s(), ms(bound_s()),
          best().candidate.loss_percent ? "what it computes" : "this routing");
    }
    text += ".\n";
    const auto first =
        std::min_element(result_.ranking.begin(), result_.ranking.end(),
                         [](const RankedStack& a, const RankedStack& b) { return a.ttft_s() < b.ttft_s(); });
    if (first->ttft_s() < 0.995 * best().ttft_s()) {
      text += fmt::format("{} has the first token {:.0f}% sooner.\n", first->candidate.label,
                          100 * (1 - first->ttft_s() / best().ttft_s()));
    }
    return text;
  }

  std::string what_helps() const {
    if (result_.upgrades.empty()) return "";
    std::string text =
        "\nWhat would help most, each by itself: time for a token, of what it takes now, and the best stack then\n";
    for (const Upgrade& u : result_.upgrades) {
      text += fmt::format("  {:<25}  {:>11}  {:>5.2f}  {}\n", resource_name(u.resource), ms(u.tpot_s),
                          u.tpot_s / best().tpot_s(), u.stack);
    }
    return text;
  }

  /// All that are left out, and why.
  [[nodiscard]] std::vector<LeftOut> all_left_out() const {
    std::vector<LeftOut> all = left_out_;
    all.insert(all.end(), result_.left_out.begin(), result_.left_out.end());
    for (const std::string& s : unmeasured_) all.push_back({s, "nobody has measured that loss; --model does"});
    return all;
  }

  [[nodiscard]] std::string not_ranked() const {
    std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
    for (const LeftOut& l : all_left_out()) {
      const auto found =
          std::find_if(by_reason.begin(), by_reason.end(), [&](const auto& r) { return r.first == l.why; });
      (found == by_reason.end() ? by_reason.emplace_back(l.why, std::vector<std::string>()) : *found)
          .second.push_back(l.stack);
    }
    std::string text;
    for (const auto& [why, those] : by_reason) text += fmt::format("  {}: {}\n", fmt::join(those, ", "), why);
    return text.empty() ? "" : "\nLeft out:\n" + text;
  }

  /// Notes for promised losses that rest on parameters which were not calibrated for this model.
  std::string of_parameters() const {
    std::string text = "\n";
    for (const RankedStack& s : result_.ranking) {
      if (model_ || kind_of(s.candidate.options, all_bytes_) != Kind::promised) continue;
      if (!a_.flags.named(names_.at(s.candidate.label)).calibrated.empty()) continue;
      text += fmt::format(
          "{}: that it keeps within {}% rests on a loss-rate which is not this model's own; "
          "ferry calibrate skipping finds that\n",
          s.candidate.label, most_loss());
    }
    return text;
  }

  Json to_json() const {
    Json json = {{"ferry", FERRY_VERSION},
                 {"activations", a_.model.activations},
                 {"kv_cache", a_.model.kv_cache},
                 {"command_line", command_line},
                 {"model", trace_->trace.name},
                 {"trace", setting_of().trace_name},
                 {"as_shape", a_.as_shape.empty() ? Json() : Json(a_.as_shape)},
                 {"machine", setting_of().machine.name},
                 {"batch", a_.batch},
                 {"budget_bytes", budget_bytes_},
                 {"budget_percent", 100 * share()},
                 {"max_loss_percent", may_lose() ? Json(most_loss()) : Json()},
                 {"bound_tpot_s", bound_s()},
                 {"interrupted", result_.interrupted()},
                 {"ranking", Json::array()},
                 {"upgrades", Json::array()},
                 {"left_out", Json::array()}};
    for (const RankedStack& s : result_.ranking) {
      json["ranking"].push_back({{"stack", s.candidate.label},
                                 {"tpot_s", s.tpot_s()},
                                 {"ttft_s", s.ttft_s() == 0 ? Json() : Json(s.ttft_s())},
                                 {"ratio", s.tpot_s() / best().tpot_s()},
                                 {"reason", s.reason},
                                 {"loss_percent", s.candidate.loss_percent ? Json(*s.candidate.loss_percent) : Json()},
                                 {"loss_measured", s.candidate.loss_percent.has_value() && model_ != nullptr},
                                 {"run", engine::to_json(s.run)}});
      const std::string& file = a_.flags.named(names_.at(s.candidate.label)).calibrated;
      if (!file.empty()) json["ranking"].back()["calibrated"] = file;
    }
    for (const Upgrade& u : result_.upgrades) {
      json["upgrades"].push_back({{"what", resource_key(u.resource)},
                                  {"stack", u.stack},
                                  {"tpot_s", u.tpot_s},
                                  {"ttft_s", u.ttft_s == 0 ? Json() : Json(u.ttft_s)},
                                  {"budget_bytes", u.budget_bytes},
                                  {"ratio", u.tpot_s / best().tpot_s()}});
    }
    for (const LeftOut& l : all_left_out()) json["left_out"].push_back({{"stack", l.stack}, {"why", l.why}});
    return json;
  }
  [[nodiscard]] const SimulatedSetting& setting_of() const { return options_.setting; }

  RecommendArguments& a_;
  std::optional<OutputFile> json_, machine_out_;
  std::unique_ptr<TraceFile> trace_;
  std::unique_ptr<Model> model_;
  TokenizedText text_;
  std::uint32_t window_ = 0;
  std::uint64_t budget_bytes_ = 0, all_bytes_ = 0, weights_bytes_ = 0;  ///< weights: those that are no experts
  RecommendOptions options_;
  Recommendation result_;
  std::vector<LeftOut> left_out_;             ///< before anything was simulated
  std::vector<std::string> unmeasured_;       ///< whose loss is not known
  std::map<std::string, std::string> names_;  ///< of labels: what the user calls the stack
};

}  // namespace

void add_recommend_command(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<RecommendArguments>();
  a->model.model.clear();
  CLI::App* c = app.add_subcommand(
      "recommend", "rank stacks for a model's routing, a machine and its memory, and say what would help most");
  const std::size_t others = c->get_options().size();
  a->model.add_model(c);
  a->model.add_experts(c);
  const std::vector<CLI::Option*> options = c->get_options();
  a->of_model.assign(options.begin() + static_cast<std::ptrdiff_t>(others), options.end());
  auto file = [&](const char* name, std::string& value, const char* help) {
    return add_named(c, name, value, "FILE", help);
  };
  file("--trace", a->trace, "instead of a model: routing that ferry trace recorded, imported or generated");
  file("--text", a->text, "over which the model's routing is recorded (default: one that comes with ferry)");
  file("--token-ids", a->token_ids, "the same as tokens, for models without a tokenizer")->excludes("--text");
  c->add_option("--tokens", a->tokens, "at most so many of the text, or of the trace (default: 1024, 4096)")
      ->type_name("N")
      ->check(in_range(2U, 1U << 30U));
  add_named(c, "--as", a->as_shape, "NAME|FILE",
            "count each expert as large as this model's: a shape's name or file (tiny models)");
  add_named(c, "--machine", a->machine, "NAME|FILE|this",
            "a name from the list below, a file, or this: measured now, as a CPU alone")
      ->required();
  file("--machine-out", a->machine_out, "keep what --machine this measured, for --machine");
  a->flags.add_budget(c);
  c->add_option("--device-memory", a->device_memory,
                "the device's whole memory, of which experts get what weights and, with a model of its own size, keys "
                "and values and activations leave")
      ->type_name("BYTES")
      ->check(a_size)
      ->excludes("--budget");
  c->add_option("--context", a->context,
                "tokens of each sequence whose keys and values --device-memory has to hold (default: the model's "
                "context, at most 4096)")
      ->type_name("N")
      ->check(in_range(1, 1 << 24));
  auto* lossless = c->add_flag("--lossless", a->lossless,
                               "only stacks that compute what the model's own weights do, bit for bit (the default)");
  const Parameter& most = parameter_of(&StackOptions::max_loss);
  c->add_option_function<std::vector<std::string>>(
       most.flag(), [a, &most](const std::vector<std::string>& words) { a->flags.given[most.name] = most.read(words); },
       "also stacks that need at most so many more bits: measured over the text with --model, else ferry-lossy by "
       "its own bound")
      ->type_name(most.range())
      ->expected(1)
      ->excludes(lossless);
  c->add_option("--stack,--stacks", a->stacks, "only these, comma-separated, from the list below, or files")
      ->type_name("NAMES|FILES")
      ->delimiter(',')
      ->transform(without_spaces);
  a->flags.add_defaults(c);
  add_count(c, "--batch", a->batch, 1, 4096, "sequences decoded together");
  add_count(c, "--prefill-chunk", a->chunk, 1, 65536, "tokens of a prompt in one step");
  file("--json", a->json, "write all numbers to this file; - for standard output");
  std::string machines = "Machines:";
  for (const std::string& m : machine_names()) machines += " " + m;
  c->footer(stacks_help() + machines);
  c->callback([a, &chosen] { chosen = [a] { return RecommendCommand(*a).run(); }; });
}

}  // namespace ferry::engine
