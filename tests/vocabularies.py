"""Small tokenizers of all kinds as folders on the hub have them, and sentencepiece written plainly."""
# ruff: noqa: RUF001 (typographic marks are what is tested)

import json
import math
import random
import re
import string
import struct
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers

from grainline.data.tokenizers.tokenizer import Tokenizer

CORPUS = [
    "A brown dog runs over the wet sand, and the dog's owner follows it.",
    "Two men can't see the bus; they're waiting in 2023 for number 23.",
    "The café on the left is closed. It's 3.5 m wide, we've measured!",
    "A woman in a red jacket holds a red ball, a red bag and a dog.",
    "The dogs and the cats sit on the sand near the water... waiting.",
] * 3
PROBES = [
    "A dog on the sand.",
    "",
    "THE Café, the dog's ball & the women's bags!",
    "In 2023 there were 1,024 dogs",
    '" a quotation that opens " and - - dashes',
    "...!!?? --",
    "under_score #hash @at 50% $3.50 http://x.org/?a=b&c=d",
    "Ünïcödé Ελληνικά ΣΟΦΟΣ, русский, 日本語 İstanbul 🐕 5² a´b ² ´",
    "x" * 120,
    "two  blanks,\n a new line \t“curly” & &amp; ﬁnal １２",
]


def write(folder: Path, **files: Any) -> Path:
    """Files by name, `_json` in place of `.json`; anything but bytes and text becomes JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content)).encode()
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_bytes(content)
    return folder


def bert_words(lower: bool = True) -> dict[str, int]:
    """A WordPiece learnt from the corpus, laid out as BERT's: special tokens first."""
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer(lowercase=lower)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", *(f"[unused{i}]" for i in range(120)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=290, special_tokens=special, show_progress=False)
    learner.train_from_iterator(CORPUS, trainer)
    return learner.get_vocab()


def gemma() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of Gemma's form: bytes as a way out, blanks as letters."""
    learner = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *bytes_]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    learner.train_from_iterator([*CORPUS, *(line.lower() for line in CORPUS)], trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


# SigLIP: sentencepiece


TABLE = {"²": "2", "´": " \u0301"}  # what a character becomes; the second brings a blank along


@cache
def pieces() -> list[tuple[str, float]]:
    """Pieces of words of the corpus with the logarithms of how often they occur, no two sums alike."""
    counts: Counter[str] = Counter()
    for line in [*CORPUS, "ΣΟΦΟΣ σοφός"]:  # small letters of these two end differently
        for word in siglip_text(line)[1:].split():
            marked = "▁" + word
            counts.update(marked[i:j] for i in range(len(marked)) for j in range(i + 1, len(marked) + 1))
    noise, special = random.Random(0), ["<pad>", "</s>", "<unk>"]
    most = sorted(counts.items(), key=lambda x: (-x[1], x[0]))[:400]
    scored = [(p, math.log(n / 500) + noise.random() / 100) for p, n in most]
    return [*((p, 0.0) for p in special), *scored]


def charsmap() -> bytes:
    """TABLE as sentencepiece stores it: a double array over UTF-8 bytes, then the texts that it points to.

    Node k of the trie has its children at 256 (k + 1) XOR byte and its value at 256 (k + 1).
    """
    texts, starts = b"", {}
    for key, text in TABLE.items():
        starts[key.encode()] = len(texts)
        texts += text.encode() + b"\0"
    prefixes = sorted({key[:n] for key in starts for n in range(len(key) + 1)})
    block = {prefix: 256 * (k + 1) for k, prefix in enumerate(prefixes)}
    place = {p: block[p[:-1]] ^ p[-1] if p else 0 for p in prefixes}
    units = [1] * (256 * (len(prefixes) + 2))  # 1 stands where no byte leads
    for p in prefixes:
        label = p[-1] if p else 0
        units[place[p]] = label | (p in starts) << 8 | (place[p] ^ block[p]) << 10
        if p in starts:
            units[block[p]] = 1 << 31 | starts[p]
    array = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(array)) + array + texts


def siglip_json() -> str:
    """The tokenizer.json that other programs make of a spiece.model."""
    backend = tokenizers.Tokenizer(models.Unigram(pieces(), unk_id=2))
    steps = [
        normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
        normalizers.Precompiled(charsmap()),
    ]
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    backend.add_special_tokens(["</s>", "<unk>"])
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return backend.to_str()


def siglip_folder(folder: Path, **config: Any) -> Path:
    named = {"tokenizer_class": "SiglipTokenizer", "do_lower_case": True, "eos_token": "</s>"}
    content = named | {"pad_token": "</s>"} | config
    return write(folder, tokenizer_config_json=content, tokenizer_json=siglip_json())


