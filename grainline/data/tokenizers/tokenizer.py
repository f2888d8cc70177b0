"""The interface of a tokenizer, byte-pair encodings trained on captions, and word dropout.

Byte-pair encoding: CLIP's pattern splits a cleaned, lower-cased text into words, digits and runs of other
marks; every word becomes its UTF-8 bytes, the last one marked with `</w>`; merges are applied in the order in
which they were learnt.
"""

import copy
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from grainline.data.captions import clean
from grainline.errors import UserError

# Loader workers are processes already. Unset, the library would start threads in the parent, then find
# itself forked and print a warning in every worker.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SMALLEST = 256  # fewer tokens are no vocabulary but the empty shell that a failed download leaves

CONTENT, META, CONFIG = "tokenizer.json", "tokenizer_meta.json", "tokenizer_config.json"
KINDS = "clip", "transformers", "open_clip"  # texts are cleaned and lower-cased, left as they are, or cleaned

BEGIN, END = "<|startoftext|>", "<|endoftext|>"
SUFFIX = "</w>"  # marks the last letter of a word
LONGEST = 1000  # bytes of a word: learning takes the square of it, a minute for one word of 100 kB

_PATTERN = r"(?i:<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+)"

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())  # a visible letter for every byte, in CLIP's order
_NO_MERGES = 2 * len(BYTES) + 2  # tokens of a vocabulary without a single merge

# A letter of the private use area for every letter that ends a word.
_LAST = {letter: chr(0xE000 + i) for i, letter in enumerate(BYTES)}

_CACHED_WORDS = 200_000  # about 40 MB
_MASKS = {"[CLS]": "[MASK]", "<s>": "<mask>"}  # by the first token: others that name a mask never trained it
_PLACEHOLDER = re.compile(r"\[unused\d+\]").fullmatch


class Tokenized(NamedTuple):
    """Token ids of some texts, each from its begin token to its end token."""

    ids: list[list[int]]
    truncated_tokens: list[int]  # tokens of each text that did not fit


class MaskTokens(NamedTuple):
    """The tokens that may replace a word in word dropout."""

    mask: int  # the mask token
    pieces: tuple[int, ...]  # the tokens of texts: no special token, no placeholder


