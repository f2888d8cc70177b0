"""`grainline export MODEL OUT`: both towers as ONNX graphs, compared with torch, and the tokenizer.

image.onnx       pixels -> vector, tokens, token_mask
text.onnx        ids, mask -> vector, tokens, token_mask
tokenizer.json   and tokenizer_meta.json
export.json      names and shapes, how images and texts are prepared, scale and bias, versions, parity
"""

import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import grainline
from grainline.build import shared_config
from grainline.data.scenes.source import Scenes
from grainline.encoders.cast import CastConfig
from grainline.errors import UserError, path_of
from grainline.files import replacing, sync, write_text
from grainline.hub import fingerprint
from grainline.methods.base import Method
from grainline.model import Model
from grainline.nn.runtime import static
from grainline.types import Encoded, Images, Texts, rows, texts_of

FORMAT = 2
LIMIT = 1e-4  # largest difference to torch; float32 on another runtime stays two digits below
BATCHES = (1, 2, 5)  # rows at a time when parity is measured
NEEDED = ("onnx", "onnxscript", "onnxruntime")


class Outputs(NamedTuple):
    """Outputs of both towers, under their names in the graphs."""

    vector: Tensor  # [N, D] float32, unit length
    tokens: Tensor  # [N, L, D] float32
    token_mask: Tensor  # [N, L] bool, True = real token


OUTPUTS = Outputs._fields


class ImageTower(nn.Module):
    """Pixels to vectors and tokens."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, pixels: Tensor) -> Outputs:
        """pixels [N, 3, size, size] uint8 in 0..255; the graph applies mean and standard deviation"""
        number = torch.zeros(pixels.shape[0], dtype=torch.int64, device=pixels.device)
        return _outputs(self.method.encode_images(Images(pixels, number)))


class TextTower(ImageTower):
    """Ids to vectors and tokens."""

    def forward(self, ids: Tensor, mask: Tensor) -> Outputs:  # type: ignore[override]
        """ids int64, mask bool: [M, L], or [M, S, L] for a method that reads parts; L <= context"""
        if self.method.parts == 1:
            ids, mask = ids[:, None], mask[:, None]
        number = torch.zeros(ids.shape[0], dtype=torch.int64, device=ids.device)
        return _outputs(self.method.encode_texts(Texts(ids, mask, number, number, number)))


def text_inputs(texts: Texts, parts: int) -> tuple[Tensor, Tensor]:
    """Ids and mask as the text tower of a method with so many parts takes them."""
    return (texts.ids[:, 0], texts.mask[:, 0]) if parts == 1 else (texts.ids, texts.mask)


def _outputs(encoded: Encoded) -> Outputs:
    return Outputs(encoded.vector, encoded.tokens, encoded.mask)


class Side(NamedTuple):
    """A tower with the inputs of its graph."""

    module: ImageTower
    axes: dict[str, dict[int, str]]  # input -> axis -> name, of the axes that may have any length
    inputs: Sequence[tuple[Tensor, ...]]  # for parity
    example: tuple[Tensor, ...]  # for tracing, with two rows at least: torch takes 1 for a constant


class Parity(NamedTuple):
    """Largest absolute differences between onnxruntime and torch."""

    vector: float
    tokens: float  # of real tokens, as a share of the largest number in them where that is above 1

    @property
    def worst(self) -> float:
        """The larger of both; NaN if one is."""
        return float(np.max(self))


@torch.no_grad()
def write_graph(side: Side, file: Path, longest: Mapping[str, int]) -> int:
    """Write a tower as an ONNX file, above 2 GB as FILE and FILE.data; the version of its operators.

    longest  the greatest length of some of the named axes
    """
    names = dict.fromkeys(name for named in side.axes.values() for name in named.values())
    dims = {name: torch.export.Dim(name, min=1, max=longest.get(name)) for name in names}
    shapes = {name: {axis: dims[dim] for axis, dim in named.items()} for name, named in side.axes.items()}
    with static(), _quiet():
        program = torch.export.export(side.module, side.example, dynamic_shapes=shapes, strict=False)
        exported: Any = torch.onnx.export(
            program,
            (),
            input_names=list(side.axes),
            output_names=list(OUTPUTS),
            dynamic_shapes=side.axes,  # here only names: what varies is settled
            dynamo=True,
            verbose=False,
        )
        exported.save(file)
    return int(exported.model.opset_imports[""])


def session(file: Path) -> Any:
    """The graph in onnxruntime, on the CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def differences(run: Any, module: nn.Module, inputs: Sequence[Sequence[Tensor]]) -> Parity:
    """Compare a session with its module on several inputs. Padding is not compared; masks must be equal."""
    names = [entry.name for entry in run.get_inputs()]
    vector, tokens = [], []
    for tensors in inputs:
        feed = {name: x.numpy() for name, x in zip(names, tensors, strict=True)}
        outputs = Outputs(*map(torch.from_numpy, run.run(list(OUTPUTS), feed)))
        with torch.no_grad():
            expected: Outputs = module(*tensors)
        if not torch.equal(outputs.token_mask, expected.token_mask):
            return Parity(float("nan"), float("nan"))
        vector.append(_largest(outputs.vector, expected.vector))
        mask = expected.token_mask
        size = _largest(expected.tokens[mask], torch.zeros(()))
        tokens.append(_largest(outputs.tokens[mask], expected.tokens[mask]) / max(1.0, size))
    return Parity(float(np.max(vector)), float(np.max(tokens)))


