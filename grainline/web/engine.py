"""The index behind the server: opened anew when it changes on disk, asked in batches by one thread.

A picture is named by the start of the sha256 of its bytes. Such a name outlives every refresh of the index,
means the same bytes for ever, and says nothing about where they lie.
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
from grainline.data.record import Damaged
from grainline.errors import UserError
from grainline.index.image_files import unchanged
from grainline.index.reader import Opened
from grainline.index.results import Answer
from grainline.index.search import Index, open_index
from grainline.index.store import MANIFEST, CorruptIndex
from grainline.model import Model

NAME = 24  # hexadecimal digits of a picture's name


class ByText(NamedTuple):
    """Which pictures does a text describe?"""

    text: str
    k: int


class ByPicture(NamedTuple):
    """Which pictures are near to this one?"""

    picture: Image.Image
    k: int


class Where(NamedTuple):
    """Where does each sentence of a text show in a picture of the index?"""

    name: str
    text: str


class Found(NamedTuple):
    """What a search found, with the names of the pictures of its hits."""

    answer: Answer
    names: list[str]


class Heat(NamedTuple):
    """Sentences of a text, and where each shows over the square that the model sees."""

    sentences: list[str]  # [S]
    values: Tensor  # [S, rows * columns]
    grid: tuple[int, int]


CELLS = 28
"""Rows and columns of heat where image tokens do not lie on a grid."""


class Gone(Exception):
    """A picture that is not in the index, or whose file is no longer what was indexed."""

    def __init__(self, known: bool) -> None:
        super().__init__(known)
        self.known = known


class Shown(NamedTuple):
    """An index as it is now, and its rows by the names of their pictures."""

    searched: Index
    rows: dict[str, list[int]]

    def read(self, name: str) -> bytes:
        """The file of a picture. Raises Gone."""
        return self._whole(name)[1]

    def row(self, name: str) -> int:
        """A row of a picture whose file is still as it was. Raises Gone."""
        return self._whole(name)[0]

    def _whole(self, name: str) -> tuple[int, bytes]:
        rows = self.rows.get(name, [])
        for row in rows:
            try:
                return row, unchanged(self.searched.root, self.searched.opened.rows[row])
            except Damaged:
                continue
        raise Gone(bool(rows))


class Engine:
    """Answers requests. `now` may be read by any thread; `answer` and `refresh` belong to one."""

    def __init__(self, folder: Path, model: str | Model | None = None, device: str | None = None) -> None:
        """model, device  as for `open_index`. Raises UserError."""
        self.folder, self.problem = folder, ""
        self._stamp = _stamp(folder)
        self.now = _shown(open_index(folder, model, device=device))

    def refresh(self) -> None:
        """Open the index anew if it has changed. If that fails the old one stays, and `problem` says why."""
        stamp = _stamp(self.folder)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        model, mark = self.now.searched.model, self.now.searched.opened.manifest.model
        try:
            opened = Opened(self.folder)
            if opened.manifest.model.fingerprint != mark.fingerprint:
                raise UserError("the index was built anew with another model; start the server again")
            self.now, self.problem = _shown(Index(opened, model, path=self.now.searched.path)), ""
        except Exception as error:  # whatever it is, the old one can still be searched
            self.problem = self._said(error)

    def _said(self, error: Exception) -> str:
        """What an error says, in one line and without the place of the index: strangers may read it."""
        said = str(error).replace(str(self.folder), self.folder.name)
        return " ".join(said.split()) or type(error).__name__

    def answer(self, asked: list[Any]) -> list[Any]:
        """A `Found` for each text and picture, a `Heat` for each `Where`; those of a kind and k together.

        Raises CorruptIndex where a file of the index is damaged; `problem` says so from then on.
        """
        try:
            return self._answer(asked)
        except CorruptIndex as error:
            self.problem = self._said(error)
            raise

    def _answer(self, asked: list[Any]) -> list[Any]:
        index = self.now.searched
        out: list[Any] = [None] * len(asked)
        kinds = {(type(one), one.k if not isinstance(one, Where) else 0): None for one in asked}
        for kind, k in kinds:
            places = [i for i, one in enumerate(asked) if type(one) is kind and (not k or one.k == k)]
            mine = [asked[i] for i in places]
            answers: Sequence[Any]
            if kind is Where:
                answers = self._heat(mine)
            elif kind is ByText:
                answers = self._found(index.search([one.text for one in mine], k))
            else:
                answers = self._found(index.search_images([one.picture for one in mine], k))
            for i, answer in zip(places, answers, strict=True):
                out[i] = answer
        return out

    def _found(self, answers: list[Answer]) -> list[Found]:
        opened = self.now.searched.opened
        names = ([name_of(opened.hashes[opened.numbers[hit.path]]) for hit in one.hits] for one in answers)
        return [Found(answer, mine) for answer, mine in zip(answers, names, strict=True)]

    def _heat(self, asked: list[Where]) -> list[Heat]:
        index = self.now.searched
        told = [[sentence.text for sentence in sentences(one.text)] for one in asked]
        grid = index.model.method.grid or (CELLS, CELLS)
        rows = [self.now.row(one.name) for one in asked]
        try:
            maps = index.heat(list(zip(rows, told, strict=True)), grid)
        except UserError:  # changed just now
            raise Gone(known=True) from None
        return [Heat(texts, values.flatten(1), grid) for texts, values in zip(told, maps, strict=True)]


def name_of(sha256: str) -> str:
    """The name of a picture."""
    return sha256[:NAME]


def _shown(index: Index) -> Shown:
    rows: dict[str, list[int]] = {}
    for i, sha256 in enumerate(index.opened.hashes):
        rows.setdefault(name_of(sha256), []).append(i)
    if len(index):  # what every search needs and the first one would have to wait for
        opened = index.opened
        _ = index.finder, opened.null_texts, opened.null_sentences, opened.null_images, opened.calibration
    return Shown(index, rows)


def _stamp(folder: Path) -> tuple[int, ...]:
    """What changes when the manifest is replaced."""
    try:
        state = (folder / MANIFEST).stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns


# One thread owns the model; requests that wait while it works are answered together.
#
# Nothing waits on purpose: a request that comes alone is answered alone, at once. Those that arrive meanwhile
# make up the next batch. The queue has an end: beyond it a request is refused, which costs nothing, and as
# soon as the worker has taken a batch there is room again. A request whose client has left is dropped
# unanswered.


TICK = 1.0  # seconds between two looks at the index while nobody asks


class Busy(Exception):
    """The queue is full."""


class Job(NamedTuple):
    """A request and the place where its answer goes."""

    asked: Any
    answer: Future[Any]


class Batcher:
    """Requests in, futures out. `start` it before use, `close` it afterwards."""

    def __init__(
        self,
        work: Callable[[list[Any]], list[Any]],
        between: Callable[[], None],
        *,
        batch: int,
        queue: int,
    ) -> None:
        """
        work     from requests to their answers, in order
        between  called by the worker before every batch, and each second while nobody asks
        batch    requests that are answered together, at most
        queue    requests that may wait
        """
        self.work, self.between, self.batch, self.queue = work, between, batch, queue
        self._waiting: deque[Job] = deque()
        self._news = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._run, name="model", daemon=True)

    def __len__(self) -> int:
        """Requests that wait."""
        with self._news:
            return len(self._living())

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
            self._waiting.popleft().answer.cancel()

    def submit(self, asked: Any) -> Future[Any]:
        """The answer to come; cancel it to take the request back. Raises Busy."""
        job = Job(asked, Future())
        with self._news:
            if len(self._waiting) >= self.queue:
                self._waiting = self._living()
            if self._closed or len(self._waiting) >= self.queue:
                raise Busy
            self._waiting.append(job)
            self._news.notify()
        return job.answer

    def _run(self) -> None:
        while True:
            with self._news:
                if not self._waiting and not self._closed:
                    self._news.wait(TICK)
                if self._closed:
                    return
            self.between()
            jobs = self._taken()
            if jobs:
                self._answer(jobs)

    def _living(self) -> deque[Job]:
        return deque(job for job in self._waiting if not job.answer.cancelled())

    def _taken(self) -> list[Job]:
        """The next batch, without those that were taken back."""
        jobs: list[Job] = []
        with self._news:
            while self._waiting and len(jobs) < self.batch:
                job = self._waiting.popleft()
                if job.answer.set_running_or_notify_cancel():
                    jobs.append(job)
        return jobs

    def _answer(self, jobs: list[Job]) -> None:
        try:
            answers = self.work([job.asked for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
                return
            for job in jobs:  # one of them is at fault; the others shall have their answers
                self._answer([job])
            return
        for job, answer in zip(jobs, answers, strict=True):
            job.answer.set_result(answer)
