"""Data that are given in Python: pairs, data sets of PyTorch and Hugging Face, and training on them."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from runs import complaint, logged, recipe
from torch.utils.data import Dataset

import grainline
from grainline.data.decode import as_png, decode
from grainline.data.open_source import open_source, register
from grainline.data.pairs import REGISTERED, Pairs, source_of
from grainline.data.record import Cause, CorruptSample
from grainline.errors import UserError

datasets = pytest.importorskip("datasets")


def image(number: int) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def pairs(count: int = 12) -> list[tuple[Any, Any]]:
    return [(image(i), [f"Image number {i}.", f"It is the {i}th."]) for i in range(count)]


class Shelf(Dataset[Any]):
    """A map-style data set of dicts."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": np.asarray(image(index)), "text": f"Image number {index}.", "label": 3}


def hugging() -> Any:
    columns = {"image": [image(i) for i in range(12)], "text": [f"Image number {i}." for i in range(12)]}
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.mark.parametrize("data", [pairs(), Shelf(), hugging()], ids=["pairs", "torch", "hugging face"])
def test_every_form_gives_the_same_records(data: Any) -> None:
    source = source_of(data)
    assert len(source) == 12
    record = source[3]
    assert record.captions[0] == "Image number 3."
    assert decode(record).tobytes() == image(3).tobytes()
    assert source[-1].key == "11"
    with pytest.raises(IndexError):
        source[12]
    assert source.fingerprint() == source_of(data).fingerprint()
    again = pickle.loads(pickle.dumps(source))  # as it is sent to processes that load
    assert decode(again[3]).tobytes() == image(3).tobytes()


def test_images_of_pairs_may_be_paths_bytes_and_arrays(tmp_path: Path) -> None:
    image(0).save(tmp_path / "a.png")
    forms = [tmp_path / "a.png", str(tmp_path / "a.png"), as_png(image(0)), np.asarray(image(0)), image(0)]
    source = Pairs([(form, "A dog.") for form in forms])
    assert {decode(source[i]).tobytes() for i in range(len(forms))} == {image(0).tobytes()}


def test_fingerprints_tell_images_captions_and_order_apart() -> None:
    base = pairs(3)
    others = [base[:2], base[::-1], [*base[:2], (image(9), base[2][1])], [*base[:2], (base[2][0], "Else.")]]
    prints = {Pairs(items).fingerprint() for items in (base, *others)}
    assert len(prints) == 5
    assert Pairs(list(base)).fingerprint() in prints


