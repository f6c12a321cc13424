#include "report/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "ferry/macros.hpp"
#include "sim/simulate.hpp"
#include "stacks/stack_options.hpp"
#include "support/errors.hpp"
#include "support/terminal.hpp"
#include "support/utf8.hpp"

namespace ferry::engine {
namespace {

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

Json phase_json(const RunReport& r, Phase phase) {
  const Outcomes& o = r.counters.of(phase);
  const bool decode = phase == Phase::decode;
  Json json = to_json(o);
  json["tokens"] = decode ? r.generated.decode_tokens : r.generated.prefill_tokens;
  json["time_s"] = decode ? r.generated.decode_s : r.generated.prefill_s;
  json["miss_penalty"] = o.miss_penalty(r.expert_bytes);
  return json;
}

std::string size(std::uint64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (bytes < (1U << 20U)) return fmt::format("{:.1f} KiB", b / 1024);
  if (bytes < (1U << 30U)) return fmt::format("{:.1f} MiB", b / (1 << 20));
  return fmt::format("{:.2f} GiB", b / (1 << 30));
}

std::string time(double s) {
  if (s == 0) return "0";
  if (s < 1e-3) return fmt::format("{:.1f} us", s * 1e6);
  if (s < 1) return fmt::format("{:.2f} ms", s * 1e3);
  return fmt::format("{:.2f} s", s);
}

std::string percent(double part) {
  return fmt::format("{:.1f}%", part * 100);
}

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Json to_json(const Outcomes& o) {
  return {{"requests", o.requests},
          {"hits", o.hits},
          {"late_hits", o.late_hits},
          {"misses", o.misses},
          {"substituted", o.substituted},
          {"skipped", o.skipped},
          {"host_computed", o.host_computed},
          {"bytes", o.bytes},
          {"prefetched", o.prefetched},
          {"prefetched_bytes", o.prefetched_bytes},
          {"top_score_requests", o.top_requests},
          {"top_score_misses", o.top_misses},
          {"top_score_late_hits", o.top_late_hits},
          {"low_score_requests", o.low_requests},
          {"low_score_misses", o.low_misses},
          {"low_score_late_hits", o.low_late_hits}};
}

bool RunReport::lossless() const {
  return find_stack(stack).keeps_every_bit() && !store.rounded && !rounded;
}

double RunReport::tpot_s() const {
  return generated.decode_steps == 0 ? 0 : generated.decode_s / static_cast<double>(generated.decode_steps);
}

RunReport make_report(const ExpertRunner& runner, Generated generated, RunReport r) {
  r.generated = std::move(generated);
  const RunnerStatistics statistics = runner.statistics();
  r.counters = statistics.counters;
  r.times[0] = runner.times[0];
  r.times[1] = runner.times[1];
  r.budget_bytes = statistics.arena_bytes;
  r.gate_worker_busy = statistics.gate_worker_busy;
  r.gate_worker_waited = statistics.gate_worker_waited;
  r.accuracy = statistics.accuracy;
  if (r.generated.decode_steps == 0) return r;
  const double steps = static_cast<double>(r.generated.decode_steps);
  const PhaseTimes& t = runner.times[static_cast<unsigned>(Phase::decode)];
  r.all_resident_tpot_s = (r.generated.decode_s - seconds(t.stall + t.host_wait + t.decision - t.hosted)) / steps;
  double least_bytes = 0;
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    std::uint64_t copies = runner.fewest[p];
    for (const UseLog& log : runner.uses) {
      copies += fewest_copies(log, static_cast<Precision>(p), statistics.slots[p]);
    }
    least_bytes += static_cast<double>(copies * statistics.copy_bytes[p]);
  }
  const double link_s = least_bytes == 0 ? 0 : least_bytes / statistics.link_peak_bytes_per_s / steps;
  r.clairvoyant_tpot_s = std::max(r.all_resident_tpot_s - seconds(t.hosted) / steps, link_s);
  return r;
}

RunReport make_report(const Simulated& s, RunReport r) {
  r.counters = s.counters;
  r.budget_bytes = s.arena_bytes;
  r.accuracy = s.accuracy;
  r.generated.interrupted = !s.finished;
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const auto p = static_cast<unsigned>(phase);
    r.times[p] = {s.phase[p].stall, 0, 0, s.phase[p].host, s.phase[p].host_wait};
    if (r.simulated) r.simulated->link_busy[p] = s.phase[p].link_busy;
  }
  const PhaseClock& prefill = s.phase[0];
  const PhaseClock& decode = s.phase[1];
  r.generated.prefill_s = seconds(prefill.total);
  r.generated.prefill_tokens = prefill.tokens;
  r.generated.ttft_s = s.prefilled == 0 ? 0 : seconds(s.prefill) / s.prefilled;
  r.generated.decode_s = seconds(decode.total);
  r.generated.decode_tokens = decode.tokens;
  r.generated.decode_steps = decode.steps;
  if (r.simulated) r.simulated->layer_hits = s.layer_hits;
  if (s.decode_work && decode.steps > 0) {
    const auto steps = static_cast<double>(decode.steps);
    r.all_resident_tpot_s = seconds(s.decode_work->compute) / steps;
    r.clairvoyant_tpot_s = seconds(clairvoyant_ns(*s.decode_work)) / steps;
    if (r.simulated) {
      r.simulated->clairvoyant_with_host_tpot_s = seconds(clairvoyant_with_host_ns(*s.decode_work)) / steps;
    }
  }
  return r;
}

