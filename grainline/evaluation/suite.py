"""The frame of all suites: the class of a suite, and the way from outcomes to a result.

`Suite.encode` walks over a source once with the suite's collector, `Suite.measure` makes a `Result` of the
collected data. A suite of one's own is a subclass in any module, named `module:Class`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from inspect import isabstract
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np

from grainline.config import Config, load_class, override, parse, trusting
from grainline.data.descriptions import Descriptions
from grainline.data.formats.joined import Joined, WithoutCaptions, without_images
from grainline.data.record import Source
from grainline.errors import UserError, suggestion
from grainline.evaluation import SUITES
from grainline.evaluation.encode import CAPTIONS, Captions, Collector, Encodings, Progress, encode_source
from grainline.evaluation.examples import EXAMPLES, Evaluation
from grainline.evaluation.result import Metric, Result, now, versions
from grainline.evaluation.score import MEMORY, Scorer
from grainline.evaluation.statistics import from_replicates, replicates, wilson
from grainline.model import Model
from grainline.report.case import CaseList, cases_html
from grainline.report.page import Section, facts, hint

MAX_CORRUPT = 0.02  # share of the samples that may be skipped, unless another one is given
_OUTSIDE: dict[str, "type[Suite[Any]]"] = {}  # classes that `suite_class` imported by `module:Class`

O = TypeVar("O", bound=Config)  # noqa: E741 - the options of a suite
ZERO_WIDTH = "an interval of width zero means that all outcomes were alike, not that the value is certain"


class Settings(NamedTuple):
    """The settings that all suites share."""

    captions: Captions | None = None  # which text of a record; None: the default of the suite
    batch_size: int = 64  # images and texts encoded at a time
    max_corrupt: float = MAX_CORRUPT  # share of samples that may be skipped
    seed: int = 0  # of the bootstrap
    resamples: int = 1000
    level: float = 0.95  # of the intervals
    memory: int = MEMORY  # bytes of a tile of scores

    def checked(self) -> "Settings":
        """The same settings. Raises UserError for numbers that cannot be."""
        if self.batch_size < 1 or self.seed < 0 or not 0 <= self.max_corrupt <= 1:
            numbers = f"batch_size is {self.batch_size}, seed {self.seed}, max_corrupt {self.max_corrupt}"
            raise UserError(f"{numbers}; they must be at least 1, at least 0, and 0 to 1")
        return self

    @property
    def bootstrap(self) -> dict[str, Any]:
        """The arguments of `intervals.replicates` that all metrics share."""
        return {"resamples": self.resamples, "seed": self.seed}


class MetricSamples(NamedTuple):
    """One metric of some queries, with its value in every resample. A result has a "share" in per cent."""

    value: float
    samples: np.ndarray  # [R]
    queries: int
    chance: float | None  # None: there is no such thing
    ties: int
    unit: str
    wilson: tuple[float, float] | None = None

    def in_unit(self) -> "MetricSamples":
        """The same as a result has it: a share in per cent."""
        if self.unit != "share":
            return self
        value, samples, queries, chance, ties, _, wilson = self
        ends = wilson and (100 * wilson[0], 100 * wilson[1])
        return MetricSamples(100 * value, 100 * samples, queries, chance and 100 * chance, ties, "%", ends)


class Outcomes(NamedTuple):
    """The single outcomes of a suite, from which metrics are computed."""

    queries: dict[str, Any]  # lists of outcomes, as JSON has them behind the keys of the images
    notes: tuple[str, ...] = ()  # for readers of the numbers
    settings: Mapping[str, Any] = {}  # added to `Result.settings`
    data: Mapping[str, Any] = {}  # added to `Result.data`
    protocol: str = "plain"


class Suite(ABC, Generic[O]):
    """One question asked of a model. Abstract: `outcomes` and `metrics` are needed."""

    name: ClassVar[str]
    Options: ClassVar[type[Config]] = Config  # none; else set by `--set key=value`
    captions: ClassVar[tuple[Captions, ...]] = CAPTIONS  # allowed ones; the first is the default
    collector_class: ClassVar[type[Any] | None] = None  # made of a model and a batch size, by `collector`
    reads: ClassVar[str] = "the captions of a record"  # what it reads, for errors
    needs_text: ClassVar[bool] = True  # False: an image without a text is no damage
    source_variant: ClassVar[str] = ""  # the method of sources for the records that it reads; "": none
    encodes_images: ClassVar[bool] = True  # False: no image is opened
    encodes_captions: ClassVar[bool] = True  # False: captions are strings only
    keeps_tokens: ClassVar[bool] = True  # False: scores read vectors, whatever the method compares
    reads_tokens: ClassVar[bool] = True  # False: no collector of it reads the tokens of images
    takes_vectors: ClassVar[bool] = False  # True: vectors of another program can be measured
    replaces_scores: ClassVar[str] = ""  # what it compares in place of the scores of the method; "": these
    model_fields: ClassVar[frozenset[str]] = frozenset({"rank", "tied", "right", "scores", "cut"})
    """Fields of `Outcomes.queries` that the model decides; all others must be equal to be compared."""
    must_match: ClassVar[tuple[str, ...]] = ()  # settings and data that compared or pooled results share
    pooled_must_match: ClassVar[tuple[str, ...]] = ()  # those that pooled results share too
    noted_if_other: ClassVar[tuple[str, ...]] = ()  # those that a comparison notes where they differ
    title: ClassVar[str] = ""  # of the page; "": the name with a capital
    headline: ClassVar[tuple[str, ...]] = ()  # metrics on top of the page
    texts_label: ClassVar[str] = "Texts"  # what the texts are called there
    card: ClassVar[tuple[str, str]] = ("Protocol", "What was compared, and how")  # title and caption

    def __init__(self, options: O | None = None) -> None:
        """Raises UserError for files in the options that cannot be used."""
        self.options: O = cast(O, self.Options()) if options is None else options

    def check(self, model: Model, source: Source) -> None:
        """Raise UserError where model or source lack a need. The default refuses captions without images."""
        if self.encodes_images and (without := without_images(source)):
            raise UserError(f"{without} has captions without images; --suite {self.name} looks at images")

    def prepare(self, model: Model, source: Source) -> tuple[Model, Source]:
        """The model and the source as the suite reads them; the default takes the `source_variant`."""
        return model, variant(source, self.source_variant) if self.source_variant else source

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector | None:
        """Collects more than the vectors of images and captions; None: these are enough."""
        return None if self.collector_class is None else self.collector_class(model, settings.batch_size)

    def encode(
        self,
        model: Model,
        source: Source,
        settings: Settings = Settings(),  # noqa: B008
        descriptions: Descriptions | None = None,
        progress: Progress | None = None,
    ) -> Encodings:
        """The source as the suite reads it. Raises UserError as `check` and `encode_source` do."""
        self.check(model, source)
        captions = self.choose_captions(settings.captions)
        if descriptions is not None and descriptions.own and self.needs_text:
            captions = "each" if captions == "auto" else captions
            if captions == "whole":
                raise UserError(
                    "--captions whole reads the long captions, which describe their own images here: "
                    "give --captions first, or each, or other descriptions"
                )
        settings = settings._replace(captions=captions)
        descriptions = descriptions if self.encodes_images else None
        return self.walk(model, source, settings, descriptions=descriptions, progress=progress)

    def walk(self, model: Model, source: Source, settings: Settings, **others: Any) -> Encodings:
        """Walk over the source; suites with other walks override this. others: descriptions and progress"""
        model, source = self.prepare(model, source)
        collector = self.collector(model, source, settings)
        return encode_source(
            model,
            source,
            captions=self.choose_captions(settings.captions),
            need_text=self.needs_text,
            encode_images=self.encodes_images,
            encode_texts=self.encodes_captions,
            keep_tokens=self.keeps_tokens,
            collectors={} if collector is None else {self.name: collector},
            batch=settings.batch_size,
            max_corrupt=settings.max_corrupt,
            **others,
        )

    @abstractmethod
    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        """The outcome of every query. Raises UserError for scores that are not a number."""

    @abstractmethod
    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Name -> metric, from `Outcomes.queries` of one run, or of several over the same queries."""

    def measure(self, scorer: Scorer, data: Encodings, settings: Settings = Settings()) -> Result:  # noqa: B008
        """The result of the data. Raises UserError as `outcomes` and `collected` do."""
        outcomes = self.outcomes(scorer, data, settings)
        queries = {"keys": list(data.keys), **outcomes.queries}
        metrics = metrics_of(self.metrics([queries], settings), settings)
        notes = (*data.notes(), *outcomes.notes)
        if any(metric.low == metric.high for metric in metrics if metric.unit == "%"):
            notes += (ZERO_WIDTH,)
        about = {
            **settings._asdict(),
            "captions": data.captions,
            "options": self.options.model_dump(mode="json"),
            **outcomes.settings,
            **({"descriptions": data.descriptions} if data.descriptions else {}),
        }
        counts = {
            "path": data.path,
            "fingerprint": data.fingerprint,
            "samples": data.samples,
            "images": len(data.keys),
            "texts": len(data.strings),
            **({"counts": data.counts()} if data.several and len(self.captions) > 1 else {}),
            "damaged": data.damaged,
            "damaged_first": list(data.damaged_first),
            "blank_captions": data.blank,
            "cut_texts": data.cut,
            **outcomes.data,
        }
        return Result(
            self.key, outcomes.protocol, metrics, about, counts, versions(), settings.seed, now(), notes,
            queries,
        )  # fmt: skip

    def headlines(self, result: Result) -> list[str]:
        """The names of the metrics on top of the page; those that the result lacks are left out."""
        return list(self.headline)

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        """Single outcomes on the page, from the worst to the best: so many in each list."""
        return []

    def sections(self, evaluation: Evaluation) -> list[Section]:
        """The parts of the page below the metrics; the default has the card of the protocol and the cases."""
        card = evaluation.result.settings.get("card")
        out = [Section(self.card[0], facts(card, self.card[1]))] if card else []
        for i, part in enumerate(self.cases(evaluation)):
            out.append(Section(part.title, hint(part.hint) + cases_html(part.cases, f"part{i}n")))
        return out

    @property
    def key(self) -> str:
        """The name in the table, or `module:Class` of a suite from outside."""
        spec = f"{type(self).__module__}:{type(self).__qualname__}"
        return self.name if SUITES.get(self.name) == spec else spec

    def collected(self, data: Encodings) -> Any:
        """The result of the suite's collector. Raises UserError if the data were encoded without it."""
        if self.name not in data.collected:
            raise UserError(f"{data.path} was encoded for other suites; encode it with the {self.name} suite")
        return data.collected[self.name]

    def choose_captions(self, mode: str | None) -> Captions:
        """The texts of a record that are read. Raises UserError for a mode that the suite does not allow."""
        if mode is not None and mode not in self.captions:
            near, modes = suggestion(mode, self.captions), ", ".join(self.captions)
            raise UserError(f"--captions is {mode!r}{near}; {self.name} reads {self.reads}; allowed: {modes}")
        return self.captions[0] if mode is None else mode


