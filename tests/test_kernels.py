"""Kernels in Triton's interpreter against torch and loops, and compiled for GPUs, both on a CPU."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_superpixel import FITS, image, slow_connected, slow_kmeans, some_fits

from grainline import kernels as launch
from grainline.errors import UserError
from grainline.nn import superpixels
from grainline.nn.superpixels import hard, kmeans

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and os.environ.get(launch.VARIABLE) == "interpret"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in Triton's interpreter: make kernels-test")


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are called from now on. One that is refused raises."""
    names: list[str] = []

    def recorded(name: str, kernel: Any, _: Any) -> Any:
        names.append(name)
        return kernel()

    monkeypatch.setattr(launch, "run", recorded)
    return names


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return calls(monkeypatch)


@interpreted
@pytest.mark.parametrize(("cell", "size", "steps"), [(4, 12, 3), (2, 8, 2), (5, 25, 2), (33, 33, 1)])
def test_superpixels_by_a_kernel_are_those_by_products(
    cell: int, size: int, steps: int, called: list[str]
) -> None:
    pixels = image(size, seed=3)
    expected, actual = superpixels._by_products(pixels, cell, 10.0, steps), kmeans(pixels, cell, 10.0, steps)
    assert called == ["kmeans"]
    assert torch.equal(actual, expected)
    if size < 20:
        assert actual[1].tolist() == slow_kmeans(pixels[1], cell, 10.0, steps)
        assert torch.equal(kmeans(pixels / 255, cell, 10.0, steps), actual)


@interpreted
@FITS
def test_superpixels_are_connected_by_a_kernel_as_by_flood_fill(
    cell: int, grid: int, values: int, smooth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grainline.kernels import kmeans as kernels

    block = 32 if cell * grid < 16 else 256
    monkeypatch.setattr(kernels, "PIECES", (block, kernels.PIECES[1]))
    monkeypatch.setattr(kernels, "JOIN", (block, kernels.JOIN[1]))
    fit = some_fits(2, cell, grid, values, smooth)
    label = hard(fit, cell)
    expected = [slow_connected(label[i].tolist(), fit[i].tolist(), cell) for i in range(2)]
    kernels.connect(label, fit, cell)
    assert label.tolist() == expected


@interpreted
def test_superpixels_by_a_kernel_break_ties_and_keep_centres_without_pixels(called: list[str]) -> None:
    uniform = torch.full((1, 3, 9, 9), 77, dtype=torch.uint8)
    uniform[..., 4, 4] = 0
    actual = kmeans(uniform, 3, 0.0, 1)  # place counts nothing
    assert actual[0, 0, ::3].tolist() == [0, 0, 1], "the lower number of the cells that have its colour"
    assert torch.equal(actual, superpixels._by_products(uniform, 3, 0.0, 1))
    generator = torch.Generator().manual_seed(364)  # one centre loses its last pixel
    noise = torch.randint(0, 256, (1, 3, 9, 9), generator=generator, dtype=torch.uint8)
    assert kmeans(noise, 3, 1.0, 5)[0].tolist() == slow_kmeans(noise[0], 3, 1.0, 5)
    assert called == ["kmeans"] * 2
    with pytest.raises(RuntimeError, match="don't multiply up"):
        kmeans(noise[..., :6], 3, 1.0, 1)
    assert len(called) == 2, "images are squares"


# Whether kernels are used


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch, "_refused", set())
    launch._why_not.cache_clear()
    yield
    launch._why_not.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("way", "triton", "why"),
    [
        ("auto", "", "not installed"),
        ("off", "3.9.0", "is off"),
        ("auto", "3.3.1", "is older than 3.4"),
        ("auto", "3.10.0", ""),
        ("auto", "4.0.0+git", ""),
    ],
)
def test_kernels_need_a_version_of_triton_and_may_be_off(
    way: str, triton: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "TRITON", triton)
    monkeypatch.setenv(launch.VARIABLE, way)
    assert why in launch.available()
    assert bool(launch.available()) == bool(why)
    assert not launch.use(torch.zeros(1)), "on a CPU there are none"
    monkeypatch.setattr(launch, "_on_gpu", lambda _: True)
    assert launch.use(torch.zeros(1)) == (not why)
    assert not launch.use(torch.zeros(1, dtype=torch.float64))


@pytest.mark.usefixtures("fresh")
def test_another_value_of_the_variable_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch.VARIABLE, "on")
    with pytest.raises(UserError, match=r"^GRAINLINE_KERNELS is 'on'; it must be auto or off$"):
        launch.available()


@pytest.mark.usefixtures("fresh")
def test_a_refused_kernel_is_tried_once_and_named(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []

    def kernel() -> int:
        tried.append(1)
        raise RuntimeError("no PTX for sm_52\nand more")

    assert [launch.run("attend", kernel, lambda: 7) for _ in range(3)] == [7, 7, 7]
    assert len(tried) == 1
    assert launch.run("lengths", lambda: 5, lambda: 7) == 5, "others are not refused"
    assert [one.getMessage() for one in caplog.records] == [
        "the kernel attend is not used, torch computes instead: no PTX for sm_52"
    ]

    def full() -> int:
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        launch.run("lengths", full, lambda: 7)
    assert launch.run("lengths", lambda: 5, lambda: 7) == 5


# Compiled without a GPU, at the sizes of training

PIXELS = {"S": 224, "C": 16}
CONSTANTS: dict[str, dict[str, Any]] = {
    "assign": PIXELS | {"LAST": False},
    "assign last": PIXELS | {"LAST": True},
    "assign wide": PIXELS | {"C": 32, "LAST": False},
}
WHOLE = {"label": "*i64", "cells": "i32", "compactness": "fp32"}
LIMITS = {90: 227, 80: 99}  # KiB of shared memory; sm_86, sm_89 and sm_120 have 99, sm_80 has more


def as_launched(name: str, constants: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A kernel with the constants and settings that it is launched with."""
    from grainline.kernels import kmeans as kernels

    kernel = getattr(kernels, f"_{name.split()[0]}")
    blocks, options = kernels.tile(constants["C"])
    return kernel, constants | blocks, options


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("architecture", LIMITS)
@pytest.mark.parametrize("name", CONSTANTS)
def test_kernels_fit_a_processor(name: str, architecture: int, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the extra `kernels` is not installed")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, constants, options = as_launched(name, CONSTANTS[name])
    types = {arg: WHOLE.get(arg, "*fp32") for arg in kernel.arg_names}
    source = ASTSource(
        fn=kernel,
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs={(kernel.arg_names.index(arg),): value for arg, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, arg in enumerate(kernel.arg_names)
            if arg not in constants and types[arg].startswith("*")
        },
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    assert compiled.metadata.shared <= LIMITS[architecture] * 1024
    (tmp_path / "kernel.ptx").write_text(compiled.asm["ptx"])
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    chip = f"sm_{architecture}" + ("a" if architecture == 90 else "")
    for program in ("ptxas-blackwell", "ptxas"):  # the plain one may be older than the PTX
        actual = subprocess.run(
            [assembler / program, "-v", f"-arch={chip}", tmp_path / "kernel.ptx", "-o", os.devnull],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not actual.returncode:
            break
    assert not actual.returncode, actual.stderr
    spilled = re.findall(r"(\d+) bytes spill stores", actual.stderr)
    assert len(spilled) == 1
    assert int(spilled[0]) <= 64, actual.stderr
