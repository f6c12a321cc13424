#!/usr/bin/env python3
"""Tries `ferry serve` with the openai package, as its users do. Not in CI: it needs packages from PyPI.

    pip install openai
    python3 tests/server/try_openai.py build/reference_engine/ferry [--requests 200] [--clients 16] [--json FILE]

What it checks: completions, chats and streams against `ferry run` at temperature 0, alone and in company; counters against
those of `ferry run`; a stream that is left in the middle; bad requests by the package's own error classes; many requests by
many clients, of which none is lost and after which the server holds no more memory than after the first hundred; SIGTERM
in the middle of a stream. It ends with percentiles of the times to the first token (TTFT) and between tokens (TPOT).
"""
import argparse
import concurrent.futures
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

import openai

PROMPTS = [
    "Question: Nora packs 6 crates with 15 lamps each. How many lamps does she pack?\nAnswer: ",
    "class Harbour:\n    def __init__(self, berths):\n        self.berths = ",
    "FIRST SAILOR:\nThe tide is out, my lord, and so is hope;\n\nCAPTAIN:\n",
    "And it came to pass ",
    "für alle Fälle: 你好, ",
]


class Server:
    def __init__(self, ferry, *arguments):
        self.process = subprocess.Popen([ferry, "serve", "--model", "tiny-mixtral", "--port", "0", *arguments],
                                        stderr=subprocess.PIPE, text=True)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"http://([\d.]+:\d+)", line)
            if found:
                self.url = "http://" + found.group(1)
                break
        else:
            raise SystemExit("the server did not start: " + "".join(self.lines))
        threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True).start()
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120)

    def stats(self):
        return json.load(urllib.request.urlopen(self.url + "/stats"))

    def memory(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def run(ferry, prompt, tokens, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "run.json"
        subprocess.run([ferry, "run", "--model", "tiny-mixtral", "--prompt", prompt, "--max-new-tokens", str(tokens),
                        "--temperature", "0", "--json", str(report), *arguments], check=True, capture_output=True)
        return json.loads(report.read_text())


def check(what, right):
    if not right:
        raise SystemExit(f"FAILED: {what}")
    print(f"ok: {what}")


def percentiles(times):
    times = sorted(times)
    return {p: round(1e3 * times[min(len(times) - 1, int(len(times) * p / 100))], 3) for p in (50, 90, 99)}


def try_texts(ferry, server, expected):
    client = server.client
    made = [client.completions.create(model="tiny-mixtral", prompt=p, max_tokens=20, temperature=0) for p in PROMPTS]
    check("completions are `ferry run`'s", [m.choices[0].text for m in made] == expected)
    check("usage adds up", all(m.usage.total_tokens == m.usage.prompt_tokens + 20 for m in made))
    streamed = []
    for p in PROMPTS:
        stream = client.completions.create(model="tiny-mixtral", prompt=p, max_tokens=20, temperature=0, stream=True,
                                           stream_options={"include_usage": True})
        streamed.append("".join(c.choices[0].text for c in stream if c.choices))
    check("streams are the same texts", streamed == expected)
    both = client.completions.create(model="tiny-mixtral", prompt=PROMPTS, max_tokens=20, temperature=0)
    check("several prompts in one request", [c.text for c in both.choices] == expected)

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
    chat = client.chat.completions.create(model="tiny-mixtral", messages=messages, max_tokens=20, temperature=0,
                                          logprobs=True, top_logprobs=2)
    text = run(ferry, "system: Be brief.\nuser: Who are you?\nassistant:", 20)["text"][0]
    check("a chat is `ferry run`'s of its text", chat.choices[0].message.content == text)
    check("log-probabilities", len(chat.choices[0].logprobs.content) == 20 and
          all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in chat.choices[0].logprobs.content))
    stream = client.chat.completions.create(model="tiny-mixtral", messages=messages, max_tokens=20, temperature=0,
                                            stream=True)
    check("a chat's stream", "".join(c.choices[0].delta.content or "" for c in stream) == text)
    seeded = [client.completions.create(model="tiny-mixtral", prompt=PROMPTS[0], max_tokens=20, temperature=1, seed=7)
              for _ in range(2)]
    check("a seed makes it again", seeded[0].choices[0].text == seeded[1].choices[0].text)
    check("models", [m.id for m in client.models.list()] == ["tiny-mixtral"])


def try_errors(server):
    client = server.client
    good = dict(model="tiny-mixtral", prompt="a", max_tokens=2)
    for what, change, error in [
            ("a model that is not there", {"model": "gpt-5"}, openai.NotFoundError),
            ("a temperature of 3", {"temperature": 3}, openai.BadRequestError),
            ("no tokens", {"max_tokens": 0}, openai.BadRequestError),
            ("a context that is too small", {"max_tokens": 10**6}, openai.BadRequestError),
            ("a suffix", {"suffix": "b"}, openai.BadRequestError),
            ("a field nobody knows", {"extra_body": {"colour": 1}}, openai.BadRequestError)]:
        try:
            client.completions.create(**{**good, **change})
            check(what + " is refused", False)
        except error as e:
            check(f"{what} is refused: {e.body['message']}", e.body["message"])
    try:
        client.chat.completions.create(model="tiny-mixtral", messages=[{"role": "user", "content": "a"}],
                                       tools=[{"type": "function", "function": {"name": "f"}}])
        check("tools are refused", False)
    except openai.BadRequestError as e:
        check(f"tools are refused: {e.body['message']}", e.body["param"] == "tools")


def try_leaving(server):
    before = server.stats()
    stream = server.client.completions.create(model="tiny-mixtral", prompt="a", max_tokens=900, stream=True)
    next(iter(stream))
    stream.close()
    while server.stats()["active"]:
        time.sleep(0.01)
    after = server.stats()
    check("a stream that is left ends early", after["decode"]["tokens"] - before["decode"]["tokens"] < 890 and
          after["cache_bytes"] == 0)


def try_many(server, expected, requests, clients):
    first, between, lost = [], [], []

    def one(i):
        which = i % len(PROMPTS)
        begin = time.monotonic()
        times, text = [], ""
        for c in server.client.completions.create(model="tiny-mixtral", prompt=PROMPTS[which], max_tokens=20,
                                                  temperature=0, stream=True):
            if c.choices[0].text:
                times.append(time.monotonic())
            text += c.choices[0].text
        if text != expected[which]:
            lost.append(i)
        first.append(times[0] - begin)
        between.append((times[-1] - times[0]) / 19)

    def many(n):
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            list(pool.map(one, range(n)))

    many(max(100, clients))
    first.clear(), between.clear()
    memory, before, begin = server.memory(), server.stats(), time.monotonic()
    many(requests)
    seconds, after, grown = time.monotonic() - begin, server.stats(), server.memory() - memory
    check(f"{requests} requests by {clients} clients: every text is the one that is made alone", not lost)
    check(f"memory is flat: {grown / 2**20:+.2f} MiB", grown < 4 << 20)
    check("requests add up", after["requests"] - before["requests"] == requests)
    check("decoded tokens add up", after["decode"]["tokens"] - before["decode"]["tokens"] == 19 * requests)
    for phase in ("prefill", "decode"):
        p = after[phase]
        parts = sum(p[k] for k in ("hits", "late_hits", "misses", "substituted", "skipped", "host_computed"))
        check(f"{phase}: outcomes add up", p["requests"] == parts)
    return {"requests": requests, "clients": clients, "requests_a_second": round(requests / seconds, 1),
            "ttft_ms": percentiles(first), "tpot_ms": percentiles(between)}


def try_counters(ferry):
    for stack in ("lru", "fate", "hobbit"):
        server = Server(ferry, "--stack", stack, "--budget", "25%", "--batch", "1", "--defaults", "paper")
        try:
            answer = server.client.completions.create(model="tiny-mixtral", prompt=PROMPTS[0], max_tokens=20,
                                                      temperature=0, extra_body={"ferry": True})
            alone = run(ferry, PROMPTS[0], 20, "--stack", stack, "--budget", "25%", "--defaults", "paper")
            names = ("requests", "hits", "late_hits", "misses", "bytes") if stack == "lru" else ("requests",)
            served, stats = answer.model_extra["ferry"], server.stats()
            check(f"{stack}: an answer's counters are those of `ferry run`",
                  all(served[p][n] == alone[p][n] for p in ("prefill", "decode") for n in names))
            check(f"{stack}: and those of /stats",
                  all(served[p][n] == stats[p][n] for p in ("prefill", "decode") for n in served[p]))
            metrics = urllib.request.urlopen(server.url + "/metrics").read().decode()
            hits = re.search(r'ferry_expert_requests_total\{[^}]*phase="decode",outcome="hit"\} (\d+)', metrics)
            check(f"{stack}: and those of /metrics", int(hits.group(1)) == stats["decode"]["hits"])
        finally:
            check(f"{stack}: SIGTERM ends it with status 0", server.end() == 0)


def try_end(ferry):
    server = Server(ferry)
    stream = server.client.completions.create(model="tiny-mixtral", prompt="a", max_tokens=900, stream=True)
    pieces = iter(stream)
    next(pieces)
    server.process.send_signal(signal.SIGTERM)
    text = "".join(c.choices[0].text for c in pieces if c.choices)
    check("what is under way at SIGTERM is finished", len(text) > 800 and server.process.wait(timeout=60) == 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ferry")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--json")
    a = parser.parse_args()
    expected = [run(a.ferry, p, 20)["text"][0] for p in PROMPTS]
    server = Server(a.ferry)
    try:
        try_texts(a.ferry, server, expected)
        try_errors(server)
        try_leaving(server)
        report = try_many(server, expected, a.requests, a.clients)
    finally:
        status = server.end()
    check("SIGTERM ends it with status 0", status == 0)
    try_counters(a.ferry)
    try_end(a.ferry)
    print(json.dumps(report, indent=2))
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
