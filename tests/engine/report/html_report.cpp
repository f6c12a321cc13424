// The report's page is whole, harmless whatever the JSON says, and has the numbers that its script draws. What the script makes
// of them is read back in a browser (tests/report/try_report.py).
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

#include "report/html_text.hpp"
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

/// Reads a page as strictly as XML, except for its style and script, and returns its elements in the order in which they close.
/// Throws what is wrong.
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

/// What the script and other programs read.
Json data(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = page.find(begin) + begin.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

/// Tables whose title begins so.
std::vector<Json> tables(const std::string& page, const std::string& title) {
  std::vector<Json> found;
  const Json all = data(page);
  for (const Json& t : all["tables"]) {
    if (t["title"].get<std::string>().starts_with(title)) found.push_back(t);
  }
  return found;
}

Json table(const std::string& page, const std::string& title) {
  const auto found = tables(page, title);
  REQUIRE(found.size() == 1);
  return found[0];
}

/// The rows that begin with this name.
std::vector<Json> rows(const Json& table, const std::string& name) {
  std::vector<Json> found;
  for (const Json& row : table["rows"]) {
    if (row[0] == name) found.push_back(row);
  }
  return found;
}

std::vector<std::string> names(const Json& table) {
  std::vector<std::string> all;
  for (const Json& row : table["rows"]) all.push_back(row[0]);
  return all;
}

/// The cells of a run's row by the names of their columns.
std::map<std::string, Json> cells(const Json& table, const std::string& name) {
  const auto found = rows(table, name);
  REQUIRE(found.size() == 1);
  std::map<std::string, Json> by_name;
  for (std::size_t c = 0; c < table["columns"].size(); ++c) by_name[table["columns"][c]["name"]] = found[0][c];
  return by_name;
}

void check_numbers(const Json& row, const std::vector<double>& expected) {
  REQUIRE(row.size() == expected.size() + 1);
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(row[i + 1].get<double>() == doctest::Approx(expected[i]));
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
  // Nothing could be fetched: the only address is in the notice of Chart.js.
  const std::size_t library = page.find("<script>\n/*!");
  REQUIRE(library != page.npos);
  const std::size_t after = page.find("</script>", library);
  const std::string own = page.substr(0, library) + page.substr(after);
  for (const char* word : {"http:", "https:", "//cdn", "src=", "@import", "url(", "<link", "<img", "fetch("}) {
    CAPTURE(word);
    CHECK(own.find(word) == own.npos);
  }
  CHECK(page.substr(library, 300).find("Chart.js v") != page.npos);
  CHECK(own.find("Permission is hereby granted, free of charge") != own.npos);
  std::size_t charts = 0;
  for (const Element& e : parse(page)) {
    if (e.tag == "canvas") CHECK(!e.attributes.at("aria-label").empty());
    charts += e.tag == "canvas" ? 1 : 0;
  }
  CHECK(charts == data(page)["tables"].size() - 1);  // the list of all runs is only a table
  CHECK(count(page, "<table>") == charts + 1);       // also without the script
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

  // Without times by phase the whole run's are shown, and without those nothing.
  for (Json& r : runs) r.erase("time");
  CHECK(tables(html_report(runs, {}, ""), "Time of the whole run").size() == 1);
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
  CHECK(count(page, "<script>") == 2);   // Chart.js and ours
  CHECK(count(page, "</script>") == 4);  // data and licence
  CHECK(data(page)["title"] == evil);
  CHECK(tables(page, "Timeline: " + evil).size() == 1);
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
}

TEST_CASE("report: lines are speeds by budget, and so are bounds") {
  // All resident is 0.0125, 0.011 and 0.01 s a token for the three stacks: 80, 90.9 and 100 tokens/s. Clairvoyant is
  // 0.0125 s for all. The runs do 20, 35 and 60.
  std::vector<Json> runs = sweep();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i]["bounds"]["all_resident_tpot_s"] = std::array{0.0125, 0.011, 0.01}[i % 3];
    runs[i]["bytes_by_precision"] = {{"full", 1000}};
    runs[i]["decode"]["host_computed"] = 0;
  }
  const Json speed = table(html_report(runs, {}, ""), "Speed against budget");
  CHECK(speed["kind"] == "lines");
  CHECK_FALSE(speed["scale"].contains("log"));
  const auto fate = rows(speed, "fate");
  REQUIRE(fate.size() == 3);
  check_numbers(fate[0], {10, 20, 80});
  check_numbers(fate[1], {25, 35, 80});
  check_numbers(fate[2], {50, 60, 80});
  // "All resident" is one level line for all. The bound that depends on a stack's own uses stands at each of its points.
  const auto level = rows(speed, "bound: all resident");
  REQUIRE(level.size() == 1);
  CHECK(level[0][1].is_null());
  CHECK(level[0][2].get<double>() == doctest::Approx(1 / 0.011));  // the median
  CHECK(speed["looks"].size() == 3);
  // A slow one: 60 is more than 25 times 2.
  runs[0] = run("lru", 10, 2);
  const Json wide = table(html_report(runs, {}, ""), "Speed against budget");
  CHECK(wide["scale"]["log"] == true);
  CHECK(wide["scale"]["min"].get<double>() == doctest::Approx(2));
}

