/// @file
/// Scalable vector graphics inside HTML: text that is safe there, numbers that people read, scales and a writer.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/json.hpp"

namespace ferry::engine::html {

/// Text for HTML, in elements and in quoted attributes: markup characters become entities; control characters and what
/// is no UTF-8 become U+FFFD.
inline std::string escape(const std::string& text) {
  // The JSON writer repairs UTF-8.
  const auto utf8 = Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
  std::string out;
  for (const char c : utf8) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += "\xEF\xBF\xBD";
        } else {
          out += c;
        }
    }
  }
  return out;
}

/// At most so many characters; the last is an ellipsis if some were cut.
inline std::string shorten(const std::string& text, std::size_t most) {
  std::size_t count = 0, cut = 0;  // cut: where the last character that stays ends
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80) continue;
    if (++count == most) cut = i;
    if (count > most) return text.substr(0, cut) + "…";
  }
  return text;
}

/// A number with commas between thousands; beyond a billion with an exponent.
inline std::string number(double v, int decimals) {
  if (!std::isfinite(v)) return "–";
  if (std::abs(v) >= 1e9) return fmt::format("{:.2e}", v);
  std::string s = fmt::format("{:.{}f}", std::abs(v), decimals);
  for (auto i = std::min(s.find('.'), s.size()); i > 3; i -= 3) s.insert(i - 3, ",");
  return s.find_first_of("123456789") != std::string::npos && v < 0 ? "−" + s : s;
}

/// Decimals with which such a number shows three digits.
inline int decimals_for(double v) {
  return v >= 100 ? 0 : v >= 10 ? 1 : 2;
}

struct Unit {
  const char* name;
  double size;
};
inline Unit time_unit(double largest_s) {
  return largest_s >= 1 ? Unit{"s", 1} : largest_s >= 1e-3 ? Unit{"ms", 1e-3} : Unit{"µs", 1e-6};
}
inline Unit byte_unit(double largest) {
  constexpr double ki = 1024;
  return largest >= ki * ki * ki ? Unit{"GiB", ki * ki * ki}
         : largest >= ki * ki    ? Unit{"MiB", ki * ki}
                                 : Unit{"KiB", ki};
}

/// The numbers from `low` to `high` at `from` to `to` (pixels), evenly or by their logarithms.
struct Scale {
  double low = 0, high = 1, from = 0, to = 1;
  bool log = false;
  int wanted = 5;  ///< ticks, about

  /// Ends on round numbers (1, 2, 5 times a power of ten).
  static Scale from_zero(double most, double from, double to, int ticks = 5) {
    if (!(most > 0)) most = 1;
    const double s = step(most, ticks);
    return {0, std::ceil(most / s - 1e-9) * s, from, to, false, ticks};
  }
  static Scale logarithmic(double least, double most, double from, double to) {
    double low = 0, high = 0;
    for (double decade = std::pow(10, std::floor(std::log10(least))); low == 0 || high == 0; decade *= 10) {
      for (const double v : {1., 2., 5.}) {
        if (v * decade <= least * 1.0001) low = v * decade;
        if (high == 0 && v * decade >= most * 0.9999) high = v * decade;
      }
    }
    return {low, std::max(high, low * 10), from, to, true, 5};
  }
  /// From zero if the numbers are of one size, by logarithms if not: six decades at most.
  static Scale fitting(double least, double most, double from, double to, int ticks = 5) {
    return least > 0 && most > 25 * least ? logarithmic(std::max(least, most * 1e-6), most, from, to)
                                          : from_zero(most, from, to, ticks);
  }

  /// Numbers beyond the ends are put there.
  [[nodiscard]] double operator()(double v) const {
    v = std::isnan(v) ? low : std::clamp(v, low, high);
    const double part = log ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
    return from + part * (to - from);
  }

  [[nodiscard]] std::vector<double> ticks() const {
    std::vector<double> out;
    if (!log) {
      const double s = step(high - low, wanted);
      for (int i = 0; low + i * s <= high + s * 1e-6; ++i) out.push_back(low + i * s);
      return out;
    }
    const bool every = std::log10(high / low) <= 3;  // 1, 2, 5 and not only 1
    for (double decade = std::pow(10, std::floor(std::log10(low) + 1e-9)); decade <= high * 1.0001; decade *= 10) {
      for (const double v : {1., 2., 5.}) {
        if (v * decade >= low * 0.9999 && v * decade <= high * 1.0001 && (every || v == 1)) out.push_back(v * decade);
      }
    }
    return out;
  }
  [[nodiscard]] std::string label(double tick) const {
    const double s = log ? tick : step(high - low, wanted);
    return number(tick, std::clamp(static_cast<int>(std::ceil(-std::log10(s) - 1e-9)), 0, 9));
  }