def test_items_that_cannot_be_used_are_corrupt_samples() -> None:
    items = [("gone.png", "A dog."), (image(0), " "), (None, "A dog."), (image(0), "A dog.")]
    source = Pairs(items)
    for number, cause in enumerate((Cause.UNREADABLE_FILE, Cause.MISSING_CAPTION, Cause.MISSING_IMAGE)):
        with pytest.raises(CorruptSample) as error:
            source[number]
        assert (error.value.cause, f"item {number}" in error.value.where) == (cause, True)
    assert source[3].captions == ("A dog.",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "is empty"),
        ({"image": []}, "data of type dict; give a path, a list of pairs"),
        ([{"photo": 1, "text": "a"}], "has no image column among photo, text"),
        (iter([]), "data of type list_iterator"),
        (3, "data of type int"),
    ],
)
def test_what_is_no_data_is_one_line(data: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        register(data)


def test_an_item_of_another_form_is_named() -> None:
    with pytest.raises(UserError, match=r"pairs: item 0 is of type str; a pair is"):
        Pairs(["a.jpg"])[0]


def test_a_folder_of_save_to_disk_is_opened_by_its_path(tmp_path: Path) -> None:
    data = hugging()
    data.save_to_disk(tmp_path / "set")
    source = open_source(str(tmp_path / "set"))
    assert len(source) == 12
    assert isinstance(source[2].image, bytes), "decoded when it is used"
    assert decode(source[2]).tobytes() == image(2).tobytes()
    renamed = data.rename_columns({"image": "photo", "text": "words"})
    renamed.save_to_disk(tmp_path / "other")
    with pytest.raises(UserError, match="has no image column among photo, words"):
        open_source(f"hf:{tmp_path / 'other'}")
    other = open_source(f"hf:{tmp_path / 'other'}?image=photo&caption=words")
    assert other[1].captions == ("Image number 1.",)
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(tmp_path / "both")
    with pytest.raises(UserError, match="holds several splits, train, test: name the folder of one"):
        open_source(str(tmp_path / "both"))


def test_a_name_of_the_hub_is_loaded_by_its_split(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def load(name: str, config: str | None, *, split: str) -> Any:
        calls.append((name, config, split))
        if name == "no/such":
            raise FileNotFoundError("Dataset no/such does not exist\nmore")
        return hugging()

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(open_source("hf:some/photos:validation?config=small")) == 12
    assert len(open_source("hf:some/photos")) == 12
    assert calls == [("some/photos", "small", "validation"), ("some/photos", None, "train")]
    with pytest.raises(UserError, match=r"hf:no/such: .* no data set \(Dataset no/such does not exist\)"):
        open_source("hf:no/such:train")


@pytest.mark.parametrize(("method", "reads"), [("clip", ""), ("maxsim", r" a part, or behind \d+ parts")])
def test_a_run_begins_with_what_it_trains_on_and_what_becomes_of_texts(
    method: str, reads: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [(image(i), [f"a thing of number {i} that is rather long", "another one"]) for i in range(4)]
    changes = {"model.text.context": 8}
    own, settings = recipe(tmp_path, method), {"max_steps": 1, "global_batch_size": 4}
    grainline.train(own, tmp_path / "x", data=data, changes=changes, **settings)
    line = r"training on the CPU: 4 images, 8 captions, [\d.]+ M parameters, a tokenizer of [\d,]+ tokens"
    assert re.fullmatch(line, capsys.readouterr().out.splitlines()[0])
    notes = "\n".join(line["text"] for line in logged(tmp_path / "x") if line["kind"] == "note")
    assert re.search(f"[1-4] of 4 texts are cut at 8 tokens{reads}: set model.text.context=16 or more", notes)
    assert "several captions of an image are joined to one text; data.texts.captions=random takes" in notes


def test_training_with_keywords_on_pairs_and_resuming_with_the_same(tmp_path: Path) -> None:
    out, own = tmp_path / "run", recipe(tmp_path)
    settings = {"global_batch_size": 4, "save_every": 2, "lr": 1e-3, "workers": 1}
    settings |= {"changes": {"train.optimizer.schedule": {"kind": "cosine", "warmup": 50}}}
    validated: dict[str, Any] = {"validation": pairs(4), "validate_every": 2}
    last = grainline.train(own, out, data=pairs(), max_steps=2, **validated, **settings)
    assert last == out / "last"
    notes = [line["text"] for line in logged(out) if line["kind"] == "note"]
    warm = "warm-up (50 steps) is longer than the run (2): set train.optimizer.schedule.warmup=1"
    assert notes.count(warm) == 1
    text = (out / "recipe.yaml").read_text()
    assert "python:" in text
    assert "lr: 0.001" in text
    model = grainline.load(out)
    assert model.encode(images=image(0)).vector.shape[0] == 1
    with pytest.raises(UserError, match=r"it differs in data\.paths"):
        grainline.train(own, out, data=pairs(11), resume=True, max_steps=2, **settings)
    REGISTERED.clear()
    with pytest.raises(UserError, match="was given in Python, by another process"):
        grainline.train(str(out / "recipe.yaml"), tmp_path / "other")


def test_settings_by_path_and_unknown_ones(tmp_path: Path) -> None:
    own = recipe(tmp_path)
    with pytest.raises(UserError, match=r"unknown setting 'max_step' \(did you mean max_steps\?\)"):
        grainline.train(own, tmp_path / "x", data=pairs(), max_step=3)
    with pytest.raises(UserError, match=r"unknown field 'train\.stesp'"):
        grainline.train(own, tmp_path / "x", data=pairs(), changes={"train.stesp": 3})


def test_a_folder_of_the_library_trains_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hugging().save_to_disk(tmp_path / "set")
    data = f"hf:{tmp_path / 'set'}?caption=none"
    line = complaint(capsys, "train", recipe(tmp_path), "--data", data, "--out", tmp_path / "x")
    assert "has no column none; its columns are image, text" in line
