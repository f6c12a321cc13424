"""llama.cpp, built from the copy that llama-cpp-python's source package has of it, and what it says of a model."""
import ctypes
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

from processes import Failure, run

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
GGUF = "gguf==0.19.0"


def enter_environment(folder, progress):
    """Starts this program again in a virtual environment that has numpy and gguf."""
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    try:
        import ensurepip  # noqa: F401  Debian has it in a package of its own
        import venv
    except ImportError:
        raise Failure("Python's venv is missing: apt-get install python3-venv") from None
    python, ready = folder / "bin/python", folder / "ready"
    if not ready.exists() or ready.read_text() != GGUF or not python.exists():
        progress.step(f"installing {GGUF} in {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        run([python, "-m", "pip", "install", "--quiet", GGUF], "pip install")
        ready.write_text(GGUF)  # written last, so that an interrupted installation is made again
    progress.clear()
    os.execv(python, [python, *sys.argv])


class Llama:
    def __init__(self, folder, progress, amx=True):
        """amx: False for machines that announce AMX but trap on its instructions, as some virtual ones do."""
        self.folder, self.progress, self.amx = folder, progress, amx
        self.source = folder / f"{PACKAGE}-{VERSION}"
        self.bin = folder / f"build-{VERSION}{'' if amx else '-without-amx'}/bin"
        if not self.source.exists():
            self.download()
        if not (self.bin.parent / "ready").exists():
            self.build()
        self.logits_tool = self.compile_logits()
        self.cpu = None  # as llama-bench names it

    def download(self):
        self.progress.step(f"downloading the source of {PACKAGE} {VERSION}")
        scratch = self.folder / "download.tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            scratch.mkdir(parents=True)
            run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, "--dest",
                 scratch, f"{PACKAGE}=={VERSION}"], "pip download")
            archive, = scratch.glob("*.tar.gz")
            found = hashlib.sha256(archive.read_bytes()).hexdigest()
            if found != SHA256:
                raise Failure(f"{archive.name}: its SHA-256 is {found}, expected {SHA256}")
            run(["tar", "-xzf", archive, "-C", scratch], "tar")
            unpacked, = scratch.glob("*/vendor/llama.cpp")
            unpacked.rename(self.source)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def build(self):
        self.progress.step("building llama-bench (minutes)")
        build = self.bin.parent
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        # llama.cpp's build would otherwise take the commit of the repository around it for its own.
        without = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
        flags = [] if self.amx else [f"-DCMAKE_C_FLAGS={without}", f"-DCMAKE_CXX_FLAGS={without}"]
        run(["cmake", "-S", self.source, "-B", build, *generator, *flags, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
             "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
             "-DLLAMA_BUILD_SERVER=OFF", f"-DLLAMA_BUILD_COMMIT={PACKAGE}-{VERSION}", "-DLLAMA_BUILD_NUMBER=0"],
            "configuring llama.cpp")
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count())
        run(["cmake", "--build", build, "--target", "llama-bench", "--parallel", jobs], "building llama.cpp")
        (build / "ready").touch()

    def quantizers(self):
        """llama.cpp's library with ggml_quantize_chunk."""
        library = ctypes.CDLL(str(self.bin / "libggml-base.so"))
        library.ggml_quantize_chunk.restype = ctypes.c_size_t
        return library

    def compile_logits(self):
        source, tool = Path(__file__).with_name("logits.cpp"), self.bin / "ferry-logits"
        if not tool.exists() or tool.stat().st_mtime < source.stat().st_mtime:
            temporary = tool.with_name(tool.name + ".tmp")
            run([os.environ.get("CXX", "c++"), "-std=c++17", "-O1", source, "-o", temporary,
                 f"-I{self.source}/include", f"-I{self.source}/ggml/include", f"-L{self.bin}", "-lllama", "-lggml",
                 "-lggml-base", f"-Wl,-rpath,{self.bin}"], "compiling logits.cpp")
            temporary.rename(tool)
        return tool

    def logits(self, model, tokens, threads):
        """After each token, [tokens, vocabulary]."""
        import numpy as np
        out = run([self.logits_tool, model, threads, *tokens], "llama.cpp's logits")
        return np.frombuffer(out, np.float32).reshape(len(tokens), -1)

    def tokens_per_s(self, model, threads, prompt=0, generated=0, context=0):
        """After a warm-up of its own, which llama-bench does not count."""
        out = run([self.bin / "llama-bench", "-m", model, "-t", threads, "-p", prompt, "-n", generated, "-d", context,
                   "-fa", 0, "-r", 1, "-embd", int(prompt > 0), "-o", "json"], "llama-bench")
        result, = json.loads(out)
        self.cpu = result["cpu_info"]
        return result["samples_ts"][0]
