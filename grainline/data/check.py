"""The content of a source and its errors: `grainline data check PATH`.

`check` reads and decodes every sample, or an even selection of them (JPEGs at down to an eighth of their
size, which still reads every byte).
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.fft import dctn

from grainline.data.captions import in_other_script
from grainline.data.decode import decode, image_size
from grainline.data.formats.joined import remarks
from grainline.data.record import CorruptSample, Record, Source, content_of, misplaced
from grainline.errors import amount, escape_controls, some

# Copies of an image by another crop, size or compression, found by a perceptual hash.
#
# The hash is pHash (Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions", 2010) with
# 256 bits in place of 64: the image in grey at 64 x 64 pixels, the lowest 16 x 16 frequencies of its discrete
# cosine transform, and for each whether it is above their median. Near copies differ in at most MAX_DISTANCE
# bits; unrelated images in about half. docs/data.md has the measured errors (`python -m
# benchmarks.near_copies`). An image of nearly one colour has no hash: rounding would decide its bits.

SIDE = 16  # frequencies each way
PIXELS = 4 * SIDE
BITS = SIDE * SIDE
MAX_DISTANCE = 64  # bits that may differ
FLAT = 4.0  # standard deviation in grey levels below which there is no hash
LIMIT = 100_000  # images that are compared with each other, at most: pairs grow with their square
BLOCK = 2048  # images a side whose distances are in memory at once


class NearCopy(NamedTuple):
    """Two images that look the same."""

    first: int  # place in the first list
    second: int  # in the second list
    distance: int  # bits that differ


def image_hash(image: Image.Image) -> np.ndarray | None:
    """The hash of an image: [256] bool; None for an image of nearly one colour.

    >>> image_hash(Image.new("RGB", (80, 60), "red")) is None
    True
    """
    grey = np.asarray(image.convert("L").resize((PIXELS, PIXELS), Image.Resampling.LANCZOS), np.float64)
    if grey.std() < FLAT:
        return None
    low = dctn(grey, norm="ortho")[:SIDE, :SIDE]
    return (low > np.median(low)).ravel()


def near_copies(
    first: Sequence[np.ndarray | None],
    second: Sequence[np.ndarray | None] | None = None,
    max_distance: int = MAX_DISTANCE,
) -> list[NearCopy]:
    """All pairs of images whose hashes differ in at most `max_distance` bits, by place.

    first, second  hashes [256] bool; None entries are in no pair. Without `second`: pairs i < j of the first

    Only the first LIMIT hashes of the set that is searched are compared: `second`, else `first`.
    """
    a, places_a = _signs(first, LIMIT if second is None else None)
    b, places_b = (a, places_a) if second is None else _signs(second, LIMIT)
    out = []
    for i in range(0, len(a), BLOCK):
        for j in range(0, len(b), BLOCK):
            if second is None and j + BLOCK <= i:
                continue
            differ = ((BITS - a[i : i + BLOCK] @ b[j : j + BLOCK].T) / 2).round().astype(np.int64)
            for x, y in np.argwhere(differ <= max_distance).tolist():
                if second is not None or i + x < j + y:
                    out.append(NearCopy(int(places_a[i + x]), int(places_b[j + y]), int(differ[x, y])))
    return sorted(out)


def _signs(hashes: Sequence[np.ndarray | None], limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The hashes that there are as -1 and 1, [n, 256] float32, and their places [n]."""
    real = [(i, bits) for i, bits in enumerate(hashes) if bits is not None][:limit]
    signs = np.array([bits for _, bits in real], np.float32).reshape(len(real), BITS) * 2 - 1
    return signs, np.array([i for i, _ in real], np.int64)


EXAMPLES = 5  # files named for each cause, and longest texts shown
CLIP_WORDS = 55  # what CLIP's 77 tokens hold of ordinary English, roughly


class Spread(NamedTuple):
    """Quantiles of a number: minimum, 10 %, median, 90 %, maximum, as values that occur."""

    least: int
    low: int
    median: int
    high: int
    most: int


class Fault(NamedTuple):
    """Samples that cannot be used for the same cause."""

    cause: str
    number: int
    first: tuple[str, ...]  # where the first few are


SPREADS = {  # fields of the report and their names in the table
    "captions": "captions/image",
    "words": "words/caption",
    "sentences": "sentences/capt.",
    "subtexts": "subtexts/image",
    "short_side": "short side, px",
    "long_side": "long side, px",
}


