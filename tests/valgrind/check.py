"""Runs tests and commands under valgrind: see tests/valgrind/run."""
import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/valgrind"
REPORT = BUILD / "report"
sys.path.insert(0, str(ROOT / "tests/faults"))
import common  # noqa: E402

TARGETS = {"library": "library_tests", "invariants": "invariant_tests", "commands": "ferry_command",
           "engine": "engine_tests", "cuda": "cuda_tests"}
FILES = {"library": ["tests/ferry/**/*.cpp", "tests/contracts/*.cpp", "tests/cuda/*.cpp"],
         "invariants": ["tests/invariants/*.cpp"],
         "engine": ["tests/engine/**/*.cpp"],
         "cuda": ["tests/engine/cuda/*.cpp", "tests/emulated_cuda/test.cpp"]}
LEFT_OUT = {"engine": ["tests/engine/cuda/*", "tests/engine/fixtures/*"], "library": ["tests/cuda/cublas_on_demand.cpp"]}
SUITES = "whole-models,whole-models-on-threads"
# These take minutes each, with arithmetic that other cases also do; and one counts by its own operator new, which valgrind
# replaces.
CASES = ",".join(["no random run beats the bounds*", "in the mean a row and layer spends what it may*",
                  "what one step spends at once is owed*", "no stack allocates after construction"])
# valgrind takes memory that the kernel writes by io_uring for uninitialised. Without a ring the engine reads by pread.
NO_RING = """#include <errno.h>
int io_uring_queue_init(unsigned n, void* ring, unsigned flags) { (void)n, (void)ring, (void)flags; return -ENOSYS; }"""
# A status that no test and no command ends with.
FOUND = 99
VALGRIND = ["valgrind", "--quiet", f"--error-exitcode={FOUND}", "--leak-check=full", "--errors-for-leak-kinds=definite",
            "--fair-sched=try", "--num-callers=30"]


def build(parts):
    """Debug, so that asserts and poison are there; valgrind 3.19 cannot read clang's DWARF 5."""
    # A folder that was built with the engine stays so, since switching back would build everything again.
    cache = BUILD / "CMakeCache.txt"
    had = cache.is_file() and "FERRY_BUILD_ENGINE:BOOL=ON" in cache.read_text()
    engine = "ON" if had or set(parts) & {"commands", "engine", "cuda"} else "OFF"
    print("== building in build/valgrind", flush=True)
    subprocess.run(["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_CXX_COMPILER=clang++",
                    "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1 -gdwarf-4", "-DFERRY_UNITY=ON",
                    "-DFERRY_PRECOMPILE=ON", "-DFERRY_CUDA=OFF", f"-DFERRY_BUILD_ENGINE={engine}",
                    "-DFERRY_BUILD_LIBRARY=OFF", "-DFERRY_BUILD_EXAMPLES=OFF"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", BUILD, "--target", *(TARGETS[p] for p in parts)], check=True)
    subprocess.run(["clang", "-shared", "-fPIC", "-x", "c", "-", "-o", BUILD / "no_ring.so"], input=NO_RING.encode(),
                   check=True)


def rows(parts, inputs):
    """The name, command and expected statuses of everything that is to be run."""
    for part in parts:
        if part == "commands":
            ferry = BUILD / "reference_engine/ferry"
            common.make_inputs(ferry, inputs)
            for c in common.commands(inputs):
                if c.name != "serve":  # a server does not end by itself
                    yield f"ferry {c.name}", [ferry, *map(str, c.arguments)]
            continue
        program = BUILD / "tests" / TARGETS[part]
        for pattern in FILES[part]:
            for file in sorted(ROOT.glob(pattern)):
                name = str(file.relative_to(ROOT))
                if not any(fnmatch.fnmatchcase(name, p) for p in LEFT_OUT.get(part, [])):
                    yield name, [program, "--no-colors", f"--source-file=*{name}", f"--test-suite-exclude={SUITES}",
                                 f"--test-case-exclude={CASES}"]


class Run:
    def __init__(self, seconds, folder):
        self.seconds, self.folder = seconds, folder

    def __call__(self, row):
        name, command = row
        work = self.folder / name.replace("/", "-")
        work.mkdir()
        log = REPORT / (name.replace("/", "-") + ".log")
        environment = {**os.environ, "LC_ALL": "C", "FERRY_TEST_QUICK": "1", "FERRY_TEST_STEPS": "4000",
                       "TMPDIR": str(work), "LD_PRELOAD": str(BUILD / "no_ring.so")}
        begin = time.monotonic()
        with open(log, "wb") as to:
            p = subprocess.Popen([*VALGRIND, *map(str, command)], cwd=work, env=environment, stdin=subprocess.DEVNULL,
                                 stdout=to, stderr=to, start_new_session=True)
            try:
                status = p.wait(timeout=self.seconds)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
                status = None
        shutil.rmtree(work, ignore_errors=True)
        said = log.read_text(errors="replace")
        result = ("not ended" if status is None else "FINDING" if status == FOUND or "== Invalid " in said else
                  "clean" if status == 0 else f"FAILED with {status}")
        if status == 0 and "test cases: 0" in " ".join(said.split()):
            result = "has no case"
        return name, time.monotonic() - begin, result


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("parts", nargs="*", choices=[*TARGETS, []], metavar="PART")
    p.add_argument("--only", nargs="*", metavar="PATTERN")
    p.add_argument("--seconds", type=float, default=900, metavar="S")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    a = p.parse_args()
    parts = a.parts or ["library", "invariants", "commands"]
    build(parts)
    REPORT.mkdir(exist_ok=True)
    counts = {}
    with common.temporary_folder() as folder:
        folder = pathlib.Path(folder)
        (folder / "inputs").mkdir()
        chosen = [r for r in rows(parts, folder / "inputs")
                  if not a.only or any(fnmatch.fnmatchcase(r[0], pattern) for pattern in a.only)]
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
            for name, seconds, result in pool.map(Run(a.seconds, folder), chosen):
                print(f"{name:56} {seconds:7.0f} s  {result}", flush=True)
                counts[result.split(" with")[0]] = counts.get(result.split(" with")[0], 0) + 1
    print(f"{len(chosen)} in {time.monotonic() - begin:.0f} s: " + ", ".join(f"{n} {r}" for r, n in sorted(counts.items())))
    sys.exit(1 if not chosen or set(counts) - {"clean", "has no case", "not ended"} else 0)


main()
