#include "report/html_page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "ferry/macros.hpp"
#include "report/html_text.hpp"

// Files that are linked in (CMakeLists.txt).
extern "C" {
extern const char _binary_chart_js_start[], _binary_chart_js_end[];
extern const char _binary_page_html_start[], _binary_page_html_end[];
extern const char _binary_page_css_start[], _binary_page_css_end[];
extern const char _binary_page_js_start[], _binary_page_js_end[];
extern const char _binary_LICENSE_start[], _binary_LICENSE_end[];
}

namespace ferry::engine::html {
namespace {

constexpr std::size_t long_table = 8;  // rows

/// JSON for a script element, escaped so that no text in it can end the element or begin another.
std::string script_safe(const Json& json) {
  std::string out;
  for (const char c : json_text(json)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

Json to_json(const Table& t) {
  Json columns = Json::array();
  for (const Column& c : t.columns) {
    columns.push_back({{"name", c.name}});
    if (!c.draw.empty()) columns.back()["draw"] = c.draw;
    if (!c.colour.empty()) columns.back()["colour"] = c.colour;
  }
  return {{"kind", t.kind}, {"title", t.title},   {"heading", t.heading}, {"x", t.x},         {"y", t.y},
          {"unit", t.unit}, {"columns", columns}, {"rows", t.rows},       {"scale", t.scale}, {"looks", t.looks}};
}

int decimals_of(const Table& t, std::size_t column) {
  if (t.columns[column].decimals >= 0) return t.columns[column].decimals;
  std::vector<double> all;
  for (const Json& row : t.rows) {
    if (row[column].is_number() && row[column] > 0) all.push_back(row[column].get<double>());
  }
  if (all.empty()) return 0;
  const auto median = all.begin() + static_cast<std::ptrdiff_t>((all.size() - 1) / 2);
  std::nth_element(all.begin(), median, all.end());
  return decimals_for(*median);
}

std::string table_html(const Table& t) {
  std::string out = fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table>\n<thead><tr>", escape(t.title));
  std::vector<int> decimals;
  for (std::size_t c = 0; c < t.columns.size(); ++c) {
    const bool text = std::any_of(t.rows.begin(), t.rows.end(), [&](const Json& row) { return row[c].is_string(); });
    out += fmt::format("<th scope=\"col\"{}>{}</th>", text ? " class=\"text\"" : "", escape(t.columns[c].name));
    decimals.push_back(decimals_of(t, c));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const Json& row : t.rows) {
    out += "<tr>";
    for (std::size_t c = 0; c < t.columns.size(); ++c) {
      const Json& cell = row[c];
      out += cell.is_string()   ? "<td class=\"text\">" + escape(cell.get<std::string>()) + "</td>"
             : cell.is_number() ? "<td>" + number(cell.get<double>(), decimals[c]) + "</td>"
                                : "<td>–</td>";
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>";
}

}  // namespace

std::string Page::figure(const Table& t, bool alone) {
  std::string out = fmt::format("<figure data-table=\"{}\">", tables_.size());
  tables_.push_back(to_json(t));
  if (!t.heading.empty()) out += "<figcaption>" + escape(t.heading) + "</figcaption>";
  if (t.kind.empty()) return out + table_html(t) + "</figure>\n";
  return out + fmt::format(
                   "<div class=\"plot\"><canvas role=\"img\" aria-label=\"{}\"></canvas></div>\n"
                   "<details{}><summary>Table{}</summary>{}</details></figure>\n",
                   escape(t.title), alone && t.rows.size() < long_table ? " open=\"open\"" : "",
                   t.unit.empty() ? "" : ", in " + t.unit, table_html(t));
}

std::string Page::figures(const std::vector<Table>& tables) {
  std::string out;
  for (const Table& t : tables) out += figure(t, tables.size() == 1);
  return tables.size() < 2 ? out : "<div class=\"beside\">\n" + out + "</div>\n";
}

void Page::section(const std::string& id, const std::string& head, const std::string& about,
                   const std::string& content) {
  if (content.empty()) return;
  links_ += fmt::format("<a href=\"#{}\">{}</a>\n", id, head);
  body_ += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n{}</section>\n", id, head, about,
                       content);
}

std::string Page::finish(const std::string& title,
                         const std::vector<std::pair<std::string, std::vector<std::string>>>& facts) const {
  Json known = Json::object();
  std::string list = "<dl>\n";
  for (const auto& [name, texts] : facts) {
    known[name] = texts;
    list += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escape(fmt::format("{}", fmt::join(texts, "; "))));
  }
  list += "</dl>\n";
  const Json data = {{"title", title}, {"ferry", FERRY_VERSION}, {"facts", known}, {"tables", tables_}};
  using View = std::string_view;
  return fmt::format(
      fmt::runtime(View(_binary_page_html_start, _binary_page_html_end)), fmt::arg("title", escape(title)),
      fmt::arg("style", View(_binary_page_css_start, _binary_page_css_end)), fmt::arg("facts", list),
      fmt::arg("links", links_), fmt::arg("sections", body_), fmt::arg("version", FERRY_VERSION),
      fmt::arg("licence", View(_binary_LICENSE_start, _binary_LICENSE_end)), fmt::arg("data", script_safe(data)),
      fmt::arg("library", View(_binary_chart_js_start, _binary_chart_js_end)),
      fmt::arg("script", View(_binary_page_js_start, _binary_page_js_end)));
}

}  // namespace ferry::engine::html
