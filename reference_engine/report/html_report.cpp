#include "report/html_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "report/html_page.hpp"
#include "report/html_report_runs.hpp"
#include "report/html_text.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

using namespace html;

constexpr std::size_t most_groups = 12, most_rows = 60, most_spans = 6000;

Json json(Number n) {
  return n ? Json(*n) : Json();
}

std::string left_out(std::size_t count, const char* what) {
  return count == 0 ? "" : fmt::format("<p class=\"note\">{}: {}</p>\n", what, number(static_cast<double>(count), 0));
}

/// A heading and a chart for every group; empty if `chart` returns nothing for all of them.
std::string for_groups(const std::vector<Group>& groups, const std::function<std::string(const Group&)>& chart) {
  std::string out;
  std::size_t shown = 0, more = 0;
  for (const Group& g : groups) {
    if (shown == most_groups) {
      ++more;
    } else if (const std::string one = chart(g); !one.empty()) {
      ++shown;
      if (groups.size() > 1) out += "<h3>" + escape(g.name) + "</h3>\n";
      out += one;
    }
  }
  return out + left_out(more, "Groups of runs that only the table has");
}

// Charts with a row for each run

struct Panels {
  std::vector<std::pair<std::string, std::vector<const Run*>>> panels;  // a heading and its rows
  bool name_budgets = false;                                            // whether rows name their budget
  std::size_t left_out = 0;                                             // runs that have no row
};

/// A panel for each budget, or a single one if there are few runs or too many budgets. The fastest series comes first.
Panels panels_of(const Group& g, const std::function<bool(const Run&)>& has) {
  std::vector<const Run*> runs;
  std::copy_if(g.runs.begin(), g.runs.end(), std::back_inserter(runs), [&](const Run* r) { return has(*r); });
  std::stable_sort(runs.begin(), runs.end(), [](auto a, auto b) { return a->rank < b->rank; });
  Panels out;
  if (runs.empty()) return out;
  std::set<std::size_t> all;
  std::map<std::size_t, std::set<std::size_t>> in_column;  // series
  for (const Run* r : runs) {
    all.insert(r->index);
    in_column[r->column].insert(r->index);
  }
  std::map<std::size_t, std::size_t> own;  // columns with many of the series get a panel each
  for (const auto& [column, series] : in_column) {
    if (4 * series.size() >= all.size()) own.emplace(column, own.size());
  }
  if (g.one_budget || runs.size() <= 16 || own.empty() || own.size() > 10) {
    out.name_budgets = g.columns.size() > 1;
    out.panels.push_back({"", runs});
  } else {
    for (const auto& [column, at] : own) out.panels.push_back({"budget " + g.columns[column], {}});
    if (own.size() < in_column.size()) out.panels.push_back({"other budgets", {}});
    for (const Run* r : runs) {
      const auto at = own.find(r->column);
      out.panels[at == own.end() ? own.size() : at->second].second.push_back(r);
    }
  }
  for (auto& [heading, rows] : out.panels) {
    out.left_out += rows.size() - std::min(rows.size(), most_rows);
    rows.resize(std::min(rows.size(), most_rows));
  }
  return out;
}

struct RowCharts {
  std::string kind, title, axis;
  std::vector<Column> columns;                             // without that of names; columns without numbers are dropped
  std::function<std::vector<Number>(const Run&)> numbers;  // one a column; empty: this run has none
  enum { percent, from_zero, fitting } scale = percent;
  Unit (*unit)(double) = nullptr;  // none: percent, or tokens a second
};

