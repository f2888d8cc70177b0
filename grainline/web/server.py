"""`grainline serve`: the uvicorn server with limits of connections and times, and a graceful end.

uvicorn limits only the time between two requests: it waits without limit for the first one and for the end
of headers. Here every connection has a deadline: for the first byte of a request, for the end of its headers,
and again after a response. A client that reads nothing of its response is dropped.

A connection takes a place, of which there are so many in all and for one address. Without a place it may
ask for /api/health; any other request gets 503. Of connections without a place the SPARE newest stay.
"""

import asyncio
import logging
import math
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from grainline.errors import UserError
from grainline.model import Model
from grainline.system import openable
from grainline.web.app import SEARCHES, Server
from grainline.web.engine import Engine
from grainline.web.guard import HEADERS, HEALTH, Guard, Pool, counted, error_response, is_listed, local
from grainline.web.limits import Limits

SPARE = 64
ACCEPTED = 128  # connections that are accepted at once: open files before the first of them can be refused
QUEUE = 4096  # connections that wait for that; a client that finds no room there tries again after seconds
OTHERS = 128  # files that are open in addition to connections
CROWDED = 503, "too many connections at a time; try again in a moment"


class Places:
    """Which connections have a place."""

    def __init__(self, guard: Guard, limits: Limits) -> None:
        self.guard, self.limits = guard, limits
        self.pool = Pool(limits.connections, limits.share)
        self.placed: dict[Connection, str] = {}  # with the client that its place counts for
        self.spare: dict[Connection, None] = {}  # oldest first

    def admit(self, connection: "Connection") -> bool:
        """Whether the connection has a place, now or already. If too many have none, the oldest is closed."""
        if connection in self.placed:
            return True
        client = self._client(connection)
        if self.pool.take(client):
            self.spare.pop(connection, None)
            self.placed[connection] = client
            return True
        self.spare[connection] = None
        if len(self.spare) > SPARE:
            oldest = next((one for one in self.spare if one.waits), connection)
            self.leave(oldest)
            oldest.close(*CROWDED)
        return False

    def leave(self, connection: "Connection") -> None:
        self.spare.pop(connection, None)
        if connection in self.placed:
            self.pool.give(self.placed.pop(connection))

    def _client(self, connection: "Connection") -> str:
        """ "" for a listed proxy: its requests count for other addresses, its connections for none."""
        address = connection.client[0] if connection.client else ""
        return "" if is_listed(address, self.limits.behind_proxy) else counted(address)


