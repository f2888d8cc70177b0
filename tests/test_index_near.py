"""What finds candidates: the exact scan against float64, and the inverted file that is kept on disk."""

import sys
from pathlib import Path

import numpy as np
import pytest
from indexes import TEXTS, photo, photos, texts, tiny_model

from grainline.files import discard
from grainline.index import candidates
from grainline.index.candidates import (
    APPROXIMATE,
    Exact,
    Inverted,
    open_candidates,
    read_inverted,
    update_inverted,
)
from grainline.index.reader import IndexReader
from grainline.index.search import Index, Options, check, open_index
from grainline.index.store import SEGMENTS, VECTORS, Row, Segment, open_segment, write_segment
from grainline.index.sync import add, build, refresh, remove

WIDTH = 32
PLAIN = Options(sentences=False)


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def clusters(number: int, spread: float, seed: int = 0, width: int = WIDTH) -> np.ndarray:
    """Vectors around a few centres, the nearer the smaller the spread; at 0 many are equal."""
    rng = np.random.default_rng(seed)
    centre = np.random.default_rng(99).standard_normal((20, width))
    return unit(centre[rng.integers(20, size=number)] + spread * rng.standard_normal((number, width)))


def best(vectors: np.ndarray, alive: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """Numbers of the k best live rows by products in float64, one by one, of equals the first: [M, k]"""
    out = []
    for query in queries.astype(np.float64):
        score = (vectors[alive].astype(np.float64) * query).sum(1)
        out.append(np.lexsort((np.arange(len(score)), -score))[:k])
    return np.stack(out)


# The exact scan


@pytest.mark.parametrize(("spread", "k"), [(1.0, 7), (0.05, 10), (0.001, 40), (0.0, 5), (0.5, 900)])
def test_the_scan_finds_what_float64_finds(spread: float, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "PAIRS", 100)
    monkeypatch.setattr(candidates, "SCORES", 5_000)
    vectors = clusters(1_000, spread)
    alive = np.random.default_rng(1).random(1_000) > 0.2
    alive[300:420] = False  # a block without a living row
    cuts = [10, 300, 420, 900]
    exact = Exact(np.split(vectors, cuts), np.split(alive, cuts))
    queries = clusters(12, 0.3, seed=2)
    near = exact.top(queries, k)
    expected = best(vectors, alive, queries, k)
    assert near.row.tolist() == expected.tolist()
    score = np.take_along_axis(queries.astype(np.float64) @ vectors[alive].astype(np.float64).T, expected, 1)
    assert near.score == pytest.approx(score, abs=1e-6)


def test_scores_that_differ_by_less_than_float32_can_tell_are_in_order() -> None:
    """All scores lie within 1e-7 of 0, and a sum of 256 products in float32 is off by as much."""
    rng = np.random.default_rng(0)
    query = unit(rng.standard_normal((6, 256))).astype(np.float64)
    vectors = rng.standard_normal((4_000, 256))
    vectors -= vectors @ np.linalg.pinv(query) @ query  # at right angles to all queries
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = (vectors + rng.uniform(0, 1e-7, (4_000, 6)) @ query).astype(np.float32)
    queries = query.astype(np.float32)
    expected = best(rows, np.ones(4_000, bool), queries, 10)
    assert (np.argsort(-(queries @ rows.T))[:, :10] != expected).any(), "the case is no test"
    near = Exact([rows], [np.ones(4_000, bool)]).top(queries, 10)
    assert near.row.tolist() == expected.tolist()


def test_the_scan_numbers_live_rows_only_and_takes_the_first_of_equals() -> None:
    vectors = np.eye(4, dtype=np.float32)[[0, 1, 0, 2, 1, 3]]
    live = np.array([False, True, True, True, True, True])
    near = Exact([vectors[:3], vectors[3:]], [live[:3], live[3:]]).top(np.eye(4, dtype=np.float32)[:2], 2)
    assert near.row.tolist() == [[1, 0], [0, 3]]
    assert near.score[1].tolist() == [1.0, 1.0]
    none = Exact([vectors], [np.zeros(6, bool)]).top(vectors[:2], 3)
    assert none.row.shape == (2, 0)


# The inverted file


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of a hundred images is a large one here."""
    monkeypatch.setattr(candidates, "EXACT", 100)


@pytest.fixture
def segments(tmp_path: Path) -> list[Segment]:
    """Two segments of 300 rows with their inverted file."""
    pytest.importorskip("faiss")
    both = [segment(tmp_path, 0, 300), segment(tmp_path, 1, 300)]
    update_inverted(tmp_path, both)
    return both


def segment(folder: Path, number: int, size: int, seed: int | None = None) -> Segment:
    """A segment with nothing but vectors."""
    vectors = clusters(size, 0.5, seed=number if seed is None else seed)
    rows = [Row(f"{number}/{i}.png", f"{number} {i} {seed}", 1, 1) for i in range(size)]
    target = folder / SEGMENTS / f"{number:08d}"
    return open_segment(target, write_segment(target, rows, {VECTORS: vectors}))


def without(one: Segment, rows: range) -> Segment:
    return one._replace(part=one.part._replace(dead=tuple(rows)))


def exact_of(segments: list[Segment]) -> Exact:
    return Exact([s.arrays[VECTORS].whole() for s in segments], [s.live for s in segments])


def agrees(segments: list[Segment], folder: Path, k: int = 10) -> Inverted:
    """The search of the stored file, which finds the true neighbours where it looks into every list."""
    finder = open_candidates(folder, segments)
    assert isinstance(finder, Inverted)
    finder.how.nprobe = finder.index.nlist
    queries = clusters(30, 0.5, seed=77)
    near, true = finder.top(queries, k), exact_of(segments).top(queries, k)
    assert near.row.min() >= 0
    shares = [len(set(a) & set(b)) / k for a, b in zip(near.row, true.row, strict=True)]
    assert np.mean(shares) > 0.95
    return finder


def stored(folder: Path) -> list[str]:
    return [path.name for path in (folder / "ann").iterdir()]


def test_removed_rows_are_never_returned_and_new_ones_are_before_they_are_added(
    segments: list[Segment], tmp_path: Path
) -> None:
    assert agrees(segments, tmp_path).note == APPROXIMATE
    segments = [without(segments[0], range(0, 300, 10)), segments[1], segment(tmp_path, 2, 5)]
    finder = agrees(segments, tmp_path)
    new = segments[2].arrays[VECTORS].whole()
    newest = exact_of(segments).top(new, 1)
    assert finder.top(new, 1).row.tolist() == newest.row.tolist()
    assert newest.row.min() >= 570, "they are their own neighbours"
    removed = finder.top(segments[0].arrays[VECTORS][::10], 5)
    assert all(len(set(row)) == 5 for row in removed.row.tolist()), "no row stands for a removed one"
    assert removed.score.max() < 0.99
    update_inverted(tmp_path, segments)
    assert stored(tmp_path) == ["00000001"], "so few are not worth it"


def test_a_file_is_made_anew_where_a_tenth_is_missing_or_gone_and_few_images_need_none(
    segments: list[Segment], tmp_path: Path
) -> None:
    more = [*segments, segment(tmp_path, 2, 100)]
    update_inverted(tmp_path, more)
    agrees(more, tmp_path)
    fewer = [without(segments[0], range(100)), segments[1]]
    update_inverted(tmp_path, fewer)
    agrees(fewer, tmp_path)
    assert stored(tmp_path) == ["00000003"]
    update_inverted(tmp_path, [without(segments[1], range(250))])
    assert not (tmp_path / "ann").exists()


@pytest.mark.parametrize("name", ["vectors.faiss", "state.json"])
def test_a_damaged_file_is_not_used_and_made_anew(name: str, segments: list[Segment], tmp_path: Path) -> None:
    path = tmp_path / "ann" / "00000001" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert read_inverted(tmp_path) is None
    finder = open_candidates(tmp_path, segments)
    assert isinstance(finder, Exact)
    assert f"grainline index refresh {tmp_path}" in finder.note
    update_inverted(tmp_path, segments)
    agrees(segments, tmp_path)


def test_vectors_of_another_segment_by_the_same_name_are_not_taken_from_the_file(
    segments: list[Segment], tmp_path: Path
) -> None:
    discard(tmp_path / SEGMENTS / "00000001")
    finder = agrees([segments[0], segment(tmp_path, 1, 300, seed=44)], tmp_path)
    assert finder.rest.living == 300


def test_without_faiss_every_vector_is_compared_and_a_note_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    segments = [segment(tmp_path, 0, 300)]
    update_inverted(tmp_path, segments)
    finder = open_candidates(tmp_path, segments)
    assert isinstance(finder, Exact)
    assert "pip install 'grainline[search]'" in finder.note


def test_an_index_keeps_its_inverted_file_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(candidates, "EXACT", 15)
    model, root, out = tiny_model(), photos(tmp_path / "photos", 20), tmp_path / "index"
    build(root, out, model=model, calibration_texts=texts(tmp_path), chunk=8)
    first = read_inverted(out)
    assert first is not None
    assert first.index.ntotal == 20
    photo(root / "new.png", 70)
    add(out, [root / "new.png"], model=model)
    remove(out, ["02.png"])
    answer = open_index(out, model).search([TEXTS[0]], 20, PLAIN._replace(shortlist=19))[0]
    assert answer.notes == (APPROXIMATE,)
    opened = IndexReader(out)
    exact = Index(opened, model, Exact(opened.vectors, opened.live)).search([TEXTS[0]], 20, PLAIN)[0]
    scores = {hit.path: hit.score for hit in exact.hits}
    assert all(hit.score == pytest.approx(scores[hit.path]) for hit in answer.hits)
    discard(out / "ann")
    assert "one by one" in open_index(out, model).search([TEXTS[0]], 2, PLAIN)[0].notes[0]
    assert check(out) == 20
    refresh(out, model=model)
    assert read_inverted(out) is not None
