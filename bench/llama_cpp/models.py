"""Random weights at the layer shapes of published models: a checkpoint for Ferry, and GGUF files of the same weights.

A GGUF file is made out of the checkpoint's bytes, so both hold the same numbers. As llama.cpp's own converter does it,
vectors and gates are F32 in GGUF, and the rows of q and k of Mixtral are put in the order of ggml's rotary embedding.
"""
import ctypes
import dataclasses
import json
import math
import os
import struct

import gguf
import numpy as np

from shapes import VOCABULARY

# The part of the folder's name that changes whenever this file makes other weights.
VERSION = 1
# Precisions whose GGUF file both engines read. As in llama.cpp, a row that does not fill blocks of Q4_K is Q8_0.
BLOCKS = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_k": gguf.GGMLQuantizationType.Q4_K}
CONTEXT = 4096
EPSILON = 1e-6
ROPE_THETA = 1e6


@dataclasses.dataclass
class Group:
    """Adjacent tensors of a checkpoint that become one tensor in GGUF."""
    names: list
    gguf_name: str
    shape: tuple  # of each
    scale: float
    offset: float = 0.0
    exact: bool = False  # F32 in GGUF
    rope_heads: int = 0  # the heads whose rows are put in the order of ggml's rotary embedding; 0: none
    begin: int = 0  # in the checkpoint's data, bytes

    @property
    def experts(self):
        return len(self.names) > 1

    @property
    def bytes(self):
        return 2 * len(self.names) * math.prod(self.shape)


def groups(s):
    """Weights that keep activations at about 1, so that attention and gates choose clearly."""
    dim = s.hidden // s.heads
    kv = s.kv_heads * dim
    out = []

    def matrix(names, gguf_name, rows, columns, scale=1.0, **more):
        names = names if isinstance(names, list) else [names]
        out.append(Group(names, gguf_name, (rows, columns), scale / math.sqrt(columns), **more))

    def vector(name, gguf_name, size, offset):
        out.append(Group([name], gguf_name, (size,), 0.1, offset, exact=True))

    out.append(Group(["model.embed_tokens.weight"], "token_embd.weight", (VOCABULARY, s.hidden), 1.0))
    for layer in range(s.layers):
        here, there = f"model.layers.{layer}.", f"blk.{layer}."
        vector(here + "input_layernorm.weight", there + "attn_norm.weight", s.hidden, 1.0)
        for part, rows, heads in (("q", s.hidden, s.heads), ("k", kv, s.kv_heads), ("v", kv, 0)):
            matrix(here + f"self_attn.{part}_proj.weight", there + f"attn_{part}.weight", rows, s.hidden,
                   rope_heads=heads if s.mixtral else 0)
            if not s.mixtral:
                vector(here + f"self_attn.{part}_proj.bias", there + f"attn_{part}.bias", rows, 0.0)
        matrix(here + "self_attn.o_proj.weight", there + "attn_output.weight", s.hidden, s.hidden)
        vector(here + "post_attention_layernorm.weight", there + "ffn_norm.weight", s.hidden, 1.0)
        moe = here + ("block_sparse_moe." if s.mixtral else "mlp.")
        matrix(moe + "gate.weight", there + "ffn_gate_inp.weight", s.experts, s.hidden, scale=2.0, exact=True)
        for part, theirs, gguf_name in (("gate_proj", "w1", "gate"), ("up_proj", "w3", "up"),
                                        ("down_proj", "w2", "down")):
            size = (s.hidden, s.width) if part == "down_proj" else (s.width, s.hidden)
            names = [f"{moe}experts.{e}.{theirs if s.mixtral else part}.weight" for e in range(s.experts)]
            matrix(names, f"{there}ffn_{gguf_name}_exps.weight", *size)
            if s.shared:
                size = (s.hidden, s.shared) if part == "down_proj" else (s.shared, s.hidden)
                matrix(f"{moe}shared_expert.{part}.weight", f"{there}ffn_{gguf_name}_shexp.weight", *size)
        if s.shared:
            matrix(moe + "shared_expert_gate.weight", there + "ffn_gate_inp_shexp.weight", 1, s.hidden, exact=True)
    vector("model.norm.weight", "output_norm.weight", s.hidden, 1.0)
    matrix("lm_head.weight", "output.weight", VOCABULARY, s.hidden)
    begin = 0
    for group in out:
        group.begin = begin
        begin += group.bytes
    return out


