#!/usr/bin/env python3
"""Writes a GGUF file of random Q8_0 weights at the shape of a published model, as large as that model is: for measurements of
what does not fit into memory. Blocks are drawn as they are stored, since quantizing as many floats would take an hour.

    python3 bench/llama_cpp/random_gguf.py qwen1.5-moe-a2.7b 24 FILE       (a shape, layers; 15 GB)
"""
import dataclasses
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # nothing is left beside the sources
from llama import enter_environment  # noqa: E402
from processes import Progress  # noqa: E402

if __name__ == "__main__":
    enter_environment(Path(__file__).resolve().parents[2] / "build/llama-cpp/venv", Progress())
import gguf  # noqa: E402
import numpy as np  # noqa: E402
from models import CONTEXT, EPSILON, ROPE_THETA, groups  # noqa: E402
from shapes import SHAPES, VOCABULARY  # noqa: E402

BLOCK = np.dtype([("scale", "<f2"), ("codes", "i1", 32)])
CODE_SPREAD = 73.6  # the standard deviation of whole numbers from -127 to 127


def blocks(random, group):
    """One tensor of the group."""
    out = np.empty(group.shape[0] * group.shape[1] // 32, BLOCK)
    out["scale"] = group.scale / CODE_SPREAD
    out["codes"] = random.integers(-127, 128, (out.size, 32), np.int8)
    return out


def write_gguf(shape, path):
    random = np.random.default_rng(1)
    temporary = path.with_name(path.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, "llama" if shape.mixtral else "qwen2moe")
    writer.add_name(shape.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    writer.add_context_length(CONTEXT)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.width if shape.mixtral else shape.shared)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.top_k)
    if shape.shared:
        writer.add_expert_feed_forward_length(shape.width)
        writer.add_expert_shared_feed_forward_length(shape.shared)
    parts = groups(shape)
    types = gguf.GGMLQuantizationType
    try:
        for group in parts:
            one = group.shape[1:] if group.shape[0] == 1 else group.shape  # the shared expert's gate is a vector
            whole = (len(group.names), *one) if group.experts else one
            if group.exact:
                writer.add_tensor_info(group.gguf_name, whole, np.dtype(np.float32), 2 * group.bytes, types.F32)
            else:
                writer.add_tensor_info(group.gguf_name, whole, np.dtype(np.float32), group.bytes // 64 * 34, types.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for i, group in enumerate(parts):
            if group.exact:
                values = random.standard_normal(group.shape, np.float32) * np.float32(group.scale) + np.float32(group.offset)
                writer.write_tensor_data(values)
            else:
                writer.write_tensor_data(np.concatenate([blocks(random, group) for _ in group.names]).view(np.uint8))
            print(f"\r{path.name}: {100 * (i + 1) // len(parts)}%", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        writer.close()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in SHAPES or not sys.argv[2].isdigit():
        sys.exit(__doc__ + "\nShapes: " + ", ".join(SHAPES))
    write_gguf(dataclasses.replace(SHAPES[sys.argv[1]], layers=int(sys.argv[2])), Path(sys.argv[3]))


if __name__ == "__main__":
    main()
