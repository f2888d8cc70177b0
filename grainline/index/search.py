"""Search an index by text or by image: candidates by vector, ranked by the score of the method.

Methods whose score is a product of vectors use the vectors alone. The others (`pairwise`) score a shortlist
of candidates with their stored tokens; a shortlist of all images is an exact search.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.data.captions import sentences
from grainline.data.descriptions import Described, Descriptions, require_fit
from grainline.data.record import CorruptSample
from grainline.errors import UserError, checked, path_of
from grainline.index.calibration import MIN_IMAGES, MIN_POWER, Standard, p_value, sentence_level, standard
from grainline.index.candidates import CandidateSearch, open_candidates
from grainline.index.image_files import read_indexed, relative
from grainline.index.reader import IndexReader, model_of
from grainline.index.store import VECTORS
from grainline.methods.heat import heat_of
from grainline.model import ImageLike, Model, given
from grainline.nn.upsample import FEWEST as FEWEST_NULL
from grainline.nn.upsample import NULL_TEXTS
from grainline.types import Encoded, rows, to

AT_ONCE = 256  # images whose tokens are scored at a time
MARGIN = 16  # candidates in addition to k: products in float32 may swap neighbours

Verdict = Literal["shows", "cannot tell", "does not"]
Match = Literal["sure", "in part", "none"]


class Sentence(NamedTuple):
    """A sentence of the query and its score in a hit."""

    text: str
    score: float
    p: float  # share of sentences about other images that do as well in the best hits of their texts
    verdict: Verdict
    heat: Tensor | None = None  # [size, size], where it shows in the square that the model sees


class Hit(NamedTuple):
    """An image that matches a query."""

    path: str  # below the folder of images
    score: float  # of the method, higher is closer
    p: float  # share of queries without a match whose best score is at least as high
    match: Match  # none: p > Options.level; in part: not, but a sentence that was scored "does not" show
    sentences: tuple[Sentence, ...] = ()


class QueryHits(NamedTuple):
    """The hits of one query, best first."""

    query: str
    hits: tuple[Hit, ...]
    notes: tuple[str, ...] = ()  # limits of the hits, for users

    @property
    def match(self) -> Match:
        """How well the best hit matches."""
        return self.hits[0].match if self.hits else "none"


class Options(NamedTuple):
    """How to search. Levels are from 0 to 1."""

    shortlist: int | None = 200  # candidates by vector that are scored exactly; None: all images
    level: float = 0.05  # of the queries that have no match, this share may get another match than "none"
    support: float = 0.05  # of the sentences that hits do not show, this share may get the verdict "shows"
    absent: float = 0.05  # of the sentences that right images do show, this share may get "does not"
    sentences: bool = True  # score each sentence of the query in each hit
    heat: bool = False  # with sentences: where each of them shows; reads the image files


def as_json(result: QueryHits) -> dict[str, Any]:
    """The hits of a query as JSON values, without heat.

    >>> as_json(QueryHits("a dog", (Hit("a.jpg", 0.5, 0.25, "none"),)))["hits"]
    [{'path': 'a.jpg', 'score': 0.5, 'p': 0.25, 'match': 'none', 'sentences': []}]
    """
    hits = [hit._asdict() for hit in result.hits]
    for hit in hits:
        hit["sentences"] = [dict(zip(Sentence._fields[:-1], one, strict=False)) for one in hit["sentences"]]
    return {"query": result.query, "match": result.match, "hits": hits, "notes": list(result.notes)}


def verdict_of(p: float, p_if_true: float, options: Options) -> Verdict:
    """The verdict on a sentence. p_if_true: share of true sentences that score so low

    >>> [verdict_of(*p, Options()) for p in [(0.04, 0.9), (0.5, 0.9), (0.5, 0.03)]]
    ['shows', 'cannot tell', 'does not']
    """
    if p <= options.support:
        return "shows"
    return "does not" if p_if_true <= options.absent else "cannot tell"


DEFAULT = Options()


class Index:
    """An open index with its model: a snapshot of the time when it was opened."""

    def __init__(self, reader: IndexReader, model: Model, finder: CandidateSearch | None = None) -> None:
        """finder: the candidate search; None: exact or FAISS, by the number of images"""
        self.reader, self.model, self.root = reader, model, Path(reader.manifest.root)
        self.finder = finder or open_candidates(reader.folder, reader.segments)

    def __len__(self) -> int:
        return len(self.reader)

    @checked()
    @torch.no_grad()
    def search(self, texts: Sequence[str], k: int = 10, options: Options = DEFAULT) -> list[QueryHits]:
        """The k best images for each text. UserError for an empty index, no text, or an empty text."""
        self._check(k, options)
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise UserError("a search needs texts; give at least one, and none that is empty")
        encoded = self.model.encode(texts=texts)
        split = [[sentence.text for sentence in sentences(text)] for text in texts]
        background = self.score(self.reader.background, encoded)  # [B, M]
        spreads = [standard(background[:, i : i + 1]) for i in range(len(texts))]
        hits_of = []
        for parts, spread, pair in zip(split, spreads, self._candidates(encoded, k, options), strict=True):
            one = len(parts) == 1
            null = self.reader.null_sentence_scores if one else self.reader.calibration.best(len(parts))
            hits_of.append(self._hits(*pair, null, k, options.level, spread))
        if options.sentences or options.heat:
            self._add_sentences(hits_of, split, spreads, options)
        notes, out = self.notes() + (self._sentence_notes(options) if options.sentences else ()), []
        assert encoded.truncated is not None, "`Model.encode` gives it for texts"
        for text, hits, truncated in zip(texts, hits_of, encoded.truncated.tolist(), strict=True):
            own = ["the text was longer than the model reads, and truncated"] if truncated else []
            own += [] if hits else ["no candidates were found"]
            out.append(QueryHits(text, tuple(hits), (*notes, *own)))
        return out

    @checked()
    @torch.no_grad()
    def search_images(
        self, images: Sequence[ImageLike], k: int = 10, options: Options = DEFAULT
    ) -> list[QueryHits]:
        """The k nearest images of each image, by vector. `query` is the path of the image, or its number."""
        self._check(k, options)
        vectors = self.model.encode(images=images).vector.float().cpu().numpy()
        near = self.finder.top(vectors, min(k + MARGIN, len(self)))
        plain, out = Standard(np.zeros(1), np.ones(1)), []  # similarities of images are not standardised
        for i, image in enumerate(images):
            row = near.row[i][near.row[i] >= 0]
            hits = []
            if len(row):
                score = self.reader.take(VECTORS, row).astype(np.float64) @ vectors[i].astype(np.float64)
                hits = self._hits(row, score, self.reader.null_image_scores, k, options.level, plain)
            query = image.image if isinstance(image, Described) else image
            name = str(query) if isinstance(query, str | Path) else f"image {i}"
            out.append(QueryHits(name, tuple(hits), self.notes(texts=False)))
        return out

    def read(self, path: str) -> bytes:
        """The bytes of an indexed image. Raises CorruptSample if the file is gone or has changed."""
        return read_indexed(self.root, self.reader.rows[self.reader.numbers[path]])

    def _candidates(
        self, queries: Encoded, k: int, options: Options
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each query: the rows of its candidates [K] and their scores [K]."""
        count = k + MARGIN
        if self.model.method.pairwise:
            count = len(self) if options.shortlist is None else max(k, options.shortlist)
            if count >= len(self):  # the same rows for all: their tokens are read once
                numbers = np.arange(len(self))
                yield from ((numbers, score) for score in self.score(numbers, queries).T)
                return
        near = self.finder.top(queries.vector.float().cpu().numpy(), min(count, len(self)))
        for i, row in enumerate(near.row):
            numbers = row[row >= 0]
            yield numbers, self.score(numbers, rows(queries, slice(i, i + 1)))[:, 0]

    @torch.no_grad()
    def score(self, numbers: np.ndarray, query: Encoded) -> np.ndarray:
        """Scores of images, by number [K], with all queries: [K, M]"""
        if not self.model.method.pairwise:
            vector = query.vector.double().cpu().numpy()
            return np.asarray(self.reader.take(VECTORS, numbers).astype(np.float64) @ vector.T)
        method, parts = self.model.method, []
        for i in range(0, len(numbers), AT_ONCE):
            images = self.reader.encoded(numbers[i : i + AT_ONCE], method.precomputed_class)
            parts.append(method.score(to(images, self.model.device), query))
        return torch.cat(parts).double().cpu().numpy()

    def _hits(
        self, numbers: np.ndarray, score: np.ndarray, null: np.ndarray, k: int, level: float, spread: Standard
    ) -> list[Hit]:
        """The k best hits. numbers, score: candidates [K]

        null    sorted scores of queries without a match, standardised
        spread  mean and std of the scores of the query over the background
        """
        order = np.lexsort((numbers, -score))[:k]
        hits = []
        for i, p in zip(order, p_value(null, spread.apply(score[order])).tolist(), strict=True):
            match: Match = "sure" if p <= level else "none"
            hits.append(Hit(self.reader.rows[numbers[i]].path, float(score[i]), p, match))
        return hits

    def _add_sentences(
        self, hits_of: list[list[Hit]], split: list[list[str]], spreads: list[Standard], options: Options
    ) -> None:
        """Add score, p and verdict of each sentence of the query to the hits."""
        place = {text: i for i, text in enumerate(dict.fromkeys(text for texts in split for text in texts))}
        encoded = self.model.encode(texts=list(place))
        levels = sentence_level(self.score(self.reader.background, encoded))  # [T]
        power = self._power(options)
        for hits, texts, spread in zip(hits_of, split, spreads, strict=True):
            if not hits:
                continue
            numbers = np.array([self.reader.numbers[hit.path] for hit in hits])
            places = [place[text] for text in texts]
            score = self.score(numbers, rows(encoded, torch.tensor(places)))  # [K, S]
            tested = score - levels[places]
            p = self._sentence_p(hits, tested, spread)
            p_true = np.ones(p.shape) if power is None else self.reader.calibration.p_if_true(tested)
            heat: list[Any] = [[None] * len(texts)] * len(hits)
            if options.heat:
                heat = [list(x) for x in self.heat([(row, texts) for row in numbers.tolist()])]
            for j, hit in enumerate(hits):
                verdicts: list[Verdict] = ["cannot tell"] * len(texts)
                if power is None or power >= MIN_POWER:
                    verdicts = [verdict_of(*pair, options) for pair in zip(p[j], p_true[j], strict=True)]
                parts = map(Sentence, texts, score[j].tolist(), p[j].tolist(), verdicts, heat[j])
                partly = hit.match == "sure" and "does not" in verdicts
                hits[j] = hit._replace(sentences=tuple(parts), match="in part" if partly else hit.match)

    def _sentence_p(self, hits: list[Hit], tested: np.ndarray, spread: Standard) -> np.ndarray:
        """p of each sentence in each hit of a query: [K, S]. tested [K, S]: scores minus levels"""
        if len(self) < MIN_IMAGES:
            return np.ones(tested.shape)
        if tested.shape[1] == 1:  # the sentence is the query
            return np.array([[hit.p] for hit in hits])
        score = np.array([hit.score for hit in hits])
        return self.reader.calibration.p(tested.shape[1], score, spread, tested)

    def _power(self, options: Options) -> float | None:
        """Share of true sentences with the verdict "shows"; None if no images with captions measure it."""
        return 0.0 if len(self) < MIN_IMAGES else self.reader.calibration.power(options.support)

    def _sentence_notes(self, options: Options) -> tuple[str, ...]:
        """Limits of the verdicts on sentences."""
        power = self._power(options)
        if power is None:
            why = "the calibration texts have no images, so no sentence gets the verdict 'does not'"
            return (f"{why}; build with --calibration-texts DATA that has images with captions",)
        few = len(self) < MIN_IMAGES  # `notes` says so
        return ("this model is too weak to judge single sentences",) if power < MIN_POWER and not few else ()

    @torch.no_grad()
    def heat(
        self, queries: Sequence[tuple[int, Sequence[str]]], size: tuple[int, int] | None = None
    ) -> list[Tensor]:
        """Heat maps of texts over images, read from their files: for each row and its texts [S, H, W].

        Heat is the contrast with the calibration sentences of the index (`nn.upsample.contrast`). UserError
        if a file has changed, or if the image tokens of the method have no layout.

        queries  (row, texts) of each image
        size     (H, W); None: the input size of the model
        """
        method = self.model.method
        if not method.has_layout:
            raise UserError(f"the image tokens of {self.model.description.method} have no places")
        numbers = list(dict.fromkeys(row for row, _ in queries))
        texts = list(dict.fromkeys(text for _, own in queries for text in own))
        try:
            indexed = [self.reader.rows[i] for i in numbers]
            data = [given(read_indexed(self.root, row), row.description) for row in indexed]
        except CorruptSample as error:
            raise UserError(f"{error}; refresh the index") from None
        images, encoded = self.model.encode(images=data), self.model.encode(texts=texts)
        out = []
        for row, own in queries:
            image = rows(images, torch.tensor([numbers.index(row)]))
            some = rows(encoded, torch.tensor([texts.index(text) for text in own]))
            heat = heat_of(method, image, some, self._heat_null, size or (method.size, method.size))
            out.append(heat.cpu())
        return out

    @cached_property
    def _heat_null(self) -> Encoded:
        """Calibration texts for the contrast of heat: single sentences if there are enough of them."""
        null = self.reader.calibration_texts
        pool = null.sentences if len(null.sentences) >= FEWEST_NULL else null.texts
        places = np.linspace(0, len(pool) - 1, min(NULL_TEXTS, len(pool))).astype(int)
        return self.model.encode(texts=[pool[i] for i in places])

    def notes(self, texts: bool = True) -> tuple[str, ...]:
        """Limits of all searches of this index, by text or by image."""
        few = f"{len(self)} images are too few to say how sure a match is" if len(self) < MIN_IMAGES else ""
        given_texts = "build with --calibration-texts for texts like yours"
        words = self.reader.built_in_texts if texts else ""
        notes = self.finder.note, few, f"p was calibrated with {words}; {given_texts}" if words else ""
        return tuple(note for note in notes if note)

    def _check(self, k: int, options: Options) -> None:
        for name in ("level", "support", "absent"):
            value = getattr(options, name)
            if not (isinstance(value, float | int) and 0 <= value <= 1):
                raise UserError(f"Options.{name} is {value}; it must be a number from 0 to 1")
        if not len(self):
            raise UserError(f"index {self.reader.folder} holds no images; `grainline index add` some first")
        if k < 1:
            raise UserError(f"k is {k}; it must be 1 at least")
        for segment in self.reader.segments:  # the finder has them mapped
            segment.arrays[VECTORS].require_size()


