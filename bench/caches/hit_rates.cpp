// Hit rates of every cache policy on recorded routing, with the clairvoyant one beside them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>

#include "cpu/cpu_model.hpp"
#include "ferry/cache/fld.hpp"
#include "ferry/cache/random.hpp"
#include "ferry/cache/sieve.hpp"
#include "ferry/error.hpp"
#include "lfu_then_lru.hpp"
#include "replay.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/progress.hpp"
#include "trace/record.hpp"
#include "trace/trace_file.hpp"

namespace {

using namespace ferry;
using namespace ferry::bench;
using engine::InputError;
using engine::Json;

enum class Layout { per_layer, one, shallow };
constexpr const char* layout_names[] = {"per-layer", "one", "shallow"};
enum class Counting { steps, requests };
constexpr const char* counting_names[] = {"steps", "requests"};
enum class Fill { none, evenly, most_used };

struct Arguments {
  std::vector<std::string> traces;
  std::string model, text, curve, json;
  std::vector<double> shares = {12.5, 25, 50, 75};
  std::vector<std::string> layouts = {"per-layer", "one", "shallow"}, counting = {"steps", "requests"};
  std::uint32_t tokens = ~0U, shallow_layers = 4;
};

struct Policy {
  const char* name;
  bool needs_scores;  ///< of all experts
  bool many_layers;   ///< makes sense in a pool over several layers only
  bool online;        ///< starts empty and knows nothing of the future
  Fill fill;
  std::function<Hits(Counting, const Replay&)> run;
};

template <class Cache>
Policy policy(const char* name, const Cache& cache) {
  return {
      name,
      part::needs_full_scores<Cache>(),
      std::is_same_v<Cache, Fld>,
      !std::is_same_v<Cache, Belady>,
      Fill::none,
      [cache](Counting c, const Replay& r) { return c == Counting::steps ? by_step(r, cache) : by_request(r, cache); }};
}

/// In the order of the table.
std::vector<Policy> policies(const Trace& t, const std::vector<ExpertId>& future) {
  Lfu over_model;
  over_model.over = CountOver::model;
  ScoreAverage average;
  average.top_p = 2U * t.model.top_k;
  Belady belady;
  belady.future = {future.data(), static_cast<std::uint32_t>(future.size())};
  std::vector<Policy> all = {policy("RandomVictim", RandomVictim{}),
                             policy("FifoCache", FifoCache{}),
                             policy("Lru", Lru{}),
                             policy("Lfu, sequence", Lfu{}),
                             policy("Lfu, model", over_model),
                             policy("Lfu, ties to Lru", LfuThenLru{}),
                             policy("Fld", Fld{}),
                             policy("Multidimensional", Multidimensional{}),
                             policy("Arc", Arc{}),
                             policy("Sieve", Sieve{}),
                             policy("ScoreWindow", ScoreWindow{}),
                             policy("ScoreAverage", average),
                             policy("StaticResidency", StaticResidency{}),
                             policy("  of the most used", StaticResidency{}),
                             policy("Belady", belady)};
  all[12].fill = Fill::evenly;
  all[13].fill = Fill::most_used;
  all[12].online = all[13].online = false;
  return all;
}

/// `slots` a layer on average; as many stream slots as the core needs beside them.
Allotment lay_out(Layout layout, const Trace& t, std::uint32_t slots, std::uint32_t shallow_layers) {
  Allotment a;
  a.stream_slots = least_stream_slots;
  a.stream_slot_bytes = 64;
  const std::uint8_t full = part::bit(Precision::full);
  if (layout == Layout::one) {
    a.pools.push_back({0, t.model.layers, full, slots * t.model.layers, 64});
    return a;
  }
  const std::uint32_t all = slots * t.model.layers;
  const std::uint32_t shallow = layout == Layout::shallow ? std::min<std::uint32_t>(shallow_layers, t.model.layers) : 0;
  const std::uint32_t for_shallow = std::min(all, shallow * t.model.experts), deep = t.model.layers - shallow;
  for (std::uint16_t l = 0; l < t.model.layers; ++l) {
    std::uint32_t here = 0;
    if (l < shallow) {
      here = std::min<std::uint32_t>(t.model.experts,
                                     for_shallow - std::min(for_shallow, std::uint32_t{l} * t.model.experts));
    } else {
      here = (all - for_shallow) / deep + (l - shallow < (all - for_shallow) % deep ? 1 : 0);
    }
    a.pools.push_back({l, 1, full, here, 64});
  }
  return a;
}

/// The order in which all experts are preloaded: evenly over the layers from expert 0 on, or those used most in decode first.
std::vector<ExpertId> to_preload(Fill fill, const Trace& t, const std::vector<ExpertId>& uses) {
  std::vector<ExpertId> ids;
  if (fill == Fill::none) return ids;
  for (std::uint16_t e = 0; e < t.model.experts; ++e) {
    for (std::uint16_t l = 0; l < t.model.layers; ++l) ids.push_back({l, e});
  }
  if (fill == Fill::most_used) {
    std::vector<std::uint64_t> count(ids.size());
    auto key = [&](ExpertId id) { return std::size_t{id.layer} * t.model.experts + id.expert; };
    for (const ExpertId id : uses) ++count[key(id)];
    std::stable_sort(ids.begin(), ids.end(), [&](ExpertId a, ExpertId b) { return count[key(a)] > count[key(b)]; });
  }
  return ids;
}

std::uint32_t slots_for(double share, const Trace& t) {
  const auto slots = static_cast<std::uint32_t>(std::floor(share / 100 * t.model.experts + 1e-9));
  if (slots > 0) return slots;
  throw InputError(fmt::format("--shares {}: not one of {} experts, expected at least {:.2f}", share, t.model.experts,
                               100.0 / t.model.experts));
}

std::vector<Layout> layouts_of(const Arguments& a) {
  std::vector<Layout> layouts;
  for (const Layout l : {Layout::per_layer, Layout::one, Layout::shallow}) {
    const char* name = layout_names[static_cast<int>(l)];
    if (std::find(a.layouts.begin(), a.layouts.end(), name) != a.layouts.end()) layouts.push_back(l);
  }
  return layouts;
}

/// The tables of one trace, one a way of counting. Adds each number to `json`.
std::string tables(const Arguments& a, const Trace& t, Json& json) {
  const std::vector<ExpertId> uses = uses_of(t);
  const std::vector<Layout> layouts = layouts_of(a);
  std::vector<Policy> all = policies(t, uses);
  std::string out =
      fmt::format("{}: {} layers, {} experts, top-{}; {} tokens in {} sequence{}\n", t.name, t.model.layers,
                  t.model.experts, t.model.top_k, t.tokens, t.sequences(), t.sequences() == 1 ? "" : "s");
  const auto prompts = std::count(t.phase.begin(), t.phase.end(), static_cast<std::uint8_t>(Phase::prefill));
  if (prompts == t.tokens) throw InputError(t.name + ": all tokens are prompts, which are not counted");
  if (prompts > 0) out += fmt::format("{} tokens are prompts, which fill the cache and are not counted\n", prompts);
  if (t.scores.empty()) {
    out += "ScoreWindow, ScoreAverage: need the scores of all experts, which this trace lacks\n";
    std::erase_if(all, [](const Policy& p) { return p.needs_scores; });
  }
  engine::ProgressLine progress(t.name + ": replays");
  const std::size_t replays = a.counting.size() * layouts.size() * a.shares.size() * all.size();
  std::size_t done = 0;
  Json results = Json::array();
  for (const Counting counting : {Counting::steps, Counting::requests}) {
    const char* counted = counting_names[static_cast<int>(counting)];
    if (std::find(a.counting.begin(), a.counting.end(), counted) == a.counting.end()) continue;
    out += fmt::format("\nhit rate in percent, counted by {}\n{:<20}", counted, "");
    for (const Layout layout : layouts) {
      const std::string title = layout == Layout::per_layer ? "a pool a layer"
                                : layout == Layout::one     ? "one pool"
                                                            : fmt::format("{} layers whole", a.shallow_layers);
      out += fmt::format(" |{:>{}}", title, 6 * a.shares.size());
    }
    out += fmt::format("\n{:<20}", "slots, % of experts");
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      out += " |";
      for (const double share : a.shares) out += fmt::format("{:>6g}", share);
    }
    out += '\n';
    const std::size_t columns = layouts.size() * a.shares.size();
    std::vector<double> lru(columns), best(columns), bound(columns);
    auto line = [&](const char* name, auto&& cell) {
      out += fmt::format("{:<20}", name);
      for (std::size_t i = 0; i < columns; ++i) {
        if (i % a.shares.size() == 0) out += " |";
        out += cell(i);
      }
      out += '\n';
    };
    for (const Policy& p : all) {
      line(p.name, [&](std::size_t i) -> std::string {
        const Layout layout = layouts[i / a.shares.size()];
        const double share = a.shares[i % a.shares.size()];
        progress.show(++done, replays);
        if (p.many_layers && layout != Layout::one) return fmt::format("{:>6}", "-");
        const std::uint32_t slots = slots_for(share, t);
        const Hits hits =
            p.run(counting, {t, lay_out(layout, t, slots, a.shallow_layers), to_preload(p.fill, t, uses)});
        results.push_back({{"policy", p.name[0] == ' ' ? "StaticResidency, most used" : p.name},
                           {"layout", layout_names[static_cast<int>(layout)]},
                           {"share_percent", share},
                           {"slots", slots * t.model.layers},
                           {"counted_by", counted},
                           {"requests", hits.requests},
                           {"hits", hits.hits}});
        if (std::string_view(p.name) == "Lru") lru[i] = hits.percent();
        if (std::string_view(p.name) == "Belady") bound[i] = hits.percent();
        if (p.online) best[i] = std::max(best[i], hits.percent());
        return fmt::format("{:>6.1f}", hits.percent());
      });
    }
    line("Lru to Belady", [&](std::size_t i) { return fmt::format("{:>6.1f}", bound[i] - lru[i]); });
    line("  of it recovered", [&](std::size_t i) { return fmt::format("{:>6.1f}", best[i] - lru[i]); });
  }
  json.push_back({{"routing", t.name},
                  {"layers", t.model.layers},
                  {"experts", t.model.experts},
                  {"top_k", t.model.top_k},
                  {"tokens", t.tokens},
                  {"sequences", t.sequences()},
                  {"shallow_layers", a.shallow_layers},
                  {"results", results}});
  return out;
}

