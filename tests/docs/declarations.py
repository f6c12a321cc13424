"""What C++ declares, as far as the names in its comments need it. It matches braces and does not parse the language."""
import collections
import re

TOKEN = re.compile(r'''(?P<comment>//[^\n]*|/\*.*?\*/)
                       |(?P<directive>(?<=\n)[ \t]*\#(?:\\\n|[^\n])*)
                       |(?P<text>R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])')|(?P<number>\.?\d[\w.']*)
                       |(?P<word>[A-Za-z_]\w*)|(?P<mark>::|[^\s])''', re.S | re.X)
ACCESS = {'public', 'private', 'protected'}
KINDS = {'class', 'struct', 'union', 'enum', 'namespace', 'concept'}
NO_FUNCTIONS = {'alignas', 'noexcept', 'decltype', 'static_assert', 'requires', 'may_alias', '__attribute__'}


class Declaration:
    """A statement of a namespace or class, or a whole function; `inside` has the declarations in a namespace, class or enum."""

    def __init__(self, parent, line):
        self.parent, self.line, self.end = parent, line, line
        self.kind, self.name, self.bases = 'other', '', []
        self.plain, self.parameters, self.body = [], set(), set()  # its words: outside of parentheses, in them, in its body
        self.inside, self.static = [], False

    def classes(self):
        """The classes around it."""
        outer = self.parent
        while outer is not None:
            if outer.kind in ('class', 'enum'):
                yield outer
            outer = outer.parent

    def each(self):
        for d in self.inside:
            yield d
            yield from d.each()


def tokens(text):
    line, at = 1, 0
    for t in TOKEN.finditer('\n' + text):
        line += ('\n' + text).count('\n', at, t.start())
        at = t.start()
        yield t.lastgroup, t[0], line - 1


class File:
    def __init__(self, path):
        self.path, text = path, path.read_text()
        self.comments = []  # (line, text, whether code stands before it on the line)
        self.macros = set()
        words, last_line = [], 0
        for kind, token, line in tokens(text):
            if kind == 'comment':
                if unused := re.fullmatch(r'/\*(\w+)\*/', token):  # the name of a parameter that is not used
                    words.append((unused[1], line))
                    continue
                for i, part in enumerate(token.splitlines()):
                    part = re.sub(r'^\s*(?:///?<?|/\*+<?|\*(?!/))|\*/$', '', part)
                    self.comments.append((line + i, part, last_line == line))
                continue
            last_line = line + token.count('\n')
            if kind == 'directive':
                self.macros |= set(re.findall(r'#\s*define\s+(\w+)', token))
            elif kind == 'text':
                words.append(('""', line))
            elif kind != 'number':
                words.append((token, line))
        self.words = words
        self.all = Declaration(None, 0)
        self.all.kind = 'namespace'
        self.at = 0
        self.read(self.all)
        if self.at < len(words):
            raise SystemExit(f'{path}:{words[self.at][1]}: a closing brace that tests/docs/declarations.py does not understand')

    def attached(self):
        """For each comment its lines, the declaration that it belongs to, and whether it stands inside of that."""
        flat = sorted((d for d in self.all.each() if d.kind != 'namespace'), key=lambda d: d.line)
        leaves = [d for d in flat if d.kind not in ('class', 'enum')]
        at = 0
        while at < len(self.comments):
            end = at + 1
            while end < len(self.comments) and self.comments[end][0] == self.comments[end - 1][0] + 1 and \
                    not self.comments[end - 1][2] and not self.comments[end][2]:
                end += 1
            block, at = self.comments[at:end], end
            first, last, behind = block[0][0], block[-1][0], block[0][2]
            around = [d for d in flat if d.line <= first <= d.end]
            on = max((d for d in leaves if d in around), key=lambda d: d.line, default=None)
            inside = on is not None
            if on is None and not behind:  # belongs to what follows, or else to the class that ends after it
                on = next((d for d in flat if d.line > last), None)
                outer = max(around, key=lambda d: d.line, default=None)
                if outer is not None and (on is None or on.line > outer.end):
                    on = outer
            elif on is None:
                on = max(around, key=lambda d: d.line, default=None)
            yield block, on, inside

    def peek(self, ahead=0):
        return self.words[self.at + ahead][0] if self.at + ahead < len(self.words) else ''

    def skip(self, opening, closing, into):
        """Skips from an opening mark past its closing one; the words in between go to `into`."""
        depth = 0
        while self.at < len(self.words):
            word = self.peek()
            depth += (word == opening) - (word == closing)
            if re.match(r'[A-Za-z_]', word):
                into.add(word)
            self.at += 1
            if depth == 0:
                return

    def read(self, scope):
        """Reads a namespace or class up to its closing brace."""
        while self.at < len(self.words) and self.peek() != '}':
            if self.peek() in ACCESS and self.peek(1) == ':':
                self.at += 2
            elif self.peek() == ';':
                self.at += 1
            else:
                scope.inside.append(self.statement(scope))

    def statement(self, scope):
        d = Declaration(scope, self.words[self.at][1])
        head, calls, initial = [], False, False
        while self.at < len(self.words) and self.peek() not in (';', '}'):
            word = self.peek()
            if word == 'template':
                self.at += 1
                self.skip('<', '>', d.parameters)
            elif word == '(' or word == '[' and self.peek(1) != '[':
                if word == '(' and not (calls or initial) and head and head[-1].isidentifier() and head[-1] not in NO_FUNCTIONS:
                    calls, d.name = True, head[-1]
                self.skip(word, ')' if word == '(' else ']', d.body if initial else d.parameters)
            elif word == '{':
                kind = next((w for w in head if w in KINDS), None)
                if kind == 'concept' or calls or initial or kind is None and 'extern' not in head:
                    d.kind = 'concept' if kind == 'concept' else 'function' if calls else d.kind
                    self.skip('{', '}', d.body)
                    if kind == 'concept' or initial or self.peek() in (';', ',', '{', ':') or not calls and kind is None:
                        continue  # part of a member's or a constructor's initializer
                    break
                self.at += 1
                if kind == 'enum':
                    d.kind, d.name = 'enum', self.name_of(head, 'enum')
                    self.read_enumerators(d)
                else:
                    d.kind = 'namespace' if kind in ('namespace', None) else 'class'
                    d.name = self.name_of(head, kind) if kind else ''
                    d.bases = [w for w in head[head.index(':'):] if re.match(r'[A-Z]', w)] if ':' in head else []
                    self.read(d)
                self.at += self.peek() == '}'
                if d.kind == 'namespace':
                    break
            else:
                initial |= word == '=' or word == ':' and not any(k in head for k in KINDS)
                head.append(word)
                if re.match(r'[A-Za-z_]', word):
                    d.plain.append(word)
                self.at += 1
        self.at += self.peek() == ';'
        d.end = self.words[self.at - 1][1]
        if d.kind == 'other':
            kind = next((w for w in head if w in KINDS or w == 'using'), None)
            if calls:
                d.kind = 'function'
            elif kind:
                d.kind, d.name = ('type' if kind != 'concept' else kind), self.name_of(head, kind)
        elif d.kind == 'concept':
            d.name = self.name_of(head, 'concept')
        d.static = 'static' in head or scope.kind == 'namespace'
        return d

    def read_enumerators(self, of):
        while self.at < len(self.words) and self.peek() != '}':
            e = Declaration(of, self.words[self.at][1])
            e.kind, e.name, e.plain = 'enumerator', self.peek(), [self.peek()]
            while self.at < len(self.words) and self.peek() not in (',', '}'):
                self.at += 1
            e.end = self.words[self.at][1]
            self.at += self.peek() == ','
            of.inside.append(e)

    @staticmethod
    def name_of(head, kind):
        rest = (w for w in head[head.index(kind) + 1:] if w.isidentifier() and w != 'class' and not w.startswith('FERRY_'))
        return next(rest, '')


