"""`grainline serve`: the routes, and the uvicorn server with a limit on the time of headers, and its end.

Requests that need the model go through one queue. uvicorn limits the time between two requests alone: it
waits without end for the first one, and for the rest of headers that have begun. The guard limits the time of
bodies, and the system that of a client which reads nothing of its response. Nothing limits connections:
before a public server belongs a proxy that does.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from anyio import CapacityLimiter, to_thread
from fastapi import Body, FastAPI, File, Form, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from grainline import __version__
from grainline.config import parse, plain
from grainline.data.captions import sentences
from grainline.data.decode import MAX_PIXELS
from grainline.data.record import CorruptSample
from grainline.errors import UserError, amount, escape_controls
from grainline.model import Model
from grainline.system import openable
from grainline.web import schema
from grainline.web.engine import Batcher, Engine, ImageQuery
from grainline.web.guard import (
    Decoders,
    Guard,
    Limits,
    client_of,
    error_response,
    local,
    square_of,
    thumbnail,
)

DISCONNECTED = 499  # nobody reads it
PIXELS = 40_000_000  # of an image that is sent
SIDE = 2048  # pixels of the longer side of an image that is shown
PATIENCE = 30.0  # seconds for the answer to a whole request
GRACE = 3.0  # seconds for requests under way once the server has to end
HEADERS = 10.0  # seconds for the headers of a request, from the connection or the last response on
READING = 20.0  # seconds in which a client reads nothing of a response that waits for it
FILES = 8192  # that may be open: connections, most of all
QUEUE = 4096  # connections that wait to be accepted; a client without room there tries again after seconds
CODES = (400, 403, 404, 408, 409, 410, 413, 415, 421, 422, 500, 503, 504)
ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": schema.Error} for code in CODES}
STATIC = Path(__file__).with_name("static")
log = logging.getLogger(__name__)
searches = logging.getLogger("grainline.web.searches")


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
    """The application around one index, with its queue and its limits; public methods are its routes."""

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
        content: dict[str, Any] = {"content": {"image/jpeg": {}}}
        jpeg: dict[str, Any] = {"response_class": Response, "responses": {200: content}}
        app.post("/api/search")(self.search)
        app.post("/api/search/image")(self.search_image)
        app.post("/api/heat")(self.heat)
        app.get("/api/image/{name}", **jpeg)(self.image)
        app.post("/api/sentences")(self.split)
        app.get("/api/index")(self.index)
        app.get("/api/health")(self.health)
        app.get("/docs", include_in_schema=False)(self.docs)
        app.mount("/", StaticFiles(directory=STATIC, html=True))
        self.app = Guard(app, limits, host)

    @asynccontextmanager
    async def _life(self, _: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(self.batcher.run())
        yield
        worker.cancel()

    async def search(self, request: Request, query: schema.TextQuery) -> schema.SearchOut:
        """Images for a description, with p of each sentence in each of them."""
        self._need_images()
        line = " ".join(query.text.split())
        async with self._attended(request) as client:
            return await self._answer(client, query, f'"{line if len(line) <= 60 else f"{line[:59]}…"}"')

    async def search_image(
        self,
        request: Request,
        image: Annotated[UploadFile | None, File()] = None,
        name: Annotated[schema.Name | None, Form()] = None,
        k: Annotated[schema.Number, Form()] = 12,
    ) -> schema.SearchOut:
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

    async def heat(self, request: Request, query: schema.HeatQuery) -> schema.HeatOut:
        """Heat of each sentence of a text over an image of the index."""
        if not self.engine.now.image_index.model.method.has_layout:
            raise HTTPException(409, "this model cannot show where a sentence lies")
        async with self._attended(request) as client:
            return await self._answer(client, query)

    async def image(
        self, request: Request, name: schema.Name, side: Annotated[int, Query(ge=16, le=SIDE)] = SIDE
    ) -> Response:
        """An image of the index as a JPEG whose longer side has at most `side` pixels."""
        async with self._attended(request) as client:
            body = await self.decoders.run(client, lambda: self.engine.now.read(name)[1], thumbnail, side)
        headers = {"Cache-Control": "private, max-age=86400, immutable"}  # the name is that of the bytes
        return Response(body, media_type="image/jpeg", headers=headers)

    async def split(
        self, text: Annotated[str, Body(embed=True, max_length=schema.CHARACTERS)]
    ) -> dict[Literal["sentences"], list[str]]:
        """The sentences of a text, as the search takes them."""
        parts = await to_thread.run_sync(sentences, text, limiter=self.splitter)
        return {"sentences": [sentence.text for sentence in parts]}

    def index(self) -> schema.IndexOut:
        """The index, and the limits of the server."""
        return self.engine.about(PIXELS)

    async def docs(self) -> Response:
        return FileResponse(STATIC / "docs.html")

    async def health(self) -> schema.Health:
        """Whether the server answers, and how many requests wait for the model."""
        problem = self.engine.problem
        return schema.Health(status="stale" if problem else "ok", waiting=len(self.batcher), problem=problem)

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
        answer = await self.batcher.answer(query, client)
        if name:
            took, images = 1000 * (time.monotonic() - started), amount(len(answer.hits), "image")
            searches.info("search %s: %s, %.0f ms", escape_controls(name), images, took)
        return answer


async def _disconnected(request: Request, deadline: asyncio.Timeout) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    deadline.reschedule(0)


class Connection(H11Protocol):
    """uvicorn's connection, closed where the headers of a request take too long."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.loop.call_later(HEADERS, self._close_without_request, None)

    def on_response_complete(self) -> None:
        self.loop.call_later(HEADERS, self._close_without_request, self.cycle)
        super().on_response_complete()

    def _close_without_request(self, last: Any) -> None:
        """last: the request before, which `cycle` still is as long as the headers of another have no end"""
        if self.cycle is last:
            self.transport.close()


