"""Any source as tars: every record comes back as it was, and a run that was killed goes on."""

import hashlib
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_dataset import CROP, TOKENIZER, random_image
from test_tars import jpeg, samples, write_tar

from grainline.cli.main import main
from grainline.data.dataset import Draw, TrainSet
from grainline.data.formats.common import RECAPTIONED, FileSource
from grainline.data.lines import Written
from grainline.data.open_source import open_source, open_sources
from grainline.data.pack import pack
from grainline.data.record import Cause, CorruptSample, Foil, Record, Region
from grainline.data.texts import TextsConfig
from grainline.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Listed:
    """Records in memory; a name in place of one is the cause of its damage."""

    path = "listed"

    def __init__(self, records: Sequence[Record | str]) -> None:
        self.records, self.read = records, 0

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        record = self.records[index]
        self.read += 1
        if isinstance(record, str):
            raise CorruptSample(record, f"row {index}")
        return record

    def fingerprint(self) -> str:
        return str(len(self.records))


def bare(record: Record) -> tuple[Any, ...]:
    """All of a record that can be compared, masks as lists and drawn images as their pixels."""
    image = record.image if isinstance(record.image, bytes) else np.asarray(record.image).tolist()
    regions = [r._replace(mask=None if r.mask is None else r.mask.tolist()) for r in record.regions]
    return (*record._replace(image=b"", regions=()), image, regions)


def returned(source: Any, out: Path, size: int = 2) -> list[Record]:
    pack(source, out, size)
    back = open_source(str(out))
    return [back[n] for n in range(len(back))]


MASK = np.zeros((24, 30), bool)
MASK[3:9, 5] = True
FULL = Record(
    "cats/a.v2.jpg",
    jpeg(1),
    ("A cat.", "A cat.", "Ein K\u00e4tzchen \u732b \U0001f408"),
    "A cat sits.",
    (
        Region("A cat", (1.0, 2.5, 3.25, 1e3), MASK, ("long", 0, 5), (Foil("a dog", "A cat", "noun"),)),
        Region("mat", foils=(Foil("x", "another phrase", "easy"),)),
        Region("box", (0.0, 0.0, 1.0, 1.0)),
    ),
    (Foil("A dog sits.", "A cat sits.", "noun"), Foil("sits", "", "")),
    ("A cat", "A cat sits."),
    ("A cat sits there.", "A cat sits."),
)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    plain = Record("b", random_image(2), ("One.",))
    spoken = Record("only regions", random_image(3), (), regions=FULL.regions)
    back = returned(Listed([FULL, plain, spoken]), tmp_path / "out")
    assert [bare(record) for record in back] == [bare(record) for record in (FULL, plain, spoken)]
    assert back[0].longs == ("A cat sits.", "A cat sits there.", "A cat sits.")
    source = open_source(str(tmp_path / "out"))
    assert isinstance(source, FileSource)
    assert list(source.keys()) == ["cats/a.v2.jpg", "b", "only regions"]


def test_odd_keys_come_back_from_tars(tmp_path: Path) -> None:
    keys = [*("/", "a/", "/a/b.jpg", "../x", "./a", "a", ".hidden", "50%2E", "\udcff.jpg"), "é" * 200]
    keys += ["a.jpg", "a.png"]
    back = returned(Listed([Record(key, jpeg(1), ("A.",)) for key in keys]), tmp_path / "out", 5)
    assert [record.key for record in back] == keys


def test_images_keep_their_bytes_and_get_the_suffix_of_their_kind(tmp_path: Path) -> None:
    records = []
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"):
        path = tmp_path / "x"
        Image.new("RGB", (9, 8), (1, 2, 3)).save(path, kind)
        records.append(Record(kind, path.read_bytes(), ("A.",)))
    back = returned(Listed(records), tmp_path / "out", 9)
    assert [bare(record) for record in back] == [bare(record) for record in records]
    with tarfile.open(tmp_path / "out" / "data-000000.tar") as tar:
        names = tar.getnames()
    assert names[::2] == ["JPEG.jpg", "PNG.png", "WEBP.webp", "GIF.gif", "BMP.bmp", "TIFF.tiff", "AVIF.avif"]


