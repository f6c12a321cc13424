#!/usr/bin/env python3
"""Writes hqq.json: what the public hqq package makes of some expert matrices of the tiny models.

    pip install --no-deps --target DIR hqq safetensors termcolor tqdm      # and torch and numpy from anywhere
    PYTHONPATH=DIR python3 tests/goldens/make_hqq.py

The package cuts with axis=1 and reshape(-1, group_size): where the columns divide by the group size, its groups are
groups of adjacent columns of one row, as in include/ferry/codec/packed.hpp; others are left out here. "factor" 64:
the matrix times 64, as the package's shrinkage acts only on errors that are not small beside 1.
"""

import json
import pathlib
import re

import numpy
import safetensors
import torch

# Older torch lacks it; the package only decorates a layer with it that is not used here.
if not hasattr(torch, "compile"):
    torch.compile = lambda *_, **__: lambda function: function

import hqq
from hqq.core.quantize import Quantizer

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent.parent / "reference_engine" / "models"
MATRICES = {
    "tiny-qwen-moe": ["0.mlp.experts.3.gate_proj", "7.mlp.experts.12.up_proj", "11.mlp.experts.31.down_proj"],
    "tiny-mixtral": [
        "0.block_sparse_moe.experts.0.w1", "7.block_sparse_moe.experts.5.w3", "3.block_sparse_moe.experts.2.w2"
    ],
}


def errors(weights, bits, group, optimize):
    """Mean of |w - w'|, and of its power 0.7, which HQQ makes small."""
    codes, meta = Quantizer.quantize(weights, nbits=bits, group_size=group, optimize=optimize, axis=1, device="cpu",
                                     compute_dtype=torch.float32)
    meta["compute_dtype"] = torch.float32
    error = (weights.double() - Quantizer.dequantize(codes, meta).double()).abs()
    return error.mean().item(), error.pow(0.7).mean().item()


def main():
    matrices = []
    for model, names in MATRICES.items():
        with safetensors.safe_open(MODELS / model / "model.safetensors", "pt") as file:
            for name in names:
                name = f"model.layers.{name}.weight"
                stored = file.get_tensor(name).float()
                rows = []
                for factor in (1, 64):
                    for bits in (8, 4, 2):
                        for group in (32, 64, 128):
                            if stored.shape[1] % group:
                                continue
                            nearest, _ = errors(stored * factor, bits, group, False)
                            mean, power = errors(stored * factor, bits, group, True)
                            rows.append({"factor": factor, "bits": bits, "group": group, "hqq_mean_error": mean,
                                         "hqq_mean_error_power": power, "nearest_mean_error": nearest})
                matrices.append({"model": model, "tensor": name, "shape": list(stored.shape),
                                 "mean_magnitude": stored.double().abs().mean().item(), "errors": rows})
    versions = {"hqq": hqq.__version__, "torch": torch.__version__, "numpy": numpy.__version__,
                "safetensors": safetensors.__version__}
    result = {"made_by": "tests/goldens/make_hqq.py", "versions": versions, "power": 0.7, "matrices": matrices}
    text = json.dumps(result, indent=1)
    # One line a row: easier to read, and to compare.
    text = text.replace("{\n     ", "{").replace(",\n     ", ", ").replace("\n    }", "}")
    text = re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", text)
    (HERE / "hqq.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
