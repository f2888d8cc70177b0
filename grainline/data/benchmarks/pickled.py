"""Pickles of plain data (lists, dicts, numbers, texts), read without running code.

A pickle is a program that may call anything. Every opcode is checked first; one that imports, builds or calls
something is refused.
"""

import pickle
import pickletools
from io import BytesIO
from typing import Any

from grainline.data.formats.plain import data_error, read_plain
from grainline.files import Unpickler

PLAIN = frozenset(
    [
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP"),
        *("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
        *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
        *("FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    ]
)
"""Instructions that make values out of the file alone."""
_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}

_UNPICKLING_ERRORS = (
    *(ArithmeticError, AttributeError, EOFError, IndexError, KeyError, MemoryError, RecursionError),
    *(TypeError, ValueError, pickle.UnpicklingError),
)
"""What unpickling raises on files that are cut or no pickles."""


def read_pickle(path: str) -> Any:
    """The content of a pickle of plain data, of Python 2 too; its byte strings are texts.

    Raises UserError for one that holds anything else, before any of it is run.
    """
    try:
        data = read_plain(path, 2**62)
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror})") from error
    try:
        has_bytes = _refuse_code(data, path)
        try:  # strings of Python 2 are bytes: UTF-8, else Latin-1
            content = Unpickler(BytesIO(data), encoding="utf-8").load()
        except UnicodeDecodeError:
            content = Unpickler(BytesIO(data), encoding="latin-1").load()
        return _with_texts(content, {}) if has_bytes else content
    except _UNPICKLING_ERRORS as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise data_error(f"{path} is no pickle of plain data: {first}") from None


def _refuse_code(data: bytes, path: str) -> bool:
    """Raise UserError for an instruction that is not plain; whether the file has byte strings of Python 3."""
    has_bytes, file = False, BytesIO(data)
    while code := file.read(1):
        opcode = _OPCODES.get(code)
        if opcode is None:
            raise ValueError(f"{code!r} is no instruction")
        if opcode.name == "STRING":  # pickletools fails where a text of Python 2 is not ASCII
            argument: Any = file.readline()
        else:
            argument = opcode.arg and opcode.arg.reader(file)
        if opcode.name not in PLAIN:
            raise data_error(
                f"{path} asks for more than plain data ({opcode.name} {argument or ''}), and was not run; "
                f"write its content as JSON"
            )
        if "PUT" in opcode.name and argument > len(data):
            raise ValueError("it asks for more memory than its content can need")
        if opcode.name == "STOP":
            break
        has_bytes = has_bytes or "BYTES" in opcode.name
    return has_bytes


def _with_texts(value: Any, done: dict[int, Any]) -> Any:
    """The same with texts for byte strings; `done` has results by id, so that a shared list is read once."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) not in done:
        if isinstance(value, dict):
            done[id(value)] = {_with_texts(key, done): _with_texts(x, done) for key, x in value.items()}
        else:
            done[id(value)] = type(value)(_with_texts(x, done) for x in value)
    return done[id(value)]
