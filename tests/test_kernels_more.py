"""Kernels of superpixels and of selected patches in Triton's interpreter, against torch and loops."""

from itertools import product
from typing import Any

import pytest
import torch
from test_fast_cosines import made, sides
from test_kernels import interpreted
from test_superpixel import FITS, image, slow_connected, slow_kmeans, some_fits

from grainline.kernels import launch
from grainline.nn import selection, superpixels
from grainline.nn.patch_selection import scoring
from grainline.nn.patch_selection.types import selection_texts
from grainline.nn.selection import hard_topk
from grainline.nn.superpixels import hard, kmeans, one_hot


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
@pytest.mark.parametrize(("cell", "size", "steps"), [(4, 12, 3), (5, 15, 2), (2, 34, 2), (33, 33, 1)])
def test_superpixels_by_a_kernel_are_those_by_products(
    cell: int, size: int, steps: int, called: list[str]
) -> None:
    pixels = image(size, seed=3)
    expected, found = superpixels._by_products(pixels, cell, 10.0, steps), kmeans(pixels, cell, 10.0, steps)
    assert called == ["kmeans"]
    assert torch.equal(found.label, expected.label)
    assert torch.equal(found.association, expected.association)
    if size < 20:
        assert found.label[1].tolist() == slow_kmeans(pixels[1], cell, 10.0, steps)
        assert torch.equal(kmeans(pixels / 255, cell, 10.0, steps).label, found.label)


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
    assert torch.equal(fit, one_hot(label, cell))


@interpreted
def test_superpixels_by_a_kernel_break_ties_and_keep_centres_without_pixels(called: list[str]) -> None:
    uniform = torch.full((1, 3, 9, 9), 77, dtype=torch.uint8)
    uniform[..., 4, 4] = 0
    found = kmeans(uniform, 3, 0.0, 1).label  # place counts nothing
    assert found[0, 0, ::3].tolist() == [0, 0, 1], "the lower number of the cells that have its colour"
    assert torch.equal(found, superpixels._by_products(uniform, 3, 0.0, 1).label)
    generator = torch.Generator().manual_seed(364)  # one centre loses its last pixel
    noise = torch.randint(0, 256, (1, 3, 9, 9), generator=generator, dtype=torch.uint8)
    assert kmeans(noise, 3, 1.0, 5).label[0].tolist() == slow_kmeans(noise[0], 3, 1.0, 5)
    assert called == ["kmeans"] * 2
    with pytest.raises(RuntimeError, match="don't multiply up"):
        kmeans(noise[..., :6], 3, 1.0, 1)
    assert len(called) == 2, "images are squares"


