// How the cost of deciding grows: with the size of the cache, and with what a layer asks for.
//
// Whole-layer decisions in decode, on made-up routing, as in layer.hpp. Processor time; all cases are measured in
// turns, round after round, and the median counts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <optional>

#include "layer.hpp"
#include "shared/bench_command.hpp"
#include "shared/json_file.hpp"
#include "support/output_file.hpp"
#include "svg.hpp"

namespace {

using namespace ferry;
using namespace ferry::bench;
using engine::Json;

struct Arguments {
  std::string svg, json;
  std::uint32_t rounds = 7;
};

/// A cache policy by itself: no prefetch, one precision, everything is loaded.
template <class Cache>
struct CacheAlone : Stack<NoPrediction, Cache, FixedPrecision, stacks::LoadEverything, TopK>, stacks::OnePool {};

/// A stack in its warm state.
struct Case {
  std::size_t series = 0;
  LayerShape shape;
  std::uint32_t slots = 0;
  std::function<Counters()> run;  ///< all steps once
  std::vector<double> rounds;     ///< nanoseconds a layer
  double layers = 0;              ///< that were run
  Counters before, after;

  static constexpr double layers_a_run = double{Routing::steps} * Routing::layers;

  /// Runs for some milliseconds, after one run that brings the case's memory back into the caches.
  void measure() {
    run();
    const std::clock_t begin = std::clock();
    double timed = 0, seconds = 0;
    for (; seconds < 0.005; ++timed) {
      after = run();
      seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    }
    rounds.push_back(seconds * 1e9 / (timed * layers_a_run));
    layers += (timed + 1) * layers_a_run;
  }
  [[nodiscard]] double ns() const {
    std::vector<double> sorted = rounds;
    std::sort(sorted.begin(), sorted.end());
    return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  }
  [[nodiscard]] double hit_percent() const {
    const Outcomes &now = after.of(Phase::decode), &then = before.of(Phase::decode);
    return 100.0 * static_cast<double>(now.hits - then.hits) / static_cast<double>(now.requests - then.requests);
  }
  /// Distinct experts that a layer asks for.
  [[nodiscard]] double experts() const {
    return static_cast<double>(after.of(Phase::decode).requests - before.of(Phase::decode).requests) / layers;
  }
  /// Copies a layer, for misses and prefetches.
  [[nodiscard]] double copies() const {
    const auto all = [](const Counters& c) { return c.of(Phase::decode).misses + c.prefetch.issued; };
    return static_cast<double>(all(after) - all(before)) / layers;
  }
  [[nodiscard]] double choices() const { return 1.0 * shape.batch * shape.top_k; }
};

/// `lay_out(config)` sets the allotment.
template <class Stack, class LayOut>
Case make_case(std::size_t series, const LayerShape& shape, const LayOut& lay_out) {
  const Routing& routing = Routing::of(shape);
  CoreConfig<Stack> config;
  config.model = routing.model();
  for (Nanoseconds& ns : config.copy_ns) ns = copy_cost;
  lay_out(config);
  const auto decision = std::make_shared<LayerDecision<Stack>>(config, routing, false);
  Case c{series, shape, config.allotment.slots() - config.allotment.stream_slots, {}, {}, 0, decision->counters(), {}};
  c.run = [decision] {
    for (std::uint32_t i = 0; i < Routing::steps * Routing::layers; ++i) decision->next();
    return decision->counters();
  };
  return c;
}

/// With this many experts a layer, the largest cache holds half of them.
constexpr LayerShape sized{256, 6, 1};
constexpr std::uint32_t least_slots = 8, most_slots = 4096, every_slot = Routing::layers * std::uint32_t{sized.experts};

/// One pool over all layers. HOBBIT has two pools with as many bytes together; a tenth of them is the low pool's.
template <class Stack>
void cases_by_size(std::size_t series, std::vector<Case>& cases) {
  const auto add = [&](std::uint32_t slots) {
    cases.push_back(make_case<Stack>(series, sized, [&](CoreConfig<Stack>& c) {
      Allotment& a = c.allotment;
      if constexpr (requires { c.precision.low; }) {
        const std::uint64_t slot = one_pool(c.model, ~std::uint64_t{0}).pools[0].slot_bytes;
        a = slots == every_slot ? high_low_pools(c.model, ~std::uint64_t{0}, c.precision.high, c.precision.low)
                                : high_low_pools(c.model, (slots + std::uint64_t{least_stream_slots}) * slot,
                                                 c.precision.high, c.precision.low);
      } else {
        a = one_pool(c.model, c.model.all_bytes() / 2);
        a.pools[0].slots = slots;
      }
    }));
    cases.back().slots = slots;
  };
  for (std::uint32_t slots = least_slots; slots <= most_slots; slots *= 2) add(slots);
  add(every_slot);
}

/// A quarter of the model's bytes, laid out as the stack does.
template <class Stack>
void cases_by_choices(std::size_t series, std::vector<Case>& cases) {
  for (const std::uint16_t k : std::initializer_list<std::uint16_t>{1, 2, 4, 6, 8}) {
    for (const std::uint32_t batch : {1U, 2U, 4U, 8U, 16U, 32U}) {
      cases.push_back(make_case<Stack>(series, {64, k, batch},
                                       [](CoreConfig<Stack>& c) { Stack::set_up(c, c.model.all_bytes() / 4); }));
    }
  }
}

void measure_in_turns(std::vector<Case>& cases, std::uint32_t rounds, const char* what) {
  for (std::uint32_t round = 0; round < rounds; ++round) {
    std::fprintf(stderr, "%s: round %u of %u\n", what, round + 1, rounds);
    for (Case& c : cases) c.measure();
  }
}

/// Cost over size, on logarithms.
struct SizeFit {
  double ratio = 0;     ///< of the largest to the smallest cache
  double exponent = 0;  ///< of the power law between these two
  double slope = 0;     ///< of the line through all sizes
  double per_copy = 0;  ///< the slope of a copy's cost; NaN if that is unknown or too small to tell
  double step = 0;      ///< the steepest rise from one size to the next, as an exponent
};

/// By how much a copy makes a layer more expensive than one with every expert resident. NaN where there are next to no copies,
/// and with prefetches, because predicting costs time, too, and not by the copy.
double copy_ns(const Case& c, const Case& all_resident) {
  const double more = c.copies() - all_resident.copies();
  return more > 0.01 && c.after.prefetch.issued == 0 ? (c.ns() - all_resident.ns()) / more : std::nan("");
}

double slope_of(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double mx = 0, my = 0, xy = 0, xx = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    mx += x[i] / n;
    my += y[i] / n;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mx) * (y[i] - my);
    xx += (x[i] - mx) * (x[i] - mx);
  }
  return xy / xx;
}

