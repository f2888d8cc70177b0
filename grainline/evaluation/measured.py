"""A result with what it was measured on: what the parts of a page about single outcomes start from.

Images are read again from the source. One that is not there any more is said so in its place.
"""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from grainline.data.captions import sentences
from grainline.data.decode import decode
from grainline.data.record import CorruptSample, Source
from grainline.evaluation.encode import Encodings
from grainline.evaluation.result import Result
from grainline.model import ImageLike, Model, given
from grainline.nn.upsample import FEWEST, NULL_TEXTS
from grainline.report.case import Case, CaseList
from grainline.report.page import MissingImage
from grainline.report.png import write_maps

SHOWN = 6  # examples of a kind


class Measured(NamedTuple):
    """A result with what it was measured on."""

    model: Model
    source: Source
    data: Encodings
    result: Result

    def image(self, row: int) -> Image.Image | MissingImage:
        """The square that the model sees of an encoded image, or why it cannot be shown."""
        key = self.data.keys[row]
        try:
            record = self.source[self.data.positions[row]]
            if record.key != key:
                return MissingImage(f"{key} is not where it was when it was encoded")
            return self.model.cropped(decode(record))
        except CorruptSample as error:
            return MissingImage(f"{key} cannot be shown: {error.cause}")

    def null(self, row: int) -> list[str] | None:
        """Sentences about other images, to measure heat against; None where there are too few."""
        others = [i for i, image in enumerate(self.data.texts.image.tolist()) if image != row]
        some = [others[i] for i in spread(np.arange(len(others)), NULL_TEXTS)]
        said = [(sentences(self.data.strings[i]), i) for i in some]
        single = list(dict.fromkeys(parts[i % len(parts)].text for parts, i in said if parts))
        return single if len(single) >= FEWEST else None

    def given(self, row: int, image: Image.Image) -> ImageLike:
        """An image as the model is asked about it: with its description, where it reads one."""
        return given(image, self.data.described[row] if self.data.described else None)

    def both_ends(
        self,
        titles: tuple[str, str],
        order: str,
        places: tuple[Sequence[int], Sequence[int]],
        case: Callable[[int], Case],
    ) -> list[CaseList]:
        """The cases at some places of an order (`extremes`), one list for each end; the first has the hint
        how images are shown."""
        hints = (f"{order} {self.how_shown()}", order)
        return [
            CaseList(title, hint, [case(i) for i in some])
            for title, hint, some in zip(titles, hints, places, strict=True)
        ]

    def write_heat(self, path: str | Path, shown: Sequence[Case]) -> None:
        """Write heat maps as a figure. Raises UserError if the place cannot be written."""
        name = PurePath(self.result.data["path"]).name
        write_maps(path, shown, f"Heat in {self.result.suite}, {len(self.data.keys):,} images of {name}")

    def how_shown(self) -> str:
        """How images are shown, in a sentence: as the model sees them."""
        squash = self.model.transform.resize == "squash"
        how = "pressed into a square" if squash else "a square from their middle"
        return f"Images are shown as the model sees them: {how}."


def extremes(
    *values: ArrayLike, image: ArrayLike | None = None, number: int = SHOWN
) -> tuple[list[int], list[int]]:
    """Places of the lowest values, lowest first, and of the highest, highest first.

    values  [Q] each; further ones decide between equals
    image   [Q] only the first place of each image counts; None: all places

    >>> extremes([3, 1, 2, 1], number=2), extremes([3, 1, 2, 1], image=[0, 0, 1, 1], number=2)
    (([1, 3], [0, 2]), ([1, 3], [0, 2]))
    """
    ends = []
    for sign in (1, -1):
        order = np.lexsort([sign * np.asarray(one) for one in values[::-1]])  # stable
        if image is not None:
            order = order[np.sort(np.unique(np.asarray(image)[order], return_index=True)[1])]
        ends.append(order[:number].tolist())
    return ends[0], ends[1]


def spread(rank: np.ndarray, number: int) -> list[int]:
    """Places of some values, evenly from the lowest value to the highest, both included.

    >>> spread(np.array([5, 1, 9, 1, 2]), 3)
    [1, 4, 2]
    """
    order = np.argsort(rank, kind="stable")
    ends = np.linspace(0, len(order) - 1, min(number, len(order)))
    return [int(place) for place in order[np.rint(ends).astype(int)]]
