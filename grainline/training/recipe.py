"""Recipes: all settings of a training run, in one YAML file whose field names are checked.

A file may give `base: NAME` and then only the fields that differ. The recipe.yaml of a run is complete.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from grainline import recipes
from grainline.build import Description, method_config
from grainline.config import (
    TYPED,
    Config,
    flatten,
    override,
    parse,
    read_whole,
    read_yaml,
    require_trust,
    trusting,
)
from grainline.data.descriptions import Descriptions, require_fit
from grainline.data.texts import TextsConfig
from grainline.data.transforms import CropConfig
from grainline.distributed import usable_cores
from grainline.errors import UserError, suggestion
from grainline.files import write_text
from grainline.loading import find_run
from grainline.model import Model
from grainline.training.log import LogConfig
from grainline.training.optim import OptimizerConfig, steps_of
from grainline.training.parallel import Precision
from grainline.training.step import LoraConfig

DRAWN_MEAN = 0.839, 0.823, 0.811
"""The pixel mean of `scenes`, as the recipes for drawn scenes have it."""


class DataConfig(Config):
    """The training data and how it is read."""

    paths: tuple[str, ...] = ()  # sources, as in docs/data.md; `--data` on the command line replaces them
    images: str | None = None  # folder of the images, where a source names only files
    validation: tuple[str, ...] = ()  # validation sources, never trained on
    tokenizer: str | None = None  # a tokenizer to use; None trains a BPE on the training captions
    tokenizer_samples: int = Field(50_000, gt=0)  # records at even distances, whose captions train the BPE
    texts: TextsConfig = TextsConfig()  # which texts of a record a sample has
    crop: CropConfig | None = CropConfig()  # None: images as evaluation sees them
    superpixels: str | None = None  # folder of `grainline data superpixels`, for an encoder that reads them
    features: Literal["auto"] | None = None  # auto: what frozen encoders give is computed once and cached
    views: int = Field(1, ge=0, le=1000)  # squares of an image that `auto` caches, all but one random crops
    descriptions: tuple[str, ...] = ()  # files of `grainline data describe`, or `long`: each record's own
    descriptions_sha256: tuple[str, ...] = ()  # of these files; a run writes it, and another file is an error
    workers: int = Field(1, ge=0)  # processes that load images, for each training process
    max_corrupt: float = Field(0.02, ge=0, le=1)  # share of samples that may be corrupt before the run stops

    def require_workers(self) -> None:
        """Raise UserError for more processes than this machine can start and feed."""
        cores = usable_cores()
        limit = max(16, 4 * cores)
        if self.workers > limit:
            wrong = f"data.workers is {self.workers}"
            raise UserError(f"{wrong}; with the {cores} cores of this machine the limit is {limit}")

    @field_validator("descriptions", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _same_squares(self) -> "DataConfig":
        if self.views > 1 and (self.features is None or self.crop is None):
            raise ValueError("views above 1 are random crops in a cache: set features to auto, and crop")
        if self.superpixels and self.crop is not None:
            wrong = "cached superpixels are of the square that evaluation reads, and a random crop is another"
            raise ValueError(f"{wrong}: set data.crop to null, or leave data.superpixels out")
        if self.superpixels and self.features:
            raise ValueError("features contain the superpixels already: leave data.superpixels out")
        return self


class EarlyStopping(Config):
    """Stop when rSum of validation, which also selects the best checkpoint, no longer improves."""

    patience: int = Field(3, gt=0)  # validations in a row without an improvement


class TrainConfig(Config):
    """Steps, batch size, precision, memory and checkpoints of a run; `optimizer` has the learning rates."""

    max_steps: int = Field(gt=0)  # updates of the whole run
    global_batch_size: int = Field(gt=0)  # over all processes and accumulated parts
    optimizer: OptimizerConfig = OptimizerConfig()  # AdamW, its rules and schedules
    grad_clip: float | None = Field(1.0, gt=0)  # maximum norm of the gradient; None: no clipping
    precision: Precision = "auto"  # of the encoders: fp32, bf16, or auto, bf16 where the device has it
    grad_accum: int = Field(1, gt=0)  # gradient accumulation: parts of a batch, each with its own loss
    grad_cache_chunk: int | None = Field(None, gt=0)  # GradCache: rows encoded at a time; None: all
    ema: float | None = Field(None, gt=0, lt=1)  # decay of a moving average, which is saved; None: none
    lora: LoraConfig | None = None  # adapters instead of the encoders' weights; None: the weights learn
    activation_checkpointing: bool = False  # of every layer
    compile: bool = False  # torch.compile every layer
    fsdp: bool = False  # FSDP2: shard weights, gradients and optimizer state
    log_every: int = Field(10, gt=0)  # steps between two lines of the log
    save_every: int = Field(200, gt=0)  # steps between two checkpoints
    validate_every: int = Field(0, ge=0)  # steps between two validations; 0: never
    keep_checkpoints: int = Field(2, gt=0)  # number of newest checkpoints
    early_stopping: EarlyStopping | None = None  # on the metrics of validation; None: train all steps
    seed: int = Field(0, ge=0, lt=2**31)  # of first weights, order, crops, texts and noise
    reshuffle: bool = True  # a new order for each epoch; false repeats that of the first
    log: LogConfig = LogConfig()  # loggers beside OUT/log.jsonl

    @model_validator(mode="after")
    def _divides(self) -> "TrainConfig":
        batch, parts = self.global_batch_size, self.grad_accum
        if batch % parts:
            raise ValueError(f"batch {batch} is not a multiple of grad_accum {parts}")
        if self.early_stopping is not None and not self.validate_every:
            raise ValueError("early_stopping reads validations: set validate_every to a number of steps")
        if self.fsdp and self.compile:
            raise ValueError("fsdp and compile do not go together; leave one of them false")
        return self

    def require_batch(self, images: int, processes: int, contrastive: bool) -> None:
        """UserError unless a batch divides into equal parts and the data have enough images.

        contrastive  the loss compares images with texts of others, so each part needs two images
        """
        batch, parts = self.global_batch_size, self.grad_accum * processes
        wrong = f"train.global_batch_size {batch}"
        if batch % parts:
            part = batch // self.grad_accum
            largest = next(number for number in range(processes, 0, -1) if part % number == 0)
            wrong += f" is not a multiple of processes x train.grad_accum = {parts}"
            raise UserError(f"{wrong}; the largest number of processes that divides it is {largest}")
        if batch > images:
            wrong += f" is more than the {images} images of the data"
            raise UserError(f"{wrong}; lower it: train.global_batch_size={images // parts * parts or images}")
        if contrastive and batch == self.grad_accum:
            wrong += f" with train.grad_accum {batch} leaves a contrastive loss one image"
            raise UserError(f"{wrong} and nothing to compare it with: give a batch of {2 * batch} at least")


class Recipe(Config):
    """One training run."""

    method: str  # a name of `METHODS`, or my_module:MyMethod
    model: dict[str, Any]  # the config of the method; checked when the recipe is read
    init_from: str | None = None  # a run or checkpoint with initial weights, and the tokenizer
    data: DataConfig = DataConfig()  # sources, tokenizer, texts and crops
    train: TrainConfig

    @model_validator(mode="after")
    def _checked_names(self) -> "Recipe":
        if self.init_from and self.data.tokenizer:
            wrong = f"the tokenizer comes from {self.init_from}, with its weights"
            raise ValueError(f"{wrong}: leave data.tokenizer out")
        if bool(self.data.validation) != bool(self.train.validate_every):
            raise ValueError("data.validation and train.validate_every go together: set both, or neither")
        for name, value in self.settings().items():
            texts = [x for x in (value if isinstance(value, list) else [value]) if isinstance(x, str)]
            if name != "train.log.wandb" and not all(map(str.strip, texts)):
                raise ValueError(f"{name} is empty, as an unset shell variable is: give a value, or null")
        return self

    @property
    def description(self) -> Description:
        """The method and its checked config."""
        with trusting(self.method, self.model):  # `read_recipe` has refused what it may not name
            return Description(self.method, method_config(self.method, self.model, "recipe", "model"))

    def remarks(self) -> list[str]:
        """For the log: warm-ups that are cut, and data that may not fit the pixel mean of drawn scenes."""
        steps, optimizer, image = self.train.max_steps, self.train.optimizer, self.model.get("image")
        schedules: dict[str, Any] = {f"rules.{i}.": rule.schedule for i, rule in enumerate(optimizer.rules)}
        notes = [
            f"warm-up ({warmup} steps) is longer than the run ({steps}): set"
            f" train.optimizer.{name}schedule.warmup={max(1, steps // 10)}"
            for name, one in ({"": optimizer.schedule} | schedules).items()
            if one is not None and (warmup := steps_of(one.warmup, steps)) > steps
        ]
        mean = tuple(image.get("mean") or ()) if isinstance(image, dict) else ()
        others = [path for path in self.data.paths if re.match(r"scenes($|[:?])", path) is None]
        if others and mean == DRAWN_MEAN:
            advice = "for photographs take a recipe of photos/"
            notes.append(f"this recipe normalises pixels for drawn scenes; {advice}")
        return notes

    def settings(self) -> dict[str, Any]:
        """All fields by dotted name."""
        return flatten(self.model_dump(mode="json"))


def read_recipe(name: str, changes: list[str]) -> Recipe:
    """A recipe of the package (`clip/scenes`) or a YAML file, with `a.b=value` changes applied."""
    with open_recipe(name, changes) as recipe:
        return recipe


@contextmanager
def open_recipe(recipe: str | Recipe, changes: Sequence[str]) -> Iterator[Recipe]:
    """The recipe as `read_recipe` reads it. Inside the block, code that it names may be imported.

    Not code that a file in the folder of a run names: a UserError, unless the changes name it too.
    """
    typed: list[Any] = [changes]
    if isinstance(recipe, Recipe):
        with trusting(recipe.model_dump()):
            yield recipe
        return
    own = typed if recipe.endswith((".yaml", ".yml")) or recipe in recipes.names() else None  # no folder
    values, where = read_whole(recipes.find(recipe), recipes.find, own), f"recipe {recipe}"
    with trusting(typed):
        checked = parse(Recipe, override(values, list(changes)), where)
        config = method_config(checked.method, checked.model, where, "model")
        if (provider := checked.data.texts.phrases.provider).startswith("spacy:"):  # a pipeline is a package
            require_trust(provider, f"{where}, field data.texts.phrases.provider")
        for path in (*checked.data.paths, *checked.data.validation):  # `train` takes a Recipe as typed
            if named := TYPED.match(path):
                require_trust(named[0], f"{where}, field data")
        yield checked.model_copy(update={"model": config.model_dump(mode="json")})


SHORT_NAMES = {
    "lr": "train.optimizer.lr",
    "weight_decay": "train.optimizer.weight_decay",
    "pretrained": "model.pretrained",
    "init_from": "init_from",
}
"""Keywords of `grainline.train` besides the fields of `train` and `data`."""


def field_of(name: str) -> str:
    """The path of a recipe field that is named by a keyword. UserError for an unknown one.

    >>> field_of("max_steps"), field_of("workers"), field_of("lr")
    ('train.max_steps', 'data.workers', 'train.optimizer.lr')
    """
    paths = SHORT_NAMES | {x: f"data.{x}" for x in DataConfig.model_fields if x not in ("paths", "images")}
    paths |= {x: f"train.{x}" for x in TrainConfig.model_fields}
    if name not in paths:
        wrong = f"unknown setting {name!r}{suggestion(name, paths)}; allowed are {', '.join(sorted(paths))}"
        raise UserError(f"{wrong}, and any field of a recipe in changes={{'model.text.context': 128}}")
    return paths[name]


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write a recipe as YAML that `read_recipe` reads back to an equal one."""
    write_text(path, yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))


