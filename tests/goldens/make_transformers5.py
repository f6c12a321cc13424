#!/usr/bin/env python3
"""Writes transformers5-FAMILY.safetensors: tiny checkpoints as transformers 5 saves them, and what it computes from them.

    python3 tests/goldens/make_transformers5.py ZOO

ZOO has a folder for each family with config.json and model.safetensors by save_pretrained, and expected.safetensors by
the loaded model (float32 arithmetic, eager attention). Only what the first tokens need to get to the second layer's
gate is kept, which leaves a quarter of the weights: those of the experts that they choose in the first layer. Metadata
"config" is config.json as it was, "shapes" are those of all tensors of the checkpoint.
"""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
FAMILIES = ["mixtral", "qwen2_moe"]
TOKENS = 8


def read(path):
    """Header and data of a safetensors file."""
    file = path.read_bytes()
    length = struct.unpack("<Q", file[:8])[0]
    return json.loads(file[8:8 + length]), file[8 + length:]


def rows(entry, data, which):
    """The tensor of these rows."""
    begin, end = entry["data_offsets"]
    size = (end - begin) // entry["shape"][0]
    return {"dtype": entry["dtype"], "shape": [len(which), *entry["shape"][1:]]}, b"".join(
        data[begin + row * size:begin + (row + 1) * size] for row in which)


def needed(name, chosen):
    """Whether the gate of the second layer depends on a tensor."""
    if ".experts." in name:
        return name.startswith("model.layers.0.") and int(name.split(".experts.")[1].split(".")[0]) in chosen
    later = ("embed_tokens", "lm_head", "model.norm", "layers.2.", "layers.1.mlp.shared")
    return not any(part in name for part in later)


def main():
    zoo = pathlib.Path(sys.argv[1])
    for family in FAMILIES:
        model, weights = read(zoo / family / "model.safetensors")
        results, expected = read(zoo / family / "expected.safetensors")
        model.pop("__metadata__")
        about = results["__metadata__"]["about"]
        first = range(TOKENS)
        ids, tokens = rows(results["long.input_ids"], expected, first)
        tokens_at = struct.unpack(f"<{TOKENS}i", tokens)
        choice = rows(results["long.layer.0.topk_index"], expected, first)[1]
        chosen = set(struct.unpack(f"<{len(choice) // 4}i", choice))
        kept = {"input_ids": (ids, tokens),
                "embedding_rows": rows(model["model.embed_tokens.weight"], weights, tokens_at)}
        for layer in ("0", "1"):
            kept[f"router_logits.{layer}"] = rows(results[f"long.layer.{layer}.router_logits"], expected, first)
        for name, entry in model.items():
            if needed(name, chosen):
                kept[name] = rows(entry, weights, range(entry["shape"][0]))
        header = {"__metadata__": {"about": about, "config": (zoo / family / "config.json").read_text(),
                                   "shapes": json.dumps({n: e["shape"] for n, e in model.items()})}}
        body = b""
        for name, (entry, data) in sorted(kept.items()):
            header[name] = {**entry, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header).encode()
        (HERE / f"transformers5-{family}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


if __name__ == "__main__":
    main()
