# ruff: noqa
"""Renames the identifiers of a checkout as `tests/names.txt` says. Temporary: it goes once it has been used.

    python tools/rename.py --check      what it would do: entries that match nothing, clashes, open places
    python tools/rename.py              rewrite the working tree

Names are resolved by Python's scopes, attributes and keywords by mypy's types, so two things of one name are
kept apart. Nothing depends on where a file lies: an entry names the end of a dotted name, or, after an @,
something else that its module defines. See the head of `tests/names.txt` for the table's form.
"""

import argparse
import ast
import glob
import hashlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

from mypy import build
from mypy.modulefinder import BuildSource
from mypy.nodes import CallExpr, ClassDef, MemberExpr, Node, SuperExpr, TypeInfo, Var
from mypy.options import Options
from mypy.types import (
    CallableType,
    Instance,
    Overloaded,
    TupleType,
    TypedDictType,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)

TOPS = ("grainline", "tests", "benchmarks")
PROSE = ("*.md", "docs/**/*.md", "grainline/**/*.js", "grainline/**/*.html", "grainline/**/*.css")
YAMLS = ("grainline/recipes/**/*.yaml",)
SKIP = {"tests/faults.py", "tests/names.txt", "tests/test_words.py", "tools/rename.py", "docs/LOG.md"}


TABLE = []

# ------------------------------------------------------------------ the table


class Entry:
    def __init__(self, kind, where, old, new, line):
        self.kind, self.where, self.old, self.new, self.line = kind, where, old, new, line
        self.hits = set()

    def __str__(self):
        return f"{self.kind} {self.where} {self.old} -> {self.new} (line {self.line})"


def read_table(path="tests/names.txt"):
    entries = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        parts = [] if line.startswith("#") else line.split()
        if not parts:
            continue
        if parts[0] in ("phrase", "code"):
            old, new = line.split(None, 1)[1].split(" => ")
            entries.append(Entry(parts[0], "-", old.strip(), new.strip(), number))
            continue
        if len(parts) != 4:
            raise SystemExit(f"names.txt line {number}: four fields, not {len(parts)}")
        entries.append(Entry(*parts, number))
    return entries


def word_rule(name, old, new):
    """`picture` to `image` inside an identifier or a sentence: both numbers, three cases."""
    for a, b in ((old, new), (old.capitalize(), new.capitalize()), (old.upper(), new.upper())):
        plural = "S" if a.isupper() else "s"
        name = re.sub(rf"(?<![A-Za-z]){a}({plural}|d)?(?![A-Za-z])", rf"{b}\1", name)
        if a[0].isupper() and not a.isupper():  # ByPicture, PictureSource
            name = re.sub(rf"(?<=[a-z]){a}(s|d)?(?![a-z])", rf"{b}\1", name)
            name = re.sub(rf"(?<![A-Za-z]){a}(s|d)?(?=[A-Z])", rf"{b}\1", name)
    return name


def prose_rule(text, words):
    for e in words:
        if not re.search(e.old, text, re.I):
            continue
        vowel = e.new[0] in "aeiou" and e.old[0] not in "aeiou"
        if vowel:
            text = re.sub(rf"\b([Aa]) (?={e.old}\b)", r"\1n ", text)
            text = re.sub(rf"\b([Aa])(\s*\n[ #*>]*)(?={e.old}\b)", r"\1n\2", text)
        text = word_rule(text, e.old, e.new)
    return text


# ------------------------------------------------------------------ files and scopes


class File:
    def __init__(self, path, module):
        self.path, self.module = path, module
        self.text = Path(path).read_text(encoding="utf-8")
        self.lines = self.text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.tree = ast.parse(self.text)
        self.uses = []  # (start, end, name, id, scope or None)
        self.edits = {}

    def at(self, line, col):
        text = self.lines[line - 1]
        if not text.isascii():
            col = len(text.encode()[:col].decode(errors="replace"))
        return self.starts[line - 1] + col

    def edit(self, start, end, new):
        if self.text[start:end] != new:
            old = self.edits.get((start, end))
            if old is not None and old != new:
                print(f"TWO EDITS {self.path}: {self.text[start:end]} -> {old}, {new}")
            self.edits[start, end] = new

    def result(self):
        out, last = [], 0
        for (start, end), new in sorted(self.edits.items()):
            if start < last:
                print(f"OVERLAP {self.path} at {start}: {self.text[start:end]!r}")
                continue
            out += [self.text[last:start], new]
            last = end
        return "".join([*out, self.text[last:]])

    def map_span(self, start, end):
        """The text of a span after the edits."""
        out, last = [], start
        for (s, e), new in sorted(self.edits.items()):
            if e <= start or s >= end:
                continue
            if s < start or e > end:
                print(f"CUT {self.path}: {self.text[start:end]!r} cuts {self.text[s:e]!r}")
                return None
            out += [self.text[last:s], new]
            last = e
        return "".join([*out, self.text[last:end]])


class Scope:
    def __init__(self, kind, qual, parent):
        self.kind, self.qual, self.parent = kind, qual, parent
        self.names = {}  # name -> id
        self.globals = set()

    def lookup(self, name, names=None):
        """The id that a name stands for here; None for a builtin or what star imports bring."""
        names = names or (lambda scope: scope.names)
        scope, first = self, True
        while scope is not None:
            if (scope.kind != "class" or first) and name in names(scope) and name not in scope.globals:
                return names(scope)[name]
            first = False
            scope = scope.parent
        return None


