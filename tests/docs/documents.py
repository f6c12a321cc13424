"""What README.md and docs/ tell their readers to type, and a folder in which it can be typed.

A reader's own things stand in the documents as names that everybody fills in otherwise (FOLDER, MODEL, TEXTS, story.txt,
...). `Reader` lays files of these names beside a clone, so that every command runs as it is printed."""
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time
import urllib.request

root = pathlib.Path(__file__).resolve().parents[2]
GPL = pathlib.Path('/usr/share/common-licenses/GPL-3')
TABLE = re.compile(r'(reference_engine/run|tests/run)$')  # commands in tables

# What a command needs beyond a clone and Debian's packages: (what, pattern, how it is said).
NEEDS = [
    ('sketch', r'\.\.\.', 'leaves out what the text around it says'),
    ('gpu', r'--device cuda|bench/run gpu|cuda\.Dockerfile', 'needs a GPU'),
    ('clone', r'\bCLONE\b', "needs a clone of a stranger's repository"),
    ('traces', r'\bTRACES\b|\$traces|gpt-oss-20b|deepseek-v2-lite', 'needs recorded routing: --traces FOLDER'),
    ('network', r'bench/texts\.py|bench/run llama-cpp(?!-)', 'downloads: --network'),
    ('texts', r'\bTEXTS\b|\$CALIBRATION|\$HELD_OUT|texts/test|-own\.st', 'needs the texts: --texts FOLDER or --network'),
    ('llama.cpp', r'WHERE_LLAMA_CPP_IS|llama-cpp-examples|llama_observe|llama_drive|examples/llama_cpp', 'needs llama.cpp: --llama-cpp FOLDER'),
    ('large', r'random_gguf|llama-cpp-memory|qwen-layers|bench/run memory', 'needs gigabytes: --large'),
    ('gguf', r'\b(model|FILE)\.gguf', 'needs a GGUF file with a tokenizer: --gguf FILE'),
    ('slurm', r'^sbatch', 'needs Slurm'),
    ('matplotlib', r'plot_sweep\.py', 'needs matplotlib'),
    ('libcachesim', r'libcachesim\.py', 'needs the package libcachesim'),
    ('docker', r'^docker', 'needs a running Docker'),
    ('vcpkg', r'^vcpkg', 'needs vcpkg'),
    ('conan', r'^conan', 'needs Conan 2'),
    ('tests', r'^tests/run', 'is what CI runs: --tests'),
]


def all_documents():
    return [root / 'README.md', *sorted(root.glob('docs/*.md')), *sorted(root.glob('docs/results/*.md'))]


def blocks(document, tables=False):
    """(line, text) of each ```sh block; if asked for, of each command in a table, too."""
    lines, number, code = [], 0, ''
    for at, line in enumerate(document.read_text().splitlines(), 1):
        if line.startswith('```'):
            if code == '```sh':
                yield number, '\n'.join(lines)
            code, lines, number = ('' if code else line), [], at + 1
        elif code:
            lines.append(line)
        elif tables and line.startswith('|'):
            for text in re.findall(r'`([^`]+)`', line):
                if TABLE.match(text):
                    yield at, text


def commands(text):
    """The simple commands of a block, each as its words."""
    lexer = shlex.shlex(text.replace('\\\n', ' ').replace('\n', '\n; '), posix=True, punctuation_chars=';&|<>()')
    lexer.whitespace_split = True
    lexer.commenters = '#'
    command = []
    for word in lexer:
        if set(word) <= set(';&|()') or word in ('do', 'then', 'done'):
            if command:
                yield command
            command = []
        else:
            command.append(word)
    if command:
        yield command


def statements(text):
    """The parts that a shell takes at once: a line with its continuations, or a whole loop."""
    so_far = ''
    for line in text.splitlines():
        if not so_far and line.startswith('#'):
            continue
        so_far += line + '\n'
        whole = subprocess.run(['bash', '-n'], input=so_far, capture_output=True, text=True).returncode == 0
        if whole and not line.endswith('\\'):
            if so_far.strip():
                yield so_far.strip()
            so_far = ''
    if so_far.strip():
        yield so_far.strip()


