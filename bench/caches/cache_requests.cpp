// What each cache policy costs a request, beside its hit rate: recorded routing replayed as cache simulators replay.
//
// One pool over all layers, one request after another. Only the parts of a cache are timed: finding an expert (in a flat
// array), the policy's own calls, and the eviction. The routing is laid out flat beforehand.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <ctime>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>

#include "ferry/cache/fld.hpp"
#include "ferry/cache/lhu.hpp"
#include "ferry/cache/random.hpp"
#include "ferry/cache/sieve.hpp"
#include "replay.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/output_file.hpp"
#include "trace/synthetic.hpp"
#include "trace/trace_file.hpp"

namespace {

using namespace ferry;
using namespace ferry::bench;
using engine::InputError;
using engine::Json;

struct Arguments {
  std::vector<std::string> traces, policies;
  std::vector<double> sizes = {12.5, 25, 50, 75};
  std::string shape = "deepseek-v2-lite", requests, json;
  std::uint32_t tokens = ~0U, repeat = 3;
};

/// What one layer of a step asks for: requests up to `end`.
struct Call {
  std::uint32_t end = 0;
  std::uint16_t layer = 0;
  Phase phase = Phase::decode;
  bool resets = false;  ///< a sequence has ended before it
};

/// Routing laid out flat.
struct Requests {
  std::string name;
  std::uint16_t layers = 0, experts = 0, top_k = 0;
  std::vector<ExpertId> ids;
  std::vector<Call> calls;
  std::vector<Scores> scores;  ///< of each call, if the trace has them
  std::deque<RecordedScores> rows;

