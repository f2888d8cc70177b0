"""A trained method with tokenizer and transform: the model of the public interface.

On disk it is a folder with `model.json` (method and config), `tokenizer.json` and `model.safetensors`. A run
folder has the first two at its top and weights in `last/`, `best/` and `checkpoints/step-*/`
(`loading.py`).
"""

import copy
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grainline import hub, model_card
from grainline.build import Description, image_settings
from grainline.data.descriptions import Described
from grainline.data.other_texts import other_texts
from grainline.data.pairs import ImageLike, are_images, count_of, is_one_image, original, several
from grainline.data.texts import TokenizedParts, encode_parts, windows
from grainline.data.tokenizers.tokenizer import TextTokenizer
from grainline.data.transforms import Box, EvalTransform
from grainline.errors import UserError, checked, path_of
from grainline.hub import fingerprint
from grainline.methods.base import Method
from grainline.methods.heat import heat_of, heat_overlay, mask_of, over_image, read_area, token_heat
from grainline.progress import in_order, progress
from grainline.types import (
    Encoded,
    Images,
    Texts,
    concat,
    description_texts,
    finite,
    rows,
    texts_of,
    to,
    vectors_only,
)

DECODERS = min(8, os.cpu_count() or 1)
"""Threads that decode images; Pillow lets others run while it does."""

Batch = TypeVar("Batch", Images, Texts)
Strings = str | Sequence[str]
Others = Encoded | Sequence[str]  # texts that heat is compared with


