"""The index behind the server: reopened when it changes on disk, searched in batches by one thread.

The name of an image is the start of the sha256 of its bytes. It survives refreshes and reveals no path.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from starlette.exceptions import HTTPException

from grainline.data.captions import sentences
from grainline.data.other_texts import PHOTOGRAPHS, trained_on_scenes
from grainline.data.record import CorruptSample
from grainline.errors import UserError
from grainline.index.calibration import MIN_IMAGES
from grainline.index.image_files import read_indexed
from grainline.index.reader import IndexReader
from grainline.index.search import Index, open_index
from grainline.index.store import MANIFEST, NULL_SENTENCES, CorruptIndex
from grainline.model import Model
from grainline.web.guard import IMAGE, Limits
from grainline.web.schema import (
    CHARACTERS,
    DIGITS,
    HITS,
    HeatOut,
    HeatQuery,
    IndexOut,
    SearchOut,
    TextQuery,
    heat_out,
    sample_out,
    search_out,
)

CELLS = 28  # rows and columns of heat where image tokens do not lie on a grid
CHANGED = 410, "the image is no longer what was indexed; refresh the index"
log = logging.getLogger(__name__)
SAMPLES = 24  # images that the page opens with
EXAMPLES = 3  # texts to try
LONGEST = 110  # characters of one
TICK = 1.0  # seconds after which an idle worker checks whether the index has changed


class ImageQuery(NamedTuple):
    """A search by image."""

    image: Image.Image
    k: int


class Snapshot:
    """An open index, and its rows by the names of their images."""

    def __init__(self, index: Index) -> None:
        self.image_index = index
        self.rows: dict[str, list[int]] = {}
        for i, sha256 in enumerate(index.reader.hashes):
            self.rows.setdefault(sha256[:DIGITS], []).append(i)
        if len(index):  # every search needs these, and the first one would have to wait for them
            reader = index.reader
            _ = reader.null_sentence_scores, reader.null_image_scores, reader.calibration
        spaced = np.linspace(0, len(index) - 1, min(SAMPLES, len(index))).astype(int).tolist()
        self.samples = list({index.reader.hashes[row]: row for row in spaced}.values())  # without copies
        self.examples = examples(index)

    def read(self, name: str) -> tuple[int, bytes]:
        """Row and bytes of an image whose file is still as it was. Raises HTTPException."""
        rows = self.rows.get(name, [])
        for row in rows:
            try:
                return row, read_indexed(self.image_index.root, self.image_index.reader.rows[row])
            except CorruptSample:
                continue
        raise HTTPException(*CHANGED) if rows else HTTPException(404, "no such image in this index")


@torch.no_grad()
def examples(index: Index) -> list[str]:
    """Sentences with the best contrast in this index, each with another best image: [] for an empty one.

    Contrast is the best score minus the mean over the background images, in units of their std. Candidates
    are the calibration sentences, first those whose own image is in the index; where no texts were given,
    and the model was not trained on drawn scenes alone, built-in sentences of photographs.
    """
    if len(index) < 2:
        return []
    reader, texts = index.reader, index.reader.calibration_texts
    sentences, score = list(texts.sentences), reader.take(NULL_SENTENCES, reader.background)
    known = np.isin(texts.image_hashes, reader.hashes)
    if reader.built_in_texts and not trained_on_scenes(index.model.run):
        sentences, known = list(PHOTOGRAPHS), np.zeros(len(PHOTOGRAPHS), bool)
        score = index.score(reader.background, index.model.encode(texts=sentences))
    out: dict[int, str] = {}  # by best image
    best, score = score.argmax(0).tolist(), score.astype(np.float64)
    contrast = (score.max(0) - score.mean(0)) / np.maximum(score.std(0), 1e-9)  # [Q]
    for i in np.lexsort((-contrast, ~known)).tolist():
        if len(sentences[i]) <= LONGEST and sentences[i] not in out.values():
            out.setdefault(best[i], sentences[i])
        if len(out) == EXAMPLES:
            break
    return list(out.values())


class Engine:
    """Answers requests. Any thread may read `now`; only one calls `answer` and `refresh`."""

    def __init__(self, folder: Path, model: str | Model | None = None, device: str | None = None) -> None:
        """model, device: as for `open_index`. Raises UserError."""
        self.folder, self.problem = folder, ""
        self._stamp = _stamp(folder)
        self.now = Snapshot(open_index(folder, model, device=device))

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
            self.now, self.problem = Snapshot(Index(reader, model)), ""
        except Exception as error:  # whatever it is, the old one can still be searched
            self.problem = self._message(error)

    def about(self, pixels: int) -> IndexOut:
        """The index, and the limits of the server. pixels: of an image that is sent"""
        index = self.now.image_index
        reader, images = index.reader, len(index)
        return IndexOut(
            name=self.folder.resolve().name,
            images=images,
            method=reader.manifest.model_id.method,
            model=Path(reader.manifest.model_id.path).name,
            heat=index.model.method.has_layout,
            calibrated_texts=images >= MIN_IMAGES and not reader.built_in_texts,
            calibrated_images=images >= MIN_IMAGES,
            validated=index.model.weakness,
            notes=list(index.notes()) if images else [],
            samples=[sample_out(reader.rows[row]) for row in self.now.samples],
            examples=self.now.examples,
            limits={"characters": CHARACTERS, "hits": HITS, "bytes": IMAGE, "pixels": pixels},
        )

    def _message(self, error: Exception) -> str:
        """An error in one line, without the path of the index, which clients must not see."""
        message = str(error).replace(str(self.folder), self.folder.name)
        return " ".join(message.split()) or type(error).__name__

    def answer(self, requests: list[Any]) -> list[Any]:
        """A response to each `TextQuery`, `ImageQuery` and `HeatQuery`, in batches of one kind and k.

        Raises HTTPException where a file of the index is damaged; `problem` says so from then on.
        """
        kinds: dict[Any, list[int]] = {}
        for i, request in enumerate(requests):
            kinds.setdefault((type(request), getattr(request, "k", 0)), []).append(i)
        out: list[Any] = [None] * len(requests)
        try:
            for (kind, k), places in kinds.items():
                group = [requests[i] for i in places]
                answers = self._heat(group) if kind is HeatQuery else self._search(group, k)
                for i, answer in zip(places, answers, strict=True):
                    out[i] = answer
        except CorruptIndex as error:
            if self.problem != (problem := self._message(error)):
                self.problem = problem
                log.error("%s", error)
            raise HTTPException(503, problem) from None
        return out

    def _search(self, queries: Sequence[TextQuery | ImageQuery], k: int) -> list[SearchOut]:
        index = self.now.image_index
        texts = [query.text for query in queries if isinstance(query, TextQuery)]
        images = [query.image for query in queries if isinstance(query, ImageQuery)]
        results = index.search(texts, k) if texts else index.search_images(images, k)
        rows, numbers = index.reader.rows, index.reader.numbers
        return [search_out(one, [rows[numbers[hit.path]] for hit in one.hits]) for one in results]

    def _heat(self, queries: Sequence[HeatQuery]) -> list[HeatOut]:
        index = self.now.image_index
        texts_of = [[sentence.text for sentence in sentences(query.text)] for query in queries]
        rows = [self.now.read(query.image)[0] for query in queries]
        grid = index.model.method.grid or (CELLS, CELLS)
        try:
            heat = index.heat(list(zip(rows, texts_of, strict=True)), grid)
        except UserError:  # changed just now
            raise HTTPException(*CHANGED) from None
        squashed, pairs = index.model.transform.resize == "squash", zip(texts_of, heat, strict=True)
        return [heat_out(texts, one.double().numpy(), squashed) for texts, one in pairs]


def _stamp(folder: Path) -> tuple[int, ...]:
    """A key that changes when the manifest is replaced."""
    try:
        state = (folder / MANIFEST).stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns


@dataclass(eq=False)
class Job:
    """A request that waits for its answer."""

    request: Any
    client: str
    answer: asyncio.Future[Any]


class Batcher:
    """A queue in front of the one thread that owns the model.

    Requests that arrive while it works form the next batch, however few: first the oldest of every client,
    then the next of each; of long texts only so many. A request is refused when the queue, or its client's
    share of it, is full, and leaves the queue when it is cancelled.
    """

    def __init__(
        self, work: Callable[[list[Any]], list[Any]], between: Callable[[], None], *, limits: Limits
    ) -> None:
        """
        work     from requests to their answers, in order
        between  called in the same thread before every batch, and each TICK while there is none
        """
        self.work, self.between, self.limits, self.busy = work, between, limits, False
        self._waiting: list[Job] = []
        self._news, self._thread = asyncio.Event(), ThreadPoolExecutor(1, "model")

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    async def answer(self, request: Any, client: str = "") -> Any:
        """The answer to a request. Raises HTTPException if the queue is full."""
        own = sum(job.client == client for job in self._waiting)
        if len(self) >= self.limits.queue or own >= max(1, int(self.limits.queue * self.limits.share)):
            raise HTTPException(503, "the server has too much to do; try again in a moment")
        job = Job(request, client, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._news.set()
        try:
            return await job.answer
        finally:
            if job in self._waiting:
                self._waiting.remove(job)

    async def run(self) -> None:
        """Answer requests until this is cancelled."""
        while True:
            if not self._waiting:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), TICK)
            self._news.clear()
            await self._in_thread(self.between)
            if jobs := self._next_batch():
                await self._answer(jobs)

    def _next_batch(self) -> list[Job]:
        turns, characters, jobs = Counter[str](), 0, list[Job]()

        def turn(job: Job) -> int:
            turns[job.client] += 1
            return turns[job.client]

        for job in sorted(self._waiting, key=turn):
            characters += len(getattr(job.request, "text", ""))
            if len(jobs) == self.limits.batch or (jobs and characters > CHARACTERS):
                break
            jobs.append(job)
        self._waiting = [job for job in self._waiting if job not in jobs]
        return jobs

    async def _answer(self, jobs: list[Job]) -> None:
        self.busy = True  # and stays so where the server ends meanwhile
        try:
            answers = await self._in_thread(self.work, [job.request for job in jobs])
            self.busy = False
        except Exception as error:
            self.busy = False
            if len(jobs) > 1:  # one of them is at fault; the others shall have their answers
                for job in jobs:
                    await self._answer([job])
            elif not jobs[0].answer.done():
                jobs[0].answer.set_exception(error)
            return
        for job, answer in zip(jobs, answers, strict=True):
            if not job.answer.done():  # else its client has left
                job.answer.set_result(answer)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
