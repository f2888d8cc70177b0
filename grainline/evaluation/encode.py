"""A data source, encoded: what every suite reads.

Samples that cannot be used are skipped, counted by cause and carried into the result. Tokens are dropped
unless the method compares them; those of images are then kept as scores read them (`Method.held`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from PIL import Image

from grainline.data.decode import decode
from grainline.data.descriptions import Described, Descriptions, WithDescriptions
from grainline.data.formats.joined import remarks
from grainline.data.record import MISSING_CAPTION, CorruptSample, Record, Source
from grainline.data.texts import TokenizedParts
from grainline.errors import UserError
from grainline.evaluation.collectors.collecting import Rows, Skipped, numbered
from grainline.evaluation.score import Scorer
from grainline.types import Encoded, rows, vectors_only, without_places

Captions = Literal["whole", "each", "first"]
CAPTIONS: tuple[Captions, ...] = ("whole", "each", "first")

Progress = Callable[[int, int], None]  # samples done, samples in all


class Encoder(Protocol):
    """What encoding asks of a model."""

    @property
    def method(self) -> Scorer: ...

    @property
    def cut(self) -> int:
        """How many texts so far were longer than the context, and cut."""

    def read(self, texts: Sequence[str]) -> TokenizedParts:
        """What it reads of texts, and how much of each is cut."""

    def encode(
        self,
        *,
        images: Sequence[bytes | Image.Image | Described] | None = None,
        texts: Sequence[str] | None = None,
    ) -> Encoded: ...


class Encodings(NamedTuple):
    """Everything that suites need: rows, what they stand for, and what went wrong on the way."""

    images: Encoded  # [N] `image` is 0 .. N-1 in file order
    texts: Encoded  # [M] in file order; `image` is the row of the image
    keys: tuple[str, ...]  # [N] names of the images
    strings: tuple[str, ...]  # [M] the texts as they were given to the model
    path: str
    fingerprint: str
    captions: Captions
    samples: int  # in the source, damaged ones included
    damaged: dict[str, int]  # cause -> samples that were skipped
    damaged_first: tuple[str, ...]  # cause and place of the first of them
    blank: int  # captions without a character, skipped beside others of the same image
    cut: int  # texts that were longer than the model reads, those of probes included
    positions: tuple[int, ...]  # [N] where each image stands in the source: skipped samples leave gaps
    remarks: tuple[str, ...] = ()  # what the source found at opening
    described: tuple[str, ...] = ()  # [N] descriptions of the images, for a method that reads them
    descriptions: str = ""  # where they come from
    collected: Mapping[str, Any] = {}  # what each collector returned, by its name


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
        """The next record, before its image is encoded. To skip it: CorruptSample, with nothing added."""

    def add_images(self, images: Encoded, texts: Sequence[Sequence[str]]) -> None:  # noqa: B027 - as `add`
        """The next encoded images, with their tokens: N rows, and the captions of each."""

    @abstractmethod
    def result(self, data: Encodings) -> Any:
        """What was collected, once all images are encoded. It stands in `Encodings.collected`.

        data  all of the walk but `collected` and `cut`

        Raises UserError where there is nothing.
        """


def text_rows(model: Encoder, batch: int) -> Rows:
    """Rows that encode texts in batches, with tokens where the method compares them."""
    kept = without_places if model.method.pairwise else vectors_only
    return Rows(lambda items: kept(model.encode(texts=items)), batch)


def encode_source(  # noqa: PLR0913 - each is a choice of the caller
    model: Encoder,
    source: Source,
    *,
    captions: Captions = "whole",
    need_text: bool = True,
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
    encode_texts  False keeps the texts as strings only: the names of classes come again and again
    keep_tokens  False drops all tokens, also where the method compares them
    collectors   what suites collect beside the vectors, by name: `Encodings.collected`
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
    run = _Run(
        model, captions, need_text, encode_texts, batch,
        keep_tokens, collectors,
    )  # fmt: skip
    failed = Skipped(len(source), max_corrupt, source.path)
    told_of = source if descriptions is None else WithDescriptions(source, descriptions)
    for index in range(len(source)):
        try:
            record = told_of[index]
            run.add(record, decode(record), index)
        except CorruptSample as error:
            failed.add(error)
        if progress is not None:
            progress(index + 1, len(source))
    failed.refuse_all()
    images = numbered(run.images.stacked())  # the last regions are pooled here
    data = Encodings(
        images=images,
        texts=numbered(run.texts.stacked(), run.owner) if run.texts.number else rows(images, slice(0, 0)),
        keys=tuple(run.keys),
        strings=tuple(run.strings),
        path=source.path,
        fingerprint=source.fingerprint(),
        captions=captions,
        samples=len(source),
        damaged=failed.causes(),
        damaged_first=failed.first(),
        blank=run.blank,
        cut=0,  # known once all texts are encoded
        positions=tuple(run.positions),
        remarks=remarks(source),
        described=tuple(run.described),
        descriptions="" if descriptions is None else str(descriptions),
    )
    data = data._replace(collected={name: one.result(data) for name, one in collectors.items()})
    truncated = sum(one.truncated for one in collectors.values())
    return data._replace(cut=model.cut - cut_before + truncated)


def texts_of(record: Record, captions: Captions) -> list[str]:
    """The texts of a record under a mode, blank ones included.

    >>> record = Record("a", b"", ("A dog runs.", "A brown dog."), long="A brown dog runs over wet sand.")
    >>> [texts_of(record, mode) for mode in ("whole", "first")]
    [['A brown dog runs over wet sand.'], ['A dog runs.']]
    """
    if not record.captions and not record.long:
        return []
    if captions == "whole":
        return [record.whole]
    return list(record.captions[:1] if captions == "first" else record.captions)


class _Run:
    """One walk over a source."""

    def __init__(
        self,
        model: Encoder,
        captions: Captions,
        need_text: bool,
        encode_texts: bool,
        batch: int,
        keep_tokens: bool,
        collectors: Mapping[str, Collector],
    ) -> None:
        self.collectors = tuple(collectors.values())
        self.waiting: list[Sequence[str]] = []  # captions of the images that are not encoded yet
        tokens = model.method.pairwise and keep_tokens
        kept = without_places if tokens else vectors_only
        held = model.method.precompute if tokens else vectors_only
        self.images = Rows(lambda items: kept(held(self._seen(model.encode(images=items)))), batch)
        self.texts = Rows(lambda items: kept(model.encode(texts=items)), batch)
        self.captions, self.need_text = captions, need_text
        self.encode_texts = encode_texts
        self.keys: list[str] = []
        self.positions: list[int] = []  # in the source
        self.strings: list[str] = []
        self.owner: list[int] = []
        self.described: list[str] = []
        self.blank = 0

    def add(self, record: Record, image: Image.Image, index: int) -> None:
        """Queue the record at a place of the source.

        Raises CorruptSample, having queued nothing, if a text is lacking or a mask wrong.
        """
        texts = texts_of(record, self.captions)
        real = [text for text in texts if text.strip()]
        if not real and self.need_text:
            raise CorruptSample(MISSING_CAPTION, record.key)
        for collector in self.collectors:
            collector.add(Sample(record, image.size, index, self.images.number, real))
        self.blank += len(texts) - len(real)
        row = self.images.number
        self.waiting.append(real)
        self.keys.append(record.key)
        self.positions.append(index)
        for text in real:
            if self.encode_texts:
                self.texts.add(text)
            self.strings.append(text)
            self.owner.append(row)
        if record.dense is not None:
            self.described.append(record.dense)
        # encodes a batch that is full: after its texts
        self.images.add(image if record.dense is None else Described(image, record.dense))

    def _seen(self, images: Encoded) -> Encoded:
        number = len(images.vector)
        texts, self.waiting = self.waiting[:number], self.waiting[number:]
        for collector in self.collectors:
            collector.add_images(images, texts)
        return images
