"""Killed at any moment and resumed, a run ends with the very weights of one that was left alone."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from processes import forked
from runs import call, complaint, logged, recipe, steps_done

import grainline
from grainline.evaluation.result import notes_on_training
from grainline.files import LOCK
from grainline.loading import load
from grainline.training import checkpoint, loop
from grainline.training.checkpoint import latest
from grainline.training.log import read_log
from grainline.training.recipe import read_recipe
from grainline.training.run import train as train_recipe

MODEL = "model.safetensors"
LONG = (
    "train.max_steps=40",
    "train.save_every=7",
    "data.workers=2",
    'data.validation=["scenes:dev?count=3"]',
    "train.validate_every=10",
    "train.ema=0.9",
)
KILLS = ((3, True), (12, False), (17, True), (38, False))
"""A step, and whether the workers are killed with the process; the first is before any checkpoint."""


def train(arguments: list[str], said: Path) -> None:
    """In a process of its own, the leader of a group that its workers belong to."""
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["grainline", "train", *arguments]
    from grainline.cli.main import main

    main()


def started(arguments: list[str], out: Path, words: str = "") -> BaseProcess:
    """words: the file beside `out` that gets its output; else the name of `out` with .txt"""
    said = out.with_name(words or f"{out.name}.txt")
    process = forked().Process(target=train, args=([*arguments, "--out", str(out)], said))
    process.start()
    return process


def ended(process: BaseProcess, out: Path) -> None:
    process.join(timeout=120)
    assert process.exitcode == 0, out.with_name(f"{out.name}.txt").read_text()


def alive(group: int) -> list[int]:
    """Processes of a group that still run."""
    actual = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while we look
            state, _, its = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its) == group and state != "Z":
                actual.append(int(entry.name))
    return actual


def killed(arguments: list[str], out: Path, step: int, everyone: bool) -> tuple[int, int]:
    """Start training, kill it at a step with SIGKILL; its group, and the processes that it had."""
    process = started(arguments, out)
    while steps_done(out) < step:
        assert process.is_alive(), out.with_name(f"{out.name}.txt").read_text()
        time.sleep(0.002)
    assert process.pid is not None
    number = len(alive(process.pid))
    (os.killpg if everyone else os.kill)(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return process.pid, number


def weights(out: Path, place: str = "last") -> bytes:
    return (out / place / MODEL).read_bytes()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path | list[tuple[int, int]]]]:
    """One run that is left alone, and one that is killed again and again."""
    folder = tmp_path_factory.mktemp("killed")
    arguments = [recipe(folder), "--set", *LONG]
    whole, broken = folder / "whole", folder / "broken"
    undisturbed = started(arguments, whole)
    groups = []
    for number, (step, everyone) in enumerate(KILLS):
        groups.append(killed([*arguments, *(["--resume"] if number else [])], broken, step, everyone))
    ended(started([*arguments, "--resume"], broken), broken)
    ended(undisturbed, whole)
    yield {"whole": whole, "broken": broken, "groups": groups}
    for group, _ in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def test_a_killed_and_resumed_run_ends_with_the_same_bits(runs: dict[str, Path]) -> None:
    for place in ("last", "best", "checkpoints/step-00000040"):
        assert weights(runs["whole"], place) == weights(runs["broken"], place), place
        raw = [(run / place / "raw.safetensors").read_bytes() for run in (runs["whole"], runs["broken"])]
        assert raw[0] == raw[1] != weights(runs["whole"], place)
    averaged, raw = load(runs["whole"]).method, load(runs["whole"] / "last" / "raw.safetensors").method
    assert not torch.equal(averaged.towers.to_text.weight, raw.towers.to_text.weight)


def test_its_log_is_that_of_the_whole_run_but_for_times(runs: dict[str, Path]) -> None:
    whole, broken = logged(runs["whole"]), logged(runs["broken"])
    assert broken == whole
    assert [line["step"] for line in whole if line["kind"] == "train"] == list(range(1, 41))
    assert [line["step"] for line in whole if line["kind"] == "validation"] == [10, 20, 30, 40]


def test_no_worker_outlives_its_killed_process(runs: dict[str, list[tuple[int, int]]]) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("processes are counted in /proc, which this system does not have")
    assert min(number for _, number in runs["groups"]) >= 3, "two workers and their parent"
    end = time.monotonic() + 30  # torch's workers look every five seconds whether their parent lives
    while left := [pid for group, _ in runs["groups"] for pid in alive(group)]:
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps with all its checkpoints."""
    folder = tmp_path_factory.mktemp("done")
    train_recipe(read_recipe(recipe(folder), ["train.keep_checkpoints=9"]), folder / "run")
    return folder / "run"


