"""Pairwise ranking accuracy: does a right pair of image and text score higher than a wrong one?

The wrong pair shares the image or the text with the right one: its text is a foil, a caption that is wrong in
one thing, or its image is one of which the text is false. A tie is wrong and counted: it shows, for instance,
two texts that truncation made equal.

Accuracy is given by what is wrong and pooled, for each benchmark by itself. Where SVO-Probes and FOIL-COCO
are measured together, `noun understanding` is the mean of subject, object and FOIL-COCO.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from grainline.config import Config
from grainline.data.benchmarks import contests
from grainline.data.record import Source
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings, Rows, Sample, text_rows
from grainline.evaluation.examples import EXAMPLES, Evaluation
from grainline.evaluation.score import Scorer, pair_scores
from grainline.evaluation.statistics import refuse_nan, replicates
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, Suite, accuracy, count_notes
from grainline.model import Model
from grainline.report.case import Case, CaseList, Panel, Row, ahead, lead, marked
from grainline.types import Encoded, rows

ALL, NOUNS = "all kinds", "noun understanding"
CHANCE = 0.5

RULE = (
    "a comparison is right where the right pair of image and text scores strictly higher than the wrong"
    " one; a tie is wrong, and the table counts them"
)
CARDS = {
    contests.SVO_PROBES: (
        "the sentence as it stands; the image that shows it against the one that does not; rows with"
        " exactly one true flag whose images are both there, pooled over rows. The notebook of its"
        " authors drops duplicates and judges by a threshold: other numbers."
    ),
    contests.FOIL_COCO: (
        "the foil against the caption of its id, both as they stand; their image of COCO; every foil of the"
        " file. Published pairwise numbers are of foilv1.0_test_2017.json, about 99,000 pairs."
    ),
    contests.VALSE: (
        "the caption against its foil, both as they stand; their image; items of which two of three people"
        " at least chose the caption, as its authors count them (their acc_r). A kind is one of their files."
    ),
    contests.SUGARCREPE: (
        "the caption against its negative caption, both as they stand; their image of COCO val2017; every"
        " item of the file. A kind is one of its files; all kinds is pooled over items, no mean of kinds."
    ),
    contests.SCENES: (
        "the caption against each of its foils; their drawn image; a foil is wrong in one thing, drawn so"
        " that its words do not betray it. There are no verbs: what comes closest is relation."
    ),
    contests.OTHER_DATA: "each foil of a record against the caption that it was made from; their image",
}
"""The text, images and rows that are compared, of each benchmark."""


class Probes(NamedTuple):
    """P comparisons of a right pair of image and text, which is the first, with a wrong one."""

    images: Tensor  # [P, 2] int64, rows of the encoded images; twice the same where the texts differ
    pairs: Tensor  # [P, 2] int64, rows of `texts`; twice the same where the images differ
    texts: Encoded  # [T] `image` is -1, they are no gallery
    kind: tuple[str, ...]  # [P] what is wrong with the wrong pair
    benchmark: tuple[str, ...]  # [P] which set the comparison is of
    strings: tuple[str, ...]  # [T] the texts as they were given to the model
    skipped: int = 0  # comparisons that lack an image which cannot be used


class ProbesOptions(Config):
    """Options of `probes`."""

    resize: Literal["model", "squash"] = Field(
        "model", description="model: images as the model sees them; squash presses whole ones into the square"
    )


class ProbesSuite(Suite[ProbesOptions]):
    """The share of comparisons in which a right pair of image and text scores higher than a wrong one."""

    name = "probes"
    reads_tokens = False
    Options = ProbesOptions
    card = ("Protocol", "What was compared, for each benchmark")
    captions = ("whole",)
    reads = "foils and their captions"
    needs_text = False
    encodes_captions = False
    headline = (ALL, *(f"{ALL}, {name}" for name in CARDS), NOUNS)

    def prepare(self, model: Model, source: Source) -> tuple[Model, Source]:
        return super().prepare(model.pressed() if self.options.resize == "squash" else model, source)

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        return ProbeCollector(source, text_rows(model, settings.batch_size))

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        probes: Probes = self.collected(data)
        right, wrong = probe_scores(scorer, data.images, probes)
        refuse_nan(int(right.isnan().sum() + wrong.isnan().sum()), right.numel() + wrong.numel())
        image, other = probes.images.T.tolist()
        queries = {
            "kind": list(probes.kind),
            "benchmark": list(probes.benchmark),
            "image": image,
            "other": other,
            "right": (right > wrong).int().tolist(),
            "tied": (right == wrong).int().tolist(),
        }
        names, number = sorted(set(probes.benchmark)), len(probes.kind)
        card = {name: CARDS[name] for name in names} | {"rule": RULE}
        counts = {"texts": len(probes.strings), "probes": number, "probes_left_out": probes.skipped}
        skipped = f"of {probes.skipped + number} comparisons were skipped: an image of theirs cannot be used"
        notes = count_notes({skipped: probes.skipped})
        if image != other:
            notes += (
                "intervals draw the images that texts are true of; that several texts meet one wrong image"
                " does not widen them",
            )
        return Outcomes(queries, notes, {"card": card}, counts)

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Accuracy by kind and over all kinds of a benchmark; resamples draw images of right pairs."""
        first = runs[0]
        kind, benchmark = np.array(first["kind"]), np.array(first["benchmark"])
        names = sorted(set(first["benchmark"]))
        out = {}
        for name in names:
            of_set = benchmark == name
            suffix = f", {name}" if len(names) > 1 else ""
            for one in (ALL, *sorted(set(kind[of_set].tolist()))):
                out[one + suffix] = _share(runs, of_set if one == ALL else of_set & (kind == one), settings)
        svo = benchmark == contests.SVO_PROBES
        thirds = [
            svo & (kind == contests.SUBJECT),
            svo & (kind == contests.OBJECT),
            benchmark == contests.FOIL_COCO,
        ]
        if all(part.any() for part in thirds):
            out[NOUNS] = _mean(runs, thirds, settings)
        return out

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        probes, data = self.collected(evaluation.data), evaluation.data
        right, wrong = probe_scores(evaluation.model.method, data.images, probes).cpu().numpy()
        images, pairs = probes.images.cpu().numpy(), probes.pairs.tolist()
        evaluation = evaluation._replace(model=self.prepare(evaluation.model, evaluation.source)[0])

        def case(i: int) -> Case:
            own, other = images[i].tolist()
            true, false = (probes.strings[row] for row in pairs[i])
            gap, key = float(right[i]) - float(wrong[i]), data.keys[own]
            detail = f"{'foil' if own == other else 'wrong image'} of kind {probes.kind[i]}, {key}"
            if own != other:
                panels = [
                    Panel(data.keys[row], evaluation.displayed(row), f"{which} image, {ahead(sign * gap)}")
                    for which, row, sign in (("Right", own, 1), ("Wrong", other, -1))
                ]
                return Case(lead(gap), detail, gap > 0, quote=true, rows=[Row(panels, large=True)])
            names = f"True text, {ahead(gap)}", f"False text, {ahead(-gap)}"
            texts = list(zip(names, marked(true, false), strict=True))
            image, alt = evaluation.displayed(own), f"image {key}"
            return Case(lead(gap), detail, gap > 0, image=image, alt=alt, texts=texts)

        order = "Sorted by the difference of the two scores; one comparison for each image."
        titles = ("Probes: most wrong", "Probes: most right")
        about, choice = evaluation.whole_sentence(), {"image": images[:, 0], "number": number}
        return evaluation.both_ends(titles, order, case, right - wrong, about=about, **choice)