namespace {

Json prefetch_json(const RunReport& r) {
  Json accuracy = Json::array();
  for (std::size_t d = 0; d < r.accuracy.size(); ++d) {
    Json recall = Json::array(), top1 = Json::array();
    for (const Accuracy& a : r.accuracy[d]) {
      recall.push_back(a.needed == 0 ? Json() : Json(a.recall()));
      top1.push_back(a.rows == 0 ? Json() : Json(a.top1()));
    }
    accuracy.push_back({{"distance", d + 1}, {"recall_by_layer", recall}, {"top1_by_layer", top1}});
  }
  const PrefetchCounts& p = r.counters.prefetch;
  return {{"issued", p.issued},
          {"used", p.used},
          {"dropped", p.dropped},
          {"issued_bytes", p.issued_bytes},
          {"promoted", p.promoted},
          {"wasted_bytes", p.wasted_bytes},
          {"recall", p.accuracy.recall()},
          {"precision", p.precision()},
          {"top1", p.accuracy.top1()},
          {"by_distance", accuracy}};
}

/// What only a simulation knows.
void add_simulated(const RunReport& r, Json& json) {
  const SimulatedFacts& s = *r.simulated;
  json["device"] = "virtual clock";
  json["clock"] = "virtual";
  json["trace"] = s.trace;
  json["costs"] = s.costs;
  json["as_shape"] = s.as_shape.empty() ? Json() : Json(s.as_shape);
  if (s.assumed) {
    json["assumed"] = {{"recall_top_k", s.assumed->recall_top_k},
                       {"recall_candidates", s.assumed->recall_candidates},
                       {"seed", s.assumed->seed},
                       {"what", s.assumed->what}};
  }
  Json by_layer = Json::array();
  for (const auto& [hits, requests] : s.layer_hits)
    by_layer.push_back(requests == 0 ? Json() : Json(ratio(hits, requests)));
  json["hit_rate_by_layer"] = by_layer;
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const auto p = static_cast<unsigned>(phase);
    json["time"][p == 0 ? "prefill" : "decode"] = {{"total_s", p == 0 ? r.generated.prefill_s : r.generated.decode_s},
                                                   {"stall_s", seconds(r.times[p].stall)},
                                                   {"host_s", seconds(r.times[p].host)},
                                                   {"host_wait_s", seconds(r.times[p].host_wait)},
                                                   {"link_busy_s", seconds(s.link_busy[p])}};
  }
  Json& bounds = json["bounds"];
  bounds["clairvoyant_with_host_tpot_s"] = s.clairvoyant_with_host_tpot_s;
  auto other = [&](const char* name, const std::optional<SimulatedFacts::Other>& o) {
    if (o) bounds[name] = {{"tpot_s", o->tpot_s}, {"hit_rate", o->hit_rate}};
  };
  other("perfect_prediction", s.perfect_prediction);
  other("belady_cache", s.belady_cache);
  other("prediction_and_cache", s.prediction_and_cache);
  if (s.belady_demand) bounds["belady_hit_rate"] = s.belady_demand->hit_rate;
}

}  // namespace

