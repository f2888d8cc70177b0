"""Retrieval with long captions: under which protocol a set is read, and the card that says so.

The metrics are those of retrieval. Numbers of papers on such sets differ by the text of a record they read,
how it is cleaned, and the images. A rule settles that for a set, and a card in the result says it.
The texts are read as CAFT (arXiv 2602.02977) and FLAIR (arXiv 2412.03561) read them, as far as that is known.
"""

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Literal, NamedTuple

from pydantic import Field

from grainline.data.benchmarks.long_captions import LongCaptions
from grainline.data.formats.common import FileSource, digest
from grainline.data.formats.joined import Joined, remarks
from grainline.data.record import Record, Source
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import Inputs, Outcomes, Settings
from grainline.evaluation.suites.retrieval import RetrievalOptions, RetrievalSuite

DEFAULT, PLAIN = "default", "plain"

RANKS = (
    "every image is ranked against all texts and every text against all images; a rank is 1 plus the"
    " number of wrong candidates that score as high as the right one or higher"
)
TIES = (
    "Published code gives a tie to the candidate that stands first, or leaves it to the sorting; here a tie"
    " is wrong, and the table counts them."
)
EMPTY = "An image with an empty text is left out and counted; published numbers keep it."


class Rule(NamedTuple):
    """How a protocol reads a set."""

    benchmark: str  # of the source
    name: str  # of the set, for people
    text: Callable[[str], str]  # cleans the text of the file
    rows: int | None  # the first so many; None: all
    pairs: int  # of the whole set
    which: str  # text of a record is read, and why
    images: str
    papers: str  # how far it is from them


class Card(NamedTuple):
    """The texts and images behind a result, in words."""

    set: str
    protocol: str
    text: str
    images: str = "all"
    captions: str = "one text an image"
    ranks: str = RANKS
    papers: str = f"No published protocol. {TIES}"
    pairs: int = 0  # 0: no published number of pairs

    def for_images(self, images: int) -> dict[str, str]:
        """The card for a result on so many images."""
        words = self._asdict()
        pairs = words.pop("pairs")
        return words | {"images": f"{images:,}{f' of {pairs:,}' if pairs else ''}: {self.images}"}


def rejoined(text: str) -> str:
    """The text as FLAIR reads DCI, ImageInWords and ShareGPT4V: cut at each line break, `</s>` and period,
    the pieces joined by a period and a blank. It also cuts numbers such as 3.5.

    >>> rejoined("A cat\\nIt is 3.5 kg </s> and grey. ")
    'A cat. It is 3. 5 kg. and grey'
    """
    pieces = (piece.strip() for piece in re.split(r"\n|</s>|\.", text))
    return ". ".join(piece for piece in pieces if piece)


def first_line(text: str) -> str:
    """The text up to its first line break, even if that is nothing, as Long-CLIP reads Urban-1k.

    >>> first_line("A street.\\nCars wait."), first_line("\\nA street.")
    ('A street.', '')
    """
    return re.split(r"\r\n|\r|\n", text, maxsplit=1)[0]


def one_line(text: str) -> str:
    """The text with blanks for line breaks, as Long-CLIP reads ShareGPT4V.

    >>> one_line("A street.\\n\\nCars wait.")
    'A street.  Cars wait.'
    """
    return text.replace("\n", " ")


_CUT = "cut at line breaks, </s> and periods and joined again by '. ', as FLAIR reads it"
_SHARE = "the second turn of conversations, which describes the image"
_CAFT = "CAFT names the set and not its reader; FLAIR's is taken, which CAFT builds upon."

RULES: dict[str, Rule] = {
    "dci": Rule(
        *("dci", "DCI", rejoined, None, 7805),
        f"short_caption and extra_caption, the whole description of the image without its masks, {_CUT}",
        "all splits pooled",
        _CAFT,
    ),
    "docci": Rule(
        *("docci", "DOCCI", str, None, 5000),
        "the full description as it stands",
        "the test split",
        "FLAIR's own file of DOCCI holds single sentences, which is another task.",
    ),
    "urban-1k": Rule(
        *("urban-1k", "Urban-1k", first_line, None, 1000),
        "the first line of the text of an image, as Long-CLIP reads it; FLAIR's file has no second lines",
        "all",
        "FLAIR's file holds one empty text.",
    ),
    "sv-1k": Rule(
        *("sharegpt4v", "SV-1k (ShareGPT4V)", rejoined, 1000, 1000),
        f"{_SHARE}, {_CUT}",
        "the first 1,000 rows of the file",
        f"{_CAFT} Long-CLIP only puts blanks for line breaks: sv-1k-long-clip.",
    ),
    "sv-10k": Rule(
        *("sharegpt4v", "SV-10k (ShareGPT4V)", rejoined, 10000, 10000),
        f"{_SHARE}, {_CUT}",
        "the first 10,000 rows of the file, those of SV-1k among them",
        _CAFT,
    ),
    "sv-1k-long-clip": Rule(
        *("sharegpt4v", "SV-1k (ShareGPT4V)", one_line, 1000, 1000),
        f"{_SHARE}, with blanks for line breaks, as Long-CLIP reads it",
        "the first 1,000 rows of the file",
        "CAFT and FLAIR cut the text at periods and join it again: sv-1k.",
    ),
    "iiw": Rule(
        *("iiw", "IIW (ImageInWords)", rejoined, None, 612),
        f"the field IIW, {_CUT}: 10.16 sentences a text, as in Table 6 of CAFT",
        "IIW-400 (400), DCI_Test (112) and DOCCI_Test (100) together",
        f"{_CAFT} One image is 0.163 points of a recall.",
    ),
}
"""By the name of the protocol. The first of a set is its default."""

