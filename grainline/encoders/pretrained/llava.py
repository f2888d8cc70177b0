"""Descriptions by LLaVA, through the transformers library: images to sampled texts, the same each time.

Liu et al., arXiv 2304.08485 and 2310.03744. Every image has its own random numbers, so neither batch nor
order changes the sample, except by rounding.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from grainline.encoders.pretrained.hub import download, library, quiet, readable
from grainline.errors import UserError

MODEL = "llava-hf/llava-1.5-7b-hf"
PROMPT = "Provide a comprehensive description of this image"
TOP_P, TEMPERATURE = 0.9, 0.2


class Generated(NamedTuple):
    """The description of an image."""

    text: str
    n_tokens: int  # without the end token
    hit_limit: bool  # the text stopped at the maximum number of tokens, without an end token


class Llava:
    """A LLaVA and its processor, for reading images one batch at a time."""

    def __init__(self, name: str, device: str | None = None) -> None:
        """Read a hub name or folder, onto CUDA if there is one. UserError: no LLaVA, or no chat template."""
        transformers, folder = library(), Path(name) if Path(name).is_dir() else download(name)
        self.name, self.revision = name, _revision(folder)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = "auto" if self.device.type == "cuda" else torch.float32  # half precision is slow on a CPU
        with quiet(), readable(folder):
            config = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
            if config.model_type != "llava":
                raise UserError(f"{name} has model_type {config.model_type}; descriptions are made by llava")
            if '"auto_map"' in config.to_json_string(use_diff=False):  # also of a part
                raise UserError(f"{name} names code of its own (auto_map), and code of a model is never run")
            self.processor = transformers.AutoProcessor.from_pretrained(str(folder), trust_remote_code=False)
            reader = transformers.LlavaForConditionalGeneration
            model = reader.from_pretrained(str(folder), dtype=kind, trust_remote_code=False)
        if not self.processor.chat_template:
            raise UserError(f"{name} has no chat template, so its form of prompts is unknown; fetch it again")
        self.model = model.to(self.device).eval()
        ends = model.generation_config.eos_token_id
        self.ends = frozenset(() if ends is None else [ends] if isinstance(ends, int) else ends)
        tokenizer = self.processor.tokenizer
        tokenizer.padding_side = "left"
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        # Its own settings would join those of a call: penalties, other ways to sample.
        model.generation_config = transformers.GenerationConfig(
            eos_token_id=sorted(self.ends) or None, pad_token_id=tokenizer.pad_token_id
        )

    @torch.no_grad()
    def describe(
        self, images: Sequence[Image.Image], seeds: Sequence[int], prompt: str, tokens: int
    ) -> list[Generated]:
        """A description of each image: at most `tokens` tokens, sampled by the image's own seed."""
        chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]}]
        texts = [self.processor.apply_chat_template(chat, add_generation_prompt=True)] * len(images)
        inputs = self.processor(images=list(images), text=texts, padding=True, return_tensors="pt")
        inputs = inputs.to(self.device)
        inputs["pixel_values"] = inputs["pixel_values"].to(self.model.dtype)
        sampling = library().LogitsProcessorList([_sampler(seeds)])
        options = {"max_new_tokens": tokens, "do_sample": False, "logits_processor": sampling}
        with quiet():
            out = self.model.generate(**inputs, **options)
        results = []
        for ids in out[:, inputs["input_ids"].shape[1] :].tolist():
            end = next((i for i, token in enumerate(ids) if token in self.ends), None)
            text = self.processor.tokenizer.decode(ids[:end], skip_special_tokens=True)  # padding follows
            number = len(ids[:end])
            results.append(Generated(" ".join(text.split()), number, end is None and number >= tokens))
        return results


def _sampler(seeds: Sequence[int]) -> Any:
    """A processor of logits that samples the next token of a row by its own seed and leaves only that one."""
    transformers = library()
    warpers = transformers.TemperatureLogitsWarper(TEMPERATURE), transformers.TopPLogitsWarper(TOP_P)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def sample(input_ids: Tensor, scores: Tensor) -> Tensor:
        warped = scores.float()
        for warper in warpers:
            warped = warper(input_ids, warped)
        number = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
        token = draw(warped.softmax(-1), number.to(scores.device))
        return torch.full_like(scores, -torch.inf).scatter(1, token[:, None], 0.0)

    return sample


def draw(share: Tensor, number: Tensor) -> Tensor:
    """The entry of each row into which a number falls: share [N, K] >= 0 of sum 1, number [N] in [0, 1).

    >>> draw(torch.tensor([[0.5, 0.0, 0.5]] * 3), torch.tensor([0.0, 0.49, 0.5]))
    tensor([0, 0, 2])
    """
    ends = share.double().cumsum(-1)
    return torch.searchsorted(ends, number.double()[:, None] * ends[:, -1:], right=True)[:, 0]


def _revision(folder: Path) -> str:
    """The commit of a folder of the hub's cache; of another folder the sha256 of its settings and weights."""
    if folder.resolve().parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", folder.resolve().name):
        return folder.resolve().name
    total = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.suffix in (".json", ".jinja", ".safetensors", ".bin", ".model"):
            with path.open("rb") as file:
                total.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{total.hexdigest()[:16]}"
