#!/usr/bin/env python3
"""Ferry's CPU engine beside llama.cpp on this machine: tokens a second of the same weights, all of them in memory.

  bench/run llama-cpp [--quick] [--shapes NAMES] [--threads LIST] [--precisions LIST] [--repeats N] [--json FILE]

Everything that it makes is in build/llama-cpp/: llama.cpp's source and llama-bench, and random weights at the shapes of
published models, in layers enough to outgrow the caches. For each shape it first holds the logits of both against each
other, then runs both in turns. Decode is 32 tokens after a context of 128 and of 2048, prefill a prompt of 512 and of
2048, and tokens are random on both sides, so that experts are chosen alike. bf16 is BF16 on both sides; at int4 the
experts are Ferry's INT4 and llama.cpp's Q4_0, the rest stays bf16. At q8_0 and q4_k both read the same GGUF file, whose
matrices are all of that type. What such weights are multiplied with llama.cpp rounds to 8 bits; Ferry does with
--activations int8: that is int4-int8, q8_0-int8 and q4_k-int8. Flash attention is off, and keys and values are F16 on
both sides, llama.cpp's default, or --kv-cache f32 on Ferry's. Both take prompts in steps of 512 tokens. Of a prompt llama.cpp leaves out what the
last layer makes of all tokens but the last one, which with two to four layers is a quarter or more of the work, and next
to nothing in a whole model: it is told to give every token's output. Prompts are timed behind one that warms up, as
llama-bench does and `ferry bench` too.
"""
import argparse
import dataclasses
import json
import os
import platform
import random
import resource
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import time
import typing
from pathlib import Path

sys.dont_write_bytecode = True  # nothing is left beside the sources
from llama import PACKAGE, VERSION, Llama, enter_environment  # noqa: E402
from processes import Failure, Progress, run  # noqa: E402
from shapes import SHAPES, VOCABULARY  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/llama-cpp"
PRECISIONS = ("bf16", "int4", "int4-int8", "q8_0", "q8_0-int8", "q4_k", "q4_k-int8")
DECODED = 32  # tokens of which the time is taken


class Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"bench/run llama-cpp: {message} (see --help)", file=sys.stderr)
        sys.exit(2)


def arguments():
    p = Parser(prog="bench/run llama-cpp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shapes", help=f"some of {','.join(SHAPES)} (default: all)")
    p.add_argument("--layers", type=int, help="of each shape, where fewer or more are wanted")
    p.add_argument("--threads", help="numbers, or all (default: 1,all)")
    p.add_argument("--precisions", help=f"some of {','.join(PRECISIONS)} (default: all)")
    p.add_argument("--repeats", type=int, help="of each measurement, of which the median counts (default: 3)")
    p.add_argument("--kv-cache", choices=("f16", "f32"), default="f16", help="Ferry's keys and values (default: f16)")
    p.add_argument("--quick", action="store_true",
                   help="qwen1.5-moe-a2.7b with 2 layers, all threads, short texts, once; other flags still count")
    p.add_argument("--ferry", type=Path, help="the binary (default: built as reference_engine/run does)")
    p.add_argument("--without-amx", action="store_true",
                   help="build llama.cpp without AMX, for machines that announce it and trap on it")
    p.add_argument("--json", type=Path, help="write every sample to this file")
    p.add_argument("--keep", action="store_true", help="keep the weights, up to 13 GB a shape, for another time")
    a = p.parse_args()

    def names(flag, value, known):
        chosen = value.split(",")
        for name in chosen:
            if name not in known:
                p.error(f"--{flag}: \"{name}\" is none of {','.join(known)}")
        return list(dict.fromkeys(chosen))

    available = len(os.sched_getaffinity(0))
    threads = []
    for text in (a.threads or ("all" if a.quick else "1,all")).split(","):
        if text != "all" and not (text.isdecimal() and 1 <= int(text) <= 1024):
            p.error(f"--threads: \"{text}\": expected numbers from 1 to 1024, or all")
        threads.append(available if text == "all" else int(text))
    a.threads = list(dict.fromkeys(threads))
    shapes = names("shapes", a.shapes or ("qwen1.5-moe-a2.7b" if a.quick else ",".join(SHAPES)), SHAPES)
    a.precisions = names("precisions", a.precisions or ",".join(PRECISIONS), PRECISIONS)
    for flag, value, most in (("repeats", a.repeats, 1000), ("layers", a.layers, 80)):
        if value is not None and not 1 <= value <= most:
            p.error(f"--{flag}: {value}: expected a number from 1 to {most}")
    layers = a.layers or (2 if a.quick else None)
    a.shapes = [dataclasses.replace(SHAPES[n], layers=layers or SHAPES[n].layers) for n in shapes]
    a.repeats = a.repeats or (1 if a.quick else 3)
    a.contexts, a.prompts = ((128,), (512,)) if a.quick else ((128, 2048), (512, 2048))
    if a.ferry and not os.access(a.ferry, os.X_OK):
        p.error(f"--ferry: {a.ferry}: no program is there")
    if a.json and not a.json.resolve().parent.is_dir():
        p.error(f"--json: {a.json}: its folder is not there")
    return a


