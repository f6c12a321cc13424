#!/usr/bin/env python3
"""Whether Ferry and llama.cpp generate the same tokens from GGUF files: each is given three prompts and takes the likeliest
token every time, on the CPU, with flash attention off.

  bench/run llama-cpp-greedy FILE.gguf... [--tokens N] [--ferry FILE] [--without-amx]

llama.cpp is given the tokens that Ferry generated, one by one: where it would take another one, that is counted, with what its
logits of the two differ by. Files without a tokenizer come from tests/goldens/make_gguf.py. Ends with status 1 if any token
differs by more than rounding (1e-3).
"""
import argparse
import json
import os
import struct
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # nothing is left beside the sources
from llama import Llama, enter_environment  # noqa: E402
from processes import Failure, Progress, run  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/llama-cpp"
PROMPTS = ["Once upon a time there was a ferry", "def f(x):\n    return", "The 3 boats: a, b and"]


def arguments():
    p = argparse.ArgumentParser(prog="bench/run llama-cpp-greedy", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+", type=Path)
    p.add_argument("--tokens", type=int, default=64, help="to generate behind each prompt (default: 64)")
    p.add_argument("--ferry", type=Path, help="the binary (default: built as reference_engine/run does)")
    p.add_argument("--without-amx", action="store_true", help="as bench/run llama-cpp has it")
    a = p.parse_args()
    if a.tokens < 1:
        p.error("--tokens: expected 1 or more")
    for file in a.files:
        if not file.is_file():
            p.error(f"{file}: no file is there")
    if a.ferry and not os.access(a.ferry, os.X_OK):
        p.error(f"--ferry: {a.ferry}: no program is there")
    return a


def generated(ferry, file, prompts, tokens, scratch):
    """What Ferry generates behind each prompt, and its logits."""
    import numpy as np
    ids, numbers, logits = scratch / "ids", scratch / "ferry.json", scratch / "logits.safetensors"
    ids.write_text("\n".join(" ".join(str(t) for t in p) for p in prompts))
    run([ferry, "run", "--model", file, "--stack", "ferry", "--budget", "50%", "--device", "cpu", "--token-ids", ids, "--max-new-tokens",
         tokens, "--json", numbers, "--logits", logits], "ferry run")
    content = logits.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:start])
    made = json.loads(numbers.read_text())["token_ids"]
    rows = []
    for i, chosen in enumerate(made):
        begin, end = header[f"logits.{i}"]["data_offsets"]
        values = np.frombuffer(content[start + begin:start + end], np.float32)
        rows.append(values.reshape(len(chosen), -1) if chosen else values)
    return made, rows


def compare(llama, file, prompts, made, ours):
    """How many tokens there are, how many of them llama.cpp would not have taken, by how much its logits of such two differ at
    most, and the largest difference of any logit."""
    import numpy as np
    tokens = other = 0
    gap = difference = 0.0
    for prompt, chosen, logits in zip(prompts, made, ours):
        if not chosen:
            continue  # the first token that it chose ends the text
        theirs = llama.logits(file, [*prompt, *chosen[:-1]], 1)[len(prompt) - 1:]
        difference = max(difference, float(np.abs(theirs - logits).max()))
        for token, row in zip(chosen, theirs):
            tokens += 1
            if row.argmax() != token:
                other += 1
                gap = max(gap, float(row.max() - row[token]))
    return tokens, other, gap, difference


def main():
    a = arguments()
    progress = Progress()
    try:
        enter_environment(FOLDER / "venv", progress)
        llama = Llama(FOLDER, progress, not a.without_amx)
        if a.ferry is None:
            progress.step("building ferry, if it has changed")
            run([ROOT / "reference_engine/run", "--version"], "building ferry")
            a.ferry = ROOT / "build/engine/reference_engine/ferry"
        rows = []
        with tempfile.TemporaryDirectory() as scratch:
            for i, file in enumerate(a.files):
                progress.step(f"[{i}/{len(a.files)}] {file.name}")
                prompts = [[256, *p.encode()] for p in PROMPTS]  # 256 begins a text of bytes
                made, logits = generated(a.ferry, file, prompts, a.tokens, Path(scratch))
                rows.append((file.name, *compare(llama, file, prompts, made, logits)))
        progress.clear()
        print("| file | tokens | others in llama.cpp | by logits of | logits differ by |\n| --- | ---: | ---: | ---: | ---: |")
        for name, tokens, other, gap, difference in rows:
            print(f"| {name} | {tokens} | {other} | {gap:.5f} | {difference:.5f} |")
        sys.exit(any(gap > 1e-3 for _, _, _, gap, _ in rows))
    except KeyboardInterrupt:
        progress.clear()
        print("bench/run llama-cpp-greedy: interrupted", file=sys.stderr)
        sys.exit(130)
    except (Failure, OSError) as error:
        progress.clear()
        print(f"bench/run llama-cpp-greedy: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
