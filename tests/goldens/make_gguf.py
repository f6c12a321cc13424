#!/usr/bin/env python3
"""Writes GGUF files of tiny checkpoints with llama.cpp's own converter: what tests read them against is transformers' numbers.

    python3 tests/goldens/make_gguf.py LLAMA_CPP tests/goldens/gguf mixtral:bf16 qwen2_moe:bf16 qwen3_moe:q8_0 \
        mixtral:q8_0 qwen2_moe:q8_0 \
        deepseek_v2_lite:bf16 deepseek_v3:f16 glm4_moe:bf16 gpt_oss:bf16 ernie4_5_moe:bf16 dots1:bf16 granitemoeshared:bf16:30 \
        minimax_m2:bf16 hunyuan_v1_moe:bf16 phimoe:bf16 qwen3_next:bf16 qwen3_5_moe:bf16 deepseek_moe:bf16 \
        olmoe_as_gguf:bf16 llama4_as_gguf:bf16 glm4_moe_lite:bf16 exaone_moe:bf16 hy_v3:bf16 \
        qwen3_vl_moe:bf16 solar_open:bf16 afmoe_as_gguf:bf16 lfm2_moe:bf16 glm4v_moe:bf16 gemma4:bf16 \
        granitemoehybrid:bf16 mistral4_as_gguf:bf16

LLAMA_CPP is a source folder of llama.cpp (that of the llama-cpp-python source package, 0.3.36, was used); torch and numpy from
anywhere, and `pip install gguf safetensors`. FAMILY is a folder in zoo/, or any. FAMILY:TYPE, with a TYPE of f32, f16, bf16 or q8_0, may be followed by
how many tensors are in a file, of several then. The checkpoints have a vocabulary of bytes and no
tokenizer: the files have none either.
"""
import json
import pathlib
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent


def of_hub(config):
    """What config.json says on the hub, where transformers 5 writes something else or leaves it out."""
    layers = config.get("num_hidden_layers", 0)  # of a model that also sees elsewhere
    if config["model_type"] == "hunyuan_v1_moe":
        config["moe_intermediate_size"] = [config["intermediate_size"]] * layers
        config["moe_topk"] = [config["moe_topk"]] * layers
        config["num_shared_expert"] = [1] * layers
    if config["model_type"] == "phimoe":
        config["rope_parameters"].setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    if config["model_type"] == "solar_open":
        config["partial_rotary_factor"] = 1.0
    if config.get("mlp_layer_types"):
        config["first_k_dense_replace"] = config["mlp_layer_types"].count("dense")
    if config["model_type"] == "afmoe":
        config["route_norm"] = True
    if config["model_type"] == "granitemoehybrid":
        config["layer_types"] = [{"linear_attention": "mamba", "full_attention": "attention"}.get(t, t) for t in config["layer_types"]]
    if config["model_type"] == "minimax_m2":
        config["rotary_dim"] = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])


def with_tokens(folder, to, config):
    """The same files beside a tokenizer.json of so many tokens: the converter counts them."""
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).symlink_to(file.resolve())
    tokens = {"vocab": {str(i): i for i in range(config.get("vocab_size") or config["text_config"]["vocab_size"])}}
    (to / "tokenizer.json").write_text(json.dumps({"model": tokens, "added_tokens": []}))
    return to


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    # Only asked for tokenizers and, in the place of config.json, for configs: both can do without.
    stub = types.ModuleType("transformers")

    class AutoConfig:
        @staticmethod
        def from_pretrained(*_, **__):
            raise ImportError("config.json is enough")

    stub.AutoConfig = AutoConfig
    sys.modules["transformers"] = stub
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    import torch
    for name in ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"):
        if not hasattr(torch, name):
            setattr(torch, name, name)  # older torch; never met here
    import gguf
    from conversion import ModelType, get_model_class
    from conversion.base import ModelBase, get_model_architecture

    kinds = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
             "bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
    zoo = HERE / "zoo"
    for item in sys.argv[3:]:
        family, kind, *tensors = item.split(":")
        folder = zoo / family if (zoo / family).is_dir() else pathlib.Path(family)
        hparams = ModelBase.load_hparams(folder, False)
        of_hub(hparams)
        name = get_model_architecture(hparams, ModelType.TEXT)
        cls = get_model_class({"PhimoeForCausalLM": "PhiMoEForCausalLM"}.get(name, name))  # as the hub has it
        cls.no_mtp = True  # the checkpoints have no layers that guess more than the next token
        for own in (cls, getattr(cls, "Mistral4Model", cls)):  # of which one passes what it is asked on to the other
            own.set_vocab = lambda self: self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])
        with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
            read = with_tokens(folder, pathlib.Path(temporary) / folder.name, hparams) if name.startswith("Gemma4") else folder
            cls(read, kinds[kind], out / f"{folder.name}-{kind}.gguf", eager=True, hparams=hparams,
                split_max_tensors=int(tensors[0]) if tensors else 0).write()


if __name__ == "__main__":
    main()
