"""Where in a caption the groups of trained models stand, and one caption: the second figure of TGT's page.

    python -m benchmarks.tgt_maps OUT FILE

OUT is a study of benchmarks/tgt.py. A row of maps for each of SHOWN, a column for each seed.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tgt import Fivefold
from grainline import load
from grainline.data.open_source import open_sources
from grainline.evaluation.suites.grouped import Grouped
from grainline.evaluation.suites.phrases import PhrasesSuite, by_position, pieces
from grainline.model import Model

SHOWN = {
    "captions-reconstruction": "as it is",
    "captions-crops": "with crops",
    "captions-places": "with position dropout",
}
LEAST, MOST = 9, 12  # phrases are easiest to see in a caption of so many tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("png", type=Path)
    args = parser.parse_args()
    folder = Fivefold(args.out, args.out, 1)
    draw(folder, args.png)


def grouped(model: Model, folder: Fivefold) -> Grouped:
    """The captions of Flickr8k with the phrases of rules, as a model groups them."""
    source = open_sources([f"flickr30k-entities:{folder.silver}?split=val"])
    found = PhrasesSuite().encode(model, source).collected["phrases"]
    assert found is not None, "phrases were asked for"
    return found


def draw(folder: Fivefold, path: Path) -> None:
    """The figure. Rows of SHOWN that are not trained stay away."""
    from matplotlib.figure import Figure

    runs = {name: [folder.out / "runs" / f"{name}-{seed}" for seed in folder.seeds] for name in SHOWN}
    there = [name for name in SHOWN if all((run / "last").is_dir() for run in runs[name])]
    wide = len(folder.seeds)
    canvas = Figure(figsize=(1.75 * wide, 1.0 * len(there) + 1.9), dpi=110, layout="constrained")
    grid = canvas.add_gridspec(len(there) + 1, wide, height_ratios=[1.0] * len(there) + [1.9])
    for row, name in enumerate(there):
        for column, run in enumerate(runs[name]):
            model = load(run, device="cpu")
            found = grouped(model, folder)
            assert found.soft
            axes = canvas.add_subplot(grid[row, column])
            axes.imshow(by_position(found.soft), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_xticks([])
            axes.set_yticks([])
            if column == 0:
                axes.set_ylabel(SHOWN[name], fontsize=6)
            if row == 0:
                axes.set_title(f"seed {folder.seeds[column]}", fontsize=7)
            if row == column == 0:
                caption(canvas.add_subplot(grid[-1, :]), model, found)
    canvas.savefig(path)


def caption(axes: Any, model: Model, found: Grouped) -> None:
    """The first caption of the wanted length: what each group takes of each token, and its phrases."""
    assert found.soft
    i = next(i for i, one in enumerate(found.soft) if LEAST <= one.shape[1] <= MOST)
    soft, gold = found.soft[i], found.gold[i]
    words = pieces(model, found.texts[i], [token.column for token in found.tokens[i]])
    number = len(soft)
    axes.imshow(soft, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_ylim(number + 0.3, -0.5)
    for phrase in gold:
        at = np.flatnonzero(phrase)
        axes.plot([at[0] - 0.4, at[-1] + 0.4], [number - 0.1] * 2, color="#1d2129", lw=1.5)
    axes.set_xticks(range(len(words)), words, fontsize=7)
    axes.set_yticks(range(number), [f"group {k + 1}" for k in range(number)], fontsize=6)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


if __name__ == "__main__":
    main()
