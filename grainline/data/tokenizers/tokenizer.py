"""The interface of a tokenizer, what all tokenizers share, and CLIP-shaped byte-pair encoding; word dropout.

Byte-pair encoding: a text is cleaned (`captions.clean`) and lower-cased; CLIP's pattern splits it into words,
digits and runs of other marks; every word becomes its UTF-8 bytes, the last one marked with `</w>`; merges
are applied in the order in which they were learnt. Tokenizers of the transformers library leave out most of
the cleaning.
"""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import tokenizers
from tokenizers import models, normalizers, processors

from grainline.data.captions import clean
from grainline.data.tokenizers import bpe
from grainline.data.tokenizers.bpe import BEGIN, END, SUFFIX
from grainline.errors import UserError

# Loader workers are processes already. Unset, the library would start threads in the parent, then find
# itself forked and print a warning in every worker.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SMALLEST = 256  # fewer tokens are no vocabulary but the empty shell that a failed download leaves

CONTENT, META = "tokenizer.json", "tokenizer_meta.json"

_CACHED_WORDS = 200_000  # about 40 MB


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


class Tokenizer(TextTokenizer):
    """CLIP's tokenizer.

    >>> toy = Tokenizer.train(["a cat's mat"] * 2, vocab=530)
    >>> ids, truncated = toy.encode(["A CAT'S mat", "a"], context=4)
    >>> [toy.pieces(row)[1:] for row in ids], truncated
    ([['a</w>', 'cat</w>', '<|endoftext|>'], ['a</w>', '<|endoftext|>']], [2, 0])
    >>> [toy.decode(word) for word in toy.words("A cat's hat, 24")]
    ['a', 'cat', "'s", 'hat', ',', '2', '4']
    """

    begin: int
    end: int
    kind = "clip"

    def __init__(
        self, vocabulary: Mapping[str, int], merges: bpe.Merges, where: str = "the vocabulary"
    ) -> None:
        """where: the origin of the vocabulary, for error messages"""
        check_full(vocabulary, where)
        missing = [token for token in (BEGIN, END) if token not in vocabulary]
        if missing:
            raise unlike_clip(where, f"it has no {missing[0]}")
        numbers = [number for number in vocabulary.values() if isinstance(number, int)]
        if sorted(numbers) != list(range(len(vocabulary))):
            raise unlike_clip(where, f"its ids are not 0 to {len(vocabulary) - 1}")
        try:
            model = models.BPE(vocab=dict(vocabulary), merges=list(merges), end_of_word_suffix=SUFFIX)
        except Exception as error:  # the library knows no narrower one
            raise unlike_clip(where, str(error)) from error
        self._backend = tokenizers.Tokenizer(model)
        self._backend.pre_tokenizer = bpe.splitter()
        self._backend.add_special_tokens([BEGIN, END])
        self._words: dict[str, list[int]] = {}
        self.vocab = len(vocabulary)
        self.begin, self.end, self.around = vocabulary[BEGIN], vocabulary[END], 2
        self.pad = 0  # a real token as well, as in CLIP: masks come from lengths, never from ids

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.from_json, (self.to_json(),)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        lines = [self.cleaned(text).split(" ") for text in texts]
        # no merge crosses a blank, so each word is encoded only once
        if len(self._words) > _CACHED_WORDS:
            self._words.clear()
        new = list({word for line in lines for word in line} - self._words.keys())
        encodings = self._backend.encode_batch_fast(new, add_special_tokens=False)
        self._words.update(zip(new, (encoding.ids for encoding in encodings), strict=True))
        return [[number for word in line for number in self._words[word]] for line in lines]

    def cleaned(self, text: str) -> str:
        return clean(text).lower()

    def _token_spans(self, text: str) -> list[tuple[int, int]]:
        return list(self._backend.encode(self._input(text), add_special_tokens=False).offsets)

    def decode(self, ids: Iterable[int]) -> str:
        """Lower case, one space after every word."""
        letters = "".join(piece for piece in self.pieces(ids) if piece not in (BEGIN, END))
        data = b"".join(
            b" " if part == SUFFIX else bytes(bpe.BYTES[letter] for letter in part)
            for part in re.split(f"({SUFFIX})", letters)
        )
        return data.decode("utf-8", "replace").strip()

    def to_json(self) -> str:
        full = tokenizers.Tokenizer.from_str(self._backend.to_str())
        blanks = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
        full.normalizer = normalizers.Sequence([normalizers.NFC(), blanks, normalizers.Lowercase()])
        full.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, self.begin), (END, self.end)]
        )
        return full.to_str(pretty=True)

    @staticmethod
    def from_json(text: str, where: str = "the tokenizer") -> "Tokenizer":
        """From the content of a `tokenizer.json`. Raises UserError unless it is CLIP-shaped."""
        try:
            content = json.loads(text)
            model = content["model"]
            vocabulary = dict(model["vocab"]) | {x["content"]: x["id"] for x in content["added_tokens"]}
            merges = bpe.pairs(x if isinstance(x, str) else " ".join(x) for x in model["merges"])
            suffix = model["end_of_word_suffix"]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise unlike_clip(where, "no byte-pair encoding in it") from error
        if suffix != SUFFIX:
            raise unlike_clip(where, f"its words end in {suffix!r}, not {SUFFIX!r}")
        return Tokenizer(vocabulary, merges, where)

    def meta(self) -> dict[str, Any]:
        return super().meta() | {"pad": self.pad}

    @staticmethod
    def train(texts: Iterable[str], vocab: int) -> "Tokenizer":
        """Learn merges from captions: at most `vocab` tokens, fewer if no pair occurs twice any more.

        The same captions give the same tokenizer, in any order and on any number of threads.
        """
        if vocab < bpe.SMALLEST:
            raise UserError(
                f"vocab is {vocab}; a trained tokenizer needs {bpe.SMALLEST} at least (all bytes twice)"
            )
        merges = bpe.learn(bpe.count_words(texts), vocab - bpe.SMALLEST)
        return Tokenizer(bpe.vocabulary(merges), merges)


def unlike_clip(where: str, why: str) -> UserError:
    return UserError(
        f"{where} is not a CLIP-shaped tokenizer: {why}; give one of CLIP, SigLIP, SigLIP 2 or BERT"
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
