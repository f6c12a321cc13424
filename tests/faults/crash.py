"""Cuts the power at each point of commands that write files: see tests/faults/run.

The shim writes down what a command does to files. From that this makes what a disk may hold after a cut: of each file what
was synced, and of what was not synced all, nothing, a part, or a part in another order; of the folder's entries what was
synced, and of the later ones the first few. Then the command must find each file whole, old or new, or refuse it in one
line; and run again to its end.
"""
import argparse
import hashlib
import itertools
import os
import pathlib
import shutil
import subprocess
import sys

import common


def read_log(file):
    """The changes as (what, inode, where, path, data)."""
    raw, at, changes = file.read_bytes(), 0, []
    while at < len(raw):
        end = raw.index(b"\n", at)
        what, inode, where, size, path = raw[at:end].decode().split(" ", 4)
        changes.append((what, int(inode), int(where), path, raw[end + 1:end + 1 + int(size)]))
        at = end + 1 + int(size)
    return changes


def applied(content, changes):
    """A file's bytes after these changes to it."""
    out = bytearray(content)
    for what, _, where, _, data in changes:
        if what == "write":
            out.extend(bytes(max(0, where - len(out))))
            out[where:where + len(data)] = data
        elif what == "truncate":
            del out[where:]
            out.extend(bytes(where - len(out)))
        elif what == "grow":
            out.extend(bytes(max(0, where - len(out))))
    return bytes(out)