class Binder(ast.NodeVisitor):
    """The scopes of a file, and what each name in it is bound to."""

    def __init__(self, file, project):
        self.file, self.project = file, project
        self.scope = Scope("module", file.module, None)
        self.scopes = {file.tree: self.scope}
        self.visit(file.tree)

    def bind(self, name, ident=None):
        if name in self.scope.globals:
            return
        self.scope.names.setdefault(name, ident or f"{self.scope.qual}.{name}")

    def inside(self, kind, name, node):
        scope = Scope(kind, f"{self.scope.qual}.{name}", self.scope)
        self.scopes[node] = scope
        return scope

    def visit_FunctionDef(self, node):
        self.bind(node.name)
        for x in [*node.decorator_list, *node.args.defaults, *[d for d in node.args.kw_defaults if d]]:
            self.visit(x)
        scope = self.inside("function", node.name, node)
        outer, self.scope = self.scope, scope
        self.params(node.args)
        for x in node.body:
            self.visit(x)
        self.scope = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def params(self, args):
        for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
            if a is not None:
                self.bind(a.arg)

    def visit_Lambda(self, node):
        for x in [*node.args.defaults, *[d for d in node.args.kw_defaults if d]]:
            self.visit(x)
        outer, self.scope = self.scope, self.inside("function", "lambda", node)
        self.params(node.args)
        self.visit(node.body)
        self.scope = outer

    def visit_ClassDef(self, node):
        self.bind(node.name)
        for x in [*node.decorator_list, *node.bases, *[k.value for k in node.keywords]]:
            self.visit(x)
        outer, self.scope = self.scope, self.inside("class", node.name, node)
        for x in node.body:
            self.visit(x)
        self.scope = outer

    def comp(self, node):
        self.visit(node.generators[0].iter)
        outer = self.scope
        # One scope for Python; its names carry the function's dotted name, so that an entry reaches both.
        scope = Scope("comp", outer.qual, outer)
        self.scopes[node] = scope
        self.scope = scope
        for i, g in enumerate(node.generators):
            self.visit(g.target)
            if i:
                self.visit(g.iter)
            for c in g.ifs:
                self.visit(c)
        for x in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(x)
        self.scope = outer

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = comp

    def visit_Name(self, node):
        if not isinstance(node.ctx, ast.Load):
            self.bind(node.id)

    def visit_NamedExpr(self, node):
        scope = self.scope
        while scope.kind == "comp":
            scope = scope.parent
        inner, self.scope = self.scope, scope
        self.bind(node.target.id)
        self.scope = inner
        self.visit(node.value)

    def visit_Global(self, node):
        self.scope.globals.update(node.names)

    visit_Nonlocal = visit_Global

    def visit_ExceptHandler(self, node):
        if node.name:
            self.bind(node.name)
        self.generic_visit(node)

    def visit_Import(self, node):
        for a in node.names:
            if a.asname:
                self.bind(a.asname, f"module:{a.name}")
            else:
                top = a.name.split(".")[0]
                self.bind(top, f"module:{top}")

    def visit_ImportFrom(self, node):
        module = self.project.known(node.module or "")
        for a in node.names:
            full = f"{module}.{a.name}"
            ident = f"module:{full}" if full in self.project.modules else f"import:{module}:{a.name}"
            if a.asname and a.asname != a.name:
                self.bind(a.asname, f"alias:{self.scope.qual}.{a.asname}|{ident}")
            else:
                self.bind(a.name, ident)


# ------------------------------------------------------------------ the project


class Nodes:
    """mypy's nodes of a file by their place. Its visitors are compiled and cannot be extended."""

    SKIPPED = {"node", "info", "original_def", "corresponding_argument", "defn", "type", "expanded", "target"}

    def __init__(self, tree):
        self.members, self.calls, self.classes = {}, {}, {}
        self.fields, seen, todo = {}, set(), [tree]
        while todo:
            o = todo.pop()
            if isinstance(o, (list, tuple)):
                todo.extend(o)
                continue
            if not isinstance(o, (Node, ClassDef)) or id(o) in seen or isinstance(o, (TypeInfo, Var)):
                continue
            seen.add(id(o))
            key = o.line, o.column, o.end_line, o.end_column
            if isinstance(o, (MemberExpr, SuperExpr)):
                self.members[key] = o
            elif isinstance(o, CallExpr):
                self.calls[key] = o
            elif isinstance(o, ClassDef):
                self.classes[o.line] = o.info
            for name in self.names(type(o)):
                value = getattr(o, name, None)
                if isinstance(value, (Node, list, tuple)):
                    todo.append(value)

    def names(self, kind):
        if kind not in self.fields:
            own = [n for n in dir(kind) if not n.startswith("_") and n not in self.SKIPPED]
            self.fields[kind] = [n for n in own if type(getattr(kind, n)).__name__ == "getset_descriptor"]
        return self.fields[kind]


class Info:
    """What the later steps need of a class."""