class Model:
    """Encode, compare and show. Never in training mode; no call keeps gradients."""

    def __init__(
        self,
        description: Description,
        method: Method,
        tokenizer: TextTokenizer,
        *,
        batch: int = 64,
        run: Path | None = None,
    ) -> None:
        """
        batch  images or texts encoded at a time
        run    folder of the run that trained the model, where there is one
        """
        self.description, self.method = description, method.eval()
        self.tokenizer, self.batch, self.run = tokenizer, batch, run
        self.transform = EvalTransform(method.size, **image_settings(description))

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}: {value}" for name, value in self.facts().items())
        return f"Model({facts})"

    def facts(self) -> dict[str, str]:
        """Method, encoders, sizes, parameters and device, in words."""
        method, config, patches = self.method, self.description.config, self.transform.square.patches
        pixels = f"{method.size} x {method.size} pixels"
        if patches:
            pixels = f"{patches.max_num_patches[-1]} patches"
        score = "compares parts of image and text" if method.pairwise else "cosine of two vectors"
        if method.by_sentence:
            score += ", that of a text the unit mean of the vectors of its sentences"
        return {
            "method": self.description.method,
            "image encoder": f"{_encoder(config.image)}, {pixels}",
            "text encoder": f"{_encoder(config.text)}, {method.context} tokens",
            "embedding": f"{config.width} numbers",
            "score": score,
            "parameters": f"{sum(x.numel() for x in method.parameters()):,}",
            "device": str(self.device),
        }

    @property
    def weakness(self) -> str:
        """A sentence that the run of this model is near chance; "" where it is not, or unknown."""
        return model_card.weakness(self.run)

    @property
    def device(self) -> torch.device:
        return next(self.method.parameters()).device

    @checked()
    def to(self, device: str | torch.device) -> "Model":
        """Move the weights to a device, as torch names it. Returns the model."""
        _moved(self.method, device)
        return self

    @checked(inputs="", images="", texts="")
    @torch.no_grad()
    def encode(
        self,
        inputs: Any = None,
        /,
        *,
        images: ImageLike | Iterable[ImageLike] | None = None,
        texts: str | Iterable[str] | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        convert_to_numpy: bool = False,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
    ) -> Any:
        """Embeddings of images or of texts: an `Encoded` with vectors [N, D] and tokens [N, L, D].

        inputs   images or texts, where it is plain which: arrays, PIL images, files that are there, sentences
        images   one image or several: paths, bytes, PIL images, numpy [H, W, 3], torch [3, H, W], also in a
                 list, an array of one dimension more, or an iterator. A method with `reads_descriptions`
                 takes each image as Described(image, text).
        texts    one string or several
        batch_size         images or texts encoded at a time; None: 64, or what the model was made with
        convert_to_numpy   return the vectors alone, as an array [N, D]; [D] of a single input
        convert_to_tensor  the same as a tensor on the device of the model
        device             another device than that of the model

        Rows are numbered from 0. Raises UserError for a file that is no image.
        """
        if (inputs is not None) + (images is not None) + (texts is not None) != 1:
            raise UserError("encode takes images=... or texts=..., one of them")
        if inputs is not None:
            images, texts = (inputs, None) if are_images(inputs) else (None, inputs)
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be 1 or more")
        if convert_to_numpy and convert_to_tensor:
            raise UserError("give convert_to_numpy or convert_to_tensor, not both")
        bare = convert_to_numpy or convert_to_tensor
        home, own = self.device, device in (None, self.device, str(self.device))
        method = self.method if own else _moved(copy.deepcopy(self.method), device)
        size, truncated = batch_size or self.batch, list[bool]()
        if images is not None:
            single, unit, total = is_one_image(images), "images", count_of(images)
            some: Any = [images] if single else several(images, "image")
            batches: Iterator[Any] = self._images(some, size, truncated)
        else:
            single, unit = isinstance(texts, str), "texts"
            many = texts if isinstance(texts, list | str) else several(texts, "text")
            strings = [many] if isinstance(many, str) else list(many)
            total, batches = len(strings), self._texts(strings, size, truncated)
        parts: list[Encoded] = []
        bar: Any = (
            progress("encoding", unit, show=True) if show_progress_bar else nullcontext(lambda *_: None)
        )
        with bar as step:
            for encoded in (to(_encode(method, batch), home) for batch in batches):
                parts.append(vectors_only(encoded) if bare else encoded)
                step(sum(len(part.vector) for part in parts), total)
        if not parts:
            raise UserError("encode got nothing to encode; give it one image or text at least")
        both = concat(parts)
        _refuse_not_finite(both, unit)
        if bare:
            vectors = both.vector[0] if single else both.vector
            return vectors if convert_to_tensor else vectors.cpu().numpy()
        ids = torch.arange(len(both.vector), device=home)
        both = both._replace(item=ids, image=ids if images is not None else torch.full_like(ids, -1))
        return both._replace(truncated=torch.tensor(truncated, device=home)) if truncated else both

    @torch.no_grad()
    def similarity(self, a: Any, b: Any) -> Tensor:
        """Every row of a against every row of b: [N, M], higher is closer.

        a, b  `Encoded` rows, as `encode` returns them; of methods of one vector also bare floats

        Images against texts get the method's own score. Two sides of images, or of texts, get the cosine of
        their vectors.
        """
        bare = not (isinstance(a, Encoded) and isinstance(b, Encoded))
        if bare and self.method.pairwise:
            name = self.description.method
            raise UserError(f"{name} compares parts of images and texts, which bare vectors lack")
        first, second = _vectors(a), _vectors(b)
        if first.shape[-1] != second.shape[-1]:
            widths = f"{first.shape[-1]} and {second.shape[-1]}"
            raise UserError(f"similarity: vectors of widths {widths}; both sides come from the same model")
        if bare:
            if not first.is_floating_point() or not second.is_floating_point():
                raise UserError("similarity takes floats: compare binary vectors by Hamming distance")
            return first.to(self.device, torch.float32) @ second.to(self.device, torch.float32).T
        of_images = [bool((x.image >= 0).all()) for x in (a, b)]
        if of_images[0] == of_images[1]:
            return a.vector @ b.vector.T
        return self.method.score(a, b) if of_images[0] else self.method.score(b, a).T

    @torch.no_grad()
    def score(self, images: Any, texts: Any) -> Tensor:
        """Every image against every text: [N, M], higher is closer. Takes what `encode` takes or returns."""
        a = images if isinstance(images, Encoded) else self.encode(images=images)
        b = texts if isinstance(texts, Encoded) else self.encode(texts=texts)
        if len(a.image) and bool((a.image < 0).all()):
            raise UserError("score: the first side is texts; give it images, then texts")
        return self.method.score(a, b)

    @torch.no_grad()
    @checked()
    def heat(self, image: ImageLike, texts: Strings, null: Others | None = None) -> Tensor:
        """Heat of each text over one image: [M, size, size] over the square that the model reads.

        null  16 or more other texts, such as captions of other images: heat is then the difference from
              these, signed, in units in which few of them reach 1 (`nn.upsample.contrast`)

        Without `null` heat is the method's own (`Method.heat`), for many nearly the same number everywhere:
        signed, or with `model.method.heat_is_distribution` >= 0 and of sum 1 over the tokens, or less.
        """
        self.require_layout()
        others = null if isinstance(null, Encoded) or null is None else self.encode(texts=null)
        a, b = self.encode(images=[image]), self.encode(texts=texts)
        return heat_of(self.method, a, b, others, (self.method.size, self.method.size))

    @checked()
    def heat_image(self, image: ImageLike, text: Strings, null: Others | None = None) -> Any:
        """Heat of a text as colours over the whole image at its own resolution: a PIL image in RGB.

        text  one string, or several: a list of images then
        null  16 or more other texts, as in `heat`; None: built-in sentences of photographs, of drawn scenes,
              or of both, as the recipe of the run says

        Orange is where the image shows more of the text than of other texts and blue where less, from the
        reach of other texts on; an image without colour has no contrast. What the model does not read of the
        image is dark. A run whose validation is near chance gives a warning.
        """
        whole, area, maps = self._contrast(image, text, null)
        images = [heat_overlay(whole, one, area) for one in maps]
        return images[0] if isinstance(text, str) else images

    @checked()
    def segment(self, image: ImageLike, text: Strings, null: Others | None = None) -> np.ndarray:
        """Heat of a text as a mask over the whole image at its own resolution: [H, W] bool

        text  one string, or several: [M, H, W] then
        null  as in `heat_image`

        Where contrast reaches 1 somewhere, as it does for one of five other texts, the mask is what lies
        above Otsu's threshold of the contrast, as in `--suite referring`, and above 0.5; else it is empty.
        What the model does not read is never in it. The colours of `heat_image` begin at 1.
        """
        _, area, maps = self._contrast(image, text, null)
        masks = np.stack([mask_of(one, area) for one in maps])
        return masks[0] if isinstance(text, str) else masks

    @torch.no_grad()
    def _contrast(
        self, image: ImageLike, text: Strings, null: Others | None
    ) -> tuple[Image.Image, Box, Iterator[np.ndarray]]:
        """An image, the area of it that is read, and the contrast of each text."""
        whole = original(image)
        if self.weakness:
            warnings.warn(self.weakness, stacklevel=5)  # where the caller asked
        texts = [text] if isinstance(text, str) else list(several(text, "text"))
        if not (texts and all(isinstance(one, str) and one.strip() for one in texts)):
            raise UserError("give a text with words to look for, or several")
        if null is None:
            null = other_texts(None, self.run, texts).sentences
        others = null if isinstance(null, Encoded) else self.encode(texts=null)
        self.require_layout()
        a, area = self.encode(images=[image]), read_area(self.transform, whole.size)
        heat = token_heat(self.method, a, self.encode(texts=texts), others)
        return whole, area, (over_image(self.method, a, one, area, whole.size) for one in heat)

    def require_layout(self) -> None:
        """Raise UserError where image tokens have no places in the image."""
        if not self.method.has_layout:
            raise UserError(f"the image tokens of {self.description.method} have no places in the image")

    @checked()
    def save(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        licence: str | None = None,
        datasets: Sequence[str] = (),
        results: Sequence[str | Path] = (),
    ) -> Path:
        """Write the model and its card into a folder, which `grainline.load` reads. Returns the folder.

        name      of the model in its card; None: that of the folder
        licence   of the weights, as the hub spells it: "apache-2.0"
        datasets  what the model was trained on, as the hub names it: ["nlphuji/flickr30k"]
        results   JSON files of `grainline evaluate` about this model, for its card; else the last validation
                  of the run is in it
        """
        place = path_of(path, "the folder of the model")
        hub.require_free(place)
        own = fingerprint(self) if results else ""
        measured = [model_card.read_result(Path(result), own) for result in results]
        card = model_card.model_card(self, name or place.resolve().name, measured, licence, datasets)
        hub.save(place, self.description, self.method, self.tokenizer, card)
        return place

    save_pretrained = save

    @checked()
    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = False,
        token: str | None = None,
        licence: str | None = None,
        datasets: Sequence[str] = (),
        results: Sequence[str | Path] = (),
        message: str = "Upload a grainline model",
    ) -> str:
        """Upload the model with its card to the Hugging Face hub and return the address of the commit.

        name      owner/model; the repository is made if it is not there
        private   make a new repository a private one
        licence   for the card, as the hub has it: apache-2.0
        datasets  for the card: what the model was trained on, as the hub names it
        results   for the card: files of `grainline evaluate --json`
        message   of the commit

        `grainline.from_pretrained(name)` reads it back. Raises UserError with the hub's reason.
        """
        write = partial(self.save, name=name, licence=licence, datasets=datasets, results=results)
        return hub.push(write, name, private=private, token=token, message=message)

    def pressed(self) -> "Model":
        """The same model, but it reads whole images, pressed into its square."""
        other = copy.copy(self)
        other.transform = self.transform.pressed()
        return other

    @checked()
    def read(self, texts: Sequence[str]) -> TokenizedParts:
        """The ids that the method reads of each text, in parts, and how many tokens are cut."""
        method = self.method
        return encode_parts(self.tokenizer, texts, method.context, method.parts, method.chunking)

    def prepared(self, image: ImageLike) -> Images:
        """One image as the method reads it, with its description if the method reads descriptions."""
        number = torch.arange(1)
        dense = self._dense([image], number, [])
        return to(Images(self._square(image)[None], number, dense=dense), self.device)

    def cropped(self, image: ImageLike) -> Image.Image:
        """The square of an image that the model reads, as background of heat maps."""
        return self.transform.square.cut(original(image))

    def _images(self, images: Iterable[ImageLike], size: int, truncated: list[bool]) -> Iterator[Images]:
        """Batches of squares: while the method encodes one batch, threads decode the next.

        truncated  gets one entry for each description
        """
        squares = in_order(lambda image: (image, self._square(image)), images, DECODERS, ahead=size)
        with closing(squares):
            while some := list(islice(squares, size)):
                inputs, number = [image for image, _ in some], torch.arange(len(some))
                pixels = torch.stack([square for _, square in some])
                yield Images(pixels, number, dense=self._dense(inputs, number, truncated))

    def _texts(self, texts: Sequence[str], size: int, truncated: list[bool]) -> Iterator[Texts]:
        """Batches of texts, all padded to the longest; `truncated` gets one entry for each text."""
        if not all(isinstance(text, str) for text in texts):
            raise UserError("texts must be strings; one of them is not")
        if not texts:
            return
        tokens = self.read(texts)
        truncated += tokens.truncated
        padded = texts_of(tokens.ids)
        for start in range(0, len(texts), size):
            yield rows(padded, slice(start, start + size))

    def _dense(self, images: Sequence[ImageLike], number: Tensor, truncated: list[bool]) -> Texts | None:
        """The descriptions of images, if the method reads them. UserError for an image without."""
        if not self.method.reads_descriptions:
            return None
        texts = [image.text for image in images if isinstance(image, Described)]
        if len(texts) < len(images):
            bare = next(image for image in images if not isinstance(image, Described))
            which = bare if isinstance(bare, str | Path) else "an image"
            wrong = f"{self.description.method} reads a description with each image, and {which} has none"
            raise UserError(f"{wrong}: name a file of `grainline data describe` with --descriptions")
        tokens = windows(self.tokenizer, texts, self.method.context)
        truncated += tokens.truncated
        return description_texts(tokens.ids, number)

    def _square(self, image: ImageLike) -> Tensor:
        return self.transform(original(image))