def probe_scores(method: Scorer, images: Encoded, probes: Probes) -> Tensor:
    """Scores of the right pairs and of the wrong ones: [2, P]"""
    pairs = torch.stack([probes.images.T.reshape(-1), probes.pairs.T.reshape(-1)])  # [2, 2P]
    unique, back = torch.unique(pairs, dim=1, return_inverse=True)  # a pair that comes twice is scored once
    return pair_scores(method, images, rows(probes.texts, unique[1]), unique[0])[back].view(2, -1)


class ProbeCollector(Collector):
    """Collects the comparisons of a source, and encodes their texts."""

    def __init__(self, source: Source, texts: Rows) -> None:
        self._origins = contests.origins(source)
        self._texts = texts
        self._strings: list[str] = []
        self._pairs: list[tuple[int, int, int, int]] = []  # image, other image, text, other text
        self._names: list[tuple[str, str]] = []  # kind and benchmark of each

    def add(self, sample: Sample) -> None:
        row_of: dict[str, int] = {}
        name = next(one.benchmark for one in reversed(self._origins) if one.start <= sample.position)
        for foil in sample.record.foils:
            true, false = (self._row(text, row_of) for text in (foil.true, foil.text))
            self._pairs.append((sample.row, sample.row, true, false))
            self._names.append((foil.kind, name))

    def result(self, data: Encodings) -> Probes:
        """Raises UserError where there is no comparison."""
        row_of, text_row = {place: row for row, place in enumerate(data.positions)}, dict[str, int]()
        skipped = 0
        for name, one in ((origin.benchmark, one) for origin in self._origins for one in origin.contests):
            if one.right not in row_of or one.wrong not in row_of:
                skipped += 1
                continue
            text = self._row(one.text, text_row)
            self._pairs.append((row_of[one.right], row_of[one.wrong], text, text))
            self._names.append((one.kind, name))
        if not self._pairs:
            needed = "samples with foils, as in `scenes`, or a benchmark of pairs"
            raise UserError(f"no probes in {data.path}; this suite needs {needed}")
        pairs, (kind, benchmark) = torch.tensor(self._pairs), zip(*self._names, strict=True)
        strings = tuple(self._strings)
        texts = self._texts.stacked()
        self.truncated = self._texts.cut
        return Probes(pairs[:, :2], pairs[:, 2:], texts, kind, benchmark, strings, skipped)

    def _row(self, text: str, row_of: dict[str, int]) -> int:
        if text not in row_of:
            row_of[text] = self._texts.add(text)
            self._strings.append(text)
        return row_of[text]


