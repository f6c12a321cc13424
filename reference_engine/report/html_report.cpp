#include "report/html_report.hpp"

#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "ferry/macros.hpp"
#include "report/html_report_assets.hpp"
#include "report/html_report_runs.hpp"
#include "report/html_report_svg.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

using namespace html;

constexpr double width = 1140;  // of every chart
constexpr std::size_t most_groups = 12, most_rows = 60, most_spans = 6000;

std::string figure(const std::string& svg, const std::string& after = {}) {
  return "<figure><div class=\"scroll\">" + svg + "</div>" + after + "</figure>\n";
}

std::string left_out(std::size_t count, const char* what) {
  return count == 0 ? "" : fmt::format("<p class=\"note\">{}: {}</p>\n", what, number(static_cast<double>(count), 0));
}

/// For every group a heading and what `chart` makes of it; empty if that is nothing for all of them.
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

// Charts with a row for each series and a panel for each budget

struct Grid {
  std::vector<std::string> rows, columns;
  std::vector<std::vector<const Run*>> cells;  // [column][row], null: none
  std::size_t left_out = 0;                    // runs
};

/// One row a run.
Grid list_of(const std::vector<const Run*>& runs, bool name_budgets) {
  Grid grid{{}, {""}, {{}}, runs.size() - std::min(runs.size(), most_rows)};
  for (std::size_t i = 0; i < runs.size() - grid.left_out; ++i) {
    grid.rows.push_back(name_budgets ? shorten(runs[i]->series, 24) + " @ " + runs[i]->budget() : runs[i]->series);
    grid.cells[0].push_back(runs[i]);
  }
  return grid;
}

/// Rows of series and columns of budgets, or a list if there are few runs or too many budgets for that.
Grid grid_of(const Group& g, const std::function<bool(const Run&)>& has) {
  std::vector<const Run*> runs;
  std::copy_if(g.runs.begin(), g.runs.end(), std::back_inserter(runs), [&](const Run* r) { return has(*r); });
  std::stable_sort(runs.begin(), runs.end(), [](auto a, auto b) { return a->rank < b->rank; });
  std::map<std::size_t, std::size_t> rows;  // by series
  std::map<std::size_t, std::set<std::size_t>> in_column;
  for (const Run* r : runs) {
    rows.emplace(r->index, rows.size());
    in_column[r->column].insert(r->index);
  }
  std::map<std::size_t, std::size_t> columns;  // those with a good part of the series have a panel of their own
  for (const auto& [column, series] : in_column) {
    if (4 * series.size() >= rows.size()) columns.emplace(column, columns.size());
  }
  if (g.one_budget || runs.size() <= 16 || columns.empty() || columns.size() > 10)
    return list_of(runs, g.columns.size() > 1);
  Grid grid;
  for (const auto& [column, at] : columns) grid.columns.push_back("budget " + g.columns[column]);
  if (columns.size() < in_column.size()) grid.columns.emplace_back("other budgets");
  grid.rows.resize(std::min(rows.size(), most_rows));
  grid.cells.assign(grid.columns.size(), std::vector<const Run*>(grid.rows.size()));
  for (const Run* r : runs) {
    const auto own = columns.find(r->column);
    const std::size_t row = rows[r->index], column = own == columns.end() ? columns.size() : own->second;
    if (row < most_rows && grid.cells[column][row] == nullptr) {
      grid.rows[row] = r->series;
      grid.cells[column][row] = r;
    } else {
      ++grid.left_out;
    }
  }
  return grid;
}

struct Key {
  std::string name, look;
  enum { square, mark, line } shape = square;
  std::size_t marker = 0;
};

/// Swatches and names from `x` on, in as many lines as it takes. Returns the next free y.
double draw_keys(Svg& svg, const std::vector<Key>& keys, double x, double y) {
  double at = x;
  for (const Key& k : keys) {
    const double wide = 36 + 6.7 * static_cast<double>(k.name.size());
    if (at > x && at + wide > width) {
      at = x;
      y += 18;
    }
    if (k.shape == Key::square) svg.rect(at, y, 12, 12, k.look);
    if (k.shape == Key::mark) svg.marker(k.marker, at + 6, y + 6, k.look);
    if (k.shape == Key::line) svg.line(at + 6, y - 2, at + 6, y + 14, k.look);
    svg.text(at + 17, y + 10.5, k.name);
    at += wide;
  }
  return y + 24;
}

/// Lines from `top` down at the ticks of a horizontal axis, and their numbers, as many as have room.
void draw_ticks(Svg& svg, const Scale& scale, double top, double bottom, const std::string& unit = {}) {
  double free = -1e9;
  for (const double t : scale.ticks()) {
    const double x = scale(t);
    svg.line(x, top, x, bottom + 4, "class=\"grid\"");
    const std::string label = scale.label(t) + unit;
    const double wide = 7.2 * static_cast<double>(label.size());
    const bool first = x<scale.from + 1, last = x> scale.to - 1;  // these stay inside
    const double from = first ? x : last ? x - wide : x - wide / 2;
    if (from < free) continue;
    free = from + wide + 6;
    svg.text(x, bottom + 17, label, first ? "class=\"soft\"" : last ? "class=\"soft end\"" : "class=\"soft mid\"");
  }
}

