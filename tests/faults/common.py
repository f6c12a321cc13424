"""What the drivers here share: a tiny model, the commands of `ferry` with what they write, and runs under the shim."""
import json
import mmap
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

KINDS = ["memory", "io", "short", "thread", "ring", "completion", "hang"]
STATE_BYTES = 8 * (len(KINDS) + 1) + 512
TEXT = "A ferry carries 8 cars on each crossing, and makes 6 crossings a day. How many cars does it carry? 48. "


def write_model(folder):
    """A Mixtral of 2 layers of 4 experts, of bytes, with random weights."""
    draw = random.Random(17)
    config = {"architectures": ["MixtralForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 258, "max_position_embeddings": 512,
              "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
              "bos_token_id": 256, "eos_token_id": 257, "num_experts_per_tok": 2, "num_local_experts": 4,
              "intermediate_size": 32, "sliding_window": None}
    shapes = {"model.embed_tokens.weight": [258, 32], "lm_head.weight": [258, 32], "model.norm.weight": [32]}
    for layer in range(2):
        at = f"model.layers.{layer}."
        shapes.update({at + "input_layernorm.weight": [32], at + "post_attention_layernorm.weight": [32],
                       at + "self_attn.q_proj.weight": [32, 32], at + "self_attn.k_proj.weight": [16, 32],
                       at + "self_attn.v_proj.weight": [16, 32], at + "self_attn.o_proj.weight": [32, 32],
                       at + "block_sparse_moe.gate.weight": [4, 32]})
        for expert in range(4):
            for part in ("w1", "w2", "w3"):
                shapes[f"{at}block_sparse_moe.experts.{expert}.{part}.weight"] = [32, 32]
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(data)
        data += struct.pack(f"<{count}f", *(draw.uniform(-0.5, 0.5) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


class Command:
    """`outputs`: the files that it makes, each with "same" (every time the same bytes), "json" or "lines" (JSON, one on a
    line). `beside`: what may be left for the next run. `says`: its standard output is the same every time."""

    def __init__(self, name, arguments, outputs=None, beside=(), says=False):
        self.name, self.arguments, self.outputs = name, arguments, outputs or {}
        self.beside, self.says = set(beside), says


def commands(inputs):
    model, store, trace = inputs / "model", inputs / "experts.store", inputs / "routing.trace"
    text = inputs / "text.txt"
    run = ["--model", model, "--prompt", "abc", "--max-new-tokens", "3", "--threads", "2"]
    return [
        Command("list", ["list"], says=True),
        Command("document", ["document", "man"], says=True),
        Command("help", ["help", "run"], says=True),
        Command("tokenize", ["tokenize", "--model", model, "--file", text, "--json", "out.json"],
                {"out.json": "same"}, says=True),
        Command("inspect", ["inspect", "--model", model], says=True),
        Command("inspect-store", ["inspect", "--store", store], says=True),
        Command("run", ["run", *run, "--stack", "ferry", "--json", "out.json", "--logits", "logits", "--timeline",
                        "timeline"], {"out.json": "json", "logits": "same", "timeline": "json"}, says=True),
        Command("run-store", ["run", *run, "--stack", "lru", "--store", store, "--host-memory", "10%", "--json",
                              "out.json"], {"out.json": "json"}, says=True),
        Command("run-files", ["run", *run, "--stack", "lru", "--host-memory", "10%"], says=True),
        Command("compare", ["compare", *run, "--stacks", "lru,resident", "--json", "out.json"], {"out.json": "json"}),
        Command("bench", ["bench", "--model", model, "--prompt-tokens", "4", "--generate", "2", "--repeat", "1",
                          "--json", "out.json"], {"out.json": "json"}),
        Command("pack", ["pack", "--model", model, "--precisions", "full,int4", "--out", "out.store", "--threads", "2"],
                {"out.store": "same"}, beside=["out.store.part"]),
        Command("record", ["trace", "record", "--model", model, "--text", text, "--window", "24", "--prompt-tokens",
                           "8", "--tokens", "48", "--ahead", "1", "--out", "out.trace"], {"out.trace": "same"}),
        Command("import", ["trace", "import", trace, "--shape", inputs / "shape.json", "--out", "out.trace"],
                {"out.trace": "same"}),
        Command("generate", ["trace", "generate", "--shape", inputs / "shape.json", "--sequences", "1", "--tokens",
                             "8", "--prompt-tokens", "8", "--shallow", "1", "--out", "out.trace"], {"out.trace": "same"}),
        Command("inspect-trace", ["trace", "inspect", trace], says=True),
        Command("simulate", ["simulate", "--trace", trace, "--stack", "lru,ferry", "--json", "out.json"],
                {"out.json": "json"}),
        Command("sweep", ["sweep", "--traces", trace, "--machines", "rtx3090-pcie3", "--stacks", "lru,ferry",
                          "--budgets", "25%,50%", "--threads", "2", "--out", "out.jsonl"], {"out.jsonl": "lines"}),
        Command("recommend", ["recommend", "--trace", trace, "--machine", "rtx3090-pcie3", "--json", "out.json"],
                {"out.json": "json"}),
        Command("eval", ["eval", "--model", model, "--text", text, "--stack", "lru", "--window",
                         "24", "--json", "out.json"], {"out.json": "json"}),
        Command("calibrate-gates", ["calibrate", "gates", "--model", model, "--text", inputs / "long.txt", "--epochs",
                                    "2", "--out", "out.gates"], {"out.gates": "same"}),
        Command("calibrate-low-pool", ["calibrate", "low-pool", "--model", model, "--stack", "hobbit", "--text", text,
                                       "--bytes", "48", "--window", "24", "--out", "out.json"], {"out.json": "json"}),
        Command("report", ["report", inputs / "run.json", "--out", "out.html"], {"out.html": "same"}),
        Command("serve", ["serve", "--model", model, "--port", "0", "--stack", "lru", "--clients", "2", "--threads",
                          "2", "--grace", "5"]),
    ]


def make_inputs(ferry, folder):
    write_model(folder / "model")
    (folder / "text.txt").write_text(TEXT)
    (folder / "long.txt").write_text(TEXT * 30)
    (folder / "shape.json").write_text(json.dumps(
        {"name": "tiny", "layers": 2, "experts": 4, "top_k": 2, "hidden": 64, "expert_width": 64, "shared_width": 0,
         "attention_params": 1000, "bits_per_weight": 16, "dense_bits_per_weight": 16}))

    def ferry_makes(*arguments):
        subprocess.run([ferry, *map(str, arguments)], check=True, cwd=folder, capture_output=True,
                       stdin=subprocess.DEVNULL)

    ferry_makes("pack", "--model", folder / "model", "--precisions", "full,int4", "--out", "experts.store")
    ferry_makes("trace", "record", "--model", folder / "model", "--text", "text.txt", "--window", "24",
                "--prompt-tokens", "8", "--ahead", "1", "--out", "routing.trace")
    ferry_makes("run", "--model", folder / "model", "--prompt", "abc", "--max-new-tokens", "3", "--json", "run.json")


def old_of(new):
    """A file that a command takes for one of its own kind, and nobody takes for its present output."""
    return new + b"what was there before\n"


class Shim:
    """One run's state file."""

    def __init__(self, shim, state):
        self.shim, self.file = shim, state
        state.write_bytes(bytes(STATE_BYTES))

    def environment(self, fault=None, log=None, root=None):
        e = {**os.environ, "LD_PRELOAD": str(self.shim), "FERRY_FAULT_STATE": str(self.file), "LC_ALL": "C"}
        if fault:
            e["FERRY_FAULT"] = fault
        if log:
            e.update(FERRY_FAULT_LOG=str(log), FERRY_FAULT_ROOT=str(root))
        return e

    def read(self):
        raw = self.file.read_bytes()
        numbers = struct.unpack(f"<{len(KINDS) + 1}Q", raw[:8 * (len(KINDS) + 1)])
        call, path = raw[8 * (len(KINDS) + 1):][:32], raw[8 * (len(KINDS) + 1) + 32:]
        text = lambda b: b.split(b"\0")[0].decode(errors="replace")
        return dict(zip(KINDS, numbers)), numbers[-1], text(call), text(path)


class Ended:
    def __init__(self, status, out, error, seconds, answers=()):
        self.status, self.out, self.error, self.seconds, self.answers = status, out, error, seconds, list(answers)


def run(ferry, command, folder, environment, limit, signal_after=None):
    """Runs it in `folder`. Status None: it did not end in time. `signal_after`: sends SIGTERM after so many seconds."""
    if command.name == "serve":
        return serve(ferry, command, folder, environment, limit)
    begin = time.monotonic()
    p = subprocess.Popen([ferry, *map(str, command.arguments)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        if signal_after is not None:
            time.sleep(signal_after)
            begin = time.monotonic()
            p.send_signal(signal.SIGTERM)
        out, error = p.communicate(timeout=limit)
        return Ended(p.returncode, out, error.decode(errors="replace"), time.monotonic() - begin)
    except subprocess.TimeoutExpired:
        p.kill()
        out, error = p.communicate()
        return Ended(None, out, error.decode(errors="replace"), time.monotonic() - begin)


def serve(ferry, command, folder, environment, limit):
    """Starts the server, sends the same requests twice, and ends it."""
    begin = time.monotonic()
    errors = folder / "errors"
    with open(errors, "wb") as to:
        p = subprocess.Popen([ferry, *map(str, command.arguments)], cwd=folder, env=environment,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=to)
    said = lambda: errors.read_text(errors="replace")
    answers = []
    try:
        while p.poll() is None and "http://" not in said() and time.monotonic() - begin < limit:
            time.sleep(0.005)
        if p.poll() is None and "http://" in said():
            at = said().split("http://")[1].split()[0]
            body = json.dumps({"model": "model", "prompt": "abc", "max_tokens": 3, "temperature": 0}).encode()
            for _ in range(2):
                request = urllib.request.Request(f"http://{at}/v1/completions", body,
                                                 {"Content-Type": "application/json"})
                try:
                    with urllib.request.urlopen(request, timeout=limit) as answer:
                        answers.append((answer.status, json.load(answer)["choices"][0]["text"]))
                except urllib.error.HTTPError as e:
                    answers.append((e.code, json.load(e)["error"]["message"]))
                except (OSError, ValueError) as e:
                    answers.append((0, str(e)))
            p.send_signal(signal.SIGTERM)
        status = p.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        status = None
    error = said()
    errors.unlink()
    return Ended(status, b"", error, time.monotonic() - begin, answers)


def stable(kind, content):
    """The part of a file that has to be the same every time."""
    if kind == "same":
        return content
    if kind == "lines":
        return sorted(json.loads(line)["sweep"]["index"] for line in content.splitlines())
    value = json.loads(content)
    keep = lambda r: {k: r[k] for k in ("token_ids", "stack", "parameters", "sampling") if k in r}
    return [keep(r) for r in value if isinstance(r, dict)] if isinstance(value, list) else keep(value)


def temporary_folder():
    shared = pathlib.Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="ferry-faults-", dir=shared if os.access(shared, os.W_OK) else None)