def stored(precision):
    return precision.removesuffix("-int8")


def stack(precision):
    return "resident-int4" if stored(precision) == "int4" else "resident"


class Ferry:
    def __init__(self, binary, scratch, progress, kv_cache):
        self.scratch, self.kv_cache = scratch, kv_cache
        if binary is None:
            progress.step("building ferry, if it has changed")
            run([ROOT / "reference_engine/run", "--version"], "building ferry")
            binary = ROOT / "build/engine/reference_engine/ferry"
        self.binary = binary.resolve()

    def command(self, name, model, precision, threads, numbers):
        """The command, with the flags that `ferry bench` and `ferry run` share."""
        activations = "float" if precision == stored(precision) else "int8"
        return [self.binary, name, "--model", model, "--device", "cpu", "--threads", threads, "--activations",
                activations, "--kv-cache", self.kv_cache, "--prefill-chunk", 512, "--json", numbers]

    def prefill(self, model, precision, threads, tokens, seed):
        """Tokens a second of the second prompt: the first one also pays for memory that nobody has touched before."""
        numbers = self.scratch / "bench.json"
        run([*self.command("bench", model, precision, threads, numbers), "--stacks", stack(precision), "--budgets", "100%",
             "--prompt-tokens", tokens, "--generate", 0, "--repeat", 1, "--seed", seed], "ferry bench")
        return json.loads(numbers.read_text())[0]["tokens_per_s"][0]

    def run(self, model, precision, threads, prompt, tokens, *more):
        text, numbers = self.scratch / "prompt", self.scratch / "ferry.json"
        if model.is_dir():
            text.write_bytes(bytes(prompt))
            given = ["--prompt-file", text]
        else:  # without a tokenizer: here too the text begins with the token that begins every text
            text.write_text(" ".join(str(t) for t in (VOCABULARY - 2, *prompt)))
            given = ["--token-ids", text]
        run([*self.command("run", model, precision, threads, numbers), "--stack", stack(precision), *given,
             "--max-new-tokens", tokens, *more], "ferry run")
        return json.loads(numbers.read_text())

    def logits(self, model, precision, prompt, tokens, threads):
        """The tokens that it chooses, and the logits of each."""
        import numpy as np
        path = self.scratch / "logits.safetensors"
        made = self.run(model, precision, threads, prompt, tokens, "--logits", path)
        content = path.read_bytes()
        start = 8 + struct.unpack("<Q", content[:8])[0]
        begin, end = json.loads(content[8:start])["logits.0"]["data_offsets"]
        return made["token_ids"][0], np.frombuffer(content[start + begin:start + end], np.float32).reshape(
            -1, VOCABULARY)


def check(ferry, llama, model, files, threads):
    """Checks that both compute the same model, by the correlation of the logits after each of 24 tokens that Ferry generates,
    from the same GGUF file or, for bf16 and int4, from the checkpoint at bf16.

    The median decides, because sums are rounded differently, and now and then another expert is chosen.
    """
    import models
    import numpy as np
    prompt = list(b"A ferry carries 8 cars on each crossing.")
    found = {}
    for precision, least in (("bf16", 0.999), ("int4", 0.98), ("q8_0", 0.99), ("q4_k", 0.99)):
        if precision not in files:
            continue
        own = files[precision] if precision in models.BLOCKS else model
        chosen, ours = ferry.logits(own, precision if precision in models.BLOCKS else "bf16", prompt, 24, threads)
        theirs = llama.logits(files[precision], [VOCABULARY - 2, *prompt, *chosen[:-1]], threads)[len(prompt):]
        correlation = statistics.median(np.corrcoef(a, b)[0, 1] for a, b in zip(ours, theirs))
        same = int((ours.argmax(1) == theirs.argmax(1)).sum())
        if not correlation >= least:
            raise Failure(f"{files[precision]}: not the model that Ferry computes in bf16: the median correlation of "
                          f"their logits is {correlation:.4f}, expected {least} or more")
        found[precision] = {"median_correlation": float(correlation), "same_token": same, "tokens": len(chosen)}
    return found


