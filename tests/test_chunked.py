"""Cosines in chunks of images with all texts, as on a GPU, against loops over pairs by the module."""

import json
import os
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from make import CLOCK, batch, build
from processes import exit_codes, start_ranks
from test_pooled import NEGATIVES, WAYS, Case, assert_same
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from grainline import types
from grainline.distributed import largest
from grainline.losses import hide, text_conditioned
from grainline.losses.text_conditioned import part_loss, part_pairs, pooled_scores
from grainline.losses.tiled import chunked_cosine
from grainline.losses.tiled import operands as module
from grainline.losses.tiled import pair_loss as pair_losses
from grainline.losses.tiled.chunked_cosine import ChunkedDense
from grainline.losses.tiled.operands import Operands, exact, half_products, on_gpu, operands, power_above
from grainline.losses.tiled.pair_loss import SigmoidLoss, SoftmaxLoss, pair_loss
from grainline.losses.tiled.pair_mask import (
    PairMatrix,
    RowIds,
    Tile,
    all_negatives,
    row_ids,
    sample_negatives,
    without_waits,
)
from grainline.losses.tiled.scores import Dot
from grainline.losses.tiled.vocabulary import exponentials, vocabulary_loss
from grainline.methods import METHODS, maxsim
from grainline.methods.base import Method
from grainline.nn.pooling import KeyValue
from grainline.training.step import Objective
from grainline.types import Images, Mean, Texts, rows, to

PACKAGE = Path(module.__file__).parents[2]
HALF = 5e-3  # worst gradient with operands in float16, at a scale of 9


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu_paths(monkeypatch)


def use_gpu_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (text_conditioned, module, pair_losses, maxsim, hide):
        monkeypatch.setattr(place, "on_gpu", lambda _: True)


