"""Stability: how much does a sentence that has nothing to do with the image change a score?

SSI of HiMo-CLIP, arXiv 2511.06653, in percent; lower is better. In three steps:
  1. choose one sentence of noise for every image, and put it into each of its subtexts (monotonicity.py):
     between two sentences, before the first or after the last;
  2. score both forms with the image: s without, s~ with the noise;
  3. SSI = 100 * mean over images of the mean over their subtexts of |(s - s~) / s|.

The paper does not publish its noise and describes in three ways where it goes. So its numbers cannot be
compared with ours, which carry the seed and a digest of the sentences.
"""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from markupsafe import Markup
from pydantic import Field

from grainline.config import Config
from grainline.data.captions import sentences
from grainline.data.formats.common import digest
from grainline.data.record import Source
from grainline.evaluation.encode import Collector, Encodings, Sample
from grainline.evaluation.examples import EXAMPLES, Evaluation
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import (
    MetricSamples,
    OneTextSuite,
    Outcomes,
    Settings,
    count_notes,
    mean_metric,
)
from grainline.evaluation.suites.monotonicity import (
    EACH,
    SubtextCollector,
    Subtexts,
    sequence_scores,
    sequences,
)
from grainline.model import Model
from grainline.report.case import Case, CaseList

SSI = "SSI"
FLOOR = 1e-6  # of |s|
PLAIN, NOISY = "without noise", "with noise"

_PROSE = """
    The committee postponed its decision until the second half of the year. Interest on the loan is
    calculated at the end of every quarter. Most verbs in this language take their ending from the
    subject. The password has to be changed at least once every six months. Nobody could remember who had
    proposed the rule in the first place. An even number is always the sum of two equal whole numbers. The
    contract ends unless one of the parties renews it in writing. Her answer was polite, but it left the
    question open. The second edition corrects several errors in the index. Inflation fell for the third
    month in a row. Please confirm your appointment by the end of the working day. The theory explains why
    the method fails on small samples. His pension will be reviewed when the new law takes effect. A
    refund can only be granted within thirty days of purchase. The translation keeps the rhythm of the
    original and loses its rhyme. Members vote on the budget by secret ballot every other year. The proof
    uses induction on the number of steps. She learned to play chess from an old manual. The deadline for
    applications was extended by ten days. Silence is often taken for agreement, which is a mistake. The
    server restarts by itself after each update. Their friendship began with a misunderstanding about the
    rent. The melody returns in a minor key before the end. Insurance does not cover damage that was
    caused on purpose. The price includes tax but not the cost of delivery. He promised to call back and
    then forgot about it. The survey was repeated because too few people had replied. Knowledge of a
    second language is an advantage for this position. The meeting started late and ended without a
    result. The court dismissed the appeal for lack of evidence. Every function must return a value or
    raise an error. The average hides large differences between the groups. Her grandfather disliked
    speeches of any kind. The warranty expires after two years of normal use. It took them a week to agree
    on the wording of the report. The word came into English through French in the twelfth century.
    Nothing in the minutes suggests that the vote was close. The recipe doubles well, although it needs
    more time. Unpaid invoices are passed on to a collection agency. The hypothesis was rejected at the
    usual level of significance."""
SENTENCES = tuple(" ".join(one.split()) + "." for one in _PROSE.split(".")[:-1])
"""Written for this purpose: about what no image shows, so that no caption can profit from one."""
POOL = digest(SENTENCES)[:8]  # results with other sentences cannot be compared


class Insertion(NamedTuple):
    """The sentence of noise of an image, in each of its subtexts."""

    sentence: int  # which of SENTENCES
    places: tuple[int, ...]  # for each subtext the number of its sentences before the noise
    sentences: tuple[int, ...]  # for each subtext the number of its sentences
    texts: tuple[str, ...]  # with the noise


class Noise(NamedTuple):
    """The subtexts of N images without and with noise, encoded."""

    subtexts: Subtexts  # sequences PLAIN and NOISY
    images: tuple[Insertion, ...]  # [N]


class StabilityOptions(Config):
    """Options of `stability`."""

    noise_seed: Annotated[int, Field(ge=0)] = Field(0, description="decides which noise goes where")


