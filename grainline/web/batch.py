"""One thread owns the model; requests that wait while it works are answered together.

Nothing waits on purpose: a request that comes alone is answered alone, at once. Those that arrive meanwhile
make up the next batch. The queue has an end: beyond it a request is refused, which costs nothing, and as soon
as the worker has taken a batch there is room again. A request whose client has left is dropped unanswered.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

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
