"""A recipe: everything that decides a training run, in one YAML file with checked names.

A file may say `base: NAME` and then only what differs from that recipe. A run keeps it whole.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator, model_validator

from grainline.build import Description, method_config
from grainline.config import Config, merged, override, parse, read_yaml
from grainline.data.descriptions import Descriptions, require_fit
from grainline.data.texts import TextsConfig
from grainline.data.transforms import CropConfig
from grainline.distributed import usable_cores
from grainline.errors import UserError
from grainline.files import write_text
from grainline.model import Model, find_run
from grainline.training.config import TrainConfig


class DataConfig(Config):
    """What to train on and how to read it."""

    paths: tuple[str, ...] = ()  # sources, as in docs/data.md; `--data` on the command line replaces them
    images: str | None = None  # folder of the pictures, where a source names only files
    validation: tuple[str, ...] = ()  # sources that the run measures itself on, never trained on
    tokenizer: str | None = None  # a tokenizer to use; None trains a BPE on the training captions
    tokenizer_samples: int = Field(50_000, gt=0)  # records, evenly spread, whose captions train the BPE
    texts: TextsConfig = TextsConfig()
    crop: CropConfig | None = CropConfig()  # None: pictures as evaluation sees them
    superpixels: str | None = None  # folder of `grainline data superpixels`, for an encoder that reads them
    features: str | None = None  # folder of `grainline data features`, for a frozen image encoder
    descriptions: tuple[str, ...] = ()  # files of `grainline data describe`, or `long`: each record's own
    descriptions_sha256: tuple[str, ...] = ()  # of these files; a run writes it, and another file is an error
    workers: int = Field(1, ge=0)  # processes that load pictures, for each training process
    damage: float = Field(0.02, ge=0, le=1)  # share of samples that may be damaged before the run stops

    def require_workers(self) -> None:
        """Raise UserError for more processes than this machine can start and feed."""
        cores = usable_cores()
        most = max(16, 4 * cores)
        if self.workers > most:
            raise UserError(
                f"data.workers is {self.workers}; with the {cores} cores of this machine {most} are the most"
            )

    @field_validator("descriptions", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _same_squares(self) -> "DataConfig":
        for name, folder in (("superpixels", self.superpixels), ("features", self.features)):
            if folder and self.crop is not None:
                raise ValueError(
                    f"{name} that were made before are of the square that evaluation sees, and a random crop "
                    f"shows another one: set data.crop to null, or leave data.{name} out"
                )
        if self.superpixels and self.features:
            raise ValueError(
                "features were made of superpixels already: leave data.superpixels out, or data.features"
            )
        return self


class Recipe(Config):
    """One training run."""

    method: str
    model: dict[str, Any]  # the config of the method; checked when the recipe is read
    begin: str | None = (
        None  # a run whose weights and tokenizer it begins with; its encoders are of these sizes
    )
    data: DataConfig = DataConfig()
    train: TrainConfig

    @model_validator(mode="after")
    def _one_tokenizer(self) -> "Recipe":
        if self.begin and self.data.tokenizer:
            raise ValueError(
                f"the tokenizer comes from {self.begin}, with its weights: leave data.tokenizer out"
            )
        return self

    @property
    def description(self) -> Description:
        """The method and its checked config."""
        return Description(self.method, method_config(self.method, self.model, "recipe field model"))


def read_recipe(name: str, changes: list[str]) -> Recipe:
    """A recipe of the package (`clip/scenes`) or a YAML file, with `a.b=value` changes applied."""
    values = override(_whole(find_recipe(name), ()), changes)
    recipe = parse(Recipe, values, f"recipe {name}")
    return recipe.model_copy(update={"model": recipe.description.config.model_dump(mode="json")})


def find_recipe(name: str) -> Path:
    """The file behind a recipe's name."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"no recipe file {path}; the built-in ones are {', '.join(names())}")
        return path
    if name not in names():
        close = get_close_matches(name, names(), n=1, cutoff=0.4)
        hint = f", did you mean {close[0]!r}?" if close else "."
        raise UserError(f"no recipe {name!r}{hint} Built in are {', '.join(names())}; or give a .yaml file")
    return _folder() / f"{name}.yaml"


def names() -> list[str]:
    """The recipes that ship with the package."""
    return sorted(p.relative_to(_folder()).with_suffix("").as_posix() for p in _folder().rglob("*.yaml"))


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write a recipe as YAML that `read_recipe` reads back to an equal one."""
    write_text(path, yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))


def with_descriptions(recipe: Recipe) -> tuple[Recipe, Descriptions | None]:
    """The descriptions that a recipe names, and the recipe with their digests. None where it names none.

    Raises UserError where the recipe says another digest already.
    """
    data = recipe.data
    if not data.descriptions and not data.descriptions_sha256:
        return recipe, None
    if not data.descriptions:
        raise UserError("data.descriptions_sha256 is set, but data.descriptions names no file: leave it out")
    found = Descriptions(data.descriptions)
    if data.descriptions_sha256 not in ((), found.sha256):
        raise UserError(
            f"data.descriptions: {', '.join(data.descriptions)} is not what data.descriptions_sha256 says: "
            "give the file that the recipe was written with, or leave the digest out"
        )
    digested = data.model_copy(update={"descriptions_sha256": found.sha256})
    return recipe.model_copy(update={"data": digested}), found


def descriptions_of(model: str, names: Sequence[str]) -> Descriptions | None:
    """The descriptions by their names, else those that the recipe of a run was trained with; None: no such.

    model  what `load` takes
    """
    if names:
        return Descriptions(names)
    run = find_run(Path(model))
    if run is None or not (run[0] / "recipe.yaml").is_file():
        return None
    return with_descriptions(read_recipe(str(run[0] / "recipe.yaml"), []))[1]


def descriptions_for(model: Model, path: str, names: Sequence[str] | None) -> Descriptions | None:
    """The descriptions that a model reads, as `--descriptions` names them; None where it reads none.

    path  what the model was loaded from

    Raises UserError where it reads some and there are none, and where it reads none.
    """
    found = descriptions_of(path, names or ()) if names or model.method.describes else None
    require_fit(model.description.method, model.method.describes, found, "--descriptions")
    return found


def _whole(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """The fields of a recipe over those of its base, and of the base's base; a path is relative to its file.

    above  the recipes that build upon this one, the first first
    """
    chain = (*above, path.resolve())
    if path.resolve() in above:
        raise UserError(f"recipe {above[0]} builds upon itself: {' -> '.join(map(str, chain))}; drop a base")
    values = read_yaml(path)
    if "base" not in values:
        return values
    base = values.pop("base")
    if not isinstance(base, str):
        raise UserError(f"{path}: base is {base!r}; it must be the name of a recipe or a .yaml file")
    place = str(path.parent / base) if base.endswith((".yaml", ".yml")) else base
    try:
        below = find_recipe(place)
    except UserError as error:
        raise UserError(f"{path}: base: {error}") from None
    return merged(_whole(below, chain), values)


def _folder() -> Path:
    return Path(str(resources.files("grainline"))) / "recipes"
