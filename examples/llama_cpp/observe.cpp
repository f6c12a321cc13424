// Runs a text through an unmodified llama.cpp, and reports what Ferry's stacks would have hit, moved and waited for with a
// given budget and machine; or records the routing as a trace for `ferry simulate`.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "live_stacks.hpp"
#include "recorded_steps.hpp"
#include "session_flags.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/terminal.hpp"
#include "trace/trace_file.hpp"

namespace {

using namespace ferry;
using namespace ferry::llama_cpp;
using engine::Json;

/// What `--json` writes, and replaces.
constexpr engine::FileKind observe_json = {"JSON of llama_observe", "{", "\"other_choices\""};

struct Arguments {
  SessionOptions session;
  LiveSettings live;
  std::vector<std::string> stacks = {"lru", "cross-layer-lru", "ferry"};
  std::string record, json, costs = "effective";
  std::uint32_t every = 16, ahead = 3;
};

void read(int argc, char** argv, Arguments& a) {
  CLI::App app("what Ferry's stacks would make of a text that llama.cpp generates", "llama_observe");
  add_session_flags(app, a.session);
  app.add_flag("--all-outputs", a.session.all_outputs,
               "compute the last layer for all rows of a prompt, as Ferry's engine does");
  app.add_option("--stacks", a.stacks, "names as in `ferry list stacks`, or stack files")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--budget", a.live.budget, "device memory for experts: a share of all of them (25%) or a size")
      ->capture_default_str();
  app.add_option("--machine", a.live.machine, "a name as in `ferry list machines`, or a file")->capture_default_str();
  app.add_option("--costs", a.costs,
                 "the machine's effective speeds, its data sheet's peaks, or what a paper states of it")
      ->check(CLI::IsMember({"effective", "peak", "stated"}))
      ->capture_default_str();
  CLI::Option* as =
      app.add_option("--as", a.live.as_shape, "count each expert as large as this model's: a shape's name or file");
  app.add_flag("--as-reference", a.live.as_reference,
               "count each expert's time as the machine's reference model has it, whatever its bytes")
      ->excludes(as);
  add_number(app, "--ahead", a.ahead, 0, 4, "layers to predict from each gate input");
  add_number(app, "--every", a.every, 0, 1 << 20, "report after so many tokens; 0: only at the end");
  app.add_option("--record", a.record, "write the routing to this trace, for `ferry simulate`")->type_name("FILE");
  app.add_option("--json", a.json, "write all numbers to this file")->type_name("FILE");
  parse(app, argc, argv, a.session);
  a.live.chunk = a.session.chunk;
  a.live.costs = a.costs == "peak"     ? engine::CostSource::peak
                 : a.costs == "stated" ? engine::CostSource::stated
                                       : engine::CostSource::effective;
}

/// A line for each stack, over decode so far.
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
  if (!a.record.empty()) record.emplace(a.record, engine::trace_kind);
  if (!a.json.empty()) json.emplace(a.json, observe_json);
  GateWatcher watcher(true);
  Session session(a.session, &watcher);
  std::unique_ptr<RecordedSteps> steps;
  std::vector<std::unique_ptr<LiveStack>> stacks;
  std::uint64_t tokens = 0;
  std::string text;
  session.warm_up();  // its one token passes every layer; of a long prompt's first rows the last layer sees none
  session.generate(
      nullptr,
      [&](const PassedStep& step) {
        if (!steps) {  // the first forward pass has shown what the model is
          steps = std::make_unique<RecordedSteps>(watcher, session, static_cast<std::uint16_t>(a.ahead));
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
    reports.push_back(s->report(!stop));
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
  await_interrupts();
  Arguments a;
  read(argc, argv, a);
  return observe(a);
} catch (const std::exception& error) {
  std::fprintf(stderr, "llama_observe: %s\n", error.what());
  return 2;
}
