/// @file
/// A page of tables: each stands in it as HTML and as JSON, from which the page's script draws a chart over it.
#pragma once
#include <string>
#include <vector>

#include "support/json.hpp"

namespace ferry::engine::html {

struct Column {
  std::string name;
  std::string draw{};    ///< of "rows": "bar" (they are stacked), "thin" (a bar below), or the shape of a mark
  std::string colour{};  ///< a variable of page.css
  int decimals = -1;     ///< of its cells; -1: as suits the median
};

/// Numbers and how they are drawn.
struct Table {
  /// What page.js makes of the rows; empty: nothing.
  /// "lines":    series, x, y, y of a mark; a row without x is a level line
  /// "curves":   x, y, y, ...
  /// "rows":     name, bars and marks
  /// "heat":     name, shares in percent
  /// "timeline": lane, kind, what, begin, length, in microseconds
  std::string kind;
  std::string title;    ///< for those who do not see it
  std::string heading;  ///< above it; empty: none
  std::string x, y;     ///< what is on the axes
  std::string unit;     ///< of what is drawn
  std::vector<Column> columns;
  std::vector<Json> rows;       ///< an array each: for every column a number, a string or null
  Json scale = Json::object();  ///< of the numbers: "log"; "min" and "max", where it ends, "reach", what it must hold
  Json looks = Json::object();  ///< of "lines" and "timeline": a number or colour for each series or kind
};

/// Collects tables and sections. `content` is HTML: what `figure` and `figures` return.
class Page {
 public:
  /// A chart and the table below it, which is folded if it is long or not alone.
  std::string figure(const Table& table, bool alone = true);
  /// Beside each other where there is room.
  std::string figures(const std::vector<Table>& tables);
  /// Nothing if there is no content.
  void section(const std::string& id, const std::string& head, const std::string& about, const std::string& content);
  /// The whole page. `facts`: names and texts.
  [[nodiscard]] std::string finish(const std::string& title,
                                   const std::vector<std::pair<std::string, std::vector<std::string>>>& facts) const;

 private:
  Json tables_ = Json::array();
  std::string links_, body_;
};

}  // namespace ferry::engine::html
