"""The tokenizer of a folder, a file, a checkpoint or a Hugging Face name."""

import gzip
import re
import warnings
from importlib import metadata
from pathlib import Path

import tokenizers

from grainline.data.tokenizers.library_tokenizer import from_folder
from grainline.data.tokenizers.tokenizer import CONFIG, CONTENT, META, TextTokenizer, Tokenizer, meta_text
from grainline.errors import UserError
from grainline.files import read_settings
from grainline.system import read_plain

_CLIP_MERGES = 49_152 - 256 - 2  # of the 262,144 in CLIP's published list
_ROUND, _FILLED = (8, 100), (128, 0.005)  # a table filled up to a round size: by fewer rows, or a share of it

NAMES = "tokenizer.json", "vocab.json", "vocab.txt", "*.model"
"""Files of which a folder with a tokenizer has one or more."""


def _has_tokenizer(folder: Path) -> bool:
    return any(True for name in NAMES for _ in folder.glob(name))


def _resolve(path: str | Path) -> Path:
    """A folder with a tokenizer, or a list of merges (.gz), by its path or name. UserError without one."""
    place = Path(path) if Path(path).exists() else _on_hub(str(path))
    if place.suffix == ".gz" and not place.is_dir():
        return place
    folder = place if place.is_dir() else place.parent
    if not _has_tokenizer(folder) or not (place.is_dir() or any(map(place.match, NAMES))):
        raise UserError(f"no tokenizer in {path}: it holds none of {', '.join(NAMES)}")
    return folder


def _on_hub(name: str) -> Path:
    """The folder into which the hub's files were fetched."""
    # not by a class of transformers: without a network, some return a tokenizer of two entries
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.endswith((".json", ".gz", ".txt", ".model")):
        raise UserError(f"no tokenizer at {name}: give a folder, a tokenizer.json or a Hugging Face name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[*NAMES, "merges.txt", "*.json"]))
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), repr(error))
        wrong = f"the Hugging Face hub gave no tokenizer of that name ({reason})"
        raise UserError(f"no folder {name} here, and {wrong}; download it and give its folder") from None


def _in_open_clip() -> Path | None:
    """CLIP's vocabulary, by the list of installed files: importing the package would import torchvision."""
    try:
        files = metadata.files("open_clip_torch") or []
    except metadata.PackageNotFoundError:
        return None
    places = [Path(str(file.locate())) for file in files if file.name == "bpe_simple_vocab_16e6.txt.gz"]
    return next((place for place in places if place.is_file()), None)


def read_tokenizer(path: str | Path) -> TextTokenizer:
    """A tokenizer of any kind from a folder, a file in it or a Hugging Face name.

    A folder of `TextTokenizer.save` is read as it was saved, a .txt.gz as CLIP's list of merges, every other
    folder by transformers. Raises UserError for what cannot be read, or was saved as another tokenizer.
    """
    place = _resolve(path)
    try:
        if place.is_dir():
            return _saved(place) if (place / META).is_file() else from_folder(place)
        lines = gzip.decompress(read_plain(place)).decode("utf-8").splitlines()[1 : 1 + _CLIP_MERGES]
        return Tokenizer([(a, b) for a, b in map(str.split, lines)], str(place))
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"cannot read the tokenizer {place}: {error}") from error


def _saved(folder: Path) -> TextTokenizer:
    file, meta = folder / CONTENT, folder / META
    settings, kind = read_settings(folder / CONFIG), read_settings(meta).get("kind")
    written = read_plain(meta)
    try:
        content = read_plain(file)
        backend = tokenizers.Tokenizer.from_str(content.decode())
        tokenizer = TextTokenizer(backend, str(kind), settings, str(file))
    except Exception as error:  # `save` wrote it whole; the library knows no narrower one
        raise UserError(f"the tokenizer {file} is damaged; copy it and {meta.name} again") from error
    # without the checksum: as older versions wrote it
    if written not in [meta_text(tokenizer, x).encode() for x in (content, None)]:
        wrong = "are not of one tokenizer: one is damaged or was changed"
        raise UserError(f"{file} and {meta.name} beside it {wrong}; copy both again")
    return tokenizer


def load_tokenizer(
    path: str | Path | None = None, *, checkpoint: str | Path | None = None, vocab: int | None = None
) -> TextTokenizer:
    """The tokenizer that goes with a checkpoint; never a silent stand-in.

    path        a folder, a file or a Hugging Face name; it comes first
    checkpoint  else a folder of weights, if it holds a tokenizer
                else CLIP's vocabulary inside an installed open_clip_torch
    vocab       size of the model's token table; another size is an error. Only a table that was filled up to
                a round size (a multiple of 8 or 100, less than 128 rows or 0.5 % more) passes with a warning
    """
    if path is None and checkpoint is not None and _has_tokenizer(Path(checkpoint)):
        path = checkpoint
    where, path = str(path or "the vocabulary of open_clip_torch"), path or _in_open_clip()
    if path is None:
        where = "" if checkpoint is None else f" in {checkpoint}"
        advice = "`pip install --no-deps open_clip_torch` brings CLIP's vocabulary"
        raise UserError(f"no tokenizer found{where}; name a folder that holds one, or {advice}")
    tokenizer = read_tokenizer(path)
    if vocab is not None and tokenizer.vocab != vocab:
        filled = 0 < vocab - tokenizer.vocab < max(_FILLED[0], _FILLED[1] * vocab)
        if not filled or all(vocab % number for number in _ROUND):
            wrong = f"{where} has {tokenizer.vocab} tokens, the model {vocab}"
            raise UserError(f"{wrong}; name the tokenizer that the model was trained with")
        rows = f"a table of {vocab} rows: taken for a table filled up to a round size"
        warnings.warn(f"{where} has {tokenizer.vocab} tokens and the model {rows}", stacklevel=2)
    return tokenizer
