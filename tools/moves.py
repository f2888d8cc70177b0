"""Moves and folds the files of the package, as `moves.txt` beside it says, and rewrites all that names them.

    python tools/moves.py            on a clean checkout; then read `git diff`, run the checks and commit

What is rewritten: imports anywhere, dotted names and paths in strings, comments and Markdown, the entries of
`tests/faults.py`. Identifiers keep their names, unless a fold would put two things under one name. Lines of
the table; paths stand below the root of the repository:

    move OLD -> NEW             a file gets a new path
    fold OLD -> NEW             a file becomes a part of NEW, behind the files whose names it needs on import
    name OLD:a -> b             `a` of OLD is called `b`: the file it is folded into has an `a` already
    title NEW = TEXT            first line of the docstring of a file that others were folded into
    package FOLDER = TEXT       docstring of a new folder
    folder OLD/ -> NEW/         files below OLD that no line names
    sub FILE = OLD => NEW       a text that stands once in FILE (after the moves) and is replaced
"""

import ast
import builtins
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_suffix(".txt")
PYTHON = ("grainline", "tests", "benchmarks")
TEXTS = ("*.md", "*.toml", "Makefile", ".ci/run", "*.yaml")
LEFT_AS_IT_IS = ("docs/LOG.md", "CHANGELOG.md", "docs/layout.md")  # history, and a page that is written anew
WIDTH = 110
DOTTED = re.compile(r"\bgrainline(?:\.[a-zA-Z_]\w*)+")
PATH = re.compile(r"(?<![\w./-])((?:grainline/)?(?:[a-z_0-9]+/)+[a-z_0-9]+\.py)\b")
SHORT = re.compile(r"(?<=`)(?:nn|losses|methods|encoders|evaluate|viz|web)(?:\.[a-zA-Z_]\w*)+")
BARE = re.compile(r"(?<![\w./-])([a-z_0-9]+\.py)\b")

Identity = tuple[str, str]  # module and name before the moves; a module by itself has no name


# ---- The table


