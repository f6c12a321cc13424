"""Lets each call that can fail fail once, in every command of `ferry`: see tests/faults/run."""
import argparse
import concurrent.futures
import errno
import os
import pathlib
import random
import shutil
import sys
import threading
import time

import common

# For each kind the errors that the kernel would give; and what the line for the user then has to contain.
FAULTS = [("io", errno.EIO), ("io", errno.ENOSPC), ("short", 0), ("memory", errno.ENOMEM), ("thread", errno.EAGAIN),
          ("ring", errno.EPERM), ("ring", errno.EAGAIN), ("completion", errno.EAGAIN), ("completion", errno.EIO), ("hang", 0)]
SAYS = {errno.ENOMEM: ["out of memory", os.strerror(errno.ENOMEM)], errno.EAGAIN: ["a thread could not be started"]}


class Check:
    def __init__(self, a, folder):
        self.a, self.folder = a, folder
        self.inputs = folder / "inputs"
        self.inputs.mkdir()
        common.make_inputs(a.ferry, self.inputs)
        self.names = threading.local()
        self.base = {}
        self.old = {}  # each command's outputs before a run: files of the kind that it may replace

    def fresh(self, name, command, old):
        work = self.folder / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for file, kind in command.outputs.items():
            if old and kind != "lines":
                (work / file).write_bytes(self.old[command.name][file])
        return work

    def run(self, name, command, fault, old=True, signal_after=None):
        work = self.fresh(name, command, old)
        shim = common.Shim(self.a.shim, self.folder / (name + ".state"))
        return work, shim, common.run(self.a.ferry, command, work, shim.environment(fault), self.a.limit, signal_after)

    def measure(self, command):
        """Runs a command undisturbed, keeps what it wrote, and returns how many calls it made."""
        work, shim, ended = self.run("base", command, None, old=False)
        if ended.status != 0:
            sys.exit(f"{command.name}: fails undisturbed with {ended.status}: {ended.error}{ended.answers}")
        self.base[command.name] = {
            "outputs": {f: common.stable(k, (work / f).read_bytes()) for f, k in command.outputs.items()},
            "out": ended.out, "answers": ended.answers}
        self.old[command.name] = {f: common.old_of((work / f).read_bytes()) for f in command.outputs}
        return shim.read()[0]

    def is_new(self, command, work, file, part=False):
        """Whether an output is whole; `part`: it may also lack cells that had not ended."""
        try:
            value = common.stable(command.outputs[file], (work / file).read_bytes())
        except (ValueError, KeyError, OSError):
            return False
        wanted = self.base[command.name]["outputs"][file]
        return value == wanted or (part and command.outputs[file] == "lines" and set(value) <= set(wanted))

    def problems(self, command, kind, number, work, shim, ended):
        """What is wrong with a run in which a call has failed."""
        _, failed, call, path = shim.read()
        found = []
        lines = [l for l in ended.error.splitlines() if l.startswith("ferry: ")]
        if ended.status is None:
            return ["hangs"]
        if kind == "hang":  # a signal is sent shortly after the start
            if ended.status not in (143, -15):
                found.append(f"ends with {ended.status}, expected 143")
            if ended.seconds > 2:
                found.append(f"ends {ended.seconds:.1f} s after the signal")
        elif ended.status not in (0, 2):
            found.append(f"ends with {ended.status}")
        if "terminate called" in ended.error or "json.exception" in ended.error:
            found.append("an exception's own words")
        if ended.status == 0:
            found += [f"ends with 0, but {f} is not whole" for f in command.outputs if not self.is_new(command, work, f)]
            if command.says and ended.out != self.base[command.name]["out"]:
                found.append("ends with 0, but says something else on standard output")
        if ended.status != 0:
            if kind == "hang":
                pass
            elif len(lines) != 1:
                found.append(f"says {len(lines)} lines, expected one")
            elif failed and kind != "short":
                said = SAYS.get(number, []) + [os.strerror(number)] + ([pathlib.Path(path).name] if path else [])
                if not any(s in lines[0] for s in said):
                    found.append("does not say what failed")
            for f, k in command.outputs.items():
                there = (work / f).read_bytes() if (work / f).exists() else None
                if k == "lines" and (there is None or self.is_new(command, work, f, part=True)):
                    continue
                if there != self.old[command.name][f] and not self.is_new(command, work, f):
                    found.append(f"{f} is neither the old nor the new")
        left = {p.name for p in work.iterdir()} - set(command.outputs) - command.beside
        if left:
            found.append(f"leaves {sorted(left)}")
        if command.name == "serve" and ended.status == 0:
            wanted = self.base["serve"]["answers"]
            for i, answer in enumerate(ended.answers):
                whole = answer == wanted[i] or answer[0] >= 500
                if not whole:
                    found.append(f"answers {answer}")
            if ended.answers and wanted[-1] not in ended.answers:
                found.append("answers no request any more")
        return found

    def again(self, command, work):
        """Runs the command again without faults, in the folder that the failed run has left."""
        ended = common.run(self.a.ferry, command, work, {**os.environ, "LC_ALL": "C"}, self.a.limit)
        if ended.status != 0:
            return [f"the next run fails with {ended.status}: {ended.error.strip()[-200:]}"]
        return [f"after the next run {f} is not whole" for f in command.outputs if not self.is_new(command, work, f)]

    def one(self, task):
        command, kind, number, at = task
        if time.monotonic() > self.until:
            return task, None, None
        name = f"work-{threading.get_ident()}"
        rest = " REST" if kind in ("ring", "completion") and at % 2 == 1 else ""
        fault = f"{kind} {at} {number}{rest}"
        work, shim, ended = self.run(name, command, fault, at % 2 == 0, 0.3 if kind == "hang" else None)
        found = []
        if at % 2 == 1:  # an output that was not there before may also be absent afterwards
            for f in command.outputs:
                if not (work / f).exists() and ended.status != 0:
                    (work / f).write_bytes(b"" if command.outputs[f] == "lines" else self.old[command.name][f])
        found += self.problems(command, kind, number, work, shim, ended)
        if command.name != "serve" and command.outputs:
            found += self.again(command, work)
        _, failed, call, path = shim.read()
        if found and self.a.verbose:
            print(ended.error)
        why = f", {os.strerror(number)}" if number else ""
        what = f"{command.name}: {kind} {at} ({call} {path}{why}{rest})"
        text = "".join(f"\n    {f}" for f in found)
        return task, bool(failed), f"{what}{text}\n    said: {ended.error.strip()[-300:]!r}" if found else None

    def tasks(self):
        chosen = [c for c in common.commands(self.inputs) if not self.a.commands or c.name in self.a.commands]
        every, tasks = self.a.every, []
        for command in chosen:
            counts = self.measure(command)
            print(command.name + ": " + ", ".join(f"{counts[k]} {k}" for k in common.KINDS if k != "hang"), flush=True)
            for kind, number in FAULTS:
                if self.a.kinds and kind not in self.a.kinds:
                    continue
                if kind == "hang" and command.name == "serve":
                    continue
                n = counts[kind]
                most = self.a.allocations if kind == "memory" else n
                step = max(1, n / max(1, most)) * every
                places = sorted({int(i * step) + 1 for i in range(int(n / step) + 1) if int(i * step) < n})
                if self.a.last:
                    places = list(range(max(1, n - self.a.last + 1), n + 1, every))
                tasks += [(command, kind, number, at) for at in places]
        random.Random(1).shuffle(tasks)  # in random order, so that a run that ends early has tried some of everything
        return tasks

    def check(self):
        tasks = self.tasks()
        if self.a.at:
            tasks = [(c, k, n, self.a.at) for c, k, n in {(t[0], t[1], t[2]) for t in tasks}]
        self.until = time.monotonic() + self.a.seconds if self.a.seconds else float("inf")
        done = hit = 0
        findings = []
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.a.jobs) as pool:
            for task, failed, finding in pool.map(self.one, tasks):
                if failed is None:
                    continue
                done += 1
                hit += failed
                if finding:
                    findings.append(finding)
                    print(finding, flush=True)
                if done % 500 == 0:
                    print(f"{done} of {len(tasks)} runs, {time.monotonic() - begin:.0f} s", flush=True)
        print(f"{done} of {len(tasks)} runs, in {hit} of which a call failed; {len(findings)} findings")
        return 1 if findings or hit == 0 else 0


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--ferry", type=pathlib.Path, required=True)
    p.add_argument("--shim", type=pathlib.Path, required=True)
    p.add_argument("--every", type=int, default=1, metavar="N", help="each Nth call only")
    p.add_argument("--seconds", type=float, default=0, metavar="S", help="end after so long (default: after all)")
    p.add_argument("--allocations", type=int, default=1000, metavar="N", help="of each command's allocations, so many")
    p.add_argument("--last", type=int, default=0, metavar="N", help="of each command's calls the last so many only")
    p.add_argument("--commands", nargs="*", metavar="NAME", help="these only")
    p.add_argument("--kinds", nargs="*", choices=common.KINDS, help="these only")
    p.add_argument("--at", type=int, help="this call only")
    p.add_argument("--verbose", action="store_true", help="print what findings say on standard error")
    p.add_argument("--limit", type=float, default=60, help="seconds after which a run hangs")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    a = p.parse_args()
    with common.temporary_folder() as folder:
        sys.exit(Check(a, pathlib.Path(folder)).check())


main()
