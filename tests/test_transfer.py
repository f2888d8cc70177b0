"""Transfer: what a run was trained on, what of it is in the test data, and retrieval on the rest."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from indexes import TEXTS, photo, saved, tiny_model
from PIL import Image
from test_check import blocks

from grainline.data.open_source import open_source, open_sources
from grainline.errors import UserError
from grainline.evaluation.encode import encode_source
from grainline.evaluation.result import Result
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.retrieval import RetrievalSuite
from grainline.evaluation.suites.transfer import TransferOptions, TransferSuite, compare_data, training_of
from grainline.model import Model


def run_of(folder: Path, method: str = "clip", model: Any = None, **fields: Any) -> Path:
    """A folder that is a run for whoever reads its recipe: `data` and more under their names."""
    saved(tiny_model(method), folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"method": method, "model": model or {}, **fields}))
    return folder


def set_of(folder: Path, seeds: range, prefix: str = "") -> Path:
    """A folder of images of these seeds, with a text each."""
    for i in seeds:
        photo(folder / f"{prefix}{i:02}.png", i).with_suffix(".txt").write_text(TEXTS[5 * i % len(TEXTS)])
    return folder


def compared(run: Path, test: str, **more: Any) -> Any:
    return compare_data(training_of(str(run), **more), open_source(test, size=32), 32)


def surveyed(run: Path, model: Model, test: str, **options: Any) -> Result:
    suite = TransferSuite(TransferOptions(**options))
    suite.open_run(str(run))
    data = suite.encode(model, open_source(test), Settings(batch_size=4, max_corrupt=0.0))
    return suite.measure(model.method, data, Settings(resamples=20))


def test_the_recipe_says_what_a_run_was_trained_on(tmp_path: Path) -> None:
    data = {"paths": ["a.jsonl", "b.csv?image=x"], "images": "images"}
    for name in ("a.jsonl", "b.csv"):
        (tmp_path / name).write_text("{}")
    data["paths"] = [str(tmp_path / path) for path in data["paths"]]
    sides = {"image": {"pretrained": "x/clip"}, "text": {"pretrained": None}}
    first = run_of(tmp_path / "first", data={"paths": ["scenes:train?count=9"], "images": None})
    second = run_of(tmp_path / "second", model=sides, init_from=str(first), data=data)
    named = training_of(str(second))
    assert [(one.path, one.images, one.run) for one in named.data][:2] == [
        (data["paths"][0], "images", str(second)),
        (data["paths"][1], "images", str(second)),
    ]
    assert named.data[2] == ("scenes:train?count=9", None, str(first))
    assert named.unknown == ("the checkpoint x/clip",)
    moved = training_of(str(second), ["scenes:dev"])
    assert [one.path for one in moved.data] == ["scenes:dev", "scenes:train?count=9"]
    gone = run_of(tmp_path / "gone", init_from=str(tmp_path / "nowhere"), data={"paths": ["scenes"]})
    assert training_of(str(gone)).unknown == (f"the run {tmp_path / 'nowhere'}, which is not there any more",)
    circle = run_of(tmp_path / "circle", init_from=str(tmp_path / "circle"), data={"paths": ["scenes"]})
    assert len(training_of(str(circle)).data) == 1
    bare = saved(tiny_model("clip"), tmp_path / "bare")
    for path in (bare, tmp_path / "none" / "at" / "all"):
        with pytest.raises(UserError, match=r"is no run with a recipe\.yaml, so nothing says what it was"):
            training_of(str(path))


def test_images_of_both_are_counted_byte_by_byte_and_keys_beside_them(tmp_path: Path) -> None:
    train = set_of(tmp_path / "train", range(6))
    run = run_of(tmp_path / "run", data={"paths": [str(train)]})
    test = set_of(tmp_path / "test", range(4, 9))  # two are the same, name and all
    (test / "06.png").write_bytes((train / "01.png").read_bytes())  # the same under another name
    photo(test / "05.png", 77)  # another one under the same name
    (test / "08.png").unlink()  # gone: it cannot be compared
    got = compared(run, str(test))
    assert (got.images, got.compared) == (2, 4)
    assert got.keys == 2
    assert got.fingerprints == (open_source(str(train)).fingerprint(),)
    assert got.samples == (6,)
    apart = set_of(tmp_path / "apart", range(20, 23))
    assert compared(run, str(apart))[5:8] == (0, 0, 3)
    two = run_of(tmp_path / "two", data={"paths": [str(apart), str(train)]})
    assert compared(two, str(test))[5:8] == (2, 2, 4)


def test_crops_of_training_images_are_counted_apart_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = tmp_path / "train", tmp_path / "test"
    for folder, seeds in ((train, range(5)), (test, range(3, 8))):
        folder.mkdir()
        for seed in seeds:
            image = blocks(seed) if folder == train or seed == 3 else blocks(seed).crop((6, 4, 314, 236))
            image.save(folder / f"{folder.name}{seed}.png")
            (folder / f"{folder.name}{seed}.txt").write_text("Rectangles.")
    blocks(3).crop((6, 4, 314, 236)).save(train / "crop3.png")
    (train / "crop3.txt").write_text("Rectangles.")
    run = run_of(tmp_path / "run", data={"paths": [str(train)]})
    got = compared(run, str(test))
    assert (got.images, got.compared) == (1, 5), "the same file is no near copy, of its crop neither"
    assert [(Path(a).stem, Path(b).stem) for a, b in got.near] == [("test4", "train4")]
    model = tiny_model("clip")
    result = surveyed(run, model, str(test))
    assert result.settings["card"]["in both"] == "1 of 5 images, byte by byte; 1 more look the same; 0 keys"
    assert any(
        note.startswith("1 of 5 images look like crops or smaller copies of training images")
        for note in result.notes
    )
    monkeypatch.setattr("grainline.data.overlap.LIMIT", 4)
    assert compared(run, str(test)).unlike == 2
    assert any(
        "2 training images were compared by their bytes alone" in note
        for note in surveyed(run, model, str(test)).notes
    )


def test_prefixes_of_joined_sources_hide_nothing(tmp_path: Path) -> None:
    train = set_of(tmp_path / "train", range(3))
    run = run_of(tmp_path / "run", data={"paths": [str(train)]})
    other = set_of(tmp_path / "other", range(2, 5))
    joined = open_sources([str(other), str(set_of(tmp_path / "third", range(2, 9)))])
    got = compare_data(training_of(str(run)), joined, 32)
    assert (got.keys, got.images, got.compared) == (2, 2, 10)


@pytest.mark.parametrize("kind", ["fingerprint", "keys", "bytes", "part"])
def test_the_data_of_training_are_refused(kind: str, tmp_path: Path) -> None:
    train = set_of(tmp_path / "train", range(4))
    run = run_of(tmp_path / "run", data={"paths": ["scenes:train?count=3", str(train)]})
    test, why = train, "their fingerprints are equal"
    if kind == "keys":  # smaller copies of the same images
        test, why = tmp_path / "small", "all 4 keys are the same"
        test.mkdir()
        for path in sorted(train.glob("*.png")):
            Image.open(path).resize((5, 5)).save(test / path.name)
            (test / path.name).with_suffix(".txt").write_text("A small image.")
    if kind in ("bytes", "part"):
        test = set_of(tmp_path / "test", range(4 if kind == "bytes" else 2), "other-")
        why = f"each of its {4 if kind == 'bytes' else 2} images is among those of training"
    with pytest.raises(UserError) as error:
        compared(run, str(test))
    assert str(error.value).startswith(f"{test} is what {run} was trained on (")
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_scenes_are_compared_by_their_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path / "run", data={"paths": ["scenes:train?count=9"]})
    monkeypatch.setattr("grainline.data.scenes.source.render", None)  # nothing is drawn
    for same in ("scenes:train?count=9", "scenes:train?count=9&size=64", "scenes:train?count=5"):
        with pytest.raises(UserError, match=r"is what .* was trained on"):
            compared(run, same)
    more = compared(run, "scenes:train?count=12")
    assert (more.keys, more.images, more.compared) == (9, 9, 12)
    for other in ("scenes:dev?count=9", "scenes:train?count=9&seed=1"):
        assert compared(run, other)[5:] == (0, 0, 9, (), 0)


def test_training_data_that_are_gone_end_in_one_line_and_may_lie_elsewhere(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", data={"paths": [str(tmp_path / "gone")]})
    with pytest.raises(
        UserError, match=r"cannot be opened, so they .*say where they lie with --set train_data=PATH"
    ):
        compared(run, "scenes:dev?count=2")
    train = set_of(tmp_path / "moved", range(3))
    with pytest.raises(UserError, match="their fingerprints are equal"):
        compared(run, str(train), paths=[str(train)])
    assert compared(run, "scenes:dev?count=2", paths=[str(train)]).samples == (3,)


def test_the_metrics_are_those_of_retrieval_with_what_was_trained_on(tmp_path: Path) -> None:
    train, test = set_of(tmp_path / "train", range(4)), set_of(tmp_path / "test", range(3, 12))
    run = run_of(tmp_path / "run", "maxsim", {"pretrained": "x/y"}, data={"paths": [str(train)]})
    model = tiny_model("maxsim")
    result = surveyed(run, model, str(test))
    data = encode_source(model, open_source(str(test)))
    plain = RetrievalSuite().measure(model.method, data, Settings(resamples=20))
    assert result.metrics == plain.metrics
    assert result.suite == "transfer"
    assert result.settings["trained"]["paths"] == [str(train)]
    card = result.settings["card"]
    assert card["trained on"].startswith(f"{train}: 4 samples, fingerprint ")
    assert card["began with"] == "the checkpoint x/y"
    assert card["in both"] == "1 of 9 images, byte by byte; 0 more look the same; 1 keys"
    assert "1 of 9 images were trained on, byte by byte" in result.notes
    assert "what the checkpoint x/y learnt from is not known here, nor compared" in result.notes
    with pytest.raises(UserError, match=r"9 images in .*; flickr30k-1k needs exactly 1000"):
        surveyed(run, model, str(test), protocol="flickr30k-1k")
