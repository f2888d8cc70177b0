"""What a suite sends along while a source is encoded: it takes pictures, texts and regions as they come."""

import copy
from collections.abc import Sequence

from grainline.data.benchmarks.proposals import Proposals
from grainline.data.decode import decode
from grainline.data.record import Source
from grainline.evaluation.collectors.choices import Choosing
from grainline.evaluation.collectors.expressions import Covering, Judging, refuse_unplaced
from grainline.evaluation.collectors.gradient_maps import refuse_unattended
from grainline.evaluation.collectors.seen import Likenesses, Owned, seeing
from grainline.evaluation.collectors.text_attention import Inactive, attending, partners, parts_of
from grainline.evaluation.encode import Captions
from grainline.evaluation.suites.inactivity import INACTIVITY, texts_in
from grainline.evaluation.suites.referring import REFERRING
from grainline.evaluation.suites.similarity import OWN_CAPTION, SIMILARITY
from grainline.model import Model, given
from grainline.types import Encoded


def pooling_of(suite: str, model: Model, batch: int) -> tuple[Likenesses | None, Owned | None]:
    """What pools the pictures by texts for a suite that needs it."""
    if suite not in (SIMILARITY, OWN_CAPTION):
        return None, None
    method = seeing(model.method, model.description.method, suite)

    def read(texts: Sequence[str]) -> Encoded:
        return model.encode(texts=texts)

    if suite == SIMILARITY:
        return Likenesses(method, read, batch), None
    return None, Owned(method, read)


def inactive_of(model: Model, source: Source, captions: Captions) -> Inactive:
    """What asks pictures for texts of others. Raises UserError for a method without an empty slot."""
    method = model.method
    attending(method, model.description.method, f"--suite {INACTIVITY}")
    beside = copy.copy(model)  # counts what it cuts by itself
    number = beside.encode(texts=["a"]).tokens.shape[1]
    other = partners(texts_in(source, captions), lambda text: parts_of(method, text, number))
    return Inactive(
        method, lambda texts: model.encode(texts=texts), lambda texts: beside.encode(texts=texts), other
    )


def judging_of(
    suite: str, model: Model, source: Source, proposals: Proposals | None, batch: int, attention: bool
) -> Judging:
    """What judges the maps of expressions. Raises UserError where image tokens have no places.

    attention  whether maps of the last attention choose boxes too
    """
    method = model.method
    refuse_unplaced(method, model.description.method)

    def read(texts: Sequence[str]) -> Encoded:
        return model.encode(texts=texts)

    if suite == REFERRING:
        return Covering(method, read, model.read, batch)
    if attention:
        refuse_unattended(method, model.description.method)
    prepare = (lambda record: model.prepared(given(decode(record), record.dense))) if attention else None
    return Choosing(method, read, model.read, batch, source=source, proposals=proposals, prepare=prepare)