class TextTokenizer:
    """Text to ids and back. Read-only, and cheap to send to another process."""

    vocab: int  # one more than the highest id
    prefix: tuple[int, ...]  # the tokens before every text; begin: the first of them, or None
    suffix: tuple[int, ...]  # those behind it, which stay when it is truncated; end: the last, or None
    around: int  # the number of both
    mask_tokens: MaskTokens | None = None  # None: the vocabulary has no mask token

    def __init__(
        self, backend: tokenizers.Tokenizer, kind: str, settings: Mapping[str, Any], where: str
    ) -> None:
        """backend: all steps; kind: one of KINDS; settings: tokenizer_config.json; where: for messages"""
        if kind not in KINDS:
            raise UserError(f"{where} is of kind {kind}; known are {', '.join(KINDS)}")
        self._backend, self.kind = backend, kind
        reader = "CLIPTokenizer" if kind == "clip" else "PreTrainedTokenizerFast"
        self.settings = {"tokenizer_class": reader, **settings}
        self._words: dict[str, list[int]] = {}
        if kind == "clip":
            backend.normalizer = None  # its part is done by `cleaned`
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(settings.get("split_special_tokens"))
        vocabulary = backend.get_vocab()
        if len(vocabulary) < SMALLEST:
            wrong = f"holds only {len(vocabulary)} tokens, a real vocabulary at least {SMALLEST}"
            raise UserError(f"{where} {wrong}, as after a failed download; fetch the tokenizer's files again")
        self.vocab = max(vocabulary.values()) + 1
        added = backend.get_added_tokens_decoder()
        self.special = {number: token.content for number, token in added.items() if token.special}
        frame = backend.encode("a")
        inner = [i for i, special in enumerate(frame.special_tokens_mask) if not special]
        if not inner:
            raise UserError(f"{where} has no token for the letter a; fetch the tokenizer's files again")
        self.prefix, self.suffix = tuple(frame.ids[: inner[0]]), tuple(frame.ids[inner[-1] + 1 :])
        self.around = len(self.prefix + self.suffix)
        self.begin, self.end = (self.prefix or (None,))[0], (self.suffix or (None,))[-1]
        mask = _MASKS.get(str(backend.id_to_token(self.prefix[0]))) if self.prefix else None
        if mask in self.special.values():
            ordinary = (i for x, i in vocabulary.items() if i not in self.special and not _PLACEHOLDER(x))
            self.mask_tokens = MaskTokens(vocabulary[str(mask)], tuple(sorted(ordinary)))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_words": {}}

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts of any length, without begin and end tokens."""
        inputs = [self.cleaned(text) for text in texts]
        if self.kind != "clip":
            encodings = self._backend.encode_batch_fast(inputs, add_special_tokens=False)
            return [encoding.ids for encoding in encodings]
        # no merge crosses a blank, so each word is encoded only once
        lines = [text.split(" ") for text in inputs]
        if len(self._words) > _CACHED_WORDS:
            self._words.clear()
        new = list({word for line in lines for word in line} - self._words.keys())
        encodings = self._backend.encode_batch_fast(new, add_special_tokens=False)
        self._words.update(zip(new, (encoding.ids for encoding in encodings), strict=True))
        return [[number for word in line for number in self._words[word]] for line in lines]

    def encode(self, texts: Sequence[str], context: int) -> Tokenized:
        """Encoded texts, truncated to `context` tokens. UserError if none fits."""
        assert not isinstance(texts, str)
        return self.build_inputs(self.token_ids(texts), context)

    def build_inputs(self, rows: Sequence[list[int]], context: int) -> Tokenized:
        """Ids between begin and end tokens, truncated to `context` tokens. UserError if none fits."""
        room = context - self.around
        if room < 1:
            least = f"{self.around + 1}: {self.around} stand around every text"
            raise UserError(f"the context is {context} tokens; it must be at least {least}")
        ids = [[*self.prefix, *row[:room], *self.suffix] for row in rows]
        return Tokenized(ids, [max(len(row) - room, 0) for row in rows])

    def cleaned(self, text: str) -> str:
        """The text in which spans count: of a checkpoint the text itself, half characters as `?`."""
        if self.kind == "transformers":
            return text.encode("utf-8", "replace").decode()
        return clean(text).lower() if self.kind == "clip" else clean(text)

    def spans(self, text: str, context: int) -> list[tuple[int, int]]:
        """The place of each id of `encode([text], context)` in cleaned(text): characters, end excluded.

        Begin and end tokens, and blanks alone, are empty spans; bytes of one character share its span.
        """
        text = self.cleaned(text)
        spans, last = list[tuple[int, int]](), 0
        for start, end in self._backend.encode(text, add_special_tokens=False).offsets:
            word = text[start:end].strip()
            start = text.index(word, start) if word else last
            last = start + len(word)
            spans.append((start, last))
        included = spans[: context - self.around]
        last = included[-1][1] if len(included) < len(spans) else len(text)
        return [(0, 0)] * len(self.prefix) + included + [(last, last)] * len(self.suffix)

    def words(self, text: str) -> list[list[int]]:
        """The ids of a text of any length, word by word, without begin and end tokens.

        A word is one of the library: a run of letters; of CLIP also a single digit or a run of other marks,
        of BERT also a mark; of sentencepiece what follows a blank, marks included.
        """
        encoding, before = self._backend.encode(self.cleaned(text), add_special_tokens=False), None
        words: list[list[int]] = []
        for word, number, piece in zip(encoding.word_ids, encoding.ids, encoding.tokens, strict=True):
            if not words or word != before or piece.startswith("▁"):
                words.append([])
            words[-1].append(number)
            before = word
        return words

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Entries of the vocabulary: `</w>` ends a word (CLIP), `##` continues one (BERT), `▁` is a blank."""
        return [str(self._backend.id_to_token(number)) for number in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text, special tokens left out; of CLIP in lower case, one space after every word."""
        pieces = self.pieces(number for number in ids if number not in self.special)
        text = (self._backend.decoder or decoders.ByteLevel()).decode(pieces)
        return str(text).replace(SUFFIX, " ").strip()

    def to_json(self) -> str:
        """The content of a `tokenizer.json` that the tokenizers and transformers libraries read too."""
        full = self._backend
        if self.kind == "clip":
            full, blanks = copy.deepcopy(full), normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
            full.normalizer = normalizers.Sequence([normalizers.NFC(), blanks, normalizers.Lowercase()])
        return full.to_str(pretty=True)

    def meta(self) -> dict[str, Any]:
        """The content of `tokenizer_meta.json` except its checksum."""
        pad = {"pad": 0} if self.kind == "clip" else {}
        return {"kind": self.kind, "vocab": self.vocab, "begin": self.begin, "end": self.end} | pad

    def save(self, folder: str | Path, settings: Mapping[str, Any] | None = None) -> None:
        """Write `tokenizer.json` and its checksum: equal tokenizers write equal bytes.

        Those of checkpoints write `tokenizer_config.json` too, and all if `settings` are to stand there.
        """
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        content = (self.to_json() + "\n").encode()
        (home / CONTENT).write_bytes(content)
        (home / META).write_text(meta_text(self, content), encoding="utf-8")
        if self.kind != "clip" or settings:
            config = json.dumps(self.settings | dict(settings or {}), indent=2, ensure_ascii=False)
            (home / CONFIG).write_text(config + "\n", encoding="utf-8")


def meta_text(tokenizer: TextTokenizer, content: bytes | None) -> str:
    """The content of `tokenizer_meta.json`, with the sha256 of that of `tokenizer.json` if it is given."""
    seal = {} if content is None else {"sha256": hashlib.sha256(content).hexdigest()}
    return json.dumps(tokenizer.meta() | seal, indent=2) + "\n"


# Byte-pair encoding in CLIP's form: its byte alphabet, its split into words, and how merges are learnt.


def clip_vocabulary(merges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Ids in CLIP's order: bytes, bytes that end a word, merges, begin, end."""
    tokens = [*BYTES, *(letter + SUFFIX for letter in BYTES), *(a + b for a, b in merges), BEGIN, END]
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def _splitter() -> pre_tokenizers.PreTokenizer:
    """Cuts lower-cased text into words, single digits and runs of marks, as letters of the byte alphabet."""
    split = pre_tokenizers.Split(tokenizers.Regex(_PATTERN), "removed", invert=True)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _count_words(texts: Iterable[str]) -> Counter[str]:
    """How often each word of up to 1,000 bytes occurs in the cleaned, lower-cased texts."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(clean(text).lower().split())
    pre_tokenizer, words = _splitter(), Counter[str]()
    for chunk, number in chunks.items():
        for word, _ in pre_tokenizer.pre_tokenize_str(chunk):
            if word not in (BEGIN, END) and len(word) <= LONGEST:
                words[word] += number
    return words


def learn_merges(words: Counter[str], number: int) -> list[tuple[str, str]]:
    """The first merges of byte-pair encoding, until they made `number` new tokens or no pair occurs twice.

    Of equally frequent pairs the library merges first the one with the lowest number, and it numbers letters
    that end a word in the order of a hash table, which differs between processes. So here the last letter of
    each word becomes a letter of its own, which the library sorts like all others.
    """
    number = min(number, sum(len(word) - 1 for word in words))  # each shortens a word; room is made for all
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options: Any = {"min_frequency": 2, "show_progress": False, "special_tokens": []}
    letters = [*BYTES, *_LAST.values()]
    trainer = trainers.BpeTrainer(vocab_size=len(letters) + number, initial_alphabet=letters, **options)
    backend.train_from_iterator(_repeated(words), trainer)
    marks = str.maketrans({mark: letter + SUFFIX for letter, mark in _LAST.items()})
    learnt = json.loads(backend.to_str())["model"]["merges"]
    return [(a.translate(marks), b.translate(marks)) for a, b in learnt]


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Every word as often as it was counted: the library counts by itself and takes no counts."""
    for word, number in words.items():
        marked = word[:-1] + _LAST[word[-1]] + " "
        for start in range(0, number, 1000):
            yield marked * min(1000, number - start)


class Tokenizer(TextTokenizer):
    """CLIP's tokenizer."""

    def __init__(self, merges: Sequence[tuple[str, str]], where: str = "the vocabulary") -> None:
        """where: the origin of the merges, for error messages"""
        vocabulary = clip_vocabulary(merges)
        try:
            model = models.BPE(vocab=vocabulary, merges=list(merges), end_of_word_suffix=SUFFIX)
        except Exception as error:  # the library knows no narrower one
            raise UserError(f"{where} holds no merges of CLIP: {error}; fetch it again") from error
        backend = tokenizers.Tokenizer(model)
        backend.pre_tokenizer = _splitter()
        backend.add_special_tokens([BEGIN, END])
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A {END}", special_tokens=[(token, vocabulary[token]) for token in (BEGIN, END)]
        )
        super().__init__(backend, "clip", {}, where)

    @staticmethod
    def train(texts: Iterable[str], vocab: int) -> "Tokenizer":
        """Learn merges from captions: at most `vocab` tokens, fewer if no pair occurs twice any more.

        The same captions give the same tokenizer, in any order and on any number of threads.
        """
        if vocab < _NO_MERGES:
            least = f"{_NO_MERGES} at least (all bytes twice)"
            raise UserError(f"vocab is {vocab}; a trained tokenizer needs {least}")
        return Tokenizer(learn_merges(_count_words(texts), vocab - _NO_MERGES))


# Word dropout of LAPS and SEPS, so that no single word is enough to retrieve an image. Of the dropped words
# (`TextTokenizer.words`) each token becomes the mask token (50 %) or a random token (10 %), or the word is
# deleted; without a mask token (CLIP) it is always deleted. The papers leave open: one word at least stays,
# and words are deleted before a text is truncated.

_MASKED, _REPLACED = 0.5, 0.1


def drop_words(
    words: Sequence[list[int]], probability: float, mask_tokens: MaskTokens | None, rng: Random
) -> list[list[int]]:
    """The ids of words, each dropped with a probability; one at least stays."""
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