struct Panels {
  std::string title, description, axis;  // axis: what the numbers under the panels are
  Scale scale;                           // of each panel, once it is placed
  double least_width = 120, row_height = 17;
  bool lines = true;  // at the ticks, behind the rows
  std::vector<Key> keys;
  std::function<void(Svg&, const Run&, const Scale&, double y)> cell;
};

std::string draw(const Grid& grid, Panels p) {
  Svg svg;
  std::size_t longest = 0;
  for (const std::string& row : grid.rows) longest = std::max(longest, std::min<std::size_t>(row.size(), 34));
  const double left = std::clamp(14 + 6.9 * static_cast<double>(longest), 90., 250.), gap = 24;
  const double columns = static_cast<double>(grid.columns.size()),
               fit = std::max(1., std::floor((width - left) / (p.least_width + gap)));
  const double beside = std::ceil(columns / std::ceil(columns / fit)), panel = (width - left) / beside - gap;
  p.scale.wanted = panel < 150 ? 2 : panel < 300 ? 4 : 8;
  double y = draw_keys(svg, p.keys, left, 4);
  for (std::size_t c = 0; c < grid.columns.size(); ++c) {
    const double place = std::fmod(static_cast<double>(c), beside), x = left + place * (panel + gap);
    const double top = y + (grid.columns[c].empty() ? 0 : 18);
    const double bottom = top + static_cast<double>(grid.rows.size()) * p.row_height;
    svg.text(x, y + 11, grid.columns[c], "class=\"bold\"");
    p.scale.from = x;
    p.scale.to = x + panel;
    draw_ticks(svg, p.scale, p.lines ? top : bottom, bottom);
    for (std::size_t r = 0; r < grid.rows.size(); ++r) {
      const double at = top + static_cast<double>(r) * p.row_height;
      if (place == 0) svg.text(left - 10, at + p.row_height / 2 + 4, shorten(grid.rows[r], 34), "class=\"end\"");
      if (grid.cells[c][r] != nullptr) p.cell(svg, *grid.cells[c][r], p.scale, at);
    }
    if (c + 1 == grid.columns.size() || place + 1 == beside) {
      svg.text(x + panel, bottom + 34, p.axis, "class=\"soft end\"");
      y = bottom + 46;
    }
  }
  return figure(svg.finish(width, y, p.title, p.description)) + left_out(grid.left_out, "Runs that only the table has");
}

struct Bar {
  std::vector<double> parts;
  Number thin;  // a second bar under it
};

struct StackedBars {
  const char *title, *description, *axis;
  std::vector<Key> keys;  // the last may be that of the thin bar
  std::function<std::optional<Bar>(const Run&)> bar;
  Unit (*unit)(double);  // none: percent
};

std::string stacked_bars(const Group& g, const StackedBars& about) {
  const Grid grid = grid_of(g, [&](const Run& r) { return about.bar(r).has_value(); });
  if (grid.rows.empty()) return {};
  std::vector<double> lengths;
  bool thin = false;
  for (const auto& column : grid.cells) {
    for (const Run* r : column) {
      if (r == nullptr) continue;
      const Bar bar = *about.bar(*r);
      lengths.push_back(std::max(std::accumulate(bar.parts.begin(), bar.parts.end(), 0.), or_zero(bar.thin)));
      thin = thin || bar.thin;
    }
  }
  std::sort(lengths.begin(), lengths.end());
  // A few bars that are far longer than all others are cut, and say how long they are.
  const double usual = lengths[lengths.size() * 3 / 4];
  const double longest =
      usual > 0 ? *std::prev(std::upper_bound(lengths.begin(), lengths.end(), 3 * usual)) : lengths.back();
  const double room = longest < lengths.back() ? 1.3 : 1;
  const Unit unit = about.unit == nullptr ? Unit{"%", 1} : about.unit(longest);
  const int digits = about.unit == nullptr ? 1 : decimals_for(longest / unit.size);
  Panels p;
  p.title = fmt::format("{}: {}", about.title, g.name);
  p.description = about.description;
  p.axis = fmt::format("{} {}", unit.name, about.axis);
  p.scale = about.unit == nullptr ? Scale{0, 100, 0, 1} : Scale::from_zero(room * longest / unit.size, 0, 1);
  p.row_height = thin ? 20 : 17;
  p.keys = about.keys;
  p.cell = [&](Svg& svg, const Run& r, const Scale& scale, double y) {
    const Bar bar = *about.bar(r);
    auto tip = [&](const Key& key, double value) {
      return fmt::format("{}, {}: {} {}", r.name(), key.name, number(value / unit.size, digits), unit.name);
    };
    const double all = std::accumulate(bar.parts.begin(), bar.parts.end(), 0.) / unit.size;
    const bool cut = about.unit != nullptr && all > scale.high * 1.0001;
    const double end = scale.to - (cut ? 50 : 0);
    double sum = 0;
    for (std::size_t i = 0; i < bar.parts.size(); ++i) {
      const double from = std::min(end, scale(sum / unit.size)),
                   to = std::min(end, scale((sum += bar.parts[i]) / unit.size));
      if (to - from > 0.05) svg.rect(from, y + 2, to - from, 12, about.keys[i].look, tip(about.keys[i], bar.parts[i]));
    }
    if (cut) svg.text(scale.to, y + 12, number(all, digits) + " →", "class=\"end\"");
    if (!bar.thin) return;
    const std::string share = sum > 0 ? fmt::format(" ({}%)", number(*bar.thin / sum * 100, 0)) : "";
    svg.rect(scale.from, y + 15, std::min(end, scale(*bar.thin / unit.size)) - scale.from, 3, about.keys.back().look,
             tip(about.keys.back(), *bar.thin) + share);
  };
  return draw(grid, p);
}