class Project:
    def __init__(self):
        self.files, self.modules = [], {}
        sources = []
        for top in TOPS:
            for path in sorted(glob.glob(f"{top}/**/*.py", recursive=True)):
                if path in SKIP:
                    continue
                module = path[:-3].replace("/", ".").removesuffix(".__init__")
                if top != "grainline":
                    module = module.split(".", 1)[1]
                if module in self.modules:
                    module = "other_" + module
                file = File(path, module)
                self.files.append(file)
                self.modules[module] = file
                sources.append(BuildSource(path, module))
        options = Options()
        options.export_types = options.preserve_asts = options.check_untyped_defs = True
        options.ignore_errors = options.ignore_missing_imports = True
        options.incremental = False
        options.cache_dir = os.devnull
        options.follow_imports = "skip"
        options.mypy_path = [os.getcwd(), "tests", "benchmarks"]
        options.python_version = sys.version_info[:2]
        self.mypy = build.build(sources, options)
        self.parents = {}
        self.open = []  # what no type says
        self.infos = {}  # my class id -> TypeInfo
        self.mine = {}  # mypy's class name -> my class id
        for file in self.files:
            file.binder = Binder(file, self)
            file.nodes = Nodes(self.mypy.files[file.module])
        for file in self.files:
            self.classes(file)
        self.protocols()
        for file in self.files:
            Uses(file, self).visit(file.tree)

    # ids that belong together

    def root(self, ident):
        while ident in self.parents:
            ident = self.parents[ident]
        return ident

    def known(self, module):
        """Benchmarks are imported by two names."""
        short = module.removeprefix("benchmarks.")
        return short if module not in self.modules and short in self.modules else module

    def join(self, a, b):
        a, b = self.root(a), self.root(b)
        if a != b:
            self.parents[b] = a

    def chase(self, ident):
        """What an import brings in the end."""
        if ident is None:
            return None
        if ident.startswith("alias:"):
            return ident.split("|")[0]
        for _ in range(20):
            if not ident.startswith("import:"):
                return ident
            _, module, name = ident.split(":")
            if module not in self.modules:
                return None
            target = self.modules[module].binder.scope.names.get(name)
            if target is None:
                return f"{module}.{name}"
            if target.startswith("alias:"):
                return target.split("|")[0]
            ident = target
        return None

    # classes

    def classes(self, file):
        for node, scope in file.binder.scopes.items():
            if isinstance(node, ast.ClassDef):
                lines = [node.lineno, *[d.lineno for d in node.decorator_list]]
                info = next((file.nodes.classes[n] for n in lines if n in file.nodes.classes), None)
                if info is None:
                    continue
                self.infos[scope.qual] = info
                self.mine[info.fullname] = scope.qual

    def members(self, info):
        return {n for n in info.names if not n.startswith("__")}

    def plain(self):
        """Let go of mypy's objects, so that the rest can be kept in a file."""
        made = {}

        def of(info):
            if info.fullname not in made:
                made[info.fullname] = out = Info()
                out.fullname, out.names = info.fullname, set(info.names)
                out.mro = [of(b) if b is not info else out for b in info.mro]
            return made[info.fullname]

        self.infos = {k: of(v) for k, v in self.infos.items()}
        self.mypy = None
        for f in self.files:
            f.nodes = None

    def attribute(self, info, name):
        """The id of an attribute of a class: of the topmost class of ours that defines it."""
        owner = None
        for base in info.mro:
            if name in base.names and base.fullname in self.mine:
                owner = self.mine[base.fullname]
        return f"{owner}.{name}" if owner else None

    def protocols(self):
        ours = [i for i in self.infos.values()]
        for p in ours:
            if not p.is_protocol:
                continue
            names = {n for n in p.protocol_members if not n.startswith("__")}
            if not names:
                continue
            for c in ours:
                if c is p or p in c.mro:
                    continue
                if all(self.attribute(c, n) for n in names):
                    for n in names:
                        self.join(self.attribute(p, n), self.attribute(c, n))

    def of_type(self, type_, name):
        """The ids that an attribute of a value of this type may be; None where the type says nothing."""
        t = get_proper_type(type_)
        if isinstance(t, TupleType):
            t = t.partial_fallback
        if isinstance(t, TypeVarType):
            return self.of_type(t.upper_bound, name)
        if isinstance(t, UnionType):
            out, known = set(), False
            for x in t.items:
                got = self.of_type(x, name)
                known = known or got is not None
                out |= got or set()
            return out if known else None
        if isinstance(t, TypeType):
            return self.of_type(t.item, name)
        if isinstance(t, (CallableType, Overloaded)) and t.is_type_obj():
            return self.of_type(t.type_object() and Instance(t.type_object(), []), name)
        if isinstance(t, Instance):
            got = self.attribute(t.type, name)
            if got:
                return {got}
            return None if t.type.fallback_to_any and t.type.get(name) is None else set()
        if isinstance(t, TypedDictType):
            return set()
        if t is None or type(t).__name__ in ("AnyType", "UninhabitedType"):
            return None
        return set()


