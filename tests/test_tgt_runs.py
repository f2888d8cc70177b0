"""Runs of the Text Group Transformer: on captions without images, on scenes, and from an earlier run."""

import gzip
import json
import re
from pathlib import Path
from random import Random

import pytest
import torch
from runs import call, complaint, logged
from safetensors.torch import load_file

from grainline.data.captions import crop_words
from grainline.data.open_source import open_source
from grainline.data.record import CorruptSample
from grainline.data.transforms import TrainTransform
from grainline.loading import load
from grainline.recipes import names
from grainline.training.recipe import read_recipe

TEXTS = [
    "A dog runs over wet sand.", "Two men in green shirts stand in a yard.", "A girl climbs the stairs.",
    "A red disc lies left of a blue ring.", "Workers look down at a machine.", "A boy throws a ball.",
]  # fmt: skip
SMALL = (
    "train.max_steps=2", "train.global_batch_size=4", "train.save_every=2", "train.log_every=1",
    "data.workers=0",
    "data.tokenizer_samples=12", "model.text.width=32", "model.text.depth=1", "model.text.later=1",
    "model.text.heads=2", "model.text.vocab=600", "model.width=16", "train.optimizer.schedule.warmup=0",
)  # fmt: skip
SEEN = ("model.image.width=32", "model.image.depth=1", "model.image.heads=2", "model.image.size=32")
SCENES = ('data.paths=["scenes:train?count=12"]',)


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    path = tmp_path / "captions.jsonl.gz"
    lines = [json.dumps({"image": f"{i}.jpg", "captions": [text, text]}) for i, text in enumerate(TEXTS)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_captions_alone_are_records_with_a_image_that_stands_for_none(captions: Path) -> None:
    source = open_source(f"texts:{captions}")
    assert len(source) == 6
    assert source[1].captions == (TEXTS[1], TEXTS[1])
    assert source[1].key == "2"
    assert source.remarks == ("captions without images: a grey square stands for each",)  # type: ignore[attr-defined]
    pixels = TrainTransform(16)(source[0].image, Random(0))
    assert pixels.shape == (3, 16, 16)
    assert (pixels == 128).all()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one dog\n\ntwo cats\n"),
        ("a.jsonl", '{"text": "one dog"}\n{"caption": "two cats"}\n'),
        ("a.json", '[{"sentences": ["one dog"]}, {"description": "two cats"}]'),
    ],
)
def test_forms_of_files_of_texts(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    source = open_source(f"texts:{path}")
    assert [record.captions for record in (source[0], source[1])] == [("one dog",), ("two cats",)]
    assert source.fingerprint() != open_source(f"texts:{_other(path, content)}").fingerprint()


def _other(path: Path, content: str) -> Path:
    other = path.with_stem("b")
    other.write_text(content.replace("dog", "fox"))
    return other


def test_damaged_rows_of_texts_are_damage_and_no_text_at_all_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one dog"}\nno json\n{"text": " "}\n')
    source = open_source(f"texts:{path}")
    with pytest.raises(CorruptSample, match="corrupt row"):
        source[1]
    with pytest.raises(CorruptSample, match="missing caption"):
        source[2]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"id": 3}\n', "has no text in any row"),
        ("a.txt", b" \n", "is empty"),
        ("a.txt.gz", b"no gzip", "cannot be read"),
        ("a.txt.gz", gzip.compress(b"one dog and more", mtime=0)[:20], "no whole gzip file"),
    ],
)
def test_mistakes_in_files_of_texts_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    run = ("train", "tgt/captions", "--data", f"texts:{path}", "--out", tmp_path / "run")
    assert said in complaint(capsys, *run)


