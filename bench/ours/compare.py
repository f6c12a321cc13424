#!/usr/bin/env python3
"""Our own stacks beside every other of their kind, on simulated machines: in how many cells they are slower, and by how
much faster they are than the best of the others.

  bench/run ours [--traces FILES] [--texts FILES] [--tokens N] [--joined N [--prompt N]]
                 [--int4 | --device | --lossy] [--host SHARE] [--prefetch-chunk SHARE] [--out FOLDER] [--json FILE]

A cell is a trace, a machine, a budget and a batch. `--traces` are of `ferry trace import` or `ferry trace record`; over
each of `--texts` both bundled models are recorded first, and their experts count as large as Qwen1.5-MoE's and
Mixtral's. The machines are ferry's own and one behind PCIe 3.0 x4, budgets 12.5 to 75%, batches 1 and 3, speeds
effective. `--int4` compares `ferry-int4` with what else holds experts in INT4, and with Fate and HOBBIT, `--device`
`ferry-device` with what else computes nothing on the host, `--lossy` `ferry-lossy` with the papers' lossy stacks, once as
the papers have them and once as calibrated, and with what else holds experts in INT4; otherwise it is `ferry` beside
every lossless stack. Stacks that read what a trace does not have are left out on it. `--joined N` makes of each trace
sequences of N tokens, in whose midst the subject changes where a recorded one ended; `--prompt N` makes the first of
them a prompt. `--host 25%` takes machines with a quarter of their host's speed, where `ferry-device` is among the others.
`--prefetch-chunk` compares each stack with itself instead, where demand overtakes prefetches. Results lie in FOLDER
(build/ours), where a second run goes on: give another one for another ferry. The page is printed as Markdown.
"""
import argparse
import json
import math
import subprocess
import sys
import typing
from collections import Counter, defaultdict
from pathlib import Path

sys.dont_write_bytecode = True  # nothing is left beside the sources

import joined

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/shared"))
import kept

MODELS = {"tiny-qwen-moe": "qwen1.5-moe-a2.7b", "tiny-mixtral": "mixtral-8x7b"}
BUDGETS = ["12.5%", "25%", "50%", "75%"]
SLOWER = 0.995  # within half a percent two stacks count as equally fast


class Failure(Exception):
    pass


class Stacks(typing.NamedTuple):
    ours: str
    bound: str
    others: list  # that need nothing but routes
    with_scores: list


# The stacks of FULL copy experts at the model's own precision and run those that the gate chose.
FULL = Stacks("ferry", "clairvoyant_with_host_tpot_s",
              ["on-demand", "layer-stream", "lru", "llama-cache", "moe-infinity", "activation-path-full", "static-host"],
              ["cross-layer-lru", "mixtral-offloading", "hybrimoe", "fate+prefetch", "fate+cache", "importance+ce"])
DEVICE = Stacks("ferry-device", "clairvoyant_tpot_s", [s for s in FULL.others if s != "static-host"],
                [s for s in FULL.with_scores if s != "hybrimoe"])
INT4 = Stacks("ferry-int4", "clairvoyant_with_host_tpot_s", ["lru-int4", "static-host-int4", "activation-path"],
              ["fate", "hobbit", "hobbit-cooperative"])
# These read the scores of partial hidden states, which not every recorded trace has.
READ_PARTIAL = ["importance-driven"]
# Only speeds are compared here; `ferry eval` measures what these stacks lose.
LOSSY = Stacks("ferry-lossy", "clairvoyant_with_host_tpot_s", INT4.others, INT4.with_scores + READ_PARTIAL)
PAPERS = " as its paper has it"


def run(command):
    """Runs a command, whose progress and errors are shown as they come."""
    status = subprocess.run([str(c) for c in command], stdout=subprocess.DEVNULL).returncode
    if status != 0:
        raise Failure(f"{Path(command[0]).name} {command[1]} ended with exit status {status}")


