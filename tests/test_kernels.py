"""Kernels in Triton's interpreter against loops by the modules, and compiled for GPUs, both on a CPU."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_chunked import assert_near
from test_pooled import Case, assert_same
from torch import Tensor

from grainline.errors import UserError
from grainline.kernels import launch
from grainline.losses import text_conditioned
from grainline.losses.text_conditioned import pooled_scores
from grainline.losses.tiled import operands as precision
from grainline.losses.tiled.operands import Operands, half_products

SHAPES = pytest.mark.parametrize(  # heads, width, segments
    ("heads", "width", "slots"),
    [(2, 32, 17), (1, 21, 24), (3, 60, 30), (1, 21, 5), (1, 40, 33), (3, 60, 7)],
    ids=["two", "odd", "three", "few", "wide", "few of three"],
)
DENSE = ["attend", "lengths", "weigh", "unattend"]
HALVES = pytest.mark.parametrize(
    "half", [torch.float32, torch.float16]
)  # bfloat16 is wrong in the interpreter

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and os.environ.get(launch.VARIABLE) == "interpret"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in Triton's interpreter: make kernels-test")


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were called, in small tiles, so that there are several programs and splits."""
    from grainline.kernels import pooled

    names: list[str] = []
    run = launch.run

    def recorded(name: str, kernel: Any, fallback: Any) -> Any:
        names.append(name)
        out = run(name, kernel, fallback)
        assert not launch._refused
        return out

    monkeypatch.setattr(launch, "run", recorded)
    monkeypatch.setattr(pooled, "TILE", dict.fromkeys(pooled.TILE, (16, 16)))
    monkeypatch.setattr(pooled, "NUMBERS", dict.fromkeys(pooled.NUMBERS, 128))
    monkeypatch.setattr(text_conditioned, "on_gpu", lambda _: True)
    monkeypatch.setattr(precision, "on_gpu", lambda _: True)
    return names


@interpreted
@SHAPES
@pytest.mark.parametrize("negatives", ["sampled", "all"])
def test_losses_by_kernels_are_those_of_a_loop_over_pairs(
    heads: int,
    width: int,
    slots: int,
    negatives: str,
    called: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_conditioned, "operands", lambda _: Operands(torch.float32))
    case = Case(heads, torch.float32, width=width, slots=slots)
    assert_same(case.fast(case.pairs(negatives)), case.slow(negatives), case.learnt(), 1e-5, 5e-4)
    assert called == DENSE


@interpreted
@SHAPES
@pytest.mark.parametrize(
    "bias", [-2.0, -25.0]
)  # slopes of negatives are zeros of float16, but for their units
def test_losses_by_kernels_in_half_precision_are_near(
    heads: int, width: int, slots: int, bias: float, called: list[str]
) -> None:
    case = Case(heads, torch.float32, width=width, slots=slots)
    with torch.no_grad():
        case.bias.fill_(bias)
    if bias < -2.0:
        case.captions = case.captions._replace(image=torch.full_like(case.captions.image, -1))
    expected = case.fast(case.pairs("all"))
    assert called == [], "float32 stays float32"
    with half_products(True):
        found = case.fast(case.pairs("all"))
    assert called == DENSE
    assert not torch.equal(found.total, expected.total)
    assert_near(found, expected, case.learnt())


