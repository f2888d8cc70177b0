"""Similarity of the features that one image has under its texts, and retrieval in a gallery of own captions.

Sim of beta-CLIP (Zohra et al., arXiv 2512.12678), for methods that pool an image by a text. In three steps:
  1. take the sentences and phrases of the caption of an image, as in training; a text that comes twice counts
     once, other than in the published code;
  2. pool the image by each of these texts, as soon as it is encoded;
  3. Sim = mean over images of the mean cosine between two of its features; the same for the texts themselves.

Neither end of the scale is better. Near 1 an image looks the same to all its texts.

own-caption pools every image with its own caption and then retrieves, as beta-CLIP reports retrieval with
text-conditioned images. The gallery is made from the answers, so this is no retrieval. It stands under its
own name, to repeat published numbers and to compare them with `retrieval` with `--scoring conditioned`.
"""

from collections.abc import Sequence
from random import Random
from sys import maxsize
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.data.formats.common import digest
from grainline.data.phrases.providers import Rules
from grainline.data.record import Source
from grainline.data.texts import PhrasesConfig, grains
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings, number_cut, numbered, stack
from grainline.evaluation.examples import EXAMPLES, Evaluation
from grainline.evaluation.examples import SENTENCES as MAX_ON_PAGE
from grainline.evaluation.score import Cosine, Scorer, retrieval_ranks
from grainline.evaluation.statistics import chance_recall, refuse_nan
from grainline.evaluation.suite import MetricSamples, OneTextSuite, Outcomes, Settings, mean_metric
from grainline.methods.base import TextConditioned
from grainline.model import Model
from grainline.report.case import Case, CaseImage, CaseList, SentenceScore
from grainline.types import Encoded, Pair, rows, vectors_only

SIM, TEXTS = "Sim", "cosine of texts"
SENTENCES, PHRASES, ALL_TEXTS = "sentences", "phrases", "all texts"
KINDS = (SENTENCES, PHRASES, ALL_TEXTS)
MAX_SENTENCES, MAX_PHRASES = 5, 30
"""Of a caption: as many as beta-CLIP trains with (K = 36). The first ones, where training samples some, so
that a measurement can be repeated.
"""
DEPTHS = (1, 5, 10)
WAYS = {"image to captions": "i2t", "caption to images": "t2i"}
NOTE = (
    "own-caption is no measure of retrieval: every image is pooled with its own caption, so the gallery is "
    "made from the answers; a block that ignores the pixels and returns the text scores 100 %. Fair is "
    "--suite retrieval --scoring conditioned"
)


class Likeness(NamedTuple):
    """How alike the features of an image under its texts are."""

    texts: tuple[str, ...]  # K, each once: the caption, its sentences, its phrases
    number: dict[str, int]  # kind -> its texts, each once
    cosine: dict[str, tuple[float, float]]
    """Of kinds with two texts at least: mean cosine of the features under two of them, and of two texts."""
    each: tuple[float, ...]  # [K] mean cosine of the feature of this text with all others; () if K < 2


class TextConditionedSuite(OneTextSuite):
    """A suite for methods that pool images by texts."""

    keeps_tokens = False
    replaces_scores = "compares vectors"

    def check(self, model: Model, source: Source) -> None:
        super().check(model, source)
        if not isinstance(model.method, TextConditioned):
            lacking = f"{model.description.method} gives no vector of an image as a text sees it"
            raise UserError(f"{lacking}; --suite {self.name} measures methods that do, such as beta_clip")