DAMAGED = [
    FULL,
    "missing image",
    FULL._replace(key="b", image=jpeg(1)[:-200]),
    FULL._replace(key="c", captions=(), long=None, regions=()),
    "missing image",
    "missing image",
    FULL._replace(key="d"),
]


def test_damage_is_left_out_and_counted(tmp_path: Path) -> None:
    done = pack(Listed(DAMAGED), tmp_path / "out", 2)
    assert done.counts == {"tar": 2, "sample": 2}
    assert done.skipped == {"missing image": 3, "corrupt image": 1, "missing caption": 1}
    assert done.first[0] == "missing image: row 1"
    assert done.first[1].startswith("corrupt image: b (")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["data-000000.tar", "data-000003.tar", "pack.jsonl"]  # the third would be empty
    assert [open_source(str(tmp_path / "out"))[n].key for n in (0, 1)] == ["cats/a.v2.jpg", "d"]


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


class Killed(Exception):
    pass


def test_a_killed_run_goes_on_with_the_first_tar_that_is_missing(tmp_path: Path) -> None:
    records = [FULL._replace(key=str(n)) for n in range(7)]
    pack(Listed(records), tmp_path / "whole", 2)
    out = tmp_path / "out"

    def kill(done: int, _total: int) -> None:
        if done == 6:
            raise Killed

    with pytest.raises(Killed):
        pack(Listed(records), out, 2, kill)
    assert sorted(content(out)) == ["data-000000.tar", "data-000001.tar", "pack.jsonl.partial"]
    with (out / "pack.jsonl.partial").open("ab") as file:
        file.write(b'{"tar":2,"by')  # a torn line
    again = Listed(records)
    assert pack(again, out, 2) == Written({"tar": 4, "sample": 7}, {}, 2, "tar")
    assert again.read == 3
    assert content(out) == content(tmp_path / "whole")
    third = Listed(records)
    assert pack(third, out, 2) == Written({"tar": 4, "sample": 7}, {}, 4, "tar")
    assert third.read == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_folder_of_other_data_is_refused_and_stays(tmp_path: Path, whole: bool) -> None:
    out = tmp_path / "out"
    pack(Listed([FULL]), out, 2)
    if not whole:
        os.rename(out / "pack.jsonl", out / "pack.jsonl.partial")
    before = content(out)
    other = Listed([FULL, FULL._replace(key="b")])
    with pytest.raises(UserError, match="was made from other data; delete it"):
        pack(other, out, 2)
    with pytest.raises(UserError, match="was made with 2 samples in a tar; delete it"):
        pack(Listed([FULL]), out, 3)
    (out / "data-000000.tar").write_bytes(b"")
    with pytest.raises(UserError, match=r"data-000000\.tar is not as it was written"):
        pack(Listed([FULL]), out, 2)
    assert content(out).keys() == before.keys()