@dataclass
class Plan:
    """What the table says."""

    moves: dict[str, str] = field(default_factory=dict)
    folds: dict[str, str] = field(default_factory=dict)
    names: dict[Identity, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    folders: list[tuple[str, str]] = field(default_factory=list)
    subs: list[tuple[str, str, str]] = field(default_factory=list)

    def home(self, path: str) -> str:
        """Where a file stands after the moves."""
        known = self.moves.get(path) or self.folds.get(path)
        if known:
            return known
        for old, new in self.folders:
            if path.startswith(old):
                return new + path.removeprefix(old)
        return path


def read_table(files: set[str]) -> Plan:
    plan = Plan()
    for line in TABLE.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if not line.strip() or kind == "#":
            continue
        if kind in ("title", "package"):
            where, text = rest.split(" = ", 1)
            (plan.titles if kind == "title" else plan.packages)[where.strip()] = text.strip()
        elif kind == "sub":
            where, text = rest.split(" = ", 1)
            old, new = (part.encode().decode("unicode_escape") for part in text.split(" => "))
            plan.subs.append((where, old, new))
        else:
            old, new = (part.strip() for part in rest.split(" -> "))
            _read_pair(plan, kind, old, new, files)
    return plan


def _read_pair(plan: Plan, kind: str, old: str, new: str, files: set[str]) -> None:
    if kind == "name":
        path, _, name = old.rpartition(":")
        plan.names[module_of(path), name] = new
    elif kind == "folder":
        plan.folders.append((old, new))
    elif old not in files:
        print(f"not there, left out: {kind} {old} -> {new}")
    else:
        {"move": plan.moves, "fold": plan.folds}[kind][old] = new


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# ---- Names and their scopes


@dataclass
class Scope:
    """A module, class, function or comprehension, and the names bound in it."""

    parent: "Scope | None"
    kind: str
    bound: set[str] = field(default_factory=set)
    outward: set[str] = field(default_factory=set)  # names declared global or nonlocal

    def owner(self, name: str) -> "Scope":
        """The scope that a name means when it is used here."""
        scope: Scope = self
        while scope.parent is not None:
            if name in scope.bound and name not in scope.outward and (scope is self or scope.kind != "class"):
                return scope
            scope = scope.parent
        return scope


class Names(ast.NodeVisitor):
    """All uses of names in a file: (node, name, scope it is used in)."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope(None, "module")
        self.scope = self.module
        self.uses: list[tuple[ast.AST, str, Scope]] = []
        self.imports: list[tuple[ast.Import | ast.ImportFrom, Scope]] = []
        self.visit(tree)

    def words(self) -> set[str]:
        """All names that are used or bound anywhere in the file."""
        scopes = [scope for _, _, scope in self.uses]
        return {name for _, name, _ in self.uses}.union(*(scope.bound for scope in scopes))

    def bind(self, name: str) -> None:
        self.scope.bound.add(name)

    def inside(self, kind: str, nodes: Iterable[ast.AST], names: Iterable[str] = ()) -> None:
        self.scope = Scope(self.scope, kind, set(names))
        for node in nodes:
            self.visit(node)
        assert self.scope.parent is not None
        self.scope = self.scope.parent

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bind(node.id)
        self.uses.append((node, node.id, self.scope))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        scope = self.scope
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        scope.bound.add(node.target.id)
        self.uses.append((node.target, node.target.id, scope))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bind(node.name)
        self.uses.append((node, node.name, self.scope))
        args = node.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        every += [a for a in (args.vararg, args.kwarg) if a]
        outside = [*node.decorator_list, *args.defaults, *(d for d in args.kw_defaults if d)]
        outside += [a.annotation for a in every if a.annotation] + ([node.returns] if node.returns else [])
        for part in outside:
            self.visit(part)
        parameters = [*getattr(node, "type_params", []), *node.body]
        self.inside("function", parameters, (a.arg for a in every))

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        args = node.args
        for part in [*args.defaults, *(d for d in args.kw_defaults if d)]:
            self.visit(part)
        every = [
            *args.posonlyargs,
            *args.args,
            *args.kwonlyargs,
            *(a for a in (args.vararg, args.kwarg) if a),
        ]
        self.inside("function", [node.body], (a.arg for a in every))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bind(node.name)
        self.uses.append((node, node.name, self.scope))
        for part in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(part)
        self.inside("class", [*getattr(node, "type_params", []), *node.body])

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        parts: list[ast.AST] = []
        for number, generator in enumerate(node.generators):
            parts += [generator.target, *([] if number == 0 else [generator.iter]), *generator.ifs]
        parts += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.inside("comprehension", parts)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.bind(node.name)
        self.generic_visit(node)

    def _captured(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.bind(node.name)
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = _captured

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.bind(node.rest)
        self.generic_visit(node)

    def _outward(self, node: ast.Global | ast.Nonlocal) -> None:
        self.scope.outward |= set(node.names)

    visit_Global = visit_Nonlocal = _outward

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.imports.append((node, self.scope))
        for alias in node.names:
            self.bind(alias.asname or alias.name.split(".")[0])

    visit_Import = visit_ImportFrom = _import


# ---- Files


@dataclass
class File:
    """A Python file before the moves."""

    path: str
    text: str
    new_path: str

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)
        self.names = Names(self.tree)
        self.module = module_of(self.path)
        self.new_module = module_of(self.new_path)
        self.lines = [0]
        for line in self.text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.renamed: dict[str, str] = {}  # identifiers that got another name, anywhere in the file

    def at(self, line: int, column: int) -> int:
        """Place in the text; columns of ast count bytes."""
        start = self.lines[line - 1]
        text = self.text[start : self.lines[line]]
        return start + len(text.encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        place = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self.at(*place[:2]), self.at(*place[2:])

    def name_span(self, node: ast.AST, name: str) -> tuple[int, int]:
        """Where the name stands in a use of it: behind `def` and `class` in definitions."""
        start, end = self.span(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            start += (self.text[start:].startswith("async ") and 6) + (
                3 if "def " in self.text[start : start + 10] else 5
            )
            start = self.text.index(name, start)
            end = start + len(name)
        assert self.text[start:end] == name, (self.path, name, self.text[start:end])
        return start, end


@dataclass
class House:
    """All files of the package and where they go."""

    plan: Plan
    files: dict[str, File]  # by module, those of the package

    def __post_init__(self) -> None:
        self.known: dict[str, dict[str, Identity]] = {}
        self.renames: dict[Identity, str] = {}  # names of modules (definitions and imports) that change
        self.groups: dict[str, list[File]] = {}
        for file in self.files.values():
            self.groups.setdefault(file.new_path, []).append(file)
        for path, group in self.groups.items():
            bases = [file for file in group if file.path not in self.plan.folds]
            assert len(bases) == 1, f"{path} is made of {[file.path for file in bases]}"
            order = list(self.plan.folds)
            group.sort(key=lambda file: order.index(file.path) if file.path in self.plan.folds else -1)
            if len(group) > 1:
                self._settle(group)

    def new(self, module: str) -> str:
        return self.files[module].new_module if module in self.files else module

    def identity(self, module: str, name: str) -> Identity:
        """What `from module import name` means: where it is defined."""
        if f"{module}.{name}" in self.files:
            return f"{module}.{name}", ""
        if module in self.files:
            found = self._bindings(self.files[module]).get(name)
            if found is not None:
                return found
        return module, name

    def _bindings(self, file: File) -> dict[str, Identity]:
        """Names of the module level and what they are."""
        if file.module in self.known:
            return self.known[file.module]
        found: dict[str, Identity] = {}
        self.known[file.module] = found
        for name in file.names.module.bound:
            found[name] = (file.module, name)
        for node, scope in file.names.imports:
            if scope is not file.names.module:
                continue
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                if isinstance(node, ast.Import):
                    found[local] = (alias.name if alias.asname else local, "")
                elif (node.module, alias.name) != (file.module, local):
                    found[local] = self.identity(node.module or "", alias.name)
        return found

    def _settle(self, group: list[File]) -> None:
        """Find names that would stand for two things in one file, and give the later one another name."""
        taken: dict[str, Identity] = {}
        for file in group:
            for name, what in sorted(self._bindings(file).items()):
                wanted = self.plan.names.get((file.module, name), name)
                if wanted != name or taken.get(wanted, what) != what:
                    if wanted == name:
                        wanted = self._other_name(file, name)
                        print(
                            f"name {file.path}:{name} -> {wanted}   (chosen: two things in {file.new_path})"
                        )
                    self.renames[file.module, name] = wanted
                if hasattr(builtins, wanted) and what == (file.module, name) and len(group) > 1:
                    print(f"careful: {wanted} of {file.path} hides a builtin in {file.new_path}")
                assert taken.get(wanted, what) == what, (file.path, name, wanted)
                taken[wanted] = what

    def _other_name(self, file: File, name: str) -> str:
        own = file.module.rpartition(".")[2]
        bare = name.lstrip("_")
        mark = own.upper() if bare.isupper() else own.title().replace("_", "") if bare[0].isupper() else own
        return (
            name[: len(name) - len(bare)]
            + mark
            + ("_" if not bare[0].isupper() or bare.isupper() else "")
            + bare
        )


# ---- Rewriting one file


class Rewriter:
    """Edits of one file: imports, names, strings, paths."""

    def __init__(self, house: House, file: File) -> None:
        self.house, self.file = house, file
        self.edits: list[tuple[int, int, str]] = []

    def text(self) -> str:
        file = self.file
        renames: dict[tuple[int, str], str] = {}  # (id of scope, name) to new name
        for (module, name), new in self.house.renames.items():
            if module == file.module and name in file.names.module.bound:
                renames[id(file.names.module), name] = new
        opened: dict[tuple[int, str], str] = {}  # names of modules that are now this very file
        for node, scope in file.names.imports:
            self._import(node, scope, renames, opened)
        self._attributes(opened)
        for node, name, scope in file.names.uses:
            owner = scope.owner(name)
            new = renames.get((id(owner), name))
            if new and not any(start <= file.name_span(node, name)[0] < end for start, end, _ in self.edits):
                self.edits.append((*file.name_span(node, name), new))
                file.renamed[name] = new
        self._patches()
        return self._applied()

    def _import(
        self,
        node: ast.Import | ast.ImportFrom,
        scope: Scope,
        renames: dict[tuple[int, str], str],
        opened: dict[tuple[int, str], str],
    ) -> None:
        if isinstance(node, ast.Import):
            if not any(alias.name.startswith("grainline.") for alias in node.names):
                return
            lines = [
                f"import {self.house.new(a.name)}" + (f" as {a.asname}" if a.asname else "")
                for a in node.names
            ]
        elif node.level == 0 and (node.module or "").split(".")[0] == "grainline":
            lines = []
            for alias in node.names:
                lines += self._from(node.module or "", alias, scope, renames, opened)
        else:
            return
        start, end = self.file.span(node)
        indent = " " * node.col_offset
        whole = ("\n" + indent).join(lines)
        if not lines:  # drop the line
            while end < len(self.file.text) and self.file.text[end] != "\n":
                end += 1
            start, end, whole = start - node.col_offset, end + 1, ""
        self.edits.append((start, end, whole))

    def _from(
        self,
        module: str,
        alias: ast.alias,
        scope: Scope,
        renames: dict[tuple[int, str], str],
        opened: dict[tuple[int, str], str],
    ) -> list[str]:
        house, file = self.house, self.file
        local = alias.asname or alias.name
        submodule = f"{module}.{alias.name}"
        if submodule in house.files:
            new = house.new(submodule)
            if new == file.new_module:
                opened[id(scope), local] = submodule
                return []
            parent, _, base = new.rpartition(".")
            shown = base if alias.asname is None else alias.asname
        else:
            new = parent = house.new(module)
            base = house.renames.get((module, alias.name), alias.name)
            shown = local if alias.asname else base
            if new == file.new_module and module != file.module:
                if scope is not file.names.module:
                    print(f"careful: {file.path} took {module} late, and now they are one file")
                if base != local:
                    renames[id(scope), local] = base
                return []
        wish = house.renames.get((file.module, local)) if scope is file.names.module else None
        if wish:
            shown = wish
        if shown != local:
            if wish or shown not in file.names.words():
                renames[id(scope), local] = shown
            else:
                shown = local
        return [f"from {parent} import {base}" + (f" as {shown}" if shown != base else "")]

    def _attributes(self, opened: dict[tuple[int, str], str]) -> None:
        """`module.x` becomes `x` where the module is now this very file."""
        file = self.file
        scopes = {id(node): scope for node, _, scope in file.names.uses}
        for node in ast.walk(file.tree) if opened else ():
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
                continue
            scope = scopes[id(node.value)]
            module = opened.get((id(scope.owner(node.value.id)), node.value.id))
            if module is None:
                continue
            new = self.house.renames.get((module, node.attr), node.attr)
            shadow = scope.owner(new)
            assert shadow is file.names.module, f"{file.path}:{node.lineno}: {new} is another thing here"
            self.edits.append((*file.span(node), new))
            file.renamed[f"{node.value.id}.{node.attr}"] = new

    def _modules(self) -> dict[tuple[int, str], str]:
        """Modules of the package by the scope and the name under which this file has them."""
        found = {}
        for node, scope in self.file.names.imports:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if f"{node.module}.{alias.name}" in self.house.files:
                        found[id(scope), alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    def _patches(self) -> None:
        """`setattr(module, "name", ...)` and `module.name` where the name has changed."""
        file, modules = self.file, self._modules()
        scopes = {id(node): scope for node, _, scope in file.names.uses}

        def named(node: ast.AST) -> str | None:
            if not isinstance(node, ast.Name):
                return None
            return modules.get((id(scopes[id(node)].owner(node.id)), node.id))

        for node in ast.walk(file.tree) if modules else ():
            if isinstance(node, ast.Attribute) and (module := named(node.value)):
                self._attribute(node, module)
            elif isinstance(node, ast.Call) and len(node.args) > 1 and (module := named(node.args[0])):
                value = node.args[1]
                if isinstance(value, ast.Constant) and (module, value.value) in self.house.renames:
                    new = self.house.renames[module, str(value.value)]
                    self.edits.append((*file.span(value), f'"{new}"'))

    def _attribute(self, node: ast.Attribute, module: str) -> None:
        new = self.house.renames.get((module, node.attr))
        if new and self.house.new(module) != self.file.new_module:
            end = self.file.span(node)[1]
            self.edits.append((end - len(node.attr), end, new))

    def _applied(self) -> str:
        file = self.file
        out, place = "", 0
        for start, end, new in sorted(self.edits):
            assert start >= place, (file.path, file.text[start:end])
            out += words(self.house, file.text[place:start], file.path) + new
            place = end
        return out + words(self.house, file.text[place:], file.path)


def words(house: House, text: str, path: str) -> str:
    """Dotted names and paths of files in any text."""
    text = SHORT.sub(lambda match: _dotted(house, f"grainline.{match[0]}").removeprefix("grainline."), text)
    text = DOTTED.sub(lambda match: _dotted(house, match[0]), text)
    text = PATH.sub(lambda match: _placed(house, match[0]), text)
    return (
        BARE.sub(lambda match: _sibling(house, match[0], path), text)
        if path.startswith("grainline/")
        else text
    )


def _dotted(house: House, name: str) -> str:
    """grainline.a.b.name as it is after the moves."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        module = ".".join(parts[:end])
        if module in house.files:
            rest = parts[end:]
            if rest:
                rest[0] = house.renames.get((module, rest[0]), rest[0])
            return ".".join([house.new(module), *rest])
    return name


def _placed(house: House, path: str) -> str:
    """grainline/a/b.py or a/b.py."""
    short = not path.startswith("grainline/")
    file = house.files.get(module_of(f"grainline/{path}" if short else path))
    if file is None:
        return path
    return file.new_path.removeprefix("grainline/") if short else file.new_path


def _sibling(house: House, name: str, path: str) -> str:
    """b.py, said in a file of the same folder."""
    file = house.files.get(module_of(f"{path.rpartition('/')[0]}/{name}"))
    if file is None:
        return name
    new, own = file.new_path, house.plan.home(path)
    same = new.rpartition("/")[0] == own.rpartition("/")[0]
    return new.rpartition("/")[2] if same else new.removeprefix("grainline/")


# ---- Folding


def folded(house: House, group: list[File], texts: dict[str, str]) -> str:
    """One file out of several: imports first, then the bodies, those that others need before them."""
    base = group[0]
    parts = {file.module: _split(texts[file.path]) for file in group}
    doc = parts[base.module][0]
    title = house.plan.titles.get(base.new_path)
    if title:
        first, _, rest = doc.partition("\n\n")
        if title.split()[:3] == first.split()[:3] and ". " not in first:  # the same in fewer words
            doc = rest or title
    if title and doc != title:
        doc = f"{title}\n\n{doc}" if "\n" in doc else f"{title}\n\n{doc}\n"
    out = [f'"""{doc}"""\n']
    for file in group:
        out += parts[file.module][1]
    for file in _ordered(group):
        about, _, body = parts[file.module]
        if ">>>" in about and file is not base:
            print(f"careful: the opening docstring of {file.path} has a doctest")
        if file is not base:
            out.append("\n\n" + _comment(about) + "\n")
        out.append("\n\n" + body.strip("\n") + "\n")
    return "\n".join(out)


def _ordered(group: list[File]) -> list[File]:
    modules = {file.module for file in group}
    needs: dict[str, set[str]] = {}
    for file in group:
        needs[file.module] = set()
        for node, scope in file.names.imports:
            if scope is file.names.module and isinstance(node, ast.ImportFrom):
                named = {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
                needs[file.module] |= named & modules - {file.module}
    out: list[File] = []
    left = list(group)
    while left:
        ready = [file for file in left if not needs[file.module] & {other.module for other in left}]
        assert ready, f"a circle: {[file.path for file in left]}"
        out.append(ready[0])
        left.remove(ready[0])
    return out


def _split(text: str) -> tuple[str, list[str], str]:
    """Docstring, imports at the top level, and the rest of a file."""
    tree = ast.parse(text)
    lines = text.splitlines()
    first = tree.body[0]
    assert isinstance(first, ast.Expr)
    doc = ast.get_source_segment(text, first) or ""
    gone = set(range(first.lineno - 1, first.end_lineno or 0))
    imports = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            block = range(node.lineno - 1, node.end_lineno or 0)
            imports.append("\n".join(lines[number] for number in block))
            gone |= set(block)
    rest = "\n".join(line for number, line in enumerate(lines) if number not in gone)
    return doc.removeprefix('"""').removesuffix('"""'), imports, rest


def wrapped(text: str) -> str:
    """A file with the paragraphs of its opening docstring filled anew where a line is too long."""
    doc = ast.get_source_segment(text, ast.parse(text).body[0]) or ""
    if all(len(line) <= WIDTH for line in doc.splitlines()):
        return text
    out = []
    for paragraph in doc.split("\n\n"):
        lines = paragraph.split("\n")
        indents = {len(line) - len(line.lstrip()) for line in lines if line.strip()}
        if all(len(line) <= WIDTH for line in lines):
            out.append(paragraph)
        elif len(indents) == 1:
            end = "\n" * (lines[-1] == "") if len(lines) > 1 else ""
            out.append(_filled(" ".join(map(str.strip, lines)).strip(), " " * indents.pop()) + end)
        else:
            rows = [_filled(line.strip(), " " * (len(line) - len(line.lstrip())), "  ") for line in lines]
            out.append("\n".join(rows))
    return text.replace(doc, "\n\n".join(out), 1)


def _filled(text: str, indent: str, further: str = "") -> str:
    if not further:
        return textwrap.fill(
            text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
        )
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + further, break_long_words=False
    )


def _comment(doc: str) -> str:
    out = []
    first, _, rest = doc.strip().partition("\n")
    for paragraph in f"{first}\n{textwrap.dedent(rest)}".split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if any(len(line) > WIDTH - 2 for line in lines):
            indent = " " * (len(lines[0]) - len(lines[0].lstrip()))
            lines = textwrap.wrap(" ".join(map(str.strip, lines)), WIDTH - 2, initial_indent=indent)
        out += [*lines, ""]
    out.pop()
    return "\n".join(f"# {line}".rstrip() for line in out)


# ---- Faults, texts and the whole


def faults(house: House, text: str) -> str:
    """The entries of tests/faults.py with their files, tests and texts as they are after the moves."""
    file = File("tests/faults.py", text, "tests/faults.py")
    edits: list[tuple[int, int, str]] = []
    for node in ast.walk(file.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fault"):
            continue
        where, tests, _, old, new = (ast.literal_eval(arg) for arg in node.args)
        origin = house.files.get(module_of("grainline/" + where))
        if origin is None:
            continue  # a page or a script, which stays; `mutants.py --dry` tells
        now = [origin.new_path.removeprefix("grainline/"), words(house, tests, "tests/faults.py")]
        now += _moved_fault(origin, house, old, new)
        was = [where, tests, old, new]
        for arg, before, after in zip([*node.args[:2], *node.args[3:]], was, now, strict=True):
            if before != after:
                edits.append((*file.span(arg), _literal(after)))
    out, place = "", 0
    for start, end, literal in sorted(edits):
        out += text[place:start] + literal
        place = end
    return "\n".join(row for line in (out + text[place:]).split("\n") for row in _rows(line))


def _rows(line: str) -> list[str]:
    """A line of faults.py, broken behind an argument where it is too long."""
    if len(line) <= WIDTH or '", "' not in line:
        return [line]
    head, _, tail = line.rpartition('", "')
    return [*_rows(head + '",'), *_rows(" " * 10 + '"' + tail)]


def _moved_fault(origin: File, house: House, old: str, new: str) -> tuple[str, str]:
    """The texts of a fault after the moves, with as many lines before as make the old one unique."""
    final = (ROOT / origin.new_path).read_text()

    def turn(text: str) -> str:
        return _renamed(origin, house, text)

    if final.count(turn(old)) == 1:
        return turn(old), turn(new)
    if origin.text.count(old) == 1:
        place = origin.text.index(old)
        start, end = origin.text.rfind("\n", 0, place) + 1, place + len(old)
        for _ in range(12):
            longer = turn(origin.text[start:end])
            if final.count(longer) == 1:
                return longer, turn(origin.text[start:place] + new)
            start = origin.text.rfind("\n", 0, max(0, start - 1)) + 1
    print(f"faults.py: {origin.path}: {final.count(turn(old))} times in {origin.new_path}: {old!r}")
    return turn(old), turn(new)


def _renamed(origin: File, house: House, text: str) -> str:
    text = words(house, text, origin.path)
    for name, other in origin.renamed.items():
        text = re.sub(rf"(?<![\w.]){re.escape(name)}\b(?!\s*=[^=])", other, text)
    return text


def _literal(text: str) -> str:
    """A string as it stands in faults.py: quoted, a piece a line where it is long."""
    pieces = text.splitlines(keepends=True) or [""]
    rows: list[str] = []
    for piece in pieces:
        while len(json.dumps(piece, ensure_ascii=False)) > WIDTH - 14:
            cut = piece.rfind(" ", 0, 80) + 1 or 80
            rows.append(piece[:cut])
            piece = piece[cut:]
        rows.append(piece)
    return ("\n" + " " * 10).join(json.dumps(row, ensure_ascii=False) for row in rows)


def tracked(*patterns: str) -> list[str]:
    run = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return run.stdout.splitlines()


def python_files() -> Iterator[str]:
    for folder in PYTHON:
        yield from tracked(f"{folder}/*.py")


def main() -> None:
    paths = list(python_files())
    plan = read_table(set(paths))
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}
    own = {p: File(p, text, plan.home(p)) for p, text in sources.items() if p.startswith("grainline/")}
    house = House(plan, {file.module: file for file in own.values()})
    texts = {path: Rewriter(house, file).text() for path, file in own.items()}
    final = {new: folded(house, group, texts) if len(group) > 1 else texts[group[0].path]
             for new, group in house.groups.items()}  # fmt: skip
    for path, text in sources.items():
        if path not in own and path != "tests/faults.py":
            final[path] = Rewriter(house, File(path, text, path)).text()
    for path in own:
        (ROOT / path).unlink()
    for folder, text in plan.packages.items():
        final.setdefault(f"{folder}__init__.py", f'"""{text}"""\n')
    for path, text in final.items():
        text = wrapped(text) if path.startswith("grainline/") else text
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
    for path in tracked(*TEXTS):
        if path not in LEFT_AS_IT_IS:
            text = (ROOT / path).read_text(encoding="utf-8")
            (ROOT / path).write_text(words(house, text, path), encoding="utf-8")
    for path, old, new in plan.subs:
        text = (ROOT / path).read_text(encoding="utf-8")
        if text.count(old) != 1:
            print(f"sub: {text.count(old)} times in {path}: {old!r}")
        (ROOT / path).write_text(text.replace(old, new), encoding="utf-8")
    ruff = str(Path(sys.executable).with_name("ruff"))
    subprocess.run([ruff, "check", "-q", "--fix", "--select", "I", "."], cwd=ROOT, check=False)
    subprocess.run([ruff, "format", "-q", "."], cwd=ROOT, check=True)
    (ROOT / "tests/faults.py").write_text(faults(house, sources["tests/faults.py"]), encoding="utf-8")
    _clear_folders()
    write_maps()
    subprocess.run(["git", "add", "-A"], cwd=ROOT, check=True)


def map_of(folder: Path) -> list[str]:
    """One line for each file of a folder: its name and the first line of its docstring."""
    shown = {}
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("*/__init__.py")):
        if path != folder / "__init__.py":
            name = f"{path.parent.name}/" if path.name == "__init__.py" else path.stem
            shown[name] = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    width = max(map(len, shown), default=0) + 2
    out = []
    for name, text in shown.items():
        first = re.split(r"(?<=\w[.])\s", " ".join(text.split()))[0]
        gap = " " * (4 + width)
        out += textwrap.wrap(
            first, WIDTH, initial_indent=f"    {name}".ljust(len(gap)), subsequent_indent=gap
        )
    return out


def write_maps() -> None:
    """The docstring of every folder ends with a map of its files."""
    for path in sorted((ROOT / "grainline").glob("*/**/__init__.py"), reverse=True):
        text, lines = path.read_text(encoding="utf-8"), map_of(path.parent)
        doc = ast.get_source_segment(text, ast.parse(text).body[0]) or ""
        if lines and lines[0] not in text:
            body = doc.removesuffix('"""').rstrip()
            new = body + "\n\n" + "\n".join(lines) + '\n"""'
            path.write_text(text.replace(doc, new, 1), encoding="utf-8")


def _clear_folders() -> None:
    """Folders that hold nothing but caches go."""
    for folder in sorted((ROOT / "grainline").rglob("*/"), reverse=True):
        if folder.is_dir() and not any(
            p.is_file() and "__pycache__" not in p.parts for p in folder.rglob("*")
        ):
            subprocess.run(["rm", "-r", str(folder)], check=True)


if __name__ == "__main__":
    main()
