"""Tokenizer files of SigLIP, SigLIP 2 and BERT, read into one pipeline of the tokenizers library.

A file gives the vocabulary, the settings beside it a few switches, and the kind everything else:
  bert     WordPiece. `[CLS] text [SEP]`; small letters, accents and Chinese characters as the settings say.
  siglip   Unigram of sentencepiece. `text </s>`; small letters, no punctuation, single blanks.
  siglip2  Gemma's byte-pair encoding, where a blank is a letter as any other. `text <eos>`; small letters.

Differs from the transformers library (5.x) in three places, in each of which it would read a trained model's
texts in another way than the training did:
  - SigLIP 2 folders that still name GemmaTokenizer get small letters too: all of them were trained on those;
  - a BERT whose settings do not speak of small letters keeps what its tokenizer.json says;
  - a literal `</s>` in a text for SigLIP loses its marks like all punctuation and never ends the text.
And from sentencepiece in one place, because the tokenizers library does: a character that its table replaces
(`²`) takes a combining mark behind it along.
"""

import base64
import json
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from grainline.data.tokenizers.tokenized import CONTENT, META, check_full
from grainline.errors import UserError

BLANK = "▁"  # how sentencepiece writes a blank

_CLASSES = {
    "BertTokenizer": "bert",
    "SiglipTokenizer": "siglip",
    "Siglip2Tokenizer": "siglip2",
    "GemmaTokenizer": "siglip2",
}
_FORMS = {"bert": "a WordPiece", "siglip": "a Unigram", "siglip2": "Gemma's"}
_UNSAID = ("PreTrainedTokenizer", "TokenizersBackend")  # classes of the library that read any pipeline
_BERTS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


class Pipeline(NamedTuple):
    """A tokenizer of the tokenizers library with every step in it, from the text to the end token."""

    kind: str  # bert, siglip or siglip2
    backend: tokenizers.Tokenizer


def form_of(content: Mapping[str, Any]) -> str | None:
    """The kind whose form the content of a tokenizer.json has; None: another one, CLIP's perhaps."""
    model = content.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        return None
    if isinstance(model["vocab"], list):
        return "siglip"
    if "merges" not in model:
        return "bert"
    return "siglip2" if model.get("byte_fallback") else None


def read_pipeline(file: Path) -> Pipeline | None:
    """From a tokenizer.json, spiece.model or vocab.txt with its tokenizer_config.json beside it.

    None for a file of another form: CLIP's, or nothing that can be read. What `TextTokenizer.save` wrote is
    whole and taken as it is. Raises UserError for what is broken or called something else, OSError for what
    cannot be read.
    """
    config, content = _settings(file.with_name("tokenizer_config.json")), dict[str, Any]()
    if file.name == "spiece.model":
        kind, backend = "siglip", _from_sentencepiece(file)
    elif file.name == "vocab.txt":
        kind, backend = "bert", _from_words(file, config)
    else:
        text = file.read_text(encoding="utf-8")
        content = _parsed(text)
        form = form_of(content)
        if form is None:
            return None
        kind, backend = form, _backend(text, str(file))
        if file.name == CONTENT and file.with_name(META).is_file():
            return Pipeline(kind, backend)
    _check_called(kind, config, file)
    backend.no_truncation()
    backend.no_padding()
    _ASSEMBLE[kind](backend, content, config, str(file))
    return Pipeline(kind, backend)


