"""Hostile values in every field of every kind of source: damage or one line, no traceback and no hang."""

import copy
import gzip
import io
import json
import os
import pickle
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from indexes import photos, saved, tiny_model
from PIL import Image
from runs import call, complaint, recipe

from grainline.data.benchmarks.refcoco import Proposals
from grainline.data.captions import sentences
from grainline.data.check import check
from grainline.data.decode import as_png
from grainline.data.open_source import open_source
from grainline.data.record import CorruptSample
from grainline.errors import UserError

SECONDS = 600  # for all walks of one kind: a hang goes beyond, slowness does not
PYTHON = ("NoneType", "list index", "attribute", "unhashable", "tuple", "dict", "KeyError")
PYTHON += ("int()", "float()")
GONE = "@gone@"  # the field is left out
LONG = "@digits@"  # becomes an integer of 5,000 digits
HOSTILE: tuple[Any, ...] = (
    *(GONE, LONG, None, True, -1, 1.5, 2**63, float("inf"), float("nan")),
    *("", " ", "x" * 5000, "a\0b", "\ud83d", "http://[", "..", "dog\u2028dog"),
    *([], [[]], {}, {"a": [None]}, [None, "a.png"], [["x"] * 4], {"size": [1e999, 8], "counts": [64]}),
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


def png() -> bytes:
    return as_png(Image.new("RGB", (8, 8), (9, 90, 9)))


def dumped(value: Any) -> str:
    return json.dumps(value).replace(f'"{LONG}"', "7" * 5000)


def lines(value: list[Any]) -> str:
    return "\n".join(map(dumped, value))


def places(value: Any, inside: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value can be exchanged, at any depth."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*inside, name)
        yield from places(part, (*inside, name))


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    out = copy.deepcopy(value)
    at = out
    for name in place[:-1]:
        at = at[name]
    if isinstance(new, str) and new == GONE:
        del at[place[-1]]
    else:
        at[place[-1]] = new
    return out


def shape(value: Any) -> Any:
    """The names and types in a value, at any depth."""
    if isinstance(value, dict):
        return {name: shape(part) for name, part in value.items()}
    return [shape(part) for part in value] if isinstance(value, list) else type(value)


def values(content: Any, place: tuple[Any, ...], turn: int) -> list[tuple[int, Any]]:
    """The hostile values for a place, by number. Rows like one before get a third, by turns."""
    rows = content
    for depth, name in enumerate(place):
        if isinstance(rows, list):
            if depth + 1 < len(place) and shape(rows[name]) in map(shape, rows[:name]):
                return [(number, value) for number, value in enumerate(HOSTILE) if number % 3 == turn % 3]
            break
        rows = rows[name]
    return list(enumerate(HOSTILE))


REGION = {"phrase": "dog", "box": [1, 1, 4, 4], "span": ["captions.0", 2, 5]}
REGION |= {"mask": {"size": [8, 8], "counts": [10, 54]}, "foils": [{"text": "cat", "kind": "noun"}]}
SAID = {"caption": "A dog.", "long": "A dog runs.", "longs": ["It is a dog."], "subtexts": ["A", "A dog."]}
SAID |= {"regions": [REGION], "foils": [{"text": "A cat.", "true": "A dog.", "kind": "noun"}]}
ROWS = [{"image": "a.png", **SAID}, {"image": "b.png", "caption": ["A cat."]}]
NOTE = {"id": 1, "image_id": 1, "caption": "A dog."}
IMAGES = [{"id": n, "file_name": f"{c}.png", "width": 8, "height": 8} for n, c in ((1, "a"), (2, "b"))]
SHAPES = [
    {"id": 1, "image_id": 1, "segmentation": [[0, 0, 4, 0, 4, 4]], "bbox": [0, 0, 4, 4]},
    {"id": 2, "image_id": 2, "segmentation": {"size": [8, 8], "counts": [10, 54]}, "bbox": [0, 0, 4, 4]},
]
REFS = [
    {"ref_id": n, "ann_id": n, "image_id": n, "split": "val", "sentences": [{"sent": "dog", "raw": "Dog"}]}
    for n in (1, 2)
]
ITEM = {"image_file": "a.png", "caption": "A dog.", "foil": "A cat.", "mturk": {"caption": 3}}
PROBE = {"sentence": "A dog.", "pos_image_id": "a", "neg_image_id": "b"}
FLAGS = {"subj_neg": "True", "verb_neg": "False", "obj_neg": "False"}

COCO = "COCO_val2014_1.png"
DOCCI = {"example_id": "x", "split": "test", "description": "A."}
URBAN = {"image_id": "1", "image": "1.jpg", "caption": "A."}
SPLIT = {"filepath": "", "split": "test", "sentences": [{"raw": "A dog."}]}
CLASSES = {"category_id": 1, "neg_category_ids": [2]}
BOXES = [{"id": n, "image_id": n, "bbox": [0, 0, 4, 4], **CLASSES} for n in (1, 2)]
NAMES = [{"id": 1, "name": "a dog"}, {"id": 2, "name": "a cat"}]
FALSE = [NOTE | {"foil": False}, NOTE | {"foil": True, "caption": "A cat."}]
TURNS = {"conversations": [{"value": "?"}, {"value": "A."}]}

Kind = tuple[str, str, Any, Callable[[Any], str]]
KINDS: tuple[Kind, ...] = (  # how it is opened, its file, its content, how that is written
    ("table", "t.jsonl", ROWS, lines),
    ("json", "t.json", ROWS, dumped),
    ("texts", "t.jsonl", [{"caption": ["A."], "long": "A dog."}, {"caption": "B."}], lines),
    ("coco-karpathy", "k.json", {"images": [{"filename": f"{c}.png"} | SPLIT for c in "ab"]}, dumped),
    ("coco-val2017", "c.json", {"images": IMAGES, "annotations": [NOTE, NOTE | {"image_id": 2}]}, dumped),
    ("cola", "c.json", [["a.png", "A dog.", "b.png", "A cat."]], dumped),
    ("fg-ovd", "f.json", {"images": IMAGES, "annotations": BOXES, "categories": NAMES}, dumped),
    ("refcoco", "refs(x).json", REFS, dumped),
    ("foil-coco", "f.json", {"images": [{"id": 1, "file_name": COCO}], "annotations": FALSE}, dumped),
    ("valse", "v.json", {"x": ITEM, "y": ITEM | {"image_file": "b.png"}}, dumped),
    ("sugarcrepe", "s.json", {"0": {"filename": "a.png", "caption": "A.", "negative_caption": "B."}}, dumped),
    ("svo-probes", "s.jsonl", [PROBE | FLAGS, PROBE | FLAGS], lines),
    ("himo-docci", "h.json", [{"img_path": "a.png", "caption": ["A", "A."], "raw_caption": "A."}] * 2, lines),
    ("docci", "d.jsonl", [DOCCI | {"image_file": f"{c}.png"} for c in "ab"], lines),
    ("urban-1k", "u.json", {"annotations": [URBAN, URBAN | {"image": "2.jpg"}]}, dumped),
    ("sharegpt4v", "g.json", [{"image": f"{c}.png"} | TURNS for c in "ab"], dumped),
    ("iiw", "i.jsonl", [{"image": "a.png", "IIW": "A."}, {"image": "b.png", "IIW": "B."}], lines),
)
IMAGELESS = ("texts",)


def image_folder(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name in ("a.png", "b.png", "1.jpg", "2.jpg", "COCO_val2014_1.png"):
        (folder / name).write_bytes(png())
    return folder


def walked(path: str, images: Path | None) -> list[str]:
    """The messages of a walk over a source: its mistake, or its damage. Anything else is raised."""
    try:
        source = open_source(path, images=None if images is None else str(images))
        report = check(source, sentences)
        said = [place for places in report.faults.values() for place in places[:5]] + report.remarks
        for index in range(len(source)):
            try:
                record = source[index]
            except CorruptSample:
                continue
            texts = [record.whole] if record.captions else []
            texts += [t for r in record.regions for t in (r.phrase, *(f.text for f in r.foils))]
            assert all(text.strip().encode() for text in texts)
    except UserError as error:
        said = [str(error)]
    for message in said:
        assert "\n" not in message
        assert not [word for word in PYTHON if word in message], message[:300]
        assert len(message) < 3000, message[:300]
    return said


@pytest.mark.parametrize("kind", KINDS, ids=[kind[0] for kind in KINDS])
def test_a_hostile_value_in_any_field_is_damage_or_one_line(kind: Kind, tmp_path: Path) -> None:
    name, file, content, write = kind
    images = None if name in IMAGELESS else image_folder(tmp_path / "images")
    (tmp_path / "instances.json").write_text(json.dumps({"images": IMAGES, "annotations": SHAPES}))
    path = tmp_path / file
    path.write_text(write(content))
    assert not walked(f"{name}:{path}", images) or name == "texts"
    for turn, place in enumerate(places(content)):
        for number, value in values(content, place, turn):
            if name == "json" and (number - turn) % 3:
                continue  # "table" has the same rows and readers of fields
            path.write_text(write(changed(content, place, value)))
            walked(f"{name}:{path}", images)
            if name not in ("texts", "refcoco") and number % 3 == 0:
                walked(str(path), images)  # its kind is found by a look inside


def test_hostile_annotations_of_expressions_are_damage_or_one_line(tmp_path: Path) -> None:
    images = image_folder(tmp_path / "images")
    (tmp_path / "refs(x).p").write_bytes(pickle.dumps([*REFS, REFS[0] | {"ann_id": 10**5000}]))
    content = {"images": IMAGES, "annotations": SHAPES}
    for turn, place in enumerate(places(content)):
        for _, value in values(content, place, turn):
            (tmp_path / "instances.json").write_text(dumped(changed(content, place, value)))
            walked(f"refcoco:{tmp_path}", images)


def test_hostile_descriptions_beside_images_are_damage_or_one_line(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images")
    (folder / "b.txt").write_text("A cat.")
    for place in places(SAID):
        for number, value in enumerate(HOSTILE):
            said = dumped(changed(SAID, place, value))
            (folder / "a.json").write_text(said)
            walked(str(folder), None)
            if number % 3:
                continue
            with tarfile.open(tmp_path / "t.tar", "w") as tar:
                for name in ("a.png", "a.json", "b.png", "b.txt"):
                    tar.add(folder / name, name)
            walked(str(tmp_path / "t.tar"), None)


TEXTS = {
    "json": (b"{", b"[", b"\xff", b"", b"[" * 9000, b'{"caption": "A.", "caption": "B."}', b"7" * 5000),
    "txt": (b"\xff\xfe", b"", b"\0", b"x" * 100_000, b"\n\n"),
    "csv": (b'image,caption\na.png,"A', b"image,caption,caption\n", b"\0", b'"', b"image\n", b"\xff"),
    "xml": (b"<", b"<a/>", b"<a><object><bndbox/></object></a>", b"\xff", b""),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_files_that_are_broken_as_a_whole_are_damage_or_one_line(kind: str, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images")
    (folder / "b.txt").write_text("A cat.")
    for content in TEXTS[kind]:
        (folder / f"a.{kind}").write_bytes(content)
        assert walked(str(folder) if kind in ("json", "txt") else f"table:{folder}/a.{kind}", None)
        walked(f"texts:{folder}/a.{kind}", None)


SIDES = "<annotation><object><name>7</name><bndbox>{}</bndbox></object></annotation>"


def test_hostile_boxes_of_entities_are_damage(tmp_path: Path) -> None:
    for name in ("Sentences", "Annotations", "images"):
        (tmp_path / name).mkdir()
    (tmp_path / "val.txt").write_text("1\n")
    (tmp_path / "Sentences" / "1.txt").write_text("[/EN#7/people Two men] walk .")
    (tmp_path / "images" / "1.jpg").write_bytes(png())
    names = ("xmin", "ymin", "xmax", "ymax")
    for value in ("inf", "nan", "7" * 5000, "x", "", "-9e99"):
        for hostile in names:
            sides = "".join(f"<{name}>{value if name == hostile else 3}</{name}>" for name in names)
            (tmp_path / "Annotations" / "1.xml").write_text(SIDES.format(sides))
            said = walked(f"flickr30k-entities:{tmp_path}", tmp_path / "images")
            assert len(said) == 1
            assert f"{hostile} is" in said[0]


def test_hostile_proposals_are_one_line(tmp_path: Path) -> None:
    box = [1, 2, 3, 4]
    content = [{"image_id": 7, "bbox": box, "score": 0.5}, {"file_name": "a.png", "box": list(box)}]
    for place in places(content):
        for value in HOSTILE:
            (tmp_path / "p.json").write_text(dumped(changed(content, place, value)))
            said = ""
            try:
                Proposals(str(tmp_path / "p.json")).of("a.png")
            except UserError as error:
                said = str(error)
            assert not [word for word in PYTHON if word in said], said[:300]


def header(**fields: bytes) -> bytes:
    """A tar of one sample, with other bytes in a field of the header of its image."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in (("b.png", png()), ("b.txt", b"B."), ("a.png", png()), ("a.txt", b"A.")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    data = bytearray(out.getvalue())
    at = data.index(b"a.png\0")
    spots = {"size": (124, 12), "mtime": (136, 12), "mode": (100, 8), "kind": (156, 1)}
    for name, value in fields.items():
        start, length = spots[name]
        data[at + start : at + start + length] = value.ljust(length, b"\0")[:length]
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


@pytest.mark.parametrize("start", [b"\x80", b"\xff", b"\x81"])
def test_sizes_in_a_tar_beyond_63_bits_are_damage(start: bytes, tmp_path: Path) -> None:
    for value in (start + b"\xff" * 11, start + b"\0\0\0" + b"\x80" + b"\0" * 7, start + b"\0" * 11):
        (tmp_path / "t.tar").write_bytes(header(size=value))
        assert walked(str(tmp_path / "t.tar"), None)


@pytest.mark.parametrize("first", range(4))
def test_flipped_bytes_of_parquet_are_damage_or_one_line(first: int, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"image": [png()] * 6, "caption": ["A dog."] * 6, "long": ["A dog runs."] * 6}
    parquet.write_table(pyarrow.table(columns), tmp_path / "whole.parquet", 3, use_dictionary=False)
    whole = (tmp_path / "whole.parquet").read_bytes()
    for place in range(len(whole) - 1600 + first, len(whole), 4):  # most are in the footer
        data = bytearray(whole)
        data[place] ^= (0xFF, 0x80, 1, 0x41)[place // 4 % 4]
        (tmp_path / "t.parquet").write_bytes(data)
        walked(str(tmp_path / "t.parquet"), None)


@pytest.mark.parametrize("digits", [401, 5000])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("t.jsonl?skip={}", "must be numbers of captions"),
        ("t-{{0..{}}}.jsonl", "nothing at"),
        ("t-{{0..9999999}}.jsonl", "is no range"),
        ("scenes:dev?count={}", "count is"),
        ("sharegpt4v:g.json?rows={}", "a number of rows from 1 on"),
    ],
)
def test_long_numbers_in_options_are_numbers_or_one_line(
    path: str, said: str, digits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(image_folder(tmp_path / "images"))
    for kind, file, content, write in KINDS:
        if kind in ("table", "sharegpt4v"):
            Path(file).write_text(write(content))
    assert said in "".join(walked(path.format("7" * digits), None))


@pytest.mark.parametrize(
    "kind", ["texts:t.txt.gz", "texts:t.jsonl.gz", "t.csv", "t.jsonl", "images", "t.parquet"]
)
def test_a_text_of_megabytes_is_damage(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(image_folder(tmp_path / "images").parent)
    long = "dog " * 250_001
    Path("images/a.txt").write_text(long)
    Path("images/b.txt").write_text("A cat.")
    Path("t.csv").write_text(f"image,caption\nimages/a.png,{long}\nimages/b.png,A cat.\n")
    rows = [{"image": "images/a.png", "caption": long}, {"image": "images/b.png", "caption": "A cat."}]
    Path("t.jsonl").write_text(lines(rows))
    Path("t.txt.gz").write_bytes(gzip.compress(f"{long}\nA cat.\n".encode()))
    Path("t.jsonl.gz").write_bytes(gzip.compress(lines(rows).encode()))
    if kind == "t.parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"image": [png()] * 2, "caption": [long, "A cat."]}), kind)
    assert "1,000,003 characters; at most 1,000,000 are read" in "".join(walked(kind, None))


# Pipes and devices: each of these would wait for ever, or fill the memory

FILES = ("t.jsonl", "t.csv", "t.json", "t.tar", "t.parquet", "refs(x).p", "texts:t.txt", "texts:t.txt.gz")


@pytest.mark.parametrize("device", [False, True], ids=["pipe", "zero"])
@pytest.mark.parametrize("name", FILES)
def test_a_pipe_or_device_as_data_is_refused(name: str, device: bool, tmp_path: Path) -> None:
    kind, _, file = name.rpartition(":")
    endless(tmp_path / file, device)
    said = walked(f"{kind}:{tmp_path / file}" if kind else str(tmp_path / file), None)
    assert "not a regular file" in said[0]


@pytest.mark.parametrize("device", [False, True], ids=["pipe", "zero"])
@pytest.mark.parametrize("name", ["a.png", "a.txt", "a.json"])
def test_a_pipe_or_device_in_a_folder_is_a_damaged_sample(name: str, device: bool, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images")
    for stem in "ab":
        (folder / f"{stem}.txt").write_text("A.")
    (folder / name).unlink(missing_ok=True)
    endless(folder / name, device)
    assert f"{folder}/{name} (not a regular file)" in walked(str(folder), None)


def endless(path: Path, device: bool) -> None:
    path.symlink_to("/dev/zero") if device else os.mkfifo(path)


# Training


DAMAGED = {
    "span": ("json", b'{"caption": "A.", "regions": [{"phrase": "A", "span": ["long", 1e999, 7]}]}'),
    "twice": ("json", b'{"caption": "A.", "caption": "B."}'),
    "json": ("json", b"{"),
    "utf-8": ("txt", b"\xff"),
    "empty": ("txt", b" \n"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_training_goes_on_past_a_damaged_sample_and_counts_it(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name in "abcdefgh":
        Image.new("RGB", (32, 32), (ord(name), 90, 9)).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(f"A dog called {name}.")
    suffix, content = DAMAGED[kind]
    (folder / "d.txt").unlink()
    (folder / f"d.{suffix}").write_bytes(content)
    changes = "train.max_steps=2", "train.global_batch_size=8", "data.max_corrupt=0.5", "data.workers=0"
    options = ["--data", folder, "--set", *changes]
    assert call("train", recipe(tmp_path), "--out", tmp_path / "run", *options) == 0
    said = capsys.readouterr()
    assert f"{folder}/d." in said.out + said.err
    assert call("data", "check", folder) == 1
    assert f"{folder}/d." in capsys.readouterr().out


@pytest.mark.parametrize("device", [False, True], ids=["pipe", "zero"])
def test_a_pipe_or_device_as_the_image_of_a_query_is_one_line(
    device: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tiny_model("clip"), tmp_path / "run")
    images = photos(tmp_path / "photos", 3)
    assert call("index", "build", images, "--model", run, "--out", tmp_path / "i") == 0
    endless(tmp_path / "q.png", device)
    said = complaint(capsys, "search", tmp_path / "i", "--image", tmp_path / "q.png")
    assert "q.png cannot be read: not a regular file" in said
