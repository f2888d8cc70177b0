"""Tensors from files of other programs, without running code in these files.

Three kinds of files: safetensors, pickled state dicts (read by torch with weights_only), and TorchScript
archives, such as OpenAI's published CLIP: programs, pickled together with their weights. The pickle in them
may build tensors, numbers, lists and dicts. A module of the program becomes an inert object that holds its
attributes, and any other name stops the reading.
"""

import collections
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from grainline.errors import UserError
from grainline.files import Unpickler
from grainline.system import regular

_DTYPES = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]
_STORAGES = ["Float", "Half", "BFloat16", "Double", "Long", "Int", "Short", "Char", "Byte", "Bool"]
_SAME = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag")
_DAMAGE = (AttributeError, EOFError, LookupError, OSError, RuntimeError, SafetensorError, TypeError,
           ValueError, pickle.UnpicklingError, zipfile.BadZipFile)  # fmt: skip
"""What the readers raise on files that are cut, damaged or of another type than their name."""


def read_tensors(path: Path) -> tuple[dict[str, Tensor], bool]:
    """All tensors of a .safetensors, .pt, .pth or .bin file by name, and whether it is a TorchScript archive.

    UserError where it holds anything else.
    """
    try:
        regular(path)
        if path.suffix == ".safetensors":
            return load_file(path), False
        if _is_script(path):
            return _script_tensors(path), True
        content = torch.load(path, map_location="cpu", weights_only=True)
    except _DAMAGE as error:
        raise UserError(
            f"cannot read tensors from {path} ({str(error).split('. ')[0]}); give a .safetensors file, "
            "a state dict saved by torch, or one of OpenAI's .pt files"
        ) from None
    return _state_dict(content, path), False


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside a training checkpoint with epoch and optimizer, or the file itself."""
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(x, Tensor) for x in content.values()):
        raise UserError(f"{path} holds no state dict: its content is not tensors by name")
    if all(name.startswith("module.") for name in content):  # saved from inside DDP
        return {name.removeprefix("module."): x for name, x in content.items()}
    return dict(content)


def _is_script(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _script_tensors(path: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as archive:
        place = next(
            name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")
        )
        with archive.open(place) as file:
            tree = _Reader(file, archive, place.removesuffix("data.pkl")).load()
    return dict(_named(tree, ""))


class _Inert:
    """Stands for an object of the program in the archive: its attributes, and nothing that it could do."""

    attributes: Any = None

    def __setstate__(self, state: Any) -> None:
        self.attributes = state


class _Reader(Unpickler):
    """Knows names for tensors, containers and inert objects. All other names are an error."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile, folder: str) -> None:
        known: dict[tuple[str, str], Any] = {("torch.jit._pickle", name): self.same for name in _SAME}
        for storage, dtype in zip(_STORAGES, _DTYPES, strict=True):
            known["torch", f"{storage}Storage"] = getattr(torch, dtype)
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

    def same(self, value: Any, *_: Any) -> Any:
        return value


def _named(tree: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors of inert modules, by the names that their state dict would give them."""
    inside = tree.attributes if isinstance(tree, _Inert) else tree
    for name, value in inside.items() if isinstance(inside, dict) else ():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, _Inert):
            yield from _named(value, f"{prefix}{name}.")
