"""Similarity: how alike an image looks to its own texts; and retrieval in a gallery made from own captions.

Sim of beta-CLIP (Zohra et al., arXiv 2512.12678), for methods that pool a picture by a text. In three steps:
  1. take the caption of a picture apart into sentences and phrases, as in training
    (evaluation/collectors/seen.py);
  2. pool the picture by each of these texts;
  3. Sim = mean over pictures of the mean cosine between two of its features.

Beside each Sim stands the same number of the vectors of the texts: how alike they were to begin with. Neither
end of the scale is better. Near 1 a picture looks the same to all its texts; the lower Sim is, the more a
feature follows its text. Differs from the published code: a text that comes twice counts once.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from grainline.data.formats.common import digest
from grainline.errors import UserError
from grainline.evaluation.collectors.seen import KINDS, MOST_PHRASES, MOST_SENTENCES, Likeness
from grainline.evaluation.encode import Encodings
from grainline.evaluation.intervals import replicates
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.ranks import Ranks, chance_recall, refuse_nan
from grainline.evaluation.result import Result
from grainline.evaluation.score import Cosine, Scorer, retrieval_ranks
from grainline.report.case import Look
from grainline.report.page import render

SIMILARITY = "similarity"
SIM, TEXTS = "Sim", "cosine of texts"


def similarity_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: ARG001, B008
    """Sim over sentences, phrases and all texts, and how alike these texts are.

    Raises UserError if the data were encoded without it or no picture has two texts, for a protocol of
    retrieval, and for features that are not a number.
    """
    found = data.likeness
    if found is None:
        raise UserError(
            f"{data.path} was encoded without features by texts; the {SIMILARITY} suite needs them"
        )
    only_plain(options, SIMILARITY)
    if not any(one.alike for one in found):
        raise UserError(
            f"no caption of {data.path} has two texts; sentences and phrases are taken from captions"
        )
    kinds = {kind: _outcomes(kind, found) for kind in KINDS}
    queries = {
        "keys": list(data.keys),
        "texts": digest(text for one in found for text in one.texts),
        "kinds": {kind: one for kind, one in kinds.items() if one["picture"]},
    }
    cells = similarity_cells([queries], options)
    result = result_of(SIMILARITY, data, options, cells, queries, _notes(kinds, len(found)))
    most = {"most_sentences": MOST_SENTENCES, "most_phrases": MOST_PHRASES}
    told = {"texts": sum(len(one.texts) for one in found)}
    return result._replace(settings=result.settings | most, data=result.data | told)


def similarity_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Metrics from the values of single pictures: means over the runs; the bootstrap draws pictures.

    Sim of a kind and the cosine of its texts draw the same pictures.
    """
    out = {}
    for kind in runs[0]["kinds"]:
        scores = [run["kinds"][kind]["scores"] for run in runs]
        value = np.mean([[one[SIM], one[TEXTS]] for one in scores], axis=0).T  # [Q, 2]
        drawn = replicates(value, resamples=options.resamples, seed=options.seed)
        for i, name in enumerate((SIM, TEXTS)):
            number = len(value) * len(runs)
            out[f"{name}, {kind}"] = Cell(float(value[:, i].mean()), drawn[:, i], number, None, 0, "cosine")
    return out


def _outcomes(kind: str, found: tuple[Likeness, ...]) -> dict[str, Any]:
    """The pictures that have two texts of a kind, with the number of these texts and both values."""
    mine = [i for i, one in enumerate(found) if kind in one.alike]
    alike = [found[i].alike[kind] for i in mine]
    nan = sum(np.isnan(one).any() for one in alike)
    refuse_nan(int(nan), len(alike))
    return {
        "picture": mine,
        "number": [found[i].number[kind] for i in mine],
        "scores": {SIM: [one.features for one in alike], TEXTS: [one.texts for one in alike]},
    }


def _notes(kinds: dict[str, dict[str, Any]], pictures: int) -> tuple[str, ...]:
    """What is left out of each kind."""
    notes = []
    for kind, one in kinds.items():
        lacking = pictures - len(one["picture"])
        if lacking:
            notes.append(f"{kind}: {lacking} of {pictures} pictures have fewer than two and are left out")
    return tuple(notes)


# Own captions: every picture of the gallery is pooled with its own caption, and then looked for.
#
# This is how beta-CLIP (Zohra et al., arXiv 2512.12678) reports retrieval with text-conditioned pictures. It
# is no retrieval: the gallery is made from the answers. Kept under a name of its own, to repeat published
# numbers and to show how far they lie from `retrieval` with `--scoring conditioned`, where every text meets
# every picture as this text sees it.


OWN_CAPTION = "own-caption"
DEPTHS = (1, 5, 10)
WAYS = {"picture to captions": "i2t", "caption to pictures": "t2i"}
NOTE = (
    "own-caption is no measure of retrieval: every picture is pooled with its own caption, so the gallery is "
    "made from the answers; a block that ignores the pixels and returns the text scores 100 %. Fair is "
    "--suite retrieval --scoring conditioned"
)


def own_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: ARG001, B008
    """How often picture and caption find each other where the picture has been pooled with this caption.

    Raises UserError if the data were encoded without it, for a protocol of retrieval, and for NaN scores.
    """
    own = data.own
    if own is None:
        raise UserError(f"{data.path} was encoded without features by own captions; {OWN_CAPTION} needs them")
    only_plain(options, OWN_CAPTION)
    both = retrieval_ranks(Cosine(), own.images, own.texts, options.memory)
    queries = {"keys": list(data.keys), "i2t": _listed(both.i2t), "t2i": _listed(both.t2i)}
    return result_of(OWN_CAPTION, data, options, own_cells([queries], options), queries, (NOTE,))


def own_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Shares from ranks, means over the runs; the bootstrap draws pictures, the same ones both ways."""
    out = {}
    for way, key in WAYS.items():
        rank = np.array([run[key]["rank"] for run in runs])  # [run, N]
        ties = int(np.sum([run[key]["tied"] for run in runs]))
        hits = (rank[:, :, None] <= np.array(DEPTHS)).mean(0)  # [N, 3]
        drawn = replicates(hits, resamples=options.resamples, seed=options.seed)
        for i, k in enumerate(DEPTHS):
            chance = chance_recall([1], rank.shape[1], k)
            name = f"{OWN_CAPTION} R@{k}, {way}"
            out[name] = Cell(float(hits[:, i].mean()), drawn[:, i], rank.size, chance, ties, "share")
    return out


def _listed(ranks: Ranks) -> dict[str, list[int]]:
    return {"rank": ranks.rank.tolist(), "tied": ranks.tied.int().tolist()}


# What stands on a page about likeness: a picture, and its texts with how alike it looks to them.


class Likened(NamedTuple):
    """A picture that was pooled by each of its texts."""

    look: Look  # the picture, and its first texts with the mean cosine of its feature with the others
    name: str  # of the picture
    features: float  # mean cosine between two features of the picture
    texts: float  # mean cosine between two of its texts
    number: int  # of its texts


def likened(shown: Sequence[Likened], name: str) -> Markup:
    """Pictures one below the other.

    name  letters and digits, another one for each list on a page
    """
    return render("alike.html", shown=shown, name=name)
