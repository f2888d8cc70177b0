"""Models of the transformers library as encoders of this package."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.encoders.base import ImageTokens, Layered, PixelEncoder, TextTokens
from grainline.encoders.text import Grouping, at_end
from grainline.errors import UserError
from grainline.nn.hashing import DropPath, drop_by_rows, dropped
from grainline.nn.positions import PartlyFrozen
from grainline.nn.runtime import is_static


class LibraryEncoder(Layered):
    """Abstract: names of the parts of the library's models."""

    before: tuple[str, ...] = (
        "model.embeddings", "model.pre_layrnorm", "model.shared_position_bias", "model.embedder",
        "model.conv_stem",
    )  # fmt: skip
    behind: tuple[str, ...] = (
        "model.post_layernorm", "model.layernorm", "model.final_layer_norm", "model.norm", "model.layer_norm",
        "model.head", "model.pooler", "model.encoder.top_conv", "model.encoder.top_bn", "model.conv_1x1",
    )  # fmt: skip
    attention = r"(.*\.)?([qkvo]_proj|out_proj|query|key|value|attention\.output\.dense)"


class ImageEncoder(LibraryEncoder, PixelEncoder):
    """Abstract: an image model of the transformers library as an ImageBackbone."""

    classed: bool = False  # a class token sums up the image
    segmented: ClassVar[bool] = False  # tokens have places in the image outside training, not on a grid

    def __init__(
        self, model: nn.Module, architecture: Any, *, width: int = 0, size: int = 0, grid: Any = "patches"
    ) -> None:
        """Sizes that are left out are those of a ViT with this config. grid: rows and columns, or None"""
        super().__init__(architecture["mean"], architecture["spread"])
        self.model, self.kind, config = model, architecture["kind"], architecture["config"]
        config = config.get("vision_config", config)
        self.width, self.size = width or config["hidden_size"], size or config["image_size"]
        side = self.size // config.get("patch_size", 1)
        self.grid: tuple[int, int] | None = (side, side) if grid == "patches" else grid

    def keep_values(self) -> None:
        """Let a patch take up nothing of the others in the last layer; the class token stays as it is."""
        raise UserError(f"model.image.patches: values need the image side of a CLIP, not of {self.kind}")

    def forward(self, pixels: Tensor) -> ImageTokens:
        """pixels [N, 3, size, size] uint8 or float -> ImageTokens"""
        return self.read(self.model(pixel_values=self.normalised(pixels)).last_hidden_state)

    def read(self, hidden: Tensor) -> ImageTokens:
        """The last hidden states of the model as tokens and their summary: by default their mean."""
        return ImageTokens(hidden.mean(1), None, hidden)


