"""A data source, encoded: the input of every suite.

Samples that cannot be used are skipped, counted by cause and carried into the result. Tokens are dropped
unless the method compares them; those of images are then stored as scores read them (`Method.precompute`).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image

from grainline.data.decode import decode
from grainline.data.descriptions import Described, Descriptions, WithDescriptions
from grainline.data.formats.joined import remarks
from grainline.data.record import MISSING_CAPTION, CorruptSample, Record, Source
from grainline.errors import UserError, amount
from grainline.model import Model
from grainline.types import Encoded, concat, rows, vectors_only, without_places

Captions = Literal["whole", "each", "first"]
CAPTIONS: tuple[Captions, ...] = ("whole", "each", "first")

Progress = Callable[[int, int], None]  # samples done, samples in all


class Encodings(NamedTuple):
    """Everything that suites need: rows, what they stand for, and what went wrong on the way."""

    images: Encoded  # [N] `image` is 0 .. N-1 in file order
    texts: Encoded  # [M] in file order; `image` is the row of the image
    keys: tuple[str, ...]  # [N] names of the images
    strings: tuple[str, ...]  # [M] the texts as the model got them
    path: str
    fingerprint: str
    captions: Captions
    samples: int  # in the source, damaged ones included
    damaged: dict[str, int]  # cause -> samples that were skipped
    damaged_first: tuple[str, ...]  # cause and place of the first of them
    blank: int  # captions without a character, skipped where the image has others
    cut: int  # texts that were longer than the model reads, those of probes included
    positions: tuple[int, ...]  # [N] where each image stands in the source: skipped samples leave gaps
    remarks: tuple[str, ...] = ()  # what the source found at opening
    described: tuple[str, ...] = ()  # [N] descriptions of the images, for a method that reads them
    descriptions: str = ""  # where they come from
    collected: Mapping[str, Any] = {}  # the result of each collector, by its name

    def notes(self) -> tuple[str, ...]:
        """Notes on the data, for readers of any number on them."""
        notes = list(self.remarks)
        if self.damaged:
            causes = ", ".join(f"{number} {cause}" for cause, number in sorted(self.damaged.items()))
            skipped, first = sum(self.damaged.values()), "; ".join(self.damaged_first)
            notes.append(f"{skipped} of {self.samples} samples were skipped: {causes}; the first: {first}")
        if self.blank:
            notes.append(f"{self.blank} blank captions were skipped")
        if self.cut:
            notes.append(f"{amount(self.cut, 'text')} longer than the model reads and cut")
        return tuple(notes)


class Sample(NamedTuple):
    """A record with all that a walk knows of it before its image is encoded."""

    record: Record
    size: tuple[int, int]  # width and height of the decoded image
    position: int  # in the source
    row: int  # among the encoded images
    texts: Sequence[str]  # the captions that are read of it, none of them blank


class Collector(ABC):
    """Collects what one suite needs during a walk over a source. Abstract: `result` is needed."""

    truncated = 0
    """Truncated texts that were not encoded and count too; below zero where some were encoded again."""

    def add(self, sample: Sample) -> None:  # noqa: B027 - nothing by default
        """Take the next sample, before its image is encoded. To skip it: raise CorruptSample, add nothing."""

    def add_images(self, images: Encoded, texts: Sequence[Sequence[str]]) -> None:  # noqa: B027 - as `add`
        """The next encoded images, with their tokens: N rows, and the captions of each."""

    @abstractmethod
    def result(self, data: Encodings) -> Any:
        """What was collected, once all images are encoded. It stands in `Encodings.collected`.

        data  all of the walk but `collected` and `cut`

        Raises UserError where there is nothing.
        """


class Rows:
    """Collects inputs and encodes them in batches."""

    def __init__(self, encode: Callable[[list[Any]], Encoded], batch: int) -> None:
        self.encode, self.batch = encode, batch
        self.waiting: list[Any] = []
        self.done: list[Encoded] = []
        self.number = 0

    def add(self, item: Any) -> int:
        """Queue one input; its row."""
        self.waiting.append(item)
        self.number += 1
        if len(self.waiting) == self.batch:
            self.encode_waiting()
        return self.number - 1

    def stacked(self, owner: Sequence[int] | None = None) -> Encoded:
        """All rows, as `numbered` has them."""
        self.encode_waiting()
        return numbered(stack(self.done), owner)

    def of_no_image(self) -> Encoded:
        """All rows, as texts that describe no image of the gallery."""
        return self.stacked([-1] * self.number)

    @torch.no_grad()
    def encode_waiting(self) -> None:
        if self.waiting:
            self.done.append(self.encode(self.waiting))
            self.waiting = []


def stack(parts: Sequence[Encoded]) -> Encoded:
    """Rows of several batches; tokens are padded to the longest, because texts are trimmed batch by batch.

    >>> def some(n: int, length: int) -> Encoded:
    ...     return Encoded(torch.ones(n, 2), torch.ones(n, length, 2), torch.ones(n, length).bool(),
    ...                    torch.arange(n), torch.arange(n))
    >>> stack([some(1, 3), some(2, 1)]).mask.int().tolist()
    [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    """
    longest = max(part.mask.shape[1] for part in parts)
    padding = [longest - part.mask.shape[1] for part in parts]
    return concat(
        [
            part._replace(tokens=F.pad(part.tokens, (0, 0, 0, n)), mask=F.pad(part.mask, (0, n)))
            for part, n in zip(parts, padding, strict=True)
        ]
    )


def numbered(encoded: Encoded, owner: Sequence[int] | None = None) -> Encoded:
    """The rows with ids of their own, 0, 1, ..., and the image of each: its own id, or that of `owner`."""
    item = torch.arange(len(encoded.vector), device=encoded.vector.device)
    image = item if owner is None else torch.tensor(owner, device=item.device)
    return encoded._replace(item=item, image=image)


def text_rows(model: Model, batch: int) -> Rows:
    """`Rows` that encodes texts in batches, and keeps their tokens only if the method is pairwise."""
    reduce = without_places if model.method.pairwise else vectors_only
    return Rows(lambda items: reduce(model.encode(texts=items)), batch)


class Skipped:
    """The damaged samples of one walk over a source: counted by cause, the first ones named.

    samples  in the source
    share    of them that may be skipped
    path     of the source, for errors
    """

    def __init__(self, samples: int, share: float, path: str) -> None:
        self._samples, self._share, self._path = samples, share, path
        self._failed: list[tuple[str, str]] = []  # cause, text: an exception would keep its image in memory

    def add(self, error: CorruptSample) -> None:
        """The next one. Raises UserError where it is one too many, naming the first of them."""
        self._failed.append((error.cause, str(error)))
        if len(self._failed) > self._share * self._samples:
            raise UserError(
                f"at least {len(self._failed)} of {self._samples} samples in {self._path} are corrupt;"
                f" allowed are {self._share:.0%} of them (--max-corrupt, or data.max_corrupt of a recipe);"
                f" the first: {'; '.join(self.first())}"
            )

    def refuse_all(self) -> None:
        """Raise UserError where nothing else is left."""
        if len(self._failed) == self._samples:
            first = self._failed[0][1]
            raise UserError(f"no sample of {self._path} can be used; the first of {self._samples}: {first}")

    def causes(self) -> dict[str, int]:
        """How many there are of each cause."""
        return dict(Counter(cause for cause, _ in self._failed))

    def first(self) -> tuple[str, ...]:
        """The first three: cause and place."""
        return tuple(text for _, text in self._failed[:3])


def encode_source(  # noqa: PLR0913 - each is a choice of the caller
    model: Model,
    source: Source,
    *,
    captions: Captions = "whole",
    need_text: bool = True,
    encode_images: bool = True,
    encode_texts: bool = True,
    keep_tokens: bool = True,
    collectors: Mapping[str, Collector] = {},
    descriptions: Descriptions | None = None,
    batch: int = 64,
    max_corrupt: float = 0.1,
    progress: Progress | None = None,
) -> Encodings:
    """Encode all images and texts of a source.

    captions     "whole": one text per image, its fullest; "each": every caption; "first": the first one
    need_text    an image without a text counts as damaged; else it is encoded alone
    encode_images False opens no image: the encodings have no row
    encode_texts  False keeps the texts as strings only: the names of classes come again and again
    keep_tokens  False drops all tokens, also where the method compares them
    collectors   collect what suites need of each sample, by name: `Encodings.collected`
    descriptions of the images, for a model that reads them
    batch        images, and texts, that the model sees at once
    max_corrupt  share of samples that may be skipped

    Raises UserError for an unknown `captions`, an empty source, too many damaged samples (naming the first
    of them).
    """
    if captions not in CAPTIONS:
        raise UserError(f"captions is {captions!r}; allowed: {', '.join(CAPTIONS)}")
    if len(source) == 0:
        raise UserError(f"no samples in {source.path}; evaluation needs at least one")
    cut_before = model.cut
    walk = _Walk(model, captions, need_text, encode_texts, keep_tokens, list(collectors.values()), batch)
    skipped = Skipped(len(source), max_corrupt, source.path)
    records = source if descriptions is None else WithDescriptions(source, descriptions)
    for index in range(len(source)):
        try:
            record = records[index]
            walk.add(record, decode(record) if encode_images else None, index)
        except CorruptSample as error:
            skipped.add(error)
        if progress is not None:
            progress(index + 1, len(source))
    skipped.refuse_all()
    # the last regions are pooled here
    images = walk.images.stacked() if encode_images else rows(model.encode(texts=["a"]), slice(0, 0))
    data = Encodings(
        images=images,
        texts=walk.texts.stacked(walk.owner) if walk.texts.number else rows(images, slice(0, 0)),
        keys=tuple(walk.keys),
        strings=tuple(walk.strings),
        path=source.path,
        fingerprint=source.fingerprint(),
        captions=captions,
        samples=len(source),
        damaged=skipped.causes(),
        damaged_first=skipped.first(),
        blank=walk.blank,
        cut=0,  # known once all texts are encoded
        positions=tuple(walk.positions),
        remarks=remarks(source),
        described=tuple(walk.described),
        descriptions="" if descriptions is None else str(descriptions),
    )
    data = data._replace(collected={name: one.result(data) for name, one in collectors.items()})
    truncated = sum(one.truncated for one in collectors.values())
    return data._replace(cut=model.cut - cut_before + truncated)


def texts_of(record: Record, captions: Captions) -> list[str]:
    """The texts that `captions` takes from a record, blank ones included; [] if it has none.

    >>> record = Record("a", b"", ("A dog runs.", "A brown dog."), long="A brown dog runs over wet sand.")
    >>> [texts_of(record, mode) for mode in ("whole", "first")]
    [['A brown dog runs over wet sand.'], ['A dog runs.']]
    """
    if not record.captions and not record.long:
        return []
    if captions == "whole":
        return [record.whole]
    return list(record.captions[:1] if captions == "first" else record.captions)


class _Walk:
    """What one walk over a source has read so far."""

    def __init__(
        self,
        model: Model,
        captions: Captions,
        need_text: bool,
        encode_texts: bool,
        keep_tokens: bool,
        collectors: Sequence[Collector],
        batch: int,
    ) -> None:
        tokens = model.method.pairwise and keep_tokens
        reduce = without_places if tokens else vectors_only
        precompute = model.method.precompute if tokens else vectors_only

        def encode_images(items: list[tuple[Any, list[str]]]) -> Encoded:
            encoded = model.encode(images=[image for image, _ in items])
            for collector in collectors:
                collector.add_images(encoded, [texts for _, texts in items])
            return reduce(precompute(encoded))

        self.images = Rows(encode_images, batch)
        self.texts = Rows(lambda items: reduce(model.encode(texts=items)), batch)
        self.captions, self.need_text, self.encode_texts = captions, need_text, encode_texts
        self.collectors = collectors
        self.keys: list[str] = []
        self.positions: list[int] = []  # in the source
        self.strings: list[str] = []
        self.owner: list[int] = []
        self.described: list[str] = []
        self.blank = 0

    def add(self, record: Record, image: Image.Image | None, index: int) -> None:
        """Queue the record at position `index` of the source, and pass it to the collectors.

        Raises CorruptSample, having queued nothing, if no text is there or a collector refuses its regions.
        """
        texts = texts_of(record, self.captions)
        real = [text for text in texts if text.strip()]
        if not real and self.need_text:
            raise CorruptSample(MISSING_CAPTION, record.key)
        row, size = len(self.keys), (0, 0) if image is None else image.size
        for collector in self.collectors:
            collector.add(Sample(record, size, index, row, real))
        self.blank += len(texts) - len(real)
        self.keys.append(record.key)
        self.positions.append(index)
        for text in real:
            if self.encode_texts:
                self.texts.add(text)
            self.strings.append(text)
            self.owner.append(row)
        if image is None:
            return
        if record.dense is not None:
            self.described.append(record.dense)
        # Encodes a batch that is full: after its texts.
        self.images.add((image if record.dense is None else Described(image, record.dense), real))
