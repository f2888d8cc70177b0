"""The routes: the page, the JSON interface, images. Requests that need the model go through one queue."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, File, Form, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from grainline import __version__
from grainline.config import plain
from grainline.data.captions import sentences
from grainline.data.decode import MAX_PIXELS
from grainline.data.record import CorruptSample
from grainline.errors import UserError, amount, escape_controls
from grainline.index.calibration import MIN_IMAGES
from grainline.web.decoders import Decoders, square_of, thumbnail
from grainline.web.engine import Batcher, Engine, ImageQuery
from grainline.web.guard import IMAGE, Guard, Limits, client_of, error_response
from grainline.web.schema import (
    CHARACTERS,
    HITS,
    Error,
    Health,
    HeatOut,
    HeatQuery,
    IndexOut,
    LimitsOut,
    Name,
    Number,
    SearchOut,
    Sentences,
    TextOnly,
    TextQuery,
    sample_out,
)

DISCONNECTED = 499  # nobody reads it
PIXELS = 40_000_000  # of an image that is sent
SIDE = 2048  # pixels of the longer side of an image that is shown
PATIENCE = 30.0  # seconds for the answer to a whole request
GRACE = 3.0  # seconds for requests under way once the server has to end
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Error} for code in (400, 403, 404, 408, 409, 410, 413, 415, 421, 422, 500, 503, 504)
}
STATIC = Path(__file__).with_name("static")
SEARCHES = "grainline.web.searches"
log = logging.getLogger(__name__)


async def respond(_: Request, error: Exception) -> Response:
    """Every failure as one line."""
    status, why = 500, "the server failed at this; its log says why"
    if isinstance(error, HTTPException):
        status, why = error.status_code, error.detail
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "request"
        status, why = 422, f"{where}: {plain(first)}"
        if "UploadFile" in why:
            why = f"{where}: it must be a file, with a name"
        if first["type"] == "json_invalid":  # its place is only the number of a byte
            why = f"the body is no JSON: {first['ctx']['error']}"
    elif isinstance(error, CorruptSample | UserError):
        status, why = 400, str(error)
    else:
        log.error("a request failed", exc_info=error)
    return error_response(status, why)


class Server:
    """The application around one index, with its queue and its limits."""

    def __init__(self, engine: Engine, limits: Limits, host: str = "127.0.0.1") -> None:
        self.engine, self.limits = engine, limits
        self.batcher = Batcher(engine.answer, engine.refresh, limits=limits)
        self.decoders, self.splitter = Decoders(limits.share), CapacityLimiter(1)
        errors = RequestValidationError, HTTPException, CorruptSample, UserError, Exception
        app = FastAPI(
            title="grainline",
            description="Search a folder of images by long descriptions. Errors are one line.",
            version=__version__,
            docs_url=None,  # FastAPI's pages load their scripts from elsewhere
            redoc_url=None,
            lifespan=self._life,
            responses=ERRORS,
            exception_handlers=dict.fromkeys(errors, respond),
        )
        self._add_queries(app)
        self._add_facts(app)
        app.mount("/", StaticFiles(directory=STATIC, html=True))
        self.app = Guard(app, limits, host)

    @asynccontextmanager
    async def _life(self, _: FastAPI) -> AsyncIterator[None]:
        self.batcher.start()
        yield
        await to_thread.run_sync(self.batcher.close, GRACE)

    def _add_queries(self, app: FastAPI) -> None:
        """Routes that need the model."""

        @app.post("/api/search")
        async def search(request: Request, query: TextQuery) -> SearchOut:
            """Images for a description, with p of each sentence in each of them."""
            self._need_images()
            async with self._attended(request) as client:
                return await self._answer(client, query, f'"{shortened(query.text)}"')

        @app.post("/api/search/image")
        async def search_image(
            request: Request,
            image: Annotated[UploadFile | None, File()] = None,
            name: Annotated[Name | None, Form()] = None,
            k: Annotated[Number, Form()] = 12,
        ) -> SearchOut:
            """Images near to an uploaded one, or to one of the index by its name."""
            self._need_images()
            if (image is None) == (name is None):
                raise HTTPException(422, "give an image, or the name of one in the index")
            now, sent = self.engine.now, b"" if image is None else await image.read()
            pixels = PIXELS if name is None else MAX_PIXELS

            def read() -> bytes:
                return sent if name is None else now.read(name)[1]

            async with self._attended(request) as client:
                square = now.image_index.model.transform.square
                decoded = await self.decoders.run(client, read, square_of, square, pixels)
                return await self._answer(client, ImageQuery(decoded, k), "an image")

        @app.post("/api/heat")
        async def heat(request: Request, query: HeatQuery) -> HeatOut:
            """Heat of each sentence of a text over an image of the index."""
            if not self.engine.now.image_index.model.method.has_layout:
                raise HTTPException(409, "this model cannot show where a sentence lies")
            async with self._attended(request) as client:
                return await self._answer(client, query)

    def _add_facts(self, app: FastAPI) -> None:
        """Routes that do not need the model."""

        @app.get(
            "/api/image/{name}", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}}
        )
        async def image(
            request: Request,
            name: Name,
            side: Annotated[int, Query(ge=16, le=SIDE)] = SIDE,
        ) -> Response:
            """An image of the index as a JPEG whose longer side has at most `side` pixels."""

            def read() -> bytes:
                return self.engine.now.read(name)[1]

            async with self._attended(request) as client:
                body = await self.decoders.run(client, read, thumbnail, side)
            headers = {"Cache-Control": "private, max-age=86400, immutable"}  # the name is that of the bytes
            return Response(body, media_type="image/jpeg", headers=headers)

        @app.post("/api/sentences")
        async def split(query: TextOnly) -> Sentences:
            """The sentences of a text, as the search takes them."""
            parts = await to_thread.run_sync(sentences, query.text, limiter=self.splitter)
            return Sentences(sentences=[sentence.text for sentence in parts])

        @app.get("/api/index")
        def index() -> IndexOut:
            """The index, and the limits of the server."""
            snapshot = self.engine.now
            now = snapshot.image_index
            model_id, images = now.reader.manifest.model_id, len(now)
            limits = LimitsOut(characters=CHARACTERS, hits=HITS, bytes=IMAGE, pixels=PIXELS)
            return IndexOut(
                name=self.engine.folder.resolve().name,
                images=images,
                method=model_id.method,
                model=Path(model_id.path).name,
                heat=now.model.method.has_layout,
                calibrated_texts=images >= MIN_IMAGES and not now.reader.built_in_texts,
                calibrated_images=images >= MIN_IMAGES,
                validated=now.validated,
                notes=list(now.notes()) if images else [],
                samples=[sample_out(now.reader.rows[row]) for row in snapshot.samples],
                examples=snapshot.examples,
                limits=limits,
            )

        @app.get("/docs", include_in_schema=False)
        async def docs() -> Response:
            return FileResponse(STATIC / "docs.html")

        @app.get("/api/health")
        async def health() -> Health:
            """Whether the server answers, and how many requests wait for the model."""
            problem = self.engine.problem
            return Health(status="stale" if problem else "ok", waiting=len(self.batcher), problem=problem)

    def _need_images(self) -> None:
        if not len(self.engine.now.image_index):
            raise HTTPException(409, "this index holds no images yet")

    @asynccontextmanager
    async def _attended(self, request: Request) -> AsyncIterator[str]:
        """The client of a request. The block is cancelled when the client is gone, or has waited too long."""
        why = 504, f"no answer within {PATIENCE:g} s; try again"
        try:
            async with asyncio.timeout(PATIENCE) as deadline:
                gone = asyncio.create_task(_disconnected(request, deadline))
                try:
                    yield client_of(request.scope, self.limits.behind_proxy)
                finally:
                    if not gone.cancel():  # it has ended
                        why = DISCONNECTED, "the client has disconnected"
        except TimeoutError:
            raise HTTPException(*why) from None

    async def _answer(self, client: str, query: Any, name: str = "") -> Any:
        """The answer of the model; a query is withdrawn when this is cancelled. name: of a search, logged"""
        started = time.monotonic()
        answer = await asyncio.wrap_future(self.batcher.submit(query, client))
        if name:
            facts = name, amount(len(answer.hits), "image"), 1000 * (time.monotonic() - started)
            logging.getLogger(SEARCHES).info("search %s: %s, %.0f ms", *facts)
        return answer


def shortened(text: str) -> str:
    """A query in a line of the log: its first 60 characters, without control characters."""
    line = " ".join(text.split())
    return escape_controls(line if len(line) <= 60 else f"{line[:59]}…")


async def _disconnected(request: Request, deadline: asyncio.Timeout) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    deadline.reschedule(0)