std::optional<Bar> time_bar(const std::optional<Run::Split>& t) {
  if (!t || !t->total) return {};
  const double stall = or_zero(t->stall), wait = or_zero(t->host_wait), decision = or_zero(t->decision);
  const double compute = std::max(0., *t->total - stall - wait - decision);
  return Bar{{compute / t->tokens, stall / t->tokens, wait / t->tokens, decision / t->tokens},
             over(t->link_busy, t->tokens)};
}

std::string where_time_goes(const Group& g) {
  const Key compute{"computing", "class=\"part p0\""}, stall{"stalled on copies", "class=\"part p2\""};
  const Key wait{"waiting for the host", "class=\"part p5\""}, decide{"deciding", "class=\"part p3\""};
  const Key link{"link busy meanwhile (thin bar)", "class=\"fill neutral\""};
  return stacked_bars(g, {"Time of decode",
                          "Stacked bars: what the device does, for each token of decode.",
                          "a token in decode",
                          {compute, stall, wait, decide, link},
                          [](const Run& r) { return time_bar(r.decode_time); },
                          time_unit}) +
         stacked_bars(g, {"Time of the whole run",
                          "Stacked bars: what the device does, for each token.",
                          "a token, prefill and decode together",
                          {compute, stall, wait, decide},
                          [](const Run& r) { return time_bar(r.whole_time); },
                          time_unit});
}

std::string outcomes(const Group& g) {
  auto bar = [](const Run& r) -> std::optional<Bar> {
    if (or_zero(r.requests) == 0) return {};
    Bar made;
    for (const Number& n : r.outcomes) made.parts.push_back(100 * or_zero(over(n, r.requests)));
    return made;
  };
  return stacked_bars(g, {"Outcomes",
                          "Stacked bars: outcomes of decode's requests.",
                          "of decode's requests",
                          {{"hit", "class=\"part p0\""},
                           {"late hit", "class=\"part p1\""},
                           {"miss", "class=\"part p2\""},
                           {"substituted", "class=\"part p3\""},
                           {"skipped", "class=\"part p4\""},
                           {"on the host", "class=\"part p5\""}},
                          bar,
                          nullptr});
}

std::string bytes_by_precision(const Group& g) {
  auto bar = [](const Run& r) -> std::optional<Bar> {
    const auto& bytes = r.precisions;
    const bool known = std::any_of(bytes.begin(), bytes.end(), [](const Number& n) { return n.has_value(); });
    if (!known || or_zero(r.all_tokens) == 0) return {};
    Bar made;
    for (const Number& n : bytes) made.parts.push_back(or_zero(over(n, r.all_tokens)));
    return made;
  };
  return stacked_bars(g, {"Bytes by precision",
                          "Stacked bars: bytes copied to the device for each token, by precision.",
                          "a token, prefill and decode together",
                          {{"int2", "class=\"part o0\""},
                           {"int4", "class=\"part o1\""},
                           {"int8", "class=\"part o2\""},
                           {"full precision", "class=\"part o3\""}},
                          bar,
                          byte_unit});
}

std::string hit_rates(const Group& g) {
  const Grid grid = grid_of(g, [](const Run& r) { return !r.hit_rate_by_layer.empty(); });
  if (grid.rows.empty()) return {};
  std::size_t layers = 1;
  for (const Run* r : g.runs) layers = std::max(layers, r->hit_rate_by_layer.size());
  auto look = [](double share) {
    return fmt::format("fill-opacity=\"{:.2f}\"", 0.05 + 0.95 * std::clamp(share, 0., 1.));
  };
  Panels p;
  p.title = "Hit rate by layer: " + g.name;
  p.description = "Heat map: a row for each stack, a column for each layer; the fuller the colour, the more hits.";
  p.axis = layers == most_layers ? fmt::format("layer (the first {})", most_layers) : "layer";
  p.scale = {0, static_cast<double>(layers), 0, 1};
  p.least_width = std::max(p.least_width, 4 * static_cast<double>(layers));
  p.lines = false;
  for (const int i : {0, 25, 50, 75, 100})
    p.keys.push_back({fmt::format("{}{}%", i == 0 ? "hit rate " : "", i), "class=\"fill seq\" " + look(i / 100.)});
  p.cell = [&](Svg& svg, const Run& r, const Scale& scale, double y) {
    svg.open("class=\"fill seq\"");
    for (std::size_t l = 0; l < r.hit_rate_by_layer.size(); ++l) {
      if (!r.hit_rate_by_layer[l]) continue;
      const double x = scale(static_cast<double>(l)), share = *r.hit_rate_by_layer[l];
      svg.rect(x, y + 0.5, 0.93 * (scale(static_cast<double>(l) + 1) - x), 16, look(share),
               fmt::format("{}, layer {}: {}%", shorten(r.name(), 60), l, number(share * 100, 1)));
    }
    svg.close();
  };
  return draw(grid, p);
}