@NEGATIVES
@WAYS
@pytest.mark.parametrize("pairs", [1000, 33, 4])  # all in a tile; two images; one image with some texts
def test_loss_and_all_gradients_are_those_of_a_loop_over_pairs(
    heads: int, slots: int, negatives: str, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, tiles = Case(heads, slots=slots), list[tuple[int, ...]]()
    score = ChunkedDense(Operands(None))
    monkeypatch.setattr(chunked_cosine, "ROOM", pairs * score.stored(heads * slots, 12))
    attend = chunked_cosine.Chunked.attend
    monkeypatch.setattr(
        chunked_cosine.Chunked,
        "attend",
        lambda self, rows, cols: tiles.append((len(rows[0]), len(cols[0]))) or attend(self, rows, cols),
    )
    found = case.fast(case.pairs(negatives))
    assert_same(found, case.slow(negatives), case.learnt(), 1e-11, 1e-11)
    assert (len(tiles) == 1) == (pairs == 1000)
    assert all(texts == 15 for _, texts in tiles) == (pairs > 15)
    assert max(images * texts for images, texts in tiles) <= max(pairs, 5 * 15)


@NEGATIVES
@WAYS
@pytest.mark.parametrize("large", [1.0, 1e6])
def test_half_precision_is_near_whatever_the_size_of_numbers(
    heads: int, slots: int, negatives: str, large: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and slopes far outside of float16: its units are powers of two of each tensor."""
    case = Case(heads, torch.float32, slots=slots)
    with torch.no_grad():
        case.pool.to_value.weight *= large
        case.pool.to_value.bias *= large
    monkeypatch.setattr(text_conditioned, "on_gpu", lambda _: False)
    expected = case.fast(case.pairs(negatives))
    monkeypatch.setattr(text_conditioned, "on_gpu", lambda _: True)
    with half_products(True):
        found = case.fast(case.pairs(negatives))
    assert not torch.equal(found.total, expected.total)
    assert_near(found, expected, case.learnt())


def assert_near(found: Mean, expected: Mean, learnt: list[Tensor]) -> None:
    torch.testing.assert_close(found.total, expected.total, rtol=1e-3, atol=0)
    grads = [torch.autograd.grad(x.total, learnt, retain_graph=True) for x in (found, expected)]
    largest = max(float(b.norm()) for b in grads[1])
    for a, b in zip(*grads, strict=True):
        assert float((a - b).norm()) <= HALF * float(b.norm()) + 1e-4 * largest


@pytest.mark.parametrize("rows", [7, 32, 33, 120])
def test_a_sum_over_many_rows_is_that_of_its_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_cosine, "LONG", 8)
    z, weight, start = torch.randn(rows, 6).double(), torch.randn(rows, 1), torch.randn(6, 6).double()
    into = start.clone()
    ChunkedDense(Operands(None)).add_symmetric(into, weight * z, z, torch.tensor(2.0).double())
    torch.testing.assert_close(
        into, start + 2 * sum(w * x[:, None] * x for w, x in zip(weight, z, strict=True))
    )


def test_slopes_of_negatives_alone_are_no_zeros_in_float16() -> None:
    case = Case(1, torch.float32, slots=3)
    with torch.no_grad():
        case.bias.fill_(-25.0)  # sigmoid(-25) is 1e-11, and the least number of float16 6e-8
    case.captions = case.captions._replace(image=torch.full_like(case.captions.image, -1))
    both = [case.fast(case.pairs("all"))]
    with half_products(True):
        both.append(case.fast(case.pairs("all")))
    a, b = (torch.autograd.grad(x.total, [case.segments, case.texts]) for x in both)
    for one, other in zip(a, b, strict=True):
        assert float((one - other).norm()) <= HALF * float(one.norm())
        assert 0 < float(one.norm()) < 1e-6


class Waits(TorchDispatchMode):
    """As if a CPU were two: what is computed from uploaded tensors is on a device.

    files: of the package, in which the host reads a value from there
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: set[str] = set()
        self.device = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, out = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        if any(x in self.device for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)):
            masked = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
            if masked or name in ("_local_scalar_dense", "nonzero", "_unique2", "unique_dim"):
                self.add()
            self.put(out)
        return out

    def put(self, tensors: Any) -> Any:
        """Tensors, now on the device."""
        for x in tree_leaves(tensors):
            if isinstance(x, Tensor):
                self.device[x] = True
        return tensors

    def add(self) -> None:
        paths = (Path(frame.filename) for frame in reversed(traceback.extract_stack()))
        own = next(x for x in paths if x.is_relative_to(PACKAGE) and x.name != "types.py")
        self.files.add(own.relative_to(PACKAGE).as_posix())


def as_two_machines(monkeypatch: pytest.MonkeyPatch) -> Waits:
    out = Waits()

    def read(x: Any) -> Any:
        if isinstance(x, Tensor):
            out.add()
            return x.clone()
        return x

    monkeypatch.setattr(types, "_here", lambda x: x not in out.device)
    monkeypatch.setattr(types, "_sent", lambda x, _: out.put(x.clone()))
    monkeypatch.setattr(types, "_read", read)
    return out


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return as_two_machines(monkeypatch)


@pytest.mark.usefixtures("waits")
def test_the_host_plans_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the plan fails, threads are as they were. On a CPU all threads compute."""
    threads: list[int] = [6]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    here = torch.arange(4)
    there = types.upload(here, "cpu")
    for call in (types.by_host, types.from_host, types.mirror):
        call(lambda x: x + len(threads), here)
        assert threads == [6]
        call(lambda x: x + 1, there)
        assert threads.pop() == 6
        assert threads.pop() == 1
    with pytest.raises(IndexError):
        types.by_host(lambda x: x[9], there)
    assert threads == [6, 1, 6]


@NEGATIVES
@WAYS
def test_the_host_waits_for_nothing(heads: int, slots: int, negatives: str, waits: Waits) -> None:
    case = Case(heads, torch.float32, slots=slots)
    waits.put([case.segments, case.texts, *case.captions, *case.pool.parameters()])
    with waits, half_products(True):
        case.fast(case.pairs(negatives)).total.backward()
    assert waits.files == set()
    assert case.segments.grad is not None


CHOICE = {f"nn/patch_selection/{name}.py" for name in ("scoring", "selector")}


@pytest.mark.parametrize("method", [*METHODS, "flair-vectors", "beta_clip-groups", "himo-groups"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_step_waits_for_nothing_from_the_device(
    method: str, packed: bool, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where the pairs that learn are chosen by their scores."""
    monkeypatch.setattr("grainline.encoders.text.can_pack", lambda _: packed)
    step(build(method), *batch(), waits)
    assert waits.files == (CHOICE if method in ("seps", "laps") else set())


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_texts_that_share_rows_have_the_same_scores(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them without tokens, as the parts of a caption may be."""
    images, texts = batch()
    images = images._replace(pixels=images.pixels.double())
    found = []
    for packed in (False, True):
        monkeypatch.setattr("grainline.encoders.text.can_pack", lambda _, packed=packed: packed)
        one = build(method).double().eval()
        found.append(one.score(one.encode_images(images), one.encode_texts(texts)))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-9)


def step(method: Method, images: Images, texts: Texts, waits: Waits) -> None:
    objective = Objective(method, torch.bfloat16)
    waits.put([*objective.parameters(), *objective.buffers()])
    with waits:
        objective(*(to(side, "cpu") for side in (images, texts)), CLOCK).total.backward()


def waits_of_a_rank(rank: int, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/start", rank=rank, world_size=2)
    assert largest(rank, torch.device("meta")) == 1  # asked of hosts
    images, texts = batch(12)
    mine = torch.arange(rank, 12, 2)
    both = rows(images, mine), rows(texts, torch.stack([2 * mine, 2 * mine + 1], 1).flatten())
    found = {}
    for name in METHODS:
        with pytest.MonkeyPatch.context() as patch:
            use_gpu_paths(patch)
            waits = as_two_machines(patch)
            step(build(name), *both, waits)
            found[name] = sorted(waits.files)
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # as in test_two_ranks


def test_a_step_of_two_processes_waits_for_nothing_from_the_device(tmp_path: Path) -> None:
    """Ids and masks of the other process come from its host."""
    assert exit_codes(start_ranks(waits_of_a_rank, 2, tmp_path)) == [0, 0]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert {name for name, files in found.items() if files} == {"seps", "laps"}
        assert set(found["seps"]) | set(found["laps"]) == CHOICE


@pytest.mark.parametrize("seed", range(8))
def test_pairs_without_waits_are_those_of_lists_and_shares(seed: int) -> None:
    """Padding, foils, groups, images without a row, rows without a caption, captions in any order."""
    g = torch.Generator().manual_seed(seed)
    n, m = 6, 40
    rows = RowIds(
        torch.arange(n).masked_fill(torch.rand(n, generator=g) < 0.2, -1),
        torch.randperm(9, generator=g)[:n],
        torch.randint(0, 2, (n,), generator=g),
        torch.zeros(n, dtype=torch.int64),
    )
    item = torch.randperm(m, generator=g).masked_fill(torch.rand(m, generator=g) < 0.2, -1)
    image = torch.randint(-1, 9 if seed else 1, (m,), generator=g)  # of seed 0: one image in two groups
    cols = RowIds(item, image, torch.randint(-1, 2, (m,), generator=g), torch.zeros(m, dtype=torch.int64))
    lists, drawn = sample_negatives(rows, cols, CLOCK), without_waits(rows, cols, "sampled", CLOCK)
    of_lists, where = lists.where(), drawn.where()
    assert of_lists.real is not None
    assert where.real is not None
    for i in range(n):
        assert where.real[i].nonzero().flatten().tolist() == sorted(
            lists.places[i][of_lists.real[i]].tolist()
        )
        assert where.same[i].nonzero().flatten().tolist() == sorted(
            lists.places[i][of_lists.same[i]].tolist()
        )
    assert torch.equal(where.weight, where.same.float())
    tile = Tile(slice(1, 4), slice(7, 30))
    assert torch.equal(drawn.where(tile).same, where.same[1:4, 7:30])
    assert drawn.where(tile).real is not None
    assert torch.equal(drawn.where(tile).real, where.real[1:4, 7:30])
    every, plain = all_negatives(rows, cols), without_waits(rows, cols, "all", CLOCK)
    assert isinstance(plain, PairMatrix)
    assert plain.against is not None
    assert every.against is not None
    real = cols.real() & (cols.image >= 0)
    assert torch.equal(plain.against[real], every.against[real])
    assert sorted(tile.rows.stop for tile in plain.tiles(4, 100)) == [4, 8]


def test_a_batch_without_texts_has_a_loss() -> None:
    case = Case(3)
    none = RowIds(*(x[:0] for x in case.captions))
    for negatives in ("sampled", "all"):
        pairs = part_pairs(case.images, none, negatives, CLOCK)
        found = part_loss(case.pool, (case.segments, None), case.texts[:0], pairs, case.scale, case.bias)
        assert (found.total, found.number) == (0, 4)


@pytest.mark.parametrize(("heads", "slots", "few"), [(3, 3, 10**4), (3, 7, 0), (1, 3, 0)])
@pytest.mark.parametrize("room", [2**29, 700])
def test_scores_are_those_of_the_module(
    heads: int, slots: int, few: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_conditioned, "FEW", few)
    monkeypatch.setattr(chunked_cosine, "ROOM", room)
    case = Case(heads, slots=slots)
    keys = case.pool.keys(case.segments, case.mask)
    texts = case.texts[:12].unflatten(0, (4, 3)).detach()
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            found = pooled_scores(case.pool, keys, texts)
        assert found.requires_grad == learns
        for i in range(5):
            for m in range(4):
                total = torch.stack([case.cosine(i, 3 * m + s) for s in range(3)]).sum()
                torch.testing.assert_close(found[i, m], total)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_from_half_precision_are_near_and_in_full(dtype: torch.dtype) -> None:
    case = Case(3, torch.float32)
    with torch.no_grad():
        keys = case.pool.keys(case.segments, case.mask)
        near = KeyValue(keys.key.to(dtype), keys.value.to(dtype), keys.mask)
        whole, half = (pooled_scores(case.pool, x, case.texts[:, None]) for x in (keys, near))
    assert half.dtype == torch.float32
    assert 0 < float((half - whole).abs().max()) < (0.003 if dtype == torch.float16 else 0.02)


def test_gradients_are_those_of_finite_differences() -> None:
    case = Case(3, width=6)
    pairs, pool = case.pairs("all"), case.pool

    def total(segments: Tensor, texts: Tensor, scale: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
        return part_loss(pool, (segments, case.mask), texts, pairs, scale, bias).total

    assert torch.autograd.gradcheck(total, tuple(case.learnt()), fast_mode=True)


def test_operands_are_half_where_training_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2)
    with exact(x):
        assert operands(x).dtype is None
    with half_products(True), exact(x):
        assert operands(x).dtype is torch.float16
        assert operands(x.double()).dtype is None
    with torch.autocast("cpu", torch.bfloat16), exact(x), exact(x):
        assert not torch.is_autocast_enabled("cpu")
        assert operands(x).dtype is torch.float16
    assert operands(x).dtype is None
    assert not on_gpu(x)
    monkeypatch.setattr(module, "on_gpu", on_gpu)
    with half_products(True):
        assert operands(x).dtype is None, "on a CPU nothing is half"


def test_a_unit_is_the_power_of_two_above_the_largest_number() -> None:
    values = {3.0: 4.0, -5.0: 8.0, 1e-30: 2.0**-99, 0.0: 1.0}
    assert {x: float(power_above(torch.tensor([x, x / 2]))) for x in values} == values
    assert float(power_above(torch.zeros(0))) == 1
    scaled = Operands(torch.float16).scaled(torch.tensor([3e9, 1.0]))
    assert float((scaled.x.float() * scaled.unit)[0]) == pytest.approx(3e9, rel=1e-3)


@pytest.mark.parametrize("function", ["weights", "slopes", "by_logit", "cosine", "cosines"])
def test_what_is_compiled_is_one_graph(function: str) -> None:
    number = {"weights": 3, "slopes": 4, "by_logit": 2, "cosine": 5, "cosines": 6}[function]
    assert_compiles(getattr(chunked_cosine, function), *([5, 2] for _ in range(number)))


def assert_compiles(plain: Any, *shapes: list[int], given: tuple[Any, ...] = ()) -> None:
    """As torch.compile sees it, without a compiler: no break, and lengths that change."""
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (3, 4):
        tensors = [torch.rand(size, *shape) for shape in shapes]
        torch.testing.assert_close(compiled(*tensors, *given), plain(*tensors, *given))
    torch._dynamo.reset()


def test_what_is_compiled_of_inner_products_is_one_graph() -> None:
    assert_compiles(pair_losses.log_sum, [5], given=(0,))
    assert_compiles(pair_losses.log_sum, [5], given=(1,))
    for sides in ([torch.rand(1, 5)], [torch.rand(1, 5), torch.rand(1, 1)]):
        assert_compiles(pair_losses.forced, [5], given=(sides, sides))
    assert_compiles(exponentials, [5], given=(torch.tensor(2.0), torch.float16))
    same, against = torch.arange(5) % 2 == 0, torch.rand(5)
    for real, of_column in ((None, None), (same, None), (None, against), (~same, against)):
        for one in (pair_losses.binary, pair_losses.binary_slopes):
            assert_compiles(one, [5], given=(real, same, torch.rand(5), of_column))


@pytest.mark.parametrize("loss", [SoftmaxLoss(False), SoftmaxLoss(True), SigmoidLoss()])
def test_inner_products_in_half_precision_are_near(loss: Any) -> None:
    a, b = (F.normalize(torch.randn(9, 8), dim=-1).requires_grad_() for _ in range(2))
    ids = row_ids(torch.arange(9), torch.arange(9) // 2)
    both = []
    for score in (Dot(), Dot(Operands(torch.float16))):
        means = pair_loss(score, loss, (14 * a,), (b,), PairMatrix(ids, ids))
        total = torch.stack([mean.total for mean in means]).sum()
        both.append((total, *torch.autograd.grad(total, (a, b))))
    for exactly, half in zip(*both, strict=True):
        assert 0 < float((exactly - half).detach().norm()) <= HALF * float(exactly.detach().norm())


def test_losses_of_training_in_half_precision_have_half_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.dtype | None] = []
    real = Operands.__init__
    monkeypatch.setattr(Operands, "__init__", lambda self, dtype: made.append(dtype) or real(self, dtype))
    for case, precision, wanted in (
        ("flair", torch.bfloat16, {torch.float16}),
        ("caft", torch.bfloat16, {torch.float16}),
        ("beta_clip", torch.bfloat16, {torch.float16}),
        ("tgt", torch.bfloat16, {torch.float16}),
        ("flair", torch.float32, {None}),
        ("beta_clip", torch.float32, {None}),
    ):
        made.clear()
        method = build(case)
        loss = Objective(method, precision)(*batch(), CLOCK)
        loss.total.backward()
        assert {dtype for dtype in made if dtype is not None} | (wanted & {None}) == wanted, case
        assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_a_vocabulary_in_half_precision_is_near() -> None:
    hidden, table = torch.randn(40, 8).requires_grad_(), (3 * torch.randn(50, 8)).requires_grad_()
    target = torch.randint(-1, 50, (40,))
    both = []
    for allowed in (False, True):
        with half_products(allowed):
            total = vocabulary_loss(hidden, table, target).total
        both.append((total, *torch.autograd.grad(total, (hidden, table))))
    for exactly, half in zip(*both, strict=True):
        assert 0 < float((exactly - half).detach().norm()) <= HALF * float(exactly.detach().norm())


def test_bfloat16_has_no_units_and_what_is_not_lowered_neither() -> None:
    """It has the range of float32: to look for the largest value is some launches in vain."""
    x = torch.tensor([3e30, 1e-30, 7.0])
    by = Operands(torch.bfloat16)
    one, other = by.scaled(x), by.scaled(x.bfloat16())
    assert torch.equal(one.x, x.bfloat16())
    assert one.unit == other.unit == 1
    assert Operands(None).scaled(x.double()).unit.dtype == torch.float64
    assert Operands(torch.float16).scaled(x).unit == 2.0**102


def test_without_a_compiler_parts_run_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def compile_(function: Any, dynamic: bool) -> Any:
        assert dynamic

        def call(*_: Any) -> Any:
            calls.append(function.__name__)
            raise torch._dynamo.exc.TorchDynamoException("no C compiler\nand more")

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(module, "find_spec", lambda _: True)
    call = module.fused.__wrapped__(chunked_cosine.inner)
    a, b = torch.rand(2, 3), torch.rand(2, 3)
    assert torch.equal(call(a, b), chunked_cosine.inner(a, b))
    assert calls == [], "on a CPU nothing is compiled"
    monkeypatch.setattr(Tensor, "is_cuda", True)
    for _ in range(2):
        assert torch.equal(call(a, b), chunked_cosine.inner(a, b))
    assert calls == ["inner"]
    assert [record.getMessage() for record in caplog.records] == [
        "parts of losses are not compiled, and slower: no C compiler"
    ]
