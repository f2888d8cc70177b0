"""Tokenizers of SigLIP, SigLIP 2 and BERT on the tokenizers library.

A text is cleaned as for CLIP (`captions.clean`); on clean text the ids are those of the transformers library.
"""

import json
import re
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from grainline.data.captions import clean
from grainline.data.tokenizers.library_files import BLANK, Pipeline
from grainline.data.tokenizers.tokenized import (
    MaskTokens,
    TextTokenizer,
    Tokenized,
    by_word,
    check_full,
    context_error,
)
from grainline.files import write_text

_MASK = "[MASK]"  # BERT's; one that no text encoder was trained on, as SigLIP 2 has it, hides nothing
_PLACEHOLDER = re.compile(r"\[unused\d+\]").fullmatch
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class LibraryTokenizer(TextTokenizer):
    """A tokenizer of the tokenizers library."""

    def __init__(self, pipeline: Pipeline, where: str = "the tokenizer") -> None:
        """where  what the pipeline comes from, for error messages"""
        self.kind, self._backend = pipeline
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.kind, self._backend.to_str())

    def encode(self, texts: Sequence[str], context: int) -> Tokenized:
        assert not isinstance(texts, str)
        if context <= self.around:
            raise context_error(context, self.around)
        room = context - self.around
        inputs = [self._read(text) for text in texts]
        encodings = self._backend.encode_batch_fast(inputs, add_special_tokens=False)
        ids = [self._framed(encoding.ids[:room]) for encoding in encodings]
        return Tokenized(ids, [max(len(encoding.ids) - room, 0) for encoding in encodings])

    def cleaned(self, text: str) -> str:
        return clean(text)

    def spans(self, text: str, context: int) -> list[tuple[int, int]]:
        """Blanks belong to no token; a token of nothing else is an empty span."""
        read = self._read(text)
        in_cleaned = self._places(read, clean(text))
        offsets = self._backend.encode(read, add_special_tokens=False).offsets
        included = offsets[: context - self.around]
        spans, last = [], 0
        for start, end in included:
            places = [place for place in in_cleaned[start:end] if place is not None]
            first, last = (places[0], places[-1] + 1) if places else (last, last)
            spans.append((first, last))
        if len(included) == len(offsets):
            last = len(clean(text))
        return [(0, 0)] * (self.begin is not None) + spans + [(last, last)] * (self.end is not None)

    def words(self, text: str) -> list[list[int]]:
        """A mark is a word in BERT, in SigLIP 2 a part of one."""
        encoding = self._backend.encode(self._read(text), add_special_tokens=False)
        if self.kind != "siglip2":
            return by_word(encoding)
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

    def meta(self) -> dict[str, Any]:
        return {"kind": self.kind, "vocab": self.vocab, "begin": self.begin, "end": self.end}

    def _framed(self, ids: list[int]) -> list[int]:
        begin = [] if self.begin is None else [self.begin]
        return [*begin, *ids, *([] if self.end is None else [self.end])]

    def _read(self, text: str) -> str:
        """The input of the pipeline for a text; for SigLIP that of `canonicalize_text` in transformers.

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


def _unpickle(kind: str, content: str) -> LibraryTokenizer:
    return LibraryTokenizer(Pipeline(kind, tokenizers.Tokenizer.from_str(content)))


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
    kind = tokenizer.meta()["kind"]
    roles = {"bos_token": tokenizer.begin, "eos_token": tokenizer.end, "pad_token": pad}
    out: dict[str, Any] = {
        "tokenizer_class": "CLIPTokenizer" if kind == "clip" else "PreTrainedTokenizerFast",
        "model_max_length": context,
        "padding_side": "right",
        "model_input_names": ["input_ids", "attention_mask"] if masked else ["input_ids"],
        "clean_up_tokenization_spaces": False,
    }
    out |= {role: special[number] for role, number in roles.items() if number in special}
    if kind == "siglip":  # not in the file itself: a reader builds its steps anew
        steps = content["normalizer"]["normalizers"]
        out["do_lower_case"] = any(step["type"] == "Lowercase" for step in steps)
    return out