@interpreted
@SHAPES
@pytest.mark.parametrize("few", [10**4, 0])
def test_scores_by_kernels_are_those_of_the_module(
    heads: int, width: int, slots: int, few: int, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_conditioned, "FEW", few)
    monkeypatch.setattr(text_conditioned, "operands", lambda _: Operands(torch.float32))
    case = Case(heads, torch.float32, width=width, slots=slots)
    with torch.no_grad():
        keys = case.pool.keys(case.segments, case.mask)
        found = pooled_scores(case.pool, keys, case.texts[:, None])
        expected = torch.stack([torch.stack([case.cosine(i, j) for j in range(15)]) for i in range(5)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert called == ["attend", "lengths"]


# Each kernel that adds up, alone, in several splits of several tiles


def near(found: Tensor, expected: Tensor, half: torch.dtype) -> None:
    bound = 1e-5 if half == torch.float32 else 1e-3
    assert float((found - expected).detach().norm()) <= bound * float(expected.detach().norm())


@interpreted
@pytest.mark.usefixtures("called")
@HALVES
@pytest.mark.parametrize("width", [21, 64])
@pytest.mark.parametrize("listed", [False, True])
def test_lengths_and_what_is_weighed_are_those_of_torch(width: int, half: torch.dtype, listed: bool) -> None:
    from grainline.kernels import pooled

    z, y = torch.randn(2, 3, 11, width).to(half)
    u, shift = torch.randn(17 if listed else 11, width).to(half), torch.randn(width)
    places = torch.randint(-1, 17, (3, 11)) if listed else None
    units = torch.tensor([2.0, 0.5, 4.0, 8.0, 0.25])
    x, (of_y, of_u) = (z.double() * 2.0).requires_grad_(), units[1:3].double()
    text = (u.double() * of_u).requires_grad_()
    of_pairs = text if places is None else (text[places.clamp(min=0)] * (places >= 0)[..., None])
    out, w = y.double() * of_y, shift.double().requires_grad_()
    along, square = (x * of_pairs).sum(-1), (x * (out + 2 * w)).sum(-1)
    for found, twin in zip(pooled.lengths(z, y, u, shift, units[:3], places), (along, square), strict=True):
        near(found, twin, half)
    by_along, by_square = torch.randn(2, 3, 11)
    weighted, by_u, total = pooled.weigh(z, y, u, shift, by_along, by_square, units, places)
    loss = (along * by_along).sum() + (square * by_square).sum()
    by_x, by_text, by_w = torch.autograd.grad(loss, (x, text, w))
    by_x += by_square[..., None].double() * (out.detach())  # y = S z has as much
    near(8.0 * y, by_x, half)
    near(0.25 * weighted, z.double() * by_square[..., None], half)
    near(2 * 0.25 * 2.0 * total, by_w, half)
    if not listed:
        near(by_u, by_text, half)


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


@pytest.mark.parametrize("refused", [DENSE, *([x] for x in DENSE if INTERPRETED)], ids=",".join)
@pytest.mark.parametrize(("heads", "slots"), [(3, 30), (3, 7)])
def test_torch_computes_what_is_refused(
    refused: list[str], heads: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "use", lambda _: True)
    monkeypatch.setattr(launch, "_refused", set(refused))
    for place in (text_conditioned, precision):
        monkeypatch.setattr(place, "on_gpu", lambda _: True)
    monkeypatch.setattr(text_conditioned, "operands", lambda _: Operands(torch.float32))
    case = Case(heads, torch.float32, width=60, slots=slots)
    assert_same(case.fast(case.pairs("all")), case.slow("all"), case.learnt(), 1e-5, 5e-4)
    assert launch._refused == set(refused)


# Compiled without a GPU, at the sizes of training: 512 dimensions, 8 heads, 64 segments.

HEAD = {"H": 8, "L": 64, "D": 64, "BL": 64, "BD": 64, "MASK": True, "LIST": False, "PREC": "tf32"}
PIXELS = {"S": 224, "C": 16}
CONSTANTS: dict[str, dict[str, Any]] = {
    "attend": HEAD,
    "unattend": HEAD,
    "attend wide": HEAD | {"D": 128, "BD": 128},
    "unattend wide": HEAD | {"D": 128, "BD": 128},
    "attend widest": HEAD | {"L": 128, "D": 128, "BL": 128, "BD": 128},
    "unattend widest": HEAD | {"L": 128, "D": 128, "BL": 128, "BD": 128},
    "lengths": {"D": 512, "LIST": False},
    "lengths wide": {"D": 768, "LIST": False},
    "weigh": {"D": 512, "LIST": False},
    "weigh wide": {"D": 1024, "LIST": False},
    "attend of lists": HEAD | {"LIST": True},
    "unattend of lists": HEAD | {"LIST": True},
    "unattend of lists wide": HEAD | {"LIST": True, "D": 128, "BD": 128},
    "unattend of lists widest": HEAD | {"LIST": True, "L": 128, "D": 128, "BL": 128, "BD": 128},
    "lengths of lists": {"D": 512, "LIST": True},
    "weigh of lists": {"D": 512, "LIST": True},
    "collect": {"D": 512, "BM": 16, "BN": 256, "WEIGHT": True},
    "colours": PIXELS | {"XYZ": tuple(9 * [0.1]), "BYTES": True},
    "assign": PIXELS | {"LAST": False},
    "assign last": PIXELS | {"LAST": True},
    "assign wide": PIXELS | {"C": 32, "LAST": False},
    "move": {"G": 14, "BLOCK": 128},
    "sums": {"D": 512, "BOTH": True},
    "hits": {"D": 512, "BOTH": True},
    "slopes": {"D": 512, "BOTH": True},
    "slopes of an odd width": {"D": 500, "BOTH": True},
    "binary": {"D": 512, "LEARNS": True},
}
HALF = (
    "q",
    "key",
    "value",
    "z",
    "matrix",
    "u",
    "y",
    "by_z",
    "weighted",
    "by_fit",
    "by_text",
    "turned",
    "x",
    "left",
    "right",
    "out",
)
WHOLE = {
    "T": "i32",
    "C": "i32",
    "N": "i32",
    "M": "i32",
    "rows": "i32",
    "tiles": "i32",
    "token": "*i64",
    "places": "*i64",
    "pair": "*i64",
    "start": "*i64",
    "valid": "*i1",
    "real": "*i1",
    "pixels": "*u8",
    "label": "*i64",
    "cells": "i32",
    "compactness": "fp32",
    "row_ids": "*i32",
    "col_ids": "*i32",
    "n": "i32",
    "m": "i32",
    "vectors": "i32",
    "own": "fp32",
    "sibling": "fp32",
    "decay": "fp32",
}
LIMITS = {
    90: (227, "wgmma.mma_async"),
    80: (99, "mma.sync"),
}  # KiB of shared memory, products of half precision; sm_86, sm_89 and sm_120 have 99, sm_80 has more


def as_launched(
    name: str, constants: dict[str, Any], older: bool
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A kernel with the constants and settings that it is launched with."""
    from grainline.kernels import dots, kmeans, lists, pooled

    word, modules = name.split()[0], (dots, kmeans, lists, pooled)
    kernel = next(getattr(module, f"_{word}") for module in modules if hasattr(module, f"_{word}"))
    if word in pooled.TILE:
        blocks = constants.get("BL", 0), constants.get("BD", 0)
        tile, options = pooled.settings(pooled.LISTED if pooled.LISTED in name else word, *blocks, older)
        return kernel, constants | {"BM": tile}, options
    if word in pooled.NUMBERS:
        return kernel, constants | pooled.whole_rows(word, constants["D"]), dict(pooled.FUSION)
    if word in dots.LAUNCH:
        both = constants | dots.settings(word, constants["D"], torch.float16)
        names = [arg for arg in both if arg in kernel.arg_names]
        return kernel, {arg: both[arg] for arg in names}, {k: both[k] for k in both if k not in names}
    alone = {"move": kmeans.MOVE, "collect": lists.LAUNCH}
    if word in alone:
        return kernel, constants, alone[word]
    blocks, options = kmeans.tile(constants["C"])
    return kernel, constants | blocks, options


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("architecture", LIMITS)
@pytest.mark.parametrize("name", CONSTANTS)
def test_kernels_fit_a_processor(name: str, architecture: int, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the extra `kernels` is not installed")
    if "widest" in name and architecture < 90:
        pytest.skip("64 segments at most there: `fits`")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, constants, options = as_launched(name, CONSTANTS[name], architecture < 90)
    types = {arg: "*fp16" if arg in HALF else WHOLE.get(arg, "*fp32") for arg in kernel.arg_names}
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
    shared, instruction = LIMITS[architecture]
    assert compiled.metadata.shared <= shared * 1024
    text = compiled.asm["ptx"]
    if constants.get("PREC"):
        assert instruction in text
    (tmp_path / "kernel.ptx").write_text(text)
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    chip = f"sm_{architecture}" + ("a" if architecture == 90 else "")
    for program in ("ptxas-blackwell", "ptxas"):  # the plain one may be older than the PTX
        found = subprocess.run(
            [assembler / program, "-v", f"-arch={chip}", tmp_path / "kernel.ptx", "-o", os.devnull],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not found.returncode:
            break
    assert not found.returncode, found.stderr
    spilled = re.findall(r"(\d+) bytes spill stores", found.stderr)
    assert len(spilled) == 1
    assert int(spilled[0]) <= 64, found.stderr