class Uses(ast.NodeVisitor):
    """Every place of a file where a name of ours stands."""

    def __init__(self, file, project):
        self.f, self.p = file, project
        self.scope = file.binder.scope
        self.fstring = None

    def use(self, start, name, ident, scope=None, role="name"):
        if ident is None or ident.startswith("module:"):
            if ident is None or role != "name":
                return
        end = start + len(name)
        if self.f.text[start:end] != name:
            if self.fstring is None:
                print(f"MISPLACED {self.f.path}: {name} is {self.f.text[start:end]!r}")
                return
            self.f.uses.append((*self.fstring, name, ident, scope, "f" + role))
            return
        self.f.uses.append((start, end, name, ident, scope, role))

    def where(self, node):
        return self.f.at(node.lineno, node.col_offset)

    def after(self, node, word):
        start = self.where(node)
        m = re.compile(rf"\b{word}\s+").search(self.f.text, start)
        return m.end()

    def resolve(self, name):
        return self.p.chase(self.scope.lookup(name))

    def own(self, ident):
        """An attribute's id for a name in the body of a class."""
        owner, _, name = ident.rpartition(".")
        info = self.p.infos.get(owner)
        return (self.p.attribute(info, name) or ident) if info is not None else ident

    def visit_JoinedStr(self, node):
        outer = self.fstring
        self.fstring = (self.where(node), self.f.at(node.end_lineno, node.end_col_offset))
        self.generic_visit(node)
        self.fstring = outer

    def visit_Name(self, node):
        ident = self.resolve(node.id)
        if ident is not None:
            self.use(self.where(node), node.id, self.own(ident), self.scope)

    def function(self, node):
        own = self.own(f"{self.scope.qual}.{node.name}")
        self.use(self.after(node, "def"), node.name, own, self.scope)
        for x in [*node.decorator_list, *node.args.defaults, *[d for d in node.args.kw_defaults if d]]:
            self.visit(x)
        self.notes(node.args)
        if node.returns:
            self.visit(node.returns)
        outer, self.scope = self.scope, self.f.binder.scopes[node]
        for a in self.params(node.args):
            ident = f"{self.scope.qual}.{a.arg}"
            if outer.kind == "class" and own != f"{outer.qual}.{node.name}":
                self.p.join(f"{own}.{a.arg}", ident)
            self.use(self.where(a), a.arg, ident, self.scope)
        for x in node.body:
            self.visit(x)
        self.scope = outer

    visit_FunctionDef = visit_AsyncFunctionDef = function

    def params(self, args):
        return [a for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg] if a]

    def notes(self, args):
        for a in self.params(args):
            if a.annotation:
                self.visit(a.annotation)

    def visit_Lambda(self, node):
        for x in [*node.args.defaults, *[d for d in node.args.kw_defaults if d]]:
            self.visit(x)
        outer, self.scope = self.scope, self.f.binder.scopes[node]
        for a in self.params(node.args):
            self.use(self.where(a), a.arg, f"{self.scope.qual}.{a.arg}", self.scope)
        self.visit(node.body)
        self.scope = outer

    def visit_ClassDef(self, node):
        self.use(self.after(node, "class"), node.name, self.own(f"{self.scope.qual}.{node.name}"), self.scope)
        for x in [*node.decorator_list, *node.bases, *[k.value for k in node.keywords]]:
            self.visit(x)
        outer, self.scope = self.scope, self.f.binder.scopes[node]
        for x in node.body:
            self.visit(x)
        self.scope = outer

    def comp(self, node):
        self.visit(node.generators[0].iter)
        outer, self.scope = self.scope, self.f.binder.scopes[node]
        for i, g in enumerate(node.generators):
            self.visit(g.target)
            if i:
                self.visit(g.iter)
            for c in g.ifs:
                self.visit(c)
        for x in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(x)
        self.scope = outer

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = comp

    def visit_ExceptHandler(self, node):
        if node.name:
            start = self.f.text.index(" as ", self.where(node)) + 4
            self.use(start, node.name, self.resolve(node.name), self.scope)
        self.generic_visit(node)

    def visit_Global(self, node):
        at = self.where(node)
        for name in node.names:
            m = re.compile(rf"\b{name}\b").search(self.f.text, at)
            self.use(m.start(), name, self.f.binder.scope.names.get(name) or self.scope.parent.lookup(name))

    visit_Nonlocal = visit_Global

    def visit_Assign(self, node):
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            for x in getattr(node.value, "elts", ()):
                if isinstance(x, ast.Constant):
                    start = self.f.text.find(x.value, self.where(x))
                    self.use(start, x.value, self.resolve(x.value), None, "attr")
            return
        self.generic_visit(node)

    def visit_ImportFrom(self, node):
        module = self.p.known(node.module or "")
        if module not in self.p.modules and not module.startswith("grainline"):
            return
        for a in node.names:
            full = f"{module}.{a.name}"
            ident = f"module:{full}" if full in self.p.modules else self.p.chase(f"import:{module}:{a.name}")
            if ident is not None and not ident.startswith("module:"):
                self.use(self.where(a), a.name, ident, None if a.asname else self.scope)
            if a.asname:
                end = self.f.at(a.end_lineno, a.end_col_offset)
                alias = self.p.chase(self.scope.names.get(a.asname))
                self.use(end - len(a.asname), a.asname, alias, self.scope)

    def key(self, node):
        return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset

    def visit_Attribute(self, node):
        ids = self.ids(node)
        end = self.f.at(node.end_lineno, node.end_col_offset)
        start = end - len(node.attr)
        if ids is None:
            self.use(start, node.attr, f"?.{node.attr}", None, "attr")
        else:
            self.spread(start, node.attr, ids)
        self.visit(node.value)

    def spread(self, start, name, ids):
        ids = sorted(ids)
        for other in ids[1:]:
            self.p.join(ids[0], other)
        if ids:
            self.use(start, name, ids[0], None, "attr")

    def ids(self, node):
        """The ids of an attribute; an empty set: not ours; None: not known."""
        module = self.module(node.value)
        if module is not None:
            full = f"{module}.{node.attr}"
            if full in self.p.modules or module not in self.p.modules:
                return set()
            got = self.p.chase(f"import:{module}:{node.attr}")
            return {got} if got and not got.startswith("module:") else set()
        o = self.f.nodes.members.get(self.key(node))
        if isinstance(o, SuperExpr):
            if o.info is None:
                return None
            got = [self.p.attribute(b, node.attr) for b in o.info.mro[1:]]
            return {g for g in got if g}
        if isinstance(o, MemberExpr):
            t = self.p.mypy.types.get(o.expr)
            return self.p.of_type(t, node.attr) if t is not None else None
        if isinstance(node.value, ast.Name):
            ident = self.resolve(node.value.id)
            info = self.p.infos.get(ident or "")
            if info is not None:
                got = self.p.attribute(info, node.attr)
                return {got} if got else set()
        return None

    def module(self, node):
        if isinstance(node, ast.Name):
            ident = self.resolve(node.id) or ""
            if ident.startswith("alias:"):
                raw = self.scope.lookup(node.id) or ""
                ident = raw.split("|")[-1]
            return ident.removeprefix("module:") if ident.startswith("module:") else None
        if isinstance(node, ast.Attribute):
            above = self.module(node.value)
            full = f"{above}.{node.attr}"
            if above is not None and (full in self.p.modules or above not in self.p.modules):
                return full
        return None

    def target(self, node):
        """The id of the class or function that an expression is."""
        if isinstance(node, ast.Name):
            ident = self.resolve(node.id)
            if ident and ident.startswith("alias:"):
                raw = self.scope.lookup(node.id) or ""
                return self.p.chase(raw.split("|")[-1])
            return ident
        if isinstance(node, ast.Attribute):
            ids = self.ids(node)
            return next(iter(ids)) if ids else None
        return None

    def visit_Call(self, node):
        self.visit(node.func)
        for x in node.args:
            self.visit(x)
        named = [k for k in node.keywords if k.arg]
        for k in node.keywords:
            self.visit(k.value)
        func = node.func
        name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
        if name in ("getattr", "hasattr", "setattr", "delattr") and len(node.args) >= 2:
            self.by_string(node.args[0], node.args[1])
        if not named:
            return
        o = self.f.nodes.calls.get(self.key(node))
        of = None
        if name == "partial" and node.args:
            of = self.target(node.args[0])
        elif name == "replace" and node.args and isinstance(o, CallExpr):
            self.fields(named, self.p.mypy.types.get(o.args[0]))
            return
        elif name == "_replace" and isinstance(o, CallExpr) and isinstance(o.callee, MemberExpr):
            self.fields(named, self.p.mypy.types.get(o.callee.expr))
            return
        else:
            of = self.target(func)
        t = get_proper_type(self.p.mypy.types.get(o.callee)) if isinstance(o, CallExpr) else None
        if isinstance(t, (CallableType, Overloaded)) and t.is_type_obj():
            of = self.p.mine.get(t.type_object().fullname, of)
        elif isinstance(t, TypeType) and isinstance(get_proper_type(t.item), Instance):
            of = self.p.mine.get(get_proper_type(t.item).type.fullname, of)
        elif isinstance(t, Instance) and t.type.fullname in self.p.mine:  # something with __call__
            call = "__call__" if "__call__" in {n for b in t.type.mro for n in b.names} else "forward"
            of = self.p.attribute(t.type, call)
        for k in named:
            ident = None
            if of is not None and not of.startswith(("module:", "alias:")):
                ident = self.keyword(of, k.arg)
            ident = ident or (f"?.{k.arg}" if of is None else None)
            if ident:
                self.use(self.where(k), k.arg, ident, None, "keyword")

    def keyword(self, of, arg):
        info = self.p.infos.get(of)
        if info is None:
            return f"{of}.{arg}"
        for base in info.mro:
            mine = self.p.mine.get(base.fullname)
            if mine and "__init__" in base.names and base.names["__init__"].node is not None:
                node = base.names["__init__"].node
                if not getattr(base.names["__init__"], "plugin_generated", False) and hasattr(
                    node, "arguments"
                ):
                    return f"{mine}.__init__.{arg}"
        return self.p.attribute(info, arg)

    def fields(self, named, type_):
        for k in named:
            ids = self.p.of_type(type_, k.arg) if type_ is not None else None
            if ids:
                self.use(self.where(k), k.arg, sorted(ids)[0], None, "keyword")
            elif ids is None:
                self.use(self.where(k), k.arg, f"?.{k.arg}", None, "keyword")

    def by_string(self, value, text):
        """getattr(x, "name"), monkeypatch.setattr(x, "name", ...)."""
        if not (isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value.isidentifier()):
            return
        start = self.f.text.find(text.value, self.where(text))
        probe = ast.Attribute(value=value, attr=text.value, ctx=ast.Load())
        module = self.module(value)
        if module is not None:
            got = self.p.chase(f"import:{module}:{text.value}") if module in self.p.modules else None
            if got and not got.startswith("module:"):
                self.use(start, text.value, got, None, "attr")
            return
        ast.copy_location(probe, value)
        ident = self.target(value)
        info = self.p.infos.get(ident or "")
        got = self.p.attribute(info, text.value) if info is not None else None
        self.use(start, text.value, got or f"?.{text.value}", None, "attr")

    def visit_Constant(self, node):
        """Names in strings: annotations in quotes, and dotted paths that a test patches."""
        v = node.value
        if not isinstance(v, str) or "\n" in v or len(v) > 120:
            return
        start = self.where(node)
        m = re.fullmatch(r"(grainline(?:\.\w+)*)\.(\w+)(?:\.(\w+))?", v)
        if m:
            for cut in range(len(v.split(".")) - 1, 0, -1):
                module = ".".join(v.split(".")[:cut])
                if module in self.p.modules:
                    ident = None
                    for part in v.split(".")[cut:]:
                        if ident is None:
                            ident = self.p.chase(f"import:{module}:{part}")
                        else:
                            info = self.p.infos.get(ident)
                            ident = self.p.attribute(info, part) if info is not None else None
                        if ident is None or ident.startswith("module:"):
                            break
                        at = self.f.text.find("." + part, start) + 1
                        self.use(at, part, ident, None, "attr")
                    break
        elif re.fullmatch(r"[A-Z]\w*", v):
            ident = self.resolve(v)
            if ident is not None and ident in self.p.infos:
                self.use(self.f.text.find(v, start), v, ident, self.scope)