class TextEncoder(LibraryEncoder, Grouping):
    """Abstract: a text model of the transformers library as a TextBackbone."""

    table: str = ""  # of positions inside the model; empty: it has none
    whole: ClassVar[bool] = False  # it reads its padding too, always up to the context
    packable: bool = False  # texts may share rows: `_packed` reads them

    def __init__(self, model: nn.Module, *, width: int, context: int, vocab: int, pad: int = 0) -> None:
        super().__init__()
        self.model, self.pad = model, pad
        self.width, self.context, self.vocab = width, context, vocab
        self.buckets = 4  # groups of similar length at most, as in TextConfig

    @abstractmethod
    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """ids, mask [M, L] -> the states of tokens [M, L, W], and their summaries [M, W]"""

    def _packed(self, ids: Tensor, position: Tensor, reads: Tensor) -> Tensor:
        """The states of texts that share rows: ids, position [R, S], reads [R, 1, S, S] -> [R, S, W]"""
        raise NotImplementedError

    def freeze_positions(self, count: int) -> None:
        """Freeze the first `count` positions, also against the rules of a run."""
        if not self.table:
            raise UserError("model.text.frozen_positions: this text encoder has no table of positions")
        table: Any = self.model.get_submodule(self.table)
        self.model.set_submodule(self.table, PartlyFrozen(table.weight, count))

    def library_state(self) -> dict[str, Tensor]:
        """The weights by the library's own names: one table of positions."""
        state = dict(self.model.state_dict())
        if self.table and isinstance(self.model.get_submodule(self.table), PartlyFrozen):
            parts = [state.pop(f"{self.table}.{part}") for part in ("frozen", "learnt")]
            state[f"{self.table}.weight"] = torch.cat(parts)
        return state

    def fill(self, state: Mapping[str, Tensor]) -> None:
        """Put in weights by the library's own names, strictly."""
        state, table = dict(state), self.model.get_submodule(self.table) if self.table else None
        if isinstance(table, PartlyFrozen):
            whole, count = state.pop(f"{self.table}.weight"), len(table.frozen)
            state |= {f"{self.table}.frozen": whole[:count], f"{self.table}.learnt": whole[count:]}
        self.model.load_state_dict(state, strict=True)

    def packs(self, ids: Tensor) -> bool:
        """Whether texts share rows; a kind that has padding or attention of its own is not packable."""
        noisy = self.training and any(map(_attention_share, self.model.modules()))
        return self.packable and not noisy and super().packs(ids)

    def forward(self, ids: Tensor, mask: Tensor) -> TextTokens:
        """ids [M, L], mask [M, L] -> TextTokens of the same L; padding may be longer than the context"""
        if self.whole:
            self.check_length(mask)
            length = ids.shape[1]
            ids = F.pad(ids.masked_fill(~mask, self.pad), (0, self.context - length), value=self.pad)
            hidden, pooled = self.read(ids, mask)
            tokens = F.pad(hidden, (0, 0, 0, length - self.context))
        elif not is_static() and self.packs(ids):
            tokens = self.read_packed(self._packed, ids, mask, causal=True)
            pooled = at_end(tokens, mask)
        else:
            tokens, pooled = self.read_in_groups(self.read, ids, mask, (-2, None))
        return TextTokens(pooled * mask.any(1, keepdim=True), tokens, mask)


class FixedNorm(nn.BatchNorm2d):
    """A batch norm with the statistics of the checkpoint, not those of a batch, which may come in chunks."""

    def train(self, mode: bool = True) -> "FixedNorm":  # noqa: ARG002
        return super().train(False)


# Noise by rows (`nn/hashing.py`) in models of the transformers library, not from torch's generator. Dropout
# layers and paths are replaced. Dropout of attention weights is no layer: the library passes its share
# to a function of attention, and lets others register one.

ATTENTION = "grainline"  # our function of attention in the library's registry


def draw_by_rows(model: Any) -> None:
    """Let a model of the library draw its noise by rows and attend by `attention`, in place; not GroupViT."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("DropPath"):
                setattr(module, name, DropPath(child.drop_prob))
            elif type(child) is nn.BatchNorm2d:
                child.__class__ = FixedNorm
    drop_by_rows(model)
    if model._can_set_attn_implementation():
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(ATTENTION, attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)


def draws_by_process(model: nn.Module) -> list[str]:
    """The attention in the library's models whose dropout is still drawn from torch's generator, by name."""
    attends = {name: module for name, module in model.named_modules() if _attention_share(module)}
    return [name for name, x in attends.items() if x.config._attn_implementation != ATTENTION]


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout: float = 0.0, **rest: Any
) -> tuple[Tensor, Tensor | None]:
    """The library's `sdpa_attention_forward` with dropout by rows: [N, h, L, D] -> [N, L, h, D]"""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not dropout:
        return sdpa_attention_forward(module, query, key, value, mask, **rest)
    scaling, is_causal = rest.get("scaling"), rest.get("is_causal")
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if rest.get("position_bias") is not None:
        logits = logits + rest["position_bias"]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if mask is None and causal:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        # Where nothing is read, as by padding far from the text, all is read alike: no NaN.
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    elif mask is not None:
        logits = logits + mask
    weight = dropped(module, logits.softmax(-1, dtype=torch.float32).to(value.dtype), dropout)
    return (weight @ value).transpose(1, 2).contiguous(), None


def _attention_share(module: nn.Module) -> float:
    """The share of its weights that a module of attention drops in training; 0 for every other module."""
    if not hasattr(module, "config") or not any(hasattr(module, name) for name in ("k_proj", "key")):
        return 0.0
    share: Any = getattr(module, "attention_dropout", getattr(module, "dropout", 0.0))
    return float(getattr(share, "p", share))
