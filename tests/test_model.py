"""`grainline.Model`: what encode takes and returns, similarity, and saving, with every method."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from indexes import tiny_model
from make import CASES, SEGMENTS, TINY
from PIL import Image
from torch import Tensor

import grainline
from grainline.build import shared_config
from grainline.data.decode import as_png
from grainline.data.descriptions import Described
from grainline.errors import UserError
from grainline.hub import fingerprint
from grainline.methods import METHODS
from grainline.model import Model

TEXTS = ["A red square.", "A blue circle stands below it. The ground is green.", "Nothing."]


def model_of(method: str) -> Model:
    return tiny_model(method, 0, SEGMENTS if method == "caft" else TINY, CASES[method][1])


def photos(model: Model, count: int = 5) -> list[Any]:
    rng = np.random.default_rng(0)
    out: list[Any] = [
        Image.fromarray(rng.integers(0, 256, (9 + i, 12, 3), dtype=np.uint8)) for i in range(count)
    ]
    return [Described(image, "A small image.") for image in out] if model.method.reads_descriptions else out


@pytest.fixture(scope="module", params=METHODS)
def model(request: pytest.FixtureRequest) -> Model:
    return model_of(request.param)


@pytest.fixture(scope="module")
def clip() -> Model:
    return model_of("clip")


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


def test_the_names_of_the_package_are_listed() -> None:
    assert set(grainline.__all__) == set(dir(grainline))
    assert all(getattr(grainline, name) for name in dir(grainline))
    assert "from_pretrained" in (grainline.__doc__ or "")


def test_repr_says_method_encoders_sizes_parameters_and_device(model: Model) -> None:
    text = repr(model)
    number = sum(x.numel() for x in model.method.parameters())
    for part in (model.description.method, f"{number:,}", "8 x 8 pixels", "24 tokens", "device: cpu"):
        assert part in text
    assert ("the unit mean of the vectors of its sentences" in text) == model.method.by_sentence


def test_batches_devices_and_iterators_change_nothing(model: Model) -> None:
    images = photos(model)
    whole = model.encode(images=images)
    for some in (
        model.encode(images=iter(images), batch_size=2),
        model.encode(images=tuple(images), batch_size=1),
        model.encode(images=images, device="cpu", show_progress_bar=True),
    ):
        close(some.vector, whole.vector)
        close(some.tokens, whole.tokens)
        assert some.item.tolist() == some.image.tolist() == list(range(len(images)))
    texts = model.encode(texts=(text for text in TEXTS), batch_size=1)
    close(texts.vector, model.encode(texts=TEXTS).vector)
    assert texts.image.tolist() == [-1] * 3


def test_every_form_of_an_image_is_the_same_image(clip: Model, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (12, 9, 3), dtype=np.uint8)
    image, path = Image.fromarray(pixels), tmp_path / "a.png"
    image.save(path)
    chw = torch.from_numpy(pixels).permute(2, 0, 1)
    expected = clip.encode(images=[image]).vector
    for form in (
        path, str(path), as_png(image), image, pixels, pixels / 255, pixels.astype(np.float32) / 255,
        chw, chw / 255, [path], pixels[None], chw[None], np.array([str(path)]), iter([pixels]),
    ):  # fmt: skip
        assert torch.equal(clip.encode(images=form).vector, expected), type(form)
    grey = clip.encode(images=pixels[:, :, 0]).vector
    assert torch.equal(grey, clip.encode(images=Image.fromarray(pixels[:, :, 0])).vector)
    assert torch.equal(grey, clip.encode(images=chw[:1]).vector)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "encode takes images=... or texts=..., one of them"),
        ({"images": "a.png", "texts": "a"}, "one of them"),
        ({"images": np.zeros((3, 8, 8))}, r"this one is a ndarray float64 \[3, 8, 8\]"),
        ({"images": torch.zeros(8, 8, 3)}, r"this one is a Tensor torch.float32 \[8, 8, 3\]"),
        ({"images": np.full((8, 8, 3), 2.0)}, "floats of an image lie in 0..1"),
        ({"images": np.full((8, 8, 3), np.nan)}, "floats of an image lie in 0..1"),
        ({"images": np.zeros((8, 8, 3), np.int64)}, "pixels are uint8 in 0..255 or floats"),
        ({"images": np.zeros((0, 8, 3))}, r"\[0, 8, 3\]"),
        ({"images": [None]}, "this one is of type NoneType"),
        ({"images": {"a": 1}}, "give one image, a list or an iterator; this is of type dict"),
        ({"texts": {"a", "b"}}, "give one text, a list or an iterator; this is of type set"),
        ({"texts": 5}, "this is of type int"),
        ({"texts": ["a", 3]}, "texts must be strings"),
        ({"texts": []}, "nothing to encode"),
        ({"images": iter([])}, "nothing to encode"),
        ({"texts": "a", "batch_size": 0}, "batch_size is 0"),
        ({"texts": "a", "convert_to_numpy": True, "convert_to_tensor": True}, "not both"),
    ],
)  # fmt: skip
def test_what_cannot_be_encoded_is_one_line(clip: Model, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        clip.encode(**values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("side", ["images", "texts"])
def test_vectors_and_tokens_that_are_not_finite_are_refused_with_their_number(
    side: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    some: list[Any] = photos(model) if side == "images" else ["a", "b c", "d e f", "g", "h"]
    real, mask = getattr(model.method, f"encode_{side}"), model.encode(**{side: some}).mask
    for field in ("vector", "tokens"):
        if field == "tokens" and not bool(mask[3, :1].any()):
            continue  # this side has none

        def broken(batch: Any, field: str = field) -> Any:
            encoded = real(batch)
            x = getattr(encoded, field).clone()
            x[3].view(-1)[0] = torch.inf
            return encoded._replace(**{field: x})

        monkeypatch.setattr(model.method, f"encode_{side}", broken)
        with pytest.raises(UserError, match=f"for 1 of 5 {side}, the first is number 4"):
            model.encode(**{side: some})


def test_encode_takes_images_and_texts_without_a_name_where_they_are_plain(
    clip: Model, tmp_path: Path
) -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (12, 9, 3), dtype=np.uint8))
    image.save(tmp_path / "a.png")
    file = str(tmp_path / "a.png")
    for inputs in (file, [file], image, [image, file], Path(file), as_png(image), np.asarray(image)):
        named = clip.encode(images=inputs)
        assert torch.equal(clip.encode(inputs).vector, named.vector)
    for inputs in ("a dog", ["a dog", "A cat. It sits at 3.5 m."], ("a",), ""):
        assert torch.equal(clip.encode(inputs).vector, clip.encode(texts=inputs).vector)
    for unclear in (
        "photo.jpg",
        "photos/dog",
        ["a dog", "photo.jpg"],
        [file, "a dog"],
        iter(["a"]),
        {"a": 1},
        np.array(["a"]),
    ):
        with pytest.raises(
            UserError, match=r"may be an image or a text: write images=\[...\] or texts=\[...\]"
        ):
            clip.encode(unclear)
    with pytest.raises(UserError, match="one of them"):
        clip.encode("a dog", texts="a dog")


@pytest.mark.parametrize("device", ["text", "", "cuda:77"])
def test_a_device_that_is_not_there_is_one_line(device: Any, clip: Model) -> None:
    if device != "":
        with pytest.raises(UserError, match=r"device .* cannot be used \(.*give cpu, cuda or cuda:0"):
            clip.encode(texts="a", device=device)
    with pytest.raises(UserError):
        clip.to(device)


def test_wrong_arguments_say_what_is_allowed(clip: Model, tmp_path: Path) -> None:
    data = "scenes:dev?count=4&size=32"
    for call, message in {
        (
            lambda: grainline.evaluate(clip, data, 5)
        ): "evaluate: suite is 5 (int); allowed: Union[str, Suite[Any]]",
        (lambda: grainline.evaluate(np.eye(2), np.eye(2))): "vectors=(images, texts) and pairs=",
        (lambda: grainline.evaluate(clip, data, batch_size=True)): "batch_size is True (bool); allowed: int",
        (lambda: grainline.train(data, clip)): "train: out is Model(",
        (lambda: grainline.train(["a.csv"], "x")): "; data go by data=",
    }.items():
        with pytest.raises(UserError, match=re.escape(message)):
            call()
    (tmp_path / "mine.csv").write_text("image,caption\n")
    with pytest.raises(UserError, match=r"out is .*mine.csv.* data go by data='.*mine.csv'"):
        grainline.train("photos/starter", tmp_path / "mine.csv")
    with pytest.raises(UserError, match=r"mine.csv is a table, not a model: the model comes first"):
        grainline.load(tmp_path / "mine.csv")
    Image.new("RGB", (8, 8)).save(tmp_path / "mine.JPG", format="jpeg")
    with pytest.raises(UserError, match=r"mine.JPG is an image, not a model: the model comes first"):
        grainline.load(tmp_path / "mine.JPG")


def test_conversions_return_the_vectors_alone(clip: Model) -> None:
    vectors = clip.encode(texts=TEXTS).vector
    array = clip.encode(texts=TEXTS, convert_to_numpy=True)
    assert isinstance(array, np.ndarray)
    assert np.array_equal(array, vectors.numpy())
    assert torch.equal(clip.encode(texts=TEXTS, convert_to_tensor=True), vectors)


def test_similarity_is_the_score_of_the_method_in_either_order(model: Model) -> None:
    images, texts = model.encode(images=photos(model)), model.encode(texts=TEXTS)
    score = model.similarity(images, texts)
    assert score.shape == (5, 3)
    close(score, model.method.score(images, texts))
    close(model.similarity(texts, images), score.T)
    close(model.similarity(texts, texts), texts.vector @ texts.vector.T)
    with pytest.raises(UserError, match="score: the first side is texts; give it images, then texts"):
        model.score(texts, images)
    if model.method.pairwise:
        with pytest.raises(UserError, match="compares parts of images and texts, which bare vectors lack"):
            model.similarity(images.vector, texts.vector)
    else:
        close(model.similarity(images.vector.numpy(), texts), score)
        assert model.similarity(images.vector[0], texts.vector[0]).shape == (1, 1)


def test_a_saved_model_is_read_back_the_same(model: Model, tmp_path: Path) -> None:
    folder = model.save_pretrained(tmp_path / "saved", licence="apache-2.0")
    again = grainline.from_pretrained(folder)
    images = photos(model)
    assert torch.equal(again.encode(images=images).vector, model.encode(images=images).vector)
    assert torch.equal(again.score(images, TEXTS), model.score(images, TEXTS))
    card = (folder / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert f"| method | {model.description.method} |" in card
    model.save(folder)  # the same place again
    with pytest.raises(UserError, match="walk_type is for checkpoints of others"):
        grainline.load(folder, walk_type="short")


def test_saving_spares_what_is_no_saved_model(clip: Model, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place, message in ((tmp_path, "is not empty"), (tmp_path / "notes.txt", "is a file")):
        with pytest.raises(UserError, match=message):
            clip.save(place)
    (tmp_path / "run" / "last").mkdir(parents=True)
    (tmp_path / "run" / "recipe.yaml").write_text("method: clip")
    (tmp_path / "run" / "model.safetensors").write_text("")
    with pytest.raises(UserError, match="is the folder of a run"):
        clip.save(tmp_path / "run")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["notes.txt", "run"]


def test_what_is_shared_names_no_folder_of_this_machine(clip: Model, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(
        f"data: {{paths: ['{tmp_path}/mine/photos.tar', "
        f"'coco:{tmp_path}/mine/a.json?images={tmp_path}/imgs']}}\n"
        f"train: {{max_steps: 2, global_batch_size: 2}}\nmodel: {{}}\ninit_from: {tmp_path}/mine/first\n"
    )
    (tmp_path / "r.json").write_text(
        f'{{"suite": "retrieval", "data": {{"path": "{tmp_path}/mine/test.csv"}},'
        f' "settings": {{"model": "x", "fingerprint": "{fingerprint(clip)}"}}, "metrics": []}}'
    )
    clip.run = tmp_path / "run"
    card = (clip.save(tmp_path / "saved", results=[tmp_path / "r.json"]) / "README.md").read_text()
    clip.run = None
    for line in ("photos.tar, coco:a.json?images=imgs", "| starts from | first |", "retrieval on test.csv"):
        assert line in card
    assert str(tmp_path) not in card
    shared = shared_config({"image": {"pretrained": f"{tmp_path}/vit", "size": 8}, "pretrained": "org/clip"})
    assert shared == {"image": {"pretrained": "vit", "size": 8}, "pretrained": "org/clip"}


def test_the_card_tells_data_budget_and_metrics(clip: Model, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "data: {paths: ['photos/']}\ntrain: {max_steps: 1200, global_batch_size: 64, seed: 3}\nmodel: {}\n"
    )
    (tmp_path / "log.jsonl").write_text('{"kind": "validation", "step": 600, "metrics": {"rSum": 12.5}}\n')
    (tmp_path / "r.json").write_text(
        '{"suite": "retrieval", "data": {"path": "photos/test"},'
        f' "settings": {{"model": "runs/x", "fingerprint": "{fingerprint(clip)}"}},'
        ' "metrics": [{"name": "R@1", "value": 0.25, "low": 0.2, "high": 0.3, "chance": 0.01}]}'
    )
    clip.run = tmp_path
    card = (clip.save(tmp_path / "a") / "README.md").read_text()
    for line in (
        "| data | photos/ |",
        "| budget | 1,200 steps of 64 images |",
        "| rSum | 12.5 | not computed |",
    ):
        assert line in card
    card = (clip.save(tmp_path / "b", results=[tmp_path / "r.json"]) / "README.md").read_text()
    assert "| R@1 | 0.25 | 0.2 to 0.3 | 0.01 |" in card
    assert "not computed" not in card
    with pytest.raises(UserError, match=r"log.jsonl is no result of `grainline evaluate --json`"):
        clip.save(tmp_path / "c", results=[tmp_path / "log.jsonl"])
    own = (tmp_path / "r.json").read_text()
    (tmp_path / "r.json").write_text(own.replace(fingerprint(clip), "another"))
    with pytest.raises(UserError, match=r"r.json was measured with another model, runs/x; give results of"):
        clip.save(tmp_path / "c", results=[tmp_path / "r.json"])
    clip.run = None


def test_the_hub_reads_the_metadata_of_the_card(clip: Model, tmp_path: Path) -> None:
    hostile = f"{tmp_path}/it's | <b>&.tar"
    result = {
        "suite": "retrieval",
        "protocol": "plain",
        "data": {"path": hostile, "images": 1000, "texts": 5000},
        "settings": {"model": "x", "fingerprint": fingerprint(clip), "captions": "each"},
        "metrics": [
            {"name": "text to image R@1", "value": 12.5, "low": 11, "high": 14, "chance": 0.1, "unit": "%"}
        ],
        "notes": ["a | note", f"of {tmp_path}/x"],
    }
    both = [tmp_path / "each.json", tmp_path / "whole.json"]
    both[0].write_text(json.dumps(result))
    result["settings"] = {**result["settings"], "captions": "whole"}  # type: ignore[dict-item]
    both[1].write_text(json.dumps(result))
    folder = clip.save(tmp_path / "m", name="a/b", licence="mit", datasets=["someone/photos"], results=both)
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "grainline"
    assert card.data.license == "mit"
    assert card.data.datasets == ["someone/photos"]
    assert card.data.pipeline_tag
    assert "clip" in card.data.tags
    own = [(x.task_type, x.dataset_name, x.metric_type, x.metric_value) for x in card.data.eval_results]
    wanted = ("image-text-retrieval", "it's | <b>&.tar", "text_to_image_recall_at_1", 12.5)
    assert own == [wanted, wanted], "one entry for each way to read captions"
    assert "<b>" not in card.text
    assert "| <" not in card.text
    assert str(tmp_path) not in card.content
    for line in (
        "| text to image R@1 (%) | 12.5 | 11 to 14 | 0.1 |",
        "- a | note",
        "1,000 images, 5,000 texts",
    ):
        assert line in card.text
    assert "[arXiv 2103.00020](https://arxiv.org/abs/2103.00020)" in card.text
    assert "24 tokens" in card.text
    with pytest.raises(UserError, match="'photos/of/mine' is no data set of the Hugging Face hub"):
        clip.save(tmp_path / "n", datasets=["photos/of/mine"])


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_integers_have_no_similarity(kind: Any, clip: Model) -> None:
    vectors = (100 * clip.encode(texts=TEXTS, convert_to_numpy=True)).astype(kind)
    with pytest.raises(UserError, match="similarity takes floats: compare binary vectors by"):
        clip.similarity(vectors, vectors)


PUSH = """
import os, sys
from pathlib import Path
from hub import hub

