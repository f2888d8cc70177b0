"""A bit that flips in any file of an index: found before it changes an answer, or copied anywhere."""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from indexes import TEXTS, photo, photos, texts, tiny_model
from servers import running

from grainline import files
from grainline.errors import UserError
from grainline.index import candidates, store
from grainline.index.candidates import open_candidates
from grainline.index.reader import IndexReader
from grainline.index.search import Hit, check, open_index
from grainline.index.store import Column, new_part, read_manifest, write_manifest
from grainline.index.sync import add, build, remove
from grainline.web.engine import Engine

MODEL = tiny_model()
QUERIES = ["A red dog runs. The sand is green. A blue cat sleeps.", "A green bird."]
PAGE = 256
PLACES = (0.0, 0.02, 0.5, 1.0)  # share of the file: its magic, its header, its middle, its last byte


@pytest.fixture(scope="module", autouse=True)
def small_pages() -> Iterator[None]:
    """Every array here has several pages, as arrays have in an index of real size."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (files, store):
            patch.setattr(module, "PAGE", PAGE)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos` and `index`: two segments, and an inverted file where FAISS is."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "EXACT", 15)
        root = photos(folder / "photos", 18)
        build(root, folder / "index", model=MODEL, calibration_texts=texts(folder), chunk=10)
    return folder


@contextmanager
def flipped(path: Path, place: float, bit: int) -> Iterator[None]:
    """A file with one bit changed."""
    data = path.read_bytes()
    changed = bytearray(data)
    changed[round(place * (len(data) - 1))] ^= 1 << bit
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(data)


def files_of(index: Path) -> dict[str, Path]:
    """The files of an index but the lock, by their names in it."""
    paths = (path for path in sorted(index.rglob("*")) if path.is_file() and path.name != "lock")
    return {path.relative_to(index).as_posix(): path for path in paths}


def answers(index: Path, image: Path) -> list[tuple[Hit, ...]]:
    opened = open_index(index, MODEL)
    return [answer.hits for answer in (*opened.search(QUERIES, 18), *opened.search_images([image], 18))]


def test_a_flipped_bit_in_any_file_is_detected_or_changes_no_answer(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "EXACT", 15)
    index, image = made / "index", made / "photos" / "04.png"
    expected = answers(index, image)
    messages: list[tuple[str, str]] = []
    for i, (name, path) in enumerate(files_of(index).items()):
        for j, place in enumerate(PLACES):
            with flipped(path, place, bit=(i + 3 * j) % 8):
                try:
                    assert answers(index, image) == expected, (name, place)
                except UserError as error:
                    messages.append((name, str(error)))
    for name, message in messages:
        assert message.startswith(f"index {index} is corrupt: ")
        assert message.endswith("build it anew in another folder")
        assert name in message
    written = {name for name in files_of(index) if name.startswith("calibration/") and name.endswith(".npy")}
    derived = {name for name in files_of(index) if name.startswith("ann/")}
    number = {name: len(PLACES) for name in files_of(index).keys() - written - derived}
    assert Counter(name for name, _ in messages) == number, "writers read the first, the second is made again"


def test_what_is_damaged_is_never_copied(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "copy")
    root, index = tmp_path / "copy" / "photos", tmp_path / "copy" / "index"
    write_manifest(index, read_manifest(index)._replace(root=str(root.resolve())))
    shutil.rmtree(index / "ann", ignore_errors=True)
    photo(root / "new.png", 77)
    shutil.copyfile(root / "04.png", root / "twin.png")  # its arrays are copied from those of 04.png
    removed = [root / f"{number}.png" for number in ("01", "02", "05", "07", "10")]  # of the second segment

    def changed(out: Path) -> None:
        shutil.copytree(index, out)
        add(out, [root / "new.png", root / "twin.png"], model=MODEL, chunk=9)
        remove(out, removed)  # more than a quarter: the segment is written anew
        check(out)

    changed(tmp_path / "whole")
    assert len(read_manifest(tmp_path / "whole").segments) == 3
    for i, path in enumerate(files_of(index).values()):
        with flipped(path, 0.75, bit=i % 8), pytest.raises(UserError, match=re.escape(path.name)):
            changed(tmp_path / f"{i}")


def test_a_scan_of_all_vectors_is_refused_where_one_of_them_is_damaged(made: Path) -> None:
    index = made / "index"
    for path in sorted((index / "segments").glob("*/vectors.npy")):
        with flipped(path, 1.0, bit=3):
            opened = IndexReader(index)
            with pytest.raises(UserError, match=r"vectors\.npy is not what was written"):
                open_candidates(index, opened.segments)
            with pytest.raises(UserError, match=r"vectors\.npy is not what was written"):
                _ = opened.vectors


@pytest.mark.parametrize("name", ["vectors.npy", "tokens.npy", "mask.npy"])
def test_a_file_that_is_cut_under_an_open_index_is_named_until_it_is_whole_again(
    made: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(made / "index", tmp_path / "index")
    opened, engine = open_index(tmp_path / "index", MODEL), Engine(tmp_path / "index", MODEL)
    before, path = opened.search(QUERIES[:1], 18), tmp_path / "index" / "segments" / "00000001" / name
    data = path.read_bytes()
    with running(engine) as client:
        query = {"text": QUERIES[0], "k": 18}
        assert client.post("/api/search", json=query).status_code == 200
        os.truncate(path, 0)
        answer = client.post("/api/search", json=query)
        why = f"segments/00000001/{name} has 0 bytes instead of {len(data):,}"
        assert (answer.status_code, why in answer.json()["error"]) == (503, True)
        with pytest.raises(UserError, match=why):
            opened.search(QUERIES[:1], 18)
        path.write_bytes(data)  # in place
        assert opened.search(QUERIES[:1], 18) == before
        path.unlink()  # as a writer does it: what is mapped stays readable
        assert client.post("/api/search", json=query).status_code == 200


def test_only_pages_that_are_read_are_checked_and_each_of_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.random.default_rng(0).standard_normal((1000, 100)).astype(np.float32)
    target = tmp_path / "segments" / "00000001"
    with new_part(target, {"rows": len(array)}) as new:
        np.save(new / "vectors.npy", array)
    path, sealed = target / "vectors.npy", json.loads((target / "state.json").read_text())
    offset = path.stat().st_size - array.nbytes
    read: list[int] = []
    real = store.crc32
    monkeypatch.setattr(store, "crc32", lambda piece: read.append(len(piece)) or real(piece))
    hurt = range((300 * PAGE - offset) // 400, (301 * PAGE - 1 - offset) // 400 + 1)  # rows with a byte there
    with flipped(path, (300 * PAGE + 5) / (path.stat().st_size - 1), bit=2):
        column = Column(path, sealed)
        for row in range(1000):
            if row in hurt:
                with pytest.raises(UserError, match=r"00000001/vectors.npy is not what .* 76,800 to 77,055"):
                    column[np.array([row])]
            else:
                assert (column[np.array([row])] == array[row]).all()
        pieces = [length for length in read if length]
        others = (
            -(-path.stat().st_size // PAGE) - 2
        )  # without the damaged page, and the next of a corrupt row
        assert len(pieces) == others + len(hurt), "whole pages once, the damaged one each time"
        for rows in (slice(0, 400, 100), np.arange(1000) == 0, 0, np.array([], int)):
            assert (column[rows] == array[rows]).all()
        for rows in (slice(None), np.ones(1000, bool), hurt[0]):
            with pytest.raises(UserError, match="is corrupt"):
                column[rows]
        with pytest.raises(UserError, match="is corrupt"):
            column.whole()


def test_arrays_keep_no_file_open(made: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    opened = open_index(made / "index", MODEL).reader
    assert len(opened) == 18
    assert not before or len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_index_whose_folder_has_a_name_in_no_encoding_is_read(made: Path, tmp_path: Path) -> None:
    odd = tmp_path / "\udcff index"
    shutil.copytree(made / "index", odd)
    assert len(open_index(odd, MODEL).search([TEXTS[0]], 3)[0].hits) == 3