/// `all`: of one series, by size; the last has every expert resident.
SizeFit fit_size(const std::vector<const Case*>& all) {
  const Case &first = *all.front(), &last = *all[all.size() - 2], &resident = *all.back();
  SizeFit f;
  f.ratio = last.ns() / first.ns();
  f.exponent = std::log(f.ratio) / std::log(1.0 * last.slots / first.slots);
  std::vector<double> x, y, cx, cy;
  f.step = -1e9;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    x.push_back(std::log(all[i]->slots));
    y.push_back(std::log(all[i]->ns()));
    if (i > 0) f.step = std::max(f.step, (y[i] - y[i - 1]) / (x[i] - x[i - 1]));
    const double copy = copy_ns(*all[i], resident);
    if (std::isnan(copy)) continue;
    cx.push_back(x.back());
    cy.push_back(std::log(copy));
  }
  f.slope = slope_of(x, y);
  f.per_copy = slope_of(cx, cy);
  return f;
}

/// Cost over k * B. Relative errors count, so that small layers weigh as much as large ones.
struct ChoiceFit {
  double base = 0, slope = 0;              ///< ns, ns a choice
  double worst = 0;                        ///< the largest deviation from that line, as a share of the cost
  std::uint32_t worst_k = 0, worst_b = 0;  ///< where
  double exponent = 0;                     ///< of the line on logarithms
  /// The same over rows, whose scores are read, and experts, which many choices may share.
  double row = 0, expert = 0, worst_by_experts = 0;
};