class Names:
    """The names that comments of `files` may use, and where. Of `others` they may use types and macros."""

    def __init__(self, files, others):
        self.outside, self.everywhere = set(), set()  # types and functions outside of classes; and names inside of classes
        self.members, self.concepts = collections.defaultdict(set), {}
        self.parameters = collections.defaultdict(set)  # by function name: the parameters of all its overloads
        for file in (*files, *others):
            self.outside |= file.macros
            self.outside |= {d.name for d in file.all.each() if d.kind in ('class', 'enum', 'type', 'concept')}
        for d in (d for file in files for d in file.all.each()):
            names = self.outside if d.parent.kind == 'namespace' else self.everywhere
            if d.kind == 'function':
                self.parameters[d.name] |= d.parameters
            if d.kind == 'concept':
                self.concepts[d.name] = d
            if d.kind != 'other':
                names.add(d.name)
            elif d.static:
                names.update(d.plain)
            if d.parent.kind in ('class', 'enum'):
                self.members[d.parent.name] |= {d.name, *d.plain} - {''}
        self.any_member = set().union(*self.members.values())
        self.everywhere |= self.outside

    def of_class(self, d):
        """Its members, those of its own classes, and those of what it derives from."""
        found = set(self.members[d.name]) | d.parameters | set(d.bases)
        for inner in d.each():
            found |= {inner.name, *inner.plain}
        for base in d.bases:
            found |= self.members[base]
        return found

    def near(self, d):
        """What a comment on `d` may name besides what is known everywhere: its parameters, its class's members, and so on."""
        known = {d.name, *d.plain, *d.parameters}
        if d.kind in ('class', 'enum'):
            known |= self.of_class(d)
            for inner in d.each():
                known |= inner.parameters
        if d.kind == 'concept':  # and what the concepts that it is made of require
            known |= d.body
            for part in (d.body | set(d.plain)) & self.concepts.keys():
                known |= self.concepts[part].body | self.concepts[part].parameters
        if d.kind == 'other':  # the members of its type
            for word in d.plain:
                known |= self.members.get(word, set())
        for outer in d.classes():
            known |= self.of_class(outer)
        return known

    def unknown(self, code, d, inside, more):
        """The names in `code` that a comment on `d`, or inside of it, may not use because nothing there has them.

        A function's comment has to say whose a member of another class is. Otherwise the old name of a renamed parameter
        would pass, because some class has a member of that name."""
        of_function = d is not None and d.kind == 'function'
        known = more | (self.outside if of_function and not inside else self.everywhere)
        called = set()
        if d is not None:
            known = known | self.near(d) | (d.body if inside else set())
            for function, arguments in re.findall(r'(\w+)\(([^()]*)\)', code):
                words = set(re.findall(r'\w+', arguments))
                if function in d.parameters:  # arguments of a call: they have the names that the caller gives them
                    called |= words
                elif function != d.name:
                    called |= words & self.parameters[function]
                    for concept in self.concepts.values():
                        if function in concept.body:
                            called |= words & (concept.body | concept.parameters)
        formula = not of_function and not code.isidentifier()  # a formula has letters of its own
        for before, name in re.findall(r'(\.|->|::|)\s*\b([A-Za-z_]\w*)', re.sub(r'"[^"]*"', '', code)):
            if before and name in self.any_member or formula and len(name) == 1 or re.fullmatch(r'\w_\w?', name):
                continue
            if name not in known and name not in called:
                yield name