std::string row_charts(Page& page, const Group& g, const RowCharts& about) {
  const Panels panels = panels_of(g, [&](const Run& r) { return !about.numbers(r).empty(); });
  std::vector<double> lengths;
  std::vector<bool> known(about.columns.size());
  double least = 1e300, most = 0;
  for (const auto& [heading, runs] : panels.panels) {
    for (const Run* r : runs) {
      const std::vector<Number> numbers = about.numbers(*r);
      double sum = 0, length = 0;  // of stacked bars; of the longest mark
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const double v = or_zero(numbers[i]);
        if (about.columns[i].draw == "bar") sum += v;
        length = std::max(length, v);
        known[i] = known[i] || numbers[i];
        if (v > 0) least = std::min(least, v);
      }
      lengths.push_back(std::max(sum, length));
      most = std::max(most, lengths.back());
    }
  }
  if (lengths.empty()) return {};
  // A few bars that are far longer than all others are cut.
  std::sort(lengths.begin(), lengths.end());
  const double usual = lengths[lengths.size() * 3 / 4];
  const double longest = usual > 0 ? *std::prev(std::upper_bound(lengths.begin(), lengths.end(), 3 * usual)) : most;
  const bool log = about.scale == RowCharts::fitting && least > 0 && most > 25 * least;
  const bool cut = about.scale == RowCharts::from_zero && longest < most;
  const Unit unit = about.unit == nullptr ? Unit{about.scale == RowCharts::percent ? "%" : "tokens/s", 1}
                                          : about.unit(log ? std::sqrt(least) * std::sqrt(most) : longest);
  std::vector<Table> tables;
  for (const auto& [heading, runs] : panels.panels) {
    Table& t = tables.emplace_back();
    t.kind = about.kind;
    t.title = about.title + ": " + g.name + (heading.empty() ? "" : ", " + heading);
    t.heading = heading;
    t.unit = unit.name;
    t.x = (about.kind == "heat" ? "" : t.unit + " ") + about.axis + (log ? ", logarithmic" : "");
    t.columns = {{"Run"}};
    for (const Run* r : runs) t.rows.push_back({panels.name_budgets ? r->name() : shorten(r->series, 80)});
    for (std::size_t c = 0; c < known.size(); ++c) {
      if (!known[c]) continue;
      t.columns.push_back(about.columns[c]);
      for (std::size_t i = 0; i < runs.size(); ++i) {
        const std::vector<Number> numbers = about.numbers(*runs[i]);
        t.rows[i].push_back(c < numbers.size() ? json(over(numbers[c], unit.size)) : Json());
      }
    }
    if (about.scale == RowCharts::percent) t.scale["max"] = 100;
    if (about.scale != RowCharts::percent) t.scale[cut ? "max" : "reach"] = (cut ? 1.3 * longest : most) / unit.size;
    if (log) t.scale["log"] = true;
    if (log) t.scale["min"] = std::max(least, most * 1e-6) / unit.size;
  }
  return page.figures(tables) + (cut ? "<p class=\"note\">A bar that ends at the edge is longer.</p>\n" : "") +
         left_out(panels.left_out, "Runs that only the table has");
}

/// Each number as `factor` times its share of `whole`.
std::vector<Number> parts_of(const auto& numbers, Number whole, double factor) {
  std::vector<Number> parts;
  for (const Number& n : numbers) parts.push_back(times(factor, over(n, whole)));
  return any_known(parts) ? parts : std::vector<Number>{};
}

std::vector<Number> time_of(const std::optional<Run::Split>& t) {
  if (!t || !t->total) return {};
  const double stall = or_zero(t->stall), wait = or_zero(t->host_wait), decision = or_zero(t->decision);
  const double compute = std::max(0., *t->total - stall - wait - decision);
  return parts_of(std::array<Number, 5>{compute, stall, wait, decision, t->link_busy}, t->tokens, 1);
}

std::string where_time_goes(Page& page, const Group& g) {
  RowCharts about{"rows",
                  "Time of decode",
                  "a token in decode",
                  {{"computing", "bar", "p0"},
                   {"stalled on copies", "bar", "p2"},
                   {"waiting for the host", "bar", "p5"},
                   {"deciding", "bar", "p3"},
                   {"link busy meanwhile", "thin", "bound"}},
                  [](const Run& r) { return time_of(r.decode_time); },
                  RowCharts::from_zero,
                  time_unit};
  const std::string decode = row_charts(page, g, about);
  about.title = "Time of the whole run";
  about.axis = "a token, prefill included";
  about.numbers = [](const Run& r) { return time_of(r.whole_time); };
  return decode + row_charts(page, g, about);
}

