"""SEPS against its parts and its neighbours, with descriptions that belong to images: trained and measured.

    GRAINLINE_DATA=... python -m benchmarks.seps OUT [--minutes 90] [--jobs 2] [--longer 1] [--only ...]

Two sets, three seeds. `flickr8k`: two of the five captions of each image describe it, the other three are
its captions, in training and on dev. All settings of a seed begin with the same CLIP, trained from scratch on
the same captions and measured as well; with the hardest negatives of a batch all vectors become one there, so
all negatives count all the time. `scenes`: the long caption describes an image, its text is the short one;
from scratch. All settings see the same pairs with encoders of the same sizes. Runs resume, and OUT/runs.jsonl
gets a line for each. Settings stand in the order of their worth, all seeds of one together; those that found
no time are named at the end. Runs by captions alone are scored by the oracle of benchmarks/oracle as well,
which is no result.
"""

import json
from pathlib import Path
from typing import NamedTuple

from benchmarks.oracle.seps import measured
from benchmarks.study import SECONDS, Folder, arguments, data_folder, grainline, work
from grainline.training.recipe import read_recipe

SCENES = 8000  # images to train on
BATCH = 64
STEPS = {"scenes": 200, "flickr8k": 150}
START = {"steps": 300, "batch": 128}  # of the CLIP that all settings on Flickr8k begin with
KEPT, TOLD = "0,1", "captions:0,1"  # captions of Flickr8k that describe, held back as captions
PARTS = {
    "seps": (),
    "sparse": ("model.branches=sparse",),
    "dense": ("model.branches=dense",),
    "no-aggregation": ("model.aggregation_ratio=null",),
    "mean": ("model.matching=mean",),
    "topk": ("model.matching=topk",),
}
UNTOLD = ("clip", "sparse", "laps", "vse")  # read no descriptions
SMALL = (  # encoders for Flickr8k in minutes
    "model.image={width: 128, depth: 3, heads: 4, patch: 16, size: 112, stem: conv, pool: mean}",
    "model.text={width: 128, depth: 2, heads: 4, vocab: 2048, context: 77, causal: false, pool: mean}",
    "model.width=128",
)
RATE = 5.0e-4  # on Flickr8k
WARMUP = {"scenes": 0.4, "flickr8k": 2.0}  # epochs in which weights rise; a run on Flickr8k has 1.6
HARDEST = {"scenes": "null", "flickr8k": "never"}  # on scenes the hardest negatives follow


class Setting(NamedTuple):
    """One way to train on one set."""

    data: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.data}-{self.name}"

    @property
    def method(self) -> str:
        return self.name if self.name in ("laps", "vse", "clip") else "seps"


ORDER = ("seps", "sparse", "laps", "vse", "dense", "no-aggregation", "mean", "topk")
SETTINGS = [
    Setting("flickr8k", "clip"),
    *(Setting(data, name) for name in ORDER[:4] for data in STEPS),
    *(Setting(data, name) for data in STEPS for name in ORDER[4:]),
]


class Threefold(Folder):
    """The folder of all runs."""

    def sources(self, name: str) -> list[Path]:
        found = super().sources(name)
        return found if name == "scenes" else [Path(f"{tar}?skip={KEPT}") for tar in found]

    def descriptions(self, part: str) -> Path:
        """The file that describes the images of Flickr8k, of `train` or `dev`."""
        return self.out / f"flickr8k-{part}.jsonl"

    def describe(self) -> None:
        """Descriptions of both parts of Flickr8k, and of the scenes that the oracle looks at; once."""
        for part in ("train", "dev"):
            if not self.descriptions(part).is_file():
                tars = map(str, sorted((self.data / "flickr8k").glob(f"{part}-*.tar")))
                grainline("data", "describe", *tars, "--texts", TOLD, "--out", str(self.descriptions(part)))
        if not (self.out / "scenes-dev.jsonl").is_file():
            told = ("--texts", "long", "--out", str(self.out / "scenes-dev.jsonl"))
            grainline("data", "describe", str(self.held_out("scenes")), *told)


