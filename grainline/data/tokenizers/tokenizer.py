"""CLIP-shaped byte-pair encoding: a checkpoint's own vocabulary, or one trained on the training captions.

A text is cleaned (`captions.clean`) and lower-cased; CLIP's pattern splits it into words, digits and runs of
other marks; every word becomes its UTF-8 bytes, the last one marked with `</w>`; merges are applied in the
order in which they were learnt. Tokenizers of the transformers library leave out most of the cleaning.
"""

import gzip
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, processors

from grainline.data.captions import clean
from grainline.data.formats.plain import regular
from grainline.data.tokenizers import bpe
from grainline.data.tokenizers.bpe import BEGIN, END, SUFFIX
from grainline.data.tokenizers.library_tokenizer import LibraryTokenizer, read_pipeline
from grainline.data.tokenizers.tokenized import (
    CONTENT,
    META,
    TextTokenizer,
    check_full,
    meta_text,
)
from grainline.errors import UserError

NAMES = ("tokenizer.json", "vocab.json", "spiece.model", "vocab.txt")
"""Files of which one is enough (vocab.json has its merges.txt); the first that exists is read."""


def _file_in(folder: Path) -> Path | None:
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def _resolve_file(path: str | Path) -> Path:
    """The tokenizer file of a path or of a name on the hub. Raises UserError without one."""
    place = Path(path) if Path(path).exists() else _on_hub(str(path))
    file = _file_in(place) if place.is_dir() else place
    if file is not None:
        return file
    if (place / "tokenizer.model").is_file():
        raise UserError(f"{path} holds only tokenizer.model, which is not read; fetch its tokenizer.json too")
    raise UserError(f"no tokenizer in {path}: it holds neither {', '.join(NAMES[:-1])} nor {NAMES[-1]}")


def _on_hub(name: str) -> Path:
    """The folder into which the hub's files were fetched."""
    # not by a class of transformers: without a network, some return a tokenizer of two entries
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.endswith((".json", ".gz", ".txt", ".model")):
        raise UserError(f"no tokenizer at {name}: give a folder, a tokenizer.json or a Hugging Face name")
    from huggingface_hub import snapshot_download

    try:
        further = "merges.txt", "tokenizer_config.json", "config.json"
        return Path(snapshot_download(name, allow_patterns=[*NAMES, *further]))
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), repr(error))
        raise UserError(
            f"no folder {name} here, and the Hugging Face hub gave no tokenizer of that name ({reason}); "
            "download it and give its folder"
        ) from None


def _in_open_clip() -> Path | None:
    """CLIP's vocabulary, by the list of installed files: importing the package would import torchvision."""
    try:
        files = metadata.files("open_clip_torch") or []
    except metadata.PackageNotFoundError:
        return None
    places = [Path(str(file.locate())) for file in files if file.name == "bpe_simple_vocab_16e6.txt.gz"]
    return next((place for place in places if place.is_file()), None)


_CACHED_WORDS = 200_000  # about 40 MB
_CLIP_MERGES = 49_152 - 256 - 2  # of the 262,144 in CLIP's published list
_ROUND, _FILLED = 8, 128  # a table filled up to a round size: a multiple of the first, fewer rows more


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
            raise _unlike_clip(where, f"it has no {missing[0]}")
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise _unlike_clip(where, f"its ids are not 0 to {len(vocabulary) - 1}")
        try:
            model = models.BPE(vocab=dict(vocabulary), merges=list(merges), end_of_word_suffix=SUFFIX)
        except Exception as error:  # the library knows no narrower one
            raise _unlike_clip(where, str(error)) from error
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
            raise _unlike_clip(where, "no byte-pair encoding in it") from error
        if suffix != SUFFIX:
            raise _unlike_clip(where, f"its words end in {suffix!r}, not {SUFFIX!r}")
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


