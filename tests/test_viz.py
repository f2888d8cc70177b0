"""Heat on pixels, overlays, charts, and a report that is safe, self-contained and accessible."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from grainline.errors import UserError
from grainline.evaluate.result import Metric, Result, now, versions
from grainline.viz.charts import POINTS, Chart, Series, line_chart, ticks, whisker
from grainline.viz.heat import on_pixels
from grainline.viz.overlay import colours, limit_of, overlay, scale_bar
from grainline.viz.report import Example, HeatMap, Hit, render, write_report
from grainline.viz.style import STYLE

EVIL = """<script>alert("x")</script><img src='https://evil.example/x' onerror="y">&"""


# heat


def slow_bilinear(tokens: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Weights of the four nearest token centres, clamped at the rim."""
    rows, columns = tokens.shape
    out = np.empty(size)
    for i in range(size[0]):
        for j in range(size[1]):
            y = min(max((i + 0.5) * rows / size[0] - 0.5, 0), rows - 1)
            x = min(max((j + 0.5) * columns / size[1] - 0.5, 0), columns - 1)
            a, b = int(y), int(x)
            c, d = min(a + 1, rows - 1), min(b + 1, columns - 1)
            u, v = y - a, x - b
            out[i, j] = (1 - u) * ((1 - v) * tokens[a, b] + v * tokens[a, d]) + u * (
                (1 - v) * tokens[c, b] + v * tokens[c, d]
            )
    return out


def test_heat_on_pixels_equals_the_slow_interpolation() -> None:
    heat = torch.randn(3, 6)
    found = on_pixels(heat, (2, 3), (11, 14))
    for one, tokens in zip(found, heat, strict=True):
        np.testing.assert_allclose(
            one, slow_bilinear(tokens.view(2, 3).double().numpy(), (11, 14)), atol=1e-5
        )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_heat_of_one_token_falls_on_its_own_patch(mode: Any) -> None:
    heat = torch.zeros(1, 12)
    heat[0, 4 + 2] = -1.0  # row 1 of 3, column 2 of 4
    found = on_pixels(heat, (3, 4), (30, 40), mode)[0]
    place = divmod(int(found.argmin()), 40)
    assert 10 <= place[0] < 20
    assert 20 <= place[1] < 30
    assert found.min() < -0.9


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_even_heat_stays_even(mode: Any) -> None:
    torch.testing.assert_close(
        on_pixels(torch.full((1, 6), -0.25), (2, 3), (7, 9), mode), torch.full((1, 7, 9), -0.25)
    )


# overlay


def test_no_heat_leaves_the_grey_picture_and_signs_have_their_own_colour() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (4, 6, 3), dtype=np.uint8))
    heat = np.zeros((4, 6))
    heat[0, 0], heat[3, 5] = 2.0, -2.0
    out = np.asarray(overlay(picture, heat)).astype(int)
    grey = np.asarray(picture.convert("L")).astype(int)
    np.testing.assert_array_equal(out[1:3], np.repeat(grey[1:3, :, None], 3, axis=2))
    assert out[0, 0, 0] > out[0, 0, 2] + 100, "orange is for"
    assert out[3, 5, 2] > out[3, 5, 0] + 50, "blue is against"


def test_the_range_is_symmetric_and_strength_grows_with_the_size() -> None:
    heat = np.array([-1.0, -0.5, 0.0, 0.5, 1.0, 3.0])
    opacity = colours(heat, 1.0)[:, 3].astype(int)
    assert opacity[0] == opacity[4] == opacity[5]
    assert opacity[1] == opacity[3] < opacity[0]
    assert opacity[2] == 0
    assert limit_of(np.array([[0.1, -0.7]])) == 0.7
    assert limit_of(np.zeros((2, 2))) > 0
    assert np.isfinite(np.asarray(overlay(Image.new("RGB", (2, 2)), np.zeros((2, 2))))).all()


