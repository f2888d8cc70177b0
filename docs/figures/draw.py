"""Draws the figures of the methods as SVG, readable in light and dark: python docs/figures/draw.py"""

from pathlib import Path

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


if __name__ == "__main__":
    folder = Path(__file__).parents[1] / "methods/figures"
    folder.mkdir(exist_ok=True)
    for name, rows in FIGURES.items():
        (folder / f"{name}.svg").write_text(figure(rows), encoding="utf-8")