def _largest(a: Tensor, b: Tensor) -> float:
    """The largest difference; 0 where there is nothing to compare, as with texts that have no tokens."""
    distance = (a.double() - b.double()).abs()
    return float(distance.max()) if distance.numel() else 0.0


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of its own deprecations, that torchvision is not there, and of axes of one name."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class Exported(NamedTuple):
    """The written files and their parity."""

    opset: int
    parity: dict[str, Parity]  # of "image" and "text"
    bytes: dict[str, int]


def export(model: Model, out: str | Path) -> Exported:
    """Write both towers of a model on the CPU into a new folder, whole or not at all.

    Parity is measured in batches of 1, 2 and 5 on drawn scenes and their captions, and on texts of all
    lengths. Raises UserError where it is above LIMIT, where the folder is not empty, without the extra
    `onnx`, for a method that conditions images on texts, and for superpixels that another runtime changes.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"export needs {', '.join(missing)}: pip install 'grainline[onnx]'")
    _refuse(model)
    home = path_of(out, "the folder of the graphs")
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise UserError(f"{home} is there already; give a new folder")
    sides = {"image": _image_side(model), "text": _text_side(model)}
    longest = {"tokens": model.method.context, "parts": model.method.parts}
    with replacing(home) as place:
        place.mkdir()
        parity, opset = {}, 0
        for name, side in sides.items():
            file = place / f"{name}.onnx"
            opset = write_graph(side, file, longest)
            result = parity[name] = differences(session(file), side.module, side.inputs)
            if not result.worst <= LIMIT:
                wrong = f"{result.vector:.1e} in vectors and {result.tokens:.1e} in tokens"
                allowed = f"allowed is {LIMIT:.0e}; nothing was written"
                raise UserError(f"the {name} graph differs from the model by {wrong}; {allowed}")
        model.tokenizer.save(place)
        described = _description(model, sides, parity, opset)
        write_text(place / "export.json", json.dumps(described, indent=1, allow_nan=False) + "\n")
        sizes = {path.name: path.stat().st_size for path in sorted(place.iterdir())}
        for name in sizes:
            sync(place / name)
    return Exported(opset, parity, sizes)


def _refuse(model: Model) -> None:
    """Raise UserError for methods that cannot be exported."""
    name, config = model.description.method, model.description.config
    if config.model_dump().get("scoring") == "conditioned":
        wrong = f"{name} with conditioned scores pools each image by each text, which two graphs cannot"
        raise UserError(f"{wrong}; --scoring vectors exports the same weights with scores by vectors")
    if model.method.reads_descriptions:
        raise UserError(f"{name} reads a description with each image, and the graph takes pixels alone")
    if model.transform.square.patches is not None:
        raise UserError("the image side reads images of any shape, and the graph takes squares alone")
    # One unit in the last place of a colour, and k-means gives pixels of a third of the drawn scenes to
    # another superpixel; the network of SFCN computes in bfloat16.
    if isinstance(config.image, CastConfig) and config.image.superpixels.kind != "grid":
        wrong = f"superpixels by {config.image.superpixels.kind} are not the same on another runtime"
        raise UserError(f"{wrong}; train with model.image.superpixels.kind=grid")


def _image_side(model: Model) -> Side:
    scenes = _scenes(model.method)
    pixels = torch.stack([model.transform(record.image, record.key) for record in scenes])
    inputs = [(pixels[:n],) for n in BATCHES]
    return Side(ImageTower(model.method), {"pixels": {0: "images"}}, inputs, (pixels[:2],))


def _text_side(model: Model) -> Side:
    """Captions of scenes; also a truncated text, one word and an empty text, in batches and alone."""
    method = model.method
    captions = [record.whole for record in _scenes(method)]
    texts = [captions[0], " ".join(captions * (2 + method.context // 8)), "", "word", *captions[1:]]
    ids = model.read(texts).ids
    several = ((0, 1), (1, 2), (2, 3), (2, 4), (0, 5))
    inputs = [text_inputs(texts_of(ids[a:b]), method.parts) for a, b in several]
    axis = {0: "texts", 1: "tokens"} if method.parts == 1 else {0: "texts", 1: "parts", 2: "tokens"}
    whole = rows(texts_of(ids), slice(0, 2))
    return Side(TextTower(method), {"ids": axis, "mask": axis}, inputs, text_inputs(whole, method.parts))


def _scenes(method: Method) -> Sequence[Any]:
    source = Scenes(f"scenes:dev?count={max(BATCHES)}", max(method.size, 32))
    return [source[i] for i in range(len(source))]


def _description(
    model: Model, sides: dict[str, Side], parity: dict[str, Parity], opset: int
) -> dict[str, Any]:
    method = model.method
    # The scale and bias of the score by vectors; CAFT has others for parts, and some methods have none.
    modules: dict[str, Any] = dict(method.named_modules())
    scale = modules.get("scale", modules.get("whole_scale"))
    parameters = dict(method.named_parameters())
    bias = parameters.get("bias", parameters.get("whole_bias"))
    inputs: dict[str, Any] = {}
    for name, side in sides.items():
        inputs[name] = {}
        for (key, axes), tensor in zip(side.axes.items(), side.example, strict=True):
            shape = [axes.get(axis, size) for axis, size in enumerate(tensor.shape)]
            inputs[name][key] = {"type": str(tensor.dtype).removeprefix("torch."), "shape": shape}
    return {
        "format": FORMAT,
        "method": model.description.method,
        "config": shared_config(model.description.config.model_dump(mode="json")),
        "fingerprint": fingerprint(model),
        "pairwise": method.pairwise,
        "size": method.size,
        "resize": model.transform.resize,
        "filter": model.transform.filter.name.lower(),
        "margin": model.transform.larger / method.size,
        "pixels": "RGB, uint8 in 0..255; mean and spread are applied inside the graph",
        "grid": method.grid,
        "context": method.context,
        "parts": method.parts,
        "chunking": method.chunking and method.chunking.model_dump(mode="json", exclude_unset=True),
        "vocab": model.tokenizer.vocab,
        "begin": model.tokenizer.begin,
        "end": model.tokenizer.end,
        "scale": None if scale is None else float(scale().detach()),
        "bias": None if bias is None else float(bias.detach()),
        "opset": opset,
        "inputs": inputs,  # axes of any length by their names
        "outputs": {
            "vector": "[rows, width]",
            "tokens": "[rows, tokens, width]",
            "token_mask": "[rows, tokens]",
        },
        "parity": {name: side._asdict() for name, side in parity.items()},
        "batches": BATCHES,
        "versions": {"grainline": grainline.__version__, "torch": torch.__version__}
        | {name: version(name) for name in NEEDED},
    }