def need_room(a, s, models, folder):
    wanted = models.disk_bytes(s, [stored(p) for p in a.precisions])
    missing = wanted - sum(f.stat().st_size for f in folder.glob("*") if f.is_file())
    free = shutil.disk_usage(FOLDER).free
    if missing > free:
        raise Failure(f"{s.name}: needs {missing / 1e9:.1f} GB on the disk of {FOLDER}, {free / 1e9:.1f} GB are free; "
                      "--layers 1 needs less")
    # Ferry holds every expert twice, as stored and in its slots, and the system keeps the file in memory, too.
    needed = 2.2 * models.disk_bytes(s, []) / 2
    memory = {k: int(v.split()[0]) * 1024 for k, v in
              (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())}["MemAvailable"]
    if needed > memory:
        raise Failure(f"{s.name}: needs {needed / 1e9:.1f} GB of memory, {memory / 1e9:.1f} GB are there; "
                      "--layers 1 needs less")


class Step(typing.NamedTuple):
    precision: str
    threads: int
    before: int  # tokens: the prompt of prefill, the context of decode
    engine: str


def steps(a):
    """The steps of one repeat, with the two engines in turns."""
    return [Step(p, t, n, e) for p in a.precisions for t in a.threads for n in sorted({*a.contexts, *a.prompts})
            for e in ("ferry", "llama.cpp")]


def measure(a, ferry, llama, model, files, step, seed):
    """Tokens a second, of prefill, decode or both."""
    import models
    prefill, decode = step.before in a.prompts, step.before in a.contexts
    out = {}
    if step.engine == "ferry":
        own = files[stored(step.precision)] if stored(step.precision) in models.BLOCKS else model
        if prefill:
            out["prefill"] = ferry.prefill(own, step.precision, step.threads, step.before, seed)
        if decode:  # the prompt also has the begin token, and the first new token counts as prefill's
            source = random.Random(seed)
            prompt = [source.randrange(256) for _ in range(step.before - 1)]
            made = ferry.run(own, step.precision, step.threads, prompt, 1 + DECODED, "--temperature", 100, "--seed", seed)
            out["decode"] = 1 / made["decode"]["tpot_s"]
    else:
        file = files[stored(step.precision)]
        if prefill:
            out["prefill"] = llama.tokens_per_s(file, step.threads, prompt=step.before)
        if decode:
            out["decode"] = llama.tokens_per_s(file, step.threads, generated=DECODED, context=step.before)
    return out


class Disturbance:
    """How many processors were kept busy by others than our children. A few percent can cost threads that wait for each
    other most of their speed, one engine more than the other."""

    def __init__(self):
        self.begin = self.now()

    @staticmethod
    def now():
        ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # neither idle nor waiting for a disk
        ours = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return time.monotonic(), busy - ours

    def processors(self):
        elapsed, others = (b - a for a, b in zip(self.begin, self.now()))
        return max(0.0, others / elapsed)


