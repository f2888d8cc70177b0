"""A data source, encoded: what every suite reads.

Samples that cannot be used are skipped, counted by cause and carried into the result. Tokens are dropped
unless the method compares them; those of pictures are then kept as scores read them (`Method.held`).
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from PIL import Image

from grainline.data.chunks import Parted
from grainline.data.decode import decode
from grainline.data.descriptions import Described, Descriptions, Told
from grainline.data.open_source import remarks
from grainline.data.record import MISSING_CAPTION, Damaged, Record, Source
from grainline.errors import UserError
from grainline.evaluation.collectors.choices import Choices
from grainline.evaluation.collectors.classes import ClassTexts
from grainline.evaluation.collectors.collecting import Rows, Skipped, numbered
from grainline.evaluation.collectors.expressions import Expressions, Judging
from grainline.evaluation.collectors.grouped import Grouped
from grainline.evaluation.collectors.long import Card
from grainline.evaluation.collectors.probes import Items, Probes, Probing
from grainline.evaluation.collectors.regions import Collected, Regions, View
from grainline.evaluation.collectors.seen import Likeness
from grainline.evaluation.collectors.subtexts import Gathered, Noise, Subtexts, sequences
from grainline.evaluation.collectors.text_attention import Looked
from grainline.evaluation.collectors.trained import Overlap
from grainline.evaluation.score import Scorer
from grainline.types import Encoded, Pair, rows, vectors_only, without_places

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

    def read(self, texts: Sequence[str]) -> Parted:
        """What it reads of texts, and how much of each is cut."""

    def encode(
        self,
        *,
        images: Sequence[bytes | Image.Image | Described] | None = None,
        texts: Sequence[str] | None = None,
    ) -> Encoded: ...


class Pooling(Protocol):
    """What pools pictures by texts while their tokens are there."""

    def add(self, images: Encoded, texts: Sequence[str]) -> None:
        """The next pictures, with tokens, and the text of each."""


class Encodings(NamedTuple):
    """Everything that suites need: rows, what they stand for, and what went wrong on the way."""

    images: Encoded  # [N] `image` is 0 .. N-1 in file order
    texts: Encoded  # [M] in file order; `image` is the row of the picture
    keys: tuple[str, ...]  # [N] names of the pictures
    strings: tuple[str, ...]  # [M] the texts as they were given to the model
    probes: Probes | None  # None: not asked for
    path: str
    fingerprint: str
    captions: Captions
    samples: int  # in the source, damaged ones included
    damaged: dict[str, int]  # cause -> samples that were skipped
    damaged_first: tuple[str, ...]  # cause and place of the first of them
    blank: int  # captions without a character, skipped beside others of the same picture
    cut: int  # texts that were longer than the model reads, those of probes included
    positions: tuple[int, ...]  # [N] where each picture stands in the source: skipped samples leave gaps
    remarks: tuple[str, ...] = ()  # what the source found at opening
    classes: ClassTexts | None = None  # None: not asked for
    items: Items | None = None  # None: not asked for
    subtexts: Subtexts | None = None  # None: not asked for
    noise: Noise | None = None  # None: not asked for
    regions: Regions | None = None  # None: not asked for
    likeness: tuple[Likeness, ...] | None = None  # [N] None: not asked for
    own: Pair | None = None  # [N] pictures, each pooled with its own text, and the texts; None: not asked for
    card: Card | None = None  # None: not asked for
    expressions: Expressions | None = None  # None: not asked for
    looked: tuple[Looked | None, ...] | None = None  # [N] None: not asked for
    grouped: Grouped | None = None  # None: not asked for
    described: tuple[str, ...] = ()  # [N] descriptions of the pictures, for a method that reads them
    descriptions: str = ""  # where they come from
    choices: Choices | None = None  # None: not asked for
    overlap: Overlap | None = None  # None: not asked for


def encode_source(  # noqa: PLR0913 - each is a choice of the caller
    model: Encoder,
    source: Source,
    *,
    captions: Captions = "whole",
    need_text: bool = True,
    encode_texts: bool = True,
    probes: bool = False,
    subtexts: bool = False,
    regions: View | None = None,
    pooling: Pooling | None = None,
    judging: Judging | None = None,
    descriptions: Descriptions | None = None,
    batch: int = 64,
    max_damaged: float = 0.1,
    progress: Progress | None = None,
) -> Encodings:
    """Encode all pictures and texts of a source.

    captions     "whole": one text per picture, its fullest; "each": every caption; "first": the first one
    need_text    a picture without a text counts as damaged; else it is encoded alone
    encode_texts  False keeps the texts as strings only: the names of classes come again and again
    probes       encode the texts of all comparisons too: foils with their true captions, and sentences
    subtexts     encode the cumulative subtexts of the first text of every picture too
    regions      encode the regions that have foils, with their texts, in pictures seen like this
    pooling      takes the pictures batch by batch, with the one text of each; no tokens are kept
    judging     takes the regions of every record, and the pictures batch by batch; no tokens are kept
    descriptions of the pictures, for a model that reads them
    batch        pictures, and texts, that the model sees at once
    max_damaged  share of samples that may be skipped

    Raises UserError for an unknown `captions`, an empty source, too many damaged samples (naming the first
    of them), and probes, subtexts and regions asked for where there are none.
    """
    if captions not in CAPTIONS:
        raise UserError(f"captions is {captions!r}; allowed: {', '.join(CAPTIONS)}")
    if len(source) == 0:
        raise UserError(f"no samples in {source.path}; evaluation needs at least one")
    assert pooling is None or (captions != "each" and need_text), "one text a picture"
    cut_before = model.cut
    asked = source if probes else None
    run = _Run(model, captions, need_text, encode_texts, asked, subtexts, regions, pooling, judging, batch)
    failed = Skipped(len(source), max_damaged, source.path)
    told_of = source if descriptions is None else Told(source, descriptions)
    for index in range(len(source)):
        try:
            record = told_of[index]
            run.add(record, decode(record), index)
        except Damaged as error:
            failed.add(error)
        if progress is not None:
            progress(index + 1, len(source))
    failed.refuse_all()
    compared = run.probing.found(run.positions, source.path) if run.probing else None
    told = run.subtexts(source.path)  # encodes the last of them, so before what was cut is counted
    images = numbered(run.images.stacked())  # the last regions are pooled here
    found = run.regions(source.path)
    judged = None if judging is None else judging.found(source.path)
    return Encodings(
        images=images,
        texts=numbered(run.texts.stacked(), run.owner) if run.texts.number else rows(images, slice(0, 0)),
        keys=tuple(run.keys),
        strings=tuple(run.strings),
        probes=compared,
        path=source.path,
        fingerprint=source.fingerprint(),
        captions=captions,
        samples=len(source),
        damaged=failed.causes(),
        damaged_first=failed.first(),
        blank=run.blank,
        cut=model.cut - cut_before + run.spared,
        positions=tuple(run.positions),
        remarks=remarks(source),
        subtexts=told,
        regions=found,
        expressions=judged if isinstance(judged, Expressions) else None,
        choices=judged if isinstance(judged, Choices) else None,
        described=tuple(run.described),
        descriptions="" if descriptions is None else str(descriptions),
    )


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

    def __init__(  # noqa: PLR0913 - as encode_source has them
        self,
        model: Encoder,
        captions: Captions,
        need_text: bool,
        encode_texts: bool,
        probed: Source | None,
        subtexts: bool,
        regions: View | None,
        pooling: Pooling | None,
        judging: Judging | None,
        batch: int,
    ) -> None:
        tokens = model.method.pairwise and pooling is None and judging is None
        kept = without_places if tokens else vectors_only
        held = model.method.held if tokens else vectors_only
        self.images = Rows(lambda items: kept(held(self._seen(model.encode(images=items)))), batch)
        self.texts = Rows(lambda items: kept(model.encode(texts=items)), batch)
        told = Rows(lambda items: kept(model.encode(texts=items)), batch)
        self.probing = None if probed is None else Probing(probed, told)
        self.steps = Rows(lambda items: kept(model.encode(texts=items)), batch)
        self.gathered = Gathered(model.read, self.steps.add) if subtexts else None
        pooled = regions is not None and regions.scorer.pairwise
        of_regions = without_places if pooled else vectors_only
        self.phrases = Rows(lambda items: of_regions(model.encode(texts=items)), batch)
        self.collected = None if regions is None else Collected(regions, model.read, self.phrases.add)
        self.pooling, self.pooled = pooling, 0  # pictures so far
        self.judging = judging
        self.captions, self.need_text = captions, need_text
        self.encode_texts = encode_texts
        self.keys: list[str] = []
        self.positions: list[int] = []  # in the source
        self.strings: list[str] = []
        self.owner: list[int] = []
        self.described: list[str] = []
        self.blank = 0

    def add(self, record: Record, picture: Image.Image, index: int) -> None:
        """Queue the record at a place of the source.

        Raises Damaged, having queued nothing, if a text is lacking or a mask wrong.
        """
        texts = texts_of(record, self.captions)
        real = [text for text in texts if text.strip()]
        if not real and self.need_text:
            raise Damaged(MISSING_CAPTION, record.key)
        if self.judging is not None:
            self.judging.add(record, picture.size, index)  # may find damage, so it stands first
        self.blank += len(texts) - len(real)
        if self.collected is not None:
            self.collected.add(record, picture.size)  # before its batch is encoded
        row = self.images.number
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
        self.images.add(picture if record.dense is None else Described(picture, record.dense))
        if self.probing is not None:
            self.probing.add(record.foils, index, row)
        if self.gathered is not None:
            self.gathered.add(sequences(real[0] if real else "", record.subtexts))

    def subtexts(self, path: str) -> Subtexts | None:
        if self.gathered is None:
            return None
        if not self.steps.number:
            raise UserError(f"no text in {path}; subtexts are cut from captions")
        return self.gathered.encoded(numbered(self.steps.stacked(), [-1] * self.steps.number))

    def _seen(self, images: Encoded) -> Encoded:
        if self.collected is not None:
            self.collected.pool(images)
        if self.judging is not None:
            self.judging.judge(images)
        if self.pooling is not None:
            start, self.pooled = self.pooled, self.pooled + len(images.vector)
            self.pooling.add(images, self.strings[start : self.pooled])
        return images

    def regions(self, path: str) -> Regions | None:
        if self.collected is None:
            return None
        self.collected.refuse_none(path)
        return self.collected.regions(numbered(self.phrases.stacked(), [-1] * self.phrases.number))

    @property
    def spared(self) -> int:
        """Texts that are cut and were not encoded, because another one reads alike."""
        return sum(one.spared for one in (self.gathered, self.collected, self.judging) if one is not None)
