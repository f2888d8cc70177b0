"""Sentences of other images, which heat is measured against where nobody names any.

Contrast (`nn.upsample.contrast`) says where an image shows more of a text than of other texts, so it needs
some: sentences of photographs for a model of photographs, of drawn scenes for one of drawn scenes. What a
model was trained on stands in the recipe of its run; where no recipe says so, both halves are used.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import yaml

from grainline.data.captions import sentences
from grainline.data.formats.parsed import read_lines
from grainline.data.open_source import open_source
from grainline.data.record import CorruptSample, Source
from grainline.errors import UserError
from grainline.nn.upsample import FEWEST, NULL_TEXTS
from grainline.system import read_plain

EVERYDAY = tuple(Path(__file__).with_name("everyday.txt").read_text(encoding="utf-8").splitlines())
"""Descriptions of everyday photographs, of one to three sentences."""
PHOTOGRAPHS = EVERYDAY[:40]  # of one sentence each
SCENES = f"scenes:dev?count={len(PHOTOGRAPHS)}&seed=2718"


class OtherTexts(NamedTuple):
    """Sentences, and where they come from in words."""

    sentences: list[str]
    source: str


def other_texts(source: str | None, run: Path | None, own: Collection[str] = ()) -> OtherTexts:
    """Sentences to measure heat against, 16 at least.

    source  a .txt file with a text a line, or a data source with captions; None: built-in sentences
    run     folder of the run that trained the model, whose recipe says which built-in ones fit
    own     texts that heat is measured of, which do not count

    Of a source at most 64 texts, evenly over it, have one sentence each. Raises UserError for fewer than 16.
    """
    if source is not None:
        some, words = _of_source(source), f"sentences of {source}"
    else:
        only_scenes = trained_on_scenes(run)
        some = [*(() if only_scenes else PHOTOGRAPHS), *(() if only_scenes is False else _of_source(SCENES))]
        kinds = {True: "drawn scenes", False: "photographs", None: "photographs and of drawn scenes"}
        words = f"built-in sentences of {kinds[only_scenes]}"
    excluded = {text.casefold() for text in own}
    left = [text for text in dict.fromkeys(some) if text.casefold() not in excluded]
    if len(left) < FEWEST:
        raise UserError(f"{source} has {len(left)} other sentences; heat needs {FEWEST} or more")
    return OtherTexts(left, words)


def _of_source(path: str) -> list[str]:
    if path.endswith(".txt"):
        texts: Sequence[str] = read_lines(path)
    else:
        texts = _captions(open_source(path, size=32, allow_bare=True, trust_code=True))
    if len(texts) > NULL_TEXTS:
        texts = [texts[i * len(texts) // NULL_TEXTS] for i in range(NULL_TEXTS)]
    parts = [sentences(text) for text in texts]
    return [one[i % len(one)].text for i, one in enumerate(parts) if one]


def _captions(source: Source) -> list[str]:
    """Texts of at most twice as many records as are needed. Corrupt samples are left out."""
    texts = []
    for i in range(0, len(source), max(1, len(source) // (2 * NULL_TEXTS))):
        with suppress(CorruptSample):
            texts.append(source[i].whole)
    return [text for text in texts if text.strip()]


def trained_paths(run: Path | None, field: str = "paths") -> list[str] | None:
    """The data of the recipe of a run, or its `validation`; None where there is no recipe."""
    try:
        recipe = yaml.safe_load(read_plain(run / "recipe.yaml")) if run else {}
        return [str(path) for path in recipe["data"][field]]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None


def trained_on_scenes(run: Path | None) -> bool | None:
    """Whether all data of the recipe of a run are drawn scenes, or none; None where nothing says so."""
    are_scenes = {path.partition(":")[0].partition("?")[0] == "scenes" for path in trained_paths(run) or ()}
    return are_scenes.pop() if len(are_scenes) == 1 else None
