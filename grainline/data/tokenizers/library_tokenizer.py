"""Tokenizers of SigLIP, SigLIP 2 and BERT on the tokenizers library, and their files.

A text is cleaned as for CLIP (`captions.clean`); on clean text the ids are those of the transformers library.

A file gives the vocabulary, tokenizer_config.json a few switches, and the kind everything else:
  bert     WordPiece. `[CLS] text [SEP]`; lower case, accents and Chinese characters as the settings say.
  siglip   Unigram of sentencepiece. `text </s>`; lower case, no punctuation, single blanks.
  siglip2  Gemma's byte-pair encoding, where a blank is a letter as any other. `text <eos>`; lower case.

Differs from the transformers library (5.x), which would read texts in another way than the training did: a
SigLIP 2 that still names GemmaTokenizer is lower-cased too; a BERT without `do_lower_case` follows its
tokenizer.json; `</s>` in a text for SigLIP is punctuation. Differs from sentencepiece: a character that its
table replaces (`²`) takes a combining mark behind it along, as in the tokenizers library.
"""

import base64
import json
import re
import string
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from grainline.data.captions import clean
from grainline.data.tokenizers.tokenizer import CONTENT, META, MaskTokens, TextTokenizer, check_full
from grainline.errors import UserError
from grainline.files import read_settings, write_text

BLANK = "▁"  # how sentencepiece writes a blank
_MASK = "[MASK]"  # BERT's; one that no text encoder was trained on, as SigLIP 2 has it, hides nothing
_PLACEHOLDER = re.compile(r"\[unused\d+\]").fullmatch
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class LibraryTokenizer(TextTokenizer):
    """A tokenizer of the tokenizers library."""

    def __init__(self, kind: str, backend: tokenizers.Tokenizer, where: str) -> None:
        """kind, backend: as `read_pipeline` gives them; where: their origin, for error messages"""
        self.kind, self._backend = kind, backend
        vocabulary = self._backend.get_vocab()
        check_full(vocabulary, where)
        self.vocab = max(vocabulary.values()) + 1
        frame = self._backend.encode("a")
        self.begin = frame.ids[0] if frame.special_tokens_mask[0] else None
        self.end = frame.ids[-1] if frame.special_tokens_mask[-1] else None
        self.around = sum(frame.special_tokens_mask)
        self.mask_tokens = _mask_tokens(self._backend)
        steps = self._backend.normalizer
        self._lower = steps is not None and steps.normalize_str("A") == "a"

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        inputs = [self._input(text) for text in texts]
        encodings = self._backend.encode_batch_fast(inputs, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def cleaned(self, text: str) -> str:
        return clean(text)

    def _token_spans(self, text: str) -> list[tuple[int, int]]:
        read = self._input(text)
        in_cleaned = self._places(read, clean(text))
        spans, last = [], 0
        for start, end in self._backend.encode(read, add_special_tokens=False).offsets:
            places = [place for place in in_cleaned[start:end] if place is not None]
            first, last = (places[0], places[-1] + 1) if places else (last, last)
            spans.append((first, last))
        return spans

    def words(self, text: str) -> list[list[int]]:
        """In SigLIP 2 a word is what follows a blank, marks included."""
        if self.kind != "siglip2":
            return super().words(text)
        encoding = self._backend.encode(self._input(text), add_special_tokens=False)
        words: list[list[int]] = []
        for number, piece in zip(encoding.ids, encoding.tokens, strict=True):
            if not words or piece.startswith(BLANK):
                words.append([])
            words[-1].append(number)
        return words

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._backend.decode([i for i in ids if i not in (self.begin, self.end)])).strip()

    def to_json(self) -> str:
        return self._backend.to_str(pretty=True)

    def _input(self, text: str) -> str:
        """For SigLIP the text that `canonicalize_text` of transformers gives.

        As there, a blank stands before the text from the start, so that punctuation that goes from its
        beginning can leave a second one. Only a text of nothing else has none.
        """
        text = clean(text)
        if self.kind != "siglip":
            return text
        text = BLANK + text.replace(BLANK, " ")
        text = (text.lower() if self._lower else text).translate(_NO_PUNCTUATION)
        text = " ".join(text.split())
        return "" if text == BLANK else text

    def _places(self, read: str, cleaned: str) -> list[int | None]:
        """The place of each character of the input of the pipeline in the cleaned text; None for a blank."""
        if self.kind != "siglip":
            return [None if letter.isspace() else i for i, letter in enumerate(read)]
        # The letters of the cleaned text, in order: one in lower case for each, or two.
        letters = (
            i
            for i, letter in enumerate(cleaned.replace(BLANK, " "))
            for small in (letter.lower() if self._lower else letter)
            if not small.isspace() and small not in string.punctuation
        )
        return [None if letter in (" ", BLANK) else next(letters) for letter in read]