def test_a_common_limit_makes_maps_comparable() -> None:
    picture, heat = Image.new("RGB", (3, 3), "white"), np.full((3, 3), 0.2)
    assert np.asarray(overlay(picture, heat, 1.0)).min() > np.asarray(overlay(picture, heat)).min()


def test_the_colours_keep_their_order_for_readers_without_red_or_green() -> None:
    # Brettel-like simulation by Vienot: what a deuteranope sees of orange and blue still differs widely.
    to_lms = np.array(
        [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
    )
    blind = np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]])
    seen = np.linalg.inv(to_lms) @ blind @ to_lms
    bar = np.asarray(scale_bar()).astype(float)[0] @ seen.T
    assert np.abs(bar[0] - bar[-1]).max() > 90
    assert (np.abs(np.diff(bar, axis=0)).max(0) < 12).all(), "no false edges"


# charts


def test_ticks_are_round_and_cover_the_range() -> None:
    for low, high in (
        (0.0, 1.0),
        (-3.2, 7.9),
        (0.0013, 0.0018),
        (5, 123456),
        (2.0, 2.0),
        (0.0, 0.0),
        (-4, -4),
    ):
        found = ticks(low, high)
        assert found[0] <= low <= high <= found[-1]
        assert 3 <= len(found) <= 8
        assert np.allclose(np.diff(found), found[1] - found[0])


def test_a_long_series_keeps_its_peaks_as_a_band() -> None:
    y = np.ones(5000)
    y[1234] = 9.0
    drawn = line_chart(Chart("t", "x", "y", [Series("a", range(5000), y.tolist())]))
    line, band = drawn.split("<polyline")[1], drawn.split("<polygon")[1].split("/>")[0]
    top = min(float(point.split(",")[1]) for point in band.split('"')[1].split())
    assert len(line.split('points="')[1].split('"')[0].split()) == POINTS
    assert top < 40, "the peak of 9 stands near the upper end of the axis"


def test_points_that_are_not_finite_are_left_out_and_said_so() -> None:
    drawn = line_chart(
        Chart("t", "x", "y", [Series("a", [1, 2, 3, 4], [1.0, float("nan"), 2.0, float("inf")])])
    )
    assert "2 not finite" in drawn
    assert "nan" not in drawn
    assert "no finite values" in line_chart(Chart("t", "x", "y", [Series("a", [1], [float("nan")])]))


def test_a_single_point_is_visible() -> None:
    assert "<circle" in line_chart(Chart("t", "x", "y", [Series("a", [5], [0.5])]))


def test_whiskers_stand_in_the_order_of_their_numbers() -> None:
    drawn = whisker(0.5, 0.4, 0.7, 0.1, (0.0, 1.0))
    chance, value = float(drawn.split('x1="')[2].split('"')[0]), float(drawn.split('cx="')[1].split('"')[0])
    low, high = float(drawn.split('x1="')[3].split('"')[0]), float(drawn.split('x2="')[3].split('"')[0])
    assert chance < low < value < high
    assert whisker(2.0, 2.0, 2.0, 2.0, (0.0, 1.0)) == whisker(1.0, 1.0, 1.0, 1.0, (0.0, 1.0))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_and_lines_have_contrast_in_light_and_dark() -> None:
    light, dark, _ = STYLE.split("@media")
    for theme in (light, dark):
        values = dict(part.split(":") for part in theme.replace("{", ";").replace("}", ";").split(";") if "--" in part and part.count(":") == 1)  # noqa: E501  # fmt: skip
        values = {name.strip(): value.strip() for name, value in values.items()}
        grounds = [luminance(values[name]) for name in ("--ground", "--panel")]
        for name in ("--ink", "--soft", "--good", *(f"--s{i}" for i in range(6))):
            for ground in grounds:
                a, b = sorted((luminance(values[name]), ground))
                assert (b + 0.05) / (a + 0.05) >= 4.5, (name, theme)


# report


