"""Crops and resizing against plain Pillow, and the promises of the fast path."""

import io
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from grainline.data.record import CorruptSample
from grainline.data.transforms import (
    CropConfig,
    EvalTransform,
    SameTransform,
    TrainTransform,
    adjust,
    crop_box,
    draft_side,
    resize,
)


def random_image(width: int, height: int, seed: int = 0, texture: int = 12) -> Image.Image:
    """Smooth blobs with some texture, as photographs have."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
    smooth = np.array(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    noise = rng.integers(-texture, texture + 1, smooth.shape)
    return Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8))


def jpeg(image: Image.Image, exif: Image.Exif | None = None) -> bytes:
    file = io.BytesIO()
    image.save(file, "jpeg", quality=92, exif=exif or Image.Exif())
    return file.getvalue()


def image_of(pixels: torch.Tensor) -> np.ndarray:
    assert pixels.dtype == torch.uint8
    assert pixels.is_contiguous()
    return pixels.permute(1, 2, 0).numpy()


def slow_clip(image: Image.Image, size: int) -> np.ndarray:
    """CLIP's preprocessing with the numbers written out."""
    width, height = image.size
    new = (size, int(size * height / width)) if width < height else (int(size * width / height), size)
    image = image.resize(new, Image.Resampling.BICUBIC)
    left = round((image.width - size) / 2.0)
    top = round((image.height - size) / 2.0)
    return np.array(image)[top : top + size, left : left + size]


@pytest.mark.parametrize("shape", [(320, 240), (241, 333), (100, 61), (64, 64), (700, 90), (67, 64)])
def test_evaluation_is_exactly_what_pillow_makes(shape: tuple[int, int]) -> None:
    data = jpeg(random_image(*shape))
    image = Image.open(io.BytesIO(data)).convert("RGB")
    assert np.array_equal(image_of(EvalTransform(64)(data)), slow_clip(image, 64))
    squashed = np.array(image.resize((64, 64), Image.Resampling.BICUBIC))
    assert np.array_equal(image_of(EvalTransform(64, "squash")(data)), squashed)


@pytest.mark.parametrize("margin", [1, 1.1, 8 / 7])
@pytest.mark.parametrize("resize", ["crop", "squash"])
def test_a_square_with_its_rim_has_the_same_square(resize: Any, margin: float) -> None:
    transform = EvalTransform(64, resize, margin=margin)
    for size in ((301, 113), (97, 250), (64, 64), (71, 64), (30, 31)):
        image = random_image(*size)
        assert torch.equal(transform(transform.square.cut(image, rim=True)), transform(image)), size


def test_training_is_within_one_step_of_pillow_on_average() -> None:
    for seed, (width, height) in enumerate([(320, 240), (250, 500), (224, 224)]):
        pixels = np.array(random_image(width, height, seed))
        exact = Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC)
        away = np.abs(image_of(resize(pixels, (96, 96))).astype(int) - np.array(exact).astype(int))
        assert away.mean() < 1


def test_a_crop_of_a_drafted_jpeg_shows_the_same_as_a_crop_of_the_whole() -> None:
    data = jpeg(random_image(640, 480, 3, texture=0))
    for seed in range(5):
        draws = Random(seed)
        box = crop_box(640, 480, (0.3, 0.6), (3 / 4, 4 / 3), [draws.random() for _ in range(4)])
        fast = image_of(TrainTransform(56, CropConfig(scale=(0.3, 0.6)))(data, Random(seed)))
        whole = Image.open(io.BytesIO(data)).crop(box)
        exact = np.array(whole.resize((56, 56), Image.Resampling.BICUBIC))
        away = np.abs(fast.astype(int) - exact.astype(int)).mean()
        shifted = np.abs(np.roll(fast, 1, axis=1).astype(int) - exact.astype(int)).mean()
        assert away < 4  # the crop begins on a whole pixel of the smaller image, half a pixel away at most
        assert away < shifted


SIDES = st.integers(1, 3000)
SHARES = st.floats(0, 1, exclude_max=True)


