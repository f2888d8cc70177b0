"""The one script that scores with an oracle: the marks that it leaves, by hand."""

import importlib.util
import runpy
from pathlib import Path

import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "oracle" / "seps.py"


def test_descriptions_of_captions_leave_the_marks_of_the_published_scores() -> None:
    script = runpy.run_path(str(SCRIPT))
    dense = torch.tensor([[0.9, 0.2, 0.1], [0.8, 0.7, 0.1], [0.3, 0.2, 0.6]])
    owner = torch.arange(3).repeat_interleave(5)
    alone = script["recalls"](script["by_owner"](dense, owner), owner)
    assert [round(100 * x, 1) for x in alone.i2t] == [66.7, 66.7, 66.7, 100.0]
    assert [round(100 * x, 1) for x in alone.t2i] == [100.0, 100.0, 100.0, 100.0]
    assert all(script["fingerprint"](alone, alone).values())


def test_no_suite_scores_with_an_oracle() -> None:
    package = Path(importlib.util.find_spec("grainline").origin).parent  # type: ignore[union-attr,arg-type]
    texts = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert not [path for path, text in texts.items() if "benchmarks.oracle" in text or "by_owner" in text]
