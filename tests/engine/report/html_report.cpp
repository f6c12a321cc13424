// The report's page: whole, harmless whatever the JSON says, and its marks where the numbers are.
#include "report/html_report.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "report/html_report_svg.hpp"
#include "report/report.hpp"
#include "support/errors.hpp"

namespace {

using namespace ferry::engine;
using Timelines = std::vector<std::pair<std::string, Json>>;

/// A simulated run of 100 tokens in prefill and in decode.
Json run(const std::string& stack, double percent, double tokens_per_s) {
  const double tpot = 1 / tokens_per_s;
  return {
      {"ferry", "0.1.0"},
      {"model", "m"},
      {"stack", stack},
      {"machine", "card"},
      {"device", "virtual clock"},
      {"trace", "t.safetensors"},
      {"budget_bytes", percent * 1e6},
      {"all_expert_bytes", 100e6},
      {"budget_percent", percent},
      {"batch", 1},
      {"parameters", Json::object()},
      {"ttft_s", 0.5},
      {"prefill", {{"tokens", 100}, {"time_s", 0.5}}},
      {"decode",
       {{"tokens", 100},
        {"time_s", 100 * tpot},
        {"requests", 400},
        {"hits", 300},
        {"late_hits", 40},
        {"misses", 30},
        {"substituted", 10},
        {"skipped", 5},
        {"host_computed", 15},
        {"bytes", 1 << 30},
        {"tpot_s", tpot}}},
      {"prefetch",
       {{"issued", 10},
        {"used", 5},
        {"recall", 0.75},
        {"by_distance",
         {{{"distance", 1}, {"recall_by_layer", {nullptr, 0.5, 1.0}}},
          {{"distance", 2}, {"recall_by_layer", {nullptr, nullptr, 0.25}}}}}}},
      {"bytes_by_precision", {{"int2", 0}, {"int4", 100 << 20}, {"int8", 0}, {"full", 300 << 20}}},
      {"stall_s", 1},
      {"host_wait_s", 0},
      {"decision_s", 0},
      {"time",
       {{"decode",
         {{"total_s", 100 * tpot}, {"stall_s", 50 * tpot}, {"host_wait_s", 25 * tpot}, {"link_busy_s", 80 * tpot}}}}},
      {"hit_rate_by_layer", {0.0, 0.5, 1.0}},
      {"bounds",
       {{"all_resident_tpot_s", 0.01},
        {"clairvoyant_tpot_s", 0.0125},
        {"clairvoyant_with_host_tpot_s", 0.012},
        {"perfect_prediction", {{"tpot_s", tpot / 2}, {"hit_rate", 0.9}}},
        {"belady_cache", {{"tpot_s", tpot / 1.5}, {"hit_rate", 0.9}}}}}};
}

std::vector<Json> sweep() {
  std::vector<Json> runs;
  for (const double percent : {10., 25., 50.}) {
    for (const std::string stack : {"lru", "fate", "hobbit"}) runs.push_back(run(stack, percent, 10 + percent));
  }
  return runs;
}

Json span(int lane, const std::string& name, double begin, double length) {
  return {{"ph", "X"}, {"pid", 1}, {"tid", lane}, {"name", name}, {"ts", begin}, {"dur", length}};
}

Timelines lanes() {
  Json copy = span(1, "demand", 1.5, 2.25);
  copy["args"] = {{"layer", 3}, {"expert", 12}, {"precision", "int4"}, {"ticket", 1}};
  const Json named = {{"ph", "M"}, {"pid", 1}, {"name", "process_name"}, {"args", {{"name", "ferry"}}}};
  return {
      {"first tokens", {{"traceEvents", {named, span(0, "attention, gate", 0, 1.5), copy, span(2, "decide", 1, 4)}}}}};
}

struct Element {
  std::string tag, text, parent;
  std::map<std::string, std::string> attributes;
  [[nodiscard]] double number(const std::string& name) const { return std::stod(attributes.at(name)); }
};

/// Reads a page as strictly as XML is read, but for its style and script, and gives its elements in the order in which
/// they close. Throws what is wrong.
std::vector<Element> parse(const std::string& page) {
  std::vector<Element> open, closed;
  auto wrong = [&](const std::string& what, std::size_t at) {
    throw std::runtime_error(what + ": " + page.substr(at > 30 ? at - 30 : 0, 100));
  };
  auto text = [&](std::string_view raw, std::size_t at) {
    static const std::set<std::string_view> entities = {"&lt;", "&gt;", "&amp;", "&quot;", "&#39;"};
    if (raw.find('<') != raw.npos) wrong("< in text", at);
    for (std::size_t i = raw.find('&'); i != raw.npos; i = raw.find('&', i + 1)) {
      if (!entities.contains(raw.substr(i, raw.find(';', i) + 1 - i))) wrong("no such entity", at);
    }
    return std::string(raw);
  };
  std::size_t at = page.find('\n');  // past the document type
  REQUIRE(page.starts_with("<!DOCTYPE html>"));
  while (at < page.size()) {
    const std::size_t begin = page.find('<', at);
    const std::string between = text(std::string_view(page).substr(at, begin - at), at);
    if (!open.empty()) open.back().text += between;
    if (begin == page.npos) break;
    const bool closes = page[begin + 1] == '/';
    std::size_t i = begin + (closes ? 2 : 1);
    const std::size_t name = i;
    while (std::isalnum(static_cast<unsigned char>(page[i])) != 0) ++i;
    const std::string tag = page.substr(name, i - name);
    if (tag.empty()) wrong("no tag", begin);
    if (closes) {
      if (page[i] != '>' || open.empty() || open.back().tag != tag) wrong("closes what is not open", begin);
      closed.push_back(open.back());
      open.pop_back();
      at = i + 1;
      continue;
    }
    Element e{tag, "", open.empty() ? "" : open.back().tag, {}};
    while (true) {
      while (page[i] == ' ' || page[i] == '\n') ++i;
      if (page[i] == '>' || page[i] == '/') break;
      const std::size_t equals = page.find('=', i);
      if (page[equals + 1] != '"') wrong("an attribute without quotes", i);
      const std::size_t end = page.find('"', equals + 2);
      const std::string key = page.substr(i, equals - i);
      const std::string value = text(std::string_view(page).substr(equals + 2, end - equals - 2), i);
      if (!e.attributes.emplace(key, value).second) wrong("an attribute twice", i);
      i = end + 1;
    }
    if (page[i] == '/') {
      if (page[i + 1] != '>') wrong("/ without >", i);
      closed.push_back(e);
      at = i + 2;
      continue;
    }
    at = i + 1;
    if (tag == "style" || tag == "script") at = page.find("</" + tag, at);
    open.push_back(e);
  }
  if (!open.empty()) wrong("never closed: " + open.back().tag, 0);
  return closed;
}

std::set<std::string> sections(const std::string& page) {
  std::set<std::string> ids;
  for (const Element& e : parse(page)) {
    if (e.tag == "section") ids.insert(e.attributes.at("id"));
  }
  return ids;
}

std::string section(const std::string& page, const std::string& id) {
  const std::size_t begin = page.find("<section id=\"" + id + "\">");
  REQUIRE(begin != page.npos);
  return "<!DOCTYPE html>\n" + page.substr(begin, page.find("</section>", begin) + 10 - begin);
}

/// The elements whose tooltip begins with `tip`. A tooltip closes before its element.
std::vector<Element> with_tip(const std::vector<Element>& all, const std::string& tip) {
  std::vector<Element> out;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i].tag == "title" && all[i].text.starts_with(tip)) out.push_back(all[i + 1]);
  }
  return out;
}