# ------------------------------------------------------------------ decide


def decide(project, entries):
    ids = defaultdict(set)  # last name -> ids
    for f in project.files:
        for use in f.uses:
            if not use[3].startswith("?"):
                ids[use[3].rpartition(".")[2]].add(use[3])
    for qual, info in project.infos.items():
        for n in info.names:
            got = project.attribute(info, n)
            if got:
                ids[n].add(got)
    for a, b in list(project.parents.items()):
        for x in (a, b):
            ids[x.rpartition(".")[2]].add(x)
    groups = defaultdict(set)
    for name in ids:
        for i in ids[name]:
            groups[project.root(i)].add(i)
    new = {}
    for e in entries:
        if e.kind in ("word", "phrase", "code", "module", "recipe", "any", "keep", "option", "flat"):
            continue
        where, anchor = e.where, None
        if where.startswith("@"):
            anchor, _, where = where[1:].partition(".")
            where = where or "-"
        if where.startswith("*"):
            hit = inside(project, ids, e.old, anchor, where.partition("&")[2])
            hit = {j for i in hit for j in groups[project.root(i)]}
            if not hit:
                print(f"STALE {e}")
            for i in hit:
                if i.endswith("." + e.old):
                    new.setdefault(i, e.new)
            continue
        tail = e.old if where == "-" else f"{where}.{e.old}"
        hit = {i for i in ids[e.old] if i == tail or i.endswith("." + tail)}
        if anchor:
            modules = {i.rpartition(".")[0] for i in ids[anchor]} & set(project.modules)
            hit = {i for i in hit if any(i == f"{m}.{tail}" for m in modules)}
        elif where == "-":
            hit = {i for i in hit if i.rpartition(".")[0] in project.modules}
        hit = {j for i in hit for j in groups[project.root(i)]}
        e.hits = {project.root(i) for i in hit}
        if not hit:
            print(f"STALE {e}")
        if len(e.hits) > 1 and e.kind != "each":
            print(f"SEVERAL {e}: {sorted(e.hits)[:6]}")
        for i in hit:
            if i.endswith("." + e.old):
                new.setdefault(i, e.new)
    kept = {i for i, n in new.items() if i.endswith("." + n)}
    for e in entries:
        if e.kind != "word":
            continue
        for name in ids:
            changed = word_rule(name, e.old, e.new)
            if changed != name:
                for i in ids[name]:
                    if (
                        i.split(".")[0] in ("grainline",)
                        or any(i.startswith(m + ".") for m in project.modules)
                    ) or i.startswith("alias:"):
                        new.setdefault(i, changed)
    for i in kept:
        new.pop(i)
    # what has no type: where all things of this name agree
    by_name = defaultdict(set)
    for name, group in ids.items():
        for i in group:
            owner = i.rpartition(".")[0]
            if owner in project.infos:
                by_name[name].add(new.get(i, name))
    anys = {}
    for e in entries:
        if e.kind == "any":
            anys.setdefault(e.old, []).append(e)
    return new, by_name, anys


def inside(project, ids, name, anchor, beside):
    """Parameters and locals of this name: in the module that defines `anchor`, with a name `beside` them."""
    hit = set()
    for i in ids[name]:
        owner = i.rpartition(".")[0]
        if owner in project.modules or owner in project.infos or i.startswith(("alias:", "module:")):
            continue
        module = next((m for m in prefixes(owner) if m in project.modules), None)
        if module is None or (anchor and not any(k.rpartition(".")[0] == module for k in ids[anchor])):
            continue
        if not anchor and not module.startswith("grainline"):
            continue
        if beside and not any(k.rpartition(".")[0] == owner for k in ids[beside]):
            continue
        hit.add(i)
    return hit


