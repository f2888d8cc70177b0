"""Heat on pixels, overlays, charts, and a report that is safe, self-contained and accessible."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import Markup
from PIL import Image

from grainline.errors import UserError
from grainline.evaluation.evaluate_model import metrics_html
from grainline.evaluation.result import Metric, Result, now, versions
from grainline.nn.upsample import contrast, on_grid, on_segments, place
from grainline.report.case import (
    Case,
    CaseImage,
    Panel,
    Row,
    SentenceScore,
    Table,
    cases_html,
    lead,
    look,
    marked,
    table_html,
)
from grainline.report.charts import POINTS, Chart, Series, charts, line_chart, ticks
from grainline.report.heatmap import colours, limit_of, overlay
from grainline.report.page import (
    TEMPLATES,
    MissingImage,
    Section,
    facts,
    macro,
    notes,
    render,
    render_page,
    summary,
    write_page,
)

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
    slow = [slow_bilinear(tokens.view(2, 3).double().numpy(), (11, 14)) for tokens in heat]
    np.testing.assert_allclose(on_grid(heat, (2, 3), (11, 14)), np.stack(slow), atol=1e-5)


def test_the_place_of_the_maximum_is_reported_in_words() -> None:
    words = "upper left", "top", "right", "centre", "lower left", "bottom"
    for spot, where in zip([(0, 0), (0, 4), (4, 8), (4, 4), (8, 0), (8, 5)], words, strict=True):
        heat = np.full((9, 9), -0.5)
        heat[spot] = 0.1
        assert place(heat) == f"strongest at the {where}"


# overlay


def test_no_heat_leaves_the_image_and_signs_have_their_own_colour() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (4, 6, 3), dtype=np.uint8))
    heat = np.zeros((4, 6))
    heat[0, 0], heat[3, 5] = 2.0, -2.0
    out = np.asarray(overlay(image, heat)).astype(int)
    np.testing.assert_array_equal(out[1:3], np.asarray(image)[1:3])
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


def contrast_by_loops(
    heat: list[list[float]], null: list[list[float]], real: list[bool]
) -> list[list[float]]:
    """The docstring of `contrast` in plain Python."""
    tokens = [j for j, one in enumerate(real) if one]

    def centred(row: list[float]) -> list[float]:
        mean = sum(row[j] for j in tokens) / len(tokens)
        return [row[j] - mean if real[j] else 0.0 for j in range(len(row))]

    own, others = [centred(row) for row in heat], [centred(row) for row in null]
    usual = [sum(row[j] for row in others) / len(others) for j in range(len(real))]
    peaks = []
    for n, row in enumerate(others):
        rest = [other for m, other in enumerate(others) if m != n]
        mean = [sum(other[j] for other in rest) / len(rest) for j in range(len(real))]
        peaks.append(max(abs(row[j] - mean[j]) for j in range(len(real))))
    reach = float(np.quantile(peaks, 0.8))
    return [[(row[j] - usual[j]) / reach if real[j] else 0.0 for j in range(len(real))] for row in own]


def test_contrast_is_that_of_the_loops() -> None:
    heat, null = torch.randn(3, 7, dtype=torch.float64) + 5, torch.randn(20, 7, dtype=torch.float64)
    real = torch.tensor([True] * 5 + [False, True])
    wanted = contrast_by_loops(heat.tolist(), null.tolist(), real.tolist())
    np.testing.assert_allclose(contrast(heat, null, real).numpy(), wanted, atol=1e-12)


def test_where_all_texts_have_one_map_there_is_no_contrast() -> None:
    level = 0.2 + torch.rand(16)
    null = level + 1e-8 * torch.randn(20, 16)
    heat = level + 1e-8 * torch.randn(3, 16)
    assert contrast(heat, null, torch.ones(16).bool()).abs().max() < 1
    assert contrast(level[None], level.expand(20, -1), torch.ones(16).bool()).abs().max() < 1
    with pytest.raises(UserError, match="16 other texts or more, and 15 were given"):
        contrast(heat, null[:15], torch.ones(16).bool())


def test_a_map_without_contrast_leaves_the_image_and_says_so() -> None:
    image, heat = Image.new("RGB", (30, 30), (10, 200, 90)), np.full((2, 30, 30), 0.9)
    heat[1, :10, :10] = 2.0
    sentences = [SentenceScore("a flat one", 0.5), SentenceScore("a corner", 0.5)]
    one = CaseImage(image, "p", sentences, heat, contrast=True)
    drawn = look(one, "a")
    assert "heat of &#39;a flat one&#39;: no contrast" in drawn
    assert "heat of &#39;a corner&#39;: strongest at the upper left" in drawn
    assert drawn.count('<small class="flat">no contrast</small>') == 1
    assert (np.asarray(one.over(heat[0])) == np.asarray(image)).all()
    assert (np.asarray(one.over(heat[1]))[:10, :10] != np.asarray(image)[:10, :10]).any()


# charts


def test_ticks_are_round_and_cover_the_range() -> None:
    ranges = [(0.0, 1.0), (-3.2, 7.9), (0.0013, 0.0018), (5, 123456), (2.0, 2.0), (0.0, 0.0), (-4, -4)]
    for low, high in [*ranges, (1e-14, 3e-14), (1e-12, 1.0000000000000002e-12), (-1e15, -1e15 + 0.25)]:
        marks = ticks(low, high)
        assert marks[0] <= low <= high <= marks[-1]
        assert 3 <= len(marks) <= 8
        assert np.allclose(np.diff(marks), marks[1] - marks[0])


def test_a_long_series_keeps_its_peaks_as_a_band() -> None:
    y = np.ones(5000)
    y[1234] = 9.0
    drawn = line_chart(Chart("t", "x", "y", [Series("a", range(5000), y.tolist())]))
    line, band = drawn.split("<polyline")[1], drawn.split("<polygon")[1].split("/>")[0]
    top = min(float(point.split(",")[1]) for point in band.split('"')[1].split())
    assert len(line.split('points="')[1].split('"')[0].split()) == POINTS
    assert top < 40, "the peak of 9 stands near the upper end of the axis"


def test_points_that_are_not_finite_are_left_out_and_reported() -> None:
    series = Series("a", [1, 2, 3, 4], [1.0, float("nan"), 2.0, float("inf")])
    drawn = line_chart(Chart("t", "x", "y", [series]))
    assert "2 not finite" in drawn
    assert "nan" not in drawn
    assert "no finite values" in line_chart(Chart("t", "x", "y", [Series("a", [1], [float("nan")])]))


# report


class Page(HTMLParser):
    """Everything that the tests ask of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.open: list[str] = []
        self.feed(str(text))  # plain, where it is Markup
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input", "line", "circle", "polyline", "polygon"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def result(name: str = "text to image R@1") -> Result:
    metrics = (
        Metric(name, 34.2, 30.1, 38.4, 500, 0.2, 3, "%"),
        Metric("median rank", 3.0, 2.0, 3.5, 500, 250.5, 3, "rank"),
    )
    data = {"images": 500, "texts": 1000, "path": EVIL, "fingerprint": "f00"}
    return Result("retrieval", "plain", metrics, {"level": 0.95}, data, versions(), 0, now(), (EVIL,), {})


