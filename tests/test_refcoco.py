"""Expressions with masks out of files: RefCOCO, polygons, run-length codes, pickles."""

import copyreg
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import tiny_model
from PIL import Image

from grainline.data.benchmarks.refcoco import RefCoco, read_pickle
from grainline.data.decode import decode
from grainline.data.formats.parsed import polygons_mask, read_mask, run_lengths, unpacked
from grainline.data.open_source import open_source
from grainline.data.pack import pack
from grainline.data.record import CorruptSample, Record
from grainline.errors import UserError
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.referring import ReferringSuite

SIZE = (20, 16)  # of every image: width, height
WEDGE = [[2.0, 1.0, 12.5, 1.0, 12.5, 9.0, 2.0, 14.0]]
TWO = [[0, 0, 4, 0, 4, 4, 0, 4], [10.2, 6, 18, 6, 14, 15.5]]
TEXTS = (
    *("man on left", "the tall man", "woman in red", "guy", "left kid"),
    *("the dog", "small dog", "brown horse", "cup near plate", "zebra"),
)


def packed(mask: np.ndarray) -> str:
    """The run-length code of COCO in its string form, written as its documentation says."""
    counts = run_lengths(mask)["counts"]
    out = ""
    for i, count in enumerate(counts):
        number = count - counts[i - 2] if i > 2 else count
        more = True
        while more:
            bits, number = number & 31, number >> 5
            more = number != (-1 if bits & 16 else 0)
            out += chr(48 + (bits | 32 * more))
    return out


def masks() -> dict[int, np.ndarray]:
    """The mask of every annotation, by its id."""
    generator = np.random.default_rng(0)
    width, height = SIZE
    return {
        900: polygons_mask(WEDGE, height, width),
        901: polygons_mask(TWO, height, width),
        **{902 + i: generator.random((height, width)) > 0.7 for i in range(4)},
    }


def release(folder: Path, form: str = "p", protocol: int = 2, name: str = "refs(unc)") -> Path:
    """Ten expressions of seven objects in five images, as the release has them."""
    result = masks()
    codes: dict[int, Any] = {900: WEDGE, 901: TWO} | {name: run_lengths(result[name]) for name in (902, 904)}
    codes |= {name: {"size": [16, 20], "counts": packed(result[name])} for name in (903, 905)}
    of = ((900, 1), (901, 1), (902, 2), (903, 3), (904, 4), (905, 5))  # annotation, image
    number = (2, 2, 1, 2, 2, 1)
    split = ("val", "val", "val", "train", "testA", "testB")
    texts = iter(TEXTS)
    refs = []
    for i, (ann, image) in enumerate(of):
        said = [next(texts) for _ in range(number[i])]
        sentences = [
            {"sent_id": 10 * i + k, "sent": text, "raw": text.upper() + ".", "tokens": text.split()}
            for k, text in enumerate(said)
        ]
        refs.append(
            {
                "ref_id": i, "ann_id": ann, "image_id": image, "category_id": 1, "split": split[i],
                "file_name": f"COCO_train2014_{image}_{i}.jpg", "sent_ids": [10 * i], "sentences": sentences,
            }
        )  # fmt: skip
    size, more = {"width": 20, "height": 16}, {"iscrowd": 0, "bbox": [0, 0, 1, 1]}
    images = [{"id": image, "file_name": f"COCO_train2014_{image}.png"} | size for image in range(1, 7)]
    notes = [{"id": ann, "image_id": image, "segmentation": codes[ann]} | more for ann, image in of]
    instances = {"images": images, "annotations": notes, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "train2014").mkdir(parents=True, exist_ok=True)
    for image in range(1, 6):
        Image.new("RGB", SIZE, (40 * image, 9, 9)).save(folder / f"train2014/COCO_train2014_{image}.png")
    (folder / "instances.json").write_text(json.dumps(instances))
    file = folder / f"{name}.{form}"
    file.write_bytes(json.dumps(refs).encode() if form == "json" else pickle.dumps(refs, protocol=protocol))
    return file


def masks_of(record: Record) -> list[tuple[str, list[list[bool]]]]:
    return [(one.phrase, one.mask.tolist()) for one in record.regions if one.mask is not None]


# RefCOCO


