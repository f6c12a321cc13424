#!/usr/bin/env python3
"""Requests a second and hit rates of our cache policies beside libCacheSim's, on the same list of requests.

Needs PyPI's libcachesim, and a built cache_requests (bench/run cache-requests builds it):
    python3 bench/caches/libcachesim.py --binary build/bench/bench/cache_requests --trace FILE

Both replay in turns, each timed in processor time of one core. libCacheSim runs as fast as it can be asked to: its own
loop in C over a mapped binary trace, all objects of size 1, and a hash table of 2^16 buckets rather than its 2^24
(--hash-power). What its reader takes alone is what a pass takes with `nop`, its cache that does nothing.

The hits of LRU, FIFO and SIEVE must be the same, and those of ARC within 1 in 10,000 requests: the exit status is 1 if
they are not. libCacheSim keeps ARC's target p as a double, whose rounding now and then decides whether |T1| = p; ours
decides as exact fractions do. The others mean different things. libCacheSim's LFU forgets an expert's uses when it is
evicted, and among equals evicts the least recent; ours counts on, and evicts the lower slot. Its Belady must admit what
is asked for; ours may refuse it.
"""
import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PUBLISHED = 'its README: "over 20M requests/sec for a realistic trace replay"'
# Our policy, libCacheSim's, and by how many hits a request the two may differ.
PAIRS = [
    ("Lru", "LRU", 0),
    ("Arc", "ARC", 1e-4),
    ("Lfu-sequence", "LFU", None),
    ("Lfu-model", "LFU", None),
    ("FifoCache", "FIFO", 0),
    ("Sieve", "Sieve", 0),
    ("Belady", "Belady", None),
]