ChoiceFit fit_choices(const std::vector<const Case*>& all) {
  const auto n = static_cast<Eigen::Index>(all.size());
  Eigen::MatrixXd by_choices(n, 2), by_experts(n, 3);  // in units of the cost
  std::vector<double> x, y;
  for (Eigen::Index i = 0; i < n; ++i) {
    const Case& c = *all[static_cast<std::size_t>(i)];
    by_choices.row(i) << 1, c.choices();
    by_experts.row(i) << 1, c.shape.batch, c.experts();
    by_choices.row(i) /= c.ns();
    by_experts.row(i) /= c.ns();
    x.push_back(std::log(c.choices()));
    y.push_back(std::log(c.ns()));
  }
  const Eigen::VectorXd ones = Eigen::VectorXd::Ones(n);
  const Eigen::VectorXd line = by_choices.colPivHouseholderQr().solve(ones);
  const Eigen::VectorXd plane = by_experts.colPivHouseholderQr().solve(ones);
  Eigen::Index at = 0;
  ChoiceFit f{line(0), line(1)};
  f.worst = (by_choices * line - ones).cwiseAbs().maxCoeff(&at);
  f.worst_k = all[static_cast<std::size_t>(at)]->shape.top_k;
  f.worst_b = all[static_cast<std::size_t>(at)]->shape.batch;
  f.exponent = slope_of(x, y);
  f.row = plane(1);
  f.expert = plane(2);
  f.worst_by_experts = (by_experts * plane - ones).cwiseAbs().maxCoeff();
  return f;
}

std::vector<const Case*> of_series(const std::vector<Case>& cases, std::size_t series) {
  std::vector<const Case*> out;
  for (const Case& c : cases) {
    if (c.series == series) out.push_back(&c);
  }
  return out;
}

// The picture

constexpr const char* colours[] = {"#0b5cd0", "#c4471c", "#0c7660", "#86208a", "#a07a2e", "#6f3023", "#1f8fa5"};
constexpr const char* dashes[] = {"", "7 3", "2 3", "9 3 2 3"};
constexpr const char* style =
    "text{font:12px system-ui,sans-serif;fill:#1b1b19}.soft{fill:#5a5852}.end{text-anchor:end}.mid{text-anchor:middle}"
    ".bold{font-weight:600}.grid{stroke:#e3e1da}.axis{stroke:#5a5852}.guide{stroke:#77746b;stroke-dasharray:3 3}";

std::string line_style(std::size_t series) {
  return fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-dasharray=\"{}\"", colours[series],
                     dashes[series % 4]);
}

/// One panel: its frame, axes and names.
struct Panel {
  LogScale x, y;

  void frame(Svg& svg, const std::string& title, const std::string& below, const std::vector<double>& x_ticks) const {
    for (const double t : x_ticks) {
      svg.line(x(t), y.from, x(t), y.to, "class=\"grid\"");
      svg.text(x(t), y.from + 18, x.label(t), "class=\"mid\"");
    }
    for (const double t : y.ticks()) {
      svg.line(x.from, y(t), x.to, y(t), "class=\"grid\"");
      svg.text(x.from - 8, y(t) + 4, y.label(t), "class=\"end\"");
    }
    svg.line(x.from, y.from, x.to, y.from, "class=\"axis\"");
    svg.line(x.from, y.from, x.from, y.to, "class=\"axis\"");
    svg.text(x.from - 44, y.to - 34, title, "class=\"bold\"");
    svg.text(x.from - 44, y.to - 14, "cost of a layer, ns of processor time", "class=\"soft\"");
    svg.text((x.from + x.to) / 2, y.from + 40, below, "class=\"mid soft\"");
  }
  /// As steep as proportional growth would be.
  void guide(Svg& svg, double from) const {
    const double low = y.low * from, times = std::min(x.high / x.low, y.high / low);
    svg.line(x.from, y(low), x(x.low * times), y(low * times), "class=\"guide\"");
    svg.text(x.from + 24, y.from - 6, "proportional", "class=\"soft\"");
  }
  void curve(Svg& svg, const std::vector<std::pair<double, double>>& points, std::size_t series) const {
    std::string d;
    for (const auto& [px, py] : points) {
      d += fmt::format("{}{},{}", d.empty() ? "M" : "L", bench::px(x(px)), bench::px(y(py)));
    }
    svg.path(d, line_style(series));
  }
  void mark(Svg& svg, double px, double py, std::size_t series, const std::string& tip) const {
    svg.marker(series, x(px), y(py), fmt::format("fill=\"{}\"", colours[series]), tip);
  }
};