std::string outcomes(Page& page, const Group& g) {
  return row_charts(page, g,
                    {"rows",
                     "Outcomes",
                     "of decode's requests",
                     {{"hit", "bar", "p0"},
                      {"late hit", "bar", "p1"},
                      {"miss", "bar", "p2"},
                      {"substituted", "bar", "p3"},
                      {"skipped", "bar", "p4"},
                      {"on the host", "bar", "p5"}},
                     [](const Run& r) { return parts_of(r.outcomes, r.requests, 100); }});
}

std::string bytes_by_precision(Page& page, const Group& g) {
  return row_charts(
      page, g,
      {"rows",
       "Bytes by precision",
       "a token, prefill included",
       {{"int2", "bar", "o0"}, {"int4", "bar", "o1"}, {"int8", "bar", "o2"}, {"full precision", "bar", "o3"}},
       [](const Run& r) { return parts_of(r.precisions, r.all_tokens, 1); },
       RowCharts::from_zero,
       byte_unit});
}

std::string hit_rates(Page& page, const Group& g) {
  std::vector<Column> layers;
  for (const Run* r : g.runs) {
    while (layers.size() < r->hit_rate_by_layer.size()) layers.push_back({std::to_string(layers.size()), "", "", 1});
  }
  const std::string axis = layers.size() == most_layers ? fmt::format("layer (the first {})", most_layers) : "layer";
  return row_charts(page, g, {"heat", "Hit rate by layer", axis, layers, [](const Run& r) {
                                return parts_of(r.hit_rate_by_layer, 1, 100);
                              }});
}

std::string losses(Page& page, const Group& g) {
  return row_charts(
      page, g,
      {"rows",
       "Which policy loses the time",
       "per output token",
       {{"the clairvoyant bound", "rectRot", "bound"},
        {"with both", "star", "k6"},
        {"with perfect prediction", "triangle", "k2"},
        {"with Belady's cache", "rect", "k4"},
        {"as it is", "circle", "k0"}},
       [](const Run& r) -> std::vector<Number> {
         if (!r.tpot || !(r.perfect_prediction || r.belady_cache)) return {};
         return {r.clairvoyant_bound(), r.prediction_and_cache, r.perfect_prediction, r.belady_cache, r.tpot};
       },
       RowCharts::fitting,
       time_unit});
}

// Speed

/// Tokens a second if all series have one budget, the fastest first.
std::string speed_bars(Page& page, const Group& g) {
  return row_charts(page, g,
                    {"rows",
                     "Tokens a second",
                     "in decode" + (g.columns.size() == 1 ? ", budget " + g.columns[0] : ""),
                     {{"tokens/s in decode", "bar", "p0"},
                      {"bound: all resident", "line", "bound"},
                      {"bound: clairvoyant", "cross", "bound"},
                      {"bound: clairvoyant + host", "crossRot", "bound"}},
                     [&](const Run& r) -> std::vector<Number> {
                       if (!r.tokens_per_s) return {};
                       return {r.tokens_per_s, r.speed_of(r.all_resident), r.speed_of(r.clairvoyant),
                               r.speed_of(r.clairvoyant_with_host)};
                     },
                     RowCharts::from_zero});
}

/// The bound that all runs share: the speed of the model with every expert resident at its own precision, which does not
/// depend on the budget. Bounds that depend on a stack are drawn at its points.
Number all_resident_speed(const Group& g) {
  std::vector<double> speeds;
  for (const Run* r : g.runs) {
    if (const Number speed = r->speed_of(r->all_resident); speed && r->full_precision()) speeds.push_back(*speed);
  }
  if (speeds.empty()) return {};
  std::sort(speeds.begin(), speeds.end());
  return speeds[speeds.size() / 2];
}

