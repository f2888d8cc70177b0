"""Similarity: how alike does a picture look to its own texts?

Sim of beta-CLIP (Zohra et al., arXiv 2512.12678), for methods that pool a picture by a text. In three steps:
  1. take the caption of a picture apart into sentences and phrases, as in training (seen.py);
  2. pool the picture by each of these texts;
  3. Sim = mean over pictures of the mean cosine between two of its features.

Beside each Sim stands the same number of the vectors of the texts: how alike they were to begin with. Neither
end of the scale is better. Near 1 a picture looks the same to all its texts; the lower Sim is, the more a
feature follows its text. Differs from the published code: a text that comes twice counts once.
"""

from typing import Any

import numpy as np

from grainline.data.sources.common import digest
from grainline.errors import UserError
from grainline.evaluate.encode import Encodings
from grainline.evaluate.intervals import replicates
from grainline.evaluate.outcome import Cell, Options, only_plain, result_of
from grainline.evaluate.result import Result
from grainline.evaluate.retrieval import refuse_nan
from grainline.evaluate.score import Scorer
from grainline.evaluate.seen import KINDS, MOST_PHRASES, MOST_SENTENCES, Likeness

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
