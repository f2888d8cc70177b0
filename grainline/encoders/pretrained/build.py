"""The configs of encoders from a checkpoint, and from an architecture to its encoders and back."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from grainline.config import Config
from grainline.encoders.pretrained.adapters import ImageEncoder, TextEncoder, draw_by_rows
from grainline.encoders.pretrained.hub import library, quiet


class PretrainedConfig(Config):
    """Abstract: one side of a checkpoint."""

    pretrained: str = Field(min_length=1)  # a name, folder or file, as `load_pretrained` takes it
    quick_gelu: bool | None = None  # None: that of the checkpoint
    architecture: dict[str, Any] | None = None  # `start` reads it from the checkpoint, not needed again


class PretrainedImageConfig(PretrainedConfig):
    """The image side of a checkpoint."""

    size: int | None = Field(None, gt=0)  # side of the square input in pixels; None: that of the checkpoint
    resize: Literal["crop", "squash"] | None = None  # to a square; None: that of the checkpoint
    patches: Literal["attention", "values"] = "attention"  # what they take up in the last layer of a CLIP


class PretrainedTextConfig(PretrainedConfig):
    """The text side of a checkpoint."""

    context: int | None = Field(None, gt=2)  # longest text in tokens; None: that of the checkpoint
    stretch: Literal["keep", "linear"] = "keep"  # how positions become more (docs/pretrained.md)
    frozen_positions: int = Field(0, ge=0)  # so many of the first never learn, also against the rules

    @model_validator(mode="after")
    def _some_learn(self) -> "PretrainedTextConfig":
        if self.context is not None and self.frozen_positions >= self.context:
            raise ValueError(
                f"frozen_positions {self.frozen_positions} is not less than the context, "
                f"{self.context} tokens"
            )
        return self


class Kind(NamedTuple):
    """One model of the transformers library."""

    model: str  # its class; that of its config is config
    config: str
    image: str | None = None  # where the image model stands inside it; "" is the model itself
    text: str | None = None
    grid: str = ""  # name of the table of image positions
    lead: int = 0  # rows of that table before those of the patches
    row: str = ""  # name of the table of text positions
    left_out: str = r"(?!)"  # parts of its checkpoints that no encoder has: a pattern, nothing by default


_TABLE = "_model.embeddings.position_embedding"
KINDS = {
    "clip": Kind("CLIPModel", "CLIPConfig", "vision_model", "text_model", f"vision{_TABLE}.weight", 1,
                  f"text{_TABLE}.weight"),
    "siglip": Kind("SiglipModel", "SiglipConfig", "vision_model", "text_model", f"vision{_TABLE}.weight", 0,
                    f"text{_TABLE}.weight"),
    "groupvit": Kind("GroupViTModel", "GroupViTConfig", "vision_model", "text_model", f"vision{_TABLE}s", 0,
                      f"text{_TABLE}.weight"),
    "vit": Kind("ViTModel", "ViTConfig", "", None, "embeddings.position_embeddings", 1,
                 left_out=r"(pooler|classifier|decoder|embeddings\.mask_token)\b.*"),
    "swin": Kind("SwinModel", "SwinConfig", "", None, "embeddings.position_embeddings", 0,
                  left_out=r"(classifier|decoder|embeddings\.mask_token)\b.*"),
    "bert": Kind("BertModel", "BertConfig", None, "", row="embeddings.position_embeddings.weight",
                  left_out=r"(pooler|cls|classifier|qa_outputs)\b.*"),
}  # fmt: skip
HEADLESS = {"vit", "bert"}  # their pooler is trained for other tasks than ours: it is left out
HEADS = ("visual_projection", "text_projection")  # a matrix each, but for GroupViT: two layers each


class Pretrained(NamedTuple):
    """The encoders of a checkpoint; a side that it does not have is None."""

    image: ImageEncoder | None
    text: TextEncoder | None
    image_projection: Tensor | None  # [D, W] as in nn.Linear; None: the summary is the vector already
    text_projection: Tensor | None
    scale: Tensor | None  # [1] factor on the cosines
    bias: Tensor | None  # [1] what is added to the scaled cosines
    tokenizer: str | None  # folder or name of the tokenizer that belongs to it
    left_out: tuple[str, ...]  # parts of the checkpoint that were not read
    architecture: dict[str, Any]  # for build_pretrained; goes through JSON unchanged
    heads: tuple[nn.Sequential, nn.Sequential] | None = None  # of GroupViT: two layers for each side


class Source(NamedTuple):
    """An architecture and the weights of the library's whole model."""

    architecture: dict[str, Any]
    state: dict[str, Tensor]  # by the names of transformers
    tokenizer: str | None
    left_out: tuple[str, ...]


