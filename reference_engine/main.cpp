// The ferry command.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>

#include "errors.hpp"
#include "ferry/error.hpp"
#include "ferry/macros.hpp"
#include "generate.hpp"
#include "machine.hpp"
#include "report.hpp"
#include "suggest.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

std::atomic<bool> stop = false;
std::atomic<int> stopped_by = 0;

void on_interrupt(int signal) {
  stopped_by = signal;
  stop = true;
  std::signal(signal, SIG_DFL);  // a second one ends at once
}

/// Without SA_RESTART: a read that blocks is interrupted, too.
void handle_signals() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  for (const int s : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(s, &action, nullptr);
  action.sa_handler = SIG_IGN;  // write errors are handled where they happen
  for (const int s : {SIGPIPE, SIGXFSZ}) ::sigaction(s, &action, nullptr);
}

/// A closed standard stream must not become the number of a file that we write.
void open_closed_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) static_cast<void>(::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY));
  }
}

/// Standard output. A reader that has had enough is no error; a full disk is.
void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  if (errno != EPIPE) throw InputError(fmt::format("standard output: cannot be written: {}", std::strerror(errno)));
}

struct Arguments {
  std::string model = "tiny-qwen-moe", stack = "lru", budget = "25%", pools = "stack", machine, json, timeline;
  std::vector<std::string> prompts, prompt_files, stacks = {"on-demand", "lru", "cross-layer-lru"};
  std::uint32_t max_new_tokens = 128, batch = 0;
  double temperature = 0;
  std::uint64_t seed = 0;
  bool gate_worker = false;
  std::optional<float> t1, t2, alpha;
  std::optional<std::uint32_t> low_share, shallow_layers, percentile, depth;

  /// The parameters of policies that were given.
  [[nodiscard]] std::vector<std::string> parameters() const {
    std::vector<std::string> given;
    auto add = [&](bool has, const char* name) {
      if (has) given.emplace_back(name);
    };
    add(t1.has_value(), "--t1");
    add(t2.has_value(), "--t2");
    add(alpha.has_value(), "--alpha");
    add(low_share.has_value(), "--low-share");
    add(shallow_layers.has_value(), "--shallow-layers");
    add(percentile.has_value(), "--percentile");
    add(depth.has_value(), "--depth");
    return given;
  }
};

/// Refuses unknown stacks, and parameters that none of them has.
void check_stacks(const Arguments& a, const std::vector<std::string>& names) {
  for (const std::string& p : a.parameters()) {
    bool taken = false;
    for (const std::string& name : names) {
      const std::vector<std::string>& takes = find_stack(name).parameters;
      taken = taken || std::find(takes.begin(), takes.end(), p) != takes.end() ||
              (p == "--shallow-layers" && a.pools == "shallow");
    }
    if (taken) continue;
    std::vector<std::string> those;
    for (const StackInfo& s : all_stacks()) {
      if (std::find(s.parameters.begin(), s.parameters.end(), p) != s.parameters.end()) those.push_back(s.name);
    }
    throw InputError(fmt::format("{}: {} has no such parameter; stacks that do: {}", p, fmt::join(names, ", "),
                                 fmt::join(those, ", ")));
  }
  for (const std::string& name : names) static_cast<void>(find_stack(name));
}

/// A bundled model by its name, or a folder.
std::filesystem::path find_model(const std::string& name) {
  std::error_code none;
  const auto bundled = data_directory() / "models" / name;
  const bool folder = std::filesystem::is_directory(name, none);
  if (!folder && name.find('/') == std::string::npos && std::filesystem::is_directory(bundled, none)) return bundled;
  if (!folder) {
    throw InputError(
        fmt::format("--model {}: no such folder; bundled models are tiny-qwen-moe and tiny-mixtral", name));
  }
  return name;
}

/// "25%", "1000000", "64MiB" -> bytes.
std::uint64_t parse_budget(const std::string& text, std::uint64_t all_bytes) {
  std::size_t end = 0;
  double value = -1;
  try {
    if (!text.empty() && text.find_first_of("xX") == std::string::npos) value = std::stod(text, &end);
  } catch (const std::exception&) {
  }
  const std::string unit = text.substr(end);
  const std::pair<const char*, double> units[] = {{"%", static_cast<double>(all_bytes) / 100},
                                                  {"", 1},
                                                  {"KiB", 1024.0},
                                                  {"MiB", 1024.0 * 1024},
                                                  {"GiB", 1024.0 * 1024 * 1024}};
  for (const auto& [name, factor] : units) {
    const double bytes = value * factor;
    if (unit == name && bytes >= 0 && bytes < 9e18 && end > 0) return static_cast<std::uint64_t>(bytes);
  }
  throw InputError(fmt::format("--budget {}: expected a share such as 25% or a size such as 8000000 or 64MiB", text));
}