Json to_json(const RunReport& r) {
  Json prefill = phase_json(r, Phase::prefill), decode = phase_json(r, Phase::decode);
  decode["tpot_s"] = r.tpot_s();
  const std::uint64_t* copied = r.counters.bytes_by_precision;
  Json texts = Json::array();
  for (const std::string& text : r.generated.text) texts.push_back(valid_utf8(text));
  Json json = {
      {"ferry", FERRY_VERSION},
      {"model", r.model},
      {"stack", r.stack},
      {"parameters", r.parameters},
      {"machine", r.machine.empty() ? Json() : Json(r.machine)},
      {"device", r.device},
      {"clock", r.clock},
      {"budget_asked_bytes", r.budget_asked_bytes},
      {"budget_bytes", r.budget_bytes},
      {"batch", r.batch},
      {"text", texts},
      {"interrupted", r.generated.interrupted},
      {"lossless", r.lossless()},
      {"link_bytes_per_s", r.throttle_bytes_per_s == 0 ? Json() : Json(r.throttle_bytes_per_s)},
      {"prefetch_chunk_bytes", r.prefetch_chunk_bytes},
      {"dense_bytes", r.dense_bytes},
      {"kv_bytes", r.generated.kv_bytes},
      {"ttft_s", r.generated.ttft_s},
      {"prefill", prefill},
      {"decode", decode},
      {"prefetch", prefetch_json(r)},
      {"preload_bytes", r.counters.preload_bytes},
      {"bytes_by_precision", {{"int2", copied[1]}, {"int4", copied[2]}, {"int8", copied[3]}, {"full", copied[4]}}},
      {"stall_s", seconds(r.times[0].stall + r.times[1].stall)},
      {"host_compute_s", seconds(r.times[0].host + r.times[1].host)},
      {"host_wait_s", seconds(r.times[0].host_wait + r.times[1].host_wait)},
      {"gate_worker", {{"busy_s", seconds(r.gate_worker_busy)}, {"waited_s", seconds(r.gate_worker_waited)}}},
      {"decision_s", seconds(r.times[0].decision + r.times[1].decision)},
      {"decision_link_s", seconds(r.times[0].handing + r.times[1].handing)},
      {"bounds", {{"all_resident_tpot_s", r.all_resident_tpot_s}, {"clairvoyant_tpot_s", r.clairvoyant_tpot_s}}}};
  if (r.all_expert_bytes > 0) {
    json["all_expert_bytes"] = r.all_expert_bytes;
    // Rounded, since bytes are whole: 60% may be 59.9999994% of them.
    json["budget_asked_percent"] = std::round(1e6 * ratio(r.budget_asked_bytes, r.all_expert_bytes)) / 1e4;
    json["budget_percent"] = 100 * ratio(r.budget_bytes, r.all_expert_bytes);
  }
  for (const auto& [use, bytes] : r.device_memory) json["device_memory_bytes"][use] = bytes;
  if (!r.stack_file.empty()) json["stack_file"] = r.stack_file;
  if (!r.store.file.empty()) {
    const StoreReads& s = r.store;
    json["store"] = {{"file", s.file},   {"how", s.how},   {"host_bytes", s.host_bytes}, {"reads", s.reads},
                     {"bytes", s.bytes}, {"hits", s.hits}, {"retries", s.retries}};
  }
  if (!r.simulated) {
    json["token_ids"] = r.generated.token_ids;
    json["ended_by"] = Json::array();
    for (const Ended e : r.generated.ended) json["ended_by"].push_back(ended_name(e));
    return json;
  }
  add_simulated(r, json);
  return json;
}

std::string in_columns(const std::vector<std::string>& names, const std::vector<std::vector<std::string>>& cells,
                       std::size_t columns) {
  std::size_t name_width = 0;
  for (const std::string& n : names) name_width = std::max(name_width, n.size());
  std::string out;
  const std::size_t count = cells.empty() ? 0 : cells[0].size();
  for (std::size_t first = 0; first < count;) {
    std::vector<std::size_t> width;
    std::size_t taken = name_width;
    for (std::size_t j = first; j < count; ++j) {
      std::size_t widest = 0;
      for (const auto& row : cells) widest = std::max(widest, row[j].size());
      if (j > first && taken + 2 + widest > columns) break;
      taken += 2 + widest;
      width.push_back(widest);
    }
    if (first > 0) out += '\n';
    for (std::size_t i = 0; i < names.size(); ++i) {
      out += fmt::format("{:<{}}", names[i], name_width);
      for (std::size_t j = 0; j < width.size(); ++j) out += fmt::format("  {:>{}}", cells[i][first + j], width[j]);
      out += '\n';
    }
    first += width.size();
  }
  return out;
}