def need(statement, has):
    """Why a command cannot be run here; empty if it can."""
    for what, pattern, why in NEEDS:
        if what not in has and re.search(pattern, re.sub(r'(?m)(^|\s)#.*', '', statement)):
            return why
    return None


def not_printed(document, printed):
    """Lines of the document's ```text blocks with a number that `printed` lacks."""
    lines = {re.sub(r'\s+', ' ', line).strip() for line in printed.splitlines()}
    seen = set(' '.join(lines).split(' '))
    for shown in re.findall(r'^```text\n(.*?)^```', document.read_text(), re.M | re.S):
        for line in shown.splitlines():
            line = re.sub(r'\s+', ' ', line).strip()
            # A wide table is printed in parts, each with its own heads.
            cells = re.sub(r'^[A-Za-z/ -]+? (?=[\d-])|^stack ', '', line).split(' ')
            if line not in lines and not all(cell in seen for cell in cells):
                yield line


def rows_not_printed(document, printed):
    """Rows of the document's tables that have numbers, and the numbers among them that `printed` lacks."""
    seen = set(re.findall(r'\d+(?:\.\d+)?', printed))
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if not line.startswith('|'):
            continue
        cells = ' '.join(re.sub(r'`[^`]*`|\[[^]]*\]\([^)]*\)', '', c) for c in line.split('|')[2:])
        cells = re.sub(r'(?<=\d),(?=\d{3}\b)', '', cells)
        numbers = re.findall(r'(?<![\w.-])\d+(?:\.\d+)?(?![\w-])', cells)
        if numbers:
            yield number, line, [n for n in numbers if n not in seen]


