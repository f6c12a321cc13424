#!/usr/bin/env python3
"""Routing in bursts, made up to make caches of favourites slow, as safetensors that `ferry trace import` reads.

  bench/ours/bursts.py OUT.safetensors --kind KIND --shape NAME [--tokens 600] [--sequences 2] [--seed 1]

NAME: of `ferry list shapes`, whose layers, experts and k it has. KIND:
topic      each 32 tokens a tenth of each layer's experts (k at least) become its favourites
alternate  two such sets take turns, each for 16 tokens
same       each token for 8 tokens
sticky     each expert stays for the next token with a chance of 0.95
loop       each layer's experts in turn, through two fifths of them

Tensors: experts [tokens, layers, k] U8 and sequence_start [sequences] I32; each sequence has so many tokens.
"""
import argparse
import array
import json
import pathlib
import random
import struct
import sys


def refuse(message):
    sys.exit(f"bursts.py: {message}")


def sequence(kind, chance, layers, experts, k, tokens):
    """[tokens][layers], k experts each."""
    few = max(k, experts // 10)
    sets = [[chance.sample(range(experts), few) for _ in range(layers)] for _ in range(2)]
    order = [chance.sample(range(experts), max(k + 1, experts * 2 // 5)) for _ in range(layers)]
    now = [chance.sample(range(experts), k) for _ in range(layers)]
    for token in range(tokens):
        if kind == "topic" and token % 32 == 0:
            sets[0] = [chance.sample(range(experts), few) for _ in range(layers)]
        for layer in range(layers):
            if kind in ("topic", "alternate"):
                own = sets[token // 16 % 2 if kind == "alternate" else 0][layer]
                now[layer] = chance.sample(own, k)
            elif kind == "same" and token % 8 == 0:
                now[layer] = chance.sample(range(experts), k)
            elif kind == "sticky":
                kept = [e for e in now[layer] if chance.random() < 0.95]
                others = [e for e in range(experts) if e not in now[layer]]
                now[layer] = kept + chance.sample(others, k - len(kept))
            elif kind == "loop":
                now[layer] = [order[layer][(token * k + i) % len(order[layer])] for i in range(k)]
        yield [list(chosen) for chosen in now]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--kind", required=True, choices=["topic", "alternate", "same", "sticky", "loop"])
    parser.add_argument("--shape", required=True)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    shape = pathlib.Path(__file__).resolve().parents[2] / "reference_engine" / "shapes" / f"{given.shape}.json"
    if not shape.exists():
        refuse(f"--shape {given.shape}: no such shape, see ferry list shapes")
    facts = json.loads(shape.read_text())
    if facts["experts"] > 255:
        refuse(f"--shape {given.shape}: has {facts['experts']} experts a layer, expected 255 at most")
    chance = random.Random(given.seed)
    chosen = array.array("B")
    for _ in range(given.sequences):
        for token in sequence(given.kind, chance, facts["layers"], facts["experts"], facts["top_k"], given.tokens):
            for layer in token:
                chosen.extend(layer)
    starts = array.array("i", [s * given.tokens for s in range(given.sequences)])
    tokens = given.tokens * given.sequences
    tensors = {"experts": ("U8", [tokens, facts["layers"], facts["top_k"]], chosen.tobytes()),
               "sequence_start": ("I32", [given.sequences], starts.tobytes())}
    header, at = {}, 0
    for name, (dtype, dimensions, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": dimensions, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(given.out, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            out.write(data)


if __name__ == "__main__":
    main()
