"""The model card: the README.md of a model in the form of the Hugging Face hub.

It begins with metadata in YAML: library, task, tags, licence, data sets, the checkpoints underneath, and
`model-index`, the results by task, data and metric. Then it says in words what the model is, how it is used,
what it was trained on, what was measured under which settings, and its limits. Other people read it: of a
path it has the last part alone.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grainline import __version__
from grainline.config import HUB_NAME
from grainline.errors import UserError, escape_controls
from grainline.files import read_plain, without_folders
from grainline.methods import METHODS
from grainline.report.page import render

TASKS = {  # of suites -> as the hub names tasks, where it has the task
    "retrieval": "image-text-retrieval",
    "long-retrieval": "image-text-retrieval",
    "zeroshot": "zero-shot-image-classification",
    "referring": "image-segmentation",
}
ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")


def model_card(
    model: Any,
    name: str,
    results: Sequence[Mapping[str, Any]] = (),
    licence: str | None = None,
    datasets: Sequence[str] = (),
) -> str:
    """The model card as Markdown.

    model     a `Model`
    name      of the model on the hub
    results   as `read_result` returns them; without any, the last validation of the run is taken
    licence   identifier of the licence as the hub has it; None leaves the field out, and says so
    datasets  what the model was trained on, by the names of the hub

    Raises UserError for a data set that is no name of the hub, which would refuse the card.
    """
    from huggingface_hub import EvalResult, ModelCardData

    for one in datasets:
        if HUB_NAME.fullmatch(one) is None:
            raise UserError(f"{one!r} is no data set of the Hugging Face hub; write it as owner/name")
    measured = list(results or _validation(model.run))
    evaluations = [
        EvalResult(
            task_type=TASKS.get(result["suite"], result["suite"]),
            task_name=result["suite"],
            dataset_type=_identifier(_data(result)),
            dataset_name=_data(result),
            dataset_config=", ".join([result["suite"], *_ways(result)]),  # another way is another entry
            metric_type=_identifier(metric["name"]),
            metric_name=metric["name"] + (" (%)" if metric.get("unit") == "%" else ""),
            metric_value=round(metric["value"], 4),
        )
        for result in measured
        for metric in result["metrics"]
    ]
    method = model.description.method
    training = {} if model.run is None else training_facts(model.run)
    header = ModelCardData(
        license=licence,
        library_name="grainline",
        pipeline_tag="zero-shot-image-classification",
        tags=["image-text-retrieval", "long-captions", method.rpartition(":")[2].lower()],
        base_model=_checkpoints(model.description.config) or None,
        datasets=list(datasets) or None,
        model_name=name,
        eval_results=evaluations or None,
    )
    return str(
        render(
            "card.md",
            header=header.to_yaml(),
            name=name,
            method=method,
            about=_about(model),
            arguments=", trust_code=True" if ":" in method else "",
            version=__version__,
            facts={key: without_folders(x) for key, x in model.facts().items() if key != "device"},
            trained=None if model.run is None else training,
            measured=[(_heading(one), one["metrics"], _remarks(one)) for one in measured],
            limits=list(_limits(model, measured, training)),
            licence=licence,
        )
    )


def read_result(path: Path, fingerprint: str) -> dict[str, Any]:
    """A JSON file of `grainline evaluate`. Raises UserError for one of another model."""
    try:
        values = json.loads(read_plain(path))
        model, other = values["settings"]["model"], values["settings"].get("fingerprint")
        _heading(values), list(values["metrics"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no result of `grainline evaluate --json`: {error}") from None
    if other != fingerprint:
        raise UserError(f"{path} was measured with another model, {model}; give results of this one")
    return dict(values)


def training_facts(run: Path) -> dict[str, str]:
    """Data, steps and starting point of a run, from its recipe.yaml. Empty without a recipe."""
    try:
        recipe = yaml.safe_load(read_plain(run / "recipe.yaml"))
        data, train, model = recipe["data"], recipe["train"], recipe["model"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return {}
    steps, batch = train.get("max_steps"), train.get("global_batch_size")
    sides = [model.get("pretrained"), *(model.get(side, {}).get("pretrained") for side in ("image", "text"))]
    started = recipe.get("init_from") or ", ".join(dict.fromkeys(filter(None, sides))) or "random weights"
    return {
        "data": ", ".join(map(without_folders, data.get("paths", ()))),
        "budget": f"{steps:,} steps of {batch:,} images" if steps and batch else "",
        "starts from": without_folders(str(started)),
        "seed": str(train.get("seed", 0)),
        "weights": averaged(recipe),
    }


def averaged(recipe: Mapping[str, Any]) -> str:
    """The average of weights that a recipe.yaml names, in words; "" for the weights of one run.

    >>> averaged({"average": {"/home/me/runs/tuned": 0.25, "its start": 0.75}})
    'the average of tuned (0.25) and its start (0.75)'
    """
    parts = [f"{without_folders(path)} ({share:.4g})" for path, share in recipe.get("average", {}).items()]
    return f"the average of {', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def weakness(run: Path | None) -> str:
    """A sentence that a run is near chance, by its last validation; "" where it is better, or unknown."""
    last = last_validation(run)
    rank, images = last.get("metrics", {}).get("text to image median rank", 0), last.get("images") or 0
    near = f"near chance: it finds the right image of its validation data at rank {rank:,g} of {images:,}"
    return f"This run is {near} (median). What it shows of a text means little." * (0 < images < 4 * rank)


def last_validation(run: Path | None) -> dict[str, Any]:
    """The line of the log about the last validation of a run; empty without one."""
    if run is None or not (run / "log.jsonl").is_file():
        return {}
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return next((line for line in reversed(lines) if line["kind"] == "validation"), {})


def _validation(run: Path | None) -> list[dict[str, Any]]:
    """The last validation of a run in the form of a result, without intervals."""
    last = last_validation(run)
    metrics = [{"name": name, "value": value} for name, value in last.get("metrics", {}).items()]
    where = f"the validation data, at step {last.get('step')}, recalls in %"
    return [{"suite": "retrieval", "data": {"path": where}, "metrics": metrics}] if metrics else []


def _data(result: Mapping[str, Any]) -> str:
    return without_folders(result["data"]["path"])


def _remarks(result: Mapping[str, Any]) -> list[str]:
    return [escape_controls(without_folders(note)) for note in result.get("notes", ())]


def _ways(result: Mapping[str, Any]) -> list[str]:
    """The protocol of a result, how texts were read and how pairs were scored."""
    values = {"protocol": result.get("protocol"), **result.get("settings", {})}
    return [f"{name} {values[name]}" for name in ("protocol", "captions", "scoring") if values.get(name)]


def _heading(result: Mapping[str, Any]) -> str:
    """The suite, the data and the settings of a result, in words."""
    sizes = [f"{result['data'][what]:,} {what}" for what in ("images", "texts") if what in result["data"]]
    day = str(result.get("time", ""))[:10]
    about = "; ".join(filter(None, (", ".join(sizes), ", ".join(_ways(result)), day)))
    return escape_controls(f"{result['suite']} on {_data(result)}" + (f" ({about})" if about else ""))


def _identifier(name: str) -> str:
    """A name as the hub has those of metrics and data sets.

    >>> _identifier("text to image R@1"), _identifier("dev-0000.tar?count=5")
    ('text_to_image_recall_at_1', 'dev_0000_tar_count_5')
    """
    return re.sub(r"\W+", "_", name.lower().replace("r@", "recall_at_")).strip("_") or "unnamed"


def _checkpoints(config: Any) -> list[str]:
    """The checkpoints of the hub that an architecture comes from; files of this machine are left out."""
    sides = (config, *(getattr(config, side, None) for side in ("image", "text")))
    names = dict.fromkeys(str(getattr(side, "pretrained", None) or "") for side in sides)
    return [name for name in names if "/" in name and HUB_NAME.fullmatch(name) and not Path(name).exists()]


def _about(model: Any) -> str:
    """The first sentences of the file of a method, with the addresses of its papers; "" for outside ones."""
    text = sys.modules[type(model.method).__module__].__doc__ or ""
    if model.description.method not in METHODS:
        return ""
    first, second = [" ".join(part.split()) for part in text.split("\n\n")[:2]]
    source = re.sub(r" In \w+ steps:.*", "", second)
    return first + " " + ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", source)


def _limits(model: Any, results: Sequence[Mapping[str, Any]], training: Mapping[str, str]) -> Iterator[str]:
    """Sentences about what a model cannot do, for a reader who does not know it."""
    if model.weakness:
        yield model.weakness
    if model.method.chunking is None:
        yield f"A text, or a part of one that is read by itself, is cut after {model.method.context} tokens."
    if model.transform.resize != "squash":
        yield "Of an image that is no square the model reads the middle."
    if training.get("data"):
        yield f"It learnt from {training['data']}; on images and texts of another kind it may be worse."
    if results:
        yield "The numbers are of the data named, and of one run: other data and other seeds give others."
    if not model.method.has_layout:
        yield "It does not show where in an image a text is."