std::string losses(const Group& g) {
  const std::vector<Key> keys = {{"the clairvoyant bound", "class=\"fill neutral\"", Key::mark, 3},
                                 {"with both", "class=\"fill k6\"", Key::mark, 4},
                                 {"with perfect prediction", "class=\"fill k2\"", Key::mark, 2},
                                 {"with Belady's cache", "class=\"fill k4\"", Key::mark, 1},
                                 {"as it is", "class=\"fill k0\"", Key::mark, 0}};
  auto values = [](const Run& r) {
    return std::array{r.clairvoyant_bound(), r.prediction_and_cache, r.perfect_prediction, r.belady_cache, r.tpot};
  };
  const Grid grid = grid_of(g, [](const Run& r) { return r.tpot && (r.perfect_prediction || r.belady_cache); });
  if (grid.rows.empty()) return {};
  double least = 1e300, most = 0;
  for (const auto& column : grid.cells) {
    for (const Run* r : column) {
      if (r == nullptr) continue;
      for (const Number& n : values(*r)) {
        if (or_zero(n) > 0) least = std::min(least, *n);
        most = std::max(most, or_zero(n));
      }
    }
  }
  const Unit unit = time_unit(std::sqrt(least) * std::sqrt(most));
  Panels p;
  p.title = "Which policy loses the time: " + g.name;
  p.description = "Dot plot: time per output token as it is, and if one policy of the stack knew the future.";
  p.scale = Scale::fitting(least / unit.size, most / unit.size, 0, 1);
  p.axis = fmt::format("{} per output token{}", unit.name, p.scale.log ? ", logarithmic" : "");
  p.least_width = 150;
  p.row_height = 18;
  p.keys = keys;
  p.cell = [&](Svg& svg, const Run& r, const Scale& scale, double y) {
    double from = scale.to, to = scale.from;
    for (const Number& n : values(r)) {
      if (!n) continue;
      from = std::min(from, scale(*n / unit.size));
      to = std::max(to, scale(*n / unit.size));
    }
    svg.line(from, y + 9, to, y + 9, "class=\"lead\"");
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!values(r)[i]) continue;
      const double v = *values(r)[i] / unit.size;
      svg.marker(keys[i].marker, scale(v), y + 9, keys[i].look,
                 fmt::format("{}, {}: {} {}", r.name(), keys[i].name, number(v, decimals_for(v)), unit.name));
    }
  };
  return draw(grid, p);
}

// Speed

const std::vector<std::pair<Key, Number Run::*>>& bound_lines() {
  static const std::vector<std::pair<Key, Number Run::*>> lines = {
      {{"bound: all resident", "class=\"bound\"", Key::line}, &Run::all_resident},
      {{"bound: clairvoyant", "class=\"bound dashed\"", Key::line}, &Run::clairvoyant},
      {{"bound: clairvoyant + host", "class=\"bound thin\"", Key::line}, &Run::clairvoyant_with_host}};
  return lines;
}

/// Tokens a second with one budget: the fastest first.
std::string speed_bars(const Group& g, std::vector<const Run*> runs) {
  std::stable_sort(runs.begin(), runs.end(), [](auto a, auto b) { return a->rank < b->rank; });
  double most = 0;
  Panels p;
  p.keys = {{"tokens/s in decode", "class=\"fill p0\""}};
  for (const auto& [key, member] : bound_lines()) {
    bool any = false;
    for (const Run* r : runs) {
      const Number bound = r->speed_of(r->*member);
      any = any || bound;
      most = std::max({most, or_zero(bound), *r->tokens_per_s});
    }
    if (any) p.keys.push_back(key);
  }
  p.title = "Tokens a second: " + g.name;
  p.description = "Bars: tokens a second in decode, the fastest first, with the bounds of each as marks.";
  p.axis = "tokens/s in decode" + (g.columns.size() == 1 ? ", budget " + g.columns[0] : "");
  p.scale = Scale::from_zero(most, 0, 1);
  p.row_height = 19;
  p.cell = [](Svg& svg, const Run& r, const Scale& scale, double y) {
    const double end = scale(*r.tokens_per_s);
    const std::string value = number(*r.tokens_per_s, decimals_for(*r.tokens_per_s));
    svg.rect(scale.from, y + 3, end - scale.from, 13, "class=\"fill p0\"", r.name() + ": " + value + " tokens/s");
    for (const auto& [key, member] : bound_lines()) {
      const Number bound = r.speed_of(r.*member);
      if (bound) svg.line(scale(*bound), y + 1, scale(*bound), y + 18, key.look);
    }
    if (end + 60 < scale.to) {
      svg.text(end + 6, y + 13.5, value, "class=\"halo\"");
    } else {
      svg.text(end - 6, y + 13.5, value, "class=\"end inside\"");
    }
  };
  return draw(list_of(runs, g.columns.size() > 1), p);
}

