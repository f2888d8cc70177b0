"""Where the files of a tokenizer are: in a folder, on the Hugging Face hub, inside an open_clip_torch."""

import re
from importlib import metadata
from pathlib import Path

from grainline.errors import UserError

NAMES = ("tokenizer.json", "vocab.json", "spiece.model", "vocab.txt")
"""Files of which one is enough (vocab.json has its merges.txt); the first that is there is read."""

_SUFFIXES = (".json", ".gz", ".txt", ".model")  # of files, not of names on the hub
_BESIDE = ("merges.txt", "tokenizer_config.json", "config.json")


def held_in(folder: Path) -> Path | None:
    """The file of a folder that is to be read; None if it holds none."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def located(path: str | Path) -> Path:
    """The file that a path or a name on the hub means. UserError if there is none."""
    place = Path(path) if Path(path).exists() else _on_hub(str(path))
    file = held_in(place) if place.is_dir() else place
    if file is not None:
        return file
    if (place / "tokenizer.model").is_file():
        raise UserError(f"{path} holds only tokenizer.model, which is not read; fetch its tokenizer.json too")
    raise UserError(f"no tokenizer in {path}: it holds neither {', '.join(NAMES[:-1])} nor {NAMES[-1]}")


def _on_hub(name: str) -> Path:
    """The folder into which the hub's files were fetched. Files, not a class of the transformers library:

    some of those return a tokenizer of two entries without a network and say nothing.
    """
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is None or Path(name).suffix in _SUFFIXES:
        raise UserError(f"no tokenizer at {name}: give a folder, a tokenizer.json or a Hugging Face name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[*NAMES, *_BESIDE]))
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), repr(error))
        raise UserError(
            f"no folder {name} here, and the Hugging Face hub gave no tokenizer of that name ({reason}); "
            "download it and give its folder"
        ) from None


def in_open_clip() -> Path | None:
    """CLIP's vocabulary, by the list of installed files: importing the package would import torchvision."""
    try:
        files = metadata.files("open_clip_torch") or []
    except metadata.PackageNotFoundError:
        return None
    places = [Path(str(file.locate())) for file in files if file.name == "bpe_simple_vocab_16e6.txt.gz"]
    return next((place for place in places if place.is_file()), None)