def _share(runs: Sequence[dict[str, Any]], part: np.ndarray, settings: Settings) -> MetricSamples:
    """The accuracy of some of the comparisons."""
    right = np.array([run["right"] for run in runs])[:, part]
    ties = int(np.sum([run["tied"] for run in runs], axis=0)[part].sum())
    return accuracy(right, np.array(runs[0]["image"])[part], CHANCE, ties, settings)


def _mean(runs: Sequence[dict[str, Any]], parts: list[np.ndarray], settings: Settings) -> MetricSamples:
    """The mean of the accuracies of several sets of comparisons, whose images are drawn together."""
    shares = [_share(runs, part, settings) for part in parts]
    right = np.mean([run["right"] for run in runs], axis=0)  # [P]
    member = np.stack(parts, axis=1).astype(np.float64)  # [P, F]
    image = np.array(runs[0]["image"])
    both = np.concatenate([right[:, None] * member, member], axis=1)
    samples = replicates(both, image, **settings.bootstrap)
    hits, number = np.split(samples, 2, axis=1)  # [R, F] each
    value = np.array([one.value for one in shares])
    # A resample without any comparison of a set says nothing of it: its accuracy stands.
    share = np.where(number > 0, hits / np.where(number > 0, number, 1), value)
    queries, ties = sum(one.queries for one in shares), sum(one.ties for one in shares)
    return MetricSamples(float(value.mean()), share.mean(1), queries, CHANCE, ties, "share")
