"""From a folder to a server that listens: what `grainline serve` does."""

import socket
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from grainline.errors import UserError
from grainline.web.limits import Limits

NEEDED = ("fastapi", "uvicorn", "python_multipart")
BACKLOG = 128
IDLE = 5  # seconds until a connection without requests is closed
CONNECTIONS = 4  # for each request that may run: browsers keep some open


def serve(folder: Path, model: str | None, host: str, port: int, limits: Limits) -> None:
    """Serve an index until Ctrl-C. UserError where the index, the address or the extra is missing."""
    if any(find_spec(name) is None for name in NEEDED):
        raise UserError("grainline serve needs more packages: pip install 'grainline[serve]'")
    import uvicorn

    from grainline.web.app import Server
    from grainline.web.engine import Engine
    from grainline.web.guard import local

    listener = listening(host, port)  # before the model is loaded, which takes longer
    with listener:
        server = Server(Engine(folder, model), limits, host)
        settings = uvicorn.Config(
            server.app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=IDLE,
            limit_concurrency=CONNECTIONS * limits.requests,
        )
        shown = f"[{host}]" if ":" in host else host
        print(f"serving {folder} at http://{shown}:{listener.getsockname()[1]}/ (Ctrl-C ends it)", flush=True)
        if not local(host):
            print("everyone who can reach this address can search it and see its pictures", flush=True)
        with suppress(KeyboardInterrupt):  # uvicorn ends in order and then passes the signal on
            uvicorn.Server(settings).run(sockets=[listener])
        print("ended", flush=True)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. UserError where the address is taken or not ours."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        # Without the address, which Python adds once more.
        why = str(error.strerror or error).partition(" (while attempting")[0]
        raise UserError(f"cannot listen at {host}:{port}: {why}; choose another --host or --port") from None