std::string draw(const std::vector<std::string>& names, const std::vector<Case>& by_size,
                 const std::vector<Case>& by_choices) {
  constexpr double width = 1120, height = 532, top = 76, bottom = 400;
  const auto cost_order = [](const Case& a, const Case& b) { return a.ns() < b.ns(); };
  const auto [least, most] = std::minmax_element(by_size.begin(), by_size.end(), cost_order);
  const auto [least_choices_at, most_choices_at] =
      std::minmax_element(by_choices.begin(), by_choices.end(), cost_order);
  Svg svg;
  svg.rect(0, 0, width, height, "fill=\"#fff\"");

  Panel size{{least_slots, most_slots, 64, 540}, LogScale::around(least->ns(), most->ns(), bottom, top)};
  std::vector<double> sizes;
  for (double slots = least_slots; slots <= most_slots; slots *= 2) sizes.push_back(slots);
  size.frame(svg, "With the size of the cache", "slots of one pool over all layers (logarithmic)", sizes);
  size.guide(svg, 1.15);
  for (std::size_t s = 0; s < names.size(); ++s) {
    std::vector<std::pair<double, double>> points;
    for (const Case* c : of_series(by_size, s)) {
      if (c->slots <= most_slots) points.emplace_back(c->slots, c->ns());
    }
    if (points.empty()) continue;
    size.curve(svg, points, s);
    for (const Case* c : of_series(by_size, s)) {
      if (c->slots > most_slots) continue;
      size.mark(svg, c->slots, c->ns(), s,
                fmt::format("{}, {} slots: {:.0f} ns, {:.1f}% hits, {:.2f} copies a layer", names[s], c->slots, c->ns(),
                            c->hit_percent(), c->copies()));
    }
  }

  constexpr double most_choices = 256;
  Panel choices{{1, most_choices, 640, 1100},
                LogScale::around(least_choices_at->ns(), 1.5 * most_choices_at->ns(), bottom, top)};
  choices.frame(svg, "With what a layer asks for", "k × B: chosen experts times rows of the step",
                {1, 2, 4, 8, 16, 32, 64, 128, 256});
  choices.guide(svg, 1.15);
  for (std::size_t s = 0; s < names.size(); ++s) {
    const std::vector<const Case*> all = of_series(by_choices, s);
    const ChoiceFit f = fit_choices(all);
    std::vector<std::pair<double, double>> line;
    for (double n = 1; n < most_choices * 1.01; n *= std::sqrt(2.0)) line.emplace_back(n, f.base + n * f.slope);
    choices.curve(svg, line, s);
    for (const Case* c : all) {
      choices.mark(svg, c->choices(), c->ns(), s,
                   fmt::format("{}, k {} × B {}: {:.0f} ns, {:.1f}% hits", names[s], c->shape.top_k, c->shape.batch,
                               c->ns(), c->hit_percent()));
    }
  }
  for (std::size_t s = 0; s < names.size(); ++s) {
    const double x = 20 + 156 * static_cast<double>(s);
    svg.path(fmt::format("M{},{}h30", x, 468), line_style(s));
    svg.marker(s, x + 15, 468, fmt::format("fill=\"{}\"", colours[s]));
    svg.text(x + 38, 472, names[s]);
  }
  const std::string notes[] = {
      fmt::format(
          "Decode, {} layers, made-up routing. Left: {} experts a layer, k {}, B {}; a small cache misses more.",
          Routing::layers, sized.experts, sized.top_k, sized.batch),
      "Right: 64 experts a layer, a quarter of them in slots; markers: every k (1, 2, 4, 6, 8) and B (1 to 32, powers "
      "of "
      "two); curves: the fitted base + slope × k × B."};
  svg.text(20, 500, notes[0], "class=\"soft\"");
  svg.text(20, 518, notes[1], "class=\"soft\"");
  return svg.finish(width, height, "How the cost of deciding grows",
                    "Left: cost of a layer by cache size. Right: by chosen experts times rows.", style);
}

