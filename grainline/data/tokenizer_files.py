"""Where the files of a tokenizer are: inside an installed open_clip_torch."""

from importlib import metadata
from pathlib import Path


def in_open_clip() -> Path | None:
    """Found in the list of installed files: importing the package would import torchvision."""
    try:
        files = metadata.files("open_clip_torch") or []
    except metadata.PackageNotFoundError:
        return None
    places = [Path(str(file.locate())) for file in files if file.name == "bpe_simple_vocab_16e6.txt.gz"]
    return next((place for place in places if place.is_file()), None)
