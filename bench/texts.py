#!/usr/bin/env python3
"""Makes the texts over which routing was recorded and quality measured for docs/results/.

  bench/texts.py FOLDER [--gsm8k test.jsonl] [--shakespeare input.txt] [--python /usr/lib/python3.11]

Into FOLDER go calibration-NAME.txt, for tuning, and test-NAME.txt, for reporting:
gsm8k        questions and answers of GSM8K's test set without its calculator marks (MIT)
shakespeare  the end of tinyshakespeare (public domain)
python       modules of CPython 3.11 (PSF-2.0), as Debian 12 installs them (python3, python3-distutils)
The first two are downloaded unless files are named. Each text is compared with the one that was measured.
"""
import argparse
import hashlib
import json
import pathlib
import re
import sys
import urllib.request

GITHUB = "https://raw.githubusercontent.com/"
GSM8K = GITHUB + "openai/grade-school-math/b0bb162abedc65e1fdd8e93ed090fd7598ee68bc/grade_school_math/data/test.jsonl"
SHAKESPEARE = GITHUB + "karpathy/char-rnn/370cbcd448eb7daf32f21a6be560b70e0b33c4e3/data/tinyshakespeare/input.txt"
MODULES = ["telnetlib", "distutils/errors", "gettext", "xml/dom/xmlbuilder", "_threading_local",
           "_sysconfigdata__x86_64-linux-gnu", "_py_abc", "asyncio/timeouts", "zipfile"]
MEASURED = {  # SHA-256
    "calibration-gsm8k": "d9dc34affbfe1a6087686804df738c832ce9e8762ebafd9062f226918ad63b65",
    "calibration-python": "f3f150b63b60c21f13caa4647ab98cd87f3a4df4c4290cfa22b2a9eb9c620fb5",
    "calibration-shakespeare": "736bad4ae86d3c7911a886fbc64b71977ecfa96efeaa40638f36689e03f39c5a",
    "test-gsm8k": "84282dcfed3c52de042d3e64d81560ad4c43e501673440328973ddcad5dd96ed",
    "test-python": "3598bfcdaa0026b626e2ec792cf58f7c4307ccf36f0f425133788ede668625f0",
    "test-shakespeare": "276002d789717a841ccb78bed6c71c9d54f5419bf0c5ccd156175789609b957d",
}
PART = 60000


def refuse(message):
    sys.exit(f"texts.py: {message}")


def read(path, url):
    try:
        if path is not None:
            return path.read_bytes()
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except OSError as error:
        refuse(f"{path or url}: {error}; a file may be named with --gsm8k or --shakespeare")


def in_blocks(text):
    """Blocks of 4000 bytes, a line end between them: so the measured texts were put together."""
    return [text[at:at + 4000] for at in range(0, len(text), 4000)]


def gsm8k(path):
    parts = []
    for line in read(path, GSM8K).decode().splitlines():
        row = json.loads(line)
        answer = re.sub(r"<<[^>]*>>", "", row["answer"])
        parts.append(f"Question: {row['question']}\nAnswer: {answer}\n\n")
    text = "".join(parts).encode()
    return text[:PART], text[PART:2 * PART]


def shakespeare(path):
    text = b"\n".join(in_blocks(read(path, SHAKESPEARE)[1060000:]))
    return text[:len(text) // 2], text[len(text) // 2:]


def python(folder):
    blocks = []
    for module in MODULES:
        file = folder / f"{module}.py"
        if not file.is_file():
            refuse(f"{file}: not there; expected CPython 3.11's modules, as Debian's python3 and python3-distutils have them")
        blocks += in_blocks(file.read_bytes())[:10]  # no module has more
    text = b"\n".join(blocks[1:])  # the first begins in its second block
    return text[:PART], text[PART:2 * PART]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gsm8k", type=pathlib.Path)
    parser.add_argument("--shakespeare", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, default=pathlib.Path("/usr/lib/python3.11"))
    a = parser.parse_args()
    texts = {"gsm8k": gsm8k(a.gsm8k), "shakespeare": shakespeare(a.shakespeare), "python": python(a.python)}
    a.folder.mkdir(parents=True, exist_ok=True)
    for name, parts in texts.items():
        for kind, text in zip(("calibration", "test"), parts):
            file = f"{kind}-{name}"
            (a.folder / f"{file}.txt").write_bytes(text)
            same = hashlib.sha256(text).hexdigest() == MEASURED[file]
            print(f"{file}.txt: {len(text)} bytes, {'the text that was measured' if same else 'NOT the text that was measured'}")


if __name__ == "__main__":
    main()
