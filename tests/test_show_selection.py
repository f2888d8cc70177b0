"""What SEPS and LAPS keep of an image, and what words find in it, against loops; and `show` of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from description_method import file
from indexes import photo, saved, tiny_model
from make import TINY
from PIL import Image
from runs import call, complaint
from test_seps import FINE, KINDS, decision, made, patch_scores, sides, unit
from test_viz import EVIL, Page

from grainline.config import override, parse
from grainline.evaluation.show_panels import selection_of, stays
from grainline.methods.laps import LAPS, LAPSConfig
from grainline.methods.seps import SEPS
from grainline.model import Model
from grainline.nn.patch_selection.selector import CLASS, REST, SLOT, Selection
from grainline.report.heatmap import DIM, scaled_pixels, selected_patches, shares
from grainline.types import Encoded, rows

Capture = pytest.CaptureFixture[str]
WAYS = [(x,) for x in KINDS] + [
    ("aggregation_ratio=null",),
    ("aggregation_ratio=null", "branches=dense"),
    ("use_rest=false", "use_cls=false"),
    ("keep_ratio=1.0", "leaky_cosine=true", "matching=mean"),
    ("image.pool=mean", "matching=topk"),
]


# What is kept, and what words find


def slowly(method: Any, a: Encoded, b: Encoded) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Of one pair: the decisions of each branch, [L], shares of patches in each token that is compared,
    [P, L], and the tokens themselves, [P, D].
    """
    s, v = method.selector, a.tokens[0]
    number, words = len(v), b.tokens[0][b.mask[0]]
    scores = patch_scores(method, a, words)
    kept = [decision(x, s.keep_number, None, a.image, b.item) for x in scores]
    made_of = []
    logits = None if s.slots is None else s.slots(v)
    for c in range(s.slot_number):
        share = torch.zeros(number).double()
        for d in kept:
            e = torch.stack([logits[c, i].exp() * d[i] for i in range(number)])
            share += e / e.sum() / len(kept)
        made_of.append(share)
    if s.slots is None:
        for i in range(number):
            if any(d[i] for d in kept):
                made_of.append(torch.eye(number)[i].double())
    spare = torch.zeros(number).double()
    for x, d in zip(scores, kept, strict=True):
        e = torch.stack([x[i].exp() * (1 - d[i]) for i in range(number)])
        spare += e / e.sum().clamp(min=1e-9) / len(kept)
    if s.choice.use_rest and s.keep_number < number:
        made_of.append(spare)
    tokens = torch.stack(made_of) @ v
    if a.extra.has_cls[0]:
        made_of.append(torch.zeros(number).double())
        tokens = torch.cat([tokens, a.extra.cls])
    return kept, torch.stack(made_of), tokens


def laps() -> LAPS:
    torch.manual_seed(0)
    return LAPS(parse(LAPSConfig, override(TINY, list(FINE)), "test")).double().eval()


@torch.no_grad()
def pairs(changes: tuple[str, ...]) -> tuple[SEPS | LAPS, Encoded, Encoded]:
    """A method with four images and a text beside each."""
    method = laps() if changes == ("laps",) else made(*changes)
    a, b = sides(method)
    return method, a, rows(rows(b, b.item >= 0), torch.arange(4))