def arguments():
    parser = argparse.ArgumentParser(
        description="Our cache policies beside libCacheSim's: hit rates and requests a second on one core.")
    parser.add_argument("--binary", required=True, help="cache_requests, built")
    parser.add_argument("--trace", help="as `ferry trace import` writes it (default: made-up routing)")
    parser.add_argument("--tokens", help="only so many tokens")
    parser.add_argument("--sizes", default="12.5,25,50,75", help="slots in percent of all experts (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="ours and theirs in turns (%(default)s)")
    parser.add_argument("--repeat", type=int, default=2, help="replays in a round, the best counts (%(default)s)")
    parser.add_argument("--hash-power", type=int, default=16, help="its hash table's buckets, 2^N (%(default)s)")
    parser.add_argument("--json", help="write all numbers to this file")
    args = parser.parse_args()
    for name in ("rounds", "repeat", "hash_power"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected 1 or more")
    return args


def fail(message):
    print(f"libcachesim.py: {message}", file=sys.stderr)
    sys.exit(2)


def ours(args, folder, requests):
    """Each policy and size as {(policy, slots): result}, and the routing's name and number of requests."""
    out = folder / "ours.json"
    command = [args.binary, "--sizes", args.sizes, "--repeat", str(args.repeat), "--json", out]
    command += ["--policies", ",".join(ours for ours, _, _ in PAIRS)]
    for option, value in (("--trace", args.trace), ("--tokens", args.tokens), ("--requests", requests)):
        command += [option, value] if value else []
    try:
        subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as e:
        fail(f"{args.binary}: {e.strerror}")
    except subprocess.CalledProcessError as e:
        fail(e.stderr.decode().strip().splitlines()[-1])
    routing = json.loads(out.read_text())[0]
    return {(r["policy"], r["slots"]): r for r in routing["results"]}, routing


def load_libcachesim():
    here = Path(__file__).resolve().parent
    sys.path = [p for p in sys.path if Path(p).resolve() != here]  # this file has the package's name
    try:
        import libcachesim
    except ImportError as e:
        fail(f"needs libcachesim from PyPI (pip install libcachesim): {e}")
    return libcachesim


class Theirs:
    def __init__(self, args, libcachesim, path):
        self.module = libcachesim.libcachesim_python
        self.hash_power = args.hash_power
        self.repeat = args.repeat
        init = libcachesim.ReaderInitParam(ignore_obj_size=True)
        self.reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE, init)._reader

    def replay(self, policy, slots):
        """The share of misses, and the seconds of the fastest replay."""
        seconds = []
        for _ in range(self.repeat):
            params = self.module.CommonCacheParams(cache_size=slots, hashpower=self.hash_power)
            cache = getattr(self.module, policy + "_init")(params)
            begin = time.process_time()
            misses, _ = self.module.c_process_trace(cache, self.reader, 0, -1)
            seconds.append(time.process_time() - begin)
        return misses, min(seconds)


def main():
    args = arguments()
    libcachesim = load_libcachesim()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "requests.bin"
        rounds = []
        theirs = None
        for i in range(args.rounds):
            print(f"round {i + 1} of {args.rounds}", file=sys.stderr)
            mine, routing = ours(args, folder, path if i == 0 else None)
            theirs = theirs or Theirs(args, libcachesim, path)
            reader_s = theirs.replay("nop", 1)[1]
            its = {(o, slots): theirs.replay(t, slots) for o, t, _ in PAIRS for slots in sizes(mine)}
            rounds.append((mine, its, reader_s))

    n = routing["requests"]
    reader_ns = min(r[2] for r in rounds) / n * 1e9
    print(f"{routing['routing']}: {n} requests for {routing['layers'] * routing['experts']} experts; "
          f"one core, its time; {args.rounds} rounds")
    print(f"libcachesim {libcachesim.__version__}, Python {platform.python_version()}, {platform.machine()}; "
          f"2^{args.hash_power} buckets; its reader alone takes {reader_ns:.1f} ns a request")
    print(f"published: {PUBLISHED}\n")
    print(f"{'':12} {'':>6} |{'hits, %':>17} |{'best, M requests/s':>24} |{'ours / its':>16} |{'less its reader':>16}")
    print(f"{'':12} {'slots':>6} |{'ours':>8}{'its':>8}  |{'ours':>8}{'its':>8}{'-reader':>8} "
          f"|{'median':>8}{'best':>8} |{'median':>8}{'best':>8}")
    results, differ = [], []
    for our_name, its_name, tolerance in PAIRS:
        for slots in sizes(rounds[0][0]):
            key = (our_name, slots)
            our_ns = [mine[key]["ns_per_request"] for mine, _, _ in rounds]
            its_ns = [its[key][1] / n * 1e9 for _, its, _ in rounds]
            bare_ns = [ns - reader_ns for ns in its_ns]
            r = {
                "policy": our_name,
                "its_policy": its_name,
                "slots": slots,
                "our_hits": rounds[0][0][key]["hits"],
                "its_hits": round((1 - rounds[0][1][key][0]) * n),
                "our_requests_per_s": 1e9 / min(our_ns),
                "its_requests_per_s": 1e9 / min(its_ns),
                "its_requests_per_s_less_reader": 1e9 / min(bare_ns),
                "ratio": ratios(our_ns, its_ns),
                "ratio_less_reader": ratios(our_ns, bare_ns),
            }
            results.append(r)
            apart = abs(r["our_hits"] - r["its_hits"])
            if tolerance is not None and apart > tolerance * n:
                differ.append(f"{our_name} with {slots} slots")
            print(f"{our_name:12} {slots:6} |{100 * r['our_hits'] / n:8.3f}{100 * r['its_hits'] / n:8.3f}"
                  f"{' ' if apart else '='} |{r['our_requests_per_s'] / 1e6:8.1f}{r['its_requests_per_s'] / 1e6:8.1f}"
                  f"{r['its_requests_per_s_less_reader'] / 1e6:8.1f} |{r['ratio']['median']:8.2f}"
                  f"{r['ratio']['best']:8.2f} |{r['ratio_less_reader']['median']:8.2f}"
                  f"{r['ratio_less_reader']['best']:8.2f}")
    print("\n=: the same number of hits. -reader, less its reader: without what its reader takes alone at best")
    if args.json:
        Path(args.json).write_text(json.dumps({
            "routing": routing["routing"],
            "requests": n,
            "libcachesim": libcachesim.__version__,
            "hash_power": args.hash_power,
            "reader_ns_per_request": reader_ns,
            "results": results,
        }, indent=2) + "\n")
    if differ:
        print(f"libcachesim.py: hits differ that must be the same: {', '.join(differ)}", file=sys.stderr)
        sys.exit(1)


def sizes(mine):
    return sorted({slots for _, slots in mine})


def ratios(our_ns, its_ns):
    """How many times as many requests a second ours serves: by round, and best against best."""
    return {
        "median": statistics.median(its / our for our, its in zip(our_ns, its_ns)),
        "best": min(its_ns) / min(our_ns),
    }


if __name__ == "__main__":
    main()
