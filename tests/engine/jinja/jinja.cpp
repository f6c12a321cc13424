// Chat templates, against what Python's jinja2 makes of them: tests/goldens/make_jinja.py.
#include "jinja/jinja.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "support/errors.hpp"
#include "support/quick.hpp"

namespace {

using ferry::engine::InputError;
using ferry::engine::JinjaTemplate;
using ferry::test::refusal;
using ferry::test::says;
using nlohmann::ordered_json;

/// The time at which the golden's clock stands still.
std::tm golden_time() {
  std::tm time{};
  time.tm_year = 2025 - 1900;
  time.tm_mon = 6;
  time.tm_mday = 4;
  time.tm_hour = 13;
  time.tm_min = 5;
  time.tm_sec = 9;
  time.tm_wday = 5;
  time.tm_yday = 184;
  return time;
}

const ordered_json& golden() {
  static const ordered_json all = ordered_json::parse(std::ifstream(ferry::test::golden_file("jinja.json")));
  return all;
}

std::string render(const std::string& source, const ordered_json& context = ordered_json::object()) {
  JinjaTemplate made(source, "t");
  made.set_clock(golden_time);
  return made.render(context);
}

/// The message of an error, which has to name its line.
std::string refused(const std::string& source, const ordered_json& context = ordered_json::object()) {
  return refusal("t: line ", [&] { static_cast<void>(render(source, context)); });
}

std::string repeated(std::size_t times, const std::string& text) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

void check_rendering(const std::string& source, const ordered_json& rendering) {
  CAPTURE(source);
  CAPTURE(rendering.value("name", ""));
  if (rendering.contains("error")) {
    CAPTURE(rendering["error"].get<std::string>());
    CHECK_FALSE(refused(source, rendering["context"]).empty());
  } else {
    CHECK(render(source, rendering["context"]) == rendering["output"].get<std::string>());
  }
}

}  // namespace

TEST_SUITE_BEGIN("jinja");

TEST_CASE("every template gives what jinja2 makes of it, and fails where that does") {
  REQUIRE(golden().size() > 600);
  for (const ordered_json& one : golden()) {
    CAPTURE(one["name"].get<std::string>());
    for (const ordered_json& rendering : one["renderings"]) {
      check_rendering(one["template"].get<std::string>(), rendering);
    }
  }
}

TEST_CASE("errors name the line, what was wrong and what was expected") {
  CHECK(refused("a\n{{ 1 +\n }}") == "t: line 3: }}, expected an expression");
  CHECK(refused("{% if 1 %}\n{% for x in y %}") ==
        "t: line 2: the end of the template, expected {% endfor %} or {% else %}");
  CHECK(refused("{{ x.y }}") == "t: line 1: x is undefined, expected a value");
  CHECK(refused("\n\n{{ 'a' +\n 1 }}") == "t: line 3: str + int, expected operands that fit each other");
  CHECK(refused("{% macro f() %}\n{{ none | length }}\n{% endmacro %}\n{{ f() }}") ==
        "t: line 2: the length of None, expected a value that has one");
  CHECK(refused("{{ [].append(1) }}") ==
        "t: line 1: append is undefined (lists and dicts cannot be changed), expected a value");
  CHECK(refused("{{ 'a' | replace('b') }}") == "t: line 1: replace got no new, expected one");
  CHECK(refused("{{ 5 | first }}") == "t: line 1: first of an int, expected something with items");
}

TEST_CASE("a template's own refusals come through") {
  CHECK(refused("{% if x %}\n{{ raise_exception('Only ' ~ x ~ '\\n!') }}{% endif %}", {{"x", "users"}}) ==
        "t: line 2: Only users?!");
  const std::string long_one = refused("{{ raise_exception('é' * 100000) }}");
  CHECK(long_one.size() < 500);
  CHECK(long_one.ends_with("é"));
}

TEST_CASE("what is not supported is refused by name, before anything is rendered") {
  for (const char* tag : {"block", "extends", "include", "import", "from", "autoescape", "do", "trans"}) {
    CHECK(says(refused("{% if false %}{% " + std::string(tag) + " x %}{% endif %}"), {tag, "not supported"}));
  }
  for (const char* filter : {"groupby", "urlize", "truncate", "xmlattr", "random", "attr", "pprint"}) {
    CHECK(says(refused("{% if false %}{{ x | " + std::string(filter) + " }}{% endif %}"), {filter, "not supported"}));
  }
  CHECK(says(refused("{% for x in y recursive %}{% endfor %}"), {"recursive", "not supported"}));
  CHECK(says(refused("{{ 'a' | nosuch }}"), {"filter nosuch, expected one that exists"}));
  CHECK(says(refused("{{ self.x() }}"), {"self is not supported"}));
  CHECK(says(refused("{{ é }}"), {"é outside of a text is not supported"}));
  CHECK(says(refused(R"({{ '\N{BULLET}' }})"), {"\\N in a text is not supported"}));
}