  [[nodiscard]] std::uint32_t keys() const { return std::uint32_t{layers} * experts; }
  [[nodiscard]] std::uint32_t key(ExpertId id) const { return std::uint32_t{id.layer} * experts + id.expert; }
};

/// A prompt is one step, and asks once for each of its experts.
Requests flatten(const Trace& t, std::uint32_t most_tokens) {
  Requests r;
  r.name = t.name;
  r.layers = t.model.layers;
  r.experts = t.model.experts;
  r.top_k = t.model.top_k;
  std::vector<std::uint16_t> experts;
  std::uint32_t tokens = 0;
  for (TraceSteps steps(t, 1, t.tokens); tokens < most_tokens && steps.next(); tokens += steps.tokens().size) {
    for (std::uint16_t l = 0; l < r.layers; ++l) {
      if (!t.scores.empty()) r.scores.push_back(r.rows.emplace_back().of(t, steps.tokens(), l));
      asked(t, steps.tokens(), l, experts);
      for (const std::uint16_t e : experts) r.ids.push_back({l, e});
      r.calls.push_back({static_cast<std::uint32_t>(r.ids.size()), l, steps.phase(), l == 0 && steps.ended() > 0});
    }
  }
  if (r.ids.empty()) throw InputError(r.name + ": it asks for no expert");
  if (r.ids.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw InputError(fmt::format("{}: {} requests, 4294967295 are possible (see --tokens)", r.name, r.ids.size()));
  }
  return r;
}

struct Replayed {
  std::uint64_t hits = 0;
  double seconds = 0;  ///< of processor time
};

/// Each request is a hit, or a miss that is admitted at once unless the policy refuses it.
template <class Cache>
std::uint64_t count_hits(const Requests& r, Cache& cache, View<std::uint32_t> slot_of, View<std::uint32_t> key_in,
                         Barred nothing) noexcept {
  std::uint64_t hits = 0;
  std::uint32_t filled = 0, next = 0;
  static constexpr std::uint32_t one_sequence = 0;
  const std::uint32_t slots = part::caches<Cache>() ? key_in.size : 0;
  for (std::size_t c = 0; c < r.calls.size(); ++c) {
    const Call& call = r.calls[c];
    if constexpr (part::Resets<Cache>) {
      if (call.resets) cache.reset();
    }
    if constexpr (part::BeginsStep<Cache>) {
      if (call.layer == 0) cache.begin_step(Step{call.phase, {&one_sequence, 1}});
    }
    if constexpr (part::ObservesScores<Cache>) cache.observe(r.scores[c]);
    for (; next < call.end; ++next) {
      const Variant what{r.ids[next], Precision::full};
      const std::uint32_t key = r.key(what.id), at = slot_of[key];
      if constexpr (part::SeesUse<Cache>) cache.used(what);
      cache.touch(what, at);
      if (at != no_slot) {
        ++hits;
        continue;
      }
      std::uint32_t slot = filled;
      if (filled < slots) {
        ++filled;
      } else {
        slot = cache.victim(what, nothing);
        if (slot == no_slot) continue;
        slot_of[key_in[slot]] = no_slot;
      }
      slot_of[key] = slot;
      key_in[slot] = key;
      cache.replace(slot, what, true);
    }
  }
  return hits;
}

template <class Cache>
Replayed replay(const Requests& r, std::uint32_t slots, Cache policy) {
  if constexpr (std::is_same_v<Cache, Belady>) policy.future = {r.ids.data(), static_cast<std::uint32_t>(r.ids.size())};
  test::Placed<Cache> cache(PoolShape{slots, 0, r.layers, r.experts}, policy);
  std::vector<std::uint32_t> slot_of(r.keys(), no_slot), key_in(slots);
  const std::vector<std::uint8_t> flags(slots);
  const std::clock_t begin = std::clock();
  const std::uint64_t hits =
      count_hits(r, *cache, {slot_of.data(), r.keys()}, {key_in.data(), slots}, {flags.data(), 1});
  const std::clock_t took = std::max<std::clock_t>(1, std::clock() - begin);
  return {hits, static_cast<double>(took) / CLOCKS_PER_SEC};
}

struct Policy {
  const char* name;
  bool needs_scores;  ///< of all experts
  std::function<Replayed(const Requests&, std::uint32_t slots)> run;
};

template <class Cache>
Policy policy(const char* name, const Cache& cache) {
  return {name, part::needs_full_scores<Cache>(),
          [cache](const Requests& r, std::uint32_t slots) { return replay(r, slots, cache); }};
}

/// In the order of the table.
std::vector<Policy> all_policies(std::uint16_t top_k) {
  Lfu over_model;
  over_model.over = CountOver::model;
  ScoreAverage average;
  average.top_p = 2U * top_k;
  return {policy("LoadOnDemand", LoadOnDemand{}),
          policy("StaticResidency", StaticResidency{}),
          policy("RandomVictim", RandomVictim{}),
          policy("FifoCache", FifoCache{}),
          policy("Lru", Lru{}),
          policy("Sieve", Sieve{}),
          policy("Arc", Arc{}),
          policy("Lfu-sequence", Lfu{}),
          policy("Lfu-model", over_model),
          policy("Lhu", Lhu{}),
          policy("Fld", Fld{}),
          policy("Multidimensional", Multidimensional{}),
          policy("ScoreWindow", ScoreWindow{}),
          policy("ScoreAverage", average),
          policy("Belady", Belady{})};
}

std::vector<Policy> chosen_policies(const Arguments& a, std::uint16_t top_k) {
  std::vector<Policy> all = all_policies(top_k);
  for (const std::string& name : a.policies) {
    if (std::any_of(all.begin(), all.end(), [&](const Policy& p) { return p.name == name; })) continue;
    std::string names;
    for (const Policy& p : all) names += fmt::format(" {}", p.name);
    throw InputError(fmt::format("--policies: no policy {}, there are{}", name, names));
  }
  std::erase_if(all, [&](const Policy& p) {
    return !a.policies.empty() && std::find(a.policies.begin(), a.policies.end(), p.name) == a.policies.end();
  });
  return all;
}

std::uint32_t slots_for(double percent, const Requests& r) {
  const auto slots = static_cast<std::uint32_t>(std::floor(percent / 100 * r.keys() + 1e-9));
  if (slots > 0) return slots;
  throw InputError(fmt::format("--sizes {}: not one of {} experts", percent, r.keys()));
}

/// The table of one routing. Adds each number to `json`.
std::string table(const Arguments& a, const Requests& r, Json& json) {
  std::vector<Policy> policies = chosen_policies(a, r.top_k);
  const auto requests = static_cast<double>(r.ids.size());
  std::string out = fmt::format(
      "{}: {} requests for {} experts, {} in each of {} layers, top-{}\n"
      "one pool over all layers, request by request; one core, its time, the best of {}\n",
      r.name, r.ids.size(), r.keys(), r.experts, r.layers, r.top_k, a.repeat);
  if (r.scores.empty() && std::erase_if(policies, [](const Policy& p) { return p.needs_scores; }) > 0) {
    out += "ScoreWindow, ScoreAverage: need the scores of all experts, which this trace lacks\n";
  }

  const std::size_t columns = a.sizes.size();
  std::vector<std::uint32_t> slots;
  for (const double size : a.sizes) slots.push_back(slots_for(size, r));

  // Policies take turns, so that a disturbance meets all of them.
  std::vector<Replayed> best(policies.size() * columns);
  for (std::uint32_t round = 0; round < a.repeat; ++round) {
    std::fputs(fmt::format("{}: round {} of {}\n", r.name, round + 1, a.repeat).c_str(), stderr);
    for (std::size_t i = 0; i < best.size(); ++i) {
      const Replayed now = policies[i / columns].run(r, slots[i % columns]);
      if (round == 0 || now.seconds < best[i].seconds) best[i] = now;
    }
  }

  out += fmt::format("\n{:<17}", "slots");
  for (std::size_t i = 0; i < columns; ++i) {
    out += fmt::format(" |{:>25}", fmt::format("{} ({:g}%)", slots[i], a.sizes[i]));
  }
  out += fmt::format("\n{:<17}", "");
  for (std::size_t i = 0; i < columns; ++i) out += fmt::format(" |{:>8}{:>9}{:>8}", "hits, %", "M req/s", "ns");
  out += '\n';
  Json results = Json::array();
  for (std::size_t i = 0; i < best.size(); ++i) {
    const char* name = policies[i / columns].name;
    const double per_s = requests / best[i].seconds;
    const double percent = 100.0 * static_cast<double>(best[i].hits) / requests;
    if (i % columns == 0) out += fmt::format("{:<17}", name);
    out += fmt::format(" |{:>8.2f}{:>9.2f}{:>8.1f}", percent, per_s / 1e6, 1e9 / per_s);
    if (i % columns == columns - 1) out += '\n';
    results.push_back({{"policy", name},
                       {"size_percent", a.sizes[i % columns]},
                       {"slots", slots[i % columns]},
                       {"hits", best[i].hits},
                       {"hit_percent", percent},
                       {"requests_per_s", per_s},
                       {"ns_per_request", 1e9 / per_s}});
  }
  json.push_back({{"routing", r.name},
                  {"layers", r.layers},
                  {"experts", r.experts},
                  {"top_k", r.top_k},
                  {"requests", r.ids.size()},
                  {"repeat", a.repeat},
                  {"results", results}});
  return out;
}

/// As libCacheSim's oracleGeneral, 24 bytes a request, little-endian: u32 time (the step), u64 object, u32 size (1),
/// i64 number of the object's next request, counted from 1, or -1.
std::string oracle_general(const Requests& r) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::size_t record = 24;
  std::string out(r.ids.size() * record, '\0');
  std::vector<std::int64_t> next(r.keys(), -1);
  std::uint32_t step = 0;
  std::size_t at = 0;
  auto put = [&](std::size_t offset, auto value) { std::memcpy(&out[at * record + offset], &value, sizeof value); };
  for (const Call& call : r.calls) {
    step += call.layer == 0 ? 1 : 0;
    for (; at < call.end; ++at) {
      put(0, step);
      put(4, std::uint64_t{r.key(r.ids[at])});
      put(12, std::uint32_t{1});
    }
  }
  while (at-- > 0) put(16, std::exchange(next[r.key(r.ids[at])], static_cast<std::int64_t>(at) + 1));
  return out;
}

