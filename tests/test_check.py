"""What `grainline data check` finds, on small sources that are known by heart, and on a real one."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from test_pack import Listed

from grainline.data.captions import sentences
from grainline.data.check import check, render, suggestions
from grainline.data.decode import as_png
from grainline.data.open_source import open_source
from grainline.data.overlap import overlap
from grainline.data.record import Record


def png(shade: int, size: tuple[int, int] = (300, 200)) -> bytes:
    return as_png(Image.new("L", size, shade))


def test_everything_is_counted_once() -> None:
    records = [
        Record("a", png(1), ("One two. Three four.", "One."), long="One two three four five."),
        "missing caption",
        *(Record("b", png(2, (100, 400)), ("A b c",)), Record("c", png(1), ("A b c",))),
        "missing image",
        Record("b", png(3), ("Unlike.",)),
        "missing caption",
        Record("d", b"no image", ("D.",)),
    ]
    report = check(Listed(records), sentences)
    assert (report.kind, report.samples, report.checked, report.corrupt) == ("Listed", 8, 8, 4)
    assert report.spread("captions") == (1, 1, 1, 2, 2)
    assert report.spread("words") == (1, 1, 3, 4, 5)
    assert report.spread("sentences") == (1, 1, 1, 1, 2)
    assert report.spread("short_side") == (100, 100, 200, 200, 200)
    assert report.spread("long_side") == (300, 300, 300, 400, 400)
    assert (report.longs, report.regions) == (1, 0)
    causes = {cause: len(places) for cause, places in report.faults.items()}
    assert causes == {"missing caption": 2, "missing image": 1, "corrupt image": 1}
    assert report.faults["missing caption"] == ["row 1", "row 6"]
    assert report.same_key == ["b"]
    assert report.same_image == [["a", "c"]]
    assert "1 captions stand at more than one image" in " ".join(suggestions(report))
    assert report.longest[:2] == [("a", 5), ("a", 4)]


def blocks(seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """An image of twenty random rectangles."""
    draw = np.random.default_rng(seed)
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    for _ in range(20):
        x, y = draw.integers(0, size[0]), draw.integers(0, size[1])
        w, h = draw.integers(10, 120, 2)
        pen.rectangle((int(x), int(y), int(x + w), int(y + h)), fill=tuple(draw.integers(0, 256, 3).tolist()))
    return image


def jpeg(image: Image.Image, quality: int = 90) -> bytes:
    file = io.BytesIO()
    image.save(file, "jpeg", quality=quality)
    return file.getvalue()


def test_crops_and_smaller_copies_are_duplicates_and_other_images_are_not() -> None:
    one, two = blocks(1), blocks(2)
    images = {"one": one, "small": one.resize((160, 120)), "crop": one.crop((5, 4, 315, 236)), "two": two}
    images |= {colour: Image.new("RGB", (80, 60), colour) for colour in ("red", "green")}
    records = [Record(key, jpeg(image), (key,)) for key, image in images.items()]
    records += [Record("poor", jpeg(one, 20), ("poor",)), Record("same", jpeg(one), ("same",))]
    report = check(Listed(records), sentences)
    assert report.same_image == [["one", "same"]]
    family = ("one", "small", "crop", "poor")
    wanted = {(a, b) for i, a in enumerate(family) for b in family[i + 1 :]}
    assert set(report.near_copies) == wanted
    assert len(report.near_copies) == 6, "each pair once"
    page = render(report)
    assert "images that look the same: 6" in page
    assert "6 pairs of images look like copies of each other" in page


def test_copies_in_training_data_are_exact_or_near_and_strangers_are_neither() -> None:
    def of(images: dict[str, bytes | Image.Image]) -> Listed:
        return Listed([Record(key, image, (key,)) for key, image in images.items()])

    crop = blocks(2).crop((5, 4, 315, 236))
    train = [of({str(i): jpeg(blocks(i)) for i in range(3)} | {"broken": b""}), of({"drawn": blocks(4)})]
    tested = {"file": jpeg(blocks(0)), "drawn": blocks(4), "poor": jpeg(blocks(0), 20), "crop": jpeg(crop)}
    tested |= {"png": as_png(blocks(1)), "other": jpeg(blocks(9)), "white": png(255), "broken": b"no image"}
    calls: list[tuple[int, int]] = []
    both = overlap(train, of(tested), lambda done, total: calls.append((done, total)))
    assert both.exact == (("file", "0"), ("drawn", "drawn"))
    assert both.near == (("poor", "0"), ("crop", "2"), ("png", "1")), "each test image once, with the nearest"
    assert both[2:] == (7, 4, 2, 0)
    assert calls == [(done, 13) for done in range(1, 14)]


def test_the_page_says_what_is_wrong_and_what_to_do() -> None:
    long = " ".join(["word"] * 99)
    records = [Record(f"k{n}", png(n, (50, 60)), (long,)) for n in range(4)]
    again = Record("k0", png(0, (50, 60)), ("Short.",))
    page = render(check(Listed([*records, again, *["truncated tar"] * 7]), sentences))
    assert "cannot be used  7 of 12" in page
    assert "truncated tar: 7\n      row 5\n" in page
    assert "      and 2 more" in page
    assert "key of several samples: 1\n    k0" in page
    assert "equal images: 1\n    k0 = k0" in page
    for advice in ("58.3% of the samples", "a name of its own", "1 images are copies", "99 words or more"):
        assert advice in page, advice
    assert "50 pixels" in page
    assert "1 captions stand at more than one image" in page


def test_a_limit_reads_an_even_choice_and_says_so() -> None:
    calls: list[tuple[int, int]] = []
    records = [Record(f"k{n}", png(n), ("A.",)) for n in range(10)]
    report = check(Listed(records), sentences, 4, lambda done, of: calls.append((done, of)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {key for key, _ in report.longest} == {"k0", "k2", "k5", "k7"}
    assert (report.samples, report.checked) == (10, 4)
    assert "samples         10, 4 read" in render(report)
    assert any("Only 4 of 10" in line for line in suggestions(report))


def test_regions_outside_their_image_or_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1, (30, 20)))
    right = {"phrase": "dog", "box": [-3, 0, 35, 9], "mask": [[1] * 30] * 20, "span": ["captions.0", 2, 5]}
    for wrong, why in (
        ({}, ""),
        ({"box": [30, 0, 31, 9]}, "its box is outside the image of 30 x 20 pixels"),
        ({"box": [-3, -9, 31, 0]}, "its box is outside the image of 30 x 20 pixels"),
        ({"mask": [[1] * 20] * 30}, "its mask of 20 x 30 pixels does not fit the image of 30 x 20 pixels"),
        ({"span": ["captions.0", 2, 7]}, "no text at captions.0 2 to 7"),
        ({"span": ["captions.1", 0, 1]}, "no text at captions.1 0 to 1"),
    ):
        (tmp_path / "a.json").write_text(json.dumps({"caption": "A dog.", "regions": [{**right, **wrong}]}))
        said = check(open_source(str(tmp_path)), sentences)
        place = f"regions without a place, in 1 image: a.png (dog: {why})"
        assert (said.remarks, said.corrupt) == ([place] if why else [], 0)


@pytest.mark.parametrize("name", ["openstax/dev-0000.tar", "benchmarks/cc12m/cc12m-train-0000.tar"])
def test_real_tars_are_sound(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = check(open_source(str(shared_data / name)), sentences)
    assert report.corrupt == 0
    assert report.samples == report.checked == (575 if "openstax" in name else 32)
    assert report.spread("captions") == (1, 1, 1, 1, 1)
    if "openstax" in name:
        assert report.spread("sentences")[0] == 2  # the README of the set: at least 2 sentences