/// Where an axis has this label.
double tick(const std::vector<Element>& all, const std::string& label, const char* coordinate) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const Element& e) {
    const auto look = e.attributes.find("class");
    const bool across = look != e.attributes.end() &&
                        (look->second == "soft" || look->second == "soft mid" || look->second == "soft end");
    return e.tag == "text" && e.text == label && across;
  });
  REQUIRE(at != all.end());
  return at->number(coordinate);
}

double marker_x(const Element& e) {
  return std::stod(e.attributes.at("d").substr(1));
}

double marker_y(const Element& e) {
  const std::string& d = e.attributes.at("d");
  return std::stod(d.substr(d.find(',') + 1));
}

std::string message(const std::function<void()>& what) {
  try {
    what();
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

TEST_CASE("report: the page is well-formed, stands alone, and has every chart") {
  const std::string page = html_report(sweep(), lanes(), "A title");
  CHECK(sections(page) ==
        std::set<std::string>{"speed", "runs", "layers", "time", "outcomes", "bytes", "recall", "losses", "timeline"});
  for (const char* word : {"http:", "https:", "//cdn", "src=", "@import", "url(", "<link", "<img", "fetch("}) {
    CAPTURE(word);
    CHECK(page.find(word) == page.npos);
  }
  for (const Element& e : parse(page)) {
    if (e.tag != "svg" || e.parent == "svg") continue;
    const bool icon = e.attributes.contains("aria-hidden");
    CHECK((icon || (e.attributes.at("role") == "img" && !e.attributes.at("aria-label").empty())));
  }
  CHECK(count(page, "<svg class=\"chart\"") == count(page, "<desc>"));
  CHECK(html_report(sweep(), lanes(), "A title") == page);
}

TEST_CASE("report: a chart is left out when nothing is known of what it shows") {
  const std::vector<std::pair<std::string, std::string>> cases = {{"/hit_rate_by_layer", "layers"},
                                                                  {"/decode/requests", "outcomes"},
                                                                  {"/bytes_by_precision", "bytes"},
                                                                  {"/prefetch", "recall"},
                                                                  {"/decode/time_s", "speed"}};
  const auto all = sections(html_report(sweep(), {}, ""));
  CHECK(all.size() == 8);
  for (const auto& [pointer, id] : cases) {
    const std::string& field = pointer;
    CAPTURE(field);
    std::vector<Json> runs = sweep();
    for (Json& r : runs) {
      const Json::json_pointer at(field);
      r[at.parent_pointer()].erase(at.back());
    }
    auto expected = all;
    expected.erase(id);
    CHECK(sections(html_report(runs, {}, "")) == expected);
  }
  std::vector<Json> runs = sweep();
  for (Json& r : runs) r["bounds"].erase("perfect_prediction");
  CHECK(sections(html_report(runs, {}, "")).contains("losses"));
  for (Json& r : runs) r["bounds"].erase("belady_cache");
  CHECK_FALSE(sections(html_report(runs, {}, "")).contains("losses"));

  // Without the phases' times the whole run's are shown, and without those nothing.
  for (Json& r : runs) r.erase("time");
  CHECK(section(html_report(runs, {}, ""), "time").find("Time of the whole run") != std::string::npos);
  for (Json& r : runs) r.erase("stall_s");
  CHECK_FALSE(sections(html_report(runs, {}, "")).contains("time"));

  const Json least = {{"stack", "lru"}, {"model", "m"}, {"budget_bytes", 1}, {"decode", Json::object()}};
  CHECK(sections(html_report({least}, {}, "")) == std::set<std::string>{"runs"});
  CHECK(sections(html_report({}, {}, "")).empty());
}

TEST_CASE("report: strings of strangers are text, wherever they stand") {
  const std::string evil = "</script></title><script>alert(1)</script>\"'><img onerror=x>&amp;";
  std::vector<Json> runs = sweep();
  for (Json& r : runs) {
    for (const char* field : {"ferry", "model", "machine", "device", "trace", "costs", "as_shape"})
      r[field] = evil + field;
    r["stack"] = evil + r["stack"].get<std::string>();
  }
  runs[0]["parameters"] = {{evil, evil}};
  runs.push_back({{"stack", evil}, {"refused", evil}});
  Json events = Json::array({span(0, evil, 0, 1)});
  events[0]["args"] = {{"expert", 1}, {"precision", evil}};
  const std::string page = html_report(runs, {{evil, events}}, evil);
  CHECK_NOTHROW(parse(page));
  CHECK(count(page, "<script>") == 1);
  CHECK(count(page, "</script>") == 1);
  CHECK(page.find("<img") == page.npos);
  CHECK(page.find("&lt;img onerror=x&gt;&amp;amp;") != page.npos);

  CHECK(html::escape("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(html::escape(std::string("x\0y\n\x1b\x7f", 6)) == "x\uFFFDy\uFFFD\uFFFD\uFFFD");
  CHECK(html::escape("\xff\xc3") == "\uFFFD\uFFFD");  // no UTF-8
  CHECK(html::escape("µ→") == "µ→");
  CHECK(html::shorten("µµµµ", 4) == "µµµµ");
  CHECK(html::shorten("µµµµµ", 4) == "µµµ…");
}

TEST_CASE("report: numbers are written for people") {
  CHECK(html::number(0, 0) == "0");
  CHECK(html::number(999, 0) == "999");
  CHECK(html::number(1234567.25, 1) == "1,234,567.2");
  CHECK(html::number(1000, 2) == "1,000.00");
  CHECK(html::number(-1234, 0) == "−1,234");
  CHECK(html::number(-0.001, 1) == "0.0");
  CHECK(html::number(2e12, 0) == "2.00e+12");
  CHECK(html::number(std::numeric_limits<double>::quiet_NaN(), 0) == "–");
  CHECK(html::px(12.04) == "12");
  CHECK(html::px(12.06) == "12.1");
  CHECK(html::px(-0.01) == "0");
  CHECK(html::px(std::numeric_limits<double>::infinity()) == "0");
}

TEST_CASE("report: scales end on round numbers and put values between") {
  // 87 in about five steps: 17.4 each, so 20, and 100 at the end. 25 lies a quarter of the way.
  const auto even = html::Scale::from_zero(87, 100, 600);
  CHECK(even.high == 100);
  CHECK(even(0) == 100);
  CHECK(even(25) == 225);
  CHECK(even(100) == 600);
  CHECK(even(1e9) == 600);
  CHECK(even.ticks() == std::vector<double>{0, 20, 40, 60, 80, 100});
  CHECK(even.label(40) == "40");
  // 0.004 in five steps: 0.0008 each, so 0.001.
  const auto small = html::Scale::from_zero(0.004, 0, 400);
  CHECK(small(0.003) == doctest::Approx(300));
  CHECK(small.label(0.003) == "0.003");
  // 3 to 700: from 2 to 1000. 20 is log(10) / log(500) = 37.05% of the way.
  const auto log = html::Scale::fitting(3, 700, 0, 1000);
  CHECK(log.log);
  CHECK(log(2) == 0);
  CHECK(log(20) == doctest::Approx(370.51).epsilon(1e-4));
  CHECK(log(1000) == 1000);
  CHECK(log.ticks() == std::vector<double>{2, 5, 10, 20, 50, 100, 200, 500, 1000});
  CHECK_FALSE(html::Scale::fitting(30, 700, 0, 1).log);
  CHECK(html::Scale::fitting(1e-30, 1e20, 0, 1).ticks().size() < 12);
  CHECK(html::Scale::from_zero(0, 0, 1).high == 1);
}

TEST_CASE("report: lines have their marks where the axes say, and bounds are speeds") {
  // All resident is 0.0125, 0.011 and 0.01 s a token for the three stacks: 80, 90.9 and 100 tokens/s. Clairvoyant is
  // 0.0125 s for all. The runs do 20, 35 and 60: one linear axis to 100.
  std::vector<Json> runs = sweep();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i]["bounds"]["all_resident_tpot_s"] = std::array{0.0125, 0.011, 0.01}[i % 3];
    runs[i]["bytes_by_precision"] = {{"full", 1000}};
    runs[i]["decode"]["host_computed"] = 0;
  }
  const auto all = parse(section(html_report(runs, {}, ""), "speed"));
  std::map<std::string, double> x, y;  // of the ticks' labels; those of the upright axis come first
  for (const Element& e : all) {
    if (e.tag != "text" || !e.attributes.contains("class")) continue;
    if (e.attributes.at("class") == "soft end") y.emplace(e.text, e.number("y") - 4);
    if (e.attributes.at("class") == "soft" || e.attributes.at("class") == "soft mid") x.emplace(e.text, e.number("x"));
  }
  REQUIRE(x.contains("0"));
  REQUIRE(x.contains("25"));
  REQUIRE(y.contains("0"));
  REQUIRE(y.contains("100"));
  for (const auto& [percent, speed] : {std::pair{10., 20.}, {25., 35.}, {50., 60.}}) {
    const auto marks = with_tip(all, fmt::format("fate @ {:.0f}%: {:.1f} tokens/s", percent, speed));
    REQUIRE(marks.size() == 1);
    CHECK(marks[0].tag == "path");
    CHECK(marker_x(marks[0]) == doctest::Approx(x["0"] + (x["25"] - x["0"]) * percent / 25).epsilon(0.001));
    CHECK(marker_y(marks[0]) == doctest::Approx(y["0"] + (y["100"] - y["0"]) * speed / 100).epsilon(0.001));
  }
  // Every expert resident is one level line for all; what a stack's own uses allow stands at each of its points.
  std::vector<Element> bounds;
  for (const Element& e : all) {
    if (e.tag == "path" && e.attributes.at("class").starts_with("bound")) bounds.push_back(e);
  }
  REQUIRE(bounds.size() == 1);
  CHECK(marker_y(bounds[0]) == doctest::Approx(y["0"] + (y["100"] - y["0"]) / 1.1).epsilon(0.001));  // the median
  CHECK(bounds[0].attributes.at("d").find('H') != std::string::npos);
  for (const double percent : {10., 25., 50.}) {
    const auto own = with_tip(all, fmt::format("fate @ {:.0f}%, its clairvoyant bound: 80.0 tokens/s", percent));
    REQUIRE(own.size() == 1);
    CHECK(marker_y(own[0]) == doctest::Approx(y["0"] + 0.8 * (y["100"] - y["0"])).epsilon(0.001));
  }
}

TEST_CASE("report: no stack stands above its own bound, whatever others hold") {
  // fate copies INT4 and runs at 60 tokens/s, which no stack could that holds full precision: that one's bound is 30.
  Json fate = run("fate", 25, 60), lru = run("lru", 25, 20), small = run("lru", 50, 25), half = run("fate", 50, 70);
  for (Json* r : {&fate, &half}) {
    (*r)["bytes_by_precision"] = {{"int4", 1000}};
    (*r)["bounds"] = {{"clairvoyant_tpot_s", 0.0125}, {"all_resident_tpot_s", 0.0125}};
  }
  for (Json* r : {&lru, &small}) {
    (*r)["bytes_by_precision"] = {{"full", 1000}};
    (*r)["bounds"] = {{"clairvoyant_tpot_s", 1.0 / 30}, {"all_resident_tpot_s", 1.0 / 30}};
  }
  const auto all = parse(section(html_report({fate, lru, small, half}, {}, ""), "speed"));
  struct Expected {
    const char *name, *speed, *bound;
  };
  for (const Expected& x : {Expected{"fate @ 25%", "60.0", "80.0"}, Expected{"fate @ 50%", "70.0", "80.0"},
                            Expected{"lru @ 25%", "20.0", "30.0"}, Expected{"lru @ 50%", "25.0", "30.0"}}) {
    CAPTURE(x.name);
    const auto point = with_tip(all, fmt::format("{}: {} tokens/s", x.name, x.speed));
    const auto bound = with_tip(all, fmt::format("{}, its clairvoyant bound: {} tokens/s", x.name, x.bound));
    REQUIRE(point.size() == 1);
    REQUIRE(bound.size() == 1);
    CHECK(marker_y(bound[0]) <= marker_y(point[0]));  // further up
  }
}

TEST_CASE("report: runs of one name are told apart, and every chart has one order of rows") {
  std::vector<Json> runs = {run("lru", 25, 20), run("fate", 25, 50), run("lru", 25, 30)};
  for (Json& r : runs) r["costs"] = "effective";
  const std::string page = html_report(runs, {}, "");
  CHECK(page.find("lru (2)") != std::string::npos);
  CHECK(page.find("<dt>Costs</dt><dd>effective</dd>") != std::string::npos);
  std::vector<std::vector<std::string>> orders;
  for (const char* chart : {"speed", "outcomes", "layers"}) {
    std::vector<std::string> order;
    for (const Element& e : parse(section(page, chart))) {
      const std::string name = e.text.substr(0, e.text.find(" @"));
      if (e.tag == "text" && (name == "fate" || name.starts_with("lru"))) order.push_back(name);
    }
    if (!order.empty()) orders.push_back(order);
  }
  REQUIRE(orders.size() >= 2);
  for (const auto& order : orders) CHECK(order == std::vector<std::string>{"fate", "lru (2)", "lru"});
}

TEST_CASE("report: with one budget there are bars, the fastest first") {
  const auto all = parse(section(html_report({run("lru", 25, 20), run("fate", 25, 50)}, {}, ""), "speed"));
  const double x0 = tick(all, "0", "x"), x100 = tick(all, "100", "x");
  const auto lru = with_tip(all, "lru @ 25%: 20.0 tokens/s"), fate = with_tip(all, "fate @ 25%: 50.0 tokens/s");
  REQUIRE(lru.size() == 1);
  REQUIRE(fate.size() == 1);
  CHECK(lru[0].number("x") == x0);
  CHECK(lru[0].number("width") == doctest::Approx((x100 - x0) * 0.2).epsilon(0.001));
  CHECK(fate[0].number("width") == doctest::Approx((x100 - x0) * 0.5).epsilon(0.001));
  CHECK(fate[0].number("y") < lru[0].number("y"));
  std::vector<double> marks;  // of the second row, after the key's
  for (const Element& e : all) {
    if (e.tag == "line" && e.attributes.at("class").starts_with("bound")) marks.push_back(e.number("x1"));
  }
  REQUIRE(marks.size() == 9);
  CHECK(marks[3] == doctest::Approx(x100).epsilon(0.001));
  CHECK(marks[4] == doctest::Approx(x0 + 0.8 * (x100 - x0)).epsilon(0.001));
  CHECK(marks[5] == doctest::Approx(x0 + (x100 - x0) / 1.2).epsilon(0.001));  // 0.012 s: 83.3 tokens/s
}

TEST_CASE("report: stacked bars add up") {
  const std::string page = html_report({run("lru", 25, 10)}, {}, "");
  // 400 requests: 300, 40, 30, 10, 5, 15 of them.
  auto all = parse(section(page, "outcomes"));
  double x = tick(all, "0", "x");
  const double all_of_it = tick(all, "100", "x") - x;
  for (const auto& [label, share] : {std::pair{"hit: 75.0 %", 0.75},
                                     {"late hit: 10.0 %", 0.1},
                                     {"miss: 7.5 %", 0.075},
                                     {"substituted: 2.5 %", 0.025},
                                     {"skipped: 1.2 %", 0.0125},
                                     {"on the host: 3.8 %", 0.0375}}) {
    const char* name = label;
    CAPTURE(name);
    const auto part = with_tip(all, fmt::format("lru @ 25%, {}", name));
    REQUIRE(part.size() == 1);
    CHECK(part[0].number("x") == doctest::Approx(x).epsilon(0.001));
    CHECK(part[0].number("width") == doctest::Approx(all_of_it * share).epsilon(0.01));
    x += all_of_it * share;
  }
  // 100 ms a token: 50 stalled, 25 waiting, the rest computing; the link is busy for 80.
  all = parse(section(page, "time"));
  const double zero = tick(all, "0", "x"), ms = (tick(all, "100", "x") - zero) / 100;
  for (const auto& [label, begin, length] : {std::tuple{"computing: 25 ms", 0., 25.},
                                             {"stalled on copies: 50 ms", 25., 50.},
                                             {"waiting for the host: 25 ms", 75., 25.}}) {
    const char* name = label;
    CAPTURE(name);
    const auto part = with_tip(all, fmt::format("lru @ 25%, {}", name));
    REQUIRE(part.size() == 1);
    CHECK(part[0].number("x") == doctest::Approx(zero + begin * ms).epsilon(0.001));
    CHECK(part[0].number("width") == doctest::Approx(length * ms).epsilon(0.001));
  }
  const auto link = with_tip(all, "lru @ 25%, link busy meanwhile (thin bar): 80 ms (80%)");
  REQUIRE(link.size() == 1);
  CHECK(link[0].number("width") == doctest::Approx(80 * ms).epsilon(0.001));
  CHECK(with_tip(all, "lru @ 25%, deciding").empty());
  // 400 MiB over 200 tokens.
  all = parse(section(page, "bytes"));
  CHECK(with_tip(all, "lru @ 25%, int4: 0.50 MiB").size() == 1);
  CHECK(with_tip(all, "lru @ 25%, full precision: 1.50 MiB").size() == 1);
}

TEST_CASE("report: hit rates, recall and lost time are those of the run") {
  const std::string page = html_report({run("lru", 25, 10)}, {}, "");
  auto all = parse(section(page, "layers"));
  for (const auto& [tip, opacity] :
       {std::pair{"lru @ 25%, layer 0: 0.0%", "0.05"}, {"lru @ 25%, layer 2: 100.0%", "1.00"}}) {
    const auto cell = with_tip(all, tip);
    REQUIRE(cell.size() == 1);
    CHECK(cell[0].attributes.at("fill-opacity") == opacity);
  }
  all = parse(section(page, "recall"));
  // Layers 0 to 2 at 182 pixels; from 0 to 100% over 110. Layer 1 at 50%, then layer 2 at the top.
  const auto nearest = with_tip(all, "lru @ 25%, 1 ahead: 75.0% on average");
  REQUIRE(nearest.size() == 1);
  const double left = tick(all, "0", "x") + 6;
  double top = 0, bottom = 0;
  for (const Element& e : all) {
    if (e.tag == "text" && e.text == "100") top = e.number("y") - 4;
    if (e.tag == "text" && e.text == "0" && bottom == 0) bottom = e.number("y") - 4;
  }
  CHECK(bottom - top == doctest::Approx(110));
  CHECK(nearest[0].attributes.at("d") == fmt::format("M{},{}L{},{}", html::px(left + 91), html::px((top + bottom) / 2),
                                                     html::px(left + 182), html::px(top)));
  CHECK(with_tip(all, "lru @ 25%, 2 ahead: 25.0% on average").size() == 1);
  all = parse(section(page, "losses"));
  std::map<std::string, double> x;
  for (const auto& [name, tip] : {std::pair{"is", "as it is: 100 ms"},
                                  {"prediction", "with perfect prediction: 50.0 ms"},
                                  {"cache", "with Belady&#39;s cache: 66.7 ms"},
                                  {"bound", "the clairvoyant bound: 12.0 ms"}}) {
    const auto mark = with_tip(all, std::string("lru @ 25%, ") + tip);
    REQUIRE(mark.size() == 1);
    x[name] = marker_x(mark[0]);
  }
  CHECK((x["is"] - x["prediction"]) / (x["is"] - x["bound"]) == doctest::Approx(50 / 88.0).epsilon(0.002));
  CHECK((x["is"] - x["cache"]) / (x["is"] - x["bound"]) == doctest::Approx(33.333 / 88.0).epsilon(0.002));
}

TEST_CASE("report: the table has the numbers") {
  const auto all = parse(section(html_report({run("lru", 25, 10), run("fate", 25, 20)}, {}, ""), "runs"));
  std::vector<std::string> heads, cells;
  for (const Element& e : all) {
    if (e.tag == "th") heads.push_back(e.text);
    if (e.tag == "td") cells.push_back(e.text);
  }
  REQUIRE(cells.size() == 2 * heads.size());
  std::map<std::string, std::string> fate, lru;  // the faster first
  for (std::size_t i = 0; i < heads.size(); ++i) {
    fate[heads[i]] = cells[i];
    lru[heads[i]] = cells[heads.size() + i];
  }
  const std::map<std::string, std::string> expected = {{"Stack", "lru"},
                                                       {"Budget, % of experts", "25.0"},
                                                       {"Budget, MiB", "23.8"},
                                                       {"Built, MiB", "23.8"},
                                                       {"Tokens/s", "10.0"},
                                                       {"TPOT, ms", "100.0"},
                                                       {"TTFT, ms", "500"},
                                                       {"TPOT / all resident", "10.00"},
                                                       {"TPOT / clairvoyant", "8.33"},
                                                       {"Hits, %", "75.0"},
                                                       {"Late hits, %", "10.0"},
                                                       {"Misses, %", "7.5"},
                                                       {"Recall, %", "75.0"},
                                                       {"Copied in decode, GiB", "1.00"},
                                                       {"Stalled, %", "50.0"}};
  for (const auto& [column, value] : expected) {
    const std::string& head = column;
    CAPTURE(head);
    CHECK(lru[head] == value);
  }
  CHECK(lru.size() == expected.size());
  CHECK(fate["Stack"] == "fate");
  // The host computed, so that the bound that lets it holds: 0.1 s over 0.012 s. Without, it is 0.1 over 0.0125.
  Json alone = run("lru", 25, 10);
  alone["decode"]["host_computed"] = 0;
  const std::string page = section(html_report({alone}, {}, ""), "runs");
  CHECK(page.find("<td data-v=\"8\">8.00</td>") != page.npos);
}

TEST_CASE("report: what is no run is refused by entry and field") {
  auto with = [](const std::string& field, const Json& value) {
    std::vector<Json> runs = sweep();
    runs[2][Json::json_pointer(field)] = value;
    return message([&] { html_report(runs, {}, ""); });
  };
  CHECK(with("/stack", 7) == "runs[2]: field \"stack\": expected a string, got 7");
  CHECK(with("/budget_bytes", "much") == "runs[2]: field \"budget_bytes\": expected a number, got \"much\"");
  CHECK(with("/decode", 1) == "runs[2].decode: expected a JSON object");
  CHECK(with("/decode/hits", true) == "runs[2].decode: field \"hits\": expected a number, got true");
  CHECK(with("/hit_rate_by_layer/1", "x")
            .starts_with("runs[2]: field \"hit_rate_by_layer\": expected an array of numbers"));
  CHECK(with("/hit_rate_by_layer", 1) == "runs[2]: field \"hit_rate_by_layer\": expected an array, got 1");
  CHECK(with("/prefetch/by_distance/1/recall_by_layer", 1) ==
        "runs[2].prefetch.by_distance[1]: field \"recall_by_layer\": expected an array, got 1");
  CHECK(with("/parameters", 1) == "runs[2]: field \"parameters\": expected an object, got 1");
  CHECK(with("/bounds/belady_cache/tpot_s", "x") ==
        "runs[2].bounds.belady_cache: field \"tpot_s\": expected a number, got \"x\"");
  CHECK(message([] { html_report({Json::array()}, {}, ""); }) == "runs[0]: expected a JSON object");
  for (const char* field : {"stack", "model", "budget_bytes", "decode"}) {
    std::vector<Json> runs = sweep();
    runs[1].erase(field);
    CHECK(message([&] { html_report(runs, {}, ""); }) == fmt::format("runs[1]: field \"{}\" is missing", field));
  }
  Timelines all = lanes();
  all.push_back(all[0]);
  all[1].second["traceEvents"][2]["ts"] = "soon";
  CHECK(message([&] { html_report({}, all, ""); }) ==
        "timelines[1].traceEvents[2]: field \"ts\": expected a number, got \"soon\"");
  CHECK(message([] {
          html_report({}, {{"x", Json::object()}}, "");
        }) == "timelines[0]: field \"traceEvents\" is missing");
  CHECK(message([] { html_report({}, {{"x", 7}}, ""); }) == "timelines[0]: expected a JSON object");
}

TEST_CASE("report: numbers that cannot be leave the page whole") {
  // Each number of a run in turn, at every kind of absurdity, beside runs that are sound.
  std::vector<std::string> fields;
  const Json flat = run("lru", 25, 10).flatten();
  for (const auto& [field, value] : flat.items()) {
    if (value.is_number()) fields.push_back(field);
  }
  CHECK(fields.size() > 35);
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), 1e23, 0.0}) {
    for (const std::string& field : fields) {
      CAPTURE(bad);
      CAPTURE(field);
      std::vector<Json> runs = {run("lru", 25, 10), run("fate", 25, 10), run("fate", 50, 30)};
      runs[0][Json::json_pointer(field)] = bad;
      const std::string page = html_report(runs, {}, "");
      std::size_t broken = 0;
      for (const Element& e : parse(page)) {
        for (const std::string name : {"d", "x", "y", "width", "height", "viewBox"}) {
          const auto at = e.attributes.find(name);
          if (at != e.attributes.end() && at->second.find_first_of("nif") != std::string::npos) ++broken;  // nan, inf
        }
      }
      CHECK(broken == 0);
      if (field != "/batch") CHECK(count(page, "<tr>") == 4);
    }
  }
  for (const double bad : {std::numeric_limits<double>::infinity(), -5.0, 1e308}) {
    CAPTURE(bad);
    std::vector<Json> runs = sweep();
    for (Json& r : runs) {
      for (const std::string& field : fields) r[Json::json_pointer(field)] = bad;
    }
    CHECK(sections(html_report(runs, {}, "")) == std::set<std::string>{"runs"});
  }
}