def siglip_text(text: str, lower: bool = True) -> str:
    """What sentencepiece is given, by the definition of SigLIP's canonicalize_text."""
    text = "▁" + text.replace("▁", " ")
    text = "".join(x for x in (text.lower() if lower else text) if x not in string.punctuation)
    return re.sub(r"\s+", " ", text).strip()


class Sentencepiece:
    """Normalisation and the best way through all pieces, written from their definitions."""

    def __init__(self) -> None:
        self.pieces = pieces()
        self.score = dict(self.pieces[3:])

    def encode(self, text: str, out_type: type = str) -> list[str]:
        assert out_type is str
        normal, before = "", True  # whether a blank stands before: another one is left out
        for letter in text:
            part = TABLE.get(letter, letter)
            while before and part.startswith(" "):
                part = part[1:]
            normal += part.replace(" ", "▁")
            before = part.endswith(" ") if part else before
        return self._split(normal.rstrip("▁"))

    def _split(self, text: str) -> list[str]:
        unknown = min(s for _, s in self.pieces) - 10
        best: list[tuple[float, int]] = [(0.0, 0)]
        for end in range(1, len(text) + 1):
            starts = [start for start in range(end) if text[start:end] in self.score]
            ways = [(best[start][0] + self.score[text[start:end]], start) for start in starts]
            if text[end - 1] not in self.score:
                ways.append((best[end - 1][0] + unknown, end - 1))
            best.append(max(ways))
        result, end = list[str](), len(text)
        while end:
            start = best[end][1]
            piece = text[start:end]
            if piece in self.score or not result or result[-1] in self.score:
                result.append(piece)
            else:
                result[-1] = piece + result[-1]  # unknown characters in a row are one piece
            end = start
        return result[::-1]

    def ids(self, tokens: list[str]) -> list[int]:
        """Ids of pieces; of an unknown piece 2."""
        number = {p: i for i, (p, _) in enumerate(self.pieces)}
        return [number[token] if token in self.score else 2 for token in tokens]


# Folders of all kinds


def _made(kind: str) -> Any:
    """A tokenizer of transformers."""
    import transformers

    library: Any = transformers
    if kind in ("bert", "cased", "mpnet"):
        words = bert_words(kind != "cased")
        if kind == "mpnet":
            names = {"[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>", "[PAD]": "<pad>"}
            return library.MPNetTokenizer(vocab={names.get(word, word): i for word, i in words.items()})
        return library.BertTokenizer(vocab=words, do_lower_case=kind == "bert")
    if kind == "clip":
        model = json.loads(Tokenizer.train(CORPUS, 600).to_json())["model"]
        return library.CLIPTokenizer(vocab=model["vocab"], merges=[tuple(x) for x in model["merges"]])
    if kind == "roberta":
        learner = tokenizers.Tokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        special, letters = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], pre_tokenizers.ByteLevel.alphabet()
        options: Any = {"initial_alphabet": letters, "show_progress": False}
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, **options)
        learner.train_from_iterator(CORPUS, trainer)
        model = json.loads(learner.to_str())["model"]
        return library.RobertaTokenizer(vocab=model["vocab"], merges=[tuple(x) for x in model["merges"]])
    if kind in ("gemma", "siglip2"):
        vocabulary, merges = gemma()
        if kind == "gemma":
            return library.GemmaTokenizer(vocab=vocabulary, merges=merges)
        ends = {"add_bos_token": False, "add_eos_token": True}
        return library.Siglip2Tokenizer(vocab=vocabulary, merges=merges, **ends)
    name, special, last = {
        "t5": ("T5Tokenizer", ["<pad>", "</s>", "<unk>"], []),
        "xlm-r": ("XLMRobertaTokenizer", ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"]),
        "deberta": ("DebertaV2Tokenizer", ["[PAD]", "[CLS]", "[SEP]", "[UNK]"], ["[MASK]"]),
    }[kind]
    scored = [*((x, 0.0) for x in special), *pieces()[3:], *((x, 0.0) for x in last)]
    return getattr(library, name)(vocab=scored)


KINDS = "bert", "cased", "mpnet", "clip", "roberta", "gemma", "siglip2", "t5", "xlm-r", "deberta", "siglip"


def folder_of(kind: str, folder: Path, *added: Any) -> Path:
    """A folder as the hub has it, with added tokens."""
    if kind == "siglip":
        return siglip_folder(folder)
    library = _made(kind)
    library.add_tokens(list(added))
    library.save_pretrained(folder)
    return folder