class OneTextSuite(Suite[O]):
    """A suite that reads one text an image, as a string."""

    captions = ("whole", "first")
    reads = "one text an image"
    encodes_captions = False


def variant(source: Source, method: str) -> Source:
    """The source after a method of its own, such as with_foils; the source itself where it has none."""
    if isinstance(source, Joined):
        return Joined([variant(one, method) for one in source.sources])
    if isinstance(source, WithoutCaptions):
        return WithoutCaptions(variant(source.source, method), source.skip)
    changed: Source = getattr(source, method)() if hasattr(source, method) else source
    return changed


def suite_class(name: str) -> type[Suite[Any]]:
    """The class of a suite: a name of SUITES, or `module:Class` on sys.path or in the working directory.

    Raises UserError for an unknown name, a module that cannot be imported, and what is no such class.
    """
    with trusting(name):  # results of files ask for SUITES alone
        cls: type[Suite[Any]] = load_class(name, Suite, SUITES, "--suite")
    if isabstract(cls) or not hasattr(cls, "name"):
        raise UserError(f"--suite: {name} defines not all of name, outcomes and metrics")
    if name not in SUITES:
        _OUTSIDE[name] = cls
    return cls


def load_suite(name: str, changes: Sequence[str] = (), **options: Any) -> Suite[Any]:
    """A suite with options, each "key=value" or "SUITE.key=value" as `--set` takes them, or a keyword.

    Raises UserError as `suite_class` does, for an unknown option and for a value that is not allowed.
    """
    cls = suite_class(name)
    values = override({}, list(changes)) | options
    nested = values.pop(cls.name, {}) if cls.name not in cls.Options.model_fields else {}
    if not cls.Options.model_fields and (values or nested):
        raise UserError(f"--set {next(iter(values or nested))}: --suite {cls.name} has no options")
    return cls(parse(cls.Options, {**values, **nested}, f"--set, --suite {cls.name}"))


