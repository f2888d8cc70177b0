"""Methods and encoders of a user: trained from a recipe, saved, loaded, and only where code is trusted."""

import sys
from pathlib import Path

import pytest
from PIL import Image
from processes import together
from runs import logged, recipe

import grainline
from grainline.config import override, read_yaml
from grainline.errors import UserError
from grainline.training.recipe import read_recipe

MODULE = '''
import torch
from torch import nn

from grainline.encoders.base import ImageEncoderConfig, ImageTokens, TextEncoderConfig, TextTokens
from grainline.encoders.towers import TowersConfig
from grainline.methods.base import Method, dot
from grainline.methods.shared import both_ways
from grainline.types import Term


class Squares(nn.Module):
    """Means of four squares."""

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
    width: int = 8

    def build(self):
        return Squares(self)


class Bag(nn.Module):
    """The mean of word vectors."""

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
'''
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
    assert grainline.load(home / "run", device="cpu", trust_code=True).method.grid == (2, 2)


def test_a_class_of_another_kind_is_one_line(home: Path) -> None:
    values = override(read_yaml(Path(recipe(home))), ["method=own_method:Squares"])
    (home / "other.yaml").write_text(str(values))
    with pytest.raises(
        UserError, match=r"own_method:Squares is no class derived from grainline\.methods\.base"
    ):
        read_recipe(str(home / "other.yaml"), []).description  # noqa: B018