class LikenessCollector(Collector):
    """Pools each image by the texts of its caption while its tokens are there, in batches."""

    def __init__(self, model: Model, batch: int) -> None:
        self.model, self.batch = model, batch
        self._likeness: list[Likeness] = []

    def add_images(self, images: Encoded, texts: Sequence[Sequence[str]]) -> None:
        assert isinstance(self.model.method, TextConditioned)
        parts = [texts_of_caption(text) for (text,) in texts]
        strings = list(dict.fromkeys(text for kinds in parts for text in kinds[ALL_TEXTS]))
        place = {text: i for i, text in enumerate(strings)}
        starts = range(0, len(strings), self.batch)
        encoded = stack([vectors_only(self.model.encode(texts=strings[i : i + self.batch])) for i in starts])
        self.truncated += number_cut(encoded)
        image = torch.tensor([i for i, kinds in enumerate(parts) for _ in kinds[ALL_TEXTS]])
        row = torch.tensor([place[text] for kinds in parts for text in kinds[ALL_TEXTS]])
        device, pool = images.vector.device, self.model.method.pool_images
        # Few pairs at a time, because each brings all tokens of its image.
        pairs = zip(image.to(device).split(self.batch), row.to(device).split(self.batch), strict=True)
        features = torch.cat([pool(rows(images, i), rows(encoded, j)).cpu() for i, j in pairs])  # [P, D]
        number = [len(kinds[ALL_TEXTS]) for kinds in parts]
        both = (x.split(number) for x in (features, encoded.vector.cpu()[row]))
        self._likeness += [_likeness(*one) for one in zip(parts, *both, strict=True)]

    def result(self, data: Encodings) -> tuple[Likeness, ...]:
        return tuple(self._likeness)