def with_descriptions(data: DataConfig) -> tuple[DataConfig, Descriptions | None]:
    """The data of a recipe with the digests of their descriptions, and these; None if it names none.

    Raises UserError if it already has other digests.
    """
    if not data.descriptions and not data.descriptions_sha256:
        return data, None
    if not data.descriptions:
        raise UserError("data.descriptions_sha256 is set, but data.descriptions names no file: leave it out")
    descriptions = Descriptions(data.descriptions)
    if data.descriptions_sha256 not in ((), descriptions.sha256):
        wrong = f"data.descriptions: {', '.join(data.descriptions)} does not have data.descriptions_sha256"
        advice = "give the file that the recipe was written with, or leave the digest out"
        raise UserError(f"{wrong}: {advice}")
    return data.model_copy(update={"descriptions_sha256": descriptions.sha256}), descriptions


def descriptions_for(model: Model, path: str, names: Sequence[str] | None) -> Descriptions | None:
    """The descriptions for a model, by `--descriptions` or its recipe; None if its method reads none.

    path  from which the model was loaded

    Raises UserError for missing descriptions, and for descriptions that the method does not read.
    """
    descriptions = Descriptions(names) if names else None
    run = find_run(path) if model.method.reads_descriptions and not names else None
    if run is not None and (run[0] / "recipe.yaml").is_file():
        where = run[0] / "recipe.yaml"  # of which this part is read alone: it imports nothing
        data = parse(DataConfig, read_yaml(where).get("data", {}), str(where), "data")
        descriptions = with_descriptions(data)[1]
    require_fit(model.description.method, model.method.reads_descriptions, descriptions, "--descriptions")
    return descriptions
