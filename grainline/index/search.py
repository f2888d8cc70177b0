"""Searching an index by text or by picture: candidates by vector, the order by the method's own score.

Methods whose score is a product of vectors are answered from the vectors alone. The others (`pairwise`) score
a shortlist of candidates with their stored tokens; a shortlist of all pictures is an exact search.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grainline.data.captions import sentences
from grainline.data.descriptions import Described, Descriptions, require_fit
from grainline.data.record import Damaged
from grainline.errors import UserError
from grainline.evaluation.validated import validated
from grainline.index.calibration import FEWEST, WEAK, Standard, p_value, shown, standard
from grainline.index.calibration_texts import DRAWN
from grainline.index.candidates import Nearest
from grainline.index.image_files import relative, unchanged
from grainline.index.inverted import nearest
from grainline.index.reader import Opened, model_of
from grainline.index.results import Answer, Hit, Options, Sentence, Verdict, verdict_of
from grainline.index.segment import VECTORS
from grainline.model import ImageLike, Model, given, heat_of
from grainline.nn.upsample import FEWEST as FEWEST_NULL
from grainline.nn.upsample import NULL_TEXTS
from grainline.types import Encoded, rows, to

AT_ONCE = 256  # pictures whose tokens are scored at a time
SPARE = 16  # candidates beyond k: products in float32 may swap neighbours
DEFAULT = Options()


class Index:
    """An opened index with its model. It shows what was there when it was opened."""

    def __init__(
        self, opened: Opened, model: Model, finder: Nearest | None = None, path: str | None = None
    ) -> None:
        """
        finder  what finds candidates; chosen by the number of pictures if None
        path    where the model lies; where it lay when the index was built if None
        """
        self.opened, self.model = opened, model
        self.path = opened.manifest.model.path if path is None else path
        self.root = Path(opened.manifest.root)
        self._finder = finder

    def __len__(self) -> int:
        return len(self.opened)

    def use(self, finder: Nearest) -> None:
        """Let something else find candidates from now on."""
        self._finder = finder

    @cached_property
    def validated(self) -> str:
        """At which rank the model finds right images on the validation data of its run; "" if unknown."""
        return validated(self.path) if self.path else ""

    @property
    def finder(self) -> Nearest:
        if self._finder is None:
            self._finder = nearest(self.opened.folder, self.opened.segments)
        return self._finder

    @torch.no_grad()
    def search(self, texts: Sequence[str], k: int = 10, options: Options = DEFAULT) -> list[Answer]:
        """The k best pictures for each text."""
        self._check(k)
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise UserError("a search needs texts; give at least one, and none that is empty")
        encoded = self.model.encode(texts=texts)
        told = [[sentence.text for sentence in sentences(text)] for text in texts]
        ground = self._score(self.opened.ground, encoded)  # [B, M]
        answers = []
        for i, (found, score) in enumerate(self._scored(encoded, k, options)):
            null = self.opened.null_of(len(told[i]))
            answers.append(self._hits(found, score, ground[:, i], null, k, options))
        if options.sentences or options.heat:
            answers = self._with_sentences(answers, told, standard(ground), options)
        notes = self.notes() + (self._about_sentences(options) if options.sentences else ())
        return [
            Answer(text, tuple(hits), notes + _own_notes(hits, cut))
            for text, hits, cut in zip(texts, answers, self._cut(texts), strict=True)
        ]

    @torch.no_grad()
    def search_images(
        self, images: Sequence[ImageLike], k: int = 10, options: Options = DEFAULT
    ) -> list[Answer]:
        """The k pictures nearest to each picture, by vector. Names of the queries are paths, or numbers."""
        self._check(k)
        vectors = self.model.encode(images=images).vector.float().cpu().numpy()
        near = self.finder.top(vectors, min(k + SPARE, len(self)))
        out = []
        for i, image in enumerate(images):
            found = near.row[i][near.row[i] >= 0]
            hits = []
            if len(found):
                score = self.opened.take(VECTORS, found).astype(np.float64) @ vectors[i].astype(np.float64)
                hits = self._hits(found, score, None, self.opened.null_images, k, options)
            asked = image.image if isinstance(image, Described) else image
            name = str(asked) if isinstance(asked, str | Path) else f"picture {i}"
            out.append(Answer(name, tuple(hits), self.notes(texts=False)))
        return out

    def read(self, path: str) -> bytes:
        """The file of a picture of the index. Raises Damaged where it is not what was indexed."""
        return unchanged(self.root, self.opened.rows[self.opened.numbers[path]])

    @torch.no_grad()
    def scores(self, found: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Scores of some pictures, by number, with some texts: [K, M]"""
        return self._score(found, self.model.encode(texts=texts))

    def _scored(self, queries: Encoded, k: int, options: Options) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Of every query the rows to choose from [K], and their scores [K]."""
        wanted = k + SPARE
        if self.model.method.pairwise:
            wanted = len(self) if options.shortlist is None else max(k, options.shortlist)
            if wanted >= len(self):  # the same rows for all: their tokens are read once
                everything = np.arange(len(self))
                yield from ((everything, score) for score in self._score(everything, queries).T)
                return
        near = self.finder.top(queries.vector.float().cpu().numpy(), min(wanted, len(self)))
        for i, row in enumerate(near.row):
            found = row[row >= 0]
            yield found, self._score(found, rows(queries, slice(i, i + 1)))[:, 0]

    def _score(self, found: np.ndarray, query: Encoded) -> np.ndarray:
        """Scores of some pictures with all rows of the query, as the method scores: [K, M]"""
        if not self.model.method.pairwise:
            vector = query.vector.double().cpu().numpy()
            product: np.ndarray = self.opened.take(VECTORS, found).astype(np.float64) @ vector.T
            return product
        parts = [
            self.model.method.score(to(self.opened.encoded(found[i : i + AT_ONCE]), self.model.device), query)
            for i in range(0, len(found), AT_ONCE)
        ]
        return torch.cat(parts).double().cpu().numpy()

    def _hits(
        self,
        found: np.ndarray,
        score: np.ndarray,
        ground: np.ndarray | None,
        null: np.ndarray,
        k: int,
        options: Options,
    ) -> list[Hit]:
        """score [K] of the rows found [K]; ground [B], scores with the background, which standardise

        ground  None: the null holds scores as they are
        """
        order = np.lexsort((found, -score))[:k]
        value = score[order]
        if ground is not None:
            value = standard(ground[:, None]).apply(value[:, None])[:, 0]
        shares = p_value(null, value)
        return [
            Hit(self.opened.rows[found[i]].path, float(score[i]), float(share), bool(share <= options.level))
            for i, share in zip(order, shares, strict=True)
        ]

    def _with_sentences(
        self, answers: list[list[Hit]], told: list[list[str]], of: Standard, options: Options
    ) -> list[list[Hit]]:
        """Each sentence of each query judged in each of its hits; the model reads all of them at once.

        of  mean and std of the scores of each query over the background
        """
        distinct = list(dict.fromkeys(text for texts in told for text in texts))
        at = {text: i for i, text in enumerate(distinct)}
        encoded = self.model.encode(texts=distinct)
        levels = shown(self._score(self.opened.ground, encoded))  # [T]
        out = []
        for i, (hits, texts) in enumerate(zip(answers, told, strict=True)):
            if not hits:
                out.append(hits)
                continue
            found = np.array([self.opened.numbers[hit.path] for hit in hits])
            own = [at[text] for text in texts]
            score = self._score(found, rows(encoded, torch.tensor(own)))  # [K, S]
            mine = Standard(of.mean[i : i + 1], of.spread[i : i + 1])
            verdicts = self._judge(hits, score, score - levels[own], mine, options)
            heat: list[Any] = [[None] * len(texts)] * len(hits)
            if options.heat:
                heat = [list(x) for x in self.heat([(row, texts) for row in found.tolist()])]
            out.append(
                [
                    hit._replace(
                        sentences=tuple(map(Sentence, texts, score[j].tolist(), *verdicts[j], heat[j]))
                    )
                    for j, hit in enumerate(hits)
                ]
            )
        return out

    def _judge(
        self, hits: list[Hit], score: np.ndarray, tested: np.ndarray, of: Standard, options: Options
    ) -> list[tuple[list[float], list[Verdict]]]:
        """p and verdict of each sentence in each hit of a query. tested [K, S], scores minus levels"""
        count = score.shape[1]
        if len(self) < FEWEST:
            p = np.ones(score.shape)
        elif count == 1:  # the sentence is the query
            p = np.array([[hit.p] for hit in hits])
        else:
            best = np.array([hit.score for hit in hits])
            p = self.opened.calibration.p(count, best, of, tested)
        power = self._power(options)
        if power is not None and power < WEAK:
            return [(row.tolist(), ["cannot tell"] * count) for row in p]
        lacking = np.ones(p.shape) if power is None else self.opened.calibration.lacking(tested)
        return [
            (row.tolist(), [verdict_of(x, low, options) for x, low in zip(row, lows, strict=True)])
            for row, lows in zip(p, lacking, strict=True)
        ]

    def _power(self, options: Options) -> float | None:
        """Of true sentences the share that is said to be shown; None where nothing says it."""
        return 0.0 if len(self) < FEWEST else self.opened.calibration.power(options.support)

    def _about_sentences(self, options: Options) -> tuple[str, ...]:
        """What weakens the verdicts on sentences."""
        power = self._power(options)
        if len(self) < FEWEST:
            return ()  # which is said already
        if power is None:
            return (
                "nothing says how well this model tells sentences, so it never says that an image does not "
                "show one; build with --null DATA that has images with captions",
            )
        if power < WEAK:
            share = f"{100 * power:.0f} %" if power >= 0.005 else "hardly any"
            return (f"this model tells {share} of the sentences that are true of an image: it judges none",)
        return ()

    @torch.no_grad()
    def heat(
        self, asked: Sequence[tuple[int, Sequence[str]]], size: tuple[int, int] | None = None
    ) -> list[torch.Tensor]:
        """Where texts show in the squares that the model sees of some rows: [S, H, W] of each and its texts.

        size  (H, W); None: the side of the square

        Heat is what a text shows beyond the null sentences of the index, in units in which 1 is what few of
        them reach (`nn.upsample.contrast`).

        Reads the picture files. UserError if one is no longer what was indexed, or if tokens have no places.
        """
        method = self.model.method
        if not method.placed:
            raise UserError(f"the image tokens of {self.model.description.method} have no places")
        size = size or (method.size, method.size)
        numbers = list(dict.fromkeys(row for row, _ in asked))
        texts = list(dict.fromkeys(text for _, told in asked for text in told))
        at = {row: i for i, row in enumerate(numbers)}
        place = {text: i for i, text in enumerate(texts)}
        rows_of = self.opened.rows
        images = self.model.encode(images=[given(self._read(i), rows_of[i].description) for i in numbers])
        encoded = self.model.encode(texts=texts)
        out = []
        for row, told in asked:
            picture = rows(images, slice(at[row], at[row] + 1))
            own = rows(encoded, torch.tensor([place[text] for text in told]))
            out.append(heat_of(method, picture, own, self._others, size).cpu())
        return out

    @cached_property
    def _others(self) -> Encoded:
        """Null texts to measure heat against: single sentences, where there are enough of them."""
        null = self.opened.null
        said = null.asides if len(null.asides) >= FEWEST_NULL else null.texts
        some = np.linspace(0, len(said) - 1, min(NULL_TEXTS, len(said))).astype(int)
        return self.model.encode(texts=[said[i] for i in some])

    def _read(self, row: int) -> bytes:
        """The file of a row. UserError if it is no longer what was indexed."""
        path = self.opened.rows[row].path
        try:
            return self.read(path)
        except Damaged:
            raise UserError(
                f"{self.root / path} is not what was indexed: "
                f"give `grainline index refresh {self.opened.folder}`"
            ) from None

    def _cut(self, texts: Sequence[str]) -> list[bool]:
        """Which texts are longer than the model reads."""
        return self.model.read(texts).cut

    def notes(self, texts: bool = True) -> tuple[str, ...]:
        """What weakens every answer of this index, to texts or to pictures."""
        notes = []
        if self.finder.note:
            notes.append(self.finder.note)
        if len(self) < FEWEST:
            notes.append(f"{len(self)} pictures are too few to say how sure an answer is")
        if texts and self.opened.null.source == DRAWN:
            notes.append(
                "how sure it is was calibrated on drawn scenes; build with --null for texts like yours"
            )
        return tuple(notes)

    def _check(self, k: int) -> None:
        if not len(self):
            raise UserError(f"index {self.opened.folder} holds no pictures; `grainline index add` some first")
        if k < 1:
            raise UserError(f"k is {k}; it must be 1 at least")


def _own_notes(hits: Sequence[Hit], cut: bool) -> tuple[str, ...]:
    """What weakens one answer."""
    notes = ["the text was longer than the model reads, and cut"] if cut else []
    return (*notes, *([] if hits else ["no candidates were found"]))


def open_index(
    folder: str | Path,
    model: Model | str | None = None,
    *,
    device: str | None = None,
    finder: Nearest | None = None,
) -> Index:
    """Open an index for searching.

    model   what it was made with, or its folder; the folder that it was built with if None
    """
    opened = Opened(Path(folder))
    path = model if isinstance(model, str) else None
    return Index(opened, model_of(Path(folder), opened.manifest, model, device), finder, path)


def check(folder: str | Path) -> int:
    """Compare every file of an index with its sha256; the number of pictures. UserError for damage."""
    return len(Opened(Path(folder), thorough=True))


# Pictures as queries, with their descriptions where the model reads them.


def queries(index: Index, images: Sequence[str], names: Sequence[str]) -> list[ImageLike]:
    """Picture files as the model of an index is given them.

    names  files of descriptions, by the path of a picture as it is given or by its name; a picture of the
           index has its description there

    Raises UserError for a picture without a description, and for files that the model does not read.
    """
    model = index.model
    if not model.method.describes:
        require_fit(model.description.method, False, Descriptions(names) if names else None, "--descriptions")
        return list(images)
    told = Descriptions(names) if names else None
    return [Described(image, _description(index, image, told)) for image in images]


def _description(index: Index, image: str, told: Descriptions | None) -> str:
    text = None if told is None else told.of_file(image)
    if text is not None:
        return text
    try:
        place = index.opened.numbers.get(relative(index.root, image))
    except UserError:  # it lies elsewhere
        place = None
    text = None if place is None else index.opened.rows[place].description
    if text is None:
        name = index.model.description.method
        raise UserError(
            f"{name} reads a description beside each picture, and {image} has none in the index: name a file "
            "of `grainline data describe` with --descriptions"
        )
    return text
