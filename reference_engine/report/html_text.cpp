#include "report/html_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "support/json.hpp"

namespace ferry::engine::html {

std::string escape(const std::string& text) {
  // The JSON writer repairs UTF-8.
  const auto utf8 = Json::parse(json_text(Json(text))).get<std::string>();
  static constexpr std::string_view markup = "<>&\"'";
  static constexpr const char* entities[] = {"&lt;", "&gt;", "&amp;", "&quot;", "&#39;"};
  std::string out;
  for (const char c : utf8) {
    if (const std::size_t at = markup.find(c); at != markup.npos) {
      out += entities[at];
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += "\xEF\xBF\xBD";
    } else {
      out += c;
    }
  }
  return out;
}

std::string shorten(const std::string& text, std::size_t most) {
  std::size_t count = 0, cut = 0;  // cut: where the last character that stays ends
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80) continue;
    if (++count == most) cut = i;
    if (count > most) return text.substr(0, cut) + "…";
  }
  return text;
}

std::string number(double v, int decimals) {
  if (!std::isfinite(v)) return "–";
  if (std::abs(v) >= 1e9) return fmt::format("{:.2e}", v);
  std::string s = fmt::format("{:.{}f}", std::abs(v), decimals);
  for (auto i = std::min(s.find('.'), s.size()); i > 3; i -= 3) s.insert(i - 3, ",");
  return s.find_first_of("123456789") != std::string::npos && v < 0 ? "−" + s : s;
}

}  // namespace ferry::engine::html
