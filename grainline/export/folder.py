"""`grainline export MODEL OUT`: two graphs, tokenizer and description, measured before they are there.

image.onnx       pixels -> vector, tokens, token_mask
text.onnx        ids, mask -> vector, tokens, token_mask
tokenizer.json   and tokenizer_meta.json
export.json      names and shapes, how pictures and texts are prepared, scale and bias, versions, parity
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import grainline
from grainline.data.collate import texts_of
from grainline.data.sources.scenes import Scenes
from grainline.encoders.cast import CastConfig
from grainline.errors import UserError
from grainline.export.graph import NEEDED, Parity, differences, require_onnx, session, write_graph
from grainline.export.towers import ImageTower, TextTower, given
from grainline.files import replacing, sync, write_text
from grainline.methods.base import Method
from grainline.model import Model
from grainline.origin import fingerprint
from grainline.types import rows

FORMAT = 1
LIMIT = 1e-4  # largest difference to torch; float32 on another runtime stays two digits below
BATCHES = (1, 2, 5)  # rows at a time when parity is measured
IMAGE, TEXT = "image", "text"


class Exported(NamedTuple):
    """What was written."""

    opset: int
    parity: dict[str, Parity]  # of "image" and "text"
    bytes: dict[str, int]


class _Side(NamedTuple):
    """One tower with what its graph needs."""

    module: ImageTower | TextTower
    axes: dict[str, dict[int, str]]
    inputs: Sequence[tuple[Tensor, ...]]  # for parity
    example: tuple[Tensor, ...]  # for tracing


def export(model: Model, out: str | Path) -> Exported:
    """Write both towers of a model on the CPU into a new folder, whole or not at all.

    Parity is measured in batches of 1, 2 and 5 on drawn scenes and their captions, and on texts as short and
    as long as the model reads them. Raises UserError where it is above LIMIT, where the folder is taken,
    without the extra `onnx`, for a method that scores by what both sides make of each other, and for
    superpixels that are not the same on another runtime.
    """
    require_onnx()
    _refuse(model)
    home = Path(out)
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise UserError(f"{home} is there already; give a new folder")
    sides = {IMAGE: _image_side(model), TEXT: _text_side(model)}
    longest = {"tokens": model.method.context, "parts": model.method.parts}
    with replacing(home) as place:
        place.mkdir()
        parity, opset = {}, 0
        for name, side in sides.items():
            file = place / f"{name}.onnx"
            opset = write_graph(side.module, side.example, side.axes, file, longest)
            parity[name] = differences(session(file), side.module, side.inputs)
            _accept(name, parity[name])
        model.tokenizer.save(place)
        described = _description(model, sides, parity, opset)
        write_text(place / "export.json", json.dumps(described, indent=1, allow_nan=False) + "\n")
        sizes = {path.name: path.stat().st_size for path in sorted(place.iterdir())}
        for name in sizes:
            sync(place / name)
    return Exported(opset, parity, sizes)


def _refuse(model: Model) -> None:
    """Raise UserError for what no graph can do."""
    config = model.description.config
    if config.model_dump().get("scoring") == "conditioned":
        raise UserError(
            f"{model.description.method} with conditioned scores pools each picture by each text, which "
            "neither of two graphs can do; --scoring vectors exports the same weights with scores by vectors"
        )
    if model.method.describes:
        raise UserError(
            f"{model.description.method} reads a description beside each picture, and the graph of pictures "
            "takes pixels alone, so it cannot be exported"
        )
    # One unit in the last place of a colour, and k-means gives pixels of a third of the drawn scenes to
    # another superpixel; the network of SFCN computes in bfloat16, and OpenCV in no graph at all.
    if isinstance(config.image, CastConfig) and config.image.superpixels.kind != "grid":
        raise UserError(
            f"superpixels by {config.image.superpixels.kind} are not the same on another runtime, where the "
            "last bit of a number decides between two of them; a model trained with "
            "model.image.superpixels.kind=grid can be exported"
        )


def _accept(name: str, parity: Parity) -> None:
    if not parity.worst <= LIMIT:
        raise UserError(
            f"the {name} graph differs from the model by {parity.vector:.1e} in vectors and "
            f"{parity.tokens:.1e} in tokens on onnxruntime; allowed is {LIMIT:.0e}; nothing was written"
        )


def _image_side(model: Model) -> _Side:
    scenes = _scenes(model.method)
    pixels = torch.stack([model.transform(record.image, record.key) for record in scenes])
    inputs = [(pixels[:n],) for n in BATCHES]
    return _Side(ImageTower(model.method), {"pixels": {0: "images"}}, inputs, (pixels[:2],))


def _text_side(model: Model) -> _Side:
    """Texts of the scenes; one that is cut, one word and none stand among them and alone."""
    method = model.method
    told = [record.whole for record in _scenes(method)]
    texts = [told[0], " ".join(told * (2 + method.context // 8)), "", "word", *told[1:]]
    ids = model.read(texts).ids
    several = ((0, 1), (1, 2), (2, 3), (2, 4), (0, 5))
    inputs = [given(texts_of(ids[a:b]), method.parts) for a, b in several]
    axis = {0: "texts", 1: "tokens"} if method.parts == 1 else {0: "texts", 1: "parts", 2: "tokens"}
    whole = rows(texts_of(ids), slice(0, 2))
    return _Side(TextTower(method), {"ids": axis, "mask": axis}, inputs, given(whole, method.parts))


def _scenes(method: Method) -> Sequence[Any]:
    drawn = Scenes(f"scenes:dev?count={max(BATCHES)}", max(method.size, 32))
    return [drawn[i] for i in range(len(drawn))]


def _description(
    model: Model, sides: dict[str, _Side], parity: dict[str, Parity], opset: int
) -> dict[str, Any]:
    method = model.method
    scale: Any = _of_vectors(dict(method.named_modules()), "scale")
    bias: Any = _of_vectors(dict(method.named_parameters()), "bias")
    return {
        "format": FORMAT,
        "method": model.description.method,
        "config": model.description.config.model_dump(mode="json"),
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
        "chunking": None if method.chunking is None else method.chunking.model_dump(mode="json"),
        "vocab": model.tokenizer.vocab,
        "begin": model.tokenizer.begin,
        "end": model.tokenizer.end,
        "scale": None if scale is None else float(scale().detach()),
        "bias": None if bias is None else float(bias.detach()),
        "opset": opset,
        "inputs": {name: _inputs(side) for name, side in sides.items()},
        "outputs": {
            "vector": "[rows, width]",
            "tokens": "[rows, tokens, width]",
            "token_mask": "[rows, tokens]",
        },
        "parity": {name: found._asdict() for name, found in parity.items()},
        "batches": BATCHES,
        "versions": {"grainline": grainline.__version__, "torch": torch.__version__}
        | {name: version(name) for name in NEEDED},
    }


def _of_vectors(parts: Mapping[str, Any], name: str) -> Any:
    """The scale or bias of the score by vectors; CAFT has another one for parts. None where there is none."""
    return parts.get(name, parts.get(f"whole_{name}"))


def _inputs(side: _Side) -> dict[str, Any]:
    """Type and shape of every input; axes of any length by their names."""
    found = {}
    for (name, named), tensor in zip(side.axes.items(), side.example, strict=True):
        shape = [named.get(axis, size) for axis, size in enumerate(tensor.shape)]
        found[name] = {"type": str(tensor.dtype).removeprefix("torch."), "shape": shape}
    return found
