"""The text side of the Text Group Transformer: tokens to groups, and a caption decoded from them.

K learnt group vectors stand behind the tokens of a text (word vectors with positions, or the states of a
pretrained text encoder), without positions, in layers where all attend to all. A block then gives every token
to one group, and each group takes up the mean of its tokens (`nn/grouping.py`). A few more layers read the
groups alone; the summary is their mean behind a LayerNorm.

Masks come from lengths, never from ids. A short text may use fewer groups than a long one. Positions can be
left out at random in training, so that place alone does not determine the group.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from grainline.config import Config
from grainline.encoders.pretrained import encoder_inside
from grainline.encoders.pretrained.kind import PretrainedTextConfig
from grainline.encoders.text import Grouping, ScratchTextConfig
from grainline.nn.attention import PROJECTIONS, Attention, CrossAttention, Stack
from grainline.nn.grouping import Assignment, GroupingBlock
from grainline.nn.hashing import stays
from grainline.nn.pooling import mean_pool


class GrouperConfig(ScratchTextConfig):
    """`depth` counts the layers over tokens and groups, `later` those over groups alone."""

    groups: int = Field(gt=0)
    encoder: PretrainedTextConfig | None = None  # its states are grouped, in place of word vectors
    later: int = Field(3, ge=0)
    form: Literal["full", "minimal"] = "full"  # the block of GroupViT's code, or the equations alone
    eps: float = Field(1.0, ge=1e-6)  # added to the number of tokens of a group
    position_dropout: float = Field(0.0, ge=0.0, le=1.0)  # share of tokens without position, in training
    tokens_per_group: float | None = Field(None, ge=1)  # a text of n tokens uses n / this groups; None: all


class GroupedTokens(NamedTuple):
    """A text as groups, before any projection into a shared space."""

    pooled: Tensor  # [M, W] the mean of the groups that are used
    tokens: Tensor  # [M, K, W] the groups, behind the last LayerNorm; empty ones too
    mask: Tensor  # [M, K] bool, True = used
    soft: Tensor  # [M, K, L] how much of each token every group takes, without noise; 0 at padding
    states: Tensor  # [M, L, W] the tokens as the grouping reads them, 0 at padding; L = 0 in training


class Grouper(Grouping):
    """Token ids to groups. The first blocks can begin with those of a `TextTransformer`."""

    before, behind = ("encoder", "words", "position", "groups"), ("norm",)
    attention = rf"{PROJECTIONS}|((assign|attention)\.)?to_(query|key|value|out)"

    def __init__(self, cfg: GrouperConfig) -> None:
        super().__init__()
        self.width, self.context, self.buckets = cfg.width, cfg.context, cfg.buckets
        self.count, self.position_dropout = cfg.groups, cfg.position_dropout
        self.tokens_per_group = cfg.tokens_per_group
        wanted = f"states of width {cfg.width}"
        self.encoder = encoder_inside(cfg.encoder, "text", lambda x: x.width == cfg.width, wanted)
        if self.encoder is None:
            self.words = nn.Embedding(cfg.vocab, cfg.width)
            self.position = nn.Parameter(torch.randn(cfg.context, cfg.width) * 0.01)
        # Not zeros: groups that are alike would stay alike for ever.
        self.groups = nn.Parameter(nn.init.trunc_normal_(torch.empty(cfg.groups, cfg.width), std=0.02))
        self.stack = Stack(cfg.width, cfg.depth + cfg.later, cfg.heads, drop_path=cfg.drop_path)
        full = GroupingBlock(cfg.width, cfg.groups, cfg.heads, cfg.eps) if cfg.form == "full" else None
        self.stack.blocks.insert(cfg.depth, full or Assignment(cfg.width, cfg.eps))
        self.norm = nn.LayerNorm(cfg.width)
        if self.encoder is None:
            nn.init.normal_(self.words.weight, std=0.02)

    @property
    def word_vectors(self) -> nn.Embedding:
        """The table of word vectors, that of the pretrained encoder where there is one."""
        table = self.words if self.encoder is None else self.encoder.model.get_input_embeddings()
        assert isinstance(table, nn.Embedding)
        return table

    def forward(self, ids: Tensor, mask: Tensor) -> GroupedTokens:
        """ids [M, L], mask [M, L] -> GroupedTokens of the same L; padding may be longer than the context"""
        dims = None, -1, None if self.training else -2
        words = ids if self.encoder is None else self.encoder(ids, mask).tokens
        groups, soft, states = self.read_in_groups(self._read, words, mask, dims)
        used = self.used(mask)
        return GroupedTokens(mean_pool(groups, used).vector, groups, used, soft, states)

    def used(self, mask: Tensor) -> Tensor:
        """The groups of each text: mask [M, L] -> [M, K] bool, the first of them, one at least"""
        number = mask.sum(1, keepdim=True)
        if self.tokens_per_group is not None:
            number = (number / self.tokens_per_group).round().clamp(min=1)
        else:
            number = torch.full_like(number, self.count)
        return torch.arange(self.count, device=mask.device) < number

    def _read(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Final groups, soft assignment, and the tokens before it: [M, K, W], [M, K, L], [M, L, W]

        words  [M, L] ids, or [M, L, W] states of the pretrained encoder
        """
        if self.encoder is None:
            position = self.position[: words.shape[1]]
            if self.training and self.position_dropout:
                factor = stays(self, tuple(words.shape), words.device, self.position_dropout)
                position = position * factor[..., None]
            words = self.words(words) + position
        groups = self.groups.to(words.dtype).expand(words.shape[0], -1, -1)
        x = torch.cat([words, groups], 1)
        used = self.used(mask)
        real, soft, states = torch.cat([mask, used], 1), None, words[:, :0]
        for block in self.stack.blocks:
            if isinstance(block, Assignment | GroupingBlock):
                tokens = x[:, : -self.count]
                states = tokens[:, :0] if self.training else tokens * mask[..., None]
                x, _, soft = block(x[:, -self.count :], tokens, mask, used)
                real = used  # groups alone from now on
            else:
                x = block(x, real)
        assert soft is not None
        return self.norm(x), soft, states


# A small decoder that writes a caption from a few vectors, from left to right: it shows what they hold of the
# caption. Its table of words, in and out, is that of the text encoder.


class DecoderConfig(Config):
    """Size of the one layer; its width is that of the text encoder."""

    heads: int = Field(1, gt=0)  # of self-attention and of attention to the vectors
    hidden: int = Field(512, gt=0)  # of its MLP


class Decoder(nn.Module):
    """One pre-norm layer: x + Attention, causal; x + attention to the vectors; x + MLP; then LayerNorm."""

    def __init__(self, cfg: DecoderConfig, width: int, context: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(context, width) * 0.01)
        self.norm_self, self.attention = nn.LayerNorm(width), Attention(width, cfg.heads)
        self.norm_cross, self.cross = nn.LayerNorm(width), CrossAttention(width, cfg.heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor, vectors: Tensor, mask: Tensor | None = None) -> Tensor:
        """The state from which the next token at each place is predicted: [M, L, W]

        words    [M, L, W] word vectors of the tokens so far, padding on the right
        vectors  [M, K, W] to write the caption from
        mask     [M, K] bool, True = real; None: all are
        """
        x = words + self.position[: words.shape[1]]
        x = x + self.attention(self.norm_self(x), None, True)
        x = x + self.cross(self.norm_cross(x), vectors, mask)
        return self.norm(x + self.mlp(self.norm_mlp(x)))
