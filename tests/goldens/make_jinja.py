#!/usr/bin/env python3
"""Writes jinja.json: what Python's jinja2 makes of small templates, and of chat templates, in transformers' environment.

    pip install jinja2==3.1.6
    python3 tests/goldens/make_jinja.py

The environment is that of transformers 5.23 (utils/chat_template_utils.py): jinja2's immutable sandbox with trim_blocks,
lstrip_blocks and loop controls, {% generation %}, a tojson that is json.dumps, raise_exception, strftime_now, and
namespaces that refuse names with an underscore first. The clock stands still. Where jinja2 raises, "error" says what.

The chat templates were written for this file in the manner of the families that they are named after; none of them is
the template that comes with a model.
"""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2025, 7, 4, 13, 5, 9)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("passed"), [], [], body).set_lineno(line)

    @staticmethod
    def passed(caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"{name!r} begins with an underscore")


def make_environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(
        raise_exception=raise_exception, strftime_now=NOW.strftime, dict=dict, namespace=Namespace
    )
    return environment


# Each group: templates, alone or with their context.
D = {"d": {"b": 2, "a": 1, "C": 3}}
L = {"l": [3, 1, 2], "words": ["b", "A", "c"]}
M = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi", "n": 2},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "Bye", "n": 1},
    ]
}
SMALL = {
    "text": ["", "plain", "a\nb\n", "a\n\n", "\n", "a\r\nb\rc\r\n", "héllo 😀", "{ % }} %} #} {", "{", "a { b"],
    "print": [
        "{{ 1 }}",
        "{{1}}{{ 2 }}",
        "{{ 'a' }}{{ none }}{{ true }}{{ false }}{{ 1.0 }}{{ x }}",
        "{{ }}",
        "{{ 1",
        "{{ 1 }",
        "{{ 1 2 }}",
        "{{ (1, 2) }}{{ 1, 2 }}{{ (1,) }}{{ () }}",
        "{% print 1, 'a' %}",
        "{{ x.y }}",
        "{{ x['y'] }}",
        "{{ x().y }}",
        ("{{ a }}", {"a": "\u2028\x00\x1b"}),
    ],
    "whitespace": [
        "a {{- 1 -}} b",
        "a\n  {{- 1 -}}  \n b",
        "a {{ 1 }} b\n",
        "{{ 1 }}\n\n{{ 2 }}\n",
        "{{+ 1 }}",
        "a {{+1+}} b",
        "a\n  {% if true %}\n  b\n  {% endif %}\n c",
        "a {% if true %} b {% endif %} c",
        "a\n  {%- if true -%}\n  b\n  {%- endif -%}\n c",
        "a\n  {%+ if true %}\n  b\n  {%+ endif %}\n c",
        "a\n{% if true +%}\n  b\n{% endif +%}\n c",
        "  {% if true %}x{% endif %}",
        "  {{ 1 }}",
        "x  {% set a = 1 %}  y",
        "\t{% set a = 1 %}\n\ty",
        "{% if true %}\n\n\nx{% endif %}\n\ny",
        "a\n  {# c #}\n  b",
        "a {# c #} b",
        "a\n  {#- c -#}\n  b",
        "a\n  {#+ c +#}\n  b",
        "{# a\nb #}\nc",
        "{# {{ 1 }} {% if %} #}x",
        "{#- #}",
        "{##}x",
        "{#}x#}y",
        "{# never closed",
        "a{{ 1 }}{# c #}\nb",
        "{{ 1 }}  {% set a = 1 %}\nx",
        "{% set a = 1 %}  {% set b = 2 %}\nx",
        "{% set a = 1 -%}\n\n  {% set b = 2 %}\nx",
        "{% for i in [1, 2] %}\n{{ i }}\n{% endfor %}\n",
        "{% for i in [1, 2] %}\n    {{ i }}\n{% endfor %}",
        "{%for i in [1,2]%}{{i}}{%endfor%}",
        "{%-for i in [1,2]-%} {{i}} {%-endfor-%}",
        "a\u00a0{{- 1 -}}\u2003b",
        "a\x1f{{- 1 -}}\x0bb",
        "  \n  {%- if true %}  \n  x{% endif %}",
        "x{% if true %}\n{% endif %}\n",
        "\u00a0{% set a = 1 %}x",
        "a\n \t{% set b = 1 %}\n",
        "{{ 'a\nb' }}",
        "{{ 'a\r\nb' }}",
        "{% raw %}{{ x }}{% endraw %}",
        "a {% raw -%}  {{ x }} {% y %} {#  {%- endraw %} b",
        "{%- raw %} x {% endraw -%}\n b",
        "{% raw %}\n{% endraw %}\nx",
        "  {% raw %}  {% endraw %}  x",
        "\n  {% raw %}\n  {% endraw %}\n  x",
        "{% raw %}",
        "{%+ raw %} a {%+ endraw +%}\n b",
        "{% raw +%}x{% endraw %}",
        "{% rawx %}{% endraw %}",
    ],
    "literals": [
        "{{ 007 }}",
        "{{ 0 }}{{ 00 }}{{ 0x1F }}{{ 0o17 }}{{ 0b101 }}{{ 1_000 }}",
        "{{ 1.5 }}{{ 1e3 }}{{ 1.5e-7 }}{{ 1E+2 }}{{ 1_0.0_1 }}",
        "{{ 9223372036854775807 }}",
        "{{ -5 }} {{ +5 }} {{ - -5 }} {{ --5 }}",
        "{{ .5 }}",
        "{{ 5. }}",
        "{{ 1.e5 }}",
        "{{ 0x }}",
        r"""{{ 'a\'b' }}{{ "a\"b" }}{{ 'a\\b' }}{{ 'a\nb\tc' }}{{ '\x41\u00e9\U0001F600\101' }}{{ '\q' }}{{ 'a\
b' }}""",
        r"{{ '\x4' }}",
        r"{{ '\u12' }}",
        "{{ 'never closed }}",
        "{{ 'a' 'b' \"c\" }}",
        "{{ 'é😀' }}",
        "{{ [] }}{{ [1, 'a', none, true, 1.5, [2], (3,), {'k': 'v'}] }}",
        "{{ [1, 2,] }}{{ {} }}{{ {'a': 1, 2: 'b', none: 3,} }}",
        "{{ ['it\\'s', 'say \"x\"', 'both \\' and \"', 'back\\\\slash', 'new\\nline', '\\x00\\x7f\\u00ad\\u200b\\u2028é😀'] }}",
        "{{ {'a': 1, 'a': 2} }}",
        "{{ {1: 'a', 1.0: 'b', true: 'c'} }}",
        "{{ {[1]: 2} }}",
        "{{ {(1, 2): 3} }}",
        "{{ True, False, None, none }}",
        "{{ [1, 2 }}",
        "{{ (1 }}",
        "{{ {1 }}",
        "{{ ] }}",
        "{{ $ }}",
        "{{ a ! b }}",
        "{{ {'a':{'b':{}}}}}",
    ],
    "floats": [
        "{{ [0.1, 1.0, 100.0, 1e15, 1e16, 123456789012345680.0, 1e22, 1e-4, 1e-5, 0.00001234, 3.14159, 2.5e300] }}",
        "{{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 10 / 2 }} {{ 1e308 * 10 }} {{ -1e308 * 10 }} {{ -0.0 }}",
        "{{ (1e308 * 10) - (1e308 * 10) }}",
    ],
    "arithmetic": [
        "{{ 1 + 2 * 3 - 4 }}",
        "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ -7 // -2 }}",
        "{{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7 % -3 }}",
        "{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }} {{ 6.0 % -2 }} {{ 1.0 // 0.1 }}",
        "{{ 2 ** 10 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 0 ** 0 }} {{ (-1) ** 63 }}",
        "{{ 1 / 0 }}",
        "{{ 1 // 0 }}",
        "{{ 1 % 0 }}",
        "{{ 1.0 / 0 }}",
        "{{ 0 ** -1 }}",
        "{{ 9007199254740993 / 1 }}",
        "{{ true + true }} {{ -true }} {{ true * 3 }} {{ +false }}",
        "{{ 'a' + 'b' }} {{ [1] + [2] }} {{ (1,) + (2,) }}",
        "{{ 'a' + 1 }}",
        "{{ [1] + (2,) }}",
        "{{ none + 1 }}",
        "{{ {} + {} }}",
        "{{ 'ab' * 3 }}{{ 2 * 'x' }}{{ 'x' * -1 }} {{ [1, 2] * 2 }} {{ 2 * (1,) }}",
        "{{ 'a' * 'b' }}",
        "{{ 'a' * 1.5 }}",
        "{{ 'a' - 'b' }}",
        "{{ x + 1 }}",
        "{{ 1 + x }}",
        "{{ -x }}",
        "{{ -'a' }}",
        "{{ 'a' ~ 1 ~ none ~ [1] ~ x ~ 1.0 }}",
        "{{ 1 ~ 2 + 3 }}",
        "{{ 1 + 2 ~ 3 }}",
        "{{ 2 * 3 ~ 4 * 5 }}",
        "{{ 5 // 2 * 2 + 5 % 2 }}",
        "{{ 1 - 1 - 1 }} {{ 100 / 10 / 2 }}",
        "{{ -1 | abs }} {{ -(1) | abs }} {{ 1 - 2 | abs }}",
        "{{ 2**62 }} {{ 2**62 - 1 + 2**62 }}",
        "{{ 1.5 + true }} {{ 1e2 ** 2 }}",
    ],
    "comparisons": [
        "{{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 'a' }} {{ '1' == 1 }} {{ none == none }} {{ none == false }} {{ x == y }} {{ x == none }}",
        "{{ [1, 2] == [1, 2] }} {{ [1] == (1,) }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ {'a': 1} == {'a': 2} }} {{ [1, [2]] != [1, [3]] }}",
        "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 > 1 }} {{ 1 == 1 != 2 }} {{ 1 < 2 > 1 }}",
        "{{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ 'é' > 'z' }} {{ '\ud7ff' < '😀' }}",
        "{{ [1, 2] < [1, 3] }} {{ [1] < [1, 0] }} {{ (2,) > (1, 5) }} {{ [] < [] }} {{ [] <= [] }}",
        "{{ 1 < 'a' }}",
        "{{ none < 1 }}",
        "{{ [1] < (2,) }}",
        "{{ x < 1 }}",
        "{{ {} < {} }}",
        "{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }}",
        "{{ 'b' in 'abc' }} {{ '' in 'abc' }} {{ 'd' not in 'abc' }} {{ 1 in [1, 2] }} {{ 1.0 in (1,) }} {{ 'a' in {'a': 1} }} {{ 1 not in {} }}",
        "{{ 1 in 'abc' }}",
        "{{ 1 in 5 }}",
        "{{ [1] in {} }}",
        "{{ 'a' in x }}",
        "{{ x in [1] }}",
        "{{ x in y }}",
        "{{ x in 'a' }}",
        "{{ 'a' in none }}",
        "{{ [] in [[]] }}",
        "{{ not 1 in [2] }} {{ not 1 == 2 }} {{ not not '' }}",
        "{{ 1 == 1 and 2 }} {{ 1 in [1] == true }}",
        "{{ 1 = 1 }}",
        "{{ 1 <> 2 }}",
        "{{ 1 not 2 }}",
    ],
    "logic": [
        "{{ 0 or 'a' }} {{ '' or none }} {{ 1 and [] }} {{ 1 and 2 or 3 }} {{ x or 'd' }} {{ none and x.y }} {{ 1 or x.y }}",
        "{{ not 0 }} {{ not 'a' }} {{ not x }} {{ not none }} {{ not [] }} {{ not {} }} {{ not 0.0 }} {{ not ' ' }} {{ not (0,) }}",
        "{{ 'a' if 1 else 'b' }} {{ 'a' if 0 else 'b' }} {{ 'a' if 0 }} {{ ('a' if 0) is defined }} {{ 'a' if 0 else 'b' if 0 else 'c' }}",
        "{{ ('a' if 0).b }}",
        "{{ 1 if true else x.y }}",
        "{{ [1 if true else 2, 3] }}",
        "{% if 1 if 0 else 1 %}a{% endif %}",
        "{{ 1 if 2 if 0 else 3 else 4 }}",
        "{{ 1 and }}",
        "{{ or 1 }}",
        "{{ not }}",
    ],
    "access": [
        ("{{ d.a }} {{ d['a'] }} {{ d.x }} {{ d['x'] }} {{ d.x is defined }}", D),
        ("{{ d.x.y }}", D),
        ("{{ d['x']['y'] }}", D),
        ("{{ d.a.b }} {{ d.a['b'] }}", D),
        (
            "{{ l[0] }} {{ l[-1] }} {{ l[5] }} {{ l['a'] }} {{ l.a }} {{ l.0 }} {{ l[true] }} {{ l[1.0] }} {{ l[none] }}",
            L,
        ),
        "{{ 'abc'[1] }} {{ 'abc'[-1] }} {{ 'abc'[9] }} {{ 'é😀x'[1] }} {{ 'abc'.x }}",
        "{{ none.x }} {{ none['x'] }} {{ 5 .x }} {{ true.x }} {{ 1.5 .x }}",
        "{{ none.x.y }}",
        ("{{ d['items'] }} {{ d.get('items') }}", {"d": {"items": 1}}),
        ("{{ d['keys']() | list }} {{ d.keys() | list }}", D),
        "{{ {1: 'a', '1': 'b'}[1] }} {{ {1: 'a'}['1'] }} {{ {none: 'n'}[none] }} {{ {(1, 2): 'x'}[1, 2] }}",
        ("{{ a.b.c[0].d }}", {"a": {"b": {"c": [{"d": "deep"}]}}}),
        "{{ [[1, 2], [3]][0][1] }}",
        "{{ {'a': 1}.a }}",
        "{{ 'a'.__class__ }} {{ [].__class__ is defined }}",
        "{{ ''.__class__.__mro__ }}",
        ("{{ d[x] }} {{ d[x] is defined }}", D),
        ("{{ l[x] }}", L),
        "{{ x[0] }}",
        ("{{ d._a }} {{ d['_a'] }}", {"d": {"_a": 1}}),
        "{{ [1].append is defined }} {{ {}.pop is defined }} {{ 'a'.strip is defined }}",
        ("{{ d.update }}", {"d": {"update": 1}}),
        ("{{ d['update'] }}", {"d": {"update": 1}}),
        ("{{ d.1 }}", {"d": {"1": "text"}}),
        "{{ a. }}",
        "{{ a.1.5 }}",
        "{{ a[] .b }}",
        "{{ a['b' }}",
        ("{{ d['a', 'b'] is defined }}", D),
    ],
    "slices": [
        (
            "{{ s[1:] }}|{{ s[:2] }}|{{ s[1:3] }}|{{ s[:] }}|{{ s[-2:] }}|{{ s[:-1] }}|{{ s[::2] }}|{{ s[::-1] }}|{{ s[5:] }}|{{ s[3:1] }}|{{ s[-99:99] }}",
            {"s": "abcde"},
        ),
        ("{{ s[1:] }}|{{ s[:2] }}|{{ s[::-1] }}|{{ s[1::2] }}|{{ s[3:0:-2] }}|{{ s[-1:-3:-1] }}", {"s": "aé😀漢z"}),
        (
            "{{ l[1:] }} {{ l[::-1] }} {{ l[:-1] }} {{ l[-2::-1] }} {{ l[4:1:-1] }} {{ l[::2] }} {{ l[none:2] }} {{ l[:true] }}",
            {"l": [0, 1, 2, 3, 4]},
        ),
        "{{ (1, 2, 3)[1:] }} {{ (1, 2)[:0] }}",
        ("{{ l[::0] }}", L),
        ("{{ n[1:] }}", {"n": None}),
        ("{{ d[1:] }}", D),
        "{{ x[1:] }}",
        ("{{ l['a':] }}", L),
        ("{{ l[1.0:] }}", L),
        "{{ range(10)[2:5] | list }} {{ range(10)[::-3] | list }} {{ range(5)[-1] }} {{ range(5)[9] }}",
        ("{{ messages[1:][0].role }} {{ messages[:-1] | length }} {{ messages[::-1][0].content }}", M),
    ],
    "undefined": [
        "[{{ x }}] {{ x is defined }} {{ x is undefined }} {{ x | default('d') }} {{ x | length }} {{ x | list }} {{ x | join }} {{ x | upper }} {{ x | first is defined }}",
        "{% for i in x %}a{% else %}empty{% endfor %}",
        "{{ [x] }} {{ {'a': x} }} {{ (x,) }}",
        "{{ x() }}",
        "{{ x.y is defined }}",
        "{{ x | tojson }}",
        "{{ x | int }}",
        "{{ x | abs }}",
        "{{ x | items | list }}",
        "{{ x | dictsort }}",
        "{{ x | sum }} {{ x | sort }} {{ x | unique | list }} {{ x | map('upper') | list }} {{ x | select | list }} {{ x | reverse | list }} {{ x | last is defined }} {{ x | string }} {{ x | trim }}",
        "{{ x is iterable }} {{ x is sequence }} {{ x is mapping }} {{ x is string }} {{ x is none }} {{ x is callable }} {{ x is number }} {{ x is boolean }} {{ x is false }}",
        "{{ x is odd }}",
        "{% set y = x %}{{ y is defined }}",
        "{{ x | replace('a', 'b') }}",
        "{{ x | indent }}",
        "{{ x | round }}",
        "{{ x ~ 'a' }}",
        "{{ 'a' if x else 'b' }}",
        "{% if x %}a{% elif not x %}b{% endif %}",
        "{{ x | min is defined }}",
        "{{ x | batch(2) | list }}",
    ],
    "if": [
        "{% if 0 %}a{% elif 0 %}b{% elif 1 %}c{% else %}d{% endif %}",
        "{% if 0 %}a{% endif %}",
        "{% if 1: %}a{% endif %}",
        "{% if 1 %}",
        "{% if %}{% endif %}",
        "{% if 1 %}{% else %}{% else %}{% endif %}",
        "{% endif %}",
        "{% if 1 %}{% endfor %}",
        "{% if 1, 0 %}tuple{% endif %}",
        "{% if (1 == 1) and not (2 == 3) %}x{% endif %}",
        "{% elif 1 %}",
        "{% if 1 %}a{% else if 2 %}b{% endif %}",
        "{% IF 1 %}{% endif %}",
        "{% if 1 %}{% if 2 %}x{% endif %}{% endif %}",
    ],
    "for": [
        (
            "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ m.role }}\n{% endfor %}",
            M,
        ),
        (
            "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}<{{ m.role }}>{{ loop.nextitem.role if loop.nextitem is defined else '-' }} {% endfor %}",
            M,
        ),
        "{% for a, b in [[1, 2], [3, 0], 'xy'] if b %}{{ loop.previtem }}{{ a }}{{ loop.nextitem }}|{% endfor %}",
        "{% for a, (b, c) in [[1, [2, 3]], [4, 'xy']] if c %}{{ loop.previtem }}{{ loop.nextitem }}|{% endfor %}",
        "{% for a in [[1, 2], [3, 4]] if a %}{{ loop.previtem }}{{ loop.nextitem }}|{% endfor %}",
        "{% for i in [] %}a{% else %}empty{% endfor %}",
        "{% for i in [1] %}a{% else %}empty{% endfor %}",
        "{% for i in [1] %}{% break %}{% else %}E{% endfor %}",
        "{% for i in [1, 2] %}{% continue %}{% else %}E{% endfor %}",
        "{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% else %}E{% endfor %}",
        "{% for i in range(10) %}{% if i % 2 %}{% continue %}{% endif %}{% if i > 6 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        ("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", D),
        ("{% for k in d %}{{ k }}{% endfor %}{% for v in d.values() %}{{ v }}{% endfor %}", D),
        "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
        "{% for a, b in ['xy', [1, 2], {'p': 1, 'q': 2}] %}{{ a }}{{ b }} {% endfor %}",
        "{% for a, b in [[1]] %}{% endfor %}",
        "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
        "{% for a, b in [1] %}{% endfor %}",
        "{% for a in 5 %}{% endfor %}",
        "{% for a in none %}{% endfor %}",
        "{% for c in 'aé😀' %}[{{ c }}]{% endfor %}",
        "{% for i in [1, 2, 3, 4] if i % 2 == 0 %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %}",
        "{% for i in [1, 2] if i > 5 %}x{% else %}none{% endfor %}",
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% if not loop.last %}, {% endif %}{% endfor %}",
            M,
        ),
        "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
        "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{{ loop.last }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
        "{% for k, v in [[1, 2], [3, 4]] if v > 2 %}{{ k }}{% endfor %}",
        "{% for i in [1, 2] %}{% for j in [1, 2] %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{{ loop.index }} {% endfor %}",
        "{% for i in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{% endfor %}",
        "{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}",
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}",
        "{% for i in [1] %}{{ loop.x }}{{ loop.x is defined }}{{ loop | length }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
        "{% for i in [1, 2] %}{{ i }}{% endfor %}{{ i }}{{ loop }}",
        "{% for loop in [1] %}{% endfor %}",
        "{% for i in [1] %}{% set loop = 1 %}{% endfor %}",
        "{% break %}",
        "{% for i in [1] %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}",
        "{% for i in [1, 2], [3] %}{{ i }}{% endfor %}",
        "{% for i in [1, 2] | reverse %}{{ i }}{{ loop.length }}{% endfor %}",
        "{% for i in range(3) | map('string') %}{{ i }}{{ loop.last }}{{ loop.length }} {% endfor %}",
        "{% for %}{% endfor %}",
        "{% for i of x %}{% endfor %}",
        "{% for i in [1, 2] %}{{ i }}",
        "{% for x.y in [1] %}{% endfor %}",
        "{% for 1 in [1] %}{% endfor %}",
        "{% for x in [1, 2] %}{% for x in [x, 5] %}{{ x }}{% endfor %}{{ x }} {% endfor %}",
        "{% for i in [1, 2] %}{% if loop.first %}first{% endif %}{{ i }}{% else %}{% endfor %}",
        "{% for i in [3, 4] %}{{ loop['index'] }}{% endfor %}",
        "{% for i in [1] %}{{ loop(2) }}{% endfor %}",
        "{% for i in {'a': 1}.items() %}{{ i }}{% endfor %}",
    ],
    "scope": [
        "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i + 10 %}{{ x }} {% endfor %}{{ x }}",
        "{% if true %}{% set x = 1 %}{% endif %}{{ x }}",
        "{% for i in [1] %}{% set x = 1 %}{% endfor %}{{ x }}",
        ("{% for i in [1] %}{{ x }}{% endfor %}{% set x = 5 %}{{ x }}", {"x": 9}),
        ("{% for i in [1] %}{{ x }}{% endfor %}{% if true %}{% set x = 5 %}{% endif %}{{ x }}", {"x": 9}),
        ("{{ x }}{% for i in [1] %}{{ x }}{% endfor %}{% set x = 5 %}{{ x }}", {"x": 9}),
        ("{% set x = x + 1 %}{{ x }}", {"x": 9}),
        ("{% if false %}{% set x = 1 %}{% endif %}{{ x }}", {"x": 9}),
        ("{% set x = x or 'd' %}{{ x }}", {}),
        "{% macro f() %}{{ y }}{% endmacro %}{% set y = 3 %}{{ f() }}{% set y = 4 %}{{ f() }}",
        ("{% macro f() %}{{ y }}{% set y = 7 %}{{ y }}{% endmacro %}{{ f() }}{{ y }}", {"y": 1}),
        "{{ f() }}{% macro f() %}a{% endmacro %}",
        "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "{% macro outer() %}{% macro inner(a) %}<{{ a }}{{ b }}>{% endmacro %}{% set b = 2 %}{{ inner(1) }}{% endmacro %}{{ outer() }}{{ inner is defined }}",
        "{% for i in [1, 2] %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}{{ f is defined }}",
        "{% for x in [1] %}{% for y in [2] %}{% set z = x + y %}{{ z }}{% endfor %}{{ z }}{% endfor %}",
        "{% for i in [1, 2] %}{% if i == 1 %}{% set a = 'x' %}{% endif %}{{ a }}{% endfor %}",
        "{% set a = 0 %}{% for i in [1, 2] %}{% if i == 1 %}{% set a = 'x' %}{% endif %}{{ a }}{% endfor %}{{ a }}",
        "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}",
        "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
        "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
        "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y }}",
        "{% macro f(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{{ f(1) }}",
        ("{% macro f(x) %}{{ x }}{{ messages }}{% endmacro %}{{ f(1) }}", {"messages": "m", "x": 5}),
        "{% set range = 5 %}{{ range }}",
        ("{{ namespace }}", {"namespace": "n"}),
        ("{% for m in l %}{% set t = (t or '') ~ m %}{{ t }} {% endfor %}", L),
        "{% macro f() %}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ f() }}{% endfor %}",
        "{% for i in [1] %}{% macro f() %}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}",
    ],
    "set": [
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
        "{% set a, (b, c) = [1, [2, 3]] %}{{ a }}{{ b }}{{ c }}",
        "{% set a = 1, 2 %}{{ a }}",
        "{% set a = 'x' %}{% set b = a %}{{ b }}",
        "{% set a %}x{{ 1 }}\ny{% endset %}[{{ a }}]",
        "{% set a | upper | trim %} x {% endset %}[{{ a }}]",
        "{% set a | replace('x', 'y') %}xx{% endset %}{{ a }}",
        "{% set a, b = 'xyz' %}",
        "{% set 1 = 2 %}",
        "{% set a.b = 1 %}",
        "{% set a = {} %}{% set a.b = 1 %}",
        "{% set true = 1 %}",
        "{% set a[0] = 1 %}",
        "{% set a = %}",
        "{% set a",
        "{% set (a, b) = (1, 2) %}{{ a }}{{ b }}",
        "{% set a = b = 1 %}",
        "{% set a = 1 if false %}{{ a is defined }}",
        "{% set a = [] %}{% set a = a + [1] %}{% set a = a + [2] %}{{ a }}",
        "{% set a %}{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}{% endset %}{{ a }}",
        "{% for i in [1, 2] %}{% set a %}x{% break %}{% endset %}{% endfor %}{{ a is defined }}",
        "{% set not = 1 %}",
        "{% set a, = [5] %}{{ a }}",
    ],
    "namespace": [
        "{% set ns = namespace(a=1, b='x') %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns['a'] }}",
        "{% set ns = namespace() %}{% for i in [1, 2, 3] %}{% set ns.last = i %}{% endfor %}{{ ns.last }}",
        "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }}",
        "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
        "{% set ns = namespace(_a=1) %}",
        "{% set ns = namespace() %}{% set ns._a = 1 %}",
        "{% set ns = namespace(a=1) %}{{ ns }}",
        "{% set ns = namespace(a=[1, 'x']) %}{{ ns }}{{ [ns] }}",
        "{% set ns = namespace(a=1) %}{% set b = ns %}{% set b.a = 2 %}{{ ns.a }}",
        "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}",
        "{% set ns = namespace() %}{% set ns.t %}text{% endset %}{{ ns.t }}",
        "{% macro f(ns) %}{% set ns.n = ns.n + 1 %}{% endmacro %}{% set ns = namespace(n=1) %}{{ f(ns) }}{{ ns.n }}",
        "{% set ns = namespace() %}{{ ns.a.b }}",
        "{{ namespace(1) }}",
        "{{ namespace([['a', 1]]).a }}",
        "{% set ns = namespace(items=3, get=4) %}{{ ns.items }}{{ ns.get }}",
        "{% set ns = namespace(a=1) %}{{ 'a' in ns }}",
        "{% set ns = namespace(a=1) %}{{ ns is mapping }} {{ ns is iterable }} {{ ns == ns }} {{ ns == namespace(a=1) }} {{ ns is defined }} {{ not ns }}",
        "{% set ns = namespace(a=1) %}{{ ns | tojson }}",
        "{% set ns = namespace() %}{% set ns, ns.x = 1, 2 %}",
        "{% set ns = namespace(a=1) %}{{ ns | list }}",
    ],
    "macro": [
        "{% macro f(a, b='d', c=none) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(1, c=3) }}{{ f(a=1, b=2, c=3) }}{{ f() }}",
        "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(x) }}{{ f(none) }}",
        "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
        "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}",
        "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}",
        "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}",
        "{% macro f(a=[]) %}{{ a }}{% endmacro %}{{ f() }}",
        "{% macro f(a=1, b) %}{% endmacro %}",
        "{% macro f(a, a) %}{% endmacro %}",
        "{% macro f %}{% endmacro %}",
        "{%- macro f() -%}  x  {%- endmacro -%}\n[{{ f() }}]",
        "{% macro f() %}\n  x\n{% endmacro %}\n[{{ f() }}]",
        "{% macro f() %}<b>{% endmacro %}{{ f() | upper }}{{ f() ~ f() }}{{ f() == '<b>' }}{{ f() is string }}",
        "{% macro f() %}{% endmacro %}{{ f }}{{ f.name }}{{ f is callable }}",
        "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, a=3) }}{{ f() }}",
        "{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1, 2) }}",
        "{% macro f(a) %}{{ kwargs }}{% endmacro %}{{ f(1, b=2) }}",
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}{% call f() %}x{% endcall %}",
        "{% macro f() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b) f() %}{{ a }}{{ b }}{% endcall %}",
        "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}",
        "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}",
        "{% set y = 5 %}{% macro f(x) %}[{{ caller() }}{{ x }}]{% endmacro %}{% for i in [1, 2] %}{% call f(i) %}{{ i }}{{ y }}{% endcall %}{% endfor %}",
        "{% call 5 %}{% endcall %}",
        "{% macro f(x) %}{{ x(3) }}{% endmacro %}{% macro g(n) %}<{{ n }}>{% endmacro %}{{ f(g) }}",
        "{% set ns = namespace() %}{% macro f() %}{% macro g() %}{{ a }}{% endmacro %}{% set a = 'kept' %}{% set ns.g = g %}{% endmacro %}{{ f() }}{{ ns.g() }}",
        "{% macro f(*args) %}{% endmacro %}",
        "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*[1]) }}{{ f(**{'a': 2}) }}",
        "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1], b=2) }}",
        "{{ f(1) }}",
        "{{ 'a'() }}",
        "{{ dict(a=1, a=2) }}",
        "{% macro f(a) %}{{ a.role }}{% endmacro %}{{ f({'role': 'u'}) }}",
        "{% macro f(x) %}{% if x is mapping %}{% for k, v in x | dictsort %}{{ k }}({{ f(v) }}){% endfor %}{% elif x is string %}'{{ x }}'{% elif x is iterable %}[{% for i in x %}{{ f(i) }}{% endfor %}]{% else %}{{ x }}{% endif %}{% endmacro %}{{ f({'b': [1, 'x', {'a': none}], 'a': true}) }}",
    ],
    "blocks": [
        "{% filter upper %}a{{ 'b' }}{% endfilter %}",
        "{% filter trim | replace('a', 'b') %}  aa {% endfilter %}|",
        "{% filter indent(2) %}a\nb{% endfilter %}",
        "{% generation %}a{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}",
        "{% for i in [1, 2] %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}",
        "{%- generation -%}  a  {%- endgeneration -%}  b",
        "{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
        "{% generation %}",
        "{% nosuch %}",
        "{% do x %}",
        "{% 5 %}",
        "{% %}",
        "{% set x = 1 %}{% if x %}{% generation %}{{ x }}{% set x = 2 %}{% endgeneration %}{{ x }}{% endif %}",
    ],
    "tests": [
        "{{ 1 is defined }} {{ none is none }} {{ 0 is none }} {{ 'a' is string }} {{ 1 is string }} {{ 1 is number }} {{ true is number }} {{ '1' is number }} {{ 1.5 is number }}",
        "{{ 1 is integer }} {{ true is integer }} {{ 1.0 is integer }} {{ 1.0 is float }} {{ 1 is float }}",
        "{{ true is boolean }} {{ 1 is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }}",
        "{{ {} is mapping }} {{ [] is mapping }} {{ [] is sequence }} {{ 'a' is sequence }} {{ {} is sequence }} {{ 1 is sequence }} {{ (1,) is sequence }} {{ range(2) is sequence }} {{ {}.items() is sequence }}",
        "{{ [] is iterable }} {{ 'a' is iterable }} {{ {} is iterable }} {{ 1 is iterable }} {{ none is iterable }} {{ range(1) is iterable }} {{ [1] | map('string') is iterable }}",
        "{{ 3 is odd }} {{ 4 is odd }} {{ 4 is even }} {{ -3 is odd }} {{ 3.0 is odd }} {{ true is odd }}",
        "{{ 6 is divisibleby 3 }} {{ 7 is divisibleby(3) }} {{ 6 is divisibleby 0 }}",
        "{{ 6 is divisibleby 3 }} {{ 7 is not divisibleby(3) }}",
        "{{ 1 is equalto 1 }} {{ 1 is eq 1.0 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is le 1 }} {{ 2 is gt 1 }} {{ 2 is ge 3 }} {{ 1 is lessthan 2 }} {{ 1 is greaterthan 2 }} {{ 'a' is eq 'a' }}",
        "{{ 1 is in [1, 2] }} {{ 'x' is in 'abc' }} {{ 1 is not in [2] }}",
        "{{ 'abc' is lower }} {{ 'aBc' is lower }} {{ 'ABC' is upper }} {{ '123' is upper }} {{ 'é' is lower }}",
        "{{ none is not none }} {{ x is not defined }} {{ not x is defined }}",
        "{{ x is defined and x.y }} {{ x is undefined or x.y }} {{ 1 if x is defined else 2 }}",
        "{{ range is callable }} {{ 'a' is callable }} {{ 'a'.upper is callable }}",
        "{{ 'a' is nosuch }}",
        "{% if false %}{{ 'a' is nosuch }}{% endif %}ok",
        "{{ 1 is defined is defined }}",
        "{{ 1 is eq }}",
        "{{ 1 is odd 2 }}",
        "{{ 'a' is odd }}",
        "{{ none is sameas none }} {{ true is sameas true }} {{ 1 is sameas true }}",
        "{{ 'upper' is filter }} {{ 'nosuch' is filter }} {{ 'odd' is test }} {{ 'nosuch' is test }}",
        "{{ 'a' is string | upper }}",
        "{{ [1] is iterable and [1] is not mapping and [1] is not string }}",
        "{{ 'a' is escaped }} {{ 'a' | safe is escaped }}",
        "{{ 1 is defined() }}",
        "{{ 1 is (defined) }}",
        "{{ 1 is none or 2 is number and 'x' }}",
        "{{ x is defined and x is not none and x | length }}",
    ],
    "case": [
        "{{ 'aBc dEf' | upper }} {{ 'aBc' | lower }} {{ 'aBC dEF' | capitalize }} {{ 'hello wORLD-foo (bar) x_y it\\'s' | title }}",
        "{{ 'hello wORLD-foo it\\'s 3rd' .title() }} {{ 'aBc'.swapcase() }} {{ 'éa'.capitalize() }}",
        "{{ 'straße ŉ ǆ ﬁ ΐ ᾳ' | upper }} {{ 'ΑΣ ΣΑΣ Σ. ΑΣ.Α İI' | lower }}",
        "{{ 'ǆabc ßx ﬁx ŉx ᾳx'.title() }} {{ 'ßX'.capitalize() }} {{ 'ﬁX' | capitalize }} {{ 'ßx ǆy' | title }}",
        "{{ 5 | upper }}{{ none | lower }}{{ true | upper }}{{ [1, 'a'] | upper }}",
        "{{ 'ÀÉÎ'.lower() }} {{ 'привет' | upper }} {{ 'ὈΔΥΣΣΕΎΣ' | lower }} {{ 'ჰა' | upper }} {{ 'ჰა'.title() }}",
        "{{ 'a' | upper(1) }}",
    ],
    "strings": [
        "[{{ '  a b '.strip() }}][{{ '  a '.lstrip() }}][{{ ' a  '.rstrip() }}][{{ 'xxaxx'.strip('x') }}][{{ 'abcba'.strip('ab') }}][{{ '\u00a0\u2003a\u3000'.strip() }}][{{ 'éaé'.strip('é') }}][{{ 'a'.strip(none) }}][{{ ''.strip() }}]",
        "[{{ ' a ' | trim }}][{{ 'xax' | trim('x') }}][{{ 5 | trim }}]",
        "{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'abc'.split('x') }} {{ 'a--b--c'.split('--') }} {{ 'aaa'.split('aa') }} {{ ',a,'.split(',') }} {{ ' a b '.split(maxsplit=0) }}",
        "{{ 'a'.split('') }}",
        "{{ 'a b'.split(5) }}",
        "{{ 'a,b,c'.rsplit(',') }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ ' a  b c '.rsplit() }} {{ 'aaa'.rsplit('aa') }} {{ 'abc'.rsplit('x', 2) }}",
        "{{ 'a\\nb\\r\\nc\\rd\\x0be\\x85f\\u2028g'.splitlines() }} {{ 'a\\nb\\n'.splitlines(true) }} {{ ''.splitlines() }} {{ '\\n'.splitlines() }}",
        "{{ 'abc'.startswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith('bc') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.startswith('') }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.startswith('', 5) }}",
        "{{ 'abc'.startswith(['a']) }}",
        "{{ 'abc'.startswith(1) }}",
        "{{ 'aXbX'.replace('X', '--') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }} {{ 'abc'.replace('', '-', 2) }} {{ 'abc'.replace('b', '') }} {{ 'éé'.replace('', '.') }} {{ 'a'.replace('x', 'y') }}",
        "{{ 'a'.replace('a') }}",
        "{{ 'a'.replace(1, 2) }}",
        "{{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.find('x') }} {{ 'é😀b'.find('b') }} {{ 'abcabc'.find('a', 1) }} {{ 'abcabc'.find('c', -2) }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'abcabc'.rfind('b', 0, 3) }} {{ 'abc'.index('b') }}",
        "{{ 'abc'.index('x') }}",
        "{{ 'banana'.count('an') }} {{ 'aaaa'.count('aa') }} {{ 'abc'.count('') }} {{ 'banana'.count('a', 2) }}",
        "{{ ', '.join(['a', 'b']) }} {{ ''.join('abc') }} {{ '-'.join({'a': 1, 'b': 2}) }}",
        "{{ ','.join([1]) }}",
        "{{ '12'.isdigit() }} {{ '1a'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'é漢'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' \\n'.isspace() }} {{ 'aé'.islower() }} {{ 'AÉ1'.isupper() }} {{ '٣'.isdigit() }} {{ '½'.isnumeric() }} {{ 'Ⅷ'.isalnum() }} {{ 'a'.isascii() }} {{ 'é'.isascii() }} {{ ''.isascii() }} {{ '12'.isdecimal() }}",
        "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'a'.partition('=') }} {{ 'a'.rpartition('=') }}",
        "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'abc'.removeprefix('x') }}",
        "[{{ 'a'.center(4) }}][{{ 'ab'.center(5, '*') }}][{{ 'a'.ljust(3) }}][{{ 'é'.rjust(3, '.') }}][{{ '-5'.zfill(4) }}][{{ '5'.zfill(3) }}][{{ 'abc'.ljust(2) }}][{{ 'abcd'.center(7, '.') }}]",
        "{{ 'a'.center(3, 'xy') }}",
        "{{ 'é😀'.upper() | length }} {{ 'é😀漢' | length }} {{ 'e\u0301' | length }}",
        "{{ 'a'.nosuch() }}",
        "{{ 'a'.nosuch }}",
        "{{ 'abc'.upper() }}",
        "{{ 'a'.upper(1) }}",
        "{{ 'a\\tb\\\\' }}",
        "{{ 'ab'.casefold() }}",
        "{% set f = 'abc'.upper %}{{ f() }}",
    ],
    "format": [
        "{{ '%s %d %5.2f|%-5s|%5s|%05d|%+d|%x|%X|%o|%%|%r|%e|%g' % ('a', 5, 3.14159, 'b', 'c', 42, 7, 255, 255, 8, 'q', 12345.678, 0.0001) }}",
        "{{ '%s' % 'a' }} {{ '%s' % 5 }} {{ '%s' % [1, 2] }} {{ '%s' % none }} {{ '%(a)s-%(b)d' % {'a': 'x', 'b': 2} }} {{ '%.2s|%5.1s|' % ('abc', 'xyz') }} {{ '%s' % x }}",
        "{{ '%s %s' % ('a',) }}",
        "{{ '%s' % ('a', 'b') }}",
        "{{ '%d' % 'a' }}",
        "{{ '%y' % 1 }}",
        "{{ '%d %i' % (3.9, -3.9) }} {{ '%x' % 255 }} {{ '%#x' % 255 }} {{ '% d' % 5 }} {{ '%s' % true }} {{ '%d' % true }}",
        "{{ '%s, %s!' | format('a', 'b') }} {{ '%(x)s' | format(x=1) }}",
        "{{ '%s' | format }}",
        "{{ '{} {}'.format('a', 1) }} {{ '{1}{0}'.format('a', 'b') }} {{ '{a}'.format(a=5) }} {{ '{{}}'.format() }} {{ '{0.a}{0[b]}{1[0]}'.format({'a': 1, 'b': 2}, [3]) }}",
        "[{{ '{:>5}|{:<5}|{:^5}|{:*^7}|{:5}|{:5}'.format('a', 'b', 'c', 'd', 'e', 6) }}] {{ '{:.2f} {:05d} {:+d} {:x} {:e} {:.1%} {:08.3f} {:5.1f}|'.format(3.14159, 42, 7, 255, 1234.5, 0.256, 3.14159, 2.25) }}",
        "{{ '{!r} {!s}'.format('a', 'a') }} {{ '{}'.format(none) }} {{ '{}'.format([1]) }} {{ '{}'.format(x) }} {{ '{}'.format(1.0) }} {{ '{}'.format(true) }} {{ '{:.3}'.format('abcdef') }}",
        "{{ '{}'.format() }}",
        "{{ '{'.format() }}",
        "{{ '}'.format() }}",
        "{{ '{} {0}'.format(1) }}",
        "{{ '{a}'.format() }}",
        "{{ '{:d}'.format('a') }}",
        "{{ '{:>5}'.format(none) }}",
    ],
    "text filters": [
        "{{ 'a-b-c' | replace('-', '+') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 121 | replace(1, 3) }} {{ 'a' | replace('a', none) }}",
        "{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2) }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb\n' | indent('> ') }}|{{ '' | indent(first=true) }}|{{ 'a\n' | indent(0) }}",
        "{{ 5 | indent }}",
        "{{ '<a href=\"x\">\\'&' | escape }} {{ '<' | e }} {{ '<b>' | safe }} {{ '<' | escape | escape }} {{ '<' | e | forceescape }} {{ 5 | e }}",
        "{{ '<' | safe ~ '<' }} {{ ('<' | safe) + '<' }} {{ '<' + ('<' | safe) }} {{ ['<' | safe] }} {{ ('<' | safe) * 2 }} {{ ('<a>' | safe).replace('a', '<') }} {{ ('<' | safe).join(['<']) }} {{ ['<', '>' | safe] | join('&') }} {{ ('<b>' | safe)[0] + '<' }} {{ ('<' | safe) | upper + '<' }} {{ ('<' | safe | string) + '<' }} {{ ('a' | safe) == 'a' }}",
        "{{ 'a b_c d-é' | wordcount }} {{ '' | wordcount }}",
        "[{{ 'ab' | center(6) }}]",
        "{{ 'abc' | string }} {{ 5 | string ~ 1 }} {{ [1] | string }}",
        "{{ 'abc' | length }} {{ [1, 2] | count }} {{ {'a': 1} | length }} {{ range(7) | length }}",
        "{{ 5 | length }}",
        "{{ none | length }}",
        "{{ [1] | map('string') | length }}",
        "{{ 'a' | default('b') }} {{ '' | default('b') }} {{ '' | default('b', true) }} {{ none | default('b') }} {{ none | d('b', true) }} {{ x | d }}|{{ x.y | default('q') if x is defined else 'w' }} {{ 0 | default(5, boolean=true) }}",
    ],
    "numbers": [
        "{{ '42' | int }} {{ ' -7 ' | int }} {{ '4.9' | int }} {{ 'a' | int }} {{ 'a' | int(5) }} {{ 3.9 | int }} {{ -3.9 | int }} {{ none | int }} {{ true | int }} {{ '1_000' | int }} {{ '0x1F' | int(base=16) }} {{ '0b11' | int(0, 2) }} {{ '077' | int(0, 8) }} {{ '1e3' | int }} {{ '' | int }} {{ [] | int }} {{ '0x1f' | int }} {{ 'ff' | int(0, 16) }} {{ '010' | int(-1, 0) }} {{ '0o10' | int(-1, 0) }}",
        "{{ '1.5' | float }} {{ 'a' | float }} {{ 2 | float }} {{ '1e3' | float }} {{ none | float(1.5) }} {{ ' 3 ' | float }} {{ 'inf' | float }} {{ '-Infinity' | float }} {{ 'nan' | float }} {{ '1_0.5' | float }} {{ '.5' | float }} {{ '5.' | float }} {{ '+5' | float }} {{ '1e400' | float }}",
        "{{ -5 | abs }} {{ -1.5 | abs }} {{ true | abs }}",
        "{{ 'a' | abs }}",
        "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 1234.5678 | round(-2) }} {{ 5 | round }} {{ 42.55 | round(1, 'floor') }} {{ 42.51 | round(1, 'ceil') }} {{ -2.5 | round }} {{ 1250 | round(-2) }} {{ 0.5 | round }} {{ 1.5 | round(0) }} {{ 15 | round(-1) }} {{ -15 | round(-1) }} {{ 25 | round(-1) }} {{ 7 | round(0, 'ceil') }} {{ true | round }} {{ 1e300 | round(5) }} {{ 0.1 | round(20) }}",
        "{{ 1 | round(method='x') }}",
        "{{ 'a' | round }}",
        "{{ [1, 2, 3.5] | sum }} {{ [] | sum }} {{ [[1], [2]] | sum(start=[]) }} {{ [{'n': 1}, {'n': 2}] | sum('n') }} {{ [1] | sum(start=10) }} {{ [true, true] | sum }}",
        "{{ ['a'] | sum }}",
        "{{ ['a'] | sum(start='') }}",
        "{{ [3, 1, 2] | min }} {{ [3, 1, 2] | max }} {{ ['b', 'A'] | min }} {{ ['b', 'A'] | max(true) }} {{ [] | max }} {{ [{'n': 2}, {'n': 1}] | min(attribute='n') }} {{ 'hello' | max }}",
        "{{ [1, 'a'] | min }}",
    ],
    "tojson": [
        (
            "{{ v | tojson }}",
            {"v": {"a": [1, 2.5, True, None, "é\"\\\n\t\x01\x7f/<>&'"], "b": {}, "c": [], "d": {"e": {"f": 1}}}},
        ),
        ("{{ v | tojson(indent=2) }}", {"v": {"a": [1, {"b": []}], "c": {}, "d": "x"}}),
        ("{{ v | tojson(indent=0) }}{{ v | tojson(indent='\t') }}{{ v | tojson(indent=none) }}", {"v": [1, [2]]}),
        ("{{ v | tojson(sort_keys=true) }} {{ v | tojson }}", {"v": {"b": 1, "a": {"d": 1, "c": 2}}}),
        (
            "{{ v | tojson(separators=(',', ':')) }} {{ v | tojson(separators=[', ', ': ']) }} {{ v | tojson(indent=1, separators=(';', '=')) }}",
            {"v": {"a": [1, 2]}},
        ),
        "{{ 'é😀' | tojson(ensure_ascii=true) }} {{ 'é' | tojson(ensure_ascii=False) }} {{ 'é' | tojson(true) }}",
        "{{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ 1e16 | tojson }} {{ (1e308 * 10) | tojson }} {{ -(1e308 * 10) | tojson }} {{ 'a' | safe | tojson }}",
        "{{ {(1, 2): 3} | tojson }}",
        "{{ range(3) | tojson }}",
        "{{ [1] | map('string') | tojson }}",
        "{{ {1: 2, 'a': 3} | tojson(sort_keys=true) }}",
        "{{ 'a' | tojson(4) }}",
        "{{ 'a' | tojson(nosuch=1) }}",
        "{{ '<b>' | tojson + '<b>' }}",
        ("{{ v | tojson(indent=4) | indent(2) }}", {"v": {"a": 1, "b": [2]}}),
        "{{ 9223372036854775807 | tojson }} {{ 0.1 | tojson }} {{ 100.0 | tojson }}",
    ],
    "sequences": [
        (
            "{{ l | first }} {{ l | last }} {{ l | join('-') }} {{ l | join }} {{ l | sort }} {{ l | sort(reverse=true) }} {{ l | reverse | list }} {{ 'abc' | reverse }} {{ 'abc' | first }} {{ 'abc' | last }} {{ [] | first }} {{ [] | last }}",
            L,
        ),
        ("{{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ words | sort(true) }}", L),
        "{{ [1, 'a'] | sort }}",
        "{{ [[2, 'b'], [1, 'z'], [1, 'a']] | sort }} {{ [{'n': 2, 'k': 'a'}, {'n': 1, 'k': 'b'}, {'n': 1, 'k': 'a'}] | sort(attribute='n,k') | map(attribute='k') | join }}",
        "{{ [{'n': 1, 'k': 'x'}, {'n': 0, 'k': 'y'}, {'n': 1, 'k': 'z'}] | sort(attribute='n', reverse=true) | map(attribute='k') | join }} {{ [{'a': {'b': 2}}, {'a': {'b': 1}}] | sort(attribute='a.b') }}",
        (
            "{{ d | dictsort }} {{ d | dictsort(true) }} {{ d | dictsort(by='value') }} {{ d | dictsort(reverse=true) }} {{ d | dictsort(false, 'value', true) }}",
            D,
        ),
        "{{ {} | dictsort(by='x') }}",
        "{{ [1] | dictsort }}",
        (
            "{{ d | items | list }} {{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d | list }} {{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ d.items() | length }} {{ 'a' in d.keys() }} {{ 2 in d.values() }} {{ ('a', 1) in d.items() }}",
            D,
        ),
        "{{ [1] | items | list }}",
        "{{ [1] | items is defined }}",
        ("{{ d.get('a') }} {{ d.get('x') }} {{ d.get('x', 5) }} {{ d.get(none) }} {{ d.copy() == d }}", D),
        ("{{ d.get([]) }}", D),
        ("{{ d.get() }}", D),
        ("{{ d.pop('a') }}", D),
        ("{{ d.update({}) }}", D),
        "{{ [].append(1) }}",
        "{% set _ = [].append(1) %}",
        "{{ [1, 2, 1].index(1) }} {{ [1, 2, 1].count(1) }} {{ (1, 2).index(2) }} {{ [1, 2, 1].index(1, 1) }} {{ [1].copy() }}",
        "{{ [1].index(2) }}",
        "{{ [1, 2, 2, 1, 'a', 'A'] | unique | list }} {{ ['a', 'A'] | unique(true) | list }} {{ [{'n': 1}, {'n': 1}] | unique(attribute='n') | list }} {{ [1, 1.0, true, '1'] | unique | list }}",
        "{{ [[1]] | unique | list }}",
        "{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 'x') | list }} {{ [] | batch(2) | list }}",
        "{{ [1, 2, 3, 4, 5] | slice(3) | list }} {{ [1, 2, 3, 4] | slice(3, 'x') | list }} {{ [1] | slice(2) | list }}",
        "{{ 'abc' | list }} {{ range(3) | list }} {{ (1, 2) | list }} {{ {'a': 1} | list }}",
        "{{ 5 | list }}",
        "{{ 5 | first }}",
        "{{ 5 | join }}",
        "{{ none | reverse }}",
        "{{ [1] | map('string') | last }}",
        "{{ [1, 2] | map('string') | reverse | list }}",
        "{{ {'a': 1, 'b': 2} | last }} {{ {'a': 1, 'b': 2} | reverse | list }} {{ {'a': 1}.items() | last }}",
        "{{ ['a', 'b'] | join(1) }} {{ [1, none, 1.5] | join(', ') }} {{ [{'n': 1}, {'n': 2}] | join(',', attribute='n') }} {{ 'abc' | join('.') }} {{ {'a': 1, 'b': 2} | join }}",
        "{{ [3] | first }}",
    ],
    "select": [
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(',') }} {{ messages | rejectattr('role', '==', 'user') | list | length }} {{ messages | selectattr('n') | list | length }} {{ messages | selectattr('n', 'defined') | list | length }} {{ messages | rejectattr('n', 'defined') | map(attribute='role') | list }}",
            M,
        ),
        (
            "{{ messages | selectattr('content', 'none') | map(attribute='role') | first }} {{ messages | map(attribute='n', default=0) | list }} {{ messages | map(attribute='n') | map('default', 9) | list }} {{ (messages | selectattr('role', 'in', ['user', 'system']) | list) | length }}",
            M,
        ),
        "{{ [1, 2, 3, 4] | select('odd') | list }} {{ [1, 2, 3] | reject('odd') | list }} {{ [0, 1, '', 'a'] | select | list }} {{ [0, 1] | reject | list }} {{ [1, 5, 9] | select('gt', 3) | list }} {{ [1, 5] | select('>=', 5) | list }} {{ ['a', 1] | select('string') | list }}",
        "{{ ['a', 'b'] | map('upper') | list }} {{ ['a-b'] | map('replace', '-', '+') | list }} {{ [[1, 2], [3]] | map('join', ',') | list }} {{ [' a '] | map('trim') | list }} {{ [1.7] | map('int') | list }} {{ ['ab'] | map('first') | list }}",
        "{{ [{'a': {'b': 1}}, {'a': {}}] | map(attribute='a.b') | list }} {{ [[1, 2], [3, 4]] | map(attribute=1) | list }} {{ [[[5]]] | map(attribute='0.0') | list }} {{ [{'a': 1}] | selectattr('a', 'eq', 1) | list }}",
        "{{ [1] | map | list }}",
        "{{ [1] | map('nosuch') | list }}",
        "{{ [1] | map('nosuch') is defined }}",
        "{{ [1] | select('nosuch') | list }}",
        "{{ [1] | selectattr | list }}",
        "{{ [1] | map(attribute='a', x=1) | list }}",
        "{{ [x] | map(attribute='a') | list }}",
        "{{ [none] | map(attribute='a') | list }}",
        "{{ 5 | map('string') | list }}",
        "{% set g = [1, 2] | map('string') %}{{ g | list }}{{ g | list }}",
        "{% set g = [1, 2, 3] | select %}{{ g | first }}{{ g | join }}",
        "{% if [] | select %}true{% endif %}",
        "{{ ([1] | map('string'))[0] is defined }}",
        "{{ ['a'] | map('upper') | join }}",
        "{{ 'ab' | map('upper') | list }} {{ {'a': 1} | map('upper') | list }}",
    ],
    "filters": [
        "{{ 1 | nosuch }}",
        "{% if false %}{{ 1 | nosuch }}{% endif %}ok",
        "{% if true %}{{ 1 | nosuch }}{% endif %}",
        "{{ 1 if true else 1 | nosuch }}",
        "{% if false %}{% for i in [1] %}{{ 1 | nosuch }}{% endfor %}{% endif %}",
        "{{ 'a' | upper | lower | capitalize }}",
        "{{ 'a' | }}",
        "{{ | upper }}",
        "{{ 'a' | upper() }}",
        "{{ ('a' | upper) ~ 'b' | upper }}",
        "{{ 'a' ~ 'b' | upper }}",
        "{{ [1, 2] | length > 1 }} {{ not [] | length }} {{ 'a' | upper == 'A' }} {{ 2 + '3' | int * 2 }}",
        "{{ 'a' | upper.x }}",
        "{{ ['b', 'a'] | sort | first | upper }}",
        "{{ 'a' | replace('a', 'b').upper() }}",
    ],
    "globals": [
        "{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ range(3) }} {{ range(1, 5, 2) }} {{ 2 in range(3) }} {{ range(3) == range(0, 3) }} {{ range(3)[1] }} {{ range(true) | list }}",
        "{{ range(100000) | length }}",
        "{{ range(100001) }}",
        "{{ range(1, 5, 0) }}",
        "{{ range('a') }}",
        "{{ range() }}",
        "{{ range(1.5) }}",
        "{{ range(9223372036854775807) | length }}",
        "{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('a', 1)]) }} {{ dict() }}",
        "{{ dict(1) }}",
        "{{ dict(a=1).a }}",
        "{{ raise_exception('no: ' ~ 5) }}",
        "{% if false %}{{ raise_exception('x') }}{% endif %}ok",
        "{{ raise_exception() }}",
        "{{ strftime_now('%Y-%m-%d %H:%M:%S %d %B %Y %b %A %a %j %y %I %p %%') }}",
        "{{ strftime_now('%e') }}|{{ strftime_now('') }}|{{ strftime_now('é %Y') }} {{ strftime_now('%-d %-m %^B %_H') }}",
        "{{ namespace(x) }}",
        "{{ dict(x) }}",
        "{{ '% %' % 1 }}",
        "{{ strftime_now() }}",
        "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
        "{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b{{ j() }}c{% set k = joiner() %}{{ k() }}x{{ k() }}",
        "{{ cycler() }}",
        ("{{ range }}", {"range": "mine"}),
    ],
}

