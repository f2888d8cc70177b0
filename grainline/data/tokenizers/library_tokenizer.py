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
from grainline.data.tokenizers.library_files import BLANK
from grainline.data.tokenizers.tokenized import MaskTokens, TextTokenizer, check_full
from grainline.files import write_text

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
