"""A walk over a source that reads its captions with their phrases, and looks at no picture."""

from typing import Protocol, runtime_checkable

from grainline.data.record import Damaged, Source
from grainline.data.sources import remarks
from grainline.data.sources.held import HeldBack
from grainline.data.sources.joined import Joined
from grainline.errors import UserError
from grainline.evaluate.encode import Encodings, Progress
from grainline.evaluate.gold import captions_of
from grainline.evaluate.grouped import Groups
from grainline.evaluate.skipped import Skipped
from grainline.model import Model
from grainline.types import rows, vectors_only


@runtime_checkable
class Worded(Protocol):
    """A source that can leave its pictures out."""

    def texts_only(self) -> Source:
        """The same records with all marked phrases, and with pictures of no bytes."""


def without_pictures(source: Source) -> Source:
    """The source with phrases and without pictures, where it can be had so."""
    if isinstance(source, Worded):
        return source.texts_only()
    if isinstance(source, Joined):
        return Joined([without_pictures(one) for one in source.sources])
    if isinstance(source, HeldBack):
        return HeldBack(without_pictures(source.source), source.skip)
    return source


def encode_phrases(
    model: Model, source: Source, batch: int = 64, max_damaged: float = 0.1, progress: Progress | None = None
) -> Encodings:
    """The captions of a source with what the model makes of their tokens, in `Encodings.grouped`.

    batch        texts that the model sees at once
    max_damaged  share of samples that may be skipped

    Raises UserError for an empty source, too much damage, no marked phrase at all, and for a method that
    composes texts of chunks, which are no run of words.
    """
    if model.method.chunking is not None:
        raise UserError(
            f"{model.description.method} reads a text as chunks that it composes; --suite phrases is for"
            " methods that read its words one after the other"
        )
    if len(source) == 0:
        raise UserError(f"no samples in {source.path}; evaluation needs at least one")
    fingerprint, told = source.fingerprint(), remarks(source)
    bare = without_pictures(source)
    failed = Skipped(len(source), max_damaged, source.path)
    groups = Groups(model, batch)
    keys: list[str] = []
    positions: list[int] = []
    for index in range(len(bare)):
        try:
            record = bare[index]
            groups.add(captions_of(record), len(keys))
            keys.append(record.key)
            positions.append(index)
        except Damaged as error:
            failed.add(error)
        if progress is not None:
            progress(index + 1, len(bare))
    failed.refuse_all()
    found = groups.found()
    if not found.texts:
        why = f"; of {found.unmapped} the tokens cannot be told apart" if found.unmapped else ""
        raise UserError(
            f"no phrase in {source.path} that the model reads is marked in its caption{why}; the phrases"
            " suite needs regions with a span, as flickr30k-entities and scenes have"
        )
    nothing = rows(vectors_only(model.encode(texts=["a"])), slice(0, 0))  # no vector is needed
    return Encodings(
        images=nothing,
        texts=nothing,
        keys=tuple(keys),
        strings=found.texts,
        probes=None,
        path=source.path,
        fingerprint=fingerprint,
        captions="whole",
        samples=len(source),
        damaged=failed.causes(),
        damaged_first=failed.first(),
        blank=0,
        cut=found.cut,
        positions=tuple(positions),
        remarks=told,
        grouped=found,
    )
