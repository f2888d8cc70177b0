"""CAFT from FLAIR, one component at a time, and its controls: the same pairs, three seeds, measured.

    GRAINLINE_DATA=... python -m benchmarks.caft OUT [--minutes 90] [--jobs 2] [--longer 1] [--only ...]

The ladder is that of table 3 of the paper. It trains and measures, two runs side by side with a thread each,
until its time is over; start it as often as you like, it goes on. OUT/runs.jsonl gets a line for every run.
Every run begins from scratch, sees as many pairs as all others of its set, and as many captions of each
image, out of the same sentences. Settings stand in the order of their worth, all seeds of one together;
those that found no time are named at the end. `--longer 5` gives every run five times as many steps, in an
OUT of its own; some 15 jobs share a GPU well. Tables and predictions: benchmarks/caft_tables.py.
"""

from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.study import SECONDS, Folder, arguments, data_folder, work
from grainline.training.recipe import read_recipe

SCENES = 8000  # images to train on
BATCH = 64
STEPS = {"scenes": 300, "openstax": 200}
HELD_OUT = 300  # scenes on which expressions are shown
ALPHAS = (0.1, 0.3, 0.5, 0.7, 1.0)
SMALL = {"scenes": "caft/scenes", "openstax": "caft/long_captions"}
FLAT = {"scenes": "flair/scenes", "openstax": "flair/long_captions"}


class Setting(NamedTuple):
    """One way to train on one set."""

    data: str  # openstax or scenes
    name: str
    recipe: dict[str, str]  # by set
    changes: tuple[str, ...] = ()
    alphas: bool = False  # whether CAFT++ is measured with several shares of the parts

    @property
    def key(self) -> str:
        return f"{self.data}-{self.name}"


def ladder(data: str) -> list[Setting]:
    """The rows of table 3."""
    image = read_recipe(SMALL[data], []).model["image"]
    cast = yaml.safe_dump(image | {"read": None}, default_flow_style=True, width=10**6).strip()
    return [
        Setting(data, "flair", FLAT),
        Setting(data, "caft", SMALL, alphas=True),
        Setting(data, "textual", SMALL, ("model.image.read=null",)),
        Setting(data, "visual", FLAT, (f"model.image={cast}",)),
        Setting(data, "whole-only", SMALL, ("model.part=0",)),
    ]


SAME_TEXT = (
    "model.chunks=4",
    "data.texts.chunks=4",
    "data.texts.per_image=1",
    "data.texts.sampled_captions=2",
)
SETTINGS = [
    *ladder("scenes"),
    *ladder("openstax"),
    Setting("scenes", "same-text", FLAT, SAME_TEXT),
    Setting("scenes", "one-head", SMALL, ("model.heads=1",)),
    Setting("scenes", "square-grid", SMALL, ("model.image.superpixels.kind=grid",)),
    Setting("scenes", "all-negatives", SMALL, ("model.negatives=all",)),
    Setting("openstax", "same-text", FLAT, SAME_TEXT),
    Setting("openstax", "one-head", SMALL, ("model.heads=1",)),
    Setting("openstax", "square-grid", SMALL, ("model.image.superpixels.kind=grid",)),
    Setting("openstax", "all-negatives", SMALL, ("model.negatives=all",)),
]


class Apart(Folder):
    """The folder of all runs, which leaves the last file of OpenStax for the choice of alpha."""

    def steps(self, name: str) -> int:
        """Of every run on a set."""
        return STEPS[name] * self.longer

    def sources(self, name: str) -> list[Path]:
        found = super().sources(name)
        return found[:-1] if name == "openstax" else found


def run(folder: Apart, setting: Setting, seed: int) -> None:
    """Train and measure one run."""
    key = f"{setting.key}-{seed}"
    place = folder.train(key, recipe(folder, setting, seed), setting.data)
    told: dict[str, list[float]] = {}
    for name, (data, *asked) in measurements(setting).items():
        found = folder.measure(key, name, sources(folder)[data], *asked)
        told |= {f"{name} {metric}": value for metric, value in found.items()}
    folder.add(
        {
            "run": key, "setting": setting.name, "data": setting.data, "seed": seed, "batch": BATCH,
            "pairs": folder.steps(setting.data) * BATCH, "trained_s": float((place / SECONDS).read_text()),
            "metrics": told,
        }
    )  # fmt: skip


def measurements(setting: Setting) -> dict[str, tuple[str, ...]]:
    """Names of measurements, each with its source and the arguments of the command that makes it."""
    data = setting.data
    suite = "long-retrieval" if data == "openstax" else "retrieval"
    out: dict[str, tuple[str, ...]] = {f"retrieval on {data}": (data, "--suite", suite)}
    other = "vectors" if setting.recipe is FLAT else "conditioned"
    out[f"{other} retrieval on {data}"] = (data, "--suite", suite, "--scoring", other)
    if data == "scenes" and setting.name != "whole-only":  # its pooling has learnt nothing
        out["expressions on scenes"] = ("shown", "--suite", "referring")
        out["inactivity on scenes"] = (data, "--suite", "inactivity")
    if setting.alphas:
        for alpha in ALPHAS:
            way = ("--suite", suite, "--scoring", f"conditioned:{alpha:g}")
            out[f"alpha {alpha:g} on {data}"] = (data, *way)
            out[f"alpha {alpha:g}, to choose, on {data}"] = (f"{data}, to choose", *way)
        out[f"alpha 0, to choose, on {data}"] = (f"{data}, to choose", "--suite", suite)
    return out


def sources(folder: Folder) -> dict[str, str]:
    """What is measured on: held out from training, and apart from that what alpha is chosen on."""
    return {
        "scenes": str(folder.held_out("scenes")),
        "openstax": str(folder.held_out("openstax")),
        "shown": f"scenes:dev?count={HELD_OUT}&size=64",
        "scenes, to choose": "scenes:test?count=500&size=64",
        "openstax, to choose": str(Folder.sources(folder, "openstax")[-1]),
    }


def recipe(folder: Apart, setting: Setting, seed: int) -> Path:
    """The recipe of a run, as a file."""
    values = read_recipe(setting.recipe[setting.data], list(setting.changes)).model_dump(mode="json")
    train = {"max_steps": folder.steps(setting.data), "global_batch_size": BATCH, "seed": seed}
    return folder.recipe(f"{setting.key}-{seed}", values, **train)


def main() -> None:
    args = arguments(__doc__, longer=1)
    folder = Apart(args.out, data_folder(), args.longer)
    folder.draw(SCENES)
    work(folder, SETTINGS, run, args)


if __name__ == "__main__":
    main()
