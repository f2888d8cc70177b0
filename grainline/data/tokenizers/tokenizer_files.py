"""The tokenizer of a folder, a file, a checkpoint or a Hugging Face name."""

import gzip
import json
import re
import warnings
from importlib import metadata
from pathlib import Path

from grainline.data.formats.plain import regular
from grainline.data.tokenizers import bpe
from grainline.data.tokenizers.library_tokenizer import LibraryTokenizer, check_added, read_pipeline
from grainline.data.tokenizers.tokenizer import CONTENT, META, TextTokenizer, Tokenizer, meta_text
from grainline.errors import UserError

_CLIP_MERGES = 49_152 - 256 - 2  # of the 262,144 in CLIP's published list
_ROUND, _FILLED = 8, 128  # a table filled up to a round size: a multiple of the first, fewer rows more

NAMES = ("tokenizer.json", "vocab.json", "spiece.model", "vocab.txt")
"""Files of which one is enough (vocab.json has its merges.txt); the first that exists is read."""


def _file_in(folder: Path) -> Path | None:
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def _resolve_file(path: str | Path) -> Path:
    """The tokenizer file of a path or of a name on the hub. Raises UserError without one."""
    place = Path(path) if Path(path).exists() else _on_hub(str(path))
    file = _file_in(place) if place.is_dir() else place
    if file is not None:
        return file
    if (place / "tokenizer.model").is_file():
        raise UserError(f"{path} holds only tokenizer.model, which is not read; fetch its tokenizer.json too")
    raise UserError(f"no tokenizer in {path}: it holds neither {', '.join(NAMES[:-1])} nor {NAMES[-1]}")


def _on_hub(name: str) -> Path:
    """The folder into which the hub's files were fetched."""
    # not by a class of transformers: without a network, some return a tokenizer of two entries
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.endswith((".json", ".gz", ".txt", ".model")):
        raise UserError(f"no tokenizer at {name}: give a folder, a tokenizer.json or a Hugging Face name")
    from huggingface_hub import snapshot_download

    try:
        further = "merges.txt", "tokenizer_config.json", "config.json"
        return Path(snapshot_download(name, allow_patterns=[*NAMES, *further]))
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), repr(error))
        raise UserError(
            f"no folder {name} here, and the Hugging Face hub gave no tokenizer of that name ({reason}); "
            "download it and give its folder"
        ) from None


def _in_open_clip() -> Path | None:
    """CLIP's vocabulary, by the list of installed files: importing the package would import torchvision."""
    try:
        files = metadata.files("open_clip_torch") or []
    except metadata.PackageNotFoundError:
        return None
    places = [Path(str(file.locate())) for file in files if file.name == "bpe_simple_vocab_16e6.txt.gz"]
    return next((place for place in places if place.is_file()), None)


def read_tokenizer(path: str | Path) -> TextTokenizer:
    """A tokenizer of any kind from a folder, a file or a Hugging Face name; a run's own is read like others.

    Files are tokenizer.json, vocab.json beside merges.txt or a .txt.gz of CLIP, spiece.model of SigLIP,
    vocab.txt of BERT. Raises UserError for what cannot be read, or was saved as another tokenizer.
    """
    file = _resolve_file(path)
    meta = file.with_name(META)
    if file.name != CONTENT or not meta.is_file():
        return _read(file)
    try:
        tokenizer, meta_bytes = _read(file), meta.read_bytes()
        contents = file.read_bytes(), None  # None: as older versions wrote it
    except (OSError, UserError) as error:  # `save` wrote it whole
        raise UserError(f"the tokenizer {file} is damaged; copy it and {meta.name} again") from error
    if meta_bytes not in [meta_text(tokenizer, content).encode() for content in contents]:
        raise UserError(
            f"{file} and {meta.name} beside it are not of one tokenizer: one is damaged or was changed; "
            "copy both again"
        )
    return tokenizer


def load_tokenizer(
    path: str | Path | None = None, *, checkpoint: str | Path | None = None, vocab: int | None = None
) -> TextTokenizer:
    """The tokenizer that goes with a checkpoint; never a silent stand-in.

    path        a folder, a file or a Hugging Face name; it comes first
    checkpoint  else a folder of weights, if it holds a tokenizer
                else CLIP's vocabulary inside an installed open_clip_torch
    vocab       size of the model's token table; another size is an error. Only a table that was filled
                up to a round size (a multiple of 8, less than 128 rows more) passes, and a warning says so.
    """
    if path is not None:
        tokenizer, where = read_tokenizer(path), str(path)
    elif checkpoint is not None and _file_in(Path(checkpoint)) is not None:
        tokenizer, where = read_tokenizer(checkpoint), str(checkpoint)
    else:
        file = _in_open_clip()
        if file is None:
            raise UserError(
                f"no tokenizer found{'' if checkpoint is None else f' in {checkpoint}'}; name a folder that "
                "holds tokenizer.json, or vocab.json and merges.txt, or put CLIP's vocabulary in reach with "
                "`pip install --no-deps open_clip_torch`"
            )
        tokenizer, where = read_tokenizer(file), "the vocabulary of open_clip_torch"
    if vocab is not None and tokenizer.vocab != vocab:
        if vocab % _ROUND or not 0 < vocab - tokenizer.vocab < _FILLED:
            raise UserError(
                f"{where} has {tokenizer.vocab} tokens, the model {vocab}; "
                "name the tokenizer that the model was trained with"
            )
        warnings.warn(
            f"{where} has {tokenizer.vocab} tokens and the model a table of {vocab} rows: "
            "taken for a table filled up to a round size",
            stacklevel=2,
        )
    return tokenizer


def _read(file: Path) -> TextTokenizer:
    try:
        regular(file)
        if file.suffix == ".gz":
            lines = gzip.decompress(file.read_bytes()).decode("utf-8").split("\n")
            merges = bpe.pairs(lines[1 : 1 + _CLIP_MERGES])
            return Tokenizer(bpe.vocabulary(merges), merges, str(file))
        pipeline = None if file.name == "vocab.json" else read_pipeline(file)
        if pipeline is not None:
            return LibraryTokenizer(*pipeline, str(file))
        check_added(file, (bpe.BEGIN, bpe.END))
        if file.name == "vocab.json":
            return _from_two_files(file)
        return Tokenizer.from_json(file.read_text(encoding="utf-8"), str(file))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the tokenizer {file}: {error}") from error


def _from_two_files(file: Path) -> Tokenizer:
    merges = file.with_name("merges.txt")
    if not merges.is_file():
        raise UserError(f"{file} needs a merges.txt beside it; there is none")
    try:
        vocabulary = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is no JSON of ids by token: {error}") from error
    return Tokenizer(vocabulary, bpe.pairs(merges.read_text(encoding="utf-8").split("\n")), str(file))