def compare(a, progress, scratch):
    import models
    FOLDER.mkdir(parents=True, exist_ok=True)
    llama = Llama(FOLDER, progress, not a.without_amx)
    ferry = Ferry(a.ferry, scratch, progress, a.kv_cache)
    samples, checked, spent = {}, {}, {}
    todo = [(s, repeat, step) for s in a.shapes for repeat in range(a.repeats) for step in steps(a)]
    done = 0
    for s in a.shapes:
        folder = FOLDER / f"models/{s.name}-{s.layers}-layers-v{models.VERSION}"
        need_room(a, s, models, folder)
        progress.step(f"{s.name}: making {s.layers} layers of random weights")
        models.make_checkpoint(s, folder, lambda what, done: progress.share(f"{s.name}: {what}", done))
        files = {p: models.make_gguf(s, folder, p, lambda what, done: progress.share(f"{s.name}: {what}", done),
                                     llama.quantizers())
                 for p in dict.fromkeys(("bf16", *map(stored, a.precisions)))}
        progress.step(f"{s.name}: checking that both compute the same")
        checked[s.name] = check(ferry, llama, folder, files, max(a.threads))
        while done < len(todo) and todo[done][0] is s:
            _, repeat, step = todo[done]
            # A step counts as long as it took last time, at whatever shape, or else as the mean of all.
            left = sum(spent.get(later, statistics.mean(spent.values())) for _, _, later in todo[done:]) if spent else 0
            progress.step(f"[{done}/{len(todo)}{f', about {left / 60:.0f} min left' if spent else ''}] {s.name} "
                          f"{step.precision}, threads: {step.threads}, {step.before} tokens, {step.engine}")
            begin, disturbance = time.monotonic(), Disturbance()
            for phase, value in measure(a, ferry, llama, folder, files, step, repeat).items():
                row = samples.setdefault((s.name, step.precision, step.threads, phase, step.before), {})
                row.setdefault(step.engine, []).append(value)
                row.setdefault("others", []).append(disturbance.processors())
            spent[step] = time.monotonic() - begin
            done += 1
        if not a.keep:
            shutil.rmtree(folder)
    progress.clear()
    return llama, samples, checked


def report(a, llama, samples, checked):
    import models
    rows = [{"shape": n, "precision": p, "threads": t, "phase": phase, "tokens_before": length,
             "ferry_tokens_per_s": s["ferry"], "llama_cpp_tokens_per_s": s["llama.cpp"],
             "processors_of_others": max(s["others"]),
             "ratio_of_medians": statistics.median(s["ferry"]) / statistics.median(s["llama.cpp"])}
            for (n, p, t, phase, length), s in samples.items()]
    order = [s.name for s in a.shapes]
    rows.sort(key=lambda r: (order.index(r["shape"]), a.precisions.index(r["precision"]),
                             a.threads.index(r["threads"]), r["phase"], r["tokens_before"]))
    print(f"{PACKAGE} {VERSION}'s llama.cpp; {llama.cpu}; medians of {a.repeats}\n")
    for s in a.shapes:
        print(f"- {s.name}: {s.layers} {s.what}. " + "; ".join(
            f"{p}: correlation with Ferry's logits {c['median_correlation']:.5f}, the same token "
            f"{c['same_token']} times of {c['tokens']}" for p, c in checked[s.name].items()))
    print("\n| shape | precision | threads | what | Ferry, tokens/s | llama.cpp, tokens/s | Ferry / llama.cpp |\n"
          "| --- | --- | ---: | --- | ---: | ---: | ---: |")
    for r in rows:
        what = f"decode at {r['tokens_before']}" if r["phase"] == "decode" else f"prefill of {r['tokens_before']}"
        print(f"| {r['shape']} | {r['precision']} | {r['threads']} | {what} | "
              f"{statistics.median(r['ferry_tokens_per_s']):.2f} | "
              f"{statistics.median(r['llama_cpp_tokens_per_s']):.2f} | {r['ratio_of_medians']:.2f} |")
    disturbed = [r["processors_of_others"] for r in rows if r["processors_of_others"] > 0.1]
    if disturbed:
        print(f"\nNot to be relied on: during {len(disturbed)} of {len(rows)} rows other programs kept up to "
              f"{max(disturbed):.1f} processors busy.")
    if a.json:
        text = json.dumps({
            "llama_cpp": f"{PACKAGE} {VERSION}", "processor": llama.cpu, "machine": platform.platform(), "kv_cache": a.kv_cache,
            "shapes": [dataclasses.asdict(s) for s in a.shapes], "checked": checked, "results": rows,
        }, indent=2) + "\n"
        models.replace(a.json, lambda file: file.write(text.encode()))


def main():
    def stop(number, _):
        signal.signal(number, signal.SIG_IGN)  # the second is no reason to leave children behind
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    a = arguments()
    progress = Progress()
    try:
        enter_environment(FOLDER / "venv", progress)
        with tempfile.TemporaryDirectory() as scratch:
            report(a, *compare(a, progress, Path(scratch)))
    except KeyboardInterrupt:
        progress.clear()
        print(f"bench/run llama-cpp: interrupted; finished files stay in {FOLDER} for the next time", file=sys.stderr)
        sys.exit(130)
    except (Failure, OSError) as error:
        progress.clear()
        print(f"bench/run llama-cpp: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