TEST_CASE("what is not supported of values is refused where it is used") {
  for (const char* method : {"encode", "translate", "expandtabs", "format_map"}) {
    CHECK(says(refused("{{ x." + std::string(method) + "() }}", {{"x", "text"}}), {method, "not supported"}));
  }
  CHECK(says(refused("{{ '一'.isnumeric() }}"), {"isnumeric", "not supported"}));
  CHECK(says(refused("{{ '²'.isdigit() }}"), {"isdigit", "not supported"}));
  CHECK(says(refused("{{ 'ß'.casefold() }}"), {"casefold", "not supported"}));
  CHECK(says(refused("{{ '{:,}'.format(1000) }}"), {",", "not supported"}));
  CHECK(says(refused("{{ '%*d' % (5, 1) }}"), {"*", "not supported"}));
  CHECK(says(refused("{{ lipsum() }}"), {"lipsum", "not supported"}));
  CHECK(says(refused("{{ strftime_now('%Q') }}"), {"%Q", "not supported"}));
  CHECK(says(refused("{{ [1] | map('upper') }}"), {"generator"}));  // Python shows an address
  CHECK(says(refused("{{ {}.items }}"), {"function"}));
}

TEST_CASE("numbers have 64 bits, and more is an error") {
  for (const char* sum : {"9223372036854775807 + 1", "-9223372036854775807 - 2", "4611686018427387904 * 2", "2 ** 63",
                          "-(-9223372036854775807 - 1)", "(-9223372036854775807 - 1) // -1", "9223372036854775808",
                          "'9223372036854775808' | int", "1e19 | int", "[9223372036854775807, 1] | sum",
                          "(-9223372036854775807 - 1) | abs", "9223372036854775807 | round(-1)"}) {
    CAPTURE(sum);
    CHECK_FALSE(refused("{{ " + std::string(sum) + " }}").empty());
  }
  CHECK(render("{{ -9223372036854775807 - 1 }} {{ (-9223372036854775807 - 1) % -1 }}") == "-9223372036854775808 0");
  CHECK(says(refused("{{ x }}", {{"x", 9223372036854775808ULL}}), {"9223372036854775808", "64 bits"}));
}

TEST_CASE("a context is checked") {
  CHECK_FALSE(refused("x", ordered_json::array()).empty());
  CHECK(says(refused("x", {{"a", "\xff"}}), {"no UTF-8"}));
  CHECK(says(refused("x", {{"\xc3", 1}}), {"no UTF-8"}));
  CHECK_FALSE(refused("x", {{"a", ordered_json::binary({1, 2})}}).empty());
  ordered_json deep = 1;
  for (int i = 0; i < 400; ++i) deep = ordered_json::array({std::move(deep)});
  CHECK(says(refused("x", {{"a", deep}}), {"deep"}));
  CHECK_FALSE(refused("\xff").empty());
  CHECK_FALSE(refused(std::string((1U << 20U) + 1, ' ')).empty());
  CHECK(render("{{ a }}{{ b }}", {{"a", "\0"}, {"b", nullptr}}) == "None");
}

TEST_CASE("strangers' templates end") {
  for (const std::string& source : {
           std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
           std::string("{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}"),
           std::string("{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = [n.l, n.l] %}{% endfor %}"),
           std::string("{% set n = namespace(l=()) %}{% for i in range(99) %}{% set n.l = (n.l, n.l) %}{% endfor %}{{ "
                       "{n.l: 1} }}"),
           std::string(
               "{% set n = namespace(g=[1]) %}{% for i in range(999) %}{% set n.g = n.g | map('int') %}{% endfor %}"),
           std::string("{{ 'x' * 10 ** 15 }}"),
           std::string("{{ [1] * 10 ** 15 }}"),
           std::string("{{ 'x' | center(10 ** 15) }}"),
           std::string("{{ '%999999999999d' % 1 }}"),
           std::string("{{ '{:>999999999999}'.format(1) }}"),
           std::string("{{ 'x' | indent(10 ** 15, true) }}"),
           std::string("{{ [[[1]]] | tojson(indent=10 ** 15) }}"),
           std::string("{{ ('a' * 100000).replace('a', 'b' * 100000) }}"),
           std::string("{{ ('a' * 1000000).count('') * ('a' * 50000000).replace('', 'b') }}"),
           std::string("{% set n = namespace() %}{% set n.n = [n] %}{{ n }}"),
           std::string(
               "{% for i in range(99999) %}{% for j in range(99) %}{% set x = namespace() %}{% endfor %}{% endfor %}"),
           std::string("{% macro f() %}{% macro g() %}{% endmacro %}{% endmacro %}"
                       "{% for i in range(99999) %}{{ f() ~ f() }}{% endfor %}"),
           std::string("{% set n = namespace(l=none) %}{% for i in range(99999) %}{% for j in [n.l] %}"
                       "{% set n.l = loop %}{% endfor %}{% endfor %}"),
           std::string("{% set n = namespace() %}{% for x in ([n] * 9999) | map(attribute='l') | map('length') %}"
                       "{% set n.l = loop %}{% endfor %}"),
           "{{ " + repeated(100000, "(") + "1" + repeated(100000, ")") + " }}",
           "{{ " + repeated(100000, "[") + repeated(100000, "]") + " }}",
           "{{ " + repeated(100000, "-") + "1 }}",
           "{{ " + repeated(100000, "not ") + "1 }}",
           "{{ " + repeated(100000, "1 + ") + "1 }}",
           "{{ x" + repeated(100000, ".x") + " }}",
           "{{ x" + repeated(100000, " | upper") + " }}",
           "{{ " + repeated(50000, "1 if 0 else ") + "1 }}",
           "{% set " + repeated(100000, "(") + "a" + repeated(100000, ")") + " = 1 %}",
           repeated(20000, "{% if 1 %}") + repeated(20000, "{% endif %}"),
       }) {
    CAPTURE(source.substr(0, 200));
    CHECK_FALSE(refused(source).empty());
  }
}

