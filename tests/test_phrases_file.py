"""Files of phrases: made once, by any number of processes, resumed after a kill, and read by their texts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import call, complaint

from grainline.data.annotate import CHUNK, texts_of
from grainline.data.annotate import make_phrases as make
from grainline.data.lines import Written
from grainline.data.phrases.providers import Rules, StoredPhrases, digest, open_provider
from grainline.data.record import CorruptSample, Record
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError


class Shelf:
    """A source of captions without images, one record damaged."""

    path = "shelf"

    def __init__(self, count: int, name: str = "shelf", stop: int = -1) -> None:
        self.count, self.name, self.stop = count, name, stop

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Record:
        if index == 3:
            raise CorruptSample("missing-caption", "p3")
        if index == self.stop:
            raise UserError("the disk is gone")
        return Record(f"p{index}", b"", (f"A dog sits on box {index}.", "A cat on the left of a mat."))

    def fingerprint(self) -> str:
        return self.name


class Loud(Rules):
    """Another provider."""

    name = "loud 2"


def test_a_file_gives_what_its_provider_gives(tmp_path: Path) -> None:
    source, out = Shelf(5), tmp_path / "a" / "phrases.jsonl"
    made = make(source, Rules(), out, 1)
    assert made == Written(
        {"record": 5, "text": 12, "phrase": made.counts["phrase"]}, {"missing-caption": 1}, 0
    )
    assert os.listdir(out.parent) == ["phrases.jsonl"]
    stored = open_provider(str(out))
    assert stored.name == "rules 1"
    number = 0
    for index in (0, 1, 2, 4):
        for text in texts_of(source[index]):
            assert stored.phrases(text) == Rules().phrases(text)
            number += len(stored.phrases(text))
    assert number == made.counts["phrase"] > 20
    assert "dog" not in out.read_text()  # offsets, no words
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[4] == {"record": 3, "skipped": "missing-caption", "where": "p3"}


def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path) -> None:
    source = Shelf(CHUNK * 3 + 5)
    calls: list[tuple[int, int]] = []
    make(source, Rules(), tmp_path / "one.jsonl", 1, lambda *done: calls.append(done))
    make(source, Rules(), tmp_path / "two.jsonl", 2)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert calls == [(done, len(source)) for done in (CHUNK, CHUNK * 2, CHUNK * 3, CHUNK * 3 + 5)]


@pytest.mark.parametrize("cut", [0, 10, 200, -7])
def test_a_torn_line_is_written_again(tmp_path: Path, cut: int) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    make(Shelf(9), Rules(), whole, 1)
    (tmp_path / "out.jsonl.partial").write_bytes(whole.read_bytes()[:cut])
    make(Shelf(9), Rules(), out, 1)
    assert out.read_bytes() == whole.read_bytes()


def test_a_killed_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, source = tmp_path / "out.jsonl", "scenes:dev?count=500&size=32"
    command = [sys.executable, "-m", "grainline", "data", "phrases", source, "--out", str(out)]
    command += ["--processes", "2"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    partial = tmp_path / "out.jsonl.partial"
    while process.poll() is None and not (partial.exists() and partial.read_bytes().count(b"\n") > CHUNK):
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()  # itself alone: its loaders must see it die
    process.wait()
    ends = time.monotonic() + 60
    while _lives(process.pid) and time.monotonic() < ends:
        time.sleep(0.1)
    if _lives(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("its loaders went on without it")
    capsys.readouterr()
    assert call(*command[3:]) == 0
    assert "records were there before" in capsys.readouterr().out
    make(Scenes(source, 32), Rules(), tmp_path / "whole.jsonl", 1)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def _lives(group: int) -> bool:
    """Whether any process of a group is left that has not ended, or a thread of one that has."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            threads = len(os.listdir(stat.parent / "task"))
        except OSError:
            continue
        if int(its_group) == group and (state != "Z" or threads > 1):
            return True
    return False


@pytest.mark.parametrize("ending", ["", ".partial"])
def test_other_data_or_another_provider_is_noticed(tmp_path: Path, ending: str) -> None:
    out = tmp_path / "out.jsonl"
    make(Shelf(9), Rules(), out, 1)
    if ending:
        out.rename(tmp_path / "out.jsonl.partial")
    before = (tmp_path / f"out.jsonl{ending}").read_bytes()
    with pytest.raises(UserError, match="was made from other data; delete it, or choose another --out"):
        make(Shelf(9, "other"), Rules(), out, 1)
    with pytest.raises(UserError, match="was made by rules 1, not loud 2"):
        make(Shelf(9), Loud(), out, 1)
    assert (tmp_path / f"out.jsonl{ending}").read_bytes() == before
    assert make(Shelf(9), Rules(), out, 1).resumed == 9


def test_a_text_that_has_changed_is_noticed(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    make(Shelf(2), Rules(), out, 1)
    with pytest.raises(
        UserError, match=r"no phrases of the text 'A dog\.': the data has changed; make it again"
    ):
        StoredPhrases(out).phrases("A dog.")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"record": 0, "texts": {"DIGEST": [["noun", 0, 99]]}}', r"\['noun', 0, 99\]"),
        ('{"record": 0, "texts": {"DIGEST": [["noun", 2, 2]]}}', r"\['noun', 2, 2\]"),
        ('{"record": 0, "texts": {"DIGEST": [["verb", 0, 2]]}}', r"\['verb', 0, 2\]"),
        ('{"record": 0, "texts": {"DIGEST": [["noun", "0", 2]]}}', "cannot be read"),
        ('{"record": 0, "texts": {"DIGEST": [["noun", 0]]}}', "the phrases of 'A dog.'"),
        ('{"record": 0, "texts": {"DIGEST": [["noun", 0, 5', "the line at byte"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, line: str, message: str) -> None:
    out = tmp_path / "out.jsonl"
    first = '{"grainline": "phrases 1", "provider": "mine 1", "source": "x"}'
    out.write_text(f"{first}\n{line.replace('DIGEST', digest('A dog.'))}\n")
    with pytest.raises(UserError, match=message):
        StoredPhrases(out).phrases("A dog.")


@pytest.mark.parametrize(
    "text", ["", "no json\n", "[]\n", '{"grainline": "phrases 0", "provider": "", "source": ""}\n']
)
def test_what_is_no_file_of_phrases_is_an_error(tmp_path: Path, text: str) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(UserError, match="cannot read"):
        open_provider(str(out))
    out.write_text(text)
    with pytest.raises(UserError, match="is not of the format 'phrases 1'"):
        open_provider(str(out))


def test_the_command_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("data", "phrases", "scenes:dev?count=3", "--out")
    assert call(*command, tmp_path / "x.jsonl") == 0
    assert "3 records" in capsys.readouterr().out
    assert "has a name in .jsonl" in complaint(capsys, *command, tmp_path / "x.txt")
