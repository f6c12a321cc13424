#!/usr/bin/env python3
"""Writes tokenizers/: texts, small tokenizers of every kind, and the ids that the makers' libraries give for the texts.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0 gguf==0.19.0 regex
    python3 tests/goldens/make_tokenizers.py [OUT=tests/goldens/tokenizers]

The vocabularies are trained here on a part of the texts; normalizers, splits, flags, post-processors, decoders and added
tokens are composed as in the published tokenizers of each family. tokenizers/README.md says what the files hold. Ids are
those of `tokenizers` for tokenizer.json and for GGUF files of the same vocabulary, of `sentencepiece` for .model files (and
GGUF's "llama"), and of `tiktoken` for rank files. Two runs write the same bytes.

"long" in an expected.json is about a text of 1,000,000 letters that is in no file: with 64-bit arithmetic that wraps,
state = 1, and for each letter state = state * 6364136223846793005 + 1442695040888963407; the letter is number state >> 61
(from 0) of "etaoinsr". Of its ids there are the count and the FNV-1a hash (64 bits, offset 14695981039346656037, prime
1099511628211) over each id as four little-endian bytes.
"""
import base64
import collections
import io
import json
import logging
import pathlib
import re
import sys
import unicodedata

import gguf
import regex
import sentencepiece
import tiktoken
import tokenizers

OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent / "tokenizers"
MASK = (1 << 64) - 1

# --- the texts ---------------------------------------------------------------------------------------------------------

