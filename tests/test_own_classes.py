"""Methods and encoders of a user: trained from a recipe, saved, loaded, and only where code is trusted."""

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from PIL import Image
from processes import together
from runs import call, logged, recipe

import grainline
from grainline.config import KINDS, override, read_yaml
from grainline.data.open_source import SOURCES
from grainline.errors import UserError
from grainline.training.recipe import read_recipe

MODULE = """
import torch
from torch import nn

from grainline.encoders.base import ImageEncoderConfig, ImageTokens, TextEncoderConfig, TextTokens
from grainline.encoders.towers import TowersConfig
from grainline.methods.base import Method, dot
from grainline.methods.shared import both_ways
from grainline.types import Term


class Squares(nn.Module):
    grid = (2, 2)

    def __init__(self, cfg):
        super().__init__()
        self.size, self.width = cfg.size, cfg.width
        self.layer = nn.Linear(3, cfg.width)

    def forward(self, pixels):
        x = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        patches = self.layer(nn.functional.adaptive_avg_pool2d(x, 2).flatten(2).mT)
        return ImageTokens(patches.mean(1), None, patches)


class SquaresConfig(ImageEncoderConfig):
    averaged = True
    width: int = 8

    def build(self):
        return Squares(self)


class Bag(nn.Module):
    context = 16

    def __init__(self, cfg):
        super().__init__()
        self.width = cfg.width
        self.words = nn.Embedding(cfg.vocab, cfg.width)

    def forward(self, ids, mask):
        tokens = self.words(ids) * mask[..., None]
        return TextTokens(tokens.sum(1) / mask.sum(1, keepdim=True).clamp(min=1), tokens, mask)


class BagConfig(TextEncoderConfig):
    width: int = 8

    def build(self):
        return Bag(self)


class MineConfig(TowersConfig):
    scale: float = 10.0


class Mine(Method):
    config_class = MineConfig

    def loss(self, local, gathered, clock):
        terms = both_ways(lambda a, b: self.cfg.scale * dot(a, b), local, gathered)
        return terms | {"length": Term(None, local.images.vector.norm(dim=1).mean())}
"""
ENCODERS = (
    "model.image={kind: 'own_method:SquaresConfig', size: 32}",
    "model.text={kind: 'own_method:BagConfig', vocab: 560}",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_method.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_method", raising=False)
    return tmp_path


def test_a_run_with_classes_of_a_user_trains_saves_loads_and_is_evaluated(home: Path) -> None:
    settings = ["method=own_method:Mine", "model.scale=5.0", *ENCODERS, "train.max_steps=2"]
    grainline.train(recipe(home), home / "run", changes=settings)
    facts = [line["facts"]["length"] for line in logged(home / "run") if line["kind"] == "train"]
    assert facts == pytest.approx([1.0] * len(facts)), "a Term with a scalar"
    with pytest.raises(UserError) as error:
        grainline.load(home / "run", device="cpu")
    assert "own_method:Mine would import the module own_method" in str(error.value)
    assert "trust_code=True" in str(error.value)
    model = grainline.load(home / "run", device="cpu", trust_code=True)
    assert type(model.method).__name__ == "Mine"
    assert (model.method.cfg.image.size, model.method.size) == (32, 32)
    image = Image.new("RGB", (32, 32))
    assert model.score([image], model.encode(texts=["a dog"])).shape == (1, 1)
    arguments = ["evaluate", str(home / "run"), "--data", "scenes:dev?count=4"]
    for trusted in (False, True):  # in processes that have not imported the module
        said = home / f"said-{trusted}.txt"
        codes = together([*arguments, *(["--trust-code"] if trusted else [])], 1, said)
        assert codes == [0 if trusted else 2], said.read_text()
        assert ("would import the module own_method" in said.read_text()) == (not trusted)


def test_an_encoder_of_a_user_under_a_method_of_the_package_needs_trust_too(home: Path) -> None:
    settings = [*ENCODERS, "train.max_steps=1"]
    grainline.train(recipe(home), home / "run", changes=settings)
    with pytest.raises(UserError, match=r"own_method:SquaresConfig would import the module own_method"):
        grainline.load(home / "run", device="cpu")
    method = grainline.load(home / "run", device="cpu", trust_code=True).method
    assert method.grid == (2, 2)
    assert method.averaged


def test_a_class_of_another_kind_is_one_line(home: Path) -> None:
    values = override(read_yaml(Path(recipe(home))), ["method=own_method:Squares"])
    (home / "other.yaml").write_text(str(values))
    with pytest.raises(UserError, match=r"own_method:Squares is no class derived from grainline\.methods"):
        read_recipe(str(home / "other.yaml"), []).description  # noqa: B018


SEPS = [
    *("data.descriptions=long", "data.texts.captions=first", "data.texts.subset=0"),
    *("data.texts.foils=0", "train.max_steps=1"),
]
POISON = {
    "method in model.json": ("model.json", ("method",), "evil:Evil"),
    "encoder in model.json": ("model.json", ("config", "image"), {"kind": "evil:Evil"}),
    "text encoder in model.json": ("model.json", ("config", "text"), {"kind": "evil:Evil"}),
    "a command of model.json": ("model.json", ("method",), "grainline.__main__:main"),
    "method": ("recipe.yaml", ("method",), "evil:Evil"),
    "encoder": ("recipe.yaml", ("model", "image"), {"kind": "evil:Evil"}),
    "paths": ("recipe.yaml", ("data", "paths"), ["evil:Evil:x"]),
    "validation": ("recipe.yaml", ("data", "validation"), ["evil:Evil:x"]),
    "descriptions": ("recipe.yaml", ("data", "descriptions"), ["evil:Evil:x"]),
    "phrases": ("recipe.yaml", ("data", "texts"), {"phrases": {"provider": "spacy:evil", "max_phrases": 2}}),
    "base": ("recipe.yaml", ("base",), "base.yaml"),
    "init_from": ("recipe.yaml", ("init_from",), "other"),
}
"""Classes that a stranger's run folder may name: the file, the field and its value."""


def poisoned(run: Path, folder: Path, field: str) -> Path:
    """A copy of a run in which one field names a module of the working directory."""
    name, path, value = POISON[field]
    shutil.copytree(run, folder / "run")
    shutil.copytree(run, folder / "other")
    (folder / "run" / "base.yaml").write_text("method: evil:Evil\n")
    for file in folder / "run" / name, folder / "other" / "model.json":
        values = yaml.safe_load(file.read_text())  # which reads JSON too
        place = values
        *above, last = path if file.name == name else ("method",)
        for one in above:
            place = place[one]
        place[last] = value if file.name == name else "evil:Evil"
        if last == "base":
            del values["method"]
        file.write_text(json.dumps(values))
    (folder / "evil.py").write_text("open('RAN', 'w')\nclass Evil: pass\n")
    return folder / "run"


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose method reads descriptions, and a photograph."""
    folder = tmp_path_factory.mktemp("stranger")
    grainline.train(recipe(folder, "seps"), folder / "run", changes=SEPS)
    (folder / "photos").mkdir()
    Image.new("RGB", (32, 32)).save(folder / "photos/a.png")
    return folder


@pytest.mark.parametrize("field", POISON)
def test_no_command_imports_what_a_folder_names(
    field: str, stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = poisoned(stranger / "run", tmp_path, field)
    data, photo = "scenes:dev?count=6", stranger / "photos/a.png"
    monkeypatch.chdir(tmp_path)  # where evil.py lies
    file = run / "recipe.yaml"
    commands = [
        ("evaluate", run, "--data", data, "--captions", "first", "--json", "result.json"),
        ("evaluate", run, "--data", data, "--captions", "first", "--compare-to", run / "result.json"),
        ("compare", run, "--data", data, "--captions", "first", "--json", "compared.json"),
        ("encode", run, data, "--out", "vectors"),
        ("show", run, photo, "--text", "A dog.", "--out", "a.png"),
        ("index", "build", stranger / "photos", "--out", "index", "--model", run),
        ("search", "index", "A dog."),
        ("export", run, "onnx"),
        ("convert", run, "converted"),
        ("train", file, "--out", "new"),
        ("train", file, "--data", "scenes:train?count=12", "--out", "new"),
        ("train", recipe(tmp_path), "--out", run, "--resume"),
        ("train", recipe(tmp_path, "seps"), "--set", f"init_from={run}", *SEPS, "--out", "other-new"),
    ]
    codes = []
    for command in commands:
        codes.append(call(*command))
        assert not Path("RAN").exists(), command
        assert "evil" not in sys.modules, command
    assert codes[0] == (2 if "json" in field or field == "descriptions" else 0)
    with suppress(UserError):
        grainline.load(run, device="cpu").save(tmp_path / "saved")
    assert not Path("RAN").exists()


def test_a_run_of_a_user_is_resumed_and_its_recipe_is_trained_again_only_with_trust(home: Path) -> None:
    settings = ["method=own_method:Mine", *ENCODERS, "train.max_steps=1"]
    grainline.train(recipe(home), home / "run", changes=settings)
    assert grainline.train(recipe(home), home / "run", changes=settings, resume=True).is_dir()
    run = home / "run/recipe.yaml"
    with pytest.raises(UserError, match="field method: own_method:Mine would import"):
        read_recipe(str(run), [])
    with pytest.raises(UserError, match="kind: own_method:SquaresConfig would import"):
        read_recipe(str(run), ["method=own_method:Mine"])
    assert read_recipe(str(run), settings).method == "own_method:Mine"
    (home / "mine.yaml").write_text(run.read_text())
    assert read_recipe(str(home / "mine.yaml"), []).method == "own_method:Mine"
    (home / "above.yaml").write_text("base: run/recipe.yaml\n")
    with pytest.raises(UserError, match="field method: own_method:Mine would import"):
        read_recipe(str(home / "above.yaml"), [])


@pytest.mark.parametrize("field", ["method", "paths"])
@pytest.mark.parametrize("way", ["base", "link", "no model.json", "dangling model.json", "below"])
def test_no_way_around_a_recipe_of_a_folder_is_trusted(
    way: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('RAN', 'w')\nclass Evil: pass\n")
    run = Path("run")
    (run / "deep/er").mkdir(parents=True)
    values = yaml.safe_load(Path(recipe(tmp_path)).read_text())
    if field == "method":
        values["method"] = "evil:Evil"
    else:
        values["data"] = {"paths": ["evil:Evil:x"]}
    other = run / "deep/er/other.yaml"
    other.write_text(json.dumps(values))
    typed: Path = run
    (run / "model.json").write_text("{}")
    if way == "base":
        (run / "recipe.yaml").write_text("base: deep/er/other.yaml\n")
    elif way == "link":
        (run / "recipe.yaml").symlink_to("deep/er/other.yaml")
    elif way == "below":
        typed = other
    else:
        other.rename(run / "recipe.yaml")
        (run / "model.json").unlink()
        if way != "no model.json":
            (run / "model.json").symlink_to("nowhere")
    with pytest.raises(UserError, match="evil:Evil would import"):
        grainline.train(typed, "new")
    with pytest.raises(UserError, match="evil:Evil would import"):  # before `train` takes it as typed
        read_recipe(str(typed), [])
    assert not Path("RAN").exists()


def test_kinds_of_data_that_could_be_modules_are_known_to_the_trust_of_typed_names() -> None:
    """`config.KINDS` repeats them, as imports do not point up."""
    assert set(KINDS.split("|")) == {name for name in SOURCES if name.isidentifier()}
