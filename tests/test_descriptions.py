"""Descriptions of images: their files, captions held back, and the way to a method that reads them."""

import json
from pathlib import Path
from typing import Any

import description_method
import numpy as np
import pytest
import torch
from description_method import NAME, Reader, recipe
from indexes import TEXTS, photos, saved, tiny_model
from indexes import texts as null_texts
from PIL import Image
from runs import call, complaint, logged
from test_pack import Listed

from grainline.data.batches import collate
from grainline.data.dataset import Draw, TrainSet
from grainline.data.descriptions import Described, Descriptions, WithDescriptions
from grainline.data.formats.joined import SourceWrapper, WithoutCaptions
from grainline.data.formats.joined import without_images as bare
from grainline.data.open_source import open_source, open_sources, takes_images
from grainline.data.record import Cause, CorruptSample, Foil, Record
from grainline.data.texts import TextsConfig, windows
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import EvalTransform, SameTransform
from grainline.errors import UserError
from grainline.evaluation.suite import variant
from grainline.evaluation.suites.grouped import captions_of
from grainline.index.search import open_index
from grainline.index.sync import build, refresh
from grainline.methods import METHODS
from grainline.model import Model
from grainline.training.recipe import read_recipe, with_descriptions
from grainline.types import Images, concat, description_texts, each, rows

LONG = " ".join(TEXTS[:6])


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return Tokenizer.train(TEXTS, vocab=540)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, NAME, f"{Reader.__module__}:Reader")


def words(tokenizer: Tokenizer, ids: list[list[int]]) -> list[str]:
    return [tokenizer.decode(part) for part in ids]


def test_windows_are_whole_sentences_as_many_as_fit_in_order(toy: Tokenizer) -> None:
    said = ["a red dog runs.", "the sand is red.", "a cat.", "it sleeps."]
    lengths = [len(ids) - 2 for ids in toy.encode(said, 99).ids]
    context = 2 + lengths[0] + lengths[1]
    result = windows(toy, [" ".join(said).title()], context)
    halves = [toy.encode([" ".join(part)], 99).ids[0] for part in (said[:2], said[2:])]
    assert words(toy, result.ids[0]) == words(toy, halves)
    assert result.truncated_tokens == [0]
    assert {(part[0], part[-1]) for part in result.ids[0]} == {(toy.begin, toy.end)}
    assert max(map(len, result.ids[0])) <= context
    less = windows(toy, [" ".join(said).title()], context - 1).ids[0]
    assert words(toy, less)[0] == toy.decode(toy.encode(said[:1], 99).ids[0])


SHADES = [Image.new("RGB", (8, 8), (80 * i,) * 3) for i in range(3)]
THREE = Listed([Record(f"{i}.jpg", image, ("A dog.", "A cat."), LONG) for i, image in enumerate(SHADES)])


def train_set(source: Any, tokenizer: Tokenizer, context: int = 12) -> TrainSet:
    crop = SameTransform(EvalTransform(8))
    return TrainSet(source, tokenizer, crop, TextsConfig(captions="first"), context=context, seed=1)


def test_a_batch_holds_the_description_of_each_image_in_its_row(toy: Tokenizer, tmp_path: Path) -> None:
    texts = {"0.jpg": "A red dog runs.", "1.jpg": LONG, "2.jpg": "Grass."}
    file = description_method.file(tmp_path / "a.jsonl", texts)
    data = train_set(WithDescriptions(THREE, Descriptions([str(file)])), toy)
    order = [2, 1, 0]
    batch = collate([data[Draw(i, 0, image)] for i, image in enumerate(order)])
    dense = batch.images.dense
    assert dense is not None
    for row, image in enumerate(order):
        parts = windows(toy, [texts[f"{image}.jpg"]], 12).ids[0]
        kept = [ids[mask].tolist() for ids, mask in zip(dense.ids[row], dense.mask[row], strict=True)]
        assert [ids for ids in kept if ids] == parts
        assert (dense.image[row], dense.item[row]) == (image, image)
    assert dense.ids.shape[1] > 1
    assert batch.truncated == 0
    assert collate([train_set(THREE, toy)[Draw(0, 0, 0)]]).images.dense is None


