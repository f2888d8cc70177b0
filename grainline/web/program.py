"""The program that listens: uvicorn with our connections, which ends in order."""

import asyncio
import math
import socket
from functools import partial

import uvicorn

from grainline.web.app import Server
from grainline.web.connections import Connection, Places

ACCEPTED = 128  # connections that are accepted at once: open files before the first of them can be refused
QUEUE = 4096  # connections that wait for that; a client that finds no room there tries again after seconds


class Program(uvicorn.Server):
    """A server that answers the requests under way before it ends: as they deserve, or with 503."""

    def __init__(self, server: Server, log_level: str = "warning") -> None:
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
        """Close connections whose clients take no answer."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
