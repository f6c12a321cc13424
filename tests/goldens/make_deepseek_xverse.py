#!/usr/bin/env python3
"""Writes zoo/deepseek_moe and zoo/xverse_moe: tiny random checkpoints of two families that transformers does not have,
and what their published modelling code computes from them, by a plain numpy forward pass that shares nothing with Ferry.

    pip install numpy safetensors ml_dtypes
    python3 tests/goldens/make_deepseek_xverse.py [OUT=tests/goldens/zoo] [FAMILY...]

Each folder is a checkpoint and what is expected of it: config.json and model.safetensors (bf16) as on the hub, and
expected.safetensors (float32 arithmetic on the stored weights, no cache; layers numbered as in the model).

Where the rules come from. The hub was out of reach: copies of its files in public GitHub repositories were read instead.

DeepSeek-MoE (deepseek-ai/deepseek-moe-16b-base: modeling_deepseek.py, configuration_deepseek.py, config.json)
    Copies: zhexiangzhang/ServerlessMOE, bcmrk_transfomers/modeling_deepseek.py (timers added); goingshr-debug/SMoE,
    configs/configuration_deepseek.py and configs/deepseekmoe_config.json (keys added).
    MoEGate               logits = x W^T without bias; softmax over all experts, then top-k; norm_topk_prob (false on the
                          hub) divides by the sum + 1e-20. No scaling factor, no groups, no bias for the choice.
    DeepseekMoE           sum of weight * expert(x), plus one ungated MLP of n_shared_experts * moe_intermediate_size.
    DeepseekDecoderLayer  layer L has experts if L >= first_k_dense_replace and L % moe_layer_freq == 0.
    The rest is Llama: grouped queries, rotate_half over the whole head, silu(gate) * up, no biases, untied lm_head.
    Checked: that copy without its timers (torch 1.13, transformers 4.36.2, float32), run on the files written here, makes
    the same choices and greedy tokens, and logits within 3e-6.

XVERSE-MoE (xverse/XVERSE-MoE-A4.2B: modeling_xverse.py, configuration_xverse.py, config.json)
    Copies: goingshr-debug/SMoE at 5792f689, models/xversemoe/model_path: all three of the -Chat model, with a weight index
    for the names. Edited for expert caching (timers, more arguments to self.mlp, more keys in config.json); the published
    class XverseMoEMLP is still there, whole.
    XverseMoEMLP          router without bias, in float32; softmax over all experts, then top-k, always divided by the
                          sum + 1e-6; sum of weight * expert(x), plus one ungated MLP of
                          num_shared_experts * intermediate_size.
    XverseMoEDecoderLayer every layer has experts, of width intermediate_size.
    The rest is Llama, as above; num_key_value_heads is read, though the hub's config.json does not have it.
    Checked in the same way, but with XverseMoEMLP's gate put into DeepSeek's code: the whole file was not run.
    Uncertain: the 1e-6 stands in that one copy only (it moves a weight by less than 4e-6 of itself). Two ports also say
    that weights are renormalised: chatllm.cpp, convert.py, XverseMoEConverter (norm_topk_prob = True), and
    StarrickLiu/TensorRT-LLM, tensorrt_llm/models/xverse/config.py (RENORMALIZE). SGLang's xverse_moe.py differs: it
    renormalises only if config.json has norm_topk_prob, and the copy of config.json has not. The hub may hold
    mlp.router.weight as F32 (the code makes it so, and the size in that weight index fits it); here it is bf16.
"""
import hashlib
import json
import pathlib
import sys

import ml_dtypes
import numpy
import safetensors
import safetensors.numpy

HERE = pathlib.Path(__file__).resolve().parent
PROMPTS = {
    "short": "The ",
    "long": "def primes(n):\n    return [p for p in range(2, n) if all(p % d for d in range(2, p))]\n",
}
GREEDY = 32
TRIES = 2000
MARGIN = 0.01  # between the best two tokens of every greedy step: no one's rounding flips one
GAP = 0.001  # between the logits of the last expert chosen and the first not chosen, in the long prompt
DISTINCT = 5  # greedy tokens at least

CONFIGS = {
    "deepseek_moe": {
        "architectures": ["DeepseekForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_deepseek.DeepseekConfig",
            "AutoModel": "modeling_deepseek.DeepseekModel",
            "AutoModelForCausalLM": "modeling_deepseek.DeepseekForCausalLM",
        },
        "bos_token_id": 256,
        "eos_token_id": 257,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.1,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
        "model_type": "deepseek",
        "moe_intermediate_size": 32,
        "moe_layer_freq": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 4,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000,
        "scoring_func": "softmax",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.36.0",
        "use_cache": True,
        "vocab_size": 258,
    },
    "xverse_moe": {
        "architectures": ["XverseForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_xverse.XverseConfig",
            "AutoModelForCausalLM": "modeling_xverse.XverseForCausalLM",
        },
        "pad_token_id": None,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.1,
        "intermediate_size": 32,
        "max_position_embeddings": 512,
        "max_tokenizer_truncation": 384,
        "model_type": "xverse",
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "rope_theta": 500000,
        "moe_top_k": 2,
        "num_experts": 8,
        "num_shared_experts": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.01,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.38.2",
        "use_cache": True,
        "vocab_size": 258,
    },
}