std::string speeds(Page& page, const Group& g) {
  if (g.one_budget) return speed_bars(page, g);
  std::map<std::size_t, std::vector<const Run*>> by_rank;  // by budget
  double least = 1e300, most = 0;
  for (const Run* r : g.runs) {
    if (!r->tokens_per_s) continue;
    by_rank[r->rank].push_back(r);
    if (*r->tokens_per_s > 0) least = std::min(least, *r->tokens_per_s);
    most = std::max(
        {most, *r->tokens_per_s, or_zero(r->speed_of(r->all_resident)), or_zero(r->speed_of(r->clairvoyant_bound()))});
  }
  if (by_rank.empty()) return {};
  Table t;
  t.kind = "lines";
  t.title = "Speed against budget: " + g.name;
  const bool log = most > 25 * least;
  t.x = g.percent ? "budget in % of all experts" : "budget in MiB";
  t.unit = "tokens/s";
  t.y = std::string("tokens/s in decode") + (log ? ", logarithmic" : "");
  t.columns = {
      {"Series"}, {g.percent ? "Budget, %" : "Budget, MiB"}, {"Tokens/s"}, {"Its clairvoyant bound, tokens/s"}};
  std::size_t shown = 0;
  for (const auto& [rank, runs] : by_rank) {
    if (++shown > most_series) break;
    t.looks[runs[0]->series] = runs[0]->index;
    for (const Run* r : runs) {
      t.rows.push_back({r->series, g.budget(*r), *r->tokens_per_s, json(r->speed_of(r->clairvoyant_bound()))});
    }
  }
  if (const Number level = all_resident_speed(g)) t.rows.push_back({"bound: all resident", nullptr, *level, nullptr});
  if (log) t.scale = {{"log", true}, {"min", std::max(least, most * 1e-6)}};
  return page.figure(t) +
         left_out(by_rank.size() - std::min(by_rank.size(), most_series), "Slower series that only the table has");
}

/// Recall by layer, a chart for each series, at the smallest budget with which it predicted.
std::string recalls(Page& page, const Group& g) {
  std::map<std::size_t, const Run*> first;
  for (const Run* r : g.runs) {
    if (!r->recall_by_layer.empty()) first.emplace(r->index, r);
  }
  std::vector<Table> tables;
  for (const auto& [index, r] : first) {
    if (tables.size() == most_rows) break;
    Table& t = tables.emplace_back();
    t.kind = "curves";
    t.title = "Recall by layer: " + g.name + ", " + r->name();
    t.heading = r->name();
    t.x = "layer";
    t.y = "recall, %";
    t.unit = "%";
    t.columns = {{"Layer", "", "", 0}};
    std::size_t layers = 0;
    for (const auto& [distance, recall] : r->recall_by_layer) {
      t.columns.push_back({fmt::format("{} layer{} ahead", number(distance, 0), distance == 1 ? "" : "s"), "", "", 1});
      layers = std::max(layers, recall.size());
    }
    for (std::size_t l = 0; l < layers; ++l) {
      Json row = Json::array({l});
      for (const auto& [distance, recall] : r->recall_by_layer) {
        row.push_back(l < recall.size() ? json(times(recall[l], 100)) : Json());
      }
      t.rows.push_back(row);
    }
    t.scale["max"] = 100;
  }
  return page.figures(tables) + left_out(first.size() - tables.size(), "Series left out");
}

// The table

class AllRuns {
 public:
  explicit AllRuns(const std::vector<Group>& groups) {
    for (const Group& g : groups) {
      const auto begin = runs_.insert(runs_.end(), g.runs.begin(), g.runs.end());
      std::stable_sort(begin, runs_.end(), [](auto a, auto b) {
        return a->column != b->column ? a->column < b->column : or_zero(a->tokens_per_s) > or_zero(b->tokens_per_s);
      });
    }
    table_.title = "All runs";
    table_.rows.assign(runs_.size(), Json::array());
  }