namespace {

using Cell = std::function<std::string(const RunReport&)>;
struct Row {
  const char* name;
  Cell cell;
};

const std::string& name_of(const RunReport& r) {
  return r.stack_file.empty() ? r.stack : r.stack_file;
}

/// The count and share of a phase's requests with this outcome.
Cell outcome(Phase p, std::uint64_t Outcomes::*member) {
  return [p, member](const RunReport& r) {
    const Outcomes& o = r.counters.of(p);
    return o.requests == 0 ? std::string("-")
                           : fmt::format("{} ({})", o.*member, percent(ratio(o.*member, o.requests)));
  };
}

std::string of_prefetches(const RunReport& r, double value) {
  return r.counters.prefetch.accuracy.needed == 0 ? std::string("-") : percent(value);
}

std::string misses_of(std::uint64_t misses, std::uint64_t requests) {
  return requests == 0 ? std::string("-") : fmt::format("{} ({})", misses, percent(ratio(misses, requests)));
}

std::string against(const RunReport& r, double bound) {
  return bound == 0 ? std::string("-") : fmt::format("{} (x{:.2f})", time(bound), r.tpot_s() / bound);
}

/// Why generation ended: one word if it is the same for all prompts.
std::string ended_by(const RunReport& r) {
  std::map<std::string, std::size_t> prompts;
  for (const Ended e : r.generated.ended) ++prompts[ended_name(e)];
  if (prompts.size() == 1) return prompts.begin()->first;
  std::vector<std::string> each;
  for (const auto& [why, count] : prompts) each.push_back(fmt::format("{} {}", count, why));
  return each.empty() ? std::string("-") : fmt::format("{}", fmt::join(each, ", "));
}

/// Of every run.
std::vector<Row> usual_rows() {
  return {
      {"stack", name_of},
      {"experts' memory",
       [](const RunReport& r) {
         return fmt::format("{} ({})", size(r.budget_bytes), percent(ratio(r.budget_bytes, r.all_expert_bytes)));
       }},
      {"time to first token", [](const RunReport& r) { return time(r.generated.ttft_s); }},
      {"time per output token",
       [](const RunReport& r) { return r.generated.decode_steps == 0 ? std::string("-") : time(r.tpot_s()); }},
      {"ended by", ended_by},
      {"tokens/s in decode",
       [](const RunReport& r) {
         return r.generated.decode_steps == 0
                    ? std::string("-")
                    : fmt::format("{:.1f}", static_cast<double>(r.generated.decode_tokens) / r.generated.decode_s);
       }},
      {"decode hits", outcome(Phase::decode, &Outcomes::hits)},
      {"decode late hits", outcome(Phase::decode, &Outcomes::late_hits)},
      {"decode misses", outcome(Phase::decode, &Outcomes::misses)},
      {"decode substituted", outcome(Phase::decode, &Outcomes::substituted)},
      {"decode skipped", outcome(Phase::decode, &Outcomes::skipped)},
      {"decode on the host", outcome(Phase::decode, &Outcomes::host_computed)},
      {"top-score misses",
       [](const RunReport& r) {
         const Outcomes& o = r.counters.of(Phase::decode);
         return misses_of(o.top_misses, o.top_requests);
       }},
      {"low-score misses",
       [](const RunReport& r) {
         const Outcomes& o = r.counters.of(Phase::decode);
         return misses_of(o.low_misses, o.low_requests);
       }},
      {"miss penalty",
       [](const RunReport& r) {
         return fmt::format("{:.1f}", r.counters.of(Phase::decode).miss_penalty(r.expert_bytes));
       }},
      {"prefill hits", outcome(Phase::prefill, &Outcomes::hits)},
      {"prefill late hits", outcome(Phase::prefill, &Outcomes::late_hits)},
      {"prefill misses", outcome(Phase::prefill, &Outcomes::misses)},
      {"prefill prefetched", outcome(Phase::prefill, &Outcomes::prefetched)},
      {"copied in prefill", [](const RunReport& r) { return size(r.counters.of(Phase::prefill).bytes); }},
      {"copied in decode", [](const RunReport& r) { return size(r.counters.of(Phase::decode).bytes); }},
      {"prefetch recall", [](const RunReport& r) { return of_prefetches(r, r.counters.prefetch.accuracy.recall()); }},
      {"prefetch precision", [](const RunReport& r) { return of_prefetches(r, r.counters.prefetch.precision()); }},
      {"prefetch top-1",
       [](const RunReport& r) {
         const Accuracy& a = r.counters.prefetch.accuracy;
         return a.rows == 0 ? std::string("-") : percent(a.top1());
       }},
      {"prefetched, wasted",
       [](const RunReport& r) {
         const PrefetchCounts& p = r.counters.prefetch;
         return p.accuracy.needed == 0 && p.promoted == 0
                    ? std::string("-")
                    : fmt::format("{}, {}", size(p.issued_bytes), size(p.wasted_bytes));
       }},
      {"stalled on copies", [](const RunReport& r) { return time(seconds(r.times[0].stall + r.times[1].stall)); }},
      {"waited for the host",
       [](const RunReport& r) { return time(seconds(r.times[0].host_wait + r.times[1].host_wait)); }},
      {"deciding",
       [](const RunReport& r) {
         return time(seconds(r.times[0].decision - r.times[0].handing + r.times[1].decision - r.times[1].handing));
       }},
      {"handing copies over",
       [](const RunReport& r) { return time(seconds(r.times[0].handing + r.times[1].handing)); }},
      // In both bounds the device computes every expert. A run whose host helps can be faster, and is not measured by them.
      {"all-resident bound",
       [](const RunReport& r) {
         const bool faster = r.counters.of(Phase::decode).host_computed > 0 && r.tpot_s() < r.all_resident_tpot_s;
         return faster ? time(r.all_resident_tpot_s) : against(r, r.all_resident_tpot_s);
       }},
      {"clairvoyant bound",
       [](const RunReport& r) {
         const bool by_host = r.counters.of(Phase::decode).host_computed > 0 && r.clairvoyant_tpot_s > 0;
         return by_host ? time(r.clairvoyant_tpot_s) : against(r, r.clairvoyant_tpot_s);
       }},
  };
}

/// Rows for simulations: the times if the stack had known more.
std::vector<Row> simulated_rows() {
  const auto bound = [](std::optional<SimulatedFacts::Other> SimulatedFacts::*member) {
    return [member](const RunReport& r) {
      const auto& o = (*r.simulated).*member;
      return o ? fmt::format("{} ({} hits)", time(o->tpot_s), percent(o->hit_rate)) : std::string("-");
    };
  };
  return {
      {"the same with a host",
       [](const RunReport& r) { return against(r, r.simulated->clairvoyant_with_host_tpot_s); }},
      {"perfect prediction", bound(&SimulatedFacts::perfect_prediction)},
      {"Belady's cache", bound(&SimulatedFacts::belady_cache)},
      {"both of them", bound(&SimulatedFacts::prediction_and_cache)},
      {"Belady on demand", bound(&SimulatedFacts::belady_demand)},
  };
}

/// What readers of simulations must know, below their table.
std::string notes_on_simulations(const std::vector<RunReport>& reports, std::size_t columns) {
  std::string out;
  std::vector<std::string> slower;
  for (const RunReport& r : reports) {
    auto is_slower = [&](const std::optional<SimulatedFacts::Other>& o) { return o && o->tpot_s > r.tpot_s(); };
    if (!r.simulated) continue;
    const SimulatedFacts& s = *r.simulated;
    if (is_slower(s.perfect_prediction) || is_slower(s.belady_cache) || is_slower(s.prediction_and_cache))
      slower.push_back(name_of(r));
  }
  if (!slower.empty()) {
    out += wrapped(
        fmt::format("{}: knowing more makes a step slower here; a demand waits for a copy that is on its way, though "
                    "the host, or another choice, would be sooner\n",
                    fmt::join(slower, ", ")),
        columns);
  }
  for (const RunReport& r : reports) {
    if (!r.simulated || !r.simulated->assumed) continue;
    const SimulatedFacts::Assumed& a = *r.simulated->assumed;
    out += wrapped(fmt::format("{}: {} made up, not recorded (--assume-recall {},{} --assume-seed {})\n", name_of(r),
                               fmt::join(a.what, ", "), a.recall_top_k, a.recall_candidates, a.seed),
                   columns);
  }
  return out;
}

}  // namespace

std::string to_table(const std::vector<RunReport>& reports, std::size_t columns) {
  std::vector<Row> rows = usual_rows();
  if (std::any_of(reports.begin(), reports.end(), [](const RunReport& r) { return !r.store.file.empty(); })) {
    rows.push_back({"read from disk", [](const RunReport& r) {
                      return fmt::format("{} ({} reads, {} from memory)", size(r.store.bytes), r.store.reads,
                                         r.store.hits);
                    }});
  }
  if (std::any_of(reports.begin(), reports.end(), [](const RunReport& r) { return r.simulated.has_value(); })) {
    for (Row& row : simulated_rows()) rows.push_back(std::move(row));
  }
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> cells;
  for (const auto& [name, cell] : rows) {
    names.emplace_back(name);
    auto& line = cells.emplace_back();
    for (const RunReport& r : reports) line.push_back(cell(r));
  }
  return in_columns(names, cells, columns) + notes_on_simulations(reports, columns);
}

}  // namespace ferry::engine
