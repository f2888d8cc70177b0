"""The pretrained pair of the extra `starter`: packages found and checked, and EfficientNet-Lite itself."""

import hashlib
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from indexes import photo
from PIL import Image
from runs import call, complaint, recipe

import grainline
from grainline.data.transforms import EvalTransform
from grainline.encoders.pretrained import hub, load_pretrained
from grainline.encoders.pretrained.hub import PACKAGES, Package, package_file
from grainline.encoders.pretrained.image_towers import PIECE, SIZES, EfficientNetLite
from grainline.errors import UserError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two files, as pip leaves it, whose code says no when it is imported."""
    contents = {"carrier/model/a.bin": b"weights", "carrier/model/sub/b.json": b"{}"}
    code = b"raise AssertionError('it was imported')"
    for file, content in {**contents, "carrier/__init__.py": code}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    info = tmp_path / "carrier-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in ["carrier/__init__.py", *contents]))
    monkeypatch.syspath_prepend(tmp_path)
    one, two = (hashlib.sha256(content).hexdigest() for content in contents.values())
    file, folder = {"a.bin": one}, {"a.bin": one, "sub/b.json": two}
    names = {"file": Package(("absent", "carrier"), file), "folder": Package(("carrier",), folder)}
    monkeypatch.setattr(hub, "PACKAGES", names | {"absent": Package(("absent",), file)})
    return tmp_path / "carrier" / "model"


def test_files_of_a_package_are_found_without_importing_it(installed: Path) -> None:
    assert package_file("pip:file") == installed / "a.bin"
    assert package_file("pip:folder") == installed
    assert "carrier" not in sys.modules


@pytest.mark.parametrize("content", [b"other", None])
def test_a_file_that_was_not_published_so_is_refused(content: bytes | None, installed: Path) -> None:
    file = installed / "sub" / "b.json"
    file.write_bytes(content) if content else file.unlink()
    assert package_file("pip:file") == installed / "a.bin"
    with pytest.raises(UserError, match=r"b\.json .*--no-deps carrier"):
        package_file("pip:folder")


def test_a_package_that_is_missing_or_unknown_is_one_line(installed: Path) -> None:  # noqa: ARG001
    with pytest.raises(UserError, match=r'pip install "grainline\[starter\]" -c constraints.txt'):
        package_file("pip:absent")
    with pytest.raises(UserError, match=r"pip:other is not known; allowed are pip:file, pip:folder"):
        package_file("pip:other")
    for read in (load_pretrained, grainline.load):
        with pytest.raises(UserError, match="pip:absent is not installed"):
            read("pip:absent")


def published(name: str) -> Path:
    """The path of a name, checked; the test is skipped where its package is not installed."""
    try:
        return package_file(name)
    except UserError as error:
        if "is not installed" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("name", PACKAGES)
def test_the_packages_that_are_installed_hold_what_was_published(name: str) -> None:
    assert published(f"pip:{name}").is_dir() == (name == "all-minilm-l6-v2")


def lively(network: Any) -> Any:
    """Weights and statistics with which activations neither vanish nor all reach the 6 of ReLU6."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, x in network.state_dict().items():
            if x.ndim == 4:
                torch.nn.init.kaiming_normal_(x)
            elif x.ndim == 1:
                x.uniform_(-0.1, 0.1) if name.endswith("mean") else x.uniform_(0.6, 1.2)
    return network.eval()


def oracle(size: str, side: int | None = None) -> Any:
    """The network of efficientnet-lite-pytorch."""
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="the oracle is not installed")
    return lively(package.EfficientNet.from_name(f"efficientnet-{size.lower()}", image_size=side))


@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_the_package(size: str, tmp_path: Path) -> None:
    network = oracle(size)
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    towers = load_pretrained(tmp_path / "weights.pth")
    assert (towers.left_out, towers.image.size) == (("_fc",), SIZES[size][2])
    x = torch.randn(2, 3, 64, 72).double()  # sides that 2 divides six times and three times: both paddings
    expected = network.double().extract_features(x)
    assert expected.shape == (2, 1280, 2, 3)
    assert (expected % 6 > 0).double().mean() > 0.01
    result = towers.image.model.double()(x)
    torch.testing.assert_close(result, expected, atol=1e-9, rtol=1e-9)
    if size != "Lite0":  # the others have the same parts
        return
    weight = torch.randn_like(expected)
    gradients = []
    for model, features in ((towers.image.model, result), (network, expected)):
        learn = {name.replace("_", ""): p for name, p in model.named_parameters() if "_fc" not in name}
        all_of_them = torch.autograd.grad((features * weight).sum(), [*learn.values()])
        gradients.append(dict(zip(learn, all_of_them, strict=True)))
    assert all(x.abs().max() > 1e-3 for x in gradients[0].values())
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize(("side", "images"), [(224, PIECE + 1), (260, 1)])
def test_the_published_weights_give_what_the_package_gives(side: int, images: int) -> None:
    network = oracle("Lite2", side)
    file = published("pip:efficientnet-lite2")
    network.load_state_dict(torch.load(file, weights_only=True))
    towers = load_pretrained("pip:efficientnet-lite2", size=side)
    pixels = torch.randint(0, 256, (images, 3, side, side), dtype=torch.uint8)
    with torch.no_grad():
        cells = network.double().extract_features((pixels.double() - 127) / 128)
        tokens = towers.image.double()(pixels)
    assert towers.image.grid == cells.shape[2:]
    close = partial(torch.testing.assert_close, atol=1e-5, rtol=0)  # mean and std of pixels are float32
    close(tokens.patches.unflatten(1, towers.image.grid), cells.permute(0, 2, 3, 1))
    close(tokens.pooled, cells.mean((2, 3)))


