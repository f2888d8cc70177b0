"""Encoding and ranking divided between processes give what one process gets alone."""

import io
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from processes import exit_codes, start_ranks
from readers import Colours, InMemory
from test_suite import words
from torch import Tensor, nn

from grainline.data.record import CorruptSample, Record
from grainline.distributed import broadcast_buffers, divided, part_of, rank, rows_of_workers, span
from grainline.errors import UserError
from grainline.evaluation import score
from grainline.evaluation.encode import Encodings, encode_source, numbered
from grainline.evaluation.score import retrieval_ranks
from grainline.types import Encoded, Mean, rows

WORLD = 3
LIMIT = timedelta(seconds=45)  # for one exchange


class Reader(Colours):
    """Reads the text that stands for no text, too."""

    def of(self, text: str) -> tuple[Tensor, Tensor]:
        return super().of("1 2 3" if text == "a" else text)

    def encode(self, **sides: Any) -> Encoded:
        out = super().encode(**sides)
        return out._replace(tokens=out.tokens * out.mask[..., None])  # equal, however long the batch is


class Exact:
    """Scores that do not depend on the tile."""

    blockwise = False

    def __init__(self, pairwise: bool) -> None:
        self.pairwise = pairwise

    def precompute(self, images: Encoded) -> Encoded:
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        return (images.vector.double() @ texts.vector.double().T).float()


class Broken(Exact):
    """One score in a corner of the matrix is not a number."""

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        score = super().score(images, texts)
        score[(images.image == 20)[:, None] & (texts.item == 0)] = torch.nan
        return score


def colour(i: int) -> tuple[int, int, int]:
    return 10 + 37 * i % 240, 10 + 101 * i % 240, 10 + 59 * i % 240


def source(number: int = 23, damaged: tuple[int, ...] = (4, 17)) -> InMemory:
    """Images with one to three captions; the colours of some come twice, so scores tie."""
    records: list[Record | CorruptSample] = []
    for i in range(number):
        own = words(colour(i % 19))
        captions = (own, words(colour(i + 1)), own + " and more of it")[: 1 + i % 3]
        image = Image.new("RGB", (6, 5), colour(i % 19))
        records.append(
            CorruptSample("corrupt image", f"x/{i}") if i in damaged else Record(f"p{i}", image, captions)
        )
    return InMemory(records)


def encoded(pairwise: bool, records: InMemory, max_corrupt: float = 0.5) -> Encodings:
    model: Any = Reader(pairwise)
    return encode_source(model, records, captions="each", batch=2, max_corrupt=max_corrupt)


def complaint(action: Any) -> str:
    try:
        action()
    except UserError as error:
        return str(error)
    return "nothing"


def measured(pairwise: bool) -> dict[str, Any]:
    data = encoded(pairwise, source())
    few = encoded(pairwise, source(2, ()))
    ranked = retrieval_ranks(Exact(pairwise), data.images, data.texts)
    wrong = complaint(lambda: retrieval_ranks(Broken(True), data.images, data.texts))
    bad = complaint(lambda: encoded(pairwise, source(9, (0, 4, 8)), 0.2))
    none = complaint(lambda: encoded(pairwise, source(3, (0, 1, 2)), 1.0))
    error = complaint(lambda: encoded(pairwise, OneRefused(list(source().records))))
    outcomes = {"data": tuple(data), "few": tuple(few), "ranks": ranked}
    return outcomes | {"wrong": wrong, "bad": bad, "none": none, "error": error}


class OneRefused(InMemory):
    """One sample is an error of the user, which only the process that reads it sees."""

    def __getitem__(self, index: int) -> Record:
        if index == 20:
            raise UserError("image 20 has no description")
        return super().__getitem__(index)


def shares() -> dict[str, Any]:
    """Rows whose numbers lie in another order in memory, and buffers of the first process."""
    x = torch.arange(60.0).view(1, 3, 4, 5).transpose(1, 2) + rank()
    one = rows_of_workers(Mean(x, x), torch.device("cpu"))
    norm = nn.BatchNorm2d(2)
    norm.running_mean = torch.full((2,), float(rank()))
    broadcast_buffers(norm)
    return {"rows": [part[0] for part in one], "mean": norm.running_mean}


