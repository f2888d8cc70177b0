"""Retrieval with long captions: under which protocol a set is read, and the card that says so.

The metrics are those of retrieval. Numbers of papers on such sets differ by the text of a record they read,
how it is cleaned, and the images. A rule settles that for a set, and a card in the result says it.
The texts are read as CAFT (arXiv 2602.02977) and FLAIR (arXiv 2412.03561) read them, as far as that is known.
`perturb` changes the sentences of every text, as the test of DeBias-CLIP (arXiv 2602.22419) does.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from grainline.data.benchmarks.long_captions import LongCaptions
from grainline.data.captions import split_sentences, without_first
from grainline.data.formats.common import FileSource, digest
from grainline.data.formats.joined import Joined, SourceWrapper, remarks
from grainline.data.record import Record, Source
from grainline.distributed import parts_of_workers
from grainline.errors import UserError
from grainline.evaluation.encode import Captions, Encodings
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import Outcomes, Settings
from grainline.evaluation.suites.retrieval import RetrievalOptions, RetrievalSuite
from grainline.model import Model

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

    benchmarks: tuple[str, ...]  # of sources with these texts
    name: str  # of the set, for people
    text: Callable[[str], str]  # cleans the text of the file
    rows: int | None  # the first so many; None: all
    pairs: int  # of the whole set
    which: str  # text of a record is read, and why
    images: str
    papers: str  # how far it is from them
    part: str = ""  # the field that alone is read; images without it are left out
    single: bool = False  # each sentence is a text, and an image has many


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


def swapped(pieces: Sequence[str]) -> Sequence[str]:
    """The sentences with the first and the fourth exchanged, or the last one where there are fewer."""
    other, out = min(3, len(pieces) - 1), [*pieces]
    out[0], out[other] = out[other], out[0]
    return out


PERTURBATIONS = {  # what becomes of the sentences of a text, and the words for it
    "first-removed": (without_first, "without its first sentence"),
    "swapped": (swapped, "with its first and its fourth sentence exchanged (the last, where it has fewer)"),
}


def rejoined(text: str) -> str:
    """The text as FLAIR reads DCI, ImageInWords and ShareGPT4V: cut at each line break, `</s>` and period,
    the pieces joined by a period and a blank. It also cuts numbers such as 3.5.

    >>> rejoined("A cat\\nIt is 3.5 kg </s> and grey. ")
    'A cat. It is 3. 5 kg. and grey'
    """
    pieces = (piece.strip() for piece in re.split(r"\n|</s>|\.", text))
    return ". ".join(piece for piece in pieces if piece)


def first_line(text: str) -> str:
    """The text up to its first line break, even if that is nothing, as Long-CLIP reads Urban-1k."""
    return re.split(r"\r\n|\r|\n", text, maxsplit=1)[0]


def one_line(text: str) -> str:
    """The text with blanks for line breaks, as Long-CLIP reads ShareGPT4V."""
    return text.replace("\n", " ")


SHORT = 2  # characters: FLAIR's file of single sentences has no piece as short as that
_CUT = "cut at line breaks, </s> and periods and joined again by '. ', as FLAIR reads it"
_SHARE = "the second turn of conversations, which describes the image"
_SINGLE = (
    f"cut at line breaks, </s> and periods; each piece of more than {SHORT} characters is a text",
    "FLAIR's file of ImageInWords has the same 6,204 pieces; an image counts as right with any of its own.",
)
_CAFT = "CAFT names the set and not its reader; FLAIR's is taken, which CAFT builds upon."

RULES: dict[str, Rule] = {
    "dci": Rule(
        *(("dci",), "DCI", rejoined, None, 7805),
        f"short_caption and extra_caption, the whole description of the image without its masks, {_CUT}",
        "all splits pooled",
        _CAFT,
    ),
    "docci": Rule(
        *(("docci",), "DOCCI", str, None, 5000),
        "the full description as it stands",
        "the test split",
        "FLAIR's own file of DOCCI holds single sentences, which is another task.",
    ),
    "urban-1k": Rule(
        *(("urban-1k",), "Urban-1k", first_line, None, 1000),
        "the first line of the text of an image, as Long-CLIP reads it; FLAIR's file has no second lines",
        "all",
        "FLAIR's file holds one empty text.",
    ),
    "sv-1k": Rule(
        *(("sharegpt4v",), "SV-1k (ShareGPT4V)", rejoined, 1000, 1000),
        f"{_SHARE}, {_CUT}",
        "the first 1,000 rows of the file",
        f"{_CAFT} Long-CLIP only puts blanks for line breaks: sv-1k-long-clip.",
    ),
    "sv-10k": Rule(
        *(("sharegpt4v",), "SV-10k (ShareGPT4V)", rejoined, 10000, 10000),
        f"{_SHARE}, {_CUT}",
        "the first 10,000 rows of the file, those of SV-1k among them",
        _CAFT,
    ),
    "sv-1k-long-clip": Rule(
        *(("sharegpt4v",), "SV-1k (ShareGPT4V)", one_line, 1000, 1000),
        f"{_SHARE}, with blanks for line breaks, as Long-CLIP reads it",
        "the first 1,000 rows of the file",
        "CAFT and FLAIR cut the text at periods and join it again: sv-1k.",
    ),
    "iiw": Rule(
        *(("iiw",), "IIW (ImageInWords)", rejoined, None, 612),
        f"the field IIW, {_CUT}: 10.16 sentences a text, as in Table 6 of CAFT",
        "IIW-400 (400), DCI_Test (112) and DOCCI_Test (100) together",
        f"{_CAFT} One image is 0.163 points of a recall.",
    ),
    "long-dci": Rule(
        *(("long-dci", "dci"), "Long-DCI", str, None, 7602),
        "extra_caption alone as it stands, the title of dci_long.csv",
        "all splits, where extra_caption is not empty",
        "TULIP and HiMo-CLIP read it so.",
        part="extra_caption",
    ),
    "dci-fg-clip": Rule(
        *(("dci",), "DCI of FG-CLIP", str.lower, None, 7602),
        "extra_caption alone, in small letters",
        "all splits, where extra_caption is not empty",
        "FG-CLIP ranks all 7,805 images, 203 of them with the empty text: its recalls are 0.974 of these.",
        part="extra_caption",
    ),
    "goal-dci": Rule(
        *(("goal-dci",), "DCI of GOAL", str, None, 1999),
        "the caption of its file, which is extra_caption",
        "the 1,999 of its file; how they were chosen is not known",
        "GOAL computes in bfloat16.",
    ),
    "goal-docci": Rule(
        *(("goal-docci",), "DOCCI of GOAL", str, None, 5100),
        "the full description as it stands",
        "the splits test and qual_test",
        "GOAL computes in bfloat16.",
    ),
    "docci-fg": Rule(
        *(("docci",), "DOCCI-FG", rejoined, None, 5000),
        f"the description, {_SINGLE[0]}",
        "the test split",
        f"Our reading: FLAIR's own file was not at hand. {_SINGLE[1]}",
        single=True,
    ),
    "iiw-fg": Rule(
        *(("iiw",), "IIW-FG", rejoined, None, 612),
        f"the field IIW, {_SINGLE[0]}",
        "IIW-400 (400), DCI_Test (112) and DOCCI_Test (100) together",
        _SINGLE[1],
        single=True,
    ),
}
"""By the name of the protocol. The first of a set is its default."""

PROTOCOLS = (DEFAULT, PLAIN, *RULES)
SINGLE = tuple(name for name, rule in RULES.items() if rule.single)


class LongRetrievalOptions(RetrievalOptions):
    """Options of `long-retrieval`."""

    protocol: Literal[PROTOCOLS] = Field(  # type: ignore[valid-type]
        "default", description="how the set is read; default: the protocol of the set"
    )
    perturb: Literal[("none", *PERTURBATIONS)] = Field(  # type: ignore[valid-type]
        "none", description="what becomes of the sentences of each text, as a test of their order"
    )

    @model_validator(mode="after")
    def _sentences(self) -> "LongRetrievalOptions":
        if self.perturb != "none" and self.protocol in SINGLE:
            raise ValueError(f"perturb changes texts of several sentences; {self.protocol} has single ones")
        return self


class LongRetrievalSuite(RetrievalSuite):
    """The metrics of retrieval on a set of long captions, each set under its own protocol."""

    name = "long-retrieval"
    card = ("Protocol", "What was compared, and how far it is from published numbers")
    Options = LongRetrievalOptions
    takes_vectors = False
    captions = ("whole", "first")
    reads = "one text an image"
    pooled_must_match = noted_if_other = ("perturb",)
    options: LongRetrievalOptions

    def choose_captions(self, mode: str | None) -> Captions:
        if self.options.protocol not in SINGLE:
            return super().choose_captions(mode)
        if mode not in (None, "each"):
            raise UserError(f"--captions is {mode!r}; protocol {self.options.protocol} ranks each sentence")
        return "each"

    def walk(self, model: Model, source: Source, settings: Settings, **others: Any) -> Encodings:
        """Raises UserError for a protocol of another set too."""
        captions = settings.captions or "whole"
        source, card = under(source, self.options.protocol, captions)
        perturb = self.options.perturb
        changed = source if perturb == "none" else Perturbed(source, perturb, captions)
        data = super().walk(model, changed, settings, **others)
        if isinstance(changed, Perturbed):
            stay = sum(parts_of_workers(len(changed.unchanged)))
            words = f"{PERTURBATIONS[perturb][1]}; {stay:,} of one sentence stay"
            card = card._replace(text=f"{card.text}; {perturb}: {words}")
        if isinstance(source, Under):  # the page reads images from the source without the rule
            data = data._replace(positions=tuple(source.rows[i] for i in data.positions))
        return data._replace(collected={self.name: card})

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        card: Card = self.collected(data)
        plain, images = super().outcomes(scorer, data, settings), len(data.keys)
        notes = []
        if card.pairs and images != card.pairs:
            notes.append(f"{images:,} images here, {card.pairs:,} in {card.set}: its recalls are others")
        if (perturb := self.options.perturb) != "none":
            notes.append(f"perturb={perturb}: each text {PERTURBATIONS[perturb][1]}")
        own = set(zip(data.texts.image.tolist(), data.strings, strict=True))
        again = len(own) - len({text for _, text in own})
        if again:
            notes.append(f"{again:,} texts stand at another image too, word for word: they tie exactly")
        about = {"card": card.for_images(images)}
        return plain._replace(notes=(*plain.notes, *notes), settings=about, protocol=card.protocol)


class Under(FileSource):
    """A benchmark as a rule reads it."""

    def __init__(self, source: LongCaptions, rule: Rule) -> None:
        self.path = source.path
        self._source, self._rule = source, rule
        self.rows: Sequence[int] = range(len(source))[: rule.rows]
        if rule.part:
            texts = ((i, source.text(i, rule.part)) for i in self.rows)
            self.rows = [i for i, text in texts if text.strip() or source.entries[i].fault]
        self.remarks = remarks(source)
        if rule.part and (empty := len(source) - len(self.rows)):
            self.remarks += (f"{empty} images without {rule.part} are left out",)

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, index: int) -> str:
        """The text at a position as the rule reads it."""
        return self._rule.text(self._source.text(self.rows[index], self._rule.part))

    def __getitem__(self, index: int) -> Record:
        text = self.text(index)
        record = self._source.record(self.rows[index], text)
        if not self._rule.single:
            return record
        return record._replace(captions=tuple(one for one in text.split(". ") if len(one) > SHORT))

    def keys(self) -> Iterable[str]:
        """The names of the images."""
        keys = list(self._source.keys())
        return (keys[i] for i in self.rows)

    def fingerprint(self) -> str:
        """sha256 over names and texts as they are read; rows behind the last one do not count."""
        pairs = zip(self.keys(), map(self.text, range(len(self))), strict=True)
        return digest(part for pair in pairs for part in pair)


class Perturbed(SourceWrapper):
    """A source whose records have one text each, its sentences removed or exchanged.

    The fingerprint is that of the source, so that results with and without it can be compared.
    name: of PERTURBATIONS; captions: as in `under`
    """

    def __init__(self, source: Source, name: str, captions: str) -> None:
        super().__init__(source)
        self.path = f"{source.path}, {name}"
        self._first, self._change = captions == "first", PERTURBATIONS[name][0]
        self.unchanged: set[int] = set()  # positions of texts of one sentence, as far as they were read

    def __getitem__(self, index: int) -> Record:
        record = self.source[index]
        pieces = split_sentences(record.captions[0] if self._first else record.whole)
        if len(pieces) < 2:
            self.unchanged.add(index)
            return record
        return record._replace(captions=(" ".join(self._change(pieces)),), long=None, others=())


def under(source: Source, protocol: str = DEFAULT, captions: str = "whole") -> tuple[Source, Card]:
    """The source as a protocol reads it, and the card. A set without a rule of its own is read as it is.

    captions  "whole" or "first": which text of a record, where no rule says it

    Raises UserError for a protocol of another set.
    """
    benchmark = _benchmark(source)
    own = [name for name, rule in RULES.items() if benchmark in rule.benchmarks]
    if protocol == DEFAULT:
        protocol = own[0] if own else PLAIN
    if protocol == PLAIN:
        text = "the fullest there is: the long description, else all captions joined as sentences"
        name = f"{benchmark}, without its protocol" if benchmark else "none with a protocol of its own"
        return source, Card(name, PLAIN, "the first caption" if captions == "first" else text)
    if protocol not in RULES:
        raise UserError(f"protocol is {protocol!r}; allowed for long-retrieval: {', '.join(PROTOCOLS)}")
    rule = RULES[protocol]
    if benchmark not in rule.benchmarks:
        allowed = ", ".join((DEFAULT, PLAIN, *own))
        what = f"--protocol {protocol} reads the files of {rule.name}, and {source.path} is not these"
        raise UserError(f"{what}; allowed here: {allowed}")
    one = "one an image; where a file names an image again, its first text stands"
    texts, papers = "each sentence, many an image" if rule.single else one, f"{rule.papers} {EMPTY} {TIES}"
    card = Card(rule.name, protocol, rule.which, rule.images, texts, papers=papers, pairs=rule.pairs)
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
