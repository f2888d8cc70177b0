"""Every kind of image that people keep, and every kind of broken one."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, features

from grainline.data import decode as module
from grainline.data.decode import decode, image_size
from grainline.data.record import CorruptSample, Record


def record(image: bytes | Image.Image) -> Record:
    return Record("key", image, ("A.",))


def stored(image: Image.Image, kind: str = "png", **options: object) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def corner(size: tuple[int, int] = (6, 4)) -> Image.Image:
    """Black with a white pixel at the left of the top row."""
    image = Image.new("L", size)
    image.putpixel((0, 0), 255)
    return image


@pytest.mark.parametrize(
    ("orientation", "white", "size"),
    [
        *((1, (0, 0), (6, 4)), (2, (5, 0), (6, 4)), (3, (5, 3), (6, 4)), (4, (0, 3), (6, 4))),
        *((5, (0, 0), (4, 6)), (6, (3, 0), (4, 6)), (7, (3, 5), (4, 6)), (8, (0, 5), (4, 6))),
        (9, (0, 0), (6, 4)),
    ],
)
def test_images_stand_upright(orientation: int, white: tuple[int, int], size: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = record(stored(corner(), exif=exif))
    image = decode(data)
    assert image.size == image_size(data) == size
    assert image.getpixel(white) == (255, 255, 255)
    assert np.asarray(image).sum() == 3 * 255


@pytest.mark.parametrize("kind", ["tiff", "tiff_lzw", "webp", "heif", "avif", "deep png", "deep tiff"])
@pytest.mark.parametrize("way", ["bytes", "opened", "loaded", "copied"])
def test_formats_whose_reader_turns_by_itself_are_turned_once(kind: str, way: str) -> None:
    if kind == "heif":
        pytest.importorskip("pillow_heif").register_heif_opener()
    if kind == "avif" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    upright, exif = np.zeros((64, 96), np.uint16), Image.Exif()
    upright[:16, :16] = 255
    exif[0x0112] = 6
    pixels = np.rot90(upright).copy()  # what a camera on its side stores
    turned = Image.fromarray(pixels * 257 if "deep" in kind else np.stack([pixels] * 3, -1).astype(np.uint8))
    options = {"compression": "tiff_lzw"} if kind == "tiff_lzw" else {}
    data = stored(turned, kind.split("_")[0].split()[-1], exif=exif.tobytes(), **options)
    given: bytes | Image.Image = data
    if way != "bytes":
        given = Image.open(io.BytesIO(data))
        given = given if way == "opened" else given.copy() if way == "copied" else (given.load(), given)[1]
    assert image_size(record(given)) == (96, 64)
    image = decode(record(given))
    assert np.abs(np.asarray(image)[..., 0] - upright.astype(int)).max() < 40  # lossy formats
    assert decode(record(image)) == image, "an upright image is turned again"
    assert image_size(record(given)) == image_size(record(image)) == (96, 64)


def test_images_with_unreadable_exif_are_read_as_they_are() -> None:
    assert decode(record(stored(corner(), exif=b"Exif\0\0nonsense"))).size == (6, 4)


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "bmp", "jpeg"])
def test_every_format_becomes_rgb(kind: str) -> None:
    image = decode(record(stored(Image.new("RGB", (5, 3), (250, 120, 10)), kind)))
    assert (image.mode, image.size) == ("RGB", (5, 3))
    assert np.abs(np.asarray(image).astype(int) - (250, 120, 10)).max() <= 6


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_lies_over_white(mode: str) -> None:
    clear = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    clear.putpixel((1, 0), (0, 0, 0, 255))
    image = decode(record(clear.convert(mode)))
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 0, 0)]


def test_a_transparent_colour_of_a_palette_or_of_rgb_is_white() -> None:
    palette = Image.new("P", (1, 1), 3)
    palette.putpalette([10] * 12)
    for data in (stored(palette, transparency=3), stored(palette, "gif", transparency=3)):
        assert decode(record(data)).getpixel((0, 0)) == (255, 255, 255)
    rgb = stored(Image.new("RGB", (1, 1), (9, 9, 9)), transparency=(9, 9, 9))
    assert decode(record(rgb)).getpixel((0, 0)) == (255, 255, 255)


def test_cmyk_becomes_rgb() -> None:
    image = decode(record(stored(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "jpeg")))
    assert np.abs(np.asarray(image).astype(int) - (0, 255, 255)).max() <= 6


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 257 * 100, 65535]], np.uint16), [0, 100, 255]),
        (np.array([[0, 257 * 100, 65535]], np.int32), [0, 100, 255]),
        (np.array([[0, 100, 255]], np.int32), [0, 100, 255]),
        (np.array([[0, 1638, 4095]], np.uint16), [0, 102, 255]),
        (np.array([[0, 1638, 4095]], np.float32), [0, 102, 255]),
        (np.array([[0, 0.4, 1.0001]], np.float32), [0, 102, 255]),
        (np.array([[-1, -0.2, 1]], np.float32), [0, 102, 255]),
        (np.array([[0, 102, 255]], np.float32), [0, 102, 255]),
        (np.array([[0, 257 * 102, 65535]], np.float32), [0, 102, 255]),
    ],
)
def test_grey_values_are_scaled_by_their_range(values: np.ndarray, expected: list[int]) -> None:
    for image in (Image.fromarray(values), stored(Image.fromarray(values), "tiff")):
        assert np.asarray(decode(record(image)))[0].tolist() == [[v, v, v] for v in expected]


@pytest.mark.parametrize(
    "values",
    [
        np.array([[0, 1_000_000]], np.int32),
        np.array([[-500, 500]], np.int32),
        np.array([[-1000, 60_000]], np.float32),
        np.array([[0, np.nan]], np.float32),
        np.array([[0, np.inf]], np.float32),
        np.array([[0, 1.5]], np.float32),
        np.array([[-0.1, 1]], np.float32),
    ],
)
def test_grey_values_of_no_known_range_are_refused(values: np.ndarray) -> None:
    for image in (Image.fromarray(values), stored(Image.fromarray(values), "tiff")):
        with pytest.raises(CorruptSample, match=r"grey values from .*; scale them to one of"):
            decode(record(image))


@pytest.mark.parametrize("colours", [2, 4, 6])  # of a PNG: RGB, grey with alpha, RGBA
def test_colours_of_16_bits_keep_their_look_or_are_refused(colours: int) -> None:
    bands = {2: 3, 4: 2, 6: 4}[colours]
    values = np.repeat(np.array([[0, 257 * 100, 65535]]), bands, 0).T
    for top in (65535, 4095):
        row = values * top // 65535
        if bands != 3:
            row[:, -1] = 65535, 65535, (65535, 4095)[top == 4095]  # the last nearly transparent: nearly white
        head = struct.pack(">IIBBBBB", 3, 1, 16, colours, 0, 0, 0)
        parts = (b"IHDR", head), (b"IDAT", zlib.compress(b"\0" + row.astype(">u2").tobytes()))
        chunks = [(len(x).to_bytes(4), name + x) for name, x in (*parts, (b"IEND", b""))]
        data = b"\x89PNG\r\n\x1a\n" + b"".join(n + x + zlib.crc32(x).to_bytes(4) for n, x in chunks)
        if top == 65535:
            assert np.asarray(decode(record(data)))[0, :, 0].tolist() == [0, 100, 255]
        else:
            with pytest.raises(CorruptSample, match="12 at most are used"):
                decode(record(data))


def test_a_pil_image_that_cannot_be_read_is_corrupt() -> None:
    whole = stored(Image.effect_noise((64, 64), 50), "jpeg")
    closed = Image.open(io.BytesIO(whole))
    closed.close()
    half = Image.open(io.BytesIO(whole[: len(whole) // 2]))
    for image in (half, closed, Image.new("L", (1, 300)), Image.new("L", (0, 0))):
        with pytest.raises(CorruptSample, match=r"^corrupt image: key \("):
            decode(record(image))


def test_animations_give_their_first_image() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for kind in ("gif", "webp"):
        data = stored(frames[0], kind, save_all=True, append_images=frames[1:], duration=10)
        red, _, blue = np.asarray(decode(record(data)))[0, 0]
        assert red > 240
        assert blue < 15


def test_a_draft_keeps_the_short_side_and_the_look() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)
    smooth = Image.fromarray(noise).resize((640, 480), Image.Resampling.BICUBIC)
    large = record(stored(smooth, "jpeg", quality=95))
    whole = decode(large)
    for wanted, part in ((480, 1), (241, 1), (240, 2), (100, 4), (1, 8)):
        image, size = decode(large, draft=wanted), (640 // part, 480 // part)
        assert image.size == size
        difference = np.asarray(image).astype(int) - np.asarray(whole.resize(size, Image.Resampling.BOX))
        assert np.abs(difference).mean() < 3
    assert image_size(large) == (640, 480)
    assert decode(record(stored(corner((64, 64)))), draft=8).size == (64, 64)


def test_broken_images_are_damaged_and_named() -> None:
    whole = stored(Image.effect_noise((64, 64), 50), "jpeg")
    for data in (b"", b"no image", whole[: len(whole) // 2], whole[:20], stored(corner())[:-30]):
        for draft in (None, 8):
            with pytest.raises(CorruptSample, match=r"^corrupt image: key \(") as caught:
                decode(record(data), draft)
            assert caught.value.cause == "corrupt image"
            assert "\n" not in caught.value.where
    with pytest.raises(CorruptSample):
        image_size(record(b"no image"))


@pytest.mark.parametrize("kind", ["eps", "pdf", "ppm", "ico", "icns", "tga", "pcx", "dds", "jpeg2000"])
def test_only_the_listed_formats_are_decoded_whatever_a_file_is_called(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a decoder started another program")

    monkeypatch.setattr("subprocess.check_call", never)  # how Pillow starts Ghostscript
    Image.init()
    if kind.upper() not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {kind}")
    data = record(stored(Image.new("RGB", (16, 16), (250, 120, 10)), kind))
    for read in (decode, image_size):
        with pytest.raises(CorruptSample, match="none of JPEG, PNG, WEBP, GIF, BMP, TIFF"):
            read(data)


@pytest.mark.filterwarnings("default")
def test_images_that_are_too_large_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = record(stored(Image.new("1", (20_000, 10_000))))  # a few kilobytes
    with pytest.raises(CorruptSample, match="corrupt image"):
        decode(data)
    monkeypatch.setattr(module, "MAX_PIXELS", 23)
    with pytest.raises(CorruptSample, match="6 x 4 pixels, more than 23"):
        decode(record(stored(corner())))
    monkeypatch.setattr(module, "MAX_PIXELS", 24)
    assert decode(record(stored(corner()))).size == (6, 4)


def test_images_that_are_too_thin_are_refused() -> None:
    assert decode(record(stored(Image.new("L", (400, 2))))).size == (400, 2)
    for size in ((401, 2), (2, 401)):
        with pytest.raises(CorruptSample, match=f"{size[0]} x {size[1]} pixels, thinner than 1 to 200"):
            decode(record(stored(Image.new("L", size))))


def test_a_phone_image_without_its_decoder_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(module.features, "check", lambda _: False)
    box = b"\0\0\0\x18ftyp%s\0\0\0\0mif1%s"
    for data, kind in ((box % (b"heic", b"heic"), "HEIC"), (box % (b"mif1", b"avif"), "AVIF")):
        for read in (decode, image_size):
            with pytest.raises(CorruptSample) as caught:
                read(record(data + b"rest"))
            assert caught.value.cause == f"{kind} image without its decoder (pip install 'grainline[heic]')"
