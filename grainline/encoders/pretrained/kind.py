"""The interface of a kind of checkpoint: how its files are read, and the encoders that they become.

The class of a kind stands in one file of this folder with everything that is known of it: settings, names of
tensors, ways to summarise. Kinds of the transformers library have its names (`model_type`).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.config import Config
from grainline.encoders.pretrained.adapters import ImageEncoder, TextEncoder
from grainline.encoders.pretrained.archive import Stored
from grainline.errors import UserError
from grainline.nn.positions import KEEP, Stretch, to_context, to_grid

Pool = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""How states of tokens are summed up, by the names of sentence-transformers and in its order."""


class PretrainedConfig(Config):
    """Abstract: one side of a checkpoint."""

    pretrained: str = Field(min_length=1)  # a name, folder or file, as `load_pretrained` takes it
    quick_gelu: bool | None = None  # None: that of the checkpoint
    architecture: dict[str, Any] | None = None  # `start` reads it from the checkpoint, not needed again
    # frozen, last:N, lora or all (training/optim.py); None: as the rules of a run say
    tune: str | None = None
    rate: float | None = Field(None, gt=0)  # times that of the heads, where `tune` lets something learn

    @model_validator(mode="after")
    def _tunes(self) -> "PretrainedConfig":
        if self.tune is not None and not re.fullmatch(r"frozen|lora|all|last:[1-9]\d{0,3}", self.tune):
            raise ValueError(f"tune {self.tune!r}: allowed are frozen, last:N for N layers, lora and all")
        if self.rate is not None and self.tune in (None, "frozen"):
            raise ValueError(f"rate {self.rate:g} goes with tune: last:N, lora or all")
        return self


class PretrainedImageConfig(PretrainedConfig):
    """The image side of a checkpoint."""

    size: int | None = Field(None, gt=0)  # side of the square input in pixels; None: that of the checkpoint
    resize: Literal["crop", "squash"] | None = None  # to a square; None: that of the checkpoint
    max_num_patches: int | None = Field(None, gt=0)  # of an image of any shape; None: that of the checkpoint
    patches: Literal["attention", "values"] = "attention"  # what they take up in the last layer of a CLIP


class PretrainedTextConfig(PretrainedConfig):
    """The text side of a checkpoint."""

    context: int | None = Field(None, gt=2)  # longest text in tokens; None: that of the checkpoint
    stretch: Literal["keep", "linear"] = "keep"  # how positions become more (docs/pretrained.md)
    pool: Pool | None = None  # how states of tokens are summed up; None: as the checkpoint does it
    walk_type: Literal["short", "long", "box"] | None = None  # of an FG-CLIP 2; None: by the context
    frozen_positions: int = Field(0, ge=0)  # so many of the first never learn, also against the rules

    @model_validator(mode="after")
    def _some_learn(self) -> "PretrainedTextConfig":
        if self.context is not None and self.frozen_positions >= self.context:
            raise ValueError(f"frozen_positions {self.frozen_positions}: context is {self.context}, not more")
        return self


def checkpoint_of(side: Config) -> PretrainedConfig | None:
    """The checkpoint that a side names: by itself, or for the encoder inside it (`encoder`)."""
    inside = side if isinstance(side, PretrainedConfig) else getattr(side, "encoder", None)
    return inside if isinstance(inside, PretrainedConfig) else None


class Options(NamedTuple):
    """Choices of a recipe for a checkpoint; None: as the checkpoint has it."""

    size: int | None = None  # side of the images: positions become a finer or coarser grid (`to_grid`)
    context: int | None = None  # longest text in tokens: positions are stretched or cut (`to_context`)
    stretch: Stretch = "keep"
    quick_gelu: bool | None = None  # x * sigmoid(1.702 x) in place of GELU, where a CLIP does not show it
    resize: Literal["crop", "squash"] | None = None  # the middle, or the whole image; both without a margin
    pool: Pool | None = None  # how the states of a text encoder are summed up
    max_num_patches: int | None = None  # of an image that a NaFlex reads
    walk_type: Literal["short", "long", "box"] | None = None  # of an FG-CLIP 2; None: "long" above 64 tokens


class Published(NamedTuple):
    """The method of a checkpoint that a paper published, beside its encoders."""

    method: str = ""  # its name; empty: the checkpoint has encoders alone
    config: Mapping[str, Any] = MappingProxyType({})  # fields of its config that belong to the weights
    parts: Mapping[str, Tensor] = MappingProxyType({})  # weights of its own layers, by its state dict


class Source(NamedTuple):
    """A checkpoint that was read."""

    architecture: dict[str, Any]  # with the kind; goes through JSON unchanged
    state: dict[str, Tensor]  # the weights, by the names of the model that `Kind.model` builds
    tokenizer: str | None = None  # folder or name of the tokenizer that belongs to it
    left_out: tuple[str, ...] = ()  # parts that were not read
    published: Published = Published()
    size: int | None = None  # side of the images that its processor makes, where the model reads any