ENGLISH = [
    "",
    "a",
    "Hello",
    "Hello world",
    "Hello, world! How are you today?",
    " leading space",
    "  two leading spaces",
    "trailing space ",
    "trailing spaces    ",
    "   both   sides   ",
    "The quick ferry crosses the river twice a day, and the river does not mind.",
    "Experts that are rarely chosen stay in memory; those that are often chosen stay close to the processor.",
    "It's the engine's job: don't guess, we've measured, they're late, I'm here, you'll see, he'd know.",
    "IT'S THE ENGINE'S JOB, DON'T GUESS, WE'VE, THEY'RE, I'M, YOU'LL, HE'D",
    "It’s typographic, don’t you think? We’ve seen ‘quotes’ and “doubles” and „low ones“.",
    "I'LL 'S 's 'T 't 'RE 'Re 'rE 'VE 'M 'LL 'lL 'D x's' ''s '' ' s",
    "'s at the start, and 'tis odd; rock'n'roll o'clock 'twas y'all'd've",
    "the long s: it'ſ 'ſ Kelvin's \u212a'\u017f",
    "Mr. O'Neill-Smith (aged 42) paid $3.50, i.e. 10% more than £2.99 or €3,14!",
    "camelCase PascalCase snake_case kebab-case SCREAMING_CASE mixedUPanddown iPhone McDonald XMLHttpRequest2",
    "HTTPServer ABCdef abcDEF ÀÉÎõü ÑANDÚ ñandú Ǆungla ǅungla ǆungla",
    "supercalifragilisticexpialidociousantidisestablishmentarianismfloccinaucinihilipilification",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ababababababababababababababa abcabcabcabcabcabc xyxyxyx",
    "the the the the  the   the    the     the",
    "A.B.C. e.g. etc... and so on.. …",
    "?!?!?! ... --- === *** ### ~~~ ___ ||| \\\\\\ //// ;;;; ::::",
    "[a](b) {c: d} <e f=\"g\"/> (h, i); `j` #k @l ^m &n *o +p =q",
    "https://www.example.org/path/to/page?query=some%20thing&lang=en#part-2",
    "mail someone@example.com or visit http://127.0.0.1:8080/index.html, www.test.co.uk/~user/",
    "C:\\Users\\name\\file.txt /usr/local/lib/libm.so.6 ../up/./here.md",
    "Na\u00efve caf\u00e9 fa\u00e7ade co\u00f6perate \u00e9l\u00e8ve pi\u00f1ata \u00c5ngstr\u00f6m",
    "Nai\u0308ve cafe\u0301 fac\u0327ade coo\u0308perate e\u0301le\u0300ve pin\u0303ata A\u030angstro\u0308m",
]
NUMBERS = [
    "0", "7", "42", "123", "1234", "12345", "123456", "1234567", "12345678901234567890",
    "1 22 333 4444 55555 666666 7777777",
    "3.14159 -2.5e-10 1,000,000 0x1F 0b1010 1e9 .5 5. 1/2 50% №5",
    "2026-11-25T08:30:00Z 08:30:59.123 +49 (30) 1234-5678",
    "v1.2.3-rc4 x86_64 utf8 mp3 4K 1080p h264 a1b2c3 3D 2nd 1st",
    "٠١٢٣٤٥٦٧٨٩ ۰۱۲۳ १२३४५ ๑๒๓ ０１２３４ ᠑᠒ ၁၂၃",
    "½ ¼ ¾ ² ³ ₁₂ ① ⑳ Ⅷ ⅸ 〇 一二三 ㊿ 𝟘𝟙𝟚",
    "1234٥٦٧٨abc१२३４５６7",
]
SPACES = [
    " ", "  ", "   ", "    ", "        ", "                                ",
    "\n", "\n\n", "\n\n\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t\t", " \n", "\n ", " \n \n ", "\t \t \n\t",
    "a\nb", "a\n\nb", "a \n b", "a\r\nb\r\n", "a\tb", "a  b", "a   b    c", "a\n \n  b", "x\n\n   \n  y  \n",
    "line one\nline two\n\n\nline five\r\nline six\rline seven\n",
    "no\u00a0break \u00a0 thin\u2009 em\u2003 ideographic\u3000\u3000full hair\u200a narrow\u202f ogham\u1680x",
    "\u00a0", "\u3000", "\u2028line\u2029para\u0085next", "vertical\x0btab form\x0cfeed",
    "a \u3000 b\u3000 \u3000c \u00a0\u00a0d",
]
CODE = [
    "def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n",
    "class Ferry(Boat):\n\tdef __init__(self, *args, **kwargs):\n\t\tsuper().__init__()\n\t\tself.load = {}\n\n\n\tasync def go(self): ...\n",
    "#include <vector>\r\n\r\nint main() {\r\n    std::vector<int> v{1, 2, 3};\r\n    for (auto& x : v) x += 10;\r\n    return v[0] != 11;\r\n}\r\n",
    "template <typename T, std::size_t N>\nconstexpr auto size(const T (&)[N]) noexcept -> std::size_t { return N; }  // ok\n",
    "{\"name\": \"ferry\", \"layers\": [1, 2, 3], \"ok\": true, \"none\": null, \"pi\": 3.14}",
    "{\n  \"a\": {\n    \"b\": [\n      {\"c\": \"\\u00e9\\n\"}\n    ]\n  }\n}\n",
    "SELECT id, name FROM users WHERE age >= 18 AND name LIKE 'O''%' ORDER BY id DESC LIMIT 10;",
    "for i in $(seq 1 10); do echo \"$i: ${HOME}/x_$i\" >> out.log 2>&1; done",
    "x = [i**2 for i in range(10) if i % 2 == 0]    # squares\n\n\n\n\ny = x[::-1]\n",
    "<div class=\"box\">\n    <p>Text &amp; more&nbsp;text</p>\n</div><!-- end -->\n",
    "if (a && b || !c) { return a ? b : c; } else { a <<= 2; b >>= 1; c ^= ~d; }",
    "$$\\int_0^1 x^2\\,dx = \\frac{1}{3}$$ and \\textbf{bold} \\alpha_{i,j}",
    "                deep indent\n\t\t\t\tmixed\n        \t  odd\n",
    "#!/bin/sh\n# a comment\n\nset -eu\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n- item\n  - sub item\n    1. deep\n\n> quote\n\n```cpp\nint x;\n```\n",
]
SCRIPTS = [
    "今天天气很好，我们一起去河边坐渡船吧。",
    "混合专家模型每次只激活少数专家，因此速度更快。他说：“真的吗？”",
    "繁體中文與簡體中文的字形不同，但意思相近。「引號」、書名《紅》",
    "我在2026年11月25日买了3个apple和12.5kg的米。",
    "きょうはいい天気ですね。フェリーに乗って島へ行きましょう！カタカナとひらがな、漢字も。",
    "ﾊﾝｶｸ ｶﾀｶﾅ と ＦＵＬＬＷＩＤＴＨ ａｂｃ　１２３！？",
    "안녕하세요? 오늘은 날씨가 좋아서 배를 타고 강을 건넜습니다.",
    "\u1112\u1161\u11ab\u1100\u1173\u11af 한글 ㄱㄴㄷ ㅏㅑㅓ",
    "مرحبا بالعالم! العبّارة تعبر النهر مرتين في اليوم، أليس كذلك؟",
    "بِسْمِ السَّلَامِ وَالْمَحَبَّةِ ٪١٢٫٥ لا‌نهاية",
    "שלום עולם! המעבורת חוצה את הנהר פעמיים ביום.",
    "שָׁלוֹם לְכֻלָּם ״ציטוט״ צה״ל",
    "नमस्ते दुनिया! नाव दिन में दो बार नदी पार करती है। क्षत्रिय, ज्ञान, हिन्दी",
    "নমস্কার পৃথিবী! নৌকা নদী পার হয়।",
    "வணக்கம் உலகம்! படகு ஆற்றைக் கடக்கிறது.",
    "తెలుగు భాష ಕನ್ನಡ മലയാളം ગુજરાતી ਪੰਜਾਬੀ සිංහල",
    "สวัสดีชาวโลก เรือข้ามฟากข้ามแม่น้ำวันละสองครั้ง",
    "Привет, мир! Паром пересекает реку дважды в день. ЁЖИК ёжик Съешь ещё",
    "Їжак їсть ґудзик; мова — українська, а не російська.",
    "Γεια σου κόσμε! Το πλοίο διασχίζει το ποτάμι. ΑΘΗΝΑ ᾧ ἄνθρωπος ὕδωρ ς",
    "გამარჯობა მსოფლიო! ბორანი დღეში ორჯერ კვეთს მდინარეს. ᲡᲐᲥᲐᲠᲗᲕᲔᲚᲝ",
    "ሰላም ዓለም! ጀልባው በቀን ሁለት ጊዜ ወንዙን ይሻገራል።",
    "Բարև աշխարհ։ Լաստանավը օրը երկու անգամ անցնում է գետը:",
    "សួស្តីពិភពលោក! កាណូតឆ្លងទន្លេ",
    "མི་དམངས། བོད་ཡིག་གི་ཚིག",
    "မင်္ဂလာပါ ကမ္ဘာလောက",
    "Xin chào thế giới! Phà qua sông hai lần mỗi ngày. Tiếng Việt có dấu.",
    "Merhaba dünya! İstanbul'da ışık ılık, çığ düştü; ğüşöç ĞÜŞİÖÇ",
    "Grüße aus Köln: Straße, Fuß, ẞ, Übermut und Äpfel. Zażółć gęślą jaźń. Příliš žluťoučký kůň",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᓄᓇᕗᑦ ᚠᚢᚦᚨᚱᚲ ⴰⵎⴰⵣⵉⵖ ߒߞߏ",
    "𐐔𐐯𐑅𐐨𐑉𐐯𐐻 𐌲𐌿𐍄𐌹𐍃𐌺 𝐌𝐚𝐭𝐡 𝕊𝕥𝕪𝕝𝕖 𝒻𝒶𝓃𝒸𝓎 𠮷野家 𒀭𒂗",
    "ﬁrst oﬃce ĳs ŉ ǆ ʰʷ ª º ™ © ® ℃ ℵ ℝ Ω K Å",
    "English и русский 和中文 그리고 한국어 و العربية all in one",
]
EMOJI = [
    "😀", "😀😃😄 😁😆", "I ❤️ ferries ⛴️🚢!", "👍🏽👍🏿👋🏻", "👨‍👩‍👧‍👦 👩🏾‍🚀 🏳️‍🌈 🏴‍☠️", "🇩🇪🇯🇵🇺🇦 🇺🇳",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "#️⃣ 1️⃣ ☎︎ ☎️ ✔ ★☆ ♠♥ ♫ → ⇒ ≤ ≠ ∑ √ ∞ ∂ ░▒▓ ┌─┐ ⠓⠑",
    "(╯°□°)╯︵ ┻━┻ ¯\\_(ツ)_/¯ (づ｡◕‿‿◕｡)づ",
]
MARKS = [
    "e\u0301 vs \u00e9, a\u0323\u0307 vs a\u0307\u0323, \u1e69 s\u0323\u0307 s\u0307\u0323, o\u0302\u0301 \u1ed1, \u0344 \u0308\u0301",
    "\u0301alone \u0300\u0301\u0302 x\u0334\u0335\u0336y \u20ddz Z\u0351\u036b\u0343a\u0328\u0300l\u0329\u0321g\u0340o\u034f",
    "\u212b \u2126 \uf900 \ufa0e \u0958 \u0b5c \u2000\u2001 \ufb1d \U0001d15e \u1fef \u037e \u0387",
    "\u0915\u093c \u0958 \u09c7\u09be \u0dd9\u0dcf \u1100\u1161 \u1100\u1161\u11a8 \uac00\u11a8",
]
CONTROLS = [
    "\x00", "a\x00b", "\x00\x00\x00 nul \x00", "\x01\x02\x03 \x07bell \x08back \x1besc[31m \x7fdel",
    "\x80\x85\x9f c1 \xad soft\xadhyphen",
    "zero\u200bwidth \u200cnon\u200djoin\u2060er \ufeffbom \ufeff", "\ufeffbom first", "\u200e\u202ebidi\u202c\u2066x\u2069 \u061c",
    "\ufffd replacement \ufffe \uffff \U0010ffff \ue000 private \U000f0000", "\x1c\x1d\x1e\x1f separators",
    "\u2581 lower \u2581one\u2581eighth \u2581\u2581 block", "Ġ Ċ ĉ Ā ġ look like byte letters",
]
SPECIAL = [
    "<s>", "</s>", "<s>Hello</s>", "a <s> b</s>  c<unk>", "<|endoftext|>", "One.<|endoftext|>Two.<|endoftext|><|endoftext|>",
    "<|im_start|>user\nHi there!<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
    "<|start|>system<|message|>Be brief.<|end|><|start|>assistant<|channel|>final<|message|>Ok.<|return|>",
    "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>Yes<｜end▁of▁sentence｜>",
    "[gMASK]<sop><|user|>\nHi<|assistant|>\n<tool_call>f</tool_call>",
    "<s>[INST] Hi [/INST] Yes</s> [INST]no[/INST]", "<|user|>\nHi<|end|>\n<|assistant|> \n ok<|end|>",
    "<s", "s>", "< s >", "<S>", "<|endoftext|", "<|endoftext |>", "|endoftext|>", "<|end of text|>", "<<s>>", "<s><s", "</s>>",
    "<|im_start|><|im_start",
    "<0x41><0x0A> <0xZZ> <pad> <mask> [MASK] [PAD7]",
]
CUTS = [  # and PROBES are tokens that reach over these cuts, or over places where there is none
    "a'Sq b'LLq c'REq d'VEq e'Mq f'Dq g'Tq h'sq i'llq j'req k'veq l'mq m'dq n'tq 'Sq 'llq",
    "o'\u017fq '\u017fq p'Sq\u017f 'Re'Ve q'REq",
    "90\u00b0  \u00b0 \n\u00b0  \n \u00b0  ", "\u00bd  \u2009 x\u00b0   ",
    "中文abc カタカナabc abcの ひらabc 한국abc abc中 中1文 1文",
    "!\n/a ?/\n//b .\n\n/c +\r\n/d\n/e", "a\u02b0b \u02b0A A\u02b0 x\u00aay B\u02b0c\u01c5d\u01c5",
    "12345678 1234ab 1\u0662\u06633 99\u00b2 7\u2167", ",a ;b (c /d _e .f #g $h <i `j \u201ck \u2014l",
    "a\u0301b\u0301c \u0915\u093f\u0915 (\u0301a -\u0301b",
]
PROBES = """Sq Lq Eq Mq Dq Tq sq lq eq mq dq tq \u017fq \u00b0_ _\u00b0 文a カa 국a aの a中 ら_ !^ ^/ /^ a\u02b0 \u02b0b \u02b0A A\u02b0 \u01c5d
34 45 56 78 4a ,a ;b (c /d .f #g $h <i a\u0301 \u0301b \u093f\u0915"""
PROBES = [probe.replace("_", " ").replace("^", "\n") for probe in PROBES.split()]
FRAGMENTS = """a Bc ÉCOLE é e\u0301 中 文字 한 の カ 1 23 4567 ٣ ² Ⅷ ! ... / // , 。 “ ' 's 'LL 't '' _ - $ + = \u2581 😀 👍🏽 \u200d \ufe0f
ا ก ั क् ǅ ʰ ª 𐐔 <s> <| |> [INST] ß ſ İ The ferry returns DON'T x1 λόγος Ж"""
FRAGMENTS = FRAGMENTS.split()
FRAGMENTS += [" ", " ", " ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\x00", "\u2028", "\u0085"]