@pytest.mark.parametrize("form", ["p", "json"])
@pytest.mark.parametrize("images", [".", "train2014"])
def test_a_release_gives_images_with_expressions_and_masks(form: str, images: str, tmp_path: Path) -> None:
    release(tmp_path, form)
    loaded = masks()
    source = open_source(str(tmp_path), images=str(tmp_path / images))
    assert isinstance(source, RefCoco)
    assert list(source.keys()) == [f"COCO_train2014_{i}.png" for i in (1, 2)]
    first, second = source[0], source[1]
    names = zip(TEXTS, (900, 900, 901, 901), strict=False)
    assert masks_of(first) == [(text, loaded[name].tolist()) for text, name in names]
    assert first.regions[0].mask is first.regions[1].mask, "one mask for all texts of an object"
    assert masks_of(second) == [(TEXTS[4], loaded[902].tolist())]
    assert (first.captions, first.key) == ((), "COCO_train2014_1.png")
    assert decode(first).size == SIZE


def test_splits_are_chosen_by_name(tmp_path: Path) -> None:
    file = release(tmp_path)
    output = masks()
    place = f"refcoco:{tmp_path}"
    for path, wanted in (
        (f"{place}?split=testA", [[(text, 904) for text in TEXTS[7:9]]]),
        (f"{file}?split=testB", [[(TEXTS[9], 905)]]),
        (f"{place}?split=testB,train", [[(text, 903) for text in TEXTS[5:7]], [(TEXTS[9], 905)]]),
    ):
        source = open_source(path)
        shown = [masks_of(source[i]) for i in range(len(source))]  # type: ignore[arg-type]
        assert shown == [[(text, output[ann].tolist()) for text, ann in one] for one in wanted]
    with pytest.raises(UserError, match=r"has no split test: it has testA \(1\), testB \(1\), train \(1\),"):
        open_source(f"{place}?split=test")
    prints = {open_source(f"{place}?split={split}").fingerprint() for split in ("val", "train", "testA")}
    assert len(prints) == 3
    assert open_source(str(file)).fingerprint() == open_source(str(tmp_path)).fingerprint() in prints


def test_what_is_wrong_with_a_release_is_reported(tmp_path: Path) -> None:
    file = release(tmp_path, "json")
    refs = json.loads(file.read_text())
    instances = json.loads((tmp_path / "instances.json").read_text())

    def changed(**fields: Any) -> str:
        file.write_text(json.dumps([refs[0] | fields, *refs[1:]]))
        return f"refcoco:{file}"

    for fields, message in (
        ({"ann_id": 77}, "image 1 or annotation 77 is not in"),
        ({"sentences": ["man"]}, 'sentences.0 is "man": it must be an object'),
        ({"image_id": {}}, "image_id is an object: an id is a number or a text"),
        ({"split": ["val"]}, 'split is ["val"]: it must be a valid string'),
    ):
        source = open_source(changed(**fields))
        assert len(source) == 3
        assert source[0].regions
        with pytest.raises(CorruptSample, match=rf"corrupt row: .*: refs\[0\] \({re.escape(message)}"):
            source[2]
    with pytest.raises(UserError, match=r"is not a file of expressions: a list of rows with ann_id, image"):
        open_source(f"refcoco:{tmp_path}/instances.json")
    sentences = [{"sent": " ", "raw": "The Man."}, {"sent": "", "raw": ""}]
    assert open_source(changed(sentences=sentences))[0].regions[0].phrase == "The Man."
    file.write_text(json.dumps(refs))
    for code, why in (
        ([[1, 2, 3]], "a polygon is a list of three points or more"),
        ({"size": [16, 20], "counts": [3, 4]}, "the runs of a mask add up to 7, not to 16 x 20"),
        ({"size": [16, 20], "counts": [-1, 321]}, "counts.0 is -1: it must be greater than or equal to 0"),
        ({"size": [16, 1e999], "counts": [320]}, "size.1 is Infinity: it must be a finite number"),
        ({"size": [10**6, 10**6], "counts": [10**12]}, "pixels, more than 89478485"),
        ([[1, 2, 3, 4, 5, float("nan")]], "segmentation.0.5 is NaN: it must be a finite number"),
        ({"size": [20, 16], "counts": [320]}, "a mask of 16 x 20 pixels, the image has 20 x 16"),
        ({"size": [16, 20], "counts": "é"}, "characters that are none of theirs"),
    ):
        instances["annotations"][0]["segmentation"] = code
        (tmp_path / "instances.json").write_text(json.dumps(instances))
        with pytest.raises(CorruptSample, match=re.escape(why)):
            open_source(str(file))[0]
        assert open_source(str(file))[1].regions
    (tmp_path / "instances.json").write_text('{"images": [{"id": 3}]}')
    with pytest.raises(UserError, match=r"instances.json is no file of annotations: images\[\] with id"):
        open_source(str(file))


