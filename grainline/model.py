"""A trained method with what it needs to read pictures and texts: the object that users hold.

On disk it is a folder with `model.json` (method and config), `tokenizer.json` and `model.safetensors`. A run
folder has the first two at its top and weights in `last/`, `best/` and `checkpoints/step-*/`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from grainline.config import Config, parse
from grainline.data.collate import texts_of
from grainline.data.parts import encode_parts
from grainline.data.record import Damaged
from grainline.data.tokenizer import Tokenizer
from grainline.data.transforms import EvalTransform
from grainline.errors import UserError
from grainline.files import name_of, placed, write_text
from grainline.methods import METHODS
from grainline.methods.base import Method
from grainline.types import Encoded, Images, concat, rows, to
from grainline.viz.heat import on_pixels
from grainline.weights import MODEL, load_weights

ImageLike = str | Path | bytes | Image.Image

FORMAT = 1


class Description(NamedTuple):
    """What `model.json` holds."""

    method: str
    config: Config


class Model:
    """Encode, score and show. Never in training mode; no call keeps gradients."""

    def __init__(
        self, description: Description, method: Method, tokenizer: Tokenizer, *, batch: int = 64
    ) -> None:
        """batch  images or texts encoded at a time"""
        self.description, self.method, self.tokenizer, self.batch = (
            description,
            method.eval(),
            tokenizer,
            batch,
        )
        self.transform = EvalTransform(method.size)
        self.cut = 0  # texts so far that were longer than the method reads

    @property
    def device(self) -> torch.device:
        return next(self.method.parameters()).device

    @torch.no_grad()
    def encode(
        self, *, images: Sequence[ImageLike] | None = None, texts: Sequence[str] | None = None
    ) -> Encoded:
        """Vectors [N, D] of unit length with tokens, of images (paths, bytes or PIL) or of texts.

        Give one of the two. Rows are numbered from 0. Raises UserError for a file that is no picture.
        """
        if (images is None) == (texts is None):
            raise UserError("encode takes images=[...] or texts=[...], one of them")
        given = images if images is not None else texts
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise UserError(f"encode takes a list, not one {type(given).__name__}; put a single one in [...]")
        if texts is not None and not all(isinstance(text, str) for text in texts):
            raise UserError("texts must be strings; one of them is not")
        if not given:
            raise UserError("encode got an empty list; give it one picture or text at least")
        encoded = self._images(images) if images is not None else self._texts(texts or [])
        number = torch.arange(len(encoded.vector), device=self.device)
        return encoded._replace(
            item=number, image=number if images is not None else torch.full_like(number, -1)
        )

    @torch.no_grad()
    def score(self, images: Encoded | Sequence[ImageLike], texts: Encoded | Sequence[str]) -> Tensor:
        """Every image against every text: [N, M], higher is closer."""
        a = images if isinstance(images, Encoded) else self.encode(images=images)
        b = texts if isinstance(texts, Encoded) else self.encode(texts=texts)
        return self.method.score(a, b)

    @torch.no_grad()
    def heat(self, image: ImageLike, texts: Sequence[str]) -> Tensor:
        """Where each text shows in one picture: [M, size, size] over the square that the model sees.

        Signed, unless `model.method.distribution` says that every map is >= 0 and sums to 1 over the tokens.
        """
        if self.method.grid is None:
            raise UserError(f"the image tokens of {self.description.method} lie on no grid")
        b = self.encode(texts=texts)
        a = rows(self.encode(images=[image]), torch.zeros(len(b.item), dtype=torch.int64, device=self.device))
        return on_pixels(self.method.heat(a, b), self.method.grid, (self.method.size, self.method.size))

    def seen(self, image: ImageLike) -> Image.Image:
        """The square that the model sees of a picture, for laying heat maps over it."""
        return Image.fromarray(self._square(image).permute(1, 2, 0).numpy())

    def _images(self, images: Sequence[ImageLike]) -> Encoded:
        parts = [images[i : i + self.batch] for i in range(0, len(images), self.batch)]
        return concat([self.method.encode_images(to(self._pixels(part), self.device)) for part in parts])

    def _pixels(self, images: Sequence[ImageLike]) -> Images:
        return Images(torch.stack([self._square(x) for x in images]), torch.arange(len(images)))

    def _square(self, image: ImageLike) -> Tensor:
        try:
            return self.transform(_opened(image), "picture" if isinstance(image, bytes) else str(image))
        except Damaged as error:
            raise UserError(f"{error.where} cannot be used: {error.cause}; give a picture file") from None

    def _texts(self, texts: Sequence[str]) -> Encoded:
        tokens = encode_parts(self.tokenizer, texts, self.method.context, self.method.parts)
        self.cut += sum(tokens.cut)
        padded = to(texts_of(tokens.ids), self.device)
        starts = range(0, len(texts), self.batch)
        return concat([self.method.encode_texts(rows(padded, slice(i, i + self.batch))) for i in starts])


def load(path: str | Path, *, device: str | None = None) -> Model:
    """The model in a run folder or in a folder inside one: `runs/x`, `runs/x/best`, `runs/x/checkpoints/...`

    A run folder gives its last weights: `last/` when training has ended, else its newest checkpoint.
    device  "cpu", "cuda", ...; None takes CUDA where there is one.
    """
    home, weights = located(Path(path))
    description = read_description(home)
    method = build(description)
    load_weights(weights if (weights / "state.json").is_file() else weights / MODEL, method)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Model(description, method.to(device), Tokenizer.load(home))


def build(description: Description) -> Method:
    """A method with fresh weights."""
    cls: Any = METHODS[description.method][0]
    method: Method = cls(description.config)
    return method


def write_description(folder: Path, description: Description) -> None:
    """Write `model.json`."""
    values = {
        "format": FORMAT,
        "method": description.method,
        "config": description.config.model_dump(mode="json"),
    }
    write_text(folder / "model.json", json.dumps(values, indent=1) + "\n")


def read_description(folder: Path) -> Description:
    """Read `model.json`."""
    where = folder / "model.json"
    try:
        values = json.loads(where.read_text(encoding="utf-8"))
        name, config = values["method"], values["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where} cannot be read as a model description: {error!r}") from None
    return Description(name, method_config(name, config, str(where)))


def method_config(name: str, values: dict[str, Any], where: str) -> Config:
    """The checked config of a method given by name."""
    if name not in METHODS:
        raise UserError(f"{where}: unknown method {name!r}; allowed are {', '.join(METHODS)}")
    return parse(METHODS[name][1], values, where)


def located(path: Path) -> tuple[Path, Path]:
    """The folder with model.json, and the weights that a path means."""
    path = path.resolve()  # "." has no name of its own
    there = placed(path)  # a kill in the middle of a save may have left it under another name
    if there is None and not path.exists():
        raise UserError(f"no model at {path}; give the folder that `grainline train --out` wrote")
    home = next((f for f in (path, path.parent, path.parent.parent) if (f / "model.json").is_file()), None)
    if home is None:
        raise UserError(f"{path} holds no model.json; give the folder that `grainline train --out` wrote")
    steps = {folder.with_name(name_of(folder)) for folder in home.glob("checkpoints/*step-*")}
    steps = {folder for folder in steps if folder.name.startswith("step-")}  # not what is being written
    found = [path, home / "last", *sorted(steps, reverse=True)]
    weights = [where for folder in found if (where := placed(folder)) and (where / MODEL).is_file()]
    if not weights or (path != home and weights[0] != there):
        raise UserError(f"{path} holds no weights yet; training writes its first ones to checkpoints/")
    return home, weights[0]


def _opened(image: ImageLike) -> bytes | Image.Image:
    if isinstance(image, bytes | Image.Image):
        return image
    if not isinstance(image, str | Path):
        raise UserError(f"a picture is a path, bytes or a PIL image, not a {type(image).__name__}")
    try:
        return Path(image).read_bytes()
    except OSError as error:
        raise UserError(f"picture {image} cannot be read: {error.strerror}") from None
