#!/usr/bin/env python3
"""Writes blocks.safetensors: random blocks of GGUF's types, and the floats that the gguf package makes of them.

    pip install gguf numpy safetensors ml_dtypes
    python3 tests/goldens/make_blocks.py

Scales are random halves, but finite. "fp8.weights": what ml_dtypes makes of each byte as an E4M3 without infinities.
"""
import pathlib

import gguf
import ml_dtypes
import numpy
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
TYPES = {  # where halves are
    "q8_0": [0], "q4_0": [0], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208], "mxfp4": [],
    "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q2_k": [80, 82], "q3_k": [108], "iq4_nl": [0], "iq4_xs": [0],
}

random = numpy.random.default_rng(20261125)
tensors = {}
for name, halves in TYPES.items():
    kind = gguf.GGMLQuantizationType[name.upper()]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (24, size), dtype=numpy.uint8)
    for at in halves:
        scales = (random.standard_normal(24) * 10.0 ** random.integers(-6, 3, 24)).astype(numpy.float16)
        blocks[:, at : at + 2] = scales.view(numpy.uint8).reshape(24, 2)
    if name == "mxfp4":
        blocks[:, 0] = numpy.append([0, 1, 2, 254], random.integers(100, 150, 20))
    tensors[name + ".blocks"] = blocks
    tensors[name + ".weights"] = gguf.quants.dequantize(blocks, kind).astype(numpy.float32)
codes = numpy.arange(256, dtype=numpy.uint8).view(ml_dtypes.float8_e4m3fn).astype(numpy.float32)
tensors["fp8.weights"] = codes
save_file(tensors, HERE / "blocks.safetensors")
