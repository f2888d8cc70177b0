"""`grainline serve`: the uvicorn server, with a limit on the time of headers, and its end.

uvicorn limits the time between two requests alone: it waits without end for the first one, and for the rest
of headers that have begun. The guard limits the time of bodies, and the system that of a client which reads
nothing of its response. Nothing limits connections: before a public server belongs a proxy that does.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from grainline.errors import UserError
from grainline.model import Model
from grainline.system import openable
from grainline.web import app
from grainline.web.engine import Engine
from grainline.web.guard import Limits, local

HEADERS = 10.0  # seconds for the headers of a request, from the connection or the last response on
READING = 20.0  # seconds in which a client reads nothing of a response that waits for it
FILES = 8192  # that may be open: connections, most of all
QUEUE = 4096  # connections that wait to be accepted; a client without room there tries again after seconds


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


def program(server: app.Server) -> uvicorn.Server:
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
        timeout_graceful_shutdown=app.GRACE,  # type: ignore[arg-type]
    )
    return uvicorn.Server(settings)


def serve(
    folder: Path, model: str | Model | None, host: str, port: int, limits: Limits, *, browser: bool = False
) -> None:
    """Serve an index until Ctrl-C, with a short line for each search.

    browser  open the page

    UserError where the index cannot be opened, or the address not used.
    """
    openable(FILES)
    listener = listening(host, port)  # before the model is loaded, which takes longer
    with listener:
        server = app.Server(Engine(folder, model), limits, host)
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
        if server.batcher.worker.is_alive():  # its batch takes longer than anybody waits
            sys.stderr.flush()
            os._exit(0)


def log_searches() -> None:
    """Print what the application logs of searches: one line each. Nothing else is logged but failures."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    searches = logging.getLogger(app.SEARCHES)
    searches.handlers, searches.propagate = [handler], False
    searches.setLevel(logging.INFO)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of forms that are broken


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. UserError if the address is in use or not of this machine."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((host, port), family=family, backlog=QUEUE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux; its connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * READING))
        return listener
    except OSError as error:
        # Without the address, which Python adds once more.
        why = str(error.strerror or error).partition(" (while attempting")[0]
        raise UserError(f"cannot listen at {host}:{port}: {why}; choose another --host or --port") from None
