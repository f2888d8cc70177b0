"""A data source, encoded: the input of every suite, and of `grainline encode`.

Samples that cannot be used are skipped, counted by cause and carried into the result. Tokens are dropped
unless the method compares them; those of images are then stored as scores read them (`Method.precompute`).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image

from grainline.data.decode import decode
from grainline.data.descriptions import Described, Descriptions, WithDescriptions
from grainline.data.formats.joined import prefetch, remarks
from grainline.data.record import Cause, CorruptSample, Record, Source
from grainline.distributed import parts_of_workers, rows_of_workers, span, workers
from grainline.errors import UserError, amount
from grainline.model import Model
from grainline.types import Encoded, concat, rows, vectors_only, without_places

Captions = Literal["auto", "whole", "each", "first"]
CAPTIONS: tuple[Captions, ...] = ("auto", "whole", "each", "first")

Progress = Callable[[int, int], None]  # samples done, samples in all


class Encodings(NamedTuple):
    """Everything that suites need: rows, what they stand for, and what went wrong on the way."""

    images: Encoded  # [N] `image` is 0 .. N-1 in file order
    texts: Encoded  # [M] in file order; `image` is the row of the image
    keys: tuple[str, ...]  # [N] names of the images
    strings: tuple[str, ...]  # [M] the texts as the model got them
    path: str
    fingerprint: str
    captions: Captions  # that were read; "auto" where some images have a long text, others several captions
    samples: int  # in the source, damaged ones included
    damaged: dict[str, int]  # cause -> samples that were skipped
    damaged_first: tuple[str, ...]  # cause and place of the first of them
    blank: int  # captions without a character, skipped where the image has others
    cut: int  # texts that were longer than the model reads, those of collectors included in the end
    positions: tuple[int, ...]  # [N] where each image stands in the source: skipped samples leave gaps
    several: int = 0  # images with several captions of which one, or all, or each is a text
    remarks: tuple[str, ...] = ()  # what the source found at opening
    described: tuple[str, ...] = ()  # [N] descriptions of the images, for a method that reads them
    descriptions: str = ""  # where they come from
    collected: Mapping[str, Any] = {}  # the result of each collector, by its name

    def notes(self) -> tuple[str, ...]:
        """Notes on the data, for readers of any number on them."""
        notes = list(self.remarks)
        if self.damaged:
            causes = ", ".join(f"{number} {cause}" for cause, number in sorted(self.damaged.items()))
            skipped = f"{sum(self.damaged.values())} of {self.samples} samples were skipped: {causes}"
            notes.append(f"{skipped}; the first: {'; '.join(self.damaged_first)}")
        if self.blank:
            notes.append(f"{self.blank} blank captions were skipped")
        if self.cut:
            notes.append(f"{amount(self.cut, 'text')} longer than the model reads and cut")
        return tuple(notes)

    def counts(self) -> str:
        """The numbers of texts and images in words, and the use of several captions of an image."""
        images = amount(len(self.keys), "image")
        if self.captions == "each":
            return f"{amount(len(self.strings), 'caption')} of {images}, each ranked"
        what = {
            "whole": "the captions of {} are joined to one text an image",
            "first": "the first caption of {}",
            "auto": "each caption of {} is ranked, and the long text of all others",
        }[self.captions].format(amount(self.several, "image"))
        return f"{images}, {amount(len(self.strings), 'text')}: {what}"


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
    """Truncated texts among those that it read, each once."""

    def add(self, sample: Sample) -> None:  # noqa: B027 - nothing by default
        """Take the next sample, before its image is encoded. To skip it: raise CorruptSample, add nothing."""

    def add_images(self, images: Encoded, texts: Sequence[Sequence[str]]) -> None:  # noqa: B027 - as `add`
        """The next encoded images, with their tokens: N rows, and the captions of each."""

    @abstractmethod
    def result(self, data: Encodings) -> Any:
        """The result of collecting, for `Encodings.collected`. Raises UserError where there is nothing."""


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

    def stacked(self) -> Encoded:
        """All rows, as texts that describe no image of the gallery."""
        self.encode_waiting()
        return numbered(stack(self.done), [-1] * self.number)

    def gathered(self, nothing: Callable[[], Encoded]) -> Encoded:
        """The encoded rows of all processes that divide the work. nothing: what stands for no row at all."""
        local = stack(self.done) if self.done else nothing()
        parts = rows_of_workers(local, local.vector.device)
        return stack([part for part in parts if len(part.vector)] or [local])

    @property
    def cut(self) -> int:
        """The number of encoded texts that were longer than the model reads."""
        return sum(map(number_cut, self.done))

    @torch.no_grad()
    def encode_waiting(self) -> None:
        if self.waiting:
            self.done.append(self.encode(self.waiting))
            self.waiting = []


def number_cut(encoded: Encoded) -> int:
    """The number of texts, or of descriptions of images, that were longer than the model reads."""
    return 0 if encoded.truncated is None else int(encoded.truncated.sum())


def stack(parts: Sequence[Encoded]) -> Encoded:
    """Rows of several batches; tokens are padded to the longest, because texts are trimmed batch by batch."""
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
    image = item if owner is None else torch.tensor(owner, dtype=torch.int64, device=item.device)
    return encoded._replace(item=item, image=image)


def text_rows(model: Model, batch: int, *, keep_tokens: bool = True) -> Rows:
    """`Rows` that encodes texts in batches, and keeps their tokens only if the method is pairwise."""
    reduce = without_places if model.method.pairwise and keep_tokens else vectors_only
    return Rows(lambda items: reduce(model.encode(texts=items)), batch)


def _refuse(failed: Sequence[tuple[str, str]], source: Source, max_corrupt: float) -> None:
    """Raise UserError if more samples failed than may, or all of them."""
    if len(failed) > max_corrupt * len(source):
        raise UserError(
            f"at least {len(failed)} of {len(source)} samples in {source.path} are corrupt; allowed"
            f" are {max_corrupt:.0%} of them (--max-corrupt, or data.max_corrupt of a recipe);"
            f" the first: {'; '.join(text for _, text in failed[:3])}"
        )
    if len(failed) == len(source):
        raise UserError(f"no sample of {source.path} can be used; the first of {len(source)}: {failed[0][1]}")


def texts_of(record: Record, captions: Captions) -> list[str]:
    """The texts that `captions` takes from a record, as in `Walk`, blank ones included; [] if it has none."""
    if not record.captions and not record.long:
        return []
    if captions == "whole" or (captions == "auto" and record.long):
        return [record.whole]
    return list(record.captions[:1] if captions == "first" else record.captions)


@dataclass
class Read:
    """The content of some consecutive samples of a source, and the numbers of skipped ones."""

    keys: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)  # in the source
    strings: list[str] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)  # row of the image of each text
    described: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)  # cause, text
    blank: int = 0
    cut: int = 0  # descriptions of images that were longer than the model reads
    several: int = 0  # images with several captions, as in Encodings
    long: int = 0  # images whose long text is read in place of captions
    error: str = ""  # of the user, which ended the reading


def joined(parts: Sequence[Read]) -> Read:
    """Consecutive parts of a source as one; their images are numbered on. The first error stands."""
    out = Read()
    for part in parts:
        owner = [*out.owner, *(len(out.keys) + row for row in part.owner)]
        error = out.error or part.error
        sums = {f.name: getattr(out, f.name) + getattr(part, f.name) for f in fields(Read)}
        out = Read(**sums | {"owner": owner, "error": error})
    return out


@dataclass
class Walk:
    """A walk over a source, or over the share of this process, that encodes all images and texts."""

    model: Model
    source: Source
    captions: Captions = "auto"
    """"auto": the long text of a record, else each of its captions; "whole": the long text, else all captions
    joined; "each": every caption; "first": the first one.
    """
    need_text: bool = True  # an image without a text counts as damaged; else it is encoded alone
    encode_images: bool = True  # False opens no image: the encodings have no row
    encode_texts: bool = True  # False keeps the texts as strings: names of classes come again and again
    keep_tokens: bool = True  # False drops all tokens, also where the method compares them
    collectors: Mapping[str, Collector] = field(default_factory=dict)  # by name: `Encodings.collected`
    descriptions: Descriptions | None = None  # of the images, for a model that reads them
    batch: int = 64  # images, and texts, that the model sees at once
    max_corrupt: float = 0.02  # share of samples that may be skipped
    may_be_empty: bool = False  # whether all of them may be skipped, whatever `max_corrupt` says
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Raises UserError for an unknown `captions` and an empty source."""
        if self.captions not in CAPTIONS:
            raise UserError(f"captions is {self.captions!r}; allowed: {', '.join(CAPTIONS)}")
        if len(self.source) == 0:
            raise UserError(f"no samples in {self.source.path}; evaluation needs at least one")
        assert workers() == 1 or not self.collectors, "collectors see one walk over the whole source"
        self.images = Rows(self._encode_images, self.batch)  # of images, each with its texts
        self.texts = text_rows(self.model, self.batch, keep_tokens=self.keep_tokens)
        self.read = Read()

    def encodings(self) -> Encodings:
        """All of the source. Raises UserError for too many damaged samples, naming the first of them."""
        model, source, captions = self.model, self.source, self.captions
        try:
            self._read_source()
        except UserError as error:
            if workers() == 1:
                raise
            self.read.error = str(error)  # the other processes wait for this one
        read = joined(parts_of_workers(self.read))
        if read.error:
            raise UserError(read.error)
        if not self.may_be_empty:
            _refuse(read.failed, source, self.max_corrupt)

        if captions == "auto" and not (read.several and read.long):  # then it is the same as one of these
            captions = "each" if read.several else "whole"
        images = numbered(self.images.gathered(lambda: rows(model.encode(texts=["a"]), slice(0, 0))))
        texts = self.texts.gathered(lambda: rows(images, slice(0, 0)))
        data = Encodings(
            images=images,
            texts=numbered(texts, read.owner) if self.encode_texts else texts,
            keys=tuple(read.keys),
            strings=tuple(read.strings),
            path=source.path,
            fingerprint=source.fingerprint(),
            captions=captions,
            samples=len(source),
            damaged=dict(Counter(cause for cause, _ in read.failed)),
            damaged_first=tuple(text for _, text in read.failed[:3]),
            blank=read.blank,
            cut=read.cut + sum(parts_of_workers(self.texts.cut)),
            positions=tuple(read.positions),
            several=read.several,
            remarks=remarks(source),
            described=tuple(read.described),
            descriptions="" if self.descriptions is None else str(self.descriptions),
        )
        data = data._replace(collected={name: one.result(data) for name, one in self.collectors.items()})
        return data._replace(cut=data.cut + sum(one.truncated for one in self.collectors.values()))

    def _read_source(self) -> None:
        """Read and encode the samples. Ends early where more of them are corrupt than may be."""
        source, described = self.source, self.descriptions
        records = source if described is None else WithDescriptions(source, described)
        share = span(len(records), self.batch)
        for index in share:
            if (index - share.start) % self.batch == 0:
                prefetch(records, range(index, min(index + self.batch, share.stop)))
            try:
                record = records[index]
                self._add(record, decode(record) if self.encode_images else None, index)
            except CorruptSample as error:
                # As text: an exception would keep its image in memory.
                self.read.failed.append((error.cause, str(error)))
                if len(self.read.failed) > self.max_corrupt * len(records):
                    return
            if self.progress is not None:
                self.progress(index + 1, len(records))
        self.images.encode_waiting()
        self.texts.encode_waiting()

    def _add(self, record: Record, image: Image.Image | None, index: int) -> None:
        """Queue the record at position `index` of the source, and pass it to the collectors.

        Raises CorruptSample, having queued nothing, if no text is there or a collector refuses its regions.
        """
        texts = texts_of(record, self.captions)
        real = [text for text in texts if text.strip()]
        if not real and self.need_text:
            raise CorruptSample(Cause.MISSING_CAPTION, record.key)
        read, row = self.read, len(self.read.keys)
        size = (0, 0) if image is None else image.size
        for collector in self.collectors.values():
            collector.add(Sample(record, size, index, row, real))
        read.blank += len(texts) - len(real)
        long = bool(record.long) and self.captions in ("auto", "whole")
        read.long += long
        read.several += len(record.captions) > 1 and not long
        read.keys.append(record.key)
        read.positions.append(index)
        for text in real:
            if self.encode_texts:
                self.texts.add(text)
            read.strings.append(text)
            read.owner.append(row)
        if image is None:
            return
        if record.dense is not None:
            read.described.append(record.dense)
        # Encodes a batch that is full: after its texts.
        self.images.add((image if record.dense is None else Described(image, record.dense), real))

    def _encode_images(self, items: list[tuple[Any, list[str]]]) -> Encoded:
        encoded = self.model.encode(images=[image for image, _ in items])
        self.read.cut += number_cut(encoded)
        for collector in self.collectors.values():
            collector.add_images(encoded, [texts for _, texts in items])
        tokens = self.model.method.pairwise and self.keep_tokens
        return without_places(self.model.method.precompute(encoded)) if tokens else vectors_only(encoded)


def encode_source(model: Model, source: Source, **settings: Any) -> Encodings:
    """All images and texts of a source, encoded in one `Walk` with these settings."""
    return Walk(model, source, **settings).encodings()
