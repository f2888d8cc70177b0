"""The index behind the server: reopened when it changes on disk, searched in batches by one thread.

The name of an image is the start of the sha256 of its bytes. It survives refreshes and reveals no path.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from grainline.data.captions import sentences
from grainline.data.record import CorruptSample
from grainline.errors import UserError
from grainline.index.image_files import read_indexed
from grainline.index.reader import IndexReader
from grainline.index.results import QueryHits
from grainline.index.search import Index, open_index
from grainline.index.store import MANIFEST, CorruptIndex
from grainline.model import Model

NAME = 24  # hexadecimal digits of an image's name


class TextSearch(NamedTuple):
    """A search by text."""

    text: str
    k: int


class ImageSearch(NamedTuple):
    """A search by image."""

    image: Image.Image
    k: int


class HeatRequest(NamedTuple):
    """Heat of each sentence of a text over an image of the index."""

    name: str
    text: str


class NamedHits(NamedTuple):
    """The hits of a query, with the names of their images."""

    result: QueryHits
    names: list[str]


class Heat(NamedTuple):
    """Sentences of a text, and the heat of each over the input crop of the model."""

    sentences: list[str]  # [S]
    values: Tensor  # [S, rows * columns]
    grid: tuple[int, int]


CELLS = 28
"""Rows and columns of heat where image tokens do not lie on a grid."""


class ImageGone(Exception):
    """An image that is not in the index, or whose file is no longer what was indexed."""

    def __init__(self, indexed: bool) -> None:
        super().__init__(indexed)
        self.indexed = indexed


class Snapshot(NamedTuple):
    """An open index, and its rows by the names of their images."""

    image_index: Index
    rows: dict[str, list[int]]

    def read(self, name: str) -> bytes:
        """The file of an image. Raises ImageGone."""
        return self._whole(name)[1]

    def row(self, name: str) -> int:
        """A row of an image whose file is still as it was. Raises ImageGone."""
        return self._whole(name)[0]

    def _whole(self, name: str) -> tuple[int, bytes]:
        rows = self.rows.get(name, [])
        for row in rows:
            try:
                return row, read_indexed(self.image_index.root, self.image_index.reader.rows[row])
            except CorruptSample:
                continue
        raise ImageGone(bool(rows))


class Engine:
    """Answers requests. Any thread may read `now`; only one calls `answer` and `refresh`."""

    def __init__(self, folder: Path, model: str | Model | None = None, device: str | None = None) -> None:
        """model, device  as for `open_index`. Raises UserError."""
        self.folder, self.problem = folder, ""
        self._stamp = _stamp(folder)
        self.now = _snapshot(open_index(folder, model, device=device))

    def refresh(self) -> None:
        """Reopen the index if it has changed. On an error the old one stays, and `problem` says why."""
        stamp = _stamp(self.folder)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        model, model_id = self.now.image_index.model, self.now.image_index.reader.manifest.model_id
        try:
            reader = IndexReader(self.folder)
            if reader.manifest.model_id.fingerprint != model_id.fingerprint:
                raise UserError("the index was built anew with another model; start the server again")
            self.now, self.problem = _snapshot(Index(reader, model, path=self.now.image_index.path)), ""
        except Exception as error:  # whatever it is, the old one can still be searched
            self.problem = self._message(error)

    def _message(self, error: Exception) -> str:
        """An error in one line, without the path of the index, which clients must not see."""
        message = str(error).replace(str(self.folder), self.folder.name)
        return " ".join(message.split()) or type(error).__name__

    def answer(self, requests: list[Any]) -> list[Any]:
        """A `NamedHits` for each search, a `Heat` for each `HeatRequest`, in batches of one kind and k.

        Raises CorruptIndex where a file of the index is damaged; `problem` says so from then on.
        """
        try:
            return self._answer(requests)
        except CorruptIndex as error:
            self.problem = self._message(error)
            raise

    def _answer(self, requests: list[Any]) -> list[Any]:
        index = self.now.image_index
        out: list[Any] = [None] * len(requests)
        kinds = {(type(one), one.k if not isinstance(one, HeatRequest) else 0): None for one in requests}
        for kind, k in kinds:
            places = [i for i, one in enumerate(requests) if type(one) is kind and (not k or one.k == k)]
            group = [requests[i] for i in places]
            answers: Sequence[Any]
            if kind is HeatRequest:
                answers = self._heat(group)
            elif kind is TextSearch:
                answers = self._named(index.search([one.text for one in group], k))
            else:
                answers = self._named(index.search_images([one.image for one in group], k))
            for i, answer in zip(places, answers, strict=True):
                out[i] = answer
        return out

    def _named(self, results: list[QueryHits]) -> list[NamedHits]:
        opened = self.now.image_index.reader
        names = ([name_of(opened.hashes[opened.numbers[hit.path]]) for hit in one.hits] for one in results)
        return [NamedHits(answer, own_names) for answer, own_names in zip(results, names, strict=True)]

    def _heat(self, requests: list[HeatRequest]) -> list[Heat]:
        index = self.now.image_index
        texts_of = [[sentence.text for sentence in sentences(one.text)] for one in requests]
        grid = index.model.method.grid or (CELLS, CELLS)
        rows = [self.now.row(one.name) for one in requests]
        try:
            maps = index.heat(list(zip(rows, texts_of, strict=True)), grid)
        except UserError:  # changed just now
            raise ImageGone(indexed=True) from None
        return [Heat(texts, values.flatten(1), grid) for texts, values in zip(texts_of, maps, strict=True)]


def name_of(sha256: str) -> str:
    """The name of an image."""
    return sha256[:NAME]


def _snapshot(index: Index) -> Snapshot:
    rows: dict[str, list[int]] = {}
    for i, sha256 in enumerate(index.reader.hashes):
        rows.setdefault(name_of(sha256), []).append(i)
    if len(index):  # what every search needs and the first one would have to wait for
        reader = index.reader
        _ = (
            index.finder,
            reader.null_text_scores,
            reader.null_sentence_scores,
            reader.null_image_scores,
            reader.calibration,
        )
    return Snapshot(index, rows)


def _stamp(folder: Path) -> tuple[int, ...]:
    """A key that changes when the manifest is replaced."""
    try:
        state = (folder / MANIFEST).stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns


# One thread owns the model. Requests that arrive while it works form the next batch, however few.
# A request is refused when the queue is full, and dropped when its client has disconnected.

TICK = 1.0  # seconds between two looks at the index while nobody asks


class Busy(Exception):
    """The queue is full."""


class Pending(NamedTuple):
    """A request and the future of its answer."""

    request: Any
    future: Future[Any]


class Batcher:
    """Requests in, futures out. `start` it before use, `close` it afterwards."""

    def __init__(
        self, work: Callable[[list[Any]], list[Any]], between: Callable[[], None], *, batch: int, queue: int
    ) -> None:
        """
        work     from requests to their answers, in order
        between  called by the worker before every batch, and each second while nobody asks
        batch    requests that are answered together, at most
        queue    requests that may wait
        """
        self.work, self.between, self.batch, self.queue = work, between, batch, queue
        self._waiting: deque[Pending] = deque()
        self._news = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._run, name="model", daemon=True)

    def __len__(self) -> int:
        """Requests that wait."""
        with self._news:
            return len(self._uncancelled())

    @property
    def works(self) -> bool:
        """Whether the worker runs."""
        return self._worker.is_alive()

    def start(self) -> None:
        self._worker.start()

    def close(self, patience: float | None = None) -> None:
        """Let the batch at hand end, within some seconds, and drop what waits."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._worker.join(patience)
        while self._waiting:
            self._waiting.popleft().future.cancel()

    def submit(self, request: Any) -> Future[Any]:
        """Queue a request. Cancel the future to withdraw it. Raises Busy."""
        job = Pending(request, Future())
        with self._news:
            if len(self._waiting) >= self.queue:
                self._waiting = self._uncancelled()
            if self._closed or len(self._waiting) >= self.queue:
                raise Busy
            self._waiting.append(job)
            self._news.notify()
        return job.future

    def _run(self) -> None:
        while True:
            with self._news:
                if not self._waiting and not self._closed:
                    self._news.wait(TICK)
                if self._closed:
                    return
            self.between()
            jobs = self._next_batch()
            if jobs:
                self._answer(jobs)

    def _uncancelled(self) -> deque[Pending]:
        return deque(job for job in self._waiting if not job.future.cancelled())

    def _next_batch(self) -> list[Pending]:
        """The next batch, without cancelled requests."""
        jobs: list[Pending] = []
        with self._news:
            while self._waiting and len(jobs) < self.batch:
                job = self._waiting.popleft()
                if job.future.set_running_or_notify_cancel():
                    jobs.append(job)
        return jobs

    def _answer(self, jobs: list[Pending]) -> None:
        try:
            answers = self.work([job.request for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:  # one of them is at fault; the others shall have their answers
                self._answer([job])
            return
        for job, answer in zip(jobs, answers, strict=True):
            job.future.set_result(answer)
