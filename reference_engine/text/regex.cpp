#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.hpp"

#include <fmt/format.h>
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <utility>

#include "support/errors.hpp"
#include "text/newer_unicode.hpp"

namespace ferry::engine {
namespace {

constexpr std::size_t longest_pattern = 1U << 16U;
constexpr std::uint32_t most_steps = 5'000'000;  // of backtracking, from one place
constexpr std::size_t stack_bytes = 64U << 20U;  // text without spaces recurses deeply
/// Processor time allowed for a text, and for each MiB of it. Expressions in use take a tenth of a second a MiB.
constexpr double most_seconds = 2, most_seconds_each = 2;
constexpr std::uint32_t matches_a_look = 64;  // the clock is read once for so many

double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  std::string where;
  bool names_newer = false;  ///< the expression has newer characters, so that texts keep theirs
  ~Compiled() { pcre2_code_free(code); }
};

namespace {

/// What a thread needs to match; freed with it.
struct Matching {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32U << 10U, stack_bytes, nullptr);
  Matching() {
    pcre2_set_match_limit(context, most_steps);
    pcre2_set_heap_limit(context, 256U << 10U);  // KiB
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Matching(const Matching&) = delete;
  Matching& operator=(const Matching&) = delete;
  ~Matching() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

}  // namespace

Regex::Regex(const std::string& pattern, const std::string& where, Dialect dialect)
    : compiled_(std::make_unique<Compiled>()) {
  compiled_->where = where;
  compiled_->names_newer = !with_older_characters(pattern).empty();
  if (pattern.size() > longest_pattern) {
    throw InputError(
        fmt::format("{}: an expression of {} bytes, expected at most {}", where, pattern.size(), longest_pattern));
  }
  const std::string written = for_pcre2(pattern, where, dialect);
  int error = 0;
  PCRE2_SIZE at = 0;
  compiled_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(written.data()), written.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (compiled_->code == nullptr) {
    throw InputError(
        fmt::format("{}: the expression \"{:.100}\" cannot be read: {}", where, pattern, message_of(error)));
  }
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // without a JIT, matching is only slower
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<Stretch> Regex::split(std::string_view text) const {
  thread_local Matching matching;
  const std::string older = compiled_->names_newer ? "" : with_older_characters(text);
  if (!older.empty()) text = older;
  std::vector<Stretch> all;
  std::size_t done = 0;
  std::uint32_t matches = 0;
  double end_by = 0;
  for (std::size_t from = 0; from <= text.size();) {
    if (++matches % matches_a_look == 0) {
      const double now = thread_seconds();
      if (end_by == 0) end_by = now + most_seconds + most_seconds_each * static_cast<double>(text.size()) / 1048576;
      if (now > end_by) {
        throw InputError(fmt::format("{}: the expression takes too long to split a text of {} bytes", compiled_->where,
                                     text.size()));
      }
    }
    const int found = pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK, matching.data, matching.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw InputError(
          fmt::format("{}: splitting a text of {} bytes failed: {}", compiled_->where, text.size(), message_of(found)));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(matching.data);
    const std::size_t begin = range[0], end = range[1];
    if (begin > done) all.push_back({done, begin, false});
    if (begin >= end) {  // an empty match cuts here; goes on at the next character
      done = std::max(done, begin);
      from = std::max(from, begin) + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0U) == 0x80U) ++from;
      continue;
    }
    all.push_back({begin, end, true});
    from = done = end;
  }
  if (done < text.size()) all.push_back({done, text.size(), false});
  return all;
}

std::string literally(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view(R"(\^$.|?*+()[]{}-/#)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace ferry::engine
