"""A trained method with tokenizer and transform: the model of the public interface.

On disk it is a folder with `model.json` (method and config), `tokenizer.json` and `model.safetensors`. A run
folder has the first two at its top and weights in `last/`, `best/` and `checkpoints/step-*/`. A CLIP or
SigLIP of others is loaded without conversion.
"""

import copy
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from grainline.build import (
    Description,
    build,
    image_settings,
    method_config,
    read_description,
    scored,
    start,
    with_patches,
)
from grainline.data.descriptions import Described
from grainline.data.formats.plain import read_plain
from grainline.data.record import CorruptSample
from grainline.data.texts import TokenizedParts, encode_parts, windows
from grainline.data.tokenizers.tokenized import TextTokenizer
from grainline.data.tokenizers.tokenizer import read_tokenizer
from grainline.data.transforms import EvalTransform
from grainline.encoders.pretrained import NAME, load_pretrained, space_of
from grainline.errors import UserError
from grainline.files import existing_folder, original_name
from grainline.methods.base import Method
from grainline.nn.upsample import contrast, on_grid, on_segments
from grainline.types import Encoded, Images, Texts, concat, description_texts, rows, texts_of, to
from grainline.weights import MODEL, load_weights

SETTINGS = ("config.json", "open_clip_config.json")  # one of them is in every folder of other programs

DECODERS = min(8, os.cpu_count() or 1)
"""Threads that decode images; Pillow lets others run while it does."""

ImageLike = str | Path | bytes | Image.Image | Described


