"""Features of a frozen image encoder, made once: training from them is as training with the encoder."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import whole
from make import CLOCK, batch, build
from PIL import Image
from processes import together
from runs import call, complaint, logged
from safetensors.torch import load_file
from test_pack import Listed

from grainline.build import Description, method_config, start
from grainline.data.batches import collate
from grainline.data.cache import Views
from grainline.data.dataset import Draw, TrainSet
from grainline.data.features import FEATURES, CachedFeatures, cached_features, make_features
from grainline.data.open_source import open_source
from grainline.data.record import Cause, CorruptSample, Record
from grainline.data.texts import TextsConfig, encode_parts
from grainline.data.tokenizers.tokenizer_files import load_tokenizer
from grainline.data.transforms import CropConfig, EvalTransform, SameTransform, TrainTransform
from grainline.encoders.towers import flat_parts
from grainline.errors import UserError
from grainline.hub import image_fingerprint
from grainline.loading import load
from grainline.model import Model
from grainline.nn.bag_of_words import BagOfWords
from grainline.training import text_cache
from grainline.training.optim import train_mode
from grainline.training.recipe import DataConfig, Recipe, TrainConfig
from grainline.training.step import step
from grainline.training.text_cache import cached_texts
from grainline.types import texts_of

Capture = pytest.CaptureFixture[str]

SCENES = "scenes:train?count=16&size=32"
RECIPE = """
method: METHOD
model:
  image: {pretrained: FOLDER, resize: squash, tune: frozen}
  text: {name: toy, vocab: 600, context: 64, depth: 2, drop_path: 0.5}
  width: 32
