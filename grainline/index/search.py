"""Searching an index by text or by picture: candidates by vector, the order by the method's own score.

Methods whose score is a product of vectors are answered from the vectors alone. The others (`pairwise`) score
a shortlist of candidates with their stored tokens; a shortlist of all pictures is an exact search.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from grainline.data.captions import sentences
from grainline.data.record import Damaged
from grainline.errors import UserError
from grainline.index.answer import Answer, Hit, Options, Sentence
from grainline.index.inverted import nearest
from grainline.index.mark import model_of
from grainline.index.nearest import Nearest
from grainline.index.null import DRAWN, FEWEST, chance, shown, standard
from grainline.index.opened import Opened
from grainline.index.pictures import confine
from grainline.index.segment import VECTORS
from grainline.model import ImageLike, Model
from grainline.types import Encoded, rows, to

AT_ONCE = 256  # pictures whose tokens are scored at a time
SPARE = 16  # candidates beyond k: products in float32 may swap neighbours
DEFAULT = Options()


class Index:
    """An opened index with its model. It shows what was there when it was opened."""

    def __init__(self, opened: Opened, model: Model, finder: Nearest | None = None) -> None:
        """finder  what finds candidates; chosen by the number of pictures if None"""
        self.opened, self.model = opened, model
        self.root = Path(opened.manifest.root)
        self._finder = finder

    def __len__(self) -> int:
        return len(self.opened)

    def use(self, finder: Nearest) -> None:
        """Let something else find candidates from now on."""
        self._finder = finder

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
        cut = self.model.cut
        encoded = self.model.encode(texts=texts)
        notes = self._notes()
        if self.model.cut > cut:
            notes += (f"{self.model.cut - cut} texts were longer than the model reads, and cut",)
        candidates = self._candidates(encoded, k, options)
        return [
            self._answer(text, rows(encoded, slice(i, i + 1)), candidates[i], k, options, notes)
            for i, text in enumerate(texts)
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
            ground = self.opened.take(VECTORS, self.opened.ground) @ vectors[i]
            hits = []
            if len(found):
                score = self.opened.take(VECTORS, found).astype(np.float64) @ vectors[i].astype(np.float64)
                hits = self._hits(found, score, ground, self.opened.null_images, k, options)
            name = str(image) if isinstance(image, str | Path) else f"picture {i}"
            out.append(Answer(name, tuple(hits), self._notes(texts=False)))
        return out

    @torch.no_grad()
    def scores(self, found: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Scores of some pictures, by number, with some texts: [K, M]"""
        return self._score(found, self.model.encode(texts=texts))

    def _answer(
        self,
        text: str,
        query: Encoded,
        found: np.ndarray,
        k: int,
        options: Options,
        notes: tuple[str, ...],
    ) -> Answer:
        """found  [K] rows to score"""
        if not len(found):
            return Answer(text, (), (*notes, "no candidates were found"))
        told = [sentence.text for sentence in sentences(text)]
        null = self.opened.null_texts if len(told) > 1 else self.opened.null_sentences
        ground = self._score(self.opened.ground, query)[:, 0]
        hits = self._hits(found, self._score(found, query)[:, 0], ground, null, k, options)
        if options.sentences or options.heat:
            hits = self._with_sentences(hits, told, options)
        return Answer(text, tuple(hits), notes)

    def _candidates(self, queries: Encoded, k: int, options: Options) -> list[np.ndarray]:
        """Rows to score exactly: [K] for each query"""
        number = k + SPARE
        if self.model.method.pairwise:
            number = len(self) if options.shortlist is None else max(k, options.shortlist)
            if number >= len(self):
                return [np.arange(len(self))] * len(queries.vector)
        near = self.finder.top(queries.vector.float().cpu().numpy(), min(number, len(self)))
        return [row[row >= 0] for row in near.row]

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
        ground: np.ndarray,
        null: np.ndarray,
        k: int,
        options: Options,
    ) -> list[Hit]:
        """score [K] of the rows found [K]; ground [B], scores with the background"""
        order = np.lexsort((found, -score))[:k]
        chances = chance(null, standard(ground[:, None]).apply(score[order][:, None])[:, 0])
        return [
            Hit(self.opened.rows[found[i]].path, float(score[i]), float(share), bool(share <= options.level))
            for i, share in zip(order, chances, strict=True)
        ]

    def _with_sentences(self, hits: list[Hit], told: list[str], options: Options) -> list[Hit]:
        """Each sentence of the query judged in each hit."""
        found = np.array([self.opened.numbers[hit.path] for hit in hits])
        query = self.model.encode(texts=told)
        score = self._score(found, query)  # [K, S]
        shares = chance(self.opened.support, score - shown(self._score(self.opened.ground, query)))
        out = []
        for i, hit in enumerate(hits):
            heat: Sequence[torch.Tensor | None] = [None] * len(told)
            if options.heat:
                heat = self._heat(found[i], told)
            judged = zip(told, score[i].tolist(), shares[i].tolist(), heat, strict=True)
            said = (Sentence(text, x, p, p <= options.support, shown) for text, x, p, shown in judged)
            out.append(hit._replace(sentences=tuple(said)))
        return out

    def _heat(self, row: int, told: list[str]) -> Sequence[torch.Tensor]:
        """Where each sentence shows: [S, size, size]. UserError if the file is no longer what was indexed."""
        of = self.opened.rows[row]
        try:
            data = confine(self.root, of.path).read_bytes()
        except (OSError, Damaged):
            data = b""
        if hashlib.sha256(data).hexdigest() != of.sha256:
            folder = self.opened.folder
            raise UserError(
                f"{self.root / of.path} is not what was indexed: give `grainline index refresh {folder}`"
            )
        return list(self.model.heat(data, told).cpu())

    def _notes(self, texts: bool = True) -> tuple[str, ...]:
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
    return Index(opened, model_of(Path(folder), opened.manifest, model, device), finder)


def check(folder: str | Path) -> int:
    """Compare every file of an index with its sha256; the number of pictures. UserError where one differs."""
    return len(Opened(Path(folder), thorough=True))