// The tables

std::string size_table(const std::vector<std::string>& names, const std::vector<Case>& cases, Json& json) {
  std::string out = fmt::format(
      "By cache size: {} layers x {} experts, k {}, B {}; one pool over all layers\n"
      "ns a layer | hits, % | copies a layer | ns a copy: what the layer costs more than with all {} resident\n\n{:>6}",
      Routing::layers, sized.experts, sized.top_k, sized.batch, every_slot, "slots");
  std::vector<std::vector<const Case*>> columns;
  std::vector<std::size_t> series;
  for (std::size_t s = 0; s < names.size(); ++s) {
    std::vector<const Case*> of = of_series(cases, s);
    if (of.empty()) continue;
    out += fmt::format(" |{:>26}", names[s]);
    series.push_back(s);
    columns.push_back(std::move(of));
  }
  out += '\n';
  for (std::size_t row = 0; row < columns[0].size(); ++row) {
    out += fmt::format("{:>6}", columns[0][row]->slots);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const Case& c = *columns[i][row];
      const double copy = copy_ns(c, *columns[i].back());
      out += fmt::format(" |{:>8.0f}{:>6.1f}{:>6.2f}{:>6}", c.ns(), c.hit_percent(), c.copies(),
                         std::isnan(copy) ? "-" : fmt::format("{:.0f}", copy));
      json["by_size"].push_back({{"stack", names[series[i]]},
                                 {"slots", c.slots},
                                 {"ns", c.ns()},
                                 {"hit_percent", c.hit_percent()},
                                 {"copies", c.copies()},
                                 {"ns_per_copy", std::isnan(copy) ? Json() : Json(copy)}});
    }
    out += '\n';
  }
  out +=
      fmt::format("\n{:<18}{:>16}{:>16}{:>16}{:>18}{:>16}\n", "", fmt::format("cost({})/({})", most_slots, least_slots),
                  "exponent", "log-slope", "steepest step", "of a copy");
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const SizeFit f = fit_size(columns[i]);
    out += fmt::format("{:<18}{:>16.2f}{:>16.3f}{:>16.3f}{:>18.3f}{:>16}  {}\n", names[series[i]], f.ratio, f.exponent,
                       f.slope, f.step, std::isnan(f.per_copy) ? "-" : fmt::format("{:.3f}", f.per_copy),
                       std::max(f.exponent, f.slope) < 1 && !(f.per_copy >= 1) ? "sub-linear" : "NOT sub-linear");
    json["size_fits"].push_back({{"stack", names[series[i]]},
                                 {"ratio", f.ratio},
                                 {"exponent", f.exponent},
                                 {"log_slope", f.slope},
                                 {"steepest_step", f.step},
                                 {"log_slope_per_copy", std::isnan(f.per_copy) ? Json() : Json(f.per_copy)}});
  }
  return out;
}