class CheckReport(NamedTuple):
    """The result of `check`. Spreads are None where no sample could be read."""

    path: str
    kind: str
    samples: int  # in the source
    checked: int  # of them read here
    fingerprint: str
    captions: Spread | None  # captions per image
    words: Spread | None  # words per caption; long descriptions are captions here
    sentences: Spread | None  # sentences per caption
    subtexts: Spread | None  # subtexts per image, where the source has its own
    short_side: Spread | None  # pixels
    long_side: Spread | None
    longs: int  # records with a long description beside their captions
    regions: int  # records with boxes or masks
    faults: tuple[Fault, ...]
    same_key: tuple[str, ...]  # keys that come more than once
    same_image: tuple[tuple[str, ...], ...]  # keys of images that are equal byte by byte
    near_copies: tuple[tuple[str, str], ...]  # keys of images that look the same; of equal files the first
    same_caption: int  # captions that stand at more than one image, counted once each
    longest: tuple[tuple[str, int], ...]  # key and words of the longest texts
    remarks: tuple[str, ...]  # of the source when it was opened
    suggestions: tuple[str, ...]

    @property
    def corrupt(self) -> int:
        """How many of the samples that were read cannot be used."""
        return sum(fault.number for fault in self.faults)


class _Tally:
    """Counts while a source is read."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {name: [] for name in SPREADS}
        self.longs = self.regions = 0
        self.faults: dict[str, list[str]] = defaultdict(list)
        self.keys: Counter[str] = Counter()
        self.images: dict[bytes, list[str]] = defaultdict(list)
        self.hashes: list[np.ndarray | None] = []  # of the first image of each entry of `images`
        self.images_of: dict[bytes, set[bytes]] = defaultdict(set)  # from a caption to its images
        self.longest: list[tuple[str, int]] = []
        self.foreign = 0  # captions in other scripts
        self.misplaced: list[str] = []  # the first misplaced region of each image that has one

    def add(self, record: Record, split: Callable[[str], Sequence[object]]) -> None:
        """Count one sample. Raises CorruptSample if its image is."""
        with decode(record, draft=PIXELS) as image:
            width, height = image_size(record)
            image_bits = image_hash(image)
        self.numbers["short_side"].append(min(width, height))
        self.numbers["long_side"].append(max(width, height))
        wrong = misplaced(record, (width, height))
        self.misplaced += [f"{record.key} ({wrong})"] if wrong else []
        self.keys[record.key] += 1
        digest = hashlib.sha256(content_of(record.image)).digest()
        if digest not in self.images:
            self.hashes.append(image_bits)
        self.images[digest].append(record.key)
        self.numbers["captions"].append(len(record.captions))
        self.foreign += sum(map(in_other_script, record.captions))
        self.longs += bool(record.longs)
        self.regions += bool(record.regions)
        self.numbers["subtexts"] += [len(record.subtexts)] if record.subtexts else []
        for text in (*record.captions, *record.longs):
            words = len(text.split())
            self.numbers["words"].append(words)
            self.numbers["sentences"].append(len(split(text)))
            self.images_of[hashlib.sha256(text.encode()).digest()].add(digest)
            self.longest.append((record.key, words))
        self.longest = sorted(self.longest, key=lambda entry: -entry[1])[:EXAMPLES]


def check(
    source: Source,
    split: Callable[[str], Sequence[object]],
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Read a source, or `limit` samples evenly over it. split: a text to its sentences"""
    number = len(source) if limit is None else min(limit, len(source))
    tally = _Tally()
    for done in range(number):
        index = done * len(source) // number
        try:
            tally.add(source[index], split)
        except CorruptSample as error:
            tally.faults[error.cause].append(error.where)
        if progress is not None:
            progress(done + 1, number)
    keys = [same[0] for same in tally.images.values()]
    other = f"{amount(tally.foreign, 'caption')} in other scripts than Latin: phrases by rules are English"
    outside = f"regions without a place, in {amount(len(tally.misplaced), 'image')}: {some(tally.misplaced)}"
    report = CheckReport(
        path=source.path,
        kind=type(source).__name__,
        samples=len(source),
        checked=number,
        fingerprint=source.fingerprint(),
        **{name: spread(values) for name, values in tally.numbers.items()},
        longs=tally.longs,
        regions=tally.regions,
        faults=tuple(
            Fault(cause, len(places), tuple(places[:EXAMPLES]))
            for cause, places in sorted(tally.faults.items(), key=lambda entry: -len(entry[1]))
        ),
        same_key=tuple(key for key, times in tally.keys.items() if times > 1),
        same_image=tuple(tuple(keys) for keys in tally.images.values() if len(keys) > 1),
        near_copies=tuple((keys[pair.first], keys[pair.second]) for pair in near_copies(tally.hashes)),
        same_caption=sum(len(images) > 1 for images in tally.images_of.values()),
        longest=tuple(tally.longest),
        remarks=(
            *remarks(source),
            *([outside] if tally.misplaced else []),
            *([other] if tally.foreign else []),
        ),
        suggestions=(),
    )
    return report._replace(suggestions=tuple(suggestions(report)))