def test_a_run_on_captions_alone_looks_at_no_image(
    captions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    more = ("data.texts.word_crop=0.5", "model.text.position_dropout=0.5", "train.grad_cache_chunk=2")
    data = ("--data", f"texts:{captions}", "--out", run)
    assert call("train", "tgt/captions", *data, "--set", *SMALL, *more) == 0
    lines = [line for line in logged(run) if line["kind"] == "train"]
    assert all(set(line["terms"]) == {"loss"} for line in lines)  # a single term is the loss itself
    assert all({"entropy", "tokens of a group", "empty groups"} <= set(line["facts"]) for line in lines)
    assert load(run, device="cpu").method.context == 77
    capsys.readouterr()
    for suite in ("retrieval", "probes"):
        said = complaint(capsys, "evaluate", run, "--suite", suite, "--data", f"texts:{captions}")
        assert f"has captions without images; --suite {suite} looks at images" in said


def test_what_looks_at_images_refuses_captions_alone(
    captions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", f"texts:{captions}", "scenes:train?count=3", "--out", tmp_path / "run")
    said = complaint(capsys, "train", "clip/scenes", *data)
    assert "has captions without images, and CLIP uses images" in said
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_crops_of_captions_are_runs_of_their_words() -> None:
    text = "a dog runs over wet sand"
    results = {crop_words(text, 1.0, Random(i)) for i in range(400)}
    words = text.split()
    runs = {" ".join(words[i:j]) for i in range(6) for j in range(i + 1, 7)}
    assert results == runs
    assert crop_words(text, 0.0, Random(0)) == text
    assert 150 < sum(crop_words(text, 0.5, Random(i)) == text for i in range(400)) < 300
    assert crop_words("dog", 1.0, Random(0)) == "dog"


def test_groups_begin_with_the_layers_of_a_plain_transformer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, then = tmp_path / "first", tmp_path / "then"
    common = (*SMALL, *SEEN, *SCENES)
    plain = [change for change in common if "later" not in change]
    scenes = tmp_path / "baseline.yaml"
    text = "  text: {width: 32, depth: 1, heads: 2, vocab: 600, context: 192}\n"
    image = "  image: {width: 32, depth: 1, heads: 2, patch: 8, size: 32, stem: conv, pool: mean}\n"
    schedule = "{kind: cosine, warmup: 0}"
    train = f"train: {{max_steps: 2, global_batch_size: 4, optimizer: {{schedule: {schedule}}}}}\n"
    scenes.write_text(f"method: tgt\nmodel:\n{image}{text}  width: 16\n{train}")
    assert call("train", scenes, "--out", first, "--set", *plain, "data.crop=null") == 0
    capsys.readouterr()
    slow = "train.optimizer.lr=1e-12"
    assert call("train", "tgt/scenes", "--out", then, "--set", *common, f"init_from={first}", slow) == 0
    assert "tensors of towers are new" in capsys.readouterr().err
    before, after = (load_file(x / "last" / "model.safetensors") for x in (first, then))
    for name in (
        "towers.text.words.weight",
        "towers.text.stack.blocks.0.mlp.0.weight",
        "towers.to_text.weight",
    ):
        torch.testing.assert_close(after[name], before[name])
    assert "towers.text.groups" not in before


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("tgt/")])
def test_recipes_are_read_and_freeze_what_they_say(name: str) -> None:
    recipe = read_recipe(name, [])
    rules = {rule.pattern: rule.lr_factor for rule in recipe.train.optimizer.rules}
    assert recipe.method == "tgt"
    assert recipe.train.grad_clip == 5.0
    if "pretrained" in recipe.model["image"]:
        assert recipe.train.global_batch_size == 4096
        frozen = recipe.model["image"]["tune"] == "frozen"
        assert frozen or name == "tgt/vision_finetuning"
        assert recipe.model["width"] == 256
    if recipe.model["contrastive"] == 0:
        assert next(x for rule, x in rules.items() if re.fullmatch(rule, "towers.to_text.weight")) == 0


@pytest.mark.parametrize(("name", "groups"), [("paper", 4), ("k1", 1), ("k2", 2), ("k8", 8), ("k16", 16)])
def test_recipes_of_the_numbers_of_groups(name: str, groups: int) -> None:
    text = read_recipe(f"tgt/{name}", []).model["text"]
    assert (text["groups"], text["depth"], text["later"], text["width"]) == (groups, 6, 3, 128)
