#include "jinja/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "support/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

utf8proc_category_t category(std::uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

struct Range {
  std::uint32_t first, last;
};

template <std::size_t N>
bool within(const std::array<Range, N>& ranges, std::uint32_t c) {
  return std::any_of(ranges.begin(), ranges.end(), [c](const Range& r) { return c >= r.first && c <= r.last; });
}

/// Unicode's Other_Lowercase: lower case, but not of category Ll.
constexpr std::array<Range, 24> other_lower{
    {{0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
     {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
     {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
     {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
     {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}}};

/// Unicode's Other_Uppercase.
constexpr std::array<Range, 5> other_upper{
    {{0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}}};

struct Expansion {
  std::uint32_t small;
  std::u32string_view large;
};

/// Characters whose upper case is several characters, from Unicode's SpecialCasing. Most with an iota below follow a rule.
constexpr std::array<Expansion, 54> expansions{{
    {0xdf, U"SS"},
    {0x149, U"\u02bcN"},
    {0x1f0, U"J\u030c"},
    {0x390, U"\u0399\u0308\u0301"},
    {0x3b0, U"\u03a5\u0308\u0301"},
    {0x587, U"\u0535\u0552"},
    {0x1e96, U"H\u0331"},
    {0x1e97, U"T\u0308"},
    {0x1e98, U"W\u030a"},
    {0x1e99, U"Y\u030a"},
    {0x1e9a, U"A\u02be"},
    {0x1f50, U"\u03a5\u0313"},
    {0x1f52, U"\u03a5\u0313\u0300"},
    {0x1f54, U"\u03a5\u0313\u0301"},
    {0x1f56, U"\u03a5\u0313\u0342"},
    {0x1fb2, U"\u1fba\u0399"},
    {0x1fb3, U"\u0391\u0399"},
    {0x1fb4, U"\u0386\u0399"},
    {0x1fb6, U"\u0391\u0342"},
    {0x1fb7, U"\u0391\u0342\u0399"},
    {0x1fbc, U"\u0391\u0399"},
    {0x1fc2, U"\u1fca\u0399"},
    {0x1fc3, U"\u0397\u0399"},
    {0x1fc4, U"\u0389\u0399"},
    {0x1fc6, U"\u0397\u0342"},
    {0x1fc7, U"\u0397\u0342\u0399"},
    {0x1fcc, U"\u0397\u0399"},
    {0x1fd2, U"\u0399\u0308\u0300"},
    {0x1fd3, U"\u0399\u0308\u0301"},
    {0x1fd6, U"\u0399\u0342"},
    {0x1fd7, U"\u0399\u0308\u0342"},
    {0x1fe2, U"\u03a5\u0308\u0300"},
    {0x1fe3, U"\u03a5\u0308\u0301"},
    {0x1fe4, U"\u03a1\u0313"},
    {0x1fe6, U"\u03a5\u0342"},
    {0x1fe7, U"\u03a5\u0308\u0342"},
    {0x1ff2, U"\u1ffa\u0399"},
    {0x1ff3, U"\u03a9\u0399"},
    {0x1ff4, U"\u038f\u0399"},
    {0x1ff6, U"\u03a9\u0342"},
    {0x1ff7, U"\u03a9\u0342\u0399"},
    {0x1ffc, U"\u03a9\u0399"},
    {0xfb00, U"FF"},
    {0xfb01, U"FI"},
    {0xfb02, U"FL"},
    {0xfb03, U"FFI"},
    {0xfb04, U"FFL"},
    {0xfb05, U"ST"},
    {0xfb06, U"ST"},
    {0xfb13, U"\u0544\u0546"},
    {0xfb14, U"\u0544\u0535"},
    {0xfb15, U"\u0544\u053b"},
    {0xfb16, U"\u054e\u0546"},
    {0xfb17, U"\u0544\u053d"},
}};

constexpr std::uint32_t iota = 0x399, iota_below = 0x345, apostrophe_n = 0x149;

std::uint32_t simple_upper(std::uint32_t c) {
  return static_cast<std::uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

std::uint32_t simple_lower(std::uint32_t c) {
  return static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

std::uint32_t simple_title(std::uint32_t c) {
  return static_cast<std::uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

/// The upper case of `c` if it has several characters; otherwise empty.
std::u32string expansion(std::uint32_t c) {
  if (c >= 0x1f80 && c <= 0x1faf) {
    const std::uint32_t row = c < 0x1f90 ? 0x1f08 : c < 0x1fa0 ? 0x1f28 : 0x1f68;
    return {static_cast<char32_t>(row + (c & 7U)), static_cast<char32_t>(iota)};
  }
  const auto* found = std::lower_bound(expansions.begin(), expansions.end(), c,
                                       [](const Expansion& e, std::uint32_t small) { return e.small < small; });
  return found != expansions.end() && found->small == c ? std::u32string(found->large) : std::u32string();
}

void append_upper(std::string& out, std::uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
    return;
  }
  const std::u32string several = expansion(c);
  if (several.empty()) append_character(out, simple_upper(c));
  for (const char32_t one : several) append_character(out, one);
}

/// If the title case has several characters, only the first is upper case, and an iota goes below.
void append_title(std::string& out, std::uint32_t c) {
  const std::u32string several = expansion(c);
  const bool is_title = category(c) == UTF8PROC_CATEGORY_LT;
  if (several.empty() || is_title || category(simple_title(c)) == UTF8PROC_CATEGORY_LT) {
    append_character(out, is_title ? c : simple_title(c));
    return;
  }
  append_character(out, several[0]);
  for (std::size_t i = 1; i < several.size(); ++i) {
    const std::uint32_t one = several[i];
    append_character(out, c == apostrophe_n ? one : one == iota ? iota_below : simple_lower(one));
  }
}

/// Case-ignorable characters, which the rule for the sigma skips.
bool is_ignorable(std::uint32_t c) {
  constexpr std::array<std::uint32_t, 16> within_words{0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,  0x5f4,  0x2018,
                                                       0x2019, 0x2024, 0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e};
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == 0xff1a || std::find(within_words.begin(), within_words.end(), c) != within_words.end();
  }
}

/// Lower case depends on the context in one case: a sigma that ends a word has its own form.
class Lowered {
 public:
  explicit Lowered(std::string_view text) : text_(text) {}

  /// Appends the lower case of `c`, which ends at byte `after` of the text.
  void append(std::string& out, std::uint32_t c, std::size_t after) {
    if (c < 0x80) {
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    } else if (c == 0x130) {
      out += "i\xcc\x87";  // the Turkish dotted I keeps its dot
    } else if (c == 0x3a3) {
      append_character(out, behind_letter_ && !before_letter(after) ? 0x3c2 : 0x3c3);
    } else {
      append_character(out, simple_lower(c));
    }
    seen(c);
  }

  void seen(std::uint32_t c) {
    if (!is_ignorable(c)) behind_letter_ = is_cased(c);
  }

 private:
  [[nodiscard]] bool before_letter(std::size_t at) const {
    while (at < text_.size()) {
      const std::uint32_t c = next_character(text_, at);
      if (!is_ignorable(c)) return is_cased(c);
    }
    return false;
  }

  std::string_view text_;
  bool behind_letter_ = false;
};

}  // namespace

bool is_space(std::uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_printable(std::uint32_t c) {
  if (c < 0x7f) return c >= 0x20;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
      return false;
    default:
      return true;
  }
}

bool is_alpha(std::uint32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool is_decimal(std::uint32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_alnum(std::uint32_t c) {
  const utf8proc_category_t kind = category(c);
  return is_alpha(c) || kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_lower(std::uint32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || (c >= 0x80 && within(other_lower, c));
}

bool is_upper(std::uint32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x80 && within(other_upper, c));
}

bool is_cased(std::uint32_t c) {
  return is_lower(c) || is_upper(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

std::string upper(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) append_upper(out, next_character(text, at));
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  Lowered lowered(text);
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t c = next_character(text, at);
    lowered.append(out, c, at);
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  Lowered lowered(text);
  bool within_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t c = next_character(text, at);
    if (within_word) {
      lowered.append(out, c, at);
    } else {
      append_title(out, c);
      lowered.seen(c);
    }
    within_word = is_cased(c);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  Lowered lowered(text);
  for (std::size_t at = 0; at < text.size();) {
    const bool first = at == 0;
    const std::uint32_t c = next_character(text, at);
    if (first) {
      append_title(out, c);
      lowered.seen(c);
    } else {
      lowered.append(out, c, at);
    }
  }
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  Lowered lowered(text);
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t c = next_character(text, at);
    if (is_upper(c)) {
      lowered.append(out, c, at);
      continue;
    }
    lowered.seen(c);
    if (is_lower(c)) {
      append_upper(out, c);
    } else {
      append_character(out, c);
    }
  }
  return out;
}

std::size_t byte_of(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) next_character(text, at);
  return at;
}

}  // namespace ferry::engine::jinja
