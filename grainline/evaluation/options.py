"""What `grainline evaluate` is asked for: checked before a model is loaded, then encoded and measured."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from grainline.data.benchmarks.proposals import Proposals
from grainline.data.descriptions import Descriptions
from grainline.data.formats.texts_alone import without_pictures
from grainline.data.record import Source
from grainline.errors import UserError
from grainline.evaluation.collect import inactive_of, judging_of, pooling_of
from grainline.evaluation.collectors.choices import ATTENTION, GRADIENT
from grainline.evaluation.collectors.classes import TEMPLATES, read_classes, read_templates
from grainline.evaluation.collectors.long import DEFAULT, LONG_RETRIEVAL, PLAIN, under
from grainline.evaluation.collectors.long import PROTOCOLS as LONG_PROTOCOLS
from grainline.evaluation.collectors.regions import view
from grainline.evaluation.collectors.trained import TRAINED, Overlap, Taught, overlap, taught
from grainline.evaluation.compare import noted, read_earlier
from grainline.evaluation.encode import CAPTIONS, Captions, Encodings, Progress, encode_source
from grainline.evaluation.outcome import Options
from grainline.evaluation.ranks import PROTOCOLS
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.evaluation.shortlist import refuse_plain
from grainline.evaluation.suites.cola import COLA, items_file, with_items
from grainline.evaluation.suites.comprehension import COMPREHENSION
from grainline.evaluation.suites.fgovd import FG_OVD, with_foils
from grainline.evaluation.suites.inactivity import INACTIVITY
from grainline.evaluation.suites.monotonicity import MONOTONICITY
from grainline.evaluation.suites.phrases import PHRASES, encode_phrases
from grainline.evaluation.suites.ranking import PROBES
from grainline.evaluation.suites.referring import REFERRING, with_expressions
from grainline.evaluation.suites.registry import RANKED, SUITES
from grainline.evaluation.suites.similarity import OWN_CAPTION, SIMILARITY
from grainline.evaluation.suites.stability import STABILITY, with_noise
from grainline.evaluation.suites.transfer import TRANSFER
from grainline.evaluation.suites.zeroshot import with_classes
from grainline.model import Model

ZEROSHOT = "zeroshot"
SQUASH, AS_TRAINED = "squash", "model"  # ways to make a square of an image whose regions are measured
SUBTEXTS = (MONOTONICITY, STABILITY)  # suites of the subtexts of one caption a picture
POOLED = (SIMILARITY, OWN_CAPTION, INACTIVITY)  # suites of pictures as texts see them
OF_REGIONS = (FG_OVD, REFERRING)  # suites of the texts of regions
OWN_TEXTS = (
    PROBES,
    PHRASES,
    COMPREHENSION,
    *OF_REGIONS,
)  # suites that bring their texts, whatever the captions are
OWN_SCORES = (
    *OF_REGIONS,
    *POOLED,
    PHRASES,
)  # those that compare vectors or tokens, whatever the method scores


class Asked(NamedTuple):
    """A suite with its options, and the files that go with it, read."""

    suite: str
    options: Options
    captions: Captions
    templates: tuple[str, ...]  # of prompts
    listed: dict[str, str] | None  # label -> name of all classes; None: those of the pictures
    noise_seed: int
    against: str | None
    earlier: Result | None  # the result to compare with
    taught: Taught | None = None  # what the model was trained on
    proposals: Proposals | None = None  # boxes to choose from; None: those that the data know
    attention: bool = False  # whether maps of attention choose boxes beside the others
    resize: str = SQUASH  # how images become squares for regions


def ask(
    suite: str,
    options: Options,
    captions: str | None = None,
    prompts: str | None = None,
    classes: str | None = None,
    noise_seed: int | None = None,
    against: str | None = None,
    scoring: str | None = None,
) -> Asked:
    """The options of the command, checked. Raises UserError for those that do not go together."""
    if suite not in SUITES:
        raise UserError(f"--suite is {suite!r}; allowed are {', '.join(SUITES)}")
    options = _with_protocol(suite, options)
    for name, value, owner in (
        ("--prompts", prompts, ZEROSHOT),
        ("--classes", classes, ZEROSHOT),
        ("--noise-seed", noise_seed, STABILITY),
    ):
        if value is not None and suite != owner:
            raise UserError(f"{name} goes with --suite {owner}, not with {suite}")
    if scoring is not None and suite in OWN_SCORES:
        own = {
            REFERRING: "reads heat",
            INACTIVITY: "reads where texts look",
            PHRASES: "reads groups of tokens",
        }
        what = own.get(suite, "compares vectors")
        raise UserError(f"--scoring goes with suites that ask the method for scores; {suite} {what}")
    _refuse_shortlist(suite, options.shortlist, options.exact)
    earlier = None if against is None else read_earlier(against, suite)
    used = noise_seed or 0
    if earlier and suite == STABILITY and earlier.settings.get("noise_seed") != used:
        made = earlier.settings.get("noise_seed")
        raise UserError(f"{against} was made with --noise-seed {made}, not {used}; use the same")
    return Asked(
        suite,
        options,
        _captions(suite, captions),
        TEMPLATES if prompts is None else read_templates(prompts),
        None if classes is None else read_classes(classes),
        used,
        against,
        earlier,
    )


def with_map(asked: Asked, given: str | None) -> Asked:
    """What is asked for, with the maps that choose boxes. Raises UserError for one that is not known."""
    if given is None:
        return asked
    if asked.suite != COMPREHENSION:
        raise UserError(f"--map goes with --suite {COMPREHENSION}, not with {asked.suite}")
    if given not in (GRADIENT, ATTENTION):
        raise UserError(f"--map is {given!r}; allowed are {GRADIENT}, {ATTENTION}")
    return asked._replace(attention=given == ATTENTION)


def with_resize(asked: Asked, given: str | None) -> Asked:
    """What is asked for, with how images become squares. Raises UserError for a way that is not known."""
    if given is None:
        return asked
    if asked.suite != FG_OVD:
        raise UserError(f"--resize goes with --suite {FG_OVD}, not with {asked.suite}")
    if given not in (SQUASH, AS_TRAINED):
        raise UserError(f"--resize is {given!r}; allowed are {SQUASH}, {AS_TRAINED}")
    return asked._replace(resize=given)


def with_files(asked: Asked, model: str, trained: Sequence[str] | None, boxes: str | None) -> Asked:
    """What is asked for, with what stands in further files: what a run was trained on, boxes to choose from.

    model    the path of the model
    trained  where its training data lie, if not where its recipe says
    boxes    a file of detections

    Raises UserError for what does not go with the suite, and for files that cannot be used.
    """
    for name, value, owner in ((TRAINED, trained, TRANSFER), ("--boxes", boxes, COMPREHENSION)):
        if value and asked.suite != owner:
            raise UserError(f"{name} goes with --suite {owner}, not with {asked.suite}")
    return asked._replace(
        taught=taught(model, trained) if asked.suite == TRANSFER else None,
        proposals=None if boxes is None else Proposals(boxes),
    )


def encoded(
    asked: Asked,
    model: Model,
    source: Source,
    batch: int,
    damage: float,
    progress: Progress | None = None,
    descriptions: Descriptions | None = None,
) -> Encodings:
    """The source with all that the suite reads.

    damage        share of samples, and of items, that may be skipped
    descriptions  of the pictures, for a model that reads them

    Raises UserError where the source lacks what the suite reads, and for too much damage.
    """
    if asked.options.shortlist is not None:
        refuse_plain(model.method, model.description.method)
    _refuse_own(asked, descriptions)
    both = _overlap(asked, model, source, progress)
    if asked.suite == PHRASES:
        return encode_phrases(model, source, batch, damage, progress)
    _refuse_bare(asked.suite, source)
    items = items_file(source) if asked.suite == COLA else None
    model = model.pressed() if asked.suite == FG_OVD and asked.resize == SQUASH else model
    regions = view(model) if asked.suite == FG_OVD else None
    judging = None
    if asked.suite in (REFERRING, COMPREHENSION):
        model, source = model.pressed(), with_expressions(source)
        judging = judging_of(asked.suite, model, source, asked.proposals, batch, asked.attention)
    alike, own = pooling_of(asked.suite, model, batch)
    inactive = inactive_of(model, source, asked.captions) if asked.suite == INACTIVITY else None
    card = None
    if asked.suite == LONG_RETRIEVAL:
        source, card = under(source, asked.options.protocol, asked.captions)
    data = encode_source(
        model,
        source if regions is None else with_foils(source),
        captions=asked.captions,
        need_text=asked.suite not in OWN_TEXTS,
        encode_texts=asked.suite not in (ZEROSHOT, *OWN_TEXTS, *SUBTEXTS, *POOLED),
        probes=asked.suite == PROBES,
        subtexts=asked.suite in SUBTEXTS,
        regions=regions,
        pooling=alike or own or inactive,
        judging=judging,
        descriptions=descriptions,
        batch=batch,
        max_damaged=damage,
        progress=progress,
    )
    if asked.suite == ZEROSHOT:
        data = with_classes(model, data, asked.templates, asked.listed, batch)
    if asked.suite == STABILITY:
        data = with_noise(model, data, asked.noise_seed, batch)
    data = data._replace(
        likeness=alike.found() if alike else None,
        own=own.pair() if own else None,
        looked=inactive.found() if inactive else None,
        card=card,
        overlap=both,
    )
    return data if items is None else with_items(data, items, damage)


def measured(asked: Asked, method: Scorer, data: Encodings, model: dict[str, Any]) -> Result:
    """The result, with what its settings say about the model and how it differs from the earlier one."""
    result = SUITES[asked.suite](method, data, asked.options)
    told = {"descriptions": data.descriptions} if data.descriptions else {}
    result = result._replace(settings=result.settings | model | told)
    if asked.earlier is None or asked.against is None:
        return result
    return noted(result, asked.earlier, asked.against)


def _refuse_bare(suite: str, source: Source) -> None:
    """Raise UserError for captions without pictures."""
    bare = without_pictures(source)
    if bare:
        raise UserError(
            f"{bare} has captions without pictures, and --suite {suite} looks at pictures; name others"
        )


def _refuse_own(asked: Asked, descriptions: Descriptions | None) -> None:
    """Raise UserError where the texts that are compared are the descriptions of their own pictures."""
    own = descriptions is not None and descriptions.own
    if own and asked.captions == "whole" and asked.suite not in OWN_TEXTS:
        raise UserError(
            "--captions whole reads the long captions, which describe their own pictures here: "
            "give --captions first, or each, or other descriptions"
        )


def _refuse_shortlist(suite: str, shortlist: int | None, exact: bool) -> None:
    """Raise UserError where no candidates are ranked, for a shortlist without any, and for none at all."""
    if shortlist is not None and suite not in RANKED:
        raise UserError(f"--shortlist goes with --suite {', '.join(RANKED)}, not with {suite}")
    if exact and shortlist is None:
        raise UserError("--exact ranks by all scores beside a shortlist; give --shortlist N with it")
    if shortlist is not None and shortlist < 1:
        raise UserError(f"--shortlist is {shortlist}; it must be 1 at least")


def _with_protocol(suite: str, options: Options) -> Options:
    """The options with a protocol that the suite knows. Raises UserError for another one."""
    allowed = LONG_PROTOCOLS if suite == LONG_RETRIEVAL else PROTOCOLS
    if suite != LONG_RETRIEVAL and options.protocol == DEFAULT:
        return options._replace(protocol=PLAIN)
    if options.protocol not in allowed:
        raise UserError(f"--protocol is {options.protocol!r}; allowed are {', '.join(allowed)}")
    return options


def _overlap(asked: Asked, model: Model, source: Source, progress: Progress | None) -> Overlap | None:
    """Training data beside test data, where a suite asks for it."""
    if asked.suite != TRANSFER:
        return None
    if asked.taught is None:
        raise UserError(f"the {TRANSFER} suite has to know what the model was trained on (ask.with_files)")
    return overlap(asked.taught, source, model.method.size, progress)


def _captions(suite: str, given: str | None) -> Captions:
    fixed: dict[str, Captions] = {ZEROSHOT: "first", COLA: "each"}
    if suite in OWN_TEXTS and given is not None:
        own = {PROBES: "foils and their captions", PHRASES: "all texts in which phrases are marked"}
        texts = own.get(suite, "the texts of regions")
        raise UserError(f"--captions is {given!r}; {suite} reads {texts}: leave it out")
    if suite in fixed and given not in (None, fixed[suite]):
        why = "the first caption is the class" if suite == ZEROSHOT else "every caption has its own picture"
        raise UserError(f"--captions is {given!r}; for {suite} {why}: leave it out")
    if suite in (*SUBTEXTS, *POOLED, LONG_RETRIEVAL) and given == "each":
        raise UserError(f"--captions is 'each'; {suite} takes one text a picture: whole or first")
    found = next((known for known in CAPTIONS if known == given), None)
    if given is not None and found is None:
        raise UserError(f"--captions is {given!r}; allowed are {', '.join(CAPTIONS)}")
    return found or fixed.get(suite, "whole")
