"""Models of the transformers library as encoders of this package."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.encoders.base import Colour, ImageTokens, Layered, PixelEncoder, TextTokens
from grainline.encoders.text import Grouping, at_end
from grainline.errors import UserError
from grainline.nn.attention import first_attends
from grainline.nn.hashing import DropPath, drop_by_rows, dropped
from grainline.nn.positions import PartlyFrozen
from grainline.nn.runtime import is_static


class LibraryEncoder(Layered):
    """Abstract: names of the parts of the library's models."""

    before = ("model.embeddings", "model.pre_layrnorm")
    behind = ("model.post_layernorm", "model.layernorm", "model.final_layer_norm", "model.head")
    attention = r"(.*\.)?([qkvo]_proj|out_proj|query|key|value|attention\.output\.dense)"


class ImageEncoder(LibraryEncoder, PixelEncoder):
    """An image model of the transformers library as an ImageBackbone."""

    def __init__(
        self, model: nn.Module, kind: str, config: Mapping[str, Any], mean: Colour, std: Colour
    ) -> None:
        super().__init__(mean, std)
        self.model, self.kind, self.read = model, kind, IMAGE_READERS[kind]
        self.size, self.grid = config["image_size"], _grid(kind, config)
        self.segmented = kind == "groupvit"  # outside training its groups have places in the image
        stages = len(config["depths"]) if kind == "swin" else 1  # each stage of Swin doubles the width
        self.width = config["embed_dim"] << (stages - 1) if kind == "swin" else config["hidden_size"]

    def train(self, mode: bool = True) -> "ImageEncoder":
        """GroupViT has no noise even where it learns: the assignment of its groups stays as in evaluation."""
        super().train(mode)
        if self.segmented:
            self.model.eval()
        return self

    def keep_values(self) -> None:
        """Let a patch take up nothing of the others in the last layer; the class token stays as it is.

        UserError for what is not CLIP: its summary may read the patches.
        """
        if self.kind != "clip":
            raise UserError(
                f"model.image.patches: values need the image side of a CLIP, not of a {self.kind}"
            )
        last: Any = self.model.get_submodule("encoder.layers")[-1]  # type: ignore[index]
        last.self_attn = ValueOnly(last.self_attn)

    def forward(self, pixels: Tensor) -> ImageTokens:
        """pixels [N, 3, size, size] uint8 or float -> ImageTokens; GroupViT's groups are its patches"""
        placed = self.segmented and not self.training and not is_static()
        options = {"output_attentions": True} if placed else {}
        out = self.model(pixel_values=self.normalised(pixels), **options)
        tokens = self.read(self.model, out.last_hidden_state)
        return tokens._replace(places=group_places(out.attentions, self.size)) if placed else tokens


@torch.no_grad()
def group_places(maps: Sequence[Tensor], size: int) -> Tensor:
    """The group of each pixel, [N, size, size]: GroupViT's way to segment, without its threshold.

    maps  of each stage [N, K, L], how much of every token each of K groups takes; the tokens of the first
          stage are patches in a square, those of the others the groups before them

    The product of all maps is the share of a patch that each last group takes. It is interpolated between the
    centres of patches, and a pixel belongs to the group with the largest share.
    """
    share = maps[0].float()
    for later in maps[1:]:
        share = later.float() @ share
    side = math.isqrt(share.shape[2])
    small = torch.uint8 if share.shape[1] <= 256 else torch.int64
    places = []
    for images in share.unflatten(2, (side, side)).split(16):  # 26 MB of maps, for 8 groups at 224 pixels
        places.append(F.interpolate(images, (size, size), mode="bilinear").argmax(1).to(small))
    return torch.cat(places)


