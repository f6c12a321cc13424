"""Loads `ferry serve` with clients of which many vanish, and watches its memory: see tests/faults/run.

Clients read whole answers and streams, leave streams in the middle, send half a request, or nothing, or what is none. After a
while to warm up the server must hold no more memory than then, whole answers must stay what they were, and SIGTERM end it.
"""
import argparse
import http.client
import json
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import common


class Soak:
    def __init__(self, a, folder):
        self.a = a
        common.write_model(folder / "model")
        self.errors = folder / "errors"
        with open(self.errors, "wb") as to:
            self.process = subprocess.Popen(
                [a.ferry, "serve", "--model", folder / "model", "--port", "0", "--stack", "lru", "--clients", "8",
                 "--batch", "4", "--threads", "2", "--grace", "5"], stdin=subprocess.DEVNULL, stderr=to)
        while "http://" not in self.errors.read_text():
            time.sleep(0.01)
            if self.process.poll() is not None:
                sys.exit(self.errors.read_text())
        self.port = int(self.errors.read_text().split("http://127.0.0.1:")[1].split()[0])
        self.counts, self.findings, self.lock, self.over = {}, [], threading.Lock(), False
        self.wanted = self.ask()

    def memory(self):
        """The bytes that the server holds and shares with nobody."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty"):
                return int(line.split()[1]) * 1024
        return 0

    def request(self, stream):
        return json.dumps({"model": "model", "prompt": "abc", "max_tokens": 24, "temperature": 0, "stream": stream})

    def post(self, stream):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        c.request("POST", "/v1/completions", self.request(stream), {"Content-Type": "application/json"})
        return c, c.getresponse()

    def ask(self):
        c, answer = self.post(False)
        body = json.load(answer)
        c.close()
        return body["choices"][0]["text"] if answer.status == 200 else answer.status

    def read_stream(self):
        c, answer = self.post(True)
        text = answer.read().decode()
        c.close()
        events = [e[6:] for e in text.split("\n\n") if e.startswith("data: ")]
        if answer.status != 200:
            return answer.status
        if not events or events[-1] != "[DONE]":
            return "a stream that is cut"
        return "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])

    def leave_stream(self):
        c, answer = self.post(True)
        answer.read(random.randrange(1, 300))
        answer.close()
        c.close()
        return answer.status

    def send(self, data):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        s.sendall(data)
        s.close()

    def half(self):
        body = self.request(False).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        whole = head + body
        self.send(whole[:random.randrange(len(whole))])

    def client(self, seed):
        draw = random.Random(seed)
        kinds = {"whole": self.ask, "stream": self.read_stream, "left stream": self.leave_stream, "half": self.half,
                 "nothing": lambda: self.send(b""), "noise": lambda: self.send(draw.randbytes(200) + b"\r\n\r\n")}
        while not self.over:
            kind = draw.choice(list(kinds))
            try:
                got = kinds[kind]()
            except OSError as e:
                got = f"{type(e).__name__}: {e}"
            except http.client.HTTPException as e:
                got = f"{type(e).__name__}: {e}"
            with self.lock:
                self.counts[kind] = self.counts.get(kind, 0) + 1
                if got in (429, 503):  # the queue, or the connections and as many more that wait for one, are full
                    self.counts["told to come back"] = self.counts.get("told to come back", 0) + 1
                elif kind in ("whole", "stream") and got != self.wanted:
                    self.findings.append(f"{kind}: {got!r}, expected {self.wanted!r}")
                elif kind == "left stream" and got != 200:
                    self.findings.append(f"{kind}: {got!r}")

    def run(self):
        clients = [threading.Thread(target=self.client, args=(i,)) for i in range(6)]
        for c in clients:
            c.start()
        begin, held = time.monotonic(), []
        while time.monotonic() - begin < self.a.seconds and self.process.poll() is None:
            time.sleep(self.a.seconds / 20)
            held.append(self.memory())
        self.over = True
        for c in clients:
            c.join()
        if self.process.poll() is not None:
            self.findings.append(f"the server ended with {self.process.returncode}: {self.errors.read_text()[-300:]}")
        else:
            if self.ask() != self.wanted:
                self.findings.append("another answer at the end")
            self.process.send_signal(signal.SIGTERM)
            if self.process.wait(timeout=20) != 0:
                self.findings.append(f"ends with {self.process.returncode} at SIGTERM")
        early, late = max(held[4:9]), max(held[-5:])
        if late > early * 1.1 + (1 << 20):
            self.findings.append(f"memory grew from {early} to {late} bytes")
        asked = ", ".join(f"{n} {kind}" for kind, n in sorted(self.counts.items()))
        print(f"{asked}; {early / 1e6:.2f} MB after a quarter, {late / 1e6:.2f} at the end; {len(self.findings)} findings")
        for f in self.findings[:20]:
            print(f"    {f}")
        return 1 if self.findings else 0


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--ferry", type=pathlib.Path, required=True)
    p.add_argument("--shim", type=pathlib.Path, help="not used here")
    p.add_argument("--seconds", type=float, default=60)
    a = p.parse_args()
    with common.temporary_folder() as folder:
        sys.exit(Soak(a, pathlib.Path(folder)).run())


main()