def query(text: str, title: str, image: Any, cases: Markup) -> Markup:
    """A query of a search."""
    more: Any = {"match": "none", "tiles": True, "lines": [text]}
    return render(
        "query.html", query=text, title=title, image=image, words=text, why=text, cases=cases, **more
    )


def page(text: str = "A red circle.", other: str = "A blue circle.") -> str:
    """A page with every part there is; `text` stands wherever data or users have a say."""
    image, gone = Image.new("RGB", (300, 200), "red"), MissingImage(text)
    heat = np.stack([np.eye(200, 300), -np.ones((200, 300))])
    judged = [SentenceScore(text, 0.5, 0.01, "shows"), SentenceScore(text, 0.1, 0.9, "does not")]
    inside = [SentenceScore(text, 0.5, phrases=[SentenceScore(text, 0.25)])]
    phrased = CaseImage(image, text, inside, heat, left_out=text)
    whole, missing = CaseImage(image, text, judged, heat), CaseImage(gone, "", judged)
    bare = CaseImage(image, text, [judged[0]._replace(verdict="", p=None)])
    hits = [
        Panel("", image, "1. 0.500", alt=f"{text}, rank 1, a wrong image", right=False),
        Panel("", gone, "2. 0.400", alt=text, right=False),
        Panel("", image, "3. 0.250", alt=f"{text}, rank 3, the right image", right=True),
    ]
    match = macro("parts.html", "match_of", "sure", text)
    results = [Case(text, note=match, look=whole), Case(text, note=text, look=missing)]
    drawn = [Chart(text, text, text, [Series(text, [1, 2, 3], [3.0, 2.0, 1.0])])]
    ranks, head = "Right one at rank 3 of 500", "The sentences in the right image"
    examples = [
        Case(ranks, f"tied, {text}", quote=text, rows=[Row(hits)], look_title=head, look=whole),
        Case(ranks, text, quote=text, rows=[Row(hits)], look_title=head, look=bare),
        Case(text, image=image, alt=text, rows=[Row([Panel(text, None, "1. 0.500", right=True)])]),
        Case(ranks, text, quote=text, rows=[Row(hits, head=f"{text}\n{text}", large=True)], look=phrased),
    ]
    both = [(text, one) for one in marked(text, other)]
    pairs = [
        Case(lead(0.25), text, True, image=image, alt=text, texts=both),
        Case(lead(0.0), text, False, image=gone, alt=text, texts=[(text, text), (text, other)], note=text),
    ]
    drawing = line_chart(drawn[0])
    cells = Table(text, ("", text, text), [("1", text, text), (text, "a", text)], words=(1,))
    cases = [*examples, *pairs, Case(text, image=image, alt=text, chart=drawing, table=cells)]
    sections = [
        Section(text, metrics_html(result(text)) + charts(drawn), text),
        Section("Tables", table_html(cells)),
        Section("Examples", cases_html(cases, "t")),
        Section(text, query(text, f"{text}...", None, cases_html(results, "q1h"))),
        Section(text, query(text, text, image, cases_html([Case(text, look=CaseImage(image, text))], "q2h"))),
        Section(text, query(text, text, gone, Markup())),
        Section("Facts", facts({text: text}, text)),
    ]
    headline = summary({text: text, "R@1": "34.2 %\n30 to 40 %"}) + notes([text])
    return render_page(text, headline, sections, [text])


