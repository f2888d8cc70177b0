"""The byte alphabet of CLIP, its split into words, and how merges of pairs are learnt from captions."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from grainline.data.captions import clean

BEGIN, END = "<|startoftext|>", "<|endoftext|>"
SUFFIX = "</w>"  # marks the last letter of a word
LONGEST = 1000  # bytes of a word: learning takes the square of it, a minute for one word of 100 kB

Merges = Sequence[tuple[str, str]]

_PATTERN = r"(?i:<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+)"


BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())  # a visible letter for every byte, in CLIP's order
SMALLEST = 2 * len(BYTES) + 2  # tokens of a vocabulary without a single merge

# A letter of the private use area for every letter that ends a word.
_LAST = {letter: chr(0xE000 + i) for i, letter in enumerate(BYTES)}


def vocabulary(merges: Merges) -> dict[str, int]:
    """Ids in CLIP's order: bytes, bytes that end a word, merges, begin, end.

    >>> ids = vocabulary([("c", "a"), ("ca", "t</w>")])
    >>> ids["!"], ids["!</w>"], ids["cat</w>"], ids["<|endoftext|>"]
    (0, 256, 513, 515)
    """
    tokens = [*BYTES, *(letter + SUFFIX for letter in BYTES), *(a + b for a, b in merges), BEGIN, END]
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def splitter() -> pre_tokenizers.PreTokenizer:
    """Cuts lower-cased text into words, single digits and runs of marks, as letters of the byte alphabet.

    >>> [word for word, _ in splitter().pre_tokenize_str("it's 42 é!?")]
    ['it', "'s", '4', '2', 'Ã©', '!?']
    """
    split = pre_tokenizers.Split(tokenizers.Regex(_PATTERN), "removed", invert=True)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def count_words(texts: Iterable[str]) -> Counter[str]:
    """How often each word of up to 1,000 bytes occurs in the cleaned, lower-cased texts.

    >>> count_words(["A cat. A dog!", "cat"])
    Counter({'a': 2, 'cat': 2, '.': 1, 'dog': 1, '!': 1})
    """
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(clean(text).lower().split())
    pre_tokenizer, words = splitter(), Counter[str]()
    for chunk, number in chunks.items():
        for word, _ in pre_tokenizer.pre_tokenize_str(chunk):
            if word not in (BEGIN, END) and len(word) <= LONGEST:
                words[word] += number
    return words


def learn(words: Counter[str], number: int) -> list[tuple[str, str]]:
    """The first merges of byte-pair encoding, until they made `number` new tokens or no pair occurs twice.

    Of equally frequent pairs the library merges first the one with the lowest number, and it numbers letters
    that end a word in the order of a hash table, which differs between processes. So here the last letter of
    each word becomes a letter of its own, which the library sorts like all others.
    """
    number = min(number, sum(len(word) - 1 for word in words))  # each shortens a word; room is made for all
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=2 * len(BYTES) + number,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=[*BYTES, *_LAST.values()],
        special_tokens=[],
    )
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
