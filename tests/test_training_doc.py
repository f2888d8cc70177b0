"""Pages of methods name recipes and fields for rows of papers: they are what the papers say."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from grainline.training.recipe import read_recipe

METHODS = Path(__file__).parent.parent / "docs/methods"

PHRASES = "data.texts.phrases.max_phrases"
SEPS = {"model.ratio_weights": [1.0, 1.0], "model.coarse": 0.0, "data.crop.flip": True}
ROWS = {  # pages of methods: recipe and fields of a row of a paper -> what its paper says of it
    "beta-clip.md": {
        "ablations/bce_050 --set data": {"model.form": "bce", "model.beta": 0.5, PHRASES: 0},
        "ablations/beta_075 --set data": {"model.form": "ce", "model.beta": 0.75, PHRASES: 0},
        "official --set model.beta=0.1": {"model.beta": 0.1, PHRASES: 30},
        "official --set model.beta=0.15": {"model.beta": 0.15, PHRASES: 30},
        "official --set model.pre": {"model.pretrained": "openai/clip-vit-large-patch14", "model.group": 64},
        "official --set model.group": {
            "model.group": 96, "train.global_batch_size": 96 * 4 * 8,
            "train.max_steps": 10 * round(607 * 2048 / 3072),
        },
    },
    "himo-clip.md": {"official --set": {"model.pretrained": "openai/clip-vit-base-patch16"}},
    "seps.md": {
        "vit_384": {**SEPS, "model.image.pretrained": "google/vit-base-patch16-384"},
        "swin_224": {**SEPS, "model.keep_ratio": 0.8, "model.aggregation_ratio": 0.6},
        "swin_384": {**SEPS, "model.keep_ratio": 0.8, "model.aggregation_ratio": 0.6},
        "clip_b16": {**SEPS, "model.text.pretrained": "openai/clip-vit-base-patch16"},
        "clip_l14": {**SEPS, "model.width": 768},
    },
}  # fmt: skip


@pytest.mark.parametrize("page", ROWS)
def test_rows_of_papers_are_what_the_pages_of_methods_say(page: str) -> None:
    text, expected = (METHODS / page).read_text(), dict(ROWS[page])
    for line in re.findall(r"`([a-z_]+/[a-z0-9_/]+ --set [^`]+)`", text):
        rest = line.partition("/")[2]
        start = max((one for one in expected if rest.startswith(one)), key=len)
        name, _, *changes = shlex.split(line)
        recipe = read_recipe(name, changes).model_dump(mode="json")
        for field, value in expected.pop(start).items():
            actual: Any = recipe
            for part in field.split("."):
                actual = actual[part]
            assert actual == value, (line, field)
    assert not expected
