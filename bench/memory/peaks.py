#!/usr/bin/env python3
"""Peak memory of `ferry run` beside what `ferry inspect` says that a model needs.

  bench/run memory [--model FOLDER|FILE | --whole [SHAPE]] [--stacks LIST] [--ferry FILE] [--json FILE]

Of each stack the most memory that the process ever held (ru_maxrss), of files that it mapped too, by the bytes that
inspect gives for the precision of its experts with everything else. Without a model it makes layers of Qwen1.5-MoE-A2.7B's
shape with random weights in build/memory (4.6 GB, with numpy from a virtual environment), and keeps them. With --whole it is
all 24 layers and the real vocabulary, 28.6 GB, of which only embeddings, gates and vectors are random: the rest is a hole in
the file (0.7 GB on the disk). 30% of its experts are held, which takes 11.2 GB of memory, and the file is removed behind it.
--whole mixtral-8x7b is all of that model, 93.4 GB of the same kind (0.3 GB on the disk), with 15% of its experts held (16.7 GB).
"""
import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # nothing is left beside the sources
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/llama_cpp"))
from llama import enter_environment  # noqa: E402
from processes import Failure, Progress, run  # noqa: E402

FOLDER = ROOT / "build/memory"
# Stack, budget, share of the experts in host memory, and the precision that inspect names; "": the model's own.
RUNS = [("resident", "100%", "100%", ""), ("lru", "25%", "100%", ""), ("ferry", "25%", "100%", ""),
        ("ferry", "25%", "25%", ""), ("resident-int8", "100%", "100%", "int8"),
        ("resident-int4", "100%", "100%", "int4"), ("resident-int2", "100%", "100%", "int2")]


@dataclasses.dataclass
class Whole:
    """A published model with its real layers and vocabulary, and the share of its experts that a run holds."""
    layers: int
    vocabulary: int
    budget: str
    host: str

    def runs(self):
        return [(stack, self.budget, self.host, "") for stack in ("lru", "ferry")]


WHOLE = {"qwen1.5-moe-a2.7b": Whole(24, 151936, "10%", "20%"), "mixtral-8x7b": Whole(32, 32000, "5%", "10%")}


def arguments():
    p = argparse.ArgumentParser(prog="bench/run memory", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="whose tokens are bytes, so that a prompt of text runs (default: made)")
    p.add_argument("--whole", nargs="?", const="qwen1.5-moe-a2.7b", choices=WHOLE, metavar="SHAPE",
                   help=f"a sparse checkpoint as large as {' or '.join(WHOLE)} (default: the first)")
    p.add_argument("--stacks", help=f"some of {','.join(dict.fromkeys(r[0] for r in RUNS))} (default: all)")
    p.add_argument("--ferry", type=Path, help="the binary (default: built as reference_engine/run does)")
    p.add_argument("--json", type=Path, help="write the numbers to this file")
    a = p.parse_args()
    wanted = a.stacks.split(",") if a.stacks else None
    for name in wanted or []:
        if name not in {r[0] for r in RUNS}:
            p.error(f"--stacks: \"{name}\" is none of those that are measured (see --help)")
    if a.ferry and not os.access(a.ferry, os.X_OK):
        p.error(f"--ferry: {a.ferry}: no program is there")
    if a.json and not a.json.resolve().parent.is_dir():
        p.error(f"--json: {a.json}: its folder is not there")
    if a.whole and a.model:
        p.error("--whole and --model: expected one of them")
    a.runs = [r for r in (WHOLE[a.whole].runs() if a.whole else RUNS) if wanted is None or r[0] in wanted]
    return a


def made_model(progress):
    enter_environment(FOLDER / "venv", progress)
    import models
    import shapes
    s = dataclasses.replace(shapes.SHAPES["qwen1.5-moe-a2.7b"], layers=4)
    folder = FOLDER / f"{s.name}-{s.layers}-layers-v{models.VERSION}"
    models.make_checkpoint(s, folder, lambda what, done: progress.share(f"making {s.name}", done))
    return folder


def whole_model(name, progress):
    enter_environment(FOLDER / "venv", progress)
    import models
    import shapes
    models.VOCABULARY = WHOLE[name].vocabulary
    s = dataclasses.replace(shapes.SHAPES[name], layers=WHOLE[name].layers)
    folder = FOLDER / f"{s.name}-whole"
    models.make_checkpoint(s, folder, lambda what, done: progress.share(f"making {s.name}", done),
                           lambda group: group.exact or group.names[0] == "model.embed_tokens.weight")
    return folder


def inspected(ferry, model):
    """By precision, the bytes of the experts and those of everything; the first is the model's own."""
    text = re.sub(r"\s+", " ", run([ferry, "inspect", "--model", model], "ferry inspect").decode())
    found = re.findall(r"(\S+) experts (\d+) bytes, with everything else (\d+):", text)
    if len(found) < 4:
        raise Failure("ferry inspect: its lines of what is needed were not found")
    return {name if i else "": (int(experts), int(whole)) for i, (name, experts, whole) in enumerate(found)}


def peak(command):
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        if status != 0:
            errors.seek(0)
            raise Failure(f"{command[2:]}: {errors.read().decode(errors='replace').strip()[-300:]}")
    return usage.ru_maxrss * 1024


def main():
    a = arguments()
    progress = Progress()
    try:
        model = a.model or (whole_model(a.whole, progress) if a.whole else made_model(progress))
        prompt = ["--prompt", "A ferry"]
        if a.whole:  # it has no tokenizer; the prompt is long enough to need every expert
            tokens = model / "tokens"
            tokens.write_text(" ".join(str(7919 * i % WHOLE[a.whole].vocabulary) for i in range(256)))
            prompt = ["--token-ids", tokens]
        if a.ferry is None:
            progress.step("building ferry, if it has changed")
            run([ROOT / "reference_engine/run", "--version"], "building ferry")
            a.ferry = ROOT / "build/engine/reference_engine/ferry"
        needs = inspected(a.ferry, model)
        rows = []
        for stack, budget, host, precision in a.runs:
            progress.step(f"{stack} at {budget}, {host} of the experts in memory")
            bytes_held = peak([a.ferry, "run", "--model", model, "--stack", stack, "--device", "cpu", "--budget", budget, "--host-memory", host,
                               *prompt, "--max-new-tokens", 4])
            experts, whole = needs[precision]
            # On the CPU slots and the host's cache share experts that both hold, so this is what they hold at most.
            share = min(1.0, float(host[:-1]) / 100 + (float(budget[:-1]) / 100 if host != "100%" else 0))
            said = round(whole - experts * (1 - share))
            rows.append({"stack": stack, "budget": budget, "host_memory": host, "inspect_bytes": said,
                         "peak_bytes": bytes_held, "ratio": bytes_held / said})
        if a.whole:
            shutil.rmtree(model)
        progress.clear()
        print("| stack | budget | experts in memory | inspect, GB | peak, GB | peak / inspect |\n"
              "| --- | ---: | ---: | ---: | ---: | ---: |")
        for r in rows:
            print(f"| {r['stack']} | {r['budget']} | {r['host_memory']} | {r['inspect_bytes'] / 1e9:.2f} | "
                  f"{r['peak_bytes'] / 1e9:.2f} | {r['ratio']:.3f} |")
        if a.json:
            a.json.write_text(json.dumps({"model": str(model), "rows": rows}, indent=2) + "\n")
    except KeyboardInterrupt:
        progress.clear()
        print("bench/run memory: interrupted", file=sys.stderr)
        sys.exit(130)
    except (Failure, OSError) as error:
        progress.clear()
        print(f"bench/run memory: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
