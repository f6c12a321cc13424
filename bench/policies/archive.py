#!/usr/bin/env python3
"""What the pictures of the policies are drawn from (docs/site/plots): speeds of every stack, hit rates of every cache.

  bench/run by-policy [--text FILE] [--tokens N] [--traces FILES] [--out FOLDER] [--json FILE]

Speeds: both bundled models are recorded over the text (default: the GPL, which Debian has), their experts count as large as
Qwen1.5-MoE's and Mixtral's, on a machine a link, effective costs, batch 1. Hit rates: the same two recordings and
`--traces`, of `ferry trace import` or `ferry trace record`. All of it repeats exactly. What is unfinished lies in FOLDER
(build/by-policy), where a second run goes on: give another one for another ferry.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True  # nothing is left beside the sources
sys.path.insert(0, str(ROOT / "bench/shared"))
import kept
MODELS = {"tiny-qwen-moe": "qwen1.5-moe-a2.7b", "tiny-mixtral": "mixtral-8x7b"}
MACHINES = {"gtx1080ti-pcie1": "PCIe 1.0", "rtx3090-pcie3": "PCIe 3.0", "rtx4090-pcie4": "PCIe 4.0",
            "h200-pcie5": "PCIe 5.0", "orin-nvme": "NVMe"}
BUDGETS = [12.5, 25, 50, 75]
POOLS = {"per-layer": "a pool a layer", "one": "one pool"}


class Failure(Exception):
    pass


def run(*command):
    """Runs a command, whose progress and errors are shown as they come."""
    status = subprocess.run([str(c) for c in command], stdout=subprocess.DEVNULL).returncode
    if status != 0:
        raise Failure(f"{Path(command[0]).name} {command[1]} ended with exit status {status}")


def arguments():
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            print(f"bench/run by-policy: {message} (see --help)", file=sys.stderr)
            sys.exit(2)

    p = Parser(prog="bench/run by-policy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", type=Path, default=Path("/usr/share/common-licenses/GPL-3"))
    p.add_argument("--tokens", type=int, default=4000, help="of the text (default: 4000)")
    p.add_argument("--traces", type=Path, nargs="+", default=[], help="recorded routing, for hit rates")
    p.add_argument("--out", type=Path, default=ROOT / "build/by-policy", help="folder of results (default: build/by-policy)")
    p.add_argument("--json", type=Path, default=ROOT / "docs/results/by-policy.json",
                   help="what is written (default: docs/results/by-policy.json)")
    args = p.parse_args()
    for file in [args.text, *args.traces]:
        if not file.is_file():
            p.error(f"{file}: no such file")
    if args.tokens < 1:
        p.error(f"--tokens is {args.tokens}, expected 1 or more")
    return args


def record(ferry, args, model):
    trace = args.out / f"{model}.safetensors"
    if not kept.is_current(trace, [args.text]):
        part = trace.with_suffix(".part")
        # This stack keeps the scores of partial hidden states, which one of the predictors reads.
        run(ferry, "trace", "record", "--model", model, "--text", args.text, "--tokens", args.tokens, "--stack", "importance+pre",
            "--alpha", 0, "--out", part)
        kept.keep(part, trace, [args.text])
    return trace


def speeds(ferry, args, trace, shape):
    """Seconds a token and a prompt, by machine and stack, one number a budget; None where the stack was refused."""
    listed = subprocess.run([str(ferry), "list", "stacks"], capture_output=True, text=True, check=True).stdout
    stacks = [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] not in " "]
    stacks = [s for s in stacks if len(s) > 1 and not s.startswith("resident")]
    out = args.out / f"{trace.stem}.jsonl"
    run(ferry, "sweep", "--traces", trace, "--as", shape, "--machines", ",".join(MACHINES), "--stacks", ",".join(stacks),
        "--budgets", ",".join(f"{b}%" for b in BUDGETS), "--out", out)
    result = {key: {} for key in ("decode", "prompt")}
    for row in map(json.loads, out.read_text().splitlines()):
        if "refused" in row:
            continue
        at = BUDGETS.index(row["budget_asked_percent"])
        for key, seconds in (("decode", row["decode"]["tpot_s"]), ("prompt", row["ttft_s"])):
            line = result[key].setdefault(MACHINES[row["machine"]], {}).setdefault(row["stack"], [None] * len(BUDGETS))
            line[at] = float(f"{seconds:.4g}")
    return result


def hit_rates(args, traces):
    """Hits in percent of the requests, by pools and policy, one number a budget."""
    out = args.out / "hits.json"
    run(ROOT / "bench/run", "hit-rates", *traces, "--shares", ",".join(map(str, BUDGETS)), "--pools", ",".join(POOLS),
        "--counted-by", "steps", "--json", out)
    result = {}
    for trace, found in zip(traces, json.loads(out.read_text())):
        pools = result.setdefault(trace.stem, {})
        for r in found["results"]:
            line = pools.setdefault(POOLS[r["layout"]], {}).setdefault(r["policy"], [None] * len(BUDGETS))
            line[BUDGETS.index(r["share_percent"])] = round(100 * r["hits"] / r["requests"], 2)
    return result


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    run(ROOT / "reference_engine/run", "list")
    ferry = ROOT / "build/engine/reference_engine/ferry"
    traces = {model: record(ferry, args, model) for model in MODELS}
    archive = {"budgets": BUDGETS,
               "speeds": {shape: speeds(ferry, args, traces[model], shape) for model, shape in MODELS.items()},
               "hits": hit_rates(args, [*args.traces, *traces.values()])}
    # One line for each stack or policy, so that diffs stay readable.
    text = json.dumps(archive, indent=1)
    part = args.json.with_suffix(".part")
    part.write_text(compact(text) + "\n")
    part.rename(args.json)
    print(args.json)


def compact(text):
    """Lists of numbers on one line."""
    lines, inside = [], None
    for line in text.splitlines():
        if inside is None:
            lines.append(line)
            inside = "" if line.endswith("[") else None
        elif line.strip().startswith("]"):
            lines[-1] += inside.strip() + line.strip()
            inside = None
        else:
            inside += line.strip() + " "
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError) as failure:
        print(f"bench/run by-policy: {failure}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