def narrow_twin(folder):
    """RTX 3090 behind a quarter of its link."""
    machine = json.loads((ROOT / "reference_engine/machines/rtx3090-pcie3.json").read_text())
    machine["name"] = "rtx3090-pcie3-x4"
    machine["link"]["name"] = "PCIe 3.0 x4"
    for speed in (machine["link"]["peak_bytes_per_s"], machine["link"]["effective_bytes_per_s"],
                  machine["activations"]["bytes_per_s"]):
        speed["value"] //= 4
        speed["source"] = "derived: a quarter of 16 lanes"
    # A narrower link takes less of the host's memory.
    for share in (machine["link"]["beside_host"], machine["host_memory"]["beside_copies"]):
        share["value"] = 1 - (1 - share["value"]) / 4
        share["source"] = "derived: a quarter of what 16 lanes take"
    machine.pop("stated", None)
    path = folder / "rtx3090-pcie3-x4.json"
    path.write_text(json.dumps(machine, indent=1) + "\n")
    return path


def slow_twin(folder, path, share):
    """The machine with its host at `share` percent of the speed."""
    machine = json.loads(path.read_text())
    machine["name"] += f"-host-{share}"
    speeds = [machine["host_memory"][name] for name in ("peak_bytes_per_s", "effective_bytes_per_s")]
    speeds += [machine["host_compute"][name] for name in ("peak_flops", "effective_flops")]
    for speed in speeds:
        speed["value"] = int(speed["value"] * share / 100)
        speed["source"] = f"derived: {share}% of it"
    machine.pop("stated", None)
    twin = folder / f"{machine['name']}.json"
    twin.write_text(json.dumps(machine, indent=1) + "\n")
    return str(twin)


def machines(folder, host):
    paths = sorted((ROOT / "reference_engine/machines").glob("*.json")) + [narrow_twin(folder)]
    if host != 100:
        return [slow_twin(folder, path, host) for path in paths]
    return [p.stem for p in paths[:-1]] + [str(paths[-1])]


def percent(text):
    """The number of a text such as "25%"."""
    number = int(text.removesuffix("%"))
    if not text.endswith("%") or not 1 <= number <= 100:
        raise ValueError
    return number


def sweep(ferry, folder, trace, shape, tokens, stacks, names, defaults="paper", chunk=None):
    suffix = ("" if defaults == "paper" else f"-{defaults}") + (f"-{chunk}" if chunk else "")
    out = folder / f"{trace.stem}-{tokens or 'all'}-{stacks[0]}{suffix}.jsonl"
    command = [ferry, "sweep", "--traces", trace, "--machines", ",".join(names), "--stacks", ",".join(stacks),
               "--budgets", ",".join(BUDGETS), "--batches", "1,3", "--defaults", defaults, "--out", out]
    if shape:
        command += ["--as", shape]
    if tokens:
        command += ["--tokens", tokens]
    if chunk:
        command += ["--prefetch-chunk", chunk]
    print(f"{trace.name}: {len(stacks)} stacks", file=sys.stderr)
    run(command)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for r in rows:
        if "refused" in r:
            raise Failure(f"{trace}: {r['stack']}: {r['refused']}")
    return rows


def readable(trace, stacks):
    """The stacks whose predicted rows this trace has."""
    try:
        header, _ = joined.read_header(trace)
    except ValueError as error:
        raise Failure(f"{trace}: no safetensors file, expected a trace of ferry trace import or record") from error
    if not {"scores", "predicted"}.issubset(header):
        return []
    return [s for s in stacks if "partial" in header or s not in READ_PARTIAL]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def summarise(rows, kind):
    """For each cell the time of the best other stack over ours: of a token, of the prompt, if there is one, and of prompt and
    answer together."""
    ours = kind.ours
    cells, prompts, wholes = defaultdict(dict), defaultdict(dict), defaultdict(dict)
    bounds = {}
    for r in rows:
        cell = (r["trace"], r["machine"], r["budget_asked_percent"], r["batch"])
        cells[cell][r["stack"]] = r["decode"]["tpot_s"]
        if r["prefill"]["tokens"]:
            prompts[cell][r["stack"]] = r["prefill"]["time_s"]
            wholes[cell][r["stack"]] = r["prefill"]["time_s"] + r["decode"]["time_s"]
        bound = r["bounds"].get(kind.bound)
        if r["stack"] == ours and bound:
            bounds[cell] = r["decode"]["tpot_s"] / bound
    result = []

    def against_best(times):
        return min(t for s, t in times.items() if s != ours) / times[ours] if times else None

    for (trace, machine, budget, batch), times in sorted(cells.items()):
        if not times[ours]:
            raise Failure(f"{trace}: no token is decoded, expected more than its prompt")
        best = min((t, s) for s, t in times.items() if s != ours)
        cell = (trace, machine, budget, batch)
        result.append({"trace": trace, "machine": machine, "budget_percent": budget, "batch": batch,
                       "best_other": best[1], "times_as_fast": best[0] / times[ours],
                       "against": {s: t / times[ours] for s, t in times.items() if s != ours},
                       "prefill": against_best(prompts[cell]), "whole": against_best(wholes[cell]),
                       "over_bound": bounds.get(cell)})
    return result