def test_nothing_is_loaded_from_anywhere() -> None:
    for text in ("A red circle.", EVIL):
        for tag, attributes in Page(page(text)).tags:
            assert tag not in ("script", "link", "iframe", "object", "embed", "base")
            assert (attributes.get("href") or "#").startswith("#")
            assert "src" not in attributes or str(attributes["src"]).startswith("data:image/jpeg;base64,")
            assert not any(name.startswith("on") for name in attributes)
        assert "url(" not in page(text)
        assert "@import" not in page(text)
    assert "default-src 'none'" in page()


def test_no_template_lets_a_text_through_as_html() -> None:
    for path in TEMPLATES.glob("*.html"):
        assert not re.search(r"\bsafe\b|autoescape", path.read_text()), path.name


def test_what_comes_from_data_is_text_wherever_it_stands() -> None:
    plain = "plain word " + "x" * len(EVIL)  # as long, so that it is shortened in the same places
    clean, evil = Page(page(plain)), Page(page(EVIL))
    assert [tag for tag, _ in clean.tags] == [tag for tag, _ in evil.tags]
    assert [sorted(a) for _, a in clean.tags] == [sorted(a) for _, a in evil.tags]
    assert evil.words.count('<script>alert("x")</script>') >= 30
    assert not evil.open