class Moe:
    """What the two families call differently, and the one rule in which they differ."""

    def __init__(self, config):
        if config["model_type"] == "deepseek":
            self.gate, self.experts, self.top_k = "gate", config["n_routed_experts"], config["num_experts_per_tok"]
            self.width, self.shared = config["moe_intermediate_size"], config["n_shared_experts"]
            self.first, self.step = config["first_k_dense_replace"], config["moe_layer_freq"]
            self.normalise, self.epsilon = config["norm_topk_prob"] and self.top_k > 1, 1e-20
        else:
            self.gate, self.experts, self.top_k = "router", config["num_experts"], config["moe_top_k"]
            self.width, self.shared = config["intermediate_size"], config["num_shared_experts"]
            self.first, self.step = 0, 1
            self.normalise, self.epsilon = True, 1e-6

    def at(self, layer):
        return layer >= self.first and layer % self.step == 0

    def choose(self, logits):
        """[n, experts] -> the chosen experts in ascending order and their weights, both [n, k]."""
        probabilities = softmax(logits)
        index = numpy.sort(numpy.argsort(-probabilities, axis=-1, kind="stable")[:, :self.top_k], axis=-1)
        weight = numpy.take_along_axis(probabilities, index, -1)
        if self.normalise:
            weight = weight / (weight.sum(-1, keepdims=True) + numpy.float32(self.epsilon))
        return index, weight


def shapes(config):
    """Name -> shape of every tensor of the checkpoint."""
    hidden, moe = config["hidden_size"], Moe(config)
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    out = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}

    def mlp(name, width):
        out[name + "gate_proj.weight"] = out[name + "up_proj.weight"] = (width, hidden)
        out[name + "down_proj.weight"] = (hidden, width)

    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows in (("q", hidden), ("k", kv), ("v", kv), ("o", hidden)):
            out[f"{at}self_attn.{name}_proj.weight"] = (rows, hidden)
        if moe.at(layer):
            out[f"{at}mlp.{moe.gate}.weight"] = (moe.experts, hidden)
            for expert in range(moe.experts):
                mlp(f"{at}mlp.experts.{expert}.", moe.width)
            mlp(f"{at}mlp.shared_experts.", moe.shared * moe.width)
        else:
            mlp(f"{at}mlp.", config["intermediate_size"])
        out[at + "input_layernorm.weight"] = out[at + "post_attention_layernorm.weight"] = (hidden,)
    out["model.norm.weight"] = (hidden,)
    out["lm_head.weight"] = (config["vocab_size"], hidden)
    return out


def random_weights(config, seed):
    """bf16, and nothing is left at zero or one, so that no part can be forgotten unseen."""
    generator, gate, out = numpy.random.default_rng(seed), f"mlp.{Moe(config).gate}.weight", {}

    def draw(size, mean, deviation):
        return (mean + deviation * generator.standard_normal(size)).astype(ml_dtypes.bfloat16)

    for name, shape in shapes(config).items():
        law = (1, 0.2) if "norm" in name else (0, 0.3) if name.endswith(gate) else (0, 0.1)
        tensor = draw(shape, *law)
        while (again := (tensor == 0) | (tensor == 1)).any():
            tensor[again] = draw(again.sum(), *law)
        out[name] = tensor
    return out


def softmax(x):
    e = numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x, weight, epsilon):
    return weight * (x / numpy.sqrt((x * x).mean(-1, keepdims=True) + numpy.float32(epsilon)))