class Pretrained(NamedTuple):
    """The encoders of a checkpoint; a side that it does not have is None."""

    image: ImageEncoder | None
    text: TextEncoder | None
    architecture: dict[str, Any]  # for build_pretrained; goes through JSON unchanged
    image_projection: Tensor | None = None  # [D, W] as in nn.Linear; None: the summary is the vector already
    text_projection: Tensor | None = None
    scale: Tensor | None = None  # [1] factor on the cosines
    bias: Tensor | None = None  # [1] what is added to the scaled cosines
    tokenizer: str | None = None  # folder or name of the tokenizer that belongs to it
    left_out: tuple[str, ...] = ()  # parts of the checkpoint that were not read
    heads: tuple[nn.Sequential, nn.Sequential] | None = None  # for each side, in place of projections
    published: Published = Published()


class Kind(ABC):
    """Abstract: a kind of checkpoint."""

    vectors: ClassVar[bool] = False  # summaries are vectors of the shared space, without a projection
    averaged: bool = False  # the summary of an image is the mean of its tokens
    quick: ClassVar[bool] = False  # it may have the quick GELU in place of the plain one
    grid: str | None = ""  # the table of image positions; None: images have any shape, or there are none
    lead: int = 0  # its rows before those of patches
    antialias: bool = False  # it becomes another grid with antialias
    row: str = ""  # the table of text positions

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, folder: Path, options: Options) -> Source:  # noqa: ARG002
        """A folder with a config.json of this kind."""
        raise UserError(f"{folder} has a config.json, and {self.name} is read from a file")

    def read_file(self, file: Path, stored: Stored, options: Options, settings: Mapping[str, Any]) -> Source:  # noqa: ARG002
        """A file of weights with the tensors of this kind. settings: those of open_clip's config beside it"""
        raise UserError(f"{file} has the weights of {self.name} without its config.json: give its folder")

    @abstractmethod
    def model(self, architecture: Mapping[str, Any]) -> nn.Module:
        """A model with fresh weights."""

    @abstractmethod
    def split(self, model: Any, architecture: Mapping[str, Any]) -> Pretrained:
        """The sides of such a model, in evaluation mode, and what joins them."""

    def space(self, architecture: Mapping[str, Any]) -> int | None:  # noqa: ARG002
        """Width of the space that both sides share; None where there is none."""
        return None

    def fit(self, source: Source, options: Options) -> Source:
        """The same with positions for another size of images and another length of texts."""
        sides, state = sides_of(source.architecture), source.state
        right, wrong = "size", "max_num_patches"
        if wrong in source.architecture:
            right, wrong = wrong, right
        if getattr(options, wrong) is not None:
            raise UserError(f"for {self.name} give {right}, and leave {wrong} out")
        if options.pool is not None:
            raise UserError(f"{self.name} sums up its texts in one way; leave model.text.pool out")
        if options.walk_type is not None and self.name != "fgclip2":
            raise UserError(f"walk_type is for FG-CLIP 2, not for {self.name}; leave it out")
        if options.max_num_patches is not None:
            source.architecture["max_num_patches"] = [options.max_num_patches]
        size = source.size if options.size is None else options.size
        if size is not None and self.grid is not None:
            image = sides["image"]
            before, image["image_size"] = image["image_size"], size
            if size not in (before, source.size):  # 14 divides no 384, and yet there are such models
                self.check_size(image, size)
            if self.grid in state:  # others have relative positions only
                old, new = (side // image["patch_size"] for side in (before, size))
                table = state[self.grid]
                fitted = to_grid(table.flatten(0, -2), (old, old), (new, new), self.lead, self.antialias)
                state[self.grid] = fitted.view(*table.shape[:-2], *fitted.shape)
        if options.context is not None and self.row:
            sides["text"]["max_position_embeddings"] = options.context
            state[self.row] = longer(state[self.row], options)
        return source

    def check_size(self, config: Mapping[str, Any], size: int) -> None:
        """UserError for a side of images that the model cannot read."""
        patch = config["patch_size"]
        if size <= 0 or size % patch:
            raise UserError(f"size {size} is not a multiple of the checkpoint's patch side {patch}")


def longer(table: Tensor, options: Options) -> Tensor:
    """A table of text positions for `options.context` tokens."""
    context, learnt = options.context or 0, len(table)
    if context < 3:
        raise UserError(f"the context is {context} tokens; it must be at least 3 (begin, one token, end)")
    if options.stretch == "keep" and learnt < context and learnt <= KEEP:
        raise UserError(f"the first {KEEP} of {learnt} positions would stay; choose stretch='linear'")
    return to_context(table, context, options.stretch)


def sides_of(architecture: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of the image model and of the text model; one of both where the model has one side."""
    config = architecture["config"]
    return {"image": config.get("vision_config", config), "text": config.get("text_config", config)}
