"""An index that is killed at every call that changes the disk, and at random times; and a full disk."""

import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from indexes import content, photo, photos, texts, tiny_model, tree

from grainline import files
from grainline.errors import UserError
from grainline.index.sync import build, refresh

KILLER = Path(__file__).with_name("kill_index.py")


def test_an_index_killed_at_any_write_is_whole_and_goes_on_to_the_same_end(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    command = [sys.executable, str(KILLER), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    least = {"build": 60, "add": 60, "remove": 20, "near": 70, "random": 6}
    assert all(numbers[name] >= number for name, number in least.items()), numbers


def test_a_full_disk_is_one_line_and_leaves_the_index_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    root, out = photos(tmp_path / "photos", 4), tmp_path / "index"
    build(root, out, model=model, calibration_texts=texts(tmp_path), chunk=2)
    before, whole = tree(out), content(out)
    photo(root / "new.png", 9)
    (root / "01.png").rename(root / "moved.png")
    lines: list[str] = []
    for number in range(9):
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync", failing(number))
            patch.setattr("grainline.index.store.sync", files.sync)
            try:
                refresh(out, model=model, chunk=9)
            except UserError as error:
                lines.append(str(error))
        assert content(out).items() >= {path: row for path, row in whole.items() if path != "01.png"}.items()
        if len(lines) <= number:
            break
    assert len(lines) >= 4
    assert {text.partition(";")[0] for text in lines} == {f"cannot write into {out}: no space left on device"}
    refresh(out, model=model)
    assert sorted(content(out)) == ["02.png", "below/00.png", "below/03.png", "moved.png", "new.png"]
    assert before != tree(out)


def failing(number: int) -> object:
    """`sync` that fails the call of this number, from 0."""
    calls, real = count(), files.sync

    def sync(path: Path) -> None:
        if next(calls) == number:
            raise OSError(28, "injected")
        real(path)

    return sync