class Connection(H11Protocol):
    """uvicorn's connection with a place and a deadline."""

    def __init__(self, places: Places, **settings: Any) -> None:
        super().__init__(**settings)
        self.places, self.limits = places, places.limits
        self.app = self._handle
        self.started = False  # a part of the next request has arrived
        self.unsent: float = math.inf  # bytes of the response, when the timer was set
        self.timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._set_timer(self.limits.idle, self._timed_out)
        self.places.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        self.places.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.waits and not self.started:
            self.started = True
            self._set_timer(self.limits.headers, self._timed_out)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.started, self.unsent = False, math.inf
        self._set_timer(self.limits.idle, self._timed_out)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unsent = math.inf
        self._set_timer(self.limits.idle, self._timed_out)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.waits:
            self._set_timer(None)

    def shutdown(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words, in plain text
        self.close(400, "this is no HTTP request")

    def close(self, status: int = 0, why: str = "") -> None:
        """Close the connection, with an error for a client that sent, or may be about to send, a request."""
        asks = self.started or self.cycle is None
        if status and asks and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_error_bytes(status, why))
        self.transport.close()
        self._set_timer(self.limits.idle, self.transport.abort)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, as uvicorn calls it once the headers are there."""
        if not self.flow.write_paused:  # else the client still has to take the answer before
            self._set_timer(None)
        left = self.transport.is_closing()  # a place would never be given back
        if (not left and self.places.admit(self)) or scope["path"] == HEALTH:
            await self.places.guard(scope, receive, send)
        else:
            await self.places.guard.refuse(scope, receive, send, *CROWDED)

    def _set_timer(self, seconds: float | None, act: Callable[[], None] | None = None) -> None:
        """Set the one timer of this connection anew."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, act) if seconds is not None and act else None

    def _timed_out(self) -> None:
        """The deadline is over."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            if unsent >= self.unsent:
                self.transport.abort()
            else:
                self.unsent = unsent
                self._set_timer(self.limits.idle, self._timed_out)
        elif self.waits:
            late = 408, f"the headers were not sent within {self.limits.headers:g} s"
            self.close(*late if self.started else ())


@lru_cache(maxsize=1)  # in a flood all are alike
def _error_bytes(status: int, why: str) -> bytes:
    """A whole response of HTTP/1.1."""
    response = error_response(status, why)
    response.headers.update(HEADERS)
    response.headers["Connection"] = "close"
    lines = [b"HTTP/1.1 %d %s" % (status, STATUS_PHRASES[status])]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


class Program(uvicorn.Server):
    """A uvicorn server that completes running requests before it ends, or responds with 503."""

    def __init__(self, server: Server, log_level: str = "error") -> None:
        self.ours = server
        self.places = Places(server.app, server.limits)
        settings = uvicorn.Config(
            server.app,
            http=partial(Connection, self.places),  # type: ignore[arg-type]
            ws="none",
            log_level=log_level,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=ACCEPTED,
            timeout_keep_alive=math.ceil(server.limits.idle),
            timeout_graceful_shutdown=math.ceil(server.limits.grace) + 2,
        )
        super().__init__(settings)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(QUEUE)  # asyncio has one number for both

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(self.ours.limits.grace, self.ours.app.end),
            loop.call_later(self.ours.limits.grace + 1, self._drop),
        ]
        await super().shutdown(sockets)
        for timer in timers:
            timer.cancel()

    def _drop(self) -> None:
        """Close connections whose clients do not read their response."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def serve(
    folder: Path, model: str | Model | None, host: str, port: int, limits: Limits, *, browser: bool = False
) -> None:
    """Serve an index until Ctrl-C, with a short line for each search.

    browser  open the page

    UserError where the index cannot be opened, or the address not used.
    """
    room = openable(limits.connections + SPARE + ACCEPTED + OTHERS) - SPARE - ACCEPTED - OTHERS
    few = room < limits.connections
    if few:
        limits = limits.model_copy(update={"connections": max(1, room)})
    listener = listening(host, port)  # before the model is loaded, which takes longer
    with listener:
        server = Server(Engine(folder, model), limits, host)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}/"
        print(f"serving {folder} at {address} (Ctrl-C ends it)", flush=True)
        log_searches()
        if browser:  # in a thread: a browser of the terminal would not return
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        if few:
            print(
                f"this system lets few files be open: at most {limits.connections} connections at a time",
                flush=True,
            )
        if not local(host):
            print("everyone who can reach this address can search it and see its images", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn ends in order, then sends itself the signal
        with suppress(KeyboardInterrupt):  # what Ctrl-C has become by then
            Program(server).run(sockets=[listener])
        print("ended", flush=True)
        if server.batcher.worker.is_alive():  # its batch takes longer than anybody waits
            sys.stderr.flush()
            os._exit(0)


def log_searches() -> None:
    """Print what the application logs of searches: one line each. Nothing else is logged but failures."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    searches = logging.getLogger(SEARCHES)
    searches.handlers, searches.propagate = [handler], False
    searches.setLevel(logging.INFO)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of forms that are broken


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. UserError if the address is in use or not of this machine."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        # Without the address, which Python adds once more.
        why = str(error.strerror or error).partition(" (while attempting")[0]
        raise UserError(f"cannot listen at {host}:{port}: {why}; choose another --host or --port") from None