def _encode(method: Method, batch: Images | Texts) -> Encoded:
    """One batch on the device of a method."""
    on = to(batch, next(method.parameters()).device)
    return method.encode_images(on) if isinstance(on, Images) else method.encode_texts(on)


def _moved(method: Method, device: str | torch.device | None) -> Method:
    """A method on a device. UserError for one that is not there."""
    try:
        return method.to(device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
        why = str(error).partition("\n")[0]
        raise UserError(f"device {device} cannot be used ({why}); give cpu, cuda or cuda:0") from None


def _vectors(rows: Any) -> Tensor:
    """Vectors of encoded rows, bare vectors, or one of them: [N, D]. UserError for what has none."""
    try:
        out = torch.atleast_2d(torch.as_tensor(rows.vector if isinstance(rows, Encoded) else rows))
        if out.ndim == 2 and out.shape[1] and finite(out):
            return out
        raise ValueError(out)
    except (TypeError, ValueError, RuntimeError):
        raise UserError("similarity takes what encode returns, or vectors [N, D] of finite numbers") from None


def _refuse_not_finite(encoded: Encoded, unit: str) -> None:
    """UserError that names the first row of encoded images or texts with a number that is none."""
    if finite(encoded.vector) and finite(encoded.tokens):
        return
    tokens = (encoded.tokens.isfinite() | ~encoded.mask[..., None]).flatten(1).all(1)  # without padding
    wrong = (~(encoded.vector.isfinite().all(1) & tokens)).nonzero()[:, 0].tolist()
    if wrong:
        which = f"{len(wrong)} of {len(tokens)} {unit}, the first is number {wrong[0] + 1}"
        raise UserError(f"the model gives NaN or infinite numbers for {which}")


def _encoder(config: Any) -> str:
    """The name of an encoder in words: its checkpoint, or its kind and size."""
    checkpoint = getattr(config, "pretrained", None)
    return str(checkpoint or f"{type(config).__name__.removesuffix('Config')} of width {config.width}")


def given(image: str | Path | bytes | Image.Image, description: str | None) -> ImageLike:
    """The input of a model: an image, with its description where it has one."""
    return image if description is None else Described(image, description)
