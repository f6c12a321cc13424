#include "sweep/recommend.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <tuple>
#include <utility>

#include "ferry/allotment.hpp"
#include "ferry/error.hpp"
#include "support/errors.hpp"
#include "support/threads.hpp"

namespace ferry::engine {
namespace {

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

double share(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

double share(std::uint64_t part, std::uint64_t whole) {
  return share(static_cast<double>(part), static_cast<double>(whole));
}

std::string percent(double part) {
  return fmt::format("{:.0f}%", 100 * part);
}

/// One simulation: a candidate on the machine as it is, or with more of a resource.
struct SimulatedChoice {
  const StackCandidate* candidate;
  std::optional<Resource> more;
};

struct Done {
  std::optional<RunReport> run;
  std::string refused;
};

/// The precisions of a stack: hit rates are only compared between stacks that have the same.
PrecisionSet precisions(const StackCandidate& c) {
  return precisions_for(c.options);
}

Done simulated(const RecommendOptions& o, const SimulatedChoice& task, const std::function<bool()>& goes_on) {
  SimulatedSetting setting = o.setting;
  setting.remedies = false;
  setting.bounds = task.more ? BoundsChoice::none : BoundsChoice::proven;
  if (task.more) setting.machine = with_twice(setting.machine, *task.more);
  SimulateOptions options = task.candidate->options;
  if (task.more == Resource::device_memory) options.budget_bytes = o.doubled_bytes;
  options.progress = [&](std::uint64_t tokens, std::uint64_t) { return tokens % 64 != 0 || goes_on(); };
  Done done;
  try {
    const StackInfo& info = find_stack(options.stack);
    if (info.keeps_everything) {
      const std::uint64_t needed = everything(setting.model(), info.precisions).bytes();
      if (needed > options.budget_bytes) {
        throw ConfigError(fmt::format("needs {} bytes, so that every expert fits", needed));
      }
    }
    RunReport run = run_simulation(setting, options, task.candidate->parameters);
    if (!run.generated.interrupted) done.run = std::move(run);
  } catch (const ConfigError& e) {
    done.refused = e.what();
  }
  return done;
}

/// The device's computing time for a token.
double computing_s(const RunReport& run) {
  const PhaseTimes& t = run.times[static_cast<unsigned>(Phase::decode)];
  return (run.generated.decode_s - seconds(t.stall + t.host_wait)) / static_cast<double>(run.generated.decode_steps);
}

bool sooner(double tpot, double ttft, double other_tpot, double other_ttft) {
  return std::tie(tpot, ttft) < std::tie(other_tpot, other_ttft);
}

double copy_s(const SimulatedSetting& setting, const StackCandidate& c) {
  const auto most = static_cast<Precision>(std::bit_width(unsigned{precisions(c).bits}) - 1);
  return seconds(setting.machine_costs().copy(setting.model().bytes(0, most)));
}

void give_reasons(const SimulatedSetting& setting, std::vector<RankedStack>& ranking) {
  for (RankedStack& s : ranking) {
    const RankedStack* best = &s;
    for (const RankedStack& other : ranking) {
      if (precisions(other.candidate).bits != precisions(s.candidate).bits) continue;
      const auto rate = [](const RankedStack& r) { return r.run.counters.of(Phase::decode).hit_rate(); };
      if (rate(other) > rate(*best)) best = &other;
    }
    s.reason = reason_for(s.run, {best->run, best->candidate.label}, {ranking[0].run, ranking[0].candidate.label},
                          copy_s(setting, s.candidate));
  }
}

}  // namespace

const char* resource_name(Resource resource) {
  switch (resource) {
    case Resource::device_memory:
      return "twice the device memory";
    case Resource::link:
      return "a link twice as fast";
    case Resource::host_cores:
      return "twice the host's cores";
    case Resource::host_memory:
      return "host memory twice as fast";
    default:
      return "experts in INT4";
  }
}

const char* resource_key(Resource resource) {
  constexpr const char* keys[] = {"device-memory", "link", "host-cores", "host-memory", "int4"};
  return keys[static_cast<unsigned>(resource)];
}

Machine with_twice(Machine m, Resource resource) {
  const double asked = m.host_memory.effective + m.link.effective;
  const bool contended = m.host_beside_copies < 1 || m.link_beside_host < 1;
  // The bandwidth that host memory gives to host and link together, relative to what they ask for.
  double given = contended ? 1 : std::max(asked, 0.8 * m.host_memory.peak) / asked;
  auto twice = [](Machine::Speed& s) {
    s.peak *= 2;
    s.effective *= 2;
  };
  switch (resource) {
    case Resource::link:
      twice(m.link);
      m.activations_bytes_per_s *= 2;
      break;
    case Resource::host_cores:
      twice(m.host_compute);
      m.host_memory.effective = std::clamp(2 * m.host_memory.effective, m.host_memory.effective,
                                           std::max(m.host_memory.effective, 0.8 * m.host_memory.peak));
      break;
    case Resource::host_memory:
      twice(m.host_memory);
      given *= 2;
      break;
    default:
      return m;
  }
  given *= asked / (m.host_memory.effective + m.link.effective);
  m.host_beside_copies = std::min(1.0, m.host_beside_copies * given);
  m.link_beside_host = std::min(1.0, m.link_beside_host * given);
  return m;
}

std::string reason_for(const RunReport& run, const NamedRun& best_cache, const NamedRun& fastest, double copy_s) {
  constexpr double little = 0.05;  // shares of a token's time or experts below this are not mentioned
  const Outcomes& o = run.counters.of(Phase::decode);
  const PhaseTimes& times = run.times[static_cast<unsigned>(Phase::decode)];
  const double total = run.generated.decode_s, steps = static_cast<double>(run.generated.decode_steps);
  const double stall = share(seconds(times.stall), total), host_wait = share(seconds(times.host_wait), total);
  std::vector<std::string> parts;
  if (stall + host_wait >= little) {
    parts.push_back(stall >= host_wait ? fmt::format("waits for copies {} of a token", percent(stall))
                                       : fmt::format("waits for the host {} of a token", percent(host_wait)));
  } else {
    parts.emplace_back(stall + host_wait == 0 ? "waits for nothing" : "waits for next to nothing");
    const double own = computing_s(run), of_fastest = computing_s(fastest.run);
    if (run.tpot_s() > (1 + little) * fastest.run.tpot_s() && own > of_fastest) {
      parts[0] += fmt::format(", but its device computes {:.2f} ms a token, that of {} {:.2f} ms", 1e3 * own,
                              fastest.label, 1e3 * of_fastest);
    }
  }
  parts[0] += fmt::format(": {} hits", percent(o.hit_rate()));
  const double best_rate = best_cache.run.counters.of(Phase::decode).hit_rate();
  if (best_rate - o.hit_rate() >= 0.03)
    parts[0] += fmt::format(", where {} has {}", best_cache.label, percent(best_rate));
  const auto add = [&](std::uint64_t part, double at_least, const std::string& what) {
    if (share(part, o.requests) >= at_least) parts.push_back(percent(share(part, o.requests)) + what);
  };
  add(o.late_hits, little, " are still crossing when they are needed");
  add(o.host_computed, little,
      fmt::format(" are computed on the host in {:.2f} ms a token, copying them would take {:.2f} ms",
                  1e3 * seconds(times.host) / steps, 1e3 * static_cast<double>(o.host_computed) * copy_s / steps));
  add(o.substituted, little, " are replaced by others");
  add(o.skipped, little, " are not run");
  const double wasted = share(run.counters.prefetch.wasted_bytes, o.bytes);
  if (wasted >= 2 * little) parts.push_back(fmt::format("{} of what it copies leaves again unused", percent(wasted)));
  return fmt::format("{}", fmt::join(parts, "; "));
}

Recommendation recommend(const RecommendOptions& o) {
  std::vector<SimulatedChoice> tasks;
  for (const StackCandidate& c : o.candidates) tasks.push_back({&c, {}});
  for (const Resource r : all_resources) {
    for (const StackCandidate& c : r == Resource::bits ? o.in_int4 : o.candidates) tasks.push_back({&c, r});
  }
  std::vector<Done> results(tasks.size());
  std::atomic<bool> stopped = false;
  std::mutex mutex;
  Recommendation r;
  r.runs = tasks.size();
  const auto tell = [&] {
    const std::lock_guard lock(mutex);
    if (o.progress && !o.progress(r.done, r.runs)) stopped = true;
    return !stopped;
  };
  on_threads(o.threads, tasks.size(), [&](std::size_t i) {
    if (stopped) return;
    results[i] = simulated(o, tasks[i], tell);
    if (!results[i].run && results[i].refused.empty()) return;
    {
      const std::lock_guard lock(mutex);
      ++r.done;
    }
    tell();
  });

  for (std::size_t i = 0; i < o.candidates.size(); ++i) {
    if (!results[i].refused.empty()) r.left_out.push_back({o.candidates[i].label, results[i].refused});
    if (results[i].run) r.ranking.push_back({o.candidates[i], std::move(*results[i].run), ""});
  }
  if (r.ranking.empty() && !stopped) {
    throw InputError(r.left_out.empty()
                         ? "no stack may be chosen"
                         : fmt::format("no stack can run; {}: {}", r.left_out[0].stack, r.left_out[0].why));
  }
  if (!r.ranking.empty() && r.ranking[0].run.generated.decode_steps == 0) {
    throw InputError(
        fmt::format("{}: all tokens that were simulated are prompts: expected more --tokens, a longer text, or "
                    "a smaller --batch, whose prompts come first",
                    o.setting.trace_name));
  }
  std::stable_sort(r.ranking.begin(), r.ranking.end(), [](const RankedStack& a, const RankedStack& b) {
    return sooner(a.tpot_s(), a.ttft_s(), b.tpot_s(), b.ttft_s());
  });
  give_reasons(o.setting, r.ranking);
  for (const Resource resource : all_resources) {
    const RunReport* best = nullptr;
    std::string label;
    bool all = true;  // false: the best one may be missing
    for (std::size_t i = o.candidates.size(); i < tasks.size(); ++i) {
      if (tasks[i].more != resource) continue;
      all = all && (results[i].run || !results[i].refused.empty());
      if (!results[i].run) continue;
      const RunReport& run = *results[i].run;
      if (best != nullptr && !sooner(run.tpot_s(), run.generated.ttft_s, best->tpot_s(), best->generated.ttft_s)) {
        continue;
      }
      best = &run;
      label = tasks[i].candidate->label;
    }
    if (best == nullptr || !all) continue;
    // Fewer bits are no upgrade if the best stack is already at least as fast.
    if (resource == Resource::bits && !r.ranking.empty() && best->tpot_s() >= r.ranking[0].tpot_s()) continue;
    r.upgrades.push_back({resource, label, best->tpot_s(), best->generated.ttft_s, best->budget_asked_bytes});
  }
  std::stable_sort(r.upgrades.begin(), r.upgrades.end(),
                   [](const Upgrade& a, const Upgrade& b) { return a.tpot_s < b.tpot_s; });
  return r;
}

}  // namespace ferry::engine
