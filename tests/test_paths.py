"""Paths in every option: empty, links in a circle, pipes, devices, folders, names that are too long."""

import json
import os
import shlex
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from indexes import photos, saved, tiny_model
from runs import call, complaint, recipe

import grainline
from grainline.data.open_source import open_data, open_source
from grainline.errors import UserError
from grainline.export.huggingface import convert
from grainline.export.onnx import export
from grainline.files import replacing
from grainline.index import sync
from grainline.index.search import open_index
from grainline.training.recipe import read_recipe

SECONDS = 60  # a pipe that is opened blocks for ever


def commands(lines: str) -> dict[str, tuple[str, ...]]:
    """Commands by a name, each a line; X is a path."""
    pairs = (line.split(": ", 1) for line in lines.strip().splitlines())
    return {name.strip(): tuple(shlex.split(command)) for name, command in pairs}


READS = commands("""
model: evaluate X --data scenes:dev?count=4
data: evaluate run --data X.jsonl
data csv: evaluate run --data X.csv
data tar: data check X.tar
data parquet: data check X.parquet
data json: data check X.json
data json gz: data check table:X.csv.gz
refcoco: data check X.p
images: data check rows.jsonl --images X
vectors: evaluate --vectors X.npy t.npy
vectors npz: evaluate --vectors X.npz
vectors safetensors: evaluate --vectors X.safetensors
pairs: evaluate --vectors t.npy t.npy --pairs X.jsonl
scores: evaluate --scores X.npy --pairs rows.jsonl
compare-to: evaluate run --data scenes:dev?count=4 --compare-to X
encode: encode run X.txt --out out
show: show run X.png --text 'A dog.' --out a.png
others: show run photos/00.png --text 'A dog.' --out a.png --others X.txt
index build: index build X --model run --out new
index model: index build photos --model X --out new
calibration-texts: index build photos --model run --out new --calibration-texts X.txt
index add: index add index X.png
index: search X 'A dog.'
check: index check X
queries: search index --queries X
image: search index --image X.png
recipe: train X.yaml --out new
init_from: train clip.yaml --out new --set init_from=X
tokenizer: train clip.yaml --out new --set data.tokenizer=X.json
descriptions: train clip.yaml --out new --set data.descriptions=X
phrases: train clip.yaml --out new --set data.texts.phrases.provider=X.jsonl data.texts.phrases.max_phrases=2
pretrained: train clip.yaml --out new --set 'model.image={pretrained: X.pt}'
texts: data describe scenes:dev?count=4 --out d.jsonl --texts X.jsonl
checkpoint: data superpixels scenes:dev?count=4 --out new --kind sfcn --checkpoint X.pt
convert: convert X.pt new
convert safetensors: convert X.safetensors new
export: export X new
results: push run a/b --results X
recipes: recipes X.yaml
photos: photos X
""")


