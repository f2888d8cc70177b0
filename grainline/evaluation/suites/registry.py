"""Suites: from encodings to a result.

retrieval     image to text and text to image: recalls, their sum, median ranks transfer      the same on data
that the model was not trained on, with what it was trained on (transfer.py) long-retrieval  the same for sets
of long captions, each under its own protocol (evaluation/collectors/long.py) probes        share of
comparisons in which a right pair of picture and text beats a wrong one (ranking.py) zeroshot      share of
pictures whose class is found by its prompts (zeroshot.py) monotonicity  whether scores rise with the
sentences of a caption (monotonicity.py) cola          share of items of two pictures whose captions both find
their own (cola.py) stability     how much a sentence without meaning for the picture changes scores
(stability.py) fg-ovd        whether the right text of a region scores higher than texts that are almost right
(fgovd.py) similarity    how alike a picture looks to its own texts, for methods that pool it by a text
(similarity.py) own-caption   a diagnostic of such methods, with a gallery that is made from the answers
(similarity.py) referring     whether the heat of an expression covers what it speaks of (referring.py)
comprehension  whether maps of an expression choose its box among others (comprehension.py) inactivity
whether texts of other pictures look at nothing, for methods with an empty slot (inactivity.py) phrases
whether groups of the tokens of a caption are its annotated phrases (phrases.py)"""

from collections.abc import Callable
from typing import Any

from grainline.errors import UserError
from grainline.evaluation.collectors.long import DEFAULT, LONG_RETRIEVAL, notes_of_card
from grainline.evaluation.encode import Encodings
from grainline.evaluation.outcome import Cell, Options, result_of
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.evaluation.suites.cola import COLA, cola_cells, cola_suite
from grainline.evaluation.suites.comprehension import COMPREHENSION, comprehension_cells, comprehension_suite
from grainline.evaluation.suites.fgovd import FG_OVD, fgovd_cells, fgovd_suite
from grainline.evaluation.suites.inactivity import INACTIVITY, inactivity_cells, inactivity_suite
from grainline.evaluation.suites.monotonicity import MONOTONICITY, monotonicity_cells, monotonicity_suite
from grainline.evaluation.suites.phrases import PHRASES, phrases_cells, phrases_suite
from grainline.evaluation.suites.ranking import PROBES, probe_cells, probes_suite
from grainline.evaluation.suites.referring import REFERRING, referring_cells, referring_suite
from grainline.evaluation.suites.retrieval import both_ways, notes_of_stages, retrieval_cells
from grainline.evaluation.suites.similarity import (
    OWN_CAPTION,
    SIMILARITY,
    own_cells,
    own_suite,
    similarity_cells,
    similarity_suite,
)
from grainline.evaluation.suites.stability import STABILITY, stability_cells, stability_suite
from grainline.evaluation.suites.transfer import TRANSFER, transfer_suite
from grainline.evaluation.suites.zeroshot import zeroshot_cells, zeroshot_suite

RETRIEVAL = "retrieval"
RANKED = (RETRIEVAL, TRANSFER, LONG_RETRIEVAL)  # suites that rank candidates

Suite = Callable[[Scorer, Encodings, Options], Result]
Cells = Callable[[list[dict[str, Any]], Options], dict[str, Cell]]
"""Metrics from `Result.queries`, one for each run, all runs over the same queries."""


def retrieval_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """Recall at 1, 5 and 10 and median rank both ways, and the sum of the recalls.

    Raises UserError where the protocol does not fit the data, and for NaN scores.
    """
    queries = both_ways(method, data, options)
    notes = notes_of_stages(queries, options)
    return result_of(RETRIEVAL, data, options, retrieval_cells([queries], options), queries, notes)


def long_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """The metrics of retrieval on a set of long captions, with the card of its protocol in the settings.

    Raises UserError if the data were encoded without a card or under another protocol, and for NaN scores.
    """
    card = data.card
    if card is None:
        raise UserError(f"{data.path} was encoded without a card; {LONG_RETRIEVAL} needs one")
    if options.protocol not in (DEFAULT, card.protocol):
        raise UserError(f"protocol is {options.protocol!r}; {data.path} was read under {card.protocol!r}")
    options = options._replace(protocol=card.protocol)
    queries = both_ways(method, data, options._replace(protocol="plain"))
    notes = notes_of_stages(queries, options) + notes_of_card(card, data.strings, len(data.keys))
    cells = retrieval_cells([queries], options)
    result = result_of(LONG_RETRIEVAL, data, options, cells, queries, notes)
    return result._replace(settings=result.settings | {"card": card.told(len(data.keys))})


SUITES: dict[str, Suite] = {
    RETRIEVAL: retrieval_suite,
    PROBES: probes_suite,
    "zeroshot": zeroshot_suite,
    MONOTONICITY: monotonicity_suite,
    COLA: cola_suite,
    STABILITY: stability_suite,
    FG_OVD: fgovd_suite,
    SIMILARITY: similarity_suite,
    OWN_CAPTION: own_suite,
    REFERRING: referring_suite,
    COMPREHENSION: comprehension_suite,
    INACTIVITY: inactivity_suite,
    PHRASES: phrases_suite,
    LONG_RETRIEVAL: long_suite,
    TRANSFER: transfer_suite,
}
CELLS: dict[str, Cells] = {
    RETRIEVAL: retrieval_cells,
    PROBES: probe_cells,
    "zeroshot": zeroshot_cells,
    MONOTONICITY: monotonicity_cells,
    COLA: cola_cells,
    STABILITY: stability_cells,
    FG_OVD: fgovd_cells,
    SIMILARITY: similarity_cells,
    OWN_CAPTION: own_cells,
    REFERRING: referring_cells,
    COMPREHENSION: comprehension_cells,
    INACTIVITY: inactivity_cells,
    PHRASES: phrases_cells,
    LONG_RETRIEVAL: retrieval_cells,
    TRANSFER: retrieval_cells,
}
