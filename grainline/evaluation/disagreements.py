"""The texts of retrieval on which two models disagree most: both side by side, with heat in the right image.

A result has the rank of the right image of each text, and the image that stands first. What disagrees is
chosen from these numbers; then each model is loaded once, and looks at the right images that are shown.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from PIL import Image

from grainline.data.captions import sentences
from grainline.data.decode import decode
from grainline.data.record import CorruptSample, Record, Source
from grainline.errors import UserError
from grainline.evaluation.comparison import Comparison
from grainline.evaluation.encode import texts_of
from grainline.evaluation.examples import CONTRAST_HINT, by_sentence, look_at, spread, whole_image
from grainline.evaluation.result import Result, read
from grainline.evaluation.suite import suite_of
from grainline.evaluation.suites.long_retrieval import LongRetrievalSuite, under
from grainline.loading import load
from grainline.nn.upsample import FEWEST, NULL_TEXTS
from grainline.report.case import Case, CaseImage, Panel, Row, cases_html
from grainline.report.page import MissingImage, Section, hint, render

Describe = Callable[[Any, str], Any]  # a model and its path: the `Descriptions` that it reads, or None
SUITES = "retrieval", "long-retrieval", "transfer"  # whose texts look for their image
EXAMPLES = 3  # of two models, each way, where models are few
MOST = 24  # of all models
SIDE = 288  # pixels of the longer side of an image: two stand side by side
HINT = (
    "Texts whose right image stands farther up by the one model than by the other: the largest factors, one"
    f" text of an image. {CONTRAST_HINT}"
)
Place = tuple[str, int, int, int]  # model, column, row of the right image, number of its text


class Query(NamedTuple):
    """A text of retrieval by two models, the one that finds its image farther up first."""

    image: int  # row of the right image
    text: int  # number of the text among those of its image
    ranks: tuple[int, int]
    first: tuple[int, int]  # rows of the images that stand first


class Disagreement(NamedTuple):
    """Texts for which one model finds the right image farther up than another one."""

    better: str
    worse: str
    queries: tuple[tuple[int, Query], ...]  # with the column of each


def most_apart(better: Result, worse: Result, number: int = EXAMPLES) -> list[Query]:
    """The texts whose rank by one model is the smallest part of that by the other, one of each image.

    Of equal parts the smaller rank comes first, then the order of the data.
    """
    queries = []
    for a, b in zip(better.queries["folds"], worse.queries["folds"], strict=True):
        texts = Counter[int]()
        ranks = zip(a["t2i"]["rank"], b["t2i"]["rank"], strict=True)
        first = zip(a["t2i"]["first"], b["t2i"]["first"], strict=True)
        for image, rank, top in zip(a["t2i"]["image"], ranks, first, strict=True):
            queries.append(Query(image, texts[image], rank, top))
            texts[image] += 1
    apart = [one for one in queries if one.ranks[0] < one.ranks[1]]
    apart.sort(key=lambda one: (one.ranks[0] / one.ranks[1], one.ranks[0]))
    unique = dict[int, Query]()
    for one in apart:
        unique.setdefault(one.image, one)
    return list(unique.values())[:number]


class Records:
    """The records of a set as a result read them, by rows of its images."""

    def __init__(self, source: Source, result: Result) -> None:
        suite, self.captions = suite_of(result), result.settings["captions"]
        self.keys, self.gaps = result.queries["keys"], sum(result.data["damaged"].values())
        long = isinstance(suite, LongRetrievalSuite)
        self.source = under(source, suite.options.protocol, self.captions)[0] if long else source

    def record(self, row: int) -> Record | None:
        """The record of an image, None where it is not there any more. Damaged ones may stand before it."""
        for place in range(row, min(len(self.source), row + self.gaps + 1)):
            with suppress(CorruptSample):
                if (record := self.source[place]).key == self.keys[row]:
                    return record
        return None

    def texts(self, row: int) -> list[str]:
        """The texts of an image."""
        record = self.record(row)
        return [] if record is None else [x for x in texts_of(record, self.captions) if x.strip()]

    def image(self, row: int) -> Image.Image | MissingImage:
        """An image, or why it cannot be shown."""
        record = self.record(row)
        if record is None:
            return MissingImage(f"{self.keys[row]} is not where it was when it was encoded")
        try:
            return decode(record).convert("RGB")
        except CorruptSample as error:
            return MissingImage(f"{self.keys[row]} cannot be shown: {error.cause}")

    def small(self, row: int) -> Image.Image | MissingImage:
        """An image as the page shows it."""
        image = self.image(row)
        if not isinstance(image, MissingImage):
            image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        return image

    def others(self, rows: set[int]) -> list[str] | None:
        """Sentences about other images, to measure heat against; None where there are too few."""
        rest = [i for i in range(len(self.keys)) if i not in rows]
        texts = [self.texts(rest[i])[:1] for i in spread(np.arange(len(rest)), NULL_TEXTS)]
        parts = [(sentences(one[0]), i) for i, one in enumerate(texts) if one]
        single = list(dict.fromkeys(one[i % len(one)].text for one, i in parts if one))
        return single if len(single) >= FEWEST else None


def disagreement_sections(
    comparison: Comparison,
    sources: Mapping[str, Source],
    describe: Describe = lambda model, path: None,  # noqa: ARG005
) -> list[Section]:
    """Parts of a page: for the base against each other model what one finds and the other misses.

    sources   of the sets, by their names; a set without one is left out
    describe  gives the descriptions of images for a model that reads them
    """
    results = _results(comparison, sources)
    records = {
        column: Records(sources[comparison.columns[column].set], one) for (_, column), one in results.items()
    }
    chosen, looks = list(_chosen(comparison, results)), dict[Place, CaseImage]()
    for model in (one for one in comparison.models if one.kind == "model"):
        own = [(column, q) for one in chosen if model.name in one[:2] for column, q in one.queries]
        with suppress(UserError):  # it is not there any more: then images are shown without heat
            looks |= {(model.name, *key): x for key, x in _looks(model.paths[0], own, records, describe)}
    return [
        Section(
            f"Found by {one.better}, missed by {one.worse}",
            hint(HINT)
            + Markup().join(_case(comparison, one, i, records, looks) for i in range(len(one.queries))),
        )
        for one in chosen
    ]


def _results(comparison: Comparison, sources: Mapping[str, Source]) -> dict[tuple[str, int], Result]:
    """The results of retrieval, of the first seed of each model, by model and column."""
    out = {}
    for cell in (one for one in comparison.cells if one.files):
        column = comparison.columns[cell.column]
        plain = column.suite in SUITES and column.options.get("perturb", "none") == "none"
        if plain and column.set in sources:
            result = read(cell.files[0])
            if all("first" in fold["t2i"] for fold in result.queries["folds"]):
                out[cell.model, cell.column] = result
    return out


def _chosen(comparison: Comparison, results: Mapping[tuple[str, int], Result]) -> Iterator[Disagreement]:
    """The base against each other model, both ways: texts of each set in turn, of its first column."""
    base, others = comparison.base, [one.name for one in comparison.models if one.name != comparison.base]
    number = min(EXAMPLES, max(1, MOST // (2 * max(1, len(others)))))
    for other in others:
        both = [i for i in range(len(comparison.columns)) if (base, i) in results and (other, i) in results]
        columns = {comparison.columns[i].set: i for i in reversed(both)}.values()
        for better, worse in ((other, base), (base, other)):
            lists = [
                [(i, q) for q in most_apart(results[better, i], results[worse, i], number)] for i in columns
            ]
            turns = [one for turn in zip_longest(*reversed(lists)) for one in turn if one is not None]
            if turns:
                yield Disagreement(better, worse, tuple(turns[:number]))


def _looks(
    path: str, queries: Sequence[tuple[int, Query]], records: Mapping[int, Records], describe: Describe
) -> Iterator[tuple[tuple[int, int, int], CaseImage]]:
    """The right images of some texts as a model sees them, by column, row and number of the text."""
    if not queries:
        return
    model = load(path)
    descriptions = describe(model, path)
    for column in {column for column, _ in queries}:
        own, some = records[column], [q for c, q in queries if c == column]
        null = own.others({q.image for q in some})
        for q in some:
            record, image, text = own.record(q.image), own.image(q.image), own.texts(q.image)[q.text :]
            if record is None or isinstance(image, MissingImage) or not text or not model.method.has_layout:
                continue
            dense = None if descriptions is None else descriptions.of(record)
            look = by_sentence(look_at(model, model.cropped(image), text[0], dense, null))
            yield (column, q.image, q.text), look._replace(whole=whole_image(model, image, SIDE))


def _case(
    comparison: Comparison,
    pair: Disagreement,
    number: int,
    records: Mapping[int, Records],
    looks: Mapping[Place, CaseImage],
) -> Markup:
    """A text, and for each of two models the image that it ranks first, and its heat in the right one."""
    column, query = pair.queries[number]
    own, cases = records[column], []
    where = comparison.columns[column]
    for model, rank, first in zip(pair[:2], query.ranks, query.first, strict=True):
        panels, look = [], looks.get((model, column, query.image, query.text))
        if first != query.image:
            panels.append(
                Panel("ranked first", own.small(first), alt=f"{own.keys[first]}, a wrong image", right=False)
            )
        if look is None:
            panels.append(
                Panel("", own.small(query.image), alt=f"{own.keys[query.image]}, the right image", right=True)
            )
        title, row = f"{model}: rank {rank:,}", [Row(panels)] if panels else []
        cases.append(Case(title, f"of {where.images:,}, {where.set}", rank == 1, rows=row, look=look))
    text = own.texts(query.image)[query.text :] or [f"the text of {own.keys[query.image]} is gone"]
    name = f"apart-{pair.better}-{pair.worse}-{number}-"
    return render("rows.html", kind="apart", lead=text[0], parts=[cases_html(cases, name)])
