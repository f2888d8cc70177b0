"""Benchmarks that import much of the package still run, in sizes that take a second, and are right."""

import gc
import json
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import photos_gates, photos_table
from benchmarks.bench_gpu_steps import tflop
from benchmarks.harness import seconds
from benchmarks.hexagons import COLOURS, RADIUS, SIZE, record_of
from benchmarks.photos_table import RATES, ROWS, TRAINED, Row, first_samples, tried
from benchmarks.study import Block, Job, Line, Measure, chosen, main, read_lines
from grainline.build import method_config
from grainline.data.decode import decode
from grainline.evaluation.comparison import Comparison
from grainline.training.recipe import read_recipe


def test_operations_of_products_that_are_added_count() -> None:
    """A sum with a type of its own has one argument more, which torch's own count takes for a shape."""
    with torch.device("meta"):
        rows, cols, total = torch.empty(4, 8), torch.empty(8, 16), torch.empty(4, 16)
    product = 2 * 4 * 8 * 16
    for call in (
        lambda: rows @ cols,
        lambda: torch.addmm(total, rows, cols),
        lambda: torch.addmm(total, rows.half(), cols.half(), out_dtype=torch.float32),
        lambda: total.addmm_(rows, cols),
        lambda: torch.baddbmm(total[None], rows[None], cols[None]),
    ):
        assert tflop(call) * 1e12 == pytest.approx(product)


def test_no_garbage_is_collected_while_a_call_is_timed() -> None:
    collects: list[bool] = []
    seconds(lambda: collects.append(gc.isenabled()))
    assert collects == [False]


SMALL = {"width": 16, "depth": 1, "heads": 2}
TINY = {
    "model": {
        "image": SMALL | {"size": 32, "patch": 16},
        "text": SMALL | {"vocab": 600, "context": 16},
        "width": 16,
    },
    "data": {"workers": 0, "crop": None},
    "train": {"max_steps": 2, "global_batch_size": 4},
}


class Tiny:
    """A table of two methods on eight drawn scenes."""

    def prepare(self, out: Path, data: Path) -> None:
        assert data.is_dir()
        (out / "prepared").touch()

    def jobs(
        self, stage: str, out: Path, data: Path, seeds: Sequence[int], lines: Sequence[Line]
    ) -> list[Job]:
        assert (out / "prepared").is_file()
        assert data.is_dir()
        assert [line["seed"] for line in lines] == [5] * len(lines)
        measured = (Measure("scenes", "scenes:dev?count=6&size=32", ("retrieval",), ("whole",)),)
        sources, changes = ("scenes:train?count=8&size=32",), {"train.max_steps": 3}
        return [
            Job(stage, "scenes", row, seed, TINY | {"method": row}, sources, measured, changes)
            for seed in seeds
            for row in ("clip", "siglip")
        ]


def test_a_study_trains_goes_on_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAINLINE_DATA", str(tmp_path))
    out = tmp_path / "study"

    def study(*arguments: str) -> str:
        main(Tiny(), ["tiny", str(out), "--seeds", "5", *arguments])
        return capsys.readouterr().out

    assert "left: 2 of 2 runs final-scenes-clip-5" in study("--minutes", "0")  # no time to begin a run
    assert read_lines(out) == []
    assert "left: 0 of 1 runs" in study("--only", "clip")
    (first,) = read_lines(out)
    assert "siglip is not finished" in study("--compare", "--base", "siglip")
    assert "left: 0 of 2 runs" in study()
    lines = read_lines(out)
    assert lines[0] == first  # what has a line is not made again
    names = "final-scenes-clip-5", "final-scenes-siglip-5"
    assert [(line["run"], line["steps"]) for line in lines] == [(name, 3) for name in names]
    assert "siglip" in study("--compare")
    (file,) = (out / "compared").glob("*whole.json")
    comparison, cell = Comparison.load(file), "scenes, retrieval, whole: rSum"
    for line in lines:
        metric = comparison.cell(line["row"], 0).metric("rSum")
        assert metric is not None
        assert [metric.value, metric.low, metric.high] == line["metrics"][cell]
    (blind,) = (out / "compared").glob("*text_only.json")
    assert [one.name for one in Comparison.load(blind).models] == ["clip", "text_only"]
    metric = Comparison.load(blind).cell("text_only", 0).metric("text to image median rank")
    assert metric is not None
    assert metric.value == 6  # of six images that are all alike: a tie is no hit