def _mask_tokens(backend: tokenizers.Tokenizer) -> MaskTokens | None:
    vocabulary = backend.get_vocab()
    special = {added.content for added in backend.get_added_tokens_decoder().values() if added.special}
    if _MASK not in special:
        return None
    ordinary = (
        number for piece, number in vocabulary.items() if piece not in special and not _PLACEHOLDER(piece)
    )
    return MaskTokens(vocabulary[_MASK], tuple(sorted(ordinary)))


def write_settings(tokenizer: TextTokenizer, folder: Path, *, context: int, pad: int, masked: bool) -> None:
    """Write `tokenizer_config.json` beside the files of `save`: AutoTokenizer of transformers reads it."""
    content = settings(tokenizer, context=context, pad=pad, masked=masked)
    write_text(folder / "tokenizer_config.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def settings(tokenizer: TextTokenizer, *, context: int, pad: int, masked: bool) -> dict[str, Any]:
    """The content of `tokenizer_config.json`.

    context  longest text of the model, where transformers truncates
    pad      id of padding
    masked   whether the model gets a padding mask; one that has learnt to read padding must not

    Except for CLIP the class is the one that takes tokenizer.json as it is: SiglipTokenizer would read a
    spiece.model, and Siglip2Tokenizer would build its own steps. Special tokens are named only where the file
    has them as such: the library would make one of any other, wherever it stands in a text.
    """
    content = json.loads(tokenizer.to_json())
    special = {entry["id"]: entry["content"] for entry in content["added_tokens"] if entry["special"]}
    roles = {"bos_token": tokenizer.begin, "eos_token": tokenizer.end, "pad_token": pad}
    out: dict[str, Any] = {
        "tokenizer_class": "CLIPTokenizer" if tokenizer.kind == "clip" else "PreTrainedTokenizerFast",
        "model_max_length": context,
        "padding_side": "right",
        "model_input_names": ["input_ids", "attention_mask"] if masked else ["input_ids"],
        "clean_up_tokenization_spaces": False,
    }
    out |= {role: special[number] for role, number in roles.items() if number in special}
    if tokenizer.kind == "siglip":  # not in the file itself: a reader builds its steps anew
        steps = content["normalizer"]["normalizers"]
        out["do_lower_case"] = any(step["type"] == "Lowercase" for step in steps)
    return out


# Reading files

_CLASSES = {
    "BertTokenizer": "bert",
    "SiglipTokenizer": "siglip",
    "Siglip2Tokenizer": "siglip2",
    "GemmaTokenizer": "siglip2",
}
_FORMS = {"bert": "a WordPiece", "siglip": "a Unigram", "siglip2": "Gemma's"}
_UNSAID = ("PreTrainedTokenizer", "TokenizersBackend")  # classes of the library that read any pipeline
_BERTS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def _kind_of(content: Mapping[str, Any]) -> str | None:
    """The kind whose form the content of a tokenizer.json has; None: another one, CLIP's perhaps."""
    model = content.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        return None
    if isinstance(model["vocab"], list):
        return "siglip"
    if "merges" not in model:
        return "bert"
    return "siglip2" if model.get("byte_fallback") else None


def read_pipeline(file: Path) -> tuple[str, tokenizers.Tokenizer] | None:
    """From a tokenizer.json, spiece.model or vocab.txt with its tokenizer_config.json.

    The kind (bert, siglip or siglip2), and a tokenizer with every step from the text to the end token. None
    for a file of another form. A file of `TextTokenizer.save` is complete. Raises UserError for one that is
    broken or belongs to another class, OSError for one that cannot be read.
    """
    config, content = read_settings(file.with_name("tokenizer_config.json")), dict[str, Any]()
    if file.name == "spiece.model":
        kind, backend = "siglip", _from_sentencepiece(file)
    elif file.name == "vocab.txt":
        # one token a line, the number of the line is its id
        lines = file.read_text(encoding="utf-8").split("\n")
        words = {word: number for number, word in enumerate(lines) if word}
        model = models.WordPiece(words, unk_token=_token(config, "unk", "[UNK]"))
        kind, backend = "bert", tokenizers.Tokenizer(model)
    else:
        text = file.read_text(encoding="utf-8")
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return None
        content = parsed if isinstance(parsed, dict) else {}
        form = _kind_of(content)
        if form is None:
            return None
        kind, backend = form, _backend(text, content, str(file))
        if file.name == CONTENT and file.with_name(META).is_file():
            return kind, backend
    _check_class(kind, config, file)
    backend.no_truncation()
    backend.no_padding()
    begin, end = _STEPS[kind](backend, content, config)
    names = [name for name in (begin, end) if name is not None]
    missing = [name for name in names if backend.token_to_id(name) is None]
    if missing:
        raise UserError(f"the tokenizer {file} has no {missing[0]}, which stands around every text")
    check_added(file, backend.get_vocab(kind != "siglip"))  # SigLIP reads no marks, so no token made of them
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(part for part in (begin, "$A", end) if part is not None),
        special_tokens=[(name, backend.token_to_id(name)) for name in names],
    )
    return kind, backend