CASED = "".join(
    chr(c) for c in range(0x110000) if chr(c).lower() != chr(c) or chr(c).upper() != chr(c) or chr(c).title() != chr(c)
)
SMALL["unicode"] = [
    ("{{ s | upper }}", {"s": CASED}),
    ("{{ s | lower }}", {"s": CASED}),
    ("{{ s.swapcase() }}", {"s": CASED}),
    ("{% for c in s %}{{ c.title() }}{% endfor %}", {"s": CASED}),
    ("{% for c in s %}{{ c.islower() | int }}{{ c.isupper() | int }}{% endfor %}", {"s": CASED}),
]

CHATS = {
    # Roles between two marks, a system prompt of its own, and what it lets the model begin.
    "chatml": """{% for m in messages %}
{%- if loop.first and m.role != 'system' -%}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}
<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}""",
    # The system prompt goes into the first user turn; roles have to alternate.
    "llama 2": """{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}
{%- else %}{% set turns = messages %}{% set system = false %}{% endif %}
{%- for m in turns %}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate, user first') }}{% endif %}
{%- if loop.first and system %}{% set text = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] %}
{%- else %}{% set text = m['content'] %}{% endif %}
{%- if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}
{%- elif m['role'] == 'assistant' %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}""",
    # Headers, a date, tools in the system prompt or in the first user turn, and one call a turn.
    "llama 3": """{{- bos_token }}
{%- if not date_string is defined %}
  {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- macro header(role) %}{{ "<|start_header_id|>" ~ role ~ "<|end_header_id|>\\n\\n" }}{% endmacro %}
{%- set in_user = tools_in_user_message | default(false) %}
{%- if messages and messages[0].role == "system" %}
  {%- set system = messages[0].content | trim %}
  {%- set messages = messages[1:] %}
{%- else %}
  {%- set system = "" %}
{%- endif %}
{{- header("system") }}
{%- if tools %}
  {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools and not in_user %}
  {{- "Functions:\\n\\n" }}
  {%- for t in tools %}
    {{- t | tojson(indent=4) }}
    {{- "\\n\\n" }}
  {%- endfor %}
{%- endif %}
{{- system }}<|eot_id|>
{%- if in_user and tools %}
  {%- if messages | length == 0 %}{{ raise_exception("No first user message to put tools into") }}{% endif %}
  {{- header("user") }}
  {%- for t in tools %}{{- t.function.name ~ ": " ~ (t.function | tojson) ~ "\\n" }}{%- endfor %}
  {{- messages[0]["content"] | trim + "<|eot_id|>" }}
  {%- set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
  {%- if m.tool_calls %}
    {%- if m.tool_calls | length != 1 %}{{ raise_exception("One call at a time") }}{% endif %}
    {%- set call = m.tool_calls[0].function %}
    {{- header("assistant") }}{{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}}<|eot_id|>
  {%- elif m.role in ["tool", "ipython"] %}
    {{- header("ipython") }}
    {%- if m.content is mapping or (m.content is iterable and m.content is not string) %}
      {{- m.content | tojson }}
    {%- else %}
      {{- m.content }}
    {%- endif %}<|eot_id|>
  {%- else %}
    {{- header(m.role) + (m.content or "") | trim + "<|eot_id|>" }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ header("assistant") }}{% endif %}
""",
    # Parts of a message, text and images, and headers.
    "llama 4": """{{- bos_token }}
{%- macro show(content) -%}
  {%- if content is string -%}{{ content | trim }}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type == 'image' or 'image_url' in part -%}<|image|>
      {%- elif part['type'] == 'text' -%}{{ part.text | trim }}
      {%- else -%}{{ raise_exception('A part of the type ' ~ part.type) }}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
  {%- if m.role == 'system' and not loop.first %}{{ raise_exception('The system prompt comes first') }}{% endif -%}
  <|header_start|>{{ m.role }}<|header_end|>

{{ show(m.content) if m.content is not none }}
  {%- for call in m.tool_calls or [] -%}
    [{{ call.function.name }}(
    {%- for name, value in call.function.arguments.items() -%}{{ name }}={{ value | tojson }}{{ ', ' if not loop.last }}{%- endfor -%}
    )]
  {%- endfor -%}
  <|eot|>
{%- endfor -%}
{%- if add_generation_prompt %}<|header_start|>assistant<|header_end|>

{% endif %}""",
    # Checks who speaks when, tools before the last user turn, ids of nine characters.
    "mistral instruct": """{%- if messages and messages[0].role == "system" %}
    {%- set system = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- set users = turns | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(next="user") %}
{%- for m in turns | rejectattr("role", "equalto", "tool") if not (m.role == "assistant" and m.tool_calls) %}
    {%- if m.role != ns.next %}
        {{- raise_exception("Expected " ~ ns.next ~ ", got " ~ m.role) }}
    {%- endif %}
    {%- set ns.next = "assistant" if ns.next == "user" else "user" %}
{%- endfor %}
{{- bos_token }}
{%- for m in turns %}
    {%- if m.role == "user" %}
        {%- if tools is not none and tools is defined and m == users[-1] %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for t in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in t.function.items() if key != "return" %}
                    {{- '"' + key + '": ' + (value | tojson) }}{{ ", " if not loop.last }}
                {%- endfor %}
                {{- "}}" }}{{ ", " if not loop.last else "]" }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + (system + "\\n\\n" if loop.last and system is defined else "") + m.content + "[/INST]" }}
    {%- elif m.tool_calls is defined and m.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in m.tool_calls %}
            {%- if call.id is not defined or call.id | length != 9 %}
                {{- raise_exception("Ids of calls have nine characters") }}
            {%- endif %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] ~ ', "id": "' ~ call.id ~ '"}' }}{{ ", " if not loop.last else "]" + eos_token }}
        {%- endfor %}
    {%- elif m.role == "assistant" %}
        {{- " " + m.content | trim + eos_token }}
    {%- elif m.role == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' ~ (m.content.content if m.content.content is defined else m.content) ~ ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool speak, not " ~ m.role) }}
    {%- endif %}
{%- endfor %}
""",
    # One system prompt of all that there are, thinking that is cut off or begun, calls and their results.
    "deepseek v3": """{%- if add_generation_prompt is not defined %}{% set add_generation_prompt = false %}{% endif %}
{%- if thinking is not defined %}{% set thinking = false %}{% endif %}
{%- set ns = namespace(first=true, tool=false, user=false, system='') %}
{%- for m in messages if m['role'] == 'system' %}
{%- set ns.system = ns.system + ('\\n\\n' if not ns.first else '') + m['content'] %}{% set ns.first = false %}
{%- endfor %}
{{- bos_token }}{{ ns.system }}
{%- if tools %}{{ '\\n\\n## Tools\\n' }}{% for t in tools %}{{ '### ' ~ t.function.name ~ '\\n' ~ t.function.description ~ '\\n' ~ t.function.parameters | tojson ~ '\\n' }}{% endfor %}{% endif %}
{%- for m in messages %}
  {%- if m['role'] == 'user' %}
    {%- set ns.tool = false %}{% set ns.user = true %}{{ '<|User|>' + m['content'] }}
  {%- elif m['role'] == 'assistant' %}
    {%- if ns.user %}{{ '<|Assistant|>' }}{% if m.prefix is defined and m.prefix and thinking %}<think>{% else %}</think>{% endif %}{% endif %}
    {%- set ns.user = false %}{% set ns.tool = false %}
    {%- set content = m['content'] or '' %}
    {%- if '</think>' in content %}{% set content = content.split('</think>', 1)[1] %}{% endif %}
    {{- content }}
    {%- for call in m['tool_calls'] or [] %}
      {{- '<|calls|>' if loop.first }}<|call|>{{ call['function']['name'] }}<|sep|>{{ call['function']['arguments'] if call['function']['arguments'] is string else call['function']['arguments'] | tojson }}<|end|>
      {{- '</calls>' if loop.last }}
    {%- endfor %}
    {{- eos_token }}
  {%- elif m['role'] == 'tool' %}
    {%- set ns.tool = true %}{{ '<|result|>' ~ m['content'] ~ '</result>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and ns.user and not ns.tool %}{{ '<|Assistant|>' }}{{ '<think>' if thinking else '</think>' }}
{%- elif add_generation_prompt and ns.tool %}{{ '<|Assistant|></think>' }}{% endif %}""",
    # Looks backwards for the last question, keeps the thoughts behind it, and wraps neighbouring results as one turn.
    "qwen 3": """{%- macro open(role) %}{{ '<|im_start|>' ~ role ~ '\\n' }}{% endmacro %}
{%- set close = '<|im_end|>\\n' %}
{%- set head = messages[0] %}
{%- if tools or head.role == 'system' %}
    {{- open('system') }}
    {{- head.content if head.role == 'system' }}
    {%- for tool in tools or [] %}
        {%- if loop.first %}{{ '\\n\\n# Tools\\n\\n<tools>\\n' }}{% endif %}
        {{- tool | tojson ~ '\\n' }}
        {%- if loop.last %}{{ '</tools>' }}{% endif %}
    {%- endfor %}
    {{- close }}
{%- endif %}
{%- set question = namespace(at=-1) %}
{%- for turn in messages[::-1] if question.at < 0 %}
    {%- if turn.role == 'user' and turn.content is string and not turn.content.startswith('<tool_response>') %}
        {%- set question.at = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for turn in messages %}
    {%- set text = turn.content if turn.content is string else '' %}
    {%- if turn.role == 'tool' %}
        {%- set before = messages[loop.index0 - 1].role if not loop.first else none %}
        {%- if before != 'tool' %}{{ open('user').rstrip('\\n') }}{% endif %}
        {{- '\\n<tool_response>\\n' ~ text ~ '\\n</tool_response>' }}
        {%- if loop.nextitem is not defined or loop.nextitem.role != 'tool' %}{{ close }}{% endif %}
    {%- elif turn.role == 'assistant' %}
        {%- set thought, mark, answer = text.rpartition('</think>') %}
        {%- set thought = turn.reasoning_content | default(thought.split('<think>') | last, true) | trim %}
        {{- open('assistant') }}
        {%- if messages.index(turn) > question.at and thought %}{{ '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' }}{% endif %}
        {%- set answer = answer.lstrip('\\n') %}
        {{- answer }}
        {%- for call in turn.tool_calls | default([], true) | map(attribute='function') %}
            {{- '\\n' if answer or not loop.first }}{{ '<tool_call>\\n{"name": "%s", "arguments": %s}\\n</tool_call>' % (call.name, call.arguments if call.arguments is string else call.arguments | tojson) }}
        {%- endfor %}
        {{- close }}
    {%- elif turn.role != 'system' or not loop.first %}
        {{- open(turn.role) ~ text ~ close }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- open('assistant') }}
    {{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is sameas false }}
{%- endif %}""",
    # Types of parameters in another language, by macros that call each other; channels.
    "gpt-oss": """{%- macro type_of(spec, required, indent) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}{{ type_of(spec['items'], false, indent) }}[]{%- else -%}any[]{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string -%}
        {{- spec.type | join(" | ") -}}
    {%- elif spec.enum -%}
        {{- '"' ~ spec.enum | join('" | "') ~ '"' -}}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\\n" }}{{ fields(spec, indent ~ "  ") }}{{ indent ~ "}" -}}
    {%- elif spec.type in ["integer", "number"] -%}number
    {%- else -%}{{ spec.type or "any" }}{%- endif -%}
    {%- if spec.nullable and spec.type != "null" %} | null{% endif -%}
{%- endmacro -%}
{%- macro fields(spec, indent="") -%}
    {%- for name, inner in spec.properties.items() -%}
        {%- if inner.description %}{{ indent ~ "// " ~ inner.description ~ "\\n" }}{% endif -%}
        {{- indent ~ name ~ ("?" if name not in (spec.required or [])) ~ ": " ~ type_of(inner, false, indent) -}}
        {%- if inner.default is defined %},{{ " // default: " ~ (inner.default if inner.default is not string else inner.default | tojson) }}{% else %},{% endif %}{{ "\\n" -}}
    {%- endfor -%}
{%- endmacro -%}
<|start|>system<|message|>You are {{ model_identity | default("a model") }}.
Current date: {{ strftime_now("%Y-%m-%d") }}
Reasoning: {{ reasoning_effort or "medium" }}
{%- if tools %}

Calls go to the channel 'commentary'.{% endif -%}<|end|>
{%- if messages and messages[0].role in ["developer", "system"] %}{% set developer = messages[0].content %}{% set turns = messages[1:] %}{% else %}{% set developer = "" %}{% set turns = messages %}{% endif %}
{%- if developer or tools -%}
<|start|>developer<|message|>
    {%- if developer %}{{ "# Instructions\\n\\n" ~ developer }}{% endif %}
    {%- if tools %}{{ "\\n\\n# Tools\\n\\nnamespace functions {\\n\\n" }}
        {%- for t in tools %}{% set f = t.function -%}
            {{- "// " ~ f.description.split("\\n") | join("\\n// ") ~ "\\ntype " ~ f.name ~ " = (" -}}
            {%- if f.parameters and f.parameters.properties %}{{ "_: {\\n" ~ fields(f.parameters) ~ "}" }}{% endif -%}
            {{- ") => any;\\n\\n" -}}
        {%- endfor %}{{ "} // namespace functions" }}
    {%- endif -%}
<|end|>
{%- endif %}
{%- set last = namespace(call=none) %}
{%- for m in turns %}
    {%- if m.role == "assistant" %}
        {%- if "<|channel|>" in (m.content or "") %}{{ raise_exception("Channels are not part of the content") }}{% endif %}
        {%- if m.tool_calls %}
            {%- set call = m.tool_calls[0].function or m.tool_calls[0] %}
            {%- if m.thinking %}{{ "<|start|>assistant<|channel|>analysis<|message|>" ~ m.thinking ~ "<|end|>" }}{% endif %}
            {{- "<|start|>assistant to=functions." ~ call.name ~ "<|channel|>commentary json<|message|>" ~ call.arguments | tojson ~ "<|call|>" }}
            {%- set last.call = call.name %}
        {%- else %}
            {%- set later = turns[loop.index:] | selectattr("role", "equalto", "user") | list %}
            {%- if m.thinking and not later and not add_generation_prompt %}{{ "<|start|>assistant<|channel|>analysis<|message|>" ~ m.thinking ~ "<|end|>" }}{% endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" ~ m.content ~ ("<|return|>" if loop.last and not add_generation_prompt else "<|end|>") }}
            {%- set last.call = none %}
        {%- endif %}
    {%- elif m.role == "tool" %}
        {%- if last.call is none %}{{ raise_exception("A result without a call") }}{% endif %}
        {{- "<|start|>functions." ~ last.call }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
    {%- else %}
        {{- "<|start|>" ~ m.role ~ "<|message|>" ~ m.content ~ "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}
""",
    # One line.
    "phi": "{% for m in messages if m.role in ('system', 'user', 'assistant') and m.content %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}{{ '<|assistant|>\n' if add_generation_prompt else eos_token }}",
    # Documents, a dated system prompt that depends on what is there, controls.
    "granite": """{%- set has = {'tools': tools is defined and tools, 'documents': documents is defined and documents} %}
{%- if messages[0]['role'] == 'system' %}
  {%- set system = messages[0]['content'] %}{% set loop_messages = messages[1:] %}
{%- else %}
  {%- set system %}
Today's Date: {{ strftime_now('%B %d, %Y') }}.
You are a model.{% if has.tools and has.documents %} Use tools and documents.{% elif has.tools %} Use tools.{% elif has['documents'] %} Use documents.{% endif %}
  {%- if thinking and not has.tools %} Think first.{% endif %}
  {%- endset %}
  {%- set loop_messages = messages %}
{%- endif %}
{{- '<|role|>system<|end_role|>' + system | trim + '<|text|>\n' }}
{%- if has.tools %}
  {{- '<|role|>tools<|end_role|>' + tools | map(attribute='function') | list | tojson(indent=2) + '<|text|>\n' }}
{%- endif %}
{%- for d in documents or [] %}
  {{- '<|role|>document ' + (loop.index | string) + '/' + loop.length | string + '<|end_role|>' + d.title | default('none', true) + ': ' + d['text'] + '<|text|>\n' }}
{%- endfor %}
{%- for m in loop_messages %}
  {{- '<|role|>' + m['role'] + '<|end_role|>' }}
  {%- if m.content is string %}{{ m.content }}{% elif m.content %}{{ m.content | selectattr('type', 'eq', 'text') | map(attribute='text') | join('\n') }}{% endif %}
  {%- if m.tool_calls %}{{ '<|tool_call|>' + m.tool_calls | map(attribute='function') | list | tojson }}{% endif %}
  {{- '<|text|>\n' }}
  {%- if loop.last and add_generation_prompt %}
    {{- '<|role|>assistant' }}{% if controls %}{{ ' ' + controls | tojson }}{% endif %}{{ '<|end_role|>' }}
  {%- endif %}
{%- endfor %}""",
    # A shown part of the content, thoughts behind the last user, arguments one by one.
    "glm": """[gMASK]<sop>
{%- for tool in tools or [] -%}
{% if loop.first %}<|system|>
Tools:
{% endif %}
{{ tool.function | tojson(ensure_ascii=False) }}
{% endfor -%}
{%- macro shown(content) -%}
{%- if content is string or content is number -%}{{ content }}
{%- elif content is iterable -%}{{ content | selectattr('text', 'defined') | join('', attribute='text') }}
{%- endif -%}
{%- endmacro -%}
{%- set users = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set users.last = loop.index %}{% endif %}{% endfor %}
{% for m in messages %}
{%- set text = shown(m.content) | trim %}
{%- if m.role == 'assistant' -%}
<|assistant|>
{%- set parts = text.split('</think>', 1) %}
{%- set thought = parts[0].replace('<think>', '').strip() if parts | length > 1 else '' %}
<think>{{ thought if loop.index > users.last }}</think>
{%- if parts[-1] %}{{ '\n' ~ parts[-1].strip() }}{% endif %}
{%- for call in m.tool_calls or [] %}
{{ '\n<tool_call>' ~ call.function.name }}
{% for name, value in call.function.arguments | items %}
<arg_key>{{ name }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor %}
</tool_call>
{%- endfor %}
{%- elif m.role == 'tool' -%}
{{ '<|observation|>' if loop.changed(m.role) }}
<tool_response>{{ text }}</tool_response>
{%- else -%}
<|{{ m.role }}|>
{{ text }}{{ '/nothink' if m.role == 'user' and enable_thinking is defined and not enable_thinking }}
{%- endif -%}
{%- endfor -%}
{% if add_generation_prompt %}<|assistant|>
{{ '<think></think>' if not enable_thinking | default(true) }}
{%- endif -%}""",
    # What the model wrote stands between {% generation %} tags; slow and fast thinking.
    "hunyuan": """{% if messages[0].role == 'system' %}{% set system, turns = messages[0].content, messages[1:] %}{% else %}{% set system, turns = none, messages %}{% endif %}
{{- '<|startoftext|>' }}{% if system %}{{ system }}<|extra_4|>{% endif %}
{%- for m in turns %}
{% if m.role == 'user' %}
{% if not loop.first and loop.previtem.role == 'assistant' %}<|startoftext|>{% endif %}
{{ ('/no_think' if enable_thinking is defined and not enable_thinking else '') ~ m.content }}<|extra_0|>
{%- elif m.role == 'assistant' %}
{%- generation %}{{ m.content if m.content is not none }}{% for c in m.tool_calls %}<call>{{ c.function.name }}:{{ c.function.arguments | dictsort | map('join', '=') | join('&') }}</call>{% endfor %}<|eos|>{% endgeneration %}
{%- elif m.role == 'tool' %}<tool>{{ m.content }}</tool>
{%- else %}{{ raise_exception('No role ' ~ m.role | upper) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and (turns | last).role != 'assistant' %}<answer>{% endif %}""",
    # Words for roles.
    "ernie": """{%- set names = dict(user='User', assistant='Assistant') -%}
<|begin_of_sentence|>
{%- for m in messages -%}
    {%- if m.role in names.keys() -%}
        {{- names[m.role] ~ ': ' ~ (m.content or '') ~ {'user': '\n', 'assistant': '<|end_of_sentence|>'}[m.role] -}}
    {%- elif m.role == 'system' -%}
        {{- m.content + '\n' -}}
    {%- endif -%}
{%- endfor -%}
{{- 'Assistant: ' if add_generation_prompt | default(true) -}}
""",
    # Long marks, parameters in tags, results in groups.
    "minimax": """{%- set begin, end = ']~!b[]~b]', '[e~[' %}
{%- macro tools_text(list) %}
{%- for t in list %}
<tool>{{ t.function | tojson(ensure_ascii=False) }}</tool>
{% endfor -%}
{% endmacro -%}
{%- macro text_of(content) %}{% if content is string %}{{ content }}{% elif content is iterable %}{% for p in content %}{{ p.text if p.type == 'text' }}{% endfor %}{% endif %}{% endmacro -%}
{%- set ns = namespace(last=-1, name='') %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last = loop.index0 -%}{% endif %}{%- endfor %}
{{- begin ~ 'system' ~ '\n' }}
{%- if messages and messages[0].role == 'system' %}{{ text_of(messages[0].content) }}{% set messages = messages[1:] %}{% set shift = 1 %}{% else %}Be useful.{% set shift = 0 %}{% endif %}
{%- if tools %}{{ '\n\n<tools>' }}{{ tools_text(tools) }}{{ '</tools>' }}{% endif %}
{{- end ~ '\n' }}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {{- ']~b]ai\n' }}
    {%- set thought = m.reasoning_content | default('', true) %}
    {%- if thought and loop.index0 + shift > ns.last %}{{ '<think>\n' ~ thought ~ '\n</think>\n\n' }}{% endif %}
    {{- text_of(m.content) }}
    {%- if m.tool_calls %}
      {{- '\n<calls>\n' }}
      {%- for call in m.tool_calls %}
        {%- set call = call.function if call.function is defined else call %}
        {{- '<invoke name="' ~ call.name ~ '">' }}
        {%- for k, v in call.arguments.items() %}{{ '<parameter name="' ~ k ~ '">' }}{{ v if v is string else v | tojson }}{{ '</parameter>' }}{% endfor %}
        {{- '</invoke>\n' }}
        {%- set ns.name = call.name %}
      {%- endfor %}
      {{- '</calls>' }}
    {%- endif %}
    {{- end ~ '\n' }}
  {%- elif m.role == 'tool' %}
    {%- if not ns.name %}{{ raise_exception('A result, but no call before it') }}{% endif %}
    {%- if loop.first or loop.previtem.role != 'tool' %}{{ ']~b]tool' }}{% endif %}
    {{- '\n<response>' ~ text_of(m.content) ~ '</response>' }}
    {%- if loop.last or loop.nextitem.role != 'tool' %}{{ end ~ '\n' }}{% endif %}
  {%- elif m.role == 'user' %}
    {{- ']~b]user\n' ~ text_of(m.content) ~ end ~ '\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}
""",
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather\nof a city.",
            "parameters": {
                "type": "object",
                "required": ["city"],
                "properties": {
                    "city": {"type": "string", "description": "Its name, Zürich or <so>"},
                    "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                    "days": {"type": "integer", "default": 1, "nullable": True},
                    "options": {
                        "type": "object",
                        "properties": {
                            "x": {"type": ["string", "null"]},
                            "y": {"type": "array", "items": {"type": "number"}},
                        },
                    },
                },
            },
            "return": {"type": "string"},
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
    },
]


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def called(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CONVERSATIONS = {
    "a question": {"messages": [said("user", " Hi, é😀 ")], "add_generation_prompt": True},
    "turns": {
        "messages": [
            said("system", "Be brief."),
            said("user", "Hi"),
            said("assistant", " Hello! "),
            said("user", "And <you>?"),
        ],
        "add_generation_prompt": True,
        "enable_thinking": False,
    },
    "no prompt to go on": {
        "messages": [
            said("user", "a"),
            said("assistant", "b"),
            said("user", "c"),
            said("assistant", "d", thinking="t", reasoning_content="t"),
        ]
    },
    "thoughts": {
        "messages": [
            said("user", "2+2?"),
            said("assistant", "<think>\nsum\n</think>\n\n4"),
            said("user", "3+3?"),
            said("assistant", "<think>\nagain\n</think>\n\n6", reasoning_content="again"),
        ],
        "thinking": True,
        "add_generation_prompt": False,
    },
    "tools": {
        "messages": [said("system", "Use tools."), said("user", "Weather in Zürich?")],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
    "calls": {
        "messages": [
            said("user", "Weather?"),
            said(
                "assistant",
                "",
                tool_calls=[called("weather", {"city": "Zürich", "days": 3, "options": {"y": [1.5, None]}})],
                thinking="Call it.",
                reasoning_content="Call it.",
            ),
            said("tool", "sunny", tool_call_id="call00001", name="weather"),
        ],
        "tools": TOOLS,
        "add_generation_prompt": True,
        "tools_in_user_message": True,
    },
    "calls and an answer": {
        "messages": [
            said("system", "S"),
            said("user", "Weather and time?"),
            said("assistant", None, tool_calls=[called("weather", {"city": "Oslo"}), called("now", {}, "call00002")]),
            said("tool", "rain", tool_call_id="call00001"),
            said("tool", "{\"t\": 12}", tool_call_id="call00002"),
            said("assistant", "Rain, at noon."),
            said("user", "Thanks"),
        ],
        "tools": TOOLS,
    },
    "parts": {
        "messages": [
            said(
                "user",
                [
                    {"type": "text", "text": "What is "},
                    {"type": "image", "url": "x"},
                    {"type": "text", "text": "this?"},
                ],
            )
        ],
        "add_generation_prompt": True,
    },
    "documents": {
        "messages": [said("user", "Sum up.")],
        "documents": [{"title": "T", "text": "One."}, {"text": "Two."}],
        "tools": None,
        "controls": {"length": "short"},
        "add_generation_prompt": True,
    },
    "two users": {"messages": [said("user", "a"), said("user", "b")], "add_generation_prompt": True},
    "an unknown role": {"messages": [said("user", "a"), said("critic", "b")]},
    "a result without a call": {"messages": [said("user", "a"), said("tool", "b")]},
    "nothing": {"messages": []},
}


def rendered(environment, template, context):
    try:
        return {"output": environment.from_string(template).render(**context)}
    except Exception as error:  # whatever it is: ours has to fail, too
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    environment = make_environment()
    cases = []
    for group, templates in SMALL.items():
        for number, case in enumerate(templates):
            template, context = case if isinstance(case, tuple) else (case, {})
            result = rendered(environment, template, context)
            cases.append(
                {"name": f"{group} {number}", "template": template, "renderings": [{"context": context, **result}]}
            )
    for family, template in CHATS.items():
        renderings = [
            {"name": name, "context": {**TOKENS, **context}, **rendered(environment, template, {**TOKENS, **context})}
            for name, context in CONVERSATIONS.items()
        ]
        cases.append({"name": family, "template": template, "renderings": renderings})
    text = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    (HERE / "jinja.json").write_text(f"[\n{text}\n]\n", encoding="ascii")


if __name__ == "__main__":
    main()