TEST_CASE("report: no stack stands above its own bound, whatever others hold") {
  // fate copies INT4 and runs at 60 tokens/s. A stack that holds full precision could not: its bound is 30.
  Json fate = run("fate", 25, 60), lru = run("lru", 25, 20), small = run("lru", 50, 25), half = run("fate", 50, 70);
  for (Json* r : {&fate, &half}) {
    (*r)["bytes_by_precision"] = {{"int4", 1000}};
    (*r)["bounds"] = {{"clairvoyant_tpot_s", 0.0125}, {"all_resident_tpot_s", 0.0125}};
  }
  for (Json* r : {&lru, &small}) {
    (*r)["bytes_by_precision"] = {{"full", 1000}};
    (*r)["bounds"] = {{"clairvoyant_tpot_s", 1.0 / 30}, {"all_resident_tpot_s", 1.0 / 30}};
  }
  const Json speed = table(html_report({fate, lru, small, half}, {}, ""), "Speed against budget");
  const auto of_fate = rows(speed, "fate"), of_lru = rows(speed, "lru");
  REQUIRE(of_fate.size() == 2);
  REQUIRE(of_lru.size() == 2);
  check_numbers(of_fate[0], {25, 60, 80});
  check_numbers(of_fate[1], {50, 70, 80});
  check_numbers(of_lru[0], {25, 20, 30});
  check_numbers(of_lru[1], {50, 25, 30});
}

TEST_CASE("report: runs of one name are told apart, and every chart has one order of rows") {
  std::vector<Json> runs = {run("lru", 25, 20), run("fate", 25, 50), run("lru", 25, 30)};
  for (Json& r : runs) r["costs"] = "effective";
  const std::string page = html_report(runs, {}, "");
  CHECK(page.find("lru (2)") != std::string::npos);
  CHECK(page.find("<dt>Costs</dt><dd>effective</dd>") != std::string::npos);
  for (const char* chart : {"Tokens a second", "Outcomes", "Hit rate by layer", "Time of decode"}) {
    CAPTURE(chart);
    CHECK(names(table(page, chart)) == std::vector<std::string>{"fate", "lru (2)", "lru"});
  }
}

TEST_CASE("report: with one budget there are bars, the fastest first") {
  const Json speed = table(html_report({run("lru", 25, 20), run("fate", 25, 50)}, {}, ""), "Tokens a second");
  CHECK(names(speed) == std::vector<std::string>{"fate", "lru"});
  // 0.01, 0.0125 and 0.012 s a token.
  check_numbers(speed["rows"][0], {50, 100, 80, 1 / 0.012});
  check_numbers(speed["rows"][1], {20, 100, 80, 1 / 0.012});
  CHECK(speed["columns"][1]["draw"] == "bar");
  CHECK(speed["scale"]["reach"] == 100);
}

TEST_CASE("report: stacked bars add up") {
  const std::string page = html_report({run("lru", 25, 10)}, {}, "");
  // 400 requests: 300, 40, 30, 10, 5, 15 of them.
  auto part = cells(table(page, "Outcomes"), "lru");
  const std::map<std::string, double> shares = {{"hit", 75},          {"late hit", 10},  {"miss", 7.5},
                                                {"substituted", 2.5}, {"skipped", 1.25}, {"on the host", 3.75}};
  for (const auto& [name, percent] : shares) CHECK(part[name].get<double>() == doctest::Approx(percent));
  CHECK(part.size() == shares.size() + 1);
  // 100 ms a token: 50 stalled, 25 waiting, the rest computing; the link is busy for 80.
  const Json time = table(page, "Time of decode");
  CHECK(time["unit"] == "ms");
  check_numbers(time["rows"][0], {25, 50, 25, 0, 80});
  // 400 MiB over 200 tokens.
  const Json bytes = table(page, "Bytes by precision");
  CHECK(bytes["unit"] == "MiB");
  check_numbers(bytes["rows"][0], {0, 0.5, 0, 1.5});
  // A bar that is far longer than the others is cut; its table has the number.
  std::vector<Json> many;
  for (int i = 0; i < 8; ++i) many.push_back(run(fmt::format("stack-{}", i), 25, i == 0 ? 1 : 10));
  const std::string long_one = html_report(many, {}, "");
  const Json cut = table(long_one, "Time of decode");
  CHECK(cut["scale"]["max"].get<double>() == doctest::Approx(130));  // 1.3 times 100 ms
  check_numbers(rows(cut, "stack-0").at(0), {250, 500, 250, 0, 800});
  CHECK(section(long_one, "time").find("ends at the edge") != std::string::npos);
}

