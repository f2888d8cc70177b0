"""Pairwise ranking accuracy: the share of probes whose right pair scores higher than the wrong one.

By what is wrong and pooled, for each benchmark by itself. Where SVO-Probes and FOIL-COCO are measured
together, `noun understanding` is the mean of subject, object and FOIL-COCO.
"""

from typing import Any

import numpy as np

from grainline.data.benchmarks.contests import DRAWN, OWN
from grainline.data.benchmarks.foilcoco import FOIL_COCO
from grainline.data.benchmarks.sugarcrepe import SUGARCREPE
from grainline.data.benchmarks.svo import OBJECT, SUBJECT, SVO_PROBES
from grainline.data.benchmarks.valse import VALSE
from grainline.errors import UserError
from grainline.evaluation.collectors.probes import Probes, probe_choices
from grainline.evaluation.encode import Encodings
from grainline.evaluation.intervals import replicates, wilson
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer

PROBES = "probes"
ALL, NOUNS = "all kinds", "noun understanding"
CHANCE = 0.5

RULE = (
    "a comparison is right where the right pair of picture and text scores strictly higher than the wrong"
    " one; a tie is wrong, and the table counts them"
)
CARDS = {
    SVO_PROBES: (
        "the sentence as it stands; the picture that shows it against the one that does not; rows with"
        " exactly one true flag whose pictures are both there, pooled over rows. The notebook of its"
        " authors drops duplicates and judges by a threshold: other numbers."
    ),
    FOIL_COCO: (
        "the foil against the caption of its id, both as they stand; their picture of COCO; every foil of the"
        " file. Published pairwise numbers are of foilv1.0_test_2017.json, about 99,000 pairs."
    ),
    VALSE: (
        "the caption against its foil, both as they stand; their picture; items of which two of three people"
        " at least chose the caption, as its authors count them (their acc_r). A kind is one of their files."
    ),
    SUGARCREPE: (
        "the caption against its negative caption, both as they stand; their picture of COCO val2017; every"
        " item of the file. A kind is one of its files; all kinds is pooled over items, no mean of kinds."
    ),
    DRAWN: (
        "the caption against each of its foils; their drawn picture; a foil is wrong in one thing, drawn so"
        " that its words do not betray it. There are no verbs: what comes closest is relation."
    ),
    OWN: "each foil of a record against the caption that it says it was made from; the picture of the record",
}
"""Which text, which pictures, which rows: a line for each benchmark."""


def probes_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """Accuracy of the right pair over the wrong one, by kind and over all kinds of each benchmark.

    Raises UserError if the data were encoded without probes, for a protocol of retrieval, and for NaN scores.
    """
    probes = data.probes
    if probes is None:
        raise UserError(f"{data.path} was encoded without probes; this suite needs them (probes=True)")
    only_plain(options, PROBES)
    chosen = probe_choices(method, data.images, probes)
    right, wrong = probes.pictures.T.tolist()
    queries = {
        "keys": list(data.keys),
        "kind": list(probes.kind),
        "benchmark": list(probes.benchmark),
        "picture": right,
        "other": wrong,
        "right": chosen.right.int().tolist(),
        "tied": chosen.tied.int().tolist(),
    }
    result = result_of(PROBES, data, options, probe_cells([queries], options), queries, _notes(probes))
    names = sorted(set(probes.benchmark))
    card = {name: CARDS[name] for name in names} | {"rule": RULE}
    counts = {"texts": len(probes.strings), "probes": len(probes.kind), "probes_left_out": probes.left_out}
    return result._replace(settings=result.settings | {"card": card}, data=result.data | counts)


def probe_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Accuracies from outcomes; the bootstrap draws the pictures of the right pairs."""
    first = runs[0]
    kind, benchmark = np.array(first["kind"]), np.array(first["benchmark"])
    names = sorted(set(first["benchmark"]))
    out = {}
    for name in names:
        mine = benchmark == name
        of = f", {name}" if len(names) > 1 else ""
        for one in (ALL, *sorted(set(kind[mine].tolist()))):
            out[one + of] = _cell(runs, mine if one == ALL else mine & (kind == one), options)
    svo = benchmark == SVO_PROBES
    thirds = [svo & (kind == SUBJECT), svo & (kind == OBJECT), benchmark == FOIL_COCO]
    if all(mine.any() for mine in thirds):
        out[NOUNS] = _mean(runs, thirds, options)
    return out


def _cell(runs: list[dict[str, Any]], mine: np.ndarray, options: Options) -> Cell:
    """The accuracy of some of the comparisons."""
    right = np.mean([run["right"] for run in runs], axis=0)[mine]  # share of the runs that were right
    ties = int(np.sum([run["tied"] for run in runs], axis=0)[mine].sum())
    picture = np.array(runs[0]["picture"])[mine]
    drawn = replicates(right, picture, resamples=options.resamples, seed=options.seed)
    alone = wilson(int(right.sum()), len(right), options.level) if len(runs) == 1 else None
    ends = None if alone is None else (alone.low, alone.high)
    return Cell(float(right.mean()), drawn, len(right) * len(runs), CHANCE, ties, "share", ends)


def _mean(runs: list[dict[str, Any]], parts: list[np.ndarray], options: Options) -> Cell:
    """The mean of the accuracies of several sets of comparisons, whose pictures are drawn together."""
    cells = [_cell(runs, mine, options) for mine in parts]
    right = np.mean([run["right"] for run in runs], axis=0)  # [P]
    member = np.stack(parts, axis=1).astype(np.float64)  # [P, F]
    picture = np.array(runs[0]["picture"])
    both = np.concatenate([right[:, None] * member, member], axis=1)
    drawn = replicates(both, picture, resamples=options.resamples, seed=options.seed)
    hits, number = np.split(drawn, 2, axis=1)  # [R, F] each
    value = np.array([cell.value for cell in cells])
    # A resample without any comparison of a set says nothing of it: its accuracy stands.
    share = np.where(number > 0, hits / np.where(number > 0, number, 1), value)
    queries, ties = sum(cell.queries for cell in cells), sum(cell.ties for cell in cells)
    return Cell(float(value.mean()), share.mean(1), queries, CHANCE, ties, "share")


def _notes(probes: Probes) -> tuple[str, ...]:
    """What a reader of the accuracies has to know."""
    notes = []
    if probes.left_out:
        number = probes.left_out + len(probes.kind)
        notes.append(
            f"{probes.left_out} of {number} comparisons were skipped: a picture of theirs cannot be used"
        )
    if bool((probes.pictures[:, 0] != probes.pictures[:, 1]).any()):
        notes.append(
            "intervals draw the pictures that texts are true of; that several texts meet one wrong picture"
            " does not widen them"
        )
    return tuple(notes)
