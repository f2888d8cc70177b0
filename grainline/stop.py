"""SIGINT and SIGTERM as a request: work stops where it can go on later. A second signal stops it at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AT_ONCE: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""What Python does about these signals if nobody asks for anything else."""


class Stopped(Exception):
    """Work that a signal stopped, with what there is to go on from."""

    def __init__(self, number: int, message: str) -> None:
        """number  of the signal; shells know such an end by the exit code 128 + number"""
        super().__init__(message)
        self.code = 128 + number


class Request:
    """The number of the signal that came; 0 while there was none."""

    def __init__(self, answer: str = "") -> None:
        """answer  what to say on stderr when the signal comes"""
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
    """Signals that come during the block are noted, not obeyed; a second one is obeyed.

    A signal that is ignored, as SIGINT is behind nohup, stays ignored. In another thread than the main one
    nothing changes, because there Python takes no signals.
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
    """For a process that works for another one and ends with it: leave the first signal to that one.

    Terminals, torchrun and job schedulers send a signal to all processes of a group.
    """
    request = Request()
    for number in AT_ONCE:
        signal.signal(number, request)
