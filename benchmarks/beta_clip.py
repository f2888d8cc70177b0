"""beta-CLIP against its controls: the same pairs, the same encoders, three seeds of each setting, measured.

    GRAINLINE_DATA=... python -m benchmarks.beta_clip OUT [--minutes 90] [--jobs 2]

It trains and measures, two runs side by side with a thread each, until its time is over; start it
as often as you like, it goes on. OUT/runs.jsonl gets a line for every run. For each seed and set there is a
CLIP from scratch, and every other run begins with it and sees as many pairs as all others. Settings stand in
the order of their worth, all seeds of one together; those that found no time are named at the end. Tables and
predictions: benchmarks/beta_clip_tables.py.
"""

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.study import SECONDS, Folder, arguments, data_folder, work
from grainline.training.recipe import read_recipe

SCENES = 8000  # images to train on
BATCH = 64  # images, which are one group of beta-CAL
STEPS = {"scenes": (240, 200), "openstax": (200, 100)}  # from scratch, with twice the batch; tuned
HELD_OUT = 300  # scenes
BETAS = (0.5, 0.0, 1.0, 0.25)


class Setting(NamedTuple):
    """One way to train on one set."""

    data: str  # openstax or scenes
    name: str
    model: dict[str, Any]  # fields of beta-CLIP
    texts: dict[str, Any]  # beside the caption
    method: str = "beta_clip"

    @property
    def key(self) -> str:
        return f"{self.data}-{self.name}"


SIX: dict[str, Any] = {"sentences": 5}
SIXTEEN: dict[str, Any] = {"sentences": 5, "phrases": {"most": 10}}


def betas(data: str, beta: float) -> list[Setting]:
    return [Setting(data, f"{form}-{beta:g}", {"form": form, "beta": beta}, SIX) for form in ("ce", "bce")]


def controls(data: str) -> list[Setting]:
    """The CLIP that all begin with, and the same one tuned on whole captions."""
    return [Setting(data, name, {}, {}, "clip") for name in ("clip", "k1")]


SETTINGS = [
    *controls("scenes"),
    *(setting for beta in BETAS for setting in betas("scenes", beta)),
    *controls("openstax"),
    *(setting for beta in BETAS[:2] for setting in betas("openstax", beta)),
    Setting("scenes", "unconditioned", {}, SIX, "clip"),
    Setting("scenes", "ce-0.5-k16", {"beta": 0.5}, SIXTEEN),
    Setting("scenes", "ce-0.5-no-norm", {"beta": 0.5, "input_norm": False}, SIX),
    Setting("scenes", "bce-0.5-k16", {"form": "bce", "beta": 0.5}, SIXTEEN),
    *(setting for beta in BETAS[2:] for setting in betas("openstax", beta)),
    Setting("scenes", "bce-1-others", {"form": "bce", "beta": 1.0, "others": {"sentences": 5}}, SIX),
    Setting("scenes", "ce-1-others", {"beta": 1.0, "others": {"sentences": 5}}, SIX),
    Setting("scenes", "bce-0.5-rows", {"form": "bce", "beta": 0.5, "divisor": "rows"}, SIX),
    Setting("scenes", "calibrated", {"beta": 0.75, "decay": 0.05}, SIX),
]


def run(folder: Folder, setting: Setting, seed: int) -> None:
    """Train and measure one run."""
    key = f"{setting.key}-{seed}"
    if setting.name != "clip":
        base = Setting(setting.data, "clip", {}, {}, "clip")
        folder.train(f"{base.key}-{seed}", recipe(folder, base, seed), base.data)
    place = folder.train(key, recipe(folder, setting, seed), setting.data)
    told: dict[str, list[float]] = {}
    for name, asked in measurements(setting).items():
        found = folder.measure(key, name, held_out(folder, name), *asked)
        told |= {f"{name} {metric}": value for metric, value in found.items()}
    steps, batch = length(setting)
    folder.add(
        {
            "run": key, "setting": setting.name, "data": setting.data, "seed": seed, "batch": batch,
            "pairs": steps * batch, "trained_s": float((place / SECONDS).read_text()), "metrics": told,
        }
    )  # fmt: skip


def length(setting: Setting) -> tuple[int, int]:
    """Steps and batch."""
    scratch, tuned = STEPS[setting.data]
    return (scratch, 2 * BATCH) if setting.name == "clip" else (tuned, BATCH)


def measurements(setting: Setting) -> dict[str, tuple[str, ...]]:
    """Names of measurements with the arguments of the command that makes them."""
    out = {f"retrieval on {setting.data}": ("--suite", "retrieval")}
    if setting.data == "scenes":
        out["regions on scenes"] = ("--suite", "fg-ovd")
    if setting.method == "beta_clip":
        out[f"similarity on {setting.data}"] = ("--suite", "similarity")
        conditioned = ("--suite", "retrieval", "--scoring", "conditioned")
        out[f"conditioned retrieval on {setting.data}"] = conditioned
        out[f"own captions on {setting.data}"] = ("--suite", "own-caption")
    return out


def held_out(folder: Folder, name: str) -> str:
    """What a measurement is made on."""
    if name.endswith("openstax"):
        return str(folder.held_out("openstax"))
    return f"scenes:dev?count={HELD_OUT}&size=64"


def recipe(folder: Folder, setting: Setting, seed: int) -> Path:
    """The recipe of a run, as a file."""
    name = "clip/patches" if setting.data == "scenes" else "clip/long_captions"
    values = read_recipe(name, []).model_dump(mode="json")
    steps, batch = length(setting)
    optimizer = values["train"]["optimizer"]
    if setting.data == "openstax":
        values["model"]["image"] |= {"pool": "class", "patches": "values"}
    values["data"]["texts"] = {"captions": "whole", **setting.texts}
    if setting.name != "clip":
        values["begin"] = str(folder.out / "runs" / f"{setting.data}-clip-{seed}" / "last")
        optimizer |= {"lr": 5.0e-4, "schedule": {"kind": "cosine", "warmup": 20}}
    if setting.method == "beta_clip":
        values["method"] = "beta_clip"
        values["model"] |= {"input_norm": True} | setting.model
        own = {"pattern": r"pool(_scale)?\..*", "lr": 4.0, "schedule": {"kind": "cosine", "warmup": 0}}
        optimizer["rules"] = [own, {"pattern": ".*"}]
    return folder.recipe(f"{setting.key}-{seed}", values, steps=steps, batch=batch, seed=seed)


def main() -> None:
    args = arguments(__doc__)
    folder = Folder(args.out, data_folder())
    folder.draw(SCENES)
    work(folder, SETTINGS, run, args)


if __name__ == "__main__":
    main()
