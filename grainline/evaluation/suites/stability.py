"""Stability: how much does a sentence that has nothing to do with the picture change a score?

SSI of HiMo-CLIP, arXiv 2511.06653, in percent; lower is better. In three steps:
  1. draw one sentence of noise for every picture, and put it into each of its subtexts
    (evaluation/collectors/subtexts.py) at a
     sentence boundary, before the first sentence and after the last included
       (evaluation/collectors/subtexts.py);
  2. score both forms with the picture: s without, s~ with the noise;
  3. SSI = 100 * mean over pictures of the mean over their subtexts of |(s - s~) / s|.

The paper does not publish its noise and describes in three ways where it goes. So its numbers cannot be
compared with ours, which carry the seed and a digest of the sentences.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image

from grainline.errors import UserError
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
    drawn,
    place,
    pool,
)
from grainline.evaluation.encode import Encoder, Encodings
from grainline.evaluation.intervals import replicates
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.evaluation.suites.monotonicity import sequence_scores
from grainline.report.page import Gone, render
from grainline.types import Encoded, vectors_only

STABILITY, SSI = "stability", "SSI"
FLOOR = 1e-6  # of |s|
HEAVY = 0.05  # of the subtexts: a note says when fewer make up half of the value


@torch.no_grad()
def with_noise(model: Encoder, data: Encodings, seed: int = 0, batch: int = 64) -> Encodings:
    """Encodings with every subtext in two forms: as it is, and with a sentence of noise.

    batch  texts that the model sees at once

    Texts that the model reads alike share one row: noise beyond what it reads changes nothing at all.
    Raises UserError if the data were encoded without subtexts.
    """
    plain = data.subtexts
    if plain is None:
        raise UserError(f"{data.path} was encoded without subtexts; noise is put into them (subtexts=True)")
    queue: list[str] = []

    def add(text: str) -> int:
        queue.append(text)
        return len(queue) - 1

    gathered = Gathered(model.read, add)
    gathered.add({EACH: plain.strings})  # in their order, so that they get the rows that they have
    known = len(queue)
    noise = []
    for key, places in zip(data.keys, plain.of[EACH], strict=True):
        texts = [plain.strings[place] for place in places]
        noise.append(drawn(seed, key, texts))
        gathered.add({PLAIN: texts, NOISY: noise[-1].texts})
    told = gathered.encoded(_appended(model, plain.texts, queue[known:], batch))
    assert torch.equal(told.row[: len(plain.row)], plain.row), "the subtexts are read as before"
    told = told._replace(of={name: told.of[name] for name in (PLAIN, NOISY)})
    cut = sum(told.cut[len(plain.cut) :])
    return data._replace(noise=Noise(seed, told, tuple(noise)), cut=data.cut + cut)


def stability_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """SSI over all pictures, and by where the noise stands.

    Raises UserError if the data were encoded without noise, for a protocol of retrieval, and for NaN scores.
    """
    noise = data.noise
    if noise is None:
        raise UserError(f"{data.path} was encoded without noise; the {STABILITY} suite needs it")
    only_plain(options, STABILITY)
    found = sequence_scores(method, data.images, noise.told)
    queries = {
        "keys": list(data.keys),
        "sentence": [one.sentence for one in noise.drawn],
        "at": [list(one.at) for one in noise.drawn],
        "of": [list(one.of) for one in noise.drawn],
        "scores": {name: found[name]["scores"] for name in (PLAIN, NOISY)},
        "cut": {name: found[name]["cut"] for name in (PLAIN, NOISY)},
    }
    cells = stability_cells([queries], options)
    result = result_of(STABILITY, data, options, cells, queries, _notes(queries, noise.seed))
    return result._replace(
        settings=result.settings | {"noise_seed": noise.seed, "noise_pool": pool()},
        data=result.data | {"texts": len(noise.told.strings)},
    )


def changes(plain: Sequence[float] | np.ndarray, noisy: Sequence[float] | np.ndarray) -> np.ndarray:
    """|(s - s~) / s| of some scores, |s| taken for 1e-6 where it is less.

    >>> changes([0.25, -0.5, 0.0], [0.2, -0.6, 1e-6]).round(6).tolist()
    [0.2, 0.2, 1.0]
    """
    s, noisy_s = np.asarray(plain, np.float64), np.asarray(noisy, np.float64)
    return np.abs(s - noisy_s) / np.maximum(np.abs(s), FLOOR)


def stability_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Metrics from scores: the change of each subtext is a mean over the runs; the bootstrap draws pictures.

    A place at which no subtext has its noise is left out.
    """
    numbers = [list(zip(at, of, strict=True)) for at, of in zip(runs[0]["at"], runs[0]["of"], strict=True)]
    picture = np.repeat(np.arange(len(numbers)), list(map(len, numbers)))  # [T]
    where = np.array([place(at, of) for one in numbers for at, of in one])  # [T]
    change = 100 * np.mean([_all_changes(run) for run in runs], axis=0)  # [T]
    out = {}
    for one in (None, START, MIDDLE, END):
        mine = np.ones(len(where), bool) if one is None else where == one
        if mine.any():
            _, code, number = np.unique(picture[mine], return_inverse=True, return_counts=True)
            mean = np.bincount(code, change[mine]) / number  # of each picture
            drawn_ = replicates(mean, resamples=options.resamples, seed=options.seed)
            queries = int(mine.sum()) * len(runs)
            name = SSI if one is None else f"{SSI}, noise {one}"
            out[name] = Cell(float(mean.mean()), drawn_, queries, None, 0, "change")
    return out


def _appended(model: Encoder, texts: Encoded, new: Sequence[str], batch: int) -> Encoded:
    """Encoded texts with new ones behind them."""
    kept = (lambda x: x) if model.method.pairwise else vectors_only
    parts = [kept(model.encode(texts=new[i : i + batch])) for i in range(0, len(new), batch)]
    out = stack([texts, *parts])
    item = torch.arange(len(out.vector), device=out.vector.device)
    return out._replace(item=item, image=torch.full_like(item, -1))


def _all_changes(run: dict[str, Any]) -> np.ndarray:
    """The changes of all subtexts, picture after picture: [T]"""
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


# What stands on a page about noise: a picture, a text with a sentence put into it, two scores.


class Disturbed(NamedTuple):
    """A picture with a text into which a sentence was put that has nothing to do with it."""

    picture: Image.Image | Gone
    name: str
    text: str  # with the sentence
    noise: str  # the sentence
    place: str  # of the sentence in the text, in words
    scores: tuple[float, float]  # without and with the sentence
    change: float  # of the score, as a share of what it was


def disturbed(shown: Sequence[Disturbed]) -> Markup:
    """One below the other, the sentence marked in the text."""
    return render("noise.html", shown=shown)