TEST_CASE("report: many runs have all their rows, and charts say what they leave out") {
  std::vector<Json> runs;
  for (int i = 0; i < 500; ++i) runs.push_back(run(fmt::format("stack-{}", i % 100), 10 + 10 * (i / 100), 5 + i % 7));
  const std::string page = html_report(runs, {}, "");
  CHECK_NOTHROW(parse(page));
  CHECK(count(page, "<tr>") == 501);
  CHECK(page.find("Slower series that only the table has: 60<") != page.npos);
  CHECK(page.find("Runs that only the table has: 200<") != page.npos);  // 40 of 100 stacks, five budgets each
  CHECK(page.size() < 3'000'000);

  runs.clear();
  for (int i = 0; i < 61; ++i) runs.push_back(run(fmt::format("stack-{}", i), 25, 10));
  const std::string bars = section(html_report(runs, {}, ""), "speed");
  CHECK(count(bars, ": 10.0 tokens/s</title>") == 60);
  CHECK(bars.find("Runs that only the table has: 1<") != bars.npos);

  runs.clear();
  for (int i = 0; i < 15; ++i) {
    runs.push_back(run("lru", 25, 10));
    runs.back()["machine"] = fmt::format("card {}", i);
  }
  const std::string groups = html_report(runs, {}, "");
  CHECK(count(section(groups, "speed"), "<h3>") == 12);
  CHECK(groups.find("Groups of runs that only the table has: 3<") != groups.npos);
}