def suite_of(result: Result) -> Suite[Any]:
    """The suite that made a result, with its options. UserError for one that this process has not loaded."""
    cls = suite_class(result.suite) if result.suite in SUITES else _OUTSIDE.get(result.suite)
    if cls is None:
        raise UserError(f"the result is of {result.suite}; load it first, with load_suite({result.suite!r})")
    suite = cls.__new__(cls)  # the files that options name are not read again
    flat = {name: x for name, x in result.settings.items() if name in cls.Options.model_fields}
    suite.options = parse(cls.Options, result.settings.get("options", flat), f"a result of {result.suite}")
    return suite


def settings_of(result: Result) -> Settings:
    """The settings that a result was made with."""
    return Settings(**{name: x for name, x in result.settings.items() if name in Settings._fields})


def metrics_of(samples: Mapping[str, MetricSamples], settings: Settings) -> tuple[Metric, ...]:
    """Metrics with their intervals."""
    out = []
    for name, one in samples.items():
        one = one.in_unit()
        ends = from_replicates(one.value, one.samples, settings.level)
        out.append(Metric(name, *ends, one.queries, one.chance, one.ties, one.unit, one.wilson))
    return tuple(out)


def mean_of(metrics: Sequence[MetricSamples]) -> MetricSamples:
    """The mean of a metric over folds, or over runs, that were resampled each by itself."""
    chances = [one.chance for one in metrics if one.chance is not None]
    return metrics[0]._replace(
        value=float(np.mean([one.value for one in metrics])),
        samples=np.mean([one.samples for one in metrics], axis=0),
        queries=sum(one.queries for one in metrics),
        chance=float(np.mean(chances)) if chances else None,
        ties=sum(one.ties for one in metrics),
    )


