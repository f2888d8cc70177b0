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

from grainline.errors import UserError
from grainline.kernels import launch
from grainline.losses import text_conditioned
from grainline.losses.text_conditioned import chunked, image_side, pooled_scores
from grainline.losses.tiled import operands as precision
from grainline.losses.tiled.kernel_cosine import KernelDense
from grainline.losses.tiled.operands import Operands, half_products
from grainline.nn import grouping
from grainline.nn.grouping import farthest_points

SHAPES = pytest.mark.parametrize(  # heads, width, segments
    ("heads", "width", "slots"), [(2, 32, 17), (1, 21, 24), (3, 60, 30)], ids=["two", "odd", "three"]
)


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
    monkeypatch.setattr(text_conditioned, "on_gpu", lambda _: True)
    monkeypatch.setattr(precision, "on_gpu", lambda _: True)
    return names


@interpreted
@pytest.mark.parametrize(
    ("slots", "number", "some"), [(29, 9, False), (29, 9, True), (16, 16, True), (1, 1, False)]
)
def test_farthest_points_are_those_of_the_loop(
    slots: int, number: int, some: bool, called: list[str]
) -> None:
    x = torch.randn(5, slots, 12)
    x[0, slots // 2], x[1] = x[0, 0], 2.0  # equal tokens, and nothing but equal tokens
    valid = torch.rand(5, slots) > 0.3 if some else None
    if valid is not None:
        valid[2] = False
    product = grouping.products(grouping.centred(x, valid))
    expected, found = grouping._by_loop(product, valid, number), farthest_points(x, valid, number)
    assert called == ["farthest"]
    assert torch.equal(found.mask, expected.mask)
    assert torch.equal(found.token[found.mask], expected.token[expected.mask])


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
    score, of_images, _ = image_side(case.pool, case.segments, None)
    assert isinstance(chunked(score, of_images, Operands(torch.float32)), KernelDense)
    assert_same(case.fast(case.pairs(negatives)), case.slow(negatives), case.learnt(), 1e-5, 5e-4)
    assert called == ["attend", "lengths", "unattend"]


@interpreted
@SHAPES
def test_losses_by_kernels_in_half_precision_are_near(
    heads: int, width: int, slots: int, called: list[str]
) -> None:
    case = Case(heads, torch.float32, width=width, slots=slots)
    expected = case.fast(case.pairs("all"))
    assert called == [], "float32 stays float32"
    with half_products(True):
        found = case.fast(case.pairs("all"))
    assert called == ["attend", "lengths", "unattend"]
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


# Whether kernels are used


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch, "_refused", set())
    launch.available.cache_clear()
    yield
    launch.available.cache_clear()


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


# Compiled without a GPU, at the sizes of training: 512 dimensions, 8 heads, 64 segments.

HEAD = {"H": 8, "L": 64, "D": 64, "BL": 64, "BD": 64, "MASK": True, "PREC": "tf32"}
WIDE = {"D": 512, "BN": 128, "BK": 64, "TRIANGLE": False, "PREC": "tf32"}
CONSTANTS: dict[str, dict[str, Any]] = {
    "attend": HEAD,
    "unattend": HEAD,
    "attend wide": HEAD | {"D": 128, "BD": 128},
    "unattend wide": HEAD | {"D": 128, "BD": 128},
    "attend widest": HEAD | {"L": 128, "D": 128, "BL": 128, "BD": 128},
    "unattend widest": HEAD | {"L": 128, "D": 128, "BL": 128, "BD": 128},
    "lengths": WIDE | {"KEEP": True},
    "lengths of scores": WIDE | {"KEEP": False, "TRIANGLE": True},
    "farthest": {"SAME": 1e-5, "L": 197, "M": 65, "SIZE": 256, "VALID": True},
}
HALF = ("q", "key", "value", "z", "matrix", "u", "y", "by_fit")
WHOLE = {
    "T": "i32",
    "N": "i32",
    "rows": "i32",
    "tiles": "i32",
    "token": "*i64",
    "valid": "*i1",
    "real": "*i1",
}
LIMITS = {
    90: (227, "wgmma.mma_async"),
    80: (163, "mma.sync"),
}  # KiB of shared memory, products of half precision


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

    from grainline.kernels import farthest, pooled

    word = name.split()[0]
    kernel = getattr(farthest if word == "farthest" else pooled, f"_{word}")
    constants, options = dict(CONSTANTS[name]), farthest.LAUNCH
    if word in pooled.TILE:
        sizes = (constants["L"], constants["D"]) if "L" in constants else ()
        constants["BM"], options = pooled.settings(word, *sizes)
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
    if word != "farthest":
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
