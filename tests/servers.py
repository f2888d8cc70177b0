"""A real server on a free port of this machine, in a thread; and a gate before its model."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from grainline.web.engine import Engine
from grainline.web.guard import Limits
from grainline.web.server import Server, listening, program

PATIENCE = 20.0  # seconds


@contextmanager
def running(engine: Engine, limits: Limits | None = None, host: str = "127.0.0.1") -> Iterator[httpx.Client]:
    """A client of a server that answers from this engine. host  what the server believes it listens at"""
    server = Server(engine, limits or Limits(), host)
    with listening("127.0.0.1", 0) as listener:
        running_program = program(server)
        thread = threading.Thread(target=running_program.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            port = listener.getsockname()[1]
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
                until(lambda: running_program.started)
                yield client
        finally:
            running_program.should_exit = True
            thread.join()


def until(true: Callable[[], Any]) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


class Gate:
    """Holds the worker of an engine back, and notes what it is asked."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[list[Any]] = []
        self.open = threading.Event()
        self._answer = engine.answer
        patch.setattr(engine, "answer", self.answer)

    def answer(self, requests: list[Any]) -> list[Any]:
        self.calls.append(requests)
        assert self.open.wait(PATIENCE)
        return self._answer(requests)