def parts_of(changes):
    """Which of a file's unsynced changes may be on the disk: all, none, the first half, the second half alone, all but one in
    the middle, all with the last write torn, and all sizes without their bytes."""
    n = len(changes)
    yield changes
    yield []
    if n == 0:
        return
    yield changes[:n // 2]
    yield changes[n // 2:]
    yield changes[:n // 2] + changes[n // 2 + 1:]
    what, inode, where, path, data = changes[-1]
    yield changes[:-1] + [(what, inode, where, path, data[:len(data) // 2])]
    yield [(c[0], c[1], c[2], c[3], bytes(len(c[4]))) for c in changes]


class Disk:
    """What is on the disk for certain, and what may be."""

    def __init__(self, folder):
        self.folder = folder
        self.synced = {}   # inode: bytes
        self.pending = {}  # inode: changes
        self.names, self.entries = {}, []  # path: inode, as synced; and later entries as (path, inode or None)
        for p in folder.iterdir():
            inode = p.stat().st_ino
            self.names[str(p)] = inode
            self.synced[inode] = p.read_bytes()
            self.pending[inode] = []

    def now(self, count=None):
        names = dict(self.names)
        for path, inode in self.entries[:count]:
            if inode is None:
                names.pop(path, None)
            else:
                names[path] = inode
        return names

    def change(self, c):
        what, inode, where, path, _ = c
        if what == "new" or (what == "create" and path not in self.now()):
            self.synced[inode], self.pending[inode] = b"", []
        if what in ("create", "enter") and self.now().get(path) != inode:
            self.entries.append((path, inode))
        if what == "remove":
            self.entries.append((path, None))
        if what in ("write", "truncate", "grow"):
            self.pending[inode].append(c)
        if what == "sync":
            self.synced[inode] = applied(self.synced[inode], self.pending[inode])
            self.pending[inode] = []
        if what == "sync-folder":
            self.names, self.entries = self.now(), []

    def states(self):
        """{path: bytes} for each state of the disk that may be found now."""
        for count in range(len(self.entries) + 1):
            names = self.now(count)
            files = sorted(set(names.values()))
            choices = [list(parts_of(self.pending[i])) for i in files]
            # All files in the same way, or one of them in another.
            for k in range(max(map(len, choices), default=1)):
                some = [c[min(k, len(c) - 1)] for c in choices]
                content = {i: applied(self.synced[i], s) for i, s in zip(files, some)}
                yield {path: content[i] for path, i in names.items()}


class Crash:
    def __init__(self, a, folder):
        self.a, self.folder, self.inputs = a, folder, folder / "inputs"
        self.inputs.mkdir()
        common.make_inputs(a.ferry, self.inputs)
        self.findings = []

    def ferry(self, arguments, folder):
        return subprocess.run([self.a.ferry, *map(str, arguments)], cwd=folder, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=60, env={**os.environ, "LC_ALL": "C"})

    def logged(self, command, work):
        shim = common.Shim(self.a.shim, self.folder / "state")
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        disk = Disk(work)
        ended = common.run(self.a.ferry, command, work, shim.environment(None, log, work), 60)
        if ended.status != 0:
            sys.exit(f"{command.name}: fails undisturbed: {ended.error}")
        return disk, read_log(log)

    def check(self, command, old):
        """`old`: the output before the run, or None. Returns how many states were tried, and what was written."""
        (file, kind), = command.outputs.items()
        work = self.folder / "work"
        self.empty(work)
        if old is not None:
            (work / file).write_bytes(old)
        disk, changes = self.logged(command, work)
        new = (work / file).read_bytes()
        seen, count = set(), 0
        for cut in range(len(changes) + 1):
            if cut > 0:
                disk.change(changes[cut - 1])
            sure = {p for p, i in disk.names.items() if not disk.pending[i]}
            for state in disk.states():
                key = hashlib.sha256(repr(sorted(state.items())).encode()).digest()
                if key in seen:
                    continue
                seen.add(key)
                count += 1
                self.one(command, work, file, kind, old, new, state, f"{command.name}, cut {cut} of {len(changes)}")
        print(f"{command.name}{' over an old one' if old else ''}: {len(changes)} changes, {count} disks", flush=True)
        return count, new

    @staticmethod
    def empty(work):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()

    def one(self, command, work, file, kind, old, new, state, where):
        self.empty(work)
        for path, content in state.items():
            (work / pathlib.Path(path).name).write_bytes(content)
        found = (work / file).read_bytes() if (work / file).exists() else None
        same = lambda a, b: a == b or (a is not None and b is not None and self.alike(kind, a, b))
        if kind != "lines" and not any(same(found, wanted) for wanted in (old, new)):
            self.say(where, f"{file} is neither the old nor the new: {len(found or b'')} bytes")
        if command.name == "pack":
            for name in {p.name for p in work.iterdir()}:
                r = self.ferry(["inspect", "--store", name], work)
                if r.returncode not in (0, 2) or (r.returncode == 2 and r.stderr.count(b"\n") != 1):
                    self.say(where, f"ferry inspect --store {name} ends with {r.returncode}: {r.stderr}")
        before = self.whole_lines(found) if kind == "lines" else set()
        again = self.ferry(command.arguments, work)
        if kind == "lines" and again.returncode == 2 and again.stderr.count(b"\n") == 1:
            if self.whole_lines((work / file).read_bytes()) != before:  # a file that is refused is the user's to deal with
                self.say(where, "a file that is refused has changed")
            return
        if again.returncode != 0:
            self.say(where, f"the next run ends with {again.returncode}: {again.stderr.decode(errors='replace')}")
            return
        made = (work / file).read_bytes()
        if not same(made, new):
            self.say(where, f"the next run makes another {file}")
        if kind == "lines" and not before <= self.whole_lines(made):
            self.say(where, "the next run has lost lines that were whole")
        left = {p.name for p in work.iterdir()} - {file}
        if left:
            self.say(where, f"the next run leaves {sorted(left)}")

    @staticmethod
    def alike(kind, a, b):
        try:
            return kind != "same" and common.stable(kind, a) == common.stable(kind, b)
        except (ValueError, KeyError):
            return False

    @staticmethod
    def whole_lines(content):
        lines = set()
        for line in (content or b"").split(b"\n")[:-1]:
            try:
                common.stable("lines", line)
                lines.add(line)
            except (ValueError, KeyError):
                pass
        return lines

    def say(self, where, what):
        self.findings.append(what)
        print(f"{where}: {what}", flush=True)

    def all(self):
        wanted = ["pack", "record", "sweep", "calibrate-gates", "calibrate-low-pool"]
        disks = 0
        for command in (c for c in common.commands(self.inputs) if c.name in wanted):
            count, new = self.check(command, None)
            disks += count
            if command.name != "sweep":
                disks += self.check(command, common.old_of(new))[0]
        print(f"{disks} disks, {len(self.findings)} findings")
        return 1 if self.findings or disks == 0 else 0


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--ferry", type=pathlib.Path, required=True)
    p.add_argument("--shim", type=pathlib.Path, required=True)
    a = p.parse_args()
    with common.temporary_folder() as folder:
        sys.exit(Crash(a, pathlib.Path(folder)).all())


main()
