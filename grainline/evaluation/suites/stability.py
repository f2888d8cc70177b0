"""Stability: how much does a sentence that has nothing to do with the image change a score?

SSI of HiMo-CLIP, arXiv 2511.06653, in percent; lower is better. In three steps:
  1. draw one sentence of noise for every image, and put it into each of its subtexts
    (evaluation/collectors/subtexts.py) at a
     sentence boundary, before the first sentence and after the last included
       (evaluation/collectors/subtexts.py);
  2. score both forms with the image: s without, s~ with the noise;
  3. SSI = 100 * mean over images of the mean over their subtexts of |(s - s~) / s|.

The paper does not publish its noise and describes in three ways where it goes. So its numbers cannot be
compared with ours, which carry the seed and a digest of the sentences.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from markupsafe import Markup
from pydantic import Field

from grainline.config import Config
from grainline.data.record import Source
from grainline.evaluation.collectors.collecting import stack
from grainline.evaluation.collectors.subtexts import (
    EACH,
    END,
    MIDDLE,
    NOISY,
    PLAIN,
    SENTENCES,
    START,
    Gathered,
    Noise,
    Subtexts,
    drawn,
    place,
    pool,
)
from grainline.evaluation.encode import Collector, Encodings
from grainline.evaluation.intervals import replicates
from grainline.evaluation.measured import SHOWN, Measured, extremes
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, Suite
from grainline.evaluation.suites.monotonicity import SubtextCollector, sequence_scores
from grainline.model import Model
from grainline.report.case import Case, CaseList
from grainline.types import Encoded, vectors_only

SSI = "SSI"
FLOOR = 1e-6  # of |s|
HEAVY = 0.05  # of the subtexts: a note says when fewer make up half of the value


class StabilityOptions(Config):
    """Options of `stability`."""

    noise_seed: Annotated[int, Field(ge=0)] = Field(0, description="decides which noise goes where")


class StabilitySuite(Suite[StabilityOptions]):
    """How much a sentence that has nothing to do with the image changes a score: SSI, lower is better."""

    name = "stability"
    Options = StabilityOptions
    captions = ("whole", "first")
    reads = "one text an image"
    encodes_captions = False
    must_match = ("noise_seed", "noise_pool")
    headline = (SSI,)

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        return NoiseCollector(model, settings.batch_size, self.options.noise_seed)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        noise: Noise = self.collected(data)
        sequences = sequence_scores(scorer, data.images, noise.told)
        queries = {
            "keys": list(data.keys),
            "sentence": [one.sentence for one in noise.drawn],
            "at": [list(one.at) for one in noise.drawn],
            "of": [list(one.of) for one in noise.drawn],
            "scores": {name: sequences[name]["scores"] for name in (PLAIN, NOISY)},
            "cut": {name: sequences[name]["cut"] for name in (PLAIN, NOISY)},
        }
        about = {"noise_seed": noise.seed, "noise_pool": pool()}
        return Outcomes(queries, _notes(queries, noise.seed), about, {"texts": len(noise.told.strings)})

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """SSI over all images, and by where the noise stands; a place without any noise is left out.

        The change of each subtext is a mean over the runs; the bootstrap draws images.
        """
        numbers = [
            list(zip(at, of, strict=True)) for at, of in zip(runs[0]["at"], runs[0]["of"], strict=True)
        ]
        image = np.repeat(np.arange(len(numbers)), list(map(len, numbers)))  # [T]
        where = np.array([place(at, of) for one in numbers for at, of in one])  # [T]
        change = 100 * np.mean([_all_changes(run) for run in runs], axis=0)  # [T]
        out = {}
        for one in (None, START, MIDDLE, END):
            at_place = np.ones(len(where), bool) if one is None else where == one
            if at_place.any():
                _, code, number = np.unique(image[at_place], return_inverse=True, return_counts=True)
                mean = np.bincount(code, change[at_place]) / number  # of each image
                samples = replicates(mean, **settings.bootstrap)
                queries = int(at_place.sum()) * len(runs)
                name = SSI if one is None else f"{SSI}, noise {one}"
                out[name] = MetricSamples(float(mean.mean()), samples, queries, None, 0, "change")
        return out

    def cases(self, on: Measured, number: int = SHOWN) -> list[CaseList]:
        noise, queries = self.collected(on.data), on.result.queries
        flat = [(i, j) for i, one in enumerate(noise.drawn) for j in range(len(one.texts))]

        def case(place_of: int) -> Case:
            i, j = flat[place_of]
            one, words = noise.drawn[i], SENTENCES[noise.drawn[i].sentence]
            before, after = (queries["scores"][name][i][j] for name in (PLAIN, NOISY))
            title = f"changed by {100 * change[place_of]:,.2f} %"
            detail = f"noise {place(one.at[j], one.of[j])}, {on.data.keys[i]}"
            name = f"Score without the marked sentence {before:.4f}, with it {after:.4f}"
            text = Markup("<mark>{}</mark>").format(words).join(one.texts[j].split(words))
            alt = f"image {on.data.keys[i]}"
            return Case(title, detail, image=on.image(i), alt=alt, texts=[(name, text)])

        change = _all_changes(queries)
        least, most = extremes(change, image=[i for i, _ in flat], number=number)
        order = "One subtext for each image, by |(s - s~) / s| of the scores s without and s~ with the noise."
        titles = ("Noise: largest change", "Noise: smallest change")
        return on.both_ends(titles, order, (most, least), case)


class NoiseCollector(SubtextCollector):
    """Encodes every subtext in two forms: as it is, and with a sentence of noise.

    Texts that the model reads alike share one row: noise beyond what it reads changes nothing at all.
    """

    def __init__(self, model: Model, batch: int, seed: int) -> None:
        super().__init__(model, batch)
        self._model, self._batch, self._seed = model, batch, seed

    @torch.no_grad()
    def result(self, data: Encodings) -> Noise:
        plain: Subtexts = super().result(data)
        queue: list[str] = []

        def add(text: str) -> int:
            queue.append(text)
            return len(queue) - 1

        gathered = Gathered(self._model.read, add)
        gathered.add({EACH: plain.strings})  # in their order, so that they get the rows that they have
        known = len(queue)
        noise = []
        for key, places in zip(data.keys, plain.of[EACH], strict=True):
            texts = [plain.strings[place] for place in places]
            noise.append(drawn(self._seed, key, texts))
            gathered.add({PLAIN: texts, NOISY: noise[-1].texts})
        before = self._model.cut
        both = gathered.encoded(_appended(self._model, plain.texts, queue[known:], self._batch))
        assert torch.equal(both.row[: len(plain.row)], plain.row), "the subtexts are read as before"
        self.truncated += sum(both.cut[len(plain.cut) :]) - (self._model.cut - before)
        both = both._replace(of={name: both.of[name] for name in (PLAIN, NOISY)})
        return Noise(self._seed, both, tuple(noise))


def changes(plain: Sequence[float] | np.ndarray, noisy: Sequence[float] | np.ndarray) -> np.ndarray:
    """|(s - s~) / s| of some scores, |s| taken for 1e-6 where it is less.

    >>> changes([0.25, -0.5, 0.0], [0.2, -0.6, 1e-6]).round(6).tolist()
    [0.2, 0.2, 1.0]
    """
    s, noisy_s = np.asarray(plain, np.float64), np.asarray(noisy, np.float64)
    return np.abs(s - noisy_s) / np.maximum(np.abs(s), FLOOR)


def _appended(model: Model, texts: Encoded, new: Sequence[str], batch: int) -> Encoded:
    """Encoded texts with new ones behind them."""
    kept = (lambda x: x) if model.method.pairwise else vectors_only
    parts = [kept(model.encode(texts=new[i : i + batch])) for i in range(0, len(new), batch)]
    out = stack([texts, *parts])
    item = torch.arange(len(out.vector), device=out.vector.device)
    return out._replace(item=item, image=torch.full_like(item, -1))


def _all_changes(run: dict[str, Any]) -> np.ndarray:
    """The changes of all subtexts, image after image: [T]"""
    plain, noisy = (np.concatenate([np.asarray(x) for x in run["scores"][name]]) for name in (PLAIN, NOISY))
    return changes(plain, noisy)


def concentration(change: np.ndarray, weight: np.ndarray) -> int:
    """How many subtexts, those with the largest share of it, make up half of the SSI.

    change  [T]; weight  [T] of each in the mean

    >>> concentration(np.array([0.1, 9.0, 0.1, 0.2]), np.ones(4))
    1
    """
    share = np.sort(change * weight)[::-1].cumsum()
    return int((share < share[-1] / 2).sum()) + 1


def _notes(queries: dict[str, Any], seed: int) -> tuple[str, ...]:
    """What a reader of the value has to know."""
    notes = [
        f"noise: {len(SENTENCES)} sentences, digest {pool()}, seed {seed}; published values were made with "
        "others and cannot be compared"
    ]
    plain = np.concatenate([np.asarray(x) for x in queries["scores"][PLAIN]])
    size = np.array([len(one) for one in queries["at"]])
    change, number = _all_changes(queries), len(plain)
    floored = int((np.abs(plain) < FLOOR).sum())
    if floored:
        notes.append(f"{floored} of {number} scores are closer to 0 than {FLOOR:g} and count as that")
    most = concentration(change, np.repeat(1 / size, size))
    if most < HEAVY * number:
        notes.append(f"half of the SSI comes from {most} of {number} subtexts: their scores are close to 0")
    cut = sum(sum(cut) for cut in queries["cut"][NOISY])
    if cut:
        notes.append(
            f"{cut} of {number} subtexts with noise are longer than the model reads: it misses the noise, or "
            f"words behind it; {int((change == 0).sum())} scores did not change at all"
        )
    return tuple(notes)
