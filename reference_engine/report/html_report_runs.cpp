#include "report/html_report_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "report/html_text.hpp"

namespace ferry::engine::html {
namespace {

constexpr const char* outcome_keys[] = {"hits", "late_hits", "misses", "substituted", "skipped", "host_computed"};
constexpr const char* precision_keys[] = {"int2", "int4", "int8", "full"};
constexpr std::size_t most_parameters = 32;

/// Describes the made-up rows that a run was given; empty: none. All stacks get the same words, whichever rows they read.
std::string assumed_of(const Lenient& run) {
  const Lenient assumed = run.object("assumed");
  const Number top_k = assumed.number("recall_top_k"), candidates = assumed.number("recall_candidates");
  if (!top_k || !candidates) return "";
  return fmt::format("recall assumed: {:.4g}, {:.4g}", *top_k, *candidates);
}

std::string parameters_of(const Fields& run) {
  std::string out;
  if (!run.has("parameters")) return out;
  if (!run.at("parameters").is_object()) run.refuse("parameters", "an object");
  std::size_t count = 0;
  for (const auto& [name, value] : run.at("parameters").items()) {
    if (++count > most_parameters) return out + ", …";
    const std::string shown = value.is_string() ? value.get<std::string>() : json_text(value);
    out += (out.empty() ? "" : ", ") + shorten(name, 60) + " = " + shorten(shown, 60);
  }
  return out;
}

}  // namespace

Number amount(double v) {
  if (!(v >= 0) || v > 1e24) return {};
  return v < 1e-30 ? 0 : v;
}

Number over(Number part, Number whole) {
  return part && whole && *whole > 0 ? amount(*part / *whole) : Number{};
}

Number times(Number a, Number b) {
  return a && b ? amount(*a * *b) : Number{};
}

Number Lenient::number(const char* name) const {
  return fields_.has(name) ? needed_number(name) : Number{};
}

Number Lenient::needed_number(const char* name) const {
  if (!fields_.at(name).is_number()) fields_.refuse(name, "a number");
  return amount(fields_.at(name).get<double>());
}

Lenient Lenient::object(const char* name) const {
  static const Json empty = Json::object();
  return {fields_.has(name) ? object_[name] : empty, where_ + '.' + name};
}

const Json& Lenient::list(const char* name) const {
  static const Json empty = Json::array();
  if (!fields_.has(name)) return empty;
  if (!object_[name].is_array()) fields_.refuse(name, "an array");
  return object_[name];
}

std::vector<Number> Lenient::numbers(const char* name, std::size_t most) const {
  std::vector<Number> out;
  for (const Json& each : list(name)) {
    if (!each.is_number() && !each.is_null()) fields_.refuse(name, "an array of numbers");
    if (out.size() < most) out.push_back(each.is_null() ? Number{} : amount(each.get<double>()));
  }
  return out;
}

std::string Run::budget() const {
  if (!budget_percent) return html::number(budget_bytes / (1 << 20), budget_bytes < (10 << 20)) + " MiB";
  return (*budget_percent < 100 ? fmt::format("{:.3g}", *budget_percent) : html::number(*budget_percent, 0)) + "%";
}

std::string Run::name() const {
  return shorten(series, 80) + " @ " + budget();
}

Run parse_run(const Json& json, const std::string& where) {
  const Lenient top(json, where);
  Run r;
  r.stack = top.strict().text("stack");
  if (const std::string label = top.text("stack_file"); !label.empty()) r.stack = label;
  r.refused = top.text("refused");
  if (!r.refused.empty()) return r;
  r.model = top.strict().text("model");
  r.ferry = top.text("ferry");
  r.trace = top.text("trace");
  r.machine = top.text("machine");
  r.device = top.text("device");
  r.clock = top.text("clock");
  r.costs = top.text("costs");
  r.as_shape = top.text("as_shape");
  r.assumed = assumed_of(top);
  r.parameters = parameters_of(top.strict());
  if (!r.assumed.empty()) r.parameters += (r.parameters.empty() ? "" : ", ") + r.assumed;
  r.interrupted = top.strict().flag("interrupted", false);
  r.batch = top.number("batch").value_or(1);
  r.built_bytes = r.budget_bytes = or_zero(top.needed_number("budget_bytes"));
  r.budget_percent = top.number("budget_percent");
  const Number asked = top.number("budget_asked_bytes"), all = top.number("all_expert_bytes");
  if (asked) {
    // A stack that keeps every expert takes more than was asked for. No stack can use more than all experts take.
    r.budget_bytes = std::max(r.built_bytes, all ? std::min(*asked, *all) : *asked);
    r.budget_percent.reset();
  }
  if (!r.budget_percent) r.budget_percent = times(100, over(r.budget_bytes, all));
  r.ttft = top.number("ttft_s");

  const Lenient decode(top.strict().at("decode"), where + ".decode"), prefill = top.object("prefill");
  const Number decode_s = decode.number("time_s"), prefill_s = prefill.number("time_s");
  r.tokens = decode.number("tokens");
  r.all_tokens = amount(or_zero(r.tokens) + or_zero(prefill.number("tokens")));
  r.tokens_per_s = over(r.tokens, decode_s);
  r.tpot = decode.number("tpot_s");
  if (!r.tpot) r.tpot = times(over(decode_s, r.tokens), r.batch);
  r.requests = decode.number("requests");
  for (std::size_t i = 0; i < r.outcomes.size(); ++i) r.outcomes[i] = decode.number(outcome_keys[i]);
  r.bytes = decode.number("bytes");
  const Lenient precisions = top.object("bytes_by_precision");
  for (std::size_t i = 0; i < r.precisions.size(); ++i) r.precisions[i] = precisions.number(precision_keys[i]);

  const Lenient bounds = top.object("bounds");
  r.all_resident = bounds.number("all_resident_tpot_s");
  r.clairvoyant = bounds.number("clairvoyant_tpot_s");
  r.clairvoyant_with_host = bounds.number("clairvoyant_with_host_tpot_s");
  r.perfect_prediction = bounds.object("perfect_prediction").number("tpot_s");
  r.belady_cache = bounds.object("belady_cache").number("tpot_s");
  r.prediction_and_cache = bounds.object("prediction_and_cache").number("tpot_s");

  const Lenient split = top.object("time").object("decode");
  if (const Number total = split.number("total_s"); total && or_zero(r.tokens) > 0) {
    r.decode_time = Run::Split{total,
                               split.number("stall_s"),
                               split.number("host_wait_s"),
                               split.number("decision_s"),
                               split.number("link_busy_s"),
                               *r.tokens};
    r.stalled = over(r.decode_time->stall, total);
  } else if (const Number stall = top.number("stall_s"); prefill_s && decode_s && stall && or_zero(r.all_tokens) > 0) {
    r.whole_time = Run::Split{amount(*prefill_s + *decode_s), stall, top.number("host_wait_s"),
                              top.number("decision_s"),       {},    *r.all_tokens};
    r.stalled = over(stall, r.whole_time->total);
  }

  r.hit_rate_by_layer = top.numbers("hit_rate_by_layer", most_layers);
  if (!any_known(r.hit_rate_by_layer)) r.hit_rate_by_layer.clear();
  const Lenient prefetch = top.object("prefetch");
  std::size_t i = 0;
  for (const Json& each : prefetch.list("by_distance")) {
    const Lenient at(each, fmt::format("{}.prefetch.by_distance[{}]", where, i++));
    auto layers = at.numbers("recall_by_layer", most_layers);
    if (any_known(layers) && r.recall_by_layer.size() < most_distances) {
      r.recall_by_layer.emplace_back(at.number("distance").value_or(static_cast<double>(i)), std::move(layers));
    }
  }
  // A stack that predicts nothing reports a recall of 0, which means nothing.
  if (!r.recall_by_layer.empty() || or_zero(prefetch.number("issued")) > 0) r.recall = prefetch.number("recall");
  return r;
}

namespace {

/// Numbers runs that have the same name and budget but different results.
void tell_apart(Group& g) {
  std::map<std::pair<std::string, double>, std::vector<Number>> seen;
  for (Run* r : g.runs) {
    std::vector<Number>& times = seen[{r->name(), r->budget_bytes}];
    std::size_t at = static_cast<std::size_t>(std::find(times.begin(), times.end(), r->tpot) - times.begin());
    if (at == times.size()) times.push_back(r->tpot);
    if (at > 0) r->series += fmt::format(" ({})", at + 1);
  }
}

/// Ranks series by their speed at the largest budget, for the rows of every chart. Runs are sorted by budget.
void rank_series(Group& g) {
  std::map<std::string, double> last;
  for (const Run* r : g.runs) last[r->series] = or_zero(r->tokens_per_s);
  std::vector<std::string> order;
  for (const Run* r : g.runs) {
    if (std::find(order.begin(), order.end(), r->series) == order.end()) order.push_back(r->series);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](const std::string& a, const std::string& b) { return last.at(a) > last.at(b); });
  for (Run* r : g.runs) {
    r->rank = static_cast<std::size_t>(std::find(order.begin(), order.end(), r->series) - order.begin());
  }
}

}  // namespace