  void text(const char* head, const std::function<std::string(const Run&)>& value) {
    table_.columns.push_back({head});
    for (std::size_t i = 0; i < runs_.size(); ++i) table_.rows[i].push_back(value(*runs_[i]));
  }
  /// Adds a column unless it has the same text in every row.
  void text_if_many(const char* head, const std::function<std::string(const Run&)>& value) {
    if (std::any_of(runs_.begin(), runs_.end(), [&](auto r) { return value(*r) != value(*runs_[0]); }))
      text(head, value);
  }
  void number(const std::string& head, int decimals, const std::function<Number(const Run&)>& value) {
    if (std::none_of(runs_.begin(), runs_.end(), [&](auto r) { return value(*r).has_value(); })) return;
    table_.columns.push_back({head, "", "", decimals});
    for (std::size_t i = 0; i < runs_.size(); ++i) table_.rows[i].push_back(json(value(*runs_[i])));
  }
  void percent(const std::string& head, const std::function<Number(const Run&)>& value) {
    number(head + ", %", 1, [&](const Run& r) { return times(value(r), 100); });
  }
  /// Adds a column of numbers in a unit that suits their median.
  void amount(const std::string& head, Unit (*unit_of)(double), const std::function<Number(const Run&)>& value) {
    std::vector<double> all{0};
    for (const Run* r : runs_) {
      if (or_zero(value(*r)) > 0) all.push_back(*value(*r));
    }
    std::sort(all.begin(), all.end());
    const Unit unit = unit_of(all[all.size() / 2]);
    number(head + ", " + unit.name, -1, [&](const Run& r) { return over(value(r), unit.size); });
  }

  [[nodiscard]] std::string finish(Page& page) const { return runs_.empty() ? "" : page.figure(table_); }

 private:
  std::vector<const Run*> runs_;
  Table table_;
};

std::string all_runs(Page& page, const std::vector<Group>& groups) {
  AllRuns t(groups);
  auto outcome = [](std::size_t i) { return [i](const Run& r) { return over(r.outcomes[i], r.requests); }; };
  t.text_if_many("Trace", [](const Run& r) { return r.trace; });
  t.text_if_many("Model", [](const Run& r) { return r.model; });
  t.text_if_many("Machine", [](const Run& r) { return r.machine.empty() ? "this one" : r.machine; });
  t.text_if_many("As", [](const Run& r) { return r.as_shape; });
  t.text_if_many("Costs", [](const Run& r) { return r.costs; });
  t.text_if_many("Device", [](const Run& r) { return r.device; });
  t.text_if_many("Batch", [](const Run& r) { return number(r.batch, 0); });
  t.text("Stack", [](const Run& r) { return r.stack + (r.interrupted ? " (stopped early)" : ""); });
  t.text_if_many("Parameters", [](const Run& r) { return r.parameters; });
  t.number("Budget, % of experts", 1, [](const Run& r) { return r.budget_percent; });
  t.amount("Budget", byte_unit, [](const Run& r) { return r.budget_bytes; });
  t.amount("Built", byte_unit, [](const Run& r) { return r.built_bytes; });
  t.number("Tokens/s", -1, [](const Run& r) { return r.tokens_per_s; });
  t.amount("TPOT", time_unit, [](const Run& r) { return r.tpot; });
  t.amount("TTFT", time_unit, [](const Run& r) { return r.ttft; });
  t.number("TPOT / all resident", 2, [](const Run& r) { return over(r.tpot, r.all_resident); });
  t.number("TPOT / clairvoyant", 2, [](const Run& r) { return over(r.tpot, r.clairvoyant_bound()); });
  t.percent("Hits", outcome(0));
  t.percent("Late hits", outcome(1));
  t.percent("Misses", outcome(2));
  t.percent("Recall", [](const Run& r) { return r.recall; });
  t.amount("Copied in decode", byte_unit, [](const Run& r) { return r.bytes; });
  t.percent("Stalled", [](const Run& r) { return r.stalled; });
  return t.finish(page);
}

