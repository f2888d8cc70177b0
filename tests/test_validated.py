"""At which rank a model finds right images: read from its run, and said wherever it is used."""

import json
from pathlib import Path

import pytest
from indexes import TEXTS, photos, saved, texts, tiny_model
from runs import call

from grainline.evaluation.result import Metric, Result, validation_summary, write
from grainline.index.search import open_index

WEAK = (
    "On its validation data this model finds the right image at rank 71.5 of 575 (median). "
    "Most right images are not among the first 10 there. That says nothing about other data."
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return saved(tiny_model(), tmp_path / "run")


def _log(run: Path, *lines: tuple[int, float, int | None]) -> None:
    said = [
        {"kind": "validation", "step": step, "metrics": {"text to image median rank": rank}, "images": images}
        for step, rank, images in lines
    ]
    text = "".join(json.dumps(line) + "\n" for line in [{"kind": "train", "step": 1}, *said])
    (run / "log.jsonl").write_text(text + '{"kind": "validation", "st')  # killed while it wrote


def test_the_log_is_quoted_at_the_step_of_the_weights_else_at_its_end(run: Path) -> None:
    _log(run, (100, 3.0, 575), (200, 71.5, 575))
    assert validation_summary(str(run)) == WEAK
    best = saved(tiny_model(), run / "best")
    (best / "model.json").unlink()
    (best / "state.json").write_text(json.dumps({"state": {"step": 100}}))
    assert "at rank 3 of 575 (median)." in validation_summary(str(best))
    assert "Most right" not in validation_summary(str(best))


def test_a_log_of_before_has_no_number_of_images(run: Path) -> None:
    _log(run, (100, 2.0, None))
    assert validation_summary(str(run)).startswith(
        "On its validation data this model finds the right image at rank 2 (median). "
    )


def test_a_result_beside_the_weights_is_quoted_with_its_data_where_the_log_has_none(run: Path) -> None:
    assert validation_summary(str(run)) == ""
    metric = Metric("text to image median rank", 1.0, 1.0, 1.0, 500, 250.5, 0, "rank")
    data = {"images": 500, "path": "photos.jsonl"}  # any data: nothing says that it is validation data
    write(Result("", "", (metric,), {}, data, {}, 0, "", (), {}), run / "retrieval.json")
    assert (
        validation_summary(str(run))
        == "On photos.jsonl this model finds the right image at rank 1 of 500 (median). "
        "That says nothing about other data."
    )
    assert "other data" not in validation_summary(str(run), "photos.jsonl")
    validation = "data: {paths: [x], validation: [a, b]}\n"
    (run / "recipe.yaml").write_text(validation)
    assert "other data" in validation_summary(str(run), "a"), "the rank is among images of b as well"
    (run / "recipe.yaml").write_text(validation.replace("a, b", "a"))
    assert "other data" not in validation_summary(str(run), "a")
    (run / "retrieval.json").write_text("{")
    assert validation_summary(str(run)) == ""


@pytest.mark.parametrize("path", ["/no/such", "openai/clip-vit-base-patch16"])
def test_what_is_no_run_is_not_mentioned(path: str) -> None:
    assert validation_summary(path) == ""


def test_a_search_says_it_in_the_terminal_on_the_page_and_in_json(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _log(run, (100, 71.5, 575))
    arguments = ["--model", run, "--out", tmp_path / "index", "--calibration-texts", texts(tmp_path)]
    assert call("index", "build", photos(tmp_path / "photos", 18), *arguments) == 0
    page, out = tmp_path / "page.html", tmp_path / "answers.json"
    assert call("search", tmp_path / "index", TEXTS[0], "--html", page, "--json", out) == 0
    assert WEAK in " ".join(capsys.readouterr().err.split()), "a pipe gets the hits alone"
    assert WEAK in page.read_text(encoding="utf-8")
    assert json.loads(out.read_text())["validated"] == WEAK
    moved = run.rename(tmp_path / "moved")
    assert open_index(tmp_path / "index", str(moved)).validated == WEAK
    assert open_index(tmp_path / "index", tiny_model()).validated == ""


def test_the_server_says_it(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    from grainline.index.sync import build
    from grainline.web.app import Server
    from grainline.web.engine import Engine
    from grainline.web.guard import Limits

    _log(run, (100, 71.5, 575))
    build(
        photos(tmp_path / "photos", 18), tmp_path / "index", model=str(run), calibration_texts=texts(tmp_path)
    )
    with TestClient(Server(Engine(tmp_path / "index"), Limits()).app) as client:
        assert client.get("/api/index", headers={"Host": "127.0.0.1"}).json()["validated"] == WEAK
