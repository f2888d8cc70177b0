"""Descriptions by LLaVA, through the transformers library: images to texts, drawn, but the same each time.

Liu et al., arXiv 2304.08485 and 2310.03744. Tokens are drawn with top-p 0.9 at temperature 0.2. Every image
has random numbers of its own, so neither batch nor order changes what is drawn, but for the rounding of
products of other shapes. Prompts are padded on the left; what the model was asked is no part of the answer.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from grainline.encoders.pretrained.hub import fetched, library, quiet, readable
from grainline.errors import UserError

MODEL = "llava-hf/llava-1.5-7b-hf"
PROMPT = "Provide a comprehensive description of this image"
TOP_P, TEMPERATURE = 0.9, 0.2
KIND = "llava"


class Generated(NamedTuple):
    """What was said of an image."""

    text: str
    n_tokens: int  # without the end token
    hit_limit: bool  # no end came before the most tokens


class Llava:
    """A LLaVA and its processor, for reading images one batch at a time."""

    def __init__(self, name: str, device: str | None = None) -> None:
        """
        name    of the hub, or a folder
        device  "cpu", "cuda"; None takes CUDA where there is one

        Raises UserError where there is none, where it is no LLaVA, and where it has no chat template.
        """
        found, folder = library(), Path(name) if Path(name).is_dir() else fetched(name)
        self.name, self.revision = name, _revision(folder)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = "auto" if self.device.type == "cuda" else torch.float32  # half precision is slow on a CPU
        with quiet(), readable(folder):
            config = found.AutoConfig.from_pretrained(str(folder))
            if config.model_type != KIND:
                raise UserError(f"{name} is a {config.model_type}; descriptions are made by a {KIND}")
            self.processor = found.AutoProcessor.from_pretrained(str(folder))
            model = found.LlavaForConditionalGeneration.from_pretrained(str(folder), dtype=kind)
        if not self.processor.chat_template:
            raise UserError(f"{name} has no chat template, so nothing says how it is asked; fetch it again")
        self.model = model.to(self.device).eval()
        self.ends = _numbers(model.generation_config.eos_token_id)
        tokenizer = self.processor.tokenizer
        tokenizer.padding_side = "left"
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        # Its own settings would join those of a call: penalties, other ways to draw.
        model.generation_config = found.GenerationConfig(
            eos_token_id=sorted(self.ends) or None, pad_token_id=tokenizer.pad_token_id
        )

    @torch.no_grad()
    def describe(
        self, images: Sequence[Image.Image], seeds: Sequence[int], prompt: str, tokens: int
    ) -> list[Generated]:
        """What is said of each image: at most so many tokens, drawn by its own seed."""
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        asked = self.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )
        given = self.processor(
            images=list(images), text=[asked] * len(images), padding=True, return_tensors="pt"
        ).to(self.device)
        given["pixel_values"] = given["pixel_values"].to(self.model.dtype)
        drawing = library().LogitsProcessorList([drawn(seeds)])
        with quiet():
            out = self.model.generate(
                **given, max_new_tokens=tokens, do_sample=False, logits_processor=drawing
            )
        return [self._said(ids, tokens) for ids in out[:, given["input_ids"].shape[1] :].tolist()]

    def _said(self, ids: list[int], tokens: int) -> Generated:
        end = next((i for i, one in enumerate(ids) if one in self.ends), None)
        kept = ids[:end]  # behind the end stands padding
        text = self.processor.tokenizer.decode(kept, skip_special_tokens=True)
        return Generated(" ".join(text.split()), len(kept), end is None and len(kept) >= tokens)


def drawn(seeds: Sequence[int]) -> Any:
    """A processor of logits that draws the next token of every row and leaves only that one possible.

    seeds  of the rows: what is drawn in a row depends on its own seed and logits
    """
    found = library()
    warmers = [found.TemperatureLogitsWarper(TEMPERATURE), found.TopPLogitsWarper(TOP_P)]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    class Drawn(found.LogitsProcessor):  # type: ignore[name-defined]
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            warm = scores.float()
            for one in warmers:
                warm = one(input_ids, warm)
            at = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
            chosen = draw(warm.softmax(-1), at.to(scores.device))
            return torch.full_like(scores, -torch.inf).scatter(1, chosen[:, None], 0.0)

    return Drawn()


def draw(share: Tensor, at: Tensor) -> Tensor:
    """The entry of each row into which a number falls, if entries stand in a row, as long as their shares.

    share  [N, K] >= 0, each row of sum 1
    at     [N] in [0, 1)

    >>> draw(torch.tensor([[0.5, 0.0, 0.5]] * 3), torch.tensor([0.0, 0.49, 0.5]))
    tensor([0, 0, 2])
    """
    ends = share.double().cumsum(-1)
    return torch.searchsorted(ends, at.double()[:, None] * ends[:, -1:], right=True)[:, 0]


def _numbers(ids: int | list[int] | None) -> frozenset[int]:
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)


def _revision(folder: Path) -> str:
    """The commit of a folder of the hub's cache; of another the sha256 of its settings and weights."""
    if folder.resolve().parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", folder.resolve().name):
        return folder.resolve().name
    total = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.suffix in (".json", ".jinja", ".safetensors", ".bin", ".model"):
            with path.open("rb") as file:
                total.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{total.hexdigest()[:16]}"
