#!/usr/bin/env python3
"""Writes zoo/hunyuan_layers: a tiny random HunYuan-MoE whose layers have different numbers of experts, choose different
numbers of them, and have experts and shared experts of different widths, and what is computed from it.

    pip install torch transformers==5.23.0 safetensors
    python3 tests/goldens/make_hunyuan_layers.py [OUT=tests/goldens/zoo]

Its config.json has lists where others have numbers, as Tencent's own files do. transformers 5 reads only the list of
`moe_topk`; so each layer's experts are built here from a config of their own, with that layer's numbers, out of
transformers' classes, and the rest of the model is transformers' whole. What is expected: float32 arithmetic on the stored
weights (bf16), eager attention, no cache; each prompt begins with token 256. `num_shared_expert` counts widths of
`intermediate_size`, as in the makers' modeling_hunyuan.py.
"""
import copy
import json
import pathlib
import sys

import safetensors.torch
import torch
import transformers
from transformers.models.hunyuan_v1_moe import modeling_hunyuan_v1_moe as hunyuan

from make_variants import MARGIN, expected

LAYERS = {"num_experts": [8, 4, 6], "moe_topk": [2, 3, 1], "moe_intermediate_size": [32, 48, 16], "num_shared_expert": [1, 2, 1]}
SHARED_WIDTH = 24


class Moe(hunyuan.HunYuanMoEV1Moe):
    def __init__(self, config, layer_idx=None):
        torch.nn.Module.__init__(self)
        own = copy.deepcopy(config)
        for name in ("num_experts", "moe_topk"):
            setattr(own, name, LAYERS[name][layer_idx])
        own.intermediate_size = LAYERS["moe_intermediate_size"][layer_idx]
        shared = copy.deepcopy(config)
        shared.intermediate_size = SHARED_WIDTH * LAYERS["num_shared_expert"][layer_idx]
        self.gate = hunyuan.HunYuanMoEV1Gate(own, layer_idx=layer_idx)
        self.experts = hunyuan.HunYuanMoEV1Experts(own)
        self.shared_mlp = hunyuan.HunYuanMoEV1MLP(shared)


def make_model(seed):
    config = hunyuan.HunYuanMoEV1Config(
        vocab_size=258, bos_token_id=256, eos_token_id=257, pad_token_id=None, hidden_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-6,
        tie_word_embeddings=False, num_experts=8, moe_topk=2, intermediate_size=SHARED_WIDTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    config._attn_implementation = config._experts_implementation = "eager"
    hunyuan.HunYuanMoEV1Moe = Moe
    model = hunyuan.HunYuanMoEV1ForCausalLM(config).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=random)
            scale = 0.2 if "norm" in name else 0.3 if ".wg." in name else 0.1
            weight.copy_((1 + scale * noise if "norm" in name else scale * noise).to(torch.bfloat16).float())
    return model


def checkpoint(model):
    """One tensor an expert and matrix, as the makers have them."""
    tensors = {}
    for name, weight in model.state_dict().items():
        at, experts, kind = name.partition("mlp.experts.")
        if not experts:
            tensors[name] = weight
            continue
        for e, matrix in enumerate(weight):
            parts = {"gate_proj": matrix.chunk(2)[0], "up_proj": matrix.chunk(2)[1]} if kind == "gate_up_proj" else {"down_proj": matrix}
            for part, values in parts.items():
                tensors[f"{at}mlp.experts.{e}.{part}.weight"] = values
    return {name: weight.to(torch.bfloat16).contiguous() for name, weight in tensors.items()}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "zoo") / "hunyuan_layers"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for seed in range(1, 200):
        model = make_model(seed)
        tensors, margin = expected(model)
        distinct = len({*tensors["long.greedy"].tolist(), *tensors["short.greedy"].tolist()})
        if margin >= MARGIN and distinct >= 5:
            break
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe", **LAYERS,
              **{name: getattr(model.config, name) for name in (
                  "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "hidden_size", "num_hidden_layers",
                  "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
                  "tie_word_embeddings", "intermediate_size", "hidden_act", "rope_parameters")},
              "use_mixed_mlp_moe": True, "use_qk_norm": True, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    safetensors.torch.save_file(checkpoint(model), folder / "model.safetensors")
    about = {"seed": seed, "greedy_min_top2_margin": f"{margin:.6f}", "torch": torch.__version__, "transformers": transformers.__version__}
    safetensors.torch.save_file(tensors, folder / "expected.safetensors", metadata={"about": json.dumps(about, sort_keys=True)})
    print(about)


if __name__ == "__main__":
    main()
