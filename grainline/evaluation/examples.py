"""Single outcomes for pages: the images behind a result, heat and attention of texts in them.

Images are read again from the source. Where one is not there any more, its place says so.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

from grainline.data.captions import Sentence, sentences
from grainline.data.decode import decode
from grainline.data.phrases.patterns import Phrase, select, words_of
from grainline.data.phrases.providers import Rules
from grainline.data.record import CorruptSample, Source
from grainline.evaluation.encode import Encodings
from grainline.evaluation.result import Result
from grainline.methods.base import HasAttention, Method, parts_of
from grainline.methods.heat import read_area
from grainline.model import ImageLike, Model, given
from grainline.nn.upsample import FEWEST, NULL_TEXTS
from grainline.report.case import Case, CaseImage, CaseList, SentenceScore, WholeImage
from grainline.report.page import LARGE, MissingImage
from grainline.types import Encoded

EXAMPLES = 6  # of a kind, on a page
SENTENCES = 12  # of a text
PHRASES = 30  # of these sentences: as many as beta-CLIP takes of a caption
CONTRAST_HINT = (
    "Heat is orange where the image shows more of a text than of other texts of the data and blue where less."
    " 1 is the heat that one in five other texts reach; less has no colour."
)
HEAT_HINT = f"{CONTRAST_HINT} At most {SENTENCES} sentences and {PHRASES} phrases in them are shown."
MARKS = " .!?…"  # around a phrase that is a whole sentence


class Evaluation(NamedTuple):
    """A result with what it was measured on."""

    model: Model
    source: Source
    data: Encodings
    result: Result

    def image(self, row: int) -> Image.Image | MissingImage:
        """The square that the model sees of an encoded image, or why it cannot be shown."""
        image = self._decoded(row)
        return image if isinstance(image, MissingImage) else self.model.cropped(image)

    def whole(self, row: int) -> WholeImage | MissingImage:
        """An encoded image, shrunk where it is large, with the square of it that the model reads."""
        image = self._decoded(row)
        return image if isinstance(image, MissingImage) else whole_image(self.model, image)

    def displayed(self, row: int) -> Image.Image | MissingImage:
        """The image as a page shows it: what the model does not read is dim."""
        whole = self.whole(row)
        return whole if isinstance(whole, MissingImage) else whole.marked()

    def _decoded(self, row: int) -> Image.Image | MissingImage:
        key = self.data.keys[row]
        try:
            record = self.source[self.data.positions[row]]
            if record.key != key:
                return MissingImage(f"{key} is not where it was when it was encoded")
            return decode(record)
        except CorruptSample as error:
            return MissingImage(f"{key} cannot be shown: {error.cause}")

    def null(self, row: int) -> list[str] | None:
        """Sentences about other images, to measure heat against; None where there are too few."""
        others = [i for i, image in enumerate(self.data.texts.image.tolist()) if image != row]
        some = [others[i] for i in spread(np.arange(len(others)), NULL_TEXTS)]
        parts = [(sentences(self.data.strings[i]), i) for i in some]
        single = list(dict.fromkeys(one[i % len(one)].text for one, i in parts if one))
        return single if len(single) >= FEWEST else None

    def look(self, row: int, text: str) -> CaseImage | None:
        """The sentences of a text in an image, with their heat; None where no model can look."""
        description = self.data.described[row] if self.data.described else None
        return look_at(self.model, self.image(row), text, description, self.null(row))

    def given(self, row: int, image: Image.Image) -> ImageLike:
        """The image as the model takes it: with its description, where the method reads one."""
        return given(image, self.data.described[row] if self.data.described else None)

    def both_ends(
        self,
        titles: tuple[str, str],
        order: str,
        case: Callable[[int], Case],
        *values: ArrayLike,
        about: str = "",
        **choice: Any,
    ) -> list[CaseList]:
        """The cases of the lowest values and of the highest, with a sentence about images; see `extremes`."""
        hints = (f"{order} {about or self.crop_sentence()}", order)
        return [
            CaseList(title, hint, [case(i) for i in some])
            for title, hint, some in zip(titles, hints, extremes(*values, **choice), strict=True)
        ]

    def crop_sentence(self) -> str:
        """How images are cropped for the page, in a sentence."""
        if self.model.transform.square.patches is not None:
            return "Images are shown pressed into a square; the model reads them in their own shape."
        squash = self.model.transform.resize == "squash"
        how = "pressed into a square" if squash else "a square from their middle"
        return f"Images are shown as the model sees them: {how}."

    def whole_sentence(self) -> str:
        """A sentence about what the images of `whole` show."""
        how = "the model reads the square in their middle, what is dim it does not read"
        if self.model.transform.resize == "squash":
            pressed = "" if self.model.transform.square.patches else ", pressed into a square"
            how = f"the model reads all of them{pressed}"
        return f"Images are at most {LARGE} pixels wide or high; {how}."


class Part(NamedTuple):
    """A part of a text, in an image; the weights of its attention sum to 1."""

    words: str
    weight: Tensor  # [L + 1] float32 on the CPU; the last is the empty slot, where foreign parts should look

    @property
    def empty(self) -> float:
        return float(self.weight[-1])


def attention_of(method: Method, images: Encoded, texts: Encoded, strings: Sequence[str]) -> list[list[Part]]:
    """The attention of text i in image i [N], part by part. A part that a short text repeats comes once."""
    assert isinstance(method, HasAttention), "ask `require_attention` first"
    with torch.no_grad():
        weight = method.attention(images, texts).cpu()  # [N, S, L + 1]
    out = []
    for one, real, text in zip(weight, texts.mask.cpu(), strings, strict=True):
        unique: dict[str, Part] = {}
        for words, row, is_real in zip(parts_of(method, text, len(one)), one, real, strict=True):
            if is_real:
                unique.setdefault(words, Part(words, row))
        out.append(list(unique.values()))
    return out


def extremes(
    *values: ArrayLike, image: ArrayLike | None = None, number: int = EXAMPLES
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
    """Places of some values, evenly from the lowest value to the highest, both included."""
    order = np.argsort(rank, kind="stable")
    ends = np.linspace(0, len(order) - 1, min(number, len(order)))
    return [int(place) for place in order[np.rint(ends).astype(int)]]


def whole_image(model: Model, image: Image.Image, side: int = LARGE) -> WholeImage:
    """An image, shrunk to so many pixels where it is larger, with the square of it that the model reads."""
    image = image.convert("RGB")
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return WholeImage(image, read_area(model.transform, image.size))


def look_at(
    model: Model,
    image: Image.Image | MissingImage,
    text: str,
    description: str | None = None,
    null: Sequence[str] | None = None,
) -> CaseImage:
    """The sentences of a text in an image, each with its score and the phrases that the rules find in it.

    null  other texts that heat is measured against, as in `Model.heat`

    Where image tokens have no places there is no heat, and phrases are left out.
    """
    if isinstance(image, MissingImage):
        return CaseImage(image, "")
    described, located = given(image, description), model.method.has_layout
    scored, strings, left_out = scored_parts(model, described, text)
    heat = model.heat(described, strings, null).cpu().numpy() if located else None
    return CaseImage(image, "the right image", scored, heat, left_out=left_out, contrast=null is not None)


def by_sentence(look: CaseImage) -> CaseImage:
    """The image with its sentences and without their phrases; the one with the most heat is shown first."""
    if look.heat is None:
        return look
    texts = [id(one) for one in look.texts()]
    heat = look.heat[[texts.index(id(one)) for one in look.sentences]]
    plain, strongest = [one._replace(phrases=()) for one in look.sentences], heat.max((1, 2)).argmax()
    return look._replace(sentences=plain, heat=heat, first=int(strongest) + 1, left_out="")


def scored_parts(model: Model, image: ImageLike, text: str) -> tuple[list[SentenceScore], list[str], str]:
    """The sentences of a text with their phrases, scored in an image; all as strings, in this order; what is
    left out.
    """
    everything = sentences(text)
    first, located = everything[:SENTENCES], model.method.has_layout
    phrases = phrases_of(text, first) if located else [[] for _ in first]
    turns = sorted((turn, i) for i, inside in enumerate(phrases) for turn in range(len(inside)))
    number = Counter(i for _, i in turns[:PHRASES])  # turn by turn: a long sentence leaves room for others
    phrases = [inside[: number[i]] for i, inside in enumerate(phrases)]
    strings = [part for one, inside in zip(first, phrases, strict=True) for part in (one.text, *inside)]
    score = iter(model.score([image], strings)[0].tolist())
    scored = [
        SentenceScore(one.text, next(score), phrases=[SentenceScore(x, next(score)) for x in inside])
        for one, inside in zip(first, phrases, strict=True)
    ]
    cut_sentences, cut_phrases = len(everything) - len(first), len(turns) - number.total()
    parts = []
    if cut_sentences:
        parts.append(f"{cut_sentences} of {len(everything)} sentences, at the end")
    if cut_phrases:
        where = " in those shown" if cut_sentences else ""
        parts.append(f"{cut_phrases} of {len(turns)} phrases{where}, at the end of their sentences")
    return scored, strings, f"Left out: {'; '.join(parts)}." if parts else ""


def phrases_of(text: str, among: Sequence[Sentence]) -> list[list[str]]:
    """The phrases in each of some sentences of a text, in the order of the text.

    They are those that training takes with the filter `content`. A phrase that comes again, in whatever
    capitals, stands only in its first place, and one that is a whole sentence is left out.
    """
    once: dict[str, Phrase] = {}
    for phrase in sorted(select(text, Rules().phrases(text)), key=lambda one: (one.start, -one.end)):
        once.setdefault(words_of(text, phrase).lower(), phrase)
    return [
        [
            words_of(text, phrase)
            for words, phrase in once.items()
            if one.start <= phrase.start and phrase.end <= one.end and words != one.text.lower().strip(MARKS)
        ]
        for one in among
    ]