def disk_bytes(s, precisions):
    """A little more than the checkpoint and the GGUF files take together."""
    all_bytes = sum(g.bytes for g in groups(s))
    experts = sum(g.bytes for g in groups(s) if g.experts)
    return (2 * all_bytes + ("int4" in precisions) * (all_bytes - experts + experts * 9 // 32)
            + sum(p in BLOCKS for p in precisions) * all_bytes * 17 // 32 + (64 << 20))


def replace(path, write):
    """Writes under a temporary name, so that the file is whole, and on the disk before anything is measured."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def to_bf16(values):
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_f32(bf16):
    return (bf16.astype(np.uint32) << 16).view(np.float32)


def make_checkpoint(s, folder, progress, written=lambda group: True):
    """Groups that are not `written` become holes in the file: zeros that take no space on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "hidden_size": s.hidden, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON, "rope_theta": ROPE_THETA, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "bos_token_id": VOCABULARY - 2, "num_experts_per_tok": s.top_k,
        "eos_token_id": None,  # nothing ends a text before its last token
    }
    if s.mixtral:
        config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": s.experts,
                   "intermediate_size": s.width, "sliding_window": None}
    else:
        config |= {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": s.experts,
                   "moe_intermediate_size": s.width, "shared_expert_intermediate_size": s.shared,
                   "intermediate_size": s.shared, "norm_topk_prob": False, "decoder_sparse_step": 1,
                   "mlp_only_layers": [], "use_sliding_window": False}
    replace(folder / "config.json", lambda file: file.write(json.dumps(config, indent=2).encode()))
    path = folder / "model.safetensors"
    if path.exists():
        return
    header, parts = {}, groups(s)
    for group in parts:
        each = group.bytes // len(group.names)
        for i, name in enumerate(group.names):
            begin = group.begin + i * each
            header[name] = {"dtype": "BF16", "shape": group.shape, "data_offsets": [begin, begin + each]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)

    def write(file):
        file.write(struct.pack("<Q", len(text)) + text)
        random, total = np.random.default_rng(1), sum(g.bytes for g in parts)
        for group in parts:
            if not written(group):
                file.seek(group.bytes, os.SEEK_CUR)
                continue
            for _ in group.names:
                values = random.standard_normal(group.shape, dtype=np.float32)
                values *= group.scale
                values += group.offset
                to_bf16(values).tofile(file)
                progress("checkpoint", file.tell() / total)
        file.truncate(file.tell())

    replace(path, write)


def in_ggml_order(rows, heads):
    """Rotary pairs are (i, i + half) in a checkpoint and (2 i, 2 i + 1) for ggml's `llama`."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def quantized(library, values, kind):
    """Quantizes `values` [rows, columns], F32, with llama.cpp's own code."""
    weights, each = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = values.shape
    out = np.empty(values.size // weights * each, np.uint8)
    values = np.ascontiguousarray(values)
    wrote = library.ggml_quantize_chunk(int(kind), values.ctypes.data_as(ctypes.c_void_p),
                                        out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(0), ctypes.c_int64(rows),
                                        ctypes.c_int64(columns), None)
    assert wrote == out.size, (wrote, out.size)
    return out


def make_gguf(s, folder, precision, progress, library):
    """At int4, experts are Q4_0 and the rest stays BF16, as with Ferry's resident-int4; of BLOCKS all matrices are such.

    library: llama.cpp's libggml-base.
    """
    path = folder / f"{precision}.gguf"
    if path.exists():
        return path
    types = gguf.GGMLQuantizationType
    checkpoint = folder / "model.safetensors"
    with open(checkpoint, "rb") as file:
        start = 8 + struct.unpack("<Q", file.read(8))[0]
    data = np.memmap(checkpoint, np.uint16, "r", start)
    temporary = path.with_name(path.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, "llama" if s.mixtral else "qwen2moe")
    kinds = {"int4": gguf.LlamaFileType.MOSTLY_Q4_0, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
             "q4_k": gguf.LlamaFileType.MOSTLY_Q4_K_M}
    writer.add_file_type(kinds.get(precision, gguf.LlamaFileType.MOSTLY_BF16))
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    writer.add_context_length(CONTEXT)
    writer.add_block_count(s.layers)
    writer.add_embedding_length(s.hidden)
    writer.add_feed_forward_length(s.width if s.mixtral else s.shared)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_rope_dimension_count(s.hidden // s.heads)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_expert_count(s.experts)
    writer.add_expert_used_count(s.top_k)
    if s.shared:
        writer.add_expert_feed_forward_length(s.width)
        writer.add_expert_shared_feed_forward_length(s.shared)
    parts = groups(s)

    def block_type(group):
        columns = group.shape[1]
        return BLOCKS[precision] if columns % gguf.GGML_QUANT_SIZES[BLOCKS[precision]][0] == 0 else types.Q8_0

    def type_of(group):
        if group.exact:
            return types.F32, np.float32, group.bytes * 2
        if precision in BLOCKS:
            kind = block_type(group)
            weights, each = gguf.GGML_QUANT_SIZES[kind]
            return kind, np.float32, group.bytes // 2 // weights * each
        if group.experts and precision == "int4":
            return types.Q4_0, np.float32, group.bytes * 9 // 32  # 32 weights of 2 bytes become 18
        return types.BF16, np.uint16, group.bytes

    def converted(group):
        values = data[group.begin // 2:(group.begin + group.bytes) // 2]
        if group.exact:
            return to_f32(values)
        if precision in BLOCKS:
            each = values.reshape(-1, *group.shape)
            parts = [to_f32(in_ggml_order(e, group.rope_heads) if group.rope_heads else e) for e in each]
            return np.concatenate([quantized(library, p, block_type(group)) for p in parts])
        if group.experts and precision == "int4":
            each = values.reshape(-1, *group.shape)
            return np.concatenate([gguf.quants.quantize(to_f32(e), types.Q4_0).reshape(-1) for e in each])
        return in_ggml_order(values.reshape(group.shape), group.rope_heads) if group.rope_heads else values

    try:
        for group in parts:
            kind, numpy_type, size = type_of(group)
            one = group.shape[1:] if group.shape[0] == 1 else group.shape  # the shared expert's gate is a vector
            shape = (len(group.names), *one) if group.experts else one
            writer.add_tensor_info(group.gguf_name, shape, np.dtype(numpy_type), size, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for i, group in enumerate(parts):
            writer.write_tensor_data(np.ascontiguousarray(converted(group)))
            progress(f"{precision}.gguf", (i + 1) / len(parts))
        writer.flush()
        os.fsync(writer.fout[0].fileno())
        writer.close()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