/// Moves labels apart, those at `at` in rising order, inside low to high.
std::vector<double> apart(std::vector<double> at, double pitch, double low, double high) {
  for (std::size_t i = 0; i < at.size(); ++i) at[i] = std::max(at[i], i == 0 ? low : at[i - 1] + pitch);
  for (std::size_t i = at.size(); i-- > 0;) at[i] = std::min(at[i], i + 1 == at.size() ? high : at[i + 1] - pitch);
  return at;
}

struct Line {
  std::string name;
  std::size_t index;
  std::vector<const Run*> runs;  // by budget
  [[nodiscard]] std::string look(const char* what) const {
    return fmt::format("class=\"{} k{} d{}\"", what, index % 8, index / 8 % 4);
  }
  [[nodiscard]] double last() const { return *runs.back()->tokens_per_s; }
};

struct EndLabel {
  std::string name;
  double x, y;                 // of the line's end
  const Line* line = nullptr;  // none: a bound
  std::string look;
};

/// What all runs have in common as a bound: the speed of the model with every expert resident, at its own precision. It
/// does not depend on the budget, so it is a level line. Bounds that depend on what a stack holds stand at its points.
void draw_all_resident(Svg& svg, const Group& g, const Scale& along, const Scale& up, std::vector<EndLabel>& labels) {
  std::vector<double> speeds;
  for (const Run* r : g.runs) {
    if (const Number speed = r->speed_of(r->all_resident); speed && r->full_precision()) speeds.push_back(*speed);
  }
  if (speeds.empty()) return;
  std::sort(speeds.begin(), speeds.end());
  const Key& key = bound_lines()[0].first;
  const double y = up(speeds[speeds.size() / 2]);
  svg.path(fmt::format("M{},{}H{}", px(along.from), px(y), px(along.to)), key.look);
  labels.push_back({key.name, along.to, y, nullptr, key.look});
}

std::string speeds(const Group& g) {
  std::vector<const Run*> runs;
  std::copy_if(g.runs.begin(), g.runs.end(), std::back_inserter(runs), [](const Run* r) { return r->tokens_per_s; });
  if (runs.empty()) return {};
  if (g.one_budget) return speed_bars(g, runs);
  std::map<std::size_t, Line> by_series;
  double least = 1e300, most = 0;
  for (const Run* r : runs) {
    Line& line = by_series.try_emplace(r->index, Line{r->series, r->index, {}}).first->second;
    line.runs.push_back(r);
    if (*r->tokens_per_s > 0) least = std::min(least, *r->tokens_per_s);
    most =
        std::max({most, *r->tokens_per_s, or_zero(r->speed_of(r->all_resident)), or_zero(r->speed_of(r->clairvoyant))});
  }
  std::vector<Line> lines;
  for (const auto& [index, line] : by_series) lines.push_back(line);
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) { return a.last() > b.last(); });
  const std::size_t slower = lines.size() - std::min(lines.size(), most_series);
  lines.resize(lines.size() - slower);

  Svg svg;
  std::size_t longest = 25;  // as long as the name of a bound
  for (const Line& l : lines) longest = std::clamp(l.name.size(), longest, std::size_t{40});
  const double left = 64, right = width - 60 - 6.9 * static_cast<double>(longest), top = 30, pitch = 14.5;
  const double high = std::clamp(pitch * static_cast<double>(lines.size() + 3), 320., 620.), bottom = top + high;
  const Scale up = Scale::fitting(least, most, bottom, top, 6);
  const Scale along = Scale::from_zero(g.budget(*runs.back()), left, right, 10);
  svg.text(left - 52, 14, up.log ? "tokens/s in decode (logarithmic)" : "tokens/s in decode", "class=\"soft\"");
  for (const double t : up.ticks()) {
    svg.line(left, up(t), right, up(t), "class=\"grid\"");
    svg.text(left - 8, up(t) + 4, up.label(t), "class=\"soft end\"");
  }
  draw_ticks(svg, along, bottom, bottom);
  svg.line(left, bottom, right, bottom, "class=\"axis\"");
  svg.text(right, bottom + 36, g.percent ? "budget in % of all experts" : "budget in MiB", "class=\"soft end\"");

  std::vector<EndLabel> labels;
  draw_all_resident(svg, g, along, up, labels);
  for (const Line& l : lines)
    labels.push_back({l.name, along(g.budget(*l.runs.back())), up(l.last()), &l, l.look("fill")});
  labels.resize(std::min(labels.size(), static_cast<std::size_t>(high / pitch) + 1));
  std::stable_sort(labels.begin(), labels.end(), [](const EndLabel& a, const EndLabel& b) { return a.y < b.y; });
  std::vector<double> at;
  for (const EndLabel& l : labels) at.push_back(l.y);
  at = apart(at, pitch, top, bottom);
  auto draw_label = [&](const Line* line) {
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const EndLabel& l = labels[i];
      if (l.line != line) continue;
      if (l.x > (left + right) / 2) {
        svg.path(fmt::format("M{},{}H{}L{},{}", px(l.x + 6), px(l.y), px(right + 6), px(right + 26), px(at[i])),
                 "class=\"lead\"");
      }
      if (line == nullptr) svg.line(right + 27, at[i], right + 43, at[i], l.look);
      if (line != nullptr) svg.marker(line->index / 8, right + 35, at[i], l.look);
      svg.text(right + 46, at[i] + 4, shorten(l.name, longest), line == nullptr ? "class=\"soft\"" : "");
    }
  };
  draw_label(nullptr);
  std::string legend;
  for (std::size_t i = lines.size(); i-- > 0;) {  // the fastest on top
    const Line& l = lines[i];
    std::string path;
    for (const Run* r : l.runs) {
      path += fmt::format("{}{},{}", path.empty() ? 'M' : 'L', px(along(g.budget(*r))), px(up(*r->tokens_per_s)));
    }
    svg.open(fmt::format("data-k=\"{}\"", l.index));
    svg.path(path, "class=\"touch\"", l.name);
    svg.path(path, l.look("ln"));
    draw_label(&l);
    for (const Run* r : l.runs) {
      if (const Number bound = r->speed_of(r->clairvoyant_bound()); bound && *bound > 0) {
        const double x = along(g.budget(*r)), y = up(*bound);
        svg.path(
            fmt::format("M{},{}h12", px(x - 6), px(y)), l.look("ln"),
            fmt::format("{}, its clairvoyant bound: {} tokens/s", r->name(), number(*bound, decimals_for(*bound))));
      }
      svg.marker(l.index / 8, along(g.budget(*r)), up(*r->tokens_per_s), l.look("fill"),
                 fmt::format("{}: {} tokens/s", r->name(), number(*r->tokens_per_s, decimals_for(*r->tokens_per_s))));
    }
    svg.close();
    Svg swatch;
    swatch.line(0, 6, 30, 6, l.look("ln"));
    swatch.marker(l.index / 8, 15, 6, l.look("fill"));
    legend = fmt::format("<li data-k=\"{}\" tabindex=\"0\">{}{}</li>\n", l.index, swatch.icon(30, 12),
                         escape(shorten(l.name, 60))) +
             legend;
  }
  return figure(svg.finish(width, bottom + 44, "Speed against budget: " + g.name,
                           "Lines: tokens a second in decode by budget, one for each stack; dashes without a line are "
                           "each stack's own bounds."),
                fmt::format("<ul class=\"legend{}\">\n", labels.size() < lines.size() ? "" : " labelled") + legend +
                    "</ul>") +
         left_out(slower, "Slower series that only the table has");
}