class StabilitySuite(OneTextSuite[StabilityOptions]):
    """How much a sentence that has nothing to do with the image changes a score: SSI, lower is better."""

    name = "stability"
    reads_tokens = False
    Options = StabilityOptions
    must_match = ("noise_seed", "noise_pool")
    headline = (SSI,)

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        return NoiseCollector(model, settings.batch_size, self.options.noise_seed)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        noise: Noise = self.collected(data)
        sequences = sequence_scores(scorer, data.images, noise.subtexts)
        queries = {
            "sentence": [one.sentence for one in noise.images],
            "at": [list(one.places) for one in noise.images],
            "of": [list(one.sentences) for one in noise.images],
            "scores": {name: sequences[name]["scores"] for name in (PLAIN, NOISY)},
            "cut": {name: sequences[name]["cut"] for name in (PLAIN, NOISY)},
        }
        about = {"noise_seed": self.options.noise_seed, "noise_pool": POOL}
        notes = _notes(queries, self.options.noise_seed)
        return Outcomes(queries, notes, about, {"texts": len(noise.subtexts.strings)})

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """SSI from changes of subtexts that are means over the runs; the bootstrap draws images."""
        number = np.array([len(one) for one in runs[0]["at"]])
        image = np.repeat(np.arange(len(number)), number)  # [T]
        change = 100 * np.mean([_all_changes(run) for run in runs], axis=0)  # [T]
        mean = np.bincount(image, change) / number
        return {SSI: mean_metric(mean, None, len(change) * len(runs), None, 0, "change", settings)}

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        noise, queries = self.collected(evaluation.data), evaluation.result.queries
        flat = [(i, j) for i, one in enumerate(noise.images) for j in range(len(one.texts))]

        def case(k: int) -> Case:
            i, j = flat[k]
            one, words = noise.images[i], SENTENCES[noise.images[i].sentence]
            before, after = (queries["scores"][name][i][j] for name in (PLAIN, NOISY))
            key, title = evaluation.data.keys[i], f"changed by {100 * change[k]:,.2f} %"
            detail = f"noise after {one.places[j]} of {one.sentences[j]} sentences, {key}"
            name = f"Score without the marked sentence {before:.4f}, with it {after:.4f}"
            text = Markup("<mark>{}</mark>").format(words).join(one.texts[j].split(words))
            image = evaluation.image(i)
            return Case(title, detail, image=image, alt=f"image {key}", texts=[(name, text)])

        change, image = _all_changes(queries), [i for i, _ in flat]
        order = "One subtext for each image, by |(s - s~) / s| of the scores s without and s~ with the noise."
        titles = ("Noise: largest change", "Noise: smallest change")
        return evaluation.both_ends(titles, order, case, -change, image=image, number=number)


class NoiseCollector(SubtextCollector):
    """Encodes every subtext in two forms: as it is, and with a sentence of noise.

    Texts that the model reads alike share one row: noise beyond what it reads changes nothing at all.
    """

    def __init__(self, model: Model, batch: int, seed: int) -> None:
        super().__init__(model, batch)
        self._seed, self._images = seed, list[Insertion]()

    def add(self, sample: Sample) -> None:
        super().add(sample)
        texts = sequences(sample.texts[0], sample.record.subtexts)[EACH]
        self._images.append(insert_noise(self._seed, sample.record.key, texts))

    def result(self, data: Encodings) -> Noise:
        self._queue.rows.encode_waiting()  # so that batches with noise begin with it
        for one in self._images:
            self._queue.add({NOISY: one.texts})
        subtexts: Subtexts = super().result(data)
        both = {PLAIN: subtexts.sequences[EACH], NOISY: subtexts.sequences[NOISY]}
        return Noise(subtexts._replace(sequences=both), tuple(self._images))


def insert_noise(seed: int, key: str, texts: Sequence[str]) -> Insertion:
    """One sentence for an image, and for each of its subtexts a place: any with equal chance.

    All of it depends on seed, key of the image and subtext alone.
    """
    sentence = int(digest([seed, "sentence", key]), 16) % len(SENTENCES)
    pieces = [[piece.text for piece in sentences(text)] for text in texts]
    number = [len(one) for one in pieces]
    places = [
        int(digest([seed, "place", key, text]), 16) % (n + 1) for text, n in zip(texts, number, strict=True)
    ]
    noisy = [inserted(*one, SENTENCES[sentence]) for one in zip(pieces, places, strict=True)]
    return Insertion(sentence, tuple(places), tuple(number), tuple(noisy))


def inserted(pieces: Sequence[str], place: int, noise: str) -> str:
    """Sentences as one text, with the noise after the first `place` of them.

    A text before the noise gets a full stop if it lacks one, or the two would be one sentence.
    """
    before = " ".join(pieces[:place])
    if before and sentences(f"{before} {noise}")[-1].text != noise:
        before += "."
    return " ".join(filter(None, [before, noise, *pieces[place:]]))


def changes(plain: Sequence[float] | np.ndarray, noisy: Sequence[float] | np.ndarray) -> np.ndarray:
    """|(s - s~) / s| of some scores, |s| taken for 1e-6 where it is less."""
    s, noisy_s = np.asarray(plain, np.float64), np.asarray(noisy, np.float64)
    return np.abs(s - noisy_s) / np.maximum(np.abs(s), FLOOR)


def _all_changes(run: dict[str, Any]) -> np.ndarray:
    """The changes of all subtexts, image after image: [T]"""
    plain, noisy = (np.concatenate([np.asarray(x) for x in run["scores"][name]]) for name in (PLAIN, NOISY))
    return changes(plain, noisy)


def _notes(queries: dict[str, Any], seed: int) -> tuple[str, ...]:
    plain = np.concatenate([np.asarray(x) for x in queries["scores"][PLAIN]])
    number, still = len(plain), int((_all_changes(queries) == 0).sum())
    floored = f"of {number} scores are closer to 0 than {FLOOR:g} and count as that"
    cut = (
        f"of {number} subtexts with noise are longer than the model reads: it misses the noise, or "
        f"words behind it; {still} scores did not change at all"
    )
    counts = {floored: int((np.abs(plain) < FLOOR).sum()), cut: sum(map(sum, queries["cut"][NOISY]))}
    noise = f"noise: {len(SENTENCES)} sentences, digest {POOL}, seed {seed}"
    return f"{noise}; published values were made with others and cannot be compared", *count_notes(counts)