// Timelines

/// Kinds of spans, by the first word of their names.
struct Kind {
  const char *word, *name, *colour;
};
constexpr Kind kinds[] = {{"attention", "attention, gate", "device"},
                          {"expert", "expert", "expert"},
                          {"partial", "partial hidden state", "p5"},
                          {"wait", "waiting", "band"},
                          {"demand", "demand copy", "p2"},
                          {"prefetch", "prefetch", "free"},
                          {"decide", "deciding", "p3"},
                          {"look ahead", "looking ahead", "ahead"},
                          {"", "other", "p4"}};

std::size_t kind_of(const std::string& name) {
  std::size_t i = 0;
  while (!name.starts_with(kinds[i].word)) ++i;
  return i;
}

struct Work {
  double begin, length;  // in microseconds
  int lane;
  std::string name, what;
};

/// The spans of the three lanes, by time; what lies elsewhere is left out.
std::vector<Work> spans_of(const Json& json, const std::string& where) {
  const Json& events = json.is_array() ? json : Fields(json, where).at("traceEvents");
  if (!events.is_array()) throw InputError(where + ": field \"traceEvents\": expected an array");
  std::vector<Work> spans;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Lenient e(events[i], fmt::format("{}{}[{}]", where, json.is_array() ? "" : ".traceEvents", i));
    if (e.strict().text("ph") != "X") continue;
    const Number begin = e.needed_number("ts"), length = e.needed_number("dur"), lane = e.needed_number("tid");
    if (!begin || !length || !lane || *lane > 2 || *lane != std::floor(*lane) || *begin + *length > 1e15) continue;
    const Lenient args = e.object("args");
    const Number expert = args.number("expert");
    spans.push_back({*begin, *length, static_cast<int>(*lane), e.text("name"),
                     expert ? fmt::format(", expert {} of layer {}, {}", number(*expert, 0),
                                          number(or_zero(args.number("layer")), 0), args.text("precision"))
                            : ""});
  }
  std::stable_sort(spans.begin(), spans.end(), [](const Work& a, const Work& b) { return a.begin < b.begin; });
  return spans;
}

std::string timeline(Page& page, const std::string& name, std::vector<Work> spans) {
  if (spans.empty()) return {};
  const std::size_t later = spans.size() - std::min(spans.size(), most_spans);
  spans.resize(spans.size() - later);
  static constexpr const char* lanes[] = {"device", "link", "host"};
  Table t;
  t.kind = "timeline";
  t.title = "Timeline: " + shorten(name, 200);
  t.heading = shorten(name, 200);
  t.columns = {{"Lane"}, {"Kind"}, {"What"}, {"From, µs", "", "", 3}, {"Length, µs", "", "", 3}};
  for (const Work& s : spans) {
    const Kind& kind = kinds[kind_of(s.name)];
    t.looks[kind.name] = kind.colour;
    t.rows.push_back({lanes[s.lane], kind.name, shorten(s.name, 60) + s.what, s.begin, s.length});
  }
  return page.figure(t) + left_out(later, "Later spans left out");
}

// The page