def prefixes(name):
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def apply_ids(project, new, by_name, anys, verbose):
    open_ = Counter()
    for f in project.files:
        for start, end, name, ident, _, role in f.uses:
            if ident.startswith("?"):
                choice = by_name.get(name, set())
                to = None
                for e in anys.get(name, []):
                    if e.where == "-" or e.where in f.module.split("."):
                        to = e.new
                if to is None and choice and choice != {name}:
                    if len(choice) == 1:
                        to = next(iter(choice))
                    else:
                        line = f.text.count("\n", 0, start) + 1
                        open_[f"{name} -> {sorted(choice)}  {f.path}:{line}"] += 1
            else:
                to = new.get(ident)
            if to is None:
                continue
            if role.startswith("f"):
                in_fstring(f, start, end, name, to)
            else:
                f.edit(start, end, to)
    for text in sorted(open_):
        print("OPEN", text)


def in_fstring(f, start, end, name, to):
    """Inside an f-string that spans lines ast does not know the place: all of that name there."""
    for m in re.finditer(r"\{[^{}]*\}", f.text[start:end]):
        for n in re.finditer(rf"\b{name}\b", m.group()):
            at = start + m.start() + n.start()
            f.edit(at, at + len(name), to)


def clashes(project, new):
    """Names that would mean another thing after the renaming."""
    found = set()
    for f in project.files:
        scopes = list(f.binder.scopes.values())
        renamed = {}
        for s in scopes:
            table = {}
            for name, raw in s.names.items():
                ident = project.chase(raw) or raw
                owner, _, last = ident.rpartition(".")
                info = project.infos.get(owner)
                if info is not None:
                    ident = project.attribute(info, last) or ident
                to = new.get(ident, name)
                if to in table and table[to] != raw:
                    found.add(f"CLASH {f.path} {s.qual}: {name} -> {to} meets another {to}")
                table[to] = raw
            renamed[id(s)] = table
        for start, _, name, ident, scope, role in f.uses:
            if scope is None or role not in ("name", "fname"):
                continue
            to = new.get(ident, name)
            if scope.lookup(to, lambda s: renamed[id(s)]) != scope.lookup(name):
                line = f.text.count("\n", 0, start) + 1
                found.add(
                    f"CLASH {f.path}:{line} {scope.qual}: {name} -> {to} means {scope.lookup(to, lambda s: renamed[id(s)])}"
                )
    for qual, info in project.infos.items():
        names = {}
        for base in info.mro:
            for n in base.names:
                i = project.attribute(info, n)
                if i is None:
                    continue
                to = new.get(i, n)
                if names.setdefault(to, i) != i:
                    found.add(f"CLASH class {qual}: {names[to]} and {i} are both {to}")
    for text in sorted(found):
        print(text)
    return len(found)


# ------------------------------------------------------------------ text


def python_text(project, rules):
    """Strings and comments, but not what stands in the braces of an f-string."""
    for f in project.files:
        for tok in tokenize.generate_tokens(io.StringIO(f.text).readline):
            if tok.type not in (tokenize.STRING, tokenize.COMMENT):
                continue
            start = f.starts[tok.start[0] - 1] + tok.start[1]
            end = f.starts[tok.end[0] - 1] + tok.end[1]
            text = f.text[start:end]
            prefix = re.match(r"[A-Za-z]*", text).group() if tok.type == tokenize.STRING else ""
            spans, last = [], 0
            if "f" in prefix.lower():
                for m in re.finditer(r"\{\{|\}\}|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", text):
                    if m.group() not in ("{{", "}}"):
                        spans.append((last, m.start()))
                        last = m.end()
                        inner = re.finditer(r"'[^'{}]*'|\"[^\"{}]*\"", m.group())
                        spans += [(m.start() + q.start(), m.start() + q.end()) for q in inner]
            spans.append((last, len(text)))
            for a, b in spans:
                replace_text(
                    f,
                    start + a,
                    start + b,
                    lambda x, f=f: rules(
                        x,
                        f.module.split(".")[-1],
                        not f.path.startswith("benchmarks"),
                        f.path.startswith("grainline"),
                    ),
                )


def replace_text(f, start, end, rules):
    """Edit a span by the text rules, keeping edits of identifiers in it."""
    held = sorted(k for k in f.edits if start <= k[0] and k[1] <= end)
    parts, last = [], start
    for s, e in held:
        parts.append((last, s))
        last = e
    parts.append((last, end))
    for a, b in parts:
        old = f.text[a:b]
        out = rules(old)
        if out != old:
            f.edit(a, b, out)


def text_rules(entries, project, new):
    words = [e for e in entries if e.kind == "word"]
    phrases = [e for e in entries if e.kind == "phrase"]
    keeps = [(e.where, e.old.replace("~", " ")) for e in entries if e.kind == "keep"]
    exact = {}
    for e in entries:
        if e.kind in ("class", "function") and (
            e.old[0].isupper() and len(e.old) > 1 or "_" in e.old.strip("_")
        ):
            exact.setdefault(e.old, set()).add(e.new)
        if e.kind == "module":
            exact.setdefault(e.old, set()).add(e.new)
    quoted = {a: next(iter(b)) for a, b in exact.items() if len(b) == 1}
    paths = recipe_paths(entries)
    options = [e for e in entries if e.kind == "option"]
    heads = {p[0] + "." for p in paths}

    def rules(text, module="", own=True, inside=True):
        for e in phrases:
            text = text.replace(e.old, e.new)
        for e in options if own and "--" in text else ():
            text = re.sub(rf"(?<![\w-]){re.escape(e.old)}(?![\w-])", e.new, text)
        if "`" in text:
            text = re.sub(
                r"`([A-Za-z_][\w.]*)(\(\))?`",
                lambda m: "`" + ".".join(quoted.get(p, p) for p in m[1].split(".")) + (m[2] or "") + "`",
                text,
            )
        if "." in text and any(h in text or h[:-1] + "\\." in text for h in heads):
            text = path_rule(text, paths)
        m = re.match(r"(f?[\"'])([a-z_.]+)=", text)
        if m:
            for head in (["model"], ["data", "texts"]):
                to = path_new([*head, *m[2].split(".")], paths)
                if to and not (head == ["model"] and module and not inside):
                    text = m[1] + ".".join([*m[2].split(".")[:-1], to]) + text[m.end(2) :]
                    break
        text = yaml_in_text(text, paths)
        if any(w in ("-", module) and (k == "*" or k in text) for w, k in keeps):
            return text
        return prose_rule(text, words)

    return rules


# ------------------------------------------------------------------ recipes


def recipe_paths(entries):
    """`train.steps` -> `train.max_steps` for entries of the kind recipe: where is the path above."""
    return {(*e.where.split("."), e.old): e.new for e in entries if e.kind == "recipe"}


