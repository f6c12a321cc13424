#!/usr/bin/env python3
"""Draws what `ferry sweep` wrote: tokens a second in decode against the device memory for experts, a line a stack.

    pip install matplotlib
    ferry sweep --traces TRACE --machines rtx3090-pcie3 --stacks lru,ferry --budgets 12.5%,25%,50%,75% --out sweep.jsonl
    python3 examples/python/plot_sweep.py sweep.jsonl sweep.png
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLORS = ["#999999", "#eb6834", "#b8860b", "#8a63d2", "#1baf7a", "#2a78d6"]


def main():
    if len(sys.argv) != 3:
        raise SystemExit("usage: plot_sweep.py RESULTS.jsonl PICTURE.png (or .svg, .pdf)")
    with open(sys.argv[1], encoding="utf-8") as file:
        runs = [json.loads(line) for line in file]
    runs = [run for run in runs if "decode" in run and run["decode"]["tpot_s"] > 0]  # not refused, and not prompts alone
    if not runs:
        raise SystemExit(f"plot_sweep.py: {sys.argv[1]}: no run is in there that decoded a token")
    lines = {}
    for run in runs:
        lines.setdefault(run["stack"], []).append((run["budget_asked_percent"], 1 / run["decode"]["tpot_s"]))
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    order = sorted(lines, key=lambda stack: max(lines[stack])[1])
    for at, stack in enumerate(order):
        budget, speed = zip(*sorted(lines[stack]))
        axes.plot(budget, speed, "o-", color=COLORS[at % len(COLORS)], linewidth=2, label=stack)
    if (resident := runs[0]["bounds"]["all_resident_tpot_s"]) > 0:  # 0: the sweep made no bounds
        axes.axhline(1 / resident, color="#444444", linestyle=":", label="everything on the device")
    axes.set(xlabel="experts on the device, % of all", ylabel="tokens a second", ylim=(0, None))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1])
    axes.grid(alpha=0.3)
    first = runs[0]
    axes.set_title(f"{first.get('as_shape') or first['model']} on {first['machine']}")
    figure.savefig(sys.argv[2], dpi=120)


if __name__ == "__main__":
    main()