def test_images_that_are_not_there_or_of_another_size(tmp_path: Path) -> None:
    release(tmp_path)
    Image.new("RGB", (21, 16)).save(tmp_path / "train2014/COCO_train2014_1.png")
    with pytest.raises(CorruptSample, match=r"21 x 16 pixels, its masks are for 20 x 16"):
        open_source(str(tmp_path))[0]
    for image in (1, 2):
        (tmp_path / f"train2014/COCO_train2014_{image}.png").unlink()
    with pytest.raises(UserError, match=r"^none of the 2 images of .* say where they lie with --images DIR"):
        open_source(str(tmp_path))


def test_a_release_is_measured_and_packed(tmp_path: Path) -> None:
    release(tmp_path / "r")
    source = open_source(str(tmp_path / "r"))
    data = ReferringSuite().encode(tiny_model("clip"), source, Settings(batch_size=4, max_corrupt=0.0))
    assert [one.text for one in data.collected["referring"].expressions] == list(TEXTS[:5])
    areas = [one.by_map["whole image"][0] for one in data.collected["referring"].expressions]
    assert areas == [int(masks()[ann].sum()) for ann in (900, 900, 901, 901, 902)]
    pack(source, tmp_path / "out")
    again = open_source(str(tmp_path / "out"))
    assert [masks_of(again[i]) for i in range(2)] == [masks_of(source[i]) for i in range(2)]


# Masks


def test_polygons_are_the_pixels_whose_centres_lie_inside() -> None:
    def slow(polygon: list[float], height: int, width: int) -> list[list[bool]]:
        points = list(zip(polygon[::2], polygon[1::2], strict=True))
        out = [[False] * width for _ in range(height)]
        for row in range(height):
            for column in range(width):
                x, y, inside = column + 0.5, row + 0.5, False
                for (x1, y1), (x2, y2) in zip(points, points[1:] + points[:1], strict=True):
                    if (y1 > y) != (y2 > y) and x > x1 + (y - y1) * (x2 - x1) / (y2 - y1):
                        inside = not inside
                out[row][column] = inside
        return out

    generator = np.random.default_rng(3)
    for number in (3, 4, 7, 12):
        polygon = (generator.random(2 * number) * 26 - 3).tolist()  # some of it beyond the image
        assert polygons_mask([polygon], 16, 20).tolist() == slow(polygon, 16, 20)
    assert polygons_mask([[0, 0, 10, 0, 10, 10, 0, 10]], 12, 12).sum() == 100
    both = polygons_mask(TWO, 16, 20)
    assert np.array_equal(both, polygons_mask(TWO[:1], 16, 20) | polygons_mask(TWO[1:], 16, 20))
    overlapping = polygons_mask([TWO[0], TWO[0]], 16, 20)
    assert overlapping.sum() == 16, "parts are joined: what two of them cover is covered"
    assert not polygons_mask([], 3, 4).any()


def test_run_length_codes_are_read_in_both_forms() -> None:
    # An example by hand: 40 is 8 + 1 * 32, two characters, and 5 is written as 5 - 40 = -35.
    code = {"size": [9, 10], "counts": "61X13mN000`0"}
    mask = read_mask(code)
    assert mask.shape == (9, 10)
    assert run_lengths(mask)["counts"] == [6, 1, 40, 4, 5, 4, 5, 4, 21]
    assert mask.T.reshape(-1).nonzero()[0].tolist() == [6, *range(47, 51), *range(56, 60), *range(65, 69)]
    generator = np.random.default_rng(1)
    for share in (0.0, 0.02, 0.5, 1.0):
        wanted = generator.random((70, 90)) < share
        assert np.array_equal(read_mask({"size": [70, 90], "counts": packed(wanted)}), wanted)
        assert np.array_equal(read_mask({"size": [70, 90], "counts": packed(wanted).encode()}), wanted)
        assert np.array_equal(read_mask(run_lengths(wanted)), wanted)
    with pytest.raises(ValueError, match="end in the middle of a number"):
        unpacked("6P")
    with pytest.raises(ValueError, match="none of theirs"):
        unpacked("P" * 40)
    with pytest.raises(ValueError, match="add up to"):
        read_mask({"size": [2, 2], "counts": [10**15]})