class Model:
    """Encode, score and show. Never in training mode; no call keeps gradients."""

    def __init__(
        self, description: Description, method: Method, tokenizer: TextTokenizer, *, batch: int = 64
    ) -> None:
        """batch  images or texts encoded at a time"""
        self.description, self.method = description, method.eval()
        self.tokenizer, self.batch = tokenizer, batch
        self.transform = EvalTransform(method.size, **image_settings(description))
        self.cut = 0  # texts so far that were longer than the method reads

    @property
    def device(self) -> torch.device:
        return next(self.method.parameters()).device

    @torch.no_grad()
    def encode(
        self, *, images: Sequence[ImageLike] | None = None, texts: Sequence[str] | None = None
    ) -> Encoded:
        """Vectors [N, D] of unit length with tokens, of images (paths, bytes or PIL) or of texts.

        Give one of the two. Rows are numbered from 0. A method with `reads_descriptions` takes each image as
        Described(image, text). Raises UserError for a file that is no image.
        """
        if (images is None) == (texts is None):
            raise UserError("encode takes images=[...] or texts=[...], one of them")
        inputs = images if images is not None else texts
        if isinstance(inputs, str | bytes | Described) or not isinstance(inputs, Sequence):
            raise UserError(
                f"encode takes a list, not one {type(inputs).__name__}; put a single one in [...]"
            )
        if texts is not None and not all(isinstance(text, str) for text in texts):
            raise UserError("texts must be strings; one of them is not")
        if not inputs:
            raise UserError("encode got an empty list; give it one image or text at least")
        encoded = self._images(images) if images is not None else self._texts(texts or [])
        number = torch.arange(len(encoded.vector), device=self.device)
        image = number if images is not None else torch.full_like(number, -1)
        return encoded._replace(item=number, image=image)

    @torch.no_grad()
    def score(self, images: Encoded | Sequence[ImageLike], texts: Encoded | Sequence[str]) -> Tensor:
        """Every image against every text: [N, M], higher is closer."""
        a = images if isinstance(images, Encoded) else self.encode(images=images)
        b = texts if isinstance(texts, Encoded) else self.encode(texts=texts)
        return self.method.score(a, b)

    @torch.no_grad()
    def heat(
        self, image: ImageLike, texts: Sequence[str], null: Encoded | Sequence[str] | None = None
    ) -> Tensor:
        """Where each text shows in one image: [M, size, size] over the square that the model reads.

        null  16 or more other texts, such as captions of other images: heat is then the difference from
              these, signed, in units in which few of them reach 1 (`nn.upsample.contrast`)

        Without `null` heat is the method's own: signed, or with `model.method.distribution` >= 0 and of sum 1
        over the tokens, or less where the text attends to nothing. For many methods it is nearly the same
        number everywhere, and only `null` makes differences visible.
        """
        if not self.method.has_layout:
            raise UserError(f"the image tokens of {self.description.method} have no places in the image")
        others = null if isinstance(null, Encoded) or null is None else self.encode(texts=null)
        a, b = self.encode(images=[image]), self.encode(texts=texts)
        return heat_of(self.method, a, b, others, (self.method.size, self.method.size))

    def pressed(self) -> "Model":
        """The same model, but it reads whole images, pressed into its square."""
        other = copy.copy(self)
        other.transform = self.transform.pressed()
        return other

    def read(self, texts: Sequence[str]) -> TokenizedParts:
        """The ids that the method reads of each text, in parts, and how many tokens are cut."""
        method = self.method
        return encode_parts(self.tokenizer, texts, method.context, method.parts, method.chunking)

    def prepared(self, image: ImageLike) -> Images:
        """One image as the method reads it, with its description if the method reads descriptions."""
        number = torch.arange(1)
        dense = self._dense([image], number)
        return to(Images(self._square(image)[None], number, dense=dense), self.device)

    def cropped(self, image: ImageLike) -> Image.Image:
        """The square of an image that the model reads, as background of heat maps."""
        return Image.fromarray(self._square(image).permute(1, 2, 0).numpy())

    def _images(self, images: Sequence[ImageLike]) -> Encoded:
        return concat([self.method.encode_images(to(part, self.device)) for part in self._batches(images)])

    def _batches(self, images: Sequence[ImageLike]) -> Iterator[Images]:
        """While the method encodes one batch, threads decode the next."""
        with ThreadPoolExecutor(DECODERS) as pool:

            def begin(start: int) -> list[Future[Tensor]]:
                return [pool.submit(self._square, image) for image in images[start : start + self.batch]]

            ahead = begin(0)
            for start in range(0, len(images), self.batch):
                now, ahead = ahead, begin(start + self.batch)
                pixels, number = torch.stack([square.result() for square in now]), torch.arange(len(now))
                dense = self._dense(images[start : start + self.batch], number)
                yield Images(pixels, number, dense=dense)

    def _dense(self, images: Sequence[ImageLike], number: Tensor) -> Texts | None:
        """The descriptions of images, if the method reads them. UserError for an image without."""
        if not self.method.reads_descriptions:
            return None
        texts = [image.text for image in images if isinstance(image, Described)]
        if len(texts) < len(images):
            bare = next(image for image in images if not isinstance(image, Described))
            which = f"image {bare}" if isinstance(bare, str | Path) else "an image"
            raise UserError(
                f"{self.description.method} reads a description with each image, and {which} has none: "
                "name a file of `grainline data describe` with --descriptions"
            )
        tokens = windows(self.tokenizer, texts, self.method.context)
        self.cut += sum(tokens.truncated)
        return description_texts(tokens.ids, number)

    def _square(self, image: ImageLike) -> Tensor:
        if isinstance(image, Described):
            return self._square(image.image)
        try:
            return self.transform(_opened(image), "image" if isinstance(image, bytes) else str(image))
        except CorruptSample as error:
            raise UserError(f"{error.where} cannot be used: {error.cause}; give an image file") from None

    def _texts(self, texts: Sequence[str]) -> Encoded:
        tokens = self.read(texts)
        self.cut += sum(tokens.truncated)
        padded = to(texts_of(tokens.ids), self.device)
        starts = range(0, len(texts), self.batch)
        encoded = concat([self.method.encode_texts(rows(padded, slice(i, i + self.batch))) for i in starts])
        return encoded._replace(truncated=torch.tensor(tokens.truncated, device=self.device))


def heat_of(
    method: Method, image: Encoded, texts: Encoded, null: Encoded | None, size: tuple[int, int]
) -> Tensor:
    """Where texts show in one image: [M, H, W]

    image  one row, as the method encodes it
    null   other texts to compare with, as in `Model.heat`
    size   (H, W) of the result
    """

    def own(of: Encoded) -> tuple[Encoded, Tensor]:
        same = rows(image, torch.zeros(len(of.item), dtype=torch.int64, device=of.vector.device))
        return same, method.heat(same, of)

    same, heat = own(texts)
    if null is not None:
        heat = contrast(heat, own(null)[1], image.mask[0])
    return on_pixels(method, same, heat, size)


def on_pixels(method: Method, images: Encoded, heat: Tensor, size: tuple[int, int]) -> Tensor:
    """Heat over image tokens [N, L] as heat over the square that the method reads: [N, H, W]

    images  [N] with their tokens
    size    (H, W) of the result

    Tokens on a grid are interpolated between their centres. A segment has one heat and sharp borders; a
    smaller result has the means.
    """
    if method.segmented:
        assert images.places is not None, "segments without places"
        return on_segments(heat, images.places, size)
    assert method.grid is not None, "image tokens without a layout; ask `has_layout` first"
    return on_grid(heat, method.grid, size)


