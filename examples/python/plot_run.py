#!/usr/bin/env python3
"""Draws what `ferry run` or `ferry compare` wrote: where each stack's time and experts went.

    pip install matplotlib
    ferry compare --model MODEL --prompt "Once upon a time" --stacks lru,fate,ferry --json runs.json
    python3 examples/python/plot_run.py runs.json runs.png
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OUTCOMES = [("hits", "#2a78d6"), ("late_hits", "#1baf7a"), ("misses", "#eb6834"), ("host_computed", "#8a63d2"),
            ("substituted", "#b8860b"), ("skipped", "#999999")]


def runs_of(report):
    """One run, or the runs of a comparison."""
    return report if isinstance(report, list) else [report]


def draw(runs, title):
    names = [run["stack"] for run in runs]
    figure, (times, experts) = plt.subplots(1, 2, figsize=(11, 1.5 + 0.45 * len(runs)), layout="constrained")
    times.barh(names, [1e3 * run["decode"]["tpot_s"] for run in runs], color="#2a78d6")
    for bound, style in (("all_resident_tpot_s", ":"), ("clairvoyant_tpot_s", "--")):
        value = (runs[0].get("bounds") or {}).get(bound)
        if value:
            times.axvline(1e3 * value, color="#444444", linestyle=style, label=bound[:-7].replace("_", " "))
    times.set(title="Time a token", xlabel="ms")
    if times.get_legend_handles_labels()[0]:
        times.legend()
    left = [0.0] * len(runs)
    for outcome, color in OUTCOMES:
        shares = [100 * run["decode"][outcome] / max(1, run["decode"]["requests"]) for run in runs]
        if any(shares):
            experts.barh(names, shares, left=left, color=color, label=outcome.replace("_", " "))
            left = [a + b for a, b in zip(left, shares)]
    experts.set(title="Experts asked for in decode", xlabel="%")
    experts.legend(loc="upper left", bbox_to_anchor=(1, 1))
    for axes in (times, experts):
        axes.invert_yaxis()
    figure.suptitle(title)
    return figure


def main():
    if len(sys.argv) != 3:
        raise SystemExit("usage: plot_run.py RUN.json PICTURE.png (or .svg, .pdf)")
    with open(sys.argv[1], encoding="utf-8") as file:
        runs = runs_of(json.load(file))
    first = runs[0]
    title = f"{first['model']}, {first['budget_percent']:.0f}% of the experts on the device"
    draw(runs, title).savefig(sys.argv[2], dpi=150)


if __name__ == "__main__":
    main()
