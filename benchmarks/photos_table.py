"""The fair table: every method over the same frozen towers, sets, images and steps, for `benchmarks.study`.

The towers are those of `photos/starter`; what they give is cached once for all runs of a set. All methods
have the same width, dropout before the projections, batch, steps and optimizer, and read the same images;
each brings its loss, its score, and what it makes of image cells and of words. A sub-caption is a sentence,
so that it is in the cache as well. A method tries three rates, and another value of each of two settings that
its paper names, one change at a time, on a part of Flickr8k train-0002 that is held out from training; they
serve for the other sets too, where nothing is tried.
"""

import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.study import Job, Line, Measure, chosen

SIZE, CHOICE = (64, 300), (64, 164)  # batch and steps, also where settings are chosen
SECONDS = 180  # of a training in the stage `time`
HELD_OUT = 500  # images that settings are chosen on
SCENES = "scenes:train?count=6000&size=130", "scenes:dev?count=500&size=130"

IMAGE = {"pretrained": "pip:efficientnet-lite2", "size": 260, "resize": "squash", "tune": "frozen"}
TEXT = {"pretrained": "pip:all-minilm-l6-v2", "tune": "frozen"}
RATES = {"train.optimizer.lr": (1e-3, 5e-4, 2e-3)}  # the first value of a setting is the usual one
GROUPS = {"groups": 4, "width": 384, "depth": 2, "later": 1, "heads": 6, "context": 256, "encoder": TEXT}
SCRATCH = {"width": 64, "depth": 1, "heads": 2}

FIVE = {"captions": "random", "per_image": 5}
WHOLE, ALONE = {"captions": "whole"}, {"max_sentences_per_chunk": 1}
READS: dict[str, dict[str, dict[str, Any]]] = {  # texts of an image in a step, on Flickr8k and elsewhere
    "texts": {"flickr8k": FIVE, "": WHOLE},  # each as one, and the long ones whole
    "one": {"flickr8k": {"captions": "random"}, "": WHOLE},
    "sampled": {"": {"per_image": 0, "sampled_captions": 5} | ALONE},
    "chunks": {"flickr8k": {"chunks": 5} | ALONE, "": {"chunks": 8} | ALONE},
    "grains": {"": {"captions": "whole", "sentences": 5}},
    "both": {"flickr8k": FIVE, "": WHOLE | {"sentences": 2}},
}


class Row(NamedTuple):
    """A method, or a control, with what it reads and the settings that are tried."""

    method: str
    model: Mapping[str, Any] = {}
    reads: str = "texts"
    tries: Mapping[str, Sequence[Any]] = {}
    like: str = ""  # it has the settings of this row where it has none of its own


ROWS = {
    "clip": Row("clip", {"scale": 20}, tries={
        "model.scale": (20, 14.3), "train.optimizer.weight_decay": (0.05, 0.2)}),
    "mosaic": Row("mosaic", {"scale": 20}, "both", {
        "model.whole": (0.3, 0.5), "model.temperature": (0.05, 0.1)}),
    "maxsim": Row("maxsim", {"scale": 20}, tries={
        "model.sharpness": (10, 30), "model.coarse": (0.1, 1)}),
    "beta_clip": Row("beta_clip", {"scale": 20}, "grains", {
        "model.beta": (0.5, 0.25), "model.pooled": (1, 2)}),
    "himo": Row("himo", {"scale": 20, "smoothing": 0.1}, tries={
        "model.threshold": (0.9, 0.6), "model.component": (1, 2)}),
    "caft": Row("caft", {"composer": {"depth": 1}, "scoring": "conditioned"}, "chunks", {
        "model.alpha": (0.3, 0.5), "model.bias": (-5, -10)}),
    "flair": Row("flair", {}, "sampled", {
        "model.bias": (-5, -10), "data.texts.sampled_captions": (5, 3)}),
    "seps": Row("seps", {"branches": "sparse"}, "one", {
        "model.keep_ratio": (0.5, 0.8), "model.aggregation_ratio": (0.4, 0.6)}),
    "laps": Row("laps", {}, "one", {
        "model.keep_ratio": (0.5, 0.8), "model.aggregation_ratio": (0.4, 0.6)}),
    "tgt": Row("tgt", {"text": GROUPS}, "one", {
        "model.text.groups": (4, 8), "model.reconstruction": (1, 0.1)}),
    "siglip": Row("siglip", {}, tries={
        "model.bias": (-5, -10), "model.scale": (10, 20)}),
    "vse": Row("vse", {}, "one", {
        "model.margin": (0.2, 0.1), "model.hardest_after": (None, "never")}),
    "clip_one": Row("clip", {}, "one", like="clip"),
    "clip_both": Row("clip", {}, "both", like="clip"),
    "clip_sentences": Row("clip", {"scoring": "sentences"}, like="clip"),
    "random": Row("clip", {"image": SCRATCH | {"size": 130, "patch": 26}, "dropout": 0,
                           "text": SCRATCH | {"vocab": 2000, "context": 256}}),
    "mosaic_no_roots": Row("mosaic", {"roots": False}, "both", like="mosaic"),
    "mosaic_no_words": Row("mosaic", {"visual_words": 0}, "both", like="mosaic"),
    "mosaic_no_text_words": Row("mosaic", {"text_words": 0}, "both", like="mosaic"),
    "mosaic_no_network": Row("mosaic", {"hidden": 0}, "both", like="mosaic"),
    "mosaic_no_whole": Row("mosaic", {"whole": 0}, "both", like="mosaic"),
    "mosaic_places": Row("mosaic", {"places": True, "text_words": 0}, "both", like="mosaic"),
}  # fmt: skip
"""The methods; controls, as CLIP with what Mosaic reads, and random towers; Mosaic with parts out, or in."""

