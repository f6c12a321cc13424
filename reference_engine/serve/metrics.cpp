// What a server has done, for machines: Prometheus' text format, and JSON.
#include <fmt/format.h>

#include "report/report.hpp"
#include "serve/openai.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

constexpr const char* phases[] = {"prefill", "decode"};
constexpr const char* precisions[] = {"skip", "int2", "int4", "int8", "full"};

/// Writes samples, with the help and type of each name.
class Metrics {
 public:
  /// A stack's name may be that of its file, with characters that would end the label.
  explicit Metrics(const std::string& stack) {
    for (const char c : printable(stack)) {
      if (c == '"' || c == '\\') stack_ += '\\';
      stack_ += c;
    }
  }

  void begin(const char* name, const char* type, const char* help) {
    name_ = name;
    text_ += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  }
  template <class Number>
  void add(Number value, const std::string& labels = "", const char* ending = "") {
    text_ +=
        fmt::format("{}{}{{stack=\"{}\"{}{}}} {}\n", name_, ending, stack_, labels.empty() ? "" : ",", labels, value);
  }
  template <class Number>
  void one(const char* name, const char* type, const char* help, Number value) {
    begin(name, type, help);
    add(value);
  }
  void histogram(const char* name, const char* help, const TimeHistogram& h) {
    begin(name, "histogram", help);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < h.bounds.size(); ++i) {
      sum += h.counts[i];
      add(sum, fmt::format("le=\"{}\"", h.bounds[i]), "_bucket");
    }
    add(h.count, "le=\"+Inf\"", "_bucket");
    add(h.sum, "", "_sum");
    add(h.count, "", "_count");
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string stack_, name_, text_;
};

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

std::string metrics_text(const LoopStatistics& s, const std::string& stack) {
  Metrics m(stack);
  m.begin("ferry_requests_total", "counter", "Requests that ended, by how.");
  for (std::size_t e = 0; e < s.ended.size(); ++e) {
    m.add(s.ended[e], fmt::format("ended=\"{}\"", ended_name(static_cast<Ended>(e))));
  }
  m.add(s.failed, "ended=\"failed\"");
  m.add(s.refused, "ended=\"refused\"");
  m.one("ferry_requests_active", "gauge", "Requests that are decoded now.", s.active);
  m.one("ferry_requests_waiting", "gauge", "Requests in the queue.", s.waiting);
  m.one("ferry_cache_bytes", "gauge", "Bytes of keys and values now.", s.cache_bytes);
  m.begin("ferry_tokens_total", "counter", "Rows of forward passes.");
  for (int p = 0; p < 2; ++p) m.add(s.tokens[p], fmt::format("phase=\"{}\"", phases[p]));
  m.begin("ferry_steps_total", "counter", "Forward passes.");
  for (int p = 0; p < 2; ++p) m.add(s.steps[p], fmt::format("phase=\"{}\"", phases[p]));
  m.begin("ferry_expert_requests_total", "counter", "Experts that layers asked for, by what became of it.");
  for (int p = 0; p < 2; ++p) {
    const Outcomes& o = s.runner.counters.phase[p];
    for (const auto& [name, n] : {std::pair{"hit", o.hits}, std::pair{"late_hit", o.late_hits},
                                  std::pair{"miss", o.misses}, std::pair{"substituted", o.substituted},
                                  std::pair{"skipped", o.skipped}, std::pair{"host_computed", o.host_computed}}) {
      m.add(n, fmt::format("phase=\"{}\",outcome=\"{}\"", phases[p], name));
    }
  }
  m.begin("ferry_copied_bytes_total", "counter", "Bytes of experts copied, by precision.");
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    m.add(s.runner.counters.bytes_by_precision[p], fmt::format("precision=\"{}\"", precisions[p]));
  }
  m.begin("ferry_stall_seconds_total", "counter", "Time that layers waited for copies.");
  for (int p = 0; p < 2; ++p) m.add(seconds(s.times[p].stall), fmt::format("phase=\"{}\"", phases[p]));
  m.begin("ferry_host_wait_seconds_total", "counter", "Time that layers waited for the host.");
  for (int p = 0; p < 2; ++p) m.add(seconds(s.times[p].host_wait), fmt::format("phase=\"{}\"", phases[p]));
  m.one("ferry_expert_memory_bytes", "gauge", "Bytes of the slots for experts.", s.runner.arena_bytes);
  m.histogram("ferry_time_to_first_token_seconds", "From a request's coming to its first token.", s.to_first_token);
  m.histogram("ferry_time_per_output_token_seconds", "Of a request, from its first token on.", s.per_token);
  m.histogram("ferry_request_seconds", "From a request's coming to its end.", s.whole);
  return m.text();
}

Json stats_json(const LoopStatistics& s, const std::string& stack) {
  Json json = {{"stack", stack},
               {"active", s.active},
               {"waiting", s.waiting},
               {"cache_bytes", s.cache_bytes},
               {"expert_memory_bytes", s.runner.arena_bytes},
               {"refused", s.refused},
               {"failed", s.failed}};
  for (int p = 0; p < 2; ++p) {
    json[phases[p]] = to_json(s.runner.counters.phase[p]);
    json[phases[p]]["tokens"] = s.tokens[p];
    json[phases[p]]["steps"] = s.steps[p];
    json[phases[p]]["stall_s"] = seconds(s.times[p].stall);
  }
  const auto mean = [](const TimeHistogram& h) {
    return h.count == 0 ? Json() : Json(h.sum / static_cast<double>(h.count));
  };
  json["requests"] = s.whole.count;
  json["mean_first_token_s"] = mean(s.to_first_token);
  json["mean_token_s"] = mean(s.per_token);
  return json;
}

}  // namespace ferry::engine