def path_rule(text, paths):
    for (*above, old), new in paths.items():
        if above == ["-"]:
            continue
        head = r"\\?\.".join(re.escape(a) if a != "*" else r"\w+" for a in above)
        text = re.sub(rf"(?<![\w.])({head}\\?\.){old}(?![\w])(?!\()", rf"\g<1>{new}", text)
    return text


def yaml_in_text(text, paths):
    """Fields of `train` in a recipe that stands in a string or in a page: train: {steps: 5, batch: 2}."""
    for m in reversed(list(re.finditer(r"\btrain:(?=[\s\\{])", text))):
        rest = text[m.end() :]
        end = re.search(r"(?:\n|\\n)(?=[a-z])|`", rest)
        part = rest[: end.start()] if end else rest
        made = part
        for key, new in paths.items():
            if key[:-1] == ("train",):
                made = re.sub(rf"(?<![\w.]){key[-1]}:(?= )", f"{new}:", made)
        text = text[: m.end()] + made + rest[len(part) :]
    return re.sub(
        r"(pattern: [^,{}]+, )(?:lr|decay):",
        lambda m: m[0].replace(" lr:", " lr_factor:").replace(" decay:", " weight_decay:"),
        text,
    )


def path_new(path, paths):
    for key, new in paths.items():
        above = [] if key[0] == "-" else list(key[:-1])
        want = [*above, key[-1]]
        if len(want) == len(path) and all(a in ("*", b) for a, b in zip(want, path, strict=True)):
            return new
    return None


def yaml_keys(path, paths):
    import yaml

    text = Path(path).read_text(encoding="utf-8")
    edits = []

    def walk(node, above):
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = [*above, key.value]
                to = path_new(here, paths)
                if to:
                    edits.append((key.start_mark.index, key.end_mark.index, to))
                walk(value, here)
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                walk(value, above)

    walk(yaml.compose(text), [])
    for a, b, to in sorted(edits, reverse=True):
        text = text[:a] + to + text[b:]
    return text


def python_dicts(project, entries):
    """Keys of dictionaries that are recipes: "train": {...}, values["train"]["steps"], train={...}."""
    paths = recipe_paths(entries)

    for f in project.files:

        def fix(node, to, f=f):
            start = f.at(node.lineno, node.col_offset)
            at = f.text.find(node.value, start)
            f.edit(at, at + len(node.value), to)

        def walk(node, above):
            if isinstance(node, ast.BinOp):
                walk(node.left, above)
                walk(node.right, above)
            elif isinstance(node, ast.IfExp):
                walk(node.body, above)
                walk(node.orelse, above)
            elif isinstance(node, (ast.List, ast.Tuple)):
                for value in node.elts:
                    walk(value, above)
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if key is None:
                        walk(value, above)
                    elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                        here = [*above, key.value]
                        to = path_new(here, paths)
                        if to and above:
                            fix(key, to)
                        walk(value, here)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
                for k in node.keywords:
                    if k.arg:
                        to = path_new([*above, k.arg], paths)
                        if to and above:
                            s = f.at(k.lineno, k.col_offset)
                            f.edit(s, s + len(k.arg), to)
                        walk(k.value, [*above, k.arg])

        for e in entries:
            if e.kind == "flat" and f.module == e.where:
                for node in ast.walk(f.tree):
                    if isinstance(node, ast.Dict):
                        walk(node, e.old.split("."))
        heads = {p[0] for p in paths if p[0] != "-"}
        for node in ast.walk(f.tree):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value in heads:
                        walk(value, [key.value])
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if node.targets[0].id.lower() in heads:
                    walk(node.value, [node.targets[0].id.lower()])
            elif isinstance(node, ast.keyword) and node.arg in heads:
                walk(node.value, [node.arg])
            elif isinstance(node, ast.Subscript):
                chain, inner = [], node
                while isinstance(inner, ast.Subscript):
                    if not (isinstance(inner.slice, ast.Constant) and isinstance(inner.slice.value, str)):
                        break
                    chain.insert(0, inner.slice)
                    inner = inner.value
                names = [c.value for c in chain]
                if names and isinstance(inner, ast.Name) and inner.id in heads:
                    names = [inner.id, *names]
                if len(names) > 1 and names[0] in heads:
                    to = path_new(names, paths)
                    if to:
                        fix(chain[-1], to)


# ------------------------------------------------------------------ planted faults


def literal(text):
    if '"' in text and "'" not in text and "\\" not in text and "\n" not in text:
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False)


def broken(text, column):
    """A string as one literal, or as several under each other where the line would be too long."""
    one = literal(text)
    if column + len(one) <= 108:
        return one
    pieces, rest = [], text
    room = 104 - column
    while rest:
        cut = len(rest)
        if len(literal(rest)) > room:
            cut = max(rest.rfind(c, 0, room - 6) for c in " ,(\n") + 1 or room - 6
        pieces.append(literal(rest[:cut]))
        rest = rest[cut:]
    return ("\n" + " " * column).join(pieces)


def faults(project, rules, new, by_name):
    path = "tests/faults.py"
    text = Path(path).read_text(encoding="utf-8")
    tree = ast.parse(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    files = {f.path: f for f in project.files}
    edits = []
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Fault" and len(node.args) == 5
        ):
            continue
        file, _, breaks, old, after = (a.value if isinstance(a, ast.Constant) else None for a in node.args)
        f = files.get(f"grainline/{file}")
        if f is None and old is not None and Path(f"grainline/{file}").is_file():
            pairs = [(2, breaks, rules(breaks)), (3, old, rules(old)), (4, after, rules(after))]
            old_new = None
        elif f is None or old is None or after is None:
            print(f"FAULT not read: {file} line {node.lineno}")
            continue
        elif f.text.count(old) != 1:
            print(f"FAULT {file}: {f.text.count(old)} times: {old!r}")
            continue
        else:
            at = f.text.index(old)
            old_new = f.map_span(at, at + len(old))
            if old_new is None:
                continue
            local = {}
            for (s, e), to in f.edits.items():
                if at <= s and e <= at + len(old) and f.text[s:e].isidentifier():
                    local[f.text[max(0, s - 1) : s] == ".", f.text[s:e]] = to
            after_new = translate(after, local, f, project, new, rules, at, (old, old_new))
            pairs = [(2, breaks, rules(breaks)), (3, old, old_new), (4, after, after_new)]
        tests = node.args[1].value
        pairs.append((1, tests, prose_rule(tests, [e for e in TABLE if e.kind == "word"])))
        for i, was, to in pairs:
            if was != to:
                a = node.args[i]
                s = starts[a.lineno - 1] + len(
                    text.splitlines()[a.lineno - 1].encode()[: a.col_offset].decode()
                )
                e = starts[a.end_lineno - 1] + len(
                    text.splitlines()[a.end_lineno - 1].encode()[: a.end_col_offset].decode()
                )
                column = s - starts[a.lineno - 1]
                edits.append((s, e, broken(to, column)))
    for s, e, to in sorted(edits, reverse=True):
        text = text[:s] + to + text[e:]
    return text