std::string read_text(const std::string& path) {
  constexpr std::size_t largest = 1U << 26U;  // no context is as long
  std::string text;
  std::error_code none;
  std::ifstream in(path, std::ios::binary);
  bool good = in && !std::filesystem::is_directory(path, none) && !std::filesystem::is_fifo(path, none);
  char block[65536];
  while (good && text.size() <= largest) {
    in.read(block, sizeof(block));
    text.append(block, static_cast<std::size_t>(in.gcount()));
    if (in.eof()) return text;
    good = in.good();
  }
  throw InputError(good ? fmt::format("--prompt-file {}: larger than {} bytes", path, largest)
                        : fmt::format("--prompt-file {}: cannot be read", path));
}

/// Everything that `run` and `compare` share.
class Runs {
 public:
  Runs(const Arguments& a, const std::vector<std::string>& stacks) : a_(a) {
    if (!a.json.empty() && a.json == a.timeline) {
      throw InputError(fmt::format("--json and --timeline both name {}: expected two files", a.json));
    }
    for (const std::string& out : {a.json, a.timeline}) {
      std::vector<std::string> inputs = a.prompt_files;
      inputs.push_back(a.machine);
      for (const std::string& in : inputs) {
        std::error_code none;
        if (!out.empty() && std::filesystem::equivalent(in, out, none)) {
          throw InputError(fmt::format("{}: is read by this run, so it cannot be written by it", out));
        }
      }
    }
    if (!a.json.empty()) json_.emplace(a.json);
    if (!a.timeline.empty()) timeline_.emplace(a.timeline);
    if (!a.machine.empty()) machine_ = read_machine(a.machine);
    options_.prompts = a.prompts;
    for (const std::string& file : a.prompt_files) options_.prompts.push_back(read_text(file));
    if (options_.prompts.empty()) options_.prompts = {"Question: A ferry carries 8 cars on each crossing. "};
    // A batch larger than the number of prompts repeats them in turn.
    options_.batch =
        a.batch == 0 ? std::min<std::uint32_t>(8, static_cast<std::uint32_t>(options_.prompts.size())) : a.batch;
    for (std::size_t i = 0; options_.prompts.size() < options_.batch; ++i)
      options_.prompts.push_back(options_.prompts[i]);
    options_.max_new_tokens = a.max_new_tokens;
    if (!(a.temperature >= 0)) throw InputError("--temperature: expected a number from 0 to 100");  // nan passes ranges
    options_.temperature = a.temperature;
    options_.seed = a.seed;
    options_.stop = &stop;
    model_.emplace(find_model(a.model));
    for (const std::string& s : stacks) model_->add_precisions(find_stack(s).precisions);
    shape_ = model_shape(model_->config(), model_->store(), std::max(options_.prefill_chunk, options_.batch));
    budget_ = parse_budget(a.budget, shape_.all_bytes());
    for (std::size_t i = 0; i < options_.prompts.size(); ++i) {  // refused before minutes are spent on the others
      const std::size_t tokens = tokenize(model_->config(), options_.prompts[i]).size();
      if (tokens <= model_->config().context) continue;
      const std::size_t file = i - std::min(i, a.prompts.size());
      throw InputError(fmt::format("{} is {} tokens long with its begin token, the model's context is {}",
                                   i >= a.prompts.size() && file < a.prompt_files.size()
                                       ? "--prompt-file " + a.prompt_files[file]
                                       : "--prompt " + std::to_string(i + 1),
                                   tokens, model_->config().context));
    }
  }

  void calibrate() {
    if (!machine_ || throttle_ != 0) return;
    std::fprintf(stderr, "measuring this processor to imitate %s...\n", machine_->name.c_str());
    const double layer_s = measure_decode_layer_s(*model_);
    throttle_ = throttle_bytes_per_s(*machine_, model_->store().layout().bytes(), layer_s);
    std::fprintf(stderr,
                 "a decode layer takes %.1f us here; one expert crosses in %.2f of that on %s (%s, %s), so "
                 "the link is "
                 "throttled to %.1f MB/s\n",
                 layer_s * 1e6, machine_->ratio(), machine_->name.c_str(), machine_->reference_model.c_str(),
                 machine_->precision.c_str(), static_cast<double>(throttle_) * 1e-6);
  }

