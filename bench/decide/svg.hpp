/// @file
/// Logarithmic axes and a writer of scalable vector graphics, for a picture in a document.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "report/html_text.hpp"

namespace ferry::bench {

/// Maps the numbers from `low` to `high` to pixels from `from` to `to`, by their logarithms.
struct LogScale {
  double low = 1, high = 10, from = 0, to = 1;

  /// Ends on round numbers (1, 2, 5 times a power of ten).
  static LogScale around(double least, double most, double from, double to) {
    double low = 0, high = 0;
    for (double decade = std::pow(10, std::floor(std::log10(least))); low == 0 || high == 0; decade *= 10) {
      for (const double v : {1., 2., 5.}) {
        if (v * decade <= least * 1.0001) low = v * decade;
        if (high == 0 && v * decade >= most * 0.9999) high = v * decade;
      }
    }
    return {low, std::max(high, low * 10), from, to};
  }
  /// Clamps numbers beyond the ends.
  [[nodiscard]] double operator()(double v) const {
    return from + std::log(std::clamp(v, low, high) / low) / std::log(high / low) * (to - from);
  }
  [[nodiscard]] std::vector<double> ticks() const {
    std::vector<double> out;
    const bool every = std::log10(high / low) <= 3;  // 1, 2, 5 and not only 1
    for (double decade = std::pow(10, std::floor(std::log10(low) + 1e-9)); decade <= high * 1.0001; decade *= 10) {
      for (const double v : {1., 2., 5.}) {
        if (v * decade >= low * 0.9999 && v * decade <= high * 1.0001 && (every || v == 1)) out.push_back(v * decade);
      }
    }
    return out;
  }
  [[nodiscard]] static std::string label(double tick) {
    return engine::html::number(tick, std::clamp(static_cast<int>(std::ceil(-std::log10(tick) - 1e-9)), 0, 9));
  }
};

/// A coordinate: a tenth of a pixel.
inline std::string px(double v) {
  std::string s = fmt::format("{:.1f}", v);
  if (s.ends_with(".0")) s.resize(s.size() - 2);
  return s == "-0" ? "0" : s;
}

/// Writes one picture. It escapes texts; `attributes` come from this program and stay as they are.
class Svg {
 public:
  void rect(double x, double y, double w, double h, std::string_view attributes) {
    body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}/>\n", px(x), px(y), px(w), px(h),
                         attributes);
  }
  void line(double x1, double y1, double x2, double y2, std::string_view attributes) {
    body_ +=
        fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", px(x1), px(y1), px(x2), px(y2), attributes);
  }
  void path(const std::string& d, std::string_view attributes, const std::string& tip = {}) {
    body_ += fmt::format("<path d=\"{}\" {}", d, attributes);
    body_ += tip.empty() ? "/>\n" : "><title>" + engine::html::escape(tip) + "</title></path>\n";
  }
  void text(double x, double y, const std::string& text, std::string_view attributes = {}) {
    body_ +=
        fmt::format("<text x=\"{}\" y=\"{}\" {}>{}</text>\n", px(x), px(y), attributes, engine::html::escape(text));
  }
  /// A marker of series `index`: four shapes.
  void marker(std::size_t index, double x, double y, std::string_view attributes, const std::string& tip = {}) {
    static constexpr const char* shapes[] = {"m-3.8,0a3.8,3.8 0 1,0 7.6,0a3.8,3.8 0 1,0 -7.6,0z", "m-3.5,-3.5h7v7h-7z",
                                             "m0,-4.6l4.4,8h-8.8z", "m0,-5l4.6,5l-4.6,5l-4.6,-5z"};
    path(fmt::format("M{},{}{}", px(x), px(y), shapes[index % 4]), attributes, tip);
  }
  /// The whole file. `title` and `description` are for readers who cannot see it.
  [[nodiscard]] std::string finish(double width, double height, const std::string& title,
                                   const std::string& description, std::string_view style) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {1} "
        "{2}\" width=\"{1}\" height=\"{2}\"><style>{5}</style><title>{0}</title><desc>{3}</desc>\n{4}</svg>\n",
        engine::html::escape(title), px(width), px(height), engine::html::escape(description), body_, style);
  }

 private:
  std::string body_;
};

}  // namespace ferry::bench