def test_every_image_has_a_text_and_every_drawing_is_named_or_hidden() -> None:
    tags = Page(page()).tags
    alts = [a["alt"] or "" for tag, a in tags if tag == "img"]
    assert len(alts) == 24
    assert all(alts)
    assert sum("rank 3, the right image" in alt for alt in alts) == 3
    assert sum("rank 1, a wrong image" in alt for alt in alts) == 3
    assert sum(alt == "heat of 'A red circle.': strongest at the upper left, shows it" for alt in alts) == 2
    assert sum(alt == "heat of 'A red circle.': the same everywhere, does not" for alt in alts) == 2
    for attributes in (a for tag, a in tags if tag == "svg"):
        assert attributes.get("aria-hidden") == "true" or (
            attributes.get("role") == "img" and attributes.get("aria-label")
        )
    assert ("html", {"lang": "en"}) in tags


def test_each_sentence_is_a_radio_button_with_its_own_map_and_the_image_alone_is_chosen() -> None:
    tags = Page(page()).tags
    radios = [a for tag, a in tags if tag == "input"]
    groups = {a["name"] for a in radios}
    assert len(radios) == 3 * 3
    assert len(groups) == 3
    for group in groups:
        assert ["checked" in a for a in radios if a["name"] == group] == [True, False, False]
    assert sum(a.get("class") == "over" for _, a in tags) == 6


def test_what_an_image_does_not_show_is_reported_in_words_and_in_shape() -> None:
    judged = [
        SentenceScore("A dog.", 0.5, 0.5, verdict) for verdict in ("shows", "does not", "cannot tell", "")
    ]
    drawn = look(CaseImage(MissingImage("not there"), "", judged), "a")
    assert re.findall(r"<li class=.(\w*).>", drawn) == ["yes", "no", "maybe", ""]
    words = Page(drawn).words
    assert [words.count(said) for said in ("shows it", "does not", "cannot tell")] == [1, 1, 1]
    assert "not there" in words


def test_the_words_that_differ_are_marked() -> None:
    assert marked("A <b> dog runs.", "A <i> dog runs fast.") == (
        "A <mark>&lt;b&gt;</mark> dog <mark>runs.</mark>",
        "A <mark>&lt;i&gt;</mark> dog <mark>runs fast.</mark>",
    )
    assert marked("same", "same") == ("same", "same")
    assert marked("a b", "a") == ("a<mark> b</mark>", "a")


def test_images_are_shrunk(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (1500, 2000, 3), dtype=np.uint8))
    write_page(tmp_path / "new" / "r.html", render_page("t", look(CaseImage(noise, "n"), "a"), []))
    assert (tmp_path / "new" / "r.html").stat().st_size < 200_000
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["r.html"]


def test_a_page_that_cannot_be_written_ends_in_one_line_and_spares_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cannot write .*r\.html: .*; name another file$"):
        write_page(tmp_path / "file" / "r.html", "t")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_text("")
    with pytest.raises(UserError, match="it is a folder; name another file"):
        write_page(tmp_path / "folder", "t")
    assert (tmp_path / "folder" / "kept").exists()


def test_names_that_are_no_unicode_can_be_written(tmp_path: Path) -> None:
    write_page(tmp_path / "r.html", render_page("t", notes(["a\udcff.png"]), []))
    assert "a?.png" in (tmp_path / "r.html").read_text()


def test_the_heat_of_segments_lies_on_pixel_centres_and_is_the_mean_of_an_area_where_smaller() -> None:
    places = torch.tensor([[[0, 1], [1, 2]]])
    wide = on_segments(torch.tensor([[0.0, 1.0, 3.0]]), places, (2, 4))
    assert wide.tolist() == [[[0.0, 0.25, 0.75, 1.0], [1.0, 1.5, 2.5, 3.0]]]
    assert on_segments(torch.tensor([[0.0, 1.0, 3.0]]), places, (1, 1)).tolist() == [[[1.25]]]