/// One line of a curve file: what an independent replay found.
struct CurvePoint {
  double budget_mib = 0, hits = 0, decode_hits = 0, read_mib = 0;
  std::string policy;
};

std::vector<CurvePoint> read_curve(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line) || line != "budget_mib,policy,hit_pct_cum,hit_pct_decode,read_mib") {
    throw InputError(path + ": line 1: expected budget_mib,policy,hit_pct_cum,hit_pct_decode,read_mib");
  }
  std::vector<CurvePoint> points;
  while (std::getline(in, line)) {
    CurvePoint p;
    char policy[32] = {};
    if (std::sscanf(line.c_str(), "%lf,%31[a-z],%lf,%lf,%lf", &p.budget_mib, policy, &p.hits, &p.decode_hits,
                    &p.read_mib) != 5 ||
        !(p.budget_mib >= 0 && p.budget_mib < 1e9)) {
      throw InputError(
          fmt::format("{}: line {}: expected a budget, a policy and three numbers", path, points.size() + 2));
    }
    p.policy = policy;
    points.push_back(p);
  }
  return points;
}

/// Compares with a curve, line by line.
std::string compare_curve(const Arguments& a, const Trace& t, Json& json) {
  const std::vector<CurvePoint> points = read_curve(a.curve);
  const std::vector<ExpertId> uses = uses_of(t);
  Belady belady;
  belady.future = {uses.data(), static_cast<std::uint32_t>(uses.size())};
  struct Column {
    const char* theirs;
    const char* ours;
    std::function<ByteHits(const ByteBudget&)> run;
    std::uint32_t rows = 0, equal = 0;
    double apart = 0;
  };
  auto column = [&](const char* theirs, const char* ours, const auto& cache) {
    return Column{theirs, ours, [&t, cache](const ByteBudget& b) { return by_bytes(t, b, cache); }};
  };
  Column columns[] = {column("lru", "Lru", Lru{}),   column("lfu", "Lfu, ties to Lru", LfuThenLru{}),
                      column("lfu", "Lfu", Lfu{}),   column("belady", "Belady", belady),
                      column("layer", "Lru", Lru{}), column("layerlfu", "Lfu, ties to Lru", LfuThenLru{})};
  std::string out =
      fmt::format("{}: hit rate of decode in percent at budgets in bytes, theirs and ours\n{:>6}", t.name, "");
  for (const Column& c : columns) out += fmt::format(" |{:>17}", c.theirs);
  out += fmt::format("\n{:>6}", "MiB");
  for (const Column& c : columns) out += fmt::format(" |{:>17}", c.ours);
  out += '\n';
  Json results = Json::array();
  double budget = -1;
  for (const CurvePoint& first : points) {
    if (first.budget_mib == budget) continue;
    budget = first.budget_mib;
    out += fmt::format("{:>6g}", budget);
    for (Column& c : columns) {
      const auto p = std::find_if(points.begin(), points.end(),
                                  [&](const CurvePoint& q) { return q.budget_mib == budget && q.policy == c.theirs; });
      if (p == points.end()) {
        out += fmt::format(" |{:>17}", "-");
        continue;
      }
      const ByteHits h = c.run({static_cast<std::uint64_t>(budget * 1024 * 1024), p->policy.starts_with("layer")});
      const double apart = std::abs(h.decode.percent() - p->decode_hits);
      const bool same = apart < 6e-4 && std::abs(h.all.percent() - p->hits) < 6e-4 &&
                        std::abs(static_cast<double>(h.read_bytes) / 1048576 - p->read_mib) < 0.06;
      ++c.rows;
      c.equal += same ? 1 : 0;
      c.apart = std::max(c.apart, apart);
      out += fmt::format(" |{:>8.3f}{:>8.3f}{}", p->decode_hits, h.decode.percent(), same ? " " : "*");
      results.push_back({{"theirs", c.theirs},
                         {"ours", c.ours},
                         {"budget_mib", budget},
                         {"theirs_decode_percent", p->decode_hits},
                         {"requests", h.decode.requests},
                         {"hits", h.decode.hits},
                         {"read_bytes", h.read_bytes},
                         {"equal", same}});
    }
    out += '\n';
  }
  out += "* differs in the hit rate over all, that over decode, or the bytes read\n";
  for (const Column& c : columns) {
    out += fmt::format("{} as {}: {} of {} rows equal to the last digit, decode {:.3f} points apart at most\n",
                       c.theirs, c.ours, c.equal, c.rows, c.apart);
  }
  json.push_back({{"routing", t.name}, {"curve", a.curve}, {"results", results}});
  return out;
}