@pytest.fixture
def copy(done: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return Path(shutil.copytree(done, tmp_path / "run"))


def resume(out: Path, *arguments: object, method: str = "clip") -> list[object]:
    return ["train", recipe(out.parent, method), "--out", out, "--resume", *arguments]


def test_the_folder_of_a_run_is_enough(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recipe, data and settings are in it; it is no other run that starts, and no field may differ."""
    before, log = weights(copy), logged(copy)
    for name in ("step-00000004", "step-00000002"):
        assert call("train", copy, "--resume", "--checkpoint", name, "--set", "data.workers=0") == 0
        assert (weights(copy), logged(copy)) == (before, log)
    assert "holds a run already; continue with --resume" in complaint(capsys, "train", copy)
    assert "belongs to another recipe" in complaint(
        capsys, "train", copy, "--resume", "--set", "train.seed=5"
    )
    log_file = (copy / "log.jsonl").read_bytes()
    assert grainline.train(copy, resume=True) == copy / "last"  # it is finished, so nothing changes
    assert (weights(copy), (copy / "log.jsonl").read_bytes()) == (before, log_file)
    empty = copy.parent / "empty"
    empty.mkdir()
    assert f"no recipe '{empty}'" in complaint(capsys, "train", empty, "--resume")


def test_a_run_goes_on_from_the_checkpoint_that_is_named(copy: Path) -> None:
    before, log = weights(copy), logged(copy)
    for name in ("step-00000002", "last"):
        assert call(*resume(copy, "--checkpoint", name)) == 0
        assert weights(copy) == before
        assert logged(copy) == log
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == [
        "step-00000004",
        "step-00000006",
    ]


@pytest.mark.parametrize(
    "path", ["../../run/checkpoints/step-00000002", "../last", "{}/last", ".", "../.saving-x"]
)
def test_a_checkpoint_is_named_and_never_a_path(
    path: str, copy: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / ".saving-x").mkdir()
    path = path.format(done)
    text = complaint(capsys, *resume(copy, f"--checkpoint={path}"))
    assert f"no checkpoint {path!r} in {copy}; there are: step-00000002" in text


def test_resume_before_the_first_checkpoint_begins_anew(copy: Path) -> None:
    before, log = weights(copy), logged(copy)
    shutil.rmtree(copy / "checkpoints")
    shutil.rmtree(copy / "last")
    assert call(*resume(copy)) == 0
    assert weights(copy) == before
    assert logged(copy) == log


BEGUN = ("tokenizer.json", "tokenizer_meta.json", "model.json", "recipe.yaml")
LEFT = [(), (LOCK,), (".saving-recipe.yaml",), BEGUN[:1], BEGUN[:3], BEGUN]


@pytest.mark.parametrize("again", [[], ["--resume"]], ids=["begin", "resume"])
@pytest.mark.parametrize("left", LEFT, ids=str)
def test_a_run_that_was_killed_before_its_folder_was_complete_can_be_started_again(
    done: Path, tmp_path: Path, left: tuple[str, ...], again: list[str]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in left:
        (out / name).write_text("{ half of it")
    assert call("train", recipe(tmp_path), "--out", out, *again) == 0
    assert weights(out) == weights(done)


REFUSED = {
    "data": ("--data", "none"),
    "validation": ("--validation", "none", "--set", "train.validate_every=2"),
    "field": ("--set", "train.step=3"),
    "tokenizer": ("--set", "data.tokenizer=./none"),
    "vocabulary": ("--set", "model.text.vocab=300"),
    "checkpoint": ("--set", "model.image={pretrained: ./none}"),
    "superpixels": ("--set", "data.superpixels=none", "data.crop=null"),
    "descriptions": ("--set", "data.descriptions=[none]"),
    "few images": ("--set", "train.global_batch_size=64"),
    "workers": ("--set", "data.workers=1000"),
    "memory": ("--set", "model.text.context=1e14"),
    "rule": ("--set", "train.optimizer.rules=[{pattern: nothing}, {pattern: .*}]"),
    "adapters": ("--set", "train.lora={rank: 2, layers: nothing}"),
    "package": ("--set", "train.log.wandb=x"),
    "damaged": ("--data", "damaged"),
    "checkpoint alone": ("--checkpoint", "last"),
    "resume": ("--resume",),
    "resume from": ("--resume", "--checkpoint", "step-00000002"),
}
"""Arguments with which a run cannot begin."""


@pytest.mark.parametrize("what", REFUSED)
def test_a_run_that_cannot_begin_leaves_everything_as_it_was(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    Path("damaged").mkdir()
    for i in range(36):
        Path("damaged", f"{i}.png").write_bytes(b"no image")
        Path("damaged", f"{i}.txt").write_text(f"A caption of image {i}.")
    Path("damaged", "alone.txt").write_text("A text without an image, which the log remarks.")
    Path("empty").mkdir()
    Path("early").mkdir()
    Path("early", "tokenizer.json").write_text("{ half of it")
    start = ("train", recipe(tmp_path), *REFUSED[what], "--out")
    for out in ("new", "some/new/run", "empty", "early"):
        if what != "resume" or not Path(out).exists():  # a folder without a log begins anew
            before = tree(tmp_path)
            complaint(capsys, *start, out)
            assert tree(tmp_path) == before


def test_an_interrupted_start_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        assert (tmp_path / "run" / "model.json").is_file()
        raise KeyboardInterrupt

    start, before = ("train", recipe(tmp_path), "--out", tmp_path / "run"), tree(tmp_path)
    monkeypatch.setattr("grainline.training.run.TrainSet", interrupt)
    assert call(*start) == 130
    assert tree(tmp_path) == before


def tree(folder: Path) -> set[str]:
    """All files and folders below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_run_that_cannot_go_on_stays_as_it_is(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done, tmp_path / "run")

    def files() -> dict[str, int]:
        return {x: (tmp_path / "run" / x).stat().st_mtime_ns for x in tree(tmp_path / "run") if x != LOCK}

    before = files()
    for more in (
        (),
        ("--resume", "--data", "none"),
        ("--resume", "--checkpoint", "none"),
        ("--data", "none"),
    ):
        complaint(capsys, "train", recipe(tmp_path), "--out", tmp_path / "run", *more)
        assert files() == before


def test_a_run_that_fails_after_a_step_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ("train", recipe(tmp_path), "--out", tmp_path / "run", "--set")
    said = complaint(capsys, *made, "train.optimizer.lr=1e30", "train.grad_clip=null")
    assert "not finite at step " in said
    assert "there is no checkpoint yet" in said
    assert (tmp_path / "run" / "report.html").is_file()
    assert "holds a run already" in complaint(capsys, *made, "train.max_steps=1")


@pytest.mark.parametrize(
    ("trained", "path", "noted"),
    [
        ("photos", "photos/", True), ("photos", "photos/inner", True), ("photos/inner", "photos", True),
        ("a-*.tar", "a-1.tar", True), ("a-1.tar?skip=0", "a-{0,1}.tar", True), ("a-0.tar", "a-1.tar", False),
        ("photos", "photos/val.csv", False), ("val.csv?image=x", "val.csv", True), ("photos", "other", False),
    ],
)  # fmt: skip
def test_training_data_are_known_by_any_of_their_names(
    trained: str, path: str, noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos/inner", "other", "run"):
        Path(folder).mkdir(parents=True)
    for file in ("a-0.tar", "a-1.tar", "val.csv", "photos/val.csv"):
        Path(file).touch()
    data = {"paths": [trained, "none-*.tar"], "validation": []}
    Path("run/recipe.yaml").write_text(json.dumps({"data": data}))
    source: Any = SimpleNamespace(path=path)
    assert bool(notes_on_training(Path("run"), source)) == noted


def test_a_result_says_that_the_run_was_trained_on_its_data(done: Path, tmp_path: Path) -> None:
    data, other = "scenes:train?count=36", "scenes:dev?count=6"
    first = "scenes:train?count=4&size=64"  # of the same scenes
    for paths, named in (
        ([data], "these data"),
        ([first], "these data"),
        ([data, other], data),
        ([other], ""),
    ):
        assert call("evaluate", done, "--data", *paths, "--json", tmp_path / "x.json") == 0
        notes = json.loads((tmp_path / "x.json").read_text())["notes"]
        line = f"the run was trained on {named}, so the values say nothing about other data"
        assert [note for note in notes if "was trained on" in note] == [line] * bool(named)


def test_a_corrupt_checkpoint_offers_the_one_before_and_that_one_works(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, path = weights(copy), copy / "checkpoints" / "step-00000006" / MODEL
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.unlink()  # last/ holds the same file by another name
    path.write_bytes(data)
    text = complaint(capsys, *resume(copy))
    assert f"checkpoint {path.parent} is corrupt" in text
    assert "--resume --checkpoint step-00000004" in text
    assert call(*resume(copy, "--checkpoint", "step-00000004")) == 0
    assert weights(copy) == before


def test_resume_into_the_folder_of_another_recipe_names_the_field(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ("--set", "train.global_batch_size=4", "model.width=64", "train.log_every=3")
    text = complaint(capsys, *resume(copy, *changes))
    assert "belongs to another recipe; it differs in model.width, train.global_batch_size;" in text
    assert "differs in method" in complaint(capsys, *resume(copy, method="siglip"))


EXPLODE = "train.optimizer.schedule={kind: step, milestones: [4], factor: 1.0e+30}"


def test_a_loss_that_is_not_finite_stops_with_step_terms_and_the_last_good_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["train", recipe(tmp_path), "--out", out, "--set", EXPLODE, "train.grad_clip=null"]
    arguments += ["train.max_steps=12", "train.save_every=4", "train.log_every=10"]
    text = complaint(capsys, *arguments)
    good = out / "checkpoints" / "step-00000004"
    assert "the loss is not finite at step 6: i2t nan, t2i nan" in text
    assert f"the last good checkpoint is {good}" in text
    assert latest(out) == good
    model = load(good)
    assert all(p.isfinite().all() for p in model.method.parameters())
    last = read_log(out)[-1]
    assert (last["kind"], last["step"]) == ("not finite", 6)
    assert last["non_finite"]["terms.i2t"] == "nan"


def fill(folder: Path, leave: int) -> Path:
    """Take all space of a file system but `leave` bytes."""
    ballast = folder / "ballast"
    state = os.statvfs(folder)
    ballast.write_bytes(b"x" * (state.f_bavail * state.f_frsize - leave))
    return ballast


def test_a_full_disk_stops_the_run_and_spares_the_last_good_checkpoint(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_disk / "run"
    arguments = [
        "train",
        recipe(tmp_path),
        "--out",
        out,
        "--set",
        "train.keep_checkpoints=99",
        "train.save_every=1",
    ]
    arguments += ["train.max_steps=8"]
    ballast = fill(small_disk, 2_500_000)
    text = complaint(capsys, *arguments)
    assert "no space left on device" in text
    good = latest(out)
    assert good is not None
    assert f"the last good checkpoint is {good}" in text
    load(good)
    ballast.unlink()
    assert call(*arguments, "--resume") in (0, 2)


def test_a_disk_that_is_full_from_the_start_is_one_line(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(small_disk, 8_192)
    text = complaint(capsys, "train", recipe(tmp_path), "--out", small_disk / "run")
    assert f"cannot write into {small_disk / 'run'}: no space left on device" in text


BEST = (
    'data.validation=["scenes:dev?count=3"]',
    "train.validate_every=2",
    "train.save_every=3",
    "train.keep_checkpoints=9",
)


def step_at(out: Path, place: str) -> int:
    return int(json.loads((out / place / "state.json").read_text())["state"]["step"])


def test_the_best_weights_are_marked_even_if_the_process_died_before_it_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    start = ("train", recipe(tmp_path), "--out", tmp_path / "run", "--set", *BEST, "train.optimizer.lr=1e-12")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "mark", dies)
        assert call(*start) == 130
    assert not (tmp_path / "run" / "best").exists()
    assert call(*start, "--resume") == 0
    assert step_at(tmp_path / "run", "best") == 2


def test_a_run_that_goes_back_leaves_the_last_and_best_weights_of_the_other_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    start = ("train", recipe(tmp_path), "--out", out, "--set", *BEST, "train.save_every=1")
    assert call(*start) == 0
    assert step_at(out, "last") == 6
    ends = loop._Training._after

    def stops(self: loop._Training) -> None:
        ends(self)
        if self.step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "_after", stops)
        assert call(*start, "--resume", "--checkpoint", "step-00000003") == 130
    assert not (out / "last").exists()
    assert step_at(out, "best") <= 4
    assert load(out)  # from the newest checkpoint
    assert call(*start, "--resume") == 0
    assert step_at(out, "last") == 6


def test_resume_with_other_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{i}.png,A caption of image {i}." for i in range(20)]
    for i in range(20):
        Image.new("RGB", (40, 40), (12 * i, 0, 0)).save(tmp_path / f"{i}.png")
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["image,caption", *rows]) + "\n")
    start = ("train", recipe(tmp_path), "--data", table, "--out", tmp_path / "run")
    small = ("--set", "data.texts.foils=0", "model.text.vocab=520")
    assert call(*start, *small) == 0
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    table.write_text("\n".join(["image,caption", *rows[:11]]) + "\n")
    text = complaint(capsys, *start, *small, "--resume")
    assert "was trained on 20 images, the data hold 11 now" in text


def test_damage_of_validation_data_and_remarks_of_sources_are_in_the_log(tmp_path: Path) -> None:
    for i in range(12):
        Image.new("RGB", (40, 40), (12 * i, 0, 0)).save(tmp_path / f"{i}.png")
        (tmp_path / f"{i}.txt").write_text(f"A caption of image {i}.")
    (tmp_path / "3.png").write_bytes(b"no image")
    (tmp_path / "alone.txt").write_text("A text without an image.")
    data = ("--data", tmp_path, "--validation", tmp_path)
    start = ("train", recipe(tmp_path), *data, "--out", tmp_path / "run")
    small = ("data.texts.foils=0", "model.text.vocab=520", "train.validate_every=6", "data.max_corrupt=0.5")
    assert call(*start, "--set", *small) == 0
    lines = read_log(tmp_path / "run")
    said = next(line["text"] for line in lines if line["kind"] == "note")
    assert said.startswith("1 texts have no image")
    said = next(line["text"] for line in lines if line["kind"] == "validation")
    assert "the best so far" in said
    assert "1 of 12 samples were skipped: 1 corrupt image" in said


def test_each_kind_of_damage_is_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ("train", recipe(tmp_path), "--out", tmp_path / "run", "--set", "train.save_every=9")
    assert call(*start, "train.max_steps=20") == 0
    lines = read_log(tmp_path / "run")
    assert [line["truncated"] > 0 for line in lines if line["kind"] == "epoch"] == [True] * 5
    assert [line["step"] for line in lines if line["kind"] == "corrupt"] == [5]  # the end of the first epoch
    assert capsys.readouterr().out.count("were truncated") == 1


def test_a_run_without_its_log_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ("train", recipe(tmp_path), "--out", tmp_path / "run", "--set", "train.max_steps=2")
    assert call(*start) == 0
    (tmp_path / "run" / "log.jsonl").unlink()
    assert "run has checkpoints but no log.jsonl" in complaint(capsys, *start, "--resume")
    os.mkfifo(tmp_path / "run" / "log.jsonl")
    assert "run has checkpoints but no log.jsonl" in complaint(capsys, *start, "--resume")


def test_the_folder_of_training_images_does_not_keep_others_from_validation(tmp_path: Path) -> None:
    for i in range(12):
        Image.new("RGB", (40, 40), (12 * i, 0, 0)).save(tmp_path / f"{i}.png")
    table = tmp_path.parent / f"{tmp_path.name}.csv"
    table.write_text("image,caption\n" + "".join(f"{i}.png,A caption of image {i}.\n" for i in range(12)))
    data = ("--data", table, "--images", tmp_path, "--validation", "scenes:dev?count=4")
    small = ("data.texts.foils=0", "model.text.vocab=520", "train.validate_every=6")
    assert call("train", recipe(tmp_path), *data, "--out", tmp_path / "run", "--set", *small) == 0
