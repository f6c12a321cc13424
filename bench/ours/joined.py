"""Traces whose sequences are longer than those that were recorded."""
import array
import json
import struct
import sys


def join(source, target, length, prompt):
    """Writes `source` with its tokens in sequences of `length`, whatever was recorded, the first `prompt` of each a
    prompt; what is left at the end falls away. Returns how many sequences there are; for 0 nothing is written."""
    with open(source, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = memoryview(file.read())
    information = header.pop("__metadata__")
    whole = header["experts"]["shape"][0] // length
    if whole == 0:
        return 0
    kept = {}  # tensors have a row a token, but for these two
    for name, tensor in header.items():
        if name in ("phase", "sequence_start"):
            continue
        begin, end = tensor["data_offsets"]
        row = (end - begin) // tensor["shape"][0]
        kept[name] = (tensor["dtype"], [whole * length, *tensor["shape"][1:]], data[begin:begin + whole * length * row])
    starts = array.array("i", range(0, whole * length, length))
    if sys.byteorder == "big":
        starts.byteswap()
    kept["sequence_start"] = ("I32", [whole], memoryview(starts).cast("B"))
    kept["phase"] = ("U8", [whole * length], memoryview((bytes(prompt) + b"\1" * (length - prompt)) * whole))
    header = {"__metadata__": {**information, "source": f"{information.get('source', '')}, sequences joined"}}
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
