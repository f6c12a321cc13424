#!/usr/bin/env python3
"""Writes GGUF files of a tiny random Qwen3-MoE whose types llama.cpp's own quantiser chose, tensor by tensor.

    pip install gguf numpy llama-cpp-python
    python3 tests/goldens/make_gguf_types.py tests/goldens/gguf

types-NAME.gguf: rows of 256 weights, but those of the experts' down of half the files are of 96, which no block of 256 fills.
"""
import ctypes
import pathlib
import sys
import tempfile

import gguf
import llama_cpp
import numpy

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, EXPERTS, TOP_K, VOCABULARY = 1, 256, 4, 2, 32, 3, 2, 64
# The name of a mixture, and how wide experts are.
FILES = {"q2_k": 256, "q3_k_m": 256, "iq4_xs": 256, "q2_k-96": 96, "q4_k_m-96": 96, "q5_k_m-96": 96, "q4_1-96": 96}


def write_floats(path, width):
    random = numpy.random.default_rng(20261127)
    w = gguf.GGUFWriter(path, "qwen3moe")
    w.add_block_count(LAYERS)
    w.add_context_length(128)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(width)
    w.add_expert_feed_forward_length(width)
    w.add_expert_count(EXPERTS)
    w.add_expert_used_count(TOP_K)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(VOCABULARY)
    w.add_tokenizer_model("none")

    def add(name, *shape, near=0.0):
        values = near + random.standard_normal(shape) * (0.1 if near else shape[-1] ** -0.5)
        w.add_tensor(name, values.astype(numpy.float32))

    add("token_embd.weight", VOCABULARY, HIDDEN)
    add("output.weight", VOCABULARY, HIDDEN)
    add("output_norm.weight", HIDDEN, near=1.0)
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        for norm, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", HEAD), ("attn_k_norm", HEAD)):
            add(f"{b}{norm}.weight", size, near=1.0)
        add(b + "attn_q.weight", HEADS * HEAD, HIDDEN)
        add(b + "attn_k.weight", KV_HEADS * HEAD, HIDDEN)
        add(b + "attn_v.weight", KV_HEADS * HEAD, HIDDEN)
        add(b + "attn_output.weight", HIDDEN, HEADS * HEAD)
        add(b + "ffn_gate_inp.weight", EXPERTS, HIDDEN)
        add(b + "ffn_gate_exps.weight", EXPERTS, width, HIDDEN)
        add(b + "ffn_up_exps.weight", EXPERTS, width, HIDDEN)
        add(b + "ffn_down_exps.weight", EXPERTS, HIDDEN, width)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, width in FILES.items():
            floats = pathlib.Path(folder) / "floats.gguf"
            write_floats(floats, width)
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + name.removesuffix("-96").upper())
            params.nthread = 1
            to = out / f"types-{name}.gguf"
            if llama_cpp.llama_model_quantize(str(floats).encode(), str(to).encode(), ctypes.byref(params)) != 0:
                sys.exit(f"{to}: llama.cpp could not write it")
            kinds = sorted({t.tensor_type.name for t in gguf.GGUFReader(to).tensors})
            print(f"{to.name}: {to.stat().st_size} bytes, {' '.join(kinds)}")


if __name__ == "__main__":
    main()