TEST_CASE("report: budgets that stacks make a little different are one panel") {
  // Twenty stacks at 9.5% to 10% and 24% to 25%; one more has 60% alone.
  std::vector<Json> runs;
  for (int i = 0; i < 20; ++i) {
    const std::string stack = fmt::format("stack-{}", i);
    runs.push_back(run(stack, 9.5 + 0.5 * i / 19, 10));
    runs.push_back(run(stack, 24 + 1.0 * i / 19, 20));
  }
  runs.push_back(run("resident", 60, 50));
  for (int i = 0; i < 9; ++i) runs.push_back(run("resident", 60, 50));  // again and again
  std::vector<std::string> heads;
  for (const Element& e : parse(section(html_report(runs, {}, ""), "outcomes"))) {
    if (e.tag == "text" && e.attributes.contains("class") && e.attributes.at("class") == "bold")
      heads.push_back(e.text);
  }
  CHECK(heads == std::vector<std::string>{"budget 10%", "budget 25%", "other budgets"});
  // One series of twenty has a third budget: the bounds' lines end before it.
  runs.push_back(run("stack-0", 60, 30));
  for (const Element& e : parse(section(html_report(runs, {}, ""), "speed"))) {
    if (e.tag != "path" || !e.attributes.at("class").starts_with("bound")) continue;
    CHECK(std::count(e.attributes.at("d").begin(), e.attributes.at("d").end(), 'L') == 1);
  }
}

