"""All methods of the project on three sets at an equal budget: trained from scratch and measured.

    GRAINLINE_DATA=... python -m benchmarks.methods OUT [--minutes 90] [--jobs 2] [--longer 1] [--only ...]

All see as many images, each with its whole caption, which a method reads in its own way: at once, or in
sentences, chunks or words. Encoders have the same width, depth, patches and vocabulary; all else is the small
recipe of the method on scenes. `caft` has an image encoder of its own, of as many blocks, and `tgt` a text
encoder with groups. SEPS chooses by captions alone: OpenStax and Flickr8k have no descriptions beside them.
Runs resume, and OUT/runs.jsonl gets a line for each. Settings stand in the order of their worth, all seeds of
one together; those that found no time are named at the end. Tables: benchmarks/methods_tables.py.
"""

from typing import Any, NamedTuple

from benchmarks.study import SECONDS, Folder, arguments, data_folder, work
from grainline.training.recipe import read_recipe

SCENES = 8000  # images to train on
BATCH = 64
STEPS = {"scenes": 200, "openstax": 200, "flickr8k": 200}
BOTH = {"width": 128, "heads": 4}  # of both encoders
DEPTH = {"image": 4, "text": 2}  # their layers
PHOTOS = {"size": 112, "mean": [0.5, 0.5, 0.5], "spread": [0.25, 0.25, 0.25]}
CROP = {"scale": [0.6, 1.0], "ratio": [0.75, 1.333], "jitter": 0.2}
VOCAB = 4096
THROUGHOUT = {"scenes": 1.7, "openstax": 2.1, "flickr8k": 2.2}
"""Epochs, a little more than the runs have: all negatives of a triplet count. With the hardest after half an
epoch of long captions all vectors become one on scenes as well; see docs/methods/seps.md."""
OWN = {  # changes of the recipe on scenes
    "flair": ("model.text.context=192",),  # whole captions, as all others
    "maxsim": ("data.texts={captions: whole}", "train.optimizer.lr=1.0e-3"),  # the demo's goes with foils
    "laps": ("data.texts={captions: whole}",),
    "vse": ("data.texts={captions: whole}",),
    "seps": ("data.texts={captions: whole}", "data.descriptions=[]", "model.branches=sparse"),
}


class Setting(NamedTuple):
    """One method on one set."""

    data: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.data}-{self.name}"


FIRST = ("clip", "caft", "himo", "seps", "tgt", "beta_clip")  # what all are compared with, and the papers
OTHERS = ("vse", "flair", "siglip", "laps", "maxsim")
METHODS = FIRST + OTHERS
SETTINGS = [
    *(Setting(data, name) for name in FIRST for data in STEPS),
    *(Setting(data, name) for data in STEPS for name in OTHERS),
]


def recipe(setting: Setting, longer: int = 1) -> dict[str, Any]:
    """The recipe of a method on scenes, at the common sizes."""
    values = read_recipe(f"{setting.name}/scenes", OWN.get(setting.name, ())).model_dump(mode="json")
    image, text = values["model"]["image"], values["model"]["text"]
    image |= BOTH if "depths" in image else BOTH | {"depth": DEPTH["image"], "patch": 8}
    text |= BOTH | {"depth": DEPTH["text"]}
    values["model"]["width"] = BOTH["width"]
    if setting.data != "scenes":
        image |= PHOTOS | (superpixels() if "depths" in image else {"patch": 16})
        text["vocab"] = VOCAB
        values["data"] |= {"tokenizer_samples": 50000}
        values["data"]["crop"] |= CROP
    if "warmup" in values["model"]:
        values["model"]["warmup"] = THROUGHOUT[setting.data] * longer
    return values


def superpixels() -> dict[str, Any]:
    """Those of photographs in the small CAFT."""
    image = read_recipe("caft/long_captions", []).model_dump(mode="json")["model"]["image"]
    return {name: image[name] for name in ("superpixels", "stride", "groups")}


def run(folder: Folder, setting: Setting, seed: int) -> None:
    """Train and measure one run."""
    key = f"{setting.key}-{seed}"
    steps = STEPS[setting.data] * folder.longer
    made = folder.recipe(key, recipe(setting, folder.longer), steps=steps, batch=BATCH, seed=seed)
    place = folder.train(key, made, setting.data)
    held_out = str(folder.held_out(setting.data))
    found = folder.measure(
        key, f"retrieval on {setting.data}", held_out, "--suite", "retrieval", "--captions", "whole"
    )
    folder.add({
        "run": key, "setting": setting.name, "data": setting.data, "seed": seed, "pairs": steps * BATCH,
        "trained_s": float((place / SECONDS).read_text()), "metrics": found,
    })  # fmt: skip


def main() -> None:
    args = arguments(__doc__, longer=1)
    folder = Folder(args.out, data_folder(), args.longer)
    folder.draw(SCENES)
    work(folder, SETTINGS, run, args)


if __name__ == "__main__":
    main()