class Page(HTMLParser):
    """Everything that the tests ask of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "line", "circle", "polyline", "polygon"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def result(name: str = "text to image R@1") -> Result:
    metrics = (
        Metric(name, 0.342, 0.301, 0.384, 500, 0.002, 3, "share"),
        Metric("median rank", 3.0, 2.0, 3.5, 500, 250.5, 3, "rank"),
    )
    data = {"pictures": 500, "texts": 1000, "path": EVIL, "fingerprint": "f00"}
    return Result("retrieval", "plain", metrics, {"level": 0.95}, data, versions(), 0, now(), (EVIL,), {})


def page(text: str = "A red circle.") -> str:
    picture = Image.new("RGB", (300, 200), "red")
    hits = [Hit(picture, 0.5, False, text), Hit(picture, 0.25, True, text)]
    heat = [HeatMap(picture, text, 0.5)]
    return render(
        text,
        {text: text, "R@1": "34.2 %"},
        [Chart(text, text, text, [Series(text, [1, 2, 3], [3.0, 2.0, 1.0])])],
        [result(text)],
        [Example(text, hits, 2, 500, heat), Example(picture, [Hit(text, 0.5, True)], 1, 1000)],
    )


def test_nothing_is_loaded_from_anywhere() -> None:
    for text in ("A red circle.", EVIL):
        for tag, attributes in Page(page(text)).tags:
            assert tag not in ("script", "link", "iframe", "object", "embed", "base")
            assert "href" not in attributes
            assert (attributes.get("src") or "data:").startswith(
                "data:image/jpeg;base64,"
            ) or "src" not in attributes
            assert not any(name.startswith("on") for name in attributes)
        assert "url(" not in page(text)
        assert "@import" not in page(text)
    assert "default-src 'none'" in page()


def test_what_comes_from_data_is_text_wherever_it_stands() -> None:
    clean, evil = Page(page("plain words")), Page(page(EVIL))
    assert [tag for tag, _ in clean.tags] == [tag for tag, _ in evil.tags]
    assert [sorted(a) for _, a in clean.tags] == [sorted(a) for _, a in evil.tags]
    assert evil.words.count('<script>alert("x")</script>') >= 8
    assert not evil.open


def test_every_picture_has_a_text_and_every_drawing_is_named_or_hidden() -> None:
    tags = Page(page()).tags
    pictures = [a for tag, a in tags if tag == "img"]
    assert len(pictures) == 5
    assert all(a["alt"] for a in pictures)
    assert any("rank 2, the right picture" in (a["alt"] or "") for a in pictures)
    assert any("rank 1, a wrong picture" in (a["alt"] or "") for a in pictures)
    for attributes in (a for tag, a in tags if tag == "svg"):
        assert attributes.get("aria-hidden") == "true" or (
            attributes.get("role") == "img" and attributes.get("aria-label")
        )
    assert ("html", {"lang": "en"}) in tags


def test_table_headers_say_what_they_head() -> None:
    tags = Page(page()).tags
    heads = [a for tag, a in tags if tag == "th"]
    assert {a.get("scope") for a in heads} == {"col", "row"}
    assert sum(tag == "caption" for tag, _ in tags) == 1


def test_the_numbers_stand_in_the_page() -> None:
    words = Page(page()).words
    for part in ("34.2 %", "30.1 to 38.4 %", "0.20 %", "250.5", "right one at rank 2 of 500", "f00", "0.250"):
        assert part in words


def test_pictures_are_shrunk(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (1500, 2000, 3), dtype=np.uint8))
    write_report(tmp_path / "new" / "r.html", "t", {}, examples=[Example(noise, [Hit("a", 1.0, True)], 1, 2)])
    assert (tmp_path / "new" / "r.html").stat().st_size < 200_000
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["r.html"]


def test_a_report_that_cannot_be_written_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"^cannot write .*r\.html: .*; name a file in a folder you may write to$"
    ):
        write_report(tmp_path / "file" / "r.html", "t", {})