std::vector<Group> group_runs(std::vector<Run>& runs) {
  using Names = std::vector<std::string>;
  auto set_up = [](const Run& r) {
    return Names{r.trace,
                 r.model,
                 r.machine,
                 r.as_shape.empty() ? "" : "as " + r.as_shape,
                 r.costs.empty() ? "" : r.costs + " costs",
                 r.device,
                 "batch " + number(r.batch, 0)};
  };
  std::map<Names, std::map<std::string, std::set<std::string>>> tried;  // parameters, by set-up and stack
  for (const Run& r : runs) tried[set_up(r)][r.stack].insert(r.parameters);

  std::map<Names, std::size_t> known;
  std::map<std::string, std::size_t> index;
  std::vector<Group> groups;
  for (Run& r : runs) {
    Names key = set_up(r);
    const auto& stacks = tried[key];
    std::size_t series = 0;
    for (const auto& [stack, parameters] : stacks) series += parameters.size();
    const bool together = series <= most_series;
    const bool several = together && stacks.at(r.stack).size() > 1;
    r.series = several ? r.stack + ", " + (r.parameters.empty() ? "no parameters" : r.parameters) : r.stack;
    key.push_back(together ? "" : r.parameters);
    const auto [at, added] = known.emplace(key, groups.size());
    if (added) {
      groups.emplace_back();
      for (const std::string& part : key) {
        if (!part.empty()) groups.back().name += (groups.back().name.empty() ? "" : " · ") + shorten(part, 120);
      }
    }
    groups[at->second].runs.push_back(&r);
  }
  for (Group& g : groups) {
    for (const Run* r : g.runs) g.percent = g.percent && r->budget_percent;
    std::stable_sort(g.runs.begin(), g.runs.end(), [&](auto a, auto b) { return g.budget(*a) < g.budget(*b); });
    tell_apart(g);
    rank_series(g);
    for (Run* r : g.runs) r->index = index.emplace(r->series, index.size()).first->second;
    std::map<std::size_t, double> least, in_column;  // budgets, by series
    std::set<std::size_t> several;                   // series with several
    for (const Run* r : g.runs) {
      if (g.budget(*r) > 1.01 * least.emplace(r->index, g.budget(*r)).first->second) several.insert(r->index);
    }
    g.one_budget = several.empty();
    double begin = 0;
    for (Run* r : g.runs) {
      const double budget = g.budget(*r);
      const auto before = in_column.find(r->index);
      if (g.columns.empty() || budget > 1.1 * begin || (before != in_column.end() && budget > 1.01 * before->second)) {
        g.columns.emplace_back();
        in_column.clear();
        begin = budget;
      }
      in_column.emplace(r->index, budget);
      if (g.columns.back().empty() || several.contains(r->index)) g.columns.back() = r->budget();  // the largest
      r->column = g.columns.size() - 1;
    }
  }
  return groups;
}

}  // namespace ferry::engine::html