std::string choice_table(const std::vector<std::string>& names, const std::vector<Case>& cases, Json& json) {
  std::string out =
      fmt::format("\nBy choices: {} layers x 64 experts, a quarter of them in slots; ns a layer\n\n{:>3}{:>4}{:>5}",
                  Routing::layers, "k", "B", "k*B");
  for (const std::string& name : names) out += fmt::format("{:>18}", name);
  out += '\n';
  std::vector<std::vector<const Case*>> columns;
  for (std::size_t s = 0; s < names.size(); ++s) columns.push_back(of_series(cases, s));
  for (std::size_t row = 0; row < columns[0].size(); ++row) {
    const Case& first = *columns[0][row];
    out += fmt::format("{:>3}{:>4}{:>5}", first.shape.top_k, first.shape.batch, first.choices());
    for (std::size_t s = 0; s < names.size(); ++s) {
      const Case& c = *columns[s][row];
      out += fmt::format("{:>18.0f}", c.ns());
      json["by_choices"].push_back({{"stack", names[s]},
                                    {"k", c.shape.top_k},
                                    {"B", c.shape.batch},
                                    {"ns", c.ns()},
                                    {"hit_percent", c.hit_percent()},
                                    {"experts", c.experts()},
                                    {"copies", c.copies()}});
    }
    out += '\n';
  }
  out += fmt::format(
      "\nleast squares of relative errors: a line over k*B and its worst deviation; the exponent on logarithms; by "
      "rows "
      "and by the experts asked for, each once\n{:<18}{:>10}{:>12}{:>20}{:>12} |{:>10}{:>14}{:>8}\n",
      "", "base, ns", "ns a choice", "worst, at k x B", "exponent", "ns a row", "ns an expert", "worst");
  for (std::size_t s = 0; s < names.size(); ++s) {
    const ChoiceFit f = fit_choices(columns[s]);
    out += fmt::format("{:<18}{:>10.0f}{:>12.2f}{:>20}{:>12.3f} |{:>10.1f}{:>14.1f}{:>7.0f}%\n", names[s], f.base,
                       f.slope, fmt::format("{:.0f}%, {} x {}", 100 * f.worst, f.worst_k, f.worst_b), f.exponent, f.row,
                       f.expert, 100 * f.worst_by_experts);
    json["choice_fits"].push_back(
        {{"stack", names[s]},
         {"base_ns", f.base},
         {"ns_per_choice", f.slope},
         {"worst_deviation", f.worst},
         {"exponent", f.exponent},
         {"by_experts",
          {{"ns_per_row", f.row}, {"ns_per_expert", f.expert}, {"worst_deviation", f.worst_by_experts}}}});
  }
  return out;
}

int run(const Arguments& a) {
  JsonFile json(a.json);
  std::optional<engine::OutputFile> svg;
  if (!a.svg.empty()) svg.emplace(a.svg);
  const std::vector<std::string> names = {"cache lru", "cache arc",  "cache lfu", "multidimensional",
                                          "lru",       "fate+cache", "hobbit"};
  std::vector<Case> by_size, by_choices;
  cases_by_size<CacheAlone<Lru>>(0, by_size);
  cases_by_size<CacheAlone<Arc>>(1, by_size);
  cases_by_size<CacheAlone<Lfu>>(2, by_size);
  cases_by_size<CacheAlone<Multidimensional>>(3, by_size);
  // The stack lru in one pool is the cache lru.
  cases_by_size<stacks::FateCache>(5, by_size);
  cases_by_size<stacks::Hobbit>(6, by_size);
  measure_in_turns(by_size, a.rounds, "cache size");
  cases_by_choices<CacheAlone<Lru>>(0, by_choices);
  cases_by_choices<CacheAlone<Arc>>(1, by_choices);
  cases_by_choices<CacheAlone<Lfu>>(2, by_choices);
  cases_by_choices<CacheAlone<Multidimensional>>(3, by_choices);
  cases_by_choices<stacks::LruCache>(4, by_choices);
  cases_by_choices<stacks::FateCache>(5, by_choices);
  cases_by_choices<stacks::Hobbit>(6, by_choices);
  measure_in_turns(by_choices, a.rounds, "choices");

  Json numbers = {{"rounds", a.rounds}};
  std::fputs((size_table(names, by_size, numbers) + choice_table(names, by_choices, numbers)).c_str(), stdout);
  if (svg) svg->commit(draw(names, by_size, by_choices));
  json.commit(numbers);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("How the cost of deciding grows with the size of the cache, and with k * B.", "growth");
  app.footer("Holds a gigabyte of made-up routing.");
  app.add_option("--rounds", a.rounds, "of which the median counts")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--svg", a.svg, "write both plots to this file")->type_name("FILE");
  ferry::bench::add_json_option(app, a.json);
  return parse_and_run(app, argc, argv, [&] { return run(a); });
}
