"""Names and prose use the words of the field, not private ones."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = sorted(path for path in (ROOT / "grainline").rglob("*.py"))
VOCABULARIES = "data/scenes/words.py", "data/phrases/lexicon.py", "data/captions.py"  # words of captions
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.name != "LOG.md"]  # it quotes names of its time
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


PREPOSITIONS = frozenset(["of", "at", "by", "here", "given", "there", "to"])
TOLD = frozenset(["told", "seen", "found", "mine", "held"])


@pytest.mark.parametrize(("paths", "words"), [(PACKAGE, PREPOSITIONS), (TESTS, TOLD)])
def test_no_variable_is_a_preposition_or_says_what_was_done_to_it(
    paths: list[Path], words: frozenset[str]
) -> None:
    wrong = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None
            name = node.arg if isinstance(node, ast.arg) else name
            if name in words:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not wrong