TEST_CASE("report: hit rates, recall and lost time are those of the run") {
  const std::string page = html_report({run("lru", 25, 10)}, {}, "");
  check_numbers(table(page, "Hit rate by layer")["rows"][0], {0, 50, 100});
  Json dense_first = run("lru", 25, 10);  // a layer without experts
  dense_first["hit_rate_by_layer"] = {nullptr, 0.5, 1.0};
  const Json layers = table(html_report({dense_first}, {}, ""), "Hit rate by layer");
  CHECK(layers["columns"].size() == 3);
  CHECK(layers["columns"][1]["name"] == "1");
  const Json recall = table(page, "Recall by layer");
  CHECK(recall["rows"] == Json::parse("[[0,null,null],[1,50.0,null],[2,100.0,25.0]]"));
  CHECK(recall["columns"][1]["name"] == "1 layer ahead");
  CHECK(recall["columns"][2]["name"] == "2 layers ahead");
  const Json lost = table(page, "Which policy loses the time");
  CHECK(lost["unit"] == "ms");
  auto by_name = cells(lost, "lru");
  CHECK(by_name["as it is"].get<double>() == doctest::Approx(100));
  CHECK(by_name["with perfect prediction"].get<double>() == doctest::Approx(50));
  CHECK(by_name["with Belady's cache"].get<double>() == doctest::Approx(100 / 1.5));
  CHECK(by_name["the clairvoyant bound"].get<double>() == doctest::Approx(12));
  CHECK(by_name["with both"].is_null());
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
  // With host computation the bound with a host counts: 0.1 s over 0.012 s. Without it, it is 0.1 over 0.0125.
  Json alone = run("lru", 25, 10);
  alone["decode"]["host_computed"] = 0;
  const std::string page = section(html_report({alone}, {}, ""), "runs");
  CHECK(page.find("<td>8.00</td>") != page.npos);
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
  CHECK(message([] {
          html_report({run("lru", 25, 10), 7}, {}, "", {"a.json: run", "b.json: runs[0]"});
        }) == "b.json: runs[0]: expected a JSON object");
  Timelines all = lanes();
  all.push_back(all[0]);
  all[1].second["traceEvents"][2]["ts"] = "soon";
  all[1].first = "later.json";
  CHECK(message([&] { html_report({}, all, ""); }) ==
        "later.json: timeline.traceEvents[2]: field \"ts\": expected a number, got \"soon\"");
  CHECK(message([] {
          html_report({}, {{"x", Json::object()}}, "");
        }) == "x: timeline: field \"traceEvents\" is missing");
  CHECK(message([] { html_report({}, {{"x", 7}}, ""); }) == "x: timeline: expected a JSON object");
}

