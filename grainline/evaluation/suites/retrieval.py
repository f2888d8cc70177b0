"""Retrieval both ways, fold by fold: do images and texts find each other?

A protocol says what is ranked together:

plain         every image and every caption
coco-5k       5,000 images with the first five captions of each
coco-1k       the same, cut into five folds of 1,000 images in file order; metrics are means over the folds
flickr30k-1k  1,000 images with the first five captions of each, as in the test split of Karpathy
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from grainline.config import Config
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings
from grainline.evaluation.examples import EXAMPLES, HEAT_HINT, Evaluation, spread
from grainline.evaluation.score import Scorer, all_scores, retrieval_ranks
from grainline.evaluation.statistics import chance_median, chance_recall, replicates
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, Suite, mean_of, settings_of
from grainline.report.case import Case, CaseList, Panel, Row, standing
from grainline.report.page import MissingImage
from grainline.types import Encoded, rows

DEPTHS = (1, 5, 10)
I2T, T2I = "image to text", "text to image"
WAYS = ("i2t", "t2i")
HITS = 5  # candidates of an example on the page
IMAGES, CAPTIONS, FOLD = 5000, 5, 1000  # of COCO
FLICKR = 1000  # images of Flickr30k


class RetrievalOptions(Config):
    """Options of suites that rank candidates."""

    protocol: Literal["plain", "coco-5k", "coco-1k", "flickr30k-1k"] = Field(
        "plain", description="which images and captions are ranked together, as published"
    )


class RetrievalSuite(Suite[RetrievalOptions]):
    """Recall at 1, 5 and 10 and median rank both ways, and the sum of the recalls."""

    name = "retrieval"
    Options = RetrievalOptions
    model_fields = Suite.model_fields | {"first"}
    headline = (f"{T2I} R@1", f"{I2T} R@1")
    takes_vectors = True
    reads_tokens = False

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        """Raises UserError where the protocol does not fit the data, and for NaN scores."""
        parts = []
        for fold in folds(self.options.protocol, data.images, data.texts, data.path):
            images, texts = rows(data.images, fold.images), rows(data.texts, fold.texts)
            owners = images.image, texts.image[texts.image >= 0]
            both = retrieval_ranks(scorer, images, texts, settings.memory)
            counts = {"images": len(images.image), "texts": len(texts.image)}
            ranks = {
                way: {"image": own.tolist(), "rank": one.rank.tolist(), "tied": one.tied.int().tolist()}
                for way, own, one in zip(WAYS, owners, both[:2], strict=True)
            }
            ranks["t2i"]["first"] = images.image[both.first].tolist()
            parts.append(counts | ranks)
        outcomes = Outcomes({"folds": parts}, protocol=self.options.protocol)
        if not self.options.protocol.startswith("coco"):
            return outcomes
        split = coco_split(data.keys)
        return outcomes._replace(notes=(f"images of {split}",), settings={"split": split})

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Means over the folds; the bootstrap draws images within each fold, with their queries of all runs.

        Both directions draw the same images, which makes the interval of the sum a joint one.
        """
        folds_of_runs = zip(*(run["folds"] for run in runs), strict=True)
        table = [_fold_metrics(fold, settings, number) for number, fold in enumerate(folds_of_runs)]
        return {name: mean_of([fold[name] for fold in table]) for name in table[0]}

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        """Images for texts, with the sentences of the text in the right image, and texts for images."""
        order = f"Queries evenly spaced from the best rank to the worst; the best {HITS} of all candidates."
        heat = f" {HEAT_HINT}" if evaluation.model.method.has_layout else ""
        texts, images = (
            [query.case(evaluation, way) for query in self._spread(evaluation, way, number)]
            for way in ("t2i", "i2t")
        )
        return [
            CaseList("Text to image, best to worst", f"{order} {evaluation.whole_sentence()}{heat}", texts),
            CaseList("Image to text, best to worst", order, images),
        ]

    def _spread(self, evaluation: Evaluation, way: str, number: int) -> list["_Query"]:
        """Queries evenly spaced from the best rank to the worst."""
        queries = []
        parts = folds(
            self.options.protocol, evaluation.data.images, evaluation.data.texts, evaluation.data.path
        )
        for fold, part in zip(parts, evaluation.result.queries["folds"], strict=True):
            texts = fold.texts[evaluation.data.texts.image[fold.texts].cpu() >= 0]  # others are no queries
            places = (texts if way == "t2i" else fold.images).tolist()
            outcomes = zip(places, part[way]["rank"], part[way]["tied"], strict=True)
            queries += [_Query(fold, row, rank, bool(tied)) for row, rank, tied in outcomes]
        return [queries[i] for i in spread(np.array([query.rank for query in queries]), number)]


class Fold(NamedTuple):
    """Rows that are compared with each other and with nothing else."""

    images: Tensor  # [n] int64, rows of the images
    texts: Tensor  # [m] int64, rows of the texts