WRITES = commands("""
json: evaluate --vectors t.npy t.npy --pairs pairs.jsonl --json X
html: evaluate --vectors t.npy t.npy --pairs pairs.jsonl --html X
search json: search index 'A dog.' --json X
search html: search index 'A dog.' --html X
heat: search index 'A dog.' --heat X
png: show run photos/01.png --text 'A dog.' --out X.png
page: show run photos/01.png --text 'A dog.' --out X.html
encode: encode run photos --out X
train: train clip.yaml --out X --set train.max_steps=1
index: index build photos --model run --out X
convert: convert run X
export: export run X
scenes: data scenes scenes:train?count=2&size=32 --out X
pack: data pack scenes:train?count=2&size=32 --out X
describe: data describe scenes:dev?count=2 --out X.jsonl --texts long
phrases: data phrases scenes:dev?count=2 --out X.jsonl --processes 1
superpixels: data superpixels scenes:dev?count=2 --out X --size 32
""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, photographs and their index, vectors, a table, a recipe."""
    made = tmp_path_factory.mktemp("folder")
    photos(made / "photos", 3)
    saved(tiny_model(), made / "run")
    np.save(made / "t.npy", np.eye(4, dtype="f4"))
    rows = (json.dumps({"image": f"{i}.png", "text": "a"}) for i in range(4))
    (made / "rows.jsonl").write_text("\n".join(rows))
    (made / "pairs.jsonl").write_text("\n".join(json.dumps({"image": i, "text": "a"}) for i in range(4)))
    recipe(made)
    sync.build(made / "photos", made / "index", model=str(made / "run"))
    return made


@pytest.fixture
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, for a limited time."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    signal.alarm(SECONDS)
    yield folder
    signal.alarm(0)


def given(command: tuple[str, ...], path: str | Path) -> list[str]:
    """A command whose X is a path, with its suffix."""
    return [word.replace(_bare(command), str(path)) for word in command]


def _bare(command: tuple[str, ...]) -> str:
    word = next(word for word in command if "X" in word)
    return word[word.index("X") :].removesuffix("}")


def node(kind: str, file: Path) -> Path:
    """A path that is no regular file, under a name or a longer one."""
    if kind == "long":
        return file.with_name("X" * 300 + file.name)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
        (file / "precious").write_text("old")
    elif kind == "device":  # of our own: to replace that of the machine would destroy it
        try:
            os.mknod(file, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        file.symlink_to({"circle": file, "link": "target", "dangling": "nothing yet"}[kind])
    return file


@pytest.mark.parametrize("kind", ["pipe", "device", "circle", "folder", "long"])
@pytest.mark.parametrize("place", READS)
@pytest.mark.usefixtures("home")
def test_what_is_no_regular_file_is_not_read(
    place: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = node(kind, tmp_path / _bare(READS[place]))
    assert complaint(capsys, *given(READS[place], file))


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "device", "circle", "folder", "long"])
@pytest.mark.parametrize("place", WRITES)
@pytest.mark.usefixtures("home")
def test_what_stands_at_an_output_is_not_replaced(
    place: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "target").write_text("old")
    file, content = node(kind, tmp_path / _bare(WRITES[place])), list[bytes]()
    before = os.path.lexists(file) and file.lstat()
    reader = Thread(target=lambda: content.append(file.read_bytes()), daemon=True)
    if kind == "pipe":
        reader.start()
    code = call(*given(WRITES[place], file))
    lines = capsys.readouterr().err.splitlines()
    if kind == "pipe":
        os.close(os.open(file, os.O_RDWR | os.O_NONBLOCK))  # ends a reader to whom nobody wrote
        reader.join(SECONDS)
        assert bool(content[0]) == (code == 0)
    if before:
        assert (file.lstat().st_ino, file.lstat().st_mode) == (before.st_ino, before.st_mode)
    if kind == "folder":
        assert (file / "precious").read_text() == "old"
    assert ((tmp_path / "target").read_bytes() == b"old") == (code != 0 or kind != "link")
    assert (tmp_path / "nothing yet").exists() == (code == 0 and kind == "dangling")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert code in (0, 2)
    assert code == 0 or lines[-1].startswith("grainline: "), lines
    files = ("json", "html", "search json", "search html", "png", "page")
    if place in files:
        refused = ("circle", "folder", "long", "pipe", "device")[: 5 if place == "png" else 3]
        assert code == (2 if kind in refused else 0), lines


@pytest.mark.parametrize("empty", ["", " \t"])
@pytest.mark.parametrize("place", [*READS, *WRITES])
@pytest.mark.usefixtures("home")
def test_an_empty_argument_is_refused(place: str, empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = READS.get(place) or WRITES[place]
    words = [empty if _bare(command) in word and "=" not in word else word for word in given(command, "X")]
    if empty in words:
        said = complaint(capsys, *words)
        option = command[words.index(empty) - 1]
        assert said.startswith(f"grainline: the argument after {option} is empty, as an unset shell variable")
        joined = [*words[: words.index(empty) - 1], f"{option}={empty}", *words[words.index(empty) + 1 :]]
        if option.startswith("--"):
            assert f"grainline: {option} is empty" in complaint(capsys, *joined)


PYTHON: dict[str, Callable[[str], Any]] = {
    "load": grainline.load,
    "train": lambda empty: grainline.train("clip.yaml", empty),
    "init_from": lambda empty: read_recipe("clip.yaml", [f"init_from={empty!r}"]),
    "paths": lambda empty: read_recipe("clip.yaml", [f"data.paths=['scenes', {empty!r}]"]),
    "images": lambda empty: grainline.train("clip.yaml", "new", images=empty),
    "data": open_source,
    "kind": lambda empty: open_source(f"hf:{empty}"),
    "folder": lambda empty: open_source(f"folder:{empty}"),
    "images of data": lambda empty: open_data("rows.jsonl", images=empty),
    "images of pairs": lambda empty: open_data([("photos/01.png", "a")], images=empty),
    "build": lambda empty: sync.build(empty, "new", model="run"),
    "index": lambda empty: sync.build("photos", empty, model="run"),
    "add": lambda empty: sync.add("index", [empty]),
    "remove": lambda empty: sync.remove("index", ["01.png", empty]),
    "remove from": lambda empty: sync.remove(empty, ["01.png"]),
    "refresh": sync.refresh,
    "search": open_index,
    "save": lambda empty: grainline.load("run").save(empty),
    "export": lambda empty: export(grainline.load("run", device="cpu"), empty),
    "convert": lambda empty: convert("run", empty),
    "convert from": lambda empty: convert(empty, "new"),
    "encode": lambda empty: grainline.load("run").encode(images=[empty]),
}


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize("place", PYTHON)
def test_an_empty_path_is_refused_in_python(place: str, empty: str, home: Path) -> None:
    there = sorted(home.rglob("*"))
    with pytest.raises(UserError):
        PYTHON[place](empty)
    assert sorted(home.rglob("*")) == there
    assert len(open_index("index")) == 3


def test_the_folder_here_and_folders_behind_links_may_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to("far")
    monkeypatch.chdir(tmp_path / "far")
    for target in Path(), tmp_path / "near":
        with replacing(target) as place:
            place.mkdir()
            (place / f"{target.name}.txt").touch()
    assert (tmp_path / "near").is_symlink()
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["near.txt"]


def test_a_lock_that_is_a_link_empties_no_other_file(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "index", tmp_path / "index")
    (tmp_path / "index/lock").unlink()
    (tmp_path / "precious").write_text("old")
    (tmp_path / "index/lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="too many levels of symbolic links"):
        sync.refresh(tmp_path / "index")
    assert (tmp_path / "precious").read_text() == "old"
