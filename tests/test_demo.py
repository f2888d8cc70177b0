"""The demo from end to end, far too short to learn anything: what it writes, and that it goes on."""

import json
import os
from pathlib import Path

import pytest
from runs import call

from grainline.encoders.pretrained.hub import STARTER
from grainline.evaluation.result import read
from grainline.training.demo import demo
from grainline.training.log import read_log

SHORT = [
    "train.max_steps=3",
    "train.global_batch_size=8",
    "train.optimizer.schedule.warmup=1",
    "train.log_every=1",
]
SMALL = ["data.tokenizer_samples=40", "data.paths=['scenes:train?count=40']", "data.workers=0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "run"
    demo(out, SHORT + SMALL, scenes=12)
    return out


def test_the_demo_writes_a_page_that_needs_no_network(made: Path) -> None:
    page = (made / "report.html").read_text()
    assert "Text to image R@1" in page
    assert page.count("<img") >= 6 * 5  # six examples with five images each
    order = ["What the model sees", "A query of several sentences", "Numbers", "Training curves", "Next"]
    assert [page.rindex(f">{title}") for title in order] == sorted(
        page.rindex(f">{title}") for title in order
    )
    for far in ("http://", "https://", 'src="/', "<script"):
        assert far not in page.replace("http://www.w3.org/2000/svg", "")


def test_the_demo_measures_retrieval_foils_and_composition_on_unseen_scenes(made: Path) -> None:
    actual = {name: read(made / f"{name}.json") for name in ("retrieval", "probes", "composition")}
    assert "scenes:dev" in actual["retrieval"].data["path"]
    assert "scenes:compose" in actual["composition"].data["path"]
    kinds = {metric.name for metric in actual["probes"].metrics}
    assert {"colour", "size", "pattern", "position", "relation", "noun"} <= kinds
    assert actual["retrieval"].metric("text to image R@1").chance == pytest.approx(100 / 12)


def test_a_second_demo_measures_again_and_trains_no_more(made: Path) -> None:
    weights = (made / "last" / "model.safetensors").stat().st_mtime_ns
    first = json.loads((made / "retrieval.json").read_text())["metrics"]
    os.remove(made / "report.html")
    demo(made, SHORT + SMALL, scenes=12)
    assert (made / "last" / "model.safetensors").stat().st_mtime_ns == weights
    assert json.loads((made / "retrieval.json").read_text())["metrics"] == first
    assert (made / "report.html").is_file()
    assert [line["step"] for line in read_log(made) if line["kind"] == "train"] == [1, 2, 3]


def test_the_command_ends_with_how_to_do_the_same_on_photographs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.training.demo.demo", lambda *_, **__: print("Report: x"))
    assert call("demo", "--out", tmp_path) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(
        f"On photographs: {STARTER} && grainline train photos/starter --data photos/ --out "
    )