data: {paths: ["SCENES"], crop: null, workers: 0, texts: {subset: 0.5}}
train:
  max_steps: 10
  global_batch_size: 8
  precision: fp32
  log_every: 1
  save_every: 5
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random GroupViT."""
    folder = tmp_path_factory.mktemp("checkpoint")
    whole("groupvit", folder)
    return folder


AUTO = """
method: METHOD
model: {pretrained: FOLDER, image: {tune: frozen}, text: {tune: frozen}, width: 32}
data: {paths: ["SCENES"], crop: null, workers: 0, features: auto, texts: {captions: random, per_image: 2}}
train: {max_steps: 6, global_batch_size: 8, precision: fp32, log_every: 1, save_every: 3}
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random CLIP."""
    folder = tmp_path_factory.mktemp("pair")
    whole("clip", folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAINLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def automatic(home: Path, pair: Path, method: str = "clip") -> Path:
    """A recipe that caches both sides of a CLIP, as a file."""
    path = home / "auto.yaml"
    text = AUTO.replace("METHOD", method).replace("FOLDER", str(pair))
    path.write_text(text.replace("SCENES", SCENES))
    return path


def refused(*_: Any, **__: Any) -> None:
    raise AssertionError("an image was decoded, or an encoder was run")


def losses(run: Path) -> list[float]:
    return [line["terms"]["loss"] for line in logged(run) if line["kind"] == "train"]


def recipe(home: Path, checkpoint: Path, method: str = "clip") -> Path:
    """A recipe that freezes a GroupViT, as a file."""
    path = home / f"{method}.yaml"
    text = RECIPE.replace("METHOD", method).replace("FOLDER", str(checkpoint))
    path.write_text(text.replace("SCENES", SCENES))
    return path


def trained(out: Path, recipe: Path, *changes: str) -> Path:
    assert call("train", recipe, "--out", out, *(["--set", *changes] if changes else [])) == 0
    return out


@pytest.mark.usefixtures("cache")
def test_training_from_features_is_training_with_the_encoder(checkpoint: Path, tmp_path: Path) -> None:
    """A Text Group Transformer, which reads the tokens of a GroupViT."""
    file = recipe(tmp_path, checkpoint, "tgt")
    plain, fast = (trained(tmp_path / str(auto), file, f"data.features={auto}") for auto in ("null", "auto"))
    assert losses(fast) == pytest.approx(losses(plain), abs=1e-3)
    assert losses(fast) != losses(plain)  # half precision: the features were read
    ours, theirs = load_file(fast / "last" / "model.safetensors"), load_file(checkpoint / "model.safetensors")
    frozen = {name: x for name, x in ours.items() if name.startswith("towers.image.model.")}
    assert len(frozen) > 50
    for name, x in frozen.items():
        assert torch.equal(x, theirs[name.replace("towers.image.model.", "vision_model.")])


def test_words_that_a_run_counted_are_read_by_the_next(
    pair: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file = automatic(tmp_path, pair, "mosaic")
    sizes = "model.visual_words=8", "model.text_words=4", "model.roots=false"
    first = trained(tmp_path / "first", file, *sizes)
    with monkeypatch.context() as patch:
        patch.setattr(BagOfWords, "forward", refused)
        assert losses(trained(tmp_path / "second", file, *sizes)) == losses(first)
    for kept in cache.glob("*/*.words"):
        kept.write_bytes(kept.read_bytes()[4:])
    out = str(tmp_path / "third")
    said = complaint(capsys, "train", str(file), "--out", out, "--set", *sizes)
    assert re.search(r"\.words was changed or cut: delete it", said)


CLIP: dict[str, Any] = {"text": {"name": "toy", "vocab": 300, "context": 24}, "width": 16}


def side(checkpoint: Path, **more: Any) -> dict[str, Any]:
    return {"pretrained": str(checkpoint), "resize": "squash", **more}


def fingerprint(values: dict[str, Any]) -> str:
    begun = start(Description("clip", method_config("clip", values, "test")))
    method: Any = begun.method()
    return image_fingerprint(begun.description.config.image, method.towers.image)  # type: ignore[attr-defined]


def test_a_fingerprint_is_that_of_the_image_side_alone(checkpoint: Path, tmp_path: Path) -> None:
    own = fingerprint(CLIP | {"image": side(checkpoint)})
    copied = shutil.copytree(checkpoint, tmp_path / "copied")
    assert fingerprint(CLIP | {"image": {"pretrained": str(copied)}, "width": 8}) == own
    both = {"pretrained": str(checkpoint), "image": {}, "text": {"context": 10}, "width": 16}
    assert fingerprint(both) == own
    assert fingerprint(CLIP | {"image": side(checkpoint, size=24)}) != own
    torch.manual_seed(1)
    whole("groupvit", copied)
    model = load_file(copied / "model.safetensors")
    name = "vision_model.encoder.stages.2.layers.0.mlp.fc2.bias"
    model[name][0] += 1e-6
    from safetensors.torch import save_file

    save_file(model, copied / "model.safetensors", metadata={"format": "pt"})
    assert fingerprint(CLIP | {"image": {"pretrained": str(copied)}}) != own


def test_a_image_without_features_is_replaced_as_a_damaged_one(tmp_path: Path) -> None:
    from test_dataset import TOKENIZER

    image = open_source(SCENES, size=32)[0].image
    listed = Listed([Record("a", image, ("A.",)), Record("b", b"no image", ("B.",)), Cause.MISSING_IMAGE])
    transform, out = EvalTransform(8), tmp_path / "f"
    views = Views(transform)
    actual = make_features(listed, lambda x: x.float().mean((2, 3))[:, None], out, views, encoder="e")
    assert (actual.counts, actual.skipped) == ({"image": 1}, {"without an image": 2})
    kept = CachedFeatures(out, listed, transform, "e", tokens=False)
    with pytest.raises(CorruptSample) as damaged:
        kept.features(1, Record("b", b"", ()), Random(0))
    assert (damaged.value.cause, "b (" in damaged.value.where) == ("corrupt image", True)
    with pytest.raises(UserError, match="c has the features of another image"):
        kept.features(0, Record("c", b"", ()), Random(0))
    plain, fast = (
        TrainSet(listed, TOKENIZER, crop, TextsConfig(), context=16, seed=0)
        for crop in (SameTransform(transform), kept)
    )
    for place in range(6):
        draw = Draw(place, 0, place % 3)
        one, other = plain[draw], fast[draw]
        assert (one.texts, one.draw) == (other.texts, other.draw)
        assert [cause for cause, _ in one.corrupt] == [cause for cause, _ in other.corrupt]
    images = collate([fast[Draw(0, 0, 0)], fast[Draw(1, 0, 1)]]).images
    assert images.features is not None
    assert (images.pixels.shape, images.features.shape) == ((2, 3, 0, 0), (2, 1, 3))
    assert torch.equal(images.features[0], images.features[1])


def test_numbers_that_half_precision_cannot_hold_are_refused(tmp_path: Path) -> None:
    source, large = open_source(SCENES, size=32), torch.full((1, 1, 2), 7e4)
    with pytest.raises(UserError, match="above 65504"):
        make_features(source, lambda _: large, tmp_path / "f", Views(EvalTransform(8)), encoder="e")
    assert not (tmp_path / "f").exists()


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.data.cache.BATCH", 6)
    source, transform = open_source(SCENES, size=32), EvalTransform(8)
    calls: list[int] = []

    def dies(pixels: torch.Tensor) -> torch.Tensor:
        calls.append(len(pixels))
        if len(pixels) == 6 and calls.count(6) == 2:
            raise KeyboardInterrupt
        return pixels.float().mean((2, 3))[:, None] / 255

    out = tmp_path / "f"
    with pytest.raises(KeyboardInterrupt):
        make_features(source, dies, out, Views(transform), encoder="e")
    with pytest.raises(UserError, match="was made with encoder e"):
        make_features(source, dies, out, Views(transform), encoder="other")
    with pytest.raises(UserError, match="of other squares"):
        make_features(source, dies, out, Views(EvalTransform(8, "squash")), encoder="e")
    assert make_features(source, dies, out, Views(transform), encoder="e").resumed == 6
    assert calls == [1, 6, 6, 1, 1, 1, 6, 4]  # one of each begins with the shape of a row
    rows = np.load(out / "features.npy")
    expected = torch.stack([transform(source[i].image) for i in range(16)]).float().mean((2, 3)) / 255
    np.testing.assert_allclose(rows[:, 0], expected.numpy(), atol=1e-3)


def test_chunks_of_features_give_the_gradients_of_all() -> None:
    images, texts = batch()
    method: Any = build("maxsim")
    observed = method.towers.image_tokens(images)
    made = torch.cat([observed.pooled[:, None], observed.patches], 1).detach()
    kept = images._replace(features=made.half(), pixels=images.pixels[..., :0, :0])
    method.towers.image.requires_grad_(False)
    whole_batch = step(method, images._replace(features=made), texts, CLOCK)
    for name, loss in step(method, images, texts, CLOCK).items():
        torch.testing.assert_close(loss, whole_batch[name], atol=1e-6, rtol=1e-5)
    gradients = []
    for chunk in (None, 3):
        method.zero_grad()
        if chunk is None:
            step(method, kept, texts, CLOCK)
        else:
            step(method, kept, texts, CLOCK, chunk)
        gradients.append({name: p.grad for name, p in method.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, one in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], one, atol=1e-6, rtol=1e-4)


# data.features: auto


@pytest.mark.parametrize("method", ["clip", "maxsim", "laps", "vse"])
def test_frozen_towers_are_computed_once_and_training_is_the_same(
    method: str, pair: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file = automatic(tmp_path, pair, method)
    plain = trained(tmp_path / "plain", file, "data.features=null")
    assert not cache.exists()
    capsys.readouterr()
    first = trained(tmp_path / "first", file)
    said = capsys.readouterr().out
    assert re.search(r"computing the features of 16 images once, into .*/features/\w{16}/features\n", said)
    assert re.search(
        r"computing the texts of 16 images once.*\n\d+ texts; \d+ s, [\d.]+ images a second", said
    )
    with monkeypatch.context() as patch:
        for name in ("data.transforms.decode", "data.transforms.EvalTransform.__call__"):
            patch.setattr(f"grainline.{name}", refused)
        for side in ("ImageEncoder", "TextEncoder"):
            patch.setattr(f"grainline.encoders.pretrained.adapters.{side}.forward", refused)
        again = trained(tmp_path / "again", file)
    assert "computing" not in capsys.readouterr().out
    assert losses(first) == losses(again) == pytest.approx(losses(plain), abs=2e-3, rel=5e-4)
    assert losses(first) != losses(plain)  # half precision
    theirs, ours = (load_file(run / "last" / "model.safetensors") for run in (plain, first))
    for name, x in theirs.items():
        torch.testing.assert_close(ours[name], x, atol=2e-3, rtol=0)
    assert len(list(cache.iterdir())) == 2
    assert call("train", file, "--out", first, "--resume", "--checkpoint", "step-00000003") == 0
    resumed = load_file(first / "last" / "model.safetensors")
    assert all(torch.equal(x, ours[name]) for name, x in resumed.items())
    assert len(list(cache.iterdir())) == 2


def test_features_with_tokens_serve_a_method_that_reads_summaries_alone(
    pair: Path, cache: Path, tmp_path: Path, capsys: Capture
) -> None:
    alone = losses(trained(tmp_path / "alone", automatic(tmp_path, pair, "clip")))
    shutil.rmtree(cache)
    trained(tmp_path / "tokens", automatic(tmp_path, pair, "maxsim"))
    capsys.readouterr()
    assert losses(trained(tmp_path / "summaries", automatic(tmp_path, pair, "clip"))) == alone
    assert "computing the features" not in capsys.readouterr().out


def looked_up(pair: Path, name: str = "clip", captions: Any = "random") -> tuple[Model, Any, Any, Any]:
    """A model, what puts cached texts into it, a batch of texts, and the rows of it that were computed."""
    values = {"pretrained": str(pair), "image": {}, "text": {"tune": "frozen"}, "width": 32}
    begun = start(Description(name, method_config(name, values, "test")))
    model = Model(begun.description, begun.method().eval(), load_tokenizer(str(pair)))
    source = open_source(SCENES, size=16)
    data = DataConfig(features="auto", texts=TextsConfig(captions=captions))
    recipe = Recipe(method="clip", model={}, data=data, train=TrainConfig(max_steps=1, global_batch_size=2))
    actual = cached_texts(recipe, source, model, torch.device("cpu"))
    assert actual is not None
    strings = [*source[0].captions, "A dog in wet sand.", *source[5].captions, "Trees."]
    texts = texts_of(encode_parts(model.tokenizer, strings, model.method.context, 1).ids)
    computed: list[list[int]] = []
    forward = model.method.towers.text.forward

    def watched(ids: torch.Tensor, mask: torch.Tensor) -> Any:
        computed.append(mask.sum(1).tolist())
        return forward(ids, mask)

    model.method.towers.text.forward = watched
    return model, actual, texts, computed


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", ["clip", "laps"])  # laps reads words
def test_a_text_encoder_behind_its_cache_gives_the_same(name: str, pair: Path) -> None:
    model, actual, texts, computed = looked_up(pair, name)
    ids, mask = flat_parts(texts)
    ids, mask = (torch.cat([x, torch.zeros_like(x[:1])]) for x in (ids, mask))  # a row of padding
    tower, method = model.method.towers.text, model.method
    with torch.no_grad():
        exact = tower(ids, mask)
    actual(method)
    assert torch.equal(tower(ids, mask).tokens, exact.tokens)  # in evaluation
    computed.clear()
    train_mode(method)
    near = tower(ids, mask)
    lengths, other = mask.sum(1).tolist(), len(open_source(SCENES, size=16)[0].captions)
    assert computed == [[lengths[other], lengths[-2]]]  # the texts that are no captions
    torch.testing.assert_close(near.pooled, exact.pooled, atol=2e-3, rtol=1e-3)
    assert near.tokens.shape == exact.tokens.shape
    if name == "laps":
        torch.testing.assert_close(near.tokens[mask], exact.tokens[mask], atol=2e-3, rtol=1e-3)
    else:
        assert near.tokens.isnan().all()
    assert near.mask is mask
    assert not torch.equal(near.pooled, exact.pooled)


def test_texts_are_computed_once_for_methods_that_read_them_in_different_ways(
    pair: Path, cache: Path
) -> None:
    for name in ("clip whole", "clip", "laps", "maxsim"):  # one part without its words, with them, sentences
        looked_up(pair, *name.split())
    assert len(list(cache.iterdir())) == 1


def test_a_cut_cache_is_one_line(pair: Path, cache: Path, tmp_path: Path, capsys: Capture) -> None:
    file = automatic(tmp_path, pair)
    trained(tmp_path / "run", file)
    files = sorted(cache.glob("*/*/[fs]*s.*"))
    assert {path.name for path in files} == {"features.json", "features.npy", "states.f16"}
    for number, path in enumerate(files):
        whole_file = path.read_bytes()
        path.write_bytes(whole_file[: len(whole_file) // 3])
        said = complaint(capsys, "train", file, "--out", tmp_path / f"cut{number}")
        assert f"delete {path.parent.parent}, and training makes them again" in said
        path.write_bytes(whole_file)


def test_texts_that_a_killed_run_left_out_are_added(
    pair: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.training.text_cache.RECORDS", 5)
    looked_up(pair)
    (home,) = cache.iterdir()
    complete = {path.name: path.read_bytes() for path in (home / "texts").iterdir()}
    for name in complete:
        (home / "texts" / name).unlink()
    (home / "texts").rmdir()
    choose, calls = text_cache._texts_of, []

    def dies(record: Any, **kwargs: Any) -> list[str]:
        calls.append(record.key)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return choose(record, **kwargs)

    monkeypatch.setattr(text_cache, "_texts_of", dies)
    with pytest.raises(KeyboardInterrupt):
        looked_up(pair)
    with (home / "texts.partial" / "states.f16").open("ab") as file:
        file.write(b"half of a batch")
    looked_up(pair)
    assert len(calls) == 12 + 6  # two batches of five records were there
    assert {path.name: path.read_bytes() for path in (home / "texts").iterdir()} == complete


def test_views_are_the_square_and_crops_that_stay_the_same(pair: Path, cache: Path, tmp_path: Path) -> None:
    file = automatic(tmp_path, pair)
    crop = CropConfig(scale=(0.3, 0.9), flip=True)
    changes = ("data.views=3", "data.crop={scale: [0.3, 0.9], flip: true}", "model.text.tune=all")
    trained(tmp_path / "run", file, *changes)
    ((folder,),) = ([*home.glob("features")] for home in cache.iterdir())
    rows, source, square = np.load(folder / "features.npy"), open_source(SCENES, size=16), EvalTransform(16)
    method: Any = load(tmp_path / "run").method
    for i in (0, 7):
        key = source[i].key
        views = [square(source[i].image)]
        views += [TrainTransform(16, crop)(source[i].image, Random(f"{key}/{v}")) for v in (1, 2)]
        with torch.no_grad():
            expected = method.towers.image(torch.stack(views)).pooled
        np.testing.assert_allclose(rows[3 * i : 3 * i + 3, 0], expected.numpy(), atol=3e-3)
    transform = EvalTransform(16)
    encoder = json.loads((folder / "features.json").read_text())["settings"]["encoder"]
    kind = FEATURES._replace(home=folder)
    actual = CachedFeatures(folder, source, transform, encoder, tokens=False, kind=kind)
    drawn = [actual.features(4, source[4], Random(seed)).numpy() for seed in range(40)]
    which = [next(v for v in range(3) if (rows[12 + v, :1] == one).all()) for one in drawn]
    assert which == [int(Random(seed).random() * 3) for seed in range(40)]
    assert set(which) == {0, 1, 2}
    assert losses(tmp_path / "run") == losses(trained(tmp_path / "again", file, *changes))


WRONG = {
    "a crop": (("data.crop={}",), "a random crop is another: set data.crop to null, or data.views"),
    "views without a crop": (("data.views=2",), "views above 1 are random crops in a cache"),
    "a folder": (("data.features=x",), "field 'data.features' is 'x': it must be 'auto'"),
    "nothing frozen": (
        ("model.image.tune=all", "model.text.tune=null"),
        "caches what frozen encoders give, and none is",
    ),
    "views of what learns": (
        ("model.image.tune=last:1", "data.views=2", "data.crop={}"),
        "data.views is 2, and the image encoder learns",
    ),
    "what superpixels pool": (
        (
            "method=caft",
            "model={image: {name: toy, superpixels: {cell: 4}, stride: 2, groups: [3, 2, 1], size: 16, "
            "encoder: {pretrained: PAIR, tune: frozen}}, text: {pretrained: PAIR}, width: 32}",
        ),
        "does not cache cells that superpixels pool: set model.text.tune to frozen",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_cached_is_one_line(
    kind: str, pair: Path, cache: Path, tmp_path: Path, capsys: Capture
) -> None:
    changes, words = WRONG[kind]
    file, given = automatic(tmp_path, pair), [change.replace("PAIR", str(pair)) for change in changes]
    assert words in complaint(capsys, "train", file, "--out", tmp_path / "run", "--set", *given)
    assert not cache.exists()


def test_another_image_under_the_same_name_is_not_read_as_the_first(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("file_name,text\na.png,A square.\n")

    def red(colour: str) -> float:
        Image.new("RGB", (8, 8), colour).save(tmp_path / "a.png")
        source, views = open_source(str(tmp_path)), Views(EvalTransform(8))
        mean = cached_features(
            source, views, lambda x: x.float().mean((2, 3))[:, None], "e", tokens=False, one_each=False
        )
        return float(mean.features(0, source[0], Random(0))[0, 0])

    assert red("red") == red("red") == 255
    with pytest.raises(UserError, match=rf"a.* of another image: the data has changed; delete {cache}"):
        red("blue")
    shutil.rmtree(cache)
    assert red("blue") == 0


@pytest.mark.parametrize("shard", [False, True])
def test_two_processes_share_one_cache(shard: bool, pair: Path, cache: Path, tmp_path: Path) -> None:
    file = automatic(tmp_path, pair)
    one = trained(tmp_path / "one", file)
    shutil.rmtree(cache)
    arguments = ("train", file, "--out", tmp_path / "two", "--set", f"train.fsdp={str(shard).lower()}")
    codes = together(arguments, 2, tmp_path / "said.txt", "test_features:own_cache")
    said = (tmp_path / "said.txt").read_text()
    assert codes == [0, 0], said
    assert said.count("computing the features") == 1
    assert said.count("computing the texts") == (0 if shard else 1)
    assert ("texts are not cached: with train.fsdp" in said) == shard
    assert losses(tmp_path / "two") == pytest.approx(losses(one), abs=2e-3, rel=5e-4)


def own_cache() -> None:
    """Processes of `together` may have the environment of an earlier test."""
    os.environ["GRAINLINE_CACHE"] = str(Path(sys.argv[sys.argv.index("--out") + 1]).parent / "cache")


def test_a_full_disk_is_one_line(
    pair: Path, tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("GRAINLINE_CACHE", str(tiny_disk))
    (tiny_disk / "other").write_bytes(bytes(2**20 - 16384))
    said = complaint(capsys, "train", automatic(tmp_path, pair), "--out", tmp_path / "run")
    assert "no space left on device; free some space, or set GRAINLINE_CACHE to another folder" in said