def rotate(x, theta):
    """[n, heads, d] at positions 0..n-1: dimension i turns with dimension i + d/2, by position * theta^(-2i/d)."""
    n, _, d = x.shape
    angle = numpy.arange(n)[:, None] / theta ** (numpy.arange(0, d, 2) / d)
    cos, sin = (f(angle).astype(numpy.float32)[:, None, :] for f in (numpy.cos, numpy.sin))
    low, high = x[..., :d // 2], x[..., d // 2:]
    return numpy.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


class Model:
    def __init__(self, config, weights):
        self.config, self.moe = config, Moe(config)
        self.weights = {name: tensor.astype(numpy.float32) for name, tensor in weights.items()}

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T

    def norm(self, x, name):
        return rms_norm(x, self.weights[name + ".weight"], self.config["rms_norm_eps"])

    def mlp(self, x, name):
        gate = self.linear(x, name + "gate_proj")
        return self.linear(gate / (1 + numpy.exp(-gate)) * self.linear(x, name + "up_proj"), name + "down_proj")

    def attention(self, x, name):
        n, heads, kv_heads = len(x), self.config["num_attention_heads"], self.config["num_key_value_heads"]
        d = self.config["hidden_size"] // heads
        q = rotate(self.linear(x, name + "q_proj").reshape(n, heads, d), self.config["rope_theta"])
        k = rotate(self.linear(x, name + "k_proj").reshape(n, kv_heads, d), self.config["rope_theta"])
        v = self.linear(x, name + "v_proj").reshape(n, kv_heads, d)
        past = numpy.tri(n, dtype=bool)
        out = numpy.empty_like(q)
        for head in range(heads):
            group = head // (heads // kv_heads)  # neighbouring query heads share a key and value head
            scores = q[:, head] @ k[:, group].T / numpy.float32(d ** 0.5)
            out[:, head] = softmax(numpy.where(past, scores, numpy.float32(-numpy.inf))) @ v[:, group]
        return self.linear(out.reshape(n, heads * d), name + "o_proj")

    def experts(self, x, name, trace):
        logits = self.linear(x, name + self.moe.gate)
        index, weight = self.moe.choose(logits)
        trace.update(router_logits=logits, topk_index=index.astype(numpy.int32), topk_weight=weight)
        out = numpy.zeros_like(x)
        for expert in range(self.moe.experts):
            token, slot = numpy.nonzero(index == expert)
            out[token] += weight[token, slot, None] * self.mlp(x[token], f"{name}experts.{expert}.")
        return out + self.mlp(x, name + "shared_experts.")

    def logits(self, ids):
        """[n] -> [n, vocab], and what each layer with experts chose: {layer: {tensor name: tensor}}."""
        x, traces = self.weights["model.embed_tokens.weight"][ids], {}
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            x = x + self.attention(self.norm(x, at + "input_layernorm"), at + "self_attn.")
            h = self.norm(x, at + "post_attention_layernorm")
            if self.moe.at(layer):
                x = x + self.experts(h, at + "mlp.", traces.setdefault(layer, {}))
            else:
                x = x + self.mlp(h, at + "mlp.")
        out = self.linear(self.norm(x, "model.norm"), "lm_head")
        assert numpy.isfinite(out).all()
        return out, traces


def distinct(tensors):
    return len({*tensors["long.greedy"].tolist(), *tensors["short.greedy"].tolist()})


def expected(model):
    """The tensors of expected.safetensors and the smallest margin and gap; None if the seed will not do."""
    out, margin, gap = {}, numpy.inf, numpy.inf
    for key, text in PROMPTS.items():
        ids = [model.config["bos_token_id"], *text.encode()]
        logits, traces = model.logits(ids)
        out[key + ".input_ids"], out[key + ".logits"] = numpy.array(ids, numpy.int32), logits
        if key == "long":
            for layer, trace in traces.items():
                ordered = -numpy.sort(-trace["router_logits"], axis=-1)
                gap = min(gap, float((ordered[:, model.moe.top_k - 1] - ordered[:, model.moe.top_k]).min()))
                out.update({f"long.layer.{layer}.{name}": tensor for name, tensor in trace.items()})
        made = list(ids)
        for _ in range(GREEDY):
            last = model.logits(made)[0][-1]
            second, first = numpy.sort(last)[-2:]
            margin = min(margin, float(first - second))
            if margin < MARGIN:
                return None
            made.append(int(last.argmax()))
        out[key + ".greedy"] = numpy.array(made[len(ids):], numpy.int32)
    return (out, margin, gap) if gap >= GAP and distinct(out) >= DISTINCT else None


def make(out, family):
    config = CONFIGS[family]
    start = int.from_bytes(hashlib.sha256(family.encode()).digest()[:4], "little")
    for seed in range(start, start + TRIES):
        weights = random_weights(config, seed)
        found = expected(Model(config, weights))
        if found:
            break
    else:
        sys.exit(f"{family}: no seed of {TRIES} has a margin of {MARGIN} and a gap of {GAP}")
    tensors, margin, gap = found
    about = {
        "family": family, "model_type": config["model_type"], "seed": seed, "greedy_min_top2_margin": f"{margin:.6f}",
        "smallest_router_gap": f"{gap:.6f}", "numpy": numpy.__version__, "safetensors": safetensors.__version__,
        "note": "numpy, float32 arithmetic on the stored bf16 weights, no cache; token 256 first",
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file, content, metadata in (
        ("model", weights, {"format": "pt"}),
        ("expected", tensors, {"about": json.dumps(about, sort_keys=True)}),
    ):
        content = {name: numpy.ascontiguousarray(tensor) for name, tensor in content.items()}
        safetensors.numpy.save_file(content, out / f"{file}.safetensors", metadata)
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    spread = round(float(tensors["long.logits"].std()), 3)
    print(json.dumps({**about, "distinct_greedy": distinct(tensors), "spread": spread, **sizes}))


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "zoo"
    for family in sys.argv[2:] or CONFIGS:
        make(out / family, family)


if __name__ == "__main__":
    main()
