"""Own captions: every picture of the gallery is pooled with its own caption, and then looked for.

This is how beta-CLIP (Zohra et al., arXiv 2512.12678) reports retrieval with text-conditioned pictures. It is
no retrieval: the gallery is made from the answers. Kept under a name of its own, to repeat published numbers
and to show how far they lie from `retrieval` with `--scoring conditioned`, where every text meets every
picture as this text sees it.
"""

from typing import Any

import numpy as np

from grainline.errors import UserError
from grainline.evaluate.encode import Encodings
from grainline.evaluate.intervals import replicates
from grainline.evaluate.outcome import Cell, Options, only_plain, result_of
from grainline.evaluate.result import Result
from grainline.evaluate.retrieval import Ranks, chance_recall
from grainline.evaluate.score import Cosine, Scorer, retrieval_ranks

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