/// A trace that goes by its file's name.
std::unique_ptr<engine::TraceFile> read(const std::filesystem::path& path) {
  if (path.extension() == ".csv") {
    throw InputError(
        fmt::format("{}: no trace of ferry's: make one with `ferry trace import {} --shape NAME --out FILE`",
                    path.string(), path.string()));
  }
  auto file = std::make_unique<engine::TraceFile>(path);
  file->trace.name = path.stem().string();
  return file;
}

/// Runs a model over a text, in sequences of 256 bytes behind the begin token. Each runs in one pass, as a prompt does,
/// but every token counts as a step of decode.
std::unique_ptr<engine::TraceFile> record(const Arguments& a) {
  const engine::MappedFile text(a.text);
  engine::CpuModel model(engine::find_model(a.model));
  engine::RecordOptions o;
  o.window = o.prompt = 257;
  o.tokens = a.tokens;
  o.ahead = 0;
  if (model.config().context < o.window) {
    throw InputError(
        fmt::format("{}: its context is {}, sequences of {} are needed", a.model, model.config().context, o.window));
  }
  engine::ProgressLine progress(a.model + ": sequences recorded");
  o.progress = [&progress](std::uint64_t done, std::uint64_t all) {
    progress.show(done, all);
    return true;
  };
  auto made = engine::record_text(model, engine::model_name(a.model),
                                  {reinterpret_cast<const char*>(text.data()), text.size()}, o);
  made->phase.clear();
  made->view();
  return made;
}