@given(SIDES, SIDES, st.lists(SHARES, min_size=4, max_size=4), st.floats(0.05, 1))
def test_crops_lie_inside_and_have_the_area_and_ratio_that_were_requested(
    width: int, height: int, draws: list[float], least: float
) -> None:
    box = crop_box(width, height, (least, 1.0), (3 / 4, 4 / 3), draws)
    w, h = box.right - box.left, box.bottom - box.top
    assert 0 <= box.left < box.right <= width
    assert 0 <= box.top < box.bottom <= height
    if min(w, h) > 50:
        assert 3 / 4 - 0.03 < w / h < 4 / 3 + 0.03
        if 3 / 4 < width / height < 4 / 3:
            assert w * h > least * width * height * 0.95


@given(st.integers(30, 900), st.integers(30, 900), st.integers(16, 128), st.integers(0, 10**6))
def test_draft_never_leaves_fewer_pixels_than_needed(width: int, height: int, size: int, seed: int) -> None:
    rng = Random(seed)
    box = crop_box(width, height, (0.2, 1.0), (3 / 4, 4 / 3), [rng.random() for _ in range(4)])
    side = draft_side(width, height, box, size)
    if side is None:
        return
    part = max(x for x in (1, 2, 4, 8) if min(width, height) // side >= x)  # what a JPEG decoder does
    assert part > 1
    assert (box.right - box.left) // part >= size
    assert (box.bottom - box.top) // part >= size


def test_the_exif_orientation_turns_the_crop_with_the_image() -> None:
    image = random_image(300, 200)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side
    turned = jpeg(image.transpose(Image.Transpose.ROTATE_90), exif)
    crop = TrainTransform(32, CropConfig(scale=(0.4, 0.8)))
    for seed in range(3):
        plain, upright = (crop(data, Random(seed)).int() for data in (jpeg(image), turned))
        assert (plain - upright).abs().float().mean() < 2


def test_options_do_not_change_the_crops_nor_the_draws_after_them() -> None:
    data = jpeg(random_image(120, 90))
    plain, mirror = Random(2), Random(2)
    a = TrainTransform(32)(data, plain)
    b = TrainTransform(32, CropConfig(flip=True))(data, mirror)
    TrainTransform(32, CropConfig(jitter=0.5))(data, varied := Random(2))
    assert plain.random() == mirror.random() == varied.random()
    assert torch.equal(a, b) or (a.float() - b.flip(2).float()).abs().mean() < 1
    crops = TrainTransform(32), TrainTransform(32, CropConfig(flip=True))
    pairs = [[crop(data, Random(seed)) for crop in crops] for seed in range(40)]
    assert 10 < sum(not torch.equal(a, b) for a, b in pairs) < 30


def test_jitter_moves_brightness_and_contrast_mildly() -> None:
    square = torch.randint(0, 256, (3, 20, 20), dtype=torch.uint8)
    mean = square.double().mean()
    slow = (((square.double() - mean) * 0.8 + mean) * 1.1).round().clamp(0, 255)
    assert (adjust(square, 1.1, 0.8).double() - slow).abs().max() <= 1
    assert torch.equal(adjust(square, 1.0, 1.0), square)
    grey = np.full((30, 30, 3), 100, dtype=np.uint8)
    crop = TrainTransform(16, CropConfig(jitter=0.2))
    means = [crop(grey, Random(seed)).float().mean().item() for seed in range(100)]
    assert 79 < min(means) < 85
    assert 115 < max(means) < 121


def test_a_damaged_image_is_named() -> None:
    broken = jpeg(random_image(64, 64))[:200]
    with pytest.raises(CorruptSample, match=r"corrupt image: tar/07\.jpg"):
        TrainTransform(16)(broken, Random(0), "tar/07.jpg")
    with pytest.raises(CorruptSample, match=r"corrupt image: tar/07\.jpg"):
        EvalTransform(16)(broken, "tar/07.jpg")


def test_without_a_crop_training_sees_what_evaluation_sees_and_draws_as_much() -> None:
    data = jpeg(random_image(60, 40))
    evaluated = EvalTransform(32)
    one, other = Random(3), Random(3)
    assert torch.equal(SameTransform(evaluated)(data, one), evaluated(data))
    TrainTransform(32)(data, other)
    assert one.random() == other.random()
