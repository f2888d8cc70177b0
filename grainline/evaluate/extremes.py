"""Single outcomes: items of two pictures, most wrong and most right; noise that changed most and least."""

import numpy as np

from grainline.evaluate.examples import SHOWN, Measured
from grainline.evaluate.items import item_scores, margins
from grainline.evaluate.noise import NOISY, PLAIN, SENTENCES, place
from grainline.evaluate.stability import changes
from grainline.viz.items import Crossed
from grainline.viz.noise import Disturbed


def worst_items(on: Measured, number: int = SHOWN) -> list[Crossed]:
    """The items of which a caption prefers the wrong picture by most, or its own by least."""
    return _items(on, number, 1)


def best_items(on: Measured, number: int = SHOWN) -> list[Crossed]:
    """The items whose captions prefer their own pictures by most."""
    return _items(on, number, -1)


def _items(on: Measured, number: int, sign: int) -> list[Crossed]:
    items, data = on.data.items, on.data
    assert items is not None, "the cola suite was run"
    score = item_scores(on.model.method, data.images, data.texts, items).cpu()
    out = []
    for i in (sign * margins(score)).argsort(stable=True)[:number].tolist():
        pictures, texts = items.pictures[i].tolist(), items.texts[i].tolist()
        out.append(
            Crossed(
                items.number[i] + 1,
                [on.picture(row) for row in pictures],
                [data.keys[row] for row in pictures],
                [data.strings[row] for row in texts],
                score[i].tolist(),
            )
        )
    return out


def most_changed(on: Measured, number: int = SHOWN) -> list[Disturbed]:
    """The subtexts whose score noise changes most, each of another picture."""
    return _disturbed(on, number, -1)


def least_changed(on: Measured, number: int = SHOWN) -> list[Disturbed]:
    """The subtexts whose score noise changes least, each of another picture."""
    return _disturbed(on, number, 1)


def _disturbed(on: Measured, number: int, sign: int) -> list[Disturbed]:
    noise, told = on.data.noise, on.result.queries
    assert noise is not None, "the stability suite was run"
    scores = list(zip(*(told["scores"][name] for name in (PLAIN, NOISY)), strict=True))  # of each picture
    change = [sign * changes(*both) for both in scores]
    order = np.argsort([one.min() for one in change], kind="stable")[:number].tolist()
    out = []
    for i in order:
        j, drawn = int(change[i].argmin()), noise.drawn[i]
        before, after = (scores[i][k][j] for k in range(2))
        out.append(
            Disturbed(
                on.picture(i), on.data.keys[i], drawn.texts[j], SENTENCES[drawn.sentence],
                place(drawn.at[j], drawn.of[j]), (before, after), abs(float(change[i][j])),
            )
        )  # fmt: skip
    return out
