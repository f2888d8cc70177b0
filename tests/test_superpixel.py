"""Superpixels: the contract, pooling over them, k-means, and the network."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from grainline.encoders.superpixels import SFCN, SuperpixelConfig, Superpixels, folded, read_sfcn
from grainline.errors import UserError
from grainline.nn.superpixels import (
    connected,
    hard,
    inside,
    kmeans,
    lab,
    label_of,
    neighbour_of,
    pool_cells,
    square_grid,
)
from grainline.weights import load_weights, save_weights


def some_labels(number: int, size: int, cell: int, seed: int = 0) -> Tensor:
    """Labels at random under the contract."""
    weight = torch.rand((number, 9, size, size), generator=torch.Generator().manual_seed(seed))
    return label_of((weight * inside(size, cell)).argmax(1), cell)


def slow_pool(features: Tensor, label: Tensor, cell: int) -> tuple[Tensor, Tensor]:
    """The docstring of `pool_cells`, pixel by pixel."""
    number, size = label.shape[0], label.shape[-1]
    stride, cells = size // features.shape[-1], (size // cell) ** 2
    total = torch.zeros(number, cells, features.shape[1], dtype=features.dtype)
    mass = torch.zeros(number, cells, dtype=features.dtype)
    for n, y, x in product(range(number), range(size), range(size)):
        total[n, label[n, y, x]] += features[n, :, y // stride, x // stride]
        mass[n, label[n, y, x]] += 1
    return total / mass[..., None].clamp(min=1), mass


def test_neighbours_are_numbered_row_by_row() -> None:
    size, cell = 12, 4
    label = torch.full((1, size, size), 4)
    expected = [[8, 7, 6], [5, 4, 3], [2, 1, 0]]  # the middle cell, as seen from each of the nine
    actual = neighbour_of(label, cell)
    for row in range(3):
        for column in range(3):
            corner = actual[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            assert (corner == expected[row][column]).all()


@pytest.mark.parametrize(
    ("size", "cell", "side"), [(12, 4, 12), (12, 4, 6), (12, 4, 3), (8, 8, 2), (12, 6, 2)]
)
def test_pooling_is_the_mean_over_pixels(size: int, cell: int, side: int) -> None:
    features = torch.randn(2, 5, side, side, dtype=torch.float64, requires_grad=True)
    label = some_labels(2, size, cell)
    pooled, slow = pool_cells(features, label, cell), slow_pool(features, label, cell)
    torch.testing.assert_close(pooled.tokens, slow[0])
    assert torch.equal(pooled.mass, slow[1])
    along = torch.randn_like(pooled.tokens)
    torch.testing.assert_close(
        *(torch.autograd.grad((x * along).sum(), features) for x in (pooled[0], slow[0]))
    )


def test_pooling_sums_in_full_precision() -> None:
    features, label = torch.randn(1, 3, 6, 6), some_labels(1, 12, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = pool_cells(features, label, 4).tokens
    torch.testing.assert_close(actual, pool_cells(features, label, 4).tokens, atol=0, rtol=0)


def test_an_empty_superpixel_has_no_mass_and_no_token() -> None:
    label = square_grid(torch.zeros(1, 3, 12, 12), 4).clone()
    label[label == 4] = 1
    actual = pool_cells(torch.ones(1, 2, 6, 6), label, 4)
    assert actual.mass[0].tolist() == [16, 32, 16, 16, 0, 16, 16, 16, 16]
    assert (actual.tokens[0, 4] == 0).all()
    assert (actual.tokens[0, :4] == 1).all()


def test_the_square_grid_gives_plain_means_of_cells() -> None:
    cells = square_grid(torch.zeros(2, 3, 24, 24, dtype=torch.uint8), 8)
    assert cells.dtype == torch.int64
    assert cells[1, ::8, ::8].flatten().tolist() == list(range(9))
    features = torch.randn(2, 4, 12, 12)
    mean = features.unflatten(2, (3, 4)).unflatten(4, (3, 4)).mean((3, 5)).flatten(2).mT
    torch.testing.assert_close(pool_cells(features, cells, 8).tokens, mean, atol=1e-5, rtol=0)


def test_a_map_that_does_not_fit_the_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="side 5"):
        pool_cells(torch.zeros(1, 1, 5, 5), torch.zeros(1, 12, 12).long(), 4)
    with pytest.raises(ValueError, match="cells of 4"):
        pool_cells(torch.zeros(1, 1, 2, 2), torch.zeros(1, 12, 12).long(), 4)


def image(size: int, seed: int = 0) -> Tensor:
    """A few flat patches under noise: [2, 3, size, size] uint8."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.rand((2, 3, 5, 5), generator=generator)
    x = torch.nn.functional.interpolate(flat, size) + 0.03 * torch.randn(
        (2, 3, size, size), generator=generator
    )
    return (x.clamp(0, 1) * 255).to(torch.uint8)


