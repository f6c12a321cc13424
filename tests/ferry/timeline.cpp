#include "ferry/timeline.hpp"

#include <doctest/doctest.h>

#include <sstream>

using namespace ferry;

TEST_CASE("trace events: microseconds with three decimals from the earliest span") {
  std::ostringstream out;
  write_trace_events(out, {{Lane::link, "demand", 2'001'500, 2'004'000, {{3, 7}, Precision::int4}, true, Ticket{12}},
                           {Lane::device, "expert", 2'000'000, 2'001'005, {}, false, Ticket::none}});
  const std::string text = out.str();
  CHECK(
      text.find(
          R"({"ph":"X","pid":1,"tid":1,"name":"demand","ts":1.500,"dur":2.500,"args":{"layer":3,"expert":7,"precision":"int4","ticket":12}})") !=
      std::string::npos);
  CHECK(text.find(R"({"ph":"X","pid":1,"tid":0,"name":"expert","ts":0.000,"dur":1.005})") != std::string::npos);
  for (const char* lane : {"device", "link", "host"}) {
    CHECK(text.find(std::string("\"args\":{\"name\":\"") + lane + "\"}") != std::string::npos);
  }
}

TEST_CASE("an empty timeline is valid") {
  std::ostringstream out;
  write_trace_events(out, {});
  CHECK(out.str().back() == '\n');
}
