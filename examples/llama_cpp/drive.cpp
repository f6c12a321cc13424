// Runs a model larger than memory in an unmodified llama.cpp: Ferry reads experts' pages in before they are needed, and
// releases those that a stack evicts. The text is llama.cpp's own, whatever Ferry decides.
#include <fmt/format.h>
#include <sys/resource.h>

#include <fstream>
#include <memory>
#include <optional>

#include "driver.hpp"
#include "session_flags.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/output_file.hpp"

namespace {

using namespace ferry;
using namespace ferry::llama_cpp;
using engine::Json;

/// What `--json` writes, and replaces.
constexpr engine::FileKind drive_json = {"JSON of llama_drive", "{", "\"major_faults\""};

struct Arguments {
  SessionOptions session;
  DriverOptions driver;
  std::string json, evict = "stack";
  bool plain = false;
};

void read(int argc, char** argv, Arguments& a) {
  CLI::App app("generates text with llama.cpp from a file larger than memory", "llama_drive");
  add_session_flags(app, a.session);
  CLI::Option* plain =
      app.add_flag("--plain", a.plain, "llama.cpp alone: the kernel brings in what is read, and evicts");
  const auto add = [&](const char* name, std::string& value, const char* what) {
    return app.add_option(name, value, what)->capture_default_str()->excludes(plain);
  };
  add("--stack", a.driver.stack, "a name as in `ferry list stacks`, or a stack file, that only copies");
  add("--budget", a.driver.budget, "memory for experts: a share of all of them (25%) or a size");
  add("--evict", a.evict, "who chooses what leaves memory: the stack, or the kernel")
      ->check(CLI::IsMember({"stack", "kernel"}));
  add_number(app, "--read-threads", a.driver.threads, 1, 64, "experts read at once");
  app.add_option("--json", a.json, "write all numbers to this file")->type_name("FILE");
  parse(app, argc, argv, a.session);
  a.driver.max_rows = a.session.chunk;
  a.driver.releases = a.evict == "stack";
}

/// What a phase cost this process.
struct Usage {
  std::uint64_t tokens = 0, bytes_read = 0, faults = 0, minor_faults = 0;
  double seconds = 0;

  static Usage now() {
    Usage u;
    std::ifstream io("/proc/self/io");
    for (std::string name; io >> name;) {
      std::uint64_t value = 0;
      io >> value;
      if (name == "read_bytes:") u.bytes_read = value;
    }
    rusage r{};
    ::getrusage(RUSAGE_SELF, &r);
    u.faults = static_cast<std::uint64_t>(r.ru_majflt);
    u.minor_faults = static_cast<std::uint64_t>(r.ru_minflt);
    u.seconds = static_cast<double>(engine::now_ns()) * 1e-9;
    return u;
  }
  void add(const Usage& from, const Usage& to, std::uint32_t rows) {
    tokens += rows;
    bytes_read += to.bytes_read - from.bytes_read;
    faults += to.faults - from.faults;
    minor_faults += to.minor_faults - from.minor_faults;
    seconds += to.seconds - from.seconds;
  }
  [[nodiscard]] Json json() const {
    return {{"tokens", tokens},
            {"seconds", seconds},
            {"bytes_read", bytes_read},
            {"major_faults", faults},
            {"minor_faults", minor_faults}};
  }
  [[nodiscard]] std::string line(const char* phase) const {
    const double n = static_cast<double>(std::max<std::uint64_t>(tokens, 1));
    return fmt::format("{}: {} tokens, {:.3f} tokens/s; a token: {:.1f} MiB read, {:.0f} major faults\n", phase, tokens,
                       static_cast<double>(tokens) / std::max(seconds, 1e-9),
                       static_cast<double>(bytes_read) / n / (1 << 20), static_cast<double>(faults) / n);
  }
};

int drive(const Arguments& a) {
  engine::check_outputs({a.json}, {a.session.model});
  std::optional<engine::OutputFile> json;
  if (!a.json.empty()) json.emplace(a.json, drive_json);
  GateWatcher watcher(false);
  Session session(a.session, a.plain ? nullptr : &watcher);
  std::unique_ptr<Driver> driver;
  session.warm_up();  // its token shows what the graph is made of; without a driver, too, so that both begin alike
  if (!a.plain) {
    driver = std::make_unique<Driver>(watcher, session, a.driver);
    watcher.on_gate = [&](std::uint16_t layer, const GateRows& rows) { driver->at_gate(layer, rows); };
  }
  Usage phases[2], before = Usage::now();
  std::string text;
  session.generate(
      [&](const PassedStep& step) {
        if (driver) driver->begin_step(step);
        before = Usage::now();
      },
      [&](const PassedStep& step) {
        if (driver) driver->end_step();
        phases[static_cast<unsigned>(step.phase)].add(before, Usage::now(), step.rows);
        return !stop;
      },
      [&](const std::string& piece) {
        text += piece;
        std::fputs(piece.c_str(), stdout);
        std::fflush(stdout);
        return !stop;
      });
  std::fputs("\n", stdout);
  std::string report = phases[0].line("prompt") + phases[1].line("decode");
  Json numbers = {{"text", text}, {"prefill", phases[0].json()}, {"decode", phases[1].json()}};
  if (driver) {
    const Outcomes& o = driver->counters().of(Phase::decode);
    report += fmt::format(
        "{}: of {} experts {:.1f}% hits, {:.1f}% late hits, {:.1f}% misses; {:.2f} s of waiting, {:.2f} s to fill the "
        "slots\n",
        a.driver.stack, o.requests, 100 * o.hit_rate(), 100 * Accuracy::ratio(o.late_hits, o.requests),
        100 * Accuracy::ratio(o.misses, o.requests), static_cast<double>(driver->waited()) * 1e-9,
        static_cast<double>(driver->filled()) * 1e-9);
    numbers["stack"] = {{"name", a.driver.stack},
                        {"slot_bytes", driver->slot_bytes()},
                        {"requests", o.requests},
                        {"hits", o.hits},
                        {"late_hits", o.late_hits},
                        {"misses", o.misses},
                        {"waited_s", static_cast<double>(driver->waited()) * 1e-9},
                        {"filled_s", static_cast<double>(driver->filled()) * 1e-9}};
  }
  std::fputs(report.c_str(), stderr);
  if (json) json->commit(numbers.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return stop ? 130 : 0;
}

}  // namespace

int main(int argc, char** argv) try {
  await_interrupts();
  Arguments a;
  read(argc, argv, a);
  return drive(a);
} catch (const std::exception& error) {
  std::fprintf(stderr, "llama_drive: %s\n", error.what());
  return 2;
}