class ValueOnly(nn.Module):
    """CLIP's attention as `nn.attention.ValueAttention` computes it, with the library's names of weights."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.heads = attention.num_heads
        self.k_proj, self.v_proj = attention.k_proj, attention.v_proj
        self.q_proj, self.out_proj = attention.q_proj, attention.out_proj

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """hidden_states [N, L, W] -> [N, L, W], and no weights"""
        assert attention_mask is None
        projected = self.q_proj(hidden_states[:, :1]), self.k_proj(hidden_states), self.v_proj(hidden_states)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in projected)
        return self.out_proj(first_attends(q, k, v)), None


class TextEncoder(LibraryEncoder, Grouping):
    """A text model of the transformers library as a TextBackbone."""

    def __init__(self, model: nn.Module, kind: str, config: Mapping[str, Any], pad: int) -> None:
        super().__init__()
        self.model, self.read, self.pad = model, TEXT_READERS[kind], pad
        self.width = config.get("projection_size") or config["hidden_size"]
        self.context, self.vocab = config["max_position_embeddings"], config["vocab_size"]
        self.whole = kind == "siglip"  # reads its padding too, always up to the context
        self.packable = kind == "clip"
        self.buckets = 4  # groups of similar length at most, as in TextConfig
        self.table = "embeddings.position_embeddings" if kind == "bert" else "embeddings.position_embedding"

    def freeze_positions(self, count: int) -> None:
        """Freeze the first `count` positions, also against the rules of a run."""
        table: Any = self.model.get_submodule(self.table)
        self.model.set_submodule(self.table, PartlyFrozen(table.weight, count))

    def library_state(self) -> dict[str, Tensor]:
        """The weights by the library's own names: one table of positions."""
        state = dict(self.model.state_dict())
        if isinstance(self.model.get_submodule(self.table), PartlyFrozen):
            parts = [state.pop(f"{self.table}.{part}") for part in ("frozen", "learnt")]
            state[f"{self.table}.weight"] = torch.cat(parts)
        return state

    def fill(self, state: Mapping[str, Tensor]) -> None:
        """Put in weights by the library's own names, strictly."""
        state, table = dict(state), self.model.get_submodule(self.table)
        if isinstance(table, PartlyFrozen):
            whole, count = state.pop(f"{self.table}.weight"), len(table.frozen)
            state |= {f"{self.table}.frozen": whole[:count], f"{self.table}.learnt": whole[count:]}
        self.model.load_state_dict(state, strict=True)

    def packs(self, ids: Tensor) -> bool:
        """As of every `Grouping`, for CLIP: the others have dropout, padding or attention of their own."""
        noisy = self.training and any(map(_attention_share, self.model.modules()))
        return self.packable and not noisy and super().packs(ids)

    def forward(self, ids: Tensor, mask: Tensor) -> TextTokens:
        """ids [M, L], mask [M, L] -> TextTokens of the same L; padding may be longer than the context"""
        if self.whole:
            self.check_length(mask)
            length = ids.shape[1]
            ids = F.pad(ids.masked_fill(~mask, self.pad), (0, self.context - length), value=self.pad)
            hidden, pooled = self.read(self.model, ids, mask)
            tokens = F.pad(hidden, (0, 0, 0, length - self.context))
        elif not is_static() and self.packs(ids):
            tokens = self.read_packed(partial(_read_packed, self.model), ids, mask, causal=True)
            pooled = at_end(tokens, mask)
        else:
            tokens, pooled = self.read_in_groups(partial(self.read, self.model), ids, mask, (-2, None))
        return TextTokens(pooled * mask.any(1, keepdim=True), tokens, mask)


def _read_clip_image(model: Any, hidden: Tensor) -> ImageTokens:
    x = model.post_layernorm(hidden)  # the library does this to the class token only
    return ImageTokens(x[:, 0], x[:, 0], x[:, 1:])


def _read_siglip_image(model: Any, hidden: Tensor) -> ImageTokens:
    """Each patch as the attention pool would summarise an image of this patch alone."""
    head, width = model.head, hidden.shape[-1]
    attention = head.attention
    value = F.linear(hidden, attention.in_proj_weight[2 * width :], attention.in_proj_bias[2 * width :])
    each = attention.out_proj(value)
    return ImageTokens(head(hidden), None, each + head.mlp(head.layernorm(each)))


def _read_vit(model: Any, hidden: Tensor) -> ImageTokens:  # noqa: ARG001
    return ImageTokens(hidden[:, 0], hidden[:, 0], hidden[:, 1:])


def _read_patches(model: Any, hidden: Tensor) -> ImageTokens:  # noqa: ARG001
    return ImageTokens(hidden.mean(1), None, hidden)