def program(server: Server) -> uvicorn.Server:
    """A server that completes running requests before it ends, and after GRACE responds to them with 503."""
    settings = uvicorn.Config(
        server.app,
        http=Connection,
        ws="none",
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=QUEUE,
        timeout_keep_alive=int(HEADERS),
        timeout_graceful_shutdown=GRACE,  # type: ignore[arg-type]
    )
    return uvicorn.Server(settings)


def serve(
    folder: Path,
    model: str | Model | None,
    host: str,
    port: int,
    limits: Mapping[str, Any] | None = None,
    *,
    browser: bool = False,
) -> None:
    """Serve an index until Ctrl-C, with a short line for each search.

    limits   fields of `Limits`
    browser  open the page

    UserError where the index cannot be opened, or the address not used.
    """
    allowed = parse(Limits, dict(limits or {}), "the options")
    openable(FILES)
    with listening(host, port) as listener:  # before the model is loaded, which takes longer
        server = Server(Engine(folder, model), allowed, host)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}/"
        print(f"serving {folder} at {address} (Ctrl-C ends it)", flush=True)
        log_searches()
        if browser:  # in a thread: a browser of the terminal would not return
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        if not local(host):
            print("everyone who can reach this address can search it and see its images", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn ends in order, then sends itself the signal
        with suppress(KeyboardInterrupt):  # what Ctrl-C has become by then
            program(server).run(sockets=[listener])
        print("ended", flush=True)
        if server.batcher.busy:  # its batch takes longer than anybody waits
            sys.stderr.flush()
            os._exit(0)


def log_searches() -> None:
    """Print a line for each search. Nothing else is logged but failures."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    searches.handlers, searches.propagate = [handler], False
    searches.setLevel(logging.INFO)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of forms that are broken


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. UserError if the address is in use or not of this machine."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((host, port), family=family, backlog=QUEUE)
        # Its connections inherit both. Without the first, the body of a response waits 40 ms for its headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * READING))
        return listener
    except OSError as error:
        # Without the address, which Python adds once more.
        why = str(error.strerror or error).partition(" (while attempting")[0]
        raise UserError(f"cannot listen at {host}:{port}: {why}; choose another --host or --port") from None
