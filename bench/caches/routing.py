#!/usr/bin/env python3
"""Routing that others recorded on real models, as safetensors that `ferry trace import` reads.

  bench/caches/routing.py esft CHECKOUT OUT.safetensors [TASK ...]      of github.com/deepseek-ai/ESFT (MIT)
  bench/caches/routing.py gpt-oss CHECKOUT OUT.safetensors              of github.com/AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting
                                                                        (Apache-2.0)

CHECKOUT is a clone of the repository. Tensors: experts [tokens, layers, k] U8 and weights, the same shape, F16, both in
the order in which the repository has them; sequence_start [sequences] I32.

esft: results/expert_scores/TASK/expert_weights_L.txt (default: law and translation) has a line a sequence for MoE
layer L: the experts of all tokens, an empty field, their weights.
gpt-oss: data/*/*/*_examples.json have, for each token that was generated, experts and probabilities by layer. Of each
category the first response is taken that has at least 64 tokens and does not repeat itself, in the order of the files'
names; and categories in the order of theirs, until there are 30,000 tokens.
"""
import argparse
import array
import json
import pathlib
import struct
import sys


def refuse(message):
    sys.exit(f"routing.py: {message}")


def half(value):
    return struct.unpack("<H", struct.pack("<e", value))[0]


class Trace:
    """Tokens as they come: each a list of layers, each a list of (expert, weight)."""

    def __init__(self):
        self.experts, self.weights, self.starts = array.array("B"), array.array("H"), array.array("i")
        self.tokens, self.shape = 0, None

    def begin_sequence(self):
        self.starts.append(self.tokens)

    def add(self, layers):
        shape = (len(layers), len(layers[0]))
        if self.shape is None:
            self.shape = shape
        if self.shape != shape or any(len(layer) != shape[1] for layer in layers):
            refuse(f"token {self.tokens} has {shape[0]} layers of {shape[1]} experts, expected {self.shape}")
        for layer in layers:
            for expert, weight in layer:
                self.experts.append(expert)
                self.weights.append(half(weight))
        self.tokens += 1

    def write(self, path, metadata):
        if not self.tokens:
            refuse("no token was found")
        parts = {"weights": ("F16", [self.tokens, *self.shape], self.weights.tobytes()),
                 "sequence_start": ("I32", [len(self.starts)], self.starts.tobytes()),
                 "experts": ("U8", [self.tokens, *self.shape], self.experts.tobytes())}
        header, offset = {"__metadata__": metadata}, 0
        for name, (dtype, shape, data) in parts.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % 64)
        with open(path, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for _, _, data in parts.values():
                out.write(data)
        print(f"{path}: {self.tokens} tokens in {len(self.starts)} sequences, {self.shape[0]} layers, top-{self.shape[1]}")


def esft(checkout, tasks):
    trace, layers, k = Trace(), 26, 6
    for task in tasks:
        folder = checkout / "results" / "expert_scores" / task
        files = [(folder / f"expert_weights_{layer}.txt").read_text().splitlines() for layer in range(1, layers + 1)]
        for lines in zip(*files):
            rows = []
            for line in lines:
                experts, weights = (part.split("\t") for part in line.strip("\t").split("\t\t"))
                rows.append(list(zip(map(int, experts), map(float, weights))))
            trace.begin_sequence()
            for at in range(0, len(rows[0]), k):
                trace.add([row[at:at + k] for row in rows])
    return trace


def gpt_oss(checkout):
    by_category = {}
    for path in sorted((checkout / "data").glob("*/*/*_examples.json")):
        responses = json.loads(path.read_text())
        for response in responses if isinstance(responses, list) else [responses]:
            if len(response["router_data"]) >= 64 and not response["has_repetition"]:
                by_category.setdefault(response["category"], response["router_data"])
    trace = Trace()
    for _, steps in sorted(by_category.items()):
        if trace.tokens >= 30000:
            break
        trace.begin_sequence()
        for step in steps:
            (layers,) = step.values()
            trace.add([list(zip(layers[f"layer_{i}"]["selected_experts"], layers[f"layer_{i}"]["selected_probs"]))
                       for i in range(len(layers))])
    return trace


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=["esft", "gpt-oss"])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("tasks", nargs="*", default=[])
    a = parser.parse_args()
    if not a.checkout.is_dir():
        refuse(f"{a.checkout}: no such folder, expected a clone of the repository")
    if a.source == "esft":
        trace, source = esft(a.checkout, a.tasks or ["law", "translation"]), "github.com/deepseek-ai/ESFT"
    else:
        trace, source = gpt_oss(a.checkout), "github.com/AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting"
    trace.write(a.out, {"source": source})


if __name__ == "__main__":
    main()
