"""Transfer: a model that was trained on one set is measured by retrieval on another, without any tuning.

The metrics and protocols are those of retrieval. The result says what the model was trained on, what it is
tested on, and how many pictures are in both (evaluation/collectors/trained.py); the data of training
themselves are refused."""

from grainline.errors import UserError
from grainline.evaluation.collectors.trained import Overlap
from grainline.evaluation.encode import Encodings
from grainline.evaluation.outcome import Options, result_of
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.evaluation.suites.retrieval import both_ways, notes_of_stages, retrieval_cells

TRANSFER = "transfer"
SHOWN = 5  # pairs of images that look the same


def transfer_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """The metrics of retrieval, with a card that says what was trained on and what is tested on.

    Raises UserError if the data were encoded without a look at the training data, and as retrieval does.
    """
    both = data.overlap
    if both is None:
        raise UserError(
            f"{data.path} was encoded without a look at the training data; the {TRANSFER} suite needs it"
        )
    queries = both_ways(method, data, options)
    notes = notes_of_stages(queries, options) + _notes(both)
    result = result_of(TRANSFER, data, options, retrieval_cells([queries], options), queries, notes)
    told = {name: list(x) if isinstance(x, tuple) else x for name, x in both._asdict().items()}
    return result._replace(settings=result.settings | {"trained": told, "card": _card(both, result.data)})


def _card(both: Overlap, tested: dict[str, object]) -> dict[str, str]:
    """What was trained on and tested on, in words."""
    trained = [
        f"{path}: {number:,} samples, fingerprint {fingerprint[:16]}"
        for path, number, fingerprint in zip(both.paths, both.samples, both.fingerprints, strict=True)
    ]
    mine = str(tested["fingerprint"])[:16]
    return {
        "trained on": "; ".join(trained) or "nothing that a recipe names",
        **({"began with": ", ".join(both.unknown)} if both.unknown else {}),
        "tested on": f"{tested['path']}: {tested['pictures']:,} pictures, fingerprint {mine}",
        "in both": f"{both.pictures:,} of {both.compared:,} pictures, byte by byte; {len(both.near):,} more"
        f" look the same; {both.keys:,} keys",
    }


def _notes(both: Overlap) -> tuple[str, ...]:
    """What weakens a transfer."""
    notes = []
    if both.pictures:
        notes.append(f"{both.pictures:,} of {both.compared:,} pictures were trained on, byte by byte")
    if both.near:
        pairs = ", ".join(f"{mine} = {other}" for mine, other in both.near[:SHOWN])
        notes.append(
            f"{len(both.near):,} of {both.compared:,} pictures look like crops or smaller copies of training"
            f" images; look at them: {pairs}" + ", ..." * (len(both.near) > SHOWN)
        )
    if both.unlike:
        notes.append(
            f"{both.unlike:,} training images were compared by their bytes alone, not by their looks"
        )
    if both.keys and both.keys != both.pictures:
        notes.append(f"{both.keys:,} keys of pictures are keys of training data too")
    if both.unknown:
        notes.append(f"what {', '.join(both.unknown)} learnt from is not known here, nor compared")
    return tuple(notes)