def _parsed(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _settings(file: Path) -> dict[str, Any]:
    """A JSON file of settings; empty where there is none."""
    if not file.is_file():
        return {}
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is no JSON: {error}; fetch it again") from None
    if not isinstance(settings, dict):
        raise UserError(f"{file} holds a {type(settings).__name__}, not settings by name; fetch it again")
    return settings


def _backend(text: str, where: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library knows no narrower one
        raise UserError(f"{where} is no tokenizer of the tokenizers library: {error}") from None


def _check_called(kind: str, config: Mapping[str, Any], file: Path) -> None:
    """UserError if the settings beside the file speak of another tokenizer. Of a Unigram they must speak."""
    called = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    if called and called not in _UNSAID:
        if _CLASSES.get(called) != kind:
            raise UserError(
                f"the tokenizer {file} is {_FORMS[kind]} and called a {called}; "
                "known are those of CLIP, SigLIP, SigLIP 2 and BERT"
            )
    elif kind == "siglip":
        model = _settings(file.with_name("config.json")).get("model_type")
        if model != "siglip":
            raise UserError(
                f"the tokenizer {file} is a Unigram, and nothing beside it says whether it is SigLIP's; "
                "fetch its tokenizer_config.json too"
            )


# --- from a vocabulary to every step ---


def _bert(
    backend: tokenizers.Tokenizer, content: Mapping[str, Any], config: Mapping[str, Any], where: str
) -> None:
    original = content.get("normalizer") or {}
    lower = config.get("do_lower_case", original.get("lowercase", True))
    chinese = config.get("tokenize_chinese_chars", original.get("handle_chinese_chars", True))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=config.get("strip_accents", original.get("strip_accents")),
        lowercase=lower,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    names = {key: _token(config, key, usual) for key, usual in _BERTS.items()}
    backend.add_special_tokens([name for name in names.values() if backend.token_to_id(name) is not None])
    _frame(backend, names["cls"], names["sep"], where)


def _siglip(
    backend: tokenizers.Tokenizer, content: Mapping[str, Any], config: Mapping[str, Any], where: str
) -> None:
    """What `LibraryTokenizer` does in Python before stands here as well, for other readers of the file.

    There a blank stands before the text from the start, so marks that go from its beginning with a blank
    among them leave a second one. What begins with that blank has been read in Python already.
    """
    mark = rf"[\s{re.escape(string.punctuation)}]"
    charsmap = backend.normalizer if not content else _precompiled(content.get("normalizer"))
    steps: list[Any] = [normalizers.Lowercase()] if config.get("do_lower_case", True) else []
    steps += [
        normalizers.Replace(Regex(rf"\A{mark}*\s{mark}*(?!{mark}|\z)"), f"{BLANK} "),
        normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
        *([] if charsmap is None else [charsmap]),
        normalizers.Replace(Regex(" {2,}"), " "),  # some characters become a blank and another one
    ]
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, "always")
    backend.decoder = decoders.Metaspace(BLANK, "always")
    end = _token(config, "eos", "</s>")
    if backend.token_to_id(end) is not None:
        backend.add_special_tokens([end])
    _frame(backend, None, end, where)


def _siglip2(
    backend: tokenizers.Tokenizer,
    content: Mapping[str, Any],  # noqa: ARG001
    config: Mapping[str, Any],
    where: str,
) -> None:
    before, behind = _ends(backend)  # as its file has it, unless the settings say otherwise
    begin = _token(config, "bos", "<bos>") if config.get("add_bos_token", before) else None
    end = _token(config, "eos", "<eos>") if config.get("add_eos_token", behind) else None
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", BLANK)])
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    _frame(backend, begin, end, where)


_ASSEMBLE = {"bert": _bert, "siglip": _siglip, "siglip2": _siglip2}


def _token(config: Mapping[str, Any], key: str, usual: str) -> str:
    """The name of a special token; settings give it as a string or with its properties."""
    token = config.get(f"{key}_token") or usual
    return str(token["content"] if isinstance(token, dict) else token)


def _frame(backend: tokenizers.Tokenizer, begin: str | None, end: str | None, where: str) -> None:
    """Make the pipeline put these tokens around every text."""
    names = [name for name in (begin, end) if name is not None]
    missing = [name for name in names if backend.token_to_id(name) is None]
    if missing:
        raise UserError(f"the tokenizer {where} has no {missing[0]}, which stands around every text")
    template = " ".join(part for part in (begin, "$A", end) if part is not None)
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, backend.token_to_id(name)) for name in names]
    )


def _ends(backend: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """Whether the pipeline puts a token before every text, and one behind."""
    special = backend.encode("a").special_tokens_mask
    return bool(special[0]), bool(special[-1])


def _precompiled(normalizer: Any) -> normalizers.Normalizer | None:
    """The table of characters of sentencepiece inside a normalizer of a tokenizer.json."""
    if not isinstance(normalizer, dict):
        return None
    if normalizer.get("type") == "Precompiled":
        return normalizers.Precompiled(base64.b64decode(normalizer["precompiled_charsmap"]))
    tables = (_precompiled(one) for one in normalizer.get("normalizers", []))
    return next((one for one in tables if one is not None), None)


# --- older files ---


def _from_words(file: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """vocab.txt of BERT: one token a line, the number of the line is its id."""
    lines = file.read_text(encoding="utf-8").split("\n")
    words = {word: number for number, word in enumerate(lines) if word}
    return tokenizers.Tokenizer(models.WordPiece(words, unk_token=_token(config, "unk", "[UNK]")))


def _from_sentencepiece(file: Path) -> tokenizers.Tokenizer:
    """spiece.model: a protocol buffer of sentencepiece, which need not be installed to read it."""
    try:
        from google.protobuf.message import DecodeError
        from transformers.convert_slow_tokenizer import import_protobuf

        proto = import_protobuf().ModelProto()
    except ImportError as error:
        raise UserError(
            f"{file} is read with protobuf, which is not here ({error}); `pip install protobuf`, "
            "or give a folder that holds tokenizer.json"
        ) from None
    try:
        proto.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise UserError(f"{file} is no model of sentencepiece: {error}; fetch it again") from None
    trained = proto.trainer_spec
    check_full({piece.piece: i for i, piece in enumerate(proto.pieces)}, str(file))
    if trained.model_type != 1:
        raise UserError(f"{file} is no Unigram, as all SigLIPs have; give the spiece.model of a SigLIP")
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    model = models.Unigram(pieces, unk_id=trained.unk_id, byte_fallback=trained.byte_fallback)
    backend = tokenizers.Tokenizer(model)
    table = proto.normalizer_spec.precompiled_charsmap
    if table:
        backend.normalizer = normalizers.Precompiled(table)
    return backend
