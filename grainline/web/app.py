"""The routes: the page, the JSON interface, images. Requests that need the model go through one queue."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, File, Form, HTTPException, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException

from grainline import __version__
from grainline.data.captions import sentences
from grainline.data.record import CorruptSample
from grainline.errors import UserError
from grainline.index.calibration import MIN_IMAGES
from grainline.index.calibration_texts import DEFAULT_SOURCE
from grainline.index.store import CorruptIndex
from grainline.web.engine import Batcher, Busy, Engine, HeatRequest, ImageGone, ImageSearch, TextSearch
from grainline.web.guard import Guard, names_of
from grainline.web.limits import CHARACTERS, HITS, Limits
from grainline.web.schema import (
    Error,
    Health,
    HeatOut,
    HeatQuery,
    IndexOut,
    LimitsOut,
    Name,
    Number,
    Refused,
    SearchOut,
    Sentences,
    TextOnly,
    TextQuery,
    decode_upload,
    heat_out,
    search_out,
    thumbnail,
)

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
LEFT = 499  # nobody reads it: the client has left
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Error} for code in (400, 403, 404, 408, 409, 410, 413, 415, 421, 422, 500, 503, 504)
}
log = logging.getLogger("uvicorn.error")


class Server:
    """The application around one index, with its queue and its limits."""

    def __init__(self, engine: Engine, limits: Limits, host: str = "127.0.0.1") -> None:
        self.engine, self.limits = engine, limits
        self.batcher = Batcher(engine.answer, engine.refresh, batch=limits.batch, queue=limits.queue)
        self.decoders = CapacityLimiter(limits.decoders)
        app = FastAPI(
            title="grainline",
            description="Search a folder of images by long descriptions. Errors are one line.",
            version=__version__,
            docs_url=None,  # FastAPI's pages load their scripts from elsewhere
            redoc_url=None,
            lifespan=self._life,
            responses=ERRORS,
        )
        _add_page(app)
        _add_errors(app)
        _add_errors_of_images(app)
        self._add_questions(app)
        self._add_facts(app)
        self.app = Guard(app, limits, names_of(host))

    @asynccontextmanager
    async def _life(self, _: FastAPI) -> AsyncIterator[None]:
        self.batcher.start()
        yield
        await to_thread.run_sync(self.batcher.close, self.limits.grace)

    def _add_questions(self, app: FastAPI) -> None:
        """Routes that need the model."""

        @app.post("/api/search")
        async def search(request: Request, query: TextQuery) -> SearchOut:
            """Images for a description, with p of each sentence in each of them."""
            self._need_images()
            return search_out(await self._ask(request, TextSearch(query.text, query.k)))

        @app.post("/api/search/image")
        async def search_image(
            request: Request, image: Annotated[UploadFile, File()], k: Annotated[Number, Form()] = 12
        ) -> SearchOut:
            """Images near to an uploaded one."""
            self._need_images()
            square = partial(
                decode_upload, await image.read(), self.engine.now.image_index.model, self.limits.pixels
            )
            query = await to_thread.run_sync(square, limiter=self.decoders)
            return search_out(await self._ask(request, ImageSearch(query, k)))

        @app.post("/api/heat")
        async def heat(request: Request, query: HeatQuery) -> HeatOut:
            """Heat of each sentence of a text over an image of the index."""
            model = self.engine.now.image_index.model
            if not model.method.has_layout:
                raise HTTPException(409, "this model cannot show where a sentence lies")
            maps = await self._ask(request, HeatRequest(query.image, query.text))
            return heat_out(maps, squashed=model.transform.resize == "squash")

    def _add_facts(self, app: FastAPI) -> None:
        """Routes that do not need the model."""

        @app.get(
            "/api/image/{name}", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}}
        )
        async def image(
            name: Name, side: Annotated[int, Query(ge=16, le=self.limits.side)] = self.limits.side
        ) -> Response:
            """An image of the index as a JPEG whose longer side has at most `side` pixels."""

            def jpeg() -> bytes:
                return thumbnail(self.engine.now.read(name), side)

            body = await to_thread.run_sync(jpeg, limiter=self.decoders)
            headers = {"Cache-Control": "private, max-age=86400, immutable"}  # the name is that of the bytes
            return Response(body, media_type="image/jpeg", headers=headers)

        @app.post("/api/sentences")
        def split(query: TextOnly) -> Sentences:
            """The sentences of a text, as the search takes them."""
            return Sentences(sentences=[sentence.text for sentence in sentences(query.text)])

        @app.get("/api/index")
        def index() -> IndexOut:
            """The index, and the limits of the server."""
            now = self.engine.now.image_index
            mark, images = now.reader.manifest.model_id, len(now)
            bounds = LimitsOut(
                characters=CHARACTERS, hits=HITS, bytes=self.limits.upload, pixels=self.limits.pixels
            )
            return IndexOut(
                name=self.engine.folder.resolve().name,
                images=images,
                method=mark.method,
                model=Path(mark.path).name,
                heat=now.model.method.has_layout,
                calibrated_texts=images >= MIN_IMAGES
                and now.reader.calibration_texts.source != DEFAULT_SOURCE,
                calibrated_images=images >= MIN_IMAGES,
                validated=now.validated,
                notes=list(now.notes()) if images else [],
                limits=bounds,
            )

        @app.get("/api/health")
        async def health() -> Health:
            """Whether the server answers, and how many requests wait for the model."""
            problem = self.engine.problem
            return Health(status="stale" if problem else "ok", waiting=len(self.batcher), problem=problem)

    def _need_images(self) -> None:
        if not len(self.engine.now.image_index):
            raise HTTPException(409, "this index holds no images yet")

    async def _ask(self, request: Request, query: Any) -> Any:
        """The answer of the model. A request is withdrawn on a disconnect or a timeout."""
        future = asyncio.wrap_future(self.batcher.submit(query))
        left = asyncio.create_task(_left(request))
        try:
            await asyncio.wait(
                {future, left}, timeout=self.limits.patience, return_when=asyncio.FIRST_COMPLETED
            )
            if future.done():
                return future.result()
            if left.done():
                raise HTTPException(LEFT, "the client has left")
            raise HTTPException(504, f"no answer within {self.limits.patience:g} s; try again")
        finally:
            future.cancel()
            left.cancel()
            with suppress(asyncio.CancelledError):
                await left


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_page(app: FastAPI) -> None:
    def add(path: str, name: str, kind: str) -> None:
        body = files("grainline.web").joinpath("static", name).read_bytes()

        async def page() -> Response:
            return Response(body, media_type=kind)

        app.add_api_route(path, page, include_in_schema=False)

    for path, (name, kind) in PAGE.items():
        add(path, name, kind)


def _add_errors(app: FastAPI) -> None:
    """Every failure as one line."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        if first["type"] == "json_invalid":  # where it stands is a number of a byte
            return _failed(422, f"the body is no JSON: {first['ctx']['error']}")
        where = ".".join(str(part) for part in first["loc"][1:]) or "request"
        return _failed(422, f"{where}: {first['msg'].removeprefix('Value error, ')}")

    @app.exception_handler(AnyHTTPException)
    async def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, AnyHTTPException)
        return _failed(error.status_code, str(error.detail))

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Exception) -> Response:  # noqa: ARG001
        return _failed(503, "the server has too much to do; try again in a moment", {"Retry-After": "1"})

    @app.exception_handler(CorruptSample)
    @app.exception_handler(UserError)
    async def wrong(_: Request, error: Exception) -> Response:
        return _failed(400, str(error))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error)
        return _failed(500, "the server failed at this; its log says why")


def _add_errors_of_images(app: FastAPI) -> None:
    """Errors of uploaded and indexed images."""

    @app.exception_handler(ImageGone)
    async def gone(_: Request, error: Exception) -> Response:
        assert isinstance(error, ImageGone)
        if error.indexed:
            return _failed(410, "the image is no longer what was indexed; refresh the index")
        return _failed(404, "no such image in this index")

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return _failed(error.status, str(error))

    @app.exception_handler(CorruptIndex)
    async def corrupt(_: Request, error: Exception) -> Response:
        log.error("%s", error)
        return _failed(500, "a file of the index is damaged; /api/health says which")


def _failed(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": " ".join(why.split())}, status, headers)
