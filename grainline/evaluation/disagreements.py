"""The texts of retrieval on which two models disagree most: both side by side, with heat in the right image.

A result has the rank of the right image of each text, and the image that stands first. The examples are
chosen by these numbers; then each model is loaded once, and looks at the right images that are shown.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from grainline.data.captions import sentences
from grainline.data.decode import decode
from grainline.data.record import CorruptSample, Record, Source
from grainline.errors import UserError
from grainline.evaluation.comparison import Column, Comparison, Entrant
from grainline.evaluation.encode import texts_of
from grainline.evaluation.examples import CONTRAST_HINT, by_sentence, look_at, spread, whole_image
from grainline.evaluation.result import Result, read
from grainline.evaluation.suite import suite_of
from grainline.evaluation.suites.long_retrieval import LongRetrievalSuite, under
from grainline.loading import load
from grainline.nn.upsample import FEWEST, NULL_TEXTS
from grainline.report.case import Case, CaseImage, Panel, Row, cases_html
from grainline.report.page import LARGE, MissingImage, Section, hint, render

Describe = Callable[[Any, str], Any]  # a model and its path: the `Descriptions` that it reads, or None
SUITES = "retrieval", "long-retrieval"  # whose texts look for their image
EXAMPLES = 3  # of two models, each way, where models are few
MOST = 24  # of all models
SIDE = 288  # pixels of the longer side of an image: two stand side by side
HINT = (
    "Texts whose right image stands farther up by the one model than by the other: the largest factors, one"
    f" text of an image. {CONTRAST_HINT}"
)


class Query(NamedTuple):
    """A text of retrieval by two models, the one that finds its image farther up first."""

    column: int  # of the comparison
    image: int  # row of the right image
    text: int  # number of the text among those of its image
    ranks: tuple[int, int]
    first: tuple[int, int]  # rows of the images that stand first


Looks = dict[tuple[str, int, int, int], CaseImage]  # by model, column, image, text


def most_different(better: Result, worse: Result, number: int = EXAMPLES, column: int = 0) -> list[Query]:
    """The texts whose rank by one model is the smallest part of that by the other, one of each image.

    Of equal parts the smaller rank comes first, then the order of the data.
    """
    queries = []
    for a, b in zip(better.queries["folds"], worse.queries["folds"], strict=True):
        texts = Counter[int]()
        ranks, first = (zip(a["t2i"][name], b["t2i"][name], strict=True) for name in ("rank", "first"))
        for image, rank, top in zip(a["t2i"]["image"], ranks, first, strict=True):
            queries.append(Query(column, image, texts[image], rank, top))
            texts[image] += 1
    ahead = [one for one in queries if one.ranks[0] < one.ranks[1]]
    ahead.sort(key=lambda one: (one.ranks[0] / one.ranks[1], one.ranks[0]))
    unique = dict[int, Query]()
    for one in ahead:
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
        """An image, shrunk where it is large, or why it cannot be shown."""
        record = self.record(row)
        if record is None:
            return MissingImage(f"{self.keys[row]} is not where it was when it was encoded")
        try:
            image = decode(record).convert("RGB")
        except CorruptSample as error:
            return MissingImage(f"{self.keys[row]} cannot be shown: {error.cause}")
        image.thumbnail((LARGE, LARGE), Image.Resampling.LANCZOS)
        return image

    def others(self, rows: set[int]) -> list[str] | None:
        """Sentences about other images, to measure heat against; None where there are too few."""
        rest = [i for i in range(len(self.keys)) if i not in rows]
        texts = [self.texts(rest[i])[:1] for i in spread(np.arange(len(rest)), NULL_TEXTS)]
        parts = [(sentences(one[0]), i) for i, one in enumerate(texts) if one]
        single = list(dict.fromkeys(one[i % len(one)].text for one, i in parts if one))
        return single if len(single) >= FEWEST else None


def disagreement_sections(
    comparison: Comparison, sources: Mapping[str, Source], describe: Describe
) -> list[Section]:
    """Parts of a page: the base and each other model, what the one finds and the other misses.

    sources   of the sets, by their names; a set without one is left out
    describe  gives the descriptions of images for a model that reads them
    """
    results = _results(comparison, sources)
    records = {i: Records(sources[comparison.columns[i].set], one) for (_, i), one in results.items()}
    examples, looks, out = list(_examples(comparison, results)), Looks(), list[Section]()
    for model in (one for one in comparison.models if one.kind == "model"):
        queries = [query for *names, some in examples if model.name in names for query in some]
        with suppress(UserError):  # it is not there any more: then images are shown without heat
            looks |= _looks(model, queries, records, describe)
    for better, worse, queries in examples:
        body = hint(HINT)
        for query in queries:
            column, own = comparison.columns[query.column], records[query.column]
            cases = list(_cases((better, worse), query, column, own, looks))
            text = own.texts(query.image)[query.text :] or [f"The text of {own.keys[query.image]} is gone."]
            parts = [cases_html(cases, f"apart{len(out)}q{len(body)}n")]
            body += render("rows.html", kind="apart", lead=text[0], parts=parts)
        out.append(Section(f"Found by {better}, missed by {worse}", body))
    return out


def _results(comparison: Comparison, sources: Mapping[str, Source]) -> dict[tuple[str, int], Result]:
    """The results of retrieval, of the first seed of each model, by model and column."""
    out = {}
    for cell in (one for one in comparison.cells if one.files):
        column = comparison.columns[cell.column]
        unchanged = column.options.get("perturb", "none") == "none"
        if column.suite in SUITES and unchanged and column.set in sources:
            result = read(cell.files[0])
            if all("first" in fold["t2i"] for fold in result.queries["folds"]):  # older results lack it
                out[cell.model, cell.column] = result
    return out


def _examples(
    comparison: Comparison, results: Mapping[tuple[str, int], Result]
) -> Iterator[tuple[str, str, list[Query]]]:
    """Two models, the one that finds some texts farther up first, and these texts: of each set in turn."""
    base, others = comparison.base, dict.fromkeys(one.model for one in comparison.gains)
    number = min(EXAMPLES, max(1, MOST // (2 * max(1, len(others)))))
    for other in others:
        columns = dict.fromkeys(x.column for x in comparison.gains if x.model == other)
        both = [i for i in columns if (base, i) in results]
        sets = {comparison.columns[i].set: i for i in reversed(both)}.values()  # the first column of each
        for pair in ((other, base), (base, other)):
            lists = [
                most_different(results[pair[0], i], results[pair[1], i], number, i) for i in reversed(sets)
            ]
            turns = [one for turn in zip_longest(*lists) for one in turn if one is not None]
            if turns:
                yield *pair, turns[:number]


def _looks(
    model: Entrant, queries: Sequence[Query], records: Mapping[int, Records], describe: Describe
) -> Looks:
    """The right images of some texts as a model sees them."""
    out, opened = Looks(), load(model.paths[0]) if queries else None
    if opened is None or not opened.method.has_layout:
        return out
    descriptions = describe(opened, model.paths[0])
    for column in {query.column for query in queries}:
        own, some = records[column], [query for query in queries if query.column == column]
        null = own.others({query.image for query in some})
        for query in some:
            record, image = own.record(query.image), own.image(query.image)
            text = "".join(own.texts(query.image)[query.text :][:1])
            if record is not None and not isinstance(image, MissingImage) and sentences(text):
                dense = None if descriptions is None else descriptions.of(record)
                look = by_sentence(look_at(opened, opened.cropped(image), text, dense, null))
                out[model.name, *query[:3]] = look._replace(whole=whole_image(opened, image, SIDE))
    return out


def _cases(models: Sequence[str], query: Query, column: Column, own: Records, looks: Looks) -> Iterator[Case]:
    """For each of two models the image that it ranks first, and its heat in the right one."""
    for model, rank, first in zip(models, query.ranks, query.first, strict=True):
        rows, look = [], looks.get((model, *query[:3]))
        if first != query.image:
            rows.append(("ranked first", first, False))
        if look is None:
            rows.append(("", query.image, True))
        panels = [Panel(words, own.image(row), alt=own.keys[row], right=right) for words, row, right in rows]
        about = f"{model}: rank {rank:,}", f"of {column.images:,}, {column.title}", rank == 1
        yield Case(*about, rows=[Row(panels)] * bool(panels), look_title="The right image", look=look)