std::vector<std::pair<std::string, std::vector<std::string>>> facts(const std::vector<Run>& runs,
                                                                    const std::vector<Run>& refused) {
  std::vector<std::pair<std::string, std::vector<std::string>>> out;
  auto fact = [&out](const char* name, const std::vector<Run>& of,
                     const std::function<std::string(const Run&)>& value) {
    constexpr std::size_t most = 20;
    std::vector<std::string> seen;
    for (const Run& r : of) {
      const std::string v = value(r);
      if (!v.empty() && std::find(seen.begin(), seen.end(), v) == seen.end())
        seen.push_back(seen.size() == most ? "…" : v);
      if (seen.size() > most) break;
    }
    if (seen.empty()) return;
    for (std::string& text : seen) text = shorten(text, 300);
    out.emplace_back(name, seen);
  };
  fact("Traces", runs, [](const Run& r) { return r.trace; });
  fact("Models", runs, [](const Run& r) { return r.model; });
  fact("Machines", runs, [](const Run& r) { return r.machine.empty() ? "this one, not throttled" : r.machine; });
  fact("Counted as", runs, [](const Run& r) { return r.as_shape; });
  fact("Made up", runs, [](const Run& r) { return r.assumed.empty() ? "" : r.stack + ", " + r.assumed; });
  fact("Costs", runs, [](const Run& r) { return r.costs; });
  fact("Clock", runs, [](const Run& r) { return r.clock; });
  fact("Batches", runs, [](const Run& r) { return number(r.batch, 0); });
  fact("Made with", runs, [](const Run& r) { return r.ferry.empty() ? "" : "ferry " + r.ferry; });
  out.push_back({"Runs", {number(static_cast<double>(runs.size()), 0)}});
  fact("Refused", refused, [](const Run& r) { return r.stack + ": " + r.refused; });
  return out;
}

}  // namespace

std::string html_report(const std::vector<Json>& json, const std::vector<std::pair<std::string, Json>>& timelines,
                        const std::string& title, const std::vector<std::string>& places) {
  std::vector<Run> runs, refused;
  for (std::size_t i = 0; i < json.size(); ++i) {
    Run r = parse_run(json[i], i < places.size() ? places[i] : fmt::format("runs[{}]", i));
    (r.refused.empty() ? runs : refused).push_back(std::move(r));
  }
  const std::vector<Group> groups = group_runs(runs);
  Page page;
  std::vector<std::vector<Work>> spans;  // read first, to refuse bad timelines early
  for (const auto& [name, timeline] : timelines) spans.push_back(spans_of(timeline, name + ": timeline"));
  auto each = [&](std::string (*chart)(Page&, const Group&)) {
    return for_groups(groups, [&](const Group& g) { return chart(page, g); });
  };
  page.section(
      "speed", "Speed against budget",
      "Tokens a second in decode: more is better. Grey: every expert resident at the model's own precision. A short "
      "dash in a stack's colour is its own clairvoyant bound: stacks that hold, copy or compute less have others.",
      each(speeds));
  page.section(
      "runs", "All runs",
      "A click on a head sorts. TPOT is the time per output token, TTFT that to the first. Hits, late hits and misses "
      "are in percent of decode's requests. Built: what the slots take. Stalled: the share of time in which the device "
      "waited for a copy.",
      all_runs(page, groups));
  page.section("layers", "Hit rate by layer", "The share of decode's requests that were there when the gate asked.",
               each(hit_rates));
  page.section("time", "Where the time goes", "What the device does: shorter is better.", each(where_time_goes));
  page.section(
      "outcomes", "What became of requests",
      "Each expert that a gate asks for counts once a step. A late hit was on the link already; for a substituted "
      "one another expert stood in.",
      each(outcomes));
  page.section("bytes", "Bytes by precision", "What crossed the link, what was loaded before the first step included.",
               each(bytes_by_precision));
  page.section("recall", "Prediction by layer",
               "Recall: the share of needed experts that were predicted, at the smallest budget.", each(recalls));
  page.section(
      "losses", "Which policy loses the time",
      "Time per output token as it is, and if one policy, or both, knew the future. The one that would gain most "
      "costs most. More knowledge is not always faster where the host computes: a demand waits for a copy that is on "
      "its way, though the host would be done sooner.",
      each(losses));
  std::string lanes;
  for (std::size_t i = 0; i < spans.size(); ++i) lanes += timeline(page, timelines[i].first, std::move(spans[i]));
  page.section("timeline", "Timeline", "Who was busy when.", lanes);
  return page.finish(title, facts(runs, refused));
}

}  // namespace ferry::engine