TEST_CASE("strangers' templates end that take all the steps there are") {
  if (ferry::test::quick()) return;  // a minute under sanitizers
  const std::string endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}";
  const std::string doubled =
      "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = [n.l, n.l] %}{% endfor %}";
  for (const std::string& source :
       {endless + repeated(3, "{% endfor %}"), doubled + "{{ n.l }}",
        doubled + "{{ n.l == [n.l[0], n.l[0]] + [] or n.l[0] < n.l[1][:] }}{{ n.l | tojson }}"}) {
    CAPTURE(source);
    CHECK_FALSE(refused(source).empty());
  }
}

TEST_CASE("what holds itself is let go") {  // which the sanitizers see
  CHECK(render("{% set n = namespace() %}{% set n.n = [n] %}{% set n.f = n.n.index %}{{ n.n | length }}") == "1");
  CHECK(render("{% for i in range(3) %}{{ loop.changed(loop) }}{% endfor %}") == "TrueFalseFalse");
  CHECK(render("{% set n = namespace() %}{% macro f() %}{% macro g() %}{{ g is defined }}{% endmacro %}"
               "{% set n.g = g %}{% endmacro %}{{ f() }}{{ n.g() }}") == "True");
  CHECK(
      render("{% set n = namespace(p=1) %}{% for i in range(50000) %}{% set n.p = namespace(p=n.p) %}{% endfor %}ok") ==
      "ok");
  CHECK(says(refused("{% set n = namespace() %}{% for i in [1] %}{% set n.l = loop %}{% endfor %}{{ n.l.index }}"),
             {"behind the end of the loop"}));
}

TEST_CASE("a template that is cut off anywhere renders or is refused") {
  int rendered_parts = 0, refused_parts = 0;
  for (const ordered_json& one : golden()) {
    const std::string source = one["template"].get<std::string>();
    const ordered_json& context = one["renderings"][0]["context"];
    for (std::size_t end = 0; end < source.size(); end += source.size() / 40 + 1) {
      for (const std::string& part : {source.substr(0, end), source.substr(end)}) {
        try {
          static_cast<void>(render(part, context));
          ++rendered_parts;
        } catch (const InputError&) {
          ++refused_parts;
        }
      }
    }
  }
  CHECK(rendered_parts > 0);
  CHECK(refused_parts > 0);
}

TEST_CASE("the clock is local time unless it is set") {
  const JinjaTemplate made("{{ strftime_now('%Y') | int }}", "t");
  CHECK(std::stoi(made.render(ordered_json::object())) >= 2025);
  CHECK(render("{{ strftime_now('%d %b %Y') }}") == "04 Jul 2025");
}

TEST_CASE("several threads render one template") {
  const JinjaTemplate made(
      "{% macro f(m) %}{{ m.role ~ ': ' ~ m.content | trim }}{% endmacro %}"
      "{% set n = namespace(c=0) %}{% for m in messages %}{% set n.c = n.c + loop.index %}{{ f(m) }};{% endfor %}{{ "
      "n.c }}",
      "t");
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] {
      ordered_json messages = ordered_json::array();
      for (std::size_t m = 0; m <= i; ++m) messages.push_back({{"role", "user"}, {"content", " a "}});
      for (int round = 0; round < 200; ++round) texts[i] = made.render({{"messages", messages}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(texts[0] == "user: a;1");
  CHECK(texts[3] == repeated(4, "user: a;") + "10");
}

TEST_SUITE_END();