@interpreted
@pytest.mark.parametrize(("patches", "number"), [(29, 9), (7, 6), (5, 1), (600, 300), (6, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_best_patches_are_kept_and_the_first_of_equal_ones(
    patches: int, number: int, dtype: torch.dtype, called: list[str]
) -> None:
    score = torch.randint(-2, 3, (2, 3, patches)).to(dtype)
    score[0, 0] = torch.randn(patches)  # no ties
    score[1, 0] = torch.zeros(patches) * (-1) ** torch.arange(patches)  # of either sign
    score[0, 1, :5] = torch.tensor([torch.inf, -torch.inf, torch.nan, torch.inf, -torch.inf])
    score[0, 1, 2].neg_()  # the sign of NaN
    found = hard_topk(score, number)
    assert called == ["best"] * (number < patches)
    assert found.dtype == dtype
    for i, j in product(range(2), range(3)):
        values = score[i, j].nan_to_num(nan=torch.inf, posinf=1e4, neginf=-1e4).tolist()
        order = sorted(range(patches), key=lambda at: (-values[at], at))
        assert found[i, j].nonzero().flatten().tolist() == sorted(order[:number])


@interpreted
@pytest.mark.parametrize("stretch", [True, False])
def test_scores_and_selection_of_a_kernel_are_those_of_a_loop(stretch: bool) -> None:
    from grainline.kernels.best import selected

    n, t, patches, number = 3, 5, 11, 4
    near, length, base = torch.randn(n, t, patches), torch.rand(n, patches) + 0.5, torch.rand(n, patches)
    for x in (near, length, base):  # equal patches
        x[..., [5, 7, 8]] = x[..., 2:3]
    near[:, 1] = 1.0
    score, keep = selected(near, length, base, 0.4, stretch, number)
    for i, j in product(range(n), range(t)):
        cosine = (near[i, j].double() / length[i]).tolist()
        low, high = min(cosine), max(cosine)
        wide = [(x - low) / (high - low + 1e-8) if stretch else x for x in cosine]
        expected = [float(base[i, at]) + 0.4 * wide[at] for at in range(patches)]
        assert score[i, j].tolist() == pytest.approx(expected, abs=1e-6)
        values = score[i, j].tolist()
        order = sorted(range(patches), key=lambda at: (-values[at], at))
        assert keep[i, j].nonzero().flatten().tolist() == sorted(order[:number])
        assert len(set(values)) == patches - 3


@interpreted
@pytest.mark.parametrize("changes", [{}, {"stretch": False}, {"branches": "joint"}, {"beta": 0.5}], ids=str)
def test_selection_by_a_kernel_is_that_by_torch(changes: dict[str, Any], called: list[str]) -> None:
    selector, (images, texts) = made(dtype=torch.float32, **changes), sides(dtype=torch.float32)
    side, text_side = selector.load_side(images), selection_texts(texts)
    sparse = text_side.query, text_side.item
    called.clear()
    with torch.no_grad():
        found = selector.choose(side, *sparse, selector.top)
        assert called == ["selected"]
        expected = selector.choose(side, *sparse, lambda score, *_: selection._by_topk(score, 6))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(found[1], expected[1])
    assert called == ["selected"]
    constant = selector.choice.beta == 0.5  # else the predictor learns, and so the score has a gradient
    selector.choose(selector.image_side(images, selector.top), *sparse, selector.top)
    assert called[-1] == ("selected" if constant else "best")


@interpreted
def test_scores_with_selection_by_a_kernel_are_those_by_torch(
    called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    selector, (images, texts) = made(dtype=torch.float32), sides(dtype=torch.float32)
    found = scoring.score(selector, images, texts)
    assert {"best", "selected", "matched"} == set(called)
    monkeypatch.setattr(launch, "use", lambda _: False)
    torch.testing.assert_close(found, scoring.score(selector, images, texts), rtol=1e-5, atol=1e-5)


@interpreted
@pytest.mark.parametrize("plus", [True, False])
@pytest.mark.parametrize(("n", "t", "slots", "patches"), [(2, 3, 5, 7), (1, 40, 4, 70), (2, 1, 1, 130)])
def test_norms_of_a_kernel_are_those_of_a_loop(n: int, t: int, slots: int, patches: int, plus: bool) -> None:
    from grainline.kernels.best import norms

    weight, more = torch.rand(n, slots, patches).half(), torch.randn(n, slots * plus, patches).half()
    keep, total = (torch.rand(n, t, patches) < 0.5).half(), torch.rand(n, t, slots)
    basis = torch.randn(n, patches, patches).tril().half()
    found = norms(weight, keep, basis, more, total)
    for i, j, c in product(range(n), range(t), range(slots)):
        token = (weight[i, c] * keep[i, j]).double() @ basis[i].double()
        token += total[i, j, c].double() * more[i, c].double() if plus else 0.0
        assert float(found[i, j, c]) == pytest.approx(float(token.norm()), rel=1e-5, abs=1e-6)


@interpreted
@pytest.mark.parametrize("branches", ["both", "sparse", "joint"])
def test_scores_in_half_precision_by_kernels_are_those_by_torch(
    branches: str, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    selector, (images, texts) = made(branches, torch.float32), sides(dtype=torch.float32)
    given = selector.load_side(images), selection_texts(texts), selector.top, True
    found = scoring.scores(selector, *given)
    assert "norms" in called
    monkeypatch.setattr(launch, "use", lambda _: False)
    torch.testing.assert_close(found, scoring.scores(selector, *given), rtol=2e-3, atol=2e-3)


@interpreted
@pytest.mark.parametrize("matching", ["both", "mean", "topk"])
@pytest.mark.parametrize(("patches", "length", "leaky"), [(9, 7, True), (3, 2, False), (20, 33, False)])
def test_scores_of_finds_by_a_kernel_are_those_by_torch(
    matching: Any, patches: int, length: int, leaky: bool, called: list[str]
) -> None:
    relevance = selection.Relevance(5, matching, leaky)
    for network in (relevance.patches, relevance.words):
        if network is not None:
            torch.nn.init.normal_(network[-1].weight)
    cosine = torch.randn(3, 4, patches, length)
    weight, words = (torch.rand(3, 4, patches) < 0.6).float(), torch.rand(1, 4, length) < 0.6
    weight[..., 1], words[0, 1] = 1.0, False  # a text without words
    with torch.no_grad():
        found = relevance(cosine, weight, words)
        assert called == ["matched"]
        torch.testing.assert_close(found, relevance._by_torch(cosine, weight, words), rtol=1e-5, atol=1e-5)
        alone = relevance(cosine[1, 2], weight[1, 2], words[0, 2])
    torch.testing.assert_close(alone, found[1, 2])
    relevance(cosine, weight, words)
    assert called == ["matched"] * 2, "torch has the gradients"


@interpreted
def test_finds_of_a_kernel_are_those_of_a_loop() -> None:
    from grainline.kernels.best import matched

    cosine = torch.randint(-3, 4, (6, 5, 4)).float()  # with ties
    weight, words = (torch.rand(6, 5) < 0.5).float(), torch.rand(6, 4) < 0.5
    weight[:, 3], words[:, 0] = 1.0, True
    means, of_patches, of_words = matched(cosine, weight, words, 3, 0.5)
    for i in range(6):
        real, spoken = weight[i].nonzero().flatten().tolist(), words[i].nonzero().flatten().tolist()
        x = [[c if c > 0 else c / 2 for c in row] for row in cosine[i].tolist()]
        patch = sorted((max(x[p][m] for m in spoken) for p in real), reverse=True)
        word = sorted((max(x[p][m] for p in real) for m in spoken), reverse=True)
        assert means[i].tolist() == pytest.approx([sum(patch) / len(patch), sum(word) / len(word)])
        assert of_patches[i].tolist() == (patch + 3 * patch[-1:])[:3]
        assert of_words[i].tolist() == (word + 3 * word[-1:])[:3]