def folds(protocol: str, images: Encoded, texts: Encoded, where: str = "the data") -> list[Fold]:
    """The folds of a protocol, rows in file order; those of `long-retrieval` have one, as plain has.

    Raises UserError if the data lack images or captions.
    """
    n, m = len(images.image), len(texts.image)
    if not protocol.startswith(("coco", "flickr30k")):
        return [Fold(torch.arange(n), torch.arange(m))]
    number = FLICKR if protocol == "flickr30k-1k" else IMAGES
    if n != number:
        raise UserError(f"{n} images in {where}; {protocol} needs exactly {number}")
    captions: Counter[int] = Counter()
    first = []  # rows of the first captions of every image
    for row, image in enumerate(texts.image.tolist()):
        captions[image] += 1
        if image >= 0 and captions[image] <= CAPTIONS:
            first.append(row)
    short = sum(captions[image] < CAPTIONS for image in images.image.tolist())
    if short:
        raise UserError(
            f"{short} images in {where} have fewer than {CAPTIONS} captions; {protocol} needs {CAPTIONS} "
            "of each, as separate texts (captions: each)"
        )
    size = FOLD if protocol == "coco-1k" else number
    text = torch.tensor(first)
    return [
        Fold(torch.arange(i, i + size), text[torch.isin(texts.image[text], images.image[i : i + size])])
        for i in range(0, n, size)
    ]


def coco_split(keys: Sequence[str]) -> str:
    """The 5,000 images of COCO that the names point to: two such sets are in use, whose numbers differ.

    >>> coco_split(["COCO_val2014_000000391895", "COCO_val2014_000000060623"])
    'coco-karpathy'
    >>> coco_split(["000000000139", "000000000285"])
    'coco-val2017'
    """
    if all(re.search(r"COCO_val2014_\d{12}", key) for key in keys):
        return "coco-karpathy"
    if all(re.search(r"(^|/)\d{12}(\.\w+)?$", key) for key in keys):
        return "coco-val2017"
    return "unknown: the names of the images are not those of COCO"


def _fold_metrics(
    runs: Sequence[dict[str, Any]], settings: Settings, number: int
) -> dict[str, MetricSamples]:
    """All metrics of one fold, from its outcomes in every run."""
    first = runs[0]
    captions = Counter(first["t2i"]["image"])
    many, one = [captions[image] for image in first["i2t"]["image"]], [1] * len(first["t2i"]["image"])
    bootstrap: dict[str, Any] = {"resamples": settings.resamples, "seed": (settings.seed, number)}
    out: dict[str, MetricSamples] = {}
    sides = (I2T, "i2t", many, first["texts"]), (T2I, "t2i", one, first["images"])
    for name, way, positives, size in sides:
        rank, image = (np.concatenate([run[way][key] for run in runs]) for key in ("rank", "image"))
        ties, queries = sum(sum(run[way]["tied"]) for run in runs), len(rank)
        hits = (rank[:, None] <= np.array(DEPTHS)).astype(np.float64)  # [Q, 3]
        samples = replicates(hits, image, **bootstrap)
        for i, k in enumerate(DEPTHS):
            chance, value = chance_recall(positives, size, k), hits[:, i].mean()
            out[f"{name} R@{k}"] = MetricSamples(value, samples[:, i], queries, chance, ties, "share")
        middle, chance = replicates(rank, image, np.median, **bootstrap), chance_median(positives, size)
        value = float(np.median(rank))
        out[f"{name} median rank"] = MetricSamples(value, middle, queries, chance, ties, "rank")
    recalls = [out[f"{way} R@{k}"] for way in (I2T, T2I) for k in DEPTHS]
    out["rSum"] = MetricSamples(
        100 * sum(x.value for x in recalls),
        100 * np.sum([x.samples for x in recalls], axis=0),
        recalls[0].queries + recalls[-1].queries,
        100 * sum(x.chance or 0.0 for x in recalls),
        recalls[0].ties + recalls[-1].ties,
        "sum",
    )
    return out


class _Query(NamedTuple):
    """A query of the page."""

    fold: Fold
    row: int  # of the image or text among all
    rank: int
    tied: bool

    def case(self, evaluation: Evaluation, way: str) -> Case:
        """The place of the right candidate, and the best ones; of a text its sentences in the right image."""
        data, text = evaluation.data, way == "t2i"
        candidates = self.fold.images if text else self.fold.texts
        own = int(data.texts.image[self.row]) if text else self.row
        (places, scores), panels, key = _hits(evaluation, self, way), [], data.keys[own]
        for place, row in enumerate(places[:HITS], 1):
            right = (row if text else int(data.texts.image[row])) == own
            which = (
                f"{data.keys[row]}, rank {place}, {'the right' if right else 'a wrong'} image" if text else ""
            )
            words, image = ("", evaluation.displayed(row)) if text else (data.strings[row], None)
            panels.append(Panel(words, image, standing(place, scores), alt=which, right=right))
        title = f"Right one at rank {self.rank:,} of {len(candidates):,}"
        case = Case(title, "tied with a wrong one, " * self.tied + key, rows=[Row(panels)])
        if not text:
            return case._replace(image=evaluation.displayed(self.row), alt=f"query image {key}")
        look = evaluation.look(own, data.strings[self.row])
        if (
            look is not None
            and look.sentences
            and not isinstance(whole := evaluation.whole(own), MissingImage)
        ):
            look = look._replace(whole=whole)
        head = "The sentences in the right image"
        return case._replace(quote=data.strings[self.row], look_title=head, look=look)


def _hits(evaluation: Evaluation, query: _Query, way: str) -> tuple[list[int], list[float]]:
    """Rows among all and scores of the best candidates of a query, the best first; one more than HITS."""
    single, memory = slice(query.row, query.row + 1), settings_of(evaluation.result).memory
    others = query.fold.images if way == "t2i" else query.fold.texts
    images = rows(evaluation.data.images, others if way == "t2i" else single)
    texts = rows(evaluation.data.texts, others if way == "i2t" else single)
    scores = all_scores(evaluation.model.method, images, texts, memory).flatten()
    top = scores.topk(min(HITS + 1, len(others)))
    return others[top.indices.cpu()].tolist(), top.values.tolist()
