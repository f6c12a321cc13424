#!/usr/bin/env python3
"""Holds ferry against transformers on random configurations: logits, and the likeliest tokens, of tiny checkpoints that
nobody has seen before. Not in CI: it needs torch and transformers.

    pip install torch transformers==5.23.0 safetensors ml_dtypes
    python3 tests/goldens/fuzz_transformers.py FERRY [--cases N] [--seed S] [--families A,B] [--keep FOLDER] [--gguf LLAMA_CPP]

FERRY is the binary, as reference_engine/run builds it. Case after case: a family, a configuration that its configuration class
takes (numbers of heads, kinds of rotary embedding, windows, gates, biases, multipliers, layers without experts), random weights
in float32, float16 or bfloat16, with experts one by one or in one tensor, a config.json as transformers 5 or 4 writes it, and
in half of the cases a few fields that are dropped, null, or come with another value than the weights were made for. What
transformers makes of that very folder (float32, eager attention, no cache) is what is expected: ferry has to compute the
same, or to refuse it in one line that names the field or the tensor. A refusal is counted and shown.

A difference counts if transformers' own float64 agrees with its float32 there, so that no rounding decided between experts.
Each case prints as one line; ends with status 1 if any differs. --keep saves the folders of those that do.

deepseek and xverse, which transformers does not have, are held against make_deepseek_xverse.py, in fewer configurations.

With --gguf ferry gets what llama.cpp's converter makes of the folder, as make_gguf.py calls it, in F32; configurations are then
such that a GGUF file can say all of them.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import traceback

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

import make_deepseek_xverse as plain  # noqa: E402

VOCABULARY, NEW_TOKENS, TOLERANCE = 258, 6, 1e-4


def rope(r, dim, kinds=("default", "linear", "dynamic", "yarn", "llama3", "longrope"), **more):
    """`dim` columns turn. Lengths are on either side of what counts as long, and not near it."""
    kind = r.choice(kinds)
    p = {"rope_type": kind, "rope_theta": r.choice([10000.0, 500000.0, 1000.0]), **more}
    if kind in ("linear", "dynamic", "yarn", "llama3"):
        p["factor"] = r.choice([1.5, 4.0, 8.0, 40.0])
    if kind in ("yarn", "llama3", "longrope"):
        p["original_max_position_embeddings"] = r.choice([2, 64, 128, 256] if kind == "longrope" else [8, 64, 128, 256])
    if kind == "yarn":
        for name, values in {"beta_fast": [32, 4.0, 64], "beta_slow": [1, 0.5, 2.0], "mscale": [1.0, 0.707], "mscale_all_dim": [1.0, 0.707, 0],
                             "attention_factor": [1.25], "truncate": [True, False]}.items():
            if r.random() < 0.4:
                p[name] = r.choice(values)
    if kind == "llama3":
        p["low_freq_factor"] = r.choice([1.0, 2.0])
        p["high_freq_factor"] = r.choice([4.0, 8.0])
    if kind == "longrope":
        p["short_factor"] = [round(r.uniform(1, 2), 3) for _ in range(dim // 2)]
        p["long_factor"] = [round(r.uniform(1, 30), 3) for _ in range(dim // 2)]
        for name, values in {"factor": [2.0, 16.0], "attention_factor": [1.2]}.items():
            if r.random() < 0.4:
                p[name] = r.choice(values)
    return p


def base(r, heads=None, **fields):
    """What all families have. Sizes are such that nothing is a multiple of what kernels like, at times."""
    heads = heads or r.choice([2, 3, 4, 6])
    kv = r.choice([n for n in (1, 2, 3, 4, 6) if heads % n == 0])
    c = dict(vocab_size=VOCABULARY, bos_token_id=256, eos_token_id=None, pad_token_id=None, hidden_size=heads * r.choice([8, 16, 24]),
             num_hidden_layers=r.choice([1, 2, 3, 5]), num_attention_heads=heads, num_key_value_heads=kv,
             max_position_embeddings=r.choice([256, 512, 4096]), rms_norm_eps=r.choice([1e-6, 1e-5, 1e-2]),
             tie_word_embeddings=r.random() < 0.3)
    c.update(fields)
    return c


def head_dim(r, c, always=False):
    """Sets or leaves out the width of a head; gives it."""
    if always or r.random() < 0.6:
        c["head_dim"] = r.choice([8, 16, 20, 32])
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def experts(r, count="num_experts", top_k="num_experts_per_tok", width="moe_intermediate_size"):
    n = r.choice([2, 4, 5, 8, 9, 33])
    return {count: n, top_k: r.randint(1, min(n, 4)), width: r.choice([8, 24, 32, 40])}


def flag(r):
    return r.random() < 0.5


def dense_layers(r, c):
    """Qwen's ways."""
    n = c["num_hidden_layers"]
    c["intermediate_size"] = r.choice([24, 48])
    c["decoder_sparse_step"] = r.choice([1, 1, 2]) if n > 1 else 1
    if n > 2 and flag(r):
        c["mlp_only_layers"] = r.sample(range(n - 1), r.randint(0, n - 2))
        c["decoder_sparse_step"] = 1


def types_of_layers(r, c, kinds):
    if flag(r):
        c["layer_types"] = [r.choice(kinds) for _ in range(c["num_hidden_layers"])]