def build_pretrained(architecture: Mapping[str, Any]) -> Pretrained:
    """The same modules with fresh weights: no file and no network is needed."""
    return split(fresh_model(architecture), architecture)


def joined(towers: Pretrained) -> dict[str, Tensor]:
    """The state dict of the library's whole model, for CLIP and SigLIP: the inverse of `split`."""
    assert towers.image is not None
    assert towers.text is not None
    assert towers.scale is not None
    image, text = towers.image.model.state_dict(), towers.text.library_state()
    state = {f"vision_model.{name}": x for name, x in image.items()}
    state |= {f"text_model.{name}": x for name, x in text.items()}
    for head, matrix in zip(HEADS, (towers.image_projection, towers.text_projection), strict=True):
        if matrix is not None:
            state[f"{head}.weight"] = matrix
    state["logit_scale"] = towers.scale.log()
    if towers.bias is None:
        state["logit_scale"] = state["logit_scale"][0]  # CLIP's is a scalar, SigLIP's has one element
    else:
        state["logit_bias"] = towers.bias
    return {name: x.detach() for name, x in state.items()}


def whole_model(towers: Pretrained) -> Any:
    """The library's own model with the weights of the towers, for CLIP and SigLIP."""
    model = fresh_model(towers.architecture)
    model.load_state_dict(joined(towers), strict=True)
    return model


def split(model: Any, architecture: Mapping[str, Any]) -> Pretrained:
    """The two sides of one of the library's models, in evaluation mode, and what joins them."""
    draw_by_rows(model)
    name, sides = architecture["kind"], sides_of(architecture)
    kind = KINDS[name]
    image = text = None
    if kind.image is not None:
        mean, std = architecture["mean"], architecture["spread"]
        image = ImageEncoder(model.get_submodule(kind.image), name, sides["image"], mean, std).eval()
    if kind.text is not None:
        text = TextEncoder(model.get_submodule(kind.text), name, sides["text"], architecture["pad"]).eval()
    own = (*(f"{head}.weight" for head in HEADS), "logit_scale", "logit_bias")
    loose = {key: x.detach().clone() for key, x in model.named_parameters() if key in own}
    scale, bias = loose.get("logit_scale"), loose.get("logit_bias")
    two = name == "groupvit"
    return Pretrained(
        image=image,
        text=text,
        image_projection=loose.get("visual_projection.weight"),
        text_projection=loose.get("text_projection.weight"),
        scale=None if scale is None else scale.exp().reshape(1),
        bias=None if bias is None else bias.reshape(1),
        tokenizer=None,
        left_out=(),
        architecture=dict(architecture),
        heads=(_two_layers(model.visual_projection), _two_layers(model.text_projection)) if two else None,
    )


def _two_layers(head: Any) -> nn.Sequential:
    """A head of GroupViT (linear, batch norm, ReLU, linear) with its batch norm as part of the first layer.

    The statistics of the norm stay those of the checkpoint where the head learns: those of a batch would
    depend on how the batch is cut into chunks and processes.
    """
    first, norm, relu, last = head.eval()
    return nn.Sequential(fuse_linear_bn_eval(first, norm), relu, last)


def space_of(architecture: Mapping[str, Any]) -> int | None:
    """Width of the space that both sides of a checkpoint share; None for kinds that have none."""
    config = architecture["config"]
    if architecture["kind"] in ("clip", "groupvit"):
        return int(config["projection_dim"])
    if architecture["kind"] == "siglip":
        return int(config["vision_config"]["hidden_size"])
    return None


def is_vector(architecture: Mapping[str, Any]) -> bool:
    """Whether summaries are vectors of the shared space already, without a projection: SigLIP's are."""
    return bool(architecture["kind"] == "siglip")


def sides_of(architecture: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of the image model and of the text model; one of both where the model has one side."""
    config = architecture["config"]
    return {"image": config.get("vision_config", config), "text": config.get("text_config", config)}


def fresh_model(architecture: Mapping[str, Any]) -> Any:
    """A model of the transformers library with fresh weights."""
    kind = KINDS[architecture["kind"]]
    transformers = library()
    with quiet():
        config = getattr(transformers, kind.config).from_dict(architecture["config"])
        headless = {"add_pooling_layer": False} if architecture["kind"] in HEADLESS else {}
        return getattr(transformers, kind.model)(config, **headless).float()
