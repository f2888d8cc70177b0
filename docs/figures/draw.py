"""Draws the figures of the pages as SVG, readable in light and dark: python docs/figures/draw.py

Those of results.md and performance.md read their numbers from the tables of these pages.
"""

import re
import tomllib
from pathlib import Path

DOCS = Path(__file__).parents[1]

STYLE = """text{font:14px system-ui,sans-serif;fill:#222;text-anchor:middle}rect{fill:#fff;stroke:#557;stroke-width:1.5}
rect.i{fill:#dbe9f6}rect.t{fill:#fbe3cf}path{stroke:#557;stroke-width:1.5;fill:none;marker-end:url(#a)}
@media(prefers-color-scheme:dark){text{fill:#eee}rect{fill:#2a2d36;stroke:#99b}rect.i{fill:#274360}rect.t{fill:#5c3c1f}
path{stroke:#99b}}"""

I, T, N = "i", "t", "n"
FIGURES = {
    "clip": [[(I, "image"), (I, "one vector"), (N, "CLIP: pick the caption of the batch; SigLIP: yes or no for each pair"), (T, "one vector"), (T, "caption")],
             [(I, "image"), (I, "patches"), (N, "MaxSim: each sentence takes its best patch, then the mean"), (T, "sentences"), (T, "caption")]],
    "himo-clip": [[(I, "image"), (I, "one vector"), (N, "contrast with the whole"), (T, "one vector"), (T, "caption")],
                  [(I, "image"), (I, "one vector"), (N, "contrast with the principal part"), (T, "what differs in this batch (PCA)"), (T, "captions of the batch")]],
    "beta-clip": [[(I, "image"), (I, "patches"), (N, "each text pools the patches that it needs"), (T, "caption, sentences, phrases"), (T, "caption")],
                  [(I, "pooled images"), (N, "own text: 1; texts of the same image: beta; others: 0"), (T, "texts")]],
    "caft": [[(I, "image"), (I, "segments"), (N, "parts: each sub-caption pools its segments"), (T, "sub-captions"), (T, "caption")],
             [(I, "segments"), (I, "class token"), (N, "wholes: image and caption"), (T, "composed caption"), (T, "sub-captions")]],
    "seps": [[(I, "image"), (I, "patches"), (N, "caption and description select patches"), (T, "words"), (T, "caption")],
             [(I, "few merged tokens"), (N, "every token finds its best counterpart"), (T, "words")]],
    "mosaic": [[(I, "image"), (I, "its cells"), (I, "mean cell, and how often each visual word is seen"), (N, "one cosine"), (T, "between the whole and the mean of its sentences"), (T, "the whole; each sentence; their words"), (T, "text")],
               [(I, "cells"), (N, "with places: each sentence finds cells, and two places lie as it says"), (T, "beginning and end of each sentence")]],
    "text-group-transformer": [[(T, "caption"), (T, "tokens"), (T, "groups: each token in one"), (N, "mean of the groups, contrast"), (I, "image")],
                               [(T, "groups"), (N, "a decoder says the caption again"), (T, "caption")]],
}  # fmt: skip


def lines(text: str, width: int = 19) -> list[str]:
    out = [""]
    for word in text.split():
        out = [*out[:-1], f"{out[-1]} {word}".strip()] if len(out[-1]) + len(word) < width else [*out, word]
    return [line for line in out if line]


def figure(rows: list[list[tuple[str, str]]]) -> str:
    """Rows of boxes; arrows lead to the box where both sides meet."""
    box, gap, high = 148, 24, 92
    width = max(len(row) for row in rows) * (box + gap) - gap + 4
    parts = []
    for y, row in enumerate(rows):
        meets = next(k for k, (kind, _) in enumerate(row) if kind == N)
        left = (width - len(row) * (box + gap) + gap) / 2
        for k, (kind, text) in enumerate(row):
            x, top = left + k * (box + gap), 2 + y * (high + 24)
            parts.append(f'<rect class="{kind}" x="{x}" y="{top}" width="{box}" height="{high}" rx="8"/>')
            said = lines(text)
            start = top + high / 2 - 9 * (len(said) - 1) + 5
            parts += [
                f'<text x="{x + box / 2}" y="{start + 18 * n}">{line}</text>' for n, line in enumerate(said)
            ]
            middle = top + high / 2
            if k < meets:
                parts.append(f'<path d="M{x + box} {middle}h{gap - 3}"/>')
            elif k > meets:
                parts.append(f'<path d="M{x} {middle}h{3 - gap}"/>')
    tall = len(rows) * (high + 24) - 20
    arrow = '<marker id="a" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto"><path d="M1 1L7 4L1 7" style="marker-end:none"/></marker>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}"><style>{STYLE}</style><defs>{arrow}</defs>{"".join(parts)}</svg>\n'


