"""Providers by name: `rules`, `spacy:PIPELINE`, or a file that `grainline data phrases` wrote."""

from pathlib import Path

from grainline.data.phrases.base import Provider
from grainline.data.phrases.pipeline import Pipeline
from grainline.data.phrases.rules import Rules
from grainline.data.phrases.stored import Stored
from grainline.errors import UserError


def open_provider(name: str) -> Provider:
    """The provider of that name. Raises UserError where there is none, or where it cannot be opened.

    >>> open_provider("rules").name
    'rules 1'
    """
    kind, _, rest = name.partition(":")
    if name == "rules":
        return Rules()
    if kind == "spacy" and rest:
        return Pipeline(rest)
    if name.endswith(".jsonl"):
        return Stored(Path(name))
    raise UserError(
        f"no provider of phrases {name!r}; there are rules, spacy:PIPELINE (such as spacy:en_core_web_sm) "
        "and FILE.jsonl, made by `grainline data phrases`"
    )