def check_added(file: Path, known: Collection[str]) -> None:
    """UserError if a tokenizer's file or those beside it add tokens that are neither known nor padding."""
    config = read_settings(file.with_name("tokenizer_config.json"))
    names = {*read_settings(file.with_name("added_tokens.json"))}
    lists = [config.get("added_tokens_decoder")]
    for settings in (config, read_settings(file.with_name("special_tokens_map.json"))):
        lists += [settings.get("additional_special_tokens"), settings.get("extra_special_tokens")]
    with suppress(UserError):  # spiece.model and vocab.txt are no JSON
        lists.append(read_settings(file).get("added_tokens"))
    for entries in lists:
        entries = list(entries.values()) if isinstance(entries, dict) else entries
        for entry in entries if isinstance(entries, list) else ():
            content = entry.get("content") if isinstance(entry, dict) else entry
            names |= {content} if isinstance(content, str) else set()
    names, pad = names - {*known}, str(_token(config, "pad", ""))
    if pad in names:
        text = f"{file} pads with {pad!r}, which in a text is a word here and padding in transformers"
        warnings.warn(text, stacklevel=2)
    if names := names - {pad}:
        few = ", ".join(sorted(names)[:3])
        raise UserError(
            f"the tokenizer {file} has added tokens ({few}), which are not read; give one without"
        )


def _backend(text: str, content: Mapping[str, Any], where: str) -> tokenizers.Tokenizer:
    try:
        _precompiled(content.get("normalizer"))  # the library panics where this is damaged
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library knows no narrower one
        raise UserError(f"{where} is no tokenizer of the tokenizers library: {error}") from None


def _check_class(kind: str, config: Mapping[str, Any], file: Path) -> None:
    """UserError if the settings name another class of tokenizers, or none for a Unigram."""
    called = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    if called and called not in _UNSAID:
        if _CLASSES.get(called) != kind:
            raise UserError(
                f"the tokenizer {file} is {_FORMS[kind]} and called a {called}; "
                "known are those of CLIP, SigLIP, SigLIP 2 and BERT"
            )
    elif kind == "siglip" and read_settings(file.with_name("config.json")).get("model_type") != "siglip":
        raise UserError(
            f"the tokenizer {file} is a Unigram, and nothing beside it says whether it is SigLIP's; "
            "fetch its tokenizer_config.json too"
        )


# The steps of each kind. Each function returns the tokens before and behind every text.

Settings = Mapping[str, Any]
Frame = tuple[str | None, str | None]


def _bert(backend: tokenizers.Tokenizer, content: Settings, config: Settings) -> Frame:
    original = content.get("normalizer") or {}
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", original.get("handle_chinese_chars", True)),
        strip_accents=config.get("strip_accents", original.get("strip_accents")),
        lowercase=config.get("do_lower_case", original.get("lowercase", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    names = {key: _token(config, key, usual) for key, usual in _BERTS.items()}
    backend.add_special_tokens([name for name in names.values() if backend.token_to_id(name) is not None])
    return names["cls"], names["sep"]


def _siglip(backend: tokenizers.Tokenizer, content: Settings, config: Settings) -> Frame:
    """The same normalisation as `LibraryTokenizer._input`, for other readers of the file.

    There a blank stands before the text from the start, so marks that go from its beginning with a blank
    among them leave a second one. A text that begins with that blank has been normalised already.
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
    return None, end


def _siglip2(backend: tokenizers.Tokenizer, _: Settings, config: Settings) -> Frame:
    special = backend.encode("a").special_tokens_mask  # as in its file, unless the settings differ
    begin = _token(config, "bos", "<bos>") if config.get("add_bos_token", special[0]) else None
    end = _token(config, "eos", "<eos>") if config.get("add_eos_token", special[-1]) else None
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", BLANK)])
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return begin, end


_STEPS = {"bert": _bert, "siglip": _siglip, "siglip2": _siglip2}


def _token(config: Mapping[str, Any], key: str, usual: str) -> str:
    """The name of a special token; settings give it as a string or with its properties."""
    token = config.get(f"{key}_token") or usual
    return str(token["content"] if isinstance(token, dict) else token)


def _precompiled(normalizer: Any) -> normalizers.Normalizer | None:
    """The table of characters of sentencepiece inside a normalizer of a tokenizer.json."""
    if not isinstance(normalizer, dict):
        return None
    if normalizer.get("type") == "Precompiled":
        return normalizers.Precompiled(base64.b64decode(normalizer["precompiled_charsmap"], validate=True))
    tables = (_precompiled(one) for one in normalizer.get("normalizers", []))
    return next((one for one in tables if one is not None), None)


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
    table = proto.normalizer_spec.precompiled_charsmap
    try:
        model = models.Unigram(pieces, unk_id=trained.unk_id, byte_fallback=trained.byte_fallback)
        backend = tokenizers.Tokenizer(model)
        if table:
            backend.normalizer = normalizers.Precompiled(table)
    except Exception as error:  # the library knows no narrower one
        raise UserError(f"{file} is damaged: {error}; fetch it again") from None
    return backend
