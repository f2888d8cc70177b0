"""Small checkpoints with random weights, in their libraries' forms, and OpenAI's CLIP written plainly."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SIDE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
IMAGE = SIDE | {"image_size": 16, "patch_size": 4}
TEXT = SIDE | {"vocab_size": 300, "max_position_embeddings": 30}
ENDS = {"bos_token_id": 298, "eos_token_id": 299, "pad_token_id": 0}
END, CONTEXT, VOCAB = 299, 30, 300


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def shaken(model: Any) -> Any:
    """No parameter at a value that hides it: biases are not 0, gains not 1, tables not small."""
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
        for name, b in model.named_buffers():
            if "running_mean" in name:
                b += 0.3
            elif "running_var" in name:
                b *= torch.empty_like(b).uniform_(0.5, 2.0)
    return model.eval()


def clip(**changes: Any) -> Any:
    from transformers import CLIPConfig, CLIPModel

    text = TEXT | ENDS | {"intermediate_size": 128, "num_hidden_layers": 3} | changes
    return shaken(CLIPModel(CLIPConfig(vision_config=IMAGE, text_config=text, projection_dim=24)))


def siglip(**changes: Any) -> Any:
    from transformers import SiglipConfig, SiglipModel

    text = TEXT | {"max_position_embeddings": 12, "projection_size": 64, "pad_token_id": 1} | changes
    return shaken(SiglipModel(SiglipConfig(vision_config=IMAGE, text_config=text)))


STAGES = {"hidden_sizes": [16, 24], "depths": [1, 2], "num_stages": 2, "image_size": 64}
WINDOWS = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4]}
WINDOWS["window_size"] = 4
RESIDUAL = {"embedding_size": 8, "hidden_sizes": [16, 24], "depths": [1, 2]}
NARROW = {"width_coefficient": 0.25, "depth_coefficient": 0.3, "image_size": 72, "hidden_dim": 320}
CLASSED = {"use_absolute_position_embeddings": True, "use_mean_pooling": False}
CLASSED["use_shared_relative_position_bias"] = True
VISION: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", IMAGE),
    "deit": ("DeiT", IMAGE),
    "vit_msn": ("ViTMSN", IMAGE),
    "ijepa": ("IJepa", IMAGE),
    "beit": ("Beit", IMAGE | {"use_relative_position_bias": True, "use_mask_token": True}),
    "beit-class": ("Beit", IMAGE | CLASSED),
    "dinov2": ("Dinov2", IMAGE),
    "dinov2_with_registers": ("Dinov2WithRegisters", IMAGE),
    "dinov3_vit": ("DINOv3ViT", IMAGE | {"num_register_tokens": 4}),
    "dinov3_convnext": ("DINOv3ConvNext", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 2, 1, 1]}),
    "swin": ("Swin", WINDOWS),
    "swinv2": ("Swinv2", WINDOWS),
    "convnext": ("ConvNext", STAGES),
    "convnextv2": ("ConvNextV2", STAGES),
    "resnet": ("ResNet", RESIDUAL),
    "regnet": ("RegNet", RESIDUAL | {"groups_width": 8}),
    "efficientnet": ("EfficientNet", NARROW),
    "mobilenet_v1": ("MobileNetV1", {"depth_multiplier": 0.25, "image_size": 64}),
    "mobilenet_v2": ("MobileNetV2", {"depth_multiplier": 0.25, "image_size": 64}),
}
"""The beginning of the names of the library's classes, and the settings of a small model."""


def vision(name: str) -> Any:
    import transformers

    library, settings = VISION[name]
    config = getattr(transformers, f"{library}Config")(**settings)
    return shaken(getattr(transformers, f"{library}Model")(config))


def bert(**changes: Any) -> Any:
    from transformers import BertConfig, BertModel

    return shaken(BertModel(BertConfig(**TEXT | changes)))


def groupvit(**changes: Any) -> Any:
    from transformers import GroupViTConfig, GroupViTModel

    stages = {"depths": [1, 1, 1], "num_group_tokens": [6, 3, 0], "num_output_groups": [6, 3, 0]}
    text = TEXT | ENDS | changes
    sizes = {"projection_dim": 24, "projection_intermediate_dim": 40}
    config = GroupViTConfig(vision_config=IMAGE | stages, text_config=text, **sizes)
    return shaken(GroupViTModel(config))


FAMILIES: dict[str, Callable[..., Any]] = {
    "clip": clip, "siglip": siglip, "vit": partial(vision, "vit"), "swin": partial(vision, "swin"),
    "bert": bert, "groupvit": groupvit,
}  # fmt: skip

READING = ("clip", "siglip", "bert", "groupvit")  # families with a text side


SENTENCE = "a red dog runs by the old green tree and then sleeps in wet sand near some blue house"


def tokenizer() -> Any:
    """A CLIP-shaped one of 556 tokens."""
    from grainline.data.tokenizers.tokenizer import Tokenizer

    return Tokenizer.train([SENTENCE] * 2, vocab=556)


def whole(family: str, folder: Path, **changes: Any) -> Any:
    """Write a folder with weights and tokenizer, as the hub has them; the model that it was made of."""
    read = tokenizer()
    own = {"vocab_size": read.vocab, "bos_token_id": read.begin, "eos_token_id": read.end}
    torch.manual_seed(0)
    model = FAMILIES[family](**own, **changes) if family in READING else FAMILIES[family]()
    model.save_pretrained(folder)
    if family in READING:
        read.save(folder)
    return model