def test_a_photograph_has_its_class() -> None:
    """A temple in China, photographed by Danielle Buma (CC BY 2.0), which scikit-learn ships."""
    data = pytest.importorskip("sklearn.datasets", reason="no photograph at hand")
    file = published("pip:efficientnet-lite2")
    state, towers = torch.load(file, weights_only=True), load_pretrained("pip:efficientnet-lite2")
    settings = {name: towers.architecture[name] for name in ("resize", "filter", "margin")}
    pixels = EvalTransform(260, **settings)(Image.fromarray(data.load_sample_image("china.jpg")))
    with torch.no_grad():
        pooled = towers.image(pixels[None]).pooled
    assert (pooled @ state["_fc.weight"].T + state["_fc.bias"]).argmax() == 698  # palace


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights as published, of a Lite0 without a classifier."""
    state = lively(EfficientNetLite(1.0, 1.0)).state_dict()
    names = {name: re.sub(r"(^|\.)(?=blocks|conv|bn|\w+_conv)", r"\1_", name) for name in state}
    path = tmp_path_factory.mktemp("lite") / "lite0.pth"
    torch.save({names[name]: x for name, x in state.items()}, path)
    return path


def test_it_learns_in_a_run_with_the_statistics_of_the_checkpoint(file: Path, tmp_path: Path) -> None:
    image = f"model.image={{pretrained: '{file}', size: 32}}"
    layers = "train.optimizer.layer_decay=0.9", "train.activation_checkpointing=true"
    steps = (
        "train.max_steps=1",
        "train.optimizer.lr=1",
        "train.optimizer.schedule={kind: constant, warmup: 0}",
    )
    assert call("train", recipe(tmp_path), "--out", tmp_path / "run", "--set", image, *layers, *steps) == 0
    before = load_pretrained(file, size=32).image.state_dict()
    after = grainline.load(tmp_path / "run").method.towers.image.state_dict()
    assert before.keys() == after.keys()
    same = {name for name, x in before.items() if x.equal(after[name])}
    fixed = "running_mean", "running_var", "num_batches_tracked", "mean", "spread"
    assert same == {name for name in before if name.endswith(fixed)}


def test_other_networks_and_sizes_are_one_line(file: Path, tmp_path: Path) -> None:
    state = torch.load(file, weights_only=True)
    torch.save(state | {"_blocks.0._se_reduce.weight": torch.zeros(8, 32, 1, 1)}, tmp_path / "b0.pth")
    with pytest.raises(UserError, match=r"closest is Lite0: 1 unknown .blocks\.0\.se_reduce\.weight"):
        load_pretrained(tmp_path / "b0.pth")
    with pytest.raises(UserError, match="size 230 is not a multiple of the checkpoint's patch side 32"):
        load_pretrained(file, size=230)
    with pytest.raises(UserError, match="quick_gelu is for CLIP"):
        load_pretrained(file, quick_gelu=True)


def test_the_recipe_trains_and_its_run_searches_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its features are cached on the way; without the extra nothing is written."""
    monkeypatch.setenv("GRAINLINE_CACHE", str(tmp_path / "cache"))
    folder, run = tmp_path / "photos", tmp_path / "run"
    for i in range(4):
        photo(folder / f"{i}.png", i)
        (folder / f"{i}.txt").write_text(f"Photograph {i}. It is small.")
    sizes = "train.max_steps=1", "train.global_batch_size=4", "train.optimizer.schedule.warmup=0"
    sizes = *sizes, "model.visual_words=16", "model.text_words=16"
    train = "train", "photos/starter", "--data", folder, "--out", run, "--set", "data.workers=0", *sizes
    with monkeypatch.context() as patch:
        none = {name: package._replace(distributions=("absent",)) for name, package in PACKAGES.items()}
        patch.setattr(hub, "PACKAGES", none)
        assert 'pip install "grainline[starter]" -c constraints.txt' in complaint(capsys, *train)
        assert list(tmp_path.iterdir()) == [folder]
    for name in ("efficientnet-lite2", "all-minilm-l6-v2"):
        published(f"pip:{name}")
    assert call(*train) == 0
    monkeypatch.setattr("grainline.web.server.serve", lambda *_, **__: None)
    assert call("photos", folder, "--model", run) == 0
    assert "4 images (4 added, 4 encoded)" in capsys.readouterr().out
    assert call("search", tmp_path / "photos.index", "Photograph 1. It is small.", "-k", 1) == 0
    assert capsys.readouterr().out.split("\t")[0] in {str(path) for path in folder.glob("*.png")}