class Lcg:
    def __init__(self, state=1):
        self.state = state

    def step(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return self.state

    def below(self, n):
        return (self.step() >> 33) % n


def mixed(count):
    lcg = Lcg(3)
    return ["".join(FRAGMENTS[lcg.below(len(FRAGMENTS))] for _ in range(30)) for _ in range(count)]


TEXTS = ENGLISH + NUMBERS + SPACES + CODE + SCRIPTS + EMOJI + MARKS + CONTROLS + CUTS + mixed(24) + SPECIAL

BYTES = [  # not UTF-8: cut, overlong, surrogates, beyond the last character, bytes that lead nothing
    b"\xff", b"\xfe\xff", b"\x80", b"\xbf\xbf", b"a\x80b", b"\xc3", b"\xc3(", b"caf\xc3", b"\xe2\x82", b"\xe2\x82 ok",
    b"\xe2(\xa1", b"\xf0\x9f\x98", b"x\xf0\x9f\x98y", b"\xf0\x9f", b"\xf0(\x8c\xbc", b"\xc0\xaf", b"\xc0\x80", b"\xc1\xbf",
    b"\xe0\x80\xaf", b"\xe0\x9f\xbf", b"\xf0\x80\x80\xaf", b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"ok \xe4\xbd\xa0\xe5\xa5 end", b"\xe4\xbd\xa0\xff\xe5\xa5\xbd",
    b"\xf0\x9f\x98\x80\xf0\x9f\x98", bytes(range(120, 256)), b"tail\n\xe2", b"<s>\xff</s>",
]
REPAIRED = [raw.decode("utf-8", errors="replace") for raw in BYTES]
ALL = TEXTS + REPAIRED

TRAINED_ON = (ENGLISH + NUMBERS + SPACES + CODE + SCRIPTS + EMOJI + MARKS + CONTROLS)[::2]
TRAINING = TRAINED_ON + [
    "the ferry and the river, the expert and the router, the memory and the processor are in the engine of the model " * 2,
    "return for in range if else import from class def self print int auto const std vector size string template",
    "    for i in range(10):\n        print(i)\n    return None\n\n    if x == 1:\n        y = [0] * 10\n",
    "это не так, как было раньше, и паром снова идёт по реке через город",
    "我们的模型有很多专家，我们一起去河边。这是一个很好的模型。",
    "it's don't we've they're I'm you'll he'd that's isn't can't the engine's",
    "1 2 3 10 20 30 100 200 300 1000 2000 2024 2025 2026 12 123 1234",
]


def long_text():
    lcg = Lcg()
    return "".join("etaoinsr"[lcg.step() >> 61] for _ in range(1_000_000))


LONG = long_text()


def fingerprint(ids):
    value = 14695981039346656037
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = (value ^ byte) * 1099511628211 & MASK
    return {"count": len(ids), "fnv1a": f"{value:016x}"}


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


KINDS = []


def write(path, value, pretty=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2) if pretty else compact(value)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def sequences(ids, count=24):
    """Ids in an order that no text has: half of them of any, half of the first 300 (bytes, for the most part)."""
    lcg, made = Lcg(20261125), []
    for i in range(count):
        few = ids if i % 2 else ids[:300]
        made.append([few[lcg.below(len(few))] for _ in range(1 + lcg.below(9))])
    return made


BYTE_ORDER = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_ORDER += [b for b in range(256) if b not in BYTE_ORDER]  # GPT-2's, and that of published rank files
BYTE_LETTERS = {b: chr(b) if n < 188 else chr(256 + n - 188) for n, b in enumerate(BYTE_ORDER)}


def letters(raw):
    return "".join(BYTE_LETTERS[b] for b in raw)


# --- tokenizer.json ----------------------------------------------------------------------------------------------------

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN3_5 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(ending, digits):
    """The split of o200k (with contractions) and of tekken (without)."""
    words = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ending}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ending}"
    return words + rf"|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


O200K = cased("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}")
TEKKEN = cased("", "")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
# DeepSeek's own letters: ranges of characters that have a case, first and last of each
CASED = """41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1
3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15
1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3
1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139
213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E
AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
1E900-1E943"""
LETTERS = "".join("-".join(chr(int(c, 16)) for c in part.split("-")) for part in CASED.split())
DEEPSEEK_V3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
               "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, trim=True, use_regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": use_regex}


def sequence(name, *parts):
    return {"type": "Sequence", name: list(parts)}


def pre(*parts):
    return sequence("pretokenizers", *parts)


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def metaspace(scheme, cut):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


def template(*before, after=()):
    """A TemplateProcessing of these tokens around the text; numbered() fills in their ids."""
    single = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    single += [{"SpecialToken": {"id": t, "type_id": 0}} for t in after]
    pair = [dict(part) for part in single] + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {t: {"id": t, "ids": [], "tokens": [t]} for t in (*before, *after)}}


def token(content, special=True, normalized=False, single_word=False, lstrip=False, rstrip=False):
    return {"id": -1, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip, "normalized": normalized,
            "special": special}


def document(model, added=(), normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added), "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model}


def bpe(vocab=None, merges=(), **flags):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {**model, **flags, "vocab": vocab or {}, "merges": list(merges)}


def train(size, normalizer=None, pre_tokenizer=None, alphabet=(), limit=None, uncut=100):
    """Tokens in the order of their ids, and merges. The last `uncut` are learned from texts that nothing cuts, and so most of
    them reach over places where the pre-tokenizer cuts: a cut that is forgotten changes ids. limit: how many characters are
    seen (the trainer's own limit does not choose the same ones in every run)."""
    texts = TRAINING
    if limit is not None:
        counts = collections.Counter("".join(TRAINING))
        seen = set(sorted(counts, key=lambda c: (-counts[c], c))[:limit])
        texts = ["".join(c if c in seen else " " for c in text) for text in TRAINING]
    known, learned = [], []
    for step, total in ((pre_tokenizer, size - uncut), (byte_level(use_regex=False) if alphabet else None, size)):
        tokenizer = tokenizers.Tokenizer.from_str(compact(document(bpe(), normalizer=normalizer, pre_tokenizer=step)))
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        model = json.loads(tokenizer.to_str())["model"]
        known = known or sorted((t for t in model["vocab"] if len(t) == 1), key=model["vocab"].get)
        for merge in map(tuple, model["merges"]):
            if len(known) < total and merge[0] + merge[1] not in known:
                known.append(merge[0] + merge[1])
                learned.append(merge)
    for probe in PROBES if alphabet else []:
        parts = [letters(c.encode()) for c in probe]
        for part in (*parts, parts):
            for n in range(1, len(part)):
                if "".join(part[: n + 1]) not in known:
                    known.append("".join(part[: n + 1]))
                    learned.append(("".join(part[:n]), part[n]))
    return known, learned


