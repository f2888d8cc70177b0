"""The interface of a tokenizer; files and checks that all tokenizers share; word dropout."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import tokenizers

from grainline.errors import UserError

# Loader workers are processes already. Unset, the library would start threads in the parent, then find
# itself forked and print a warning in every worker.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SMALLEST = 256  # fewer tokens are no vocabulary but the empty shell that a failed download leaves

CONTENT, META = "tokenizer.json", "tokenizer_meta.json"


class Tokenized(NamedTuple):
    """Token ids of some texts, each from its begin token to its end token."""

    ids: list[list[int]]
    truncated_tokens: list[int]  # tokens of each text that did not fit


class MaskTokens(NamedTuple):
    """The tokens that may replace a word in word dropout."""

    mask: int  # the mask token
    pieces: tuple[int, ...]  # the tokens of texts: no special token, no placeholder


class TextTokenizer(ABC):
    """Abstract: text to ids and back. Read-only, and cheap to send to another process."""

    vocab: int  # one more than the highest id
    begin: int | None  # the token before every text
    end: int | None  # the token behind every text, which stays when a text is truncated
    around: int  # the number of begin and end tokens
    kind: str  # clip, bert, siglip or siglip2
    mask_tokens: MaskTokens | None = None  # None: the vocabulary has no mask token
    _backend: tokenizers.Tokenizer

    @abstractmethod
    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts of any length, cleaned, without begin and end tokens."""

    def encode(self, texts: Sequence[str], context: int) -> Tokenized:
        """Cleaned and encoded texts, truncated to `context` tokens. UserError if none fits."""
        assert not isinstance(texts, str)
        return self.build_inputs(self.token_ids(texts), context)

    def build_inputs(self, rows: Sequence[list[int]], context: int) -> Tokenized:
        """Ids between begin and end token, truncated to `context` tokens. UserError if none fits."""
        if context <= self.around:
            frame = {2: "begin, one token, end", 1: "one token, end", 0: "one token"}[self.around]
            raise UserError(
                f"the context is {context} tokens; it must be at least {self.around + 1} ({frame})"
            )
        room = context - self.around
        begin, end = ([] if token is None else [token] for token in (self.begin, self.end))
        ids = [[*begin, *row[:room], *end] for row in rows]
        return Tokenized(ids, [max(len(row) - room, 0) for row in rows])

    @abstractmethod
    def cleaned(self, text: str) -> str:
        """The text in which spans count."""

    @abstractmethod
    def _token_spans(self, text: str) -> list[tuple[int, int]]:
        """The place of each id of `token_ids([text])` in cleaned(text)."""

    def spans(self, text: str, context: int) -> list[tuple[int, int]]:
        """The place of each id of `encode([text], context)` in cleaned(text): characters, end excluded.

        Begin and end tokens are empty spans at the ends; bytes of one character share its span. Blanks may
        belong to no token; a token of nothing else is an empty span.
        """
        spans = self._token_spans(text)
        included = spans[: context - self.around]
        last = included[-1][1] if len(included) < len(spans) else len(self.cleaned(text))
        return [(0, 0)] * (self.begin is not None) + included + [(last, last)] * (self.end is not None)

    def _input(self, text: str) -> str:
        """What the tokenizers library reads of a text."""
        return self.cleaned(text)

    def words(self, text: str) -> list[list[int]]:
        """The ids of a text of any length, word by word, without begin and end tokens.

        A word is one of the library: a run of letters; of CLIP also a single digit or a run of other marks,
        of BERT also a mark.
        """
        encoding = self._backend.encode(self._input(text), add_special_tokens=False)
        pairs = zip(encoding.word_ids, encoding.ids, strict=True)
        return [[number for _, number in word] for _, word in groupby(pairs, key=itemgetter(0))]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Entries of the vocabulary: `</w>` ends a word (CLIP), `##` continues one (BERT), `▁` is a blank."""
        return [str(self._backend.id_to_token(number)) for number in ids]

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Readable text, begin and end tokens left out."""

    @abstractmethod
    def to_json(self) -> str:
        """The content of a `tokenizer.json` that the tokenizers and transformers libraries read too."""

    def meta(self) -> dict[str, Any]:
        """The content of `tokenizer_meta.json` except its checksum."""
        return {"kind": self.kind, "vocab": self.vocab, "begin": self.begin, "end": self.end}

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_meta.json`. Equal tokenizers write equal bytes."""
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        content = (self.to_json() + "\n").encode()
        (home / CONTENT).write_bytes(content)
        (home / META).write_text(meta_text(self, content), encoding="utf-8")


def meta_text(tokenizer: TextTokenizer, content: bytes | None) -> str:
    """The content of `tokenizer_meta.json`, with the sha256 of that of `tokenizer.json` if it is given."""
    seal = {} if content is None else {"sha256": hashlib.sha256(content).hexdigest()}
    return json.dumps(tokenizer.meta() | seal, indent=2) + "\n"


def check_full(vocabulary: Mapping[str, int], where: str) -> None:
    """Raises UserError for a vocabulary too small to be complete."""
    if len(vocabulary) < SMALLEST:
        raise UserError(
            f"{where} holds only {len(vocabulary)} tokens, a real vocabulary at least {SMALLEST}; "
            "a failed download leaves such a shell: fetch the tokenizer's files again"
        )


# Word dropout of LAPS and SEPS, so that no single word is enough to retrieve an image. Of the dropped words
# (`TextTokenizer.words`) each token becomes the mask token (50 %) or a random token (10 %), or the word is
# deleted; without a mask token (CLIP) it is always deleted. The papers leave open: one word at least stays,
# and words are deleted before a text is truncated.

_MASKED, _REPLACED = 0.5, 0.1


def drop_words(
    words: Sequence[list[int]], probability: float, mask_tokens: MaskTokens | None, rng: Random
) -> list[list[int]]:
    """The ids of words, each dropped with a probability; one at least stays.

    >>> drop_words([[7], [8, 9]], 1.0, None, Random(0)), drop_words([[7], [8, 9]], 0.0, None, Random(0))
    ([[], [8, 9]], [[7], [8, 9]])
    """
    dropped = [rng.random() < probability for _ in words]
    if words and all(dropped):
        dropped[rng.randrange(len(words))] = False
    out = []
    for word, drop in zip(words, dropped, strict=True):
        outcome = rng.random() if drop and mask_tokens else 1.0
        if not drop:
            out.append(word)
        elif mask_tokens and outcome < _MASKED:
            out.append([mask_tokens.mask] * len(word))
        elif mask_tokens and outcome < _MASKED + _REPLACED:
            out.append(rng.choices(mask_tokens.pieces, k=len(word)))
        else:
            out.append([])
    return out


def encode_word_dropout(
    tokenizer: TextTokenizer, texts: Sequence[str], context: int, probability: float, rng: Random
) -> Tokenized:
    """Tokenize texts into one part each, with word dropout."""
    words = (drop_words(tokenizer.words(text), probability, tokenizer.mask_tokens, rng) for text in texts)
    return tokenizer.build_inputs([list(chain.from_iterable(text)) for text in words], context)