class Reader:
    """Runs commands in `folder`, which has what a clone has and what a reader has. They find `ferry` on the PATH."""

    def __init__(self, folder, ferry, text_bytes, **given):
        self.folder, self.ferry, self.text_bytes, self.given = folder, ferry, text_bytes, given  # texts, traces, llama_cpp, gguf
        self.prelude, self.kept = '', {}
        self.clean = {p.name for p in folder.iterdir()}
        self.environment = dict(os.environ, COLUMNS='120', CONAN_HOME=str(folder / 'conan-home'),
                                PATH=f'{ferry.parent}:{os.environ["PATH"]}')

    def begin(self, document):
        """Lays out what a reader of this document fills in, and removes what the document before has left."""
        self.prelude = ''
        for path in [p for p in self.folder.iterdir() if p.name not in self.clean]:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        text = GPL.read_bytes()
        for i, name in enumerate(('story.txt', 'text.txt', 'mine.txt')):
            (self.folder / name).write_bytes(text[1000 * i:1000 * i + self.text_bytes])
        model = root / 'reference_engine/models/tiny-mixtral'
        for name in ('FOLDER', 'MODEL', 'path/to/model'):
            self.link(name, model)
        (self.folder / 'my-model').mkdir()
        for path in model.iterdir():
            self.link(f'my-model/{path.name}', path)
        config = json.loads((model / 'config.json').read_text())
        (self.folder / 'my-model/config.json').unlink()
        (self.folder / 'my-model/config.json').write_text(json.dumps({**config, 'max_position_embeddings': 8192}))
        # Copies, because a command's output would follow links.
        shutil.copy(root / 'reference_engine/machines/rtx3090-pcie3.json', self.folder / 'mine.json')
        shutil.copy(root / 'examples/c/engine.c', self.folder / 'engine.c')
        for name, what in (('model.gguf', 'gguf'), ('FILE.gguf', 'gguf'), ('WHERE_LLAMA_CPP_IS', 'llama_cpp'),
                           ('TRACES', 'traces')):
            self.link(name, self.given.get(what))
        for name in ('TEXTS', 'texts') if self.given.get('texts') else ():
            shutil.copytree(self.given['texts'], self.folder / name)  # not a link: they may be made again
        if self.given.get('traces'):
            self.link('FILE', self.given['traces'] / 'gpt-oss-20b.safetensors')
            # These traces are made by cache-policies.md, if it was run; otherwise they come from the given folder.
            for name in set(re.findall(r'[\w.-]+\.safetensors', document.read_text())) - set(self.kept):
                if (recorded := self.given['traces'] / name).exists():
                    made = subprocess.run([self.ferry, 'trace', 'import', recorded, '--shape', recorded.stem, '--out', name],
                                          cwd=self.folder, env=self.environment, capture_output=True)
                    if made.returncode:  # a trace in ferry's own format, whose steps lack layers
                        shutil.copy(recorded, self.folder / name)
        (self.folder / 'routes.csv').write_text(route_trace())
        for name in re.findall(r'\b(?:mine|code|TRACE)\.safetensors', document.read_text()):
            if not (self.folder / name).exists():
                subprocess.run([self.ferry, 'trace', 'record', '--model', 'tiny-qwen-moe', '--text', 'text.txt', '--out', name],
                               cwd=self.folder, env=self.environment, capture_output=True, check=True)
        for name, path in self.kept.items():
            self.link(name, path)

    def keep(self, pattern, folder):
        """Keeps what later documents go on with."""
        for path in self.folder.glob(pattern):
            if not path.is_symlink():
                self.kept[path.name] = shutil.move(path, folder / path.name)

    def link(self, name, target):
        if target:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).symlink_to(target)

    def run(self, statement, limit=None):
        """(exit status, standard output, standard error, seconds); status None: stopped at the limit."""
        begin = time.monotonic()
        if re.fullmatch(r'(\w+=\S*|\w+="[^"]*")', statement):
            self.prelude += statement + '\n'
        if re.search(r'\bserve\b', statement):
            return self.serve(statement, begin)
        shell = subprocess.Popen(['bash', '-euc', self.prelude + statement], cwd=self.folder, env=self.environment, text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            out, err = shell.communicate('Hello\n' if ' chat ' in statement else '', timeout=limit)
            status = shell.returncode
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGTERM)
            out, err = shell.communicate()
            status = None
        except KeyboardInterrupt:
            os.killpg(shell.pid, signal.SIGTERM)
            shell.wait()
            raise
        return status, out, err, time.monotonic() - begin

    def serve(self, statement, begin):
        """Runs a server until it has answered, and then ends it."""
        port = re.search(r'--port (\d+)', statement)[1]
        shell = subprocess.Popen(['bash', '-euc', 'exec ' + statement], cwd=self.folder, env=self.environment, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        answered = ''
        while shell.poll() is None and not answered and time.monotonic() - begin < 300:
            time.sleep(0.2)
            try:
                answered = urllib.request.urlopen(f'http://127.0.0.1:{port}/health', timeout=5).read().decode()
            except OSError:
                pass
        os.killpg(shell.pid, signal.SIGINT)
        out, err = shell.communicate()
        return shell.returncode if answered else 1, answered + out, err, time.monotonic() - begin


def route_trace():
    """Routing as others record it: two tokens of qwen3-30b-a3b that choose experts in turn."""
    lines = ['# route_trace v1', '# model=q arch=qwen3moe n_layer=48 n_expert=128 n_expert_used=8']
    lines += [f'# layer={layer} expert_bytes=3059712 dense_bytes=11953152' for layer in range(48)]
    lines += ['turn,phase,step,layer,slot,expert,weight,residency,expert_bytes']
    for step in range(2):
        lines += [f'0,{step},{step},{layer},{slot},{(layer + 8 * step + slot) % 128},0.125,0,3059712'
                  for layer in range(48) for slot in range(8)]
    return '\n'.join(lines) + '\n'


def clone(folder):
    """A clone of what is committed."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(['git', 'clone', '--quiet', '--shared', root, folder], check=True)