def test_a_training_stops_when_the_minutes_are_over_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("final", "scenes", "clip", 0, TINY, ("scenes",), (), {"model.scale": 20})
    commands: list[list[str]] = []

    class Training:
        code = 0

        def __init__(self, command: list[str], **_: Any) -> None:
            commands.append(command)
            (tmp_path / "runs" / job.name).mkdir(exist_ok=True)

        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None and len(commands) == 1:
                raise subprocess.TimeoutExpired("grainline", timeout)
            return self.code

        def terminate(self) -> None:
            self.code = 143

    monkeypatch.setattr(subprocess, "Popen", Training)
    block = Block(tmp_path, 1, 1, ["train.max_steps=4"])
    assert [block.train(job) for _ in range(3)] == [False, True, True]
    assert ["--resume" in command for command in commands] == [False, True]
    assert commands[0][-2:] == ["model.scale=20", "train.max_steps=4"]
    assert block.seconds(job) >= 0
    assert all(block.train(job._replace(variant=f"lr_{rate}")) for rate in (0.5, 0.25))
    assert len(commands) == 4  # a name with a point does not share the files of another


def test_each_setting_is_chosen_by_itself() -> None:
    def line(changes: dict[str, Any], *values: float, row: str = "clip") -> Line:
        metrics = {f"set{i}, retrieval: rSum": [x, 0, 0] for i, x in enumerate(values)}
        about, usual = {"stage": "choose", "set": "s", "row": row}, {"lr": 1, "scale": 10}
        variant = "" if changes else "usual"
        return about | {"changes": usual | changes, "variant": variant, "metrics": metrics}

    lines = [
        line({}, 100, 200),
        line({"lr": 2}, 149, 149),  # below the mean of the usual settings
        line({"scale": 20}, 90, 240),
        line({"lr": 3}, 500, 500, row="vse"),
    ]
    assert chosen(lines, "s", "clip") == {"lr": 1, "scale": 20}
    assert chosen(lines, "s", "laps") == {}


def require_recipes(jobs: Sequence[Job], folder: Path) -> None:
    for job in jobs:
        file = folder / f"{job.name}.yaml"
        assert not file.exists()
        file.write_text(json.dumps(job.recipe))  # YAML too
        read = read_recipe(str(file), [f"{name}={json.dumps(x)}" for name, x in job.changes.items()])
        method_config(read.method, read.model, "a row")


@pytest.mark.parametrize("stage", ["choose", "final", "time"])
def test_the_table_has_recipes_that_can_be_read(stage: str, tmp_path: Path) -> None:
    made = photos_table.jobs(stage, tmp_path, tmp_path, [0, 1], [])
    tries = sum(bool(row.tries) for row in ROWS.values())
    assert len(made) == (5 * tries if stage == "choose" else 2 * len(ROWS) * len(TRAINED))
    first = made[: (tries if stage == "choose" else len(ROWS))]
    assert {(job.set, job.seed) for job in first} == {("flickr8k", 0)}  # what matters most
    require_recipes(made, tmp_path)


def test_the_pretrained_pairs_have_recipes_that_can_be_read(tmp_path: Path) -> None:
    made = photos_gates.jobs("final", tmp_path, tmp_path, [0, 1], [])
    assert len(made) == 2 * len(photos_gates.SETTINGS)
    require_recipes(made, tmp_path)


def test_settings_are_tried_one_at_a_time() -> None:
    rates, scale = RATES["train.optimizer.lr"], (20, 14.3, None)
    made = tried(Row("clip", tries={"model.scale": scale}))
    names = "usual", f"lr_{rates[1]}", f"lr_{rates[2]}", "scale_14.3", "scale_None"
    values = (rates[0], 20), (rates[1], 20), (rates[2], 20), (rates[0], 14.3), (rates[0], None)
    assert tuple(made) == names
    assert tuple((x["train.optimizer.lr"], x["model.scale"]) for x in made.values()) == values


def test_the_first_samples_are_held_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("y.jpg", "y.json", "x.jpg", "x.json", "z.json"):
            tar.addfile(tarfile.TarInfo(name))
    first_samples(tmp_path / "a.tar", tmp_path / "b.tar", 2)
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert tar.getnames() == ["y.jpg", "y.json", "x.jpg", "x.json"]


def test_an_instruction_refers_to_the_tiles_that_still_have_its_colour() -> None:
    boards = np.zeros((3, 180), int)
    boards[1:, 0], boards[1, 40], boards[2, 40] = 2, 2, 4  # the second step paints one tile over
    steps = [[i, name, board.tolist()] for i, (name, board) in enumerate(zip("-ab", boards, strict=True))]
    record = record_of({"index": 1, "drawing_procedure": steps})
    assert record.captions == ("a b",)
    centres = (12, 10.4), (84, 51.96)  # of tile 0; of tile 40, the fifth of the third row
    for region, (x, y), colour in zip(record.regions, centres, ("#f5d200", COLOURS[4]), strict=True):
        assert region.mask.shape == SIZE[::-1]
        down, across = np.nonzero(region.mask)
        assert len(down) == pytest.approx(1.5 * 3**0.5 * RADIUS**2, rel=0.1)  # a hexagon
        assert (across.mean(), down.mean()) == pytest.approx((x, y), abs=1)
        assert decode(record).getpixel((round(x), round(y))) == tuple(bytes.fromhex(colour[1:]))