def worker(number: int, out: Path) -> None:
    torch.set_num_threads(1)
    start = f"file://{out}/start"
    dist.init_process_group("gloo", init_method=start, rank=number, world_size=WORLD, timeout=LIMIT)
    with divided():
        outcomes: dict[Any, Any] = {pairwise: measured(pairwise) for pairwise in (False, True)}
        outcomes |= shares()
    if rank() == 0:  # alone, as a callback does: the others do not take part
        outcomes |= {"alone": measured(True)}
    torch.save(outcomes, out / f"{number}.pt")
    dist.barrier()
    os._exit(0)  # as in test_two_ranks


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    out = tmp_path_factory.mktemp("divided")
    assert exit_codes(start_ranks(worker, WORLD, out)) == [0] * WORLD
    return [torch.load(io.BytesIO((out / f"{i}.pt").read_bytes()), weights_only=False) for i in range(WORLD)]


def require_equal(a: Any, b: Any) -> None:
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            require_equal(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("what", ["data", "few", "ranks"])
def test_each_process_gets_what_one_alone_gets(
    outcomes: list[dict[Any, Any]], pairwise: bool, what: str
) -> None:
    """Rows, names, captions, counts of damage and of cut texts; two samples leave a process without any."""
    alone = measured(pairwise)
    for one in outcomes:
        require_equal(one[pairwise][what], alone[what])
    if what == "ranks":
        assert all(bool(way.tied.any()) for way in alone[what][:2])
        assert all(len(way.rank.unique()) > 2 for way in alone[what][:2])


@pytest.mark.parametrize("pairwise", [False, True])
def test_every_process_refuses_what_one_alone_refuses(outcomes: list[dict[Any, Any]], pairwise: bool) -> None:
    for one in outcomes:
        answer = one[pairwise]
        assert answer["wrong"].startswith("1 of ")
        assert answer["bad"].startswith("at least 3 of 9 samples in memory:test are corrupt; allowed are 20%")
        assert answer["none"].startswith(
            "no sample of memory:test can be used; the first of 3: corrupt image: x/0"
        )
        assert answer["error"] == "image 20 has no description"


@pytest.mark.parametrize("world", [2, 8, 64])
def test_each_process_scores_a_few_tiles(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as share the work well, and no more: each costs a wait for its scores."""
    numbers: list[int] = []
    monkeypatch.setattr(score, "workers", lambda: world)
    monkeypatch.setattr(score, "part_of", lambda tiles: numbers.append(len(tiles)) or tiles)
    data = encoded(False, source(160, ()))
    retrieval_ranks(Exact(False), data.images, data.texts)
    assert 2 * world <= numbers[0] <= 8 * world


def test_ids_of_no_text_are_whole_numbers() -> None:
    nothing = rows(encoded(False, source(2, ())).texts, slice(0, 0))
    assert numbered(nothing, []).image.dtype == torch.int64


def test_rows_of_others_arrive_however_they_lie_in_memory(outcomes: list[dict[Any, Any]]) -> None:
    rows = torch.arange(60.0).view(1, 3, 4, 5).transpose(1, 2)
    for one in outcomes:
        require_equal(one["rows"], [rows + number for number in range(WORLD)])


def test_buffers_are_those_of_the_first_process(outcomes: list[dict[Any, Any]]) -> None:
    assert [one["mean"].tolist() for one in outcomes] == [[0.0, 0.0]] * WORLD


def test_outside_the_first_process_measures_without_the_others(outcomes: list[dict[Any, Any]]) -> None:
    require_equal(outcomes[0]["alone"]["ranks"], measured(True)["ranks"])


def test_the_work_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process encodes its consecutive batches and no other."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: WORLD)
    spans, shares = [], []
    for number in range(WORLD):
        monkeypatch.setattr(dist, "get_rank", lambda number=number: number)
        with divided():
            spans.append(span(23, 2))
            shares.append(part_of("abcdefgh"))
        assert span(23, 2) == range(23)
    assert spans == [range(8), range(8, 16), range(16, 23)]
    assert shares == ["adg", "beh", "cf"]
