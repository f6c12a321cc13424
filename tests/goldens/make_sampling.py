#!/usr/bin/env python3
"""Writes sampling.json: what transformers' logits processors leave of random logits, and with which probabilities.

    pip install torch transformers==5.23.0
    python3 tests/goldens/make_sampling.py [OUT=tests/goldens/sampling.json]

Each case: logits (some tie), the tokens of a text, parameters, and the probabilities [vocabulary] that a token is drawn
with: repetition penalty, temperature, top-k, top-p and min-p in transformers' order, in double precision.
"""
import json
import pathlib
import random
import sys

import torch
from transformers import generation


def probabilities(logits, text, p):
    ids, scores = torch.tensor([text]), torch.tensor([logits], dtype=torch.float64)
    steps = []
    if p["repeat_penalty"] != 1:
        steps.append(generation.RepetitionPenaltyLogitsProcessor(p["repeat_penalty"]))
    steps.append(generation.TemperatureLogitsWarper(p["temperature"]))
    if p["top_k"]:
        steps.append(generation.TopKLogitsWarper(p["top_k"]))
    if p["top_p"] < 1:
        steps.append(generation.TopPLogitsWarper(p["top_p"]))
    if p["min_p"] > 0:
        steps.append(generation.MinPLogitsWarper(p["min_p"]))
    for step in steps:
        scores = step(ids, scores)
    return torch.softmax(scores, -1)[0].tolist()


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "sampling.json")
    draw, cases = random.Random(24), []
    for number in range(120):
        size = draw.choice([5, 17, 40])
        logits = [float(torch.tensor(draw.gauss(0, 3), dtype=torch.float32)) for _ in range(size)]
        if number % 4 == 0:  # ties
            logits = [round(x) / 1.0 for x in logits]
        p = {"temperature": draw.choice([0.3, 0.7, 1.0, 1.5]), "top_k": draw.choice([0, 1, 3, 8]),
             "top_p": draw.choice([1.0, 0.95, 0.5, 0.1]) if number % 4 else 1.0, "min_p": draw.choice([0.0, 0.05, 0.5]),
             "repeat_penalty": draw.choice([1.0, 1.3, 0.8])}
        text = [draw.randrange(size) for _ in range(draw.randrange(1, 6))]
        cases.append({"logits": logits, "text": text, **p, "probabilities": probabilities(logits, text, p)})
    out.write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
