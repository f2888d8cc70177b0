"""Folders, tables, parquet, COCO, several at once, and how a path finds its kind."""

import gzip
import json
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_tars import jpeg

from grainline.data.captions import sentences
from grainline.data.check import check
from grainline.data.formats.common import expand
from grainline.data.formats.folder import Folder
from grainline.data.formats.joined import Joined
from grainline.data.formats.listed import CocoKarpathy, CocoVal2017
from grainline.data.formats.parquet import Parquet
from grainline.data.formats.table import Table
from grainline.data.open_source import open_source, open_sources
from grainline.data.record import CorruptSample, Source
from grainline.errors import UserError


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with images a.jpg and sub/b.png, and nothing else."""
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(jpeg(1))
    (folder / "sub" / "b.png").write_bytes(jpeg(2))
    return folder


def write(path: Path, content: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def pairs_of(source: Source) -> list[tuple[str, tuple[str, ...]]]:
    return [(source[n].key, source[n].captions) for n in range(len(source))]


def cause(source: Source, index: int) -> str:
    with pytest.raises(CorruptSample) as caught:
        source[index]
    assert "\n" not in caught.value.where
    return caught.value.cause


# Folders


def test_a_folder_gives_its_images_with_the_texts_beside_them(data: Path) -> None:
    write(data / "a.txt", "\ufeffOne.\n\n  Two. \n")
    write(data / "sub" / "b.json", {"caption": "B.", "long": "B is long."})
    write(data / ".hidden.txt", "No.")
    source = open_source(str(data))
    assert isinstance(source, Folder)
    assert pairs_of(source) == [("a.jpg", ("One.", "Two.")), ("sub/b.png", ("B.",))]
    assert source[0].image == jpeg(1)
    assert source[1].long == "B is long."
    assert source.remarks == ()


def test_in_a_folder_json_wins_where_it_has_texts(data: Path) -> None:
    write(data / "a.json", {"caption": "J."})
    write(data / "a.txt", "T.")
    write(data / "sub" / "b.json", {"caption": ""})
    write(data / "sub" / "b.txt", "T.")
    write(data / "lonely.txt", "T.")
    source = Folder(str(data))
    assert pairs_of(source) == [("a.jpg", ("J.",)), ("sub/b.png", ("T.",))]
    assert source.remarks == ("1 texts have no image: lonely.txt",)


def test_in_a_folder_a_missing_text_or_image_is_damage(data: Path) -> None:
    write(data / "a.txt", "A.")
    (data / "c.jpg").mkdir()
    write(data / "z.gif", "gone")
    write(data / "z.txt", "Z.")
    source = Folder(str(data))
    (data / "z.gif").unlink()
    assert [cause(source, n) for n in (1, 2)] == ["missing caption", "missing image"]
    (data / "a.txt").unlink()
    (data / "a.txt").mkdir()
    assert cause(source, 0) == "unreadable file"


def test_a_folder_through_a_link_that_goes_in_circles_ends(data: Path) -> None:
    write(data / "a.txt", "A.")
    (data / "sub" / "again").symlink_to(data)
    assert len(Folder(str(data))) == 2


def test_thumbnails_and_excluded_files_are_left_out_and_counted(data: Path) -> None:
    names = ("@eaDir/a.jpg", "sub/@eaDir/b.png", "x.lrdata/c.jpg", "private/2020/d.jpg", "e-copy.jpg")
    for name in names:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(jpeg(9))
    for name in ("a.txt", "sub/b.txt"):
        write(data / name, "A.")
    plain = open_source(str(data))
    assert list(plain.keys()) == ["a.jpg", "e-copy.jpg", "private/2020/d.jpg", "sub/b.png"]
    assert plain.remarks[0].startswith(
        "3 files left out, of thumbnails or by exclude: @eaDir/a.jpg, sub/@eaDir/b"
    )
    chosen = open_source(f"{data}?exclude=private/20*,*-copy.jpg")
    assert list(chosen.keys()) == ["a.jpg", "sub/b.png"]
    assert "5 files left out" in chosen.remarks[0]
    assert list(open_source(f"classes:{data}?exclude=private").keys()) == ["sub/b.png"]
    with pytest.raises(UserError, match=r"'only=x' in .* is no option: allowed are exclude"):
        open_source(f"{data}?only=x")


def test_the_fingerprint_of_a_folder_follows_its_texts(data: Path) -> None:
    write(data / "a.txt", "A.")
    first = Folder(str(data)).fingerprint()
    assert Folder(str(data)).fingerprint() == first
    write(data / "a.txt", "B.")
    assert Folder(str(data)).fingerprint() != first


# Tables


@pytest.mark.parametrize("image", ["image", "image_path", "filepath", "file_name", "filename", "path", "img"])
@pytest.mark.parametrize("caption", ["caption", "captions", "text", "title", "Sentence", "sentences"])
def test_columns_go_by_name(data: Path, image: str, caption: str) -> None:
    rows = [{"id": 1, image: "a.jpg", caption: "A.", "description": "Long."}]
    source = open_source(write(data / "t.jsonl", lines(rows)))
    assert pairs_of(source) == [("a.jpg", ("A.",))]
    assert source[0].long == "Long."


def test_rows_of_one_image_are_merged_in_order(data: Path) -> None:
    rows = [
        {"image": "sub/b.png", "caption": "B1."},
        {"image": "a.jpg", "caption": ["A1.", "A2."], "long": "Long."},
        {"image": "a.jpg", "long": "Other."},
        {"image": "./sub/b.png", "caption": "B2.", "regions": [{"phrase": "b", "box": [0, 0, 1, 1]}]},
    ]
    for path in (write(data / "t.jsonl", lines(rows)), write(data / "t.json", rows)):
        source = open_source(path)
        assert pairs_of(source) == [("sub/b.png", ("B1.", "B2.")), ("a.jpg", ("A1.", "A2."))]
        assert source[0].regions[0].phrase == "b"
        assert (source[0].image, source[0].long, source[1].long) == (jpeg(2), None, "Long.")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", 'filepath,title\na.jpg,"One, two."\nsub/b.png,"[""x"", ""y""]"\n'),
        ("t.csv", 'filepath\ttitle\na.jpg\tOne, two.\nsub/b.png\t["x", "y"]\n'),
        ("t.tsv", '\ufeffid\tfilepath\ttitle\r\n1\ta.jpg\tOne, two.\r\n2\tsub/b.png\t["x", "y"]\r\n'),
    ],
)
def test_csv_and_tsv_are_read_whatever_the_delimiter(data: Path, name: str, text: str) -> None:
    (data / name).write_bytes(text.encode())
    source = open_source(str(data / name))
    assert pairs_of(source)[0] == ("a.jpg", ("One, two.",))
    if "\\t" not in text:
        assert pairs_of(source)[1][0] == "sub/b.png"


ANON = [{"": "7", "image": "a.jpg", "caption": "A."}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", ",,image,caption\n7,8,a.jpg,A.\n"),
        ("t.csv", "image,caption,\na.jpg,A.,\n"),
        ("metadata.csv", " ,image,caption\n7,a.jpg,A.\n"),
        ("t.tsv", "\timage\tcaption\n7\ta.jpg\tA.\n"),
        ("t.json", json.dumps(ANON)),
        ("t.jsonl", lines(ANON)),
    ],
)
def test_a_column_without_a_name_is_no_text(data: Path, name: str, text: str) -> None:
    path = write(data / name, text)
    source = open_source(path if name != "metadata.csv" else str(data))
    assert (source[0].captions, source[0].long) == (("A.",), None)
    assert source.remarks == ("a column without a name is not read",)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz"])
def test_a_table_of_texts_is_read_by_its_columns(tmp_path: Path, name: str) -> None:
    rows = ["|caption", "7|A.", '8|"B, b."', "9|nan"]
    text = "\n".join(rows).replace("|", "\t" if "tsv" in name else ",").encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    source = open_source(f"texts:{tmp_path / name}")
    assert [source[0].captions, source[1].captions, len(source)] == [("A.",), ("B, b.",), 3]
    assert "a column without a name is not read" in source.remarks


@pytest.mark.parametrize("text", ["nan", "NULL", "None", "<NA>", "\u200b\ufeff", "\u2800 \u00ad", "\u3164"])
def test_empty_cells_and_invisible_characters_are_no_captions(data: Path, text: str) -> None:
    rows = [{"image": "a.jpg", "caption": text}, {"image": "sub/b.png", "caption": [text, "\u200bB."]}]
    source = open_source(write(data / "t.jsonl", lines([*rows, {"image": text, "caption": "C."}])))
    assert cause(source, 0) == "missing caption"
    assert source[1].captions == ("\u200bB.",)
    assert cause(source, 2) == "missing image"
    write(data / "a.txt", text)
    write(data / "sub" / "b.txt", "B.")
    assert cause(Folder(str(data)), 0) == "missing caption"


def test_columns_and_the_folder_of_images_can_be_named(data: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "photo,says,caption\na.jpg,Yes.,No.\n")
    named = f"{table}?image=photo&caption=says"
    for source in (open_source(f"{named}&root=data"), open_source(named, images=str(data))):
        assert pairs_of(source) == [("a.jpg", ("Yes.",))]


def test_damage_in_a_table_is_counted_row_by_row(data: Path) -> None:
    rows = [
        *('{"image": "a.jpg", "caption": "A."}', '{"image": "a', '{"caption": "x"}'),
        *('{"image": "gone.jpg", "caption": "x"}', '{"image": "sub/b.png", "caption": "  "}'),
        '{"image": "c.jpg", "caption": "C.", "boxes": [{"phrase": 1}]}',
    ]
    source = open_source(write(data / "t.jsonl", "\n".join(rows)))
    assert source[0].captions == ("A.",)
    causes = ["corrupt row", "missing image", "missing image", "missing caption", "corrupt region"]
    assert [cause(source, n) for n in range(1, len(source))] == causes
    assert len(check(source, sentences).faults["missing image"]) == 2


def test_a_folder_with_a_metadata_table_is_a_table(data: Path) -> None:
    write(data / "metadata.jsonl", lines([{"file_name": "a.jpg", "text": "A."}]))
    source = open_source(str(data))
    assert isinstance(source, Table)
    assert pairs_of(source) == [("a.jpg", ("A.",))]


def test_the_fingerprint_of_a_table_follows_its_texts_and_not_its_place(data: Path, tmp_path: Path) -> None:
    rows = [{"image": "a.jpg", "caption": "A."}]
    prints = [
        Table(write(data / "t.jsonl", lines(rows))).fingerprint(),
        Table(write(tmp_path / "u.jsonl", lines(rows)), str(data)).fingerprint(),
        Table(write(data / "v.jsonl", lines([rows[0] | {"caption": "B."}]))).fingerprint(),
    ]
    assert prints[0] == prints[1] != prints[2]


# Parquet


def write_parquet(path: Path, columns: Mapping[str, Sequence[Any]], rows_a_group: int = 2) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(dict(columns)), path, row_group_size=rows_a_group)
    return str(path)


def test_parquet_gives_bytes_structs_and_paths(data: Path) -> None:
    captions = [f"C{n}." for n in range(5)]
    images = [jpeg(n) for n in range(5)]
    columns = {"image": images, "text": captions, "long": [None] * 4 + ["L."]}
    by_bytes = write_parquet(data / "bytes.parquet", columns)
    by_struct = write_parquet(
        data / "struct.parquet",
        {
            "image": [{"bytes": b, "path": "x.jpg"} for b in images[:4]] + [{"bytes": None, "path": "a.jpg"}],
            "captions": [[c, "x"] for c in captions],
        },
    )
    by_path = write_parquet(data / "path.parquet", {"path": ["a.jpg"] * 5, "caption": captions})
    source = open_source(by_bytes)
    assert isinstance(source, Parquet)
    for n in (4, 0, 2, 1, 3, 4):  # across row groups and back
        assert source[n][:4] == (f"bytes.parquet:{n}", images[n], (f"C{n}.",), "L." if n == 4 else None)
    assert open_source(by_struct)[3][1:3] == (images[3], ("C3.", "x"))
    assert open_source(by_struct)[4].image == jpeg(1)
    assert open_source(by_path)[2][1:3] == (jpeg(1), ("C2.",))


def test_parquet_damage_and_several_files(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"image": [jpeg(1), None, jpeg(3)], "caption": ["A.", "B.", " "]})
    write_parquet(tmp_path / "b.parquet", {"image": [jpeg(4)], "caption": ["D."]})
    source = open_source(str(tmp_path))
    assert [cause(source, n) for n in (1, 2)] == ["missing image", "missing caption"]
    assert source[3].key == "b.parquet:0"
    assert len(source) == 4
    keys = source.keys() if isinstance(source, Parquet) else ()
    assert list(keys) == ["a.parquet:0", "a.parquet:1", "a.parquet:2", "b.parquet:0"]
    (tmp_path / "a.parquet").unlink()
    assert cause(open_source(str(tmp_path / "b.parquet")) and source, 0) == "unreadable file"


def _captions(source: Source) -> list[str]:
    return [source[n].captions[0] for n in range(len(source))]


def test_forked_workers_read_the_same_parquet(tmp_path: Path) -> None:
    columns = {"image": [b"x"] * 5, "caption": [f"C{n}." for n in range(5)]}
    source = Parquet([write_parquet(tmp_path / "a.parquet", columns)])
    here = _captions(source)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_captions, [source] * 4) == [here] * 4


def test_the_fingerprint_of_parquet_follows_its_texts(tmp_path: Path) -> None:
    tables = [{"image": [b"x"], "caption": [text]} for text in ("A.", "A.", "B.")]
    prints = [Parquet([write_parquet(tmp_path / "a.parquet", one)]).fingerprint() for one in tables]
    assert prints[0] == prints[1] != prints[2]


def test_parquet_mistakes_are_reported_in_one_line(tmp_path: Path) -> None:
    wrong = write_parquet(tmp_path / "a.parquet", {"image": [7], "caption": ["A."]})
    with pytest.raises(UserError, match=r"a\.parquet has int64 in its image column image"):
        open_source(wrong)
    with pytest.raises(UserError, match=r"b\.parquet has no caption column among image"):
        open_source(write_parquet(tmp_path / "b.parquet", {"image": [b"x"]}))
    with pytest.raises(UserError, match=r"c\.parquet cannot be read as parquet"):
        open_source(write(tmp_path / "c.parquet", "no parquet"))


# COCO


@pytest.fixture
def karpathy(data: Path) -> str:
    sub, many = {"filepath": "sub", "split": "test"}, [{"raw": f"B{n}."} for n in range(7)]
    images = [
        sub | {"filename": "b.png", "sentences": many},
        {"filename": "a.jpg", "split": "train", "sentences": [{"raw": "A."}]},
        sub | {"filename": "c.jpg", "sentences": [{"raw": "C."}]},
    ]
    return write(data / "dataset_coco.json", {"images": images, "dataset": "coco"})


def test_karpathy_gives_one_split_and_the_first_five_captions(data: Path, karpathy: str) -> None:
    source = open_source(f"coco-karpathy:{karpathy}?images={data}")
    assert isinstance(source, CocoKarpathy)
    assert (len(source), source.left_out) == (2, 2)
    assert source[0][:3] == ("sub/b.png", jpeg(2), ("B0.", "B1.", "B2.", "B3.", "B4."))
    assert cause(source, 1) == "missing image"
    assert open_source(f"{karpathy}?split=train,test")[1].key == "a.jpg"
    inside = open_source(karpathy, images=str(data / "sub"))
    assert inside[0].image == jpeg(2)
    with pytest.raises(UserError, match=r"has no split val: it has test \(2\), train \(1\); see"):
        open_source(f"coco-karpathy:{karpathy}?split=val")


def test_a_token_file_of_flickr_gives_each_image_with_its_captions(data: Path) -> None:
    lines = [f"{name}.jpg#{n}\tA {name} {n} ." for name in ("b", "a") for n in range(5)]
    file = data / "results_20130124.token"
    file.write_text("\n".join([*lines, "no tab", "", "a.jpg#5\tMore .", "c.jpg#0\t \r"]) + "\n")
    source = open_source(str(file))
    assert list(source.keys()) == ["b.jpg", "a.jpg", "c.jpg", "line 11"]  # type: ignore[attr-defined]
    assert source[1].captions == tuple(f"A a {n} ." for n in range(5))
    assert source.remarks == ("1 captions beyond the first 5 of their image are left out",)  # type: ignore[attr-defined]
    with pytest.raises(CorruptSample, match=r"corrupt row: .*line 11 .no tab, not NAME#NUMBER and a tab"):
        source[3]
    assert cause(source, 2) == "missing caption"
    (data / "test_1k.txt").write_text("\n".join(lines))
    assert len(open_source(f"flickr-tokens:{data / 'test_1k.txt'}?images={data}")) == 2
    with pytest.raises(UserError, match="is not a token file of Flickr"):
        open_source(f"flickr-tokens:{written_text(data / 'x.token', 'A dog.')}")


def written_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_official_captions_stay_in_the_order_of_their_ids(data: Path) -> None:
    notes = [{"id": n, "image_id": 5, "caption": f"A{n}."} for n in (6, 3, 1, 2, 5, 4)]
    images = [{"id": 5, "file_name": "a.jpg"}, {"id": 6, "file_name": "n.jpg"}]
    content = {"images": images, "annotations": notes}
    source = open_source(write(data / "captions_val2017.json", content))
    assert isinstance(source, CocoVal2017)
    assert source[0].captions == ("A1.", "A2.", "A3.", "A4.", "A5.")
    assert source.left_out == 1
    assert cause(source, 1) == "missing caption"


# Several sources


def test_several_paths_are_one_source(data: Path, tmp_path: Path) -> None:
    write(data / "a.txt", "A.")
    write(data / "sub" / "b.txt", "B.")
    table = write(tmp_path / "t.jsonl", lines([{"image": "sub/b.png", "caption": "T."}]))
    apart = open_sources([str(data / "sub"), table], images=str(data))
    assert isinstance(apart, Joined)
    assert pairs_of(apart) == [("b.png", ("B.",)), ("sub/b.png", ("T.",))]
    clash = open_sources([str(data), table], images=str(data))
    assert pairs_of(clash) == [("data/a.jpg", ("A.",)), ("data/sub/b.png", ("B.",)), ("t/sub/b.png", ("T.",))]
    assert clash[-1].captions == ("T.",)
    assert isinstance(clash, Joined)
    assert list(clash.keys()) == [key for key, _ in pairs_of(clash)]
    with pytest.raises(IndexError):
        clash[3]
    assert clash.fingerprint() != apart.fingerprint()
    assert pairs_of(open_sources([str(data), str(data)]))[2][0] == "data.1/a.jpg"


def test_joined_sources_pass_on_damage_and_remarks(data: Path, karpathy: str) -> None:
    write(data / "a.txt", "A.")
    write(data / "x.txt", "X.")
    joined = open_sources([str(data), karpathy])
    assert cause(joined, 1) == "missing caption"
    assert isinstance(joined, Joined)
    assert joined.remarks == (
        f"{data}: 2 texts have no image: dataset_coco.json, x.txt",
        f"{karpathy}: 2 captions beyond the first 5 of their image are left out",
    )


# Paths


def test_ranges_keep_their_zeros_and_wildcards_are_sorted(tmp_path: Path) -> None:
    for name in ("t-8.x", "t-08.x", "t-09.x", "t-10.x"):
        (tmp_path / name).touch()
    for pattern, names in (("{08..10}", ["08", "09", "10"]), ("?0", ["10"]), ("{1,0}*", ["10", "08", "09"])):
        assert expand(f"{tmp_path}/t-{pattern}.x") == [f"{tmp_path}/t-{name}.x" for name in names]


def test_a_file_whose_name_looks_like_a_pattern_is_itself(data: Path) -> None:
    path = write(data / "t[1]?a=b.jsonl", lines([{"image": "a.jpg", "caption": "A."}]))
    assert pairs_of(open_source(path)) == [("a.jpg", ("A.",))]


OWN_SOURCE = """
from grainline.data.record import Record

