"""Prints a document, line for line, as Doxygen 1.9 needs it. Doxygen knows neither the anchors that headings have elsewhere
(their words, with hyphens) nor links to them; all its pages are in one folder; and it links no name that stands in
backticks. An anchor becomes DOCUMENT-WORDS, because Doxygen has one namespace for all pages."""
import pathlib
import re
import sys

path = pathlib.Path(sys.argv[1])
root = pathlib.Path(__file__).resolve().parents[2]
names = {}  # of the library's types and concepts, as they are linked
for header in (root / 'include/ferry').rglob('*.hpp'):
    if 'detail' not in header.parts:
        for name in re.findall(r'^(?:class|struct|concept|enum class) (\w+)(?: [^;]*)?$', header.read_text(), re.M):
            names[name] = f'ferry::stacks::{name}' if header.name == 'stacks.hpp' else f'ferry::{name}'


def page(document):
    """What the site calls a document; the anchors in it begin with that."""
    stem = pathlib.Path(document).stem.lower()
    return 'mainpage' if stem == 'readme' else stem


def anchor(document, heading):
    text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', heading)
    return f'{page(document)}-{re.sub(r"[^-0-9a-z_ ]", "", text.strip().lower()).replace(" ", "-")}'


def link(match):
    """Links to headings, images, sources and other files; those to whole documents Doxygen finds by itself."""
    image, text, target = match.groups()
    if target.startswith('http'):
        return match[0]
    target, _, words = target.partition('#')
    if words:
        return f'[{text}](#{anchor(target or path, words)})'
    target = pathlib.Path(target)
    if image or target.suffix in ('.cff', ''):
        return f'{image}[{text}]({target.name})'
    if target.name == 'README.md':
        return f'[{text}](index.html)'
    if target.suffix == '.md':
        return match[0]
    kind = '' if target.suffix in ('.hpp', '.h') else '_source'
    return f'[{text}]({target.name.replace("_", "__").replace(".", "_8")}{kind}.html)'


def reference(match):
    return fr'\ref {names[match[1]]} "{match[1]}"' if match[1] in names else match[0]


title, code = True, False
for line in path.read_text().splitlines():
    if line.startswith('```'):
        code = not code
    elif not code:
        heading = re.match(r'#+ (.*)', line)
        if heading:
            line += f' {{#{page(path) if title else anchor(path, heading[1])}}}'
            title = False
        else:
            line = re.sub(r'(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)]+)\)', link, line)
            line = re.sub(r'(?<!\[)`(\w+)`(?!\])', reference, line)
    print(line)