/// Recall by layer, a small picture for each series, at the smallest budget with which it predicted.
std::string recalls(const Group& g) {
  std::map<std::size_t, const Run*> first;
  std::size_t layers = 2, distances = 1;
  for (const Run* r : g.runs) {
    if (r->recall_by_layer.empty() || !first.emplace(r->index, r).second) continue;
    distances = std::max(distances, r->recall_by_layer.size());
    for (const auto& [distance, recall] : r->recall_by_layer) layers = std::max(layers, recall.size());
  }
  if (first.empty()) return {};
  auto look = [](std::size_t i, const char* what) { return fmt::format("class=\"{} k{} d{}\"", what, i % 4, i / 4); };
  Svg svg;
  std::vector<Key> keys;
  for (std::size_t i = 0; i < distances; ++i) {
    keys.push_back({fmt::format("{} layer{} ahead", i + 1, i == 0 ? "" : "s"), look(i, "fill")});
  }
  constexpr double left = 34, wide = 182, high = 110, pitch_x = 228, pitch_y = 164;
  const double top = draw_keys(svg, keys, left, 4) + 16;
  std::size_t shown = 0;
  for (const auto& [index, r] : first) {
    if (shown == most_rows) break;
    const double x = left + static_cast<double>(shown % 5) * pitch_x,
                 y = top + static_cast<double>(shown / 5) * pitch_y;
    ++shown;
    const Scale along{0, static_cast<double>(layers - 1), x, x + wide, false, 4}, up{0, 100, y + high, y};
    svg.text(x, y - 6, shorten(r->series, 26), "class=\"bold\"");
    for (const double t : {0., 50., 100.}) {
      svg.line(x, up(t), x + wide, up(t), "class=\"grid\"");
      svg.text(x - 6, up(t) + 4, number(t, 0), "class=\"soft end\"");
    }
    for (const double t : along.ticks()) {
      if (t == std::floor(t)) svg.text(along(t), y + high + 16, number(t, 0), "class=\"soft mid\"");
    }
    for (std::size_t d = r->recall_by_layer.size(); d-- > 0;) {  // the nearest on top
      const auto& [distance, recall] = r->recall_by_layer[d];
      std::string path;
      double sum = 0, count = 0;
      for (std::size_t l = 0; l < recall.size(); ++l) {
        if (!recall[l]) continue;
        const bool begins = l == 0 || !recall[l - 1], ends = l + 1 == recall.size() || !recall[l + 1];
        path += fmt::format("{}{},{}{}", begins ? 'M' : 'L', px(along(static_cast<double>(l))),
                            px(up(*recall[l] * 100)), begins && ends ? "h0.1" : "");
        sum += *recall[l];
        ++count;
      }
      svg.path(
          path, look(d, "ln") + " stroke-linecap=\"round\"",
          fmt::format("{}, {} ahead: {}% on average", r->name(), number(distance, 0), number(sum / count * 100, 1)));
    }
  }
  const double bottom = top + pitch_y * std::ceil(static_cast<double>(shown) / 5);
  svg.text(left, bottom, "recall in %, by layer", "class=\"soft\"");
  return figure(svg.finish(width, bottom + 10, "Recall by layer: " + g.name,
                           "Lines: the share of needed experts that were predicted, by layer and by layers ahead.")) +
         left_out(first.size() - shown, "Series left out");
}

