"""A run that is near chance on its validation data: every search says so."""

import json
from pathlib import Path

import pytest
from indexes import TEXTS, photos, saved, texts, tiny_model
from runs import call

from grainline.index.search import open_index
from grainline.web.engine import Engine

WEAK = (
    "This run is near chance: it finds the right image of its validation data at rank 271.5 of 575 (median)."
    " What it shows of a text means little."
)


def test_a_search_says_it_in_the_terminal_on_the_page_and_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tiny_model(), tmp_path / "run")
    line = {"kind": "validation", "step": 100, "metrics": {"text to image median rank": 271.5}, "images": 575}
    (run / "log.jsonl").write_text(json.dumps(line) + "\n")
    arguments = ["--model", run, "--out", tmp_path / "index", "--calibration-texts", texts(tmp_path)]
    assert call("index", "build", photos(tmp_path / "photos", 18), *arguments) == 0
    page, out = tmp_path / "page.html", tmp_path / "answers.json"
    assert call("search", tmp_path / "index", TEXTS[0], "--html", page, "--json", out) == 0
    assert WEAK in " ".join(capsys.readouterr().err.split()), "a pipe gets the hits alone"
    assert WEAK in page.read_text(encoding="utf-8")
    assert json.loads(out.read_text())["validated"] == WEAK
    moved = run.rename(tmp_path / "moved")
    assert open_index(tmp_path / "index", str(moved)).model.weakness == WEAK
    assert Engine(tmp_path / "index", str(moved)).about(1).validated == WEAK
    assert open_index(tmp_path / "index", tiny_model()).model.weakness == ""
