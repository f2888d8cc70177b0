"""`grainline serve`: checks, sockets, and the run of the server."""

import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from grainline.errors import UserError
from grainline.web.limits import Limits

NEEDED = ("fastapi", "uvicorn", "python_multipart")
OTHERS = 128  # files that are open beside connections


def serve(folder: Path, model: str | None, host: str, port: int, limits: Limits) -> None:
    """Serve an index until Ctrl-C. UserError where the index, the address or the extra is missing."""
    if any(find_spec(name) is None for name in NEEDED):
        raise UserError("grainline serve needs more packages: pip install 'grainline[serve]'")
    from grainline.web.app import Server
    from grainline.web.engine import Engine
    from grainline.web.guard import local
    from grainline.web.server import ACCEPTED, SPARE, Program

    room = openable(limits.connections + SPARE + ACCEPTED + OTHERS) - SPARE - ACCEPTED - OTHERS
    few = room < limits.connections
    if few:
        limits = limits.model_copy(update={"connections": max(1, room)})
    listener = listening(host, port)  # before the model is loaded, which takes longer
    with listener:
        server = Server(Engine(folder, model), limits, host)
        name = f"[{host}]" if ":" in host else host
        print(f"serving {folder} at http://{name}:{listener.getsockname()[1]}/ (Ctrl-C ends it)", flush=True)
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
        if server.batcher.works:  # its batch takes longer than anybody waits
            sys.stderr.flush()
            os._exit(0)


def openable(files: int) -> int:
    """Raise the limit of open files, if possible to `files`. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < files:  # RLIM_INFINITY is -1, so min() would take it
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return files if soft == resource.RLIM_INFINITY else soft


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. UserError if the address is in use or not of this machine."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        # Without the address, which Python adds once more.
        why = str(error.strerror or error).partition(" (while attempting")[0]
        raise UserError(f"cannot listen at {host}:{port}: {why}; choose another --host or --port") from None
