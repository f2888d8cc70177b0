"""Tars with an index, against sequential reading with Python's tarfile."""

import contextlib
import gzip
import io
import json
import multiprocessing
import os
import pickle
import random
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from grainline.data.formats.tar_index import Shard, load_shard, members
from grainline.data.formats.tars import Tars
from grainline.data.open_source import open_source
from grainline.data.record import CorruptSample, Source
from grainline.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where indexes are kept during a test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "grainline" / "index"


def jpeg(shade: int = 100, size: tuple[int, int] = (8, 8)) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, (shade % 256, 50, 50)).save(data, "jpeg")
    return data.getvalue()


def write_tar(path: Path, files: dict[str, bytes], *more: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in (*files.items(), *more):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def samples(number: int, start: int = 0) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for n in range(start, start + number):
        files[f"{n:04d}.jpg"] = jpeg(n)
        files[f"{n:04d}.json"] = json.dumps({"caption": f"Image {n}."}).encode()
    return files


def sequential(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(m.name, f.read()) for m in tar if m.isfile() and (f := tar.extractfile(m)) is not None]


def causes(source: Source) -> list[str | None]:
    """For each sample why it cannot be used, None where it can."""

    def cause(index: int) -> str | None:
        try:
            source[index]
        except CorruptSample as damaged:
            return damaged.cause
        return None

    return [cause(index) for index in range(len(source))]


def test_folders_and_links_are_no_samples(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", samples(2))
    with tarfile.open(path, "a") as tar:
        for name, kind in (("d", tarfile.DIRTYPE), ("l.jpg", tarfile.SYMTYPE), ("h.jpg", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "0001.jpg"
            member.size = 1100  # some writers note the size of what a link leads to; its data do not follow
            tar.addfile(member)
    assert list(Tars([str(path)]).keys()) == ["0000", "0001"]


def test_concatenated_tars_are_read_to_their_end(tmp_path: Path) -> None:
    one, two = write_tar(tmp_path / "1.tar", samples(3)), write_tar(tmp_path / "2.tar", samples(2, 3))
    (tmp_path / "both.tar").write_bytes(one.read_bytes() + two.read_bytes())
    source = Tars([str(tmp_path / "both.tar")])
    assert [source[n].captions for n in range(5)] == [(f"Image {n}.",) for n in range(5)]
    assert source.remarks == ()


def test_members_of_a_sample_need_not_be_neighbours_and_keys_end_at_the_first_dot(tmp_path: Path) -> None:
    files = {"./x.y/a.jpg": jpeg(1), "b.png": b"p", "x.y/a.json": b'{"caption": "A."}', "b.txt": b" B. \n"}
    source = Tars([str(write_tar(tmp_path / "a.tar", files | {"._b.jpg": b"", "README": b"", "c.npy": b""}))])
    assert [(r.key, r.captions) for r in (source[0], source[1])] == [("x.y/a", ("A.",)), ("b", ("B.",))]
    assert len(source) == 2


def test_a_file_that_comes_twice_opens_a_second_sample(tmp_path: Path) -> None:
    again = ("a.jpg", b"2"), ("a.txt", b"B."), ("a.txt", b"C.")
    source = Tars([str(write_tar(tmp_path / "a.tar", {"a.jpg": b"1", "a.txt": b"A."}, *again))])
    assert [source[n][:3] for n in (0, 1)] == [("a", b"1", ("A.",)), ("a#2", b"2", ("B.",))]
    assert causes(source) == [None, None, "missing image"]


@pytest.mark.parametrize(
    ("names", "expected", "remarks"),
    [
        ("v1.0_1.jpg v1.0_1.txt v1.0_2.jpg v1.0_2.txt", {"v1.0_1": "v1.0_1", "v1.0_2": "v1.0_2"}, "v1 would"),
        ("p 1.1.jpg|p 1.2.txt|p 1.2.jpg|p 1.1.txt", {"p 1.1": "p 1.1", "p 1.2": "p 1.2"}, "p 1 would"),
        ("Dr. X.jpg|Dr. X.txt|Dr. Y.txt|Dr. Y.jpg", {"Dr. X": "Dr. X", "Dr. Y": "Dr. Y"}, "Dr would"),
        ("a.jpg a.txt a.1.jpg a.1.txt", {"a": "a", "a.1": "a.1"}, "a would"),
        # without its partner no member is taken for that of another image of the tar
        (
            "a.1.jpg a.2.txt b.1.jpg b.1.txt b.2.jpg b.2.txt",
            {"a.1": None, "a.2": None, "b.1": "b.1", "b.2": "b.2"},
            "b would",
        ),
        ("1.0.jpg 1.0.jpg.txt 1.1.jpg 1.1.jpg.json.txt", {"1.0": "1.0.jpg", "1.1": "1.1.jpg.json"}, "1 wou"),
        ("0.left.jpg 0.right.jpg 0.txt", {"0.left": None, "0.right": None, "0": None}, "0 would"),
        ("0.jpg 0.en.txt 0.de.txt", {"0": None, "0.en": None, "0.de": None}, "0 would"),
        # as WebDataset has it: one image and one text of each ending, and masks beside the image
        ("v1.0_1.jpg v1.0_1.txt", {"v1": "v1.0_1"}, ""),
        ("0.image.jpg 0.caption.txt", {"0": "0.caption"}, ""),
        ("0.png 0.seg.png 0.caption.txt", {"0": "0.caption"}, "1 further file of samples not read, such"),
        ("0.jpg 0.txt 0.a.json 0.b.json 0.seg.png", {"0": "0"}, "3 further files of samples not read, such"),
        ("0.jpg 0.txt 0.meta.json", {"0": "0"}, "1 further file of samples not read, such as 0.meta.json"),
        # two images, or two texts, that only their endings tell apart
        ("0.jpg 0.png 0.txt 1.JPG 1.TXT", {"0": "ambiguous key", "1": "1"}, ""),
        ("0.jpg 0.txt 0.TXT", {"0": "ambiguous key"}, ""),
    ],
)
def test_an_image_gets_its_own_text_where_names_hold_dots(
    tmp_path: Path, names: str, expected: dict[str, str | None], remarks: str
) -> None:
    files = {name: Path(name).stem.encode() for name in names.split("|" if "|" in names else " ")}
    source = Tars([str(write_tar(tmp_path / "a.tar", files))])
    result = {}
    for key, cause in zip(source.keys(), causes(source), strict=True):
        incomplete = None if cause in ("missing image", "missing caption") else cause
        result[key] = source[len(result)].captions[0] if cause is None else incomplete
    assert result == expected
    assert remarks in "".join(source.remarks)
    assert len(source.remarks) == bool(remarks)


@pytest.mark.parametrize(
    ("fields", "text", "captions", "long"),
    [
        ({"caption": "One."}, None, ("One.",), None),
        ({"caption": "One."}, "Two.", ("One.",), None),
        ({"caption": " \n"}, " Two.\nStill two. ", ("Two.\nStill two.",), None),
        ({"caption": "Two.", "captions": ["One.", "", "Two."], "url": "x"}, None, ("One.", "Two."), None),
        ({"caption": ["One."], "long_caption": "Long."}, None, ("One.",), "Long."),
        ({"description": "Long."}, "Two.", ("Long.",), None),
        ({"long": "Long.", "caption": "\ud83d!"}, None, ("?!",), "Long."),
        ("not an object", "Two.", ("Two.",), None),
    ],
)
def test_texts_come_from_the_json_and_else_from_the_txt(
    tmp_path: Path, fields: object, text: str | None, captions: tuple[str, ...], long: str | None
) -> None:
    files = {"a.jpg": b"j", "a.json": json.dumps(fields).encode()}
    record = Tars([str(write_tar(tmp_path / "a.tar", files | ({"a.txt": text.encode()} if text else {})))])[0]
    assert (record.captions, record.long) == (captions, long)


def test_broken_json_is_named_whether_or_not_there_is_a_txt(tmp_path: Path) -> None:
    files = {"a.jpg": b"j", "a.json": b"{", "b.jpg": b"j", "b.json": b"{", "b.txt": b"B."}
    files |= {"c.jpg": b"j", "c.json": b'{"caption": "A.", "caption": "B."}'}
    files |= {"d.jpg": b"j", "d.txt": "Café".encode("latin-1"), "e.jpg": b"j", "e.json": b"[]"}
    source = Tars([str(write_tar(tmp_path / "a.tar", files))])
    assert causes(source) == [*["corrupt text"] * 4, "missing caption"]
    for index, message in (
        (0, r"a\.tar: a\.json \(Expecting property name"),
        (2, r"a\.tar: c\.json \(one object has the key 'caption' 2 times\)"),
        (3, r"a\.tar: d\.txt \(not UTF-8 text \(.* at byte 3\)"),
    ):
        with pytest.raises(CorruptSample, match=message):
            source[index]


def test_regions_and_foils_are_read(tmp_path: Path) -> None:
    fields = {
        "caption": "A dog.",
        "regions": [
            {"phrase": "dog", "box": [0, 1, 2, 3], "mask": [[0, 1], [1, 1]], "span": ["captions.0", 2, 5]},
            {"phrase": "dog", "mask": {"size": [2, 3], "counts": [1, 2, 3]}},
        ],
        "foils": [{"text": "A cat.", "true": "A dog.", "kind": "noun"}],
    }
    files = {"a.jpg": b"j", "a.json": json.dumps(fields).encode()}
    wrong = {"caption": "B.", "boxes": [{"phrase": "b", "box": [3, 0, 1, 1]}]}
    files |= {"b.jpg": b"j", "b.json": json.dumps(wrong).encode()}
    source = Tars([str(write_tar(tmp_path / "a.tar", files))])
    first, second = source[0].regions
    assert first[:2] == ("dog", (0.0, 1.0, 2.0, 3.0))
    assert first.span == ("captions.0", 2, 5)
    assert first.mask is not None
    assert first.mask.tolist() == [[False, True], [True, True]]
    assert second.mask is not None
    assert second.mask.tolist() == [[False, True, False], [True, False, False]]
    assert source[0].foils == (("A cat.", "A dog.", "noun"),)
    assert causes(source) == [None, "corrupt region"]


def test_a_cut_tar_gives_every_whole_sample_and_reports_the_cut_one(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", samples(3)).read_bytes()
    last = members(str(tmp_path / "whole.tar")).files[-1]
    path = tmp_path / "cut.tar"
    for length in range(1024, last.offset + last.size + 512, 100):
        path.write_bytes(whole[:length])
        ends = [m.offset + m.size for m in members(str(tmp_path / "whole.tar")).files]
        complete = sum(end <= length for end in ends[1::2])
        if not complete:
            continue
        loaded = causes(Tars([str(path)]))
        assert loaded[:complete] == [None] * complete
        assert loaded[complete:] in ([], ["truncated tar"])
        more = length > -(-ends[2 * complete - 1] // 512) * 512  # a byte of the next sample
        header = complete < 3 and more
        assert (loaded[complete:] == ["truncated tar"]) == header or length > ends[-1]


def test_a_damaged_header_in_the_middle_is_reported(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", samples(3))
    data = bytearray(path.read_bytes())
    second = members(str(path)).files[2]
    data[second.offset - 512] ^= 1
    path.write_bytes(data)
    source = Tars([str(path)])
    assert causes(source) == [None, "truncated tar"]
    assert source.remarks == (f"{path} has a cut or damaged header at byte {second.offset - 512}",)
    with pytest.raises(CorruptSample, match=r"a\.tar after 0000"):
        source[1]


def test_an_empty_shard_among_others_is_one_damaged_sample(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", samples(2))
    (tmp_path / "b.tar").touch()
    assert causes(open_source(str(tmp_path))) == [None, None, "truncated tar"]


def test_a_tar_that_changes_after_opening_is_unreadable(tmp_path: Path) -> None:
    source = Tars([str(write_tar(tmp_path / "a.tar", samples(2)))])
    write_tar(tmp_path / "a.tar", samples(3))
    assert causes(source) == ["unreadable file"] * 2


def test_several_tars_are_one_sequence_with_unique_keys(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", samples(2))
    write_tar(tmp_path / "b.tar", samples(3, 2))
    write_tar(tmp_path / "c.tar", samples(1))
    apart = open_source(f"{tmp_path}/{{a,b}}.tar")
    assert [apart[n].key for n in range(5)] == list(apart.keys()) == ["0000", "0001", "0002", "0003", "0004"]
    assert [apart[n].captions[0] for n in (4, 0, -1)] == ["Image 4.", "Image 0.", "Image 4."]
    clash = open_source(f"{tmp_path}/?.tar")
    assert [clash[n].key for n in (0, 3, 5)] == ["a/0000", "b/0003", "c/0000"]
    with pytest.raises(IndexError):
        clash[6]


def _content(shard: Shard) -> list[Any]:
    return [list(shard.keys), [*map(shard.places, range(len(shard.keys)))], shard.hashes.tolist(), *shard[3:]]


def test_the_index_is_cached_and_built_again_when_damaged_or_old(tmp_path: Path, cache: Path) -> None:
    path = str(write_tar(tmp_path / "a.tar", samples(3)))
    built = _content(load_shard(path))
    (kept,) = cache.iterdir()
    written = kept.read_bytes()
    assert _content(load_shard(path)) == built
    # A cache that says other things with the right checksum is believed: so we see that it is read at all.
    other = written[:-4].replace(b"00010002", b"zzzz0002")
    kept.write_bytes(other + zlib.crc32(other).to_bytes(4, "little"))
    assert [*load_shard(path).keys] == ["0000", "zzzz", "0002"]
    for damaged in (b"", b"{}", written[:-5], written[:-6] + b"xx" + written[-4:], other, os.urandom(100)):
        kept.write_bytes(damaged)
        assert _content(load_shard(path)) == built
        assert kept.read_bytes() == written
    write_tar(Path(path), samples(4))
    assert [*load_shard(path).keys] == ["0000", "0001", "0002", "0003"]
    write_tar(Path(path), samples(4, 4))  # of the same size
    os.utime(path, ns=(0, 0))
    assert [*load_shard(path).keys] == ["0004", "0005", "0006", "0007"]
    assert len(list(cache.iterdir())) == 1


def test_a_single_wrong_bit_of_the_index_is_noticed(tmp_path: Path, cache: Path) -> None:
    path = str(write_tar(tmp_path / "a.tar", samples(1)))
    built = _content(load_shard(path))
    (kept,) = cache.iterdir()
    written = kept.read_bytes()
    for bit in range(len(written) * 8):
        wrong = bytearray(written)
        wrong[bit // 8] ^= 1 << bit % 8
        kept.write_bytes(wrong)
        assert _content(load_shard(path)) == built


def test_a_cache_folder_that_cannot_be_made_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(Tars([str(write_tar(tmp_path / "a.tar", samples(3)))])) == 3


def _captions(source: Tars) -> list[str]:
    return [source[n].captions[0] for n in range(len(source))]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_same(tmp_path: Path, method: str) -> None:
    source = Tars([str(write_tar(tmp_path / "a.tar", samples(5)))])
    here = _captions(source)  # opens the tar before the fork
    assert _captions(pickle.loads(pickle.dumps(source))) == here
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_captions, [source] * 4) == [here] * 4


def test_equal_tars_have_equal_fingerprints_wherever_they_lie(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one, two = write_tar(tmp_path / "a.tar", samples(2)), write_tar(tmp_path / "b" / "c.tar", samples(2))
    other = write_tar(tmp_path / "d.tar", samples(2) | {"0001.txt": b"More."})
    prints = [Tars([str(path)]).fingerprint() for path in (one, two, other)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b"x" * 600, mtime=0), r"a\.tar is packed with gzip: unpack it first"),
        (b"\xff\xd8 no tar" * 100, r"a\.tar is not a tar \(no valid header at its start\)"),
        (b"", r"a\.tar \(1 tar, 1 sample\) holds no KEY\.jpg, .* \(.* is empty\); see docs/data\.md"),
    ],
    ids=["gzip", "no header", "empty"],  # the same in every process: workers compare them
)
def test_what_is_no_tar_is_a_mistake_in_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(UserError, match=message):
        Tars([str(tmp_path / "a.tar")])


def test_tars_without_images_or_captions_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no KEY\.jpg"):
        Tars([str(write_tar(tmp_path / "a.tar", {"a.txt": b"A."}))])
    with pytest.raises(UserError, match=r"holds images but no KEY\.json or KEY\.txt"):
        Tars([str(write_tar(tmp_path / "b.tar", {"a.jpg": jpeg()}))])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, 6000), st.integers(1, 255)), min_size=1, max_size=4))
def test_damage_anywhere_is_never_another_error(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    path = write_tar(tmp_path / "any.tar", samples(2))
    data = bytearray(path.read_bytes())
    for at, bits in flips:
        data[at % len(data)] ^= bits
    path.write_bytes(data)
    with contextlib.suppress(UserError):
        causes(Tars([str(path)]))


def _pairs(paths: list[Path]) -> Iterator[tuple[bytes, dict[str, object]]]:
    for path in paths:
        files = dict(sequential(path))
        for name, data in files.items():
            if name.endswith(".jpg"):
                yield data, json.loads(files[name[:-3] + "json"])


@pytest.mark.parametrize(
    ("pattern", "number", "several"),
    [
        ("openstax/train-*.tar", 6480, 1),
        ("openstax/dev-0000.tar", 575, 1),
        ("flickr8k/train-{0000..0002}.tar", 6000, 5),
        ("flickr8k/dev-*.tar", 1000, 5),
        ("benchmarks/cc12m", 32, 1),
    ],
)
def test_real_tars_in_any_order_equal_sequential_reading(
    shared_data: Path, pattern: str, number: int, several: int
) -> None:
    source = open_source(str(shared_data / pattern))
    assert isinstance(source, Tars)
    assert len(source) == number
    expected = list(_pairs([Path(shard.path) for shard in source._shards]))
    order = list(range(number))
    random.Random(0).shuffle(order)
    for index in order:
        record = source[index]
        image, fields = expected[index]
        assert record.image == image
        assert record.captions == tuple(fields.get("captions") or [str(fields["caption"]).strip()])
        assert len(record.captions) == several