def assert_contract(label: Tensor, size: int, cell: int) -> None:
    """What every way of making superpixels promises."""
    assert label.dtype == torch.int64
    assert label.shape[1:] == (size, size)
    neighbour = neighbour_of(label, cell)
    assert ((neighbour >= 0) & (neighbour <= 8)).all()
    assert torch.equal(label_of(neighbour, cell), label)
    assert inside(size, cell).expand(len(neighbour), -1, -1, -1).gather(1, neighbour[:, None]).all()


def slow_kmeans(pixels: Tensor, cell: int, compactness: float, steps: int) -> list[list[int]]:
    """The docstring of `kmeans` for one image, pixel by pixel, in float64: a label for each."""
    far = torch.full((9, *pixels.shape[1:]), torch.inf, dtype=torch.float64)
    colour = lab(pixels[None].double() / 255)[0].double()
    size, grid = pixels.shape[-1], pixels.shape[-1] // cell
    scale = compactness / cell

    def feature(y: int, x: int) -> Tensor:
        return torch.cat([colour[:, y, x], torch.tensor([y * scale, x * scale], dtype=torch.float64)])

    places = list(product(range(size), repeat=2))
    own = {(y, x): [(y // cell, x // cell)] for y, x in places}
    centres: dict[tuple[int, int], Tensor] = {}
    chosen = {place: own[place][0] for place in places}
    for step in range(steps + 1):
        for home in product(range(grid), repeat=2):
            local = [feature(*place) for place in places if chosen[place] == home]
            if local:
                centres[home] = torch.stack(local).mean(0)
        if step == steps:
            break
        for y, x in places:
            near = [(y // cell + a // 3 - 1, x // cell + a % 3 - 1) for a in range(9)]
            for a, home in enumerate(near):
                if home in centres:
                    far[a, y, x] = (feature(y, x) - centres[home]).square().sum()
            chosen[y, x] = near[int(far[:, y, x].argmin())]
    label = [[grid * chosen[y, x][0] + chosen[y, x][1] for x in range(size)] for y in range(size)]
    return slow_connected(label, (-far).tolist(), cell)


Maps = list[list[int]]


def slow_pieces(label: Maps) -> list[tuple[int, list[tuple[int, int]]]]:
    """Label and pixels of each piece, by flood fill; the first pixel of a piece, row by row, comes first."""
    size, out = len(label), []
    left = dict.fromkeys(product(range(size), repeat=2))
    while left:
        piece = [next(iter(left))]
        del left[piece[0]]
        for y, x in piece:
            for place in ((y - 1, x), (y, x - 1), (y, x + 1), (y + 1, x)):
                if place in left and label[place[0]][place[1]] == label[y][x]:
                    piece.append(place)
                    del left[place]
        out.append((label[piece[0][0]][piece[0][1]], piece))
    return out


def slow_connected(label: Maps, fit: list[list[list[float]]], cell: int) -> Maps:
    """The docstring of `connected` for one image: label [S][S], fit [9][S][S]."""
    size, grid = len(label), len(label) // cell
    largest: dict[int, list[tuple[int, int]]] = {}
    for own, piece in slow_pieces(label):
        if len(piece) > len(largest.get(own, ())):
            largest[own] = piece
    out = {place: own for own, piece in largest.items() for place in piece}
    while True:
        ring = {}
        for y, x in set(product(range(size), repeat=2)) - out.keys():
            best = (-float("inf"), 0)
            for place in ((y - 1, x), (y, x - 1), (y, x + 1), (y + 1, x)):
                own = out.get(place, -1)
                down, across = own // grid - y // cell + 1, own % grid - x // cell + 1
                if own >= 0 and 0 <= down <= 2 and 0 <= across <= 2:
                    best = max(best, (fit[3 * down + across][y][x], -own))
                    ring[y, x] = -best[1]
        if not ring:
            return [[out.get((y, x), label[y][x]) for x in range(size)] for y in range(size)]
        out |= ring


def some_fits(number: int, cell: int, grid: int, values: int, smooth: int = 1) -> Tensor:
    """[N, 9, S, S] >= 1 inside the image, else 0: so many values, whose means over squares are taken"""
    draw = torch.Generator().manual_seed(grid + values)
    fit = torch.randint(1, values + 1, (number, 9, cell * grid, cell * grid), generator=draw).float()
    mean = torch.nn.functional.avg_pool2d(fit, smooth, 1, smooth // 2, count_include_pad=False)
    return mean * inside(cell * grid, cell)


FITS = pytest.mark.parametrize(
    ("cell", "grid", "values", "smooth"),
    [(2, 4, 2, 1), (3, 1, 9, 1), (3, 2, 999, 3), (4, 3, 3, 1), (5, 4, 999, 1), (8, 3, 999, 5)],
)


@FITS
def test_superpixels_are_connected_as_by_flood_fill(cell: int, grid: int, values: int, smooth: int) -> None:
    fit = some_fits(3, cell, grid, values, smooth)
    label = hard(fit, cell)
    actual = connected(label, fit, cell)
    for i in range(3):
        assert actual[i].tolist() == slow_connected(label[i].tolist(), fit[i].tolist(), cell)
        assert torch.equal(connected(label[i : i + 1], fit[i : i + 1], cell)[0], actual[i])
    assert torch.equal(actual, connected(actual, fit, cell))


def test_pieces_join_what_they_touch_and_fit_best() -> None:
    label = square_grid(torch.zeros(1, 3, 12, 12), 4).clone()
    fit = torch.nn.functional.one_hot(neighbour_of(label, 4), 9).movedim(3, 1).float()
    assert torch.equal(connected(label, fit, 4), label), "nothing changes"
    assert connected(label[:0], fit[:0], 4).shape == (0, 12, 12)
    label[0, 5, 5] = 0  # alone in the middle cell
    label[0, 9, 8:] = 4  # a row apart of the last cell; it touches 7 and 8
    label[0, 8, 8:] = 5  # and a row between them
    expected = square_grid(torch.zeros(1, 3, 12, 12), 4).clone()
    expected[0, 8, 8:] = 5
    assert torch.equal(connected(label, fit, 4), expected)
    bent = torch.tensor([[[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]])
    assert torch.equal(connected(bent, torch.zeros(1, 9, 4, 4), 2), bent), "one piece around another"


def test_superpixels_of_photographs_are_one_piece_each() -> None:
    actual = kmeans(image(64, seed=1), 8)
    for one in actual.tolist():
        numbers = [own for own, _ in slow_pieces(one)]
        assert len(numbers) == len(set(numbers)) > 30


@pytest.mark.parametrize(
    ("rgb", "expected"),
    [  # by the formulas of CIE for sRGB under D65
        ((255, 255, 255), (100.0, 0.0, 0.0)),
        ((0, 0, 0), (0.0, 0.0, 0.0)),
        ((255, 0, 0), (53.2408, 80.0925, 67.2032)),
        ((0, 255, 0), (87.7347, -86.1827, 83.1793)),
        ((0, 0, 255), (32.2970, 79.1875, -107.8602)),
        ((119, 119, 119), (50.0344, 0.0, 0.0)),
        ((5, 5, 5), (1.3709, 0.0, 0.0)),  # on the straight parts of both curves
    ],
)
def test_lab(rgb: tuple[int, int, int], expected: tuple[float, float, float]) -> None:
    pixels = torch.tensor(rgb, dtype=torch.uint8).view(1, 3, 1, 1)
    for x in (pixels, pixels.float() / 255):
        torch.testing.assert_close(lab(x).flatten(), torch.tensor(expected), atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("cell", "compactness", "steps"), [(4, 10.0, 1), (4, 10.0, 4), (4, 40.0, 3), (8, 2.0, 4)]
)
def test_kmeans_is_the_loop_over_pixels(cell: int, compactness: float, steps: int) -> None:
    pixels = image(24, seed=3)
    actual = kmeans(pixels, cell, compactness, steps)
    assert_contract(actual, 24, cell)
    assert actual[0].tolist() == slow_kmeans(pixels[0], cell, compactness, steps)
    assert actual[1].tolist() == slow_kmeans(pixels[1], cell, compactness, steps)
    assert not torch.equal(actual, square_grid(pixels, cell))


def test_kmeans_of_a_uniform_image_is_the_square_grid() -> None:
    pixels = torch.full((1, 3, 24, 24), 77, dtype=torch.uint8)
    actual = kmeans(pixels, 4)
    assert_contract(actual, 24, 4)
    assert torch.equal(actual, square_grid(pixels, 4))


def test_equal_distances_go_to_the_lower_number() -> None:
    pixels = torch.full((1, 3, 9, 9), 77, dtype=torch.uint8)
    pixels[..., 4, 4] = 0  # the middle of nine; both kinds of pixel are as far from centres on either side
    association = torch.zeros(1, 9, 4, 4)
    association[:, [3, 5, 7]] = 1 / 3
    assert (neighbour_of(hard(association, 2), 2)[..., 2:, 2:] == 3).all()
    actual = kmeans(pixels, 3, compactness=1e-6, steps=1)  # place counts next to nothing, and colours tie
    assert_contract(actual, 9, 3)
    corner = neighbour_of(actual, 3)[0, 0, 0]
    assert corner == 4  # 0 to 3 lie outside, and 4 comes before 5 and 7, which have its colour


def test_a_centre_without_pixels_keeps_its_place() -> None:
    pixels = torch.zeros(1, 3, 12, 12, dtype=torch.uint8)
    pixels[..., :4] = (
        255  # the middle is grey on average, its pixels are black or white as the cells beside it
    )
    pixels[..., 4:8, 4:8] = torch.tensor([[0, 255], [255, 0]], dtype=torch.uint8).repeat(2, 2)
    actual = kmeans(pixels, 4, compactness=1.0, steps=4)
    assert_contract(actual, 12, 4)
    mass = pool_cells(torch.ones(1, 1, 12, 12), actual, 4).mass
    assert (mass == 0).any()
    assert actual[0].tolist() == slow_kmeans(pixels[0], 4, 1.0, 4)
    # Here one moves, then loses its last pixel, then wins some from where it had moved to.
    generator = torch.Generator().manual_seed(364)
    noise = torch.randint(0, 256, (1, 3, 9, 9), generator=generator, dtype=torch.uint8)
    assert kmeans(noise, 3, 1.0, 5)[0].tolist() == slow_kmeans(noise[0], 3, 1.0, 5)


def test_many_images_are_each_as_they_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.nn.superpixels.CHUNK", 5)
    pixels = torch.cat([image(16, seed) for seed in range(6)])
    actual = kmeans(pixels, 8, steps=3)
    assert len(actual) == 12
    for i in range(12):
        assert torch.equal(actual[i], kmeans(pixels[i : i + 1], 8, steps=3)[0])


def test_images_in_numbers_of_either_kind_have_the_same_superpixels() -> None:
    pixels = image(16)
    assert torch.equal(kmeans(pixels, 4), kmeans(pixels.float() / 255, 4))


# The network


def some_network(seed: int = 0, *, norm: bool = True) -> SFCN:
    """Weights at random, and normalisations that have seen something."""
    torch.manual_seed(seed)
    network = SFCN(norm=norm)
    for x in network.parameters():
        if x.dim() == 4:
            torch.nn.init.kaiming_normal_(x)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for name in ("running_mean", "bias"):
                torch.nn.init.normal_(getattr(module, name), std=0.3)
            for name in ("running_var", "weight"):
                torch.nn.init.uniform_(getattr(module, name), 0.5, 2.0)
    return network.eval()


def published(network: SFCN) -> dict[str, Tensor]:
    """The state dict as SpixelNet has it, with the heads that only its training reads."""
    out: dict[str, Tensor] = {}
    for name, x in network.state_dict().items():
        kind, *rest = name.split(".")
        if kind == "head":
            out[f"pred_mask0.{rest[0]}"] = x
            continue
        place = "" if "grow" in rest else ("1" if "norm" in rest else "0")
        if kind == "down":
            out[f"conv{rest[0]}{'ab'[int(rest[1])]}.{place}.{rest[-1]}"] = x
        elif place:
            out[f"conv{3 - int(rest[0])}_1.{place}.{rest[-1]}"] = x
        else:
            out[f"deconv{3 - int(rest[0])}.0.{rest[-1]}"] = x
    for head, width in ((3, 128), (2, 64), (1, 32)):
        out |= {
            f"pred_mask{head}.weight": torch.zeros(9, width, 3, 3),
            f"pred_mask{head}.bias": torch.zeros(9),
        }
    return out


def save(path: Path, state: dict[str, Tensor]) -> Path:
    torch.save({"arch": "SpixelNet1l_bn", "state_dict": state}, path)
    return path


def test_the_network_is_the_published_one() -> None:
    network = SFCN(norm=True)
    convolutions = 2_267_321  # weights of 14 convolutions, 4 transposed ones with biases, and the head
    assert sum(x.numel() for x in network.parameters()) == convolutions + 2 * (2 * 496 + 240)
    with torch.no_grad():
        out = network.eval()(torch.rand(2, 3, 48, 32))
    assert out.shape == (2, 9, 48, 32)
    assert len(published(network)) == 14 * 6 + 4 * 2 + 2 + 6
    assert [tuple(published(network)[f"conv{i}a.0.weight"].shape) for i in (0, 4)] == [
        (16, 3, 3, 3),
        (256, 128, 3, 3),
    ]


@pytest.mark.parametrize("norm", [True, False])
def test_a_published_file_gives_the_same_network(norm: bool, tmp_path: Path) -> None:
    network, x = some_network(norm=norm), torch.rand(1, 3, 32, 32)
    actual = read_sfcn(save(tmp_path / "spixel.tar", published(network)))
    with torch.no_grad():
        assert torch.equal(actual(x), network(x))
        torch.testing.assert_close(folded(actual)(x), network(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda state: state | {"conv9a.0.weight": torch.zeros(1)}, r"1 unknown \(down.9.0.conv.weight\)"),
        (lambda state: state | {"down.0.0.conv.weight": torch.zeros(1)}, "1 unknown"),
        (lambda state: state | {"pred_mask0.bias": torch.zeros(4)}, "1 of another form .head.bias"),
        (lambda state: {k: x for k, x in state.items() if "deconv2" not in k}, "2 missing"),
    ],
)
def test_other_files_are_refused(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], complaint: str, tmp_path: Path
) -> None:
    path = save(tmp_path / "x.pth", change(published(SFCN(norm=True))))
    with pytest.raises(UserError, match=complaint):
        read_sfcn(path)


def test_the_network_gives_a_pixel_to_the_best_neighbour_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    made, logits = some_superpixels("sfcn", 48), torch.randn(2, 9, 48, 48)
    monkeypatch.setattr(made.network, "forward", lambda _: logits)
    actual = made(image(48))
    assert_contract(actual, 48, 16)
    assert neighbour_of(actual, 16)[0, 0, 0] == [4, 5, 7, 8][int(logits[0, [4, 5, 7, 8], 0, 0].argmax())]
    logits.zero_()
    assert (neighbour_of(made(image(48)), 16)[0, 16:32, 16:32] == 0).all()


def test_a_model_keeps_the_network_in_its_own_weights(tmp_path: Path) -> None:
    network, pixels = some_network(), image(32)
    cfg = SuperpixelConfig(kind="sfcn", checkpoint=str(save(tmp_path / "x.pth", published(network))))
    made = Superpixels(cfg, 32)
    made.fill(Path(cfg.checkpoint or ""))
    assert not list(made.parameters())
    actual = made(pixels)
    assert_contract(actual, 32, 16)
    with torch.no_grad():
        exact = hard(network(pixels / 255).masked_fill(~inside(32, 16), -torch.inf), 16)
    assert float((actual == exact).double().mean()) > 0.9  # others are as near, but for bfloat16
    save_weights(tmp_path / "own.safetensors", made)
    (tmp_path / "x.pth").unlink()
    again = Superpixels(cfg, 32)
    load_weights(tmp_path / "own.safetensors", again)
    assert torch.equal(again(pixels), actual)


# All kinds


def some_superpixels(kind: str, size: int = 32) -> Superpixels:
    torch.manual_seed(1)
    if kind == "sfcn":
        made = Superpixels(SuperpixelConfig(kind="sfcn", checkpoint="none"), size)
        assert made.network is not None
        made.network.load_state_dict(folded(some_network()).state_dict())
        return made
    return Superpixels(SuperpixelConfig.model_validate({"kind": kind, "cell": 8}), size)


@pytest.mark.parametrize("kind", ["kmeans", "grid", "sfcn"])
def test_no_kind_learns_or_minds_its_surroundings(kind: str) -> None:
    made, pixels = some_superpixels(kind), image(32)
    expected = made(pixels)
    assert_contract(expected, 32, made.cfg.cell)
    given = (pixels / 255).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        actual = made.train()(given)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("kind", ["kmeans", "grid", "sfcn"])
def test_nothing_waits_for_the_device(kind: str) -> None:
    made = some_superpixels(kind)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:  # reading a value out of a tensor raises here
        label = made(mode.from_tensor(image(32)))
        pooled = pool_cells(torch.randn(2, 3, 16, 16), label, made.cfg.cell)
    assert label.shape == (2, 32, 32)
    assert pooled.tokens.shape == (2, (32 // made.cfg.cell) ** 2, 3)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"kind": "sfcn", "cell": 8, "checkpoint": "x"}, "cells of 16; cell is 8"),
        ({"kind": "sfcn"}, "wants checkpoint"),
        ({"checkpoint": "x"}, "kmeans has no weights"),
        ({"kind": "slic"}, "kmeans"),
        ({"cell": 1}, "greater than or equal to 2"),
        ({"iterations": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_make_no_superpixels(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        SuperpixelConfig.model_validate(values)


def test_cells_have_to_fill_the_image() -> None:
    with pytest.raises(UserError, match="220 pixels are no multiple of cells of 16"):
        Superpixels(SuperpixelConfig(), 220)
    with pytest.raises(ValueError, match="not of 32"):
        some_superpixels("grid")(image(16))
