"""Classes and the prompts that stand for them: names, templates, and the files of both.

A class is what pictures have for a caption. Underscores count as blanks, everywhere.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from grainline.data.formats.common import some
from grainline.data.formats.plain import read_lines
from grainline.errors import UserError
from grainline.types import Encoded

HOLE = "{}"
TEMPLATES = (
    "{}",
    "a photo of {}.",
    "a picture that shows {}.",
    "{} in a photo.",
    "a close view of {}.",
    "a drawing of {}.",
)
"""The plain name, and five of our own without an article, so that they fit most names."""


class ClassTexts(NamedTuple):
    """C classes with T prompts each, encoded, and the class of every picture."""

    names: tuple[str, ...]  # [C] as they stand in the prompts
    templates: tuple[str, ...]  # [T]
    texts: Encoded  # [C] one vector a class; of a pairwise method [C * T] prompts, class by class
    label: Tensor  # [N] int64


def read_templates(path: str) -> tuple[str, ...]:
    """One template a line, each with one {} for the name of the class. Raises UserError."""
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if line.count(HOLE) != 1:
            raise UserError(
                f"template {number} of {path} is {line!r}; each needs {HOLE} once, where the class stands"
            )
    _refuse_twice(lines, f"template of {path}")
    return tuple(lines)


def read_classes(path: str) -> dict[str, str]:
    """One class a line, LABEL or LABEL and a tab and NAME: label -> name in the prompts. Raises UserError."""
    rows = [line.partition("\t") for line in read_lines(path)]
    labels = [spelt(label) for label, _, _ in rows]
    _refuse_twice(labels, f"class of {path}")
    return {label: spelt(name) or label for label, (_, _, name) in zip(labels, rows, strict=True)}


def number_classes(
    labels: Sequence[str], listed: Mapping[str, str] | None, where: str
) -> tuple[tuple[str, ...], list[int]]:
    """Names of the classes, and the class of every label.

    labels  [N] captions of the pictures
    listed  label -> name, all that there are, in their order; None takes those of the pictures, sorted
    where   the data, for error messages

    Raises UserError for a label that is not listed, fewer than two classes, and names that only differ in
    capitals: a tokenizer reads them as one.

    >>> number_classes(["dog", "hot_dog", "dog"], None, "x")
    (('dog', 'hot dog'), [0, 1, 0])
    >>> number_classes(["n02", "n02"], {"n01": "tench", "n02": "goldfish"}, "x")
    (('tench', 'goldfish'), [1, 1])
    """
    keys = [spelt(label) for label in labels]
    known = dict(listed) if listed is not None else {key: key for key in sorted(set(keys))}
    lost = sorted(set(keys) - known.keys())
    if lost:
        raise UserError(f"{len(lost)} classes of {where} are not in the file of classes: {some(lost)}")
    if len(known) < 2:
        raise UserError(f"{where} has one class only, {keys[0]!r}; classification needs two at least")
    _refuse_twice([name.casefold() for name in known.values()], f"name of a class of {where}")
    number = {key: i for i, key in enumerate(known)}
    return tuple(known.values()), [number[key] for key in keys]


def spelt(label: str) -> str:
    """A label with single blanks for underscores and white space.

    >>> spelt(" great_white  shark")
    'great white shark'
    """
    return " ".join(label.replace("_", " ").split())


def _refuse_twice(values: Sequence[str], what: str) -> None:
    twice = (
        sorted({value for value in values if values.count(value) > 1})
        if len(set(values)) < len(values)
        else []
    )
    if twice:
        raise UserError(f"{what} given twice: {some([repr(value) for value in twice])}; each must be unique")
