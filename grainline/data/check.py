"""The content of a source and its errors: `grainline data check PATH`.

`check` reads and decodes every sample, or an even selection of them (JPEGs at down to an eighth of their
size, which still reads every byte).
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from grainline.data.captions import in_other_script
from grainline.data.decode import decode, image_size
from grainline.data.formats.joined import remarks
from grainline.data.overlap import LIMIT, PIXELS, image_hash, near_copies
from grainline.data.record import CorruptSample, Record, Source, content_of, misplaced
from grainline.errors import amount, escape_controls, some

EXAMPLES = 5  # files named for each cause, and longest texts shown
CLIP_WORDS = 55  # what CLIP's 77 tokens hold of ordinary English, roughly


SPREADS = {  # numbers of which the report has quantiles, and their names in the table
    "captions": "captions/image",
    "words": "words/caption",  # long descriptions are captions here
    "sentences": "sentences/capt.",
    "subtexts": "subtexts/image",  # where the source has its own
    "short_side": "short side, px",
    "long_side": "long side, px",
}


class CheckReport:
    """The content of a source and its errors, counted sample by sample."""

    def __init__(self, source: Source) -> None:
        self.path, self.kind, self.samples = source.path, type(source).__name__, len(source)
        self.fingerprint, self.checked = source.fingerprint(), 0  # samples that were read
        self.numbers: dict[str, list[int]] = {name: [] for name in SPREADS}
        self.longs = self.regions = 0  # records with a long description, with boxes or masks
        self.faults: dict[str, list[str]] = defaultdict(list)  # from a cause to the places of its samples
        self.longest: list[tuple[str, int]] = []  # key and words of the longest texts
        self.near_copies: list[tuple[str, str]] = []  # keys of images that look the same
        self.foreign = 0  # captions in other scripts
        self.misplaced: list[str] = []  # the first misplaced region of each image that has one
        self.keys: Counter[str] = Counter()
        self.images: dict[bytes, list[str]] = defaultdict(list)  # from an image to its keys
        self.hashes: list[np.ndarray | None] = []  # of the first image of each entry of `images`
        self.images_of: dict[bytes, set[bytes]] = defaultdict(set)  # from a caption to its images
        self._remarks = remarks(source)

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

    def spread(self, name: str) -> tuple[int, ...]:
        """Minimum, 10 %, median, 90 % and maximum of a number, as values that occur; () without any."""
        values = self.numbers[name]
        shares = (0, 0.1, 0.5, 0.9, 1)
        return tuple(np.quantile(values, shares, method="nearest").tolist()) if values else ()

    @property
    def corrupt(self) -> int:
        """How many of the samples that were read cannot be used."""
        return sum(map(len, self.faults.values()))

    @property
    def same_key(self) -> list[str]:
        """Keys that come more than once."""
        return [key for key, times in self.keys.items() if times > 1]

    @property
    def same_image(self) -> list[list[str]]:
        """Keys of images that are equal byte by byte."""
        return [keys for keys in self.images.values() if len(keys) > 1]

    @property
    def remarks(self) -> list[str]:
        """The remarks of the source when it was opened, and others that a user should know."""
        where = f"in {amount(len(self.misplaced), 'image')}: {some(self.misplaced)}"
        out = [f"regions without a place, {where}"] if self.misplaced else []
        if self.foreign:
            captions = amount(self.foreign, "caption")
            out.append(f"{captions} in other scripts than Latin: phrases by rules are English")
        return [*self._remarks, *out]


def check(
    source: Source,
    split: Callable[[str], Sequence[object]],
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Read a source, or `limit` samples evenly over it. split: a text to its sentences"""
    number, report = len(source) if limit is None else min(limit, len(source)), CheckReport(source)
    report.checked = number
    for done in range(number):
        try:
            report.add(source[done * len(source) // number], split)
        except CorruptSample as error:
            report.faults[error.cause].append(error.where)
        if progress is not None:
            progress(done + 1, number)
    keys = [same[0] for same in report.images.values()]
    report.near_copies = [(keys[i], keys[j]) for i, j, _ in near_copies(report.hashes)]
    return report


def usable(report: CheckReport, max_corrupt: float) -> bool:
    """Whether some sample can be used, and at most the share `max_corrupt` is corrupt."""
    return report.corrupt < report.checked and report.corrupt <= max_corrupt * report.checked


def suggestions(report: CheckReport) -> list[str]:
    """Advice for the user, in words."""
    corrupt, read = report.corrupt, report.checked
    share, near = corrupt / max(1, read), len(report.near_copies)
    same = sum(len(images) > 1 for images in report.images_of.values())
    copies = sum(len(keys) - 1 for keys in report.same_image)
    words, side = (report.spread("words") or (0,) * 5)[3], (report.spread("short_side") or (128,) * 5)[2]
    single = report.spread("sentences")[2:3] in [(0,), (1,)] and report.spread("captions")[2:3] == (1,)
    advice = (
        (corrupt == read, "No sample can be used. Mend the first one named above."),
        (0 < corrupt < read, f"{share:.1%} of the samples cannot be used. Training replaces them."),
        (report.same_key, "Keys that come twice make reports ambiguous. Give each image a name of its own."),
        (copies, f"{copies} images are copies of others. List all captions under one image."),
        (near, f"{near} pairs of images look like copies of each other. Across a split they are a leak."),
        (same, f"{same} captions stand at more than one image. No model can tell those apart."),
        (words > CLIP_WORDS, f"One caption in ten has {words} words or more. CLIP holds {CLIP_WORDS} or so."),
        (single, "Most captions are a single sentence. Methods that align sentences have little to align."),
        (side < 128, f"Half of the images have a short side of {side} pixels or less, enlarged at 224."),
        (read < report.samples, f"Only {read} of {report.samples} samples were read; check all of them."),
    )
    return [text for present, text in advice if present]


def render(report: CheckReport) -> str:
    """The report as lines for a terminal."""
    some_read = f", {report.checked} read" * (report.checked < report.samples)
    lines = [
        f"{report.path}",
        f"  kind            {report.kind}",
        f"  samples         {report.samples}{some_read}",
        f"  fingerprint     {report.fingerprint[:16]}",
    ]
    if report.keys:
        lines += ["", f"  {'':15} {'min':>6} {'10 %':>6} {'median':>6} {'90 %':>6} {'max':>6}"]
        for name, title in SPREADS.items():
            values = report.spread(name)
            lines += [f"  {title:15} " + " ".join(f"{v:6d}" for v in values)] if values else []
        lines += ["", f"  with a long description {report.longs}, with regions {report.regions}"]
        longest = ", ".join(f"{key} ({words} words)" for key, words in report.longest)
        lines.append(f"  longest texts   {longest}")
    lines += ["", f"  cannot be used  {report.corrupt} of {report.checked}"]
    for cause, places in sorted(report.faults.items(), key=lambda entry: -len(entry[1])):
        lines += [f"    {cause}: {len(places)}", *(f"      {place}" for place in places[:EXAMPLES])]
        lines += [f"      and {len(places) - EXAMPLES} more"] * (len(places) > EXAMPLES)
    lines += _copies("key of several samples", [(key,) for key in report.same_key])
    lines += _copies("equal images", report.same_image)
    limited = f", among the first {LIMIT:,}" * (report.checked > LIMIT)
    lines += _copies(f"images that look the same{limited}", report.near_copies)
    lines += [f"  note: {remark}" for remark in report.remarks]
    advice = suggestions(report)
    lines += [""] * bool(advice) + [f"  * {line}" for line in advice]
    return "\n".join(map(escape_controls, lines))


def _copies(title: str, groups: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"    {' = '.join(keys[:EXAMPLES])}" for keys in groups[:EXAMPLES]]
    return [f"  {title}: {len(groups)}", *lines] if groups else []