class SimilaritySuite(TextConditionedSuite):
    """Sim over sentences, phrases and all texts, and how alike these texts are."""

    name = "similarity"
    collector_class = LikenessCollector
    headline = tuple(f"{SIM}, {kind}" for kind in KINDS)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        """Raises UserError if no image has two texts, and for features that are not a number."""
        likeness: tuple[Likeness, ...] = self.collected(data)
        if not any(one.cosine for one in likeness):
            raise UserError(f"no caption of {data.path} has two texts: sentences, or phrases in them")
        kinds: dict[str, dict[str, Any]] = {}
        for kind in KINDS:
            values = {i: one.cosine[kind] for i, one in enumerate(likeness) if kind in one.cosine}
            refuse_nan(sum(bool(np.isnan(one).any()) for one in values.values()), len(values))
            kinds[kind] = {
                "image": [*values],
                "number": [likeness[i].number[kind] for i in values],
                "scores": {name: [x[i] for x in values.values()] for i, name in enumerate((SIM, TEXTS))},
            }
        queries = {
            "texts": digest(text for one in likeness for text in one.texts),
            "kinds": {kind: one for kind, one in kinds.items() if one["image"]},
        }
        images = len(likeness)
        notes = tuple(
            f"{kind}: {images - len(one['image'])} of {images} images have fewer than two and are left out"
            for kind, one in kinds.items()
            if len(one["image"]) < images
        )
        limits = {"most_sentences": MAX_SENTENCES, "most_phrases": MAX_PHRASES}
        return Outcomes(queries, notes, limits, {"texts": sum(len(one.texts) for one in likeness)})

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Means over the runs; the bootstrap draws images, the same for Sim of a kind and its texts."""
        out = {}
        for kind in runs[0]["kinds"]:
            scores = [run["kinds"][kind]["scores"] for run in runs]
            for name in (SIM, TEXTS):
                value = np.mean([one[name] for one in scores], axis=0)
                number = len(value) * len(runs)
                out[f"{name}, {kind}"] = mean_metric(value, None, number, None, 0, "cosine", settings)
        return out

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        likeness: tuple[Likeness, ...] = self.collected(evaluation.data)
        usable = [i for i, one in enumerate(likeness) if ALL_TEXTS in one.cosine]

        def case(place: int) -> Case:
            i = usable[place]
            one, key = likeness[i], evaluation.data.keys[i]
            sim, text_cosine = one.cosine[ALL_TEXTS]
            scores = [SentenceScore(text, score) for text, score in zip(one.texts, one.each, strict=True)]
            look = CaseImage(evaluation.image(i), f"image {key}", scores[:MAX_ON_PAGE])
            detail = f"cosine of its {len(scores)} texts {text_cosine:.3f}, {key}"
            if len(scores) > MAX_ON_PAGE:
                detail += f"; the first {MAX_ON_PAGE} texts are shown"
            return Case(f"Sim {sim:.3f}", detail, look=look)

        order = (
            f"Sorted by {SIM} over all texts of an image. The score of a text is the mean cosine of the image"
            " pooled with it and the image pooled with each other text."
        )
        titles = ("Images: most alike", "Images: least alike")
        falling = [-likeness[i].cosine[ALL_TEXTS][0] for i in usable]
        return evaluation.both_ends(titles, order, case, falling, number=number)


def texts_of_caption(caption: str) -> dict[str, list[str]]:
    """Kind -> its texts, each once, in order; all of them begin with the caption."""
    cfg = PhrasesConfig(max_phrases=MAX_PHRASES)
    parts = grains(caption, maxsize, cfg, Rules(), Random(0), splitter="rules", sampled=False)
    sentences = list(dict.fromkeys(parts.sentences))[:MAX_SENTENCES]
    phrases = list(dict.fromkeys(parts.phrases))
    all_texts = list(dict.fromkeys([parts.caption, *sentences, *phrases]))
    return {SENTENCES: sentences, PHRASES: phrases, ALL_TEXTS: all_texts}


def mean_cosines(vectors: Tensor) -> Tensor:
    """The mean cosine of each row with all others: [K] float64. vectors: [K, D] unit length, K > 1"""
    cosine = vectors.double() @ vectors.double().T
    return (cosine.sum(1) - cosine.diagonal()) / (len(vectors) - 1)


def _likeness(texts: dict[str, list[str]], features: Tensor, vectors: Tensor) -> Likeness:
    """features [K, D] of the image under all its texts; vectors [K, D] of these texts"""
    place = {text: i for i, text in enumerate(texts[ALL_TEXTS])}
    cosine = {}
    for kind, some in texts.items():
        row = [place[text] for text in some]
        if len(row) > 1:
            sim, text_cosine = (float(mean_cosines(x[row]).mean()) for x in (features, vectors))
            cosine[kind] = sim, text_cosine
    each = mean_cosines(features).tolist() if len(features) > 1 else []
    return Likeness(tuple(place), {kind: len(some) for kind, some in texts.items()}, cosine, tuple(each))


class OwnCaptionCollector(Collector):
    """Pools each image by its own text."""

    def __init__(self, model: Model, batch: int) -> None:
        self.model = model
        self._images: list[Encoded] = []
        self._texts: list[Encoded] = []

    def add_images(self, images: Encoded, texts: Sequence[Sequence[str]]) -> None:
        assert isinstance(self.model.method, TextConditioned)
        encoded = vectors_only(self.model.encode(texts=[text for (text,) in texts]))
        self.truncated += number_cut(encoded)
        pooled = self.model.method.pool_images(images, encoded)
        self._images.append(vectors_only(images)._replace(vector=pooled))
        self._texts.append(encoded)

    def result(self, data: Encodings) -> Pair:
        """All images and all texts, vectors alone; image i and text i belong together."""
        return Pair(numbered(stack(self._images)), numbered(stack(self._texts)))


class OwnCaptionSuite(TextConditionedSuite):
    """How often image and caption find each other where the image was pooled with this caption."""

    name = "own-caption"
    collector_class = OwnCaptionCollector
    headline = tuple(f"own-caption R@1, {way}" for way in WAYS)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        pair: Pair = self.collected(data)
        both = retrieval_ranks(Cosine(), pair.images, pair.texts, settings.memory)
        ranks = {
            way: {"rank": one.rank.tolist(), "tied": one.tied.int().tolist()}
            for way, one in zip(("i2t", "t2i"), both[:2], strict=True)
        }
        return Outcomes(ranks, (NOTE,))

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Shares from ranks, means over the runs; the bootstrap draws images, the same ones both ways."""
        out = {}
        for way, key in WAYS.items():
            rank = np.array([run[key]["rank"] for run in runs])  # [run, N]
            ties = int(np.sum([run[key]["tied"] for run in runs]))
            for k in DEPTHS:
                chance, hit = chance_recall([1], rank.shape[1], k), (rank <= k).mean(0)
                name = f"{self.name} R@{k}, {way}"
                out[name] = mean_metric(hit, None, rank.size, chance, ties, "share", settings)
        return out