TEST_CASE("report: numbers that cannot be leave the page whole") {
  // Each number of a run in turn gets every kind of absurd value, beside runs that are sound.
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
      CHECK_NOTHROW(parse(page));
      std::size_t broken = 0;
      const Json all = data(page);
      for (const Json& t : all["tables"]) {
        for (const Json& row : t["rows"]) {
          broken += row.size() == t["columns"].size() ? 0 : 1;
          // Of numbers JSON has finite ones only.
          for (const Json& cell : row) broken += cell.is_number() && !(cell.get<double>() >= 0) ? 1 : 0;
        }
        for (const Json& end : t["scale"]) broken += end.is_null() || end == 0 ? 1 : 0;
      }
      CHECK(broken == 0);
      CHECK(table(page, "All runs")["rows"].size() == 3);
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
  CHECK(table(page, "All runs")["rows"].size() == 500);
  CHECK(count(section(page, "runs"), "<tr>") == 501);
  CHECK(page.find("Slower series that only the table has: 60<") != page.npos);
  CHECK(page.find("Runs that only the table has: 200<") != page.npos);  // 40 of 100 stacks, five budgets each
  CHECK(page.size() < 3'000'000);

  runs.clear();
  for (int i = 0; i < 61; ++i) runs.push_back(run(fmt::format("stack-{}", i), 25, 10));
  const std::string bars = html_report(runs, {}, "");
  CHECK(table(bars, "Tokens a second")["rows"].size() == 60);
  CHECK(section(bars, "speed").find("Runs that only the table has: 1<") != std::string::npos);

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
  std::vector<std::size_t> sizes;
  const std::string page = html_report(runs, {}, "");
  for (const Json& t : tables(page, "Outcomes")) {
    heads.push_back(t["heading"]);
    sizes.push_back(t["rows"].size());
    CHECK(section(page, "outcomes").find("<figcaption>" + heads.back() + "</figcaption>") != std::string::npos);
  }
  CHECK(heads == std::vector<std::string>{"budget 10%", "budget 25%", "other budgets"});
  CHECK(sizes == std::vector<std::size_t>{20, 20, 10});
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
  const std::string page = html_report(runs, {}, "");
  const Json speed = table(page, "Speed against budget"), all = table(page, "All runs");
  auto budgets = [&](const std::string& stack) {
    std::vector<double> of;
    for (const Json& row : rows(speed, stack)) of.push_back(row[1]);
    return of;
  };
  for (const std::string stack : {"lru", "on-demand"}) {
    CHECK(budgets(stack) == std::vector<double>{10, 25, 100});  // all experts are the most that helps
  }
  CHECK(budgets("resident") == std::vector<double>{100, 100, 100});
  for (const Json& row : rows(all, "on-demand")) CHECK(row[3].get<double>() == doctest::Approx(3e6 / (1 << 20)));
  CHECK(all["columns"][3]["name"] == "Built, MiB");
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
  const Json speed = table(together, "Speed against budget");
  CHECK(rows(speed, "fate, depth = 2.0").size() == 2);
  CHECK(rows(speed, "lru").size() == 2);
  runs.clear();
  for (int i = 0; i < 41; ++i) {
    runs.push_back(run("fate", 25, 10));
    runs.back()["parameters"] = {{"depth", i % 41}};
  }
  CHECK(tables(html_report(runs, {}, ""), "Tokens a second").size() == 12);
}

TEST_CASE("report: what was made up for a run is said, and tells runs of one stack apart") {
  std::vector<Json> runs = {run("lru", 25, 10), run("fate", 25, 12), run("fate", 25, 15)};
  runs[1]["assumed"] = {{"recall_top_k", 0.5}, {"recall_candidates", 0.75}, {"seed", 1}, {"what", {"predicted"}}};
  const std::string one = html_report({runs[0], runs[1]}, {}, "");
  CHECK(one.find("<dt>Made up</dt><dd>fate, recall assumed: 0.5, 0.75</dd>") != one.npos);
  CHECK(tables(one, "Tokens a second").size() == 1);  // comparable with runs that do not read what was made up
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
  CHECK(table(page, "All runs")["rows"].size() == 9);
  CHECK(data(page)["facts"]["Refused"] == Json::parse(R"(["tiny: 2 slots are too few"])"));
}

TEST_CASE("report: a timeline shows its spans in microseconds from 0 to the last end") {
  const Json shown = table(html_report({}, lanes(), ""), "Timeline: first tokens");
  CHECK(shown["rows"] == Json::parse(R"([
      ["device", "attention, gate", "attention, gate", 0.0, 1.5],
      ["host", "deciding", "decide", 1.0, 4.0],
      ["link", "demand copy", "demand, expert 12 of layer 3, int4", 1.5, 2.25]])"));
  CHECK(shown["looks"].size() == 3);

  Json many = Json::array();
  for (int i = 0; i < 6001; ++i) many.push_back(span(0, "expert", i, 1));
  many.push_back(span(9, "expert", 0, 1));  // no lane of ours
  many.push_back(span(0, "expert", -1, 1));
  many.push_back(span(0, "expert", std::numeric_limits<double>::infinity(), 1));
  const std::string page = html_report({}, {{"long", many}}, "");
  CHECK(table(page, "Timeline: long")["rows"].size() == 6000);
  CHECK(page.find("Later spans left out: 1<") != page.npos);
  CHECK(sections(html_report({}, {{"empty", Json::array()}}, "")).empty());
}

}  // namespace