// The table

struct Column {
  std::string head;
  std::function<std::string(const Run&)> shown;
  std::function<Number(const Run&)> value;  // none: text
};

class Table {
 public:
  explicit Table(const std::vector<Group>& groups) {
    for (const Group& g : groups) {
      const auto begin = runs_.insert(runs_.end(), g.runs.begin(), g.runs.end());
      std::stable_sort(begin, runs_.end(), [](auto a, auto b) {
        return a->column != b->column ? a->column < b->column : or_zero(a->tokens_per_s) > or_zero(b->tokens_per_s);
      });
    }
  }

  void text(const char* head, std::function<std::string(const Run&)> value) {
    columns_.push_back({head, value, nullptr});
  }
  /// A column that would say the same in every row is left out.
  void text_if_many(const char* head, const std::function<std::string(const Run&)>& value) {
    if (std::any_of(runs_.begin(), runs_.end(), [&](auto r) { return value(*r) != value(*runs_[0]); }))
      text(head, value);
  }
  void number(const std::string& head, int decimals, const std::function<Number(const Run&)>& value) {
    auto shown = [=](const Run& r) { return value(r) ? html::number(*value(r), decimals) : "–"; };
    if (std::any_of(runs_.begin(), runs_.end(), [&](auto r) { return value(*r).has_value(); })) {
      columns_.push_back({head, shown, value});
    }
  }
  void percent(const std::string& head, const std::function<Number(const Run&)>& value) {
    number(head + ", %", 1, [=](const Run& r) { return times(value(r), 100); });
  }
  /// In the unit and with the decimals that suit the median.
  void amount(const std::string& head, Unit (*unit_of)(double), const std::function<Number(const Run&)>& value) {
    std::vector<double> all{0};
    for (const Run* r : runs_) {
      if (or_zero(value(*r)) > 0) all.push_back(*value(*r));
    }
    std::sort(all.begin(), all.end());
    const double median = all[all.size() / 2];
    const Unit unit = unit_of == nullptr ? Unit{"", 1} : unit_of(median);
    number(head + (unit_of == nullptr ? "" : std::string(", ") + unit.name), decimals_for(median / unit.size),
           [=](const Run& r) { return over(value(r), unit.size); });
  }

  [[nodiscard]] std::string finish() const {
    if (runs_.empty()) return {};
    std::string out =
        "<div class=\"scroll table\" tabindex=\"0\" role=\"region\" aria-label=\"Table of all "
        "runs\"><table>\n<thead><tr>";
    for (const Column& c : columns_) {
      out += fmt::format("<th scope=\"col\"{}>{}</th>", c.value ? "" : " class=\"text\"", c.head);
    }
    out += "</tr></thead>\n<tbody>\n";
    for (const Run* r : runs_) {
      out += "<tr>";
      for (const Column& c : columns_) {
        const std::string shown = escape(c.shown(*r));
        const Number v = c.value ? c.value(*r) : Number{};
        out += c.value ? fmt::format("<td data-v=\"{}\">{}</td>", v ? fmt::format("{:.6g}", *v) : "", shown)
                       : fmt::format("<td class=\"text\" data-v=\"{0}\">{0}</td>", shown);
      }
      out += "</tr>\n";
    }
    return out + "</tbody></table></div>\n";
  }

 private:
  std::vector<const Run*> runs_;
  std::vector<Column> columns_;
};

std::string table(const std::vector<Group>& groups) {
  Table t(groups);
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
  t.amount("Tokens/s", nullptr, [](const Run& r) { return r.tokens_per_s; });
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
  return t.finish();
}

// Timelines

/// By what a span's name begins with; its colour is t0, t1, ...
struct Kind {
  const char *word, *name;
};
constexpr Kind kinds[] = {{"attention", "attention, gate"},
                          {"expert", "expert"},
                          {"partial", "partial hidden state"},
                          {"wait", "waiting"},
                          {"demand", "demand copy"},
                          {"prefetch", "prefetch"},
                          {"decide", "deciding"},
                          {"look ahead", "looking ahead"},
                          {"", "other"}};

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

