"""Pretrained pairs of towers on Flickr8k, frozen and tuned, as a table for `benchmarks.study`.

    GRAINLINE_DATA=... python -m benchmarks.study photos_gates OUT --only cached --minutes 60
    GRAINLINE_DATA=... python -m benchmarks.study photos_gates OUT --only frozen text both    # a GPU

Rows are the recipes of photos/ with changes. Measured are single captions, and all captions of an image as
one query: sentence by sentence, or as one vector in the rows `joined`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.study import Job, Line, Measure

VIEWS = {
    "data.views": 8,
    "data.workers": 8,
    "data.crop": {"scale": [0.65, 1.0], "ratio": [0.85, 1.18], "flip": True},
    "model.dropout": 0.4,
    "train.optimizer.lr": 1e-3,
}
JOINED = {  # beside captions some of them joined, each text read as one
    "data.texts": {
        "captions": "random", "per_image": 2, "sampled_captions": 2, "max_sentences_per_chunk": 5
    },
    "model.scoring": "whole",
}  # fmt: skip
TUNED = {"model.text.tune": "all", "model.text.rate": 0.05, "train.max_steps": 460}
SETTINGS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "cached": ("clip/starter", {}),
    "frozen": ("clip/starter", VIEWS | {"train.max_steps": 1000}),
    "text": ("clip/starter", VIEWS | TUNED),
    "text_joined": ("clip/starter", VIEWS | TUNED | JOINED),
    "both": ("photos/starter_tuned", {}),
    "both_joined": ("photos/starter_tuned", JOINED),
}
"""Recipe and changes of each row: two cores, then a GPU."""


def prepare(out: Path, data: Path) -> None:
    """Nothing has to be made."""


def jobs(stage: str, out: Path, data: Path, seeds: Sequence[int], lines: Sequence[Line]) -> list[Job]:  # noqa: ARG001
    """Every row with the first seed, then the other seeds."""
    sources = tuple(sorted(map(str, (data / "flickr8k").glob("train-*.tar"))))
    measured = (Measure("flickr8k", str(data / "flickr8k" / "dev-0000.tar"), captions=("each", "whole")),)
    return [
        Job(stage, "flickr8k", row, seed, {"base": recipe}, sources, measured, changes)
        for seed in seeds
        for row, (recipe, changes) in SETTINGS.items()
    ]