std::unique_ptr<engine::TraceFile> made_up(const Arguments& a) {
  engine::SyntheticOptions wanted;
  const std::uint32_t tokens = std::min(a.tokens, 4096U);
  wanted.sequences = std::min(wanted.sequences, tokens);
  wanted.prompt = 0;
  wanted.tokens = (tokens + wanted.sequences - 1) / wanted.sequences;
  wanted.ahead = 0;
  wanted.partial = false;
  auto made = engine::synthesize(engine::read_shape(a.shape), wanted);
  made->trace.name += ", made-up routing";
  return made;
}

int run(const Arguments& a) {
  if (!a.requests.empty() && a.traces.size() > 1) throw InputError("--requests needs one trace");
  static_cast<void>(chosen_policies(a, 1));
  ferry::bench::JsonFile json_file(a.json);
  std::optional<engine::OutputFile> requests_file;
  if (!a.requests.empty()) requests_file.emplace(a.requests);
  Json json = Json::array();
  auto show = [&](const engine::TraceFile& file) {
    const Requests r = flatten(file.trace, a.tokens);
    if (requests_file) requests_file->commit(oracle_general(r));
    std::fputs((table(a, r, json) + "\n").c_str(), stdout);
    std::fflush(stdout);
  };
  for (const std::string& path : a.traces) {
    engine::TraceFile file(path);
    file.trace.name = std::filesystem::path(path).stem().string();
    show(file);
  }
  if (a.traces.empty()) show(*made_up(a));
  json_file.commit(json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("Requests a second of every cache policy, and its hit rate, with Belady's beside them.",
               "cache-requests");
  app.footer(
      "LoadOnDemand keeps nothing: its time is the loop's. StaticResidency keeps what came first. Lhu is\n"
      "Lfu-sequence where there is one precision.");
  app.add_option("--trace", a.traces, "as `ferry trace record` and `ferry trace import` write it; may be repeated")
      ->type_name("FILE");
  app.add_option("--shape", a.shape, "without a trace: made-up routing of this model")
      ->type_name("NAME|FILE")
      ->capture_default_str()
      ->excludes("--trace");
  app.add_option("--tokens", a.tokens, "only so many tokens, in whole steps (default: all; 4096 made up)")
      ->type_name("N")
      ->check(CLI::Range(1U, ~0U));
  app.add_option("--policies", a.policies, "comma-separated (default: all)")->delimiter(',')->type_name("NAMES");
  app.add_option("--sizes", a.sizes, "slots in percent of all experts (default: 12.5,25,50,75)")
      ->delimiter(',')
      ->type_name("PERCENTS")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--repeat", a.repeat, "rounds, of which the best counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--requests", a.requests, "write the requests to this file, as libCacheSim's oracleGeneral")
      ->type_name("FILE");
  ferry::bench::add_json_option(app, a.json);
  return ferry::bench::parse_and_run(app, argc, argv, [&] { return run(a); });
}
