"""The tokenizer of a folder, a file, a checkpoint or a Hugging Face name.

A folder of a checkpoint is read by the class of transformers that it names. What is added, because the folder
says more or its model learnt otherwise:
  SigLIP     its class needs sentencepiece and gives no places in a text; its steps run on tokenizers here
  SigLIP 2   learnt from small letters: Siglip2Tokenizer replaces GemmaTokenizer, which keeps capitals, as in
             transformers for images of any shape
  open_clip  cleans texts first; sentence-transformers may lower them (`do_lower_case`)
"""

import base64
import gzip
import re
import string
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from grainline.data.tokenizers.tokenizer import CONFIG, CONTENT, META, TextTokenizer, Tokenizer, meta_text
from grainline.errors import UserError
from grainline.files import read_settings
from grainline.system import read_plain, regular

_FAST = "PreTrainedTokenizerFast"  # takes tokenizer.json as it is

_SIGMA = normalizers.Replace(Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς")  # as Python lowers it at the end of a word
_LOWER = [_SIGMA, normalizers.Lowercase()]
_NO_MARKS = normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), "")
_BLANKS = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
_OPEN_CLIP: dict[str, list[Any]] = {  # by `clean` of its config, after `captions.clean`
    "whitespace": [],
    "lower": _LOWER,
    "canonicalize": [normalizers.Replace("_", " "), _NO_MARKS, *_LOWER, *_BLANKS],
}


def from_folder(folder: Path) -> TextTokenizer:
    """The tokenizer of a folder. UserError where it cannot be read, and for code of the folder's own."""
    for file in folder.iterdir():
        if file.suffix in (".json", ".txt", ".model", ".jinja"):
            regular(file)
    settings, content, config, open_clip = (
        read_settings(folder / name) for name in (CONFIG, CONTENT, "config.json", "open_clip_config.json")
    )
    lowers = any(read_settings(x).get("do_lower_case") for x in folder.glob("sentence_*_config.json"))
    with _one_line(folder):
        transformers = import_module("transformers")  # whole also beside a thread that imports it
        _check_tables(content.get("normalizer"))
        name = _reader(folder, settings, str(config.get("model_type") or ""), complete=bool(content))
        options: dict[str, Any] = {"local_files_only": True}
        options |= {"vocab_file": str(folder / "spiece.model"), "legacy": False} if name == _FAST else {}
        library = getattr(transformers, name).from_pretrained(str(folder), trust_remote_code=False, **options)
        if not library.is_fast or library.truncation_side != "right":
            lack = "cuts texts on the left" if library.is_fast else "tells no places in a text"
            raise UserError(f"the tokenizer of {folder}, a {type(library).__name__}, {lack}")
        kind, steps = "transformers", _LOWER if lowers else []
        if name == _FAST:
            _as_siglip(library, settings.get("do_lower_case", True))
        elif open_clip and not config:
            text = open_clip.get("model_cfg", open_clip)["text_cfg"]
            kind, steps = "open_clip", _OPEN_CLIP[text.get("tokenizer_kwargs", {}).get("clean", "whitespace")]
        backend, form = library.backend_tokenizer, type(library).__name__
        _prepend(steps, backend)
        if isinstance(backend.model, models.Unigram):  # written and read, its scores change once, by a hair
            backend = tokenizers.Tokenizer.from_str(backend.to_str())
        own: dict[str, Any] = {"tokenizer_class": form if form == "CLIPTokenizer" and not steps else _FAST}
        own |= {role: token for role, token in library.special_tokens_map.items() if isinstance(token, str)}
        own |= {"split_special_tokens": True} if library.split_special_tokens else {}
        return TextTokenizer(backend, kind, own, str(folder))


def _reader(folder: Path, settings: dict[str, Any], model: str, *, complete: bool) -> str:
    """The class of transformers for a folder; complete: whether it has a tokenizer.json."""
    import transformers

    named = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    if not (named or model or complete):
        raise UserError(f"nothing in {folder} says whose tokenizer it has; fetch its {CONFIG} too")
    if "auto_map" in settings and not hasattr(transformers, named):
        raise UserError(f"the tokenizer of {folder} is code of its own, {named}, which is never run")
    if not complete and any(folder.glob("*.model")) and find_spec("sentencepiece") is None:
        advice = "`pip install sentencepiece`, or fetch its tokenizer.json"
        raise UserError(f"{folder} has its vocabulary in a file of sentencepiece alone; {advice}")
    if (named or model) in ("SiglipTokenizer", "siglip"):
        return _FAST
    if named == "GemmaTokenizer" and model.startswith(("siglip", "fgclip2")):
        text = f"{folder} names GemmaTokenizer, which keeps capitals: Siglip2Tokenizer is taken"
        warnings.warn(text, stacklevel=2)
        return "Siglip2Tokenizer"
    return "AutoTokenizer"


def _prepend(steps: list[Any], backend: tokenizers.Tokenizer, *last: Any) -> None:
    if steps:
        own = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([*steps, *own, *last])


def _as_siglip(library: Any, lower: bool) -> None:
    """The steps of SigLIP's class around its vocabulary.

    A blank stands before the text from the start, so marks that go from its beginning with a blank among them
    leave a second one.
    """
    backend, end = library.backend_tokenizer, library.eos_token or "</s>"
    mark = rf"[\s{re.escape(string.punctuation)}]"
    second = normalizers.Replace(Regex(rf"\A{mark}*\s{mark}*(?!{mark}|\z)"), "▁ ")
    steps = [*(_LOWER if lower else []), second, _NO_MARKS, *_BLANKS]
    _prepend(steps, backend, normalizers.Replace(Regex(" {2,}"), " "))  # some characters become two blanks
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = [(end, library.convert_tokens_to_ids(end))]
    backend.post_processor = processors.TemplateProcessing(f"$A {end}", special_tokens=special)


def _check_tables(normalizer: Any) -> None:
    """Raises an error for a damaged table of sentencepiece, where the library would panic."""
    if isinstance(normalizer, dict):
        for one in normalizer.get("normalizers") or ():
            _check_tables(one)
        if normalizer.get("type") == "Precompiled":
            normalizers.Precompiled(base64.b64decode(normalizer["precompiled_charsmap"], validate=True))


@contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """The library without its reports; its errors and the panics of tokenizers as one line."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).strip().splitlines()), repr(error))
        raise UserError(f"cannot read the tokenizer in {folder}: {reason}") from None
    finally:
        logging.set_verbosity(level)


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
    except UserError:  # of a kind that is not known
        raise
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
