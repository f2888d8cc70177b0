"""Candidates among very many pictures: an inverted file of 8-bit vectors (FAISS), kept beside the segments.

    INDEX/near/00000002/
      vectors.faiss   an IVF of 8-bit vectors; the id of a row is `first` of its segment and its place there
      state.json      "parts": name, sha256, first id and rows of each segment that is in it; "trained": the
                      rows that its lists were found for; size and sha256 of vectors.faiss

It is derived: whatever is wrong with it costs time and no answer. A writer makes it when the index holds more
than EXACT pictures, adds to it when more than LOOSE of them are not in it, and makes it anew when the index
has grown GROWN-fold or lost a quarter. A folder is never changed: the new one is sealed beside the old one,
which goes then.

A reader takes the newest one whose sha256 are right, and of it only the segments that the manifest names with
the same sha256. Removed rows are passed over while FAISS searches; rows that are not in it are scanned. It
needs no lock. Where there is no such file, every vector is compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grainline.files import Corrupt, clear_leftovers, discard, sync, unseal
from grainline.index.candidates import APPROXIMATE, Exact, Near, Nearest
from grainline.index.segment import VECTORS, Segment
from grainline.index.store import NEAR, new_part

EXACT = 200_000  # pictures up to which every vector is compared
LOOSE = 0.01  # share of the pictures that may be missing before they are added
GROWN, LOST = 2.0, 0.25  # of the rows it was trained for; share of its rows that no longer count
PROBES = 64  # lists that are looked into
AT_ONCE = 16_384  # vectors added at a time
FILE, LAYOUT = "vectors.faiss", 1
LACKING = "all {0:,} pictures were compared one by one; {1}"


class Known(NamedTuple):
    """A segment that is in the file."""

    name: str
    sha256: str
    first: int  # id of its first row
    rows: int


class Kept(NamedTuple):
    """What a sealed folder holds."""

    index: Any  # of FAISS
    parts: tuple[Known, ...]
    trained: int  # rows that its lists were found for


class Inverted:
    """An inverted file, searched in part, beside an exact scan of what is not in it."""

    note = APPROXIMATE

    def __init__(self, kept: Kept, segments: Sequence[Segment], probes: int = PROBES) -> None:
        """segments  those that the manifest names, in order"""
        faiss = _faiss()
        live = [segment.live for segment in segments]
        number = _numbers(live)
        covered = _covered(kept, segments)
        self.index = kept.index
        self.number = np.full(sum(part.rows for part in kept.parts), -1)  # of each id among the live rows
        for i, first in covered.items():
            self.number[first : first + len(live[i])] = np.where(live[i], number[i], -1)
        rest = [i for i in range(len(segments)) if i not in covered]
        self.rest = Exact([segments[i].arrays[VECTORS].whole() for i in rest], [live[i] for i in rest])
        self.rest_number = np.concatenate([np.zeros(0, np.int64), *(number[i][live[i]] for i in rest)])
        self.alive = np.packbits(self.number >= 0, bitorder="little")
        self.selector = faiss.IDSelectorBitmap(self.alive)
        self.how = faiss.SearchParametersIVF(sel=self.selector, nprobe=min(kept.index.nlist, probes))

    def top(self, queries: np.ndarray, k: int) -> Near:
        given = np.ascontiguousarray(queries, np.float32)
        score, found = self.index.search(given, k, params=self.how)
        row = np.where(found >= 0, self.number[found], -1)
        more = self.rest.top(queries, k)
        row = np.concatenate([row, self.rest_number[more.row]], 1)
        score = np.concatenate([np.where(found >= 0, score, -np.inf), more.score], 1)
        order = np.lexsort((row, -score), axis=1)[:, :k]
        return Near(np.take_along_axis(row, order, 1), np.take_along_axis(score, order, 1))


def nearest(folder: Path, segments: Sequence[Segment]) -> Nearest:
    """What suits the number of pictures, and what the folder of the index holds."""
    number, advice = sum(int(segment.live.sum()) for segment in segments), ""
    if number > EXACT and not available():
        advice = "`pip install 'grainline[search]'` and `grainline index refresh` make it faster"
    elif number > EXACT:
        kept = read_kept(folder)
        if kept is not None:
            return Inverted(kept, segments)
        advice = f"`grainline index refresh {folder}` makes it faster"
    whole = [segment.arrays[VECTORS].whole() for segment in segments]
    exact = Exact(whole, [segment.live for segment in segments])
    exact.note = LACKING.format(number, advice) if advice else ""
    return exact


def keep(folder: Path, segments: Sequence[Segment]) -> None:
    """Bring the inverted file of an index up to date, under its lock. OSError leaves the old one.

    Nothing is done without FAISS; for few pictures there is none.
    """
    near = folder / NEAR
    if near.is_dir():
        clear_leftovers(near)
    if sum(int(segment.live.sum()) for segment in segments) <= EXACT:
        discard(near)
    elif available():
        kept = read_kept(folder)
        new = _extended(kept, segments) if kept is not None else _made(segments)
        if new is not None:
            _write(near, new)
        for old in _folders(near)[1:]:
            discard(old)


def read_kept(folder: Path) -> Kept | None:
    """The newest inverted file that is whole; None if there is none."""
    for _ in range(2):  # a writer may have put a newer one in its place after we looked
        for path in _folders(folder / NEAR):
            try:
                return _read(path)
            except Corrupt:
                continue
    return None


def available() -> bool:
    """Whether FAISS is installed."""
    try:
        _faiss()
    except ImportError:
        return False
    return True


def _read(path: Path) -> Kept:
    """Raises Corrupt."""
    body = unseal(path)
    try:
        if body["layout"] != LAYOUT:
            raise Corrupt(f"layout {body['layout']}")
        parts = tuple(Known(**part) for part in body["parts"])
        kept = Kept(_faiss().read_index(str(path / FILE)), parts, int(body["trained"]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Corrupt(f"{path.name} cannot be read ({error})") from None
    if kept.index.ntotal > sum(part.rows for part in parts):
        raise Corrupt(f"{path.name} holds more than its segments")
    return kept


def _write(near: Path, kept: Kept) -> None:
    newest = [int(path.name) for path in _folders(near)[:1]]
    body = {
        "layout": LAYOUT,
        "parts": [part._asdict() for part in kept.parts],
        "trained": kept.trained,
    }
    with new_part(near / f"{max(newest, default=0) + 1:08d}", body) as folder:
        try:
            _faiss().write_index(kept.index, str(folder / FILE))
        except RuntimeError as error:  # FAISS has no other
            raise OSError(f"FAISS could not write its file ({error})") from None
        sync(folder / FILE)


def _made(segments: Sequence[Segment]) -> Kept:
    """Lists found anew, and all live rows in them."""
    faiss = _faiss()
    number = sum(int(segment.live.sum()) for segment in segments)
    lists = max(1, min(2 * int(number**0.5), number // 40))
    width = segments[0].arrays[VECTORS].shape[1]
    index = faiss.index_factory(width, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # there are 40 of them; FAISS asks for 39 of one list, too
    step = max(1, number // (64 * lists))  # between the vectors that the lists are found from
    sample = [segment.arrays[VECTORS][np.flatnonzero(segment.live)[::step]] for segment in segments]
    index.train(np.concatenate(sample))
    return _added(Kept(index, (), number), segments)


def _extended(kept: Kept, segments: Sequence[Segment]) -> Kept | None:
    """With the rows that it lacks; made anew where it no longer suits; None if it is good as it is."""
    covered = _covered(kept, segments)
    inside = sum(int(segments[i].live.sum()) for i in covered)
    number = sum(int(segment.live.sum()) for segment in segments)
    if number > GROWN * kept.trained or inside < (1 - LOST) * kept.index.ntotal:
        return _made(segments)
    if number - inside <= LOOSE * number:
        return None
    return _added(kept, [segment for i, segment in enumerate(segments) if i not in covered])


def _added(kept: Kept, segments: Sequence[Segment]) -> Kept:
    parts = list(kept.parts)
    for segment in segments:
        first = sum(parts[-1][2:]) if parts else 0
        place = np.flatnonzero(segment.live)
        for start in range(0, len(place), AT_ONCE):
            mine = place[start : start + AT_ONCE]
            vectors = np.ascontiguousarray(segment.arrays[VECTORS][mine], np.float32)
            kept.index.add_with_ids(vectors, first + mine)
        parts.append(Known(segment.part.name, segment.part.sha256, first, len(segment.rows)))
    return kept._replace(parts=tuple(parts))


def _covered(kept: Kept, segments: Sequence[Segment]) -> dict[int, int]:
    """Number of each segment that is in the file -> first id"""
    known = {(part.name, part.sha256, part.rows): part.first for part in kept.parts}
    marks = [(segment.part.name, segment.part.sha256, len(segment.rows)) for segment in segments]
    return {i: known[mark] for i, mark in enumerate(marks) if mark in known}


def _numbers(live: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Of each row of each segment, its number among all live rows."""
    whole = np.cumsum(np.concatenate(live)) - 1
    return np.split(whole, np.cumsum([len(x) for x in live])[:-1])


def _folders(near: Path) -> list[Path]:
    """Newest first."""
    if not near.is_dir():
        return []
    return sorted((path for path in near.iterdir() if path.name.isdigit()), reverse=True)


def _faiss() -> Any:
    import faiss

    return faiss