@checked()
def open_index(
    folder: str | Path,
    model: Model | str | None = None,
    *,
    device: str | None = None,
    finder: CandidateSearch | None = None,
) -> Index:
    """Open an index for searching. UserError for no index, a damaged one, or another model.

    model  the model of the index, or its folder; None: the folder that the index stores
    """
    reader = IndexReader(path_of(folder, "the folder of the index"))
    return Index(reader, model_of(Path(folder), reader.manifest, model, device), finder)


def check(folder: str | Path) -> int:
    """Compare every file of an index with its sha256; the number of images. UserError for damage."""
    return len(IndexReader(Path(folder), thorough=True))


def image_queries(index: Index, images: Sequence[str], descriptions: Sequence[str]) -> list[ImageLike]:
    """Image files as queries, each with its description where there is one.

    descriptions  files of descriptions, by the path of an image or by its name; an image of the index has its
                  description there. UserError where the model reads none
    """
    files = Descriptions(descriptions) if descriptions else None
    if files is not None:
        method = index.model.method
        require_fit(index.model.description.method, method.reads_descriptions, files, "--descriptions")
    out = []
    for image in images:
        text = None if files is None else files.of_file(image)
        with suppress(UserError, KeyError):  # it lies elsewhere, or is not indexed
            text = text or index.reader.rows[index.reader.numbers[relative(index.root, image)]].description
        out.append(given(image, text))
    return out