TEST_CASE("report: a run stands at the budget that was asked for, not at what its stack built") {
  auto asked = [](const std::string& stack, double percent, double built) {
    Json r = run(stack, built, 10);
    r["budget_asked_bytes"] = percent * 1e6;
    r["budget_asked_percent"] = percent;
    return r;
  };
  std::vector<Json> runs;
  for (const double percent : {10., 25., 300.}) {
    runs.push_back(asked("lru", percent, std::min(percent, 100.)));
    runs.push_back(asked("on-demand", percent, 3));
    runs.push_back(asked("resident", percent, 100));  // whatever the budget
  }
  const std::string page = html_report(runs, {}, ""), speed = section(page, "speed");
  for (const std::string stack : {"lru", "on-demand"}) {
    for (const std::string budget : {"10%", "25%", "100%"}) {  // all experts are the most that helps
      CHECK(count(speed, "<title>" + stack + " @ " + budget + ":") == 1);
    }
  }
  CHECK(count(speed, "<title>resident @ 100%:") == 3);
  CHECK(count(section(page, "runs"), "data-v=\"2.86102\"") == 3);  // MiB that on-demand built
}

TEST_CASE("report: parameters that were tried are series of one chart, unless they are too many") {
  std::vector<Json> runs = {run("lru", 25, 10), run("lru", 50, 12)};
  for (const double depth : {1., 2.}) {
    for (const double percent : {25., 50.}) {
      runs.push_back(run("fate", percent, 10 * depth));
      runs.back()["parameters"] = {{"depth", depth}};
    }
  }
  const std::string together = html_report(runs, {}, "");
  CHECK(count(section(together, "speed"), "<svg class=\"chart\"") == 1);
  CHECK(together.find("<title>fate, depth = 2.0</title>") != together.npos);
  CHECK(together.find("<title>lru</title>") != together.npos);
  runs.clear();
  for (int i = 0; i < 41; ++i) {
    runs.push_back(run("fate", 25, 10));
    runs.back()["parameters"] = {{"depth", i % 41}};
  }
  CHECK(count(section(html_report(runs, {}, ""), "speed"), "<svg class=\"chart\"") == 12);
}