std::string timeline(const std::string& name, std::vector<Work> spans) {
  if (spans.empty()) return {};
  const std::size_t later = spans.size() - std::min(spans.size(), most_spans);
  spans.resize(spans.size() - later);
  double end = 1e-3;
  std::set<std::size_t> there;
  for (const Work& s : spans) {
    end = std::max(end, s.begin + s.length);
    there.insert(kind_of(s.name));
  }
  const Unit unit = end >= 2e6 ? Unit{"s", 1e6} : end >= 2e3 ? Unit{"ms", 1e3} : Unit{"µs", 1};
  constexpr double left = 60, right = width - 30, lane_height = 44, high = 3 * lane_height;
  Svg svg;
  std::vector<Key> keys;
  for (const std::size_t kind : there) keys.push_back({kinds[kind].name, fmt::format("class=\"fill t{}\"", kind)});
  const double top = draw_keys(svg, keys, left, 4);
  for (int lane = 0; lane < 3; ++lane) {
    const double y = top + lane * lane_height;
    svg.rect(left, y + 3, right - left, lane_height - 6, "class=\"row\"");
    svg.text(left - 8, y + lane_height / 2 + 4, std::array{"device", "link", "host"}[static_cast<unsigned>(lane)],
             "class=\"end\"");
  }
  svg.open("class=\"ticks\"");
  draw_ticks(svg, {0, end / unit.size, left, right, false, 8}, top, top + high, std::string(" ") + unit.name);
  svg.close();
  svg.open_view(left, top, right - left, high, end);
  for (const Work& s : spans) {
    svg.span(s.begin, s.lane * lane_height + 5, s.length, lane_height - 10,
             fmt::format("class=\"fill t{}\"", kind_of(s.name)),
             fmt::format("{}{}: {} µs, from {} {}", shorten(s.name, 60), s.what, number(s.length, 1),
                         number(s.begin / unit.size, 3), unit.name));
  }
  svg.close_view();
  return fmt::format(timeline_frame, escape(shorten(name, 200)),
                     figure(svg.finish(width, top + high + 26, "Timeline: " + name,
                                       "Device, link and host: who was busy when."))) +
         left_out(later, "Later spans left out");
}

// The page

std::string facts(const std::vector<Run>& runs, const std::vector<Run>& refused) {
  std::string out = "<dl>\n";
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
    out += fmt::format("<dt>{}</dt><dd>", name);
    for (std::size_t i = 0; i < seen.size(); ++i) out += (i == 0 ? "" : "; ") + escape(shorten(seen[i], 300));
    out += "</dd>\n";
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
  out += fmt::format("<dt>Runs</dt><dd>{}</dd>\n", number(static_cast<double>(runs.size()), 0));
  fact("Refused", refused, [](const Run& r) { return r.stack + ": " + r.refused; });
  return out + "</dl>\n";
}

}  // namespace

std::string html_report(const std::vector<Json>& json, const std::vector<std::pair<std::string, Json>>& timelines,
                        const std::string& title) {
  std::vector<Run> runs, refused;
  for (std::size_t i = 0; i < json.size(); ++i) {
    Run r = parse_run(json[i], fmt::format("runs[{}]", i));
    (r.refused.empty() ? runs : refused).push_back(std::move(r));
  }
  const std::vector<Group> groups = group_runs(runs);
  std::string lanes, links, body;
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    lanes += timeline(timelines[i].first, spans_of(timelines[i].second, fmt::format("timelines[{}]", i)));
  }
  auto section = [&](const char* id, const char* head, const char* about, const std::string& content) {
    if (content.empty()) return;
    links += fmt::format("<a href=\"#{}\">{}</a>\n", id, head);
    body += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n{}</section>\n", id, head, about,
                        content);
  };
  section(
      "speed", "Speed against budget",
      "Tokens a second in decode: more is better. Grey: every expert resident at the model's own precision. A short "
      "dash in a stack's colour is its own clairvoyant bound: stacks that hold, copy or compute less have others.",
      for_groups(groups, speeds));
  section(
      "runs", "All runs",
      "A click on a head sorts. TPOT is the time per output token, TTFT that to the first. Hits, late hits and misses "
      "are in percent of decode's requests. Built: what the slots take. Stalled: the share of time in which the device "
      "waited for a copy.",
      table(groups));
  section("layers", "Hit rate by layer", "The share of decode's requests that were there when the gate asked.",
          for_groups(groups, hit_rates));
  section("time", "Where the time goes", "What the device does: shorter is better.",
          for_groups(groups, where_time_goes));
  section("outcomes", "What became of requests",
          "Each expert that a gate asks for counts once a step. A late hit was on the link already; for a substituted "
          "one another expert stood in.",
          for_groups(groups, outcomes));
  section("bytes", "Bytes by precision", "What crossed the link, what was loaded before the first step included.",
          for_groups(groups, bytes_by_precision));
  section("recall", "Prediction by layer",
          "Recall: the share of needed experts that were predicted, at the smallest budget.",
          for_groups(groups, recalls));
  section(
      "losses", "Which policy loses the time",
      "Time per output token as it is, and if one policy, or both, knew the future. The one that would gain most "
      "costs most. More knowledge is not always faster where the host computes: a demand waits for a copy that is on "
      "its way, though the host would be done sooner.",
      for_groups(groups, losses));
  section("timeline", "Timeline", "Who was busy when.", lanes);
  return fmt::format(page_frame, escape(title), style, facts(runs, refused), links, body, FERRY_VERSION, script);
}

}  // namespace ferry::engine