PROTOCOLS = (DEFAULT, PLAIN, *RULES)


class LongRetrievalOptions(RetrievalOptions):
    """Options of `long-retrieval`."""

    protocol: Literal[PROTOCOLS] = Field(  # type: ignore[valid-type]
        "default", description="how the set is read; default: the protocol of the set"
    )


class LongRetrievalSuite(RetrievalSuite):
    """The metrics of retrieval on a set of long captions, each set under its own protocol."""

    name = "long-retrieval"
    card = ("Protocol", "What was compared, and how far it is from published numbers")
    Options = LongRetrievalOptions
    takes_vectors = False
    captions = ("whole", "first")
    reads = "one text an image"

    @property
    def fold_protocol(self) -> str:
        return "plain"

    def walk(self, inputs: Inputs) -> Encodings:
        """Raises UserError for a protocol of another set too."""
        source, card = under(inputs.source, self.options.protocol, inputs.settings.captions or "whole")
        return super().walk(inputs._replace(source=source))._replace(collected={self.name: card})

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        card: Card = self.collected(data)
        plain, images = super().outcomes(scorer, data, settings), len(data.keys)
        notes = []
        if card.pairs and images != card.pairs:
            notes.append(f"{images:,} images here, {card.pairs:,} in {card.set}: its recalls are others")
        again = len(data.strings) - len(set(data.strings))
        if again:
            notes.append(f"{again:,} texts stand at another image too, word for word: they tie exactly")
        about = {"card": card.for_images(images)}
        return plain._replace(notes=(*plain.notes, *notes), settings=about, protocol=card.protocol)


class Under(FileSource):
    """A benchmark as a rule reads it."""

    def __init__(self, source: LongCaptions, rule: Rule) -> None:
        self.path = source.path
        self.remarks = remarks(source)
        self._source, self._rule = source, rule

    def __len__(self) -> int:
        return min(len(self._source), self._rule.rows or len(self._source))

    def __getitem__(self, index: int) -> Record:
        index = range(len(self))[index]
        return self._source.record(index, self._rule.text(self._source.text(index)))

    def keys(self) -> Iterable[str]:
        """The names of the images."""
        return islice(self._source.keys(), len(self))

    def fingerprint(self) -> str:
        """sha256 over names and texts as they are read; rows behind the last one do not count."""
        texts = (self._rule.text(self._source.text(i)) for i in range(len(self)))
        return digest(part for pair in zip(self.keys(), texts, strict=True) for part in pair)


def under(source: Source, protocol: str = DEFAULT, captions: str = "whole") -> tuple[Source, Card]:
    """The source as a protocol reads it, and the card. A set without a rule of its own is read as it is.

    captions  "whole" or "first": which text of a record, where no rule says it

    Raises UserError for a protocol of another set.
    """
    benchmark = _benchmark(source)
    own = [name for name, rule in RULES.items() if rule.benchmark == benchmark]
    if protocol == DEFAULT:
        protocol = own[0] if own else PLAIN
    if protocol == PLAIN:
        text = "the fullest there is: the long description, else all captions joined as sentences"
        name = f"{benchmark}, without its protocol" if benchmark else "none with a protocol of its own"
        return source, Card(name, PLAIN, "the first caption" if captions == "first" else text)
    if protocol not in RULES:
        raise UserError(f"protocol is {protocol!r}; allowed for long-retrieval: {', '.join(PROTOCOLS)}")
    rule = RULES[protocol]
    if rule.benchmark != benchmark:
        raise UserError(
            f"--protocol {protocol} reads the files of {rule.name}, and {source.path} is not these; allowed"
            f" here: {', '.join((DEFAULT, PLAIN, *own))}"
        )
    card = Card(
        rule.name,
        protocol,
        rule.which,
        rule.images,
        "one an image; where a file names an image again, its first text stands",
        papers=f"{rule.papers} {EMPTY} {TIES}",
        pairs=rule.pairs,
    )
    return _read(source, rule), card


def _benchmark(source: Source) -> str:
    """The set that a source is all of; "" where there is no such set. Only ImageInWords has several files."""
    if isinstance(source, Joined):
        return "iiw" if {_benchmark(one) for one in source.sources} == {"iiw"} else ""
    return source.benchmark if isinstance(source, LongCaptions) else ""


def _read(source: Source, rule: Rule) -> Source:
    if isinstance(source, Joined):
        return Joined([_read(one, rule) for one in source.sources])
    assert isinstance(source, LongCaptions), "`_benchmark` says so"
    return Under(source, rule)