TEST_CASE("report: what was made up for a run is said, and tells runs of one stack apart") {
  std::vector<Json> runs = {run("lru", 25, 10), run("fate", 25, 12), run("fate", 25, 15)};
  runs[1]["assumed"] = {{"recall_top_k", 0.5}, {"recall_candidates", 0.75}, {"seed", 1}, {"what", {"predicted"}}};
  const std::string one = html_report({runs[0], runs[1]}, {}, "");
  CHECK(one.find("<dt>Made up</dt><dd>fate, recall assumed: 0.5, 0.75</dd>") != one.npos);
  CHECK(count(section(one, "speed"), "<svg class=\"chart\"") == 1);  // comparable with what reads nothing of it
  runs[2]["assumed"] = {{"recall_top_k", 0.9}, {"recall_candidates", 1}};
  const std::string two = html_report(runs, {}, "");
  CHECK(two.find("fate, recall assumed: 0.5, 0.75</") != two.npos);
  CHECK(two.find("fate, recall assumed: 0.9, 1</") != two.npos);
  CHECK(html_report({runs[0]}, {}, "").find("Made up") == std::string::npos);
}

TEST_CASE("a table says where more knowledge makes a stack slower") {
  RunReport r;
  r.stack = "hybrimoe";
  r.generated.decode_steps = 10;
  r.generated.decode_s = 1;
  r.simulated.emplace();
  const std::string note = "knowing more makes a step slower here";
  CHECK(to_table({r}, 80).find(note) == std::string::npos);
  r.simulated->perfect_prediction = SimulatedFacts::Other{0.099, 1};
  CHECK(to_table({r}, 80).find(note) == std::string::npos);
  r.simulated->belady_cache = SimulatedFacts::Other{0.101, 1};
  CHECK(to_table({r}, 80).find("hybrimoe: " + note) != std::string::npos);
}

