"""Tars that are whole or not there, equal bytes for equal content."""

import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from grainline.files import aside, discard, put


def write_shard(
    path: Path, files: Iterable[tuple[str, bytes]], header: Mapping[str, str] | None = None
) -> None:
    """Write names with their bytes, in order, without times and owners. OSError leaves what was there.

    header  what the tar says of all its members, in a global header of POSIX
    """
    try:
        with aside(path).open("wb") as draft:
            headers = dict(header or {})
            with tarfile.open(fileobj=draft, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as tar:
                for name, data in files:
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
            draft.flush()
            os.fsync(draft.fileno())
        put(path)
    finally:
        discard(aside(path))