 private:
  static double step(double range, int ticks) {
    const double raw = range / ticks, decade = std::pow(10, std::floor(std::log10(raw)));
    for (const double v : {1., 2., 5.}) {
      if (v * decade >= raw * 0.999) return v * decade;
    }
    return 10 * decade;
  }
};

/// Coordinates: a tenth of a pixel, and never far outside the picture.
inline std::string px(double v) {
  if (!std::isfinite(v)) v = 0;
  std::string s = fmt::format("{:.1f}", std::clamp(v, -1e5, 1e5));
  if (s.ends_with(".0")) s.resize(s.size() - 2);
  return s == "-0" ? "0" : s;
}

/// Writes one picture. Texts are escaped here; `attributes` are ours.
class Svg {
 public:
  void rect(double x, double y, double w, double h, std::string_view attributes, const std::string& tip = {}) {
    element("rect",
            fmt::format("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", px(x), px(y), px(std::max(w, 0.)), px(h)),
            attributes, tip);
  }
  void line(double x1, double y1, double x2, double y2, std::string_view attributes) {
    element("line", fmt::format("x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"", px(x1), px(y1), px(x2), px(y2)), attributes,
            {});
  }
  void path(const std::string& d, std::string_view attributes, const std::string& tip = {}) {
    element("path", "d=\"" + d + '"', attributes, tip);
  }
  void text(double x, double y, const std::string& text, std::string_view attributes = {}) {
    if (text.empty()) return;
    body_ += fmt::format("<text x=\"{}\" y=\"{}\" {}>{}</text>\n", px(x), px(y), attributes, escape(text));
  }
  void open(std::string_view attributes, const std::string& tip = {}) {
    body_ += fmt::format("<g {}>{}\n", attributes, title(tip));
  }
  void close() { body_ += "</g>\n"; }
  /// A picture within the picture whose x runs from 0 to `end`.
  void open_view(double x, double y, double w, double h, double end) {
    body_ += fmt::format(
        "<svg x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {:.3f} {}\" preserveAspectRatio=\"none\">\n",
        px(x), px(y), px(w), px(h), end, px(h));
  }
  /// A rectangle in there: three decimals.
  void span(double x, double y, double w, double h, std::string_view attributes, const std::string& tip) {
    element("rect", fmt::format("x=\"{:.3f}\" y=\"{}\" width=\"{:.3f}\" height=\"{}\"", x, px(y), w, px(h)), attributes,
            tip);
  }
  void close_view() { body_ += "</svg>\n"; }

  /// A marker of series `index`: four shapes.
  void marker(std::size_t shape, double x, double y, std::string_view attributes, const std::string& tip = {}) {
    static constexpr const char* shapes[] = {"m-3.8,0a3.8,3.8 0 1,0 7.6,0a3.8,3.8 0 1,0 -7.6,0z", "m-3.5,-3.5h7v7h-7z",
                                             "m0,-4.6l4.4,8h-8.8z", "m0,-5l4.6,5l-4.6,5l-4.6,-5z"};
    path(fmt::format("M{},{}{}", px(x), px(y), shapes[shape % 4]), attributes, tip);
  }

  /// A picture beside its text, for nobody to read aloud.
  [[nodiscard]] std::string icon(double width, double height) const {
    return fmt::format("<svg aria-hidden=\"true\" width=\"{}\" height=\"{}\">{}</svg>", px(width), px(height), body_);
  }
  /// The whole picture; `title` and `description` are for those who do not see it.
  [[nodiscard]] std::string finish(double width, double height, const std::string& title,
                                   const std::string& description) const {
    return fmt::format(
        "<svg class=\"chart\" role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {1} {2}\" width=\"{1}\" height=\"{2}\">"
        "<title>{0}</title><desc>{3}</desc>\n{4}</svg>\n",
        escape(title), px(width), px(height), escape(description), body_);
  }

 private:
  static std::string title(const std::string& tip) { return tip.empty() ? "" : "<title>" + escape(tip) + "</title>"; }
  void element(const char* tag, const std::string& geometry, std::string_view attributes, const std::string& tip) {
    body_ += fmt::format("<{} {} {}", tag, geometry, attributes);
    body_ += tip.empty() ? "/>\n" : fmt::format(">{}</{}>\n", title(tip), tag);
  }
  std::string body_;
};

}  // namespace ferry::engine::html