def load(
    path: str | Path,
    *,
    device: str | None = None,
    scoring: str | None = None,
    patches: str | None = None,
    trust_code: bool = False,
) -> Model:
    """The model in a run folder or in a folder inside one: `runs/x`, `runs/x/best`, `runs/x/checkpoints/...`

    A run folder gives its last weights: `last/` when training has ended, else its newest checkpoint. Anything
    else is a CLIP, SigLIP or GroupViT as `load_pretrained` takes it: a folder, a file of weights, a name of
    the hub.

    device      "cpu", "cuda", ...; None takes CUDA where there is one
    scoring     how the method scores pairs, where it has several ways; None: that of its config
    patches     what image tokens take up in the last layer of a CLIP, "attention" or "values" (as FG-OVD is
                measured on CLIP); None: that of its config
    trust_code  load a run whose method or encoder is a class outside grainline, which imports its module
    """
    run = find_run(Path(path))
    if run is None:
        model = _load_others(path, scoring, patches)
    else:
        home, weights = run
        description = with_patches(scored(read_description(home, trust_code=trust_code), scoring), patches)
        method = build(description)
        load_weights(weights if (weights / "state.json").is_file() else weights / MODEL, method)
        model = Model(description, method, read_tokenizer(home))
    model.method.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return model


def _load_others(name: str | Path, scoring: str | None, patches: str | None) -> Model:
    """A CLIP, SigLIP or GroupViT that others trained, as a method."""
    place = Path(name)
    settings = {"pretrained": str(place.resolve() if place.exists() else name)}
    checkpoint = load_pretrained(settings["pretrained"])
    kind = checkpoint.architecture["kind"]
    if space_of(checkpoint.architecture) is None:
        side = "image" if checkpoint.image is None else "text"
        raise UserError(
            f"{name} is a {kind}, which has no {side} side, so it cannot score; train a recipe "
            "that begins with it"
        )
    method = "clip" if kind == "groupvit" else kind  # its scores are cosines too
    description = Description(method, method_config(method, settings, str(name)))
    start_point = start(with_patches(scored(description, scoring), patches), checkpoint)
    return Model(start_point.description, start_point.method(), start_point.tokenizer())


def find_run(path: Path) -> tuple[Path, Path] | None:
    """The folder with model.json and that with the weights; None for a path that is no run.

    An existing path wins over a name of the hub. Raises UserError where a run has no weights, and for a path
    that neither exists nor can be a name.
    """
    place = path.resolve()  # "." has no name of its own
    folder = existing_folder(place)  # a kill in the middle of a save may have left it under another name
    if folder is None and not place.exists():
        if NAME.fullmatch(str(path)) is None:
            raise UserError(
                f"no model at {place}, and that is no name of the Hugging Face hub; give the folder that "
                "`grainline train --out` wrote, or a CLIP, SigLIP or GroupViT by its folder, file or name"
            )
        return None
    if place.is_file() or any((place / settings).is_file() for settings in SETTINGS):
        return None
    home = next((f for f in (place, place.parent, place.parent.parent) if (f / "model.json").is_file()), None)
    if home is None:
        raise UserError(
            f"{place} holds no model.json, as the folder has that `grainline train --out` wrote, and no "
            f"{' or '.join(SETTINGS)}, as a CLIP or SigLIP has"
        )
    steps = {step.with_name(original_name(step)) for step in home.glob("checkpoints/*step-*")}
    steps = {step for step in steps if step.name.startswith("step-")}  # without unfinished ones
    candidates = map(existing_folder, (place, home / "last", *sorted(steps, reverse=True)))
    weights = next((path for path in candidates if path and (path / MODEL).is_file()), None)
    if weights is None or (place != home and weights != folder):
        raise UserError(f"{place} holds no weights yet; training writes its first ones to checkpoints/")
    return home, weights


def given(image: str | Path | bytes | Image.Image, description: str | None) -> ImageLike:
    """The input of a model: an image, with its description where it has one."""
    return image if description is None else Described(image, description)


def _opened(image: str | Path | bytes | Image.Image) -> bytes | Image.Image:
    if isinstance(image, bytes | Image.Image):
        return image
    if not isinstance(image, str | Path):
        raise UserError(f"an image is a path, bytes or a PIL image, not a {type(image).__name__}")
    try:
        return read_plain(image)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"image {image} cannot be read: {why}") from None
