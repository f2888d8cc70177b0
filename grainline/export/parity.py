"""The difference of vectors between a checkpoint and what was written of it."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from grainline.data.tokenizers.bpe import BEGIN, END
from grainline.data.tokenizers.library_tokenizer import added_tokens
from grainline.data.tokenizers.tokenizer import TextTokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer
from grainline.data.transforms import EvalTransform
from grainline.encoders.pretrained import Pretrained, load_pretrained
from grainline.encoders.pretrained.build import KINDS
from grainline.encoders.pretrained.hf import tokenizer_of
from grainline.encoders.pretrained.hub import library, quiet, readable
from grainline.errors import UserError

TEXTS = (
    "a dog runs over wet sand",
    "two men wait by the red door of a house and one of them is old",
    " ".join(["a long text of many words"] * 60),
)


class Parity(NamedTuple):
    """Largest absolute difference of unit vectors, before writing and after reading again."""

    image: float
    text: float


def parity(
    towers: Pretrained, place: str | Path, tokenizer: TextTokenizer | None = None, source: Path | None = None
) -> Parity:
    """Towers against the written files, on two images and a few texts with all added tokens of a CLIP.

    The transformers library reads a written folder, with tokenizer and processor of the folder, and a CLIP in
    the folder `source`; of some SigLIP tokenizers it makes something else than the training did. Everything
    else is read here. Without a tokenizer ids are random.
    """
    place, texts, before = Path(place), [*TEXTS], None
    theirs = source if towers.architecture["kind"] == "clip" else None
    if theirs is not None and (theirs / "config.json").is_file():
        names = added_tokens(theirs / "tokenizer.json") - {BEGIN, END}
        texts += [f"a {name} by a{name}b" for name in sorted(names)]
        with suppress(UserError):
            before = _by_library(theirs, towers, tokenizer, texts)
    if place.is_dir():
        after = _by_library(place, towers, tokenizer, texts)
    else:  # it does not hold the activation
        config = towers.architecture["config"]["text_config"]
        again = load_pretrained(place, quick_gelu=config["hidden_act"] == "quick_gelu")
        after = _here(again, None if tokenizer is None else load_tokenizer(again.tokenizer), texts)
    before = before or _here(towers, tokenizer, texts)
    return Parity(*(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)))


def _images() -> list[Image.Image]:
    """Two images, three times as wide as high and the other way round: what is cut off is even."""
    ramp, rings = Image.linear_gradient("L"), Image.radial_gradient("L")
    image = Image.merge("RGB", (ramp, rings, ramp.rotate(90)))
    return [image.resize((672, 224)), image.rotate(40).resize((224, 672))]


def _inputs(
    towers: Pretrained, tokenizer: TextTokenizer | None, texts: Sequence[str]
) -> tuple[Tensor, list[list[int]]]:
    """Squares of images [2, 3, size, size] uint8, and ids of texts."""
    assert towers.image is not None
    assert towers.text is not None
    how = (towers.architecture[name] for name in ("resize", "filter", "margin"))
    transform = EvalTransform(towers.image.size, *how)
    pixels = torch.stack([transform(image) for image in _images()])
    if tokenizer is not None:
        return pixels, tokenizer.encode(texts, towers.text.context).ids
    vocab, end = towers.text.vocab, towers.architecture["config"]["text_config"].get("eos_token_id") or 2
    end = vocab - 1 if end == 2 or end >= vocab else end  # 2: the highest id, in old settings of CLIPs
    lengths = torch.linspace(1, towers.text.context - 1, 4).int().tolist()
    ids = torch.randint(3, vocab - 2, (4, towers.text.context), generator=torch.Generator().manual_seed(0))
    return pixels, [[*row[:length], end] for row, length in zip(ids.tolist(), lengths, strict=True)]


def _padded(rows: Sequence[Sequence[int]], length: int, pad: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
    return torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows]), mask


@torch.no_grad()
def _here(towers: Pretrained, tokenizer: TextTokenizer | None, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Unit vectors of images and texts as this package computes them."""
    pixels, rows = _inputs(towers, tokenizer, texts)
    image, text = towers.image, towers.text
    assert image is not None
    assert text is not None
    pooled = image(pixels).pooled, text(*_padded(rows, text.context, 0)).pooled
    heads = towers.image_projection, towers.text_projection
    seen, read = (x if head is None else x @ head.T for x, head in zip(pooled, heads, strict=True))
    return F.normalize(seen, dim=-1), F.normalize(read, dim=-1)


@torch.no_grad()
def _by_library(
    folder: Path, towers: Pretrained, tokenizer: TextTokenizer | None, texts: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Unit vectors as the transformers library computes them, from images and texts on where it can."""
    pixels, rows = _inputs(towers, tokenizer, texts)
    assert towers.image is not None
    assert towers.text is not None
    values, length = towers.image.normalised(pixels), towers.text.context
    kind, transformers, place = towers.architecture["kind"], library(), str(folder)
    with quiet(), readable(folder):
        model = getattr(transformers, KINDS[kind].model).from_pretrained(
            place, dtype=torch.float32, trust_remote_code=False
        )
        if any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
            prepare = transformers.AutoImageProcessor.from_pretrained(place, trust_remote_code=False)
            values = prepare(_images(), return_tensors="pt")["pixel_values"]
        if tokenizer_of(folder) is not None:
            read = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            rows = read(list(texts), truncation=True, max_length=length)["input_ids"]
        ids, mask = _padded(rows, length, model.config.text_config.pad_token_id or 0)
        masked = {"attention_mask": mask} if kind == "clip" else {}  # SigLIP reads its padding
        out = model.eval()(pixel_values=values, input_ids=ids, **masked)
    return F.normalize(out.image_embeds, dim=-1), F.normalize(out.text_embeds, dim=-1)