class Colours:
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return Record(self.path.split(",")[index], b"", ("A.", f"B{index}."))

    def fingerprint(self):
        return self.path
"""


def test_a_source_from_outside_is_opened_by_module_and_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "own_sources.py", OWN_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    source = open_source("own_sources:Colours:red,blue?skip=0", trust_code=True)
    assert [source[i][:3:2] for i in (0, 1)] == [("red", ("B0.",)), ("blue", ("B1.",))]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("builtins:Nothing:red", "builtins:Nothing is no class"),
        ("no_such_module:Colours:red", "the source of the data: no_such_module:Colours cannot be imported"),
        ("builtins:Exception:red", "builtins:Exception is no source: it lacks path"),
    ],
)
def test_a_class_that_is_no_source_is_one_line(path: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        open_source(path, trust_code=True)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="own_sources:Colours would import the module own_sources"):
        open_source("own_sources:Colours:red")


ROW = {"image": "a.jpg", "caption": "A."}


@pytest.mark.parametrize(
    ("make", "path", "message"),
    [
        ({}, "gone.tar", r"nothing at .*gone\.tar \(from .*\): name a file, a folder or a pattern"),
        ({}, "gone-*.tar", r"gone-\*\.tar stands for .*gone-\*\.tar, where nothing is"),
        ({"t-0.csv": "x"}, "t-{0..2}.csv", r"stands for .*t-1\.csv, .*t-2\.csv, where nothing is"),
        ({}, "t-{2..0}.csv", r"\{2\.\.0\} in .* is no range"),
        ({"a.xyz": "x"}, "a.xyz", r"a\.xyz is of no known kind: \.tar, \.jsonl"),
        ({"a.tar.gz": "x"}, "a.tar.gz", r"a\.tar\.gz is of no known kind: .*unpack it first"),
        (
            {"empty/x/y.md": "", "empty/z": ""},
            "empty",
            r"holds no images, no tars and no parquet files, but 2 files of the kinds md, without a suffix",
        ),
        ({}, "sub", r"sub holds 1 images without captions \(NAME\.txt, \.json"),
        ({"t.jsonl": ""}, "t.jsonl", r"t\.jsonl is empty"),
        ({"t.csv": "image,caption\n"}, "t.csv", r"t\.csv has no rows below the names of its columns"),
        ({"t.csv": "\nimage,caption\na.jpg,A.\n"}, "t.csv", r"first line of t\.csv is blank; it must hold"),
        ({"t.jsonl": "no\nno"}, "t.jsonl", r"t\.jsonl is not JSON Lines: .*one object a line"),
        ({"t.jsonl": [ROW]}, "t.jsonl", r"t\.jsonl is not JSON Lines: a list"),
        ({"t.json": "{"}, "t.json", r"t\.json is not JSON: "),
        ({"t.json": {"x": 1, "y": 2}}, "t.json", r"t\.json holds an object with x, y: allowed are COCO's"),
        (
            {"t.jsonl": {"url": "x", "caption": "A."}},
            "t.jsonl",
            r"no image column among caption, url: call it",
        ),
        (
            {"t.jsonl": {"image": "a.jpg"}},
            "t.jsonl",
            r"no caption column among image: call it one of caption,",
        ),
        ({"t.jsonl": ROW}, "t.jsonl?caption=says", r"no column says; its columns are caption, image"),
        (
            {"t.jsonl": ROW},
            "t.jsonl?captoin=x",
            r"'captoin=x' in .* is no option: allowed are image, caption",
        ),
        ({"t.jsonl": ROW | {"caption": " "}}, "t.jsonl", r"has no text in any row \(column caption\)"),
        ({"t.jsonl": ROW | {"image": "x/a.jpg"}}, "t.jsonl", r"none of the 1 images of .*x/a\.jpg.*--images"),
        (
            {"t.csv": "image,caption\na.jpg,One, two.\n"},
            "t.csv",
            r"has 3 fields in row 1, and 2 columns: put",
        ),
        ({"t.json": {"images": [ROW]}}, "coco-karpathy:t.json", r"t\.json is not Karpathy's file"),
        ({"t.json": {"images": [ROW]}}, "coco-val2017:t.json", r"t\.json is not a caption file of COCO"),
        ({"t.json": [["n.jpg", "A.", "m.jpg", "B."]]}, "t.json", r"none of the 2 images .*--images DIR"),
        ({}, "cooc-karpathy:t.json", r"names no known kind: cooc-karpathy is none of scenes, tars"),
        (
            {},
            "ftp://example.org/a.tar",
            r"is ftp://, which is not read: allowed are s3://, gs://, hf://, https://",
        ),
        ({}, "s3://a/b.zip::c", r"is a chain with ::, which is not read: allowed are s3://"),
        ({}, "pipe:cat a.tar", r"is a pipe, which has no random access: name files or URLs"),
        ({}, "tars:sub", r"sub holds no \.tar files"),
        ({"m/a.tar": "", "m/b.parquet": ""}, "m", r"m holds tars and parquet files: say which with tars:"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    data: Path, monkeypatch: pytest.MonkeyPatch, make: dict[str, Any], path: str, message: str
) -> None:
    monkeypatch.chdir(data)
    for name, content in make.items():
        write(data / name, content)
    with pytest.raises(UserError, match=message) as caught:
        open_source(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("see docs/data.md")


def test_an_open_quote_in_a_csv_is_a_mistake_that_names_its_line(data: Path) -> None:
    rows = ["image,caption", *["a.jpg,A dog."] * 3, 'a.jpg,"A dog', *["sub/b.png,B."] * 50]
    for text in (rows, [*rows, 'a.jpg,"A cat, red"'], [*rows[:4], 'a.jpg,"A" dog', *rows[5:]]):
        with pytest.raises(UserError, match=r"t\.csv cannot be read as a table from line 5 on, where"):
            open_source(write(data / "t.csv", "\n".join(text)))
    inside = 'a.jpg,"A dog.\nIt says ""Hi"", and runs."\nsub/b.png,A 12" ruler.'
    assert pairs_of(open_source(write(data / "t.csv", f"image,caption\n{inside}"))) == [
        ("a.jpg", ('A dog.\nIt says "Hi", and runs.',)),
        ("sub/b.png", ('A 12" ruler.',)),
    ]
    with pytest.raises(UserError, match=r"t\.csv has the column caption more than once"):
        open_source(write(data / "t.csv", "image,caption,caption\na.jpg,A.,B."))


def test_texts_beside_an_image_that_cannot_be_read_are_damaged_and_named(data: Path) -> None:
    (data / "a.txt").write_bytes("Caf\u00e9".encode("latin-1"))
    (data / "sub" / "b.txt").write_text("B.")
    source = open_source(str(data))
    with pytest.raises(CorruptSample, match=r"corrupt text: .*a\.txt \(not UTF-8 text \(.* at byte 3\)\)"):
        source[0]
    (data / "sub" / "b.json").write_text("{")
    source = open_source(str(data))
    assert [cause(source, n) for n in (0, 1)] == ["corrupt text"] * 2


def test_wrong_rows_of_coco_are_damage_of_their_own(data: Path) -> None:
    content = {
        "images": [{"id": n, "file_name": name} for n, name in ((5, "a.jpg"), ([6], "b"), (5, "c"))],
        "annotations": [
            {"id": 1, "image_id": 5, "caption": "A."},
            {"id": {}, "image_id": 5, "caption": "B."},
            {"id": 2, "image_id": 9, "caption": "B."},
            {"id": 3, "image_id": 5, "caption": None},
        ],
    }
    source = open_source("coco-val2017:" + write(data / "captions_val2017.json", content))
    assert source[0][:3] == ("a.jpg", jpeg(1), ("A.",))
    file = str(data / "captions_val2017.json")
    assert check(source, sentences).faults["corrupt row"] == [
        f"{file}: images[1] (id is [6]: an id is a number or a text)",
        f"{file}: images[2] (another image has its id 5)",
        f"{file}: annotations[1] (id is an object: an id is a number or a text)",
        f"{file}: annotations[2] (image 9 is not listed, or wrong there)",
        f"{file}: annotations[3] (caption is null: it must be a valid string)",
    ]


def test_a_folder_that_may_not_be_read_is_a_mistake(data: Path) -> None:
    write(data / "a.txt", "A.")
    (data / "sub").chmod(0)
    if os.access(data / "sub", os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(UserError, match=r"sub cannot be read \(Permission denied\)"):
        open_source(str(data))


def test_a_folder_of_images_is_only_for_kinds_that_need_one(data: Path) -> None:
    with pytest.raises(UserError, match=r"--images .* does not go with scenes: scenes hold their own images"):
        open_source("scenes", images=str(data))
    with pytest.raises(UserError, match=r"--images .* does not go with scenes"):
        open_sources(["scenes", "scenes:dev"], images=str(data))
    with pytest.raises(UserError, match=r"no data was named"):
        open_sources([])