  /// Throws for a stack or budget that cannot work, without running anything.
  void check(const std::string& stack) const { static_cast<void>(make(stack, 0)); }

  RunReport run(const std::string& stack, bool stream) {
    calibrate();
    const auto runner = make(stack, throttle_);
    GenerateOptions g = options_;
    const bool terminal = ::isatty(STDERR_FILENO) != 0;
    const Nanoseconds begin = now_ns();
    Nanoseconds shown = begin;
    bool open_line = false;
    g.on_prefill = [&](std::uint64_t done, std::uint64_t total) {
      const Nanoseconds now = now_ns();
      const bool last = done == total;
      if (total <= 2 * g.prefill_chunk || (!last && now - shown < (terminal ? 100'000'000 : 2'000'000'000))) return;
      shown = now;
      const double left =
          static_cast<double>(now - begin) * 1e-9 * static_cast<double>(total - done) / static_cast<double>(done);
      std::fprintf(stderr, "%sprefill %llu of %llu tokens, %.0f s left%s", terminal ? "\r\033[K" : "",
                   static_cast<unsigned long long>(done), static_cast<unsigned long long>(total), left,
                   terminal && !last ? "" : "\n");
      open_line = terminal && !last;
    };
    if (stream) {
      g.on_token = [](std::size_t prompt, std::uint32_t token) {
        if (prompt != 0 || token >= 256) return;
        const char byte = static_cast<char>(token);
        print({&byte, 1});
      };
    }
    Generated made = generate(*model_, *runner, g);
    if (open_line) std::fputc('\n', stderr);
    if (stream) {
      print("\n");
      for (std::size_t i = 1; i < made.text.size(); ++i) print(fmt::format("[{}] {}\n", i + 1, made.text[i]));
    }
    if (timeline_) {
      std::vector<Span> spans = runner->spans;
      const std::vector<Span> link = runner->link_spans();
      spans.insert(spans.end(), link.begin(), link.end());
      std::ostringstream text;
      write_trace_events(text, spans);
      timeline_->commit(text.str());
    }
    RunReport facts;
    facts.model = std::filesystem::path(a_.model).filename().string();
    if (facts.model.empty()) facts.model = std::filesystem::path(a_.model).parent_path().filename().string();
    facts.stack = stack;
    facts.machine = machine_ ? machine_->name : "";
    facts.all_expert_bytes = shape_.all_bytes();
    facts.expert_bytes = model_->store().layout().bytes();
    facts.dense_bytes = model_->dense_bytes();
    facts.batch = options_.batch;
    facts.layers = shape_.layers;
    facts.throttle_bytes_per_s = throttle_;
    return make_report(*runner, std::move(made), facts);
  }

  void write_json(const Json& json) {
    if (json_) json_->commit(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }

 private:
  std::unique_ptr<ExpertRunner> make(const std::string& stack, std::uint64_t throttle) const {
    RunnerOptions o;
    o.stack = stack;
    o.pools = a_.pools == "one"         ? PoolChoice::one
              : a_.pools == "per-layer" ? PoolChoice::per_layer
              : a_.pools == "shallow"   ? PoolChoice::shallow
                                        : PoolChoice::stack;
    o.gate_worker = a_.gate_worker;
    o.t1 = a_.t1;
    o.t2 = a_.t2;
    o.alpha = a_.alpha;
    o.low_share_percent = a_.low_share;
    o.shallow_layers = a_.shallow_layers;
    o.percentile = a_.percentile;
    o.depth = a_.depth;
    o.budget_bytes = budget_;
    o.max_rows = shape_.max_rows;
    o.link_bytes_per_s = throttle;
    o.log = timeline_.has_value();
    return make_runner(model_->config(), model_->store(), model_->gates(), o);
  }

  const Arguments& a_;
  std::optional<OutputFile> json_, timeline_;
  std::optional<Machine> machine_;
  mutable std::optional<HostModel> model_;
  GenerateOptions options_;
  ModelShape shape_;
  std::uint64_t budget_ = 0, throttle_ = 0;
};

int run(const Arguments& a) {
  check_stacks(a, {a.stack});  // before the model is read
  Runs runs(a, {a.stack});
  runs.check(a.stack);
  if (find_stack(a.stack).keeps_everything) {
    std::cerr << "note: " << a.stack << " keeps every expert, whatever the budget\n";
  }
  const RunReport report = runs.run(a.stack, true);
  std::cerr << '\n' << to_table({report});
  runs.write_json(to_json(report));
  return report.generated.interrupted ? 128 + stopped_by : 0;
}

int compare(const Arguments& a) {
  check_stacks(a, a.stacks);
  Runs runs(a, a.stacks);
  for (const std::string& s : a.stacks) runs.check(s);
  std::vector<RunReport> reports;
  Json json = Json::array();
  for (const std::string& s : a.stacks) {
    std::fprintf(stderr, "running %s (%zu of %zu)...\n", s.c_str(), reports.size() + 1, a.stacks.size());
    reports.push_back(runs.run(s, false));
    json.push_back(to_json(reports.back()));
    if (reports.back().generated.interrupted) break;
  }
  for (const std::string& text : reports[0].generated.text) print(fmt::format("\"{}\"\n", text));
  print("\n" + to_table(reports));
  bool same = true;
  for (const RunReport& r : reports) same = same && r.generated.text == reports[0].generated.text;
  print(reports.back().generated.interrupted ? "interrupted: the last column covers only what was generated\n"
        : same                               ? "all stacks generated the same text\n"
                                             : "the stacks generated different texts\n");
  runs.write_json(json);
  return reports.back().generated.interrupted ? 128 + stopped_by : 0;
}

int inspect(const Arguments& a) {
  HostModel model(find_model(a.model));
  const ModelConfig& c = model.config();
  const ModelShape shape = model_shape(c, model.store(), 1);
  const std::uint64_t expert = model.store().layout().bytes(), all = shape.all_bytes();
  const std::uint64_t budget = parse_budget(a.budget, all);
  const Allotment per_layer = pool_per_layer(shape, budget), one = one_pool(shape, budget);
  const char* types[] = {"bf16", "f16", "f32"};
  print(fmt::format(
      "{} ({})\n"
      "  layers {}, hidden {}, heads {} ({} for keys and values), vocabulary {}, context {}\n"
      "  experts {} a layer, top-{}, width {}{}\n"
      "  one expert {} bytes ({}), all {} experts {} bytes, everything else {} bytes\n"
      "budget {} = {} bytes ({:.1f}% of all experts)\n",
      a.model, c.architecture_name, c.layers, c.hidden, c.heads, c.kv_heads, c.vocabulary, c.context, c.experts,
      c.top_k, c.expert_width, c.shared_width > 0 ? fmt::format(", shared expert of width {}", c.shared_width) : "",
      expert, types[static_cast<int>(model.store().layout().dtype)], c.layers * c.experts, all, model.dense_bytes(),
      a.budget, budget, 100.0 * static_cast<double>(budget) / static_cast<double>(all)));
  if (per_layer.stream_slots == 0) {
    print("  every expert fits\n");
    return 0;
  }
  print(
      fmt::format("  a pool for each layer: {} to {} of {} experts a layer, and {} stream slots\n"
                  "  one pool: {} of {} experts, and {} stream slots\n",
                  per_layer.pools.back().slots, per_layer.pools.front().slots, c.experts, per_layer.stream_slots,
                  one.pools[0].slots, c.layers * c.experts, one.stream_slots));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_streams();
  Arguments a;
  CLI::App app("Runs Mixture-of-Experts models whose experts do not fit.", "ferry");
  app.set_version_flag("--version", "ferry " FERRY_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);

  const CLI::Validator not_empty([](const std::string& s) { return s.empty() ? "must not be empty" : ""; }, "");
  auto model = [&](CLI::App* c) {
    c->add_option("--model", a.model, "folder with config.json and safetensors, or a bundled model's name")
        ->type_name("FOLDER")
        ->check(not_empty)
        ->capture_default_str();
    c->add_option("--budget", a.budget,
                  "device memory for experts: a share of all of them (25%) or a size (8000000, 64MiB)")
        ->type_name("SHARE|BYTES")
        ->check(not_empty)
        ->capture_default_str();
  };
  auto generation = [&](CLI::App* c) {
    c->add_option("--pools", a.pools,
                  "slots: as the stack's paper has them, a pool for each layer, one over all layers, or the shallow "
                  "layers whole")
        ->check(CLI::IsMember({"stack", "per-layer", "one", "shallow"}))
        ->capture_default_str();
    c->add_option("--prompt", a.prompts, "text to continue; several make a batch")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    c->add_option("--prompt-file", a.prompt_files, "file with one prompt; several make a batch")
        ->type_name("FILE")
        ->check(not_empty)
        ->allow_extra_args(false);
    c->add_option("--max-new-tokens", a.max_new_tokens, "tokens to generate for each prompt")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 28))
        ->capture_default_str();
    c->add_option("--batch", a.batch, "prompts decoded together (default: all, at most 8); prompts repeat to fill it")
        ->type_name("N")
        ->check(CLI::Range(1, 8));
    c->add_option("--temperature", a.temperature, "0 takes the most likely token")
        ->type_name("T")
        ->check(CLI::Range(0.0, 100.0))
        ->capture_default_str();
    c->add_option("--seed", a.seed, "of the sampler")
        ->type_name("N")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    c->add_option("--machine", a.machine,
                  "imitate this machine's ratio of expert transfer to compute: a name or a file")
        ->type_name("NAME|FILE")
        ->check(not_empty);
    c->add_flag("--gate-worker", a.gate_worker, "make predicted gate scores on a thread of their own");
    c->add_option("--t1", a.t1, "HOBBIT: full precision up to this unimportance (default: 0.6)")
        ->type_name("SHARE")
        ->check(CLI::Range(0.0, 1.0));
    c->add_option("--t2", a.t2, "HOBBIT: low precision up to this unimportance, skip above it (default: 0.9)")
        ->type_name("SHARE")
        ->check(CLI::Range(0.0, 1.0));
    c->add_option("--alpha", a.alpha,
                  "importance-driven: how far scores may be apart and still stand in (default: 0.3)")
        ->type_name("A")
        ->check(CLI::Range(0.0, 1.0));
    c->add_option("--low-share", a.low_share, "Fate: percent of a prefill's load that may be INT2 (default: 30)")
        ->type_name("PERCENT")
        ->check(CLI::Range(0, 100));
    c->add_option("--shallow-layers", a.shallow_layers, "Fate: layers that are cached whole first (default: 4)")
        ->type_name("N")
        ->check(CLI::Range(0, 65535));
    c->add_option("--percentile", a.percentile, "Fate: prefetch experts above this percentile (default: 75)")
        ->type_name("PERCENT")
        ->check(CLI::Range(0, 100));
    c->add_option("--depth", a.depth, "how many layers ahead to look (default: 3 for HOBBIT)")
        ->type_name("N")
        ->check(CLI::Range(1, 4));
    c->add_option("--json", a.json, "write all numbers to this file")->type_name("FILE")->check(not_empty);
  };
  CLI::App* run_command = app.add_subcommand("run", "generate text under one policy stack");
  model(run_command);
  generation(run_command);
  std::string stacks_help;
  for (const StackInfo& s : all_stacks()) stacks_help += fmt::format("  {:<20} {}\n", s.name, s.what);
  run_command->footer("Stacks:\n" + stacks_help);
  run_command->add_option("--stack", a.stack, "policy stack, from the list below")
      ->type_name("NAME")
      ->check(not_empty)
      ->capture_default_str();
  run_command->add_option("--timeline", a.timeline, "write a Chrome/Perfetto timeline to this file")
      ->type_name("FILE")
      ->check(not_empty);
  CLI::App* compare_command = app.add_subcommand("compare", "run several stacks on the same prompts, side by side");
  model(compare_command);
  generation(compare_command);
  compare_command->footer("Stacks:\n" + stacks_help);
  compare_command->add_option("--stacks", a.stacks, "comma-separated, from the list below")
      ->type_name("NAMES")
      ->delimiter(',')
      ->capture_default_str();
  CLI::App* inspect_command = app.add_subcommand("inspect", "print a model's shape and what fits in a budget");
  model(inspect_command);

  try {
    const std::vector<std::string> commands = {"run", "compare", "inspect"};
    if (argc > 1 && argv[1][0] != '-' && std::find(commands.begin(), commands.end(), argv[1]) == commands.end()) {
      throw InputError(unknown_name("command", argv[1], commands));
    }
    app.parse(argc, argv);
    handle_signals();
    if (*run_command) return run(a);
    if (*compare_command) return compare(a);
    return inspect(a);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::cerr << "ferry: " << e.what() << " (see ferry --help)\n";
  } catch (const InputError& e) {
    std::cerr << "ferry: " << e.what() << '\n';
  } catch (const ConfigError& e) {
    std::cerr << "ferry: " << e.what() << '\n';
  } catch (const std::filesystem::filesystem_error& e) {
    std::cerr << "ferry: " << InputError(e.what()).what() << '\n';
  } catch (const std::bad_alloc&) {
    std::cerr << "ferry: out of memory\n";
  } catch (const std::exception& e) {
    std::cerr << "ferry: " << e.what() << '\n';
    return 1;
  }
  return 2;
}