def mean_and_least(cells, key):
    """Of those that have a prompt."""
    values = [c[key] for c in cells if c[key]]
    return f"{geometric_mean(values):.3f}, {min(values):.3f}" if values else "-"


def table(cells, key, title):
    print(f"\n| {title} | cells | slower in | geometric mean | least | over the bound | prefill: mean, least | "
          "with the prompt: mean, least |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    groups = defaultdict(list)
    for c in cells:
        groups[c[key]].append(c)
    for name, group in list(groups.items()) + [("all", cells)]:
        fast = [c["times_as_fast"] for c in group]
        bounds = [c["over_bound"] for c in group if c["over_bound"]]
        over = f"{geometric_mean(bounds):.2f}" if bounds else "-"
        print(f"| {name} | {len(group)} | {sum(f < SLOWER for f in fast)} | {geometric_mean(fast):.3f} | "
              f"{min(fast):.3f} | {over} | {mean_and_least(group, 'prefill')} | {mean_and_least(group, 'whole')} |")


def compare_chunks(args, work, kind, names):
    """How many times as fast each stack is where demand copies overtake its prefetches."""
    times = defaultdict(list)
    for trace, shape in work:
        stacks = [kind.ours, *kind.others, *readable(trace, kind.with_scores)]
        whole, cut = ({(r["stack"], r["machine"], r["budget_asked_percent"], r["batch"]): r["decode"]["tpot_s"]
                       for r in sweep(args.ferry, args.out, trace, shape, args.tokens, stacks, names, chunk=chunk)}
                      for chunk in (None, args.prefetch_chunk))
        for cell, time in whole.items():
            times[cell[0]].append(time / cut[cell])
    print("\n| stack | cells | times as fast | least | most |\n| --- | ---: | ---: | ---: | ---: |")
    for stack, t in sorted(times.items(), key=lambda a: -geometric_mean(a[1])):
        print(f"| `{stack}` | {len(t)} | {geometric_mean(t):.3f} | {min(t):.3f} | {max(t):.3f} |")


def arguments():
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            print(f"bench/run ours: {message} (see --help)", file=sys.stderr)
            sys.exit(2)

    p = Parser(prog="bench/run ours", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--traces", type=Path, nargs="+", default=[], help="recorded routing")
    p.add_argument("--texts", type=Path, nargs="+", default=[], help="over which both bundled models are recorded")
    p.add_argument("--tokens", type=int, help="of each trace, at most (default: all)")
    p.add_argument("--joined", type=int, help="tokens of a sequence (default: as recorded)")
    p.add_argument("--prompt", type=int, help="of those, how many are its prompt (default: none)")
    which = p.add_mutually_exclusive_group()
    which.add_argument("--int4", action="store_true", help="ferry-int4 beside its like")
    which.add_argument("--device", action="store_true", help="ferry-device beside its like")
    which.add_argument("--lossy", action="store_true", help="ferry-lossy beside its like")
    p.add_argument("--host", type=percent, default=100, metavar="SHARE",
                   help="that share of each machine's host, 1%% to 100%%, and ferry-device among the others")
    p.add_argument("--prefetch-chunk", help="a share of an expert, or a size: each stack beside itself with it")
    p.add_argument("--out", type=Path, default=ROOT / "build/ours", help="folder of results (default: build/ours)")
    p.add_argument("--json", type=Path, help="write every cell to this file")
    p.add_argument("--ferry", type=Path, default=ROOT / "build/engine/reference_engine/ferry",
                   help="the binary (default: what reference_engine/run has built)")
    args = p.parse_args()
    if not args.traces and not args.texts:
        p.error("neither --traces nor --texts is given: expected at least one of them")
    for file in args.traces + args.texts:
        if not file.is_file():
            p.error(f"{file}: no such file")
    for files in (args.traces, args.texts):
        twice = [name for name, n in Counter(f.stem for f in files).items() if n > 1]
        if twice:
            p.error(f"{twice[0]} is the name of two files, expected different names: results are told apart by them")
    if not args.ferry.is_file():
        p.error(f"{args.ferry}: no such file: run reference_engine/run list once, which builds it")
    if args.tokens is not None and args.tokens < 1:
        p.error(f"--tokens is {args.tokens}, expected 1 or more")
    if args.joined is not None and args.joined < 2:
        p.error(f"--joined is {args.joined}, expected 2 or more")
    if args.prompt is not None and not 0 < args.prompt < (args.joined or 0):
        p.error(f"--prompt is {args.prompt}, expected 1 or more and less than --joined")
    return args


def with_joined_sequences(trace, args):
    out = args.out / f"{trace.stem}-joined-{args.joined}-{args.prompt or 0}.safetensors"
    if kept.is_current(out, [trace]):
        return out
    part = out.with_suffix(".part")
    try:
        if joined.join(trace, part, args.joined, args.prompt or 0) == 0:
            raise Failure(f"{trace}: has fewer tokens than --joined {args.joined}")
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{trace}: no trace of ferry trace import or record: {error}") from error
    kept.keep(part, out, [trace])
    return out


def main():
    args = arguments()
    if args.host != 100:
        args.out /= f"host-{args.host}"
    args.out.mkdir(parents=True, exist_ok=True)
    work = [(trace, None) for trace in args.traces]
    for model, shape in MODELS.items():
        for text in args.texts:
            partial = "-partial" if args.lossy else ""  # what importance-driven reads
            trace = args.out / f"{model}-{text.stem}-{args.tokens or 'all'}{partial}.safetensors"
            if not kept.is_current(trace, [text]):
                print(f"recording {model} over {text.name}", file=sys.stderr)
                part = trace.with_suffix(".part")
                limit = ["--tokens", args.tokens] if args.tokens else []
                limit += ["--stack", "importance+pre"] if args.lossy else []
                run([args.ferry, "trace", "record", "--model", model, "--text", text, "--out", part, *limit])
                kept.keep(part, trace, [text])
            work.append((trace, shape))
    if args.joined:
        work = [(with_joined_sequences(trace, args), shape) for trace, shape in work]
    names = machines(args.out, args.host)
    kind = INT4 if args.int4 else DEVICE if args.device else LOSSY if args.lossy else FULL
    if args.host != 100 and kind is FULL:
        kind = FULL._replace(others=[*FULL.others, DEVICE.ours])
    if args.prefetch_chunk:
        compare_chunks(args, work, kind, names)
        return
    rows = []
    for trace, shape in work:
        others = kind.others + readable(trace, kind.with_scores)
        rows += sweep(args.ferry, args.out, trace, shape, args.tokens, [kind.ours, *others], names,
                      "calibrated" if args.lossy else "paper")
        if args.lossy:
            for r in sweep(args.ferry, args.out, trace, shape, args.tokens, others, names):
                rows.append({**r, "stack": r["stack"] + PAPERS})
    cells = summarise(rows, kind)
    for key, title in (("trace", "trace"), ("machine", "machine"), ("budget_percent", "budget, %"), ("batch", "batch")):
        table(cells, key, title)
    best = Counter(c["best_other"] for c in cells)
    print("\nBest of the others: " + ", ".join(f"{name} in {n}" for name, n in best.most_common()) + ".")
    against = defaultdict(list)
    for c in cells:
        for name, times in c["against"].items():
            against[name].append(times)
    print("Against each: " + ", ".join(f"{name} {geometric_mean(t):.2f} ({min(t):.2f} at least)"
                                       for name, t in sorted(against.items(), key=lambda a: geometric_mean(a[1]))) + ".")
    worst = sorted((c for c in cells if c["times_as_fast"] < SLOWER), key=lambda c: c["times_as_fast"])
    for c in worst:
        print(f"Slower: {c['trace']}, {c['machine']}, {c['budget_percent']}%, batch {c['batch']}: "
              f"{c['times_as_fast']:.3f} of {c['best_other']}.")
    if args.json:
        args.json.write_text(json.dumps(cells, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError) as failure:
        print(f"bench/run ours: {failure}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
