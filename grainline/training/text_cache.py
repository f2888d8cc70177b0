"""The outputs of a frozen text encoder for the texts of a source, computed once and read in training.

    states.f16  [R, W] of each text its summary, then the states of its real tokens, in half precision
    index.u64   [K, 3] of each text the digest of its token ids, its first row, and its number of tokens
    texts.json  settings and the fingerprint of the source, with a checksum

A text is found by its token ids, so whatever reads texts in training finds those that were computed. They are
the captions of all records and the sentences of all their texts, for all methods alike.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from grainline.data.cache import LOG, Kind, Partial, all_cores, completing, place, write_once
from grainline.data.captions import Mode, split_sentences
from grainline.data.lines import Progress, Written, as_line
from grainline.data.record import CorruptSample, Record, Source
from grainline.data.texts import encode_parts
from grainline.distributed import rank, world_size
from grainline.encoders.base import TextTokens
from grainline.errors import UserError
from grainline.hub import text_fingerprint
from grainline.methods.base import Method
from grainline.model import Model
from grainline.system import READ, read_at
from grainline.training.optim import tuned
from grainline.training.recipe import Recipe
from grainline.types import texts_of

TEXTS = Kind("texts", "texts 1", "states.f16", np.float16)
INDEX = "index.u64"
RECORDS = 64  # whose texts are computed together, so many of them at a time
EMPTY, MISSING = -1, -2  # in place of the number of a text

Read = Callable[[list[str], set[int]], dict[int, np.ndarray]]
"""From texts, and digests of those that are not wanted, to the rows [1 + L, W] of the others by digest."""


def cached_texts(
    recipe: Recipe, source: Source, model: Model, device: torch.device
) -> Callable[[Method], None] | None:
    """Puts what a frozen text encoder gives for the captions of a source in front of it (`CachedTexts`).

    It is computed where the cache lacks it, by the method that training starts with. None without
    data.features: auto, or where the encoder learns.
    """
    sides: dict[str, Any] = {x: y for x, y in tuned(model.method).items() if x.startswith("towers.text")}
    if not recipe.data.features or not any(side.tune == "frozen" for side in sides.values()):
        return None
    if recipe.train.fsdp and world_size() > 1:  # every process has to call every layer equally often
        if rank() == 0:
            print("texts are not cached: with train.fsdp every step computes them", flush=True)
        return None
    ((name, side),) = sides.items()
    method, texts = model.method.to(device).eval(), recipe.data.texts
    tower: Any = method.get_submodule(name)
    encoder = text_fingerprint(side, tower, model.tokenizer)
    reads_whole = method.parts == 1 or (method.chunking is not None and method.chunking.whole)
    whole = texts.captions == "whole" and texts.per_image > 0 and reads_whole
    folder = partial(place, TEXTS, source, encoder, method.context, texts.splitter)
    whole = whole or folder(True)[1].is_dir()  # texts with the whole ones serve those who read sentences
    kind, out = folder(whole)
    settings = {"encoder": encoder, "width": tower.width}
    choose, read = partial(_texts_of, splitter=texts.splitter, whole=whole), text_reader(model, tower)
    write_once(out, partial(make_texts, kind, source, choose, read, out, settings), len(source))
    return CachedTexts(kind, out, name, tower.width).install


def make_texts(
    kind: Kind,
    source: Source,
    choose: Callable[[Record], list[str]],
    read: Read,
    out: Path,
    settings: dict[str, Any],
    progress: Progress,
) -> Written:
    """Write what an encoder gives for the texts of all records, or those that an interrupted run left out.

    choose    the texts of a record
    read      lets the encoder read some texts
    settings  what its output depends on, `width` among them

    Raises UserError also for numbers that half precision cannot hold.
    """
    header = {"grainline": kind.format, "source": source.fingerprint(), "size": 0, "transform": {}}
    header |= {"settings": settings, "records": len(source)}
    with all_cores(), completing(kind, out, header) as folder:
        if folder is not None:
            with open(folder.path / INDEX, "ab") as index, open(folder.path / kind.rows, "ab") as states:
                texts, rows = _cut(folder, index, states, 2 * int(settings["width"]))
                known = {int(one) for one in _index(folder.path)[:, 0]}
                for batch in range(folder.batches, -(-len(source) // RECORDS)):
                    end = min((batch + 1) * RECORDS, len(source))
                    queue = _queue(source, range(batch * RECORDS, end), choose)
                    for first in range(0, len(queue), RECORDS):
                        for key, part in read(queue[first : first + RECORDS], known).items():
                            known.add(key)
                            index.write(np.array([key, rows, len(part) - 1], np.uint64).tobytes())
                            states.write(part.tobytes())
                            texts, rows = texts + 1, rows + len(part)
                    for file in (index, states):
                        file.flush()
                        os.fsync(file.fileno())
                    folder.log.write(as_line({"batch": batch, "texts": texts, "rows": rows}))
                    folder.log.flush()
                    progress(end, len(source))
    resumed = len(source) if folder is None else min(folder.batches * RECORDS, len(source))
    return Written({"text": len(_index(out))}, {}, resumed)


def text_reader(model: Model, tower: nn.Module) -> Read:
    """Lets a text encoder read texts, each as one part."""
    method, device = model.method, next(model.method.parameters()).device

    @torch.no_grad()
    def read(texts: list[str], known: set[int]) -> dict[int, np.ndarray]:
        batch = texts_of(encode_parts(model.tokenizer, texts, method.context, 1).ids)
        ids, mask = batch.ids[:, 0], batch.mask[:, 0]
        keys, lengths = _digests(ids, mask)
        places = {key: place for place, key in enumerate(keys) if key > 0 and key not in known}
        if not places:
            return {}
        wanted = list(places.values())
        tokens = tower(ids[wanted].to(device), mask[wanted].to(device))
        both = torch.cat([tokens.pooled[:, None], tokens.tokens], 1).cpu().half()
        parts = {key: row[: 1 + lengths[places[key]]] for key, row in zip(places, both, strict=True)}
        if not all(bool(part.isfinite().all()) for part in parts.values()):
            raise UserError("the text encoder gives numbers above 65504, or none, so they cannot be kept")
        return {key: part.numpy() for key, part in parts.items()}

    return read


def _cut(folder: Partial, index: BinaryIO, states: BinaryIO, size: int) -> tuple[int, int]:
    """Cut both files behind the batches in the log; the number of texts and rows. size: bytes of a row"""
    lines = (folder.path / LOG).read_bytes().splitlines()[: folder.batches + 1]
    last: dict[str, int] = json.loads(lines[-1]) if folder.batches else {"texts": 0, "rows": 0}
    for file, length in ((index, 24 * last["texts"]), (states, size * last["rows"])):
        if os.fstat(file.fileno()).st_size < length:
            raise UserError(f"{file.name} is shorter than {LOG} beside it says: delete {folder.path}")
        file.truncate(length)
    return last["texts"], last["rows"]


def _texts_of(record: Record, splitter: Mode, whole: bool) -> list[str]:
    """The captions of a record and the sentences of all its texts. whole: the fullest text as one too"""
    texts = dict.fromkeys((*record.captions, *([record.whole] if record.captions else [])))
    pieces = [piece for text in texts for piece in split_sentences(text, splitter)]
    return [*(texts if whole else record.captions), *pieces]


def _queue(source: Source, places: range, choose: Callable[[Record], list[str]]) -> list[str]:
    """The texts of some records, each once, the short ones first."""
    texts: set[str] = set()
    for index in places:
        with suppress(CorruptSample):  # training counts it
            texts.update(choose(source[index]))
    return sorted(texts, key=lambda text: (len(text), text))


def _digests(ids: Tensor, mask: Tensor) -> tuple[list[int], list[int]]:
    """The digest of the real tokens of each text [M, L], and their number; 0 where padding is not behind."""
    lengths = mask.sum(1)
    behind = (mask == (torch.arange(mask.shape[1]) < lengths[:, None])).all(1).tolist()
    numbers, keys = lengths.tolist(), []
    for row, length, plain in zip(ids.numpy().astype(np.int64), numbers, behind, strict=True):
        content = hashlib.sha256(row[:length].tobytes()).digest()[:8]
        keys.append(max(1, int.from_bytes(content, "little")) if plain else 0)
    return keys, numbers


def _index(folder: Path) -> np.ndarray:
    return np.fromfile(folder / INDEX, np.uint64).reshape(-1, 3)


class CachedTexts:
    """The texts of a folder in front of the text encoder of a method: `install` puts it there.

    In training a text is read where it was computed before, up to half precision; others are computed. In
    evaluation all are.
    """

    def __init__(self, kind: Kind, folder: Path, tower: str, width: int) -> None:
        """tower, width: name and width of the encoder. Raises UserError for a folder that cannot be read."""
        self.kind, self.folder, self.tower, self.width = kind, folder, tower, width
        try:
            index = _index(folder)
            self.file = os.open(folder / kind.rows, READ)
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} cannot be read ({error}); {kind.again}") from None
        order = index[:, 0].argsort()
        self.keys, self.rows = index[order, 0], index[order, 1:].astype(np.int64)

    def install(self, method: Method) -> None:
        """Read in place of computing, where the method is in training mode."""
        encoder: Any = method.get_submodule(self.tower)
        self.method = method
        self.words = method.reads_words or self.tower != "towers.text"
        if len(self.keys):
            self.compute, encoder.forward = encoder.forward, self

    def __call__(self, ids: Tensor, mask: Tensor) -> TextTokens:
        """ids [M, L], mask [M, L] -> TextTokens of the same L: 0 for padding, NaN where none are read"""
        if not self.method.training:
            return self.compute(ids, mask)
        places = self._places(ids, mask)
        missing = (places == MISSING).nonzero()[:, 0]
        if len(missing) == len(ids):
            return self.compute(ids, mask)
        parts = 1 + ids.shape[1] * self.words
        host = torch.zeros(len(ids), parts, self.width, dtype=torch.float16)
        for row, number in enumerate(places.tolist()):
            if number >= 0:
                part = self._read(number)
                host[row, : len(part)] = torch.from_numpy(part)
        both = host.to(ids.device).float()
        if len(missing):
            rows = missing.to(ids.device)
            with torch.no_grad():
                fresh = self.compute(ids[rows], mask[rows])
            both[rows] = torch.cat([fresh.pooled[:, None], fresh.tokens], 1)[:, :parts].float()
        tokens = both[:, 1:] if self.words else both.new_full((1, 1, 1), torch.nan)
        return TextTokens(both[:, 0], tokens.expand(*ids.shape, -1 if self.words else self.width), mask)

    def _places(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The number of each text in the index: [M] int64 on the host; EMPTY without tokens, or MISSING."""
        keys, lengths = _digests(ids.cpu(), mask.cpu())
        wanted = np.array(keys, np.uint64)
        row = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        fits = (self.keys[row] == wanted) & (self.rows[row, 1] == np.array(lengths))
        return torch.from_numpy(np.where(np.array(lengths) == 0, EMPTY, np.where(fits, row, MISSING)))

    def _read(self, number: int) -> np.ndarray:
        """The rows [1 + L, W] of a text, or its summary [1, W]. UserError where the file was cut."""
        first, tokens = self.rows[number] * (1, self.words)
        size = 2 * self.width * (1 + int(tokens))
        try:
            part = np.frombuffer(bytearray(read_at(self.file, size, 2 * self.width * int(first))), np.float16)
            return part.reshape(1 + int(tokens), self.width)
        except (OSError, ValueError) as error:
            path = self.folder / self.kind.rows
            raise UserError(f"{path} was changed or cut ({error}); {self.kind.again}") from None
