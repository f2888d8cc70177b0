"""Windows, as far as a machine without it can tell: the calls that it lacks are taken away."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from grainline import system
from grainline.data.open_source import _kind
from grainline.errors import UserError
from grainline.files import NoLocks, one_writer


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """No fcntl, resource, pread; a stand-in for msvcrt. Called with the error of the next locks, or 0."""
    answer = SimpleNamespace(error=0)

    def locking(descriptor: int, mode: int, number: int) -> None:
        assert (mode, number) == (2, 1)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) > 10**6, "readers need the bytes of the content"
        if answer.error:
            raise OSError(answer.error, os.strerror(answer.error))

    msvcrt = ModuleType("msvcrt")
    msvcrt.locking, msvcrt.LK_NBLCK = locking, 2  # type: ignore[attr-defined]
    for name, module in {"fcntl": None, "resource": None, "msvcrt": msvcrt}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delattr(os, "pread")
    monkeypatch.setattr(system.sys, "platform", "win32")
    return lambda error: setattr(answer, "error", error)


def test_without_fcntl_a_folder_has_one_writer(windows: Callable[[int], None], tmp_path: Path) -> None:
    with one_writer(tmp_path, "run"):
        assert (tmp_path / "lock").read_text().startswith(f"{os.getpid()} ")
        windows(errno.EACCES)
        with (
            pytest.raises(UserError, match=f"run is being written by process {os.getpid()} on"),
            one_writer(tmp_path, "run"),
        ):
            pass
        windows(errno.EINVAL)
        with pytest.raises(NoLocks, match="cannot be locked: invalid argument"), one_writer(tmp_path, "run"):
            pass


@pytest.mark.parametrize("path", ["C:\\photos", "c:\\photos", "C:/photos", "D:\\a b\\rows.csv?image=photo"])
def test_the_letter_of_a_drive_is_no_kind_of_source(path: str) -> None:
    with pytest.raises(UserError, match="nothing at "):
        _kind(path)
    assert _kind(f"folder:{path}") == ("folder", path)
