"""Traces whose sequences are longer than those that were recorded."""
import array
import json
import struct
import sys

WIDTHS = {"F32": 4, "I32": 4, "U16": 2, "U8": 1}


def read_header(trace):
    """The header of a safetensors file, and where its data begins. Raises ValueError for any other file."""
    with open(trace, "rb") as file:
        head = file.read(8)
        size = int.from_bytes(head, "little")
        if len(head) < 8 or size > 100_000_000:
            raise ValueError("no header")
        header = json.loads(file.read(size))
    if not isinstance(header, dict):
        raise ValueError("no header")
    return header, 8 + size


def join(source, target, length, prompt):
    """Writes `source` with its tokens in sequences of `length`, whatever was recorded. The first `prompt` tokens of each are
    its prompt; tokens that fill no sequence are left out. Returns the number of sequences, and writes nothing if that is 0.
    Raises ValueError, KeyError or TypeError if `source` is no trace."""
    header, begins = read_header(source)
    with open(source, "rb") as file:
        file.seek(begins)
        data = memoryview(file.read())
    information = header.pop("__metadata__")
    tokens = header["experts"]["shape"][0]
    whole = tokens // length
    if whole == 0:
        return 0
    # Scores of partial states are recorded in decode alone: tokens of a prompt that are decoded here have none.
    phases = data[slice(*header["phase"]["data_offsets"])] if "phase" in header else b"\1" * tokens
    decoded = any(phases[s * length + t] == 0 for s in range(whole) for t in range(prompt, length))
    kept = {}  # all other tensors have a row a token
    for name, tensor in header.items():
        if name in ("phase", "sequence_start") or (decoded and name in ("partial", "choice_partial")):
            continue
        begin, end = tensor["data_offsets"]
        if tensor["shape"][0] != tokens or not 0 <= begin <= end <= len(data) or (end - begin) % tokens:
            raise ValueError(f"tensor {name} does not fit")
        row = (end - begin) // tokens
        kept[name] = (tensor["dtype"], [whole * length, *tensor["shape"][1:]], data[begin:begin + whole * length * row])
    starts = array.array("i", range(0, whole * length, length))
    if sys.byteorder == "big":
        starts.byteswap()
    kept["sequence_start"] = ("I32", [whole], memoryview(starts).cast("B"))
    kept["phase"] = ("U8", [whole * length], memoryview((bytes(prompt) + b"\1" * (length - prompt)) * whole))
    # The widest type first, so that every tensor begins at a multiple of its own.
    kept = dict(sorted(kept.items(), key=lambda item: -WIDTHS[item[1][0]]))
    # Version 1 has no checksum of the file.
    information = {name: text for name, text in information.items() if name != "xxh3"}
    information["source"] = f"{information.get('source', '')}, sequences joined"
    header = {"__metadata__": {**information, "format": "ferry-trace 1"}}
    at = 0
    for name, (dtype, shape, values) in kept.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, values in kept.values():
            file.write(values)
    return whole