folder, home = map(Path, sys.argv[1:])
with hub({}, home / "server") as server:
    os.environ |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home / "cache")}
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    import grainline, grainline.cli.main
    import torch

    model = grainline.load(folder)
    print(model.push_to_hub("someone/model", licence="mit", token="secret"))
    again = grainline.from_pretrained("someone/model", token="secret")
    assert torch.equal(again.encode(texts="a red dog").vector, model.encode(texts="a red dog").vector)
    assert repr(grainline.load("someone/model")) == repr(again)
    pushed = home / "server/someone/model"
    print(*sorted(path.name for path in pushed.iterdir()))
    cards = [(pushed / "README.md").read_text()]
    os.environ["HF_TOKEN"] = "secret"
    for name, options in (("model", ["--licence", "mit"]), ("other", ["--private", "--message", "More"])):
        sys.argv = ["grainline", "push", str(folder), f"someone/{name}", *options]
        try:
            grainline.cli.main.main()
        except SystemExit as end:
            assert end.code == 0
        cards.append((home / "server/someone" / name / "README.md").read_text())
    assert cards[0] == cards[1] and "license: mit" in cards[0]
    assert "license: mit" not in cards[2]
    print([values.get("private") or values.get("visibility") == "private" for values in server.created])
    print([values["summary"] for values in server.commits])
try:
    model.push_to_hub("someone/model")
except grainline.UserError as error:
    print(error)
"""


def test_a_pushed_model_comes_back_from_the_hub(clip: Model, tmp_path: Path) -> None:
    folder = clip.save(tmp_path / "saved")
    tests = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
    command = [sys.executable, "-c", PUSH, str(folder), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    address, files, again, other, private, messages, refused = done.stdout.splitlines()
    assert again == address
    assert other.endswith("/someone/other/commit/" + "c" * 40)
    assert private == "[False, False, True]"
    assert messages == "['Upload a grainline model', 'Upload a grainline model', 'More']"
    assert address.endswith("/someone/model/commit/" + "c" * 40)
    assert files == "README.md model.json model.safetensors tokenizer.json tokenizer_meta.json"
    assert refused.startswith("the Hugging Face hub did not take someone/model (")
