"""SIGINT and SIGTERM as requests: work stops where it can be resumed. A second signal stops it at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AT_ONCE: dict[signal.Signals, Any] = {  # the default handlers of these signals in Python
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Stopped(Exception):
    """A signal stopped the work. The message explains how to resume it."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + number  # the exit code, as in shells


class Request:
    """A signal handler that stores the number of the signal; 0 before one comes."""

    def __init__(self, answer: str = "") -> None:
        """answer  what to print on stderr when the signal comes"""
        self.number, self._answer, self._process = 0, answer, os.getpid()

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.number = number
        for one, at_once in AT_ONCE.items():
            signal.signal(one, at_once)
        if self._answer and os.getpid() == self._process:  # not in the children that inherit this handler
            # Not print: the signal may have come in the middle of one.
            os.write(2, f"\ngrainline: {signal.Signals(number).name}: {self._answer}\n".encode())


@contextmanager
def requests(answer: str = "") -> Iterator[Request]:
    """Store signals that come during the block in a Request; a second signal has its usual effect.

    Ignored signals, such as SIGINT under nohup, stay ignored. Outside the main thread nothing changes,
    because Python handles signals only there.
    """
    request = Request(answer)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in AT_ONCE}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, request)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def outlive_first(_: int = 0) -> None:
    """Ignore the first signal in a worker process, whose parent handles it: a group gets a signal at once."""
    request = Request()
    for number in AT_ONCE:
        signal.signal(number, request)