# Pickles


def written(tmp_path: Path, data: bytes) -> str:
    (tmp_path / "x.p").write_bytes(data)
    return str(tmp_path / "x.p")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_of_every_protocol_are_read(protocol: int, tmp_path: Path) -> None:
    data = [{"a": [1, -(2**40), 2**90, 0.5, None, True], "b": ("x", ("é", {}), [])}, "\u65e5", {1: "a"}]
    data.append(data[0])  # the same object again
    outcome = read_pickle(written(tmp_path, pickle.dumps(data, protocol)))
    assert outcome == data
    assert outcome[0] is outcome[3]


def test_pickles_of_python_2_are_read(tmp_path: Path) -> None:
    # {'sent': 'caf\xc3\xa9', 'n': 3L, u'raw': u'x'} as Python 2 writes it, in the protocols 0 and 2
    first = b"(dp0\nS'sent'\np1\nS'caf\\xc3\\xa9'\np2\nsS'n'\np3\nL3L\nsVraw\np4\nVx\np5\ns."
    second = b"\x80\x02}q\x00(U\x04sentq\x01U\x05caf\xc3\xa9q\x02U\x01nq\x03\x8a\x01\x03X\x03\x00\x00\x00raw"
    second += b"q\x04X\x01\x00\x00\x00xq\x05u."
    for data in (first, second):
        assert read_pickle(written(tmp_path, data)) == {"sent": "café", "n": 3, "raw": "x"}
    latin = b"\x80\x02U\x04caf\xe9."
    assert read_pickle(written(tmp_path, latin)) == "café"


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(Evil.place),)

    place = Path()


def test_a_pickle_that_would_run_something_is_refused_before_it_does(tmp_path: Path) -> None:
    Evil.place = tmp_path / "hacked"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps([{"ann_id": Evil()}], protocol)
        with pytest.raises(UserError, match=r"it asks for (os|posix|nt)\.mkdir, which was not run"):
            read_pickle(written(tmp_path, data))
        assert not Evil.place.exists()
        file = release(tmp_path / f"{protocol}")
        file.write_bytes(data)
        with pytest.raises(UserError, match="was not run"):
            open_source(str(file))
        assert not Evil.place.exists()
    pickle.loads(data)
    assert Evil.place.exists(), "the pickle would have run"


def test_every_way_to_name_or_call_something_is_refused(tmp_path: Path) -> None:
    copyreg.add_extension("posix", "getpid", 240)
    try:
        extension = pickle.dumps(os.getpid, 2)
        assert b"\x82" in extension
        assert pickle.loads(extension) is os.getpid  # now it is known, and the unpickler asks nobody
        ways = (extension, *(b"cos\ngetpid\n)R.", b"(ios\ngetpid\n.", b"(S'os'\no.", b")\x81.", b"Pthing\n."))
        for data in (*ways, b"N)R.", b"]}b.", b"NQ."):
            with pytest.raises(UserError, match="is no pickle of plain data: "):
                read_pickle(written(tmp_path, data))
    finally:
        copyreg.remove_extension("posix", "getpid", 240)


def test_files_that_are_no_pickles_end_in_one_line(tmp_path: Path) -> None:
    whole = pickle.dumps([{"a": 1}], 2)
    for data in (b"", b"no pickle", whole[:-4], whole[:-1], b"a.", b"\x80\x02r\xff\xff\xff\x7fN.", b"h\x05."):
        with pytest.raises(UserError, match=r"x.p is no pickle of plain data: .*; see docs/data.md$"):
            read_pickle(written(tmp_path, data))
    with pytest.raises(UserError, match=r"none.p cannot be read"):
        read_pickle(str(tmp_path / "none.p"))
