#!/usr/bin/env python3
"""Whether Ferry computes of GGUF files that llama.cpp's quantiser wrote what it computes of the floats that they stand for, as
the gguf package says: the same tokens and, bit for bit, the same logits.

    pip install gguf numpy safetensors llama-cpp-python
    python3 tests/goldens/check_gguf_types.py build/tests/reference_engine/ferry tests/goldens/gguf/*-bf16.gguf
"""
import argparse
import ctypes
import pathlib
import subprocess
import sys
import tempfile

import gguf
import llama_cpp
from safetensors.numpy import load_file

MIXTURES = ["Q2_K", "Q3_K_S", "Q3_K_M", "Q4_0", "Q4_1", "Q4_K_M", "Q5_0", "Q5_1", "Q5_K_M", "Q6_K", "Q8_0", "IQ4_NL", "IQ4_XS"]
KINDS = gguf.GGUFValueType


def quantise(source, to, mixture):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + mixture)
    params.nthread = 1
    params.allow_requantize = True
    return llama_cpp.llama_model_quantize(str(source).encode(), str(to).encode(), ctypes.byref(params)) == 0


def write_floats(source, to):
    reader = gguf.GGUFReader(source)
    arch = str(bytes(reader.fields["general.architecture"].parts[-1]), "utf-8")
    writer = gguf.GGUFWriter(to, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        if kind == KINDS.ARRAY:
            writer.add_key_value(name, field.contents(), kind, sub_type=field.types[-1])
        else:
            writer.add_key_value(name, field.contents(), kind)
    for t in reader.tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype("float32")
        writer.add_tensor(t.name, values.reshape([int(d) for d in reversed(t.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted({t.tensor_type.name for t in reader.tensors})


def generated(ferry, model, folder):
    ids, logits = folder / "ids.txt", folder / "logits.safetensors"
    ids.write_text("1 20 3 40 5 17 2 33\n")
    done = subprocess.run([ferry, "run", "--model", model, "--device", "cpu", "--threads", "1", "--token-ids", ids,
                           "--max-new-tokens", "24", "--logits", logits, "--stack", "ferry", "--budget", "50%"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip(), None
    return done.stdout, {name: t.tobytes() for name, t in load_file(logits).items()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ferry")
    p.add_argument("files", nargs="+", type=pathlib.Path)
    p.add_argument("--mixtures", nargs="+", default=MIXTURES)
    a = p.parse_args()
    different, compared, refused = 0, 0, 0
    for source in a.files:
        for mixture in a.mixtures:
            with tempfile.TemporaryDirectory() as made:
                folder = pathlib.Path(made)
                stored, floats = folder / "stored.gguf", folder / "floats.gguf"
                if not quantise(source, stored, mixture):
                    print(f"{source.name} {mixture}: llama.cpp does not write it", flush=True)
                    refused += 1
                    continue
                kinds = write_floats(stored, floats)
                one, other = generated(a.ferry, stored, folder), generated(a.ferry, floats, folder)
                same = one == other and one[1] is not None
                compared += 1
                different += not same
                note = "the same" if same else f"DIFFERENT: {one[0][:200]!r} and {other[0][:200]!r}"
                print(f"{source.name} {mixture} ({' '.join(kinds)}): {note}", flush=True)
    print(f"{compared} compared, {different} different; {refused} that llama.cpp does not write")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
