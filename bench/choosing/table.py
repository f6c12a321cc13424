#!/usr/bin/env python3
"""Who should take which stack: what `ferry recommend` says by link, host and allowed loss, as one table.

  bench/run choosing [--traces FILES] [--text FILE] [--out FOLDER] [--json FILE]

Both bundled models run over the text (default: the one that comes with ferry), their experts as large as Qwen1.5-MoE's
and Mixtral's; there the losses are measured. `--traces` are of `ferry trace import` or `ferry trace record`, and count
where nothing may be lost. Machines are ferry's own, one a link; each also with a weak host, which has a quarter of the
cores and of the memory's speed, and with none: then only stacks count that never compute an expert on the host. A cell
of the table is the stack with the least geometric mean of times over all routing and over a quarter and half of the
experts on the device. Results lie in FOLDER (build/choosing), where a second run goes on: give another one for another
ferry.
"""
import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True  # nothing is left beside the sources
sys.path.insert(0, str(ROOT / "bench/shared"))
import kept
MODELS = {"tiny-qwen-moe": "qwen1.5-moe-a2.7b", "tiny-mixtral": "mixtral-8x7b"}
MACHINES = {"gtx1080ti-pcie1": "PCIe 1.0", "rtx3090-pcie3": "PCIe 3.0", "rtx4090-pcie4": "PCIe 4.0",
            "h200-pcie5": "PCIe 5.0", "orin-nvme": "NVMe"}
HOSTS = ["strong", "weak", "none"]
BUDGETS = ["25%", "50%"]
LOSSES = [(0, "nothing"), (0.3, "0.3%"), (1, "1%")]
AS_FAST = 1.005  # within half a percent two stacks count as equally fast


class Failure(Exception):
    pass


def weak_twin(folder, name):
    """The machine with a quarter of its host; host and link share 80% of what is left of the memory's peak."""
    machine = json.loads((ROOT / f"reference_engine/machines/{name}.json").read_text())
    machine["name"] = f"{name}-weak-host"
    memory, compute, link = machine["host_memory"], machine["host_compute"], machine["link"]
    for speed in (memory["peak_bytes_per_s"], memory["effective_bytes_per_s"], compute["peak_flops"],
                  compute["effective_flops"]):
        speed["value"] /= 4
        speed["source"] = "derived: a quarter of " + name
    asked = memory["effective_bytes_per_s"]["value"] + link["effective_bytes_per_s"]["value"]
    for share in (memory["beside_copies"], link["beside_host"]):
        share["value"] = min(1, 0.8 * memory["peak_bytes_per_s"]["value"] / asked)
        share["source"] = "derived: 80% of the memory's peak, of what both ask for"
    machine.pop("stated", None)
    path = folder / f"{name}-weak-host.json"
    path.write_text(json.dumps(machine, indent=1) + "\n")
    return path


def recommendation(ferry, folder, routing, name, machine, budget):
    """What ferry recommend says, kept in a file."""
    out = folder / f"{name}-{Path(machine).stem}-{budget.rstrip('%')}.json"
    files = [word for word in [*routing, str(machine)] if Path(word).is_file()]
    if not kept.is_current(out, files):
        part = out.with_suffix(".part")
        command = [str(ferry), "recommend", *routing, "--machine", str(machine), "--budget", budget, "--json", str(part)]
        run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            raise Failure(run.stderr.strip().splitlines()[-1] if run.stderr else f"exit status {run.returncode}")
        kept.keep(part, out, files)
    return json.loads(out.read_text())


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def chosen(results, loss, left_out):
    """The best stack and the next over the results of a row, among stacks that lose no more than `loss`."""
    runs = []
    for result in results:
        runs.append({row["stack"]: row for row in result["ranking"]
                     if row["stack"] not in left_out and (row["loss_percent"] or 0) <= loss})
    everywhere = set.intersection(*(set(t) for t in runs))
    ranking = sorted((geometric_mean([t[s]["tpot_s"] for t in runs]), s) for s in everywhere)
    if len(ranking) < 2:
        raise Failure("fewer than two stacks can run on all of the routing, expected more")
    best, second = ranking[0][1], ranking[1][1]
    least = [min(row["tpot_s"] for row in t.values()) for t in runs]
    missed = [t for t, m in zip(runs, least) if t[best]["tpot_s"] > AS_FAST * m]
    bound = "clairvoyant_tpot_s" if left_out else "clairvoyant_with_host_tpot_s"
    return {"stack": best, "of": len(runs), "best_in": len(runs) - len(missed), "next": second,
            "times": geometric_mean([t[second]["tpot_s"] / t[best]["tpot_s"] for t in runs]),
            "others": Counter(min(t, key=lambda s: t[s]["tpot_s"]) for t in missed),
            "over_bound": geometric_mean([t[best]["tpot_s"] / t[best]["run"]["bounds"][bound] for t in runs])}


