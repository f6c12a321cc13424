/// @file
/// What happened when, for Chrome's trace viewer and Perfetto.
#pragma once
#include <cstdint>
#include <iomanip>
#include <ostream>
#include <vector>

#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI {

/// Who was busy.
enum class Lane : std::uint8_t {
  device,  ///< computes, or waits for a copy
  link,    ///< copies
  host     ///< computes experts, or decides
};

/// One stretch of work. `name` is a literal.
struct Span {
  Lane lane = Lane::device;  ///< who is busy
  const char* name = "";     ///< of what is done
  /// From when until when.
  Nanoseconds begin_ns = 0, end_ns = 0;
  Variant what;                  ///< the expert, if `has_expert`
  bool has_expert = false;       ///< whether it is one expert's
  Ticket ticket = Ticket::none;  ///< of a copy
};

/// Writes Trace Event Format (JSON object form), one thread a lane, times in microseconds from the earliest span.
inline void write_trace_events(std::ostream& out, const std::vector<Span>& spans) {
  static constexpr const char* lanes[] = {"device", "link", "host"};
  static constexpr const char* precisions[] = {"skip", "int2", "int4", "int8", "full"};
  Nanoseconds origin = spans.empty() ? 0 : spans.front().begin_ns;
  for (const Span& s : spans) origin = s.begin_ns < origin ? s.begin_ns : origin;
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
         "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"ferry\"}}";
  for (int i = 0; i < 3; ++i) {
    out << ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":" << i << ",\"name\":\"thread_name\",\"args\":{\"name\":\"" << lanes[i]
        << "\"}}";
    out << ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":" << i
        << ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":" << i << "}}";
  }
  auto us = [&](Nanoseconds ns) {
    const char fill = out.fill('0');
    out << ns / 1000 << '.' << std::setw(3) << ns % 1000;
    out.fill(fill);
  };
  for (const Span& s : spans) {
    out << ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":" << static_cast<int>(s.lane) << ",\"name\":\"" << s.name
        << "\",\"ts\":";
    us(s.begin_ns - origin);
    out << ",\"dur\":";
    us(s.end_ns - s.begin_ns);
    if (s.has_expert) {
      out << ",\"args\":{\"layer\":" << s.what.id.layer << ",\"expert\":" << s.what.id.expert << ",\"precision\":\""
          << precisions[static_cast<unsigned>(s.what.precision)] << '"';
      if (s.ticket != Ticket::none) out << ",\"ticket\":" << static_cast<std::uint64_t>(s.ticket);
      out << '}';
    }
    out << '}';
  }
  out << "\n]}\n";
}

}  // namespace ferry::inline FERRY_ABI