def run(folder: Threefold, setting: Setting, seed: int) -> None:
    """Train and measure one run."""
    key = f"{setting.key}-{seed}"
    if setting.data == "flickr8k":
        begin = Setting(setting.data, "clip")
        folder.train(f"{begin.key}-{seed}", recipe(folder, begin, seed), setting.data)
    place = folder.train(key, recipe(folder, setting, seed), setting.data)
    data, *asked = held_out(folder, setting)
    found = folder.measure(key, f"retrieval on {setting.data}", data, "--suite", "retrieval", *asked)
    line = {
        "run": key, "setting": setting.name, "data": setting.data, "seed": seed,
        "pairs": pairs(folder, setting),
        "trained_s": float((place / SECONDS).read_text()), "metrics": found,
    }  # fmt: skip
    if setting.name == "sparse":
        line["oracle"] = oracle(folder, setting, place, data)
    folder.add(line)


def pairs(folder: Threefold, setting: Setting) -> int:
    """How many pairs a run sees, beside those of what it begins with."""
    return START["steps"] * START["batch"] if setting.name == "clip" else steps(folder, setting) * BATCH


def steps(folder: Threefold, setting: Setting) -> int:
    return STEPS[setting.data] * folder.longer


def held_out(folder: Threefold, setting: Setting) -> tuple[str, ...]:
    """What a run is measured on, and the arguments that go with it."""
    if setting.data == "scenes":
        return str(folder.held_out("scenes")), "--captions", "first"
    told = () if setting.name in UNTOLD else ("--descriptions", str(folder.descriptions("dev")))
    return f"{folder.held_out('flickr8k')}?skip={KEPT}", "--captions", "each", *told


def oracle(folder: Threefold, setting: Setting, place: Path, data: str) -> dict[str, object]:
    """What the same run reaches where captions bring descriptions of their own images. No result.

    On Flickr8k also with all five captions of an image, of which two are the description, because the marks
    that the published scores have are those of five.
    """
    if setting.data == "scenes":
        asked = {"": (data, folder.out / "scenes-dev.jsonl")}
    else:
        file = folder.descriptions("dev")
        asked = {"3 captions": (data, file), "5 captions": (data.partition("?")[0], file)}
    found: dict[str, object] = {
        name: {way: one._asdict() for way, one in measured(str(place), [source], str(file)).recalls.items()}
        for name, (source, file) in asked.items()
    }
    (folder.out / "results" / f"{place.name}-oracle.json").write_text(json.dumps(found))
    return found


def recipe(folder: Threefold, setting: Setting, seed: int) -> Path:
    """The recipe of a run, as a file."""
    key = f"{setting.key}-{seed}"
    if setting.name == "clip":
        values = read_recipe("clip/long_captions", [*SMALL, "data.texts={captions: random}"])
        return folder.recipe(key, values.model_dump(mode="json"), seed=seed, **START)
    negatives = f"model.warmup={WARMUP[setting.data]}", f"model.hardest_after={HARDEST[setting.data]}"
    changes = [*PARTS.get(setting.name, ()), *negatives]
    if setting.name in UNTOLD:
        changes.append("data.descriptions=[]")
    elif setting.data == "flickr8k":
        changes.append(f"data.descriptions=[{json.dumps(str(folder.descriptions('train')))}]")
    if setting.data == "flickr8k":
        start = folder.out / "runs" / f"{setting.data}-clip-{seed}" / "last"
        changes += [*SMALL, f"init_from={json.dumps(str(start))}", f"train.optimizer.lr={RATE}"]
    values = read_recipe(f"{setting.method}/{setting.data}", changes)
    made = values.model_dump(mode="json")
    return folder.recipe(key, made, steps=steps(folder, setting), batch=BATCH, seed=seed)


def main() -> None:
    args = arguments(__doc__, longer=1)
    folder = Threefold(args.out, data_folder(), args.longer)
    folder.draw(SCENES)
    folder.describe()
    work(folder, SETTINGS, run, args)


if __name__ == "__main__":
    main()