def helps(results):
    """The upgrades that help most where nothing may be lost, each with the geometric mean of new time over old a token."""
    ratios = {}
    for result in results:
        for u in result["upgrades"]:
            ratios.setdefault(u["what"], []).append(u["ratio"])
    means = {what: geometric_mean(values) for what, values in ratios.items() if len(values) == len(results)}
    return sorted(means.items(), key=lambda m: m[1])


def arguments():
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            print(f"bench/run choosing: {message} (see --help)", file=sys.stderr)
            sys.exit(2)

    p = Parser(prog="bench/run choosing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--traces", type=Path, nargs="+", default=[], help="recorded routing of other models")
    p.add_argument("--text", type=Path, help="over which the bundled models run (default: the one that comes with ferry)")
    p.add_argument("--out", type=Path, default=ROOT / "build/choosing", help="folder of results (default: build/choosing)")
    p.add_argument("--json", type=Path, help="write the table to this file, too")
    p.add_argument("--ferry", type=Path, default=ROOT / "build/engine/reference_engine/ferry",
                   help="the binary (default: what reference_engine/run has built)")
    args = p.parse_args()
    for file in args.traces + ([args.text] if args.text else []) + [args.ferry]:
        if not file.is_file():
            p.error(f"{file}: no such file")
    twice = [name for name, n in Counter(f.stem for f in args.traces).items() if n > 1]
    if twice:
        p.error(f"{twice[0]} is the name of two files, expected different names: results are told apart by them")
    return args


def measured(args):
    """A row for each link and host, with what ferry recommend says where nothing may be lost, and where 1% may."""
    text = ["--text", str(args.text)] if args.text else []
    of_models = [(f"{m}-{args.text.stem if args.text else 'mixed'}", ["--model", m, "--as", shape] + text)
                 for m, shape in MODELS.items()]
    lossy = [(name + "-lossy", routing + ["--max-loss", "1%"]) for name, routing in of_models]
    exact = of_models + [(t.stem, ["--trace", str(t)]) for t in args.traces]
    done, of = 0, len(MACHINES) * 2 * len(BUDGETS) * (len(exact) + len(lossy))
    rows = []
    for name, link in MACHINES.items():
        for host, machine in (("strong", name), ("weak", weak_twin(args.out, name))):
            row = {"link": link, "host": host, "exact": [], "lossy": []}
            for kind, sources in (("exact", exact), ("lossy", lossy)):
                for source, routing in sources:
                    for budget in BUDGETS:
                        row[kind].append(recommendation(args.ferry, args.out, routing, source, machine, budget))
                        done += 1
                        print(f"\r{done} of {of} recommendations", end="", file=sys.stderr, flush=True)
            rows.append(row)
            if host == "strong":
                rows.append({**row, "host": "none"})
    print(file=sys.stderr)
    return sorted(rows, key=lambda r: (list(MACHINES.values()).index(r["link"]), HOSTS.index(r["host"])))


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = measured(args)
    on_host = {r["stack"] for row in rows for result in row["exact"] + row["lossy"] for r in result["ranking"]
               if r["run"]["decode"]["host_computed"] > 0}
    print("| link | host | " + " | ".join(f"loses {title}" for _, title in LOSSES) + " | bound | helps most |\n"
          "| --- | --- |" + " --- |" * len(LOSSES) + " ---: | --- |")
    table, others = [], Counter()
    for row in rows:
        none = row["host"] == "none"
        cells = [chosen(row["exact" if loss == 0 else "lossy"], loss, on_host if none else set()) for loss, _ in LOSSES]
        most = [] if none else helps(row["exact"])
        words = []
        for c in cells:
            others += c["others"]
            often = "" if c["best_in"] == c["of"] else f" in {c['best_in']} of {c['of']}"
            words.append(f"`{c['stack']}`{often}, `{c['next']}` {c['times']:.2f}")
        print(f"| {row['link']} | {row['host']} | " + " | ".join(words) + f" | {cells[0]['over_bound']:.2f} | "
              + (", ".join(f"{what} {mean:.2f}" for what, mean in most[:2]) or "-") + " |")
        table.append({"link": row["link"], "host": row["host"], "by_loss": cells, "helps": most})
    print("\nBest where the named one is not: "
          + (", ".join(f"`{s}` in {n}" for s, n in others.most_common()) or "none") + ".")
    if args.json:
        args.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError) as failure:
        print(f"bench/run choosing: {failure}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
