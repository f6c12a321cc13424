// Runs a text through llama.cpp as it is, and reports what Ferry's stacks would have hit, moved and waited for at a budget and
// on a machine; or records the routing as a trace for `ferry simulate`.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <atomic>
#include <csignal>
#include <map>
#include <memory>
#include <optional>

#include "live_stacks.hpp"
#include "recorded_steps.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/terminal.hpp"

namespace {

using namespace ferry;
using namespace ferry::llama_cpp;
using engine::InputError;
using engine::Json;

std::atomic<bool> stop = false;

struct Arguments {
  SessionOptions session;
  LiveSettings live;
  std::vector<std::string> stacks = {"lru", "cross-layer-lru", "ferry"};
  std::string record, json;
  std::uint32_t every = 16;
  std::uint16_t ahead = 3;
};

void parse(int argc, char** argv, Arguments& a) {
  CLI::App app("what Ferry's stacks would make of a text that llama.cpp generates", "llama_observe");
  const auto number = [&](const char* name, auto& value, long least, long most, const char* what) {
    app.add_option(name, value, what)->check(CLI::Range(least, most))->capture_default_str()->type_name("N");
  };
  app.add_option("--model", a.session.model, "a GGUF file of an MoE model")->required()->type_name("FILE");
  CLI::Option* prompt = app.add_option("--prompt", a.session.prompt, "the text to go on with");
  CLI::Option* tokens = app.add_option("--tokens", a.session.tokens, "the same as the model's tokens")->delimiter(',');
  prompt->excludes(tokens);
  number("--new-tokens", a.session.new_tokens, 1, 1 << 20, "how many to generate");
  number("--chunk", a.session.chunk, 1, 65536, "tokens of a prompt in one step");
  app.add_flag("--f32-cache", a.session.f32_cache, "keys and values in F32, as Ferry's engine has them; else in F16");
  number("--threads", a.session.threads, 0, 1024, "that compute; 0: one a processor");
  app.add_flag("--all-outputs", a.session.all_outputs,
               "compute the last layer for all rows of a prompt, as Ferry's engine does");
  app.add_option("--stacks", a.stacks, "names as in `ferry list stacks`, or stack files")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--budget", a.live.budget, "device memory for experts: a share (25%) or a size")
      ->capture_default_str();
  app.add_option("--machine", a.live.machine, "a name as in `ferry list machines`, or a file")->capture_default_str();
  app.add_option("--as", a.live.as_shape, "count each expert as large as this model's: a shape's name or file");
  app.add_flag("--as-reference", a.live.as_reference,
               "count each expert's time as the machine's reference model has it, whatever its bytes")
      ->excludes("--as");
  app.add_option("--costs", a.live.costs, "the machine's speeds")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, engine::CostSource>{{"effective", engine::CostSource::effective},
                                                    {"peak", engine::CostSource::peak},
                                                    {"stated", engine::CostSource::stated}}));
  number("--ahead", a.ahead, 0, 4, "layers to predict from each gate input");
  number("--every", a.every, 0, 1 << 20, "report after so many tokens; 0: only at the end");
  app.add_option("--record", a.record, "write the routing to this trace");
  app.add_option("--json", a.json, "write all numbers to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    throw InputError(e.what());
  }
  if (a.session.prompt.empty() && a.session.tokens.empty()) throw InputError("expected --prompt or --tokens");
}

/// A line for each stack, of decode so far.
std::string live_table(std::uint64_t tokens, const std::vector<std::unique_ptr<LiveStack>>& stacks) {
  std::string text = fmt::format("\n{:>6} tokens       hits   late hits   misses   moved, MiB   stalled, s\n", tokens);
  for (const auto& s : stacks) {
    const Outcomes& o = s->counters().of(Phase::decode);
    const auto percent = [&](std::uint64_t n) { return 100 * Accuracy::ratio(n, o.requests); };
    text += fmt::format("{:<15} {:6.1f}%     {:6.1f}%  {:6.1f}%   {:10.1f}   {:10.3f}\n", s->name(), percent(o.hits),
                        percent(o.late_hits), percent(o.misses), static_cast<double>(o.bytes) / (1 << 20),
                        static_cast<double>(s->clock(Phase::decode).stall) * 1e-9);
  }
  return text;
}

int observe(const Arguments& a) {
  engine::check_outputs({a.record, a.json}, {a.session.model});
  std::optional<engine::OutputFile> record, json;
  if (!a.record.empty()) record.emplace(a.record);
  if (!a.json.empty()) json.emplace(a.json);
  GateWatcher watcher(true);
  Session session(a.session, &watcher);
  std::unique_ptr<RecordedSteps> steps;
  std::vector<std::unique_ptr<LiveStack>> stacks;
  std::uint64_t tokens = 0;
  std::string text;
  session.generate(
      nullptr,
      [&](const PassedStep& step) {
        if (!steps) {  // the first forward pass has shown what the model is
          steps = std::make_unique<RecordedSteps>(watcher, session, a.ahead);
          if (record) steps->keep();
        }
        const engine::TraceFile& trace = steps->take(step);
        if (stacks.empty()) {
          for (const std::string& s : a.stacks) stacks.push_back(std::make_unique<LiveStack>(s, trace, a.live));
        }
        for (const auto& s : stacks) s->pass(trace.trace);
        tokens += step.rows;
        if (step.phase == Phase::decode && a.every > 0 && tokens % a.every == 0) {
          std::fputs(live_table(tokens, stacks).c_str(), stderr);
        }
        return !stop;
      },
      [&](const std::string& piece) {
        text += piece;
        std::fputs(piece.c_str(), stderr);
        return !stop;
      });
  std::fputs("\n", stderr);
  std::vector<engine::RunReport> reports;
  Json all = Json::array();
  for (const auto& s : stacks) {
    reports.push_back(s->report());
    all.push_back(to_json(reports.back()));
  }
  engine::print(engine::to_table(reports, engine::terminal_columns()));
  if (steps->other_choices > 0) {
    engine::print(fmt::format("{} of {} rows: llama.cpp chooses other experts than its scores say\n",
                              steps->other_choices, steps->rows));
  }
  if (record) steps->kept().write(*record);
  if (json) {
    json->commit(
        Json{{"text", text}, {"rows", steps->rows}, {"other_choices", steps->other_choices}, {"stacks", all}}.dump(
            2, ' ', false, Json::error_handler_t::replace) +
        "\n");
  }
  return stop ? 130 : 0;
}

}  // namespace

int main(int argc, char** argv) try {
  struct sigaction action {};
  action.sa_handler = [](int) { stop = true; };
  action.sa_flags = SA_RESETHAND;  // a second one ends at once
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  Arguments a;
  parse(argc, argv, a);
  return observe(a);
} catch (const std::exception& error) {
  std::fprintf(stderr, "llama_observe: %s\n", error.what());
  return 2;
}