@pytest.mark.parametrize("changes", [*WAYS, ("laps",)], ids=lambda x: "-".join(x))
def test_selections_and_matches_are_those_of_a_loop(changes: tuple[str, ...]) -> None:
    method, a, b = pairs(changes)
    with torch.no_grad():
        got = method.select_patches(a, b)
        for i in range(4):
            ours = rows(a, slice(i, i + 1)), rows(b, slice(i, i + 1))
            kept, made_of, tokens = slowly(method, *ours)
            by = [x for x in (got.by_text, got.by_description) if x is not None]
            assert [x[i].tolist() for x in by] == [(d > 0).tolist() for d in kept]
            assert (got.by_text is None) == (method.selector.choice.branches == "dense")
            assert (got.by_description is None) == (method.selector.choice.branches in ("sparse", "joint"))
            real = got.real[i]
            torch.testing.assert_close(got.shares[i][real], made_of, rtol=1e-9, atol=1e-9)
            words = unit(b.tokens[i][b.mask[i]])
            places = real.nonzero()[:, 0].tolist()
            for m, column in enumerate(got.words[i].nonzero()[:, 0].tolist()):
                cosines = [float(unit(token) @ words[m]) for token in tokens]
                best = max(range(len(cosines)), key=cosines.__getitem__)
                assert int(got.token[i, column]) == places[best]
                assert float(got.cosine[i, column]) == pytest.approx(cosines[best], abs=1e-9)


@pytest.mark.parametrize("changes", [*WAYS, ("laps",)], ids=lambda x: "-".join(x))
def test_what_is_shown_is_what_is_scored(changes: tuple[str, ...]) -> None:
    """The score that is shown is that of `score`, and the mean of finds is the term of the words in it."""
    method, a, b = pairs(changes)
    with torch.no_grad():
        got = method.select_patches(a, b)
        torch.testing.assert_close(got.score, method.score(a, b).diagonal())
        relevance = method.selector.relevance
        relevance.patches = relevance.words = None
        relevance.means = True
        means = method.score(a, b).diagonal()
        for i in range(4):
            named = got.words[i]
            count = (lambda x: torch.where(x < 0, 0.1 * x, x)) if relevance.leaky else (lambda x: x)
            words = count(got.cosine[i][named]).mean()
            is_cls = torch.tensor([kind == CLASS for kind in got.kind]).double()[:, None]
            tokens = unit((got.shares[i] @ a.tokens[i] + is_cls * a.extra.cls[i])[got.real[i]])
            each = count(tokens @ unit(b.tokens[i][b.mask[i]]).T).amax(1).mean()
            torch.testing.assert_close(words + each, means[i])


# What is drawn

GRID = 4
FIRST = np.zeros((GRID, GRID), bool)
FIRST[0, :3] = FIRST[1, 0] = True  # four patches
SECOND = np.zeros((GRID, GRID), bool)
SECOND[0, 1:] = SECOND[3, 3] = True  # four, two of them the same


def squared(folder: Path, side: int = 8) -> Image.Image:
    with Image.open(photo(folder / "square.png", 3)) as opened:
        return opened.convert("RGB").resize((side, side))


def middle(image: Image.Image, row: int, column: int, side: int = 40) -> np.ndarray:
    """The inner pixels of a patch, without the lines along its edges."""
    step = side // GRID
    return np.asarray(image)[
        row * step + 2 : (row + 1) * step - 2, column * step + 2 : (column + 1) * step - 2
    ]


def test_what_stays_is_clear_and_what_does_not_is_dark(tmp_path: Path) -> None:
    image = squared(tmp_path)
    plain = Image.fromarray(scaled_pixels(image, 40))
    canvas = selected_patches(image, FIRST, 40)
    for row, column in np.ndindex(GRID, GRID):
        ours, before = middle(canvas, row, column), middle(plain, row, column)
        if FIRST[row, column]:
            assert np.array_equal(ours, before)
        else:
            assert np.ptp(ours.astype(int), axis=-1).max() == 0, "grey"
            assert ours.max() <= DIM * 255 + 1
    edge = np.asarray(canvas)[5, 28:32]
    assert {tuple(pixel) for pixel in edge} >= {(0, 0, 0), (255, 255, 255)}, "a line around what stays"