/// The first tokens of a trace. Arrays that are indexed by token keep their length, since a replay reads no further.
Trace first_of(Trace t, std::uint32_t tokens) {
  t.tokens = std::min(t.tokens, tokens);
  while (t.sequence_start.back() >= t.tokens) t.sequence_start = t.sequence_start.first(t.sequences() - 1U);
  if (!t.phase.empty()) t.phase = t.phase.first(t.tokens);
  return t;
}

int run(const Arguments& a) {
  if (a.traces.empty() == a.model.empty()) {
    throw InputError("expected trace files, or --model and --text, one of the two");
  }
  if (a.model.empty() != a.text.empty()) throw InputError("--model and --text go together");
  if (!a.curve.empty() && (a.traces.size() != 1)) throw InputError("--curve needs one trace file");
  ferry::bench::JsonFile file(a.json);
  Json json = Json::array();
  auto show = [&](const engine::TraceFile& made) {
    const Trace t = first_of(made.trace, a.tokens);
    const std::string text = a.curve.empty() ? tables(a, t, json) : compare_curve(a, t, json);
    std::fputs((text + "\n").c_str(), stdout);
    std::fflush(stdout);
  };
  for (const std::string& trace : a.traces) show(*read(trace));
  if (!a.model.empty()) show(*record(a));
  file.commit(json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("Hit rates of every cache policy on recorded routing, and Belady's beside them.", "hit-rates");
  app.footer(
      "Not in the table: LoadOnDemand, which keeps nothing; Lhu, which needs two precisions and is Lfu by sequence "
      "with "
      "one.\n\"Lfu, ties to Lru\" is the benchmark's own; \"of the most used\" is placed in hindsight.");
  app.add_option("TRACE", a.traces, "traces, as `ferry trace record` and `ferry trace import` write them");
  app.add_option("--model", a.model, "record the routing of this model instead: a bundled one's name, or a folder");
  app.add_option("--text", a.text, "what the model reads, in sequences of 256 bytes")->type_name("FILE");
  app.add_option("--tokens", a.tokens, "only so many tokens")->type_name("N")->check(CLI::Range(1U, ~0U));
  app.add_option("--shares", a.shares, "slots in percent of all experts (default: 12.5,25,50,75)")
      ->delimiter(',')
      ->type_name("PERCENTS")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--pools", a.layouts, "of per-layer, one, shallow (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"per-layer", "one", "shallow"}));
  app.add_option("--counted-by", a.counting,
                 "steps: as the pipeline works; requests: as cache simulators count (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"steps", "requests"}));
  app.add_option("--shallow-layers", a.shallow_layers, "of the shallow-favouring pools")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--curve", a.curve, "compare with this curve of the same trace (budget_mib,policy,hit_pct_cum,...)")
      ->type_name("FILE");
  app.add_option("--json", a.json, "write all counts to this file")->type_name("FILE");
  return ferry::bench::parse_and_run(app, argc, argv, [&] { return run(a); });
}
