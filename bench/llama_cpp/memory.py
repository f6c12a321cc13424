#!/usr/bin/env python3
"""A model larger than memory in llama.cpp: how fast it decodes, and what is read for it, with llama.cpp alone (the file mapped,
the kernel brings in what is touched) and with examples/llama_cpp/drive.cpp, in turns, each in a control group of its own whose
memory is limited.

  bench/run llama-cpp-memory MODEL.gguf --drive build/llama-cpp-examples/examples/llama_cpp/llama_drive
      [--limits 25%,50%] [--stacks lru] [--new-tokens N] [--threads N] [--runs N] [--json FILE]

Limits are shares of the file. Beside the experts that a stack keeps, the limit holds the other weights and --margin. `kernel` is
a driver that brings experts in, and leaves to the kernel what goes. MODEL may come from random_gguf.py; the prompt is random
tokens below 256. Needs root, or a control group that it may make others in.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # nothing is left beside the sources
from llama import enter_environment  # noqa: E402
from processes import Failure, Progress  # noqa: E402

FOLDER = Path(__file__).resolve().parents[2] / "build/llama-cpp"
KINDS = {"memory.limit_in_bytes": "memory.max_usage_in_bytes", "memory.max": "memory.peak"}  # of version 1, and of 2


def share(text):
    number = float(text.removesuffix("%"))
    if not text.endswith("%") or not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"{text}: expected a share from 1% to 1000%")
    return number / 100


def several(each):
    return lambda text: [each(item) for item in text.split(",")]


def arguments():
    p = argparse.ArgumentParser(prog="bench/run llama-cpp-memory", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("--drive", type=Path, required=True)
    p.add_argument("--limits", type=several(share), default=[0.25, 0.5])
    p.add_argument("--stacks", type=several(str), default=["lru"])
    p.add_argument("--prompt-tokens", type=int, default=8)
    p.add_argument("--new-tokens", type=int, default=16)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--runs", type=int, default=1)
    p.add_argument("--margin", type=int, default=400 << 20, help="bytes for all that is no weights (default: 400 MiB)")
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    for file in (a.model, a.drive):
        if not file.is_file():
            p.error(f"{file}: no file is there (random_gguf.py makes models, examples/llama_cpp is built beside llama.cpp)")
    return a


class Group:
    """A control group below this process's own."""

    def __init__(self):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory" or (controllers == "" and Path("/sys/fs/cgroup/cgroup.controllers").exists()):
                root = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
                self.path = root / path.lstrip("/") / f"ferry-bench-{os.getpid()}"
                self.path.mkdir()
                self.limit = next((k for k in KINDS if (self.path / k).exists()), None)
                if self.limit is None:
                    self.path.rmdir()
                    raise OSError(f"{self.path.parent}: its groups have no memory limit, expected the memory controller in "
                                  "cgroup.subtree_control")
                return
        raise OSError("/proc/self/cgroup names no group of the memory controller")

    def run(self, limit, command):
        (self.path / self.limit).write_text(str(int(limit)))
        child = subprocess.Popen(["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', self.path, *map(str, command)],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            _, errors = child.communicate()
        finally:
            child.kill()
            child.wait()
        if child.returncode != 0:
            raise OSError(f"{command[0]} ended with status {child.returncode}: {errors.decode(errors='replace')[-500:]}")

    def peak(self):
        file = self.path / KINDS[self.limit]
        return int(file.read_text()) if file.exists() else None

    def remove(self):
        if (self.path / "memory.force_empty").exists():
            (self.path / "memory.force_empty").write_text("0")
        self.path.rmdir()


def forget(file):
    """Drops the file from the page cache, since what earlier runs have read must not be there for free."""
    with open(file, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def other_weights(file):
    import gguf
    return sum(int(t.n_bytes) for t in gguf.GGUFReader(file).tensors if "_exps" not in t.name)


def measure(a, limit, way, others):
    tokens = random.Random(1).choices(range(256), k=a.prompt_tokens)
    with tempfile.TemporaryDirectory() as scratch:
        numbers = Path(scratch) / "numbers.json"
        command = [a.drive, "--model", a.model, "--tokens", ",".join(map(str, tokens)), "--chunk", a.prompt_tokens,
                   "--new-tokens", a.new_tokens, "--threads", a.threads, "--json", numbers]
        bytes_limit = limit * a.model.stat().st_size
        if way == "plain":
            command += ["--plain"]
        else:
            budget = int(bytes_limit - others - a.margin)
            stack, evict = ("lru", "kernel") if way == "kernel" else (way, "stack")
            command += ["--stack", stack, "--evict", evict, "--budget", budget]
        forget(a.model)
        group = Group()
        try:
            group.run(bytes_limit, command)
            return json.loads(numbers.read_text()) | {"limit": limit, "way": way, "peak_bytes": group.peak()}
        finally:
            group.remove()


def row(limit, way, runs, plain):
    def middle(of):
        return statistics.median(of(r) for r in runs)
    speed = middle(lambda r: r["decode"]["tokens"] / r["decode"]["seconds"])
    hits = middle(lambda r: 100 * r["stack"]["hits"] / r["stack"]["requests"]) if "stack" in runs[0] else None
    base = statistics.median(r["decode"]["tokens"] / r["decode"]["seconds"] for r in plain)
    return (f"| {100 * limit:.0f}% | {way} | {'-' if hits is None else f'{hits:.0f}%'} "
            f"| {middle(lambda r: r['decode']['bytes_read'] / r['decode']['tokens']) / (1 << 20):.0f} "
            f"| {middle(lambda r: r['decode']['major_faults'] / r['decode']['tokens']):.0f} "
            f"| {speed:.2f} | {speed / base:.2f} |")


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    a = arguments()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        enter_environment(FOLDER / "venv", Progress())
        others = other_weights(a.model)
        ways = ["plain", "kernel", *a.stacks]
        results = []
        print("| memory | who decides | hits | MiB read a token | major faults a token | tokens/s | times plain |\n"
              "| ---: | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
        for limit in a.limits:
            here = []
            for run in range(a.runs):
                for way in ways:
                    print(f"{100 * limit:.0f}%, run {run + 1}, {way}...", file=sys.stderr, flush=True)
                    here.append(measure(a, limit, way, others))
            texts = {r["text"] for r in here}
            if len(texts) != 1:
                sys.exit(f"the texts differ: {texts}")
            for way in ways:
                print(row(limit, way, [r for r in here if r["way"] == way], [r for r in here if r["way"] == "plain"]), flush=True)
            results += here
            if a.json:
                a.json.write_text(json.dumps(results, indent=1) + "\n")
        print("all wrote the same text")
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, Failure) as error:
        sys.exit(f"bench/run llama-cpp-memory: {error}")


if __name__ == "__main__":
    main()
