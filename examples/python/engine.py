#!/usr/bin/env python3
"""An engine in Python: libferry decides, the plan and the copies come as data, numpy computes.

    engine.py [--library libferry.so] [--stack ferry] [--tokens 100]

SwiGLU experts run from the slots of a small device memory, and each is compared with the host's, bit for bit.
"""
import argparse
import ctypes
import sys
from ctypes import POINTER, byref, c_float, c_uint32, c_uint64, c_void_p

import numpy as np

from ferry_c import (COPY, DECODE, NO_LAYER, NO_SLOT, PRECISIONS, RENORMALISE, Command, Ferry, Options, Plan, Scores, Traits)

LAYERS, EXPERTS, TOP_K, HIDDEN, WIDTH = 4, 16, 2, 32, 48


def swiglu(expert, x):
    gate, up, down = expert  # [width, hidden] each, the last one transposed
    a = gate @ x
    return down.T @ (a / (1 + np.exp(-a)) * (up @ x))


class Engine:
    def __init__(self, ferry, stack):
        self.ferry, random = ferry, np.random.default_rng(1)
        # All experts in host memory, [layers, experts, 3, width, hidden].
        self.host = random.standard_normal((LAYERS, EXPERTS, 3, WIDTH, HIDDEN), dtype=np.float32) / 8
        self.gates = random.standard_normal((LAYERS, EXPERTS, HIDDEN), dtype=np.float32)
        sizes = (c_uint64 * PRECISIONS)(0, 0, 0, 0, self.host[0, 0].nbytes)
        options = Options(size=ctypes.sizeof(Options), stack=stack.encode(), layers=LAYERS, experts=EXPERTS, top_k=TOP_K,
                          renormalise=RENORMALISE, in_order=1, max_rows=1, expert_bytes=sizes, expert_byte_rows=1,
                          budget_bytes=self.host.nbytes // 2)
        self.pipe = c_void_p()
        ferry.open(byref(options), None, byref(self.pipe))
        self.traits = Traits(size=ctypes.sizeof(Traits))
        ferry.get_traits(self.pipe, byref(self.traits))
        slots = ferry.slot_count(self.pipe)
        self.device = np.zeros((slots,) + self.host.shape[2:], dtype=np.float32)  # the slots, which are all of one size here
        self.copies = 0
        if self.traits.preloads:
            ferry.preload(self.pipe)  # carried out with the first layer

    def carry_out(self):
        """Carries out the plan's copies in their order. Here that is all, since nothing runs at the same time."""
        commands, count = POINTER(Command)(), c_uint32()
        self.ferry.take_commands(self.pipe, byref(commands), byref(count))
        for command in commands[:count.value]:
            if command.kind == COPY:
                what = command.copy.what
                self.device[command.copy.slot] = self.host[what.layer, what.expert]
                self.copies += 1

    def scores(self, layer, x):
        logits = self.gates[layer] @ x
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        return scores, Scores(layer=layer, select=scores.ctypes.data_as(POINTER(c_float)), count=EXPERTS)

    def layer(self, layer, x):
        ferry, plan = self.ferry, Plan()
        keep, scores = self.scores(layer, x)
        ferry.plan_scores(self.pipe, byref(scores), byref(plan))
        rows, distance = self.traits.rows[DECODE], 1
        while self.traits.predicts:
            later = ferry.layer_ahead(self.pipe, rows, distance)
            if later == NO_LAYER:
                break
            keep, scores = self.scores(later, x) if rows else (None, Scores(layer=later))
            ferry.look_ahead(self.pipe, byref(scores))
            distance += 1
        self.carry_out()
        out, routes = {}, plan.routes[:plan.route_count]
        for task in plan.resident[:plan.resident_count] + plan.arriving[:plan.arriving_count]:
            out[task.what.expert] = swiglu(self.device[task.slot], x)
            ferry.done(self.pipe, byref(task), 1)
            self.carry_out()
        for task in plan.host[:plan.host_count]:
            out[task.what.expert] = swiglu(self.host[layer, task.what.expert], x)
        ferry.finish(self.pipe, layer, None)
        self.carry_out()
        resident = {route.expert: swiglu(self.host[layer, route.expert], x) for route in routes}
        if any(not np.array_equal(out[e], resident[e]) for e in resident):
            sys.exit(f"engine.py: layer {layer}: not what the resident layer computes")
        return sum(np.float32(route.weight) * out[route.expert] for route in routes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", dest="path", default="libferry.so", help="where libferry.so is, if not on the loader's path")
    parser.add_argument("--stack", default="ferry")
    parser.add_argument("--tokens", type=int, default=100)
    arguments = parser.parse_args()
    try:
        engine = Engine(Ferry(arguments.path), arguments.stack)
    except (OSError, ValueError) as error:
        parser.exit(2, f"engine.py: {error}\n")
    random, sequence = np.random.default_rng(2), c_uint32(0)
    for _ in range(arguments.tokens):
        engine.ferry.begin_step(engine.pipe, DECODE, byref(sequence), 1)
        x = random.standard_normal(HIDDEN, dtype=np.float32)
        for layer in range(LAYERS):
            x = x + engine.layer(layer, x)
    print(f"{arguments.stack}: {arguments.tokens} tokens, {engine.copies} copies, every layer as the resident one computes it")
    engine.ferry.end_sequence(engine.pipe, 0)
    engine.ferry.close(engine.pipe)


if __name__ == "__main__":
    main()