def accuracy(
    right: Sequence[Sequence[int]] | np.ndarray,
    image: np.ndarray | None,
    chance: float | None,
    ties: int,
    settings: Settings,
) -> MetricSamples:
    """A share of queries, the mean over the runs, with Wilson's interval where there is one run.

    right  [run, Q] of 0 and 1;  image [Q] of each query: the bootstrap draws them; None: each its own
    """
    mean = np.mean(right, axis=0)  # [Q] share of the runs that were right
    metric = mean_metric(mean, image, mean.size * len(right), chance, ties, "share", settings)
    if len(right) > 1:
        return metric
    return metric._replace(wilson=wilson(int(mean.sum()), len(mean), settings.level)[1:])


def mean_metric(
    values: np.ndarray,
    image: np.ndarray | None,
    queries: int,
    chance: float | None,
    ties: int,
    unit: str,
    settings: Settings,
) -> MetricSamples:
    """The mean of values [Q]. image [Q] as in `accuracy`; queries  so many outcomes, over all runs"""
    samples = replicates(values, image, **settings.bootstrap)
    return MetricSamples(float(values.mean()), samples, queries, chance, ties, unit)


def count_notes(counts: Mapping[str, int]) -> tuple[str, ...]:
    """A note of each number that is not 0, with what it counts."""
    return tuple(f"{number:,} {what}" for what, number in counts.items() if number)
