#!/usr/bin/env python3
"""Whether examples/llama_cpp is right about a model that Ferry's engine runs, too.

  tests/llama_cpp/run MODEL.gguf --build FOLDER       (FOLDER has ferry, and the examples built beside an installed llama.cpp)

MODEL is to be in F32, so that both compute the same text; tests/goldens/make_gguf.py writes reference_engine/models/tiny-mixtral so.
It has no tokenizer: texts are tokens.

 1. The observer's figures are those of `ferry run`, for every stack that computes what the model does.
 2. They are those of `ferry simulate`, for every stack: over the trace that Ferry's engine recorded of the same tokens, and
    over the observer's own, also where the last layer computes one row of the prompt.
 3. The driver's text is llama.cpp's at every budget, whoever evicts; and after a `kill -9` nothing is left behind.
 4. Neither program replaces a file that it has not written.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # nothing is left beside the sources
PROMPT = [256, *b"Once upon a time there was a ferry"]
NEW = 40
MACHINE, SHAPE, CHUNK = "rtx3090-pcie3", "qwen1.5-moe-a2.7b", 16
COUNTS = ["requests", "hits", "late_hits", "misses", "substituted", "skipped", "host_computed", "bytes", "prefetched",
          "top_score_requests", "top_score_misses", "top_score_late_hits", "low_score_misses", "low_score_late_hits"]
failures = 0


def check(what, good, more=""):
    global failures
    failures += not good
    if not good:
        print(f"FAILED: {what} {more}", flush=True)


class Tools:
    def __init__(self, build, model, scratch):
        self.ferry = build / "reference_engine/ferry"
        self.observe = build / "examples/llama_cpp/llama_observe"
        self.drive = build / "examples/llama_cpp/llama_drive"
        self.model, self.scratch = model, scratch
        for tool in (self.ferry, self.observe, self.drive, model):
            if not tool.is_file():
                sys.exit(f"tests/llama_cpp/run: {tool}: no file is there; configure with CMAKE_PREFIX_PATH naming llama.cpp")

    def call(self, *command, fails=False):
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if (done.returncode != 0) != fails:
            sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stderr}")
        return done.stderr if fails else done.stdout

    def numbers(self, *command):
        file = self.scratch / "numbers.json"
        file.unlink(missing_ok=True)  # each tool refuses to replace what another one has written
        self.call(*command, "--json", file)
        return json.loads(file.read_text())

    def observed(self, *more, prompt=PROMPT, new=NEW):
        return self.numbers(self.observe, "--model", self.model, "--tokens", ",".join(map(str, prompt)), "--new-tokens", new,
                            "--machine", MACHINE, "--chunk", CHUNK, "--every", 0, "--threads", 1,
                            "--f32-cache", *more)

    def stacks(self):
        lines = self.call(self.ferry, "list", "stacks").splitlines()
        return [line.split()[0] for line in lines if re.match(r"  \S", line) and not line.startswith("  a file")]


def same(what, left, right):
    for phase in ("prefill", "decode"):
        for count in COUNTS:
            a, b = left[phase][count], right[phase][count]
            check(what, a == b, f"{phase}.{count} is {a}, expected {b}")


def check_observer(t):
    ids, trace, own = t.scratch / "ids", t.scratch / "engine.trace", t.scratch / "own.trace"
    ids.write_text(" ".join(map(str, PROMPT)))
    names = t.stacks()
    partial = [n for n in names if n in ("importance+pre", "importance-driven", "importance-balanced")]
    for name in partial:
        error = t.call(t.observe, "--model", t.model, "--tokens", "1,2", "--stacks", name, fails=True)
        check(name, "partial hidden states" in error, error)
    names = [n for n in names if n not in partial]
    check("stacks are there", len(names) > 25, names)

    live = t.observed("--stacks", ",".join(names), "--as-reference", "--all-outputs")
    check("llama.cpp's choices are those of its scores", live["other_choices"] == 0 and live["rows"] > 0)
    text = [int(token) for token in live["text"].split()]
    check("tokens were generated", len(text) == NEW)
    lossless = 0
    for name, figures in zip(names, live["stacks"]):
        run = t.numbers(t.ferry, "run", "--model", t.model, "--token-ids", ids, "--stack", name, "--max-new-tokens", NEW,
                        "--clock", "virtual", "--machine", MACHINE, "--prefill-chunk", CHUNK, "--defaults", "paper")
        if not run["lossless"]:
            continue
        lossless += 1
        check(name, run["token_ids"] == [text], "Ferry's engine generates other tokens")
        same(f"{name}, beside ferry run:", figures, run)
    print(f"{lossless} lossless stacks: the observer's figures beside ferry run")

    ids.write_text(" ".join(map(str, PROMPT + text[:-1])))
    t.call(t.ferry, "trace", "record", "--model", t.model, "--token-ids", ids, "--window", len(PROMPT) + NEW - 1,
           "--prompt-tokens", len(PROMPT), "--out", trace)
    for outputs in (["--all-outputs"], []):
        live = t.observed("--stacks", ",".join(names), "--as", SHAPE, "--record", own, *outputs)
        for recorded in [own, trace] if outputs else [own]:
            replays = t.numbers(t.ferry, "simulate", "--trace", recorded, "--stacks", ",".join(names), "--as", SHAPE,
                                "--machine", MACHINE, "--prefill-chunk", CHUNK, "--bounds", "none")
            for name, figures, replay in zip(names, live["stacks"], replays):
                what = f"{name}, beside ferry simulate of {recorded.name}{'' if outputs else ', one output'}:"
                same(what, figures, replay)
                check(what, figures["decode"]["time_s"] == replay["decode"]["time_s"], "times differ")
    print(f"{len(names)} stacks: the observer's figures beside ferry simulate")


def check_driver(t):
    def text(*more):
        return t.numbers(t.drive, "--model", t.model, "--tokens", ",".join(map(str, PROMPT)), "--new-tokens", NEW,
                         "--threads", 1, *more)

    plain = text("--plain")["text"]
    check("llama.cpp writes a text", len(plain.split()) == NEW)
    runs = 0
    for stack in ("lru", "cross-layer-lru", "ferry-device", "moe-infinity", "on-demand", "layer-stream"):
        for budget in ("5%", "10%", "25%", "50%", "100%"):
            for more in ([], ["--evict", "kernel"], ["--chunk", 4, "--read-threads", 1]):
                driven = text("--stack", stack, "--budget", budget, *more)
                check(f"{stack} at {budget} {more}", driven["text"] == plain, "writes another text")
                runs += 1
    print(f"{runs} driven runs: llama.cpp's text")
    for stack, why in (("ferry", "host"), ("ferry-lossy", ""), ("importance+er", ""), ("no-stack", "no-stack")):
        error = t.call(t.drive, "--model", t.model, "--tokens", "1", "--stack", stack, fails=True)
        check(f"--stack {stack} is refused", error.startswith("llama_drive: ") and why in error, error)


def check_files(t):
    """Each replaces what it has written, and leaves everything else as it is."""
    few = ["--model", t.model, "--tokens", "1,2", "--new-tokens", 1]
    theirs = t.scratch / "theirs.json"
    for tool, flags in ((t.drive, ["--json"]), (t.observe, ["--json", "--record"])):
        for flag in flags:
            theirs.write_text('{"theirs": 1}\n')
            error = t.call(tool, *few, flag, theirs, fails=True)
            what = f"{tool.name} {flag}"
            check(f"{what} refuses another file", "would replace it" in error, error)
            check(f"{what} leaves it as it was", theirs.read_text() == '{"theirs": 1}\n')
            own = t.scratch / "own"
            own.unlink(missing_ok=True)
            for _ in range(2):
                t.call(tool, *few, flag, own)
            check(f"{what} replaces its own file", own.stat().st_size > 0)
    print("files of others: left as they were")


def check_kill(t):
    empty = t.scratch / "empty"
    empty.mkdir()
    command = [t.drive, "--model", t.model.resolve(), "--tokens", ",".join(map(str, PROMPT)), "--new-tokens", 400,
               "--budget", "10%", "--json", empty / "killed.json"]
    shared, content = set(os.listdir("/dev/shm")), t.model.read_bytes()
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=empty,
                             env=os.environ | {"TMPDIR": str(empty)}, start_new_session=True)
    check("it writes before it is killed", len(child.stdout.read(16)) == 16)
    check("it has no file open for writing", not written_by(child.pid), written_by(child.pid))
    child.send_signal(signal.SIGKILL)
    check("it was killed", child.wait() == -signal.SIGKILL)
    check("kill -9 leaves no process", not alive(child.pid))
    check("kill -9 leaves no file", not list(empty.iterdir()), list(empty.iterdir()))
    check("kill -9 leaves no shared memory", set(os.listdir("/dev/shm")) <= shared)
    check("kill -9 leaves the model as it was", t.model.read_bytes() == content)
    print("killed: nothing was left")


def written_by(process):
    """Paths of the files that it may write to."""
    found = []
    for fd in Path(f"/proc/{process}/fd").iterdir():
        flags = re.search(r"flags:\s+(\d+)", Path(f"/proc/{process}/fdinfo/{fd.name}").read_text())
        target = os.readlink(fd)
        if int(flags[1], 8) & os.O_ACCMODE and target.startswith("/") and target != "/dev/null":
            found.append(target)
    return found


def alive(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


def main():
    p = argparse.ArgumentParser(prog="tests/llama_cpp/run", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("--build", type=Path, default=Path(__file__).resolve().parents[2] / "build/llama-cpp-examples")
    a = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="ferry-llama-") as scratch:
        t = Tools(a.build, a.model, Path(scratch))
        check_observer(t)
        check_driver(t)
        check_files(t)
        check_kill(t)
    print(f"{failures} failures" if failures else "all is well")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
