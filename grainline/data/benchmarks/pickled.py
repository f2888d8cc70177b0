"""Pickles of plain data (lists, dicts, numbers, texts), read without running code.

A pickle is a program that may call anything it can name: here it can name nothing.
"""

import pickle
import pickletools
from io import BytesIO
from typing import Any

from grainline.data.formats.plain import data_error, read_plain
from grainline.files import Unpickler

_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
_UNPICKLING_ERRORS = (  # of files that are cut or no pickles
    *(ArithmeticError, AttributeError, EOFError, IndexError, KeyError, MemoryError, RecursionError),
    *(TypeError, ValueError, pickle.UnpicklingError),
)


def read_pickle(path: str) -> Any:
    """The content of a pickle of plain data, of Python 2 too, whose strings are texts.

    Raises UserError for one that asks for anything else, which is not run.
    """
    try:
        data = read_plain(path, 2**62)
        _check(data)
        try:  # strings of Python 2 are bytes: UTF-8, else Latin-1
            return Unpickler(BytesIO(data), encoding="utf-8").load()
        except UnicodeDecodeError:
            return Unpickler(BytesIO(data), encoding="latin-1").load()
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror})") from error
    except _UNPICKLING_ERRORS as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise data_error(f"{path} is no pickle of plain data: {first}") from None


def _check(data: bytes) -> None:
    """Raise ValueError for a number of a place that would fill the memory, and for registered extensions."""
    file = BytesIO(data)
    while (code := file.read(1)) and code != b".":
        opcode = _OPCODES.get(code)
        if opcode is None or opcode.name.startswith("EXT"):  # an extension that is cached is not looked up
            raise ValueError(f"{code!r} is no instruction of plain data")
        if opcode.name == "STRING":  # pickletools fails where a text of Python 2 is not ASCII
            file.readline()
            continue
        argument = opcode.arg.reader(file) if opcode.arg else 0
        if "PUT" in opcode.name and argument > len(data):
            raise ValueError("it asks for more memory than its content can need")