TEST_CASE("report: cells that a sweep refused are named and not drawn") {
  std::vector<Json> runs = sweep();
  runs.push_back({{"stack", "tiny"}, {"refused", "2 slots are too few"}});
  const std::string page = html_report(runs, {}, "");
  CHECK(page.find("<dt>Refused</dt><dd>tiny: 2 slots are too few</dd>") != page.npos);
  CHECK(page.find("<dt>Runs</dt><dd>9</dd>") != page.npos);
  CHECK(count(page, "<tr>") == 10);
}

TEST_CASE("report: a timeline shows its spans in microseconds from 0 to the last end") {
  const auto all = parse(html_report({}, lanes(), ""));
  const auto view =
      std::find_if(all.begin(), all.end(), [](const Element& e) { return e.tag == "svg" && e.parent == "svg"; });
  REQUIRE(view != all.end());
  CHECK(view->attributes.at("viewBox") == "0 0 5.000 132");
  const auto copy = with_tip(all, "demand, expert 12 of layer 3, int4: 2.2 µs, from 1.500 µs");
  REQUIRE(copy.size() == 1);
  CHECK(copy[0].attributes.at("x") == "1.500");
  CHECK(copy[0].attributes.at("width") == "2.250");
  const auto device = with_tip(all, "attention, gate: 1.5 µs"), host = with_tip(all, "decide: 4.0 µs");
  REQUIRE(device.size() == 1);
  REQUIRE(host.size() == 1);
  CHECK(copy[0].number("y") - device[0].number("y") == 44);  // lanes
  CHECK(host[0].number("y") - copy[0].number("y") == 44);

  Json many = Json::array();
  for (int i = 0; i < 6001; ++i) many.push_back(span(0, "expert", i, 1));
  many.push_back(span(9, "expert", 0, 1));  // no lane of ours
  many.push_back(span(0, "expert", -1, 1));
  many.push_back(span(0, "expert", std::numeric_limits<double>::infinity(), 1));
  const std::string page = html_report({}, {{"long", many}}, "");
  CHECK(count(page, "<title>expert: 1.0") == 6000);
  CHECK(page.find("Later spans left out: 1<") != page.npos);
  CHECK(sections(html_report({}, {{"empty", Json::array()}}, "")).empty());
}

}  // namespace
