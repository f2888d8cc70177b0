"""Names and prose use the words of the field: the old names of `names.txt` are gone, private words too."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = sorted(path for path in (ROOT / "grainline").rglob("*.py"))
VOCABULARIES = "data/scenes/words.py", "data/phrases/lexicon.py", "data/captions.py"  # words of captions
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [
    page for page in PAGES if page.is_file() and page.name != "LOG.md"
]  # the log quotes names of its time
TEMPLATES = sorted(p for p in (ROOT / "grainline").rglob("*") if p.suffix in (".html", ".js", ".css"))

WORDS = """picture pictures told everyone everyones held seen kept found begun come asked said taken apart
mine shown drawn chosen made looked spoilt lost beyond"""
IN_NAMES = frozenset(WORDS.split())
"""Words that no part of an identifier may be: they name a thing by what was done to it."""

OF_PYTHON = {
    "FileNotFoundError",
    "PackageNotFoundError",
    "connection_made",
    "connection_lost",
}  # and its library

IN_PROSE = re.compile(
    r"\b(?:pictures?|everyone's|of everyone|spoilt|(?:the|each|every|is|are|was|were|be|been) told(?! apart)"
    r"|the (?:asked|held|seen|kept|found|taken|said|lost)(?=[.,;:)]| (?:is|are|was|were)\b)"
    r"|what is (?:asked|held|told))\b",
    re.I,
)
"""Private vocabulary in comments, docstrings, messages, templates and pages."""


class Name(NamedTuple):
    """An entry of `names.txt`."""

    kind: str  # class, function, member, recipe, option
    where: str  # the end of the module's name, the class, or the path in a recipe; - for any
    old: str
    new: str


NAMES = [
    Name(*line.split())
    for line in (ROOT / "tests/names.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def of_kind(kind: str) -> list[Name]:
    return [name for name in NAMES if name.kind == kind]


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def members(cls: ast.ClassDef) -> set[str]:
    """Methods, class attributes, and what methods set on self."""
    names = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
    names |= {
        x.target.id for x in cls.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)
    }
    for node in ast.walk(cls):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
        ):
            names |= {node.attr} if node.value.id == "self" else set()
    return names


def identifiers(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.string


def prose(path: Path) -> str:
    """Comments and strings of a Python file; all of any other."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    kinds = tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(token.string for token in tokens if token.type in kinds)


def private_names(path: Path) -> Counter[str]:
    words = (
        word
        for name in identifiers(path.read_text(encoding="utf-8"))
        if name not in OF_PYTHON
        for word in re.split("_|(?=[A-Z])", name)
    )
    return Counter(word for word in map(str.lower, words) if word in IN_NAMES)


def private_prose(path: Path) -> Counter[str]:
    if path.as_posix().endswith(VOCABULARIES):
        return Counter()
    return Counter(map(str.lower, IN_PROSE.findall(prose(path))))


def counts(paths: list[Path], of: str) -> dict[str, int]:
    """The number of private words in names or prose of each file that has some."""
    count = private_names if of == "names" else private_prose
    return {path.relative_to(ROOT).as_posix(): n for path in paths if (n := count(path).total())}


def test_old_names_are_not_defined() -> None:
    old = of_kind("class") + of_kind("function")
    old_members = {(name.where, name.old): name.new for name in of_kind("member")}
    wrong = []
    for path in PACKAGE:
        place = path.relative_to(ROOT)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            wrong += [
                f"{place}: {name.old} is {name.new} today"
                for name in old
                if (name.kind, name.old) == (kind, node.name)
                and f".{module(path)}".endswith(f".{name.where}")
            ]
            for member in members(node) if isinstance(node, ast.ClassDef) else ():
                if (node.name, member) in old_members:
                    wrong.append(f"{place}: {node.name}.{member} is {old_members[node.name, member]} today")
    assert not wrong


def leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from leaves(one, f"{prefix}{key}.")
        yield f"{prefix}{key}"


def test_recipes_and_pages_have_the_fields_of_today() -> None:
    old = {
        name.old if name.where == "-" else f"{name.where}.{name.old}": name.new for name in of_kind("recipe")
    }
    wrong = [
        f"{path.relative_to(ROOT)}: {field} is {old[field]} today"
        for path in sorted((ROOT / "grainline/recipes").rglob("*.yaml"))
        for field in leaves(yaml.safe_load(path.read_text(encoding="utf-8")))
        if field in old
    ]
    for path in [*PAGES, *PACKAGE]:
        text = path.read_text(encoding="utf-8")
        for field, new in old.items():
            if "." in field and re.search(rf"(?<![\w.]){re.escape(field)}(?=[=` ])(?! )", text):
                wrong.append(f"{path.relative_to(ROOT)}: {field} is {new} today")
    assert not wrong


def test_pages_and_messages_have_the_options_of_today() -> None:
    old = {name.old: name.new for name in of_kind("option")}
    wrong = [
        f"{path.relative_to(ROOT)}: {option} is {new} today"
        for path in [*PAGES, *PACKAGE]
        for option, new in old.items()
        if re.search(rf"{option}(?![\w-])", path.read_text(encoding="utf-8"))
    ]
    assert not wrong


@pytest.mark.parametrize("of", ["names", "prose"])
def test_no_private_words(of: str) -> None:
    assert counts(PACKAGE if of == "names" else [*PACKAGE, *TEMPLATES, *PAGES], of) == {}


HEADS = """Of As That What Which Those With To By In On From At Between Beside Where Whose
"""
HEADLESS = frozenset(HEADS.split())
"""Words that begin no docstring: it says what a thing is or returns."""


def test_docstrings_begin_with_what_a_thing_is() -> None:
    wrong = []
    for path in PACKAGE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node) or "None"
                if text.split()[0].strip(".,:;") in HEADLESS:
                    wrong.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert not wrong