def translate(after, local, f, project, new, rules, at, pair):
    """The text that is planted, with the names that the file has after the renaming."""
    if after == pair[0]:
        return pair[1]
    if "near" not in f.__dict__:
        f.near = defaultdict(list)
        for start, _, name, ident, _, role in f.uses:
            to = f.edits.get((start, start + len(name)), name) if ident[0] == "?" else new.get(ident, name)
            f.near[role in ("attr", "fattr"), name].append((start, to))
    out, last = [], 0
    quoted = False
    for m in re.finditer(r"(\.?)\b([A-Za-z_]\w*)", after):
        dot, name = bool(m[1]), m[2]
        close = min(f.near.get((dot, name), ()), key=lambda u: abs(u[0] - at), default=(0, name))[1]
        to = local.get((dot, name)) or close
        out += [after[last : m.start(2)], to]
        last = m.end(2)
    result = "".join([*out, after[last:]])
    # sentences in strings of the code follow the rules of text
    return re.sub(r'"[^"\n]*"', lambda m: rules(m.group()), result) if not quoted else result


# ------------------------------------------------------------------ modules


def module_files(entries):
    """git mv of files whose base name has an entry; the imports of them."""
    for e in entries:
        if e.kind != "module":
            continue
        hits = [p for p in glob.glob(f"grainline/**/{e.old}.py", recursive=True)]
        hits = [p for p in hits if e.where == "-" or Path(p).parent.name == e.where]
        if len(hits) != 1:
            print(f"{'STALE' if not hits else 'SEVERAL'} {e}: {hits}")
            continue
        old = hits[0]
        to = str(Path(old).with_name(f"{e.new}.py"))
        subprocess.run(["git", "mv", old, to], check=True)
        a, b = (x[:-3].replace("/", ".") for x in (old, to))
        folder = a.rpartition(".")[0]
        for p in subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        ):
            if (
                not p.endswith((".py", ".md", ".toml", "Makefile", "run"))
                or not Path(p).is_file()
                or p in SKIP - {"tests/faults.py"}
            ):
                continue
            text = was = Path(p).read_text(encoding="utf-8")
            text = re.sub(rf"\b{re.escape(a)}\b", b, text)
            text = re.sub(rf"(?<![\w/]){re.escape(old)}\b", to, text)
            text = re.sub(
                rf"(?<![\w/])(grainline/)?{re.escape(old.removeprefix('grainline/'))}\b",
                lambda m, to=to: (m[1] or "") + to.removeprefix("grainline/"),
                text,
            )
            if p.endswith(".py"):
                text = re.sub(
                    rf"(?m)^(\s*from {re.escape(folder)} import )([^(\n]*)$",
                    lambda m, e=e: (
                        m[1] + re.sub(rf"\b{e.old}\b(?! as)", f"{e.new} as {e.old}", m[2])
                        if re.search(rf"\b{e.old}\b", m[2])
                        else m[0]
                    ),
                    text,
                )
            if text != was:
                Path(p).write_text(text, encoding="utf-8")


def analysed(cache):
    """The project, from the file where the sources are those of that time."""
    state = hashlib.sha256()
    for top in TOPS:
        for path in sorted(glob.glob(f"{top}/**/*.py", recursive=True)):
            state.update(path.encode() + Path(path).read_bytes() if path not in SKIP else b"")
    if cache and Path(cache).is_file():
        with open(cache, "rb") as file:
            if pickle.load(file) == state.hexdigest():
                return pickle.load(file)
    project = Project()
    project.plain()
    if cache:
        with open(cache, "wb") as file:
            pickle.dump(state.hexdigest(), file)
            pickle.dump(project, file, protocol=5)
    return project


def main():
    sys.setrecursionlimit(20000)
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", help="ids whose last name matches this expression")
    parser.add_argument("--cache", help="a file that keeps what was found out about the sources")
    args = parser.parse_args()
    entries = TABLE[:] = read_table()
    project = analysed(args.cache)
    if args.list:
        number = Counter()
        for f in project.files:
            for use in f.uses:
                if re.fullmatch(args.list, use[3].rpartition(".")[2]):
                    number[project.root(use[3])] += 1
        for ident, n in sorted(number.items()):
            print(f"{n:4} {ident}")
        return
    new, by_name, anys = decide(project, entries)
    apply_ids(project, new, by_name, anys, args.check)
    wrong = clashes(project, new)
    python_dicts(project, entries)
    rules = text_rules(entries, project, new)
    python_text(project, rules)
    planted = faults(project, rules, new, by_name)
    number = sum(len(f.edits) for f in project.files)
    print(f"{number} edits in {sum(bool(f.edits) for f in project.files)} files; {wrong} clashes")
    if args.check:
        return
    last = {"tests/faults.py": planted} | {f.path: f.result() for f in project.files}
    for e in entries:
        if e.kind == "code":
            hits = [p for p, text in last.items() if e.old in text]
            if not hits:
                print(f"STALE {e}")
            for p in hits:
                last[p] = last[p].replace(e.old, e.new)
    for p, text in last.items():
        if text != Path(p).read_text(encoding="utf-8"):
            Path(p).write_text(text, encoding="utf-8")
    for pattern in PROSE:
        for p in glob.glob(pattern, recursive=True):
            if p not in SKIP:
                text = Path(p).read_text(encoding="utf-8")
                Path(p).write_text(rules(text), encoding="utf-8")
    paths = recipe_paths(entries)
    for pattern in YAMLS:
        for p in glob.glob(pattern, recursive=True):
            Path(p).write_text(rules(yaml_keys(p, paths)), encoding="utf-8")
    module_files(entries)


if __name__ == "__main__":
    main()
