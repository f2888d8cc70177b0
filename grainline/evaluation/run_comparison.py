"""`grainline.compare`: two results, or models that are measured on sets by suites."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grainline.data.open_source import content_digest, open_data, register, takes_images
from grainline.data.record import Source
from grainline.errors import UserError, checked, suggestion
from grainline.evaluation.compare import Differences
from grainline.evaluation.compare import compare as compare_results
from grainline.evaluation.comparison import Column, Comparison, Entrant
from grainline.evaluation.comparison_page import write_cards, write_comparison_html
from grainline.evaluation.comparison_results import Describe, Facts, Task, facts_of, place_of, results_of
from grainline.evaluation.comparison_statistics import Outcome, assembled, refuse_unknown
from grainline.evaluation.costs import cost_of
from grainline.evaluation.encode import Captions
from grainline.evaluation.result import Result, writable
from grainline.evaluation.score import MEMORY
from grainline.evaluation.suite import MAX_CORRUPT, Settings, Suite, load_suite
from grainline.evaluation.training_overlap import overlaps_of
from grainline.progress import progress

NAMED = re.compile(r"([\w .@+-]+)=(.+)", re.DOTALL)
Strings = Sequence[str]


@checked()
def compare(  # noqa: PLR0913 - each is an option of the command; half is signature and docstring
    *models: Any,
    data: Any = None,
    suite: str | Strings = "retrieval",
    changes: Strings = (),
    captions: str | Strings = (),
    measures: str | Strings = (),
    base: str | None = None,
    results: str | Path | None = None,
    images: str | None = None,
    batch_size: int = 64,
    seed: int = 0,
    max_corrupt: float = MAX_CORRUPT,
    memory: int = MEMORY,
    json: str | Path | None = None,
    out: str | Path | None = None,
    descriptions: Describe = lambda model, path: None,  # noqa: ARG005
    skip_overlap: bool = False,
    say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
    show_progress_bar: bool | None = None,
) -> Comparison | Differences:
    """Compare models on data; without data two results, or their files: the later one, then the earlier one.

    models    run folders, weights inside one, or checkpoints: folder, file or name; NAME=PATH names one, and
              NAME=RUN,RUN,RUN are several seeds of one. Vectors of another program are files joined by +,
              IMAGES.npy+TEXTS.npy+PAIRS.jsonl or BOTH.npz+PAIRS.jsonl, or a folder of `grainline encode`;
              pairs name images and texts as the set does
    data      sets, each measured by itself: paths, patterns, NAME=PATH, or {name: data as evaluate takes it}
    suite     one of `grainline suites`, or several
    changes   options of the suites: "probes.resize=squash"
    captions  one way to read the captions of a record, or several, each for the suites that allow it
    measures  metrics that differences and ranks are about (default: those that head a suite's page, rSum)
    base      name of the model that differences are measured from (default: the first)
    results   folder for the result of each model, set and suite, where a stopped comparison goes on (default:
              beside the page, or the JSON file); cards/NAME/README.md there is a model card of each model
    images    folder of the images, for data that name them by path
    batch_size   images and texts encoded at a time
    seed      of the bootstrap
    max_corrupt  share of samples that may be skipped
    memory    bytes of a tile of scores
    json      file for the whole comparison
    out       file for the page: values, differences, ranks, costs, and the texts on which models disagree
    descriptions  of the images, for a model that reads them
    skip_overlap  do not look for images of the sets in the training data, which reads all of both once
    say       is called with a line before each measurement

    Raises UserError, before anything is measured, for models and data that cannot be loaded. What a model
    cannot do is a cell with its reason.
    """
    files = [Path(file) for file in (json, out) if file is not None]
    if data is None:
        return _two_results(models, files)
    if len({*files}) < len(files):
        raise UserError(f"the page and the JSON file cannot both be {out}; name two files")
    for file in files:
        writable(file)
    paths, base = _named_models(models, base)
    suites = _suites(_several(suite), changes)
    modes = _modes(suites, _several(captions))
    facts = _all_facts([path for some in paths.values() for path in some], descriptions)
    for name, some in paths.items():
        if len(methods := {facts[path].entrant.facts.get("method", "vectors") for path in some}) > 1:
            raise UserError(f"{name} has runs of {', '.join(sorted(methods))}; seeds are runs of one method")
    size = max(one.size for one in facts.values()) or None  # of drawn images: the same for all models
    settings = Settings(None, batch_size, max_corrupt, seed, memory=memory).checked()
    sources = _sources(data, images, size)
    tasks = [
        Task(name, source, fingerprint, one, settings._replace(captions=mode))
        for name, source in sources.items()
        for fingerprint in [content_digest(source)]
        for one, mode in modes
    ]
    with TemporaryDirectory() as temporary:
        beside = out or json
        keep = results or (beside and f"{Path(beside).with_suffix('')}.results")
        folder = Path(keep or temporary)
        writable(folder / "x.json")
        by_path = _measure(facts, tasks, folder, descriptions, _several(measures), say, show_progress_bar)
        rows = [
            {name: _outcome([by_path[path][i] for path in some], bool(keep)) for name, some in paths.items()}
            for i in range(len(tasks))
        ]
        entrants = [
            _entrant(name, [facts[path] for path in some], [row[name] for row in rows])
            for name, some in paths.items()
        ]
        overlaps = () if skip_overlap else overlaps_of(entrants, sources, folder, say)
    comparison = assembled(entrants, [_column(task) for task in tasks], rows, base, _several(measures))
    comparison = comparison._replace(overlaps=overlaps)
    if json is not None:
        comparison.save(json)
    if keep:
        write_cards(comparison, folder / "cards")
    if out is not None:
        write_comparison_html(out, comparison, sources, descriptions)
    return comparison


def _two_results(models: Sequence[Any], files: Sequence[Path]) -> Differences:
    """The differences of two results. Raises UserError for another number of them, and for files."""
    if len(models) != 2:
        how = "models need data: --data PATH... (data=... in Python)"
        raise UserError(f"two results of evaluate, or their files, are compared as they are; {how}")
    if files:
        raise UserError(
            f"two results give a table, not {files[0]}; a page of models needs data: --data PATH..."
        )
    return compare_results(*models)


def _named_models(models: Sequence[Any], base: str | None) -> tuple[dict[str, tuple[str, ...]], str]:
    """The paths of each model by its name, and the name of the base. Raises UserError for an unknown base."""
    if any(not isinstance(one, str | Path) for one in models):
        raise UserError("with data, models are paths or names; save a model first")
    paths = {name: _seeds(path) for name, path in named(list(map(str, models))).items()}
    base = next(iter(paths), "") if base is None else base
    if base not in paths:
        raise UserError(f"no model {base!r}{suggestion(base, paths)}; there are {', '.join(paths) or 'none'}")
    return paths, base


def named(values: Strings) -> dict[str, str]:
    """The parts behind `NAME=` by their names; a value without a name has the end of it that no other has.

    >>> named(["runs/a/best", "runs/b/best", "small=runs/c"])
    {'a/best': 'runs/a/best', 'b/best': 'runs/b/best', 'small': 'runs/c'}
    """
    matches = [None if os.path.exists(value) else NAMED.fullmatch(value) for value in values]
    paths = [match[2] if match else value for match, value in zip(matches, values, strict=True)]
    longest = max((len(Path(path).parts) for path in paths), default=0)
    names = list(paths)
    for depth in range(longest, 0, -1):  # the shortest ends that differ
        ends = ["/".join(Path(path).parts[-depth:]) for path in paths]
        names = ends if len({*ends}) == len({*paths}) else names
    out: dict[str, str] = {}
    for match, end, path in zip(matches, names, paths, strict=True):
        name = match[1] if match else end
        if name in out:
            raise UserError(f"{out[name]} and {path} have the same name, {name}; name them NAME=PATH")
        out[name] = path
    return out


def _several(value: str | Strings) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _seeds(path: str) -> tuple[str, ...]:
    """The runs of a model, or the one path that it has."""
    seeds = (path,) if os.path.exists(path) else tuple(path.split(","))
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{path} names a run twice; seeds are different runs")
    return seeds


def _suites(names: Strings, changes: Strings) -> list[Suite[Any]]:
    """Suites with their options. Raises UserError for an option of none, or of one of several."""
    ours = {name: [x for x in changes if x.startswith(f"{name}.")] for name in names}
    rest = [x for x in changes if not any(x in own for own in ours.values())]
    if rest and len(names) != 1:
        raise UserError(f"--set {rest[0]}: write SUITE.{rest[0]}, with one of {', '.join(names)}")
    return [load_suite(name, [*own, *rest]) for name, own in ours.items()]


def _modes(suites: Sequence[Suite[Any]], captions: Strings) -> list[tuple[Suite[Any], Captions | None]]:
    """Each suite with the ways to read captions that it allows, or None. UserError for one of no suite."""
    out: list[tuple[Suite[Any], Captions | None]] = []
    for suite, mode in product(suites, captions):
        with suppress(UserError):
            out.append((suite, suite.choose_captions(mode)))
    for mode in sorted({*captions} - {allowed for _, allowed in out}):
        suites[0].choose_captions(mode)
    return out + [(one, None) for one in suites if all(one is not suite for suite, _ in out)]


def _all_facts(paths: Strings, describe: Describe) -> dict[str, Facts]:
    """The facts of each path. Raises UserError that names all that cannot be loaded."""
    facts, wrong = {}, list[str]()
    for path in dict.fromkeys(paths):
        try:
            facts[path] = facts_of(path, describe)
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("; ".join(wrong))
    return facts


def _sources(data: Any, images: str | None, size: int | None) -> dict[str, Source]:
    """The sets by their names. Raises UserError for what cannot be opened, and for none."""
    if isinstance(data, Mapping):
        paths = {str(name): register(value) for name, value in data.items()}
    else:
        paths = {name: [path] for name, path in named(register(data)).items()}
    if not paths:
        raise UserError('no data; give --data PATH..., such as --data photos/ (data="photos/" in Python)')
    by_path = {name: any(map(takes_images, several)) for name, several in paths.items()}
    return {  # where none of them takes the folder, opening one raises the error
        name: open_data(
            several, size=size, images=images if by_path[name] or not any(by_path.values()) else None
        )
        for name, several in paths.items()
    }


def _measure(
    facts: Mapping[str, Facts],
    tasks: Sequence[Task],
    folder: Path,
    describe: Describe,
    measures: Strings,
    say: Callable[[str], None],
    show: bool | None,
) -> dict[str, list[tuple[Path, Result | str]]]:
    """The results of all paths for all tasks, with their files. say: gets a line for each measurement"""
    places = {path: [place_of(folder, path, one, task) for task in tasks] for path, one in facts.items()}
    total, number = len(facts) * len(tasks), 0
    missing = sum(not known for row in places.values() for _, known in row)
    if missing < total:
        say(f"{total - missing} of {total} results are in {folder}")
    out = {}
    with progress("comparing", show=show) as bar:
        for path, row in places.items():

            def watch(task: Task, path: str = path) -> Callable[[int, int], None]:
                nonlocal number
                number += 1
                say(f"{number} of {missing}: {path} on {task.title}")
                return bar

            results = results_of(path, facts[path], row, tasks, describe, watch)
            if not any(isinstance(one, str) for one in results):  # else others may have more metrics
                refuse_unknown(measures, [one for one in results if isinstance(one, Result)])
            out[path] = [*zip((place for place, _ in row), results, strict=True)]
    return out


def _outcome(some: Sequence[tuple[Path, Result | str]], keep: bool) -> Outcome:
    """The results of the seeds of a model, or the reason of the first that has none."""
    reasons = [result for _, result in some if isinstance(result, str)]
    if reasons:
        return Outcome(reason=reasons[0])
    results = tuple(result for _, result in some if isinstance(result, Result))
    return Outcome(results, tuple(str(place) for place, _ in some) if keep else ())


def _entrant(name: str, seeds: Sequence[Facts], cells: Sequence[Outcome]) -> Entrant:
    """A model from the facts of its seeds; method, parameters and training data are those of the first."""
    counts = [one.settings["cost"] for cell in cells for one in cell.results if "cost" in one.settings]
    paths, fingerprints = (
        tuple(x for seed in seeds for x in getattr(seed.entrant, field))
        for field in ("paths", "fingerprints")
    )
    return seeds[0].entrant._replace(name=name, paths=paths, fingerprints=fingerprints, cost=cost_of(counts))


def _column(task: Task) -> Column:
    options, mode = task.suite.options.model_dump(mode="json"), task.settings.captions or ""
    return Column(task.title, task.set, task.source.path, task.suite.key, options, mode, 0, 0, ())