TRAINED = "flickr8k", "openstax", "scenes"


def recipe(row: str, data: str, size: tuple[int, int]) -> dict[str, Any]:
    """The recipe of a row on a set, with the usual settings. size: batch, and steps"""
    one, (reads, random) = ROWS[row], (READS[ROWS[row].reads], row == "random")
    model: dict[str, Any] = {"image": IMAGE, "text": TEXT, "width": 512, "dropout": 0.5}
    model |= {**(ROWS[one.like].model if one.like else {}), **one.model}
    if one.reads == "chunks":
        model["chunks"] = reads.get(data, reads[""])["chunks"]
    optimizer = {"weight_decay": 0.05, "schedule": {"kind": "cosine", "warmup": 50}}
    rate = 1.0e-9 if random else RATES["train.optimizer.lr"][0]
    return {
        "method": one.method,
        "model": model,
        "data": {
            "texts": reads.get(data, reads[""]), "crop": None, "workers": 0,
            "features": None if random else "auto",
        },
        "train": {
            "max_steps": 1 if random else size[1], "global_batch_size": size[0],
            "optimizer": optimizer | {"lr": rate},
        },
    }  # fmt: skip


def sources(data: str, folder: Path, choose: bool, out: Path) -> tuple[str, ...]:
    """The training data of a set. choose: without those that settings are chosen on"""
    if data == "scenes":
        return tuple(map(str, sorted((out / "sets" / "scenes-train").glob("*.tar"))))
    return tuple(sorted(map(str, (folder / data).glob("train-*.tar")))[: 2 if choose else None])


def measures(data: str, folder: Path, choose: bool, out: Path) -> tuple[Measure, ...]:
    """The sets that a run is measured on. choose: those that settings are chosen on"""
    captions = ("each", "whole") if data == "flickr8k" else ("whole",)
    sets = out / "sets"
    if choose:
        return (Measure(f"{data}-held-out", str(sets / f"{data}-held-out.tar"), captions=captions),)
    suites: tuple[str, ...] = ("retrieval", "monotonicity", "stability")
    if data == "scenes":
        dev = sets / "scenes-dev" / "data-000000.tar"
        return (Measure(data, str(dev), (*suites, "probes", "referring", "phrases"), captions),)
    return (Measure(data, str(folder / data / "dev-0000.tar"), suites, captions),)


def prepare(out: Path, data: Path) -> None:
    """Draw the scenes, and write what is held out, once."""
    sets = out / "sets"
    sets.mkdir(parents=True, exist_ok=True)
    for part in SCENES:
        folder = sets / f"scenes-{part.partition('?')[0][len('scenes:') :]}"
        if not (folder / "data-000000.tar").is_file():
            command = [sys.executable, "-m", "grainline", "-q", "data", "scenes", part, "--out", str(folder)]
            subprocess.run(command, check=True)
    last = max((data / "flickr8k").glob("train-*.tar"))
    first_samples(last, sets / "flickr8k-held-out.tar", HELD_OUT)


def first_samples(path: Path, out: Path, number: int) -> None:
    """Copy the first samples of a tar, once."""
    if out.is_file():
        return
    partial = out.with_suffix(".partial")
    with tarfile.open(path) as tar, tarfile.open(partial, "w") as target:
        keys = [*dict.fromkeys(member.name.rpartition(".")[0] for member in tar.getmembers())][:number]
        for member in tar.getmembers():
            if member.name.rpartition(".")[0] in keys:
                target.addfile(member, tar.extractfile(member))
    partial.rename(out)


def jobs(stage: str, out: Path, folder: Path, seeds: Sequence[int], lines: Sequence[Line]) -> list[Job]:
    """All runs of a stage: every row with the first seed on the first set, then the other sets and seeds."""
    choose = stage == "choose"
    made = []
    for seed in seeds[:1] if choose else seeds:
        for data in TRAINED[: 1 if choose else None]:
            files, measured = sources(data, folder, choose, out), measures(data, folder, choose, out)
            size = CHOICE if choose else SIZE
            for name, row in ROWS.items():
                if choose:
                    variants = tried(row) if row.tries else {}
                else:
                    best, own = chosen(lines, TRAINED[0], row.like or name), row.model if row.like else {}
                    variants = {"": {key: x for key, x in best.items() if key.split(".")[-1] not in own}}
                if stage == "time":
                    variants[""]["train.max_steps"] = steps_in_time(lines, data, name)
                job = Job(stage, data, name, seed, recipe(name, data, size), files, measured)
                made += [job._replace(variant=key, changes=x) for key, x in variants.items()]
    return sorted(made, key=lambda job: job.variant not in ("", "usual"))


def tried(row: Row) -> dict[str, dict[str, Any]]:
    """The changes of a recipe by the name of a variant: all usual values, then one other value at a time."""
    settings = RATES | dict(row.tries)
    usual = {name: values[0] for name, values in settings.items()}
    out = {"usual": usual}
    for name, values in settings.items():
        out |= {f"{name.rpartition('.')[2]}_{value}": usual | {name: value} for value in values[1:]}
    return out


def steps_in_time(lines: Sequence[Line], data: str, row: str) -> int:
    """The number of steps in SECONDS of training, by the line of `final` that others disturbed least."""
    own = [x for x in lines if (x["stage"], x["set"], x["row"]) == ("final", data, row) and x["steps"] > 1]
    if not own:
        return SIZE[1]
    return round(SECONDS * max(x["steps"] / x["train_s"] for x in own))