def every_way(tokens):
    """Every way to make a token of two others is a merge, as in files that were converted from rank files."""
    rank = {t: i for i, t in enumerate(tokens)}
    merges = []
    for t in tokens:
        ways = [(t[:n], t[n:]) for n in range(1, len(t)) if t[:n] in rank and t[n:] in rank]
        merges += sorted(ways, key=lambda way: (rank[way[0]], rank[way[1]]))
    return merges


def words_without_merges(tokens, pre_tokenizer, count):
    """Words of the texts that no merges make: only `ignore_merges` finds them."""
    tokenizer = tokenizers.Tokenizer.from_str(compact(document(bpe(), pre_tokenizer=pre_tokenizer)))
    words = dict.fromkeys(word for text in TEXTS for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    return [word for word in words if len(word) > 3 and word not in tokens][5::11][:count]


def numbered(document_):
    """Gives added tokens their ids as the library does, and the post-processor those."""
    vocab = document_["model"]["vocab"]
    following = len(vocab)
    ids = {}
    for item in document_["added_tokens"]:
        if item["content"] in vocab:
            item["id"] = vocab[item["content"]]
        else:
            item["id"], following = following, following + 1
        ids[item["content"]] = item["id"]
    post = document_["post_processor"] or {}
    for processor in post.get("processors", [post]):
        for name, entry in processor.get("special_tokens", {}).items():
            entry["ids"] = [ids[name]]
    return document_


def own_texts(added):
    """Texts with the tokens that this tokenizer has and the others may not."""
    made = []
    for item in added[:6]:
        t = item["content"]
        made += [t, f"a{t}b", f" {t} ", f"x  {t}\n\n y", t + t, t[:-1], t[1:], t.swapcase()]
    made.append("".join(item["content"] for item in added))
    made.append(" and ".join(item["content"] for item in added[::-1]))
    return made


def changes(ids, texts, decode):
    """decode()'s texts where they are not the text itself."""
    return {str(i): got for i, (one, text) in enumerate(zip(ids, texts)) if (got := decode(one)) != text}


def expect(tokenizer, own):
    texts = ALL + own
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    whole = [tokenizer.encode(text).ids for text in texts]
    empty = tokenizer.encode("").ids
    cut = next(n for n in range(len(empty) + 1) if all(empty[:n] + a + empty[n:] == b for a, b in zip(ids, whole)))
    made = sequences(sorted(tokenizer.get_vocab().values()))
    return {
        "own": own, "prefix": empty[:cut], "suffix": empty[cut:], "ids": ids,
        "decoded": changes(ids, texts, lambda one: tokenizer.decode(one, skip_special_tokens=False)),
        "skipped": changes(ids, texts, lambda one: tokenizer.decode(one, skip_special_tokens=True)),
        "sequences": [{"ids": one, "decoded": tokenizer.decode(one, skip_special_tokens=False),
                       "skipped": tokenizer.decode(one, skip_special_tokens=True)} for one in made],
        "long": fingerprint(tokenizer.encode(LONG, add_special_tokens=False).ids),
    }


def configured(config, expected, ids):
    """The ids around a text where tokenizer_config.json's add_bos_token and add_eos_token decide on them."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return {"config_prefix": expected["prefix"], "config_suffix": expected["suffix"]}
    around = {end: [ids[config[f"{end}_token"]]] if config.get(f"add_{end}_token") else [] for end in ("bos", "eos")}
    return {"config_prefix": around["bos"], "config_suffix": around["eos"]}


def save(kind, document_, config=None, own=None, old_merges=True, drop=()):
    """Writes a kind's folder. old_merges: merges as "a b", as in files of before the end of 2024, not as ["a", "b"]."""
    numbered(document_)
    model = document_["model"]
    model["merges"] = [" ".join(pair) if old_merges else list(pair) for pair in model["merges"]]
    for name in drop:
        del model[name]
    write(OUT / kind / "tokenizer.json", document_)
    tokenizer = tokenizers.Tokenizer.from_file(str(OUT / kind / "tokenizer.json"))
    for item in document_["added_tokens"]:
        assert tokenizer.token_to_id(item["content"]) == item["id"], (kind, item)
    expected = expect(tokenizer, own_texts(document_["added_tokens"]) if own is None else own)
    if config is not None:
        write(OUT / kind / "tokenizer_config.json", config, pretty=True)
        expected = {**configured(config, expected, tokenizer.get_vocab()), **expected}
    write(OUT / kind / "expected.json", expected)
    KINDS.append({"kind": kind, "format": "tokenizer.json", "file": f"{kind}/tokenizer.json", "expected": f"{kind}/expected.json"})


def save_byte_level(kind, size, pre_tokenizer, added, normalizer=None, post_processor=None, decoder=None, first=0, gap=0,
                    unmerged=0, converted=False, missing="", config=None, own=None, old_merges=True, drop=(), **flags):
    """A byte-level kind. first: how many added tokens have the first ids; gap: ids that nobody has before the others, which
    are in the model's vocabulary then; unmerged: how many words only `ignore_merges` finds; converted: every way to make a
    token is a merge; missing: letters of bytes that are no tokens of the model."""
    tokens, merges = train(size, normalizer, pre_tokenizer, set(tokenizers.pre_tokenizers.ByteLevel.alphabet()) - set(missing))
    merges = every_way(tokens) if converted else merges
    tokens += words_without_merges(set(tokens), pre_tokenizer, unmerged) if unmerged else []
    contents = [item["content"] for item in added]
    assert not set(contents) & set(tokens)
    vocab = {t: i for i, t in enumerate(contents[:first] + tokens)}
    if gap:
        vocab.update({t: len(tokens) + first + gap + (i + 2 * (i > 2)) for i, t in enumerate(contents[first:])})
    decoder = decoder or byte_level(prefix=True)
    save(kind, document(bpe(vocab, merges, **flags), added, normalizer, pre_tokenizer, post_processor, decoder), config, own,
         old_merges, drop)


NFC = {"type": "NFC"}


def special_tokens(*names):
    return [token(name) for name in names]


def plain_tokens(*names):
    return [token(name, special=False) for name in names]


def config_of(bos=None, eos=None, made_by="PreTrainedTokenizerFast", **more):
    return {**more, "bos_token": bos, "clean_up_tokenization_spaces": False, "eos_token": eos, "model_max_length": 4096,
            "tokenizer_class": made_by, "unk_token": None}


def flag_tokens(names):
    """All 32 combinations of flags. A token's name tells them: s special, n normalized, w single_word, l lstrip, r rstrip."""
    return [token(names(f"{''.join(f for f, on in zip('snwlr', bits) if on) or '0'}"), *bits)
            for bits in (tuple(bool(i >> b & 1) for b in range(5)) for i in range(32))]


def flag_texts(added, others):
    made = list(others)
    for item in added:
        t = item["content"]
        made += [f"x {t} y", f"a{t}b _{t}\n {t}  .{t}"]
    made.append("".join(item["content"] for item in added))
    made.append(" ".join(item["content"] for item in added))
    made.append("  ".join(item["content"] + "\t" for item in added[::-1]))
    return made


def make_byte_level_kinds():
    # GPT-2: a file of 2020 has no type of model, no byte_fallback, no ignore_merges, and its token is normalized
    save_byte_level("gpt2", 640, byte_level(), [token("<|endoftext|>", normalized=True)],
                    post_processor=byte_level(prefix=True, trim=False),
                    drop=("type", "byte_fallback", "ignore_merges"), continuing_subword_prefix="", end_of_word_suffix="",
                    config=config_of("<|endoftext|>", "<|endoftext|>", "GPT2Tokenizer", add_prefix_space=False))
    # a byte-level kind with the space before the first word, and RoBERTa's <mask>
    save_byte_level("prefix_space", 560, byte_level(prefix=True),
                    [*special_tokens("<s>", "</s>", "<unk>"), token("<mask>", lstrip=True)],
                    post_processor=template("<s>", after=("</s>",)), first=3)
    # OLMoE (GPT-NeoX): NFC, and runs of spaces as normalized tokens
    runs = [token(" " * n, special=False, normalized=True) for n in range(24, 1, -1)]
    save_byte_level("olmoe", 600, byte_level(),
                    [*special_tokens("<|endoftext|>", "<|padding|>"), *runs, token("|||EMAIL|||", special=False)],
                    normalizer=NFC, post_processor=byte_level(trim=False), decoder=byte_level(), first=2,
                    config=config_of(None, "<|endoftext|>", "GPTNeoXTokenizer"))
    # OLMo 2 and FlexOlmo: cl100k's tokens, "Removed" and inverted; ids with gaps
    save_byte_level("olmo2", 620, pre(split(LLAMA3, "Removed", True), byte_level(use_regex=False)),
                    special_tokens("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|endofprompt|>"), gap=3,
                    config=config_of("<|endoftext|>", "<|endoftext|>", "GPT2Tokenizer"))
    # Qwen2-MoE, Qwen3-MoE, Qwen3-Next, dots.llm1
    qwen = [*special_tokens("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            *plain_tokens("<tool_call>", "</tool_call>", "<think>", "</think>")]
    save_byte_level("qwen3", 640, pre(split(QWEN2), byte_level(trim=False, use_regex=False)), qwen, normalizer=NFC,
                    post_processor=byte_level(trim=False, use_regex=False), decoder=byte_level(trim=False, use_regex=False),
                    continuing_subword_prefix="", end_of_word_suffix="",
                    config=config_of(None, "<|im_end|>", "Qwen2Tokenizer", add_bos_token=False, add_prefix_space=False))
    save_byte_level("qwen3_5", 620, pre(split(QWEN3_5), byte_level(trim=False, use_regex=False)), qwen, normalizer=NFC,
                    old_merges=False,
                    post_processor=byte_level(trim=False, use_regex=False), decoder=byte_level(trim=False, use_regex=False),
                    continuing_subword_prefix="", end_of_word_suffix="",
                    config=config_of(None, "<|im_end|>", "Qwen2Tokenizer", add_prefix_space=False))
    # Llama 3 and 4
    llama = special_tokens("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    begin = sequence("processors", byte_level(prefix=True, trim=False), template("<|begin_of_text|>"))
    save_byte_level("llama3", 620, pre(split(LLAMA3), byte_level(use_regex=False)), llama, post_processor=begin, unmerged=10,
                    converted=True, ignore_merges=True,
                    config=config_of("<|begin_of_text|>", "<|end_of_text|>"))
    save_byte_level("llama4", 620, pre(split(O200K), byte_level(use_regex=False)), llama,
                    post_processor=template("<|begin_of_text|>"),
                    old_merges=False, converted=True, ignore_merges=True, config=config_of("<|begin_of_text|>", "<|eot_id|>"))
    save_byte_level("gpt_oss", 640, pre(split(O200K), byte_level(use_regex=False)), old_merges=False, converted=True,
                    ignore_merges=True,
                    added=special_tokens("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>",
                                         "<|message|>"),
                    post_processor=byte_level(prefix=True, trim=False), config=config_of("<|startoftext|>", "<|return|>"))
    # DeepSeek: the first (LLM, MoE, V2) cuts in six steps, V3 in three. The first one's added tokens are normalized, and letters
    # of bytes that no text has are among them: a text's own "ö" is such a token, which decodes to that byte
    deepseek = special_tokens("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
    normalized = lambda names, special=False: [token(name, special, normalized=True) for name in names]
    rare = "øöúÿõ÷ûýÀùÁþü"
    none = sequence("normalizers")
    steps = [split("[\r\n]"), split(rf"\s?[{LETTERS}]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
             split("[一-龥ࠀ-一가-\ud7ff]+")]
    save_byte_level("deepseek_llm", 620, pre(*steps, {"type": "Digits", "individual_digits": True}, byte_level(use_regex=False)),
                    normalized(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"], True) + normalized(rare), missing=rare,
                    drop=("byte_fallback", "ignore_merges"), normalizer=none, post_processor=byte_level(prefix=True, trim=False),
                    config=config_of("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "LlamaTokenizerFast", add_bos_token=True,
                                     add_eos_token=False))
    save_byte_level("deepseek_v3", 640, pre(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK_V3),
                                            byte_level(use_regex=False)),
                    deepseek + normalized(["<｜User｜>", "<｜Assistant｜>"]) + normalized(["<|EOT|>"], True), drop=("ignore_merges",),
                    normalizer=none, post_processor=byte_level(prefix=True, trim=False), first=3,
                    config=config_of("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "LlamaTokenizerFast", add_bos_token=True,
                                     add_eos_token=False))
    # GLM-4
    save_byte_level("glm4", 620, pre(split(LLAMA3), byte_level(use_regex=False)), ignore_merges=True, unmerged=10, converted=True,
                    old_merges=False,
                    added=[*special_tokens("<|endoftext|>", "[MASK]", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>"),
                           *plain_tokens("<tool_call>", "</tool_call>")],
                    post_processor=sequence("processors", byte_level(prefix=True, trim=False), template("[gMASK]", "<sop>")),
                    config=config_of(None, "<|endoftext|>"))
    # Granite-MoE (StarCoder, Refact)
    save_byte_level("granite", 620, pre({"type": "Digits", "individual_digits": True}, byte_level()),
                    post_processor=byte_level(prefix=True, trim=False),
                    added=special_tokens("<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>"), first=5,
                    config=config_of("<|endoftext|>", "<|endoftext|>", "GPT2Tokenizer", add_bos_token=False,
                                     add_prefix_space=False))
    # MiniMax-M2: o200k's split, "Removed" and inverted
    save_byte_level("minimax_m2", 620, pre(split(O200K, "Removed", True), byte_level(use_regex=False)), normalizer=NFC,
                    continuing_subword_prefix="", end_of_word_suffix="", drop=("ignore_merges",),
                    added=[*special_tokens("]~!b[", "]~b]", "[e~["),
                           *plain_tokens("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>")],
                    config=config_of("]~!b[", "[e~[", "GPT2Tokenizer"))
    # Mistral's tekken
    save_byte_level("tekken", 620, pre(split(TEKKEN), byte_level(use_regex=False)),
                    special_tokens("<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
                    post_processor=template("<s>"), decoder=byte_level(), first=5, ignore_merges=True, unmerged=10,
                    old_merges=False,
                    config=config_of("<s>", "</s>"))
    # every combination of an added token's flags; contents that NFC changes, that are one another's beginnings, that decode oddly
    added = flag_tokens(lambda flags: f"<\u00e9{flags}>")
    added += [token("<e\u0301 x>", False, True), token("<e\u0301 y>", False, False), token("[in", False), token("[inst", False),
              token("[instr]"), token("\u00e9\u00ff", False), token("ferry", False, True, True)]
    others = ["[in [ins [inst [instr [instr] [instr]]", "ferry Ferry ferryman a ferry.ferry_ ferry-ferry \u00e9ferry ferry",
              "<e\u0301 x><\u00e9 x>", "<e\u0301 y><\u00e9 y>",
              "\u00e9\u00ff e\u0301\u00ff", "<e\u0301snwlr> <e\u0301n> <e\u03010>", "a<\u00e9lr> \n <\u00e9lr>b",
              "<\u00e9l>\u3000<\u00e9l>\u00a0<\u00e9r>\u3000\u00a0\u200b<\u00e9r>\u200b"]
    save_byte_level("flags_bytes", 480, byte_level(), added, normalizer=NFC, own=flag_texts(added, others), old_merges=False)


# --- the kinds that see characters, with tokens for bytes ---------------------------------------------------------------

PIECES = split("▁*[^▁0-9]+|[0-9]|▁+")  # what may be one token when these are trained
DECODERS = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
PREPEND = {"type": "Prepend", "prepend": "▁"}
USERS = ["[INST]", "[/INST]", "<|im_end|>", "\n\n"]  # a sentencepiece model's user-defined tokens
BYTE_TOKENS = [f"<0x{b:02X}>" for b in range(256)]


def sentencepiece_like(size, limit, before, byte_tokens=BYTE_TOKENS):
    """Tokens in the order of Llama's: special ones, bytes, merged ones, characters."""
    tokens, merges = train(size, sequence("normalizers", PREPEND, replace(" ", "▁")), PIECES, limit=limit, uncut=70)
    characters = [t for t in tokens if len(t) == 1]
    order = [*before, *byte_tokens, *(t for t in tokens if len(t) > 1), *characters]
    assert len(set(order)) == len(order)
    return {t: i for i, t in enumerate(order)}, merges


def make_character_kinds(model):
    decoders = lambda *parts: sequence("decoders", *parts)
    llama = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    basic = special_tokens("<unk>", "<s>", "</s>")
    prepend = sequence("normalizers", PREPEND, replace(" ", "▁"))

    # Mixtral (Llama 2): the sentencepiece model of this folder as transformers converts one; every way to make a token is a merge
    count = model.get_piece_size()
    vocab = {model.id_to_piece(i): i for i in range(count)}
    merges = []
    for i in range(count):
        piece = model.id_to_piece(i)
        if model.is_control(i) or model.is_unknown(i) or model.is_byte(i) or piece in USERS:
            continue
        ways = [(piece[:n], piece[n:]) for n in range(1, len(piece)) if piece[:n] in vocab and piece[n:] in vocab]
        merges += [(model.get_score(i), way) for way in sorted(ways, key=lambda way: (vocab[way[0]], vocab[way[1]]))]
    merges = [way for _, way in sorted(merges, key=lambda m: (m[0], len(m[1][0]), len(m[1][1])), reverse=True)]
    controls = [model.id_to_piece(i) for i in range(count) if model.is_control(i) and i > 2]
    save("mixtral", document(bpe(vocab, merges, **llama), basic + special_tokens(*controls) + plain_tokens(*USERS), prepend, None,
                             template("<s>"), decoders(*DECODERS, STRIP)),
         config=config_of("<s>", "</s>", "LlamaTokenizer", add_bos_token=True, add_eos_token=False))

    # later Mistrals: no normalizer, Metaspace
    inst = special_tokens("[INST]", "[/INST]", "[TOOL_CALLS]")
    vocab, merges = sentencepiece_like(420, 150, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"])
    save("metaspace_first", document(bpe(vocab, merges, **llama), basic + inst, None, metaspace("first", False), template("<s>"),
                                     decoders(*DECODERS, STRIP)),
         config=config_of("<s>", "</s>", "LlamaTokenizerFast"), old_merges=False)
    vocab, merges = sentencepiece_like(380, 150, ["<unk>", "<s>", "</s>"])
    always = metaspace("always", True)
    save("metaspace_always", document(bpe(vocab, merges, **llama), basic, None, always, template("<s>", after=("</s>",)),
                                      decoders({"type": "ByteFallback"}, always)))
    never = metaspace("never", False)
    save("metaspace_never", document(bpe(vocab, merges, **llama), basic, None, never, None, decoders(*DECODERS)), old_merges=False)

    # Phi-3.5-MoE: Llama 2's, and tokens that take the space behind them
    vocab, merges = sentencepiece_like(420, 170, ["<unk>", "<s>", "</s>"])
    phi = [token("<unk>"), token("<s>"), token("</s>", special=False, rstrip=True), token("<|endoftext|>")]
    phi += [token(name, rstrip=True) for name in ("<|assistant|>", "<|placeholder1|>", "<|system|>", "<|end|>", "<|user|>")]
    save("phimoe", document(bpe(vocab, merges, **llama), phi, prepend, None, template(), decoders(*DECODERS, STRIP)),
         config=config_of("<s>", "<|endoftext|>", "LlamaTokenizer", add_bos_token=False, add_eos_token=False))

    # ERNIE 4.5: only spaces replaced, many tokens
    tags = ["<unk>", "<s>", "</s>", "<mask:0>", "<|begin_of_sentence|>", "<|end_of_sentence|>"]
    vocab, merges = sentencepiece_like(420, 170, tags)
    ernie = [*special_tokens(*tags), token("<mask:1>", lstrip=True), token("<mask:7>", special=False, normalized=True),
             *special_tokens("<|LOC_0|>", "<|LOC_1|>", "<|LOC_10|>", "<|CROP_COL_SEP|>")]
    save("ernie4_5", document(bpe(vocab, merges, **llama), ernie, replace(" ", "▁"), None, template("<s>"), decoders(*DECODERS)),
         config=config_of("<s>", "</s>", "LlamaTokenizerFast", add_prefix_space=False))

    # Gemma 4: the same behind a split by blanks, which has nothing left to do; runs of white space, and tags, are added tokens
    tags = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>"]
    vocab, merges = sentencepiece_like(420, 170, tags)
    gemma = [*special_tokens(*tags), *plain_tokens("\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<table>", "</table>", "<|tool_call>")]
    save("gemma4", document(bpe(vocab, merges, **llama), gemma, replace(" ", "▁"), {**split(" ", "MergedWithPrevious"), "pattern": {"String": " "}},
                            template("<bos>"), decoders(*DECODERS)),
         config={**config_of("<bos>", "<eos>", "GemmaTokenizer"), "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}, old_merges=False)

    # Metaspace's own decoder, single digits and punctuation, no tokens of bytes: what is unknown is <unk>, together or one by one
    steps = pre(metaspace("never", True), {"type": "Digits", "individual_digits": True},
                {"type": "Punctuation", "behavior": "Isolated"})
    vocab, merges = sentencepiece_like(420, 170, ["<pad>", "<unk>", "<s>", "</s>"], [])
    few = special_tokens("<pad>", "<unk>", "<s>", "</s>")
    save("unknown_fused", document(bpe(vocab, merges, unk_token="<unk>", fuse_unk=True), few, None, steps, None, never))
    save("unknown_single", document(bpe(vocab, merges, unk_token="<unk>"), few, None, steps, None, never), old_merges=False)
    some = {t: i for i, t in enumerate([*vocab, *BYTE_TOKENS[:0xE0]])}  # byte_fallback without all bytes
    save("unknown_bytes", document(bpe(some, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True), few, None, steps, None,
                                   decoders({"type": "ByteFallback"}, never)))

    # every combination of an added token's flags behind Prepend and Replace
    vocab, merges = sentencepiece_like(300, 120, ["<unk>", "<s>", "</s>"])
    added = basic + flag_tokens(lambda flags: f"<a {flags}>")
    added += [token("▁<b>", False, True), token(" <c>", False, True), token(" <d>", False), token("ferry", False, True, True)]
    others = ["<b> a <b> ▁<b>", "<c> a <c>  <c>", "<d> a <d>  <d>", "ferry ferryman a ferry.ferry", "<a▁n> <a▁0>", "<a n>x<a n>",
              " <a s> x <a lr> \n"]
    save("flags_pieces", document(bpe(vocab, merges, **llama), added, prepend, None, template("<s>"), decoders(*DECODERS, STRIP)),
         own=flag_texts(added[3:], others))


def make_refused_kinds():
    words = ["[UNK]", "[CLS]", "[SEP]", "the", "ferry", "##s"]
    white = {"type": "Whitespace"}
    models = {
        "WordPiece": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                      "vocab": {w: i for i, w in enumerate(words)}},
        "WordLevel": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "[UNK]"},
        "Unigram": {"type": "Unigram", "unk_id": 0, "vocab": [[w, -float(i)] for i, w in enumerate(words)], "byte_fallback": False},
    }
    for name, model in models.items():
        kind = f"refused_{name.lower()}"
        write(OUT / kind / "tokenizer.json", numbered(document(model, special_tokens("[UNK]"), None, white)))
        tokenizers.Tokenizer.from_file(str(OUT / kind / "tokenizer.json"))
        write(OUT / kind / "expected.json", {"refused": name})
        KINDS.append({"kind": kind, "format": "tokenizer.json", "file": f"{kind}/tokenizer.json",
                      "expected": f"{kind}/expected.json"})


# --- sentencepiece ------------------------------------------------------------------------------------------------------

def make_sentencepiece(kind, **options):
    written = io.BytesIO()
    texts = TRAINING[len(TRAINED_ON) :] * 2 + ENGLISH[::2] + NUMBERS[:9] + CODE[::2]
    texts += SCRIPTS[:5:2] + SCRIPTS[17:18]  # the other scripts are bytes
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, num_threads=1, minloglevel=2, unk_id=0, bos_id=1, eos_id=2, pad_id=-1,
        normalization_rule_name="identity", **options)
    (OUT / kind).mkdir(parents=True, exist_ok=True)
    (OUT / kind / "tokenizer.model").write_bytes(written.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    users = options.get("user_defined_symbols", []) + options.get("control_symbols", [])
    own = own_texts([token(t) for t in users])
    texts = ALL + own
    ids = [model.encode(text, out_type=int) for text in texts]
    assert all(model.encode(t, add_bos=True, add_eos=True) == [1, *a, 2] for t, a in zip(texts, ids))
    write(OUT / kind / "expected.json", {
        "own": own, "prefix": [], "suffix": [], "ids": ids, "decoded": changes(ids, texts, model.decode),
        "sequences": [{"ids": one, "decoded": model.decode(one)} for one in sequences(list(range(model.get_piece_size())))],
        "long": fingerprint(model.encode(LONG, out_type=int)),
    })
    KINDS.append({"kind": kind, "format": "tokenizer.model", "file": f"{kind}/tokenizer.model",
                  "expected": f"{kind}/expected.json"})
    return model


def make_sentencepieces():
    like_llama = dict(byte_fallback=True, split_digits=True, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
                      character_coverage=0.98, max_sentence_length=8192)
    model = make_sentencepiece("spm_bpe", model_type="bpe", vocab_size=760, user_defined_symbols=USERS,
                               control_symbols=["<tool>", "<|control|>"], **like_llama)
    plain = make_sentencepiece("spm_bpe_plain", model_type="bpe", vocab_size=620, add_dummy_prefix=False, **like_llama)
    make_sentencepiece("spm_unigram", model_type="unigram", vocab_size=420, user_defined_symbols=USERS[:3],
                       control_symbols=["<tool>"], character_coverage=0.98, hard_vocab_limit=False)
    return model, plain


# --- tiktoken -----------------------------------------------------------------------------------------------------------

def train_ranks(pattern, size, normalize, uncut=100):
    ranks = {bytes([b]): i for i, b in enumerate(BYTE_ORDER)}
    for cut, total in ((lambda text: regex.findall(pattern, text), size - uncut), (lambda text: [text], size)):
        words = collections.Counter(word.encode() for text in TRAINING for word in cut(normalize(text)))
        parts = {word: [bytes([b]) for b in word] for word in words}
        while len(ranks) < total:
            pairs = collections.Counter()
            for word, split_ in parts.items():
                for pair in zip(split_, split_[1:]):
                    pairs[pair] += words[word]
            best = min(pairs, key=lambda pair: (-pairs[pair], pair))
            ranks.setdefault(best[0] + best[1], len(ranks))
            for word, split_ in parts.items():
                i = 0
                while i < len(split_) - 1:
                    if (split_[i], split_[i + 1]) == best:
                        split_[i : i + 2] = [best[0] + best[1]]
                    i += 1
    for probe in PROBES:
        for c in probe:
            for n in range(2, len(c.encode()) + 1):
                ranks.setdefault(c.encode()[:n], len(ranks))
        ranks.setdefault(probe.encode(), len(ranks))
    return ranks


def make_tiktoken(kind, file, pattern, size, special, unmerged=0, nfc=False, config=None):
    """unmerged: how many words are tokens that no merges make. nfc: the makers' code normalizes first (Qwen, Hunyuan)."""
    normalize = (lambda text: unicodedata.normalize("NFC", text)) if nfc else (lambda text: text)
    ranks = train_ranks(pattern, size, normalize)
    words = dict.fromkeys(word.encode() for text in TEXTS for word in regex.findall(pattern, text))
    for word in [word for word in words if len(word) > 3 and word not in ranks][5::11][:unmerged]:
        ranks[word] = len(ranks)
    numbers = {name: len(ranks) + i for i, name in enumerate(special)}
    encoding = tiktoken.Encoding(kind, pat_str=pattern, mergeable_ranks=ranks, special_tokens=numbers)
    lines = [f"{base64.b64encode(raw).decode()} {rank}" for raw, rank in ranks.items()]
    write(OUT / kind / file, "\n".join(lines))
    if config is not None:
        decoder = {str(i): {k: v for k, v in token(name).items() if k != "id"} for name, i in numbers.items()}
        write(OUT / kind / "tokenizer_config.json", {"added_tokens_decoder": decoder, **config}, pretty=True)
    own = own_texts(special_tokens(*special))
    texts = ALL + own
    ids = [encoding.encode_ordinary(normalize(text)) for text in texts]
    marked = [encoding.encode(normalize(text), allowed_special="all") for text in texts]
    decode = lambda one: encoding.decode_bytes(one).decode("utf-8", errors="replace")
    used = sorted([*ranks.values(), *numbers.values()])
    write(OUT / kind / "expected.json", {
        "pattern": pattern, "nfc": nfc, "special_tokens": numbers, "own": own, "prefix": [], "suffix": [], "ids": marked,
        "ordinary": {str(i): one for i, (one, other) in enumerate(zip(ids, marked)) if one != other},
        "decoded": changes(marked, texts, decode),
        "sequences": [{"ids": one, "bytes": base64.b64encode(encoding.decode_bytes(one)).decode()} for one in sequences(used)],
        "long": fingerprint(encoding.encode_ordinary(LONG)),
    })
    KINDS.append({"kind": kind, "format": "tiktoken", "file": f"{kind}/{file}", "expected": f"{kind}/expected.json"})
    return ranks, numbers


def make_tiktokens():
    make_tiktoken("tiktoken_cl100k", "cl100k_base.tiktoken", CL100K, 640,
                  ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|endofprompt|>"], unmerged=6)
    make_tiktoken("tiktoken_o200k", "o200k_base.tiktoken", O200K, 640, ["<|endoftext|>", "<|endofprompt|>"], unmerged=6)
    make_tiktoken("tiktoken_llama3", "tokenizer.model", LLAMA3, 620,
                  ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
                  config={"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"})
    make_tiktoken("tiktoken_qwen", "qwen.tiktoken", QWEN2, 640,
                  ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|extra_0|>", "<|extra_1|>"], nfc=True,
                  config={"tokenizer_class": "QWenTokenizer"})
    return make_tiktoken("tiktoken_hunyuan", "hy.tiktoken", QWEN2, 620,
                         ["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", "<|extra_0|>"], nfc=True,
                         config={"bos_token": "<|startoftext|>", "eos_token": "<|eos|>", "tokenizer_class": "HYTokenizer"})


# --- GGUF ---------------------------------------------------------------------------------------------------------------

def write_gguf(name, architecture, fill, like, prefix):
    path = OUT / "gguf" / f"{name}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    KINDS.append({"kind": f"gguf_{name}", "format": "gguf", "file": f"gguf/{name}.gguf", "expected": f"{like}/expected.json",
                  "prefix": prefix})


def looks_special(name):
    marks = (("<|", "|>"), ("<｜", "｜>"))
    return name in ("<pad>", "<mask>") or any(name.startswith(first) and name.endswith(last) for first, last in marks)


def byte_level_gguf(name, kind, architecture, pad=0):
    """A kind's vocabulary as llama.cpp's converter writes it. pad: rows of the embedding that have no token."""
    folder = OUT / kind
    document_ = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = {i: t for t, i in document_["model"]["vocab"].items()}
    added = {item["id"]: item for item in document_["added_tokens"]}
    vocab.update({i: item["content"] for i, item in added.items()})
    tokens, types = [], []
    for i in range(max(vocab) + 1 + pad):
        tokens.append(vocab.get(i, f"[PAD{i}]"))
        if i not in vocab:
            types.append(gguf.TokenType.UNUSED)
        elif i not in added:
            types.append(gguf.TokenType.NORMAL)
        else:
            control = added[i]["special"] or looks_special(vocab[i])
            types.append(gguf.TokenType.CONTROL if control else gguf.TokenType.USER_DEFINED)

    special = gguf.SpecialVocab(folder, load_merges=True)

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        special.add_to_gguf(writer, quiet=True)

    write_gguf(name, architecture, fill, kind, [special.special_token_ids["bos"]] if special.add_special_token.get("bos") else [])


def gemma4_gguf():
    """As llama.cpp's converter writes it."""
    folder = OUT / "gemma4"
    document_ = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {item["id"]: item for item in document_["added_tokens"]}
    vocab = {i: t for t, i in document_["model"]["vocab"].items()} | {i: item["content"] for i, item in added.items()}
    tokens, types = [], []
    for i in range(len(vocab)):
        tokens.append(vocab[i])
        kind = gguf.TokenType.BYTE if vocab[i] in BYTE_TOKENS else gguf.TokenType.NORMAL
        if i in added:
            kind = gguf.TokenType.CONTROL if added[i]["special"] else gguf.TokenType.USER_DEFINED
        types.append(kind)
    special = gguf.SpecialVocab(folder, load_merges=True)

    def fill(writer):
        writer.add_tokenizer_model("gemma4")
        writer.add_token_list(tokens)
        writer.add_token_scores([-1000.0] * len(tokens))
        writer.add_token_types(types)
        special.add_to_gguf(writer, quiet=True)
        writer.add_add_space_prefix(False)
        writer.add_add_bos_token(True)

    write_gguf("gemma4", "gemma4", fill, "gemma4", [special.special_token_ids["bos"]])


def expect_cut(name, model, users):
    """Of a GGUF file, whose user-defined tokens cut a text before the library sees it: it puts a blank in front of each part."""
    numbers = {t: model.piece_to_id(t) for t in users}
    cut = re.compile("(" + "|".join(map(re.escape, sorted(users, key=len, reverse=True))) + ")")
    encode = lambda text: [i for part in cut.split(text) if part
                           for i in ([numbers[part]] if part in numbers else model.encode(part, out_type=int))]

    def decode(ids):
        made, run = "", []
        for i in [*ids, None]:
            if i is not None and i not in numbers.values():
                run.append(i)
                continue
            made += model.decode(run) if run else ""
            made += model.id_to_piece(i) if i is not None else ""
            run = []
        return made

    own = own_texts([token(t) for t in users])
    texts = ALL + own
    ids = [encode(text) for text in texts]
    write(OUT / "gguf" / f"{name}.expected.json", {"own": own, "ids": ids, "decoded": changes(ids, texts, decode),
                                                   "long": fingerprint(encode(LONG))})


def sentencepiece_gguf(name, kind, model, architecture, space_prefix):
    tokens, scores, types = [], [], []
    users = USERS if kind == "spm_bpe" else []
    for i in range(model.get_piece_size()):
        piece, score, kind_of = model.id_to_piece(i), model.get_score(i), gguf.TokenType.NORMAL
        if model.is_unknown(i):
            kind_of = gguf.TokenType.UNKNOWN
        elif model.is_control(i):
            kind_of = gguf.TokenType.CONTROL
        elif model.is_byte(i):
            kind_of = gguf.TokenType.BYTE
        elif piece in users:  # which tokenizer_config.json names as added tokens
            score, kind_of = -1000.0, gguf.TokenType.USER_DEFINED
        assert piece.encode() not in tokens
        tokens.append(piece.encode())
        scores.append(score)
        types.append(kind_of)

    def fill(writer):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(False)
        if space_prefix is not None:
            writer.add_add_space_prefix(space_prefix)

    write_gguf(name, architecture, fill, kind, [1])
    if users:
        expect_cut(name, model, users)
        KINDS[-1]["expected"] = f"gguf/{name}.expected.json"


def hunyuan_gguf(ranks, numbers):
    merges = []
    for raw, rank in ranks.items():
        parts = [bytes([b]) for b in raw]
        while len(parts) > 1:
            rated = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
            low, i = min(rated)
            if low >= rank:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            merges.append(" ".join(map(letters, parts)))

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("hunyuan")
        writer.add_token_list([letters(raw) for raw in ranks] + list(numbers))
        writer.add_token_types([gguf.TokenType.NORMAL] * len(ranks) + [gguf.TokenType.CONTROL] * len(numbers))
        writer.add_token_merges(merges)
        writer.add_bos_token_id(numbers["<|bos|>"])
        writer.add_eos_token_id(numbers["<|eos|>"])
        writer.add_pad_token_id(numbers["<|pad|>"])

    write_gguf("hunyuan", "hunyuan-moe", fill, "tiktoken_hunyuan", [])


def make_ggufs(model, plain, hunyuan):
    for name, kind, architecture, pad in (
            ("gpt-2", "gpt2", "gpt2", 0), ("olmo", "olmoe", "olmoe", 2), ("dbrx", "olmo2", "olmo2", 0),
            ("chatglm-bpe", "olmo2", "chatglm", 0), ("qwen2", "qwen3", "qwen3moe", 5),
            ("qwen35", "qwen3_5", "qwen35moe", 0), ("llama-bpe", "llama3", "llama", 0), ("llama4", "llama4", "llama4", 0),
            ("gpt-4o", "gpt_oss", "gpt-oss", 4),
            ("deepseek-llm", "deepseek_llm", "deepseek", 0), ("deepseek-v3", "deepseek_v3", "deepseek2", 3),
            ("glm4", "glm4", "glm4moe", 0), ("starcoder", "granite", "starcoder2", 0),
            ("refact", "granite", "granitemoe", 0), ("minimax-m2", "minimax_m2", "minimax-m2", 0),
            ("tekken", "tekken", "llama", 0)):
        byte_level_gguf(name, kind, architecture, pad)
    hunyuan_gguf(*hunyuan)
    gemma4_gguf()
    sentencepiece_gguf("llama", "spm_bpe", model, "llama", None)
    sentencepiece_gguf("llama-plain", "spm_bpe_plain", plain, "ernie4_5-moe", False)


def main():
    logging.getLogger("gguf.vocab").setLevel(logging.ERROR)  # it wonders at GLM's two tokens before a text
    raws = [{"base64": base64.b64encode(raw).decode(), "text": text} for raw, text in zip(BYTES, REPAIRED)]
    write(OUT / "corpus.json", json.dumps({"texts": TEXTS, "bytes": raws}, separators=(",", ":")))
    make_byte_level_kinds()
    model, plain = make_sentencepieces()
    make_character_kinds(model)
    make_refused_kinds()
    hunyuan = make_tiktokens()
    make_ggufs(model, plain, hunyuan)
    write(OUT / "kinds.json", KINDS, pretty=True)


if __name__ == "__main__":
    main()