def test_shares_of_a_token_are_orange_where_it_is_made_of(tmp_path: Path) -> None:
    image, share = squared(tmp_path), np.zeros((GRID, GRID))
    share[2, 1], share[0, 3] = 0.75, 0.25
    canvas = shares(image, share, 0.75, 40)
    bare = shares(image, np.zeros((GRID, GRID)), 0.75, 40)
    assert (np.asarray(bare) == scaled_pixels(image, 40)).all()
    for row, column in np.ndindex(GRID, GRID):
        same = (middle(canvas, row, column) == middle(bare, row, column)).all()
        assert same == (share[row, column] == 0)
    assert np.asarray(canvas)[20, 10:20].max() == 0, "the frame around the greatest share"
    assert np.asarray(canvas)[0, 30:40].max() > 0


def a_kept(**changes: Any) -> Selection:
    """One image of four patches with four words, the third of which is padding, and five tokens."""
    made_of = torch.tensor([[0.5, 0.5, 0, 0, 0], [0, 0.25, 0.75, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    got = Selection(
        torch.tensor([[True, True, False, False]]),
        torch.tensor([[False, True, True, False]]),
        torch.tensor([1.5]),
        [SLOT, SLOT, REST, CLASS],
        made_of[None, :, :-1],
        torch.ones(1, 4).bool(),
        torch.tensor([[True, True, False, True, True]]),
        torch.tensor([[1, 3, 0, 1, 2]]),
        torch.tensor([[0.5, 0.25, 0.0, 0.125, -0.5]]),
    )
    return got._replace(**changes)


def test_each_choice_that_there_is_has_its_panel(tmp_path: Path) -> None:
    image = squared(tmp_path)
    one, other, both = stays(a_kept(), image, (2, 2), joint=True)
    assert [x.words for x in (one, other)] == ["kept for the caption", "kept for the description"]
    assert one.image.tobytes() == selected_patches(image, np.array([[1, 1], [0, 0]], bool), 300).tobytes()
    assert other.image.tobytes() == selected_patches(image, np.array([[0, 1], [1, 0]], bool), 300).tobytes()
    assert both.below == "3 of 4 patches, 75 %"
    for gone, words in (
        ({"by_description": None}, "kept for caption and description, which choose by one score"),
        ({"by_text": None}, "kept for the description"),
    ):
        assert [panel.words for panel in stays(a_kept(**gone), image, (2, 2), joint=True)] == [words]
    (alone_,) = stays(a_kept(by_description=None), image, (2, 2), joint=False)
    assert alone_.words == "kept for the caption"
    assert alone_.below == "2 of 4 patches, 50 %"


# The command


def run(folder: Path, model: Model, *given: object) -> tuple[object, ...]:
    place = folder / "model"
    if not place.exists():
        saved(model, place)
    return ("show", place, photo(folder / "a.png", 1), photo(folder / "b.png", 2), *given)


def test_the_command_shows_selected_patches_with_captions_and_descriptions(
    tmp_path: Path, capsys: Capture
) -> None:
    model, png, html = tiny_model("seps"), tmp_path / "x.png", tmp_path / "x.html"
    named = file(tmp_path / "told.jsonl", {"a.png": f"The dog. {EVIL}", str(tmp_path / "b.png"): "The cat."})
    given = run(tmp_path, model, "--text", "A red dog.", EVIL, "--out", png, "--out", html)
    assert "a.png has none" in complaint(capsys, *given, "--descriptions", "long")
    assert "--descriptions" in complaint(capsys, *given)
    assert not html.exists()
    assert call(*given, "--descriptions", named) == 0
    page = Page(html.read_text())
    for part in ("kept for the caption", "kept for either of both", "Description: The dog. <script>"):
        assert page.words.count(part) >= 1
    assert "Description: The cat." in page.words
    assert page.words.count("Caption 2, score ") == 2
    alts = [attrs["alt"] for tag, attrs in page.tags if tag == "img"]
    assert all(alts)
    assert "full orange: 1 " in page.words
    asked = selection_of(model, model.cropped(tmp_path / "b.png"), ["A red dog."], "The cat.")
    assert f"Caption 1, score {float(asked.score[0]):.3f}: A red dog." in page.words
    with Image.open(png) as figure:
        assert figure.height > 1000
