"""The tokenizer of a checkpoint's folder, as the class of transformers reads it that the folder names.

What is added, because the folder says more or its model learnt otherwise:
  SigLIP     its class needs sentencepiece and gives no places in a text; its steps run on tokenizers here
  SigLIP 2   learnt from small letters: Siglip2Tokenizer replaces GemmaTokenizer, which keeps capitals, as in
             transformers for images of any shape
  open_clip  cleans texts first; sentence-transformers may lower them (`do_lower_case`)
"""

import base64
import re
import string
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from grainline.data.tokenizers.tokenizer import CONFIG, CONTENT, TextTokenizer
from grainline.errors import UserError
from grainline.files import read_settings
from grainline.system import regular

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
        import transformers

        _check_tables(content.get("normalizer"))
        name = _reader(folder, settings, str(config.get("model_type") or ""), complete=bool(content))
        given: dict[str, Any] = {"local_files_only": True}
        given |= {"vocab_file": str(folder / "spiece.model"), "legacy": False} if name == _FAST else {}
        library = getattr(transformers, name).from_pretrained(str(folder), trust_remote_code=False, **given)
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