def mixtral(r):
    c = base(r, **experts(r, "num_local_experts", width="intermediate_size"), sliding_window=r.choice([None, 1, 7, 16, 600]))
    c["rope_parameters"] = rope(r, head_dim(r, c))
    return c


def qwen2_moe(r):
    c = base(r, **experts(r), shared_expert_intermediate_size=r.choice([8, 24, 48]), norm_topk_prob=flag(r), qkv_bias=flag(r))
    dense_layers(r, c)
    if flag(r):
        c.update(use_sliding_window=True, sliding_window=r.choice([3, 16]), max_window_layers=r.choice([0, 1, 2, 28]))
        types_of_layers(r, c, ["full_attention", "sliding_attention"])
    c["rope_parameters"] = rope(r, c["hidden_size"] // c["num_attention_heads"])
    return c


def qwen3_moe(r):
    c = base(r, **experts(r), norm_topk_prob=flag(r), attention_bias=flag(r))
    dense_layers(r, c)
    if flag(r):
        c.update(use_sliding_window=True, sliding_window=r.choice([3, 16]))
    c["rope_parameters"] = rope(r, head_dim(r, c, always=True))
    return c


def olmoe(r):
    c = base(r, **experts(r, width="intermediate_size"), norm_topk_prob=flag(r), attention_bias=flag(r), clip_qkv=r.choice([None, 0.5, 8.0]))
    c["rope_parameters"] = rope(r, c["hidden_size"] // c["num_attention_heads"])
    return c


def flex_olmo(r):
    c = base(r, **experts(r, width="intermediate_size"), norm_topk_prob=flag(r), attention_bias=flag(r))
    c["rope_parameters"] = rope(r, c["hidden_size"] // c["num_attention_heads"])
    return c


def phimoe(r):
    c = base(r, **experts(r, "num_local_experts", width="intermediate_size"), attention_bias=flag(r), lm_head_bias=flag(r),
             router_jitter_noise=r.choice([0.01, 0.2, 0.0]), input_jitter_noise=0.01, sliding_window=r.choice([None, 7, 600]))
    c["num_experts_per_tok"] = 2
    dim = c["hidden_size"] // c["num_attention_heads"]
    c["rope_parameters"] = rope(r, dim, ("default", "longrope"))
    if c["rope_parameters"]["rope_type"] == "longrope":
        # transformers gives texts that are longer the long scale and the short factors, which its makers' code does not
        c["rope_parameters"].update(short_mscale=1.1, long_mscale=1.24, original_max_position_embeddings=256)
        c["max_position_embeddings"] = 4096
    return c


def granite(r, **more):
    c = base(r, **experts(r, "num_local_experts", width="intermediate_size"), attention_bias=flag(r),
             embedding_multiplier=r.choice([1.0, 3.0, 12]), logits_scaling=r.choice([1.0, 0.5, 6.0]),
             residual_multiplier=r.choice([1.0, 0.22]), attention_multiplier=r.choice([1.0, 0.125, 0.0625]), **more)
    c["rope_parameters"] = rope(r, c["hidden_size"] // c["num_attention_heads"])
    return c


def granitemoeshared(r):
    return granite(r, shared_intermediate_size=r.choice([0, 24, 48]))


def granitemoehybrid(r):
    c = granite(r, shared_intermediate_size=r.choice([24, 48]), mamba_n_heads=r.choice([2, 4, 8]), mamba_n_groups=r.choice([1, 1, 2]), mamba_d_state=r.choice([8, 16]),
                mamba_d_conv=r.choice([1, 2, 4]), mamba_expand=r.choice([1, 2]), mamba_conv_bias=flag(r), mamba_proj_bias=flag(r),
                mamba_chunk_size=r.choice([4, 16, 256]), position_embedding_type=r.choice([None, "nope", "rope"]))
    c["mamba_d_head"] = r.choice(["auto", c["mamba_expand"] * c["hidden_size"] // c["mamba_n_heads"]])
    c["layer_types"] = [r.choice(["linear_attention", "full_attention"]) for _ in range(c["num_hidden_layers"])]
    return c


def latent(r, c):
    turned = r.choice([4, 8, 16])
    c.update(num_key_value_heads=c["num_attention_heads"], kv_lora_rank=r.choice([8, 16, 20]), q_lora_rank=r.choice([None, 12, 24]),
             qk_nope_head_dim=r.choice([8, 12, 16]), qk_rope_head_dim=turned, v_head_dim=r.choice([8, 12, 16]), attention_bias=flag(r))
    c["rope_parameters"] = rope(r, turned)


def dense_first(r, c):
    c["first_k_dense_replace"] = r.randint(0, c["num_hidden_layers"] - 1)
    c["intermediate_size"] = r.choice([24, 48])


def groups(r, c, least):
    n = r.choice([4, 8, 12, 64])
    all_groups = r.choice([g for g in (1, 2, 4, 8) if n // g >= least and n % g == 0])
    kept = r.randint(1, all_groups)
    c.update(n_routed_experts=n, n_group=all_groups, topk_group=kept, num_experts_per_tok=r.randint(1, min(4, kept * (n // all_groups))))


def deepseek_v2(r):
    c = base(r, **experts(r, "n_routed_experts"), n_shared_experts=r.choice([1, 2]), routed_scaling_factor=r.choice([1.0, 16.0, 2.5]),
             topk_method="greedy", mlp_bias=False)
    if flag(r):
        groups(r, c, 1)
        c["topk_method"] = "group_limited_greedy"
    latent(r, c)
    dense_first(r, c)
    return c


def sigmoid_gate(r, **more):
    c = base(r, n_shared_experts=r.choice([1, 2]), moe_intermediate_size=r.choice([8, 24, 32]), routed_scaling_factor=r.choice([1.0, 2.5]),
             norm_topk_prob=flag(r), **more)
    groups(r, c, 2)
    dense_first(r, c)
    return c


def deepseek_v3(r):
    c = sigmoid_gate(r, rope_interleave=flag(r), num_nextn_predict_layers=0)
    latent(r, c)
    return c


def glm4_moe(r):
    c = sigmoid_gate(r, attention_bias=flag(r), use_qk_norm=flag(r), num_nextn_predict_layers=0)
    dim = head_dim(r, c, always=True)
    share = r.choice([0.5, 1.0, 0.25]) if dim % 8 == 0 else 1.0
    c["rope_parameters"] = rope(r, int(dim * share), partial_rotary_factor=share)
    return c


def typed_layers(c):
    """What counts as dense is said layer by layer."""
    first = c.pop("first_k_dense_replace")
    c["mlp_layer_types"] = ["dense" if l < first else "sparse" for l in range(c["num_hidden_layers"])]


def glm4_moe_lite(r):
    c = sigmoid_gate(r, rope_interleave=flag(r))
    latent(r, c)
    typed_layers(c)
    return c


def mistral4(r):
    c = sigmoid_gate(r, rope_interleave=flag(r))
    latent(r, c)
    p = rope(r, c["qk_rope_head_dim"], ("linear", "yarn"))
    p.setdefault("original_max_position_embeddings", r.choice([4, 16, 8192]))
    c["rope_parameters"] = dict(p, llama_4_scaling_beta=r.choice([0.1, 0.5]),
                                partial_rotary_factor=c["qk_rope_head_dim"] / (c["qk_rope_head_dim"] + c["qk_nope_head_dim"]))
    return c


def solar_open(r):
    c = sigmoid_gate(r, attention_bias=flag(r))
    for name in ("first_k_dense_replace", "intermediate_size"):
        del c[name]
    c["rope_parameters"] = rope(r, head_dim(r, c, always=True))
    return c


def exaone_moe(r):
    c = sigmoid_gate(r)
    c["num_experts"], c["num_shared_experts"] = c.pop("n_routed_experts"), c.pop("n_shared_experts")
    if flag(r):
        typed_layers(c)
    c["sliding_window"] = r.choice([3, 16, 600])
    c["sliding_window_pattern"] = r.choice([1, 2, 4])
    types_of_layers(r, c, ["full_attention", "sliding_attention"])
    c["rope_parameters"] = rope(r, head_dim(r, c))
    return c


def hy_v3(r):
    c = base(r, **experts(r), num_shared_experts=r.choice([1, 2]), router_scaling_factor=r.choice([1.0, 2.826]), attention_bias=flag(r))
    dense_first(r, c)
    typed_layers(c)
    c["rope_parameters"] = rope(r, head_dim(r, c, always=True))
    return c


def afmoe(r):
    c = base(r, **experts(r), num_shared_experts=r.choice([1, 2]), route_scale=r.choice([1.0, 2.826]), attention_bias=flag(r),
             mup_enabled=flag(r), sliding_window=r.choice([3, 16, 600]), global_attn_every_n_layers=r.choice([1, 2, 4]))
    dense_first(r, c)
    c["num_dense_layers"] = c.pop("first_k_dense_replace")
    types_of_layers(r, c, ["full_attention", "sliding_attention"])
    c["rope_parameters"] = rope(r, head_dim(r, c, always=True))
    return c


def lfm2_moe(r):
    c = base(r, **experts(r), norm_topk_prob=flag(r), routed_scaling_factor=r.choice([1.0, 2.826]), use_expert_bias=flag(r), norm_eps=r.choice([1e-6, 1e-5, 1e-2]),
             conv_L_cache=r.choice([1, 2, 3, 3, 4]), tie_word_embeddings=flag(r))
    dense_first(r, c)
    c["num_dense_layers"] = c.pop("first_k_dense_replace")
    c["layer_types"] = [r.choice(["conv", "full_attention"]) for _ in range(c["num_hidden_layers"])]
    c["rope_parameters"] = rope(r, head_dim(r, c))
    return c


def gemma4_text(r):
    c = base(r, **experts(r, top_k="top_k_experts"), intermediate_size=r.choice([24, 48]), enable_moe_block=True, hidden_size_per_layer_input=0,
             vocab_size_per_layer_input=VOCABULARY, attention_bias=flag(r), sliding_window=r.choice([3, 16, 600]), pad_token_id=0,
             attention_k_eq_v=flag(r), head_dim=r.choice([8, 16, 20]), global_head_dim=r.choice([8, 16, 24, 32]), use_double_wide_mlp=flag(r),
             final_logit_softcapping=r.choice([None, 2.0, 30.0]), use_bidirectional_attention=r.choice([None, "vision"]))
    if flag(r):
        c["num_global_key_value_heads"] = r.choice([n for n in (1, 2, 3) if c["num_attention_heads"] % n == 0])
    types_of_layers(r, c, ["full_attention", "sliding_attention"])
    if flag(r):
        share = r.choice([0.25, 0.5, 1.0])
        full = r.choice([rope(r, c["global_head_dim"]), {"rope_type": "proportional", "rope_theta": r.choice([1e6, 1000.0]), "partial_rotary_factor": share}])
        if full["rope_type"] == "proportional" and flag(r):
            full["factor"] = 8.0
        c["rope_parameters"] = {"full_attention": full, "sliding_attention": rope(r, c["head_dim"])}
    return c


def dots1(r):
    c = sigmoid_gate(r, attention_bias=flag(r))
    c["sliding_window"] = r.choice([None, 5, 16])
    if c["sliding_window"]:
        c["max_window_layers"] = r.randint(0, 4)
    c["rope_parameters"] = rope(r, head_dim(r, c))
    return c


def ernie4_5_moe(r):
    n = r.choice([2, 4, 8])
    c = base(r, moe_num_experts=n, moe_k=r.randint(1, min(n, 4)), moe_num_shared_experts=r.choice([0, 1, 2]),
             moe_intermediate_size=r.choice([8, 24, 32]), intermediate_size=r.choice([24, 48]))
    last = c["num_hidden_layers"] - 1
    c["moe_layer_start_index"] = r.randint(0, last)
    c["moe_layer_end_index"] = r.choice([-1, last, last])
    c["moe_layer_interval"] = r.choice([1, 1, 2]) if last else 1
    c["rope_parameters"] = rope(r, head_dim(r, c))
    return c


def hunyuan_v1_moe(r):
    c = base(r, **experts(r, top_k="moe_topk", width="intermediate_size"), attention_bias=flag(r))
    dim = head_dim(r, c, always=True)
    if flag(r):
        c["moe_topk"] = [r.randint(1, 2) for _ in range(c["num_hidden_layers"])]
    c["rope_parameters"] = rope(r, dim)
    if flag(r):
        c["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": r.choice([1000.0, 2.0])}
    return c


def minimax_m2(r):
    c = base(r, **experts(r, "num_local_experts", width="intermediate_size"))
    dim = head_dim(r, c, always=True)
    share = r.choice([0.5, 1.0]) if dim % 4 == 0 else 1.0
    c["rope_parameters"] = rope(r, int(dim * share), partial_rotary_factor=share)
    return c


def gpt_oss(r):
    c = base(r, **experts(r, "num_local_experts", width="intermediate_size"), attention_bias=flag(r), sliding_window=r.choice([4, 16, 128]))
    types_of_layers(r, c, ["full_attention", "sliding_attention"])
    if flag(r):
        c.update(swiglu_alpha=r.choice([1.702, 1.0]), swiglu_limit=r.choice([7.0, 0.5]))
    c["rope_parameters"] = rope(r, head_dim(r, c, always=True))
    return c


def llama4_text(r):
    c = base(r, num_local_experts=r.choice([3, 4, 5]), num_experts_per_tok=r.choice([1, 1, 2, 3]), intermediate_size=r.choice([16, 32]),
             intermediate_size_mlp=r.choice([24, 48]), attention_chunk_size=r.choice([None, 5, 16, 600]), use_qk_norm=flag(r),
             attn_temperature_tuning=flag(r), floor_scale=r.choice([4, 16, 8192]), attn_scale=r.choice([0.1, 0.5]), attention_bias=flag(r))
    n = c["num_hidden_layers"]
    if flag(r):
        c["moe_layers"] = sorted(r.sample(range(n), r.randint(1, n)))
    else:
        c["interleave_moe_layer_step"] = r.randint(1, min(n, 2))
    if flag(r):
        c["no_rope_layers"] = [r.randint(0, 1) for _ in range(n)]
    else:
        c["no_rope_layer_interval"] = r.randint(1, 4)
    if c["attention_chunk_size"]:
        types_of_layers(r, c, ["full_attention", "chunked_attention"])
    else:
        c["layer_types"] = ["full_attention"] * n
    c["rope_parameters"] = rope(r, head_dim(r, c, always=True))
    return c


def gated_delta(r, fused):
    c = base(r, **experts(r), shared_expert_intermediate_size=r.choice([8, 24]), attention_bias=flag(r),
             linear_num_key_heads=r.choice([1, 2]), linear_key_head_dim=r.choice([8, 16]), linear_value_head_dim=r.choice([8, 12]),
             linear_conv_kernel_dim=r.choice([1, 2, 3, 4]))
    c["linear_num_value_heads"] = c["linear_num_key_heads"] * r.choice([1, 2, 3])
    if fused:
        c["norm_topk_prob"] = flag(r)
        dense_layers(r, c)
    dim = head_dim(r, c, always=True)
    share = r.choice([0.5, 1.0, 0.25]) if dim % 8 == 0 else 1.0
    types_of_layers(r, c, ["full_attention", "linear_attention"])
    if "layer_types" in c and "full_attention" not in c["layer_types"]:
        c["layer_types"][-1] = "full_attention"
    c["rope_parameters"] = rope(r, int(dim * share), partial_rotary_factor=share)
    if not fused and flag(r):
        c["rope_parameters"]["mrope_section"] = [int(dim * share) // 2, 0, 0]
    return c


def qwen3_next(r):
    return gated_delta(r, True)


def qwen3_5_moe_text(r):
    return gated_delta(r, False)


FAMILIES = {f.__name__: f for f in (
    mixtral, qwen2_moe, qwen3_moe, olmoe, flex_olmo, phimoe, granitemoeshared, granitemoehybrid, deepseek_v2, deepseek_v3, glm4_moe, glm4_moe_lite, mistral4, solar_open, afmoe, gemma4_text, lfm2_moe, dots1,
    ernie4_5_moe, exaone_moe, hunyuan_v1_moe, hy_v3, minimax_m2, gpt_oss, llama4_text, qwen3_next, qwen3_5_moe_text)}
FAMILIES["granitemoe"] = granite


class Plain:
    """The models of make_deepseek_xverse.py."""

    def __init__(self, config, weights, kind="float32"):
        self.config, self.weights, self.model = config, weights, plain.Model(config, weights)
        self.model.weights = {name: w.astype(kind) for name, w in weights.items()}

    def double(self):
        return Plain(self.config, self.weights, "float64")

    def logits(self, ids):
        return torch.from_numpy(self.model.logits(ids)[0])


def make_plain(folder, family, r):
    """A folder, and its model."""
    heads = r.choice([2, 3, 4, 6])
    experts, layers = r.choice([2, 4, 8]), r.choice([1, 2, 3, 5])
    config = dict(plain.CONFIGS[family + "_moe"], hidden_size=heads * r.choice([8, 16, 24]), num_attention_heads=heads, num_hidden_layers=layers,
                  num_key_value_heads=r.choice([n for n in (1, 2, 3, 6) if heads % n == 0]), rms_norm_eps=r.choice([1e-6, 1e-5, 1e-2]),
                  rope_theta=r.choice([10000, 500000]), eos_token_id=None)
    if family == "deepseek":
        config.update(n_routed_experts=experts, num_experts_per_tok=r.randint(1, min(experts, 4)), n_shared_experts=r.choice([1, 2]),
                      norm_topk_prob=flag(r), moe_intermediate_size=r.choice([8, 24]), intermediate_size=r.choice([24, 48]),
                      first_k_dense_replace=r.randint(0, layers - 1), moe_layer_freq=r.choice([1, 1, 2]))
        if not any(l >= config["first_k_dense_replace"] and l % config["moe_layer_freq"] == 0 for l in range(layers)):
            config["moe_layer_freq"] = 1
    else:
        config.update(num_experts=experts, moe_top_k=r.randint(1, min(experts, 4)), num_shared_experts=r.choice([1, 2]), intermediate_size=r.choice([8, 24]))
    weights = plain.random_weights(config, r.randrange(1 << 30))
    (folder / "config.json").write_text(json.dumps(config))
    plain.safetensors.numpy.save_file({n: w.copy() for n, w in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    return Plain(config, weights)


PLAIN = ("deepseek", "xverse")


def for_gguf(family, r, c):
    """Sets to llama.cpp's values what its files do not have."""
    c["rms_norm_eps"] = 1e-5 if family == "olmoe" else c["rms_norm_eps"]
    types = c.get("layer_types")
    for name in ("layer_types", "moe_layers", "no_rope_layers", "mlp_only_layers", "swiglu_limit", "swiglu_alpha"):
        c.pop(name, None)
    for name, value in {"use_sliding_window": False, "sliding_window": None, "norm_topk_prob": family in ("qwen3_moe", "qwen3_next"), "decoder_sparse_step": 1,
                        "attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "no_rope_layer_interval": 4, "use_qk_norm": True,
                        "router_jitter_noise": 0.01, "moe_layer_end_index": -1, "rope_interleave": True, "clip_qkv": None}.items():
        if name in c and not (name == "sliding_window" and family in ("gpt_oss", "exaone_moe", "afmoe")) and not (name == "norm_topk_prob" and "n_group" in c):
            c[name] = value
    if family == "gemma4_text":
        full = {"rope_type": "proportional", "rope_theta": r.choice([1e6, 1000.0]), "partial_rotary_factor": r.choice([0.25, 0.5, 1.0])}
        c["final_logit_softcapping"] = c["final_logit_softcapping"] or 30.0
        c.update(attention_bias=False, sliding_window=r.choice([3, 16, 600]), layer_types=types, use_double_wide_mlp=False,
                 rope_parameters={"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": r.choice([10000.0, 500.0])}})
        return
    p = c["rope_parameters"]
    if p["rope_type"] not in ("default", "linear", "yarn") or "kv_lora_rank" in c and p["rope_type"] == "yarn" or family == "exaone_moe":
        c["rope_parameters"] = {k: v for k, v in p.items() if k in ("rope_theta", "partial_rotary_factor")} | {"rope_type": "default"}
    for name in ("mscale", "mscale_all_dim", "attention_factor", "truncate", "alpha"):
        c["rope_parameters"].pop(name, None)
    if family == "gpt_oss":
        c["rope_parameters"]["truncate"] = False
        c["attention_bias"] = True
    if isinstance(c.get("moe_topk"), list):
        c["moe_topk"] = c["moe_topk"][0]
    if "kv_lora_rank" in c:
        c["attention_bias"] = False
    if family == "lfm2_moe":
        c.update(layer_types=types if "full_attention" in types else ["full_attention", *types[1:]], norm_topk_prob=True, routed_scaling_factor=1.0,
                 norm_eps=c["rms_norm_eps"])
        c.pop("head_dim", None)
    if family == "granitemoehybrid":  # the converter takes it that positions turn nothing, and that there are layers of both kinds
        c.update(layer_types=["linear_attention", "full_attention", *types[2:]], num_hidden_layers=max(2, c["num_hidden_layers"]), position_embedding_type=None,
                 mamba_d_conv=max(2, c["mamba_d_conv"]))
        c["layer_types"] += ["linear_attention"] * (c["num_hidden_layers"] - len(c["layer_types"]))
    if family == "afmoe":
        c.update(mup_enabled=True, global_attn_every_n_layers=4, sliding_window=c.get("sliding_window") or 16)


GGUF_FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe", "dots1", "ernie4_5_moe", "gpt_oss", "granitemoe",
                 "granitemoeshared", "hunyuan_v1_moe", "phimoe", "qwen3_next", "qwen3_5_moe_text", "minimax_m2", "llama4_text", "glm4_moe_lite", "exaone_moe", "hy_v3",
                 "afmoe", "gemma4_text", "lfm2_moe", "granitemoehybrid")


def randomise(model, generator):
    """Nothing is left at zero or one, so that no part can be forgotten unseen."""
    def noise(t):
        return torch.randn(t.shape, generator=generator)

    buffers = [b for b in model.named_buffers() if b[0].endswith(("e_score_correction_bias", "expert_bias", "layer_scalar"))]
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *buffers]:
            if "A_log" in name or "dt_bias" in name:
                p.add_(0.3 * noise(p))
            elif name.endswith(("layer_scalar", "router.scale", "expert_scale")):
                p.add_(0.3 * noise(p))
            elif "norm" in name and name.endswith("weight"):
                p.add_(0.2 * noise(p))
            elif "e_score_correction_bias" in name:
                p.copy_(0.2 * noise(p))
            elif name.endswith("sinks"):
                p.copy_(noise(p))
            elif p.dim() < 2 or name.endswith("bias"):
                p.copy_(0.3 * noise(p))
            elif "embed" in name:
                p.copy_(0.5 * noise(p))
            else:  # what is about 1 stays about 1
                p.copy_(noise(p) * (1.0 / p.shape[-1] ** 0.5) * (2.0 if "router" in name or "gate.w" in name else 1.0))


def old_style(config):
    """As transformers 4 wrote it."""
    p = config.pop("rope_parameters", None)
    if p is None:
        return
    p = dict(p)
    config["rope_theta"] = p.pop("rope_theta")
    if "partial_rotary_factor" in p:
        config["partial_rotary_factor"] = p.pop("partial_rotary_factor")
    kind = p.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {**p, "type": kind, "rope_type": kind}


# Without these nothing has a shape, or the file is not one of a model; the others say nothing about arithmetic.
KEPT = {"architectures", "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "transformers_version", "use_cache", "dtype", "pad_token_id",
        "bos_token_id", "eos_token_id", "attention_dropout", "initializer_range", "output_router_logits", "router_aux_loss_coef", "pretraining_tp",
        "input_jitter_noise", "hidden_act", "rms_norm_eps", "max_position_embeddings", "num_nextn_predict_layers"}
OTHERS = {  # values that fields may be given although weights were made for others, where shapes stay as they are
    "rms_norm_eps": [1e-3], "norm_topk_prob": [True, False, None], "routed_scaling_factor": [3.0, 1], "hidden_act": ["gelu", "relu", "swish", None],
    "tie_word_embeddings": [True, False, None], "sliding_window": [4, None], "use_sliding_window": [True, False], "attention_bias": [True, False],
    "n_group": [1, None], "topk_group": [1, None], "scoring_func": ["softmax", "sigmoid"], "topk_method": ["greedy", "group_limited_greedy", "noaux_tc"],
    "attn_temperature_tuning": [True, False], "use_qk_norm": [True, False], "clip_qkv": [0.25, None], "moe_layer_freq": [1, 2],
    "rope_interleave": [False, True], "attention_multiplier": [0.5], "embedding_multiplier": [2.0], "logits_scaling": [2.0], "residual_multiplier": [0.5],
    "qkv_bias": [True, False], "swiglu_limit": [0.3], "swiglu_alpha": [1.0], "attention_chunk_size": [3, None], "moe_norm_min": [0.5, 1e-12], "use_bias": [True],
    "mlp_bias": [True], "final_logit_softcapping": [30.0], "attn_logit_softcapping": [50.0], "num_experts_per_tok": [1], "moe_k": [1],
    "attn_scale": [0.7], "llama_4_scaling_beta": [0.2], "floor_scale": [2], "no_rope_layer_interval": [1, 2], "head_dim": [None], "num_key_value_heads": [None],
    "rope_theta": [777.0], "partial_rotary_factor": [0.5, 1.0], "max_position_embeddings": [100, 100000], "router_jitter_noise": [0.3, 0.0],
    "layer_types": [None], "max_window_layers": [0, 1, 60], "original_max_position_embeddings": [32], "rope_scaling": [None, {}],
    "mlp_only_layers": [None, [], [0]], "decoder_sparse_step": [1, 2], "first_k_dense_replace": [0, 1], "full_attention_interval": [2], "rotary_dim": [4, 8],
    "attn_output_gate": [True, False], "use_routing_bias": [True, False], "moe_layer_interval": [1, 2], "moe_layer_start_index": [0], "dtype": ["float32"],
    "mlp_layer_types": [None], "sliding_window_pattern": [2, 3, "LLG"], "router_scaling_factor": [1.5], "mup_enabled": [True, False, None], "enable_moe_block": [None], "num_kv_shared_layers": [1], "attention_k_eq_v": [True, False], "hidden_activation": ["gelu", "silu"], "global_attn_every_n_layers": [1, 3], "num_dense_layers": [0, None],
}


def mutate(r, config):
    """What a hand, or another program, may have made of the file. Says what it did."""
    done = []
    for _ in range(r.choice([1, 1, 2, 3])):
        what = r.random()
        inner = config.get("rope_parameters") or config.get("rope_scaling")
        if what < 0.35:
            name = r.choice(sorted(set(config) - KEPT))
            del config[name]
            done.append(f"-{name}")
        elif what < 0.45:
            name = r.choice(sorted(set(config) - KEPT))
            config[name] = None
            done.append(f"{name}=null")
        elif what < 0.55 and inner:
            name = r.choice(sorted(inner))
            del inner[name]
            done.append(f"-rope.{name}")
        else:
            name = r.choice(sorted(n for n in OTHERS if n in config or r.random() < 0.1) or ["rms_norm_eps"])
            if config["model_type"] == "phimoe" and name == "original_max_position_embeddings":
                continue  # of its LongRoPE transformers differs from its makers' code
            config[name] = r.choice(OTHERS[name])
            done.append(f"{name}={json.dumps(config[name])}")
    return done


def make(folder, family, r, gguf):
    """A folder with a checkpoint; what is particular to it."""
    for _ in range(20):
        fields = FAMILIES[family](r)
        if gguf:
            for_gguf(family, r, fields)
        try:
            config = AutoConfig.for_model(family, **fields)
            config._experts_implementation = "eager"
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
            break
        except Exception as e:  # a combination that transformers does not take
            refused = e
    else:
        raise refused
    randomise(model, torch.Generator().manual_seed(r.randrange(1 << 30)))
    kind = torch.float32 if gguf else r.choice([torch.bfloat16, torch.float16, torch.float32])  # converters add 1 to some weights
    model.to(kind).save_pretrained(folder)
    notes = [str(kind).removeprefix("torch.")]
    if gguf:
        return notes
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if "experts" in "".join(model.state_dict()) and r.random() < 0.3:
        tensors = {n: t.contiguous() for n, t in model.state_dict().items() if not (n == "lm_head.weight" and config.get("tie_word_embeddings"))}
        if family in ("qwen2_moe", "qwen3_moe", "olmoe", "flex_olmo", "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "solar_open", "exaone_moe",
                      "hy_v3", "afmoe", "lfm2_moe", "dots1", "qwen3_next", "qwen3_5_moe_text"):
            safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            notes.append("fused")
    if r.random() < 0.5 and family != "gemma4_text":
        old_style(config)
        notes.append("v4")
    if r.random() < 0.5:
        notes += mutate(r, config)
    path.write_text(json.dumps(config, indent=1))
    return notes


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    model.config._experts_implementation = "eager"
    return model.eval(), {k: sorted(map(str, v)) for k, v in info.items() if v}


def logits(model, ids):
    if isinstance(model, Plain):
        return model.logits(ids)
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def seeing(folder, family):
    """The folder of a model that also sees images, whose part for texts this is."""
    nested = folder / "seeing"
    nested.mkdir()
    text = json.loads((folder / "config.json").read_text())
    name, model, head = {"llama4_text": ("Llama4ForConditionalGeneration", "language_model.model.", "language_model.lm_head."),
                         "gemma4_text": ("Gemma4ForConditionalGeneration", "model.language_model.", "lm_head."),
                         "qwen3_5_moe_text": ("Qwen3_5MoeForConditionalGeneration", "model.language_model.", "lm_head.")}[family]
    del text["architectures"]
    config = {"architectures": [name], "model_type": family.removesuffix("_text"), "text_config": text, "vision_config": {"hidden_size": 8}}
    if "tie_word_embeddings" in text:
        config["tie_word_embeddings"] = text["tie_word_embeddings"]
    (nested / "config.json").write_text(json.dumps(config))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors = {n.replace("model.", model, 1) if n.startswith("model.") else n.replace("lm_head.", head): t for n, t in tensors.items()}
    safetensors.torch.save_file({**tensors, "vision_model.patches.weight": torch.zeros(2, 2)}, nested / "model.safetensors")
    return nested


def converted(folder, llama_cpp):
    """The GGUF file of a folder; what was said where there is none."""
    maker = pathlib.Path(__file__).parent / "make_gguf.py"
    done = subprocess.run([sys.executable, maker, llama_cpp, folder, f"{folder}:f32"], capture_output=True, text=True, timeout=300)
    file = folder / f"{folder.name}-f32.gguf"
    return (file, "") if done.returncode == 0 and file.exists() else (None, done.stderr.strip().splitlines()[-1][:150])


def ferry(binary, folder, model, prompts, r):
    ids, out, numbers = folder / "ids", folder / "logits.safetensors", folder / "out.json"
    ids.write_text("\n".join(" ".join(map(str, p)) for p in prompts))
    stack = r.choice([["resident"], ["resident"], ["ferry", "--budget", "60%"]])
    done = subprocess.run([binary, "run", "--model", model, "--device", "cpu", "--threads", "1", "--token-ids", ids, "--max-new-tokens", str(NEW_TOKENS),
                           "--json", numbers, "--logits", out, "--clock", "real", "--stack", *stack], capture_output=True, text=True, timeout=300)
    if done.returncode:
        return done, None, None
    made = json.loads(numbers.read_text())["token_ids"]
    with safetensors.safe_open(out, "pt") as file:
        return done, made, [file.get_tensor(f"logits.{i}") for i in range(len(prompts))]


def one(binary, seed, families, keep, gguf):
    """A word for what came out, and a line."""
    r = random.Random(seed)
    family = r.choice(families)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ferry-fuzz-"))
    try:
        own = make_plain(folder, family, r) if family in PLAIN else None
        notes = [] if own else make(folder, family, r, gguf)
        prompts = [[256, *(r.randrange(256) for _ in range(n))] for n in (r.choice([2, 3]), r.choice([25, 45, 45, 150]))]
        line = f"{seed} {family} {' '.join(notes)}"
        try:
            model, info = (own, {}) if own else load(folder)
            theirs = [logits(model, p) for p in prompts]
        except Exception as e:
            model, info, theirs = None, None, str(e).strip().splitlines()[0][:100] if str(e) else type(e).__name__
        file, why = converted(folder, gguf) if gguf else (folder, "")
        if not gguf and family in ("llama4_text", "qwen3_5_moe_text") and r.random() < 0.3:
            file = seeing(folder, family)
            line += " seeing"
        if file is None:
            return "converter", f"{line}: {why}"
        done, made, ours = ferry(binary, folder, file, prompts, r)
        said = [n for n in done.stderr.strip().splitlines() if n.startswith("ferry: ")]
        if done.returncode == 2:
            said = said[-1:]  # behind what it named before
        if done.returncode not in (0, 2) or (done.returncode == 2 and len(said) != 1):
            return "crash", f"{line}: status {done.returncode}: {done.stderr.strip()[:300]}"
        if done.returncode == 2:
            return ("refused" if model and not info else "both"), f"{line}: {said[0][-220:]}"
        if model is None:
            return "alone", f"{line}: transformers: {theirs}"
        if info:
            return "alone", f"{line}: transformers misses or ignores {info}"
        worst, other, size = 0.0, 0, 0.0
        wide = None
        for prompt, chosen, got in zip(prompts, made, ours):
            rows = logits(model, [*prompt, *chosen[:-1]])[len(prompt) - 1:]
            error = float((rows - got).abs().max()) if bool(torch.isfinite(got).all()) else float("inf")
            size = max(size, float(rows.abs().max()))
            limit = TOLERANCE * max(1.0, float(rows.abs().max()) / 16)
            if error > limit:
                wide = wide or (own or load(folder)[0]).double()
                exact = logits(wide, [*prompt, *chosen[:-1]])[len(prompt) - 1:].float()
                if float((rows - exact).abs().max()) > limit / 4:
                    return "rounding", f"{line}: {error:.2g}; transformers' float64 differs from its float32"
            worst = max(worst, error)
            best = rows.topk(2, -1).values
            other += sum(int(int(row.argmax()) != t and float(b[0] - b[1]) > 2 * limit) for row, t, b in zip(rows, chosen, best))
        if worst > TOLERANCE * max(1.0, size / 16) or other:
            if keep:
                shutil.copytree(folder, keep / f"{seed}-{family}", dirs_exist_ok=True)
            return "differs", f"{line}: logits differ by {worst:.3g} (largest {size:.3g}), {other} other tokens; {said}"
        return "same", f"{line}: {worst:.2g}{' ' + str(said) if said else ''}"
    except Exception as e:
        return "script", f"{seed} {family}: {type(e).__name__}: {str(e).splitlines()[0][:200] if str(e) else ''} {traceback.format_exc().splitlines()[-3].strip()}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ferry", type=lambda path: pathlib.Path(path).resolve())
    p.add_argument("--cases", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--families", default=",".join([*FAMILIES, *PLAIN]))
    p.add_argument("--keep", type=pathlib.Path)
    p.add_argument("--gguf", type=pathlib.Path, metavar="LLAMA_CPP")
    a = p.parse_args()
    torch.set_num_threads(1)
    # It knows this one only as a part of a model that sees.
    AutoModelForCausalLM.register(transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    counts = {}
    for seed in range(a.seed, a.seed + a.cases):
        word, line = one(a.ferry, seed, [f for f in a.families.split(",") if not a.gguf or f in GGUF_FAMILIES], a.keep, a.gguf)
        counts[word] = counts.get(word, 0) + 1
        print(f"{word:9} {line}", flush=True)
    print(counts)
    return 1 if set(counts) & {"differs", "crash", "script"} else 0


if __name__ == "__main__":
    sys.exit(main())
