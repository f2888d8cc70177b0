"""Tensors from files of other programs, without running code in these files.

Three kinds of files: safetensors, pickled state dicts (read by torch with weights_only), and TorchScript
archives, such as OpenAI's published CLIP, which torch can only read by running them. Here the pickle in them
may build tensors, numbers, lists and dicts. A module of the program becomes an inert object that holds its
attributes, and any other name stops the reading.
"""

import collections
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from grainline.errors import UserError
from grainline.files import Unpickler
from grainline.system import regular

_STORAGES = {
    "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16, "Double": torch.float64,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip
_SAME = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag")
_HARMLESS = (  # classes in training checkpoints beside the tensors; an inert object stands for an instance
    "argparse.Namespace", "numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar",
    "pathlib.PosixPath", "pathlib.WindowsPath",
)  # fmt: skip
NUMBERS = ("input_resolution", "context_length", "vocab_size", "attn_mask")  # no weights, in OpenAI's files


class Stored(NamedTuple):
    """The content of a file of weights."""

    tensors: dict[str, Tensor]
    script: bool = False  # it is a TorchScript archive
    name: str = ""  # what open_clip calls the run that wrote it
    settings: Mapping[str, Any] = MappingProxyType({})  # of the trainer that wrote it: its argparse.Namespace


def read_tensors(path: Path, *, wrapped: bool = True) -> Stored:
    """All tensors of a .safetensors, .pt, .pth or .bin file by name. UserError where it holds anything else.

    wrapped  they may stand in a training checkpoint, under names with a prefix
    """
    try:
        regular(path)
        if path.suffix == ".safetensors":
            return _state_dict(load_file(path), path, wrapped)
        if (script := _script_tensors(path)) is not None:
            return Stored(script, True)
        with torch.serialization.safe_globals([(_Inert, name) for name in _HARMLESS]):
            content = torch.load(path, map_location="cpu", weights_only=True)
        return _state_dict(content, path, wrapped)
    except UserError:
        raise
    except Exception as error:  # damaged files raise whatever their readers stumble over
        code = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it asks for {code[1]}, which was not run" if code else str(error).split(". ")[0]
        advice = "give a .safetensors file, a state dict saved by torch, or one of OpenAI's .pt files"
        raise UserError(f"cannot read tensors from {path} ({' '.join(reason.split())}); {advice}") from None


_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
_AVERAGES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema")
_PREFIXES = ("module.", "_orig_mod.", "model.")  # of DDP, torch.compile, Lightning


def _state_dict(content: Any, path: Path, wrapped: bool) -> Stored:
    """The state dict inside a training checkpoint with epoch and optimizer, or the file itself."""
    name, averages, settings = "", list[str](), dict[str, Any]()
    for _ in range(4 * wrapped):  # wrappers inside of wrappers
        if not isinstance(content, Mapping) or all(isinstance(x, Tensor) for x in content.values()):
            break
        name = name or str(content.get("name", ""))
        inert = (x.attributes for x in content.values() if isinstance(x, _Inert))
        settings = settings or next((x for x in inert if isinstance(x, dict)), {})
        averages += [key for key in _AVERAGES if isinstance(content.get(key), Mapping)]
        inside = [key for key in _WRAPPERS if isinstance(content.get(key), Mapping)] or averages[:1]
        if len(inside) != 1:
            break
        averages, content = [key for key in averages if key not in inside], content[inside[0]]
    if not isinstance(content, Mapping) or not all(isinstance(x, Tensor) for x in content.values()):
        keys = list(content)[:8] if isinstance(content, Mapping) else [type(content).__name__]
        places = f"tensors may stand under one of {', '.join((*_WRAPPERS, *_AVERAGES))}"
        raise UserError(f"{path} holds no state dict but {', '.join(map(str, keys))}; {places}")
    if averages:
        print(f"{path} also holds averaged weights ({', '.join(averages)}), not read", file=sys.stderr)
    tensors = {key: x for key, x in content.items() if key != "n_averaged"}
    prefixes = _PREFIXES if wrapped else ()
    while prefix := next((p for p in prefixes if tensors and all(k.startswith(p) for k in tensors)), ""):
        tensors = {key.removeprefix(prefix): x for key, x in tensors.items()}
    return Stored(tensors, name=name, settings=settings)


def lone_weights(files: Iterable[Path]) -> Path | None:
    """The only file of weights among these; None where there is none. UserError where there are several."""
    weights = sorted(file for file in files if file.suffix in (".pt", ".pth", ".safetensors"))
    if len(weights) > 1:
        names = ", ".join(file.name for file in weights)
        raise UserError(f"{weights[0].parent} holds several files of weights, {names}: give one of them")
    return next(iter(weights), None)


def _script_tensors(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a TorchScript archive; None for a file of another kind."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if not any(name.endswith("/constants.pkl") for name in names):
            return None
        place = next(name for name in names if name.count("/") == 1 and name.endswith("/data.pkl"))
        with archive.open(place) as file:
            tree = _Reader(file, archive, place.removesuffix("data.pkl")).load()
    return dict(_named(tree, ""))


class _Inert:
    """Stands for an object of the program in the archive: its attributes, and nothing that it could do."""

    attributes: Any = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.attributes = state


class _Reader(Unpickler):
    """Knows names for tensors, containers and inert objects. All other names are an error."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile, folder: str) -> None:
        known: dict[tuple[str, str], Any] = {("torch.jit._pickle", name): lambda x, *_: x for name in _SAME}
        known |= {("torch", f"{storage}Storage"): dtype for storage, dtype in _STORAGES.items()}
        known["collections", "OrderedDict"] = collections.OrderedDict
        known["torch._utils", "_rebuild_tensor_v2"] = self.rebuilt
        super().__init__(file, known)
        self.archive, self.folder = archive, folder
        self.inert = type("_Inert", (_Inert,), {})  # its own for each file: no file can alter another's
        self.storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        program = module == "__torch__" or module.startswith("__torch__.")
        return self.inert if program else super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Tensor:
        """The numbers of a tensor: pid is ("storage", dtype, name of the file, device, how many)."""
        _, dtype, key = pid[:3]
        if key not in self.storages:
            data = bytearray(self.archive.read(f"{self.folder}data/{key}"))
            self.storages[key] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return self.storages[key]

    def rebuilt(self, storage: Tensor, offset: int, size: tuple[int, ...], stride: Any, *_: Any) -> Tensor:
        """torch refuses sizes that do not fit the storage."""
        return torch.as_strided(storage, size, stride, offset).clone()


def _named(tree: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors of inert modules, by the names that their state dict would give them."""
    inside = tree.attributes if isinstance(tree, _Inert) else tree
    for name, value in inside.items() if isinstance(inside, dict) else ():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, _Inert):
            yield from _named(value, f"{prefix}{name}.")
