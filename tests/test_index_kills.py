"""An index that is killed at every call that changes the disk, and at random times; and a full disk."""

import subprocess
import sys
from pathlib import Path

import pytest
from indexes import content, photo, photos, texts, tiny_model, tree

from grainline import files
from grainline.errors import UserError
from grainline.index.write import build, refresh

KILLER = Path(__file__).with_name("kill_index.py")


def killer(*arguments: object) -> int:
    """Run kill_index.py; the number that it prints."""
    command = [sys.executable, str(KILLER), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize(
    ("operation", "least"), [("build", 50), ("add", 40), ("remove", 20), ("refresh", 40)]
)
def test_an_index_killed_at_any_write_is_whole_and_goes_on_to_the_same_end(
    operation: str, least: int, tmp_path: Path
) -> None:
    assert killer("points", tmp_path, operation) >= least, "every write, rename and sync was tried"


def test_an_index_killed_at_random_times_loses_nothing(tmp_path: Path) -> None:
    assert killer("random", tmp_path, 6) >= 3, "the kills fell into the work"


def test_a_full_disk_is_one_line_and_leaves_the_index_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    root, out = photos(tmp_path / "photos", 4), tmp_path / "index"
    build(root, out, model=model, null=texts(tmp_path), chunk=2)
    before, whole = tree(out), content(out)
    photo(root / "new.png", 9)
    (root / "01.png").rename(root / "moved.png")
    said: list[str] = []
    for number in range(9):
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync", failing(number))
            patch.setattr("grainline.index.segment.sync", files.sync)
            try:
                refresh(out, model=model, chunk=9)
            except UserError as error:
                said.append(str(error))
        assert content(out).items() >= {path: row for path, row in whole.items() if path != "01.png"}.items()
        if len(said) <= number:
            break
    assert len(said) >= 4
    assert {text.partition(";")[0] for text in said} == {f"cannot write into {out}: no space left on device"}
    refresh(out, model=model)
    assert sorted(content(out)) == ["02.png", "below/00.png", "below/03.png", "moved.png", "new.png"]
    assert before != tree(out)


def failing(number: int) -> object:
    """`sync` that fails the call of this number, from 0."""
    seen, real = [0], files.sync

    def sync(path: Path) -> None:
        seen[0] += 1
        if seen[0] == number + 1:
            raise OSError(28, "injected")
        real(path)

    return sync