def read_tokenizer(path: str | Path) -> TextTokenizer:
    """A tokenizer of any kind from a folder, a file or a Hugging Face name; a run's own is read like others.

    Files are tokenizer.json, vocab.json beside merges.txt or a .txt.gz of CLIP, spiece.model of SigLIP,
    vocab.txt of BERT. Raises UserError for what cannot be read, or was saved as another tokenizer.
    """
    file = _resolve_file(path)
    meta = file.with_name(META)
    if file.name != CONTENT or not meta.is_file():
        return _read(file)
    try:
        tokenizer, meta_bytes = _read(file), meta.read_bytes()
        contents = file.read_bytes(), None  # None: as older versions wrote it
    except (OSError, UserError) as error:  # `save` wrote it whole
        raise UserError(f"the tokenizer {file} is damaged; copy it and {meta.name} again") from error
    if meta_bytes not in [meta_text(tokenizer, content).encode() for content in contents]:
        raise UserError(
            f"{file} and {meta.name} beside it are not of one tokenizer: one is damaged or was changed; "
            "copy both again"
        )
    return tokenizer


def load_tokenizer(
    path: str | Path | None = None, *, checkpoint: str | Path | None = None, vocab: int | None = None
) -> TextTokenizer:
    """The tokenizer that goes with a checkpoint; never a silent stand-in.

    path        a folder, a file or a Hugging Face name; it comes first
    checkpoint  else a folder of weights, if it holds a tokenizer
                else CLIP's vocabulary inside an installed open_clip_torch
    vocab       size of the model's token table; another size is an error. Only a table that was filled
                up to a round size (a multiple of 8, less than 128 rows more) passes, and a warning says so.
    """
    if path is not None:
        tokenizer, where = read_tokenizer(path), str(path)
    elif checkpoint is not None and _file_in(Path(checkpoint)) is not None:
        tokenizer, where = read_tokenizer(checkpoint), str(checkpoint)
    else:
        file = _in_open_clip()
        if file is None:
            raise UserError(
                f"no tokenizer found{'' if checkpoint is None else f' in {checkpoint}'}; name a folder that "
                "holds tokenizer.json, or vocab.json and merges.txt, or put CLIP's vocabulary in reach with "
                "`pip install --no-deps open_clip_torch`"
            )
        tokenizer, where = read_tokenizer(file), "the vocabulary of open_clip_torch"
    if vocab is not None and tokenizer.vocab != vocab:
        if vocab % _ROUND or not 0 < vocab - tokenizer.vocab < _FILLED:
            raise UserError(
                f"{where} has {tokenizer.vocab} tokens, the model {vocab}; "
                "name the tokenizer that the model was trained with"
            )
        warnings.warn(
            f"{where} has {tokenizer.vocab} tokens and the model a table of {vocab} rows: "
            "taken for a table filled up to a round size",
            stacklevel=2,
        )
    return tokenizer


def _read(file: Path) -> TextTokenizer:
    try:
        regular(file)
        if file.suffix == ".gz":
            lines = gzip.decompress(file.read_bytes()).decode("utf-8").split("\n")
            merges = bpe.pairs(lines[1 : 1 + _CLIP_MERGES])
            return Tokenizer(bpe.vocabulary(merges), merges, str(file))
        if file.name == "vocab.json":
            return _from_two_files(file)
        pipeline = read_pipeline(file)
        if pipeline is not None:
            return LibraryTokenizer(*pipeline, str(file))
        return Tokenizer.from_json(file.read_text(encoding="utf-8"), str(file))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the tokenizer {file}: {error}") from error


def _from_two_files(file: Path) -> Tokenizer:
    merges = file.with_name("merges.txt")
    if not merges.is_file():
        raise UserError(f"{file} needs a merges.txt beside it; there is none")
    try:
        vocabulary = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is no JSON: {error}") from error
    return Tokenizer(vocabulary, bpe.pairs(merges.read_text(encoding="utf-8").split("\n")), str(file))


def _unlike_clip(where: str, why: str) -> UserError:
    return UserError(
        f"{where} is not a CLIP-shaped tokenizer: {why}; give one of CLIP, SigLIP, SigLIP 2 or BERT"
    )
