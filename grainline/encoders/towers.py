"""Two encoders and the projections of both into one shared space: the trunk of every dual-encoder method."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Discriminator, Field, SerializeAsAny, Tag, model_validator
from torch import Tensor, nn

from grainline.config import Config, load_class
from grainline.encoders.base import ImageEncoderConfig, ImageTokens, TextEncoderConfig, TextTokens
from grainline.encoders.cast import Cast, CastConfig, segments
from grainline.encoders.pretrained import Pretrained, build_pretrained, kind_of
from grainline.encoders.pretrained.adapters import ImageEncoder, TextEncoder
from grainline.encoders.pretrained.kind import PretrainedConfig, PretrainedImageConfig, PretrainedTextConfig
from grainline.encoders.text import TextConfig, TextTransformer
from grainline.encoders.tgt_text import Grouper, GrouperConfig
from grainline.encoders.vit import ViT, ViTConfig
from grainline.nn.hashing import Dropout, equal_texts
from grainline.nn.pooling import mean_pool, unit
from grainline.nn.runtime import is_static
from grainline.types import Encoded, Images, Texts, full

WIDTH = 512  # of the shared space, where neither the config nor a checkpoint gives it


def _load_custom(base: type[Config], value: Any) -> Any:
    """The config of an encoder outside grainline, of the class that its field `kind` names."""
    if not isinstance(value, dict):
        return value
    return load_class(value["kind"], base, {}, "kind").model_validate(value)


def _tag(value: Any) -> str | None:
    """The tag of a side outside grainline (kind "module:Class") or from a checkpoint; None: from scratch."""
    fields = value if isinstance(value, dict) else {}
    if isinstance(value, ImageEncoderConfig | TextEncoderConfig) or ":" in str(fields.get("kind")):
        return "custom"
    return "from checkpoint" if isinstance(value, PretrainedConfig) or "pretrained" in fields else None


def image_kind(value: Any) -> str:
    """The tag of an image side; names of a ViT have a slash, those of a CAST have none."""
    fields = value if isinstance(value, dict) else {}
    cast = "superpixels" in fields or fields.get("name") in [*CastConfig.sizes]
    return _tag(value) or ("cast" if cast or isinstance(value, CastConfig) else "vit")


def text_kind(value: Any) -> str:
    """The tag of a text side."""
    groups = isinstance(value, GrouperConfig) or (isinstance(value, dict) and "groups" in value)
    return _tag(value) or ("with groups" if groups else "scratch")


CustomImage = Annotated[
    SerializeAsAny[ImageEncoderConfig], BeforeValidator(partial(_load_custom, ImageEncoderConfig))
]
CustomText = Annotated[
    SerializeAsAny[TextEncoderConfig], BeforeValidator(partial(_load_custom, TextEncoderConfig))
]
ImageSide = Annotated[
    Annotated[ViTConfig, Tag("vit")]
    | Annotated[CastConfig, Tag("cast")]
    | Annotated[PretrainedImageConfig, Tag("from checkpoint")]
    | Annotated[CustomImage, Tag("custom")],
    Discriminator(image_kind),
]
TextSide = Annotated[
    Annotated[TextConfig, Tag("scratch")]
    | Annotated[GrouperConfig, Tag("with groups")]
    | Annotated[PretrainedTextConfig, Tag("from checkpoint")]
    | Annotated[CustomText, Tag("custom")],
    Discriminator(text_kind),
]


class TowersConfig(Config):
    """The two encoders of a method, and the width of the space that they share."""

    pretrained: str | None = None  # the checkpoint of both sides, where a side does not name its own
    image: ImageSide
    text: TextSide
    width: int | None = Field(None, gt=0)  # None: that of the checkpoint, WIDTH where none has one
    dropout: float = Field(0.0, ge=0, lt=1)  # of what the projections into this space read, in training
    learns_tokens: ClassVar[bool] = False  # whether the loss reads image tokens
    masks_tokens: ClassVar[bool] = False  # and leaves out those that are not real

    @property
    def averaged(self) -> bool:
        """Whether the summary of an image is the mean of its tokens, before the projection."""
        image = self.image
        if isinstance(image, PretrainedImageConfig):
            return image.architecture is not None and kind_of(image.architecture).averaged
        if isinstance(image, ViTConfig):
            return image.pool == "mean"
        return isinstance(image, ImageEncoderConfig) and image.averaged

    @property
    def reads_tokens(self) -> bool:
        """Whether training reads image tokens, so that a cached summary is not enough."""
        return self.learns_tokens

    @model_validator(mode="after")
    def _has_use_for_segments(self) -> "TowersConfig":
        if isinstance(self.image, CastConfig) and not self.masks_tokens:
            raise ValueError("image.superpixels are for methods that learn from segments: caft and flair")
        any_shape = "max_num_patches" in (getattr(self.image, "architecture", None) or {})
        if any_shape and self.learns_tokens and not self.masks_tokens:
            who = "siglip, clip, himo, vse, caft, flair and tgt"
            raise ValueError(f"images of any shape have masked patches, which only {who} leave out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _shared(cls, values: Any) -> Any:
        name = values.get("pretrained") if isinstance(values, dict) else None
        if not isinstance(name, str):
            return values
        sides = {side: values.get(side, {}) for side in ("image", "text")}
        return values | {k: {"pretrained": name} | x if isinstance(x, dict) else x for k, x in sides.items()}


class Towers(nn.Module):
    """Images and texts to unit vectors, and to tokens in the same space.

    In training there are image tokens only for a loss that reads them (`learns_tokens` of the config), and no
    words; heat maps and indexes read both.
    """

    def __init__(self, cfg: TowersConfig) -> None:
        """Fresh weights; `fill` puts in those of a checkpoint."""
        super().__init__()
        self.space, self.learns_tokens = cfg.width or WIDTH, cfg.learns_tokens
        self.image, self.text, heads = _encoders(cfg)
        self.to_image, self.to_text = heads or (
            _projection(cfg.image, self.image.width, self.space, cfg.dropout),
            _projection(cfg.text, self.text.width, self.space, cfg.dropout),
        )
        self.averaged = cfg.averaged and not heads  # whether a vector is the unit mean of its tokens
        if heads and cfg.dropout:
            raise ValueError("dropout goes with linear projections, and the heads of a GroupViT are none")
        for layer in (self.to_image, self.to_text):
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    @torch.no_grad()
    def fill(self, image: Pretrained | None, text: Pretrained | None) -> None:
        """The weights of checkpoints, strictly, of the sides that have one; projections where they fit."""
        if image is not None and image.image is not None:
            own = isinstance(self.image, ImageEncoder)
            (self.image if own else self.image.encoder).load_state_dict(image.image.state_dict(), strict=True)
            if own:
                _fill(self.to_image, image.image_projection, image.heads and image.heads[0])
        if text is not None and text.text is not None:
            own = isinstance(self.text, TextEncoder)
            (self.text if own else self.text.encoder).fill(text.text.library_state())
            if own:
                _fill(self.to_text, text.text_projection, text.heads and text.heads[1])

    @property
    def segmented(self) -> bool:
        """Whether image tokens are segments of any shape."""
        return isinstance(self.image, Cast) or getattr(self.image, "segmented", False)

    def image_tokens(self, images: Images) -> ImageTokens:
        """The tokens of images. Features and superpixels that come with the images are used as they are."""
        if images.features is not None:
            features = full(images.features)
            classed = getattr(self.image, "classed", False)
            return ImageTokens(features[:, 0], features[:, 0] if classed else None, features[:, 1:])
        if isinstance(self.image, Cast):
            return self.image.read(images.pixels, images.regions)
        tokens: ImageTokens = self.image(images.pixels)
        return tokens._replace(places=None) if self.training else tokens

    def segmentations(self, images: Images) -> tuple[Tensor, ...]:
        """The segment of each pixel at every stage, as `cast.segments` has them; () without segments."""
        if isinstance(self.image, Cast):
            return segments(self.image(images.pixels, images.regions))
        places = self.image_tokens(images).places
        return () if places is None else (places.long(),)

    def encode_images(self, images: Images, project: nn.Module | None = None) -> Encoded:
        """images of N rows -> Encoded [N, D], tokens = projected patches, not of unit length

        project  of the patches; None: that of the vectors
        """
        read = self.image_tokens(images)
        keep = 0 if self.training and not self.learns_tokens else read.patches.shape[1]
        vector = unit(self.to_image(read.pooled))
        tokens, mask = full((project or self.to_image)(read.patches[:, :keep])), read.real()[:, :keep]
        return Encoded(vector, tokens, mask, images.image, images.image, None, read.places)

    def encode_texts(self, texts: Texts) -> Encoded:
        """texts of M rows, their S parts read one after the other -> Encoded [M, D], tokens = words"""
        ids, mask = flat_parts(texts)
        read = self.text(ids, mask)
        keep = 0 if self.training else ids.shape[1]
        vector = unit(self.to_text(read.pooled))
        tokens = full(self.to_text(read.tokens[:, :keep]))
        return Encoded(vector, tokens, read.mask[:, :keep], texts.item, texts.image)

    def encode_sentences(self, texts: Texts) -> Encoded:
        """texts of M rows in parts -> Encoded [M, D], the mean of unit vectors of parts; tokens = these"""
        tokens, mask = read_parts(self, texts)
        tokens = unit(tokens)
        return Encoded(unit(mean_pool(tokens, mask).vector), tokens, mask, texts.item, texts.image)


def _encoders(cfg: TowersConfig) -> tuple[Any, Any, tuple[nn.Module, nn.Module] | None]:
    """The encoders of both sides, and the heads of a GroupViT that gives both and whose space is wanted.

    Two sides of one checkpoint are built at once. With another encoder on one side the heads of GroupViT lead
    nowhere: they are left out, and a new layer learns.
    """
    image = _from_checkpoint(cfg.image)
    one = isinstance(cfg.text, PretrainedTextConfig) and image and cfg.text.architecture == image.architecture
    text = image if one else _from_checkpoint(cfg.text)
    image_encoder: Any = _from_scratch(cfg.image) if image is None else image.image
    text_encoder: Any = _from_scratch(cfg.text) if text is None else text.text
    if isinstance(cfg.image, PretrainedImageConfig) and cfg.image.patches == "values":
        image_encoder.keep_values()
    if isinstance(cfg.text, PretrainedTextConfig) and cfg.text.frozen_positions:
        text_encoder.freeze_positions(cfg.text.frozen_positions)
    space = kind_of(image.architecture).space(image.architecture) if one and image else None
    heads = image.heads if image and space == (cfg.width or WIDTH) else None
    return image_encoder, text_encoder, heads


def _from_scratch(side: Any) -> Any:
    """An encoder with fresh weights."""
    if isinstance(side, ImageEncoderConfig | TextEncoderConfig):
        return side.build()
    encoders: dict[type[Config], Any] = {ViTConfig: ViT, CastConfig: Cast, GrouperConfig: Grouper}
    return encoders.get(type(side), TextTransformer)(side)


def _from_checkpoint(side: Config) -> Pretrained | None:
    """The encoders of a checkpoint with fresh weights; None for a side from scratch."""
    if not isinstance(side, PretrainedConfig):
        return None
    if side.architecture is None:
        raise ValueError(f"the architecture of {side.pretrained} is not known yet; `start` reads it")
    return build_pretrained(side.architecture)


class Projection(nn.Linear):
    """A linear layer without a bias that drops a share of its input in training."""

    def __init__(self, width: int, space: int, dropout: float) -> None:
        super().__init__(width, space, bias=False)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.drop(x))


def _projection(side: Config, width: int, space: int, dropout: float) -> nn.Module:
    """Into the shared space; dropout alone where the summaries of a checkpoint are its vectors already."""
    architecture = side.architecture if isinstance(side, PretrainedConfig) else None
    kind = None if architecture is None else kind_of(architecture)
    if architecture and kind and kind.vectors and kind.space(architecture) == space:
        return Dropout(dropout)
    return Projection(width, space, dropout)


def _fill(layer: nn.Module, matrix: Tensor | None, head: nn.Module | None) -> None:
    """A projection of another width stays fresh: it leads into another space."""
    if isinstance(layer, nn.Sequential) and head is not None:
        layer.load_state_dict(head.state_dict(), strict=True)
    if matrix is not None and isinstance(layer, nn.Linear) and layer.weight.shape == matrix.shape:
        layer.weight.copy_(matrix)


def flat_parts(texts: Texts) -> tuple[Tensor, Tensor]:
    """The parts of each text as one run of tokens with all padding on the right: ids and mask [M, S * L]."""
    ids, mask = texts.ids, texts.mask
    if ids.shape[1] == 1:
        return ids[:, 0], mask[:, 0]
    ids, mask = ids.flatten(1), mask.flatten(1)
    order = (~mask).int().argsort(dim=1, stable=True)  # real tokens first, in their order
    return ids.gather(1, order), mask.gather(1, order)


def read_parts(
    towers: Towers,
    texts: Texts,
    max_parts: int | None = None,
    vectors: Callable[[TextTokens], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Every part of every text, encoded by itself: [M, S, D] not of unit length, 0 for padding; [M, S] bool.

    vectors  of distinct parts [U, D], of what the encoder gives; None: projected summaries

    Parts that several texts share are encoded once. ValueError for a text of more than `max_parts` parts.
    """
    if max_parts and texts.ids.shape[1] > max_parts:
        if texts.mask[:, max_parts:].any():
            raise ValueError(f"a text has more than {max_parts} parts; the method composes no more")
        texts = texts._replace(ids=texts.ids[:, :max_parts], mask=texts.mask[:, :max_parts])
    mask = texts.mask.any(-1)
    first, back = distinct_rows(texts.ids.masked_fill(~texts.mask, -1).flatten(0, 1))
    ids = texts.ids.flatten(0, 1)[first]
    real = texts.mask.flatten(0, 1)[first]
    with equal_texts(ids, real):
        read = towers.text(ids, real)
        vector = full(towers.to_text(read.pooled)) if vectors is None else vectors(read)
    vector = vector[back].unflatten(0, mask.shape)
    return vector.masked_fill(~mask[..., None], 0.0), mask


def distinct_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first index of each distinct row of x [R, D]: [U]; and the distinct row that each row equals: [R].
    In a static graph every row counts as distinct.

    One sum for each row is far faster than `torch.unique` of rows, which is used if two different rows ever
    have the same sum.

    >>> first, back = distinct_rows(torch.tensor([[2.0], [1.0], [2.0]]))
    >>> sorted(first.tolist()), first[back].tolist()
    ([0, 1], [0, 1, 0])
    """
    number = torch.arange(x.shape[0], device=x.device)
    if is_static():
        return number, number
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]
    bits = x.detach().contiguous().view(whole).long()
    g = torch.Generator("cpu").manual_seed(0)
    weight = torch.randint(-(2**62), 2**62, (x.shape[1],), generator=g, dtype=torch.int64, device="cpu")
    distinct, back = torch.unique((bits * weight.to(x.device)).sum(1), return_inverse=True)
    example = torch.empty_like(distinct).scatter_(0, back, number)
    if not torch.equal(bits[example][back], bits):
        distinct, back = torch.unique(bits, dim=0, return_inverse=True)
    first = torch.full((len(distinct),), len(x), device=x.device).scatter_reduce(0, back, number, "amin")
    return first, back