def texts(context: int = CONTEXT, rows: int = 4, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Ids [rows, context] that end in END, with padding behind it, and their mask; padding is a real id."""
    ids = torch.randint(3, END, (rows, context))
    lengths = torch.linspace(3, context, rows).long().roll(1)  # not in order of length
    mask = torch.arange(context) < lengths[:, None]
    ids[torch.arange(rows), lengths - 1] = END
    return ids.masked_fill(~mask, pad), mask


def images(size: int, rows: int = 3) -> Tensor:
    return torch.randint(0, 256, (rows, 3, size, size), dtype=torch.uint8)


# OpenAI's CLIP by its own names of parameters; attention is written out, so that no library is trusted twice.


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.randn(3 * width, width) * width**-0.5)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """One head of 64 after the other: x [N, L, W] -> [N, L, W]"""
        q, k, v = (x @ self.in_proj_weight.T + self.in_proj_bias).chunk(3, dim=-1)
        ahead = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        heads = []
        for start in range(0, x.shape[-1], 64):
            part = slice(start, start + 64)
            fit = q[..., part] @ k[..., part].transpose(1, 2) / 8
            if causal:
                fit = fit.masked_fill(ahead, -torch.inf)
            heads.append(fit.softmax(-1) @ v[..., part])
        return self.out_proj(torch.cat(heads, dim=-1))


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int, quick: bool) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.quick = quick

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)
        return self.c_proj(x * (1.702 * x).sigmoid() if self.quick else x * 0.5 * (1 + (x / 2**0.5).erf()))


class ResidualBlock(nn.Module):
    def __init__(self, width: int, hidden: int, quick: bool) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(width), MLP(width, hidden, quick)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        x = x + self.attn(self.ln_1(x), causal)
        return x + self.mlp(self.ln_2(x))


class Blocks(nn.Module):
    def __init__(self, width: int, depth: int, quick: bool) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(ResidualBlock(width, 4 * width, quick) for _ in range(depth))

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        for block in self.resblocks:
            x = block(x, causal)
        return x


class Visual(nn.Module):
    def __init__(self, quick: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 128, 4, 4, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(128))
        self.positional_embedding = nn.Parameter(torch.randn(17, 128))
        self.ln_pre, self.ln_post = nn.LayerNorm(128), nn.LayerNorm(128)
        self.transformer = Blocks(128, 2, quick)
        self.proj = nn.Parameter(torch.randn(128, 24) * 0.1)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.conv1(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, 128), x], dim=1) + self.positional_embedding
        return self.ln_post(self.transformer(self.ln_pre(x), False)[:, 0]) @ self.proj


class OpenAI(nn.Module):
    """Width 128 and two heads for images of 16 x 16, width 64 and one head for texts of up to 30 tokens."""

    def __init__(self, quick: bool = True, context: int = CONTEXT, vocab: int = VOCAB) -> None:
        super().__init__()
        self.visual = Visual(quick)
        self.transformer = Blocks(64, 3, quick)
        self.token_embedding = nn.Embedding(vocab, 64)
        self.positional_embedding = nn.Parameter(torch.randn(context, 64))
        self.ln_final = nn.LayerNorm(64)
        self.text_projection = nn.Parameter(torch.randn(64, 24) * 0.1)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def positions(self) -> Tensor:
        return self.positional_embedding

    def encode_image(self, pixels: Tensor) -> Tensor:
        """pixels normalised by the caller"""
        return self.visual(pixels)

    def encode_text(self, ids: Tensor) -> Tensor:
        """The summary stands where the id is highest, for the first time."""
        x = self.token_embedding(ids) + self.positions()[: ids.shape[1]]
        x = self.ln_final(self.transformer(x, True))
        return x[torch.arange(len(ids)), ids.argmax(1)] @ self.text_projection

    def forward(self, pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.encode_image(pixels), self.encode_text(ids)


class LongCLIP(OpenAI):
    """Two tables of positions: one for the first 20, one for the rest."""

    def __init__(self, vocab: int = VOCAB) -> None:
        super().__init__(vocab=vocab)
        self.positional_embedding_res = nn.Parameter(torch.randn(CONTEXT, 64))

    def positions(self) -> Tensor:
        first = (torch.arange(CONTEXT) < 20)[:, None].float()
        return self.positional_embedding * first + self.positional_embedding_res * (1 - first)


def save_state(model: nn.Module, file: Path) -> None:
    from safetensors.torch import save_file

    save_file(model.state_dict(), file)


def read_damaged(file: Path, read: Callable[[], Any], flips: int, forms: Iterable[bytes] = ()) -> list[str]:
    """The outcome of seeded flips of a file, of its first half and of other contents: read, or the error."""
    from grainline.errors import UserError

    rng, data, ends = random.Random(0), file.read_bytes(), []
    contents = [b"", data[: len(data) // 2], *forms]
    for i in range(flips):  # near the start, near the end, anywhere
        flipped = bytearray(data)
        for _ in range(i % 3 + 1):
            place = rng.randrange(len(data) if i % 2 else min(len(data), 3000))
            flipped[-place if i % 4 == 2 else place] ^= rng.randrange(1, 256)
        contents.append(bytes(flipped))
    for content in contents:
        file.write_bytes(content)
        try:
            read()
            ends.append("read")
        except UserError as error:
            ends.append(str(error))
    file.write_bytes(data)
    return ends


JSON_FORMS = b"[]", b"3", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b"{}"