def _read_causal(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """No mask is needed: padding stands on the right, which causal attention does not read.

    The summary is the state of the last real token. In a text with one end token OpenAI (the highest id),
    open_clip and transformers (the first end token, or the highest id where its number is given as 2) take
    the same state. Of several parts in a row it is the end of the last, the only one that attends to all.
    """
    hidden = model(input_ids=ids).last_hidden_state
    return hidden, at_end(hidden, mask)


def _read_packed(model: Any, ids: Tensor, position: Tensor, reads: Tensor) -> Tensor:
    """As `_read_causal`, of texts that share rows: ids, position [R, S], reads [R, 1, S, S] -> [R, S, W]

    Part by part, because the library's model takes no more tokens than it has positions.
    """
    table = model.embeddings
    x = table.token_embedding(ids) + table.position_embedding(position)
    out = model.encoder(inputs_embeds=x, attention_mask=reads, is_causal=False)
    hidden: Tensor = model.final_layer_norm(out.last_hidden_state)
    return hidden


def _read_siglip_text(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """SigLIP was trained on padding, without a mask, and sums up at the last position, padding or not."""
    hidden = model.head(model(input_ids=ids).last_hidden_state)
    return hidden, hidden[:, -1]


def _read_bert(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    attended = mask | ~mask.any(1, keepdim=True)  # a row of padding attends to itself: no NaN
    hidden = model(input_ids=ids, attention_mask=attended.long()).last_hidden_state
    return hidden, hidden[:, 0]


IMAGE_READERS: dict[str, Callable[[Any, Tensor], ImageTokens]] = {
    "clip": _read_clip_image,
    "siglip": _read_siglip_image,
    "vit": _read_vit,
    "swin": _read_patches,
    "groupvit": _read_patches,
}
AVERAGED = tuple(kind for kind, read in IMAGE_READERS.items() if read is _read_patches)
"""Kinds whose summary of an image is the mean of its tokens."""
CLASSED = tuple(kind for kind, read in IMAGE_READERS.items() if read in (_read_clip_image, _read_vit))
"""Kinds whose summary of an image is its class token."""
TEXT_READERS: dict[str, Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "clip": _read_causal,
    "siglip": _read_siglip_text,
    "groupvit": _read_causal,
    "bert": _read_bert,
}


def _grid(kind: str, config: Mapping[str, Any]) -> tuple[int, int] | None:
    """GroupViT's groups lie on no grid; every stage of Swin but the last halves its sides, rounded up."""
    if kind == "groupvit":
        return None
    side = config["image_size"] // config["patch_size"]
    for _ in config["depths"][1:] if kind == "swin" else ():
        side = -(-side // 2)
    return side, side


# Noise by rows (`nn/hashing.py`) in models of the transformers library, not from torch's generator. Dropout
# layers and SwinDropPath are replaced. Dropout of attention weights is no layer: the library passes its share
# to a function of attention, and lets others register one.


ATTENTION = "grainline"
"""The name of our function of attention in the library's registry."""


def draw_by_rows(model: Any) -> None:
    """Let a model of the library draw its noise by rows and attend by `attention`, in place.

    Its weights keep their names. GroupViT has attention of its own, which is left alone.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "SwinDropPath":
                setattr(module, name, DropPath(child.drop_prob))
    drop_by_rows(model)
    if model._can_set_attn_implementation():
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(ATTENTION, attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)


def draws_by_process(model: nn.Module) -> list[str]:
    """The attention in the library's models whose dropout is still drawn from torch's generator, by name."""
    return [
        name
        for name, module in model.named_modules()
        if _attention_share(module) and module.config._attn_implementation != ATTENTION
    ]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """The library's `sdpa_attention_forward`, but dropout by rows: [N, h, L, D] -> [N, L, h, D], no weights.

    With dropout all weights [N, h, L, L] are in memory at once.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not dropout:
        options = 0.0, scaling, is_causal
        return sdpa_attention_forward(module, query, key, value, attention_mask, *options, **rest)
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if rest.get("position_bias") is not None:
        logits = logits + rest["position_bias"]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and causal:
        attention_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attention_mask, -torch.inf)
    elif attention_mask is not None:
        logits = logits + attention_mask
    weight = dropped(module, logits.softmax(-1, dtype=torch.float32).to(value.dtype), dropout)
    return (weight @ value).transpose(1, 2).contiguous(), None


def _attention_share(module: nn.Module) -> float:
    """The share of its weights that a module of attention drops in training; 0 for every other module."""
    if not hasattr(module, "config") or not any(hasattr(module, name) for name in ("k_proj", "key")):
        return 0.0
    share: Any = getattr(module, "attention_dropout", getattr(module, "dropout", 0.0))
    return float(getattr(share, "p", share))