def test_rows_concat_and_each_carry_descriptions_along() -> None:
    number = torch.arange(3)
    dense = description_texts([[[1, 2]], [[1, 5, 2], [1, 2]], [[3]]], number)
    images = Images(torch.zeros(3, 3, 8, 8), number, dense=dense)
    some = rows(images, torch.tensor([2, 1]))
    assert some.dense is not None
    assert some.dense.image.tolist() == [2, 1]
    assert some.dense.ids[1].tolist() == [[1, 5, 2], [1, 2, 0]]
    back = concat([rows(images, slice(0, 1)), rows(images, slice(1, 3))])
    assert back.dense is not None
    assert images.dense is not None
    assert all(torch.equal(a, b) for a, b in zip(back.dense, images.dense, strict=True))
    doubled = each(lambda x: torch.cat([x, x]), images)
    assert doubled.dense is not None
    assert len(doubled.dense.ids) == 6


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"image_id": "a", "text": "A."}', '{"text": "B."}'], "line 2 has no image_id"),
        (['{"image_id": "a", "text": "A."}'] * 2, "lines 1 and 2 both describe a"),
        (['{"image_id": "a", "text": " "}'], "line 1 has no text for a"),
        (['{"image_id": 7, "text": "A."}'], "line 1 has no image_id"),
        (['{"image_id": "a"'], "line 1 is not JSON"),
        (["[1]"], "line 1 is no JSON object"),
        (['{"grainline": "phrases 1"}', '{"image_id": "a", "text": "A."}'], "holds 'phrases 1', not"),
        (['{"grainline": "descriptions 1"}', '{"record": 0, "skipped": "x"}'], "holds no description"),
        ([], "holds no description"),
    ],
)
def test_a_file_that_cannot_be_used_is_reported(lines: list[str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(UserError) as error:
        Descriptions([str(path)])
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_several_files_are_one_and_no_image_stands_in_two(tmp_path: Path) -> None:
    one = description_method.file(tmp_path / "a.jsonl", {"a": "A."})
    two = description_method.file(tmp_path / "b.jsonl", {"b": "B."})
    loaded = Descriptions([str(one), str(two)])
    assert (loaded.get("a"), loaded.get("b"), loaded.get("c")) == ("A.", "B.", None)
    assert len(set(loaded.sha256)) == 2
    assert "both" not in str(loaded)
    with pytest.raises(UserError, match=r"describe a: leave one"):
        Descriptions([str(one), str(one)])
    with pytest.raises(UserError, match="not both"):
        Descriptions(["long", str(one)])
    with pytest.raises(UserError, match="cannot read the descriptions"):
        Descriptions([str(tmp_path / "c.jsonl")])


def test_long_is_the_long_caption_of_the_record() -> None:
    record = open_source("scenes:dev?count=1", size=32)[0]
    output = Descriptions(["long"])
    assert output.of(record) == record.long
    assert output.sha256 == ()
    with pytest.raises(UserError, match="a has no long caption"):
        output.of(Record("a", b"", ("A dog.",)))


def test_captions_are_withheld_wherever_the_source_is_read(tmp_path: Path) -> None:
    said = {"a.png": ["zero", "one", "two"], "b.png": ["zero", "one"]}
    rows = [{"image": name, "captions": captions} for name, captions in said.items()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        Image.new("RGB", (8, 8)).save(tmp_path / str(row["image"]))
    path = str(tmp_path / "rows.jsonl")
    whole, withheld = open_source(path), open_source(f"{path}?skip=0,1")
    assert withheld[0].captions == ("two",)
    assert withheld[0].key == whole[0].key
    with pytest.raises(CorruptSample) as damaged:
        withheld[1]
    assert damaged.value.cause == Cause.MISSING_CAPTION
    assert withheld.fingerprint() != whole.fingerprint()
    assert withheld.fingerprint() != open_source(f"{path}?skip=0").fingerprint()
    assert open_source(f"{path}?caption=captions&skip=1")[1].captions == ("zero",)
    assert takes_images(f"{path}?skip=0")
    both = open_sources([f"{path}?skip=1", path])
    assert (both[0].captions, both[2].captions) == (("zero", "two"), ("zero", "one", "two"))
    assert len(open_source("scenes:dev?count=2&skip=1", size=32)) == 2
    with pytest.raises(UserError, match="numbers of captions"):
        open_source(f"{path}?skip=first")


def reader() -> Model:
    return tiny_model(NAME, changes=["image.size=8"])


def test_withheld_captions_take_their_phrases_and_foils_along(tmp_path: Path) -> None:
    (tmp_path / "Sentences").mkdir()
    (tmp_path / "val.txt").write_text("7")
    wording = "[/EN#1/other a cat] runs\n[/EN#2/other a red dog] sits\nfar away [/EN#1/other two birds]"
    (tmp_path / "Sentences" / "7.txt").write_text(wording)
    path = f"flickr30k-entities:{tmp_path}?split=val"
    source = variant(open_source(f"{path}&skip=1"), "texts_only")
    outcome = source[0]
    assert outcome.captions == ("a cat runs", "far away two birds")
    assert [region.span for region in outcome.regions] == [("captions.0", 0, 5), ("captions.1", 9, 18)]
    assert [len(caption.phrases) for caption in captions_of(outcome)] == [1, 1]
    texts = tmp_path / "a.txt"
    texts.write_text("a dog\n")
    assert bare(open_source(f"texts:{texts}?skip=3")).endswith("a.txt")
    foils = tuple(Foil(f"no {text}", text, "noun") for text in ("a", "b"))

    class One(SourceWrapper):
        def __getitem__(self, index: int) -> Record:
            return Record("k", b"", ("a", "b"), foils=foils)

    assert WithoutCaptions(One(source), (0,))[0].foils == foils[1:]


def test_a_model_encodes_images_with_their_descriptions() -> None:
    model = reader()
    image = Image.new("RGB", (8, 8), (200, 10, 10))
    one, two = (model.encode(images=[Described(image, text)]).vector for text in (TEXTS[0], TEXTS[9]))
    assert not torch.allclose(one, two)
    both = model.encode(images=[Described(image, TEXTS[0]), Described(image, TEXTS[9])]).vector
    torch.testing.assert_close(both, torch.cat([one, two]), atol=1e-5, rtol=0)
    model.batch = 1  # one after the other, each with its own
    apart = model.encode(images=[Described(image, TEXTS[0]), Described(image, TEXTS[9])]).vector
    torch.testing.assert_close(apart, both, atol=1e-5, rtol=0)
    assert model.heat(Described(image, TEXTS[0]), ["A dog."]).shape == (1, 8, 8)
    with pytest.raises(UserError, match="reader reads a description with each image"):
        model.encode(images=[Described(image, TEXTS[0]), image])
    assert torch.equal(model.encode(images=Described(image, TEXTS[0])).vector, one)
    plain = tiny_model("clip")
    described, bare_image = (plain.encode(images=[x]).vector for x in (Described(image, "x"), image))
    assert torch.equal(described, bare_image)


def test_a_run_reads_descriptions_in_training_and_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = open_source("scenes:train?count=16", size=32)
    texts = {source[i].key: str(source[i].long) for i in range(16)}
    file, name = description_method.file(tmp_path / "a.jsonl", texts), recipe(tmp_path)
    assert "name a file" in complaint(capsys, "train", name, "--out", tmp_path / "none")
    given = ("--set", f"data.descriptions=[{file}]")
    assert call("train", name, "--out", tmp_path / "run", *given) == 0
    kept = read_recipe(str(tmp_path / "run" / "recipe.yaml"), [])
    assert kept.data.descriptions_sha256 == Descriptions([str(file)]).sha256
    own = "data.descriptions=long", "data.validation=['scenes:dev?count=4']", "train.validate_every=4"
    assert call("train", name, "--out", tmp_path / "own", "--set", *own) == 0
    logs = [logged(tmp_path / run) for run in ("run", "own")]
    losses = [[line["terms"]["loss"] for line in log if line["kind"] == "train"] for log in logs]
    assert losses[0] == losses[1]  # a file of long captions is the long captions
    data = ("--data", "scenes:dev?count=4", "--captions", "first")
    whole = complaint(capsys, "evaluate", tmp_path / "own", *data[:2], "--captions", "whole")
    assert "--captions whole reads the long captions" in whole
    said = complaint(capsys, "evaluate", tmp_path / "run", *data)
    assert "no description of" in said
    out = tmp_path / "result.json"
    pages = ("--json", out, "--html", tmp_path / "page.html")
    assert call("evaluate", tmp_path / "run", *data, "--descriptions", "long", *pages) == 0
    assert json.loads(out.read_text())["settings"]["descriptions"] == "the long captions of the records"
    assert call("evaluate", tmp_path / "own", *data) == 0
    vectors = ("encode", tmp_path / "own", "scenes:dev?count=2", "--out", tmp_path / "vectors")
    assert call(*vectors) == 0
    file.write_text(file.read_text().replace("red", "blue"))
    again = complaint(capsys, "train", name, "--out", tmp_path / "run", "--resume", *given)
    assert "differs in data.descriptions_sha256" in again


def test_what_a_recipe_says_of_its_descriptions_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = description_method.file(tmp_path / "a.jsonl", {"a": "A."})
    base = read_recipe(str(recipe(tmp_path)), [f"data.descriptions=[{file}]"])
    digested, actual = with_descriptions(base.data)
    assert actual is not None
    assert with_descriptions(digested)[0] == digested
    description_method.file(file, {"a": "B."})
    with pytest.raises(UserError, match=r"does not have data\.descriptions_sha256"):
        with_descriptions(digested)
    alone = read_recipe(str(recipe(tmp_path)), ["data.descriptions_sha256=[ab]"])
    with pytest.raises(UserError, match="names no file"):
        with_descriptions(alone.data)
    clip = ("--set", "method=clip", "data.descriptions=[long]")
    assert "clip reads none" in complaint(capsys, "train", recipe(tmp_path), "--out", tmp_path / "x", *clip)


def described_photos(folder: Path) -> dict[str, str]:
    """Images below `photos` in a folder, and a description of each."""
    root = photos(folder / "photos", 4)
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    return {path: TEXTS[3 * i] for i, path in enumerate(paths)}


def test_an_index_holds_images_as_their_descriptions_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described, model, root = described_photos(tmp_path), reader(), tmp_path / "photos"
    file, out = description_method.file(tmp_path / "a.jsonl", described), tmp_path / "index"
    weights, null = saved(model, tmp_path / "model"), null_texts(tmp_path)
    begin = ("index", "build", root, "--model", weights, "--calibration-texts", null, "--out", out)
    assert "name a file" in complaint(capsys, *begin)
    assert "name files" in complaint(capsys, *begin, "--descriptions", "long")
    assert call(*begin, "--descriptions", file) == 0
    index = open_index(out)
    queries = [Described(root / path, text) for path, text in described.items()]
    rows = [index.reader.numbers[path] for path in described]
    stored = torch.from_numpy(index.reader.take("vectors", np.array(rows)))
    torch.testing.assert_close(stored, model.encode(images=queries).vector, atol=1e-6, rtol=0)
    heat, expected = (
        index.heat([(rows[0], ["A dog."])])[0],
        model.heat(queries[0], ["A dog."], index._heat_null),
    )
    torch.testing.assert_close(heat, expected, atol=1e-5, rtol=0)
    assert index.search_images(queries[:1], 1)[0].query == str(root / next(iter(described)))
    page = ("--html", tmp_path / "page.html", "--heat", tmp_path / "heat")
    assert call("search", out, "A red dog. It runs.", *page) == 0
    assert "go with --image" in complaint(capsys, "search", out, "a dog", "--descriptions", file)
    assert call("search", out, "--image", root / "01.png") == 0  # its description lies in the index
    Image.new("RGB", (12, 9), (60, 90, 20)).save(tmp_path / "new.png")
    query = ("search", out, "--image", tmp_path / "new.png")
    assert f"{tmp_path / 'new.png'} has none" in complaint(capsys, *query)
    description_method.file(tmp_path / "new.jsonl", {"new.png": "A dog."})
    assert call(*query, "--descriptions", tmp_path / "new.jsonl") == 0
    plain = saved(tiny_model("maxsim"), tmp_path / "plain")
    begin = (
        "index",
        "build",
        root,
        "--model",
        plain,
        "--calibration-texts",
        null,
        "--out",
        tmp_path / "other",
    )
    assert "maxsim reads none" in complaint(capsys, *begin, "--descriptions", file)


def test_a_changed_description_is_a_changed_image(tmp_path: Path) -> None:
    described, model, root = described_photos(tmp_path), reader(), tmp_path / "photos"
    file, out = description_method.file(tmp_path / "a.jsonl", described), tmp_path / "index"
    build(root, out, model=model, calibration_texts=null_texts(tmp_path), descriptions=[str(file)])
    assert refresh(out, model=model).unchanged == 4  # the index remembers the file
    described["01.png"] = TEXTS[20]
    description_method.file(file, described)
    report = refresh(out, model=model)
    assert (report.changed, report.encoded, report.unchanged) == (1, 1, 3)
    (root / "copy.png").write_bytes((root / "01.png").read_bytes())
    with pytest.raises(UserError, match=r"no description of copy\.png"):
        refresh(out, model=model)
    described["copy.png"] = TEXTS[21]
    description_method.file(file, described)
    assert refresh(out, model=model).encoded == 1  # the same bytes with another description
    opened, names = open_index(out, model).reader, ("01.png", "copy.png")
    stored = torch.from_numpy(opened.take("vectors", np.array([opened.numbers[name] for name in names])))
    expected = model.encode(images=[Described(root / name, described[name]) for name in names]).vector
    torch.testing.assert_close(stored, expected, atol=1e-6, rtol=0)
    assert not torch.allclose(stored[0], stored[1])