def test_what_cannot_be_packed_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"listed has the key cats/a\.v2\.jpg twice"):
        pack(Listed([FULL, FULL]), tmp_path / "a", 1)
    write_tar(tmp_path / "b.tar", samples(1))
    with pytest.raises(UserError, match=r"already holds b\.tar: name an empty folder"):
        pack(Listed([FULL]), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*/file: file exists"):
        pack(Listed([FULL]), tmp_path / "file")
    (tmp_path / "a" / "pack.jsonl.partial").write_text("{}\n")
    with pytest.raises(UserError, match="is not of the format 1"):
        pack(Listed([FULL]), tmp_path / "a", 1)


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["grainline", "data", "pack", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_packs_several_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tar(tmp_path / "b.tar", samples(3))
    table = tmp_path / "a.csv"
    table.write_text("image,caption\na.jpg,A.\ngone.jpg,B.\n")
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    words = (str(table), str(tmp_path / "b.tar"), "--out", str(tmp_path / "out"), "--samples-per-shard", "2")
    assert command(monkeypatch, *words) == 1  # a fifth is damaged
    said = capsys.readouterr().out
    assert "3 tars, 4 samples; 1 skipped: 1 missing image; the first: missing image: " in said
    assert command(monkeypatch, *words, "--max-corrupt", "0.2") == 0
    assert "3 tars were there before" in capsys.readouterr().out
    joined = open_sources(words[:2])
    back = open_source(str(tmp_path / "out"))
    assert [bare(back[n]) for n in range(4)] == [bare(joined[n]) for n in (0, 2, 3, 4)]


# Recaptioned data

TEXTS = {name: f"{name} one. And two." for name in RECAPTIONED}
WANTED = (
    ("raw_caption one. And two.", *(f"short{m}_captions one. And two." for m in ("IB", "SV", "LLA"))),
    tuple(f"long{m}_captions one. And two." for m in ("IB", "SV", "LLA")),
)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "tar", "folder", "urls"])
def test_recaptioned_data_is_known_by_its_fields(tmp_path: Path, kind: str) -> None:
    (tmp_path / "p.jpg").write_bytes(jpeg(1))
    place = "https://a.org/x/p.jpg?size=3" if kind == "urls" else "p.jpg"
    row = {"Image Path": place} | TEXTS
    path = tmp_path / f"d.{kind}"
    if kind in ("csv", "urls"):
        path = path.with_suffix(".csv")
        path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    elif kind == "jsonl":
        path.write_text(json.dumps({"ImagePath": "p.jpg"} | TEXTS) + "\n")
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({name: [value] for name, value in row.items()}), path)
    elif kind == "tar":
        write_tar(path, {"p.jpg": jpeg(1), "p.json": json.dumps(TEXTS | {"caption": WANTED[0][0]}).encode()})
    else:
        (tmp_path / "p.json").write_text(json.dumps(TEXTS))
        path = tmp_path
    source = open_source(str(path))
    assert (source[0].captions, source[0].longs, source[0].image) == (*WANTED, jpeg(1))
    assert source[0].whole == WANTED[1][0]
    back = returned(source, tmp_path / "out")
    assert (back[0].captions, back[0].longs) == WANTED


def test_recaptioned_sentences_and_gaps_are_read(tmp_path: Path) -> None:
    fields = {"caption": "raw", "longSV_captions": ["A dog", " ", "It runs."], "shortLLA_captions": 1e999}
    write_tar(tmp_path / "a.tar", {"p.jpg": jpeg(1), "p.json": json.dumps(fields).encode()})
    record = open_source(str(tmp_path / "a.tar"))[0]
    assert (record.captions, record.longs) == (("raw",), ("A dog. It runs.",))
    only = {"longIB_captions": "One.", "longLLA_captions": "Two."}
    write_tar(tmp_path / "b.tar", {"p.jpg": jpeg(1), "p.json": json.dumps(only).encode()})
    record = open_source(str(tmp_path / "b.tar"))[0]
    assert (record.captions, record.longs) == (("One.",), ("One.", "Two."))


def test_urls_that_share_a_file_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jpg").write_bytes(jpeg(1))
    (tmp_path / "d.csv").write_text("Image Path,raw_caption\nhttp://a/p.jpg,A.\nhttp://b/p.jpg,B.\n")
    with pytest.raises(UserError, match=r"http://b/p\.jpg and http://a/p\.jpg have one file name"):
        open_source(str(tmp_path / "d.csv"))


def test_regions_without_captions_are_nothing_to_train_on(tmp_path: Path) -> None:
    records = [Record("a", random_image(1), (), regions=FULL.regions), Record("b", random_image(2), ("A.",))]
    pack(Listed(records), tmp_path / "out")
    data = TrainSet(open_source(str(tmp_path / "out")), TOKENIZER, CROP, TextsConfig(), context=9, seed=0)
    assert set(data[Draw(0, 0, 0)].corrupt) == {(Cause.MISSING_CAPTION, "a")}