def usable(report: CheckReport, max_corrupt: float) -> bool:
    """Whether some sample can be used, and at most the share `max_corrupt` is corrupt."""
    return report.corrupt < report.checked and report.corrupt <= max_corrupt * report.checked


def spread(values: Sequence[int]) -> Spread | None:
    """Quantiles of whole numbers; None of nothing.

    >>> spread([5, 1, 9, 2, 2])
    Spread(least=1, low=1, median=2, high=9, most=9)
    """
    if not values:
        return None
    quantiles = np.quantile(values, (0, 0.1, 0.5, 0.9, 1), method="nearest")
    return Spread(*(int(value) for value in quantiles))


def suggestions(report: CheckReport) -> list[str]:
    """Advice for the user, in words."""
    corrupt, read = report.corrupt, report.checked
    share, near, same = corrupt / max(1, read), len(report.near_copies), report.same_caption
    copies = sum(len(keys) - 1 for keys in report.same_image)
    words, side = (report.words or (0,) * 5)[3], (report.short_side or (128,) * 5)[2]
    single = report.sentences and report.sentences.median <= 1 and (report.captions or (2,) * 3)[2] == 1
    advice = (
        (corrupt == read, "No sample can be used. Mend the first one named above."),
        (
            0 < corrupt < read,
            f"{share:.1%} of the samples cannot be used. Training replaces them.",
        ),
        (report.same_key, "Keys that come twice make reports ambiguous. Give each image a name of its own."),
        (copies, f"{copies} images are copies of others. List all captions under one image."),
        (
            near,
            f"{near} pairs of images look like copies of each other. Across a split they are a leak.",
        ),
        (same, f"{same} captions stand at more than one image. No model can tell those apart."),
        (
            words > CLIP_WORDS,
            f"One caption in ten has {words} words or more. CLIP holds about {CLIP_WORDS}.",
        ),
        (single, "Most captions are a single sentence. Methods that align sentences have little to align."),
        (side < 128, f"Half of the images have a short side of {side} pixels or less, enlarged at 224."),
        (read < report.samples, f"Only {read} of {report.samples} samples were read; check all of them."),
    )
    return [text for present, text in advice if present]


def render(report: CheckReport) -> str:
    """The report as lines for a terminal."""
    lines = [
        f"{report.path}",
        f"  kind            {report.kind}",
        f"  samples         {report.samples}"
        + (f", {report.checked} read" if report.checked < report.samples else ""),
        f"  fingerprint     {report.fingerprint[:16]}",
    ]
    if report.captions is not None:
        lines += ["", f"  {'':15} {'min':>6} {'10 %':>6} {'median':>6} {'90 %':>6} {'max':>6}"]
        for name, title in SPREADS.items():
            values = getattr(report, name)
            lines += [f"  {title:15} " + " ".join(f"{v:6d}" for v in values)] if values else []
        lines += ["", f"  with a long description {report.longs}, with regions {report.regions}"]
        lines.append(
            "  longest texts   " + ", ".join(f"{key} ({words} words)" for key, words in report.longest)
        )
    lines += ["", f"  cannot be used  {report.corrupt} of {report.checked}"]
    for fault in report.faults:
        lines.append(f"    {fault.cause}: {fault.number}")
        lines += [f"      {place}" for place in fault.first]
        lines += [f"      and {fault.number - len(fault.first)} more"] * (fault.number > len(fault.first))
    lines += _copies("key of several samples", [(key,) for key in report.same_key])
    lines += _copies("equal images", report.same_image)
    limited = f", among the first {LIMIT:,}" * (report.checked > LIMIT)
    lines += _copies(f"images that look the same{limited}", report.near_copies)
    lines += [f"  note: {remark}" for remark in report.remarks]
    lines += [""] * bool(report.suggestions) + [f"  * {line}" for line in report.suggestions]
    return "\n".join(map(escape_controls, lines))


def _copies(title: str, groups: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"    {' = '.join(keys[:EXAMPLES])}" for keys in groups[:EXAMPLES]]
    return [f"  {title}: {len(groups)}", *lines] if groups else []