DOTS = """text{font:13px system-ui,sans-serif;fill:#222}text.e{text-anchor:end}text.b{font-weight:bold}path{stroke:#9aa;stroke-dasharray:3 3}
line{stroke:#557;stroke-width:2}circle{fill:#d2541b}
@media(prefers-color-scheme:dark){text{fill:#eee}path{stroke:#778}line{stroke:#aac}circle{fill:#ff8a50}}"""
ROW, VALUE = 26, 62
Interval = tuple[str, float, float]  # value as the page has it, low, high


def interval(cell: str) -> Interval:
    """The first value (low to high) of a cell."""
    found = re.search(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", cell)
    assert found is not None, cell
    return found[1], float(found[2]), float(found[3])


def dots(panels: list[tuple[str, float, dict[str, Interval]]], label: int, wide: int) -> str:
    """Panels side by side: title, value of the dashed line, label -> value, low, high. Axes start at 0."""
    parts = [
        f'<text class="e" x="{label - 12}" y="{20 + ROW * k}">{name}</text>'
        for k, name in enumerate(panels[0][2], start=1)
    ]
    for column, (title, mark, rows) in enumerate(panels):
        left = label + column * (wide + VALUE)
        scale = wide / max(high for _, _, high in rows.values())
        parts.append(f'<text class="b" x="{left}" y="20">{title}</text>')
        parts.append(f'<path d="M{left + mark * scale:.1f} 28v{ROW * len(panels[0][2])}"/>')
        for k, name in enumerate(panels[0][2], start=1):
            y = 20 + ROW * k
            if name not in rows:
                parts.append(f'<text x="{left + wide / 3:.0f}" y="{y}">not run</text>')
                continue
            value, low, high = (float(each) * scale for each in rows[name])
            parts.append(
                f'<line x1="{left + low:.1f}" x2="{left + high:.1f}" y1="{y - 4}" y2="{y - 4}"/>'
                f'<circle cx="{left + value:.1f}" cy="{y - 4}" r="4"/>'
                f'<text x="{left + wide + 8}" y="{y}">{rows[name][0]}</text>'
            )
    width, tall = label + len(panels) * (wide + VALUE), 32 + ROW * len(panels[0][2])
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}"><style>{DOTS}</style>{"".join(parts)}</svg>\n'


BADGE = """text{font:12px system-ui,sans-serif;fill:#fff}rect{fill:#4a5160}rect.v{fill:#2a6f97}"""


def badges() -> str:
    """Python, torch, licence and version of the package, as pyproject.toml and the package have them."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = (DOCS.parent / "grainline" / "__init__.py").read_text(encoding="utf-8")
    torch = next(one for one in project["dependencies"] if one.startswith("torch>="))
    values = {
        "grainline": re.search(r'__version__ = "(.+)"', package)[1],
        "python": project["requires-python"].removeprefix(">=") + "+",
        "torch": torch.removeprefix("torch>=").partition(",")[0] + "+",
        "tested on": "Linux",
        "licence": project["license"],
    }
    parts, x = [], 0
    for name, value in values.items():
        left, right = (14 + round(6.7 * len(text)) for text in (name, value))
        parts.append(
            f'<rect x="{x}" width="{left}" height="20"/><rect class="v" x="{x + left}" width="{right}" height="20"/>'
        )
        parts.append(f'<text x="{x + 7}" y="14">{name}</text><text x="{x + left + 7}" y="14">{value}</text>')
        x += left + right + 6
    said = ", ".join(f"{name} {value}" for name, value in values.items())
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{x}" height="20" role="img" aria-label="{said}"><style>{BADGE}</style>{"".join(parts)}</svg>\n'


def below(page: str, head: str) -> list[list[str]]:
    """The rows of the first table of a page whose head has this cell."""
    for table in re.findall(r"(?:^\|.*\n)+", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        if head in rows[0]:
            return rows[2:]
    raise ValueError(f"{page} has no table with {head}")


def results() -> str:
    """rSum of the methods over the same frozen encoders, from results.md; the best of the first set on top."""
    chance = {"Flickr8k, single": 3.2, "Flickr8k, joined": 3.2, "OpenStax": 5.6}
    rows = below("results.md", "Flickr8k, single")
    rows.sort(key=lambda row: -float(interval(row[1])[0]))
    panels = []
    for column, (title, mark) in enumerate(chance.items(), start=1):
        values = {row[0]: interval(row[column]) for row in rows if row[column] != "not run"}
        panels.append((title, mark, values))
    return dots(panels, label=90, wide=150)


def performance() -> str:
    """How many times as fast each row of the last table of performance.md is."""
    values = {row[0]: interval(row[2]) for row in below("performance.md", "the usual way")}
    return dots([("Times as fast as the usual way", 1.0, values)], label=330, wide=330)


if __name__ == "__main__":
    for page, drawn in (("results", results()), ("performance", performance()), ("badges", badges())):
        (DOCS / f"figures/{page}.svg").write_text(drawn, encoding="utf-8")
    folder = DOCS / "methods/figures"
    folder.mkdir(exist_ok=True)
    for name, rows in FIGURES.items():
        (folder / f"{name}.svg").write_text(figure(rows), encoding="utf-8")
